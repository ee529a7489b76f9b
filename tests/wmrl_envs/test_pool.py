"""The pool: everything runs, no more at once than allowed, in fair turns, and stops when told."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.processes import cgroups_of, marked, wait_until
from wmrl_envs.sandbox import Job, Limits, Result, SandboxPool
from wmrl_envs.sandbox.pool import IDLE

DATA = Path(__file__).parent


class Gate:
    """A sandbox whose jobs wait until they are let through; it notes their order and how many met."""

    fingerprint = "gate"

    def __init__(self, is_open: bool = True) -> None:
        self.limits = Limits()
        self.gate = threading.Event()
        self.lock = threading.Lock()
        self.started: list[str] = []
        self.inside = self.most = 0
        if is_open:
            self.gate.set()

    def run(self, job: Job, cancel: threading.Event | None = None) -> Result:
        with self.lock:
            self.started.append(job.code)
            self.inside += 1
            self.most = max(self.most, self.inside)
        while not self.gate.wait(0.01):
            if cancel is not None and cancel.is_set():
                raise concurrent.futures.CancelledError
        with self.lock:
            self.inside -= 1
        return Result("ok", stdout=job.code)


def running(mark: str) -> int:
    """Number of programs with a mark that run."""
    return sum("runner.py" in command for command in marked(mark))


def job(name: str) -> Job:
    return Job(name, DATA)


def test_results_come_in_order_and_only_so_many_run_at_once():
    sandbox = Gate()
    with SandboxPool(sandbox, workers=3) as workers:
        results = workers.map([job(str(n)) for n in range(40)])
    assert [result.stdout for result in results] == [str(n) for n in range(40)]
    assert 1 <= sandbox.most <= 3


def test_by_default_jobs_share_the_processors():
    cores = len(os.sched_getaffinity(0))
    sandbox = Gate()
    assert SandboxPool(sandbox).workers == cores
    sandbox.limits = Limits(cpus=2 * cores)
    assert SandboxPool(sandbox).workers == 1


def test_groups_take_turns():
    sandbox = Gate(is_open=False)
    with SandboxPool(sandbox, workers=1) as workers:
        futures = [workers.submit(job("first"))]
        wait_until(lambda: sandbox.started)  # the only worker is busy: the rest queues up
        futures += [workers.submit(job(f"a{n}"), group="a") for n in range(3)]
        futures += [workers.submit(job(f"b{n}"), group="b") for n in range(2)]
        futures += [workers.submit(job("c0"), group="c")]
        sandbox.gate.set()
        concurrent.futures.wait(futures)
    assert sandbox.started == ["first", "a0", "b0", "c0", "a1", "b1", "a2"]


def test_what_can_wait_runs_while_nothing_else_is_to_run():
    sandbox = Gate(is_open=False)
    with SandboxPool(sandbox, workers=1) as workers:
        futures = [workers.submit(job("first"))]
        wait_until(lambda: sandbox.started)
        futures += [workers.submit(job(f"idle{n}"), group=IDLE) for n in range(2)]
        futures += [workers.submit(job(name), group=name) for name in ("a", "b")]
        sandbox.gate.set()
        concurrent.futures.wait(futures)
    assert sandbox.started == ["first", "a", "b", "idle0", "idle1"]


def test_work_on_the_result_is_done_by_the_worker():
    with SandboxPool(Gate(), workers=1) as workers:
        name = workers.submit(job("x"), then=lambda result: threading.current_thread().name).result()
        failed = workers.submit(job("x"), then=lambda result: 1 / 0)
        assert name == "sandbox-0"
        with pytest.raises(ZeroDivisionError):
            failed.result()
        assert workers.map([job("still alive")])[0].stdout == "still alive"


def test_closing_cancels_what_runs_and_what_waits():
    sandbox = Gate(is_open=False)
    workers = SandboxPool(sandbox, workers=1)
    running, waiting = workers.submit(job("running")), workers.submit(job("waiting"))
    wait_until(lambda: sandbox.started)
    workers.close()
    for future in (running, waiting):
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(timeout=5)
    assert sandbox.started == ["running"]
    with pytest.raises(RuntimeError, match="closed"):
        workers.submit(job("late"))


class Flaky(Gate):
    """Fails by its own fault a number of times."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.ran = lambda: None

    def run(self, job: Job, cancel: threading.Event | None = None) -> Result:
        result = super().run(job, cancel)
        self.ran()
        return Result("infrastructure") if len(self.started) <= self.failures else result


@pytest.mark.parametrize(
    ("failures", "status", "pauses"),
    [(0, "ok", []), (1, "ok", [0.5]), (2, "ok", [0.5, 2.0]), (9, "infrastructure", [0.5, 2.0])],
)
def test_a_machine_that_fails_gets_two_more_chances(failures, status, pauses):
    sandbox, paused = Flaky(failures), []
    with SandboxPool(sandbox, workers=1, pause=paused.append) as workers:
        assert workers.map([job("x")])[0].status == status
    assert paused == pauses
    assert len(sandbox.started) == len(pauses) + 1


def test_a_sandbox_that_raises_what_the_machine_raised_is_tried_again_too():
    class Full(Flaky):
        def run(self, job, cancel=None):
            if super().run(job, cancel).status == "infrastructure":
                raise OSError(28, "No space left on device")
            return Result("ok")

    for failures, status in ((2, "ok"), (3, "infrastructure")):
        with SandboxPool(Full(failures), workers=1, pause=lambda seconds: None) as workers:
            result = workers.map([job("x")])[0]
        assert result.status == status
        assert ("No space left" in result.message) == (status == "infrastructure")


def test_closing_does_not_wait_for_the_next_try():
    sandbox, asleep = Flaky(9), threading.Event()
    workers = SandboxPool(sandbox, workers=1, retry_after_s=[3600.0])
    sandbox.ran = asleep.set
    future = workers.submit(job("x"))
    assert asleep.wait(60)
    workers.close()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(timeout=5)
    assert len(sandbox.started) == 1


def test_after_its_deadline_nothing_is_started_or_tried_again():
    now, late = 100.0, "It was not started: the time for this step was over."

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds

    sandbox = Flaky(9)
    with SandboxPool(sandbox, workers=1, retry_after_s=[1, 1, 1], clock=lambda: now, pause=pause) as workers:
        over = workers.submit(job("over"), deadline=100.0).result()
        tried = workers.submit(job("tried"), deadline=102.5).result()
    assert (over.status, over.message) == ("infrastructure", late)
    assert (tried.status, tried.message) == ("infrastructure", "")
    assert sandbox.started == ["tried", "tried", "tried"]
    assert now == 102.0


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 4))
def test_any_mixture_of_groups_is_served_fairly(sizes, count):
    """No job is lost or run twice; a worker alone serves whoever had the fewest turns."""
    sandbox = Gate(is_open=False)
    with SandboxPool(sandbox, workers=count) as workers:
        futures = [workers.submit(job("first"), group="first") for _ in range(count)]
        wait_until(lambda: len(sandbox.started) == count)  # everybody is busy: the rest queues up
        names = [(group, f"{group}.{n}") for group, size in enumerate(sizes) for n in range(size)]
        futures += [workers.submit(job(name), group=group) for group, name in names]
        sandbox.gate.set()
        concurrent.futures.wait(futures)
    order = sandbox.started[count:]
    assert sorted(order) == sorted(name for _, name in names)
    assert sandbox.most <= count
    served = [0] * len(sizes)
    for group in [int(name.split(".")[0]) for name in order] if count == 1 else []:
        waiting = [served[other] for other, size in enumerate(sizes) if served[other] < size]
        assert served[group] == min(waiting)
        served[group] += 1


def test_a_large_group_does_not_hold_up_a_small_one():
    sandbox = Gate(is_open=False)
    with SandboxPool(sandbox, workers=1) as workers:
        futures = [workers.submit(job("large"), group=0) for _ in range(64)]
        futures += [workers.submit(job("small"), group=1) for _ in range(2)]
        sandbox.gate.set()
        concurrent.futures.wait(futures)
    assert [place for place, name in enumerate(sandbox.started) if name == "small"][-1] < 6


# A background job of a shell inherits an ignored SIGINT, and so would everything that the tests start.
SCRIPT = """
import signal
from pathlib import Path
from wmrl_envs.sandbox import BubblewrapSandbox, Job, Limits, SandboxPool
signal.signal(signal.SIGINT, signal.default_int_handler)
sandbox = BubblewrapSandbox(Limits(timeout_s=600))
code = "import os, time; print(1); time.sleep(600)"
pool = SandboxPool(sandbox, workers=3)
print("ready", flush=True)
pool.map([Job(code, Path("tests/wmrl_envs"), env={"MARK": "%s"}) for _ in range(9)])
"""


@pytest.mark.sandbox
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_ends_everything_at_once(number, tmp_path):
    mark = f"pool-{tmp_path.name}-{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT % mark],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        cwd=DATA.parents[1],
    )
    with process:
        assert process.stdout.readline() == b"ready\n"
        wait_until(lambda: process.poll() is not None or running(mark) == 3)
        process.send_signal(number)
        try:
            _, stderr = process.communicate(timeout=20)
        finally:
            process.kill()
    wait_until(lambda: not marked(mark))
    assert process.returncode == -number
    assert (b"KeyboardInterrupt" in stderr) == (number == signal.SIGINT)
    subprocess.run(
        [sys.executable, "-c", "from wmrl_envs.sandbox import BubblewrapSandbox; BubblewrapSandbox()"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        cwd=DATA.parents[1],
        check=True,
    )
    assert list(tmp_path.iterdir()) == []
    assert cgroups_of(process.pid) == []
