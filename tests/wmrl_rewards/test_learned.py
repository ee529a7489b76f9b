import numpy as np
import pytest
from sklearn.dummy import DummyRegressor

from wmrl_envs.errors import WMRLError
from wmrl_rewards import LearnedWorldModel, PredictionRequest, check_world_model


def mean_observation(request):
    return np.mean([observation for observation, _ in request.history], axis=0)


def requests_and_scores(count, seed=0):
    rng = np.random.default_rng(seed)
    means = rng.random((count, 2))
    requests = [PredictionRequest("walk", history=[(mean - 0.1, 0), (mean + 0.1, 1)]) for mean in means]
    return requests, (0.7 * means[:, 0] + 0.3 * means[:, 1]).tolist()


def test_it_learns_a_linear_score_and_keeps_the_contract():
    model = LearnedWorldModel(mean_observation)
    model.fit(*requests_and_scores(60))
    requests, scores = requests_and_scores(20, seed=1)
    assert [p.score for p in model.predict(requests)] == pytest.approx(scores, abs=0.01)
    check_world_model(model, requests)


def test_before_the_first_fit_scores_are_missing_not_zero():
    requests, _ = requests_and_scores(2)
    predictions = LearnedWorldModel(mean_observation).predict(requests)
    assert [p.score for p in predictions] == [None, None]
    assert all("fitted" in p.error for p in predictions)


@pytest.mark.parametrize(("constant", "score"), [(-3.0, 0.0), (7.0, 1.0)])
def test_predictions_are_clipped(constant, score):
    model = LearnedWorldModel(mean_observation, DummyRegressor(strategy="constant", constant=constant))
    requests, scores = requests_and_scores(4)
    model.fit(requests, scores)
    assert [p.score for p in model.predict(requests)] == [score] * 4


@pytest.mark.parametrize("scores", [[0.5], [0.5, 1.5], [0.5, float("nan")]])
def test_bad_scores_are_refused(scores):
    with pytest.raises(WMRLError, match="2 requests"):
        LearnedWorldModel(mean_observation).fit(requests_and_scores(2)[0], scores)
