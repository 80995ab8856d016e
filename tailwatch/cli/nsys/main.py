"""``tailwatch nsys report.sqlite``: joins GPU idle times with pauses and prints them."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tailwatch.cli.nsys import recording
from tailwatch.cli.nsys.clock import Clock
from tailwatch.cli.nsys.idle import Blame, Idle, idle_times
from tailwatch.cli.nsys.report import Report, ReportPause, read
from tailwatch.loadtest.options import write_json
from tailwatch.options.slo import parse_duration

ABOUT = "list the pauses during GPU idle times, from an Nsight Systems report exported to SQLite"
EXAMPLE = "tailwatch nsys report.sqlite --idle 2"
EXITS = {1: "a GPU was idle while a process with requests in flight was paused"}
_SHOWN = 20
_IDLE_MS = 1.0
_SMALL = 100  # a pause of less than this part of an idle time is not printed, only written
_NO_WORK = (
    "The report has no GPU work (kernels, graphs, copies): profile with --trace=cuda,nvtx. Pauses, longest first:"
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of the command."""
    command.add_argument(
        "report", metavar="REPORT.sqlite", help="made by: nsys export --type sqlite -o REPORT.sqlite REPORT.nsys-rep"
    )
    command.add_argument(
        "--idle", type=_milliseconds, default=_IDLE_MS, metavar="1ms",
        help=f"shortest GPU idle time to list (default: {_IDLE_MS:g}ms; a bare number is ms)",
    )  # fmt: skip
    command.add_argument(
        "--trace", action="append", default=[], metavar="FILE.trace",
        help="event ring of a process, in the group directory (install(trace_events=...)): adds its tokens; repeatable",
    )  # fmt: skip
    command.add_argument("--all", action="store_true", help=f"list all idle times, not only the {_SHOWN} longest")
    command.add_argument(
        "--json", type=Path, metavar="FILE", help="write the results as JSON, with times in CLOCK_MONOTONIC too"
    )


def _milliseconds(text: str) -> float:
    value = parse_duration(text, "ms") * 1e3
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"expected a time like 1ms, found {text!r}")
    return value


def main(parsed: argparse.Namespace) -> int:
    """Runs the command. Returns 1 if a GPU was idle while a process with requests in flight was paused.

    Raises:
        TailwatchError: the file is not a report, or lacks a table.
    """
    report = read(parsed.report)
    lost = recording.add(report, parsed.trace)
    found = idle_times(report, round(parsed.idle * 1e6))
    try:
        print("\n".join(_lines(report, found, parsed.all, parsed.idle, lost)), flush=True)
    except BrokenPipeError:  # into head or less
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if parsed.json is not None:
        write_json(parsed.json, as_dict(report, found))
    return 1 if any(idle.blames and idle.in_flight for idle in found) else 0


# ---- in words ----


def _lines(report: Report, found: list[Idle], everything: bool, least_ms: float, lost: int) -> Iterator[str]:
    yield _headline(report)
    yield _clock_line(report)
    if lost:
        yield f"The trace files had overwritten {_many(lost, 'event')}: older ones are missing."
    if not report.work:
        yield from ("", _NO_WORK, "")
        longest = sorted(report.pauses, key=lambda pause: pause.start - pause.end)
        yield from (_pause_line(report, pause) for pause in (longest if everything else longest[:_SHOWN]))
        if not longest:
            yield "no pauses"
        return
    yield from ("", _summary(report, found, least_ms), "")
    shown = found if everything else sorted(found, key=lambda idle: -idle.length)[:_SHOWN]
    yield from (sentence(report, idle) for idle in sorted(shown, key=lambda idle: idle.start))
    if len(shown) < len(found):
        yield f"… and {len(found) - len(shown)} shorter ones: --all lists them"


def _headline(report: Report) -> str:
    pids = {row.pid for rows in (report.pauses, report.requests, report.steps, report.anchors) for row in rows}
    who = ", ".join(sorted(report.process(pid) for pid in pids))
    return (
        f"{report.path}: {who}; {_many(len(report.pauses), 'pause')}, "
        f"{_many(len(report.requests), 'request')}, {_many(len(report.tokens), 'mark')} of tokens, "
        f"{_many(len(report.steps), 'step')}, {_many(len(report.work), 'piece')} of GPU work"
    )


def _clock_line(report: Report) -> str:
    if not report.anchors:
        return "No clock anchors: times are those of the report and cannot be converted to CLOCK_MONOTONIC."
    clock = Clock(report.anchors)
    first, last = clock.span
    return f"Clock: {clock.bursts} anchors over {(last - first) / 1e9:.1f} s."


def _summary(report: Report, found: list[Idle], least_ms: float) -> str:
    total, paused = sum(idle.length for idle in found), sum(idle.paused for idle in found)
    wanted = [idle for idle in found if idle.in_flight]
    devices = len({work.device for work in report.work})
    who = "The GPU" if devices == 1 else f"Of {devices} GPUs each by itself"
    text = (
        f"{who} had nothing to do for {least_ms:g} ms or more {_many(len(found), 'time')}, {_ms(total)} in all; "
        f"{len(wanted)} of them with requests in flight. For {_ms(paused)} of it a process was paused"
    )
    shares = ", ".join(f"{_ms(ns)} {who} in {cause}" for (who, cause), ns in _shares(report, found))
    return text + (f": {shares}." if shares else ".")


def _shares(report: Report, found: Iterable[Idle]) -> list[tuple[tuple[str, str], int]]:
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for idle in found:
        for blame in idle.blames:
            sums[report.process(blame.pid), blame.cause] += blame.overlap
    return sorted(sums.items(), key=lambda item: -item[1])


def sentence(report: Report, idle: Idle) -> str:
    """One idle time as text."""
    text = f"GPU {idle.device} had nothing to do from {_s(idle.start)} to {_s(idle.end)} ({_ms(idle.length)})"
    shown = [blame for blame in idle.blames if blame.overlap * _SMALL >= idle.length]
    blames = ", ".join(_blame(report, blame) for blame in shown)
    text += f"; {blames}" if blames else "; no process was in a pause"
    text += f"; {_many(idle.in_flight, 'request')} in flight" if idle.in_flight else "; no request in flight"
    if idle.waiting:
        text += f", {idle.waiting} of them got no token meanwhile"
    return text


def _blame(report: Report, blame: Blame) -> str:
    freed = "" if blame.collected is None else f" ({_many(blame.collected, 'object')} collected)"
    times = "" if blame.collections == 1 else f" {blame.collections} times"
    return f"{report.process(blame.pid)} was in {blame.cause}{times} for {_ms(blame.overlap)} of it{freed}"


def _pause_line(report: Report, pause: ReportPause) -> str:
    freed = "" if pause.collected is None else f" ({_many(pause.collected, 'object')} collected)"
    length = _ms(pause.end - pause.start)
    return f"{report.process(pause.pid)} was in {pause.cause} from {_s(pause.start)} for {length}{freed}"


def _many(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _s(ns: int) -> str:
    return f"{ns / 1e9:.6f} s"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3g} ms" if ns < 1e9 else f"{ns / 1e9:.3g} s"


# ---- as data ----


def as_dict(report: Report, found: list[Idle]) -> dict[str, Any]:
    """What --json writes. Times are ns of the report; ``*_monotonic`` the same as CLOCK_MONOTONIC, where there are
    clock anchors."""
    clock = Clock(report.anchors) if report.anchors else None

    def timed(row: Any) -> dict[str, Any]:
        values = asdict(row)
        for name in ("start", "end", "at"):
            if clock is not None and isinstance(values.get(name), int):
                values[f"{name}_monotonic"] = clock.monotonic(values[name])
        return values

    rows = ("pauses", "requests", "steps", "tokens", "work")
    return {
        "report": Path(report.path).name,
        "processes": {str(pid): role for pid, role in report.roles.items()},
        "anchors": [asdict(anchor) for anchor in report.anchors],
        "idle": [timed(idle) for idle in found],
        **{name: [timed(row) for row in getattr(report, name)] for name in rows},
    }
