"""Clients that stream over HTTP, all on one thread that does little more than note when bytes came: they must not be
what is slow."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import socket
import threading
import time
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

TIMEOUT_SECONDS = 240
_REST, _GO_ON = b"r", b"g"
_EVENT = b'"content":'
_CHUNK_SIZE = re.compile(rb"\r\n[0-9a-fA-F]+\r\n")


@dataclass
class Received:
    """What one client got, as it came; read it when the stream has ended.

    Attributes:
        pieces: monotonic ns, and what arrived then.
        events: about how many tokens that is so far.
    """

    request_id: str
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    events: int = 0
    ended: bool = False
    broken: str = ""

    @cached_property
    def times(self) -> list[int]:
        """When each event with text came. One that came in two pieces came with the second."""
        times, rest = [], b""
        for at, piece in self.pieces:
            *lines, rest = (rest + piece).split(b"\n")
            times += [at] * sum(has_text(line.decode().strip()) for line in lines)
        return times

    @cached_property
    def body(self) -> str:
        """All that came, without what HTTP wrote between the pieces."""
        return _CHUNK_SIZE.sub(b"\n", b"".join(piece for _, piece in self.pieces)).decode()

    @property
    def text(self) -> str:
        """What its events carry, put together."""
        return "".join(text_of(line.strip()) for line in self.body.split("\n"))

    @cached_property
    def usage(self) -> int:
        """How many tokens the server reports it made; 0: it does not."""
        counts = re.findall(r'"completion_tokens": ?(\d+)', self.body)
        return int(counts[-1]) if counts else 0

    @property
    def longest(self) -> int:
        """The longest gap between two of them, ns."""
        return max((b - a for a, b in pairwise(self.times)), default=0)

    @property
    def failure(self) -> str:
        """What is wrong with the answer; "" where nothing is."""
        right = self.body.startswith("HTTP/1.1 200") and "data: " in self.body and self.ended and not self.broken
        return "" if right else f"{self.request_id}: {self.broken} {self.body[:300]!r}"


class Streams:
    """Requests in flight. narrow: the first one's connection holds little that is not read, on both sides."""

    def __init__(
        self, port: int, name: str, count: int, payload: dict[str, Any], engines: int, *, narrow: bool = False
    ) -> None:
        self.received = [Received(f"{ids_of(name)}{number:012x}") for number in range(count)]
        body = json.dumps(payload).encode()
        self._selector = selectors.DefaultSelector()
        self._orders, reader = socket.socketpair()
        self._selector.register(reader, selectors.EVENT_READ)
        connections = []
        for number, each in enumerate(self.received):
            more = f"X-data-parallel-rank: {number % engines}\r\n" if engines > 1 else ""
            is_narrow = narrow and number == 0
            more += "X-Narrow: 1\r\n" if is_narrow else ""  # for plant/
            connection = _connected(port, narrow=is_narrow)
            connections.append(connection)
            connection.sendall(_head(each.request_id, len(body), more) + body)
            self._selector.register(connection, selectors.EVENT_READ, each)
        self._first = connections[0]
        self._left = count
        self._first_ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait_for_tokens(self, number: int, *, streams: int) -> None:
        """Until so many of them have received so many tokens."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while sum(each.events >= number for each in self.received) < streams:
            if time.monotonic() > deadline or not self._thread.is_alive():
                failed = [each.failure for each in self.received if each.failure]
                raise AssertionError(f"no tokens: {[each.events for each in self.received]} {failed[:1]}")
            time.sleep(0.005)

    def stop_reading(self, seconds: float) -> dict[str, int]:
        """The first client, for so long; not at all where its stream has ended. Returns when, monotonic ns."""
        start = time.monotonic_ns()
        self._orders.send(_REST)
        self._first_ended.wait(seconds)
        self._orders.send(_GO_ON)
        return {"start": start, "stop": time.monotonic_ns()}

    def finish(self) -> list[Received]:
        """Wait for their ends."""
        self._thread.join(TIMEOUT_SECONDS)
        if failed := [each.failure for each in self.received if each.failure]:
            raise AssertionError(f"{len(failed)} of {len(self.received)} failed: {failed[0]}")
        return self.received

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # without the right it stays as it is
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 0)
        while self._left:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._obey(key.fileobj.recv(1))  # type: ignore[union-attr]
                else:
                    self._take(key)

    def _obey(self, order: bytes) -> None:
        if self._first_ended.is_set():
            return
        if order == _REST:
            self._selector.unregister(self._first)
        else:
            self._selector.register(self._first, selectors.EVENT_READ, self.received[0])

    def _take(self, key: selectors.SelectorKey) -> None:
        connection, each = key.fileobj, key.data
        try:
            piece = connection.recv(1 << 20)  # type: ignore[union-attr]
        except ConnectionError as error:
            piece, each.broken = b"", repr(error)
        each.pieces.append((time.monotonic_ns(), piece))
        each.events += piece.count(_EVENT)
        if not piece:
            each.ended = True
            self._left -= 1
            if each is self.received[0]:
                self._first_ended.set()
            self._selector.unregister(connection)
            connection.close()  # type: ignore[union-attr]


def _connected(port: int, *, narrow: bool) -> socket.socket:
    connection = socket.socket()
    if narrow:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    connection.connect(("127.0.0.1", port))
    return connection


def ids_of(name: str) -> str:
    """How the request ids of so named streams begin. Some servers take nothing but a UUID."""
    return f"{zlib.crc32(name.encode()):08x}-0000-4000-8000-"


def _head(request_id: str, length: int, more: str) -> bytes:
    lines = (
        *("POST /v1/chat/completions HTTP/1.1", "Host: 127.0.0.1", "Connection: close"),
        *("Content-Type: application/json", f"X-Request-Id: {request_id}", f"Content-Length: {length}"),
    )
    return ("".join(f"{line}\r\n" for line in lines) + more + "\r\n").encode()


def text_events(body: str) -> int:
    """Events of a piece of a stream that carry text."""
    return sum(has_text(line.strip()) for line in body.split("\n"))


def has_text(line: str) -> bool:
    """Whether a line of a stream carries text."""
    return bool(text_of(line))


def text_of(line: str) -> str:
    """What a line of a stream carries."""
    if not line.startswith("data: {"):
        return ""
    choices = json.loads(line[6:]).get("choices") or [{}]
    return (choices[0].get("delta") or {}).get("content") or ""
