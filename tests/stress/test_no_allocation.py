"""The token path and the collector's callbacks allocate nothing, counted by an interposed allocator."""

from __future__ import annotations

import json

STAMPS = """
import json, itertools, gc
import gcprobe, tailwatch
from tailwatch import _hot
log = gcprobe.Log(1)
assert log.allocations() is not None, "the allocator is not interposed"
watch = tailwatch.install(gc="observe")
watch._daemon.stop()
counts = {}

def measure(name, call, times):
    step = itertools.repeat(None, times)
    before = log.allocations()
    for _ in step:
        call()
    counts[name] = log.allocations() - before

with tailwatch.stream(model="m") as s:
    watch._daemon.stop()
    s.token()
    gc.disable()
    measure("measuring", _hot.clock, 1_000_000)
    measure("token", s.token, 1_000_000)
    measure("allocates", lambda: bytearray(100_000), 100)
print(json.dumps(counts))
"""


def test_a_million_stamps_allocate_nothing(run_script) -> None:
    """10^6 stamps make no call of the allocator, and the counter sees the control that does."""
    counts = json.loads(run_script(STAMPS, preload=True, PYTHONMALLOC="malloc"))

    assert counts["token"] - counts["measuring"] == 0
    assert counts["measuring"] <= 1  # the number that the counter was read into
    assert counts["allocates"] >= 100


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

def allocations_inside(first, last):
    log = gcprobe.Log(20_000)
    gc.callbacks[:] = [log.probe(0), first, log.probe(1), log.probe(2), last, log.probe(3)]
    for i in range(1000):
        gc.collect(i % 3)
    rows = log.entries()
    assert len(rows) == 8 * 1000, len(rows)
    return sum(b[4] - a[4] for a, b in zip(rows, rows[1:]) if (a[0], b[0]) in ((0, 1), (2, 3)))

class Allocates:
    def __call__(self, phase, info):
        bytearray(100_000)

noop = gcprobe.noop
print(json.dumps({
    "ours": allocations_inside(*ours),
    "noop": allocations_inside(noop, noop),
    "control": allocations_inside(Allocates(), noop),
}))
"""


def test_our_callbacks_allocate_nothing_in_a_thousand_collections(run_script) -> None:
    """From a witness before to one behind each of our callables, only what CPython spends on calling any callback."""
    counts = json.loads(run_script(COLLECTIONS, preload=True, PYTHONMALLOC="malloc"))

    assert counts["ours"] == counts["noop"]
    assert counts["control"] > counts["noop"]


STEPS = """
import json, itertools, gc, threading
import gcprobe, tailwatch
log = gcprobe.Log(1)
watch = tailwatch.install(gc="observe")
watch._daemon.stop()
core, counts = watch.core, {}

def measure(name, call, times):
    turns = itertools.repeat(None, times)
    before = log.allocations()
    for _ in turns:
        call()
    counts[name] = log.allocations() - before

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
    counts = json.loads(run_script(STEPS, preload=True, PYTHONMALLOC="malloc"))

    assert counts["steps"] == 1 + 1 + 100_000 + 100_000
    assert counts["made"] < 16
    assert counts["pairs"] - counts["pairs of nothing"] < 16
    assert counts["with a step"] - counts["with a lock"] < 16
    assert counts["allocates"] >= 100
