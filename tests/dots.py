"""A robot that is a dot on a line: an environment with LIBERO's interface that takes microseconds."""

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.parts import Parts
from wmrl_agents.grpo.robots import RobotSuite
from wmrl_agents.grpo.trainer import GRPOTrainer
from wmrl_agents.policies.vla.action_tokens import ResidualCodec
from wmrl_agents.policies.vla.records import Observation
from wmrl_agents.policies.vla.small_vla import SmallVLA
from wmrl_envs.action_chunks import ActionChunks

LEFT, RIGHT = "go left", "go right"
TASKS = {0: LEFT, 1: RIGHT}
STATES = 6
GOAL = 1.0
BASE = GRPOConfig(
    task_suite="libero_10",
    steps=3,
    groups_per_step=4,
    group_size=4,
    learning_rate=0.02,
    anchor_fraction=0.5,
    min_pairs=8,
    refit_every=8,
    warmup_groups=1,
    kl_coefficient=0.01,
    entropy_coefficient=0.001,
    simulators=5,
    evaluation_repeats=2,
)


class Dot(gym.Env):
    """The dot moves by 0.05 times an action's first number; it has to come 1 to the left or to the right.

    The initial state shifts where it begins, the environment's seed too, by less.
    """

    def __init__(self, task, horizon=32):
        self.task, self.horizon = task, horizon
        self.action_space = spaces.Box(-1.0, 1.0, (7,), np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.state = np.zeros(3)

    def reset(self, *, seed=None, options=None):
        self.begin = 0.01 * options["init_state"] + 0.001 * options["env_seed"]
        self.state[:] = (self.begin, 0.0, 1.0)
        self.steps, self.success = 0, False
        return self.state, self.info()

    def step(self, action):
        self.state[0] += 0.05 * float(np.clip(action[0], -1, 1))
        self.steps += 1
        self.state[1] = self.steps / self.horizon
        gone = self.state[0] - self.begin
        self.success |= bool(gone > GOAL - 1e-9 if self.task else gone < -GOAL + 1e-9)
        over = self.steps >= self.horizon
        return self.state, float(self.success), self.success, over and not self.success, self.info()

    def info(self):
        return {"success": self.success}


def make_dot(task):
    return ActionChunks(Dot(task), 8)


def observe(shown):
    return Observation(shown.astype(np.float32))


def observe_picture(shown):
    """The same, and a picture with the dot in it, 8 pixels high and 32 wide."""
    image = np.zeros((8, 32, 3), np.uint8)
    image[2:6, int(np.clip(16 + 14 * shown[0], 0, 31))] = 255
    return Observation(shown.astype(np.float32), image)


def dots(tasks=(0, 1), seen=(0, 1, 2), light=True):
    """A suite of dots."""
    return RobotSuite("dots", {t: TASKS[t] for t in tasks}, tuple(seen), STATES, make_dot, observe, light)


def codec():
    """The first of two tokens says left or right, far or a little; the second nearly nothing."""
    books = torch.zeros(2, 4, 8, 7)
    books[0, :, :, 0] = torch.tensor([-1.0, -0.3, 0.3, 1.0])[:, None]
    books[1, :, :, 1] = torch.tensor([-0.2, -0.1, 0.1, 0.2])[:, None]
    return ResidualCodec(books.flatten(2))


def policy(seed=0):
    """A small policy that knows nothing yet."""
    return SmallVLA((LEFT, RIGHT), codec(), state_size=3, hidden=16, seed=seed)


class Ruler:
    """A model of progress that measures how far the dot has come, and bends what it says."""

    observed = "states"
    tasks = (LEFT, RIGHT)

    def __init__(self, bend=lambda progress: 0.2 + 0.5 * progress, silent=False):
        self.bend, self.silent = bend, silent
        self.asked = 0

    def predict(self, requests):
        from wmrl_rewards import Prediction

        self.asked += len(requests)
        answers = []
        for request in requests:
            gone = float(request.frames[-1, 0] - request.frames[0, 0])
            progress = np.clip(gone if request.task == RIGHT else -gone, 0, 1)
            score = None if self.silent else self.bend(float(progress))
            answers.append(Prediction(score, error="It says nothing." if self.silent else None))
        return answers


def trainer_in(folder, world_model=None, suite=None, **changes):
    """A trainer of `BASE` with these changes."""

    def load(source):
        return policy() if source == BASE.policy else SmallVLA.load(source)

    parts = Parts(load, world_model=world_model or Ruler(), robots=suite or dots())
    return GRPOTrainer(BASE.replace(**changes), folder, parts)
