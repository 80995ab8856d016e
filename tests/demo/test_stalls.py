"""`tailwatch demo --stalls`: what is planted in the demo's server is named, and what is added up is what was seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the demo's server needs it: pip install '.[demo]'")
pytest.importorskip("uvicorn", reason="the demo's server needs it: pip install '.[demo]'")

from tailwatch.demo import stalls
from tailwatch.options.slo import SLO

from ..support.process import clean_environment

BOUNDS = SLO.parse("itl<=100ms@99%")


def part(cause: str, seconds: float, what: str = "", certainty: str = "sampled") -> dict[str, Any]:
    """One cause of a late token."""
    return {"cause": cause, "seconds": seconds, "what": what, "certainty": certainty}


def test_causes_are_added_up_by_function() -> None:
    """Of two tokens: the largest first, its name that of its largest part; waits for a CPU do not come first."""
    tokens = [
        {"late": 0.1, "causes": [part("io", 0.03, "plant_pipe  plants.py:7  [read pipe:[1]]"), part("cpu", 0.07)]},
        {"late": 0.1, "causes": [part("io", 0.06, "plant_pipe  plants.py:7  [read pipe:[2]]"), part("upstream", 0.04)]},
    ]
    found = stalls.summarize("pipe", {"seconds": 0.2, "tokens": tokens})
    assert [each["cause"] for each in found["causes"]] == ["io", "cpu", "upstream"]
    assert [each["seconds"] for each in found["causes"]] == pytest.approx([0.09, 0.07, 0.04])
    assert found["causes"][0]["what"].endswith("pipe:[2]]")
    assert found["explained"] == pytest.approx(0.8)
    assert found["named"]
    assert not stalls.summarize("lock", {"seconds": 0.2, "tokens": tokens})["named"]
    assert stalls.summarize("pipe", {"seconds": 0.2, "tokens": []})["explained"] is None


def test_a_planted_stall_is_named() -> None:
    """In the demo's own server under its own load, once of two at least; the text has it."""
    report = stalls.measure(BOUNDS, 1, ("sleep",), rounds=2)
    (plant,) = report["plants"].values()
    assert plant["seconds"] >= 2 * 0.08
    assert plant["tokens"] > 0
    assert plant["late"] == pytest.approx(sum(each["seconds"] for each in plant["causes"]), rel=0.01)
    assert "plant_sleep" in stalls.text_of(report)


@pytest.mark.slow
def test_all_of_them(tmp_path: Path) -> None:
    """The command: a paragraph for each; those in which the loop sleeps are named whatever else the machine does."""
    file = tmp_path / "stalls.json"
    command = [sys.executable, "-m", "tailwatch", "demo", "--stalls", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    assert list(report["plants"]) == list(stalls.NAMES)
    for plant in report["plants"].values():
        assert plant["title"] in done.stdout
    assert [name for name in ("sleep", "pipe", "lock") if not report["plants"][name]["named"]] == []
