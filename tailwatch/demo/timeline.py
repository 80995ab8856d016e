"""What a picture of one arm needs: single gaps as its client saw them, single pauses of its server, on one clock.

The monotonic clock is the same in all processes of a kernel, so a gap and the pause inside it need no matching up.
"""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

from tailwatch.demo.numbers import percentile

SLOW = 2.0  # times the median: gaps above are kept
MOST_SLOW, MOST_OTHERS, MOST_PAUSES = 4_000, 1_500, 500  # bound the size of the JSON


def timeline(result: dict[str, Any], pauses: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """The gaps over twice their median, a seeded sample of the others, and the longest pauses, each by time.

    result: the client's. pauses: the server's, start on the monotonic clock. All times found are seconds; a gap
    is told by its end, a pause by its start, both from the start of the plan.
    """
    gaps = [gap for exchange in result["exchanges"] for gap in _gaps(exchange)]
    median = percentile(sorted(length for _, length in gaps), 50) or 0.0
    slow = [gap for gap in gaps if gap[1] > SLOW * median]
    others = [gap for gap in gaps if gap[1] <= SLOW * median]
    kept = _longest(slow, MOST_SLOW) + random.Random(seed).sample(others, min(MOST_OTHERS, len(others)))
    kept.sort()
    bars = [(pause["start"] - result["start"], pause["seconds"], pause["cause"]) for pause in pauses]
    return {
        "median": median,
        "slow": len(slow),
        "others": len(others),
        "ends": [round(end, 4) for end, _ in kept],
        "gaps": [round(length, 5) for _, length in kept],
        "pauses": [
            {"start": round(start, 5), "seconds": round(length, 6), "cause": cause}
            for start, length, cause in sorted(_longest(bars, MOST_PAUSES))
        ],
    }


def _gaps(exchange: dict[str, Any]) -> list[tuple[float, float]]:
    """End and length of each; nothing before the first token."""
    if exchange["ttft"] is None:
        return []
    ends = accumulate(exchange["gaps"], initial=exchange["planned"] + exchange["ttft"])
    return list(zip(list(ends)[1:], exchange["gaps"], strict=True))


def _longest(rows: list[Any], most: int) -> list[Any]:
    """At most so many, by their second member."""
    return sorted(rows, key=lambda row: row[1])[-most:]
