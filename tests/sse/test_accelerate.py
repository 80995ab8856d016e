"""sse.accelerate: what it takes over, what it leaves alone, that nothing is stale, and that it goes without a trace."""

from __future__ import annotations

import enum
import functools
import gc
import inspect
import logging
import os
import re
import threading
import tracemalloc
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal

import openai.types.chat
import openai.types.responses
import pydantic
import pydantic.v1
import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    WrapSerializer,
    computed_field,
    field_serializer,
    model_serializer,
)
from pydantic_core import PydanticSerializationError, core_schema

from tailwatch import _hot, sse
from tailwatch.errors import AlreadyInstalledError, OptionError
from tailwatch.sse import Acceleration, Fallback
from tailwatch.sse.accelerate import listen, unlisten

from ..support.stream_classes.vllm import DeltaFunctionCall, DeltaMessage, DeltaToolCall

NEVER = 2**62
UNCHECKED: dict[str, Any] = {"compare_first": 0, "compare_every": NEVER}
TRUSTED: dict[str, Any] = {**UNCHECKED, "trust_serializers": True}


class Choice(BaseModel):
    index: int
    delta: DeltaMessage
    logprobs: list[float] | None = None
    finish_reason: Literal["stop", "length"] | None = None


class Usage(BaseModel):
    completion_tokens: int
    cached: int = 0


class Chunk(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None
    final: bool = False


def chunk(content: str | None = " token", **fields: Any) -> Chunk:
    given: dict[str, Any] = {"id": "c-1", "created": 1700000000, "model": "m", **fields}
    return Chunk(choices=[Choice(index=0, delta=DeltaMessage(content=content))], **given)


def original(model: BaseModel, **kwargs: Any) -> str:
    """What the class itself writes, whatever replaced its method."""
    return BaseModel.model_dump_json(model, **kwargs)


def plans(acceleration: Acceleration) -> list[_hot.Plan]:
    return acceleration._plans.plans()


def uses(acceleration: Acceleration) -> int:
    """How many texts were ours."""
    return sum(plan.uses for plan in plans(acceleration))


@pytest.fixture
def unchecked() -> Iterator[Acceleration]:
    """Chunk, its texts returned as they are made, and never compared."""
    with sse.accelerate(Chunk, **TRUSTED) as acceleration:
        yield acceleration


# ---- the text ----


def test_the_first_of_a_shape_is_learned_and_the_others_are_written(unchecked: Acceleration) -> None:
    """One call each time goes to the class, and no more."""
    for content in ("a", "b", "c"):
        assert chunk(content).model_dump_json(exclude_unset=True) == original(chunk(content), exclude_unset=True)
    assert uses(unchecked) == 2
    assert unchecked.shapes == ["Chunk:choices.0.delta.content"]
    assert not unchecked.fallbacks


@pytest.mark.parametrize(
    "content",
    ["", '"', "\\", "\x00\x1f\x7f", "\u2028\ufeff", "日本語", "\U0001f600", "</script>", "x" * 100_000, "é\n" * 5000],
)
def test_any_text(unchecked: Acceleration, content: str) -> None:
    """Escapes, controls, planes and lengths, also where the buffer on the stack is too short."""
    for kwargs in ({}, {"by_alias": True}, {"indent": 2}):
        chunk("first").model_dump_json(**kwargs)
        assert chunk(content).model_dump_json(**kwargs) == original(chunk(content), **kwargs)
    assert uses(unchecked) == 3


@pytest.mark.parametrize("created", [0, 1, -1, 10**9, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**200])
def test_any_number(unchecked: Acceleration, created: int) -> None:
    """Within 64 bits it is written, beyond it belongs to a shape of its own."""
    chunk().model_dump_json()
    assert chunk(created=created).model_dump_json() == original(chunk(created=created))
    assert uses(unchecked) == (-(2**63) <= created < 2**63)


def test_nothing_is_stale(unchecked: Acceleration) -> None:
    """Each field in turn changes in an object whose shape is warm: also to another type, to nothing, and back."""
    one = chunk(usage=Usage(completion_tokens=1))
    one.model_dump_json()
    places: list[tuple[Any, str]] = [(one, name) for name in Chunk.model_fields if name not in ("choices", "usage")]
    places += [(one.choices[0], "index"), (one.choices[0], "finish_reason"), (one.choices[0], "logprobs")]
    places += [(one.choices[0].delta, "content"), (one.choices[0].delta, "role"), (one.usage, "completion_tokens")]
    for owner, name in places:
        before = getattr(owner, name)
        for value in ("other", "", 7, 0, None, True, False, [0.5], before):
            owner.__dict__[name] = value
            assert one.model_dump_json(warnings=False) == original(one, warnings=False), (name, value)
            assert one.model_dump_json(warnings=False) == original(one, warnings=False), (name, value)
    assert uses(unchecked) > len(places)


def test_parts_that_come_and_go(unchecked: Acceleration) -> None:
    """Choices, tool calls, usage, unknown fields and the set of given fields change in one object."""
    one = chunk()
    choice = one.choices[0]
    changes: list[Callable[[], object]] = [
        lambda: one.choices.append(choice),
        lambda: one.choices.clear(),
        lambda: one.choices.append(choice),
        lambda: choice.delta.tool_calls.append(DeltaToolCall(index=0, function=DeltaFunctionCall(arguments="{"))),
        lambda: setattr(choice.delta.tool_calls[0].function, "arguments", "}"),
        lambda: choice.delta.tool_calls.clear(),
        lambda: setattr(one, "usage", Usage(completion_tokens=5)),
        lambda: setattr(one, "reasoning", "hm"),
        lambda: setattr(one, "reasoning", "so"),
        lambda: delattr(one, "reasoning"),
        lambda: one.__pydantic_fields_set__.discard("created"),
        lambda: one.__pydantic_fields_set__.add("created"),
        lambda: choice.delta.__pydantic_fields_set__.clear(),
        lambda: choice.delta.__pydantic_fields_set__.add("role"),
        lambda: one.__dict__.pop("usage"),
        lambda: one.__dict__.update(usage=None),
    ]
    calls: list[dict[str, Any]] = [{"exclude_unset": True}, {"exclude_none": True}]
    for change in changes:
        change()
        for kwargs in calls:
            for _ in range(2):
                assert one.model_dump_json(**kwargs) == original(one, **kwargs)
    assert unchecked.fallbacks.keys() <= {("Chunk", "shapes")}


def test_interleaved_requests(unchecked: Acceleration) -> None:
    """Other ids, models and times are no other shapes."""
    for n in range(40):
        one = chunk(f"t{n}", id=f"c-{n % 7}", created=1700000000 + n, model=f"m{n % 3}")
        assert one.model_dump_json() == original(one)
    assert len(plans(unchecked)) == 1


def test_arguments_are_distinguished(unchecked: Acceleration) -> None:
    """By name, value and type: True is not 1."""
    calls: list[dict[str, Any]] = [
        {},
        {"exclude_none": True},
        {"exclude_none": False},
        {"indent": 1},
        {"indent": True},
        {"by_alias": True},
    ]
    for _ in range(3):
        for kwargs in calls:
            assert chunk().model_dump_json(**kwargs) == original(chunk(), **kwargs)
    assert len(plans(unchecked)) == len(calls)


def test_fields_set_is_not_looked_at_in_vain() -> None:
    """Where it decides nothing, it makes no shapes."""

    class Plain(BaseModel):
        text: str
        more: str = "x"

    with sse.accelerate(Plain, **UNCHECKED) as acceleration:
        assert Plain(text="a").model_dump_json() == Plain(text="a", more="x").model_dump_json()
        assert len(plans(acceleration)) == 1
        assert Plain(text="a").model_dump_json(exclude_unset=True) == '{"text":"a"}'
        assert Plain(text="a", more="x").model_dump_json(exclude_unset=True) == '{"text":"a","more":"x"}'
        assert len(plans(acceleration)) == 3


def test_openai_types() -> None:
    """The openai package's own classes, built late and with unions inside."""
    make = functools.partial(
        openai.types.responses.ResponseTextDeltaEvent, type="response.output_text.delta", logprobs=[]
    )
    with sse.accelerate(openai.types.responses.ResponseTextDeltaEvent, **UNCHECKED) as acceleration:
        for n in range(5):
            event = make(item_id=f"i{n}", content_index=n % 2, output_index=n, delta=f"é{n}", sequence_number=n)
            assert event.model_dump_json(indent=None, by_alias=True) == original(event, indent=None, by_alias=True)
        assert uses(acceleration) == 4
    with sse.accelerate(openai.types.chat.ChatCompletionChunk, **UNCHECKED) as acceleration:
        for n in range(5):
            fields: dict[str, Any] = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk"}
            fields["choices"] = [
                {"index": 0, "delta": {"content": str(n), "reasoning_content": "r"}, "finish_reason": None}
            ]
            one = openai.types.chat.ChatCompletionChunk.construct(**fields)
            assert one.model_dump_json(exclude_none=True) == original(one, exclude_none=True)
        assert uses(acceleration) == 4


# ---- serialisers with a will of their own ----


def test_what_a_serialiser_changes_is_compared() -> None:
    """A value that is not written as it is belongs to the shape."""

    class Loud(BaseModel):
        role: str
        text: str

        @field_serializer("role")
        def _loud(self, role: str) -> str:
            return role.upper()

    with sse.accelerate(Loud, **UNCHECKED) as acceleration:
        for role in ("user", "tool", "user", "tool"):
            assert Loud(role=role, text="a").model_dump_json() == f'{{"role":"{role.upper()}","text":"a"}}'
        assert len(plans(acceleration)) == 2 and uses(acceleration) == 2


def test_a_changed_value_that_varies_is_left_to_the_class() -> None:
    """Not one shape for each text: after a few the place itself is left alone, counted once."""

    class Strip(BaseModel):
        text: str

        @field_serializer("text")
        def _strip(self, text: str) -> str:
            return text.strip()

    with sse.accelerate(Strip, **UNCHECKED) as acceleration:
        for n in range(100):
            assert Strip(text=f" {n} ").model_dump_json() == f'{{"text":"{n}"}}'
        assert dict(acceleration.fallbacks) == {Fallback("Strip:text", "unsupported"): 1}
        assert len(plans(acceleration)) < 12


@pytest.mark.parametrize(
    "keep", [len, str.lower, lambda text: text[:100], lambda text: text + text, lambda text: [text]]
)
@pytest.mark.parametrize("trusted", [False, True])
def test_no_serialiser_is_taken_for_the_plain_one(keep: Callable[[str], object], trusted: bool) -> None:
    """Lengths, cases, cuts, doubles and wrappings show when the text is another."""

    class Changed(BaseModel):
        text: str

        @field_serializer("text")
        def _change(self, text: str) -> Any:
            return keep(text)

    with sse.accelerate(Changed, trust_serializers=trusted, **UNCHECKED):
        for text in ("abc", "Abc", "x" * 200, "", "abc"):
            assert Changed(text=text).model_dump_json() == original(Changed(text=text))


def test_a_serialiser_that_drops_what_is_empty() -> None:
    """ "" and 0 are written only where the class writes them like any other."""

    class Sparse(BaseModel):
        text: str
        number: int

        @model_serializer(mode="wrap")
        def _sparse(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
            return {name: value for name, value in handler(self).items() if value}

    with sse.accelerate(Sparse, **TRUSTED) as acceleration:
        for text, number in [("a", 1), ("", 1), ("a", 0), ("", 0), ("b", 2), ("", 3), ("c", 0)]:
            assert Sparse(text=text, number=number).model_dump_json() == original(Sparse(text=text, number=number))
        assert len(plans(acceleration)) == 4


class Fickle(BaseModel):
    """Writes another text as soon as it is switched."""

    text: str
    shout: ClassVar[bool] = False

    @field_serializer("text")
    def _text(self, text: str) -> str:
        return text.upper() if Fickle.shout else text


@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize(("first", "every"), [(16, 1024), (0, 7), (3, 1), (0, 1)])
def test_a_serialiser_that_changes_its_mind_is_found_out(
    first: int, every: int, listens: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Within compare_every calls; from then on the class writes that shape, counted, and reported once: to on_fallback
    where there is one, else to the log."""
    reported: list[tuple[str, str]] = []
    listener = (lambda *what: reported.append(what)) if listens else None
    with sse.accelerate(Fickle, compare_first=first, compare_every=every, on_fallback=listener) as acceleration:
        for _ in range(first + 20):
            assert Fickle(text="a").model_dump_json() == '{"text":"a"}'
        monkeypatch.setattr(Fickle, "shout", True)
        texts = [Fickle(text="a").model_dump_json() for _ in range(every + 50)]
        wrong = texts.count('{"text":"a"}')
        assert wrong < every
        assert texts[wrong:] == ['{"text":"A"}'] * (every + 50 - wrong)
        assert dict(acceleration.fallbacks) == {("Fickle:text", "differs"): 1}
        assert acceleration.shapes == []
    assert reported == [("Fickle:text", "differs")] * listens
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * (not listens)


def test_how_often_it_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first texts of a shape, then one in compare_every."""
    asked: list[int] = []
    counter = iter(range(10_000))

    class Counting(BaseModel):
        text: str

        def model_dump_json(self, **kwargs: Any) -> str:
            if kwargs.get("warnings") != "error":
                asked.append(now)
            return super().model_dump_json(**kwargs)

    with sse.accelerate(Counting, compare_first=4, compare_every=10, trust_serializers=True):
        for now in counter:
            if now == 50:
                break
            Counting(text=str(now)).model_dump_json()
    assert asked == [0, 1, 2, 3, 4, 14, 24, 34, 44]


# ---- serialisers that look at the text ----


def plain_cut(text: str) -> str:
    return text[:1000]


class Redacting(BaseModel):
    text: str

    @field_serializer("text")
    def _redact(self, text: str) -> str:
        return text.replace("SSN", "***")


class Matching(BaseModel):
    text: str

    @field_serializer("text")
    @staticmethod
    def _match(text: str) -> str:
        return re.sub(r"\d{3}-\d{2}", "***", text)


class Cutting(BaseModel):
    text: Annotated[str, PlainSerializer(plain_cut)]


class Wrapping(BaseModel):
    text: Annotated[str, WrapSerializer(lambda text, handler: handler(text.replace("SSN", "***")))]


class Leaving(BaseModel):
    text: str = Field(exclude_if=lambda text: "SSN" in text)


class Within(BaseModel):
    """The function is given an object, and looks at a text in it."""

    text: Annotated[
        DeltaFunctionCall, WrapSerializer(lambda value, handler: None if "SSN" in value.name else handler(value))
    ]

    def __init__(self, text: str) -> None:
        super().__init__(text=DeltaFunctionCall(name=text))


class Aside(BaseModel):
    """The function of one field looks at another, by way of the object."""

    kind: str = "a"
    text: str

    @field_serializer("kind")
    def _kind(self, kind: str) -> str:
        return "secret" if "SSN" in self.text else kind


class Format:
    """No function, but Python's format()."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.str_schema(serialization=core_schema.format_ser_schema(".1000"))


class Formatted(BaseModel):
    text: Annotated[str, Format()]


class Overriding(Within):
    """The field of another class, that keeps its way of writing where the object stands in for one of that class."""

    text: DeltaFunctionCall


class Whole(BaseModel):
    text: str

    @model_serializer(mode="wrap")
    def _whole(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {"text": handler(self)["text"].replace("SSN", "***")}


class Around(BaseModel):
    inner: Whole

    def __init__(self, text: str) -> None:
        super().__init__(inner=Whole(text=text))


class Dumping(BaseModel):
    text: str

    def model_dump_json(self, **kwargs: Any) -> str:
        return super().model_dump_json(**kwargs).replace("SSN", "***")


class DumpingBelow(Dumping):
    more: int = 1


class Holder(BaseModel):
    """Writes its object as a Within, whatever class that is of."""

    inner: Within

    def __init__(self, text: str) -> None:
        super().__init__(inner=Overriding.model_construct(text=DeltaFunctionCall(name=text)))


LOOKING = [Redacting, Matching, Cutting, Wrapping, Leaving, Within, Aside, Formatted, Holder]
WRITING = [Whole, Around, Dumping, DumpingBelow]


@pytest.mark.parametrize("model", [*LOOKING, *WRITING], ids=lambda model: model.__name__)
def test_a_function_that_looks_at_the_text_is_asked_about_each(model: Any) -> None:
    """However many texts it let pass before the one that it changes, and without a comparison."""
    with sse.accelerate(model, **UNCHECKED) as acceleration:
        for text in ("a", "a", "b", "c", "SSN 123-45", "x" * 2000, "a", "SSN", *map(str, range(20)), "my SSN"):
            one = model(text=text)
            for _ in range(2):
                assert one.model_dump_json() == kept(model)(one), text
        assert {reason for _, reason in acceleration.fallbacks} == {"unsupported"}
        assert all(n == 1 for n in acceleration.fallbacks.values())
        if model in WRITING:
            assert uses(acceleration) == 0


def kept(model: Any) -> Any:
    """The method that it has of its own, or inherits."""
    acceleration = vars(model)["model_dump_json"].__tailwatch__
    return acceleration.original


@pytest.mark.parametrize("model", [Whole, Dumping])
def test_functions_that_are_trusted_are_guarded_by_the_comparison(model: Any) -> None:
    """With trust_serializers the author vouches for them; where that was wrong the sampled comparison finds it."""
    with sse.accelerate(model, compare_first=2, compare_every=10, trust_serializers=True) as acceleration:
        for n in range(12):
            assert model(text=str(n)).model_dump_json() == f'{{"text":"{n}"}}'
        texts = [model(text="SSN").model_dump_json() for _ in range(12)]
        assert texts.count('{"text":"SSN"}') < 10
        assert texts[-1] == '{"text":"***"}'
        assert {reason for _, reason in acceleration.fallbacks} == {"differs"}


def test_a_class_within_that_a_function_writes_costs_the_others_nothing() -> None:
    """Where it is absent, and in the classes beside it."""

    class Mixed(BaseModel):
        text: str
        inner: Whole | None = None

    with sse.accelerate(Mixed, **UNCHECKED) as acceleration:
        for text in "abc":
            assert Mixed(text=text).model_dump_json() == f'{{"text":"{text}","inner":null}}'
        assert uses(acceleration) == 2 and not acceleration.fallbacks
        for text in "abc":
            assert Mixed(text=text, inner=Whole(text="SSN")).model_dump_json().endswith('"inner":{"text":"***"}}')
        assert dict(acceleration.fallbacks) == {("Mixed:inner", "unsupported"): 1}


def test_a_child_of_an_accelerated_class_is_no_override() -> None:
    """Our own replacement in a parent is none of the author's."""

    class Parent(BaseModel):
        text: str

    class Child(Parent):
        pass

    with sse.accelerate(Parent, **UNCHECKED), sse.accelerate(Child, **UNCHECKED) as acceleration:
        assert [Child(text=text).model_dump_json() for text in "ab"] == ['{"text":"a"}', '{"text":"b"}']
        assert uses(acceleration) == 1


# ---- what a plan is held against before it is used ----


def test_texts_that_change_together_are_tried_together() -> None:
    """Each by itself is written plainly; both at once are not."""

    class Pair(BaseModel):
        a: str
        b: str

        @model_serializer(mode="wrap")
        def _pair(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
            data = handler(self)
            return {**data, "b": "..."} if len(data["a"]) > 100 and len(data["b"]) > 100 else data

    with sse.accelerate(Pair, **TRUSTED) as acceleration:
        for a, b in [("x", "y"), ("x" * 200, "y" * 200), ("x", "z")]:
            assert Pair(a=a, b=b).model_dump_json() == original(Pair(a=a, b=b))
        assert {reason for _, reason in acceleration.fallbacks} == {"unsupported"}
        assert uses(acceleration) == 0


def test_a_text_that_is_another_each_time_is_not_studied() -> None:
    """A copy is dumped, and that was all; a copy that is warned about is left alone, and no error of ours."""
    asked = iter(range(1000))

    class Restless(BaseModel):
        text: str

        @model_serializer(mode="wrap")
        def _count(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
            return {**handler(self), "n": next(asked)}

    with sse.accelerate(Restless, **TRUSTED) as restless:
        assert Restless(text="a").model_dump_json() == '{"text":"a","n":0}'
        assert next(asked) == 2
        assert dict(restless.fallbacks) == {("Restless:text", "unsupported"): 1}
    with sse.accelerate(Usage, **UNCHECKED) as warned, pytest.warns(UserWarning, match="serializer warnings"):
        Usage.model_construct(completion_tokens="five").model_dump_json()
        assert dict(warned.fallbacks) == {("Usage:cached", "unsupported"): 1}


def test_a_class_that_is_built_anew_is_learned_anew() -> None:
    """model_rebuild() after the shapes were learned: the next text is of the new serialiser."""

    class Rebuilt(BaseModel):
        text: str

    with sse.accelerate(Rebuilt, **UNCHECKED) as acceleration:
        for text in "abc":
            Rebuilt(text=text).model_dump_json(by_alias=True)
        assert uses(acceleration) == 2
        Rebuilt.model_fields["text"].serialization_alias = "t"
        Rebuilt.model_rebuild(force=True)
        for text in "abc":
            assert Rebuilt(text=text).model_dump_json(by_alias=True) == f'{{"t":"{text}"}}'
        assert uses(acceleration) == 2 and len(plans(acceleration)) == 1
        Rebuilt.model_fields["text"].exclude_if = lambda text: text == "b"
        Rebuilt.model_rebuild(force=True)
        texts = [Rebuilt(text=text).model_dump_json(by_alias=True) for text in "abc"]
        assert texts == ['{"t":"a"}', "{}", '{"t":"c"}']


def test_a_child_learns_though_a_thread_of_its_parent_was_learning() -> None:
    """That thread is not in the child, and cannot let go."""

    class Slow(BaseModel):
        text: str

        @model_serializer(mode="wrap")
        def _slow(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
            if threading.current_thread() is thread and acceleration._learning.locked():
                learning.set()
                go_on.wait(30)
            return handler(self)

    learning, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: Slow(text="a").model_dump_json())
    with sse.accelerate(Slow, **TRUSTED) as acceleration:
        thread.start()
        assert learning.wait(30)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12 on, for a fork beside any thread
            child = os.fork()
        if child == 0:
            for text in "abc":
                Slow(text=text).model_dump_json()
            os._exit(uses(acceleration))
        _, status = os.waitpid(child, 0)
        go_on.set()
        thread.join()
    assert os.waitstatus_to_exitcode(status) == 2


# ---- what is called ----


@pytest.mark.parametrize("own", [True, False])
def test_listeners_are_called_for_every_class(own: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Beside the class's own on_fallback; with either nothing is logged here. One that is both is called once."""
    caplog.set_level(logging.DEBUG, logger="tailwatch")
    received: list[tuple[str, str]] = []
    reported: list[tuple[str, str]] = []

    def listener(shape: str, reason: str) -> None:
        received.append((shape, reason))

    def report(shape: str, reason: str) -> None:
        reported.append((shape, reason))

    for _ in range(2):
        listen(listener)
    try:
        with sse.accelerate(Anything, on_fallback=report if own else None):
            Anything(text="a", value=0.5).model_dump_json()
        with sse.accelerate(Anything, on_fallback=listener):
            Anything(text="a", value=0.5).model_dump_json()
    finally:
        unlisten(listener)
        unlisten(listener)
    with sse.accelerate(Anything, on_fallback=report):
        Anything(text="a", value=0.5).model_dump_json()
    assert received == [("Anything:value", "unsupported")] * 2
    assert reported == [("Anything:value", "unsupported")] * (1 + own)
    assert caplog.records == []


# ---- what is left to the class ----


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    text: str
    value: Any = None


class Text(str):
    pass


class Number(int):
    pass


@pytest.mark.parametrize(
    ("value", "ours"),
    [
        (None, True),
        (True, True),
        ("s", True),
        (5, True),
        (Color.RED, True),
        ([], True),
        ({}, True),
        ((1, "a"), False),
        ({"a": [1, {"b": None}]}, True),
        ({"é.*": 1}, True),
        (Usage(completion_tokens=2), True),
        (0.5, False),
        ([0.5], False),
        ({"a": {"b": 0.5}}, False),
        ({1: "a"}, False),
        (b"bytes", False),
        ({"set"}, False),
        (Text("t"), False),
        (Number(3), False),
        (list(range(33)), False),
        ([[[0] * 16] * 16] * 2, False),
    ],
)
def test_what_is_written_and_what_is_left_to_the_class(value: object, ours: bool) -> None:
    """Plain trees are ours; with a float, a subclass, or anything else in them they are not, which is counted once."""
    with sse.accelerate(Anything, **UNCHECKED) as acceleration:
        for text in ("a", "b", "c"):
            one = Anything(text=text, value=value)
            assert one.model_dump_json() == original(one)
        assert uses(acceleration) == (2 if ours else 0)
        assert [(reason, n) for (_, reason), n in acceleration.fallbacks.items()] == (
            [] if ours else [("unsupported", 1)]
        )
        assert Anything(text="d").model_dump_json() == '{"text":"d","value":null}'
        assert Anything(text="e").model_dump_json() == '{"text":"e","value":null}'
        assert uses(acceleration) == (4 if value is None else 3 if ours else 1)


def test_deep_and_cyclic_trees_are_left_to_the_class() -> None:
    """No recursion without end; the class's own error is the one that is raised."""
    deep: list[Any] = []
    for _ in range(40):
        deep = [deep]
    cycle: list[Any] = []
    cycle.append(cycle)
    with sse.accelerate(Anything, **UNCHECKED) as acceleration:
        one = Anything.model_construct(text="a", value=deep)
        assert one.model_dump_json() == one.model_dump_json() == original(one)
        with pytest.raises(ValueError, match="Circular reference"):
            Anything.model_construct(text="a", value=cycle).model_dump_json()
        assert uses(acceleration) == 0


def test_logprobs_of_any_length_are_one_reason() -> None:
    """The place is remembered, not each list."""
    with sse.accelerate(Chunk, **TRUSTED) as acceleration:
        for n in range(1, 30):
            one = chunk()
            one.choices[0].logprobs = [-0.5] * n
            assert one.model_dump_json() == original(one)
        assert dict(acceleration.fallbacks) == {("Chunk:choices.0.logprobs.0", "unsupported"): 1}
        assert len(plans(acceleration)) == 1


@pytest.mark.parametrize(
    "kwargs",
    [
        {"ensure_ascii": True},
        {"exclude": {"usage"}},
        {"include": {"id"}},
        {"exclude_defaults": True},
        {"context": {"a": 1}},
        {"fallback": str},
    ],
    ids=str,
)
def test_arguments_that_are_left_to_the_class(unchecked: Acceleration, kwargs: dict[str, Any]) -> None:
    """Those that hold objects, and those whose effect hangs on values."""
    for _ in range(3):
        assert chunk().model_dump_json(**kwargs) == original(chunk(), **kwargs)
    assert uses(unchecked) == 0
    assert dict(unchecked.fallbacks) == {("Chunk", "unsupported"): 1}


def test_a_computed_field_is_left_to_the_class() -> None:
    """It may be another each time."""
    ticks = iter(range(100))

    class Computed(BaseModel):
        text: str

        @computed_field  # type: ignore[prop-decorator]
        @property
        def tick(self) -> int:
            return next(ticks)

    with sse.accelerate(Computed, **UNCHECKED):
        assert [Computed(text="a").model_dump_json() for _ in range(3)] == [
            f'{{"text":"a","tick":{n}}}' for n in range(3)
        ]


def test_private_attributes() -> None:
    """They are no part of the text, unless a function writes it."""

    class Quiet(BaseModel):
        text: str
        _note: str = PrivateAttr("n")

    class Noting(Quiet):
        @model_serializer(mode="wrap")
        def _annotate(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
            return {**handler(self), "note": self._note}

    with sse.accelerate(Quiet, **UNCHECKED) as quiet, sse.accelerate(Noting, **TRUSTED) as noting:
        for n in range(3):
            one, two = Quiet(text="a"), Noting(text="a")
            one._note = two._note = str(n)
            assert one.model_dump_json() == '{"text":"a"}'
            assert two.model_dump_json() == f'{{"text":"a","note":"{n}"}}'
        assert (uses(quiet), uses(noting)) == (2, 0)


def test_more_shapes_than_there_is_room_for(unchecked: Acceleration, caplog: pytest.LogCaptureFixture) -> None:
    """Sixteen are kept, the others go to the class, counted once; what is kept stays ours."""
    caplog.set_level(logging.INFO, logger="tailwatch")

    def wide(n: int) -> Chunk:
        fields: dict[str, Any] = {f"extra{n}": 1}
        return chunk(**fields)

    for n in range(30):
        assert wide(n).model_dump_json() == original(wide(n))
    assert len(plans(unchecked)) == 16
    assert dict(unchecked.fallbacks) == {("Chunk", "shapes"): 1}
    assert len(caplog.records) == 1
    before = uses(unchecked)
    wide(3).model_dump_json()
    assert uses(unchecked) == before + 1


def test_a_full_table_makes_room_in_time(unchecked: Acceleration) -> None:
    """A shape that keeps coming takes the place of the one that was used least lately."""
    for n in range(16):
        extra: dict[str, Any] = {f"extra{n}": 1}
        chunk(**extra).model_dump_json()
    for _ in range(4097):
        assert chunk().model_dump_json() == original(chunk())
    before = uses(unchecked)
    chunk().model_dump_json()
    assert uses(unchecked) == before + 1
    assert len(plans(unchecked)) == 16


def test_more_sets_of_arguments_than_there_is_room_for(unchecked: Acceleration) -> None:
    """Eight are kept."""
    for indent in range(12):
        assert chunk().model_dump_json(indent=indent) == original(chunk(), indent=indent)
    assert len(plans(unchecked)) == 8
    assert dict(unchecked.fallbacks) == {("Chunk", "shapes"): 1}


def test_a_shape_that_warns_goes_on_warning() -> None:
    """Pydantic's warning about a value of the wrong type is no less than before."""
    with sse.accelerate(Chunk, **TRUSTED):
        for _ in range(3):
            with pytest.warns(UserWarning, match="serializer warnings"):
                chunk().model_copy(update={"id": 5}).model_dump_json()


def test_half_a_surrogate_pair(unchecked: Acceleration) -> None:
    """The class's own error, warm or not, and nothing is counted."""
    for content in ("a", "b"):
        chunk(content).model_dump_json()
        bad = chunk().model_copy(deep=True)
        bad.choices[0].delta.__dict__["content"] = "\ud800"
        with pytest.raises(PydanticSerializationError) as ours:
            bad.model_dump_json()
        with pytest.raises(PydanticSerializationError) as theirs:
            original(bad)
        assert str(ours.value) == str(theirs.value)
    assert not unchecked.fallbacks


def test_subclasses_keep_their_own_way(unchecked: Acceleration) -> None:
    """They inherit the method, not the plans; and may be accelerated themselves."""

    class Child(Chunk):
        more: int = 1

    child = Child(**dict(chunk()), more=2)
    assert child.model_dump_json() == child.model_dump_json() == original(child)
    assert uses(unchecked) == 0
    with sse.accelerate(Child, **TRUSTED) as own:
        child.model_dump_json()
        assert child.model_dump_json() == original(child)
        assert uses(own) == 1
        unchecked.undo()
        assert child.model_dump_json() == original(child)
    assert Child.model_dump_json is BaseModel.model_dump_json


def test_a_nested_object_of_another_class(unchecked: Acceleration) -> None:
    """A subclass in a field is another shape."""

    class Loud(DeltaMessage):
        loud: bool = True

    for delta in (DeltaMessage(content="a"), Loud(content="a"), DeltaMessage(content="b"), Loud(content="b")):
        one = chunk()
        one.choices[0].delta = delta
        assert one.model_dump_json(serialize_as_any=True) == original(one, serialize_as_any=True)
    assert len(plans(unchecked)) == 2


# ---- hostile objects ----


class Evil:
    """Raises whenever it is compared, hashed or shown."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __hash__(self) -> int:
        return hash("text")

    def __repr__(self) -> str:
        raise RuntimeError("shown")


def test_values_that_refuse_to_be_compared() -> None:
    """They never are: the class decides what happens."""
    with sse.accelerate(Anything, **UNCHECKED) as acceleration:
        for _ in range(3):
            with pytest.raises(Exception, match="Unable to serialize unknown type"):
                Anything(text="a", value=Evil()).model_dump_json()
        assert not acceleration.fallbacks


def test_names_set_that_refuse_to_be_compared() -> None:
    """An error in our way is counted, and the class writes the text; after too many of them we keep out."""
    with sse.accelerate(Anything, **UNCHECKED) as acceleration:
        Anything(text="a").model_dump_json(exclude_unset=True)
        bad = Anything(text="b")
        bad.__pydantic_fields_set__.clear()
        bad.__pydantic_fields_set__.add(Evil())  # type: ignore[arg-type]
        for _ in range(20):
            with pytest.raises(Exception, match="RuntimeError: compared"):
                original(bad, exclude_unset=True)
            with pytest.raises(Exception, match="RuntimeError: compared"):
                bad.model_dump_json(exclude_unset=True)
        assert {reason for _, reason in acceleration.fallbacks} == {"error"}
        assert not acceleration.active
        assert Anything(text="c").model_dump_json(exclude_unset=True) == '{"text":"c"}'


def test_an_exit_is_not_swallowed() -> None:
    """SystemExit out of a comparison goes on, as it would without us."""

    class Leaving(Evil):
        def __eq__(self, other: object) -> bool:
            raise SystemExit

        __hash__ = Evil.__hash__

    with sse.accelerate(Anything, **UNCHECKED):
        Anything(text="a").model_dump_json(exclude_unset=True)
        bad = Anything(text="b")
        bad.__pydantic_fields_set__.clear()
        bad.__pydantic_fields_set__.add(Leaving())  # type: ignore[arg-type]
        with pytest.raises(SystemExit):
            bad.model_dump_json(exclude_unset=True)


def test_a_comparison_that_pulls_the_object_apart() -> None:
    """What is walked stays alive."""
    pulled: list[int] = []

    class Pulling(Evil):
        def __eq__(self, other: object) -> bool:
            bad.__dict__.clear()
            bad.choices = []
            gc.collect()
            pulled.append(1)
            return False

        def __hash__(self) -> int:
            return hash("content")

    with sse.accelerate(Chunk, **TRUSTED):
        chunk().model_dump_json(exclude_unset=True)
        for _ in range(5):
            bad = chunk("x" * 1000)
            delta = bad.choices[0].delta
            delta.__pydantic_fields_set__.clear()
            delta.__pydantic_fields_set__.add(Pulling())  # type: ignore[arg-type]
            del delta
            bad.model_dump_json(exclude_unset=True, warnings=False)
    assert pulled


def test_odd_objects() -> None:
    """Fields in another order, fields that are missing, values cached among the fields, and half-made objects."""

    class Cached(Anything):
        @functools.cached_property
        def double(self) -> str:
            return self.text * 2

    with sse.accelerate(Cached, **UNCHECKED) as acceleration:
        for text in ("a", "b", "c"):
            cached = Cached(text=text)
            assert cached.double
            reordered = Cached.model_construct(value=1, text=text)
            reordered.__dict__.update(dict(reversed(list(reordered.__dict__.items()))))
            missing = Cached(text=text)
            del missing.__dict__["value"]
            for one in (cached, reordered, missing):
                assert one.model_dump_json() == original(one)
        assert uses(acceleration) > 0
        with pytest.raises(Exception, match="no attribute '__pydantic_extra__'"):
            Cached.__new__(Cached).model_dump_json()


def test_a_class_that_answers_for_its_attributes() -> None:
    """With a __getattribute__ of its own nothing is what it seems: left alone."""

    class Seeming(BaseModel):
        text: str

        def __getattribute__(self, name: str) -> Any:
            return super().__getattribute__(name)

    with sse.accelerate(Seeming, **UNCHECKED) as acceleration:
        assert [Seeming(text=text).model_dump_json() for text in "ab"] == ['{"text":"a"}', '{"text":"b"}']
        assert uses(acceleration) == 0


def test_a_method_of_the_class_s_own() -> None:
    """model_dump_json that the class defines is what is imitated, positional arguments and all."""

    class Own(BaseModel):
        text: str
        more: str | None = None

        def model_dump_json(self, short: bool = True, **kwargs: Any) -> str:
            return super().model_dump_json(exclude_none=short, **kwargs)

    kept = Own.model_dump_json
    with sse.accelerate(Own, **TRUSTED) as acceleration:
        for text in ("a", "b", "c"):
            assert Own(text=text).model_dump_json() == f'{{"text":"{text}"}}'
            assert Own(text=text).model_dump_json(False) == f'{{"text":"{text}","more":null}}'
        assert uses(acceleration) == 2
        assert inspect.signature(Own.model_dump_json) == inspect.signature(kept)
    assert Own.model_dump_json is kept


def test_the_object_is_never_touched(unchecked: Acceleration) -> None:
    """Learning copies: the same parts, the same state, afterwards."""
    one = chunk(extra="e")
    choice, fields = one.choices[0], dict(one.__dict__)
    one.model_dump_json()
    assert one.__dict__ == fields and one.choices[0] is choice
    assert one.__pydantic_extra__ == {"extra": "e"}


def test_a_serialiser_that_dumps_itself() -> None:
    """Learning within learning goes to the class."""

    class Node(BaseModel):
        text: str
        child: Any = None

        @field_serializer("child")
        def _child(self, child: Any) -> Any:
            return None if child is None else child.model_dump_json()

    with sse.accelerate(Node, **UNCHECKED):
        for text in ("a", "b", "c"):
            one = Node(text=text, child=Node(text="in" + text))
            assert one.model_dump_json() == original(one)


def test_threads() -> None:
    """Learning and writing at once from many threads."""
    wrong: list[str] = []

    def work(name: str) -> None:
        for n in range(300):
            extra: dict[str, Any] = {"extra": n} if n % 3 else {}
            one = chunk(f"{name}{n}", id=name, **extra)
            if one.model_dump_json(exclude_unset=True) != original(one, exclude_unset=True):
                wrong.append(name)

    with sse.accelerate(Chunk, compare_first=2, compare_every=50, trust_serializers=True) as acceleration:
        threads = [threading.Thread(target=work, args=(str(n),)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not acceleration.fallbacks
        chunk().model_dump_json(exclude_unset=True)
        before = uses(acceleration)
        chunk().model_dump_json(exclude_unset=True)
        assert uses(acceleration) == before + 1
    assert wrong == []


# ---- on and off ----


@pytest.mark.parametrize("undo", [Acceleration.undo, Acceleration.__call__, lambda a: a.__exit__(None, None, None)])
def test_it_goes_without_a_trace(undo: Callable[[Acceleration], object]) -> None:
    """The class has the method it had, and nothing of its own."""
    acceleration = sse.accelerate(Chunk)
    assert "model_dump_json" in vars(Chunk) and acceleration.active
    assert undo(acceleration) is None
    assert "model_dump_json" not in vars(Chunk) and not acceleration.active
    assert Chunk.model_dump_json is BaseModel.model_dump_json
    assert undo(acceleration) is None


def test_it_is_a_method_like_any_other() -> None:
    """However it is called, taken, shown or asked for its signature."""
    one, theirs = chunk(), BaseModel.model_dump_json
    with sse.accelerate(Chunk, **TRUSTED) as acceleration:
        one.model_dump_json()
        bound, method = one.model_dump_json, Chunk.model_dump_json
        assert bound() == method(one) == method(self=one) == super(Chunk, one).model_dump_json() == original(one)
        assert uses(acceleration) == 2  # self by name is a matter of the class's own
        assert [*map(method, [one] * 2)] == [original(one)] * 2
        assert inspect.ismethod(bound) and inspect.unwrap(method) is theirs
        assert inspect.signature(method) == inspect.signature(theirs)
        assert "self" not in inspect.signature(bound).parameters
        assert (method.__name__, method.__doc__) == (theirs.__name__, theirs.__doc__)
        arguments: Any
        for arguments in [((), {}), ((one, 1), {}), ((one,), {"nothing": 1})]:
            args, kwargs = arguments
            with pytest.raises(TypeError) as ours:
                method(*args, **kwargs)
            with pytest.raises(TypeError) as expected:
                theirs(*args, **kwargs)
            assert str(ours.value) == str(expected.value)


def test_twice_is_an_error() -> None:
    """It names the class, and how to get out of it; after undo() it may be done again."""
    with sse.accelerate(Chunk), pytest.raises(AlreadyInstalledError, match="Chunk is accelerated already: undo"):
        sse.accelerate(Chunk)
    with sse.accelerate(Chunk) as again:
        assert again.active


def test_classes_in_any_order() -> None:
    """Several at once, undone first in, first out."""
    first, second = sse.accelerate(Usage), sse.accelerate(DeltaFunctionCall)
    assert first.undo() is second.undo() is None
    assert "model_dump_json" not in vars(Usage) and "model_dump_json" not in vars(DeltaFunctionCall)


@pytest.mark.parametrize("wrap", [functools.wraps(BaseModel.model_dump_json), lambda function: function])
def test_a_patch_after_ours(wrap: Callable[[Any], Any]) -> None:
    """Theirs stays, and ours below it becomes the class's own; undo() reports it once."""
    acceleration = sse.accelerate(Chunk)
    ours = Chunk.model_dump_json

    def theirs(self: Any, **kwargs: Any) -> str:
        return "!" + ours(self, **kwargs)

    theirs = functools.wraps(ours)(theirs) if wrap is not None else theirs
    Chunk.model_dump_json = theirs  # type: ignore[method-assign]
    try:
        sentence = acceleration.undo()
        assert sentence is not None and "Chunk.model_dump_json was replaced again" in sentence
        assert acceleration.undo() is None
        assert [chunk(text).model_dump_json() for text in "aab"] == ["!" + original(chunk(text)) for text in "aab"]
        assert uses(acceleration) == 0
        with sse.accelerate(Chunk) as again:
            assert chunk().model_dump_json() == "!" + original(chunk())
            assert again.undo() is None
        assert vars(Chunk)["model_dump_json"] is theirs
    finally:
        del Chunk.model_dump_json


class Old(pydantic.v1.BaseModel):
    text: str


@pytest.mark.parametrize(
    ("model", "message"),
    [(int, "Pydantic v2"), (Old, "Pydantic v1's"), (chunk(), "no class"), (None, "no class")],
    ids=str,
)
def test_what_is_no_model_is_refused(model: Any, message: str) -> None:
    """The error has what was expected and what was found."""
    with pytest.raises(OptionError, match=message):
        sse.accelerate(model)


@pytest.mark.parametrize(
    "option",
    [
        {"compare_first": -1},
        {"compare_every": 0},
        {"compare_every": 1.5},
        {"compare_first": True},
        {"on_fallback": 5},
        {"trust_serializers": 1},
    ],
)
def test_options_out_of_range_are_refused(option: dict[str, Any]) -> None:
    """And the class stays as it is."""
    with pytest.raises(OptionError, match=next(iter(option))):
        sse.accelerate(Chunk, **option)
    assert "model_dump_json" not in vars(Chunk)


def test_a_callback_that_fails_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, the text is sent."""
    with sse.accelerate(Anything, on_fallback=lambda shape, reason: 1 / 0):
        assert Anything(text="a", value=0.5).model_dump_json() == '{"text":"a","value":0.5}'
    assert any("on_fallback failed" in record.message for record in caplog.records)


@pytest.mark.parametrize("length", [1, 30, 64, 200])
def test_names_are_short(length: int) -> None:
    """A shape's name fits a label, whatever the fields are called, and holds no text of a user's."""
    model = pydantic.create_model("M" * length, **{"f" * length: (dict[str, Any], ...)})  # type: ignore[call-overload]
    with sse.accelerate(model, **UNCHECKED) as acceleration:
        for n in range(2):
            model(**{"f" * length: {"what a user says": n}}).model_dump_json()
        (name,) = acceleration.shapes
        assert len(name) <= 64 and "user" not in name and name.startswith("M")


# ---- memory ----


def test_everything_is_freed() -> None:
    """Classes, plans and callables go with their last reference, cycles through the class included."""

    def use() -> tuple[weakref.ref[Any], weakref.ref[Any]]:
        class Gone(BaseModel):
            text: str
            value: Any = None

        acceleration = sse.accelerate(Gone)
        for value in (None, Color.RED, 0.5, Gone(text="a")):
            for _ in range(2):
                Gone(text="a", value=value).model_dump_json()
        return weakref.ref(Gone), weakref.ref(acceleration)

    references = use()
    for _ in range(3):
        gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_writing_keeps_nothing(unchecked: Acceleration) -> None:
    """After many texts, hits, misses and errors there are as many objects and bytes as before."""
    models = [chunk(), chunk("é" * 2000), chunk(extra=0.5), chunk(created=2**70)]
    bad = chunk("\ud800")

    def work(times: int) -> None:
        for _ in range(times):
            for model in models:
                model.model_dump_json(exclude_unset=True)
            with pytest.raises(Exception, match="surrogates"):
                bad.model_dump_json(exclude_unset=True)

    work(100)
    gc.collect()
    objects = len(gc.get_objects())
    tracemalloc.start()
    try:
        work(10)
        before = tracemalloc.get_traced_memory()[0]
        work(2000)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 10_000
    finally:
        tracemalloc.stop()
    assert abs(len(gc.get_objects()) - objects) < 50


# ---- _hot.Plan by itself ----

SLOTS = (vars(BaseModel)["__pydantic_fields_set__"], vars(BaseModel)["__pydantic_extra__"])
TEXT = ("text", None, (), None, 0, False)


@pytest.mark.parametrize(
    ("nodes", "literal", "cuts"),
    [
        ((), b"", ()),
        ((TEXT, TEXT), b'""', (1,)),
        ((("list", None, (), None, 2, False), TEXT), b'""', (1,)),
        ((("list", None, (), None, 2, False), TEXT, TEXT), b'""', (1,)),
        ((("no", None, (), None, 0, False),), b"", ()),
        ((("field", None, (), None, 0, False), TEXT), None, ()),
        ((("text", None, (), None, 64, False),), b'""', (1,)),
        ((("text", None, (), None, -1, False),), b'""', (1,)),
        ((("text", None, (), None, 1, False),), b'""', (1,)),
        ((TEXT,), b'""', (1, 1)),
        ((TEXT,), b'""', (3,)),
        ((TEXT,), b'""', (-1,)),
        ((("constant", 1, (), {"a"}, 0, False),), b"", ()),
        ((("dict", None, (5,), None, 0, False), TEXT), b'""', (1,)),
        ((("list", None, (), None, 1, False),) * 40 + (TEXT,), b'""', (1,)),
        (("text",), b'""', (1,)),
    ],
    ids=str,
)
def test_a_plan_that_cannot_be_is_refused(nodes: Any, literal: bytes | None, cuts: tuple[int, ...]) -> None:
    """Whatever the match will meet is checked when the plan is made."""
    with pytest.raises((ValueError, TypeError)):
        _hot.Plan("name", nodes, SLOTS, literal, cuts)


def test_a_plan_by_hand() -> None:
    """It writes what fits, and returns None for all else."""
    plan = _hot.Plan(
        "name",
        (("list", None, (), None, 2, False), TEXT, ("number", None, (), None, 1, True)),
        SLOTS,
        b'["",]',
        (2, 4),
    )
    assert plan.render(["é\n", -12]) == '["é\\n",-12]'
    assert [plan.render(value) for value in (["", 1], ["a"], ["a", True], ("a", 1), ["a", 2**64], None)] == [None] * 6
    assert plan.matches(["a", 0]) and not plan.matches([0, "a"])
    with pytest.raises(UnicodeEncodeError):
        plan.render(["\ud800", 1])
