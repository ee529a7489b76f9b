"""The error of this floor."""

from wmrl_envs.errors import WMRLError

__all__ = ["RewardError"]


class RewardError(WMRLError, ValueError):
    """Scores, sources or shapes that no reward can be made of, or a broken world-model contract."""
