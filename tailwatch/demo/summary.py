"""The numbers of one arm's client, for the table and the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailwatch.loadtest.outcomes import ABANDONED

if TYPE_CHECKING:
    from tailwatch.loadtest.results import Result

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)
FEWEST_FOR_P999 = 5_000


def summarize(result: Result) -> dict[str, Any]:
    """Rates are per second of the schedule; failed and unfinished requests are misses."""
    outcomes, finished = result.outcomes.by_reason, result.latencies.e2e.count
    answered = ("good", "late", ABANDONED)
    return {
        "planned": result.outcomes.scheduled,
        "finished": finished,
        "unfinished": outcomes[ABANDONED],
        "errors": {reason: count for reason, count in outcomes.items() if count and reason not in answered},
        "good": result.goodput.good,
        "goodput": result.goodput.rate,
        "throughput": finished / result.duration,
        "attainment": result.goodput.attainment,
        **{latency: distribution(result, latency) for latency in ("ttft", "tpot", "itl", "e2e")},
        "client": {
            "send_lag": distribution(result, "send_lag"),
            "loop_lag_max": result.client.loop_lag.max or 0.0,
            "connections": result.client.opened,
            "cpu": result.client.cpu,
        },
    }


def distribution(result: Result, latency: str) -> dict[str, float | int | None]:
    """Count and percentiles in seconds; p99.9 only of enough samples. Lower bounds where requests failed (see
    `Result.quantile`)."""
    count = getattr(result.latencies, latency).count
    found: dict[str, float | int | None] = {"count": count}
    for percent in PERCENTILES:
        enough = percent != 99.9 or count >= FEWEST_FOR_P999
        found["max" if percent == 100 else f"p{percent:g}"] = result.percentile(latency, percent) if enough else None
    return found
