"""``wmrl fidelity``: a world model is asked about solutions that were really executed, and measured."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from wmrl_agents.executed import Executed, error_type, executed_in_run, play_and_execute, some_groups
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.parts import (
    OWN_POLICY,
    load_competitions,
    load_language_model,
    load_playing_policy,
    load_policy,
    make_executor,
    make_world_model,
)
from wmrl_agents.runs import EXECUTIONS, is_run, load_run
from wmrl_agents.train import prepare_libraries, say
from wmrl_envs.errors import ConfigError
from wmrl_rewards.bounds import Bounds, training_bounds
from wmrl_rewards.estimates import Estimate
from wmrl_rewards.fidelity import Fidelity, Judged, measure_fidelity
from wmrl_rewards.language_models.base import LanguageModel
from wmrl_rewards.prediction import Prediction, WorldModel
from wmrl_rewards.world_models.predicted_evaluator import prediction_request

__all__ = ["ERRORS", "Measurement", "ask", "expectations", "measure", "shown", "world_model_fidelity"]

PREDICTIONS = "predictions.sqlite"
BATCH = 64
# Row of the table, field of `ScoreErrors`.
ERRORS = (
    ("mean absolute error", "absolute_error"),
    ("mean error", "mean_error"),
    ("bias B (largest on a level)", "bias"),
    ("bias, root mean square", "typical_bias"),
    ("noise sigma (largest on a level)", "noise"),
    ("noise, root mean square", "typical_noise"),
    ("eta² (1 and more: no signal in a group)", "eta2"),
    ("rank correlation in a group", "rank_in_group"),
    ("rank correlation over all tasks", "rank_overall"),
)


@dataclass(frozen=True)
class Measurement:
    """A world model, what it was asked about, and what came of it.

    Attributes:
        world_model: Its name.
        source: The run or policy whose solutions it was asked about.
        fidelity: The numbers.
        bounds: What the theorems say with them.
    """

    world_model: str
    source: str
    fidelity: Fidelity
    bounds: Bounds


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
    output = output or _place(run_dir if of_run else Path("runs"), config, None if of_run else source)
    if output.suffix == ".html":
        raise ConfigError(
            f"--output names the JSON file; the page goes beside it: {output.with_suffix('.json')}."
        )
    prepare_libraries(config)
    world_model = _world_model(config, output.parent / PREDICTIONS)
    if of_run:
        executed = executed_in_run(run_dir, config, every_turn)
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
    names = [name for name in (policy, config.world_model) if name is not None]
    return (
        folder
        / f"fidelity-{'-'.join(re.sub(r'[^A-Za-z0-9.]+', '-', name).strip('-') for name in names)}.json"
    )


def _world_model(config: GRPOConfig, store: Path) -> WorldModel:
    """The config's world model, with its predictions kept if anything names its weights."""
    model: LanguageModel
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
    """Ask the world model about each solution, in batches."""
    requests = [prediction_request(one.solution, "public") for one in executed]
    predictions: list[Prediction] = []
    for start in track(
        range(0, len(requests), BATCH),
        description="predicting",
        console=console,
        disable=not console.is_terminal,
    ):
        predictions += world_model.predict(requests[start : start + BATCH])
    return list(zip(executed, predictions, strict=True))


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


def expectations(measurement: Measurement) -> list[str]:
    """What the numbers let one expect of training with this world model, a sentence each."""
    fidelity, bounds = measurement.fidelity, measurement.bounds
    eta2 = fidelity.calibrated.eta2
    lines = []
    if eta2.value is None:
        lines.append("No group has solutions of different real scores, so there is nothing to say of groups.")
    else:
        lines.append(
            f"A step of {bounds.groups_per_step} groups, {bounds.anchors_per_step} of them executed, is worth "
            f"about {shown(bounds.effective_groups)} executed groups: a predicted group's gradient is "
            f"{shown(bounds.variance_ratio)} times as noisy as an executed one's."
        )
        if eta2.value >= 1 or (eta2.high is not None and eta2.high >= 1):
            lines.append(
                "There may be no signal inside groups at all: do not expect more than from anchors alone."
            )
    lines.append(
        f"Bound on what bias costs: {shown(bounds.bias_term)} M²/μ without debiasing; "
        f"{shown(bounds.bias_term_calibrated)} M²/μ with what a map from other tasks leaves. Bound on what noise "
        f"costs: {shown(bounds.noise_term)} γLM²/μ."
    )
    if bounds.t0 is None:
        lines.append(
            "Mean predictions do not rise from one level of the real score to the next: Theorem 4 promises "
            "nothing about how fast the bias goes away."
        )
    else:
        lines.append(
            f"By Theorem 4 the bound on the bias has halved after T₀ = {shown(bounds.t0)} steps, and is divided by "
            f"{shown(bounds.contraction)} after {bounds.steps}."
        )
    if fidelity.real_seconds and fidelity.seconds:
        ratio = fidelity.real_seconds / fidelity.seconds
        lines.append(f"An execution takes {shown(ratio)} times as long as a prediction.")
    return lines


def shown(number: float | Estimate | None) -> str:
    """A number for people, with its interval if it has one."""
    if not isinstance(number, tuple):
        return "-" if number is None else f"{number:.3g}"
    if number.value is None:
        return "-"
    interval = "" if number.low is None else f" ({number.low:.3f} to {number.high:.3f})"
    return f"{number.value:.3f}{interval}"


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
    lines = [
        f"status predicted right: {fidelity.status_agreement:.1%} (by chance {fidelity.status_by_chance:.1%}); "
        f"type of error: {'-' if fidelity.error_agreement is None else f'{fidelity.error_agreement:.1%}'}",
        f"without a readable answer: {fidelity.unreadable:.1%}"
        + "".join(f"\n  {count} x {problem}" for problem, count in list(fidelity.problems.items())[:5]),
        f"a prediction: {shown(fidelity.seconds)} s, {shown(fidelity.tokens)} tokens; an execution: "
        f"{shown(fidelity.real_seconds)} s",
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
    from wmrl_agents.report.fidelity_page import write_fidelity_page

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
