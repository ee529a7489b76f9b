"""``wmrl libero show``: an episode of a policy, to look at."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["add_command"]


def add_command(commands: Any) -> None:
    """Add the command to those of ``wmrl libero``.

    Args:
        commands: Where subcommands are added.
    """
    show = commands.add_parser(
        "show",
        help="play an episode of a policy, and write a GIF and a strip of frames with their progress",
        description="Play an episode greedily. Write a GIF of it, and a strip of eight frames with the "
        "progress that a model sees in them, which the report of the run then shows.",
    )
    show.add_argument("policy", metavar="RUN_OR_POLICY")
    show.add_argument("--task", metavar="N", type=int, default=0, help="[0]")
    show.add_argument("--init-state", metavar="N", type=int, default=0, help="[0]")
    show.add_argument("--env-seed", metavar="N", type=int, default=0, help="[0]")
    show.add_argument("--horizon", metavar="N", type=int, help="actions at most [520, or the run's]")
    show.add_argument(
        "--image-size", "--size", metavar="PIXELS", type=int, help="height and width [128, or the run's]"
    )
    show.add_argument("--camera", metavar="NAME", help="whose pictures [agentview, or the run's]")
    show.add_argument("--progress", metavar="NAME", help="the model of progress [the run's world model]")
    show.add_argument(
        "--out", metavar="DIR", type=Path, help="folder of the files [RUN/episodes, or episodes]"
    )
    show.set_defaults(run=_show)


def _show(options: argparse.Namespace) -> int:
    from wmrl_agents.grpo.checkpoint import newest_weights
    from wmrl_agents.grpo.config import GRPOConfig
    from wmrl_agents.grpo.embodied_rollouts import RobotTrajectory, play_episodes
    from wmrl_agents.grpo.phases import Phases
    from wmrl_agents.grpo.robot_parts import load_progress_model, load_robot_policy
    from wmrl_agents.grpo.robots import RobotStart, load_suite
    from wmrl_agents.grpo.simulators import Simulators
    from wmrl_agents.report.robots import EPISODES, save_episode
    from wmrl_agents.runs import is_run, load_run

    run_dir = Path(options.policy)
    known = is_run(run_dir)
    config = load_run(run_dir) if known else GRPOConfig(policy=options.policy, reward_source="real")
    if options.progress is not None:
        config = config.replace(world_model=options.progress, reward_source="wmrl")
    config = config.replace(
        task_suite="libero_10",
        libero_tasks=str(options.task),
        init_states=str(options.init_state),
        horizon=options.horizon or config.horizon,
        observations="both",
        image_size=options.image_size or config.image_size,
        camera=options.camera or config.camera,
    )
    suite = load_suite(config)
    policy = load_robot_policy(config, newest_weights(run_dir, config.policy) if known else options.policy)
    model = load_progress_model(config) if config.uses_world_model else None
    start = RobotStart(options.task, options.init_state, options.env_seed)
    episode = RobotTrajectory(start, suite.instructions[options.task])
    with closing(Simulators(suite, 1)) as simulators:
        play_episodes(
            policy,
            simulators,
            [episode],
            lambda prompts: policy.sample(prompts, seed=0, greedy=True),
            Phases(),
        )
    about = {
        "task": start.task,
        "instruction": episode.instruction,
        "init_state": start.init_state,
        "env_seed": start.env_seed,
        "success": episode.success,
        "actions": episode.steps,
        "actions_hash": episode.actions,
    }
    name = f"task-{start.task}-state-{start.init_state:02d}-seed-{start.env_seed}"
    frames = np.stack([one.image for one in episode.moments if one.image is not None])
    folder = options.out or (run_dir / EPISODES if known else Path(EPISODES))
    paths = save_episode(folder, name, frames, about, _progress(model, episode))
    print(f"The goal {'held' if episode.success else 'did not hold'} after {episode.steps} actions.")
    print("\n".join(str(path) for path in paths))
    return 0


def _progress(model: Any, episode: Any) -> tuple[float, ...] | None:
    """Progress at eight moments; None without a model that sees them."""
    from wmrl_agents.grpo.embodied_rollouts import frames_of
    from wmrl_rewards.prediction import PredictionRequest
    from wmrl_rewards.world_models.progress_values import ProgressWorldModel

    if not isinstance(model, ProgressWorldModel):
        return None
    request = PredictionRequest(episode.instruction, frames=frames_of(episode.moments, model))
    [seen] = model.progress([request])
    if seen.error is not None:
        print(f"No progress was seen: {seen.error}")
    return seen.values or None
