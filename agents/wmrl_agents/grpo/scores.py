"""From finished trajectories to the coefficients of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wmrl_agents.grpo.played import PlayedGroup
from wmrl_envs.evaluation import Source
from wmrl_rewards.reward import WorldModelReward

__all__ = ["StepScores", "score_step"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StepScores:
    """Scores of a step; arrays of shape (groups, members), NaN where missing.

    Attributes:
        sources: Who evaluated each group.
        real: Real scores, as far as they are known.
        predicted: Raw scores of the world model.
        calibrated: The same after debiasing.
        used: The scores that advantages were made from.
        coefficients: What each trajectory's gradient is multiplied with.
    """

    sources: list[Source]
    real: Floats
    predicted: Floats
    calibrated: Floats
    used: Floats
    coefficients: Floats

    @property
    def anchors(self) -> NDArray[np.bool_]:
        """Which groups were executed, shape (groups,)."""
        return np.array([source == "real" for source in self.sources])


def score_step(groups: Sequence[PlayedGroup], reward: WorldModelReward) -> StepScores:
    """Score a step under the map and the weight that the rewards hold now, those of earlier steps.

    What is not predicted gives no pair to learn from. In a group of the world model a real score that is
    known (without a program it is 0; where a prediction was missing it was executed) takes the place of the
    calibrated one.
    """
    sources: list[Source] = [group.source for group in groups]
    anchors = np.array([[source == "real"] for source in sources])
    scores = [[member.scores(group.source) for member in group.trajectories] for group in groups]
    real = _array([[pair[0] for pair in row] for row in scores])
    predicted = _array([[pair[1] for pair in row] for row in scores])
    calibrated = reward.calibrate(predicted)
    used = np.where(anchors | ~np.isnan(real), real, calibrated)
    coefficients = reward.coefficients(sources, real, predicted)
    return StepScores(sources, real, predicted, calibrated, used, coefficients)


def _array(rows: list[list[float | None]]) -> Floats:
    return np.array(rows, dtype=np.float64)
