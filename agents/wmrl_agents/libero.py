"""``wmrl libero``: the scripted expert's table, demonstrations, their pictures, and what is learned from
them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from wmrl_agents.libero_episodes import add_command
from wmrl_agents.libero_learning import add_commands
from wmrl_envs.errors import ConfigError

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run ``wmrl libero`` with these arguments.

    Returns:
        0 if all went well.
    """
    options = _parser().parse_args(arguments)
    return int(options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wmrl libero",
        description="LIBERO-Long: the scripted expert, its demonstrations, and learning from them.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    expert = commands.add_parser(
        "expert",
        help="play the scripted expert and print how many initial states it solves",
        description="Play the scripted expert and print, task by task, how many initial states it solves.",
    )
    expert.add_argument("--output", metavar="FILE", type=Path, help="where the numbers go, as JSON")
    expert.set_defaults(run=_expert)
    demos = commands.add_parser(
        "demos",
        help="collect demonstrations from the scripted expert",
        description="Collect demonstrations, one file an episode; what is there already is not played again.",
    )
    demos.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder of the demonstrations")
    demos.set_defaults(run=_demos)
    for command in (expert, demos):
        command.add_argument("--tasks", metavar="N,N-N", default="0-9", help="tasks [0-9]")
        command.add_argument("--init-states", metavar="N,N-N", default="0-49", help="initial states [0-49]")
        command.add_argument(
            "--env-seeds", metavar="N,N-N", default="0", help="seeds of fixtures and noise [0]"
        )
        command.add_argument(
            "--noise", metavar="X", type=float, default=0.0, help="noise on each motion, at most 1 [0]"
        )
    replay = commands.add_parser(
        "replay", help="simulate a demonstration again and write its pictures into an .npz file"
    )
    replay.add_argument("demonstration", metavar="FILE", type=Path)
    replay.add_argument("--out", metavar="FILE", type=Path, required=True, help="the pictures, an .npz file")
    replay.add_argument("--cameras", metavar="NAMES", default="agentview", help="by comma [agentview]")
    replay.add_argument("--size", metavar="PIXELS", type=int, default=128, help="height and width [128]")
    replay.add_argument(
        "--orientation", choices=("vertical_flip", "rotate_180", "none"), default="vertical_flip"
    )
    replay.set_defaults(run=_replay)
    add_commands(commands, numbers)
    add_command(commands)
    return parser


def numbers(text: str, name: str) -> list[int]:
    """Numbers written as ``0,3-5``.

    Args:
        text: What was written.
        name: The option's name, for the sentence if it cannot be read.

    Raises:
        ConfigError: It cannot be read.

    Example:
        >>> numbers("0,3-5", "--tasks")
        [0, 3, 4, 5]
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) < int(first):
            raise ConfigError(f"{name} must be numbers such as 0,3-5, not {text!r}.")
        found += range(int(first), int(last or first) + 1)
    return found


def _expert(options: argparse.Namespace) -> int:
    from wmrl_envs.libero.demonstrations import record
    from wmrl_envs.libero.env import LiberoEnv

    states, seeds = numbers(options.init_states, "--init-states"), numbers(options.env_seeds, "--env-seeds")
    rows = []
    print("task  solved    steps (mean, most)  failed initial states")
    for task in numbers(options.tasks, "--tasks"):
        env = LiberoEnv(task)
        played = [record(env, state, seed, options.noise) for state in states for seed in seeds]
        env.close()
        steps = [len(one.actions) for one in played if one.success]
        failed = [one.init_state for one in played if not one.success]
        mean, most = (sum(steps) / len(steps), max(steps)) if steps else (float("nan"), 0)
        solved = f"{len(steps)}/{len(played)}"
        said = ", ".join(map(str, failed)) or "none"
        print(f"{task:>4}  {solved:<8}  {mean:>6.0f} {most:>11}  {said}", flush=True)
        rows.append(
            {"task": task, "episodes": len(played), "solved": len(steps), "failed": failed, "steps": steps}
        )
    if options.output is not None:
        options.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def _demos(options: argparse.Namespace) -> int:
    from wmrl_envs.libero.demonstrations import collect

    states, seeds = numbers(options.init_states, "--init-states"), numbers(options.env_seeds, "--env-seeds")
    for task in numbers(options.tasks, "--tasks"):
        solved = [one.success for one in collect(options.out, [task], states, seeds, options.noise)]
        print(f"Task {task}: {sum(solved)} of {len(solved)} episodes are demonstrations.", flush=True)
    print(f"They are in {options.out}.")
    return 0


def _replay(options: argparse.Namespace) -> int:
    import numpy as np

    from wmrl_envs.libero.demonstrations import load_demonstration, replay

    demonstration = load_demonstration(options.demonstration)
    observations: Iterable[dict[str, np.ndarray]] = replay(
        demonstration,
        observations="images",
        cameras=options.cameras.split(","),
        image_size=options.size,
        orientation=options.orientation,
    )
    seen = list(observations)
    pictures = {name: np.stack([one[name] for one in seen]) for name in seen[0]}
    np.savez_compressed(options.out, **pictures)  # type: ignore[arg-type]
    print(f"{len(seen)} pictures of {', '.join(pictures)} are in {options.out}.")
    return 0
