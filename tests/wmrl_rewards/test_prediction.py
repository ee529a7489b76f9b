import hashlib
from dataclasses import replace

import numpy as np
import pytest

from wmrl_envs.errors import WMRLError
from wmrl_rewards import Prediction, PredictionRequest, check_world_model


class Hashed:
    """Keeps the contract: a score that depends on the solution alone, none for a broken one."""

    def answer(self, request):
        if request.solution is not None and "raise" in request.solution:
            return Prediction(None, error="The reply was not readable.")
        digest = hashlib.sha256(repr(request.solution).encode()).digest()
        return Prediction(digest[0] / 255)

    def predict(self, requests):
        return [self.answer(request) for request in requests]


class TooFew(Hashed):
    def predict(self, requests):
        return super().predict(requests)[:-1]


class OutOfRange(Hashed):
    def answer(self, request):
        return Prediction(1.2)


class NotANumber(Hashed):
    def answer(self, request):
        return Prediction(float("nan"))


class Percent(Hashed):
    def answer(self, request):
        return Prediction(1)


class Silent(Hashed):
    def answer(self, request):
        return Prediction(None)


class Floats(Hashed):
    def answer(self, request):
        return 0.5


class Generator(Hashed):
    def predict(self, requests):
        return (self.answer(request) for request in requests)


class Ranks(Hashed):
    """Scores relative to the batch."""

    def predict(self, requests):
        return [Prediction(k / max(1, len(requests))) for k, _ in enumerate(requests)]


class BatchMean(Hashed):
    """The same in every order, but not alone."""

    def predict(self, requests):
        lengths = [len(request.solution) for request in requests]
        return [Prediction(min(1.0, length / sum(lengths))) for length in lengths]


class Mutating(Hashed):
    def predict(self, requests):
        for request in requests:
            request.context["seen"] = True
        return super().predict(requests)


class NotEmpty(Hashed):
    def predict(self, requests):
        return super().predict(requests) or [Prediction(0.5)]


def test_a_model_that_keeps_the_contract_passes():
    check_world_model(Hashed())


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (TooFew, "gave 2 answers to 3 requests"),
        (OutOfRange, "Prediction 0 has the score 1.2"),
        (NotANumber, "Prediction 0 has the score nan"),
        (Percent, "Prediction 0 has a score of type int"),
        (Silent, "Prediction 0 has no score and does not say why"),
        (Floats, "list of Prediction"),
        (Generator, "list of Prediction"),
        (Ranks, "change with the order"),
        (BatchMean, "change with the batch"),
        (Mutating, "changed a request"),
        (NotEmpty, "empty list"),
    ],
)
def test_each_breach_is_named(model, sentence):
    with pytest.raises(WMRLError, match=sentence):
        check_world_model(model())


def test_there_is_one_sentence_for_each_breach():
    with pytest.raises(WMRLError) as caught:
        check_world_model(Ranks())
    assert len(str(caught.value).splitlines()) == 2
    with pytest.raises(WMRLError) as caught:
        check_world_model(OutOfRange())
    assert len(str(caught.value).splitlines()) == 3


def test_requests_of_another_kind_with_arrays_inside():
    class Brightness:
        def predict(self, requests):
            return [Prediction(float(request.frames.mean()) / 255) for request in requests]

    class Normalizing(Brightness):
        def predict(self, requests):
            predictions = super().predict(requests)
            for request in requests:
                request.frames[:] = 0
            return predictions

    frames = np.full((2, 4, 4, 3), 51, dtype=np.uint8)
    requests = [PredictionRequest("lift", frames=frames + k, history=[(frames, 0)]) for k in (0, 50)]
    check_world_model(Brightness(), requests)
    with pytest.raises(WMRLError, match="changed a request"):
        check_world_model(Normalizing(), [replace(r, frames=r.frames.copy()) for r in requests])
