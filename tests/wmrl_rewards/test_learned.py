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


def programs_and_scores(count, seed=0):
    """Programs of two tasks whose score follows from the model that they choose and from their bug."""
    rng = np.random.default_rng(seed)
    worth = {"Ridge": 0.3, "SVC": 0.5, "RandomForest": 0.7}
    requests, scores = [], []
    for _ in range(count):
        name, bug = str(rng.choice(list(worth))), bool(rng.random() < 0.3)
        code = f"model = {name}(alpha={rng.random():.3f})\nmodel.fit(X, y)\n"
        task = str(rng.choice(["Tell cats from dogs.", "Foretell the price of houses."]))
        requests.append(PredictionRequest(task, solution=code + ("undefined_name\n" if bug else "save()\n")))
        scores.append(0.0 if bug else worth[name] + 0.2 * task.startswith("Tell"))
    return requests, scores


def test_it_reads_programs_without_being_told_what_to_look_for():
    model = LearnedWorldModel()
    model.fit(*programs_and_scores(150))
    requests, scores = programs_and_scores(60, seed=1)
    predicted = [p.score for p in model.predict(requests)]
    assert np.corrcoef(predicted, scores)[0, 1] > 0.9
    check_world_model(model, requests[:6])


def test_it_learns_step_by_step_what_it_would_have_learned_at_once():
    requests, scores = programs_and_scores(40)
    once, online = LearnedWorldModel(), LearnedWorldModel()
    once.fit(requests, scores)
    for start in range(0, 40, 8):
        online.learn(requests[start : start + 8], scores[start : start + 8])
    online.learn([], [])
    assert online.predict(requests) == once.predict(requests)
    online.fit(requests[:20], scores[:20])
    assert online.predict(requests) != once.predict(requests)


def test_before_it_has_learned_it_answers_its_prior():
    model = LearnedWorldModel(prior=0.5)
    requests, scores = programs_and_scores(10)
    check_world_model(model, requests)
    assert {p.score for p in model.predict(requests)} == {0.5}
    assert model.predict([PredictionRequest("task")])[0].score is None
    model.learn(requests, scores)
    assert {p.score for p in model.predict(requests)} != {0.5}
    with pytest.raises(WMRLError, match="prior"):
        LearnedWorldModel(prior=2)


def test_bad_scores_teach_nothing():
    requests, scores = programs_and_scores(4)
    model = LearnedWorldModel(prior=0.25)
    with pytest.raises(WMRLError, match="4 requests"):
        model.learn(requests, [*scores[:3], float("nan")])
    assert model.predict(requests)[0].score == 0.25
