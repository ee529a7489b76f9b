"""A robot in a report: its success before and after training, and strips of episodes that were recorded.

A strip shows eight moments of an episode, and under each how far a model of progress sees it. ``wmrl libero
show`` makes them, with a GIF of the same episode beside them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wmrl_agents.evaluate_robots import NUMBERS, SPLITS
from wmrl_envs.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["EPISODES", "RobotPage", "Strip", "draw_strip", "robot_page", "save_episode"]

EPISODES = "episodes"
_BAR, _TEXT, _GAP = 48, 14, 2
_INK, _PAPER, _FILL, _EMPTY = (40, 44, 52), (255, 255, 255), (47, 111, 179), (226, 230, 236)


@dataclass(frozen=True)
class Strip:
    """A recorded episode for the page.

    Attributes:
        caption: What is seen.
        source: The picture as a data URI.
    """

    caption: str
    source: str


@dataclass(frozen=True)
class RobotPage:
    """What a page says of a robot.

    Attributes:
        repeats: How often each initial state was played; None if the policy was not evaluated.
        rows: Name of the split, and success in percent: average, best and all, each before and after.
        strips: Recorded episodes.
    """

    repeats: int | None
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    strips: tuple[Strip, ...]


def robot_page(run_dir: Path) -> RobotPage:
    """Read what there is to say of a run's robot.

    Raises:
        ConfigError: One of the files is not what it should be.
    """
    before, after = (_read(run_dir / f"robots-evaluation-{name}.json") for name in ("before", "after"))
    known = after or before
    rows: list[tuple[str, tuple[str, ...]]] = []
    if known is not None:
        for name, label in SPLITS:
            cells = [_percent(one, name, number) for number in NUMBERS for one in (before, after)]
            rows.append((label, tuple(cells)))
    strips = [_strip(path) for path in sorted((run_dir / EPISODES).glob("*.json"))]
    return RobotPage(None if known is None else known["repeats"], tuple(rows), tuple(strips))


def _percent(summary: Mapping[str, Any] | None, split: str, number: str) -> str:
    value = None if summary is None else summary[split][number]
    return "–" if value is None else f"{100 * value:.1f}"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}. Delete it, or make it again.") from error


def _strip(path: Path) -> Strip:
    about, picture = _read(path) or {}, path.with_suffix(".png")
    if not {"instruction", "init_state", "success", "actions"} <= set(about) or not picture.is_file():
        raise ConfigError(
            f"{path} and {picture.name} are not a recorded episode: delete both, or record it again."
        )
    end = "the goal held" if about["success"] else "the goal did not hold"
    caption = (
        f"{about['instruction']}, initial state {about['init_state']}: {end} after {about['actions']} actions"
    )
    encoded = base64.b64encode(picture.read_bytes()).decode()
    return Strip(caption, f"data:image/png;base64,{encoded}")


def draw_strip(frames: NDArray[np.uint8], progress: Sequence[float] | None) -> Image:
    """Frames side by side, each with its progress as a bar and a number under it.

    Args:
        frames: Of shape (N, H, W, 3).
        progress: N values in [0, 1]; None where none was seen, which leaves the bars out.

    Returns:
        A picture, N frames wide.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    image_module, draw_module = _pillow()
    count, height, width = frames.shape[:3]
    below = 0 if progress is None else _BAR + _TEXT + 2 * _GAP
    picture = image_module.new("RGB", (count * (width + _GAP) - _GAP, height + below), _PAPER)
    pen = draw_module.Draw(picture)
    for number, frame in enumerate(frames):
        left = number * (width + _GAP)
        picture.paste(image_module.fromarray(frame), (left, 0))
        if progress is None:
            continue
        value = min(max(float(progress[number]), 0.0), 1.0)
        top, bottom = height + _GAP, height + _GAP + _BAR
        pen.rectangle((left, top, left + width - 1, bottom - 1), fill=_EMPTY)
        if round(value * _BAR):
            pen.rectangle((left, bottom - round(value * _BAR), left + width - 1, bottom - 1), fill=_FILL)
        pen.text((left + width / 2, bottom + _GAP), f"{value:.2f}", fill=_INK, anchor="ma")
    return picture


def save_episode(
    folder: Path,
    name: str,
    frames: NDArray[np.uint8],
    about: Mapping[str, Any],
    progress: Sequence[float] | None,
    frame_ms: int = 400,
) -> list[Path]:
    """Write a GIF of an episode, its strip, and what is known of it.

    Args:
        folder: Where to; it is made.
        name: Name of the files, without an ending.
        frames: All frames, of shape (T, H, W, 3).
        about: ``instruction``, ``init_state``, ``success``, ``actions`` and whatever else is to be kept.
        progress: Progress at eight uniform moments; None where none was seen.
        frame_ms: Time that the GIF shows each frame.

    Returns:
        Paths of the GIF, of the strip and of the JSON file.
    """
    from wmrl_rewards.world_models.progress_values import uniform_indices

    image_module, _ = _pillow()
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}{ending}" for ending in (".gif", ".png", ".json")]
    pictures = [image_module.fromarray(frame) for frame in frames]
    pictures[0].save(paths[0], save_all=True, append_images=pictures[1:], duration=frame_ms, loop=0)
    draw_strip(frames[uniform_indices(len(frames))], progress).save(paths[1])
    values = None if progress is None else [float(value) for value in progress]
    paths[2].write_text(json.dumps({**about, "progress": values}, indent=1) + "\n", encoding="utf-8")
    return paths


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise MissingExtraError("pillow", "vla") from error
    return Image, ImageDraw
