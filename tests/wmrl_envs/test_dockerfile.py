"""The Dockerfile for users who have a registry, as far as it can be run without one."""

import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from wmrl_envs.sandbox import docker_engine
from wmrl_envs.sandbox.environment import requirement_files

DOCKERFILE = Path(docker_engine.__file__).with_name("Dockerfile")


def instructions() -> list[tuple[str, str]]:
    """Pairs of an instruction and its arguments."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines()]


def arguments(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


@pytest.fixture
def installed(tmp_path):
    """Runs the commands of the RUN lines with programs that only note how they were called."""

    def run(cuda: str) -> list[str]:
        log = tmp_path / f"log-{cuda}"
        for program in ("apt-get", "python3", "rm"):
            path = tmp_path / program
            path.write_text(f'#!/bin/sh\necho "{program} $*" >> "$LOG"\n')
            path.chmod(0o755)
        environment = {"PATH": str(tmp_path), "LOG": str(log), "CUDA": cuda}
        for command in arguments("RUN"):
            subprocess.run(["/bin/sh", "-c", command], env=environment, check=True)
        return log.read_text().splitlines()

    return run


def test_every_instruction_is_one():
    assert {name for name, _ in instructions()} == {"ARG", "FROM", "COPY", "RUN", "USER"}
    assert arguments("ARG") == ["BASE=python:3.11-slim", "CUDA=0"]
    assert arguments("FROM") == ["${BASE}"]


def test_what_is_copied_is_there_and_is_all_that_is_installed():
    [copy] = arguments("COPY")
    *sources, target = copy.split()
    assert [DOCKERFILE.with_name(source) for source in sources] == requirement_files(with_torch=True)
    used = set(re.findall(re.escape(target) + r"(\S+?\.txt)", " ".join(arguments("RUN"))))
    assert used == set(sources)


@pytest.mark.parametrize(("cuda", "with_torch"), [("0", False), ("1", True)])
def test_it_installs_the_solutions_packages_and_no_others(installed, cuda, with_torch):
    calls = installed(cuda)
    [install] = [call.split() for call in calls if call.startswith("python3 -m pip install ")]
    given = [Path(after) for word, after in pairwise(install) if word == "--requirement"]
    assert [path.name for path in given] == [path.name for path in requirement_files(with_torch)]
    rest = set(install[4:]) - {"--requirement", *map(str, given)}
    assert rest == {"--no-cache-dir", "--no-compile", "--only-binary=:all:"}
    [compiled] = [call for call in calls if call.startswith("python3 -m compileall ")]
    assert "--invalidation-mode unchecked-hash" in compiled


def test_a_failing_installation_fails_the_build(tmp_path, installed):
    installed("0")
    (tmp_path / "python3").write_text('#!/bin/sh\n[ "$2" != pip ]\n')
    command = arguments("RUN")[-1]
    done = subprocess.run(["/bin/sh", "-c", command], env={"PATH": str(tmp_path), "CUDA": "0"}, check=False)
    assert done.returncode != 0


def test_it_does_not_end_as_root():
    assert instructions()[-1][0] == "USER"
    user, group = instructions()[-1][1].split(":")
    assert min(int(user), int(group)) > 0
