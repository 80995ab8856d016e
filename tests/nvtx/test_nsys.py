"""`tailwatch nsys`: from a report of a real Nsight Systems, and from small ones that are made here.

data/report.sqlite.gz is real but for its kernels: see make_report.py.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tailwatch.cli import main
from tailwatch.cli.nsys.clock import Clock
from tailwatch.cli.nsys.idle import Blame, idle_times
from tailwatch.cli.nsys.report import read
from tailwatch.errors import TailwatchError

from . import make_report

HERE = Path(__file__).resolve().parent
MS = 1_000_000


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the real tool."""
    path = tmp_path_factory.mktemp("report") / "report.sqlite"
    path.write_bytes(gzip.decompress((HERE / "data" / "report.sqlite.gz").read_bytes()))
    return path


def truth_of(path: Path) -> list[tuple[int, int, int]]:
    """What the process itself recorded of its pauses: CLOCK_MONOTONIC ns, and the objects."""
    with closing(sqlite3.connect(path)) as file:
        return [(a, b, n) for a, b, n in file.execute("select start, stop, collected from TRUTH")]


# ---- the real report --------------------------------------------------------------------------------------------


def test_what_a_real_report_holds_of_us(real: Path) -> None:
    """Every pause with the objects it collected, every request, step and token, and which process it is."""
    report = read(real)
    booked = truth_of(real)

    assert list(report.roles.values()) == ["engine"]
    assert [p.collected for p in report.pauses if p.cause == "gc2"] == [n for *_, n in booked] == list(range(12))
    assert len([p for p in report.pauses if p.cause == "gc0"]) == 12
    assert [r.number for r in report.requests] == list(range(1, 13))
    assert len(report.steps) == 72
    assert len(report.tokens) == 84
    assert sum(token.first for token in report.tokens) == 12
    assert {token.label for token in report.tokens} == {"llama /v1/chat"}


def test_the_anchors_convert_one_clock_to_the_other(real: Path) -> None:
    """The pauses that the process booked, converted, against the tool's own rows: half of them within a microsecond."""
    report = read(real)
    clock = Clock(report.anchors)
    booked, seen = truth_of(real), [p for p in report.pauses if p.cause == "gc2"]

    assert clock.bursts >= 13
    starts = [abs(clock.report(a) - p.start) for (a, _, _), p in zip(booked, seen, strict=True)]
    ends = [abs(clock.monotonic(p.end) - b) for (_, b, _), p in zip(booked, seen, strict=True)]
    assert statistics.median(starts) <= 1000
    assert statistics.median(ends) <= 1000


def test_idle_times_are_those_that_were_planted(real: Path) -> None:
    """Three stretches without a kernel: two are collections of the engine, to half a millisecond; in the third nothing
    stood still, and that is what is printed."""
    report = read(real)
    first, none, second = idle_times(report, 2 * MS)
    booked = truth_of(real)

    for idle, (start, stop, collected) in ((first, booked[3]), (second, booked[7])):
        blame = idle.blames[0]
        assert (report.process(blame.pid).split()[0], blame.cause) == ("engine", "gc2")
        assert abs(blame.overlap - (stop - start)) <= 2000
        assert (blame.collections, blame.collected, idle.in_flight) == (1, collected, 1)
    assert none.blames == ()
    assert none.in_flight == 1


def test_it_is_printed_in_words(real: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence an idle time, a sum, and 1 as there is something to act on."""
    assert main(["nsys", str(real)]) == 1
    printed = capsys.readouterr().out

    assert printed.count("GPU 0 had nothing") == 3
    assert re.search(r"in gc2 for .*\(3 objects collected\); 1 request ", printed)
    assert re.search(r"; no process .* pause; 1 request ", printed)
    assert re.search(r"The GPU .* 1 ms or more 3 times", printed)
    assert "anchors over 2." in printed


def test_json_has_both_clocks(real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All rows with the report's times and CLOCK_MONOTONIC, and no path."""
    target = tmp_path / "out.json"
    main(["nsys", str(real), "--json", str(target), "--idle", "100"])
    printed = json.loads(target.read_text())

    assert printed["report"] == "report.sqlite"
    assert printed["idle"] == []
    assert [len(printed[name]) for name in ("pauses", "requests", "steps", "tokens")] == [24, 12, 72, 84]
    pause = next(p for p in printed["pauses"] if p["cause"] == "gc2")
    assert abs(pause["start_monotonic"] - truth_of(real)[0][0]) <= 2000
    assert "start_monotonic" in printed["work"][0]


# ---- made here --------------------------------------------------------------------------------------------------


class Made:
    """A report as the tool writes it, with as little as it may hold."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = sqlite3.connect(path)
        self.file.executescript("""
            create table StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
            create table NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, category INTEGER,
                text TEXT, globalTid INTEGER, textId INTEGER, domainId INTEGER, int64Value INTEGER);
        """)

    def row(
        self, kind: int, text: str, start: int, end: int | None = None, *, pid: int = 1, tid: int = 0, domain: int = 1,
        category: int | None = None, payload: int | None = None, registered: bool = True,
    ) -> Made:  # fmt: skip
        """One event; kind as in ENUM_NSYS_EVENT_TYPE."""
        number = None
        if registered:
            self.file.execute("insert into StringIds (value) values (?)", (text,))
            (number,) = self.file.execute("select last_insert_rowid()").fetchone()
        values = (start, end, kind, category, None if registered else text, pid << 24 | tid or pid, number, domain)
        self.file.execute("insert into NVTX_EVENTS values (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, payload))
        return self

    def domain(self, name: str = "tailwatch", **where: int) -> Made:
        """A domain is created."""
        return self.row(75, name, 0, registered=False, **where)

    def work(self, table: str, rows: Iterable[tuple[int, int, int]]) -> Made:
        """Of a GPU."""
        self.file.execute(f"create table if not exists {table} (start INTEGER, end INTEGER, deviceId INTEGER)")
        self.file.executemany(f"insert into {table} values (?, ?, ?)", rows)
        return self

    def done(self) -> Path:
        """The file."""
        self.file.commit()
        self.file.close()
        return self.path


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """An empty report."""
    return Made(tmp_path / "made.sqlite")


def test_processes_number_their_domains_each_for_itself(made: Made) -> None:
    """Domain 1 of one process is ours, of the other another library's."""
    made.domain(pid=1, domain=1).domain("pytorch", pid=2, domain=1).domain(pid=2, domain=2)
    made.row(59, "gc2", 10, 20, pid=1, domain=1).row(59, "gc2", 30, 40, pid=2, domain=1)
    made.row(59, "gc1", 50, 60, pid=2, domain=2)
    report = read(made.done())

    assert [(p.pid, p.cause, p.start) for p in report.pauses] == [(1, "gc2", 10), (2, "gc1", 50)]


def test_a_role_has_its_index(made: Made) -> None:
    """What a process names itself, the last time it does, with its index in its group."""
    made.domain(pid=1).domain(pid=2)
    made.row(34, "worker", 1, category=35, payload=0).row(34, "engine", 2, category=35, payload=2)
    made.row(34, "api", 3, category=35, payload=0, pid=2)
    report = read(made.done())

    assert report.roles == {1: "engine-1", 2: "api"}
    assert (report.process(1), report.process(9)) == ("engine-1 (pid 1)", "pid 9")


def test_idle_is_what_lies_between_all_work_of_a_device(made: Made) -> None:
    """Kernels that overlap, graphs, copies and memsets keep a GPU busy; each GPU has its own idle times."""
    made.domain().row(59, "gc2", 12 * MS, 18 * MS).row(59, "gc2", 41 * MS, 44 * MS, pid=1, tid=7)
    made.work("CUPTI_ACTIVITY_KIND_KERNEL", [(0, 10 * MS, 0), (1 * MS, 5 * MS, 0), (20 * MS, 30 * MS, 0)])
    made.work("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", [(30 * MS, 40 * MS, 0)])
    made.work("CUPTI_ACTIVITY_KIND_MEMCPY", [(40 * MS, 41 * MS, 0), (0, 1 * MS, 1)])
    made.work("CUPTI_ACTIVITY_KIND_MEMSET", [(50 * MS, 51 * MS, 0), (45 * MS, 51 * MS, 1)])
    found = idle_times(read(made.done()), 1 * MS)

    assert [(i.device, i.start // MS, i.end // MS) for i in found] == [(1, 1, 45), (0, 10, 20), (0, 41, 50)]
    assert [[(b.overlap // MS, b.collections) for b in i.blames] for i in found] == [[(9, 2)], [(6, 1)], [(3, 1)]]


def test_a_collection_in_a_pass_is_the_passs(made: Made) -> None:
    """Nested ranges of one thread count once; those of two threads, or processes, each for itself, and `paused` is what
    one process had at least."""
    made.domain(pid=1).domain(pid=2)
    made.row(59, "gc_own", 10 * MS, 18 * MS).row(59, "gc2", 11 * MS, 13 * MS).row(59, "gc2", 14 * MS, 17 * MS)
    made.row(59, "gc1", 12 * MS, 15 * MS, pid=2)
    made.work("CUPTI_ACTIVITY_KIND_KERNEL", [(0, 10 * MS, 0), (20 * MS, 30 * MS, 0)])
    (idle,) = idle_times(read(made.done()), 1 * MS)

    assert idle.blames == (Blame(1, "gc_own", 8 * MS, 1, None), Blame(2, "gc1", 3 * MS, 1, None))
    assert idle.paused == 8 * MS


def test_what_was_collected_belongs_to_the_innermost_range(made: Made) -> None:
    """Marks carry it; one outside every range is of none."""
    made.domain().row(59, "gc_own", 10, 90).row(59, "gc2", 20, 40).row(59, "gc2", 50, 70)
    made.row(34, "collected", 39, payload=3).row(34, "collected", 69, payload=5).row(34, "collected", 95, payload=9)
    report = read(made.done())

    assert [(p.cause, p.collected) for p in report.pauses] == [("gc_own", None), ("gc2", 3), ("gc2", 5)]


def test_requests_that_waited_are_counted_where_tokens_are_recorded(made: Made) -> None:
    """In flight: open in the middle. Waiting: those without a token meanwhile that have one later. A request whose end
    is not in the report is in flight to its end."""
    made.domain()
    for number, end in ((1, 90 * MS), (2, None), (3, 12 * MS)):
        made.row(60, "request", 1 * MS, end, category=32, payload=number)
    for at, number, text in (
        (5, 1, "first token"),
        (25, 1, "token"),
        (5, 2, "first token"),
        (15, 2, "token"),
        (26, 2, "token"),
    ):
        made.row(34, text, at * MS, category=65, payload=number)
    made.work("CUPTI_ACTIVITY_KIND_KERNEL", [(0, 10 * MS, 0), (20 * MS, 30 * MS, 0)])
    (idle,) = idle_times(read(made.done()), 1 * MS)

    assert (idle.in_flight, idle.waiting) == (2, 1)


def test_without_work_the_pauses_are_listed(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence that the report has none, and how to get it; 0, as nothing was found."""
    made.domain().row(59, "gc2", 10 * MS, 30 * MS).row(59, "gc1", 40 * MS, 41 * MS)
    assert main(["nsys", str(made.done())]) == 0
    printed = capsys.readouterr().out

    assert "--trace=cuda,nvtx" in printed
    longest, shortest = printed.index("gc2 from 0.010000 s "), printed.index("gc1 from 0.040000 s ")
    assert longest < printed.index(" 20 ms", longest) < shortest < printed.index(" 1 ms", shortest)
    assert "No clock anchors" in printed


def test_only_the_longest_are_listed_unless_all_are_asked_for(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    """Twenty, in the order of time, and how many more there are."""
    made.domain().row(59, "gc2", 1, 2)
    made.work("CUPTI_ACTIVITY_KIND_KERNEL", [(t * 10 * MS, t * 10 * MS + 5 * MS, 0) for t in range(30)])
    path = str(made.done())
    main(["nsys", path])
    short = capsys.readouterr().out
    main(["nsys", path, "--all"])

    assert short.count("had nothing to do from") == 20
    assert "9 shorter ones" in short and "--all" in short
    assert capsys.readouterr().out.count("had nothing to do from") == 29


# ---- what is no report ------------------------------------------------------------------------------------------


def of_text(path: Path) -> None:
    path.write_text("QDSTRM, not SQLite")


def of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("create table t (a)")


def without_nvtx(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("create table StringIds (id, value)")


def of_another_tool(path: Path) -> None:
    Made(path).domain("pytorch").row(59, "gc2", 1, 2).done()


def cut_short(path: Path) -> None:
    of_another_tool(path)
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "Is a directory"),
        (of_text, "no SQLite file; .*nsys export --type sqlite"),
        (of_another_program, "is no report"),
        (without_nvtx, "no NVTX events; .*`nsys profile --trace=cuda,nvtx`"),
        (of_another_tool, "nothing of tailwatch"),
        (cut_short, "cannot be read"),
    ],
)
def test_what_is_no_report_ends_in_a_sentence(
    make: Callable[[Path], None], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the file's name and what to do; exit status 2, and nothing on standard output."""
    path = tmp_path / "some file?.sqlite"
    make(path)
    with pytest.raises(TailwatchError, match=sentence):
        read(path)
    assert main(["nsys", str(path)]) == 2
    assert capsys.readouterr().out == ""


def test_values_of_another_type_are_no_crash(made: Made) -> None:
    """SQLite holds anything in any column."""
    made.domain().row(59, "gc2", 10, 20)
    made.file.execute("insert into NVTX_EVENTS values ('x', 'y', 59, 'z', x'00', 16777216, 'a', 1, 'b')")
    made.file.execute("insert into NVTX_EVENTS values (5, 3.5, 34, 34, null, 16777216, null, 1, null)")
    made.work("CUPTI_ACTIVITY_KIND_KERNEL", [("x", 3, 0), (10, 5, 0), (None, None, None)])  # type: ignore[list-item]
    report = read(made.done())

    assert [(p.start, p.end) for p in report.pauses] == [(10, 20)]
    assert report.work == []


# ---- the real tool, where it is ---------------------------------------------------------------------------------


def test_a_report_made_now(tmp_path: Path) -> None:
    """The installed Nsight Systems records a process of ours here: every pause is in the report, and after the anchors
    half of them stand within a microsecond of where the process booked them."""
    nsys = os.environ.get("NSYS") or shutil.which("nsys")
    if nsys is None:
        pytest.skip("Nsight Systems is not installed: put nsys on the PATH, or name it by NSYS=")
    try:
        booked = make_report.profile(nsys, tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"nsys does not work here: {error.stderr[-200:]!r}, {sys.platform}")
    report = read(tmp_path / "report.sqlite")
    clock = Clock(report.anchors)
    seen = [p for p in report.pauses if p.cause == "gc2"]

    assert [p.collected for p in seen] == [n for *_, n in booked]
    errors: list[Any] = [abs(clock.report(a) - p.start) for (a, _, _), p in zip(booked, seen, strict=True)]
    assert statistics.median(errors) <= 1000
    assert statistics.median(abs(clock.report(b) - p.end) for (_, b, _), p in zip(booked, seen, strict=True)) <= 1000
