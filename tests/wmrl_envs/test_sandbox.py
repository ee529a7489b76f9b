"""What a job may rely on, and what its result says."""

import concurrent.futures
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sandboxes import both, show
from wmrl_envs.sandbox import BubblewrapSandbox, Job, Limits, Sandbox, UnsafeSandbox
from wmrl_envs.sandbox.launch import seed_of
from wmrl_envs.sandbox.output import Capture, hide_homes, readable

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
