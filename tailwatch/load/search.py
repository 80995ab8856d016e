"""Finds the largest rate at which a server keeps its promise: bracket, bisect, and say how sure that is.

1. Begin at the closed-loop ceiling, which a single bad second cannot move far, and look downwards (upwards where even
   the ceiling holds). Starting from one request per second and doubling is a dozen chances for a glitch to end it.
2. A probe is sized by requests, not by seconds: enough that its interval can show the attainment, then doubled until
   the interval is on one side of it.
3. A rate that fails is tried again: two of three decide. A failure that was outvoted and stands apart from the other
   two is set aside, and shown.
4. Bisect to the resolution. All probes near the knee together then give it and its interval (shares.crossing); more
   are made until that is as narrow as was asked, or the search is spent.

Nothing here knows sockets or clocks: what measures is a callable, so the same search runs in virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tailwatch.errors import OptionError
from tailwatch.load.knee import FAILS, HOLDS, INVALID, UNDECIDED, Knee, Row, Tried, share_of, verdict_of
from tailwatch.load.probe import Probe, ProbeFunction, pooled
from tailwatch.load.shares import Crossing, Point, crossing, design_effect, fewest

OBJECTIVES = ("goodput", "throughput")
KEEPS_UP = 0.99  # share of the offered rate that must be completed, for the objective throughput
_DOWN = (0.9, 0.8, 0.6, 0.4, 0.2, 0.1, 0.05, 0.02, 0.01)
_UP = (1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
_NEAR = 6.0  # a rate helps the fit where its misses are within this factor of the target's


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How narrow, and how much at most.

    resolution: half the width of the interval asked for, as a share of the knee. first: requests of the first probe
    of a rate (0: twice what could show the attainment). most: requests after which a rate is judged as it stands
    (0: four times first). seconds: the shortest probe. probes: all probes together. spent: asked before each probe;
    True ends the search with what it has (a deadline, an interrupt).
    """

    resolution: float = 0.02
    first: int = 0
    most: int = 0
    seconds: float = 10.0
    probes: int = 60
    spent: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        if not 0.001 <= self.resolution <= 0.5:
            raise OptionError.of("resolution", self.resolution, "expected a share of 0.001 to 0.5, like 0.02")
        if self.probes < 1:
            raise OptionError.of("probes", self.probes, "expected at least 1")


def find(
    probe: ProbeFunction,
    ceiling: float,
    attainment: float = 0.99,
    *,
    objective: str = "goodput",
    limits: Limits | None = None,
) -> Knee:
    """The knee: the largest rate at which the attainment holds (goodput), or which is kept up with (throughput).

    ceiling: requests per second of a closed loop (saturate()). attainment: in (0, 1]; for throughput the share of
    the offered rate that must be completed. Never raises for what a server does: a search that cannot end well
    returns an unresolved knee that says why. At 100 % a miss refutes and nothing proves: the knee is unresolved.
    """
    if objective not in OBJECTIVES:
        raise OptionError.of("find", objective, "expected 'goodput' or 'throughput'", choices=OBJECTIVES)
    if not 0 < attainment <= 1:
        raise OptionError.of("attainment", attainment, "expected a share above 0 and up to 1")
    if not (math.isfinite(ceiling) and ceiling > 0):
        raise OptionError.of("ceiling", ceiling, "expected requests per second above 0")
    return _Search(probe, ceiling, attainment, objective, limits or Limits()).run()


class _Spent(Exception):
    """No further probe may be made."""


class _Search:
    def __init__(self, probe: ProbeFunction, ceiling: float, attainment: float, objective: str, limits: Limits) -> None:
        self.probe, self.ceiling, self.target, self.objective, self.limits = (
            probe, ceiling, attainment, objective, limits,
        )  # fmt: skip
        self.first = limits.first or 2 * fewest(min(attainment, 0.9999))
        self.most = limits.most or 4 * self.first
        self.tried: list[Tried] = []
        self.low: float | None = None
        self.high: float | None = None
        self.over = ""

    def run(self) -> Knee:
        try:
            self._bracket()
            self._bisect()
            self._narrow()
        except _Spent as spent:
            self.over = str(spent)
        return self._knee()

    # ---- the walk ----

    def _bracket(self) -> None:
        """The first two rates of which one holds and the other does not."""
        if self._holds(self.ceiling):
            self._climb(_UP)
        else:
            self._descend(_DOWN)

    def _climb(self, steps: tuple[float, ...]) -> None:
        for step in steps:
            if not self._holds(self.ceiling * step):
                return

    def _descend(self, steps: tuple[float, ...]) -> None:
        for step in steps:
            if self._holds(self.ceiling * step):
                return

    def _bisect(self) -> None:
        while self.low is not None and self.high is not None and self.high / self.low > 1 + self.limits.resolution:
            middle = (self.low + self.high) / 2
            if not self.low < _tidy(middle) < self.high:
                return
            self._holds(middle)

    def _narrow(self) -> None:
        """More probes at the knee, until its interval is as narrow as was asked."""
        if self.low is None or self.high is None or self.target >= 1:
            return
        for turn in range(self.limits.probes):
            if self._enough(self._crossing()):
                return
            self._holds(self._next(turn))
        raise _Spent(f"{self.limits.probes} rounds at the knee")

    def _next(self, turn: int) -> float:
        """Where the next probe tells most: on both sides of the estimate, by turns; without one, the ends."""
        at, low, high = self._crossing(), self.low or 0.0, self.high or 0.0
        if at is None:
            return low if turn % 2 else high
        return at.rate * (1 + (1 if turn % 2 else -1) * self.limits.resolution / 2)

    # ---- one rate ----

    def _holds(self, rate: float) -> bool:
        """Whether it holds: at once where the first try does, else by two of three."""
        rate, ballots = _tidy(rate), list[tuple[bool, slice]]()
        for ballot in self._ballots(rate):
            ballots.append(ballot)
            votes = [vote for vote, _ in ballots]
            if votes == [True] or votes.count(True) == 2 or votes.count(False) == 2:
                break
        held = bool(ballots) and ballots[-1][0]
        self._set_aside(ballots if held else [])
        if held:
            self.low = rate if self.low is None or rate > self.low else self.low
            self.high = None if self.high is not None and self.high <= rate else self.high
        else:
            self.high = rate if self.high is None or rate < self.high else self.high
            self.low = None if self.low is not None and self.low >= rate else self.low
        return held

    def _ballots(self, rate: float) -> Iterator[tuple[bool, slice]]:
        """Whether the rate held, and which probes say so; none where the client could not offer it twice."""
        for _ in range(3):
            begin = len(self.tried)
            whole = self._measure(rate)
            if whole is None:
                return
            share, low, high = share_of(whole, self.objective)
            verdict = verdict_of(low, high, self.target)
            yield verdict == HOLDS or (verdict == UNDECIDED and share >= self.target), slice(begin, len(self.tried))

    def _measure(self, rate: float) -> Probe | None:
        """Probes of a rate, doubled in all until the interval decides or it is enough."""
        several: list[Probe] = []
        size = max(self.first, math.ceil(rate * self.limits.seconds))
        most = max(self.most, size)
        while True:
            one = self._ask(rate, size)
            if one is None:
                return pooled(several) if several else None
            several.append(one)
            whole = pooled(several)
            _, low, high = share_of(whole, self.objective)
            if whole.scheduled >= most or verdict_of(low, high, self.target) != UNDECIDED:
                return whole
            size = whole.scheduled

    def _ask(self, rate: float, requests: int) -> Probe | None:
        """A valid probe, at the second try if need be."""
        for _ in range(2):
            if len(self.tried) >= self.limits.probes:
                raise _Spent(f"{self.limits.probes} probes were made")
            if self.limits.spent():
                raise _Spent("its time is over")
            one = self.probe(rate, requests)
            one = one.settled() if self.objective == "throughput" else one
            self.tried.append(Tried(one))
            if not one.invalid and one.judged:
                return one
        return None

    def _set_aside(self, ballots: list[tuple[bool, slice]]) -> None:
        """An outvoted failure that stands apart from the others was a glitch; any other counts like the rest."""
        failed = [part for vote, part in ballots if not vote]
        if len(ballots) != 3 or not failed:
            return
        others = pooled(one.probe for vote, part in ballots if vote for one in self._valid(part))
        alone = pooled(one.probe for one in self._valid(failed[0]))
        if share_of(alone, self.objective)[2] < share_of(others, self.objective)[1]:
            for index in range(*failed[0].indices(len(self.tried))):
                self.tried[index] = Tried(self.tried[index].probe, set_aside=True)

    def _valid(self, part: slice) -> list[Tried]:
        return [one for one in self.tried[part] if not one.probe.invalid and one.probe.judged]

    # ---- what it comes to ----

    def _crossing(self) -> Crossing | None:
        """The knee of all probes near it; for the objective throughput there is no law to fit."""
        missed = 1 - self.target
        if self.objective != "goodput" or missed <= 0:
            return None
        points = [_point(row) for row in self._near(missed)]
        return crossing(points, missed)

    def _near(self, missed: float) -> list[Probe]:
        rates = {one.probe.rate for one in self.tried}
        wholes = [pooled(one.probe for one in kept) for rate in rates if (kept := self._kept(rate))]
        return [one for one in wholes if missed / _NEAR <= 1 - one.good / one.judged <= min(0.9, missed * _NEAR)]

    def _kept(self, rate: float) -> list[Tried]:
        return [one for one in self._valid(slice(None)) if one.probe.rate == rate and not one.set_aside]

    def _enough(self, at: Crossing | None) -> bool:
        """The fit's interval is narrow and agrees with what was decided; or both ends are certain and close."""
        rows = self._draft(None).rows()
        low, high = _certain(rows)
        if at is not None:
            agrees = (low is None or low <= at.high) and (high is None or high >= at.low)
            return agrees and at.high - at.low <= 2 * self.limits.resolution * at.rate
        return low is not None and high is not None and high <= low * (1 + 1.5 * self.limits.resolution)

    def _knee(self) -> Knee:
        at = self._crossing()
        draft = self._draft(at)
        if not self.over and self._found() and self._enough(at):
            return draft
        return self._draft(at, self._why(draft))

    def _found(self) -> bool:
        return self.low is not None and self.high is not None and self.target < 1

    def _draft(self, at: Crossing | None, reason: str = "") -> Knee:
        ends = (at.rate, at.low, at.high) if at is not None else (self.low, self.low, self.high)
        return Knee(
            self.objective, self.target, *ends, "fit" if at is not None else "bracket", not reason, reason,
            self.ceiling, tuple(self.tried),
        )  # fmt: skip

    def _why(self, draft: Knee) -> str:
        """In words, what keeps the knee from being resolved."""
        spoilt = [one.probe for one in self.tried if one.probe.invalid]
        if self.high is not None and any(row.rate == self.high and row.verdict == INVALID for row in draft.rows()):
            said = next(one.invalid for one in spoilt if one.rate == self.high)
            return f"the client could not offer {self.high:.4g}/s: {said}"
        if self.over:
            return f"{self.over} before the interval was narrow enough"
        if self.low is None:
            return f"it does not even hold at {self.high:.4g}/s" if self.high is not None else "nothing was measured"
        if self.high is None:
            return f"it still holds at {self.low:.4g}/s, where the search ends"
        if self.target >= 1:
            return "100% can be refuted by one miss and is proved by no number of requests"
        return "its interval stayed too wide"


def _point(whole: Probe) -> Point:
    effect = design_effect(whole.windows)
    return Point(whole.rate, (whole.judged - whole.good) / effect, whole.judged / effect)


def _certain(rows: list[Row]) -> tuple[float | None, float | None]:
    """The largest rate whose interval lies above the target, and the smallest above it whose lies below."""
    low = max((row.rate for row in rows if row.verdict == HOLDS), default=None)
    high = min((row.rate for row in rows if row.verdict == FAILS and (low is None or row.rate > low)), default=None)
    return low, high


def _tidy(rate: float) -> float:
    """Four digits: a rate that can be typed again."""
    return float(f"{rate:.4g}")


def gallop(holds: Callable[[float], bool], start: float = 1.0, factor: float = 2.0, most: float = 1e9) -> float:
    """The textbook's first half: multiply until a rate does not hold, and return that (most: give up there)."""
    rate = start
    while rate < most and holds(rate):
        rate *= factor
    return rate


def bisect(holds: Callable[[float], bool], low: float, high: float, width: float) -> float:
    """Its second half: the largest rate seen to hold, once low and high are less than width apart."""
    while high - low >= width:
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Where a closed loop stops gaining. rate: completions per second, the best seen. workers: the fewest that come
    within 3 % of it. tried: (workers, rate) in order."""

    rate: float
    workers: int
    tried: tuple[tuple[int, float], ...]


def saturate(measure: Callable[[int], float], *, first: int = 1, most: int = 1024, gain: float = 0.03) -> Ceiling:
    """The closed-loop ceiling: workers are doubled until twice in a row they bring less than gain (a share).

    measure(workers): completions per second with so many requests always in flight.
    """
    tried: list[tuple[int, float]] = []
    best, workers, flat = 0.0, max(1, first), 0
    while workers <= most and flat < 2:
        rate = measure(workers)
        tried.append((workers, rate))
        flat = flat + 1 if rate <= best * (1 + gain) else 0
        best, workers = max(best, rate), workers * 2
    enough = min((count for count, rate in tried if rate * (1 + gain) >= best), default=max(1, first))
    return Ceiling(best, enough, tuple(tried))
