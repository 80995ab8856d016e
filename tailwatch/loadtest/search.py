"""Finds the largest rate at which a server keeps its promise: a ceiling, a bracket, and long probes around the knee.

1. The closed-loop ceiling, which a single bad second cannot move far; no knee lies above its upper end.
2. Short probes bracket the rate where the misses cross their target.
3. Probes on both sides of it, longer where the queue has the longer memory. Of each probe only the settled part counts.
   All of them together give the knee and its interval (knee_fit.py), which counts misses of one busy period as one.
4. "Resolved" only where the interval is as narrow as was asked, enough independent events were seen, earlier and later
   halves agree, and the ceiling does not contradict it. Where the budget cannot reach that, its rest goes into a lower
   bound: a rate so far below that the queue forgets itself often enough to prove it.

Nothing here uses sockets or clocks: what measures is a callable, so the same search runs in virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from tailwatch.errors import OptionError
from tailwatch.loadtest.knee_fit import TOGETHER, KneeFit, expected_memory, fit, relaxation
from tailwatch.loadtest.process import on_interrupt
from tailwatch.loadtest.proportions import design_effect, fewest
from tailwatch.loadtest.saturation_point import FAILS, HOLDS, Knee, SweepRow, rows_of, share_of
from tailwatch.loadtest.service_gaps import rare_gaps
from tailwatch.loadtest.trial import Probe, ProbeFunction, pooled

OBJECTIVES = ("goodput", "throughput")
BUDGET = 1200.0
_STEP_UP, _FARTHEST_UP = 1.25, 8.0  # of the last rate, of the ceiling
_STEP_DOWN, _FARTHEST_DOWN = 0.8, 0.01
_BRACKET = 1.06  # upper over lower end, from which long probes take over
_SIDES = (2.2, 0.7)  # misses over their target that a long probe is aimed at, by turns
_TOWARDS = 0.03  # of a rate, for misses e times their target
_FARTHEST = 0.05  # of the estimate: how far from it
_LONG, _LONGEST = 1 / 20, 1 / 6  # of the budget: a long probe, the longest
_SETTLES, _LEAST_SETTLE = 4.0, 5.0  # relaxation times, seconds: what of a probe is not judged, up to a half
_MEMORIES = 12.0  # relaxation times that a long probe takes at least
_FEWEST_MEMORIES = 60.0  # that a budget must have, to give an interval
_MANY, _EARLY = 40.0, 0.6  # events, and of the resolution, from which a search ends before its budget
_EVEN, _MANY_MISS = 4.0, 20.0  # design effect, and times the target's misses, of a cliff
_FEWEST = 4  # long probes before the end
_RARE_WIDER = 2  # times an interval that rare long gaps make too narrow
_AMPLE = 1.7  # of the seconds that would prove a rate: a queue's memory is seen only roughly


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How narrow, and how much at most.

    resolution: half the width of the interval asked for, as a share of the knee. seconds: the shortest probe. budget:
    seconds of the whole search, which sizes the probes. left: seconds of it that are left; 0 ends the search with what
    it has (a deadline, an interrupt). probes: all probes together.
    """

    resolution: float = 0.05
    seconds: float = 10.0
    budget: float = BUDGET
    left: Callable[[], float] = lambda: math.inf
    probes: int = 200

    def __post_init__(self) -> None:
        if not 0.001 <= self.resolution <= 0.5:
            raise OptionError.of("resolution", self.resolution, "expected a share of 0.001 to 0.5, like 0.02")
        if self.probes < 1:
            raise OptionError.of("probes", self.probes, "expected at least 1")


@dataclass(frozen=True, slots=True)
class ClosedLoopCeiling:
    """Where a closed loop stops gaining. rate: completions per second. workers: the fewest that come within 3 % of it.
    tried: (workers, rate) in order. high: the upper end of its 95 % interval; inf where it is not known. flat: more
    workers brought nothing more."""

    rate: float
    workers: int
    tried: tuple[tuple[int, float], ...]
    high: float = math.inf
    flat: bool = False


def find(
    probe: ProbeFunction,
    ceiling: ClosedLoopCeiling,
    attainment: float = 0.99,
    *,
    objective: str = "goodput",
    limits: Limits | None = None,
) -> Knee:
    """The knee: the largest rate at which the attainment holds (goodput), or which is kept up with (throughput).

    ceiling: of a closed loop (saturate()). attainment: in (0, 1]; for throughput the share of
    the offered rate that must be completed. Never raises for what a server does: a search that cannot end well
    returns an unresolved knee with the reason. At 100 % a miss refutes and nothing proves: the knee is unresolved.
    """
    if objective not in OBJECTIVES:
        raise OptionError.of("find", objective, "expected 'goodput' or 'throughput'", choices=OBJECTIVES)
    if not 0 < attainment <= 1:
        raise OptionError.of("attainment", attainment, "expected a share above 0 and up to 1")
    if not (math.isfinite(ceiling.rate) and ceiling.rate > 0):
        raise OptionError.of("ceiling", ceiling.rate, "expected requests per second above 0")
    return _Search(probe, ceiling, attainment, objective, limits or Limits()).run()


class _Over(Exception):
    """No further probe may be made; with the reason."""


@dataclass
class _Search:
    probe: ProbeFunction
    ceiling: ClosedLoopCeiling
    target: float
    objective: str
    limits: Limits
    tried: list[Probe] = field(default_factory=list)
    spoilt: dict[float, str] = field(default_factory=dict)  # rates that could not be offered, and why
    long: int = 0  # probes around the knee
    memory: float = 0.0  # seconds, of the queue around the knee
    proving: bool = False  # a rate below it: the budget is too short for an interval
    too_long: float = 0.0  # the memory, in seconds, that it is too short for
    over: str = ""

    def run(self) -> Knee:
        try:
            self._bracket()
            if self._measurable:
                self._measure()
            else:
                self._confirm()
        except _Over as over:
            self.over = str(over)
        except KeyboardInterrupt:
            self.over = "it was interrupted"
        with on_interrupt(lambda: None):  # this takes no time, and is all there is to show
            return self._knee()

    # ---- the bracket ----

    def _bracket(self) -> None:
        while (rate := self._between()) is not None:
            self._ask(rate, self._short(rate))

    def _between(self) -> float | None:
        """The next rate to look at; None where the ends are close."""
        low, high = self._ends()
        if low is None:
            rate = (high or self.ceiling.rate) * _STEP_DOWN
            return rate if rate >= self.ceiling.rate * _FARTHEST_DOWN else None
        if high is None:
            return low * _STEP_UP if low * _STEP_UP <= self.ceiling.rate * _FARTHEST_UP else None
        wanted = _BRACKET if self._measurable else 1 + self.limits.resolution
        middle = _tidy(math.sqrt(low * high))
        return middle if high / low > wanted and low < middle < high else None

    def _ends(self) -> tuple[float | None, float | None]:
        """The smallest rate that does not hold (the ceiling is one), and the largest below it that does."""
        held = {row.rate: (row.share or 0.0) >= self.target for row in self._rows() if row.share is not None}
        most = [self.ceiling.rate] if self._measurable and math.isfinite(self.ceiling.high) else []
        high = min([*(rate for rate, good in held.items() if not good), *self.spoilt, *most], default=None)
        low = max((rate for rate, good in held.items() if good and (high is None or rate < high)), default=None)
        return low, high

    def _short(self, rate: float) -> float:
        """Seconds in which a share below the target shows."""
        wanted = fewest(min(self.target, 0.999)) / rate
        return max(self.limits.seconds, min(wanted, self.limits.budget / 30), 10 / rate)

    # ---- around the knee ----

    @property
    def _measurable(self) -> bool:
        """Whether misses can be fitted."""
        return self.objective == "goodput" and self.target < 1

    def _measure(self) -> None:
        low, high = self._ends()
        if low is None or high is None or high in self.spoilt:
            return
        self._ask(math.sqrt(low * high), self._least_long)
        while not self._early(found := self._fit()):
            if self._cliff() is not None:
                self._narrow()
                return
            if self._hopeless():
                self._prove()
                return
            rate = self._aim(found)
            if self._ask(rate, self._length()) is None and rate in self.spoilt:
                return
            self.long += 1

    def _aim(self, found: KneeFit | None) -> float:
        """On both sides of the estimate, by turns; without one, from the last probe towards it."""
        if found is None:
            last = self._good()[-1]
            missed = (last.judged - last.good + 0.5) / (last.judged + 1)
            off = -_TOWARDS * max(-1.5, min(2.5, math.log(missed / (1 - self.target))))
            return self._below_ceiling(last.rate * (1 + off))
        off = math.log(_SIDES[self.long % 2]) / found.rise
        return self._below_ceiling(found.rate * (1 + max(-_FARTHEST, min(_FARTHEST, off))))

    def _below_ceiling(self, rate: float) -> float:
        return min(rate, self.ceiling.high)

    def _length(self) -> float:
        self.memory = self._memory()
        asked = max(self._least_long, _MEMORIES * self.memory)
        return min(asked, max(self.limits.seconds, self.limits.budget * _LONGEST))

    @property
    def _least_long(self) -> float:
        return max(self.limits.budget * _LONG, self.limits.seconds)

    def _memory(self) -> float:
        at = self._estimate()
        if at is None:
            return 0.0
        near = [one for one in self._good() if 0.95 * at < one.rate <= at]  # above it a queue may only grow
        seen = relaxation(near) if near else 0.0
        return max(seen, expected_memory(at, self.ceiling.rate))

    def _estimate(self) -> float | None:
        found = self._fit()
        if found is not None:
            return found.rate
        low, high = self._ends()
        return math.sqrt(low * high) if low and high else low or high

    def _long_ones(self) -> list[Probe]:
        """What short ones saw began with an idle server."""
        return [one for one in self._good() if one.seconds >= 0.5 * self._least_long]

    def _fit(self) -> KneeFit | None:
        return fit(self._long_ones(), 1 - self.target, self.ceiling.rate) if self._measurable else None

    def _resolved(self, found: KneeFit | None) -> bool:
        return found is not None and self.long >= _FEWEST and not self._doubt(found)

    def _early(self, found: KneeFit | None) -> bool:
        """Whether it is so well known that the rest of the budget is not needed. Ending as soon as an interval looks
        narrow enough would choose those that are too narrow."""
        if found is None or not self._resolved(found) or found.events < _MANY:
            return False
        return (found.high - found.low) / 2 <= _EARLY * self.limits.resolution * found.rate

    def _doubt(self, found: KneeFit) -> str:
        """What keeps a fit from being the answer; "" where nothing does."""
        if not found.settled:
            return "the later halves of its probes missed more than the earlier ones: the queue had not settled"
        if not found.enough:
            return f"its misses came in about {found.events:.0f} events, too few to show how they scatter"
        if (rare := self._rare_gaps()) is not None:
            alike, times = rare
            return f"it showed too few of its longest gaps between answers: {alike}, up to {times:.0f} times the mean"
        if found.rate > self.ceiling.high:
            return f"it lies above the closed loop's {self.ceiling.high:.4g}/s"
        if not self._lasting(found, _FEWEST_MEMORIES):
            return f"its queue needs {self._memory():.2g} s to forget itself, too long for the budget"
        if found.high - found.low > 2 * self.limits.resolution * found.rate:
            wide = (found.high - found.low) / 2 / found.rate
            return f"its interval of {wide:.1%} to each side is wider than the {self.limits.resolution:.1%} asked for"
        return ""

    def _hopeless(self) -> bool:
        """Whether the queue's memory is so long that the budget has too few of them for an interval."""
        at = min(self._estimate() or 0.0, 0.95 * self.ceiling.rate)
        seen = self.memory if self.long >= _FEWEST else 0.0
        self.too_long = max(expected_memory(at, self.ceiling.rate), seen)
        return self.too_long > self.limits.budget / _FEWEST_MEMORIES

    def _prove(self) -> None:
        """The rest of the budget, for a rate far enough below that so long a probe proves it: the queue's memory goes
        with the inverse square of the room that a rate leaves below the ceiling."""
        self.proving = True
        rate, share = 0.8 * min(self._estimate() or 0.0, self.ceiling.rate), 0.25
        while rate and self.limits.left() > self.limits.seconds:
            seconds = share * self.limits.left()
            if self._ask(rate, seconds) is None:
                return
            memory = relaxation([one for one in self._good() if one.rate == _tidy(rate)])
            memory = max(memory, 3 * expected_memory(rate, self.ceiling.rate))
            room = 1 - rate / self.ceiling.rate
            wanted = _AMPLE * fewest(self.target) * TOGETHER * memory
            room *= math.sqrt(wanted / max(1.0, 0.85 * self.limits.left()))
            rate, share = max(0.3 * rate, self.ceiling.rate * (1 - room)), 0.95

    # ---- without a fit: a cliff, or throughput ----

    def _cliff(self) -> tuple[float, float] | None:
        """The ends of the bracket where nothing lies between next to all and many misses, which are no busy period:
        they are spread over all of its probes."""
        low, high = self._ends()
        rows = {row.rate: row for row in self._rows()}
        if low is None or high is None or low not in rows or high not in rows or high in self.spoilt:
            return None
        whole = pooled([one for one in self._good() if one.rate == high])
        even = design_effect(whole.windows) < _EVEN and 1 - whole.good / whole.judged > _MANY_MISS * (1 - self.target)
        return (low, high) if even and rows[low].share == 1.0 else None

    def _narrow(self) -> None:
        """Halves what is left between the ends of a cliff, then tries both again."""
        while (ends := self._cliff()) is not None:
            low, high = ends
            middle = _tidy(math.sqrt(low * high))
            if high / low > 1 + self.limits.resolution and low < middle < high:
                self._ask(middle, self._short(middle))
            elif self._certain(low, high):
                return
            else:
                self._ask(high if self._rate_holds(low) else low, self._least_long)

    def _rate_holds(self, rate: float) -> bool:
        return any(row.rate == rate and row.verdict == HOLDS for row in self._rows())

    def _confirm(self) -> None:
        """Tries both ends of the bracket again until they are sure."""
        for _ in range(6):
            low, high = self._ends()
            if low is None or high is None or high in self.spoilt or self._certain(low, high):
                return
            rate = high if self._rate_holds(low) else low
            self._ask(rate, 2 * self._short(rate))
            while (middle := self._between()) is not None:
                self._ask(middle, self._short(middle))

    def _certain(self, low: float, high: float) -> bool:
        verdicts = {row.rate: row.verdict for row in self._rows()}
        return (verdicts.get(low), verdicts.get(high)) == (HOLDS, FAILS)

    # ---- one probe ----

    def _ask(self, rate: float, seconds: float) -> Probe | None:
        """A valid probe, at the second try if need be."""
        rate = _tidy(rate)
        for _ in range(2):
            if len(self.tried) >= self.limits.probes:
                raise _Over(f"{self.limits.probes} probes were made")
            if self.limits.left() < min(seconds, self.limits.seconds):
                raise _Over("its time was over")
            length = min(seconds, self.limits.left())
            one = self.probe(rate, length, min(length / 2, max(length / 10, _SETTLES * self.memory, _LEAST_SETTLE)))
            self.tried.append(one)
            if one.judged and not one.invalid:
                return one
        self.spoilt[rate] = one.invalid or "nothing was judged"
        return None

    # ---- what it comes to ----

    def _good(self) -> list[Probe]:
        return [one for one in self.tried if one.judged and not one.invalid]

    def _rows(self) -> list[SweepRow]:
        return rows_of(self.tried, self.objective, self.target)

    def _knee(self) -> Knee:
        found, cliff = self._fit(), self._cliff() if self._measurable else None
        if cliff is not None and self._certain(*cliff):
            narrow = cliff[1] / cliff[0] <= 1 + 2 * self.limits.resolution
            return self._draft(cliff[0], *cliff, "bracket", "" if narrow else self._why(found))
        if found is not None and self._resolved(found):
            return self._draft(found.rate, found.low, found.high, "fit")
        if found is not None and self._honest(found):
            return self._draft(found.rate, *self._ends_of(found), "fit", self._why(found))
        low, high = self._bounds()
        held, failed = self._ends()
        if not self._measurable and held is not None and failed is not None and failed not in self.spoilt:
            certain = self.target < 1 and self._certain(held, failed)
            return self._draft(held, held, failed, "bracket", "" if certain else self._why(found))
        return self._draft(low if self._measurable else held, low, high, "bracket", self._why(found))

    def _honest(self, found: KneeFit) -> bool:
        """Whether its interval may be believed, narrow or not."""
        inside = found.rates[0] * 0.95 <= found.rate <= min(found.rates[1] * 1.05, self.ceiling.high)
        return found.enough and found.settled and self._lasting(found, _FEWEST_MEMORIES / 3) and inside

    def _rare_gaps(self) -> tuple[int, float] | None:
        gaps = [one.details["service_gaps"] for one in self._long_ones() if "service_gaps" in one.details]
        return rare_gaps(gaps)

    def _ends_of(self, found: KneeFit) -> tuple[float, float]:
        wider = 1 if self._rare_gaps() is None else _RARE_WIDER
        return found.rate * (found.low / found.rate) ** wider, found.rate * (found.high / found.rate) ** wider

    def _lasting(self, found: KneeFit, memories: float) -> bool:
        """Whether the probes around it are so many times as long as the queue's memory."""
        near = sum(one.seconds for one in self._good() if found.rates[0] <= one.rate <= found.rates[1])
        memory = expected_memory(min(found.rate, self.ceiling.rate), self.ceiling.rate)
        return near > memories * max(self.memory, memory)

    def _draft(self, rate: float | None, low: float | None, high: float | None, basis: str, reason: str = "") -> Knee:
        def clipped(end: float | None) -> float | None:
            return None if end is None else max(0.0, min(end, self.ceiling.high))

        return Knee(
            self.objective, self.target, clipped(rate), clipped(low), clipped(high), basis, not reason, reason,
            self.ceiling.rate, tuple(self.tried),
        )  # fmt: skip

    def _bounds(self) -> tuple[float | None, float | None]:
        """The largest rate that is proved to hold; and the ceiling, or where there is none the smallest that fails."""
        rows = self._rows()
        low = max((row.rate for row in rows if row.verdict == HOLDS and self._proved(row.rate)), default=None)
        failed = [row.rate for row in rows if row.verdict == FAILS and (low is None or row.rate > low)]
        if self._measurable and math.isfinite(self.ceiling.high):
            return low, self.ceiling.high
        return low, min(failed, default=None)

    def _proved(self, rate: float) -> bool:
        """Whether it holds also where its misses last as long as those around the knee, seen there over longer."""
        if not self._measurable:
            return True
        probes = [one for one in self._good() if one.rate == rate]
        at = min(self._estimate() or rate, self.ceiling.rate)
        rooms = [max(0.02, 1 - each / self.ceiling.rate) for each in (at, rate)]
        memory = self.memory * min(1.0, (rooms[0] / rooms[1]) ** 2)
        return share_of(probes, self.objective, max(memory, expected_memory(rate, self.ceiling.rate)))[1] >= self.target

    def _why(self, found: KneeFit | None) -> str:
        """In words, what keeps the knee from being resolved."""
        low, high = self._ends()
        if spoilt := self.spoilt.get(high or 0.0):
            return f"the client could not offer {high:.4g}/s: {spoilt}"
        if self.proving:
            return (
                f"its queue needs {self.too_long:.0f} s or more to forget itself near the knee; in "
                f"{self.limits.budget:.0f} s that is too seldom for an interval"
            )
        if self.over and len(self._good()) < 2 * _FEWEST:
            known = [f"the probes at {low:.4g}/s met the target"] if low in {one.rate for one in self._good()} else []
            return f"{self.over} before it was found" + (f": {known[0]}" if known else "")
        if self.target >= 1 and low is not None:
            return "100% is refuted by one miss and proved by no number of requests"
        if low is None:
            return (
                f"it does not even hold at {min(one.rate for one in self._good()):.4g}/s" if self.tried else self.over
            )
        if high is None or low >= self.ceiling.rate:
            return f"the probes at {low:.4g}/s, where the search ends, still met the target"
        if found is not None and (doubt := self._doubt(found)):
            return f"{self.over}: {doubt}" if self.over else doubt
        return self.over or "too few of its requests missed to show where they reach the target"


def _tidy(rate: float) -> float:
    """Four digits: a rate that can be typed again."""
    return float(f"{rate:.4g}")
