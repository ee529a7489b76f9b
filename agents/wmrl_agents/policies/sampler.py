"""`Sampler`: where replies come from while a policy is trained, and how it gets the weights of each step.

By default the policy samples with the very weights that it trains. A sampler with weights of its own (a copy
on another device, a server) is given them anew before it is next asked, together with a version that each
sample carries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from wmrl_agents.policies.low_rank import untied
from wmrl_envs.errors import WMRLError
from wmrl_rewards.language_models.base import Generation, Sampling
from wmrl_rewards.language_models.hugging_face import HuggingFaceModel

__all__ = ["OwnWeights", "Sampler", "TransformersSampler"]


@runtime_checkable
class Sampler(Protocol):
    """Continues token ids.

    What is recorded has to be what was drawn: token ids as they were sampled, with log-probabilities under
    the distribution that they were sampled from (temperature included, nothing cut off).
    """

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        stop: Callable[[str], bool] | None = None,
        ends: Sequence[int] = (),
    ) -> list[Generation]:
        """Continue each prompt once, in their order.

        Args:
            prompts: Token ids.
            sampling: How to sample.
            stop: Whether a reply is complete, given its text up to the end of a line with a fence.
            ends: Tokens that end a reply. A chat template's own may be unknown to an engine.

        Raises:
            WMRLError: A reply could not be had.
        """
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Sample with these weights from now on; whatever was computed with older ones is forgotten.

        Args:
            weights: All weights of a plain model of the Hugging Face layout, by name; tied ones by each of
                their names, because an engine may keep a copy for each.
            version: Number of updates that they have seen.
        """
        ...


class OwnWeights:
    """Samples with the policy's own weights: there is nothing to hand over.

    Args:
        language_model: What is trained.
    """

    def __init__(self, language_model: HuggingFaceModel) -> None:
        self.language_model = language_model

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        stop: Callable[[str], bool] | None = None,
        ends: Sequence[int] = (),
    ) -> list[Generation]:
        """See `Sampler`; a reply follows from prompt, seed and the number of equal prompts before it.

        The model itself knows the tokens that end one.
        """
        replies = self.language_model.complete(prompts, sampling, stop=stop)
        return [reply for (reply,) in replies]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `Sampler`; they are there already."""


class TransformersSampler(OwnWeights):
    """Samples with a copy of the weights, on a device of its own for example.

    Args:
        language_model: The copy.
    """

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `Sampler`.

        Raises:
            WMRLError: The weights are not those of this model.
        """
        own = self.language_model.model.state_dict()
        missing = set(untied(own))
        with torch.no_grad():
            for name, tensor in weights:
                if name not in own or own[name].shape != tensor.shape:
                    raise WMRLError(
                        f"The sampler's model has no weights '{name}' of shape {tuple(tensor.shape)}."
                    )
                own[name].copy_(tensor)
                missing.discard(name)
        if missing:
            raise WMRLError(f"The sampler was given no weights for {', '.join(sorted(missing)[:3])} ...")
