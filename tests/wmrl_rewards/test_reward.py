import json

import numpy as np
import pytest

from wmrl_envs.errors import WMRLError
from wmrl_rewards import AnchorWeight, IsotonicDebiaser, PairPool, WorldModelReward, fuse

NAN = np.nan
SMALL = {"anchor_fraction": 0.25, "min_pairs": 16, "refit_every": 8, "warmup_groups": 2}


def draw_step(rng, anchors, groups=8, members=4):
    """A step whose world model squares the truth and adds noise; some scores are missing."""
    sources = ["real" if k in anchors else "world_model" for k in range(groups)]
    truth = rng.random((groups, members))
    predicted = np.clip(truth**2 + rng.normal(0, 0.1, truth.shape), 0, 1)
    predicted[rng.random(truth.shape) < 0.1] = NAN
    real = np.where(np.array(sources)[:, None] == "real", truth, NAN)
    real[rng.random(truth.shape) < 0.1] = NAN
    return sources, real, predicted


def run(reward, steps, first=0, seed=0):
    """Run steps and return what each of them used."""
    used = []
    for step in range(first, first + steps):
        anchors = reward.draw_anchors(8)
        data = draw_step(np.random.default_rng([seed, step]), anchors)
        used.append((anchors, reward.coefficients(*data).tolist(), reward.rho))
        reward.observe(step, *data)
    return used


def test_a_step_uses_the_map_and_the_weight_of_earlier_steps_only():
    reward = WorldModelReward(**SMALL)
    debiaser, weight = IsotonicDebiaser(min_pairs=16, refit_every=8), AnchorWeight(warmup_groups=2)
    for step in range(20):
        sources, real, predicted = draw_step(np.random.default_rng(step), reward.draw_anchors(8))
        calibrated = debiaser(predicted)
        assert np.array_equal(reward.calibrate(predicted), calibrated, equal_nan=True)
        assert reward.rho == weight.rho
        expected = fuse(sources, real, np.where(np.isnan(calibrated), real, calibrated), weight.rho)
        assert np.array_equal(reward.coefficients(sources, real, predicted), expected)
        reward.observe(step, sources, real, predicted)
        anchors = [k for k, source in enumerate(sources) if source == "real"]
        if debiaser.fitted:
            for k in anchors:
                weight.observe(calibrated[k], real[k])
        paired = ~np.isnan(real) & ~np.isnan(predicted)
        rows = [(predicted[k, i], real[k, i]) for k in anchors for i in np.flatnonzero(paired[k])]
        debiaser.update([p for p, _ in rows], [r for _, r in rows])
    assert reward.rho not in (1.0, 4.0)


def test_the_pool_takes_the_pairs_of_anchors_only_with_their_places():
    reward = WorldModelReward()
    real = [[0.1, NAN, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, NAN]]
    predicted = [[0.2, 0.3, 0.4], [0.5, 0.6, 0.7], [NAN, 0.9, 1.0]]
    contexts = [[{"task": k}] * 3 for k in range(3)]
    reward.observe(4, ["real", "world_model", "real"], real, predicted, contexts)
    rows = [(p.step, p.group, p.member, p.predicted, p.real, p.context) for p in reward.pool.pairs().rows()]
    assert rows == [
        (4, 0, 0, 0.2, 0.1, {"task": 0}),
        (4, 0, 2, 0.4, 0.3, {"task": 0}),
        (4, 2, 1, 0.9, 0.8, {"task": 2}),
    ]


def test_residuals_of_the_identity_phase_do_not_enter_the_noise():
    reward = WorldModelReward(min_pairs=4, refit_every=100, warmup_groups=1)
    scores = ([[0.0, 1.0]], [[0.5, 0.5]])
    reward.observe(0, ["real"], *scores)
    reward.observe(1, ["real"], *scores)
    assert (reward.statistics()["fitted"], reward.statistics()["eta2"]) == (True, None)
    reward.observe(2, ["real"], *scores)
    assert reward.statistics()["eta2"] == 1.0
    assert reward.rho == 2.0


def test_without_debiasing_scores_stay_raw_and_the_noise_is_that_of_raw_scores():
    reward = WorldModelReward(min_pairs=2, warmup_groups=1, debias=False)
    reward.observe(0, ["real"], [[0.0, 1.0]], [[0.2, 0.4]])
    reward.observe(1, ["real"], [[0.0, 1.0]], [[0.2, 0.4]])
    assert reward.calibrate([0.2, 0.4]).tolist() == [0.2, 0.4]
    assert reward.weight.eta2 == pytest.approx(0.8**2)


def test_without_denoising_rho_is_one_but_the_noise_is_still_measured():
    reward = WorldModelReward(**SMALL, denoise=False)
    run(reward, 12)
    assert reward.rho == reward.statistics()["rho"] == 1.0
    assert reward.weight.rho > 1


def test_the_plain_mixture_is_one_call():
    reward = WorldModelReward(**SMALL, debias=False, denoise=False)
    run(reward, 12)
    sources, real, predicted = draw_step(np.random.default_rng(9), [2])
    expected = fuse(sources, real, np.where(np.isnan(predicted), real, predicted), 1.0)
    assert np.array_equal(reward.coefficients(sources, real, predicted), expected)


@pytest.mark.parametrize("fusion", ["anchors_alone", "rectified"])
def test_other_fusions_are_one_call(fusion):
    reward = WorldModelReward(fusion=fusion, correction=0.25)
    sources, real, predicted = draw_step(np.random.default_rng(9), [2])
    calibrated = np.where(np.isnan(predicted), real, predicted)
    expected = fuse(sources, real, calibrated, 1.0, fusion, 0.25)
    assert np.array_equal(reward.coefficients(sources, real, predicted), expected)


def test_a_known_score_stands_in_where_nothing_was_predicted():
    reward = WorldModelReward()
    coefficients = reward.coefficients(["world_model"], [[0.0, NAN, NAN]], [[NAN, 0.6, NAN]])
    assert coefficients == pytest.approx(np.array([[-0.15, 0.15, 0.0]]))


@pytest.mark.parametrize("place", ["memory", "file"])
@pytest.mark.parametrize(
    "options", [{}, {"strict": "centered"}, {"debiasing_method": "inverse"}, {"pair_window": 20}]
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(place, options, tmp_path):
    def make(name):
        pool = PairPool(tmp_path / f"{name}.sqlite") if place == "file" else None
        return WorldModelReward(**SMALL, **options, pool=pool, seed=3)

    whole = make("whole")
    expected = run(whole, 14)

    killed = make("killed")
    assert run(killed, 6) == expected[:6]
    state = json.loads(json.dumps(killed.state_dict()))
    run(killed, 3, first=6)  # steps past the checkpoint; a file keeps their pairs
    resumed = make("killed")
    resumed.load_state_dict(state)
    assert resumed.next_step == 6
    assert run(resumed, 8, first=6) == expected[6:]
    assert resumed.statistics() == whole.statistics()
    assert resumed.pool.pairs().rows() == whole.pool.pairs().rows()
    assert json.dumps(resumed.state_dict()) == json.dumps(whole.state_dict())


def test_a_pool_of_another_run_is_refused(tmp_path):
    reward = WorldModelReward(**SMALL, pool=PairPool(tmp_path / "run.sqlite"))
    run(reward, 3)
    other = WorldModelReward(**SMALL, pool=PairPool(tmp_path / "other.sqlite"))
    with pytest.raises(WMRLError, match="not the pool of this run"):
        other.load_state_dict(reward.state_dict())


def test_statistics_tell_of_flattened_groups_and_bias():
    reward = WorldModelReward(min_pairs=4, refit_every=100)
    # In the wrong order: the map is flat at 0.5.
    reward.observe(0, ["real"], [[0.8, 0.2, 0.6, 0.4]], [[0.2, 0.8, 0.4, 0.6]])
    assert reward.statistics()["flattened_groups"] == 0.0  # under the identity
    assert reward.statistics()["bias"] == pytest.approx(0.0)
    predicted = [[0.3, 0.7], [0.5, 0.5], [0.2, NAN]]
    real = [[0.1, 0.3], [NAN, NAN], [NAN, NAN]]
    reward.observe(1, ["real", "world_model", "world_model"], real, predicted)
    assert reward.statistics()["flattened_groups"] == 1.0  # of the one group that had an order
    assert reward.statistics()["bias"] == pytest.approx(0.3)
    assert json.loads(json.dumps(reward.statistics())) == reward.statistics()


def test_a_step_is_observed_once():
    reward = WorldModelReward()
    reward.observe(3, ["real"], [[0.1, 0.2]], [[0.1, 0.2]])
    with pytest.raises(WMRLError, match="Step 3 was observed already; the next one is 4"):
        reward.observe(3, ["real"], [[0.1, 0.2]], [[0.1, 0.2]])


def test_a_refused_step_changes_nothing():
    reward = WorldModelReward(min_pairs=2)
    before = json.dumps(reward.state_dict())
    with pytest.raises(WMRLError, match="group 0, member 1"):
        reward.observe(0, ["real"], [[0.1, 1.2, 0.3]], [[0.1, 0.2, 0.3]])
    with pytest.raises(WMRLError, match="differ in shape"):
        reward.observe(0, ["real"], [[0.1, 0.2]], [[0.1, 0.2, 0.3]])
    with pytest.raises(WMRLError, match="shape"):
        reward.observe(0, ["real"], [0.1], [0.1])
    assert json.dumps(reward.state_dict()) == before


def test_a_step_of_which_nothing_could_be_scored_is_fine():
    reward = WorldModelReward()
    nothing = [[NAN, NAN], [NAN, NAN]]
    assert not reward.coefficients(["real", "world_model"], nothing, nothing).any()
    reward.observe(0, ["real", "world_model"], nothing, nothing)
    assert (reward.statistics()["bias"], len(reward.pool), reward.next_step) == (None, 0, 1)
