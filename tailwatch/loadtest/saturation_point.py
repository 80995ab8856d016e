"""What a search found: the knee with its interval or why there is none, the sweep, and which phase gave way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tailwatch.loadtest.proportions import FEW, design_effect, kept_up, wilson
from tailwatch.loadtest.trial import Probe, pooled

PHASES = {
    "ttft": "prefill, or the queue before it",
    "tpot": "decode",
    "itl": "decode",
    "e2e": "the whole request",
}
NEAR = 6.0  # a rate helps to find the knee where its misses are within this factor of the target's
KEEPS_UP = 0.99  # share of the offered rate that a server completes whose queue does not grow
HOLDS, FAILS, UNDECIDED, INVALID = "holds", "fails", "undecided", "invalid"


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One line of the sweep: every probe of one rate that counts, taken together.

    share, low, high: what must reach the target and its 95 % interval: the attainment, misses that come together
    counted as such; for the objective throughput the completed share of the offered. shares: per bound, the share of
    the judged that kept it; failed: the share that was not answered whole. set_aside: probes that were outvoted and
    stand alone. verdict: holds, fails or undecided for the interval against the target, or invalid.
    """

    rate: float
    probes: int
    set_aside: int
    scheduled: int
    seconds: float
    share: float | None
    low: float
    high: float
    throughput: float
    goodput: float
    shares: Mapping[str, float]
    failed: float
    verdict: str

    @property
    def late(self) -> dict[str, float]:
        """Per bound, the share of the judged that was answered whole and exceeded it."""
        return {name: max(0.0, 1 - self.failed - share) for name, share in self.shares.items()}


@dataclass(frozen=True, slots=True)
class Tried:
    """A probe as the search used it: in its order, with whether it was set aside."""

    probe: Probe
    set_aside: bool = False


@dataclass(frozen=True, slots=True)
class Knee:
    """The largest rate at which the attainment holds.

    objective: goodput or throughput. attainment: the share that must hold (for throughput: of the offered rate that
    must be completed). rate: requests per second, None where nothing can be said. low, high: its interval; 95 % where
    basis is "fit" (all probes near it), where it is "bracket" the largest rate seen to hold and the smallest seen to
    fail; None at an end that was not found. resolved: the interval is as narrow as was asked; else reason says why
    not. ceiling: the closed-loop rate it began with. most: the largest throughput of any probe.
    """

    objective: str
    attainment: float
    rate: float | None
    low: float | None
    high: float | None
    basis: str
    resolved: bool
    reason: str
    ceiling: float
    tried: tuple[Tried, ...]

    @property
    def most(self) -> float:
        """Completions per second of the best probe."""
        return max((one.probe.throughput for one in self.tried if not one.probe.invalid), default=0.0)

    def rows(self) -> list[SweepRow]:
        """The sweep by rate, ascending: where goodput leaves throughput."""
        return rows_of(self.tried, self.objective, self.attainment)

    @property
    def saturates(self) -> str | None:
        """The bound that gives way first: the one that most answers exceed at the lowest failing rate. TTFT is judged
        against TPOT and ITL, and E2E, which holds both, only where the SLO has none of them. None where no rate failed,
        or where more requests failed than any bound was exceeded by: a refusal is of no phase."""
        row = self._failing
        if row is None:
            return None
        late = {name: share for name, share in row.late.items() if name != "e2e"} or row.late
        worst = max(late, key=lambda name: late[name])
        return worst if late[worst] >= row.failed and late[worst] > 0 else None

    @property
    def _failing(self) -> SweepRow | None:
        return next((row for row in self.rows() if row.verdict == FAILS and row.shares), None)

    @property
    def phase(self) -> str | None:
        """What of the server that is, in words."""
        bound = self.saturates
        return PHASES.get(bound, bound) if bound else None

    @property
    def gives_way(self) -> str:
        """Both in one sentence; "" where no rate failed."""
        if (row := self._failing) is None:
            return ""
        if self.saturates:
            return f"{self.saturates} gives way first: {self.phase}"
        why = f"{row.failed:.1%} of the requests failed at {row.rate:.4g}/s" if row.failed else "only e2e is exceeded"
        return f"neither prefill nor decode gives way first: {why}" if row.failed or row.late.get("e2e") else ""

    @property
    def completed(self) -> float | None:
        """At the largest rate that holds: the share of the offered requests that were completed in the later halves of
        its probes, where that is surely below 99 %. A queue still grew there, within the bounds so far: longer probes
        will find a lower knee. None where nothing of the kind is seen."""
        held = [row.rate for row in self.rows() if row.verdict == HOLDS and row.rate <= (self.high or row.rate)]
        if self.objective != "goodput" or not held:
            return None
        used = _used([one for one in self.tried if one.probe.rate == held[-1]])
        share, _, high = kept_up(pooled(probe.settled() for probe in used).windows)
        return share if high < KEEPS_UP else None

    def __str__(self) -> str:
        return f"{_said(self)}{f'; {self.gives_way}' if self.gives_way else ''}{_grew(self)}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        names = (
            "objective", "attainment", "rate", "low", "high", "basis", "resolved", "reason", "ceiling",
        )  # fmt: skip
        plain: dict[str, Any] = {name: getattr(self, name) for name in names}
        plain["tried"] = [{**one.probe.as_dict(), "set_aside": one.set_aside} for one in self.tried]
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Knee:
        """The inverse of as_dict."""
        tried = tuple(
            Tried(Probe.from_dict({key: value for key, value in one.items() if key != "set_aside"}), one["set_aside"])
            for one in data["tried"]
        )
        return cls(**{**data, "tried": tried})


def rows_of(tried: Sequence[Tried], objective: str, target: float) -> list[SweepRow]:
    """The sweep by rate, ascending."""
    by_rate: dict[float, list[Tried]] = {}
    for one in tried:
        by_rate.setdefault(one.probe.rate, []).append(one)
    wholes = {rate: pooled(used) for rate, several in by_rate.items() if (used := _used(several))}
    lent = lent_effect(list(wholes.values()), target) if objective == "goodput" else 1.0
    return [_row(rate, by_rate[rate], wholes.get(rate), objective, target, lent) for rate in sorted(by_rate)]


def _used(several: Sequence[Tried]) -> list[Probe]:
    return [one.probe for one in several if not one.set_aside and not one.probe.invalid and one.probe.judged]


def lent_effect(wholes: Sequence[Probe], target: float) -> float:
    """The design effect near the knee. A rate with next to no misses cannot show its own: there a probe without one is
    no proof where, a little above, a hundred come at a time."""
    effects = [design_effect(one.windows) for one in wholes if near(one, target)]
    return median(effects) if effects else 1.0


def near(whole: Probe, target: float) -> bool:
    """Whether its misses are few and many enough to tell something about where the target is crossed."""
    missed = 1 - target
    return missed / NEAR <= 1 - whole.good / whole.judged <= min(0.9, missed * NEAR)


def _row(
    rate: float, tried: Sequence[Tried], whole: Probe | None, objective: str, target: float, lent: float
) -> SweepRow:
    aside = sum(one.set_aside for one in tried)
    if whole is None:
        return SweepRow(rate, len(tried), aside, 0, 0.0, None, 0.0, 1.0, 0.0, 0.0, {}, 0.0, INVALID)
    share, low, high = share_of(whole, objective, lent)
    shares = {name: count / whole.judged for name, count in whole.kept.items()}
    return SweepRow(
        rate, len(tried), aside, whole.scheduled, whole.seconds, share, low, high,
        whole.throughput, whole.goodput, shares, whole.failed / whole.judged, verdict_of(low, high, target),
    )  # fmt: skip


def share_of(whole: Probe, objective: str, lent: float = 1.0) -> tuple[float, float, float]:
    """What must reach the target, and its 95 % interval: good of judged, or completed of offered. lent: the design
    effect where its own misses are too few to show one."""
    if objective == "throughput":
        return kept_up(whole.windows)
    effect = effect_of(whole, lent)
    return whole.good / whole.judged, *wilson(whole.good / effect, whole.judged / effect)


def effect_of(whole: Probe, lent: float) -> float:
    """The design effect of a rate: its own, or the larger one lent where it has too few misses to show one."""
    own = design_effect(whole.windows)
    return max(own, lent) if (whole.judged - whole.good) / own < FEW else own


def verdict_of(low: float, high: float, target: float) -> str:
    """What an interval says about a target."""
    if low >= target:
        return HOLDS
    return FAILS if high < target else UNDECIDED


def _said(knee: Knee) -> str:
    share = f"{knee.attainment * 100:g}%"
    if knee.rate is None:
        return f"unresolved: {knee.reason}"
    what = f"{knee.objective} knee at {share}: {knee.rate:.4g}/s"
    if knee.low is not None and knee.high is not None:
        what += f" ({knee.low:.4g} to {knee.high:.4g})"
    return what if knee.resolved else f"unresolved: {knee.reason}; so far {what}"


def _grew(knee: Knee) -> str:
    share = knee.completed
    if share is None:
        return ""
    return f"; its queue still grew there ({share:.1%} of the offered were completed): longer probes will find less"
