"""Numbers as text: findings, one slow gap in a line, and where the time of the slowest gaps went."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailwatch.diagnose.finding import Finding
    from tailwatch.snapshots import Histogram, Octave, SlowGap, Snapshot
    from tailwatch.snapshots.model import Cause

CAUSE_NAMES = {
    "gc0": "generation 0",
    "gc1": "generation 1",
    "gc2": "generation 2",
    "gc_full": "full collections",
    "gc_increment": "incremental collections",
    "gc_own": "tailwatch's own pauses",
}
_PHASE_NAMES = {"ttft": "time to first token", "itl": "gaps between tokens"}
_UNSPLIT = "rest (model and queue, not split)"  # a first token has no typical wait to compare with
_WIDTH = 110
_HINTS = {
    "upstream": "before the token reached this process: no engine step is known that made it",
    "unexplained": "",
    "client": "the client did not read",
    "accept": "before the app was entered",
    "device": "the device took longer than is usual",
}
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:us|ms|s)\b)")


def ms(seconds: float | None) -> str:
    """A time with three digits and the unit that suits it; None: "unknown"."""
    if seconds is None:
        return "unknown"
    if seconds == 0:
        return "0 ms"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size * 0.9995:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{_three_digits(seconds * 1e6)} us"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def name_causes(by_cause: Mapping[str, float]) -> str:
    """The causes that make up four fifths of the sum, the largest first, in words."""
    total, named, covered = sum(by_cause.values()), [], 0.0
    for cause, value in sorted(by_cause.items(), key=lambda item: -item[1]):
        if covered >= 0.8 * total or value <= 0:
            break
        named.append(CAUSE_NAMES.get(cause, cause))
        covered += value
    return " and ".join(filter(None, (", ".join(named[:-1]), *named[-1:]))) or "nothing"


def split_by_cause(by_cause: Mapping[str, float], word: str = "of") -> str:
    """Each time with its cause, the largest first: "5 ms of generation 2, ..."; "none" where all are zero."""
    parts = sorted(((value, cause) for cause, value in by_cause.items() if value > 0), reverse=True)
    return ", ".join(f"{ms(value)} {word} {CAUSE_NAMES.get(cause, cause)}" for value, cause in parts) or "none"


def format_findings(findings: Iterable[Finding]) -> str:
    """Findings as text, in the order given: severity and title, the numbers, and what to do."""
    return "\n\n".join(_format_finding(finding) for finding in findings)


def _format_finding(finding: Finding) -> str:
    indent = " " * 8
    unbroken = _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", finding.detail)
    detail = textwrap.fill(unbroken, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    detail = detail.replace("\N{NO-BREAK SPACE}", " ")
    return f"{finding.severity:<8}{finding.title}\n{detail}\n{indent}-> {finding.advice}"


def format_slow(slow: SlowGap) -> str:
    """One slow gap in one line: when, whose, how long, what it coincided with, and what that cost."""
    when = slow.when.isoformat(timespec="milliseconds")
    name = "ttft" if slow.phase == "ttft" else "gap"
    typical = f" (typical {ms(slow.typical)})" if slow.typical else ""
    labels = (("request", slow.request_id), ("trace", slow.trace_id), ("route", slow.route), ("model", slow.model_name))
    whose = "".join(f" {label}={_one_line(value)}" for label, value in labels if value)
    return f"{when} {name} {ms(slow.gap)}{typical} token {slow.token}{whose}: {_why_slow(slow)}"


def _why_slow(slow: SlowGap) -> str:
    causes = getattr(slow, "causes", ())  # what earlier versions saved has none
    if causes and slow.complete:
        bound = split_by_cause(slow.overlap)
        return format_causes(causes) + (f"; coincided with up to {bound}" if bound != "none" else "")
    parts = [f"{label} {ms(value)}" for label, value in _rest_of(slow) if value and value > 0]
    if any(value > 0 for value in slow.overlap.values()):
        bound = "up to " if slow.complete else "at least "
        parts.insert(0, f"coincided with {bound}{split_by_cause(slow.overlap)}")
        parts.insert(1, f"lost about {split_by_cause(slow.delay, 'to')}" if slow.complete else "time lost is unknown")
        parts[2:2] = [
            f"of it in {share.source}: {split_by_cause({share.cause: share.overlap})}" for share in slow.others
        ]
    else:
        parts.insert(0, "no pause was recorded" if slow.complete else "its pauses were overwritten")
    return "; ".join(parts)


def _rest_of(slow: SlowGap) -> tuple[tuple[str, float], ...]:
    return (
        ("slow client", slow.client),
        ("waited before the app", slow.accept),
        (_UNSPLIT if slow.phase == "ttft" else "unexplained", slow.unexplained),
    )


def one_line_of(text: str) -> str:
    """Text of a stranger, fit for one line."""
    return "".join(char if char.isprintable() else "?" for char in text)


def is_rest(cause: Cause) -> bool:
    """Whether it is what no cause explains."""
    return cause.cause in ("upstream", "unexplained")


def what_of(cause: Cause) -> str:
    """What is known of a cause beside its name: function, request, holder, system call."""
    name, kind = one_line_of(cause.name), cause.kind
    if kind == "holder":
        return f"held by {one_line_of(cause.holder)}" if cause.holder else name
    if kind == "tokens":
        return f"{name or 'another request'}: {cause.detail:,} tokens in this step".replace(",", " ")
    if kind == "steps" and cause.detail:
        return f"{cause.detail} steps without this request"
    if kind == "faults":
        return f"{cause.detail} page faults"
    if kind == "syscall":
        return name or f"system call {cause.detail}"
    return name or _HINTS.get(cause.cause, "")


def format_causes(causes: Iterable[Cause]) -> str:
    """The causes of one gap in a line, the largest first: "121 ms callback (encode  serving.py:312), ..."."""
    parts, causes = [], list(causes)
    rests = sum(map(is_rest, causes))  # one in this process, and one in the engine
    for cause in causes:
        what = what_of(cause) if not is_rest(cause) else ""
        source = cause.source if not is_rest(cause) or rests > 1 else ""
        notes = ", ".join(filter(None, (source, what, "" if cause.certainty == "measured" else cause.certainty)))
        parts.append(f"{ms(cause.seconds)} {cause.cause}" + (f" ({notes})" if notes else ""))
    return ", ".join(parts)


def _one_line(text: str) -> str:
    """Text of a stranger, fit for one line of a log."""
    return "".join(char if char.isprintable() and char != " " else "?" for char in text)


def format_extremes(snapshot: Snapshot) -> str:
    """The longest gap and TTFT, and what streams lost to whose pauses; of a group without streams, its pauses."""
    lost = {role: sum(map(_total, phases.values())) for role, phases in snapshot.delay_by_source.items()}
    longest = [f"longest {name} {ms(length.max)}" for name, length in _lengths(snapshot) if length.count]
    if not longest:
        paused = ", ".join(f"{each.name} {ms(_total(each.paused))}" for each in snapshot.processes)
        return f"no stream was seen; paused: {paused}"
    hit = ", ".join(f"{role} {ms(lost[role])}" for role in sorted(lost, key=lambda role: -lost[role]) if lost[role] > 0)
    return ", ".join([*longest, f"lost to pauses: {hit}" if hit else "no pause delayed a stream"])


def _lengths(snapshot: Snapshot) -> tuple[tuple[str, Histogram], ...]:
    return ("gap", snapshot.itl), ("TTFT", snapshot.ttft)


def _total(by_cause: Mapping[str, float]) -> float:
    return sum(by_cause.values())


def format_tail(snapshot: Snapshot) -> str:
    """What dominates the tail: per octave of latency, the time by cause, a table for each phase."""
    tables = [_format_phase(phase, snapshot.tail.get(phase, ())) for phase in ("ttft", "itl")]
    return "\n\n".join(table for table in tables if table) or "no gap was longer than usual"


def _format_phase(phase: str, octaves: Sequence[Octave]) -> str:
    octaves = [octave for octave in octaves if octave.count]
    if not octaves:
        return ""
    columns = _columns(octaves)
    short = _SHORT | {"unexplained": "not split"} if phase == "ttft" else _SHORT
    rows = [["longer than", "up to", "count", "time", *(short.get(name, name) for name in columns)]]
    for octave in octaves:
        split = _time_by_column(octave)
        bounds = [ms(octave.lower), ms(octave.upper)]
        times = [ms(split[name]) if split.get(name) else "-" for name in columns]
        rows.append([*bounds, str(octave.count), ms(octave.time), *times])
    return f"{_PHASE_NAMES[phase]}, longer than usual\n{_table(rows)}\n{_dominating(phase, octaves)}"


_SHORT = {"gc_own": "own pauses", "client": "slow client", "accept": "before app"}


def _columns(octaves: Sequence[Octave]) -> list[str]:
    """The causes that took any time, and always what is not explained."""
    used = {name for octave in octaves for name, value in _time_by_column(octave).items() if value > 0}
    order = [*CAUSE_NAMES, "client", "accept", "host", "engine"]
    return [*sorted(used - {"unexplained"}, key=lambda name: order.index(name) if name in order else 99), "unexplained"]


def _time_by_column(octave: Octave) -> dict[str, float]:
    rest = {name: getattr(octave, name, 0.0) for name in ("client", "accept", "host", "engine", "unexplained")}
    return {**octave.delay, **rest}


def _dominating(phase: str, octaves: Sequence[Octave]) -> str:
    """A sentence on the half of the octaves with the longest gaps. Most of a wait for the first token is the model and
    its queue, and as it should be: it is no excess, and no cause of one."""
    slowest = octaves[len(octaves) // 2 :]
    sums: dict[str, float] = {}
    for octave in slowest:
        for name, value in _time_by_column(octave).items():
            sums[name] = sums.get(name, 0.0) + value
    total = sum(sums.values())
    if phase == "ttft" and not total - sums.pop("unexplained", 0.0) > 0:
        return f"above {ms(slowest[0].lower)} the wait is model and queue time, which are not split"
    if total <= 0:
        return f"above {ms(slowest[0].lower)} nothing exceeds the typical gap"
    worst = max(sums, key=lambda name: sums[name])
    name = CAUSE_NAMES.get(worst, _SHORT.get(worst, worst))
    what = "wait" if phase == "ttft" else "excess"
    return f"above {ms(slowest[0].lower)}, {sums[worst] / total:.0%} of the {what} is: {name}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
