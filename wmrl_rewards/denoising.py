"""Inverse-Variance Denoising: how much more an anchor group weighs than a predicted one.

The paper's rule, with Section 3.3's names::

    ρ = clip(1 + η̂² / η̂²_cal, 1, maximum)

η̂² is the noise of the calibrated scores relative to the spread of the true ones, over recent anchor groups: a
ratio of sums, because a mean of ratios explodes as groups converge. Residuals are centred inside their group,
since GRPO sees differences inside a group only. η̂²_cal is η̂² at the end of warm-up, so that ρ measures the
*change* since then; whether the world model was any good to begin with shows in η̂² itself (near or above 1:
no signal inside groups).
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wmrl_envs.errors import ConfigError
from wmrl_rewards.fusion import members_apart

__all__ = ["AnchorWeight"]


class AnchorWeight:
    """Tracks η̂² over anchor groups and turns it into the weight ρ.

    Args:
        window: Number of recent informative anchor groups that η̂² is taken over.
        maximum: Largest ρ.
        warmup_groups: Informative groups after which η̂²_cal is recorded, once.

    Example:
        >>> weight = AnchorWeight(warmup_groups=1)
        >>> weight.observe(calibrated=[0.5, 0.5], real=[0.0, 1.0])
        >>> weight.eta2, weight.rho
        (1.0, 2.0)
    """

    def __init__(self, window: int = 64, maximum: float = 4.0, warmup_groups: int = 8) -> None:
        if window < 1 or warmup_groups < 1:
            raise ConfigError("The window and the warm-up must be at least one group.")
        if not 1 <= maximum < float("inf"):
            raise ConfigError(f"The largest anchor weight must be finite and at least 1, not {maximum}.")
        self.maximum = maximum
        self.warmup_groups = warmup_groups
        self._groups: deque[tuple[float, float]] = deque(maxlen=window)
        self._num_informative = 0
        self._eta2_cal: float | None = None

    def observe(self, calibrated: ArrayLike, real: ArrayLike) -> None:
        """Take one anchor group that was scored under a fitted map.

        Args:
            calibrated: Calibrated scores of the members, shape (n,); NaN where missing.
            real: Their true scores, shape (n,); NaN where missing.

        A group whose true scores are all equal (or of which fewer than two members have both scores) says
        nothing about noise inside groups and is skipped.
        """
        apart = members_apart(calibrated, real)
        if apart is None:
            return
        predictions, truths = apart
        self._groups.append((float(np.var(predictions - truths)), float(np.var(truths))))
        self._num_informative += 1
        if self._num_informative == self.warmup_groups:
            self._eta2_cal = self.eta2

    @property
    def eta2(self) -> float | None:
        """Current η̂²; None before the first informative group."""
        if not self._groups:
            return None
        residuals, spreads = zip(*self._groups, strict=True)
        return sum(residuals) / sum(spreads)

    @property
    def eta2_cal(self) -> float | None:
        """η̂² at the end of warm-up; None before."""
        return self._eta2_cal

    @property
    def rho(self) -> float:
        """Weight of an anchor group, in [1, maximum]: 1 during warm-up.

        If warm-up saw no noise at all (η̂²_cal = 0), ρ stays 1 until there is some, and is the maximum then.
        """
        if self._eta2_cal is None or not self.eta2:
            return 1.0
        if self._eta2_cal == 0:
            return self.maximum
        return min(1 + self.eta2 / self._eta2_cal, self.maximum)

    def state_dict(self) -> dict[str, Any]:
        """Everything that ρ depends on, fit for JSON."""
        return {
            "groups": [list(group) for group in self._groups],
            "num_informative": self._num_informative,
            "eta2_cal": self._eta2_cal,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore bit for bit."""
        self._groups.clear()
        self._groups.extend((residual, spread) for residual, spread in state["groups"])
        self._num_informative = state["num_informative"]
        self._eta2_cal = state["eta2_cal"]
