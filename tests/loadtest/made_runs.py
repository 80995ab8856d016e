"""Runs that were never measured: a server that stands still one second in ten, and a client that may, too."""

from __future__ import annotations

import random
from array import array
from typing import Any

from tailwatch.loadtest.goodput import goodput_of
from tailwatch.loadtest.latencies import Latencies
from tailwatch.loadtest.outcomes import CODE, Outcomes
from tailwatch.loadtest.requests import MARKED, NEVER, Requests, samples
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.series import SERIES, Series
from tailwatch.loadtest.validity import ClientHealth, Validity
from tailwatch.options.slo import SLO

NS = 1_000_000_000
ONE_A_REQUEST = (
    "ttft",
    "ttft_naive",
    "first_byte",
    "first_chunk",
    "e2e",
    "e2e_naive",
    "tpot",
    "largest_gap",
    "send_lag",
)


def stalled(rate: float = 40.0, seconds: int = 30, *, cap: int = 0, seed: int = 1, tokens: int = 64) -> Result:
    """One second in ten nothing moves: TTFT p95 505 ms, p99 905 ms, gaps of 1005 ms. cap: requests that may be in
    flight; what is due meanwhile is sent late, and a clock that starts at the send does not see it."""
    rng = random.Random(seed)
    requests = Requests()
    slo = SLO.parse("ttft<=200ms,tpot<=50ms@99%")
    times = sorted(rng.uniform(0, seconds) for _ in range(round(rate * seconds)))
    waiting = 0
    for index, planned in enumerate(times):
        stall = 10 * int(planned / 10) + 9.0
        inside = planned >= stall
        waiting = waiting + 1 if inside else 0
        sent = stall + 1.0 if cap and inside and waiting > cap else planned
        first = (stall + 1.0 if inside else planned) + 0.005 + rng.random() * 0.001
        span = tokens * 0.005
        frozen = not inside and first < stall < first + span
        end = first + span + (1.0 if frozen else 0.0)
        good = first - planned <= 0.2
        _row(
            requests,
            index,
            planned,
            sent,
            first,
            end,
            1.005 if frozen else 0.006,
            stall if frozen else first,
            good,
            tokens,
        )
    return _result(requests, slo, float(seconds), cap)


def _row(
    requests: Requests, index: int, planned: float, sent: float, first: float, end: float, gap: float, gap_at: float,
    good: bool, tokens: int,
) -> None:  # fmt: skip
    moments = {"planned": planned, "sent": sent, "first_byte": first, "first_chunk": first, "first": first}
    moments |= {"last": end, "end": end, "largest_gap": gap, "largest_gap_at": gap_at}
    moments |= {"tpot": (end - first) / (tokens - 1)}
    values = {name: round(value * NS) for name, value in moments.items()}
    values |= {"index": index, "prompt": 100, "wanted": tokens, "tokens": tokens, "messages": tokens, "due": tokens}
    values |= {"met": tokens, "status": 200, "reason": CODE["good" if good else "late"], "fault": 0, "flags": 0}
    requests.add(**values)


def _result(requests: Requests, slo: SLO, seconds: float, cap: int) -> Result:
    latencies = Latencies()
    for name in ONE_A_REQUEST:
        getattr(latencies, name).record_all(samples(requests, name))
    latencies.itl.record_all(array("q", [5_000_000] * (63 * len(requests)) + list(requests.largest_gap)))
    outcomes = Outcomes.of(requests.reason, requests.fault)
    tokens = sum(requests.tokens)
    goodput = goodput_of(
        outcomes, slo, duration=seconds, throughput=len(requests) / seconds, tokens=tokens / seconds,
        broken={"ttft": outcomes.miss} if outcomes.miss else {},
    )  # fmt: skip
    law: dict[str, Any] = {
        "target": "poisson",
        "n": len(requests),
        "duration": seconds,
        "rate": len(requests) / seconds,
    }
    law |= {"cv": 1.01, "fano": 0.98, "ks": 0.02, "p": 0.8}
    validity = Validity()
    if cap:
        validity = Validity("capped", [f"the cap of {cap} requests in flight bound: this was not the load planned"])
    return Result(
        target="http://127.0.0.1:8000/v1/completions", duration=seconds, goodput=goodput, slo=slo, outcomes=outcomes,
        latencies=latencies, tokens=tokens, fluidity=0.99, idle=1.5, series=series_of(requests, int(seconds)),
        validity=validity,
        client=ClientHealth(cpu=0.12, cpu_peak=0.2, in_flight_max=60, opened=60, cap=cap, capped=40 if cap else 0),
        requests=requests, schedule={"digest": "0123456789abcdef", "seed": 1, **law}, elapsed=seconds + 1,
    )  # fmt: skip


def series_of(requests: Requests, seconds: int) -> Series:
    """By the second."""
    series = Series()
    series.reach(seconds + 1)
    for i, planned in enumerate(requests.planned):
        second, ended = planned // NS, requests.end[i] // NS
        good = requests.reason[i] == CODE["good"]
        for name, at, more in (
            ("scheduled", second, 1), ("sent", requests.sent[i] // NS, 1), ("finished", ended, 1),
            ("good", second, int(good)), ("miss", second, int(not good)), ("tokens", ended, requests.tokens[i]),
        ):  # fmt: skip
            series.reach(at)
            getattr(series, name)[at] += more
        series.ttft_max_ns[second] = max(series.ttft_max_ns[second], requests.first[i] - planned)
        series.largest_gap_ns[second] = max(series.largest_gap_ns[second], requests.largest_gap[i])
        for at in range(second, ended + 1):
            series.in_flight[at] += 1
    return series


def paused() -> Result:
    """The client itself was away for a second: the run is invalid, and marked so."""
    result = stalled()
    result.client.pauses, result.client.paused = [(15 * NS, NS)], 1.0
    assert result.requests is not None
    for i, planned in enumerate(result.requests.planned):
        if 15 * NS <= planned < 16 * NS:
            result.requests.flags[i] |= MARKED
            result.client.marked_requests += 1
    result.validity = Validity(
        "invalid", ["requests were sent up to 1 s late: this client stood still for 1 s at 15 s"]
    )
    return result


def empty() -> Result:
    """No answer: every request was refused."""
    requests = Requests()
    for index in range(10):
        values = dict.fromkeys(("first_byte", "first_chunk", "first", "last", "tpot", "largest_gap"), NEVER)
        values |= {"largest_gap_at": NEVER, "planned": index * NS, "sent": index * NS, "end": index * NS + 1000}
        values |= dict.fromkeys(("index", "prompt", "wanted", "tokens", "messages", "due", "met", "status", "flags"), 0)
        requests.add(**values, reason=CODE["error"], fault=1)
    outcomes = Outcomes.of(requests.reason, requests.fault)
    slo = SLO.parse("ttft<=200ms")
    goodput = goodput_of(outcomes, slo, duration=10.0, throughput=0.0, tokens=0.0, broken={})
    latencies = Latencies()
    latencies.send_lag.record_all(samples(requests, "send_lag"))
    series = Series(**{name: [0] * 10 for name in SERIES})
    return Result(
        target="http://127.0.0.1:9", duration=10.0, goodput=goodput, slo=slo, outcomes=outcomes, latencies=latencies,
        requests=requests, series=series,
    )  # fmt: skip
