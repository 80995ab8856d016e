"""The command line: demo, doctor, run. Exit status 0: success; 1: a finding to act on, or a failure; 2: a wrong call;
that of the command itself for run."""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailwatch import demo, proof, run
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
from tailwatch.version import VERSION

if TYPE_CHECKING:
    from tailwatch.snapshots import Snapshot

OK, FOUND, WRONG_CALL = 0, 1, 2
_SAVE = (
    "write one in the server with json.dump(tailwatch.snapshot().as_dict(), file), "
    "or ask a running server on this machine: tailwatch doctor http://127.0.0.1:8000"
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
    parser.add_argument("--version", action="version", version=f"tailwatch {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_doctor(commands)
    _add_run(commands)
    return parser


def _wrong(message: str) -> int:
    print(f"tailwatch: {message}", file=sys.stderr)
    return WRONG_CALL


def _add_demo(commands: Any) -> None:
    about = "serve a small model here, drive it, and show what GC does to its tokens, with and without the freeze"
    command = commands.add_parser("demo", help=about, description=about)
    demo.add_arguments(command)
    command.set_defaults(run=demo.main)


def _add_doctor(commands: Any) -> None:
    about = "say what a running server's numbers, or a saved snapshot, show, and what mends it"
    command = commands.add_parser("doctor", help=about, description=about, epilog=f"To get a FILE, {_SAVE}.")
    whose = command.add_mutually_exclusive_group(required=True)
    whose.add_argument(
        "file",
        nargs="?",
        metavar="URL|FILE",
        help="of a server on this machine; or a snapshot as JSON, '-' for standard input",
    )
    whose.add_argument("--dir", metavar="DIR", help="of a group of processes, running or dead, instead")
    command.add_argument("--slow", action="store_true", help="also list the slow gaps, one a line, the newest first")
    command.add_argument("--json", type=Path, metavar="FILE", help="write what was printed")
    command.set_defaults(run=_doctor)


def _add_run(commands: Any) -> None:
    about = "run a server's own command with every Python process of it watched, and nothing in it changed"
    command = commands.add_parser(
        "run", help=about, description=about, usage="tailwatch run [--option=value ...] -- CMD ARGS...",
        epilog=f"Options, as of install(): {', '.join(run.OFFERED)}.", allow_abbrev=False,
    )  # fmt: skip
    run.add_arguments(command)
    command.set_defaults(run=run.main)


def _doctor(parsed: argparse.Namespace) -> int:
    try:
        snapshot, context = _of_group(parsed.dir) if parsed.dir is not None else _load(_read(parsed.file))
    except urllib.error.HTTPError as error:
        return _wrong(
            f"{parsed.file}: it answered {error.code}; "
            "with tailwatch inside it tells its numbers to its own user on its own machine"
        )
    except urllib.error.URLError as error:
        return _wrong(f"{parsed.file}: no server answers there: {error.reason}")
    except OSError as error:
        return _wrong(f"{parsed.file}: {error.strerror or error}")
    except ValueError as error:
        return _wrong(f"{parsed.file}: this is no JSON: {error}")
    report = _report(snapshot, context, parsed.slow)
    try:
        _print_report(report)
        sys.stdout.flush()
    except BrokenPipeError:  # into head or less
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if parsed.json is not None:
        _write_json(parsed.json, report)
    return FOUND if any(finding.severity in ("high", "medium") for finding in report.findings) else OK


@dataclass(frozen=True)
class _Report:
    headline: str
    findings: list[Finding]
    tail: str
    slow: list[str] | None


def _report(snapshot: Snapshot, context: DiagnosisContext, slow: bool) -> _Report:
    return _Report(
        headline(snapshot, context),
        doctor(snapshot, context),
        format_tail(snapshot),
        [format_slow(gap) for gap in snapshot.slowest] if slow else None,
    )


def _print_report(report: _Report) -> None:
    print(report.headline, format_findings(report.findings), report.tail, sep="\n\n")
    if report.slow is not None:
        print("", *(report.slow or ["no slow gap was kept"]), sep="\n")


def _read(file: str) -> Mapping[str, Any]:
    data = json.loads(_text(file))
    if not isinstance(data, dict):
        raise TailwatchError(f"{file}: this is no snapshot, which is a JSON object; {_SAVE}")
    return data


def _text(file: str) -> str:
    if file.startswith(("http://", "https://")):
        url = urllib.parse.urljoin(file, proof.SNAPSHOT_PATH)
        with proof.proof() as value:
            request = urllib.request.Request(url, headers={proof.HEADER: value})
            with urllib.request.urlopen(request, timeout=30) as answer:
                return str(answer.read(), "utf-8")
    return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")


def _of_group(directory: str) -> tuple[Snapshot, DiagnosisContext]:
    """How its processes were set up is not known from outside."""
    from tailwatch import snapshots

    return snapshots.take_directory(directory), DiagnosisContext()


def _load(data: Mapping[str, Any]) -> tuple[Snapshot, DiagnosisContext]:
    """A file holds a snapshot, or {"snapshot": ..., "context": ...} where it also says how the process was set up."""
    if "snapshot" not in data:
        return from_dict(data), DiagnosisContext()
    return from_dict(data["snapshot"]), DiagnosisContext.from_dict(data.get("context") or {})


def _write_json(path: Path, report: _Report) -> None:
    try:
        path.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise TailwatchError(f"--json {path}: {error.strerror}") from error
