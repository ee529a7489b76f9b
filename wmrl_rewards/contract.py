"""`check_world_model`: the contract that rewards rely on, as a check that a world model's author can run.

- *Form*: a list of `Prediction`, one for each request, in their order; nothing for nothing.
- *Range*: a score is a float in [0, 1], or None with the reason.
- *Honesty*: no score beside an error, beside an outcome without one, outside its own samples, or for a
  request that holds nothing to judge.
- *Independence*: a prediction depends on its request alone, not on the batch, the order or the hour.
- *Isolation*: whatever a request holds (any Unicode, a million characters, nothing at all), it is answered,
  and costs no other request its answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np

from wmrl_envs.evaluation import Evaluation
from wmrl_rewards.errors import ContractError, RewardError
from wmrl_rewards.prediction import Prediction, PredictionRequest, WorldModel

__all__ = ["check_world_model"]

_HUGE_CHARACTERS = 1_000_000
# Several scripts, a composed emoji, a combining accent, a mark that turns the direction, NUL, and
# a lone surrogate, which no UTF-8 can hold: a server's JSON can carry one into a program all the same.
_UNICODE = "数据 данные بيانات 👩\u200d🔬 e\u0301 \u202e \x00 \ud800"
_TOLERANCE = 1e-4  # what batching does to floating-point sums


def check_world_model(
    world_model: WorldModel,
    requests: Sequence[PredictionRequest] | None = None,
    *,
    deterministic: bool = True,
) -> None:
    """Check that a world model keeps the contract that rewards rely on.

    Args:
        world_model: The world model.
        requests: At least two questions of the kind it is made for. None asks about three programs for the
            bundled competition ``breast-cancer``.
        deterministic: False leaves out what can only be seen where the same question gets the same answer
            twice: for a model that samples without a seed, or a server whose sums depend on the batch.

    Raises:
        ContractError: It does not; one sentence for each breach.

    Example:
        >>> from wmrl_rewards import Prediction, check_world_model
        >>> class Eager:
        ...     def predict(self, requests):
        ...         return [Prediction(1.2) for _ in requests]
        >>> check_world_model(Eager())
        Traceback (most recent call last):
        wmrl_rewards.errors.ContractError: Prediction 0 has the score 1.2, which is not in [0, 1].
    """
    asked = _example_requests() if requests is None else list(requests)
    if len(asked) < 2:
        raise RewardError(f"check_world_model needs at least two requests, not {len(asked)}.")
    before = [deepcopy(vars(request)) for request in asked]
    predictions = _predict(world_model, asked)
    breaches = [*_breaches(partial(_check_nothing, world_model))]
    changing: tuple[str, ...] = ()
    if deterministic:
        changing = _breaches(partial(_check_independence, world_model, asked, predictions))
    # Answers that change anyway are no sign of anything else.
    expected = None if changing else predictions
    isolation = partial(_check_isolation, world_model, asked, expected, deterministic)
    breaches += [*changing, *_breaches(isolation), *_breaches(partial(_check_unchanged, asked, before))]
    if breaches:
        raise ContractError(*breaches)


def _breaches(check: Callable[[], object]) -> tuple[str, ...]:
    try:
        check()
    except ContractError as error:
        return error.breaches
    return ()


def _predict(world_model: WorldModel, requests: Sequence[PredictionRequest]) -> list[Prediction]:
    """Ask, and refuse an answer that is malformed."""
    try:
        answer = world_model.predict(requests)
    except Exception as error:  # Whatever the model raises is a breach.
        raise ContractError(
            f"predict() raised {_in_short(error)}: a request that cannot be answered is a "
            "Prediction(None, error=why)."
        ) from error
    breaches = list(_malformed(answer, len(requests)))
    if breaches:
        raise ContractError(*breaches)
    return answer


def _malformed(answer: object, num_requests: int) -> Iterator[str]:
    if not isinstance(answer, list) or not all(isinstance(prediction, Prediction) for prediction in answer):
        yield "predict() must return a list of Prediction."
    elif len(answer) != num_requests:
        yield f"predict() gave {len(answer)} answers to {num_requests} requests."
    else:
        for number, prediction in enumerate(answer):
            fault = _fault(prediction)
            if fault is not None:
                yield f"Prediction {number} {fault}"


def _fault(prediction: Prediction) -> str | None:
    """What is wrong with one prediction by itself."""
    score, outcome, samples = prediction.score, prediction.outcome, prediction.samples
    if score is None:
        return None if prediction.error else "has no score and does not say why: set its error."
    if not isinstance(score, float):
        return f"has a score of type {type(score).__name__}, not float."
    if not 0 <= score <= 1:
        return f"has the score {score}, which is not in [0, 1]."
    if prediction.error:
        return f"has the score {score} and an error too: where something failed the score is None."
    if outcome is not None and not isinstance(outcome, Evaluation):
        return f"has an outcome of type {type(outcome).__name__}, not Evaluation."
    if outcome is not None and outcome.score is None:
        return f"has the score {score}, but an outcome without one: nothing may be made up for it."
    if len(samples) and not min(samples) - _TOLERANCE <= score <= max(samples) + _TOLERANCE:
        return f"has the score {score}, which does not lie among its samples."
    return None


def _check_nothing(world_model: WorldModel) -> None:
    try:
        answer = world_model.predict([])
    except Exception as error:  # As above.
        raise ContractError(
            f"predict([]) raised {_in_short(error)}: it must return an empty list."
        ) from error
    if answer != []:
        raise ContractError("predict([]) must return an empty list.")


def _check_independence(
    world_model: WorldModel, asked: Sequence[PredictionRequest], predictions: Sequence[Prediction]
) -> None:
    if not _same_scores(_predict(world_model, asked), predictions):
        raise ContractError("Scores change when the same is asked again: sample under a fixed seed.")
    alone = [_predict(world_model, [request])[0] for request in asked]
    if _swapped(predictions, alone):
        raise ContractError("Answers are swapped: they must come in the order of the requests.")
    breaches = []
    turned = _predict(world_model, [*asked[1:], asked[0]])
    if not _same_scores([turned[-1], *turned[:-1]], predictions):
        breaches.append(
            "Scores change with the order of the requests: each must depend on its request alone."
        )
    if not _same_scores(alone, predictions):
        breaches.append("Scores change with the batch: each must depend on its request alone.")
    if breaches:
        raise ContractError(*breaches)


def _swapped(together: Sequence[Prediction], alone: Sequence[Prediction]) -> bool:
    """Whether a batch has the right answers in wrong places."""

    def ordered(predictions: Sequence[Prediction]) -> list[Prediction]:
        return sorted(predictions, key=lambda one: -1.0 if one.score is None else one.score)

    return _same_scores(ordered(together), ordered(alone)) and not _same_scores(together, alone)


def _check_isolation(
    world_model: WorldModel,
    asked: Sequence[PredictionRequest],
    expected: Sequence[Prediction] | None,
    deterministic: bool,
) -> None:
    odd = _odd_requests(asked[0])
    try:
        answers = _predict(world_model, [asked[0], *odd.values(), asked[1]])
    except ContractError as error:
        raise ContractError(*_culprits(world_model, odd, error)) from error
    breaches = []
    usual = [answers[0], answers[-1]]
    if expected is not None and not _same_scores(usual, expected[:2], exact=deterministic):
        breaches.append(
            "A bad request costs other requests of its batch their answers, or changes them: each must "
            "depend on its request alone."
        )
    nothing = answers[len(odd)]
    if nothing.score is not None:
        breaches.append(
            f"A request with nothing to judge got the score {nothing.score}, which is made up: its score is "
            "None, and its error says why."
        )
    if breaches:
        raise ContractError(*breaches)


def _culprits(
    world_model: WorldModel, odd: dict[str, PredictionRequest], together: ContractError
) -> list[str]:
    """Which odd requests cannot be answered even alone; if none, what happened to the whole batch."""
    breaches = [
        f"A request {name} cannot be answered, and costs its whole batch the answers. {breach}"
        for name, request in odd.items()
        for breach in _breaches(partial(_predict, world_model, [request]))
    ]
    return breaches or [f"A batch with odd requests is lost. {breach}" for breach in together.breaches]


def _odd_requests(usual: PredictionRequest) -> dict[str, PredictionRequest]:
    """Requests that have to be answered, if only by None; the one that holds nothing comes last."""
    code = usual.solution

    def altered(task: str, more: str) -> PredictionRequest:
        return replace(usual, task=task, solution=None if code is None else code + more)

    return {
        "with any Unicode": altered(f"{usual.task}\n{_UNICODE}", f"\nprint('{_UNICODE}')\n"),
        "with a huge text": altered("word " * (_HUGE_CHARACTERS // 5), "\n# " + "x = 1; " * 100_000),
        "with nothing to judge": PredictionRequest(task=""),
    }


def _check_unchanged(asked: Sequence[PredictionRequest], before: Sequence[dict[str, object]]) -> None:
    if not all(_equal(vars(request), old) for request, old in zip(asked, before, strict=True)):
        raise ContractError("predict() changed a request: copy what you want to change.")


def _same_scores(some: Sequence[Prediction], others: Sequence[Prediction], *, exact: bool = True) -> bool:
    """Whether the same predictions have scores and, if exact, the same ones."""
    pairs = [(one.score, other.score) for one, other in zip(some, others, strict=True)]
    if any((one is None) != (other is None) for one, other in pairs):
        return False
    both = [(one, other) for one, other in pairs if one is not None and other is not None]
    return not exact or all(math.isclose(*pair, abs_tol=_TOLERANCE) for pair in both)


def _equal(one: object, other: object) -> bool:
    """Equality that also looks inside arrays and containers."""
    try:
        np.testing.assert_equal(one, other)
    except AssertionError:
        return False
    return True


def _in_short(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__} ({text})" if text else type(error).__name__


def _example_requests() -> list[PredictionRequest]:
    from wmrl_envs.autoresearch.competition import load_competition
    from wmrl_envs.autoresearch.prompts import task_text

    competition = load_competition("breast-cancer")
    constant = (
        "import os, pandas as pd\n"
        "sample = pd.read_csv(os.path.join(os.environ['DATA_DIR'], 'sample_submission.csv'))\n"
        "sample.to_csv(os.environ['SUBMISSION_PATH'], index=False)\n"
    )
    return [
        PredictionRequest(
            task=task_text(competition),
            solution=solution,
            context={"competition": competition, "split": "public"},
        )
        for solution in (constant, "print('no submission')\n", "raise ValueError('broken')\n")
    ]
