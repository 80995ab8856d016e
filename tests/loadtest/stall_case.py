"""The case in which statistics over requests fail: a server that stalls, so that the tail of a run is a few stalls.

Requests come at 40/s (Poisson) for 60 s and take about 200 ms; a stall of 180 ms comes every 5 s (Poisson) and holds
everything in flight: the p99 is some 380 ms, made by a dozen stalls a run. `python stall_case.py --seeds 20000` prints
what intervals and tests over runs, and over requests, hold of what they promise.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from tailwatch.loadtest.statistics import Difference, paired, unpaired

RATE, SECONDS, EVERY, STALL, SERVICE, SPREAD = 40.0, 60.0, 5.0, 0.180, 0.190, 0.06
SHORTER = 0.6  # stalls of B, as a share of those of A
TRUE_EFFECT, TRUE_P99 = -0.1931, 0.380  # of 100 000 runs: main()
BLOCK = 40  # runs simulated at a time
Runs = list[np.ndarray]


@dataclass(frozen=True)
class Plan:
    """What a pair of runs shares: arrivals (s, sorted, of all runs one after the other) and service times (s)."""

    runs: int
    arrivals: np.ndarray
    service: np.ndarray


def plan(rng: np.random.Generator, runs: int) -> Plan:
    """The schedules of so many runs."""
    n = rng.poisson(RATE * SECONDS * runs)
    arrivals = np.sort(rng.uniform(0, SECONDS * runs, n))
    return Plan(runs, arrivals, SERVICE * np.exp(rng.normal(0, SPREAD, n)))


def latencies(rng: np.random.Generator, plan: Plan, stall: float = STALL, speed: float = 1.0) -> Runs:
    """Seconds of each request of each run, on a server that has its own stalls and this speed."""
    span = SECONDS * plan.runs
    gaps = rng.exponential(EVERY, int(span / EVERY * 1.5) + 50)
    working = np.cumsum(gaps)  # when each stall begins, in time during which the server works
    begins = working + stall * np.arange(len(working))
    stalls = np.searchsorted(begins, plan.arrivals)  # begun before each arrival
    left = np.where(stalls > 0, begins[stalls - 1] + stall - plan.arrivals, 0.0).clip(min=0)
    done = plan.arrivals + left - stall * stalls + plan.service / speed
    later = np.searchsorted(working, done) - stalls
    found = left + plan.service / speed + stall * later
    return np.split(found, np.searchsorted(plan.arrivals, SECONDS * np.arange(1, plan.runs)))


def p99(runs: Runs) -> np.ndarray:
    """Of each run, in seconds."""
    return np.array([np.partition(run, rank(run))[rank(run)] for run in runs])


def rank(run: np.ndarray) -> int:
    """Of the sample that is the p99."""
    return int(np.ceil(0.99 * len(run))) - 1


def bootstrap(rng: np.random.Generator, run: np.ndarray, draws: int) -> np.ndarray:
    """p99 of so many samples of the requests of a run, drawn with replacement: the rank that a sample's p99 has in the
    run is distributed like a beta, so no sample is drawn."""
    n, k = len(run), rank(run) + 1
    ranks = np.ceil(n * rng.beta(k, n - k + 1, draws)).astype(int) - 1
    return np.sort(run)[ranks]


@dataclass(frozen=True)
class Arms:
    """p99 of each run: A, the same server again, and B, whose stalls are 40 % shorter; pairs have one schedule.

    requests: of the first runs of A and of A again, for statistics over requests.
    """

    a: np.ndarray
    again: np.ndarray
    b: np.ndarray
    requests: tuple[Runs, Runs]


def simulate(seed: int, runs: int) -> Arms:
    """So many pairs of runs, in blocks that a cache holds."""
    rng, arms, kept = np.random.default_rng(seed), ([], [], []), ([], [])
    for _ in range(0, runs, BLOCK):
        shared = plan(rng, BLOCK)
        made = [latencies(rng, shared), latencies(rng, shared), latencies(rng, shared, STALL * SHORTER)]
        for arm, found in zip(arms, made, strict=True):
            arm.append(p99(found))
        if len(kept[0]) < 400:
            kept[0].extend(made[0])
            kept[1].extend(made[1])
    return Arms(*(np.concatenate(arm)[:runs] for arm in arms), kept)


@dataclass(frozen=True)
class Held:
    """Shares of the experiments. cover: the interval holds the true effect; alarms: it excludes 0 where nothing
    differs (A/A). The same of runs that are taken for no pairs, and of a bootstrap over the requests of one run (400
    of them)."""

    cover: float
    alarms: float
    cover_unpaired: float
    alarms_unpaired: float
    cover_requests: float
    alarms_requests: float


def held(seed: int, experiments: int, pairs: int) -> Held:
    """So many experiments of so many pairs."""
    arms, rng = simulate(seed, experiments * pairs), np.random.default_rng(seed + 1)
    groups = (arm.reshape(-1, pairs).tolist() for arm in (arms.a, arms.again, arms.b))
    found = [_experiment(a, again, b) for a, again, b in zip(*groups, strict=True)]
    return Held(
        cover=float(np.mean([one.holds(TRUE_EFFECT) for one, _, _, _ in found])),
        alarms=float(np.mean([not one.holds(0.0) for _, one, _, _ in found])),
        cover_unpaired=float(np.mean([one.holds(TRUE_EFFECT) for _, _, one, _ in found])),
        alarms_unpaired=float(np.mean([not one.holds(0.0) for _, _, _, one in found])),
        **_by_requests(rng, *arms.requests),
    )


def _experiment(
    a: list[float], again: list[float], b: list[float]
) -> tuple[Difference, Difference, Difference, Difference]:
    return paired(a, b), paired(a, again), unpaired(a, b), unpaired(a, again)


def _by_requests(rng: np.random.Generator, a: Runs, b: Runs) -> dict[str, float]:
    cover, alarms = 0, 0
    for one, two in zip(a, b, strict=True):
        before, after = bootstrap(rng, one, 1000), bootstrap(rng, two, 1000)
        low, high = np.percentile(before, [2.5, 97.5])
        cover += bool(low <= TRUE_P99 <= high)
        low, high = np.percentile(after - before, [2.5, 97.5])
        alarms += not low <= 0 <= high
    return {"cover_requests": cover / len(a), "alarms_requests": alarms / len(a)}


def truth(runs: int, seed: int = 99) -> tuple[float, float]:
    """The effect on the p99 (B / A − 1, from the mean of its logarithm) and A's own p99, out of many runs."""
    arms = simulate(seed, runs)
    return float(np.expm1(np.mean(np.log(arms.b) - np.log(arms.a)))), float(np.mean(arms.a))


def main() -> None:
    """Prints one line a number of pairs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20_000, help="experiments of each size")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("truth: effect {:.5f}, p99 {:.5f} s".format(*truth(options.seeds)), flush=True)
    for pairs in (6, 8, 12):
        found = held(options.seed, options.seeds, pairs)
        print(
            f"{pairs} pairs, {options.seeds} experiments: the interval holds the effect in {found.cover:.1%} (no "
            f"pairs: {found.cover_unpaired:.1%}), A/A alarms {found.alarms:.1%} (no pairs: "
            f"{found.alarms_unpaired:.1%}); bootstrap over requests: {found.cover_requests:.1%}, "
            f"{found.alarms_requests:.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
