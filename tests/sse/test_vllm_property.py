"""ChatStream and CompletionStream like vLLM: byte for byte what its classes give.

Each frame is built and dumped as vLLM's serving.py does it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticSerializationError, to_json

from tailwatch import sse

from ..support.stream_classes.vllm import (
    ChatCompletionLogProbs,
    ChatCompletionLogProbsContent,
    ChatCompletionResponseStreamChoice,
    ChatCompletionStreamResponse,
    CompletionLogProbs,
    CompletionResponseStreamChoice,
    CompletionStreamResponse,
    CompletionTokenUsageInfo,
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ErrorInfo,
    ErrorResponse,
    PromptTokenUsageInfo,
    UsageInfo,
)

pytestmark = pytest.mark.property

ID, MODEL, CREATED = "chatcmpl-3f2a", "meta-llama/Llama-3.1-8B", 1763650000

texts = st.text() | st.text(st.sampled_from([*map(chr, range(0x21)), '"', "\\", "/", "\x7f", "\u2028", "é", "😀"]))
counts = st.integers(0, 2**40)

HEAD: dict[str, Any] = {"id": ID, "created": CREATED, "model": MODEL}


def chat_frame(chunk: ChatCompletionStreamResponse) -> bytes:
    """As chat_completion_stream_generator writes it."""
    return f"data: {chunk.model_dump_json(exclude_unset=True, exclude_none=not chunk.choices)}\n\n".encode()


def chat_chunk(choice: ChatCompletionResponseStreamChoice, **more: Any) -> ChatCompletionStreamResponse:
    return ChatCompletionStreamResponse(**HEAD, object="chat.completion.chunk", choices=[choice], **more)


def delta_frame(
    delta: DeltaMessage, index: int = 0, logprobs: Any = None, usage: UsageInfo | None = None, **end: Any
) -> bytes:
    choice = ChatCompletionResponseStreamChoice(
        index=index, delta=delta, logprobs=logprobs, **{"finish_reason": None, **end}, token_ids=None
    )
    chunk = chat_chunk(choice, kv_transfer_params=None)
    if usage is not None:
        chunk.usage = usage
    return chat_frame(chunk)


def continuous(prompt: int, completion: int) -> UsageInfo:
    return UsageInfo(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        completion_tokens_details=None,
    )


def chat(**options: Any) -> sse.ChatStream:
    return sse.ChatStream(ID, MODEL, CREATED, like="vllm", **options)


def completion(**options: Any) -> sse.CompletionStream:
    return sse.CompletionStream(ID, MODEL, CREATED, like="vllm", **options)


# ---- chat ----


@given(texts, st.integers(0, 9))
def test_chat_content_and_reasoning(text: str, index: int) -> None:
    """Any text, for the stream's own choice and for another one."""
    stream = chat(index=index)
    assert stream.content(text) == delta_frame(DeltaMessage(content=text), index)
    assert stream.content(text, index=index + 1) == delta_frame(DeltaMessage(content=text), index + 1)
    assert stream.reasoning(text) == delta_frame(DeltaMessage(reasoning=text), index)
    assert stream.content(text, tokens=3) == stream.content(text)


@given(texts, texts, texts, st.integers(0, 2**31))
def test_any_id_and_model(id: str, model: str, text: str, created: int) -> None:
    """What every frame repeats may be any text, even one that looks like a mark of ours."""
    choice = ChatCompletionResponseStreamChoice(
        index=0, delta=DeltaMessage(content=text), logprobs=None, finish_reason=None, token_ids=None
    )
    for one in (id, "<slot0>" + id, "slot+slot"):
        chunk = ChatCompletionStreamResponse(
            id=one, created=created, model=model, object="chat.completion.chunk", choices=[choice]
        )
        chunk.kv_transfer_params = None
        assert sse.ChatStream(one, model, created, like="vllm").content(text) == chat_frame(chunk)


@given(texts, counts, counts)
def test_continuous_usage(text: str, prompt: int, completed: int) -> None:
    """Usage on every chunk, by its counts or as the object itself."""
    expected = delta_frame(DeltaMessage(content=text), usage=continuous(prompt, completed))
    assert chat().content(text, usage=(prompt, completed)) == expected
    usage = orjson.loads(expected[6:])["usage"]
    assert chat().content(text, usage=usage) == expected


@given(texts, st.lists(st.tuples(texts, st.floats(-1e4, 0))))
def test_logprobs(text: str, tokens: list[tuple[str, float]]) -> None:
    """Any tokens and probabilities."""
    pieces = [
        ChatCompletionLogProbsContent(token=token, logprob=logprob, bytes=list(token.encode()), top_logprobs=[])
        for token, logprob in tokens
    ]
    logprobs = ChatCompletionLogProbs(content=pieces)
    expected = delta_frame(DeltaMessage(content=text), logprobs=logprobs)
    assert chat().content(text, logprobs=logprobs.model_dump(exclude_unset=True)) == expected


def test_role() -> None:
    """The prelude of each choice."""
    for index in (0, 1):
        choice = ChatCompletionResponseStreamChoice(
            index=index, delta=DeltaMessage(role="assistant", content=""), logprobs=None, finish_reason=None
        )
        assert chat().role(index=index) == chat_frame(chat_chunk(choice, prompt_token_ids=None, prompt_text=None))


@given(texts, st.none() | st.integers(0, 2**31) | texts, st.sampled_from(["stop", "length", "tool_calls"]))
def test_finish(text: str, stop: Any, reason: str) -> None:
    """With the last text and what stopped it, and without."""
    end = {"finish_reason": reason, "stop_reason": stop, "weight_versions": None}
    assert chat().finish(reason, text=text, stop=stop) == delta_frame(DeltaMessage(content=text), **end)
    assert chat().finish(reason, stop=stop) == delta_frame(DeltaMessage(content=""), **end)
    usage = continuous(3, 4)
    assert chat().finish(reason, stop=stop, usage=(3, 4)) == delta_frame(DeltaMessage(content=""), usage=usage, **end)


@pytest.mark.parametrize("asked", [False, True])
def test_the_fingerprint_is_in_the_last_chunk(asked: bool) -> None:
    """In the one that ends the choice, or in the one with the usage where that was asked for; in no other."""
    stream = chat(system_fingerprint="fp_1", include_usage=asked)
    choice = ChatCompletionResponseStreamChoice(
        index=0,
        delta=DeltaMessage(content=""),
        logprobs=None,
        finish_reason="stop",
        stop_reason=None,
        token_ids=None,
        weight_versions=None,
    )
    chunk = chat_chunk(choice, kv_transfer_params=None)
    if not asked:
        chunk.system_fingerprint = "fp_1"
    assert stream.finish("stop") == chat_frame(chunk)
    assert b"fp_1" in stream.usage(prompt=1, completion=2)
    assert stream.content("x") == chat().content("x")
    assert stream.role() == chat().role()


@given(counts, counts, st.none() | counts, st.none() | counts)
def test_usage(prompt: int, completed: int, cached: int | None, reasoning: int | None) -> None:
    """The last chunk, with and without details."""
    usage = continuous(prompt, completed)
    if reasoning is not None:
        usage.completion_tokens_details = CompletionTokenUsageInfo(reasoning_tokens=reasoning)
    usage.prompt_tokens_details = None if cached is None else PromptTokenUsageInfo(cached_tokens=cached)
    chunk = ChatCompletionStreamResponse(
        **HEAD, object="chat.completion.chunk", choices=[], usage=usage, system_fingerprint=None
    )
    found = chat().usage(prompt=prompt, completion=completed, cached=cached, reasoning=reasoning)
    assert found == chat_frame(chunk)


@given(texts, texts, texts, st.integers(0, 9))
def test_tool_calls(id: str, name: str, arguments: str, call: int) -> None:
    """The piece that names the function, and those with nothing but arguments."""
    function = DeltaFunctionCall(name=name)
    first = DeltaToolCall(id=id, type="function", index=call, function=function)
    assert chat().tool_call(call, id, name) == delta_frame(DeltaMessage(tool_calls=[first]))
    whole = DeltaToolCall(
        id=id, type="function", index=call, function=DeltaFunctionCall(name=name, arguments=arguments)
    )
    assert chat().tool_call(call, id, name, arguments) == delta_frame(DeltaMessage(tool_calls=[whole]))
    rest = DeltaToolCall(index=call, function=DeltaFunctionCall(arguments=arguments))
    assert chat().tool_call(call, arguments=arguments) == delta_frame(DeltaMessage(tool_calls=[rest]))
    assert chat().tool_call(call, arguments=arguments, index=2) == delta_frame(DeltaMessage(tool_calls=[rest]), 2)


@given(texts, st.integers(400, 599), st.none() | texts)
def test_errors(message: str, code: int, param: str | None) -> None:
    """Chat's by Pydantic, those of completions by json.dumps."""
    error = ErrorResponse(error=ErrorInfo(message=message, type="InternalServerError", param=param, code=code))
    given_: dict[str, Any] = {"type": "InternalServerError", "code": code, "param": param}
    assert chat().error(message, **given_) == f"data: {error.model_dump_json()}\n\n".encode()
    assert completion().error(message, **given_) == f"data: {json.dumps(error.model_dump())}\n\n".encode()


# ---- completions ----


def completion_frame(text: str, index: int = 0, usage: tuple[int, int] | None = None, **more: Any) -> bytes:
    """As completion_stream_generator writes it."""
    fields = {
        "logprobs": None,
        "finish_reason": None,
        "stop_reason": None,
        "prompt_token_ids": None,
        "token_ids": None,
        "weight_versions": None,
    }
    choice = CompletionResponseStreamChoice(index=index, text=text, **(fields | more))
    chunk = CompletionStreamResponse(**HEAD, object="text_completion", choices=[choice], kv_transfer_params=None)
    if usage is not None:
        prompt, completed = usage
        chunk.usage = UsageInfo(prompt_tokens=prompt, completion_tokens=completed, total_tokens=prompt + completed)
    return f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n".encode()


@given(texts, st.integers(0, 9), counts, counts)
def test_completion_text(text: str, index: int, prompt: int, completed: int) -> None:
    """Any text, any choice, usage on every chunk."""
    stream = completion(index=index)
    assert stream.content(text) == completion_frame(text, index)
    assert stream.content(text, index=index + 1) == completion_frame(text, index + 1)
    assert stream.content(text, usage=(prompt, completed)) == completion_frame(text, index, (prompt, completed))


@given(texts, st.lists(st.tuples(texts, st.floats(-1e4, 0))))
def test_completion_logprobs(text: str, tokens: list[tuple[str, float]]) -> None:
    """Any tokens and probabilities."""
    logprobs = CompletionLogProbs(
        text_offset=[0 for _ in tokens],
        token_logprobs=[logprob for _, logprob in tokens],
        tokens=[token for token, _ in tokens],
        top_logprobs=[dict([pair]) for pair in tokens],
    )
    found = completion().content(text, logprobs=logprobs.model_dump())
    assert found == completion_frame(text, logprobs=logprobs)


@given(texts, st.none() | st.integers(0, 2**31) | texts, counts, counts, st.none() | counts)
def test_completion_end(text: str, stop: Any, prompt: int, completed: int, cached: int | None) -> None:
    """The end of a choice and of the stream."""
    stream = completion()
    expected = completion_frame(text, finish_reason="stop", stop_reason=stop)
    assert stream.finish("stop", text=text, stop=stop) == expected
    usage = UsageInfo(prompt_tokens=prompt, completion_tokens=completed, total_tokens=prompt + completed)
    if cached is not None:
        usage.prompt_tokens_details = PromptTokenUsageInfo(cached_tokens=cached)
    chunk = CompletionStreamResponse(**HEAD, choices=[], usage=usage, system_fingerprint=None, metrics=None)
    expected = f"data: {chunk.model_dump_json(exclude_unset=False, exclude_none=True)}\n\n".encode()
    assert stream.usage(prompt=prompt, completion=completed, cached=cached) == expected


# ---- any number of frames, and what no text may do ----


def test_random_frames(random_frames: Any) -> None:
    """Whole, with the text as Pydantic writes it between the classes' own bytes."""
    random_frames(
        (chat().content, lambda text, _: delta_frame(DeltaMessage(content=text)), to_json),
        (chat().reasoning, lambda text, _: delta_frame(DeltaMessage(reasoning=text)), to_json),
        (completion().content, lambda text, _: completion_frame(text), to_json),
    )


@given(st.text(), st.integers(0xD800, 0xDFFF), st.text())
def test_half_a_surrogate_pair(before: str, half: int, after: str) -> None:
    """The same error with the same words as the model's own dump, whichever frame it would go into."""
    text = before + chr(half) + after
    with pytest.raises(PydanticSerializationError) as original:
        delta_frame(DeltaMessage.model_construct(_fields_set={"content"}, content=text, tool_calls=[]))
    stream = chat()
    calls: list[Callable[[], bytes]] = [
        lambda: stream.content(text),
        lambda: stream.content(text, index=1),
        lambda: stream.content(text, usage=(1, 2)),
        lambda: stream.content(text, logprobs={}),
        lambda: stream.reasoning(text),
        lambda: stream.finish("stop", text=text),
        lambda: stream.tool_call(0, arguments=text),
        lambda: stream.tool_call(0, "id", "name", text),
        lambda: stream.error(text),
        lambda: completion().content(text),
    ]
    for call in calls:
        with pytest.raises(PydanticSerializationError) as ours:
            call()
        assert str(ours.value) == str(original.value)


# ---- vLLM 0.32 ----


def test_without_two_fields_the_frames_are_those_of_0_32() -> None:
    """As its serving.py sets them: docs/fast_sse.md names the fields."""
    guide = (Path(__file__).parents[2] / "docs" / "fast_sse.md").read_text(encoding="utf-8")
    added = {"kv_transfer_params": b',"kv_transfer_params":null', "weight_versions": b',"weight_versions":null'}
    assert all(f"`{name}`" in guide for name in added)

    def older(frame: bytes) -> bytes:
        return frame.replace(added["kv_transfer_params"], b"").replace(added["weight_versions"], b"")

    head = f'{{"id":"{ID}","object":"%s","created":{CREATED},"model":"{MODEL}","choices":[%s]}}'
    delta = '{"index":0,"delta":{"content":"x"},"logprobs":null,"finish_reason":%s,%s"token_ids":null}'
    text = '{"index":0,"text":"x","logprobs":null,"finish_reason":null,"stop_reason":null,'
    text += '"prompt_token_ids":null,"token_ids":null}'
    assert older(chat().content("x"))[6:-2].decode() == head % ("chat.completion.chunk", delta % ("null", ""))
    last = delta % ('"stop"', '"stop_reason":null,')
    assert older(chat().finish("stop", text="x"))[6:-2].decode() == head % ("chat.completion.chunk", last)
    assert older(completion().content("x"))[6:-2].decode() == head % ("text_completion", text)
