"""The load tester as a function: `tailwatch.loadtest.run(url, rate=40, slo="ttft<=500ms") -> Result`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tailwatch.errors import OptionError
from tailwatch.loadtest import descriptors
from tailwatch.loadtest.arrivals import Arrivals, checked_duration, checked_rate, checked_requests
from tailwatch.loadtest.endpoint import endpoint, hidden
from tailwatch.loadtest.lengths import Lengths
from tailwatch.loadtest.processes import run_in
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.schedule import Schedule
from tailwatch.loadtest.session import Due, Setup, Show
from tailwatch.loadtest.workload import Workload
from tailwatch.options.slo import SLO, real

TIMEOUT = 60.0
MOST_CAP = 10_000
SPARE_DESCRIPTORS = 64
MOST_PROCESSES = 256
LONGEST_TIMEOUT = 24 * 3600.0
EXAMPLE = 200  # characters of a failure that are shown


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a workload is sent and judged.

    slo: None: every request that finishes without error is good. workers: 0 for an open loop, else a closed one of so
    many requests in flight. timeout: seconds that one request may take. drain: seconds that the last requests are
    waited for; None: as long as the timeout, so that all have the same chance. cap: most requests in flight of an open
    loop; 0: as many as this process may open sockets, at most 10 000. insecure: certificates are not checked.
    """

    slo: SLO | None = None
    workers: int = 0
    timeout: float = TIMEOUT
    drain: float | None = None
    warmup: int = 0
    cap: int = 0
    processes: int = 1
    insecure: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        _checked("workers", self.workers, 0, 1_000_000)
        _checked("processes", self.processes, 1, MOST_PROCESSES)
        _checked("warmup", self.warmup, 0, 1_000_000)
        _checked("max_in_flight", self.cap, 0, 1_000_000)
        if not 0 < real(self.timeout) <= LONGEST_TIMEOUT:
            raise OptionError.of("timeout", self.timeout, "expected seconds above 0 and up to a day")
        if self.drain is not None and not 0 <= real(self.drain) <= LONGEST_TIMEOUT:
            raise OptionError.of("drain", self.drain, "expected seconds up to a day")

    @property
    def in_flight(self) -> int:
        """The cap in force, of all processes together."""
        if self.cap:
            return self.cap
        room = descriptors.room()
        each = MOST_CAP if room is None else max(1, min(MOST_CAP, room - SPARE_DESCRIPTORS))
        return min(MOST_CAP, each * self.processes)


def _checked(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise OptionError.of(name, value, f"expected a whole number from {least} to {most}")


def setup_of(workload: Workload, conditions: Conditions) -> Setup:
    """What the client processes are given of both."""
    where = workload.endpoint
    asked = {"workers": conditions.workers, "timeout": conditions.timeout, "warmup": conditions.warmup}
    asked |= {"max_in_flight": conditions.in_flight, "processes": conditions.processes}
    return Setup(
        host=where.host,
        port=where.port,
        make=workload.make(),
        secure=where.secure,
        insecure=conditions.insecure,
        slo=conditions.slo,
        timeout=conditions.timeout,
        drain=conditions.timeout if conditions.drain is None else conditions.drain,
        cap=conditions.in_flight,
        marked=where.marked,
        empty=workload.empty,
        workers=conditions.workers,
        warmup=conditions.warmup,
        target=where.url,
        name=conditions.name,
        settings={**workload.settings, **{name: value for name, value in asked.items() if value}},
    )


def run_workload(
    workload: Workload,
    conditions: Conditions,
    schedule: Schedule | None = None,
    *,
    due: Due | None = None,
    show: Show | None = None,
    interruptible: bool = False,
) -> Result:
    """Sends a workload, or one schedule of it, once. due, show: for a display of its progress. interruptible: Ctrl-C
    ends the run, whose result is what was had until then."""
    if schedule is None:
        schedule = workload.closed() if conditions.workers else workload.schedule()
    if not len(schedule):
        raise OptionError("requests: not one is planned: expected a longer duration or a higher rate")
    busy = min(conditions.processes, len(schedule), conditions.workers or conditions.in_flight)
    conditions = replace(conditions, processes=busy)  # one without a request, or without a place for one, has no part
    setup = setup_of(workload, conditions)
    result = run_in(busy, setup, schedule, due=due, show=show, interruptible=interruptible)
    secrets = workload.endpoint.secrets
    result.examples = {
        name: [hidden(text, secrets)[:EXAMPLE] for text in texts] for name, texts in result.examples.items()
    }
    return result


def check_owner(workload: Workload, allow_remote: bool) -> None:
    """Load is for servers of one's own.

    Raises:
        OptionError: the target is another machine, and it was not allowed to be loaded.
    """
    if not allow_remote and not workload.endpoint.loopback:
        raise OptionError(
            f"{workload.endpoint.url} is not this machine: give --allow-remote (allow_remote=True) where you may "
            "load it; its owner may take it for an attack"
        )


def run(
    url: str,
    *,
    rate: float | None = None,
    duration: float | None = None,
    requests: int | None = None,
    arrivals: str = "poisson",
    workers: int = 0,
    slo: str | SLO | None = None,
    model: str | None = None,
    api: str | None = None,
    path: str | None = None,
    prompt_tokens: str | int | None = None,
    output_tokens: str | int | None = None,
    headers: Iterable[str] = (),
    api_key: str | None = None,
    extra_body: Mapping[str, Any] | None = None,
    seed: int = 0,
    timeout: float = TIMEOUT,
    warmup: int = 0,
    max_in_flight: int = 0,
    processes: int = 1,
    insecure: bool = False,
    allow_remote: bool = False,
    name: str = "",
) -> Result:
    """Loads a server once and returns what it did; for tests: ``assert run(url, rate=40, slo=…).goodput.held``.

    url: like http://127.0.0.1:8000. rate: requests per second, of an open loop with `arrivals` (see
    `tailwatch.loadtest.arrivals`); workers: a closed loop of so many requests in flight instead. duration (seconds) and
    requests: where it ends, whichever comes first (60 s by default). model: an LLM's, as the server calls it; without
    one, and without `api`, it is a plain GET. The rest is as the options of ``tailwatch bench``; traces, files of
    prompts and saved schedules are of `run_workload`. Blocks until the run is over; not inside a running event loop.

    Raises:
        OptionError: an argument is wrong, or the target is not this machine and allow_remote is not set.
        TailwatchError: httptools is not installed, or a client process died. What the server does raises nothing.
    """
    where = endpoint(url, api=api, path=path, model=model, headers=headers, api_key=api_key, environment=os.environ)
    workload = Workload(
        endpoint=where,
        model=model,
        arrivals=Arrivals.parse(arrivals),
        rate=None if rate is None else checked_rate(rate),
        duration=None if duration is None else checked_duration(duration),
        requests=None if requests is None else checked_requests(requests),
        seed=seed,
        prompt_tokens=None if prompt_tokens is None else Lengths.parse(prompt_tokens, option="prompt_tokens"),
        output_tokens=None if output_tokens is None else Lengths.parse(output_tokens, option="output_tokens"),
        extra=dict(extra_body or {}),
    )
    check_owner(workload, allow_remote)
    bounds = SLO.parse(slo) if isinstance(slo, str) else slo
    conditions = Conditions(
        slo=bounds,
        workers=workers,
        timeout=timeout,
        warmup=warmup,
        cap=max_in_flight,
        processes=processes,
        insecure=insecure,
        name=name,
    )
    return run_workload(workload, conditions)
