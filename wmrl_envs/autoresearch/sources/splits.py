"""The paper's split of MLE-Dojo's competitions, made by its rule; and names that two suites share.

The rule: take MLE-Dojo's pool of 125 machine-learning competitions (``mle_dojo_pool.csv``). Tag ``Audio``:
out. Tag ``Image``: image. Tag ``NLP`` or any that contains ``Text``: text. Else tabular. The 20 smallest of
each category are taken: 15 to train on, 5 held out; ``billion-word-imputation`` is dropped. That gives 45 and
14. (By this rule three competitions on texts count as tabular: their tags do not say that they are.)
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from wmrl_envs.autoresearch.competition import CATEGORIES, Category, Split

__all__ = [
    "CONTAMINATED",
    "Overlap",
    "Task",
    "category_of",
    "find_task",
    "make_split",
    "name_overlap",
    "paper_split",
    "pool",
    "split_of",
]

POOL = Path(__file__).with_name("mle_dojo_pool.csv")
TRAIN, HELD_OUT = 15, 5
DROPPED = ("billion-word-imputation",)
CONTAMINATED = {
    "random-acts-of-pizza": "a public column gives the label away",
    "dog-breed-identification": "the test images are part of a public data set",
}


@dataclass(frozen=True)
class Task:
    """A competition of MLE-Dojo's pool.

    Attributes:
        slug: Its name.
        size_bytes: Size of its data.
        higher_is_better: Direction of its metric.
        tags: Its tags.
    """

    slug: str
    size_bytes: int
    higher_is_better: bool
    tags: tuple[str, ...]

    @property
    def category(self) -> Category | None:
        """Its category by the paper's rule, None for what the rule leaves out."""
        return category_of(self.tags)

    @property
    def metric(self) -> str:
        """What its metric is called: the last tag."""
        return self.tags[-1]

    @property
    def contamination(self) -> str | None:
        """Why a good score may mean little here, None where nothing is known."""
        return CONTAMINATED.get(self.slug)


def category_of(tags: Iterable[str]) -> Category | None:
    """The category that tags amount to by the paper's rule, None for what the rule leaves out."""
    given = set(tags)
    if "Audio" in given:
        return None
    if "Image" in given:
        return "image"
    return "text" if any(tag == "NLP" or "Text" in tag for tag in given) else "tabular"


@lru_cache(maxsize=1)
def pool() -> tuple[Task, ...]:
    """MLE-Dojo's pool of 125 competitions."""
    with POOL.open(encoding="utf-8", newline="") as file:
        return tuple(
            Task(row["slug"], int(row["size_bytes"]), row["higher_is_better"] == "True", _tags(row["tags"]))
            for row in csv.DictReader(file)
        )


def _tags(text: str) -> tuple[str, ...]:
    return tuple(text.split(";"))


def make_split(tasks: Iterable[Task]) -> dict[Split, dict[Category, list[Task]]]:
    """Apply the paper's rule to a pool.

    Returns:
        For each split and category the tasks, smallest first.
    """
    split: dict[Split, dict[Category, list[Task]]] = {"train": {}, "heldout": {}}
    ordered = sorted(tasks, key=lambda task: task.size_bytes)
    for category in CATEGORIES:
        members = [task for task in ordered if task.category == category][: TRAIN + HELD_OUT]
        split["train"][category] = [task for task in members[:TRAIN] if task.slug not in DROPPED]
        split["heldout"][category] = [task for task in members[TRAIN:] if task.slug not in DROPPED]
    return split


@lru_cache(maxsize=1)
def paper_split() -> dict[Split, dict[Category, list[Task]]]:
    """The paper's split: 45 competitions to train on and 14 held out."""
    return make_split(pool())


def find_task(slug: str) -> Task | None:
    """A competition of the pool by its name, None if it is not there."""
    return next((task for task in pool() if task.slug == slug), None)


def split_of(slug: str) -> Split:
    """``heldout`` for the paper's held-out competitions; all others may be trained on."""
    held_out = {task.slug for tasks in paper_split()["heldout"].values() for task in tasks}
    return "heldout" if slug in held_out else "train"


@dataclass(frozen=True)
class Overlap:
    """Two names, one of each suite, that may mean the same competition.

    Attributes:
        first: Name in the first suite.
        second: Name in the second one.
        kind: ``exact``; ``normalised``, equal but for case and what is no letter or digit; or ``fuzzy``,
            similar.
        similarity: In [0, 1], 1 for equal names.
    """

    first: str
    second: str
    kind: Literal["exact", "normalised", "fuzzy"]
    similarity: float


def name_overlap(first: Iterable[str], second: Iterable[str], similarity: float = 0.85) -> list[Overlap]:
    """Names that two suites share, so that nobody trains on what he evaluates on.

    Names that differ in their digits only are different competitions (``...-week-1`` and ``...-week-2``), so
    they are never called similar.

    Args:
        first: Names of one suite.
        second: Names of the other.
        similarity: Least similarity of a fuzzy match, by `difflib.SequenceMatcher` on the normalised names.

    Returns:
        Matches, the surest first, each pair once.

    Example:
        >>> [(match.second, match.kind) for match in name_overlap(["titanic"], ["Titanic", "titanics"])]
        [('Titanic', 'normalised'), ('titanics', 'fuzzy')]
    """
    found = [_compare(a, b) for a in sorted(set(first)) for b in sorted(set(second))]
    kinds = ("exact", "normalised", "fuzzy")
    matches = [match for match in found if match.kind != "fuzzy" or match.similarity >= similarity]
    return sorted(matches, key=lambda match: (kinds.index(match.kind), -match.similarity))


def _compare(first: str, second: str) -> Overlap:
    if first == second:
        return Overlap(first, second, "exact", 1.0)
    a, b = (re.sub(r"[^a-z0-9]", "", name.lower()) for name in (first, second))
    if a == b:
        return Overlap(first, second, "normalised", 1.0)
    numbered = re.sub(r"\d", "", a) == re.sub(r"\d", "", b)  # so they differ in their digits
    return Overlap(first, second, "fuzzy", 0.0 if numbered else difflib.SequenceMatcher(None, a, b).ratio())
