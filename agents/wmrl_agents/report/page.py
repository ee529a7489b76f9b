"""`write_report`: one self-contained HTML page about a run, without scripts and without the network.

Everything in the page goes through a template that escapes; what an agent wrote is cleaned before. A content
security policy in the page forbids scripts and requests, should something slip through after all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from wmrl_agents.grpo.metrics import blindness, machine_failures
from wmrl_agents.report.evaluations import Tile, evaluation_table, evaluation_tiles
from wmrl_agents.report.excerpts import clean, pick_excerpts
from wmrl_agents.report.figures import all_figures
from wmrl_agents.report.robots import robot_page
from wmrl_agents.report.run_data import RunData, read_run
from wmrl_agents.report.svg import format_number
from wmrl_agents.report.trainer_figures import trainer_figures
from wmrl_agents.runs import CONFIG

__all__ = ["render_page", "write_page", "write_report"]


def write_report(run_dir: str | Path) -> Path:
    """Write ``report/index.html`` into a run directory.

    A run that has not finished, was killed, or was made without a world model gives a page that says what is
    missing.

    Args:
        run_dir: The run's directory.

    Returns:
        Path of the page.

    Raises:
        ConfigError: There is no run in the directory, or one of its files is not what it should be.
    """
    run = read_run(Path(run_dir))
    return write_page(run.path / "report" / "index.html", _render(run))


def write_page(path: Path, text: str) -> Path:
    """Write a page aside and rename it, so that one that has its name is whole.

    Returns:
        Its path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
    return path


def render_page(template: str, **values: Any) -> str:
    """A page of a template that extends ``base.html``.

    Args:
        template: Name of the template.
        values: Its values; ``base.html`` needs title, heading, lead, notices and tiles.
    """
    return _templates().get_template(template).render(css=Markup(_read("page.css")), **values)


def _render(run: RunData) -> str:
    return render_page(
        "page.html",
        title=f"WMRL run {run.name}",
        heading=run.name,
        lead=_lead(run),
        notices=_notices(run),
        tiles=[*evaluation_tiles(run), *_run_tiles(run)],
        run=run,
        evaluation=evaluation_table(run),
        robots=None if run.config.task_suite == "autoresearch" else robot_page(run.path),
        figures=[*all_figures(run), *trainer_figures(run)],
        excerpts=pick_excerpts(run),
        settings=clean((run.path / CONFIG).read_text(encoding="utf-8")),
        environment=json.dumps(run.environment, indent=2),
    )


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_read),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(clean=clean, number=format_number, words=lambda word: word.replace("_", " "))
    return environment


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _lead(run: RunData) -> str:
    config = run.config
    judge = f"judged by {config.world_model}" if config.uses_world_model else "judged by execution alone"
    return (
        f"{config.policy}, {judge}; rewards: {config.reward_source}; {len(run.metrics)} of {config.steps} "
        f"steps of {config.groups_per_step} groups of {config.group_size}."
    )


def _notices(run: RunData) -> list[str]:
    notices = [clean(run.stopped)] if run.stopped else []
    if not run.finished:
        notices.append(
            f"This run has not finished: {len(run.metrics)} of {run.config.steps} steps are made. Go on with "
            f"`wmrl train --resume {run.path}`."
        )
    blind = blindness(run.metrics, run.config.ignores_blind)
    if blind:
        notices.append(blind)
    failures = {"training": machine_failures(run.metrics)}
    failures |= {
        f"the evaluation {name}": dict(evaluation.get("missing_reasons", {}))
        for name, evaluation in (("before", run.before), ("after", run.after))
        if evaluation is not None
    }
    return notices + [_failed(where, reasons) for where, reasons in failures.items() if reasons]


def _failed(where: str, reasons: Mapping[str, int]) -> str:
    said = "; ".join(f"{count} times: {clean(reason)}" for reason, count in reasons.items())
    return f"In {where} {sum(reasons.values())} scores are missing by the machine's fault. {said}"


def _run_tiles(run: RunData) -> list[Tile]:
    """What the steps themselves say."""
    if not run.metrics:
        return []
    used = sum(step["executions"] for step in run.metrics)
    would_use = sum(step["executions_real_would_use"] for step in run.metrics)
    last = run.metrics[-1]
    tiles = [
        Tile(
            "Executions",
            format_number(used),
            f"{used / would_use:.0%} of the {format_number(would_use)} of real execution"
            if would_use
            else "",
        )
    ]
    if run.stored is not None and run.stored.rechecked:
        detail = f"of {format_number(run.stored.rechecked)} stored programs that were run twice"
        tiles.append(Tile("Not repeatable", format_number(run.stored.differing), detail))
    if run.config.uses_world_model:
        fitted = f"fitted at {last['pairs_at_fit']} pairs" if last["fitted"] else "not fitted"
        noise = f"η̂² {format_number(last['eta2'])}, {format_number(last['pairs'])} pairs, map {fitted}"
        tiles.append(Tile("Anchor weight ρ", format_number(last["rho"]), noise))
    return tiles
