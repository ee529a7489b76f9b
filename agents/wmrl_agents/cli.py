"""The ``wmrl`` command. What a subcommand needs is imported when it runs, so that help is instant."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from wmrl_agents.grpo.config import GRPOConfig, field_docs, load_preset, load_settings, preset_names
from wmrl_envs.errors import ConfigError, WMRLError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Arguments; None takes those of the process.

    Returns:
        0 if all went well, 1 for errors that ``wmrl tasks check`` and ``wmrl doctor`` find, 2 for input that
        cannot be used, 130 after an interrupt.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["tiny-coder"]:
        return _guarded(lambda: _tiny_coder(arguments[1:]))
    if arguments[:1] == ["tasks"]:
        return _guarded(lambda: _tasks(arguments[1:]))
    if arguments[:1] == ["doctor"]:
        return _guarded(lambda: _doctor(arguments[1:]))
    if arguments[:1] == ["libero"]:
        return _guarded(lambda: _libero(arguments[1:]))
    if arguments[:1] in (["cache"], ["sandbox"]):
        return _guarded(lambda: _executions(arguments))
    options = _parser().parse_args(arguments)
    return _guarded(lambda: options.run(options))


def _guarded(command: Any) -> int:
    try:
        return int(command())
    except WMRLError as error:
        print(f"wmrl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("wmrl: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wmrl",
        description="Train agents whose rewards are expensive to execute, with world-model rewards.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_train(commands)
    _add_evaluate(commands)
    _add_fidelity(commands)
    report = commands.add_parser("report", help="write a run's report, one HTML page")
    report.add_argument("run_dir", metavar="RUN", type=Path)
    report.set_defaults(run=_report)
    commands.add_parser("tasks", help="list competitions, show one, check or import a folder", add_help=False)
    commands.add_parser("doctor", help="say what this machine can do, and lacks", add_help=False)
    commands.add_parser(
        "cache", help="look at stored executions or predictions, or remove them", add_help=False
    )
    commands.add_parser("sandbox", help="set up the environment that solutions run in", add_help=False)
    commands.add_parser("libero", help="the robot's scripted expert and its demonstrations", add_help=False)
    commands.add_parser("tiny-coder", help="`wmrl tiny-coder build` makes the bundled models again")
    return parser


def _add_train(commands: Any) -> None:
    train = commands.add_parser(
        "train",
        usage="wmrl train [--preset NAME] [--run-dir DIR] [--resume DIR] [--config FILE] [--SETTING V ...]",
        allow_abbrev=False,
        help="train an agent",
        description="Train an agent with GRPO and world-model rewards; evaluate it before and after.",
        epilog="Settings come from the preset, then the config file, then the flags.",
    )
    train.add_argument("--resume", metavar="DIR", type=Path, help="go on with the run in this directory")
    train.add_argument("--run-dir", metavar="DIR", type=Path, help="directory of the new run")
    _add_settings(train)
    train.set_defaults(run=_train)


def _add_evaluate(commands: Any) -> None:
    evaluate = commands.add_parser(
        "evaluate",
        allow_abbrev=False,
        help="evaluate an agent by real execution",
        description="Evaluate a run, a model directory or name, or an endpoint (http://host/v1#model).",
        epilog="Settings, such as --max-turns 4 or --competitions digits, are those of `wmrl train --help`.",
    )
    evaluate.add_argument("policy", metavar="RUN_OR_POLICY")
    evaluate.add_argument("--split", choices=("train", "heldout"), default="train")
    evaluate.add_argument("--repeats", metavar="N", type=int, help="trajectories per competition")
    evaluate.add_argument("--half", choices=("public", "private"), default="private")
    evaluate.add_argument(
        "--suite",
        metavar="NAME",
        help="libero_10: a robot's policy on LIBERO-Long, greedily, in place of programs",
    )
    evaluate.add_argument(
        "--states", metavar="N,N-N", help="initial states of the robot's tasks [all], each --repeats times"
    )
    evaluate.add_argument("--output", metavar="FILE", type=Path, help="where the numbers go, as JSON")
    evaluate.add_argument(
        "--mle-bench-report", metavar="FILE", type=Path, help="where MLE-bench's report goes, with medals"
    )
    _add_settings(evaluate, hidden=True)
    evaluate.set_defaults(run=_evaluate)


def _add_fidelity(commands: Any) -> None:
    fidelity = commands.add_parser(
        "fidelity",
        usage="wmrl fidelity RUN_OR_POLICY [--world-model NAME] [--output FILE] [--SETTING V ...]",
        allow_abbrev=False,
        help="measure a world model on executed solutions",
        description="Ask a world model about solutions that a run has executed, or that a policy writes and "
        "the sandbox executes now. Report how far it is off, before and after debiasing, and what that means "
        "for training.",
        epilog="Settings, such as --max-turns 4 or --competitions digits, are those of `wmrl train --help`.",
    )
    fidelity.add_argument("policy", metavar="RUN_OR_POLICY")
    fidelity.add_argument(
        "--trajectories", metavar="N", type=int, default=32, help="episodes per competition of a policy [32]"
    )
    fidelity.add_argument("--every-turn", action="store_true", help="every program, not only the scored ones")
    fidelity.add_argument("--limit", metavar="N", type=int, help="solutions at most, whole groups at random")
    fidelity.add_argument(
        "--output", metavar="FILE", type=Path, help="where the numbers go, as JSON; the page goes beside it"
    )
    shown = ("world_model", "world_model_predicts", "prediction_cache")
    _add_settings(fidelity, hidden=True, shown=shown)
    fidelity.set_defaults(run=_fidelity)


def _add_settings(parser: argparse.ArgumentParser, hidden: bool = False, shown: Sequence[str] = ()) -> None:
    """A flag for the preset, one for a config file, and one for each setting, hidden from the help or not."""
    parser.add_argument("--preset", metavar="NAME", help=f"{', '.join(preset_names())} (default: default)")
    parser.add_argument("--config", metavar="FILE", type=Path, help="YAML file of settings")
    docs = field_docs()
    about = None if hidden else "their defaults without a preset in brackets"
    group = parser.add_argument_group(None if hidden else "settings", about)
    taken = {"policy"} if hidden else set()
    for field in dataclasses.fields(GRPOConfig):
        if field.name in taken:
            continue
        flags = dict.fromkeys((f"--{field.name.replace('_', '-')}", f"--{field.name}"))
        text = f"{docs[field.name]} [{_shown(field.default)}]".replace("%", "%%")
        group.add_argument(
            *flags,
            metavar="V",
            dest=f"setting_{field.name}",
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS if hidden and field.name not in shown else text,
        )


def _shown(default: Any) -> str:
    return "none" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def _flags(options: argparse.Namespace) -> dict[str, Any]:
    """Settings given as flags."""
    prefix = "setting_"
    return {n.removeprefix(prefix): v for n, v in vars(options).items() if n.startswith(prefix)}


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """Settings of preset, file and flags, later ones first."""
    preset = options.preset or ("default" if options.config is None else None)
    settings = {} if preset is None else load_preset(preset)
    if options.config is not None:
        settings |= load_settings(options.config)
    return settings | _flags(options)


def _train(options: argparse.Namespace) -> int:
    if options.resume is not None:
        for flag in ("run_dir", "preset", "config"):
            if getattr(options, flag) is not None:
                dashed = flag.replace("_", "-")
                raise ConfigError(f"--resume goes on with a run as it is: leave --{dashed} out.")
        from wmrl_agents.train import resume

        return resume(options.resume, _flags(options))
    config = GRPOConfig.from_mapping(_settings(options))
    name = options.config.stem if options.config is not None else options.preset or "default"
    run_dir = options.run_dir or Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    from wmrl_agents.train import start

    return start(config, run_dir)


def _evaluate(options: argparse.Namespace) -> int:
    flags = _flags(options)
    if options.repeats is not None:
        flags["evaluation_repeats"] = options.repeats
    if options.suite is not None:
        flags["task_suite"] = options.suite
    base = _settings(options)
    if options.config is None:
        base.pop("competitions", None)  # a preset names those that it trains on
    from wmrl_agents.train import evaluate

    return evaluate(
        options.policy,
        base=base,
        flags=flags,
        split=options.split,
        half=options.half,
        output=options.output,
        mle_bench_report=options.mle_bench_report,
        states=options.states,
    )


def _fidelity(options: argparse.Namespace) -> int:
    from wmrl_agents.fidelity import world_model_fidelity

    return world_model_fidelity(
        options.policy,
        base=_settings(options),
        flags=_flags(options),
        trajectories=options.trajectories,
        every_turn=options.every_turn,
        limit=options.limit,
        output=options.output,
    )


def _report(options: argparse.Namespace) -> int:
    from wmrl_agents.report import write_report

    print(write_report(options.run_dir))
    return 0


def _tasks(arguments: list[str]) -> int:
    from wmrl_agents.tasks import main as tasks

    return tasks(arguments)


def _doctor(arguments: list[str]) -> int:
    from wmrl_agents.doctor import main as doctor

    return doctor(arguments)


def _libero(arguments: list[str]) -> int:
    from wmrl_agents.libero import main as libero

    return libero(arguments)


def _executions(arguments: list[str]) -> int:
    from wmrl_agents.executions import main as executions

    return executions(arguments)


def _tiny_coder(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="wmrl tiny-coder")
    parser.add_argument("action", choices=("build",), help="make the bundled models again from nothing")
    parser.parse_args(arguments[:1])
    from wmrl_agents.policies.tiny_coder.build import main as build

    build(arguments[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
