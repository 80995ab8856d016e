"""The demo's measurement: the server's capacity, then each arm under the same schedule in a fresh server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailwatch.demo import client, machine, settings, traffic
from tailwatch.demo.pipe import Child, ChildError
from tailwatch.demo.summary import summarize
from tailwatch.demo.timeline import timeline
from tailwatch.loadtest.engine import Job
from tailwatch.loadtest.report.progress import Steps
from tailwatch.loadtest.trial import steady_rate

if TYPE_CHECKING:
    from tailwatch.loadtest.schedule import Schedule
    from tailwatch.options.slo import SLO

DRAIN = 15.0  # seconds given to what is in flight when the schedule is over
SERVER = "tailwatch.demo.server"


def measure(
    duration: float, rate: float | None, slo: SLO, seed: int, objects: int = settings.OBJECTS
) -> dict[str, Any]:
    """All arms. Times in seconds, rates per second. On stderr a line for each step. What Ctrl-C leaves are whole arms,
    marked ``interrupted``; it is raised only before the first of them."""
    described, steps = machine.describe(), Steps()
    capacity = None
    if rate is None:
        capacity = _calibrate(steps, seed, objects)
        rate = capacity * settings.SHARE_OF_CAPACITY
    schedule = traffic.open_loop(rate, duration, seed)
    arms: dict[str, Any] = {}
    interrupted = False
    try:
        for arm in settings.ARMS:
            arms[arm] = _run_arm(steps, arm, schedule, slo, seed, objects)
    except KeyboardInterrupt:
        if not arms:
            raise
        interrupted = True
    planned = {
        "hash": schedule.digest,
        "requests": len(schedule),
        "mean_tokens": sum(schedule.output_tokens) / max(1, len(schedule)),
        "seconds": duration,
    }
    report = {
        "version": 1,
        "seed": seed,
        "slo": slo.text,
        "machine": described,
        "capacity": capacity,
        "rate": rate,
        "schedule": planned,
        "arms": arms,
        "interrupted": interrupted,
    }
    left = {} if interrupted else arms["observe"]["server"]["tailwatch"]
    return report | {name: left[name] for name in ("snapshot", "context") if name in left}


def _calibrate(steps: Steps, seed: int, objects: int) -> float:
    """Requests per second that a server of its own, without tailwatch, finishes when its batch is always full."""
    with Child(SERVER) as server:
        steps.show("calibration: starting a server")
        ready = server.ask({"seed": seed, "objects": objects, "arm": None})
        steps.show("calibration: measuring its capacity")
        workers = ready["batch"] + 8
        schedule = traffic.closed_loop(settings.CALIBRATION_REQUESTS, seed)
        job = Job(schedule, traffic.request, workers=workers, seconds=settings.CALIBRATION_SECONDS, drain=DRAIN)
        found = steady_rate(client.measure(job, server, ready["port"]).result, workers)
    if found <= 0:
        raise ChildError("calibration: the server finished no request; give a --rate to go without")
    return found


def _run_arm(steps: Steps, arm: str, schedule: Schedule, slo: SLO, seed: int, objects: int) -> dict[str, Any]:
    with Child(SERVER) as server:
        steps.show(f"gc='{arm}': starting a server")
        ready = server.ask({"seed": seed, "objects": objects, "arm": arm, "slo": slo.text})
        steps.show(f"gc='{arm}': warm-up")
        few = traffic.closed_loop(settings.WARM_UP_REQUESTS, seed + 1)
        warm_up = Job(few, traffic.request, workers=settings.WARM_UP_CONCURRENCY, drain=DRAIN)
        client.measure(warm_up, server, ready["port"])
        server.ask({"do": "mark"})
        before = machine.CPUTime.now()
        steps.show(f"gc='{arm}': measuring")
        found = client.measure(Job(schedule, traffic.request, slo, drain=DRAIN, name=arm), server, ready["port"])
        recorded = server.ask({"do": "finish"})
    pauses = recorded.pop("pauses")
    return {
        "client": summarize(found.result),
        "server": recorded | {"objects": ready["objects"]},
        "timeline": timeline(found.stamps, found.start_ns, pauses, seed),
        "cores_of_others": before.cores_of_others(recorded["cpu_seconds"]),
    }
