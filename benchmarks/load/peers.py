"""How many tokens/s can load testers' clients take on one core? Their own commands, in pinned environments, and ours.

    python benchmarks/load/peers.py [--json FILE] [--environments DIR] [--use vllm=DIR] [vllm aiperf]

Each peer gets an environment of its own out of environments/NAME.txt (`--use NAME=DIR`: one that is there; 1 to 6 GB),
and a tokenizer of a few words made on the spot (none is downloaded). All have the token generator of this directory on
the other core, and the same load: a closed loop of 200 streams, 64 tokens each, more than a core can take (a generator
that is behind writes what is due at once, `-c`, so it is never what is measured; a client that is saturated reads
several tokens at once). What is counted is what the generator wrote between a tenth and nine tenths of the run, so that
start and end are of none; all processes of a client share the one core (so no real-time priority: one of aiperf's
spins). A ratio is of one round.
bench_load.py shows these rows with its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bench_load import built, cores, pinned, serving  # noqa: E402
from harness import Bar, Report, bar_of  # noqa: E402

PINS = HERE / "environments"
STREAMS, TOKENS = 200, 64
PACE_US = 500
BARS = {"vllm": 3.0, "aiperf": 7.0}

Rates = tuple[float, float]
"""Tokens per second, and per second of CPU time: what does not depend on how much of the core was there to be had."""


@dataclass(frozen=True)
class Peer:
    """What is run; requests: as many as take it ten seconds or more."""

    command: tuple[str, ...]
    requests: int


PEERS = {
    "tailwatch": Peer(
        (
            *("{bin}/python", "-m", "tailwatch", "bench", "http://127.0.0.1:{port}", "--model=m", "--quiet"),
            *("--prompt-tokens=8", f"--output-tokens={TOKENS}", "--closed", "--workers={streams}"),
            "--requests={requests}",
        ),
        50000,
    ),
    "vllm": Peer(
        (
            *("{bin}/vllm", "bench", "serve", "--backend=openai", "--base-url=http://127.0.0.1:{port}", "--model=m"),
            *("--endpoint=/v1/completions", "--tokenizer={tokenizer}", "--dataset-name=random", "--random-input-len=8"),
            *(f"--random-output-len={TOKENS}", "--num-prompts={requests}", "--max-concurrency={streams}"),
            *("--disable-tqdm", "--ready-check-timeout-sec=0"),
        ),
        10000,
    ),
    "aiperf": Peer(
        (
            *("{bin}/aiperf", "profile", "--model=m", "--url=http://127.0.0.1:{port}", "--endpoint-type=completions"),
            *("--streaming", "--tokenizer={tokenizer}", "--concurrency={streams}", "--request-count={requests}"),
            *("--synthetic-input-tokens-mean=8", f"--output-tokens-mean={TOKENS}", "--ui=none"),
            "--artifact-dir={scratch}",
        ),
        4000,
    ),
}

TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
words = {"[UNK]": 0, **{f"w{i}": i + 1 for i in range(999)}}
made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
made.pre_tokenizer = pre_tokenizers.Whitespace()
made = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", eos_token="w1", pad_token="w2")
made.save_pretrained(sys.argv[1])
"""
ALONE = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}  # no HF_HUB_OFFLINE: aiperf takes no local path with it


def environment(name: str, directory: Path, given: dict[str, Path]) -> Path:
    """Its bin directory; made if it is not there. Every package is pinned, so nothing is to be resolved."""
    if name in given:
        return given[name] / "bin"
    home = directory / name
    if not (home / "bin/pip").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run(
            [str(home / "bin/pip"), "install", "-q", "--no-deps", "-r", str(PINS / f"{name}.txt")], check=True
        )
    return home / "bin"


def version(binaries: Path, package: str) -> str:
    """Which one is measured: the environment may not be ours."""
    code = "from importlib.metadata import version; import sys; print(sys.argv[1], version(sys.argv[1]))"
    return subprocess.run(
        [str(binaries / "python"), "-c", code, package], check=True, capture_output=True, text=True
    ).stdout.strip()


class Watch(threading.Thread):
    """What the generator had written and the client's processes had used, ten times a second."""

    def __init__(self, port: int, session: int) -> None:
        super().__init__(daemon=True)
        self._url, self._session = f"http://127.0.0.1:{port}/stats", session
        self.seen: list[tuple[float, float, int]] = []
        self.over = threading.Event()

    def run(self) -> None:
        """Until it is over."""
        while not self.over.wait(0.1):
            answer: dict[str, Any] = json.load(urllib.request.urlopen(self._url, timeout=60))
            self.seen.append((time.monotonic(), cpu_seconds(self._session), answer["tokens"]))

    def rates(self) -> Rates:
        """In the middle of it: tokens per second, and per CPU second."""
        total = self.seen[-1][-1]
        middle = [look for look in self.seen if total * 0.1 <= look[-1] <= total * 0.9]
        if len(middle) < 5:
            raise SystemExit(f"too short: {total} tokens, {len(middle)} looks at them")
        wall, cpu, tokens = (after - before for before, after in zip(middle[0], middle[-1], strict=True))
        return tokens / wall, tokens / cpu


def cpu_seconds(session: int) -> float:
    """Used so far by the processes of a session, and by those that they waited for."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = file.read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15])) if int(fields[3]) == session else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(peer: Peer, binaries: Path, generator: Path, scratch: Path) -> Rates:
    """One run of its own command."""
    with serving(generator, PACE_US, "-c") as port, (scratch / "output").open("w+") as output:
        names = {"bin": binaries, "port": port, "tokenizer": scratch / "tokenizer", "scratch": scratch}
        command = [word.format(**names, requests=peer.requests, streams=STREAMS) for word in peer.command]
        streams = {"stdout": output, "stderr": output, "start_new_session": True}
        with subprocess.Popen(command, env=os.environ | ALONE, cwd=scratch, **streams, **pinned(cores()[1])) as run:
            watch = Watch(port, run.pid)
            watch.start()
        watch.over.set()
        watch.join()
        output.seek(0)
        if run.returncode != 0:
            raise SystemExit(f"{command[0]} failed:\n{output.read()[-4000:]}")
    return watch.rates()


def turns(binaries: dict[str, Path], rounds: int) -> dict[str, list[Rates]]:
    """Of each in each round; the order turns round with each."""
    found: dict[str, list[Rates]] = {name: [] for name in binaries}
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        generator = built(scratch)
        for name, where in binaries.items():
            if name != "tailwatch" and not (scratch / "tokenizer").exists():
                tokenizer = [str(where / "python"), "-c", TOKENIZER, str(scratch / "tokenizer")]
                subprocess.run(tokenizer, check=True, env=os.environ | ALONE)
        for turn in range(rounds):
            for name in binaries if turn % 2 == 0 else reversed(binaries):
                found[name].append(measure(PEERS[name], binaries[name], generator, scratch))
                rates = "{:.0f} tokens/s, {:.0f} per CPU second".format(*found[name][-1])
                print(f"round {turn + 1}, {name}: {rates}", file=sys.stderr, flush=True)
    return found


def bars(found: dict[str, list[Rates]], versions: dict[str, str]) -> Iterator[Bar]:
    """Each one's, and ours over theirs in the same round."""
    for at, measure in enumerate(
        (f"saturated, {STREAMS} streams: tokens/s on one core", "saturated: tokens per CPU second")
    ):
        for name, rates in found.items():
            yield bar_of(f"{measure}: {versions[name]}", [rate[at] for rate in rates], unit="tokens/s")
        for name, bar in BARS.items():
            if name in found:
                ratios = [ours[at] / theirs[at] for ours, theirs in zip(found["tailwatch"], found[name], strict=True)]
                yield bar_of(f"{measure}: tailwatch bench / {versions[name]}", ratios, bar=bar, at_least=True)


def report(options: argparse.Namespace) -> Report:
    """Makes what is missing, and runs everything."""
    given = {name: Path(path) for name, path in (pair.split("=", 1) for pair in options.use)}
    binaries = {"tailwatch": Path(sys.executable).parent}
    binaries |= {name: environment(name, options.environments, given) for name in options.names}
    versions = {name: version(where, name) for name, where in binaries.items()}
    made = Report(f"{options.rounds} rounds; {STREAMS} streams of {TOKENS} tokens, a token each {PACE_US} us at most")
    made.bars += bars(turns(binaries, options.rounds), versions)
    return made


def main() -> None:
    """The script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(BARS), metavar="NAME", help=f"of {', '.join(BARS)}")
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache/tailwatch-peers")
    parser.add_argument("--use", action="append", default=[], metavar="NAME=DIR", help="an environment that is there")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was measured")
    options = parser.parse_args()
    made = report(options)
    print(made)
    if options.json:
        options.json.write_text(json.dumps(made.as_dict(), indent=1) + "\n")


if __name__ == "__main__":
    main()
