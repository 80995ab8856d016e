"""Runs a real server under ``tailwatch run``, plants a pause in each of its processes, and compares the two accounts.

    python tests/servers/prove.py vllm --venv VENV --model DIR [--gguf FILE] [--json FILE]

VENV has the server and this tailwatch installed, DIR is make_model.py's. Run it with a Python that has tailwatch. Each
process in turn collects a heap of ours: once while no client waits, once while every one does. On a fast machine
--objects must be larger, so that these pauses exceed SLOW_GAP_MS. Its own log of that (plant/) and the stamps taken
behind tailwatch, where messages reach uvicorn, give what must be reported.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from clients import Received, Streams, ids_of, text_events
from host_plants import Cgroup
from targets import HERE, NOT_RUN, SERVERS, Server

from tailwatch import snapshots
from tailwatch.errors import TailwatchError
from tailwatch.integrations.process_roles import delays_streams

OBJECTS = 1_000_000
START_SECONDS = 150
ANSWER_SECONDS = 120
SLOW_GAP_MS = 80  # below each planted pause, above the usual gap of a busy machine: the last 256 slow gaps are kept
WARM_REQUESTS = 40  # the freeze after warm-up has been by then
BLOCK_SECONDS = 0.5
CAUSE = "gc2"
SLACK_NS = 1_000_000  # between a stamp of tailwatch's and ours behind it, for a gap
ROUNDED_NS = 1_000  # of a sum that a snapshot has in seconds
HIGH_ITL = 0.2  # vLLM's own histogram has a bound there


def main() -> None:
    """Prints one server's account, and adds it to the file of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", choices=SERVERS)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=Path("model"))
    parser.add_argument("--gguf", type=Path, default=Path("model.gguf"))
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--objects", type=int, default=OBJECTS, help="of the heap that each process collects")
    parser.set_defaults(slow_gap_ms=SLOW_GAP_MS)
    parser.add_argument("--boot", action="store_true", help="TAILWATCH=1 and the boot file instead of tailwatch run")
    parser.add_argument("--log", type=Path, help="keep what the server printed")
    parser.add_argument("--json", type=Path, help="the file of all servers' results, to be brought up to date")
    options = parser.parse_args()
    plain = json.dumps(prove(options)).replace(str(options.model.absolute()), options.model.name)
    result = json.loads(plain)  # a server may call its model by its directory, which is of one machine
    print(json.dumps(result, indent=1))
    if options.json is not None:
        keep(options.json, options.server + (", TAILWATCH=1" if options.boot else ""), result)
    sys.exit(0 if not result["failed"] else 1)


def keep(file: Path, name: str, result: dict[str, Any]) -> None:
    """Puts one server's account into the file of all."""
    sys.path.insert(0, str(HERE.parents[1] / "benchmarks"))
    from harness import machine

    servers = json.loads(file.read_text())["servers"] if file.exists() else {}
    servers[name] = result
    whole = {"machine": machine(), "table": table(servers), "not run": NOT_RUN, "servers": servers}
    file.write_text(json.dumps(whole, indent=1) + "\n")


def table(servers: dict[str, dict[str, Any]]) -> list[str]:
    """Each pause that was planted while streams waited, a line."""
    head = ("server", "process", "pause ms", "streams", "overlap by both logs ms", "reported ms", "idle: charged ms")
    rows = [
        (
            *(name, found["process"], found["pause ms"], found["streams delayed"], found["overlap by both logs ms"]),
            *(found["overlap reported ms"], found["while nobody waited"]["charged ms"]),
        )
        for name, result in servers.items()
        for found in result["planted"]
    ]
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


# ---- the server and its processes ----


@dataclass
class Running:
    """A server at work, the group of its processes, and our hands in them."""

    server: Server
    port: int
    model: str
    group: str
    plant: Path
    process: subprocess.Popen[bytes]
    objects: int = OBJECTS
    orders: Iterator[int] = field(default_factory=count)
    pids: dict[tuple[str, str], int] = field(default_factory=dict)
    """By role and a part of the title: those that planted_causes.py has looked up."""
    playing: Streams | None = None
    """Those in flight in a round of planted_causes.py."""
    pids_of_all: list[int] = field(default_factory=list)
    """Of its processes, looked up before that round."""
    cgroup: Cgroup | None = None
    """The server's own, where its CPU time is to be limited."""
    narrow: bool = False
    """Whether the first client's connection has small buffers."""

    def look(self) -> snapshots.Snapshot:
        """The group as it is seen from outside."""
        return snapshots.take_directory(self.group)

    def order(self, pid: int, what: str, amount: float | str) -> dict[str, Any]:
        """Has one process do something, and waits until it has."""
        number = next(self.orders)
        order = json.dumps({"what": what, "amount": amount, "number": number}) + "\n"
        pipe = self.plant / f"{pid}.do"
        _wait(lambda: _written(pipe, order), ANSWER_SECONDS, f"process {pid} takes no orders")
        done = self.plant / f"{pid}.{number}.done"
        _wait(done.exists, ANSWER_SECONDS, f"process {pid} did not answer to {what}")
        answer: dict[str, Any] = json.loads(done.read_text())
        done.unlink()
        if "error" in answer:
            raise AssertionError(f"{what}: {answer['error']}")
        return answer

    def streams(self, name: str, count: int = 0, tokens: int = 0) -> Streams:
        """Clients at work."""
        server = self.server
        payload: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": "why was that token late"}],
            "max_tokens": tokens or server.tokens,
            "temperature": 0,
            "stream": True,
            **server.extra,
        }
        if server.usage:
            payload["stream_options"] = {"include_usage": True}
        return Streams(self.port, name, count or server.streams, payload, server.engines, narrow=self.narrow)

    def sent(self, name: str, process: snapshots.Process) -> list[dict[str, Any]]:
        """What our stamps behind tailwatch saw of the requests of that name that wait while this process stands still:
        all, unless it is one of several API processes, or of one of several engines."""
        files = self.plant.glob(f"{process.pid}.sent" if process.role == "api" else "*.sent")
        lines = [line for file in files for line in file.read_text().splitlines()]
        found = [line for line in map(json.loads, lines) if line["id"].startswith(ids_of(name))]
        if self.server.engines == 1 or process.role == "api":
            return found
        rank = _rank(process.pid)
        return [line for line in found if int(line["id"][-12:], 16) % self.server.engines == rank]

    @property
    def answer(self) -> str:
        """The text of each stream, where it is known."""
        return "".join(self.server.token.format(number) for number in range(self.server.tokens))

    def get(self, path: str) -> str:
        """What the server answers."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return str(answer.read(), "utf-8")


@contextlib.contextmanager
def running(options: argparse.Namespace, log: Path) -> Iterator[Running]:
    """A server under ``tailwatch run``; nothing of it is left afterwards."""
    server = SERVERS[options.server]
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        group = tempfile.mkdtemp(prefix="servers-", dir="/dev/shm")
        stack.callback(shutil.rmtree, group, ignore_errors=True)
        plant = Path(made)
        names = {
            **{"bin": str(options.venv.absolute() / "bin"), "model": str(options.model.absolute()), "here": str(HERE)},
            **{"gguf": str(options.gguf.absolute()), "port": str(options.port)},
        }
        command = [word.format(**names) for word in server.command.split()]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TAILWATCH", "PYTHON"))}
        environment = {**kept, **server.environment, "PYTHONPATH": str(HERE / "plant"), "PLANT_DIR": made}
        environment["TAILWATCH_GC"] = "observe"  # a heap that is frozen before it is collected makes no pause
        environment["PATH"] = f"{names['bin']}:{environment['PATH']}"
        tailwatch = [f"{names['bin']}/tailwatch", "run", f"--dir={group}", f"--slow-gap-ms={options.slow_gap_ms}", "--"]
        if options.boot:
            tailwatch = []
            environment |= {"TAILWATCH": "1", "TAILWATCH_DIR": group, "TAILWATCH_SLOW_GAP_MS": str(options.slow_gap_ms)}
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*tailwatch, *command], env=environment, stdout=file, stderr=file, start_new_session=True, cwd=made
            )
        it = Running(server, options.port, server.model.format(**names), group, plant, process, objects=options.objects)
        try:
            _wait(lambda: _is_up(it), START_SECONDS, "the server does not answer", process)
            yield it
        finally:
            _stop(process, [each.pid for each in _processes(it)], options.venv / "bin" / "py-spy")


def _written(pipe: Path, line: str) -> bool:
    """Whether somebody reads it, who gets that line."""
    try:
        with os.fdopen(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK), "w") as file:
            file.write(line)
    except OSError:  # it is not there yet, or nobody reads it
        return False
    return True


def _rank(pid: int) -> int | None:
    """Which engine a process is, or works for: it, or its parent, has that in its title."""
    while pid > 1:
        if rank := re.search(rb"_DP(\d+)", Path(f"/proc/{pid}/cmdline").read_bytes()):
            return int(rank[1])
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def _is_up(it: Running) -> bool:
    try:
        it.get(it.server.ready)
    except OSError:
        return False
    return True


def _processes(it: Running) -> list[snapshots.Process]:
    try:
        return [each for each in it.look().processes if each.pid]
    except TailwatchError:
        return []


def _stop(process: subprocess.Popen[bytes], pids: list[int], py_spy: Path) -> None:
    """As a supervisor would, and then by force: some servers leave their children behind."""
    process.terminate()
    try:
        process.wait(40)
    except subprocess.TimeoutExpired:
        print("40 s after SIGTERM the server has not ended", file=sys.stderr)
        for pid in pids if py_spy.exists() else ():
            subprocess.run([py_spy, "dump", "--pid", str(pid)], stdout=sys.stderr, check=False)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _wait(what: Any, seconds: float, otherwise: str, process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise AssertionError(otherwise)
        if process is not None and process.poll() is not None:
            raise AssertionError(f"the server ended: {process.returncode}")
        time.sleep(0.02)


# ---- the account ----


@dataclass
class Account:
    """What was found, and what of it is not as it must be."""

    failed: list[str] = field(default_factory=list)

    def must(self, true: bool, sentence: str) -> bool:
        """Notes the sentence where it is not true."""
        if not true:
            self.failed.append(sentence)
        return true


def prove(options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one server."""
    account = Account()
    log = options.log or Path(tempfile.mkstemp(suffix=".log")[1])
    received = 0
    with running(options, log) as it:
        began = it.look()
        warm = it.streams("warm", count=4, tokens=8).finish()
        for number in range(1, WARM_REQUESTS // 4):
            warm += it.streams(f"warm{number}", count=4, tokens=8).finish()
        _wait(lambda: _roles(it) == it.server.roles, 10, f"roles {_roles(it)}, not {it.server.roles}")
        processes = _processes(it)
        all_clients = list(warm)
        rounds = []
        for process in processes:
            found, clients = plant(it, process, account)
            rounds.append(found)
            all_clients += clients
        blocked, clients = block(it, account)
        all_clients += clients
        received = sum(each.usage or len(each.times) for each in all_clients)
        counted = _settled(it, began, received)
        account.must(counted == received, f"{counted} tokens were counted, clients received {received}")
        metrics = _metrics(it)
        answers = {_tokens_of(_metrics(it)) for _ in range(8)}
        account.must(answers == {_tokens_of(metrics)}, f"API processes report different numbers: {answers}")
        account.must("tailwatch_inter_token_latency_seconds" in metrics, "/metrics has none of ours")
        account.must(bool(_tokens_of(metrics)), "/metrics has no tokens")
        for each in (each for each in rounds if each["streams delayed"]):
            needle = f'source="{each["role"]}"'
            account.must(
                any(needle in line and "overlap" in line for line in metrics.splitlines()), f"/metrics: no {needle}"
            )
        doctor = _doctor(options, it)
        result = {
            "versions": _versions(options, it.server),
            "note": it.server.note,
            "command": it.server.command,
            "streams": it.server.streams,
            "roles": _roles(it),
            "app found": it.look().opened >= len(all_clients),
            "planted": rounds,
            "blocked loop": blocked,
            "requests": len(all_clients),
            "tokens received": received,
            "tokens counted": counted,
            "errors inside tailwatch": {name: n for name, n in it.look().errors.items() if n},
            "dropped": {name: n for name, n in it.look().drops.items() if n},
            "doctor": doctor,
        }
        account.must(bool(result["app found"]), "the app was not found")
        account.must(not result["errors inside tailwatch"], "errors inside tailwatch")
    lines = log.read_text(errors="replace").splitlines()
    account.must(not any("this process alone" in line for line in lines), "a process is in no group")
    result["slow gaps in the log"], least = _logged(lines), sum(each["slow gaps by our stamps"] for each in rounds)
    account.must(
        result["slow gaps in the log"] >= least, f"the log has {result['slow gaps in the log']} slow gaps of {least}"
    )
    summary = [line for line in lines if line.startswith("tailwatch: ")]
    result["summary"] = summary[-1] if len(summary) > 1 else None
    account.must(len(summary) > 1 or options.boot, "tailwatch run printed no summary")
    return {**result, "failed": account.failed}


def _logged(lines: list[str]) -> int:
    """Slow gaps in the server's own log, also where one line has many: its packages may have set any level."""
    more = (int(found[1]) for line in lines if (found := re.search(r"\bslow gaps: (\d+) more\b", line)))
    return sum(bool(re.search(r"\bslow \d{4}-", line)) for line in lines) + sum(more)


def _roles(it: Running) -> dict[str, int]:
    """How many processes there are of each role, launchers and helpers left out."""
    found: dict[str, int] = {}
    for process in _processes(it):
        if process.role == "api" or delays_streams(process.role) or process.role in it.server.roles:
            found[process.role] = found.get(process.role, 0) + 1
    return found


def _settled(it: Running, began: snapshots.Snapshot, received: int) -> int:
    """Tokens counted, when the last ends have been."""
    with contextlib.suppress(AssertionError):
        _wait(lambda: it.look().in_flight == 0 and it.look().tokens - began.tokens == received, 5, "")
    return it.look().tokens - began.tokens


def _metrics(it: Running) -> str:
    """All of ours: at an app's own /metrics only the most important ones follow its own."""
    try:
        return it.get("/tailwatch/metrics")
    except urllib.error.HTTPError:
        return it.get("/metrics")


def _tokens_of(metrics: str) -> tuple[str, ...]:
    return tuple(line for line in metrics.splitlines() if line.startswith("tailwatch_output_tokens_total"))


def _doctor(options: argparse.Namespace, it: Running) -> list[str]:
    file = it.plant / "doctor.json"
    command = [str(options.venv / "bin" / "tailwatch"), "doctor", "--dir", it.group, "--json", str(file)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    report = json.loads(file.read_text())
    return [report["headline"], *(f"{finding['severity']}: {finding['detail']}" for finding in report["findings"])]


def _versions(options: argparse.Namespace, server: Server) -> dict[str, str]:
    code = "import sys, importlib.metadata as m; print(*map(m.version, sys.argv[1:])); print(sys.version.split()[0])"
    python = str(options.venv / "bin" / "python")
    done = subprocess.run(
        [python, "-c", code, *server.versions], capture_output=True, text=True, check=True, cwd=tempfile.gettempdir()
    )
    versions, interpreter = done.stdout.split("\n")[:2]
    return {**dict(zip(server.versions, versions.split(), strict=True)), "python": interpreter}


# ---- a pause in one process ----


def plant(it: Running, process: snapshots.Process, account: Account) -> tuple[dict[str, Any], list[Any]]:
    """Twice the same collection in one process: while no client waits, and while all do."""
    name, role = process.name, process.role
    it.order(process.pid, "build", it.objects)
    idle = idle_pause(it, process, account)
    name_of_round = f"{name}-busy"
    delays = role == "api" or delays_streams(role)
    before = it.look()
    streams = it.streams(name_of_round)
    _all_flow(it, streams)
    pause = it.order(process.pid, "collect", 2)
    soon = _soon(it, streams)
    clients = streams.finish()
    it.order(process.pid, "drop", 0)
    after = _after(it, before, len(clients))
    length = pause["stop"] - pause["start"]
    natural = max(0, _paused(after, process) - _paused(before, process) - length)
    overlaps = [_overlap(pause, *_waiting(line)) for line in it.sent(name_of_round, process)] if delays else []
    expected, least = sum(overlaps), sum(max(0, each - pause["waited"]) for each in overlaps)
    charged = round(_charged(after, before).get(role, 0.0) * 1e9)
    others = round(sum(_charged(after, before, cause=None).values()) * 1e9) - charged  # an instant counts once
    delay = _late(after, role) - _late(before, role)
    elsewhere = {name for name, seconds in _charged(after, before).items() if seconds and name != role}
    paused = {each.role for each in after.processes if _paused(after, each) > _paused(before, each)}
    where = f"{name}: a pause of {length / 1e6:.1f} ms"
    slack = SLACK_NS * len(clients) if delays else 0
    natural = natural if delays else 0
    account.must(bool(expected) is delays, f"{where} coincided with {expected} ns of streams")
    account.must(
        least - slack - others <= charged <= expected + slack + natural * len(clients),
        f"{where}: charged {charged / 1e6:.1f} ms, by the logs {least / 1e6:.1f} to {expected / 1e6:.1f} ms",
    )
    gaps = slow_gaps(it, [soon, after], name_of_round, pause, process)
    slow = delays and gaps["slow by our stamps"] > 0  # a backlog in front of the clients can hide an engine's pause
    account.must(bool(gaps["compared"]) is slow, f"{where}: {gaps['compared']} slow gaps name it")
    account.must(not gaps["wrong"], f"{where}: slow gaps are wrong: {gaps['wrong'][:2]}")
    account.must(delay * 1e6 <= charged + 1 and (delay > 0) is delays, f"{where}: {delay} ms late")
    account.must(elsewhere <= paused, f"{where}: charged to {elsewhere}, of which {paused} paused")
    account.must(not it.server.token or all(each.text == it.answer for each in clients), f"{where}: other text")
    return {
        "process": name,
        "role": role,
        "pause ms": round(length / 1e6, 2),
        "streams delayed": sum(overlap > 0 for overlap in overlaps),
        "overlap by both logs ms": round(expected / 1e6, 2),
        "overlap reported ms": round(charged / 1e6, 2),
        "overlap of all other pauses meanwhile ms": round(others / 1e6, 2),
        "other generation 2 pauses of this process meanwhile ms": round(natural / 1e6, 2),
        "this process freezes by policy": process.paused.get("gc_own", 0.0) > 0,
        "delay reported ms": round(delay, 2),
        "late by our stamps ms": round(gaps["delay"] / 1e6, 2),
        "slow gaps by our stamps": gaps["slow by our stamps"],
        "slow gaps compared": gaps["compared"],
        "largest difference of a gap us": gaps["difference"],
        "longest gap at a client ms": round(max(each.longest for each in clients) / 1e6, 1),
        "while nobody waited": idle,
    }, clients


def idle_pause(it: Running, process: snapshots.Process, account: Account) -> dict[str, Any]:
    """A pause that delays no stream."""
    _wait(lambda: it.look().in_flight == 0, 10, "streams are still in flight")
    before = it.look()
    pause = it.order(process.pid, "collect", 2)
    after = it.look()
    charged = sum(_charged(after, before, cause=None).values())
    paused = _paused(after, process) - _paused(before, process)
    length = pause["stop"] - pause["start"]
    least = length - pause["waited"] - 2 * SLACK_NS
    where = f"{process.name}: an idle pause of {least / 1e6:.1f} to {length / 1e6:.1f} ms"
    account.must(charged == 0, f"{where} was charged with {charged * 1e3:.3f} ms")
    account.must(least <= paused <= length + ROUNDED_NS, f"{where} was reported as {paused / 1e6:.3f} ms")
    return {"pause ms": round(length / 1e6, 2), "reported ms": round(paused / 1e6, 2), "charged ms": charged * 1e3}


def _all_flow(it: Running, streams: Streams) -> None:
    streams.wait_for_tokens(12, streams=1 if it.server.serial else it.server.streams)


def _soon(it: Running, streams: Streams) -> snapshots.Snapshot:
    """As soon as each stream has gone on: the last 256 slow gaps are kept, and on a busy machine each gap of 32 streams
    can be one. What has not begun, comes later."""
    begun = [each for each in streams.received if each.events]
    goal = [each.events + 3 for each in begun]
    with contextlib.suppress(AssertionError):
        _wait(lambda: all(e.events >= n or e.ended for e, n in zip(begun, goal, strict=True)), 10, "they stand still")
    return it.look()


def _after(it: Running, before: snapshots.Snapshot, requests: int) -> snapshots.Snapshot:
    _wait(lambda: it.look().in_flight == 0 and it.look().opened >= before.opened + requests, 10, "streams are left")
    return it.look()


def _paused(snapshot: snapshots.Snapshot, process: snapshots.Process) -> int:
    """Nanoseconds in collections of generation 2; 0 where the snapshot is older than the process."""
    return next((round(each.paused[CAUSE] * 1e9) for each in snapshot.processes if each.pid == process.pid), 0)


def _charged(after: snapshots.Snapshot, before: snapshots.Snapshot, cause: str | None = CAUSE) -> dict[str, float]:
    """Seconds of overlap that came in between, by role: of generation 2 for the one that is asked for, all of it for
    ``cause=None``."""
    now, then = after.overlap_by_source, before.overlap_by_source

    def total(rows: dict[str, dict[str, float]]) -> float:
        return sum(seconds for row in rows.values() for name, seconds in row.items() if cause in (None, name))

    return {role: total(rows) - total(then.get(role, {})) for role, rows in now.items()}


def _late(snapshot: snapshots.Snapshot, role: str) -> float:
    """What generation 2 of a role cost streams so far, ms."""
    return sum(by_cause.get(CAUSE, 0.0) for by_cause in snapshot.delay_by_source.get(role, {}).values()) * 1e3


def _token_times(line: dict[str, Any]) -> list[int]:
    return [at for at, body in line["messages"] if text_events(body)]


def _waiting(line: dict[str, Any]) -> tuple[int, int]:
    """From when to when a stream waited for tokens."""
    return line["arrival"], max(_token_times(line), default=line["arrival"])


def _overlap(pause: dict[str, int], since: int, until: int) -> int:
    return max(0, min(until, pause["stop"]) - max(since, pause["start"]))


def slow_gaps(
    it: Running, looks: list[snapshots.Snapshot], name: str, pause: dict[str, int], process: snapshots.Process
) -> dict[str, Any]:
    """Gap by gap: what the slow gaps around the pause have, against our own stamps of the same gap."""
    lines = {line["id"]: line for line in it.sent(name, process)}
    around = [_around(pause, line) for line in lines.values()]
    role = process.role
    compared, wrong, largest = 0, [], 0
    for slow in _slow(looks, name):
        line = lines.get(slow.request_id)
        if line is None:  # another API process's
            continue
        expected = _overlap(pause, *_gap(line, slow.token))
        least = expected - pause["waited"]
        charged = round(_of_role(slow, role) * 1e9)
        if expected < SLACK_NS or not (charged or role == "api" or delays_streams(role)):
            continue
        compared += 1
        largest = max(largest, abs(charged - expected))
        others = round(sum(slow.overlap.values()) * 1e9) - charged
        if not least - SLACK_NS - others <= charged <= expected + SLACK_NS or not slow.complete:
            bounds = f"{least / 1e6:.2f} to {expected / 1e6:.2f}"
            wrong.append(f"{slow.request_id} token {slow.token}: {charged / 1e6:.2f} ms, not {bounds}")
    return {
        "compared": compared,
        "wrong": wrong,
        "difference": round(largest / 1e3),
        "slow by our stamps": sum(gap > SLOW_GAP_MS * 1e6 + SLACK_NS for gap, _ in around),
        "delay": sum(delay for _, delay in around),
    }


def _around(pause: dict[str, int], line: dict[str, Any]) -> tuple[int, int]:
    """By our stamps of one stream: its longest gap that a pause lies in, and by how much of the pause that gap exceeds
    the stream's median gap."""
    times = [line["arrival"], *_token_times(line)]
    gaps = [(b - a, _overlap(pause, a, b)) for a, b in pairwise(times)]
    usual = median(gap for gap, _ in gaps) if gaps else 0
    longest, overlap = max((each for each in gaps if each[1] > SLACK_NS), default=(0, 0))
    return longest, round(max(0, min(overlap, longest - usual)))


def _slow(looks: list[snapshots.Snapshot], name: str) -> list[snapshots.SlowGap]:
    """The slow gaps of a round that any of these snapshots still had, each once."""
    found = [slow for look in looks for slow in look.slow_gaps() if slow.request_id.startswith(ids_of(name))]
    return list({(slow.request_id, slow.token): slow for slow in found}.values())


def _gap(line: dict[str, Any], token: int) -> tuple[int, int]:
    """The gap before that token; several may come in one message."""
    since, seen = line["arrival"], 0
    for at, body in line["messages"]:
        seen += text_events(body)
        if seen >= token:
            return since, at
        since = at if text_events(body) else since
    return since, since


def _of_role(slow: snapshots.SlowGap, role: str) -> float:
    others = sum(share.overlap for share in slow.others if share.cause == CAUSE)
    if role == "api":
        return slow.overlap.get(CAUSE, 0.0) - others
    return sum(share.overlap for share in slow.others if share.cause == CAUSE and share.source == role)


# ---- an event loop that stands still ----


def block(it: Running, account: Account) -> tuple[dict[str, Any], list[Any]]:
    """The API process's loop sleeps while streams run: what the server's own histogram has, and ours."""
    api = next(each for each in _processes(it) if each.role == "api")
    theirs = _above(it, it.server.own_itl) if it.server.own_itl else None
    before = it.look()
    streams = it.streams("blocked")
    _all_flow(it, streams)
    pause = it.order(api.pid, "block", BLOCK_SECONDS)
    soon = _soon(it, streams)
    clients = streams.finish()
    after = _after(it, before, len(clients))
    gained = after - before
    slow = [gap for gap in _slow([soon, after], "blocked") if gap.phase == "itl" and gap.gap >= BLOCK_SECONDS]

    def around(each: Received) -> int:
        return max((b - a for a, b in pairwise(each.times) if _overlap(pause, a, b)), default=0)

    stood = (pause["stop"] - pause["start"]) / 1e9
    account.must((gained.itl.max or 0) >= stood, f"the longest gap is {gained.itl.max}, the loop stood {stood}")
    result: dict[str, Any] = {
        "loop stood ms": round(stood * 1e3, 1),
        "longest gap around it at a client ms": round(max(map(around, clients)) / 1e6, 1),
        f"clients with a gap over {HIGH_ITL} s around it": sum(around(each) > HIGH_ITL * 1e9 for each in clients),
        "tailwatch_inter_token_latency_seconds": {
            "count": gained.itl.count,
            f"over {HIGH_ITL} s": gained.itl.count - round((gained.itl.below(HIGH_ITL) or 0) * gained.itl.count),
            "longest ms": round(max((gap.gap for gap in slow), default=0) * 1e3, 1),
        },
        "slow gaps that long": len(slow),
        "unexplained share of them": round(sum(gap.unexplained for gap in slow) / sum(gap.gap for gap in slow), 3)
        if slow
        else None,
    }
    if theirs is not None:
        now = _above(it, it.server.own_itl)
        result[it.server.own_itl] = {
            "count": now["count"] - theirs["count"],
            f"over {HIGH_ITL} s": now["above"] - theirs["above"],
        }
    return result, clients


def _above(it: Running, name: str) -> dict[str, int]:
    """Of a histogram in the server's own metrics: how many, and how many above HIGH_ITL."""
    counts = {"count": 0.0, "below": 0.0}
    for line in it.get("/metrics").splitlines():
        if line.startswith(f"{name}_count"):
            counts["count"] += float(line.rpartition(" ")[2])
        elif line.startswith(f"{name}_bucket") and f'le="{HIGH_ITL}"' in line:
            counts["below"] += float(line.rpartition(" ")[2])
    return {"count": round(counts["count"]), "above": round(counts["count"] - counts["below"])}


if __name__ == "__main__":
    main()
