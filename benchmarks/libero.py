"""What `LiberoEnv` costs beside LIBERO's own environment, in one run.

In turns, each in a process of its own, so that a busy machine disturbs all alike; what counts are the
ratios of the medians over the rounds.

- steps a second without pictures: at least 0.97 times LIBERO's own;
- steps a second with pictures of two cameras and chunks of 8 actions, drawn once a chunk: at least 3 times
  LIBERO's own, which draws at every step;
- steps a second of two members, without pictures: at least 1.6 times one's (on two processors that are free).

    python benchmarks/libero.py [--rounds 5] [--task 0]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

import wmrl_envs  # noqa: F401  (registers the environments)
from wmrl_envs.libero.rendering import choose_backend

STEPS, DRAWN_STEPS, CHUNK, SIZE = 160, 48, 8, 128
CAMERAS = ["agentview", "robot0_eye_in_hand"]


def actions(count: int) -> np.ndarray:
    """Random actions, the same for all."""
    return np.random.default_rng(0).uniform(-1, 1, (count, 7))


def seconds(step: Callable[[Any], object], chosen: np.ndarray) -> float:
    """Seconds that the actions take, after a few that are not counted."""
    for action in chosen[: len(chosen) // 8 or 1]:
        step(action)
    begin = time.perf_counter()
    for action in chosen:
        step(action)
    return time.perf_counter() - begin


def libero(task: int, drawn: bool) -> float:
    """Steps a second of LIBERO's own environment."""
    from libero.libero import benchmark, get_libero_path
    from libero.libero.envs import OffScreenRenderEnv
    from libero.libero.envs.env_wrapper import ControlEnv

    suite = benchmark.get_benchmark("libero_10")()
    details = suite.get_task(task)
    bddl = os.path.join(get_libero_path("bddl_files"), details.problem_folder, details.bddl_file)
    if drawn:
        env = OffScreenRenderEnv(
            bddl_file_name=bddl, camera_names=CAMERAS, camera_heights=SIZE, camera_widths=SIZE
        )
    else:
        env = ControlEnv(bddl_file_name=bddl, use_camera_obs=False, has_offscreen_renderer=False)
    env.seed(0)
    env.reset()
    env.set_init_state(suite.get_task_init_states(task)[0])
    count = DRAWN_STEPS if drawn else STEPS
    return count / seconds(env.step, actions(count))


def ours(task: int, drawn: bool) -> float:
    """Steps a second of `LiberoEnv`; with pictures, in chunks."""
    from wmrl_envs.action_chunks import ActionChunks

    settings: dict[str, Any] = (
        {"observations": "both", "cameras": CAMERAS, "image_size": SIZE} if drawn else {}
    )
    env = gym.make("wmrl/LiberoLong-v0", task=task, **settings)
    count = DRAWN_STEPS if drawn else STEPS
    chosen = actions(count)
    if drawn:
        env, chosen = ActionChunks(env, CHUNK), chosen.reshape(-1, CHUNK, 7)
    env.reset(seed=0, options={"init_state": 0})
    return count / seconds(env.step, chosen)


def two(task: int, drawn: bool) -> float:
    """Steps a second of two members together, in chunks, without pictures."""
    envs = gym.make_vec("wmrl/LiberoLong-v0", num_envs=2, task=task, chunk_length=CHUNK)
    envs.reset(options={"init_state": 0, "env_seed": 0})
    chosen = actions(STEPS).reshape(-1, 1, CHUNK, 7).repeat(2, axis=1)
    rate = 2 * STEPS / seconds(envs.step, chosen)
    envs.close()
    return rate


SUBJECTS: dict[str, tuple[Callable[[int, bool], float], bool]] = {
    "LIBERO": (libero, False),
    "ours": (ours, False),
    "two of ours": (two, False),
    "LIBERO, pictures": (libero, True),
    "ours, pictures, chunks": (ours, True),
}


def measured(name: str, task: int, backend: str) -> float:
    """Steps a second of a subject, in a new process."""
    environment = {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", __file__, "--task", str(task), "--subject", name]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--task", type=int, default=0)
    parser.add_argument("--subject", choices=list(SUBJECTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.subject is not None:
        subject, drawn = SUBJECTS[options.subject]
        print(json.dumps(subject(options.task, drawn)))
        return
    backend = choose_backend()
    rates: dict[str, list[float]] = {name: [] for name in SUBJECTS}
    for _ in range(options.rounds):
        for name, found in rates.items():
            found.append(measured(name, options.task, backend))
    median = {name: statistics.median(found) for name, found in rates.items()}
    print(f"task {options.task}, {backend}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    for name, rate in median.items():
        print(f"{name:24} {rate:8.1f} steps/s")
    ratios = {
        f"{median['ours'] / median['LIBERO']:5.2f}  (at least 0.97)": "ours / LIBERO",
        f"{median['ours, pictures, chunks'] / median['LIBERO, pictures']:5.2f}  (at least 3)": (
            f"with pictures, and chunks of {CHUNK}"
        ),
        f"{median['two of ours'] / median['ours']:5.2f}  (at least 1.6)": "two of ours / one",
    }
    for ratio, name in ratios.items():
        print(f"{name:32} {ratio}")


if __name__ == "__main__":
    main()
