"""`WorldModelReward`: the method of the paper's Section 3.3 for a whole run, one object with one state.

A training step t uses it in this order::

    anchors = reward.draw_anchors(m)                               before generation starts
    a = reward.coefficients(sources, real, predicted)              f̂ and ρ of the steps before t
    reward.observe(t, sources, real, predicted)                    makes f̂ and ρ of the next step

The map and the weight that step t uses come from pairs of earlier steps only. So residuals are honest, ρ does
not depend on the gradient that it weights, and scales are known before scoring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_envs.evaluation import Source
from wmrl_rewards.anchors import AnchorSampler
from wmrl_rewards.blindness import BlindnessTest
from wmrl_rewards.debiasing import DebiasingMethod, IsotonicDebiaser
from wmrl_rewards.denoising import AnchorWeight
from wmrl_rewards.errors import RewardError
from wmrl_rewards.fusion import FusionMethod, all_equal, fuse, score_matrix
from wmrl_rewards.groups import GroupStream
from wmrl_rewards.pairs import Pair, PairPool

__all__ = ["WorldModelReward"]

Floats = NDArray[np.float64]


class WorldModelReward:
    """Owns sampler, pool, debiaser and anchor weight.

    Args:
        anchor_fraction: Share of groups that are executed for real.
        seed: Seed of the anchor draws.
        min_pairs: Pairs before the map is first fitted.
        refit_every: New pairs between one fit and the next.
        window: Anchor groups that η̂² is taken over, and that are tested for signal.
        maximum: Largest ρ.
        warmup_groups: Informative anchor groups, scored under a fitted map, after which ρ leaves 1.
        debias: Whether `calibrate` applies the map. It is fitted either way, and ρ starts at the same time.
        denoise: Whether `rho` is used; it is 1.0 otherwise.
        fusion: Method of `fuse`.
        debiasing_method: Method of `IsotonicDebiaser`.
        strict: Option of `IsotonicDebiaser`.
        pair_window: Fit the map on that many of the latest pairs only; None uses all.
        pool: Where pairs are kept; None keeps them in memory, and in `state_dict`.
        correction: The c of ``fusion="rectified"``.
        ignore_blind: Whether the predicted groups stop counting, as with ``anchors_alone``, for as long as
            the anchors show no signal of the world model inside groups; see `BlindnessTest`.
        presume_blind: Whether they count only from when the anchors have shown that signal, instead of until
            they have shown that there is none. It takes a few anchor groups, and a world model that knows
            nothing then changes nothing. Groups of one member, such as episodes without a group, never show
            any. No effect without ``ignore_blind``.

    Attributes:
        stream: The way in for callers that see one trajectory at a time, such as the wrapper.

    Example:
        >>> reward = WorldModelReward(anchor_fraction=0.5, min_pairs=2, seed=0)
        >>> reward.draw_anchors(2)
        [1]
        >>> sources = ["world_model", "real"]
        >>> predicted, real = [[0.9, 0.8], [0.6, 0.7]], [[float("nan")] * 2, [0.0, 0.5]]
        >>> reward.coefficients(sources, real, predicted)
        array([[ 0.0125, -0.0125],
               [-0.0625,  0.0625]])
        >>> reward.observe(0, sources, real, predicted)
        >>> reward.calibrate([0.65, 0.9])
        array([0.25, 0.5 ])
    """

    def __init__(
        self,
        *,
        anchor_fraction: float = 0.1,
        seed: int = 0,
        min_pairs: int = 200,
        refit_every: int = 64,
        window: int = 64,
        maximum: float = 4.0,
        warmup_groups: int = 8,
        debias: bool = True,
        denoise: bool = True,
        fusion: FusionMethod = "inverse_variance",
        debiasing_method: DebiasingMethod = "regression",
        strict: Literal["centered"] | None = None,
        pair_window: int | None = None,
        pool: PairPool | None = None,
        correction: float = 0.5,
        ignore_blind: bool = True,
        presume_blind: bool = False,
    ) -> None:
        self.sampler = AnchorSampler(anchor_fraction, seed)
        self.pool = PairPool() if pool is None else pool
        self.debiaser = IsotonicDebiaser(min_pairs, refit_every, debiasing_method, strict, pair_window)
        self.weight = AnchorWeight(window, maximum, warmup_groups)
        self.blindness = BlindnessTest(window)
        self.debias = debias
        self.denoise = denoise
        self.fusion = fusion
        self.correction = correction
        self.ignore_blind = ignore_blind
        self.presume_blind = presume_blind
        self.stream = GroupStream(self)
        self._next_step = 0
        self._last_step: dict[str, float | None] = {"flattened_groups": None, "bias": None}

    def draw_anchors(self, num_groups: int) -> list[int]:
        """Positions of the next step's anchor groups, drawn before anything is generated."""
        return self.sampler.draw(num_groups)

    @property
    def rho(self) -> float:
        """Weight of an anchor group in the current step."""
        return self.weight.rho if self.denoise else 1.0

    @property
    def ignores_predictions(self) -> bool:
        """Whether the current step's predicted groups do not count: the world model is, or may be, blind."""
        if not self.ignore_blind:
            return False
        return not self.blindness.shown if self.presume_blind else self.blindness.blind

    @property
    def next_step(self) -> int:
        """The least step number that `observe` takes."""
        return self._next_step

    def frozen_map(self) -> Callable[[ArrayLike], Floats]:
        """What `calibrate` does now, left alone by what is observed later."""
        return self.debiaser.frozen() if self.debias else partial(np.array, dtype=np.float64)

    def calibrate(self, predicted: ArrayLike) -> Floats:
        """Calibrated scores f̂(r̂), of the same shape; NaN stays NaN.

        The identity before the first fit, and always where debiasing is off.
        """
        return self.frozen_map()(predicted)

    def coefficients(self, sources: Sequence[Source], real: ArrayLike, predicted: ArrayLike) -> Floats:
        """Coefficients a of the current step; see `fuse`.

        Args:
            sources: Who graded each group, of length m.
            real: True scores, shape (m, n); NaN where missing or not executed. A member of a predicted group
                may have one all the same, because it was executed for want of a prediction, or held nothing
                to evaluate; it enters with that score.
            predicted: Raw scores of the world model, shape (m, n); NaN where missing.
        """
        calibrated = self.calibrate(predicted)
        # The truth needs no calibration: it stands in where it is known although nothing was predicted.
        calibrated = np.where(np.isnan(calibrated), score_matrix(real, len(sources)), calibrated)
        fusion = "anchors_alone" if self.ignores_predictions else self.fusion
        return fuse(sources, real, calibrated, self.rho, fusion, self.correction)

    def observe(
        self,
        step: int,
        sources: Sequence[Source],
        real: ArrayLike,
        predicted: ArrayLike,
        contexts: Sequence[Sequence[Mapping[str, Any] | None]] | None = None,
    ) -> None:
        """Learn from a finished step; the last thing that a step does.

        The anchors' pairs go to the pool and to the test for signal; their residuals go to the weight, under
        the map that this step used and only if that map was fitted; then the map is fitted again if that is
        due.

        Args:
            step: Number of the step; each later than the one before.
            sources: Who graded each group, of length m.
            real: True scores, shape (m, n); NaN where missing. Only anchors with both scores give pairs.
            predicted: Raw scores, shape (m, n); NaN where missing.
            contexts: For each trajectory anything that is to be kept with its pair, fit for JSON.

        Raises:
            RewardError: The step was observed before, shapes do not agree, or a score is outside [0, 1].
        """
        real_scores = score_matrix(real, len(sources))
        predicted_scores = score_matrix(predicted, len(sources))
        if real_scores.shape != predicted_scores.shape:
            raise RewardError(
                f"real {real_scores.shape} and predicted {predicted_scores.shape} differ in shape."
            )
        if step < self._next_step:
            raise RewardError(f"Step {step} was observed already; the next one is {self._next_step}.")
        anchors = [k for k, source in enumerate(sources) if source == "real"]
        paired = ~(np.isnan(real_scores) | np.isnan(predicted_scores))
        members = [(k, i) for k in anchors for i in np.flatnonzero(paired[k]).tolist()]
        pairs = [
            Pair(
                predicted=float(predicted_scores[k, i]),
                real=float(real_scores[k, i]),
                step=step,
                group=k,
                member=i,
                context=None if contexts is None else contexts[k][i],
            )
            for k, i in members
        ]
        self.pool.add_all(pairs)  # first, because it refuses bad scores and repeated steps as a whole
        calibrated = self.calibrate(predicted_scores)
        for k in anchors:
            self.blindness.observe(predicted_scores[k], real_scores[k])
            if self.debiaser.fitted:
                self.weight.observe(calibrated[k], real_scores[k])
        self._last_step = {
            "flattened_groups": _share_flattened(predicted_scores, calibrated),
            "bias": _mean_or_none((calibrated - real_scores)[anchors]),
        }
        self.debiaser.update([pair.predicted for pair in pairs], [pair.real for pair in pairs])
        self._next_step = step + 1

    def statistics(self) -> dict[str, float | int | bool | None]:
        """Numbers for the log.

        ``eta2`` near or above 1 and ``blind`` are the alarms: no signal inside groups; ``signal_z`` and
        ``signal_chance`` are what `BlindnessTest` makes of it, and ``predictions_ignored`` is whether
        predicted groups do not count for it. ``flattened_groups`` is the share of the last step's groups
        whose different predictions the map made all equal, ``bias`` the mean of calibrated minus real over
        its anchors.
        """
        return {
            "rho": self.rho,
            "eta2": self.weight.eta2,
            "eta2_cal": self.weight.eta2_cal,
            "signal_z": self.blindness.z,
            "signal_chance": self.blindness.chance,
            "blind": self.blindness.blind,
            "predictions_ignored": self.ignores_predictions,
            "pairs": len(self.pool),
            "fitted": self.debiaser.fitted,
            "pairs_at_fit": self.debiaser.pairs_at_fit,
            **self._last_step,
        }

    def state_dict(self) -> dict[str, Any]:
        """State fit for JSON; with the pool it restores the run's calibration bit for bit.

        The pool is the durable store of the pairs: where it has a file, the state holds only how far it was
        read, and the map is made again from the file. A pool in memory is part of the state.
        """
        state = {
            "next_step": self._next_step,
            "num_pairs": len(self.pool),
            "pairs_at_fit": self.debiaser.pairs_at_fit,
            "sampler": self.sampler.state_dict(),
            "weight": self.weight.state_dict(),
            "last_step": self._last_step,
        }
        if self.pool.path is None:
            state["pairs"] = [vars(pair) for pair in self.pool.pairs().rows()]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a checkpoint: pairs of later steps and what the stream has begun are dropped.

        Raises:
            RewardError: The pool lacks pairs that the checkpoint was made with.
        """
        if self.pool.path is None:
            self.pool.truncate(0)
            self.pool.add_all(Pair(**row) for row in state["pairs"])
        self.pool.truncate(state["next_step"])
        pairs = self.pool.pairs()
        if len(pairs) != state["num_pairs"]:
            raise RewardError(
                f"The checkpoint was made with {state['num_pairs']} pairs, the pool holds {len(pairs)} of "
                "its steps: it is not the pool of this run."
            )
        self.debiaser.load_state_dict(
            {"predicted": pairs.predicted, "real": pairs.real, "pairs_at_fit": state["pairs_at_fit"]}
        )
        self.sampler.load_state_dict(state["sampler"])
        self.weight.load_state_dict(state["weight"])
        self.blindness.forget()
        for _, members in groupby(pairs.rows(), key=lambda pair: (pair.step, pair.group)):
            group = list(members)
            self.blindness.observe([pair.predicted for pair in group], [pair.real for pair in group])
        self._next_step = state["next_step"]
        self._last_step = dict(state["last_step"])
        self.stream = GroupStream(self)


def _share_flattened(predicted: Floats, calibrated: Floats) -> float | None:
    """Share of the groups with different predictions whose calibrated scores are all equal."""
    differing = [k for k, row in enumerate(predicted) if not all_equal(row)]
    if not differing:
        return None
    return sum(all_equal(calibrated[k]) for k in differing) / len(differing)


def _mean_or_none(values: Floats) -> float | None:
    present = values[~np.isnan(values)]
    return float(present.mean()) if present.size else None
