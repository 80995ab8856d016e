"""What a search found: the knee with its interval or why there is none, the sweep, and which phase gave way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailwatch.loadtest.knee_fit import TOGETHER, relaxation
from tailwatch.loadtest.proportions import design_effect, kept_up, wilson
from tailwatch.loadtest.trial import Probe, pooled

PHASES = {
    "ttft": "prefill, or the queue before it",
    "tpot": "decode",
    "itl": "decode",
    "e2e": "the whole request",
}
KEEPS_UP = 0.99  # share of the offered rate that a server completes whose queue does not grow
HOLDS, FAILS, UNDECIDED, INVALID = "holds", "fails", "undecided", "invalid"


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One line of the sweep: every probe of one rate that counts, taken together.

    share, low, high: what must reach the target and its 95 % interval: the attainment, misses that come together
    counted as such; for the objective throughput the completed share of the offered. shares: per bound, the share of
    the judged that kept it; failed: the share that was not answered whole. verdict: holds, fails or undecided for the
    interval against the target, or invalid.
    """

    rate: float
    probes: int
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
class Knee:
    """The largest rate at which the attainment holds.

    objective: goodput or throughput. attainment: the share that must hold (for throughput: of the offered rate that
    must be completed). rate: requests per second, None where none was found. low, high: its 95 % interval where
    basis is "fit" (all long probes near it); where it is "bracket" two bounds: the largest rate proved to hold, and the
    closed loop's ceiling or the smallest rate seen to fail; None at an end that was not found. resolved: the interval
    is as narrow as was asked; else reason has why not. ceiling: the closed-loop rate it began with. most: the largest
    throughput of any probe.
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
    tried: tuple[Probe, ...]

    @property
    def most(self) -> float:
        """Completions per second of the best probe."""
        return max((one.throughput for one in self.tried if not one.invalid), default=0.0)

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
        """At the largest rate that holds: the share of the offered requests that were completed, where that is surely
        below 99 %. A queue still grew there, within the bounds so far: longer probes
        will find a lower knee. None where nothing of the kind is seen."""
        held = [row.rate for row in self.rows() if row.verdict == HOLDS and row.rate <= (self.high or row.rate)]
        if self.objective != "goodput" or not held:
            return None
        used = [one for one in self.tried if one.rate == held[-1] and one.judged and not one.invalid]
        share, _, high = kept_up(pooled(used).windows)
        return share if high < KEEPS_UP else None

    def __str__(self) -> str:
        return f"{_sentence(self)}{f'; {self.gives_way}' if self.gives_way else ''}{_grew(self)}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        names = (
            "objective", "attainment", "rate", "low", "high", "basis", "resolved", "reason", "ceiling",
        )  # fmt: skip
        plain: dict[str, Any] = {name: getattr(self, name) for name in names}
        plain["tried"] = [one.as_dict() for one in self.tried]
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Knee:
        """The inverse of as_dict."""
        tried = tuple(map(Probe.from_dict, data["tried"]))
        return cls(**{**data, "tried": tried})


def rows_of(tried: Sequence[Probe], objective: str, target: float) -> list[SweepRow]:
    """The sweep by rate, ascending."""
    by_rate: dict[float, list[Probe]] = {}
    for one in tried:
        by_rate.setdefault(one.rate, []).append(one)
    return [_row(rate, by_rate[rate], objective, target) for rate in sorted(by_rate)]


def _row(rate: float, tried: Sequence[Probe], objective: str, target: float) -> SweepRow:
    used = [one for one in tried if not one.invalid and one.judged]
    if not used:
        return SweepRow(rate, len(tried), 0, 0.0, None, 0.0, 1.0, 0.0, 0.0, {}, 0.0, INVALID)
    whole = pooled(used)
    share, low, high = share_of(used, objective)
    shares = {name: count / whole.judged for name, count in whole.kept.items()}
    return SweepRow(
        rate, len(tried), whole.scheduled, whole.seconds, share, low, high,
        whole.throughput, whole.goodput, shares, whole.failed / whole.judged, verdict_of(low, high, target),
    )  # fmt: skip


def share_of(probes: Sequence[Probe], objective: str, memory: float = 0.0) -> tuple[float, float, float]:
    """Of probes of one rate: what must reach the target, and its 95 % interval: good of judged, or completed of
    offered. Misses that come together count as one, and so do those within a part of the queue's memory (seconds, at
    least)."""
    whole = pooled(probes)
    if objective == "throughput":
        return kept_up(whole.windows)
    effect = max(design_effect(whole.windows), TOGETHER * max(memory, relaxation(probes)) * whole.rate)
    return whole.good / whole.judged, *wilson(whole.good / effect, whole.judged / effect)


def verdict_of(low: float, high: float, target: float) -> str:
    """What an interval means for a target."""
    if low >= target:
        return HOLDS
    return FAILS if high < target else UNDECIDED


def _sentence(knee: Knee) -> str:
    what = f"{knee.objective} knee at {knee.attainment * 100:g}%"
    if knee.resolved or (knee.rate is not None and knee.basis == "fit"):
        found = f"{what}: {knee.rate:.4g}/s ({knee.low:.4g} to {knee.high:.4g})"
        return found if knee.resolved else f"unresolved: {knee.reason}; so far {found}"
    ends = [f"at least {knee.low:.4g}/s"] if knee.low is not None else []
    ends += [f"at most {knee.high:.4g}/s"] if knee.high is not None else []
    return f"unresolved: {knee.reason}" + (f"; {what}: {', '.join(ends)}" if ends else "")


def _grew(knee: Knee) -> str:
    share = knee.completed
    if share is None:
        return ""
    return f"; its queue still grew there ({share:.1%} of the offered were completed): longer probes will find less"
