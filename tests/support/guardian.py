"""Children die with their parent: a process that outlives the test process, and then kills what that one started.

A descendant is found by an environment variable that the test process sets, and that children inherit: a daemon that
has left the session and the process group is found too. Run as a file: ``guardian.py PID MARK``.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import uuid

MARK = "TEST_PROCESS_MARK"


def start() -> subprocess.Popen[bytes]:
    """Marks this process, and starts its guardian; its standard input is closed when this process has ended."""
    os.environ[MARK] = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), os.environ[MARK]]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        command, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, cwd="/", start_new_session=True
    )


def marked(mark: str) -> list[int]:
    """The processes whose environment has the mark."""
    wanted = f"{MARK}={mark}".encode()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and wanted in _environment(name)]


def _environment(name: str) -> list[bytes]:
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return []


def kill_marked(mark: str) -> list[int]:
    """Kills them all, also those that they start meanwhile. Returns their process ids."""
    killed: set[int] = set()
    deadline = time.monotonic() + 10
    while (found := marked(mark)) and time.monotonic() < deadline:
        for pid in found:
            killed.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)
    return sorted(killed)


def main(pid: int, mark: str) -> None:
    """Waits for the end of a process, then kills what it started."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        select.select([os.pidfd_open(pid)], [], [])
    except ProcessLookupError:  # it has ended already
        pass
    except OSError:  # a kernel or a filter without that call
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(0.2)
    kill_marked(mark)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
