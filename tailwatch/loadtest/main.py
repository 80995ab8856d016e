"""`tailwatch bench URL`: one run, several runs, or a search for the knee; prints a table and writes files.

Exit status: 0: success; 1: the SLO was missed, no request was good, a run is invalid, or the search stayed unresolved;
2: usage error; 130: interrupted by Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.interrupts import INTERRUPTED
from tailwatch.loadtest import options, results, search
from tailwatch.loadtest import workload as workloads
from tailwatch.loadtest.bench import TIMEOUT, Conditions, check_owner, run_workload
from tailwatch.loadtest.descriptors import as_many_as_allowed
from tailwatch.loadtest.knee_search import KneeSearch
from tailwatch.loadtest.options import WHEN, refuse, write_json
from tailwatch.loadtest.process import grow_in_place, on_interrupt
from tailwatch.loadtest.report import bench as page
from tailwatch.loadtest.report import csvfile, document, sweep, table, text
from tailwatch.loadtest.report.progress import Progress, Steps
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.session import needed
from tailwatch.options.slo import SLO
from tailwatch.platform import VERSION

if TYPE_CHECKING:
    from tailwatch.loadtest.schedule import Schedule
    from tailwatch.loadtest.workload import Workload

OK, FOUND = 0, 1
ABOUT = "send load to a server and report goodput, and latencies from the planned start of each request"
EXAMPLE = "tailwatch bench http://127.0.0.1:8000 --rate 20 --slo 'ttft<=500ms,tpot<=40ms@99%'"
EXITS = {1: "the SLO was missed, no request was good, a run is invalid, or no knee was found"}
MOST_RUNS = 1000
BUDGET = "20m"  # of a search
CONNECT = 5.0  # seconds that the first look at the target may take
RESOLUTION = 5.0  # per cent
PROBE_SECONDS = 10.0
FINDING = ("resolution", "probe_seconds", "budget")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command, in addition to those of `workload.add_arguments`."""
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
        "--timeout", metavar="60s", help=f"time limit of one request, from its send (default {TIMEOUT:g}s)"
    )
    group.add_argument(
        "--drain",
        metavar="10s",
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
    group.add_argument(
        "--probe-seconds", metavar="5s", help=f"length of the shortest probe (default {PROBE_SECONDS:g}s)"
    )
    group.add_argument(
        "--budget",
        metavar="20m",
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
    for stream in (sys.stdout, sys.stderr):  # a terminal without µ gets the numbers all the same
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
    conditions = conditions_of(parsed)
    limits = limits_of(parsed, workload, conditions) if parsed.find is not None else None
    options.check_files({name: getattr(parsed, name) for name in ("json", "csv", "html", "save_schedule")})
    for note in workload.notes:
        print(f"tailwatch: {note}", file=sys.stderr)
    _reach(workload)
    with as_many_as_allowed():
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


def conditions_of(parsed: argparse.Namespace) -> Conditions:
    """How the load is sent and judged."""
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
    """A server that is not there is a wrong address, most likely: reported now, and not after a minute of refusals."""
    where = workload.endpoint
    try:
        socket.create_connection((where.host, where.port), timeout=CONNECT).close()
    except (OSError, UnicodeError) as error:  # a name that is none is not encoded
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TailwatchError(f"{where.url}: cannot connect: {why}") from error


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
        return run_workload(workload, conditions, schedule, due=progress.due, show=progress.show, interruptible=True)


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


def limits_of(parsed: argparse.Namespace, workload: Workload, conditions: Conditions) -> search.Limits:
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
    return search.Limits(resolution=resolution / 100, seconds=seconds, budget=budget_of(parsed.budget))


def budget_of(text: str | None) -> float:
    """Seconds that a search may take."""
    return workloads.seconds_of(BUDGET if text is None else text, "budget") or 0.0


def _find(parsed: argparse.Namespace, workload: Workload, conditions: Conditions, limits: search.Limits) -> int:
    going = KneeSearch(workload, conditions, limits, parsed.find, Steps(quiet=parsed.quiet).show)
    print(f"searching for at most {text.duration(limits.budget)} (--budget)", file=sys.stderr, flush=True)
    knee = going.find()
    with on_interrupt(lambda: None):
        print(sweep.show(knee), end="")
        if parsed.json is not None:
            write_json(parsed.json, {"tailwatch": VERSION, "format": results.FORMAT, "knee": knee.as_dict()})
        if parsed.html is not None:
            slo = conditions.slo.text if conditions.slo is not None else ""
            document.write(sweep.page(knee, target=workload.endpoint.url, slo=slo), parsed.html)
    if going.interrupted:
        return INTERRUPTED
    return OK if knee.resolved else FOUND
