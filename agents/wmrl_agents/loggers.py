"""Where the numbers of a run go besides ``metrics.jsonl``: TensorBoard and Weights & Biases.

Both get numbers only, under their names in ``metrics.jsonl`` (docs/metrics.md has the table). No prompt,
reply, program, path or error message is ever sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Protocol

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_envs.errors import ConfigError

__all__ = ["Logger", "TensorBoardLogger", "WandbLogger", "make_loggers", "numbers_in"]

# The only texts among the settings that are sent: their values are words of ours.
_WORDS = ("reward_source", "loss_reduction", "debias_method", "dtype", "trajectory_score", "missing")


class Logger(Protocol):
    """Takes the numbers of each step."""

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Take a step's metrics."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


def numbers_in(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among a step's metrics, with counts by kind as ``name/kind``.

    ``infrastructure`` is counted by messages of the machine, which may hold paths: only their sum is given.

    Example:
        >>> numbers_in({"step": 3, "score": 0.5, "eta2": None, "fitted": True, "failures": {"error": 2}})
        {'score': 0.5, 'fitted': 1.0, 'failures/error': 2.0}
    """
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        if name == "infrastructure":
            numbers[name] = float(sum(value.values()))
        elif isinstance(value, Mapping):
            numbers |= {f"{name}/{kind}": float(count) for kind, count in value.items()}
        elif isinstance(value, int | float) and name != "step":
            numbers[name] = float(value)
    return numbers


class TensorBoardLogger:
    """Writes event files to ``tensorboard/`` in the run directory.

    Args:
        run_dir: The run.
        next_step: First step to come: what an earlier part of the run wrote from there on is hidden.

    Raises:
        ConfigError: TensorBoard is not installed.
    """

    def __init__(self, run_dir: Path, next_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "tensorboard: it is not installed: pip install 'wmrl[tensorboard]', or --tensorboard false."
            ) from None
        self._writer = SummaryWriter(str(run_dir / "tensorboard"), purge_step=next_step)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """See `Logger`."""
        for name, value in numbers_in(metrics).items():
            self._writer.add_scalar(name, value, metrics["step"])
        self._writer.flush()

    def close(self) -> None:
        """See `Logger`."""
        self._writer.close()


class WandbLogger:
    """Sends numbers to Weights & Biases, or keeps them in the run directory where it is offline.

    What the library would gather by itself (source, git state, console, packages, machine) is switched off.

    Args:
        run_dir: The run; its name is the name there, and a resume goes on with the same one.
        config: The run's settings, of which numbers and switches are sent.
        mode: ``online`` or ``offline``.

    Raises:
        ConfigError: The library is not installed.
    """

    def __init__(self, run_dir: Path, config: GRPOConfig, mode: Literal["online", "offline"]) -> None:
        try:
            import wandb
        except ImportError:
            raise ConfigError(
                "wandb: it is not installed: pip install 'wmrl[wandb]', or --wandb none."
            ) from None
        settings = wandb.Settings(
            mode=mode,
            disable_code=True,
            save_code=False,
            disable_git=True,
            disable_job_creation=True,
            console="off",
            silent=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        identifier = run_dir / "wandb-id.txt"
        if not identifier.is_file():
            identifier.write_text(secrets.token_hex(8), encoding="utf-8")
        self._run = wandb.init(
            project="wmrl",
            id=identifier.read_text(encoding="utf-8"),
            name=run_dir.resolve().name,
            resume="allow",
            dir=str(run_dir),
            config=sent_settings(config),
            settings=settings,
        )

    def log(self, metrics: Mapping[str, Any]) -> None:
        """See `Logger`."""
        self._run.log(numbers_in(metrics), step=metrics["step"])

    def close(self) -> None:
        """See `Logger`."""
        self._run.finish()


def sent_settings(config: GRPOConfig) -> dict[str, Any]:
    """Settings that are numbers, switches or words of ours; no names, paths or addresses."""
    settings = asdict(config).items()
    return {name: value for name, value in settings if isinstance(value, int | float) or name in _WORDS}


def make_loggers(config: GRPOConfig, run_dir: Path, next_step: int) -> list[Logger]:
    """The loggers that a config asks for.

    Args:
        config: The run's settings.
        run_dir: The run.
        next_step: First step to come.

    Raises:
        ConfigError: One of them is not installed.
    """
    loggers: list[Logger] = []
    if config.tensorboard:
        loggers.append(TensorBoardLogger(run_dir, next_step))
    if config.wandb is not None:
        loggers.append(WandbLogger(run_dir, config, config.wandb))
    return loggers
