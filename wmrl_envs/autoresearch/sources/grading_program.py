"""Runs inside the sandbox: call a competition's own grader, and write down what it says.

``DATA_DIR`` holds task.json (``kind``, ``entry``, ``answers``, ``id_column``), the answers, submission.csv
and the folder ``grader`` with the grader's code. The verdict goes to ``SUBMISSION_PATH`` as JSON:

- ``{"verdict": "scored", "score": ..., "higher_is_better": ...}``, the direction null where nobody says it
- ``{"verdict": "refused", "message": ...}``: the grader does not take the submission
- ``{"verdict": "failed", "message": ...}``: the metric broke on it
- ``{"verdict": "broken", "message": ...}``: the grader cannot be loaded, whatever is submitted

This file imports nothing of the project, which a sandbox does not see.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

# What graders import of packages that need not be installed to grade.
OFFERED = {
    "mledojo.metrics.base": ("CompetitionMetrics", "InvalidSubmissionError"),
    "mlebench.grade_helpers": ("InvalidSubmissionError",),
}


class CompetitionMetrics:
    """What MLE-Dojo's metrics derive from."""

    def __init__(self, higher_is_better: bool = True) -> None:
        self.higher_is_better = higher_is_better


class InvalidSubmissionError(Exception):
    """What graders raise for a submission that they do not take."""


class _BrokenError(Exception):
    """The grader cannot be loaded."""


def offer_names() -> None:
    """Put stand-ins where a package is missing, under the names that graders import."""
    for module, names in OFFERED.items():
        try:
            importlib.import_module(module)
        except ImportError:
            parts = module.split(".")
            for depth in range(1, len(parts) + 1):
                package = sys.modules.setdefault(".".join(parts[:depth]), ModuleType(parts[depth - 1]))
                package.__path__ = []
            for name in names:
                setattr(sys.modules[module], name, globals()[name])


def load(module: str) -> ModuleType:
    """Import a grader's module, from the folder ``grader`` if it is there."""
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise _BrokenError(f"{module} cannot be imported: {describe(error)}") from error


def mle_dojo(folder: Path, task: dict[str, str]) -> tuple[Any, bool]:
    """A class with ``higher_is_better``, ``validate_submission`` and ``evaluate``."""
    module = load(f"grader.{task['entry']}")
    base = sys.modules["mledojo.metrics.base"].CompetitionMetrics
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    ]
    if not own:
        raise _BrokenError(f"{task['entry']}.py has no class derived from CompetitionMetrics.")
    metric = own[-1]()
    truth, submission = read(folder / task["answers"]), read(folder / "submission.csv")
    accepted = metric.validate_submission(submission, truth)
    refused = accepted[0] is False if isinstance(accepted, tuple) and accepted else accepted is False
    if refused:
        raise InvalidSubmissionError(accepted[1] if isinstance(accepted, tuple) else "It is not valid.")
    return metric.evaluate(truth, submission), bool(metric.higher_is_better)


def mle_bench(folder: Path, task: dict[str, str]) -> tuple[Any, None]:
    """A function ``module:function`` of submission and answers; scores have five decimals there."""
    name, _, function = task["entry"].partition(":")
    local = name.rpartition(".")[2]
    module = load(f"grader.{local}" if (folder / "grader" / f"{local}.py").is_file() else name)
    if not callable(getattr(module, function, None)):
        raise _BrokenError(f"{name} has no function '{function}'.")
    score = getattr(module, function)(read(folder / "submission.csv"), read(folder / task["answers"]))
    return round(float(score), 5), None


def dsbench(folder: Path, task: dict[str, str]) -> tuple[Any, None]:
    """A script that compares two tables row by row, so the submission is put in the answers' order first."""
    column = task["id_column"]
    answers = pd.read_csv(folder / task["answers"], dtype={column: str})
    submission = pd.read_csv(folder / "submission.csv", dtype={column: str})
    if column not in submission or sorted(submission[column]) != sorted(answers[column]):
        raise InvalidSubmissionError(f"The column {column} must hold the ids of the test rows, each once.")
    ordered = [name for name in answers if name in submission]
    ordered += [name for name in submission if name not in ordered]
    aligned = submission.set_index(column).loc[answers[column]].reset_index()[ordered]
    aligned.to_csv("aligned.csv", index=False)
    here = os.getcwd()
    sys.argv[1:] = ["--path", here, "--name", "result", "--answer_file", str(folder / task["answers"])]
    sys.argv += ["--predict_file", f"{here}/aligned.csv"]
    Path("result").mkdir()
    runpy.run_path(str(folder / "grader" / task["entry"]), run_name="__main__")
    return Path("result", "result.txt").read_text(), None


def read(path: Path) -> Any:
    """A table as the graders expect it."""
    return pd.read_json(path, lines=True) if path.suffix == ".jsonl" else pd.read_csv(path)


def describe(error: BaseException) -> str:
    """Kind and first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def judge(folder: Path) -> dict[str, Any]:
    """Call the grader."""
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    kinds: dict[str, Callable[[Path, dict[str, str]], tuple[Any, bool | None]]] = {
        "mle_dojo": mle_dojo,
        "mle_bench": mle_bench,
        "dsbench": dsbench,
    }
    try:
        score, higher_is_better = kinds[task["kind"]](folder, task)
        return {"verdict": "scored", "score": float(score), "higher_is_better": higher_is_better}
    except _BrokenError as error:
        return {"verdict": "broken", "message": str(error)}
    except (Exception, SystemExit) as error:
        if type(error).__name__ == "InvalidSubmissionError":  # the package's own class, or the one offered
            return {"verdict": "refused", "message": str(error)}
        return {"verdict": "failed", "message": describe(error)}


if __name__ == "__main__":
    data = Path(os.environ["DATA_DIR"])
    sys.path.insert(0, str(data))
    offer_names()
    Path(os.environ["SUBMISSION_PATH"]).write_text(json.dumps(judge(data)), encoding="utf-8")
