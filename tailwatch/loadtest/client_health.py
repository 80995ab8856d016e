"""The client's eye on itself: when its loop stood still, its collector, its CPU; and whether a run may be believed.

A tester that is paused measures itself. What it cannot have stamped in time is marked, and where its schedule was not
kept the run is called invalid, with the limit that was hit.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from array import array
from bisect import bisect_left, bisect_right
from contextlib import suppress
from pathlib import Path
from typing import Any

from tailwatch import platform
from tailwatch.loadtest.histogram import LatencyHistogram
from tailwatch.loadtest.latencies import Latencies
from tailwatch.loadtest.outcomes import EXCLUDED, UNMEASURED, Outcomes
from tailwatch.loadtest.validity import ClientHealth, Validity

TICK_NS = 5_000_000
EXCLUDED_LIMIT = 0.01  # share of the schedule that may be excluded (4xx) before the run shows nothing
PAUSE_NS = 10_000_000  # the loop was away so much longer than a tick: a pause
LAG_LIMIT_NS = 10_000_000  # p99 of the send lag, and of the loop's own, is to be below this ...
LAG_SHARE = 0.05  # ... or below this share of what was measured, TTFT p99 (E2E where there is none)
_SECOND = 1_000_000_000


class SelfWatch:
    """Looks every 5 ms whether the loop still turns. start() and stop() in the loop's thread.

    A pause reaches from the last moment when the loop is known to have turned to the first one when it turns again: it
    may be too long by a tick, never too short.
    """

    def __init__(self) -> None:
        self.starts, self.ends = array("q"), array("q")
        self.loop_lag = LatencyHistogram("itl")
        self.paused_cpu_ns = 0
        self.gc_ns = 0
        self.cpu_peak = 0.0
        self._alive = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gc_from = 0
        self._froze = self._enabled = False
        self._cpu = self._cpu_at_start = 0
        self._second = (0, 0)
        self._began = self._ended = 0

    def start(self) -> None:
        """Watch from now on, with everything that lives already out of the collector's sight, and the collector off:
        what a run makes is freed without it."""
        self._loop = asyncio.get_running_loop()
        self._freeze()
        gc.callbacks.append(self._collected)
        self._began = self._alive = time.monotonic_ns()
        self._cpu_at_start = self._cpu = time.process_time_ns()
        self._second = (self._began, self._cpu)
        self._arm()

    def stop(self) -> None:
        """Watch no more; everything as it was."""
        self.look()
        if self._timer is not None:
            self._timer.cancel()
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)
        if self._froze:
            gc.unfreeze()
        if self._enabled:
            gc.enable()
        self._ended = time.monotonic_ns()
        self._peak(self._ended, time.process_time_ns())

    def look(self) -> None:
        """The loop turns now: whatever it missed is a pause. Called by each tick, and before anything is judged."""
        now = time.monotonic_ns()
        away = now - self._alive
        if away <= TICK_NS + PAUSE_NS:
            return
        cpu = time.process_time_ns()
        self.starts.append(self._alive)
        self.ends.append(now)
        self.paused_cpu_ns += min(away, cpu - self._cpu)
        self._alive, self._cpu = now, cpu

    def overlaps(self, start_ns: int, end_ns: int) -> bool:
        """Whether a pause lies, or reaches, between two moments."""
        i = bisect_right(self.ends, start_ns)
        return i < len(self.starts) and self.starts[i] < end_ns

    def marked(self, stamps: memoryview, start_ns: int, end_ns: int) -> set[int]:
        """Which of the gaps between stamps overlap a pause: the numbers of the stamps that they begin with."""
        found: set[int] = set()
        for i in range(bisect_right(self.ends, start_ns), len(self.starts)):
            if self.starts[i] >= end_ns:
                break
            first = max(0, bisect_right(stamps, self.starts[i]) - 1)
            last = min(bisect_left(stamps, self.ends[i]), len(stamps) - 1)
            found.update(range(first, last))
        return found

    def client(self, start_ns: int) -> ClientHealth:
        """What was seen, its moments counted from the run's start."""
        pauses = [(start - start_ns, end - start) for start, end in zip(self.starts, self.ends, strict=True)]
        wall = max(1, self._ended - self._began)
        return ClientHealth(
            pauses=pauses,
            paused=sum(length for _, length in pauses) / 1e9,
            paused_cpu=self.paused_cpu_ns / 1e9,
            loop_lag=self.loop_lag,
            gc_seconds=self.gc_ns / 1e9,
            cpu=(time.process_time_ns() - self._cpu_at_start) / wall,
            cpu_peak=self.cpu_peak,
            memory=most_memory(),
            uvloop=type(self._loop).__module__.startswith("uvloop"),
        )

    def _freeze(self) -> None:
        self._enabled = gc.isenabled()
        gc.disable()
        if gc.get_freeze_count() == 0:  # else the host has frozen its own, and would lose that with ours
            gc.collect()
            gc.freeze()
            self._froze = True

    def _arm(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(TICK_NS / 1e9, self._tick)

    def _tick(self) -> None:
        self.look()
        now, cpu = time.monotonic_ns(), time.process_time_ns()
        self.loop_lag.record(now - self._alive - TICK_NS)
        self._alive, self._cpu = now, cpu
        if now - self._second[0] >= _SECOND:
            self._peak(now, cpu)
        self._arm()

    def _peak(self, now: int, cpu: int) -> None:
        began, before = self._second
        if now - began >= _SECOND // 2:
            self.cpu_peak = max(self.cpu_peak, (cpu - before) / (now - began))
        self._second = (now, cpu)

    def _collected(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._gc_from = time.monotonic_ns()
        else:
            self.gc_ns += time.monotonic_ns() - self._gc_from


def most_memory() -> int:
    """Bytes resident at most since the process began. Linux's own count: getrusage's begins with the parent's."""
    with suppress(OSError, LookupError, ValueError):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    try:
        import resource
    except ImportError:  # Windows: not known
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def judge(outcomes: Outcomes, latencies: Latencies, client: ClientHealth, *, closed: bool) -> Validity:
    """The validity of a run, with reasons and warnings."""
    verdict = Validity()
    if client.capped:
        share = client.capped / max(1, outcomes.scheduled)
        verdict.verdict = "capped"
        verdict.reasons.append(
            f"the cap of {client.cap} requests in flight held back {client.capped} requests ({share:.1%} of the "
            "schedule): the offered load was below the planned load"
        )
    for reason in (
        *([] if closed or client.capped else _sent_late(latencies, client)),
        *_stamped_late(latencies, client),
        *_excluded(outcomes),
        *_limited(outcomes),
    ):
        verdict.verdict = "invalid"
        verdict.reasons.append(reason)
    verdict.warnings.extend(_warnings(outcomes, client, closed))
    return verdict


def _sent_late(latencies: Latencies, client: ClientHealth) -> list[str]:
    lag, limit = latencies.send_lag.p(99) or 0.0, _limit(latencies)
    if lag <= limit:
        return []
    return [
        f"the load generator fell behind its schedule: p99 of the send lag is {lag * 1e3:.1f} ms, over "
        f"{limit * 1e3:.1f} ms; cause: {_cause(client)}"
    ]


def _stamped_late(latencies: Latencies, client: ClientHealth) -> list[str]:
    """What comes in is stamped by the same loop: its lag is in every latency."""
    lag, limit = client.loop_lag.p(99) or 0.0, _limit(latencies)
    if lag <= limit:
        return []
    return [
        f"responses were stamped late: p99 of this client's loop lag is {lag * 1e3:.1f} ms, over {limit * 1e3:.1f} ms; "
        f"cause: {_cause(client)}"
    ]


def _limit(latencies: Latencies) -> float:
    """Seconds that the client may lag at p99: 10 ms, or a share of what was measured where that is more."""
    return max(LAG_LIMIT_NS / 1e9, LAG_SHARE * (latencies.ttft.p(99) or latencies.e2e.p(99) or 0.0))


def _cause(client: ClientHealth) -> str:
    own_cpu = client.pauses and 2 * client.paused_cpu >= client.paused
    if client.cpu_peak >= 0.9 or own_cpu:
        cores = platform.cpus()
        more = "--processes" if cores > client.processes else "a client with more cores"
        return f"the CPU of this client ({client.cpu_peak:.0%} of a core in its busiest second); use {more}"
    return (
        f"this client did not run for {client.paused:.2f} s in {len(client.pauses)} pauses: it was stopped, or other "
        "processes used its core"
    )


def _excluded(outcomes: Outcomes) -> list[str]:
    share = outcomes.excluded / max(1, outcomes.scheduled)
    if share <= EXCLUDED_LIMIT:
        return []
    counts = {name: count for name in EXCLUDED if (count := outcomes.by_reason[name])}
    kinds = [f"{count} {'' if name == UNMEASURED else 'answered '}{name}" for name, count in counts.items()]
    why = "the requests are not valid for this server"
    if 2 * counts.get(UNMEASURED, 0) > outcomes.excluded:
        why = "what cannot be read shows nothing about the SLO"
    return [f"{share:.1%} of the schedule is excluded ({', '.join(kinds)}), over {EXCLUDED_LIMIT:.0%}: {why}"]


def _limited(outcomes: Outcomes) -> list[str]:
    count = outcomes.faults.get("client_limit", 0)
    return [f"{count} requests got no socket on this client: out of descriptors (ulimit -n) or ports"] if count else []


def _warnings(outcomes: Outcomes, client: ClientHealth, closed: bool) -> list[str]:
    found = []
    if client.pauses:
        longest = max(length for _, length in client.pauses) / 1e6
        found.append(
            f"this client paused {len(client.pauses)} times, up to {longest:.0f} ms: {client.marked_gaps} gaps of "
            f"{client.marked_requests} requests overlap these pauses and are marked"
        )
    if client.cpu_peak >= 0.9:
        found.append(f"this client used {client.cpu_peak:.0%} of a core in its busiest second")
    if closed:
        found.append(
            "closed loop: a stall also delays the next requests, so latencies are naive (coordinated omission)"
        )
    if outcomes.scheduled and not outcomes.good:
        found.append("no request was good")
    return found
