"""sse.event, sse.text, sse.comment: fields as a client reads them, and nothing that could forge another."""

from __future__ import annotations

from typing import Any

import httpx
import httpx_sse
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch import errors, sse

lines = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"))
texts = st.text() | st.text(st.sampled_from("\r\n: dataid\ufeff\0\u2028\x0b\x85é"))


def events_of(*frames: bytes) -> list[httpx_sse.ServerSentEvent]:
    """What a client makes of the frames."""
    headers = {"content-type": "text/event-stream"}
    return list(httpx_sse.EventSource(httpx.Response(200, headers=headers, content=b"".join(frames))).iter_sse())


def test_the_bytes() -> None:
    """event, id and retry come first, each on its line; then the data."""
    frame = sse.event({"a": [1, "é"]}, event="update", id="7", retry=1500)
    assert frame == 'event: update\nid: 7\nretry: 1500\ndata: {"a":[1,"é"]}\n\n'.encode()
    assert sse.event("a\nb") == b'data: "a\\nb"\n\n'
    assert sse.event(orjson.Fragment(b'{"x": 1}')) == b'data: {"x": 1}\n\n'
    assert sse.text("a\nb\r\nc\rd") == b"data: a\ndata: b\ndata: c\ndata: d\n\n"
    assert sse.text("") == b"data: \n\n"
    assert sse.comment("keep-alive") == b": keep-alive\n\n"
    assert sse.comment("two\nlines") == b": two\n: lines\n\n"
    assert sse.DONE == b"data: [DONE]\n\n"


@given(texts, lines.filter(bool), lines, st.integers(0, 2**31))
def test_a_client_reads_what_was_put_in(text: str, event: str, id: str, retry: int) -> None:
    """Whatever the text and names are, and beside whatever comment."""
    frame = sse.event({"text": text}, event=event, id=id, retry=retry)
    (found,) = events_of(sse.comment(text), frame)
    assert (found.json(), found.event, found.id, found.retry) == ({"text": text}, event, id, retry)
    (found,) = events_of(sse.text("x" + text, event=event))
    assert (found.data, found.event) == ("x" + text.replace("\r\n", "\n").replace("\r", "\n"), event)
    assert events_of(sse.comment(text)) == []


@given(lines, st.sampled_from(["\n", "\r", "\r\n", "\ndata: forged", "\r\n\r\ndata: forged\r\n\r\n"]), lines)
def test_a_name_cannot_forge_a_field(before: str, end: str, after: str) -> None:
    """A line end in an event's name or id is an error."""
    for field in ("event", "id"):
        fields: dict[str, Any] = {field: before + end + after}
        for make in (sse.event, sse.text):
            with pytest.raises(errors.OptionError, match=f"{field}=.*CR or LF"):
                make("x", **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": "a\0b"}, "id=.*NUL"),
        ({"id": 7}, "id=7: expected a str"),
        ({"event": ""}, "event=.*not empty"),
        ({"event": b"x"}, "event=b'x'"),
        ({"event": "\ud800"}, "event=.*surrogate"),
        ({"retry": -1}, "retry=-1"),
        ({"retry": True}, "retry=True"),
        ({"retry": 1.5}, r"retry=1\.5"),
        ({"retry": "1"}, "retry='1'"),
    ],
)
def test_fields_that_are_refused(fields: dict[str, Any], message: str) -> None:
    """Each names the field, what it takes, and what was found."""
    with pytest.raises(errors.OptionError, match=message):
        sse.event({}, **fields)
    with pytest.raises(errors.OptionError, match=message):
        sse.text("x", **fields)


@pytest.mark.parametrize("json", [b'{"a":\n1}\n\nevent: evil\n\n', b"1\r", b"\r\n1", b"1\n"])
def test_json_of_several_lines(json: bytes) -> None:
    """What orjson is given as JSON already may not end the data."""
    with pytest.raises(errors.OptionError, match=r"obj=.*expected JSON on one line"):
        sse.event({"x": orjson.Fragment(json)})
    assert sse.event(orjson.Fragment(b'{"a": "\\n"}')) == b'data: {"a": "\\n"}\n\n'


def test_data_that_is_refused() -> None:
    """orjson's own error for what has no JSON; text() and comment() take text only."""
    for bad in (object(), "\ud800", b"bytes"):
        with pytest.raises(orjson.JSONEncodeError):
            sse.event(bad)
    makers: list[Any] = [sse.text, sse.comment]
    for make in makers:
        with pytest.raises(errors.OptionError, match="surrogate"):
            make("\ud800")
        with pytest.raises(errors.OptionError, match="expected a str"):
            make(b"x")
