"""One try at one rate: what a search asks for, and what it gets; and the runs of a real server as tries.

A search takes any callable ``probe(rate, requests) -> Probe``: `prober`'s, or a simulation's in virtual time. Of a
closed loop it takes the rate of completions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from statistics import fmean, stdev
from typing import Any

from tailwatch.loadtest.outcomes import CODE, EXCLUDED
from tailwatch.loadtest.proportions import RunWindow
from tailwatch.loadtest.requests import NEVER, Requests
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.schedule import Schedule
from tailwatch.loadtest.service_gaps import service_gaps
from tailwatch.loadtest.t_test import t_quantile
from tailwatch.options.slo import BOUNDS, SLO

FEWEST_WINDOWS = 20
_EXCLUDED = frozenset(CODE[name] for name in EXCLUDED)
_GOOD, _LATE = CODE["good"], CODE["late"]
LENGTHS = 3.0  # of a request, that a closed-loop run takes at least: one to fill up, the others count
STRETCHES = 20  # of such a run, whose scatter gives its interval
MOST_SECONDS = 60.0  # of one such run


@dataclass(frozen=True, slots=True)
class Probe:
    """An open-loop run at one rate.

    rate: requests per second asked for. seconds: the length of its schedule. scheduled: requests in it. judged:
    scheduled less what the outcome table excludes. good: those that kept every bound, timed from their planned start.
    completed: answers that ended without error within the schedule's own time. kept: per bound, how many of the
    judged kept that one; failed: how many of them were not answered whole, and kept none.
    windows: in order, of equal length; their sums may be below the totals where warm-up was cut off. invalid: why the
    run does not count (the client's own limit), "" where it does. details: anything the caller wants to find again
    (percentiles, a file), kept as it is.
    """

    rate: float
    seconds: float
    scheduled: int
    judged: int
    good: int
    completed: int
    kept: Mapping[str, int] = field(default_factory=dict)
    windows: tuple[RunWindow, ...] = ()
    invalid: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    failed: int = 0

    @property
    def width(self) -> float:
        """Seconds of a window."""
        return self.seconds / len(self.windows) if self.windows else 0.0

    @property
    def attainment(self) -> float | None:
        """Good of judged; None where nothing was judged."""
        return self.good / self.judged if self.judged else None

    @property
    def goodput(self) -> float:
        """Good requests per second of the schedule."""
        return self.good / self.seconds if self.seconds > 0 else 0.0

    @property
    def throughput(self) -> float:
        """Completions per second of the schedule."""
        return self.completed / self.seconds if self.seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; windows as lists of five."""
        plain = asdict(self)
        plain["windows"] = [[w.scheduled, w.judged, w.good, w.completed, w.in_flight] for w in self.windows]
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Probe:
        """The inverse of as_dict."""
        return cls(**{**data, "windows": tuple(RunWindow(*row) for row in data.get("windows", ()))})


ProbeFunction = Callable[[float, float, float], Probe]
Measure = Callable[[Schedule], Result]


def pooled(probes: Iterable[Probe]) -> Probe:
    """Several valid probes of one rate as one: counts and times added, windows one after another."""
    several = list(probes)
    names = sorted({name for probe in several for name in probe.kept})
    return Probe(
        rate=several[0].rate,
        seconds=sum(probe.seconds for probe in several),
        scheduled=sum(probe.scheduled for probe in several),
        judged=sum(probe.judged for probe in several),
        good=sum(probe.good for probe in several),
        completed=sum(probe.completed for probe in several),
        kept={name: sum(probe.kept.get(name, 0) for probe in several) for name in names},
        windows=tuple(window for probe in several for window in probe.windows),
        failed=sum(probe.failed for probe in several),
    )


def prober(
    schedule: Callable[[float, float, int], Schedule],
    measure: Measure,
    seen: Callable[[Result], None],
    workers: int = 1,
) -> ProbeFunction:
    """schedule(rate, seconds, number) → that of the number-th probe; measure → what a run of it found; seen: is shown
    each. workers: requests in flight that keep the server busy."""
    number = 0

    def probe(rate: float, seconds: float, settle: float) -> Probe:
        nonlocal number
        number += 1
        result = measure(schedule(rate, seconds, number))
        seen(result)
        return probe_of(result, rate, settle, workers)

    return probe


def probe_of(result: Result, rate: float, settle: float = 0.0, workers: int = 1) -> Probe:
    """What a run shows about its rate, once it has settled (seconds from its start); nothing where it is not valid: one
    whose cap bound, whose client did not keep the schedule, or that was interrupted did not offer that rate."""
    requests = result.requests
    assert requests is not None
    cut = windows_of(requests, result.duration)
    first = min(len(cut) - 1, round(len(cut) * settle / result.duration)) if result.duration > 0 else 0
    windows = cut[first:]
    start = result.duration * 1e9 * first / len(cut)
    judged, good = sum(one.judged for one in windows), sum(one.good for one in windows)
    late, exceeded = late_of(requests, result.slo, start)
    failed = judged - good - late
    bounds = () if result.slo is None else [name for name in BOUNDS if getattr(result.slo, name)]
    return Probe(
        rate=rate,
        seconds=result.duration * len(windows) / len(cut),
        scheduled=sum(one.scheduled for one in windows),
        judged=judged,
        good=good,
        completed=sum(window.completed for window in windows),
        kept={name: judged - failed - exceeded.get(name, 0) for name in bounds},
        windows=windows,
        invalid="" if result.valid else "; ".join(result.validity.reasons) or result.validity.verdict,
        details={
            "ttft_p99": result.percentile("ttft", 99),
            "e2e_p99": result.percentile("e2e", 99),
            "largest_gap_p99": result.percentile("largest_gap", 99),
            "service_gaps": service_gaps(requests, workers),
        },
        failed=failed,
    )


def late_of(requests: Requests, slo: SLO | None, start_ns: float) -> tuple[int, dict[str, int]]:
    """Of the requests planned from then on: how many were late, and by which bounds."""
    late, exceeded = 0, dict[str, int]()
    columns = (requests.reason, requests.planned, requests.first, requests.first_chunk, requests.end)
    rows = zip(*columns, requests.tpot, requests.largest_gap, strict=True)
    for reason, planned, first, chunk, end, tpot, gap in rows:
        if reason != _LATE or planned < start_ns or slo is None:
            continue
        late += 1
        began = next((moment for moment in (first, chunk) if moment != NEVER), end)
        broken = slo.broken(
            ttft=(began - planned) / 1e9,
            tpot=tpot / 1e9 if tpot != NEVER else None,
            itl=gap / 1e9 if gap != NEVER else 0.0,
            e2e=(end - planned) / 1e9,
        )
        for name in broken:
            exceeded[name] = exceeded.get(name, 0) + 1
    return late, exceeded


class ClosedLoop:
    """Closed-loop runs that are as long as the server's requests need. seconds: of the next one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def rate(self, workers: int, run: Callable[[float], Result]) -> float:
        """Completions per second; run(seconds): sends for so long. A run that turns out too short is made again."""
        result = run(self.seconds)
        wanted = min(LENGTHS * filled_after(result, workers), MOST_SECONDS)
        if wanted > self.seconds and not result.interrupted:
            self.seconds = wanted
            result = run(self.seconds)
        return steady_rate(result, workers)


def filled_after(result: Result, workers: int) -> float:
    """Seconds until nine in ten of the workers had their first answer: before that a closed loop fills up."""
    rows = result.requests
    assert rows is not None
    first = sorted(zip(rows.planned, rows.end, strict=True))[:workers]
    ends = sorted(end for _, end in first if end != NEVER)
    return ends[(9 * len(ends) - 1) // 10] / 1e9 if ends else 0.0


def steady_rate(result: Result, workers: int) -> float:
    """Completions per second of a closed loop while all its workers are busy: after it has filled up, and before the
    last are waited for."""
    return fmean(steady_rates(result, workers, 1))


def steady_interval(result: Result, workers: int) -> tuple[float, float]:
    """The same, and the upper end of its 95 % interval."""
    rates = steady_rates(result, workers, STRETCHES)
    pairs = [fmean(pair) for pair in zip(rates[::2], rates[1::2], strict=True)]
    error = max(stdev(some) / math.sqrt(len(some)) for some in (rates, pairs))
    return fmean(rates), fmean(rates) + t_quantile(0.95, len(pairs) - 1) * error


def steady_rates(result: Result, workers: int, parts: int) -> list[float]:
    """Completions per second in equal parts of that time. A request that lies only partly in one counts for that part
    of itself, so that few long requests, which begin and end together, are not counted by the luck of the edges."""
    rows = result.requests
    assert rows is not None
    stop = result.duration * 1e9
    start = min(filled_after(result, workers) * 1e9, stop / 2)
    width = (stop - start) / parts
    done = [0.0] * parts
    if width <= 0:
        return done
    for begin, end, reason in zip(rows.planned, rows.end, rows.reason, strict=True):
        if end == NEVER or reason not in (_GOOD, _LATE):
            continue
        low, high, length = max(begin, start), min(end, stop), max(1, end - begin)
        for part in range(max(0, int((low - start) / width)), min(parts, int((high - start) / width) + 1)):
            inside = min(high, start + (part + 1) * width) - max(low, start + part * width)
            done[part] += max(0.0, inside) / length
    return [each / width * 1e9 for each in done]


def windows_of(requests: Requests, duration: float) -> tuple[RunWindow, ...]:
    """The run in equal stretches of a second, or in 20 where it is shorter than that."""
    count = max(FEWEST_WINDOWS, int(duration))
    width = max(1.0, duration * 1e9 / count)
    scheduled, judged, good, completed = ([0] * count for _ in range(4))
    for planned, reason in zip(requests.planned, requests.reason, strict=True):
        window = min(int(planned / width), count - 1)
        scheduled[window] += 1
        judged[window] += reason not in _EXCLUDED
        good[window] += reason == _GOOD
    ended = [0] * count
    for end, reason in zip(requests.end, requests.reason, strict=True):
        if end != NEVER and (window := int(end / width)) < count:
            ended[window] += 1
            completed[window] += reason in (_GOOD, _LATE)
    in_flight = [a - b for a, b in zip(accumulate(scheduled), accumulate(ended), strict=True)]
    return tuple(map(RunWindow, scheduled, judged, good, completed, in_flight))
