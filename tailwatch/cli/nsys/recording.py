"""Puts what a process recorded itself (its trace file) beside what the report has of it, on the report's clock.

Of each kind the report's own rows stand where it has any; tokens where it has more than the first of each request.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from tailwatch import platform
from tailwatch.cli.nsys.clock import Clock
from tailwatch.cli.nsys.report import CAUSES, Report, ReportPause, ReportRequest, ReportStep, ReportToken
from tailwatch.errors import TailwatchError, UnsupportedError

if TYPE_CHECKING:
    from tailwatch.tracing.reader import Recording

_NO_ANCHORS = (
    "the report has no clock anchors of tailwatch, so a trace file cannot be put onto its clock: profile a process in "
    "which tailwatch is installed while the capture runs"
)


def add(report: Report, paths: list[str]) -> int:
    """Adds trace files to a report. Returns how many events they had lost.

    Raises:
        TailwatchError: a file is no trace file, or the report has no clock anchors.
    """
    if not paths:
        return 0
    if not report.anchors:
        raise TailwatchError(f"{report.path}: {_NO_ANCHORS}")
    if not platform.LINUX:
        raise UnsupportedError("tailwatch nsys --trace: trace files are read on Linux only")
    from tailwatch.tracing.reader import Recording

    clock, lost = Clock(report.anchors), 0
    for path in paths:
        recording = Recording(path)
        _add(report, recording, clock)
        lost += recording.lost
    for rows in (report.pauses, report.requests, report.steps):
        rows.sort(key=attrgetter("start"))
    report.tokens.sort(key=attrgetter("at"))
    return lost


def _add(report: Report, recording: Recording, clock: Clock) -> None:
    pid = recording.pid
    report.roles.setdefault(pid, recording.process)
    if not any(pause.pid == pid for pause in report.pauses):
        report.pauses += _pauses(recording, clock)
    if not any(step.pid == pid for step in report.steps):
        report.steps += _steps(recording, clock)
    if not any(request.pid == pid for request in report.requests):
        report.requests += _requests(recording, clock)
    if not any(token.pid == pid and not token.first for token in report.tokens):
        report.tokens = [token for token in report.tokens if token.pid != pid] + _tokens(recording, clock)


def _pauses(recording: Recording, clock: Clock) -> list[ReportPause]:
    from tailwatch.tracing.reader import PAUSE

    return [
        ReportPause(clock.report(e.id), clock.report(e.at), CAUSES[e.a], recording.pid, e.tid, e.value)
        for e in recording.events
        if e.kind == PAUSE and e.a < len(CAUSES)
    ]


def _steps(recording: Recording, clock: Clock) -> list[ReportStep]:
    from tailwatch.tracing.reader import STEP

    return [
        ReportStep(clock.report(e.id), clock.report(e.at), recording.step(e.a), e.c, recording.pid)
        for e in recording.events
        if e.kind == STEP
    ]


def _requests(recording: Recording, clock: Clock) -> list[ReportRequest]:
    """Of one whose opening was overwritten the arrival is known from its end."""
    from tailwatch.tracing.reader import CLOSE, OPEN

    starts = {e.id: clock.report(e.at) for e in recording.events if e.kind == OPEN}
    ends = {e.id: clock.report(e.at) for e in recording.events if e.kind == CLOSE}
    arrivals = {e.id: clock.report(e.value) for e in recording.events if e.kind == CLOSE}
    return [ReportRequest(start, ends.get(n), n, recording.pid) for n, start in {**arrivals, **starts}.items()]


def _tokens(recording: Recording, clock: Clock) -> list[ReportToken]:
    from tailwatch.tracing.reader import FIRST, TOKEN

    labels = {e.id: recording.label(e.labels) for e in recording.events if e.kind == FIRST}
    return [
        ReportToken(clock.report(e.at), e.id, recording.pid, e.kind == FIRST, labels.get(e.id, ""))
        for e in recording.events
        if e.kind in (FIRST, TOKEN)
    ]
