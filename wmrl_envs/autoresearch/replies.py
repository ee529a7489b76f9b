"""Read an agent's reply: a program, a request for information, the wish to submit, or none of these.

The rules, in their order:

1. What stands before ``</think>`` is thinking; nothing in it counts.
2. After the first program, a line that begins like an answer of the environment (``Observation:``,
   ``status:``) or like another speaker (``User:``, ``<|im_start|>``) is invented, and so is all after it.
3. Code is the last closed block labelled Python (```` ```python ````, ``py``, ``Python``, ``python3``;
   ``~~~`` will do), else the last closed block without a label or with an unknown one, else the last block,
   never closed: then the reply was cut, and `Reply.truncated` is set. Blocks labelled as something else
   (``bash``, ``json``, ``text`` ...) are never run.
4. A block labelled ``markdown`` is a whole reply in a wrapper: the blocks inside count. Any other block ends
   at its first bare fence that is not inside a triple-quoted string.
5. Without code: a block labelled ``submit``, or a reply that is just the word ``submit``, ends the episode
   and keeps the last evaluation. ``request_info``, alone or with the name of what is wanted, asks for
   information.
6. Everything else is malformed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["Reply", "ReplyKind", "is_complete", "parse"]

ReplyKind = Literal["code", "request_info", "submit", "malformed"]

_PYTHON = frozenset({"python", "py", "python3", "py3"})
_ACTIONS = frozenset({"submit", "request_info"})
_NOT_PYTHON = (
    "bash sh shell zsh console terminal powershell text txt plaintext output csv tsv json yaml yml toml ini "
    "xml html css markdown md diff latex sql r julia c cpp java javascript js typescript rust go"
)
_OTHER_LANGUAGES = frozenset(_NOT_PYTHON.split())
_WRAPPERS = frozenset({"markdown", "md"})
_OPENING = re.compile(r"^(?P<before>[^`~\n]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^`\n]*)$")
_INVENTED = re.compile(
    r"^[ \t#*_>]*(?:observation|status|user|human|system)[ \t*_]*:|^[ \t]*<\|", re.IGNORECASE
)
_OUTSIDE = re.compile(r"""#.*|\"\"\"|'''|"(?:\\.|[^"\\])*(?:"|$)|'(?:\\.|[^'\\])*(?:'|$)""")
_INSIDE = {quote: re.compile(rf"\\.|{quote}") for quote in ('"""', "'''")}
_ACTION = re.compile(r"^\W*(?P<action>submit|request_info)\b[\s:(\[\"']*(?P<wanted>\w*)\W*$", re.IGNORECASE)

_SURROGATE = re.compile("[\ud800-\udfff]")
_LONGEST_ACTION = 100


@dataclass(frozen=True)
class Reply:
    """What a reply says.

    Attributes:
        kind: ``code``, ``request_info``, ``submit`` or ``malformed``.
        code: The program; empty unless the kind is ``code``.
        wanted: What a request for information names, in lower case; empty if it names nothing.
        truncated: Whether the reply broke off: inside its block, or inside its thinking.
        end: Number of characters of the reply that count. What lies beyond is an invented observation;
            who keeps the dialogue should cut it there.
        problem: One sentence on why a reply is malformed; empty for other kinds.
    """

    kind: ReplyKind
    code: str = ""
    wanted: str = ""
    truncated: bool = False
    end: int = 0
    problem: str = ""


@dataclass(frozen=True)
class _Block:
    label: str
    body: str
    closed: bool

    @property
    def is_program(self) -> bool:
        return bool(self.body) and self.label not in _OTHER_LANGUAGES | _ACTIONS


def parse(text: str) -> Reply:
    """Parse a reply; any text will do, and none raises.

    Args:
        text: The reply as the agent wrote it.

    Returns:
        What it says, by the rules of this module.
    """
    end = len(text)
    if _SURROGATE.search(text):
        return Reply("malformed", end=end, problem="The reply holds characters that are not valid Unicode.")
    answer, thinking_open = _without_thinking(text)
    if thinking_open:
        return Reply("malformed", truncated=True, end=end, problem="The reply broke off while thinking.")
    blocks, kept = _blocks(answer)
    end -= len(answer) - kept
    block = _choose(blocks)
    if block is not None:
        return Reply("code", code=block.body, truncated=not block.closed, end=end)
    return _action(blocks, answer[:kept], end)


def is_complete(text: str) -> bool:
    r"""Whether the beginning of a reply holds a program that is closed whatever comes next.

    Generation may end here. A fence is whole with the end of its line, and inside a string of the program it
    closes nothing; nothing counts before the end of thinking.

    Example:
        >>> is_complete("```python\nprint(1)\n```\n"), is_complete("```python\nprint(1)\n```")
        (True, False)
    """
    answer, thinking_open = _without_thinking(text)
    whole = answer.rpartition("\n")[0]
    if thinking_open or not whole or _SURROGATE.search(whole):
        return False
    return any(block.closed and block.is_program for block in _blocks(whole, strict=True)[0])


def _action(blocks: list[_Block], answer: str, end: int) -> Reply:
    """A reply without code: an action, or malformed."""
    for block in blocks:
        if block.label in _ACTIONS:
            return _action([], f"{block.label} {block.body}", end)
    match = _ACTION.match(answer.strip()) if len(answer) <= _LONGEST_ACTION else None
    if match is None:
        problem = "The program is empty." if _is_empty_program(blocks) else "The reply holds no program."
        return Reply("malformed", truncated=any(not b.closed for b in blocks), end=end, problem=problem)
    if match["action"].lower() == "submit":
        return Reply("submit", end=end)
    return Reply("request_info", wanted=match["wanted"].lower(), end=end)


def _is_empty_program(blocks: list[_Block]) -> bool:
    return any(block.label in _PYTHON and not block.body for block in blocks)


def _without_thinking(text: str) -> tuple[str, bool]:
    """What follows the thinking, and whether the thinking never ended."""
    _, tag, answer = text.partition("</think>")
    if tag:
        return answer, False
    return text, text.lstrip().startswith("<think>")


def _choose(blocks: list[_Block]) -> _Block | None:
    programs = [block for block in blocks if block.is_program]
    for group in (
        [b for b in programs if b.closed and b.label in _PYTHON],
        [b for b in programs if b.closed],
        programs,
    ):
        if group:
            return group[-1]
    return None


def _blocks(text: str, *, nested: bool = False, strict: bool = False) -> tuple[list[_Block], int]:
    """Fenced blocks of a text, and the number of its characters before an invented observation.

    Where it is strict, there are only blocks that a line of their own closes, whatever comes after the text.
    """
    lines = text.split("\n")
    blocks: list[_Block] = []
    number, strings, answered = 0, True, False
    while number < len(lines):
        opening = _opening(lines[number])
        if opening is not None:
            wrapper = _label(opening) in _WRAPPERS and not nested
            closing, strings = _closing_line(lines, number + 1, opening, wrapper, strings, strict)
            block = _block(lines[number + 1 : closing], opening, closing is not None)
            found = _blocks(block.body, nested=True)[0] if wrapper else [block]
            blocks += [] if strict and closing is None else found
            answered = answered or any(block.is_program for block in found)
            number = len(lines) if closing is None else closing + 1
        elif answered and _INVENTED.match(lines[number]):
            return blocks, sum(len(line) + 1 for line in lines[:number])
        else:
            number += 1
    return blocks, len(text)


def _opening(line: str) -> re.Match[str] | None:
    """A line that opens a block; behind prose only if it says that Python follows."""
    match = _OPENING.match(line.rstrip())
    if match is not None and match["before"].strip() and _label(match) not in _PYTHON:
        return None
    return match


def _label(opening: re.Match[str]) -> str:
    words = opening["info"].strip("{} \t").lstrip(".").split()
    return words[0].lower() if words else ""


def _block(lines: list[str], opening: re.Match[str], closed: bool) -> _Block:
    indent = "" if opening["before"].strip() else opening["before"]
    code = "\n".join(line.removeprefix(indent).removesuffix("\r") for line in lines).strip("\n").rstrip()
    if not closed and code.endswith(opening["fence"]):  # print("done")```
        code, closed = code.removesuffix(opening["fence"]).rstrip(), True
    return _Block(_label(opening), code, closed)


def _closing_line(
    lines: list[str],
    start: int,
    opening: re.Match[str],
    wrapper: bool,
    strings: bool,
    strict: bool,
) -> tuple[int | None, bool]:
    """Number of the line that closes a block.

    Args:
        lines: Lines of the text.
        start: Number of the block's first line.
        opening: Its opening fence.
        wrapper: Whether blocks with labels may lie inside, each with a bare fence of its own.
        strings: Whether fences inside strings are passed over.
        strict: Whether one in a string that never ends closes nothing.

    Returns:
        The number, None if nothing closes the block, and `strings` for the next block: a string that never
        ends means that quotes are no guide in this text (and looking again would take quadratic time).
    """
    bare = re.compile(rf"^[ \t]*{re.escape(opening['fence'][0])}{{{len(opening['fence'])},}}\s*$")
    fallback: int | None = None
    quote, depth = "", 0
    for number in range(start, len(lines)):
        line = lines[number]
        if bare.match(line):
            if not quote and depth == 0:
                return number, strings
            fallback = number if fallback is None and not wrapper else fallback
            depth = max(depth - 1, 0)
        elif wrapper:
            inner = _opening(line)
            depth += bool(inner and _label(inner) and bare.match(inner["fence"]))
        elif strings:
            quote = _quote_after(line, quote)
    return None if strict else fallback, strings and not quote


def _quote_after(line: str, quote: str) -> str:
    """The triple quote that is open after a line, given the one that was open before; empty for none."""
    if not quote and '"""' not in line and "'''" not in line:
        return ""
    position = 0
    while match := (_INSIDE[quote] if quote else _OUTSIDE).search(line, position):
        position = match.end()
        if match.group() == quote:
            quote = ""
        elif not quote and match.group() in _INSIDE:
            quote = match.group()
    return quote
