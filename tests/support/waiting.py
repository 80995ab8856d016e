"""Waiting for a condition. No test waits for a time to pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 50  # below the limit of a test, so that the failure names the condition


def until(condition: Callable[[], T], what: str = "", seconds: float = DEADLINE_SECONDS) -> T:
    """The value of a condition, once it is true.

    what: what is waited for; the failure names it. AssertionError after ``seconds``, with the last value.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"after {seconds} s still {value!r}: {what or condition}"
        time.sleep(0.002)
    return value


async def until_async(condition: Callable[[], T], what: str = "", seconds: float = DEADLINE_SECONDS) -> T:
    """The same in an event loop, which goes on meanwhile."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"after {seconds} s still {value!r}: {what or condition}"
        await asyncio.sleep(0.002)
    return value
