"""World models that know nothing: the floor that any other has to be compared with.

A run with one of them shows what the method does by itself. The audit has to find them blind, and training
must come to what the anchors alone would have come to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from wmrl_envs.errors import ConfigError
from wmrl_rewards.prediction import Prediction, PredictionRequest

__all__ = ["ConstantWorldModel", "NoiseWorldModel"]


class ConstantWorldModel:
    """Answers the same to everything.

    Args:
        score: What it answers, in [0, 1].

    Example:
        >>> ConstantWorldModel(0.25).predict([PredictionRequest("walk", solution="print(1)")])[0].score
        0.25
    """

    def __init__(self, score: float = 0.5) -> None:
        if not 0 <= score <= 1:
            raise ConfigError(f"The score of a constant world model must lie in [0, 1], not be {score}.")
        self.score = float(score)

    def predict(self, requests: Sequence[PredictionRequest]) -> list[Prediction]:
        """The same score for each request that holds anything to judge."""
        return _answer(requests, lambda request: self.score)


class NoiseWorldModel:
    """Answers with a number from [0, 1) that has nothing to do with the question, but is the same each time.

    Args:
        seed: Another seed gives other numbers.

    Example:
        >>> request = PredictionRequest("walk", solution="print(1)")
        >>> one, same, other = NoiseWorldModel(0), NoiseWorldModel(0), NoiseWorldModel(1)
        >>> scores = [model.predict([request])[0].score for model in (one, same, other)]
        >>> scores[0] == scores[1] != scores[2]
        True
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def predict(self, requests: Sequence[PredictionRequest]) -> list[Prediction]:
        """Uniform noise for each request that holds anything to judge, a function of its content."""
        return _answer(requests, self._noise)

    def _noise(self, request: PredictionRequest) -> float:
        digest = hashlib.sha256(f"{self.seed}\n".encode())
        for part in (request.task, request.solution or "", repr(request.history)):
            digest.update(part.encode("utf-8", errors="surrogatepass") + b"\0")
        if request.frames is not None:
            digest.update(memoryview(request.frames).tobytes())
        return int.from_bytes(digest.digest()[:6], "big") / 2**48


def _answer(
    requests: Sequence[PredictionRequest], score: Callable[[PredictionRequest], float]
) -> list[Prediction]:
    return [
        Prediction(score(request))
        if request.holds_anything
        else Prediction(None, error="The request holds nothing to judge.")
        for request in requests
    ]
