"""What a timeline shows, asked in SQL of the real trace_processor."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailwatch.tracing import perfetto

from . import made
from .made import MS, START, Made, event, pause, request

pytestmark = pytest.mark.integration

Load = Callable[..., Any]

STREAMS = """
select distinct root.arg_set_id, p.ts as start, p.dur, p.name,
  (select int_value from args a
   where a.arg_set_id = root.arg_set_id and key in ('debug.number', 'args.number')) as number
from flow
join slice p on p.id = flow.slice_out
join slice token on token.id = flow.slice_in
join ancestor_slice(token.id) root on root.depth = 0
"""
"""Of each arrow: the pause it comes from, and the request it leads to."""


def nests(answers: Any) -> None:
    """Slices of one track lie inside or beside each other, and each has an end."""
    assert answers.one("select count(*) from slice where dur < 0") == 0
    crossing = """
    select count(*) from slice a join slice b on a.parent_id = b.id
    where a.ts < b.ts or a.ts + a.dur > b.ts + b.dur
    """
    assert answers.one(crossing) == 0
    beside = """
    select count(*) from slice a join slice b on a.track_id = b.track_id and a.depth = b.depth and a.id != b.id
    where a.dur > 0 and b.dur > 0 and a.ts < b.ts and a.ts + a.dur > b.ts
    """
    assert answers.one(beside) == 0


def write(tmp_path: Path, *files: Made, form: str = "perfetto", **options: Any) -> tuple[Path, perfetto.Written]:
    """A timeline of files."""
    out = tmp_path / f"timeline.{form}"
    written = perfetto.write(out, [file.write(tmp_path) for file in files], format=form, **options)
    if form == "json":
        json.loads(out.read_bytes())
    return out, written


def server() -> tuple[Made, Made]:
    """An API process with three streams, and the engine that they wait for. One pause of each."""
    api, engine = Made(), Made(role="engine", pid=5252, tids={0: (5253, "steps")})
    api.add(0, event(START, made.THREAD, id=4243, value=int.from_bytes(b"loop\0\0\0\0", "little")))
    for number, arrival in ((1, 0), (2, 20), (3, 400)):
        at = START + arrival * MS
        tokens = [at + (30 + 10 * i) * MS for i in range(8)]
        api.add(0, *request(number, at, at + 2 * MS, tokens, tokens[-1] + MS, reason=number - 1))
    api.rings[0].sort(key=lambda e: int.from_bytes(e[:8], "little"))
    api.add(made.SHARED, pause(START + 411 * MS, START + 419 * MS, collected=7))
    api.add(made.SHARED, *(event(START + i * 100 * MS, made.COUNTER, a=0, value=i) for i in range(5)))
    api.add(made.SHARED, event(START + 300 * MS, made.COUNTER, a=1, value=2500))
    for i in range(20):
        begin = START + (10 + 20 * i) * MS
        engine.add(0, event(begin + 15 * MS, made.STEP, a=i % 2, c=3, id=begin, value=2 if i < 10 else 0))
    engine.add(made.SHARED, pause(START + 61 * MS, START + 69 * MS, cause=1, collected=99))
    return api, engine


@pytest.mark.parametrize("form", ["perfetto", "json"])
def test_a_server(tmp_path: Path, load: Load, form: str) -> None:
    """Counts are those of the rings, slices nest, times are CLOCK_MONOTONIC, and each pause has arrows to exactly the
    requests it delayed."""
    out, written = write(tmp_path, *server(), form=form)
    answers = load(out)
    nests(answers)
    assert dict(answers.rows("select name, count(*) as n from slice group by name")) == {
        **{"request": 3, "queue": 3, "until first token": 3, "answer": 3, "first token": 3, "token": 21},
        **{"gc1": 1, "gc2": 1, "decode": 10, "prefill": 10, "host gap": 10},
    }
    assert (written.tokens, written.requests, written.pauses, written.steps) == (24, 3, 2, 20)
    assert sorted((name, start, number) for _, start, _, name, number in answers.rows(STREAMS)) == [
        *(("gc1", START + 61 * MS, number) for number in (1, 2)),
        ("gc2", START + 411 * MS, 3),
    ]
    assert answers.rows("select ts, dur from slice where name = 'gc2'") == [(START + 411 * MS, 8 * MS)]
    assert answers.rows("select value from counter c join track t on c.track_id = t.id where name like 'streams%'") == [
        (0.0,), (1.0,), (2.0,), (3.0,), (4.0,)
    ]  # fmt: skip
    assert (
        answers.one("select value from counter c join track t on c.track_id = t.id where name like 'goodput%'") == 2.5
    )
    processes = dict(answers.rows("select name, pid from process where pid > 0"))
    assert processes == {"api-0": 4242, "engine-0": 5252}


def test_a_pipe_and_a_link_stay_what_they_are(tmp_path: Path) -> None:
    """A timeline goes through a pipe, and to where a link leads: neither is replaced by a file."""
    file = Made().write(tmp_path)
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    link.symlink_to(target)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert perfetto.write(pipe, [file]).bytes == len(os.read(reading, 1 << 16))
    finally:
        os.close(reading)
    assert pipe.is_fifo()
    assert perfetto.write(link, [file]).bytes == target.stat().st_size
    assert link.is_symlink()


def test_labels_that_only_the_answer_has(tmp_path: Path, load: Load) -> None:
    """A request that was opened before its model and route were known shows them once, and none that are not its own;
    one without an end shows them at its answer."""
    api = Made()
    for number, last in ((1, made.CLOSE), (2, made.FIRST)):
        events = request(number, START, START + MS, [START + 5 * MS], START + 9 * MS)
        events[0] = event(START + MS, made.OPEN, a=1, b=0, id=number, value=START)
        api.add(0, *(each for each in events if each[8] <= last))
    api.rings[0].sort(key=lambda e: int.from_bytes(e[:8], "little"))
    answers = load(write(tmp_path, api)[0])
    asked = (
        "select slice.name, key, string_value from slice join args using (arg_set_id) "
        "where key in ('debug.model', 'debug.route') order by slice.name, key"
    )
    assert answers.rows(asked) == [
        *(("answer", "debug.model", "llama"),) * 2,
        *(("answer", "debug.route", "/v1/completions"),) * 2,
        ("request", "debug.model", "llama"),
        ("request", "debug.route", "/v1/completions"),
    ]


def test_what_a_slice_holds(tmp_path: Path, load: Load) -> None:
    """A request has its number, model, route and outcome; a pause what it collected; a token what pauses took of it."""
    answers = load(write(tmp_path, *server())[0])

    def args(name: str) -> list[dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for key, at, text, number in answers.rows(
            "select key, ts, string_value, int_value from slice join args using (arg_set_id) "
            f"where slice.name = '{name}' order by ts"
        ):
            found.setdefault(at, {})[key.removeprefix("debug.")] = text if text is not None else number
        return list(found.values())

    first, second, third = args("request")
    assert first == {
        **{"number": 1, "model": "llama", "route": "/v1/completions", "arrival": "asgi"},
        **{"outcome": "good", "reason": "good", "tokens": 8},
    }
    assert (second["outcome"], second["reason"]) == ("miss", "late")
    assert third["outcome"] == "miss"
    assert args("gc2") == [{"collected": 7}]
    assert args("token") == [{"overlap_us": 8000}]  # of the engine's pause; 2 streams, at the same instant
    assert args("first token") == [{"overlap_us": 8000}]
    assert args("decode")[0] == {"batch": 3, "waiting": 2}


def test_clocks(tmp_path: Path, load: Load) -> None:
    """The file's clock snapshots give the wall time of an event to the ns, between two of them and after a step of the
    wall clock; trace time stays CLOCK_MONOTONIC."""
    snapshots = [made.clock(START + i * 10**9, ahead=made.WALL - (3600 * 10**9 if i >= 3 else 0)) for i in range(6)]
    file = Made(clocks=snapshots).add(0, *request(1, START, START, [START + MS], START + 2 * MS))
    answers = load(write(tmp_path, file)[0])
    assert answers.one("select ts from slice where name = 'request'") == START
    found = answers.rows(
        "select ts, clock_value from clock_snapshot where clock_name = 'REALTIME' and ts > 0 order by ts"
    )
    assert found == [
        (START + i * 10**9, START + i * 10**9 + made.WALL - (3600 * 10**9 if i >= 3 else 0)) for i in range(6)
    ]


def test_out_of_order_across_threads(tmp_path: Path, load: Load) -> None:
    """A request whose events lie in three rings, written by threads whose stamps cross, is one slice."""
    file, chance = Made(events=16384), random.Random(1)
    written_at: list[tuple[int, bytes]] = []
    for number in range(1, 40):
        at = START + number * 7 * MS
        for each in request(number, at, at + MS, [at + (3 + i) * MS for i in range(20)], at + 30 * MS):
            time, kind = int.from_bytes(each[:8], "little"), each[8]
            late = chance.randrange(3 * MS) if kind == made.TOKEN else 0  # a stamp with a time given by the user
            written_at.append((time + late, each))
    for _, each in sorted(written_at):
        file.add(chance.randrange(3), each)
    out, written = write(tmp_path, file)
    answers = load(out)
    assert answers.one("select count(*) from slice where name = 'request' and dur > 0") == 39
    assert answers.one("select count(*) from slice where name in ('token', 'first token')") == 39 * 20
    assert (written.requests, written.unfinished) == (39, 0)


def test_losses_are_counted(tmp_path: Path, load: Load) -> None:
    """Rings that wrapped: the file holds what is left, and how much is not."""
    file = Made(events=512)
    for number in range(1, 60):
        at = START + number * 40 * MS
        file.add(0, *request(number, at, at, [at + (3 + i) * MS for i in range(20)], at + 30 * MS))
    out, written = write(tmp_path, file)
    answers = load(out)
    nests(answers)
    held, all_of_them = 255, 59 * 22
    assert (written.events, written.lost) == (held, all_of_them - held)
    lost = "select int_value from slice join args using (arg_set_id) where name = 'events lost' and key = 'debug.count'"
    assert answers.one(lost) == all_of_them - held
    beginless = "select count(*) from slice join args using (arg_set_id) where key = 'debug.beginning lost'"
    assert answers.one(beginless) == written.beginless == 1
    assert str(written.lost) in str(written)


def test_died_in_the_middle(tmp_path: Path, load: Load) -> None:
    """Killed while it collected: the pause has no end, the streams that wait for it are there without one."""
    file = Made(open_pause=(START + 50 * MS, 2))
    file.add(0, *request(1, START, START, [START + 10 * MS], START + 20 * MS)[:-1])
    out, written = write(tmp_path, file)
    answers = load(out)
    assert answers.rows("select name, ts from slice where dur = -1 order by ts, depth") == [
        ("request", START), ("answer", START + 10 * MS), ("gc2", START + 50 * MS)
    ]  # fmt: skip
    assert (written.unfinished, written.pauses) == (1, 1)


def test_64_processes(tmp_path: Path, load: Load) -> None:
    """Each is a process of its own, with its own requests."""
    files = []
    for i in range(64):
        file = Made(role="worker" if i else "api", pid=7000 + i, place=i + 1, events=256)
        for number in range(1, 4):
            at = START + (number * 50 + i) * MS
            file.add(0, *request(number, at, at, [at + MS, at + 2 * MS], at + 3 * MS))
        files.append(file)
    out, written = write(tmp_path, *files)
    answers = load(out)
    nests(answers)
    assert answers.one("select count(*) from process where pid >= 7000 and name is not null") == 64
    assert answers.one("select count(*) from slice where name = 'request'") == written.requests == 64 * 3


def test_planted_truth(tmp_path: Path, load: Load) -> None:
    """Random streams and pauses of two processes: the arrows are those that a plain double loop finds."""
    chance = random.Random(5)
    api, engine = Made(events=8192), Made(role="engine", pid=5252, events=8192)
    pauses = []
    for process in (api, engine):
        at = START
        for _ in range(60):
            at += chance.randrange(1 * MS, 60 * MS)
            length = chance.choice((20_000, 49_999, 50_000, 3 * MS, 40 * MS))
            pauses.append((at, at + length))
            process.add(made.SHARED, pause(at, at + length))
            at += length
    expected = set()
    events = []
    for number in range(1, 30):
        arrival = START + chance.randrange(2000) * MS
        tokens, at = [], arrival
        for _ in range(chance.randrange(1, 30)):
            at += chance.randrange(1, 30 * MS)
            tokens.append(at)
        events += request(number, arrival, arrival, tokens, at + 1)
        for before, token in zip([arrival, *tokens], tokens, strict=False):
            for start, stop in pauses:
                if stop - start >= 50_000 and min(stop, token) - max(start, before) >= 50_000:
                    expected.add((number, start, token))
    api.rings[0] = sorted(events, key=lambda e: int.from_bytes(e[:8], "little"))
    out, written = write(tmp_path, api, engine)
    answers = load(out)
    nests(answers)
    arrows = """
    select (select int_value from args a where a.arg_set_id = root.arg_set_id and key = 'debug.number') as number,
      p.ts as start, token.ts as token
    from flow join slice p on p.id = flow.slice_out join slice token on token.id = flow.slice_in
    join ancestor_slice(token.id) root on root.depth = 0
    """
    found = answers.rows(arrows)
    assert len(found) == written.arrows == len(expected) > 50
    assert set(found) == expected


@pytest.mark.parametrize("seed", [1, 2])
def test_events_that_lie(tmp_path: Path, load: Load, seed: int) -> None:
    """Whatever the words of a trace file are, the timeline is a file that trace_processor reads to its end."""
    chance = random.Random(seed)
    file = Made(events=2048, open_pause=(chance.randrange(2**64), 2))
    for ring in range(made.RINGS):
        for _ in range(120):
            words = [chance.choice((START + chance.randrange(10**9), chance.randrange(2**64), 1, 0)) for _ in range(4)]
            words[1] = chance.randrange(2**64) & ~0xFF | chance.randrange(12)
            file.add(ring, b"".join(word.to_bytes(8, "little") for word in words))
    out, written = write(tmp_path, file)
    answers = load(out, sound=False)
    assert answers.one("select count(*) from slice where name = 'request'") == written.requests > 0
    assert written.unreadable > 0
