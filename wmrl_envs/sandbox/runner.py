"""Runs inside the sandbox, before the solution: limits, seeds, then the solution as ``__main__``.

Usage: ``runner.py CHANNEL SEED FILE_BYTES PROCESSES DATA_BYTES`` in the job's folder, which holds solution.py
(DATA_BYTES 0 for no limit).

CHANNEL is one end of a socket pair. Through it the caller gets an open descriptor of the job's folder, so
that it can fetch the submission when the sandbox and its file systems are gone. That message also says that
the sandbox stands, and since when: without it a failure is the machine's, with it the solution's.

This file is executed by the interpreter of the sandbox and imports nothing but its standard library.
"""

from __future__ import annotations

import _random
import _socket  # not socket, random, typing or importlib.abc: each takes milliseconds, and every job pays
import resource
import sys
from _collections_abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from os import O_DIRECTORY, O_RDONLY, close, getcwd, register_at_fork
from os import open as open_descriptor
from time import monotonic_ns
from types import CodeType, ModuleType, TracebackType

OPEN_FILES = 1024


class Seeds:
    """Numbers that follow from the program, for generators that ask the system for chance.

    Each request gets another number; so do processes made by fork, by their place in the tree of forks.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.place: tuple[int, ...] = ()
        self.requests = self.forks = 0
        register_at_fork(before=self.note_fork, after_in_child=self.note_child)

    def note_fork(self) -> None:
        """Count the children of this process."""
        self.forks += 1

    def note_child(self) -> None:
        """Begin the numbers of a new process."""
        self.place += (self.forks,)
        self.requests = self.forks = 0

    def bits(self, count: int) -> int:
        """The next number, of so many bits."""
        self.requests += 1
        words = (self.seed, *self.place, self.requests)
        name = 1  # in front of the words, so that their number counts too
        for word in words:
            name = name << 32 | word % 2**32
        return _random.Random(name).getrandbits(count)


def seed_random(random: ModuleType, seeds: Seeds) -> None:
    """Seed the module's own generator, and each `random.Random` that is made or seeded without a seed.

    `random.SystemRandom`, `secrets`, `os.urandom` and `uuid` go on giving true chance: they are there for it.
    """
    original = random.Random.seed

    def seed(self: object, a: object = None, version: int = 2) -> None:
        original(self, seeds.bits(128) if a is None else a, version)

    random.Random.seed = seed
    random.seed = random._inst.seed  # type: ignore[attr-defined]
    random.seed(seeds.seed)


def seed_numpy(numpy_random: ModuleType, seeds: Seeds) -> None:
    """Seed numpy's own generator, and where every other one takes its seed from if it is given none."""
    numpy_random.bit_generator.randbits = seeds.bits
    numpy_random.seed(seeds.seed)


def seed_torch(torch: ModuleType, seeds: Seeds) -> None:
    """Seed torch's own generators; others of its generators have a fixed seed anyway."""
    torch.manual_seed(seeds.seed)


class SeedOnImport:
    """A finder for sys.meta_path that seeds generators at the moment at which they are imported."""

    SEEDERS = {"random": seed_random, "numpy.random": seed_numpy, "torch": seed_torch}  # noqa: RUF012

    def __init__(self, seeds: Seeds) -> None:
        self.seeds = seeds

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find the module as usual; for those that have generators, seed them once they are loaded."""
        if name not in self.SEEDERS:
            return None
        spec = PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        if spec is not None and spec.loader is not None:
            spec.loader = SeedingLoader(spec.loader, self.SEEDERS[name], self.seeds)  # type: ignore[assignment]
        return spec


class SeedingLoader:
    """Loads a module with its own loader, then seeds it."""

    def __init__(self, loader: object, seeder: Callable[[ModuleType, Seeds], None], seeds: Seeds) -> None:
        self.loader, self.seeder, self.seeds = loader, seeder, seeds

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        return self.loader.create_module(spec)  # type: ignore[attr-defined]

    def exec_module(self, module: ModuleType) -> None:
        """As the module's own loader does, then seed."""
        module.__loader__ = module.__spec__.loader = self.loader  # type: ignore
        self.loader.exec_module(module)  # type: ignore[attr-defined]
        self.seeder(module, self.seeds)


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
    seeds = Seeds(seed)
    for name, seeder in SeedOnImport.SEEDERS.items():
        if name in sys.modules:
            seeder(sys.modules[name], seeds)
    sys.meta_path.insert(0, SeedOnImport(seeds))


def show_without_runner(
    kind: type[BaseException], error: BaseException, frames: TracebackType | None
) -> None:
    """Print a traceback without this file's frames."""
    frames = without_runner(frames)
    sys.__excepthook__(kind, error.with_traceback(frames), frames)


def without_runner(frames: TracebackType | None) -> TracebackType | None:
    """The frames of a traceback that are not this file's: the first, and those of its seeding."""
    others = []
    while frames is not None:
        if frames.tb_frame.f_code.co_filename != __file__:
            others.append(frames)
        frames = frames.tb_next
    for frame, following in zip(others, [*others[1:], None], strict=False):
        frame.tb_next = following
    return others[0] if others else None


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
