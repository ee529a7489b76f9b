r"""`BlindnessTest`: do the anchors show that the world model can tell the members of a group apart?

ρ tells how the world model changed since warm-up, and the map learns from all groups together. Neither
says whether predictions follow the truth *inside* groups, which is all that GRPO uses. A world model that is
blind there, because it guesses or always answers the same, gives its groups gradients of noise, or none.

If it is blind, it is arbitrary which prediction of a group stands beside which true score. Over all such
pairings of a group of n members, with :math:`S_{xy}` for sums of products of deviations from its means,

.. math:: E[S_{xy}] = 0, \qquad Var[S_{xy}] = S_{xx} S_{yy} / (n - 1),

so that, summed over recent anchor groups,

.. math:: z = \sum_k S_{xy,k} \Big/ \sqrt{\sum_k S_{xx,k} S_{yy,k} / (n_k - 1)}

is about standard normal. It does not depend on scale or offset of the predictions and needs no map, hence it
judges the phase before the first fit too. The paper has no such test; see docs/method.md.

Whether a world model is blind until the opposite is shown, or sees until it is found blind, is for the caller
to say: `BlindnessTest.shown` and `BlindnessTest.blind` are the two burdens of proof.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import ArrayLike

from wmrl_envs.errors import ConfigError
from wmrl_rewards.fusion import all_equal, members_apart

__all__ = ["BlindnessTest"]

_SIGNIFICANT = 2.326  # exceeded by a blind world model in 1 of 100 looks
_PROOF = 3.0  # looked for after every group; 1 of 100 blind world models reaches it within 64 groups


class BlindnessTest:
    """Looks for signal inside recent anchor groups.

    Args:
        window: Number of recent informative anchor groups that are looked at.
        warmup_groups: Informative groups until it judges at all.

    Example:
        >>> test = BlindnessTest(warmup_groups=1)
        >>> test.observe(predicted=[0.2, 0.4, 0.6, 0.8], real=[0.8, 0.4, 0.6, 0.2])
        >>> round(test.z, 3), test.blind, test.shown
        (-1.386, True, False)

    Attributes:
        shown: Whether the anchors have shown that the world model sees: z came to 3, and has not fallen below
            2.33 since.
    """

    def __init__(self, window: int = 64, warmup_groups: int = 8) -> None:
        if window < 1 or warmup_groups < 1:
            raise ConfigError("The window and the warm-up must be at least one group.")
        self.warmup_groups = warmup_groups
        self._groups: deque[tuple[float, float]] = deque(maxlen=window)
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
        self._groups.append((float(x @ y), float((x @ x) * (y @ y) / (truths.size - 1))))
        self._num_informative += 1
        z = self.z
        self.shown = z is not None and z >= (_SIGNIFICANT if self.shown else _PROOF)

    @property
    def z(self) -> float | None:
        """Standard score of the agreement inside groups; None where nothing was predicted differently."""
        variance = sum(group[1] for group in self._groups)
        return sum(group[0] for group in self._groups) / variance**0.5 if variance else None

    @property
    def blind(self) -> bool:
        """Whether warm-up is over and there is no significant agreement (one-sided, 1 %)."""
        if self._num_informative < self.warmup_groups:
            return False
        z = self.z
        return z is None or z < _SIGNIFICANT

    def forget(self) -> None:
        """Start anew: the same groups, observed again in their order, lead to the same judgement."""
        self._groups.clear()
        self._num_informative = 0
        self.shown = False
