"""The histograms of a run, and what percentiles of them are of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tailwatch.loadtest.censored_percentiles import Buckets, Sample
from tailwatch.loadtest.histogram import LatencyHistogram

# Histograms of a run, with their layout. The naive ones count from the actual send.
LATENCIES = {
    "ttft": "ttft",
    "ttft_naive": "ttft",
    "first_byte": "ttft",
    "first_chunk": "ttft",
    "itl": "itl",
    "itl_unmarked": "itl",
    "tpot": "itl",
    "e2e": "e2e",
    "e2e_naive": "e2e",
    "largest_gap": "itl",
    "send_lag": "ttft",
    "connect": "ttft",
    "ttft_censored": "ttft",
    "e2e_censored": "e2e",
}
CENSORED = {"ttft": "ttft_censored", "e2e": "e2e_censored"}  # latency → how long was waited for what never came


@dataclass(slots=True)
class Latencies:
    """The histograms of a run.

    ttft: planned start → first content; ttft_naive: actual send → the same. first_byte, first_chunk: of the answer, of
    its body (a role, a ping). itl: each gap between messages with content; itl_unmarked: those of them that overlap no
    pause of this client. tpot: per choice of answers that came whole. e2e, e2e_naive: to the end of answers that came
    whole, with status below 300. largest_gap: one sample a request with two messages or more. send_lag: planned start →
    actual send. connect: how long opening a connection took, where a request had to. ttft_censored, e2e_censored: how
    old the requests were that this client ended or never sent before they had one; lost: how many failed before that,
    by latency. A percentile of both is asked of `Result.quantile`.
    """

    ttft: LatencyHistogram = field(default_factory=lambda: LatencyHistogram("ttft"))
    ttft_naive: LatencyHistogram = field(default_factory=lambda: LatencyHistogram("ttft"))
    first_byte: LatencyHistogram = field(default_factory=lambda: LatencyHistogram("ttft"))
    first_chunk: LatencyHistogram = field(default_factory=lambda: LatencyHistogram("ttft"))
    itl: LatencyHistogram = field(default_factory=lambda: LatencyHistogram("itl"))
    itl_unmarked: LatencyHistogram = field(default_factory=lambda: LatencyHistogram("itl"))
    tpot: LatencyHistogram = field(default_factory=lambda: LatencyHistogram("itl"))
    e2e: LatencyHistogram = field(default_factory=lambda: LatencyHistogram("e2e"))
    e2e_naive: LatencyHistogram = field(default_factory=lambda: LatencyHistogram("e2e"))
    largest_gap: LatencyHistogram = field(default_factory=lambda: LatencyHistogram("itl"))
    send_lag: LatencyHistogram = field(default_factory=lambda: LatencyHistogram("ttft"))
    connect: LatencyHistogram = field(default_factory=lambda: LatencyHistogram("ttft"))
    ttft_censored: LatencyHistogram = field(default_factory=lambda: LatencyHistogram("ttft"))
    e2e_censored: LatencyHistogram = field(default_factory=lambda: LatencyHistogram("e2e"))
    lost: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CENSORED, 0))

    def add(self, other: Latencies) -> None:
        """Takes in another run's samples."""
        for name in LATENCIES:
            getattr(self, name).add(getattr(other, name))
        self.lost = {name: count + other.lost[name] for name, count in self.lost.items()}

    def sample(self, name: str) -> Sample:
        """What percentiles of a latency are of, out of its histogram."""
        ages = getattr(self, CENSORED[name]) if name in CENSORED else None
        return Buckets(getattr(self, name), ages, self.lost.get(name, 0))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name).as_dict() for name in LATENCIES} | {"lost": self.lost}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Latencies:
        """Of `as_dict`'s numbers."""
        found = cls(lost={name: int(data["lost"][name]) for name in CENSORED})
        for name in LATENCIES:
            setattr(found, name, LatencyHistogram.from_dict(data[name]))
        wrong = [name for name, layout in LATENCIES.items() if getattr(found, name).layout != layout]
        if wrong:
            raise ValueError(f"the buckets of {wrong[0]} are those of another latency")
        return found
