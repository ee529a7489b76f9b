"""A run on disk: its folder, ``config.yaml``, ``environment.json`` and ``metrics.jsonl``."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from wmrl_agents.grpo.config import GRPOConfig, load_settings, save_config
from wmrl_envs.errors import ConfigError

__all__ = [
    "append_metrics",
    "continue_run",
    "create_run",
    "environment",
    "is_run",
    "load_run",
    "read_metrics",
    "refuse_run",
    "truncate_metrics",
]

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
STORE = "run.sqlite"
EXECUTIONS = "executions.sqlite"
STOPPED = "stopped.txt"
# What may differ between the parts of a run: no number of a step depends on it.
_RESUMABLE = (
    "steps",
    "workers",
    "on_infrastructure",
    "recheck_fraction",
    "checkpoint_every",
    "keep_checkpoints",
    "evaluate_before",
    "evaluate_after",
    "evaluation_repeats",
    "tensorboard",
    "wandb",
)
_LIBRARIES = ("wmrl", "torch", "transformers", "tokenizers", "numpy", "pandas", "scikit-learn", "gymnasium")


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return (folder / CONFIG).is_file()


def refuse_run(run_dir: Path) -> None:
    """Make sure that a new run overwrites none.

    Raises:
        ConfigError: The folder holds a run already.
    """
    if is_run(run_dir):
        raise ConfigError(
            f"{run_dir} already holds a run: go on with `wmrl train --resume {run_dir}`, "
            "or choose another --run-dir."
        )


def create_run(run_dir: Path, config: GRPOConfig) -> None:
    """Make the folder of a new run; its config comes last, so that a folder with one is a run.

    Raises:
        ConfigError: The folder cannot be made.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"The run directory {run_dir} cannot be made: {error.strerror}.") from error
    (run_dir / "environment.json").write_text(json.dumps(environment(), indent=2) + "\n", encoding="utf-8")
    save_config(config, run_dir / CONFIG)


def load_run(run_dir: Path) -> GRPOConfig:
    """Config of a run.

    Raises:
        ConfigError: There is no run in the folder.
    """
    if not is_run(run_dir):
        raise ConfigError(f"There is no run in {run_dir}: it has no {CONFIG}.")
    return GRPOConfig.from_mapping(load_settings(run_dir / CONFIG))


def continue_run(run_dir: Path, config: GRPOConfig) -> None:
    """Make sure that a run goes on as it began, and keep what may change.

    Raises:
        ConfigError: The run was made with another value of a setting that its numbers depend on.
    """
    before = dataclasses.asdict(load_run(run_dir))
    for name, value in dataclasses.asdict(config).items():
        if name not in _RESUMABLE and value != before[name]:
            raise ConfigError(
                f"The run in {run_dir} was made with {name} {before[name]}, not {value}: within a run only "
                f"{', '.join(_RESUMABLE)} can change."
            )
    save_config(config, run_dir / CONFIG)


def append_metrics(run_dir: Path, metrics: Mapping[str, Any]) -> None:
    """Add a step's line."""
    with (run_dir / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(metrics) + "\n")


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """All whole lines, one dictionary a step."""
    path = run_dir / METRICS
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def truncate_metrics(run_dir: Path, step: int) -> None:
    """Drop the lines of this step and of later ones, and one that was cut off by a kill."""
    kept = [metrics for metrics in read_metrics(run_dir) if metrics["step"] < step]
    partial = run_dir / f"{METRICS}.partial"
    partial.write_text("".join(json.dumps(metrics) + "\n" for metrics in kept), encoding="utf-8")
    os.replace(partial, run_dir / METRICS)


def environment() -> dict[str, Any]:
    """Where numbers are made: versions, machine, commit."""
    import torch

    return {
        "python": sys.version.split()[0],
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "commit": _commit(),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Commit of the source tree that runs, None where it is none."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
