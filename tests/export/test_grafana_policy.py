"""The dashboards' row about the collector's policy, on a real Prometheus: its panels show what snapshot() has.

As in test_grafana.py: a scrape before the load and one after it, each between two equal snapshots, and ranges that are
the time between these two.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tailwatch import snapshots

from ..support.ports import free_port
from ..support.process import Script
from ..support.prometheus import Prometheus, Release
from .test_grafana import (
    CONFIGURATION,
    FOLDER,
    Planted,
    Scene,
    between_equals,
    differences,
    in_memory,
    panels,
    shown,
)

PROCESS = Path(__file__).parent / "slicing_process.py"

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]  # Prometheus takes five seconds to begin


class Slicing(Script):
    """The process, and what is asked of it."""

    def __init__(self, directory: str) -> None:
        self.directory, self.port = directory, free_port()
        super().__init__(PROCESS, directory, self.port)
        assert self.read_line() == "done"

    def load(self) -> None:
        self.write("again")
        assert self.read_line() == "done"

    def snapshot(self) -> snapshots.Snapshot:
        return snapshots.take_directory(self.directory)

    quiet = snapshot


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, release: Release) -> Iterator[Scene]:
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(Slicing(stack.enter_context(in_memory())))
        text = CONFIGURATION.format(rules=FOLDER / "tailwatch.rules.yml", target=process.port, other=free_port())
        prometheus = Prometheus(release, tmp_path_factory.mktemp("prometheus"), process.port, (), text)
        stack.callback(prometheus.close)
        prometheus.wait_for(f'up{{instance="127.0.0.1:{process.port}"}} == 1')
        process.load()  # every series there is to be
        first, (earlier, _) = between_equals(process, prometheus)
        process.load()
        last, later = between_equals(process, prometheus)
        yield Scene(
            planted=cast("Planted", process),  # its port is all that is read of it
            prometheus=prometheus,
            native=False,
            first=first,
            last=last,
            samples=0,
            stalls=0,
            earlier=earlier,
            later=later,
            signals=({}, {}),
        )


def expected(scene: Scene) -> dict[str, dict[str, Any]]:
    """By title: what each line shows."""
    now, gained = scene.later[0].processes[0].policy, (scene.later[0] - scene.earlier).processes[0].policy

    def lines(values: dict[str, Any], per: float = 1.0) -> dict[str, float]:
        return {f"engine-0 {name}": value / per for name, value in values.items()}

    return {
        "Policies": lines({"idle slices ": 1.0}),
        "Slices": lines(gained.slices, scene.seconds),
        "Other collections": lines(gained.collections, scene.seconds),
        "What it takes, and was predicted to": lines(
            {"slices": gained.seconds, "predicted": gained.predicted_seconds, "full collections": gained.full_seconds},
            scene.seconds,
        ),
        "Objects it goes through": lines(
            {
                "moved": gained.moved,
                "freed": gained.freed,
                "by full collections": gained.full_freed,
                "cycles": gained.cycles,
            },
            scene.seconds,
        ),
        "Heap": lines({"unfrozen": now.unfrozen, "frozen": now.frozen}),
        "Backlog": {"engine-0": now.backlog},
        "Interference and memory limits": lines(gained.interference | gained.memory_limits),
    }


@pytest.mark.parametrize("kind", ["classic", "native"])
def test_every_panel_shows_what_was_counted(scene: Scene, kind: str) -> None:
    """Each line is the oracle's."""
    oracle, row = expected(scene), panels(kind, of_policy=True)
    wrong = {panel["title"]: differences(shown(scene, panel), oracle.pop(panel["title"]), scene.slack) for panel in row}
    assert not any(wrong.values()), json.dumps({title: found for title, found in wrong.items() if found}, indent=1)
    assert not oracle, "expected of no panel"


def test_the_load_reaches_every_panel(scene: Scene) -> None:
    """None is right only because all of it is 0 (but the backlog, which the last slice may have worked off), and both
    sides of what is predicted are there."""
    oracle = expected(scene)
    del oracle["Backlog"]
    assert all(any(lines.values()) for lines in oracle.values()), oracle
    assert all(oracle["What it takes, and was predicted to"].values())
    assert oracle["Interference and memory limits"]["engine-0 objects"] == 1
    assert oracle["Interference and memory limits"]["engine-0 disable"] == 1
