"""What a closed-loop measurement left out, put back by a model: HdrHistogram's expected-interval correction.

For foreign data only, whose planned starts are gone. A connection that was to send every I seconds and waited v for
an answer has kept back requests that would have waited v - I, v - 2I … down to I; they are added. That is right where
each *connection* was a serial sampler of fixed interval, and I is that connection's interval, not the rate of all
together. Our own results are timed from the planned start and are never corrected: that would count every wait
again. Known: one second's stall in ten, 5 ms otherwise, 1000 requests/s from the planned start has a median of 5 ms;
"corrected" once more with 1 ms it reads 264 ms.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from tailwatch.errors import OptionError
from tailwatch.loadtest.censored_percentiles import nearest_rank

MOST = 20_000_000  # values after correction


@dataclass(frozen=True, slots=True)
class Corrected:
    """Latencies in seconds, ascending, with the modelled ones among them; added: how many of them are modelled."""

    values: array[float]
    interval: float
    added: int

    def p(self, percent: float) -> float:
        """The value of nearest rank, in seconds; NaN where there is none. percent: 0 to 100."""
        if not self.values:
            return math.nan
        return self.values[nearest_rank(percent, len(self.values)) - 1]


def corrected(latencies: Iterable[float] | Corrected, interval: float) -> Corrected:
    """latencies: seconds from the actual send, of connections that each sent every interval seconds.

    OptionError for an interval that is not above 0, for what was corrected already, and where the interval is so short
    beside the latencies that more than 20 million values would come out.
    """
    if isinstance(latencies, Corrected):
        raise OptionError.of("latencies", "Corrected", "expected latencies as measured: these are corrected already")
    if not (math.isfinite(interval) and interval > 0):
        raise OptionError.of("interval", interval, "expected the seconds between two requests of one connection")
    values, measured = array("d"), 0
    for latency in latencies:
        if not (math.isfinite(latency) and latency >= 0):
            raise OptionError.of("latencies", latency, "expected seconds from 0 up")
        measured += 1
        _check_room(len(values) + latency / interval, interval)
        values.append(latency)
        values.extend(latency - k * interval for k in range(1, omitted(latency, interval) + 1))
    return Corrected(array("d", sorted(values)), interval, len(values) - measured)


def omitted(latency: float, interval: float) -> int:
    """How many requests one wait kept back: those that would still have waited an interval or more."""
    return max(0, math.floor(latency / interval * (1 + 1e-12)) - 1)


def _check_room(count: float, interval: float) -> None:
    if count > MOST:
        expected = "expected the interval of one connection; with this one more than 20 million values come out"
        raise OptionError.of("interval", interval, expected)
