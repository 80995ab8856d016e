"""Runs it: how much the server can do, how long a run must be, then block after block."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tailwatch.demo import client
from tailwatch.demo.experiment import excerpt
from tailwatch.demo.experiment.arms import ARMS, BY_KEY, ExperimentArm, order
from tailwatch.demo.pipe import Child, ChildError
from tailwatch.loadtest.engine import Job
from tailwatch.options.slo import SLO

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailwatch.demo.pipe import Line
    from tailwatch.loadtest.results import Result
    from tailwatch.loadtest.schedule import Schedule

FEWEST_FULL = 3  # full collections in the window of an unfrozen run, below which it shows nothing about them
EXPECTED_FULL = 4.5  # that a run is made long enough for
SHARE = 0.7  # of what the server can do
CALIBRATION_SECONDS = 8.0
MANY = 20_000  # requests: more than any server finishes in a closed loop's time
WARM_UP, WARM_UP_WORKERS = 48, 24
BESIDE = 8  # workers of the closed loop beside a full batch
DRAIN = 20.0  # seconds given to what is in flight when the schedule is over
CAP = 2_000  # requests in flight
SERVER = "tailwatch.demo.server"


@dataclass(frozen=True, slots=True)
class Size:
    """How much. blocks: of a run of each server. budget: seconds that runs are sized for; limit: no block begins that
    would end after it. shortest, longest: window of a run, seconds; offline: of the closed loop after it. objects: of
    the server's heap."""

    blocks: int = 6
    budget: float = 1100.0
    limit: float = 1170.0
    shortest: float = 10.0
    longest: float = 60.0
    offline: float = 4.0
    objects: int = 720_000


SHORT = Size(blocks=2, budget=230.0, limit=280.0, shortest=6.0, longest=20.0, offline=3.0)


@dataclass(frozen=True, slots=True)
class ArmRun:
    """One run of one arm. result: the client's. offline: output tokens per second of the closed loop after it. server:
    the server's own view of the window: tailwatch's snapshot, collections by generation, longest pauses."""

    arm: str
    block: int
    result: Result
    offline: float
    server: dict[str, Any]

    @property
    def full(self) -> int:
        """Full collections in the window."""
        return int(self.server["collections"][-1])


@dataclass(slots=True)
class Experiment:
    """What was measured. rate: requests per second over the law; seconds: of a run's window; capacity: requests per
    second of the closed loop; objects: tracked before traffic."""

    size: Size
    seed: int
    slo: str
    capacity: float = 0.0
    rate: float = 0.0
    seconds: float = 0.0
    objects: int = 0
    runs: list[ArmRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    failed: str = ""


def measure(size: Size, slo: str, seed: int, show: Callable[[str], None], rate: float | None = None) -> Experiment:
    """All of it. What Ctrl-C or a failure leaves is whole runs; they are raised only before the first of them.

    Raises:
        ChildError: a process of it failed, and nothing was measured yet.
    """
    began = time.monotonic()
    found = Experiment(size, seed, slo)
    overhead, fulls = _calibrate(found, show)
    found.rate = rate or found.capacity * SHARE
    found.seconds = window(size, time.monotonic() - began, overhead, fulls * found.rate)
    show(_sized(found, fulls * found.rate))
    try:
        for block in range(size.blocks):
            if found.runs and _too_late(found, began):
                found.notes.append(f"{block} of {size.blocks} blocks fitted into {size.limit / 60:.0f} minutes")
                break
            schedule = excerpt.replay(found.seconds, found.rate, seed + block)
            for arm in order(block):
                run = _run(found, arm, block, schedule)
                found.runs.append(run)
                show(_done(run, size) + _left(found, began))
    except KeyboardInterrupt:
        if not found.runs:
            raise
        found.interrupted = True
    except Exception as error:  # whatever it is, what was measured is not lost
        if not found.runs:
            raise
        found.failed = f"{type(error).__name__}: {error}"
    if why := "interrupted" if found.interrupted else found.failed:
        found.notes.append(f"ended after {len(found.runs)} of {size.blocks * len(ARMS)} runs: {why}")
    return found


def window(size: Size, used: float, overhead: float, fulls_per_second: float) -> float:
    """Seconds of a run: for EXPECTED_FULL collections, within what the budget leaves.

    used: seconds that are gone. overhead: seconds of a run that are not its window.
    """
    room = (size.budget - used) / (size.blocks * len(ARMS)) - overhead
    wanted = EXPECTED_FULL / fulls_per_second if fulls_per_second > 0 else size.longest
    return float(round(max(size.shortest, min(wanted, room, size.longest))))


def _too_late(found: Experiment, began: float) -> bool:
    """Whether another block, as long as those before it, would end after the limit."""
    used = time.monotonic() - began
    return used + used / len(found.runs) * len(ARMS) > found.size.limit


def _calibrate(found: Experiment, show: Callable[[str], None]) -> tuple[float, float]:
    """Seconds that a run takes beside its window, and full collections per finished request; sets the capacity."""
    began = time.monotonic()
    arm = next(arm for arm in ARMS if arm.key == "neither")
    with Child(SERVER) as server:
        show("calibration: starting a server")
        ready = server.ask(_config(found, arm))
        found.objects = ready["objects"]
        _load(found, server, ready, excerpt.closed(WARM_UP, found.seed), WARM_UP_WORKERS)
        server.ask({"do": "mark"})
        started = time.monotonic() - began
        show(f"calibration: what it can do in {CALIBRATION_SECONDS:g} s")
        many = excerpt.closed(MANY, found.seed)
        result = _load(found, server, ready, many, arm.batch + BESIDE, CALIBRATION_SECONDS)
        full = server.ask({"do": "finish"})["collections"][-1]
    finished = sum(result.series.finished)
    if not finished:
        raise ChildError("calibration: the server finished no request")
    found.capacity = result.goodput.throughput
    # What remains of a started collection counts as half of one: none in so short a time is not a rate of none.
    return started + found.size.offline + 4.0, max(full, 0.5) / finished


def _run(found: Experiment, arm: ExperimentArm, block: int, schedule: Schedule) -> ArmRun:
    with Child(SERVER) as server:
        ready = server.ask(_config(found, arm))
        _load(found, server, ready, excerpt.closed(WARM_UP, found.seed), WARM_UP_WORKERS)
        server.ask({"do": "mark"})
        result = _load(found, server, ready, schedule)
        recorded = server.ask({"do": "finish"})
        many = excerpt.closed(MANY, found.seed + block)
        offline = _load(found, server, ready, many, arm.batch + BESIDE, found.size.offline)
    recorded.pop("pauses", None)
    result.name = arm.key
    result.settings = {"arm": arm.key, "block": block, "gc": arm.gc, "fast_sse": arm.fast_sse, "batch": arm.batch}
    tokens = offline.tokens / max(1, sum(offline.series.finished))  # of an answer that came whole
    return ArmRun(arm.key, block, result, offline.goodput.throughput * tokens, recorded)


def _config(found: Experiment, arm: ExperimentArm) -> Line:
    return {
        "seed": found.seed, "objects": found.size.objects, "arm": arm.gc, "slo": found.slo,
        "fast_sse": arm.fast_sse, "batch": arm.batch,
    }  # fmt: skip


def _load(
    found: Experiment, server: Child, ready: Line, schedule: Schedule, workers: int = 0, seconds: float = 0.0
) -> Result:
    """Open loop, or a closed one of so many workers for so many seconds (0: once through the schedule)."""
    job = Job(
        schedule=schedule,
        make=lambda planned: excerpt.request(planned, found.seed),
        slo=SLO.parse(found.slo),
        cap=CAP,
        drain=DRAIN,
        workers=workers,
        seconds=seconds,
        target="http://127.0.0.1/v1/completions",
    )
    return client.measure(job, server, ready["port"]).result


def _sized(found: Experiment, fulls_per_second: float) -> str:
    expected = fulls_per_second * found.seconds
    few = (
        f"; below {FEWEST_FULL} an unfrozen run does not show what they cost: this machine is too slow or too busy, "
        "and it will end unresolved"
    )
    return (
        f"{found.capacity:.1f} requests/s at most; runs of {found.seconds:.0f} s at {found.rate:.1f}/s, where "
        f"{expected:.1f} full collections are expected; {found.size.blocks} blocks of {len(ARMS)}"
        + (few if expected < FEWEST_FULL else "")
    )


def _done(run: ArmRun, size: Size) -> str:
    e2e, gap = run.result.quantile("e2e", 99), run.result.largest_gap.max
    p99 = "-" if e2e is None else "≥" * e2e.censored + _ms(e2e.seconds)
    numbers = f"E2E p99 {p99}, longest gap {_ms(gap)}, {run.full} full collections"
    doubt = "" if run.result.valid else f"  ({run.result.validity.verdict})"
    name = BY_KEY[run.arm].name
    return f"block {run.block + 1} of {size.blocks}: {name:<18} {numbers}{doubt}"


def _left(found: Experiment, began: float) -> str:
    """How long the rest takes, if it goes on like this; the calibration's seconds are a part of each run."""
    more = found.size.blocks * len(ARMS) - len(found.runs)
    minutes = (time.monotonic() - began) / len(found.runs) * more / 60
    return f"; about {minutes:.0f} min left" if more else ""


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.0f} ms"
