"""The late tokens of a snapshot, and each with its causes as text: what ``tailwatch why`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailwatch.diagnose.text import is_rest, ms, one_line_of, what_of

if TYPE_CHECKING:
    from tailwatch.snapshots import Snapshot
    from tailwatch.snapshots.model import SlowGap

_ONE_EVENT_SECONDS = 0.1
_LEAST_SECONDS = 0.02  # of a gap that is late where no typical gap is known
_LEAST_SHARE = 0.01  # smaller causes are added up in one line,
_NO_SHARE = 0.001  # which is left out where it changes no digit


def late_tokens(snapshot: Snapshot, *, request: str | None = None, last: float | None = None) -> list[SlowGap]:
    """The slow gaps and first tokens that a snapshot holds, the most delayed first.

    request: only of requests whose id or trace id begins so. last: only of the last so many seconds.
    """
    kept = {(gap.when, gap.phase, gap.request_id, gap.token): gap for gap in (*snapshot.slowest, *snapshot.recent)}
    gaps = [
        gap
        for gap in kept.values()
        if _is_late(gap)
        and (last is None or snapshot.taken - gap.when.timestamp() <= last)
        and (request is None or gap.request_id.startswith(request) or gap.trace_id.startswith(request))
    ]
    return sorted(gaps, key=lambda gap: gap.typical - gap.gap)


def _is_late(gap: SlowGap) -> bool:
    """Of those kept for the log, not all are."""
    return gap.phase == "ttft" or gap.gap > (gap.typical or _LEAST_SECONDS)


def events_of(gaps: list[SlowGap]) -> list[tuple[SlowGap, int]]:
    """Tokens that one event delayed stand together: of each event the first of these gaps, and how many others there
    are. One event: the same largest cause, in the same place, at ends less than 0.1 s apart."""
    found: dict[tuple[str, ...], list[list[SlowGap]]] = {}
    for gap in gaps:
        events = found.setdefault(_largest(gap), [])
        near = (event for event in events if abs((event[0].when - gap.when).total_seconds()) < _ONE_EVENT_SECONDS)
        if (event := next(near, None)) is not None:
            event.append(gap)
        else:
            events.append([gap])
    first = {id(event[0]): len(event) - 1 for events in found.values() for event in events}
    return [(gap, first[id(gap)]) for gap in gaps if id(gap) in first]


def _largest(gap: SlowGap) -> tuple[str, ...]:
    return (gap.causes[0].cause, gap.causes[0].source, what_of(gap.causes[0])) if gap.causes else ()


def format_why(gap: SlowGap, others: int = 0) -> str:
    """A late token, and a line for each of its causes. others: tokens that the same event delayed."""
    when = gap.when.astimezone().strftime("%H:%M:%S.%f")[:-3]
    whose = f"{gap.request_id or gap.trace_id or 'a request'}  {_token(gap)}"
    typical = f", typically {ms(gap.typical)}: {ms(gap.gap - gap.typical)} late" if gap.typical else ""
    lines = [f"{when}  {one_line_of(whose)}: {ms(gap.gap)}{typical}", *_cause_lines(gap)]
    if others:
        lines.append(f"{'':>10} and {others} more token{'s' * (others > 1)} at that time, late by the same")
    return "\n".join(lines)


def _token(gap: SlowGap) -> str:
    return "first token" if gap.phase == "ttft" else f"token {gap.token}"


def _cause_lines(gap: SlowGap) -> list[str]:
    whole = sum(cause.seconds for cause in gap.causes)
    shown = [cause for cause in gap.causes if cause.seconds >= _LEAST_SHARE * whole]
    rest = whole - sum(cause.seconds for cause in shown)
    rows = [(ms(c.seconds), c.source, c.cause, what_of(c), "" if is_rest(c) else c.certainty) for c in shown]
    if rest >= _NO_SHARE * whole and len(shown) < len(gap.causes):
        more = len(gap.causes) - len(shown)
        rows.append((ms(rest), "", "", f"{more} more cause{'s' * (more > 1)}", ""))
    return [
        f"{time:>9}  {source:<9} {cause:<13} {what:<64} {sure}".rstrip() for time, source, cause, what, sure in rows
    ]
