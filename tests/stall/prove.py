"""Runs planted.py with each interpreter given, on asyncio and uvloop, each plant alone and some in pairs, and keeps
what was reported of them beside what the plants' own logs have.

    python tests/stall/prove.py [--rounds N] [--busy N] [--json FILE] PYTHON [PYTHON ...]

Each PYTHON has tailwatch and uvloop installed; this one tailwatch. --busy: so many loops beside it use the CPUs. Then
"cpu" is what was charged to waits for a CPU over what two readings of the kernel's counter have of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # behind the installed package

from benchmarks.harness import machine  # noqa: E402
from tailwatch.demo.plants import PLANTS  # noqa: E402
from tests.stall.judging import Verdict, charged, first_cause, judge, of_plant  # noqa: E402

BETWEEN_SECONDS = "0.1"
PAIRS = ("sleep+python", "pipe+gil", "lock+collect", "fsync+regex", "dealloc+faults")
BOTH_NS = 5_000_000  # of each of two plants: less does not make a token the pair's


def run(python: str, loop: str, rounds: int, plant: str) -> Any:
    """What planted.py prints."""
    command = [python, str(ROOT / "tests" / "stall" / "planted.py"), loop, BETWEEN_SECONDS, str(rounds), plant]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def row_of(verdict: Verdict) -> dict[str, float]:
    """As it is kept."""
    return {name: round(value, 4) for name, value in verdict._asdict().items()}


def both_of(late: list[Any], pair: str) -> dict[str, float]:
    """Of the late tokens that both plants delayed: shares in which each has a millisecond at least of its causes, and
    in which the first cause is one of theirs."""
    causes = [set(PLANTS[plant].causes) for plant in pair.split("+")]
    tokens = [each for each in late if len(each["truth"]) == 2 and min(each["truth"].values()) > BOTH_NS]
    n = max(len(tokens), 1)
    return {
        "tokens": len(tokens),
        "both": round(sum(all(charged(each, list(own)) > 1e6 for own in causes) for each in tokens) / n, 4),
        "first": round(sum(first_cause(each) in causes[0] | causes[1] for each in tokens) / n, 4),
    }


def versions_of(python: str) -> str:
    """Of the interpreter and of uvloop."""
    code = "import sys, uvloop; print(sys.version.split()[0], uvloop.__version__)"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def cpu_of(late: list[Any], plant: str) -> float | None:
    """Waits for a CPU that were charged, over the kernel's; None where these are less than a millisecond a token."""
    tokens = of_plant(late, plant)
    queued = sum(each["queued"] for each in tokens)
    if queued < 1e6 * len(tokens) or not tokens:
        return None
    return round(sum(charged(each, ("cpu", "throttled")) for each in tokens) / queued, 4)


def alone_of(python: str, loop: str, rounds: int, plant: str, busy: int) -> dict[str, float | None]:
    """A row."""
    late = run(python, loop, rounds, plant)["late"]
    row = row_of(judge(late, plant))
    return {**row, "cpu": cpu_of(late, plant)} if busy else {**row}


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes use a CPU each, for as long as this one lives."""
    code = "import select, sys\nwhile not select.select([sys.stdin], [], [], 0)[0]: pass"
    loops = [subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) for _ in range(count)]
    try:
        yield
    finally:
        for each in loops:
            each.communicate()


def results_of(python: str, loop: str, rounds: int, busy: int) -> dict[str, Any]:
    """Of all plants, alone and in pairs."""
    alone = {plant: alone_of(python, loop, rounds, plant, busy) for plant in PLANTS}
    pairs = {pair: both_of(run(python, loop, rounds, pair)["late"], pair) for pair in PAIRS}
    return {"alone": alone, "pairs": pairs}


def main() -> None:
    """Prints a row as it is there, keeps all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=10, help="stalls of each kind")
    parser.add_argument("--busy", type=int, default=0, help="loops that use the CPUs meanwhile")
    parser.add_argument("--json", type=Path, help="where the results go")
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "rounds": options.rounds, "busy": options.busy, "runs": {}}
    with busy_loops(options.busy):
        measure(options, found)


def measure(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """All of them, into found["runs"]."""
    for python in options.pythons:
        for loop in ("asyncio", "uvloop"):
            version, uvloop = versions_of(python).split()
            title = f"CPython {version}, {loop if loop == 'asyncio' else f'uvloop {uvloop}'}"
            found["runs"][title] = results_of(python, loop, options.rounds, options.busy)
            print(title, json.dumps(found["runs"][title]), flush=True)
            if options.json:
                options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
