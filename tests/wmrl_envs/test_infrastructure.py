"""Machines that really fail: full disks, refused control groups. It is never the solution's fault."""

import dataclasses
import os
import re
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from tests.processes import marked, wait_until
from tests.wmrl_envs.test_sandbox_evaluator import GOOD
from wmrl_envs.autoresearch.sandbox_evaluator import SandboxEvaluator
from wmrl_envs.evaluation import Solution
from wmrl_envs.sandbox import (
    BubblewrapSandbox,
    ExecutionCache,
    Job,
    SandboxPool,
    UnsafeSandbox,
    cgroup,
    scratch,
)
from wmrl_envs.sandbox.cgroup import Cgroup, CgroupGuards
from wmrl_envs.sandbox.guards import find_guards
from wmrl_envs.sandbox.job import Limits
from wmrl_envs.sandbox.owner import this_process

root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
grouped = pytest.mark.skipif(
    not isinstance(find_guards(), CgroupGuards), reason="there are no control groups to be had"
)
both = pytest.mark.parametrize(
    "kind", [pytest.param(BubblewrapSandbox, marks=pytest.mark.sandbox), UnsafeSandbox]
)
ROOT = Path(__file__).parents[2]
SUBMIT = "open('submission.csv', 'w').write('id,target\\n' + '1,0\\n' * 100_000)"


@pytest.fixture
def data_dir(tmp_path):
    folder = tmp_path / "public"
    folder.mkdir()
    return folder


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=755", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def temporary(small_disk, monkeypatch):
    """The same, as the place for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    scratch._scratch_folder.cache_clear()
    yield small_disk
    scratch._scratch_folder.cache_clear()


def fill(folder):
    """Leave no room at all."""
    with (folder / "filling").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return


@root
@both
def test_a_submission_that_finds_no_room_is_tried_again_when_there_is_some(kind, temporary, data_dir):
    pauses = []

    def pause(seconds):
        """While the pool waits, somebody makes room."""
        pauses.append(seconds)
        subprocess.run(["mount", "-o", "remount,size=8m", temporary], check=True)

    job = Job(SUBMIT, data_dir)
    sandbox = kind()
    failed = sandbox.run(job)
    assert (failed.status, failed.submission_path) == ("infrastructure", None)
    assert re.search("No space left|The disk of .* is full", failed.message)
    assert [path for path in temporary.rglob("submission-*") if path.is_file()] == []
    with SandboxPool(sandbox, workers=1, pause=pause) as pool:
        [result] = pool.map([job])
    assert (result.status, pauses) == ("ok", [0.5])
    assert result.submission_path.stat().st_size == 400_010


@root
@both
def test_a_job_that_cannot_even_begin_is_no_error_either(kind, temporary, data_dir):
    sandbox = kind()
    fill(temporary)
    result = sandbox.run(Job(SUBMIT, data_dir))
    assert result.status == "infrastructure"
    assert "No space left" in result.message


@root
@pytest.mark.sandbox
def test_a_cache_without_room_costs_no_scores(small_disk):
    with SandboxEvaluator(
        BubblewrapSandbox(), cache=ExecutionCache(small_disk / "cache.sqlite")
    ) as evaluator:
        fill(small_disk)
        with pytest.warns(RuntimeWarning, match=r"cache\.sqlite cannot be used: .*full"):
            [evaluation] = evaluator.evaluate([Solution("breast-cancer", GOOD)])
    assert evaluation.status == "ok"
    assert evaluation.score is not None


@grouped
@pytest.mark.sandbox
@pytest.mark.parametrize("file", ["pids.max", "memory.limit_in_bytes", "memory.max"])
def test_a_limit_that_the_kernel_refuses_is_the_machines_fault(file, monkeypatch, data_dir):
    sandbox = BubblewrapSandbox()
    guards = find_guards()
    with closing(guards.new(Limits())) as group:
        if group._find(file) is None:
            pytest.skip(f"this kernel has no {file}")
    refused = dataclasses.replace(guards.layout, settings=lambda limits: {file: "nonsense"})
    monkeypatch.setattr(sandbox, "_guards", Refusing(refused))
    result = sandbox.run(Job("print(1)", data_dir))
    assert result.status == "infrastructure"
    assert "could not be started" in result.message
    assert own_groups(guards.layout) == []


@grouped
@pytest.mark.sandbox
def test_control_groups_that_are_gone_are_the_machines_fault_and_leave_none_behind(monkeypatch, data_dir):
    sandbox = BubblewrapSandbox()
    layout = find_guards().layout
    gone = dataclasses.replace(layout, parents=(layout.parents[0], data_dir / "gone"))
    monkeypatch.setattr(sandbox, "_guards", Refusing(gone))
    assert sandbox.run(Job("print(1)", data_dir)).status == "infrastructure"
    assert own_groups(layout) == []


@grouped
def test_the_next_start_ends_what_an_owner_left_in_its_group(monkeypatch):
    """A process in a group whose owner is no more: it is killed, then the group is removed."""
    guards = find_guards()
    pid, began, namespace = this_process().split("-")
    earlier = f"{pid}-{int(began) - 1}-{namespace}"  # one that had our number before us
    elsewhere = f"{pid}-{int(began) - 1}-{int(namespace) + 1}"
    monkeypatch.setattr(cgroup, "this_process", lambda: earlier)
    abandoned = Cgroup(guards.layout, Limits())
    monkeypatch.setattr(cgroup, "this_process", lambda: elsewhere)
    group = Cgroup(guards.layout, Limits())
    process = subprocess.Popen([*abandoned.prefix, "sleep", "600"])
    wait_until(lambda: all((path / "cgroup.procs").read_text() for path in abandoned._folders))
    monkeypatch.undo()
    CgroupGuards(guards.layout)
    assert process.wait(timeout=60) == -9
    assert own_groups(guards.layout) == [str(folder) for folder in group._folders]
    group.close()
    assert own_groups(guards.layout) == []


def test_an_unsafe_job_of_an_owner_that_was_killed_is_ended_by_the_next_start(tmp_path):
    script = (
        "from pathlib import Path\nfrom wmrl_envs.sandbox import Job, UnsafeSandbox\n"
        "code = 'import time\\ntime.sleep(600)'\n"
        "UnsafeSandbox().run(Job(code, Path('.'), {'MARK': '%s'}))\n"
    )
    mark = f"abandoned-{os.getpid()}"
    command = [sys.executable, "-c", script % mark]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)}) as owner:
        wait_until(lambda: any("runner.py" in line for line in marked(mark)))
        UnsafeSandbox()
        assert marked(mark)  # its owner lives
        owner.kill()
    assert marked(mark)
    UnsafeSandbox()
    wait_until(lambda: not marked(mark))


class Refusing:
    """Makes groups of a layout that was not tried out before."""

    name = "refusing"

    def __init__(self, layout):
        self.layout = layout

    def new(self, limits):
        return Cgroup(self.layout, limits)


def own_groups(layout):
    return [str(path) for parent in layout.parents for path in parent.glob(f"wmrl-{os.getpid()}-*")]
