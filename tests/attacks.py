"""Hostile and unlucky programs, and the status that each must end in, whatever the sandbox.

Every attack prints PWNED where it succeeds; a sandbox must let none do so. `$home`, `$secret`, `$port`,
`$socket`, `$abstract` and `$answers` are filled in by `Attack.program`: things that really exist outside.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from string import Template

from wmrl_envs.sandbox import Limits
from wmrl_envs.sandbox.seccomp import CLONE, CLONE3, DENIED, MACHINES

__all__ = ["ATTACKS", "LIMITS", "Attack"]

MIB = 1 << 20
COLUMN = MACHINES[platform.machine()][0]
LIMITS = Limits(timeout_s=180, memory_bytes=400 * MIB, processes=24, file_bytes=32 * MIB)
SHORT = Limits(timeout_s=0.7, memory_bytes=400 * MIB, processes=24, file_bytes=32 * MIB)
TIGHT = Limits(timeout_s=60, memory_bytes=96 * MIB, processes=24, file_bytes=256 * MIB)


@dataclass(frozen=True)
class Attack:
    """One program.

    Attributes:
        name: What it tries.
        code: The program.
        status: The outcome's status, then the fate of its submission: "", "submitted", "no_submission"
            or "unreadable".
        limits: Of the job.
        unsafe: Whether a plain subprocess holds it too (and it may be run there).
        watcher: Status where no control groups can be had, if another than `status`.
    """

    name: str
    code: str
    status: tuple[str, str]
    limits: Limits = LIMITS
    unsafe: bool = False
    watcher: tuple[str, str] | None = None

    def program(self, places: dict[str, object]) -> str:
        """The code, aimed at what really exists on this machine."""
        return Template(self.code).safe_substitute(places)


ERROR = ("error", "")
TIMEOUT = ("timeout", "")
OOM = ("oom", "")
NOTHING = ("ok", "no_submission")
SUBMITTED = ("ok", "submitted")
REFUSED = ("ok", "unreadable")

WRITE = "open('/job/submission.csv', 'w').write('id,target\\n1,0\\n')\n"
LIBC = "import ctypes, os, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n"


def _number(call: str) -> int:
    """Number of a system call on this machine."""
    return DENIED[call][COLUMN]


def _denied(call: str) -> str:
    """A C call that must fail; it says so if it does not."""
    return f"{LIBC}result = {call}\nif result >= 0:\n    print('PWNED', result)\n"


FILES = [
    Attack(
        "answers by a relative path", "print('PWNED', open('/data/../private/answers.csv').read(9))", ERROR
    ),
    Attack("answers by their own path", "print('PWNED', open('$answers').read(9))", ERROR),
    Attack(
        "answers by a search of the whole disk",
        "import os\n"
        "for folder, _, files in os.walk('/'):\n"
        "    if not folder.startswith('/proc') and {'answers.csv', 'private_leaderboard.csv'} & set(files):\n"
        "        print('PWNED', folder)\n",
        NOTHING,
    ),
    Attack("the grader's own package", "import wmrl_envs\nprint('PWNED')", ERROR),
    Attack("/etc/shadow", "print('PWNED', open('/etc/shadow').read(9))", ERROR),
    Attack("a file in the grader's temporary folder", "print('PWNED', open('$secret').read())", ERROR),
    Attack("files in the grader's home", "print('PWNED', open('$home/.profile').read())", ERROR),
    Attack(
        "the grader's files through /proc",
        "import glob\n"
        "for root in glob.glob('/proc/[0-9]*/root') + glob.glob('/proc/[0-9]*/cwd'):\n"
        "    try:\n"
        "        print('PWNED', open(root + '$secret').read())\n"
        "    except OSError:\n"
        "        pass\n",
        NOTHING,
    ),
    Attack("writing to the data", "open('/data/train.csv', 'w')\nprint('PWNED')", ERROR),
    Attack("removing the data", "import os\nos.remove('/data/train.csv')\nprint('PWNED')", ERROR),
    Attack("writing to the system", "open('/usr/pwned', 'w')\nprint('PWNED')", ERROR),
    Attack("writing to the root", "open('/pwned', 'w')\nprint('PWNED')", ERROR),
    Attack("writing to /dev", "open('/dev/pwned', 'w')\nprint('PWNED')", ERROR),
    Attack("replacing the runner", "open('/sandbox/runner.py', 'w')\nprint('PWNED')", ERROR),
    Attack(
        "a .pth file for the next job",
        "import sysconfig\nopen(sysconfig.get_path('purelib') + '/evil.pth', 'w')\nprint('PWNED')",
        ERROR,
    ),
    Attack(
        "a sitecustomize for the next job",
        "import sysconfig\nopen(sysconfig.get_path('stdlib') + '/sitecustomize.py', 'w')\nprint('PWNED')",
        ERROR,
    ),
    Attack(
        "a symbolic link as submission",
        "import os\nos.symlink('$answers', 'submission.csv')",
        REFUSED,
        unsafe=True,
    ),
    Attack(
        "a link to a device as submission",
        "import os\nos.symlink('/dev/zero', 'submission.csv')",
        REFUSED,
        unsafe=True,
    ),
    Attack(
        "a hard link as submission",
        "import os\nopen('a', 'w').write('1')\nos.link('a', 'submission.csv')",
        REFUSED,
        unsafe=True,
    ),
    Attack(
        "a hard link to the data",
        "import os\nos.link('/data/train.csv', 'submission.csv')\nprint('PWNED')",
        ERROR,
    ),
    Attack("a FIFO as submission", "import os\nos.mkfifo('submission.csv')", REFUSED, unsafe=True),
    Attack("a folder as submission", "import os\nos.mkdir('submission.csv')", REFUSED, unsafe=True),
    Attack(
        "a socket as submission",
        "import socket\nsocket.socket(socket.AF_UNIX).bind('submission.csv')",
        REFUSED,
        unsafe=True,
    ),
    Attack(
        "a device as submission", "import os\nos.mknod('submission.csv', 0o20666, os.makedev(1, 5))", ERROR
    ),
    Attack(
        "1 TiB of nothing as submission", "open('submission.csv', 'w').truncate(1 << 40)", ERROR, unsafe=True
    ),
    Attack(
        "a disk full of files",
        "for n in range(100):\n    open(f'f{n}', 'wb').write(bytes(1 << 20))\nprint('PWNED')",
        ERROR,
    ),
    Attack(
        "a folder that nobody may enter",
        WRITE + "import os\ntry:\n    os.chmod('/job', 0)\nexcept PermissionError:\n    pass\n",
        SUBMITTED,
    ),
    Attack(
        "removing its own folder",
        "import shutil\nshutil.rmtree('/job', ignore_errors=True)",
        NOTHING,
        unsafe=True,
    ),
    Attack(
        "very deep folders",
        "import os\nfor _ in range(100):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\n",
        NOTHING,
        unsafe=True,
    ),
]

NETWORK = [
    Attack(
        "TCP to a port of the host",
        "import socket\nsocket.create_connection(('127.0.0.1', $port))\nprint('PWNED')",
        ERROR,
    ),
    Attack(
        "UDP to the world",
        "import socket\nsocket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('9.9.9.9', 53))\nprint('PWNED')",
        ERROR,
    ),
    Attack("a name server", "import socket\nsocket.getaddrinfo('example.org', 80)\nprint('PWNED')", ERROR),
    Attack(
        "a UNIX socket of the host",
        "import socket\nsocket.socket(socket.AF_UNIX).connect('$socket')\nprint('PWNED')",
        ERROR,
    ),
    Attack(
        "an abstract UNIX socket of the host",
        "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0$abstract')\nprint('PWNED')",
        ERROR,
    ),
    Attack(
        "a socket to the hypervisor",
        "import socket\nsocket.socket(40, socket.SOCK_STREAM)\nprint('PWNED')",
        ERROR,
    ),
    Attack(
        "raw packets",
        "import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW)\nprint('PWNED')",
        ERROR,
    ),
    Attack(
        "kernel cryptography",
        "import socket\nsocket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)\nprint('PWNED')",
        ERROR,
    ),
    Attack(
        "loopback with itself is allowed",
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname()).sendall(b'x')\n"
        "assert server.accept()[0].recv(1) == b'x'\n",
        NOTHING,
        unsafe=True,
    ),
]

PROCESSES = [
    Attack("a fork bomb", "import os\nwhile True:\n    os.fork()\n", ERROR),
    Attack(
        "a fork bomb that never gives up",
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
        TIMEOUT,
        SHORT,
    ),
    Attack(
        "a thread bomb",
        "import threading, time\n"
        "for _ in range(100):\n    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print('PWNED')\n",
        ERROR,
    ),
    Attack(
        "a child in a session of its own",
        "import subprocess\nsubprocess.Popen(['sleep', '60'], start_new_session=True)",
        NOTHING,
        unsafe=True,
    ),
    Attack(
        "a daemon",
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.closerange(0, 100)\n        time.sleep(60)\n    os._exit(0)\n",
        NOTHING,
        unsafe=True,
    ),
    Attack(
        "a child that holds the pipe",
        "import subprocess\nsubprocess.Popen(['sleep', '60'])",
        NOTHING,
        unsafe=True,
    ),
    Attack(
        "a child that holds the pipe of a program that hangs",
        "import subprocess, time\nsubprocess.Popen(['sleep', '60'])\ntime.sleep(60)",
        TIMEOUT,
        SHORT,
        unsafe=True,
    ),
    Attack(
        "zombies",
        "import os\nfor _ in range(10):\n    if os.fork() == 0:\n        os._exit(0)\n",
        NOTHING,
        unsafe=True,
    ),
    Attack(
        "a pool that hangs",
        "import multiprocessing, time\nmultiprocessing.Pool(2).map(time.sleep, [60, 60])\n",
        TIMEOUT,
        Limits(timeout_s=2, memory_bytes=400 * MIB, processes=24, file_bytes=32 * MIB),
        unsafe=True,
    ),
    Attack(
        "workers that are left alone",
        "from joblib import Parallel, delayed\n"
        "assert Parallel(n_jobs=2)(delayed(abs)(-n) for n in range(4)) == [0, 1, 2, 3]\n",
        NOTHING,
        unsafe=True,
    ),
    Attack(
        "ignoring every signal",
        "import signal\nfor n in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:\n"
        "    signal.signal(n, signal.SIG_IGN)\nwhile True:\n    pass\n",
        TIMEOUT,
        SHORT,
        unsafe=True,
    ),
    Attack("killing everything", "import os\ntry:\n    os.kill(-1, 9)\nexcept OSError:\n    pass\n", NOTHING),
    Attack(
        "killing process 1",
        WRITE + "import os\ntry:\n    os.kill(1, 9)\nexcept OSError:\n    pass\n",
        SUBMITTED,
    ),
    Attack(
        "seeing other processes",
        "import os\nif len([p for p in os.listdir('/proc') if p.isdigit()]) > 3:\n    print('PWNED')",
        NOTHING,
    ),
    Attack(
        "a higher limit",
        "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (999, 999))\nprint('PWNED')",
        ERROR,
    ),
    Attack("a higher priority", "import os\nos.nice(-5)\nprint('PWNED')", ERROR),
]

MEMORY = [
    Attack("memory of one process", "b'x' * (1 << 30)\nprint('PWNED')", OOM, TIGHT, watcher=ERROR),
    Attack(
        "memory of many processes",
        "import os, time\n"
        "for _ in range(6):\n"
        "    if os.fork() == 0:\n        x = b'x' * (40 << 20)\n        time.sleep(60)\n        os._exit(0)\n"
        "for _ in range(6):\n    assert os.wait()[1] == 0\n",
        OOM,
        TIGHT,
    ),
    Attack(
        "memory as files",
        "for folder in ('/dev/shm', '/tmp', '/job'):\n"
        "    open(folder + '/x', 'wb').write(b'x' * (60 << 20))\n"
        "import time\ntime.sleep(60)\n",
        OOM,
        TIGHT,
    ),
    Attack(
        "memory that is shared",
        "import mmap\nm = mmap.mmap(-1, 1 << 30)\n"
        "for n in range(0, 1 << 30, 4096):\n    m[n] = 1\nprint('PWNED')",
        OOM,
        TIGHT,
    ),
    Attack(
        "more memory than there is", "import mmap\nmmap.mmap(-1, 1 << 62)\nprint('PWNED')", ERROR, unsafe=True
    ),
]

TIME = [
    Attack("a busy loop", "while True:\n    pass", TIMEOUT, SHORT, unsafe=True),
    Attack("a sleep", "import time\ntime.sleep(3600)", TIMEOUT, SHORT, unsafe=True),
    Attack("a stop", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", TIMEOUT, SHORT, unsafe=True),
    Attack(
        "a hopeless pattern", "import re\nre.match('(a+)+$', 'a' * 64 + 'b')", TIMEOUT, SHORT, unsafe=True
    ),
    Attack("waiting for input", "input()", ERROR, unsafe=True),
]

OUTPUT = [
    Attack("endless lines", "while True:\n    print('x' * 6000)", ("output_limit", ""), unsafe=True),
    Attack(
        "a gigabyte without a newline",
        "import sys\nwhile True:\n    sys.stdout.write('x' * (1 << 20))",
        ("output_limit", ""),
        unsafe=True,
    ),
    Attack(
        "endless errors",
        "import os\nwhile True:\n    os.write(2, b'x' * 4096)",
        ("output_limit", ""),
        unsafe=True,
    ),
    Attack("bytes that are no text", "import os\nos.write(1, bytes(range(256)) * 9)", NOTHING, unsafe=True),
    Attack(
        "terminal escapes", "print('\\x1b[2J\\x1b]0;title\\x07\\x1b[31mred\\x9b5n')", NOTHING, unsafe=True
    ),
    Attack("much output, then a good end", WRITE + "print('x' * (5 << 20))", SUBMITTED),
    Attack(
        "closing its output", "import os, time\nos.closerange(0, 100)\ntime.sleep(.2)\n" + WRITE, SUBMITTED
    ),
]

KERNEL = [
    Attack("mount", _denied("libc.mount(b'none', b'/job', b'tmpfs', 0, None)"), NOTHING),
    Attack("unmount", _denied("libc.umount2(b'/data', 2)"), NOTHING),
    Attack("a namespace by unshare", _denied("libc.unshare(0x10000000)"), NOTHING),
    Attack(
        "a namespace by clone", _denied(f"libc.syscall({CLONE[COLUMN]}, 0x10000011, 0, 0, 0, 0)"), NOTHING
    ),
    Attack(
        "a namespace by clone3",
        _denied(f"libc.syscall({CLONE3[COLUMN]}, (ctypes.c_ulong * 11)(0x10000000), 88)"),
        NOTHING,
    ),
    Attack("another's namespace", _denied("libc.setns(os.open('/proc/self/ns/mnt', 0), 0)"), NOTHING),
    Attack("tracing", _denied("libc.ptrace(16, 1, 0, 0)"), NOTHING),
    Attack(
        "another's memory",
        _denied(f"libc.syscall({_number('process_vm_readv')}, 1, (c := (ctypes.c_ulong * 2)()), 1, c, 1, 0)"),
        NOTHING,
    ),
    Attack("bpf", _denied(f"libc.syscall({_number('bpf')}, 0, (ctypes.c_char * 120)(), 120)"), NOTHING),
    Attack(
        "io_uring", _denied(f"libc.syscall({_number('io_uring_setup')}, 4, (ctypes.c_char * 120)())"), NOTHING
    ),
    Attack("kernel keys", _denied(f"libc.syscall({_number('keyctl')}, 0, -3, 1)"), NOTHING),
    Attack("page faults", _denied(f"libc.syscall({_number('userfaultfd')}, 1)"), NOTHING),
    Attack(
        "performance events",
        _denied(f"libc.syscall({_number('perf_event_open')}, (ctypes.c_char * 128)(), 0, -1, -1, 0)"),
        NOTHING,
    ),
    Attack(
        "calls in the x32 form",
        _denied("libc.syscall(0x40000000 + 165, b'none', b'/job', b'tmpfs', 0, None)"),
        NOTHING,
    ),
    Attack("the clock", "import time\ntime.clock_settime(time.CLOCK_REALTIME, 0)\nprint('PWNED')", ERROR),
    Attack("the host's name", "import socket\nsocket.sethostname('pwned')\nprint('PWNED')", ERROR),
    Attack("kernel settings", "open('/proc/sys/kernel/core_pattern', 'w').write('x')\nprint('PWNED')", ERROR),
    Attack("the kernel's trigger", "open('/proc/sysrq-trigger', 'w').write('b')\nprint('PWNED')", ERROR),
    Attack("becoming root", "import os\nos.setuid(0)\nprint('PWNED')", ERROR),
    Attack(
        "becoming root by a set-uid program",
        "import subprocess\nsubprocess.run(['su', '-c', 'echo PWNED'], stdin=subprocess.DEVNULL)",
        NOTHING,
    ),
    Attack("an abort", "import os\nos.abort()", ERROR, unsafe=True),
    Attack("a bad pointer", "import ctypes\nctypes.string_at(0)", ERROR, unsafe=True),
]

GRADER = [
    Attack(
        "results beside the submission",
        "import json\nfor name in ('result.json', 'grade.json', 'score.txt', 'reward.txt'):\n"
        "    json.dump({'score': 1.0, 'percentile': 1.0}, open(name, 'w'))\n",
        NOTHING,
        unsafe=True,
    ),
    Attack(
        "talking to the grader's descriptors",
        "import os\nfor n in range(3, 64):\n    try:\n        os.write(n, b'{\"percentile\": 1}')\n"
        "        print('PWNED', n)\n    except OSError:\n        pass\n",
        NOTHING,
        unsafe=True,
    ),
    Attack(
        "frames of the runner",
        "import sys\nframe = sys._getframe().f_back\n"
        "while frame:\n    frame.f_globals.clear()\n    frame = frame.f_back\n" + WRITE,
        SUBMITTED,
    ),
    Attack("an early exit that pretends success", "import os\nos._exit(0)", NOTHING, unsafe=True),
    Attack("a submission before a failure", WRITE + "raise SystemExit(3)", ERROR),
    Attack("a submission before a time-out", WRITE + "while True:\n    pass", TIMEOUT, SHORT),
    Attack("no program at all", "", NOTHING, unsafe=True),
    Attack("a null byte", "print(1)\0", ERROR, unsafe=True),
    Attack("a lone surrogate", "print('\ud800')", ERROR, unsafe=True),
    Attack("endless recursion", "def f():\n    f()\nf()", ERROR, unsafe=True),
    Attack("nesting beyond the parser", "(" * 5000 + ")" * 5000, ERROR, unsafe=True),
]

ATTACKS = [*FILES, *NETWORK, *PROCESSES, *MEMORY, *TIME, *OUTPUT, *KERNEL, *GRADER]
