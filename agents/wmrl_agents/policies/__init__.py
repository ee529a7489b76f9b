"""Policies: what samples and what is trained."""

from __future__ import annotations

from pathlib import Path

from wmrl_agents.policies.tiny_coder import WEIGHTS
from wmrl_envs.errors import ConfigError

__all__ = ["resolve_model"]

_BUNDLED = {"tiny-coder": WEIGHTS / "agent", "tiny-coder-world-model": WEIGHTS / "world_model"}


def resolve_model(name: str) -> str | Path:
    """What to load for a model's name: the folder of a bundled model, any other name as it is.

    Raises:
        ConfigError: The weights of a bundled model are not in this installation.
    """
    if name not in _BUNDLED:
        return name
    if not (_BUNDLED[name] / "config.json").is_file():
        raise ConfigError(
            f"The weights of '{name}' are not in this installation: make them with `wmrl tiny-coder build`."
        )
    return _BUNDLED[name]
