"""A run second by second: one row a second, from its start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tailwatch.loadtest.proportions import RunWindow


@dataclass(slots=True)
class Series:
    """Numbers of each second of the run, lists of equal length.

    scheduled, good, miss, ttft_max_ns: of the requests *planned* for it. sent, finished, tokens, largest_gap_ns: of
    what happened in it (a gap where it began). in_flight: most at once, as far as sends and ends show.
    client_paused_ns: how long this client was away.
    """

    scheduled: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    good: list[int] = field(default_factory=list)
    miss: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    largest_gap_ns: list[int] = field(default_factory=list)
    ttft_max_ns: list[int] = field(default_factory=list)
    client_paused_ns: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.scheduled)

    def reach(self, second: int) -> None:
        """Grow to hold that second."""
        for name in SERIES:
            column = getattr(self, name)
            column.extend([0] * (second + 1 - len(column)))

    @property
    def windows(self) -> tuple[RunWindow, ...]:
        """The seconds for which something was planned."""
        rows = zip(self.scheduled, self.good, self.miss, self.finished, strict=True)
        return tuple(RunWindow(n, good + miss, good, done) for n, good, miss, done in rows if n)

    def later(self, seconds: int) -> Series:
        """The same from a start so many seconds earlier."""
        return Series(**{name: [0] * seconds + list(getattr(self, name)) for name in SERIES})

    def plus(self, other: Series) -> Series:
        """Second by second; both begin together. Sums, but the largest of what is a maximum."""
        both, length = Series(), max(len(self), len(other))
        for name in SERIES:
            one, two = (list(getattr(part, name)) + [0] * (length - len(part)) for part in (self, other))
            combine: Callable[[int, int], int] = max if name.endswith("_ns") else int.__add__
            setattr(both, name, [combine(a, b) for a, b in zip(one, two, strict=True)])
        return both


SERIES = tuple(Series.__dataclass_fields__)
