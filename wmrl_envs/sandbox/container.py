"""Runs first in a container, before runner.py: output, system call filter, then the runner in its place.

Usage: ``container.py SEED FILE_BYTES PROCESSES DATA_BYTES``; the rest is in /sandbox.

It connects to the caller's socket and is given pipes for stdout and stderr, so that no output goes through
the engine, which would keep it. The same connection is then the runner's channel.

This file is executed by the interpreter of the image and imports nothing but its standard library.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import sys

FOLDER, JOB = "/sandbox", "/job"
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2  # for prctl
INSTRUCTION_BYTES = 8


class Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def connect() -> int:
    """Take stdout and stderr from the caller; the descriptor of the connection, which the runner inherits."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"{FOLDER}/channel")
    _, pipes, _, _ = socket.recv_fds(connection, 1, 2)
    for pipe, target in zip(pipes, (1, 2), strict=True):
        os.dup2(pipe, target)
        os.close(pipe)
    connection.set_inheritable(True)
    return connection.detach()


def refuse_calls(instructions: bytes) -> None:
    """Put the filter on this process and all that come from it, on top of the engine's own."""
    program = Program(len(instructions) // INSTRUCTION_BYTES, instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(SECCOMP, FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "the system call filter was refused")


def main() -> None:
    """Prepare, then become the runner."""
    # Not as the container's own working directory: the engine would make that one closed to the solution.
    os.chdir(JOB)
    channel = connect()
    with open(f"{FOLDER}/filter", "rb") as file:
        refuse_calls(file.read())
    shutil.copyfile(f"{FOLDER}/solution.py", "solution.py")
    runner = [sys.executable, "-s", "-B", "-P", f"{FOLDER}/runner.py", str(channel), *sys.argv[1:]]
    os.execv(sys.executable, runner)


if __name__ == "__main__":
    main()
