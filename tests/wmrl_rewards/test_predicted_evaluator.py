import pytest

from wmrl_envs.autoresearch import load_competition
from wmrl_envs.autoresearch.prompts import outcome_text, task_text
from wmrl_envs.errors import WMRLError
from wmrl_envs.evaluation import Evaluation, Evaluator, Grade, Outcome, Solution
from wmrl_rewards import PredictedEvaluator, Prediction


class Recorded:
    """Gives predictions in turn and remembers what it was asked."""

    def __init__(self, *predictions):
        self.predictions = list(predictions)
        self.requests = []

    def predict(self, requests):
        self.requests += requests
        return self.predictions


def evaluate(*predictions, half="public"):
    model = Recorded(*predictions)
    solutions = [Solution("digits", f"print({k})") for k in range(len(predictions))]
    return PredictedEvaluator(model, half).evaluate(solutions)


def test_it_is_an_evaluator():
    assert isinstance(PredictedEvaluator(Recorded()), Evaluator)


def test_solutions_become_requests_with_the_agents_own_view_of_the_task():
    digits = load_competition("digits")
    model = Recorded(Prediction(0.5), Prediction(0.6))
    solutions = [Solution("digits", "a = 1"), Solution(digits, "b = 2", turn=1)]
    PredictedEvaluator(model, half="private").evaluate(solutions)
    assert [request.solution for request in model.requests] == ["a = 1", "b = 2"]
    for request in model.requests:
        assert request.task == task_text(digits)
        assert request.context == {"competition": digits, "split": "private"}


def test_a_bare_score_becomes_an_evaluation_of_that_percentile():
    [evaluation] = evaluate(Prediction(0.75))
    assert (evaluation.score, evaluation.status, evaluation.source) == (0.75, "ok", "world_model")
    assert outcome_text(evaluation, load_competition("digits")) == "status: ok\npercentile: 0.75"


def test_a_predicted_outcome_is_passed_on_with_its_source():
    outcome = Evaluation(Outcome("ok", stdout="accuracy 0.9"), Grade("ok", score=0.9, percentile=0.6))
    [evaluation] = evaluate(Prediction(0.6, outcome=outcome))
    assert evaluation == Evaluation(outcome.outcome, outcome.grade, source="world_model")


def test_a_predicted_failure_scores_zero():
    failure = Evaluation(Outcome("error", stderr="NameError"), source="world_model")
    [evaluation] = evaluate(Prediction(0.0, outcome=failure))
    assert (evaluation.score, evaluation.status) == (0.0, "error")


def test_the_score_of_several_samples_wins_over_that_of_their_representative():
    graded = Evaluation(Outcome("ok", stdout="fine"), Grade("ok", score=0.9, percentile=0.6))
    failed = Evaluation(Outcome("error"))
    some, other = evaluate(Prediction(0.4, outcome=graded), Prediction(0.4, outcome=failed))
    assert (some.score, some.outcome.stdout, some.grade.score) == (0.4, "fine", 0.9)
    assert (other.score, other.status) == (0.4, "ok")


def test_a_missing_prediction_is_an_evaluation_without_outcome_that_says_why():
    unreadable, silent = evaluate(Prediction(None, error="no JSON"), Prediction(None))
    assert (unreadable.outcome, unreadable.score, unreadable.error) == (None, None, "no JSON")
    assert (unreadable.source, unreadable.status) == ("world_model", "missing")
    assert silent.error


def test_nothing_is_asked_about_nothing():
    model = Recorded(Prediction(0.5))
    assert PredictedEvaluator(model).evaluate([]) == []
    assert model.requests == []


def test_a_broken_world_model_is_refused():
    with pytest.raises(WMRLError, match="2 answers to 1 requests"):
        PredictedEvaluator(Recorded(Prediction(0.5), Prediction(0.5))).evaluate([Solution("digits", "")])
    for score in (1.5, float("nan")):
        with pytest.raises(WMRLError, match="not in \\[0, 1\\]"):
            evaluate(Prediction(score))
