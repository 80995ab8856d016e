"""The line with which a server begins."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailwatch
from tailwatch import snapshots
from tailwatch.errors import EmptyGroupError
from tailwatch.runtime.announcement import Announcement

from ..support.process import Serving, clean_environment
from ..support.waiting import until

APP = """
import logging
logging.getLogger().setLevel(logging.ERROR)
async def app(scope, receive, send):
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            break
"""


class App:
    """One that has a route of that path, or none."""

    def __init__(self, routes: tuple[Any, ...] = ()) -> None:
        self.routes = list(routes)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Never asked here."""


class Wrapper:
    """As uvicorn puts one around each app."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Never asked here."""


class Route:
    """As Starlette's."""

    path = "/metrics"


@contextlib.contextmanager
def tailwatch_installed(app: Any = None, **options: Any) -> Iterator[Any]:
    """Installed inside."""
    watch = tailwatch.install(app, **options)
    try:
        yield watch
    finally:
        tailwatch.uninstall()


def lines(caplog: pytest.LogCaptureFixture, watch: Any, steps: tuple[str, ...] = ()) -> list[str]:
    """What a new announcement of a watch logs in two turns."""
    caplog.clear()
    caplog.set_level(logging.INFO, logger="tailwatch")
    announcement = Announcement(watch, lambda: watch.gc.policy, lambda: steps)
    announcement.turn()
    announcement.turn()
    return [record.getMessage() for record in caplog.records if record.name == "tailwatch"]


@pytest.mark.parametrize(
    ("app", "options", "parts"),
    [
        (App(), {}, ("metrics: /metrics;", "why http://127.0.0.1:PORT", "changed: nothing")),
        (App((Route(),)), {"metrics_append": True}, ("/metrics, after the app's own and /tailwatch/metrics",)),
        (Wrapper(App((Route(),))), {}, ("metrics: /tailwatch/metrics;",)),
        (None, {}, ("watches worker-0;", "metrics: not served", "tailwatch.why()")),
    ],
)
def test_one_line_of_what_there_is(
    app: Any, options: dict[str, Any], parts: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Version, process, metrics, changes, and the command that asks further."""
    with tailwatch_installed(app, gc="observe", **options) as watch:
        (line,) = lines(caplog, watch)
    for part in (f"tailwatch {tailwatch.__version__} watches ", *parts):
        assert part in line


def test_an_engines_steps_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Beside the line of the process."""
    with tailwatch_installed(gc="freeze") as watch:
        first, second = lines(caplog, watch, ("engine.Core.step",))
    assert "changed: gc=freeze;" in first and second.endswith("worker-0 counts the engine's steps: engine.Core.step")


def test_quiet_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """No line, no level, no handler."""
    before = logging.getLogger("tailwatch").level, list(logging.getLogger("tailwatch").handlers)
    with tailwatch_installed(App(), gc="observe", quiet=True) as watch:
        assert (logging.getLogger("tailwatch").level, logging.getLogger("tailwatch").handlers) == before
        assert lines(caplog, watch, ("engine.Core.step",)) == []


@pytest.mark.integration
@pytest.mark.parametrize("quiet", [False, True])
def test_one_line_for_all_workers(quiet: bool, tmp_path: Path) -> None:
    """Of three, in a server whose root logger shows errors only; none with --quiet, and none of the launcher's."""
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    group = tmp_path / "group"
    group.mkdir(mode=0o700)
    options = [f"--dir={group}", *(["--quiet"] if quiet else [])]
    uvicorn = [sys.executable, "-m", "uvicorn", "app:app", "--port", "0", "--workers", "3"]
    command = [sys.executable, "-m", "tailwatch", "run", *options, "--", *uvicorn]

    def served_for_seconds() -> bool:
        try:
            processes = snapshots.take_directory(str(group)).processes
        except EmptyGroupError:
            return False
        return sum(each.role == "api" and each.age > 2.5 for each in processes) == 3

    with Serving(*command, log=tmp_path / "log", cwd=tmp_path, env=clean_environment()) as server:
        until(lambda: server.log().count("startup complete") == 3, "three workers")
        until(served_for_seconds, "their daemons' first turns")
        log = server.stop()
    ours = [line for line in log.splitlines() if "tailwatch" in line]
    announced = [line for line in ours if f"late tokens: tailwatch why --dir {group}" in line]
    assert len(announced) == (0 if quiet else 1), log
    assert not quiet or ours == [], log
