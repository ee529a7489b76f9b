"""LIBERO's own environment as its users drive it: raw_libero.py TASK INIT_STATE SEED OUT [SIZE]."""

import os
import sys

os.environ.setdefault("MUJOCO_GL", "osmesa")
os.environ.setdefault("PYOPENGL_PLATFORM", os.environ["MUJOCO_GL"])

import numpy as np
from libero.libero import benchmark, get_libero_path
from libero.libero.envs import OffScreenRenderEnv
from libero.libero.envs.env_wrapper import ControlEnv


def actions(seed, count):
    return np.random.default_rng(seed).uniform(-1, 1, (count, 7))


def main():
    task, init_state, seed, out, *size = sys.argv[1:]
    suite = benchmark.get_benchmark("libero_10")()
    details = suite.get_task(int(task))
    bddl = os.path.join(get_libero_path("bddl_files"), details.problem_folder, details.bddl_file)
    if size:
        pixels = {"camera_heights": int(size[0]), "camera_widths": int(size[0])}
        env = OffScreenRenderEnv(bddl_file_name=bddl, **pixels)
    else:
        env = ControlEnv(bddl_file_name=bddl, use_camera_obs=False, has_offscreen_renderer=False)
    env.seed(int(seed))
    env.reset()
    seen = env.set_init_state(suite.get_task_init_states(int(task))[int(init_state)])
    for _ in range(10):
        seen, *_ = env.step([0.0] * 6 + [-1.0])
    states = [env.get_sim_state()]
    for action in actions(int(seed), 6 if size else 25):  # drawing is slow
        seen, *_ = env.step(action)
        states.append(env.get_sim_state())
    np.savez(out, states=np.stack(states), **{name: np.asarray(value) for name, value in seen.items()})


if __name__ == "__main__":
    main()
