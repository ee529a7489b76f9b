"""The ends of all attacks on each back end, as the suite saw them, and the table of them in docs/sandbox.md.

A run of the suite with the environment variable WMRL_RECORD_ATTACKS set writes what it saw to
attack_results.json; ``python -m tests.attack_table`` then writes the table.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from tests.attacks import ATTACKS, MEMORY, PROCESSES, Attack

PAGE = Path(__file__).parents[1] / "docs/sandbox.md"
RESULTS = Path(__file__).with_name("attack_results.json")
SWITCH = "WMRL_RECORD_ATTACKS"
BEGIN, END = "<!-- attacks -->\n", "<!-- end of attacks -->\n"
BACK_ENDS = ("bubblewrap", "watcher", "docker", "unsafe")
HEADS = ("Attack or accident", "bubblewrap", "Docker", "unsafe")
WATCHED = [*PROCESSES, *MEMORY]  # what a control group or a watcher has to bound
NOT_HELD = "**not held**"


def meant_for(back_end: str) -> list[Attack]:
    """The attacks that are run against a back end: those that it can hold and that concern it."""
    if back_end == "watcher":
        return WATCHED
    return [attack for attack in ATTACKS if attack.unsafe] if back_end == "unsafe" else ATTACKS


def expected(back_end: str, attack: Attack) -> tuple[str, str]:
    """The end that the suite holds a back end to."""
    return attack.watcher or attack.status if back_end == "watcher" else attack.status


def words(end: tuple[str, str]) -> str:
    """An end as the table shows it."""
    return ", ".join(word.replace("_", " ") for word in end if word)


def record(back_end: str, attack: Attack, end: tuple[str, str], version: str) -> None:
    """Keep what became of an attack, if this run is one to be recorded."""
    if SWITCH not in os.environ:
        return
    results = load()
    ends = results.get("ends", {}).get(back_end, {}) | {attack.name: words(end)}
    order = [meant.name for meant in meant_for(back_end)]
    results.setdefault("ends", {})[back_end] = {name: ends[name] for name in order if name in ends}
    results.setdefault("with", {})[back_end] = version
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def load() -> dict:
    """What was recorded: ``ends`` by back end and attack, and ``with`` which versions."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def row(name: str, ends: dict[str, dict[str, str]]) -> tuple[str, ...]:
    """One attack."""
    grouped, watched = ends["bubblewrap"][name], ends["watcher"].get(name)
    both = grouped if watched in (grouped, None) else f"{grouped} (watcher: {watched})"
    return name, both, ends["docker"][name], ends["unsafe"].get(name, NOT_HELD)


def table(results: dict) -> str:
    """The whole table, and what it was made with."""
    rows = [HEADS, ("---",) * len(HEADS), *(row(attack.name, results["ends"]) for attack in ATTACKS)]
    lines = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    made = "; ".join(results["with"][back_end] for back_end in BACK_ENDS)
    return f"{lines}\nRecorded with {made}.\n"


def with_table(page: str, results: dict) -> str:
    """The page with the table of these results between its marks."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{table(results)}\n{END}", page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), load()))
