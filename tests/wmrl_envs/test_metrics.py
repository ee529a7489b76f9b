import math

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.autoresearch.metrics import METRICS, get_metric
from wmrl_envs.errors import CompetitionError

BINARY, CHANCES = np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8])


@pytest.mark.parametrize(
    ("name", "answers", "predictions", "expected"),
    [
        ("roc_auc", BINARY, CHANCES, 3 / 4),  # of the four pairs one stands wrong
        ("average_precision", BINARY, CHANCES, (1 + 2 / 3) / 2),
        ("log_loss", BINARY, np.full(4, 0.5), math.log(2)),
        ("brier", BINARY, CHANCES, (0.01 + 0.16 + 0.65**2 + 0.04) / 4),
        ("accuracy", [1, 2, 3, 3], [1, 2, 3, 1], 3 / 4),
        ("balanced_accuracy", [1, 1, 1, 2], [1, 1, 3, 1], (2 / 3 + 0) / 2),
        ("f1", [0, 0, 1, 1], [0, 1, 1, 0], 1 / 2),
        ("f1", [0, 0, 1, 1], [0, 0, 0, 0], 0),
        ("macro_f1", [0, 0, 1, 1], [0, 1, 1, 1], (2 / 3 + 4 / 5) / 2),
        ("quadratic_kappa", [1, 2, 3, 4], [1, 2, 3, 4], 1),
        ("quadratic_kappa", [1, 1, 4, 4], [4, 4, 1, 1], -1),
        ("quadratic_kappa", [2, 2], [2, 2], 1),
        ("rmse", [1, 2, 3], [1, 2, 6], math.sqrt(3)),
        ("mae", [1, 2, 3], [1, 2, 6], 1),
        ("r2", [1, 2, 3], [2, 2, 2], 0),
        ("rmsle", [0, math.e - 1], [-5, 0], math.sqrt(1 / 2)),
    ],
)
def test_worked_out_by_hand(name, answers, predictions, expected):
    assert METRICS[name](np.asarray(answers), np.asarray(predictions)) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2))
def test_quadratic_kappa_is_scikits_over_all_labels(pairs):
    answers, predictions = np.array(pairs).T
    if len({*answers, *predictions}) > 1:
        theirs = sklearn.metrics.cohen_kappa_score(answers, predictions, labels=range(5), weights="quadratic")
        assert METRICS["quadratic_kappa"](answers, predictions) == pytest.approx(theirs)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
def test_the_truth_scores_best_and_values_stay_in_bounds(metric):
    rng = np.random.default_rng(0)
    answers = rng.permutation([0, 1] * 20)
    best = metric(answers, answers.astype(float) if metric.prediction != "label" else answers)
    assert best == pytest.approx(metric.bounds[1] if metric.higher_is_better else metric.bounds[0], abs=1e-12)
    for _ in range(20):
        score = metric(answers, rng.integers(0, 2, 40))
        assert metric.bounds[0] <= score <= metric.bounds[1]
        assert score <= best if metric.higher_is_better else score >= best


def test_no_metric_warns(recwarn):
    for metric in METRICS.values():
        metric(np.array([0, 0, 1]), np.array([0, 0, 0]))
        if metric.answers == "any":
            metric(np.array([0, 0, 1]), np.array([2, 0, 0]))
    assert [str(warning.message) for warning in recwarn] == []


def test_an_unknown_metric_names_the_known_ones():
    with pytest.raises(CompetitionError, match=r"Unknown metric 'auc'.*roc_auc"):
        get_metric("auc")
