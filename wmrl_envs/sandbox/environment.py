"""The solutions' own environment: locked packages, compiled once, readable by whoever runs a solution.

Without it solutions run with the packages of the grader, whatever these happen to be. With it a result can be
had again elsewhere: the set of packages is part of `Sandbox.fingerprint`, and so of an execution's key.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

from wmrl_envs.errors import SandboxError

__all__ = ["build_environment", "requirement_files"]

COMPLETE = "wmrl-solutions.sha256"


def requirement_files(with_torch: bool = False) -> list[Path]:
    """Files that name the packages and their versions, in pip's format."""
    names = ["solution-requirements.txt"] + with_torch * ["solution-requirements-torch.txt"]
    return [Path(str(resources.files("wmrl_envs.sandbox").joinpath(name))) for name in names]


def build_environment(
    folder: str | Path, with_torch: bool = False, requirements: list[Path] | None = None
) -> Path:
    """Build a virtual environment, with uv where it is installed, else with pip.

    One that is complete and holds these packages is left as it is; an older or broken one is built anew.

    Args:
        folder: Where; it must not exist, be empty, or be such an environment.
        with_torch: Whether torch belongs to it.
        requirements: Files to install from instead of the project's own.

    Returns:
        The environment's interpreter, for ``BubblewrapSandbox(python=...)``.

    Raises:
        SandboxError: The folder holds something else, or the packages cannot be installed.
    """
    folder = Path(folder).absolute()
    files = requirement_files(with_torch) if requirements is None else requirements
    digest = _digest(files)
    python, complete = folder / "bin/python", folder / COMPLETE
    if complete.is_file() and complete.read_text() == digest:
        return python
    _make_room(folder)
    _install(folder, python, files)
    _compile(python)
    _open_to_all(folder)
    complete.write_text(digest)
    complete.chmod(0o644)
    return python


def _digest(files: list[Path]) -> str:
    """Of the interpreter and the packages that are asked for."""
    content = b"\0".join(file.read_bytes() for file in files)
    return hashlib.sha256(sys.version.encode() + content).hexdigest()


def _make_room(folder: Path) -> None:
    """Remove an older environment; never anything else."""
    if folder.exists() and not folder.is_dir():
        raise SandboxError(f"{folder} is not a folder: name another one for the solutions' environment.")
    if (folder / "pyvenv.cfg").is_file():
        shutil.rmtree(folder)
    elif folder.is_dir() and any(folder.iterdir()):
        raise SandboxError(f"{folder} holds other things: name an empty or new folder.")


def _install(folder: Path, python: Path, files: list[Path]) -> None:
    """Without pip inside: solutions have no network to use it with."""
    named = [word for file in files for word in ("--requirement", str(file))]
    if (uv := shutil.which("uv")) is not None:
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
        _run([uv, "pip", "install", "--quiet", "--python", str(python), *named])
    else:
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
        _run([*pip, "install", "--quiet", "--no-compile", "--only-binary=:all:", *named])


def _compile(python: Path) -> None:
    """Into files that are never compared with their sources: nobody can write to either."""
    where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    library = subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()
    # The exit code is 1 where a package ships a file for another version of Python, as some do.
    command = [
        str(python),
        "-m",
        "compileall",
        "-q",
        "-q",
        "-j2",
        "--invalidation-mode",
        "unchecked-hash",
        library,
    ]
    subprocess.run(command, capture_output=True, check=False)


def _open_to_all(folder: Path) -> None:
    """Solutions run as a user of their own."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o555 if path.is_dir() or mode & 0o100 else 0o444))


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except OSError as error:
        raise SandboxError(f"{command[0]} does not start: {error}.") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise SandboxError(f"The solutions' environment could not be built: {said[-1]}") from error
