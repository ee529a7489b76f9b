"""`WorldModelVectorRewardWrapper`: WMRL rewards on many environments in step, predicted as one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from wmrl_envs.errors import ConfigError
from wmrl_envs.rows import stack_rows
from wmrl_rewards.groups import Group
from wmrl_rewards.prediction import WorldModel
from wmrl_rewards.reward import WorldModelReward
from wmrl_rewards.scoring import Missing, blank_row, check_missing, score_episodes
from wmrl_rewards.trajectories import trajectory_scorers

__all__ = ["WorldModelVectorRewardWrapper"]

if TYPE_CHECKING:
    _Wrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:  # in older versions of Gymnasium it takes no parameters
    _Wrapper = VectorWrapper


class WorldModelVectorRewardWrapper(_Wrapper, RecordConstructorArgs):
    """`WorldModelRewardWrapper` for a vector environment, in any of Gymnasium's autoreset modes.

    Each episode's terminal row carries its score, every other row 0.0. ``info["wmrl"]`` holds, in
    Gymnasium's form for vectors, an array of one object a member for each of the keys that
    `WorldModelRewardWrapper` lists; ``info["_wmrl"]`` says which members have them. A member that idles has
    none, and neither has the row on which a member is merely reset.

    ``reset(options={"group": [...]})`` names the group of each member in a *list*; any other value is one
    group for all. Episodes that an environment begins by itself are groups of their own.

    Args:
        env: The vector environment. The return of an episode is its real score.
        world_model: Predicts the scores of finished episodes, those of one step in one call.
        anchor_fraction: As for `WorldModelRewardWrapper`, like all that follow.
        score: Maps a return to a score in [0, 1].
        missing: What becomes of an episode without a prediction.
        reward: One that several wrappers share.
        seed: Seed of the anchor draws.

    Example:
        >>> import gymnasium as gym
        >>> from wmrl_rewards import Prediction, WorldModelVectorRewardWrapper
        >>> class Half:
        ...     def predict(self, requests):
        ...         return [Prediction(0.5) for _ in requests]
        >>> envs = gym.make_vec("CartPole-v1", num_envs=2, max_episode_steps=1)
        >>> envs = WorldModelVectorRewardWrapper(envs, Half(), anchor_fraction=0.5)
        >>> observations, info = envs.reset(seed=0, options={"group": ["a", "b"]})
        >>> _, rewards, _, truncated, info = envs.step(envs.action_space.sample())
        >>> sorted(rewards.tolist()), sorted(info["wmrl"]["source"])
        ([0.5, 1.0], ['real', 'world_model'])
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        world_model: WorldModel,
        anchor_fraction: float = 0.1,
        *,
        score: Callable[[float], float] | None = None,
        missing: Missing = "execute",
        reward: WorldModelReward | None = None,
        seed: int = 0,
    ) -> None:
        check_missing(missing)
        RecordConstructorArgs.__init__(
            self,
            _disable_deepcopy=True,
            world_model=world_model,
            anchor_fraction=anchor_fraction,
            score=score,
            missing=missing,
            reward=reward,
            seed=seed,
        )
        super().__init__(env)
        self.missing: Missing = missing
        self.reward = (
            WorldModelReward(anchor_fraction=anchor_fraction, seed=seed) if reward is None else reward
        )
        self._scorers = trajectory_scorers(env, world_model, score)
        self._groups: list[Group | None] = [None] * env.num_envs
        self._begun = False
        self._autoreset = env.metadata["autoreset_mode"]

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin episodes; ``options["group"]`` names the groups that they belong to."""
        options = dict(options or {})
        numbers = np.flatnonzero(options.get("reset_mask", np.ones(self.num_envs, dtype=bool))).tolist()
        names = self._for_each("group", options.get("group"))
        for number in numbers:
            group = self._groups[number]
            if group is not None:
                self.reward.stream.abandon(group)
            self._groups[number] = self.reward.stream.begin(names[number])
        inner_options = self._inner_options(options, numbers)
        observations, infos = self.env.reset(seed=seed, options=inner_options or None)
        each = list(iterate(self.observation_space, observations))
        for number in numbers:
            self._scorers[number].begin(each[number])
        self._begun = True
        return observations, self._with_rows(infos, {n: self._blank_row(n) for n in numbers})

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Step the environments; a reward is the episode's score at its end and 0.0 before."""
        if not self._begun:
            raise ResetNeeded("No episode has begun: call reset() first.")
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        over = np.logical_or(terminated, truncated)
        playing = [number for number, group in enumerate(self._groups) if group is not None]
        finished = [number for number in playing if over[number]]
        each = list(iterate(self.observation_space, observations))
        last = self._last_observations(each, infos, finished)
        each_action = list(iterate(self.action_space, actions))
        for number in playing:
            self._scorers[number].step(each_action[number], last[number], float(rewards[number]))
        rows = {number: self._blank_row(number) for number in playing}
        scores = np.zeros(self.num_envs)
        for number, (scores[number], rows[number]) in zip(finished, self._score(finished), strict=True):
            self._groups[number] = None
        self._begin_by_itself(each, playing, finished)
        return observations, scores, terminated, truncated, self._with_rows(infos, rows)

    def _score(self, finished: list[int]) -> list[tuple[float, dict[str, Any]]]:
        groups = [group for number in finished if (group := self._groups[number]) is not None]
        scorers = [self._scorers[number] for number in finished]
        return score_episodes(self.reward.stream, scorers, groups, self.missing)

    def _last_observations(self, each: list[Any], infos: dict[str, Any], finished: list[int]) -> list[Any]:
        """What the step led to: where a finished episode was replaced at once, its own last observation."""
        if self._autoreset is not AutoresetMode.SAME_STEP:
            return each
        last = list(each)
        for number in finished:
            last[number] = infos["final_obs"][number]
        return last

    def _begin_by_itself(self, each: list[Any], playing: list[int], finished: list[int]) -> None:
        """Follow the episodes that the environment has begun in this step without being told to."""
        begun: list[int] = []
        if self._autoreset is AutoresetMode.SAME_STEP:
            begun = finished
        elif self._autoreset is AutoresetMode.NEXT_STEP:
            begun = [number for number in range(self.num_envs) if number not in playing]
        for number in begun:
            self._groups[number] = self.reward.stream.begin(None)
            self._scorers[number].begin(each[number])

    def _inner_options(self, options: dict[str, Any], numbers: list[int]) -> dict[str, Any]:
        """What the environment is to be told: its members one by one, if it can tell them apart."""
        if not hasattr(self.unwrapped, "members"):
            return {name: value for name, value in options.items() if name != "group"}
        mask = {"reset_mask": options.pop("reset_mask")} if "reset_mask" in options else {}
        each = {"evaluator": [None] * self.num_envs} | {
            name: self._for_each(name, value) for name, value in options.items()
        }
        told = [dict(zip(each, values, strict=True)) for values in zip(*each.values(), strict=True)]
        for number in numbers:
            group = self._groups[number]
            anchor = group is not None and group.anchor
            told[number] = self._scorers[number].reset_options(told[number], anchor)
        return {name: [own[name] for own in told] for name in each} | mask

    def _for_each(self, name: str, value: Any) -> list[Any]:
        values = value if isinstance(value, list) else [value] * self.num_envs
        if len(values) != self.num_envs:
            raise ConfigError(
                f"{name} must be one value or a list of {self.num_envs}, one for each member, "
                f"not of {len(values)}."
            )
        return values

    def _blank_row(self, number: int) -> dict[str, Any]:
        group = self._groups[number]
        assert group is not None
        return blank_row(group)

    def _with_rows(self, infos: dict[str, Any], rows: dict[int, dict[str, Any]]) -> dict[str, Any]:
        told = np.zeros(self.num_envs, dtype=bool)
        told[list(rows)] = True
        stacked = stack_rows([rows.get(number) for number in range(self.num_envs)])
        return {**infos, "wmrl": stacked, "_wmrl": told}
