"""``wmrl tasks``: what competitions there are, what one looks like, and whether a folder of one is sound."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from wmrl_envs.autoresearch.checks import HALVES, Finding
from wmrl_envs.autoresearch.competition import competition_names, load_competition
from wmrl_envs.autoresearch.inspection import inspect_folder
from wmrl_envs.autoresearch.prompts import task_text
from wmrl_envs.errors import CompetitionError, ConfigError

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run ``wmrl tasks`` with these arguments.

    Returns:
        0 if all went well, 1 if a check found an error.
    """
    options = _parser().parse_args(arguments)
    return int(options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="wmrl tasks", description="Look at competitions and check them.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    tasks = commands.add_parser("list", help="name all competitions, one a line")
    tasks.set_defaults(run=_list)
    show = commands.add_parser("show", help="print a competition as an agent sees it")
    show.add_argument("name", metavar="NAME", help="a name, or a folder")
    show.set_defaults(run=_show)
    code_help = "code tree of MLE-Dojo or MLE-bench, where their package is not installed"
    for command in (tasks, show):
        command.add_argument("--dojo-root", metavar="DIR", type=Path, help=code_help)
        command.add_argument(
            "--data-root",
            metavar="DIR",
            type=Path,
            help="folder of competition folders; default: the bundled ones",
        )
    check = commands.add_parser(
        "check",
        help="look for what is wrong with a competition's folder",
        description="Print one line for each finding. The exit code is 1 if there is an error among them. "
        "The folder may also be in the layout of MLE-Dojo, MLE-bench or DSBench.",
    )
    check.add_argument("--dojo-root", metavar="DIR", type=Path, help=code_help)
    check.add_argument("folder", metavar="DIR", type=Path)
    check.set_defaults(run=_check)
    take = commands.add_parser("import", help="check a competition's folder and copy it into a data root")
    take.add_argument("folder", metavar="DIR", type=Path)
    take.add_argument("--out", metavar="DIR", type=Path, required=True, help="the data root")
    take.set_defaults(run=_import)
    return parser


def _list(options: argparse.Namespace) -> int:
    names = competition_names(options.data_root)
    width = max(map(len, names), default=0)
    for name in names:
        print(f"{name:{width}}  {_in_short(name, options.data_root, options.dojo_root)}")
    return 0


def _in_short(name: str, data_root: Path | None, dojo_root: Path | None) -> str:
    try:
        competition = load_competition(name, data_root, dojo_root)
    except CompetitionError as error:
        return str(error)
    return (
        f"{competition.category:7}  {competition.split:7}  {competition.metric.name:17}  {competition.title}"
    )


def _show(options: argparse.Namespace) -> int:
    competition = load_competition(options.name, options.data_root, options.dojo_root)
    print(task_text(competition))
    print(f"\nFolder: {competition.root}\nSplit: {competition.split}")
    if not competition.board_paths:
        print("There is no leaderboard: a score is worth its relative performance gap.")
        return 0
    for half in HALVES:
        board = competition.leaderboard(half)
        rows = len(competition.rows(half))
        print(f"The {half} half: {rows} rows, {len(board)} scores from {board[0]:g} to {board[-1]:g}")
    return 0


def _check(options: argparse.Namespace) -> int:
    return _report(options.folder, _findings(options.folder, options.dojo_root))


def _import(options: argparse.Namespace) -> int:
    if options.folder.is_dir() and not (options.folder / "competition.yaml").is_file():
        raise ConfigError(
            f"{options.folder} is not in this project's layout. Folders of MLE-Dojo, MLE-bench and DSBench "
            "are read where they lie: give what holds them as data_root. Others need a competition.yaml."
        )
    if (code := _report(options.folder, _findings(options.folder))) != 0:
        return code
    name = load_competition(options.folder).name
    target = options.out / name
    if target.exists():
        raise ConfigError(f"{target} is there already: remove it first, or choose another data root.")
    # Beside its place and then renamed, so that a copy that breaks off is never taken for a competition.
    unfinished = options.out / f".{name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(options.folder, unfinished)
    unfinished.rename(target)
    print(f"Copied to {target}.")
    return 0


def _findings(folder: Path, dojo_root: Path | None = None) -> list[Finding]:
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder.")
    return inspect_folder(folder, dojo_root)


def _report(folder: Path, findings: list[Finding]) -> int:
    for finding in findings:
        print(f"{finding.severity}: {finding}")
    errors = sum(finding.severity == "error" for finding in findings)
    if not findings:
        print(f"{folder}: nothing was found.")
    return 1 if errors else 0
