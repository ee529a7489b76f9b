"""What a job may rely on, what its result says, and what happens where the machine fails."""

import concurrent.futures
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attack_table import SWITCH
from wmrl_envs.errors import SandboxError
from wmrl_envs.sandbox import BubblewrapSandbox, Job, Limits, Sandbox, UnsafeSandbox
from wmrl_envs.sandbox import bubblewrap as bubblewrap_module
from wmrl_envs.sandbox.cgroup import CgroupGuards, find_layouts
from wmrl_envs.sandbox.guards import Watcher, WatcherGuards, find_guards
from wmrl_envs.sandbox.launch import seed_of
from wmrl_envs.sandbox.output import Capture, hide_homes, readable
from wmrl_envs.sandbox.seccomp import DENIED, assemble_filter

REPOSITORY = Path(__file__).parents[2]
BOTH = [pytest.param(BubblewrapSandbox, marks=pytest.mark.sandbox), UnsafeSandbox]
both = pytest.mark.parametrize("kind", BOTH)


@pytest.fixture
def data_dir(tmp_path):
    folder = tmp_path / "competition/public"
    folder.mkdir(parents=True)
    (folder / "train.csv").write_text("id,target\n0,1\n")
    return folder


def show(kind, code, data_dir, **limits):
    result = kind(Limits(**limits)).run(Job(code, data_dir))
    assert result.status == "ok", result
    return result.stdout


# --- what a job may rely on ---------------------------------------------------------------------------------


@both
def test_it_is_a_sandbox(kind):
    assert isinstance(kind(), Sandbox)


@pytest.mark.sandbox
def test_the_environment_is_exactly_what_is_documented(data_dir, monkeypatch):
    monkeypatch.setenv("API_KEY", "secret")
    job = Job(
        "import os\nprint(sorted(os.environ.items()))\nprint(os.getcwd())", data_dir, env={"EXTRA": "1"}
    )
    stdout = BubblewrapSandbox(Limits(cpus=3)).run(job).stdout
    environment = dict(eval(stdout.splitlines()[0]))
    assert environment.pop("PYTHONHASHSEED").isdigit()
    assert environment == {
        "DATA_DIR": "/data",
        "EXTRA": "1",
        "HOME": "/job",
        "LANG": "C.UTF-8",
        "LOKY_MAX_CPU_COUNT": "3",
        "MKL_NUM_THREADS": "3",
        "NUMEXPR_NUM_THREADS": "3",
        "OMP_NUM_THREADS": "3",
        "OMP_WAIT_POLICY": "PASSIVE",
        "OPENBLAS_NUM_THREADS": "3",
        "PATH": "/python/bin:/usr/local/bin:/usr/bin:/bin",  # as it is shown: see hide_homes
        "PWD": "/job",
        "PYTHONUNBUFFERED": "1",
        "SUBMISSION_PATH": "/job/submission.csv",
        "TMPDIR": "/tmp",
        "USER": "sandbox",
    }
    assert stdout.splitlines()[1] == "/job"


@both
def test_data_is_read_and_a_submission_comes_back(kind, data_dir):
    code = (
        "import os\n"
        "text = open(os.environ['DATA_DIR'] + '/train.csv').read()\n"
        "open(os.environ['SUBMISSION_PATH'], 'w').write(text)\n"
    )
    result = kind().run(Job(code, data_dir))
    assert (result.status, result.exit_code, result.message) == ("ok", 0, "")
    assert result.submission_path.read_text() == "id,target\n0,1\n"
    assert result.submission_path.stat().st_mode & 0o777 == 0o600
    result.submission_path.unlink()


@both
def test_the_program_is_main_with_a_file_of_its_own(kind, data_dir):
    code = (
        "import os, sys, pickle\n"
        "class A:\n    pass\n"
        "assert __name__ == '__main__' and type(pickle.loads(pickle.dumps(A()))) is A\n"
        "assert sys.argv == ['solution.py'] and sys.path[0] == os.getcwd()\n"
        "assert open(__file__).read().startswith('import os') and not hasattr(sys, 'wmrl')\n"
        "print(os.path.basename(__file__), sorted(n for n in globals() if not n.startswith('__')))\n"
    )
    assert show(kind, code, data_dir) == "solution.py ['A', 'os', 'pickle', 'sys']\n"


@both
def test_worker_processes_find_functions_of_the_program(kind, data_dir):
    code = (
        "import multiprocessing\n"
        "def double(n):\n    return 2 * n\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(double, [1, 2]))\n"
    )
    assert show(kind, code, data_dir) == "[2, 4]\n"


@both
def test_generators_depend_on_the_content_alone(kind, data_dir):
    draw = (
        "import random, numpy, sys\n"
        "print(random.random(), numpy.random.rand(), hash('text'))\n"
        "assert 'torch' not in sys.modules\n"
    )
    first = show(kind, draw, data_dir)
    assert show(kind, draw, data_dir) == first
    other = show(kind, draw + "# another program", data_dir)
    assert not set(other.split()) & set(first.split())


DRAWS = """
import random
import numpy as np
random.seed()
np.random.seed()
print(random.random(), np.random.rand())
print(random.Random().random(), random.Random(None).random(), type("Own", (random.Random,), {})().random())
print(np.random.default_rng().random(), np.random.default_rng(None).random(), np.random.RandomState().rand())
print(np.random.Generator(np.random.PCG64()).random(), np.random.SeedSequence().entropy)
"""


@both
def test_generators_that_nobody_seeds_depend_on_the_content_alone_too(kind, data_dir):
    first = show(kind, DRAWS, data_dir).split()
    assert len(set(first)) == len(first) == 10
    assert show(kind, DRAWS, data_dir).split() == first
    assert not set(show(kind, DRAWS + "#", data_dir).split()) & set(first)


@both
def test_seeds_that_are_given_mean_what_they_always_mean(kind, data_dir):
    code = (
        "import random\nimport numpy as np\n"
        "generator = random.Random(5)\ngenerator.seed('text')\nrandom.seed(6)\n"
        "print(random.Random(7).random(), generator.random(), random.random())\n"
        "print(np.random.default_rng(8).random())\n"
    )
    here = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert show(kind, code, data_dir) == here


@both
def test_who_asks_for_true_chance_gets_it(kind, data_dir):
    code = (
        "import os, random, secrets, uuid\n"
        "print(os.urandom(9).hex(), random.SystemRandom().random(), secrets.token_hex(), uuid.uuid4())"
    )
    drawn = [*show(kind, code, data_dir).split(), *show(kind, code, data_dir).split()]
    assert len(set(drawn)) == 8


@both
def test_forked_workers_draw_other_numbers_the_same_each_time(kind, data_dir):
    code = (
        "import multiprocessing, random\nimport numpy as np\n"
        "def draw(queue, again):\n"
        "    queue.put((random.Random().random(), np.random.default_rng().random()))\n"
        "    if again:\n        in_turn(queue, False)\n"
        "def in_turn(queue, again):\n"
        "    for _ in range(2):\n"
        "        worker = multiprocessing.get_context('fork').Process(target=draw, args=(queue, again))\n"
        "        worker.start()\n        worker.join()\n"
        "queue = multiprocessing.SimpleQueue()\n"
        "in_turn(queue, True)\n"
        "print(*(number for _ in range(6) for number in queue.get()))\n"
    )
    first = show(kind, code, data_dir).split()
    assert len(set(first)) == len(first) == 12
    assert show(kind, code, data_dir).split() == first


@pytest.mark.sandbox
def test_torch_is_seeded_where_it_is_imported(data_dir):
    """Another module of that name stands in for it: what counts is what it is told, and when."""
    code = (
        "import sys\n"
        "open('torch.py', 'w').write('def manual_seed(seed):\\n    print(seed)\\n')\n"
        "print('before')\n"
        "import torch\n"
        "assert torch.__spec__.loader is torch.__loader__\n"
    )
    assert show(BubblewrapSandbox, code, data_dir) == f"before\n{seed_of(code)}\n"


@both
@pytest.mark.parametrize(
    ("code", "stderr"),
    [
        (
            "def f():\n    1 / 0\n\nf()\n",
            'Traceback (most recent call last):\n  File "solution.py", line 4, in <module>\n    f()\n'
            '  File "solution.py", line 2, in f\n    1 / 0\n    ~~^~~\nZeroDivisionError: division by zero\n',
        ),
        ("x = = 1\n", '  File "solution.py", line 1\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n'),
        ("raise SystemExit('enough')", "enough\n"),
        (
            "try:\n    {}['a']\nexcept KeyError:\n    raise ValueError('b') from None\n",
            'Traceback (most recent call last):\n  File "solution.py", line 4, in <module>\n'
            "    raise ValueError('b') from None\nValueError: b\n",
        ),
    ],
)
def test_tracebacks_show_the_program_and_nothing_else(kind, code, stderr, data_dir):
    result = kind().run(Job(code, data_dir))
    assert (result.status, result.exit_code, result.stderr) == ("error", 1, stderr)


@both
@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("import json\njson.loads('{')\n", "/python/json/decoder.py"),
        ("import pandas\npandas.DataFrame()['a']\n", "/python/site-packages/pandas/core/frame.py"),
        (
            "import sys\nprint(sys.prefix, sys.base_prefix, sys.executable, sys.path)\n",
            "/python/site-packages",
        ),
    ],
)
def test_where_the_interpreter_lies_is_not_shown(kind, code, place, data_dir):
    result = kind().run(Job(code, data_dir))
    output = result.stdout + result.stderr
    assert place in output
    assert sys.prefix not in output
    assert sys.base_prefix not in output


@both
def test_tracebacks_through_the_seeding_of_generators_do_not_show_it(kind, data_dir):
    result = kind().run(Job("import random\nrandom.seed([])\n", data_dir))
    assert '  File "solution.py", line 2, in <module>' in result.stderr.splitlines()
    assert "in seed" in result.stderr
    assert "runner" not in result.stderr


@pytest.mark.sandbox
def test_jobs_at_the_same_time_do_not_see_each_other(data_dir):
    write = (
        "import os, time\n"
        "for folder in ('/tmp', '/dev/shm', '/job'):\n    open(folder + '/mine', 'w').write('x')\n"
        "print([os.path.exists(folder + '/mine') for folder in ('/tmp', '/dev/shm', '/job')])\n"
    )
    look = "import os\nprint([os.path.exists(f + '/mine') for f in ('/tmp', '/dev/shm', '/job')])\n"
    sandbox = BubblewrapSandbox()
    with concurrent.futures.ThreadPoolExecutor() as threads:
        writer = threads.submit(sandbox.run, Job(write + "time.sleep(1)", data_dir))
        assert sandbox.run(Job(look, data_dir)).stdout == "[False, False, False]\n"
        assert writer.result().stdout == "[True, True, True]\n"


@both
def test_an_old_submission_is_never_seen_again(kind, data_dir):
    sandbox = kind()
    failed = sandbox.run(Job("open('submission.csv', 'w').write('x')\n1/0", data_dir))
    assert (failed.status, failed.submission_path) == ("error", None)
    empty = sandbox.run(Job("print('nothing')", data_dir))
    assert (empty.status, empty.submission_path, empty.submission_error) == ("ok", None, "no_submission")


# --- what a result says -------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("code", "exit_code", "message"),
    [
        ("raise SystemExit(3)", 3, "The program ended with exit code 3."),
        ("import os\nos.abort()", 134, "The program was ended by signal SIGABRT."),
        (
            "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
            137,
            "The program was ended by signal SIGKILL.",
        ),
    ],
)
def test_failures_say_how(kind, code, exit_code, message, data_dir):
    result = kind().run(Job(code, data_dir))
    assert (result.status, result.message) == ("error", message)
    assert result.exit_code in (exit_code, None)


@pytest.mark.sandbox
def test_peak_memory_is_measured(data_dir):
    result = BubblewrapSandbox().run(Job("x = b'x' * (200 << 20)\nimport time\ntime.sleep(.3)", data_dir))
    assert 200 << 20 < result.peak_memory_bytes < 400 << 20


@both
def test_a_job_can_be_cancelled(kind, data_dir):
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    with pytest.raises(concurrent.futures.CancelledError):
        kind(Limits(timeout_s=600)).run(Job("while True:\n    pass", data_dir), cancel)


def test_fingerprints_tell_apart_what_results_depend_on():
    fingerprints = {
        UnsafeSandbox().fingerprint,
        UnsafeSandbox(Limits(timeout_s=1)).fingerprint,
        UnsafeSandbox(Limits(cpus=2)).fingerprint,
    }
    assert len(fingerprints) == 3
    assert UnsafeSandbox().fingerprint == UnsafeSandbox(Limits()).fingerprint


@given(st.lists(st.binary(max_size=40)), st.integers(2, 60))
def test_captured_output_keeps_head_and_tail(chunks, limit):
    capture = Capture(limit)
    for chunk in chunks:
        capture.feed(chunk)
    whole = b"".join(chunks)
    if len(whole) <= limit:
        assert capture.text() == readable(whole)
    else:
        head, tail = readable(whole[: limit // 2]), readable(whole[limit // 2 - limit :])
        assert capture.text() == f"{head}\n... [{len(whole) - limit} bytes cut] ...\n{tail}"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"a\x1b[31mred\x1b[0m\x1b]8;;http://x\x1b\\link\x1b(B", "aredlink"),
        (b"50%\r100%\r\nend\ttab\x07\x00", "50%\r100%\nend\ttab"),
        ("é\x9b1m".encode() + b"\xff\xfe", "é1m\ufffd\ufffd"),
    ],
)
def test_output_is_text_without_commands(raw, text):
    assert readable(raw) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('File "/home/a/.venv/lib/python3.12/site-packages/x.py"', 'File "/python/site-packages/x.py"'),
        ('File "/opt/python3/lib/python3.12/json.py"', 'File "/python/json.py"'),
        ('File "/usr/lib/python3.11/json.py"', 'File "/python/json.py"'),
        ("/usr/local/lib/python3.11/dist-packages/x.py:3: Warning", "/python/dist-packages/x.py:3: Warning"),
        ("/home/a/.venv/bin/python: no module", "/python/bin/python: no module"),
        ("home: /home/a/.venv", "home: /python"),
        ("/home/a/.venv2/lib/python3.12/x.py", "/home/a/.venv2/lib/python3.12/x.py"),
        ("/mnt/home/a/.venv/lib", "/mnt/home/a/.venv/lib"),
        ("/usr/share/zoneinfo", "/usr/share/zoneinfo"),
    ],
)
def test_an_interpreters_home_has_one_name_everywhere(text, shown):
    assert hide_homes(text, [Path("/home/a/.venv"), Path("/opt/python3")]) == shown


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


@pytest.mark.sandbox
def test_a_watcher_ends_what_takes_too_much(monkeypatch, data_dir):
    sandbox = BubblewrapSandbox(Limits(memory_bytes=200 << 20, timeout_s=60))
    monkeypatch.setattr(sandbox, "_guards", WatcherGuards())
    children = (
        "import os, time\n"
        "for _ in range(4):\n    if os.fork() == 0:\n        x = b'x' * (80 << 20)\n        time.sleep(60)\n"
        "time.sleep(60)\n"
    )
    result = sandbox.run(Job(children, data_dir))
    assert result.status == "oom"
    assert result.peak_memory_bytes > 200 << 20
    assert sandbox.run(Job("b'x' * (1 << 30)", data_dir)).stderr.endswith("MemoryError\n")
    assert sandbox.run(Job("print('fine')", data_dir)).stdout == "fine\n"


@pytest.mark.sandbox
def test_a_watcher_sees_files_in_memory_and_counts_what_is_mapped_once(monkeypatch, data_dir):
    sandbox = BubblewrapSandbox(Limits(memory_bytes=200 << 20, timeout_s=60))
    monkeypatch.setattr(sandbox, "_guards", WatcherGuards())
    mapped = (
        "import mmap, time\n"
        "file = open('/dev/shm/x', 'w+b')\n"
        "for _ in range(120):\n    file.write(bytes(1 << 20))\n"
        "file.flush()\n"
        "memory = mmap.mmap(file.fileno(), 0)\nsum(memory[::4096])\ntime.sleep(1)\n"
    )
    result = sandbox.run(Job(mapped, data_dir))
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
    assert sandbox.run(Job(deleted, data_dir)).status == "oom"


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
