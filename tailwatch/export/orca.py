"""The load as ORCA has it: the value of the `endpoint-load-metrics` response header, as vLLM writes and Envoy reads it.

An answer's headers leave before its first token: it is the load at the request's start.
"""

from __future__ import annotations

import json
from typing import Protocol

HEADER = b"endpoint-load-metrics"
FORMAT_HEADER = b"endpoint-load-metrics-format"
"""Of the request: TEXT or JSON."""


class OrcaLoad(Protocol):
    """What is written of a load_signal.LoadSignal."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def healthy(self) -> float | None: ...
    @property
    def ratio(self) -> float | None: ...
    @property
    def headroom(self) -> float | None: ...
    @property
    def predicted_ttft(self) -> float | None: ...
    @property
    def requests_per_second(self) -> float: ...


def report(load: OrcaLoad, form: str) -> bytes | None:
    """The header's value; form: "text" or "json", in any case; None for any other.

    application_utilization is requests in flight / healthy concurrency, and may exceed 1; it is missing where that is
    not known. rps_fractional are the requests that arrive a second. Counts are called as vLLM calls them.
    """
    if form.lower() == "text":
        return ("TEXT " + ", ".join(f"{name}={value}" for name, value in _flat(load))).encode()
    if form.lower() == "json":
        return ("JSON " + json.dumps({**_top(load), "named_metrics": _named(load)})).encode()
    return None


def _top(load: OrcaLoad) -> dict[str, float]:
    return _known({"application_utilization": load.ratio, "rps_fractional": load.requests_per_second})


def _named(load: OrcaLoad) -> dict[str, float]:
    return _known(
        {
            "num_requests_running": load.running,
            "num_requests_waiting": load.waiting,
            "healthy_concurrency": load.healthy,
            "headroom_streams": load.headroom,
            "predicted_ttft_seconds": load.predicted_ttft,
        }
    )


def _flat(load: OrcaLoad) -> list[tuple[str, float]]:
    return [*_top(load).items(), *((f"named_metrics.{name}", value) for name, value in _named(load).items())]


def _known(values: dict[str, float | None]) -> dict[str, float]:
    """Plain decimals: Envoy refuses a whole report for one value it cannot read."""
    return {name: round(float(value), 6) for name, value in values.items() if value is not None}
