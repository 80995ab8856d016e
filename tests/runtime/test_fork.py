"""Fork: a child counts from zero, leaves its parent's numbers alone, and works."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.stress

CHILD = """
import gc, json, multiprocessing, os, sys, threading, time
import tailwatch

gc.disable()
watch = tailwatch.install(gc="observe", metrics_path="")

def requests(count):
    for _ in range(count):
        with tailwatch.stream(model="m") as stream:
            stream.token()
            stream.token()

def numbers():
    snap = tailwatch.snapshot()
    return {
        "pid": snap.processes[0].pid, "opened": snap.opened, "in_flight": snap.in_flight, "tokens": snap.tokens,
        "requests": sum(snap.requests.values()), "ttft": snap.ttft.count, "paused": sum(snap.paused.values()),
        "collections": sum(snap.gc.collections.values()), "threads": [t.name for t in threading.enumerate()],
        "labels": snap.labels, "drops": sum(snap.drops.values()), "errors": sum(snap.errors.values()),
        "window": snap.window("1h").finished, "slowest": len(snap.slowest),
    }

requests(5)
gc.collect()
inherited = watch.core.stream("inherited", "r", None, "", "")
inherited.token()

def child(out):
    seen = {"fresh": numbers(), "running": watch._daemon.running}
    inherited.token()
    inherited.close()
    seen["inherited"] = numbers()
    requests(2)
    seen["thread"] = watch._daemon.running and "tailwatch" in [t.name for t in threading.enumerate() if t.is_alive()]
    gc.collect()
    seen["after"] = numbers()
    seen["callbacks"] = gc.callbacks == [watch.core.gc_first, watch.core.gc_last]
    seen["same"] = tailwatch.install(gc="observe", metrics_path="") is watch
    seen["uninstall"] = tailwatch.uninstall()
    seen["left"] = len(gc.callbacks)
    tailwatch.install(gc="observe")
    requests(1)
    seen["again"] = numbers()
    out(json.dumps(seen))

before = numbers()
if sys.argv[1] == "os":
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child(lambda text: os.write(write, text.encode()))
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
else:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue.put,))
    process.start()
    text = queue.get()
    process.join()
    assert process.exitcode == 0
inherited.token()
inherited.close()
requests(1)
print(json.dumps({"before": before, "child": json.loads(text), "parent": numbers()}))
"""


@pytest.mark.parametrize("how", ["os", "multiprocessing"])
def test_a_child_counts_from_zero_and_the_parent_goes_on(run_script, how: str) -> None:
    """The child's numbers are its own from the first instant, the parent's are as if there were no child."""
    found = json.loads(run_script(CHILD, how, PYTHONWARNINGS="ignore"))
    before, parent, child = found["before"], found["parent"], found["child"]

    for moment in (child["fresh"], child["inherited"]):
        assert moment["pid"] != before["pid"]
        assert not any(value for name, value in moment.items() if name not in ("pid", "threads"))
    assert child["running"]
    assert child["fresh"]["threads"].count("tailwatch") == 1
    assert child["thread"]
    after = child["after"]
    assert (after["opened"], after["requests"], after["tokens"], after["in_flight"]) == (2, 2, 4, 0)
    assert (after["collections"], after["labels"]) == (1, [["m", "stream"]])
    assert after["paused"] > 0
    assert child["callbacks"] and child["same"]
    assert (child["uninstall"], child["left"]) == ([], 0)
    assert child["again"]["requests"] == 1

    assert parent["pid"] == before["pid"]
    assert (parent["requests"], parent["in_flight"]) == (7, 0)
    assert (parent["tokens"], parent["collections"]) == (5 * 2 + 2 + 2, before["collections"])
    assert (parent["drops"], parent["errors"]) == (0, 0)


MANY = """
import faulthandler, gc, os, sys, threading
import tailwatch

faulthandler.dump_traceback_later(100, exit=True)
watch = tailwatch.install(gc="observe")
stop = threading.Event()
counts = [0, 0]

def stamp(which):
    while not stop.is_set():
        with tailwatch.stream(model="m") as stream:
            for _ in range(50):
                stream.token()
                cycle = []
                cycle.append(cycle)
        counts[which] += 1

threads = [threading.Thread(target=stamp, args=(i,)) for i in range(2)]
for thread in threads:
    thread.start()
bad = 0
for i in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with tailwatch.stream(model="child") as stream:
                stream.token()
                stream.token()
            gc.collect(0)
            snap = tailwatch.snapshot()
            clean = not any(snap.errors.values()) and not any(snap.drops.values()) and watch._daemon.running
            code = 0 if clean and (snap.opened, snap.tokens, snap.in_flight) == (1, 2, 0) else 1
        finally:
            os._exit(code)
    bad += os.waitpid(pid, 0)[1] != 0
stop.set()
for thread in threads:
    thread.join()
snap = tailwatch.snapshot()
assert bad == 0, bad
assert (snap.tokens, snap.requests["good"], snap.in_flight) == (50 * sum(counts), sum(counts), 0), (snap.tokens, counts)
assert min(counts) > 0
print(sum(snap.errors.values()), sum(snap.drops.values()))
"""


@pytest.mark.parametrize("forks", [60, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_forks_under_load(run_script, forks: int) -> None:
    """Two threads stamp while the process forks: no child hangs or miscounts, the parent loses nothing."""
    assert run_script(MANY, str(forks), PYTHONWARNINGS="ignore").split() == ["0", "0"]


IN_A_COLLECTION = """
import gc, json, os
import tailwatch

gc.disable()  # before install: every collection counted is one of ours
watch = tailwatch.install(gc="observe")
read, write = os.pipe()

class Forks:
    def __init__(self):
        self.me = self
    def __del__(self):
        global pid
        pid = os.fork()

Forks()
gc.collect(0)
if pid == 0:
    stream = watch.core.stream("m", "r", None, "", "")
    stream.token()
    open_now = watch.core.paused_now()
    gc.collect(1)
    snap = tailwatch.snapshot()
    os.write(write, json.dumps([open_now, snap.gc.collections, sum(snap.errors.values())]).encode())
    os._exit(0)
os.close(write)
text = os.fdopen(read).read()
assert os.waitpid(pid, 0)[1] == 0
print(json.dumps([json.loads(text), tailwatch.snapshot().gc.collections]))
"""


def test_a_fork_inside_a_collection(run_script) -> None:
    """A finalizer that forks: the child is in no pause, and books its next collection; the parent books its own."""
    (paused, in_child, errors), in_parent = json.loads(run_script(IN_A_COLLECTION, PYTHONWARNINGS="ignore"))
    assert (paused, errors) == (False, 0)
    assert {cause: n for cause, n in in_child.items() if n} == {"gc1": 1}
    assert {cause: n for cause, n in in_parent.items() if n} == {"gc0": 1}


LOCKED = """
import os, threading
import tailwatch
from tailwatch.runtime import install as module

tailwatch.install(gc="observe")
held, release = threading.Event(), threading.Event()

def hold():
    with module._lock:
        held.set()
        release.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
pid = os.fork()
if pid == 0:
    import signal
    signal.alarm(50)
    tailwatch.install(gc="observe")
    with tailwatch.stream() as stream:
        stream.token()
    os._exit(0 if tailwatch.uninstall() == [] and tailwatch.install(gc="off") else 1)
status = os.waitpid(pid, 0)[1]
release.set()
thread.join()
print(status)
"""


def test_a_fork_while_another_thread_installs(run_script) -> None:
    """What another thread of the parent held at the fork does not block the child."""
    assert run_script(LOCKED, PYTHONWARNINGS="ignore").split() == ["0"]


PORT = """
import os, signal, socket, urllib.request
import tailwatch

def install():
    for _ in range(20):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        try:
            tailwatch.install(gc="observe", metrics_port=port)
            return port
        except OSError:
            continue

def scrape(port):
    return urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read()

port = install()
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    os.read(read, 1)
    left = tailwatch.uninstall()
    os._exit(0 if left == [] else 1)
assert b"tailwatch_build_info" in scrape(port)
tailwatch.uninstall()
with socket.create_server(("127.0.0.1", port)):
    pass
tailwatch.install(gc="observe", metrics_port=port)
assert b"tailwatch_build_info" in scrape(port)
os.write(write, b"x")
assert os.waitpid(pid, 0)[1] == 0
assert b"tailwatch_build_info" in scrape(port)
tailwatch.uninstall()
print("served")
"""


def test_a_child_lets_go_of_the_parents_port(run_script) -> None:
    """The port belongs to the parent: it may close and reopen it while the child lives."""
    assert run_script(PORT, PYTHONWARNINGS="ignore").split() == ["served"]


WRITES = """
import logging, os, sys, threading, time
import tailwatch
from tailwatch.runtime import own_log

own_log.FORK_PATIENCE_SECONDS = 60.0
tailwatch.install(gc="observe", dir="", slow_gap_ms=1000, quiet=True)
inside, forking = threading.Event(), threading.Event()
os.register_at_fork(before=forking.set)  # called before those that were registered earlier

class Stream:
    writing = False

    def write(self, text):
        self.writing = True
        inside.set()
        forking.wait()
        time.sleep(0.05)  # a fork that does not wait is over by then
        self.writing = False

    def flush(self):
        pass

stream = Stream()
logger = logging.getLogger("tailwatch")
(handler,) = [each for each in logger.handlers if isinstance(each, logging.StreamHandler)]
handler.setStream(stream)
thread = threading.Thread(target=logger.info, args=("a line",))
thread.start()
inside.wait()
pid = os.fork()
if pid == 0:
    free = handler.lock.acquire(timeout=0)
    os._exit(stream.writing or not free)
thread.join()
status = os.waitpid(pid, 0)[1]
print(status, handler.lock.acquire(timeout=0), logging._lock.acquire(timeout=0), own_log._held.locks)
"""

OWN_LOCK = """
import logging, os, threading
import tailwatch
from tailwatch.runtime import own_log

class Handler(logging.NullHandler):
    def createLock(self):  # logging makes no such lock new in a child
        self.lock = threading.Lock()

logging.getLogger().addHandler(handler := Handler())
def free_in_child():
    pid = os.fork()
    if pid == 0:
        os._exit(not handler.lock.acquire(timeout=0))
    return os.waitpid(pid, 0)[1] == 0 and handler.lock.acquire(timeout=0) and handler.lock.release() is None

tailwatch.install(gc="observe", dir="", quiet=True)
watched = free_in_child()
tailwatch.uninstall()
taken = []
own_log.before_fork = lambda: taken.append(True)
print(watched, free_in_child(), taken)
"""


def test_no_fork_while_another_thread_writes_a_line(run_script) -> None:
    """The child would flush a stream whose lock is never released; and neither process keeps a lock of logging's."""
    assert run_script(WRITES, PYTHONWARNINGS="ignore").split("\n")[0] == "0 True True []"


def test_a_handlers_own_lock_is_free_in_a_child(run_script) -> None:
    """Whatever kind of lock it is; after uninstall() no fork waits for anything of ours."""
    assert run_script(OWN_LOCK, PYTHONWARNINGS="ignore").split("\n")[0] == "True True []"
