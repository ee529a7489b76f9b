"""One line of ``metrics.jsonl``: what a step did, in numbers.

Every field but those named ``seconds_...`` is the same each time a run is repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_agents.grpo.played import PlayedGroup
from wmrl_agents.grpo.scores import StepScores
from wmrl_agents.grpo.updates import Update
from wmrl_envs.evaluation import Evaluation
from wmrl_rewards.fusion import all_equal

__all__ = ["blindness", "corrections", "machine_failures", "step_metrics"]

REASON_CHARS = 300


def step_metrics(
    groups: Sequence[PlayedGroup],
    scores: StepScores,
    update: Update,
    *,
    num_groups: int,
    repeated: int,
) -> dict[str, Any]:
    """Numbers of one step, besides those of the rewards and the clock.

    Args:
        groups: Its groups with finished trajectories.
        scores: Their scores.
        update: What the backward passes saw.
        num_groups: Groups that a step of real-execution GRPO has. Where fewer were played (anchors alone),
            what that would have used is reckoned from those.
        repeated: Executions of a program that the run had executed before.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    executed = [evaluation for trajectory in trajectories for _, evaluation in trajectory.executed]
    predicted = [evaluation for trajectory in trajectories for evaluation in trajectory.predicted]
    evaluated = sum(trajectory.num_evaluated for trajectory in trajectories)
    outcomes = [evaluation.outcome for evaluation in executed if evaluation.outcome is not None]
    anchors = scores.anchors
    return {
        "score": _mean(scores.used),
        "score_real": _mean(scores.real[anchors]),
        "score_predicted": _mean(scores.predicted[~anchors]),
        "score_calibrated": _mean(scores.calibrated[~anchors]),
        "valid_rate": _valid_rate(executed),
        "valid_rate_predicted": _valid_rate(predicted),
        "failures": _failures(executed),
        "failures_predicted": _failures(predicted),
        "equal_groups": _equal_groups(scores, anchors),
        "equal_groups_predicted": _equal_groups(scores, ~anchors),
        "missing": int(np.isnan(scores.used).sum()),
        "infrastructure": _reasons(executed),
        "rescued": sum(trajectory.rescued for trajectory in trajectories),
        "executions": len(executed),
        "executions_repeated": repeated,
        "executions_real_would_use": round(evaluated * num_groups / len(groups)),
        "turns": sum(trajectory.num_turns for trajectory in trajectories),
        "truncated_replies": sum(trajectory.num_truncated for trajectory in trajectories),
        "tokens": update.statistics.tokens,
        "kl": update.statistics.kl,
        "entropy": update.statistics.entropy,
        "logp_mismatch": update.statistics.mismatch,
        "logp_mismatch_trajectory": update.statistics.sequence_mismatch,
        "grad_norm": update.grad_norm,
        "clipped_tokens": update.clipped,
        "seconds_executing": sum(outcome.seconds for outcome in outcomes),
        "seconds_workers_execute": sum(outcome.seconds for outcome in outcomes if not outcome.cached),
    }


def _mean(values: NDArray[np.float64]) -> float | None:
    present = values[~np.isnan(values)]
    return float(present.mean()) if present.size else None


def _valid_rate(evaluations: Sequence[Evaluation]) -> float | None:
    """Share of programs whose submission could be scored."""
    statuses = [evaluation.status == "ok" for evaluation in evaluations if evaluation.score is not None]
    return sum(statuses) / len(statuses) if statuses else None


def _failures(evaluations: Sequence[Evaluation]) -> dict[str, int]:
    counts = Counter(evaluation.status for evaluation in evaluations if evaluation.status != "ok")
    return dict(sorted(counts.items()))


def _reasons(evaluations: Sequence[Evaluation]) -> dict[str, int]:
    """Why the machine gave no score, and how often."""
    reasons = (evaluation.error or "unknown" for evaluation in evaluations if evaluation.machine_failed)
    return dict(Counter(reason[:REASON_CHARS] for reason in reasons).most_common())


def machine_failures(metrics: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The same over the steps of a run, the most frequent reason first."""
    total: Counter[str] = Counter()
    for step in metrics:
        total.update(step.get("infrastructure", {}))
    return dict(total.most_common())


def corrections(metrics: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """In how many steps predicted groups were ``mapped``, ``weighted`` against anchors, or ``both``."""
    counted = [step for step in metrics if not step.get("predictions_ignored")]
    return {
        "mapped": sum(bool(step["fitted"]) for step in counted),
        "weighted": sum(step["rho"] != 1 for step in counted),
        "both": sum(bool(step["fitted"]) and step["rho"] != 1 for step in counted),
    }


def blindness(metrics: Sequence[Mapping[str, Any]], ignored: bool) -> str | None:
    """What is to be said of steps in which the world model was, or may have been, blind; None if nothing.

    Args:
        metrics: One mapping a step.
        ignored: Whether its groups did not count while it was blind.
    """
    blind = [step for step in metrics if step.get("blind")]
    unproven = [step for step in metrics if step.get("predictions_ignored") and not step["blind"]]
    of_all = f"of {len(metrics)} steps"
    sentences = []
    if blind:
        z, chance = blind[-1]["signal_z"], blind[-1].get("signal_chance")
        seen = "it tells nothing apart" if z is None else f"z = {z:.1f}"
        seen += "" if chance is None else f", which chance comes to {chance:.0%} of the time"
        effect = "so its groups did not count" if ignored else "and its groups counted all the same"
        sentences.append(
            f"The world model was blind in {len(blind)} {of_all}: on the anchors it did not rank the "
            f"members of a group better than chance ({seen}), {effect}."
        )
    if unproven:
        sentences.append(
            f"In {len(unproven)} {of_all}, the last of them step {unproven[-1]['step'] + 1}, the world model "
            "played no groups, because the anchors did not show that it sees (presume_blind)."
        )
    return " ".join(sentences) or None


def _equal_groups(scores: StepScores, which: NDArray[np.bool_]) -> dict[str, int]:
    """Groups without any advantage, because all of their members failed, or did equally well."""
    raw = np.where(np.isnan(scores.real), scores.predicted, scores.real)[which]
    present = [row[~np.isnan(row)] for row in raw]
    equal = [float(row[0]) for row in present if row.size and all_equal(row)]
    failed = sum(score == 0 for score in equal)
    return {"failed": failed, "solved": len(equal) - failed}
