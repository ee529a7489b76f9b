"""Solutions go in, evaluations come out: really executed, graded once, never confused."""

import concurrent.futures
import pickle
import threading

import pytest

from wmrl_envs.autoresearch import load_competition
from wmrl_envs.autoresearch.sandbox_evaluator import SandboxEvaluator
from wmrl_envs.errors import CompetitionError
from wmrl_envs.evaluation import Evaluator, Solution
from wmrl_envs.sandbox import BubblewrapSandbox, ExecutionCache, Job, Limits, Result, UnsafeSandbox
from wmrl_envs.sandbox.pool import IDLE
from wmrl_envs.sandbox.scratch import scratch_folder

pytestmark = pytest.mark.sandbox

# One number of the test table as the prediction: no model, no pandas, quick, and better than chance.
SUBMIT = """
import csv, os
rows = list(csv.DictReader(open(os.environ["DATA_DIR"] + "/test.csv")))
sample = next(csv.reader(open(os.environ["DATA_DIR"] + "/sample_submission.csv")))
feature = list(rows[0])[1]
with open(os.environ["SUBMISSION_PATH"], "w") as file:
    writer = csv.writer(file)
    writer.writerow(sample)
    for row in rows:
        writer.writerow([row[sample[0]], {sign}float(row[feature]) / 100])
"""
GOOD = SUBMIT.format(sign="-")
OPPOSITE = SUBMIT.format(sign="")


def solution(code: str, competition: str = "breast-cancer") -> Solution:
    return Solution(competition, code)


@pytest.fixture
def evaluator():
    with SandboxEvaluator(BubblewrapSandbox(Limits(timeout_s=60)), workers=2) as evaluator:
        yield evaluator


def test_it_is_an_evaluator_and_an_empty_batch_is_empty(evaluator):
    assert isinstance(evaluator, Evaluator)
    assert evaluator.evaluate([]) == []


def test_a_batch_comes_back_in_order_with_scores(evaluator):
    codes = [GOOD, "1/0", "print('nothing')", OPPOSITE, "open('submission.csv', 'w').write('a,b\\n1,2\\n')"]
    good, failed, empty, opposite, wrong = evaluator.evaluate([solution(code) for code in codes])
    assert [e.status for e in (good, failed, empty, opposite)] == ["ok", "error", "no_submission", "ok"]
    assert good.grade.score + opposite.grade.score == pytest.approx(
        1
    )  # the ROC AUC of a ranking and its reverse
    assert max(good.score, opposite.score) > min(good.score, opposite.score) >= 0
    assert (failed.grade, failed.score, failed.error) == (None, 0.0, None)
    assert failed.outcome.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert (empty.outcome.stdout, empty.score) == ("nothing\n", 0.0)
    assert empty.grade.message == "The program wrote no submission.csv."
    assert (wrong.status, wrong.score) == ("bad_columns", 0.0)
    assert all(e.source == "real" and not e.outcome.cached for e in (good, failed, empty, opposite))


def test_a_refused_submission_is_unreadable_and_scores_nothing(evaluator):
    [evaluation] = evaluator.evaluate([solution("import os\nos.mkfifo('submission.csv')")])
    assert (evaluation.status, evaluation.score) == ("unreadable", 0.0)
    assert "not a regular file" in evaluation.grade.message


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(ValueError("boom")),
        b"\xff\xfe\x00" * 50,
        b"id," * 300_000,
        b"=cmd|' /C calc'!A0\n" * 1000,
        b"",
    ],
    ids=["pickle", "bytes", "a million columns", "formulas", "empty"],
)
def test_hostile_submissions_are_only_ever_bad_tables(evaluator, content):
    [evaluation] = evaluator.evaluate([solution(f"open('submission.csv', 'wb').write({content!r})")])
    assert evaluation.outcome.status == "ok"
    assert evaluation.grade.status in ("unreadable", "bad_columns")
    assert evaluation.grade.message
    assert evaluation.score == 0.0


def test_equal_solutions_run_once_and_count_as_often_as_they_were_asked_for(evaluator):
    first, second, third = evaluator.evaluate([solution(GOOD), solution(GOOD), solution(GOOD + "#")])
    assert [e.outcome.cached for e in (first, second, third)] == [False, True, False]
    assert first.grade == second.grade == third.grade
    assert second.outcome.seconds == first.outcome.seconds
    assert (evaluator.usage.executions, evaluator.usage.cached) == (3, 1)
    assert evaluator.usage.seconds == pytest.approx(2 * first.outcome.seconds + third.outcome.seconds)


def test_equal_code_for_another_competition_is_another_solution(evaluator):
    code = "import os\nprint(len(open(os.environ['DATA_DIR'] + '/test.csv').readlines()))"
    first, second = evaluator.evaluate([solution(code, "breast-cancer"), solution(code, "digits")])
    assert first.outcome.stdout != second.outcome.stdout


def test_a_cache_serves_later_evaluators_and_both_halves(tmp_path):
    cache = ExecutionCache(tmp_path / "cache.sqlite")
    sandbox = BubblewrapSandbox()
    batch = [solution(GOOD), solution("1/0")]
    with SandboxEvaluator(sandbox, cache=cache) as evaluator:
        before = evaluator.evaluate(batch)
    with SandboxEvaluator(sandbox, cache=ExecutionCache(cache.path)) as evaluator:
        after = evaluator.evaluate(batch)
    assert [e.outcome.cached for e in (*before, *after)] == [False, False, True, True]
    assert [(e.grade, e.outcome.seconds, e.outcome.stderr) for e in after] == [
        (e.grade, e.outcome.seconds, e.outcome.stderr) for e in before
    ]
    assert evaluator.usage.cached == evaluator.usage.executions == 2
    assert evaluator.usage.seconds == sum(e.outcome.seconds for e in before)
    with SandboxEvaluator(sandbox, half="private", cache=cache) as evaluator:
        [private] = evaluator.evaluate(batch[:1])
    assert private.outcome.cached
    assert private.grade.status == "ok"
    assert private.grade.score != before[0].grade.score
    with SandboxEvaluator(sandbox, half="private") as evaluator:
        assert evaluator.evaluate(batch[:1])[0].grade == private.grade


def test_other_limits_are_another_execution(tmp_path):
    cache = ExecutionCache(tmp_path / "cache.sqlite")
    for limits in (Limits(timeout_s=60), Limits(timeout_s=61)):
        with SandboxEvaluator(BubblewrapSandbox(limits), cache=cache) as evaluator:
            assert not evaluator.evaluate([solution("pass")])[0].outcome.cached
    assert len(cache) == 2


class Broken:
    """A sandbox on a machine that fails."""

    limits = Limits()
    fingerprint = "broken"

    def run(self, job: Job, cancel: object = None) -> Result:
        return Result("infrastructure", message="The disk is full.")


def test_a_broken_machine_gives_no_score_and_is_not_remembered(tmp_path):
    cache = ExecutionCache(tmp_path / "cache.sqlite")
    with SandboxEvaluator(Broken(), cache=cache, retry_after_s=[0.0]) as evaluator:
        [evaluation] = evaluator.evaluate([solution(GOOD)])
    assert (evaluation.status, evaluation.score, evaluation.error) == (
        "infrastructure",
        None,
        "The disk is full.",
    )
    assert len(cache) == 0


CHANCE = "import os\nopen('submission.csv', 'wb').write(os.urandom(9))"
EARLIER = "import os, time\nprint(time.time())\nopen('submission.csv', 'w').write('a,b')"


def test_a_sample_is_run_twice_and_what_differs_is_marked(tmp_path):
    cache = ExecutionCache(tmp_path / "cache.sqlite")
    sandbox, pause = BubblewrapSandbox(), threading.Event()
    with SandboxEvaluator(sandbox, cache=cache, recheck_fraction=1.0) as evaluator:
        evaluations = evaluator.evaluate([solution(code) for code in (CHANCE, EARLIER, "1/0")])
        while evaluator.usage.rechecked < 3:
            pause.wait(0.01)
        usage = evaluator.usage
    assert [evaluation.status for evaluation in evaluations] == ["unreadable", "bad_columns", "error"]
    assert (usage.executions, usage.cached, usage.differing) == (3, 0, 1)
    assert usage.rechecked_seconds > 0
    folder = load_competition("breast-cancer").public_dir
    keys = [ExecutionCache.key(Job(code, folder), sandbox.fingerprint) for code in (CHANCE, EARLIER, "1/0")]
    assert [cache.is_repeatable(key) for key in keys] == [False, True, True]
    assert (cache.stats().rechecked, cache.stats().differing) == (3, 1)
    assert list(scratch_folder().iterdir()) == []


def test_which_programs_are_run_twice_follows_from_their_content():
    class Counting(Broken):
        def __init__(self):
            self.jobs = []

        def run(self, job, cancel=None):
            self.jobs.append(job.code)
            return Result("error")

    def twice(fraction):
        with SandboxEvaluator(sandbox := Counting(), workers=1, recheck_fraction=fraction) as evaluator:
            evaluator.evaluate([solution(str(number)) for number in range(400)])
            last = evaluator._pool.submit(Job("last", load_competition("digits").public_dir), IDLE)
            last.result()
        return sorted(code for code in set(sandbox.jobs) if sandbox.jobs.count(code) == 2)

    chosen = twice(0.1)
    assert 20 < len(chosen) < 60
    assert twice(0.1) == chosen
    assert set(chosen) < set(twice(0.3))
    assert twice(0.0) == []


def test_an_unknown_competition_is_said_to_be_so(evaluator):
    with pytest.raises(CompetitionError, match="no-such-thing"):
        evaluator.evaluate([solution("pass", "no-such-thing")])


def test_submitting_returns_at_once_and_closing_cancels():
    evaluator = SandboxEvaluator(BubblewrapSandbox(Limits(timeout_s=600)), workers=1)
    hanging = evaluator.submit(solution("while True:\n    pass"))
    same = evaluator.submit(solution("while True:\n    pass"))
    waiting = evaluator.submit(solution("pass"), group="another")
    evaluator.close()
    for future in (hanging, same, waiting):
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(timeout=10)
    assert evaluator.usage.executions == 0


def test_a_competition_may_be_given_as_such_and_any_sandbox_will_do():
    with SandboxEvaluator(UnsafeSandbox(), workers=1) as evaluator:
        [evaluation] = evaluator.evaluate([Solution(load_competition("breast-cancer"), GOOD)])
    assert evaluation.grade.status == "ok"


def test_many_short_jobs_at_once_each_have_their_own_output(evaluator):
    batch = [solution(f"print({n})") for n in range(24)]
    assert [e.outcome.stdout for e in evaluator.evaluate(batch)] == [f"{n}\n" for n in range(24)]
