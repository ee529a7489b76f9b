import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import wmrl_envs  # noqa: F401
from wmrl_envs.errors import ConfigError
from wmrl_rewards import WorldModelReward, WorldModelVectorRewardWrapper
from wmrl_rewards.errors import RewardError

from .test_wrapper import KEYS, Oracle, ScriptedEnv
from .test_wrapper_on_autoresearch import Executor, WorldModel, program
from .test_wrapper_on_autoresearch import make as make_single
from .test_wrapper_on_autoresearch import play as play_single

ALL_REAL = 1.0
ALTERNATE = 0.5


class Copying(ScriptedEnv):
    """Gymnasium's own vector environments keep what they are given: no env in them can use a buffer again."""

    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        return observation.copy(), info

    def step(self, action):
        observation, *rest = super().step(action)
        return observation.copy(), *rest


def scripted(mode, *scripts):
    return SyncVectorEnv([lambda s=script: Copying(*s) for script in scripts], autoreset_mode=mode)


def wrap(envs, world_model=None, fraction=ALL_REAL, **settings):
    return WorldModelVectorRewardWrapper(envs, world_model or Oracle(0.9), fraction, **settings)


def rows_of(info, number):
    """The ``info["wmrl"]`` of a member, None if it has none."""
    told = {key: column[number] for key, column in info["wmrl"].items() if not key.startswith("_")}
    assert set(told) in (KEYS, set())
    return told if info["_wmrl"][number] else None


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        # Member 0 pays 0.1 and 0.2 an episode, member 1 pays 0.1, 0.1 and 0.5.
        (AutoresetMode.NEXT_STEP, [[0, 0], [0.3, 0], [0, 0.7], [0, 0], [0.3, 0], [0, 0], [0, 0.7]]),
        (AutoresetMode.SAME_STEP, [[0, 0], [0.3, 0], [0, 0.7], [0.3, 0], [0, 0], [0.3, 0.7]]),
    ],
)
def test_every_episode_is_scored_once_at_its_end(mode, expected):
    envs = wrap(scripted(mode, (0.1, 0.2), (0.1, 0.1, 0.5)))
    envs.reset(seed=0)
    for step in expected:
        _, rewards, *_ = envs.step(np.zeros(2, dtype=int))
        assert rewards.tolist() == pytest.approx(step)


def test_without_autoreset_finished_members_wait_for_the_caller():
    envs = wrap(scripted(AutoresetMode.DISABLED, (0.1,), (0.2,)))
    envs.reset(seed=0)
    _, rewards, terminated, _, info = envs.step([0, 0])
    assert rewards.tolist() == pytest.approx([0.1, 0.2])
    assert terminated.all()
    _, info = envs.reset(options={"reset_mask": np.array([False, True])})
    assert info["_wmrl"].tolist() == [False, True]
    assert rows_of(info, 0) is None
    assert rows_of(info, 1)["source"] == "real"


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_world_model_sees_each_episode_and_its_own_last_observation(mode):
    oracle = Oracle(0.25)
    envs = wrap(scripted(mode, (0.1, 0.2), (0.1, 0.2)), oracle, ALTERNATE)
    envs.reset(seed=0)
    for actions in ([1, 2], [0, 1]):
        _, rewards, _, _, info = envs.step(actions)
    assert sorted(rewards.tolist()) == pytest.approx([0.25, 0.3])
    assert sorted(info["wmrl"]["anchor"]) == [False, True]
    for request, actions in zip(oracle.requests, ([1, 0], [2, 1]), strict=True):
        assert [(float(seen[0]), int(action)) for seen, action in request.history] == list(
            zip([0.0, 1.0], actions, strict=True)
        )
        assert float(request.context["observation"][0]) == 2.0


def test_the_row_on_which_a_member_is_merely_reset_has_no_info():
    envs = wrap(scripted(AutoresetMode.NEXT_STEP, (0.1,), (0.1, 0.2)))
    envs.reset(seed=0, options={"group": ["a", "b"]})
    _, _, _, _, info = envs.step([0, 0])
    assert [rows_of(info, 0)["real"], rows_of(info, 1)["real"]] == [pytest.approx(0.1), None]
    assert [rows_of(info, number)["group"] for number in (0, 1)] == ["a", "b"]
    _, rewards, _, _, info = envs.step([0, 0])
    assert rewards.tolist() == pytest.approx([0.0, 0.3])
    assert info["_wmrl"].tolist() == [False, True]
    _, _, _, _, info = envs.step([0, 0])
    assert rows_of(info, 0)["group"] is None


def test_a_world_model_that_answers_too_little_is_told_apart():
    class Silent:
        def predict(self, requests):
            return []

    envs = wrap(scripted(AutoresetMode.DISABLED, (0.1,)), Silent())
    envs.reset()
    with pytest.raises(RewardError, match="0 answers to 1 requests"):
        envs.step([0])


def test_calls_and_arguments_that_are_wrong():
    envs = wrap(scripted(AutoresetMode.DISABLED, (0.1,), (0.1,)))
    with pytest.raises(ResetNeeded, match="No episode has begun"):
        envs.step([0, 0])
    with pytest.raises(ConfigError, match="group must be one value or a list of 2"):
        envs.reset(options={"group": [1, 2, 3]})
    with pytest.raises(ConfigError, match="missing must be"):
        wrap(scripted(AutoresetMode.DISABLED, (0.1,)), missing="ignore")


def make(fraction, num_envs=10, missing="execute", **settings):
    executor, world_model = Executor(), WorldModel()
    envs = gym.make_vec(
        "wmrl/MLEDojo-v0",
        num_envs=num_envs,
        **{"competition": "digits", "max_turns": 2, "evaluator": executor, **settings},
    )
    reward = WorldModelReward(anchor_fraction=fraction)
    return (
        WorldModelVectorRewardWrapper(envs, world_model, missing=missing, reward=reward),
        executor,
        world_model,
    )


REPLIES = [
    (program(0.2, 0.7), program(0.3, 0.6)),
    (program(0.2, 0.7), "submit"),
    ("submit", "submit"),
    ("hm", "hm"),
    (program(0.9, None), program(0.8, None)),
    (program(None, 0.4), program(None, 0.3)),
    (program(1.0, 0.0), "request_info"),
    (program(0.1, 0.2), program(0.4, 0.3)),
    (program(0.5, 0.5), program(0.6, 0.6)),
    (program(0.0, 1.0), program(1.0, 1.0)),
]


@pytest.mark.parametrize("missing", ["execute", "drop"])
@pytest.mark.parametrize("settings", [{}, {"trajectory_score": "best"}, {"reward": "graded"}])
def test_each_member_is_what_the_single_wrapper_makes_of_it(missing, settings):
    envs, executor, _ = make(0.3, missing=missing, **settings)
    envs.reset(seed=0, options={"group": list(range(10))})
    rewards, rows = np.zeros(10), [None] * 10
    for turn in range(2):
        _, gained, terminated, _, info = envs.step([replies[turn] for replies in REPLIES])
        rewards += gained
        rows = [rows_of(info, number) or rows[number] for number in range(10)]
    assert terminated.all()
    single, alone, _ = make_single(0.3, missing=missing, **settings)
    for number, replies in enumerate(REPLIES):
        played = replies[:1] if replies[0] == "submit" else replies
        expected, row, _ = play_single(single, *played, group=number)
        assert rows[number] == row
        assert rewards[number] == pytest.approx(sum(expected), nan_ok=True)
    assert sorted(executor.executed) == sorted(alone.executed)
    assert sum(row["anchor"] for row in rows) == 3


def test_a_step_asks_the_world_model_once_for_those_it_plays_and_once_for_anchors():
    class Counting(WorldModel):
        calls = 0

        def predict(self, requests):
            Counting.calls += 1
            return super().predict(requests)

    envs, executor, _ = make(0.5, num_envs=8)
    counting = Counting()
    envs = WorldModelVectorRewardWrapper(envs.env, counting, 0.5)
    envs.reset(options={"group": list(range(8))})
    envs.step([program(0.2, 0.7)] * 8)
    assert Counting.calls == 1
    assert len(executor.executed) == 4
    _, rewards, *_ = envs.step([program(0.3, 0.6)] * 8)
    assert Counting.calls == 3
    assert len(executor.executed) == 8
    assert sorted(rewards.tolist()) == [0.3] * 4 + [0.6] * 4
    envs.step(["submit"] * 8)
    assert Counting.calls == 3


def test_members_that_have_ended_are_scored_once():
    envs, _, _ = make(ALL_REAL, num_envs=2)
    envs.reset(seed=0)
    _, rewards, *_ = envs.step([program(0.2, 0.7), "submit"])
    assert rewards.tolist() == [0.0, 0.0]
    _, rewards, _, _, info = envs.step([program(0.4, 0.7), "ignored"])
    assert rewards.tolist() == [0.4, 0.0]
    assert rows_of(info, 1) is None
    _, rewards, _, _, info = envs.step(["ignored"] * 2)
    assert rewards.tolist() == [0.0, 0.0]
    assert info["_wmrl"].tolist() == [False, False]


def test_a_member_that_is_reset_in_the_middle_begins_anew():
    envs, _, _ = make(ALTERNATE, num_envs=2)
    _, info = envs.reset(options={"group": ["a", "b"]})
    anchor = info["wmrl"]["anchor"].tolist()
    envs.step([program(0.2, 0.7)] * 2)
    mask = np.array([True, False])
    _, info = envs.reset(options={"group": ["a", None], "reset_mask": mask})
    assert rows_of(info, 0)["group"] == "a"
    _, rewards, terminated, _, _ = envs.step([program(0.3, 0.6)] * 2)
    assert terminated.tolist() == [False, True]
    assert rewards.tolist() == [0.0, 0.3 if anchor[1] else 0.6]
    _, rewards, *_ = envs.step([program(0.1, 0.8)] * 2)
    assert rewards.tolist() == [0.1 if anchor[0] else 0.8, 0.0]


def test_missing_scores_are_nan():
    envs, _, _ = make(ALTERNATE, num_envs=2, missing="drop", max_turns=1)
    envs.reset(options={"group": ["a", "b"]})
    _, rewards, _, _, info = envs.step([program(None, None)] * 2)
    assert all(math.isnan(reward) for reward in rewards)
    assert sorted(info["wmrl"]["error"]) == ["the disk is full", "unreadable"]
