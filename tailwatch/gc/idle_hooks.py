"""When an event loop waits: the selector of asyncio's, the handles of uvloop's, used by the slicer and by its clock."""

from __future__ import annotations

import gc
import selectors
import sys
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tailwatch import _hot

if TYPE_CHECKING:
    import asyncio

_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class IdleSlots:
    """One loop's. ``restore()`` returns what could not be undone, a sentence, or None. why: it gives none;
    reported_to: the users that were given the reason."""

    loop: weakref.ref[Any]
    restore: Callable[[], str | None]
    why: str = ""
    reported_to: set[str] = field(default_factory=set)

    @property
    def used(self) -> bool:
        """Whether it gives any."""
        return not self.why


def idle_slots_of(loop: Any, slicer: _hot.Slicer) -> IdleSlots:
    """Use the waiting of a loop that runs in this thread.

    Raises:
        LookupError: it is of a kind that gives none.
    """
    selector = getattr(loop, "_selector", None)
    if isinstance(selector, selectors.EpollSelector):
        return _use_selector(loop, selector, slicer)
    uvloop = sys.modules.get("uvloop.loop")
    if uvloop is not None and isinstance(loop, uvloop.Loop):
        return _use_uv(loop, uvloop, slicer)
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


def _use_selector(loop: Any, selector: Any, slicer: _hot.Slicer) -> IdleSlots:
    """Nothing here holds our select() but the selector, and a wait that goes on: that is ended."""
    try:
        selector.select = slicer.select(selector, _calls_fd(loop))
    except AttributeError as error:
        raise LookupError(f"the selector of {type(loop).__name__} has a select() that stays: {error}") from None
    selector.select.time_handles(getattr(loop, "_ready", None))
    ours = type(selector.select)
    known, known_loop = weakref.ref(selector), weakref.ref(loop)

    def restore() -> str | None:
        found = known()
        if found is None:
            return None
        if type(found.select) is not ours:
            ours.untime_handles(getattr(known_loop(), "_ready", None))
            name = type(known_loop()).__name__
            return (
                f"the selector of {name} was wrapped by other code: our select() stays inside and only forwards calls"
            )
        found.select.restore(found)
        if running_loop() is not (waiting := known_loop()):
            wake(waiting)
        return None

    return IdleSlots(known_loop, restore)


def _calls_fd(loop: Any) -> int:
    """The descriptor by which a call from another thread ends the wait of an asyncio loop; -1: it is not found."""
    try:
        return int(loop._ssock.fileno())
    except (AttributeError, TypeError, ValueError):
        return -1


def _use_uv(loop: Any, uvloop: Any, slicer: _hot.Slicer) -> IdleSlots:
    """libuv's handles must be gone before the loop is closed: its close() does that first, until they are."""
    pointer = getattr(uvloop, "libuv_get_loop_t_ptr", None)
    if pointer is None:
        raise LookupError("this version of uvloop does not expose its libuv loop")
    handles = slicer.uv(uvloop.__file__, pointer(loop))
    handles.time_handles(_uv_queue(loop))
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

    def restore() -> str | None:
        found = known()
        if found is None or found.is_closed():
            return None
        if running_loop() is not found and call_in(found, undo):
            return None
        return None if undo() else "a uvloop loop's close() was wrapped after us: ours, inside, only passes on now"

    loop.close = close
    return IdleSlots(known, restore)


def _uv_queue(loop: Any) -> deque[Any] | None:
    """Where a loop of uvloop has the handles that are ready, an attribute for Cython only: one that is added to them
    shows it. None: it is not found."""
    added = loop.call_soon(_nothing)
    held = [each for each in gc.get_referents(loop) if type(each) is deque]
    return next((queue for queue in held if any(each is added for each in list(queue))), None)


class LoopHooks:
    """The hooks of one process's loops, one a loop, for those that use them: idle-time collection, the loops'
    clocks."""

    def __init__(self, slicer: _hot.Slicer) -> None:
        self._slicer = slicer
        self._idle_slots: list[IdleSlots] = []
        self._loops: weakref.WeakSet[Any] = weakref.WeakSet()  # seen, used or not
        self.users: set[str] = set()

    def use(self, user: str) -> str | None:
        """Hook the loop that runs in this thread, if one does. Why it cannot be, a sentence, once a loop and user."""
        loop = running_loop()
        self.users.add(user)
        if loop is None:
            return None
        known = next((each for each in self._idle_slots if each.loop() is loop), None) or self._hook(loop)
        if known.used or user in known.reported_to:
            return None
        known.reported_to.add(user)
        return known.why

    def _hook(self, loop: Any) -> IdleSlots:
        try:
            made = idle_slots_of(loop, self._slicer)
        except LookupError as error:
            made = IdleSlots(weakref.ref(loop), lambda: None, str(error))
        self._idle_slots = [*(each for each in self._idle_slots if each.loop() is not None), made]
        return made

    def remember(self) -> None:
        """Note the loop that runs in this thread: it is hooked once the hook is used."""
        if loop := running_loop():
            self._loops.add(loop)

    def find(self, use: Callable[[], object]) -> None:
        """Have the loops that serve no request call use(), each in its own thread."""
        used = {loop for each in self._idle_slots if (loop := each.loop()) is not None}
        for loop in {*self._loops, *loops_with_tasks()} - used:
            call_in(loop, use)

    def running(self) -> list[Any]:
        """Loops that run, and are hooked."""
        return [loop for each in self._idle_slots if each.used and (loop := each.loop()) and loop.is_running()]

    @property
    def any_used(self) -> bool:
        """Whether the waiting of a loop is used."""
        return any(each.used and each.loop() is not None for each in self._idle_slots)

    def call_soon(self, call: Callable[[], None]) -> bool:
        """Have the thread of a hooked loop call it; False: there is none that runs."""
        return any(call_in(each.loop(), call) for each in self._idle_slots if each.used)

    def release(self, user: str) -> list[str]:
        """One user less: after the last one all loops are as before. Returns what could not be undone, a sentence
        each."""
        self.users.discard(user)
        if self.users:
            return []
        report = [sentence for each in self._idle_slots if (sentence := each.restore())]
        self._idle_slots = []
        return report


def loops_with_tasks() -> set[asyncio.AbstractEventLoop]:
    """The loops of all tasks of this process: a loop that runs has one at least."""
    names = ("_scheduled_tasks", "_all_tasks")  # since 3.12, before
    asyncio_tasks = sys.modules.get("asyncio.tasks")
    tasks: Any = next((found for name in names if (found := getattr(asyncio_tasks, name, None)) is not None), ())
    for _ in range(_ATTEMPTS):
        try:
            return {task.get_loop() for task in list(tasks)}
        except RuntimeError:  # another thread began or ended one meanwhile
            continue
    return set()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread, if one does. asyncio is not imported for that: without it none runs."""
    events: Any = sys.modules.get("asyncio.events")
    return events._get_running_loop() if events is not None else None
