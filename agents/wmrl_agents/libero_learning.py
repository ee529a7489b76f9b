"""``wmrl libero sft`` and ``wmrl libero progress``: what is learned from demonstrations."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wmrl_agents.policies.vla.imitation_config import ImitationConfig
from wmrl_envs.errors import ConfigError
from wmrl_envs.libero.views import CAMERAS, PictureView

__all__ = ["add_commands", "demonstrated", "progress_rollouts"]

Pictures = NDArray[np.uint8]


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
        help="train the small policy on demonstrations, by states or pictures",
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
        help="train the small model of progress on episodes, good and failed, by states or pictures",
        description="Train the small model of progress on episodes, good and failed, and on good ones that "
        "stop on their way.",
    )
    progress.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder of the model")
    progress.add_argument("--steps", metavar="N", type=int, default=2000, help="[2000]")
    progress.add_argument("--seed", metavar="N", type=int, default=0, help="[0]")
    progress.set_defaults(run=lambda options: _progress(options, numbers))
    for command, kinds, every in ((sft, ("state", "images", "both"), 4), (progress, ("state", "images"), 8)):
        command.add_argument("--demos", metavar="DIR", type=Path, required=True, help="their folder")
        command.add_argument("--tasks", metavar="N,N-N", default="0-9", help="tasks [0-9]")
        command.add_argument(
            "--init-states", metavar="N,N-N", default="0-15", help="initial states to learn from [0-15]"
        )
        _add_picture_flags(command, kinds, every)


def _add_picture_flags(command: Any, kinds: tuple[str, ...], every: int) -> None:
    view = PictureView()
    command.add_argument(
        "--observations", choices=kinds, default="state", help="what is learned from [state]"
    )
    command.add_argument(
        "--image-size", metavar="N", type=int, default=view.image_size, help=f"pixels [{view.image_size}]"
    )
    command.add_argument("--camera", choices=CAMERAS, default=view.camera, help=f"[{view.camera}]")
    command.add_argument(
        "--picture-every",
        metavar="N",
        type=int,
        default=every,
        help=f"actions from one picture to the next; only what has a picture is learned from [{every}]",
    )
    command.add_argument(
        "--pictures", metavar="DIR", type=Path, help="where pictures are kept [DEMOS/pictures]"
    )


def demonstrated(
    episodes: Sequence[LiberoEpisode],
    pictures: Sequence[Pictures] | None = None,
    every: int = 1,
    states: bool = True,
) -> list[Any]:
    """Successful episodes as `Imitation` learns from them.

    Actions are those that the expert intended, clipped to [-1, 1] as the environment does: noise leads to
    states from which there is a way back to learn, and is nothing to learn itself.

    Args:
        episodes: The episodes.
        pictures: Those of each, one before each ``every``-th action; None to learn without.
        every: Actions from one example to the next.
        states: Whether to learn from states.
    """
    from wmrl_agents.policies.vla.imitation import Demonstrated
    from wmrl_agents.policies.vla.libero_view import libero_states

    seen: Sequence[Pictures | None] = [None] * len(episodes) if pictures is None else pictures
    return [
        Demonstrated(
            one.instruction,
            np.clip(one.intended, -1, 1),
            libero_states(one.robot, one.objects, one.joints)[::every] if states else None,
            shown,
            every,
        )
        for one, shown in zip(episodes, seen, strict=True)
        if one.success
    ]


def progress_rollouts(
    episodes: Sequence[LiberoEpisode],
    seed: int = 0,
    pictures: Sequence[Pictures] | None = None,
    every: int = 1,
) -> list[Any]:
    """Episodes as `ProgressModel` learns from them, by states, or by pictures if there are some.

    Each success is there twice: as it was, and cut at a random moment, after which nothing moves any more and
    progress stays what it was. A scripted expert seldom fails, and a robot that stands still often does.

    Args:
        episodes: The episodes.
        seed: Decides where they are cut.
        pictures: Those of each at its `_moments`; None to learn from states at all moments.
        every: Actions from one picture to the next.
    """
    from wmrl_agents.policies.vla.libero_view import libero_states
    from wmrl_rewards import ProgressRollout

    generator = np.random.default_rng(seed)
    rollouts = []
    for number, one in enumerate(episodes):
        frames: NDArray[Any] = (
            libero_states(one.robot, one.objects, one.joints) if pictures is None else pictures[number]
        )
        moments = np.array(_moments(one, every if pictures is not None else 1))
        # A picture of the end may come sooner after the one before it than the others.
        labels = (moments / moments[-1]).tolist() if one.success and pictures is not None else None
        rollouts.append(ProgressRollout(frames, one.instruction, one.success, labels))
        if one.success:
            stop = int(generator.integers(1, len(frames)))
            reached = np.minimum(np.arange(len(frames)), stop)
            labels = (moments[reached] / moments[-1]).tolist()
            rollouts.append(ProgressRollout(frames[reached], one.instruction, False, labels))
    return rollouts


def _moments(episode: LiberoEpisode, every: int) -> list[int]:
    """Actions before each picture for a model of progress: as it will be asked, the end included."""
    last = len(episode.intended)
    return [*range(0, last, every), last]


def _drawn(
    options: argparse.Namespace, episodes: Sequence[Any], moments: Sequence[Sequence[int]]
) -> list[Pictures]:
    """Pictures of each episode at its moments; what is not there yet is drawn, which is told."""
    from wmrl_envs.libero.pictures import PictureCache, PictureDrawer, drawing_versions

    folder = options.pictures or options.demos / "pictures"
    pictures: list[Pictures] = []
    with closing(PictureDrawer()) as drawer:

        def draw(episode: Any, view: PictureView, wanted: NDArray[np.int64]) -> Pictures:
            began = perf_counter()
            drawn = drawer(episode, view, wanted)
            took = f"{len(drawn)} pictures of {episode.file_name} in {perf_counter() - began:.0f} s"
            print(f"Drew {took}: episode {len(pictures) + 1} of {len(episodes)}.", flush=True)
            return drawn

        cache = PictureCache(folder, _view(options), draw, drawing_versions())
        for one, wanted in zip(episodes, moments, strict=True):
            pictures.append(cache.pictures(one, wanted))
    print(f"Pictures of {len(episodes)} episodes are in {folder}.", flush=True)
    return pictures


def _view(options: argparse.Namespace) -> PictureView:
    return PictureView(options.camera, options.image_size)


def _episodes(
    options: argparse.Namespace, numbers: Callable[[str, str], list[int]], success: bool | None
) -> list[Any]:
    from wmrl_envs.libero.demonstrations import read_demonstrations

    if options.picture_every < 1:
        raise ConfigError(f"--picture-every must be at least 1, not {options.picture_every}.")
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
    episodes, pictures, every, view = _episodes(options, numbers, True), None, 1, None
    if options.observations != "state":
        every, view = options.picture_every, _view(options)
        pictures = _drawn(options, episodes, [range(0, len(one.intended), every) for one in episodes])
    examples = demonstrated(episodes, pictures, every, states=options.observations != "images")
    run = Imitation(examples, options.run_dir, config, report=_say, view=view)
    if run.step:
        print(f"Going on from step {run.step} of {config.steps}.", flush=True)
    print(f"The policy of step {config.steps} is in {run.run()}.")
    return 0


def _progress(options: argparse.Namespace, numbers: Callable[[str, str], list[int]]) -> int:
    from wmrl_agents.policies.vla.libero_view import STATE_SIZE
    from wmrl_rewards import ProgressModel

    episodes, pictures = _episodes(options, numbers, None), None
    settings: dict[str, Any] = {"observed": "states", "state_size": STATE_SIZE}
    if options.observations == "images":
        settings = {"observed": "images", "view": _view(options)}
        pictures = _drawn(options, episodes, [_moments(one, options.picture_every) for one in episodes])
    rollouts = progress_rollouts(episodes, options.seed, pictures, options.picture_every)
    tasks = sorted({rollout.task for rollout in rollouts})
    model = ProgressModel(tasks, **settings, seed=options.seed)

    def report(step: int, loss: float) -> None:
        if (step + 1) % 100 == 0:
            _say({"step": step + 1, "loss": loss})

    model.fit(rollouts, steps=options.steps, seed=options.seed, report=report)
    print(f"The model of progress is in {model.save(options.out)}.")
    return 0


def _say(line: dict[str, Any]) -> None:
    values = {name: round(value, 4) if isinstance(value, float) else value for name, value in line.items()}
    print(json.dumps(values), flush=True)
