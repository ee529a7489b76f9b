"""`WorldModelRewardWrapper`: WMRL rewards on any Gymnasium environment whose return is expensive to have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from wmrl_rewards.groups import Group
from wmrl_rewards.prediction import WorldModel
from wmrl_rewards.reward import WorldModelReward
from wmrl_rewards.scoring import Missing, blank_row, check_missing, score_episodes
from wmrl_rewards.trajectories import trajectory_scorer

__all__ = ["WorldModelRewardWrapper"]


class WorldModelRewardWrapper(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Replaces the reward by one score per episode: real on anchor groups, calibrated prediction elsewhere.

    The reward is 0.0 until the terminal step, which carries the score. ``info["wmrl"]`` tells where it comes
    from; it has the same keys on every row, with None where there is nothing to tell:

    - ``source``: ``"real"`` or ``"world_model"``, who gives the score;
    - ``predicted``, ``calibrated``, ``real``: the scores, on the terminal row;
    - ``weight``: the group's weight in the fusion, ρ on anchors and 1 elsewhere (0 while predictions
      are ignored: the world model is blind, or has not shown that it sees), on the terminal row;
    - ``group``: what ``reset(options={"group": id})`` said;
    - ``anchor``: whether the group is an anchor;
    - ``error``: why a score is missing.

    A group is what ``reset(options={"group": id})`` says: episodes on the same task that are compared with
    each other. Each group needs an id of its own, for example (step, number). Without one an episode is its
    own group: its prediction is debiased, but noise inside groups cannot be measured, and ρ stays 1.

    On an AutoResearch environment the groups that are not anchors execute nothing: the world model stands in
    their evaluator's place. Any other environment plays on as it does, and its return is looked at on anchors
    only: it is up to the caller to know what it would have cost.

    Args:
        env: The environment. Its return over an episode is the real score.
        world_model: Predicts the score of a finished episode, from its (observation, action) pairs.
        anchor_fraction: Share of anchor groups, by exact count: with 0.1 one of every ten.
        score: Maps a return to a score in [0, 1]; needed where returns lie elsewhere.
        missing: What becomes of an episode without a prediction: ``execute`` uses its real score instead,
            ``drop`` gives the reward NaN.
        reward: One that several wrappers share, with whatever settings; it then owns the anchor fraction
            and the seed.
        seed: Seed of the anchor draws. Anchors do not depend on the seeds of resets.

    Example:
        >>> import gymnasium as gym
        >>> from wmrl_rewards import Prediction, WorldModelRewardWrapper
        >>> class Half:
        ...     def predict(self, requests):
        ...         return [Prediction(0.5) for _ in requests]
        >>> env = gym.make("CartPole-v1", max_episode_steps=2)
        >>> env = WorldModelRewardWrapper(env, Half(), score=lambda steps: steps / 2)
        >>> observation, info = env.reset(seed=0)
        >>> _, reward, _, _, _ = env.step(0)
        >>> _, last_reward, _, truncated, info = env.step(0)
        >>> reward, last_reward, truncated, info["wmrl"]["source"]
        (0.0, 0.5, True, 'world_model')
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
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
        self._saved_kwargs = _ByReference(self._saved_kwargs)
        super().__init__(env)
        self.missing: Missing = missing
        self.reward = (
            WorldModelReward(anchor_fraction=anchor_fraction, seed=seed) if reward is None else reward
        )
        self._scorer = trajectory_scorer(env, world_model, score)
        self._group: Group | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; ``options["group"]`` names the group that it belongs to."""
        options = dict(options or {})
        if self._group is not None:
            self.reward.stream.abandon(self._group)
            self._group = None
        self._group = self.reward.stream.begin(options.get("group"))
        inner_options = self._scorer.reset_options(options, self._group.anchor)
        observation, info = self.env.reset(seed=seed, options=inner_options or None)
        self._scorer.begin(observation)
        info["wmrl"] = blank_row(self._group)
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment; the reward is the episode's score at its end and 0.0 before."""
        group = self._group
        if group is None:
            raise gym.error.ResetNeeded("The episode is over: call reset() before the next step().")
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._scorer.step(action, observation, float(reward))
        if not (terminated or truncated):
            info["wmrl"] = blank_row(group)
            return observation, 0.0, terminated, truncated, info
        self._group = None
        [(score, info["wmrl"])] = score_episodes(self.reward.stream, [self._scorer], [group], self.missing)
        return observation, score, terminated, truncated, info


class _ByReference(dict[str, Any]):
    """Constructor arguments that wrappers further out record in their specs without copying a model."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _ByReference:
        return self
