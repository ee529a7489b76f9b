"""`LanguageModelWorldModel`: a language model is asked what would happen if a program ran."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import inf
from statistics import fmean, median
from time import perf_counter
from typing import Any, Literal, NamedTuple, get_args

from wmrl_envs.autoresearch.prompts import cut_middle
from wmrl_envs.errors import ConfigError
from wmrl_envs.evaluation import Evaluation, Grade, Outcome, OutcomeStatus
from wmrl_rewards.errors import RewardError
from wmrl_rewards.language_models.base import (
    Generation,
    LanguageModel,
    Message,
    Sampling,
    takes_instructions,
    takes_schema,
)
from wmrl_rewards.language_models.chat import opening
from wmrl_rewards.prediction import Prediction, PredictionRequest
from wmrl_rewards.world_models import prompts
from wmrl_rewards.world_models.answers import Answer, UnreadableAnswerError, read_answer

__all__ = ["LanguageModelWorldModel"]

# To be raised whenever the rules of cutting a question or of reading an answer change.
_VERSION = 2
_GREEDY = Sampling(max_new_tokens=1024, temperature=0)
_TEMPERATURE_AGAIN = 0.7
_TEMPLATE_TOKENS = 64  # what a chat template may add to the texts
# Smallest and largest value of each metric: what cannot be is refused, instead of topping the leaderboard.
_SHARES = ("roc_auc", "average_precision", "brier", "accuracy", "balanced_accuracy", "f1", "macro_f1")
_BOUNDS = {
    **dict.fromkeys(_SHARES, (0.0, 1.0)),
    **dict.fromkeys(("log_loss", "rmse", "mae", "rmsle"), (0.0, inf)),
    "quadratic_kappa": (-1.0, 1.0),
    "r2": (-inf, 1.0),
}


class _Question(NamedTuple):
    """What is sent, and how many tokens it has without the chat template's own."""

    system: str
    user: str
    tokens: int

    def conversation(self) -> list[Message]:
        return opening(self.system, self.user)


class _Asked(NamedTuple):
    """The replies to a question that count, and what all attempts at it took."""

    replies: list[Generation]
    seconds: float
    new_tokens: int


class LanguageModelWorldModel:
    """Predicts outcomes with a language model, prompted or trained.

    It asks for the outcome in the environment's own words. The predicted metric value goes through the
    competition's leaderboard, so that a predicted score and a real one are the same kind of number.

    Args:
        model: The language model, behind any engine.
        samples: Answers per question; the score is the mean over those that can be read.
        sampling: How to sample; several samples need a temperature above 0.
        system_prompt: Instructions; None takes those of `prompts` for ``predict``, or none where the model
            was trained for this one job (`takes_instructions`). An empty text gives none.
        max_context_tokens: Most tokens of question and answer together. Of a longer question the earliest
            history goes first, then the middle of the task, never a part of the program.
        predict: ``outcome`` asks for the metric's value, ``percentile`` for the leaderboard percentile.
        retries: How often a question is asked again whose answers cannot be read, at a temperature of at
            least 0.7: at temperature 0 it would have the same answer.
        structured: Whether to ask for a JSON object by the schema in `prompts`. None does where the model's
            engine can bind its replies to it. A model that has to think in writing before it answers is
            better asked without. Either way any form that is clear is read.

    Raises:
        ConfigError: A setting is out of its range.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        samples: int = 1,
        sampling: Sampling = _GREEDY,
        system_prompt: str | None = None,
        max_context_tokens: int = 12_288,
        predict: Literal["outcome", "percentile"] = "outcome",
        retries: int = 1,
        structured: bool | None = None,
    ) -> None:
        if predict not in ("outcome", "percentile"):
            raise ConfigError(f"predict must be 'outcome' or 'percentile', not {predict!r}.")
        if samples < 1:
            raise ConfigError(f"samples must be at least 1, not {samples}.")
        if retries < 0:
            raise ConfigError(f"retries must not be negative, but is {retries}.")
        if samples > 1 and sampling.temperature == 0:
            raise ConfigError(
                f"At temperature 0 all {samples} samples would be equal: raise it or ask for one."
            )
        if max_context_tokens <= sampling.max_new_tokens:
            raise ConfigError(
                f"max_context_tokens is {max_context_tokens}, which leaves no room for a question beside "
                f"{sampling.max_new_tokens} new tokens."
            )
        structured = takes_schema(model) if structured is None else structured
        if system_prompt is None:
            instructed = takes_instructions(model)
            system_prompt = prompts.system_prompt(predict, structured) if instructed else ""
        self.model = model
        self.samples = samples
        self.sampling = replace(sampling, schema=prompts.SCHEMA) if structured else sampling
        self.system_prompt = system_prompt
        self.max_context_tokens = max_context_tokens
        self.predict_what = predict
        self.retries = retries

    def predict(self, requests: Sequence[PredictionRequest]) -> list[Prediction]:
        """Predict a batch; equal questions in it are asked once. See `WorldModel`.

        Args:
            requests: Each with a solution and, for ``predict="outcome"``, a ``context`` that holds the
                ``competition``, and with ``split`` the half of its test rows (``public`` unless it says so).
        """
        questions = [self._question(request) for request in requests]
        predictions = [question if isinstance(question, Prediction) else None for question in questions]
        asked: dict[_Question, _Asked] = {}
        for attempt in range(self.retries + 1):
            waiting = [
                (place, question)
                for place, question in enumerate(questions)
                if isinstance(question, _Question)
                and ((before := predictions[place]) is None or before.score is None)
            ]
            self._ask(list(dict.fromkeys(question for _, question in waiting)), attempt, asked)
            for place, question in waiting:
                predictions[place] = self._prediction(requests[place], question, asked[question])
        return [prediction for prediction in predictions if prediction is not None]

    def _ask(self, questions: Sequence[_Question], attempt: int, asked: dict[_Question, _Asked]) -> None:
        """Ask, and put the replies in the place of those of an earlier attempt."""
        if not questions:
            return
        sampling = self.sampling
        if attempt:
            seed = 0 if sampling.seed is None and sampling.temperature == 0 else sampling.seed
            sampling = replace(
                sampling,
                temperature=max(sampling.temperature, _TEMPERATURE_AGAIN),
                seed=None if seed is None else seed + attempt,
            )
        started = perf_counter()
        conversations = [question.conversation() for question in questions]
        generated = self.model.generate(conversations, sampling, self.samples)
        seconds = (perf_counter() - started) / len(questions)
        if [len(replies) for replies in generated] != [self.samples] * len(questions):
            raise RewardError(
                f"The language model {type(self.model).__name__} must give {self.samples} replies to each of "
                f"{len(questions)} conversations, in their order: an answer that is lost cannot be told from "
                "one that is swapped."
            )
        for question, replies in zip(questions, generated, strict=True):
            before = asked.get(question, _Asked([], 0.0, 0))
            new_tokens = before.new_tokens + sum(map(self._new_tokens, replies))
            asked[question] = _Asked(replies, before.seconds + seconds, new_tokens)

    def _prediction(self, request: PredictionRequest, question: _Question, asked: _Asked) -> Prediction:
        return replace(
            self._combine(request, asked.replies),
            seconds=asked.seconds,
            prompt_tokens=question.tokens,
            new_tokens=asked.new_tokens,
        )

    @property
    def fingerprint(self) -> str:
        """Names everything that a prediction depends on besides its request, weights included.

        Raises:
            ConfigError: Nothing names it: samples are drawn without a seed, or the language model has no
                ``fingerprint``.
        """
        if self.sampling.temperature > 0 and self.sampling.seed is None:
            raise ConfigError(
                "Predictions that are sampled without a seed differ each time: give the sampling a seed."
            )
        model = getattr(self.model, "fingerprint", None)
        if model is None:
            raise ConfigError(
                f"The language model {type(self.model).__name__} has no fingerprint that names its weights."
            )
        layout = prompts.user_message("task", "code", [("program", "observation")])
        asked = [self.system_prompt, layout, self.predict_what, self.max_context_tokens, self.samples]
        asked.append(self.retries)
        parts = [_VERSION, model, *asked, asdict(self.sampling)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _new_tokens(self, reply: Generation) -> int:
        return len(reply.token_ids) or self.model.count_tokens(reply.text)

    def _question(self, request: PredictionRequest) -> _Question | Prediction:
        """The messages to send, or a prediction that says why nothing can be asked."""
        if request.solution is None:
            return Prediction(
                None, error="A language-model world model judges programs: the request has none."
            )
        if self.predict_what == "outcome" and _competition(request) is None:
            return Prediction(
                None,
                error="The request's context names no competition, so that no metric value can be asked for.",
            )
        history = tuple((_readable(code), _readable(said)) for code, said in request.history)
        fitted = self._fit(_readable(request.task), _readable(request.solution), history)
        if fitted is None:
            return Prediction(
                None,
                error=f"The program alone is longer than the context of {self.max_context_tokens} tokens.",
            )
        return _Question(self.system_prompt, *fitted)

    def _fit(self, task: str, code: str, history: tuple[tuple[str, str], ...]) -> tuple[str, int] | None:
        """The question, shortened until it fits, and its tokens; None if even the bare program does not."""
        system_tokens = self.model.count_tokens(self.system_prompt)
        room = self.max_context_tokens - self.sampling.max_new_tokens - _TEMPLATE_TOKENS - system_tokens
        for first in range(len(history) + 1):
            message = prompts.user_message(task, code, history[first:])
            tokens = self.model.count_tokens(message)
            if tokens <= room:
                return message, system_tokens + tokens
            if first == 0 and self.model.count_tokens(prompts.user_message("", code)) > room:
                return None

        def fits(length: int) -> bool:
            message = prompts.user_message(cut_middle(task, length), code)
            return self.model.count_tokens(message) <= room

        low, high = 0, min(1024, len(task))
        while high < len(task) and fits(high):  # so that no text much longer than the room is ever counted
            low, high = high, min(2 * high, len(task))
        while low < high:  # the longest stretch of the task that fits
            middle = (low + high + 1) // 2
            if fits(middle):
                low = middle
            else:
                high = middle - 1
        message = prompts.user_message(cut_middle(task, low), code)
        return (message, system_tokens + self.model.count_tokens(message)) if low else None

    def _combine(self, request: PredictionRequest, replies: Sequence[Generation]) -> Prediction:
        """One prediction of all samples: the mean score, and the outcome nearest to the median."""
        evaluations = [self._evaluate(request, reply) for reply in replies]
        scored = [(e.score, e) for e in evaluations if e.score is not None]
        if not scored:
            return Prediction(None, error=evaluations[0].error)
        scores = [score for score, _ in scored]
        centre = median(scores)
        _, outcome = min(scored, key=lambda pair: abs(pair[0] - centre))
        return Prediction(fmean(scores), outcome=outcome, samples=tuple(scores))

    def _evaluate(self, request: PredictionRequest, reply: Generation) -> Evaluation:
        """A reply as an evaluation; one without outcome where it cannot be read."""
        competition = _competition(request)
        if self.predict_what == "percentile" or competition is None:
            name, bounds = "percentile", (0.0, 1.0)
        else:
            name = competition.metric.name
            bounds = _BOUNDS.get(name, (-inf, inf))
        try:
            if reply.error is not None:
                raise UnreadableAnswerError(reply.error)
            answer = read_answer(reply.text, name, bounds, finished=reply.finished)
        except UnreadableAnswerError as error:
            cut = "" if reply.finished or reply.error else " (It was cut off at max_new_tokens.)"
            return Evaluation(None, source="world_model", error=_readable(f"{error}{cut}"))
        return _evaluation(answer, self._grade(request, answer))

    def _grade(self, request: PredictionRequest, answer: Answer) -> Grade | None:
        """The grade that the answer amounts to; None where the run itself fails."""
        if answer.status in get_args(OutcomeStatus) and answer.status != "ok":
            return None
        if answer.value is None:
            return Grade(answer.status, message=_readable(answer.message))  # type: ignore[arg-type]
        if self.predict_what == "percentile":
            return Grade("ok", percentile=answer.value)
        competition = _competition(request)
        rank = competition.rank(answer.value, (request.context or {}).get("split", "public"))
        return Grade("ok", score=answer.value, percentile=rank)


def _readable(text: str) -> str:
    """A text that tokenizers, servers and databases take: a lone surrogate, which no UTF-8 can hold, becomes
    a '?'. A program may bring one, and so may the JSON of an answer."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _competition(request: PredictionRequest) -> Any:
    return (request.context or {}).get("competition")


def _evaluation(answer: Answer, grade: Grade | None) -> Evaluation:
    outcome = Outcome("ok", _readable(answer.stdout), _readable(answer.stderr))
    if grade is None:
        outcome = replace(outcome, status=answer.status)  # type: ignore[arg-type]
    return Evaluation(outcome, grade, source="world_model")
