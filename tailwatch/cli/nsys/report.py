"""Reads a report of Nsight Systems that was exported to SQLite: our rows, and what the GPUs did. Times: its own, ns.

Nothing of the file is believed: it is opened read-only, and what has another shape is left out, or refused in a
sentence.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tailwatch.cli.nsys.clock import Anchor
from tailwatch.errors import TailwatchError

DOMAIN = "tailwatch"
CAUSES = ("gc0", "gc1", "gc2", "gc_full", "gc_increment", "gc_own")

_CATEGORY, _MARK, _PUSH_POP, _START_END, _DOMAIN_CREATED = 33, 34, 59, 60, 75
_ID = 0xFFFFFF  # a globalTid is machine, pid, tid: 24 bits each of the last two
_REQUESTS, _STEPS, _CLOCK, _PROCESS, _LABELS = 32, 33, 34, 35, 64
_DEEPEST = 64  # collections in one pass
_ACTIVITIES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernel",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "graph",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "copy",
    "CUPTI_ACTIVITY_KIND_MEMSET": "memset",
}
_EXPORT = "export the report first: nsys export --type sqlite --output report.sqlite report.nsys-rep"
_COLLECT = "profile with `nsys profile --trace=cuda,nvtx` a process in which tailwatch is installed (nvtx is not off)"


@dataclass(frozen=True, slots=True)
class ReportPause:
    """A collection, or a pass of ours, on one thread. collected: objects; None: not recorded."""

    start: int
    end: int
    cause: str
    pid: int
    tid: int
    collected: int | None


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """number: its own in its process. end: None where the report does not have it."""

    start: int
    end: int | None
    number: int
    pid: int


@dataclass(frozen=True, slots=True)
class ReportStep:
    """An iteration of an engine."""

    start: int
    end: int
    name: str
    batch: int
    pid: int


@dataclass(frozen=True, slots=True)
class ReportToken:
    """A message of tokens. label: its model and route."""

    at: int
    request: int
    pid: int
    first: bool
    label: str


@dataclass(frozen=True, slots=True)
class Work:
    """Something that a GPU did."""

    start: int
    end: int
    device: int
    kind: str


@dataclass
class Report:
    """What is in it, each list in the order of time.

    Attributes:
        roles: by pid: what a process called itself ("engine-0", "api").
        names: by pid: its executable.
    """

    path: str
    roles: dict[int, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    pauses: list[ReportPause] = field(default_factory=list)
    requests: list[ReportRequest] = field(default_factory=list)
    steps: list[ReportStep] = field(default_factory=list)
    tokens: list[ReportToken] = field(default_factory=list)
    anchors: list[Anchor] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)

    def process(self, pid: int) -> str:
        """ "engine-0 (pid 17)"; "pid 17" for one that recorded no role."""
        role = self.roles.get(pid)
        return f"{role} (pid {pid})" if role else f"pid {pid}"


@dataclass(frozen=True, slots=True)
class _Row:
    start: int
    end: int | None
    kind: int
    category: int
    text: str
    payload: int
    pid: int
    tid: int
    domain: int


def read(path: str | Path) -> Report:
    """The report in a file.

    Raises:
        TailwatchError: there is no such file, it is no exported report, or nothing of tailwatch is in it; with what to
            do.
    """
    try:
        with closing(_open(str(path))) as file:
            return _read(file, str(path))
    except sqlite3.Error as error:
        raise TailwatchError(f"{path}: this cannot be read as a report of Nsight Systems: {error}") from error


def _open(path: str) -> sqlite3.Connection:
    try:
        with open(path, "rb") as file:
            head = file.read(16)
    except OSError as error:
        raise TailwatchError(f"{path}: {error.strerror}") from error
    if head != b"SQLite format 3\0":
        raise TailwatchError(f"{path}: this is no SQLite file; {_EXPORT}")
    return sqlite3.connect(f"file:{quote(str(Path(path).absolute()))}?mode=ro", uri=True)


def _columns(file: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in file.execute(f'pragma table_info("{table}")')}


def _read(file: sqlite3.Connection, path: str) -> Report:
    if not _columns(file, "StringIds"):
        raise TailwatchError(f"{path}: this is no report of Nsight Systems: it has no StringIds; {_EXPORT}")
    if not {"start", "eventType", "textId", "domainId", "int64Value"} <= _columns(file, "NVTX_EVENTS"):
        raise TailwatchError(f"{path}: the report has no NVTX events; {_COLLECT}")
    report = Report(path)
    ours = [row for row in _rows(file) if row.kind != _DOMAIN_CREATED]
    if not ours:
        raise TailwatchError(f"{path}: nothing of tailwatch is in this report; {_COLLECT}")
    _take(report, ours)
    report.names = _names(file)
    report.work = sorted(_work(file), key=lambda work: (work.start, work.end))
    return report


_NVTX = """
    select n.start, n.end, n.eventType, n.category, coalesce(n.text, s.value, ''), n.int64Value, n.globalTid, n.domainId
    from NVTX_EVENTS n left join StringIds s on s.id = n.textId
    where {where} order by n.start
"""


def _rows(file: sqlite3.Connection) -> list[_Row]:
    """Of our domain, which has a number of its own in each process."""
    made = [_row(row) for row in file.execute(_NVTX.format(where="n.eventType = ?"), (_DOMAIN_CREATED,))]
    ours = {(row.pid, row.domain) for row in made if row.text == DOMAIN}
    numbers = ", ".join(str(number) for number in sorted({domain for _, domain in ours})) or "null"
    rows = (_row(row) for row in file.execute(_NVTX.format(where=f"n.domainId in ({numbers})")))
    return [row for row in rows if (row.pid, row.domain) in ours]


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _row(row: tuple[Any, ...]) -> _Row:
    start, end, kind, category, text, payload, thread, domain = row
    thread = _number(thread)
    return _Row(
        _number(start), end if isinstance(end, int) else None, _number(kind), _number(category), str(text),
        _number(payload), thread >> 24 & _ID, thread & _ID, _number(domain),
    )  # fmt: skip


def _take(report: Report, rows: list[_Row]) -> None:
    labels = {(row.pid, row.category): row.text for row in rows if row.kind == _CATEGORY}
    collected = [row for row in rows if row.kind == _MARK and row.text == "collected"]
    for row in rows:
        if row.kind == _PUSH_POP and row.text in CAUSES and row.end is not None:
            report.pauses.append(ReportPause(row.start, row.end, row.text, row.pid, row.tid, None))
        elif row.kind == _START_END and row.category == _REQUESTS:
            report.requests.append(ReportRequest(row.start, row.end, row.payload, row.pid))
        elif row.kind == _START_END and row.category == _STEPS and row.end is not None:
            report.steps.append(ReportStep(row.start, row.end, row.text, row.payload, row.pid))
        elif row.kind == _MARK and row.category == _CLOCK:
            report.anchors.append(Anchor(row.start, row.payload, row.pid))
        elif row.kind == _MARK and row.category == _PROCESS:
            report.roles[row.pid] = f"{row.text}-{row.payload - 1}" if row.payload else row.text
        elif row.kind == _MARK and row.category >= _LABELS:
            label = labels.get((row.pid, row.category), "")
            report.tokens.append(ReportToken(row.start, row.payload, row.pid, row.text == "first token", label))
    report.pauses = _with_collected(report.pauses, collected)


def _with_collected(pauses: list[ReportPause], marks: list[_Row]) -> list[ReportPause]:
    """Each mark stands in the innermost range of its thread: the latest that began before it and ended after."""
    found: dict[tuple[int, int, int], int] = {}
    threads: dict[tuple[int, int], list[ReportPause]] = defaultdict(list)
    for pause in pauses:
        threads[pause.pid, pause.tid].append(pause)
    for mark in marks:
        thread = threads[mark.pid, mark.tid]
        at = bisect_right(thread, mark.start, key=attrgetter("start"))
        holder = next((p for p in reversed(thread[max(0, at - _DEEPEST) : at]) if p.end >= mark.start), None)
        if holder is not None:
            found[holder.pid, holder.tid, holder.start] = mark.payload
    return [replace(p, collected=found.get((p.pid, p.tid, p.start))) for p in pauses]


def _names(file: sqlite3.Connection) -> dict[int, str]:
    if not {"pid", "name"} <= _columns(file, "PROCESSES"):
        return {}
    return {_number(pid): Path(str(name)).name for pid, name in file.execute("select pid, name from PROCESSES")}


def _work(file: sqlite3.Connection) -> Iterator[Work]:
    for table, kind in _ACTIVITIES.items():
        if {"start", "end", "deviceId"} <= _columns(file, table):
            for start, end, device in file.execute(f'select start, "end", deviceId from {table}'):
                if isinstance(start, int) and isinstance(end, int) and end >= start:
                    yield Work(start, end, _number(device), kind)
