"""WMRL rewards on an ordinary Gymnasium environment.

Suppose that nobody could tell for free how long CartPole stayed up: each return has to be bought. A small
world model, a ridge regression on a few snapshots of the cart, guesses it instead. It was fitted on a handful
of bought episodes of random policies, so it is biased as soon as the policy gets better. One group in ten is
bought during training, too; `WorldModelRewardWrapper` uses those as they are, corrects the guesses of the
others by them, and says how much more an anchor group counts.

The policy is linear, the update is GRPO: rewards are centred inside their group, groups are averaged with the
wrapper's weights. Run it (half a minute)::

    python examples/wrap_any_env.py
    python examples/wrap_any_env.py --anchor-fraction 1.0     # buy everything, for comparison
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np

from wmrl_rewards import LearnedWorldModel, PredictionRequest, WorldModelReward, WorldModelRewardWrapper

LONGEST = 200


@dataclass
class Args:
    """Settings of the run."""

    seed: int = 0
    """Seed of everything."""
    iterations: int = 30
    """Updates of the policy."""
    groups: int = 10
    """Groups in an update; the episodes of a group start in the same state."""
    group_size: int = 8
    """Episodes in a group."""
    anchor_fraction: float = 0.1
    """Share of the groups whose return is bought."""
    learning_rate: float = 8.0
    """Step size."""
    first_episodes: int = 40
    """Episodes of a random policy that are bought beforehand, to fit the world model."""
    min_pairs: int = 32
    """Pairs of guess and truth before guesses are corrected."""


def main() -> None:
    """Train, and say what it cost."""
    args = parse_args()
    rng = np.random.default_rng(args.seed)
    world_model = LearnedWorldModel(snapshots)
    world_model.fit(*buy_random_episodes(args, rng))
    reward = WorldModelReward(
        anchor_fraction=args.anchor_fraction,
        seed=args.seed,
        min_pairs=args.min_pairs,
        refit_every=16,
        warmup_groups=3,
    )
    env = WorldModelRewardWrapper(make_env(), world_model, score=share_of_longest, reward=reward)
    weights = np.zeros(4)
    before = true_score(weights, args)
    bought = args.first_episodes
    for iteration in range(args.iterations):
        gradients, group_weights, rewards = [], [], []
        for group in range(args.groups):
            start = int(rng.integers(2**31))
            episodes = [play(env, weights, rng, start, (iteration, group)) for _ in range(args.group_size)]
            scores = np.array([score for score, _, _ in episodes])
            advantages = scores - scores.mean()
            gradients.append(advantages @ np.array([s for _, s, _ in episodes]) / args.group_size)
            told = episodes[0][2]
            group_weights.append(told["weight"])
            bought += args.group_size * told["anchor"]
            rewards.append(scores.mean())
        weights += args.learning_rate * np.average(gradients, axis=0, weights=group_weights)
        print(
            f"iteration {iteration:2d}   reward {np.mean(rewards):.3f}   rho {reward.rho:.2f}   "
            f"corrected {'yes' if reward.debiaser.fitted else 'no '}   bought {bought}"
        )
    total = args.first_episodes + args.iterations * args.groups * args.group_size
    print(f"true score: {before:.3f} before, {true_score(weights, args):.3f} after")
    print(f"returns bought: {bought} instead of {total} ({bought / total:.0%})")


def make_env() -> gym.Env:
    """CartPole, 200 steps at most."""
    return gym.make("CartPole-v1", max_episode_steps=LONGEST)


def share_of_longest(episode_return: float) -> float:
    """A return as a score in [0, 1]."""
    return episode_return / LONGEST


def snapshots(request: PredictionRequest) -> np.ndarray:
    """What the world model sees: how far cart and pole were off at eight moments, not how long it took."""
    moments = np.linspace(0, len(request.history) - 1, 8).astype(int)
    states = np.abs([request.history[moment][0] for moment in moments])
    return np.concatenate([states.mean(axis=0), states[-1]])


def play(
    env: gym.Env, weights: np.ndarray, rng: np.random.Generator, start: int, group: object = None
) -> tuple[float, np.ndarray, dict]:
    """Play an episode; returns its total reward, the gradient of its log-probability, and what WMRL tells."""
    observation, info = env.reset(seed=start, options={"group": group})
    total, gradient, over = 0.0, np.zeros(4), False
    while not over:
        right = 1 / (1 + np.exp(-weights @ observation))
        action = int(rng.random() < right)
        gradient += (action - right) * observation
        observation, reward, terminated, truncated, info = env.step(action)
        total += float(reward)
        over = terminated or truncated
    return total, gradient, info.get("wmrl", {})


def buy_random_episodes(args: Args, rng: np.random.Generator) -> tuple[list[PredictionRequest], list[float]]:
    """Episodes of random policies with their true scores."""
    recorder = Recorder(make_env())
    requests, scores = [], []
    for _ in range(args.first_episodes):
        score, _, _ = play(recorder, rng.normal(size=4), rng, int(rng.integers(2**31)))
        requests.append(PredictionRequest("CartPole-v1", history=recorder.history))
        scores.append(share_of_longest(score))
    return requests, scores


class Recorder(gym.Wrapper):
    """Keeps the (observation, action) pairs of an episode."""

    def reset(self, **options: Any) -> tuple:
        """Begin a new record."""
        self.observation, info = self.env.reset(**options)
        self.history: list[tuple] = []
        return self.observation, info

    def step(self, action: int) -> tuple:
        """Record a step."""
        self.history.append((self.observation, action))
        self.observation, *rest = self.env.step(action)
        return self.observation, *rest


def true_score(weights: np.ndarray, args: Args, episodes: int = 30) -> float:
    """Mean true score of a policy, on episodes of their own."""
    rng = np.random.default_rng(args.seed + 1)
    env = make_env()
    return float(np.mean([share_of_longest(play(env, weights, rng, start)[0]) for start in range(episodes)]))


def parse_args() -> Args:
    """Read the settings from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for field in fields(Args):
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, type=type(field.default), default=field.default, help="(%(default)s)")
    return Args(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
