"""MessageStream: byte for byte what vLLM's Anthropic classes give, and the examples of Anthropic's API reference.

The classes are those of vLLM 0.33.0 (entrypoints/anthropic/protocol.py), field for field as far as streams use them;
each frame is built and dumped as its serving.py does it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError, to_json

from tailwatch import errors, sse

pytestmark = pytest.mark.property

texts = st.text() | st.text(st.sampled_from([*map(chr, range(0x21)), '"', "\\", "/", "\x7f", "\u2028", "é", "😀"]))
counts = st.integers(0, 2**40)


class AnthropicError(BaseModel):
    type: str
    message: str


class AnthropicUsage(BaseModel):
    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class AnthropicContentBlock(BaseModel):
    type: Literal["text", "tool_use", "thinking"]
    text: str | None = None
    source: dict[str, Any] | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None
    tool_name: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class AnthropicDelta(BaseModel):
    type: Literal["text_delta", "input_json_delta", "thinking_delta", "signature_delta"] | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None = None
    stop_sequence: str | None = None


class AnthropicMessagesResponse(BaseModel):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    content: list[AnthropicContentBlock]
    model: str
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: AnthropicUsage | None = None


class AnthropicStreamEvent(BaseModel):
    type: str
    message: AnthropicMessagesResponse | None = None
    delta: AnthropicDelta | None = None
    content_block: AnthropicContentBlock | None = None
    index: int | None = None
    error: AnthropicError | None = None
    usage: AnthropicUsage | None = None


def event(type: str, **fields: Any) -> bytes:
    """As message_stream_converter writes it."""
    data = AnthropicStreamEvent(type=type, **fields).model_dump_json(exclude_unset=True)
    return f"event: {type}\ndata: {data}\n\n".encode()


def usage(**given: int | None) -> AnthropicUsage:
    return AnthropicUsage(**{name: count for name, count in given.items() if count is not None})


@given(texts, texts, texts, counts, counts, st.none() | counts, st.none() | counts)
def test_like_vllm(id: str, model: str, text: str, into: int, out: int, read: int | None, made: int | None) -> None:
    """A message from its start to its stop, with a block of each kind."""
    stream = sse.MessageStream(id or "msg_1", model, like="vllm")
    start = AnthropicMessagesResponse(
        id=id or "msg_1",
        type="message",
        role="assistant",
        content=[],
        model=model,
        stop_reason=None,
        stop_sequence=None,
        usage=usage(input_tokens=into, output_tokens=0, cache_read_input_tokens=read, cache_creation_input_tokens=made),
    )
    assert stream.message_start(input=into, cache_read=read, cache_created=made) == event(
        "message_start", message=start
    )
    block = AnthropicContentBlock(type="thinking", thinking="")
    assert stream.block_start("thinking") == event("content_block_start", index=0, content_block=block)
    for delta, frame in (
        (AnthropicDelta(type="thinking_delta", thinking=text), stream.content(text)),
        (AnthropicDelta(type="signature_delta", signature=text), stream.signature(text)),
    ):
        assert frame == event("content_block_delta", index=0, delta=delta)
    assert stream.block_stop() == event("content_block_stop", index=0)
    block = AnthropicContentBlock(type="text", text="")
    assert stream.block_start() == event("content_block_start", index=1, content_block=block)
    expected = event("content_block_delta", index=1, delta=AnthropicDelta(type="text_delta", text=text))
    assert stream.content(text) == stream.content(text, tokens=2) == expected
    assert stream.block_stop() == event("content_block_stop", index=1)
    block = AnthropicContentBlock(type="tool_use", id=id, name=text, input={})
    assert stream.block_start("tool_use", id=id, name=text) == event(
        "content_block_start", index=2, content_block=block
    )
    expected = event("content_block_delta", index=2, delta=AnthropicDelta(type="input_json_delta", partial_json=text))
    assert stream.content(text) == expected
    assert stream.block_stop() == event("content_block_stop", index=2)
    end = usage(input_tokens=into, output_tokens=out, cache_read_input_tokens=read, cache_creation_input_tokens=made)
    delta = AnthropicDelta(stop_reason="stop_sequence", stop_sequence=text)
    assert stream.message_delta(
        "stop_sequence", stop_sequence=text, input=into, output=out, cache_read=read, cache_created=made
    ) == event("message_delta", delta=delta, usage=end)
    assert stream.message_stop() == event("message_stop")
    assert stream.error(text, type="overloaded_error") == event(
        "error", error=AnthropicError(type="overloaded_error", message=text)
    )


def test_like_anthropic() -> None:
    """The streaming example of the API reference, but for its spaces."""
    stream = sse.MessageStream("msg_1nZdL29xx5MUA1yADyHTEsnR8uuvGzszyS", "the-model")
    found = [
        stream.message_start(input=25, output=1),
        stream.block_start(),
        stream.ping(),
        stream.content("Hello"),
        stream.content("!"),
        stream.block_stop(),
        stream.message_delta("end_turn", output=15),
        stream.message_stop(),
        stream.error("Overloaded", type="overloaded_error"),
    ]
    reference = [
        '{"type": "message_start", "message": {"id": "msg_1nZdL29xx5MUA1yADyHTEsnR8uuvGzszyS", "type": "message", '
        '"role": "assistant", "model": "the-model", "content": [], "stop_reason": null, "stop_sequence": null, '
        '"usage": {"input_tokens": 25, "output_tokens": 1}}}',
        '{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}',
        '{"type": "ping"}',
        '{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}',
        '{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "!"}}',
        '{"type": "content_block_stop", "index": 0}',
        '{"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence":null}, '
        '"usage": {"output_tokens": 15}}',
        '{"type": "message_stop"}',
        '{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}',
    ]
    for frame, line in zip(found, reference, strict=True):
        data = orjson.dumps(orjson.loads(line))
        assert frame == b"event: " + orjson.loads(line)["type"].encode() + b"\ndata: " + data + b"\n\n"


def test_random_frames(random_frames: Any) -> None:
    """Whole, with the text as the serialiser writes it between the classes' own bytes, or those of the reference."""

    def begun(kind: str, like: str = "vllm", **named: str) -> sse.MessageStream:
        stream = sse.MessageStream("msg_1", "m", like=like)
        stream.block_start(kind, **named)
        return stream

    def delta(name: str, field: str) -> Callable[[str, int], bytes]:
        return lambda text, _: event(
            "content_block_delta", index=0, delta=AnthropicDelta.model_validate({"type": name, field: text})
        )

    def reference(text: str, _: int) -> bytes:
        data = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        return b"event: content_block_delta\ndata: " + orjson.dumps(data) + b"\n\n"

    random_frames(
        (begun("text").content, delta("text_delta", "text"), to_json),
        (begun("thinking").content, delta("thinking_delta", "thinking"), to_json),
        (begun("tool_use", id="toolu_1", name="f").content, delta("input_json_delta", "partial_json"), to_json),
        (begun("text", "anthropic").content, reference, orjson.dumps),
    )


@cache
def sdk_events() -> TypeAdapter[Any]:
    """Any event of the anthropic SDK's; a large package, imported where it is used."""
    from anthropic.types import RawMessageStreamEvent

    return TypeAdapter(RawMessageStreamEvent)


@given(texts, texts, counts, counts)
def test_the_sdk_reads_it(text: str, name: str, into: int, out: int) -> None:
    """Each frame but ping and error is one of the anthropic SDK's events, with nothing lost or added."""
    stream = sse.MessageStream("msg_1", "m")
    frames = [
        stream.message_start(input=into, cache_read=0, cache_created=into),
        stream.block_start("thinking"),
        stream.content(text),
        stream.signature(text),
        stream.block_stop(),
        stream.block_start("tool_use", id="toolu_1", name=name),
        stream.content(text),
        stream.block_stop(),
        stream.message_delta("tool_use", output=out, input=into),
        stream.message_stop(),
    ]
    for frame in frames:
        data = frame.split(b"data: ")[1]
        read = sdk_events().validate_json(data)
        assert sdk_events().dump_python(read, mode="json", exclude_unset=True) == orjson.loads(data)


def test_content_outside_a_block() -> None:
    """No block is open: an error with what opens one."""
    stream = sse.MessageStream("msg_1", "m")
    calls: list[Callable[[], bytes]] = [lambda: stream.content("x"), stream.block_stop, lambda: stream.signature("x")]
    for call in calls:
        with pytest.raises(errors.TailwatchError, match=r"block_start\(\) begins one"):
            call()
    with pytest.raises(errors.OptionError, match="text, thinking, tool_use"):
        stream.block_start("texts")
    with pytest.raises(errors.OptionError, match="only tool_use"):
        stream.block_start("text", id="x")
    with pytest.raises(errors.OptionError, match="name="):
        stream.block_start("tool_use", id="x")


@given(st.integers(0xD800, 0xDFFF))
def test_half_a_surrogate_pair(half: int) -> None:
    """The model's own error, before anything is returned."""
    stream = sse.MessageStream("msg_1", "m")
    stream.block_start()
    with pytest.raises(PydanticSerializationError) as original:
        AnthropicDelta.model_construct(text=chr(half)).model_dump_json()
    with pytest.raises(PydanticSerializationError) as ours:
        stream.content(chr(half))
    assert str(ours.value) == str(original.value)
