"""`tailwatch ablate --server 'CMD {port}' --variants FILE`: the same load on each variant, and what it shows.

Exit status: 0, also where no difference is shown; 1 where runs are missing (Ctrl-C, or too many that may not be
believed); 2 for a wrong call, or a server that does not start.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from tailwatch.errors import OptionError
from tailwatch.goodput import SLO
from tailwatch.load import variants, workload
from tailwatch.load.ablate import ENDED, Found, Plan, ablate
from tailwatch.load.bench import TIMEOUT, Conditions, run_workload
from tailwatch.load.compare_main import add_looking, looked_at, present
from tailwatch.load.launch import PORT, command_of, free_port, server
from tailwatch.load.measures import Measure
from tailwatch.load.report.progress import Steps
from tailwatch.load.results import Result
from tailwatch.load.session import needed
from tailwatch.load.statistics import FEWEST
from tailwatch.load.variants import Variant
from tailwatch.load.workload import Workload

OK, FOUND = 0, 1
HOST = "127.0.0.1"
PATIENCE = 600.0
WARMUP = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command, beside what `workload.add_arguments` adds."""
    own = parser.add_argument_group("variants")
    own.add_argument(
        "--server", required=True, metavar="CMD", help="starts the server; {port} stands for the port it shall take"
    )
    own.add_argument(
        "--variants", required=True, metavar="FILE",
        help="a line each, 'name: NAME=VALUE … words behind CMD'; the first is what the others are compared with",
    )  # fmt: skip
    own.add_argument("--port", type=int, metavar="N", help="of the server, where CMD does not say {port}")
    own.add_argument("--ready", metavar="PATH", help="wait until a GET of it gives 2xx (default: until it accepts)")
    own.add_argument("--patience", metavar="SECONDS", help=f"for a server to be ready (default {PATIENCE:g})")
    own.add_argument("--pairs", type=int, default=FEWEST, metavar="N", help=f"of runs, {FEWEST} at least (default)")
    own.add_argument("--no-floor", action="store_true", help="do not run the first variant twice in each pair (A/A)")
    own.add_argument("-o", dest="out", type=Path, metavar="DIR", help="keep all runs, a file a variant, for `compare`")
    add_looking(own)
    workload.add_arguments(parser)
    _add_conditions(parser.add_argument_group("measuring: at which loads, and what is good"))


def _add_conditions(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--rates", metavar="R,R", help="several loads instead of --rate, compared each by itself")
    group.add_argument("--workers", metavar="N,N", help="closed loops of so many requests in flight, instead of rates")
    group.add_argument("--slo", metavar="BOUNDS", help="like 'ttft<=500ms,tpot<=40ms@99%%', or mlperf:llama2-70b")
    group.add_argument(
        "--warmup", type=int, default=WARMUP, metavar="N", help=f"requests before each run (default {WARMUP})"
    )
    group.add_argument("--timeout", metavar="SECONDS", help=f"of one request (default {TIMEOUT:g})")
    group.add_argument("--processes", type=int, default=1, metavar="N", help="of this client")
    group.add_argument("--quiet", action="store_true", help="no progress")


@dataclass(frozen=True)
class _Load:
    """One of the loads: of an open loop where rate is given, of a closed one where workers are."""

    rate: float | None = None
    workers: int = 0

    @property
    def name(self) -> str:
        return f"{self.workers} in flight" if self.workers else "" if self.rate is None else f"{self.rate:g}/s"


def main(parsed: argparse.Namespace) -> int:
    """Runs the command."""
    needed()
    measures, steps = looked_at(parsed), Steps(quiet=parsed.quiet)
    loads = {load.name: load for load in _loads(parsed)}
    plan = Plan(variants.read(parsed.variants), tuple(loads), parsed.pairs, not parsed.no_floor)
    bench = _Bench(parsed, loads)
    steps.tell(f"{plan.runs} runs, each in a fresh server")
    found: Found | None = None
    try:
        for found in ablate(plan, bench.run, steps.tell):
            if parsed.out is not None:
                found.save(parsed.out)
    except KeyboardInterrupt:
        steps.tell("interrupted: what there is")
    if found is None:
        print("tailwatch ablate: ended before the first pair was whole", file=sys.stderr)
        return FOUND
    return _report(parsed, found, measures)


def _report(parsed: argparse.Namespace, found: Found, measures: list[Measure]) -> int:
    comparison = found.compare(measures)
    present(comparison, parsed)
    whole = all(min(table.runs) >= parsed.pairs for table in comparison.tables)
    return OK if whole else FOUND


class _Bench:
    """Runs variants of the server that the arguments name."""

    def __init__(self, parsed: argparse.Namespace, loads: dict[str, _Load]) -> None:
        if (parsed.port is None) == (PORT not in parsed.server):
            raise OptionError.of(
                "server", parsed.server, "expected {port} in the command, or --port with one of its own"
            )
        if parsed.save_schedule is not None:
            raise OptionError(
                "save_schedule: each pair has a schedule of its own; its seed and digest stand in its runs"
            )
        self.port = parsed.port if parsed.port is not None else free_port()
        self.parsed, self.loads = parsed, loads
        self.workload: Workload = workload.from_arguments(parsed, f"http://{HOST}:{self.port}")
        self.patience = workload.seconds_of(parsed.patience) or PATIENCE
        self.slo = SLO.parse(parsed.slo) if parsed.slo is not None else None
        self.timeout = workload.seconds_of(parsed.timeout) or TIMEOUT

    def run(self, variant: Variant, load: str, pair: int) -> Result:
        """One run in a fresh server."""
        chosen = self.loads[load]
        conditions = Conditions(
            slo=self.slo, workers=chosen.workers, timeout=self.timeout, warmup=self.parsed.warmup,
            processes=self.parsed.processes, name=variant.name,
        )  # fmt: skip
        seed = None if self.workload.fixed is not None else self.workload.seed + pair
        if chosen.workers:
            schedule = self.workload.closed(seed=seed)
        else:
            schedule = self.workload.schedule(rate=chosen.rate, seed=seed)
        command = command_of(self.parsed.server, variant.words, self.port)
        place = (HOST, self.port)
        with server(
            command, variant.environment, *place, path=self.parsed.ready, patience=self.patience
        ) as ended:  # fmt: skip
            result = run_workload(self.workload, conditions, schedule, interruptible=True)
            if how := ended():
                result.validity.warnings.append(f"{ENDED} during the run: {how}")
        if chosen.rate is not None:
            result.settings = {**result.settings, "rate": chosen.rate}
        return result


def _loads(parsed: argparse.Namespace) -> list[_Load]:
    if parsed.rates is not None and (parsed.workers is not None or parsed.rate is not None):
        raise OptionError("rates: leave out --rate and --workers with it")
    if parsed.workers is not None:
        return [_Load(workers=round(number)) for number in _numbers("workers", parsed.workers, 1.0)]
    if parsed.rates is not None:
        return [_Load(rate=number) for number in _numbers("rates", parsed.rates, 1e-6)]
    return [_Load()]


def _numbers(option: str, written: str, least: float) -> list[float]:
    try:
        found = [float(part) for part in written.split(",")]
    except ValueError:
        found = []
    if not found or not all(least <= number <= 1e6 for number in found) or len(set(found)) < len(found):
        raise OptionError.of(option, written, "expected different numbers with commas between, like 8,16,32")
    return found
