"""The event loop that a load client runs on: uvloop where it is there, for it costs half as much per read."""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, else asyncio's own. The caller runs and closes it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def loop_name(loop: asyncio.AbstractEventLoop) -> str:
    """ "uvloop" or "asyncio", for what a result says of its client."""
    return type(loop).__module__.partition(".")[0]
