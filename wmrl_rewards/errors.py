"""The errors of this floor."""

from wmrl_envs.errors import WMRLError

__all__ = ["ContractError", "RewardError"]


class RewardError(WMRLError, ValueError):
    """Scores, sources or shapes that no reward can be made of."""


class ContractError(RewardError):
    """A world model breaks its contract.

    Attributes:
        breaches: One sentence for each breach.
    """

    def __init__(self, *breaches: str) -> None:
        super().__init__(*breaches)
        self.breaches = breaches

    def __str__(self) -> str:
        return "\n".join(self.breaches)
