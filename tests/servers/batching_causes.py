"""Runs a server, delays tokens on purpose in its engine, on the way from it and in its event loop, and compares what
`tailwatch why` makes of each late token with a log of the plants.

    VENV/bin/python tests/servers/batching_causes.py --tailwatch BIN/tailwatch --model MODEL [--json FILE]
    … --cuda                  on a GPU: longer prompts, more streams (MODEL: make_model.py --large)
    … --cuda --graphs         with CUDA graphs
    … --cuda --graphs --overlapped    and with a batch prepared while another computes, which needs CUDA
    … --small-cache           a KV cache too small, instead of the other rounds
    … --server sglang [--overlapped] [--small-cache]    SGLang on a CPU: FILE gets a run of each

The server is `transformers serve --continuous-batching`, or SGLang: VENV has transformers[serving] and torch, or what
targets.py lists. BIN is where tailwatch is: for SGLang it is VENV's. MODEL is make_model.py's. The client is this
process, by HTTP; the plants are put into each of the server's processes by the same file, run as a script around its
command line.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial, partialmethod
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parent / "plant"))
from at_import import AtImport

SLEEP = 0.4
LONGEST = "late by half a plant or more"
WORDS = 16  # of the prompt of a stream: it and 100 tokens fit into a block of 256


class Sizes(NamedTuple):
    """Of the load. A word is some seven tokens. cache: the KV cache and the longest step, by the server's options.
    crowded: the rounds of a cache too small: how many streams, how long."""

    streams: int
    tokens: int
    prompt: int
    cache: dict[str, float] = {}  # noqa: RUF012  # never changed
    crowded: tuple[tuple[str, int, int], ...] = (("queued", 12, 100), ("preempted", 5, 300))


def _blocks(number: int, size: int, batch: int) -> dict[str, float]:
    return {"--cb-num-blocks": number, "--cb-block-size": size, "--cb-max-batch-tokens": batch}


class Kind(NamedTuple):
    """Of server. plants: where each is put. causes: of each round, what it must be charged to first; a round without
    one is shown only. command: what its own command line gets, from the options and the sizes, without the model and
    the port. body: what a request has beside the usual, of its name and tokens."""

    package: str
    plants: dict[str, tuple[str, str, str]]
    causes: dict[str, str | tuple[str, ...]]
    sizes: Any
    command: Any
    model: str
    body: Any


def _transformers_sizes(options: argparse.Namespace) -> Sizes:
    if options.small_cache:
        return Sizes(streams=8, tokens=100, prompt=0, cache=_blocks(8, 256, 512))
    if options.cuda:
        return Sizes(streams=8, tokens=200, prompt=1150, cache=_blocks(256, 128, 8192))
    return Sizes(streams=3, tokens=120, prompt=300, cache=_blocks(256, 64, 512))


def _transformers_command(options: argparse.Namespace) -> list[str]:
    graphs = ["--cb-use-cuda-graph"] if options.graphs else []
    return ["--device", "cuda" if options.cuda else "cpu", "--continuous-batching", *graphs]


def _transformers_body(name: str, tokens: int) -> dict[str, Any]:
    return {"generation_config": json.dumps({"max_new_tokens": tokens, "eos_token_id": -1, "do_sample": False})}


def _sglang_sizes(options: argparse.Namespace) -> Sizes:
    if options.small_cache:  # more are taken than fit
        cache = {"--max-total-tokens": 1200, "--max-running-requests": 6, "--schedule-conservativeness": 0.1}
        crowded = (("preempted", 3, 400), ("queued", 12, 100))  # after a retraction fewer are taken for a while
        return Sizes(streams=4, tokens=100, prompt=0, cache=cache, crowded=crowded)
    return Sizes(streams=4, tokens=200, prompt=330, cache={"--max-total-tokens": 16384})


def _sglang_command(options: argparse.Namespace) -> list[str]:
    overlapped = [] if options.overlapped else ["--disable-overlap-schedule"]
    names = ("device", "cpu"), ("dtype", "float32"), ("attention-backend", "torch_native")
    more = ("sampling-backend", "pytorch"), ("mem-fraction-static", "0.2")
    flags = [word for name, value in (*names, *more) for word in (f"--{name}", value)]
    return [*flags, "--disable-radix-cache", *overlapped]


def _sglang_body(name: str, tokens: int) -> dict[str, Any]:
    return {"temperature": 0, "min_tokens": tokens, "rid": name}  # with ignore_eos no more are taken than fit


_BATCHING = "transformers.generation.continuous_batching"
_SGLANG = "sglang.srt.managers"
SERVERS = {
    "transformers": Kind(
        "transformers",
        {
            "schedule": (f"{_BATCHING}.scheduler", "FIFOScheduler", "schedule_batch"),
            "forward": (f"{_BATCHING}.continuous_api", "ContinuousBatchingManager", "_generation_step"),
            "deliver": (f"{_BATCHING}.continuous_api", "OutputRouter", "deliver_batch"),
            "put": ("transformers.cli.serving.utils", "CBStreamer", "put"),
        },
        {
            "schedule": "engine_host schedule",
            "forward": "device",
            "deliver": "transport",  # results are stamped as they are handed to the event loop
            "put": "sleep",  # what the loop did, by its stack
            "prefill": ("prefill long-prompt", "engine_host schedule"),  # overlapped, its mask is built on the CPU
            "queued": "queued",
            "preempted": "preempted",
        },
        _transformers_sizes,
        _transformers_command,
        "{model}",
        _transformers_body,
    ),
    "sglang": Kind(
        "sglang",
        {
            "schedule": (f"{_SGLANG}.scheduler", "Scheduler", "get_next_batch_to_run"),
            "forward": (f"{_SGLANG}.tp_worker", "TpModelWorker", "forward_batch_generation"),
            "detokenizer": (f"{_SGLANG}.detokenizer_manager", "DetokenizerManager", "handle_batch_token_id_out"),
            "put": (f"{_SGLANG}.tokenizer_manager", "TokenizerManager", "_handle_batch_output"),
        },
        {
            "schedule": "engine_host schedule",
            "forward": "device",
            "detokenizer": "transport",
            "put": "sleep",
            "prefill": "prefill long-prompt",
            "queued": "queued",
            "preempted": "preempted",
        },
        _sglang_sizes,
        _sglang_command,
        "--model-path={model}",
        _sglang_body,
    ),
}


def planted(original: Any, name: str) -> Any:
    """Sleeps once, where an order asks for it, before it does what it did; the log has for how long."""
    orders = os.environ["BATCHING_ORDERS"]

    def call(*args: Any, **kwargs: Any) -> Any:
        came = time.monotonic()
        try:
            os.rename(f"{orders}/{name}.do", f"{orders}/{name}.doing")
        except OSError:
            return original(*args, **kwargs)
        time.sleep(SLEEP)
        Path(f"{orders}/{name}.log").write_text(json.dumps(time.monotonic() - came))
        return original(*args, **kwargs)

    return call


def _plant(plants: dict[str, tuple[str, str]], module: Any) -> None:
    for name, (owner, method) in plants.items():
        home = getattr(module, owner)
        setattr(home, method, planted(getattr(home, method), name))


def patches(kind: Kind) -> dict[str, Callable[[Any], None]]:
    """By module, what is put into it."""
    plants: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    for name, (module, owner, method) in kind.plants.items():
        plants[module][name] = owner, method
    return {module: partial(_plant, wanted) for module, wanted in plants.items()}


if "BATCHING_SERVER" in os.environ:  # in every process: each imports this file
    sys.meta_path.insert(0, AtImport(patches(SERVERS[os.environ["BATCHING_SERVER"]])))


def serve(server: str, arguments: list[str]) -> None:
    """In the server: its own command line."""
    if server == "sglang":
        from sglang.launch_server import run_server
        from sglang.srt.server_args import prepare_server_args

        run_server(prepare_server_args(arguments))
        return
    from transformers import ContinuousBatchingConfig
    from transformers.cli.transformers import main as transformers

    if "BATCHING_OVERLAPPED" in os.environ:  # no flag of the command line is for it
        ContinuousBatchingConfig.__init__ = partialmethod(ContinuousBatchingConfig.__init__, use_async_batching=True)
    sys.argv = ["transformers", "serve", *arguments]
    transformers()


class Server:
    """One, under `tailwatch run`."""

    def __init__(self, options: argparse.Namespace) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.orders, self.group = tempfile.mkdtemp(), tempfile.mkdtemp()
        self._options = options
        self.late: dict[tuple[str, int], Any] = {}
        self._received: dict[str, int] = defaultdict(int)
        self.kind = SERVERS[options.server]
        self.sizes: Sizes = self.kind.sizes(options)
        command = [options.tailwatch, "run", "--dir", self.group, "--", sys.executable, __file__, "serve"]
        command += [options.server, self.kind.model.format(model=options.model), "--port", str(self.port)]
        command += [*self.kind.command(options), *(str(word) for pair in self.sizes.cache.items() for word in pair)]
        environment = {"BATCHING_ORDERS": self.orders, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        environment |= {"BATCHING_SERVER": options.server}
        environment |= {"BATCHING_OVERLAPPED": "1"} if options.overlapped else {}
        self._log = open(f"{self.orders}/log", "w+")  # noqa: SIM115  # to the end
        self._process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=self._log, stderr=subprocess.STDOUT
        )
        self._wait()

    def _wait(self) -> None:
        while self._process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1):
                    return
            except OSError:
                time.sleep(0.2)
        self._log.seek(0)
        raise SystemExit(self._log.read())

    def stream(self, words: int, tokens: int, name: str) -> None:
        """One request, read to its end."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        content = " ".join([name, *(f"word{i}" for i in range(words))])  # no two begin alike: such share blocks
        body = {
            **{"model": self._options.model, "stream": True, "max_tokens": tokens, **self.kind.body(name, tokens)},
            "messages": [{"role": "user", "content": content}],
        }
        headers = {"Content-Type": "application/json", "X-Request-Id": name}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {answer.read()!r}")
        for line in answer:
            self._received[name] += line.startswith(b"data:")

    def round(self, title: str, act: Any, *, streams: int = 0, tokens: int = 0) -> None:
        """Streams that decode, and what act does beside them."""
        length = tokens or self.sizes.tokens
        names = [f"{title}-{i}" for i in range(streams or self.sizes.streams)]
        threads = [threading.Thread(target=self.stream, args=(WORDS, length, name), daemon=True) for name in names]
        self._received.clear()
        for thread in threads:
            thread.start()
        while any(self._received[name] < length // 3 for name in names) and any(each.is_alive() for each in threads):
            time.sleep(0.005)
        act()
        goal = {name: self._received[name] + 3 for name in names}
        while any(self._received[name] < goal[name] for name in names) and any(each.is_alive() for each in threads):
            time.sleep(0.005)
        self._take()  # the last 256 are kept: on a busy machine more may follow
        for thread in threads:
            thread.join()
        self._take()

    def _take(self) -> None:
        self.late |= {(token["request_id"], token["token"]): token for token in self._why()}

    def warm(self) -> None:
        """The model is loaded by the first request. With graphs, a length of step has its own, captured at first."""
        self.stream(WORDS, 4, "warm")
        self.round("warm", lambda: None, streams=3)
        if self.sizes.prompt:
            self.round("warm", lambda: self.stream(self.sizes.prompt, 2, "warm-prompt"))
            self.round("warm", lambda: self.stream(self.sizes.prompt, 2, "warn-prompt"))

    def rounds(self) -> None:
        """All that belong to the size of the cache."""
        if self._options.small_cache:
            for title, streams, tokens in self.sizes.crowded:
                self.round(title, lambda: None, streams=streams, tokens=tokens)
            return
        self.round("control", lambda: None)
        for name in self.kind.plants:
            self.round(name, lambda name=name: self.order(name))
        self.round("prefill", lambda: self.stream(self.sizes.prompt, 2, "long-prompt"))

    def order(self, name: str) -> None:
        """Asks for one sleep there, and waits for it."""
        Path(f"{self.orders}/{name}.do").write_text("")
        while not os.path.exists(f"{self.orders}/{name}.log"):
            time.sleep(0.05)

    def _why(self) -> Any:
        """What tailwatch found."""
        done = subprocess.run(
            [self._options.tailwatch, "why", "--dir", self.group, "--json", "-", "--last", "1h"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return json.loads(done.stdout)["late"]

    def engine(self) -> dict[str, float]:
        """What its steps added up to: `tailwatch_engine_…` of /metrics, without the buckets. All of ours are elsewhere
        where the app has one of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        for path in ("/tailwatch/metrics", "/metrics"):
            connection.request("GET", path)
            answer = connection.getresponse()
            lines = answer.read().decode().splitlines()
            if answer.status == 200:
                break
        found = (line.removeprefix("tailwatch_engine_").rpartition(" ") for line in lines if "engine_" in line[:17])
        return {name: float(value) for name, _, value in found if "_bucket" not in name and "_created" not in name}

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def account(late: list[Any], orders: str) -> dict[str, Any]:
    """Of each round: its late tokens, how long they were late beside the plant, and by what, in ms; the same of those
    that were late by half a plant or more, of which a busy machine makes few."""
    titles = {token["request_id"].rpartition("-")[0]: None for token in late}
    rounds = {}
    for title in titles:
        mine = [token for token in late if token["request_id"].rpartition("-")[0] == title]
        rounds[title] = _sums(mine)
        if longest := [token for token in mine if token["gap"] - token["typical"] >= SLEEP / 2]:
            rounds[title][LONGEST] = _sums(longest)
        log = Path(orders, f"{title}.log")
        if log.exists():
            rounds[title]["planted_ms_each"] = round(json.loads(log.read_text()) * 1e3, 1)
    return rounds


def _sums(late: list[Any]) -> dict[str, Any]:
    causes: dict[str, float] = defaultdict(float)
    for token in late:
        for each in token["causes"]:
            causes[f"{each['cause']} {each['name'].partition('  ')[0]} [{each['certainty']}]"] += each["seconds"] * 1e3
    ordered = sorted(causes.items(), key=lambda item: -item[1])
    excess = sum(token["gap"] - token["typical"] for token in late) * 1e3
    return {"late": len(late), "late_ms": round(excess, 1), "causes_ms": {cause: round(ms, 1) for cause, ms in ordered}}


def _first(found: dict[str, Any]) -> str:
    return next(iter(found.get(LONGEST, found)["causes_ms"]), "")


def _facts(options: argparse.Namespace) -> dict[str, Any]:
    """What was run, and on what."""
    machine: dict[str, Any] = {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    if options.cuda:
        import torch

        machine |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    flags = [name for name in ("cuda", "graphs", "overlapped", "small_cache") if getattr(options, name)]
    model = json.loads(Path(options.model, "config.json").read_text())
    shape = {name: model[name] for name in ("hidden_size", "num_hidden_layers", "intermediate_size", "dtype")}
    package = SERVERS[options.server].package
    return {"machine": machine, package: version(package), "flags": flags, "model": shape}


def _keep(options: argparse.Namespace, run: dict[str, Any]) -> None:
    """Writes the account to its file; SGLang's beside those of its other runs."""
    facts = _facts(options)
    if options.server == "sglang":
        title = ", ".join(name.replace("_", " ") for name in facts.pop("flags")) or "one batch after the other"
        kept = json.loads(options.json.read_text())["runs"] if options.json.exists() else {}
        load = facts["machine"].pop("load")
        facts, run = facts, {"runs": {**kept, title: {"load": load, **run}}}
    options.json.write_text(json.dumps(facts | run, indent=1) + "\n")


def main() -> None:
    """Prints and keeps the account."""
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=SERVERS, default="transformers")
    parser.add_argument("--tailwatch", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--late", type=Path, help="also keep each late token there")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--graphs", action="store_true", help="CUDA graphs")
    parser.add_argument("--overlapped", action="store_true", help="a batch is prepared while another computes")
    parser.add_argument("--small-cache", action="store_true", help="a KV cache too small, instead of the other rounds")
    options = parser.parse_args()
    server = Server(options)
    try:
        server.warm()
        server.rounds()
        engine = server.engine()
    finally:
        server.stop()
    rounds = account(list(server.late.values()), server.orders)
    if options.late is not None:
        options.late.write_text(json.dumps(list(server.late.values())))
    print(json.dumps([rounds, engine], indent=1))
    if options.json is not None:
        _keep(options, {"rounds": rounds, "engine": engine})
    expected = {title: cause for title, cause in server.kind.causes.items() if title in rounds}
    wrong = [title for title, cause in expected.items() if not _first(rounds[title]).startswith(cause)]
    if (
        missing := {"queued", "preempted"} - set(rounds)
        if options.small_cache
        else set(server.kind.plants) - set(rounds)
    ):
        raise SystemExit(f"no late token in: {', '.join(missing)}")
    if wrong:
        raise SystemExit(f"another cause came first: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
