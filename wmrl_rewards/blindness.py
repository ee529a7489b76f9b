r"""`BlindnessTest`: do the anchors show that the world model can tell the members of a group apart?

ρ tells how the world model changed since warm-up, and the map learns from all groups together. Neither
says whether predictions follow the truth *inside* groups, which is all that GRPO uses. A world model that is
blind there, because it guesses or always answers the same, gives its groups gradients of noise, or none.

If it is blind, it is arbitrary which prediction of a group stands beside which true score. Over all such
pairings of a group of n members, with :math:`S_{xy}` for sums of products of deviations from its means,

.. math:: E[S_{xy}] = 0, \qquad Var[S_{xy}] = S_{xx} S_{yy} / (n - 1),

so that, summed over recent anchor groups,

.. math:: z = \sum_k S_{xy,k} \Big/ \sqrt{\sum_k S_{xx,k} S_{yy,k} / (n_k - 1)}

has mean 0 and variance 1. It does not depend on scale or offset of the predictions and needs no map, hence it
judges the phase before the first fit too. It is about normal where scores are spread out, and far from it
where one member in ten succeeds: a single lucky guess is then worth a z of 3. So its third moment is taken
into account, which is known as well,

.. math:: E[S_{xy}^3] = \frac{n}{(n - 1)(n - 2)} \sum_i (x_i - \bar x)^3 \sum_i (y_i - \bar y)^3,

by the distribution of Pearson's type III (a shifted gamma distribution) that has these three moments. The
paper has no such test; see docs/method.md.

Whether a world model is blind until the opposite is shown, or sees until it is found blind, is for the caller
to say: `BlindnessTest.shown` and `BlindnessTest.blind` are the two burdens of proof.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import ArrayLike

from wmrl_envs.errors import ConfigError
from wmrl_rewards.fusion import all_equal, members_apart

__all__ = ["BlindnessTest", "check_evidence"]

_LEVEL = 0.01  # how often a blind world model looks as if it saw, each time that one looks
_PROOF = 0.00135  # that of three standard deviations; about 1 of 100 ever comes to it in 64 looks


class BlindnessTest:
    """Looks for signal inside recent anchor groups.

    Args:
        window: Number of recent informative anchor groups that are looked at.
        warmup_groups: Informative groups until it judges at all.

    Example:
        >>> test = BlindnessTest(warmup_groups=1)
        >>> test.observe(predicted=[0.2, 0.4, 0.6, 0.8], real=[0.8, 0.4, 0.6, 0.2])
        >>> round(test.z, 3), round(test.chance, 3), test.blind, test.shown
        (-1.386, 0.917, True, False)

    Attributes:
        shown: Whether the anchors have shown that the world model sees: `chance` fell to that of three
            standard deviations (0.135 %), and has not been above 1 % since.
    """

    def __init__(self, window: int = 64, warmup_groups: int = 8) -> None:
        if window < 1 or warmup_groups < 1:
            raise ConfigError("The window and the warm-up must be at least one group.")
        self.warmup_groups = warmup_groups
        self._groups: deque[tuple[float, float, float]] = deque(maxlen=window)
        self._num_informative = 0
        self.shown = False

    def observe(self, predicted: ArrayLike, real: ArrayLike) -> None:
        """Take one anchor group.

        Args:
            predicted: Raw or calibrated predictions of the members, shape (n,); NaN where missing.
            real: Their true scores, shape (n,); NaN where missing.

        A group whose true scores are all equal (or of which fewer than two members have both scores) has
        nothing to tell apart and is skipped. Equal *predictions* for different scores count: they are what
        a blind world model gives.
        """
        apart = members_apart(predicted, real)
        if apart is None:
            return
        predictions, truths = apart
        # Equal numbers have to deviate by exactly 0, which their mean does not promise.
        x = np.zeros_like(predictions) if all_equal(predictions) else predictions - predictions.mean()
        y = truths - truths.mean()
        n = truths.size
        third = n / ((n - 1) * (n - 2)) * (x**3).sum() * (y**3).sum() if n > 2 else 0.0
        self._groups.append((float(x @ y), float((x @ x) * (y @ y) / (n - 1)), float(third)))
        self._num_informative += 1
        chance = self.chance
        self.shown = chance is not None and chance <= (_LEVEL if self.shown else _PROOF)

    @property
    def z(self) -> float | None:
        """Standard score of the agreement inside groups; None where nothing was predicted differently."""
        agreement, variance, _ = self._moments()
        return agreement / variance**0.5 if variance else None

    @property
    def chance(self) -> float | None:
        """Probability that a blind world model agrees at least as much; None where ``z`` is None."""
        agreement, variance, third = self._moments()
        return _exceeded(agreement / variance**0.5, third / variance**1.5) if variance else None

    @property
    def judges(self) -> bool:
        """Whether warm-up is over."""
        return self._num_informative >= self.warmup_groups

    @property
    def blind(self) -> bool:
        """Whether warm-up is over and there is no significant agreement (one-sided, 1 %)."""
        chance = self.chance
        return self.judges and (chance is None or chance > _LEVEL)

    def _moments(self) -> tuple[float, float, float]:
        """What was seen, and its second and third moment under blindness (its mean is 0)."""
        agreement, variance, third = np.sum(self._groups, axis=0) if self._groups else np.zeros(3)
        return float(agreement), float(variance), float(third)

    def forget(self) -> None:
        """Start anew: the same groups, observed again in their order, lead to the same judgement."""
        self._groups.clear()
        self._num_informative = 0
        self.shown = False


def check_evidence(window: int, group_size: int) -> None:
    """Make sure that a world model could show that it sees.

    Args:
        window: Anchor groups that are looked at.
        group_size: Their members.

    Raises:
        ConfigError: Even one that is nearly perfect could not.
    """
    least = 18  # twice what takes a perfect one to 3: it comes to z = sqrt(window * (group_size - 1))
    if window * (group_size - 1) < least:
        raise ConfigError(
            f"presume_blind needs more anchors: {window} groups of {group_size} may never show that a world "
            f"model sees. Raise anchor_window or group_size: anchor_window * (group_size - 1) must be {least}"
            " or more."
        )


def _exceeded(z: float, skewness: float) -> float:
    """Probability of at least ``z`` in the distribution of Pearson's type III with mean 0 and variance 1."""
    from scipy.special import gammainc, gammaincc, ndtr

    if abs(skewness) < 1e-3:
        return float(ndtr(-z))
    shape = 4 / skewness**2
    # The side on which it is bounded is to the left for a positive skewness, to the right for a negative one.
    place = max(shape + np.copysign(1.0, skewness) * z * shape**0.5, 0.0)
    return float(gammaincc(shape, place) if skewness > 0 else gammainc(shape, place))
