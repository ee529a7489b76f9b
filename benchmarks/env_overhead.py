"""What the environment costs besides execution: a step, a step of 64 members, and a large submission's grade.

Compared in one run, in turns, so that a busy machine disturbs all alike; what counts are the ratios.

- one step of `AutoResearchEnv` with a program of 20 kB, evaluated by an evaluator that does nothing: 1 ms;
- one step of the vector environment with 64 members: at most 64 of those;
- grading a submission of 100,000 rows: at most 1.5 times pandas' own read of the file plus the metric.

    python benchmarks/env_overhead.py [--repeats 50]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import yaml

import wmrl_envs  # noqa: F401  (registers the environments)
from wmrl_envs.autoresearch import Competition, load_competition
from wmrl_envs.autoresearch.grading import grade
from wmrl_envs.evaluation import Evaluation, Grade, Outcome, Solution

MEMBERS = 64
ROWS = 100_000
STATEMENT = 'features["ratio"] = features["length"] / features["width"]  # one line of many\n'
PROGRAM = "```python\n" + STATEMENT * (20_000 // len(STATEMENT)) + "```"


class Instant:
    """Evaluates everything at once to the same result."""

    result = Evaluation(Outcome("ok", stdout="done\n"), Grade("ok", score=0.9, percentile=0.5))

    def evaluate(self, solutions: Sequence[Solution]) -> list[Evaluation]:
        """One result each."""
        return [self.result] * len(solutions)


def single_steps() -> Callable[[], None]:
    """A step of each of as many single environments, one after the other."""
    settings: dict[str, Any] = {"evaluator": Instant(), "max_turns": 10**6}
    names = ["digits", "sms-spam"] * (MEMBERS // 2)
    envs = [gym.make("wmrl/MLEDojo-v0", competition=name, **settings) for name in names]
    for env in envs:
        env.reset(seed=0)

    def step() -> None:
        for env in envs:
            env.step(PROGRAM)

    return step


def vector_step() -> Callable[[], None]:
    """A step of all members."""
    envs = gym.make_vec(
        "wmrl/MLEDojo-v0",
        num_envs=MEMBERS,
        competition=["digits", "sms-spam"] * (MEMBERS // 2),
        evaluator=Instant(),
        max_turns=10**6,
    )
    envs.reset(seed=0)

    def step() -> None:
        envs.step([PROGRAM] * MEMBERS)

    return step


def large_competition(root: Path) -> Competition:
    """A regression with 100,000 test rows."""
    (root / "public").mkdir()
    (root / "private").mkdir()
    rng = np.random.default_rng(0)
    ids, values = np.arange(ROWS), rng.normal(size=ROWS)
    halves = np.where(ids % 2 == 0, "public", "private")
    tables = {
        "public/train.csv": {"id": [0], "x": [0.5], "y": [0.5]},
        "public/test.csv": {"id": ids, "x": values},
        "public/sample_submission.csv": {"id": ids, "y": 0.0},
        "private/answers.csv": {"id": ids, "y": values, "half": halves},
        "private/public_leaderboard.csv": {"rank": [1, 2], "score": [0.5, 0.9]},
        "private/private_leaderboard.csv": {"rank": [1, 2], "score": [0.5, 0.9]},
        "submission.csv": {"id": ids, "y": values + rng.normal(size=ROWS)},
    }
    for name, columns in tables.items():
        pd.DataFrame(columns).to_csv(root / name, index=False)
    (root / "public/description.md").write_text("Predict y from x.\n")
    settings = {"category": "tabular", "metric": "rmse", "id_column": "id", "target_columns": ["y"]}
    (root / "competition.yaml").write_text(yaml.safe_dump({"title": "Large", **settings}))
    return load_competition(root)


def read_and_measure(competition: Competition) -> None:
    """What no grading can do without: read the file, compute the metric of one half."""
    submission = pd.read_csv(competition.root / "submission.csv")
    rows = competition.rows("public")
    answers = competition.answers("public")["y"].to_numpy()
    competition.metric(answers, submission["y"].to_numpy()[rows])


def in_turns(tasks: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each task, after one call that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for repeat in range(repeats + 1):
        for name, task in tasks.items():
            begin = time.perf_counter()
            task()
            if repeat:
                seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=50)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        competition = large_competition(Path(folder))
        submission = competition.root / "submission.csv"
        tasks: dict[str, Callable[[], object]] = {
            "64 single steps": single_steps(),
            "step of 64": vector_step(),
            "read and metric": lambda: read_and_measure(competition),
            "grade": lambda: grade(competition, submission),
        }
        median = in_turns(tasks, repeats)
    for name, seconds in median.items():
        print(f"{name:16} {1000 * seconds:9.3f} ms")
    one = median["64 single steps"] / MEMBERS
    print(f"one step:                {1000 * one:6.2f} ms  (at most 1)")
    print(f"step of 64 / one step:   {median['step of 64'] / one:6.2f}  (at most 64)")
    print(f"grade / read and metric: {median['grade'] / median['read and metric']:6.2f}  (at most 1.5)")


if __name__ == "__main__":
    main()
