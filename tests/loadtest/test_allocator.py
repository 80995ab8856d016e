"""Columns of many requests take the memory of their numbers, also after a schedule was made."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

ROWS = 200_000
GROWN = f"""
import sys
from array import array
from tailwatch.loadtest.process import grow_in_place
from tailwatch.loadtest.requests import COLUMNS, Requests

def resident():
    lines = dict(line.split(":") for line in open("/proc/self/status"))
    return int(lines["VmRSS"].split()[0]) * 1024

if sys.argv[1] == "grow_in_place":
    grow_in_place()
array("q", bytes(8 << 20))  # made and freed, as a schedule's columns are
rows = Requests()
appends, before = [getattr(rows, name).append for name in COLUMNS], resident()
for _ in range({ROWS}):
    for append in appends:
        append(1)
print((resident() - before) / {ROWS} / sum(array(code).itemsize for code in COLUMNS.values()))
"""


def growth(way: str) -> float:
    """Bytes that became resident, over bytes of the numbers."""
    done = subprocess.run([sys.executable, "-c", GROWN, way], capture_output=True, text=True, check=True, cwd="/")
    return float(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's malloc that is configured")
def test_columns_that_grow_side_by_side_leave_no_holes() -> None:
    """And without it they do: else there would be nothing to configure."""
    assert growth("grow_in_place") < 1.1
    assert growth("as it is") > 1.15
