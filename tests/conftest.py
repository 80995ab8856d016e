"""The installed package is tested, never the source tree beside it. Hypothesis profiles: "quick" by default, whose
examples are the same in each run; "thorough" with HYPOTHESIS_PROFILE=thorough."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from .support.limits import Limits

_ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT]  # `python -m pytest` adds it

# Fixtures of all folders; they import the installed package.
from .support.live_servers import (  # noqa: E402, F401
    ask,
    directory,
    flavour,
    no_collections,
    observation,
    serve,
    sse_server,
    stage,
    start_up,
    wait_until,
)
from .support.native import native, run_ended, run_script  # noqa: E402, F401
from .support.prometheus import release  # noqa: E402, F401
from .support.random_frames import random_frames  # noqa: E402, F401

settings.register_profile("quick", deadline=None, max_examples=60, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(autouse=True)
def _outside_the_source_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreters that a test starts find the installed package too."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all workers of a run: see once()."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def _shared_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What members of groups left that were killed is removed with their directories."""
    from tailwatch import snapshots

    yield
    for path in {file.parent for file in tmp_path_factory.getbasetemp().rglob("*.seg")}:
        with suppress(OSError):
            snapshots.remove_shared(str(path))


def pytest_configure(config: pytest.Config) -> None:
    """Limits for each test and for the processes that it starts."""
    config.pluginmanager.register(Limits(config), "limits")


def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: tests wait for their children half of the time, so two processes more than there are processors."""
    return min(len(os.sched_getaffinity(0)) + 2, 8)
