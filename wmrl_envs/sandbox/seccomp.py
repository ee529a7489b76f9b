"""A system call filter for solutions, assembled by hand: a page of BPF instead of a C library.

Namespaces hide what is outside; this takes away the parts of the kernel that no solution needs and that
break-outs are made of: mounting, new namespaces, tracing, kernel keys, BPF, io_uring, exotic sockets.
"""

from __future__ import annotations

import errno
import platform
import struct

from wmrl_envs.errors import SandboxError

__all__ = ["DENIED", "assemble_filter"]

# Numbers on (x86_64, aarch64), from the kernel's unistd headers.
DENIED = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
CLONE = (56, 220)
CLONE3 = (435, 435)
SOCKET = (41, 198)
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH

NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag that clone takes
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
X32 = 0x40000000  # x86_64 calls in their x32 form have this bit

LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; the argument's low half
ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000


def assemble_filter(machine: str | None = None) -> bytes:
    """The filter as `bwrap --seccomp` takes it: an array of struct sock_filter.

    Args:
        machine: As `platform.machine` says; None for this one.

    Raises:
        SandboxError: No call numbers are known for that kind of processor.
    """
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise SandboxError(f"The sandbox knows no system call numbers for {machine}: use x86_64 or aarch64.")
    column, architecture = MACHINES[machine]
    program = [
        _instruction(LOAD, ARCHITECTURE),
        *_unless(JUMP_EQUAL, architecture, KILL),
        _instruction(LOAD, NUMBER),
        *_if(JUMP_GREATER_EQUAL, X32, FAIL | errno.ENOSYS),
    ]
    for numbers in DENIED.values():
        program += _if(JUMP_EQUAL, numbers[column], FAIL | errno.EPERM)
    # The flags of clone3 lie in memory, where a filter cannot look: libc falls back to clone.
    program += _if(JUMP_EQUAL, CLONE3[column], FAIL | errno.ENOSYS)
    program += _on_argument(CLONE[column], _if(JUMP_ANY_BIT, NEW_NAMESPACES, FAIL | errno.EPERM))
    families = [i for family in FAMILIES.values() for i in _if(JUMP_EQUAL, family, ALLOW)]
    program += _on_argument(SOCKET[column], [*families, _instruction(RETURN, FAIL | errno.EAFNOSUPPORT)])
    return b"".join([*program, _instruction(RETURN, ALLOW)])


def _instruction(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, k)


def _if(test: int, value: int, verdict: int) -> list[bytes]:
    """Give the verdict if the test holds, else go on."""
    return [_instruction(test, value, 0, 1), _instruction(RETURN, verdict)]


def _unless(test: int, value: int, verdict: int) -> list[bytes]:
    """Give the verdict if the test fails, else go on."""
    return [_instruction(test, value, 1, 0), _instruction(RETURN, verdict)]


def _on_argument(number: int, body: list[bytes]) -> list[bytes]:
    """For the call of that number look at its first argument instead; what falls through is allowed."""
    block = [_instruction(LOAD, FIRST_ARGUMENT), *body, _instruction(RETURN, ALLOW)]
    return [_instruction(JUMP_EQUAL, number, 0, len(block)), *block]
