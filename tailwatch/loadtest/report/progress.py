"""What a run is doing, while it does it: two lines that stay in place on a terminal, a line now and then elsewhere.

The client measures on this thread, so what is shown must cost it next to nothing: a line is put together in some 20 µs
and written by another thread, which a terminal that is stopped (Ctrl-S) may block for as long as it likes; what is not
shown meanwhile is overtaken by what comes later.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from tailwatch.loadtest.report import text

if TYPE_CHECKING:
    from types import TracebackType

EVERY = 0.5  # seconds between two looks, on a terminal
LINES = 10  # as many lines in all, elsewhere
LEAST = 5.0  # seconds between two of those
_BAR = 24
_UP = "\x1b[1A"
_CLEAR = "\r\x1b[2K"


@dataclass(slots=True)
class Now:
    """The state of a run. elapsed: seconds from its start. sent, finished, good, miss: requests so far; in_flight: now.
    rate, goodput: per second, lately. ttft_p50, ttft_p99, gap_max: seconds, so far; None: not yet known. lag: seconds
    that the last send was late. phase: what it does, where that is not measuring ("warm-up")."""

    elapsed: float
    sent: int = 0
    finished: int = 0
    good: int = 0
    miss: int = 0
    in_flight: int = 0
    rate: float = 0.0
    goodput: float | None = None
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    gap_max: float | None = None
    lag: float = 0.0
    phase: str = ""


class Progress:
    """Shows a run of `duration` seconds (None: without a known end) and `scheduled` requests. A context manager.

    Only `due` and `show` are for the measuring thread. out: by default stderr. quiet: nothing is shown.
    """

    def __init__(
        self, duration: float | None, scheduled: int | None, *, out: TextIO | None = None, quiet: bool = False
    ) -> None:
        self._duration, self._scheduled = duration, scheduled
        self._out = out if out is not None else sys.stderr
        self._quiet = quiet
        self._live = not quiet and self._out.isatty()
        self._every = EVERY if self._live else max(LEAST, (duration or LEAST * LINES) / LINES)
        self._next = 0.0 if self._live else self._every
        self._latest: str | None = None
        self._drawn = 0
        self._over = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._show, name="tailwatch progress", daemon=True)

    def __enter__(self) -> Progress:
        if not self._quiet:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Takes the live lines away: the table comes. A terminal that is stopped is not waited for."""
        with self._wake:
            self._over = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def due(self, elapsed: float) -> bool:
        """Whether it is time for a `show`: ask this before putting a `Now` together."""
        return not self._quiet and elapsed >= self._next

    def show(self, now: Now) -> None:
        """Shows it, soon. Never blocks."""
        if self._quiet:
            return
        self._next = now.elapsed + self._every
        shown = "\n".join(lines(now, self._duration, self._scheduled)) if self._live else line(now, self._scheduled)
        if self._wake.acquire(blocking=False):
            self._latest = shown
            self._wake.notify()
            self._wake.release()

    def _show(self) -> None:
        """Thread: writes the latest text."""
        while True:
            with self._wake:
                while self._latest is None and not self._over:
                    self._wake.wait()
                latest, self._latest = self._latest, None
            try:
                self._draw(latest)
            except (OSError, ValueError):
                return  # its reader is gone: the run goes on
            if self._over:
                return

    def _draw(self, latest: str | None) -> None:
        if not self._live:
            if latest is not None:
                self._out.write(latest + "\n")
                self._out.flush()
            return
        width = shutil.get_terminal_size().columns
        shown = [] if latest is None or self._over else [one[: width - 1] for one in latest.split("\n")]
        self._out.write((_CLEAR + _UP) * self._drawn + _CLEAR + "".join(one + "\n" for one in shown))
        self._out.flush()
        self._drawn = len(shown)


def lines(now: Now, duration: float | None, scheduled: int | None) -> list[str]:
    """Two, for a terminal."""
    share = min(1.0, max(0.0, now.elapsed / duration)) if duration else 0.0
    bar = "#" * round(share * _BAR)
    of = f" of {text.duration(duration)} [{bar:<{_BAR}}]" if duration else ""
    when = f"{_phase(now)}{now.elapsed:5.1f} s{of}"
    if duration and now.elapsed > duration and not now.phase:
        when = f"{now.elapsed:5.1f} s, all sent, the last ones finish"
    return [f"{when}  sent {_sent(now, scheduled)}  {text.rate(now.rate)}  in flight {now.in_flight}", _numbers(now)]


def line(now: Now, scheduled: int | None) -> str:
    """One, for a log."""
    sent = f"sent {_sent(now, scheduled)}, {text.rate(now.rate)}, in flight {now.in_flight}"
    return f"{_phase(now)}{now.elapsed:.0f} s: {sent}; {_numbers(now)}"


def _phase(now: Now) -> str:
    return f"{now.phase}: " if now.phase else ""


def _sent(now: Now, scheduled: int | None) -> str:
    return text.count(now.sent) + (f" of {text.count(scheduled)}" if scheduled else "")


def _numbers(now: Now) -> str:
    judged = now.good + now.miss
    parts = [f"TTFT p50 {text.duration(now.ttft_p50)} p99 {text.duration(now.ttft_p99)}"]
    parts.append(f"largest gap {text.duration(now.gap_max)}")
    if judged:
        rate = f", {text.rate(now.goodput)}" if now.goodput is not None else ""
        parts.append(f"good {text.share(now.good / judged)}{rate}")
    if now.lag > 0.01:
        parts.append(f"sending {text.duration(now.lag)} late")
    return "  ".join(parts)


class Steps:
    """What a search or an experiment of many runs is doing: a line for each step, with the time it took so far."""

    def __init__(self, *, out: TextIO | None = None, quiet: bool = False) -> None:
        self._out = out if out is not None else sys.stderr
        self._quiet = quiet
        self._start = time.monotonic()

    def show(self, sentence: str) -> None:
        """One line; a reader that is gone stops nothing."""
        if self._quiet:
            return
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        try:
            self._out.write(f"{minutes:2d}:{seconds:02d}  {sentence}\n")
            self._out.flush()
        except (OSError, ValueError):
            self._quiet = True
