"""Runs inside the sandbox, before the solution: limits, seeds, then the solution as ``__main__``.

Usage: ``runner.py CHANNEL SEED FILE_BYTES PROCESSES DATA_BYTES`` in the job's folder, which holds solution.py
(DATA_BYTES 0 for no limit).

CHANNEL is one end of a socket pair. Through it the caller gets an open descriptor of the job's folder, so
that it can fetch the submission when the sandbox and its file systems are gone. That message also says that
the sandbox stands, and since when: without it a failure is the machine's, with it the solution's.

This file is executed by the interpreter of the sandbox and imports nothing but its standard library.
"""

from __future__ import annotations

import _socket  # not socket, random, typing or importlib.abc: each takes milliseconds, and every job pays
import resource
import sys
from importlib.machinery import ModuleSpec, PathFinder
from os import O_DIRECTORY, O_RDONLY, close, getcwd
from os import open as open_descriptor
from time import monotonic_ns
from types import CodeType, ModuleType, TracebackType

OPEN_FILES = 1024


class SeedOnImport:
    """A finder for sys.meta_path that seeds global generators at the moment at which they are imported."""

    SEEDERS = {"random": "seed", "numpy.random": "seed", "torch": "manual_seed"}  # noqa: RUF012

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find the module as usual; for those that have generators, seed them once they are loaded."""
        if name not in self.SEEDERS:
            return None
        spec = PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        if spec is not None and spec.loader is not None:
            spec.loader = SeedingLoader(spec.loader, self.SEEDERS[name], self.seed)  # type: ignore[assignment]
        return spec


class SeedingLoader:
    """Loads a module with its own loader, then calls the module's seeding function."""

    def __init__(self, loader: object, seeder: str, seed: int) -> None:
        self.loader, self.seeder, self.seed = loader, seeder, seed

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        return self.loader.create_module(spec)  # type: ignore[attr-defined]

    def exec_module(self, module: ModuleType) -> None:
        """As the module's own loader does, then seed."""
        module.__loader__ = module.__spec__.loader = self.loader  # type: ignore
        self.loader.exec_module(module)  # type: ignore[attr-defined]
        getattr(module, self.seeder)(self.seed)


def lower_limits(file_bytes: int, processes: int, data_bytes: int) -> None:
    """Set what only a process inside the sandbox can set; hostile code cannot raise a hard limit again."""
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_DATA, data_bytes or resource.RLIM_INFINITY),
    ):
        hard = resource.getrlimit(limit)[1]
        if resource.RLIM_INFINITY not in (hard, value):
            value = min(value, hard)
        resource.setrlimit(limit, (value, value))


def announce(channel: int) -> None:
    """Send the time and a descriptor of the job's folder through the channel, then close both."""
    folder = open_descriptor(".", O_RDONLY | O_DIRECTORY)
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, channel)
    rights = folder.to_bytes(4, sys.byteorder)  # one C int
    connection.sendmsg([b"%d" % monotonic_ns()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    connection.close()
    close(folder)


def seed_generators(seed: int) -> None:
    """Seed what is loaded by now, and what will be when it comes."""
    for name, seeder in SeedOnImport.SEEDERS.items():
        if name in sys.modules:
            getattr(sys.modules[name], seeder)(seed)
    sys.meta_path.insert(0, SeedOnImport(seed))


def show_without_runner(
    kind: type[BaseException], error: BaseException, frames: TracebackType | None
) -> None:
    """Print a traceback that begins with the solution's own first frame."""
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    sys.__excepthook__(kind, error.with_traceback(frames), frames)


def load(path: str, folder: str) -> tuple[CodeType, ModuleType]:
    """Compile the solution and make the module that it will be."""
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    main = ModuleType("__main__")
    main.__file__ = f"{folder}/{path}"  # absolute: worker processes import it again by this name
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    return code, main


def prepare(channel: int, seed: int, *limits: int) -> None:
    """Everything that has to be done before hostile code runs."""
    lower_limits(*limits)
    announce(channel)
    seed_generators(seed)
    sys.excepthook = show_without_runner
    sys.argv[:] = ["solution.py"]
    sys.path.insert(0, getcwd())


if __name__ == "__main__":
    prepare(*map(int, sys.argv[1:]))
    solution, sys.modules["__main__"] = load("solution.py", getcwd())
    exec(solution, sys.modules["__main__"].__dict__)
