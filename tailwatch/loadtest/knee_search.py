"""The search for a knee on a real server: its closed loop, its probes, its budget; of `bench --find` and `capacity`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tailwatch.errors import TailwatchError
from tailwatch.loadtest import search
from tailwatch.loadtest.bench import Conditions, run_workload
from tailwatch.loadtest.process import on_interrupt
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.saturation_point import Knee
from tailwatch.loadtest.schedule import Schedule
from tailwatch.loadtest.search import ClosedLoopCeiling, Limits
from tailwatch.loadtest.trial import ClosedLoop, prober, steady_interval
from tailwatch.loadtest.workload import Workload

CEILING_SECONDS = 3.0  # of each closed-loop run that looks for the ceiling, at least
CONFIRMED = 1 / 40  # of the budget: the closed-loop run that gives its interval
FIRST_WORKERS = 2  # in the first of them
Run = Callable[[Workload, Conditions, Schedule], Result]


def _real(workload: Workload, conditions: Conditions, schedule: Schedule) -> Result:
    return run_workload(workload, conditions, schedule, interruptible=True)


@dataclass
class KneeSearch:
    """One search. run, clock: of a server and its seconds; a simulation has its own. show: takes a line a step."""

    workload: Workload
    conditions: Conditions
    limits: Limits
    objective: str = "goodput"
    show: Callable[[str], None] = lambda _: None
    run: Run = _real
    clock: Callable[[], float] = time.monotonic
    interrupted: bool = False
    _deadline: float = field(init=False, default=math.inf)
    _row: int = field(init=False, default=0)  # of a trace: where the next probe begins

    def find(self) -> Knee:
        """The knee of the server.

        Raises:
            TailwatchError: it answered no request. KeyboardInterrupt: before anything was found.
        """
        self._deadline = self.clock() + self.limits.budget
        loop = ClosedLoop(min(CEILING_SECONDS, self.limits.seconds))
        with on_interrupt(self._interrupt):
            ceiling = self._ceiling(loop)
            shortest = max(self.limits.seconds, min(loop.seconds, self.limits.budget / 30))
            knee = search.find(
                prober(self._schedule, self._probed, lambda result: self.show(_step(result)), ceiling.workers),
                ceiling,
                self.conditions.slo.attainment if self.conditions.slo is not None else 0.99,
                objective=self.objective,
                limits=replace(self.limits, seconds=shortest, left=self._left),
            )
        if self.interrupted:
            knee = replace(knee, resolved=False, reason=f"interrupted: {knee.reason or 'partial result'}")
        return knee

    def _interrupt(self) -> None:
        """Ctrl-C between two runs, or in the making of one: it is not made."""
        self.interrupted = True
        raise KeyboardInterrupt

    def _left(self) -> float:
        return 0.0 if self.interrupted else self._deadline - self.clock()

    def _schedule(self, rate: float, seconds: float, number: int) -> Schedule:
        """Of a trace each probe goes on where the last one ended, so that all of it is met."""
        trace = self.workload.trace
        workload = self.workload if trace is None else replace(self.workload, trace=trace.begun_at(self._row))
        found = workload.schedule(rate=rate, duration=seconds, seed=self.workload.seed + number)
        self._row += len(found)
        return found

    def _probed(self, schedule: Schedule) -> Result:
        return self._see(self.run(self.workload, self.conditions, schedule))

    def _see(self, result: Result) -> Result:
        """Ctrl-C in a run ends the search too."""
        self.interrupted |= result.interrupted
        return result

    # ---- the closed loop ----

    def _ceiling(self, loop: ClosedLoop) -> ClosedLoopCeiling:
        rates: dict[int, float] = {}

        def measure(workers: int) -> float:
            if self._left() <= 0:
                return 0.0  # no gain: the end of the climb
            rates[workers] = rate = loop.rate(workers, lambda seconds: self._closed(workers, seconds))
            self.show(f"closed loop, {workers} workers: {rate:.4g}/s")
            return rate

        try:
            found = saturate(measure, first=FIRST_WORKERS)
            if found.flat and found.rate > 0 and self._left() > 0:
                found = self._confirmed(found, max(loop.seconds, CONFIRMED * self.limits.budget))
        except KeyboardInterrupt:  # between two of its runs, or as one of them began or ended
            self.interrupted = True
            found = ClosedLoopCeiling(max(rates.values(), default=0.0), max(rates, default=0), tuple(rates.items()))
        if found.rate <= 0 and self.interrupted:
            raise KeyboardInterrupt
        if found.rate <= 0:
            raise TailwatchError(f"{self.workload.endpoint.url}: every request failed")
        return found

    def _confirmed(self, found: ClosedLoopCeiling, seconds: float) -> ClosedLoopCeiling:
        """With its interval, from one longer run with twice the workers that were enough."""
        workers = 2 * found.workers
        rate, high = steady_interval(self._closed(workers, seconds), workers)
        if rate <= 0:
            return found
        self.show(f"closed loop, {workers} workers for {seconds:.0f} s: {rate:.4g}/s, at most {high:.4g}/s")
        return replace(found, rate=rate, high=high)

    def _closed(self, workers: int, seconds: float) -> Result:
        conditions = replace(self.conditions, workers=workers, slo=None)
        return self._see(self.run(self.workload, conditions, self.workload.closed(duration=seconds)))


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
    return ClosedLoopCeiling(best, enough, tuple(tried), flat=flat >= 2)


def _step(result: Result) -> str:
    good = result.goodput
    share = "-" if good.attainment is None else f"{good.attainment:.2%}"
    verdict = "" if result.valid else f" ({result.validity.verdict})"
    length = f"{good.scheduled} requests in {result.duration:.0f} s"
    return f"{result.offered:.4g}/s, {length}: {share} good, {good.throughput:.4g}/s finished{verdict}"
