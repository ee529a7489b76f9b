"""What a run was made with besides its settings: the words of its prompts, and the machine.

Under other words the pairs that a run has gathered say nothing about what is predicted now, so a run does not
go on with them. On another machine it goes on, but not to the last bit as it would have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from wmrl_agents.grpo.rollouts import Rollouts
from wmrl_envs.autoresearch import Competition
from wmrl_envs.autoresearch.prompts import no_code_text, outcome_text
from wmrl_envs.autoresearch.replies import parse
from wmrl_envs.errors import ConfigError
from wmrl_envs.evaluation import Evaluation, Grade, Outcome
from wmrl_rewards.world_models import prompts

__all__ = ["check_prompts", "environment_changes", "prompt_versions"]


def prompt_versions(rollouts: Rollouts, competitions: Sequence[Competition]) -> dict[str, str]:
    """A hash for each kind of text that a run depends on.

    Args:
        rollouts: They open dialogues; what is hashed are token ids, so the chat template counts too.
        competitions: The run's tasks.

    Returns:
        ``agent``: how the agent is asked; ``feedback``: how it is answered; ``world model``: how that one is
        asked.
    """
    evaluations = (
        Evaluation(Outcome("ok"), Grade("ok", score=0.5, percentile=0.25)),
        Evaluation(Outcome("error", stderr="error")),
        Evaluation(Outcome("ok"), Grade("bad_ids", message="ids")),
    )
    feedback = [outcome_text(evaluation, competitions[0]) for evaluation in evaluations]
    return {
        "agent": _hash([rollouts.opening(competition).token_ids for competition in competitions]),
        "feedback": _hash([*feedback, no_code_text(parse(""))]),
        "world model": _hash(
            [prompts.SYSTEM, prompts.PERCENTILE_SYSTEM, prompts.user_message("task", "code", [("a", "b")])]
        ),
    }


def _hash(parts: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def check_prompts(then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Make sure that a run goes on with the words that it began with.

    Args:
        then: Versions in the checkpoint; those of a text that it does not have are not compared.
        now: Versions of now.

    Raises:
        ConfigError: They differ.
    """
    changed = [name for name, version in now.items() if then.get(name, version) != version]
    if changed:
        raise ConfigError(
            f"The prompts or tasks have changed since this run's checkpoint ({', '.join(changed)}), so what "
            "the run has learned about its world model no longer holds. Go on with the version of WMRL that "
            "made it, or begin a new run from its weights: --policy RUN/checkpoints/step-N/policy."
        )


def environment_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """One sentence on what has changed since a run began that its last bits depend on; None if nothing has.

    Args:
        then: ``environment.json`` of the run.
        now: The same of now.

    Example:
        >>> environment_changes({"python": "3.11.2"}, {"python": "3.12.1"}).partition(":")[0]
        'Since this run began its surroundings have changed (python 3.11.2, now 3.12.1)'
    """
    before, after = _flat(then), _flat(now)
    names = [name for name in before if name in after and before[name] != after[name]]
    if not names:
        return None
    said = "; ".join(f"{name} {before[name]}, now {after[name]}" for name in names)
    return (
        f"Since this run began its surroundings have changed ({said}): it goes on as it should, but rounding "
        "may differ, so it need not be bit for bit the run that had not been interrupted."
    )


def _flat(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Innermost names only: no two of them are the same."""
    flat: dict[str, Any] = {}
    for name, value in environment.items():
        flat.update(_flat(value) if isinstance(value, Mapping) else {name: value})
    return flat
