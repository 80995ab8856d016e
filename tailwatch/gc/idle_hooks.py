"""When an event loop waits: the selector of asyncio's, the handles of uvloop's, lent to the sweep."""

from __future__ import annotations

import asyncio
import selectors
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailwatch import _hot

_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Moments:
    """One loop's. ``give_back()`` returns what could not be undone, a sentence, or None. used: it gives any."""

    loop: weakref.ref[Any]
    give_back: Callable[[], str | None]
    used: bool = True


def moments_of(loop: Any, sweep: _hot.Sweep) -> Moments:
    """Lend the waiting of a loop that runs in this thread.

    Raises:
        LookupError: it is of a kind that gives none.
    """
    selector = getattr(loop, "_selector", None)
    if isinstance(selector, selectors.EpollSelector):
        return _use_selector(loop, selector, sweep)
    uvloop = sys.modules.get("uvloop.loop")
    if uvloop is not None and isinstance(loop, uvloop.Loop):
        return _use_uv(loop, uvloop, sweep)
    raise LookupError(f"{type(loop).__module__}.{type(loop).__qualname__} offers no hook for its idle time")


def wake(loop: Any) -> bool:
    """Have a loop that runs in another thread end its wait, and begin another. False: it does not run."""
    return call_in(loop, _nothing)


def call_in(loop: Any, call: Callable[[], object]) -> bool:
    """Have the thread of a loop call it soon. False: it does not run."""
    if loop is None or not loop.is_running():
        return False
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:  # closed meanwhile
        return False
    return True


def _nothing() -> None:
    pass


def _use_selector(loop: Any, selector: Any, sweep: _hot.Sweep) -> Moments:
    """Nothing here holds our select() but the selector, and a wait that goes on: that is ended."""
    try:
        selector.select = sweep.select(selector)
    except AttributeError as error:
        raise LookupError(f"the selector of {type(loop).__name__} has a select() that stays: {error}") from None
    ours = type(selector.select)
    known, known_loop = weakref.ref(selector), weakref.ref(loop)

    def give_back() -> str | None:
        found = known()
        if found is None:
            return None
        if type(found.select) is not ours:
            name = type(known_loop()).__name__
            return (
                f"the selector of {name} was wrapped by other code: our select() stays inside and only forwards calls"
            )
        found.select.give_back(found)
        if running_loop() is not (waiting := known_loop()):
            wake(waiting)
        return None

    return Moments(known_loop, give_back)


def _use_uv(loop: Any, uvloop: Any, sweep: _hot.Sweep) -> Moments:
    """libuv's handles must be gone before the loop is closed: its close() does that first, until they are."""
    pointer = getattr(uvloop, "libuv_get_loop_t_ptr", None)
    if pointer is None:
        raise LookupError("this version of uvloop does not expose its libuv loop")
    handles = sweep.uv(uvloop.__file__, pointer(loop))
    known = weakref.ref(loop)

    def undo() -> bool:
        handles.close()
        found = known()
        if found is None or vars(found).get("close") is not close:
            return False
        del found.close
        return True

    def close() -> None:
        found = known()
        undo()
        if found is not None:
            type(found).close(found)

    def give_back() -> str | None:
        found = known()
        if found is None or found.is_closed():
            return None
        if running_loop() is not found and call_in(found, undo):
            return None
        return None if undo() else "a uvloop loop's close() was wrapped after us: ours, inside, only passes on now"

    loop.close = close
    return Moments(known, give_back)


def loops_with_tasks() -> set[asyncio.AbstractEventLoop]:
    """The loops of all tasks of this process: a loop that runs has one at least."""
    names = ("_scheduled_tasks", "_all_tasks")  # since 3.12, before
    tasks: Any = next((found for name in names if (found := getattr(asyncio.tasks, name, None)) is not None), ())
    for _ in range(_ATTEMPTS):
        try:
            return {task.get_loop() for task in list(tasks)}
        except RuntimeError:  # another thread began or ended one meanwhile
            continue
    return set()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread, if one does."""
    return asyncio._get_running_loop()
