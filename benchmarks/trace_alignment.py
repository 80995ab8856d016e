"""How near are our pauses to another tool's own, once both are on one clock?

torch's profiler records each collection as a slice "Python GC" (record_python_gc_info), stamped with the CPU's counter
and converted to CLOCK_REALTIME; ours is stamped with CLOCK_MONOTONIC by the C callback. Both go through what `tailwatch
trace --merge` does, and the distance of their starts and ends is what is left: the order of the callbacks, and clocks.

    python benchmarks/trace_alignment.py [--json FILE] [--rounds N]

needs torch; the CPU build is enough.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import Bar, Report, bar_of, machine

import tailwatch
from tailwatch.tracing import perfetto, ring_files

BAR_US = 50.0


def profiled(rounds: int, out: Path) -> None:
    """Collections of several lengths under torch's profiler, its trace into a file."""
    import torch
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    own = _ExperimentalConfig(record_python_gc_info=True)
    kept: list[Any] = []
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, experimental_config=own) as profiler:
        for round_ in range(rounds):
            kept += [[i, [i]] for i in range(2000 * (1 + round_ % 20))]
            torch.ones(64, 64) @ torch.ones(64, 64)
            gc.collect()
            time.sleep(0.002)
            if round_ % 20 == 19:
                kept.clear()
    profiler.export_chrome_trace(str(out))


def slices(trace: Path, name: str) -> list[tuple[float, float]]:
    """Start and end of the slices of a name in a Chrome trace of ours, us."""
    open_slices: dict[tuple[int, int], list[tuple[str, float]]] = {}
    found = []
    for event in json.loads(trace.read_bytes())["traceEvents"]:
        row = event["pid"], event["tid"]
        if event["ph"] == "B":
            open_slices.setdefault(row, []).append((event["name"], event["ts"]))
        elif event["ph"] == "E":
            began, at = open_slices[row].pop()
            if began == name:
                found.append((at, event["ts"]))
    return sorted(found)


def pairs(
    ours: list[tuple[float, float]], theirs: list[tuple[float, float]]
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Each of theirs with the one of ours that it overlaps."""
    return [
        (mine, other)
        for other in theirs
        for mine in ours
        if min(mine[1], other[1]) > max(mine[0], other[0])
    ]  # fmt: skip


def measured(rounds: int) -> tuple[list[float], list[float]]:
    """Start and end of theirs less ours, us, of every collection of the whole heap."""
    directory = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="tailwatch-alignment-"))
    try:
        tailwatch.install(role="engine", dir=str(directory / "group"), trace_events=2**20, gc="observe")
        with tailwatch.stream() as stream:
            stream.token()  # the largest ring is that of a thread that stamps
        profiled(rounds, directory / "torch.json")
        (file,) = ring_files.files_of(str(directory / "group"))
        out = directory / "both.json"
        perfetto.write(out, [file.path], format="json", merge=[str(directory / "torch.json")])
        found = pairs(slices(out, "gc2"), slices(out, "Python GC"))
        tailwatch.uninstall()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return [b[0] - a[0] for a, b in found], [b[1] - a[1] for a, b in found]


def report(rounds: int) -> Report:
    """The numbers."""
    starts, ends = measured(rounds)
    made = Report("How near are our pauses to torch's own, once both are on one clock?", machine=machine())
    if len(starts) < rounds // 2:
        raise SystemExit(f"of {rounds} collections only {len(starts)} are in both traces")
    made.bars.append(bar_of("start, theirs - ours", starts, bar=BAR_US, unit="us"))
    worst = max(map(abs, starts))
    ranked = sorted(map(abs, starts))
    p95 = ranked[int(len(ranked) * 0.95)]
    made.bars.append(Bar("start, 95 % are within", p95, p95, p95, BAR_US, unit="us"))
    made.bars.append(Bar("start, the farthest", worst, worst, worst, unit="us"))
    made.bars.append(bar_of("end, theirs - ours", ends, unit="us"))
    import torch

    made.machine["torch"] = torch.__version__
    made.notes.append(
        f"{len(starts)} collections in both traces; median start {statistics.median(starts):.1f} us apart"
    )
    return made


def main() -> None:
    """The script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write what was measured")
    options = parser.parse_args()
    made = report(options.rounds)
    print(made)
    if options.json:
        options.json.write_text(json.dumps(made.as_dict(), indent=2) + "\n")


if __name__ == "__main__":
    try:
        import torch  # noqa: F401
    except ImportError:
        sys.exit("needs torch: pip install torch --index-url https://download.pytorch.org/whl/cpu")
    main()
