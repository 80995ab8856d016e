"""Stacks are read while their threads call, return, raise, switch greenlets and end: without a fault, as they were."""

from __future__ import annotations

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
    found = walks.walk(walkstress, 500_000, how)
    assert found.accepted >= found.levels > 0
    assert found.inconsistent <= max(1, found.levels // 1000)
