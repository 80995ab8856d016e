"""The healthy concurrency: TTFT by requests in flight. About the curve see
csrc/include/tailwatch/aggregate/concurrency_knee.h."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tailwatch._cold import ffi, lib
from tailwatch.snapshots.core_values import check
from tailwatch.snapshots.model import Point
from tailwatch.snapshots.segments import addresses_in


@dataclass(frozen=True, slots=True)
class Healthy:
    """What TTFT by concurrency shows; see csrc/include/tailwatch/aggregate/concurrency_knee.h.

    verdict: "found", "no_inflection", "few_data", "single_level". streams: the healthy concurrency, None where none was
    found. confidence: 0..1, the share of resamplings that find it within 10 %. samples: first tokens it stands on, of
    the last ``window`` seconds. lowest, highest: concurrency seen. points: ascending; of the last half hour.
    """

    verdict: str
    streams: float | None
    confidence: float
    samples: int
    lowest: int
    highest: int
    window: float
    points: tuple[Point, ...]
    _core: Any

    @property
    def queued_seconds(self) -> float:
        """What first tokens took beyond the median TTFT at ``streams``, summed over the samples of higher concurrency;
        0.0 where it was not found."""
        base = None if self.streams is None else self.ttft(self.streams)
        if self.streams is None or base is None:
            return 0.0
        beyond = (point for point in self.points if point.streams > self.streams)
        return sum(max(0.0, point.ttft - base) * point.samples for point in beyond)

    def ttft(self, streams: float) -> float | None:
        """Median TTFT, seconds, to expect where so many are in flight, the new one included; None without data."""
        seconds: float = lib.tw_healthy_ttft(self._core, streams)
        return seconds if seconds >= 0 else None


def healthy_in(directory: str) -> Healthy:
    """Of the processes that share a directory, living and dead. Errors as of take_directory()."""
    members, addresses = addresses_in(directory)
    found = healthy(addresses)
    del members  # its segments were mapped until here
    return found


def healthy(addresses: Sequence[int]) -> Healthy:
    """From the segments at these addresses, while they are written. About 1 ms, without the GIL."""
    core, points, count = (
        ffi.new("tw_healthy *"),
        ffi.new("tw_ttft_point[]", lib.TW_TTFT_LEVELS),
        ffi.new("uint32_t *"),
    )
    segments = ffi.new("const tw_segment *[]", [ffi.cast("const tw_segment *", address) for address in addresses])
    now_ns = lib.tw_clock_pair_now().monotonic_ns
    check(lib.tw_healthy_take(core, points, count, segments, len(segments), now_ns), "addresses", addresses, "segments")
    return Healthy(
        verdict=ffi.string(lib.tw_healthy_name(core.verdict)).decode(),
        streams=core.streams if core.verdict == lib.TW_HEALTHY_FOUND else None,
        confidence=core.confidence,
        samples=core.samples,
        lowest=core.lowest,
        highest=core.highest,
        window=float(core.window_s),
        points=tuple(Point(p.streams, p.ttft_s, p.samples) for p in points[0 : count[0]]),
        _core=core,
    )
