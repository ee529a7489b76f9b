"""What a run with a robot is put together from: a policy of chunks, and a model of progress."""

from __future__ import annotations

from pathlib import Path

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.roles import ActingPolicy
from wmrl_envs.errors import ConfigError
from wmrl_rewards.prediction import WorldModel
from wmrl_rewards.world_models.controls import ConstantWorldModel, NoiseWorldModel

__all__ = ["load_progress_model", "load_robot_policy"]


def load_robot_policy(config: GRPOConfig, source: str | Path) -> ActingPolicy:
    """A policy of chunks from its folder: a small one of ours, or a MiniVLA.

    Args:
        config: The run's settings.
        source: The folder, or that of a run of `wmrl libero sft`, whose last policy is meant.

    Raises:
        WMRLError: It holds neither, or a setting is not for such policies.
    """
    plain = {"dtype": "float32", "lora_rank": None, "sampler": "transformers"}
    for name, value in plain.items():
        if getattr(config, name) != value:
            said = "none" if value is None else value
            raise ConfigError(
                f"A policy of chunks is trained with {name} {said}, not {getattr(config, name)}."
            )
    folder = Path(source)
    if (folder / "checkpoints").is_dir() and not (folder / "dataset_statistics.json").is_file():
        from wmrl_agents.policies.vla.imitation import newest_policy

        folder = newest_policy(folder)
    if (folder / "vla.json").is_file():
        from wmrl_agents.policies.vla.small_vla import SmallVLA

        small = SmallVLA.load(folder, temperature=config.temperature)
        small.network.to(config.device)
        return small
    if (folder / "dataset_statistics.json").is_file():
        from wmrl_agents.policies.vla.mini_vla import MiniVLA

        return MiniVLA(folder, temperature=config.temperature, device=config.device)
    raise ConfigError(
        f"There is no policy of chunks in '{source}': name a folder that `wmrl libero sft` made, or one with "
        "a MiniVLA, as --policy."
    )


def load_progress_model(config: GRPOConfig) -> WorldModel:
    """The model of progress that a config names as its world model.

    Raises:
        WMRLError: There is none, or it cannot be loaded.
    """
    name, reduction = config.world_model, config.reduction
    if name == "noise":
        return NoiseWorldModel(config.seed)
    if name == "constant":
        return ConstantWorldModel()
    if name.startswith(("http://", "https://")):
        from wmrl_rewards.world_models.robometer_server import RobometerServer

        return RobometerServer(name, reduction=reduction)
    if (Path(name) / "progress.json").is_file():
        from wmrl_rewards.world_models.progress import ProgressModel

        return ProgressModel.load(name, reduction)
    if (Path(name) / "config.json").is_file():
        from wmrl_rewards.world_models.robometer import RobometerWorldModel

        return RobometerWorldModel(name, reduction=reduction, device=config.device)
    raise ConfigError(
        f"There is no model of progress in '{name}': name a folder that `wmrl libero progress` made, one "
        "with Robometer's weights, the address of its server, noise or constant as --world-model."
    )
