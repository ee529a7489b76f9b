"""16-bit weights to compute with, 32-bit ones to add small steps to.

A bfloat16 number has 8 bits of mantissa: adding less than 1/512 of a weight leaves it as it was, so steps of
AdamW at 1e-6 would vanish one by one. The optimiser therefore moves float32 masters, and the model computes
with their roundings: in sampling and in training with the same ones, so that the log-probabilities of both
agree. Autocast would do as well for training, but it rounds the weights anew in each forward pass, which in
generation is one per token. Gradients are added up in float32 over the micro-batches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["MasterWeights"]


class MasterWeights:
    """Float32 masters of a 16-bit model's trainable parameters.

    Args:
        model: A model in float32; it is turned into ``dtype``, in place, and its own values become masters.
        dtype: Number format to compute in.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._model = model
        self._copies = dict(model.named_parameters())
        self.masters: dict[str, nn.Parameter] = {}
        for name, copy in self._copies.items():
            master = self.masters[name] = nn.Parameter(copy.detach().clone())
            copy.data = copy.data.to(dtype)  # not model.to(): tables of positions stay in float32
            copy.register_post_accumulate_grad_hook(_adds_to(master))

    def round(self) -> None:
        """Let the model compute with what the masters are now."""
        with torch.no_grad():
            for name, master in self.masters.items():
                self._copies[name].copy_(master)

    def state_dict(self) -> dict[str, Tensor]:
        """The model's state with the masters in place of their roundings."""
        masters = {name: master.detach() for name, master in self.masters.items()}
        aliases = {id(copy): name for name, copy in self._copies.items()}
        state = self._model.state_dict(keep_vars=True)
        return {
            name: masters.get(aliases.get(id(value), name), value.detach()) for name, value in state.items()
        }


def _adds_to(master: nn.Parameter) -> Any:
    """A hook that moves a copy's gradient to its master."""

    def move(copy: Tensor) -> None:
        assert copy.grad is not None
        gradient = copy.grad.float()
        master.grad = gradient if master.grad is None else master.grad + gradient
        copy.grad = None

    return move
