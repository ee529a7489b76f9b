"""End a reply where it is complete, at the token that completes it.

A stop string will not do: the fence that closes a block may open one, or stand inside a string of the
program. So whoever asks for the reply judges the text, and only where it may have become complete: at the end
of a line that begins with a fence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import StoppingCriteria

__all__ = ["CompleteReplies", "ends_a_fence"]

_TAIL = 8  # tokens in which the last line is looked for before the whole reply is decoded
_FENCES = ("`", "~")


class CompleteReplies(StoppingCriteria):
    """Tells `generate` which replies of a batch are complete, and remembers their lengths.

    Args:
        decode: Text of token ids.
        stop: Whether a text is complete; None never says so.
        start: Number of tokens in a row before the replies.
        rows: Number of replies.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop: Callable[[str], bool] | None,
        start: int,
        rows: int,
    ) -> None:
        self._decode = decode
        self._stop = stop
        self._start = start
        self._breaks: dict[int, bool] = {}
        self.lengths: list[int | None] = [None] * rows

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """Which rows are complete, as booleans of shape (rows,)."""
        first = max(self._start, input_ids.shape[1] - _TAIL)
        for row, tail in enumerate(input_ids[:, first:].tolist()):
            if self.lengths[row] is None and self._fences(tail):
                reply = input_ids[row, self._start :].tolist()
                if self._stop is not None and self._stop(self._decode(reply)):
                    self.lengths[row] = len(reply)
        done = [length is not None for length in self.lengths]
        return torch.tensor(done, device=input_ids.device)

    def _fences(self, tail: list[int]) -> bool:
        """Whether the last of these tokens ended a line that begins with a fence."""
        last = tail[-1]
        if last not in self._breaks:
            self._breaks[last] = "\n" in self._decode([last])
        return self._breaks[last] and ends_a_fence(self._decode(tail))


def ends_a_fence(text: str) -> bool:
    r"""Whether the last line that is whole begins with a fence.

    Example:
        >>> ends_a_fence("print(1)\n```\n"), ends_a_fence("print(1)\n```")
        (True, False)
    """
    whole = text.rpartition("\n")[0].rstrip("\n")
    return whole.rpartition("\n")[2].lstrip().startswith(_FENCES)
