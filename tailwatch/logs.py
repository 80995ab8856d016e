"""Log lines about pauses and slow gaps, written by the daemon a second later, never by a hook.

A pause is logged once the streams it stopped have had time to send their next token, so that the line can say
how many it hit and for how long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tailwatch import _hot
from tailwatch.report import CAUSE_NAMES, format_slow
from tailwatch.snapshots import Pause, Records

SETTLE_NS = 1_000_000_000
_DROP_SLOW_LOG, _DROP_PAUSE_LOG = 0, 1

logger = logging.getLogger("tailwatch")


def format_pause(pause: Pause) -> str:
    """One line: what paused the process, for how long, what it found, and whom it hit."""
    what = CAUSE_NAMES[pause.cause]
    found = f"{pause.collected} objects collected" + (
        f", {pause.uncollectable} uncollectable" if pause.uncollectable else ""
    )
    hit = "hit no stream"
    if pause.streams:
        plural = "stream" if pause.streams == 1 else "streams"
        hit = f"hit {pause.streams} {plural} for up to {pause.overlap * 1e3:.1f} ms together"
        hit += f", made them about {pause.late * 1e3:.1f} ms late"
    return f"gc pause {pause.seconds * 1e3:.1f} ms: {what}, {found}; {hit}"


@dataclass(slots=True)
class PauseLog:
    """Logs pauses of at least ``warn`` seconds as warnings (0: none), or every recorded one (``every``)."""

    records: Records
    core: _hot.Core
    warn: float
    every: bool
    cursor: int = 0
    short: int = 0

    def drain(self) -> None:
        """Log what has settled since the last call."""
        if not (self.warn or self.every):
            return
        pauses, self.cursor, lost = self.records.pauses(self.cursor, before_ns=_hot.now() - SETTLE_NS)
        _count(self.core.count_drop, _DROP_PAUSE_LOG, lost)
        for pause in pauses:
            if self.warn and pause.seconds >= self.warn:
                logger.warning("%s", format_pause(pause))
            elif self.every:
                logger.info("%s", format_pause(pause))
        if self.every:
            self._log_short()

    def _log_short(self) -> None:
        count, seconds = self.records.short_pauses()
        if count > self.short:
            logger.info(
                "gc pauses shorter than 0.05 ms: %d more; all of them so far %.1f ms", count - self.short, seconds * 1e3
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
        for gap in gaps:
            if gap.gap >= self.slow:
                logger.warning("slow %s", format_slow(gap))


def _count(count: Callable[[int], None], reason: int, times: int) -> None:
    for _ in range(min(times, 100_000)):
        count(reason)
