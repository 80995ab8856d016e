"""What an import costs, by what it brings along: every process of a server pays for that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tailwatch

EXPENSIVE = {
    *("asyncio", "email", "hashlib", "http", "importlib.metadata", "multiprocessing", "numpy", "orjson", "pathlib"),
    *("prometheus_client", "shutil", "socket", "ssl", "subprocess", "tempfile", "urllib", "uuid", "zipfile"),
}
MEBIBYTE = 2**20

MEASURED = """
import json, sys
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
before = resident(), set(sys.modules)
import tailwatch
{then}
print(json.dumps([resident() - before[0], sorted(set(sys.modules) - before[1])]))
"""


def cost(then: str, directory: Path) -> tuple[int, set[str]]:
    """Bytes and modules that importing tailwatch and a line of code bring into a bare process."""
    command = [sys.executable, "-I", "-c", MEASURED.format(then=then)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    size, names = json.loads(done.stdout)
    return size, set(names)


def test_an_import_brings_little(tmp_path: Path) -> None:
    """The compiled modules are there, and of the rest only what they need: the names are imported on first use."""
    size, names = cost("", tmp_path)
    ours = {name for name in names if name.startswith("tailwatch.")}
    assert ours == {
        "tailwatch._cold",
        "tailwatch._cold.lib",
        "tailwatch._hot",
        "tailwatch.errors",
        "tailwatch.platform",
    }
    assert names & (EXPENSIVE | {"dataclasses", "logging"}) == set()
    assert size < 8 * MEBIBYTE  # 3 are usual


def test_an_engine_publishes_nothing_and_imports_no_publisher(tmp_path: Path) -> None:
    """install() in a process without an app, and what its daemon does: no exporter, no event loop, no HTTP."""
    size, names = cost("tailwatch.install(role='engine'); tailwatch.snapshot(); tailwatch.uninstall()", tmp_path)
    assert names & EXPENSIVE == set()
    published = {"export.page", "export.prometheus", "export.otel.exporter", "diagnose.rules", "serve.http_server"}
    assert {f"tailwatch.{name}" for name in published} & names == set()
    assert size < 16 * MEBIBYTE  # 11 are usual, 2 of them the memory of the numbers


@pytest.mark.parametrize("name", tailwatch.__all__)
def test_public_names_are_there_from_the_start(name: str, tmp_path: Path) -> None:
    """Each of them can be the first that is used, in both ways."""
    code = f"from tailwatch import {name} as one; import tailwatch; assert tailwatch.{name} is one"
    subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, check=True)


def test_other_names_are_missing() -> None:
    """As of any module."""
    with pytest.raises(AttributeError, match="module 'tailwatch' has no attribute 'instal'"):
        _ = tailwatch.instal  # type: ignore[attr-defined]
    assert set(tailwatch.__all__) <= set(dir(tailwatch))
