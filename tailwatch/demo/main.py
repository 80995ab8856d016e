"""`tailwatch demo`: calibrate, run both arms, print. Needs only the standard library until the work starts."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tailwatch.demo import machine, numbers, schedule, settings
from tailwatch.demo.experiment.options import add_arguments as add_experiment
from tailwatch.demo.pipe import Child, ChildError
from tailwatch.demo.timeline import timeline
from tailwatch.errors import OptionError, TailwatchError
from tailwatch.options.slo import SLO

if TYPE_CHECKING:
    from tailwatch.demo.progress import Progress
    from tailwatch.demo.schedule import Planned

OK, FAILED, WRONG_CALL = 0, 1, 2
NEEDED = ("fastapi", "uvicorn", "numpy", "rich")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `tailwatch demo`."""
    parser.add_argument("--duration", type=float, metavar="S", help=f"measured seconds per arm ({settings.DURATION:g})")
    parser.add_argument("--rate", type=float, metavar="R", help="requests per second (60%% of the measured capacity)")
    parser.add_argument("--slo", metavar="SLO", help=f"bounds on a request ({settings.SLO.replace('%', '%%')})")
    parser.add_argument("--seed", type=int, metavar="N", help=f"of the plan, the model and the heap ({settings.SEED})")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    add_experiment(parser)
    parser.add_argument("--serve", action="store_true", help="only run the server, frozen, until Ctrl-C")
    parser.add_argument("--port", type=int, metavar="PORT", help="for --serve; a free one by default")


def main(options: argparse.Namespace) -> int:
    """Run the demo with the options of `add_arguments`, None for a default.

    Returns:
        0, or 1 when a process of the demo failed or Ctrl-C ended it, or 2 when a package is missing.

    Raises:
        OptionError: a bad value; the message names it.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return _say(f"the demo needs {', '.join(missing)}: pip install 'tailwatch[demo]'", WRONG_CALL)
    try:
        return run(options)
    except ChildError as error:
        return _say(str(error), FAILED)
    except KeyboardInterrupt:
        return _say("interrupted; its processes are ended", FAILED)


def run(options: argparse.Namespace) -> int:
    """Serve, or measure and print."""
    slo = SLO.parse(_given(options, "slo", settings.SLO))
    seed = _given(options, "seed", settings.SEED)
    if _given(options, "serve", False):
        return _serve(_port(options), seed, slo)
    rate = _positive(options, "rate", None)
    if _given(options, "experiment", False):
        return _experiment(options, slo, seed)
    for name in ("short", "html"):
        if _given(options, name, False):
            raise OptionError(f"--{name}: expected with --experiment")
    duration = _positive(options, "duration", settings.DURATION)
    file = _given(options, "json", None)
    _check_writable(file)
    report = measure(duration or settings.DURATION, rate, slo, seed)
    report["file"] = None if file is None else str(file)
    _print(report)
    if file is not None:
        _write(report, str(file))
    return OK


def _given(options: argparse.Namespace, name: str, default: Any) -> Any:
    value = getattr(options, name, None)
    return default if value is None else value


def _positive(options: argparse.Namespace, name: str, default: float | None) -> float | None:
    value = _given(options, name, default)
    if value is not None and not 0 < value < 1e6:
        raise OptionError.of(f"--{name}", value, "expected a number above 0")
    return None if value is None else float(value)


def _port(options: argparse.Namespace) -> int:
    port = int(_given(options, "port", 0))
    if not 0 <= port <= 65535:
        raise OptionError.of("--port", port, "expected 0 to 65535 (0: a free one)")
    return port


def _check_writable(file: object) -> None:
    """Before two minutes of work, not after."""
    if file is None:
        return
    try:
        with open(str(file), "a", encoding="utf-8"):
            pass
    except OSError as error:
        raise TailwatchError(f"--json {file}: {error.strerror}") from error


def _say(text: str, status: int) -> int:
    print(f"tailwatch: {text}", file=sys.stderr)
    return status


def _experiment(options: argparse.Namespace, slo: SLO, seed: int) -> int:
    from tailwatch.demo.experiment.main import main as experiment

    return experiment(options, slo, seed)


def _serve(port: int, seed: int, slo: SLO) -> int:
    from tailwatch.demo.server import serve

    try:
        serve(port, seed, slo.text)
    except KeyboardInterrupt:
        return OK  # the way it is meant to end
    except OSError as error:
        return _say(f"--port {port}: {error.strerror}", FAILED)
    return OK


def measure(
    duration: float, rate: float | None, slo: SLO, seed: int, objects: int = settings.OBJECTS
) -> dict[str, Any]:
    """All arms under the same plan, each in fresh processes. Times in seconds, rates per second."""
    from tailwatch.demo.progress import Progress

    described = machine.describe()
    capacity = None
    with Progress() as progress:
        if rate is None:
            capacity = _calibrate(progress, seed, objects)
            rate = capacity * settings.SHARE_OF_CAPACITY
        planned = schedule.plan(rate, duration, seed)
        arms = {arm: _run_arm(progress, arm, planned, duration, slo, seed, objects) for arm in settings.ARMS}
    left = arms["observe"]["server"]["tailwatch"]
    return {
        "version": 1,
        "seed": seed,
        "slo": slo.text,
        "machine": described,
        "capacity": capacity,
        "rate": rate,
        "schedule": _describe(planned, duration),
        "arms": arms,
        "snapshot": left["snapshot"],
        "context": left["context"],
    }


def _calibrate(progress: Progress, seed: int, objects: int) -> float:
    """Requests per second that a server of its own, without tailwatch, finishes when its batch is always full."""
    planned = schedule.closed(settings.CALIBRATION_REQUESTS, seed)
    with Child("tailwatch.demo.server") as server, Child("tailwatch.demo.load") as client:
        progress.begin("calibration: starting a server")
        ready = server.ask({"seed": seed, "objects": objects, "arm": None})
        progress.begin("calibration: measuring its capacity", settings.CALIBRATION_SECONDS)
        job = {"port": ready["port"], "concurrency": ready["batch"] + 8, "seconds": settings.CALIBRATION_SECONDS}
        result = _drive(client, server, job, planned, progress)
    found = numbers.capacity(result, schedule.mean_tokens(planned))
    if found <= 0:
        raise ChildError("calibration: the server finished no request; give a --rate to go without")
    return found


def _run_arm(
    progress: Progress, arm: str, planned: list[Planned], duration: float, slo: SLO, seed: int, objects: int
) -> dict[str, Any]:
    with Child("tailwatch.demo.server") as server, Child("tailwatch.demo.load") as client:
        progress.begin(f"gc='{arm}': starting a server")
        ready = server.ask({"seed": seed, "objects": objects, "arm": arm, "slo": slo.text})
        progress.begin(f"gc='{arm}': warm-up")
        job = {"port": ready["port"], "concurrency": settings.WARM_UP_CONCURRENCY}
        _drive(client, server, job, schedule.closed(settings.WARM_UP_REQUESTS, seed + 1), progress)
        server.ask({"do": "mark"})
        before = machine.Usage.now()
        progress.begin(f"gc='{arm}': measuring", duration)
        result = _drive(client, server, {"port": ready["port"], "seconds": duration}, planned, progress)
        found = server.ask({"do": "finish"})
    pauses = found.pop("pauses")
    ours = found["cpu_seconds"] + result["cpu_seconds"]
    return {
        "client": numbers.summarize(result, slo, duration),
        "server": found | {"objects": ready["objects"]},
        "timeline": timeline(result, pauses, seed),
        "cores_of_others": before.cores_of_others(ours),
    }


def _drive(
    client: Child, server: Child, job: dict[str, Any], planned: list[Planned], progress: Progress
) -> dict[str, Any]:
    """One job of the client; a server that ends meanwhile is noticed within a second."""
    client.send(job | {"plan": [asdict(request) for request in planned]})
    while "result" not in (line := client.receive()):
        server.check()
        progress.tell(line["progress"], line["done"], line["flying"])
    return dict(line["result"])


def _describe(planned: list[Planned], duration: float) -> dict[str, Any]:
    return {
        "hash": schedule.digest(planned),
        "requests": len(planned),
        "mean_tokens": schedule.mean_tokens(planned),
        "seconds": duration,
    }


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console

    from tailwatch.demo.report import WIDTH, show

    show(report, Console() if sys.stdout.isatty() else Console(width=WIDTH))


def _write(report: dict[str, Any], file: str) -> None:
    try:
        with open(file, "w", encoding="utf-8") as out:
            json.dump(report, out, separators=(",", ":"))
            out.write("\n")
    except OSError as error:
        raise TailwatchError(f"--json {file}: {error.strerror}") from error
