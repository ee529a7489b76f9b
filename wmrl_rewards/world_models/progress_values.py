"""Progress of an embodied task, frame by frame, and the one score that is made of it.

Models of progress (Robometer, its server, the small one of ours) read eight uniformly spaced frames of a
rollout and say for each how far the task has come, from 0 to 1. The score is a reduction of the eight:

- ``potential``: last minus first, clipped to [0, 1]. With one advantage for a whole trajectory the return of
  a potential-shaped reward telescopes to it; what was there at the beginning earns nothing.
- ``final``, ``mean``, ``max``: what their names say. ``max`` rewards touching a good state and falling apart
  afterwards: it is there for study.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from wmrl_envs.errors import ConfigError
from wmrl_rewards.prediction import Prediction, PredictionRequest

__all__ = [
    "NUM_FRAMES",
    "Progress",
    "ProgressWorldModel",
    "Reduction",
    "image_fault",
    "reduce_progress",
    "uniform_indices",
]

NUM_FRAMES = 8
Reduction = Literal["potential", "final", "mean", "max"]


@dataclass(frozen=True)
class Progress:
    """What a model sees in one rollout.

    Attributes:
        values: Progress at each of the `NUM_FRAMES` frames, in [0, 1]; empty where there is none.
        success: Probability that the task is solved in each frame, of a model that says so.
        error: Why there are no values.
    """

    values: tuple[float, ...] = ()
    success: tuple[float, ...] | None = None
    error: str | None = None


def uniform_indices(length: int, count: int = NUM_FRAMES) -> NDArray[np.int64]:
    """Indices of ``count`` uniformly spaced frames, first and last among them.

    A rollout with fewer frames gives all of them, then its last one again.

    Args:
        length: Number of frames, at least 1.
        count: How many to take, at least 2.

    Example:
        >>> uniform_indices(15).tolist()
        [0, 2, 4, 6, 8, 10, 12, 14]
        >>> uniform_indices(3).tolist()
        [0, 1, 2, 2, 2, 2, 2, 2]
    """
    if length < count:
        return np.minimum(np.arange(count), length - 1)
    return np.rint(np.linspace(0, length - 1, count)).astype(np.int64)


def reduce_progress(values: Sequence[float], reduction: Reduction = "potential") -> float:
    """One score of the progress values of a rollout.

    Example:
        >>> [reduce_progress([0.25, 0.75, 0.5], how) for how in ("potential", "final", "mean", "max")]
        [0.25, 0.5, 0.5, 0.75]
    """
    array = np.asarray(values, dtype=np.float64)
    if reduction == "potential":
        return float(np.clip(array[-1] - array[0], 0, 1))
    score = {"final": array[-1], "mean": array.mean(), "max": array.max()}[reduction]
    return float(np.clip(score, 0, 1))


def image_fault(frames: Any) -> str | None:
    """What keeps an array from being the frames of a rollout; None if nothing does."""
    if frames is None:
        return "The request holds no frames, so that there is nothing to judge."
    array = frames if isinstance(frames, np.ndarray) else None
    if array is None:
        return f"frames must be a numpy array of shape (T, H, W, 3), not {type(frames).__name__}."
    if array.ndim != 4 or array.shape[-1] != 3 or 0 in array.shape:
        return f"frames must be of shape (T, H, W, 3) with no side 0, not {array.shape}."
    if array.dtype != np.uint8:
        return f"frames must be of type uint8 (0 to 255), not {array.dtype}."
    return None


class ProgressWorldModel(ABC):
    """A world model that sees progress and makes a score of it; a subclass says how it sees.

    Args:
        reduction: How the score is made; see the module.

    Raises:
        ConfigError: There is no such reduction.
    """

    def __init__(self, reduction: Reduction = "potential") -> None:
        if reduction not in get_args(Reduction):
            raise ConfigError(
                f"reduction must be one of {', '.join(get_args(Reduction))}, not {reduction!r}."
            )
        self.reduction = reduction

    @abstractmethod
    def progress(self, requests: Sequence[PredictionRequest]) -> list[Progress]:
        """Progress at `NUM_FRAMES` frames of each request, in their order; failures have an error."""

    def predict(self, requests: Sequence[PredictionRequest]) -> list[Prediction]:
        """Predict a batch. See `WorldModel`.

        Args:
            requests: Each with ``frames``, and a ``task`` in words.
        """
        started = perf_counter()
        seen = self.progress(requests)
        seconds = (perf_counter() - started) / max(1, len(requests))
        return [
            Prediction(None, error=one.error or "No progress was seen.", seconds=seconds)
            if one.error or not one.values
            else Prediction(reduce_progress(one.values, self.reduction), seconds=seconds)
            for one in seen
        ]
