"""The option ``gc_memory_limit``: its grammar, and the collections that keep a process below the limit.

rss=+256MB       resident memory, relative to its size right after the freeze
rss=8GiB         resident memory, absolute
objects=2000000  tracked objects that are not frozen

Above the limit: first slices in every idle slot, then full collections; logged once per episode. The daemon checks the
limit four times a second; the thread with the next idle slot collects. Without an idle slot for long, the daemon runs
the full collection itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

from tailwatch.errors import OptionError, nearest

LEAST_RSS, MOST_RSS = 1_000_000, 2**50
LEAST_OBJECTS, MOST_OBJECTS = 1000, 10**12
_NAMES = ("rss", "objects")
_UNIT = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_RSS = re.compile(r"(\+?)\s*([0-9]{1,15}(?:\.[0-9]{1,3})?)\s*([kmg]i?b|b)", re.IGNORECASE)
_OBJECTS = re.compile(r"[0-9][0-9_]{0,20}")
_GRAMMAR = "expected 'rss=+256MB', 'objects=2000000', or both with a comma"
RSS, OBJECTS = range(2)  # as csrc/include/tailwatch/record/gc_policy_counters.h numbers them
NOTHING, SLICES, PASS = range(3)  # as csrc/python/gc/idle_gc.h does
SLICES_SECONDS = 2.0  # in which slices must have gone through the old heap
IDLE_SLOT_SECONDS = 1.0  # in which an idle slot for a full collection must have come
_HYSTERESIS = 0.01
_FIRST_REST_SECONDS, _LONGEST_REST_SECONDS = 1.0, 60.0
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What may not be exceeded for long. 0: no such bound.

    Attributes:
        rss: resident memory, bytes.
        above_freeze: rss counts from what it was right after the freeze ("rss=+256MB").
        objects: tracked objects that are not frozen.
    """

    rss: int = 0
    above_freeze: bool = False
    objects: int = 0

    def __bool__(self) -> bool:
        return bool(self.rss or self.objects)

    def __str__(self) -> str:
        unit = next(name for name in ("GB", "GiB", "MB", "MiB", "KB", "B") if self.rss % _UNIT[name.lower()] == 0)
        rss = f"rss={'+' if self.above_freeze else ''}{self.rss // _UNIT[unit.lower()]}{unit}"
        return ",".join([*([rss] if self.rss else []), *([f"objects={self.objects}"] if self.objects else [])])

    @classmethod
    def parse(cls, text: object, *, source: str | None = None) -> MemoryLimit:
        """Of the option's text, "" for none.

        Raises:
            OptionError: anything else.
        """
        if not isinstance(text, str):
            raise OptionError.of("gc_memory_limit", text, _GRAMMAR, source=source)
        found: dict[str, str] = {}
        for part in text.split(",") if text.strip() else []:
            name, equals, value = (each.strip() for each in part.partition("="))
            name = name.lower()
            if name not in _NAMES or not equals:
                hint = nearest(name, _NAMES)
                meant = f"; did you mean {hint!r}?" if hint and hint != name else ""
                raise OptionError.of(
                    "gc_memory_limit", text, f"{_GRAMMAR}; found {part.strip()!r}{meant}", source=source
                )
            if name in found:
                raise OptionError.of(
                    "gc_memory_limit", text, f"expected each once, found {name!r} twice", source=source
                )
            found[name] = value
        rss, above_freeze = _rss(text, found["rss"], source) if "rss" in found else (0, False)
        return cls(rss, above_freeze, _objects(text, found["objects"], source) if "objects" in found else 0)


def _rss(text: str, value: str, source: str | None) -> tuple[int, bool]:
    match = _RSS.fullmatch(value)
    number = int(Decimal(match[2]) * _UNIT[match[3].lower()]) if match else 0
    if match is None or not LEAST_RSS <= number <= MOST_RSS:
        expected = (
            "expected rss= bytes with a unit, 1MB to 1PB: '+256MB' above the size after the freeze, '8GiB' in total"
        )
        raise OptionError.of("gc_memory_limit", text, f"{expected}; found {value!r}", source=source)
    return number, bool(match[1])


def _objects(text: str, value: str, source: str | None) -> int:
    number = int(value.replace("_", "")) if _OBJECTS.fullmatch(value) else 0
    if not LEAST_OBJECTS <= number <= MOST_OBJECTS:
        expected = f"expected objects= a whole number from {LEAST_OBJECTS} to {MOST_OBJECTS}"
        raise OptionError.of("gc_memory_limit", text, f"{expected}; found {value!r}", source=source)
    return number


def resident() -> int:
    """Resident memory of this process, bytes; 0: not known here."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(128).split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


@dataclass(slots=True)
class MemoryLimitWatch:
    """Of one process.

    Args:
        objects: gives the tracked objects that are not frozen, an estimate; None: not known.
        force: takes the use of idle slots from now on (NOTHING, SLICES, PASS); returns whether that was possible.
        pending: gives what force() was given and is not done yet.
        settled: whether slices have nothing left to look at.
        whole: makes a whole pass, on this thread.
        met: takes which bound was met, once an episode, and a sentence.
        warn: takes a sentence about what cannot be done.
    """

    objects: Callable[[], int | None]
    force: Callable[[int], bool]
    pending: Callable[[], int]
    settled: Callable[[], bool]
    whole: Callable[[], object]
    met: Callable[[int, str], object]
    warn: Callable[[str], object]
    memory_limit: MemoryLimit = field(default_factory=MemoryLimit)
    resident: Callable[[], int] = resident
    base: int = 0
    episodes: int = 0
    _stage: int = NOTHING
    _inside: bool = False
    _since: float = 0.0
    _rest: float = _FIRST_REST_SECONDS
    _warned: bool = False

    def frozen(self) -> None:
        """The heap was frozen now: what memory is counted from."""
        if self.memory_limit.above_freeze:
            self.base = self.resident()

    def look(self, now: float) -> None:
        """Called by the daemon, with monotonic seconds, at most ten times a second."""
        if not self.memory_limit:
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
        objects = self.objects() if self.memory_limit.objects else None
        if objects is not None and objects > self.memory_limit.objects * share:
            return OBJECTS, f"{objects} objects are not frozen"
        rss = self.resident() - self.base if self.memory_limit.rss else 0
        if rss > self.memory_limit.rss * share and self.memory_limit.rss:
            more = " above the size after the freeze" if self.memory_limit.above_freeze else ""
            return RSS, f"resident memory is {rss / 1e6:.0f} MB{more}"
        return None

    def _begin(self, now: float, which: int, how: str) -> None:
        self._inside = True
        self.episodes += 1
        self.met(which, f"gc_memory_limit={str(self.memory_limit)!r} is exceeded: {how}; collections are forced now")
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
        elif self._stage == PASS and waited > IDLE_SLOT_SECONDS:
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
        if self._rest > _FIRST_REST_SECONDS and not self._warned:
            self._warned = True
            self.warn(
                f"gc_memory_limit={str(self.memory_limit)!r} cannot be held: after full collections {how}; the "
                "objects are in use, or collections do not return the memory"
            )
