"""Episodes of programs in the making, and groups of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from wmrl_agents.grpo.played import EvaluationRow, TurnRow
from wmrl_agents.policies.base import Sample
from wmrl_agents.store import content_key
from wmrl_envs.autoresearch.competition import Competition
from wmrl_envs.autoresearch.episode import Episode
from wmrl_envs.evaluation import Evaluation, Solution, Source

__all__ = ["Group", "Trajectory"]


@dataclass
class Trajectory:
    """One episode in the making.

    Attributes:
        episode: The environment's side: turns, evaluations, the score.
        sample: The token record so far.
        truncated: For each turn, whether the reply hit the token limit.
        predictions: For each turn, what the world model says where the evaluation is real.
        context_full: Whether it ended because the policy's context has no room for a further reply.
        rescue: Real evaluation of a trajectory for which the world model had no answer.
    """

    episode: Episode
    sample: Sample | None = None
    truncated: list[bool] = field(default_factory=list)
    predictions: list[Evaluation | None] = field(default_factory=list)
    context_full: bool = False
    rescue: Evaluation | None = None

    @property
    def executions(self) -> list[tuple[Solution, Evaluation]]:
        """Everything of this trajectory that was executed for real."""
        turns = [(t.solution, t.evaluation) for t in self.episode.turns if t.solution and t.evaluation]
        executed = [(solution, evaluation) for solution, evaluation in turns if evaluation.source == "real"]
        if self.rescue is not None and self.episode.scored is not None:
            executed.append((self.episode.scored[0], self.rescue))
        return executed

    @property
    def predicted_score(self) -> float | None:
        """What the world model says in place of the real score, by the rule of the episode."""
        predictions = [p for p, t in zip(self.predictions, self.episode.turns, strict=True) if t.solution]
        scores = [None if prediction is None else prediction.score for prediction in predictions]
        if self.episode.trajectory_score == "final":
            return scores[-1] if scores else None
        return max((score for score in scores if score is not None), default=None)

    def scores(self, source: Source) -> tuple[float | None, float | None]:
        """Real and predicted score, see `PlayedTrajectory`.

        Without any program it scored 0 by its own fault, whoever would have evaluated it: its real score is
        known to be 0, and nothing was predicted.
        """
        if self.episode.scored is None:
            return self.episode.score, None
        if source == "real":
            return self.episode.score, self.predicted_score
        return None if self.rescue is None else self.rescue.score, self.episode.score

    @property
    def executed(self) -> list[tuple[str, Evaluation]]:
        """See `PlayedTrajectory`."""
        return [(content_key(solution), evaluation) for solution, evaluation in self.executions]

    @property
    def predicted(self) -> list[Evaluation]:
        """See `PlayedTrajectory`."""
        everything = [*self.episode.evaluations, *self.predictions]
        return [evaluation for evaluation in everything if evaluation and evaluation.source == "world_model"]

    @property
    def num_evaluated(self) -> int:
        """See `PlayedTrajectory`."""
        return len(self.episode.evaluations)

    @property
    def num_turns(self) -> int:
        """See `PlayedTrajectory`."""
        return self.episode.turn

    @property
    def num_truncated(self) -> int:
        """See `PlayedTrajectory`."""
        return sum(self.truncated)

    @property
    def rescued(self) -> bool:
        """See `PlayedTrajectory`."""
        return self.rescue is not None

    def turn_rows(self) -> list[TurnRow]:
        """See `PlayedTrajectory`."""
        return [
            (number, turn.reply.kind, turn.text, turn.reply.code, turn.observation, self.truncated[number])
            for number, turn in enumerate(self.episode.turns)
        ]

    def evaluation_rows(self) -> list[EvaluationRow]:
        """See `PlayedTrajectory`."""
        rows = [
            (number, content_key(turn.solution), evaluation)
            for number, turn in enumerate(self.episode.turns)
            for evaluation in (turn.evaluation, self.predictions[number])
            if turn.solution is not None and evaluation is not None
        ]
        if self.rescue is not None and self.episode.scored is not None:
            solution = self.episode.scored[0]
            rows.append((solution.turn, content_key(solution), self.rescue))
        return rows


@dataclass
class Group:
    """Trajectories on one task, evaluated by one source.

    Attributes:
        index: Number of the group in its step.
        competition: The task.
        source: Who evaluates its turns.
        trajectories: Its members.
    """

    index: int
    competition: Competition
    source: Source
    trajectories: list[Trajectory] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the task."""
        return self.competition.name

    @property
    def category(self) -> str:
        """What kind of task it is."""
        return self.competition.category
