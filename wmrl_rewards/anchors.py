"""Which groups of a step are executed for real.

The choice is made before generation starts, by an exact count from a seeded generator: never by the id, the
score or the speed of a group, because only anchors drawn at random make the estimates behind them valid.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wmrl_envs.errors import ConfigError

__all__ = ["AnchorSampler"]


class AnchorSampler:
    """Draws the anchor groups of each step.

    Args:
        fraction: Share of anchor groups, in (0, 1].
        seed: Seed of the draws.

    Example:
        >>> len(AnchorSampler(fraction=0.1, seed=0).draw(20))
        2
    """

    def __init__(self, fraction: float = 0.1, seed: int = 0) -> None:
        if not 0 < fraction <= 1:
            raise ConfigError(f"The anchor fraction must be in (0, 1], not {fraction}.")
        self.fraction = fraction
        self._generator = np.random.default_rng(seed)

    def count(self, num_groups: int) -> int:
        """Number of anchors among that many groups: at least one."""
        return max(1, round(self.fraction * num_groups))

    def draw(self, num_groups: int) -> list[int]:
        """Draw the anchors of the next step.

        Args:
            num_groups: Number of groups of the step (m).

        Returns:
            Their positions in the step, ascending: uniform without replacement.
        """
        if num_groups < 1:
            raise ConfigError(f"A step needs at least one group, not {num_groups}.")
        positions = self._generator.choice(num_groups, size=self.count(num_groups), replace=False)
        return sorted(positions.tolist())

    def state_dict(self) -> dict[str, Any]:
        """State of the generator, fit for JSON."""
        return {"generator": self._generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken."""
        self._generator.bit_generator.state = state["generator"]
