"""Where LIBERO is not installed, the tests that simulate say so and are skipped; what they share."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from wmrl_envs.libero.demonstrations import Demonstration
from wmrl_envs.libero.env import LiberoEnv
from wmrl_envs.libero.rendering import choose_backend

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent

needs_libero = pytest.mark.skipif(
    importlib.util.find_spec("libero") is None or importlib.util.find_spec("robosuite") is None,
    reason="needs the extra libero: make test-libero",
)


def run_python(*arguments, timeout=300, **environment):
    """Run this interpreter on the repository; returns the finished process."""
    import os

    path = f"{ROOT}:{ROOT / 'agents'}"
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def played(init_state, steps, task=5):
    """An episode of random actions in the simulator; whatever came of it, it is taken for a success."""
    env = LiberoEnv(task)
    observation, _ = env.reset(options={"init_state": init_state, "env_seed": 0})
    actions = np.random.default_rng(init_state).uniform(-1, 1, (steps, 7))
    seen = [observation, *(env.step(action)[0] for action in actions)]
    episode = Demonstration(
        task=task,
        init_state=init_state,
        env_seed=0,
        noise=0.0,
        success=True,
        versions=env.versions(),
        actions=actions,
        intended=actions,
        final_state=env.physics_state(),
        **{name: np.stack([one[name] for one in seen]) for name in ("robot", "objects", "joints")},
    )
    env.close()
    return episode


def random_actions(count, seed=1):
    return np.random.default_rng(seed).uniform(-1, 1, (count, 7))


def raw(tmp_path, task, *size):
    """What LIBERO's own environment comes to with initial state 3 and seed 1, in a process of its own."""
    backend = choose_backend()
    done = run_python(
        HERE / "raw_libero.py",
        task,
        3,
        1,
        tmp_path / "raw.npz",
        *size,
        MUJOCO_GL=backend,
        PYOPENGL_PLATFORM=backend,
    )
    assert done.returncode == 0, done.stderr
    return np.load(tmp_path / "raw.npz")
