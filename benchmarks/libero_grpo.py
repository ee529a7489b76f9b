"""Does WMRL help a robot's policy? Imitation, then GRPO from one checkpoint with four kinds of rewards.

Everything is made here, on a processor: demonstrations by the scripted expert, the small policy, the
small model of progress, four runs that differ in ``reward_source`` alone, and the evaluation of all five
policies on the same episodes::

    python benchmarks/libero_grpo.py runs/libero-grpo                 # everything, one after the other
    python benchmarks/libero_grpo.py runs/libero-grpo --only sft      # up to the policy that all begin with
    python benchmarks/libero_grpo.py runs/libero-grpo --arms wmrl,real

Each stage is a `wmrl` command, printed before it runs. One that was interrupted is gone on with, one that is
done is not done again. The last stage prints a table and writes ``result.json``, with all arms that were
evaluated so far: the gain in success of each over the policy that it began with, paired by episode, with 95 %
intervals from a bootstrap over initial states (the episodes of one state are not independent), for states
trained on, for the others, and for all.

The budget below was fixed before the arms were run, and is small: what a laptop does in hours. It says what
can be seen at this size, not what the method can do.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap

TASK = 5
SEEN = range(16)
DEMOS = {"tasks": TASK, "init-states": f"{SEEN[0]}-{SEEN[-1]}", "env-seeds": "0-11", "noise": 0.08}
SFT = {"tasks": TASK, "steps": 2400, "learning-rate": 2e-3, "report-every": 400, "checkpoint-every": 400}
# From a first look at imitation, before any arm was run: here the loss on held-out episodes stops falling,
# and about half of the greedy episodes succeed.
SFT_STEP = 1200
PROGRESS = {"tasks": TASK, "steps": 1000}
PLAYED = {"preset": "libero-cpu", "libero-tasks": TASK, "horizon": 160, "simulators": 1}
GRPO = PLAYED | {
    "steps": 12,
    "groups-per-step": 4,
    "group-size": 8,
    "anchor-fraction": 0.25,
    "min-pairs": 16,
    "refit-every": 8,
    "warmup-groups": 1,
    "learning-rate": 3e-4,
    "evaluate-before": "false",
    "evaluate-after": "false",
}
EVALUATION = PLAYED | {"suite": "libero_10", "repeats": 2}
ARMS = {"real": "real", "world model": "world_model", "anchors alone": "anchors_alone", "wmrl": "wmrl"}
STAGES = ("sft", "progress", "grpo", "evaluate")


def wmrl(*words: object, **settings: object) -> None:
    """Run a command of `wmrl`, shown first, with settings as flags."""
    named = [word for name, value in settings.items() for word in (f"--{name}", value)]
    command = [str(word) for word in (*words, *named)]
    print("\n$ wmrl " + " ".join(command), flush=True)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "wmrl_agents.cli", *command], check=True)
    print(f"({time.perf_counter() - started:.0f} s)", flush=True)


def learn_policy(folder: Path) -> Path:
    """Demonstrations and imitation; returns the policy's folder."""
    wmrl("libero", "demos", **DEMOS, out=folder / "demos")
    policy = folder / "sft" / "checkpoints" / f"step-{SFT_STEP}"
    if not policy.is_dir():
        wmrl("libero", "sft", **SFT, **{"demos": folder / "demos", "run-dir": folder / "sft"})
    return policy


def learn_progress(folder: Path) -> Path:
    """The model of progress; returns its folder."""
    model = folder / "progress"
    if not model.is_dir():
        wmrl("libero", "progress", **PROGRESS, demos=folder / "demos", out=model)
    return model


def train(folder: Path, arm: str, policy: Path, progress: Path) -> Path:
    """GRPO with one kind of rewards; returns the run's folder."""
    run = folder / arm.replace(" ", "-")
    if (run / "config.yaml").is_file():
        wmrl("train", resume=run)
    else:
        arm_settings = {"world-model": progress, "reward-source": ARMS[arm], "run-dir": run}
        wmrl("train", **GRPO, policy=policy, **arm_settings)
    return run


def evaluation_of(folder: Path, name: str) -> Path:
    """The file of a policy's successes."""
    return folder / f"evaluation-{name.replace(' ', '-')}.json"


def evaluate(folder: Path, name: str, policy: Path) -> None:
    """Greedy episodes from all initial states."""
    output = evaluation_of(folder, name)
    if not output.is_file():
        wmrl("evaluate", policy, **EVALUATION, output=output)


def success(path: Path) -> dict[tuple[int, int], float]:
    """Success of each episode, by initial state and repeat."""
    episodes = json.loads(path.read_text(encoding="utf-8"))["episodes"]
    return {(one["init_state"], one["env_seed"]): float(one["success"]) for one in episodes}


def gain(
    before: Mapping[tuple[int, int], float], after: Mapping[tuple[int, int], float], states: Sequence[int]
) -> dict[str, Any]:
    """Mean gain of paired episodes and its 95 % interval.

    Args:
        before: Success by initial state and repeat.
        after: The same episodes with another policy.
        states: Initial states that count.

    Returns:
        ``before``, ``after``, ``gain``, and ``low`` and ``high``, the ends of the interval: percentiles of
        9,999 draws of initial states, with all repeats of each.
    """
    if before.keys() != after.keys():
        raise SystemExit("The evaluations are of different episodes: remove them and evaluate again.")
    means = [
        [np.mean([values[key] for key in values if key[0] == state]) for values in (before, after)]
        for state in states
    ]
    first, last = np.array(means).T
    drawn = bootstrap((last - first,), np.mean, method="percentile", rng=np.random.default_rng(0))
    interval = drawn.confidence_interval
    return {
        "before": float(first.mean()),
        "after": float(last.mean()),
        "gain": float((last - first).mean()),
        "low": float(interval.low),
        "high": float(interval.high),
    }


def gains(folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """What `gain` says of each arm that was evaluated: for all initial states, those trained on, the rest."""
    before = success(evaluation_of(folder, "before"))
    everywhere = sorted({state for state, _ in before})
    splits = {
        "all": everywhere,
        "seen": [state for state in everywhere if state in SEEN],
        "unseen": [state for state in everywhere if state not in SEEN],
    }
    after = {arm: evaluation_of(folder, arm) for arm in ARMS if evaluation_of(folder, arm).is_file()}
    return {
        arm: {name: gain(before, success(path), states) for name, states in splits.items()}
        for arm, path in after.items()
    }


def table(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Gains of all arms as a Markdown table, in percent of the episodes."""
    names = list(next(iter(results.values())))
    lines = [f"| rewards | {' | '.join(names)} |", "| --- |" + " ---: |" * len(names)]
    for arm, splits in results.items():
        cells = []
        for one in splits.values():
            after, mean, low, high = (100 * one[name] for name in ("after", "gain", "low", "high"))
            cells.append(f"{after:.0f} ({mean:+.0f}, {low:+.0f} to {high:+.0f})")
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", metavar="DIR", type=Path, help="where everything goes")
    parser.add_argument(
        "--only", metavar="STAGE", choices=STAGES, default="evaluate", help="the last stage to run"
    )
    parser.add_argument("--arms", default=",".join(ARMS), help="which arms, with commas between them")
    options = parser.parse_args(arguments)
    folder, last = options.folder.resolve(), STAGES.index(options.only)
    arms = options.arms.split(",")
    unknown = [arm for arm in arms if arm not in ARMS]
    if unknown:
        parser.error(f"there is no arm {', '.join(unknown)}: name some of {', '.join(ARMS)}.")
    policy = learn_policy(folder)
    if last >= STAGES.index("progress"):
        progress = learn_progress(folder)
    if last >= STAGES.index("grpo"):
        runs = {arm: train(folder, arm, policy, progress) for arm in arms}
    if last >= STAGES.index("evaluate"):
        for name, evaluated in {"before": policy, **runs}.items():
            evaluate(folder, name, evaluated)
        results = gains(folder)
        (folder / "result.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        print(f"\nSuccess after training in % (gain, 95 % interval)\n\n{table(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
