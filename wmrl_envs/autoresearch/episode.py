"""One episode as a state machine: reply in, solution out, evaluation in, observation out.

It neither runs nor predicts anything, so the Gymnasium environment and an asynchronous trainer drive the same
one. At most ``max_turns`` replies; it ends at the last of them, or at an explicit submit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wmrl_envs.autoresearch import replies
from wmrl_envs.autoresearch.competition import Competition, Half
from wmrl_envs.autoresearch.prompts import no_code_text, outcome_text, submitted_text, task_text
from wmrl_envs.autoresearch.replies import Reply
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


_STATUS = {"malformed": "no_code", "request_info": "request_info", "submit": "submitted"}


class Episode:
    r"""An episode on one competition.

    Args:
        competition: The competition.
        max_turns: Number of replies after which the episode ends.
        trajectory_score: ``final`` takes the score of the last turn that held code, ``best`` the best one.
        half: Which half of the test rows gives the score; recorded for whoever evaluates the solutions.

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
    ) -> None:
        if max_turns < 1:
            raise ConfigError(f"max_turns must be at least 1, not {max_turns}.")
        if trajectory_score not in ("final", "best"):
            raise ConfigError(f"trajectory_score must be 'final' or 'best', not {trajectory_score!r}.")
        if half not in ("public", "private"):
            raise ConfigError(f"half must be 'public' or 'private', not {half!r}.")
        self.competition = competition
        self.max_turns = max_turns
        self.trajectory_score = trajectory_score
        self.half = half
        self.observation = task_text(competition)
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
        self._end_turn(Turn(text, reply, None, None, self._answer(reply)))
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
        self._end_turn(Turn(text, reply, solution, evaluation, outcome_text(evaluation, self.competition)))

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
        return max(pairs, key=lambda pair: -1.0 if pair[1].score is None else pair[1].score)

    @property
    def score(self) -> float | None:
        """Score in [0, 1] of the turns so far; 0 if none held code, None if the score is missing."""
        scored = self.scored
        return 0.0 if scored is None else scored[1].score

    def _answer(self, reply: Reply) -> str:
        if reply.kind == "request_info":
            return task_text(self.competition)
        if reply.kind == "submit":
            return submitted_text(self.scored[1] if self.scored else None, self.competition)
        return no_code_text(reply)

    def _end_turn(self, turn: Turn) -> None:
        self.turns.append(turn)
        self.observation = turn.observation
        self.done = self.turn == self.max_turns or turn.reply.kind == "submit"
