"""Processes of a group that write at full speed, fork, and are killed at any instant: no count is lost or made up."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.stress

SUM = """
import json, os, sys, time
from itertools import repeat
import tailwatch

processes, stamps = int(sys.argv[1]), int(sys.argv[2])
directory = os.path.join(os.getcwd(), "group")
go, started = os.pipe()

def work():
    watch = tailwatch.install(role="api", dir=directory, gc="observe", gc_warn_ms=0, max_label_sets=4)
    while not watch.membership.joined:
        watch.membership.renew()
    stream = watch.core.stream("m", "r", None, "", "")
    os.read(go, 1)
    token = stream.token
    for _ in repeat(None, stamps):
        token()
    os.write(done, b"x")
    os.read(end, 1)

ended, done = os.pipe()
end, stop = os.pipe()
children = []
for _ in range(processes):
    pid = os.fork()
    if pid == 0:
        os.close(stop)
        try:
            work()
        finally:
            os._exit(0)
    children.append(pid)
os.close(end)
watch = tailwatch.install(role="coordinator", dir=directory, gc="observe", gc_warn_ms=0)
while not watch.membership.joined or len(watch.snapshot().processes) < processes + 1:
    time.sleep(0.01)
os.write(started, b"x" * processes)
seen = []
os.set_blocking(ended, False)
left = processes
while left:
    try:
        left -= len(os.read(ended, 100))
    except BlockingIOError:
        pass
    snap = watch.snapshot()
    seen.append((snap.tokens, snap.itl.count))
    time.sleep(0.02)
snap = watch.snapshot()
os.close(stop)
for pid in children:
    os.waitpid(pid, 0)
print(json.dumps({"seen": seen, "tokens": snap.tokens, "itl": snap.itl.count, "ttft": snap.ttft.count,
    "opened": snap.opened, "drops": snap.drops, "errors": snap.errors}))
"""


@pytest.mark.parametrize(
    "stamps", [1_000_000, pytest.param(10_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_eight_processes_times_millions_of_stamps(run_script, stamps: int) -> None:
    """The sum is exact, and while they stamp it only grows."""
    found = json.loads(run_script(SUM, "8", str(stamps), PYTHONWARNINGS="ignore", timeout=300))
    assert (found["tokens"], found["itl"], found["ttft"]) == (8 * stamps, 8 * stamps - 8, 8)
    assert found["opened"] == 8
    for values in zip(*found["seen"], strict=True):
        assert list(values) == sorted(values) and max(values) <= 8 * stamps
    assert not any(found["drops"].values()) and not any(found["errors"].values())


KILLED = """
import gc, json, math, os, random, selectors, signal, sys, time
import tailwatch
import tailwatch.runtime.install  # here, else each worker imports it while it is to join
from tailwatch import snapshots
from tailwatch.errors import TailwatchError

kills, alongside, merge, seed = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
directory = os.path.join(os.getcwd(), f"group-{seed}")
chance = random.Random(int(seed))
TOKEN, END, REQUEST_TOKENS = b"t", b"e", 20

def serve(client):
    # What a client has received was stamped before.
    watch = tailwatch.install(role="api", dir=directory, gc="observe", gc_warn_ms=0, max_label_sets=4)
    chance.seed(os.getpid())
    gc.disable()
    while not watch.membership.joined:
        watch.membership.renew()
    while True:
        stream = watch.core.stream("m", "r", None, "", "")
        for _ in range(REQUEST_TOKENS):
            stream.token()
            os.write(client, TOKEN)
        stream.close()
        os.write(client, END)
        if merge != "none" and chance.random() < 0.1:
            watch.membership.renew()  # it merges the dead, and is killed in it
        cycle = []
        cycle.append(cycle)
        gc.collect(0)

class Worker:
    def __init__(self):
        self.client, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self.client)
                serve(theirs)
            finally:
                os._exit(1)
        os.close(theirs)
        self.tokens = self.ends = 0
        # One in five is killed while it joins or soon after, the others as they stamp, however slow they are.
        soon = chance.random() < 0.2
        self.due = time.monotonic() + chance.random() * 0.02 if soon else math.inf
        self.life = math.inf if soon else chance.randrange(1, 800)
    def receive(self):
        data = os.read(self.client, 1 << 16)
        self.tokens += data.count(TOKEN)
        self.ends += data.count(END)
        return bool(data)
    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        while self.receive():
            pass
        os.close(self.client)
        return status

def numbers(take):
    snap = take()
    stamped = snap.ttft.count + snap.itl.count
    return {"tokens": snap.tokens, "stamped": stamped, "ended": sum(snap.requests.values()), "opened": snap.opened,
        "paused": sum(snap.paused.values()), "in_flight": snap.in_flight,
        "processes": len(snap.processes), "errors": sum(snap.errors.values()), "drops": sum(snap.drops.values())}

def outside():
    try:
        return numbers(lambda: snapshots.take_directory(directory))
    except TailwatchError:  # all were killed before they had joined
        return None

received = {"tokens": 0, "ended": 0}
statuses, rounds, killed, workers = set(), [], 0, []
selector = selectors.DefaultSelector()

def start():
    worker = Worker()
    selector.register(worker.client, selectors.EVENT_READ, worker)
    workers.append(worker)

keeper = None
if merge == "a member that lives":  # another process, so that the workers are forked from one that has not installed
    asked, ask = os.pipe()
    answers, answer = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(ask)
        gc.disable()  # else pauses of its own come to those of the killed
        watch = tailwatch.install(role="coordinator", dir=directory, gc="observe", gc_warn_ms=0, max_label_sets=4)
        while not watch.membership.joined:
            watch.membership.renew()
        os.write(answer, b"{}\\n")
        while os.read(asked, 1):
            for _ in range(10):  # a few of the dead a turn
                watch.membership.renew()
            os.write(answer, json.dumps(numbers(watch.snapshot)).encode() + b"\\n")
        os._exit(0)
    os.close(asked)
    os.close(answer)
    replies = os.fdopen(answers)
    assert replies.readline() == "{}\\n"

def seen_by_member():
    if keeper is None:
        return None
    os.write(ask, b"?")
    return json.loads(replies.readline())

def round_of(count):
    global killed
    left = count
    while left or workers:
        while left and len(workers) < alongside:
            start()
            left -= 1
        due = min(worker.due for worker in workers)
        for key, _ in selector.select(None if due == math.inf else max(0.0, due - time.monotonic())):
            key.data.receive()
        for worker in [each for each in workers if time.monotonic() >= each.due or each.tokens >= each.life]:
            selector.unregister(worker.client)
            workers.remove(worker)
            statuses.add(worker.kill())
            killed += 1
            received["tokens"] += worker.tokens
            received["ended"] += worker.ends
    rounds.append({"killed": killed, "received": dict(received), "outside": outside(), "member": seen_by_member()})

while killed < kills:
    round_of(min(20, kills - killed))
time.sleep(0.05)
again = outside()
if keeper is not None:
    os.close(ask)
    os.waitpid(keeper, 0)
print(json.dumps({"rounds": rounds, "statuses": sorted(statuses), "again": again, "files": len(os.listdir(directory))}))
"""


def check(numbers: dict[str, float] | None, received: dict[str, int], killed: int) -> None:
    """Everything that a client has is there; beyond that, at most the stamp that each killed process was at."""
    if numbers is None:
        assert received == {"tokens": 0, "ended": 0}
        return
    assert received["tokens"] <= numbers["tokens"] <= received["tokens"] + killed
    assert numbers["tokens"] <= numbers["stamped"] <= numbers["tokens"] + killed
    assert received["ended"] <= numbers["ended"] <= received["ended"] + killed
    assert numbers["ended"] <= numbers["opened"] <= numbers["ended"] + killed
    assert (numbers["in_flight"], numbers["errors"], numbers["drops"]) == (0, 0, 0)


def check_rounds(found: dict[str, Any], kills: int, member: bool) -> None:
    """Each time that only the member was alive."""
    assert found["statuses"] == [9]
    rounds = found["rounds"]
    assert rounds[-1]["killed"] == kills
    assert rounds[-1]["received"]["tokens"] > 100 * kills
    for one in rounds:
        check(one["outside"], one["received"], one["killed"])
        assert (one["member"] is not None) == member
        if member:
            check(one["member"], one["received"], one["killed"])
    for name in ("tokens", "stamped", "ended", "opened", "paused"):
        for who in ("outside", "member"):
            values = [one[who][name] for one in rounds if one[who] is not None]
            assert values == sorted(values), (name, who)
    left = {"processes"} if member else set()  # a living member goes on merging the dead
    ends = (found["again"], rounds[-1]["outside"])
    again, last = ({name: value for name, value in each.items() if name not in left} for each in ends)
    assert again == last


MEMBER = "a member that lives"


@pytest.mark.parametrize(
    "merge, times",
    [
        (MEMBER, 1),
        *(
            pytest.param(merge, 2, marks=[pytest.mark.slow, pytest.mark.timeout(600)])
            for merge in ("none", "those that are killed", MEMBER)
        ),
    ],
)
def test_kill_9_at_random_instants(run_script, merge: str, times: int) -> None:
    """Killed at any instant, while it joined, stamped, collected, merged or ended a request: the group's totals are
    what the clients received, up to the stamps in flight, and they never go backwards; whichever process merges the
    dead."""
    kills = 200 if times > 1 else 40
    if merge == "none":  # until the page is full: a line is used again once its dead owner has been merged
        runs = [(kills, seed) for seed in range(times)]
    else:
        runs = [(kills * times, 0)]
    for kills, seed in runs:
        output = run_script(KILLED, str(kills), "4", merge, str(seed), PYTHONWARNINGS="ignore", timeout=900)
        found = json.loads(output.splitlines()[-1])
        check_rounds(found, kills, merge == MEMBER)
        assert (found["files"] > kills / 2) == (merge == "none"), found["files"]


FORKS = """
import faulthandler, gc, json, multiprocessing, os, signal, sys, threading, time
import tailwatch
from tailwatch import snapshots

forks, at_once = int(sys.argv[1]), 4
faulthandler.dump_traceback_later(float(sys.argv[2]), exit=True)
directory = os.path.join(os.getcwd(), "group")
watch = tailwatch.install(role="api", dir=directory, gc="observe", gc_warn_ms=0, max_label_sets=4)
assert watch.membership.joined
stop = threading.Event()
counts = [0, 0]
TOKENS = 3

def stamp(which):
    while not stop.is_set():
        with tailwatch.stream(model="m") as stream:
            for _ in range(50):
                stream.token()
                cycle = []
                cycle.append(cycle)
        counts[which] += 1

def request():
    with tailwatch.stream(model="m") as stream:
        for _ in range(TOKENS):
            stream.token()

def joined():
    end = time.monotonic() + 60
    while not watch.membership.joined and time.monotonic() < end:
        watch.membership.renew()
    return watch.membership.joined

def child(number):
    # 0: stamps and joins; 1: joins and stamps; 2: leaves, too
    signal.alarm(100)
    watch._daemon.stop()
    how = number % 3
    if how == 1:
        assert joined()
    request()
    mine = watch.core
    assert joined()
    snap = snapshots.take([mine.address])
    right = (snap.tokens, snap.opened, snap.in_flight) == (TOKENS, 1, 0)
    if how == 2:
        right = tailwatch.uninstall() == [] and right
    return 0 if right else 3

def forked(number):
    pid = os.fork()
    if pid:
        return lambda: os.waitpid(pid, 0)[1]
    code = 1
    try:
        code = child(number)
    finally:
        os._exit(code)

context = multiprocessing.get_context("fork")

def from_multiprocessing(number):
    process = context.Process(target=lambda: sys.exit(child(number)))
    process.start()
    def ended():
        process.join()
        return process.exitcode
    return ended

threads = [threading.Thread(target=stamp, args=(i,)) for i in range(2)]
for thread in threads:
    thread.start()
bad = []
for first in range(0, forks, at_once):
    numbers = range(first, min(first + at_once, forks))
    waits = [(from_multiprocessing if number % 2 else forked)(number) for number in numbers]
    bad += [status for wait in waits if (status := wait()) != 0]
    watch.membership.renew()
stop.set()
for thread in threads:
    thread.join()
watch.membership.renew()
snap = watch.snapshot()
print(json.dumps({"bad": bad, "counts": counts, "tokens": snap.tokens, "opened": snap.opened,
    "requests": sum(snap.requests.values()), "in_flight": snap.in_flight, "drops": snap.drops, "errors": snap.errors,
    "files": len(os.listdir(directory))}))
"""


@pytest.mark.parametrize("forks", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_forks_under_load(run_script, forks: int) -> None:
    """Two threads stamp and collect while the process forks, with os.fork() and multiprocessing: no child hangs, and
    the group's totals hold every stamp of every process, whether it died or left."""
    output = run_script(FORKS, str(forks), "1400", PYTHONWARNINGS="ignore", timeout=1600)
    found = json.loads(output.splitlines()[-1])
    assert found["bad"] == []
    assert min(found["counts"]) > 0
    assert found["tokens"] == 50 * sum(found["counts"]) + 3 * forks
    assert found["requests"] == found["opened"] == sum(found["counts"]) + forks
    assert found["in_flight"] == 0
    assert not any(found["errors"].values()) and not any(found["drops"].values())


CHILD = """
import ctypes, os, signal, sys
import tailwatch
from tailwatch import snapshots

directory = os.path.join(os.getcwd(), "group")
watch = tailwatch.install(role="api", dir=directory, gc="observe", gc_warn_ms=0, max_label_sets=4)
fork = os.fork if sys.argv[1] == "os.fork" else ctypes.PyDLL(None).fork
received, sent = os.pipe()
pid = fork()
if pid == 0:
    with tailwatch.stream(model="m") as stream:
        stream.token()
        os.write(sent, b"t")
        signal.pause()
assert os.read(received, 1) == b"t"
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
print(watch.snapshot().tokens, snapshots.take_directory(directory).tokens)
"""


@pytest.mark.parametrize("fork", ["os.fork", "C fork"])
def test_a_fork_child_killed_after_its_first_token(run_script, fork: str) -> None:
    """It has joined by then: the token that its client has is in the totals."""
    assert run_script(CHILD, fork, PYTHONWARNINGS="ignore").split() == ["1", "1"]
