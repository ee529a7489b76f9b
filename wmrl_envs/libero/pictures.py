"""Pictures of demonstrations, drawn once and kept beside them.

Drawing is slow: a replay simulates a hundred actions a second, and draws a handful of pictures. So a picture
is drawn only of moments that somebody learns from, and kept: one ``.npz`` file an episode and view, in
``CAMERA-SIZE-ORIENTATION/task-N/init-NN-seed-N.npz`` below the folder of the cache,

- ``moments`` (N,), int64, rising: actions taken before each picture;
- ``pictures`` (N, height, width, 3), uint8;
- ``about``, JSON: the key, and the versions of what drew them.

The key names what decides the pixels: the actions and the end of the episode, where it begins, the versions
that it was recorded with, and the view. A file with another key, or drawn by other versions than those that
would draw here, is drawn anew; where LIBERO is not installed, pictures that were drawn elsewhere are taken.
Files are written aside and renamed, so that a command that was interrupted goes on with the episode that it
was at.
"""

from __future__ import annotations

import hashlib
import json
import uuid
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from wmrl_envs.errors import ConfigError, MissingExtraError
from wmrl_envs.libero.demonstrations import Demonstration, replay_in
from wmrl_envs.libero.env import LiberoEnv
from wmrl_envs.libero.views import PictureView

__all__ = ["PictureCache", "PictureDrawer", "drawing_versions"]

FORMAT = 1
Pictures = NDArray[np.uint8]
Draw = Callable[[Demonstration, PictureView, NDArray[np.int64]], Pictures]


class PictureDrawer:
    """Draws moments of demonstrations, by simulating them again. Building a simulator takes as long as many
    pictures, so that it is kept for the next episode of the same task; `close` it at the end."""

    def __init__(self) -> None:
        self._env: LiberoEnv | None = None
        self._made_for: tuple[int, PictureView] | None = None

    def __call__(
        self, demonstration: Demonstration, view: PictureView, moments: NDArray[np.int64]
    ) -> Pictures:
        """Draw.

        Args:
            demonstration: The demonstration.
            view: How its pictures are made.
            moments: Actions taken before each picture, rising.

        Returns:
            Of shape (N, height, width, 3).

        Raises:
            MissingExtraError: LIBERO is not installed.
            SimulatorError: It comes to another final state here, or nothing can be drawn.
        """
        shown = replay_in(self._built(demonstration.task, view), demonstration, frozenset(moments.tolist()))
        return np.stack([one[f"{view.camera}_image"] for one in shown])

    def close(self) -> None:
        """Release the simulator."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _built(self, task: int, view: PictureView) -> LiberoEnv:
        if self._env is None or self._made_for != (task, view):
            self.close()
            self._made_for = task, view
            self._env = LiberoEnv(
                task,
                observations="images",
                cameras=(view.camera,),
                image_size=view.image_size,
                orientation=view.orientation,
            )
        return self._env


def drawing_versions() -> dict[str, str] | None:
    """Versions of what would draw here; None where LIBERO is not installed.

    Raises:
        SimulatorError: It is installed, and cannot be used as it is.
    """
    try:
        return LiberoEnv().versions()
    except MissingExtraError:
        return None


class PictureCache:
    """Pictures of demonstrations; see the module.

    Args:
        folder: Where they are kept; it is made when the first are drawn.
        view: How they are made.
        draw: Who draws, such as a `PictureDrawer`.
        versions: Versions of who draws; None if they are not known, so that all that is there is taken.
    """

    def __init__(
        self,
        folder: str | Path,
        view: PictureView,
        draw: Draw,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.view = view
        self._draw = draw
        self._versions = None if versions is None else dict(versions)

    def path(self, demonstration: Demonstration) -> Path:
        """Where the pictures of an episode are."""
        view = self.view
        name = f"{view.camera}-{view.image_size}-{view.orientation}"
        return self.folder / name / demonstration.file_name

    def pictures(self, demonstration: Demonstration, moments: Iterable[int]) -> Pictures:
        """Pictures of an episode; those that are not there yet are drawn and kept.

        Args:
            demonstration: The episode.
            moments: Actions taken before each picture, from 0 to the number of the episode's actions.

        Returns:
            One for each moment, in their order, of shape (N, height, width, 3).

        Raises:
            ConfigError: The episode has no such moment.
            MissingExtraError: LIBERO is needed to draw, and not installed.
            SimulatorError: The episode comes out otherwise here, or nothing can be drawn.
        """
        wanted = _checked(demonstration, moments)
        kept, pictures = self._kept(demonstration)
        new = np.setdiff1d(wanted, kept)
        if len(new):
            drawn = self._draw(demonstration, self.view, new)
            order = np.argsort(together := np.concatenate([kept, new]))
            kept, pictures = together[order], np.concatenate([pictures, drawn])[order]
            self._keep(demonstration, kept, pictures)
        return pictures[np.searchsorted(kept, wanted)]

    def _kept(self, demonstration: Demonstration) -> tuple[NDArray[np.int64], Pictures]:
        """Moments and pictures that are there, if they are of this episode, and whole."""
        side = self.view.image_size
        nothing = np.zeros(0, np.int64), np.zeros((0, side, side, 3), np.uint8)
        try:
            with np.load(self.path(demonstration), allow_pickle=False) as arrays:
                about = json.loads(str(arrays["about"]))
                moments, pictures = arrays["moments"], arrays["pictures"]
            fresh = about["key"] == _key(demonstration, self.view)
            fresh &= self._versions is None or about["drawn_with"] == self._versions
            whole = pictures.shape == (len(moments), side, side, 3) and pictures.dtype == np.uint8
            good = fresh and whole and bool((np.diff(moments) > 0).all())
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
            return nothing  # it can be drawn again
        return (moments, pictures) if good else nothing

    def _keep(self, demonstration: Demonstration, moments: NDArray[np.int64], pictures: Pictures) -> None:
        path = self.path(demonstration)
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"key": _key(demonstration, self.view), "drawn_with": self._versions}
        # A name of its own, because another process may draw the same episode.
        unfinished = path.with_name(f"{path.stem}-{uuid.uuid4().hex}.unfinished")
        try:
            with unfinished.open("wb") as file:
                content = {"moments": moments, "pictures": pictures, "about": np.array(json.dumps(about))}
                np.savez_compressed(file, **cast(dict[str, Any], content))
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def _key(demonstration: Demonstration, view: PictureView) -> str:
    digest = hashlib.sha256()
    for array in (demonstration.actions, demonstration.final_state):
        digest.update(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    begins = (demonstration.task, demonstration.init_state, demonstration.env_seed)
    about = [FORMAT, begins, dict(sorted(demonstration.versions.items())), asdict(view)]
    return hashlib.sha256(json.dumps(about).encode() + digest.digest()).hexdigest()


def _checked(demonstration: Demonstration, moments: Iterable[int]) -> NDArray[np.int64]:
    wanted = np.array(list(moments), dtype=np.int64)
    last = len(demonstration.actions)
    if not len(wanted) or wanted.min() < 0 or wanted.max() > last:
        raise ConfigError(
            f"Pictures of {demonstration.file_name} are of moments from 0 to {last}, at least one of them."
        )
    return wanted
