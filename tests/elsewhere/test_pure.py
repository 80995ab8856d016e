"""The Python twins beside the compiled modules, on the same input."""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch import _hot
from tailwatch.loadtest.compiled_counts import CompiledCounts, layout_hash
from tailwatch.pure import client_response, histogram
from tailwatch.pure.client_response import ClientResponse
from tailwatch.pure.histogram import PureCounts
from tailwatch.pure.template import PureTemplate

FRAMES = sorted((Path(__file__).parents[1] / "frames").glob("*.txt"))
FRAMINGS = {"sse": 0, "lines": 1, "raw": 3, "whole": 4}
SSE, LINES, WHOLE = 0, 1, 4
COUNTED = slice(4, 7)  # of result(): messages, tokens, usage


def counted(response: Any, parts: list[bytes], framing: int, objects_only: bool = False) -> tuple[Any, ...]:
    """What a client sees of a body that comes in these parts, but for the times."""
    response.begin(0, 0, 0)
    response.framing(framing, objects_only)
    for part in parts:
        response.stamp()
        response.feed(part)
    response.finish()
    result = response.result()
    choices = tuple(tokens for _, _, tokens in result[15])
    return (*result[COUNTED], *result[12:15], choices, len(result[16]), response.head)


def cut(body: bytes, rng: random.Random) -> list[bytes]:
    """A body in parts, most of them short."""
    parts = []
    while body:
        n = rng.choice([1, 7, 40, 300, len(body)])
        parts.append(body[:n])
        body = body[n:]
    return parts


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_bodies_of_servers_are_read_alike(path: Path) -> None:
    """However they are cut."""
    body = path.read_bytes()
    word = path.with_suffix(".expect").read_text(encoding="utf-8").partition("framing ")[2].split()[0]
    framing = FRAMINGS.get(word, LINES)
    rng = random.Random(0)
    for parts in ([body], *(cut(body, rng) for _ in range(20))):
        assert counted(ClientResponse(), parts, framing) == counted(_hot.Answer(), parts, framing), parts


KEYS = (
    *("choices", "delta", "text", "index", "token_ids", "usage", "completion_tokens", "type", "error", "done", "x"),
    *("message", "response", "content", "role", "meta_info", "object", "thinking", "output_tokens", "eval_count"),
    *("output_ids", "model"),
)
VALUES = ("", "a", "error", "message_stop", "response.output_text.delta", "response.completed", 'q"\\')
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 2**40), st.sampled_from(VALUES), st.floats(-10, 10))
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)),
    max_leaves=12,
)


@given(document=DOCUMENTS, framing=st.sampled_from([SSE, LINES, WHOLE]), name=st.sampled_from(["", "ping", "error"]))
def test_any_document_is_read_alike(document: object, framing: int, name: str) -> None:
    """Nested anyhow, with the keys that mean something."""
    import orjson

    data = orjson.dumps(document)
    body = {SSE: (f"event: {name}\n".encode() if name else b"") + b"data: " + data + b"\n\n"}.get(framing, data + b"\n")
    for only in (False, True):
        assert counted(ClientResponse(), [body], framing, only) == counted(_hot.Answer(), [body], framing, only)


def test_deadlines_are_judged_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same messages at the same times: gaps, deadlines, idle time and stamps are equal. The compiled one reads its
    own clock; the twin is given what that read."""
    token = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
    compiled, pure = _hot.Answer(), ClientResponse()
    monkeypatch.setattr(client_response, "now", lambda: compiled.now_ns)
    planned = _hot.now()
    for each in (compiled, pure):
        each.begin(planned, 200_000, 20_000)
        each.framing(SSE, False)
    rng = random.Random(1)
    for _ in range(300):
        sum(range(rng.randrange(3000)))  # some time
        compiled.stamp()
        pure.stamp()
        body = token * rng.randrange(1, 4)
        compiled.feed(body)
        pure.feed(body)
    compiled.finish()
    pure.finish()
    assert pure.result() == compiled.result()
    assert compiled.result()[9] > compiled.result()[10] > 0 or compiled.result()[11] > 0


@given(
    literal=st.binary(max_size=20),
    texts=st.lists(st.text(max_size=30), min_size=1, max_size=3),
    number=st.integers(-(2**63), 2**63 - 1),
    ascii=st.booleans(),
)
def test_templates_write_alike(literal: bytes, texts: list[str], number: int, ascii: bool) -> None:
    """Any text and number; a lone surrogate is the same error."""
    holes = ((0, True), *((len(literal), False) for _ in texts))
    made = []
    for kind in (_hot.Template, PureTemplate):
        try:
            made.append(kind(literal, holes, ascii).fill(number, *texts))
        except UnicodeEncodeError as error:
            made.append(type(error))
    assert made[0] == made[1]


def test_the_layout_is_the_same() -> None:
    """Its hash is over all slots and bounds."""
    assert histogram.layout_hash() == layout_hash()


@pytest.mark.parametrize("layout", ["ttft", "e2e", "itl"])
def test_histograms_count_alike(layout: str) -> None:
    """Each slot, its edges and each quantile, on samples of all sizes and on the edges themselves."""
    pure, compiled, rng = PureCounts(layout), CompiledCounts(layout), random.Random(2)
    assert [pure.edges(slot) for slot in range(pure.room)] == [compiled.edges(slot) for slot in range(compiled.room)]
    edges = [upper + more for slot in range(0, pure.room - 1, 7) for upper in pure.edges(slot) for more in (0, 1)]
    samples = array("Q", [*edges, *(int(10 ** rng.uniform(0, 13)) for _ in range(2000)), 0, 2**62])
    for each in (pure, compiled):
        each.record_all(samples)
        each.record_gaps(array("Q", [5, 5, 2000, 1_000_000, 3]).tobytes())
    assert pure.read() == compiled.read()
    for share in (0.0, 0.001, 0.07, 0.25, 0.5, 0.9, 0.999, 1.0):
        assert pure.quantile(share) == compiled.quantile(share), share
    again = PureCounts(layout)
    again.write(*compiled.read())
    assert again.read() == pure.read()
