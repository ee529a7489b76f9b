"""``wmrl libero sft`` and ``wmrl libero progress``: what is learned from demonstrations."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wmrl_agents.policies.vla.imitation_config import ImitationConfig
from wmrl_envs.errors import ConfigError

__all__ = ["add_commands", "demonstrated", "progress_rollouts"]


class LiberoEpisode(Protocol):
    """What is read of a demonstration; see `wmrl_envs.libero.demonstrations`."""

    @property
    def instruction(self) -> str:
        """What the robot was told."""

    @property
    def success(self) -> bool:
        """Whether the goal held."""

    @property
    def intended(self) -> NDArray[np.float64]:
        """What the expert wanted to be done, (T, 7)."""

    @property
    def robot(self) -> NDArray[np.float32]:
        """The arm, (T + 1, 16)."""

    @property
    def objects(self) -> NDArray[np.float32]:
        """What stands around it, (T + 1, 8, 7)."""

    @property
    def joints(self) -> NDArray[np.float32]:
        """Drawers, doors and knobs, (T + 1, 3)."""


def add_commands(commands: Any, numbers: Callable[[str, str], list[int]]) -> None:
    """Add the two commands to those of ``wmrl libero``.

    Args:
        commands: Where subcommands are added.
        numbers: Reads numbers written as ``0,3-5``, with the option's name for its error.
    """
    sft = commands.add_parser(
        "sft",
        help="train the small policy on demonstrations, by states",
        description="Train the small policy on demonstrations. A run that was killed is gone on with.",
    )
    sft.add_argument("--run-dir", metavar="DIR", type=Path, required=True, help="folder of the run")
    for field in dataclasses.fields(ImitationConfig):
        flag = f"--{field.name.replace('_', '-')}"
        kind = type(field.default)
        sft.add_argument(flag, metavar="X", type=kind, default=field.default, help=f"[{field.default}]")
    sft.set_defaults(run=lambda options: _sft(options, numbers))
    progress = commands.add_parser(
        "progress",
        help="train the small model of progress on episodes, good and failed, by states",
        description="Train the small model of progress on episodes, good and failed, and on good ones that "
        "stop on their way.",
    )
    progress.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder of the model")
    progress.add_argument("--steps", metavar="N", type=int, default=2000, help="[2000]")
    progress.add_argument("--seed", metavar="N", type=int, default=0, help="[0]")
    progress.set_defaults(run=lambda options: _progress(options, numbers))
    for command in (sft, progress):
        command.add_argument("--demos", metavar="DIR", type=Path, required=True, help="their folder")
        command.add_argument("--tasks", metavar="N,N-N", default="0-9", help="tasks [0-9]")
        command.add_argument(
            "--init-states", metavar="N,N-N", default="0-15", help="initial states to learn from [0-15]"
        )


def demonstrated(episodes: Iterable[LiberoEpisode]) -> list[Any]:
    """Successful episodes as `Imitation` learns from them.

    Actions are those that the expert intended, clipped to [-1, 1] as the environment does: noise leads to
    states from which there is a way back to learn, and is nothing to learn itself.
    """
    from wmrl_agents.policies.vla.imitation import Demonstrated
    from wmrl_agents.policies.vla.libero_view import libero_states

    return [
        Demonstrated(
            one.instruction, np.clip(one.intended, -1, 1), libero_states(one.robot, one.objects, one.joints)
        )
        for one in episodes
        if one.success
    ]


def progress_rollouts(episodes: Iterable[LiberoEpisode], seed: int = 0) -> list[Any]:
    """Episodes as `ProgressModel` learns from them.

    Each success is there twice: as it was, and cut at a random moment, after which nothing moves any more and
    progress stays what it was. A scripted expert seldom fails, and a robot that stands still often does.
    """
    from wmrl_agents.policies.vla.libero_view import libero_states
    from wmrl_rewards import ProgressRollout

    generator = np.random.default_rng(seed)
    rollouts = []
    for one in episodes:
        states = libero_states(one.robot, one.objects, one.joints)
        rollouts.append(ProgressRollout(states, one.instruction, one.success))
        if one.success:
            stop = int(generator.integers(1, len(states)))
            reached = np.minimum(np.arange(len(states)), stop)
            labels = reached / (len(states) - 1)
            rollouts.append(ProgressRollout(states[reached], one.instruction, False, labels.tolist()))
    return rollouts


def _episodes(
    options: argparse.Namespace, numbers: Callable[[str, str], list[int]], success: bool | None
) -> list[Any]:
    from wmrl_envs.libero.demonstrations import read_demonstrations

    wanted = set(numbers(options.init_states, "--init-states"))
    found = read_demonstrations(options.demos, numbers(options.tasks, "--tasks"), success)
    episodes = [one for one in found if one.init_state in wanted]
    if not episodes:
        raise ConfigError(
            f"None of the episodes in {options.demos} begins at the initial states {options.init_states}."
        )
    return episodes


def _sft(options: argparse.Namespace, numbers: Callable[[str, str], list[int]]) -> int:
    from wmrl_agents.policies.vla.imitation import Imitation

    names = [field.name for field in dataclasses.fields(ImitationConfig)]
    config = ImitationConfig(**{name: getattr(options, name) for name in names})
    episodes = demonstrated(_episodes(options, numbers, True))
    run = Imitation(episodes, options.run_dir, config, report=_say)
    if run.step:
        print(f"Going on from step {run.step} of {config.steps}.", flush=True)
    print(f"The policy of step {config.steps} is in {run.run()}.")
    return 0


def _progress(options: argparse.Namespace, numbers: Callable[[str, str], list[int]]) -> int:
    from wmrl_agents.policies.vla.libero_view import STATE_SIZE
    from wmrl_rewards import ProgressModel

    rollouts = progress_rollouts(_episodes(options, numbers, None), options.seed)
    tasks = sorted({rollout.task for rollout in rollouts})
    model = ProgressModel(tasks, observed="states", state_size=STATE_SIZE, seed=options.seed)

    def report(step: int, loss: float) -> None:
        if (step + 1) % 100 == 0:
            _say({"step": step + 1, "loss": loss})

    model.fit(rollouts, steps=options.steps, seed=options.seed, report=report)
    print(f"The model of progress is in {model.save(options.out)}.")
    return 0


def _say(line: dict[str, Any]) -> None:
    values = {name: round(value, 4) if isinstance(value, float) else value for name, value in line.items()}
    print(json.dumps(values), flush=True)
