"""GPUs for solutions: each belongs to one job at a time, and who waits for one waits in line."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager

from wmrl_envs.errors import ConfigError
from wmrl_envs.sandbox.supervise import TICK_S

__all__ = ["DevicePool"]


class DevicePool:
    """Hands devices out, first come, first served; safe to call from several threads.

    It knows of its own jobs alone: sandboxes that use the same devices have to share one pool, and runs at
    the same time have to name different devices.

    Args:
        names: The devices, each once, as the engine knows them.

    Raises:
        ConfigError: There is none, or one is named twice.

    Example:
        >>> pool = DevicePool(["0", "1"])
        >>> with pool.take() as first, pool.take() as second:
        ...     first, second
        ('0', '1')
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        if not self.names or len(set(self.names)) < len(self.names):
            raise ConfigError(f"GPUs must be named, and each only once, not {list(names)}.")
        self._free = deque(self.names)
        self._line: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def take(self, cancel: threading.Event | None = None) -> Iterator[str]:
        """Wait for a device; it is the caller's until the context ends.

        Args:
            cancel: Once set, the caller leaves the line within a moment.

        Raises:
            concurrent.futures.CancelledError: `cancel` was set before a device was free.
        """
        name = self._wait(cancel or threading.Event())
        try:
            yield name
        finally:
            with self._changed:
                self._free.append(name)
                self._changed.notify_all()

    def _wait(self, cancel: threading.Event) -> str:
        place = object()
        with self._changed:
            self._line.append(place)
            try:
                while not self._free or self._line[0] is not place:
                    if cancel.is_set():
                        raise CancelledError
                    self._changed.wait(TICK_S)
                return self._free.popleft()
            finally:
                self._line.remove(place)
                self._changed.notify_all()  # the next in line may find a second device free
