"""Groups and steps for a caller that sees one trajectory at a time, as a wrapper does.

A trainer knows its step: m groups, all scored, then one call of `WorldModelReward.observe`. A wrapper sees
episodes begin and end, in several environments at once. `GroupStream` cuts the groups, in the order in which
they begin, into steps of ``groups_per_step``. The anchors of a step are drawn when it opens; its map and
weights are those of that moment, for all of its members. It is observed when a later step opens and all of
its own episodes are over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_rewards.errors import RewardError

if TYPE_CHECKING:
    from wmrl_rewards.reward import WorldModelReward

__all__ = ["Group", "GroupStream", "Step", "groups_per_step"]


@dataclass(eq=False)
class Step:
    """A step under way.

    Attributes:
        anchors: Positions of its anchor groups.
        calibrate: The map f̂ that all of its members are scored with.
        rho: The weight of its anchor groups.
        predicted_weight: The weight of its other groups: 1, or 0 where the world model does not count; see
            `WorldModelReward.ignores_predictions`.
        groups: Its groups, in the order in which they began.
        running: Number of its episodes that are not over.
    """

    anchors: frozenset[int]
    calibrate: Callable[[ArrayLike], NDArray[np.float64]]
    rho: float
    predicted_weight: float = 1.0
    groups: list[Group] = field(default_factory=list)
    running: int = 0


@dataclass(eq=False)
class Group:
    """Episodes on one task that are compared with each other.

    Attributes:
        id: What the caller calls it; None for an episode on its own.
        step: The step that it belongs to.
        anchor: Whether it is executed for real.
        scores: (real, predicted) of each finished member; NaN where missing.
    """

    id: Hashable | None
    step: Step
    anchor: bool
    scores: list[tuple[float, float]] = field(default_factory=list)

    @property
    def weight(self) -> float:
        """Weight of the group in Equation (5)."""
        return self.step.rho if self.anchor else self.step.predicted_weight


class GroupStream:
    """Cuts groups into steps and hands each finished step to a `WorldModelReward`.

    Args:
        reward: Who draws the anchors and learns from the steps.
    """

    def __init__(self, reward: WorldModelReward) -> None:
        self.reward = reward
        self.groups_per_step = groups_per_step(reward.sampler.fraction)
        self._steps: deque[Step] = deque()
        self._by_id: dict[Hashable, Group] = {}
        self._over: set[Hashable] = set()
        self._abandoned: list[Group] = []

    def begin(self, group_id: Hashable | None = None) -> Group:
        """Begin an episode.

        Args:
            group_id: The group that it is a member of. Ids name a group for the whole run, so each group
                needs one of its own, for example (step, number). None makes the episode its own group.

        Raises:
            RewardError: The group's step is over.
        """
        if group_id in self._over:
            raise RewardError(
                f"Group {group_id!r} is over: later groups have begun since its last member. "
                "Each group needs an id of its own, for example (step, number)."
            )
        if group_id is None:
            group = self._abandoned.pop() if self._abandoned else self._new_group(None)
        else:
            group = self._by_id.get(group_id) or self._new_group(group_id)
        group.step.running += 1
        return group

    def finish(self, group: Group, real: float | None, predicted: float | None) -> None:
        """End an episode with its scores; None where there is none."""
        group.scores.append((_nan_for_none(real), _nan_for_none(predicted)))
        group.step.running -= 1

    def abandon(self, group: Group) -> None:
        """End an episode without a score. An episode on its own leaves its place to the next one."""
        group.step.running -= 1
        if group.id is None and group.step in self._steps:
            self._abandoned.append(group)

    def _new_group(self, group_id: Hashable | None) -> Group:
        if not self._steps or len(self._steps[-1].groups) == self.groups_per_step:
            self._open_step()
        step = self._steps[-1]
        group = Group(group_id, step, anchor=len(step.groups) in step.anchors)
        step.groups.append(group)
        if group_id is not None:
            self._by_id[group_id] = group
        return group

    def _open_step(self) -> None:
        # In order, so that the pairs of a step are never followed by those of an earlier one.
        while self._steps and self._steps[0].running == 0:
            self._observe(self._steps.popleft())
        reward = self.reward
        anchors = frozenset(reward.draw_anchors(self.groups_per_step))
        predicted_weight = 0.0 if reward.ignores_predictions else 1.0
        self._steps.append(Step(anchors, reward.frozen_map(), reward.rho, predicted_weight))

    def _observe(self, step: Step) -> None:
        ids = {group.id for group in step.groups} - {None}
        self._over |= ids
        self._by_id = {name: group for name, group in self._by_id.items() if name not in ids}
        self._abandoned = [group for group in self._abandoned if group.step is not step]
        members = max(len(group.scores) for group in step.groups)
        scores = np.full((2, len(step.groups), members), np.nan)
        for k, group in enumerate(step.groups):
            if group.scores:
                scores[:, k, : len(group.scores)] = np.transpose(group.scores)
        sources: list[Any] = ["real" if group.anchor else "world_model" for group in step.groups]
        self.reward.observe(self.reward.next_step, sources, *scores)


def groups_per_step(fraction: float) -> int:
    """Least number of groups of which the fraction is a whole number: 10 for 0.1, 4 for 0.75."""
    return Fraction(fraction).limit_denominator(max(20, ceil(1 / fraction))).denominator


def _nan_for_none(score: float | None) -> float:
    return np.nan if score is None else score
