"""`Learners`: the policy on all processes of a run, sampled and differentiated in shares.

Each method is called on rank 0, which tells the others; then all of them run the same body, each on its
share, and rank 0 gets the whole. With one process that is a plain call. A share never changes a result: what
is sampled together under which seed, and which trajectories share a backward pass, is settled before it is
dealt, and the denominators of the loss are those of the whole step. So any number of processes samples the
same replies and makes the same gradient, up to the order in which its parts are added.

Gradients are summed on rank 0, whose optimiser steps, and the new weights go back to all. That sends as much
as an all-reduce does, and the ranks cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor

from wmrl_agents.grpo.audit import sketch_group
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.gradients import GradientStatistics, accumulate_gradients
from wmrl_agents.grpo.parts import load_policy
from wmrl_agents.grpo.ranks import Ranks
from wmrl_agents.grpo.roles import TrainablePolicy
from wmrl_agents.policies.base import Prompt, Sample

__all__ = ["Learners", "follow"]

Batch = tuple[list[Prompt], int]
GroupToSketch = tuple[list[Sample], list[list[float]]]


class Learners:
    """The policy of a run, on every process.

    Args:
        config: The run's settings.
        policy: This process's copy.
        reference: Frozen policy of the KL term; None without one.
        ranks: This process among the others.

    Attributes:
        seconds: Time that the processes spent, added up over them, by what on.
    """

    def __init__(
        self, config: GRPOConfig, policy: TrainablePolicy, reference: Any, ranks: Ranks | None = None
    ) -> None:
        self.config = config
        self.policy = policy
        self.reference = reference
        self.ranks = ranks or Ranks()
        self.seconds = {"generate": 0.0, "train": 0.0}

    def take_seconds(self) -> dict[str, float]:
        """Time that all processes together spent since the last call."""
        taken = {f"seconds_workers_{name}": seconds for name, seconds in self.seconds.items()}
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        return taken

    def sample(self, batches: Sequence[Batch]) -> list[list[Sample]]:
        """Replies to batches of prompts, each batch with its seed."""
        return self._together("_sample", batches) if batches else []

    def accumulate(
        self,
        samples: Sequence[Sample],
        coefficients: Sequence[float],
        clip: tuple[float, float] | None = None,
    ) -> GradientStatistics:
        """Leave the step's gradient in the parameters' ``.grad``; see `accumulate_gradients`."""
        return self._together("_accumulate", samples, coefficients, clip)

    def sketch(self, groups: Sequence[GroupToSketch]) -> list[list[Tensor]]:
        """Sketches of each group's gradients, one for each of its rows of coefficients."""
        return self._together("_sketch", groups)

    def share_weights(self) -> None:
        """Give all processes the weights of this one."""
        self._together("_share_weights")

    def obey(self) -> None:
        """On ranks other than 0: do what is told until the end."""
        while (order := self.ranks.hear())[0] != "end":
            getattr(self, order[0])(*order[1:])

    def _together(self, name: str, *arguments: Any) -> Any:
        self.ranks.tell((name, *arguments))
        return getattr(self, name)(*arguments)

    def _sample(self, batches: Sequence[Batch]) -> list[list[Sample]]:
        started = perf_counter()
        share = range(self.ranks.rank, len(batches), self.ranks.size)
        replies = {
            number: self.policy.sample(batches[number][0], seed=batches[number][1]) for number in share
        }
        parts = self.ranks.gather((replies, perf_counter() - started))
        self.seconds["generate"] += sum(seconds for _, seconds in parts)
        whole = {number: samples for part, _ in parts for number, samples in part.items()}
        return [whole[number] for number in sorted(whole)]

    def _accumulate(
        self, samples: Sequence[Sample], coefficients: Sequence[float], clip: tuple[float, float] | None
    ) -> GradientStatistics:
        started, config = perf_counter(), self.config
        statistics = accumulate_gradients(
            self.policy,
            samples,
            coefficients,
            reference=self.reference,
            kl_coefficient=config.kl_coefficient,
            entropy_coefficient=config.entropy_coefficient,
            loss_reduction=config.loss_reduction,
            micro_batch=config.micro_batch,
            micro_batch_tokens=config.micro_batch_tokens,
            clip=clip,
            share=(self.ranks.rank, self.ranks.size),
        )
        parts = self.ranks.gather((statistics, perf_counter() - started))
        self.seconds["train"] += sum(seconds for _, seconds in parts)
        self.ranks.add_up(self.policy.parameters())
        return sum((part for part, _ in parts), GradientStatistics())

    def _sketch(self, groups: Sequence[GroupToSketch]) -> list[list[Tensor]]:
        started = perf_counter()
        share = range(self.ranks.rank, len(groups), self.ranks.size)
        sketches = {number: sketch_group(self.policy, *groups[number], self.config) for number in share}
        parts = self.ranks.gather((sketches, perf_counter() - started))
        self.seconds["train"] += sum(seconds for _, seconds in parts)
        whole = {number: found for part, _ in parts for number, found in part.items()}
        return [whole[number] for number in sorted(whole)]

    def _share_weights(self) -> None:
        self.ranks.copy(self.policy.parameters())


def follow(
    ranks: Ranks,
    load: Callable[[str | Path], TrainablePolicy] | None = None,
    prepare: Callable[[GRPOConfig], object] = lambda config: None,
) -> None:
    """Be a rank other than 0: wait for the run's settings, load the policy, and obey until the end.

    Args:
        ranks: This process among the others.
        load: Makes the policy from a model directory or name; None does as the settings say.
        prepare: Is told the settings first.
    """
    order = ranks.hear()
    if order[0] == "end":  # rank 0 found something wrong before there was anything to do
        return
    config: GRPOConfig = order[1]
    prepare(config)
    policy = load_policy(config, config.policy) if load is None else load(config.policy)
    reference = policy.frozen_copy() if config.kl_coefficient > 0 else None
    Learners(config, policy, reference, ranks).obey()
