"""What the sandbox costs: added time per job, throughput of real jobs, and a hit in the cache.

Compared in one run, in turns, so that a busy machine disturbs all alike: bare ``python script.py``, a plain
subprocess with resource limits (what systems without isolation use), and bubblewrap.

    python benchmarks/sandbox.py [--jobs 64] [--repeats 40]
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
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from wmrl_envs.autoresearch import load_competition
from wmrl_envs.sandbox import BubblewrapSandbox, ExecutionCache, Job, Limits, Result, SandboxPool

FIT = """
import numpy as np
from sklearn.linear_model import LogisticRegression
x = np.random.rand(400, 10)
LogisticRegression(C={c}).fit(x, x[:, 0] > .5)
open("submission.csv", "w").write("id,target\\n")
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def bare(code: str) -> None:
    """A script in a file, run and waited for."""
    _plain(code, None)


def limited(code: str) -> None:
    """The same with limits set between fork and exec."""
    _plain(code, lambda: resource.setrlimit(resource.RLIMIT_CPU, (60, 60)))


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
            started = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - started)
    return {name: 1000 * statistics.median(values) for name, values in times.items()}


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=64, help="scripts in the measurement of throughput")
    parser.add_argument(
        "--repeats", type=int, default=40, help="runs per way in the measurement of added time"
    )
    args = parser.parse_args()
    data_dir = load_competition("breast-cancer").public_dir
    sandbox = BubblewrapSandbox(Limits(timeout_s=600))
    cores = len(os.sched_getaffinity(0))

    ways = {
        "bare": lambda: bare(""),
        "limited": lambda: limited(""),
        "bubblewrap": lambda: sandbox.run(Job("", data_dir)),
    }
    medians = milliseconds(ways, args.repeats)
    for name, value in medians.items():
        print(f"an empty script, {name:10}  {value:7.1f} ms   added {value - medians['bare']:5.1f} ms")

    codes = [FIT.format(c=1 + number) for number in range(args.jobs)]
    with ThreadPoolExecutor(cores) as threads:
        plain = seconds(lambda: list(threads.map(bare, codes)))
    with SandboxPool(sandbox) as pool:
        isolated = seconds(
            lambda: [delete(result) for result in pool.map(Job(code, data_dir) for code in codes)]
        )
    print(
        f"{args.jobs} small fits, {cores} at once: bare {plain:.1f} s, bubblewrap {isolated:.1f} s, "
        f"throughput {plain / isolated:.2f}x"
    )

    with tempfile.TemporaryDirectory() as folder:
        cache = ExecutionCache(Path(folder, "cache.sqlite"))
        job = Job(codes[0], data_dir)
        cache.store(ExecutionCache.key(job, sandbox.fingerprint), sandbox.run(job))

        def hit() -> None:
            found = cache.load(ExecutionCache.key(job, sandbox.fingerprint))
            assert found is not None
            delete(found)

        print(f"a hit in the cache        {milliseconds({'hit': hit}, 200)['hit']:7.2f} ms")


if __name__ == "__main__":
    main()
