"""The method in small worlds where the truth is known: does it do what it is for?"""

import numpy as np
import pytest
from scipy import stats

from wmrl_rewards import WorldModelReward, fuse

TASKS, MEMBERS, STEPS, SEEDS = 16, 8, 60, 5
RATE = 60.0
# A program is an approach and a style. The approach decides what it may reach: a safe one always .5, a bold
# one .9 or, three times in ten, 0 (mean .63), a poor one .2. The style adds up to .1.
WINS, SUCCESS = np.array([0.5, 0.9, 0.2]), np.array([1.0, 0.7, 1.0])
STYLES = np.linspace(0.0, 0.1, 4)


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def expected_score(approach, style):
    return float((softmax(approach) @ (WINS * SUCCESS)).mean() + (softmax(style) @ STYLES).mean())


def draw(rng, probabilities):
    """One option per task and member, shape (TASKS, MEMBERS)."""
    cumulated = probabilities.cumsum(axis=1)
    return (rng.random((TASKS, MEMBERS, 1)) > cumulated[:, None, :-1]).sum(axis=2)


def predict(rng, truth):
    """An optimist: orders scores rightly up to noise, but finds a fair score nearly as good as a high one."""
    return np.clip(1 - (1 - truth) ** 2 + rng.normal(0, 0.05, truth.shape), 0, 1)


def ascend(logits, options, coefficients):
    """One step along the gradient of a softmax policy, s = one-hot(option) - probabilities."""
    scores = np.eye(logits.shape[1])[options] - softmax(logits)[:, None, :]
    return logits + RATE * np.einsum("kn,kno->ko", coefficients, scores)


def guess(rng, truth):
    """Pure noise."""
    return rng.random(truth.shape)


def repeat(rng, truth):
    """Always the same."""
    return np.full(truth.shape, 0.7)


def train(seed, predict=predict, **settings):
    """Expected score of the policy after training with one anchor in sixteen groups."""
    rng, its_own = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    reward = WorldModelReward(anchor_fraction=1 / TASKS, seed=seed, min_pairs=32, refit_every=16, **settings)
    approach, style = np.zeros((TASKS, 3)), np.zeros((TASKS, 4))
    for step in range(STEPS):
        anchors = reward.draw_anchors(TASKS)
        sources = ["real" if k in anchors else "world_model" for k in range(TASKS)]
        approaches, styles = draw(rng, softmax(approach)), draw(rng, softmax(style))
        success = rng.random(approaches.shape) < SUCCESS[approaches]
        truth = WINS[approaches] * success + STYLES[styles]
        real = np.where(np.array(sources)[:, None] == "real", truth, np.nan)
        predicted = predict(its_own, truth)
        coefficients = reward.coefficients(sources, real, predicted)
        approach, style = ascend(approach, approaches, coefficients), ascend(style, styles, coefficients)
        reward.observe(step, sources, real, predicted)
    return expected_score(approach, style)


def difference(some, other):
    """Mean difference of two lists of results on the same seeds, in standard errors of it."""
    differences = np.subtract(some, other)
    return differences.mean() / (differences.std(ddof=1) / np.sqrt(len(differences)))


@pytest.fixture(scope="module")
def wmrl():
    return [train(seed) for seed in range(SEEDS)]


def test_wmrl_beats_the_raw_mixture_of_the_same_scores(wmrl):
    # The optimist makes safe programs look better than bold ones: .75 against .69.
    mixture = [train(seed, debias=False, denoise=False) for seed in range(SEEDS)]
    assert max(mixture) < 0.61 < 0.66 < min(wmrl)
    assert difference(wmrl, mixture) > 5


def test_wmrl_beats_its_own_anchors_alone(wmrl):
    anchors_alone = [train(seed, fusion="anchors_alone") for seed in range(SEEDS)]
    assert difference(wmrl, anchors_alone) > 3


@pytest.fixture(scope="module")
def twenty_anchors_alone():
    return np.array([train(seed, fusion="anchors_alone") for seed in range(20)])


@pytest.mark.parametrize("blind", [guess, repeat])
def test_a_blind_world_model_costs_no_more_than_what_it_takes_to_find_out(blind, twenty_anchors_alone):
    """The lower end of the 95 % interval of what WMRL adds to its anchors alone, over twenty paired seeds."""
    gains = np.array([train(seed, predict=blind) for seed in range(20)]) - twenty_anchors_alone
    assert gains.mean() + stats.t.ppf(0.025, 19) * stats.sem(gains) > -0.02


@pytest.mark.parametrize("blind", [guess, repeat])
def test_it_costs_nothing_where_it_has_to_show_first_that_it_sees(blind, twenty_anchors_alone):
    results = np.array([train(seed, predict=blind, presume_blind=True) for seed in range(20)])
    # Of the seeds 0 to 149 two take noise for one that sees: 8 and 18.
    assert (results == twenty_anchors_alone).sum() >= 18
    gains = results - twenty_anchors_alone
    assert gains.mean() + stats.t.ppf(0.025, 19) * stats.sem(gains) > -0.02


def test_one_that_sees_is_believed_soon_enough(wmrl):
    doubted = [train(seed, presume_blind=True) for seed in range(SEEDS)]
    anchors_alone = [train(seed, fusion="anchors_alone") for seed in range(SEEDS)]
    assert difference(doubted, anchors_alone) > 3
    assert np.mean(doubted) > np.mean(wmrl) - 0.02


@pytest.mark.parametrize("blind", [guess, repeat])
def test_it_would_cost_more_if_it_were_not_found_out(blind, twenty_anchors_alone):
    gains = np.array([train(seed, predict=blind, ignore_blind=False) for seed in range(10)])
    gains -= twenty_anchors_alone[:10]
    assert gains.mean() + stats.t.ppf(0.975, 9) * stats.sem(gains) < -0.02


@pytest.mark.parametrize("noise", [1.0, 2.0])
def test_the_inverse_of_the_variances_is_the_best_weight(noise):
    """Lemma 12: the variance is least at ρ = V_WM / V_E, and V_E V_WM / (|WM| V_E + |E| V_WM) there."""
    rng = np.random.default_rng(0)
    sources = ["real"] * 2 + ["world_model"] * 6
    best = 1 + noise**2  # scores have variance 1, predictions have that of the noise on top
    squares = dict.fromkeys((1.0, best / 2, best, best * 2), 0.0)
    draws = 3000
    for _ in range(draws):
        truth = rng.normal(size=(8, MEMBERS))
        calibrated = truth + noise * rng.normal(size=truth.shape)
        vectors = rng.normal(size=truth.shape)
        for rho in squares:
            squares[rho] += float(np.sum(fuse(sources, truth, calibrated, rho) * vectors)) ** 2 / draws
    executed = (MEMBERS - 1) / MEMBERS**2  # variance of one executed group's estimate
    expected = executed * best / (6 + 2 * best)
    # the squares of 3000 normal draws have a relative standard error of 2.6 %
    assert squares[best] == pytest.approx(expected, rel=0.1)
    assert min(squares, key=squares.get) == best
