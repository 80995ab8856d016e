"""The command line: demo, doctor. Exit status 0: success; 1: a finding to act on, or a failure; 2: a wrong call."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailwatch.diagnosis import (
    DiagnosisContext,
    Finding,
    doctor,
    format_findings,
    format_slow,
    format_tail,
    from_dict,
    headline,
)
from tailwatch.errors import TailwatchError
from tailwatch.goodput import SLO, real

if TYPE_CHECKING:
    from tailwatch.snapshots import Snapshot

OK, FOUND, WRONG_CALL = 0, 1, 2
_SAVE = (
    "write one in the server with json.dump(tailwatch.snapshot().as_dict(), file), "
    "or ask the server itself: tailwatch.doctor()"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; argparse itself exits with 2 on a wrong call."""
    parsed = _parser().parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
    except TailwatchError as error:
        return _wrong(str(error))
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tailwatch", description="Why was that token late?")
    parser.add_argument("--version", action="version", version=f"tailwatch {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_doctor(commands)
    return parser


def _version() -> str:
    try:
        return importlib.metadata.version("tailwatch")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _wrong(message: str) -> int:
    print(f"tailwatch: {message}", file=sys.stderr)
    return WRONG_CALL


def _checked_slo(text: str) -> str:
    try:
        return SLO.parse(text).text
    except TailwatchError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> float:
    try:
        number = real(float(text))
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return number


# demo ------------------------------------------------------------------------------------------------------


def _add_demo(commands: Any) -> None:
    about = "serve a small model here, drive it, and show what GC does to its tokens, with and without the freeze"
    demo = commands.add_parser("demo", help=about, description=about)
    demo.add_argument("--duration", type=_positive, metavar="S", help="seconds of measured load in each arm")
    demo.add_argument("--rate", type=_positive, metavar="R", help="requests per second (default: 60 %% of capacity)")
    demo.add_argument("--slo", type=_checked_slo, metavar="SLO", help="like 'ttft<=500ms,tpot<=40ms@99%%'")
    demo.add_argument("--seed", type=int, metavar="N", help="of the arrival schedule")
    demo.add_argument("--json", type=Path, metavar="FILE", help="write what was printed")
    demo.set_defaults(run=_demo)


def _demo(parsed: argparse.Namespace) -> int:
    try:
        module = importlib.import_module("tailwatch.demo")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "tailwatch":
            raise
        return _wrong(f"the demo needs {error.name}: pip install 'tailwatch[demo]'")
    status: int = module.main(parsed)
    return status


# doctor ----------------------------------------------------------------------------------------------------


def _add_doctor(commands: Any) -> None:
    about = "say what a saved snapshot shows, and what mends it"
    command = commands.add_parser("doctor", help=about, description=about, epilog=f"To get a FILE, {_SAVE}.")
    command.add_argument("file", metavar="FILE", help="a snapshot as JSON, '-' for standard input")
    command.add_argument("--slow", action="store_true", help="also list the slow gaps, one a line, the newest first")
    command.add_argument("--json", type=Path, metavar="FILE", help="write what was printed")
    command.set_defaults(run=_doctor)


def _doctor(parsed: argparse.Namespace) -> int:
    if "://" in parsed.file:
        return _wrong(f"{parsed.file}: a running server cannot be asked from outside in this version; {_SAVE}")
    try:
        snapshot, context = _load(_read(parsed.file))
    except (OSError, ValueError) as error:
        return _wrong(f"{parsed.file}: {error}")
    findings = doctor(snapshot, context)
    slow = [format_slow(gap) for gap in snapshot.slowest] if parsed.slow else []
    _print_report(snapshot, context, findings, slow if parsed.slow else None)
    if parsed.json is not None:
        _write_json(parsed.json, headline(snapshot, context), findings, slow)
    return FOUND if any(finding.severity in ("high", "medium") for finding in findings) else OK


def _print_report(
    snapshot: Snapshot, context: DiagnosisContext, findings: Sequence[Finding], slow: Sequence[str] | None
) -> None:
    print(headline(snapshot, context), format_findings(findings), format_tail(snapshot), sep="\n\n")
    if slow is not None:
        print("", *(slow or ["no slow gap was kept"]), sep="\n")


def _read(file: str) -> Mapping[str, Any]:
    data = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise TailwatchError(f"{file}: expected a snapshot, a JSON object; {_SAVE}")
    return data


def _load(data: Mapping[str, Any]) -> tuple[Snapshot, DiagnosisContext]:
    """A file holds a snapshot, or {"snapshot": ..., "context": ...} where it also says how the process was set up."""
    if "snapshot" not in data:
        return from_dict(data), DiagnosisContext()
    return from_dict(data["snapshot"]), DiagnosisContext.from_dict(data.get("context") or {})


def _write_json(path: Path, sentence: str, findings: Sequence[Finding], slow: Sequence[str]) -> None:
    report = {"headline": sentence, "findings": [finding.as_dict() for finding in findings], "slow": list(slow)}
    try:
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise TailwatchError(f"--json {path}: {error.strerror}") from error
