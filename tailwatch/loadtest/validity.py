"""Whether a run may be believed, and how its client itself did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tailwatch.loadtest.histogram import LatencyHistogram

VERDICTS = ("valid", "interrupted", "capped", "invalid")  # the worse the later


@dataclass(slots=True)
class ClientHealth:
    """How the client itself did: what of the numbers above is its own doing.

    pauses: [start, length] in ns from the start of the run, of each time when the client's loop stood still longer than
    10 ms. paused: seconds of them together, paused_cpu: of CPU that it used in them. marked_requests, marked_gaps:
    requests and gaps that overlap one. loop_lag: how late a timer of 5 ms came. gc_seconds: of its own collector
    (frozen and off during the run). cpu: share of one core, the mean; cpu_peak: of its busiest second. in_flight_max,
    connections_max, opened, retries: of the pool. cap: most requests in flight allowed, 0: no cap; capped: requests
    that it kept waiting or from being sent. memory: largest resident size in bytes. processes: how many clients these
    numbers are of (cpu is of the busiest).
    """

    pauses: list[tuple[int, int]] = field(default_factory=list)
    paused: float = 0.0
    paused_cpu: float = 0.0
    marked_requests: int = 0
    marked_gaps: int = 0
    loop_lag: LatencyHistogram = field(default_factory=lambda: LatencyHistogram("itl"))
    gc_seconds: float = 0.0
    cpu: float = 0.0
    cpu_peak: float = 0.0
    in_flight_max: int = 0
    connections_max: int = 0
    opened: int = 0
    retries: int = 0
    cap: int = 0
    capped: int = 0
    memory: int = 0
    processes: int = 1
    uvloop: bool = False

    def plus(self, other: ClientHealth) -> ClientHealth:
        """Two clients of one load."""
        lag = LatencyHistogram("itl")
        lag.add(self.loop_lag)
        lag.add(other.loop_lag)
        return ClientHealth(
            pauses=sorted([*self.pauses, *other.pauses]),
            loop_lag=lag,
            cpu=max(self.cpu, other.cpu),
            cpu_peak=max(self.cpu_peak, other.cpu_peak),
            uvloop=self.uvloop and other.uvloop,
            **{name: getattr(self, name) + getattr(other, name) for name in _ADDED},
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        named = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**named, "loop_lag": self.loop_lag.as_dict(), "pauses": [list(pause) for pause in self.pauses]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ClientHealth:
        """Of `as_dict`'s numbers."""
        pauses = [(int(start), int(length)) for start, length in data["pauses"]]
        return cls(**{**data, "loop_lag": LatencyHistogram.from_dict(data["loop_lag"]), "pauses": pauses})


_ADDED = tuple(
    name
    for name in ClientHealth.__dataclass_fields__
    if name not in ("pauses", "loop_lag", "cpu", "cpu_peak", "uvloop")
)


@dataclass(slots=True)
class Validity:
    """Whether the run may be believed.

    verdict: "valid", "invalid" (its schedule was not kept, this client was too slow to stamp, or too much is excluded),
    "capped" (its cap on requests in flight bound: a closed loop in disguise) or "interrupted" (Ctrl-C: what was had
    until then). reasons: why not, sentences. warnings: what a reader should know all the same.
    """

    verdict: str = "valid"
    reasons: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        """Nothing is held against it."""
        return self.verdict == "valid"
