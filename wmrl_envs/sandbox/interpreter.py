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

__all__ = ["USR", "Interpreter", "find_interpreter"]

PACKAGES = ("wmrl_envs", "wmrl_rewards", "wmrl_agents")
LIBRARIES = [
    f"{place}lib/python3*/{kind}-packages" for place in ("", "local/", "envs/*/") for kind in ("site", "dist")
]
USR = Path("/usr")
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
        SandboxError: It does not start, or its home is the whole file system.
    """
    executable = Path(python or sys.executable).absolute()
    try:
        probe = subprocess.run([executable, "-I", "-c", PROBE], capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(f"The solutions' interpreter {executable} does not start: {error}.") from error
    prefix, base_prefix, version, libraries = json.loads(probe.stdout)
    trees = _outermost([Path(prefix), Path(base_prefix), *_installations(executable)])
    if Path("/") in trees:  # it would lay the whole machine open
        raise SandboxError(f"The interpreter {executable} takes / for its home: call it by another path.")
    return Interpreter(
        executable=executable,
        trees=trees,
        masked=_masks((*trees, USR)),
        digest=_digest(version, [Path(library) for library in dict.fromkeys(libraries)]),
    )


def _installations(executable: Path) -> list[Path]:
    """Installations on the way from a virtual environment's python, link by link, to the real one.

    Only what looks like one: a link in somebody's ~/bin must not lay the whole home open.
    """
    found = []
    while executable.is_symlink():
        executable = executable.parent / executable.readlink()
        found += [executable.parent.parent, executable.resolve().parent.parent]
    return [folder for folder in found if any(folder.glob("lib/python3*"))]


def _outermost(folders: list[Path]) -> tuple[Path, ...]:
    wanted = sorted({folder for folder in folders if not folder.is_relative_to(USR)})
    return tuple(f for f in wanted if not any(f != other and f.is_relative_to(other) for other in wanted))


def _masks(visible: tuple[Path, ...]) -> tuple[Path, ...]:
    """This project's packages in every environment inside of what is visible, and the one that runs now."""
    found = {OWN_PACKAGE} if any(OWN_PACKAGE.is_relative_to(tree) for tree in visible) else set()
    for tree in visible:
        for libraries in LIBRARIES:
            found |= {p for name in PACKAGES for p in tree.glob(f"{libraries}/{name}") if p.is_dir()}
    return tuple(sorted(found))


def _digest(version: str, site_packages: list[Path]) -> str:
    """Names of *.dist-info folders carry the versions; our own does not change what a solution computes."""
    names = [path.name for library in site_packages for path in library.glob("*.dist-info")]
    runner = Path(__file__).with_name("runner.py").read_bytes()
    installed = sorted(name for name in names if not name.startswith("wmrl-"))
    return hashlib.sha256(json.dumps([version, installed]).encode() + runner).hexdigest()
