"""Finds the largest rate at which a server keeps its promise: bracket, bisect, and say how sure that is.

1. Begin at the closed-loop ceiling, which a single bad second cannot move far, and look downwards (upwards where even
   the ceiling holds). Starting from one request per second and doubling is a dozen chances for a glitch to end it.
2. A probe is sized by requests, not by seconds: enough that its interval can show the attainment, then doubled until
   the interval is on one side of it.
3. A rate that fails is tried again: two of three decide. A failure that was outvoted and stands apart from the rest
   is set aside, and shown.
4. Bisect to the resolution. All probes near the knee together then give it and its interval (shares.crossing); more
   are made until that is as narrow as was asked, or the search is spent. Where there is only a cliff, both sides of it
   are tried again until their votes are clear.

Nothing here knows sockets or clocks: what measures is a callable, so the same search runs in virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tailwatch.errors import OptionError
from tailwatch.loadtest.process import on_interrupt
from tailwatch.loadtest.proportions import Crossing, RatePoint, common_effect, crossing, fewest
from tailwatch.loadtest.saturation_point import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Knee,
    SweepRow,
    Tried,
    near,
    rows_of,
    share_of,
    verdict_of,
)
from tailwatch.loadtest.trial import Probe, ProbeFunction, pooled

OBJECTIVES = ("goodput", "throughput")
LONGEST = 300.0  # seconds of one probe
_STEP_UP, _FARTHEST_UP = 1.25, 8.0  # of the last rate, of the ceiling
_STEP_DOWN, _FARTHEST_DOWN = 0.1, 0.01  # less than the last rate, doubled each time up to a half; of the ceiling
_SURE_HOLDS, _SURE_FAILS = 2, 3  # votes that an end must lead by where no fit speaks; a glitch only ever fails
_WIDE = 2.1  # standard errors of a 95 % interval: more than 1.96, for the search stops where it looks narrow
_AROUND = 1.15  # the fit's straight line is one near the knee: rates without misses help it from so much below
_RARE = 0.125  # share of the probes at rates that hold: more failures than that are no glitches but the server's


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How narrow, and how much at most.

    resolution: half the width of the interval asked for, as a share of the knee. first: requests of the first probe
    of a rate (0: twice what could show the attainment). most: requests after which a rate is judged as it stands
    (0: four times first). seconds: the shortest probe; longest: the longest, which at low rates is too short to decide
    and then is judged as it stands. probes: all probes together. spent: asked before each probe;
    True ends the search with what it has (a deadline, an interrupt).
    """

    resolution: float = 0.02
    first: int = 0
    most: int = 0
    seconds: float = 10.0
    longest: float = LONGEST
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


@dataclass(frozen=True, slots=True)
class _Ballot:
    """What the probes of one vote say about their rate."""

    held: bool
    probes: tuple[Probe, ...]
    low: float
    high: float


class _Search:
    def __init__(self, probe: ProbeFunction, ceiling: float, attainment: float, objective: str, limits: Limits) -> None:
        self.probe, self.ceiling, self.target, self.objective, self.limits = (
            probe, ceiling, attainment, objective, limits,
        )  # fmt: skip
        self.first = limits.first or 2 * fewest(min(attainment, 0.9999))
        self.most = limits.most or 4 * self.first
        self.tried: list[Probe] = []
        self.ballots: dict[float, list[_Ballot]] = {}
        self.spoilt: dict[float, str] = {}  # rates that could not be offered, and why
        self.steps_down = 0
        self.over = ""

    def run(self) -> Knee:
        try:
            while (rate := self._next()) is not None:
                self._vote(_tidy(rate))
        except _Spent as spent:
            self.over = str(spent)
        except KeyboardInterrupt:
            self.over = "it was interrupted"
        with on_interrupt(lambda: None):  # this takes no time, and is all there is to show
            return self._knee()

    # ---- the walk: where to look next, from all votes so far ----

    def _next(self) -> float | None:
        low, high = self._ends()
        if high is None:
            return self._upwards(low)
        if low is None:
            return self._downwards(high)
        middle = (low + high) / 2
        if high / low > 1 + self.limits.resolution and low < _tidy(middle) < high:
            return middle
        return None if self.target >= 1 or high in self.spoilt else self._narrower(low, high)

    def _upwards(self, low: float | None) -> float | None:
        rate = self.ceiling if low is None else low * _STEP_UP
        return rate if rate <= self.ceiling * _FARTHEST_UP else None

    def _downwards(self, high: float) -> float | None:
        self.steps_down += 1
        rate = high * (1 - min(0.5, _STEP_DOWN * 2 ** (self.steps_down - 1)))
        return rate if rate >= self.ceiling * _FARTHEST_DOWN else None

    def _narrower(self, low: float, high: float) -> float | None:
        """At the knee: on both sides of the estimate by turns; without one, the end that is less sure."""
        if self._enough(self._crossing(), low, high):
            return None
        at = self._crossing() or self._crossing(roughly=True)
        if at is not None:
            side = 1 if len(self.tried) % 2 else -1
            return at.rate * (1 + side * self.limits.resolution / 2)
        return low if self._lead(low) - _SURE_HOLDS < -self._lead(high) - _SURE_FAILS else high

    def _ends(self) -> tuple[float | None, float | None]:
        """The smallest rate that does not hold, and the largest below it that does."""
        failing = [rate for rate in self.ballots if self._lead(rate) <= 0]
        high = min([*failing, *self.spoilt], default=None)
        held = [rate for rate in self.ballots if self._lead(rate) > 0 and (high is None or rate < high)]
        return max(held, default=None), high

    def _lead(self, rate: float) -> int:
        """Votes for, less votes against."""
        return sum(1 if ballot.held else -1 for ballot in self.ballots.get(rate, ()))

    # ---- one rate ----

    def _vote(self, rate: float) -> None:
        """At once where the first try holds, else two of three; one more vote where the rate has some already."""
        cast: list[_Ballot] = []
        known = bool(self.ballots.get(rate))
        while not cast or (not known and not cast[0].held and abs(_sum(cast)) < 2 and len(cast) < 3):
            probes = self._measure(rate)
            if not probes:
                return
            share, low, high = share_of(pooled(probes), self.objective)
            verdict = verdict_of(low, high, self.target)
            held = verdict == HOLDS or (verdict == UNDECIDED and share >= self.target)
            cast.append(_Ballot(held, tuple(probes), low, high))
            self.ballots.setdefault(rate, []).append(cast[-1])

    def _measure(self, rate: float) -> list[Probe]:
        """Probes, doubled in all until their interval decides or it is enough; none where none was valid."""
        several: list[Probe] = []
        size, most = self._sizes(rate)
        while (one := self._ask(rate, size)) is not None:
            several.append(one)
            whole = pooled(several)
            _, low, high = share_of(whole, self.objective)
            if whole.scheduled >= most or verdict_of(low, high, self.target) != UNDECIDED:
                break
            size = min(size * len(several), most)
        return several

    def _sizes(self, rate: float) -> tuple[int, int]:
        """Requests of the first probe of a vote, and of all its probes together."""
        longest = max(1, math.floor(min(rate * max(self.limits.seconds, self.limits.longest), 1e9)))
        size = min(longest, max(self.first, math.ceil(rate * self.limits.seconds)))
        return size, min(longest, max(self.most, size))

    def _ask(self, rate: float, requests: int) -> Probe | None:
        """A valid probe, at the second try if need be."""
        for _ in range(2):
            if len(self.tried) >= self.limits.probes:
                raise _Spent(f"{self.limits.probes} probes were made")
            if self.limits.spent():
                raise _Spent("its time was over")
            one = self.probe(rate, requests)
            one = one.settled() if self.objective == "throughput" else one
            self.tried.append(one)
            if one.judged and not one.invalid:
                return one
        self.spoilt[rate] = one.invalid or "nothing was judged"
        return None

    # ---- what it comes to ----

    def _aside(self) -> set[int]:
        """Probes, by id, of failures that were outvoted and stand apart from the votes for: glitches, if rare."""
        lost = [one for rate in self.ballots for one in self._outvoted(rate)]
        held = [one for rate, votes in self.ballots.items() if self._lead(rate) > 0 for one in votes]
        rare = len(lost) <= max(1, _RARE * len(held))
        return {id(probe) for one in lost for probe in one.probes} if rare else set()

    def _outvoted(self, rate: float) -> list[_Ballot]:
        votes = self.ballots[rate]
        floor = min((one.low for one in votes if one.held), default=0.0)
        return [one for one in votes if not one.held and one.high < floor] if self._lead(rate) > 0 else []

    def _tried(self) -> tuple[Tried, ...]:
        aside = self._aside()
        return tuple(Tried(one, id(one) in aside) for one in self.tried)

    def _wholes(self) -> list[Probe]:
        """All that count, a rate at a time."""
        aside = self._aside()
        by_rate = {
            rate: [probe for one in votes for probe in one.probes if id(probe) not in aside]
            for rate, votes in self.ballots.items()
        }
        return [pooled(probes) for probes in by_rate.values() if probes]

    def _crossing(self, roughly: bool = False) -> Crossing | None:
        """The knee of all probes near it; for the objective throughput there is no law to fit. roughly: good enough to
        look there, not to end with."""
        missed = 1 - self.target
        if self.objective != "goodput" or missed <= 0:
            return None
        wholes = self._wholes()
        used = [one for one in wholes if near(one, self.target)]
        # One effect for all: a rate's own is small where few of its misses happened to come together, and such a rate,
        # taken for better known than the others, would draw the knee up (by half a standard error on a replica).
        effect = common_effect([one.windows for one in used])
        if roughly:
            used += self._below(wholes)
        points = [RatePoint(one.rate, (one.judged - one.good) / effect, one.judged / effect) for one in used]
        return crossing(points, missed, _WIDE)

    def _below(self, wholes: list[Probe]) -> list[Probe]:
        """Rates around the ends with next to no misses: they bend the line, but show where it is before others do."""
        low, high = self._ends()
        lowest = (low or high or 0.0) / _AROUND
        return [
            one
            for one in wholes
            if one.rate >= lowest and one.good / one.judged > self.target and not near(one, self.target)
        ]

    def _enough(self, at: Crossing | None, low: float, high: float) -> bool:
        """The fit is narrow and agrees with what is certain; or both ends are close and sure."""
        rows = rows_of(self._tried(), self.objective, self.target)
        if at is None:
            verdicts = {row.rate: row.verdict for row in rows}
            certain = self.objective == "throughput" or (verdicts[low], verdicts[high]) == (HOLDS, FAILS)
            return certain and self._lead(low) >= _SURE_HOLDS and -self._lead(high) >= _SURE_FAILS
        holds, fails = _certain(rows)
        agrees = (holds is None or holds <= at.high) and (fails is None or fails >= at.low)
        return agrees and at.high - at.low <= 2 * self.limits.resolution * at.rate

    def _knee(self) -> Knee:
        (low, high), at = self._ends(), self._crossing()
        if low is None or high is None:
            return self._draft(None, self._why(low, high))
        resolved = not self.over and high not in self.spoilt and self.target < 1 and self._enough(at, low, high)
        if resolved:
            return self._draft(at)
        return self._draft(at or self._crossing(roughly=True), self._why(low, high))

    def _draft(self, at: Crossing | None, reason: str = "") -> Knee:
        low, high = self._ends()
        ends: tuple[float | None, float | None, float | None] = (low, low, high)
        if at is not None:
            ends = (at.rate, at.low, at.high)
        elif reason and self.objective == "goodput" and self.target < 1:  # votes are not yet an interval
            ends = (low, *_certain(rows_of(self._tried(), self.objective, self.target)))
        return Knee(
            self.objective, self.target, *ends, "fit" if at is not None else "bracket", not reason, reason,
            self.ceiling, self._tried(),
        )  # fmt: skip

    def _why(self, low: float | None, high: float | None) -> str:
        """In words, what keeps the knee from being resolved."""
        if high is not None and high in self.spoilt:
            return f"the client could not offer {high:.4g}/s: {self.spoilt[high]}"
        if self.over:
            known = [f"it holds at {low:.4g}/s"] if low is not None else []
            known += [f"it does not at {high:.4g}/s"] if high is not None else []
            so_far = f": {', '.join(known)}" if known else ""
            return f"{self.over} too soon" if len(known) > 1 else f"{self.over} before it was found{so_far}"
        if low is None:
            return f"it does not even hold at {high:.4g}/s" if high is not None else "nothing was measured"
        if high is None:
            return f"it still holds at {low:.4g}/s, where the search ends"
        return "100% is refuted by one miss and proved by no number of requests"


def _sum(ballots: list[_Ballot]) -> int:
    return sum(1 if ballot.held else -1 for ballot in ballots)


def _certain(rows: list[SweepRow]) -> tuple[float | None, float | None]:
    """The largest rate whose interval lies above the target, and the smallest above it whose lies below."""
    low = max((row.rate for row in rows if row.verdict == HOLDS), default=None)
    high = min((row.rate for row in rows if row.verdict == FAILS and (low is None or row.rate > low)), default=None)
    return low, high


def _tidy(rate: float) -> float:
    """Four digits: a rate that can be typed again."""
    return float(f"{rate:.4g}")


@dataclass(frozen=True, slots=True)
class ClosedLoopCeiling:
    """Where a closed loop stops gaining. rate: completions per second, the best seen. workers: the fewest that come
    within 3 % of it. tried: (workers, rate) in order."""

    rate: float
    workers: int
    tried: tuple[tuple[int, float], ...]


def saturate(
    measure: Callable[[int], float], *, first: int = 1, most: int = 1024, gain: float = 0.03
) -> ClosedLoopCeiling:
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
    return ClosedLoopCeiling(best, enough, tuple(tried))
