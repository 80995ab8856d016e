"""Runs `transformers serve --continuous-batching` on a CPU, delays tokens on purpose in its engine's thread and in its
event loop, and compares what `tailwatch why` makes of each late token with a log of the plants.

    VENV/bin/python tests/servers/batching_causes.py --tailwatch BIN/tailwatch --model MODEL [--json FILE]

VENV has transformers[serving] and torch; BIN is where tailwatch is. MODEL is make_model.py's. The client is this
process, by HTTP; the plants are put into the server by the same file, run as a script around its command line.
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
from pathlib import Path
from typing import Any

SLEEP = 0.4
STREAMS, TOKENS, PROMPT = 3, 120, 300  # a word is some ten tokens
CACHE = ("--cb-num-blocks", "256", "--cb-block-size", "64", "--cb-max-batch-tokens", "512")  # else it is all memory
CAUSES = {  # of each round, what it must be charged to first
    "schedule": "engine_host schedule",
    "forward": "device",
    "deliver": "transport",  # results are stamped as they are handed to the event loop
    "put": "sleep",  # what the loop did, by its stack
    "prefill": "prefill long-prompt",
}
PLANTS = ("schedule", "forward", "deliver", "put")


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


def serve(arguments: list[str]) -> None:
    """In the server: its own command line, once the plants are there."""
    from transformers.cli.serving import utils
    from transformers.cli.transformers import main
    from transformers.generation.continuous_batching import continuous_api, scheduler

    places = {
        "schedule": (scheduler.FIFOScheduler, "schedule_batch"),
        "forward": (continuous_api.ContinuousBatchingManager, "_generation_step"),
        "deliver": (continuous_api.OutputRouter, "deliver_batch"),
        "put": (utils.CBStreamer, "put"),
    }
    for name, (owner, method) in places.items():
        setattr(owner, method, planted(getattr(owner, method), name))
    sys.argv = ["transformers", "serve", *arguments]
    main()


class Server:
    """One, under `tailwatch run`."""

    def __init__(self, options: argparse.Namespace) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.orders, self.group = tempfile.mkdtemp(), tempfile.mkdtemp()
        self._options = options
        command = [options.tailwatch, "run", "--dir", self.group, "--", sys.executable, __file__, "serve"]
        command += [options.model, "--device", "cpu", "--port", str(self.port), "--continuous-batching", *CACHE]
        environment = {"BATCHING_ORDERS": self.orders, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
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
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        content = " ".join(f"word{i}" for i in range(words))
        generation = json.dumps({"max_new_tokens": tokens, "eos_token_id": -1, "do_sample": False})
        body = {
            **{"model": self._options.model, "stream": True, "max_tokens": tokens, "generation_config": generation},
            "messages": [{"role": "user", "content": content}],
        }
        headers = {"Content-Type": "application/json", "X-Request-Id": name}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {answer.read()!r}")
        answer.read()

    def round(self, title: str, act: Any) -> None:
        """Streams that decode, and what act does beside them."""
        threads = [
            threading.Thread(target=self.stream, args=(20, TOKENS, f"{title}-{i}"), daemon=True) for i in range(STREAMS)
        ]
        for thread in threads:
            thread.start()
        time.sleep(self._third)
        act()
        for thread in threads:
            thread.join()

    def warm(self) -> None:
        """The model is loaded by the first request."""
        self.stream(20, 4, "warm")
        began = time.monotonic()
        self._third = 0.0
        self.round("warm", lambda: None)
        self._third = (time.monotonic() - began) / 3

    def order(self, name: str) -> None:
        """Asks for one sleep there, and waits for it."""
        Path(f"{self.orders}/{name}.do").write_text("")
        while not os.path.exists(f"{self.orders}/{name}.log"):
            time.sleep(0.05)

    def why(self) -> Any:
        """What tailwatch found."""
        done = subprocess.run(
            [self._options.tailwatch, "why", "--dir", self.group, "--json", "-", "--last", "1h"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return json.loads(done.stdout)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def account(late: list[Any], orders: str) -> dict[str, Any]:
    """Of each round: its late tokens, how long they were late beside the plant, and by what, in ms."""
    rounds: dict[str, dict[str, Any]] = {}
    for token in late:
        title = token["request_id"].rpartition("-")[0]
        found = rounds.setdefault(title, {"late": 0, "late_ms": 0.0, "causes_ms": defaultdict(float)})
        found["late"] += 1
        found["late_ms"] += (token["gap"] - token["typical"]) * 1e3
        for each in token["causes"]:
            key = f"{each['cause']} {each['name'].partition('  ')[0]} [{each['certainty']}]"
            found["causes_ms"][key] += each["seconds"] * 1e3
    for title, found in rounds.items():
        found["late_ms"] = round(found["late_ms"], 1)
        found["causes_ms"] = {c: round(ms, 1) for c, ms in sorted(found["causes_ms"].items(), key=lambda i: -i[1])}
        log = Path(orders, f"{title}.log")
        if log.exists():
            found["planted_ms_each"] = round(json.loads(log.read_text()) * 1e3, 1)
    return rounds


def main() -> None:
    """Prints and keeps the account."""
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tailwatch", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    server = Server(options)
    try:
        server.warm()
        server.round("control", lambda: None)
        for name in PLANTS:
            server.round(name, lambda name=name: server.order(name))
        server.round("prefill", lambda: server.stream(PROMPT, 2, "long-prompt"))
        rounds = account(server.why()["late"], server.orders)
    finally:
        server.stop()
    print(json.dumps(rounds, indent=1))
    if options.json is not None:
        from transformers import __version__

        machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
        whole = {"machine": machine, "transformers": __version__, "rounds": rounds}
        options.json.write_text(json.dumps(whole, indent=1) + "\n")
    wrong = [title for title, cause in CAUSES.items() if not next(iter(rounds[title]["causes_ms"])).startswith(cause)]
    if wrong:
        raise SystemExit(f"another cause came first: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
