"""`PredictedEvaluator`: a world model behind the seam where a sandbox would stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wmrl_envs.autoresearch.competition import Competition, Half, load_competition
from wmrl_envs.autoresearch.prompts import task_text
from wmrl_envs.evaluation import Evaluation, Grade, Outcome, Solution
from wmrl_rewards.prediction import Prediction, PredictionRequest, WorldModel, predict_checked

__all__ = ["PredictedEvaluator", "prediction_request"]


class PredictedEvaluator:
    """Evaluates solutions by asking a world model; executes nothing.

    Args:
        world_model: Who is asked.
        half: Which half of the test rows it is asked about; it reads it as ``context["split"]``.

    Example:
        >>> from wmrl_rewards import Prediction
        >>> class Half:
        ...     def predict(self, requests):
        ...         return [Prediction(0.5) for _ in requests]
        >>> [evaluation] = PredictedEvaluator(Half()).evaluate([Solution("digits", "print(1)")])
        >>> evaluation.score, evaluation.source
        (0.5, 'world_model')
    """

    def __init__(self, world_model: WorldModel, half: Half = "public") -> None:
        self.world_model = world_model
        self.half = half

    def evaluate(self, solutions: Sequence[Solution]) -> list[Evaluation]:
        """Predict a batch.

        Args:
            solutions: Any number of solutions, of any competitions.

        Returns:
            One evaluation per solution, in their order, with the source ``"world_model"``. Its score is the
            prediction's; a prediction without a score gives one without an outcome, and says why.
        """
        requests = [prediction_request(solution, self.half) for solution in solutions]
        predictions = predict_checked(self.world_model, requests)
        return [_evaluation(prediction) for prediction in predictions]


def prediction_request(solution: Solution, half: Half) -> PredictionRequest:
    """The question about a solution, with the task in the words that the agent sees.

    Args:
        solution: What is to be judged.
        half: Half of the test rows that it is judged on.
    """
    competition = solution.competition
    if not isinstance(competition, Competition):
        competition = load_competition(competition)
    return PredictionRequest(
        task=task_text(competition),
        solution=solution.code,
        context={"competition": competition, "split": half},
    )


def _evaluation(prediction: Prediction) -> Evaluation:
    score, outcome = prediction.score, prediction.outcome
    if score is None:
        return Evaluation(
            None, source="world_model", error=prediction.error or "The world model gave no score."
        )
    if outcome is not None and outcome.score == score:
        return replace(outcome, source="world_model")
    # A score averaged over samples is that of no single outcome; the words of one that was graded can stay.
    if outcome is not None and outcome.grade is not None and outcome.grade.status == "ok":
        return replace(outcome, grade=replace(outcome.grade, percentile=score), source="world_model")
    return Evaluation(Outcome("ok"), Grade("ok", percentile=score), source="world_model")
