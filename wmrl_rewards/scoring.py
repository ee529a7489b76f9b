"""From finished episodes to their scores: what the wrappers of one and of many environments share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from wmrl_envs.errors import ConfigError
from wmrl_rewards.groups import Group, GroupStream
from wmrl_rewards.trajectories import Scored, TrajectoryScorer

__all__ = ["Missing", "blank_row", "check_missing", "score_episodes"]

Missing = Literal["execute", "drop"]


def check_missing(missing: str) -> None:
    """Raise a `ConfigError` for what is not `Missing`."""
    if missing not in ("execute", "drop"):
        raise ConfigError(f"missing must be 'execute' or 'drop', not {missing!r}.")


def blank_row(group: Group) -> dict[str, Any]:
    """``info["wmrl"]`` of an episode that goes on."""
    return {
        "source": "real" if group.anchor else "world_model",
        "predicted": None,
        "calibrated": None,
        "real": None,
        "weight": None,
        "group": group.id,
        "anchor": group.anchor,
        "error": None,
    }


def score_episodes(
    stream: GroupStream,
    scorers: Sequence[TrajectoryScorer],
    groups: Sequence[Group],
    missing: Missing,
) -> list[tuple[float, dict[str, Any]]]:
    """Score finished episodes, all in one call of the world model, and tell their groups.

    Args:
        stream: Where the groups are from.
        scorers: Who followed each episode, all of one kind.
        groups: The group of each.
        missing: What becomes of an episode without a prediction.

    Returns:
        For each its reward, NaN if it is missing, and its ``info["wmrl"]``.
    """
    if not scorers:
        return []
    predicted = type(scorers[0]).predicted(scorers, [group.anchor for group in groups])
    real = _real(scorers, groups, predicted, missing)
    return [_settle(stream, *each) for each in zip(groups, real, predicted, strict=True)]


def _real(
    scorers: Sequence[TrajectoryScorer],
    groups: Sequence[Group],
    predicted: Sequence[Scored],
    missing: Missing,
) -> list[Scored]:
    """Real scores where they are free, of anchors, and in the place of missing predictions."""
    real: list[Scored] = [(scorer.settled(), None) for scorer in scorers]
    needed = [
        number
        for number, group in enumerate(groups)
        if real[number][0] is None
        and (group.anchor or (predicted[number][0] is None and missing == "execute"))
    ]
    asked = [scorers[number] for number in needed]
    scores = type(scorers[0]).real(asked, [groups[number].anchor for number in needed])
    for number, scored in zip(needed, scores, strict=True):
        real[number] = scored
    return real


def _settle(
    stream: GroupStream, group: Group, real_scored: Scored, predicted_scored: Scored
) -> tuple[float, dict[str, Any]]:
    real, real_error = real_scored
    predicted, prediction_error = predicted_scored
    stream.finish(group, real, predicted)
    calibrated = None if predicted is None else float(group.step.calibrate(predicted))
    use_real = group.anchor or predicted is None
    row = blank_row(group)
    row.update(
        source="real" if use_real and real is not None else row["source"],
        predicted=predicted,
        calibrated=calibrated,
        real=real,
        weight=group.weight,
        error=real_error or prediction_error,
    )
    value = real if use_real else calibrated
    return math.nan if value is None else value, row
