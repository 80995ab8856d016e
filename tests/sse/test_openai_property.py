"""ChatStream and CompletionStream as the OpenAI API itself writes them, and what all streams have in common."""

from __future__ import annotations

from typing import Any

import httpx
import httpx_sse
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from tailwatch import sse

pytestmark = pytest.mark.property

texts = st.text() | st.text(st.sampled_from([*map(chr, range(0x21)), '"', "\\", "/", "\x7f", "\u2028", "é", "😀"]))
counts = st.integers(0, 2**40)
LIKES = ["openai", "vllm", "sglang", "transformers"]
HEAD: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1694268190, "model": "gpt-4o"}


def chat(**options: Any) -> sse.ChatStream:
    return sse.ChatStream("chatcmpl-1", "gpt-4o", 1694268190, **options)


def completion(**options: Any) -> sse.CompletionStream:
    return sse.CompletionStream("cmpl-1", "gpt-3.5-turbo-instruct", 1690759702, **options)


def frame(data: object) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def choice(delta: dict[str, Any], index: int = 0, logprobs: Any = None, reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


# ---- as the API reference has them ----


@given(texts, st.integers(0, 9))
def test_chat_text(text: str, index: int) -> None:
    """A delta with nothing but the text."""
    assert chat().content(text) == frame({**HEAD, "choices": [choice({"content": text})]})
    assert chat().content(text, index=index) == frame({**HEAD, "choices": [choice({"content": text}, index)]})
    assert chat().reasoning(text) == frame({**HEAD, "choices": [choice({"reasoning_content": text})]})


def test_the_chat_example_of_the_reference() -> None:
    """Its three frames, with the fingerprint where it stands there."""
    stream = chat(system_fingerprint="fp_44709d6fcb")
    head = {**HEAD, "system_fingerprint": "fp_44709d6fcb"}
    assert stream.role() == frame({**head, "choices": [choice({"role": "assistant", "content": ""})]})
    assert stream.content("Hello") == frame({**head, "choices": [choice({"content": "Hello"})]})
    assert stream.finish("stop") == frame({**head, "choices": [choice({}, reason="stop")]})


@pytest.mark.parametrize("asked", [False, True])
def test_usage_is_null_where_it_was_asked_for(asked: bool) -> None:
    """On every chunk but the last, which has it and no choices."""
    stream = chat(include_usage=asked, service_tier="default")
    null = {"usage": None} if asked else {}
    head = {**HEAD, "service_tier": "default"}
    assert stream.role() == frame({**head, "choices": [choice({"role": "assistant", "content": ""})], **null})
    assert stream.content("x") == frame({**head, "choices": [choice({"content": "x"})], **null})
    assert stream.finish("length") == frame({**head, "choices": [choice({}, reason="length")], **null})
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 12,
        "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    found = stream.usage(prompt=9, completion=12, cached=4, reasoning=0)
    assert found == frame({**head, "choices": [], "usage": usage})


@given(texts, texts, texts)
def test_chat_tool_calls(id: str, name: str, arguments: str) -> None:
    """The first piece has id, type and name, the others only arguments."""
    first = {"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
    assert chat().tool_call(0, id, name, "") == frame({**HEAD, "choices": [choice({"tool_calls": [first]})]})
    rest = {"index": 0, "function": {"arguments": arguments}}
    expected = frame({**HEAD, "choices": [choice({"tool_calls": [rest]}, 1)]})
    assert chat().tool_call(0, arguments=arguments, index=1) == expected


@given(texts, st.none() | texts)
def test_errors(message: str, code: str | None) -> None:
    """Message, type, param and code."""
    error = {"message": message, "type": "server_error", "param": None, "code": code}
    assert chat().error(message, code=code) == completion().error(message, code=code) == frame({"error": error})


@given(texts)
def test_completions(text: str) -> None:
    """As in the API reference's streaming example: the choices stand before the model."""
    stream = completion(system_fingerprint="fp_44709d6fcb")

    def expected(text: str, reason: str | None = None) -> bytes:
        return frame(
            {
                "id": "cmpl-1",
                "object": "text_completion",
                "created": 1690759702,
                "choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": reason}],
                "model": "gpt-3.5-turbo-instruct",
                "system_fingerprint": "fp_44709d6fcb",
            }
        )

    assert stream.content(text) == expected(text)
    assert stream.finish("stop", text=text) == expected(text, "stop")
    assert stream.finish("length") == expected("", "length")


@given(texts, texts, counts, counts)
def test_the_sdk_reads_it(text: str, name: str, prompt: int, completed: int) -> None:
    """Each frame, whichever server's it imitates, is a chunk of the openai SDK's, with nothing lost or added."""
    for like in LIKES:
        stream = chat(like=like)
        frames = [stream.role(), stream.content(text), stream.reasoning(text), stream.tool_call(0, "id", name, text)]
        frames += [stream.content(text, usage=(prompt, completed)), stream.finish("stop")]
        frames += [] if like == "transformers" else [stream.usage(prompt=prompt, completion=completed)]
        for one in frames:
            read = ChatCompletionChunk.model_validate_json(one[6:])
            assert read.model_dump(mode="json", exclude_unset=True) == orjson.loads(one[6:])
        line = completion(like=like).content(text)[6:]
        assert Completion.construct(**orjson.loads(line)).choices[0].text == text


# ---- sizes and numbers of frames ----


def streams() -> list[tuple[Any, Any]]:
    """Each kind of stream, where its text is in a frame's data."""
    response, message = sse.ResponseStream("resp_1", "m", 1), sse.MessageStream("msg_1", "m")
    response.item("msg_1")
    message.block_start()
    found: list[tuple[Any, Any]] = [(response, lambda data: data["delta"])]
    found.append((message, lambda data: data["delta"]["text"]))
    for like in LIKES:
        found.append((chat(like=like), lambda data: data["choices"][0]["delta"]["content"]))
        found.append((completion(like=like), lambda data: data["choices"][0]["text"]))
    return found


PIECES = ["x" * 97, "\n", '"\\', "é世界", "😀", "\x00\x1f\x7f", "\u2028 ", "/"]


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 4096, 2**16 + 1, 2**20])
def test_any_size(size: int) -> None:
    """From nothing to 1 MiB: orjson's own bytes for the text, whatever it is made of."""
    for piece in PIECES:
        text = (piece * (size // len(piece) + 1))[:size]
        for stream, text_of in streams():
            one = stream.content(text)
            assert orjson.dumps(text) in one
            assert text_of(orjson.loads(one.split(b"data: ", 1)[1])) == text


def events_of(frames: list[bytes]) -> list[httpx_sse.ServerSentEvent]:
    """What a client makes of them."""
    headers = {"content-type": "text/event-stream"}
    response = httpx.Response(200, headers=headers, content=b"".join(frames))
    return list(httpx_sse.EventSource(response).iter_sse())


def test_random_frames(random_frames: Any) -> None:
    """Whole, with the text as orjson writes it between the bytes of the reference."""
    stream = completion()

    def text_completion(text: str, _: int) -> bytes:
        choices = [{"text": text, "index": 0, "logprobs": None, "finish_reason": None}]
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1690759702}
        return frame({**head, "choices": choices, "model": "gpt-3.5-turbo-instruct"})

    random_frames(
        (chat().content, lambda text, _: frame({**HEAD, "choices": [choice({"content": text})]}), orjson.dumps),
        (
            chat().reasoning,
            lambda text, _: frame({**HEAD, "choices": [choice({"reasoning_content": text})]}),
            orjson.dumps,
        ),
        (stream.content, text_completion, orjson.dumps),
    )


@given(st.lists(texts, max_size=20))
def test_text_never_breaks_a_frame(deltas: list[str]) -> None:
    """Whatever the model writes, a client sees one event for each frame, and its text."""
    attacks = ["\n\ndata: [DONE]\n\n", "\r\n\r\nevent: error\r\n", 'x"}}]}\n\ndata: {}', "\r", "\ufeffdata: x", "\0"]
    for stream, text_of in streams():
        events = events_of([stream.content(text) for text in [*attacks, *deltas]])
        assert [text_of(event.json()) for event in events] == [*attacks, *deltas]
        assert len({event.event for event in events}) == 1
