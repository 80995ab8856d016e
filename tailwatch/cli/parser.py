"""The command line: ablate, bench, compare, demo, doctor, gc, nsys, run, size, top, trace. Exit status 0: success; 1: a
finding to act on, or a failure; 2: a wrong call; that of the command itself for run."""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailwatch import demo, platform
from tailwatch.cli import gc as gccommand
from tailwatch.cli import run
from tailwatch.cli.nsys import main as nsys
from tailwatch.cli.top import arguments as top_arguments
from tailwatch.cli.top import find_group
from tailwatch.diagnose.finding import DiagnosisContext, Finding
from tailwatch.diagnose.rules import doctor, headline
from tailwatch.diagnose.text import format_findings, format_slow, format_tail
from tailwatch.errors import TailwatchError, UnsupportedError
from tailwatch.group import temp_dirs
from tailwatch.loadtest import ablate_main as ablating
from tailwatch.loadtest import capacity_main
from tailwatch.loadtest import compare_main as comparing
from tailwatch.loadtest import main as bench
from tailwatch.platform import VERSION
from tailwatch.serve import local_auth

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
    _add_top(commands)
    _add_nsys(commands)
    _add_trace(commands)
    _add_gc(commands)
    _add_size(commands)
    _add_bench(commands)
    _add_compare(commands)
    _add_ablate(commands)
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
    whose = command.add_mutually_exclusive_group()
    whose.add_argument(
        "file",
        nargs="?",
        metavar="URL|FILE",
        help="of a server on this machine; or a snapshot as JSON, '-' for standard input",
    )
    whose.add_argument(
        "--dir", metavar="DIR", help="of a group of processes, running or dead; by default the one that is found"
    )
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


def _add_top(commands: Any) -> None:
    about = "show the processes of a server live: latencies, goodput, and what was lost to which pause in which process"
    statuses = (
        "Ctrl-C and q end it. Exit status: 0, also when the group is removed meanwhile; 1 when it cannot be read any "
        "more; 2 for a wrong call."
    )
    command = commands.add_parser("top", help=about, description=about, epilog=statuses)
    whose = command.add_mutually_exclusive_group()
    whose.add_argument("url", nargs="?", metavar="URL", help="of a server on this machine, to ask for its group once")
    whose.add_argument("--dir", metavar="DIR", help="of the group, running or dead; by default the one that is found")
    top_arguments.add_arguments(command)
    command.set_defaults(run=_top)


def _add_trace(commands: Any) -> None:
    about = "write what a server's processes recorded, living or dead, as a timeline for ui.perfetto.dev"
    more = "Events are recorded with install(app, trace=1_000_000), or TAILWATCH_TRACE=1000000 and `tailwatch run`."
    command = commands.add_parser("trace", help=about, description=about, epilog=more)
    command.add_argument(
        "-o", dest="out", metavar="FILE",
        help="where it goes; - for standard output; NAME.tar: with --merge, an archive that Perfetto merges by itself",
    )  # fmt: skip
    command.add_argument("--dir", metavar="DIR", help="of the group, running or dead; by default the one that is found")
    command.add_argument("--format", choices=("perfetto", "json"), default="perfetto", help="json: Chrome's format")
    merged = "a trace of torch, JAX or viztracer that is put onto the same clock; may be given again"
    command.add_argument("--merge", metavar="TRACE", action="append", default=[], help=merged)
    command.set_defaults(run=_trace)


def _add_gc(commands: Any) -> None:
    about = "say what the collectors of a server's processes do, or have them freeze again or collect when nobody waits"
    more = "Exit status: 0; 1 where a process did not do what was asked; 2 for a wrong call."
    command = commands.add_parser("gc", help=about, description=about, epilog=more)
    gccommand.add_arguments(command)
    command.set_defaults(run=_gc)


def _gc(parsed: argparse.Namespace) -> int:
    if not platform.LINUX:
        raise UnsupportedError("tailwatch gc: processes are watched on Linux only")
    from tailwatch.cli.gc import main as gc

    return gc(parsed, parsed.dir if parsed.dir is not None else find_group.find(os.environ))


def _trace(parsed: argparse.Namespace) -> int:
    if not platform.LINUX:
        raise UnsupportedError("tailwatch trace: processes are watched on Linux only")
    from tailwatch.tracing import ring_files

    directory = parsed.dir if parsed.dir is not None else find_group.find(os.environ, having=temp_dirs.has_traces)
    out = parsed.out or ("tailwatch.pftrace" if parsed.format == "perfetto" else "tailwatch.json")
    to = sys.stdout.fileno() if out == "-" else out
    files, written = ring_files.write_group(directory, to, parsed.format, merge=parsed.merge)
    lines = (
        f"  {file.process} (pid {file.pid}{', dead' if file.over else ''}): {file.events} events"
        + (f"; {file.lost} older ones were overwritten" if file.lost else "")
        for file in files
    )
    where = "standard output" if out == "-" else out
    head = f"{where}: {written}"
    print(head, *lines, sep="\n", file=sys.stderr if out == "-" else None)
    return OK


def _top(parsed: argparse.Namespace) -> int:
    if not platform.LINUX:
        raise UnsupportedError("tailwatch top: processes are watched on Linux only")
    from tailwatch.cli.top.main import main as top

    return top(parsed, parsed.dir if parsed.url is None else _directory_of(parsed.url))


def _add_nsys(commands: Any) -> None:
    about = "say what stood still while a GPU had nothing to do, from a report of Nsight Systems exported to SQLite"
    command = commands.add_parser("nsys", help=about, description=about)
    nsys.add_arguments(command)
    command.set_defaults(run=nsys.main)


def _add_size(commands: Any) -> None:
    about = (
        "say how many replicas an expected load needs, and what the tail of one becomes for a request that needs many"
    )
    command = commands.add_parser("size", help=about, description=about)
    capacity_main.add_arguments(command)
    command.set_defaults(run=capacity_main.main)


def _add_bench(commands: Any) -> None:
    about = "load a server as its users do, and say what they saw: latencies from the planned start, goodput"
    more = (
        "Exit status: 0; 1: the SLO was not held, nothing was good, the run cannot be believed, or no knee was found; "
        "2: a wrong call; 130: Ctrl-C ended it, with what there was."
    )
    command = commands.add_parser("bench", help=about, description=about, epilog=more)
    bench.add_arguments(command)
    command.set_defaults(run=bench.main)


def _add_compare(commands: Any) -> None:
    about = "say what the runs of two variants, saved by `bench --json`, tell about a difference: the run is the unit"
    command = commands.add_parser("compare", help=about, description=about)
    comparing.add_arguments(command)
    command.set_defaults(run=comparing.main)


def _add_ablate(commands: Any) -> None:
    about = "run variants of a server interleaved, each run in a fresh one under the same load, and say what differs"
    more = (
        "Exit status: 0, also where no difference is shown; 1: runs are missing; 2: a wrong call, or no server; "
        "130: Ctrl-C ended it, with what there was."
    )
    command = commands.add_parser("ablate", help=about, description=about, epilog=more)
    ablating.add_arguments(command)
    command.set_defaults(run=ablating.main)


def _directory_of(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise TailwatchError(f"{url}: expected an address like http://127.0.0.1:8000; a directory is named with --dir")
    with _explained(url):
        directory = _read(url).get("directory")
    if not directory:
        raise TailwatchError(
            f"{url}: this server keeps its numbers to itself; top reads what is shared in a directory: start it with "
            f"`tailwatch run -- CMD` or `install(app, dir=...)`, or ask once with `tailwatch doctor {url}`"
        )
    return str(directory)


@contextmanager
def _explained(whose: str) -> Iterator[None]:
    """What goes wrong when numbers are read is a sentence."""
    try:
        yield
    except TailwatchError:
        raise
    except urllib.error.HTTPError as error:
        error.close()  # it is an answer, too
        raise TailwatchError(
            f"{whose}: it answered {error.code}; "
            "with tailwatch inside it tells its numbers to its own user on its own machine"
        ) from error
    except urllib.error.URLError as error:
        raise TailwatchError(f"{whose}: no server answers there: {error.reason}") from error
    except OSError as error:
        raise TailwatchError(f"{whose}: {error.strerror or error}") from error
    except ValueError as error:
        raise TailwatchError(f"{whose}: this is no JSON: {error}") from error


def _doctor(parsed: argparse.Namespace) -> int:
    directory = parsed.dir if parsed.file is not None or parsed.dir is not None else find_group.find(os.environ)
    with _explained(parsed.file):
        snapshot, context = _of_group(directory) if directory is not None else _load(_read(parsed.file))
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
        url = urllib.parse.urljoin(file, local_auth.SNAPSHOT_PATH)
        with local_auth.proof() as value:
            request = urllib.request.Request(url, headers={local_auth.HEADER: value})
            with urllib.request.urlopen(request, timeout=30) as answer:
                return str(answer.read(), "utf-8")
    return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")


def _of_group(directory: str) -> tuple[Snapshot, DiagnosisContext]:
    """How its processes were set up is not known from outside."""
    from tailwatch import snapshots

    return snapshots.take_directory(directory), DiagnosisContext()


def _load(data: Mapping[str, Any]) -> tuple[Snapshot, DiagnosisContext]:
    """A file holds a snapshot, or {"snapshot": ..., "context": ...} where it also says how the process was set up."""
    from tailwatch.snapshots.serialization import from_dict

    if "snapshot" not in data:
        return from_dict(data), DiagnosisContext()
    return from_dict(data["snapshot"]), DiagnosisContext.from_dict(data.get("context") or {})


def _write_json(path: Path, report: _Report) -> None:
    try:
        path.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise TailwatchError(f"--json {path}: {error.strerror}") from error
