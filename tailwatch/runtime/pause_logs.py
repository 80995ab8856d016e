"""Log lines about pauses and slow gaps, written by the daemon a second later, never by a hook.

A pause is logged once the streams it stopped have had time to send their next token, so that the line can state
how many waits it hit and for how long: after a second when nothing is in flight, else after ten, and then the line
has "so far". Of many at once the longest few get a line of their own, the rest one together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tailwatch import _hot
from tailwatch.diagnose.text import CAUSE_NAMES, format_slow
from tailwatch.snapshots import Pause, Records, SlowGap

SETTLE_NS = 1_000_000_000
SETTLE_IN_FLIGHT_NS = 10_000_000_000
MOST_LINES = 12
_LITTLE_CPU = 0.9
_MOST_HELD = 512  # half the ring: held back longer, pauses would be overwritten
_DROP_SLOW_LOG, _DROP_PAUSE_LOG = 0, 1

logger = logging.getLogger("tailwatch")
_Timed = TypeVar("_Timed")


def format_pause(pause: Pause, *, so_far: bool = False) -> str:
    """One line: length, end and cause of the pause, objects collected, streams delayed.

    so_far: streams are in flight that may still be charged with it.
    """
    what = CAUSE_NAMES[pause.cause]
    found = f"{pause.collected} objects collected" + (
        f", {pause.uncollectable} uncollectable" if pause.uncollectable else ""
    )
    hit = "delayed no stream"
    if pause.streams:
        plural = "stream" if pause.streams == 1 else "streams"
        hit = f"delayed {pause.streams} {plural}; overlap at most {pause.overlap * 1e3:.1f} ms"
        hit += f", estimated delay {pause.delay * 1e3:.1f} ms"
    hit += " (so far)" if so_far else ""
    when = pause.when.isoformat(timespec="milliseconds")
    cpu = ""
    if 0 < pause.cpu < _LITTLE_CPU * pause.seconds:  # a process without a CPU, or a finalizer that waits
        cpu = f" ({pause.cpu * 1e3:.1f} ms of CPU time)"
    return f"gc pause {pause.seconds * 1e3:.1f} ms{cpu} until {when}: {what}, {found}; {hit}"


@dataclass(slots=True)
class PauseLog:
    """Logs pauses of at least ``warn`` seconds as warnings (0: none), or every recorded one (``every``)."""

    records: Records
    core: _hot.Core
    warn: float
    every: bool
    cursor: int = 0
    short: int = 0

    def drain(self, *, last: bool = False) -> None:
        """Log what has settled since the last call; ``last``: whether it has settled or not."""
        if not (self.warn or self.every):
            return
        in_flight = self.core.in_flight > 0
        before = _hot.now() - (0 if last else self._settle_ns(in_flight))
        pauses, self.cursor, lost = self.records.pauses(self.cursor, before_ns=before)
        _count(self.core.count_drop, _DROP_PAUSE_LOG, lost)
        self._log([pause for pause in pauses if self.every or pause.seconds >= self.warn], in_flight)
        if self.every:
            self._log_short()

    def _settle_ns(self, in_flight: bool) -> int:
        held = self.records.pause_count - self.cursor
        return SETTLE_IN_FLIGHT_NS if in_flight and held < _MOST_HELD else SETTLE_NS

    def _log(self, pauses: Sequence[Pause], so_far: bool) -> None:
        shown, rest = _longest(pauses, lambda pause: pause.seconds)
        for pause in shown:
            logger.log(self._level(pause.seconds), "%s", format_pause(pause, so_far=so_far))
            time.sleep(0)
        if rest:
            logger.log(self._level(rest[0]), "gc pauses: %d more, the longest %.1f ms", len(rest), rest[0] * 1e3)

    def _level(self, seconds: float) -> int:
        return logging.WARNING if self.warn and seconds >= self.warn else logging.INFO

    def _log_short(self) -> None:
        count, seconds = self.records.short_pauses()
        if count > self.short:
            logger.info(
                "gc pauses shorter than 0.05 ms: %d more, %.1f ms in total so far",
                count - self.short,
                seconds * 1e3,
            )
        self.short = count


@dataclass(slots=True)
class SlowLog:
    """Logs each gap of at least ``slow`` seconds with its split (0: none)."""

    records: Records
    core: _hot.Core
    slow: float
    cursor: int = 0

    def drain(self) -> None:
        """Log what came since the last call."""
        if not self.slow:
            return
        gaps, self.cursor, lost = self.records.slow_gaps(self.cursor)
        _count(self.core.count_drop, _DROP_SLOW_LOG, lost)
        self._log([gap for gap in gaps if gap.gap >= self.slow])

    def _log(self, gaps: Sequence[SlowGap]) -> None:
        shown, rest = _longest(gaps, lambda gap: gap.gap)
        for gap in shown:
            logger.warning("slow %s", format_slow(gap))
            time.sleep(0)
        if rest:
            logger.warning("slow gaps: %d more, the longest %.1f ms", len(rest), rest[0] * 1e3)


def _longest(items: Sequence[_Timed], seconds: Callable[[_Timed], float]) -> tuple[list[_Timed], list[float]]:
    """The longest few in the order they came, and the lengths of the others, the longest first."""
    order = sorted(range(len(items)), key=lambda i: -seconds(items[i]))
    return [items[i] for i in sorted(order[:MOST_LINES])], [seconds(items[i]) for i in order[MOST_LINES:]]


def _count(count: Callable[[int], None], reason: int, times: int) -> None:
    for _ in range(min(times, 100_000)):
        count(reason)
