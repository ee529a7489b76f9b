"""What the sandbox costs: added time per job, throughput of real jobs, and a hit in the cache.

Compared in one run, in turns, so that a busy machine disturbs all alike: bare ``python script.py``, a plain
subprocess with resource limits (what systems without isolation use), bubblewrap, and Docker if asked for.

    python benchmarks/sandbox.py [--jobs 64] [--repeats 40] [--docker wmrl-solution]

Where no engine runs, ``.ci/docker python benchmarks/sandbox.py --docker wmrl-solution`` starts one.
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


def added_time(sandboxes: Mapping[str, Sandbox], data_dir: Path, repeats: int) -> None:
    """Print what each way of running an empty script takes beyond a bare one."""

    def isolated(sandbox: Sandbox) -> Callable[[], object]:
        return lambda: delete(sandbox.run(Job("", data_dir)))

    ways: dict[str, Callable[[], object]] = {"bare": lambda: bare(""), "limited": lambda: limited("")}
    ways |= {name: isolated(sandbox) for name, sandbox in sandboxes.items()}
    medians = milliseconds(ways, repeats)
    for name, value in medians.items():
        print(f"an empty script, {name:10}  {value:7.1f} ms   added {value - medians['bare']:6.1f} ms")


def fit_all(sandbox: Sandbox, data_dir: Path, codes: Sequence[str]) -> None:
    """Run all programs in a sandbox."""
    with SandboxPool(sandbox) as pool:
        for result in pool.map(Job(code, data_dir) for code in codes):
            delete(result)


def throughput(sandboxes: Mapping[str, Sandbox], data_dir: Path, jobs: int) -> None:
    """Print how long many small fits take, as many at once as there are cores."""
    codes = [FIT.format(c=1 + number) for number in range(jobs)]
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as threads:
        plain = seconds(lambda: list(threads.map(bare, codes)))
    print(f"{jobs} small fits, {cores} at once, {'bare':10}  {plain:6.1f} s")
    for name, sandbox in sandboxes.items():
        found = seconds(partial(fit_all, sandbox, data_dir, codes))
        print(
            f"{jobs} small fits, {cores} at once, {name:10}  {found:6.1f} s   throughput {plain / found:.2f}x"
        )


def cache_hit(sandbox: Sandbox, data_dir: Path) -> None:
    """Print what a stored result takes."""
    with tempfile.TemporaryDirectory() as folder:
        cache = ExecutionCache(Path(folder, "cache.sqlite"))
        job = Job(FIT.format(c=1), data_dir)
        cache.store(ExecutionCache.key(job, sandbox.fingerprint), sandbox.run(job))

        def hit() -> None:
            found = cache.load(ExecutionCache.key(job, sandbox.fingerprint))
            assert found is not None
            delete(found)

        print(f"a hit in the cache           {milliseconds({'hit': hit}, 200)['hit']:7.2f} ms")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=64, help="scripts in the measurement of throughput")
    parser.add_argument(
        "--repeats", type=int, default=40, help="runs per way in the measurement of added time"
    )
    parser.add_argument("--docker", metavar="IMAGE", help="measure Docker too, with this image")
    args = parser.parse_args()
    data_dir = load_competition("breast-cancer").public_dir
    limits = Limits(timeout_s=600)
    sandboxes = {"bubblewrap": make_sandbox("bubblewrap", limits)}
    if args.docker is not None:
        sandboxes["docker"] = make_sandbox("docker", limits, image=args.docker)
    added_time(sandboxes, data_dir, args.repeats)
    throughput(sandboxes, data_dir, args.jobs)
    cache_hit(sandboxes["bubblewrap"], data_dir)


if __name__ == "__main__":
    main()
