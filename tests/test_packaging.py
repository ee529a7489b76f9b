"""What gets installed: every package, every data file, pinned versions, and imports that stay light."""

import configparser
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
IMPORT_ROOTS = {
    "wmrl_envs": "wmrl_envs",
    "wmrl_rewards": "wmrl_rewards",
    "agents/wmrl_agents": "wmrl_agents",
    "agents/presets": "wmrl_agents/presets",
}


def setup_cfg():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def files_of_the_tree():
    """Installed path of every file in the packages' folders."""
    return {
        f"{installed}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, installed in IMPORT_ROOTS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy of the tree, so that no build folder is left behind or reused."""
    source = tmp_path_factory.mktemp("source")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for folder in ("wmrl_envs", "wmrl_rewards", "agents"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out]
    done = subprocess.run([*command, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "deprecat" not in (done.stdout + done.stderr).lower()
    return next(out.glob("wmrl-*.whl"))


def test_setup_cfg_lists_every_package():
    listed = setup_cfg()["options"]["packages"].split()
    in_tree = {
        path.rpartition("/")[0].replace("/", ".")
        for path in files_of_the_tree()
        if path.endswith("/__init__.py")
    }
    assert sorted(listed) == sorted(in_tree)


def test_the_wheel_holds_every_file_of_the_packages(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    installed = {name for name in names if ".dist-info/" not in name}
    assert sorted(installed) == sorted(files_of_the_tree())


@pytest.mark.parametrize(
    "name",
    [
        "wmrl_envs/py.typed",
        "wmrl_rewards/py.typed",
        "wmrl_agents/py.typed",
        "wmrl_agents/presets/default.yaml",
        "wmrl_agents/presets/smoke.yaml",
        "wmrl_agents/report/page.html",
        "wmrl_envs/autoresearch/data/digits/public/images.npz",
        "wmrl_envs/autoresearch/data/sms-spam/private/answers.csv",
    ],
)
def test_the_wheel_holds(wheel, name):
    assert name in zipfile.ZipFile(wheel).namelist()


def test_the_wheel_works_where_the_project_is_not(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    program = (
        "import wmrl_envs, gymnasium\n"
        "from wmrl_envs.autoresearch import load_competition\n"
        "print(wmrl_envs.__file__)\n"
        "print(len(load_competition('breast-cancer').answers()) > 0)\n"
        "print('wmrl/MLEDojo-v0' in gymnasium.registry)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "site/wmrl_envs/__init__.py"), "True", "True"]


def test_the_wheel_names_licence_and_command(wheel):
    archive = zipfile.ZipFile(wheel)
    texts = {
        Path(name).name: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name
    }
    assert "License-Expression: MIT" in texts["METADATA"].splitlines()
    assert "MIT License" in texts["LICENSE"]
    assert "wmrl = wmrl_agents.cli:main" in texts["entry_points.txt"].splitlines()


@pytest.mark.parametrize("extra", [None, "dev", "docker"])
def test_every_direct_requirement_is_pinned_to_a_version_that_it_allows(extra):
    cfg = setup_cfg()
    wanted = cfg["options"]["install_requires"] if extra is None else cfg["options.extras_require"][extra]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    for requirement in map(Requirement, wanted.split()):
        assert requirement.specifier.contains(pins[requirement.name.lower()]), requirement


def test_importing_the_environments_leaves_heavy_libraries_out():
    program = "import sys, wmrl_envs; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"torch", "transformers", "pandas", "sklearn", "scipy"}.isdisjoint(done.stdout.split())
