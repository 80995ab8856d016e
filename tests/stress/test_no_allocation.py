"""The token path and the collector's callbacks allocate nothing, counted by an interposed allocator."""

from __future__ import annotations

import json

STAMPS = """
import json, itertools, gc
import gcprobe, tailwatch
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
    measure("token", s.token, 1_000_000)
    measure("allocates", lambda: bytearray(100_000), 100)
print(json.dumps(counts))
"""


def test_a_million_stamps_allocate_nothing(run_script) -> None:
    """10^6 stamps make no call of the allocator, and the counter sees the control that does."""
    counts = json.loads(run_script(STAMPS, preload=True, PYTHONMALLOC="malloc"))

    assert counts["token"] == 0
    assert counts["allocates"] >= 100


SENDS = """
import json, itertools, gc
import gcprobe
from tailwatch import _hot
log = gcprobe.Log(1)
core = _hot.Core("api", 8, (0, 0, 0, 0, 990000), 0, lambda scope: "/v1/completions", lambda awaitable, stream: awaitable)
scope = {"type": "http", "headers": []}
sink = lambda message: None
sender = core.request(scope, sink, True, _hot.now(), _hot.now(), 0, 1, None, False)
send = sender.send
send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
frame = b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null}]}\\n\\n'
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
    """10^5 messages through the wrapper allocate exactly what the inner send allocates."""
    counts = json.loads(run_script(SENDS, preload=True, PYTHONMALLOC="malloc"))

    assert counts["tokens"] == 100_100
    assert counts["ours"] == counts["bare"]


COLLECTIONS = """
import gc, json
import gcprobe, tailwatch
log = gcprobe.Log(20_000)
watch = tailwatch.install(gc="observe")
first, last = gc.callbacks[0], gc.callbacks[-1]
gc.callbacks[:] = [log.probe(0), first, log.probe(1), log.probe(2), last, log.probe(3)]
gc.disable()
for i in range(1000):
    gc.collect(i % 3)
rows = log.entries()
inside = sum(b[4] - a[4] for a, b in zip(rows, rows[1:]) if (a[0], b[0]) in ((0, 1), (2, 3)))
print(json.dumps({"inside": inside, "rows": len(rows), "elsewhere": rows[-1][4] - rows[0][4]}))
"""


def test_our_callbacks_allocate_nothing_in_a_thousand_collections(run_script) -> None:
    """Between a witness before and one behind each of our callables the allocator is never called."""
    counts = json.loads(run_script(COLLECTIONS, preload=True, PYTHONMALLOC="malloc"))

    assert counts["rows"] == 8 * 1000
    assert counts["inside"] == 0
    assert counts["elsewhere"] > 0
