"""An hour of mixed load with everything of tailwatch on: does anything grow, is a sample lost, are tails slower?

    python long_run.py [--minutes 60] [--turn 20] [--loop asyncio] [--json FILE] [--quick]
    python long_run.py --judge FILE [--json FILE]       # what a run measured, judged anew

Two servers in processes of their own (long_run_server.py: the demo's app and engine under uvicorn), one without
tailwatch. A block is one turn of load on each, with the same seed; which is first turns around with each block. A turn
is an open loop of streams of 8 to 128 tokens, JSON answers, refusals (422, 429, 503) and handlers that raise; clients
that leave in the middle, one that reads slowly; and a stall or a burst of garbage every three seconds. All the time, in
both turns, the watched server is scraped and its page is read each five seconds, `tailwatch why` asks once a minute,
and OTLP goes to a receiver: the processes that do so take the processor from both servers alike (long_run_readers.py).

After each block both are read while nothing is in flight: memory, descriptors, threads; what the server itself and its
clients have counted, and what tailwatch has. The unit of the intervals is the block. The JSON is written after each
block, so that of a run that is cut short --judge can still judge what it had.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import math
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import Report, machine
from long_run_bars import ARMS, WITH, WITHOUT, Counts, Row, growth_bars, sample_bars, tail_bars
from long_run_server import PLANTS, RAISES, REFUSED, WHOLE_TOKENS

from tailwatch.demo import traffic
from tailwatch.loadtest import engine
from tailwatch.loadtest.pool import Pool, Target
from tailwatch.loadtest.requests import NEVER
from tailwatch.loadtest.schedule import Planned
from tailwatch.loadtest.session import in_loop
from tailwatch.tracing import perfetto
from tailwatch.tracing.ring_files import files_of

HERE = Path(__file__).resolve().parent
RATE = 9.0  # requests a second
SCRAPE_EVERY, WHY_EVERY = 5.0, 60.0
PLANT_EVERY = 3.0
LEAVERS = 0.5  # a second
SLOW_TOKENS, SLOW_SECONDS = 1000, 20.0  # of the slow reader, where a turn has so many seconds
LITTLE = 4096  # bytes that it reads ahead
QUIET_SECONDS = 20.0
TRACE_EVERY = 5  # blocks
QUICK_TURN = 4.0
SETTLE_SECONDS = 20.0
NO_READERS: Row = {"done": {}, "failed": {}, "longest_s": {}, "backward": {}, "exports": 0, "spans": 0}


# ---- load ----


def kind_of(planned: Planned) -> str:
    """Of a request: by the seed and its place."""
    return random.Random(f"kind {planned.seed} {planned.index}").choices(
        ("stream", "whole", "invalid", "refused", "raises"), (76, 12, 4, 6, 2)
    )[0]


def request(planned: Planned) -> bytes:
    """The demo's, or one of the other kinds; some have a trace id."""
    kind, chance = kind_of(planned), random.Random(f"trace {planned.seed} {planned.index}")
    if kind == "stream":
        data = traffic.request(planned)
    else:
        tokens = {"whole": WHOLE_TOKENS, "invalid": 0, "raises": RAISES, "refused": chance.choice(list(REFUSED))}[kind]
        body = json.dumps({"model": "demo", "prompt": "so it is", "max_tokens": tokens}).encode()
        data = head_of(len(body)) + body
    if chance.random() < 0.2:
        trace = f"00-{chance.getrandbits(128) | 1:032x}-{chance.getrandbits(64) | 1:016x}-01"
        data = data.replace(b"\r\n", f"\r\ntraceparent: {trace}\r\n".encode(), 1)
    return data


def head_of(length: int) -> bytes:
    """Of a completion."""
    lines = ("POST /v1/completions HTTP/1.1", "host: demo", "content-type: application/json")
    return "\r\n".join((*lines, f"content-length: {length}", "", "")).encode()


def stream_request(tokens: int) -> bytes:
    """A streaming completion."""
    body = json.dumps({"model": "demo", "prompt": "so it goes", "max_tokens": tokens, "stream": True}).encode()
    return head_of(len(body)) + body


class Others:
    """Clients that the load tester has not: they leave, or read slowly. sent: requests; tokens: that came."""

    def __init__(self, port: int, seed: int, seconds: float) -> None:
        self._port, self._chance, self._seconds = port, random.Random(f"others {seed}"), seconds
        self.sent = self.left = self.tokens = self.planted = 0

    async def run(self) -> None:
        """All of a turn."""
        slow = self._slow() if self._seconds >= SLOW_SECONDS else asyncio.sleep(0)
        plants = self._plants()
        leavers = (self._leave(self._chance.uniform(0, self._seconds)) for _ in range(int(LEAVERS * self._seconds)))
        await asyncio.gather(slow, plants, *leavers)

    async def _leave(self, at: float) -> None:
        tokens = self._chance.randint(80, 120)
        stays = self._chance.choice((0.004, 0.1, 0.3, 0.6))
        await asyncio.sleep(at)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(stream_request(tokens))
        self.sent += 1
        self.left += 1
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._read(reader), stays)
        writer.transport.abort()

    async def _slow(self) -> None:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LITTLE)
            connection.connect(("127.0.0.1", self._port))
            connection.setblocking(False)
            await self._read_late(*await asyncio.open_connection(sock=connection, limit=LITTLE))

    async def _read_late(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_request(SLOW_TOKENS))
        self.sent += 1
        await asyncio.sleep(0.6 * self._seconds)
        await self._read(reader)
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """The whole answer; a token each line that has a choice."""
        while (line := await reader.readline()) and line != b"0\r\n":
            self.tokens += b'"choices"' in line

    async def _plants(self) -> None:
        names = [PLANTS[i] for i in self._chance.sample(range(len(PLANTS)), len(PLANTS))]
        for i in range(int(self._seconds / PLANT_EVERY)):
            await asyncio.sleep(PLANT_EVERY)
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            head = f"POST /plant/{names[i % len(names)]} HTTP/1.1", "host: x", "connection: close", "", ""
            writer.write("\r\n".join(head).encode())
            await reader.read()
            writer.close()
            self.planted += 1


def turn(port: int, seed: int, seconds: float) -> Row:
    """One server, for so long: what its clients have seen."""
    schedule = traffic.open_loop(RATE, seconds, seed)
    job = engine.Job(schedule, request)
    others = Others(port, seed, seconds)

    async def load() -> Any:
        result, _ = await asyncio.gather(engine.run(job, Pool(Target("127.0.0.1", port), timeout=60.0)), others.run())
        return result

    result = in_loop(load)
    rows = result.requests
    kinds = [kind_of(Planned(0.0, 0, 0, index, seed)) for index in rows.index]
    streams = [i for i, kind in enumerate(kinds) if kind == "stream"]
    ttft = sorted((rows.first[i] - rows.planned[i]) / 1e6 for i in streams if rows.first[i] != NEVER)
    e2e = sorted((rows.end[i] - rows.planned[i]) / 1e6 for i in streams if rows.status[i] == 200)
    lag = sorted(sent - planned for sent, planned in zip(rows.sent, rows.planned, strict=True))
    return {
        **{f"ttft_p{at}_ms": quantile(ttft, at / 100) for at in (50, 99)},
        **{f"itl_p{at}_ms": 1e3 * (result.itl.p(at) or 0.0) for at in (50, 99)},
        **{f"e2e_p{at}_ms": quantile(e2e, at / 100) for at in (50, 99)},
        "sent": len(rows) + others.sent,
        "left": others.left,
        "tokens": sum(rows.tokens[i] for i in streams) + others.tokens,
        "streams": len(streams),
        "planted": others.planted,
        "statuses": {str(status): n for status, n in sorted(Counter(rows.status).items())},
        "faults": result.outcomes.faults,
        "send_lag_p99_ms": quantile(lag, 0.99) / 1e6,
        "client_cpu": result.client.cpu,
        "client_paused": result.client.paused,
    }


def quantile(ordered: list[float], q: float) -> float:
    """Nearest rank."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else math.nan


# ---- servers ----


class Server:
    """One of the two."""

    def __init__(self, arm: str, where: Path, loop: str, otlp: str) -> None:
        self.arm, self.group, self.log = arm, where / "group", where / "log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TAILWATCH", "OTEL"))}
        exports = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": otlp,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRIC_EXPORT_INTERVAL": "10000",
        }
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "long_run_server.py"), arm, str(self.group), str(self.log), loop],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=kept | threads | (exports if arm == WITH else {}),
        )
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.port = int(self._process.stdout.readline())
        self._log_at = 0
        self.lines: Counter[str] = Counter()

    def stop(self) -> None:
        """It ends with its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def counts(self) -> Counts:
        """What it has counted, once nothing is in flight."""
        until = time.monotonic() + QUIET_SECONDS
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            connection.request("GET", "/counts")
            found: Counts = json.loads(connection.getresponse().read())
            connection.close()
            if found["tailwatch"] is None or found["tailwatch"]["in_flight"] == 0 or time.monotonic() > until:
                return found
            time.sleep(0.2)

    def sizes(self) -> dict[str, int]:
        """Of the process, and of what it keeps in shared memory; bytes, and how many."""
        proc = Path(f"/proc/{self.pid}")
        rollup = dict(re.findall(r"^(\w+): +(\d+) kB", (proc / "smaps_rollup").read_text(), re.MULTILINE))
        threads = re.search(r"^Threads:\s+(\d+)", (proc / "status").read_text(), re.MULTILINE)
        looks = []
        for _ in range(3):  # a scrape may be under way
            looks.append(len(list((proc / "fd").iterdir())))
            time.sleep(0.05)
        shared = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
        own = [int(each[3]) for each in shared if int(each[4]) == self.pid]
        files = [each for each in self.group.glob("*") if each.is_file()] if self.group.is_dir() else []
        return {
            "rss": int(rollup["Rss"]) * 1024,
            "pss": int(rollup["Pss"]) * 1024,
            "descriptors": min(looks),
            "threads": int(threads.group(1)) if threads else 0,
            "segments": len(own),
            "segment_bytes": sum(own),
            "files": len(files),
            "file_bytes": sum(each.stat().st_size for each in files),
        }

    def read_log(self) -> dict[str, int]:
        """How many slow gaps and pauses its lines are of, so far."""
        with self.log.open("rb") as log:
            log.seek(self._log_at)
            written = log.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._log_at += len(whole)
        for line in whole.decode().splitlines():
            count_line(line, self.lines)
        return dict(self.lines)


def count_line(line: str, lines: Counter[str]) -> None:
    """Each of its own, or "N more"."""
    more = re.match(r"(slow gaps|gc pauses)(?: shorter than [\d.]+ ms)?: (\d+) more", line)
    if "gc pauses shorter" in line and more:
        lines["short pauses"] += int(more.group(2))
    elif more:
        lines["slow gaps" if more.group(1) == "slow gaps" else "pauses"] += int(more.group(2))
    elif line.startswith("slow "):
        lines["slow gaps"] += 1
    elif line.startswith("gc pause "):
        lines["pauses"] += 1
    else:
        lines["other"] += 1


class Readers:
    """long_run_readers.py."""

    def __init__(self, every: float, why_every: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "long_run_readers.py"), str(every), str(why_every)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        assert self._process.stdout is not None and self._process.stdin is not None
        self.otlp = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def read(self, port: int) -> None:
        """From now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{port}\n")
        self._process.stdin.flush()

    def finish(self) -> Row:
        """What they found."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        found: Row = json.loads(self._process.stdout.read())
        self._process.wait(60)
        return found

    def stop(self) -> None:
        """Whatever happened."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def started(loop: str, *, quick: bool) -> Iterator[tuple[dict[str, Server], Readers]]:
    """Both servers, and what reads one of them."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as root:
        readers = Readers(1.0, 4.0) if quick else Readers(SCRAPE_EVERY, WHY_EVERY)
        servers: dict[str, Server] = {}
        try:
            for arm in ARMS:
                (Path(root) / arm).mkdir()
                servers[arm] = Server(arm, Path(root) / arm, loop, readers.otlp)
            readers.read(servers[WITH].port)
            yield servers, readers
        finally:
            readers.stop()
            for server in servers.values():
                server.stop()


# ---- blocks ----


def block_of(servers: dict[str, Server], number: int, seconds: float, previous: Row | None) -> Row:
    """One turn of each, and what is read afterwards."""
    row: Row = {"turns": {}, "counts": {}, "sizes": {}}
    for arm in ARMS if number % 2 == 0 else ARMS[::-1]:
        row["turns"][arm] = turn(servers[arm].port, number + 1, seconds)
    time.sleep(0.5)
    for arm, server in servers.items():
        row["counts"][arm] = server.counts()
        row["sizes"][arm] = server.sizes()
    row["at_ns"] = time.monotonic_ns()
    row["log"] = row["log_before"] = servers[WITH].read_log()
    row["counts_after"] = row["counts"][WITH]
    if previous is not None and number % TRACE_EVERY == 1:
        row["traced"] = traced(servers[WITH], previous["at_ns"], row["at_ns"])
    return row


def traced(server: Server, since_ns: int, until_ns: int) -> dict[str, int]:
    """What the event ring has of a block."""
    with tempfile.TemporaryDirectory() as place:
        rings = [each.path for each in files_of(str(server.group))]
        written = perfetto.write(f"{place}/block.pftrace", rings, since_ns=since_ns, until_ns=until_ns)
    kept = ("tokens", "requests", "pauses", "steps", "stalls", "unfinished", "beginless", "lost", "stalls_lost")
    return {name: getattr(written, name) for name in (*kept, "stalls_left_out", "unreadable")}


# ---- the whole ----


def report_of(found: Row) -> Report:
    """All bars, and what the load was."""
    blocks, readers, began = found["blocks"], found["readers"], found["began"]
    report = Report("An hour of mixed load with everything on: does anything grow, is a sample lost, are tails slower?")
    report.machine = found["machine"]
    report.bars = growth_bars(blocks) + sample_bars(blocks, readers, began) + tail_bars(blocks)
    watched = blocks[-1]["counts"][WITH]["tailwatch"]
    minutes = (blocks[-1]["at_ns"] - began["at_ns"]) / 60e9
    drops = {name: n for name, n in watched["drops"].items() if n}
    report.notes += [
        f"{minutes:.1f} minutes, {len(blocks)} blocks of a turn of {found['turn']:.0f} s on each server, "
        f"{found['loop']}; in brackets the 95 % interval over the blocks, of levels their range",
        f"the watched server: {watched['opened']} requests, {watched['tokens']} tokens, dropped {drops}; gc="
        f"{watched['gc']}, pauses {watched['collections']}",
        f"read: {readers['done']}, {readers['exports']} OTLP exports; the longest took {readers['longest_s']} s",
    ]
    return report


def run(options: argparse.Namespace) -> Row:
    """All blocks; the file is written after each."""
    seconds = QUICK_TURN if options.quick else options.turn
    blocks: list[Row] = []
    found: Row = {"machine": machine(), "turn": seconds, "loop": options.loop, "readers": NO_READERS, "blocks": blocks}
    with started(options.loop, quick=options.quick) as (servers, readers):
        until = time.monotonic() + (0.0 if options.quick else options.minutes * 60)
        found["began"] = servers[WITH].counts() | {"at_ns": time.monotonic_ns()}
        while len(blocks) < 2 or time.monotonic() + 2 * seconds < until:
            if blocks:
                blocks[-1] = thinned(blocks[-1])
            blocks.append(block_of(servers, len(blocks), seconds, blocks[-1] if blocks else None))
            show(blocks[-1])
            keep(options.json, found)
        settle(servers[WITH], blocks[-1], 2.0 if options.quick else SETTLE_SECONDS)
        found["readers"] = readers.finish()
    return found


def thinned(row: Row) -> Row:
    """Without what is asked of the last block only."""
    ours, its = row["counts"][WITH], row["counts"][WITHOUT]
    watched = {name: ours["tailwatch"][name] for name in ("pauses", "memory_bytes", "gc")}
    kept = {name: ours[name] for name in ("threads", "own", "heap", "cpu")} | {"tailwatch": watched}
    counts = {WITH: kept, WITHOUT: {name: its[name] for name in ("heap", "cpu")}}
    return {name: row[name] for name in ("turns", "sizes", "at_ns", "traced") if name in row} | {"counts": counts}


def keep(path: Path | None, found: Row) -> None:
    """As JSON, where it was asked for: a line for each block."""
    if path is not None:
        rest = {name: value for name, value in found.items() if name != "blocks"}
        blocks = ",\n".join(json.dumps(row) for row in found["blocks"])
        text = f'{json.dumps(rest, indent=1)[:-2]},\n "blocks": [\n{blocks}\n]}}\n'
        path.write_text(text, encoding="utf-8")


def settle(server: Server, row: Row, seconds: float) -> None:
    """The last reading once more, when spans have had their time. Its log lines come later, those of pauses after a
    second."""
    time.sleep(seconds)
    row["log_before"] = server.read_log()
    row["counts"][WITH] = server.counts()
    time.sleep(max(3.0, seconds))
    row["log"] = server.read_log()
    row["counts_after"] = server.counts()


def show(row: Row) -> None:
    """What happens, while it happens."""
    parts = [
        f"{arm}: TTFT p99 {row['turns'][arm]['ttft_p99_ms']:.1f}, ITL p99 {row['turns'][arm]['itl_p99_ms']:.2f} ms, "
        f"RSS {row['sizes'][arm]['rss'] / 1e6:.1f} MB"
        for arm in ARMS
    ]
    print("; ".join(parts), file=sys.stderr, flush=True)


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--turn", type=float, default=20.0, help="seconds of load on one server")
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="two short blocks: whether it works")
    parser.add_argument("--judge", type=Path, metavar="FILE", help="of --json: nothing is run")
    options = parser.parse_args()
    found = json.loads(options.judge.read_text(encoding="utf-8")) if options.judge else run(options)
    report = report_of(found)
    print(report)
    keep(options.json, found | report.as_dict())


if __name__ == "__main__":
    main()
