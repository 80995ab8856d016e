"""Runs a real vLLM with a KV connector that takes its time (planted_connector.py), and compares what `tailwatch why`
makes of each slow first token with the connector's own log.

    python tests/servers/kv_waits.py --venv VENV --model MODEL [--json FILE] [--engine ARG ...]

VENV has vLLM (targets.py) and tailwatch, MODEL is make_model.py's. Short prompts, of which the connector has nothing,
are the control; every second long one comes while others decode.
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
from collections import defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "benchmarks"))

from targets import SERVERS  # noqa: E402 - beside this file

LONG, SHORT, ROUNDS = 700, 20, 6
ANSWER, BESIDE = 4, 300  # tokens
SLOW_TTFT = 0.15

# In the server's environment: its vLLM, and its steps by CUDA graph mode.
STATE = """
import json, sys
from importlib.metadata import version
from tailwatch.snapshots import take_directory
[engine] = take_directory(sys.argv[1]).engines
print(json.dumps({"vllm": version("vllm"), "graphs": {mode: n for mode, n in engine.graphs.items() if n}}))
"""


def main() -> None:
    """Prints and keeps the account."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, default=8311)
    parser.add_argument("--undecided", type=float, default=0.3, help="seconds in which the connector has no answer")
    parser.add_argument("--seconds", type=float, default=0.8, help="seconds of a load")
    parser.add_argument("--engine", nargs="*", default=[], help="further arguments of vLLM")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailwatch-kv-", dir="/dev/shm") as directory:
        rows, state = run(options, Path(directory))
    print(json.dumps(state))
    for row in rows:
        print(json.dumps(row))
    if options.json is not None:
        from harness import machine

        planted = {"undecided_s": options.undecided, "load_s": options.seconds}
        kept = {"machine": machine(), **state, **planted, "requests": rows}
        options.json.write_text(json.dumps(kept, indent=1) + "\n")


def run(options: argparse.Namespace, directory: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row for each request, what the plant's log has and the causes of its first token; and STATE."""
    log = directory / "log"
    planted = {"undecided": options.undecided, "seconds": options.seconds, "long": LONG // 2, "log": str(log)}
    transfer = {
        "kv_connector": "PlantedConnector",
        "kv_connector_module_path": "planted_connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": planted,
    }
    group = directory / "group"
    group.mkdir(mode=0o700)
    names = {"bin": options.venv / "bin", "model": options.model, "port": options.port, "here": HERE}
    serve = SERVERS["vllm"].command.format(**names).split()
    command = [
        *(str(options.venv / "bin" / "tailwatch"), "run", "--quiet", f"--dir={group}"),
        *(f"--slo=ttft<={round(SLOW_TTFT * 1000)}ms", "--", *serve),
        *("--kv-transfer-config", json.dumps(transfer), "--no-enable-prefix-caching", *options.engine),
    ]
    environment = {**os.environ, **SERVERS["vllm"].environment, "PYTHONPATH": str(HERE)}
    with (directory / "server.log").open("w") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            ready(server, options.port, directory / "server.log")
            clients(options)
            why = [
                str(options.venv / "bin" / "tailwatch"),
                "why",
                "--dir",
                str(group),
                "--json",
                str(directory / "late"),
            ]
            subprocess.run(why, check=True, stdout=subprocess.DEVNULL)
            state = subprocess.run(
                [options.venv / "bin" / "python", "-c", STATE, str(group)], check=True, capture_output=True, text=True
            ).stdout
            late = json.loads((directory / "late").read_text())["late"]
        finally:
            server.terminate()
            server.wait(60)
    return compare(late, [json.loads(line) for line in log.read_text().splitlines()]), json.loads(state)


def ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Waits until it answers."""
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    sys.exit(log.read_text()[-4000:])


def clients(options: argparse.Namespace) -> None:
    """Warm it up; then short and long prompts in turn."""
    for number in range(8):
        ask(options, f"warm-{number}", SHORT, ANSWER)
    for number in range(ROUNDS):
        beside = threading.Thread(target=ask, args=(options, f"beside-{number}", SHORT, BESIDE))
        if number % 2:
            beside.start()
        ask(options, f"long-{number}", LONG, ANSWER)
        ask(options, f"short-{number}", SHORT, ANSWER)
        if number % 2:
            beside.join()


def ask(options: argparse.Namespace, name: str, prompt: int, tokens: int) -> None:
    """One request, whose answer is read to its end."""
    body = {
        "model": str(options.model), "prompt": [5 + hash((name, i)) % 200 for i in range(prompt)],
        "max_tokens": tokens, "stream": True, "ignore_eos": True,
    }  # fmt: skip
    headers = {"Content-Type": "application/json", "X-Request-Id": name}
    url = f"http://127.0.0.1:{options.port}/v1/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()


def compare(late: list[dict[str, Any]], log: list[Any]) -> list[dict[str, Any]]:
    """The connector's log beside the causes, ms."""
    events: dict[str, dict[str, int]] = defaultdict(dict)
    for what, request, at in log:
        events[request][what] = at
    rows = []
    for number in range(ROUNDS):
        for kind in ("long", "short"):
            name = f"{kind}-{number}"
            truth = next((times for request, times in events.items() if name in request), {})
            first = next((gap for gap in late if gap["phase"] == "ttft" and name in gap["request_id"]), None)
            causes: dict[str, float] = defaultdict(float)
            for cause in first["causes"] if first else ():
                causes[f"{cause['cause']} {cause['certainty']}"] += cause["seconds"] * 1e3
            rows.append(
                {
                    "request": name,
                    "others decode": bool(number % 2),
                    "planted_ms": round((truth["came"] - truth["asked"]) / 1e6, 2) if "came" in truth else 0.0,
                    "ttft_ms": round(first["gap"] * 1e3, 2) if first else None,
                    "causes_ms": {name: round(ms, 2) for name, ms in causes.items() if ms >= 0.005},
                }
            )
    return rows


if __name__ == "__main__":
    main()
