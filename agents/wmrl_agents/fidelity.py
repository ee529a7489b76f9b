"""``wmrl fidelity``: a world model is asked about solutions that were really executed, and measured."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from wmrl_agents.executed import Executed, error_type, executed_in_run, play_and_execute, some_groups
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.parts import (
    OTHER_WORLD_MODELS,
    OWN_POLICY,
    load_competitions,
    load_language_model,
    load_playing_policy,
    load_policy,
    make_executor,
    make_world_model,
)
from wmrl_agents.measurement import ERRORS, Measurement, expectations, shown
from wmrl_agents.report.fidelity_page import write_fidelity_page
from wmrl_agents.runs import EXECUTIONS, is_run, load_run
from wmrl_agents.train import prepare_libraries, say
from wmrl_envs.errors import ConfigError
from wmrl_rewards.bounds import training_bounds
from wmrl_rewards.fidelity import Fidelity, Judged, measure_fidelity
from wmrl_rewards.language_models.base import LanguageModel
from wmrl_rewards.prediction import Prediction, WorldModel
from wmrl_rewards.world_models.learned import LearnedWorldModel
from wmrl_rewards.world_models.predicted_evaluator import prediction_request

__all__ = ["ask", "measure", "world_model_fidelity"]

PREDICTIONS = "predictions.sqlite"
BATCH = 64
PROBLEMS_SHOWN = 5


def world_model_fidelity(
    source: str,
    *,
    base: Mapping[str, Any],
    flags: Mapping[str, Any],
    trajectories: int = 32,
    every_turn: bool = False,
    limit: int | None = None,
    output: Path | None = None,
) -> int:
    """Measure a world model, print a table, and write the numbers and a page.

    Args:
        source: Run directory, or a policy that plays now: a model directory or name, or an endpoint.
        base: Settings for a policy.
        flags: Settings that override those of a run; the world model among them.
        trajectories: Episodes on each competition that a policy plays.
        every_turn: Ask about every executed program, not only about those that gave a trajectory its score.
        limit: Ask about no more solutions than that, whole groups at random.
        output: Where the numbers go, as JSON, with the page beside them; None chooses a place and says it.

    Returns:
        Exit code of the command.
    """
    for name, number in (("trajectories", trajectories), ("limit", limit)):
        if number is not None and number < 1:
            raise ConfigError(f"--{name} must be at least 1, not {number}.")
    console, run_dir = Console(), Path(source)
    of_run = is_run(run_dir)
    if of_run:
        config = load_run(run_dir).replace(**flags)
    else:
        config = GRPOConfig.from_mapping({**base, **flags, "policy": source})
    if config.task_suite != "autoresearch":
        raise ConfigError(
            "wmrl fidelity asks about programs; of a robot's world model the run's own log says how it does: "
            "score_real beside score_predicted, eta2 and blind."
        )
    output = output or _place(run_dir if of_run else Path("runs"), config, None if of_run else source)
    if output.suffix == ".html":
        raise ConfigError(
            f"--output names the JSON file, {output.with_suffix('.json')}; the page goes beside it."
        )
    prepare_libraries(config)
    world_model = _world_model(config, output.parent / PREDICTIONS)
    if of_run:
        executed = executed_in_run(run_dir, config, every_turn)
        if not executed:
            raise ConfigError(
                f"The run in {run_dir} has executed nothing that has a score: "
                "name a policy, to execute some now."
            )
    else:
        say(console, f"playing {trajectories} episodes on each competition ...")
        with make_executor(config, output.parent / EXECUTIONS) as executor:
            competitions = load_competitions(config)
            policy = load_playing_policy(config, source)
            executed = play_and_execute(policy, competitions, config, executor, trajectories, every_turn)
    predictions = ask(console, world_model, some_groups(executed, limit, config.seed))
    measurement = measure(predictions, config, source)
    _print(console, measurement)
    _write(measurement, output, config)
    say(console, f"numbers: {output}\nreport: {output.with_suffix('.html')}")
    return 0


def _place(folder: Path, config: GRPOConfig, policy: str | None) -> Path:
    """Where the numbers go if nobody says it."""
    names = [re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") for name in (policy, config.world_model) if name]
    return folder / f"fidelity-{'-'.join(names)}.json"


def _world_model(config: GRPOConfig, store: Path) -> WorldModel:
    """The config's world model, with its predictions kept if anything names its weights."""
    model: LanguageModel
    if config.world_model in OTHER_WORLD_MODELS:
        return OTHER_WORLD_MODELS[config.world_model](config)
    if config.world_model == OWN_POLICY:
        model = load_policy(config, config.policy).language_model  # type: ignore[attr-defined]
    else:
        model = load_language_model(config)
    if config.prediction_cache is None and getattr(model, "fingerprint", None) is not None:
        config = config.replace(prediction_cache=str(store))
    return make_world_model(config, model)


def ask(
    console: Console, world_model: WorldModel, executed: Sequence[Executed]
) -> list[tuple[Executed, Prediction]]:
    """Ask the world model about each solution, in batches.

    One that learns is asked group by group and told the truth after each, as in a run.
    """
    learner = world_model if isinstance(world_model, LearnedWorldModel) else None
    batches = _batches(executed) if learner is None else _groups(executed)
    predictions: list[Prediction] = []
    for batch in track(batches, description="predicting", console=console, disable=not console.is_terminal):
        requests = [prediction_request(one.solution, "public") for one in batch]
        predictions += world_model.predict(requests)
        if learner is not None:
            learner.learn(requests, [one.score for one in batch])
    return list(zip(executed, predictions, strict=True))


def _batches(executed: Sequence[Executed]) -> list[Sequence[Executed]]:
    return [executed[start : start + BATCH] for start in range(0, len(executed), BATCH)]


def _groups(executed: Sequence[Executed]) -> list[list[Executed]]:
    return [list(group) for _, group in groupby(executed, key=lambda one: one.group)]


def measure(
    predictions: Sequence[tuple[Executed, Prediction]], config: GRPOConfig, source: str
) -> Measurement:
    """Measure what a world model said of executed solutions.

    Args:
        predictions: Executed solutions, and what it said of each.
        config: The plan of training that the theorems are asked about.
        source: Where the solutions are from.
    """
    fidelity = measure_fidelity([_judged(*pair) for pair in predictions], seed=config.seed)
    bounds = training_bounds(
        fidelity,
        groups_per_step=config.groups_per_step,
        group_size=config.group_size,
        anchor_fraction=config.anchor_fraction,
        steps=config.steps,
    )
    return Measurement(config.world_model, source, fidelity, bounds)


def _judged(executed: Executed, prediction: Prediction) -> Judged:
    outcome = prediction.outcome
    known = [count for count in (prediction.prompt_tokens, prediction.new_tokens) if count is not None]
    status = "missing"
    if prediction.score is not None:
        status = "ok" if outcome is None else outcome.status
    stderr = "" if outcome is None or outcome.outcome is None else outcome.outcome.stderr
    return Judged(
        task=executed.task,
        group=executed.group,
        real=executed.score,
        predicted=prediction.score,
        real_status=executed.status,
        predicted_status=status,
        real_error=executed.error,
        predicted_error=error_type(stderr),
        samples=prediction.samples,
        problem=prediction.error,
        real_seconds=executed.seconds,
        seconds=prediction.seconds,
        tokens=sum(known) if known else None,
    )


def _print(console: Console, measurement: Measurement) -> None:
    fidelity = measurement.fidelity
    title = (
        f"{measurement.world_model} on {fidelity.solutions} solutions of {measurement.source}: "
        f"{fidelity.tasks} tasks, {fidelity.groups} groups, {fidelity.informative_groups} of them informative"
    )
    table = Table(title=title, title_justify="left")
    for heading in ("", "as predicted", f"debiased (cross-fitted by {fidelity.cross_fitted_by})"):
        table.add_column(heading, justify="left" if not heading else "right")
    for label, name in ERRORS:
        table.add_row(label, shown(getattr(fidelity.raw, name)), shown(getattr(fidelity.calibrated, name)))
    console.print(table)
    console.print(_confusion(fidelity))
    agreed, chance, errors = fidelity.status_agreement, fidelity.status_by_chance, fidelity.error_agreement
    lines = [
        f"status predicted right: {agreed:.1%} (by chance {chance:.1%}); "
        f"type of error: {'-' if errors is None else f'{errors:.1%}'}",
        f"without a readable answer: {fidelity.unreadable:.1%}",
        *(f"  {count} x {problem}" for problem, count in list(fidelity.problems.items())[:PROBLEMS_SHOWN]),
        f"a prediction: {shown(fidelity.seconds)} s, {shown(fidelity.tokens)} tokens; "
        f"an execution: {shown(fidelity.real_seconds)} s",
        *expectations(measurement),
    ]
    for line in lines:
        say(console, line)


def _confusion(fidelity: Fidelity) -> Table:
    """Executed statuses down, predicted ones across."""
    columns = sorted({status for row in fidelity.statuses.values() for status in row})
    table = Table(title="How they ended (rows), and were predicted to end (columns)", title_justify="left")
    table.add_column("")
    for status in columns:
        table.add_column(status, justify="right")
    for real, row in fidelity.statuses.items():
        table.add_row(real, *(str(row.get(status, 0)) for status in columns))
    return table


def _write(measurement: Measurement, output: Path, config: GRPOConfig) -> None:
    numbers = {
        "world_model": measurement.world_model,
        "source": measurement.source,
        "settings": asdict(config),
        "fidelity": _named(measurement.fidelity),
        "bounds": asdict(measurement.bounds),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    write_fidelity_page(measurement, output.with_suffix(".html"))


def _named(value: Any) -> Any:
    """Dataclasses and named tuples as dictionaries, through and through."""
    if hasattr(value, "_asdict"):
        return {name: _named(part) for name, part in value._asdict().items()}
    if hasattr(value, "__dataclass_fields__"):
        return {name: _named(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {name: _named(part) for name, part in value.items()}
    return [_named(part) for part in value] if isinstance(value, list | tuple) else value
