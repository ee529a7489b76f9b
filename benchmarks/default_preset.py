r"""What the default preset comes to under each kind of rewards, over paired seeds.

::

    python benchmarks/default_preset.py runs/arms
    python benchmarks/default_preset.py runs/arms --arms anchors-alone,noise,constant --seeds 5

Each run is a `wmrl train`, printed before it begins. One that was interrupted is gone on with, one that is
done is not done again; they share their executions. At the end come two tables of all runs that are done:
what each arm came to, on the private half, and what it differs by from anchors alone with the same seed, with
Student's 95 % interval of the mean. ``result.json`` holds the scores.

A run of anchors alone takes about three minutes on a core, real execution half an hour.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from wmrl_agents.runs import is_run

ARMS: dict[str, dict[str, str]] = {
    "wmrl": {},
    "anchors-alone": {"reward-source": "anchors_alone"},
    "real": {"reward-source": "real"},
    "noise": {"world-model": "noise"},
    "constant": {"world-model": "constant"},
}
CONTROL = "anchors-alone"
# An evaluation of 8 runs a task carries noise of about 0.08, one of 32 half of that.
REPEATS = 32

Numbers = Mapping[str, float | None]
Scores = dict[str, dict[int, Numbers]]


def command(folder: Path, arm: str, seed: int) -> list[str]:
    """The `wmrl train` of one run, from the start or from where it stands."""
    run = folder / f"{arm}-{seed}"
    if is_run(run):
        return ["train", "--resume", str(run)]
    settings = {
        "preset": "default",
        **ARMS[arm],
        "seed": str(seed),
        "evaluation-repeats": str(REPEATS),
        "execution-cache": str(folder / "executions.sqlite"),
        "run-dir": str(run),
    }
    return ["train", *(word for name, value in settings.items() for word in (f"--{name}", value))]


def evaluation(folder: Path, arm: str, seed: int, when: str) -> Path:
    """The file of what a run's policy came to."""
    return folder / f"{arm}-{seed}" / f"evaluation-{when}.json"


def scores(folder: Path) -> Scores:
    """What each run that is done came to, by arm and seed; ``before`` is an arm of its own."""
    found: Scores = {}
    for arm in ARMS:
        for path in sorted(folder.glob(f"{arm}-[0-9]*")):
            seed = int(path.name.removeprefix(f"{arm}-"))
            if evaluation(folder, arm, seed, "after").is_file():
                for name, when in (("before", "before"), (arm, "after")):
                    measured = json.loads(evaluation(folder, arm, seed, when).read_text(encoding="utf-8"))
                    found.setdefault(name, {})[seed] = numbers(measured)
    return found


def numbers(measured: Mapping[str, Any]) -> Numbers:
    """Score, share of programs that fail, and the score of the others; None where there is none."""
    valid = measured["valid_rate"]
    return {
        "score": measured["score"],
        "failing": None if valid is None else 1 - valid,
        "valid_score": measured["valid_score"],
    }


def mean(runs: Mapping[int, Numbers], name: str) -> float:
    """Mean of one number over the runs that have it; NaN if none has."""
    known = [run[name] for run in runs.values() if run[name] is not None]
    return float(np.mean(known)) if known else float("nan")


def difference(
    arm: Mapping[int, Numbers], control: Mapping[int, Numbers]
) -> tuple[list[float], float, float, float] | None:
    """Paired differences of scores, their mean and its 95 % interval; None with fewer than two pairs."""
    pairs = [(arm[seed]["score"], control[seed]["score"]) for seed in sorted(arm) if seed in control]
    gains = np.array([ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None])
    if gains.size < 2:
        return None
    half = stats.t.ppf(0.975, gains.size - 1) * stats.sem(gains)
    return gains.tolist(), float(gains.mean()), float(gains.mean() - half), float(gains.mean() + half)


def tables(found: Scores) -> str:
    """Both tables in Markdown."""
    lines = ["| rewards | seeds | score | failing | valid ones |", "| --- | ---: | ---: | ---: | ---: |"]
    for arm, runs in found.items():
        score, failing, valid = (mean(runs, name) for name in ("score", "failing", "valid_score"))
        lines.append(f"| {arm} | {len(runs)} | {score:.3f} | {100 * failing:.0f} % | {valid:.3f} |")
    lines += ["", f"| against {CONTROL} | each seed | mean | 95 % interval |", "| --- | --- | ---: | --- |"]
    for arm, runs in found.items():
        compared = difference(runs, found.get(CONTROL, {})) if arm not in ("before", CONTROL) else None
        if compared is not None:
            gains, mean_gain, low, high = compared
            each = ", ".join(f"{gain:+.3f}" for gain in gains)
            lines.append(f"| {arm} | {each} | {mean_gain:+.3f} | {low:+.3f} to {high:+.3f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is not done yet and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("folder", metavar="DIR", type=Path, help="where runs are kept")
    parser.add_argument("--arms", default=",".join(ARMS), help="which arms, with commas between them")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds, from 0 (default 3)")
    options = parser.parse_args(arguments)
    arms = options.arms.split(",")
    unknown = [arm for arm in arms if arm not in ARMS]
    if unknown:
        parser.error(f"there is no arm {', '.join(unknown)}: name some of {', '.join(ARMS)}.")
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(options.seeds):
        for arm in arms:
            if not evaluation(folder, arm, seed, "after").is_file():
                words = command(folder, arm, seed)
                print("wmrl " + " ".join(words), flush=True)
                subprocess.run([sys.executable, "-m", "wmrl_agents.cli", *words], check=True)
    found = scores(folder)
    (folder / "result.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(f"\n{tables(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
