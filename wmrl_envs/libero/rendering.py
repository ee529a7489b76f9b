"""Pictures without a screen: which OpenGL library draws here, and one renderer for each simulator.

Robosuite 1.4 draws two simulators of a process into each other's pictures, and releases one's textures
while the other's context is current. Here a renderer makes its own context current before anything it does
with OpenGL.
"""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import weakref
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wmrl_envs.errors import SimulatorError

__all__ = ["Backend", "Picture", "Renderer", "RendererSettings", "choose_backend"]

Picture = NDArray[np.uint8]
Backend = Literal["egl", "osmesa"]
_BACKENDS: tuple[Backend, ...] = ("egl", "osmesa")
_PROBE_SECONDS = 60.0
_LIBRARIES = "apt-get install -y libosmesa6 libegl1 libegl-mesa0 libgl1 libgl1-mesa-dri"
# Sizes of robosuite's own buffer: pictures that fit into it come out the same as there.
_WIDTH, _HEIGHT = 640, 480
_GEOMETRIES = 1000
# Mesa would keep compiled shaders in the home.
_NO_CACHE = ("MESA_SHADER_CACHE_DISABLE", "true")

# Draws a small scene of one white box; a library that loads but does not draw fails here too.
_PROBE = """
import importlib, os, sys
import mujoco, numpy
context = importlib.import_module("mujoco." + sys.argv[1]).GLContext(64, 64)
context.make_current()
xml = '<mujoco><worldbody><light pos="0 0 3"/><geom type="box" size="1 1 1"/></worldbody></mujoco>'
model = mujoco.MjModel.from_xml_string(xml)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
scene = mujoco.MjvScene(model, 10)
target = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, target)
options, camera, everything = mujoco.MjvOption(), mujoco.MjvCamera(), mujoco.mjtCatBit.mjCAT_ALL
mujoco.mjv_defaultFreeCamera(model, camera)
mujoco.mjv_updateScene(model, data, options, None, camera, everything, scene)
view = mujoco.MjrRect(0, 0, 64, 64)
mujoco.mjr_render(view, scene, target)
picture = numpy.zeros((64, 64, 3), numpy.uint8)
mujoco.mjr_readPixels(picture, None, view, target)
print("drawn" if picture.any() else "black", flush=True)
os._exit(0)
"""


def choose_backend(wanted: Backend | None = None) -> Backend:
    """The OpenGL library that draws in this process, tried out in another process first.

    Args:
        wanted: ``egl`` or ``osmesa``; None takes that of the environment variable MUJOCO_GL, or of
            PYOPENGL_PLATFORM, or else the first that works.

    Raises:
        SimulatorError: None of them draws within a minute.
    """
    fixed = os.environ.get("PYOPENGL_PLATFORM", "").lower() if _opengl_is_loaded() else ""
    named = wanted or fixed or os.environ.get("MUJOCO_GL", "").lower()
    candidates = tuple(name for name in _BACKENDS if name == named) or _BACKENDS
    reasons = {name: _probe(name, _PROBE_SECONDS) for name in candidates[:1]}
    if reasons[candidates[0]] is not None and len(candidates) > 1:
        reasons[candidates[1]] = _probe(candidates[1], _PROBE_SECONDS)
    for name, reason in reasons.items():
        if reason is None:
            return name
    said = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise SimulatorError(
        f"Nothing draws pictures without a screen here ({said}): install the libraries with  {_LIBRARIES}."
    )


def _opengl_is_loaded() -> bool:
    """Whether PyOpenGL is bound to a library already, for the life of the process."""
    return "OpenGL" in sys.modules


@functools.cache
def _probe(backend: Backend, seconds: float) -> str | None:
    """Why a library does not draw; None if it does."""
    environment = {**dict([_NO_CACHE]), **os.environ, "MUJOCO_GL": "disabled", "PYOPENGL_PLATFORM": backend}
    command = [sys.executable, "-c", _PROBE, backend]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return f"nothing was drawn within {seconds:g} seconds"
    if done.stdout.strip() == "drawn":
        return None
    if done.stdout.strip() == "black":
        return "what it draws is black"
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"it ended with code {done.returncode}"


@dataclass(frozen=True)
class RendererSettings:
    """How a renderer draws.

    Attributes:
        largest: Largest height and width that will be asked for.
        antialiasing: Whether edges are smoothed, as LIBERO's pictures are; without, drawing takes half as
            long.
        backend: The OpenGL library.
    """

    largest: tuple[int, int]
    antialiasing: bool
    backend: Backend


class Renderer:
    """Draws one MuJoCo model with a context of its own.

    Args:
        model: The ``mujoco.MjModel``.
        settings: How it is drawn.
    """

    def __init__(self, model: Any, settings: RendererSettings) -> None:
        import mujoco

        self.settings = settings
        self._mujoco = mujoco
        self._model = model
        height, width = max(settings.largest[0], _HEIGHT), max(settings.largest[1], _WIDTH)
        model.vis.global_.offheight, model.vis.global_.offwidth = height, width
        if not settings.antialiasing:
            model.vis.quality.offsamples = 0
        self._context = _gl_module(settings.backend).GLContext(width, height)
        self._context.make_current()
        self._scene = mujoco.MjvScene(model, maxgeom=_GEOMETRIES)
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._options = mujoco.MjvOption()
        self._options.geomgroup[0] = 0  # collision shapes
        self._options.geomgroup[1] = 1
        self._target = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._target)
        self._release = weakref.finalize(self, _release, self._context, self._target)
        self._data = mujoco.MjData(model)

    def scene_at(self, positions: NDArray[np.float64]) -> Any:
        """The ``mujoco.MjData`` to draw for these positions; the next call changes it."""
        self._data.qpos[:] = positions
        self._mujoco.mj_fwdPosition(self._model, self._data)
        return self._data

    def draw(self, data: Any, camera: str, height: int, width: int) -> Picture:
        """A camera's picture of shape (height, width, 3), first row at the bottom, as OpenGL gives it."""
        mujoco = self._mujoco
        self._context.make_current()
        self._camera.fixedcamid = self._model.camera(camera).id
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._options, None, self._camera, everything, self._scene)
        view = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(view, self._scene, self._target)
        picture = np.empty((height, width, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(picture, None, view, self._target)
        return picture

    def close(self) -> None:
        """Release what the graphics library holds; twice does no harm."""
        self._release()


def _release(context: Any, target: Any) -> None:
    context.make_current()
    target.free()
    context.free()


def _gl_module(backend: Backend) -> Any:
    """MuJoCo's module for a library. PyOpenGL is bound to one of them for the life of the process."""
    os.environ.setdefault(*_NO_CACHE)
    try:
        return importlib.import_module(f"mujoco.{backend}")
    except (ImportError, AttributeError) as error:
        raise SimulatorError(
            f"This process cannot draw with {backend}, because its OpenGL is bound to another library or "
            f"broken ({error}): set MUJOCO_GL and PYOPENGL_PLATFORM to {backend} before it starts."
        ) from error
