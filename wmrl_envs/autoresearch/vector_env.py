"""`AutoResearchVectorEnv`: many episodes in step, whose programs are evaluated as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from wmrl_envs.autoresearch.competition import Half
from wmrl_envs.autoresearch.env import AutoResearchEnv, check_sandbox
from wmrl_envs.autoresearch.episode import Episode
from wmrl_envs.autoresearch.sandbox_evaluator import SandboxEvaluator
from wmrl_envs.errors import ConfigError
from wmrl_envs.evaluation import Evaluation, Evaluator, Solution
from wmrl_envs.rows import stack_rows
from wmrl_envs.sandbox.choose import SandboxName
from wmrl_envs.sandbox.job import Sandbox

__all__ = ["AutoResearchVectorEnv"]

Texts = tuple[str, ...]


class AutoResearchVectorEnv(VectorEnv[Texts, Sequence[str], NDArray[Any]]):
    """Many `AutoResearchEnv` side by side; each step evaluates all of their programs as one batch.

    Members play on by themselves: they can have different competitions and end at different turns. One that
    has ended idles until the caller resets it (autoreset is disabled): its action is not looked at, its
    reward is 0.0, its observation stays and its info is absent. So that a return is a plain sum.

    Options of `reset`: those of `AutoResearchEnv`, each a value for all members or a *list* of one for each;
    and ``reset_mask``, a bool array that says which members to reset.

    Args:
        num_envs: Number of members.
        competition: As for `AutoResearchEnv`, or a list of one for each member.
        evaluator: Who evaluates all programs of a step, in one call; None executes them in a sandbox.
        sandbox: As for `AutoResearchEnv`; one for all members.
        render_mode: ``ansi`` or None.
        settings: All other arguments of `AutoResearchEnv`, for every member.

    Raises:
        CompetitionError: A competition is unknown, or its folder is not in order.
        ConfigError: Another argument is out of its range.
        SandboxError: The sandbox that is named cannot be had on this machine.

    Example:
        >>> import gymnasium as gym
        >>> envs = gym.make_vec("wmrl_envs:wmrl/MLEDojo-v0", num_envs=2, competition=["digits", "sms-spam"])
        >>> tasks, info = envs.reset(seed=0)
        >>> info["competition"].tolist()
        ['digits', 'sms-spam']
        >>> observations, rewards, terminated, truncated, info = envs.step(["submit", "I wonder."])
        >>> terminated.tolist(), info["status"].tolist()
        ([True, False], ['submitted', 'no_code'])
        >>> envs.close()
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        **AutoResearchEnv.metadata,
        "autoreset_mode": AutoresetMode.DISABLED,
    }

    def __init__(
        self,
        num_envs: int = 1,
        competition: str | Path | list[str | Path] | None = None,
        evaluator: Evaluator | None = None,
        sandbox: Sandbox | SandboxName | None = None,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs must be at least 1, not {num_envs}.")
        self.num_envs = num_envs
        self.render_mode = render_mode
        check_sandbox(sandbox, evaluator)
        self.evaluator = evaluator
        self.sandbox = sandbox
        self.members = [
            AutoResearchEnv(competition=name, render_mode=render_mode, **settings)
            for name in self._for_each("competition", competition)
        ]
        first = self.members[0]
        self.half: Half = first.half
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, num_envs)
        self.action_space = batch_space(first.action_space, num_envs)
        self._sandbox_evaluator: SandboxEvaluator | None = None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Texts, dict[str, Any]]:
        """Begin episodes.

        Args:
            seed: Seed of the first member, the next ones have the numbers after it; or one for each member.
            options: See the class.

        Returns:
            The observations of all members, and the infos of those that were reset.

        Raises:
            ConfigError: An option is unknown, or has not one value for each member.
            CompetitionError: A competition of the options is unknown, or its folder is not in order.
        """
        options = dict(options or {})
        mask = self._mask(options.pop("reset_mask", None))
        seeds = self._seeds(seed)
        each = {name: self._for_each(name, value) for name, value in options.items()}
        rows: list[dict[str, Any] | None] = [None] * self.num_envs
        for number in np.flatnonzero(mask).tolist():
            own = {name: values[number] for name, values in each.items()}
            _, rows[number] = self.members[number].reset(seed=seeds[number], options=own)
        return tuple(episode.observation for episode in self._episodes()), stack_rows(rows)

    def step(
        self, actions: Sequence[str]
    ) -> tuple[Texts, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Take one reply of every member whose episode goes on.

        Returns:
            Observations; rewards, terminated and truncated, each of shape (num_envs,); and the infos.

        Raises:
            ResetNeeded: A member has never been reset.
            ConfigError: There are more or fewer actions than members, or one is not in the action space.
                No member has then taken its action.
        """
        if len(actions) != self.num_envs:
            raise ConfigError(
                f"There must be {self.num_envs} actions, one for each member, not {len(actions)}."
            )
        episodes = self._episodes()
        live = [number for number, episode in enumerate(episodes) if not episode.done]
        for number in live:
            self.members[number].check_action(actions[number])
        taken = {number: self.members[number].take(actions[number]) for number in live}
        evaluations = self._evaluate({n: solution for n, solution in taken.items() if solution is not None})
        rewards = np.zeros(self.num_envs)
        rows: list[dict[str, Any] | None] = [None] * self.num_envs
        for number in live:
            _, rewards[number], _, _, rows[number] = self.members[number].conclude(evaluations.get(number))
        observations = tuple(episode.observation for episode in episodes)
        terminated = np.array([episode.done for episode in episodes])
        return observations, rewards, terminated, np.zeros(self.num_envs, dtype=bool), stack_rows(rows)

    def _evaluate(self, solutions: dict[int, Solution]) -> dict[int, Evaluation]:
        """Evaluate the members' solutions, in one call for each evaluator that there is among them."""
        batches: dict[int, tuple[Evaluator, list[int]]] = {}
        for number in solutions:
            evaluator = self.members[number].episode_evaluator or self.default_evaluator
            batches.setdefault(id(evaluator), (evaluator, []))[1].append(number)
        evaluations: dict[int, Evaluation] = {}
        for evaluator, numbers in batches.values():
            batch = evaluator.evaluate([solutions[number] for number in numbers])
            evaluations.update(zip(numbers, batch, strict=True))
        return evaluations

    @property
    def default_evaluator(self) -> Evaluator:
        """Who evaluates where `reset` names nobody: the one given, else a sandbox, made on first use."""
        if self.evaluator is not None:
            return self.evaluator
        if self._sandbox_evaluator is None:
            self._sandbox_evaluator = SandboxEvaluator(self.sandbox or "bubblewrap", half=self.half)
        return self._sandbox_evaluator

    def render(self) -> tuple[Any, ...] | None:
        """The members' episodes so far as texts, in render mode ``ansi``."""
        if self.render_mode is None:
            gym.logger.warn("render() gives nothing without a render mode: pass render_mode='ansi'.")
            return None
        return tuple(env.render() for env in self.members)

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the sandbox, if this environment made one."""
        if self._sandbox_evaluator is not None:
            self._sandbox_evaluator.close()
            self._sandbox_evaluator = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the sandbox: the copy makes its own."""
        return {**self.__dict__, "_sandbox_evaluator": None}

    def _episodes(self) -> list[Episode]:
        episodes = [env.episode for env in self.members if env.episode is not None]
        if len(episodes) < self.num_envs:
            raise ResetNeeded("Not every member has begun an episode: call reset() without a mask first.")
        return episodes

    def _for_each(self, name: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            return [value] * self.num_envs
        if len(value) != self.num_envs:
            raise ConfigError(
                f"{name} must be one value or a list of {self.num_envs}, one for each member, "
                f"not of {len(value)}."
            )
        return value

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if isinstance(seed, int | np.integer):
            return [int(seed) + number for number in range(self.num_envs)]
        return self._for_each("seed", None if seed is None else list(seed))

    def _mask(self, mask: Any) -> NDArray[np.bool_]:
        if mask is None:
            return np.ones(self.num_envs, dtype=bool)
        mask = np.asarray(mask)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise ConfigError(
                f"reset_mask must be a bool array of shape ({self.num_envs},) with at least one True."
            )
        return mask
