"""Runs a command under a system call filter like that of a container: python seccomp.py CMD ARGS...

As Docker's default profile without capabilities has it: what it refuses here gets EPERM, clone3 gets ENOSYS, clone no
new namespace. Stricter than that, reading another process's memory or tracing it kills: an attempt is found.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

# Numbers on x86_64 and aarch64; None: not there.
KILL = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
}  # fmt: skip
REFUSE = {
    "acct": (163, 89), "add_key": (248, 217), "clock_adjtime": (305, 266), "clock_settime": (227, 112),
    "delete_module": (176, 106), "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fsopen": (430, 430), "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219),
    "lookup_dcookie": (212, 18), "mbind": (237, 235), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "move_pages": (279, 239), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "personality": (135, 92),
    "pivot_root": (155, 41), "process_madvise": (440, 440),
    "quotactl": (179, 60), "reboot": (169, 142), "request_key": (249, 218), "set_mempolicy": (238, 237),
    "setns": (308, 268), "settimeofday": (164, 170), "swapoff": (168, 225), "swapon": (167, 224),
    "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97), "vhangup": (153, 58),
}  # fmt: skip
CLONE, CLONE3 = (56, 220), (435, 435)
NEW_NAMESPACES = 0x7E020000
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
ALLOWED, KILLED, REFUSED, MISSING = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026  # EPERM, ENOSYS
LOAD, EQUAL, ANY_OF, RETURN = 0x20, 0x15, 0x45, 0x06
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2


def program(machine: str) -> bytes:
    """The filter, as classic BPF."""
    column, architecture = ARCHITECTURES[machine]
    code = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, KILLED), (LOAD, 0, 0, 0)]
    answers = [(KILL.values(), KILLED), (REFUSE.values(), REFUSED), ([CLONE3], MISSING)]
    for numbers, answer in answers:
        for number in numbers:
            code += [(EQUAL, 0, 1, number[column]), (RETURN, 0, 0, answer)]
    code += [(EQUAL, 0, 3, CLONE[column]), (LOAD, 0, 0, 16), (ANY_OF, 0, 1, NEW_NAMESPACES), (RETURN, 0, 0, REFUSED)]
    return b"".join(struct.pack("HBBI", *each) for each in [*code, (RETURN, 0, 0, ALLOWED)])


def restrict() -> None:
    """This process and all that it starts."""
    filters = program(platform.machine())
    buffer = ctypes.create_string_buffer(filters)
    given = struct.pack("HxxxxxxP", len(filters) // 8, ctypes.addressof(buffer))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for call in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, FILTER, ctypes.c_char_p(given), 0, 0)):
        if prctl(*call):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    restrict()
    os.execvp(sys.argv[1], sys.argv[1:])
