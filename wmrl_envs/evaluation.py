"""The one seam of the project: solutions go in, evaluations come out, executed or predicted.

Nothing upstream or downstream of an `Evaluator` asks which kind answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from wmrl_envs.autoresearch.competition import Competition

__all__ = [
    "Evaluation",
    "Evaluator",
    "Grade",
    "GradeStatus",
    "Outcome",
    "OutcomeStatus",
    "Solution",
    "Source",
]

OutcomeStatus = Literal["ok", "error", "timeout", "oom", "output_limit", "infrastructure"]
GradeStatus = Literal[
    "ok", "no_submission", "unreadable", "bad_columns", "bad_ids", "bad_values", "metric_error"
]
Source = Literal["real", "world_model"]


@dataclass(frozen=True)
class Solution:
    """A program that claims to solve a competition.

    Attributes:
        competition: The competition, or the name or folder of one.
        code: Python source text.
        turn: Index of the turn that wrote it, from 0.
    """

    competition: Competition | str
    code: str
    turn: int = 0


@dataclass(frozen=True)
class Outcome:
    """What happened when a solution ran (or what a world model says would happen).

    Attributes:
        status: ``ok`` means that it ended by itself with exit code 0. ``infrastructure`` means that the
            machine failed, not the solution: there is then no score.
        stdout: Standard output, cut in the middle if it was long.
        stderr: Standard error, cut likewise.
        seconds: Wall time of the execution; of the original one if the result came from a cache.
        cached: Whether a stored result was used instead of a new execution.
    """

    status: OutcomeStatus
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    cached: bool = False


@dataclass(frozen=True)
class Grade:
    """What a submission is worth.

    Attributes:
        status: ``ok``, or what is wrong with the submission.
        score: Metric value, None unless the status is ``ok``.
        percentile: Leaderboard percentile of that score in [0, 1], None unless the status is ``ok``.
        message: One sentence on what is wrong; empty if nothing is.
    """

    status: GradeStatus
    score: float | None = None
    percentile: float | None = None
    message: str = ""


@dataclass(frozen=True)
class Evaluation:
    """Outcome and grade of one solution.

    Attributes:
        outcome: How the run ended; None if no prediction could be had.
        grade: None where there was nothing to grade (the run did not end well).
        source: Who answered.
        error: Why there is no score, where there is none.
    """

    outcome: Outcome | None
    grade: Grade | None = None
    source: Source = "real"
    error: str | None = None

    @property
    def score(self) -> float | None:
        """Score in [0, 1]: the percentile; 0 for a failure of the solution; None where it is missing.

        A score is missing when the infrastructure failed or the world model gave no answer; that is
        nobody's achievement and nobody's fault, and never 0.
        """
        if self.outcome is None or self.machine_failed:
            return None
        if self.grade is None or self.grade.status != "ok":
            return 0.0
        return self.grade.percentile

    @property
    def machine_failed(self) -> bool:
        """Whether the machine, not the solution, is to blame that there is no score."""
        return self.outcome is not None and self.outcome.status == "infrastructure"

    @property
    def status(self) -> str:
        """One word for both: the outcome's status, or the grade's where the run itself was fine."""
        if self.outcome is None:
            return "missing"
        if self.grade is None or self.grade.status == "ok":
            return self.outcome.status
        return self.grade.status


@runtime_checkable
class Evaluator(Protocol):
    """Anything that evaluates solutions: by execution, by prediction, from a recording."""

    def evaluate(self, solutions: Sequence[Solution]) -> list[Evaluation]:
        """Evaluate a batch.

        Args:
            solutions: Any number of solutions, of any competitions.

        Returns:
            One evaluation per solution, in their order. Never raises for what a solution does.
        """
        ...
