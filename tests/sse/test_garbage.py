"""Encoding leaves nothing for the collector: no object that it tracks, no collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from tailwatch import sse

CALLS = 10**5


@pytest.fixture
def collections() -> Iterator[list[str]]:
    """What starts while the test runs, with thresholds as a process begins with."""
    started: list[str] = []
    was_enabled, thresholds = gc.isenabled(), gc.get_threshold()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            started.append(str(info["generation"]))

    gc.freeze()  # no collection goes through the test run's own heap
    gc.collect()
    gc.callbacks.append(note)
    gc.set_threshold(700, 10, 10)
    gc.enable()
    yield started
    gc.callbacks.remove(note)
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    if not was_enabled:
        gc.disable()


def streams() -> dict[str, Any]:
    response, message = sse.ResponseStream("resp_1", "m", 1), sse.MessageStream("msg_1", "m")
    response.item("msg_1"), message.block_start()
    learned = sse.Template.learn('data: {"text":"hole"}\n\n', "hole")
    return {
        "chat": sse.ChatStream("chatcmpl-1", "m", 1).content,
        "completion": sse.CompletionStream("cmpl-1", "m", 1, like="vllm").content,
        "response": response.content,
        "message": message.content,
        "template": learned.splice,
    }


@pytest.mark.parametrize("name", streams())
@pytest.mark.parametrize("text", [" token", '世界\n"'])
def test_no_garbage(collections: list[str], name: str, text: str) -> None:
    """A hundred thousand frames, all kept: not one is tracked, nothing else is, no collection begins."""
    content = streams()[name]
    frames = [b""] * CALLS
    gc.collect()
    collections.clear()
    before = gc.get_count()[0]
    for i in range(CALLS):
        frames[i] = content(text)
    after = gc.get_count()[0]
    assert collections == []
    assert after - before <= 1  # range's iterator
    assert not any(map(gc.is_tracked, frames))


class Chunk(BaseModel):
    text: str


def test_the_count_would_show_it(collections: list[str]) -> None:
    """The same loop with objects that are tracked does start collections."""
    frames: list[Any] = [None] * 2000
    collections.clear()
    for i in range(2000):
        frames[i] = Chunk(text="x")
    assert collections
