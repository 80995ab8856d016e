"""Builds the native witnesses of these tests with the running interpreter's headers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from .guardian import MARK

NATIVE = Path(__file__).parent.parent / "native"
HEADERS = Path(__file__).parents[2] / "csrc" / "third_party"
KEPT = ("LD_PRELOAD", "ASAN_OPTIONS", "PYTHONMALLOC", "PYTHONDEVMODE", MARK)  # what sanitized.sh and the guardian set


def _environment() -> dict[str, str]:
    """A short one, what the sanitizers need where this runs under them, and what a guardian finds processes by."""
    return {"PATH": "/usr/bin:/bin", **{name: os.environ[name] for name in KEPT if name in os.environ}}


def _compile(source: str, target: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "these tests need the C compiler that built the package"
    include = sysconfig.get_path("include")
    includes = [f"-I{include}", "-isystem", str(HEADERS)]
    command = [compiler, "-shared", "-fPIC", "-O2", *includes, str(NATIVE / source), "-o", str(target), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return target


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with gcprobe.so, alloccount.so and nvtx_inject.so."""
    directory = tmp_path_factory.mktemp("native")
    _compile("gcprobe.c", directory / "gcprobe.so")
    _compile("alloccount.c", directory / "alloccount.so")
    _compile("nvtx_inject.c", directory / "nvtx_inject.so")
    return directory


@pytest.fixture
def run_script(native: Path, tmp_path: Path):
    """Runs a script in a fresh interpreter that can import gcprobe; returns what it printed."""

    def run(script: str, *arguments: str, preload: bool = False, timeout: float = 120, **environment: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(script)
        env = {**_environment(), "PYTHONPATH": str(native), **environment}
        if preload:
            env["LD_PRELOAD"] = str(native / "alloccount.so")
        command = [sys.executable, str(path), *arguments]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    return run


@pytest.fixture
def run_ended(tmp_path: Path):
    """Runs a script in a fresh interpreter; returns its exit status and what it wrote to stderr."""

    def run(script: str, *arguments: str, timeout: float = 120) -> tuple[int, str]:
        path = tmp_path / "script.py"
        path.write_text(script)
        done = subprocess.run(
            [sys.executable, "-X", "dev", str(path), *arguments],
            env=_environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return done.returncode, done.stderr

    return run
