"""How many of the scheduled requests were good, and how many a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailwatch.loadtest.outcomes import Outcomes
from tailwatch.loadtest.proportions import RunWindow, interval
from tailwatch.options.slo import SLO


@dataclass(frozen=True, slots=True)
class Goodput:
    """How many of the *scheduled* requests were good, and how many a second.

    scheduled: of the plan. counted: scheduled − excluded, the denominator. attainment: good / counted; None where
    nothing counts. low, high: its interval of 95 %, which counts misses of one stall as one; None for runs of less than
    8 s, which show no such thing. believed: the run is valid; of another one nothing is concluded about its SLO.
    wanted: the attainment of the SLO. rate: good requests per second of the plan. throughput: answers that came whole
    per second, over a window as long as the plan that opens with the first of them. tokens: output tokens per second
    over the whole run. broken: late requests by the bound
    that they exceeded (one may exceed several).
    """

    slo: str
    scheduled: int
    good: int
    miss: int
    excluded: int
    attainment: float | None
    low: float | None
    high: float | None
    wanted: float
    rate: float
    throughput: float
    tokens: float
    broken: dict[str, int] = field(default_factory=dict)
    believed: bool = True

    @property
    def counted(self) -> int:
        """The denominator of the attainment."""
        return self.good + self.miss

    @property
    def held(self) -> bool | None:
        """Whether the attainment asked for was reached; None: the run does not show it (it is not valid, or nothing
        counted)."""
        return self.attainment >= self.wanted if self.believed and self.attainment is not None else None


def goodput_of(
    outcomes: Outcomes,
    slo: SLO | None,
    *,
    duration: float,
    throughput: float,
    tokens: float,
    broken: dict[str, int],
    windows: Sequence[RunWindow] = (),
    believed: bool = True,
) -> Goodput:
    """The verdict over what was scheduled. windows: of equal length, for the interval."""
    counted = outcomes.good + outcomes.miss
    low, high = interval(windows) or (None, None)
    return Goodput(
        slo="" if slo is None else slo.text,
        scheduled=outcomes.scheduled,
        good=outcomes.good,
        miss=outcomes.miss,
        excluded=outcomes.excluded,
        attainment=outcomes.good / counted if counted else None,
        low=low,
        high=high,
        wanted=0.99 if slo is None else slo.attainment,
        rate=outcomes.good / duration if duration > 0 else 0.0,
        throughput=throughput,
        tokens=tokens,
        broken=broken,
        believed=believed,
    )
