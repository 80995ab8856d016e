"""The two servers of long_run.py: the demo's app and engine under uvicorn, alone or with everything of tailwatch on.

    long_run_server.py without|with DIRECTORY LOG LOOP     DIRECTORY: of the group; LOG: a file for tailwatch's lines

The first line of output is the port. Beside the demo's paths there are POST /plant/NAME (a stall, a burst of garbage)
and GET /counts: what the server itself has counted, and with tailwatch what tailwatch has.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import socket
import sys
import threading
import time
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException

import tailwatch
from tailwatch._cold import ffi, lib
from tailwatch.demo import heap, plants
from tailwatch.demo.app import build_app
from tailwatch.demo.cache import PrefixCache
from tailwatch.demo.engine import Engine, GenerationRequest, Output
from tailwatch.demo.model import LanguageModel
from tailwatch.snapshots import Records
from tailwatch.tracing.ring_files import files_of

OBJECTS = 100_000
CACHED_BLOCKS = 512  # so few that the cache is full, and its size steady, within the first minutes
SEND_BUFFER = 16_384  # bytes: sends wait for a client that reads slowly
SLO = "ttft<=500ms,tpot<=40ms,itl<=100ms@99%"
SLOW_GAP_MS = 30.0
SLOW_GAPS_EVERY = 2.0  # seconds
TRACE_EVENTS = 131_072
WHOLE_TOKENS = 5  # of an answer in one JSON document: fewer than any stream asks for
REFUSED = {1021: 429, 1022: 503}  # max_tokens -> status
RAISES = 1020  # max_tokens of a request whose handler raises
TRIES = 100
LONG_STALL = plants.LENGTH / 2  # seconds
GARBAGE = 40_000  # reference cycles of a burst
BURST = "garbage"
PLANTS = ("sleep", "python", "regex", "gil", "pipe", "lock", "collect", BURST)


class CountedQueue(asyncio.Queue[Output]):
    """The outputs of one request, counted as its handler takes them."""

    def __init__(self, counts: dict[str, int], kind: str) -> None:
        super().__init__()
        self._counts, self._kind, self._first = counts, kind, True

    async def get(self) -> Output:
        """As the queue does it."""
        output = await super().get()
        self._counts[f"{self._kind}_tokens"] += 1
        if self._first:
            self._first = False
            self._counts[f"{self._kind}_begun"] += 1
        return output


class CountedEngine(Engine):
    """The demo's engine: what its handlers took is counted, and each step is one of tailwatch's where that is on."""

    def __init__(self, *, watched: bool) -> None:
        model = LanguageModel(1)
        super().__init__(model, heap.build(1, OBJECTS))
        self._cache = PrefixCache(model.blank(1)[0], CACHED_BLOCKS)
        self._watched = watched
        self.counts = dict.fromkeys(("asked", "steps", *(f"{kind}_{what}" for kind in ("stream", "whole")
                                                         for what in ("tokens", "begun"))), 0)  # fmt: skip

    def submit(self, prompt: str, max_tokens: int) -> GenerationRequest:
        """As the demo's, or a failure where one is asked for."""
        self.counts["asked"] += 1
        if max_tokens in REFUSED:
            raise HTTPException(REFUSED[max_tokens])
        if max_tokens == RAISES:
            raise RuntimeError("asked for")
        request = super().submit(prompt, max_tokens)
        # No output is there yet: the engine hands them over by the loop that runs this.
        request.outputs = CountedQueue(self.counts, "whole" if max_tokens == WHOLE_TOKENS else "stream")
        return request

    def _step(self) -> None:
        self.counts["steps"] += 1
        if not self._watched:
            return super()._step()
        with tailwatch.step("decode", batch=len(self._batch)) as step:
            super()._step()
            step.waiting = len(self._batch) + len(self._waiting)
        return None


def burst() -> None:
    """Garbage that only the collector frees."""
    for _ in range(GARBAGE):
        cycle: list[Any] = []
        cycle.append(cycle)


class Planted:
    """Seconds planted, by name; by the plants' own logs."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PLANTS, 0.0)
        self.times = dict.fromkeys(PLANTS, 0)

    def plant(self, name: str) -> None:
        """Soon; on the loop."""
        if name == BURST:
            asyncio.get_running_loop().call_soon(self._burst)
        else:
            plants.start(asyncio.get_running_loop(), name)

    def read(self) -> None:
        """Takes over what the plants' log has."""
        while plants.log:
            name, began, ended = plants.log.pop()
            self.seconds[name] += (ended - began) / 1e9
            self.times[name] += 1

    def _burst(self) -> None:
        began = time.monotonic()
        burst()
        self.seconds[BURST] += time.monotonic() - began
        self.times[BURST] += 1


class Mallinfo(ctypes.Structure):
    """struct mallinfo2 of glibc."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())


def heap_sizes() -> dict[str, int]:
    """Of Python's allocator, how many blocks; of glibc's, bytes in use and free: where memory has gone if it grows."""
    read = getattr(ctypes.CDLL(None), "mallinfo2", None)
    found = {"python_blocks": sys.getallocatedblocks()}
    if read is None:
        return found
    read.restype = Mallinfo
    info = read()
    return found | {"malloc_used": info.uordblks + info.hblkhd, "malloc_free": info.fordblks}


class Watched:
    """What tailwatch has counted in this process, in a form that can be compared with other counts."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._watch = tailwatch.current()
        self._records = Records(self._watch.core.address)
        self._cursor = self.slow = self.slow_lost = 0
        self._reads = False

    def read_slow_gaps(self) -> None:
        """Again and again: only the last 256 are kept."""
        gaps, self._cursor, lost = self._records.slow_gaps(self._cursor)
        self.slow += sum(gap.gap >= SLOW_GAP_MS / 1e3 for gap in gaps)
        self.slow_lost += lost
        asyncio.get_running_loop().call_later(SLOW_GAPS_EVERY, self.read_slow_gaps)

    def read(self) -> dict[str, Any]:
        """Everything; the loop does nothing else meanwhile."""
        if not self._reads:
            self._reads = True
            self.read_slow_gaps()
        now = tailwatch.snapshot()
        rings = files_of(self._directory)
        otel = self._watch.otel
        return {
            "opened": now.opened,
            "requests": now.requests,
            "in_flight": now.in_flight,
            "tokens": now.tokens,
            "samples": {name: getattr(now, name).count for name in ("ttft", "itl", "itl_without_gc", "tpot", "e2e")},
            "abandoned": now.abandoned_wait.count,
            "sends_waited": now.send_wait.count,
            "steps": sum(step.steps.time.count for step in now.steps),
            "collections": now.gc.collections,
            "policy": now.processes[0].policy.collections,
            "pauses": self._pauses(),
            "stalls": {
                cause: [each.count, each.sum, round(each.count * (1 - (each.below(LONG_STALL) or 0.0)))]
                for cause, each in now.stalls.items()
            },
            "paused": now.paused,
            "slow": {"recorded": self._cursor, "long": self.slow, "unread": self.slow_lost},
            "trace": {"held": sum(each.events for each in rings), "overwritten": sum(each.lost for each in rings)},
            "host": self._watch.core.host_status(),
            "spans": [otel.spans.made, otel.spans.dropped, otel.spans.events_dropped] if otel else [0, 0, 0],
            "drops": now.drops,
            "errors": now.errors,
            "label_overflow": now.label_overflow,
            "memory_bytes": self._watch.memory_bytes,
            "gc": tailwatch.gc_status().kind,
        }

    def _pauses(self) -> dict[str, int]:
        """recorded, kept, overwritten, short, without_end: how many; rest_ns: of all causes, how far the sum of the
        pauses is from that of the ring's, the overwritten and the short ones."""
        segment = ffi.cast("const tw_segment *", self._watch.core.address)
        clock, record = ffi.addressof(segment, "pause"), ffi.new("tw_pause_record *")
        for _ in range(TRIES):  # of which none may make an object that the collector tracks
            head, kept, summed = clock.head, 0, 0
            for number in range(max(0, head - lib.TW_PAUSE_RING), head):
                if lib.tw_pause_read(clock, number, record):
                    kept += 1
                    summed += record.stop_ns - record.start_ns
            count = paused = short = evicted = 0
            for cause in range(lib.TW_CAUSES):
                totals = clock.totals[cause]
                count += totals.count
                short += totals.short_count
                evicted += totals.evicted_count
                summed += totals.short_ns + totals.evicted_ns
                paused += clock.word[cause]
            if clock.head == head and kept == min(head, lib.TW_PAUSE_RING):
                break
        return {
            "recorded": head,
            "kept": kept,
            "overwritten": evicted,
            "short": short,
            "count": count,
            "without_end": clock.lost,
            "rest_ns": paused - summed,
        }


def add_paths(app: FastAPI, engine: CountedEngine, watched: list[Watched]) -> None:
    """What long_run.py asks for."""
    planted = Planted()

    @app.post("/plant/{name}")
    async def plant(name: str) -> dict[str, str]:
        planted.plant(name)
        return {}

    @app.get("/counts")
    async def counts() -> dict[str, Any]:
        planted.read()
        return {
            "own": dict(engine.counts),
            "planted": {"seconds": planted.seconds, "times": planted.times},
            "collections": [each["collections"] for each in gc.get_stats()],
            "cpu": time.process_time(),
            "heap": heap_sizes(),
            "threads": sorted(each.name for each in threading.enumerate()),
            "tailwatch": watched[0].read() if watched else None,
        }


def install(app: FastAPI, directory: str, log: str) -> None:
    """Everything on."""
    handler = logging.FileHandler(log)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("tailwatch")
    logger.addHandler(handler)
    logger.propagate = False
    tailwatch.install(
        app,
        dir=directory,
        slo=SLO,
        gc="auto",
        gc_log_all=True,
        slow_gap_ms=SLOW_GAP_MS,
        page=True,
        trace_events=TRACE_EVENTS,
        trace_on="gap>60ms,slo",
        trace_keep="5,20MB",
        trust_request_start=True,
        orca=True,
        server_timing=True,
        sse_timing=True,
        otel=True,
    )


def main(arm: str, directory: str, log: str, loop: str) -> None:
    """Serves until it is ended."""
    engine = CountedEngine(watched=arm == "with")
    app = build_app(engine)
    watched: list[Watched] = []
    add_paths(app, engine, watched)
    if arm == "with":
        install(app, directory, log)
        watched.append(Watched(directory))
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # a line for each write to a client that has left
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    listener.bind(("127.0.0.1", 0))
    listener.listen(256)
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    config = uvicorn.Config(app, loop=loop, log_level="critical", access_log=False, timeout_keep_alive=600)
    uvicorn.Server(config).run(sockets=[listener])


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
