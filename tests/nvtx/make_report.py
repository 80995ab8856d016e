"""Makes data/report.sqlite.gz: python make_report.py NSYS. What a real Nsight Systems recorded of a small process, and
beside it, in the table TRUTH, when its pauses were by that process itself, CLOCK_MONOTONIC ns.

Kept of the export are the rows of our domain, the texts they use, and the name of the process; no host, user or path.
The kernels are made: this machine has no GPU. They have the columns that the tool documents for its table, and run back
to back except in two collections of the engine and one time in which nothing stood still.
"""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

APP = """
import gc, json, sys, time, tailwatch
from tailwatch._cold import ffi, lib
gc.disable()
gc.collect()
gc.freeze()
watch = tailwatch.install(gc="observe", role="engine", nvtx_tokens=True)
class Cycle: pass
keep = [[[] for _ in range(1000)] for _ in range(300)]
for burst in range(12):
    with tailwatch.stream(model="llama", route="/v1/chat") as s:
        for _ in range(6):
            with tailwatch.step("decode", batch=1, waiting=1):
                time.sleep(0.001)
            s.token()
        for _ in range(burst):
            one = Cycle(); one.itself = one; del one
        gc.collect()
        s.token()
    gc.collect(0)
    time.sleep(0.15)
    watch.nvtx.anchor()
pause = ffi.addressof(ffi.cast("const tw_segment *", watch.core.address), "pause")
record, booked = ffi.new("tw_pause_record *"), []
for number in range(pause.head):
    assert lib.tw_pause_read(pause, number, record)
    booked.append([record.start_ns, record.stop_ns, record.collected])
time.sleep(0.01)
tailwatch.uninstall()
json.dump(booked, open(sys.argv[1], "w"))
"""

KERNELS = """
create table CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL, graphNodeId INTEGER
)
"""
KERNEL_NS, BETWEEN_NS = 900_000, 100_000


def profile(nsys: str, directory: Path) -> list[list[int]]:
    """Runs the process under the tool and exports the report. Returns what it prints of its pauses."""
    app, truth = directory / "app.py", directory / "truth.json"
    app.write_text(APP)
    collect = [nsys, "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none", "-o", str(directory / "report")]
    subprocess.run([*collect, sys.executable, str(app), str(truth)], check=True, capture_output=True, cwd=directory)
    export = [nsys, "export", "--type", "sqlite", "-o", str(directory / "report.sqlite")]
    subprocess.run([*export, str(directory / "report.nsys-rep")], check=True, capture_output=True, cwd=directory)
    booked: list[list[int]] = json.loads(truth.read_text())
    return booked


def busy(file: sqlite3.Connection) -> list[tuple[int, int]]:
    """Kernels one after the other, from the first request to the last, but none in the three stretches."""
    (first,) = file.execute("select min(start) from NVTX_EVENTS where eventType = 60").fetchone()
    (last,) = file.execute('select max("end") from NVTX_EVENTS where eventType = 60').fetchone()
    rows = file.execute("""
        select n.start, n.end from NVTX_EVENTS n join StringIds s on s.id = n.textId where s.value = 'gc2'
        order by n.start
    """).fetchall()
    (unpaused,) = file.execute("""
        select n.start from NVTX_EVENTS n join StringIds s on s.id = n.textId where s.value = 'decode' order by n.start
        limit 1 offset 36
    """).fetchone()
    still = [rows[3], rows[7], (unpaused, unpaused + 4_000_000)]
    starts = range(first, last - KERNEL_NS, KERNEL_NS + BETWEEN_NS)
    return [(t, t + KERNEL_NS) for t in starts if all(t + KERNEL_NS <= a or t >= b for a, b in still)]


def trim(source: Path, target: Path, booked: list[list[int]]) -> None:
    """Copies what the reader looks at."""
    target.unlink(missing_ok=True)
    file = sqlite3.connect(target)
    file.execute(f"attach database '{source}' as whole")
    tables = ("NVTX_EVENTS", "StringIds", "PROCESSES", "ENUM_NSYS_EVENT_TYPE", "META_DATA_EXPORT")
    for table in tables:
        (made,) = file.execute("select sql from whole.sqlite_master where name = ?", (table,)).fetchone()
        file.execute(made)
    pids = "(select distinct globalTid >> 24 & 16777215 from whole.NVTX_EVENTS where text = 'tailwatch')"
    file.execute(f"insert into NVTX_EVENTS select * from whole.NVTX_EVENTS where globalTid >> 24 & 16777215 in {pids}")
    file.execute("insert into StringIds select * from whole.StringIds where id in (select textId from NVTX_EVENTS)")
    file.execute(f"insert into PROCESSES select globalPid, pid, 'python3' from whole.PROCESSES where pid in {pids}")
    file.execute("insert into ENUM_NSYS_EVENT_TYPE select * from whole.ENUM_NSYS_EVENT_TYPE where name like 'Nvtx%'")
    kept = "name like 'EXPORT_SCHEMA_VERSION%' or name like 'EXPORT_PRODUCT%'"
    file.execute(f"insert into META_DATA_EXPORT select * from whole.META_DATA_EXPORT where {kept}")
    file.execute("create table TRUTH (start INTEGER, stop INTEGER, collected INTEGER)")
    file.executemany("insert into TRUTH values (?, ?, ?)", booked)
    file.execute(KERNELS)
    kernels = [(a, b, 0, 1, 7, n, 0, 0, 0, None) for n, (a, b) in enumerate(busy(file))]
    file.executemany(f"insert into CUPTI_ACTIVITY_KIND_KERNEL values ({', '.join('?' * 10)})", kernels)
    file.commit()
    file.execute("detach database whole")
    file.execute("vacuum")
    file.close()


def main(nsys: str) -> None:
    """Runs all of it."""
    with tempfile.TemporaryDirectory() as directory:
        booked = profile(os.path.abspath(nsys), Path(directory))
        target = Path(__file__).resolve().parent / "data" / "report.sqlite.gz"
        target.parent.mkdir(exist_ok=True)
        trim(Path(directory) / "report.sqlite", Path(directory) / "trimmed.sqlite", booked)
        target.write_bytes(gzip.compress((Path(directory) / "trimmed.sqlite").read_bytes(), mtime=0))
    print(f"{target.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
