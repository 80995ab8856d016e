"""`tailwatch demo`: measure and print. Needs only the standard library until the work starts."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import Any

from tailwatch.demo import settings
from tailwatch.demo.pipe import ChildError
from tailwatch.errors import OptionError, how_to_install
from tailwatch.interrupts import INTERRUPTED
from tailwatch.options.slo import SLO, duration

OK, FAILED, WRONG_CALL = 0, 1, 2
NEEDED = ("fastapi", "uvicorn", "httptools", "numpy", "rich")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `tailwatch demo`."""
    parser.add_argument(
        "--duration", type=duration, metavar="30s", help=f"measured time per arm ({settings.DURATION:g}s)"
    )
    parser.add_argument("--rate", type=float, metavar="R", help="requests per second (60%% of the measured capacity)")
    parser.add_argument("--slo", metavar="SLO", help=f"bounds on a request ({settings.SLO.replace('%', '%%')})")
    parser.add_argument("--seed", type=int, metavar="N", help=f"of the plan, the model and the heap ({settings.SEED})")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    group = parser.add_argument_group("the whole experiment")
    group.add_argument(
        "--experiment", action="store_true",
        help="a trace replayed on five servers in six interleaved blocks, with intervals; up to 20 minutes",
    )  # fmt: skip
    group.add_argument(
        "--short", action="store_true", help="with --experiment: two blocks in four minutes, without intervals"
    )
    group.add_argument("--html", metavar="FILE", help="with --experiment: write a page that needs nothing else")
    parser.add_argument(
        "--stalls", action="store_true",
        help="plant stalls of eleven kinds in the server, and print what `tailwatch why` names; 40 s",
    )  # fmt: skip
    parser.add_argument("--serve", action="store_true", help="only run the server, frozen, until Ctrl-C")
    parser.add_argument("--port", type=int, metavar="PORT", help="for --serve; a free one by default")


def main(options: argparse.Namespace) -> int:
    """Run the demo with the options of `add_arguments`, None for a default.

    Returns:
        0, or 1 when a process of the demo failed, 130 when Ctrl-C ended it, or 2 when a package is missing.

    Raises:
        OptionError: a bad value; the message names it.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return _error(f"the demo needs {', '.join(missing)}: {how_to_install('demo')}", WRONG_CALL)
    try:
        return run(options)
    except ChildError as error:
        return _error(str(error), FAILED)
    except KeyboardInterrupt:
        return _error("interrupted; its processes are ended", INTERRUPTED)


def run(options: argparse.Namespace) -> int:
    """Serve, or measure and print."""
    slo = SLO.parse(_given(options, "slo", settings.SLO))
    seed = _given(options, "seed", settings.SEED)
    for name in ("serve", "experiment"):
        if _given(options, "stalls", False) and _given(options, name, False):
            raise OptionError(f"--stalls: expected without --{name}")
    if _given(options, "serve", False):
        return _serve(int(_given(options, "port", 0)), seed, slo)
    rate = _positive(options, "rate")
    if _given(options, "experiment", False):
        from tailwatch.demo.experiment import main as experiment

        return experiment.main(options, slo, seed)
    for name in ("short", "html"):
        if _given(options, name, False):
            raise OptionError(f"--{name}: expected with --experiment")
    file = _given(options, "json", None)
    if _given(options, "stalls", False):
        return _stalls(slo, seed, file)
    duration = _positive(options, "duration") or settings.DURATION

    from tailwatch.demo.measurement import measure
    from tailwatch.loadtest import options as output

    output.check_files({"json": file})
    report = measure(duration, rate, slo, seed)
    report["file"] = None if file is None else str(file)
    if not report["interrupted"]:
        _print(report)
    if file is not None:
        output.write_json(file, report)
    return _error("interrupted; its processes are ended", INTERRUPTED) if report["interrupted"] else OK


def _stalls(slo: SLO, seed: int, file: str | None) -> int:
    from tailwatch.demo import stalls
    from tailwatch.loadtest import options as output

    output.check_files({"json": file})
    report = stalls.measure(slo, seed)
    print(stalls.text_of(report))
    if file is not None:
        output.write_json(file, report)
    return OK


def _given(options: argparse.Namespace, name: str, default: Any) -> Any:
    value = getattr(options, name, None)
    return default if value is None else value


def _positive(options: argparse.Namespace, name: str) -> float | None:
    value = getattr(options, name, None)
    if value is not None and not 0 < value < 1e6:
        raise OptionError.of(
            f"--{name}", value, "expected a number above 0" if name != "duration" else "expected a time like 30s or 2m"
        )
    return None if value is None else float(value)


def _error(text: str, status: int) -> int:
    print(f"tailwatch: {text}", file=sys.stderr)
    return status


def _serve(port: int, seed: int, slo: SLO) -> int:
    if not 0 <= port <= 65535:
        raise OptionError.of("--port", port, "expected 0 to 65535 (0: a free one)")

    from tailwatch.demo.server import serve

    try:
        serve(port, seed, slo.text)
    except OSError as error:
        return _error(f"--port {port}: {error.strerror}", FAILED)
    return OK


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console

    from tailwatch.demo.report import WIDTH, show

    show(report, Console() if sys.stdout.isatty() else Console(width=WIDTH))
