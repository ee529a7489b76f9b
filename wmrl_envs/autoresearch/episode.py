"""One episode as a state machine: reply in, solution out, evaluation in, observation out.

It neither runs nor predicts anything, so the Gymnasium environment and an asynchronous trainer drive the same
one. At most ``max_turns`` replies; it ends at the last of them, or at an explicit submit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from wmrl_envs.autoresearch import replies
from wmrl_envs.autoresearch.competition import Competition, Half
from wmrl_envs.autoresearch.information import information
from wmrl_envs.autoresearch.prompts import (
    FEEDBACK_SCORES,
    FeedbackScore,
    fit,
    no_code_text,
    outcome_text,
    submitted_text,
    task_text,
)
from wmrl_envs.autoresearch.replies import Reply
from wmrl_envs.autoresearch.rewards import REWARDS, RewardKind, worth
from wmrl_envs.errors import ConfigError
from wmrl_envs.evaluation import Evaluation, Solution

__all__ = ["Episode", "TrajectoryScore", "Turn"]

TrajectoryScore = Literal["final", "best"]


@dataclass(frozen=True)
class Turn:
    """What happened in one turn.

    Attributes:
        text: The reply as it was written.
        reply: What it says.
        solution: The program that it held, if any.
        evaluation: What came of that program.
        observation: What the agent was told.
    """

    text: str
    reply: Reply
    solution: Solution | None
    evaluation: Evaluation | None
    observation: str

    @property
    def status(self) -> str:
        """One word: the evaluation's status, or ``no_code``, ``request_info``, ``submitted``."""
        return self.evaluation.status if self.evaluation is not None else _STATUS[self.reply.kind]


MIN_LIMIT = 64
_STATUS = {"malformed": "no_code", "request_info": "request_info", "submit": "submitted"}


class Episode:
    r"""An episode on one competition.

    Args:
        competition: The competition.
        max_turns: Number of replies after which the episode ends.
        trajectory_score: ``final`` takes the score of the last turn that held code, ``best`` the best one.
        half: Which half of the test rows gives the score; recorded for whoever evaluates the solutions.
        reward: What a turn is worth: see `wmrl_envs.autoresearch.rewards`.
        feedback_score: What the agent is told of its score: metric value and percentile
            (``percentile+raw``), the metric value (``raw``), or ``none`` of them.
        observation_limit: Longest observation after a reply; the middle of a longer one is cut. None for any.
        overview_limit: Longest first observation, the task, likewise.
        count_tokens: Measures texts for the two limits; None counts characters.

    Raises:
        ConfigError: An argument is out of its range.

    Example:
        >>> from wmrl_envs.autoresearch import load_competition
        >>> from wmrl_envs.evaluation import Evaluation, Grade, Outcome
        >>> episode = Episode(load_competition("breast-cancer"), max_turns=1)
        >>> solution = episode.reply("```python\nprint('hello')\n```")
        >>> episode.receive(Evaluation(Outcome("ok"), Grade("ok", score=0.9, percentile=0.5)))
        >>> episode.done, episode.score
        (True, 0.5)
    """

    def __init__(
        self,
        competition: Competition,
        *,
        max_turns: int = 4,
        trajectory_score: TrajectoryScore = "final",
        half: Half = "public",
        reward: RewardKind = "percentile",
        feedback_score: FeedbackScore = "percentile+raw",
        observation_limit: int | None = None,
        overview_limit: int | None = None,
        count_tokens: Callable[[str], int] | None = None,
    ) -> None:
        if max_turns < 1:
            raise ConfigError(f"max_turns must be at least 1, not {max_turns}.")
        _require_one_of("trajectory_score", trajectory_score, ("final", "best"))
        _require_one_of("half", half, ("public", "private"))
        _require_one_of("reward", reward, REWARDS)
        _require_one_of("feedback_score", feedback_score, FEEDBACK_SCORES)
        for name, limit in (("observation_limit", observation_limit), ("overview_limit", overview_limit)):
            if limit is not None and limit < MIN_LIMIT:
                raise ConfigError(f"{name} must be None or at least {MIN_LIMIT}, not {limit}.")
        self.competition = competition
        self.max_turns = max_turns
        self.trajectory_score = trajectory_score
        self.half = half
        self.reward = reward
        self.feedback_score = feedback_score
        self.observation_limit = observation_limit
        self.overview_limit = overview_limit
        self.measure = count_tokens or len
        self.overview = fit(task_text(competition), overview_limit, self.measure)
        self.observation = self.overview
        self.done = False
        self.turns: list[Turn] = []
        self._waiting: tuple[str, Reply, Solution] | None = None

    @property
    def turn(self) -> int:
        """Number of turns that are over."""
        return len(self.turns)

    @property
    def waiting(self) -> Solution | None:
        """The solution whose evaluation the episode waits for."""
        return None if self._waiting is None else self._waiting[2]

    @property
    def evaluations(self) -> list[Evaluation]:
        """Evaluations of the turns that held code, in their order."""
        return [turn.evaluation for turn in self.turns if turn.evaluation is not None]

    @property
    def truncated_reply(self) -> bool:
        """Whether the last reply broke off."""
        reply = self._waiting[1] if self._waiting else self.turns[-1].reply if self.turns else None
        return reply is not None and reply.truncated

    def reply(self, text: str) -> Solution | None:
        """Take the agent's reply.

        Returns:
            The solution to evaluate, whose evaluation goes to `receive`; None if the reply held no code, in
            which case the turn is over.

        Raises:
            RuntimeError: The episode is over, or waits for an evaluation.
        """
        if self.done:
            raise RuntimeError("The episode is over: begin a new one.")
        if self._waiting is not None:
            raise RuntimeError("The episode waits for an evaluation: call receive() before the next reply().")
        reply = replies.parse(text)
        if reply.kind == "code":
            solution = Solution(self.competition, reply.code, self.turn)
            self._waiting = (text, reply, solution)
            return solution
        self._end_turn(text, reply, None, None, self._answer(reply))
        return None

    def receive(self, evaluation: Evaluation) -> None:
        """Take the evaluation of the solution that `reply` gave.

        Raises:
            RuntimeError: No evaluation is waited for.
        """
        if self._waiting is None:
            raise RuntimeError("No evaluation is waited for: call reply() with code first.")
        text, reply, solution = self._waiting
        self._waiting = None
        observation = outcome_text(evaluation, self.competition, feedback_score=self.feedback_score)
        self._end_turn(text, reply, solution, evaluation, observation)

    @property
    def scored(self) -> tuple[Solution, Evaluation] | None:
        """The solution that gives the score, and its evaluation; None if no turn held code.

        For ``best`` turns without a score are passed over, and of equals the first one counts.
        """
        pairs = [(t.solution, t.evaluation) for t in self.turns if t.solution and t.evaluation]
        if not pairs:
            return None
        if self.trajectory_score == "final":
            return pairs[-1]
        return max(pairs, key=lambda pair: self._order(pair[1]))

    @property
    def score(self) -> float | None:
        """Score in [0, 1] of the turns so far; 0 if none held code, None if the score is missing."""
        scored = self.scored
        return 0.0 if scored is None else self.worth(scored[1])

    def worth(self, evaluation: Evaluation) -> float | None:
        """What an evaluation is worth in [0, 1], by the reward of this episode; None if that is missing."""
        return worth(evaluation, self.reward)

    def _order(self, evaluation: Evaluation) -> float:
        """Its worth; less than any other where that is missing."""
        value = self.worth(evaluation)
        return -1.0 if value is None else value

    def _answer(self, reply: Reply) -> str:
        if reply.kind == "request_info":
            return information(self.competition, reply.wanted)
        if reply.kind == "submit":
            last = self.scored[1] if self.scored else None
            return submitted_text(last, self.competition, feedback_score=self.feedback_score)
        return no_code_text(reply)

    def _end_turn(
        self,
        text: str,
        reply: Reply,
        solution: Solution | None,
        evaluation: Evaluation | None,
        observation: str,
    ) -> None:
        self.observation = fit(observation, self.observation_limit, self.measure)
        self.turns.append(Turn(text, reply, solution, evaluation, self.observation))
        self.done = self.turn == self.max_turns or reply.kind == "submit"


def _require_one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}.")
