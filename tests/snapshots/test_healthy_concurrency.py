"""The healthy concurrency against servers whose inflection is known: simulated in virtual time, with seeds.

The estimator was developed with other seeds (below 2000) than those that decide here. A server that is full nearly
all of the time wanders so that about one run in a hundred is not judged right; see the slow tests.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwatch._cold import ffi, lib
from tailwatch.snapshots import Healthy, Point

SECOND = 1_000_000_000
VERDICTS = ("found", "no_inflection", "few_data", "single_level")
SEEDS = (5001, 5002, 5003)
START = 10_000.0  # virtual seconds since boot


class First(NamedTuple):
    """A first token: when it came, what its arrival found in flight (itself included), and after how long."""

    at: float
    streams: int
    ttft: float


def table(firsts: Iterable[First]) -> Any:
    """Their TTFTs by concurrency."""
    ttfts = ffi.new("tw_ttft_by_concurrency *")
    for first in sorted(firsts):
        lib.tw_ttft_note(ttfts, first.streams, round(first.ttft * SECOND), round(first.at * SECOND))
    return ttfts


def find(ttft_sets: Sequence[Any], now: float) -> Any:
    """What the tables give at a virtual time."""
    out = ffi.new("tw_healthy *")
    assert (
        lib.tw_healthy_find(
            out, ffi.new("const tw_ttft_by_concurrency *[]", list(ttft_sets)), len(ttft_sets), round(now * SECOND)
        )
        == 0
    )
    return out


def verdict(found: Any) -> str:
    """In words."""
    text: bytes = ffi.string(lib.tw_healthy_name(found.verdict))
    return text.decode()


def busy_and_quiet(share: float) -> float:
    """Utilization: three waves, from a third to above what it can take."""
    return 0.75 + 0.4 * math.sin(6 * math.pi * share)


def near_full(share: float) -> float:
    """Utilization: stationary, queueing now and then."""
    return 0.95


class Served(NamedTuple):
    """How a server with so many slots behaves: seconds; spread is sigma of a log-normal first token time."""

    slots: int
    stream: float = 4.0
    base: float = 0.08
    spread: float = 0.3
    slope: float = 0.0
    stall: float = 0.0


def simulate(
    served: Served,
    seed: int,
    load: Callable[[float], float] = busy_and_quiet,
    *,
    requests: int = 0,
    start: float = START,
) -> list[First]:
    """M/M/c: Poisson arrivals, exponential streams, one queue. TTFT is flat while a slot is free, and the wait for one
    on top where none is. stall: of each 10 s the first so many seconds give no first token."""
    draw = random.Random(f"{seed}/{served.slots}/{start}")
    slots = [0.0] * served.slots
    in_flight: list[float] = []
    firsts: list[First] = []
    now, total = start, requests or 2500 + 20 * served.slots
    for number in range(total):
        now += draw.expovariate(served.slots * load(number / total) / served.stream)
        while in_flight and in_flight[0] <= now:
            heapq.heappop(in_flight)
        begin = max(heapq.heappop(slots), now)
        streams = len(in_flight) + 1
        first = begin + served.base * draw.lognormvariate(0, served.spread) + served.slope * streams
        first += max(0.0, served.stall - first % 10)
        end = max(begin + draw.expovariate(1 / served.stream), first)
        heapq.heappush(slots, end)
        heapq.heappush(in_flight, end)
        firsts.append(First(first, streams, first - now))
    return firsts


def judged(firsts: Sequence[First]) -> Any:
    """At the time of the last of them."""
    return find([table(firsts)], max(first.at for first in firsts))


# ---- M/M/c: the inflection is c ----


def test_what_queueing_cost_is_what_first_tokens_took_beyond_the_knee() -> None:
    """By the samples of higher concurrency; nothing where no knee was found."""
    found = judged(simulate(Served(8), SEEDS[0], near_full))
    points = (Point(4.0, 0.011, 1000), Point(found.streams + 8, 9.0, 10))
    healthy = Healthy("found", found.streams, 1.0, 1010, 1, 16, 1800.0, points, found)
    base = healthy.ttft(found.streams)
    assert base is not None and healthy.queued_seconds == pytest.approx(10 * (9.0 - base))
    assert dataclasses.replace(healthy, streams=None).queued_seconds == 0.0


@pytest.mark.parametrize("slots", [8, 12, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("load", [busy_and_quiet, near_full])
def test_the_slots_of_a_queue_are_found(slots: int, load: Callable[[float], float]) -> None:
    """Within 10 %, for every seed that made the server queue; the confidence is a share."""
    for seed in SEEDS:
        firsts = simulate(Served(slots), seed, load)
        if max(first.streams for first in firsts) < 1.3 * slots:
            continue  # it never queued long enough to show
        found = judged(firsts)
        assert verdict(found) == "found", seed
        assert found.streams == pytest.approx(slots, rel=0.1), seed
        assert 0 < found.confidence <= 1


@pytest.mark.slow
@pytest.mark.parametrize("slots", [8, 16, 32, 64, 128, 256])
def test_the_slots_of_a_queue_are_found_for_many_seeds(slots: int) -> None:
    """At least 97 of 100 within 10 %; the rest is random walks of a server that is full for long."""
    hits = seen = 0
    for seed in range(2000, 2100):
        firsts = simulate(
            Served(slots, stream=2.0 + seed % 7, base=0.05 + seed % 3 / 20, spread=0.1 + seed % 5 / 10), seed
        )
        if max(first.streams for first in firsts) >= 1.3 * slots:
            found = judged(firsts)
            seen += 1
            hits += verdict(found) == "found" and abs(found.streams - slots) <= 0.1 * slots
    assert seen >= 40
    assert hits >= 0.97 * seen


@pytest.mark.parametrize("slots", [8, 32, 128])
def test_a_first_line_that_rises_is_left_too(slots: int) -> None:
    """Prefills of one another's prompts: TTFT rises from the first stream on, and faster above the slots."""
    found = judged(simulate(Served(slots, slope=0.25 / slots), SEEDS[0]))
    assert verdict(found) == "found"
    assert found.streams == pytest.approx(slots, rel=0.1)


@pytest.mark.parametrize("slots", [8, 32, 128])
def test_stalls_move_nothing(slots: int) -> None:
    """A tenth of the requests wait up to a second for a collection: medians do not mind."""
    found = judged(simulate(Served(slots, stall=1.0), SEEDS[1]))
    assert found.streams == pytest.approx(slots, rel=0.1)


@pytest.mark.parametrize("slots", [16, 64])
def test_less_is_followed(slots: int) -> None:
    """A server that now has half the slots is known to, once it was used so."""
    before = simulate(Served(slots, stream=2.0), SEEDS[0])
    after = simulate(Served(slots // 2, stream=2.0), SEEDS[0], start=max(first.at for first in before) + 1)
    found = judged([*before, *after])
    assert found.streams == pytest.approx(slots / 2, rel=0.1)


def test_more_is_followed() -> None:
    """And one that has twice as many."""
    before = simulate(Served(16, stream=2.0), SEEDS[0])
    after = simulate(Served(32, stream=2.0), SEEDS[0], start=max(first.at for first in before) + 1)
    assert judged([*before, *after]).streams == pytest.approx(32, rel=0.1)


def test_processes_are_read_together() -> None:
    """The first tokens of one server that three processes served: the same answer as from one."""
    firsts = simulate(Served(32), SEEDS[0])
    parts = [table(firsts[i::3]) for i in range(3)]
    for part in parts:
        lib.tw_ttft_share(part, 0)
    found = find(parts, max(first.at for first in firsts))
    assert verdict(found) == "found"
    assert found.streams == pytest.approx(32, rel=0.1)


# ---- linear: there is none ----


def replica(seed: int, loads: Sequence[int], *, served: bool) -> list[First]:
    """The goodput chapter's FCFS server (Code 5.3.1): one server of 500 requests/s, 20 s at each load. The first token
    is the end of its service, or (not served) its begin."""
    rng = np.random.default_rng(seed)
    firsts: list[First] = []
    for number, load in enumerate(loads):
        n = rng.poisson(load * 20)
        arrivals = np.sort(rng.uniform(0, 20, n))
        services = rng.exponential(1 / 500, n)
        finishes = np.empty(n)
        finish = 0.0
        for i in range(n):
            begin = max(arrivals[i], finish)
            finishes[i] = finish = begin + services[i]
            streams = i - int(np.searchsorted(finishes[:i], arrivals[i], side="right")) + 1
            first = float(finish if served else begin)
            firsts.append(First(START + 25 * number + first, streams, first - float(arrivals[i])))
    return firsts


@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize("seed", [7, SEEDS[0]])
def test_one_server_in_line_has_no_inflection(seed: int, served: bool) -> None:
    """TTFT is linear from the start, at all loads together and at single ones; 7 is the chapter's own seed."""
    for loads in ((100, 200, 300, 400, 450, 480, 500, 520, 560), (450,), (500,), (560,)):
        found = judged(replica(seed, loads, served=served))
        assert verdict(found) == "no_inflection", loads
        assert found.streams == 0
        assert found.confidence == 0


@pytest.mark.slow
def test_one_server_in_line_has_no_inflection_for_many_seeds() -> None:
    """No false alarm in 200."""
    for seed in range(3000, 3100):
        for loads in ((480, 500), (560,)):
            assert verdict(judged(replica(seed, loads, served=True))) == "no_inflection", (seed, loads)


def test_a_server_that_never_queues_has_none() -> None:
    """256 slots and ten in use: nothing was seen of where they end."""
    assert verdict(judged(simulate(Served(256), SEEDS[0], lambda share: 0.05 + 0.05 * share))) == "no_inflection"


# ---- whatever is in it ----

SAMPLES = st.lists(
    st.tuples(
        st.integers(0, 2**64 - 1) | st.integers(1, 300),
        st.integers(0, 2**64 - 1) | st.integers(0, 10 * SECOND),
        st.integers(0, 4000 * SECOND),
    ),
    max_size=300,
)


@settings(deadline=None)
@given(SAMPLES, st.integers(0, 5000 * SECOND))
def test_any_data_give_a_sane_answer(samples: list[tuple[int, int, int]], now: int) -> None:
    """Finite numbers in their ranges, a verdict with a name, and a prediction that never falls with more streams."""
    ttfts = ffi.new("tw_ttft_by_concurrency *")
    for streams, ttft, at in samples:
        lib.tw_ttft_note(ttfts, streams, ttft, at)
    found = find([ttfts], now / SECOND)
    assert verdict(found) in VERDICTS
    assert (found.streams > 0) == (verdict(found) == "found")
    assert 0 <= found.confidence <= 1
    assert found.streams <= 4095
    assert found.lowest <= found.highest <= 4095
    predicted = [lib.tw_healthy_ttft(found, float(streams)) for streams in (1, 2, 10, 100, 1000)]
    assert all(map(math.isfinite, predicted))
    assert predicted == sorted(predicted)
    assert (predicted[0] < 0) == (found.samples == 0)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.permutations(range(4)))
def test_the_order_of_processes_does_not_matter(seed: int, order: list[int]) -> None:
    """What is found does not depend on whose table is read first."""
    firsts = simulate(Served(16), seed, requests=1500)
    parts = [table(firsts[i::4]) for i in range(4)]
    now = max(first.at for first in firsts)
    one, other = find(parts, now), find([parts[i] for i in order], now)
    assert verdict(one) == verdict(other)
    assert one.streams == pytest.approx(other.streams)
    assert one.samples == other.samples


def test_nothing_is_few_data() -> None:
    """No process, no data."""
    assert verdict(find([], START)) == "few_data"
