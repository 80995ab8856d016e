"""The real server as a search sees it: a rate and a number of requests go in, a `Probe` comes out; workers go in, and
the ceiling of a closed loop comes out."""

from __future__ import annotations

from collections.abc import Callable

from tailwatch.loadtest.outcomes import CODE, EXCLUDED
from tailwatch.loadtest.results import NEVER, Requests, Result
from tailwatch.loadtest.schedule import Schedule
from tailwatch.loadtest.trial import Probe, Window
from tailwatch.options.slo import BOUNDS

FEWEST_WINDOWS = 20
_EXCLUDED = frozenset(CODE[name] for name in EXCLUDED)
_GOOD, _LATE = CODE["good"], CODE["late"]
Measure = Callable[[Schedule], Result]
LENGTHS = 3.0  # of a request, that a closed-loop run takes at least: one to fill up, the others count
MOST_SECONDS = 60.0  # of one such run


def prober(
    schedule: Callable[[float, int, int], Schedule], measure: Measure, seen: Callable[[Result], None]
) -> Callable[[float, int], Probe]:
    """schedule(rate, requests, number) → that of the number-th probe; measure → what a run of it found; seen: is shown
    each."""
    number = 0

    def probe(rate: float, requests: int) -> Probe:
        nonlocal number
        number += 1
        result = measure(schedule(rate, requests, number))
        seen(result)
        return probe_of(result, rate)

    return probe


def probe_of(result: Result, rate: float) -> Probe:
    """What a run says about its rate; nothing where it is not valid: one whose cap bound, whose client did not keep the
    schedule, or that was interrupted did not offer that rate."""
    requests = result.requests
    assert requests is not None
    judged = result.goodput.counted
    failed = result.goodput.miss - result.outcomes.by_reason["late"]
    bounds = () if result.slo is None else [name for name in BOUNDS if getattr(result.slo, name)]
    windows = windows_of(requests, result.duration)
    return Probe(
        rate=rate,
        seconds=result.duration,
        scheduled=result.outcomes.scheduled,
        judged=judged,
        good=result.goodput.good,
        completed=sum(window.completed for window in windows),
        kept={name: judged - failed - result.goodput.broken.get(name, 0) for name in bounds},
        windows=windows,
        invalid="" if result.valid else "; ".join(result.validity.reasons) or result.validity.verdict,
        details={
            "ttft_p99": result.percentile("ttft", 99),
            "e2e_p99": result.percentile("e2e", 99),
            "largest_gap_p99": result.percentile("largest_gap", 99),
        },
        failed=failed,
    )


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
    last are waited for. A request that lies only partly in that time counts for that part of itself, so that few long
    requests, which begin and end together, are not counted by the luck of the edges."""
    rows = result.requests
    assert rows is not None
    stop = result.duration * 1e9
    start = min(filled_after(result, workers) * 1e9, stop / 2)
    if stop <= start:
        return 0.0
    done = 0.0
    for begin, end, reason in zip(rows.planned, rows.end, rows.reason, strict=True):
        if end != NEVER and reason in (_GOOD, _LATE):
            done += max(0.0, min(end, stop) - max(begin, start)) / max(1, end - begin)
    return done / (stop - start) * 1e9


def windows_of(requests: Requests, duration: float) -> tuple[Window, ...]:
    """The run in equal stretches of a second, or in 20 where it is shorter than that."""
    count = max(FEWEST_WINDOWS, int(duration))
    width = max(1.0, duration * 1e9 / count)
    scheduled, judged, good, completed = ([0] * count for _ in range(4))
    for planned, reason in zip(requests.planned, requests.reason, strict=True):
        window = min(int(planned / width), count - 1)
        scheduled[window] += 1
        judged[window] += reason not in _EXCLUDED
        good[window] += reason == _GOOD
    for end, reason in zip(requests.end, requests.reason, strict=True):
        if end != NEVER and reason in (_GOOD, _LATE) and (window := int(end / width)) < count:
            completed[window] += 1
    return tuple(map(Window, scheduled, judged, good, completed))
