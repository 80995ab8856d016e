"""The server process: model, heap, app, tailwatch inside, uvicorn around. Commands come over the pipe."""

from __future__ import annotations

import gc
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import uvicorn

from tailwatch.demo import heap
from tailwatch.demo.app import build_app
from tailwatch.demo.engine import MAX_BATCH, Engine
from tailwatch.demo.model import LanguageModel
from tailwatch.demo.pipe import ParentPipe
from tailwatch.demo.planting import Planting
from tailwatch.demo.settings import OBJECTS

if TYPE_CHECKING:
    from fastapi import FastAPI

    from tailwatch.demo.pipe import Line

KEEP_ALIVE_SECONDS = 600
BACKLOG = 2048
GRACE_SECONDS = 2
SETTLE_SECONDS = 5.0
SHORTEST = 0.001  # seconds: shorter pauses are in no timeline
COLLECT_SECONDS = 2.0


def main() -> None:
    """Serve until the parent sends stop, or is gone. The first line of the pipe is the configuration."""
    parent = ParentPipe()
    config = parent.receive()
    if config is None:
        return
    batch = config.get("batch", MAX_BATCH)
    app, objects = build(config["seed"], config["objects"], batch)
    arm = config["arm"]
    if arm is not None:
        import tailwatch

        tailwatch.install(app, gc=arm, slo=config["slo"])
    if config.get("fast_sse"):
        accelerate_frames()
    listening = listen(0)
    server = make_server(app)
    threading.Thread(target=_obey, args=(parent, server, listening, objects, arm, batch), daemon=True).start()
    server.run(sockets=[listening])


def build(seed: int, objects: int, batch: int = MAX_BATCH) -> tuple[FastAPI, int]:
    """The app with its heap, and how many objects the collector then tracks. batch: requests that decode together."""
    engine = Engine(LanguageModel(seed), heap.build(seed, objects), batch)
    app = build_app(engine)
    return app, len(gc.get_objects())


def accelerate_frames() -> None:
    """Have the frames of the streams written from templates, for as long as this process lives."""
    from tailwatch.demo.protocol import ChatChunk, Completion
    from tailwatch.sse import accelerate

    for frame in (Completion, ChatChunk):
        accelerate(frame)


def listen(port: int) -> socket.socket:
    """A socket on loopback; port 0: the kernel chooses."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(BACKLOG)  # at once: a client that connects during start-up waits, and is not refused
    return listening


def make_server(app: FastAPI) -> uvicorn.Server:
    """uvicorn as servers run it: no access log, connections kept."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return uvicorn.Server(config)


def _obey(
    parent: ParentPipe, server: uvicorn.Server, listening: socket.socket, objects: int, arm: str | None, batch: int
) -> None:
    """Thread: ready, then `mark` at the start of the window and `finish` at its end, then out."""
    try:
        while not server.started:
            if server.should_exit:
                return
            time.sleep(0.02)
        parent.send({"port": listening.getsockname()[1], "objects": objects, "batch": batch})
        mark: MeasuredWindow | None = None
        while (command := parent.receive()) is not None:
            if command["do"] == "mark":
                if arm is not None:
                    _settle()
                mark = MeasuredWindow(arm)
                parent.send({"marked": True})
            elif command["do"] == "plant":
                planted = Planting(server.servers[0].get_loop(), command["plants"], command["rounds"])
                planted.start()
                parent.send({"planting": True})
            elif command["do"] == "planted":
                planted.join()
                parent.send({"plants": planted.found})
            elif mark is not None:
                parent.send(mark.finish())
    finally:
        server.should_exit = True


def _settle() -> None:
    """Wait out the policy's second freeze: it comes when the warm-up has drained, and belongs before the window."""
    import tailwatch

    watch = tailwatch.current()
    until = time.monotonic() + SETTLE_SECONDS
    while (watch.gc.waiting or watch.core.in_flight) and time.monotonic() < until:
        time.sleep(0.05)


class MeasuredWindow:
    """The instant the window begins: collector's counts and tailwatch's snapshot, to be subtracted at its end."""

    def __init__(self, arm: str | None) -> None:
        self._arm = arm
        self._stats = gc.get_stats()
        self._cpu = time.process_time()
        self._snapshot = _snapshot() if arm is not None else None
        self._pauses = Pauses() if arm is not None else None

    def finish(self) -> Line:
        """What happened since."""
        stats = gc.get_stats()
        line: Line = {
            "arm": self._arm,
            "cpu_seconds": time.process_time() - self._cpu,
            "collections": [
                now["collections"] - then["collections"] for now, then in zip(stats, self._stats, strict=True)
            ],
            "collected": [now["collected"] - then["collected"] for now, then in zip(stats, self._stats, strict=True)],
        }
        if self._snapshot is not None:
            line["tailwatch"] = _numbers_of(_snapshot() - self._snapshot)
        if self._pauses is not None:
            line["pauses"] = self._pauses.finish()
        return line


class Pauses:
    """The pauses of this process one by one, from now on; collected in time, for only the last thousand are kept."""

    def __init__(self) -> None:
        import tailwatch
        from tailwatch.snapshots import Records

        self._records = Records(tailwatch.current().core.address)
        self._cursor = 0
        self._found: list[Line] = []
        self._over = threading.Event()
        self._read()
        self._found.clear()
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def finish(self) -> list[Line]:
        """Start on the monotonic clock and length, in seconds, and cause; those of SHORTEST and more."""
        self._over.set()
        self._thread.join()
        self._read()
        return self._found

    def _collect(self) -> None:
        while not self._over.wait(COLLECT_SECONDS):
            self._read()

    def _read(self) -> None:
        pauses, self._cursor, _ = self._records.pauses(self._cursor, before_ns=time.monotonic_ns())
        self._found += [
            {"start": pause.start_ns / 1e9, "seconds": pause.seconds, "cause": pause.cause}
            for pause in pauses
            if pause.seconds >= SHORTEST
        ]


def _snapshot() -> Any:
    import tailwatch

    return tailwatch.snapshot()


def _numbers_of(window: Any) -> Line:
    """The numbers the table needs, and the sentence; all of the snapshot beside them."""
    import tailwatch
    from tailwatch.diagnose import rules

    context = tailwatch.current().context()
    return {
        "itl_p99": window.itl.p(99),
        "itl_max": window.itl.max,
        "itl_without_gc_p99": window.itl_without_gc.p(99),
        "itl_without_gc_max": window.itl_without_gc.max,
        "ttft_p99": window.ttft.p(99),
        "paused": dict(window.paused),
        "delay": dict(window.delay),
        "overlap": dict(window.overlap),
        "longest": {str(key): pauses.max for key, pauses in window.gc.pauses.items() if pauses.count},
        "attainment": window.attainment,
        "headline": rules.headline(window, context),
        "snapshot": window.as_dict(),
        "context": context.as_dict(),
    }


def serve(port: int, seed: int, slo: str) -> None:
    """The frozen arm's server alone, in the foreground, until Ctrl-C."""
    import tailwatch

    app, objects = build(seed, OBJECTS)
    tailwatch.install(app, gc="freeze", slo=slo, page=True)
    listening = listen(port)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    print(f"{objects:,} tracked objects; serving on {address} (Ctrl-C ends it)")
    print(f"metrics: {address}/metrics")
    print(f"page:    {address}/tailwatch")
    body = '{"prompt": "the tail", "max_tokens": 32, "stream": true}'
    print(f"try:     curl -N {address}/v1/completions -H 'content-type: application/json' -d '{body}'", flush=True)
    make_server(app).run(sockets=[listening])
