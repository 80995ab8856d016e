"""Stacks are read while their threads call, return, raise, switch greenlets and end: without a fault, as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from . import walks


@pytest.fixture(scope="module")
def walkstress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the reader of stacks as a module of its own."""
    directory = tmp_path_factory.mktemp("walkstress")
    walks.build(directory)
    return directory


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("how", walks.WAYS)
def test_no_walk_faults(walkstress: Path, how: str) -> None:
    """Also where process_vm_readv() would end the process. Next to none of the accepted stacks is of two moments: two
    of the four read may be of threads that have ended, in memory that is used again."""
    found = walks.walk(walkstress, 2_000_000, how)
    assert found.accepted >= found.levels > 0
    assert found.inconsistent <= max(1, found.levels // 1000)


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
@pytest.mark.parametrize("how", walks.WAYS)
def test_ten_million_walks_were_made(version: str, how: str) -> None:
    """The committed run of `walks.py 10000000`: no fault, with greenlets, and next to no stack of two moments."""
    rows = json.loads((walks.ROOT / "benchmarks" / "results" / "walks.json").read_text())
    row = next(row for name, row in rows.items() if name.startswith(f"CPython {version}.") and name.endswith(how))
    assert row["walks"] >= 10_000_000 and row["greenlets"]
    assert row["accepted"] >= row["levels"] > 0
    assert row["inconsistent"] <= row["levels"] // 1000
