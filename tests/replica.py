"""A published queueing experiment: first come first served, 500/s, 20 s, 200 ms; one generator, the loads in this
order."""

from __future__ import annotations

from typing import Any

import numpy as np

LOADS = (100, 200, 300, 400, 450, 480, 500, 520, 560)
# throughput and goodput per second; p50, p95, p99 in ms
PUBLISHED = (
    (101, 101, 2, 8, 12),
    (202, 202, 2, 10, 15),
    (298, 298, 4, 15, 23),
    (398, 398, 7, 31, 47),
    (455, 455, 14, 63, 101),
    (483, 448, 64, 212, 249),
    (506, 72, 367, 630, 656),
    (518, 123, 524, 925, 968),
    (560, 82, 1287, 2379, 2499),
)


def queue(rng: np.random.Generator, load: int) -> tuple[Any, Any]:
    """Planned starts and ends in seconds."""
    n = rng.poisson(load * 20.0)
    arrivals = np.sort(rng.uniform(0, 20.0, n))
    service = rng.exponential(0.002, n)
    ends, free = np.empty(n), 0.0
    for i in range(n):
        free = ends[i] = max(arrivals[i], free) + service[i]
    return arrivals, ends


def experiment() -> list[tuple[Any, Any]]:
    """Planned starts and ends of each load."""
    rng = np.random.default_rng(7)
    return [queue(rng, load) for load in LOADS]
