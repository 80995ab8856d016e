"""A histogram of the core, and what can be asked of it. All times are seconds, as float."""

from __future__ import annotations

import math
import numbers
from functools import cache
from typing import Any

from tailwatch._cold import ffi, lib
from tailwatch.errors import OptionError
from tailwatch.snapshots.model import ReadOnly

_STORED_PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)


class Histogram(ReadOnly):
    """Samples in buckets 2.19 % wide, from 1 us to 1000 s. Counts and sums are exact.

    Attributes:
        count: samples.
        sum: seconds, all samples together.
        min, max: seconds; None when empty. In a difference of snapshots: edges of the outermost buckets, unless
            they are known.
    """

    count: int
    sum: float
    min: float | None
    max: float | None

    def __init__(self, counts: Any, layout: Any) -> None:
        known = counts.count > 0
        vars(self).update(
            _counts=counts,
            _layout=layout,
            count=counts.count,
            sum=lib.tw_counts_sum_seconds(counts),
            min=counts.min_ns / 1e9 if known else None,
            max=counts.max_ns / 1e9 if known else None,
        )

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        if not self.count:
            return "Histogram(empty)"
        named = {"min": self.p(0), "p50": self.p(50), "p99": self.p(99), "max": self.p(100)}
        return f"Histogram(count={self.count}, {', '.join(f'{name}={value:g}' for name, value in named.items())})"

    @property
    def mean(self) -> float | None:
        """Seconds; None when empty."""
        return self.sum / self.count if self.count else None

    def p(self, percent: float) -> float | None:
        """The value in seconds that this share of the samples does not exceed; None when empty.

        It is the sample of rank ceil(percent / 100 * count), at least 1, given as the geometric middle of its
        bucket (clamped to min and max): at most 1.1 % off from 1 us to 1000 s. p(0) is min, p(100) is max.

        PromQL's histogram_quantile() estimates otherwise: it does not round the rank up, and interpolates inside the
        bucket (2.2 % wide in a native histogram, as wide as its bounds are apart in a classic one), evenly or, from
        Prometheus 3 on, by its logarithm. So from the same counts the two differ by a bucket's width at most, where
        ranks fall into the same bucket; for p(0) and p(100) it has edges of buckets, not min and max.

        Raises:
            OptionError: percent is not a number from 0 to 100.
        """
        share = _real(percent)
        if not 0 <= share <= 100:
            raise OptionError.of("percent", percent, "expected a number from 0 to 100")
        if not self.count:
            return None
        quantile: int = lib.tw_counts_quantile(vars(self)["_counts"], vars(self)["_layout"], share / 100)
        return quantile / 1e9

    def below(self, seconds: float) -> float | None:
        """The share of the samples that is not above so many seconds, 0 to 1; None when empty.

        Exact at the classic bounds of the metric, at every bucket's edge, and outside [min, max]; in between the
        bucket's samples are taken as spread evenly over its logarithm.

        Raises:
            OptionError: not a number.
        """
        value = _real(seconds)
        if math.isnan(value):
            raise OptionError.of("seconds", seconds, "expected a number of seconds")
        if not self.count:
            return None
        counts = vars(self)["_counts"]
        if value * 1e9 >= counts.max_ns:
            return 1.0
        ns = max(0, round(value * 1e9))
        return 0.0 if ns < counts.min_ns else self._below(ns)

    def _below(self, ns: int) -> float:
        counts, layout = vars(self)["_counts"], vars(self)["_layout"]
        slot = lib.tw_slot_of(layout, ns)
        slots = ffi.unpack(counts.slot, slot + 1)
        edges = ffi.new("uint64_t[2]")
        lib.tw_slot_edges(layout, slot, edges, edges + 1)
        lower, upper = max(edges[0], counts.min_ns, 1), min(edges[1], counts.max_ns)
        place = math.log(max(ns, 1) / lower) / math.log(upper / lower) if upper > lower else 1.0
        share: float = (sum(slots[:-1]) + slots[-1] * min(max(place, 0.0), 1.0)) / self.count
        return share

    def bins(self) -> tuple[int, list[int]]:
        """The samples in bins a twelfth of their value wide, for a picture: the number of the first bin, and how many
        samples are in it and in each that follows; (0, []) when empty.

        Bin i holds what is above 2**(i / 8) and up to 2**((i + 1) / 8) seconds; i goes from -160, which holds all
        that is shorter too, to 79, which holds all that is longer.
        """
        if not self.count:
            return 0, []
        layout = vars(self)["_layout"]
        counts: dict[int, int] = {}
        for at, found in zip(_bins_of(layout), ffi.unpack(vars(self)["_counts"].slot, layout.slots), strict=True):
            if found:
                counts[at] = counts.get(at, 0) + found
        return min(counts), [counts.get(at, 0) for at in range(min(counts), max(counts) + 1)]

    def as_dict(self) -> dict[str, Any]:
        """count, sum, min, max, and the percentiles 50, 90, 95, 99 and 99.9 under "p". JSON-able."""
        stored = {f"{percent:g}": self.p(percent) for percent in _STORED_PERCENTILES}
        return {"count": self.count, "sum": self.sum, "min": self.min, "max": self.max, "p": stored}


@cache
def _bins_of(layout: Any) -> list[int]:
    """The bin of each slot of a layout: see Histogram.bins."""
    edges = ffi.new("uint64_t[2]")
    bins = []
    for slot in range(layout.slots):
        lib.tw_slot_edges(layout, slot, edges, edges + 1)
        middle = math.sqrt(max(edges[0], 1) * edges[1]) / 1e9  # of a slot, as its upper edge may be of the next bin
        bins.append(min(max(math.floor(8 * math.log2(middle)), -160), 79))
    return bins


def _real(value: object) -> float:
    """A number as float; NaN for anything else."""
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
