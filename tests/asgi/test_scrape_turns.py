"""An answer of many parts does not keep the loop for itself, though a send into a roomy socket never waits."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import Any

from tailwatch.asgi.metrics_route import Scrape


class Answer:
    """A hundred parts."""

    headers: tuple[tuple[str, str], ...] = ()
    parts = tuple(b"%d" % i for i in range(100))


async def _silent_app(scope: Any, receive: Any, send: Any) -> None:
    pass


def test_other_callbacks_run_between_the_parts() -> None:
    """Between any few parts the loop turns, and every part is sent in order."""
    events: list[bytes | None] = []

    async def send(message: Any) -> None:
        if message.get("body"):
            events.append(message["body"])

    async def others() -> None:
        while True:
            events.append(None)
            await asyncio.sleep(0)

    async def scrape() -> None:
        other = asyncio.ensure_future(others())
        scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": []}
        served = Scrape(lambda accept, encoding: Answer(), "/metrics")
        await served.serve(_silent_app, scope, None, send, lambda: None)
        other.cancel()

    asyncio.run(scrape())
    runs = [len(list(run)) for part, run in groupby(events, lambda event: event is not None) if part]
    assert [event for event in events if event is not None] == list(Answer.parts)
    assert max(runs) <= 8
