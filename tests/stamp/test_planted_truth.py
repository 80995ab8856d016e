"""Every token is charged with what an independent witness saw: inner overlap <= attributed <= outer overlap.

A real server streams over real sockets while collections of heaps of different sizes run. C callables log the
clock outside and inside our two callbacks; the app logs the clock and its stream's overlap before and after each
send. From the two logs alone, a lower and an upper bound of each gap's overlap follow.
"""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

pytestmark = pytest.mark.stress

SERVER = """
import asyncio, gc, json, random, socket, subprocess, sys, threading, time
import gcprobe, tailwatch, uvicorn
from tailwatch import snapshots

http, loop, heap, streams, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
CLIENT = '''
import selectors, socket, sys
port, streams = int(sys.argv[1]), int(sys.argv[2])
selector = selectors.DefaultSelector()
for _ in range(streams):
    s = socket.create_connection(("127.0.0.1", port))
    lines = ["POST /v1/completions HTTP/1.1", "host: x", "connection: close", "content-length: 0", "", ""]
    s.sendall("\\\\r\\\\n".join(lines).encode())
    selector.register(s, selectors.EVENT_READ, [b""])
left = streams
while left:
    for key, _ in selector.select():
        data = key.fileobj.recv(65536)
        key.data[0] += data
        if not data:
            selector.unregister(key.fileobj)
            assert b"[DONE]" in key.data[0], key.data[0][-300:]
            left -= 1
'''
FRAME = b'data: {"id":"c","model":"m","choices":[{"index":0,"text":" t","finish_reason":null}]}\\n\\n'
rows, now = [], time.monotonic_ns
pauses, cursor, lost = [], 0, 0
sent = {}  # when each stream that is open had its latest token; 0: none so far

def read():  # before they are overwritten; what overlapped a gap stands when it has ended
    global cursor, lost
    ended = min(sent.values(), default=now()) if len(rows) + len(sent) == streams else 0
    some, cursor, missed = records.pauses(cursor, before_ns=ended)
    pauses.extend(some)
    lost += missed

async def app(scope, receive, send):
    if scope["type"] != "http":
        raise RuntimeError("http only")
    stream = scope["tailwatch"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    mine, number = [], len(rows) + len(sent)
    sent[number] = 0
    for i in range(tokens):
        await asyncio.sleep(0.001 + random.random() * 0.003)
        before, charged = now(), stream.overlap_ns
        await send({"type": "http.response.body", "body": FRAME, "more_body": True})
        mine.append((before, now(), stream.overlap_ns - charged))
        sent[number] = before
    rows.append(mine)
    del sent[number]
    await send({"type": "http.response.body", "body": b"data: [DONE]\\n\\n", "more_body": False})

class Node:
    def __init__(self, other):
        self.other, self.data = other, [other]

def garbage(n):
    for _ in range(n):
        a = Node(None)
        a.other = a

class Sleeper:
    def __init__(self):
        self.me = self
    def __del__(self):
        time.sleep(0.002)

async def disturb(stop):
    random.seed(5)
    while not stop.is_set():
        await asyncio.sleep(random.random() * 0.03)
        kind = random.random()
        if kind < 0.4:
            garbage(random.randrange(50, 20_000))
        elif kind < 0.5:
            Sleeper()
        gc.collect(random.choice([0, 1, 2] if heap < 500_000 else [0, 0, 1, 1, 2]))
        read()

def busy(stop):
    while not stop.is_set():
        gc.collect(0)
        sum(range(2000))
        time.sleep(0.004)

ballast = [Node([i]) for i in range(heap // 4)]
gc.disable()  # no collection before the witnesses stand beside our callbacks
watch = tailwatch.install(app, gc="observe", metrics_path="")
records = snapshots.Records(watch.core.address)
log = gcprobe.Log(400_000)
watch._daemon.tasks.clear()
first, last = gc.callbacks[0], gc.callbacks[-1]
gc.callbacks[:] = [log.probe(0), first, log.probe(1), log.probe(2), last, log.probe(3)]
gc.enable()

async def main():
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(watch.app, http=http, loop=loop, lifespan="off", log_level="error"))
    stop, flag = asyncio.Event(), threading.Event()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    noise = asyncio.create_task(disturb(stop))
    thread = threading.Thread(target=busy, args=(flag,))
    thread.start()
    command = [sys.executable, "-c", CLIENT, str(listener.getsockname()[1]), str(streams)]
    client = await asyncio.create_subprocess_exec(*command)
    assert await client.wait() == 0
    stop.set(); flag.set()
    await noise
    thread.join()
    server.should_exit = True
    await serving

if loop == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())

gc.callbacks[:] = [first, last]
gc.disable()
read()
snap = tailwatch.snapshot()
print(json.dumps({
    "rows": rows, "probes": log.entries(), "lost": log.lost + lost,
    "pauses": [(p.start_ns, p.stop_ns, p.cause, p.overlap) for p in pauses],
    "words": snap.paused, "short": snap.gc.short_seconds, "hist": {k: h.sum for k, h in snap.gc.pauses.items()},
    "overlap": snap.overlap, "errors": snap.errors, "count": snap.itl.count, "ttft": snap.ttft.count,
}))
"""


def brackets(probes: list[list], starts: int, stops: int) -> list[tuple[int, int]]:
    """(start, stop) of each collection between the probe `starts` at its start and `stops` at its end."""
    begun = [row[2] for row in probes if row[0] == starts and row[1]]
    ended = [row[2] for row in probes if row[0] == stops and not row[1]]
    assert len(begun) == len(ended)
    return list(zip(begun, ended, strict=True))


def overlap(gap: tuple[int, int], spans: list[tuple[int, int]]) -> int:
    """How much of a gap lies inside disjoint spans."""
    return sum(max(0, min(gap[1], stop) - max(gap[0], start)) for start, stop in spans)


@pytest.mark.parametrize(
    ("http", "loop", "heap", "streams", "tokens"),
    [
        ("h11", "asyncio", 10_000, 16, 60),
        ("httptools", "uvloop", 10_000, 64, 40),
        ("httptools", "asyncio", 100_000, 32, 60),
        pytest.param("h11", "uvloop", 1_000_000, 64, 100, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param("httptools", "asyncio", 1_000_000, 1, 300, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_each_token_is_charged_what_the_witness_saw(run_script, http, loop, heap, streams, tokens) -> None:
    """For every token inner overlap <= attributed <= outer overlap, and all sums agree."""
    seen = json.loads(run_script(SERVER, http, loop, str(heap), str(streams), str(tokens)).splitlines()[-1])
    outer, inner = brackets(seen["probes"], 0, 3), brackets(seen["probes"], 1, 2)
    booked = [(start, stop) for start, stop, *_ in seen["pauses"]]
    assert seen["lost"] == 0

    long_outer = [o for o in outer if any(o[0] <= start and stop <= o[1] for start, stop in booked)]
    long_inner = [i for i in inner if any(start <= i[0] and i[1] <= stop for start, stop in booked)]
    assert len(long_outer) == len(long_inner) == len(booked) > 0

    charged = checked = 0
    for row in seen["rows"]:
        for (before, after, _), (next_before, next_after, attributed) in pairwise(row):
            least, most = overlap((after, next_before), long_inner), overlap((before, next_after), long_outer)
            assert least <= attributed <= most, (least, attributed, most)
            charged += attributed > 0
            checked += 1
    assert checked == streams * (tokens - 1) == seen["count"]
    assert charged > 0
    assert seen["ttft"] == streams

    short = sum(stop - start for start, stop in inner if (start, stop) not in long_inner)
    short_outer = sum(stop - start for start, stop in outer if (start, stop) not in long_outer)
    assert short <= sum(seen["short"].values()) * 1e9 + 1 <= short_outer + 2
    for cause, paused in seen["words"].items():
        ring = sum(stop - start for start, stop, each, _ in seen["pauses"] if each == cause)
        assert round(paused * 1e9) == ring + round(seen["short"][cause] * 1e9)
    assert sum(seen["words"].values()) == pytest.approx(sum(seen["hist"].values()), abs=2e-9 * len(outer))
    assert sum(pause[3] for pause in seen["pauses"]) == pytest.approx(sum(seen["overlap"].values()), abs=1e-6)
    assert not any(seen["errors"].values())
