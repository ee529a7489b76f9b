"""The Evaluator that executes: run the solution in a sandbox, grade its submission."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import warnings
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from weakref import WeakValueDictionary

from wmrl_envs.autoresearch.competition import Competition, Half, load_competition
from wmrl_envs.autoresearch.grading import grade
from wmrl_envs.errors import CompetitionError, SandboxError
from wmrl_envs.evaluation import Evaluation, Grade, Outcome, Solution
from wmrl_envs.sandbox.cache import ExecutionCache
from wmrl_envs.sandbox.choose import SandboxName, make_sandbox
from wmrl_envs.sandbox.job import Job, Result, Sandbox
from wmrl_envs.sandbox.pool import IDLE, RETRY_AFTER_S, SandboxPool

__all__ = ["SandboxEvaluator", "Usage"]


@dataclass
class Usage:
    """What an evaluator was asked for; the same whether a cache was full or empty.

    Attributes:
        executions: Solutions that were to be executed, repeated and cached ones included.
        cached: Those of them for which nothing had to run.
        seconds: Execution time of all of them; for a cached one, the time that was recorded with it.
        rechecked: Programs that were run a second time to see whether they end alike; not among `executions`.
        differing: Those of them that ended otherwise.
        rechecked_seconds: Execution time of the second runs.
    """

    executions: int = 0
    cached: int = 0
    seconds: float = 0.0
    rechecked: int = 0
    differing: int = 0
    rechecked_seconds: float = 0.0


class SandboxEvaluator:
    """Executes solutions in a sandbox, several at a time, and grades what they submit.

    Equal solutions run once: those of one batch, those under way, and, with a cache, all that ever ran.

    Args:
        sandbox: Where solutions run, or its name: ``bubblewrap``, ``docker`` or ``unsafe``, with the default
            limits.
        half: Half of the test rows that is graded.
        cache: Where results are kept between runs; None for nowhere.
        workers: Jobs at once; None for what the processors allow.
        recheck_fraction: Share of the programs that are run a second time, while nothing else is to run, and
            marked if they end otherwise. Which ones follows from their content.
        retry_after_s: Seconds to wait before each further try of what failed by the machine's fault.

    Attributes:
        usage: Executions and seconds so far.

    Example:
        >>> with SandboxEvaluator() as evaluator:
        ...     [evaluation] = evaluator.evaluate([Solution("breast-cancer", "print('no submission')")])
        >>> evaluation.status
        'no_submission'
    """

    def __init__(
        self,
        sandbox: Sandbox | SandboxName = "bubblewrap",
        *,
        half: Half = "public",
        cache: ExecutionCache | None = None,
        workers: int | None = None,
        recheck_fraction: float = 0.0,
        retry_after_s: Sequence[float] = RETRY_AFTER_S,
    ) -> None:
        self.sandbox = make_sandbox(sandbox) if isinstance(sandbox, str) else sandbox
        self.half = half
        self.cache = cache
        self.recheck_fraction = recheck_fraction
        self.usage = Usage()
        self._pool = SandboxPool(self.sandbox, workers, retry_after_s=retry_after_s)
        self._lock = threading.Lock()
        self._usage_lock = threading.Lock()
        # Weak: a result is shared for as long as somebody who asked for it holds on to its future.
        self._shared: WeakValueDictionary[str, Future[Evaluation]] = WeakValueDictionary()

    def __enter__(self) -> SandboxEvaluator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill what runs, drop what waits; their futures are cancelled."""
        self._pool.close()

    def evaluate(self, solutions: Sequence[Solution]) -> list[Evaluation]:
        """Execute and grade a batch in parallel; an interrupt kills what runs and closes the evaluator.

        Raises:
            CompetitionError: A solution names a competition that does not exist.
        """
        try:
            futures = [self.submit(solution) for solution in solutions]
            return [future.result() for future in futures]
        except KeyboardInterrupt:
            self.close()
            raise

    def submit(
        self, solution: Solution, group: Hashable = None, *, deadline: float = float("inf")
    ) -> Future[Evaluation]:
        """Queue one solution and return at once.

        Args:
            solution: What to execute.
            group: Solutions of different groups take turns in the queue.
            deadline: Time, as `time.monotonic` has it, from which it is not started any more: its score is
                missing then.

        Raises:
            CompetitionError: The solution names a competition that does not exist.
        """
        competition = solution.competition
        if not isinstance(competition, Competition):
            competition = load_competition(competition)
        job = Job(code=solution.code, data_dir=competition.public_dir)
        key = ExecutionCache.key(job, self.sandbox.fingerprint)
        with self._lock:
            shared = self._shared.get(f"{competition.root}:{key}")
            if shared is not None and not _has_failed(shared):
                return self._follow(shared)
            future = self._cached(competition, key) or self._pool.submit(
                job,
                group,
                then=lambda result: self._executed(competition, key, job, result),
                deadline=deadline,
            )
            self._shared[f"{competition.root}:{key}"] = future
            return future

    def _follow(self, shared: Future[Evaluation]) -> Future[Evaluation]:
        """A future of its own for somebody who asked for what is already under way."""
        follower: Future[Evaluation] = Future()

        def pass_on(done: Future[Evaluation]) -> None:
            if done.cancelled():
                follower.cancel()
            elif (error := done.exception()) is not None:
                follower.set_exception(error)
            else:
                follower.set_result(self._count(_as_cached(done.result())))

        shared.add_done_callback(pass_on)
        return follower

    def _cached(self, competition: Competition, key: str) -> Future[Evaluation] | None:
        result = None
        if self.cache is not None:
            with _kept_going():  # what cannot be had from the cache is executed again
                result = self.cache.load(key)
        if result is None:
            return None
        future: Future[Evaluation] = Future()
        future.set_result(self._conclude(competition, key, result, cached=True))
        return future

    def _executed(self, competition: Competition, key: str, job: Job, result: Result) -> Evaluation:
        """Keep what has just run, and see to it that it is run a second time if it belongs to the sample."""
        if self.cache is not None:
            with _kept_going():
                self.cache.store(key, result)
        if result.status != "infrastructure" and _fraction(key) < self.recheck_fraction:
            with suppress(RuntimeError, OSError):  # the pool is being closed, or the submission is gone
                before = _ending(result)
                self._pool.submit(job, IDLE, then=lambda again: self._compare(key, before, again))
        return self._conclude(competition, key, result, cached=False)

    def _compare(self, key: str, before: str, again: Result) -> None:
        """Mark a program by how its second run ended."""
        same = _ending(again) == before
        if again.submission_path is not None:
            again.submission_path.unlink(missing_ok=True)
        if again.status == "infrastructure":
            return
        if self.cache is not None:
            with _kept_going():
                self.cache.store_recheck(key, same)
        with self._usage_lock:
            self.usage.rechecked += 1
            self.usage.differing += not same
            self.usage.rechecked_seconds += again.seconds

    def _conclude(self, competition: Competition, key: str, result: Result, cached: bool) -> Evaluation:
        """Grade a result, count it, and delete its submission."""
        try:
            grade = self._grade(competition, key, result)
        except (CompetitionError, SandboxError, OSError) as problem:  # the grader or the disk is out of order
            result, grade = dataclasses.replace(result, status="infrastructure", message=str(problem)), None
        finally:
            if result.submission_path is not None:
                result.submission_path.unlink(missing_ok=True)
        outcome = Outcome(result.status, result.stdout, result.stderr, result.seconds, cached)
        error = result.message if result.status == "infrastructure" else None
        return self._count(Evaluation(outcome, grade, source="real", error=error))

    def _grade(self, competition: Competition, key: str, result: Result) -> Grade | None:
        if result.status != "ok":
            return None
        if result.submission_path is None:
            return Grade(result.submission_error or "no_submission", message=result.message)
        if self.cache is None:
            return grade(competition, result.submission_path, self.half, self.sandbox)
        grader = f"{competition.metric.name}:{self.half}:{competition.grading_version}"
        known = None
        with _kept_going():
            known = self.cache.load_grade(key, grader)
        if known is None:
            known = grade(competition, result.submission_path, self.half, self.sandbox)
            with _kept_going():
                self.cache.store_grade(key, grader, known)
        return known

    def _count(self, evaluation: Evaluation) -> Evaluation:
        assert evaluation.outcome is not None
        with self._usage_lock:
            self.usage.executions += 1
            self.usage.cached += evaluation.outcome.cached
            self.usage.seconds += evaluation.outcome.seconds
        return evaluation


@contextmanager
def _kept_going() -> Iterator[None]:
    """A cache that cannot be used costs time, not scores."""
    try:
        yield
    except (SandboxError, OSError) as problem:
        warnings.warn(f"{problem} Executions go on without their cache.", RuntimeWarning, stacklevel=3)


def _fraction(key: str) -> float:
    """A number in [0, 1) that belongs to a key."""
    return int(key[:8], 16) / 2**32


def _ending(result: Result) -> str:
    """What two runs of a program that always computes the same have in common."""
    path = result.submission_path
    return result.status if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def _has_failed(future: Future[Evaluation]) -> bool:
    """Whether nothing came of it, by no fault of the solution: whoever asks again gets another try."""
    if not future.done():
        return False
    return future.cancelled() or future.exception() is not None or future.result().score is None


def _as_cached(evaluation: Evaluation) -> Evaluation:
    assert evaluation.outcome is not None
    return dataclasses.replace(evaluation, outcome=dataclasses.replace(evaluation.outcome, cached=True))
