"""The small model of progress: its labels by hand, and what it learns of a dot that has to go right."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_rewards import PredictionRequest, ProgressModel, ProgressRollout, RewardError, check_world_model
from wmrl_rewards.world_models.progress import _stretch, progress_labels

TASK = "move the dot to the right"


def dot(seed, success, images):
    """A dot that wanders to the right edge, or stops on its way; what it shows, and a distractor."""
    generator = np.random.default_rng(seed)
    length = int(generator.integers(16, 30))
    end = 1.0 if success else generator.uniform(0, 0.6)
    x = np.linspace(0, end, length)
    y = 0.5 + 0.2 * np.sin(np.arange(length) / 3 + generator.uniform(0, 6))
    if not success:
        x, y = np.pad(x, (0, 30 - length), mode="edge"), np.pad(y, (0, 30 - length), mode="edge")
    if not images:
        return np.stack([x, y, generator.normal(size=len(x))], axis=1)
    frames = generator.integers(0, 30, (len(x), 40, 40, 3), dtype=np.uint8)
    for frame, column, row in zip(frames, x * 34, y * 34, strict=True):
        frame[int(row) : int(row) + 6, int(column) : int(column) + 6] = (255, 80, 0)
    return frames


def rollouts(images, count=24):
    return [ProgressRollout(dot(i, i % 2 == 0, images), TASK, i % 2 == 0) for i in range(count)]


def unseen(images, success):
    return [PredictionRequest(TASK, frames=dot(1000 + i, success, images)) for i in range(12)]


def model_of(images, **settings):
    return ProgressModel(
        [TASK, "another"],
        observed="images" if images else "states",
        state_size=None if images else 3,
        hidden=32,
        **settings,
    )


@pytest.fixture(scope="module")
def states_model():
    model = model_of(False)
    model.fit(rollouts(False), steps=200, batch_size=16, learning_rate=3e-3)
    return model


def ranks(model, images):
    """Share of pairs of a good and a failed rollout, both unseen, that are ranked rightly."""
    good, bad = (np.array([p.score for p in model.predict(unseen(images, kind))]) for kind in (True, False))
    return np.mean(good[:, None] > bad[None])


def test_it_learns_to_rank_unseen_rollouts_by_states(states_model):
    assert ranks(states_model, False) > 0.95
    for seen in states_model.progress(unseen(False, True)):
        assert seen.values[0] < 0.3
        assert seen.values[-1] > 0.7
        assert np.mean([after > before for before, after in pairwise(seen.values)]) > 0.8


@pytest.mark.slow
def test_it_learns_to_rank_unseen_rollouts_by_images():
    model = model_of(True)
    losses = model.fit(rollouts(True), steps=120, batch_size=16, learning_rate=3e-3)
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) / 2
    assert ranks(model, True) > 0.9


def test_going_back_loses_ground(states_model):
    there = dot(2000, True, False)
    back = np.concatenate([there, there[::-1]])
    (seen,) = states_model.progress([PredictionRequest(TASK, frames=back)])
    assert max(seen.values) - seen.values[-1] > 0.2


def test_what_is_said_of_a_frame_depends_on_it_and_those_before_it_alone(states_model):
    frames = dot(3000, True, False)[:8]
    changed = frames.copy()
    changed[5:] += 1
    before, after = (states_model.progress([PredictionRequest(TASK, frames=f)])[0] for f in (frames, changed))
    assert before.values[:5] == pytest.approx(after.values[:5], abs=1e-6)
    assert before.values[5] != pytest.approx(after.values[5], abs=1e-3)


@pytest.mark.parametrize("images", [False, True])
def test_the_same_seed_gives_the_same_model_and_another_one_another(images):
    def trained(seed):
        model = model_of(images, seed=seed)
        model.fit(rollouts(images, 4), steps=3, batch_size=4, seed=seed)
        return model.fingerprint

    assert trained(1) == trained(1) != trained(2)


def test_saved_and_loaded_it_is_the_same(states_model, tmp_path):
    states_model.save(tmp_path / "model")
    loaded = ProgressModel.load(tmp_path / "model")
    assert loaded.progress(unseen(False, True)) == states_model.progress(unseen(False, True))
    assert loaded.fingerprint == states_model.fingerprint
    assert ProgressModel.load(tmp_path / "model", reduction="max").fingerprint != loaded.fingerprint
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"progress.json", "progress.safetensors"}


def test_it_keeps_the_contract(states_model):
    check_world_model(states_model, unseen(False, True)[:2])


def test_images_of_any_size_are_read():
    model = model_of(True)
    model.fit(rollouts(True, 2), steps=1, batch_size=2)
    sizes = [(8, 8), (128, 128), (33, 47)]
    asked = [PredictionRequest(TASK, frames=np.zeros((5, *size, 3), np.uint8)) for size in sizes]
    assert all(prediction.score is not None for prediction in model.predict(asked))


@pytest.mark.parametrize(
    ("task", "frames", "problem"),
    [
        (TASK, None, "holds no frames"),
        (TASK, np.zeros((3, 4)), r"shape \(T, 3\), not \(3, 4\)"),
        (TASK, np.zeros((0, 3)), "shape"),
        (TASK, np.zeros((5, 3), np.int64), "reads states"),
        (TASK, np.full((5, 3), np.nan), "not finite"),
        ("fly", np.zeros((5, 3)), "was not trained on the task 'fly'"),
    ],
)
def test_what_cannot_be_judged_costs_only_itself(states_model, task, frames, problem):
    good = unseen(False, True)[0]
    first, bad, last = states_model.predict([good, PredictionRequest(task, frames=frames), good])
    assert first.score == last.score is not None
    assert bad.score is None
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(bad.error)


def test_before_it_learned_it_says_nothing():
    (prediction,) = model_of(False).predict(unseen(False, True)[:1])
    assert (prediction.score, prediction.error) == (None, "The progress model has not been fitted yet.")


def test_labels_by_hand():
    def rollout(length, success, task="a", labels=None):
        return ProgressRollout(np.zeros((length, 1)), task, success, labels)

    found = progress_labels(
        [
            rollout(3, True),
            rollout(5, True),
            rollout(6, False),
            rollout(3, False, "b"),
            rollout(2, False, labels=[0.1, 0.9]),
        ],
        failure_ceiling=0.75,
    )
    expected = [
        [0, 0.5, 1],
        [0, 0.25, 0.5, 0.75, 1],
        [0, 1 / 3, 2 / 3, 0.75, 0.75, 0.75],
        [0, 0.5, 0.75],
        [0.1, 0.9],
    ]
    for labels, by_hand in zip(found, expected, strict=True):
        assert labels == pytest.approx(by_hand)


@given(st.integers(2, 60), st.integers(0, 2**32 - 1))
def test_a_stretch_moves_by_neighbours_forwards_or_back(length, seed):
    pick = _stretch(length, np.random.default_rng(seed))
    assert len(pick) == 8
    assert 0 <= pick.min() <= pick.max() < length
    turns = np.diff(np.sign([step for step in np.diff(pick) if step]))
    assert np.count_nonzero(turns) <= 1


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (ProgressRollout(np.zeros((4, 2)), TASK, True), "Rollout 1 .* shape"),
        (ProgressRollout(np.zeros((1, 3)), TASK, True), "Rollout 1 .* single frame"),
        (ProgressRollout(np.zeros((4, 3)), "fly", True), "Rollout 1 .* none of the model's"),
        (ProgressRollout(np.zeros((4, 3)), TASK, True, [0, 1]), "Rollout 1 .* one number"),
        (ProgressRollout(np.zeros((2, 3)), TASK, True, [0, 1.5]), "Rollout 1 .* one number"),
    ],
)
def test_what_cannot_be_learned_from_is_named(bad, sentence):
    with pytest.raises(RewardError, match=sentence):
        model_of(False).fit([rollouts(False, 1)[0], bad], steps=1)


def test_no_rollouts_and_a_wrong_ceiling_are_refused():
    with pytest.raises(RewardError, match="at least one rollout"):
        model_of(False).fit([])
    with pytest.raises(ConfigError, match="failure_ceiling"):
        model_of(False).fit(rollouts(False, 1), steps=1, failure_ceiling=2)


@pytest.mark.parametrize(
    "settings",
    [
        {"tasks": []},
        {"tasks": ["a", "a"]},
        {"tasks": ["a"], "observed": "sounds"},
        {"tasks": ["a"], "observed": "states"},
        {"tasks": ["a"], "state_size": 3},
        {"tasks": ["a"], "hidden": 0},
    ],
)
def test_wrong_settings_are_refused(settings):
    with pytest.raises(ConfigError):
        ProgressModel(**settings)


def test_a_folder_that_is_none_is_one_sentence(states_model, tmp_path):
    with pytest.raises(WMRLError, match="no progress model"):
        ProgressModel.load(tmp_path / "nothing")
    states_model.save(tmp_path)
    (tmp_path / "progress.safetensors").write_bytes(b"\x08" * 20)
    with pytest.raises(WMRLError, match="no progress model"):
        ProgressModel.load(tmp_path)
    settings = json.loads((tmp_path / "progress.json").read_text())
    (tmp_path / "progress.json").write_text(json.dumps(settings | {"surprise": 1}))
    with pytest.raises(WMRLError, match="surprise"):
        ProgressModel.load(tmp_path)


def test_progress_lines_are_reported():
    lines = []
    model_of(False).fit(rollouts(False, 2), steps=3, batch_size=2, report=lambda *line: lines.append(line))
    assert [step for step, _ in lines] == [0, 1, 2]
    assert all(loss > 0 for _, loss in lines)
