"""Stacks are read while their threads call, return, raise and end: without a fault, and as they were."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from ..support.process import clean_environment

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("walks.py")
WALKS = 2_000_000


@pytest.fixture(scope="module")
def walkstress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the reader of stacks as a module of its own."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "these tests need the C compiler that built the package"
    directory = tmp_path_factory.mktemp("walkstress")
    core = ROOT / "csrc"
    includes = [f"-I{path}" for path in (sysconfig.get_path("include"), core / "include", core, core / "stall")]
    source, target = ROOT / "tests" / "native" / "walkstress.c", directory / "walkstress.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-D_GNU_SOURCE", *includes, str(source), "-o", str(target), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return directory


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("how", ["free", "filtered"])
def test_no_walk_faults(walkstress: Path, how: str) -> None:
    """Also where process_vm_readv() would end the process. Next to none of the accepted stacks is of two moments: two
    of the four read may be of threads that have ended, in memory that is used again."""
    command = [sys.executable, str(SCRIPT), str(walkstress), str(WALKS), how]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment())
    assert done.returncode == 0, done.stderr
    accepted, inconsistent, levels = json.loads(done.stdout)
    assert accepted >= levels > 0
    assert inconsistent <= max(1, levels // 1000)
