"""Several processes that share a directory: one answer for all of them, and whose pause it was."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import resource
import shutil
import signal
import socket
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.applications import Starlette

import tailwatch
from tailwatch import _hot, snapshots
from tailwatch._cold import ffi
from tailwatch.group.membership import GroupMember

from ..support.process import Python, Serving, clean_environment
from ..support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("no_collections")]

MS = 1_000_000

ENGINE = """
import gc, json, sys, time
import tailwatch
from tailwatch import snapshots
watch = tailwatch.install(role=sys.argv[2], dir=sys.argv[1], gc="observe")
gc.disable()
heap = [[i] for i in range(int(sys.argv[3]))]
gc.collect()
print(json.dumps(watch.membership.joined), flush=True)
for line in sys.stdin:
    if line == "pauses\\n":
        pauses, _, _ = snapshots.Records(watch.core.address).pauses(0, before_ns=time.monotonic_ns())
        print(json.dumps([[pause.start_ns, pause.stop_ns] for pause in pauses]), flush=True)
    elif line == "engine\\n":
        watch.core.rebind("engine", lambda *_: None, watch.core)
        watch.membership.enter("engine")
        print(json.dumps(["engine", watch.membership.joined]), flush=True)
    elif line == "stand still\\n":
        watch.core.policy_begin()
        print(json.dumps(["standing", watch.core.paused_now()]), flush=True)
    else:
        before = time.monotonic_ns()
        gc.collect()
        print(json.dumps([before, time.monotonic_ns()]), flush=True)
"""


class Member(Python):
    """Another process of the group, which collects on command."""

    def __init__(self, directory: Path, role: str = "engine", heap: int = 200_000) -> None:
        super().__init__(ENGINE, directory, role, heap)

    def collect(self) -> tuple[int, int]:
        """When the collection began and ended, as seen from outside it."""
        self.write("collect")
        return self.answer()

    def answer(self) -> tuple[Any, Any]:
        first, second = self.read()
        return first, second

    def pauses(self) -> list[tuple[int, int]]:
        """What it measured itself."""
        return [(start, stop) for start, stop in self.ask("pauses")]


@pytest.fixture
def start(directory: Path) -> Iterator[Callable[..., Member]]:
    """Starts processes of the group; all are gone after the test."""
    started: list[Member] = []

    def begin(**options: Any) -> Member:
        started.append(Member(directory, **options))
        assert started[-1].read() is True
        return started[-1]

    yield begin
    for process in started:
        process.kill()


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers nothing."""


def install(directory: Path, **options: Any) -> tailwatch.Watch:
    return tailwatch.install(app, dir=directory, gc="observe", **options)


def overlap(pauses: list[tuple[int, int]], since: int, end: int) -> int:
    """How much of a gap lies in pauses of at least 50 us."""
    cut = ((max(start, since), min(stop, end)) for start, stop in pauses if stop - start >= 50_000)
    return sum(stop - start for start, stop in cut if stop > start)


def test_a_pause_of_the_engine_is_in_the_api_s_numbers(directory: Path, start: Callable[..., Member]) -> None:
    """The gap has whose pause it was; the doctor names the process."""
    engine = start(heap=800_000)
    watch = install(directory, slow_gap_ms=1)
    with tailwatch.stream(model="m") as stream:
        for token in range(30):
            stream.token()
            if token == 20:
                engine.collect()
            time.sleep(0.002)
    snap = watch.snapshot()
    assert snap.overlap_by_source["engine"]["itl"]["gc2"] > 0
    assert snap.delay_by_source["engine"]["itl"]["gc2"] > 0
    assert snap.delay_by_source["api"]["itl"]["gc2"] == 0
    longest = max(snap.slowest, key=lambda slow: sum(slow.overlap.values()))
    assert [share.source for share in longest.others] == ["engine"]
    assert sorted(process.name for process in snap.processes) == ["api-0", "engine-0"]
    assert any("in the engine process" in finding.detail for finding in watch.doctor())


def test_each_token_is_charged_what_both_logs_have(directory: Path, start: Callable[..., Member]) -> None:
    """Planted pauses at random times under several streams: overlap within what the engine measured (inner) and what
    was seen from outside (outer), token by token."""
    engine = start(heap=60_000)
    install(directory)
    contexts = [tailwatch.stream(model="m") for _ in range(8)]
    streams = [context.__enter__() for context in contexts]
    rng = random.Random(7)
    outer: list[tuple[int, int]] = []
    gaps: list[tuple[int, int, int]] = []  # since, end, charged
    last = [0] * len(streams)
    for stream in streams:
        stream.token()
    pending = False
    for _ in range(400):
        if not pending and rng.random() < 0.3:
            engine.write("collect")
            pending = True
        time.sleep(rng.random() * 0.004)
        i = rng.randrange(len(streams))
        before, at = streams[i].overlap_ns, _hot.now()
        streams[i].token(at=at)
        if last[i]:
            gaps.append((last[i], at, streams[i].overlap_ns - before))
        last[i] = at
        if pending and rng.random() < 0.5:
            outer.append(engine.answer())
            pending = False
    if pending:
        outer.append(engine.answer())
    inner = engine.pauses()
    assert len(outer) >= 30
    assert sum(charged > 0 for _, _, charged in gaps) >= 30
    for since, end, charged in gaps:
        assert charged <= overlap(outer, since, end) + 2
        assert charged >= overlap(inner, since, end) - 2 or charged == pytest.approx(overlap(inner, since, end), abs=MS)
    assert sum(charged for _, _, charged in gaps) == pytest.approx(
        sum(overlap(inner, since, end) for since, end, _ in gaps), rel=0.01
    )


def test_other_api_processes_delay_no_stream_here(directory: Path, start: Callable[..., Member]) -> None:
    """A pause of another API worker is shown, and charged to no stream of this one."""
    other = start(role="api", heap=300_000)
    watch = install(directory)
    with tailwatch.stream() as stream:
        stream.token()
        other.collect()
        stream.token()
        assert stream.overlap_ns == 0
    snap = watch.snapshot()
    assert [process.name for process in snap.processes] == ["api-0", "api-1"]
    assert snap.processes[0].paused["gc2"] > 0


def test_a_killed_process_still_counts(directory: Path, start: Callable[..., Member]) -> None:
    """kill -9: what it measured stays in the totals."""
    engine = start()
    watch = install(directory)
    engine.collect()
    before = watch.snapshot()
    engine.kill()
    watch.membership.renew()
    after = watch.snapshot()
    assert after.gc.collections == before.gc.collections
    assert after.paused == before.paused
    assert {process.name: process.lives for process in after.processes} == {"engine-0": False, "api-0": True}
    assert [path.name.split("-")[0] for path in directory.glob("*.seg")] == [str(os.getpid())]
    assert [path.name for path in directory.glob("*.gone")] == ["engine-0.gone"]


def test_a_process_that_joins_later_is_seen(directory: Path, start: Callable[..., Member]) -> None:
    """With the next wake-up of the daemon, or the next snapshot."""
    watch = install(directory)
    assert len(watch.snapshot().processes) == 1
    start()
    assert len(watch.snapshot().processes) == 2


def forked(act: Callable[[], bool], fork: Callable[[], int] = os.fork) -> int:
    """A child of this process that does it and ends: status 0 where it is true."""
    child = fork()
    if child == 0:
        status = 1
        try:
            status = 0 if act() else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def is_true(child: int) -> bool:
    """Whether it was, of a child that ends."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def in_child(act: Callable[[], bool], fork: Callable[[], int]) -> bool:
    """Whether act() is true in a child of this process."""
    return is_true(forked(act, fork))


@pytest.mark.parametrize("how", ["os.fork", "C fork"])
def test_a_fork_child_writes_nothing_of_its_parent(directory: Path, how: str) -> None:
    """However it was forked: its counts start from zero, in a file of its own, before its first stamp."""
    watch = install(directory)
    with tailwatch.stream() as stream:
        stream.token()

    def child() -> bool:
        with tailwatch.stream() as stream:
            stream.token()
            stream.token()
        mine = snapshots.take([watch.core.address])
        return (mine.tokens, mine.opened, watch.membership.joined) == (2, 1, True)

    fork = os.fork if how == "os.fork" else ctypes.PyDLL(None).fork
    assert in_child(child, fork)
    mine, snap = snapshots.take([watch.core.address]), watch.snapshot()
    assert (mine.tokens, mine.opened) == (1, 1)
    assert (snap.tokens, snap.opened) == (3, 2)


@pytest.mark.parametrize("how", ["os.fork", "C fork"])
def test_the_steps_of_a_fork_child_are_its_groups(directory: Path, how: str) -> None:
    """An engine that an API process forked has no request that would make it join."""
    watch = tailwatch.install(app, dir=str(directory), gc="observe")

    def child() -> bool:
        with tailwatch.step("decode", batch=2):
            pass
        return watch.membership.joined

    assert in_child(child, os.fork if how == "os.fork" else ctypes.PyDLL(None).fork)
    assert [(step.name, step.steps.time.count) for step in watch.snapshot().steps] == [("decode", 1)]


def test_a_fork_child_serves_its_parents_engine(directory: Path) -> None:
    """Already with its first stream: pauses of another engine are not charged to that one."""
    watch = tailwatch.install(role="api", dir=str(directory), gc="observe", engine="1")
    engines = {
        name: _hot.Core("engine", 1, (0, 0, 0, 0, 0), 0, lambda scope: "", lambda sent, stream: sent)
        for name in ("1", "2")
    }
    for name, engine in engines.items():
        assert engine.join(str(directory), _hot.engine_id(name)) is None
    asked, answered = os.pipe(), os.pipe()

    def child() -> bool:
        with tailwatch.stream() as stream:
            watch.core.renew()
            stream.token()
            stream.token()
            os.write(asked[1], b"x")
            os.read(answered[0], 1)
            stream.token()
            return watch.membership.joined and stream.overlap_ns == 0

    pid = forked(child)
    os.read(asked[0], 1)
    engines["2"].policy_begin()
    time.sleep(0.002)
    engines["2"].policy_end()
    os.write(answered[1], b"x")
    assert is_true(pid)
    for each in (*asked, *answered):
        os.close(each)


def test_a_fork_child_that_starts_to_serve_is_not_reported_as_alone(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It will join with its first wake-up; only one without a group, or that cannot join, serves its own numbers."""
    watch = install(directory)
    monkeypatch.setattr(tailwatch.runtime.session, "parent_process", lambda: object())

    def child() -> bool:
        assert not watch.membership.joined
        watch._on_startup()
        return not any("this process alone" in note for note in watch.notes)

    assert in_child(child, os.fork)


def test_a_fork_child_joins_with_its_first_wake_up(directory: Path) -> None:
    """Its numbers are then in the whole group's, once."""
    watch = install(directory)
    with tailwatch.stream() as stream:
        stream.token()

    def child() -> bool:
        before = watch.membership.joined
        watch.membership.renew()
        with tailwatch.stream() as stream:
            stream.token()
        return not before and watch.membership.joined and watch.snapshot().tokens == 2

    assert in_child(child, os.fork)
    assert watch.snapshot().tokens == 2


def test_a_fork_child_s_first_stream_waits_for_the_engine_too(directory: Path, start: Callable[..., Member]) -> None:
    """It has the members from its first request on, not from the daemon's next wake-up."""
    engine = start(heap=300_000)
    watch = install(directory)
    assert len(watch.snapshot().processes) == 2

    def child() -> bool:
        with tailwatch.stream() as stream:
            stream.token()
            engine.collect()
            stream.token()
            return stream.overlap_ns > 0

    assert in_child(child, os.fork)


def test_a_fork_child_that_uninstalls_joins_nothing(directory: Path) -> None:
    """Also not with a later stream: its parent's group is not its own any more."""
    watch = install(directory)

    def child() -> bool:
        tailwatch.uninstall()
        alone = tailwatch.install(app, gc="observe")
        with tailwatch.stream() as stream:
            stream.token()
        return not alone.membership.joined and not watch.membership.joined and alone.snapshot().tokens == 1

    assert in_child(child, os.fork)
    assert len(list(directory.glob("*.seg"))) == 1


@pytest.mark.parametrize("kind", ["link", "open", "file"])
def test_a_directory_that_cannot_be_trusted_is_refused(
    tmp_path: Path, directory: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning with the reason; the process is watched all the same, alone."""
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        directory.symlink_to("elsewhere")
    elif kind == "open":
        directory.mkdir()
        directory.chmod(0o777)
    else:
        directory.write_text("")
    watch = install(directory)
    assert not watch.membership.joined
    with tailwatch.stream() as stream:
        stream.token()
    assert watch.snapshot().tokens == 1
    words = {"link": "symbolic link", "open": "others may", "file": "no directory"}[kind]
    assert [words in note for note in watch.notes] == [True]
    assert sum("not shared" in record.getMessage() for record in caplog.records) == 1


def test_uninstall_takes_its_file_away(directory: Path, start: Callable[..., Member]) -> None:
    """And nothing of the others; what was measured stays readable."""
    engine = start()
    watch = install(directory)
    with tailwatch.stream() as stream:
        stream.token()
    tailwatch.uninstall()
    assert [path.name.partition("-")[0] for path in directory.glob("*.seg")] == [str(engine.pid)]
    assert snapshots.take([watch.core.address]).tokens == 1
    assert f"{directory}/" not in Path("/proc/self/maps").read_text()
    install(directory)
    assert f"{directory}/" in Path("/proc/self/maps").read_text()


def test_an_engine_that_is_named_late_is_charged(directory: Path, start: Callable[..., Member]) -> None:
    """Another role does not take its file away: the others keep what they have mapped, and see the new unit."""
    other = start(role="api", heap=300_000)
    watch = install(directory, slow_gap_ms=1)
    assert sorted(process.name for process in watch.snapshot().processes) == ["api-0", "api-1"]
    files = sorted(directory.glob("*.seg"))
    assert other.ask("engine") == ["engine", True]
    assert sorted(directory.glob("*.seg")) == files
    assert sorted(process.name for process in watch.snapshot().processes) == ["api-1", "engine-0"]
    with tailwatch.stream() as stream:
        stream.token()
        other.collect()
        stream.token()
        assert stream.overlap_ns > 0


def test_a_process_killed_in_a_collection_is_charged_no_longer(directory: Path, start: Callable[..., Member]) -> None:
    """With the next wake-up of the daemon; its file stays."""
    engine = start()
    watch = install(directory)
    watch.snapshot()
    assert engine.ask("stand still") == ["standing", True]
    stream = watch.core.stream("m", "r", None, "", "")
    stream.token()
    stream.token()
    assert stream.overlap_ns > 0
    engine.kill()
    watch.membership.renew()
    stream.token()
    charged = stream.overlap_ns
    for _ in range(3):
        time.sleep(0.001)
        stream.token()
    assert stream.overlap_ns == charged
    stream.end(None)


def test_joins_within_one_tick_of_the_clock_are_seen(directory: Path, start: Callable[..., Member]) -> None:
    """A directory's time is as coarse as the kernel's tick: while it is new, it shows nothing."""
    watch = install(directory)
    new = time.time_ns() + 3600 * 1_000_000_000  # younger than a second for as long as this test may take
    os.utime(directory, ns=(new, new))
    assert len(watch.snapshot().processes) == 1
    start()
    os.utime(directory, ns=(new, new))  # as if both had been in one tick
    assert len(watch.snapshot().processes) == 2


def test_a_holder_of_the_lock_is_not_waited_for(directory: Path) -> None:
    """Joining needs no lock, so nothing is lost with one that is killed now; nor does the index, after a while."""
    directory.mkdir(mode=0o700)
    held = [os.open(directory, os.O_RDONLY), os.open(directory / "index.lock", os.O_CREAT | os.O_RDWR, 0o600)]
    for file in held:
        fcntl.flock(file, fcntl.LOCK_EX)
    watch = install(directory)
    assert watch.membership.joined
    with tailwatch.stream() as stream:
        stream.token()
    assert snapshots.take_directory(str(directory)).tokens == 1
    assert ffi.cast("tw_segment *", watch.core.address).header.place == 1
    for file in held:
        os.close(file)
    assert watch.notes == []


def directory_descriptor(directory: Path) -> int:
    """The number under which this process holds it."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == str(directory):
                return int(name)
    raise AssertionError("it is not open")


def test_a_host_that_closes_all_descriptors_does_no_harm(directory: Path, tmp_path: Path) -> None:
    """The number may mean another file by then: that one is left alone, and the directory is found again."""
    watch = install(directory)
    number = directory_descriptor(directory)
    theirs = os.open(tmp_path / "theirs", os.O_CREAT | os.O_RDWR)
    os.dup2(theirs, number)
    watch.membership.renew()
    assert watch.membership.joined
    assert directory_descriptor(directory) != number
    tailwatch.uninstall()
    assert list(directory.glob("*.seg")) == []
    assert os.path.samestat(os.fstat(number), os.fstat(theirs))
    os.close(theirs)
    os.close(number)
    assert watch.notes == []


def test_a_directory_that_is_removed_is_made_anew(
    directory: Path, start: Callable[..., Member], caplog: pytest.LogCaptureFixture
) -> None:
    """One warning; the numbers stay; all meet again in the new one."""
    watch = install(directory)
    with tailwatch.stream() as stream:
        stream.token()
    for _ in range(2):
        shutil.rmtree(directory)
        watch.membership.renew()
        assert not watch.membership.joined
        assert watch.snapshot().tokens == 1
        watch.membership.renew()
        assert watch.membership.joined
    start()
    snap = watch.snapshot()
    assert (snap.tokens, len(snap.processes)) == (1, 2)
    assert sum("was removed" in record.getMessage() for record in caplog.records) == 1


EXEC = """
import json, os, sys
import tailwatch
watch = tailwatch.install(role="engine", dir=sys.argv[1], gc="observe")
print(json.dumps(watch.membership.joined), flush=True)
if sys.argv[2] == "again":
    with tailwatch.stream() as stream:
        stream.token()
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[3], sys.argv[1], "last", ""])
sys.stdin.readline()
"""


def test_a_process_that_becomes_another_program_joins_again(directory: Path) -> None:
    """exec() keeps pid and start time: what it measured before stays, as what the dead measured does, on no line."""
    with Python(EXEC, directory, "again", EXEC) as process:
        assert [process.read() for _ in range(2)] == [True, True]
        watch = install(directory)
        assert watch.snapshot().tokens == 1
        assert len(list(directory.glob(f"{process.pid}-*.seg"))) == 2
        process.finish()
        assert process.popen.returncode == 0


class Unable:
    """A core that has no memory for what it is asked."""

    joined = True

    def leave(self) -> None:
        raise MemoryError

    def renew(self) -> bool:
        raise MemoryError


def test_numbers_that_cannot_be_taken_back_are_a_sentence_of_the_report(directory: Path) -> None:
    """Neither uninstall() nor the daemon's wake-up raises."""
    warnings: list[str] = []
    membership = GroupMember(cast("_hot.Core", Unable()), str(directory), warnings.append)
    membership._look()
    assert ["still shared" in sentence for sentence in membership.leave()] == [True]
    assert warnings == []


def test_uninstall_under_a_memory_limit_raises_nothing(directory: Path) -> None:
    """What needs memory to be taken back is taken back without."""
    watch = install(directory)
    with tailwatch.stream() as stream:
        stream.token()

    def child() -> bool:
        with tailwatch.stream() as stream:
            stream.token()
        watch.membership.renew()
        with open("/proc/self/statm") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
        limit = mapped + watch.core.bytes // 2
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        joined = watch.membership.joined
        return joined and watch.membership.leave() == [] and not watch.membership.joined

    assert in_child(child, os.fork)


WORKER = """
import tailwatch
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

async def completions(request):
    frame = b'data: {"model":"m","choices":[{"index":0,"text":"a"}]}\\n\\n'
    return StreamingResponse(iter([frame] * 5 + [b"data: [DONE]\\n\\n"]), media_type="text/event-stream")

app = Starlette(routes=[Route("/v1/completions", completions, methods=["POST"])])
tailwatch.install(app, gc="observe")
"""


@pytest.mark.parametrize("requests", [40])
def test_each_of_several_workers_gives_the_same_answer(directory: Path, tmp_path: Path, requests: int) -> None:
    """uvicorn --workers 2: whichever worker is scraped, the counts are the whole server's."""
    (tmp_path / "served.py").write_text(WORKER)
    with served_by_two_workers(tmp_path, {**os.environ, "TAILWATCH_DIR": str(directory)}) as (address, _):
        for _ in range(requests):
            post = urllib.request.Request(f"{address}/v1/completions", b"{}", {"connection": "close"})
            with urllib.request.urlopen(post, timeout=30) as response:
                assert response.read().endswith(b"[DONE]\n\n")
        answers = [scrape(address) for _ in range(8)]
        counted = 'tailwatch_output_tokens_total{model_name="m",route="/v1/completions"}'
        assert {answer[counted] for answer in answers} == {str(5 * requests)}
        assert all(any('process="api-1"' in name for name in answer) for answer in answers)


def listens(port: int) -> bool:
    """uvicorn logs that it runs before it listens."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_the_boot_file_makes_a_group_of_a_server(tmp_path: Path) -> None:
    """TAILWATCH=1 and nothing else: uvicorn's workers find the directory that their parent has named."""
    lines = WORKER.splitlines()
    (tmp_path / "served.py").write_text("\n".join(line for line in lines if "tailwatch" not in line))
    environment = clean_environment(TAILWATCH="1", TAILWATCH_GC="observe")
    group = ""
    try:
        with served_by_two_workers(tmp_path, environment) as (address, pid):
            group = named_by_a_child(pid)
            assert Path(group).parent == Path("/dev/shm")
            for _ in range(20):
                post = urllib.request.Request(f"{address}/v1/completions", b"{}", {"connection": "close"})
                with urllib.request.urlopen(post, timeout=30) as response:
                    assert response.read().endswith(b"[DONE]\n\n")
            counted = 'tailwatch_output_tokens_total{model_name="m",route="/v1/completions"}'
            assert {scrape(address)[counted] for _ in range(8)} == {"100"}
    finally:
        shutil.rmtree(group or tmp_path, ignore_errors=True)  # another server's start may have removed it


@contextlib.contextmanager
def served_by_two_workers(directory: Path, environment: dict[str, str]) -> Iterator[tuple[str, int]]:
    """uvicorn with the module served.py: the address of its workers, and its own pid."""
    command = [sys.executable, "-m", "uvicorn", "served:app", "--workers", "2", "--port", "0"]
    with Serving(*command, log=directory / "log", cwd=directory, env=environment) as server:
        try:
            port = server.port
            until(lambda: server.log().count("startup complete") == 2, "both workers run")
            until(lambda: listens(port))
            yield f"http://127.0.0.1:{port}", server.pid
        finally:
            server.stop(signal.SIGINT)


def named_by_a_child(pid: int) -> str:
    """TAILWATCH_DIR in the environment that a child of the process was started with."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in children:
        for line in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            if line.startswith(b"TAILWATCH_DIR="):
                return line.partition(b"=")[2].decode()
    raise AssertionError("no child of it was given a directory")


def scrape(address: str) -> dict[str, str]:
    """Samples by name and labels."""
    request = urllib.request.Request(f"{address}/metrics", headers={"connection": "close"})
    with urllib.request.urlopen(request, timeout=30) as response:
        lines = response.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


SERVER = """
import multiprocessing, sys, time
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

def engine(ready, go, done):
    import gc
    heap = [[i] for i in range(100_000)]
    ready.set()
    go.wait()
    gc.collect()
    done.set()
    time.sleep(3600)

async def health(request):
    go.set()
    done.wait()
    return PlainTextResponse("collected")

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    ready, go, done = spawn.Event(), spawn.Event(), spawn.Event()
    child = spawn.Process(target=engine, args=(ready, go, done), name="EngineCore", daemon=True)
    child.start()
    ready.wait()
    uvicorn.run(Starlette(routes=[Route("/health", health)]), port=0)
"""


def test_run_makes_a_group_of_an_unchanged_server(tmp_path: Path) -> None:
    """`tailwatch run -- python server.py`: the app and its engine process in one answer, a summary at the end, and the
    directory is gone with the command."""
    (tmp_path / "server.py").write_text(SERVER)
    main = "import sys; from tailwatch.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", main, "run", "--gc=observe", "--", sys.executable, "server.py"]
    with Serving(*command, log=tmp_path / "log", cwd=tmp_path) as runner:
        try:
            port = runner.port
            directory = Path(runner.log().split("TAILWATCH_DIR=")[1].split(")")[0])
            address = f"http://127.0.0.1:{port}"
            until(lambda: listens(port))
            with urllib.request.urlopen(f"{address}/health", timeout=30) as response:
                assert response.read() == b"collected"
            collected = 'python_gc_duration_seconds_count{generation="2",process="engine-0"}'
            until(lambda: int(scrape(address).get(collected, 0)) >= 1)
            assert main_of("doctor", "--dir", str(directory)) == 0
        finally:
            runner.stop(signal.SIGINT)
    assert "engine-0" in runner.log().splitlines()[-1]
    assert not directory.exists()


def main_of(*arguments: str) -> int:
    """The exit status of the command line."""
    from tailwatch.cli import main

    return main(arguments)


@pytest.mark.parametrize(("make", "words"), [(False, "No such file"), (True, "no process has left numbers")])
def test_doctor_gives_the_reason_where_there_are_no_numbers(
    directory: Path, make: bool, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is not there, and an empty one: status 2 and the reason."""
    if make:
        directory.mkdir(mode=0o700)
    assert main_of("doctor", "--dir", str(directory)) == 2
    assert words in capsys.readouterr().err


def test_doctor_reads_a_dead_group(
    directory: Path, start: Callable[..., Member], capsys: pytest.CaptureFixture[str]
) -> None:
    """What the dead left behind is shown as it is of the living; nothing is written."""
    engine = start(heap=300_000)
    engine.collect()
    engine.kill()
    before = sorted(path.name for path in directory.iterdir())
    assert main_of("doctor", "--dir", str(directory)) == 0
    assert "No requests yet" in capsys.readouterr().out
    assert sorted(path.name for path in directory.iterdir()) == before


def test_a_forked_engine_of_an_app_s_process_is_an_engine(directory: Path) -> None:
    """Its name shows it, though the app came with the fork; a forked worker that serves it stays what it was."""
    watch = tailwatch.install(Starlette(), dir=str(directory), gc="observe")
    context = get_context("fork")

    def role_as(name: str) -> str:
        ours, theirs = context.Pipe()
        child = context.Process(target=settle, args=(watch, theirs), name=name)
        child.start()
        role: str = ours.recv()
        child.join(30)
        return role

    try:
        assert role_as("engine") == "engine"
        assert role_as("Process-1") == "api"
    finally:
        tailwatch.uninstall()


def settle(watch: tailwatch.Watch, answer: Any) -> None:
    watch._settle_role()
    answer.send(watch.config.role)
