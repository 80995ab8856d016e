"""Numbers over what the client saw: exact percentiles, verdicts, the measured capacity."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailwatch.options.slo import SLO

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)
FEWEST_FOR_P999 = 5_000
WARM_UP = 1.5  # seconds at the start of the calibration that do not count


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Nearest rank over ordered values; None when there are none."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def distribution(values: Sequence[float]) -> dict[str, float | int | None]:
    """Count and percentiles in seconds; p99.9 only where it stands on enough samples."""
    ordered = sorted(values)
    found: dict[str, float | int | None] = {"count": len(ordered)}
    for percent in PERCENTILES:
        enough = percent != 99.9 or len(ordered) >= FEWEST_FOR_P999
        found["max" if percent == 100 else f"p{percent:g}"] = percentile(ordered, percent) if enough else None
    return found


def tpot(exchange: dict[str, Any]) -> float | None:
    """Mean time per output token after the first, seconds; None for fewer than two tokens."""
    gaps = exchange["gaps"]
    return sum(gaps) / len(gaps) if gaps else None


def is_good(exchange: dict[str, Any], slo: SLO) -> bool:
    """Finished without error, within every bound."""
    if exchange["error"] is not None or exchange["e2e"] is None or exchange["ttft"] is None:
        return False
    worst = max(exchange["gaps"], default=None)
    return not slo.broken(ttft=exchange["ttft"], tpot=tpot(exchange), itl=worst, e2e=exchange["e2e"])


def summarize(result: dict[str, Any], slo: SLO, seconds: float) -> dict[str, Any]:
    """What one arm's users saw. Rates are over the planned window; unfinished requests and errors are misses."""
    exchanges = result["exchanges"]
    finished = [exchange for exchange in exchanges if exchange["error"] is None and exchange["e2e"] is not None]
    good = sum(is_good(exchange, slo) for exchange in exchanges)
    errors = Counter(exchange["error"] for exchange in exchanges if exchange["error"] is not None)
    return {
        "planned": len(exchanges),
        "finished": len(finished),
        "unfinished": errors.pop("unfinished", 0),
        "errors": dict(errors),
        "good": good,
        "goodput": good / seconds,
        "throughput": len(finished) / seconds,
        "attainment": good / len(exchanges) if exchanges else None,
        "ttft": distribution([exchange["ttft"] for exchange in exchanges if exchange["ttft"] is not None]),
        "tpot": distribution([value for exchange in finished if (value := tpot(exchange)) is not None]),
        "itl": distribution([gap for exchange in exchanges for gap in exchange["gaps"]]),
        "e2e": distribution([exchange["e2e"] for exchange in finished]),
        "client": {
            "send_lag": distribution([exchange["send_lag"] for exchange in exchanges]),
            "loop_lag_max": result["loop_lag_max"],
            "connections": result["connections"],
            "cpu_seconds": result["cpu_seconds"],
        },
    }


def capacity(result: dict[str, Any], tokens_per_request: float) -> float:
    """Requests per second that a closed loop got through after the warm-up, for requests of the given length.

    0.0 when nothing finished. Counts the tokens of the requests that ended between the warm-up and the moment the
    last one was sent, so neither the filling nor the draining of the batch is part of it.
    """
    finished = [exchange for exchange in result["exchanges"] if exchange["e2e"] is not None]
    until = max((exchange["planned"] for exchange in result["exchanges"]), default=0.0)
    ended = [exchange for exchange in finished if WARM_UP < exchange["planned"] + exchange["e2e"] <= until]
    if not ended:
        return 0.0
    tokens = sum(len(exchange["gaps"]) + 1 for exchange in ended)
    return tokens / (until - WARM_UP) / tokens_per_request
