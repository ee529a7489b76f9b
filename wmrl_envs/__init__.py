"""Gymnasium environments whose reward is expensive to execute.

Importing this package registers them::

    import gymnasium as gym
    import wmrl_envs

    env = gym.make("wmrl/MLEDojo-v0", competition="breast-cancer")

``gym.make("wmrl_envs:wmrl/MLEDojo-v0")`` imports it by itself, and ``gym.make_vec`` makes many at once.
"""

from gymnasium.envs.registration import register

__all__: list[str] = []

register(
    id="wmrl/MLEDojo-v0",
    entry_point="wmrl_envs.autoresearch.env:AutoResearchEnv",
    vector_entry_point="wmrl_envs.autoresearch.vector_env:AutoResearchVectorEnv",
)
register(id="wmrl/DSBench-v0", entry_point="wmrl_envs.autoresearch.env:make_dsbench")
register(
    id="wmrl/LiberoLong-v0",
    entry_point="wmrl_envs.libero.env:LiberoEnv",
    vector_entry_point="wmrl_envs.libero.vector_env:LiberoVectorEnv",
)
