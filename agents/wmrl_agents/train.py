"""What ``wmrl train`` and ``wmrl evaluate`` do, step by step."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from wmrl_agents.evaluate import evaluate_policy, save_evaluation
from wmrl_agents.evaluate_robots import evaluate_robots, print_robots
from wmrl_agents.grpo.checkpoint import latest_checkpoint, newest_weights
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.embodied_rollouts import RobotTrajectory
from wmrl_agents.grpo.learners import follow
from wmrl_agents.grpo.parts import load_competitions, load_playing_policy
from wmrl_agents.grpo.ranks import Ranks
from wmrl_agents.grpo.robot_parts import load_robot_policy
from wmrl_agents.grpo.robots import RobotSuite, load_suite, numbers
from wmrl_agents.grpo.roles import ActingPolicy
from wmrl_agents.grpo.trainer import GRPOTrainer
from wmrl_agents.grpo.versions import environment_changes
from wmrl_agents.progress import shown_progress
from wmrl_agents.runs import (
    EXECUTIONS,
    STOPPED,
    continue_run,
    environment,
    is_run,
    load_run,
    read_metrics,
    refuse_run,
)
from wmrl_agents.summary import print_evaluation, print_summary
from wmrl_envs.autoresearch.competition import Half
from wmrl_envs.errors import ConfigError, InfrastructureError

__all__ = ["evaluate", "prepare_libraries", "resume", "say", "start"]

BEFORE, AFTER = "evaluation-before.json", "evaluation-after.json"
ROBOTS = "robots-"  # before these names where a robot was evaluated: the numbers are others


def start(config: GRPOConfig, run_dir: Path) -> int:
    """Train in a new run directory.

    Returns:
        Exit code of the command.

    Raises:
        ConfigError: The directory holds a run already.
    """
    with Ranks.join() as ranks:
        if not ranks.leads:
            return _follow(ranks)
        refuse_run(run_dir)
        return _run(config, run_dir)


def resume(run_dir: Path, flags: Mapping[str, Any]) -> int:
    """Go on with a run.

    Args:
        run_dir: Its directory.
        flags: Settings to change.

    Returns:
        Exit code of the command.

    Raises:
        ConfigError: There is no run, or a setting cannot change within one.
    """
    with Ranks.join() as ranks:
        if not ranks.leads:
            return _follow(ranks)
        config = load_run(run_dir).replace(**flags)
        continue_run(run_dir, config)
        done = latest_checkpoint(run_dir)
        if done is not None and done.step > config.steps:
            raise ConfigError(
                f"The run in {run_dir} has finished {done.step} steps already, not {config.steps}."
            )
        _say_what_cannot_be_exact(run_dir, config)
        return _run(config, run_dir)


def _say_what_cannot_be_exact(run_dir: Path, config: GRPOConfig) -> None:
    """Warn if the run goes on in other surroundings than it began in."""
    prepare_libraries(config)
    changes = environment_changes(_read(run_dir / "environment.json") or {}, environment())
    if changes is not None:
        say(Console(stderr=True), changes)


def _follow(ranks: Ranks) -> int:
    """Help rank 0, which alone decides when to stop: an interrupt, which all get, is for it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    follow(ranks, prepare=prepare_libraries)
    return 0


def _run(config: GRPOConfig, run_dir: Path) -> int:
    """Evaluate, train, evaluate, report."""
    from wmrl_agents.report import write_report

    console = Console()
    prepare_libraries(config)
    say(console, f"run directory: {run_dir}")
    (run_dir / STOPPED).unlink(missing_ok=True)
    try:
        with closing(GRPOTrainer(config, run_dir)) as trainer:
            finished = _train(console, trainer)
    except KeyboardInterrupt:
        finished = False
    except InfrastructureError as error:
        (run_dir / STOPPED).write_text(f"{error}\n", encoding="utf-8")
        say(console, f"report: {write_report(run_dir)}")
        raise
    if not finished:
        say(console, f"stopped; to go on: wmrl train --resume {run_dir}")
        return 130
    evaluations = _read(run_dir / BEFORE), _read(run_dir / AFTER)
    print_summary(console, config, read_metrics(run_dir), *evaluations)
    say(console, f"report: {write_report(run_dir)}")
    return 0


def _train(console: Console, trainer: GRPOTrainer) -> bool:
    """Evaluate, train and evaluate; returns whether all of it was done."""
    config, run_dir = trainer.config, trainer.run_dir
    kind = ROBOTS if isinstance(trainer.tasks, RobotSuite) else ""
    if config.evaluate_before and trainer.next_step == 0 and not (run_dir / f"{kind}{BEFORE}").is_file():
        _evaluate_run(console, trainer, f"{kind}{BEFORE}")
    with (
        _stop_on_interrupt(console) as stop,
        shown_progress(console, config.steps, read_metrics(run_dir)) as show,
    ):
        finished = trainer.train(on_step=show, should_stop=lambda: bool(stop))
    if finished and config.evaluate_after:
        _evaluate_run(console, trainer, f"{kind}{AFTER}")
    return finished


def _evaluate_run(console: Console, trainer: GRPOTrainer, name: str) -> None:
    if isinstance(trainer.tasks, RobotSuite):
        say(
            console, f"evaluating from all initial states ({trainer.config.evaluation_repeats} runs each) ..."
        )
        assert isinstance(trainer.policy, ActingPolicy)
        summary = evaluate_robots(trainer.policy, trainer.tasks, trainer.config)
        save_evaluation(summary, trainer.run_dir / name)
        print_robots(console, summary, name.removeprefix(ROBOTS).removesuffix(".json"))
        return
    say(console, f"evaluating on the private half ({trainer.config.evaluation_repeats} runs a task) ...")
    summary = evaluate_policy(
        trainer.policy, trainer.tasks, trainer.config, cache=trainer.run_dir / EXECUTIONS
    )
    save_evaluation(summary, trainer.run_dir / name)


def evaluate(
    policy: str,
    *,
    base: Mapping[str, Any],
    flags: Mapping[str, Any],
    split: Literal["train", "heldout"],
    half: Half,
    output: Path | None,
    mle_bench_report: Path | None = None,
    states: str | None = None,
) -> int:
    """Evaluate a run, a model or an endpoint.

    Args:
        policy: Run directory, model directory or name, or ``http://host/v1#model``.
        base: Settings for a policy that is not a run.
        flags: Settings that override those of a run.
        split: Which competitions, if the settings name none. A run evaluated on ``train`` has its own.
        half: Half of the test rows that the scores are on.
        output: Where the numbers go; None chooses a place and says it.
        mle_bench_report: Where MLE-bench's report goes; None for nowhere.
        states: Initial states of a robot's tasks, such as ``0-15``; None plays all.

    Returns:
        Exit code of the command.
    """
    console = Console()
    run_dir = Path(policy)
    if is_run(run_dir):
        config = load_run(run_dir).replace(**flags)
        source = newest_weights(run_dir, config.policy)
        output = output or run_dir / f"evaluation-{split}-{half}.json"
    else:
        config = GRPOConfig.from_mapping({**base, **flags, "policy": policy})
        source = policy
        output = output or Path("runs") / f"evaluation-{re.sub(r'[^A-Za-z0-9.-]+', '-', policy)}-{split}.json"
    prepare_libraries(config)
    if config.task_suite != "autoresearch":
        return _evaluate_robots(console, config, source, policy, output, states)
    if split == "heldout" and "competitions" not in flags:
        config = config.replace(competitions=None)  # those of a run are what it was trained on
    competitions = load_competitions(config, split)
    playing = load_playing_policy(config, source)
    summary = evaluate_policy(
        playing,
        competitions,
        config,
        cache=output.parent / EXECUTIONS,
        half=half,
        mle_bench_report=mle_bench_report,
    )
    save_evaluation(summary, output)
    print_evaluation(console, summary, f"{policy}: real execution, {half} half")
    say(console, f"numbers: {output}")
    return 0


def _evaluate_robots(
    console: Console, config: GRPOConfig, source: str | Path, name: str, output: Path, states: str | None
) -> int:
    suite = load_suite(config)
    chosen = None if states is None else numbers(states.split(","), "--states", suite.num_init_states)

    def told(task: int, episodes: Sequence[RobotTrajectory]) -> None:
        say(console, f"task {task}: {sum(one.success for one in episodes)} of {len(episodes)} succeeded")

    summary = evaluate_robots(load_robot_policy(config, source), suite, config, chosen, told)
    save_evaluation(summary, output)
    print_robots(console, summary, f"{name}, {suite.name}")
    say(console, f"numbers: {output}")
    return 0


def prepare_libraries(config: GRPOConfig) -> None:
    """Threads as asked for, the same results each time, no progress bars beside our own."""
    disable_progress_bar()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)


def say(console: Console, line: str) -> None:
    """Print a line as it is, however long."""
    console.print(line, soft_wrap=True, highlight=False, markup=False)


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


@contextmanager
def _stop_on_interrupt(console: Console) -> Iterator[list[int]]:
    """Collect interrupts in a list that is asked after each step; the second one interrupts at once."""
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)
        say(console, "stopping after this step; interrupt again to stop at once")

    watched = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, note) for number in watched]
    try:
        yield signals
    finally:
        for number, handler in zip(watched, before, strict=True):
            signal.signal(number, handler)
