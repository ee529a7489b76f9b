"""Settings as files: the presets that come along, and YAML of the user's own."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from wmrl_envs.errors import ConfigError, in_one_line

__all__ = ["load_preset", "load_settings", "preset_names"]


def preset_names() -> list[str]:
    """Names of the presets that come with the package."""
    folder = resources.files("wmrl_agents.presets")
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


def load_preset(name: str) -> dict[str, Any]:
    """Settings of a preset.

    Raises:
        ConfigError: There is no such preset; the sentence lists those that are.
    """
    if name not in preset_names():
        raise ConfigError(f"Unknown preset '{name}': choose one of {', '.join(preset_names())}.")
    return _mapping(resources.files("wmrl_agents.presets").joinpath(f"{name}.yaml").read_text("utf-8"), name)


def load_settings(path: str | Path) -> dict[str, Any]:
    """Settings in a YAML file.

    Raises:
        ConfigError: The file cannot be read, or does not hold settings.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"There is no config file {path}.")
    return _mapping(path.read_bytes().decode("utf-8", errors="replace"), str(path))


def _mapping(text: str, name: str) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not valid YAML: {in_one_line(error)}.") from None
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise ConfigError(f"{name} must hold settings, one 'name: value' a line.")
    return settings
