"""Frames that our own encoders made: Send finds them by identity and does not look at their bytes."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tailwatch import _hot, snapshots
from tailwatch.asgi.middleware import timed_send

SSE, LINES = b"text/event-stream", b"application/x-ndjson"
HEAD = b'data: {"model":"m","choices":[{"index":1,"delta":{"content":"'
TAIL = b'"}}]}\n\n'


def template(head: bytes = HEAD, tail: bytes = TAIL) -> _hot.Template:
    return _hot.Template(head + tail, ((len(head), False),))


class Exchange:
    """One generation request; `frames` go out as the bodies of an answer."""

    def __init__(self, content_type: bytes = SSE) -> None:
        self.core = _hot.Core("api", 8, (0, 0, 0, 0, 990_000), 0, lambda scope: "/r", timed_send)
        scope: dict[str, Any] = {"type": "http", "path": "/", "root_path": "", "headers": [], "method": "POST"}
        now = _hot.now()
        flow = SimpleNamespace(write_paused=False)
        self.send = self.core.request(scope, lambda message: None, True, now, now, 0, 1, flow, False)
        headers = [(b"content-type", content_type)]
        self.send.send({"type": "http.response.start", "status": 200, "headers": headers})

    def put(self, *frames: bytes) -> Exchange:
        for frame in frames:
            self.send.send({"type": "http.response.body", "body": frame, "more_body": True})
        return self

    def end(self) -> snapshots.Snapshot:
        self.send.send({"type": "http.response.body", "body": b"", "more_body": False})
        return snapshots.take([self.core.address])


def counted(seen: snapshots.Snapshot) -> dict[str, Any]:
    """What does not depend on the clock."""
    counts = {name: getattr(seen, name).count for name in ("ttft", "itl", "tpot", "e2e")}
    return counts | {"tokens": seen.tokens, "labels": seen.labels, "requests": seen.requests, "drops": seen.drops}


def copied(frame: bytes) -> bytes:
    """The same bytes, which are not known."""
    return bytes(bytearray(frame))


def test_a_known_frame_is_not_scanned() -> None:
    """What note() was given counts, whatever the bytes are; a copy of them is looked at."""
    frame = b"data: nonsense that is a token\n\n"
    known = Exchange().put(_hot.note(frame, 5, 0, 0, False, False)).end()
    scanned = Exchange().put(copied(frame)).end()
    assert (known.tokens, scanned.tokens) == (5, 1)


def test_frames_count_as_their_copies_do() -> None:
    """Role, content, empty content, finish, usage and the end marker: the same numbers, labels and verdicts."""
    role = _hot.Template(
        b'data: {"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n', ()
    )
    finish = _hot.Template(b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n', ())
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":}}\n\n'
    tail = _hot.Template(usage, ((len(usage) - 4, True),))
    done = _hot.Template(b"data: [DONE]\n\n", ())
    content = template()

    def frames() -> list[bytes]:
        texts = [content.splice(text) for text in (" a", "", 'b"c', "\N{SNOWMAN}", "d" * 20_000)]
        return [role.fill(), *texts, finish.fill(), tail.fill(9), done.fill()]

    known = Exchange()
    for frame in frames():  # one by one: the table holds few
        known.put(frame)
    scanned = Exchange().put(*map(copied, frames()))
    assert counted(known.end()) == counted(scanned.end())
    assert known.end().tokens == 9
    assert known.end().labels == [("m", "/r")]


def test_each_frame_counts_for_its_choice() -> None:
    """Two choices, each with a TPOT of its own."""
    other = template(HEAD.replace(b":1,", b":0,"))
    exchange = Exchange()
    for text in ("a", "b", "c"):
        exchange.put(template().splice(text), other.splice(text))
    assert exchange.end().tpot.count == 2


def test_an_event_that_is_open_takes_what_follows() -> None:
    """A frame behind half an event belongs to that event: it is scanned with it."""
    frame = _hot.note(b'"role":"assistant"}}]}\n\n', 7, 0, 0, False, False)
    seen = Exchange().put(b'data: {"choices":[{"delta":{', frame).end()
    assert seen.tokens == 0


def test_other_framings_are_scanned() -> None:
    """A frame that is sent as lines of JSON is read as such."""
    seen = Exchange(LINES).put(_hot.note(b'{"response":"a"}\n{"response":"b"}\n', 7, 0, 0, False, False)).end()
    assert seen.tokens == 2


def test_a_text_of_several_tokens_keeps_the_model_of_its_frame() -> None:
    """note() changes the count; what else the template has stays."""
    exchange = Exchange()
    for n in (2, 3):
        exchange.put(_hot.note(template().splice("two or three"), n, 1, 0, False, False))
    seen = exchange.end()
    assert (seen.tokens, seen.labels) == (5, [("m", "/r")])


def test_many_noted_before_the_first_is_sent() -> None:
    """What a scan cannot know is kept for some hundred frames, whatever their length."""
    content = template()
    texts = [f"text {i}" for i in range(200)] + ["x" * 20_000]
    frames = [_hot.note(content.splice(text), 3, 1, 0, False, False) for text in texts]
    assert Exchange().put(*frames).end().tokens == 3 * len(texts)


def test_a_frame_without_a_known_model_is_read_for_it() -> None:
    """What note() has of a frame that no template made: its model still comes from its bytes."""
    frame = copied(template().splice("two tokens"))
    seen = Exchange().put(_hot.note(frame, 2, 1, 0, False, False)).end()
    assert (seen.tokens, seen.labels) == (2, [("m", "/r")])


def test_what_is_never_sent_is_bounded() -> None:
    """4 MiB of frames with a count of their own are held, and none once the last watch is gone."""
    _ = Exchange()
    content = template()
    frames = [_hot.note(content.splice("x" * 2**20), 2, 1, 0, False, False) for _ in range(16)]
    counts = [sys.getrefcount(frame) for frame in frames]
    assert counts.count(max(counts)) == 3
    _hot.forget_frames()
    assert {sys.getrefcount(frame) for frame in frames} == {min(counts)}


@pytest.mark.parametrize("text", ["real-model", "x"])
def test_a_hole_that_decides_what_the_frame_is(text: str) -> None:
    """Where the text is the model, or the event's kind, the frame is scanned."""
    frame = b'data: {"model":"","choices":[{"delta":{"content":"hi"}}]}\n\n'
    made = _hot.Template(frame, ((len(b'data: {"model":"'), False),))
    assert not made.known
    assert Exchange().put(made.splice(text)).end().labels == [(text, "/r")]


def test_a_subclass_may_have_its_own_content() -> None:
    """An override of content(), in the class or in one before ours, is called; and so are other bases' hooks."""
    received: list[type] = []

    class Registry:
        def __init_subclass__(cls, **kwargs: Any) -> None:
            received.append(cls)
            super().__init_subclass__(**kwargs)

    class Redacting:
        def content(self, text: str) -> str:
            return "[redacted]"

    class Own(_hot.Encoder):
        def content(self, text: str) -> str:  # type: ignore[override]
            return "mine"

    class Mixed(Redacting, _hot.Encoder, Registry):  # type: ignore[misc]
        pass

    class Plain(_hot.Encoder, Registry):
        __slots__ = ()

    assert (Own().content("x"), Mixed().content("x"), received) == ("mine", "[redacted]", [Mixed, Plain])
    plain = Plain()
    plain._template = template()
    assert plain.content("a") == template().splice("a")


@pytest.mark.parametrize("n", [1, 64, 500])
def test_any_number_made_before_the_first_is_sent(n: int) -> None:
    """Those that found no place in the table are scanned; none is lost."""
    content = template()
    frames = [content.splice(f"text {i}") for i in range(n)]
    assert Exchange().put(*frames).end().tokens == n


def test_a_frame_sent_twice_counts_twice() -> None:
    """The second time it is scanned."""
    frame = template().splice("a")
    assert Exchange().put(frame, frame).end().tokens == 2


def test_a_frame_that_was_sent_is_let_go() -> None:
    """The table holds a frame until it is sent, and no longer."""
    frame = template().splice("some text")
    held = sys.getrefcount(frame)
    Exchange().put(frame).end()
    assert sys.getrefcount(frame) == held - 1


def test_long_frames_are_not_held() -> None:
    """What is over 16 KiB is scanned: an idle table keeps little memory."""
    _ = Exchange()
    frame = template().splice("x" * 20_000)
    unknown = copied(frame)
    assert sys.getrefcount(frame) == sys.getrefcount(unknown)


def test_the_makers_facts_outlive_it() -> None:
    """The template may be gone when its frame is sent."""
    frames = [template(HEAD.replace(b'"m"', b'"model %d"' % i)).splice("a") for i in range(8)]
    exchange = Exchange().put(*frames)
    assert exchange.end().labels == [("model 0", "/r")]
