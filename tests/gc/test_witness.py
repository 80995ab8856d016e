"""What is booked as a pause is the collector's time: an independent witness in C looks at both edges.

A second thread counts up as fast as it can. Where its counter advances between the witness before the start and
the one behind the end of a collection, the collecting thread had given the GIL away in between.
"""

from __future__ import annotations

import json
import sys

import pytest

pytestmark = pytest.mark.stress

BUSY = """
import gc, json, sys, threading, time
gc.disable()  # before all else: a collection that install() itself makes due would be one more
import gcprobe, tailwatch
gc.freeze()  # what is collected is what follows

kind = sys.argv[1]
log = gcprobe.Log(10_000)
watch = tailwatch.install(gc="observe")
watch._daemon.stop()
sys.setswitchinterval(1e-5)
first, last = gc.callbacks
stop = threading.Event()

counted, waits = 0, 5

def count():
    global counted
    while not stop.is_set():
        log.tick()
        counted += 1

def let_it_count():  # some times: on a busy machine it takes long until it runs
    global waits
    before = counted
    while waits and counted == before:
        pass
    waits = max(0, waits - 1)

def python_callback(phase, info):
    let_it_count()

class Finalizer:
    def __init__(self):
        self.me = self
    def __del__(self):
        let_it_count()

between = {"callback": [python_callback]}.get(kind, [])
gc.callbacks[:] = [log.probe(0), first, *between, last, log.probe(1)]
thread = threading.Thread(target=count)
thread.start()
heap = [[i] for i in range(20_000)]
for i in range(150):
    if kind == "finalizer":
        Finalizer()
    for _ in range(100):
        cycle = []
        cycle.append(cycle)
    gc.collect(i % 3)
    time.sleep(0)
stop.set()
thread.join()
gc.callbacks[:] = [first, last]
rows = log.entries()
starts = [row for row in rows if row[0] == 0 and row[1]]
stops = [row for row in rows if row[0] == 1 and not row[1]]
snap = tailwatch.snapshot()
print(json.dumps({
    "ticks": [b[3] - a[3] for a, b in zip(starts, stops)],
    "between": starts[-1][3] - starts[0][3],
    "outside_ns": sum(b[2] - a[2] for a, b in zip(starts, stops)),
    "paused": sum(snap.paused.values()),
    "callbacks": sum(snap.gc.callbacks.values()),
    "cpu": snap.gc.cpu,
    "words": snap.paused,
    "collections": sum(snap.gc.collections.values()),
}))
"""


def seen(run_script, kind: str) -> dict:
    return json.loads(run_script(BUSY, kind))


def test_no_wait_for_the_gil_is_booked(run_script) -> None:
    """Beside a busy thread our callables let no other thread run: its counter stands still in every collection."""
    found = seen(run_script, "plain")
    assert len(found["ticks"]) == found["collections"] == 150
    assert found["between"] > 0
    assert sum(found["ticks"]) == 0
    assert 0 < found["paused"] * 1e9 <= found["outside_ns"]


def test_the_witness_sees_a_python_callback_give_the_gil_away(run_script) -> None:
    """The control: with a callback in Python between ours the counter advances, and the time is counted apart."""
    found = seen(run_script, "callback")
    assert sum(found["ticks"]) > 0
    assert 0 < found["callbacks"] <= found["paused"]
    assert found["paused"] * 1e9 <= found["outside_ns"]


def test_the_witness_sees_a_finalizer_give_the_gil_away(run_script) -> None:
    """Finalizers run inside the collection: what they wait for is a pause of the thread that collects."""
    found = seen(run_script, "finalizer")
    assert sum(found["ticks"]) > 0
    assert found["collections"] == 150


TWICE = """
import gc, json
import gcprobe, tailwatch
log = gcprobe.Log(100_000)
gc.disable()  # before install: every collection counted is one of ours
watch = tailwatch.install(gc="freeze")
watch._daemon.stop()
first, last = gc.callbacks
gc.callbacks[:] = [log.probe(0), first, log.probe(1), log.probe(2), last, log.probe(3)]
done = watch.freeze()
gc.callbacks[:] = [first, last]
rows = log.entries()
inner = [row[2] for row in rows if row[0] in (1, 2)]
snap = tailwatch.snapshot()
print(json.dumps({"inner": max(inner) - min(inner), "seconds": done.seconds, "paused": snap.paused, "rows": len(rows)}))
"""


def test_the_freeze_is_one_pause_around_both_collections(run_script) -> None:
    """The witness sees two collections; our policy pause holds both, and nothing else is booked."""
    found = json.loads(run_script(TWICE))
    assert found["rows"] == 2 * 8
    assert found["inner"] <= found["seconds"] * 1e9
    assert {cause for cause, seconds in found["paused"].items() if seconds} == {"gc_own"}


DURATION = """
import gc, json
import tailwatch
gc.disable()
watch = tailwatch.install(gc="observe")
reported = []
gc.callbacks.insert(1, lambda phase, info: phase == "stop" and reported.append(info["duration"]))
keep = [[i] for i in range(300_000)]
for _ in range(5):
    gc.collect()
print(json.dumps([sum(reported), tailwatch.snapshot().paused["gc2"]]))
"""


@pytest.mark.skipif(sys.version_info < (3, 15), reason="the interpreter has no duration of its own before 3.15")
def test_our_pauses_hold_the_interpreters_own_durations(run_script) -> None:
    """What the interpreter's collections took by its own count lies inside our brackets, and makes up nearly all of
    them."""
    reported, paused = json.loads(run_script(DURATION))
    assert reported <= paused <= reported * 1.2
