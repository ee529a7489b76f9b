"""Evaluation by real execution: avg@k percentile per task, averaged inside categories, then over them.

While it plays, the agent is told how it did on the public half of the test rows; the number that counts is
its program's score on the private half, which it is never told. No turn is chosen by its private score.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.draws import derive_seed
from wmrl_agents.grpo.parts import make_executor
from wmrl_agents.grpo.roles import PlayingPolicy
from wmrl_agents.grpo.rollouts import Executor, Group, Rollouts, rollout_settings, stop_if_asked
from wmrl_envs.autoresearch import Competition
from wmrl_envs.autoresearch.competition import Half
from wmrl_envs.autoresearch.sources.mle_bench import report
from wmrl_envs.evaluation import Grade

__all__ = ["TaskResult", "as_mle_bench", "evaluate_policy", "play_and_judge", "save_evaluation", "summarise"]

NUMBERS = ("score", "best_score", "valid_rate", "valid_score")


@dataclass(frozen=True)
class TaskResult:
    """How an agent did on one competition.

    Attributes:
        competition: Name.
        category: Its category.
        scores: Score of each trajectory; None where the infrastructure failed.
        statuses: How each trajectory's scored program ended; ``no_program`` where there was none.
        grades: What each trajectory's submission is worth in the metric; None where there was no submission.
        reasons: Why there is no score, one sentence for each trajectory that has none.
    """

    competition: str
    category: str
    scores: tuple[float | None, ...]
    statuses: tuple[str, ...]
    grades: tuple[Grade | None, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def known(self) -> list[tuple[float, str]]:
        """Score and status of the trajectories that have a score."""
        pairs = zip(self.scores, self.statuses, strict=True)
        return [(score, status) for score, status in pairs if score is not None]

    @property
    def score(self) -> float | None:
        """Mean score: avg@k."""
        return _mean(score for score, _ in self.known)

    @property
    def best_score(self) -> float | None:
        """Largest score: best@k, what an agent would reach that could try k times and keep the best."""
        return max((score for score, _ in self.known), default=None)

    @property
    def valid_rate(self) -> float | None:
        """Share of trajectories whose submission could be scored."""
        return _mean(float(status == "ok") for _, status in self.known)

    @property
    def valid_score(self) -> float | None:
        """Mean score of those."""
        return _mean(score for score, status in self.known if status == "ok")


def evaluate_policy(
    policy: PlayingPolicy,
    competitions: Sequence[Competition],
    config: GRPOConfig,
    *,
    cache: Path,
    half: Half = "private",
    mle_bench_report: Path | None = None,
) -> dict[str, Any]:
    """Play ``config.evaluation_repeats`` episodes on each competition in the config's sandbox and score them.

    Args:
        policy: The agent.
        competitions: The tasks.
        config: Turns, limits and seed.
        cache: File of stored executions.
        half: Half of the test rows that the reported scores are on.
        mle_bench_report: Where MLE-bench's report goes, with medals, as JSON; None for nowhere.

    Returns:
        The summary, fit for JSON; see `summarise`.
    """
    with make_executor(config, cache, "public") as public, make_executor(config, cache, half) as judge:
        results, executions = play_and_judge(policy, competitions, config, public, judge)
    if mle_bench_report is not None:
        save_evaluation(as_mle_bench(results, competitions, half), mle_bench_report)
    about = {"half": half, "repeats": config.evaluation_repeats, "executions": executions}
    return {**summarise(results), **about}


def play_and_judge(
    policy: PlayingPolicy,
    competitions: Sequence[Competition],
    config: GRPOConfig,
    public: Executor,
    judge: Executor,
) -> tuple[list[TaskResult], int]:
    """Play episodes on each competition and score their programs.

    Args:
        policy: The agent.
        competitions: The tasks.
        config: Turns, repeats and seed.
        public: Gives the feedback between turns.
        judge: Scores the program that counts.

    Returns:
        One result per competition, and the number of executions while playing.

    Raises:
        InfrastructureError: The machine failed, and the config says to stop then.
    """
    groups = [Group(index, competition, "real") for index, competition in enumerate(competitions)]
    rollouts = Rollouts(policy, public, None, rollout_settings(config))
    rollouts.play(groups, config.evaluation_repeats, seed=derive_seed(config.seed, "evaluation"))
    executions = sum(len(t.executions) for group in groups for t in group.trajectories)
    return [_judge(group, judge, config.on_infrastructure) for group in groups], executions


def _judge(group: Group, judge: Executor, on_infrastructure: str) -> TaskResult:
    """Score the programs that count, on the half that the agent was not told about."""
    scored = [trajectory.episode.scored for trajectory in group.trajectories]
    futures = [None if pair is None else judge.submit(pair[0], group.index) for pair in scored]
    evaluations = [None if future is None else future.result() for future in futures]
    missing = [e for e in evaluations if e is not None and e.score is None]
    for evaluation in missing:
        stop_if_asked(evaluation, on_infrastructure)
    competition = group.competition
    return TaskResult(
        competition.name,
        competition.category,
        tuple(0.0 if evaluation is None else evaluation.score for evaluation in evaluations),
        tuple("no_program" if evaluation is None else evaluation.status for evaluation in evaluations),
        tuple(None if evaluation is None else evaluation.grade for evaluation in evaluations),
        tuple(evaluation.error or evaluation.status for evaluation in missing),
    )


def summarise(results: Sequence[TaskResult]) -> dict[str, Any]:
    """Averages over tasks inside each category, then over categories.

    Returns:
        ``score``, ``best_score``, ``valid_rate`` and ``valid_score`` overall; the same per category and per
        task; ``failures`` by kind; ``missing``, the trajectories that have no score, and ``missing_reasons``.
    """
    by_category: dict[str, list[TaskResult]] = {}
    for result in results:
        by_category.setdefault(result.category, []).append(result)
    categories = {
        category: {name: _mean(getattr(result, name) for result in members) for name in NUMBERS}
        for category, members in sorted(by_category.items())
    }
    return {
        **{name: _mean(category[name] for category in categories.values()) for name in NUMBERS},
        "categories": categories,
        "tasks": [_task_row(result) for result in results],
        "failures": _failures(status for result in results for status in result.statuses),
        "missing": sum(score is None for result in results for score in result.scores),
        "missing_reasons": dict(Counter(reason for result in results for reason in result.reasons)),
    }


def _task_row(result: TaskResult) -> dict[str, Any]:
    return {
        "competition": result.competition,
        "category": result.category,
        **{name: getattr(result, name) for name in NUMBERS},
        "scores": list(result.scores),
        "failures": _failures(result.statuses),
    }


def as_mle_bench(
    results: Sequence[TaskResult], competitions: Sequence[Competition], half: Half = "private"
) -> dict[str, Any]:
    """The results in MLE-bench's terms, ready for JSON; each trajectory is one of its runs.

    Args:
        results: One for each competition.
        competitions: The competitions, in any order; those without a leaderboard are left out.
        half: The leaderboard to compare with.

    Returns:
        MLE-bench's counts, and ``competition_reports``, whose ``submission_path`` is empty: submissions are
        graded and not kept. A trajectory that the infrastructure lost is no run.
    """
    known = {competition.name: competition for competition in competitions if competition.board_paths}
    reports = [
        report(known[result.competition], grade, "", half)
        for result in results
        for grade, score in zip(result.grades, result.scores, strict=True)
        if result.competition in known and score is not None
    ]
    counted = {
        "total_runs_with_submissions": "submission_exists",
        "total_valid_submissions": "valid_submission",
        "total_medals": "any_medal",
        "total_gold_medals": "gold_medal",
        "total_silver_medals": "silver_medal",
        "total_bronze_medals": "bronze_medal",
    }
    counts = {name: sum(report[field] for report in reports) for name, field in counted.items()}
    return {"total_runs": len(reports), **counts, "competition_reports": reports}


def _failures(statuses: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(status for status in statuses if status != "ok").items()))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def save_evaluation(summary: Mapping[str, Any], path: Path) -> None:
    """Write a summary as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
