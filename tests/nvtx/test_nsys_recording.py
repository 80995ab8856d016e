"""`tailwatch nsys --trace`: what a process recorded itself, beside what a tool saw of it, on the tool's clock."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from tailwatch.cli import main
from tailwatch.cli.nsys import recording
from tailwatch.cli.nsys.clock import Anchor, earliest
from tailwatch.cli.nsys.report import Report, read
from tailwatch.errors import TailwatchError

from .conftest import Story

SHIFT = 10**15  # of the report's clock
KINDS = {"category": 33, "mark": 34, "push": 59, "start": 60, "domain": 75}

PROCESS = """
import gc, os, shutil, sys, tailwatch
watch = tailwatch.install(gc="observe", role="engine", trace_events=10_000, nvtx_tokens=True)
gc.disable()
keep = [[[] for _ in range(1000)] for _ in range(100)]
for burst in range(8):
    with tailwatch.stream(model="llama", route="/v1/chat") as s:
        for _ in range(10):
            with tailwatch.step("decode", batch=3, waiting=1):
                pass
            s.token()
        gc.collect()
        s.token()
name = os.path.join(watch.config.dir or watch.membership.directory, watch.core.trace_file)
shutil.copy(name, "here.trace")
print(os.getpid())
"""


def as_report(story: Story, path: Path, *, without: tuple[str, ...] = ()) -> Path:
    """What our tool saw, as Nsight Systems would write it; without: texts that it is made not to have seen."""
    file = sqlite3.connect(path)
    file.executescript("""
        create table StringIds (id INTEGER, value TEXT);
        create table NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, category INTEGER, text TEXT,
            globalTid INTEGER, textId INTEGER, domainId INTEGER, int64Value INTEGER);
    """)
    ends = {id(r.begin): r.end.at + SHIFT for r in story.pushed() + story.started()}
    for e in story.events:
        if e.what in KINDS and e.text not in without:
            row = (
                e.at + SHIFT,
                ends.get(id(e)),
                KINDS[e.what],
                e.category,
                e.text,
                e.pid << 24 | e.tid,
                None,
                1,
                e.payload,
            )
            file.execute("insert into NVTX_EVENTS values (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    file.commit()
    file.close()
    return path


@pytest.fixture
def story(watched, tmp_path: Path) -> Story:
    """A process that was seen by a tool, and recorded itself: its trace file is tmp_path / "here.trace"."""
    directory = Path("/dev/shm") / f"tailwatch-test-{os.getpid()}-{tmp_path.name}"
    try:
        return watched(PROCESS, TAILWATCH_DIR=str(directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def joined(report: Path, trace: Path) -> Report:
    """Both together."""
    found = read(report)
    recording.add(found, [str(trace)])
    return found


def assert_between(story: Story, ours: list[int], theirs: list[int]) -> None:
    """Each converted time lies after what the tool had seen before, and not after what it saw then. Both clocks are
    CLOCK_MONOTONIC here: what the conversion adds is what the tool was too late for the best anchor of a burst."""
    anchors = earliest(Anchor(e.at, e.payload, e.pid) for e in story("mark", "tailwatch clock"))
    late = max(each.at - each.monotonic for each in anchors)
    seen = {e.at: e for e in story.events if e.what not in ("pop", "end")}
    for our, their in zip(ours, theirs, strict=True):
        event = seen[their - SHIFT]
        assert story.before(event).at <= our - SHIFT <= event.at + late


def test_tokens_come_from_the_trace_file_where_the_tool_has_only_the_first(story: Story, tmp_path: Path) -> None:
    """The same tokens of the same requests as the tool's own marks, in the same places; the other rows are the
    tool's."""
    trace = tmp_path / "here.trace"
    whole = read(as_report(story, tmp_path / "whole.sqlite"))
    report = joined(as_report(story, tmp_path / "firsts.sqlite", without=("token",)), trace)

    assert len(report.tokens) == len(whole.tokens) == 88
    assert [(t.request, t.first, t.label) for t in report.tokens] == [
        (t.request, t.first, t.label) for t in whole.tokens
    ]
    assert_between(story, [t.at for t in report.tokens], [t.at for t in whole.tokens])
    assert (report.pauses, report.requests, report.steps) == (whole.pauses, whole.requests, whole.steps)


def test_what_the_tool_did_not_see_at_all_comes_from_the_trace_file(story: Story, tmp_path: Path) -> None:
    """Of a process that it has no ranges of: pauses, requests and steps, with what they hold."""
    texts = ("token", "first token", "gc0", "gc1", "gc2", "request", "decode", "collected")
    whole = read(as_report(story, tmp_path / "whole.sqlite"))
    report = joined(as_report(story, tmp_path / "none.sqlite", without=texts), tmp_path / "here.trace")

    assert [(r.number, r.pid) for r in report.requests] == [(r.number, r.pid) for r in whole.requests]
    assert [(s.name, s.batch) for s in report.steps] == [("decode", 3)] * 80
    ours = [p for p in report.pauses if p.cause == "gc2"]
    theirs = [p for p in whole.pauses if p.cause == "gc2"]
    assert [(p.collected, p.pid, p.tid) for p in ours] == [(p.collected, p.pid, p.tid) for p in theirs]
    assert len(ours) >= 8
    for rows, others in ((ours, theirs), (report.requests, whole.requests), (report.steps, whole.steps)):
        assert_between(story, [row.start for row in rows], [row.start for row in others])


def test_rows_that_the_report_has_are_left_alone(story: Story, tmp_path: Path) -> None:
    """With every token in the tool's report a trace file changes nothing."""
    path = as_report(story, tmp_path / "whole.sqlite")

    assert joined(path, tmp_path / "here.trace") == read(path)


def test_without_anchors_it_cannot_be_joined(story: Story, tmp_path: Path) -> None:
    """An error, and without --trace the report is read."""
    path = as_report(story, tmp_path / "none.sqlite", without=("tailwatch clock",))

    assert main(["nsys", str(path)]) == 0
    with pytest.raises(TailwatchError, match="no clock anchors"):
        joined(path, tmp_path / "here.trace")


def test_what_is_no_trace_file_is_refused(story: Story, tmp_path: Path) -> None:
    """Another file, and none."""
    path = as_report(story, tmp_path / "whole.sqlite")

    assert main(["nsys", str(path), "--trace", str(path)]) == 2
    with pytest.raises(TailwatchError, match=r"whole\.sqlite: .* no trace file .*PID-….trace"):
        joined(path, path)
    with pytest.raises(TailwatchError, match=r"missing\.trace: No such file"):
        joined(path, tmp_path / "missing.trace")
