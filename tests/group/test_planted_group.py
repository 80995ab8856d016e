"""Every token is charged with what two processes' own witnesses saw: inner overlap <= attributed <= outer overlap.

An engine process makes tokens in steps, each of which waits for a model that takes a fixed time; an API process stamps
them into 32 streams that come and go. Pauses of 1 to 500 ms are planted in the engine, before the model is waited for
(they hide behind it, as far as they are shorter) or when its token is ready (they are in its way). The API process
collects too, and so does a third one that no stream waits for. Both write down the clock outside and inside our
callbacks (tests/native/gcprobe.c); from these logs alone follow a lower and an upper bound of each gap's overlap.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.stress

LONG_NS = 50_000
MS = 1_000_000

ENGINE = """
import gc, json, os, random, sys, time
import gcprobe, tailwatch

directory, result, planted, step_ms = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
REAL_MS = 25  # longer ones sleep in a finalizer, which is inside the collection: the test is cheap
chance = random.Random(11)
gc.disable()  # no collection before the witnesses stand beside our callbacks
watch = tailwatch.install(role="engine", dir=directory, gc="observe", gc_warn_ms=0)
watch._daemon.tasks.clear()
log = gcprobe.Log(20 * planted + 1000)
first, last = gc.callbacks
gc.callbacks[:] = [log.probe(0), first, log.probe(1), log.probe(2), last, log.probe(3)]

def heap_of(references):
    return [[None] * 1000 for _ in range(references // 1000)]

class Sleeper:
    def __init__(self, seconds):
        self.me, self.seconds = self, seconds
    def __del__(self):
        time.sleep(self.seconds)

gc.collect()
gc.freeze()
per_ms = 0
for _ in range(5):
    heap, start = heap_of(1_000_000), time.perf_counter()
    gc.collect(0)
    per_ms = max(per_ms, 1_000_000 / (time.perf_counter() - start) / 1e3)

def prepare(length_ms):
    return heap_of(int(length_ms * per_ms)) if length_ms < REAL_MS else Sleeper(length_ms / 1e3)

plan = []
def step(kind, length_ms):
    ready = time.monotonic() + step_ms / 1e3
    heap = prepare(length_ms) if kind else None
    if length_ms >= REAL_MS:
        heap = None  # it is in a cycle
    if kind == "hidden":
        gc.collect(0)
        heap = None
    time.sleep(max(0.0, ready - time.monotonic()))
    if kind:
        gc.collect(0)  # after a hidden one nothing is left to do
    os.write(1, len(plan).to_bytes(4, "little"))
    plan.append([kind, length_ms])

print(json.dumps(watch.membership.joined), file=sys.stderr, flush=True)
sys.stdin.readline()
for _ in range(24):
    step("", 0)
for number in range(planted):
    length_ms = 500 ** chance.random()
    step(chance.choice(["hidden", "in the way"]) if length_ms < 0.6 * step_ms else "in the way", length_ms)
    for _ in range(chance.randrange(1, 3)):
        step(chance.choice(["", "short"]), 0)
snap = watch.snapshot()
with open(result, "w") as file:
    json.dump({"probes": log.entries(), "lost": log.lost, "plan": plan, "errors": snap.errors}, file)
"""

BYSTANDER = """
import gc, random, select, sys
import tailwatch
watch = tailwatch.install(role="api", dir=sys.argv[1], gc="observe", gc_warn_ms=0)
heap = [[None] * 1000 for _ in range(500)]
print(watch.membership.joined, flush=True)
while not select.select([sys.stdin], [], [], random.random() * 0.05)[0]:  # until its parent has ended
    gc.collect()
"""

API = """
import gc, json, os, random, subprocess, sys, time
import gcprobe, tailwatch

engine, bystander, streams, planted, step_ms = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
directory = os.path.join(os.getcwd(), "group")
chance, now = random.Random(12), time.monotonic_ns
gc.disable()  # no collection before the witnesses stand beside our callbacks
watch = tailwatch.install(role="api", dir=directory, gc="observe", gc_warn_ms=0)
watch._daemon.tasks.clear()
log = gcprobe.Log(100_000)
first, last = gc.callbacks
gc.callbacks[:] = [log.probe(0), first, log.probe(1), log.probe(2), last, log.probe(3)]

other = subprocess.Popen([sys.executable, "-c", bystander, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert other.stdout.readline() == b"True\\n"
command = [sys.executable, "-c", engine, directory, "engine.json", planted, step_ms]
made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
assert made.stderr.readline() == b"true\\n"
watch.membership.renew()

class Slot:
    # One stream after the other, each a row: [step, before, after, charged, delay] for its opening and each token.
    def __init__(self):
        self.rows, self.stream, self.left, self.idle = [], None, 0, 0
    def open(self, step):
        before = now()
        self.stream = watch.core.stream("m", "r", None, "", "")
        self.rows.append([[step, before, now(), 0, 0]])
        self.left = chance.randrange(20, 60)
    def token(self, step):
        stream = self.stream
        charged, delay, before = stream.overlap_ns, stream.delay_ns, now()
        stream.token()
        self.rows[-1].append([step, before, now(), stream.overlap_ns - charged, stream.delay_ns - delay])
        self.left -= 1
        if self.left == 0:
            stream.close()
            self.stream, self.idle = None, chance.randrange(6)
    def turn(self, step):
        if self.stream is not None:
            self.token(step)
        elif self.idle > 0:
            self.idle -= 1
        else:
            self.open(step)

slots = [Slot() for _ in range(streams)]
made.stdin.write(b"go\\n")
renewed = time.monotonic()
while data := os.read(made.stdout.fileno(), 4):
    step = int.from_bytes(data, "little")
    for slot in slots:
        slot.turn(step)
    if chance.random() < 0.1:
        heap = [[None] * 1000 for _ in range(chance.randrange(200))]
        gc.collect(0)
        del heap
    if time.monotonic() - renewed > 1:
        watch.membership.renew()
        renewed = time.monotonic()
for slot in slots:
    if slot.stream is not None:
        slot.stream.close()
made.wait()
other.communicate()
snap = watch.snapshot()
print(json.dumps({
    "rows": [row for slot in slots for row in slot.rows], "probes": log.entries(), "lost": log.lost,
    "engine": json.load(open("engine.json")), "errors": snap.errors, "drops": snap.drops,
    "overlap": snap.overlap, "delay": {cause: snap.delay[cause] for cause in snap.overlap},
    "roles": list(snap.overlap_by_source),
    "itl": snap.itl.count, "ttft": snap.ttft.count,
}))
"""

Span = tuple[int, int]


class Spans:
    """Disjoint stretches of time: the union of some."""

    def __init__(self, spans: list[Span]) -> None:
        self._spans: list[Span] = []
        for start, stop in sorted(spans):
            if self._spans and start <= self._spans[-1][1]:
                self._spans[-1] = (self._spans[-1][0], max(stop, self._spans[-1][1]))
            else:
                self._spans.append((start, stop))
        self._stops = [stop for _, stop in self._spans]

    def inside(self, since: int, until: int, *, open_at: int = 0) -> int:
        """How much of a gap lies in them; in those that ended after an instant of it."""
        total = 0
        for start, stop in self._spans[bisect_right(self._stops, max(since, open_at)) :]:
            if start >= until:
                break
            total += min(until, stop) - max(since, start)
        return total


class Log(NamedTuple):
    """The pauses of one process of at least 50 us, as its witness saw them from inside and outside of our callbacks."""

    inner: list[Span]
    outer: list[Span]
    short: list[Span]
    """Shorter ones, from outside: one that is open as a token is stamped counts so far, as it may become long."""


def log_of(probes: list[list[Any]]) -> Log:
    """A pause that is long from inside was long, one that is short from outside was short."""

    def spans(starts: int, stops: int, *, long: bool) -> list[Span]:
        begun = [row[2] for row in probes if row[0] == starts and row[1]]
        ended = [row[2] for row in probes if row[0] == stops and not row[1]]
        return [(start, stop) for start, stop in zip(begun, ended, strict=True) if (stop - start >= LONG_NS) is long]

    return Log(spans(1, 2, long=True), spans(0, 3, long=True), spans(0, 3, long=False))


class Gap(NamedTuple):
    """One token's: what it was charged, and the bounds from the logs."""

    step: int
    follows: bool
    """The token before it was the step before."""
    first: bool
    length: int
    charged: int
    delay: int
    least: int
    most: int
    own: int
    """The most that the API process's own pauses can be of it."""


def gaps_of(rows: list[list[list[int]]], own: Log, engine: Log) -> list[Gap]:
    """All gaps; the wait for a first token is one."""
    inner, outer = Spans(own.inner + engine.inner), Spans(own.outer + engine.outer)
    alone, short = Spans(own.outer), Spans(own.short + engine.short)
    return [
        Gap(
            step, step == last + 1, i == 0, before - last_after, charged, delay,
            inner.inside(last_after, before),
            outer.inside(last_before, after) + short.inside(last_before, after, open_at=before),
            alone.inside(last_before, after),
        )
        for row in rows
        for i, ((last, last_before, last_after, _, _), (step, before, after, charged, delay)) in enumerate(
            pairwise(row)
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("planted", "step_ms"),
    [
        (40, 16),
        pytest.param(400, 16, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param(80, 120, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_each_token_is_charged_what_both_logs_saw(run_script, planted: int, step_ms: int) -> None:
    """32 streams: inner <= attributed <= outer for each token; delay is near 0 for a pause that hides behind the model,
    and near its length for one in the way of a ready token."""
    output = run_script(API, ENGINE, BYSTANDER, "32", str(planted), str(step_ms), timeout=1200)
    seen = json.loads(output.splitlines()[-1])
    plan = seen["engine"]["plan"]
    engine, own = log_of(seen["engine"]["probes"]), log_of(seen["probes"])
    assert seen["lost"] == seen["engine"]["lost"] == 0
    assert len(engine.inner) >= planted
    gaps = gaps_of(seen["rows"], own, engine)

    for gap in gaps:
        assert gap.least <= gap.charged <= gap.most, gap
        assert gap.delay <= gap.charged
    assert sum(gap.charged > 0 for gap in gaps) > planted * 32 / 2
    assert sum(gap.most == 0 for gap in gaps) > planted * 32 / 4
    assert sum(gap.first for gap in gaps) == seen["ttft"]
    assert len(gaps) == seen["itl"] + seen["ttft"]

    assert sum(gap.charged for gap in gaps) == pytest.approx(sum(seen["overlap"].values()) * 1e9, abs=1e3)
    assert sum(gap.delay for gap in gaps) == pytest.approx(sum(seen["delay"].values()) * 1e9, abs=1e3)
    assert set(seen["roles"]) <= {"api", "engine"}
    assert not any(seen["errors"].values()) and not any(seen["drops"].values())

    unpaused = sorted(gap.length for gap in gaps if gap.most == 0 and gap.follows and not gap.first)
    usual, noise = median(unpaused), unpaused[len(unpaused) * 9 // 10] - median(unpaused)

    def shares(kind: str) -> list[float]:
        """delay / overlap of the gaps with one planted pause and nothing else, where that is not too little to
        judge."""
        alone = [gap for gap in gaps if plan[gap.step][0] == kind and gap.follows and not gap.first and not gap.own]
        if kind == "hidden":  # and nothing else in the way: a busy machine wakes processes late
            alone = [gap for gap in alone if gap.length < usual + gap.charged / 4]
        return [gap.delay / gap.charged for gap in alone if gap.charged > 2 * MS]

    hidden = shares("hidden")
    assert hidden or noise > MS  # where steps without a pause are late by more, a pause in the wait is late too
    assert not hidden or median(hidden) < 0.25
    assert len(shares("in the way")) > planted
    assert median(shares("in the way")) > 0.8
