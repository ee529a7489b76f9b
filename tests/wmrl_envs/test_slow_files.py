"""Many short jobs at once where every operation on a file may take its time: each ends as it deserves."""

import json
import os
import pathlib
import random
import shutil
import tempfile
import threading
from collections import Counter

import pytest

from wmrl_envs.autoresearch import load_competition
from wmrl_envs.autoresearch.sandbox_evaluator import SandboxEvaluator
from wmrl_envs.evaluation import Solution
from wmrl_envs.sandbox import BubblewrapSandbox, ExecutionCache, Limits

JOBS = 128
LONGEST_S = 0.03
SLOW = (
    *((os, name) for name in ("open", "read", "write", "fdopen", "fchmod", "fstat", "memfd_create", "close")),
    *((os, name) for name in ("pipe", "pidfd_open", "scandir", "unlink", "rmdir", "mkdir")),
    *((pathlib.Path, name) for name in ("read_text", "write_text", "mkdir", "rmdir", "unlink", "exists")),
    (shutil, "copyfileobj"),
    (tempfile, "mkstemp"),
)
# Programs that are slow with files themselves: many small ones, each forced to its place, in small pieces.
DAWDLE = """
import os
for number in range(20):
    with open(f"part-{{number}}", "wb", buffering=0) as file:
        for _ in range(5):
            file.write(b"x" * 100)
            os.fsync(file.fileno())
    print({number}, end="", flush=True)
"""
KINDS = {
    "unreadable": "os.symlink('/data/train.csv', 'submission.csv')",
    "bad_columns": "open('submission.csv', 'w').write('a,b\\n' * 5000)",
    "no_submission": "pass",
    "error": "1 / 0",
}


@pytest.fixture
def delays(monkeypatch):
    """Every operation on a file in this process waits at first, for a time drawn from a seeded generator."""
    draw, lock, pause, count = random.Random(5), threading.Lock(), threading.Event(), Counter()

    def slowed(name, original):
        def call(*arguments, **named):
            with lock:
                count[name] += 1
                wait_s = draw.random() ** 4 * LONGEST_S
            pause.wait(wait_s)
            return original(*arguments, **named)

        return call

    for owner, name in SLOW:
        monkeypatch.setattr(owner, name, slowed(name, getattr(owner, name)))
    return count


@pytest.mark.slow
@pytest.mark.sandbox
def test_128_short_jobs_with_slow_files_each_end_in_their_true_status(delays, tmp_path):
    competition = load_competition("breast-cancer")
    wanted = [list(KINDS)[number % len(KINDS)] for number in range(JOBS)]
    solutions = [
        Solution(competition, DAWDLE.format(number=number) + KINDS[kind])
        for number, kind in enumerate(wanted)
    ]
    sandbox = BubblewrapSandbox(Limits(timeout_s=600))
    cache = ExecutionCache(tmp_path / "cache.sqlite")
    with SandboxEvaluator(sandbox, cache=cache, workers=JOBS) as evaluator:
        evaluations = evaluator.evaluate(solutions)
    assert [evaluation.status for evaluation in evaluations] == wanted
    assert [evaluation.outcome.stdout for evaluation in evaluations] == [str(n) * 20 for n in range(JOBS)]
    assert [evaluation.score for evaluation in evaluations] == [0.0] * JOBS
    assert len(cache) == JOBS
    assert min(delays[name] for name in ("read", "memfd_create", "mkstemp", "copyfileobj")) >= JOBS / 4, (
        json.dumps(delays)
    )
