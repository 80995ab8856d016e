"""How many tokens/s can other load testers' clients take on one core? Their own commands, in environments with pins.

    python benchmarks/load/peers.py [--json FILE] [--environments DIR] [--use vllm=DIR] [vllm aiperf]

Each gets an environment of its own (`--use NAME=DIR`: one that is there), a tokenizer of a few words made on the spot
(none is downloaded), and the token generator of this directory on the other core: in closed loop, 64-token streams, a
token every 5 ms at most. What is counted is what the generator wrote between a tenth and nine tenths of the run, so
that start and end are nobody's; the CPU time is that of all its processes, which share the one core. The environments
are large: 1 GB and more. bench_load.py compares with benchmarks/results/load_peers.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bench_load import PACE_US, built, cores, pinned, serving  # noqa: E402
from harness import machine  # noqa: E402

TOKENS = 64


@dataclass(frozen=True)
class Peer:
    """What is installed, and what is run."""

    package: str
    pins: tuple[str, ...]
    command: tuple[str, ...]
    requests: int
    streams: int = 200


PEERS = {
    "vllm": Peer(
        "vllm",
        ("vllm==0.33.0",),
        (
            *("{bin}/vllm", "bench", "serve", "--backend=openai", "--base-url=http://127.0.0.1:{port}", "--model=m"),
            *("--endpoint=/v1/completions", "--tokenizer={tokenizer}", "--dataset-name=random", "--random-input-len=8"),
            *(f"--random-output-len={TOKENS}", "--num-prompts={requests}", "--max-concurrency={streams}"),
            *("--disable-tqdm", "--ready-check-timeout-sec=0"),
        ),
        8000,
    ),
    "aiperf": Peer(
        "aiperf",
        ("aiperf==0.13.0",),
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


def environment(peer: Peer, name: str, directory: Path, given: dict[str, Path]) -> Path:
    """Its bin directory; made if it is not there."""
    if name in given:
        return given[name] / "bin"
    home = directory / name
    if not (home / "bin/pip").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(home / "bin/pip"), "install", "-q", *peer.pins], check=True)
    return home / "bin"


def version(binaries: Path, package: str) -> str:
    """Which one is measured: the environment may not be ours."""
    code = (
        "from importlib.metadata import distributions as d; import sys;"
        "print(*{x.name + ' ' + x.version for x in d() if x.name.replace('_', '-').split('-')[0] == sys.argv[1]})"
    )
    return subprocess.run(
        [str(binaries / "python"), "-c", code, package], check=True, capture_output=True, text=True
    ).stdout.strip()


class Watch(threading.Thread):
    """What the generator had written, ten times a second."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._url = f"http://127.0.0.1:{port}/stats"
        self.seen: list[tuple[float, int]] = []
        self.over = threading.Event()

    def run(self) -> None:
        """Until it is over."""
        while not self.over.wait(0.1):
            told: dict[str, Any] = json.load(urllib.request.urlopen(self._url, timeout=10))
            self.seen.append((time.monotonic(), told["tokens"]))

    def rate(self) -> float:
        """Tokens/s in the middle of it."""
        total = self.seen[-1][1]
        middle = [(at, tokens) for at, tokens in self.seen if total * 0.1 <= tokens <= total * 0.9]
        if len(middle) < 5:
            raise SystemExit(f"too short: {total} tokens, {len(middle)} looks at them")
        (start, before), (end, after) = middle[0], middle[-1]
        return (after - before) / (end - start)


def measure(peer: Peer, binaries: Path, port: int, scratch: Path) -> dict[str, float]:
    """One run of its own command."""
    tokenizer = scratch / "tokenizer"
    subprocess.run([str(binaries / "python"), "-c", TOKENIZER, str(tokenizer)], check=True, env=os.environ | ALONE)
    names = {"bin": binaries, "port": port, "tokenizer": tokenizer, "scratch": scratch}
    command = [word.format(**names, requests=peer.requests, streams=peer.streams) for word in peer.command]
    watch, before = Watch(port), resource.getrusage(resource.RUSAGE_CHILDREN)
    watch.start()
    done = subprocess.run(
        command, env=os.environ | ALONE, cwd=scratch, capture_output=True, text=True, **pinned(cores()[1])
    )
    watch.over.set()
    watch.join()
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"tokens_per_s": watch.rate(), "tokens": watch.seen[-1][1], "cpu_s_with_start": cpu}


def main() -> None:
    """The script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(PEERS), metavar="NAME", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache/tailwatch-peers")
    parser.add_argument("--use", action="append", default=[], metavar="NAME=DIR", help="an environment that is there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was measured")
    options = parser.parse_args()
    given = {name: Path(path) for name, path in (pair.split("=", 1) for pair in options.use)}
    told: dict[str, Any] = {"machine": machine(), "versions": {}, "tokens_per_s": {}, "runs": {}}
    for name in options.names:
        peer = PEERS[name]
        binaries = environment(peer, name, options.environments, given)
        told["versions"][name] = version(binaries, peer.package)
        with tempfile.TemporaryDirectory() as scratch, serving(built(Path(scratch)), PACE_US) as port:
            told["runs"][name] = measure(peer, binaries, port, Path(scratch))
        told["tokens_per_s"][name] = told["runs"][name]["tokens_per_s"]
        print(f"{told['versions'][name]}: {told['tokens_per_s'][name]:.0f} tokens/s on one core", flush=True)
    if options.json:
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
