"""The wrapper around the AutoResearch environment: what executes, what is predicted, what is rewarded."""

import math

import gymnasium as gym
import pytest

import wmrl_envs  # noqa: F401
from wmrl_envs.evaluation import Evaluation, Grade, Outcome
from wmrl_rewards import Prediction, WorldModelReward, WorldModelRewardWrapper


def program(real, predicted):
    """A reply whose program says what it is worth to the two stubs below; None stands for a missing score."""
    return f"```python\nreal = {real}\npredicted = {predicted}\n```"


def scores(code):
    values = {}
    exec(code, values)
    return values["real"], values["predicted"]


class Executor:
    """Stands for the sandbox; counts what it executes."""

    def __init__(self):
        self.executed = []

    def evaluate(self, solutions):
        self.executed += [solution.code for solution in solutions]
        return [self.evaluation(scores(solution.code)[0]) for solution in solutions]

    def evaluation(self, real):
        if real is None:
            return Evaluation(Outcome("infrastructure"), error="the disk is full")
        return Evaluation(Outcome("ok", stdout="executed"), Grade("ok", score=0.9, percentile=real))


class WorldModel:
    def __init__(self):
        self.asked = []
        self.halves = []

    def predict(self, requests):
        self.asked += [request.solution for request in requests]
        self.halves += [request.context["split"] for request in requests]
        predicted = [scores(request.solution)[1] for request in requests]
        return [Prediction(p, error="unreadable" if p is None else None) for p in predicted]


def make(fraction, missing="execute", **settings):
    executor, world_model = Executor(), WorldModel()
    env = gym.make("wmrl/MLEDojo-v0", competition="digits", evaluator=executor, max_turns=2, **settings)
    reward = WorldModelReward(anchor_fraction=fraction)
    wrapped = WorldModelRewardWrapper(env, world_model, missing=missing, reward=reward)
    return wrapped, executor, world_model


def play(env, *replies, **options):
    """The rewards, the last info["wmrl"] and all observations of an episode."""
    observation, _ = env.reset(seed=0, options=options)
    rewards, observations = [], [observation]
    for reply in replies:
        observation, reward, terminated, _, info = env.step(reply)
        rewards.append(reward)
        observations.append(observation)
    assert terminated
    return rewards, info["wmrl"], observations


def play_predicted(env, *replies):
    """An episode of a group that is not an anchor."""
    for number in range(100):
        _, info = env.reset(options={"group": number})
        if not info["wmrl"]["anchor"]:
            return play(env, *replies, group=number)
    raise AssertionError("every group is an anchor")


def test_groups_that_are_not_anchors_execute_nothing_at_all():
    env, executor, _ = make(0.1)
    anchors = 0
    for number in range(30):
        before = len(executor.executed)
        replies = (program(0.2, 0.7), program(0.3, 0.6))
        rewards, row, observations = play(env, *replies, group=number)
        anchors += row["anchor"]
        assert rewards == [0.0, 0.3 if row["anchor"] else 0.6]
        assert len(executor.executed) - before == (2 if row["anchor"] else 0)
        assert ("executed" in observations[1]) == row["anchor"]
        assert ("percentile: 0.70" in observations[1]) == (not row["anchor"])
    assert anchors == 3


def test_an_anchor_is_scored_twice_and_gives_a_pair():
    env, _, world_model = make(1.0)
    rewards, row, _ = play(env, program(0.2, 0.7), program(0.3, 0.6))
    assert rewards == [0.0, 0.3]
    assert (row["source"], row["real"], row["predicted"], row["calibrated"]) == ("real", 0.3, 0.6, 0.6)
    assert len(world_model.asked) == 1  # the program that counts
    env.reset()
    assert [(p.real, p.predicted) for p in env.reward.pool.pairs().rows()] == [(0.3, 0.6)]


def test_the_best_turn_is_the_best_under_each_judge():
    env, _, _ = make(1.0, trajectory_score="best")
    rewards, row, _ = play(env, program(0.5, 0.1), program(0.3, 0.6))
    assert (rewards[-1], row["real"], row["predicted"]) == (0.5, 0.5, 0.6)


def test_a_missing_prediction_is_executed_for_real_the_scored_program_only():
    env, executor, _ = make(0.1)
    rewards, row, observations = play_predicted(env, program(0.2, 0.7), program(0.3, None))
    assert rewards == [0.0, 0.3]
    assert (row["source"], row["real"], row["predicted"], row["error"]) == ("real", 0.3, None, "unreadable")
    assert executor.executed == ["real = 0.3\npredicted = None"]
    assert "executed" not in "".join(observations)


def test_a_missing_prediction_is_dropped_if_that_is_asked_for():
    env, executor, _ = make(0.1, missing="drop")
    rewards, row, _ = play_predicted(env, program(0.2, 0.7), program(0.3, None))
    assert math.isnan(rewards[-1])
    assert (row["source"], row["real"], row["predicted"], row["error"]) == (
        "world_model",
        None,
        None,
        "unreadable",
    )
    assert executor.executed == []


def test_an_execution_that_fails_on_an_anchor_is_missing_and_gives_no_pair():
    env, _, _ = make(1.0)
    rewards, row, _ = play(env, program(0.2, 0.7), program(None, 0.6))
    assert math.isnan(rewards[-1])
    assert (row["real"], row["predicted"], row["error"]) == (None, 0.6, "the disk is full")
    env.reset()
    assert len(env.reward.pool) == 0


@pytest.mark.parametrize("missing", ["execute", "drop"])
def test_an_episode_without_a_program_scores_zero_and_costs_nothing(missing):
    env, executor, world_model = make(0.1, missing)
    rewards, row, _ = play_predicted(env, "I do not know.", "submit")
    assert rewards == [0.0, 0.0]
    assert (row["source"], row["real"], row["predicted"], row["error"]) == ("real", 0.0, None, None)
    assert executor.executed == world_model.asked == []


def test_an_evaluator_in_the_options_is_the_real_one_of_that_episode():
    env, executor, _ = make(1.0)
    other = Executor()
    play(env, program(0.2, 0.7), "submit", evaluator=other)
    assert (len(other.executed), len(executor.executed)) == (1, 0)


def test_the_world_model_is_asked_about_the_half_that_is_scored():
    env, _, world_model = make(0.1, half="private")
    play_predicted(env, program(0.2, 0.7), "submit")
    assert world_model.halves == ["private"]
