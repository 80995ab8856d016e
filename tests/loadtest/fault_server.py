"""A server of token streams with faults to order, in a process of its own, which keeps its own stamps.

Run: python fault_server.py [--stall S --every S] [--slots N --service S]. Its first line of output is its port; it ends
with its standard input.
The query of a request sets how it is answered:

    tokens=8 gap=0.005 first=0.001     a stream: so many messages, seconds between them, and before the first
    many=4                             tokens in each message
    role=1                             a chunk with the role alone comes first, at once
    freeze=0.5                         so long a silence in the middle of the stream
    drip=1                             every byte of the body in a write of its own
    json=1                             one JSON document instead of a stream
    status=503                         that answer, and no stream; with echo=1 it repeats the whole request's head
    mark=0                             no end marker: the stream just ends
    raw=1                              no chunks: the end of the connection is the end of the answer
    close=1                            the connection is closed behind the whole answer, unannounced
    fault=hang|reset|truncate|garbage|endless|error|die
                                       no answer; lost before it; lost inside it; no HTTP; a stream without end; an
                                       error event; the whole process ends

--stall, --every: the loop itself stands still (time.sleep) for so long, every so many seconds, from the first request
on.
--slots: what finds one of so many slots free holds it for an exponential time of --service seconds on average, and is
answered then; what finds none is refused with 503, 0.3 s later (Erlang's loss system). The slots keep a time of their
own: a late timer takes nothing from the capacity.
GET /truth: {"id": [first write of content, last, largest gap], ...}, CLOCK_MONOTONIC ns by the last part of the header
x-request-id; and the stalls.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import os
import random
import sys
import threading
import time
from urllib.parse import parse_qsl, urlsplit

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
RAW = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
REFUSAL = 0.3  # seconds until what finds no slot is refused


class Server:
    """What all connections share."""

    def __init__(self, stall: float, every: float, slots: int, service: float) -> None:
        self.stall, self.every, self.service = stall, every, service
        self._free, self._random = [0.0] * slots, random.Random(1)
        self.truth: dict[str, list[int]] = {}
        self.stalls: list[list[int]] = []
        self.began = False

    def begin(self) -> None:
        """The first request is here: stalls count from now."""
        if not self.began and self.stall:
            asyncio.get_running_loop().call_later(self.every / 2, self._stand_still)
        self.began = True

    async def slot(self) -> bool:
        """Whether there is one; after the time that it is held."""
        now = asyncio.get_running_loop().time()
        if self._free and now < self._free[0]:
            await asyncio.sleep(REFUSAL)
            return False
        if self._free:
            held = self._random.expovariate(1 / self.service)
            heapq.heapreplace(self._free, now + held)
            await asyncio.sleep(held)
        return True

    def _stand_still(self) -> None:
        asyncio.get_running_loop().call_later(self.every, self._stand_still)
        start = time.monotonic_ns()
        time.sleep(self.stall)
        self.stalls.append([start, time.monotonic_ns()])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while (head := await reader.readuntil(b"\r\n\r\n")) and await self._answer(head, reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        lines = head.decode().split("\r\n")
        url = urlsplit(lines[0].split(" ")[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        await reader.readexactly(int(headers.get("content-length", 0)))
        if url.path == "/truth":
            return _whole(writer, 200, json.dumps({"requests": self.truth, "stalls": self.stalls}).encode())
        self.begin()
        how = dict(parse_qsl(url.query))
        answer = Answer(self, how, headers.get("x-request-id", "").rpartition("-")[2], writer)
        answer.head = f"{answer.name} \x1b[31m {lines[0]} {headers}"
        return await answer.give()


class Answer:
    """One answer, as ordered."""

    def __init__(self, server: Server, how: dict[str, str], name: str, writer: asyncio.StreamWriter) -> None:
        self.server, self.how, self.name, self.writer = server, how, name, writer
        self.fault, self.head = how.get("fault", ""), ""

    async def give(self) -> bool:
        """Whether the connection is kept."""
        how, writer = self.how, self.writer
        if not await self.server.slot():
            return _whole(writer, 503, b'{"error":{"message":"no slot is free"}}')
        await asyncio.sleep(float(how.get("first", 0.001)))
        if self.fault == "die":
            os._exit(1)
        if self.fault == "hang":
            await asyncio.sleep(3600)
        if self.fault == "reset":
            writer.transport.abort()
            return False
        if self.fault == "garbage":
            writer.write(b"\x00\xff what is this\r\n\r\n")
            return False
        if "status" in how:
            message = self.head if "echo" in how else "ordered so"
            return _whole(writer, int(how["status"]), json.dumps({"error": {"message": message}}).encode())
        if "json" in how:
            self._stamp()
            return _whole(writer, 200, b'{"choices":[{"text":"whole"}]}')
        await self._stream()
        if self.fault == "truncate" or "close" in how or "raw" in how:
            await writer.drain()
            return False
        return True

    async def _stream(self) -> None:
        how, gap = self.how, float(self.how.get("gap", 0.002))
        tokens = int(how.get("tokens", 8))
        self.writer.write(RAW if "raw" in how else HEAD)
        if "role" in how:
            await self._write(b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}')
            await asyncio.sleep(gap)
        i = 0
        while i < tokens or self.fault == "endless":
            if i:
                await asyncio.sleep(gap)
            if i == tokens // 2:
                await asyncio.sleep(float(how.get("freeze", 0)))
                if self.fault == "truncate":
                    return
                if self.fault == "error":
                    await self._write(b'{"error":{"message":"out of memory","code":500}}')
                    break
            text = "w " * int(how.get("many", 1))
            self._stamp()
            await self._write(json.dumps({"choices": [{"index": 0, "text": text}]}).encode())
            i += 1
        if self.fault != "error":
            usage = tokens * int(how.get("many", 1))
            await self._write(json.dumps({"choices": [], "usage": {"completion_tokens": usage}}).encode())
        if how.get("mark") != "0":
            await self._write(b"[DONE]")
        if "raw" not in how:
            self.writer.write(b"0\r\n\r\n")

    async def _write(self, event: bytes) -> None:
        data = b"data: " + event + b"\n\n"
        if "raw" in self.how:
            self.writer.write(data)
            return
        if "drip" not in self.how:
            self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            return
        for i in range(len(data)):
            self.writer.write(b"1\r\n" + data[i : i + 1] + b"\r\n")
            await asyncio.sleep(0)

    def _stamp(self) -> None:
        now = time.monotonic_ns()
        first = self.server.truth.setdefault(self.name, [now, now, 0])
        first[2] = max(first[2], now - first[1])
        first[1] = now


def _whole(writer: asyncio.StreamWriter, status: int, body: bytes) -> bool:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return True


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


async def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stall", type=float, default=0.0)
    parser.add_argument("--every", type=float, default=10.0)
    parser.add_argument("--slots", type=int, default=0)
    parser.add_argument("--service", type=float, default=0.02)
    parsed = parser.parse_args()
    server = Server(parsed.stall, parsed.every, parsed.slots, parsed.service)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=4096)
    print(listening.sockets[0].getsockname()[1], flush=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
