"""The dashboards' row about the collector's policy, on a real Prometheus: its panels show what snapshot() says.

As in test_grafana.py: a scrape before the load and one after it, each between two equal snapshots, and ranges that are
the time between these two.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailwatch import snapshots

from ..support.ports import free_port
from ..support.prometheus import Prometheus, must_be_exact, needs
from .test_grafana import (
    CONFIGURATION,
    DEADLINE_SECONDS,
    FOLDER,
    Scene,
    counted,
    differences,
    in_memory,
    panels,
    scrape_after,
    shown,
)

PROCESS = Path(__file__).parent / "sweeping_process.py"


class Sweeping:
    """The process, and what is asked of it."""

    def __init__(self, directory: str) -> None:
        self.directory, self.port = directory, free_port()
        self._process = subprocess.Popen(
            [sys.executable, str(PROCESS), directory, str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._wait()

    def _wait(self) -> None:
        assert self._process.stdout
        assert self._process.stdout.readline() == "done\n"

    def load(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("again\n")
        self._process.stdin.flush()
        self._wait()

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(DEADLINE_SECONDS)

    def snapshot(self) -> snapshots.Snapshot:
        return snapshots.take_directory(self.directory)


def scraped(of: Sweeping, prometheus: Prometheus) -> tuple[float, snapshots.Snapshot]:
    """When a scrape was during which nothing changed, and how things were."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        before = of.snapshot()
        began = scrape_after(prometheus, of.port, time.time())
        if counted(before) == counted(of.snapshot()):
            return began, before
    pytest.fail("it does not come to rest")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with contextlib.ExitStack() as stack:
        process = Sweeping(stack.enter_context(in_memory()))
        stack.callback(process.close)
        text = CONFIGURATION.format(rules=FOLDER / "tailwatch.rules.yml", target=process.port, other=free_port())
        prometheus = Prometheus(tmp_path_factory.mktemp("prometheus"), process.port, (), text)
        stack.callback(prometheus.close)
        prometheus.wait_for(f'up{{instance="127.0.0.1:{process.port}"}} == 1')
        must_be_exact(prometheus)
        process.load()  # every series there is to be
        first, earlier = scraped(process, prometheus)
        process.load()
        last, later = scraped(process, prometheus)
        yield Scene(process, prometheus, False, first, last, 0, earlier, (later, later), ({}, {}))  # type: ignore[arg-type]


def expected(scene: Scene) -> dict[str, dict[str, Any]]:
    """By title: what each line shows."""
    now, gained = scene.later[0].processes[0].policy, (scene.later[0] - scene.earlier).processes[0].policy

    def lines(values: dict[str, Any], per: float = 1.0) -> dict[str, float]:
        return {f"engine-0 {name}": value / per for name, value in values.items()}

    return {
        "Policies": lines({"out-of-band sweep ": 1.0}),
        "Slices": lines(gained.slices, scene.seconds),
        "Other collections": lines(gained.passes, scene.seconds),
        "What it takes, and was predicted to": lines(
            {"slices": gained.seconds, "predicted": gained.predicted_seconds, "passes": gained.pass_seconds},
            scene.seconds,
        ),
        "Objects it goes through": lines(
            {"moved": gained.moved, "freed": gained.freed, "by passes": gained.pass_freed, "rounds": gained.rounds},
            scene.seconds,
        ),
        "Heap": lines({"unfrozen": now.unfrozen, "frozen": now.frozen, "to sweep": now.debt}),
        "Drift and ceilings": lines(gained.drift | gained.ceilings),
    }


@needs["prometheus"]
@pytest.mark.parametrize("kind", ["classic", "native"])
def test_every_panel_shows_what_was_counted(scene: Scene, kind: str) -> None:
    """Each line is the oracle's."""
    oracle, row = expected(scene), panels(kind, of_policy=True)
    wrong = {panel["title"]: differences(shown(scene, panel), oracle.pop(panel["title"])) for panel in row}
    assert not any(wrong.values()), json.dumps({title: found for title, found in wrong.items() if found}, indent=1)
    assert not oracle, "expected of no panel"


@needs["prometheus"]
def test_the_load_reaches_every_panel(scene: Scene) -> None:
    """None is right only because all of it is 0, and both sides of what is predicted are there."""
    oracle = expected(scene)
    assert all(any(lines.values()) for lines in oracle.values()), oracle
    assert all(oracle["What it takes, and was predicted to"].values())
    assert oracle["Drift and ceilings"]["engine-0 objects"] == 1
    assert oracle["Drift and ceilings"]["engine-0 disable"] == 1
