"""The solutions' own environment, built from a package that is made here: no index is asked."""

import os
import zipfile

import pytest

from wmrl_envs.errors import SandboxError
from wmrl_envs.sandbox import BubblewrapSandbox, Job
from wmrl_envs.sandbox.environment import build_environment, requirement_files
from wmrl_envs.sandbox.interpreter import find_interpreter


@pytest.fixture
def wheel(tmp_path):
    """Makes a wheel of one module, and a file that requires it."""

    def make(version: str):
        path = tmp_path / f"tinypackage-{version}-py3-none-any.whl"
        info = f"tinypackage-{version}.dist-info"
        files = {
            "tinypackage.py": f"VERSION = {version!r}\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tinypackage\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in (files | {f"{info}/RECORD": record}).items():
                archive.writestr(name, content)
        requirements = tmp_path / f"requirements-{version}.txt"
        requirements.write_text(f"tinypackage @ {path.as_uri()}\n")
        return [requirements]

    return make


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path / "environment"


@pytest.mark.slow
@pytest.mark.sandbox
def test_solutions_run_with_its_packages(wheel, folder, tmp_path):
    (tmp_path / "data").mkdir()
    prints = []
    digests = []
    for version in ("1.0", "2.0"):
        python = build_environment(folder, requirements=wheel(version))
        find_interpreter.cache_clear()
        sandbox = BubblewrapSandbox(python=python)
        prints.append(sandbox.run(Job("import tinypackage\nprint(tinypackage.VERSION)", tmp_path / "data")))
        digests.append(sandbox.fingerprint)
    assert [result.stdout for result in prints] == ["1.0\n", "2.0\n"]
    assert digests[0] != digests[1]


@pytest.mark.slow
def test_it_is_compiled_readable_and_not_built_twice(wheel, folder):
    old = os.umask(0o077)
    try:
        python = build_environment(folder, requirements=wheel("1.0"))
    finally:
        os.umask(old)
    (compiled,) = folder.rglob("tinypackage.*.pyc")
    assert compiled.read_bytes()[4:8] == (1).to_bytes(4, "little")  # PEP 552: by hash, never checked
    for path in (folder, *folder.rglob("*")):
        needed = 0o005 if path.is_dir() else 0o004
        assert path.is_symlink() or path.stat().st_mode & needed == needed, path
    assert not list(folder.rglob("pip"))
    (folder / "mark").touch()
    assert build_environment(folder, requirements=wheel("1.0")) == python
    assert (folder / "mark").exists()


@pytest.mark.slow
def test_a_broken_one_is_built_anew_and_a_failure_is_told(wheel, folder, tmp_path):
    missing = tmp_path / "requirements.txt"
    missing.write_text("no-such-package==1.0\n")
    with pytest.raises(SandboxError, match=r"could not be built: .*no-such-package"):
        build_environment(folder, requirements=[missing])
    assert (folder / "pyvenv.cfg").exists()
    build_environment(folder, requirements=wheel("1.0"))
    assert list(folder.rglob("tinypackage.py"))


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SandboxError, match="is not a folder"):
        build_environment(tmp_path / "file")


def test_every_requirement_is_pinned():
    lines = [
        line
        for file in requirement_files(with_torch=True)
        for line in file.read_text().splitlines()
        if not line.startswith("#")
    ]
    names = [line.partition("==")[0] for line in lines]
    assert all(line.count("==") == 1 and line.partition("==")[2] for line in lines)
    assert len(set(names)) == len(names)
    assert {"numpy", "pandas", "scikit-learn", "scipy", "lightgbm", "xgboost-cpu", "pillow", "torch"} <= set(
        names
    )
