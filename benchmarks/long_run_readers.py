"""What reads the watched server of long_run.py all the time, in a process of its own: scrapes, page, `tailwatch why`.

    long_run_readers.py EVERY WHY_EVERY      seconds between two scrapes, and between two `tailwatch why`

The first line of output is the port of a receiver of OTLP; then the port of the server is read. Ends with its standard
input, and prints what it has found as JSON.
"""

from __future__ import annotations

import gzip
import http.client
import json
import re
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
FORMATS = ("text/plain;version=0.0.4", "application/openmetrics-text;version=1.0.0", PROTOBUF)
PAGE = "/tailwatch/data?window=5m"
SAMPLE = re.compile(r"^(\w+(?:_total|_count|_bucket)(?:\{[^}]*\})?) (\S+)", re.MULTILINE)
TIMEOUT = 30


class Receiver:
    """Of OTLP over HTTP: how many exports of metrics, how many spans."""

    def __init__(self) -> None:
        self.exports = self.spans = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                receiver.take(self.path, self.headers.get("Content-Encoding"), self._body())
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def _body(self) -> bytes:
                return self.rfile.read(int(self.headers["Content-Length"]))

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, path: str, coding: str | None, body: bytes) -> None:
        """One export."""
        if coding == "gzip":
            body = gzip.decompress(body)
        elif coding == "deflate":
            body = zlib.decompress(body)
        if not path.endswith("traces"):
            self.exports += 1
            return
        request = ExportTraceServiceRequest.FromString(body)
        self.spans += sum(len(scope.spans) for each in request.resource_spans for scope in each.scope_spans)


class Readers:
    """failed: what went wrong, by its name. backward: counters that a later scrape has a smaller value of."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.examples: list[str] = []
        self.longest: dict[str, float] = {}
        self.backward: Counter[str] = Counter()
        self._before: dict[str, float] = {}

    def scrape(self) -> None:
        """In the next of the formats; what is text is compared with the text before it."""
        kind = FORMATS[self.done["scrape"] % len(FORMATS)]
        body = self._get("/metrics", {"Accept": kind, "Accept-Encoding": "gzip"})
        if kind == FORMATS[0]:
            self.compare(body.decode())

    def compare(self, text: str) -> None:
        """Counters never go back."""
        now = {name: float(value) for name, value in SAMPLE.findall(text)}
        if not now:
            raise ValueError("a scrape without counters")
        for name, value in self._before.items():
            if now.get(name, -1.0) < value:
                self.backward[name] += 1
        self._before = now

    def page(self) -> None:
        """As an open page asks."""
        json.loads(self._get(PAGE, {"Accept-Encoding": "gzip"}))

    def why(self) -> None:
        """The command, which reads a snapshot of the server."""
        command = [sys.executable, "-m", "tailwatch", "why", f"http://127.0.0.1:{self._port}", "--last", "2m"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, cwd="/")
        if done.returncode:
            raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-300:]}")

    def run(self, read: Callable[[], None]) -> None:
        """Reads once; counts it, or how it failed."""
        name, began = read.__name__, time.monotonic()
        try:
            read()
        except Exception as error:
            self.failed[name] += 1
            self.examples.append(f"{name}: {type(error).__name__}: {error}"[:300])
        self.done[name] += 1
        self.longest[name] = max(self.longest.get(name, 0.0), time.monotonic() - began)

    def _get(self, path: str, headers: dict[str, str]) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{path}: status {answer.status}")
            return gzip.decompress(body) if answer.getheader("Content-Encoding") == "gzip" else body
        finally:
            connection.close()


def end_with_parent(over: threading.Event) -> None:
    """Sets it once standard input has ended."""
    sys.stdin.read()
    over.set()


def main(every: float, why_every: float) -> None:
    """Until standard input ends."""
    receiver = Receiver()
    print(receiver.port, flush=True)
    readers = Readers(int(sys.stdin.readline()))
    over = threading.Event()
    threading.Thread(target=end_with_parent, args=(over,), daemon=True).start()
    start, turn, next_why = time.monotonic(), 0, why_every
    while not over.wait(max(0.0, start + (turn + 1) * every - time.monotonic())):
        turn += 1
        readers.run(readers.scrape)
        readers.run(readers.page)
        if time.monotonic() - start >= next_why:
            next_why += why_every
            readers.run(readers.why)
    print(json.dumps({
        "done": readers.done, "failed": readers.failed, "examples": readers.examples[:10],
        "longest_s": readers.longest, "backward": readers.backward,
        "exports": receiver.exports, "spans": receiver.spans,
    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
