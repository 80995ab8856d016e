"""`tailwatch bench URL`: one run, several, or a search for the knee; a table, and the files that were asked for.

Exit status: 0; 1 where the SLO was not held, the run cannot be believed, or the search stays unresolved; 2 for a wrong
call.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.goodput import SLO
from tailwatch.load import results, search
from tailwatch.load import workload as workloads
from tailwatch.load.allocator import grow_in_place
from tailwatch.load.bench import TIMEOUT, Conditions, check_owner, run_workload
from tailwatch.load.probing import prober
from tailwatch.load.report import bench as page
from tailwatch.load.report import csvfile, document, sweep, table
from tailwatch.load.report.progress import Progress, Steps
from tailwatch.load.results import Result
from tailwatch.load.session import needed
from tailwatch.version import VERSION

if TYPE_CHECKING:
    from tailwatch.load.knee import Knee
    from tailwatch.load.schedule import Schedule
    from tailwatch.load.workload import Workload

OK, FOUND = 0, 1
MOST_RUNS = 1000
CEILING_SECONDS = 3.0  # of each closed-loop run that looks for the ceiling
FIRST_WORKERS = 2  # in the first of them
CONNECT = 5.0  # seconds that the first look at the target may take


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes, beside what `workload.add_arguments` adds."""
    parser.add_argument("url", metavar="URL", help="of the server, like http://127.0.0.1:8000")
    workloads.add_arguments(parser)
    _add_measuring(parser.add_argument_group("measuring: what is good, and how the client behaves"))
    _add_finding(parser.add_argument_group("finding the knee"))
    _add_output(parser.add_argument_group("output"))


def _add_measuring(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--slo", metavar="BOUNDS", help="like 'ttft<=500ms,tpot<=40ms@99%%', or mlperf:llama2-70b")
    group.add_argument("--closed", action="store_true", help="send when an answer makes room: the throughput ceiling")
    group.add_argument("--workers", type=int, metavar="N", help="with --closed: requests in flight (default 1)")
    group.add_argument("--runs", type=int, default=1, metavar="N", help="so many, each with a seed of its own")
    group.add_argument("--warmup", type=int, default=0, metavar="N", help="requests before, which are not counted")
    group.add_argument(
        "--timeout", metavar="SECONDS", help=f"of one request, from its sending on (default {TIMEOUT:g})"
    )
    group.add_argument("--drain", metavar="SECONDS", help="for the last ones, after the plan (default: the timeout)")
    group.add_argument(
        "--max-in-flight", type=int, default=0, metavar="N",
        help="most requests at once (default: what sockets allow, at most 10000); a run that it binds is `capped`",
    )  # fmt: skip
    group.add_argument("--processes", type=int, default=1, metavar="N", help="of this client")
    group.add_argument("--insecure", action="store_true", help="do not check the server's certificate")
    group.add_argument(
        "--i-own-this-target", dest="own_target", action="store_true", help="needed where it is not this machine"
    )


def _add_finding(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--find", choices=("goodput", "throughput"),
        help="the largest rate at which --slo holds, or which the server keeps up with",
    )  # fmt: skip
    group.add_argument("--resolution", type=float, default=2.0, metavar="PERCENT", help="half the interval (default 2)")
    group.add_argument("--probe-seconds", type=float, default=10.0, metavar="S", help="the shortest probe (default 10)")
    group.add_argument("--budget", metavar="SECONDS", help="end the search then, with what it has; 30m")


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--name", default="", metavar="NAME", help="what the results call it")
    group.add_argument("--json", type=Path, metavar="FILE", help="all of it, for `tailwatch compare` and programs")
    group.add_argument("--csv", type=Path, metavar="FILE", help="a row a request")
    group.add_argument("--html", type=Path, metavar="FILE", help="one page, which needs no network")
    group.add_argument("--quiet", action="store_true", help="no progress")


def main(parsed: argparse.Namespace) -> int:
    """Runs the command."""
    needed()
    grow_in_place()
    workload = workloads.from_arguments(parsed)
    check_owner(workload, parsed.own_target)
    conditions = _conditions(parsed)
    for note in workload.notes:
        print(f"tailwatch: {note}", file=sys.stderr)
    _reach(workload)
    command = _find if parsed.find is not None else _measure
    with _all_descriptors():
        try:
            return command(parsed, workload, conditions)
        except KeyboardInterrupt:  # a run that goes on takes Ctrl-C itself: this came before or between
            print("tailwatch: interrupted before anything was measured", file=sys.stderr)
            return FOUND


def _conditions(parsed: argparse.Namespace) -> Conditions:
    if parsed.workers is not None and not parsed.closed:
        raise OptionError("workers: expected --closed with it")
    if parsed.closed and parsed.find is not None:
        raise OptionError("find: a search has its own closed loop; leave out --closed")
    if not 1 <= parsed.runs <= MOST_RUNS:
        raise OptionError.of("runs", parsed.runs, f"expected 1 to {MOST_RUNS}")
    if parsed.closed and (parsed.workers or 1) < 1:
        raise OptionError.of("workers", parsed.workers, "expected at least 1")
    return Conditions(
        slo=SLO.parse(parsed.slo) if parsed.slo is not None else None,
        workers=(parsed.workers or 1) if parsed.closed else 0,
        timeout=workloads.seconds_of(parsed.timeout) or TIMEOUT,
        drain=workloads.seconds_of(parsed.drain),
        warmup=parsed.warmup,
        cap=parsed.max_in_flight,
        processes=parsed.processes,
        insecure=parsed.insecure,
        name=parsed.name,
    )


def _reach(workload: Workload) -> None:
    """A server that is not there is a wrong address, most likely: said now, and not after a minute of refusals."""
    where = workload.endpoint
    try:
        socket.create_connection((where.host, where.port), timeout=CONNECT).close()
    except OSError as error:
        raise TailwatchError(f"{where.url}: no server answers there: {error.strerror or error}") from error


@contextmanager
def _all_descriptors() -> Iterator[None]:
    """A connection is a descriptor: as many as this user may have, meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Runs


def _measure(parsed: argparse.Namespace, workload: Workload, conditions: Conditions) -> int:
    found: list[Result] = []
    for number in range(parsed.runs):
        schedule = _schedule(parsed, workload, conditions, number)
        found.append(_once(parsed, workload, conditions, schedule))
        print(table.show(found[-1]), flush=True)
        if found[-1].validity.verdict == "interrupted":
            break
    _write(parsed, found)
    return FOUND if any(not _fine(result) for result in found) else OK


def _schedule(parsed: argparse.Namespace, workload: Workload, conditions: Conditions, number: int) -> Schedule:
    """Of the number-th run: with its own seed, unless it is a saved one."""
    seed = None if workload.fixed is not None else workload.seed + number
    if conditions.workers:
        return workload.closed(seed=seed)
    schedule = workload.schedule(seed=seed)
    if parsed.save_schedule is not None and number == 0:
        schedule.save(parsed.save_schedule)
    return schedule


def _once(parsed: argparse.Namespace, workload: Workload, conditions: Conditions, schedule: Schedule) -> Result:
    planned = None if conditions.workers else len(schedule)
    with Progress(schedule.duration or None, planned, quiet=parsed.quiet) as progress:
        return run_workload(workload, conditions, schedule, due=progress.due, tell=progress.tell, interruptible=True)


def _fine(result: Result) -> bool:
    return result.valid and (result.slo is None or result.goodput.held)


def _write(parsed: argparse.Namespace, found: list[Result]) -> None:
    if parsed.json is not None:
        results.save(parsed.json, found)
    if parsed.csv is not None:
        csvfile.write(found, parsed.csv)
    if parsed.html is not None:
        document.write(page.page(found[-1], found), parsed.html)


# Search


def _find(parsed: argparse.Namespace, workload: Workload, conditions: Conditions) -> int:
    if parsed.find == "goodput" and conditions.slo is None:
        raise OptionError("find=goodput: expected the bounds of a good request: --slo 'ttft<=500ms,tpot<=40ms@99%'")
    if parsed.csv is not None or parsed.runs != 1:
        raise OptionError("find: a search has no rows of requests and sets its own runs; leave out --csv and --runs")
    if workload.fixed is not None:
        raise OptionError("find: a saved schedule has one rate; leave out --schedule")
    steps = Steps(quiet=parsed.quiet)
    deadline = _deadline(parsed)
    with _interrupt() as interrupted:

        def measure(schedule: Schedule) -> Result:
            result = run_workload(workload, conditions, schedule, interruptible=True)
            interrupted.seen |= result.validity.verdict == "interrupted"
            return result

        seconds = min(CEILING_SECONDS, parsed.probe_seconds)
        ceiling = _ceiling(workload, conditions, steps, interrupted, seconds, deadline)
        knee = search.find(
            prober(
                lambda rate, requests, number: workload.schedule(
                    rate=rate, requests=requests, seed=workload.seed + number
                ),
                measure,
                lambda result: steps.tell(_step(result)),
            ),
            ceiling.rate,
            conditions.slo.attainment if conditions.slo is not None else 0.99,
            objective=parsed.find,
            limits=search.Limits(
                resolution=parsed.resolution / 100,
                seconds=parsed.probe_seconds,
                spent=lambda: interrupted.seen or time.monotonic() >= deadline,
            ),
        )
    print(sweep.show(knee), end="")
    _write_knee(parsed, knee)
    if parsed.html is not None:
        slo = conditions.slo.text if conditions.slo is not None else ""
        document.write(sweep.page(knee, target=workload.endpoint.url, slo=slo), parsed.html)
    return OK if knee.resolved else FOUND


class _Interrupt:
    seen = False


@contextmanager
def _interrupt() -> Iterator[_Interrupt]:
    """Ctrl-C between two runs ends the search too."""
    found = _Interrupt()

    def note(*_: object) -> None:
        found.seen = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, before)


def _deadline(parsed: argparse.Namespace) -> float:
    budget = workloads.seconds_of(parsed.budget)
    return float("inf") if budget is None else time.monotonic() + budget


def _ceiling(
    workload: Workload,
    conditions: Conditions,
    steps: Steps,
    interrupted: _Interrupt,
    seconds: float,
    deadline: float,
) -> search.Ceiling:
    """In a closed loop, with more and more workers."""

    def measure(workers: int) -> float:
        if interrupted.seen or time.monotonic() >= deadline:
            return 0.0  # no gain: the end of the climb
        closed = replace(conditions, workers=workers, slo=None)
        result = run_workload(workload, closed, workload.closed(duration=seconds), interruptible=True)
        interrupted.seen |= result.validity.verdict == "interrupted"
        steps.tell(f"closed loop, {workers} workers: {result.goodput.throughput:.4g}/s")
        return result.goodput.throughput

    found = search.saturate(measure, first=FIRST_WORKERS)
    if found.rate <= 0:
        raise TailwatchError(f"{workload.endpoint.url}: not one request was answered without error")
    return found


def _step(result: Result) -> str:
    good = result.goodput
    share = "-" if good.attainment is None else f"{good.attainment:.2%}"
    verdict = "" if result.valid else f" ({result.validity.verdict})"
    return f"{result.offered:.4g}/s, {good.scheduled} requests: {share} good, {good.throughput:.4g}/s finished{verdict}"


def _write_knee(parsed: argparse.Namespace, knee: Knee) -> None:
    if parsed.json is None:
        return
    data = {"tailwatch": VERSION, "format": results.FORMAT, "knee": knee.as_dict()}
    try:
        parsed.json.write_text(json.dumps(data) + "\n", encoding="utf-8")
    except OSError as error:
        raise TailwatchError(f"--json {parsed.json}: {error.strerror}") from error
