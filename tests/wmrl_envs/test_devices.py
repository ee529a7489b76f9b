"""GPUs: one job on each, first come, first served, and nothing is lost."""

import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.errors import ConfigError
from wmrl_envs.sandbox import DevicePool


def wait_until(condition) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.001)


def in_line(pool: DevicePool) -> int:
    return len(pool._line)


class Holder:
    """A thread that takes a device and keeps it until it is told to give it back."""

    def __init__(self, pool: DevicePool) -> None:
        self.device: str | None = None
        self.cancelled = False
        self.cancel, self.done = threading.Event(), threading.Event()
        self._pool = pool
        self._thread = threading.Thread(target=self._hold)
        self._thread.start()

    def _hold(self) -> None:
        try:
            with self._pool.take(self.cancel) as device:
                self.device = device
                self.done.wait()
        except CancelledError:
            self.cancelled = True

    def give_back(self) -> None:
        self.done.set()
        self._thread.join()

    def leave(self) -> None:
        self.cancel.set()
        with self._pool._changed:  # it would look by itself, a tenth of a second later
            self._pool._changed.notify_all()
        self._thread.join()


@pytest.mark.parametrize("names", [[], ["0", "0"], ["0", "1", "0"]])
def test_devices_are_named_and_only_once(names):
    with pytest.raises(ConfigError, match="each only once"):
        DevicePool(names)


@given(
    devices=st.integers(1, 4),
    steps=st.lists(st.tuples(st.sampled_from(["come", "give", "leave"]), st.integers(0, 99)), max_size=25),
)
def test_the_line_is_the_one_of_a_model(devices, steps):
    """Against lists: who has a device, who waits, in which order."""
    pool = DevicePool([str(n) for n in range(devices)])
    holding: list[Holder] = []
    waiting: list[Holder] = []

    def settled() -> bool:
        return in_line(pool) == len(waiting) and all(holder.device for holder in holding)

    try:
        for action, number in steps:
            if action == "come":
                holder = Holder(pool)
                if len(holding) < devices:
                    holding.append(holder)
                else:
                    waiting.append(holder)
            elif action == "give" and holding:
                holding.pop(number % len(holding)).give_back()
                holding += [waiting.pop(0)] if waiting else []
            elif action == "leave" and waiting:
                gone = waiting.pop(number % len(waiting))
                gone.leave()
                assert gone.cancelled
                assert gone.device is None
            wait_until(settled)
            assert len({holder.device for holder in holding}) == len(holding)
            assert all(holder.device is None for holder in waiting)
    finally:
        for holder in (*holding, *waiting):
            holder.done.set()
            holder.leave()
    with pool.take():
        assert in_line(pool) == 0
    assert sorted(pool._free) == sorted(pool.names)


def test_many_threads_never_meet_on_a_device_and_all_get_one():
    pool = DevicePool(["a", "b", "c"])
    inside = dict.fromkeys(pool.names, 0)
    meetings, served = [], []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(number: int) -> None:
        for _ in range(50):
            with pool.take() as device:
                inside[device] += 1
                if inside[device] != 1:
                    meetings.append(device)
                inside[device] -= 1
        served.append(number)

    try:
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(work, range(16)))
    finally:
        sys.setswitchinterval(interval)
    assert meetings == []
    assert sorted(served) == list(range(16))


def test_a_failing_job_gives_its_device_back():
    pool = DevicePool(["0"])
    with suppress(ZeroDivisionError), pool.take():
        _ = 1 / 0
    with pool.take() as device:
        assert device == "0"


def test_who_is_cancelled_before_it_asks_takes_nothing_while_all_are_taken():
    pool, cancel = DevicePool(["0"]), threading.Event()
    cancel.set()
    with pool.take():
        with pytest.raises(CancelledError), pool.take(cancel):
            pass
        assert in_line(pool) == 0
