"""Graders that come with other people's competitions: foreign code, so it runs in the sandbox.

It sees the answers, the submission and its own code; no network, no file besides, nothing of this process.
"""

from __future__ import annotations

import copy
import csv
import dataclasses
import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from wmrl_envs.autoresearch.competition import Competition
from wmrl_envs.autoresearch.grading import RefusedError, finite, longest_submission, read_submission
from wmrl_envs.autoresearch.matching import positions, reference_index
from wmrl_envs.autoresearch.tables import read_columns, read_table
from wmrl_envs.errors import CompetitionError
from wmrl_envs.evaluation import GradeStatus
from wmrl_envs.sandbox.bubblewrap import BubblewrapSandbox
from wmrl_envs.sandbox.job import Job, Sandbox
from wmrl_envs.sandbox.scratch import scratch_folder

__all__ = ["ForeignGrader", "scored_elsewhere"]

PROGRAM = Path(__file__).with_name("grading_program.py")
LEAST_TIMEOUT_S = 120.0  # a grader needs its own time, however short that of the solutions is
LEAST_MEMORY = 2 * 1024**3


def scored_elsewhere(answers: object, predictions: object) -> float:
    """Stands for the metric of a competition that has a grader of its own.

    Raises:
        CompetitionError: Always: there is no function to call outside the sandbox.
    """
    raise CompetitionError("This competition's metric is its own grader's: use wmrl_envs.autoresearch.grade.")


@dataclass(frozen=True)
class ForeignGrader:
    """Calls a competition's own grader in the sandbox, and says what came of it in this project's words.

    Attributes:
        kind: Whose way of grading it is.
        code: Files that the grader consists of.
        entry: What to call: a module's name, ``module:function``, or a script's name.
    """

    kind: Literal["mle_dojo", "mle_bench", "dsbench"]
    code: tuple[Path, ...]
    entry: str

    def score(
        self, competition: Competition, submission_path: str | Path | None, sandbox: Sandbox | None = None
    ) -> float:
        """See `wmrl_envs.autoresearch.grading.score_submission`.

        Raises:
            RefusedError: The submission is not taken, or the metric has no value for it.
            CompetitionError: The grader cannot be loaded or run, or contradicts the leaderboards.
        """
        submission = read_submission(submission_path, longest_submission(competition))
        _check_finite(competition, submission)
        verdict = self.verdict(competition, submission, sandbox)
        if verdict["verdict"] == "scored":
            _check_direction(competition, verdict["higher_is_better"])
            return finite(verdict["score"], competition.metric.name)
        status = _what_is_wrong(competition, submission)
        if status is None:
            status = "bad_values" if verdict["verdict"] == "refused" else "metric_error"
        what = "does not take the submission" if verdict["verdict"] == "refused" else "failed"
        raise RefusedError(status, f"The grader {what}: {verdict['message'][:300].rstrip('.')}.")

    def verdict(
        self, competition: Competition, submission: bytes, sandbox: Sandbox | None = None
    ) -> dict[str, Any]:
        """What the grader says: see `wmrl_envs.autoresearch.sources.grading_program`.

        Raises:
            CompetitionError: The grader cannot be loaded or run.
        """
        code = PROGRAM.read_text(encoding="utf-8")
        with self._folder(competition, submission) as folder:
            result = _roomy(sandbox or _default_sandbox()).run(Job(code, folder))
        if result.status == "infrastructure":
            raise CompetitionError(f"The grader of {competition.name} could not be run: {result.message}")
        if result.submission_path is None:
            return {"verdict": "failed", "message": result.message}
        try:
            verdict = json.loads(result.submission_path.read_text(encoding="utf-8"))
        finally:
            result.submission_path.unlink()
        if verdict["verdict"] == "broken":
            raise CompetitionError(f"The grader of {competition.name} is out of order: {verdict['message']}")
        return verdict

    @contextmanager
    def _folder(self, competition: Competition, submission: bytes) -> Iterator[Path]:
        """A folder with all that the grader may see, readable for the user that it runs as."""
        answers = competition.answers_path
        task = {
            "kind": self.kind,
            "entry": self.entry,
            "answers": f"answers{answers.suffix}",
            "id_column": competition.id_column,
        }
        with tempfile.TemporaryDirectory(prefix="grading-", dir=scratch_folder()) as name:
            folder = Path(name)
            (folder / "grader").mkdir()
            for path in self.code:
                shutil.copyfile(path, folder / "grader" / path.name)
            shutil.copyfile(answers, folder / task["answers"])
            (folder / "submission.csv").write_bytes(submission)
            (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
            for path in (folder, *folder.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
            yield folder


@lru_cache(maxsize=1)
def _default_sandbox() -> BubblewrapSandbox:
    return BubblewrapSandbox()


def _roomy(sandbox: Sandbox) -> Sandbox:
    """The same sandbox with limits that a grader can live with."""
    roomy = copy.copy(sandbox)
    roomy.limits = dataclasses.replace(
        sandbox.limits,
        timeout_s=max(sandbox.limits.timeout_s, LEAST_TIMEOUT_S),
        memory_bytes=max(sandbox.limits.memory_bytes, LEAST_MEMORY),
    )
    return roomy


def _check_direction(competition: Competition, higher_is_better: bool | None) -> None:
    """The grader's direction, where it has one, is that of the boards."""
    if higher_is_better not in (None, competition.metric.higher_is_better):
        better = "higher" if higher_is_better else "lower"
        raise CompetitionError(
            f"The leaderboards of {competition.name} are sorted as if {competition.metric.direction}, but "
            f"its own metric says that {better} is better: correct one of them."
        )


def _check_finite(competition: Competition, submission: bytes) -> None:
    """Refuse what is no number where the sample has numbers.

    Few graders look for it, and those that average with pandas pass such rows over: whoever left all rows but
    the surest empty would have the best score.
    """
    sample = pd.read_csv(competition.sample_path, usecols=list(competition.target_columns))
    numbers = [
        name for name in sample if sample[name].dtype.kind in "iuf" and np.isfinite(sample[name]).all()
    ]
    try:
        table = pd.read_csv(io.BytesIO(submission), usecols=lambda name: name in numbers, low_memory=False)
    except ValueError:
        return  # no table: the grader says so
    for name in table:
        values = pd.to_numeric(table[name], errors="coerce")
        strange = table[name].isna() | np.isinf(values)
        if strange.any():
            row = int(np.argmax(strange))
            raise RefusedError(
                "bad_values", f"{name} must be a finite number; row {row + 1} has {table[name][row]}."
            )


def _what_is_wrong(competition: Competition, submission: bytes) -> GradeStatus | None:
    """Why a grader did not take a submission, as far as it can be told from columns and ids."""
    sample = read_columns(competition.sample_path)
    lines = iter(submission.decode("utf-8").splitlines())
    try:
        header = next(filter(None, csv.reader(lines)))
        if sorted(header) != sorted(sample):
            return "bad_columns"
        given = [row[header.index(competition.id_column)] for row in csv.reader(lines) if row]
    except (csv.Error, IndexError, StopIteration):
        return "unreadable"
    ids = reference_index(_ids(competition))
    if not ids.is_unique:
        return None if len(given) == len(ids) else "bad_ids"
    found = positions(pd.Series(given, dtype=str), ids)
    every_one = len(given) == len(ids) and np.array_equal(np.sort(found), np.arange(len(ids)))
    return None if every_one else "bad_ids"


def _ids(competition: Competition) -> pd.Series:
    """Ids of the test rows, of the sample submission where the answers are no table with that column."""
    column, path = competition.id_column, competition.answers_path
    if path.suffix != ".csv" or column not in read_columns(path):
        path = competition.sample_path
    return read_table(path, columns=[column], text=[column])[column]
