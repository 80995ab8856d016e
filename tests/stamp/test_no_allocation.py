"""The token path and the collector's callbacks allocate nothing, counted by an interposed allocator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.stress

# What the scripts that follow begin with.
COUNTING = """
import json, itertools, gc
import gcprobe, tailwatch
from tailwatch import _hot
log = gcprobe.Log(1)
assert log.allocations() is not None, "the allocator is not interposed"
counts = {}

def measure(name, call, times):
    turns = itertools.repeat(None, times)
    before = log.allocations()
    for _ in turns:
        call()
    counts[name] = log.allocations() - before
"""

STAMPS = """
watch = tailwatch.install(gc="observe")
watch._daemon.stop()

with tailwatch.stream(model="m") as s:
    watch._daemon.stop()
    s.token()
    gc.disable()
    measure("measuring", gc.isenabled, 1_000_000)
    measure("token", s.token, 1_000_000)
    measure("allocates", lambda: bytearray(100_000), 100)
print(json.dumps(counts))
"""


def test_a_million_stamps_allocate_nothing(run_script) -> None:
    """10^6 stamps make no call of the allocator, and the counter sees the control that does."""
    counts = json.loads(run_script(COUNTING + STAMPS, preload=True, PYTHONMALLOC="malloc"))

    assert counts["token"] - counts["measuring"] == 0
    assert counts["measuring"] <= 1  # the number that the counter was read into
    assert counts["allocates"] >= 100


IDLE_GC = """
watch = tailwatch.install(gc="idle")
watch.freeze()
watch._daemon.stop()
policy = watch.gc.idle_gc

with tailwatch.stream(model="m") as s:
    watch._daemon.stop()
    s.token()
    gc.disable()
    kept = [[] for _ in range(20_000)]
    gc.collect(0), gc.collect(1)
    slices = policy.slicer.counts()
    measure("measuring", gc.isenabled, 1_000_000)
    measure("token", s.token, 1_000_000)
    policy.slicer.round()
    policy.slicer.slice(2_000)
    measure("token, midway", s.token, 1_000_000)
    counts["on"], counts["midway"] = policy.slicer.on, policy.slicer.midway
    measure("allocates", lambda: bytearray(100_000), 100)
    made = policy.slicer.counts()
counts["slices"] = made["requested"] - slices["requested"]
counts["others"] = sum(made[name] - slices[name] for name in ("idle", "step", "request_end", "overdue", "memory_limit"))
print(json.dumps(counts))
"""


def test_a_million_stamps_allocate_nothing_idle_gc(run_script) -> None:
    """Nor under the idle policy, in the midst of a round or not; and no slice is made for them."""
    counts = json.loads(run_script(COUNTING + IDLE_GC, preload=True, PYTHONMALLOC="malloc"))

    assert (counts["on"], counts["midway"], counts["slices"], counts["others"]) == (True, True, 1, 0)
    assert counts["token"] - counts["measuring"] == 0
    assert counts["token, midway"] - counts["measuring"] == 0
    assert counts["measuring"] <= 1  # the number that the counter was read into
    assert counts["allocates"] >= 100


RECORDED = """
import json, itertools, gc, threading
import gcprobe, tailwatch
from tailwatch import _hot
log = gcprobe.Log(1)
core = _hot.Core("api", 8, (0, 0, 0, 0, 990000), 0, lambda scope: "/r", lambda awaitable, stream: awaitable)
assert core.trace_start(1000) is None
counts = {}

def measure(name, call, times, *arguments):
    step = itertools.repeat(None, times)
    before = log.allocations()
    for _ in step:
        call(*arguments)
    counts[name] = log.allocations() - before

gc.disable()
stream = core.stream("m", "/r", None, "", "")
stream.token()
step = core.step("decode", 1, 1)
enter, leave = step.__enter__, step.__exit__
enter(), leave(None, None, None)
measure("measuring", gc.isenabled, 100_000)
measure("token", stream.token, 100_000)
measure("step", lambda: (enter(), leave(None, None, None)), 1000)
measure("the same without", lambda: (enter, leave), 1000)
core.watch_gc(0, [], core.gc_last)
start = {"generation": 2, "collected": 0, "uncollectable": 0}
def collect():
    core.gc_first("start", start)
    core.gc_last("start", start)
    core.gc_first("stop", start)
    core.gc_last("stop", start)
collect()
measure("collection", collect, 1000)
measure("turn", core.trace_turn, 1000, True)
threads = [threading.Thread(target=lambda: measure("first of a thread", stream.token, 1))]
for thread in threads:
    thread.start()
    thread.join()
print(json.dumps(counts))
"""


def test_events_are_recorded_without_an_allocation(run_script) -> None:
    """Stamps, steps, collections, a thread's first event and the daemon's turn make no call of the allocator."""
    counts = json.loads(run_script(RECORDED, preload=True, PYTHONMALLOC="malloc"))

    floor = counts["measuring"]
    assert floor <= 1  # the number that the counter was read into
    assert counts["step"] <= counts["the same without"]
    assert {
        name: counts[name] for name in ("token", "collection", "turn", "first of a thread") if counts[name] > floor
    } == {}


SENDS = """
import json, itertools, gc
import gcprobe
from tailwatch import _hot
log = gcprobe.Log(1)
route_of, timed_send = (lambda scope: "/v1/completions"), (lambda awaitable, stream: awaitable)
core = _hot.Core("api", 8, (0, 0, 0, 0, 990000), 0, route_of, timed_send)
scope = {"type": "http", "headers": []}
sink = lambda message: None
sender = core.request(scope, sink, True, _hot.now(), _hot.now(), 0, 1, None, False)
send = sender.send
send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
frame = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m",'
    b'"choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null}]}\\n\\n'
)
message = {"type": "http.response.body", "body": frame, "more_body": True}
for _ in range(100):
    send(message)
gc.disable()
before = log.allocations()
for _ in itertools.repeat(None, 100_000):
    send(message)
through_us = log.allocations() - before
before = log.allocations()
for _ in itertools.repeat(None, 100_000):
    sink(message)
print(json.dumps({"ours": through_us, "bare": log.allocations() - before, "tokens": sender.stream.tokens}))
"""


def test_the_send_wrapper_allocates_no_more_than_the_bare_send(run_script) -> None:
    """10^5 messages through the wrapper allocate what the inner send allocates: a few more calls in all are the
    interpreter's (3.10 keeps a frame for the inner function), one more a message would be ours."""
    counts = json.loads(run_script(SENDS, preload=True, PYTHONMALLOC="malloc"))

    assert counts["tokens"] == 100_100
    assert counts["ours"] - counts["bare"] < 16


COLLECTIONS = """
import gc, json, sys
import gcprobe, tailwatch
sys.setswitchinterval(1000)  # what another thread frees meanwhile CPython would use again without asking for memory
watch = tailwatch.install(gc="observe")
ours = gc.callbacks[0], gc.callbacks[-1]
gc.disable()
gc.collect()  # a tool may take memory for a thread when it first sees it
gc.freeze()
heap = [[] for _ in range(20_000)]  # a whole collection is a long pause, and the test is cheap

def allocations_inside(first, last):
    log = gcprobe.Log(20_000)
    gc.callbacks[:] = [log.probe(0), first, log.probe(1), log.probe(2), last, log.probe(3)]
    for i in range(1000):
        gc.collect(i % 3)
    rows = log.entries()
    assert len(rows) == 8 * 1000, len(rows)
    long = [b[2] - a[2] >= 50_000 for a, b in zip(rows, rows[1:]) if a[0] == 3 and a[1]]
    assert 300 < sum(long) < 700, sum(long)  # both kinds of pauses are among them
    return sum(b[4] - a[4] for a, b in zip(rows, rows[1:]) if (a[0], b[0]) in ((0, 1), (2, 3)))

class Allocates:
    def __call__(self, phase, info):
        bytearray(100_000)

noop = gcprobe.noop
print(json.dumps({
    "ours": allocations_inside(*ours),
    "noop": allocations_inside(noop, noop),
    "control": allocations_inside(Allocates(), noop),
    "attached": watch.core.nvtx_attached,
}))
"""


def test_our_callbacks_allocate_nothing_in_a_thousand_collections(run_script) -> None:
    """From a witness before to one behind each of our callables, only what CPython spends on calling any callback."""
    counts = json.loads(run_script(COLLECTIONS, preload=True, PYTHONMALLOC="malloc"))

    assert counts["ours"] == counts["noop"]
    assert counts["control"] > counts["noop"]


def test_nor_under_an_nvtx_tool(run_script, native: Path) -> None:
    """Ranges and marks of a thousand collections that a tool gets: nothing of ours is allocated for them."""
    tool = str(native / "nvtx_inject.so")
    counts = json.loads(run_script(COLLECTIONS, preload=True, PYTHONMALLOC="malloc", NVTX_INJECTION64_PATH=tool))

    assert counts["attached"]
    assert counts["ours"] == counts["noop"]
    assert counts["control"] > counts["noop"]


STEPS = """
import threading
watch = tailwatch.install(gc="observe")
watch._daemon.stop()
core = watch.core

def withs(make):
    def run():
        for _ in itertools.repeat(None, 1000):
            with make():
                pass
    return run

kept = core.step("decode", 32, 5)
enter, leave = kept.__enter__, kept.__exit__
lock = threading.Lock()
with core.step("decode", 32, 5):
    pass
gc.disable()
measure("made", lambda: core.step("decode", 32, 5), 100_000)
measure("entered", enter, 1)
measure("left", lambda: leave(None, None, None), 1)
measure("pairs", lambda: (enter(), leave(None, None, None)), 100_000)
measure("pairs of nothing", lambda: (None, None), 100_000)
measure("with a step", withs(lambda: core.step("decode", 32, 5)), 100)
measure("with a lock", withs(lambda: lock), 100)
measure("allocates", lambda: bytearray(100_000), 100)
counts["steps"] = sum(step.steps.time.count for step in tailwatch.snapshot().steps)
print(json.dumps(counts))
"""


def test_a_loop_of_steps_allocates_nothing(run_script) -> None:
    """Making, entering and leaving a step make no call of the allocator; in a `with` no more than a lock's. A few calls
    in all are the interpreter's (3.10 keeps a frame for each function), one more a step would be ours."""
    counts = json.loads(run_script(COUNTING + STEPS, preload=True, PYTHONMALLOC="malloc"))

    assert counts["steps"] == 1 + 1 + 100_000 + 100_000
    assert counts["made"] < 16
    assert counts["pairs"] - counts["pairs of nothing"] < 16
    assert counts["with a step"] - counts["with a lock"] < 16
    assert counts["allocates"] >= 100
