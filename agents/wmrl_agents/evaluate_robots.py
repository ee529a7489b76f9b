"""Evaluation of a robot's policy: the paper's table, from every initial state, seen and unseen in training.

Each task is played from each of its initial states, greedily, a number of times. Repeat j begins with
``env_seed`` j, which moves what the initial state leaves open: without it a greedy policy in a simulator that
repeats itself bit for bit would play one episode again and again. What was done is noted by a hash, so that
repeats that came to the same can be told.

- ``avg``: share of successful episodes;
- ``best``: share of initial states with a success among the repeats (Best@k);
- ``all``: share of initial states where all repeats succeed (All@k).

States that a run trains on are in-domain, the others out of distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.embodied_rollouts import RobotTrajectory, play_episodes
from wmrl_agents.grpo.phases import Phases
from wmrl_agents.grpo.robots import RobotStart, RobotSuite
from wmrl_agents.grpo.roles import ActingPolicy
from wmrl_agents.grpo.simulators import Simulators
from wmrl_agents.policies.base import Prompt, Sample

__all__ = ["evaluate_robots", "print_robots", "summarise_robots"]

SPLITS = (
    ("in_domain", "in-domain"),
    ("out_of_distribution", "out of distribution"),
    ("overall", "overall"),
)
NUMBERS = ("avg", "best", "all")


def evaluate_robots(
    policy: ActingPolicy,
    suite: RobotSuite,
    config: GRPOConfig,
    states: Sequence[int] | None = None,
    on_task: Callable[[int, Sequence[RobotTrajectory]], None] = lambda task, episodes: None,
) -> dict[str, Any]:
    """Play every task from its initial states, ``config.evaluation_repeats`` times each.

    Args:
        policy: Who acts.
        suite: The tasks; its states are the ones that were trained on.
        config: Repeats, simulators, decisions at once.
        states: Initial states to play; None plays all that there are.
        on_task: Is told each finished task with its episodes.

    Returns:
        The summary, fit for JSON; see `summarise_robots`.
    """
    chosen = range(suite.num_init_states) if states is None else states
    repeats = range(config.evaluation_repeats)
    rows = []
    with closing(Simulators(suite, config.simulators)) as simulators:
        for task, instruction in suite.instructions.items():
            episodes = [
                RobotTrajectory(RobotStart(task, state, repeat), instruction)
                for state in chosen
                for repeat in repeats
            ]
            play_episodes(policy, simulators, episodes, _greedy(policy, config), Phases())
            on_task(task, episodes)
            rows += [_row(episode) for episode in episodes]  # without what was seen, which is large
    return {
        "suite": suite.name,
        "repeats": config.evaluation_repeats,
        "horizon": config.horizon,
        **summarise_robots(rows, suite.init_states),
        "instructions": {str(task): words for task, words in suite.instructions.items()},
        "episodes": rows,
    }


def _greedy(policy: ActingPolicy, config: GRPOConfig) -> Callable[[list[Prompt]], list[Sample]]:
    size = config.generation_batch

    def decide(prompts: list[Prompt]) -> list[Sample]:
        parts = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        return [sample for part in parts for sample in policy.sample(part, seed=0, greedy=True)]

    return decide


def _row(episode: RobotTrajectory) -> dict[str, Any]:
    return {
        "task": episode.start.task,
        "init_state": episode.start.init_state,
        "env_seed": episode.start.env_seed,
        "success": episode.success,
        "actions": episode.steps,
        "actions_hash": episode.actions,
    }


def summarise_robots(episodes: Sequence[Mapping[str, Any]], seen: Iterable[int]) -> dict[str, Any]:
    """Averages over tasks, initial states and repeats.

    Args:
        episodes: One mapping each, with ``task``, ``init_state``, ``success`` and ``actions_hash``; as many
            of each task and state.
        seen: Initial states that were trained on.

    Returns:
        ``in_domain``, ``out_of_distribution`` and ``overall``, each with ``avg``, ``best``, ``all`` (None
        without an episode) and ``states``, the pairs of a task and a state behind them; the same for each of
        ``tasks``; ``equal_repeats``, the episodes whose actions an earlier repeat took already.

    Example:
        >>> tries = [(0, True, "a"), (0, False, "b"), (1, True, "c"), (1, True, "c")]
        >>> names = ("init_state", "success", "actions_hash")
        >>> episodes = [{"task": 0, **dict(zip(names, row))} for row in tries]
        >>> summary = summarise_robots(episodes, seen=[0])
        >>> summary["overall"]
        {'avg': 0.75, 'best': 1.0, 'all': 0.5, 'states': 2}
        >>> summary["in_domain"]["all"], summary["equal_repeats"]
        (0.0, 1)
    """
    known = set(seen)
    begun: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for episode in episodes:
        begun.setdefault((episode["task"], episode["init_state"]), []).append(episode)
    success = {key: [bool(one["success"]) for one in tries] for key, tries in begun.items()}
    distinct = sum(len({one["actions_hash"] for one in tries}) for tries in begun.values())
    tasks = sorted({task for task, _ in begun})
    return {
        **_splits(success, known),
        "tasks": [
            {"task": task, **_splits({key: s for key, s in success.items() if key[0] == task}, known)}
            for task in tasks
        ],
        "equal_repeats": len(episodes) - distinct,
    }


def _splits(success: Mapping[tuple[int, int], list[bool]], known: set[int]) -> dict[str, Any]:
    everything = list(success.values())
    inside = [tries for (_, state), tries in success.items() if state in known]
    outside = [tries for (_, state), tries in success.items() if state not in known]
    return {name: _rates(part) for (name, _), part in zip(SPLITS, (inside, outside, everything), strict=True)}


def _rates(groups: Sequence[Sequence[bool]]) -> dict[str, Any]:
    if not groups:
        return {**dict.fromkeys(NUMBERS), "states": 0}
    return {
        "avg": fmean(fmean(tries) for tries in groups),
        "best": fmean(any(tries) for tries in groups),
        "all": fmean(all(tries) for tries in groups),
        "states": len(groups),
    }


def print_robots(console: Console, summary: Mapping[str, Any], title: str) -> None:
    """The paper's table, in percent, with a row for each task.

    Args:
        console: Where to.
        summary: What `evaluate_robots` gave.
        title: What was evaluated.
    """
    repeats = summary["repeats"]
    table = Table(title=f"{title}: success in %", title_justify="left")
    table.add_column("")
    table.add_column("task" if len(summary["tasks"]) > 1 else "")
    for heading in ("states", "avg", f"best@{repeats}", f"all@{repeats}"):
        table.add_column(heading, justify="right")
    for name, label in SPLITS:
        for task in summary["tasks"] if len(summary["tasks"]) > 1 else []:
            table.add_row(label, str(task["task"]), *_cells(task[name]))
        table.add_row(label, "all", *_cells(summary[name]), end_section=True)
    console.print(table)
    if summary["equal_repeats"]:
        console.print(
            f"{summary['equal_repeats']} episodes took the same actions as an earlier repeat.",
            highlight=False,
        )


def _cells(rates: Mapping[str, Any]) -> list[str]:
    shown = ["-" if rates[name] is None else f"{100 * rates[name]:.1f}" for name in NUMBERS]
    return [str(rates["states"]), *shown]
