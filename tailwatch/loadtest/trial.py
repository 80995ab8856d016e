"""One try at one rate: what a search asks for, and what it is told. Counts only; no times, no sockets.

A search takes any callable ``probe(rate, requests) -> Probe``: the engine's, or a simulation's in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Window:
    """One of the equal, consecutive stretches of time that a probe is cut into.

    scheduled: requests planned to start in it. judged: those of them that count, good or a miss. good: those that
    kept every bound. completed: answers that ended in it without error, whenever they were planned.
    """

    scheduled: int
    judged: int
    good: int
    completed: int


@dataclass(frozen=True, slots=True)
class Probe:
    """An open-loop run at one rate.

    rate: requests per second asked for. seconds: the length of its schedule. scheduled: requests in it. judged:
    scheduled less what the outcome table excludes. good: those that kept every bound, timed from their planned start.
    completed: answers that ended without error within the schedule's own time. kept: per bound, how many of the
    judged kept that one; failed: how many of them were not answered whole, and kept none.
    windows: in order, of equal length; their sums may be below the totals where warm-up was cut off. invalid: why the
    run does not count (the client's own limit), "" where it does. details: anything the caller wants to find again
    (percentiles, a file), kept as it is.
    """

    rate: float
    seconds: float
    scheduled: int
    judged: int
    good: int
    completed: int
    kept: Mapping[str, int] = field(default_factory=dict)
    windows: tuple[Window, ...] = ()
    invalid: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    failed: int = 0

    @property
    def attainment(self) -> float | None:
        """Good of judged; None where nothing was judged."""
        return self.good / self.judged if self.judged else None

    @property
    def goodput(self) -> float:
        """Good requests per second of the schedule."""
        return self.good / self.seconds if self.seconds > 0 else 0.0

    @property
    def throughput(self) -> float:
        """Completions per second of the schedule."""
        return self.completed / self.seconds if self.seconds > 0 else 0.0

    def settled(self) -> Probe:
        """The same without its first half of windows, in which the requests in flight may only have filled up."""
        return replace(self, windows=self.windows[len(self.windows) // 2 :])

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; windows as lists of four."""
        plain = asdict(self)
        plain["windows"] = [[w.scheduled, w.judged, w.good, w.completed] for w in self.windows]
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Probe:
        """The inverse of as_dict."""
        return cls(**{**data, "windows": tuple(Window(*row) for row in data.get("windows", ()))})


ProbeFunction = Callable[[float, int], Probe]


def pooled(probes: Iterable[Probe]) -> Probe:
    """Several valid probes of one rate as one: counts and times added, windows one after another."""
    several = list(probes)
    names = sorted({name for probe in several for name in probe.kept})
    return Probe(
        rate=several[0].rate,
        seconds=sum(probe.seconds for probe in several),
        scheduled=sum(probe.scheduled for probe in several),
        judged=sum(probe.judged for probe in several),
        good=sum(probe.good for probe in several),
        completed=sum(probe.completed for probe in several),
        kept={name: sum(probe.kept.get(name, 0) for probe in several) for name in names},
        windows=tuple(window for probe in several for window in probe.windows),
        failed=sum(probe.failed for probe in several),
    )
