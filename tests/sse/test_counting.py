"""Frames that encoders make are known to the send wrapper: it counts what a scan of the same bytes counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch import _hot, snapshots, sse
from tailwatch.asgi.middleware import timed_send

ROUTE = "/v1/chat/completions"
LIKES = ["openai", "vllm", "sglang", "transformers"]
Frames = Iterator[bytes]


class Answer:
    """One streamed answer through a Send of its own."""

    def __init__(self) -> None:
        self.core = _hot.Core("api", 8, (0, 0, 0, 0, 990_000), 0, lambda scope: ROUTE, timed_send)
        scope = {"type": "http", "path": "/", "root_path": "", "headers": [], "method": "POST"}
        now, flow = _hot.now(), SimpleNamespace(write_paused=False)
        self.sender = self.core.request(scope, lambda message: None, True, now, now, 0, 1, flow, False)
        headers = [(b"content-type", b"text/event-stream")]
        self.sender.send({"type": "http.response.start", "status": 200, "headers": headers})

    def send(self, body: bytes, more: bool = True) -> int:
        """The tokens that were counted for this message."""
        before = self.sender.stream.tokens
        self.sender.send({"type": "http.response.body", "body": body, "more_body": more})
        return self.sender.stream.tokens - before

    @property
    def result(self) -> tuple[Any, ...]:
        seen = snapshots.take([self.core.address])
        return seen.tokens, seen.requests, seen.labels, seen.ttft.count, seen.itl.count, seen.tpot.count, seen.drops


def counted(frames: Frames, change: Callable[[bytes], bytes] = bytes) -> tuple[list[int], tuple[Any, ...]]:
    """What is counted for each frame, sent as it is made, and at the end."""
    answer = Answer()
    tokens = [answer.send(change(frame)) for frame in frames]
    answer.send(b"", more=False)
    return tokens, answer.result


def unknown(frame: bytes) -> bytes:
    """The same bytes, as another object: they are scanned."""
    return bytes(bytearray(frame))


def agree(make: Callable[[], Frames]) -> list[int]:
    """Known and scanned frames count the same; the tokens of each."""
    known = counted(make())
    assert known == counted(make(), unknown)
    return known[0]


def chat_frames(like: str) -> Frames:
    stream = sse.ChatStream("chatcmpl-1", "some/model", 1, like=like)
    yield stream.role()
    yield stream.role(index=1)
    yield stream.reasoning("hm")
    yield stream.content("a")
    yield stream.content("b")
    yield stream.content("c", index=1)
    yield stream.content("", index=1)
    yield stream.content("d", usage=(5, 9))
    yield stream.tool_call(0, "call_1", "f", "{")
    yield stream.tool_call(0, arguments="}")
    yield stream.finish("stop")
    yield stream.finish("stop", index=1)
    if like != "transformers":
        yield stream.usage(prompt=5, completion=64)
    yield sse.DONE


@pytest.mark.parametrize("like", LIKES)
def test_chat(like: str) -> None:
    """Each kind of frame, two choices, usage, the model's name and the end."""
    tokens = agree(lambda: chat_frames(like))
    assert tokens[:8] == [0, 0, 1, 1, 1, 1, 0, 5]
    assert sum(tokens) == (64 if like != "transformers" else 9)
    assert counted(chat_frames(like))[1][2] == [("some/model", ROUTE)]


@pytest.mark.parametrize("like", LIKES)
def test_completions(like: str) -> None:
    """Text of two choices, empty text, and the end."""

    def make() -> Frames:
        stream = sse.CompletionStream("cmpl-1", "m", 1, like=like)
        yield stream.content("a")
        yield stream.content("b", index=1)
        yield stream.content("")
        yield stream.content("c")
        yield stream.finish("length")
        yield sse.DONE

    assert agree(make) == [1, 1, 0, 1, 0, 0]


def test_responses() -> None:
    """Preamble and ends are no tokens, each delta is one, and usage is the last word."""

    def make() -> Frames:
        stream = sse.ResponseStream("resp_1", "m", 1)
        yield stream.created()
        yield stream.in_progress()
        yield stream.item("rs_1", "reasoning")
        yield stream.content("hm")
        yield stream.item_done("hm")
        yield stream.item("msg_1")
        yield stream.content("a")
        yield stream.content("b")
        yield stream.item_done("ab")
        yield stream.completed(input=3, output=9)

    assert agree(make) == [0, 0, 0, 1, 0, 0, 1, 1, 0, 6]


@pytest.mark.parametrize("like", ["anthropic", "vllm"])
def test_messages(like: str) -> None:
    """Anthropic's events: the deltas of text and thinking are tokens, the rest is not."""

    def make() -> Frames:
        stream = sse.MessageStream("msg_1", "m", like=like)
        yield stream.message_start(input=3)
        yield stream.ping()
        yield stream.block_start("thinking")
        yield stream.content("hm")
        yield stream.block_stop()
        yield stream.block_start()
        yield stream.content("a")
        yield stream.content("b")
        yield stream.block_stop()
        yield stream.message_delta("end_turn", output=9)
        yield stream.message_stop()

    assert agree(make) == [0, 0, 0, 1, 0, 0, 1, 1, 0, 6, 0]


@pytest.mark.parametrize("like", LIKES)
def test_an_error_in_the_stream(like: str) -> None:
    """The request ends as an error, known or scanned."""

    def make() -> Frames:
        stream = sse.ChatStream("chatcmpl-1", "m", 1, like=like)
        yield stream.role()
        yield stream.content("a")
        yield stream.error("out of memory")
        yield sse.DONE

    agree(make)
    assert counted(make())[1][1]["error"] == 1


@given(st.lists(st.text() | st.text(st.sampled_from('\n\r"\\ \0é😀:{}[]')), max_size=30))
def test_any_text(texts: list[str]) -> None:
    """Whatever the model writes is one token, and never an end, an error or usage."""
    texts += ['"error":{}', "data: [DONE]\n\n", '"usage":{"completion_tokens":99}', '"model":"other"', ""]

    def make() -> Frames:
        stream = sse.ChatStream("chatcmpl-1", "m", 1)
        yield from map(stream.content, texts)

    assert agree(make) == [int(bool(text)) for text in texts]


@pytest.mark.parametrize("n", [0, 2, 17])
def test_several_tokens_in_one_text(n: int) -> None:
    """What content() was given counts, for its choice; a scan cannot know it."""
    response, message = sse.ResponseStream("resp_1", "m", 1), sse.MessageStream("msg_1", "m")
    response.item("msg_1"), message.block_start()
    streams: list[Any] = [sse.ChatStream("chatcmpl-1", "m", 1), sse.CompletionStream("cmpl-1", "m", 1)]
    for stream in [*streams, response, message]:
        answer = Answer()
        assert answer.send(stream.content("one")) == 1
        assert answer.send(stream.content("some tokens", tokens=n)) == n
        assert answer.send(unknown(stream.content("some tokens", tokens=n))) == 1
    assert answer.result[3:5] == (1, 2 if n else 1)


def test_tokens_and_usage_at_once() -> None:
    """Usage raises the count where it is the larger number."""
    stream, answer = sse.ChatStream("chatcmpl-1", "m", 1), Answer()
    assert answer.send(stream.content("ab", tokens=2, usage=(5, 2))) == 2
    assert answer.send(stream.content("cd", tokens=2, usage=(5, 9))) == 7


def test_content_templates_are_known() -> None:
    """The hot frames need no scan, in any stream."""
    response, message = sse.ResponseStream("resp_1", "m", 1), sse.MessageStream("msg_1", "m")
    response.item("msg_1"), message.block_start()
    streams: list[Any] = [sse.ChatStream("c", "m", 1, like=like) for like in LIKES]
    streams += [sse.CompletionStream("c", "m", 1, like=like) for like in LIKES]
    assert [stream._template.known for stream in [*streams, response, message]] == [True] * 10
    assert sse.Template.learn('data: {"model":"m","choices":[{"text":"x"}]}\n\n', "x").known
