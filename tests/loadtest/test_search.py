"""The search for the knee, in virtual time against servers whose knee is known."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tailwatch.errors import OptionError
from tailwatch.loadtest.proportions import RunWindow
from tailwatch.loadtest.report import sweep
from tailwatch.loadtest.saturation_point import Knee
from tailwatch.loadtest.search import Limits, find, saturate
from tailwatch.loadtest.trial import Probe, ProbeFunction

from .virtual_servers import bursts, database, database_closed, prefill_and_decode, probe_of, replica

pytestmark = pytest.mark.integration

BURSTS = Limits(resolution=0.02, first=10**5, most=4 * 10**5, seconds=0, longest=math.inf)
MILLION = Limits(resolution=0.01, first=10**6, most=4 * 10**6, seconds=0, longest=math.inf)


def seeds(quick: int, thorough: int) -> list[Any]:
    """The first ones by default, the others too with -m slow."""
    return [*range(quick), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(quick, thorough))]


def analytic(attainment: float) -> float:
    """M/M/1, 500/s, 200 ms: P(sojourn > t) = exp(-(500 - rate) t)."""
    return 500 - math.log(1 / (1 - attainment)) / 0.2


def test_the_analytic_knee() -> None:
    """What the searches below must find: 477.0 at 99 %, 485.0 at 95 %."""
    assert analytic(0.99) == pytest.approx(477.0, abs=0.05)
    assert analytic(0.95) == pytest.approx(485.0, abs=0.05)


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_the_knee_of_a_replica_is_found(seed: int) -> None:
    """At 10^6 virtual requests a probe, within 1 % of the analytic knee, and resolved, whatever the seed."""
    knee = find(replica(seed), 500.0, limits=MILLION)
    assert knee.resolved, str(knee)
    assert knee.rate == pytest.approx(analytic(0.99), rel=0.01)
    assert knee.low is not None and knee.high is not None and knee.low < knee.rate < knee.high
    assert (knee.basis, knee.saturates) == ("fit", "e2e")


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_glitches_do_not_move_it_far(seed: int) -> None:
    """A standstill of 0.6 s in 5 % of the probes: within 3 %."""
    knee = find(replica(seed, glitch=0.05), 500.0, limits=MILLION)
    assert knee.rate == pytest.approx(analytic(0.99), rel=0.03), str(knee)


@pytest.mark.parametrize("seed", seeds(0, 4))
def test_another_attainment(seed: int) -> None:
    """At 95 % the knee is 485.0."""
    assert find(replica(seed), 500.0, 0.95, limits=MILLION).rate == pytest.approx(analytic(0.95), rel=0.01)


@pytest.mark.parametrize("searches", [9, pytest.param(24, marks=pytest.mark.slow)])
def test_the_interval_holds_what_it_promises(searches: int) -> None:
    """Over other seeds, and probes of a tenth, the 95 % interval of a fit contains the analytic knee."""
    limits = replace(MILLION, first=10**5, most=4 * 10**5, resolution=0.02)
    knees = [find(replica(1000 + seed), 500.0, limits=limits) for seed in range(searches)]
    fits = [(knee.low or 0.0, knee.high or 0.0) for knee in knees if knee.basis == "fit" and knee.resolved]
    assert len(fits) >= 2 / 3 * searches
    assert sum(low <= analytic(0.99) <= high for low, high in fits) >= 0.93 * len(fits)


def coverage(seeds: range, together: float, limits: Limits) -> tuple[float, int]:
    """Of searches of a server whose misses come together: the share of the resolved whose interval holds the knee."""
    knees = [find(bursts(seed, together), 500.0, limits=limits) for seed in seeds]
    held = [(knee.low or 0.0) <= 477.0 <= (knee.high or 0.0) for knee in knees if knee.resolved]
    return sum(held) / max(1, len(held)), len(held)


@pytest.mark.parametrize("together", [10.0, 100.0])
def test_the_interval_of_a_knee_covers(together: float) -> None:
    """The nominal 95 % interval holds the true knee in at least 93 of 100 seeded searches."""
    share, resolved = coverage(range(20_261_121, 20_261_121 + 150), together, BURSTS)
    assert resolved >= 100 and share >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("together", [10.0, 100.0, 400.0])
def test_the_interval_of_a_knee_covers_at_full_size(together: float) -> None:
    """The same with ten times the searches and other seeds."""
    share, resolved = coverage(range(1500), together, BURSTS)
    assert resolved >= 1000 and share >= 0.93


@pytest.mark.parametrize("seed", range(10))
def test_short_probes_with_glitches_never_collapse(seed: int) -> None:
    """Probes of 20 s, one in twenty spoilt by a standstill: the search ends near the knee, where a doubling search
    from one request per second ends anywhere."""
    limits = Limits(resolution=0.02, first=10**4, most=2 * 10**4, seconds=0)
    knee = find(replica(seed, glitch=0.05, windows=20), 500.0, limits=limits)
    assert knee.rate == pytest.approx(analytic(0.99), rel=0.05), str(knee)


def cliff(at: float, glitches: frozenset[int] = frozenset()) -> tuple[list[float], object]:
    """A server that is perfect up to a rate and hopeless above it; the numbered probes go wrong in any case."""
    asked: list[float] = []

    def probe(rate: float, requests: int) -> Probe:
        asked.append(rate)
        good = requests if rate <= at and len(asked) not in glitches else requests // 2
        windows = tuple(RunWindow(requests // 10, requests // 10, good // 10, good // 10) for _ in range(10))
        return Probe(rate, requests / rate, requests, requests, good, good, {"ttft": good}, windows)

    return asked, probe


def test_a_cliff_is_bracketed() -> None:
    """Where nothing lies between all and half, the ends are tried again until they are sure; no fit is claimed."""
    _, probe = cliff(73.0)
    knee = find(probe, 100.0, limits=Limits(resolution=0.02))  # type: ignore[arg-type]
    assert (knee.basis, knee.resolved) == ("bracket", True)
    assert knee.low == knee.rate and knee.high is not None and knee.low is not None
    assert knee.low <= 73.0 < knee.high <= knee.low * 1.03


def test_the_ceiling_is_no_limit() -> None:
    """A closed loop with too few workers measures too little: the search then looks upwards."""
    _, probe = cliff(250.0)
    knee = find(probe, 100.0)  # type: ignore[arg-type]
    assert knee.resolved and knee.low is not None and knee.low <= 250.0 < (knee.high or 0)


@pytest.mark.parametrize("wrong", [1, 2, 3, 5, 8, 13])
def test_one_bad_probe_is_outvoted(wrong: int) -> None:
    """Whichever probe goes wrong, the cliff is found; a failure that was outvoted stands in the sweep as set aside."""
    _, probe = cliff(73.0, frozenset({wrong}))
    knee = find(probe, 100.0)  # type: ignore[arg-type]
    assert knee.low is not None and knee.high is not None and knee.low <= 73.0 < knee.high <= 1.03 * knee.low
    assert sum(row.set_aside for row in knee.rows()) == sum(one.set_aside for one in knee.tried)


def test_failures_are_confirmed() -> None:
    """A rate counts as failing after two probes at least; one that holds at once is not asked again on the way."""
    asked, probe = cliff(73.0)
    find(probe, 100.0)  # type: ignore[arg-type]
    assert asked[:2] == [100.0, 100.0] and asked.count(100.0) == 2
    assert asked[2:4] == [90.0, 90.0]


def test_it_ends_where_nothing_holds() -> None:
    """A server that is never good is left at a hundredth of its ceiling, with a reason and no rate."""
    asked, probe = cliff(0.0)
    knee = find(probe, 100.0, limits=Limits(probes=200))  # type: ignore[arg-type]
    assert knee.rate is None and not knee.resolved and "does not even hold" in knee.reason
    assert 1 <= min(asked) <= 2
    assert str(knee).startswith("unresolved: ") and " hold at 1" in str(knee)


def test_it_ends_where_nothing_fails() -> None:
    """One that is always good is left at eight times the ceiling."""
    asked, probe = cliff(1e9)
    knee = find(probe, 100.0)  # type: ignore[arg-type]
    assert not knee.resolved and "still holds" in knee.reason and knee.high is None
    assert max(asked) <= 800 and knee.low == max(asked)


def test_probes_and_time_are_bounded() -> None:
    """The search is over after its probes, and when it is told that its time is; it says which and what it has."""
    asked, probe = cliff(73.0)
    knee = find(probe, 100.0, limits=Limits(probes=5))  # type: ignore[arg-type]
    assert len(asked) == 5 and not knee.resolved and knee.reason.startswith("5 probes were made")
    asked, probe = cliff(73.0)
    knee = find(probe, 100.0, limits=Limits(spent=lambda: len(asked) >= 3))  # type: ignore[arg-type]
    assert knee.reason.startswith("its time was over before ") and "not at 90/s" in knee.reason
    asked, probe = cliff(73.0)
    knee = find(probe, 100.0, limits=Limits(spent=lambda: len(asked) >= 9))  # type: ignore[arg-type]
    assert not knee.resolved and knee.low is not None and knee.low <= 73 < (knee.high or 0)
    assert "its time was over" in str(knee) and "so far goodput knee" in str(knee)
    knee = find(probe, 100.0, limits=Limits(spent=lambda: True))  # type: ignore[arg-type]
    assert knee.tried == () and knee.rate is None and knee.reason.startswith("its time was over")


def test_a_slow_server_is_not_asked_for_hours() -> None:
    """No probe is longer than its limit; what so few requests cannot decide is asked again until they are enough."""
    seconds: list[float] = []

    def probe(rate: float, requests: int) -> Probe:
        seconds.append(requests / rate)
        good = requests if rate <= 0.3 else 0
        return Probe(rate, requests / rate, requests, requests, good, good, {"e2e": good})

    knee = find(probe, 1.0, limits=Limits(longest=120.0))
    assert max(seconds) <= 120 and len(seconds) <= 60
    assert knee.low is not None and knee.low <= 0.3
    assert sum(row.scheduled for row in knee.rows() if row.verdict == "holds" and row.rate == knee.low) >= 381


def test_what_the_client_cannot_offer_is_no_verdict() -> None:
    """Rates at which the client's own schedule was not kept never count as failing; the reason names the limit."""
    _, served = cliff(1e9)

    def probe(rate: float, requests: int) -> Probe:
        one: Probe = served(rate, requests)  # type: ignore[operator]
        return replace(one, invalid="send lag" if rate > 80 else "")

    knee = find(probe, 100.0)
    assert not knee.resolved and "could not offer" in knee.reason and "send lag" in knee.reason
    assert knee.low is not None and 75 < knee.low <= 80
    assert {row.verdict for row in knee.rows() if row.rate > 80} == {"invalid"}


def test_a_hundred_per_cent_is_never_proved() -> None:
    """With @100% one miss refutes; the rate without one is given, not as resolved."""
    _, probe = cliff(73.0)
    knee = find(probe, 100.0, 1.0)  # type: ignore[arg-type]
    assert not knee.resolved and knee.rate is not None and 71 < knee.rate <= 73 and "100%" in knee.reason


def test_a_knee_survives_its_file() -> None:
    """as_dict, through JSON, and back: equal, with the same rows."""
    knee = find(replica(3), 500.0, limits=replace(MILLION, first=10**4, most=10**4, probes=8))
    again = Knee.from_dict(json.loads(json.dumps(knee.as_dict())))
    assert again == knee and again.rows() == knee.rows()


@pytest.mark.parametrize(
    "wrong",
    [{"ceiling": 0.0}, {"ceiling": math.inf}, {"attainment": 0.0}, {"attainment": 1.1}, {"objective": "goodputs"}],
)
def test_wrong_calls_say_so(wrong: dict[str, float]) -> None:
    """Rates, shares and words that mean nothing are refused before anything is sent."""
    with pytest.raises(OptionError):
        find(replica(1), **{"ceiling": 100.0, **wrong})  # type: ignore[arg-type]
    with pytest.raises(OptionError):
        Limits(resolution=0.0)
    with pytest.raises(OptionError):
        Limits(probes=0)


def steady(capacity: float) -> ProbeFunction:
    """A queue of constant service and constant arrivals, judged by 200 ms."""

    def probe(rate: float, requests: int) -> Probe:
        planned = np.arange(1, requests + 1) / rate
        done = np.arange(1, requests + 1) / capacity
        ends = np.maximum(planned + 1 / capacity, done + planned[0])
        good = ends - planned <= 0.2
        return probe_of(rate, planned, ends, good, {"e2e": int(np.count_nonzero(good))}, 20)

    return probe


def test_a_queue_that_still_grows_is_named() -> None:
    """Beyond the capacity a short probe ends before the bound is reached: the knee found says that longer ones will
    find less, and longer ones do."""
    short = find(steady(100.0), 100.0, limits=Limits(first=760, most=760, seconds=0))
    assert short.rate is not None and short.rate > 101
    assert short.completed == pytest.approx(100 / short.rate, abs=0.006)
    assert "its queue still grew there" in str(short)
    long = find(steady(100.0), 100.0, limits=Limits(first=76_000, most=76_000, seconds=0, longest=math.inf))
    assert long.rate is not None and 100 <= long.rate < short.rate


def test_a_stable_queue_is_not_accused() -> None:
    """The knee of a queue that does not grow says nothing of the kind."""
    knee = find(replica(2), 500.0, limits=replace(MILLION, first=10**5, most=10**5, probes=20))
    assert knee.rate is not None and knee.completed is None


# ---- which phase gives way ----


@pytest.mark.parametrize(
    ("bounds", "low", "high"),
    [({"ttft": 1e9}, 12.0, 13.5), ({"tpot": 1e9}, 16.5, 18.4)],
    ids=["decode", "prefill"],
)
def test_two_goodputs_collapse_at_two_rates(bounds: dict[str, float], low: float, high: float) -> None:
    """The decode's at 12 to 13 per second, the prefill's at 17 to 18: where less than half is in time."""
    limits = Limits(resolution=0.03, first=900, most=900, seconds=0, probes=25)
    knee = find(prefill_and_decode(7, **bounds), 18.4, 0.5, limits=limits)
    assert knee.rate is not None and low <= knee.rate <= high, str(knee)


def test_the_phase_that_saturates_is_named() -> None:
    """With both bounds the decode decides, and the search says so."""
    limits = Limits(resolution=0.05, first=900, most=900, seconds=0, probes=20)
    knee = find(prefill_and_decode(7), 15.0, 0.9, limits=limits)
    assert knee.rate is not None and 11 <= knee.rate <= 13.2
    assert (knee.saturates, knee.phase) == ("tpot", "decode")
    assert "tpot gives way first: decode" in str(knee)


def overloaded(ttft: float, tpot: float, failed: float) -> ProbeFunction:
    """Above 100/s these shares of the requests are late by a bound, or fail; below all are good."""

    def probe(rate: float, requests: int) -> Probe:
        late, slow, lost = (round(share * requests) if rate > 100 else 0 for share in (ttft, tpot, failed))
        good = requests - max(late, slow) - lost
        kept = {"ttft": requests - lost - late, "tpot": requests - lost - slow}
        windows = tuple(RunWindow(requests // 10, requests // 10, good // 10, good // 10) for _ in range(10))
        return Probe(rate, requests / rate, requests, requests, good, good, kept, windows, failed=lost)

    return probe


@pytest.mark.parametrize(
    ("shares", "bound", "said"),
    [
        ((0.0, 0.0, 0.6), None, r"neither prefill nor decode .*: 60\.0% "),
        ((0.1, 0.02, 0.4), None, r"neither prefill nor decode .*: 40\.0% "),
        ((0.1, 0.4, 0.05), "tpot", r"tpot .*: decode"),
        ((0.4, 0.1, 0.3), "ttft", r"ttft .*: prefill"),
    ],
)
def test_a_failed_request_is_of_no_phase(shares: tuple[float, float, float], bound: str | None, said: str) -> None:
    """Prefill is judged against decode by what was answered too late; where more failed than that, by neither."""
    knee = find(overloaded(*shares), 120.0)
    assert knee.rate is not None and 98 <= knee.rate <= 100
    assert knee.saturates == bound and re.search(said, str(knee))
    assert re.search(said.split(":")[0] + " first", sweep.page(knee).lead, re.IGNORECASE)


# ---- the database ----


def mean_of(rate: float, service: float, seconds: float = 10.0) -> float:
    """Over what completed in the time."""
    planned, ends = database(rate, service)
    times = [end - start for start, end in zip(planned, ends, strict=True) if end <= seconds]
    return sum(times) / len(times)


@pytest.mark.parametrize(
    ("service_ms", "found"),
    [(10.0, 496), (10.1, 488), (10.2, 488), (10.3, 480), (10.4, 480), (10.6, 464), (10.8, 456), (11.0, 448)],
)
def test_the_textbook_search_on_the_database(service_ms: float, found: float) -> None:
    """Doubling from 1, then halving to less than 10, mean at most 15 ms: 480 at 10.4 ms, 464 at 10.6, in 15 probes."""
    asked: list[float] = []

    def holds(rate: float) -> bool:
        asked.append(rate)
        return mean_of(rate, service_ms / 1000) <= 0.015

    high = 1.0
    while holds(high):
        high *= 2
    low = high / 2
    while high - low >= 10:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    assert low == found
    assert len(asked) == 15 and asked[:10] == [2.0**k for k in range(10)]


def test_the_means_behind_it() -> None:
    """14.96 ms at 480/s, 87 at 488, 314 at 512."""
    means = [mean_of(rate, 0.0104) for rate in (480, 488, 512)]
    assert means == pytest.approx([0.01496, 0.08716, 0.31376], rel=0.002)


@pytest.mark.parametrize(("service_ms", "rate"), [(10.4, 480.8), (10.6, 471.7)])
def test_the_closed_loop_is_flat_beyond_five_workers(service_ms: float, rate: float) -> None:
    """480.8/s at 10.4 ms, 471.7 at 10.6; more workers than the database has bring nothing."""
    ceiling = saturate(lambda workers: database_closed(workers, service_ms / 1000), first=5)
    assert ceiling.rate == pytest.approx(rate, abs=0.1)
    assert ceiling.workers == 5
    assert [tried for _, tried in ceiling.tried] == pytest.approx([rate] * 3, abs=0.1)


def test_fewer_workers_than_that_measure_less() -> None:
    """From one worker the rate doubles until five are busy."""
    ceiling = saturate(lambda workers: database_closed(workers, 0.0104))
    assert [workers for workers, _ in ceiling.tried] == [1, 2, 4, 8, 16, 32]
    assert ceiling.workers == 8 and ceiling.rate == pytest.approx(480.8, abs=0.1)


def test_the_throughput_that_is_kept_up_with() -> None:
    """In open loop the database keeps up with its closed-loop ceiling, within the resolution, and not with more."""

    def probe(rate: float, requests: int) -> Probe:
        seconds = requests / rate
        planned, ends = (np.array(times) for times in database(rate, 0.0104, seconds))
        good = ends <= seconds
        return probe_of(rate, planned, ends, good, {}, 50)

    knee = find(probe, 480.0, 0.99, objective="throughput", limits=Limits(resolution=0.01, first=9600, most=9600))
    assert knee.rate is not None and knee.rate == pytest.approx(480.8, rel=0.015)
    assert knee.most == pytest.approx(480.8, rel=0.01)
