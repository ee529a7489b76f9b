"""Views of a scene: which camera, how large, which way up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from wmrl_envs.errors import ConfigError
from wmrl_envs.libero.rendering import Picture

__all__ = [
    "CAMERAS",
    "Camera",
    "Orientation",
    "PictureView",
    "checked_cameras",
    "checked_size",
    "one_of",
    "orient",
]

Orientation = Literal["vertical_flip", "rotate_180", "none"]
Camera = Literal["agentview", "robot0_eye_in_hand", "frontview", "birdview", "sideview", "galleryview"]

CAMERAS: tuple[Camera, ...] = get_args(Camera)
_LARGEST_PICTURE = 4096


@dataclass(frozen=True)
class PictureView:
    """How pictures are made. Who was trained on some has to be shown others that are made alike.

    Attributes:
        camera: One of `CAMERAS`.
        image_size: Height and width in pixels.
        orientation: See `orient`.

    Raises:
        ConfigError: A value is out of its range.
    """

    camera: str = "agentview"
    image_size: int = 128
    orientation: Orientation = "vertical_flip"

    def __post_init__(self) -> None:
        checked_cameras((self.camera,))
        checked_size(self.image_size)
        one_of("orientation", self.orientation, get_args(Orientation))


def orient(picture: Picture, orientation: Orientation) -> Picture:
    """Turn a picture as OpenGL draws it, first row at the bottom.

    Args:
        picture: Of shape (height, width, 3).
        orientation: ``vertical_flip`` reverses rows, ``rotate_180`` rows and columns, ``none`` nothing.
    """
    if orientation == "none":
        return picture
    return np.ascontiguousarray(picture[::-1, ::-1] if orientation == "rotate_180" else picture[::-1])


def one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Refuse a value that is none of the choices, in a sentence that names them."""
    if not isinstance(value, str | None) or value not in choices:
        said = ", ".join(repr(choice) for choice in choices)
        raise ConfigError(f"{name} must be one of {said}, not {value!r}.")


def checked_cameras(cameras: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Names of cameras as a tuple, if there is one and each is known and named once."""
    cameras = (cameras,) if isinstance(cameras, str) else tuple(cameras)
    if not cameras or len(set(cameras)) < len(cameras):
        raise ConfigError(f"cameras must name one or more, each once, not {list(cameras)}.")
    for camera in cameras:
        one_of("a camera", camera, CAMERAS)
    return cameras


def checked_size(size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width, if a picture can have them."""
    pair = (size, size) if isinstance(size, int | np.integer) else tuple(size)
    if len(pair) != 2 or not all(
        isinstance(side, int | np.integer) and 1 <= side <= _LARGEST_PICTURE for side in pair
    ):
        raise ConfigError(
            f"image_size must be a height and a width from 1 to {_LARGEST_PICTURE}, or one number, "
            f"not {size!r}."
        )
    return int(pair[0]), int(pair[1])
