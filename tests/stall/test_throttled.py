"""A CPU quota's throttling is named, in a real cgroup."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ..support.cgroups import ENTER, limited
from ..support.process import clean_environment

SERVER = """
import asyncio, json, re, sys, time
from pathlib import Path
import tailwatch

def throttled():  # seconds, as the kernel counts, summed over CPUs
    text = "".join(path.read_text() for path in map(Path, sys.argv[1:]) if path.exists())
    found = re.search(r"^throttled_(time|usec) (\\d+)", text, re.MULTILINE)
    return 0.0 if found is None else int(found[2]) / (1e9 if found[1] == "time" else 1e6)

async def main():
    with tailwatch.stream(model="m") as stream:
        for _ in range(60):
            await asyncio.sleep(0.01)
            stream.token()
        global before
        before = throttled()  # that of the imports delays no token, and is more than a second on a slow machine
        while throttled() < before + 1:  # two thirds of a CPU are wanted: beyond the quota, also of a busy machine
            await asyncio.sleep(0.01)
            end = time.perf_counter() + 0.02
            while time.perf_counter() < end:
                pass
            stream.token()

tailwatch.install(gc="observe", quiet=True)
asyncio.run(main())
found = {cause: tailwatch.snapshot().delay.get(cause, 0.0) for cause in ("throttled", "cpu")}
print(json.dumps({**found, "truth": throttled() - before}))
"""


@pytest.mark.slow
def test_waits_for_the_quota_are_throttled() -> None:
    """Of the waits for a CPU, as much as the kernel counts as throttled: two fifths of that at least, since it counts
    also what delayed no token."""
    with limited("throttled", "1Gi", 0.15) as limits:
        if not limits.folders:
            pytest.skip("no cgroup with a quota can be made: it needs root and a writable /sys/fs/cgroup")
        environment = {**clean_environment(), **limits.variable}
        files = [str(folder / "cpu.stat") for folder in limits.folders]
        command = [*ENTER, sys.executable, "-c", SERVER, *files]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment)
    assert done.returncode == 0, done.stderr
    delay = json.loads(done.stdout)
    truth = delay["truth"]
    assert delay["throttled"] >= 0.4 * min(truth, delay["throttled"] + delay["cpu"]), (delay, truth)
