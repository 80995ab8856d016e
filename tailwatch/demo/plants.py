"""Stalls of an event loop, made on purpose, each with a log of its own: what `tailwatch demo --stalls` plays, and what
the tests of stalls judge by."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

LENGTH = 0.08
HELD = 20  # characters of a match that keeps the interpreter lock: tens of milliseconds; one more doubles it
SHORT = 0.002
SHORT_ONES = 5
log: list[tuple[str, int, int]] = []  # plant, from, to: by the plants themselves

STOPPER = """
import os, signal, sys, time
pid = int(sys.argv[1])
time.sleep(0.05)
began = time.monotonic_ns()
os.kill(pid, signal.SIGSTOP)
time.sleep(float(sys.argv[2]))
os.kill(pid, signal.SIGCONT)
print(began, time.monotonic_ns(), flush=True)
"""


def plant_sleep() -> None:
    """The loop's thread sleeps."""
    time.sleep(LENGTH)


def plant_python() -> None:
    """Python code."""
    until = time.monotonic() + LENGTH
    while time.monotonic() < until:
        pass


def plant_short() -> None:
    """A callback itself, one of several in a turn of the loop: too short for a sample each."""
    began = time.monotonic_ns()
    while time.monotonic_ns() - began < SHORT * 1e9:
        pass
    log.append(("short", began, time.monotonic_ns()))


def plant_own() -> None:
    """Called before each stamp."""
    plant_python()


def plant_regex() -> None:
    """C code that keeps the interpreter lock."""
    until = time.monotonic() + LENGTH
    while time.monotonic() < until:
        re.match(r"(a+)+$", "a" * 17 + "b")


def plant_pipe() -> None:
    """Reads what another thread writes later."""
    reading, writing = os.pipe()
    timer = threading.Timer(LENGTH, os.write, (writing, b"x"))
    timer.start()
    os.read(reading, 1)
    timer.join()
    os.close(reading)
    os.close(writing)


def plant_fsync() -> None:
    """Writes and syncs a file."""
    until = time.monotonic() + LENGTH
    with tempfile.TemporaryFile(dir=os.path.expanduser("~")) as file:
        while time.monotonic() < until:
            file.write(b"x" * 65536)
            file.flush()
            os.fsync(file.fileno())


def plant_lock() -> None:
    """Waits for a lock that another thread releases later."""
    lock = threading.Lock()
    lock.acquire()
    timer = threading.Timer(LENGTH, lock.release)
    timer.start()
    lock.acquire()
    timer.join()


def plant_collect() -> None:
    """A full collection."""
    gc.collect()


def plant_dealloc() -> None:
    """Frees what prepare() built: by reference counts, no collection."""
    big.pop()


def plant_faults() -> None:
    """Touches each page of new memory, as long as LENGTH."""
    until = time.monotonic() + LENGTH
    while time.monotonic() < until:
        with mmap.mmap(-1, 96 << 20) as memory:
            for at in range(0, len(memory), 4096):
                memory[at] = 1


def hold_the_lock() -> None:
    """In a thread: the loop waits for the interpreter lock for as long."""
    began = time.monotonic_ns()
    while time.monotonic_ns() - began < LENGTH * 1e9:
        re.match(r"(a+)+$", "a" * HELD + "b")
    log.append(("gil", began, time.monotonic_ns()))


big: list[Any] = []
before_stamp: list[str] = []  # plants that the next token's own code runs


class Plant(NamedTuple):
    """One: what runs on the loop, the function that is to be named, the causes that are the plant's, and what it is."""

    run: Callable[[], None]
    function: str
    causes: tuple[str, ...]
    title: str


PLANTS: dict[str, Plant] = {
    "sleep": Plant(plant_sleep, "plant_sleep", ("sleep",), "time.sleep() on the event loop"),
    "python": Plant(plant_python, "plant_python", ("callback",), "a loop in Python"),
    "short": Plant(plant_short, "plant_short", ("callback",), "five callbacks of 2 ms each"),
    "own": Plant(plant_own, "plant_own", ("own_code",), "a loop in the request's own code"),
    "regex": Plant(plant_regex, "plant_regex", ("callback",), "a regular expression that backtracks"),
    "pipe": Plant(plant_pipe, "plant_pipe", ("io",), "os.read() of an empty pipe"),
    "fsync": Plant(plant_fsync, "plant_fsync", ("io", "callback"), "write() and fsync() of a file"),
    # the thread that releases it may have the interpreter
    "lock": Plant(plant_lock, "plant_lock", ("lock", "gil"), "a lock that another thread holds"),
    "collect": Plant(plant_collect, "", ("gc2",), "gc.collect()"),
    "dealloc": Plant(plant_dealloc, "plant_dealloc", ("callback",), "400,000 dicts freed at once"),
    "faults": Plant(plant_faults, "plant_faults", ("memory", "callback"), "96 MiB touched for the first time"),
    "gil": Plant(hold_the_lock, "hold_the_lock", ("gil",), "a thread that keeps the interpreter lock"),
    "stop": Plant(signal.pause, "", ("stopped",), "SIGSTOP of the process"),
}


def stop_from_outside() -> None:
    """In a thread: a child stops this process, and has it go on."""
    child = subprocess.Popen(
        [sys.executable, "-c", STOPPER, str(os.getpid()), str(LENGTH)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    began, ended = map(int, child.stdout.readline().split())
    log.append(("stop", began, ended))
    child.wait()


def start(loop: asyncio.AbstractEventLoop, name: str) -> None:
    """Soon."""
    if name == "own":
        before_stamp.append(name)
    elif name == "short":
        for _ in range(SHORT_ONES):
            loop.call_soon(plant_short)
    else:
        loop.call_soon(run, name)


def run(name: str) -> None:
    """On the loop, or beside it."""
    if name == "gil":
        threading.Thread(target=hold_the_lock).start()
    elif name == "stop":
        threading.Thread(target=stop_from_outside).start()
    else:
        began = time.monotonic_ns()
        PLANTS[name].run()
        log.append((name, began, time.monotonic_ns()))


def prepare(name: str) -> None:
    """What a plant needs to be there before."""
    if name == "dealloc":
        big.append([{"a": [i]} for i in range(400_000)])
        gc.collect()
        gc.freeze()
    if name == "collect":
        big.append([[i] for i in range(300_000)])
