"""The conformance suite: every attack of tests/attacks.py against every sandbox."""

import os
import platform
import socket
import tempfile
import threading
import time
import uuid
from pathlib import Path

import pytest

from tests.attack_table import expected, meant_for, record
from tests.attacks import ATTACKS, Attack
from tests.processes import cgroups_of, marked
from wmrl_envs.sandbox import BubblewrapSandbox, Job, Limits, Result, UnsafeSandbox, bubblewrap
from wmrl_envs.sandbox.guards import WatcherGuards, find_guards

ANSWERS = Path(__file__).parents[2] / "wmrl_envs/autoresearch/data/breast-cancer/private/answers.csv"


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Things outside of the sandbox that are worth attacking; none of the servers may be reached."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret").write_text("secret")
    names = {
        "answers": ANSWERS,
        "secret": folder / "secret",
        "home": Path.home(),
        "socket": folder / "socket",
        "abstract": f"wmrl-{uuid.uuid4().hex}",
    }
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        unix.bind(str(names["socket"]))
        abstract.bind("\0" + names["abstract"])
        for server in (unix, abstract):
            server.listen()
        yield names | {"port": tcp.getsockname()[1]}
        for server in (tcp, unix, abstract):
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()


def make_data(folder: Path) -> Path:
    public, private = folder / "competition/public", folder / "competition/private"
    for half in (public, private):
        half.mkdir(parents=True)
    (public / "train.csv").write_text("id,target\n0,1\n")
    (private / "answers.csv").write_text("id,target\n1,1\n")
    return public


@pytest.fixture
def data_dir(tmp_path):
    return make_data(tmp_path)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files go during the test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def run(sandbox, attack: Attack, places, data_dir, mark: str | None = None) -> Result:
    mark = mark or uuid.uuid4().hex
    result = sandbox.run(Job(attack.program(places), data_dir, env={"MARK": mark}))
    deadline = time.monotonic() + 5  # a killed process takes a moment to be gone
    pause = threading.Event()
    while (left := marked(mark)) and time.monotonic() < deadline:
        pause.wait(0.01)
    assert left == []
    return result


def fate(result: Result) -> tuple[str, str]:
    if result.submission_path is not None:
        result.submission_path.unlink()
        return result.status, "submitted"
    return result.status, result.submission_error or ""


def check(result: Result, attack: Attack, back_end: str, version: str) -> None:
    end = ("pwned", "") if "PWNED" in result.stdout else fate(result)
    record(back_end, attack, end, version)
    assert end == expected(back_end, attack), result
    assert len(result.stdout) + len(result.stderr) < 3 * attack.limits.output_bytes
    assert not set("\x1b\x9b\0\x07") & set(result.stdout + result.stderr)
    assert result.seconds < attack.limits.timeout_s + 1


def nothing_is_left_in(temporary: Path) -> bool:
    return [path.name for path in temporary.glob("*/*")] in ([], ["lock"])


def withstand(sandbox: BubblewrapSandbox, attack: Attack, places, data_dir, temporary) -> None:
    result = run(sandbox, attack, places, data_dir)
    back_end = "watcher" if sandbox.memory_limiter == "watcher" else "bubblewrap"
    check(result, attack, back_end, f"bubblewrap {sandbox.version}, {sandbox.memory_limiter}")
    assert nothing_is_left_in(temporary)
    assert (data_dir / "train.csv").read_text() == "id,target\n0,1\n"


@pytest.mark.sandbox
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_bubblewrap_withstands(attack, places, data_dir, temporary):
    withstand(BubblewrapSandbox(attack.limits), attack, places, data_dir, temporary)
    assert cgroups_of(os.getpid()) == []


@pytest.mark.sandbox
@pytest.mark.skipif(isinstance(find_guards(), WatcherGuards), reason="all attacks have met a watcher already")
@pytest.mark.parametrize("attack", meant_for("watcher"), ids=lambda attack: attack.name)
def test_a_watcher_withstands(attack, places, data_dir, temporary, monkeypatch):
    monkeypatch.setattr(bubblewrap, "find_guards", WatcherGuards)
    withstand(BubblewrapSandbox(attack.limits), attack, places, data_dir, temporary)


@pytest.mark.parametrize("attack", meant_for("unsafe"), ids=lambda attack: attack.name)
def test_a_plain_subprocess_withstands(attack, places, data_dir, temporary):
    result = run(UnsafeSandbox(attack.limits), attack, places, data_dir)
    check(result, attack, "unsafe", f"Python {platform.python_version()}")
    assert nothing_is_left_in(temporary)


def test_every_attack_has_a_name_of_its_own():
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 45


def test_the_suite_notices_a_success(places, data_dir, temporary):
    """The same attacks that fail in bubblewrap succeed where nothing isolates: the suite is not blind."""
    by_name = {attack.name: attack for attack in ATTACKS}
    for name in (
        "answers by their own path",
        "TCP to a port of the host",
        "a file in the grader's temporary folder",
    ):
        with socket.create_server(("127.0.0.1", 0)) as open_port:
            here = places | {"port": open_port.getsockname()[1]}
            result = UnsafeSandbox(Limits(timeout_s=20)).run(Job(by_name[name].program(here), data_dir))
        assert "PWNED" in result.stdout
