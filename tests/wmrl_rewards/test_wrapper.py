import math
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from wmrl_envs.errors import WMRLError
from wmrl_rewards import Prediction, WorldModelReward, WorldModelRewardWrapper

KEYS = {"source", "predicted", "calibrated", "real", "weight", "group", "anchor", "error"}


class ScriptedEnv(gym.Env):
    """Pays given rewards, one a step; observes the number of steps in a buffer that it uses again."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, *rewards, truncate=False, options_seen=None):
        self.rewards = rewards
        self.truncate = truncate
        self.options_seen = options_seen if options_seen is not None else []
        self.buffer = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options_seen.append(options)
        self.buffer[0] = 0
        return self.buffer, {"mine": 1}

    def step(self, action):
        self.buffer += 1
        count = int(self.buffer[0])
        over = count == len(self.rewards)
        return (
            self.buffer,
            self.rewards[count - 1],
            over and not self.truncate,
            over and self.truncate,
            {"mine": 2},
        )


class Oracle:
    """Predicts what it is told to, in turn, and remembers the requests; cannot be copied."""

    def __init__(self, *scores):
        self.scores = scores
        self.requests = []

    def predict(self, requests):
        self.requests += requests
        score = self.scores[(len(self.requests) - 1) % len(self.scores)]
        return [Prediction(score, error="no idea" if score is None else None) for _ in requests]

    def __deepcopy__(self, memo):
        raise AssertionError("a world model may be too large to copy")


def play(env, action=0, **options):
    """Play an episode; returns rewards and the info["wmrl"] rows, the one of reset included."""
    _, info = env.reset(options=options)
    rows, rewards, over = [info["wmrl"]], [], False
    while not over:
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        rows.append(info["wmrl"])
        over = terminated or truncated
    return rewards, rows


def complaints(env):
    """What Gymnasium's checker warns of, beside that the environment is wrapped."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env, skip_render_check=True)
    return [str(w.message) for w in caught if "different from the unwrapped version" not in str(w.message)]


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"])
def test_wrapping_gives_the_checker_nothing_to_complain_of(name):
    env = WorldModelRewardWrapper(gym.make(name), Oracle(0.5), score=lambda value: 0.5)
    assert complaints(env) == complaints(gym.make(name).unwrapped)


def test_a_seeded_reset_and_a_step_repeat_exactly_info_included():
    env = WorldModelRewardWrapper(ScriptedEnv(0.1, 0.2), Oracle(0.5), anchor_fraction=0.5)
    for _ in range(20):
        first, second = [(env.reset(seed=1), env.step(0)) for _ in range(2)]
        assert first == second
        env.step(0)


@pytest.mark.parametrize("truncate", [False, True])
def test_the_reward_is_zero_until_the_end_which_carries_the_score(truncate):
    env = WorldModelRewardWrapper(
        ScriptedEnv(0.1, 0.2, 0.4, truncate=truncate), Oracle(0.9), anchor_fraction=0.5
    )
    seen = set()
    for _ in range(12):
        rewards, rows = play(env)
        anchor = rows[0]["anchor"]
        assert rewards[:2] == [0.0, 0.0]
        assert rewards[2] == pytest.approx(0.7 if anchor else 0.9)
        assert all(type(reward) is float for reward in rewards)
        assert rows[-1]["source"] == ("real" if anchor else "world_model")
        seen.add(anchor)
    assert seen == {True, False}


def test_every_row_has_the_same_keys_and_none_where_there_is_nothing_to_tell():
    env = WorldModelRewardWrapper(ScriptedEnv(0.1, 0.2, 0.4), Oracle(0.9), anchor_fraction=0.5)
    for number in range(6):
        _, rows = play(env, group=number)
        assert all(set(row) == KEYS for row in rows)
        for row in rows[:-1]:
            told = {key for key, value in row.items() if value is not None}
            assert told == {"source", "group", "anchor"}
        last = rows[-1]
        assert (last["predicted"], last["calibrated"], last["weight"]) == (0.9, 0.9, 1.0)
        assert last["real"] == (pytest.approx(0.7) if last["anchor"] else None)


def test_the_environments_own_info_and_options_come_through():
    seen = []
    env = WorldModelRewardWrapper(ScriptedEnv(0.5, options_seen=seen), Oracle(0.9))
    _, info = env.reset(options={"group": 3, "level": "hard"})
    assert info["mine"] == 1
    assert env.step(0)[4]["mine"] == 2
    env.reset()
    assert seen == [{"level": "hard"}, None]


def test_one_group_in_ten_is_an_anchor_whatever_the_seeds_of_resets_are():
    env = WorldModelRewardWrapper(ScriptedEnv(0.5), Oracle(0.5))
    anchors = []
    for number in range(300):
        env.reset(seed=7, options={"group": number})
        anchors.append(env.step(0)[4]["wmrl"]["anchor"])
    assert [sum(anchors[k : k + 10]) for k in range(0, 300, 10)] == [1] * 30
    assert len({anchors[k : k + 10].index(True) for k in range(0, 300, 10)}) > 5


def test_predictions_are_calibrated_by_the_pairs_of_earlier_steps():
    reward = WorldModelReward(anchor_fraction=0.5, min_pairs=3, refit_every=1)
    env = WorldModelRewardWrapper(ScriptedEnv(0.25), Oracle(0.75), reward=reward)
    calibrated = []
    for _ in range(12):
        rewards, rows = play(env)
        calibrated.append(rows[-1]["calibrated"])
        assert rewards[-1] == (0.25 if rows[-1]["anchor"] else rows[-1]["calibrated"])
    # two groups a step with one pair each: the third pair is there when the fourth step opens
    assert calibrated == [0.75] * 6 + [0.25] * 6


def test_groups_measure_noise_and_weigh_anchors():
    reward = WorldModelReward(anchor_fraction=0.5, min_pairs=4, refit_every=1000, warmup_groups=1)
    weights = set()
    world_model = Oracle(0.4, 0.3, 0.6)
    envs = [WorldModelRewardWrapper(ScriptedEnv(r), world_model, reward=reward) for r in (0.2, 0.3, 0.8)]
    for number in range(14):
        rows = [play(env, group=("step", number))[1][-1] for env in envs]
        assert len({(row["anchor"], row["weight"], row["group"]) for row in rows}) == 1
        weights.add((rows[0]["anchor"], rows[0]["weight"]))
    assert weights == {(False, 1.0), (True, 1.0), (True, 2.0)}
    assert len(reward.pool) == 18  # six steps are over, each with an anchor group of three


def test_without_groups_rho_stays_one():
    reward = WorldModelReward(anchor_fraction=1.0, min_pairs=2, refit_every=1, warmup_groups=1)
    env = WorldModelRewardWrapper(ScriptedEnv(0.5), Oracle(0.1, 0.9), reward=reward)
    assert {play(env)[1][-1]["weight"] for _ in range(20)} == {1.0}
    assert reward.statistics()["fitted"]


def test_a_missing_prediction_is_executed_or_dropped_never_zero():
    reward = WorldModelReward(anchor_fraction=0.5)
    env = WorldModelRewardWrapper(ScriptedEnv(0.25), Oracle(None), reward=reward)
    for _ in range(6):
        rewards, rows = play(env)
        last = rows[-1]
        assert rewards == [0.25]
        assert (last["source"], last["real"], last["predicted"], last["error"]) == (
            "real",
            0.25,
            None,
            "no idea",
        )
    assert len(reward.pool) == 0

    env = WorldModelRewardWrapper(ScriptedEnv(0.25), Oracle(None), anchor_fraction=0.5, missing="drop")
    seen = set()
    for _ in range(6):
        rewards, rows = play(env)
        last = rows[-1]
        assert last["error"] == "no idea"
        assert rewards[0] == 0.25 if last["anchor"] else math.isnan(rewards[0])
        assert last["real"] == (0.25 if last["anchor"] else None)
        assert last["source"] == ("real" if last["anchor"] else "world_model")
        seen.add(last["anchor"])
    assert seen == {True, False}


def test_the_world_model_sees_copies_of_observations_and_actions():
    oracle = Oracle(0.5)
    env = WorldModelRewardWrapper(ScriptedEnv(0.1, 0.1, 0.1), oracle)
    env.reset()
    action = np.array([2])
    for _ in range(3):
        env.step(action)
        action -= 1
    [request] = oracle.requests
    assert request.task == "ScriptedEnv"
    assert [(o.tolist(), a.tolist()) for o, a in request.history] == [
        ([0.0], [2]),
        ([1.0], [1]),
        ([2.0], [0]),
    ]
    assert request.context["observation"].tolist() == [3.0]


def test_a_return_outside_of_zero_to_one_needs_a_score():
    env = WorldModelRewardWrapper(ScriptedEnv(1.0, 1.0), Oracle(0.5), anchor_fraction=1.0)
    with pytest.raises(WMRLError, match=r"return is 2\.0.*pass a `score`"):
        play(env)
    env = WorldModelRewardWrapper(
        ScriptedEnv(1.0, 1.0), Oracle(0.5), anchor_fraction=1.0, score=lambda r: r / 4
    )
    assert play(env)[0] == [0.0, 0.5]
    env = WorldModelRewardWrapper(
        ScriptedEnv(1.0), Oracle(0.5), anchor_fraction=1.0, score=lambda r: math.nan
    )
    with pytest.raises(WMRLError, match=r"score\(1\.0\) is nan"):
        play(env)


def test_rounding_errors_of_a_return_are_forgiven():
    env = WorldModelRewardWrapper(ScriptedEnv(*[0.1] * 10, 1e-9), Oracle(0.5), anchor_fraction=1.0)
    assert play(env)[0][-1] == 1.0


def test_a_world_model_out_of_range_is_refused():
    env = WorldModelRewardWrapper(ScriptedEnv(0.5), Oracle(50.0))
    with pytest.raises(WMRLError, match=r"predicted the score 50\.0"):
        play(env)


def test_a_step_before_reset_or_after_the_end_is_refused():
    env = WorldModelRewardWrapper(ScriptedEnv(0.5), Oracle(0.5))
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    play(env)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)


def test_an_unknown_policy_for_missing_scores_is_refused():
    with pytest.raises(WMRLError, match="'execute' or 'drop'"):
        WorldModelRewardWrapper(ScriptedEnv(0.5), Oracle(0.5), missing="zero")


def test_the_spec_makes_the_same_wrapper_again_without_copying_the_model():
    oracle, reward = Oracle(0.5), WorldModelReward(anchor_fraction=1.0)
    env = WorldModelRewardWrapper(gym.make("CartPole-v1"), oracle, score=lambda r: r / 500, reward=reward)
    outer = gym.wrappers.TimeAwareObservation(gym.wrappers.RecordEpisodeStatistics(env))
    again = gym.make(outer.spec)
    inner = again.env.env
    assert isinstance(inner, WorldModelRewardWrapper)
    assert inner.reward is reward
    rewards, rows = play(again)
    assert rewards[-1] == rows[-1]["real"] == len(rewards) / 500
    assert len(oracle.requests) == 1


def test_vector_environments_share_one_reward():
    reward = WorldModelReward(anchor_fraction=0.5, min_pairs=4, refit_every=4)
    make = [lambda: WorldModelRewardWrapper(ScriptedEnv(0.0, 0.25), Oracle(0.75), reward=reward)] * 2
    envs = gym.vector.SyncVectorEnv(make)
    envs.reset(seed=0)
    last = []
    for step in range(60):
        _, rewards, terminated, _, info = envs.step([0, 0])
        if step % 3 == 1:  # after each episode of two steps comes the step that resets
            assert terminated.all()
            last.append(sorted(rewards.tolist()))
    assert last[:3] == [[0.25, 0.75]] * 3
    assert last[-1] == [0.25, 0.25]
    assert set(info["wmrl"]) >= KEYS
