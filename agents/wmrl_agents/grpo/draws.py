"""Every draw of a run as a pure function of its seed, so that a resumed run needs no generator's state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar
from zlib import crc32

import numpy as np

__all__ = ["derive_seed", "draw_tasks"]

T = TypeVar("T")


def derive_seed(seed: int, purpose: str, *numbers: int) -> int:
    """A seed of 32 bits for one purpose at one place of the run, unrelated to all others."""
    # Their count goes first, since trailing zeros would otherwise not count.
    sequence = np.random.SeedSequence([len(numbers), seed, crc32(purpose.encode()), *numbers])
    return int(sequence.generate_state(1)[0])


def draw_tasks(tasks: Sequence[T], count: int, *, seed: int, step: int) -> list[T]:
    """The tasks of one step: shuffled rounds through all of them, so that each comes equally often.

    Args:
        tasks: The tasks to train on.
        count: Groups in a step.
        seed: The run's seed.
        step: Index of the step, from 0.
    """
    drawn = []
    for position in range(step * count, (step + 1) * count):
        turn, place = divmod(position, len(tasks))
        order = np.random.default_rng(derive_seed(seed, "tasks", turn)).permutation(len(tasks))
        drawn.append(tasks[order[place]])
    return drawn
