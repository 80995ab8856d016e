"""When a GPU had nothing to do, and what stood still meanwhile."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from tailwatch.cli.nsys.report import Report, ReportPause, ReportRequest, ReportToken, Work


@dataclass(frozen=True, slots=True)
class Blame:
    """One process's pauses of one cause inside an idle time.

    overlap: ns of it, at most its length. collected: objects, of all of them; None where none was recorded.
    """

    pid: int
    cause: str
    overlap: int
    collections: int
    collected: int | None


@dataclass(frozen=True, slots=True)
class Idle:
    """From the end of all work on a device to the begin of the next, ns of the report.

    in_flight: requests that were open in the middle of it. waiting: of those, how many got no token meanwhile and one
    later; None: tokens were not recorded. blames: the largest first.
    """

    device: int
    start: int
    end: int
    in_flight: int
    waiting: int | None
    blames: tuple[Blame, ...]

    @property
    def length(self) -> int:
        """ns."""
        return self.end - self.start

    @property
    def paused(self) -> int:
        """Of it, ns, that the process which was paused longest was paused: a lower bound of all."""
        by_process: dict[int, int] = {}
        for blame in self.blames:
            by_process[blame.pid] = by_process.get(blame.pid, 0) + blame.overlap
        return max(by_process.values(), default=0)


def idle_times(report: Report, least_ns: int) -> list[Idle]:
    """All idle times of at least so many ns, of each device between its first and its last work."""
    pauses = _outermost(report.pauses)
    found = []
    for device in sorted({work.device for work in report.work}):
        for start, end in _gaps((work for work in report.work if work.device == device), least_ns):
            found.append(_judge(report, pauses, device, start, end))
    return sorted(found, key=attrgetter("start", "device"))


def _gaps(work: Iterable[Work], least_ns: int) -> list[tuple[int, int]]:
    gaps = []
    busy_until: int | None = None
    for each in work:
        if busy_until is not None and each.start - busy_until >= least_ns:
            gaps.append((busy_until, each.start))
        busy_until = each.end if busy_until is None else max(busy_until, each.end)
    return gaps


def _outermost(pauses: Sequence[ReportPause]) -> list[ReportPause]:
    """Without those inside another of their thread: a pass of ours counts, its collections do not count again."""
    kept: list[ReportPause] = []
    until: dict[tuple[int, int], int] = {}
    for pause in sorted(pauses, key=lambda p: (p.start, -p.end)):
        if pause.start >= until.get((pause.pid, pause.tid), pause.start):
            kept.append(pause)
            until[pause.pid, pause.tid] = pause.end
    return kept


def _judge(report: Report, pauses: list[ReportPause], device: int, start: int, end: int) -> Idle:
    middle = (start + end) // 2
    in_flight = [r for r in report.requests if r.start <= middle and (r.end is None or r.end >= middle)]
    return Idle(
        device, start, end, len(in_flight), _waiting(report.tokens, in_flight, start, end), _blames(pauses, start, end)
    )


def _waiting(tokens: list[ReportToken], in_flight: list[ReportRequest], start: int, end: int) -> int | None:
    """Requests in flight without a message of tokens inside the time, which have one after it."""
    if not any(not token.first for token in tokens):
        return None
    inside = bisect_left(tokens, start, key=attrgetter("at")), bisect_right(tokens, end, key=attrgetter("at"))
    served = {(token.pid, token.request) for token in tokens[inside[0] : inside[1]]}
    later = {(token.pid, token.request) for token in tokens[inside[1] :]}
    return sum(1 for r in in_flight if (r.pid, r.number) in later and (r.pid, r.number) not in served)


def _blames(pauses: list[ReportPause], start: int, end: int) -> tuple[Blame, ...]:
    found: dict[tuple[int, str], Blame] = {}
    for pause in pauses:
        overlap = min(pause.end, end) - max(pause.start, start)
        if overlap <= 0:
            continue
        key = pause.pid, pause.cause
        old = found.get(key, Blame(*key, 0, 0, None))
        counts = [n for n in (old.collected, pause.collected) if n is not None]
        found[key] = Blame(*key, old.overlap + overlap, old.collections + 1, sum(counts) if counts else None)
    return tuple(sorted(found.values(), key=lambda blame: -blame.overlap))
