"""When an event loop waits: the selector of asyncio's, the handles of uvloop's, lent to the sweep."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tailwatch import _hot


@dataclass(frozen=True, slots=True)
class Moments:
    """One loop's. ``give_back()`` returns what could not be undone, a sentence, or None."""

    loop: weakref.ref[Any]
    give_back: Callable[[], str | None]


def moments_of(loop: Any, sweep: _hot.Sweep) -> Moments:
    """Lend the waiting of a loop that runs in this thread.

    Raises:
        LookupError: it is of a kind that gives none.
    """
    selector = getattr(loop, "_selector", None)
    if type(getattr(selector, "_selector", None)).__name__ == "epoll":
        return Moments(weakref.ref(loop), _use_selector(selector, sweep))
    uvloop = sys.modules.get("uvloop.loop")
    if uvloop is not None and isinstance(loop, uvloop.Loop):
        return _use_uv(loop, uvloop, sweep)
    raise LookupError(f"{type(loop).__module__}.{type(loop).__qualname__} gives no moments while it waits")


def _use_selector(selector: Any, sweep: _hot.Sweep) -> Callable[[], str | None]:
    ours = sweep.poll(selector._selector)
    selector._selector = ours
    known = weakref.ref(selector)

    def give_back() -> str | None:
        found = known()
        if found is not None and getattr(found, "_selector", None) is ours:
            found._selector = ours.epoll
        return None

    return give_back


def _use_uv(loop: Any, uvloop: Any, sweep: _hot.Sweep) -> Moments:
    """libuv's handles must be gone before the loop is closed: its close() does that first."""
    pointer = getattr(uvloop, "libuv_get_loop_t_ptr", None)
    if pointer is None:
        raise LookupError("this uvloop does not show its libuv loop")
    handles = sweep.uv(uvloop.__file__, pointer(loop))
    known, thread = weakref.ref(loop), threading.get_ident()

    def close() -> None:
        handles.close()
        found = known()
        if found is not None:
            _forget_close(found)
            found.close()

    def give_back() -> str | None:
        found = known()
        if found is None or found.is_closed():
            return None
        if thread != threading.get_ident() and found.is_running():
            with suppress(RuntimeError):  # closed meanwhile
                found.call_soon_threadsafe(handles.close)
        else:
            handles.close()
        return None

    loop.close = close
    return Moments(known, give_back)


def _forget_close(loop: Any) -> None:
    with suppress(AttributeError):
        del loop.close


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread, if one does."""
    return asyncio._get_running_loop()
