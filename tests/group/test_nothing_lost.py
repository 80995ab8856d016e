"""Servers that are killed at any instant, and forks that end at once, while another process holds the group's lock.

What clients received is at most what the group counts, and that is at most what the server handed to send().
"""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.stress

SERVERS = """
import fcntl, json, mmap, os, random, signal, sys, time
import tailwatch
from tailwatch import snapshots

kind, servers, at_once = sys.argv[1], int(sys.argv[2]), 6
directory = os.path.join(os.getcwd(), "group")
chance = random.Random(18)
# Of each server, in memory that outlives it: tokens that its app handed to send(), and that its client received.
handed = memoryview(mmap.mmap(-1, 8 * servers)).cast("Q")
received = memoryview(mmap.mmap(-1, 8 * servers)).cast("Q")
me = 0
SCOPE = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\\n\\n'

async def serve(scope, receive, send):
    await send(START)
    for _ in range(5):
        handed[me] += 1
        await send({"type": "http.response.body", "body": TOKEN, "more_body": True})
    await send({"type": "http.response.body", "body": b""})

async def to_client(message):
    received[me] += message.get("body") == TOKEN

async def from_client():
    return {"type": "http.request", "body": b"{}"}

watch = tailwatch.install(serve, dir=directory, gc="observe", gc_warn_ms=0)
assert watch.membership.joined

def request():
    try:
        watch.app(dict(SCOPE), from_client, to_client).send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")

def fork(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid

def serve_until_killed():
    while True:
        request()

def hold_the_lock():  # as a merge of the dead does, for longer than any process waits
    held = os.open(directory, os.O_RDONLY), os.open(directory + "/index.lock", os.O_RDWR)
    while True:
        for file in held:
            fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(0.03)
        for file in held:
            fcntl.flock(file, fcntl.LOCK_UN)
        time.sleep(0.02)

def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

holder = fork(hold_the_lock)
running = []
for me in range(servers):
    running.append(fork(serve_until_killed if kind == "killed" else request))
    if len(running) == at_once:
        if kind == "killed":
            time.sleep(chance.uniform(0, 0.02))
            end(running.pop(chance.randrange(at_once)))
        else:
            os.waitpid(running.pop(0), 0)
    watch.membership.renew()
for pid in running:
    end(pid)
end(holder)
while watch.core.merge_dead():
    pass
inside, outside = watch.snapshot(), snapshots.take_directory(directory)
print(json.dumps({"received": sum(received), "handed": sum(handed), "counted": [inside.tokens, outside.tokens],
    "drops": sum(inside.drops.values()), "left": len([n for n in os.listdir(directory) if n.endswith(".seg")])}))
"""


@pytest.mark.parametrize(
    ("kind", "servers"),
    [
        ("killed", 20),
        ("forked", 40),
        pytest.param("killed", 300, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param("forked", 2000, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_what_clients_received_is_counted(run_script, kind: str, servers: int) -> None:
    """Some of the servers are killed before, while and after they join."""
    found = json.loads(run_script(SERVERS, kind, str(servers), PYTHONWARNINGS="ignore", timeout=600))
    for counted in found["counted"]:
        assert found["received"] <= counted <= found["handed"], found
    assert found["received"] > 0 and found["drops"] == 0 and found["left"] == 1, found
