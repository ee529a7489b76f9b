"""What an evaluation is worth to the agent: its percentile, or a graded reward that also values attempts.

``percentile`` is the paper's: the leaderboard percentile, 0 for a program that fails. ``graded`` is that of
its authors' later code: a program that is no Python is worth 0, one that fails while it runs 0.1, one that
ends without a valid submission 0.2, and a valid submission 0.5 plus half of its percentile.
"""

from __future__ import annotations

import re
from typing import Literal

from wmrl_envs.evaluation import Evaluation

__all__ = ["REWARDS", "RewardKind", "worth"]

RewardKind = Literal["percentile", "graded"]

REWARDS: tuple[RewardKind, ...] = ("percentile", "graded")
_NO_PYTHON = re.compile(r"^(?:SyntaxError|IndentationError|TabError)\b", re.MULTILINE)


def worth(evaluation: Evaluation, reward: RewardKind = "percentile") -> float | None:
    """What an evaluation is worth in [0, 1]; None where its score is missing.

    Example:
        >>> from wmrl_envs.evaluation import Grade, Outcome
        >>> valid = Evaluation(Outcome("ok"), Grade("ok", score=0.9, percentile=0.4))
        >>> worth(valid), worth(valid, "graded"), worth(Evaluation(Outcome("timeout")), "graded")
        (0.4, 0.7, 0.1)
    """
    score, outcome = evaluation.score, evaluation.outcome
    if score is None or outcome is None or reward == "percentile":
        return score
    if outcome.status != "ok":
        return 0.0 if _NO_PYTHON.search(outcome.stderr) else 0.1
    if evaluation.grade is None or evaluation.grade.status != "ok":
        return 0.2
    return 0.5 + 0.5 * score
