"""Runs a command under a seccomp profile of Docker's format, as a container without capabilities has it:

    python docker_seccomp.py PROFILE.json CMD ARGS...

libseccomp makes the filter, as it does for runc. Names of system calls that it does not know are left out, as there.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODULE = "github.com/moby/profiles/seccomp@v0.3.0"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
OPERATIONS = {name: number for number, name in enumerate(("NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ"), 1)}
UNKNOWN = -1


def default_profile() -> Path | str:
    """The file of Docker's default profile, or the reason why there is none here. It is not part of this repository:
    $SECCOMP_PROFILE names one, or the Go command downloads the module that dockerd is built with."""
    if named := os.environ.get("SECCOMP_PROFILE"):
        return Path(named)
    try:
        done = subprocess.run(
            ["go", "mod", "download", "-json", MODULE], capture_output=True, text=True, timeout=15, cwd="/"
        )
        return Path(json.loads(done.stdout)["Dir"]) / "default.json"
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
        return f"Docker's default profile is not here (SECCOMP_PROFILE=FILE, or go for {MODULE}): {error!r}"


class Comparison(ctypes.Structure):
    """scmp_arg_cmp of seccomp.h."""

    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    )


def library() -> ctypes.CDLL:
    """libseccomp. Raises OSError where it is missing."""
    found = ctypes.CDLL(ctypes.util.find_library("seccomp") or "libseccomp.so.2", use_errno=True)
    found.seccomp_init.restype = ctypes.c_void_p
    found.seccomp_rule_add_array.argtypes = (
        *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint),
        ctypes.POINTER(Comparison),
    )
    found.seccomp_load.argtypes = (ctypes.c_void_p,)
    return found


def rules(profile: dict[str, Any], machine: str, release: str) -> Iterator[tuple[str, int, list[Comparison]]]:
    """Name, action and conditions, those that hold for a container without capabilities."""
    for entry in profile["syscalls"]:
        needed, refused = entry.get("includes") or {}, entry.get("excludes") or {}
        if needed.get("caps") or ARCHITECTURES[machine] in refused.get("arches", ()):
            continue
        if ARCHITECTURES[machine] not in needed.get("arches", [ARCHITECTURES[machine]]):
            continue
        if version(release) < version(needed.get("minKernel", "0.0")):
            continue
        compared = [
            Comparison(
                each["index"],
                OPERATIONS[each["op"].removeprefix("SCMP_CMP_")],
                each.get("value", 0),
                each.get("valueTwo", 0),
            )
            for each in entry.get("args") or ()
        ]
        for name in entry["names"]:
            yield name, action(entry["action"], entry.get("errnoRet", 1)), compared


def action(name: str, errno: int) -> int:
    """Of libseccomp."""
    return ALLOW if name == "SCMP_ACT_ALLOW" else {"SCMP_ACT_ERRNO": ERRNO | errno}[name]


def version(text: str) -> tuple[int, int]:
    """Of a kernel: the first two numbers."""
    major, minor = re.findall(r"\d+", text)[:2]
    return int(major), int(minor)


def restrict(path: str) -> None:
    """This process and all that it starts."""
    profile = json.loads(Path(path).read_text(encoding="utf-8"))
    default = action(profile["defaultAction"], profile.get("defaultErrnoRet", 1))
    seccomp = library()
    context = seccomp.seccomp_init(default)
    for name, answer, compared in rules(profile, platform.machine(), os.uname().release):
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number == UNKNOWN or answer == default:
            continue
        code = seccomp.seccomp_rule_add_array(
            context, answer, number, len(compared), (Comparison * len(compared))(*compared)
        )
        if code:
            raise OSError(-code, f"{name}: {os.strerror(-code)}")
    if code := seccomp.seccomp_load(context):
        raise OSError(-code, os.strerror(-code))


if __name__ == "__main__":
    restrict(sys.argv[1])
    os.execvp(sys.argv[2], sys.argv[2:])
