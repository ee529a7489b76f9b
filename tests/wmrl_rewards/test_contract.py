"""The contract: each clause has a world model that breaks it and no other, and all of ours keep it."""

import hashlib
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from tests.stubs import tiny_language_model
from tests.wmrl_rewards.test_openai_client import NOW, completion, serve  # noqa: F401
from wmrl_envs.errors import WMRLError
from wmrl_envs.evaluation import Evaluation, Grade, Outcome, Solution
from wmrl_rewards import (
    ContractError,
    LanguageModelWorldModel,
    LearnedWorldModel,
    PredictedEvaluator,
    Prediction,
    PredictionRequest,
    check_world_model,
)
from wmrl_rewards.contract import _example_requests
from wmrl_rewards.language_models import HuggingFaceModel, OpenAIModel, Sampling


def share(text):
    """A number in [0, 1) that a text decides."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[0] / 256


class Hashed:
    """Keeps the contract: a score that depends on the solution alone, none for a broken or a missing one."""

    def answer(self, request):
        if request.solution is None:
            return Prediction(None, error="The request has no solution.")
        if "raise" in request.solution:
            return Prediction(None, error="The reply was not readable.")
        return Prediction(share(request.solution))

    def predict(self, requests):
        return [self.answer(request) for request in requests]


class TooFew(Hashed):
    def predict(self, requests):
        return super().predict(requests)[:-1]


class TooMany(Hashed):
    def predict(self, requests):
        return [*super().predict(requests), *super().predict(requests[:1])]


class Constant(Hashed):
    """Gives one and the same answer to every solution."""

    prediction = Prediction(0.5)

    def answer(self, request):
        return super().answer(request) if request.solution is None else self.prediction


class OutOfRange(Constant):
    prediction = Prediction(1.2)


class NotANumber(Constant):
    prediction = Prediction(float("nan"))


class Percent(Constant):
    prediction = Prediction(1)


class Silent(Constant):
    prediction = Prediction(None)


class ErrorAndScore(Constant):
    prediction = Prediction(0.0, error="No answer from the server.")


class OutcomeWithoutScore(Constant):
    prediction = Prediction(0.0, outcome=Evaluation(None, source="world_model", error="unreadable"))


class TextAsOutcome(Constant):
    prediction = Prediction(0.5, outcome="status: ok")


class BesideItsSamples(Constant):
    prediction = Prediction(0.9, samples=(0.1, 0.2))


class Floats(Hashed):
    def predict(self, requests):
        return [0.5 for _ in requests]


class Generator(Hashed):
    def predict(self, requests):
        return (self.answer(request) for request in requests)


class NotEmpty(Hashed):
    def predict(self, requests):
        return super().predict(requests) or [Prediction(0.5)]


class RaisesForNothing(Hashed):
    def predict(self, requests):
        return list(np.stack([self.answer(request) for request in requests]))


class Noisy(Hashed):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def answer(self, request):
        answer = super().answer(request)
        return answer if answer.score is None else Prediction(float(self.rng.random()))


class Swapping(Hashed):
    """Does not put the answers back where they belong."""

    def predict(self, requests):
        answers = super().predict(requests)
        mixed = any(request.solution is None for request in requests)
        return answers if mixed else [*answers[1:], *answers[:1]]


class Ranks(Hashed):
    """Scores by the place in the batch."""

    def predict(self, requests):
        answers = super().predict(requests)
        return [
            one if one.score is None else Prediction((one.score + k) / 99) for k, one in enumerate(answers)
        ]


class BatchMean(Hashed):
    """The same in every order, but not alone."""

    def predict(self, requests):
        answers = super().predict(requests)
        total = sum(one.score or 0.0 for one in answers)
        return [one if one.score is None else Prediction(one.score / total) for one in answers]


class Mutating(Hashed):
    def predict(self, requests):
        for request in requests:
            if request.context is not None:
                request.context["seen"] = True
        return super().predict(requests)


class Raising(Hashed):
    def answer(self, request):
        raise KeyError("metric")


class StrictlyUtf8(Hashed):
    def answer(self, request):
        json.dumps(request.task, ensure_ascii=False).encode()
        return super().answer(request)


class ShortSighted(Hashed):
    def answer(self, request):
        if len(request.task) > 100_000:
            raise MemoryError
        return super().answer(request)


class NeedsAProgram(Hashed):
    def answer(self, request):
        return Prediction(share(request.solution.replace("raise", "")))


class SaysNothingOfHugeTexts(Hashed):
    def answer(self, request):
        return Prediction(None) if len(request.task) > 100_000 else super().answer(request)


class AllOrNothing(Hashed):
    """One request that cannot be answered, and the whole batch is without an answer."""

    def predict(self, requests):
        if any(request.solution is None for request in requests):
            return [Prediction(None, error="The batch was refused.") for _ in requests]
        return super().predict(requests)


class NoMixedBatches(Hashed):
    def predict(self, requests):
        if len({request.solution is None for request in requests}) == 2:
            raise ValueError("requests of different kinds")
        return super().predict(requests)


class Inventive(Hashed):
    def answer(self, request):
        return Prediction(0.0) if request.solution is None else super().answer(request)


BROKEN = [
    (TooFew, "gave 2 answers to 3 requests"),
    (TooMany, "gave 4 answers to 3 requests"),
    (OutOfRange, "Prediction 0 has the score 1.2, which is not in"),
    (NotANumber, "Prediction 0 has the score nan, which is not in"),
    (Percent, "Prediction 0 has a score of type int"),
    (Silent, "Prediction 0 has no score and does not say why"),
    (ErrorAndScore, "Prediction 0 has the score 0.0 and an error too"),
    (OutcomeWithoutScore, "Prediction 0 has the score 0.0, but an outcome without one"),
    (TextAsOutcome, "Prediction 0 has an outcome of type str"),
    (BesideItsSamples, "Prediction 0 has the score 0.9, which does not lie among its samples"),
    (Floats, "must return a list of Prediction"),
    (Generator, "must return a list of Prediction"),
    (NotEmpty, "must return an empty list"),
    (RaisesForNothing, r"predict\(\[\]\) raised ValueError"),
    (Noisy, "change when the same is asked again"),
    (Swapping, "Answers are swapped"),
    (Ranks, "change with the order"),
    (BatchMean, "change with the batch"),
    (Mutating, "changed a request"),
    (Raising, r"predict\(\) raised KeyError \('metric'\)"),
    (StrictlyUtf8, r"with any Unicode cannot be answered.*UnicodeEncodeError"),
    (ShortSighted, "with a huge text cannot be answered.*MemoryError"),
    (SaysNothingOfHugeTexts, "with a huge text cannot be answered.*does not say why"),
    (NeedsAProgram, "with nothing to judge cannot be answered.*AttributeError"),
    (AllOrNothing, "A bad request costs other requests of its batch their answers"),
    (NoMixedBatches, "A batch with odd requests is lost.*requests of different kinds"),
    (Inventive, "nothing to judge got the score 0.0, which is made up"),
]


def test_a_model_that_keeps_the_contract_passes():
    check_world_model(Hashed())
    check_world_model(Hashed(), deterministic=False)


@pytest.mark.parametrize(("model", "sentence"), BROKEN)
def test_each_breach_is_named(model, sentence):
    with pytest.raises(ContractError, match=sentence) as caught:
        check_world_model(model())
    assert isinstance(caught.value, WMRLError)
    matching = [breach for breach in caught.value.breaches if breach.endswith((".", "]"))]
    assert len(matching) == len(caught.value.breaches) == len(str(caught.value).splitlines())


def test_what_breaks_one_clause_has_one_sentence():
    for model, _ in BROKEN:
        with pytest.raises(ContractError) as caught:
            check_world_model(model())
        # Of three answers each has a fault; a place in the batch changes with batch and order alike.
        expected = 3 if issubclass(model, Constant) else 2 if model is Ranks else 1
        assert len(caught.value.breaches) == expected, model


def test_a_noisy_model_can_be_checked_for_all_the_rest():
    check_world_model(Noisy(), deterministic=False)

    class NoisyAndGreedy(Noisy):
        def predict(self, requests):
            return super().predict(requests)[:1]

    with pytest.raises(ContractError, match="gave 1 answers to 3"):
        check_world_model(NoisyAndGreedy(), deterministic=False)

    class NoisyAllOrNothing(AllOrNothing, Noisy):
        pass

    with pytest.raises(ContractError, match="costs other requests"):
        check_world_model(NoisyAllOrNothing(), deterministic=False)


def test_the_error_travels_between_processes():
    error = pickle.loads(pickle.dumps(ContractError("One.", "Two.")))
    assert error.breaches == ("One.", "Two.")
    assert str(error) == "One.\nTwo."


def test_one_request_is_not_enough_to_check_anything():
    with pytest.raises(WMRLError, match="at least two requests, not 1"):
        check_world_model(Hashed(), [PredictionRequest("T", "x")])


def test_requests_of_another_kind_with_arrays_inside():
    class Brightness:
        def predict(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            if request.frames is None:
                return Prediction(None, error="The request has no frames.")
            return Prediction(float(request.frames.mean()) / 255)

    class Normalizing(Brightness):
        def predict(self, requests):
            predictions = super().predict(requests)
            for request in requests:
                if request.frames is not None:
                    request.frames[:] = 0
            return predictions

    frames = np.full((2, 4, 4, 3), 51, dtype=np.uint8)
    requests = [PredictionRequest("lift", frames=frames + k, history=[(frames, 0)]) for k in (0, 50)]
    check_world_model(Brightness(), requests)
    with pytest.raises(WMRLError, match="changed a request"):
        check_world_model(Normalizing(), [replace(r, frames=r.frames.copy()) for r in requests])


# Every world model and back end of ours.


def test_a_language_model_in_process(tmp_path):
    model = HuggingFaceModel(tiny_language_model(tmp_path, max_context=2048), device="cpu")
    sampled = Sampling(max_new_tokens=4, seed=0)
    settings = {"max_context_tokens": 400, "system_prompt": ""}
    check_world_model(LanguageModelWorldModel(model, samples=2, sampling=sampled, **settings))


@pytest.mark.parametrize("samples", [1, 3])
def test_a_language_model_behind_a_server(serve, samples):  # noqa: F811
    def answer(body, attempt):
        question = body["messages"][-1]["content"]
        if share(question) < 0.5 and attempt == 0:
            return 503, NOW, "busy"
        if "broken" in question:
            return 400, {}, "I will not read this."
        value = share(f"{question} {body.get('seed')}")
        return completion(f"status: ok\nroc_auc: {value:.4f}" if value < 0.9 else "I cannot say.")

    server = serve(answer)
    model = OpenAIModel(server.url, "wm")
    sampling = Sampling(temperature=0.0 if samples == 1 else 1.0, seed=5)
    world_model = LanguageModelWorldModel(model, samples=samples, sampling=sampling)
    check_world_model(world_model)
    for body in server.bodies:
        body["messages"][-1]["content"].encode()  # any server can read it as UTF-8
    scores = [prediction.score for prediction in world_model.predict(_example_requests())]
    assert scores[2] is None
    assert None not in scores[:2]


def test_a_server_that_answers_nothing_readable(serve):  # noqa: F811
    model = OpenAIModel(serve(lambda body, attempt: (200, {}, "{")).url, "wm")
    check_world_model(LanguageModelWorldModel(model))


def test_a_regressor():
    def features(request):
        return [len(request.solution), request.solution.count("\n"), "raise" in request.solution]

    model = LearnedWorldModel(features)
    check_world_model(model)
    requests = _example_requests()
    model.fit(requests * 5, [0.75, 0.25, 0.0] * 5)
    check_world_model(model)
    assert model.predict(requests)[0].score == pytest.approx(0.75, abs=0.05)


class BehindTheEvaluator:
    """A `PredictedEvaluator` asked as a world model: what it says is what a trainer sees."""

    def __init__(self, world_model):
        self.evaluator = PredictedEvaluator(world_model)

    def predict(self, requests):
        names = [(request.context or {}).get("competition", "breast-cancer") for request in requests]
        solutions = [Solution(name, r.solution or "raise") for name, r in zip(names, requests, strict=True)]
        evaluations = self.evaluator.evaluate(solutions)
        return [Prediction(e.score, outcome=e, error=e.error) for e in evaluations]


def test_a_predicted_evaluator():
    class Graded(Hashed):
        def answer(self, request):
            bare = super().answer(request)
            if bare.score is None:
                return bare
            grade = Grade("ok", score=bare.score / 2, percentile=bare.score)
            return replace(bare, outcome=Evaluation(Outcome("ok"), grade, source="world_model"))

    check_world_model(BehindTheEvaluator(Hashed()))
    check_world_model(BehindTheEvaluator(Graded()))
