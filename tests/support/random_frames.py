"""What the property tests of the encoders share: random frames, compared whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import pytest

MARK, NUMBER = "the text", 987654321
BATCH = 1000


def random_text(rng: random.Random) -> str:
    """Mostly short, mostly of one script, from anywhere in Unicode."""
    low, high = rng.choice([(0, 0x80), (0, 0x20), (0, 0x800), (0x20, 0x7F), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF)])
    if rng.random() < 0.1:
        low, high = 0, 0x110000
    codes = (rng.randrange(low, high) for _ in range(int(rng.expovariate(0.1))))
    return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


def around(frame: bytes, text: bytes) -> tuple[bytes, bytes, bytes]:
    """What stands before the text, between it and the frame's number, and after that; the number is optional."""
    head, found, rest = frame.partition(text)
    assert found and text not in rest
    before, number, after = rest.partition(b"%d" % NUMBER)
    return head, before, after if number else b""


def check_batch(
    rng: random.Random,
    content: Callable[[str], bytes],
    original: Callable[[str, int], bytes],
    dumps: Callable[[str], bytes],
    numbers: Iterator[int] | None,
) -> None:
    """Each frame is what the serialiser gives for the text between the class's own bytes; the last one is dumped by the
    class as a whole."""
    head, before, after = around(original(MARK, NUMBER), dumps(MARK))
    texts = [random_text(rng) for _ in range(BATCH)]
    frames = [content(text) for text in texts]
    number = -1
    for text, frame, number in zip(texts, frames, numbers or repeat(-1), strict=False):
        assert frame == head + dumps(text) + before + (b"%d" % number if numbers else b"") + after
    assert frames[-1] == original(texts[-1], number)


@pytest.fixture(params=[10**4, pytest.param(10**6, marks=pytest.mark.slow)], ids=["ten thousand", "a million"])
def random_frames(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Called with ways to make a frame, (content, original, dumps) each, and where frames are numbered an iterator of
    the numbers: original(text, number) is the frame by the server's classes, dumps their serialiser's bytes of a text.
    """
    count: int = request.param
    seed = 20261120 if count == 10**4 else random.randrange(2**32)
    rng = random.Random(seed)

    def check(*ways: tuple[Any, ...]) -> None:
        print(f"seed {seed}")
        for batch in range(count // BATCH):
            content, original, dumps, numbers = (*ways[batch % len(ways)], None)[:4]
            check_batch(rng, content, original, dumps, numbers)

    return check
