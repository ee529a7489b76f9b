"""What an agent learns when it asks: ``request_info`` and the name of what it wants to see.

Every answer comes from what is public, and is short whatever the files are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wmrl_envs.autoresearch.competition import Competition
from wmrl_envs.autoresearch.prompts import column_names, task_text

__all__ = ["INFORMATION", "information"]

_ROWS_SHOWN = 6
_LINE_CHARACTERS = 300
_FILES_SHOWN = 50


def information(competition: Competition, wanted: str = "") -> str:
    """Answer a request.

    Args:
        competition: The competition that is asked about.
        wanted: One of `INFORMATION`; empty asks for the overview.

    Returns:
        The answer; a sentence on what can be asked for, where there is no such information.
    """
    answer = INFORMATION.get(wanted or "overview")
    if answer is None:
        names = ", ".join(INFORMATION)
        problem = f"There is no information called '{wanted}': ask for one of {names}."
        return f"status: request_info\nmessage: {problem}"
    return answer(competition)


def _sample_submission(competition: Competition) -> str:
    """The first lines of the sample submission; not more is read, however long its lines are."""
    with competition.sample_path.open("rb") as file:
        head = file.read(_ROWS_SHOWN * _LINE_CHARACTERS).decode("utf-8", errors="replace")
    lines = [line[:_LINE_CHARACTERS] for line in head.splitlines()[:_ROWS_SHOWN]]
    return "\n".join([f"The first lines of {competition.sample_path.name}:", *lines])


def _data_structure(competition: Competition) -> str:
    """Every file with its size, and the columns of tables."""
    files = sorted(path for path in competition.public_dir.rglob("*") if path.is_file())
    lines = [_file_line(competition, path) for path in files[:_FILES_SHOWN]]
    if len(files) > _FILES_SHOWN:
        lines.append(f"- ... {len(files) - _FILES_SHOWN:,} more files")
    return "\n".join(["Files in DATA_DIR:", *lines])


def _file_line(competition: Competition, path: Path) -> str:
    columns = column_names(path) if path.suffix == ".csv" else ""
    name = path.relative_to(competition.public_dir).as_posix()
    return f"- {name} ({path.stat().st_size:,} bytes){': ' if columns else ''}{columns}"[:_LINE_CHARACTERS]


def _name(competition: Competition) -> str:
    return f"The competition is called {competition.name}."


def _metadata(competition: Competition) -> str:
    metric = competition.metric
    return "\n".join(
        [
            f"title: {competition.title}",
            f"category: {competition.category}",
            f"metric: {metric.name}, {metric.direction}",
            f"id column: {competition.id_column}",
            f"target columns: {', '.join(competition.target_columns)}"[:_LINE_CHARACTERS],
        ]
    )


INFORMATION: dict[str, Callable[[Competition], str]] = {
    "overview": task_text,
    "sample_submission": _sample_submission,
    "data_structure": _data_structure,
    "name": _name,
    "metadata": _metadata,
}
"""What can be asked for, and who answers."""
