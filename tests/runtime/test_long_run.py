"""benchmarks/long_run.py: what an hour of mixed load gave, and that its bars find what they are for."""

from __future__ import annotations

import importlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RESULT = BENCHMARKS / "results" / "long_run.json"
BLOCKS, BLOCK_NS = 90, 40_000_000_000
OF_THE_MACHINE = (
    "descriptors",
    "threads",
    "planted",
    "TTFT",
    "ITL p",
    "E2E",
)  # two short blocks show nothing of them


@pytest.fixture(scope="module")
def judging() -> Iterator[ModuleType]:
    """long_run_bars.py."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("long_run_bars")
    finally:
        sys.path.remove(str(BENCHMARKS))


def blocks_of(*, leak: float = 0.0, slower: float = 0.0, descriptors: int = 0) -> list[dict[str, Any]]:
    """An hour of made blocks: garbage, noise of a megabyte and of milliseconds on both servers. On the watched one so
    many MB an hour, ms at the p99, descriptors from block 80 on."""
    chance = random.Random(1)
    rows = []
    for i in range(BLOCKS):
        machine = chance.gauss(0, 5)
        row: dict[str, Any] = {"at_ns": i * BLOCK_NS, "sizes": {}, "turns": {}, "counts": {}}
        for arm, more in (("without", 0.0), ("with", 1.0)):
            used = 100e6 + abs(chance.gauss(0, 3e5)) + more * (30e6 + leak * 1e6 * i * BLOCK_NS / 3600e9)
            rss = used + chance.gauss(20e6, 1e6)
            row["sizes"][arm] = {"rss": rss, "pss": rss, "threads": 9, "segments": 2, "file_bytes": 8_000_000}
            row["sizes"][arm] |= {
                "segment_bytes": 8_000_000,
                "descriptors": 10 + (descriptors if more and i >= 80 else 0),
            }
            row["counts"][arm] = {"heap": {"malloc_used": used, "python_blocks": used / 100}, "threads": []}
            ms = 20 + machine + chance.gauss(0, 1) + more * slower
            row["turns"][arm] = {f"{name}_p{at}_ms": ms for name in ("ttft", "itl", "e2e") for at in (50, 99)}
        row["counts"]["with"]["tailwatch"] = {"memory_bytes": 5e6}
        rows.append(row)
    return rows


def missed(bars: list[Any]) -> list[str]:
    """Names of the bars that are not met."""
    return [bar.name for bar in bars if bar.met is False]


def test_an_hour_without_a_leak_meets_its_bars(judging: ModuleType) -> None:
    """Noise is no growth, and no slower tail."""
    rows = blocks_of()
    assert missed(judging.growth_bars(rows) + judging.tail_bars(rows)) == []


def test_a_leak_is_found(judging: ModuleType) -> None:
    """5 MB an hour beside a noise of a megabyte, by each of the four measures."""
    assert len(missed(judging.growth_bars(blocks_of(leak=5.0)))) == 4


def test_a_descriptor_more_is_found(judging: ModuleType) -> None:
    """One that is left open in the last third."""
    (name,) = missed(judging.growth_bars(blocks_of(descriptors=1)))
    assert name.startswith("descriptors")


def test_a_slower_tail_is_found(judging: ModuleType) -> None:
    """10 ms beside what the control's own blocks differ by; half a millisecond is within that, and is shown."""
    assert len(missed(judging.tail_bars(blocks_of(slower=10.0)))) == 3
    bars = judging.tail_bars(blocks_of(slower=0.5))
    assert missed(bars) == []
    assert next(bar for bar in bars if bar.name == "ITL p99, with less without: median").low > 0


def test_the_median_is_not_moved_by_blocks_of_another(judging: ModuleType) -> None:
    """Of twelve values the third and the tenth: 3.9 % of such intervals miss the median. Of three there is none."""
    values = [float(i) for i in range(11)] + [1000.0]
    assert judging.middle(values) == (5.5, 2.0, 9.0)
    assert judging.middle([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)


@pytest.fixture(scope="module")
def hour() -> dict[str, Any]:
    """The committed run."""
    found: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    return found


def test_the_bars_are_those_of_the_blocks(judging: ModuleType, hour: dict[str, Any]) -> None:
    """Judged anew, the committed blocks give the committed bars."""
    blocks = hour["blocks"]
    bars = judging.growth_bars(blocks) + judging.sample_bars(blocks, hour["readers"], hour["began"])
    bars += judging.tail_bars(blocks)
    assert [(bar.name, bar.met) for bar in bars] == [(each["name"], each["met"]) for each in hour["bars"]]


def test_an_hour_was_run(hour: dict[str, Any]) -> None:
    """Two servers, an hour, everything on: nothing grew, no sample was lost uncounted, tails are the control's."""
    blocks, end = hour["blocks"], hour["blocks"][-1]["counts"]["with"]["tailwatch"]
    assert blocks[-1]["at_ns"] - hour["began"]["at_ns"] > 58 * 60e9 and len(blocks) >= 70
    assert end["opened"] > 10_000 and end["tokens"] > 500_000 and end["sends_waited"] > 50
    assert all(end["requests"][reason] for reason in ("good", "429", "5xx", "4xx", "abort_early"))
    assert hour["readers"]["done"]["scrape"] > 600 and hour["readers"]["done"]["why"] > 50
    assert [bar["name"] for bar in hour["bars"] if bar["met"] is False] == []


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.integration
def test_two_short_blocks_lose_nothing(tmp_path: Path) -> None:
    """The script itself, quick: what was there to be counted was counted."""
    target = tmp_path / "long_run.json"
    command = [sys.executable, str(BENCHMARKS / "long_run.py"), "--quick", "--json", str(target)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(target.read_text())
    judged = [bar for bar in found["bars"] if not bar["name"].startswith(OF_THE_MACHINE)]
    assert len(judged) > 25 and [bar["name"] for bar in judged if bar["met"] is False] == []
    assert found["blocks"][-1]["counts"]["with"]["tailwatch"]["tokens"] > 500
