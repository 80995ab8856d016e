"""Frames that are the openai SDK's own classes, dumped: transformers serve, and the Responses events of vLLM.

transformers 5.23.0 (cli/serving/{chat_completion,completion}.py) and vLLM 0.33.0 (entrypoints/openai/responses/
{protocol,streaming_events,serving}.py) with openai 3.52.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion, CompletionChoice, CompletionUsage
from openai.types.chat.chat_completion_chunk import ChatCompletionChunk, Choice, ChoiceDelta, ChoiceDeltaToolCall
from openai.types.responses import (
    ResponseCompletedEvent,
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseCreatedEvent,
    ResponseErrorEvent,
    ResponseFailedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionCallArgumentsDoneEvent,
    ResponseFunctionToolCall,
    ResponseIncompleteEvent,
    ResponseInProgressEvent,
    ResponseOutputItem,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
    ResponseReasoningTextDeltaEvent,
    ResponseReasoningTextDoneEvent,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
)
from openai.types.responses.response_function_tool_call_item import ResponseFunctionToolCallItem
from openai.types.responses.response_reasoning_item import Content as ReasoningContent
from openai.types.responses.response_text_delta_event import Logprob
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from tailwatch import errors, sse

pytestmark = pytest.mark.property

ID, MODEL, CREATED = "req_1", "Qwen/Qwen2.5-0.5B-Instruct@main", 1763650000

texts = st.text() | st.text(st.sampled_from([*map(chr, range(0x21)), '"', "\\", "/", "\x7f", "\u2028", "é", "😀"]))
counts = st.integers(0, 2**40)


# ---- transformers serve ----


def chat_frame(reason: Any = None, usage: CompletionUsage | None = None, **delta: Any) -> bytes:
    """As _build_chunk_sse writes it."""
    fields = {"content": None, "role": None, "tool_calls": None, "reasoning_content": None} | delta
    chunk = ChatCompletionChunk(
        id=ID,
        created=CREATED,
        model=MODEL,
        choices=[Choice(delta=ChoiceDelta.model_validate(fields), index=0, finish_reason=reason)],
        usage=usage,
        system_fingerprint="",
        object="chat.completion.chunk",
    )
    return f"data: {chunk.model_dump_json(exclude_none=True)}\n\n".encode()


def completion_frame(text: str = "", reason: Any = None, usage: CompletionUsage | None = None) -> bytes:
    choice = CompletionChoice.model_construct(text=text, index=0, logprobs=None, finish_reason=reason)
    chunk = Completion.model_construct(
        id=ID, object="text_completion", created=CREATED, model=MODEL, choices=[choice], usage=usage
    )
    return f"data: {chunk.model_dump_json(exclude_none=True)}\n\n".encode()


def token_usage(prompt: int, completed: int) -> CompletionUsage:
    return CompletionUsage(prompt_tokens=prompt, completion_tokens=completed, total_tokens=prompt + completed)


def chat() -> sse.ChatStream:
    return sse.ChatStream(ID, MODEL, CREATED, like="transformers")


@given(texts, texts, texts, counts, counts)
def test_transformers_chat(text: str, name: str, arguments: str, prompt: int, completed: int) -> None:
    """Each kind of chunk that it sends, with any text."""
    assert chat().role() == chat_frame(role="assistant")
    assert chat().content(text) == chat_frame(content=text)
    assert chat().reasoning(text) == chat_frame(reasoning_content=text)
    piece = ChoiceDeltaToolCall(
        index=1,
        type="function",
        id=text,
        function={"name": name, "arguments": arguments},  # type: ignore[arg-type]
    )
    assert chat().tool_call(1, text, name, arguments) == chat_frame(tool_calls=[piece])
    expected = chat_frame("length", token_usage(prompt, completed))
    assert chat().finish("length", usage=(prompt, completed)) == expected


@given(texts, counts, counts)
def test_transformers_completions(text: str, prompt: int, completed: int) -> None:
    """Its two kinds of chunk."""
    stream = sse.CompletionStream(ID, MODEL, CREATED, like="transformers")
    assert stream.content(text) == completion_frame(text)
    expected = completion_frame(reason="stop", usage=token_usage(prompt, completed))
    assert stream.finish("stop", usage=(prompt, completed)) == expected


@given(texts)
def test_transformers_errors(message: str) -> None:
    """Its bytes wherever the message needs no escape; where it does, JSON (its own is none)."""
    frame = chat().error(message)
    assert json.loads(frame[6:]) == {"error": message}
    if json.dumps(message, ensure_ascii=False) == f'"{message}"':
        assert frame == f'data: {{"error": "{message}"}}\n\n'.encode()


def test_what_transformers_does_not_send() -> None:
    """A frame or field that it never sends is an error that names it."""
    with pytest.raises(errors.OptionError, match="sends no usage frame"):
        chat().usage(prompt=1, completion=2)
    with pytest.raises(errors.OptionError, match=r"logprobs=.*no place"):
        chat().content("x", logprobs={})


# ---- Responses ----


class OpenAIBaseModel(BaseModel):
    model_config = ConfigDict(extra="allow")


class InputTokensDetails(OpenAIBaseModel):
    cached_tokens: int
    cache_write_tokens: int
    input_tokens_per_turn: list[int] = Field(default_factory=list)
    cached_tokens_per_turn: list[int] = Field(default_factory=list)


class OutputTokensDetails(OpenAIBaseModel):
    reasoning_tokens: int = 0
    tool_output_tokens: int = 0
    output_tokens_per_turn: list[int] = Field(default_factory=list)
    tool_output_tokens_per_turn: list[int] = Field(default_factory=list)


class ResponseUsage(OpenAIBaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponsesResponse(OpenAIBaseModel):
    """Its field types are looser than vLLM's, its fields and their order the same."""

    id: str
    created_at: int
    incomplete_details: Any = None
    instructions: str | None = None
    metadata: Any = None
    model: str
    object: Literal["response"] = "response"
    output: list[ResponseOutputItem]
    parallel_tool_calls: bool
    temperature: float
    tool_choice: Any
    tools: list[Any]
    top_p: float
    background: bool
    max_output_tokens: int
    max_tool_calls: int | None = None
    previous_response_id: str | None = None
    prompt: Any = None
    prompt_cache_options: Any = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Any = None
    reasoning: Any = None
    safety_identifier: str | None = None
    service_tier: str
    status: str
    text: Any = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None = None
    metrics: Any = Field(default=None, exclude_if=lambda value: value is None)
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    input_messages: Any = None
    output_messages: Any = None


class Created(ResponseCreatedEvent):
    response: ResponsesResponse  # type: ignore[assignment]


class InProgress(ResponseInProgressEvent):
    response: ResponsesResponse  # type: ignore[assignment]


class Completed(ResponseCompletedEvent):
    response: ResponsesResponse  # type: ignore[assignment]


class Incomplete(ResponseIncompleteEvent):
    response: ResponsesResponse  # type: ignore[assignment]


def event(model: Any) -> bytes:
    """As _convert_stream_to_sse_events writes it."""
    return f"event: {model.type}\ndata: {model.model_dump_json(indent=None, by_alias=True)}\n\n".encode()


def whole(status: str, output: list[Any], usage: ResponseUsage | None = None, details: Any = None) -> ResponsesResponse:
    return ResponsesResponse(
        id="resp_1",
        created_at=CREATED,
        model=MODEL,
        output=output,
        parallel_tool_calls=True,
        temperature=0.7,
        tool_choice="auto",
        tools=[],
        top_p=1.0,
        background=False,
        max_output_tokens=512,
        service_tier="auto",
        status=status,
        truncation="disabled",
        usage=usage,
        incomplete_details=details,
    )


def responses() -> sse.ResponseStream:
    return sse.ResponseStream("resp_1", MODEL, CREATED, fields={"temperature": 0.7, "max_output_tokens": 512})


def usage_of(into: int, out: int, cached: int = 0, reasoning: int = 0) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=into,
        output_tokens=out,
        total_tokens=into + out,
        input_tokens_details=InputTokensDetails(cached_tokens=cached, cache_write_tokens=0),
        output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning),
    )


@given(st.lists(texts, min_size=1, max_size=4), texts, counts, counts, counts, counts)
def test_a_response(deltas: list[str], item: str, into: int, out: int, cached: int, reasoning: int) -> None:
    """A message from its creation to its end, numbered throughout."""
    stream, text = responses(), "".join(deltas)
    first = whole("in_progress", []).model_dump(mode="json", by_alias=True)
    assert stream.created() == event(Created(type="response.created", sequence_number=0, response=first))  # type: ignore[arg-type]
    assert stream.in_progress() == event(
        InProgress(type="response.in_progress", sequence_number=1, response=first)  # type: ignore[arg-type]
    )
    message = ResponseOutputMessage(id=item, type="message", role="assistant", content=[], status="in_progress")
    part = ResponseOutputText(type="output_text", text="", annotations=[], logprobs=[])
    place: dict[str, Any] = {"output_index": 0, "item_id": item, "content_index": 0}
    assert stream.item(item) == event(
        ResponseOutputItemAddedEvent(type="response.output_item.added", sequence_number=2, output_index=0, item=message)
    ) + event(ResponseContentPartAddedEvent(type="response.content_part.added", sequence_number=3, part=part, **place))
    for number, delta in enumerate(deltas, 4):
        assert stream.content(delta) == event(
            ResponseTextDeltaEvent(
                type="response.output_text.delta", sequence_number=number, delta=delta, logprobs=[], **place
            )
        )
    number = 4 + len(deltas)
    part = ResponseOutputText(type="output_text", text=text, annotations=[], logprobs=None)
    message = ResponseOutputMessage(
        id=item, type="message", role="assistant", content=[part] if text else [], status="completed"
    )
    done = [
        ResponseTextDoneEvent(
            type="response.output_text.done", sequence_number=number, text=text, logprobs=[], **place
        ),
        ResponseContentPartDoneEvent(type="response.content_part.done", sequence_number=number + 1, part=part, **place),
        ResponseOutputItemDoneEvent(
            type="response.output_item.done", sequence_number=number + 2, output_index=0, item=message
        ),
    ]
    assert stream.item_done(text) == b"".join(map(event, done))
    final = whole("completed", [message], usage_of(into, out, cached, reasoning))
    expected = event(Completed(type="response.completed", sequence_number=number + 3, response=final))
    assert stream.completed(input=into, output=out, cached=cached, reasoning=reasoning) == expected


@given(texts, texts, texts)
def test_reasoning_and_a_call(text: str, name: str, arguments: str) -> None:
    """Items of the other kinds, one after the other, and an early end."""
    stream = responses()
    item = ResponseReasoningItem(type="reasoning", id="rs_1", summary=[], status="in_progress")
    place: dict[str, Any] = {"output_index": 0, "item_id": "rs_1", "content_index": 0}
    empty: Any = {"text": "", "type": "reasoning_text"}
    assert stream.item("rs_1", "reasoning") == event(
        ResponseOutputItemAddedEvent(type="response.output_item.added", sequence_number=0, output_index=0, item=item)
    ) + event(ResponseContentPartAddedEvent(type="response.content_part.added", sequence_number=1, part=empty, **place))
    assert stream.content(text) == event(
        ResponseReasoningTextDeltaEvent(type="response.reasoning_text.delta", sequence_number=2, delta=text, **place)
    )
    content = ReasoningContent(text=text, type="reasoning_text")
    item = ResponseReasoningItem(type="reasoning", content=[content], status="completed", id="rs_1", summary=[])
    assert stream.item_done(text) == b"".join(
        map(
            event,
            [
                ResponseReasoningTextDoneEvent(
                    type="response.reasoning_text.done", sequence_number=3, text=text, **place
                ),
                ResponseContentPartDoneEvent(
                    type="response.content_part.done",
                    sequence_number=4,
                    part=content.model_dump(),  # type: ignore[arg-type]
                    **place,
                ),
                ResponseOutputItemDoneEvent(
                    type="response.output_item.done", sequence_number=5, output_index=0, item=item
                ),
            ],
        )
    )
    call = ResponseFunctionToolCallItem(
        type="function_call", id="fc_1", call_id="call_1", name=name, arguments="", status="in_progress"
    )
    assert stream.item("fc_1", "function_call", call_id="call_1", name=name) == event(
        ResponseOutputItemAddedEvent(type="response.output_item.added", sequence_number=6, output_index=1, item=call)
    )
    assert stream.content(arguments) == event(
        ResponseFunctionCallArgumentsDeltaEvent(
            type="response.function_call_arguments.delta",
            sequence_number=7,
            output_index=1,
            item_id="fc_1",
            delta=arguments,
        )
    )
    done = ResponseFunctionToolCall(
        type="function_call", name=name, arguments=arguments, status="incomplete", id="fc_1", call_id="call_1"
    )
    assert stream.item_done(arguments, status="incomplete") == event(
        ResponseFunctionCallArgumentsDoneEvent(
            type="response.function_call_arguments.done",
            sequence_number=8,
            output_index=1,
            item_id="fc_1",
            arguments=arguments,
            name=name,  # type: ignore[call-arg]
        )
    ) + event(
        ResponseOutputItemDoneEvent(type="response.output_item.done", sequence_number=9, output_index=1, item=done)
    )
    final = whole("incomplete", [item, done], usage_of(1, 2), {"reason": "max_output_tokens"})
    expected = event(Incomplete(type="response.incomplete", sequence_number=10, response=final))
    assert stream.incomplete(input=1, output=2) == expected


@given(texts, texts, st.floats(-1e4, 0))
def test_response_logprobs(text: str, token: str, logprob: float) -> None:
    """A delta with logprobs is numbered like the others."""
    stream = responses()
    stream.item("msg_1")
    found = stream.content(text, logprobs=[{"token": token, "logprob": logprob, "top_logprobs": None}])
    expected = ResponseTextDeltaEvent(
        type="response.output_text.delta",
        sequence_number=2,
        delta=text,
        logprobs=[Logprob(token=token, logprob=logprob)],
        output_index=0,
        item_id="msg_1",
        content_index=0,
    )
    assert found == event(expected)
    assert b'"sequence_number":3,' in stream.content(text)
    assert b'"sequence_number":4,' in stream.content(text, tokens=2)


def begun(kind: str, **named: str) -> sse.ResponseStream:
    stream = responses()
    stream.item("item_1", kind, **named)
    return stream


def test_random_frames(random_frames: Any) -> None:
    """Whole, with the text as Pydantic writes it between the classes' own bytes, and their numbers."""
    place: dict[str, Any] = {"output_index": 0, "item_id": "item_1"}
    part: dict[str, Any] = {**place, "content_index": 0}

    def output(text: str, number: int) -> bytes:
        return event(
            ResponseTextDeltaEvent(
                type="response.output_text.delta", sequence_number=number, delta=text, logprobs=[], **part
            )
        )

    def reasoning(text: str, number: int) -> bytes:
        return event(
            ResponseReasoningTextDeltaEvent(
                type="response.reasoning_text.delta", sequence_number=number, delta=text, **part
            )
        )

    def arguments(text: str, number: int) -> bytes:
        return event(
            ResponseFunctionCallArgumentsDeltaEvent(
                type="response.function_call_arguments.delta", sequence_number=number, delta=text, **place
            )
        )

    random_frames(
        (chat().content, lambda text, _: chat_frame(content=text), to_json),
        (
            sse.CompletionStream(ID, MODEL, CREATED, like="transformers").content,
            lambda text, _: completion_frame(text),
            to_json,
        ),
        (begun("message").content, output, to_json, itertools.count(2)),
        (begun("reasoning").content, reasoning, to_json, itertools.count(2)),
        (begun("function_call", call_id="call_1", name="f").content, arguments, to_json, itertools.count(1)),
    )


@given(texts, st.none() | texts, st.none() | texts)
def test_response_errors(message: str, code: str | None, param: str | None) -> None:
    """The error event, and a response that failed, which the SDK reads."""
    expected = ResponseErrorEvent(type="error", sequence_number=0, message=message, code=code, param=param)
    stream = responses()
    assert stream.error(message, code=code, param=param) == event(expected)
    failed = stream.failed(message)
    assert failed.startswith(b"event: response.failed\ndata: ")
    read = ResponseFailedEvent.model_validate_json(failed.split(b"data: ")[1])
    assert read.sequence_number == 1 and read.response.status == "failed"
    assert read.response.error is not None and read.response.error.message == message


def test_content_before_an_item() -> None:
    """No item is open: an error with what opens one; nothing is numbered by it."""
    stream = responses()
    with pytest.raises(errors.TailwatchError, match=r"item\(\) begins one"):
        stream.content("x")
    with pytest.raises(errors.TailwatchError, match=r"item\(\) begins one"):
        stream.item_done("x")
    assert b'"sequence_number":0,' in stream.created()
    with pytest.raises(errors.OptionError, match="call_id"):
        stream.item("fc_1", "function_call", name="f")
    with pytest.raises(errors.OptionError, match="only a function_call"):
        stream.item("msg_1", name="f")
    with pytest.raises(errors.OptionError, match="message, reasoning, function_call"):
        stream.item("msg_1", "mesage")
    assert b'"sequence_number":1,' in stream.in_progress()
