"""Clients that stream over HTTP, each on a thread, and note when each token came."""

from __future__ import annotations

import http.client
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

TIMEOUT_SECONDS = 300


@dataclass
class Received:
    """What one client got: when each event with text came (monotonic ns), and how many tokens the server says it made
    (0: it does not say)."""

    request_id: str
    times: list[int] = field(default_factory=list)
    usage: int = 0
    error: str = ""

    @property
    def longest(self) -> int:
        """The longest gap between two of them, ns."""
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=0)


class Streams:
    """Requests in flight."""

    def __init__(self, port: int, name: str, count: int, payload: dict[str, Any]) -> None:
        self.received = [Received(f"{name}-{number}") for number in range(count)]
        self._threads = [
            threading.Thread(target=_stream, args=(port, payload, received), daemon=True) for received in self.received
        ]
        for thread in self._threads:
            thread.start()

    def wait_for_tokens(self, number: int, *, streams: int) -> None:
        """Until so many of them have received so many tokens."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while sum(len(each.times) >= number for each in self.received) < streams:
            if time.monotonic() > deadline or not any(thread.is_alive() for thread in self._threads):
                raise AssertionError(f"no tokens: {[each.error for each in self.received if each.error][:1]}")
            time.sleep(0.005)

    @property
    def running(self) -> int:
        """How many have not ended."""
        return sum(thread.is_alive() for thread in self._threads)

    def finish(self) -> list[Received]:
        """Wait for their ends."""
        for thread in self._threads:
            thread.join(TIMEOUT_SECONDS)
        failed = [each.error for each in self.received if each.error]
        if failed or self.running:
            raise AssertionError(f"{self.running} streams hang, {len(failed)} failed: {failed[:1]}")
        return self.received


def text_events(body: str) -> int:
    """Events of a piece of a stream that carry text."""
    return sum(_text_of(line) for line in body.splitlines())


def _text_of(line: str) -> bool:
    if not line.startswith("data: {"):
        return False
    choices = json.loads(line[6:]).get("choices") or [{}]
    return bool((choices[0].get("delta") or {}).get("content"))


def _stream(port: int, payload: dict[str, Any], received: Received) -> None:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
        headers = {"Content-Type": "application/json", "X-Request-Id": received.request_id}
        connection.request("POST", "/v1/chat/completions", json.dumps(payload), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise AssertionError(f"{answer.status} {answer.read(300)!r}")
        for line in answer:
            _take(line.decode(), received)
        connection.close()
    except Exception as error:
        received.error = repr(error)


def _take(line: str, received: Received) -> None:
    if _text_of(line):
        received.times.append(time.monotonic_ns())
    if '"usage":{' in line.replace(" ", ""):
        received.usage = json.loads(line[6:])["usage"]["completion_tokens"]
