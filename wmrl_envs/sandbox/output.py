"""Keeping a program's output: bounded while it runs, readable and harmless afterwards."""

from __future__ import annotations

import re

__all__ = ["Capture", "readable"]

# CSI and OSC sequences, then every other two-byte escape: what a terminal would obey rather than show.
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class Capture:
    """The head and the tail of a stream of bytes, in bounded memory.

    Args:
        limit: Bytes to keep; a longer stream loses its middle.
    """

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._head_size = limit // 2
        self._tail_size = limit - self._head_size
        self._head = bytearray()
        self._tail = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total += len(chunk)
        room = self._head_size - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        # Trimmed at twice the size, so that a byte is moved once and not at every chunk.
        if len(self._tail) > 2 * self._tail_size:
            del self._tail[: -self._tail_size]

    def text(self) -> str:
        """What was kept, decoded, with a note where the middle is missing."""
        tail = self._tail[-self._tail_size :]
        missing = self.total - len(self._head) - len(tail)
        if missing == 0:
            return readable(bytes(self._head + tail))
        return f"{readable(bytes(self._head))}\n... [{missing} bytes cut] ...\n{readable(bytes(tail))}"


def readable(raw: bytes) -> str:
    """Decode output so that it can be shown and put into a prompt: no terminal escapes, no control codes."""
    text = raw.decode("utf-8", errors="replace").replace("\r\n", "\n")
    return CONTROLS.sub("", ESCAPES.sub("", text))
