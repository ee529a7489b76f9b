"""`LiberoVectorEnv`: its arguments without a simulator, and its processes with one."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import wmrl_envs  # noqa: F401  (registers the environments)
from wmrl_envs.errors import ConfigError
from wmrl_envs.libero.env import LiberoEnv
from wmrl_envs.libero.vector_env import LiberoVectorEnv, _Member

from .installed import needs_libero, run_python

ID = "wmrl/LiberoLong-v0"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"num_envs": 0}, "num_envs must be at least 1, not 0"),
        ({"num_envs": 2, "task": [1]}, "task must be one number or a list of 2, not of 1"),
        ({"num_envs": 2, "task": [1, 10]}, "task must be a number from 0 to 9, not 10"),
        ({"num_envs": 2, "chunk_length": 0}, "at least 1 action, not 0"),
        ({"num_envs": 2, "image_size": 0}, "image_size must be"),
    ],
)
def test_an_argument_out_of_range_starts_no_process(arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        LiberoVectorEnv(**arguments)


class Countdown(gym.Env):
    """Ends after two steps."""

    observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {"options": options}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, self.steps == 2, False, {"step": self.steps}


def test_a_member_takes_its_own_of_a_list_of_options():
    member = _Member(Countdown(), 1)
    _, info = member.reset(options={"init_state": [3, 4], "env_seed": 7})
    assert info["options"] == {"init_state": 4, "env_seed": 7}


def test_a_member_that_has_ended_idles():
    member = _Member(Countdown(), 0)
    member.reset()
    results = [member.step(np.zeros(1)) for _ in range(4)]
    assert [reward for _, reward, *_ in results] == [1.0, 1.0, 0.0, 0.0]
    assert [float(observation[0]) for observation, *_ in results] == [1, 2, 2, 2]
    assert [info for *_, info in results] == [{"step": 1}, {"step": 2}, {}, {}]
    member.reset()
    assert member.step(np.zeros(1))[1] == 1.0


PROGRAM = """
import hashlib, json
import gymnasium as gym
import numpy as np
import wmrl_envs
from wmrl_envs.errors import ConfigError

def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()

def main():
    settings = {"observations": "both", "image_size": 32, "horizon": 12}
    envs = gym.make_vec("wmrl/LiberoLong-v0", num_envs=3, task=[0, 0, 5], chunk_length=4, **settings)
    found = {"mode": envs.metadata["autoreset_mode"].name, "shape": envs.action_space.shape}
    options = {"init_state": [2, 2, 7], "env_seed": 0}
    seen, info = envs.reset(options=options)
    found["kept"] = list(options)
    found["tasks"] = info["task"].tolist()
    found["states"] = info["init_state"].tolist()
    chunks = np.random.default_rng(0).uniform(-1, 1, (3, 1, 4, 7)).repeat(3, axis=1)
    ends = []
    for chunk in chunks:
        seen, rewards, terminated, truncated, info = envs.step(chunk)
        ends.append(truncated.tolist())
    found["ends"] = ends
    found["digests"] = [[digest(values[n]) for values in seen.values()] for n in range(3)]
    seen, rewards, terminated, truncated, info = envs.step(chunk)
    found["idle"] = [rewards.tolist(), truncated.tolist(), sorted(info)]
    mask = np.array([False, True, False])
    again, info = envs.reset(options={"init_state": 4, "reset_mask": mask})
    found["masked"] = [bool((again["robot"][n] == seen["robot"][n]).all()) for n in range(3)]
    try:
        envs.reset(options={"init_state": [1, 2]})
    except ConfigError as error:
        found["sentence"] = str(error)
    envs.close()
    print(json.dumps(found))

if __name__ == "__main__":
    main()
"""


@needs_libero
@pytest.mark.slow
def test_three_members_of_two_tasks(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run_python(tmp_path / "program.py", timeout=600)
    assert done.returncode == 0, done.stderr
    import json

    found = json.loads(done.stdout.splitlines()[-1])
    assert found["mode"] == AutoresetMode.DISABLED.name
    assert found["shape"] == [3, 4, 7]
    assert (found["tasks"], found["states"]) == ([0, 0, 5], [2, 2, 7])
    assert found["kept"] == ["init_state", "env_seed"]
    assert found["ends"] == [[False] * 3, [False] * 3, [True] * 3]
    first, second, third = found["digests"]
    assert first == second != third
    assert found["idle"] == [[0.0] * 3, [True] * 3, []]
    assert found["masked"] == [True, False, True]
    assert "init_state must be one value or a list of 3" in found["sentence"]
    assert first == alone(0, 2)


def alone(task, init_state):
    """The same episode in an environment of this process."""
    import hashlib

    env = LiberoEnv(task, observations="both", image_size=32, horizon=12)
    env.reset(options={"init_state": init_state, "env_seed": 0})
    for chunk in np.random.default_rng(0).uniform(-1, 1, (3, 1, 4, 7)):
        for action in chunk[0]:
            seen, *_ = env.step(action)
    order = sorted(seen)
    digests = {n: hashlib.sha256(np.ascontiguousarray(seen[n]).tobytes()).hexdigest() for n in order}
    env.close()
    return [digests[name] for name in env.observation_space.spaces]


UNGUARDED = """
import gymnasium as gym, wmrl_envs
gym.make_vec("wmrl/LiberoLong-v0", num_envs=1)
"""


def test_a_script_that_starts_processes_at_its_top_is_told(tmp_path):
    (tmp_path / "program.py").write_text(UNGUARDED)
    done = run_python(tmp_path / "program.py", timeout=120)
    assert done.returncode != 0
    assert "SimulatorError: A process of 1 simulators has ended" in done.stderr
    assert '__name__ == "__main__"' in done.stderr


KILLED = """
import os, signal
import gymnasium as gym, numpy as np, wmrl_envs
from wmrl_envs.errors import SimulatorError

if __name__ == "__main__":
    envs = gym.make_vec("wmrl/LiberoLong-v0", num_envs=2)
    os.kill(envs.unwrapped.processes[1].pid, signal.SIGKILL)
    try:
        envs.unwrapped.step_async(np.zeros((2, 7), np.float32))
        envs.unwrapped.step_wait()
    except (SimulatorError, ConnectionError) as error:
        print(type(error).__name__, error)
    envs.close()
"""


def test_a_member_that_is_killed_ends_in_a_sentence_and_not_in_a_hang(tmp_path):
    (tmp_path / "program.py").write_text(KILLED)
    done = run_python(tmp_path / "program.py", timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Error" in done.stdout
