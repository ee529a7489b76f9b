"""A run that grades for real and is killed at random: ``python -m tests.wmrl_agents.killed_grader ...``.

Each start is a process of its own. It counts the calls that its threads make, of Python or of C, and gets
SIGKILL at one of them: in the middle of a start, of an execution, of a transaction, of a checkpoint. The next
start goes on with the same run. Prints a JSON object: how each start ended, what it left behind, what is left
at last.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import threading
import zlib
from pathlib import Path

from tests.processes import marked, wait_until
from tests.stubs import TabularPolicy, program_tokens
from wmrl_agents.grpo.checkpoint import latest_checkpoint
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.parts import Parts
from wmrl_agents.grpo.trainer import GRPOTrainer
from wmrl_agents.runs import EXECUTIONS
from wmrl_envs.autoresearch.sandbox_evaluator import SandboxEvaluator
from wmrl_envs.sandbox import BubblewrapSandbox, ExecutionCache, Limits, UnsafeSandbox

CONFIG = GRPOConfig(
    competitions=("breast-cancer",),
    reward_source="real",
    steps=500,
    groups_per_step=2,
    group_size=2,
    max_turns=1,
    kl_coefficient=0.0,
    entropy_coefficient=0.0,
    seed=3,
)
SANDBOXES = {"bubblewrap": BubblewrapSandbox, "unsafe": UnsafeSandbox}
STEPS = 3  # that a start makes at most before it is killed
REPEATS = 1000
PROGRAM = """
import subprocess
tokens = {tokens}
subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
open("submission.csv", "w").write(str(tokens) * {repeats})
print(len(tokens))
"""


class Submitting(TabularPolicy):
    """Writes programs that leave a process and a submission behind."""

    def _reply(self, prompt, probabilities, generator):
        sample = super()._reply(prompt, probabilities, generator)
        _, fence, code = sample.text.partition("```python\n")
        if not fence:
            return sample
        program = PROGRAM.format(tokens=program_tokens(code.removesuffix("\n```")), repeats=REPEATS)
        return dataclasses.replace(sample, text=f"```python{program}```")


class Marked:
    """A sandbox whose jobs carry a mark in their environment."""

    def __init__(self, sandbox, mark):
        self.inner, self.mark = sandbox, mark
        self.limits, self.fingerprint = sandbox.limits, sandbox.fingerprint

    def run(self, job, cancel=None):
        return self.inner.run(dataclasses.replace(job, env={"MARK": self.mark}), cancel)


def train(run_dir, kind, mark, steps):
    """Start, or go on, and train until so many steps are done."""
    sandbox = Marked(SANDBOXES[kind](Limits(timeout_s=600)), mark)
    cache = ExecutionCache(run_dir.parent / EXECUTIONS)
    executor = SandboxEvaluator(sandbox, cache=cache, workers=4, recheck_fraction=0.25)
    parts = Parts(Submitting.load, executor)
    with contextlib.closing(GRPOTrainer(CONFIG.replace(steps=steps), run_dir, parts)) as trainer:
        trainer.train()


class Bomb:
    """Counts the calls of all threads; from the chosen one on the process is dead.

    Args:
        call: Which one; None for none.
    """

    def __init__(self, call):
        self.calls, self.call = 0, float("inf") if call is None else call
        threading.setprofile(self.count)
        sys.setprofile(self.count)

    def count(self, frame, event, argument):
        self.calls += event in ("call", "c_call")
        if self.calls >= self.call:
            os.kill(os.getpid(), signal.SIGKILL)


def start(call, *arguments):
    """One start in a process of its own, killed at this call.

    Returns its number, the signal that ended it, and what it says of itself if none did.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        bomb = Bomb(call)
        train(*arguments)
        sys.setprofile(None)
        with open(write, "w") as pipe:
            json.dump({"calls": bomb.calls, "modules": list(sys.modules)}, pipe)
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return child, os.WTERMSIG(status) if os.WIFSIGNALED(status) else None, json.loads(said or "{}")


def left_by(processes):
    """Temporary folders, and control groups of these processes."""
    # Those of other runs come and go meanwhile, which `os.walk` bears.
    everything = [name for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders]
    groups = [name for pid in processes for name in everything if name.startswith(f"wmrl-{pid}-")]
    names = [path.name for path in Path(tempfile.gettempdir()).iterdir()]
    folders = [name for name in names if not name.startswith("torchinductor")]  # not ours
    return {"folders": len(folders), "groups": len(groups)}


def check_stores(run_dir):
    """Every row is whole, whenever its writer was killed; returns the number of executions and of steps."""
    rows = {}
    for path, table, query in (
        (run_dir.parent / EXECUTIONS, "executions", "SELECT result, submission FROM executions"),
        (run_dir / "run.sqlite", "trajectories", "SELECT step, COUNT(*) FROM trajectories GROUP BY step"),
    ):
        with contextlib.closing(sqlite3.connect(path, timeout=60)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",), path
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
            rows[path.name] = connection.execute(query).fetchall() if table in tables else []
    for text, submission in rows[EXECUTIONS]:
        result, content = json.loads(text), zlib.decompress(submission).decode()
        tokens = content[: len(content) // REPEATS]
        assert content == tokens * REPEATS
        assert result["stdout"] == f"{len(json.loads(tokens))}\n"
    size = CONFIG.groups_per_step * CONFIG.group_size
    assert all(count == size for _, count in rows["run.sqlite"])
    return len(rows[EXECUTIONS]), len(rows["run.sqlite"])


def moments(kills, last):
    """One random moment in each of so many equal parts of a start, in random order."""
    draw = random.Random(7)
    chosen = [1 + int((number + draw.random()) * last / kills) for number in range(kills)]
    draw.shuffle(chosen)
    return chosen


def main(folder, kind, kills):
    """Kill as many starts as asked for, then let one come to its end."""
    mark, killed, log = f"killed-{os.getpid()}", [], []
    _, _, first = start(None, folder / "first/run", kind, mark, STEPS)
    for module in first["modules"]:  # so that the moments lie in a start's own work, not in its imports
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    _, _, measured = start(None, folder / "measured/run", kind, mark, STEPS)
    run_dir = folder / "killed/run"
    run_dir.mkdir(parents=True)
    for moment in moments(kills, measured["calls"]):
        pid, ended, _ = start(moment, run_dir, kind, mark, CONFIG.steps)
        killed.append(pid)
        alive = len(marked(mark))
        if kind == "bubblewrap":
            wait_until(lambda: not marked(mark))
        executions, steps = check_stores(run_dir)
        about = {"signal": ended, "alive": alive, "executions": executions, "steps": steps}
        log.append({**about, **left_by(killed)})
    done = latest_checkpoint(run_dir)
    steps = 1 if done is None else done.step + 1
    pid, *_ = start(None, run_dir, kind, mark, steps)
    start(None, folder / "killed/undisturbed", kind, mark, steps)
    SANDBOXES[kind]()  # the next start
    wait_until(lambda: not marked(mark))
    print(json.dumps({"log": log, "steps": steps, "left": left_by([*killed, pid])}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
