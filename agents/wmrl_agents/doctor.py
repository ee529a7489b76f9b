"""``wmrl doctor``: whether this machine has what a run needs, one line for each thing looked at."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from wmrl_envs.errors import SandboxError

__all__ = ["Check", "check_disk", "check_docker", "check_packages", "check_python", "check_sandbox", "main"]

GIB = 1 << 30
OLDEST_PYTHON = (3, 11)
PACKAGES = ("torch", "transformers", "scikit-learn")
ENOUGH_BYTES = 5 * GIB
TOO_FEW_BYTES = GIB // 4


@dataclass(frozen=True)
class Check:
    """What was found about one thing.

    Attributes:
        status: ``error`` keeps a run from starting; ``warning`` costs something, or concerns an option.
        name: The thing.
        message: What was found and, unless it is fine, what to do.
    """

    status: Literal["ok", "warning", "error"]
    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.status:7}  {self.name:14}  {self.message}"


def main(arguments: Sequence[str]) -> int:
    """Run ``wmrl doctor`` with these arguments.

    Returns:
        0 if a run can start, 1 if there is an error.
    """
    parser = argparse.ArgumentParser(
        prog="wmrl doctor", description="Say what this machine can do, and lacks."
    )
    parser.parse_args(arguments)
    looks: list[Callable[[], Iterator[Check]]] = [
        lambda: iter([check_python()]),
        lambda: iter(check_packages()),
        check_sandbox,
        lambda: iter([check_docker()]),
        lambda: (check_disk(name, folder) for name, folder in _places().items()),
    ]
    failed = False
    for check in (check for look in looks for check in look()):
        failed |= check.status == "error"
        print(check)
    return int(failed)


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    """Whether Python is new enough.

    Args:
        version: Major, minor and micro number; this interpreter's by default.
    """
    name = ".".join(map(str, version))
    if version < OLDEST_PYTHON:
        return Check("error", "Python", f"{name} is too old: install Python 3.11 or newer.")
    return Check("ok", "Python", f"{name} on {platform.machine()}")


def check_packages(names: Sequence[str] = PACKAGES) -> list[Check]:
    """Which versions of the larger packages are installed.

    Args:
        names: Names of distributions.
    """
    return [_check_package(name) for name in names]


def _check_package(name: str) -> Check:
    try:
        return Check("ok", name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Check("error", name, f"It is not installed: pip install '{name}'.")


def check_sandbox() -> Iterator[Check]:
    """Whether solutions can be isolated here, and by what means."""
    from wmrl_envs.sandbox import BubblewrapSandbox
    from wmrl_envs.sandbox.seccomp import DENIED

    try:
        sandbox = BubblewrapSandbox()
    except SandboxError as error:
        yield Check("error", "sandbox", str(error))
        return
    yield Check("ok", "sandbox", f"bubblewrap {sandbox.version}; {sandbox.isolation}")
    if sandbox.memory_limiter == "watcher":
        advice = "no control group can be made: delegate one (systemd-run --user --scope -p Delegate=yes)."
        yield Check("warning", "memory limit", f"A watcher looks ten times a second, because {advice}")
    else:
        yield Check("ok", "memory limit", sandbox.memory_limiter)
    yield Check("ok", "seccomp", f"{len(DENIED)} system calls are refused")


def check_docker() -> Check:
    """Whether `DockerSandbox` could be used; nothing else needs Docker."""
    from wmrl_envs.sandbox.docker_engine import engine_version

    if importlib.util.find_spec("docker") is None:
        return Check("warning", "Docker", "Only its sandbox needs it: pip install 'wmrl[docker]'.")
    try:
        return Check("ok", "Docker", f"engine {engine_version()}")
    except SandboxError as error:
        return Check("warning", "Docker", f"Only its sandbox needs it. {error}")


def _places() -> dict[str, Path]:
    return {"disk": Path.cwd(), "temporary disk": Path(tempfile.gettempdir())}


def check_disk(name: str, folder: Path, enough_bytes: int = ENOUGH_BYTES) -> Check:
    """Whether a folder's disk has room for a run.

    Args:
        name: For the report.
        folder: A folder on that disk.
        enough_bytes: Less than this is worth a warning.
    """
    free = shutil.disk_usage(folder).free
    found = f"{free / GIB:.1f} GiB are free at {folder}"
    if free < TOO_FEW_BYTES:
        return Check("error", name, f"{found}: make room, a run's checkpoints would not fit.")
    if free < enough_bytes:
        return Check("warning", name, f"{found}: a long run may need more.")
    return Check("ok", name, found)
