"""What the encoders refuse, and when: at construction, by name, and never as a surprise in content()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import orjson
import pytest

from tailwatch import errors, sse

GOOD: dict[str, Any] = {"id": "chatcmpl-1", "model": "m", "created": 1}


class Text(str):
    """A str that is not exactly one."""


@pytest.mark.parametrize("make", [sse.ChatStream, sse.CompletionStream])
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("id", None, "id=None: expected a str"),
        ("id", b"x", "id=b'x'"),
        ("model", 7, "model=7: expected a str"),
        ("model", "\udc00", "model=.*surrogate"),
        ("created", 1.5, r"created=1\.5: expected an int"),
        ("created", -1, "created=-1"),
        ("created", True, "created=True"),
        ("created", 2**63, "created="),
        ("index", -1, "index=-1"),
        ("index", "0", "index='0'"),
        ("like", "vlm", r"like='vlm': .*openai, vllm \(0\.33\), sglang \(0\.5\.23\), transformers \(5\.23\);.*'vllm'"),
        ("like", None, "like=None"),
        ("include_usage", 1, "include_usage=1: expected True or False"),
        ("system_fingerprint", 5, "system_fingerprint=5"),
    ],
)
def test_construction(make: Any, option: str, value: Any, message: str) -> None:
    """Each argument is checked when the stream is made."""
    with pytest.raises(errors.OptionError, match=message):
        make(**(GOOD | {option: value}))


def test_what_a_server_does_not_send() -> None:
    """An option or value that the imitated server has no place for is an error, not left out in silence."""
    with pytest.raises(errors.OptionError, match=r"service_tier.*sends no such field"):
        sse.ChatStream(**GOOD, like="vllm", service_tier="default")
    with pytest.raises(errors.OptionError, match=r"system_fingerprint.*sends no such field"):
        sse.CompletionStream(**GOOD, like="sglang", system_fingerprint="fp")
    stream = sse.ChatStream(**GOOD)
    with pytest.raises(errors.OptionError, match=r"stop='END'.*finish frame"):
        stream.finish("stop", stop="END")
    with pytest.raises(errors.OptionError, match=r"reasoning=3: .*usage frame"):
        sse.CompletionStream(**GOOD, like="vllm").usage(prompt=1, completion=2, cached=1, reasoning=3)
    with pytest.raises(errors.OptionError, match="sends no usage frame"):
        sse.CompletionStream(**GOOD, like="transformers").usage(prompt=1, completion=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"index": -1}, "index=-1"),
        ({"index": True}, "index=True"),
        ({"index": 1.0}, r"index=1\.0"),
        ({"index": 2**32}, "index=4294967296"),
        ({"tokens": -1}, "tokens=-1"),
        ({"tokens": 2**32}, "tokens=4294967296"),
        ({"tokens": 1.0}, r"tokens=1\.0"),
        ({"usage": (1,)}, r"usage=\(1,\): expected .*prompt.*completion"),
        ({"usage": 7}, "usage=7"),
        ({"usage": (1, -2)}, "completion=-2"),
        ({"usage": ("1", 2)}, "prompt='1'"),
        ({"usage": (2**63 - 1, 1)}, r"prompt \+ completion=9223372036854775808: .* int from 0"),
    ],
)
def test_options_of_content(options: dict[str, Any], message: str) -> None:
    """They are checked by name, too, also where a frame for such a choice was made before."""
    for stream in (sse.ChatStream(**GOOD), sse.CompletionStream(**GOOD)):
        stream.content("x", index=1)
        with pytest.raises(errors.OptionError, match=message):
            stream.content("x", **options)


def test_text_that_is_no_text() -> None:
    """A TypeError that names what it is, wherever the text would go."""
    stream: Any = sse.ChatStream(**GOOD)
    calls: list[Callable[[Any], bytes]] = [
        stream.content,
        lambda bad: stream.content(bad, index=1),
        lambda bad: stream.content(bad, logprobs={}),
        lambda bad: stream.content(bad, usage=(1, 2)),
        stream.reasoning,
        stream.error,
    ]
    for bad, name in ((None, "NoneType"), (b"x", "bytes"), (7, "int")):
        for call in calls:
            with pytest.raises(TypeError, match=f"expected str, found {name}"):
                call(bad)
    with pytest.raises(TypeError, match="content"):
        stream.content()
    with pytest.raises(TypeError, match="unexpected keyword argument 'choice'"):
        stream.content("x", choice=1)
    with pytest.raises(errors.OptionError, match="call=-1"):
        stream.tool_call(-1, arguments="x")
    with pytest.raises(TypeError, match="name: expected str"):
        stream.tool_call(0, "id", b"name")
    for more in ({}, {"index": 1}):
        with pytest.raises(TypeError, match="arguments: expected str, found dict"):
            stream.tool_call(0, arguments={}, **more)


@pytest.mark.parametrize("like", ["openai", "vllm", "sglang", "transformers"])
def test_a_tool_call_with_nothing_in_it(like: str) -> None:
    """It is refused; so is a choice that is no int, where frames of such a choice were made before."""
    stream: Any = sse.ChatStream(**GOOD, like=like)
    with pytest.raises(errors.OptionError, match=r"^arguments=None: expected .*\bid\b.*name"):
        stream.tool_call(0)
    stream.tool_call(0, arguments="{", index=1)
    for index in (True, 1.0):
        with pytest.raises(errors.OptionError, match=f"index={index}"):
            stream.tool_call(0, arguments="{", index=index)
        with pytest.raises(errors.OptionError, match=f"index={index}"):
            stream.reasoning("x", index=index)


@pytest.mark.parametrize("count", [-1, 2**32, 2**70, True])
def test_any_usage_beside_a_number_of_tokens(count: int) -> None:
    """A usage that is given as an object is sent as it is, whatever it holds."""
    usage = {"completion_tokens": count}
    frame = sse.ChatStream(**GOOD).content("ab", tokens=2, usage=usage)
    assert msgspec.json.decode(frame[6:])["usage"] == usage
    if 0 <= count < 2**63 and count is not True:
        assert sse.ChatStream(**GOOD).content("ab", tokens=2, usage=(0, count)) != frame


def test_usage_that_adds_up_to_too_much() -> None:
    """A sum beyond 64 bits is refused like a count that is."""
    most = 2**63 - 1
    calls: list[Callable[[], bytes]] = [
        lambda: sse.ChatStream(**GOOD).usage(prompt=most, completion=1),
        lambda: sse.ChatStream(**GOOD).finish("stop", usage=(1, most)),
        lambda: sse.ResponseStream(**GOOD).completed(input=most, output=1),
        lambda: sse.ResponseStream(**GOOD).incomplete(input=1, output=most),
    ]
    for call in calls:
        with pytest.raises(errors.OptionError, match=r" \+ .*=9223372036854775808: .* int from 0"):
            call()


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\n\nevent: evil\ndata: x\n\n"])
@pytest.mark.parametrize("raw", [orjson.Fragment, msgspec.Raw])
def test_json_that_is_written_already(raw: Callable[[bytes], object], end: str) -> None:
    """A line end in it would end the frame's data: it is refused, and no event is numbered by it."""
    fragment = raw(b'{"a":' + end.encode() + b"1}")
    likes = ["openai", "vllm"] if raw is orjson.Fragment else ["sglang"]
    response = sse.ResponseStream(**GOOD)
    response.item("msg_1")
    calls: list[Callable[[], bytes]] = [
        *(lambda like=like: sse.ChatStream(**GOOD, like=like).content("x", logprobs=fragment) for like in likes),
        *(lambda like=like: sse.ChatStream(**GOOD, like=like).content("x", usage={"a": fragment}) for like in likes),
    ]
    if raw is orjson.Fragment:
        calls += [
            lambda: sse.event(fragment),
            lambda: sse.event([fragment], event="x"),
            lambda: response.content("x", logprobs=fragment),
            lambda: sse.ResponseStream(**GOOD, fields={"tools": fragment}).created(),
        ]
    for call in calls:
        with pytest.raises(errors.OptionError, match="expected JSON on one line"):
            call()
    assert b'"sequence_number":2,' in response.content("x")


def test_a_kind_of_str() -> None:
    """A subclass of str is text; as a keyword it is text, too."""
    stream = sse.ChatStream(**GOOD)
    assert stream.content(Text("é")) == stream.content("é") == stream.content(text="é")


def test_other_objects() -> None:
    """A response's fields must be a mapping; its own keys are replaced where they stand, others come last."""
    with pytest.raises(errors.OptionError, match="fields=7: expected a mapping"):
        sse.ResponseStream(**GOOD, fields=7)  # type: ignore[arg-type]
    for key in ("id", "model", "created_at", "output", "status", "usage", "error", "incomplete_details"):
        with pytest.raises(errors.OptionError, match=f"fields='{key}': .*the stream sets itself"):
            sse.ResponseStream(**GOOD, fields={"temperature": 1, key: "x"})
    plain = sse.ResponseStream(**GOOD).created()
    warm = sse.ResponseStream(**GOOD, fields={"temperature": 0.5, "extra": "x"}).created()
    expected = plain.replace(b'"temperature":1.0', b'"temperature":0.5').replace(
        b'"output_messages":null', b'"output_messages":null,"extra":"x"'
    )
    assert warm == expected != plain
    with pytest.raises(errors.OptionError, match=r"like='openai': .*anthropic, vllm"):
        sse.MessageStream("msg_1", "m", like="openai")
    with pytest.raises(AttributeError):
        sse.ChatStream(**GOOD).anything = 1  # type: ignore[attr-defined]


def test_what_is_closed_takes_no_content() -> None:
    """Between two blocks or items there is nothing for content() to belong to, and nothing may begin inside another."""
    message = sse.MessageStream("msg_1", "m")
    message.block_start()
    message.content("a")
    with pytest.raises(errors.TailwatchError, match="block_stop"):
        message.block_start()
    message.block_stop()
    with pytest.raises(errors.TailwatchError, match="block_start"):
        message.content("b")
    response = sse.ResponseStream("resp_1", "m", 1)
    response.item("msg_1")
    response.content("a")
    with pytest.raises(errors.TailwatchError, match="item_done"):
        response.item("msg_2")
    calls: list[Callable[..., bytes]] = [response.completed, response.incomplete]
    for call in calls:
        with pytest.raises(errors.TailwatchError, match=r"\bitem_done\(\)"):
            call(input=1, output=1)
    response.item_done("a")
    with pytest.raises(errors.TailwatchError, match=r"item\(\)"):
        response.content("b")
    for call in calls:
        assert call(input=1, output=1)


def test_a_response_may_fail_inside_an_item() -> None:
    """failed() and error() need nothing closed: what fails, fails in the middle."""
    response = sse.ResponseStream(**GOOD)
    response.item("msg_1")
    assert b"response.failed" in response.failed("out of memory") and b"error" in response.error("out of memory")


def test_what_a_message_takes_where() -> None:
    """A signature belongs to thinking, the last event comes after the last block, a stop sequence is text."""
    message: Any = sse.MessageStream("msg_1", "m")
    for kind, named in (("text", {}), ("tool_use", {"id": "toolu_1", "name": "f"})):
        message.block_start(kind, **named)
        with pytest.raises(errors.TailwatchError, match=r"thinking.*signature"):
            message.signature("c2ln")
        with pytest.raises(errors.TailwatchError, match=r"\bblock_stop\(\)"):
            message.message_stop()
        message.block_stop()
    for bad in (5, b"END", "\ud800"):
        with pytest.raises(errors.OptionError, match="stop_sequence="):
            message.message_delta("stop_sequence", output=1, stop_sequence=bad)
    assert b'"stop_sequence":"END"' in message.message_delta("stop_sequence", output=1, stop_sequence="END")
    assert b"message_stop" in message.message_stop()
