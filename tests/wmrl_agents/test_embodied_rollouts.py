"""A robot through the trainer: who is scored by whom, the same each time, and that it learns."""

import numpy as np
import pytest

from tests.dots import BASE, LEFT, RIGHT, Ruler, dots, trainer_in
from tests.outcomes import robot_outcome
from wmrl_agents import GRPOConfig
from wmrl_agents.grpo.config import load_preset
from wmrl_agents.grpo.embodied_rollouts import frames_of
from wmrl_agents.grpo.robots import RobotStart, draw_starts, load_suite, numbers
from wmrl_agents.grpo.simulators import Simulators
from wmrl_agents.policies.vla.records import Observation
from wmrl_agents.report import write_report
from wmrl_agents.runs import read_metrics
from wmrl_envs.errors import ConfigError, InfrastructureError


def train(folder, **settings):
    trainer = trainer_in(folder, **settings)
    assert trainer.train()
    trainer.close()
    return trainer


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dots") / "run"
    train(folder)
    return robot_outcome(folder)


def test_a_run_is_the_same_each_time(tmp_path, uninterrupted):
    train(tmp_path / "run")
    assert robot_outcome(tmp_path / "run") == uninterrupted


def test_a_step_and_a_resume_equal_all_steps(tmp_path, uninterrupted):
    train(tmp_path / "run", steps=1)
    train(tmp_path / "run")
    assert robot_outcome(tmp_path / "run") == uninterrupted


def test_another_seed_is_another_run(tmp_path, uninterrupted):
    train(tmp_path / "run", seed=1)
    assert robot_outcome(tmp_path / "run")["weights"] != uninterrupted["weights"]


@pytest.mark.parametrize("changes", [{"micro_batch": 3}, {"simulators": 1}, {"simulators": 16}])
def test_micro_batches_and_seats_change_nothing_but_rounding(tmp_path, changes):
    runs = []
    for number, settings in enumerate(({"micro_batch": 16, "simulators": 16}, changes)):
        train(tmp_path / str(number), steps=1, **settings)
        runs.append(robot_outcome(tmp_path / str(number)))
    actions = [[row[:6] for row in run["rows"]["turns"]] for run in runs]
    assert actions[0] == actions[1]
    for name, values in runs[0]["weights"].items():
        np.testing.assert_allclose(values, runs[1]["weights"][name], rtol=1e-4, atol=1e-5)


# reward_source: (groups in a step, those that the simulator scores)
STREAMS = {"real": (4, 4), "world_model": (4, 0), "mixture": (4, 2), "wmrl": (4, 2), "anchors_alone": (2, 2)}


@pytest.mark.parametrize("reward_source", STREAMS)
def test_anchors_have_success_and_every_group_a_prediction(tmp_path, reward_source):
    ruler = Ruler()
    train(tmp_path / "run", world_model=ruler, steps=1, reward_source=reward_source)
    groups, anchors = STREAMS[reward_source]
    asks = reward_source in ("world_model", "mixture", "wmrl")
    assert ruler.asked == (4 * groups if asks else 0)
    rows = robot_outcome(tmp_path / "run")["rows"]
    assert len(rows["trajectories"]) == 4 * groups
    for row in rows["trajectories"]:
        source, real, predicted = row[5], row[6], row[7]
        assert (real in (0.0, 1.0)) == (source == "real")
        assert (predicted is not None) == asks
    assert sum(row[5] == "real" for row in rows["trajectories"]) == 4 * anchors
    assert len(rows["pairs"]) == (4 * anchors if asks else 0)
    [step] = read_metrics(tmp_path / "run")
    assert (step["executions"], step["executions_real_would_use"]) == (4 * anchors, 16)
    assert step["tokens"] == 2 * step["turns"]


@pytest.mark.parametrize(("anchor_fraction", "executions"), [(0.1, 4), (0.5, 8), (1.0, 16)])
def test_any_share_of_the_successes_may_be_used(tmp_path, anchor_fraction, executions):
    train(tmp_path / "run", steps=2, anchor_fraction=anchor_fraction)
    assert [step["executions"] for step in read_metrics(tmp_path / "run")] == [executions] * 2


def test_gradients_of_groups_can_be_audited(tmp_path, uninterrupted):
    train(tmp_path / "run", audit_gradients=True)
    assert robot_outcome(tmp_path / "run")["weights"] == uninterrupted["weights"]
    assert read_metrics(tmp_path / "run")[-1]["audit_groups"] > 0


def test_the_same_groups_are_played_whoever_scores_them(tmp_path):
    runs = {}
    for source in ("real", "world_model"):
        train(tmp_path / source, steps=1, reward_source=source)
        runs[source] = [row[:6] for row in robot_outcome(tmp_path / source)["rows"]["turns"]]
    assert runs["real"] == runs["world_model"]


def test_members_of_a_group_begin_alike_and_act_apart(uninterrupted):
    said = [row[5] for row in uninterrupted["rows"]["turns"] if row[:2] == (0, 0)]
    assert len({text.split(" from ")[1] for text in said}) == 1
    assert len(set(said)) > 1


def test_where_progress_is_not_seen_success_counts_or_the_member_is_lost(tmp_path):
    train(tmp_path / "execute", world_model=Ruler(silent=True), steps=1)
    [step] = read_metrics(tmp_path / "execute")
    assert (step["rescued"], step["missing"], step["executions"]) == (8, 0, 16)
    train(tmp_path / "drop", world_model=Ruler(silent=True), steps=1, missing="drop")
    [step] = read_metrics(tmp_path / "drop")
    assert (step["rescued"], step["missing"], step["executions"]) == (0, 8, 8)


def test_it_learns_to_reach_the_goal(tmp_path):
    train(tmp_path / "run", steps=25, learning_rate=0.01, entropy_coefficient=0.0, kl_coefficient=0.0)
    success = [step["score_real"] for step in read_metrics(tmp_path / "run")]
    assert np.mean(success[:3]) < 0.3
    assert np.mean(success[-5:]) > 0.8
    assert read_metrics(tmp_path / "run")[-1]["fitted"]


def test_a_report_is_written_of_it(tmp_path):
    train(tmp_path / "run", steps=2)
    page = write_report(tmp_path / "run").read_text()
    assert "task 0, state" in page or "task 1, state" in page


def test_other_tasks_or_another_world_model_do_not_go_on_with_a_run(tmp_path):
    train(tmp_path / "run", steps=1)
    with pytest.raises(ConfigError, match="changed since this run's checkpoint"):
        trainer_in(tmp_path / "run", suite=dots(tasks=(1,)))


def test_a_world_model_has_to_know_the_tasks(tmp_path):
    ruler = Ruler()
    ruler.tasks = (LEFT,)
    with pytest.raises(ConfigError, match="does not know task 1"):
        trainer_in(tmp_path / "run", world_model=ruler)


def test_frames_are_what_the_world_model_reads():
    moments = [Observation(np.full(3, t, np.float32), np.full((4, 4, 3), t, np.uint8)) for t in range(3)]
    states, pictures = frames_of(moments, Ruler()), frames_of(moments, object())
    assert (states.shape, pictures.shape) == ((3, 3), (3, 4, 4, 3))
    assert states[:, 0].tolist() == [0, 1, 2]
    assert frames_of([Observation(np.zeros(3, np.float32))], object()).shape == (1, 3)
    assert frames_of([Observation()], object()) is None


def test_seats_in_processes_see_what_seats_in_this_one_see():
    starts = {0: RobotStart(0, 2, 1), 1: RobotStart(1, 3)}
    chunk = np.zeros((8, 7), np.float32)
    chunk[:, 0] = 0.7
    seen = []
    for light in (True, False):
        simulators = Simulators(dots(light=light), 2)
        try:
            shown = [
                simulators.reset(starts),
                simulators.step({0: chunk, 1: -chunk}),
                simulators.step({1: chunk}),
            ]
        finally:
            simulators.close()
        seen.append([[(n, s.observation.state.tolist(), s.over) for n, s in part.items()] for part in shown])
    assert seen[0] == seen[1]


def broken(task):
    import os

    os._exit(1)


def test_a_process_that_ends_is_one_sentence():
    simulators = Simulators(dots(light=False).__class__("x", {0: RIGHT}, (0,), 1, broken, observe_nothing), 2)
    with pytest.raises(InfrastructureError, match="A process of 2 simulators has ended"):
        simulators.reset({0: RobotStart(0, 0)})
    simulators.close()


def observe_nothing(shown):
    return Observation()


def test_starts_go_through_all_tasks_and_states():
    suite = dots()
    drawn = [start for step in range(3) for start in draw_starts(suite, 4, seed=0, step=step)]
    assert sorted((one.task, one.init_state) for one in drawn) == sorted(
        (task, state) for task in (0, 1) for state in (0, 1, 2) for _ in range(2)
    )
    for step in range(3):
        tasks = [start.task for start in draw_starts(suite, 4, seed=0, step=step)]
        assert sorted(tasks) == [0, 0, 1, 1]
    assert {start.env_seed for start in drawn} == {0}


def test_the_papers_preset_plays_eight_states_of_every_task_eight_times():
    config = GRPOConfig.from_mapping(load_preset("libero-paper"))
    assert (config.steps, config.group_size, config.horizon, config.evaluation_repeats) == (40, 8, 520, 8)
    suite = load_suite(config)
    steps = [draw_starts(suite, config.groups_per_step, seed=0, step=step) for step in range(2)]
    for task in range(10):
        states = [[one.init_state for one in step if one.task == task] for step in steps]
        assert [len(part) for part in states] == [8, 8]
        assert sorted(states[0] + states[1]) == list(range(16))


@pytest.mark.parametrize("wrong", ["x", "50", "5-3", "-1", "1.5", ""])
def test_numbers_that_are_none_are_refused(wrong):
    with pytest.raises(ConfigError, match="init_states must be numbers from 0 to 49"):
        numbers((wrong,), "init_states", 50)


def test_the_suite_of_a_config_is_known_without_a_simulator():
    suite = load_suite(BASE.replace(libero_tasks="8", init_states="0-3,7"))
    assert suite.instructions == {8: "put both moka pots on the stove"}
    assert (suite.init_states, suite.num_init_states) == ((0, 1, 2, 3, 7), 50)
    with pytest.raises(ConfigError, match="libero_tasks must be numbers from 0 to 9"):
        load_suite(BASE.replace(libero_tasks="10"))
