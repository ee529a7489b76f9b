"""Agents that learn from world-model rewards.

`GRPOConfig` says what to run, `GRPOTrainer` runs it, `Policy` is what it trains. Everything that needs torch
is imported when it is first asked for, so that ``wmrl --help`` answers at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wmrl_agents.grpo.config import GRPOConfig
    from wmrl_agents.grpo.trainer import GRPOTrainer
    from wmrl_agents.policies.base import Policy

__all__ = ["GRPOConfig", "GRPOTrainer", "Policy"]

_HOMES = {
    "GRPOConfig": "wmrl_agents.grpo.config",
    "GRPOTrainer": "wmrl_agents.grpo.trainer",
    "Policy": "wmrl_agents.policies.base",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
