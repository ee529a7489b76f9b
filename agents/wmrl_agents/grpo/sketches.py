r"""Gradient sketches: a few thousand numbers that keep a gradient's lengths and angles.

A count sketch (Charikar, Chen, Farach-Colton 2002) adds each entry, with a random sign, to a random one of d
buckets. It is linear, so means and differences of sketches are sketches of means and differences, and

.. math:: \mathbb E\,\langle Sx, Sy\rangle = \langle x, y\rangle, \quad
    \mathrm{Var} \le \frac{2}{d}\,\lVert x\rVert^2 \lVert y\rVert^2 .

So with d = 8,192 a squared length is off by 1.6 % (one standard deviation). Signs and buckets are hashes of
the entry's position: nothing is stored, parameters are taken one by one and in pieces, and every process and
device has the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["DIMENSION", "GradientSketch"]

DIMENSION = 2**13
_PIECE = 2**20
# Odd constants of the SplitMix64 generator, as signed numbers.
_GOLDEN, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685


class GradientSketch:
    """Sketches the gradients of one set of parameters.

    Args:
        dimension: Numbers in a sketch, a power of two.
        seed: Decides signs and buckets.

    Example:
        >>> sketch = GradientSketch(dimension=2**10)
        >>> one = sketch([torch.ones(3, 4), torch.zeros(5)])
        >>> tuple(one.shape), round(float(one.square().sum()), 6)
        ((1024,), 12.0)
    """

    def __init__(self, dimension: int = DIMENSION, seed: int = 0) -> None:
        if dimension < 1 or dimension & (dimension - 1):
            raise ValueError(f"The dimension of a sketch must be a power of two, not {dimension}.")
        self.dimension = dimension
        self.seed = seed

    def __call__(self, tensors: Iterable[Tensor]) -> Tensor:
        """Sketch the concatenation of some tensors, on any device.

        Returns:
            Float64 tensor of shape (dimension,) on the CPU.
        """
        return self._sketch((tensor, tensor.numel()) for tensor in tensors)

    def gradient(self, parameters: Iterable[torch.nn.Parameter]) -> Tensor:
        """Sketch the gradient that some parameters hold; one without any has a gradient of 0."""
        return self._sketch((parameter.grad, parameter.numel()) for parameter in parameters)

    def _sketch(self, tensors: Iterable[tuple[Tensor | None, int]]) -> Tensor:
        total = torch.zeros(self.dimension, dtype=torch.float64)
        position = 0
        for tensor, size in tensors:
            if tensor is not None:
                for number, piece in enumerate(tensor.detach().reshape(-1).split(_PIECE)):
                    total += self._piece(piece, position + number * _PIECE)
            position += size
        return total

    def _piece(self, piece: Tensor, position: int) -> Tensor:
        places = torch.arange(position, position + piece.numel(), device=piece.device)
        mixed = _mix(places + (self.seed % 2**20) * 2**43)  # no two seeds share a position
        signs = 1 - 2 * ((mixed >> 40) & 1)
        sums = torch.zeros(self.dimension, dtype=torch.float64, device=piece.device)
        sums.index_add_(0, mixed & (self.dimension - 1), piece.double() * signs)
        return sums.cpu()


def _mix(numbers: Tensor) -> Tensor:
    """SplitMix64's finaliser: 64 well-mixed bits for each integer; products wrap around."""
    mixed = numbers * _GOLDEN
    mixed = (mixed ^ _shifted(mixed, 30)) * _FIRST
    mixed = (mixed ^ _shifted(mixed, 27)) * _SECOND
    return mixed ^ _shifted(mixed, 31)


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    """Shift to the right with zeros, as for unsigned numbers."""
    return (numbers >> bits) & (2 ** (64 - bits) - 1)
