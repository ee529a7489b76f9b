"""The contract of what plays the groups of a run: programs and robots keep it alike."""

import json

import pytest

from tests.dots import Ruler, dots, policy
from tests.stubs import TabularPolicy, TokenEvaluator
from wmrl_agents import GRPOConfig, GRPOTrainer
from wmrl_agents.grpo.parts import Parts
from wmrl_envs.evaluation import Evaluation

SHAPE = {"groups_per_step": 3, "group_size": 2, "max_turns": 2, "anchor_fraction": 0.4, "kl_coefficient": 0.0}


def programs(folder):
    parts = Parts(TabularPolicy.load, TokenEvaluator(), TokenEvaluator("world_model"))
    return GRPOTrainer(GRPOConfig(**SHAPE), folder, parts)


def robots(folder):
    parts = Parts(lambda source: policy(), world_model=Ruler(), robots=dots())
    return GRPOTrainer(GRPOConfig(task_suite="libero_10", **SHAPE), folder, parts)


@pytest.fixture(params=[programs, robots], ids=["programs", "robots"])
def trainer(request, tmp_path):
    made = request.param(tmp_path / "run")
    yield made
    made.close()


def test_tasks_follow_from_the_step_alone(trainer):
    drawn = [trainer.rollouts.draw(step) for step in (4, 0, 4)]
    assert [len(tasks) for tasks in drawn] == [3, 3, 3]
    assert drawn[0] == drawn[2]


def test_versions_are_texts_and_stay(trainer):
    versions = trainer.rollouts.versions()
    assert json.loads(json.dumps(versions)) == versions == trainer.rollouts.versions()
    assert all(isinstance(text, str) and text for text in versions.values())


def test_played_groups_tell_what_is_counted_and_stored(trainer):
    groups = trainer.draw_groups(0)
    assert {group.source for group in groups} == {"real", "world_model"}
    trainer.rollouts.play(groups, 2, seed=7)
    for number, group in enumerate(groups):
        assert group.index == number
        assert group.name
        assert group.category
        assert len(group.trajectories) == 2
        for one in group.trajectories:
            real, predicted = one.scores(group.source)
            assert all(score is None or 0 <= score <= 1 for score in (real, predicted))
            assert real is not None or (group.source == "world_model" and predicted is not None)
            assert one.sample.num_own_tokens > 0
            assert one.num_turns >= 1
            rows = one.turn_rows()
            assert [row[0] for row in rows] == list(range(len(rows)))
            evaluations = [row[2] for row in one.evaluation_rows()]
            assert all(isinstance(evaluation, Evaluation) for evaluation in evaluations)
            told = [evaluation for _, evaluation in one.executed] + list(one.predicted)
            assert sorted(map(repr, evaluations)) == sorted(map(repr, told))
            assert all(evaluation.source == "real" for _, evaluation in one.executed)
            assert all(evaluation.source == "world_model" for evaluation in one.predicted)
            assert bool(one.executed) == (group.source == "real" and one.num_evaluated > 0)
            assert not one.rescued
    assert set(trainer.rollouts.phases.take()) >= {"seconds_generate", "seconds_predict", "seconds_wait"}


def test_equal_seeds_play_equal_groups(trainer):
    played = []
    for seed in (3, 3, 4):
        tasks = trainer.rollouts.draw(0)
        groups = [trainer.rollouts.group(number, task, "real") for number, task in enumerate(tasks)]
        trainer.rollouts.play(groups, 2, seed=seed)
        played.append([one.sample.token_ids for group in groups for one in group.trajectories])
    assert played[0] == played[1] != played[2]
