"""`LiberoEnv` with its simulator: LIBERO's own numbers, replays, the checks of Gymnasium and SB3."""

import hashlib
import json
import resource
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import wmrl_envs  # noqa: F401  (registers the environments)
from wmrl_envs.errors import ConfigError, SimulatorError
from wmrl_envs.libero.env import LiberoEnv
from wmrl_envs.libero.tasks import TASKS

from .installed import needs_libero, random_actions, raw, run_python

pytestmark = [needs_libero, pytest.mark.slow]

ID = "wmrl/LiberoLong-v0"
EVERY_TASK = pytest.mark.parametrize("task", range(10))


def sim_state(env):
    return env.simulator.env.sim.get_state().flatten()


@EVERY_TASK
def test_it_is_liberos_own_environment_bit_for_bit_after_any_number_of_resets(tmp_path, make, task):
    original = raw(tmp_path, task)
    soft, rebuilt = make(task), make(task, rebuild=True)
    for env in (soft, soft, rebuilt, rebuilt):
        env.reset(seed=1, options={"init_state": 3})
        states = [sim_state(env)]
        for action in random_actions(len(original["states"]) - 1):
            observation, *_ = env.step(action)
            states.append(sim_state(env))
        assert np.array_equal(np.stack(states), original["states"])
        check_observation(env, observation, original)
        env.reset(seed=7, options={"init_state": 20})
        for action in random_actions(5, seed=2):
            env.step(action)


def check_observation(env, observation, original):
    names = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
    robot = np.concatenate([original[name] for name in names])
    assert np.array_equal(observation["robot"][:9], robot.astype(np.float32))
    moved = [name for name in env.task.objects if f"{name}_pos" in original]
    assert len(moved) >= 2
    for row, name in enumerate(moved):
        pose = np.concatenate([original[f"{name}_pos"], original[f"{name}_quat"]])
        assert np.array_equal(observation["objects"][row], pose.astype(np.float32))


def digest(env, *arrays):
    content = [env.physics_state(), *arrays]
    return hashlib.sha256(b"".join(np.ascontiguousarray(one).tobytes() for one in content)).hexdigest()


PLAY = """
import json, sys
import numpy as np
from tests.wmrl_envs.libero.test_simulation import play
print(json.dumps(play(int(sys.argv[1]))))
"""


def play(task):
    """Digests of physics and pixels of a short episode."""
    env = LiberoEnv(task, observations="both", image_size=32)
    env.reset(seed=3, options={"init_state": 5})
    for action in random_actions(12):
        observation, *_ = env.step(action)
    found = digest(env, *observation.values())
    env.close()
    return found


def test_processes_agree_on_physics_and_pixels():
    assert json.loads(run_python("-c", PLAY, 9).stdout) == play(9)


@EVERY_TASK
def test_the_checks_of_gymnasium_and_stable_baselines_have_nothing_to_say(task, make):
    checker = pytest.importorskip("stable_baselines3.common.env_checker", reason="needs the extra sb3")
    env = make(task)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*Box observation space m.*is.*infinity")
        check_env(env, skip_render_check=True)
        warnings.filterwarnings("ignore", message="Your observation objects has an unconventional shape")
        checker.check_env(env)


def test_it_is_made_by_its_name_in_each_render_mode():
    env = gym.make(ID, task=4, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*Box observation space m.*is.*infinity")
        check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("task", [0, 9])
def test_both_checks_with_pictures(task, make):
    check_env(make(task, observations="both", image_size=48), skip_render_check=True)
    checker = pytest.importorskip("stable_baselines3.common.env_checker", reason="needs the extra sb3")
    checker.check_env(make(task, observations="images", image_size=48))


def test_the_callers_generator_is_left_alone(make):
    env = make(8)
    np.random.seed(123)
    before = np.random.get_state()[1].copy()
    env.reset(seed=0)
    env.step(np.zeros(7))
    env.reset()
    assert np.array_equal(np.random.get_state()[1], before)


def test_the_callers_generator_changes_nothing(make):
    env = make(8)
    found = set()
    for seed in (1, 2):
        np.random.seed(seed)
        env.reset(seed=0, options={"init_state": 1})
        found.add(digest(env))
    assert len(found) == 1


def test_the_initial_state_is_the_callers_and_the_seed_moves_the_fixtures(make):
    env = make(3)
    states = {}
    for init_state, env_seed in [(0, 0), (1, 0), (0, 1), (0, 0)]:
        _, info = env.reset(options={"init_state": init_state, "env_seed": env_seed})
        assert (info["init_state"], info["env_seed"]) == (init_state, env_seed)
        states.setdefault((init_state, env_seed), set()).add(digest(env))
    assert [len(found) for found in states.values()] == [1, 1, 1]
    assert len(set.union(*states.values())) == 3


def test_without_an_initial_state_one_is_drawn_from_the_seed_and_never_counted(make):
    env = make(5)
    drawn = [env.reset(seed=11)[1]["init_state"], *(env.reset()[1]["init_state"] for _ in range(2))]
    for _ in range(7):
        env.step(np.zeros(7))
    again = [env.reset(seed=11)[1]["init_state"], *(env.reset()[1]["init_state"] for _ in range(2))]
    assert drawn == again


def test_an_episode_is_truncated_without_a_reward(make):
    env = make(0, horizon=3)
    env.reset(seed=0)
    results = [env.step(np.zeros(7))[1:4] for _ in range(3)]
    assert results == [(0.0, False, False)] * 2 + [(0.0, False, True)]
    with pytest.raises(ResetNeeded):
        env.step(np.zeros(7))


def test_success_is_latched_and_rewarded_once(make, monkeypatch):
    env = make(0, terminate_on_success=False, horizon=4)
    env.reset(seed=0)
    holds = iter([False, True, False, True])
    monkeypatch.setattr(env.simulator, "step", lambda action: next(holds))
    results = [env.step(np.zeros(7)) for _ in range(4)]
    assert [reward for _, reward, *_ in results] == [0.0, 1.0, 0.0, 0.0]
    assert [info["success"] for *_, info in results] == [False, True, True, True]
    assert [(terminated, truncated) for _, _, terminated, truncated, _ in results][-1] == (False, True)


@pytest.mark.parametrize("action", [np.full(7, np.nan), np.zeros(6), np.zeros((1, 7)), "up", None])
def test_an_action_that_is_none_changes_nothing(make, action):
    env = make(0)
    env.reset(seed=0)
    before = digest(env)
    with pytest.raises(ConfigError, match="An action is seven "):
        env.step(action)
    assert digest(env) == before


def test_actions_out_of_range_are_clipped(make):
    env = make(0)
    found = set()
    for scale in (1.0, 50.0):
        env.reset(seed=0, options={"init_state": 0})
        for action in np.sign(random_actions(5)):
            env.step(action * scale)
        found.add(digest(env))
    assert len(found) == 1


def test_a_caller_may_write_into_what_it_was_given(make):
    env = make(0, observations="both", image_size=32)
    seen, _ = env.reset(seed=0)
    kept = {name: value.copy() for name, value in env.observation().items()}
    for value in seen.values():
        value[:] = 0
    assert all(np.array_equal(env.observation()[name], value) for name, value in kept.items())


def test_a_reset_that_finds_no_places_gives_up_with_a_sentence(make, monkeypatch):
    from robosuite.utils.errors import RandomizationError

    env = make(0)
    env.reset(seed=0)
    tries = []

    def fail():
        tries.append(1)
        raise RandomizationError("no place")

    monkeypatch.setattr(env.simulator.env, "reset", fail)
    with pytest.raises(SimulatorError, match="no places for the fixtures of task 0 in 20 tries with seed 4"):
        env.reset(seed=4)
    assert len(tries) == 20
    with pytest.raises(ResetNeeded):
        env.step(np.zeros(7))


def test_another_error_of_a_reset_passes_through(make, monkeypatch):
    env = make(0)
    env.reset(seed=0)
    monkeypatch.setattr(env.simulator.env, "reset", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        env.reset()


def test_a_package_with_another_goal_is_refused(make, monkeypatch):
    env = make(0)
    monkeypatch.setattr("wmrl_envs.libero.env.libero_task", lambda task: task)
    import dataclasses

    env.task = dataclasses.replace(TASKS[0], goal=(("on", "alphabet_soup_1", "basket_1"),))
    with pytest.raises(SimulatorError, match=r"Task 0 of .* has another goal than LIBERO-Long's"):
        env.reset()


NO_TRACE = """
import os, sys
from wmrl_envs.libero.env import LiberoEnv
env = LiberoEnv(0, observations="both", image_size=32)
env.reset(seed=0)
env.close()
print(os.environ.get("MUJOCO_GL"), os.environ.get("LIBERO_CONFIG_PATH"), os.environ.get("MPLCONFIGDIR"))
"""


def test_nothing_is_asked_and_nothing_left_in_the_home(tmp_path):
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    done = run_python(
        "-c", NO_TRACE, HOME=str(home), TMPDIR=str(temporary), XDG_CACHE_HOME=str(home / ".cache")
    )
    assert (done.returncode, done.stdout.strip()) == (0, "None None None")
    assert done.stderr == ""
    assert list(home.rglob("*")) == []
    assert list(temporary.rglob("*")) == []


def test_sixty_resets_keep_the_memory(make):
    env = make(3)
    for _ in range(5):
        env.reset(seed=0)
    before = memory()
    for number in range(60):
        env.reset(seed=number)
        env.step(np.zeros(7))
    assert memory() < 1.05 * before


def memory():
    """Resident bytes of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
