"""`kill -9` of the process that grades, at random moments: nothing of it is left after the next start."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wmrl_agents.test_resume import outcome

ROOT = Path(__file__).parents[2]


def killed(folder, kind, kills):
    temporary = folder / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "tests.wmrl_agents.killed_grader", str(folder), kind, str(kills)]
    environment = os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.parametrize("kind", ["bubblewrap", "unsafe"])
def test_kill_9_leaves_nothing_behind(tmp_path, kind):
    said = killed(tmp_path, kind, 50 if kind == "bubblewrap" else 8)
    log = said["log"]
    assert [start["signal"] for start in log] == [signal.SIGKILL] * len(log)
    # The moments lie where something can be left: this test would notice if nobody cleared up.
    assert max(start["folders"] for start in log) > 0
    assert log[-1]["executions"] > log[0]["executions"]
    assert said["left"] == {"folders": 0, "groups": 0}
    resumed, undisturbed = (outcome(tmp_path / "killed" / name) for name in ("run", "undisturbed"))
    assert resumed["step"] == said["steps"] == undisturbed["step"]
    assert resumed == undisturbed
