"""Traces that the real tools wrote, beside ours on one clock; and clocks that were set meanwhile."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailwatch.cli import main
from tailwatch.errors import TailwatchError
from tailwatch.tracing import foreign_formats, merge, perfetto

from . import made
from .made import MS, START, Made, pause, request

pytestmark = pytest.mark.integration

Load = Callable[..., Any]
SCRIPT = Path(__file__).with_name("beside.py")
ROUNDS = 8
NEAR_NS = 500_000
"""Two tools' stamps of one collection lie closer than this; one that is a millisecond off is on another clock. How
close they lie is what benchmarks/trace_alignment.py measures."""


@pytest.fixture
def group() -> Iterator[Path]:
    """A directory for a group, in memory."""
    path = Path("/dev/shm") / f"tailwatch-test-traces-{os.getpid()}"
    if not path.parent.is_dir():
        pytest.skip("a group's directory must be under /dev/shm: run it on Linux, with that mounted")
    yield path
    shutil.rmtree(path, ignore_errors=True)


def record(tool: str, group: Path, out: Path) -> Path:
    """Runs the script under a tool. Returns its trace."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), tool, str(group), str(out)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return out


def merged(tmp_path: Path, group: Path, trace: Path, form: str = "perfetto") -> Path:
    """What `tailwatch trace --merge` makes of both."""
    out = tmp_path / f"both.{form}"
    assert main(["trace", "--dir", str(group), "-o", str(out), "--format", form, "--merge", str(trace)]) == 0
    return out


def starts(answers: Any, name: str) -> list[int]:
    """When the slices of a name began."""
    return [ts for (ts,) in answers.rows(f"select ts from slice where name = '{name}' order by ts")]


def match(ours: list[int], theirs: list[int]) -> None:
    """Each of theirs has one of ours near it, and in the median they are very near."""
    distances = sorted(min(abs(one - other) for one in ours) for other in theirs)
    assert len(theirs) == ROUNDS
    assert distances[len(distances) // 2] < NEAR_NS, distances


@pytest.mark.parametrize("form", ["perfetto", "json"])
def test_viztracer(tmp_path: Path, group: Path, load: Load, form: str) -> None:
    """Its calls and ours line up, in the same process, and both are whole."""
    pytest.importorskip("viztracer", reason="pip install viztracer")
    trace = record("viztracer", group, tmp_path / "viz.json")
    answers = load(merged(tmp_path, group, trace, form))
    calls = answers.rows("select ts, dur from slice where name like 'marked%' order by ts")
    match(starts(answers, "gc2"), [ts for ts, _ in calls])
    inside = """
    select count(*) from slice gc join slice call
    where gc.name = 'gc2' and call.name like 'marked%' and gc.ts >= call.ts and gc.ts + gc.dur <= call.ts + call.dur
    """
    assert answers.one(inside) == ROUNDS
    assert answers.one("select count(*) from process where name = 'engine-0'") == 1
    assert answers.one("select count(distinct upid) from process where pid > 0") == 1


def test_torch(tmp_path: Path, group: Path, load: Load) -> None:
    """torch's own "Python GC" slices lie where ours do."""
    pytest.importorskip("torch", reason="pip install torch (the CPU build is enough)")
    trace = record("torch", group, tmp_path / "torch.json")
    answers = load(merged(tmp_path, group, trace))
    theirs = answers.rows("select ts, dur from slice where name = 'Python GC' and dur > 1000000 order by ts")
    match(starts(answers, "gc2"), [ts for ts, _ in theirs][-ROUNDS:])
    assert answers.one("select count(*) from slice where name = 'aten::ones'") >= 1


@pytest.mark.parametrize("kind", ["*.trace.json.gz", "*.xplane.pb"])
def test_jax(tmp_path: Path, group: Path, load: Load, kind: str) -> None:
    """JAX's annotations around collections lie where ours do, from either of the files that it writes."""
    pytest.importorskip("jax", reason="pip install jax jaxlib")
    (trace,) = record("jax", group, tmp_path / "jax").rglob(kind)
    answers = load(merged(tmp_path, group, trace))
    match(starts(answers, "gc2"), starts(answers, "tailwatch test collection"))


# ---- by hand


def kineto(path: Path, *wall_ns: int, base: int = 1_790_857_026 * 10**9, pid: int = 4242) -> str:
    """torch's JSON, with a slice of 1 ms at each of these times, and an arrow between the first two."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": "CPU"}},
        {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
    ]
    for i, at in enumerate(wall_ns):
        where = {"pid": pid if i != 1 else 0, "tid": 4243 if i != 1 else 7, "ts": (at - base) / 1000}
        events.append({"ph": "X", "cat": "cpu_op", "name": f"op {i}", "dur": 1000, "args": {"Ev Idx": i}, **where})
        if i < 2:
            events.append({"ph": "sf"[i], "cat": "ac2g", "name": "ac2g", "id": 9, "bp": "e", **where})
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": base, "traceEvents": events}))
    return str(path)


def ours(*ahead_ns: int) -> Made:
    """Our trace, with clock snapshots a second apart in which the wall clock is so far ahead."""
    snapshots = [made.clock(START + i * 10**9, ahead=ahead) for i, ahead in enumerate(ahead_ns)]
    return Made(clocks=snapshots).add(0, *request(1, START, START, [START + 30 * MS], START + 40 * MS))


def placed(tmp_path: Path, load: Load, file: Made, trace: str) -> tuple[dict[str, int], merge.Merged]:
    """Where the slices of the other trace lie: ns after START."""
    out = tmp_path / "both.pftrace"
    (row,) = perfetto.write(out, [file.write(tmp_path)], merge=[trace]).merged
    answers = load(out)
    found = answers.rows("select name, ts from slice where name like 'op %'")
    return {name: ts - START for name, ts in found}, row


def test_a_clock_that_drifts(tmp_path: Path, load: Load) -> None:
    """The wall clock gains 100 us each second: every time lies where the line between two snapshots puts it."""
    file = ours(*(made.WALL + i * 100_000 for i in range(5)))
    wall = [START + made.WALL + round(second * (10**9 + 100_000)) for second in (0.5, 1.25, 3.9)]
    found, row = placed(tmp_path, load, file, kineto(tmp_path / "torch.json", *wall))
    for name, second in zip(("op 0", "op 1", "op 2"), (0.5, 1.25, 3.9), strict=True):
        assert abs(found[name] - second * 10**9) <= 2  # what a float of us resolves
    assert (row.events, row.skipped, row.outside, row.ambiguous, row.across) == (
        5,
        0,
        0,
        False,
        False,
    )


def test_a_clock_that_was_set_forward(tmp_path: Path, load: Load) -> None:
    """An hour is skipped: times before and after the step are each converted with their own side's offset."""
    hour = 3600 * 10**9
    file = ours(*(made.WALL + (hour if i >= 3 else 0) for i in range(6)))
    wall = [START + made.WALL + 10**9, START + made.WALL + hour + 4 * 10**9]
    found, row = placed(tmp_path, load, file, kineto(tmp_path / "torch.json", *wall))
    assert abs(found["op 0"] - 10**9) <= 2
    assert abs(found["op 1"] - 4 * 10**9) <= 2
    assert row.across


def test_a_clock_that_was_set_back(tmp_path: Path, load: Load) -> None:
    """The wall clock showed three seconds twice. A trace that reaches back before them belongs to the first time, one
    that fits into both is said to."""
    back = 3 * 10**9
    file = ours(*(made.WALL - (back if i >= 6 else 0) for i in range(12)))
    early = kineto(tmp_path / "early.json", START + made.WALL + 10**9, START + made.WALL + 4 * 10**9)
    found, row = placed(tmp_path, load, file, early)
    assert abs(found["op 0"] - 10**9) <= 2
    assert abs(found["op 1"] - 4 * 10**9) <= 2
    assert not row.ambiguous
    either = kineto(tmp_path / "either.json", START + made.WALL + 4 * 10**9, START + made.WALL + 4 * 10**9 + 5 * MS)
    found, row = placed(tmp_path, load, file, either)
    assert abs(found["op 0"] - 7 * 10**9) <= 2
    assert row.ambiguous
    assert "either time" in str(row)


def test_before_our_trace(tmp_path: Path, load: Load) -> None:
    """What lies far outside our snapshots is placed, and marked so."""
    wall = [START + made.WALL - 60 * 10**9, START + made.WALL + MS]
    found, row = placed(tmp_path, load, ours(made.WALL, made.WALL), kineto(tmp_path / "torch.json", *wall))
    assert abs(found["op 0"] + 60 * 10**9) <= 2
    assert row.outside > 0


def test_rows_and_arrows(tmp_path: Path, load: Load) -> None:
    """A CPU thread of torch's is the process's own; a device is a row of its own; the arrow between them is there."""
    file = ours(made.WALL, made.WALL).add(made.SHARED, pause(START + 10 * MS, START + 20 * MS))
    out = tmp_path / "both.pftrace"
    wall = START + made.WALL
    perfetto.write(out, [file.write(tmp_path)], merge=[kineto(tmp_path / "torch.json", wall, wall + MS)])
    answers = load(out)
    arrow = """
    select a.name as a, b.name as b from flow join slice a on a.id = slice_out join slice b on b.id = slice_in
    """
    assert sorted(answers.rows(arrow)) == [("gc2", "first token"), ("op 0", "op 1")]
    assert answers.rows("select name, pid from process where pid > 0") == [("api-0", 4242)]
    rows = dict(answers.rows("select slice.name as a, track.name as b from slice join track on track.id = track_id"))
    assert rows["op 0"] == "torch"
    assert answers.one("select name from track where name like '%GPU 0%'") == "torch: GPU 0"


def test_slices_that_cross(tmp_path: Path, load: Load) -> None:
    """Kernels of one stream that overlap stand side by side, each with its own length."""
    base = START + made.WALL
    events = [
        {"ph": "X", "name": f"kernel {i}", "pid": 0, "tid": 7, "ts": i * 10, "dur": 15, "args": {}} for i in range(50)
    ]
    path = tmp_path / "torch.json"
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": base, "traceEvents": events}))
    out = tmp_path / "both.pftrace"
    perfetto.write(out, [ours(made.WALL, made.WALL).write(tmp_path)], merge=[str(path)])
    answers = load(out)
    assert answers.rows("select distinct dur, depth from slice where name like 'kernel%'") == [(15_000, 0)]


def test_viztracer_of_another_boot(tmp_path: Path, load: Load) -> None:
    """Its CLOCK_MONOTONIC is another's: the wall clock places it."""
    metadata = {"version": "1.1.1", "baseTimeNanoseconds": made.WALL + START - 77 * 10**9}
    events = [{"ph": "X", "name": "op 0", "pid": 9, "tid": 9, "ts": 77_000_000 + 2_000_000, "dur": 5}]
    path = tmp_path / "viz.json"
    path.write_text(json.dumps({"viztracer_metadata": metadata, "traceEvents": events}))
    found, _ = placed(tmp_path, load, ours(made.WALL, made.WALL, made.WALL, made.WALL), str(path))
    assert found == {"op 0": 2 * 10**9}


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.json", b"{", "not JSON"),
        ("a.json", b"{}", "no traceEvents"),
        ("a.json", b'{"traceEvents": [{"ph": "X", "ts": 1}]}', "clock of its times"),
        ("a.json.gz", b"\x1f\x8bxx", "a.json.gz"),
        ("a.pb", b"\xff\xff", "in the middle"),
        ("a.pb", b"", "profile_start_time"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    """Refused, with a sentence that names what it lacks."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TailwatchError, match=sentence):
        foreign_formats.read(str(path))


def test_strange_events(tmp_path: Path, load: Load) -> None:
    """Events of any shape do no harm: what is none is left out, and counted."""
    strange: list[Any] = [
        None, 7, {}, {"ph": "X"}, {"ph": "X", "ts": "soon"}, {"ph": "X", "ts": 1e300}, {"ph": "Q", "ts": 1},
        {"ph": "X", "ts": 1, "pid": [1], "tid": {}}, {"ph": "X", "ts": -1e12, "dur": -5},
        {"ph": "M", "name": "process_name", "args": 3}, {"ph": "f", "ts": 5, "id": 1},
        {"ph": "C", "ts": 5, "name": "c", "args": {"a": "x", "b": True}}, {"ph": "E", "ts": 9, "pid": 1, "tid": 1},
        {"ph": "X", "ts": 5, "dur": 2, "name": "op 0", "pid": "Spans", "tid": "x", "args": {"l": [1, {}], "n": None}},
    ]  # fmt: skip
    path = tmp_path / "torch.json"
    base = START + made.WALL
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": base, "traceEvents": strange}))
    out = tmp_path / "both.pftrace"
    written = perfetto.write(out, [ours(made.WALL, made.WALL).write(tmp_path)], merge=[str(path)])
    answers = load(out, sound=False)  # an end without a begin is an error of theirs
    assert answers.one("select count(*) from slice where name = 'op 0'") == 1
    assert written.merged[0].skipped >= 8


# ---- the archive


def test_archive(tmp_path: Path, load: Load) -> None:
    """A tar with Perfetto's manifest first, which gives each file's clock; versions of trace_processor that do not know
    it read our part."""
    wall = START + made.WALL
    theirs = kineto(tmp_path / "torch.json", wall, wall + MS)
    packed = tmp_path / "viz.json.gz"
    viz = {
        "viztracer_metadata": {"version": "1"},
        "traceEvents": [{"ph": "i", "ts": 1, "name": "x", "pid": 1, "tid": 1}],
    }
    packed.write_bytes(gzip.compress(json.dumps(viz).encode()))
    mine = tmp_path / "mine.pftrace"
    perfetto.write(mine, [ours(made.WALL, made.WALL).write(tmp_path)])
    out = tmp_path / "both.tar"
    merge.write_archive(out, mine, [theirs, str(packed)])
    with tarfile.open(out) as archive:
        names = archive.getnames()
        member = archive.extractfile(names[0])
        assert member is not None
        content = member.read()
    assert names == ["perfetto_manifest.json", "tailwatch.pftrace", "1-torch.json", "2-viz.json"]
    assert content.startswith(b'{"perfetto_manifest"')  # it is known by this
    manifest = json.loads(content)["perfetto_manifest"]
    assert manifest["version"] == 1
    assert manifest["files"] == [
        {"path": "tailwatch.pftrace"},
        {
            "path": "1-torch.json",
            "clocks": {
                "sync_to": {"file": "tailwatch.pftrace", "clock": "REALTIME"},
                "offset_ns": 1_790_857_026 * 10**9,
            },
        },
        {
            "path": "2-viz.json",
            "clocks": {"sync_to": {"file": "tailwatch.pftrace", "clock": "MONOTONIC"}, "offset_ns": 0},
        },
    ]
    answers = load(out, sound=False)  # it drops the JSON, which it cannot place
    assert answers.one("select count(*) from slice where name = 'request'") == 1


def test_archive_by_its_name(tmp_path: Path) -> None:
    """A file named .tar is one; what Perfetto does not read is refused."""
    trace = kineto(tmp_path / "torch.json", START + made.WALL)
    file, out = ours(made.WALL, made.WALL).write(tmp_path), tmp_path / "both.tar"
    perfetto.write(out, [file], merge=[trace])
    with tarfile.open(out) as archive:
        assert archive.getnames() == ["perfetto_manifest.json", "tailwatch.pftrace", "1-torch.json"]
    with pytest.raises(TailwatchError, match=r"trace\.json\.gz"):
        perfetto.write(out, [file], merge=["x.xplane.pb"])
    with pytest.raises(TailwatchError, match=r"without \.tar"):
        perfetto.write(out, [file], format="json")
