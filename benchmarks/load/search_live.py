"""Whether `tailwatch bench --find goodput`, with its defaults, finds known knees over real sockets and in real time.

Three of the servers of knee_queues.py, each search with a server and a client process of its own (queue_server.py).
`python benchmarks/load/search_live.py` runs 15 searches of up to 20 minutes, as many at once as `--at-once` allows, and
keeps each in benchmarks/results/search_live.json as it ends, beside how busy the machine was meanwhile. Where it has
other work, `chrt -r 1 python …` has that wait: a client that is kept from its schedule measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE.parents[1]]

from knee_queues import CASES, Case  # noqa: E402

from tailwatch.loadtest.saturation_point import Knee  # noqa: E402

RESULTS = HERE.parent / "results" / "search_live.json"
SERVERS = ("M/M/8 of 1 s", "M/M/4 100/s", "batches of 16")
LOOKS = 5.0  # seconds between two looks at the machine's load


def search(case: Case, seed: int) -> dict[str, Any]:
    """One search by the command, against a server of its own."""
    began = time.monotonic()
    served = [sys.executable, HERE / "queue_server.py", case.name, str(seed)]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(served, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
    ):
        assert server.stdout is not None and server.stdin is not None
        file, url = Path(folder) / "knee.json", f"http://127.0.0.1:{server.stdout.readline().strip()}"
        words = ["bench", url, "--find", "goodput", "--slo", case.slo, "--seed", str(1000 * seed), "--json", str(file)]
        command = [sys.executable, "-m", "tailwatch", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        server.stdin.close()
        if not file.exists():
            raise SystemExit(f"{' '.join(command)}: {done.stderr}")
        knee = Knee.from_dict(json.loads(file.read_text())["knee"])
    return {"seed": seed, **found(case, knee), "seconds": round(time.monotonic() - began)}


def found(case: Case, knee: Knee) -> dict[str, Any]:
    """What is kept of a search."""
    low, high = knee.low or 0.0, knee.high or float("inf")
    kept = {name: getattr(knee, name) for name in ("resolved", "basis", "rate", "low", "high")}
    ends = {name: round(value, 4) if isinstance(value, float) else value for name, value in kept.items()}
    return {**ends, "held": low <= case.truth <= high, "printed": str(knee)}


class Load(threading.Thread):
    """How busy the machine is, and how much of it the searches themselves are, while they run."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._over, self._began = threading.Event(), time.monotonic()
        self.averages: list[float] = []

    def run(self) -> None:
        while not self._over.wait(LOOKS):
            self.averages.append(os.getloadavg()[0])

    def summary(self) -> dict[str, Any]:
        """So far. own: cores that the searches which are over and their servers have used, on average."""
        used, seen = os.times(), sorted(self.averages) or [os.getloadavg()[0]]
        own = (used.children_user + used.children_system) / (time.monotonic() - self._began)
        return {
            "processors": os.cpu_count(),
            "load_average": {"least": seen[0], "median": statistics.median(seen), "most": seen[-1]},
            "own_cores": round(own, 2),
            "real_time_priority": os.sched_getscheduler(0) != os.SCHED_OTHER,
        }


def main() -> None:
    """Writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", action="append", default=[], help="one server, by its name; repeatable")
    parser.add_argument("--at-once", type=int, default=15)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parsed = parser.parse_args()
    cases = [case for case in CASES if case.name in (parsed.only or SERVERS)]
    rows: dict[str, Any] = {case.name: {"slo": case.slo, "truth": case.truth, "searches": []} for case in cases}
    load, lock = Load(), threading.Lock()
    load.start()

    def one(case: Case, seed: int) -> None:
        row = search(case, seed)
        with lock:
            rows[case.name]["searches"].append(row)
            parsed.json.write_text(json.dumps({"machine": load.summary(), "servers": rows}, indent=1) + "\n")
            held = "held" if row["held"] else "NOT HELD"
            print(f"{case.name}, truth {case.truth:.4g}/s: {held}: {row['printed']}", flush=True)

    with ThreadPoolExecutor(parsed.at_once) as pool:
        for task in [pool.submit(one, case, seed) for seed in range(parsed.seeds) for case in cases]:
            task.result()


if __name__ == "__main__":
    main()
