"""`tailwatch ablate --server 'CMD {port}' --variants FILE`: compares variants of a server under the same load.

Exit status: 0: success, also if no difference is shown; 1: runs are missing (a server did not start again, or too many
runs are invalid); 2: usage error, or the server did not start at all; 130: interrupted by Ctrl-C. Complete pairs are
reported in each case.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.interrupts import INTERRUPTED
from tailwatch.loadtest import options, variants, workload
from tailwatch.loadtest.ablate import AblationPlan, Found, ablate
from tailwatch.loadtest.bench import TIMEOUT, Conditions, run_workload
from tailwatch.loadtest.compare_main import add_looking, looked_at, present
from tailwatch.loadtest.metrics import Measure
from tailwatch.loadtest.options import WHEN, refuse
from tailwatch.loadtest.process import on_interrupt
from tailwatch.loadtest.report.progress import Steps
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.server_process import PORT, command_of, free_port, server
from tailwatch.loadtest.session import needed
from tailwatch.loadtest.statistics import FEWEST
from tailwatch.loadtest.variants import Variant
from tailwatch.loadtest.workload import Workload
from tailwatch.options.slo import SLO

OK, FOUND = 0, 1
ABOUT = "compare variants of a server: interleaved runs, each in a fresh server under the same load"
EXAMPLE = "tailwatch ablate --server 'python app.py {port}' --variants variants.yaml --rate 20"
EXITS = {
    0: "success, also if no difference is shown",
    1: "runs are missing",
    2: "usage error, or the server did not start",
}
HOST = "127.0.0.1"
PATIENCE = 600.0
WARMUP = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command, in addition to those of `workload.add_arguments`."""
    own = parser.add_argument_group("variants")
    own.add_argument(
        "--server",
        required=True,
        metavar="CMD",
        help="command that starts the server; {port} is replaced by the port to use",
    )
    own.add_argument(
        "--variants", required=True, metavar="FILE",
        help="one variant per line, 'name: NAME=VALUE … arguments appended to CMD'; the first is the baseline",
    )  # fmt: skip
    own.add_argument("--port", type=int, metavar="N", help="port of the server, if CMD does not contain {port}")
    own.add_argument(
        "--ready-path",
        metavar="PATH",
        help="wait until GET PATH returns 2xx (default: until the port accepts connections)",
    )
    own.add_argument(
        "--startup-timeout", metavar="60s", help=f"time limit for a server to become ready (default {PATIENCE:g}s)"
    )
    own.add_argument(
        "--pairs", type=int, default=FEWEST, metavar="N", help=f"pairs of runs, at least {FEWEST} (default)"
    )
    own.add_argument(
        "--no-baseline-repeat", action="store_true", help="do not run the baseline twice in each pair (A/A)"
    )
    own.add_argument(
        "-o", dest="out", type=Path, metavar="DIR", help="keep all runs, one file per variant, for `compare`"
    )
    add_looking(own)
    workload.add_arguments(parser)
    _add_conditions(parser.add_argument_group("measuring: loads, and bounds of a good request"))


def _add_conditions(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--rates", metavar="R,R", help="several rates instead of --rate, each compared separately")
    group.add_argument("--workers", metavar="N,N", help="closed loops with these numbers of workers, instead of rates")
    group.add_argument(
        "--slo",
        metavar="BOUNDS",
        help="bounds of a good request, like 'ttft<=500ms,tpot<=40ms@99%%', or a preset like mlperf:llama2-70b",
    )
    group.add_argument(
        "--warmup", type=int, default=WARMUP, metavar="N", help=f"requests before each run (default {WARMUP})"
    )
    group.add_argument("--timeout", metavar="60s", help=f"time limit of one request (default {TIMEOUT:g}s)")
    group.add_argument("--processes", type=int, default=1, metavar="N", help="client processes (default 1)")
    group.add_argument("--quiet", action="store_true", help="do not show progress")


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
    plan = AblationPlan(variants.read(parsed.variants), tuple(loads), parsed.pairs, not parsed.no_baseline_repeat)
    bench = _Bench(parsed, loads)
    options.check_files({"json": parsed.json, "html": parsed.html})
    if parsed.out is not None:
        options.check_directory("-o", parsed.out)
    for note in bench.workload.notes:
        steps.show(note)
    steps.show(f"{plan.runs} runs, each in a fresh server")
    return _run(parsed, plan, bench, measures, steps)


def _run(parsed: argparse.Namespace, plan: AblationPlan, bench: _Bench, measures: list[Measure], steps: Steps) -> int:
    """Runs all, and reports what there is, whatever ended it.

    Raises:
        TailwatchError: a server failed before the first pair was whole.
    """
    found: Found | None = None
    interrupted, why = False, ""
    try:
        for found in ablate(plan, bench.run, steps.show):
            if parsed.out is not None:
                found.save(parsed.out)
    except KeyboardInterrupt:
        interrupted = True
    except TailwatchError as error:
        if found is None:
            raise
        why = str(error)
    except Exception:  # a fault of ours takes nothing from what was measured
        if found is not None:
            _report(parsed, found, measures)
        raise
    interrupted |= found is not None and found.interrupted
    if interrupted:
        why = "interrupted"
    if found is None:
        print("tailwatch ablate: interrupted before the first pair was complete: nothing was compared", file=sys.stderr)
        return INTERRUPTED
    complete = _report(parsed, found, measures)
    if why or not complete:
        why = why or "too many runs are invalid"
        print(f"tailwatch ablate: ended after {found.whole} of {plan.pairs} pairs: {why}", file=sys.stderr)
    return INTERRUPTED if interrupted else OK if complete and not why else FOUND


def _report(parsed: argparse.Namespace, found: Found, measures: list[Measure]) -> bool:
    """Whether all pairs that were asked for are in it."""
    with on_interrupt(lambda: None):
        if parsed.out is not None:
            found.save(parsed.out)
        comparison = found.compare(measures)
        present(comparison, parsed)
    return all(min(table.runs) >= parsed.pairs for table in comparison.tables)


class _Bench:
    """Runs variants of the server that the arguments name."""

    def __init__(self, parsed: argparse.Namespace, loads: dict[str, _Load]) -> None:
        if (parsed.port is None) == (PORT not in parsed.server):
            raise OptionError.of("server", parsed.server, "expected either {port} in the command or --port")
        if parsed.save_schedule is not None:
            raise OptionError("save_schedule: each pair has its own schedule; its runs record the seed and digest")
        if parsed.port is not None and not 1 <= parsed.port <= 65535:
            raise OptionError.of("port", parsed.port, "expected 1 to 65535")
        self.port = parsed.port if parsed.port is not None else free_port()
        self.parsed, self.loads = parsed, loads
        self.workload: Workload = workload.from_arguments(parsed, f"http://{HOST}:{self.port}")
        self.patience = workload.seconds_of(parsed.startup_timeout, "startup-timeout") or PATIENCE
        self.slo = SLO.parse(parsed.slo) if parsed.slo is not None else None
        self.timeout = workload.seconds_of(parsed.timeout, "timeout") or TIMEOUT
        own = self.workload.arrivals is not None and self.workload.arrivals.own_rate
        if own and parsed.rates is not None:
            raise OptionError.of("rates", parsed.rates, f"--arrivals {parsed.arrivals} has rates of its own")
        for load in loads.values():
            self._conditions(load, "")

    def _conditions(self, load: _Load, name: str) -> Conditions:
        return Conditions(
            slo=self.slo, workers=load.workers, timeout=self.timeout, warmup=self.parsed.warmup,
            processes=self.parsed.processes, name=name,
        )  # fmt: skip

    def run(self, variant: Variant, load: str, pair: int) -> Result:
        """One run in a fresh server."""
        chosen = self.loads[load]
        conditions = self._conditions(chosen, variant.name)
        seed = None if self.workload.fixed is not None else self.workload.seed + pair
        if chosen.workers:
            schedule = self.workload.closed(seed=seed)
        else:
            schedule = self.workload.schedule(rate=chosen.rate, seed=seed)
        command = command_of(self.parsed.server, variant.words, self.port)
        place = (HOST, self.port)
        with server(
            command, variant.environment, *place, path=self.parsed.ready_path, patience=self.patience
        ) as ended:  # fmt: skip
            result = run_workload(self.workload, conditions, schedule, interruptible=True)
            if how := ended():
                result.validity.verdict = "invalid"
                result.validity.reasons.append(f"the server exited during the run: {how}")
        if chosen.rate is not None:
            result.settings = {**result.settings, "rate": chosen.rate}
        return result


def _loads(parsed: argparse.Namespace) -> list[_Load]:
    if parsed.rates is not None:
        refuse(parsed, ("rate", "workers", "scale", "schedule"), "rates: each rate is a separate load")
    if parsed.workers is not None:
        refuse(parsed, WHEN, "workers: a closed loop sends the next request after each response")
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
        raise OptionError.of(option, written, "expected distinct numbers separated by commas, like 8,16,32")
    return found
