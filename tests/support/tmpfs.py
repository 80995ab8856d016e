"""Programs whose group is on a small tmpfs; a container's /dev/shm has 64 MB by default."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# In a mount and an IPC namespace of its own: no shared memory outlives it; as root of a user namespace or as root.
MOUNT = 'mount -t tmpfs -o size=${TMPFS_MB}m,mode=0700 none "$0" && exec "$@"'

PRELUDE = """
import os, sys
place = sys.argv[1]
directory = os.path.join(place, "group")

def free():
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize
"""


def on_64_mb(tmp_path: Path, program: str, **variables: str) -> dict[str, Any]:
    """As on_tmpfs()."""
    return on_tmpfs(64, tmp_path, program, **variables)


def on_tmpfs(megabytes: int, tmp_path: Path, program: str, **variables: str) -> dict[str, Any]:
    """The last line that a program prints, as JSON.

    The program has ``place``, where the tmpfs is, ``directory``, a name in it for the group, and ``free()``, how many
    bytes it has left. Skips the test where none can be mounted.
    """
    place = tmp_path / "shm"
    place.mkdir(mode=0o700, parents=True)
    environment = {**os.environ, **variables, "TMPFS_MB": str(megabytes)}
    space = ["--mount", "--ipc"] if os.geteuid() == 0 else ["--map-root-user", "--mount", "--ipc"]
    within = ["unshare", *space, "sh", "-c", MOUNT, str(place)]
    try:
        probe = subprocess.run([*within, "true"], capture_output=True, text=True, env=environment)
    except FileNotFoundError:
        pytest.skip("needs unshare of util-linux, to mount a tmpfs")
    if probe.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {probe.stderr.strip()}")
    command = [*within, sys.executable, "-c", PRELUDE + program, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
