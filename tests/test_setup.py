"""Setting up a machine: the system package, and what is said where it cannot be had."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOG = 'echo "${0##*/} $*" >> "$LOG"\n'
LIBRARIES = "libosmesa6 libegl1 libegl-mesa0 libgl1 libgl1-mesa-dri"
INSTALL = "apt-get install -y -qq --no-install-recommends bubblewrap"


@pytest.fixture
def setup(tmp_path):
    """Runs .ci/bubblewrap on a machine that has only the given commands."""

    def run(**commands):
        for name, script in commands.items():
            path = tmp_path / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\n{script}")
            path.chmod(0o755)
        log = tmp_path / "log"
        log.touch()
        done = subprocess.run(
            ["/bin/sh", ROOT / ".ci/bubblewrap"],
            env={"PATH": str(tmp_path), "LOG": str(log)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        return done, log.read_text().splitlines()

    return run


def test_nothing_happens_where_bubblewrap_is_installed(setup):
    done, calls = setup(bwrap="", apt_get=LOG, id="echo 0")
    assert (done.returncode, done.stdout, done.stderr, calls) == (0, "", "", [])


def test_root_installs_it(setup):
    done, calls = setup(apt_get=LOG, id="echo 0")
    assert done.returncode == 0
    assert calls == ["apt-get update -qq", INSTALL]


def test_others_install_it_through_sudo(setup):
    done, calls = setup(apt_get=LOG, id="echo 1000", sudo=LOG)
    assert done.returncode == 0
    assert calls == ["sudo -n true", "sudo -n apt-get update -qq", f"sudo -n {INSTALL}"]


@pytest.mark.parametrize("sudo", [{}, {"sudo": LOG + "exit 1"}], ids=["no sudo", "sudo wants a password"])
def test_without_root_and_sudo_one_sentence_says_what_to_install(setup, sudo):
    done, calls = setup(apt_get=LOG, id="echo 1000", **sudo)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert INSTALL in done.stderr
    assert not any("apt-get" in call for call in calls)


def test_dnf_stands_in_for_apt(setup):
    done, calls = setup(dnf=LOG, id="echo 0")
    assert done.returncode == 0
    assert calls == ["dnf install -y -q bubblewrap"]


def test_an_unknown_package_manager_is_left_to_the_user(setup):
    done, _ = setup(id="echo 0")
    assert done.returncode == 2
    assert "bwrap" in done.stderr


@pytest.mark.parametrize(
    ("fails", "says"),
    [("*version_info*", "WMRL needs Python 3.11 or newer"), ("*ensurepip*", "python3-venv")],
    ids=["too old", "no venv"],
)
def test_an_unfit_python_is_named(tmp_path, fails, says):
    shutil.copy(ROOT / "Makefile", tmp_path)
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\ncase "$*" in {fails}) exit 1 ;; esac\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["make", "--silent", f"PYTHON={python}", ".venv/bin/pip"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.fixture
def docker(tmp_path):
    """Runs .ci/docker with only these programs; no engine answers."""

    def run(*arguments, **programs):
        for name in ("dirname", "mktemp", "rm", "seq", "sleep", "tail"):
            (tmp_path / name).symlink_to(shutil.which(name))
        for name, script in {"docker": "exit 1", **programs}.items():
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        command = ["/bin/bash", ROOT / ".ci/docker", *arguments, "echo", "it ran"]
        environment = {"PATH": str(tmp_path), "TMPDIR": str(tmp_path)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["--required"], 2)])
@pytest.mark.parametrize(
    ("programs", "why"),
    [
        ({"id": "echo 1000"}, "root has to run: apt-get install docker.io mmdebstrap"),
        ({"id": "echo 0"}, "no engine runs, and there is no apt-get to install one with."),
        ({"id": "echo 0", "apt-get": "exit 100"}, "the packages docker.io mmdebstrap cannot be installed."),
        (
            {"id": "echo 0", "mmdebstrap": "", "dockerd": "echo no cgroups >&2; exit 1"},
            "the engine ended: no cgroups",
        ),
    ],
    ids=["an ordinary user", "no package manager", "no packages", "an engine that does not start"],
)
def test_where_no_engine_can_be_had_it_says_why_and_fails_only_if_asked(
    docker, tmp_path, arguments, code, programs, why
):
    done = docker(*arguments, **programs)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"Docker is not tested here: {why}\n"
    assert list(tmp_path.glob("tmp.*")) == []


@pytest.fixture
def real_models(tmp_path):
    """Runs .ci/real-models in a checkout with only these programs; PyPI does not answer."""
    for name in (".ci/real-models", ".ci/small-models"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for name in ("dirname", "mktemp", "rm", "env", "bash"):
        (bin_dir / name).symlink_to(shutil.which(name))

    def run(*arguments, machine="x86_64", python="exit 1"):
        for name, script in (("python", python), ("uname", f"echo {machine}")):
            path = bin_dir / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        command = ["/bin/bash", tmp_path / ".ci/real-models", *arguments, bin_dir / "python"]
        environment = {"PATH": str(bin_dir), "TMPDIR": str(tmp_path)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["--required"], 2)])
@pytest.mark.parametrize(
    ("kind", "machine", "why"),
    [
        ("models", "x86_64", "the models cannot be had from PyPI."),
        ("vllm", "x86_64", "vLLM cannot be installed from PyPI."),
        ("vllm", "aarch64", "vLLM for processors is built for x86-64 alone."),
    ],
)
def test_where_no_model_can_be_had_it_says_why_and_fails_only_if_asked(
    real_models, tmp_path, arguments, code, kind, machine, why
):
    done = real_models(*arguments, kind, machine=machine)
    assert done.returncode == code
    assert done.stderr == f"Real models are not tested here: {why}\n"
    assert list(tmp_path.glob("tmp.*")) == []


def test_models_that_are_there_are_not_made_again(real_models, tmp_path):
    for name in ("smollm2", "qwen-coder"):
        (tmp_path / "build/models" / name).mkdir(parents=True)
        (tmp_path / "build/models" / name / "complete").touch()
    done = real_models("models", python='echo "$WMRL_TEST_MODELS $*"')
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "build/models -m pytest tests/real_models/test_transformers.py\n"


@pytest.fixture
def libero(tmp_path):
    """Runs .ci/libero in a checkout with only these programs; PyPI does not answer."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/libero", tmp_path / ".ci/libero")
    (tmp_path / "constraints-libero.txt").touch()
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()

    def run(*arguments, ldconfig="echo libOSMesa.so.8", **programs):
        script = (tmp_path / ".ci/libero").read_text().replace("/sbin/ldconfig", "ldconfig")
        (tmp_path / ".ci/libero").write_text(script)
        (bin_dir / "dirname").symlink_to(shutil.which("dirname"))
        for name, body in {"python": "exit 1", "ldconfig": ldconfig, **programs}.items():
            path = bin_dir / name
            path.write_text(f"#!/bin/sh\n{body}\n")
            path.chmod(0o755)
        command = ["/bin/bash", tmp_path / ".ci/libero", *arguments, "python"]
        environment = {"PATH": str(bin_dir)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["--required"], 2)])
@pytest.mark.parametrize(
    ("programs", "why"),
    [
        ({}, "its packages cannot be had from PyPI."),
        ({"ldconfig": "echo libc.so.6", "id": "echo 1000"}, f"root has to run: apt-get install {LIBRARIES}"),
        (
            {"ldconfig": "echo libc.so.6", "id": "echo 0"},
            "no library draws without a screen, and there is no apt-get to install one.",
        ),
        (
            {"ldconfig": "echo libc.so.6", "id": "echo 0", "apt-get": "exit 100"},
            f"the packages {LIBRARIES} cannot be installed.",
        ),
    ],
    ids=["no PyPI", "an ordinary user", "no package manager", "no packages"],
)
def test_where_no_simulator_can_be_had_it_says_why_and_fails_only_if_asked(
    libero, arguments, code, programs, why
):
    done = libero(*arguments, **programs)
    assert done.returncode == code
    assert done.stderr == f"LIBERO is not tested here: {why}\n"


def test_a_simulator_that_is_there_is_not_installed_again(libero, tmp_path):
    python = tmp_path / ".venv-libero/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$*"\n')
    python.chmod(0o755)
    (tmp_path / ".venv-libero/installed").touch()
    done = libero()
    run = "-m pytest tests/wmrl_envs/libero tests/wmrl_agents/test_libero_run.py\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, run, "")


def test_a_check_of_a_change_keeps_its_budget_and_demands_no_engine():
    checks = (ROOT / ".ci/run").read_text(encoding="utf-8")
    minutes = dict(re.findall(r"([a-z-]+):(\d+)", checks))
    assert {"train-check", "test-docker", "test-models", "test-vllm", "test-libero"} <= set(minutes)
    assert sum(map(int, minutes.values())) <= 75
    assert "--required" not in checks
