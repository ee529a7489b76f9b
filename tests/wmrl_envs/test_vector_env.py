import math
import pickle
import warnings
from unittest.mock import ANY

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

import wmrl_envs  # noqa: F401  (registers the environments)
from wmrl_envs.autoresearch.env import AutoResearchEnv
from wmrl_envs.autoresearch.vector_env import AutoResearchVectorEnv
from wmrl_envs.errors import CompetitionError, ConfigError
from wmrl_envs.evaluation import Evaluation, Grade, Outcome

from .test_env import ANY_REPLY, COPY_SAMPLE, KEYS, LOST

ID = "wmrl/MLEDojo-v0"


class ByLength:
    """The percentile of a program is its length in hundreds of characters; counts the batches."""

    def __init__(self) -> None:
        self.batches = []

    def evaluate(self, solutions):
        self.batches.append([solution.competition.name for solution in solutions])
        return [self.one(solution.code) for solution in solutions]

    def one(self, code):
        if "lost" in code:
            return LOST
        if "crash" in code:
            return Evaluation(Outcome("error", stderr="NameError"))
        return Evaluation(Outcome("ok"), Grade("ok", score=0.5, percentile=min(len(code) / 100, 1.0)))


def program(code):
    return f"```python\n{code}\n```"


def make(num_envs=3, **kwargs):
    return gym.make_vec(ID, num_envs=num_envs, **{"evaluator": ByLength(), **kwargs})


def test_one_step_is_one_batch_over_several_competitions():
    evaluator = ByLength()
    envs = make(evaluator=evaluator, competition=["digits", "sms-spam", "digits"], max_turns=2)
    assert isinstance(envs.unwrapped, AutoResearchVectorEnv)
    tasks, info = envs.reset(seed=0)
    assert [task.splitlines()[0] for task in tasks] == [
        "# Handwritten digits (image)",
        ANY,
        "# Handwritten digits (image)",
    ]
    assert info["competition"].tolist() == ["digits", "sms-spam", "digits"]
    observations, rewards, terminated, truncated, info = envs.step(
        [program("a" * 20), "hm", program("crash")]
    )
    assert [text.splitlines()[0] for text in observations] == [
        "status: ok",
        "status: no_code",
        "status: error",
    ]
    assert evaluator.batches == [["digits", "digits"]]
    assert rewards.tolist() == [0.0, 0.0, 0.0]
    assert terminated.tolist() == truncated.tolist() == [False] * 3
    assert info["percentile"].tolist() == [0.2, None, None]
    _, rewards, terminated, _, info = envs.step([program("b" * 30)] * 3)
    assert rewards.tolist() == [0.3, 0.3, 0.3]
    assert terminated.all()
    assert (rewards.dtype, terminated.dtype) == (np.float64, np.bool_)
    assert len(evaluator.batches) == 2


def test_a_finished_member_idles_at_no_cost_until_it_is_reset():
    evaluator = ByLength()
    envs = make(2, evaluator=evaluator, competition="digits")
    envs.reset()
    envs.step(["submit", program("a")])
    observations, rewards, terminated, _, info = envs.step([None, program("b")])
    assert observations[0].startswith("status: submitted")
    assert (rewards[0], terminated[0], terminated[1]) == (0.0, True, False)
    assert info["_status"].tolist() == [False, True]
    assert info["status"].tolist() == [None, "ok"]
    assert evaluator.batches == [["digits"], ["digits"]]
    options = {"reset_mask": np.array([True, False]), "competition": ["sms-spam", None]}
    observations, info = envs.reset(options=options)
    assert list(options) == ["reset_mask", "competition"]
    assert info["competition"].tolist() == ["sms-spam", None]
    assert info["_competition"].tolist() == [True, False]
    assert observations[1].startswith("status: ok")
    _, _, terminated, _, info = envs.step(["hm", "hm"])
    assert terminated.tolist() == [False, False]
    assert info["turn"].tolist() == [1, 3]


def test_a_missing_score_is_nan():
    envs = make(2, competition="digits", max_turns=1)
    envs.reset()
    _, rewards, _, _, info = envs.step([program("lost"), program("a" * 100)])
    assert math.isnan(rewards[0])
    assert rewards[1] == 1.0
    assert info["error"].tolist() == ["The sandbox broke.", None]


def test_options_for_all_or_for_each_member():
    usual, special = ByLength(), ByLength()
    envs = make(2, evaluator=usual, competition="digits", max_turns=1)
    envs.reset(options={"evaluator": [None, special], "group": (0, 7)})
    envs.step([program("a")] * 2)
    assert usual.batches == special.batches == [["digits"]]
    envs.reset(options={"evaluator": special})
    envs.step([program("a")] * 2)
    assert special.batches[1:] == [["digits", "digits"]]
    assert len(usual.batches) == 1


@pytest.mark.sandbox
def test_real_execution():
    envs = gym.make_vec(ID, num_envs=3, competition="breast-cancer", max_turns=1)
    envs.reset()
    _, rewards, _, _, info = envs.step([COPY_SAMPLE, program("raise ValueError"), "submit"])
    assert info["status"].tolist() == ["ok", "error", "submitted"]
    assert info["score"].tolist() == [0.5, None, None]
    assert rewards[0] > 0
    twin = pickle.loads(pickle.dumps(envs))
    envs.close()
    envs.close()
    assert twin.reset()[1]["turn"].tolist() == [0, 0, 0]


def test_bad_arguments_say_what_is_wrong():
    with pytest.raises(ConfigError, match="num_envs must be at least 1"):
        AutoResearchVectorEnv(0)
    with pytest.raises(ConfigError, match="competition must be one value or a list of 3"):
        make(competition=["digits"])
    with pytest.raises(CompetitionError, match="Did you mean 'digits'"):
        make(competition="digit")
    envs = make(2, competition="digits")
    with pytest.raises(ResetNeeded, match="Not every member"):
        envs.step(["a", "b"])
    with pytest.raises(ResetNeeded, match="Not every member"):
        envs.reset(options={"reset_mask": np.array([True, False])})
    for mask in (np.array([False, False]), np.array([1, 0]), [True]):
        with pytest.raises(ConfigError, match="reset_mask must be a bool array of shape"):
            envs.reset(options={"reset_mask": mask})
    with pytest.raises(ConfigError, match="seed must be one value or a list of 2"):
        envs.reset(seed=[1, 2, 3])
    with pytest.raises(ConfigError, match="Unknown reset option 'sed'"):
        envs.reset(options={"sed": 1})


def test_one_bad_action_leaves_all_members_where_they_are():
    envs = make(2, competition="digits")
    envs.reset()
    with pytest.raises(ConfigError, match="There must be 2 actions"):
        envs.step(["submit"])
    with pytest.raises(ConfigError, match="An action is a text"):
        envs.step(["submit", 7])
    _, _, terminated, _, info = envs.step(["hm", "hm"])
    assert info["turn"].tolist() == [1, 1]
    assert not terminated.any()


def test_it_follows_gymnasiums_rules():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs = gym.make_vec(ID, num_envs=2, max_turns=1, render_mode="ansi")
        spec = EnvSpec.from_json(envs.spec.to_json())
    assert envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    tasks, _ = envs.reset(seed=3)
    assert tasks in envs.observation_space
    assert envs.action_space.sample() in envs.action_space
    assert envs.render() == tasks
    again = gym.make_vec(spec, num_envs=2)
    assert again.reset(seed=3)[0] == tasks
    assert again.unwrapped.members[0].episode.max_turns == 1
    silent = make(2)
    with pytest.warns(UserWarning, match="render_mode='ansi'"):
        assert silent.render() is None


STEPS = st.lists(st.lists(ANY_REPLY, min_size=3, max_size=3), min_size=4, max_size=4)


@settings(max_examples=30, deadline=None)
@given(STEPS, st.integers(0, 2**31))
def test_every_member_is_the_single_environment(steps, seed):
    """Random replies never raise, stay in the spaces, and do in each member what they do alone."""
    envs = AutoResearchVectorEnv(3, evaluator=ByLength())
    singles = [AutoResearchEnv(evaluator=ByLength()) for _ in range(3)]
    tasks, info = envs.reset(seed=seed)
    expected = [env.reset(seed=seed + number) for number, env in enumerate(singles)]
    assert list(tasks) == [task for task, _ in expected]
    done = [False] * 3
    for replies in steps:
        observations, rewards, terminated, truncated, info = envs.step(replies)
        assert observations in envs.observation_space
        for number in range(3):
            row = {key: info[key][number] for key in KEYS if key in info}
            if done[number]:
                assert rewards[number] == 0.0
                assert set(row.values()) <= {None}
                continue
            observation, reward, done[number], cut, alone = singles[number].step(replies[number])
            assert (observations[number], rewards[number], row) == (observation, reward, alone)
            assert (terminated[number], truncated[number]) == (done[number], cut)
    assert all(done)
