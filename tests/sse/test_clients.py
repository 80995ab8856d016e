"""The OpenAI and Anthropic SDKs read what the encoders write, over a socket, and tailwatch counts it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import openai
import pytest
from hypothesis import given

from tailwatch import sse

from ..support.live_servers import Stage, counted
from .frames import (
    ARGUMENTS,
    CREATED,
    MODEL,
    MORE,
    NASTY,
    PIECES,
    chat,
    item,
    message_frames,
    response_frames,
    tokens,
)

pytestmark = pytest.mark.integration

LIKES = ["openai", "vllm", "sglang", "transformers"]

Read = Callable[..., list[Any]]


async def _every(stream: Any) -> list[Any]:
    return [entry async for entry in stream]


def reader(clients: dict[str, Any], how: str, method: str) -> Read:
    """read(**arguments): all that a streaming method of an SDK's client gives."""

    def read(**arguments: Any) -> list[Any]:
        with clients["sync"]() as client, attrgetter(method)(client)(stream=True, **arguments) as stream:
            return list(stream)

    async def read_async(**arguments: Any) -> list[Any]:
        async with clients["async"]() as client:
            async with await attrgetter(method)(client)(stream=True, **arguments) as stream:
                return await _every(stream)

    return read if how == "sync" else lambda **arguments: asyncio.run(read_async(**arguments))


@pytest.fixture(params=["sync", "async"])
def how(request: pytest.FixtureRequest) -> str:
    """Which of an SDK's two clients."""
    return str(request.param)


@pytest.fixture
def openai_clients(stage: Stage) -> dict[str, Any]:
    """Makers of the OpenAI SDK's two clients."""
    options: dict[str, Any] = {"base_url": f"{stage.url}/v1", "api_key": "none", "max_retries": 0}
    return {"sync": lambda: openai.OpenAI(**options), "async": lambda: openai.AsyncOpenAI(**options)}


@pytest.fixture
def anthropic_clients(stage: Stage) -> dict[str, Any]:
    """Makers of the Anthropic SDK's two clients."""
    import anthropic  # a large package: only where it is used

    options: dict[str, Any] = {"base_url": stage.url, "api_key": "none", "max_retries": 0}
    return {"sync": lambda: anthropic.Anthropic(**options), "async": lambda: anthropic.AsyncAnthropic(**options)}


# ---- chat ----


@pytest.fixture
def read_chat(openai_clients: dict[str, Any], how: str) -> Callable[[], list[Any]]:
    """The chunks that the OpenAI SDK reads of a chat completion."""
    read = reader(openai_clients, how, "chat.completions.create")
    return lambda: read(model=MODEL, messages=[{"role": "user", "content": "?"}])


def done(like: str) -> list[bytes]:
    """The end mark, where that server sends it."""
    return [] if like == "transformers" else [sse.DONE]


def used(stream: Any, like: str, reason: str, generated: int, index: int) -> Iterator[bytes]:
    """The last choice's end and the usage, in a frame of its own or on the same one, as that server does."""
    if like == "transformers":
        yield stream.finish(reason, usage=(9, generated), index=index)
    else:
        yield stream.finish(reason, index=index)
        yield stream.usage(prompt=9, completion=generated)
    yield from done(like)


def choices(chunks: list[Any], index: int = 0) -> list[Any]:
    """The entries of one choice."""
    return [choice for chunk in chunks for choice in chunk.choices if choice.index == index]


def text_of(chunks: list[Any], field: str = "content", index: int = 0) -> str:
    """A choice's text."""
    return "".join(getattr(choice.delta, field, None) or "" for choice in choices(chunks, index))


@pytest.mark.parametrize("like", LIKES)
def test_a_chat_arrives(stage: Stage, read_chat: Any, like: str) -> None:
    """Every piece of text as it was, with role, id, model, finish reason and usage; tailwatch counted the pieces, and
    what the usage has beyond them."""
    generated = tokens(NASTY) + MORE

    def answer() -> Iterator[bytes]:
        stream = chat(like=like, include_usage=True)
        yield stream.role()
        yield from map(stream.content, NASTY)
        yield from used(stream, like, "stop", generated, index=0)

    stage.answer = answer
    chunks = read_chat()
    pieces = [choice.delta.content or "" for choice in choices(chunks)]
    assert [piece for piece in pieces if piece] == [text for text in NASTY if text]
    assert {(chunk.id, chunk.model, chunk.created, chunk.object) for chunk in chunks} == {
        ("chatcmpl-1", MODEL, CREATED, "chat.completion.chunk")
    }
    assert choices(chunks)[0].delta.role == "assistant"
    assert [choice.finish_reason for choice in choices(chunks)][-2:] == [None, "stop"]
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (9, generated, 9 + generated)
    snapshot = counted()
    assert snapshot.labels == [(MODEL, "/v1/chat/completions")]
    assert (snapshot.tokens, sum(snapshot.requests.values())) == (generated, 1)


def test_any_text_arrives(stage: Stage, openai_clients: dict[str, Any]) -> None:
    """Whatever the pieces are: the OpenAI SDK has them, and tailwatch counted them."""
    expected = 0
    with openai_clients["sync"]() as client:

        @given(PIECES)
        def check(pieces: list[str]) -> None:
            nonlocal expected
            stage.answer = lambda: [*map(chat().content, pieces), sse.DONE]
            with client.chat.completions.create(model=MODEL, messages=[], stream=True) as stream:
                assert [choice.delta.content for choice in choices(list(stream))] == pieces
            expected += tokens(pieces)

        check()
    assert counted().tokens == expected


@pytest.mark.parametrize("like", LIKES)
def test_two_choices_arrive(stage: Stage, read_chat: Any, like: str) -> None:
    """n=2: each choice has its own text and end, and a time per token in tailwatch's numbers."""

    def answer() -> Iterator[bytes]:
        stream = chat(like=like)
        yield from (stream.role(index=index) for index in (0, 1))
        for text, other in zip(NASTY, reversed(NASTY), strict=True):
            yield stream.content(text)
            yield stream.content(other, index=1)
        yield stream.finish("stop")
        yield stream.finish("length", index=1)
        yield from done(like)

    stage.answer = answer
    chunks = read_chat()
    assert [text_of(chunks, index=index) for index in (0, 1)] == ["".join(NASTY), "".join(reversed(NASTY))]
    assert [choices(chunks, index)[-1].finish_reason for index in (0, 1)] == ["stop", "length"]
    snapshot = counted()
    assert (snapshot.tokens, snapshot.ttft.count) == (2 * tokens(NASTY), 1)
    assert (snapshot.itl.count, snapshot.tpot.count) == (2 * tokens(NASTY) - 1, 2)


@pytest.mark.parametrize("like", LIKES)
def test_reasoning_arrives(stage: Stage, read_chat: Any, like: str) -> None:
    """Under the name that the server gives it; its tokens count."""

    def answer() -> Iterator[bytes]:
        stream = chat(like=like)
        yield stream.role()
        yield from map(stream.reasoning, NASTY)
        yield stream.content("so")
        yield stream.finish("stop")
        yield from done(like)

    stage.answer = answer
    chunks = read_chat()
    assert text_of(chunks, "reasoning" if like == "vllm" else "reasoning_content") == "".join(NASTY)
    assert text_of(chunks) == "so"
    assert counted().tokens == tokens(NASTY) + 1


@pytest.mark.parametrize("like", LIKES)
def test_tool_calls_arrive(stage: Stage, read_chat: Any, like: str) -> None:
    """Two calls, their arguments' JSON in pieces: put together they are what was sent."""
    arguments = [json.dumps({"text": "".join(NASTY)}), json.dumps(NASTY, ensure_ascii=False)]
    pieces = [[text[:7], *(text[at : at + 4000] for at in range(7, len(text), 4000))] for text in arguments]

    def answer() -> Iterator[bytes]:
        stream = chat(like=like)
        yield stream.role()
        for call in (0, 1):
            yield stream.tool_call(call, f"call-{call}", f"tool_{call}", "")
            yield from (stream.tool_call(call, arguments=piece) for piece in pieces[call])
        yield stream.finish("tool_calls")
        yield from done(like)

    stage.answer = answer
    chunks = read_chat()
    parts = [part for choice in choices(chunks) for part in choice.delta.tool_calls or []]
    assert [(part.index, part.id, part.function.name) for part in parts if part.id] == [
        (0, "call-0", "tool_0"),
        (1, "call-1", "tool_1"),
    ]
    calls = ["".join(part.function.arguments for part in parts if part.index == call) for call in (0, 1)]
    assert calls == arguments
    assert choices(chunks)[-1].finish_reason == "tool_calls"
    assert len(pieces[0]) + len(pieces[1]) <= counted().tokens <= len(parts)


def logprobs_of(text: str) -> dict[str, Any]:
    """As an engine gives them for one token."""
    entry = {"token": text, "logprob": -0.25, "bytes": list(text.encode())}
    return {"content": [{**entry, "top_logprobs": [entry]}]}


def test_logprobs_arrive(stage: Stage, read_chat: Any) -> None:
    """With the text they belong to, which is as it was."""
    texts = [text for text in NASTY if 0 < len(text) < 1000]

    def answer() -> Iterator[bytes]:
        stream = chat()
        yield from (stream.content(text, logprobs=logprobs_of(text)) for text in texts)
        yield sse.DONE

    stage.answer = answer
    chunks = read_chat()
    assert text_of(chunks) == "".join(texts)
    assert [choice.logprobs.to_dict() for choice in choices(chunks)] == [logprobs_of(text) for text in texts]
    assert counted().tokens == len(texts)


def test_usage_on_every_chunk_arrives(stage: Stage, read_chat: Any) -> None:
    """The usage so far rides on the chunks; tailwatch does not count it twice."""

    def answer() -> Iterator[bytes]:
        stream = chat(like="vllm", include_usage=True)
        yield from (stream.content(text, usage=(9, count)) for count, text in enumerate(NASTY[:8], 1))
        yield sse.DONE

    stage.answer = answer
    chunks = read_chat()
    assert text_of(chunks) == "".join(NASTY[:8])
    assert [(chunk.usage.prompt_tokens, chunk.usage.completion_tokens) for chunk in chunks] == [
        (9, count) for count in range(1, 9)
    ]
    assert counted().tokens == 8


def test_frames_are_known_and_not_guessed(stage: Stage, read_chat: Any) -> None:
    """Nothing in the bytes shows that a text is three tokens or seven: the encoder counts them, and the text is the
    same."""

    def answer() -> Iterator[bytes]:
        stream = chat()
        yield stream.content("one")
        yield stream.content("two, three, four", tokens=3)
        yield stream.reasoning("five to eleven", tokens=7)
        yield sse.DONE

    stage.answer = answer
    assert text_of(read_chat()) == "onetwo, three, four"
    assert counted().tokens == 11


def test_frames_count_however_they_are_sent(stage: Stage, read_chat: Any) -> None:
    """Made long before they are sent, several in one message, or one frame twice."""
    texts = [f"{i} " for i in range(200)]

    def answer() -> Iterator[bytes]:
        stream = chat()
        ahead = [*map(stream.content, texts)]
        again = stream.content("again ")
        yield from ahead
        yield from (again, again)
        yield b"".join(map(stream.content, texts)) + stream.finish("stop") + sse.DONE

    stage.answer = answer
    assert text_of(read_chat()) == "".join([*texts, "again again ", *texts])
    assert counted().tokens == 2 * len(texts) + 2


def test_streams_at_once_are_kept_apart(stage: Stage, openai_clients: dict[str, Any]) -> None:
    """Eight models answer interleaved; each has the tokens its own encoder counted."""
    models = [f"model-{i}" for i in range(8)]
    left = iter(models)

    def answer() -> Iterator[bytes]:
        model = next(left)
        stream = sse.ChatStream(model, model, CREATED)
        yield from (stream.content(text, tokens=1 + models.index(model)) for text in ("a", "b", "c", "d"))
        yield sse.DONE

    async def read(client: Any) -> tuple[str, str]:
        chunks = await _every(await client.chat.completions.create(model=MODEL, messages=[], stream=True))
        return chunks[0].id, text_of(chunks)

    async def read_all() -> list[tuple[str, str]]:
        async with openai_clients["async"]() as client:
            return await asyncio.gather(*(read(client) for _ in models))

    stage.answer = answer
    assert sorted(asyncio.run(read_all())) == [(model, "abcd") for model in models]
    snapshot = counted()
    assert [snapshot.where(model_name=model).tokens for model in models] == [4 * (1 + i) for i in range(8)]


def test_a_chat_that_fails_is_an_error_of_the_sdk(stage: Stage, read_chat: Any) -> None:
    """In the words of the server; tailwatch counts the request as an error."""
    stage.answer = lambda: [chat().content("so far"), chat().error('out of "memory"\n'), sse.DONE]
    with pytest.raises(openai.APIError) as caught:
        read_chat()
    assert caught.value.message == 'out of "memory"\n'
    snapshot = counted()
    assert (snapshot.tokens, snapshot.requests["error"]) == (1, 1)


# ---- completions ----


@pytest.fixture
def read_completion(openai_clients: dict[str, Any], how: str) -> Callable[[], list[Any]]:
    """The chunks that the OpenAI SDK reads of a completion."""
    read = reader(openai_clients, how, "completions.create")
    return lambda: read(model=MODEL, prompt="?")


@pytest.mark.parametrize("like", LIKES)
def test_a_completion_arrives(stage: Stage, read_completion: Any, like: str) -> None:
    """Two choices' text, ends, and the usage, as the OpenAI SDK reads them; tailwatch counted as many."""
    generated = 2 * tokens(NASTY)

    def answer() -> Iterator[bytes]:
        stream = sse.CompletionStream("cmpl-1", MODEL, CREATED, like=like, include_usage=True)
        for text, other in zip(NASTY, reversed(NASTY), strict=True):
            yield stream.content(text)
            yield stream.content(other, index=1)
        yield stream.finish("stop")
        yield from used(stream, like, "length", generated, index=1)

    stage.answer = answer
    chunks = read_completion()
    assert ["".join(choice.text for choice in choices(chunks, index)) for index in (0, 1)] == [
        "".join(NASTY),
        "".join(reversed(NASTY)),
    ]
    assert [choices(chunks, index)[-1].finish_reason for index in (0, 1)] == ["stop", "length"]
    assert {(chunk.id, chunk.model, chunk.created) for chunk in chunks} == {("cmpl-1", MODEL, CREATED)}
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (9, generated)
    snapshot = counted()
    assert snapshot.labels == [(MODEL, "/v1/completions")]
    assert (snapshot.tokens, snapshot.itl.count, snapshot.tpot.count) == (generated, 2 * tokens(NASTY) - 1, 2)


# ---- responses ----


@pytest.fixture
def read_response(openai_clients: dict[str, Any], how: str) -> Callable[[], list[Any]]:
    """The events that the OpenAI SDK reads of a response."""
    read = reader(openai_clients, how, "responses.create")
    return lambda: read(model=MODEL, input="?")


@pytest.fixture
def follow_response(openai_clients: dict[str, Any], how: str) -> Callable[[], tuple[list[Any], Any]]:
    """The same by its helper, which puts the response together and minds the order: its events, and the response."""

    def follow() -> tuple[list[Any], Any]:
        with openai_clients["sync"]() as client, client.responses.stream(model=MODEL, input="?") as stream:
            return list(stream), stream.get_final_response()

    async def follow_async() -> tuple[list[Any], Any]:
        async with openai_clients["async"]() as client, client.responses.stream(model=MODEL, input="?") as stream:
            return await _every(stream), await stream.get_final_response()

    return follow if how == "sync" else lambda: asyncio.run(follow_async())


def deltas(events: list[Any], kind: str) -> str:
    """The text of all deltas of a kind."""
    return "".join(event.delta for event in events if event.type == f"response.{kind}.delta")


def test_a_response_arrives(stage: Stage, read_response: Any) -> None:
    """Text, reasoning and a call's arguments, the events numbered in a row; tailwatch counted the deltas and what the
    usage has beyond them."""
    stage.answer = response_frames
    events = read_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[1].type) == ("response.created", "response.in_progress")
    assert deltas(events, "reasoning_text") == "".join(NASTY)
    assert deltas(events, "output_text") == "".join(NASTY) + "and"
    assert deltas(events, "function_call_arguments") == "".join(ARGUMENTS)
    snapshot = counted()
    assert snapshot.labels == [(MODEL, "/v1/responses")]
    assert (snapshot.tokens, snapshot.ttft.count) == (2 * tokens(NASTY) + 4 + MORE, 1)


def test_the_helper_puts_the_response_together(stage: Stage, follow_response: Any) -> None:
    """The SDK's own state machine accepts the order; what it made of the deltas is what the done events hold."""
    stage.answer = response_frames
    events, final = follow_response()
    by_type = {event.type: event for event in events}
    assert by_type["response.output_text.delta"].snapshot == "and"
    assert by_type["response.function_call_arguments.delta"].snapshot == "".join(ARGUMENTS)
    assert (final.id, final.model, final.status) == ("resp-1", MODEL, "completed")
    assert final.output_text == "".join(NASTY) + "and"
    assert [entry.type for entry in final.output] == ["reasoning", "message", "message", "function_call"]
    assert final.output[0].content[0].text == "".join(NASTY)
    call = final.output[3]
    assert (call.call_id, call.name, json.loads(call.arguments)) == ("call-1", "tool", {"text": "".join(NASTY)})
    assert (final.usage.input_tokens, final.usage.input_tokens_details.cached_tokens) == (9, 3)
    assert final.usage.output_tokens == 2 * tokens(NASTY) + 4 + MORE
    assert final.usage.output_tokens_details.reasoning_tokens == tokens(NASTY)


def test_any_text_arrives_as_a_response(stage: Stage, openai_clients: dict[str, Any]) -> None:
    """Whatever the pieces are, the helper's response has them; each has its number."""
    expected = 0

    def answer(pieces: list[str]) -> Iterator[bytes]:
        stream = sse.ResponseStream("resp-1", MODEL, CREATED)
        yield stream.created()
        yield from item(stream, pieces, id="msg-1")
        yield stream.completed(input=1, output=tokens(pieces))

    with openai_clients["sync"]() as client:

        @given(PIECES)
        def check(pieces: list[str]) -> None:
            nonlocal expected
            stage.answer = lambda: answer(pieces)
            with client.responses.stream(model=MODEL, input="?") as stream:
                events = list(stream)
            assert [event.delta for event in events if event.type == "response.output_text.delta"] == pieces
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert stream.get_final_response().output_text == "".join(pieces)
            expected += tokens(pieces)

        check()
    assert counted().tokens == expected


def test_a_response_that_ends_early_arrives(stage: Stage, read_response: Any) -> None:
    """Why, with the usage; and one text of several tokens is known."""

    def answer() -> Iterator[bytes]:
        stream = sse.ResponseStream("resp-1", MODEL, CREATED)
        yield stream.created()
        yield stream.item("msg-1")
        yield stream.content("one two three", tokens=3)
        yield stream.item_done("one two three", status="incomplete")
        yield stream.incomplete("max_output_tokens", input=9, output=3)

    stage.answer = answer
    last = read_response()[-1]
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.output_text == "one two three"
    assert (last.response.usage.output_tokens, counted().tokens) == (3, 3)


def test_a_response_that_fails_arrives(stage: Stage, read_response: Any) -> None:
    """As the SDK's event, with the server's words; tailwatch counts the request as an error."""

    def answer() -> Iterator[bytes]:
        stream = sse.ResponseStream("resp-1", MODEL, CREATED)
        yield stream.created()
        yield stream.item("msg-1")
        yield stream.content("so far")
        yield stream.failed("out of \u2028 memory")

    stage.answer = answer
    last = read_response()[-1]
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert (last.response.error.code, last.response.error.message) == ("server_error", "out of \u2028 memory")
    snapshot = counted()
    assert (snapshot.tokens, snapshot.requests["error"]) == (1, 1)


# ---- messages ----


ASKED: dict[str, Any] = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "?"}]}


@pytest.fixture
def read_message(anthropic_clients: dict[str, Any], how: str) -> Callable[[], list[Any]]:
    """The events that the Anthropic SDK reads."""
    read = reader(anthropic_clients, how, "messages.create")
    return lambda: read(**ASKED)


@pytest.fixture
def follow_message(anthropic_clients: dict[str, Any], how: str) -> Callable[[], tuple[list[str], Any]]:
    """The same by its helper: the pieces of text, and the message that it put together."""

    def follow() -> tuple[list[str], Any]:
        with anthropic_clients["sync"]() as client, client.messages.stream(**ASKED) as stream:
            return list(stream.text_stream), stream.get_final_message()

    async def follow_async() -> tuple[list[str], Any]:
        async with anthropic_clients["async"]() as client, client.messages.stream(**ASKED) as stream:
            return await _every(stream.text_stream), await stream.get_final_message()

    return follow if how == "sync" else lambda: asyncio.run(follow_async())


@pytest.mark.parametrize("like", ["anthropic", "vllm"])
def test_a_message_arrives(stage: Stage, read_message: Any, like: str) -> None:
    """Each block's deltas as they were, under its index; tailwatch counted them and what the usage has beyond them."""
    stage.answer = lambda: message_frames(like)
    events = read_message()
    found = [event for event in events if event.type == "content_block_delta"]
    assert [event.delta.thinking for event in found if event.delta.type == "thinking_delta"] == NASTY
    assert [event.delta.text for event in found if event.delta.type == "text_delta"] == NASTY
    assert [event.delta.partial_json for event in found if event.delta.type == "input_json_delta"] == ARGUMENTS
    assert [event.index for event in events if event.type == "content_block_start"] == [0, 1, 2]
    snapshot = counted()
    assert snapshot.labels == [(MODEL, "/v1/messages")]
    assert (snapshot.tokens, snapshot.ttft.count) == (2 * tokens(NASTY) + 3 + MORE, 1)


@pytest.mark.parametrize("like", ["anthropic", "vllm"])
def test_the_helper_puts_the_message_together(stage: Stage, follow_message: Any, like: str) -> None:
    """Its three blocks, why it stopped, and its usage."""
    stage.answer = lambda: message_frames(like)
    texts, final = follow_message()
    assert texts == NASTY
    thinking, text, tool = final.content
    assert (thinking.thinking, thinking.signature) == ("".join(NASTY), "c2lnbmVk")
    assert text.text == "".join(NASTY)
    assert (tool.id, tool.name, tool.input) == ("toolu-1", "tool", {"text": "".join(NASTY)})
    assert (final.id, final.model, final.role, final.stop_reason) == ("msg-1", MODEL, "assistant", "tool_use")
    assert final.usage.output_tokens == 2 * tokens(NASTY) + 3 + MORE


def test_any_text_arrives_as_a_message(stage: Stage, anthropic_clients: dict[str, Any]) -> None:
    """Whatever the pieces are, the Anthropic SDK has them."""
    expected = 0

    def answer(pieces: list[str]) -> Iterator[bytes]:
        stream = sse.MessageStream("msg-1", MODEL)
        yield stream.message_start(input=1)
        yield stream.block_start()
        yield from map(stream.content, pieces)
        yield stream.block_stop()
        yield stream.message_delta("end_turn", output=tokens(pieces))
        yield stream.message_stop()

    with anthropic_clients["sync"]() as client:

        @given(PIECES)
        def check(pieces: list[str]) -> None:
            nonlocal expected
            stage.answer = lambda: answer(pieces)
            with client.messages.stream(**ASKED) as stream:
                assert list(stream.text_stream) == pieces
                assert stream.get_final_text() == "".join(pieces)
            expected += tokens(pieces)

        check()
    assert counted().tokens == expected


def test_a_message_that_fails_is_an_error_of_the_sdk(stage: Stage, read_message: Any) -> None:
    """With the server's words; one text of several tokens was known before it."""
    import anthropic

    def answer() -> Iterator[bytes]:
        stream = sse.MessageStream("msg-1", MODEL)
        yield stream.message_start(input=1)
        yield stream.block_start()
        yield stream.content("one two three", tokens=3)
        yield stream.error('too "busy"', type="overloaded_error")

    stage.answer = answer
    with pytest.raises(anthropic.APIStatusError) as caught:
        read_message()
    assert caught.value.body == {"type": "error", "error": {"type": "overloaded_error", "message": 'too "busy"'}}
    snapshot = counted()
    assert (snapshot.tokens, snapshot.requests["error"]) == (3, 1)
