"""Errors that WMRL raises on bad input: one clear sentence each, all of one family."""

__all__ = [
    "CompetitionError",
    "ConfigError",
    "InfrastructureError",
    "MissingExtraError",
    "SandboxError",
    "SimulatorError",
    "WMRLError",
    "in_one_line",
]


class WMRLError(Exception):
    """Base of every error that a user can cause; the command line prints its sentence and exits with 2."""


class ConfigError(WMRLError):
    """A setting is unknown, of the wrong type, or out of its range."""


class CompetitionError(WMRLError):
    """A competition is unknown, or its folder is not what the format says."""


class SandboxError(WMRLError):
    """The sandbox cannot be had on this machine as it was asked for."""


class SimulatorError(WMRLError):
    """The robot simulator, or what it draws with, cannot be had on this machine as it was asked for."""


class InfrastructureError(WMRLError):
    """The machine failed while a run went on, and the run was told to stop then."""


class MissingExtraError(WMRLError):
    """An optional package is needed; the sentence names the extra that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"This needs the package '{package}': install it with  pip install 'wmrl[{extra}]'.")


def in_one_line(error: BaseException) -> str:
    """What an error of a library says, for the end of a sentence of ours: one line, cut to 300 characters.

    Example:
        >>> in_one_line(ValueError(" bad   thing ")), in_one_line(KeyError())
        ('bad thing', 'KeyError')
    """
    return " ".join(str(error).split())[:300] or type(error).__name__
