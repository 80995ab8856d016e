"""How the code that a loop's handle runs is found in memory: an object of each type on the way, and the next one.

A handle has a callback: a function, a method of one, a partial of one, or what takes a task a step further, which has
its task, which has its coroutine. Where in an object of a type the next one stands is found by looking at a sample
(csrc/python/stall/handle_clock.c): what runs is known without a call, and types without a sample give no name.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from typing import Any

# An object, the next one on the way, whether the object is a task; of a handle: its context
Sample = tuple[object, object, bool] | tuple[object, object, bool, contextvars.Context]


class _Caught:
    """A loop for one task, whose first step it keeps."""

    step: object = None

    def get_debug(self) -> bool:
        """asyncio asks."""
        return False

    def is_running(self) -> bool:
        """It never is."""
        return False

    def call_soon(self, callback: Callable[..., object], *_args: object, **_context: object) -> None:
        """The task's first step."""
        self.step = callback

    def call_exception_handler(self, context: object) -> None:
        """Nothing is called."""


async def _coroutine() -> None:
    pass


class _Bound:
    def method(self) -> None:
        """Bound to its object."""


def samples(running: asyncio.AbstractEventLoop | None = None) -> list[Sample]:
    """One of each type, to be looked at while all of them live; running: of this thread, its handles too."""
    return [*_of_handles(), *_of_loop(running), *_of_tasks(), *_of_functions()]


def _of_handles() -> list[Sample]:
    loop: Any = _Caught()
    context = contextvars.copy_context()
    handle = asyncio.Handle(_nothing, (), loop, context)
    timer = asyncio.TimerHandle(0.0, _nothing, (), loop, context)
    return [(handle, _nothing, False, context), (timer, _nothing, False, context)]


def _of_loop(loop: asyncio.AbstractEventLoop | None) -> list[Sample]:
    if loop is None or isinstance(loop, asyncio.BaseEventLoop):
        return []
    context = contextvars.copy_context()
    return [(loop.call_soon(_nothing, context=context), _nothing, False, context)]


def _of_functions() -> list[Sample]:
    bound, partial = _Bound().method, functools.partial(_nothing)
    builtin: Any = [0].append  # as a task's wakeup: a function of C with its object
    return [
        (bound, _Bound.method, False),
        (_nothing, _nothing.__code__, False),
        (builtin, builtin.__self__, False),
        (partial, _nothing, False),
    ]


def _of_tasks() -> list[Sample]:
    loop: Any = _Caught()
    coroutine: Any = _coroutine()
    task: Any = asyncio.Task(coroutine, loop=loop)
    task._log_destroy_pending = False
    step = loop.step
    coroutine.close()
    return [(step, task, False), (task, coroutine, True), (coroutine, coroutine.cr_code, False)]


def _nothing() -> None:
    pass
