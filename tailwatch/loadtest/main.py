"""`tailwatch bench URL`: one run, several runs, or a search for the knee; prints a table and writes files.

Exit status: 0: success; 1: the SLO was missed, no request was good, a run is invalid, or the search stayed unresolved;
2: usage error; 130: interrupted by Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import resource
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.interrupts import INTERRUPTED
from tailwatch.loadtest import options, results, search
from tailwatch.loadtest import workload as workloads
from tailwatch.loadtest.bench import TIMEOUT, Conditions, check_owner, run_workload
from tailwatch.loadtest.options import WHEN, refuse, write_json
from tailwatch.loadtest.process import grow_in_place, on_interrupt
from tailwatch.loadtest.report import bench as page
from tailwatch.loadtest.report import csvfile, document, sweep, table
from tailwatch.loadtest.report.progress import Progress, Steps
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.session import needed
from tailwatch.loadtest.trial import ClosedLoop, prober
from tailwatch.options.slo import SLO
from tailwatch.platform import VERSION

if TYPE_CHECKING:
    from tailwatch.loadtest.schedule import Schedule
    from tailwatch.loadtest.workload import Workload

OK, FOUND = 0, 1
ABOUT = "send load to a server and report goodput, and latencies from the planned start of each request"
MOST_RUNS = 1000
CEILING_SECONDS = 3.0  # of each closed-loop run that looks for the ceiling, at least
BUDGET = "30m"  # of a search
PROBE_SHARE = 1 / 6  # of the budget: the longest probe
FIRST_WORKERS = 2  # in the first of them
CONNECT = 5.0  # seconds that the first look at the target may take
RESOLUTION = 2.0  # per cent
PROBE_SECONDS = 10.0
FINDING = ("resolution", "probe_seconds", "budget")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command, in addition to those of `workload.add_arguments`."""
    parser.epilog = (
        "Exit status: 0: success; 1: the SLO was missed, no request was good, a run is invalid, or no knee was found; "
        "2: usage error; 130: interrupted by Ctrl-C, partial results are reported."
    )
    parser.add_argument("url", metavar="URL", help="URL of the server, like http://127.0.0.1:8000")
    workloads.add_arguments(parser)
    _add_measuring(parser.add_argument_group("measuring: bounds of a good request, and the client"))
    _add_finding(parser.add_argument_group("finding the knee"))
    _add_output(parser.add_argument_group("output"))


def _add_measuring(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--slo",
        metavar="BOUNDS",
        help="bounds of a good request, like 'ttft<=500ms,tpot<=40ms@99%%', or a preset like mlperf:llama2-70b",
    )
    group.add_argument(
        "--closed",
        action="store_true",
        help="closed loop: N workers, next request after each response (measures peak throughput)",
    )
    group.add_argument("--workers", type=int, metavar="N", help="with --closed: number of workers (default 1)")
    group.add_argument(
        "--runs", type=int, default=1, metavar="N", help="number of runs, each with its own seed (default 1)"
    )
    group.add_argument(
        "--warmup", type=int, default=0, metavar="N", help="requests before each run, not counted (default 0)"
    )
    group.add_argument(
        "--timeout", metavar="SECONDS", help=f"time limit of one request, from its send (default {TIMEOUT:g})"
    )
    group.add_argument(
        "--drain",
        metavar="SECONDS",
        help="time limit for unfinished requests after the schedule ends (default: the timeout)",
    )
    group.add_argument(
        "--max-in-flight", type=int, metavar="N",
        help="concurrency cap (default: the socket limit, at most 10000); if reached the run is marked `capped`",
    )  # fmt: skip
    group.add_argument("--processes", type=int, default=1, metavar="N", help="client processes (default 1)")
    group.add_argument("--insecure", action="store_true", help="do not verify the TLS certificate of the server")
    group.add_argument(
        "--allow-remote", dest="allow_remote", action="store_true", help="required for a server on another machine"
    )


def _add_finding(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--find", choices=("goodput", "throughput"),
        help="search the largest rate at which --slo holds (goodput), or that the server completes (throughput)",
    )  # fmt: skip
    group.add_argument(
        "--resolution",
        type=float,
        metavar="PERCENT",
        help=f"half width of the result's interval (default {RESOLUTION:g})",
    )
    group.add_argument("--probe-seconds", metavar="S", help=f"length of the shortest probe (default {PROBE_SECONDS:g})")
    group.add_argument(
        "--budget",
        metavar="SECONDS",
        help=f"time limit of the search; its result so far is reported (default {BUDGET})",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--name", default="", metavar="NAME", help="name of the run in the results")
    group.add_argument(
        "--json", type=Path, metavar="FILE", help="write all results, for `tailwatch compare` and programs"
    )
    group.add_argument("--csv", type=Path, metavar="FILE", help="write one row per request")
    group.add_argument("--html", type=Path, metavar="FILE", help="write a report page that works offline")
    group.add_argument("--quiet", action="store_true", help="do not show progress")


def main(parsed: argparse.Namespace) -> int:
    """Runs the command."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows no µ gets the numbers all the same
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return _run(parsed)
    except KeyboardInterrupt:  # what goes on takes Ctrl-C itself: this came before there was anything
        print("tailwatch: interrupted: nothing was measured", file=sys.stderr)
        return INTERRUPTED


def _run(parsed: argparse.Namespace) -> int:
    needed()
    _check_together(parsed)
    grow_in_place()
    workload = workloads.from_arguments(parsed)
    check_owner(workload, parsed.allow_remote)
    if parsed.insecure and not workload.endpoint.secure:
        raise OptionError("insecure: expected an https URL: http has no certificate")
    conditions = _conditions(parsed)
    limits = _limits(parsed, workload, conditions) if parsed.find is not None else None
    options.check_files({name: getattr(parsed, name) for name in ("json", "csv", "html", "save_schedule")})
    for note in workload.notes:
        print(f"tailwatch: {note}", file=sys.stderr)
    _reach(workload)
    with _all_descriptors():
        if limits is not None:
            return _find(parsed, workload, conditions, limits)
        return _measure(parsed, workload, conditions)


def _check_together(parsed: argparse.Namespace) -> None:
    """Refuses options that contradict each other."""
    if parsed.workers is not None and not parsed.closed:
        raise OptionError("workers: requires --closed")
    if parsed.find is not None:
        refuse(parsed, ("closed",), "find: a search runs its own closed loop")
        refuse(parsed, ("rate", "scale", "duration", "requests"), "find: a search sets its own rates and ends")
        refuse(parsed, ("schedule", "save_schedule"), "find: each probe of a search has its own schedule")
        if parsed.csv is not None or parsed.runs != 1:
            raise OptionError("find: a search has no rows per request and sets its own runs; leave out --csv, --runs")
    else:
        refuse(parsed, FINDING, "without --find no search is made")
    if parsed.closed:
        refuse(
            parsed,
            (*WHEN, "max_in_flight"),
            "closed: each response triggers the next request, and --workers sets the concurrency",
        )
    if parsed.runs != 1:
        refuse(parsed, ("save_schedule",), "runs: each run has its own schedule")
    if not parsed.name.isprintable():
        raise OptionError.of("name", parsed.name, "expected printable characters")
    if not 1 <= parsed.runs <= MOST_RUNS:
        raise OptionError.of("runs", parsed.runs, f"expected 1 to {MOST_RUNS}")


def _conditions(parsed: argparse.Namespace) -> Conditions:
    if parsed.closed and parsed.workers is not None and parsed.workers < 1:
        raise OptionError.of("workers", parsed.workers, "expected at least 1")
    if parsed.max_in_flight is not None and parsed.max_in_flight < 1:
        raise OptionError.of("max_in_flight", parsed.max_in_flight, "expected at least 1")
    return Conditions(
        slo=SLO.parse(parsed.slo) if parsed.slo is not None else None,
        workers=(parsed.workers or 1) if parsed.closed else 0,
        timeout=workloads.seconds_of(parsed.timeout, "timeout") or TIMEOUT,
        drain=workloads.seconds_of(parsed.drain, "drain", least=0.0),
        warmup=parsed.warmup,
        cap=parsed.max_in_flight or 0,
        processes=parsed.processes,
        insecure=parsed.insecure,
        name=parsed.name,
    )


def _reach(workload: Workload) -> None:
    """A server that is not there is a wrong address, most likely: said now, and not after a minute of refusals."""
    where = workload.endpoint
    try:
        socket.create_connection((where.host, where.port), timeout=CONNECT).close()
    except (OSError, UnicodeError) as error:  # a name that is none is not encoded
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TailwatchError(f"{where.url}: cannot connect: {why}") from error


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
    interrupted = False
    try:
        for result in _runs(parsed, workload, conditions):
            interrupted = result.interrupted
            if interrupted and not result.outcomes.scheduled:
                break
            found.append(result)
            print(table.show(result), flush=True)
            if interrupted:
                break
    except KeyboardInterrupt:  # between two runs
        interrupted = True
    finally:  # a client process that died in a later run takes nothing from the earlier ones
        with on_interrupt(lambda: None):
            _write(parsed, found)
    if interrupted and not found:
        raise KeyboardInterrupt
    if len(found) > 1:
        print(table.several(found), flush=True)
    return INTERRUPTED if interrupted else FOUND if any(not _fine(result) for result in found) else OK


def _runs(parsed: argparse.Namespace, workload: Workload, conditions: Conditions) -> Iterator[Result]:
    for number in range(parsed.runs):
        yield _once(parsed, workload, conditions, _schedule(parsed, workload, conditions, number))


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
    return result.valid and result.outcomes.good > 0 and (result.slo is None or result.goodput.held is True)


def _write(parsed: argparse.Namespace, found: list[Result]) -> None:
    if not found:
        return
    if parsed.json is not None:
        results.save(parsed.json, found)
    if parsed.csv is not None:
        csvfile.write(found, parsed.csv)
    if parsed.html is not None:
        shown = next((result for result in reversed(found) if result.valid), found[-1])
        document.write(page.page(shown, found), parsed.html)


# Search


@dataclass
class _Spent:
    """Whether a search is to end: Ctrl-C, or its budget is spent. deadline: of time.monotonic()."""

    deadline: float
    interrupted: bool = False

    def __call__(self) -> bool:
        return self.interrupted or time.monotonic() >= self.deadline

    def interrupt(self) -> None:
        """Ctrl-C between two runs, or in the making of one: it is not made."""
        self.interrupted = True
        raise KeyboardInterrupt

    def see(self, result: Result) -> Result:
        """Ctrl-C in a run ends the search too."""
        self.interrupted |= result.interrupted
        return result


def _limits(parsed: argparse.Namespace, workload: Workload, conditions: Conditions) -> search.Limits:
    """How far a search goes.

    Raises:
        OptionError: there can be none.
    """
    if parsed.find == "goodput" and conditions.slo is None:
        raise OptionError(
            "find=goodput: requires the bounds of a good request, like --slo 'ttft<=500ms,tpot<=40ms@99%'"
        )
    if workload.arrivals is not None and workload.arrivals.own_rate:
        raise OptionError.of(
            "find", parsed.find, f"a search sets the rate, but --arrivals {parsed.arrivals} has rates of its own"
        )
    resolution = RESOLUTION if parsed.resolution is None else parsed.resolution
    if not 0.1 <= resolution <= 50:
        raise OptionError.of("resolution", resolution, "expected per cent, 0.1 to 50")
    seconds = workloads.seconds_of(parsed.probe_seconds, "probe_seconds", least=0.1) or PROBE_SECONDS
    longest = min(search.LONGEST, PROBE_SHARE * _budget(parsed))
    return search.Limits(resolution=resolution / 100, seconds=seconds, longest=longest)


def _budget(parsed: argparse.Namespace) -> float:
    return workloads.seconds_of(BUDGET if parsed.budget is None else parsed.budget, "budget") or 0.0


def _find(parsed: argparse.Namespace, workload: Workload, conditions: Conditions, limits: search.Limits) -> int:
    steps, spent = Steps(quiet=parsed.quiet), _Spent(time.monotonic() + _budget(parsed))
    with on_interrupt(spent.interrupt):
        loop = ClosedLoop(min(CEILING_SECONDS, limits.seconds))
        ceiling = _ceiling(workload, conditions, steps, spent, loop)
        knee = search.find(
            prober(
                lambda rate, requests, number: workload.schedule(
                    rate=rate, requests=requests, seed=workload.seed + number
                ),
                lambda schedule: spent.see(run_workload(workload, conditions, schedule, interruptible=True)),
                lambda result: steps.tell(_step(result)),
            ),
            ceiling.rate,
            conditions.slo.attainment if conditions.slo is not None else 0.99,
            objective=parsed.find,
            limits=replace(limits, seconds=max(limits.seconds, loop.seconds), spent=spent),
        )
    with on_interrupt(lambda: None):
        if spent.interrupted:
            knee = replace(knee, resolved=False, reason=f"interrupted: {knee.reason or 'partial result'}")
        print(sweep.show(knee), end="")
        if parsed.json is not None:
            write_json(parsed.json, {"tailwatch": VERSION, "format": results.FORMAT, "knee": knee.as_dict()})
        if parsed.html is not None:
            slo = conditions.slo.text if conditions.slo is not None else ""
            document.write(sweep.page(knee, target=workload.endpoint.url, slo=slo), parsed.html)
    if spent.interrupted:
        return INTERRUPTED
    return OK if knee.resolved else FOUND


def _ceiling(
    workload: Workload, conditions: Conditions, steps: Steps, spent: _Spent, loop: ClosedLoop
) -> search.ClosedLoopCeiling:
    """In a closed loop, with more and more workers."""

    rates: dict[int, float] = {}

    def measure(workers: int) -> float:
        if spent():
            return 0.0  # no gain: the end of the climb
        closed = replace(conditions, workers=workers, slo=None)

        def once(length: float) -> Result:
            return spent.see(run_workload(workload, closed, workload.closed(duration=length), interruptible=True))

        rates[workers] = rate = loop.rate(workers, once)
        steps.tell(f"closed loop, {workers} workers: {rate:.4g}/s")
        return rate

    try:
        found = search.saturate(measure, first=FIRST_WORKERS)
    except KeyboardInterrupt:  # between two of its runs, or as one of them began or ended
        spent.interrupted = True
        found = search.ClosedLoopCeiling(max(rates.values(), default=0.0), max(rates, default=0), tuple(rates.items()))
    if found.rate <= 0 and spent.interrupted:
        raise KeyboardInterrupt
    if found.rate <= 0:
        raise TailwatchError(f"{workload.endpoint.url}: every request failed")
    return found


def _step(result: Result) -> str:
    good = result.goodput
    share = "-" if good.attainment is None else f"{good.attainment:.2%}"
    verdict = "" if result.valid else f" ({result.validity.verdict})"
    return f"{result.offered:.4g}/s, {good.scheduled} requests: {share} good, {good.throughput:.4g}/s finished{verdict}"
