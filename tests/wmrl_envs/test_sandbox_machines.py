"""Where the machine fails, answers that lie inside of what is visible, other rights and other machines."""

import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.attack_table import SWITCH
from tests.sandboxes import both, show
from wmrl_envs.errors import SandboxError
from wmrl_envs.sandbox import BubblewrapSandbox, Job, Limits, UnsafeSandbox
from wmrl_envs.sandbox import bubblewrap as bubblewrap_module
from wmrl_envs.sandbox.cgroup import CgroupGuards, find_layouts
from wmrl_envs.sandbox.guards import Watcher, WatcherGuards, find_guards
from wmrl_envs.sandbox.seccomp import DENIED, assemble_filter

REPOSITORY = Path(__file__).parents[2]


# --- where the machine fails --------------------------------------------------------------------------------


def fake_bubblewrap(folder: Path, version: str, script: str) -> str:
    program = folder / "bwrap"
    program.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo {version}; exit; fi\n{script}\n')
    program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_without_bubblewrap_one_sentence_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        BubblewrapSandbox()


def test_an_old_bubblewrap_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", fake_bubblewrap(tmp_path, "bubblewrap 0.4.1", "exit 1"))
    with pytest.raises(SandboxError, match=r"too old.*0\.5"):
        BubblewrapSandbox()


def test_a_bubblewrap_that_cannot_isolate_is_refused_at_once(monkeypatch, tmp_path):
    said = "bwrap: No permissions to create new namespace"
    monkeypatch.setenv("PATH", fake_bubblewrap(tmp_path, "bubblewrap 0.9.0", f"echo '{said}' >&2; exit 1"))
    with pytest.raises(SandboxError, match=r"cannot isolate here.*No permissions to create new namespace"):
        BubblewrapSandbox()


def test_an_interpreter_that_does_not_start_is_named(tmp_path):
    with pytest.raises(SandboxError, match="no-python does not start"):
        UnsafeSandbox(python=tmp_path / "no-python")


def test_an_interpreter_that_would_lay_the_machine_open_is_refused(tmp_path):
    python = tmp_path / "python"
    python.write_text("""#!/bin/sh\necho '["/", "/", "3.11", []]'\n""")
    python.chmod(0o755)
    with pytest.raises(SandboxError, match="takes / for its home"):
        UnsafeSandbox(python=python)


@pytest.mark.sandbox
def test_a_machine_that_breaks_later_is_not_the_programs_fault(monkeypatch, tmp_path, data_dir):
    sandbox = BubblewrapSandbox()
    broken = bubblewrap_module._Bubblewrap(str(tmp_path / "gone"), (0, 8))
    monkeypatch.setattr(sandbox, "_bubblewrap", broken)
    result = sandbox.run(Job("print(1)", data_dir))
    assert result.status == "infrastructure"
    assert "could not be" in result.message


@both
def test_a_full_disk_is_not_the_programs_fault(kind, monkeypatch, tmp_path, data_dir):
    sandbox = kind()
    code = "open('submission.csv', 'w').write('id,target\\n')"
    monkeypatch.setattr(tempfile, "mkstemp", _full)
    result = sandbox.run(Job(code, data_dir))
    assert (result.status, result.submission_path) == ("infrastructure", None)
    assert "No space left" in result.message


def _full(*args, **kwargs):
    raise OSError(28, "No space left on device")


@pytest.mark.sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have data that solutions cannot read")
def test_data_that_solutions_cannot_read_is_said_to_be_so(data_dir):
    (data_dir / "train.csv").chmod(0o600)
    with pytest.raises(SandboxError, match=r"could not read .*train\.csv.*chmod"):
        BubblewrapSandbox().run(Job("", data_dir))


# --- answers that lie inside of what is visible -------------------------------------------------------------


@pytest.mark.sandbox
def test_the_package_and_its_answers_are_hidden_in_an_ordinary_installation(tmp_path, data_dir):
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    [site_packages] = environment.glob("lib/python*/site-packages")
    installed = site_packages / "wmrl_envs"
    shutil.copytree(REPOSITORY / "wmrl_envs/autoresearch/data", installed / "autoresearch/data")
    (installed / "__init__.py").write_text("")
    (site_packages / "other.py").write_text("visible = True\n")
    code = (
        "import os, other\n"
        "assert other.visible\n"
        f"print(os.path.isdir({str(installed)!r}))\n"
        f"for folder, _, files in os.walk({str(environment)!r}):\n"
        "    if 'answers.csv' in files or 'competition.yaml' in files:\n        print('PWNED')\n"
    )
    sandbox = BubblewrapSandbox(python=environment / "bin/python")
    assert sandbox.run(Job(code, data_dir)).stdout == "True\n"
    public = installed / "autoresearch/data/digits/public"
    assert "sample" in sandbox.run(Job("import os\nprint(os.listdir('/data'))", public)).stdout


@pytest.mark.sandbox
def test_answers_beside_the_data_are_hidden_inside_the_interpreters_folder(tmp_path):
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    public, private = environment / "share/task/public", environment / "share/task/private"
    for folder in (public, private):
        folder.mkdir(parents=True)
        (folder / "table.csv").write_text("1")
    code = f"import os\nprint(os.listdir({str(public)!r}))\nos.listdir({str(private)!r})"
    result = BubblewrapSandbox(python=environment / "bin/python").run(Job(code, public))
    assert result.stdout == "['table.csv']\n"
    assert (private / "table.csv").exists()
    assert "PermissionError" in result.stderr


# --- other rights, other machines ---------------------------------------------------------------------------


def as_ordinary_user(command: list[str], home: Path) -> list[str]:
    """A command as somebody without rights, in a mount namespace where the way to it is open to everybody."""
    needed = [Path(sys.prefix), Path(sys.base_prefix), REPOSITORY, home]
    closed = [[p for p in reversed(path.parents) if p.stat().st_mode & 0o001 == 0] for path in needed]
    hidden = [
        (str(path), str(barriers[0])) for path, barriers in zip(needed, closed, strict=True) if barriers
    ]
    script = ["set -e", "mount -t tmpfs tmpfs /mnt"]
    for number, (path, _) in enumerate(hidden):
        script.append(f"mkdir /mnt/{number}; mount --bind {shlex.quote(path)} /mnt/{number}")
    for barrier in sorted({barrier for _, barrier in hidden}):
        script.append(f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(barrier)}")
    for number, (path, _) in enumerate(hidden):
        script.append(f"mkdir -p {shlex.quote(path)}; mount --bind /mnt/{number} {shlex.quote(path)}")
    become = [
        "setpriv",
        "--reuid=1234",
        "--regid=1234",
        "--clear-groups",
        "env",
        f"--unset={SWITCH}",
        f"HOME={home}",
        f"TMPDIR={home}",
    ]
    return ["unshare", "--mount", "sh", "-c", "\n".join([*script, 'exec "$@"']), "sh", *become, *command]


@pytest.mark.sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite runs as an ordinary user here")
def test_an_ordinary_user_is_as_well_protected(tmp_path):
    """User namespaces instead of root's rights, a watcher instead of control groups."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 1234, 1234)
    chosen = "their or shadow or becoming or bomb or memory or namespace or enter or hangs"
    suite = ["tests/wmrl_envs/test_sandbox_attacks.py", "-k", f"bubblewrap and ({chosen})"]
    suite += [f"--basetemp={home}/t"]  # short: names of UNIX sockets end at 107 bytes
    command = [sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider", *suite]
    run = subprocess.run(
        as_ordinary_user(command, home), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "passed" in run.stdout


@pytest.mark.sandbox
@pytest.mark.skipif(not isinstance(find_guards(), CgroupGuards), reason="only control groups can do this")
def test_a_job_has_no_more_than_its_share_of_the_processors(data_dir):
    """Four processes that only count get no more than one of them would, as long as they like."""
    code = (
        "import os, resource, time\nbegan = time.monotonic()\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        while time.monotonic() < began + 1:\n            pass\n"
        "        os._exit(0)\n"
        "for _ in range(4):\n    os.wait()\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_utime + used.ru_stime, time.monotonic() - began)\n"
    )
    used, wall = map(float, show(BubblewrapSandbox, code, data_dir, cpus=1).split())
    assert used < wall + 0.3


def test_the_filter_is_whole_instructions_and_names_every_call():
    for machine, column in (("x86_64", 0), ("aarch64", 1)):
        program = assemble_filter(machine)
        instructions = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
        assert len(program) % 8 == 0
        assert instructions[-1] == (0x06, 0, 0, 0x7FFF0000)
        compared = {k for code, _, _, k in instructions if code == 0x15}
        assert {numbers[column] for numbers in DENIED.values()} <= compared
        assert all(
            at + 1 + max(t, f) < len(instructions) for at, (_, t, f, _) in enumerate(instructions[:-1])
        )


def test_an_unknown_processor_is_refused():
    with pytest.raises(SandboxError, match="riscv64"):
        assemble_filter("riscv64")


def test_control_groups_are_found_where_they_were_delegated(tmp_path):
    """A terminal under systemd: limits are possible beside its own group, in the slice above it."""
    own = tmp_path / "cgroup/user.slice/user@1000.service/app.slice/terminal.scope"
    own.mkdir(parents=True)
    for group, controllers in ((own, ""), (own.parent, "cpu memory pids"), (own.parents[1], "memory pids")):
        (group / "cgroup.subtree_control").write_text(controllers)
        (group / "cgroup.procs").write_text("")
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "mountinfo").write_text(f"30 23 0:26 / {tmp_path}/cgroup rw,nosuid - cgroup2 cgroup2 rw\n")
    (proc / "cgroup").write_text(f"0::/{own.relative_to(tmp_path / 'cgroup')}\n")
    [layout] = find_layouts(proc)
    assert (layout.name, layout.parents) == ("cgroup v2", (own.parent,))
    assert layout.settings(Limits(memory_bytes=5, processes=7, cpus=2)) == {
        "memory.max": "5",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "9",
        "cpu.max": "200000 100000",
    }


def test_control_groups_of_version_1_are_found_inside_a_container(tmp_path):
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "mountinfo").write_text(
        "31 23 0:27 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 23 0:28 /docker/abc /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
        "33 23 0:29 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    )
    (proc / "cgroup").write_text("3:cpu,cpuacct:/docker/abc\n2:pids:/docker/abc\n1:memory:/docker/abc/task\n")
    [layout] = find_layouts(proc)
    assert layout.parents == tuple(Path("/sys/fs/cgroup", name) for name in ("memory/task", "pids", "cpu"))


def test_no_control_groups_at_all(tmp_path):
    (tmp_path / "mountinfo").write_text("22 1 0:20 / /proc rw - proc proc rw\n")
    (tmp_path / "cgroup").write_text("0::/\n")
    assert find_layouts(tmp_path) == []


@pytest.fixture
def watched(monkeypatch):
    """A sandbox whose solutions may have 200 MiB, which a watcher sees to."""
    sandbox = BubblewrapSandbox(Limits(memory_bytes=200 << 20, timeout_s=60))
    monkeypatch.setattr(sandbox, "_guards", WatcherGuards())
    return sandbox


@pytest.mark.sandbox
def test_a_watcher_ends_what_takes_too_much(watched, data_dir):
    children = (
        "import os, time\n"
        "for _ in range(4):\n    if os.fork() == 0:\n        x = b'x' * (80 << 20)\n        time.sleep(60)\n"
        "time.sleep(60)\n"
    )
    result = watched.run(Job(children, data_dir))
    assert result.status == "oom"
    assert result.peak_memory_bytes > 200 << 20
    assert watched.run(Job("b'x' * (1 << 30)", data_dir)).stderr.endswith("MemoryError\n")
    assert watched.run(Job("print('fine')", data_dir)).stdout == "fine\n"


@pytest.mark.sandbox
def test_a_watcher_sees_files_in_memory_and_counts_what_is_mapped_once(watched, data_dir):
    mapped = (
        "import mmap, time\n"
        "file = open('/dev/shm/x', 'w+b')\n"
        "for _ in range(120):\n    file.write(bytes(1 << 20))\n"
        "file.flush()\n"
        "memory = mmap.mmap(file.fileno(), 0)\nsum(memory[::4096])\ntime.sleep(1)\n"
    )
    result = watched.run(Job(mapped, data_dir))
    assert result.status == "ok", result
    assert 120 << 20 < result.peak_memory_bytes < 200 << 20
    deleted = (
        "import os, time\n"
        "for folder in ('/tmp', '/job'):\n"
        "    file = open(folder + '/x', 'wb', buffering=0)\n    os.unlink(folder + '/x')\n"
        "    globals()[folder] = file\n"
        "    for _ in range(120):\n        file.write(bytes(1 << 20))\n"
        "time.sleep(60)\n"
    )
    assert watched.run(Job(deleted, data_dir)).status == "oom"


def test_a_watcher_sees_grandchildren():
    large = 'x = b"x" * (100 << 20); print(1, flush=True); input()'
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {large!r}])"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"1\n"
        watcher = Watcher(Limits(memory_bytes=50 << 20))
        assert watcher.exceeded(process.pid)
        assert watcher.peak_bytes() > 100 << 20
        process.stdin.close()
