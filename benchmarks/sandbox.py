"""What the sandbox costs: added time per job, throughput of real jobs, and a hit in the cache.

Compared in one run, in turns, so that a busy machine disturbs all alike: bare ``python script.py``, a plain
subprocess with limits of address space and processor time (what systems without isolation use), bubblewrap,
and Docker where it is asked for.

    python benchmarks/sandbox.py [--quick] [--jobs 64] [--repeats 40] [--docker wmrl-solution]

Where no engine runs, ``.ci/docker python benchmarks/sandbox.py --docker wmrl-solution`` starts one. Take the
numbers from a quiet machine. The exit code is 1 where one is worse than what is promised.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from wmrl_envs.autoresearch import load_competition
from wmrl_envs.sandbox import ExecutionCache, Job, Limits, Result, Sandbox, SandboxPool, make_sandbox

FIT = """
import numpy as np
from sklearn.linear_model import LogisticRegression
x = np.random.rand(400, 10)
LogisticRegression(C={c}).fit(x, x[:, 0] > .5)
open("submission.csv", "w").write("id,target\\n")
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
BATCHES = 4  # in turns: what else the machine does then falls on all ways
ADDED_MS = {"bubblewrap": 60.0, "Docker": 700.0}
THROUGHPUT = 0.93
HIT_MS = 2.0
GIB = 1 << 30


class Check(NamedTuple):
    """A number and what is promised of it."""

    what: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the promise is kept."""
        over = self.at_most is not None and self.value > self.at_most
        return not over and not (self.at_least is not None and self.value < self.at_least)

    def __str__(self) -> str:
        if self.at_most is None and self.at_least is None:
            return f"{self.what:48} {self.value:9.2f} {self.unit}"
        promise = f"at least {self.at_least:g}" if self.at_most is None else f"at most {self.at_most:g}"
        verdict = "holds" if self.holds else "FAILS"
        return f"{self.what:48} {self.value:9.2f} {self.unit}   ({promise}: {verdict})"


def bare(code: str) -> None:
    """A script in a file, run and waited for."""
    _plain(code, None)


def limited(code: str) -> None:
    """The same in a process group of its own, with limits set between fork and exec."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (8 * GIB, 8 * GIB))
        resource.setrlimit(resource.RLIMIT_CPU, (600, 600))
        os.setpgrp()

    _plain(code, limit)


def _plain(code: str, prepare: Callable[[], None] | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "solution.py")
        script.write_text(code)
        subprocess.run(
            [sys.executable, script],
            cwd=folder,
            env=os.environ | ONE_THREAD,
            capture_output=True,
            check=True,
            preexec_fn=prepare,
        )


def delete(result: Result) -> Result:
    """Throw the submission away."""
    assert result.status == "ok", result
    if result.submission_path is not None:
        result.submission_path.unlink()
    return result


def milliseconds(ways: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median wall time of each way, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, call in ways.items():
            times[name].append(1000 * seconds(call))
    return {name: statistics.median(values) for name, values in times.items()}


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def added_time(sandboxes: Mapping[str, Sandbox], data_dir: Path, repeats: int) -> list[Check]:
    """Wall time of an empty script, beyond that of a bare one."""
    ways: dict[str, Callable[[], object]] = {"bare": lambda: bare(""), "limited": lambda: limited("")}
    for name, sandbox in sandboxes.items():
        ways[name] = partial(sandbox.run, Job("", data_dir))
    medians = milliseconds(ways, repeats)
    added = [
        Check(f"an empty script, {name}: added", value - medians["bare"], "ms", ADDED_MS.get(name))
        for name, value in medians.items()
        if name != "bare"
    ]
    return [Check("an empty script, bare", medians["bare"], "ms"), *added]


def throughput(sandboxes: Mapping[str, Sandbox], data_dir: Path, jobs: int) -> list[Check]:
    """Fits per second, as a multiple of what bare processes reach with as many at once."""
    cores = len(os.sched_getaffinity(0))
    codes = [FIT.format(c=1 + number) for number in range(jobs)]
    total = dict.fromkeys(("bare", "limited", *sandboxes), 0.0)
    with ThreadPoolExecutor(cores) as threads:
        for batch in (codes[start::BATCHES] for start in range(BATCHES)):
            for way in (bare, limited):
                total[way.__name__] += seconds(partial(run_all, threads, way, batch))
            for name, sandbox in sandboxes.items():
                total[name] += pooled(sandbox, batch, data_dir, cores)
    about = f"{jobs} small fits, {cores} at once"
    return [Check(f"{about}, bare", total["bare"], "s")] + [
        Check(
            f"{about}, {name}: throughput",
            total["bare"] / value,
            "of bare",
            at_least=THROUGHPUT if name == "bubblewrap" else None,
        )
        for name, value in total.items()
        if name != "bare"
    ]


def run_all(threads: ThreadPoolExecutor, way: Callable[[str], None], codes: Sequence[str]) -> None:
    """Run scripts and wait for them."""
    list(threads.map(way, codes))


def pooled(sandbox: Sandbox, codes: Sequence[str], data_dir: Path, workers: int) -> float:
    """Wall time of scripts in a pool."""
    with SandboxPool(sandbox, workers) as pool:
        jobs = [Job(code, data_dir) for code in codes]
        return seconds(lambda: [delete(result) for result in pool.map(jobs)])


def cache_hit(sandbox: Sandbox, data_dir: Path, repeats: int) -> Check:
    """Time to find a stored result and have its submission as a file again."""
    with tempfile.TemporaryDirectory() as folder:
        cache = ExecutionCache(Path(folder, "cache.sqlite"))
        job = Job(FIT.format(c=1), data_dir)
        result = sandbox.run(job)
        cache.store(ExecutionCache.key(job, sandbox.fingerprint), result)
        delete(result)

        def hit() -> None:
            found = cache.load(ExecutionCache.key(job, sandbox.fingerprint))
            assert found is not None
            delete(found)

        return Check("a hit in the cache", milliseconds({"hit": hit}, repeats)["hit"], "ms", HIT_MS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=64, help="scripts in the measurement of throughput")
    parser.add_argument(
        "--repeats", type=int, default=40, help="runs per way in the measurement of added time"
    )
    parser.add_argument("--docker", metavar="IMAGE", help="measure Docker's sandbox with this image, too")
    parser.add_argument("--quick", action="store_true", help="little of everything: to see that it works")
    args = parser.parse_args(arguments)
    jobs, repeats = (BATCHES, 3) if args.quick else (args.jobs, args.repeats)
    data_dir = load_competition("breast-cancer").public_dir
    limits = Limits(timeout_s=600)
    sandboxes = {"bubblewrap": make_sandbox("bubblewrap", limits)}
    if args.docker is not None:
        sandboxes["Docker"] = make_sandbox("docker", limits, image=args.docker)
    checks = []
    for measure in (
        lambda: added_time(sandboxes, data_dir, repeats),
        lambda: throughput(sandboxes, data_dir, jobs),
        lambda: [cache_hit(sandboxes["bubblewrap"], data_dir, 5 * repeats)],
    ):
        for check in measure():
            print(check, flush=True)
            checks.append(check)
    return int(not all(check.holds for check in checks))


if __name__ == "__main__":
    sys.exit(main())
