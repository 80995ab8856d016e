"""What does the load client cost, and how late are its own stamps?

A C token generator (load/token_server.c) on one core, a client process on another, in closed loop over streams of 64
tokens. `bare` is the least that a client can do: a protocol that stamps each read and counts "data: " in it. Our client
parses HTTP, finds the tokens, and keeps every gap. A round runs both at each of the loads, the order turns round with
each round; ratios are taken within a round. Tokens per second of CPU time is the measure: it does not depend on how
much of the core was there to be had. `bench` is the whole command, `tailwatch bench --closed`: what it records of each
request and its table are in its CPU time; what a run of one request takes, which is its start, is taken off. Here each
token is a write and a read of its own, which cost both cores about the same: at full speed neither is far ahead. Peers
are compared where the generator is (load/peers.py, "saturated").

Receipt is our stamp of a message less the generator's own, taken before the write of that message: 100 streams × 200
tokens/s. The first request after start is what a listening socket sees of a fresh process. Installed is what pip puts
into a fresh environment for the extra `load`, beyond the base package's own. Memory is the largest resident size of the
whole command over so many requests of one token, open loop, every option as it comes. Peers are measured by
load/peers.py; its rows are shown with these.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from harness import Bar, Report, bar_of, main

HERE = Path(__file__).resolve().parent
LOAD = HERE / "load"
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
PEERS = HERE / "results/load_peers.json"
PACE_US = 5000
LOADS = (100, 400)  # streams
FULL = (700, 1000)  # streams and us between their tokens: more than a core can take
ROUNDS, SECONDS = 5, 4.0
BENCH = (sys.executable, "-m", "tailwatch", "bench")
MANY, MANY_PER_S, MANY_US = 1_000_000, 3000, 500  # requests, their rate, us until their one token


Found = dict[tuple[int, str], list[dict[str, float]]]
"""By streams and client: what each run returned."""


def cores() -> tuple[set[int], set[int]]:
    """Of the server and of the client."""
    free = sorted(os.sched_getaffinity(0))
    return {free[0]}, {free[-1]}


def compiler() -> str | None:
    """One for C."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def built(directory: Path) -> Path:
    """The token generator."""
    found, target = compiler(), directory / "token_server"
    if found is None:
        raise SystemExit("needs a C compiler: apt install gcc")
    subprocess.run([found, "-O2", "-o", str(target), str(LOAD / "token_server.c")], check=True)
    return target


def pinned(to: set[int]) -> dict[str, Any]:
    """For Popen: the child runs there. No thread of ours is running that could mind."""
    return {"preexec_fn": lambda: os.sched_setaffinity(0, to)}


@contextmanager
def serving(binary: Path, pace_us: int, *options: str) -> Iterator[int]:
    """The generator; its port."""
    command = [str(binary), "-i", str(pace_us), *options]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **streams, **pinned(cores()[0])) as process:
        assert process.stdout and process.stdin
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(timeout=20)


def client(way: str, port: int, connections: int, seconds: float, *options: str) -> dict[str, float]:
    """One run of one client in a process of its own."""
    command = [sys.executable, str(LOAD / "clients.py"), way, str(port), f"--connections={connections}"]
    run = [*command, f"--seconds={seconds}", *options]
    measured: dict[str, float] = json.loads(
        subprocess.run(run, check=True, capture_output=True, **pinned(cores()[1])).stdout
    )
    return measured


def sent(port: int) -> int:
    """Tokens that the generator has written so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats", timeout=20) as answer:
        return int(json.load(answer)["tokens"])


def command(port: int, connections: int, seconds: float) -> dict[str, float]:
    """One run of the whole command: what the generator wrote for it, and what it took in all."""
    _, start = bench_run(port, "--closed", "--workers=1", "--requests=1")
    before = sent(port)
    measured, cpu = bench_run(port, "--closed", f"--workers={connections}", f"--duration={seconds + 1:g}s")
    tokens = sent(port) - before
    return {"tokens_per_cpu_s": tokens / max(cpu - start, 1e-3), "tokens_per_s": tokens / measured["elapsed"]}


def bench_run(port: int, *options: str) -> tuple[dict[str, Any], float]:
    """Its result, and its CPU seconds."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "run.json"
        what = [f"http://127.0.0.1:{port}", "--model=m", "--output-tokens=64", "--quiet", f"--json={file}"]
        with subprocess.Popen(
            [*BENCH, *what, *options], stdout=subprocess.DEVNULL, cwd=HERE, **pinned(cores()[1])
        ) as run:
            _, status, used = os.wait4(run.pid, 0)
            run.returncode = os.waitstatus_to_exitcode(status)
        measured: dict[str, Any] = json.loads(file.read_text())["runs"][0]
        return measured, used.ru_utime + used.ru_stime


def has_command() -> bool:
    """Whether this tailwatch has the command."""
    return subprocess.run([*BENCH, "--help"], capture_output=True, cwd=HERE).returncode == 0


def turns(binary: Path, rounds: int, seconds: float, loads: tuple[int, ...], full: int) -> Found:
    """Every load with every client, again and again; the last one at full speed."""
    found: Found = {}
    ways = ["bare", "pool", *(["bench"] if has_command() else [])]
    with serving(binary, PACE_US) as paced, serving(binary, FULL[1]) as fast:
        cases = [*((load, paced) for load in loads), (full, fast)]
        for turn in range(rounds):
            for (load, port), way in itertools.product(cases, ways if turn % 2 else ways[::-1]):
                measured = command(port, load, seconds) if way == "bench" else client(way, port, load, seconds)
                found.setdefault((load, way), []).append(measured)
    return found


def ratio_bars(found: Found, loads: tuple[int, ...], full: int) -> Iterator[Bar]:
    """Ours over the bare one's."""
    measures = [(load, "tokens_per_cpu_s", f"tokens per CPU second, {load} streams") for load in loads]
    for load, key, name in [*measures, (full, "tokens_per_s", f"tokens/s on one core, {full} streams at full speed")]:
        bare = [run[key] for run in found[load, "bare"]]
        yield bar_of(f"{name}: bare", bare, unit="tokens/s")
        for way in ("pool", "bench"):
            ours = [run[key] for run in found.get((load, way), [])]
            if ours:
                yield bar_of(f"{name}: {way}", ours, unit="tokens/s")
                ratios = [a / b for a, b in zip(ours, bare, strict=True)]
                yield bar_of(f"{name}: {way} / bare", ratios, bar=0.6, at_least=True)


def peer_bars() -> Iterator[Bar]:
    """What peers.py found, where it was run."""
    if PEERS.exists():
        for bar in json.loads(PEERS.read_text())["bars"]:
            yield Bar(**{name: value for name, value in bar.items() if name != "met"})


def records(file: Path) -> dict[int, array[int]]:
    """Stamps by seed."""
    words, found, at = array("Q"), {}, 0
    words.frombytes(file.read_bytes())
    while at + 2 <= len(words):
        seed, n = words[at], words[at + 1]
        found[seed] = words[at + 2 : at + 2 + n]
        at += 2 + n
    return found


def receipt(binary: Path, directory: Path, seconds: float) -> list[int]:
    """Ours less the server's, ns, for each message of each answer that both have."""
    ours, theirs = directory / "ours", directory / "theirs"
    with serving(binary, PACE_US, "-s", str(theirs)) as port:
        client("pool", port, 100, seconds, "--stamps", str(ours), "--tokens", "200")
    sent = records(theirs)
    late = [mine - its for seed, stamps in records(ours).items() for mine, its in zip(stamps, sent[seed], strict=True)]
    return sorted(late)


def first_request(command: list[str]) -> float:
    """Seconds from the start of a process to the first byte of its first request."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        started = time.monotonic()
        port = listening.getsockname()[1]
        with subprocess.Popen(
            [word.format(port=port) for word in command], cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                while not asked(listening):
                    continue
                return time.monotonic() - started
            finally:
                process.kill()


def asked(listening: socket.socket) -> bool:
    """Whether the next connection brought a byte; the first one of the command only looks whether a server is there."""
    with listening.accept()[0] as connection:
        connection.settimeout(60)
        return connection.recv(1) != b""


ONE_REQUEST = """
import asyncio, time
from tailwatch.loadtest.exchange import Exchange
from tailwatch.loadtest.pool import Pool, Target
from tailwatch.loadtest.process import new_event_loop
async def one():
    done = asyncio.get_running_loop().create_future()
    request = b"GET / HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n"
    Pool(Target("127.0.0.1", {port})).send(Exchange(time.monotonic_ns()), request, done.set_result)
    await done
new_event_loop().run_until_complete(one())
"""


def installed_mb(directory: Path) -> float:
    """What the extra `load` adds to a fresh environment that has what the base package needs, on disk."""
    venv.create(directory, with_pip=True)
    sizes = []
    for extra in ("", "load"):
        run = [str(directory / "bin/python"), "-m", "pip", "install", "-q", *requirements(extra)]
        subprocess.run(run, check=True)
        sizes.append(
            sum(path.stat().st_size for path in directory.glob("lib/python*/site-packages/**/*") if path.is_file())
        )
    return (sizes[1] - sizes[0]) / 1e6


def requirements(extra: str) -> list[str]:
    """Of the installed tailwatch: those of its base, or of an extra."""
    declared = [line.partition(";") for line in metadata.requires("tailwatch") or ()]
    marker = f'extra == "{extra}"' if extra else ""
    return [name.strip() for name, _, condition in declared if condition.strip() == marker]


def memory(binary: Path, directory: Path, requests: int) -> float:
    """MB resident at most, while the whole command sends so many."""
    file = directory / "memory.json"
    with serving(binary, MANY_US) as port:
        what = [f"http://127.0.0.1:{port}", "--model=m", "--output-tokens=1", f"--json={file}"]
        load = [f"--rate={MANY_PER_S}", f"--requests={requests}"]
        with subprocess.Popen([*BENCH, *what, *load], **SILENT, cwd=HERE, **pinned(cores()[1])) as run:
            largest = peak(run)
    good = json.loads(file.read_text())["runs"][0]["outcomes"]["by_reason"]["good"]
    assert good == requests, f"{requests - good} of {requests} requests were not good"
    return largest


def peak(run: subprocess.Popen[bytes]) -> float:
    """MB resident at most while it runs. Not getrusage's: that of a child begins with what its parent had."""
    largest = 0.0
    while run.poll() is None:
        with suppress(OSError, KeyError):  # it ends while we look
            lines = dict(line.split(":") for line in Path(f"/proc/{run.pid}/status").read_text().splitlines())
            largest = max(largest, int(lines["VmHWM"].split()[0]) * 1024 / 1e6)
        time.sleep(0.02)
    return largest


def commands() -> Iterator[tuple[str, list[str], float | None]]:
    """What is started to see its first request: the client alone, and the command that people use."""
    yield "first request after start: the client", [sys.executable, "-c", ONE_REQUEST], None
    if has_command():
        bench = [*BENCH, "http://127.0.0.1:{port}", "--model=m", "--rate=50", "--arrivals=constant"]
        yield "first request after start: tailwatch bench", bench, 1.0


def number(name: str, value: float, bar: float, unit: str = "MB") -> Bar:
    """One that was measured once."""
    return Bar(name, value, value, value, bar, unit=unit)


def report(quick: bool = False) -> Report:
    """Runs everything."""
    rounds, seconds = (1, 0.4) if quick else (ROUNDS, SECONDS)
    loads, full = ((20,), 50) if quick else (LOADS, FULL[0])
    made = Report(
        f"{rounds} rounds of {seconds:g} s for each load and client; the client and the generator on a core each"
    )
    with tempfile.TemporaryDirectory() as directory:
        binary = built(Path(directory))
        found = turns(binary, rounds, seconds, loads, full)
        made.bars += ratio_bars(found, loads, full)
        made.bars += [] if quick else peer_bars()
        late = receipt(binary, Path(directory), seconds)
        made.bars += (
            [] if quick else [number("installed beyond the base package", installed_mb(Path(directory) / "venv"), 20.0)]
        )
        requests = 1000 if quick else MANY
        made.bars += [number(f"memory at {requests} requests", memory(binary, Path(directory), requests), 200.0)]
    assert late[0] >= 0, "a message was received before it was written"
    for q, bar in ((0.5, 0.5), (0.99, 4.0)):
        value = late[int(len(late) * q)] / 1e6
        made.bars.append(number(f"receipt - write, 100 streams × 200/s: p{q * 100:g}", value, bar, "ms"))
    for name, command, bar in commands():
        values = [first_request(command) for _ in range(1 if quick else 5)]
        made.bars.append(bar_of(name, values, bar=bar, unit="s"))
    made.notes.append(f"receipt: {len(late)} messages; cores of generator and client: {cores()}")
    return made


def test_load(benchmark: Any) -> None:
    """A short run of everything; the numbers are in extra_info."""
    pytest.importorskip("uvloop", reason="pip install uvloop: the bare client runs on it")
    if compiler() is None:
        pytest.skip("builds its token generator: apt install gcc")
    made = report(quick=True)
    benchmark.extra_info.update(made.as_dict())
    benchmark.pedantic(lambda: None, rounds=1)
    assert len(made.bars) > 8
    assert all(bar.value > 0 for bar in made.bars if "receipt" not in bar.name)


def test_records_are_read_as_written(tmp_path: Path) -> None:
    """Seed, number of stamps, stamps; one after the other."""
    file = tmp_path / "stamps"
    file.write_bytes(struct.pack("2Q2Q", 7, 2, 10, 20) + struct.pack("2Q", 8, 0) + struct.pack("3Q", 9, 1, 5))
    assert records(file) == {7: array("Q", [10, 20]), 8: array("Q"), 9: array("Q", [5])}


if __name__ == "__main__":
    main(report)
