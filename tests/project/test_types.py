"""What a user's type checker makes of the public API: strict mypy and strict pyright, in a project of their own."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tailwatch
from tailwatch.options.config import OPTIONS
from tailwatch.runtime.session import Watch

PROJECT = '''"""A user's server."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.middleware import Middleware

import tailwatch

app = Starlette(middleware=[Middleware(tailwatch.Middleware, gc="observe")])
watch: tailwatch.Watch = tailwatch.install(app, gc="freeze", slo="ttft<=1s", routes=["/a"], slow_gap_ms=100)


def worst(snap: tailwatch.Snapshot) -> list[tuple[str, float]]:
    slow: list[tailwatch.SlowGap] = list(snap.slowest)
    return [(gap.request_id, gap.gap) for gap in slow]


def report() -> str:
    findings: list[tailwatch.Finding] = tailwatch.doctor()
    status: tailwatch.GCStatus = tailwatch.gc_status()
    load: tailwatch.LoadSignal = tailwatch.load_signal()
    frozen: tailwatch.Freeze = tailwatch.freeze()
    itl: tailwatch.Histogram = tailwatch.snapshot("5m").itl
    return f"{findings} {status} {load} {frozen} {itl.p(99)} {worst(tailwatch.snapshot())}"


async def tokens(words: AsyncIterator[str]) -> None:
    async with tailwatch.stream(model="m") as stream:
        one: tailwatch.Stream = stream
        async for _ in words:
            one.token()
    with tailwatch.step("decode", batch=32) as step:
        kind: tailwatch.Step = step
        kind.waiting = 3


left: list[str] = tailwatch.uninstall()
'''
WRONG = """import tailwatch

tailwatch.install(None, gcc="freeze")
tailwatch.install(gc="frozen")
tailwatch.install(max_label_sets="many")
tailwatch.Middleware(None, gcc="freeze")
tailwatch.install().no_such_thing
after: int = "reached"
"""
LINES = [3, 4, 5, 6, 7, 8]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Its folder."""
    (tmp_path / "server.py").write_text(PROJECT)
    (tmp_path / "wrong.py").write_text(WRONG)
    return tmp_path


def checked(module: str, *arguments: str) -> str:
    """What a checker prints."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install '.[test]'")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=300, env=environment
    )
    if module == "pyright" and not done.stdout.startswith(("{", "0", "/", "Module")):
        pytest.skip(f"pyright cannot run: it needs Node, or to fetch it once: {(done.stderr or done.stdout)[-300:]}")
    return done.stdout


@pytest.mark.slow
def test_mypy_in_a_strict_project(project: Path) -> None:
    """The right lines are right, also after install(), and each wrong one is found."""
    found = checked("mypy", "--strict", "--no-incremental", "--warn-unreachable", "server.py", "wrong.py")
    errors = re.findall(r"^(\w+)\.py:(\d+): error", found, re.MULTILINE)
    assert sorted({(file, int(line)) for file, line in errors}) == [("wrong", line) for line in LINES], found


@pytest.mark.slow
def test_pyright_in_a_strict_project(project: Path) -> None:
    """The same; nothing is unreachable, on whatever system the editor runs."""
    for system in ("Linux", "Darwin", "Windows"):
        configuration = {"typeCheckingMode": "strict", "pythonPlatform": system, "include": ["*.py"]}
        (project / "pyrightconfig.json").write_text(json.dumps(configuration))
        found = json.loads(checked("pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(project)))
        places = {
            (Path(each["file"]).stem, each["range"]["start"]["line"] + 1)
            for each in found["generalDiagnostics"]
            if each["severity"] == "error"
        }
        assert sorted(places) == [("wrong", line) for line in LINES], found["generalDiagnostics"]


@pytest.mark.slow
def test_public_types_are_complete() -> None:
    """Of each public name, and of its members, wherever in the package it is defined."""
    found = json.loads(checked("pyright", "--outputjson", "--ignoreexternal", "--verifytypes", "tailwatch"))
    public = [getattr(tailwatch, name) for name in tailwatch.__all__ if name[0].isalpha()]
    homes = {f"{each.__module__}.{each.__qualname__}" for each in public if hasattr(each, "__qualname__")}
    known = {
        each["name"]: each["isTypeKnown"] and not each["isTypeAmbiguous"]
        for each in found["typeCompleteness"]["symbols"]
        if any(each["name"] == home or each["name"].startswith(home + ".") for home in homes)
    }
    for part in ("", ".coordinator", ".gc", ".tracing", ".nvtx", ".otel"):  # what a Watch is made of is internal
        known.pop(f"{Watch.__module__}.{Watch.__qualname__}{part}")
    assert len(known) > 200
    assert sum(known.values()) / len(known) >= 0.99, [name for name, complete in known.items() if not complete]


def test_the_options_are_those_of_the_configuration() -> None:
    """Each has its type and a line of documentation, and there is no other."""
    assert set(tailwatch.Options.__annotations__) == set(OPTIONS)
    source = Path(inspect.getsourcefile(tailwatch.Options) or "").read_text()
    for name in OPTIONS:
        assert re.search(rf'^    {name}: .*\n    """\w', source, re.MULTILINE), name
