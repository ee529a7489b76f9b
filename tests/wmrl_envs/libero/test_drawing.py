"""`LiberoEnv` draws: LIBERO's own pixels, only where somebody looks, and no others' pictures."""

import numpy as np
import pytest

from wmrl_envs.action_chunks import ActionChunks

from .installed import needs_libero, random_actions, raw, run_python

pytestmark = [needs_libero, pytest.mark.slow]

CAMERAS = ("agentview", "robot0_eye_in_hand")


@pytest.mark.parametrize("task", [2, 8])
def test_pictures_are_liberos_own_pixel_for_pixel(tmp_path, make, task):
    original = raw(tmp_path, task, 48)
    env = make(task, observations="images", cameras=CAMERAS, image_size=48, orientation="none")
    for _ in range(2):
        env.reset(seed=1, options={"init_state": 3})
        env.observing = False
        for action in random_actions(len(original["states"]) - 1):
            env.step(action)
        env.observing = True
        for camera in CAMERAS:
            assert np.array_equal(env.observation()[f"{camera}_image"], original[f"{camera}_image"])


def test_pictures_are_drawn_only_where_somebody_looks(make, monkeypatch):
    env = make(0, observations="both", image_size=32)
    env.reset(seed=0)
    drawn = []
    draw = type(env.simulator).draw
    monkeypatch.setattr(type(env.simulator), "draw", lambda *a, **k: drawn.append(1) or draw(*a, **k))
    chunks = ActionChunks(env, 4)
    seen, *_ = chunks.step(random_actions(4))
    assert len(drawn) == 1
    assert np.array_equal(seen["agentview_image"], env.observation()["agentview_image"])


def test_nothing_is_drawn_for_the_state(make, monkeypatch):
    env = make(0)
    env.reset(seed=0)
    env.step(np.zeros(7))
    assert env.simulator._renderer is None
    assert env.render_mode is None


def test_two_environments_in_one_process_draw_their_own_pictures(make):
    settings = {"observations": "images", "image_size": 32}
    alone = []
    for task in (0, 5):
        env = make(task, **settings)
        alone.append(env.reset(seed=0, options={"init_state": 2})[0]["agentview_image"])
        env.close()
    both = [make(task, **settings) for task in (0, 5)]
    for _ in range(2):
        for env, picture in zip(both, alone, strict=True):
            seen, _ = env.reset(seed=0, options={"init_state": 2})
            assert np.array_equal(seen["agentview_image"], picture)
    both[0].close()
    assert np.array_equal(both[1].observation()["agentview_image"], alone[1])


def test_render_gives_an_upright_picture_of_now(make):
    env = make(0, render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert (picture.shape, picture.dtype) == ((256, 256, 3), np.uint8)
    assert np.array_equal(picture, env.picture(size=256, orientation="none")[::-1])
    assert picture[:60].mean() != picture[-60:].mean()


NO_GL = """
import sys
from wmrl_envs.errors import SimulatorError
from wmrl_envs.libero import rendering
from wmrl_envs.libero.env import LiberoEnv
LiberoEnv(0).reset(seed=0)
print("simulated")
try:
    LiberoEnv(0, observations="images").reset(seed=0)
except SimulatorError as error:
    print(error)
"""


def test_without_an_opengl_library_it_simulates_and_says_why_it_cannot_draw(tmp_path):
    (tmp_path / "OpenGL").mkdir()
    (tmp_path / "OpenGL/__init__.py").write_text("raise ImportError('Unable to load EGL library')\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{NO_GL}"
    done = run_python("-c", program, PYTHONSAFEPATH="")
    simulated, *_ = done.stdout.splitlines()
    assert simulated == "simulated"
