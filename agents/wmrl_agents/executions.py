"""``wmrl cache`` and ``wmrl sandbox``: stored executions and predictions; where solutions run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from wmrl_envs.errors import ConfigError
from wmrl_envs.sandbox.cache import ExecutionCache
from wmrl_envs.sandbox.environment import build_environment
from wmrl_rewards.world_models.cached import PredictionStore

__all__ = ["main"]

MIB = 1 << 20
ENVIRONMENT = Path("/opt/wmrl-solutions")


def main(arguments: Sequence[str]) -> int:
    """Run ``wmrl cache ...`` or ``wmrl sandbox ...``; the arguments begin with that word."""
    options = _parser().parse_args(arguments)
    return int(options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="wmrl")
    words = parser.add_subparsers(required=True)
    cache = words.add_parser(
        "cache",
        description="Stored executions or predictions: RUN/executions.sqlite, predictions.sqlite, or another "
        "file of either kind.",
    )
    commands = cache.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, run, text in (
        ("stats", _stats, "say what is stored"),
        ("clear", _clear, "remove all that is stored"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("path", metavar="FILE", type=Path, help="the cache's file")
        command.set_defaults(run=run)
    sandbox = words.add_parser("sandbox", description="The environment that solutions run in.")
    commands = sandbox.add_subparsers(title="commands", metavar="COMMAND", required=True)
    setup = commands.add_parser(
        "setup",
        help="build a virtual environment of locked packages",
        description="Build a virtual environment of locked packages; --solution-python makes a run use it.",
    )
    setup.add_argument("--dir", type=Path, default=ENVIRONMENT, help=f"where [{ENVIRONMENT}]")
    setup.add_argument("--torch", action="store_true", help="with torch")
    setup.set_defaults(run=_setup)
    return parser


def _predictions(path: Path) -> PredictionStore | None:
    """The file as a store of predictions, if it is one."""
    try:
        return PredictionStore.existing(path)
    except ConfigError:
        return None


def _stats(options: argparse.Namespace) -> int:
    predictions = _predictions(options.path)
    if predictions is not None:
        held = predictions.stats()
        print(f"{held.predictions} predictions")
        print(f"{held.seconds:.1f} seconds and {held.new_tokens} new tokens that need not be spent again")
        print(f"{held.file_bytes / MIB:.1f} MiB on disk")
        return 0
    stats = ExecutionCache.existing(options.path).stats()
    statuses = ", ".join(f"{count} {status}" for status, count in stats.entries.items())
    print(f"{sum(stats.entries.values())} executions" + (f": {statuses}" if statuses else ""))
    print(f"{stats.seconds:.1f} seconds of execution that need not be spent again")
    print(f"{stats.grades} grades")
    if stats.rechecked:
        print(f"{stats.rechecked} programs were run twice, {stats.differing} of them ended otherwise")
    print(
        f"{stats.file_bytes / MIB:.1f} MiB on disk, {stats.submission_bytes / MIB:.1f} MiB of it submissions"
    )
    return 0


def _clear(options: argparse.Namespace) -> int:
    predictions = _predictions(options.path)
    if predictions is not None:
        print(f"Removed {predictions.clear()} predictions from {options.path}.")
        return 0
    removed = ExecutionCache.existing(options.path).clear()
    print(f"Removed {removed} executions from {options.path}.")
    return 0


def _setup(options: argparse.Namespace) -> int:
    print(f"Installing the solutions' packages into {options.dir} ...", flush=True)
    python = build_environment(options.dir, with_torch=options.torch)
    print(f"Solutions can run with {python}:  wmrl train --solution-python {python}")
    return 0
