"""Print the table of attacks for docs/sandbox.md: ``python -m tests.attack_table``.

Each row is an attack and the end that the suite holds each back end to.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.attacks import ATTACKS, Attack

PAGE = Path(__file__).parents[1] / "docs/sandbox.md"
BEGIN, END = "<!-- attacks -->\n", "<!-- end of attacks -->\n"
HEADS = ("Attack or accident", "bubblewrap", "Docker", "unsafe")


def end(status: tuple[str, str]) -> str:
    """A status as the table shows it."""
    return ", ".join(word.replace("_", " ") for word in status if word)


def row(attack: Attack) -> tuple[str, ...]:
    """One attack."""
    isolated = end(attack.status)
    watched = isolated if attack.watcher is None else f"{isolated} (watcher: {end(attack.watcher)})"
    return attack.name, watched, isolated, isolated if attack.unsafe else "**not held**"


def table() -> str:
    """The whole table."""
    rows = [HEADS, ("---",) * len(HEADS), *map(row, ATTACKS)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def with_table(page: str) -> str:
    """The page with today's table between its marks."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{table()}\n{END}", page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
