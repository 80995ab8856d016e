"""What a run is doing, while it does it: looked at from its own loop now and then, and handed to what shows it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tailwatch.loadtest.engine import LoadRun
from tailwatch.loadtest.outcomes import MISSES
from tailwatch.loadtest.report.progress import Now

LOOK = 0.1  # seconds between two questions whether it is time
LATELY = 2.0  # seconds that "lately" means


class Live:
    """Looks at a run. due: whether it is time for a look, by the seconds that have passed; show: gets what was seen."""

    def __init__(self, run: LoadRun, due: Callable[[float], bool], show: Callable[[Now], None]) -> None:
        self._run, self._due, self._show = run, due, show
        self._past: deque[tuple[float, int, int]] = deque()

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK)
            elapsed = self._run.elapsed
            if elapsed > 0 and self._due(elapsed):
                self._show(self.look(elapsed))

    def look(self, elapsed: float) -> Now:
        """The state of the run now."""
        run, recorder = self._run, self._run.recorder
        outcomes = recorder.outcomes
        self._past.append((elapsed, run.sent, outcomes.good))
        while len(self._past) > 1 and elapsed - self._past[0][0] > LATELY:
            self._past.popleft()
        before, sent, good = self._past[0] if len(self._past) > 1 else (0.0, 0, 0)
        spent = max(elapsed - before, 1e-9)
        return Now(
            elapsed=elapsed,
            sent=run.sent,
            finished=run.done,
            good=outcomes.good,
            miss=sum(outcomes.by_reason[name] for name in MISSES),
            in_flight=run.in_flight,
            rate=(run.sent - sent) / spent,
            goodput=(outcomes.good - good) / spent,
            ttft_p50=recorder.latencies.ttft.p(50),
            ttft_p99=recorder.latencies.ttft.p(99),
            gap_max=recorder.latencies.itl.max,
            lag=run.lag,
        )


def together(parts: Sequence[Now]) -> Now:
    """Several processes as one: counts are added; of percentiles the worst is shown, which is a bound."""

    latest = max(parts, key=lambda part: part.elapsed)
    return Now(
        elapsed=latest.elapsed,
        sent=sum(part.sent for part in parts),
        finished=sum(part.finished for part in parts),
        good=sum(part.good for part in parts),
        miss=sum(part.miss for part in parts),
        in_flight=sum(part.in_flight for part in parts),
        rate=sum(part.rate for part in parts),
        goodput=sum(part.goodput or 0.0 for part in parts),
        ttft_p50=_worst(part.ttft_p50 for part in parts),
        ttft_p99=_worst(part.ttft_p99 for part in parts),
        gap_max=_worst(part.gap_max for part in parts),
        lag=max(part.lag for part in parts),
        phase=latest.phase,
    )


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
