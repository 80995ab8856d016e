"""Twelve servers in virtual time whose knee is known: analytically, or from a simulation of millions of requests.

`python benchmarks/load/knee_queues.py` writes the simulated ones, knee_truths.json, again.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tailwatch.options.slo import SLO

Draw = Callable[[np.random.Generator, int], Any]


@dataclass(frozen=True)
class Answers:
    """Of each request, in the order of the arrivals, in seconds; tpot is None where there are no tokens."""

    planned: Any
    first: Any
    end: Any
    tpot: Any = None


@dataclass(frozen=True)
class FCFS:
    """First come, first served by so many servers. draw: lengths of service in seconds."""

    servers: int
    draw: Draw

    def serve(self, planned: Any, rng: np.random.Generator) -> Answers:
        """An open loop."""
        service = self.draw(rng, len(planned))
        if self.servers == 1:
            done = np.cumsum(service)
            ends = np.maximum.accumulate(planned - done + service) + done
            return Answers(planned, ends, ends)
        free = [0.0] * self.servers
        ends = []
        for at, length in zip(planned.tolist(), service.tolist(), strict=True):
            start = free[0]
            end = (start if start > at else at) + length
            heapq.heapreplace(free, end)
            ends.append(end)
        return Answers(planned, np.array(ends), np.array(ends))

    def closed(self, workers: int, seconds: float, rng: np.random.Generator) -> Answers:
        """A closed loop: who was answered sends at once."""
        free, ready = [0.0] * self.servers, [0.0] * workers
        planned, ends = [], []
        lengths = drawn(self.draw, rng)
        while ready:
            at = heapq.heappop(ready)
            if at >= seconds:
                continue
            end = max(at, free[0]) + next(lengths)
            heapq.heapreplace(free, end)
            planned.append(at)
            ends.append(end)
            heapq.heappush(ready, end)
        return Answers(np.array(planned), np.array(ends), np.array(ends))


def drawn(draw: Draw, rng: np.random.Generator) -> Iterator[float]:
    """One after the other, without end."""
    while True:
        yield from draw(rng, 4096).tolist()


@dataclass(frozen=True)
class Batches:
    """Takes up to `most` of those that wait at once; a batch of n takes fixed + each * n seconds."""

    most: int = 16
    fixed: float = 0.04
    each: float = 0.005

    def serve(self, planned: Any, rng: np.random.Generator) -> Answers:
        """An open loop."""
        times, n, i, now = planned.tolist(), len(planned), 0, 0.0
        ends = np.empty(n)
        while i < n:
            if times[i] > now:
                now = times[i]
            j, limit = i + 1, min(n, i + self.most)
            while j < limit and times[j] <= now:
                j += 1
            now += self.fixed + self.each * (j - i)
            ends[i:j] = now
            i = j
        return Answers(planned, ends, ends)

    def closed(self, workers: int, seconds: float, rng: np.random.Generator) -> Answers:
        """A closed loop."""
        planned, ends, waiting, now = [], [], [0.0] * workers, 0.0
        while waiting:
            batch, waiting = waiting[: self.most], waiting[self.most :]
            now += self.fixed + self.each * len(batch)
            planned += batch
            ends += [now] * len(batch)
            waiting += [now] * len(batch) if now < seconds else []
        return Answers(np.array(planned), np.array(ends), np.array(ends))


@dataclass(frozen=True)
class PrefillDecode:
    """Continuous batching: a step gives each running request a token, and prefills one that waits where there is room.

    A step takes base + per_request * running, and a prompt's own time (uniform) where it prefills one.
    """

    room: int = 32
    base: float = 0.010
    per_request: float = 0.0005
    prompt: tuple[float, float] = (0.005, 0.035)
    tokens: float = 40.0  # of an answer, on average (geometric, at least 2)

    def serve(self, planned: Any, rng: np.random.Generator) -> Answers:
        """An open loop."""
        return self._run(planned.tolist(), rng, 0.0)

    def closed(self, workers: int, seconds: float, rng: np.random.Generator) -> Answers:
        """A closed loop."""
        return self._run([0.0] * workers, rng, seconds)

    def _run(self, times: list[float], rng: np.random.Generator, closed_until: float) -> Answers:
        prompts = drawn(lambda r, n: r.uniform(*self.prompt, n), rng)
        lengths = drawn(lambda r, n: 2 + r.geometric(1 / (self.tokens - 1), n) - 1, rng)
        first, ends, tokens = dict[int, float](), dict[int, float](), dict[int, int]()
        leaving: dict[int, list[int]] = {}  # by step
        now, i, running, step = 0.0, 0, 0, 0
        while i < len(times) or running:
            if not running and times[i] > now:
                now = times[i]
            joins = i < len(times) and running < self.room and times[i] <= now
            now += self.base + self.per_request * running + (next(prompts) if joins else 0.0)
            if joins:
                first[i], tokens[i] = now, int(next(lengths))
                leaving.setdefault(step + tokens[i] - 1, []).append(i)
                i, running = i + 1, running + 1
            for one in leaving.pop(step, ()):
                ends[one] = now
                running -= 1
                if now < closed_until:
                    times.append(now)
            step += 1
        n = len(times)
        starts, stops = (np.array([column[k] for k in range(n)]) for column in (first, ends))
        counts = np.array([tokens[k] for k in range(n)])
        return Answers(np.array(times), starts, stops, (stops - starts) / (counts - 1))


def exponential(mean: float) -> Draw:
    """Lengths of service."""
    return lambda rng, n: rng.standard_exponential(n) * mean


def fixed(length: float) -> Draw:
    """Lengths of service."""
    return lambda _, n: np.full(n, length)


def lognormal(mean: float, sigma: float) -> Draw:
    """Lengths of service."""
    return lambda rng, n: rng.lognormal(math.log(mean) - sigma * sigma / 2, sigma, n)


def pareto(mean: float, alpha: float) -> Draw:
    """Lengths of service, with P(more than x) like x ** -alpha."""
    return lambda rng, n: (rng.pareto(alpha, n) + 1) * mean * (alpha - 1) / alpha


@dataclass(frozen=True)
class Case:
    """A server, the SLO it is judged by, and the largest rate at which that holds."""

    name: str
    server: Any
    slo: str
    truth: float


def mmc_miss(servers: int, mean: float, bound: float, rate: float) -> float:
    """M/M/c: the share of the requests that take longer than bound."""
    mu, load = 1 / mean, rate * mean
    drain = (servers * mu - rate) * (1 + 1e-9)  # never exactly mu
    if servers == 1:
        return math.exp(-drain * bound)
    term, total = 1.0, 0.0
    for k in range(servers):
        total += term
        term *= load / (k + 1)
    queued = term * servers / (servers - load)
    waits = queued / (total + queued)
    late = math.exp(-mu * bound)
    return late + waits * mu / (drain - mu) * (late - math.exp(-drain * bound))


def mmc(servers: int, mean: float, bound: float, target: float) -> float:
    """The knee of M/M/c for `e2e<=bound@target`."""
    low, high = 0.0, servers / mean
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mmc_miss(servers, mean, bound, middle) < 1 - target else (low, middle)
    return low


def simulated(server: Any, slo: SLO, capacity: float, requests: int, seed: int = 9) -> float:
    """The knee of any server: bisection, each rate with the same random numbers."""
    low, high = 0.3 * capacity, 0.999 * capacity
    for _ in range(9):
        rate = (low + high) / 2
        rng = np.random.default_rng(seed)
        planned = np.cumsum(rng.standard_exponential(requests)) / rate
        good = kept(server.serve(planned, rng), slo)
        low, high = (rate, high) if good.mean() >= slo.attainment else (low, rate)
    return (low + high) / 2


def kept(answers: Answers, slo: SLO) -> Any:
    """Which requests kept every bound."""
    values = {"ttft": answers.first - answers.planned, "e2e": answers.end - answers.planned, "tpot": answers.tpot}
    good = np.ones(len(answers.planned), bool)
    for name, value in values.items():
        if (bound := getattr(slo, name)) is not None:
            good &= value <= bound
    return good


# For `simulated`: 3 million requests a rate, 400 000 where tokens are simulated.
SIMULATED = {
    "M/D/1, heavy": (FCFS(1, fixed(0.01)), "e2e<=80ms@99%", 100.0),
    "M/G/1 lognormal": (FCFS(1, lognormal(0.01, 1.0)), "e2e<=200ms@99%", 100.0),
    "M/G/1 Pareto": (FCFS(1, pareto(0.01, 2.5)), "e2e<=250ms@99%", 100.0),
    "batches of 16": (Batches(), "e2e<=350ms@99%", 133.0),
    "prefill and decode, TTFT and TPOT": (PrefillDecode(), "ttft<=500ms,tpot<=40ms@99%", 19.3),
    "prefill and decode, TTFT": (PrefillDecode(), "ttft<=300ms@90%", 19.3),
}
TRUTHS: dict[str, float] = json.loads((Path(__file__).parent / "knee_truths.json").read_text())
CASES = (
    Case("M/M/1 500/s", FCFS(1, exponential(0.002)), "e2e<=200ms@99%", mmc(1, 0.002, 0.2, 0.99)),
    Case("M/M/1 500/s, light", FCFS(1, exponential(0.002)), "e2e<=20ms@95%", mmc(1, 0.002, 0.02, 0.95)),
    Case("M/M/4 100/s", FCFS(4, exponential(0.04)), "e2e<=300ms@99%", mmc(4, 0.04, 0.3, 0.99)),
    Case("M/M/4 100/s, light", FCFS(4, exponential(0.04)), "e2e<=150ms@95%", mmc(4, 0.04, 0.15, 0.95)),
    Case("M/M/8 of 1 s", FCFS(8, exponential(1.0)), "e2e<=9s@99%", mmc(8, 1.0, 9.0, 0.99)),
    Case("M/M/8 of 1 s, light", FCFS(8, exponential(1.0)), "e2e<=4s@95%", mmc(8, 1.0, 4.0, 0.95)),
    *(Case(name, server, slo, TRUTHS[name]) for name, (server, slo, _) in SIMULATED.items()),
)

if __name__ == "__main__":
    for name, (server, slo, capacity) in SIMULATED.items():
        requests = 400_000 if isinstance(server, PrefillDecode) else 3_000_000
        TRUTHS[name] = simulated(server, SLO.parse(slo), capacity, requests)
    Path(__file__).with_name("knee_truths.json").write_text(json.dumps(TRUTHS, indent=1) + "\n")
