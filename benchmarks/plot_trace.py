#!/usr/bin/env python3
"""Draw a trace: which pause, in which process, held up which token of which request.

    python benchmarks/plot_trace.py --record TRACE.json.gz      # runs examples/three_process.py under `tailwatch run`
    python benchmarks/plot_trace.py TRACE.json.gz OUT.svg [--start S] [--seconds S]

TRACE is what `tailwatch trace --format json` wrote (it opens in ui.perfetto.dev too). Needs matplotlib. Legible on
white and on dark pages: the background is transparent.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RED, INK, GREY, BLUE = "#e5484d", "#737b84", "#8b949e", "#3b82f6"
SIZE = (10.0, 4.2)  # inches
LOOK = {
    **{"font.size": 10.0, "svg.fonttype": "none", "svg.hashsalt": "tailwatch"},
    **{f"{part}color": INK for part in ("text.", "axes.label", "axes.edge", "xtick.", "ytick.")},
}
ROOT = Path(__file__).resolve().parents[1]
STREAMS, TOKENS = 10, 400


@dataclass
class Trace:
    """What is drawn of it. Times in seconds since its first event."""

    processes: dict[int, str] = field(default_factory=dict)
    requests: list[tuple[int, float, float]] = field(default_factory=list)
    """Row, begin, end."""
    tokens: list[tuple[int, float]] = field(default_factory=list)
    pauses: list[tuple[int, str, float, float]] = field(default_factory=list)
    """Process, cause, begin, end."""
    arrows: list[tuple[int, float, int, float]] = field(default_factory=list)
    """From: process and time; to: row and time. Those of tokens that came late; others coincided with a pause."""


def read(path: Path) -> Trace:
    """The parts of a trace that are drawn."""
    content = path.read_bytes()
    events = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)["traceEvents"]
    first = min(event["ts"] for event in events if "ts" in event)
    trace, names = Trace(), {}
    begun: dict[tuple[int, int], list[tuple[str, float]]] = defaultdict(list)
    starts: dict[str, tuple[int, float]] = {}
    late: set[tuple[int, float]] = set()
    for event in events:
        row, at = (event["pid"], event["tid"]), (event.get("ts", first) - first) / 1e6
        if event["ph"] == "M" and event["name"] == "process_name":
            trace.processes[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "M" and event["name"] == "thread_name":
            names[row] = event["args"]["name"]
        elif event["ph"] == "B":
            begun[row].append((event["name"], at))
        elif event["ph"] == "E":
            name, start = begun[row].pop()
            if names.get(row) == "GC":
                trace.pauses.append((row[0], name, start, at))
            elif name == "request":
                trace.requests.append((row[1], start, at))
        elif event["ph"] == "i" and event["name"] in ("token", "first token"):
            trace.tokens.append((row[1], at))
            if event.get("args", {}).get("delay_us", 0) > 0:
                late.add((row[1], at))
        elif event["ph"] == "s":
            starts[event["id"]] = row[0], at
    for event in events:
        end = event["tid"], (event.get("ts", first) - first) / 1e6
        if event["ph"] == "f" and event["id"] in starts and end in late:
            trace.arrows.append((*starts[event["id"]], *end))
    return trace


def draw(trace: Trace, start: float, stop: float) -> Any:
    """A row for each process that paused, one for each request, and the arrows between them."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
    lanes = sorted({row for row, begin, end in trace.requests if end > start and begin < stop})
    long = [pause for pause in trace.pauses if pause[3] - pause[2] >= 0.001]
    processes = sorted(
        {pause[0] for pause in long if pause[3] > start and pause[2] < stop}, key=trace.processes.__getitem__
    )
    height = {("request", row): i for i, row in enumerate(lanes)}
    height |= {("process", pid): len(lanes) + 0.7 + i for i, pid in enumerate(processes)}
    for row, begin, end in trace.requests:
        if row in lanes:
            axes.barh(height["request", row], end - begin, left=begin, height=0.62, color=BLUE, alpha=0.18, linewidth=0)
    shown = [(at, height["request", row]) for row, at in trace.tokens if row in lanes and start <= at <= stop]
    if shown:
        xs = [x for at, _ in shown for x in (round(at, 4), round(at, 4), float("nan"))]
        ys = [y for _, row in shown for y in (row - 0.28, row + 0.28, float("nan"))]
        axes.plot(xs, ys, color=BLUE, linewidth=0.8)
    for pid, cause, begin, end in long:
        if pid in processes and end > start and begin < stop:
            _pause(axes, height["process", pid], cause, begin, end)
    for pid, at, row, token in trace.arrows:
        if pid in processes and row in lanes and start <= token <= stop:
            axes.plot(
                [at, token], [height["process", pid] - 0.31, height["request", row]], color=RED, alpha=0.55, lw=0.8
            )
            axes.plot([token], [height["request", row]], marker="o", markersize=3.2, color=RED)
    labels = {height["process", pid]: trace.processes[pid] for pid in processes}
    labels |= {height["request", row]: "request" for row in lanes}
    axes.set_yticks(list(labels), list(labels.values()))
    axes.set_xlim(start, stop)
    axes.set_ylim(-0.6, max(height.values()) + 1.0)
    axes.set_xlabel("seconds")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    _legend(figure)
    return figure


def _pause(axes: Any, row: float, cause: str, begin: float, end: float) -> None:
    axes.barh(row, end - begin, left=begin, height=0.62, color=RED, alpha=0.8, linewidth=0)
    axes.text(end, row, f"  {cause} {(end - begin) * 1e3:.0f} ms", color=RED, va="center", ha="left")


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Line2D([], [], color=BLUE, marker="|", linestyle="none", label="token"),
        Patch(color=RED, alpha=0.8, label="collection"),
        Line2D([], [], color=RED, marker="o", markersize=3.2, label="a token it fell upon"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)


def write(figure: Any, out: Path) -> None:
    """As plot_demo.py does: no date in it, so that the same data give the same file."""
    held = io.BytesIO()
    figure.savefig(held, format=out.suffix.removeprefix("."), transparent=True, metadata={"Date": None})
    out.write_bytes(held.getvalue())


# ---- a real run


def record(out: Path) -> None:
    """Streams and collections in a server of three processes without a line of tailwatch; its trace into a file."""
    directory = Path(tempfile.mkdtemp(prefix="tailwatch-plot-", dir="/dev/shm"))
    try:
        with served(directory / "group") as address:
            drive(address)
        command = ["trace", "--dir", str(directory / "group"), "--format", "json", "-o", str(directory / "trace.json")]
        subprocess.run([sys.executable, "-m", "tailwatch", *command], check=True, cwd=directory)
        with open(out, "wb") as file, gzip.GzipFile("", "wb", mtime=0, fileobj=file) as packed:
            packed.write((directory / "trace.json").read_bytes())
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def served(group: Path) -> Iterator[str]:
    """The server, watched, with room for its events; its address."""
    example = [sys.executable, str(ROOT / "examples" / "three_process.py"), "0", "--heap", "1000000"]
    options = [f"--dir={group}", "--gc=observe", "--trace-events=100000"]
    command = [sys.executable, "-m", "tailwatch", "run", *options, "--", *example]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=group.parent)
    assert process.stderr is not None
    try:
        address = next(
            found[1] for line in process.stderr if (found := re.search(r"on (http://127\.0\.0\.1:\d+)", line))
        )
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield address
    finally:
        process.terminate()
        process.wait(60)


def post(address: str) -> None:
    """One request, read to its end."""
    with urllib.request.urlopen(urllib.request.Request(address, method="POST"), timeout=60) as answer:
        answer.read()


def drive(address: str) -> None:
    """Streams that begin one after the other, and a full collection in the engine, the API process and the worker."""
    post(f"{address}/v1/completions?max_tokens=5")
    time.sleep(2)  # until each process has the others
    streams = []
    for i in range(STREAMS):
        tokens = TOKENS - 25 * i
        streams.append(threading.Thread(target=post, args=(f"{address}/v1/completions?max_tokens={tokens}",)))
        streams[-1].start()
        time.sleep(0.05)
    for where in ("engine", "api", "worker"):
        time.sleep(0.4)
        post(f"{address}/debug/collect?where={where}")
    for stream in streams:
        stream.join()


def main() -> None:
    """The script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--record", action="store_true", help="make TRACE by a run")
    parser.add_argument("--start", type=float, help="first second shown (where the requests begin)")
    parser.add_argument("--seconds", type=float, help="seconds shown (to the end)")
    options = parser.parse_args()
    if options.record:
        record(options.trace)
    if options.out is None:
        return
    import matplotlib

    matplotlib.use("agg")
    trace = read(options.trace)
    last = max(end for _, _, end in trace.requests)
    start = options.start if options.start is not None else min(begin for _, begin, _ in trace.requests)
    with matplotlib.rc_context(LOOK):
        write(draw(trace, start, start + options.seconds if options.seconds else last), options.out)


if __name__ == "__main__":
    main()
