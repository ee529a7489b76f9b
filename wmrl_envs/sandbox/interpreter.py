"""The interpreter that runs solutions: which folders it needs, what must not be seen in them."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from wmrl_envs.errors import SandboxError

__all__ = ["Interpreter", "find_interpreter"]

PACKAGES = ("wmrl_envs", "wmrl_rewards", "wmrl_agents")
OWN_PACKAGE = Path(__file__).resolve().parents[1]
PROBE = """
import json, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps([sys.prefix, sys.base_prefix, sys.version, [paths["purelib"], paths["platlib"]]]))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python and its packages.

    Attributes:
        executable: Absolute path, as it will be called inside the sandbox too.
        trees: Folders that it needs, none inside another, all outside of /usr.
        masked: Folders inside what is visible that must look empty: this project's own packages, since
            the bundled competitions' answers lie in them.
        digest: Changes when the interpreter or the set of installed packages changes.
    """

    executable: Path
    trees: tuple[Path, ...]
    masked: tuple[Path, ...]
    digest: str


@lru_cache(maxsize=16)
def find_interpreter(python: str | None = None) -> Interpreter:
    """Look at an interpreter.

    Args:
        python: Path of an executable; None for the one that runs this.

    Raises:
        SandboxError: It does not start.
    """
    executable = Path(python or sys.executable).absolute()
    try:
        probe = subprocess.run([executable, "-I", "-c", PROBE], capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(f"The solutions' interpreter {executable} does not start: {error}.") from error
    prefix, base_prefix, version, libraries = json.loads(probe.stdout)
    trees = _outermost([Path(prefix), Path(base_prefix), *_resolved_folders(executable)])
    site_packages = sorted({Path(library) for library in libraries})
    return Interpreter(
        executable=executable,
        trees=trees,
        masked=_masks(trees, site_packages),
        digest=_digest(version, site_packages),
    )


def _resolved_folders(executable: Path) -> list[Path]:
    """Installation folders of every link on the way from a virtual environment's python to the real one."""
    folders = []
    while executable.is_symlink():
        executable = executable.parent / executable.readlink()
        folders.append(
            executable.resolve().parents[1] if executable.parent.name == "bin" else executable.parent
        )
    return folders


def _outermost(folders: list[Path]) -> tuple[Path, ...]:
    wanted = sorted({folder for folder in folders if not folder.is_relative_to("/usr")})
    return tuple(f for f in wanted if not any(f != other and f.is_relative_to(other) for other in wanted))


def _masks(trees: tuple[Path, ...], site_packages: list[Path]) -> tuple[Path, ...]:
    visible = (*trees, Path("/usr"))
    candidates = {OWN_PACKAGE, OWN_PACKAGE.resolve()}
    for library in site_packages:
        candidates |= {library / name for name in PACKAGES}
    return tuple(
        sorted(c for c in candidates if c.is_dir() and any(c.is_relative_to(tree) for tree in visible))
    )


def _digest(version: str, site_packages: list[Path]) -> str:
    """Names of *.dist-info folders carry the versions; our own does not change what a solution computes."""
    names = [path.name for library in site_packages for path in library.glob("*.dist-info")]
    runner = Path(__file__).with_name("runner.py").read_bytes()
    installed = sorted(name for name in names if not name.startswith("wmrl-"))
    return hashlib.sha256(json.dumps([version, installed]).encode() + runner).hexdigest()
