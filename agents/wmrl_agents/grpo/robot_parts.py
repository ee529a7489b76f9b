"""What a run with a robot is put together from: a policy of chunks, and a model of progress."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.robots import view_of
from wmrl_agents.grpo.roles import ActingPolicy
from wmrl_envs.errors import ConfigError
from wmrl_rewards.prediction import WorldModel
from wmrl_rewards.world_models.controls import ConstantWorldModel, NoiseWorldModel

__all__ = ["load_progress_model", "load_robot_policy"]

_WORDS = {"state": "states", "images": "pictures", "both": "states and pictures"}


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
        _check_seen(f"The policy in '{source}'", config, small, small.state_size is not None, small.pictures)
        return small
    if (folder / "dataset_statistics.json").is_file():
        from wmrl_agents.policies.vla.mini_vla import MiniVLA

        mini = MiniVLA(folder, temperature=config.temperature, device=config.device)
        mini.check_orientation(view_of(config).orientation)
        _check_seen(f"The policy in '{source}'", config, mini, False, True)
        return mini
    raise ConfigError(
        f"There is no policy of chunks in '{source}': name a folder that `wmrl libero sft` made, or one with "
        "a MiniVLA, as --policy."
    )


def load_progress_model(config: GRPOConfig) -> WorldModel:
    """The model of progress that a config names as its world model.

    Raises:
        WMRLError: There is none, or it cannot be loaded.
    """
    name = config.world_model
    if name == "noise":
        return NoiseWorldModel(config.seed)
    if name == "constant":
        return ConstantWorldModel()
    model = _open_progress_model(config)
    states = getattr(model, "observed", "images") == "states"
    _check_seen(f"The model of progress in '{name}'", config, model, states, not states)
    return model


def _open_progress_model(config: GRPOConfig) -> WorldModel:
    name, reduction = config.world_model, config.reduction
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


def _check_seen(who: str, config: GRPOConfig, model: Any, states: bool, pictures: bool) -> None:
    """Refuse a run that would show a model what it cannot read, or other pictures than it was trained on.

    Args:
        who: The model, for the sentence.
        config: The run's settings.
        model: It may have a ``view``.
        states: Whether it reads states.
        pictures: Whether it looks at pictures.
    """
    reads = "both" if states and pictures else "images" if pictures else "state"
    if config.observations not in (reads, "both"):
        also = "" if reads == "both" else f" {reads} or"
        raise ConfigError(
            f"{who} reads {_WORDS[reads]}, but observations is {config.observations}: say --observations"
            f"{also} both."
        )
    view = getattr(model, "view", None)
    for name, made in asdict(view).items() if pictures and view is not None else ():
        here = getattr(view_of(config), name)
        if here != made:
            can = f"say --{name.replace('_', '-')} {made}" if hasattr(config, name) else "train another one"
            raise ConfigError(f"{who} was trained on pictures with {name} {made}, not {here}: {can}.")
