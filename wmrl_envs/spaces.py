"""`UnicodeText`: the space of all texts up to a length."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space

__all__ = ["UnicodeText"]

_SAMPLE_LENGTH = 64
_CODE_POINTS = 0x110000
_SURROGATES = (0xD800, 0xE000)


class UnicodeText(Space[str]):
    """All texts of at most `max_length` characters, of any Unicode characters (no lone surrogates).

    Gymnasium's own ``Text`` keeps its character set, which for all of Unicode takes seconds and hundreds of
    megabytes. This space keeps a number.

    Args:
        max_length: Number of characters at most.
        seed: Seed of `sample`.

    Raises:
        ValueError: ``max_length`` is negative.

    Example:
        >>> space = UnicodeText(max_length=100, seed=0)
        >>> "Grüße, 世界 🎲" in space, "x" * 101 in space, 7 in space
        (True, False, False)
    """

    def __init__(self, max_length: int, seed: int | np.random.Generator | None = None) -> None:
        if max_length < 0:
            raise ValueError(f"max_length must not be negative, but is {max_length}.")
        self.max_length = max_length
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """A text has no fixed size."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """A random text of at most 64 characters.

        Args:
            mask: Must be None: there is nothing to mask.
            probability: Must be None.
        """
        if mask is not None or probability is not None:
            raise ValueError("A UnicodeText space has no masks and no probabilities.")
        length = int(self.np_random.integers(0, min(self.max_length, _SAMPLE_LENGTH), endpoint=True))
        low, high = _SURROGATES
        points = self.np_random.integers(0, _CODE_POINTS - (high - low), size=length)
        return "".join(chr(point if point < low else point + high - low) for point in points.tolist())

    def contains(self, x: Any) -> bool:
        """Whether it is a text of Unicode characters that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length and not _has_surrogates(x)

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length


def _has_surrogates(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
