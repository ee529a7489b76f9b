"""A sandbox of Docker containers: slower to start than bubblewrap, with an image of its own.

A job sees the image (read-only), the public data (read-only), and file systems in memory for what it writes.
The engine has to run on this machine: the job's folder and its output are handed over as open descriptors.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from wmrl_envs.errors import MissingExtraError, SandboxError
from wmrl_envs.sandbox.devices import DevicePool
from wmrl_envs.sandbox.job import Job, Limits, Result
from wmrl_envs.sandbox.launch import (
    RUNNER,
    Connection,
    check_readable,
    conclude,
    fingerprint,
    job_environment,
    new_uid,
    runner_arguments,
)
from wmrl_envs.sandbox.mounts import DATA, JOB, TMP
from wmrl_envs.sandbox.scratch import remove_leftovers, scratch_folder
from wmrl_envs.sandbox.seccomp import assemble_filter
from wmrl_envs.sandbox.supervise import SETUP_S, TICK_S, supervise

__all__ = ["DockerSandbox", "container_settings", "engine_version"]

IMAGE = "wmrl-solution"
OWNER = "wmrl.owner"  # label: process id of who made a container
FOLDER = "/sandbox"
ENTRY = Path(__file__).with_name("container.py")
INIT = 1  # the engine's own process 1
ENGINE_S = 120.0
_WORKING: set[tuple[str, str | None]] = set()  # images and GPUs


class DockerSandbox:
    """Runs each job in a fresh container, under the engine's system call filter and ours.

    Args:
        limits: What one job may use.
        image: Image with Python 3.11 or newer as ``python3`` and the packages for solutions.
        gpus: GPUs, by number or UUID; each job gets one for itself and waits while all are taken. Sandboxes
            that use the same ones have to share a `DevicePool`. None for no GPU.

    Raises:
        MissingExtraError: The package docker is not installed.
        SandboxError: No engine answers, it lacks the image or a GPU, or it cannot isolate.

    Example:
        >>> sandbox = DockerSandbox(Limits(timeout_s=10))  # doctest: +SKIP
        >>> sandbox.run(Job(code="print('hello')", data_dir=Path("public"))).stdout  # doctest: +SKIP
        'hello\\n'
    """

    def __init__(
        self,
        limits: Limits | None = None,
        image: str = IMAGE,
        gpus: DevicePool | Sequence[str] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.gpus = gpus if gpus is None or isinstance(gpus, DevicePool) else DevicePool(gpus)
        self._client = _connect()
        self._image = self._find_image(image)
        self._filter = assemble_filter()
        _remove_containers(self._client)
        remove_leftovers()
        self._check()

    @property
    def fingerprint(self) -> str:
        """See `Sandbox.fingerprint`."""
        kind = "docker" if self.gpus is None else "docker with a GPU"
        return fingerprint(kind, self.limits, f"{self._image.id}\n{RUNNER.read_text()}")

    def run(self, job: Job, cancel: threading.Event | None = None) -> Result:
        """Run one job; see `BubblewrapSandbox.run`. Waiting for a GPU is no part of the job's time."""
        check_readable(job.data_dir)
        cancel = cancel or threading.Event()
        if self.gpus is None:
            return self._try(job, cancel)
        with self.gpus.take(cancel) as gpu:
            return self._try(job, cancel, gpu)

    def _try(self, job: Job, cancel: threading.Event, gpu: str | None = None) -> Result:
        try:
            return self._run(job, cancel, gpu)
        except _engine_errors() as error:
            return Result("infrastructure", message=f"The container could not be run: {error}")

    def _run(self, job: Job, cancel: threading.Event, gpu: str | None) -> Result:
        with ExitStack() as stack:
            exchange = stack.enter_context(_exchange(job.code, self._filter))
            listener = stack.enter_context(_listen(exchange))
            settings = container_settings(self._image.id, job, self.limits, exchange, gpu)
            container = stack.enter_context(_Container(self._client, settings))
            end = _accept(listener, container, cancel)
            if end is None:
                message = f"The container did not come up: {container.error() or 'no connection was made'}"
                return Result("infrastructure", message=message)
            connection = stack.enter_context(Connection(end))
            container.send_pipes(end)
            ending = supervise(
                container, self.limits, connection.local, cancel, kill=container.kill, end=container.end
            )
            return conclude(ending, connection, self.limits, oom=container.out_of_memory())

    def _find_image(self, name: str) -> Any:
        import docker

        try:
            return self._client.images.get(name)
        except docker.errors.ImageNotFound:
            raise SandboxError(
                f"Docker has no image '{name}': build one with Python and the packages for solutions "
                "(`.ci/solution-image NAME` in WMRL's source does, without a registry), or name another."
            ) from None

    def _check(self) -> None:
        """Run an empty program once: better one clear sentence now than a failure for each solution."""
        for gpu in (None,) if self.gpus is None else self.gpus.names:
            if (self._image.id, gpu) in _WORKING:
                continue
            result = self._try(Job(code="", data_dir=Path(__file__).parent), threading.Event(), gpu)
            if result.status == "infrastructure":
                raise SandboxError(f"Docker answers but cannot run solutions here. {result.message}")
            _WORKING.add((self._image.id, gpu))


def container_settings(
    image: str, job: Job, limits: Limits, exchange: Path, gpu: str | None = None
) -> dict[str, Any]:
    """What the engine is asked for, as arguments of the SDK.

    Args:
        image: The image.
        job: What is run.
        limits: What it may use.
        exchange: Folder that the container sees as `FOLDER`.
        gpu: The one that it sees; None for none.
    """
    import docker

    uid, size = new_uid(), f"size={limits.file_bytes},mode=0777"
    environment = job_environment(job, limits, Path("/usr/bin/python3"), DATA, JOB, TMP)
    del environment["PATH"]  # the image knows better where its Python is
    folders = {DATA: job.data_dir.resolve(), FOLDER: exchange}
    request = [] if gpu is None else [docker.types.DeviceRequest(device_ids=[gpu], capabilities=[["gpu"]])]
    return {
        "image": image,
        "entrypoint": ["python3", "-s", "-B", "-P", f"{FOLDER}/{ENTRY.name}"],
        "command": runner_arguments(0, job, limits)[1:],
        "environment": environment,
        "labels": {OWNER: str(os.getpid())},
        "hostname": "sandbox",
        "user": f"{uid}:{uid}",
        "network_mode": "none",
        "ipc_mode": "private",
        "read_only": True,
        "init": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "mem_limit": limits.memory_bytes,
        "memswap_limit": limits.memory_bytes,
        "nano_cpus": limits.cpus * 10**9,
        "pids_limit": limits.processes + INIT,
        "shm_size": limits.file_bytes,
        "tmpfs": dict.fromkeys((JOB, TMP), f"{size},exec"),
        "mounts": [
            docker.types.Mount(target, str(source), type="bind", read_only=True)
            for target, source in folders.items()
        ],
        "device_requests": request,
        "log_config": docker.types.LogConfig(type="none"),
        "stop_signal": "SIGKILL",
    }


class _Container:
    """One container as `supervise` follows it. Leaving the context removes it, whatever it does."""

    pid = 0  # the engine's business

    def __init__(self, client: Any, settings: dict[str, Any]) -> None:
        self.returncode = -1
        self._stack = ExitStack()
        self.stdout: IO[bytes] | None
        self.stderr: IO[bytes] | None
        self.stdout, self._out = self._pipe()
        self.stderr, self._err = self._pipe()
        self.ended, self._ending = self._pipe()
        self._client, self._settings = client, settings
        self._waiting = threading.Thread(target=self._wait, daemon=True)

    def __enter__(self) -> _Container:
        with self._stack as stack:
            self._container = self._client.containers.create(**self._settings)
            stack.callback(self._remove)
            self._container.start()
            self._waiting.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _pipe(self) -> tuple[IO[bytes], IO[bytes]]:
        """Both ends; each may be closed earlier than the context."""
        read, write = os.pipe()
        enter = self._stack.enter_context
        return enter(open(read, "rb", buffering=0)), enter(open(write, "wb", buffering=0))

    def _remove(self) -> None:
        with suppress(*_engine_errors()):  # what cannot be removed now is removed at the next start
            self._container.remove(force=True, v=True)
        if self._waiting.ident is not None:
            self._waiting.join(ENGINE_S)

    def _wait(self) -> None:
        """Closing one end of a pipe makes the other one readable."""
        with suppress(*_engine_errors()):
            self.returncode = self._container.wait(timeout=None)["StatusCode"]
        self._ending.close()

    def send_pipes(self, connection: socket.socket) -> None:
        """Give the container the other ends of stdout and stderr."""
        socket.send_fds(connection, [b"x"], [self._out.fileno(), self._err.fileno()])
        self._out.close()
        self._err.close()

    def end(self, pid: int) -> int:
        """See `supervise`."""
        return os.dup(self.ended.fileno())

    def kill(self, pid: int) -> None:
        """End everything in the container."""
        with suppress(*_engine_errors()):  # it has ended by itself
            self._container.kill()

    def wait(self) -> int:
        """Wait for the end."""
        self._waiting.join(ENGINE_S)
        return self.returncode

    def out_of_memory(self) -> bool:
        """Whether the kernel killed any process in it for its memory."""
        self._container.reload()
        return bool(self._container.attrs["State"]["OOMKilled"])

    def error(self) -> str:
        """What the engine says about a container that did not come up."""
        self._container.reload()
        state = self._container.attrs["State"]
        return state["Error"] or (f"exit code {state['ExitCode']}" if state["Status"] == "exited" else "")


@contextmanager
def _exchange(code: str, calls: bytes) -> Iterator[Path]:
    """A folder that the container sees read-only, with all that it needs from this side."""
    folder = Path(tempfile.mkdtemp(prefix="container-", dir=scratch_folder()))
    try:
        folder.chmod(0o755)
        shutil.copyfile(RUNNER, folder / RUNNER.name)
        shutil.copyfile(ENTRY, folder / ENTRY.name)
        (folder / "solution.py").write_bytes(code.encode("utf-8", "surrogatepass"))
        (folder / "filter").write_bytes(calls)
        for file in folder.iterdir():
            file.chmod(0o644)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _listen(folder: Path) -> Iterator[socket.socket]:
    """A socket in a folder, by way of a descriptor: the path alone may be too long for a socket's name."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{descriptor}/channel")
            (folder / "channel").chmod(0o666)
            listener.listen(1)
            yield listener
    finally:
        os.close(descriptor)


def _accept(listener: socket.socket, container: _Container, cancel: threading.Event) -> socket.socket | None:
    """The container's connection; None if it ended or hung before it made one. Nobody else is let in."""
    deadline = time.monotonic() + SETUP_S
    while time.monotonic() < deadline:
        if cancel.is_set():
            raise CancelledError
        ready, _, _ = select.select([listener.fileno(), container.ended.fileno()], [], [], TICK_S)
        if listener.fileno() in ready:
            connection, _ = listener.accept()
            listener.close()
            return connection
        if ready:
            return None
    return None


def engine_version() -> str:
    """Version of the engine.

    Raises:
        MissingExtraError: The package docker is not installed.
        SandboxError: No engine answers.
    """
    return str(_connect().version()["Version"])


@lru_cache(maxsize=1)
def _engine_errors() -> tuple[type[Exception], ...]:
    """What the SDK raises; a lost connection comes through as an error of the library below it."""
    import docker
    import requests

    return (docker.errors.DockerException, requests.RequestException, OSError)


def _connect() -> Any:
    try:
        import docker
    except ImportError:
        raise MissingExtraError("docker", "docker") from None
    try:
        client = docker.from_env(timeout=ENGINE_S)
        client.ping()
    except _engine_errors() as error:
        message = f"No Docker engine answers ({error}): start one, or say where with DOCKER_HOST."
        raise SandboxError(message) from error
    return client


def _remove_containers(client: Any) -> None:
    """Containers of owners that were killed go on running; whoever starts next ends them."""
    for container in client.containers.list(all=True, filters={"label": OWNER}, ignore_removed=True):
        if not Path("/proc", container.labels[OWNER]).exists():
            with suppress(*_engine_errors()):
                container.remove(force=True, v=True)
