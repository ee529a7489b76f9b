"""Supervised training on demonstrations: chunks by hand, resuming bit for bit, and that it learns."""

import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wmrl_agents.policies.vla.imitation import (
    Demonstrated,
    Imitation,
    ImitationConfig,
    chunks_of,
    newest_policy,
)
from wmrl_agents.policies.vla.records import Observation
from wmrl_agents.policies.vla.small_vla import SmallVLA
from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_envs.libero.views import PictureView

SMALL = {"steps": 6, "batch_size": 16, "hidden": 16, "codes": 8, "report_every": 2, "checkpoint_every": 3}


def reach(seed, pictures=False, states=True):
    """A hand that goes straight to a goal and closes there: states are hand and goal."""
    generator = np.random.default_rng(seed)
    hand, goal = generator.uniform(-1, 1, (2, 3))
    seen, actions = [], []
    for _ in range(24):
        seen.append(np.concatenate([hand, goal]))
        move = np.clip((goal - hand) * 4, -1, 1)
        near = np.abs(goal - hand).max() < 0.05
        actions.append([*move, 0, 0, 0, 1.0 if near else -1.0])
        hand = hand + 0.1 * move
    images = generator.integers(0, 256, (24, 16, 16, 3), dtype=np.uint8) if pictures else None
    return Demonstrated("reach", np.array(actions), np.array(seen) if states else None, images)


def seldom(seed, every):
    """The same, seen at some of its steps alone."""
    one = reach(seed, pictures=True)
    return Demonstrated(one.task, one.actions, one.states[::every], one.images[::every], every)


def config(**changes):
    return ImitationConfig(**SMALL | changes)


def weights(policy):
    return policy.network.state_dict()


def same(first, second):
    return all(torch.equal(value, second[name]) for name, value in first.items())


def test_chunks_by_hand():
    actions = np.arange(21).reshape(3, 7) / 100
    found = chunks_of(actions, length=3)
    rest = [0.0] * 6 + [0.2]
    assert found[0] == pytest.approx(actions)
    assert found[1] == pytest.approx(np.array([actions[1], actions[2], rest]))
    assert found[2] == pytest.approx(np.array([actions[2], rest, rest]))


@given(st.integers(1, 30), st.integers(1, 9))
def test_every_step_begins_a_chunk(steps, length):
    actions = np.random.default_rng(steps).uniform(-1, 1, (steps, 7)).astype(np.float32)
    found = chunks_of(actions, length)
    assert found.shape == (steps, length, 7)
    assert np.array_equal(found[:, 0], actions)


def test_a_run_writes_what_it_says(tmp_path):
    lines = []
    run = Imitation([reach(i) for i in range(5)], tmp_path / "run", config(held_out=0.2), lines.append)
    last = run.run()
    assert last == newest_policy(tmp_path / "run") == tmp_path / "run" / "checkpoints" / "step-6"
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {"step-3", "step-6"}
    written = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert written == lines
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert all(line["held_out_loss"] > 0 and 0 <= line["first_token"] <= 1 for line in lines)
    assert json.loads((tmp_path / "run" / "sft.json").read_text())["examples"] == 4 * 24
    assert same(weights(SmallVLA.load(last)), weights(run.policy))


@pytest.mark.parametrize("pictures", [False, True])
def test_six_steps_are_three_and_three_more_bit_for_bit(tmp_path, pictures):
    episodes = [reach(i, pictures) for i in range(3)]
    whole = Imitation(episodes, tmp_path / "whole", config())
    whole.run()
    half = Imitation(episodes, tmp_path / "half", config())
    half.run(until=3)
    rest = Imitation(episodes, tmp_path / "half", config())
    assert rest.step == 3
    rest.run()
    assert same(weights(whole.policy), weights(rest.policy))


def test_training_leaves_the_global_generator_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    Imitation([reach(0), reach(1)], tmp_path, config(dropout=0.5)).run()
    assert torch.rand(1) == expected


def test_a_run_that_was_killed_goes_on_from_its_checkpoint(tmp_path):
    episodes = [reach(i) for i in range(3)]
    whole = Imitation(episodes, tmp_path / "whole", config())
    whole.run()
    killed = Imitation(episodes, tmp_path / "killed", config())
    killed.run(until=5)
    folder = tmp_path / "killed" / "checkpoints"
    (folder / "step-5").rename(folder / "unfinished-5")  # killed while it wrote
    (folder / "unfinished-5" / "optimizer.pt").unlink()
    again = Imitation(episodes, tmp_path / "killed", config())
    assert again.step == 3
    again.run()
    assert same(weights(whole.policy), weights(again.policy))


def test_a_finished_run_does_nothing_more(tmp_path):
    episodes = [reach(0), reach(1)]
    Imitation(episodes, tmp_path, config()).run()
    before = (tmp_path / "metrics.jsonl").read_text()
    Imitation(episodes, tmp_path, config()).run()
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_other_settings_or_episodes_are_another_run(tmp_path):
    Imitation([reach(0), reach(1)], tmp_path, config())
    with pytest.raises(ConfigError, match=r"other settings \(seed: 0 -> 1\)"):
        Imitation([reach(0), reach(1)], tmp_path, config(seed=1))
    with pytest.raises(ConfigError, match="episodes: 2 -> 3"):
        Imitation([reach(0), reach(1), reach(2)], tmp_path, config())


def test_seeds_decide_everything(tmp_path):
    def trained(name, seed):
        run = Imitation([reach(0), reach(1)], tmp_path / name, config(seed=seed))
        run.run()
        return weights(run.policy)

    first, again, other = trained("a", 0), trained("b", 0), trained("c", 1)
    assert same(first, again)
    assert not same(first, other)


def test_held_out_episodes_are_not_learned_from(tmp_path):
    run = Imitation([reach(i) for i in range(10)], tmp_path, config(held_out=0.3))
    assert (len(run._train), len(run._held)) == (7 * 24, 3 * 24)
    shown, measured = ({state.tobytes() for state in part.states} for part in (run._train, run._held))
    assert not shown & measured
    one = Imitation([reach(0)], tmp_path / "one", config(held_out=0.9))
    assert (len(one._train), len(one._held)) == (24, 0)
    assert one.measure() == {"held_out_loss": None, "first_token": None}


@pytest.mark.slow
def test_it_learns_to_reach_where_it_was_never_shown(tmp_path):
    settings = config(steps=400, batch_size=128, hidden=64, codes=32, learning_rate=3e-3, report_every=400)
    run = Imitation([reach(i) for i in range(60)], tmp_path, settings)
    policy = SmallVLA.load(run.run())
    ends, starts = [], []
    for seed in range(1000, 1030):
        states = reach(seed).states
        hand, goal = states[0, :3], states[0, 3:]
        starts.append(np.linalg.norm(goal - hand))
        for _ in range(3):
            seen = Observation(np.concatenate([hand, goal]).astype(np.float32))
            [sample] = policy.sample([policy.begin("reach", seen)], seed=0, greedy=True)
            for action in policy.chunk(sample):
                hand = hand + 0.1 * action[:3]
        ends.append(np.linalg.norm(goal - hand))
    assert np.median(ends) < np.median(starts) / 4


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (Demonstrated("reach", np.zeros((4, 6)), np.zeros((4, 6))), r"actions are of shape \(4, 6\)"),
        (Demonstrated("reach", np.zeros((0, 7)), np.zeros((0, 6))), "actions are of shape"),
        (Demonstrated("reach", np.full((4, 7), 2.0), np.zeros((4, 6))), r"not in \[-1, 1\]"),
        (Demonstrated("reach", np.full((4, 7), np.nan), np.zeros((4, 6))), r"not in \[-1, 1\]"),
        (Demonstrated("reach", np.zeros((4, 7)), np.zeros((3, 6))), "shows less than there are examples"),
        (Demonstrated("reach", np.zeros((4, 7)), np.zeros((4, 5))), "unlike those of the first one"),
        (Demonstrated("reach", np.zeros((4, 7))), "other things than the first one"),
        (reach(0, pictures=True), "other things than the first one"),
        (Demonstrated("reach", np.zeros((5, 7)), np.zeros((2, 6)), every=2), "less than there are examples"),
    ],
)
def test_what_cannot_be_learned_from_is_named(tmp_path, bad, sentence):
    with pytest.raises(ConfigError, match=f"Demonstration 1 .*{sentence}"):
        Imitation([reach(0), bad], tmp_path, config())
    assert not (tmp_path / "sft.json").exists()


def test_pictures_are_all_of_one_shape(tmp_path):
    small = reach(1, pictures=True)
    small = Demonstrated(small.task, small.actions, small.states, small.images[:, :8, :8])
    with pytest.raises(ConfigError, match=r"Demonstration 1 .* pictures are of shape \(8, 8, 3\)"):
        Imitation([reach(0, pictures=True), small], tmp_path, config())


def test_steps_that_nobody_saw_are_no_examples_but_belong_to_chunks(tmp_path):
    episodes = [seldom(0, 5), seldom(1, 7)]
    run = Imitation(episodes, tmp_path, config(held_out=0.0), view=PictureView(image_size=16))
    whole = [chunks_of(reach(0).actions)[[0, 5, 10, 15, 20]], chunks_of(reach(1).actions)[[0, 7, 14, 21]]]
    assert np.array_equal(run._train.chunks, np.concatenate(whole))
    tasks, seen = run._train.at(np.array([1, 8]))
    assert tasks == ["reach", "reach"]
    assert np.array_equal(seen[0].image, reach(0, pictures=True).images[5])
    assert seen[1].state == pytest.approx(reach(1).states[21])
    policy = SmallVLA.load(run.run())
    assert policy.view == PictureView(image_size=16)


def test_nothing_and_blind_demonstrations_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no demonstrations"):
        Imitation([], tmp_path, config())
    with pytest.raises(ConfigError, match="neither states nor pictures"):
        Imitation([Demonstrated("reach", np.zeros((4, 7)))], tmp_path, config())


@pytest.mark.parametrize(
    "settings",
    [{"steps": 0}, {"held_out": 1.0}, {"held_out": -0.1}, {"learning_rate": 0}, {"state_noise": -1}],
)
def test_wrong_settings_are_refused(settings):
    with pytest.raises(ConfigError):
        ImitationConfig(**settings)


def test_no_policy_is_one_sentence(tmp_path):
    with pytest.raises(WMRLError, match="no policy in"):
        newest_policy(tmp_path)
    shutil.copytree(tmp_path, tmp_path / "checkpoints" / "step-x")
    with pytest.raises(WMRLError, match="no policy in"):
        newest_policy(tmp_path)
