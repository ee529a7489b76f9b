"""`AutoResearchEnv`: an episode of a competition as a Gymnasium environment, text in and text out."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.error import ResetNeeded

from wmrl_envs.autoresearch.competition import Competition, Half, competition_names, load_competition
from wmrl_envs.autoresearch.episode import Episode, TrajectoryScore
from wmrl_envs.autoresearch.prompts import FeedbackScore
from wmrl_envs.autoresearch.rewards import RewardKind
from wmrl_envs.autoresearch.sandbox_evaluator import SandboxEvaluator
from wmrl_envs.errors import ConfigError
from wmrl_envs.evaluation import Evaluation, Evaluator, Solution
from wmrl_envs.sandbox.choose import SandboxName, make_sandbox
from wmrl_envs.sandbox.job import Sandbox
from wmrl_envs.spaces import UnicodeText

__all__ = ["AutoResearchEnv", "check_sandbox", "make_dsbench"]

MAX_CHARACTERS = 1_000_000
_OPTIONS = ("competition", "evaluator", "group")


class AutoResearchEnv(gym.Env[str, str]):
    """An agent writes programs that solve a competition, and is rewarded with its place on the leaderboard.

    An action is a reply: text with one program in a ```` ```python ```` block, the word ``submit``, or
    ``request_info`` with the name of what is wanted: overview, sample_submission, data_structure, name or
    metadata (`wmrl_envs.autoresearch.replies` has all rules). The first observation is the task, each later
    one says what came of the last reply. The episode ends after ``max_turns`` replies or with ``submit``.

    The reward is 0.0 until the last step, which carries the trajectory's score: a leaderboard percentile in
    [0, 1], 0 for a program that fails. Where the score is *missing* (the machine failed, not the program) the
    last reward is NaN and ``info["error"]`` says why: 0 would blame the agent for it. Leave such a trajectory
    out.

    ``info`` has the same keys at every step: ``competition`` (its name), ``turn`` (replies so far),
    ``status`` (one word on the last reply), and, of the program that gives the trajectory's score as it
    stands, ``score`` (metric value) and ``percentile`` (both None for a program that fails, or for none) and
    ``error`` (why its score is missing, else None).

    Options of `reset`, for this episode alone: ``competition`` (a name, a folder or a `Competition`),
    ``evaluator``, and ``group``, which this environment leaves to the reward wrapper around it.

    Args:
        competition: Name or folder of a competition; None draws one of the train split at each reset.
        data_root: Folder of competition folders, in this project's layout or in that of MLE-Dojo, MLE-bench
            or DSBench; None for the bundled ones.
        dojo_root: Code tree with the metrics of MLE-Dojo (or the graders of MLE-bench), where that package
            is not installed.
        max_turns: Replies in an episode.
        trajectory_score: ``final`` scores the last program, ``best`` the best one.
        half: Half of the test rows that gives the score: ``public`` to train, ``private`` to evaluate.
        evaluator: Who evaluates programs; None executes them in the sandbox.
        sandbox: Where they are executed: ``bubblewrap``, ``docker``, ``unsafe`` (which isolates nothing), or
            a sandbox with limits, image and GPUs of your choice. Only without an evaluator.
        reward: ``percentile``, or ``graded``, which also values attempts: 0 for what is no Python, 0.1 for a
            program that fails, 0.2 for one without a valid submission, else 0.5 plus half the percentile.
        feedback_score: What the agent is told of its score: ``percentile+raw``, the ``raw`` metric value
            alone, or ``none``. The info tells both in any case: it is the harness's, not the agent's.
        observation_limit: Longest observation after a reply; the middle of a longer one is cut. None for any.
        overview_limit: Longest first observation, likewise.
        count_tokens: Measures texts for the two limits, such as the agent's tokenizer does; None counts
            characters.
        render_mode: ``ansi`` makes `render` return the episode so far as text.

    Raises:
        CompetitionError: The competition is unknown, or its folder is not in order.
        ConfigError: Another argument is out of its range.
        SandboxError: The sandbox that is named cannot be had on this machine.

    Example:
        >>> import gymnasium as gym
        >>> env = gym.make("wmrl_envs:wmrl/MLEDojo-v0", competition="breast-cancer")
        >>> task, info = env.reset(seed=0)
        >>> task.splitlines()[0]
        '# Breast cancer diagnosis (tabular)'
        >>> observation, reward, terminated, truncated, info = env.step("submit")
        >>> reward, terminated, info["status"]
        (0.0, True, 'submitted')
        >>> env.close()
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(
        self,
        competition: str | Path | None = None,
        data_root: str | Path | None = None,
        dojo_root: str | Path | None = None,
        max_turns: int = 4,
        trajectory_score: TrajectoryScore = "final",
        half: Half = "public",
        evaluator: Evaluator | None = None,
        sandbox: Sandbox | SandboxName | None = None,
        reward: RewardKind = "percentile",
        feedback_score: FeedbackScore = "percentile+raw",
        observation_limit: int | None = None,
        overview_limit: int | None = None,
        count_tokens: Callable[[str], int] | None = None,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(f"render_mode must be 'ansi' or None, not {render_mode!r}.")
        self.observation_space = UnicodeText(MAX_CHARACTERS)
        self.action_space = UnicodeText(MAX_CHARACTERS)
        self.render_mode = render_mode
        self.data_root = data_root
        self.dojo_root = dojo_root
        check_sandbox(sandbox, evaluator)
        self.evaluator = evaluator
        self.sandbox = sandbox
        self.half: Half = half
        self.episode: Episode | None = None
        self._settings: dict[str, Any] = {
            "max_turns": max_turns,
            "trajectory_score": trajectory_score,
            "half": half,
            "reward": reward,
            "feedback_score": feedback_score,
            "observation_limit": observation_limit,
            "overview_limit": overview_limit,
            "count_tokens": count_tokens,
        }
        self._choices = competition_names(data_root, "train") if competition is None else [competition]
        if not self._choices:
            raise ConfigError(
                f"{data_root} has no competition of the train split: name one of another split."
            )
        self._new_episode(self._choices[0])  # so that what is wrong is said now, not at the first reset
        self.episode_evaluator: Evaluator | None = None
        self._sandbox_evaluator: SandboxEvaluator | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Seed of the draws of competitions from now on.
            options: See the class.

        Returns:
            The task, and the info.

        Raises:
            ConfigError: There is no such option.
            CompetitionError: The competition of the options is unknown, or its folder is not in order.
        """
        super().reset(seed=seed)
        options = dict(options or {})
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise ConfigError(f"Unknown reset option '{unknown[0]}': choose among {', '.join(_OPTIONS)}.")
        drawn = self._choices[int(self.np_random.integers(len(self._choices)))]
        self.episode = self._new_episode(options.get("competition") or drawn)
        self.episode_evaluator = options.get("evaluator")
        return self.episode.observation, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one reply.

        Returns:
            What came of it, the reward, whether the episode is over, False (an episode is never cut short by
            anything but its own turns), and the info.

        Raises:
            ResetNeeded: No episode has begun, or it is over.
            ConfigError: The action is not in the action space.
        """
        self.check_action(action)
        solution = self.take(action)
        if solution is None:
            return self.conclude()
        evaluator = self.episode_evaluator or self.default_evaluator
        [evaluation] = evaluator.evaluate([solution])
        return self.conclude(evaluation)

    def check_action(self, action: str) -> None:
        """The first part of `step`: raise what it raises, change nothing."""
        if self._begun().done:
            raise ResetNeeded("The episode is over: call reset() before the next step().")
        if action not in self.action_space:
            raise ConfigError(
                f"An action is a text of at most {MAX_CHARACTERS:,} Unicode characters, "
                f"not {type(action).__name__} {str(action)[:40]!r}."
            )

    def take(self, action: str) -> Solution | None:
        """The second part: take a reply that was checked; returns the solution to evaluate, if it has one."""
        return self._begun().reply(action)

    def conclude(self, evaluation: Evaluation | None = None) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The last part: take the evaluation, if there was a solution, and return what `step` returns."""
        episode = self._begun()
        if evaluation is not None:
            episode.receive(evaluation)
        return episode.observation, self._reward(), episode.done, False, self._info()

    def render(self) -> str | None:
        """The episode so far as text, in render mode ``ansi``."""
        if self.render_mode is None:
            gym.logger.warn(
                "render() gives nothing without a render mode: make the env with render_mode='ansi'."
            )
            return None
        episode = self._begun()
        parts = [episode.overview]
        for number, turn in enumerate(episode.turns, start=1):
            parts += [
                f"----- reply {number} -----",
                turn.text,
                f"----- outcome {number} -----",
                turn.observation,
            ]
        if episode.done:
            parts.append(f"----- score: {episode.score} -----")
        return "\n".join(parts)

    def close(self) -> None:
        """Stop the sandbox, if this environment made one."""
        if self._sandbox_evaluator is not None:
            self._sandbox_evaluator.close()
            self._sandbox_evaluator = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the sandbox: the copy makes its own."""
        return {**self.__dict__, "_sandbox_evaluator": None}

    def _new_episode(self, competition: Competition | str | Path) -> Episode:
        if not isinstance(competition, Competition):
            competition = load_competition(competition, self.data_root, self.dojo_root)
        return Episode(competition, **self._settings)

    def _begun(self) -> Episode:
        if self.episode is None:
            raise ResetNeeded("No episode has begun: call reset() first.")
        return self.episode

    @property
    def default_evaluator(self) -> Evaluator:
        """Who evaluates where `reset` names nobody: the one given, else the sandbox, made on first use."""
        if self.evaluator is not None:
            return self.evaluator
        if self._sandbox_evaluator is None:
            self._sandbox_evaluator = SandboxEvaluator(self.sandbox or "bubblewrap", half=self.half)
        return self._sandbox_evaluator

    def _reward(self) -> float:
        episode = self._begun()
        if not episode.done:
            return 0.0
        return math.nan if episode.score is None else float(episode.score)

    def _info(self) -> dict[str, Any]:
        episode = self._begun()
        evaluation = episode.scored[1] if episode.scored else None
        grade = evaluation.grade if evaluation else None
        error = None
        if evaluation is not None and evaluation.score is None:
            error = evaluation.error or f"The program has no score (status: {evaluation.status})."
        return {
            "competition": episode.competition.name,
            "turn": episode.turn,
            "status": episode.turns[-1].status if episode.turns else "started",
            "score": grade.score if grade else None,
            "percentile": grade.percentile if grade else None,
            "error": error,
        }


def check_sandbox(sandbox: Sandbox | SandboxName | None, evaluator: Evaluator | None) -> None:
    """Say now, not at the first program, what is wrong with an environment's sandbox.

    Raises:
        ConfigError: There is an evaluator too, or no sandbox of that name.
        SandboxError: It cannot be had on this machine.
    """
    if sandbox is not None and evaluator is not None:
        raise ConfigError("Give either an evaluator or a sandbox: an evaluator brings its own.")
    if isinstance(sandbox, str):
        make_sandbox(sandbox)


def make_dsbench(
    competition: str | Path | None = None, data_root: str | Path | None = None, **settings: Any
) -> AutoResearchEnv:
    """Make ``wmrl/DSBench-v0``: an `AutoResearchEnv` on the tasks of DSBench's release.

    Args:
        competition: Name of a task; None draws one at each reset.
        data_root: The release's folder ``data``, or the one that holds it.
        **settings: See `AutoResearchEnv`.

    Raises:
        ConfigError: There is no data root.
        CompetitionError: The task is unknown, or its files are not in order.
    """
    if data_root is None:
        raise ConfigError(
            "wmrl/DSBench-v0 needs data_root=...: DSBench's tasks do not come with this package."
        )
    return AutoResearchEnv(competition, data_root, **settings)
