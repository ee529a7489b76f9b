"""Read a world model's answer: tolerant of its form, never of its doubt.

The form that is asked for is the environment's own (see `wmrl_envs.autoresearch.prompts.outcome_text`)::

    status: ok
    roc_auc: 0.9712

Case, Markdown, bullets, fences, JSON, a sentence around a number and thinking before it do no harm. What is
refused is an answer that leaves something open: two statuses, two values, a range, a value that the metric
cannot take. A refused answer has no score; it is never guessed at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

from wmrl_rewards.world_models.prompts import SCHEMA

__all__ = ["Answer", "UnreadableAnswerError", "read_answer"]


class UnreadableAnswerError(ValueError):
    """The answer does not say what was asked; the sentence says what is wrong with it."""


@dataclass(frozen=True)
class Answer:
    """What a world model says would happen.

    Attributes:
        status: Status of the outcome or, where the run itself is fine, of the grade.
        value: The number that was asked for; None unless the status is ``ok``.
        message: What is wrong with the submission, if the answer says so.
        stdout: Predicted standard output.
        stderr: Predicted standard error.
    """

    status: str
    value: float | None = None
    message: str = ""
    stdout: str = ""
    stderr: str = ""


_STATUSES = {
    "ok": ("ok", "success", "successful", "succeeded"),
    "error": ("error", "failed", "failure", "crash", "crashed", "exception"),
    "timeout": ("timeout", "timed out", "time out"),
    "oom": ("oom", "out of memory"),
    "output_limit": ("output limit",),
    "no_submission": ("no submission",),
    "unreadable": ("unreadable",),
    "bad_columns": ("bad columns",),
    "bad_ids": ("bad ids",),
    "bad_values": ("bad values",),
    "metric_error": ("metric error",),
}
# Longest first, so that "metric error" is not read as "error".
_PHRASES = sorted(
    ((phrase, status) for status, phrases in _STATUSES.items() for phrase in phrases),
    key=lambda pair: len(pair[0]),
    reverse=True,
)
_ANY_PHRASE = re.compile(r"\b(" + "|".join(phrase for phrase, _ in _PHRASES) + r")\b")
_BULLETS = r"[ \t*_`\"'>#•-]*"
_MARKS = r"[ \t*_`\"']*"  # no minus: it may be a number's
_STATUS = re.compile(rf"\bstatus\b{_MARKS}(?:[:=]|\bis\b)(?P<rest>.*)", re.IGNORECASE)
_STREAM = re.compile(rf"^{_BULLETS}(?P<name>stdout|stderr){_MARKS}:{_MARKS}(?P<rest>.*)$", re.IGNORECASE)
_MESSAGE = re.compile(rf"^{_BULLETS}message{_MARKS}:\s*(?P<rest>.+)$", re.IGNORECASE | re.MULTILINE)
_SHARE = (0.0, 1.0)
_OBJECT_FIELDS = frozenset(SCHEMA["properties"])
_MOST_FIELDS = 64  # of an object that was cut off, so that no long text is parsed over and over
_FENCE = re.compile(r"^\s*(?:`{3,}|~{3,})\w*\s*$")
_NUMBER = r"(?P<number>[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?)"
# What makes a number a part of something else: more digits, a unit, a range.
_NO_MORE = r"(?![\d.,]*\d|\w|\s*%|\s*(?:-|–|to\b|or\b|±|\+/-|/)\s*\.?\d)"
_BEFORE_NAME = (
    r"(?:^|[,;({]|\b(?:the|an?|predicted|expected|estimated|final|hidden|test|public|private|with|and)\b)"
)


def read_answer(text: str, name: str, bounds: tuple[float, float], finished: bool = True) -> Answer:
    """Read an answer.

    Args:
        text: The reply of the world model.
        name: Name of the number that was asked for: a metric's, or ``percentile``.
        bounds: Smallest and largest value that it can take.
        finished: Whether the model ended the reply itself. Of a reply that was cut off the last line, or the
            last field of a JSON object, is not read: it may hold half a number.

    Raises:
        UnreadableAnswerError: The answer leaves open what would happen.
    """
    text = _without_thinking(text)
    found = _as_json(text if finished else _complete_lines(text))
    if found is None and not finished:
        found = _complete_fields(text)
    if found is not None and "status" in found and _OBJECT_FIELDS.issuperset(found):
        return _read_object(found, name, bounds)
    if found is not None:
        text = "\n".join(f"{key}: {value}" for key, value in _flat(found))
    elif not finished:
        text = _complete_lines(text)
    head, streams = _split_streams(text)
    status = _read_status(head)
    return Answer(
        status=status,
        value=_read_value(head, name, bounds) if status == "ok" else None,
        message="" if (message := _MESSAGE.search(head)) is None else message["rest"].strip(),
        stdout=streams["stdout"],
        stderr=streams["stderr"],
    )


def _read_object(found: dict[str, Any], name: str, bounds: tuple[float, float]) -> Answer:
    """The object that the schema asks for; its feedback is what the run or the grading says."""
    status = _read_status(f"status: {found['status']}")
    error, line, feedback = (_field(found, key) for key in ("error_type", "error_line", "feedback"))
    if status == "ok":
        value = _read_value(f"{name}: {_field(found, 'value')}", name, bounds)
        return Answer(status, value, stdout=feedback)
    if status != "error":
        return Answer(status, message=feedback)
    place = f'File "solution.py", line {line}\n' if line else ""
    message = feedback if not error or feedback.startswith(error) else f"{error}: {feedback}"
    return Answer(status, stderr=(place + message).strip())


def _field(found: dict[str, Any], key: str) -> str:
    return "" if found.get(key) is None else str(found[key]).strip()


def _without_thinking(text: str) -> str:
    """What stands after the thinking; a template may have opened it before the reply began."""
    if "</think>" not in text and "<think>" in text:
        raise UnreadableAnswerError("The answer ended while the world model was still thinking.")
    return text.rpartition("</think>")[2]


def _complete_lines(text: str) -> str:
    return text.rpartition("\n")[0]


def _as_json(text: str) -> dict[str, Any] | None:
    """The JSON object that the answer is (fences and prose around it aside), or None."""
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start or _STATUS.search(text[:start]):
        return None
    return _loaded(text[start : end + 1])


def _complete_fields(text: str) -> dict[str, Any] | None:
    """The fields of a JSON object that was cut off, without the last one; None if it is no such object."""
    start = text.find("{")
    if start < 0 or _STATUS.search(text[:start]):
        return None
    commas = [match.start() for match in re.finditer(",", text) if match.start() > start]
    loaded = (_loaded(text[start:comma] + "}") for comma in reversed(commas[:_MOST_FIELDS]))
    return next((found for found in loaded if found is not None), None)


def _loaded(text: str) -> dict[str, Any] | None:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _flat(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Leaves of nested objects; outputs last, where they can run over many lines."""
    streams = []
    for key, value in found.items():
        if isinstance(value, dict):
            yield from _flat(value)
        elif key.lower() in ("stdout", "stderr"):
            streams.append((key, value or ""))
        elif value is not None:
            yield key, value
    yield from streams


def _split_streams(text: str) -> tuple[str, dict[str, str]]:
    """The lines before the first output stream, and the streams."""
    parts: dict[str, list[str]] = {"head": [], "stdout": [], "stderr": []}
    current = "head"
    for line in text.splitlines():
        if _FENCE.match(line):
            continue
        if (stream := _STREAM.match(line)) is not None:
            current, line = stream["name"].lower(), stream["rest"]
        parts[current].append(line)
    head, stdout, stderr = ("\n".join(parts[name]).strip() for name in ("head", "stdout", "stderr"))
    return head, {"stdout": stdout, "stderr": stderr}


def _read_status(head: str) -> str:
    rests = [re.sub(r"[\W_]+", " ", found["rest"].lower()) for found in _STATUS.finditer(head)]
    if not rests:
        raise UnreadableAnswerError("The answer names no status.")
    statuses = {dict(_PHRASES)[phrase] for rest in rests for phrase in _ANY_PHRASE.findall(rest)}
    opening = all(re.match(rf" ?{_ANY_PHRASE.pattern}", rest) for rest in rests)
    if len(statuses) != 1 or not opening:
        raise UnreadableAnswerError(
            f"The answer does not name one known status, but '{rests[0].strip()[:60]}'."
        )
    return statuses.pop()


def _read_value(head: str, name: str, bounds: tuple[float, float]) -> float:
    spelled = r"[\s_-]*".join(re.escape(part) for part in name.split("_"))
    pattern = (
        rf"{_BEFORE_NAME}{_BULLETS}{spelled}(?:[\s_-]+(?:score|value))?{_MARKS}"
        rf"(?:[:=≈~]|\b(?:is|of|be)\b){_MARKS}(?:about|around|approximately|roughly|[≈~])?{_MARKS}"
        rf"{_NUMBER}(?P<percent>\s*%)?{_NO_MORE}"
    )
    matches = list(re.finditer(pattern, head, re.IGNORECASE | re.MULTILINE))
    values = {float(found["number"]) / (100 if found["percent"] else 1) for found in matches}
    if len(values) != 1:
        problem = f"several values of {name}" if values else f"no value of {name}"
        raise UnreadableAnswerError(f"The answer gives {problem}.")
    value = values.pop()
    if bounds != _SHARE and any(found["percent"] for found in matches):
        raise UnreadableAnswerError(f"The answer gives {name} in percent, which it is not measured in.")
    if not (isfinite(value) and bounds[0] <= value <= bounds[1]):
        raise UnreadableAnswerError(f"The answer gives {name} = {value:g}, which it cannot be.")
    return value
