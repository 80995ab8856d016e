"""Log lines: which pauses and gaps get one, and what is in it."""

from __future__ import annotations

import gc
import logging
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import tailwatch
from tailwatch import _hot, snapshots
from tailwatch.runtime import pause_logs
from tailwatch.runtime.pause_logs import MOST_LINES, PauseLog, SlowLog

from ..support.process import Python, clean_environment
from ..support.waiting import until

MS = 1_000_000
PAUSE_RING, SLOW_RING = 1024, 256


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """No collections but those of the test."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause has settled as soon as it has ended."""
    monkeypatch.setattr(pause_logs, "SETTLE_NS", 0)
    monkeypatch.setattr(pause_logs, "SETTLE_IN_FLIGHT_NS", 0)


@pytest.fixture
def core() -> _hot.Core:
    return _hot.Core("api", 4, (100 * MS, 0, 0, 0, 990_000), 0, lambda scope: "/", lambda awaitable, stream: awaitable)


def pause_log(core: _hot.Core, warn: float = 0.0, every: bool = False) -> PauseLog:
    return PauseLog(snapshots.Records(core.address), core, warn, every)


def slow_log(core: _hot.Core, slow: float) -> SlowLog:
    return SlowLog(snapshots.Records(core.address), core, slow)


def pause(core: _hot.Core, seconds: float, generation: int = 2, **found: int) -> None:
    """What the interpreter calls for one collection that takes so long."""
    info = {"generation": generation, "collected": 0, "uncollectable": 0, **found}
    core.gc_first("start", info)
    core.gc_last("start", info)
    time.sleep(seconds)
    core.gc_first("stop", info)
    core.gc_last("stop", info)


def short_pause(core: _hot.Core) -> float:
    """One, the first of a core, and what is long beside it, however busy the machine was: seconds."""
    pause(core, 0.0001)
    (found,), _, _ = snapshots.Records(core.address).pauses(0, before_ns=_hot.now())
    return max(0.01, 2 * found.seconds)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records]


@pytest.fixture(autouse=True)
def captured(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tailwatch")


def test_only_pauses_from_the_threshold_on_are_warned_about(
    core: _hot.Core, settled: None, caplog: pytest.LogCaptureFixture
) -> None:
    """A pause as long as gc_warn_ms gets a line, once; one of 0.1 ms gets none."""
    long = short_pause(core)
    log = pause_log(core, warn=long)
    pause(core, long, generation=1, collected=7)
    log.drain()
    log.drain()
    ((level, line),) = lines(caplog)
    assert level == logging.WARNING
    assert "generation 1" in line
    assert "7 objects collected" in line
    assert "uncollectable" not in line
    assert line.endswith("delayed no stream")
    assert float(line.split()[2]) >= 5


def test_the_line_counts_what_it_hit(core: _hot.Core, settled: None, caplog: pytest.LogCaptureFixture) -> None:
    """Two streams waited through the pause: the line counts them, their overlap together and what they lost."""
    streams = [core.stream("m", "r", None, "", "") for _ in range(3)]
    for stream in streams[:2]:
        stream.token()
    pause(core, 0.004, uncollectable=3)
    for stream in streams[:2]:
        stream.token()
    pause_log(core, warn=0.001).drain()
    ((_, line),) = lines(caplog)
    together = sum(stream.overlap_ns for stream in streams) / 1e6
    assert together >= 8
    assert "delayed 2 streams; " in line and f"overlap at most {together:.1f} ms" in line
    assert "estimated delay 0.0 ms" in line
    assert "3 uncollectable" in line
    assert " ms of CPU time) until " in line  # it slept, as a finalizer may


def test_one_stream_is_one_stream(core: _hot.Core, settled: None, caplog: pytest.LogCaptureFixture) -> None:
    """The singular."""
    stream = core.stream("m", "r", None, "", "")
    stream.token()
    pause(core, 0.001)
    stream.token()
    pause_log(core, warn=0.001).drain()
    assert "delayed 1 stream; " in lines(caplog)[0][1]


def test_a_stream_still_waiting_holds_the_line_back(
    core: _hot.Core, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While a stream is in flight its wait may still be charged: no line meanwhile has that nothing was hit."""
    monkeypatch.setattr(pause_logs, "SETTLE_NS", 0)
    log, stream = pause_log(core, warn=0.001), core.stream("m", "r", None, "", "")
    stream.token()
    pause(core, 0.002)
    log.drain()
    assert lines(caplog) == []
    stream.token()
    stream.close()
    log.drain()
    ((_, line),) = lines(caplog)
    assert "delayed 1 stream; " in line
    assert not line.endswith("(so far)")


def test_a_stream_that_waits_very_long_is_not_waited_for(
    core: _hot.Core, settled: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Once patience is spent the line is marked as preliminary."""
    stream = core.stream("m", "r", None, "", "")
    stream.token()
    pause(core, 0.002)
    pause_log(core, warn=0.001).drain()
    assert lines(caplog)[0][1].endswith("delayed no stream (so far)")


def test_what_is_held_back_is_not_overwritten(
    core: _hot.Core, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With half the ring waiting the lines come although a stream is in flight."""
    monkeypatch.setattr(pause_logs, "SETTLE_NS", 0)
    monkeypatch.setattr(pause_logs, "_MOST_HELD", 2)
    log, _stream = pause_log(core, warn=0.001), core.stream("m", "r", None, "", "")
    pause(core, 0.001)
    log.drain()
    assert lines(caplog) == []
    pause(core, 0.001)
    log.drain()
    assert len(lines(caplog)) == 2


def test_a_pause_is_logged_once_its_streams_had_their_turn(
    core: _hot.Core, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pause younger than the settling time waits, and nothing behind it overtakes it."""
    log = pause_log(core, warn=0.001)
    monkeypatch.setattr(pause_logs, "SETTLE_NS", 3600 * 1_000 * MS)
    pause(core, 0.001)
    pause(core, 0.001)
    log.drain()
    assert lines(caplog) == []
    monkeypatch.setattr(pause_logs, "SETTLE_NS", 0)
    log.drain()
    assert len(lines(caplog)) == 2


def test_every_pause_can_be_logged(core: _hot.Core, settled: None, caplog: pytest.LogCaptureFixture) -> None:
    """gc_log_all: each recorded one as information, those too short to be recorded as one sum."""
    log = pause_log(core, every=True)
    pause(core, 0.001, generation=0)
    core.policy_begin()
    core.policy_end()
    pause(core, 0.0002)
    log.drain()
    log.drain()
    found = [line for line in lines(caplog) if "tailwatch's own" not in line[1]]  # recorded where it lost its processor
    assert {level for level, _ in found} == {logging.INFO}
    assert "generation 0" in found[0][1]
    assert "generation 2" in found[1][1]
    if len(found) == len(lines(caplog)):
        assert found[2][1].startswith("gc pauses shorter ") and "0.05 ms: 1 more," in found[2][1]


HOST = """
import logging, sys
import tailwatch
if sys.argv[1] == "handler":
    logging.basicConfig(stream=sys.stderr, format="host %(message)s")
if sys.argv[1] == "high handler":
    logging.basicConfig(stream=sys.stderr)
    logging.getLogger().handlers[0].setLevel(logging.ERROR)
logging.getLogger().setLevel(logging.ERROR)  # as a package does that a server requires
before = logging.getLogger("tailwatch").level, list(logging.getLogger("tailwatch").handlers)
tailwatch.install(gc="observe", slow_gap_ms=100, gc_log_all=True)
logging.getLogger().setLevel(logging.CRITICAL)  # and later, when it is imported
with tailwatch.stream(route="/r", arrival=1) as stream:
    for number in range(1, 25):
        stream.token(at=number * 1_000_000_000)
tailwatch.uninstall()
assert (logging.getLogger("tailwatch").level, logging.getLogger("tailwatch").handlers) == before
"""


@pytest.mark.parametrize("root", ["no handler", "handler", "high handler"])
def test_what_was_asked_for_is_seen(root: str) -> None:
    """Each line once, in a host whose root logger is set to ERROR, by its own handler where it has one that shows
    lines of this level."""
    with Python(HOST, root, env=clean_environment(), stderr=subprocess.PIPE) as host:
        _, errors = host.popen.communicate(timeout=30)
    assert host.popen.returncode == 0, errors
    lines = errors.splitlines()
    slow = [line for line in lines if "slow " in line]
    assert len(slow) == MOST_LINES + 1, errors
    assert all(line.startswith("host ") == (root == "handler") for line in slow)


def test_all_and_a_threshold_go_together(core: _hot.Core, settled: None, caplog: pytest.LogCaptureFixture) -> None:
    """With both, a long pause is a warning and a short one information, one line each."""
    long = short_pause(core)
    log = pause_log(core, warn=long, every=True)
    pause(core, long)
    log.drain()
    assert [level for level, _ in lines(caplog)] == [logging.INFO, logging.WARNING]


@pytest.mark.parametrize("ours", [True, False], ids=["policy", "collection"])
def test_our_own_pause_is_named(core: _hot.Core, settled: None, caplog: pytest.LogCaptureFixture, ours: bool) -> None:
    """A pause of our own is marked so."""
    if ours:
        core.policy_begin()
    pause(core, 0.001)
    if ours:
        core.policy_end()
    pause_log(core, warn=0.001).drain()
    assert ("own pauses" in lines(caplog)[0][1]) is ours


def test_silent_by_default(core: _hot.Core, settled: None, caplog: pytest.LogCaptureFixture) -> None:
    """Without options nothing is logged, and nothing counts as lost."""
    log, slow = pause_log(core), slow_log(core, 0.0)
    for _ in range(3):
        pause(core, 0.0002)
    log.drain()
    slow.drain()
    assert lines(caplog) == []
    assert not any(snapshots.take([core.address]).drops.values())


def test_pauses_that_were_overwritten_are_counted(
    core: _hot.Core, settled: None, caplog: pytest.LogCaptureFixture
) -> None:
    """More pauses than the ring holds before a wake-up: the rest is logged, the loss is counted."""
    log = pause_log(core, warn=1e-6)
    for _ in range(PAUSE_RING + 10):
        pause(core, 0.00006, generation=0)
    log.drain()
    logged = lines(caplog)
    assert len(logged) == MOST_LINES + 1
    assert logged[-1][1].startswith(f"gc pauses: {PAUSE_RING - MOST_LINES} more, ")
    assert snapshots.take([core.address]).drops["pause_log"] == 10


def slow_request(core: _hot.Core, gap_ms: int, number: int = 0) -> None:
    stream = core.stream("model", "/route", 1000 * MS, f"request-{number}", "0af7651916cd43dd8448eb211c80319c")
    stream.token(at=1001 * MS)
    stream.token(at=(1001 + gap_ms) * MS)
    stream.close(at=(1001 + gap_ms) * MS)


def test_slow_gaps_are_logged_with_their_split(core: _hot.Core, caplog: pytest.LogCaptureFixture) -> None:
    """slow_gap_ms=1500: the gap of 2 s gets a line with its ids and route, the one of 1.2 s none; each once."""
    log = slow_log(core, 1.5)
    slow_request(core, 1200, 1)
    slow_request(core, 2000, 2)
    log.drain()
    log.drain()
    ((level, line),) = lines(caplog)
    assert level == logging.WARNING
    for part in ("slow", "request-2", "0af7651916cd43dd8448eb211c80319c", "/route", "gap 2 s"):
        assert part in line


def test_slow_gaps_that_were_overwritten_are_counted(core: _hot.Core, caplog: pytest.LogCaptureFixture) -> None:
    """More slow gaps than are kept: the rest is logged, the loss is counted."""
    log = slow_log(core, 1.0)
    for number in range(SLOW_RING + 7):
        slow_request(core, 2000, number)
    log.drain()
    logged = lines(caplog)
    assert len(logged) == MOST_LINES + 1
    level, last = logged[-1]
    assert level == logging.WARNING
    assert last.startswith(f"slow gaps: {SLOW_RING - MOST_LINES} more, ") and last.endswith("longest 2000.0 ms")
    assert snapshots.take([core.address]).drops["slow_log"] == 7


def test_installed_the_daemon_writes_them(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """install(gc_warn_ms=, slow_gap_ms=) and nothing else: both lines come by themselves, from the daemon's thread."""
    monkeypatch.setattr(pause_logs, "SETTLE_NS", 0)
    watch = tailwatch.install(gc="observe", gc_warn_ms=1, slow_gap_ms=2)
    caplog.clear()
    try:
        with tailwatch.stream(route="/slow") as stream:
            stream.token()
            pause(watch.core, 0.003)
            stream.token()
        until(lambda: {"gc pause", "slow"} <= {kind(record) for record in caplog.records})
        assert {record.threadName for record in caplog.records if kind(record)} == {"tailwatch"}
    finally:
        tailwatch.uninstall()


def test_a_process_without_streams_has_its_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no request ever comes the lines come all the same."""
    monkeypatch.setattr(pause_logs, "SETTLE_NS", 0)
    watch = tailwatch.install(role="engine", gc="observe", gc_warn_ms=1)
    try:
        pause(watch.core, 0.002)
        until(lambda: [kind(record) for record in caplog.records].count("gc pause") == 1)
    finally:
        tailwatch.uninstall()


def test_uninstall_logs_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """The last pauses and slow gaps are not lost to the settling time."""
    watch = tailwatch.install(gc="observe", gc_warn_ms=1, slow_gap_ms=1000)
    pause(watch.core, 0.002)
    slow_request(watch.core, 2000)
    tailwatch.uninstall()
    assert [kind(record) for record in caplog.records if kind(record)].count("gc pause") == 1
    assert "slow" in [kind(record) for record in caplog.records]


def test_many_at_once_are_a_few_lines(
    core: _hot.Core, settled: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The longest few have a line of their own, in their order; only these are put into words."""
    original, formatted = pause_logs.format_pause, []

    def counted(pause: Any, **options: Any) -> str:
        formatted.append(pause.seconds)
        return original(pause, **options)

    pause(core, 0.001)
    (one,), _, _ = snapshots.Records(core.address).pauses(0, before_ns=_hot.now())
    found = [replace(one, seconds=seconds) for seconds in (0.001, 0.004, 0.001, 0.003, 0.002, 0.005)]
    log = pause_log(core, warn=0.003, every=True)
    monkeypatch.setattr(log.records, "pauses", lambda cursor, before_ns: (found, len(found), 0))
    monkeypatch.setattr(pause_logs, "format_pause", counted)
    monkeypatch.setattr(pause_logs, "MOST_LINES", 3)
    log.drain()
    assert formatted == [0.004, 0.003, 0.005]
    assert [level for level, _ in lines(caplog)] == [logging.WARNING] * 3 + [logging.INFO]
    last = lines(caplog)[-1][1]
    assert last.startswith("gc pauses: 3 more, ") and last.endswith("longest 2.0 ms")


def kind(record: Any) -> str:
    message = record.getMessage()
    return next((name for name in ("gc pause", "slow") if message.startswith(name)), "")
