"""The limits of a test run (tests/support/limits.py, guardian.py), on runs of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.process import Process
from ..support.waiting import until

pytestmark = pytest.mark.timeout(300)  # each is a whole run of pytest, which takes a minute where the machine is busy
TESTS = Path(__file__).resolve().parents[1]
CONFTEST = f"""
import sys
sys.path.append({str(TESTS)!r})
from support.limits import Limits
def pytest_configure(config):
    config.pluginmanager.register(Limits(config), "limits")
"""
CHILD = "import time\ndef in_the_child():\n    time.sleep(600)\nprint(flush=True)\nin_the_child()"
HANGS = f"""
import pytest, signal, subprocess, sys, threading
@pytest.mark.timeout(50)
def test_waits():
    command = [sys.executable, "-c", {CHILD!r}]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as child:
        child.stdout.readline()
        signal.setitimer(signal.ITIMER_REAL, 0.05)  # the limit is reached now
        try:
            threading.Event().wait()
        finally:
            child.kill()
def test_goes_on():
    pass
"""
IN_C = """
import collections, itertools, pytest, support.limits
support.limits.GRACE_SECONDS = 1
@pytest.mark.timeout(1)
def test_never_lets_go():
    collections.deque(itertools.repeat(0), 0)  # a loop in C, with the GIL: no handler of a signal runs
"""
LEAVES = f"""
import os, subprocess, sys
def test_leaves():
    command = [sys.executable, "-c", {CHILD!r}]
    child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    open({{place!r}}, "w").write(str(child.pid))
    child.returncode = 0  # its destructor is silent
"""
WAITS = f"""
import os, subprocess, sys, time
def test_waits():
    command = [sys.executable, "-c", {CHILD!r}]
    child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.readline()
    print(child.pid, file=sys.__stdout__, flush=True)
    time.sleep(600)
"""


def command(tmp_path: Path, source: str, *options: str) -> list[str]:
    """Of a run of one file under these limits."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone: x\n")
    (tmp_path / "test_it.py").write_text(source)
    plugins = [part for name in ("no:cacheprovider", "pytest_timeout", "xdist") for part in ("-p", name)]
    alone = ["env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", sys.executable, "-m", "pytest"]  # others cost a second or two
    return [*alone, "-q", *plugins, *options, str(tmp_path / "test_it.py")]


def run(tmp_path: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Such a run, to its end."""
    return subprocess.run(command(tmp_path, source, *options), capture_output=True, text=True, timeout=240)


def is_there(pid: int) -> bool:
    """Whether a process has not ended; one that was not waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_test_that_waits_for_ever_fails_with_the_stacks_of_its_threads_and_children(tmp_path: Path) -> None:
    """And the next one runs."""
    done = run(tmp_path, HANGS)
    assert "1 failed, 1 passed" in done.stdout
    assert "limit of 50 s" in done.stdout
    assert "threading.Event().wait()" in done.stdout
    assert "in_the_child (<string>:3)" in done.stdout


def test_a_test_that_never_leaves_c_ends_its_process(tmp_path: Path) -> None:
    """pytest-xdist reports it, and its stack is written."""
    done = run(tmp_path, IN_C, "-n1")
    assert done.returncode == 1
    assert "crashed while running" in done.stdout and "test_never_lets_go" in done.stdout
    assert re.search(r'File ".*test_it.py", line 6 in test_never_lets_go', done.stderr)


@pytest.mark.parametrize("options", [(), ("-n1",)], ids=["one process", "xdist"])
def test_a_process_that_is_left_is_ended_and_fails_the_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Also one in a session of its own."""
    done = run(tmp_path, LEAVES.format(place=str(tmp_path / "pid")), *options)
    assert done.returncode == 1
    pid = (tmp_path / "pid").read_text()
    assert f"left running by a test: {pid} " in done.stdout
    assert not is_there(int(pid))


def test_children_die_with_the_test_process(tmp_path: Path) -> None:
    """Where that is killed."""
    with Process(*command(tmp_path, WAITS, "-s")) as going:
        pid = int(going.read_line())
        assert is_there(pid)
    until(lambda: not is_there(pid), f"process {pid} is still there")
