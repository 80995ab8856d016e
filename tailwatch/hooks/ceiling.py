"""Keeps a process below its ceiling: first slices at every moment, then whole passes, said once an episode.

The daemon looks, four times a second; the collections are made by whoever has the next moment. Only where nobody has
one for long, the daemon makes the pass itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from tailwatch.ceiling import Ceiling

RSS, OBJECTS = range(2)  # as csrc/include/tailwatch/policy.h numbers them
NOTHING, SLICES, PASS = range(3)  # as csrc/python/hot_sweep.h does
SLICES_SECONDS = 2.0  # in which slices must have gone through the old heap
MOMENT_SECONDS = 1.0  # in which somebody must have had a moment for a pass
_HYSTERESIS = 0.01
_FIRST_REST_SECONDS, _LONGEST_REST_SECONDS = 1.0, 60.0
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def resident() -> int:
    """Resident memory of this process, bytes; 0: not known here."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(128).split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


@dataclass(slots=True)
class CeilingWatch:
    """Of one process.

    Args:
        objects: gives the tracked objects that are not frozen, an estimate; None: not known.
        force: takes what moments are used for from now on (NOTHING, SLICES, PASS); returns whether that was possible.
        pending: gives what force() was told and is not done yet.
        settled: whether slices have nothing left to look at.
        whole: makes a whole pass, on this thread.
        met: told which bound was met, once an episode, and a sentence.
        say: told a sentence about what cannot be done.
    """

    objects: Callable[[], int | None]
    force: Callable[[int], bool]
    pending: Callable[[], int]
    settled: Callable[[], bool]
    whole: Callable[[], object]
    met: Callable[[int, str], object]
    say: Callable[[str], object]
    ceiling: Ceiling = field(default_factory=Ceiling)
    resident: Callable[[], int] = resident
    base: int = 0
    episodes: int = 0
    _stage: int = NOTHING
    _inside: bool = False
    _since: float = 0.0
    _rest: float = _FIRST_REST_SECONDS
    _said: bool = False

    def frozen(self) -> None:
        """The heap was frozen now: what memory is counted from."""
        if self.ceiling.above_freeze:
            self.base = self.resident()

    def look(self, now: float) -> None:
        """Called by the daemon, with monotonic seconds, at most ten times a second."""
        if not self.ceiling:
            return
        over = self._over(self._inside)
        if over is None:
            if self._inside:
                self.calm()
        elif not self._inside:
            self._begin(now, *over)
        else:
            self._go_on(now, over[1])

    def calm(self) -> None:
        """The episode, if there is one, is over."""
        self.force(NOTHING)
        self._stage, self._inside, self._rest = NOTHING, False, _FIRST_REST_SECONDS

    def _over(self, inside: bool) -> tuple[int, str] | None:
        """Which bound is exceeded, and how. An episode ends a little below it."""
        share = 1 - _HYSTERESIS if inside else 1.0
        objects = self.objects() if self.ceiling.objects else None
        if objects is not None and objects > self.ceiling.objects * share:
            return OBJECTS, f"{objects} objects are not frozen"
        rss = self.resident() - self.base if self.ceiling.rss else 0
        if rss > self.ceiling.rss * share and self.ceiling.rss:
            more = " more than after the freeze" if self.ceiling.above_freeze else ""
            return RSS, f"{rss / 1e6:.0f} MB are resident{more}"
        return None

    def _begin(self, now: float, which: int, how: str) -> None:
        self._inside = True
        self.episodes += 1
        self.met(which, f"gc_ceiling={str(self.ceiling)!r} is met: {how}: collections are made at every moment now")
        self._try(now, SLICES)

    def _try(self, now: float, stage: int) -> None:
        self._since = now
        self._stage = stage if self.force(stage) else PASS
        if self._stage != stage:
            self.force(PASS)

    def _go_on(self, now: float, how: str) -> None:
        waited = now - self._since
        if self._stage == SLICES and (self.settled() or waited > SLICES_SECONDS):
            self._try(now, PASS)
        elif self._stage == PASS and self.pending() != PASS:
            self._give_up(now, how)
        elif self._stage == PASS and waited > MOMENT_SECONDS:
            self.force(NOTHING)
            self.whole()
            self._give_up(now, how)
        elif self._stage == NOTHING and waited > self._rest:
            self._rest = min(2 * self._rest, _LONGEST_REST_SECONDS)
            self._try(now, SLICES)

    def _give_up(self, now: float, how: str) -> None:
        """For a while, unless the next look finds that it was enough."""
        self.force(NOTHING)
        self._stage, self._since = NOTHING, now
        if self._rest > _FIRST_REST_SECONDS and not self._said:
            self._said = True
            self.say(
                f"gc_ceiling={str(self.ceiling)!r} cannot be kept: after whole passes {how}: they live, or are memory "
                "that no collection gives back"
            )
