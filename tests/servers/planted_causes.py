"""Runs a real server under ``tailwatch run``, stalls its processes on purpose, each way alone and some in pairs, and
compares what ``tailwatch why`` has of each late token with the plants' own logs.

    python tests/servers/planted_causes.py [vllm | sglang | transformers] --venv VENV --model DIR
                                           [--modes MODE ...] [--rounds N] [--plants TITLE ...] [--json FILE]

VENV has the server (vLLM, where none is named) and this tailwatch, DIR is make_model.py's; for vLLM that of --small,
with which its steps take about as long as those of the other two. The plants are in plant/.
Each mode is a server of its own: flags of its command line. A round has streams that decode while one plant, or two,
act; "control" has none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from clients import Streams, ids_of
from harness import machine
from host_plants import Cgroup, one_cpu, stop
from kinds import ASYNC, ENGINES, HOST, IN_RANKS, KINDS, ON_HOST, RANKS, SMALL, Kind, Plant
from prove import Running, _processes, _rank, _soon, _versions, _wait, running
from targets import SERVERS

from tailwatch.diagnose.why import late_tokens
from tailwatch.snapshots.model import Cause, SlowGap

STREAMS = 4
PAIRED = " + "  # in the title of two plants
OBJECTS = 2_000_000  # of the heap that is collected: so that it takes about as long as the other plants
TURNS = 3
SOON_SECONDS = 0.05  # after the first of two plants: the second may still delay the same token
CLEAR_SECONDS = 0.02  # so late is a token that is judged: no slice of the machine's other work
WAITING_SECONDS = 0.4  # so late, at least, is one that waits for a place in the KV cache, or for its client to read
OTHERS = ("cpu", "device", "own_prefill")  # waits for a CPU, and what a run without plants may have
ASYNC_STEP = "step_with_batch_queue"
WORD_TOKENS = 5  # of "word" and a space
PROMPT, VICTIM = 3000, 2700  # tokens
WIDE = {"logprobs": True, "top_logprobs": 5}  # tokens of a kilobyte, which fill the buffers of a connection


class Interval(NamedTuple):
    """Of a plant, by its own log; seconds since the epoch. pid: of its process, 0: none. served: the requests that wait
    while that process stands still, their ids; None: all."""

    start: float
    stop: float
    pid: int = 0
    served: frozenset[str] | None = None

    def overlap(self, gap: SlowGap) -> float:
        """How long the gap coincided with it, where that request waits for the process."""
        if self.served is not None and gap.request_id not in self.served:
            return 0.0
        ended = gap.when.timestamp()
        return max(0.0, min(self.stop, ended) - max(self.start, ended - gap.gap))


def act(it: Running, plant: Plant) -> Interval:
    """Has the plant act once in the process that it is for, to its end."""
    return begin(it, plant)()


def begin(it: Running, plant: Plant) -> Callable[[], Interval]:
    """The same, and returns what waits for its end; a method's sleep is half over by then."""
    what, amount = plant.order
    if not plant.role:
        return lambda: from_outside(it, what, float(amount))
    pid = pid_of(it, plant)
    if what == "stop":
        return lambda: logged(pid, stop(pid, float(amount)))
    if what == "sleep":
        it.order(pid, what, amount)
        return lambda: logged(pid, it.order(pid, "slept", amount))
    return lambda: logged(pid, it.order(pid, what, amount))


def from_outside(it: Running, what: str, seconds: float) -> Interval:
    """Of all processes, or of the first client."""
    if what == "client":
        assert it.playing is not None
        served = frozenset([it.playing.received[0].request_id])
        return logged(0, it.playing.stop_reading(seconds))._replace(served=served)
    if what == "quota":
        assert it.cgroup is not None
        return logged(0, it.cgroup.quota(seconds))
    return logged(0, one_cpu(it.pids_of_all, seconds))


def pid_of(it: Running, plant: Plant) -> int:
    """Looked up once: that takes a second or more where all CPUs are busy, and streams would end meanwhile."""
    key = plant.role, plant.title
    if key not in it.pids:
        pids = [each.pid for each in _processes(it) if each.role == plant.role and plant.title in title_of(each.pid)]
        if not pids:
            raise AssertionError(f"no process {plant.role} {plant.title}")
        it.pids[key] = pids[0]
    return it.pids[key]


def logged(pid: int, log: dict[str, int]) -> Interval:
    """What a plant's log has, which is in monotonic ns."""
    epoch = time.time() - time.monotonic()
    return Interval(log["start"] / 1e9 + epoch, log["stop"] / 1e9 + epoch, pid)


def with_served(it: Running, name: str, interval: Interval) -> Interval:
    """Of one of several API processes or engines, or of a worker of one: with the requests that it serves, by the
    plant's own log."""
    processes = _processes(it)
    its = [each for each in processes if each.pid == interval.pid]
    if not its or [each.role for each in processes].count(its[0].role) == 1:
        return interval
    return interval._replace(served=frozenset(line["id"] for line in it.sent(name, its[0])))


def title_of(pid: int) -> str:
    """What it calls itself."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


def act_in_turn(it: Running, plants: list[Plant]) -> list[Interval]:
    """One, or two of which the second begins while the first, a method's sleep, goes on."""
    if len(plants) == 1:
        return [act(it, plants[0])]
    assert plants[0].order[0] == "sleep", "the others act as they are waited for"
    first = begin(it, plants[0])
    second = act(it, plants[1])
    return [first(), second]


# ---- a round ----


class Round(NamedTuple):
    """What came of streams that decoded while something happened: their late tokens, what happened when, and shares of
    the time that all streams were in flight: of their delay, by cause; and the same since all had tokens. again: how
    often it was played before, as its plants acted too late."""

    late: list[SlowGap]
    intervals: list[Interval]
    shares: dict[str, float]
    shares_later: dict[str, float]
    again: int = 0


class Moment(NamedTuple):
    """Seconds of delay by cause so far, and when: monotonic."""

    delay: dict[str, float]
    at: float


def play(it: Running, name: str, happen: Callable[[], list[Interval]] | None, tokens: int, other: str = "") -> Round:
    """Streams that decode, and what happens when each has had a twelfth of its tokens; None: nothing. other: the late
    tokens are those of a request of that name."""
    began = Moment(it.look().delay, time.monotonic())
    streams = it.playing = it.streams(name, count=STREAMS, tokens=tokens)
    streams.wait_for_tokens(tokens // 12, streams=STREAMS)
    begun = Moment(it.look().delay, time.monotonic()) if happen is None else began
    intervals = happen() if happen is not None else []
    soon = _soon(it, streams)
    streams.finish()
    ended = time.monotonic()
    _wait(lambda: it.look().in_flight == 0, 30, "streams are left")
    looks = (soon, it.look())  # the last 256 late tokens are kept
    kept = {(gap.request_id, gap.token): gap for look in looks for gap in late_tokens(look)}
    late = [gap for gap in kept.values() if gap.request_id.startswith(ids_of(other or name))]
    intervals = [with_served(it, other or name, each) for each in intervals]
    end = Moment(looks[-1].delay, ended)
    return Round(late, intervals, shares(began, end), shares(begun, end))


def play_plants(it: Running, name: str, plants: list[Plant], tokens: int) -> Round:
    """The same, of plants. An order may come so late, on a busy machine, that the streams have ended, or the first of
    two plants has for a while: it is played again, which the plants' own logs decide."""
    for n in range(TURNS):
        found = play(it, f"{name}{n}", lambda: act_in_turn(it, plants), tokens)
        ended = min([last_sent(it, f"{name}{n}"), *(each.stop + SOON_SECONDS for each in found.intervals)])
        if all(each.start < ended for each in found.intervals):
            break
    return found._replace(again=n)


def last_sent(it: Running, name: str) -> float:
    """When the last stream of that name ended, by our own stamps; seconds since the epoch."""
    epoch = time.time() - time.monotonic()
    lines = [line for each in _processes(it) if each.role == "api" for line in it.sent(name, each)]
    return max(line["messages"][-1][0] for line in lines) / 1e9 + epoch


def shares(first: Moment, last: Moment) -> dict[str, float]:
    """Of the time of all streams between two moments: delays by cause, those that there are."""
    seconds = (last.at - first.at) * STREAMS
    by_cause = {cause: (total - first.delay.get(cause, 0.0)) / seconds for cause, total in last.delay.items()}
    return {cause: round(share, 5) for cause, share in by_cause.items() if share > 0}


def request(it: Running, name: str, words: int, tokens: int) -> list[Interval]:
    """One with a prompt of about so many tokens, read to its end."""
    messages = [{"role": "user", "content": " ".join(["word"] * (words // WORD_TOKENS))}]
    payload = {"model": it.model, "messages": messages, "max_tokens": tokens, "stream": True, **it.server.extra}
    began = time.time()
    Streams(it.port, name, 1, payload, it.server.engines).finish()
    engines = [each.pid for each in _processes(it) if each.role == "engine" and _rank(each.pid) in (None, 0)]
    return [Interval(began, time.time(), engines[0] if engines else 0)]


# ---- what it shows ----


def seconds_of(gap: SlowGap, fits: Callable[[Cause], bool]) -> float:
    """Of those causes."""
    return sum(cause.seconds for cause in gap.causes if fits(cause))


def largest_of(gap: SlowGap, count: int, own: set[str]) -> list[str]:
    """The largest causes; waits for a CPU apart, where that is not the plant's."""
    sums: dict[str, float] = defaultdict(float)
    for cause in gap.causes:
        sums[cause.cause] += cause.seconds
    if "cpu" not in own:
        sums.pop("cpu", None)
    return sorted(sums, key=sums.__getitem__, reverse=True)[:count]


def clear_seconds(plants: list[Plant]) -> float:
    """How late a token is, at least, that is judged. A client that does not read delays none while its buffers fill."""
    return WAITING_SECONDS if any(plant.order[0] == "client" for plant in plants) else CLEAR_SECONDS


def account(found: Round, plants: list[Plant]) -> dict[str, Any]:
    """Of the late tokens that the plants explain. first: the share whose largest cause is of a plant; named: whose
    function is; explained: of their lateness, but for ``device`` where that is not the plant's; charged: to the plants'
    causes, and to waits for a CPU, over what the plants' logs have of it; both: the share in which the two largest
    causes are those of the two plants."""
    causes = [plant.causes for plant in plants]
    own = {cause for each in causes for cause in each}
    tokens = [
        gap
        for gap in found.late
        if gap.gap - gap.typical >= clear_seconds(plants)
        and all(interval.overlap(gap) > CLEAR_SECONDS / 2 for interval in found.intervals)
    ]
    n = max(len(tokens), 1)
    late = sum(gap.gap - gap.typical for gap in tokens) or 1.0
    truth = sum(min(gap.gap - gap.typical, union(found.intervals, gap)) for gap in tokens) or 1.0
    residue = {"unexplained", "upstream", "device"} - own
    rest = sum(seconds_of(gap, lambda cause: cause.cause in residue) for gap in tokens)
    by_cause: dict[str, float] = defaultdict(float)
    for gap in tokens:
        for cause in gap.causes:
            by_cause[f"{cause.source} {cause.cause} [{cause.certainty}]"] += cause.seconds
    charged = sum(seconds_of(gap, lambda cause: cause.cause in {*own, "cpu"}) for gap in tokens)
    row = {
        "tokens": len(tokens),
        "first": round(sum(not own.isdisjoint(largest_of(gap, 1, own)) for gap in tokens) / n, 3),
        "explained": round(1 - rest / late, 3),
        "charged": round(charged / truth, 3),
        "causes_ms": {name: round(s * 1e3, 1) for name, s in sorted(by_cause.items(), key=lambda i: -i[1]) if s > 1e-3},
    }
    for function in [plant.function for plant in plants if plant.function]:
        named = [any(function in cause.name + cause.holder for cause in gap.causes) for gap in tokens]
        row["named"] = round(sum(named) / n, 3)
    if len(plants) > 1:
        two = [largest_of(gap, 2, own) for gap in tokens]
        row["both"] = round(sum(all(set(some) & set(names) for some in causes) for names in two) / n, 3)
    return row


def union(intervals: list[Interval], gap: SlowGap) -> float:
    """How long the gap coincided with any of them."""
    total, until = 0.0, 0.0
    for each in sorted(intervals, key=lambda interval: interval.start):
        total += each._replace(start=max(each.start, until)).overlap(gap)
        until = max(until, each.stop)
    return total


def control(found: Round) -> dict[str, Any]:
    """A round without plants: shares of the streams' time by cause; others: of all but OTHERS; later: since all streams
    had tokens."""
    return {
        "late": len(found.late),
        "others": others_of(found.shares),
        "others later": others_of(found.shares_later),
        "shares": found.shares,
    }


def others_of(shares: dict[str, float]) -> float:
    """The sum of what a run without plants should not have."""
    return round(sum(share for cause, share in shares.items() if cause not in OTHERS), 5)


def meets_bars(row: dict[str, Any]) -> bool:
    """Those that are set for planted stalls; of a round without plants, for all causes but OTHERS."""
    if "others" in row:
        return bool(row["others"] < 0.01)
    shares = [row[name] for name in ("first", "explained", "named", "both") if name in row]
    if row.get("rounds") != row.get("of"):  # in some nothing was late
        return False
    return bool(row["tokens"] and min(shares) >= 0.95 and 0.9 <= row["charged"] <= 1.1)


# ---- all rounds of a server ----


def pairs_of(kind: Kind, mode: str) -> list[tuple[str, str]]:
    """Those that can delay the same token: with asynchronous scheduling, a slow schedule() delays the token of the step
    that the worker computes meanwhile, and a slow step after it the next one."""
    return [pair for pair in kind.pairs if not (mode == ASYNC and pair[1].startswith("worker"))]


def tokens_of(kind: Kind, mode: str) -> int:
    """Of each stream: more where steps are short, with a model in two parts or half of the streams, or stalls are long,
    and as many as the small KV cache holds."""
    more = {SMALL: 600, ENGINES: 2 * kind.tokens, RANKS: 2 * kind.tokens, HOST: 2 * kind.tokens}
    return more.get(mode, kind.tokens)


def rounds(it: Running, kind: Kind, mode: str, count: int, only: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Title and account of each, or of those plants only."""
    tokens = tokens_of(kind, mode)
    for role in {plant.role for plant in kind.plants.values()}:
        for pid in [each.pid for each in _processes(it) if each.role == role]:
            it.order(pid, "build", OBJECTS)
    for plant in kind.plants.values():
        pid_of(it, plant)
    play(it, "warm", lambda: request(it, "warm-long", 900, 2), tokens)
    if not only:
        yield "control", control(play(it, "control", None, tokens))
        found = merged(
            play(it, f"long{n}", lambda n=n: request(it, f"l-{n}", PROMPT, 1), tokens)  # type: ignore[misc]
            for n in range(count)
        )
        yield f"prefill of {PROMPT} tokens", found([Plant("engine", ("", 0), ("prefill",))])
    all_of_them = [*((title,) for title in kind.plants), *pairs_of(kind, mode)]
    for chosen in [each for each in all_of_them if not only or PAIRED.join(each) in only]:
        plants = [kind.plants[title] for title in chosen]
        found = merged(play_plants(it, f"{chosen}{n}", plants, tokens) for n in range(count))
        yield PAIRED.join(chosen), found(plants)


def merged(some: Iterator[Round]) -> Callable[[list[Plant]], dict[str, Any]]:
    """The account of several rounds, weighted by their late tokens."""
    played = list(some)

    def of(plants: list[Plant]) -> dict[str, Any]:
        rows = [account(each, plants) for each in played]
        tokens = sum(row["tokens"] for row in rows)
        result: dict[str, Any] = {"rounds": sum(row["tokens"] > 0 for row in rows), "of": len(rows), "tokens": tokens}
        if again := sum(each.again for each in played):
            result["played again"] = again
        for name in [name for name in rows[0] if name not in ("tokens", "causes_ms")]:
            result[name] = round(sum(row[name] * row["tokens"] for row in rows) / max(tokens, 1), 3)
        result["causes_ms"] = defaultdict(float)
        for row in rows:
            for cause, ms in row["causes_ms"].items():
                result["causes_ms"][cause] = round(result["causes_ms"][cause] + ms, 1)
        return result

    return of


def in_ranks(it: Running, kind: Kind, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Two workers compute each step together: one of them is late for it."""
    tokens = tokens_of(kind, RANKS)
    for pid in [each.pid for each in _processes(it) if each.role == "worker"]:
        it.order(pid, "build", OBJECTS)
    for plant in IN_RANKS.values():
        pid_of(it, plant)
    play(it, "warm", None, tokens)
    yield "control", control(play(it, "control", None, tokens))
    for title, plant in IN_RANKS.items():
        found = merged(play_plants(it, f"{title}{n}", [plant], tokens) for n in range(count))
        yield title, found([plant])


def on_host(it: Running, kind: Kind, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the host does to all processes, or a client."""
    tokens = tokens_of(kind, HOST)
    play(it, "warm", None, tokens)
    yield "control", control(play(it, "control", None, tokens))
    for title, plant in ON_HOST.items():
        found = merged(play_prepared(it, f"{title}{n}", plant, tokens) for n in range(count))
        yield title, found([plant])


def play_prepared(it: Running, name: str, plant: Plant, tokens: int) -> Round:
    """A round of one plant, which has what it needs before."""
    it.narrow = plant.order[0] == "client"
    it.pids_of_all = [each.pid for each in _processes(it)]
    if plant.role:
        it.order(pid_of(it, plant), "prepare", plant.order[1])
    return play_plants(it, name, [plant], tokens)


def preempted(it: Running, kind: Kind) -> Iterator[tuple[str, dict[str, Any]]]:
    """The KV cache does not hold the streams and a request with a long prompt: it loses its place to them. The token
    that waits for a place is judged; the first one waits for its own prefill."""
    play(it, "warm", None, tokens=30)
    found = play(it, "preempted", lambda: request(it, "victim", VICTIM, 300), tokens_of(kind, SMALL), other="victim")
    late = [gap for gap in found.late if gap.phase == "itl" and gap.gap - gap.typical >= WAITING_SECONDS]
    found = found._replace(late=late)
    yield "preempted", account(found, [Plant("engine", ("", 0), ("preempted", "queued"))])


def run(kind: Kind, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """One server."""
    base = SERVERS[kind.base]
    command = f"{base.command} {kind.flags} {kind.modes[mode]}"
    extra = {**base.extra, **kind.extra, **{SMALL: kind.crowded, HOST: WIDE}.get(mode, {})}
    environment = {**base.environment, **({"PLANT_ASYNC_SCHEDULING": "1"} if mode == ASYNC else {})}
    engines = 2 if mode == ENGINES else 1
    SERVERS[mode] = replace(base, command=command, extra=extra, environment=environment, engines=engines)
    with tempfile.NamedTemporaryFile(suffix=".log") as log, contextlib.ExitStack() as stack:
        where = argparse.Namespace(
            **{**vars(options), "server": mode, "gguf": Path(), "boot": False, "slow_gap_ms": 0, "objects": 0}
        )
        it = start(where, Path(log.name), stack, limited=mode == HOST)
        found, before = {}, cpu_times()
        special = {
            SMALL: lambda: preempted(it, kind),
            RANKS: lambda: in_ranks(it, kind, options.rounds),
            HOST: lambda: on_host(it, kind, options.rounds),
        }
        for title, row in special.get(mode, lambda: rounds(it, kind, mode, options.rounds, options.plants))():
            found[title] = row
            print(mode, title, json.dumps(row), flush=True)
        if mode == ASYNC and not any(step.name == ASYNC_STEP for step in it.look().steps):
            raise AssertionError("the engine schedules in turn")
        of = {"machine": machine(), "flags": kind.modes[mode], "each": options.rounds}
        of |= {"model": options.model.name, "streams": STREAMS, "tokens": tokens_of(kind, mode)}
        of["stolen"] = round(stolen_share(before, cpu_times()), 4)
        return {**of, "unjoined": it.look().drops.get("unjoined", 0), "rounds": found}


def cpu_times() -> list[int]:
    """Of all CPUs so far, in ticks: user, nice, system, idle, iowait, irq, softirq, steal (proc_stat(5))."""
    return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def stolen_share(before: list[int], after: list[int]) -> float:
    """Of the time that all CPUs ran or wanted to, what the hypervisor gave to others."""
    grown = [last - first for first, last in zip(before, after, strict=True)]
    return grown[7] / max(sum(grown) - grown[3] - grown[4], 1)


def start(where: argparse.Namespace, log: Path, stack: contextlib.ExitStack, *, limited: bool) -> Running:
    """A server, up to the end of the stack. limited: its CPU time can be."""
    if not limited:
        return stack.enter_context(running(where, log))
    try:
        cgroup = Cgroup(f"planted-{os.getpid()}")
    except OSError as error:
        sys.exit(f"{HOST!r} needs a cgroup of its own for a quota of CPU time, which cannot be made here: {error}")
    stack.callback(remove, cgroup)
    with cgroup.entered():
        it = stack.enter_context(running(where, log))
    it.cgroup = cgroup
    return it


def remove(cgroup: Cgroup) -> None:
    """Some of its processes are only being killed. What is found is not lost where it stays."""
    try:
        _wait(cgroup.is_empty, 20, "its processes have not ended")
        cgroup.remove()
    except (AssertionError, OSError) as error:
        print(f"the server's cgroup is left: {error}", file=sys.stderr)


def keep(options: argparse.Namespace, kind: Kind, found: dict[str, Any]) -> None:
    """The modes so far, in the file."""
    versions = _versions(options, SERVERS[kind.base])
    whole = {"versions": versions, "modes": found}
    if options.json is not None:
        options.json.write_text(json.dumps(whole, indent=1) + "\n")


def main() -> None:
    """Prints a row as it is there, keeps all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", choices=KINDS, nargs="?", default="vllm")
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=Path("model"))
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--modes", nargs="+", help="all, where none is given", metavar="MODE")
    parser.add_argument("--rounds", type=int, default=3, help="of each plant")
    only = "only those, or pairs of them, to look at; not with --json"
    parser.add_argument("--plants", nargs="+", default=[], help=only, metavar="TITLE")
    parser.add_argument("--json", type=Path, help="written after each mode; those of an earlier run are kept in it")
    options = parser.parse_args()
    kind = KINDS[options.server]
    modes = options.modes or list(kind.modes)
    if unknown := set(modes) - set(kind.modes):
        parser.error(f"no modes of {options.server}: {', '.join(unknown)}; it has {', '.join(kind.modes)}")
    if options.plants and options.json:
        parser.error("--json: the file has all plants of a mode, not those of --plants alone")
    others = [mode for mode in modes if mode in (SMALL, RANKS, HOST)]
    if options.plants and others:
        parser.error(f"--plants: not in these modes, which have others: {', '.join(others)}")
    titles = [*kind.plants, *map(PAIRED.join, kind.pairs)]
    if unknown := set(options.plants) - set(titles):
        parser.error(f"no plants of {options.server}: {', '.join(unknown)}; it has {', '.join(titles)}")
    found = json.loads(options.json.read_text())["modes"] if options.json and options.json.exists() else {}
    for mode in modes:
        found[mode] = run(kind, mode, options)
        keep(options, kind, found)
    missed = [
        f"{mode}, {title}" for mode in modes for title, row in found[mode]["rounds"].items() if not meets_bars(row)
    ]
    sys.exit(f"bars missed: {'; '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
