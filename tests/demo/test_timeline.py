"""The single gaps and pauses that the demo keeps for a picture."""

from __future__ import annotations

import gc
import json
import random
from array import array
from itertools import accumulate

import pytest

from tailwatch.demo import timeline as timelines
from tailwatch.demo.timeline import timeline


def stamps(first: float, gaps: list[float]) -> bytes:
    """Of a request whose first token came then, in seconds."""
    return array("Q", (round(1e9 * at) for at in accumulate(gaps, initial=first))).tobytes()


def test_gaps_and_pauses_are_on_one_clock() -> None:
    """A gap is given by its end, a pause by its start, both less the start of the schedule."""
    pause = {"start": 1002.52, "seconds": 0.28, "cause": "gc2"}

    found = timeline([stamps(1002.5, [0.01, 0.3, 0.01, 0.01])], 1_000_000_000_000, [pause], seed=1)

    assert found["ends"] == [2.51, 2.81, 2.82, 2.83]
    assert found["gaps"] == [0.01, 0.3, 0.01, 0.01]
    assert found["pauses"] == [{"start": 2.52, "seconds": 0.28, "cause": "gc2"}]
    assert (found["median"], found["slow"], found["others"]) == (0.01, 1, 3)


def test_every_slow_gap_is_kept_and_a_seeded_sample_of_the_others() -> None:
    """The same seed gives the same sample; the counts are those of the whole."""
    gaps = [0.01] * 5_000 + [0.2] * 300
    random.Random(7).shuffle(gaps)

    found, again, other = (timeline([stamps(0.1, gaps)], 0, [], seed) for seed in (1, 1, 2))

    assert found["gaps"].count(0.2) == found["slow"] == 300
    assert found["gaps"].count(0.01) == timelines.MOST_OTHERS and found["others"] == 5_000
    assert found == again != other
    assert found["ends"] == sorted(found["ends"])


def test_its_size_is_bounded() -> None:
    """Of too many slow gaps and pauses the longest are kept, and the JSON of an arm stays below 200 KB."""
    rng = random.Random(1)
    answers = [stamps(at / 100, [0.01] * 12 + [rng.uniform(0.1, 1.0) for _ in range(9)]) for at in range(2_000)]
    pauses = [{"start": at / 7, "seconds": 0.001 * at, "cause": "gc2"} for at in range(1, 2_000)]

    found = timeline(answers, 0, pauses, 1)

    assert len(found["gaps"]) == len(found["ends"]) == timelines.MOST_SLOW + timelines.MOST_OTHERS
    assert len(found["pauses"]) == timelines.MOST_PAUSES and found["pauses"][0]["seconds"] == pytest.approx(1.5)
    assert found["slow"] == 18_000 and max(found["gaps"]) > 0.99
    assert len(json.dumps(found)) < 200_000


def test_an_arm_without_tokens_has_an_empty_timeline() -> None:
    """Nothing came back: no gaps, no division by a median of nothing."""
    found = timeline([b""], 0, [], 1)

    assert (found["gaps"], found["pauses"], found["median"]) == ([], [], 0.0)


def test_the_server_returns_the_pauses_of_its_window() -> None:
    """Those from the mark on, on the client's clock; short ones are left out."""
    pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    import time

    import tailwatch
    from tailwatch.demo import server

    heap: list[list[int]] = [[] for _ in range(300_000)]
    tailwatch.install(gc="observe")
    try:
        gc.collect()
        window = server.Pauses()
        before = time.monotonic()
        gc.collect()
        after = time.monotonic()
        found = window.finish()
    finally:
        tailwatch.uninstall()

    full = [pause for pause in found if pause["cause"] in ("gc2", "gc_full")]
    assert len(heap) == 300_000 and len(full) == 1
    assert before <= full[0]["start"] <= full[0]["start"] + full[0]["seconds"] <= after
    assert all(pause["seconds"] >= server.SHORTEST for pause in found)
