"""What answers a scrape does off the loop, and in turns with what else the loop has to do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tailwatch.gc.idle_hooks import running_loop

PARTS_A_TURN = 8
_T = TypeVar("_T")


async def send_parts(send: Any, parts: Iterable[bytes]) -> int:
    """Sends a body and its end. Returns the number of parts."""
    number = 0
    for number, part in enumerate(parts, 1):
        await send({"type": "http.response.body", "body": part, "more_body": True})
        if number % PARTS_A_TURN == 0:
            await _next_turn()
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return number


async def _next_turn() -> None:
    """Lets the loop do what else is due: a send that finds room in the socket's buffer returns without."""
    if running_loop() is None:
        await sys.modules["trio"].lowlevel.checkpoint()
    else:
        await sys.modules["asyncio"].sleep(0)


async def in_thread(work: Callable[..., _T], *arguments: Any) -> _T:
    """work(*arguments), on a worker thread of the loop's."""
    if running_loop() is None:  # hypercorn may run on trio
        return await sys.modules["trio"].to_thread.run_sync(work, *arguments)  # type: ignore[no-any-return]
    return await sys.modules["asyncio"].to_thread(work, *arguments)  # type: ignore[no-any-return]


async def in_time(work: Callable[[], _T], seconds: float) -> _T | None:
    """The same; None where it takes longer. It goes on then, and its result is dropped."""
    if running_loop() is None:
        trio = sys.modules["trio"]
        with trio.move_on_after(seconds):
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True)  # type: ignore[no-any-return]
        return None
    asyncio = sys.modules["asyncio"]
    try:
        return await asyncio.wait_for(asyncio.to_thread(work), seconds)  # type: ignore[no-any-return]
    except asyncio.TimeoutError:
        return None
