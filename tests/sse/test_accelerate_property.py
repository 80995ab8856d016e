"""sse.accelerate: for any values in any fields, the text is the one that the class's own method makes."""

from __future__ import annotations

import random
from typing import Any, TypeAlias

import openai.types
import openai.types.chat
import openai.types.responses
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from tailwatch import sse

from ..support.stream_classes.vllm import (
    ChatCompletionLogProbs,
    ChatCompletionLogProbsContent,
    ChatCompletionResponseStreamChoice,
    ChatCompletionStreamResponse,
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    UsageInfo,
)

pytestmark = pytest.mark.property

NEVER = 2**62
CALLS: list[dict[str, Any]] = [
    {},
    {"exclude_unset": True},
    {"exclude_unset": True, "exclude_none": False},
    {"exclude_unset": True, "exclude_none": True},
    {"exclude_none": True},
    {"by_alias": True},
    {"indent": None, "by_alias": True},
    {"exclude_none": True, "ensure_ascii": True},
]


class Chunk(ChatCompletionStreamResponse):
    """With a field of another name in the text."""

    system_fingerprint: str | None = Field(default=None, serialization_alias="fingerprint")


texts = st.text() | st.sampled_from(["", '"', "\\", "\u2028", "\x7f", "\x00", "\U0010ffff", "é" * 300, "</script>"])
numbers = st.integers(-(2**70), 2**70) | st.integers(0, 3)
small = st.lists(numbers, max_size=3) | st.none()


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of the fields, the others left out."""
    return st.fixed_dictionaries({}, optional=fields)


tool_calls = st.builds(
    lambda index, rest: DeltaToolCall(index=index, **rest),
    numbers,
    some(
        id=texts,
        type=st.just("function"),
        function=some(name=texts, arguments=texts).map(lambda f: DeltaFunctionCall(**f)),
    ),
)
deltas = some(
    role=texts, content=texts | st.none(), reasoning=texts, tool_calls=st.lists(tool_calls, max_size=2), unknown=texts
).map(lambda fields: DeltaMessage(**fields))
logprobs = st.builds(ChatCompletionLogProbsContent, token=texts, logprob=st.floats(-100, 0), bytes=small)
choices = st.builds(
    lambda index, delta, rest: ChatCompletionResponseStreamChoice(index=index, delta=delta, **rest),
    numbers,
    deltas,
    some(
        logprobs=st.none() | st.builds(ChatCompletionLogProbs, content=st.lists(logprobs, max_size=2)),
        finish_reason=texts | st.none(),
        stop_reason=texts | numbers | st.none(),
        token_ids=small,
    ),
)
chunks = st.builds(
    lambda need, rest: Chunk(**need, **rest),
    st.fixed_dictionaries({"id": texts, "created": numbers, "model": texts, "choices": st.lists(choices, max_size=2)}),
    some(
        usage=some(prompt_tokens=numbers, total_tokens=numbers, completion_tokens=numbers | st.none()).map(
            lambda fields: UsageInfo(**fields)
        ),
        system_fingerprint=texts | st.none(),
        prompt_token_ids=small,
        extra_field=texts
        | numbers
        | st.none()
        | st.booleans()
        | st.floats(allow_nan=False)
        | st.dictionaries(texts, texts),
    ),
)

Responses: TypeAlias = openai.types.responses.ResponseTextDeltaEvent
openai_chunks = st.builds(
    lambda content, index, rest: openai.types.chat.ChatCompletionChunk.model_validate(
        {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": index, "delta": {"content": content, **rest}, "finish_reason": None}],
        }
    ),
    texts,
    numbers,
    some(role=st.sampled_from(["assistant", "tool"]), reasoning_content=texts, refusal=st.none() | texts),
)
openai_completions = st.builds(
    lambda text, index: openai.types.Completion.model_validate(
        {
            "id": "c",
            "object": "text_completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": index, "text": text, "finish_reason": "stop", "logprobs": None}],
        }
    ),
    texts,
    numbers,
)
openai_events = st.builds(
    lambda delta, item, numbers: Responses(
        type="response.output_text.delta",
        delta=delta,
        item_id=item,
        content_index=numbers[0],
        output_index=numbers[1],
        sequence_number=numbers[2],
        logprobs=[],
    ),
    texts,
    texts,
    st.tuples(numbers, numbers, numbers),
)
FAMILIES: dict[type[BaseModel], st.SearchStrategy[Any]] = {
    Chunk: chunks,
    openai.types.chat.ChatCompletionChunk: openai_chunks,
    openai.types.Completion: openai_completions,
    Responses: openai_events,
}


def vary(value: Any, texts: list[str], numbers: list[int]) -> Any:
    """Other strings and integers in the same places, in this very object."""
    if type(value) in (str, int):
        return random.choice(texts if type(value) is str else numbers)
    if isinstance(value, list):
        value[:] = [vary(item, texts, numbers) for item in value]
    for fields in (vars(value), value.__pydantic_extra__ or {}) if isinstance(value, BaseModel) else ():
        fields.update({name: vary(item, texts, numbers) for name, item in fields.items()})
    return value


def is_identical(model: BaseModel, kwargs: dict[str, Any]) -> None:
    assert model.model_dump_json(**kwargs) == BaseModel.model_dump_json(model, **kwargs)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("model", list(FAMILIES), ids=lambda model: model.__name__)
@given(data=st.data())
def test_the_text_is_the_class_s_own(model: type[BaseModel], data: st.DataObject) -> None:
    """Any field, any value, any arguments; then other values in the same objects, whose shapes are known by then."""
    kwargs = data.draw(st.sampled_from(CALLS))
    objects = data.draw(st.lists(FAMILIES[model], min_size=1, max_size=4))
    with sse.accelerate(model, compare_first=0, compare_every=NEVER, trust_serializers=True) as acceleration:
        for _ in range(3):
            for one in objects:
                is_identical(one, kwargs)
                vary(one, data.draw(st.lists(texts, min_size=1)), data.draw(st.lists(numbers, min_size=1)))
                is_identical(one, kwargs)
        assert {reason for _, reason in acceleration.fallbacks} <= {"unsupported"}


# ---- many frames of a few shapes, as a server makes them ----

LETTERS = ["a", " token", '"', "\\", "\n", "\x01", "é", "日本", "\u2028", "\U0001f600", "/", "<", "\x7f", "x" * 40]


def text_of(rng: random.Random) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randrange(12)))


def delta_of(rng: random.Random) -> DeltaMessage:
    kind = rng.randrange(8)
    if kind == 0:
        return DeltaMessage(role="assistant", content="")
    if kind == 1:
        return DeltaMessage(reasoning=text_of(rng))
    if kind == 2:
        call = DeltaToolCall(index=rng.randrange(3), function=DeltaFunctionCall(arguments=text_of(rng)))
        return DeltaMessage(tool_calls=[call])
    return DeltaMessage(content=text_of(rng))


def chunk_of(rng: random.Random) -> Chunk:
    finish = rng.choice([None, None, None, "stop"])
    choice = ChatCompletionResponseStreamChoice(
        index=rng.randrange(2), delta=delta_of(rng), logprobs=None, finish_reason=finish, token_ids=None
    )
    request = rng.randrange(5)
    return Chunk(id=f"chatcmpl-{request}", created=request * 10**9, model=f"model/{request}", choices=[choice])


def frames_are_identical(count: int, seed: int) -> None:
    rng = random.Random(seed)
    with sse.accelerate(Chunk, compare_first=0, compare_every=NEVER, trust_serializers=True) as acceleration:
        for _ in range(count):
            chunk, kwargs = chunk_of(rng), CALLS[rng.randrange(2, 4)]
            text = chunk.model_dump_json(**kwargs)
            assert text == BaseModel.model_dump_json(chunk, **kwargs), f"seed {seed}"
        assert not acceleration.fallbacks
        assert sum(plan.uses for plan in acceleration._plans.plans()) > count * 0.99


def test_ten_thousand_frames() -> None:
    """Interleaved requests: all texts identical, and nearly all of them ours."""
    frames_are_identical(10_000, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_million_frames(seed: int) -> None:
    """The same, a million times."""
    frames_are_identical(100_000, seed)
