"""ChatStream and CompletionStream like SGLang: byte for byte what its structs and models give.

Each frame is built and dumped as SGLang's serving code does it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from tailwatch import sse

from ..support.stream_classes import sglang
from ..support.stream_classes.sglang import (
    ChatCompletionResponseStreamChoice,
    ChatCompletionStreamResponse,
    CompletionResponseStreamChoice,
    CompletionStreamResponse,
    CompletionTokensDetails,
    DeltaMessage,
    ErrorResponse,
    FunctionResponse,
    LogProbs,
    PromptTokensDetails,
    ToolCall,
    UsageInfo,
)

pytestmark = pytest.mark.property

ID, MODEL, CREATED = "3f2ab1", "Qwen/Qwen3-8B", 1763650000

texts = st.text() | st.text(st.sampled_from([*map(chr, range(0x21)), '"', "\\", "/", "\x7f", "\u2028", "é", "😀"]))
counts = st.integers(0, 2**40)

HEAD: dict[str, Any] = {"id": ID, "created": CREATED, "model": MODEL}


def build_sse_content(index: int = 0, **fields: Any) -> bytes:
    """As Starlette encodes it."""
    return sglang.build_sse_content(ID, CREATED, MODEL, index, **fields).encode()


def token_usage(prompt: int, completed: int, cached: int | None = None, reasoning: int = 0) -> UsageInfo:
    """As UsageProcessor.calculate_token_usage."""
    return UsageInfo(
        prompt_tokens=prompt,
        completion_tokens=completed,
        total_tokens=prompt + completed,
        prompt_tokens_details=None if cached is None else PromptTokensDetails(cached_tokens=cached),
        reasoning_tokens=reasoning,
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=reasoning) if reasoning else None,
    )


def dumped(chunk: BaseModel, **options: Any) -> bytes:
    return f"data: {chunk.model_dump_json(**options)}\n\n".encode()


def chat(**options: Any) -> sse.ChatStream:
    return sse.ChatStream(ID, MODEL, CREATED, like="sglang", **options)


def completion(**options: Any) -> sse.CompletionStream:
    return sse.CompletionStream(ID, MODEL, CREATED, like="sglang", **options)


@given(texts, st.integers(0, 9))
def test_chat_content_and_reasoning(text: str, index: int) -> None:
    """Any text, for the stream's own choice and for another one."""
    stream = chat(index=index)
    assert stream.content(text) == build_sse_content(index, content=text)
    assert stream.content(text, index=index + 1) == build_sse_content(index + 1, content=text)
    assert stream.reasoning(text) == build_sse_content(index, reasoning_content=text)


@given(texts, counts, counts)
def test_continuous_usage(text: str, prompt: int, completed: int) -> None:
    """Usage on every chunk."""
    expected = build_sse_content(content=text, usage=token_usage(prompt, completed).model_dump())
    assert chat().content(text, usage=(prompt, completed)) == expected
    assert chat().content(text, usage=token_usage(prompt, completed).model_dump()) == expected


@given(texts, st.lists(st.tuples(texts, st.floats(-1e4, 0))))
def test_logprobs(text: str, tokens: list[tuple[str, float]]) -> None:
    """Any tokens and probabilities."""
    content = [
        {"token": token, "bytes": list(token.encode()), "logprob": logprob, "top_logprobs": []}
        for token, logprob in tokens
    ]
    expected = build_sse_content(content=text, logprobs={"content": content})
    assert chat().content(text, logprobs={"content": content}) == expected


@given(st.none() | st.integers(0, 2**31) | texts, st.sampled_from(["stop", "length", "tool_calls", "abort"]))
def test_role_and_finish(stop: Any, reason: str) -> None:
    """The first and the last frame of a choice."""
    for index in (0, 1):
        assert chat().role(index=index) == build_sse_content(index, role="assistant", content="")
        found = chat().finish(reason, stop=stop, index=index)
        assert found == build_sse_content(index, finish_reason=reason, matched_stop=stop)


@given(counts, counts, st.none() | counts, st.none() | counts)
def test_usage(prompt: int, completed: int, cached: int | None, reasoning: int | None) -> None:
    """The last chunk, with and without details."""
    usage = token_usage(prompt, completed, cached, reasoning or 0)
    chunk = ChatCompletionStreamResponse(**HEAD, choices=[], usage=usage)
    given_: dict[str, Any] = {"prompt": prompt, "completion": completed, "cached": cached, "reasoning": reasoning}
    assert chat().usage(**given_) == dumped(chunk)
    chunk = CompletionStreamResponse(**HEAD, choices=[], usage=usage)  # type: ignore[assignment]
    assert completion().usage(**given_) == dumped(chunk, exclude_none=True)


@given(texts, texts, texts, st.integers(0, 9))
def test_tool_calls(id: str, name: str, arguments: str, call: int) -> None:
    """The piece that names the function, and those with nothing but arguments."""

    def expected(index: int = 0, **function: Any) -> bytes:
        call_id = function.pop("id", None)
        piece = ToolCall(id=call_id, index=call, function=FunctionResponse(**function))
        choice = ChatCompletionResponseStreamChoice(
            index=index, delta=DeltaMessage(tool_calls=[piece]), finish_reason=None
        )
        return dumped(ChatCompletionStreamResponse(**HEAD, choices=[choice]))

    assert chat().tool_call(call, id, name, arguments) == expected(id=id, name=name, arguments=arguments)
    assert chat().tool_call(call, arguments=arguments) == expected(name=None, arguments=arguments)
    assert chat().tool_call(call, arguments=arguments, index=2) == expected(2, name=None, arguments=arguments)


@given(texts, st.integers(400, 599))
def test_errors(message: str, code: int) -> None:
    """As create_streaming_error_response: ASCII, with spaces."""
    error = ErrorResponse(message=message, type="InternalServerError", param=None, code=code)
    expected = f"data: {json.dumps({'error': error.model_dump()})}\n\n".encode()
    assert chat().error(message, type="InternalServerError", code=code) == expected
    assert completion().error(message, type="InternalServerError", code=code) == expected


def completion_frame(text: str, index: int = 0, usage: UsageInfo | None = None, **more: Any) -> bytes:
    choice = CompletionResponseStreamChoice(index=index, text=text, **more)
    chunk = CompletionStreamResponse(**HEAD, object="text_completion", choices=[choice])
    if usage is not None:
        chunk.usage = usage
    return dumped(chunk)


@given(texts, st.integers(0, 9), counts, counts, st.none() | st.integers(0, 2**31) | texts)
def test_completions(text: str, index: int, prompt: int, completed: int, stop: Any) -> None:
    """Any text, any choice, usage on every chunk, and the end."""
    stream = completion(index=index)
    assert stream.content(text) == completion_frame(text, index)
    assert stream.content(text, index=index + 1) == completion_frame(text, index + 1)
    usage = token_usage(prompt, completed)
    assert stream.content(text, usage=(prompt, completed)) == completion_frame(text, index, usage)
    expected = completion_frame(text, index, finish_reason="stop", matched_stop=stop)
    assert stream.finish("stop", text=text, stop=stop) == expected


@given(texts, st.lists(st.tuples(texts, st.floats(-1e4, 0))))
def test_completion_logprobs(text: str, tokens: list[tuple[str, float]]) -> None:
    """Any tokens and probabilities."""
    logprobs = LogProbs(
        text_offset=[-1 for _ in tokens],
        token_logprobs=[logprob for _, logprob in tokens],
        tokens=[token for token, _ in tokens],
        top_logprobs=[dict([pair]) for pair in tokens],
    )
    assert completion().content(text, logprobs=logprobs.model_dump()) == completion_frame(text, logprobs=logprobs)


def test_random_frames(random_frames: Any) -> None:
    """Whole, with the text as msgspec or Pydantic writes it between the classes' own bytes."""
    random_frames(
        (chat().content, lambda text, _: build_sse_content(content=text), msgspec.json.encode),
        (chat().reasoning, lambda text, _: build_sse_content(reasoning_content=text), msgspec.json.encode),
        (completion().content, lambda text, _: completion_frame(text), to_json),
    )


@given(st.text(), st.integers(0xD800, 0xDFFF), st.text())
def test_half_a_surrogate_pair(before: str, half: int, after: str) -> None:
    """The same error with the same words as each frame's own serialiser; json.dumps has an escape for it."""
    text = before + chr(half) + after
    stream = chat()
    with pytest.raises(UnicodeEncodeError) as original:
        build_sse_content(content=text)
    calls: list[Callable[[], bytes]] = [
        lambda: stream.content(text),
        lambda: stream.content(text, index=1),
        lambda: stream.content(text, logprobs={}),
        lambda: stream.content(text, usage=(1, 2)),
        lambda: stream.reasoning(text),
    ]
    for call in calls:
        with pytest.raises(UnicodeEncodeError) as ours:
            call()
        assert str(ours.value) == str(original.value)
    with pytest.raises(PydanticSerializationError):
        stream.tool_call(0, arguments=text)
    error = ErrorResponse.model_construct(object="error", message=text, type="BadRequestError", param=None, code=400)
    assert stream.error(text) == f"data: {json.dumps({'error': dict(error)})}\n\n".encode()
