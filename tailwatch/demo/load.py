"""The client process: open loop over TCP, every latency from the planned start, stamps taken at the read."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from tailwatch.demo.pipe import Upward
from tailwatch.demo.schedule import Planned

if TYPE_CHECKING:
    from tailwatch.demo.pipe import Line

TICK = 0.01  # seconds between two looks at the loop's own lag
TELL = 0.5  # seconds between two progress lines
DRAIN = 15.0  # seconds given to what is in flight when the plan is over
WORDS = (
    "the",
    "tail",
    "of",
    "a",
    "token",
    "is",
    "late",
    "when",
    "heap",
    "old",
    "and",
    "queue",
    "long",
    "so",
    "look",
    "at",
)
LAST_CHUNK = b"\r\n0\r\n\r\n"  # ends the chunked body
_FIELDS = (b'"content":"', b'"text":"')


@dataclass(eq=False)
class Exchange:
    """One request and what came back; times are seconds on the monotonic clock."""

    planned: float
    tokens: int
    sent: float = 0.0
    first: float | None = None
    last: float = 0.0
    end: float | None = None
    gaps: list[float] = field(default_factory=list)
    error: str | None = None

    def token(self, now: float) -> None:
        """A message with content arrived."""
        if self.first is None:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last = now

    def as_line(self, start: float) -> Line:
        """For the pipe: seconds from the start of the plan."""
        return {
            "planned": round(self.planned - start, 6),
            "send_lag": round(self.sent - self.planned, 6),
            "ttft": None if self.first is None else round(self.first - self.planned, 6),
            "e2e": None if self.end is None else round(self.end - self.planned, 6),
            "gaps": [round(gap, 6) for gap in self.gaps],
            "wanted": self.tokens,
            "error": self.error,
        }


class Connection(asyncio.Protocol):
    """One keep-alive HTTP/1.1 connection; parses no more than it needs."""

    def __init__(self, idle: list[Connection]) -> None:
        self._idle = idle
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._done: Callable[[Exchange], None] | None = None
        self._rest = b""
        self._headed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def begin(self, exchange: Exchange, request: bytes, done: Callable[[Exchange], None]) -> None:
        """Send a request; `done` is called when its answer is complete or lost."""
        assert self._transport is not None
        self._exchange, self._done, self._rest, self._headed = exchange, done, b"", False
        exchange.sent = time.monotonic()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        exchange = self._exchange
        if exchange is None:
            return
        if not self._headed and not self._head(data, exchange):
            return
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            if has_content(frame):
                exchange.token(now)
        if self._rest.endswith(LAST_CHUNK):
            self._finish(now)

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)
        if self._exchange is not None:
            self._fail("connection lost")

    def close(self) -> None:
        """Drop the connection, and what it waits for."""
        if self._transport is not None:
            self._transport.abort()

    def _head(self, data: bytes, exchange: Exchange) -> bool:
        """The status decides; an answer that is not a 200 ends the exchange and the connection."""
        self._headed = True
        if data.startswith(b"HTTP/1.1 200"):
            return True
        self._fail(data[9:12].decode("ascii", "replace"))
        self.close()
        return False

    def _finish(self, now: float) -> None:
        exchange = self._exchange
        assert exchange is not None
        exchange.end = now
        self._idle.append(self)
        self._hand_over()

    def _fail(self, error: str) -> None:
        assert self._exchange is not None
        self._exchange.error = error
        self._hand_over()

    def _hand_over(self) -> None:
        exchange, done = self._exchange, self._done
        self._exchange = self._done = None
        if exchange is not None and done is not None:
            done(exchange)


def has_content(frame: bytes) -> bool:
    """Whether an SSE frame carries generated text: not a role, not [DONE], not an empty delta."""
    for name in _FIELDS:
        at = frame.find(name)
        if at >= 0:
            return frame[at + len(name) : at + len(name) + 1] != b'"'
    return False


class Client:
    """Sends planned requests to one server and keeps what came back."""

    def __init__(self, port: int, tell: Callable[[Line], None]) -> None:
        self.patience = DRAIN
        self._port = port
        self._tell = tell
        self._idle: list[Connection] = []
        self._all: list[Connection] = []
        self._in_flight: set[Exchange] = set()
        self._finished: list[Exchange] = []
        self._changed = asyncio.Event()
        self._lag = 0.0
        self._start = 0.0
        self._cpu = time.process_time()

    async def run_open(self, planned: list[Planned], seconds: float) -> Line:
        """Send each request at its time, whatever the server does; then let the last ones finish."""
        requests = [_bytes_of(request) for request in planned]
        watch = asyncio.create_task(self._watch())
        self._start = time.monotonic() + 0.2
        for request, data in zip(planned, requests, strict=True):
            due = self._start + request.at
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            self._launch(Exchange(due, request.tokens), data, self._note)
        await self._drain(until=max(self._start + seconds, time.monotonic()) + self.patience)
        watch.cancel()
        return self._result()

    async def run_closed(self, planned: list[Planned], concurrency: int, seconds: float | None) -> Line:
        """Keep `concurrency` requests in flight until the plan, or the time, is over."""
        self._start = time.monotonic()
        until = self._start + (seconds if seconds is not None else 600.0)
        supply = iter(planned)
        watch = asyncio.create_task(self._watch())
        await asyncio.gather(*(self._worker(supply, until) for _ in range(concurrency)))
        watch.cancel()
        return self._result() | {"elapsed": time.monotonic() - self._start}

    async def _worker(self, supply: Iterator[Planned], until: float) -> None:
        for request in supply:
            if time.monotonic() >= until:
                return
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            exchange = Exchange(time.monotonic(), request.tokens)

            def done(exchange: Exchange, over: asyncio.Future[None] = over) -> None:
                self._note(exchange)
                if not over.done():
                    over.set_result(None)

            self._launch(exchange, _bytes_of(request), done)
            await over

    def _launch(self, exchange: Exchange, data: bytes, done: Callable[[Exchange], None]) -> None:
        self._in_flight.add(exchange)
        if self._idle:
            self._idle.pop().begin(exchange, data, done)
        else:
            task = asyncio.ensure_future(self._connect(exchange, data, done))
            task.add_done_callback(lambda task: task.exception())

    async def _connect(self, exchange: Exchange, data: bytes, done: Callable[[Exchange], None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: Connection(self._idle), "127.0.0.1", self._port)
        except OSError as error:
            exchange.sent = time.monotonic()
            exchange.error = type(error).__name__
            done(exchange)
            return
        self._all.append(connection)
        connection.begin(exchange, data, done)

    def _note(self, exchange: Exchange) -> None:
        self._in_flight.discard(exchange)
        self._finished.append(exchange)
        self._changed.set()

    async def _drain(self, until: float) -> None:
        while self._in_flight and (left := until - time.monotonic()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except asyncio.TimeoutError:
                break

    async def _watch(self) -> None:
        """Our own lag: by how much a timer of TICK seconds came late; and a progress line now and then."""
        told = time.monotonic()
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK)
            now = time.monotonic()
            self._lag = max(self._lag, now - before - TICK)
            if now - told >= TELL:
                told = now
                self._tell({"progress": now - self._start, "done": len(self._finished), "flying": len(self._in_flight)})

    def _result(self) -> Line:
        unfinished = list(self._in_flight)
        for exchange in unfinished:
            exchange.error = "unfinished"
        for connection in self._all:
            connection.close()
        exchanges = sorted(self._finished + unfinished, key=lambda exchange: exchange.planned)
        return {
            "start": self._start,
            "exchanges": [exchange.as_line(self._start) for exchange in exchanges],
            "loop_lag_max": self._lag,
            "connections": len(self._all),
            "cpu_seconds": time.process_time() - self._cpu,
        }


def _bytes_of(request: Planned) -> bytes:
    rng = random.Random(request.seed)
    shared = random.Random(request.system)
    system = " ".join(shared.choices(WORDS, k=60))
    words = " ".join(rng.choices(WORDS, k=request.words))
    body: dict[str, object] = {"model": "demo", "max_tokens": request.tokens, "stream": True}
    if request.chat:
        body["messages"] = [{"role": "system", "content": system}, {"role": "user", "content": words}]
    else:
        body["prompt"] = f"{system} {words}"
    data = json.dumps(body).encode()
    path = "/v1/chat/completions" if request.chat else "/v1/completions"
    head = ("host: demo", "content-type: application/json", f"content-length: {len(data)}", "", "")
    return f"POST {path} HTTP/1.1\r\n".encode() + "\r\n".join(head).encode() + data


def main() -> None:
    """Run the jobs that come over the pipe, one after the other. Our own collector is off: its pauses are ours."""
    upward = Upward()
    while (job := upward.receive()) is not None:
        planned = [Planned(**request) for request in job["plan"]]
        gc.collect()
        gc.freeze()
        gc.disable()
        upward.send({"result": asyncio.run(_run(job, planned, upward.send))})


async def _run(job: Line, planned: list[Planned], tell: Callable[[Line], None]) -> Line:
    client = Client(job["port"], tell)
    if "concurrency" in job:
        return await client.run_closed(planned, job["concurrency"], job.get("seconds"))
    return await client.run_open(planned, job["seconds"])
