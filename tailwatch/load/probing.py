"""The real server as a search sees it: a rate and a number of requests go in, a `Probe` comes out."""

from __future__ import annotations

from collections.abc import Callable

from tailwatch.load.outcomes import CODE, EXCLUDED
from tailwatch.load.probe import Probe, Window
from tailwatch.load.results import NEVER, Requests, Result
from tailwatch.load.schedule import Schedule

FEWEST_WINDOWS = 20
_EXCLUDED = frozenset(CODE[name] for name in EXCLUDED)
_GOOD, _LATE = CODE["good"], CODE["late"]
Measure = Callable[[Schedule], Result]


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
    """What a run says about its rate. A run that is capped says it too: what was held back is a miss; one whose
    client did not keep the schedule, or that was interrupted, says nothing."""
    requests = result.requests
    assert requests is not None
    judged = result.goodput.counted
    failed = result.goodput.miss - result.outcomes.by_reason["late"]
    bounds = (
        () if result.slo is None else [name for name in ("ttft", "tpot", "itl", "e2e") if getattr(result.slo, name)]
    )
    windows = windows_of(requests, result.duration)
    believed = result.validity.verdict in ("valid", "capped") and not result.interrupted
    return Probe(
        rate=rate,
        seconds=result.duration,
        scheduled=result.outcomes.scheduled,
        judged=judged,
        good=result.goodput.good,
        completed=sum(window.completed for window in windows),
        kept={name: max(0, judged - failed - result.goodput.broken.get(name, 0)) for name in bounds},
        windows=windows,
        invalid="" if believed else "; ".join(result.validity.reasons) or result.validity.verdict,
        details={
            "ttft_p99": result.ttft.p(99),
            "e2e_p99": result.e2e.p(99),
            "largest_gap_p99": result.largest_gap.p(99),
        },
    )


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
