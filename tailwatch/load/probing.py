"""The real server as a search sees it: a rate and a number of requests go in, a `Probe` comes out."""

from __future__ import annotations

from collections.abc import Callable

from tailwatch.goodput import BOUNDS, SLO
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
    """What a run says about its rate; nothing where it is not valid: one whose cap bound, whose client did not keep the
    schedule, or that was interrupted did not offer that rate."""
    requests = result.requests
    assert requests is not None
    judged = result.goodput.counted
    failed = result.goodput.miss - result.outcomes.by_reason["late"]
    windows = windows_of(requests, result.duration)
    return Probe(
        rate=rate,
        seconds=result.duration,
        scheduled=result.outcomes.scheduled,
        judged=judged,
        good=result.goodput.good,
        completed=sum(window.completed for window in windows),
        kept={name: judged - failed - count for name, count in _late(requests, result.slo).items()},
        windows=windows,
        invalid="" if result.valid else "; ".join(result.validity.reasons) or result.validity.verdict,
        details={
            "ttft_p99": result.ttft.p(99),
            "e2e_p99": result.e2e.p(99),
            "largest_gap_p99": result.largest_gap.p(99),
        },
        failed=failed,
    )


def _late(requests: Requests, slo: SLO | None) -> dict[str, int]:
    """Per bound, how many of the answers that came whole exceed it; one that failed tells nothing of a phase."""
    if slo is None:
        return {}
    counts = {name: 0 for name in BOUNDS if getattr(slo, name)}
    columns = (requests.reason, requests.planned, requests.first, requests.tpot, requests.largest_gap, requests.end)
    for reason, planned, first, tpot, gap, end in zip(*columns, strict=True):
        if reason == _LATE:
            ttft, e2e = _seconds(first, planned), _seconds(end, planned)
            for name in slo.broken(ttft=ttft, tpot=_seconds(tpot), itl=_seconds(gap), e2e=e2e):
                counts[name] += 1
    return counts


def _seconds(moment: int, since: int = 0) -> float | None:
    return None if moment == NEVER else (moment - since) / 1e9


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
