"""What a picture of one arm needs: single gaps as its client saw them, single pauses of its server, on one clock.

The monotonic clock is the same in all processes of a kernel, so a gap and the pause inside it need no matching up.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from tailwatch.loadtest.censored_percentiles import Ranks

SLOW = 2.0  # times the median: gaps above are kept
MOST_SLOW, MOST_OTHERS, MOST_PAUSES = 4_000, 1_500, 500  # bound the size of the JSON


def timeline(stamps: Iterable[bytes], start_ns: int, pauses: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """The gaps over twice their median, a seeded sample of the others, and the longest pauses, each by time.

    stamps: of each request's tokens, as in `Exchange.stamps`. pauses: the server's, start on the monotonic clock. All
    times found are seconds; the time of a gap is its end, that of a pause its start, both from the start of the
    schedule.
    """
    gaps = [(later - start_ns, later - earlier) for each in stamps for earlier, later in pairwise(array("Q", each))]
    middle = Ranks([length for _, length in gaps]).quantile(50)
    median = 0.0 if middle is None else middle.seconds
    slow = [gap for gap in gaps if gap[1] > SLOW * median * 1e9]
    others = [gap for gap in gaps if gap[1] <= SLOW * median * 1e9]
    kept = _longest(slow, MOST_SLOW) + random.Random(seed).sample(others, min(MOST_OTHERS, len(others)))
    kept.sort()
    bars = [(pause["start"] - start_ns / 1e9, pause["seconds"], pause["cause"]) for pause in pauses]
    return {
        "median": median,
        "slow": len(slow),
        "others": len(others),
        "ends": [round(end / 1e9, 4) for end, _ in kept],
        "gaps": [round(length / 1e9, 5) for _, length in kept],
        "pauses": [
            {"start": round(start, 5), "seconds": round(length, 6), "cause": cause}
            for start, length, cause in sorted(_longest(bars, MOST_PAUSES))
        ],
    }


def _longest(rows: list[Any], most: int) -> list[Any]:
    """At most so many, by their second member."""
    return sorted(rows, key=lambda row: row[1])[-most:]
