"""Stacks of threads that call, return, raise, switch greenlets and end as fast as they can are read from outside:

python tests/stall/walks.py 10000000 --json benchmarks/results/walks.json

adds a row for this Python and for each way to read memory. Needs the C compiler and headers that built the package.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
WAYS = ("free", "filtered")  # filtered: process_vm_readv() ends the process
DEPTH = 12
done = threading.Event()
begun = threading.Event()

lines = ["def level_0(pause): level_1(pause)"]
lines += [f"def level_{n}(pause): level_{n + 1}(pause)" for n in range(1, DEPTH)]
lines += [f"def level_{DEPTH}(pause):", "    pause()", "    raise LookupError"]
exec("\n".join(lines))


class Walks(NamedTuple):
    """accepted: stacks that were read. inconsistent: of them, those whose functions do not call each other. levels:
    those read in the midst of the calls that are checked."""

    accepted: int
    inconsistent: int
    levels: int


def build(directory: Path) -> None:
    """The reader of stacks as a module of its own, for this Python."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the C compiler that built the package is needed"
    core = ROOT / "csrc"
    includes = [f"-I{path}" for path in (sysconfig.get_path("include"), core / "include", core, core / "stall")]
    source, target = ROOT / "tests" / "native" / "walkstress.c", directory / "walkstress.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-D_GNU_SOURCE", *includes, str(source), "-o", str(target), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)


def walk(directory: Path, times: int, how: str) -> Walks:
    """In a process of its own, which a fault would end."""
    command = [sys.executable, __file__, str(times), "--module", str(directory), "--how", how]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Walks(*json.loads(found.stdout))


# ---- in that process ----


def generate() -> object:
    """Frames of another kind, where those of the levels were."""
    yield from (n for n in range(3))


def call(walkstress: Any, rounds: int) -> None:
    """Goes down and up; its stack is read while it does, and after it has ended."""
    walkstress.follow()
    begun.set()
    for _ in range(rounds):
        try:
            level_0(int)  # type: ignore[name-defined]  # noqa: F821
        except LookupError:
            list(generate())  # type: ignore[call-overload]


def switch(walkstress: Any, rounds: int) -> None:
    """The same in greenlets, each left at the bottom of its stack and come back to."""
    greenlet = import_module("greenlet").greenlet
    walkstress.follow()
    back = import_module("greenlet").getcurrent().switch
    for _ in range(rounds):
        several = [greenlet(level_0) for _ in range(3)]  # type: ignore[name-defined]  # noqa: F821
        for one in several:
            one.switch(back)
        for one in several:
            try:
                one.switch()
            except LookupError:
                list(generate())  # type: ignore[call-overload]


def come_and_go(walkstress: Any, work: Any) -> None:
    """Threads that live for some milliseconds."""
    while not done.is_set():
        thread = threading.Thread(target=work, args=(walkstress, 200))
        thread.start()
        thread.join()


def has_greenlets() -> bool:
    try:
        import_module("greenlet")
    except ImportError:
        return False
    return True


def stress(directory: str, times: int, how: str) -> None:
    """Prints what a Walks has."""
    sys.path.insert(0, directory)
    walkstress = import_module("walkstress")
    if how == "filtered":
        walkstress.forbid()
    assert walkstress.find(sys.version_info[1], stress.__code__)
    works = [call, switch if has_greenlets() else call]
    threads = [threading.Thread(target=come_and_go, args=(walkstress, work)) for work in works]
    for thread in threads:
        thread.start()
    begun.wait()
    result = walkstress.walk(times)
    done.set()
    for thread in threads:
        thread.join()
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--module", help=argparse.SUPPRESS)
    parser.add_argument("--how", choices=WAYS, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.module:
        return stress(parsed.module, parsed.times, parsed.how)
    rows = json.loads(parsed.json.read_text()) if parsed.json and parsed.json.exists() else {}
    with tempfile.TemporaryDirectory() as directory:
        build(Path(directory))
        for how in WAYS:
            began = time.monotonic()
            found = walk(Path(directory), parsed.times, how)
            rows[f"CPython {platform.python_version()}, {how}"] = {
                "walks": parsed.times,
                **found._asdict(),
                "greenlets": has_greenlets(),
                "seconds": round(time.monotonic() - began),
                "load average": round(os.getloadavg()[0], 1),
            }
            print(how, found)
    if parsed.json:
        parsed.json.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    return None


if __name__ == "__main__":
    main()
