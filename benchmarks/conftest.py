"""`python -m pytest benchmarks` finds bench_*.py, and they find harness.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
# `python -m pytest` puts the source tree first, where the compiled modules are not: the installed package is meant.
sys.path[:] = [str(HERE), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE.parent)]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Benchmarks are not named test_*. A file that the command line names is collected by pytest itself."""
    if file_path.parent == HERE and file_path.match("bench_*.py") and not parent.session.isinitpath(file_path):
        return pytest.Module.from_parent(parent, path=file_path)
    return None


def pytest_configure(config: pytest.Config) -> None:
    """The peers warn about themselves."""
    config.addinivalue_line("filterwarnings", "ignore:::opentelemetry")


def pytest_itemcollected(item: pytest.Item) -> None:
    """A benchmark takes as long as it takes: the limit of a test is not its own."""
    if item.path.parent == HERE:
        item.add_marker(pytest.mark.timeout(0))
