"""Runs one real server several times at once, differently, and loads them by turns: what does the difference cost?

    python tests/servers/side_by_side.py overhead vllm --venv VENV --model DIR [--pairs 20] [--json FILE]
    python tests/servers/side_by_side.py gc vllm ...    # tailwatch's policies of garbage collection

overhead: without tailwatch, and under ``tailwatch run``. gc: under ``tailwatch run`` with each policy. VENV has the
server and this tailwatch, DIR is make_model.py's. A server that is not loaded leaves the processor to the others. A
block is one closed loop on each of them, in an order that turns around with each block; after half of the blocks all
are started again, in the other order. The unit of the intervals is the block.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from harness import Bar, Report
from prove import START_SECONDS, Running, _is_up, _processes, _stop, _wait
from targets import HERE, SERVERS, Server

from tailwatch import loadtest
from tailwatch.loadtest.t_test import t_quantile

WITHOUT, WITH = "without", "tailwatch run"
POLICIES = ("observe", "freeze", "idle", "auto")
STREAMS, TOKENS, REQUESTS = 4, 100, 64  # so few that the clients keep up on the same two CPUs
FIRST_PORT = 8210
WARM_SEED = 1000


@dataclass(frozen=True)
class Arm:
    """One way to run the server. words: before its own command."""

    name: str
    words: tuple[str, ...] = ()
    gc: str = ""


def arms_of(what: str) -> list[Arm]:
    """The first is the one that others are compared with."""
    run = ("tailwatch", "run", "--quiet")
    if what == "overhead":
        return [Arm(WITHOUT), Arm(WITH, run, "auto")]
    return [Arm(policy, run, policy) for policy in POLICIES]


@contextlib.contextmanager
def started(arms: list[Arm], server: Server, options: argparse.Namespace) -> Iterator[dict[str, Running]]:
    """All of them, each answering; nothing is left of them afterwards."""
    with contextlib.ExitStack() as stack:
        found = {}
        for place, arm in enumerate(arms):
            found[arm.name] = stack.enter_context(one(arm, server, FIRST_PORT + place, options))
        yield found


@contextlib.contextmanager
def one(arm: Arm, server: Server, port: int, options: argparse.Namespace) -> Iterator[Running]:
    """One server in a group of its own."""
    bin_ = options.venv.absolute() / "bin"
    group = tempfile.mkdtemp(prefix="side-", dir="/dev/shm")
    names = {"bin": str(bin_), "model": str(options.model.absolute()), "here": str(HERE), "port": str(port), "gguf": ""}
    command = [word.format(**names) for word in server.command.split()]
    if arm.words:
        command = [str(bin_ / arm.words[0]), *arm.words[1:], f"--dir={group}", f"--gc={arm.gc}", "--", *command]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TAILWATCH", "PYTHON"))}
    environment = {**kept, **server.environment, "PATH": f"{bin_}:{kept['PATH']}"}
    with tempfile.TemporaryDirectory() as made, open(os.devnull, "wb") as nothing:
        process = subprocess.Popen(
            command, env=environment, stdout=nothing, stderr=nothing, start_new_session=True, cwd=made
        )
        it = Running(server, port, server.model.format(**names), group, Path(made), process)
        try:
            _wait(lambda: _is_up(it), START_SECONDS, f"{arm.name}: the server does not answer", process)
            yield it
        finally:
            _stop(process, [each.pid for each in _processes(it)] if arm.words else [], bin_ / "py-spy")
            shutil.rmtree(group, ignore_errors=True)


# ---- one turn ----


def turn(it: Running, seed: int, options: argparse.Namespace, *, watched: bool) -> dict[str, float]:
    """A closed loop on one server: what its clients saw, and with tailwatch what its collections cost streams."""
    before, requests = by_gc(it) if watched else 0.0, options.requests
    result = loadtest.run(
        f"http://127.0.0.1:{it.port}",
        model=it.model,
        workers=options.streams,
        requests=requests,
        output_tokens=TOKENS,
        prompt_tokens=20,
        extra_body=it.server.extra,
        seed=seed,
    )
    if result.outcomes.good + result.outcomes.by_reason["late"] != requests:
        raise AssertionError(f"{requests} requests, {result.outcomes}: {result.examples}")
    found = {
        "tokens_per_s": result.tokens / result.elapsed,
        **{f"itl_p{at}_ms": 1e3 * (result.itl.p(at) or 0.0) for at in (50, 99)},
        "ttft_p50_ms": 1e3 * (result.ttft.p(50) or 0.0),
    }
    return found | ({"gc_us_per_gap": (by_gc(it) - before) * 1e6 / (requests * TOKENS)} if watched else {})


def by_gc(it: Running) -> float:
    """Seconds of all streams' delay that collections, and tailwatch's own pauses, are charged with."""
    by_source = it.look().delay_by_source
    return sum(
        seconds
        for phases in by_source.values()
        for causes in phases.values()
        for cause, seconds in causes.items()
        if cause.startswith("gc")
    )


def blocks_of(arms: list[Arm], server: Server, options: argparse.Namespace) -> list[dict[str, dict[str, float]]]:
    """Of each block, what each arm measured."""
    blocks: list[dict[str, dict[str, float]]] = []
    halves = [options.pairs - options.pairs // 2, options.pairs // 2]
    for order, count in zip((arms, arms[::-1]), halves, strict=True):
        with started(order, server, options) as servers:
            for arm in order:
                turn(servers[arm.name], WARM_SEED, options, watched=False)
            for number in range(count):
                block = {}
                for arm in order if number % 2 == 0 else order[::-1]:
                    block[arm.name] = turn(servers[arm.name], len(blocks), options, watched=bool(arm.words))
                blocks.append(block)
                print({name: {key: round(each, 2) for key, each in row.items()} for name, row in block.items()},
                      file=sys.stderr, flush=True)  # fmt: skip
    return blocks


# ---- what it comes to ----


def paired(name: str, values: list[float], unit: str) -> Bar:
    """The mean of the blocks' differences, and its 95 % interval."""
    mean = statistics.mean(values)
    half = t_quantile(0.95, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return Bar(name, mean, mean - half, mean + half, None, False, unit)


def overhead(blocks: list[dict[str, dict[str, float]]]) -> list[Bar]:
    """With tailwatch over without: 100 times the logarithm of the ratio, as small differences are percentages."""
    return [
        paired(f"{key}, tailwatch over without", [100 * math.log(b[WITH][key] / b[WITHOUT][key]) for b in blocks], "%")
        for key in blocks[0][WITHOUT]
    ]


def policies(blocks: list[dict[str, dict[str, float]]]) -> list[Bar]:
    """Each policy's delay by collections, and what auto costs more than the best of the fixed ones."""
    cost = "gc_us_per_gap"
    means = {policy: statistics.mean(block[policy][cost] for block in blocks) for policy in POLICIES}
    best = min(POLICIES[:-1], key=means.__getitem__)
    found = [
        paired(f"{policy}: delay by collections", [b[policy][cost] for b in blocks], "us a gap") for policy in means
    ]
    for key, unit in ((cost, "us a gap"), ("itl_p50_ms", "ms"), ("itl_p99_ms", "ms"), ("tokens_per_s", "tokens/s")):
        found.append(paired(f"auto less {best}, {key}", [b["auto"][key] - b[best][key] for b in blocks], unit))
    return found


def main() -> None:
    """Prints the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("overhead", "gc"))
    parser.add_argument("server", choices=SERVERS)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=Path("model"))
    parser.add_argument("--pairs", type=int, default=20, help="blocks, of one turn for each")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="in a turn")
    parser.add_argument("--streams", type=int, default=STREAMS, help="at a time; of 1 no batch forms")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.pairs < 2:
        parser.error("--pairs: expected at least 2, as the blocks are the unit of the intervals")
    arms = arms_of(options.what)
    blocks = blocks_of(arms, SERVERS[options.server], options)
    questions = {
        "overhead": f"What does tailwatch cost {options.server}?",
        "gc": f"Which gc= delays {options.server} least?",
    }
    report = Report(questions[options.what], bars=(overhead if options.what == "overhead" else policies)(blocks))
    report.notes.append(
        f"{len(blocks)} blocks, all servers started twice; in a turn {options.requests} requests of {TOKENS} tokens, "
        f"{options.streams} at a time, on {len(os.sched_getaffinity(0))} CPUs; in brackets the 95 % interval of the "
        "mean over the blocks"
    )
    print(report)
    if options.json:
        options.json.write_text(json.dumps(report.as_dict() | {"blocks": blocks}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
