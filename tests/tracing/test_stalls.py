"""Stalls in a timeline, asked in SQL of the real trace_processor: where they are, on whose track, what they name."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tailwatch.errors import TailwatchError
from tailwatch.tracing import perfetto, ring_files

from ..support.process import Python, clean_environment
from ..support.waiting import until
from . import made
from .made import MS, SHARED, START, Made, event

pytestmark = pytest.mark.integration

Load = Callable[..., Any]

PLANTED = Path(__file__).parents[1] / "stall" / "planted.py"
ASLEEP = ("sleep", "pipe")  # they leave the processor to the watchdog
NEAR_NS = 2 * MS  # a sample's own time, and the loop's from a plant's clock to the handle's
CALLBACK, GIL, THROTTLED, STOPPED = 6, 8, 10, 15  # tw_delay_cause
MEASURED, SAMPLED = range(2)

# Its loop never comes back.
HUNG = """
import asyncio, sys, time, tailwatch
watch = tailwatch.install(role="api", dir=sys.argv[1], trace_events=4096, gc="observe")
def hang():
    time.sleep(1000)
async def serve():
    watch.host.use_loop()
    with tailwatch.stream(model="m") as stream:
        stream.token()
        await asyncio.sleep(1.5)
        hang()
asyncio.run(serve())
"""

# A thread with engine steps of 4 ms, of which some hang, beside a loop on which a request waits; it prints when, and
# which thread.
STEPS = """
import asyncio, json, sys, threading, time, tailwatch
watch = tailwatch.install(role="api", dir=sys.argv[1], trace_events=65536, gc="observe")
log = []
def hang():
    began = time.monotonic_ns()
    time.sleep(0.3)
    log.append((began, time.monotonic_ns()))
def run():
    for turn in range(60):
        with tailwatch.step("decode", batch=2, waiting=1):
            time.sleep(0.004)
            if turn in (20, 40, 50):
                hang()
async def serve():
    watch.host.use_loop()
    with tailwatch.stream(model="m") as stream:
        stream.token()
        engine = threading.Thread(target=run)
        engine.start()
        await asyncio.to_thread(engine.join)
        print(json.dumps([engine.native_id, log, watch.core.host_status()["tracks"]]), flush=True)
        sys.stdin.read()
asyncio.run(serve())
"""

SLICES = """
select s.name, s.ts, s.dur, row.name as row_name, s.arg_set_id, thread.tid
from slice s join track row on s.track_id = row.id
left join thread_track on row.id = thread_track.id left join thread using (utid)
where s.category = 'stall' order by s.ts, row.name
"""


class Slice(NamedTuple):
    """One stall."""

    name: str
    start: int
    length: int
    row: str
    args: dict[str, Any]
    thread: int | None


def stalls(answers: Any) -> list[Slice]:
    """Those of a timeline."""
    args: dict[int, dict[str, Any]] = {}
    for which, key, text, number in answers.rows("select arg_set_id, key, string_value, int_value from args"):
        args.setdefault(which, {})[key.removeprefix("debug.")] = text if text is not None else number
    return [Slice(*found[:4], args.get(found[4], {}), found[5]) for found in answers.rows(SLICES)]


def test_what_a_stall_shows(tmp_path: Path, load: Load) -> None:
    """Cause, certainty, function, file, caller, call, holder and stack, of a thread or of the process; on one row they
    lie beside each other, whatever two rings have of the same stop."""
    api = Made(
        names={2: "slow  a.py:12  <- run  b.py:30  [fsync /tmp/x]", 3: "busy  c.py:4"},
        frames={2: "slow  a.py:12", 511: "run  b.py:30"},
    )
    stall, tid = made.STALL, 4243
    api.add(
        SHARED,
        event(START + 20 * MS, stall, a=CALLBACK, b=2, c=tid, id=START + 10 * MS, value=MEASURED),
        event(START + 19 * MS, stall, a=GIL, b=2, c=tid, id=START + 11 * MS, value=SAMPLED | 3 << 8),
        event(START + 19 * MS, made.FRAMES, id=2 | 511 << 16),
        event(START + 50 * MS, stall, a=STOPPED, id=START + 30 * MS),
        event(START + 55 * MS, stall, a=STOPPED, id=START + 40 * MS),
        event(START + 45 * MS, stall, a=STOPPED, id=START + 40 * MS),
        event(START + 70 * MS, stall, a=THROTTLED, id=START + 60 * MS, value=5 * MS << 8),
        event(START + 90 * MS, stall, a=77, b=400, c=tid, id=START + 99 * MS, value=99),
    )
    path = tmp_path / "t.pftrace"
    written = perfetto.write(path, [api.write(tmp_path)])
    named = {"function": "slow", "file": "a.py:12", "caller": "run", "call": "[fsync /tmp/x]"}
    sampled = {"holder": "busy  c.py:4", "frame 0": "slow  a.py:12", "frame 1": "run  b.py:30"}
    assert written.stalls == 5
    assert stalls(load(path)) == [
        Slice("slow", START + 10 * MS, 10 * MS, "stalls", named | {"cause": "callback", "certainty": "measured"}, tid),
        Slice(
            "slow", START + 11 * MS, 8 * MS, "stalls, sampled",
            named | sampled | {"cause": "gil", "certainty": "sampled"}, tid,
        ),
        Slice("stopped", START + 30 * MS, 20 * MS, "stalls", {"cause": "stopped", "certainty": "measured"}, None),
        Slice("stopped", START + 50 * MS, 5 * MS, "stalls", {"cause": "stopped", "certainty": "measured"}, None),
        Slice(
            "throttled", START + 60 * MS, 10 * MS, "stalls",
            {"cause": "throttled", "certainty": "measured", "throttled_us": 5000}, None,
        ),
    ]  # fmt: skip


def test_a_stall_that_grew_is_drawn_once(tmp_path: Path, load: Load) -> None:
    """What was written of it while it lasted is one slice, up to the latest end, with the stack; another's in between
    and the same function again are slices of their own."""
    api = Made(frames={2: "slow  a.py:12"})
    stall, tid = made.STALL, 4243
    stack = event(START, made.FRAMES, id=2)
    for end in (20, 35, 60):
        api.add(SHARED, event(START + end * MS, stall, a=CALLBACK, c=tid, id=START + 10 * MS, value=SAMPLED), stack)
        api.add(SHARED, event(START + end * MS, stall, a=GIL, c=77, id=START + (end - 5) * MS, value=SAMPLED))
    api.add(SHARED, event(START + 80 * MS, stall, a=CALLBACK, c=tid, id=START + 70 * MS, value=SAMPLED))
    path = tmp_path / "t.pftrace"
    written = perfetto.write(path, [api.write(tmp_path)])
    found = stalls(load(path))
    assert [each[1:3] for each in found if each.thread == tid] == [
        (START + 10 * MS, 50 * MS),
        (START + 70 * MS, 10 * MS),
    ]
    assert [each.args.get("frame 0") for each in found if each.thread == tid] == ["slow  a.py:12", None]
    assert [each.length for each in found if each.thread == 77] == [5 * MS] * 3
    assert written.stalls == 5


def test_stalls_that_are_missing_are_counted(tmp_path: Path, load: Load) -> None:
    """Those that the process could not write down, and those of more threads than have rows, whose events are sound."""
    api = Made(stalls_lost=3)
    for n in range(18):
        for end in (n + 2, n + 3):  # each has grown
            ended, began = START + end * MS, START + n * MS
            api.add(SHARED, event(ended, made.STALL, a=CALLBACK, c=100 + n, id=began, value=SAMPLED))
    path = tmp_path / "t.pftrace"
    written = perfetto.write(path, [api.write(tmp_path)])
    assert (written.stalls, written.stalls_left_out, written.stalls_lost, written.unreadable) == (16, 2, 3, 0)
    assert "no rows for 2 stalls of more than 16 threads" in str(written)
    assert "up to 3 stalls were overwritten before they could be recorded" in str(written)
    answers = load(path)
    assert len(stalls(answers)) == 16
    lost = "select int_value from args join slice using (arg_set_id) where name = 'stalls lost' and key = 'debug.count'"
    assert [tuple(row) for row in answers.rows(lost)] == [(3,)]


def test_planted_stalls_lie_where_they_were_planted(tmp_path: Path, load: Load) -> None:
    """The callback's slice on the loop's track covers what the plant's own log has; within it, of one of three plants
    at least, a sample names the planted function and its caller."""
    trace = tmp_path / "planted.pftrace"
    command = [sys.executable, str(PLANTED), f"--trace={trace}", "asyncio", "0.05", "3", *ASLEEP]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment())
    assert done.returncode == 0, done.stderr
    log = json.loads(done.stdout)["log"]
    answers = load(trace)
    found = stalls(answers)
    (main,) = [pid for (pid,) in answers.rows("select pid from process where pid > 0")]
    for plant, began, ended in log:
        (callback,) = [
            each
            for each in found
            if each.row == "stalls" and each.start <= began and ended <= each.start + each.length + NEAR_NS
        ]
        assert (callback.name, callback.thread) == ("run", main), plant
        assert callback.args["cause"] == "callback" and callback.args["certainty"] == "measured"
    for plant in ASLEEP:
        samples = [each for each in found if each.name == f"plant_{plant}" and each.row == "stalls, sampled"]
        assert samples, found
        for each in samples:
            assert each.thread == main
            assert each.args["frame 0"].startswith(f"plant_{plant}  plants.py:")
            assert each.args["frame 1"].startswith("run  plants.py:") and each.args["caller"] == "run"
            inside = [
                name
                for name, began, ended in log
                if began - NEAR_NS <= each.start and each.start + each.length <= ended + NEAR_NS
            ]
            assert inside == [plant]
        assert any(each.args["cause"] == {"pipe": "io"}.get(plant, plant) for each in samples)


def test_a_loop_that_hung_until_it_was_killed(tmp_path: Path, load: Load) -> None:
    """The file has the stall as far as it was sampled, as one slice, though no turn of the loop ended it."""
    if not Path("/dev/shm").is_dir():
        pytest.skip("a group's directory must be under /dev/shm: run it on Linux, with that mounted")
    with tempfile.TemporaryDirectory(prefix="tailwatch-test-hung-", dir="/dev/shm") as directory:
        with Python(HUNG, directory) as process:
            until(lambda: _longest(directory, tmp_path / "t.json") > 1_000_000)
            process.kill()
        out = tmp_path / "t.pftrace"
        ring_files.write_group(directory, str(out))
    (hang,) = [each for each in stalls(load(out)) if each.name == "hang" and each.length > 900 * MS]
    assert (hang.name, hang.row, hang.args["cause"]) == ("hang", "stalls, sampled", "sleep")
    assert hang.args["frame 0"].startswith("hang  ")


def test_a_step_that_hung_is_on_the_track_of_its_thread(tmp_path: Path, load: Load) -> None:
    """What it ran beyond its usual length, as it was sampled, below the steps of that thread; of three at least one."""
    if not Path("/dev/shm").is_dir():
        pytest.skip("a group's directory must be under /dev/shm: run it on Linux, with that mounted")
    out = tmp_path / "t.pftrace"
    with tempfile.TemporaryDirectory(prefix="tailwatch-test-steps-", dir="/dev/shm") as directory:
        with Python(STEPS, directory) as process:
            thread, log, loops = json.loads(process.read_line())
            until(lambda: _longest(directory, tmp_path / "t.json") > 150_000)
            process.kill()
        ring_files.write_group(directory, str(out))
    answers = load(out)
    hung = [each for each in stalls(answers) if each.name == "hang"]
    assert hung and loops == 1
    for each in hung:
        assert (each.thread, each.row, each.args["certainty"]) == (thread, "stalls, sampled", "sampled")
        assert each.args["frame 0"].startswith("hang  ") and each.args["frame 1"].startswith("run  ")
        over = each.start + each.length  # it begins and ends when the watchdog had a CPU to look
        assert any(began <= over and each.start <= ended for began, ended in log)
    assert any(each.args["cause"] == "sleep" and each.length > 100 * MS for each in hung)
    steps = """
    select steps.dur as step, hung.dur as stalled from slice steps join thread_track of on steps.track_id = of.id
    join slice hung on hung.ts between steps.ts and steps.ts + steps.dur
    join thread_track row on hung.track_id = row.id
    where steps.category = 'steps' and hung.name = 'hang' and row.utid = of.utid
    """
    inside = answers.rows(steps)
    assert len(inside) == len(hung) and all(step > stalled for step, stalled in inside)


def _longest(directory: str, to: Path) -> float:
    """Microseconds of the longest of its stalls; 0: nothing was recorded yet."""
    try:
        ring_files.write_group(directory, str(to), "json")
    except TailwatchError:  # not begun yet
        return 0
    shown = json.loads(to.read_text())["traceEvents"]
    began = {each["tid"]: each["ts"] for each in shown if each.get("name") == "hang"}  # the last one of a row
    ended = {each["tid"]: each["ts"] for each in shown if each["ph"] == "E"}
    return max((ended[row] - began[row] for row in began), default=0)
