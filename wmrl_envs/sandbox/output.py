"""Keeping a program's output: bounded while it runs, readable and harmless afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["Capture", "hide_homes", "readable"]

# CSI and OSC sequences, then every other two-byte escape: what a terminal would obey rather than show.
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
SYSTEM_LIBRARIES = r"/usr(?:/local)?/lib/python3(?:\.\d+)?"
PYTHON = "/python"
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


def hide_homes(text: str, homes: Iterable[Path] = ()) -> str:
    """Write ``/python`` for where the interpreter and its libraries lie.

    An agent reads tracebacks: with the paths of one machine in them it would go on otherwise than on another.

    Args:
        text: A program's output.
        homes: Folders of the interpreter besides those that belong to the system.

    Example:
        >>> hide_homes('File "/home/me/env/lib/python3.12/site-packages/x.py"', [Path("/home/me/env")])
        'File "/python/site-packages/x.py"'
    """
    folders = [rf"{re.escape(str(home))}(?:/lib/python3(?:\.\d+)?(?![\w.]))?" for home in homes]
    return re.sub(rf"(?<![\w./-])(?:{'|'.join([*folders, SYSTEM_LIBRARIES])})(?![\w.-])", PYTHON, text)
