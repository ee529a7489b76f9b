"""Which layout does a folder have? Other people's formats, each a module with the same three functions."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from wmrl_envs.autoresearch.competition import Competition, Split
from wmrl_envs.autoresearch.sources import dsbench, mle_bench, mle_dojo
from wmrl_envs.autoresearch.sources.splits import split_of

__all__ = ["FORMATS", "Format", "foreign_competition", "foreign_names"]


class Format(Protocol):
    """What a module offers that reads a layout."""

    def holds(self, data_root: Path, name: str) -> bool:
        """Whether the folder holds that competition in this layout."""
        ...

    def names(self, data_root: Path) -> list[str]:
        """Names of the competitions that a folder holds in this layout."""
        ...

    def read(self, data_root: Path, name: str, code_root: Path | None = None) -> Competition:
        """Read a competition.

        Raises:
            CompetitionError: A file is missing or wrong.
        """
        ...


FORMATS: tuple[Format, ...] = (mle_dojo, mle_bench, dsbench)


def foreign_names(data_root: Path, split: Split | None = None) -> list[str]:
    """Names of the competitions in other people's layouts that a folder holds.

    Args:
        data_root: The folder.
        split: Only those that are in that split of the paper (`wmrl_envs.autoresearch.sources.splits`).
    """
    names = {name for layout in FORMATS for name in layout.names(data_root)}
    return sorted(name for name in names if split is None or split_of(name) == split)


def foreign_competition(data_root: Path, name: str, code_root: Path | None = None) -> Competition | None:
    """A competition in one of other people's layouts, None if the folder holds no such thing.

    Raises:
        CompetitionError: It is there, but a file of it is missing or wrong.
    """
    for layout in FORMATS:
        if layout.holds(data_root, name):
            return layout.read(data_root, name, code_root)
    return None
