"""install(fast_sse=True) with modules of real servers, re-created under their names, and with the openai package."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from openai.types.chat import chat_completion_chunk as chunks
from pydantic import BaseModel, PydanticUserError

import tailwatch
from tailwatch import integrations, sse
from tailwatch.integrations.fast_sse import FastSSE
from tailwatch.integrations.fast_sse_targets import Function, ModelTarget

from ..support.stream_classes import litserve, tensorrt_llm, transformers, vllm
from ..support.stream_classes.sglang import build_sse_content

TEXTS = [
    " token",
    "",
    'a"b\\c/\n\r\t\b\f\x00\x1f\x7f',
    "\u00e9\u4e16\u754c \U0001f600",
    "\u2028\u2029\ufeff",
    "x" * 5000,
]
MANY = [TEXTS[i % len(TEXTS)] + str(i) for i in range(60)]


@pytest.fixture(autouse=True)
def uninstalled() -> Iterator[None]:
    """No test leaves an installation behind."""
    yield
    assert uninstall() == []


def uninstall() -> list[str]:
    """What could not be undone, apart from the wrapper around a bare app."""
    return [sentence for sentence in tailwatch.uninstall() if "the wrapper around the app" not in sentence]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a module with these members into sys.modules, under a name of a server's."""

    def loaded(name: str, **members: Any) -> ModuleType:
        module = ModuleType(name)
        for member, value in members.items():
            setattr(module, member, value)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return loaded


def fallbacks() -> dict[tuple[str, str], int]:
    """What has fallen back so far."""
    return tailwatch.snapshot().sse_fallbacks


# ---- vLLM ----


def vllm_chat(text: str, *, n: int = 1, usage: bool = False) -> vllm.ChatCompletionStreamResponse:
    """As serving.py builds a content chunk."""
    choices = [
        vllm.ChatCompletionResponseStreamChoice(
            index=i, delta=vllm.DeltaMessage(content=text), logprobs=None, finish_reason=None, token_ids=None
        )
        for i in range(n)
    ]
    chunk = vllm.ChatCompletionStreamResponse(
        id="chatcmpl-1", object="chat.completion.chunk", created=1, choices=choices, model="m"
    )
    if usage:
        chunk.usage = vllm.UsageInfo(prompt_tokens=3, completion_tokens=len(text), total_tokens=3 + len(text))
    return chunk


def vllm_completion(text: str) -> vllm.CompletionStreamResponse:
    """As serving.py builds a chunk."""
    choice = vllm.CompletionResponseStreamChoice(
        index=0, text=text, logprobs=None, finish_reason=None, stop_reason=None, token_ids=None
    )
    return vllm.CompletionStreamResponse(id="cmpl-1", created=1, model="m", choices=[choice])


def load_vllm(load: Any) -> None:
    """The two modules with the classes."""
    for name in VLLM_NAMES:
        module, _, member = name.rpartition(".")
        load(module, **{member: getattr(vllm, member)})


VLLM_NAMES = (
    "vllm.entrypoints.openai.chat_completion.protocol.ChatCompletionStreamResponse",
    "vllm.entrypoints.openai.completion.protocol.CompletionStreamResponse",
)


def test_vllm_streams_the_same_bytes(load: Any) -> None:
    """Chat and completion chunks, one and several choices, usage on each: before, during and after."""
    load_vllm(load)
    frames: list[tuple[BaseModel, dict[str, Any]]] = [
        *((vllm_chat(text), {"exclude_unset": True, "exclude_none": False}) for text in MANY),
        *((vllm_chat(text, n=3, usage=True), {"exclude_unset": True, "exclude_none": False}) for text in MANY),
        *((vllm_completion(text), {"exclude_unset": True}) for text in MANY),
    ]
    before = [frame.model_dump_json(**options) for frame, options in frames]
    chat, completion = vllm.ChatCompletionStreamResponse, vllm.CompletionStreamResponse
    methods = chat.model_dump_json, completion.model_dump_json
    watch = tailwatch.install(gc="off", fast_sse=True)

    assert set(VLLM_NAMES) <= set(watch.accelerated)
    assert chat.model_dump_json is not methods[0]
    for _ in range(2):
        assert [frame.model_dump_json(**options) for frame, options in frames] == before
    assert fallbacks() == {}

    assert uninstall() == []
    assert (chat.model_dump_json, completion.model_dump_json) == methods
    assert "model_dump_json" not in vars(chat) | vars(completion)
    assert [frame.model_dump_json(**options) for frame, options in frames] == before


def test_an_error_of_the_class_stays_its_own(load: Any) -> None:
    """Half a surrogate pair raises what Pydantic raises, before and after the shape is known."""
    load_vllm(load)
    with pytest.raises(Exception) as expected:  # which one is the point
        vllm_completion("\ud800").model_dump_json(exclude_unset=True)
    tailwatch.install(gc="off", fast_sse=True)
    for text in MANY:
        vllm_completion(text).model_dump_json(exclude_unset=True)
    with pytest.raises(expected.type) as found:
        vllm_completion("\ud800").model_dump_json(exclude_unset=True)

    assert str(found.value) == str(expected.value)


# ---- SGLang ----

SGLANG = "sglang.srt.entrypoints.openai"
SGLANG_CALL: dict[str, Any] = {"chunk_id": "c\u00f4-1", "created": 1_790_000_000, "model": 'a/"b"', "index": 0}
SGLANG_CALLS: list[dict[str, Any]] = [
    *({"content": text} for text in MANY),
    *({"reasoning_content": text, "usage": None} for text in MANY),
    *({"role": "assistant", "content": ""} for _ in range(3)),
    *({"finish_reason": "stop", "matched_stop": 128009} for _ in range(3)),
    *({"content": text, "logprobs": {"content": [{"token": text, "logprob": -0.5}]}} for text in MANY),
    *({"content": text, "usage": {"prompt_tokens": 1}} for text in MANY),
    *({"content": "a", "reasoning_content": "b"}, {}),
]


def load_sglang(load: Any, original: Any = build_sse_content) -> tuple[ModuleType, ModuleType]:
    """Where the function stands, and a module that imported it by name."""
    home = load(f"{SGLANG}.sse_utils", build_sse_content=original)
    return home, load(f"{SGLANG}.serving_chat", build_sse_content=original)


def test_sglang_builds_the_same_frames(load: Any) -> None:
    """Whatever the arguments, under both names, with the indices and times of many requests."""
    modules = load_sglang(load)
    calls = [SGLANG_CALL | {"index": i % 3, "created": 1_790_000_000 + i} | call for i, call in enumerate(SGLANG_CALLS)]
    before = [build_sse_content(**call) for call in calls]
    watch = tailwatch.install(gc="off", fast_sse=True)

    assert f"{SGLANG}.sse_utils.build_sse_content" in watch.accelerated
    for module in modules:
        assert module.build_sse_content is not build_sse_content
        assert inspect.signature(module.build_sse_content) == inspect.signature(build_sse_content)
        for _ in range(2):
            assert [module.build_sse_content(**call) for call in calls] == before
    assert fallbacks() == {}
    assert modules[1].build_sse_content("i", 1, "m", 0, None, "x") == build_sse_content("i", 1, "m", 0, None, "x")

    assert uninstall() == []
    assert [module.build_sse_content for module in modules] == [build_sse_content, build_sse_content]


def test_sglang_is_asked_for_few_of_many_frames(load: Any) -> None:
    """After the first 16 of a shape the function is called for one in 1024."""
    called = []

    def counting(*args: Any, **kwargs: Any) -> str:
        called.append(1)
        return build_sse_content(*args, **kwargs)

    counting.__signature__ = inspect.signature(build_sse_content)  # type: ignore[attr-defined]
    home, _ = load_sglang(load, counting)
    tailwatch.install(gc="off", fast_sse=True)
    for i in range(2100):
        home.build_sse_content(**SGLANG_CALL, content=f"text {i}")

    assert len(called) == 1 + 1 + 16 + 2  # the template, the first frame, the first compared ones, one in 1024


def test_sglang_raises_its_own_error(load: Any) -> None:
    """Half a surrogate pair is msgspec's error, and costs the shape nothing."""
    home, _ = load_sglang(load)
    tailwatch.install(gc="off", fast_sse=True)
    for text in [*MANY, "\ud800", *MANY]:
        if text != "\ud800":
            home.build_sse_content(**SGLANG_CALL, content=text)
            continue
        with pytest.raises(UnicodeEncodeError) as found:
            home.build_sse_content(**SGLANG_CALL, content=text)
    with pytest.raises(UnicodeEncodeError) as expected:
        build_sse_content(**SGLANG_CALL, content="\ud800")

    assert str(found.value) == str(expected.value)
    assert fallbacks() == {}


def test_what_the_server_cannot_be_called_with_stays_a_type_error(load: Any) -> None:
    """A missing or unknown argument is refused as before."""
    home, _ = load_sglang(load)
    tailwatch.install(gc="off", fast_sse=True)
    for wrong in ({"content": "x"}, {**SGLANG_CALL, "text": "x"}):
        with pytest.raises(TypeError):
            home.build_sse_content(**wrong)


def test_another_version_of_the_function_is_left_alone(load: Any) -> None:
    """With a parameter more it is not what the replacement was written for: noted, not replaced."""

    def newer(chunk_id: str, created: int, model: str, index: int, refusal: str | None = None) -> str:
        return f"{chunk_id}{created}{model}{index}{refusal}"

    home, _ = load_sglang(load, newer)
    watch = tailwatch.install(fastapi_like(), gc="off", fast_sse=True)
    start_up(watch.app)

    assert home.build_sse_content is newer
    assert any("build_sse_content" in note and "other arguments" in note for note in watch.notes)


def test_a_builder_that_changes_its_mind_is_given_up(load: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One frame that differs: the function's is sent, the shape goes back to it, counted, logged once by the daemon's
    task and by the doctor."""
    state = {"fingerprint": ""}

    def moody(*args: Any, **kwargs: Any) -> str:
        return build_sse_content(*args, **kwargs).replace('"object"', f'"fp":"{state["fingerprint"]}","object"')

    moody.__signature__ = inspect.signature(build_sse_content)  # type: ignore[attr-defined]
    home, _ = load_sglang(load, moody)
    watch = tailwatch.install(gc="off", fast_sse=True)
    for text in MANY[:5]:
        assert home.build_sse_content(**SGLANG_CALL, content=text) == moody(**SGLANG_CALL, content=text)
    state["fingerprint"] = "new"
    with caplog.at_level(logging.WARNING, "tailwatch"):
        for text in MANY:
            assert home.build_sse_content(**SGLANG_CALL, content=text) == moody(**SGLANG_CALL, content=text)
        assert caplog.records == []  # not on the thread that serves
        watch.fast_sse.log_fallbacks()
        watch.fast_sse.log_fallbacks()

    assert fallbacks() == {("SGLang content", "differs"): 1}
    (logged,) = [record.getMessage() for record in caplog.records if "SGLang content" in record.getMessage()]
    assert "fast_sse" in logged and "(differs)" in logged
    finding = next(finding for finding in watch.doctor() if finding.rule == "fast-sse-fallback")
    assert (finding.severity, "SGLang content (differs)" in finding.detail) == ("high", True)
    assert home.build_sse_content(**SGLANG_CALL, reasoning_content="r") == moody(**SGLANG_CALL, reasoning_content="r")


# ---- LMDeploy 0.18.0: lmdeploy/serve/openai/{chat_completions/serving,endpoints/completions}.py ----


def lmdeploy_frame(text: str, *, usage: bool = False, **changed: Any) -> dict[str, Any]:
    """What model_dump(mode="json", exclude_none=True) gives there, and what the server adds."""
    choice = {"index": 0, "delta": {"role": "assistant", "content": text}}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m\u00e9"}
    return {**head, "choices": [choice], **({"usage": None} if usage else {}), **changed}


LMDEPLOY_FRAMES: list[Any] = [
    *(lmdeploy_frame(text, usage=usage) for text in [*MANY, "\ud800\udc00\udfff"] for usage in (False, True)),
    *(lmdeploy_frame("", choices=[{"index": 0, "text": text}]) for text in MANY),
    *(lmdeploy_frame("", choices=[{"index": 1, "delta": {"reasoning_content": text}}]) for text in MANY),
    *(lmdeploy_frame(text, cache_block_ids=[1]) for text in MANY),
    lmdeploy_frame("x", choices=[{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]),
    lmdeploy_frame("x", choices=[{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]),
    lmdeploy_frame("x", choices=[{"index": 0, "delta": {}}]),
    lmdeploy_frame("x", choices=[]),
    lmdeploy_frame("x", usage=True) | {"usage": {"prompt_tokens": 1}},
    *({"error": {"message": "m"}}, {}, [], "text", None, 1.5, {"id": 1, 2: "x"}),
    dict(reversed(lmdeploy_frame("x").items())),
]


def test_lmdeploy_writes_the_same_json(load: Any) -> None:
    """Every frame of the server, and everything else that json.dumps takes."""
    modules = [
        load("lmdeploy.serve.openai.chat_completions.serving", json=json),
        load("lmdeploy.serve.openai.endpoints.completions", json=json),
    ]
    watch = tailwatch.install(gc="off", fast_sse=True)

    assert "lmdeploy.serve.openai.chat_completions.serving.json.dumps" in watch.accelerated
    for module in modules:
        assert module.json is not json
        for _ in range(20):
            assert [module.json.dumps(frame) for frame in LMDEPLOY_FRAMES] == list(map(json.dumps, LMDEPLOY_FRAMES))
        assert module.json.dumps(lmdeploy_frame("\u00e9"), ensure_ascii=False, indent=1) == json.dumps(
            lmdeploy_frame("\u00e9"), ensure_ascii=False, indent=1
        )
        assert module.json.loads("[1]") == [1]
        assert module.json.JSONDecodeError is json.JSONDecodeError
        with pytest.raises(TypeError, match="not JSON serializable"):
            module.json.dumps(lmdeploy_frame("x", created=object()))
    assert fallbacks() == {}

    assert uninstall() == []
    assert all(module.json is json for module in modules)


# ---- transformers, over the real openai package ----


def load_transformers(load: Any) -> tuple[Any, Any]:
    """The two handlers."""
    handlers = transformers.ChatCompletionHandler, transformers.CompletionHandler
    load("transformers.cli.serving.chat_completion", ChatCompletionHandler=handlers[0])
    load("transformers.cli.serving.completion", CompletionHandler=handlers[1])
    return handlers


class ReasoningText(str):
    """transformers tags reasoning by a class of its own."""

    __slots__ = ()


CHAT_CALLS: list[dict[str, Any]] = [
    *({"content": text} for text in MANY),
    *({"reasoning_content": ReasoningText(text)} for text in MANY),
    *({"role": "assistant"}, {"finish_reason": "stop"}, {"content": "a", "reasoning_content": "b"}, {}),
]


def test_transformers_builds_the_same_frames(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Construction is replaced too; the clock is read for each frame."""
    now = [1_790_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    chat_class, text_class = load_transformers(load)
    originals = vars(chat_class)["_build_chunk_sse"], vars(text_class)["_build_chunk_sse"]
    chat, text = chat_class(), text_class()
    watch = tailwatch.install(gc="off", fast_sse=True)

    assert {name for name in watch.accelerated if name.startswith("transformers")} == {
        "transformers.cli.serving.chat_completion.ChatCompletionHandler._build_chunk_sse",
        "transformers.cli.serving.completion.CompletionHandler._build_chunk_sse",
    }
    for _ in range(3):
        for call in CHAT_CALLS:
            now[0] += 0.5
            assert chat._build_chunk_sse("r1", model="m", **call) == originals[0](chat, "r1", model="m", **call)
        for token in MANY:
            now[0] += 0.5
            assert text._build_chunk_sse("r2", "m", text=token) == originals[1](text, "r2", "m", text=token)
        assert text._build_chunk_sse("r", "m", finish_reason="stop") == originals[1](text, "r", "m", "", "stop")
    assert not {shape for shape, _ in fallbacks() if shape.startswith("transformers")}

    assert uninstall() == []
    assert (vars(chat_class)["_build_chunk_sse"], vars(text_class)["_build_chunk_sse"]) == originals


def test_a_second_that_passes_between_two_looks_is_no_difference(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock moves on at every third look at it: between the template's frame and the method's, too."""
    looks = [0]

    def clock() -> float:
        looks[0] += 1
        return 1_790_000_000.0 + looks[0] // 3

    chat_class, _ = load_transformers(load)
    tailwatch.install(gc="off", fast_sse=True)
    chat = chat_class()
    monkeypatch.setattr(time, "time", clock)
    for text in MANY:
        earliest = 1_790_000_000 + (looks[0] + 1) // 3
        frame = json.loads(chat._build_chunk_sse("r", text, "m").removeprefix("data: "))
        assert frame["choices"][0]["delta"]["content"] == text
        assert earliest <= frame["created"] <= clock()
    assert not {shape for shape, _ in fallbacks() if shape.startswith("transformers")}


# ---- the openai package itself, and LitServe ----


def test_openai_events_are_the_same() -> None:
    """The package's own classes, as vLLM, TensorRT-LLM and transformers serialise them."""
    responses = importlib.import_module("openai.types.responses")
    event = responses.ResponseTextDeltaEvent(
        type="response.output_text.delta", item_id="i", output_index=0, content_index=0, delta="", logprobs=[],
        sequence_number=0,
    )  # fmt: skip
    chunk = chunks.ChatCompletionChunk(
        id="1", created=1, model="m", object="chat.completion.chunk",
        choices=[chunks.Choice(index=0, delta=chunks.ChoiceDelta(content=""))],
    )  # fmt: skip

    def texts() -> list[str]:
        out = []
        for i, text in enumerate(MANY):
            event.delta, event.sequence_number = text, i
            chunk.choices[0].delta.content = text
            out += [event.model_dump_json(indent=None, by_alias=True), chunk.model_dump_json(exclude_none=True)]
        return out

    before = texts()
    watch = tailwatch.install(gc="off", fast_sse=True)
    assert "openai.types.chat.chat_completion_chunk.ChatCompletionChunk" in watch.accelerated
    assert texts() == before
    assert texts() == before
    assert uninstall() == []
    assert texts() == before


def litserve_chunk(text: str) -> litserve.ChatCompletionChunk:
    """With a role in every delta."""
    delta = litserve.ChoiceDelta(role="assistant", content=text)
    choice = litserve.ChatCompletionStreamingChoice(index=0, delta=delta)
    return litserve.ChatCompletionChunk(model="m", choices=[choice], usage=None)


def test_litserve_has_a_new_id_for_each_chunk(load: Any) -> None:
    """An id that changes from chunk to chunk is each chunk's own."""
    load("litserve.specs.openai", ChatCompletionChunk=litserve.ChatCompletionChunk)
    stream = [litserve_chunk(text) for text in MANY]
    before = [chunk.model_dump_json(by_alias=True) for chunk in stream]
    watch = tailwatch.install(gc="off", fast_sse=True)

    assert "litserve.specs.openai.ChatCompletionChunk" in watch.accelerated
    assert [chunk.model_dump_json(by_alias=True) for chunk in stream] == before
    assert len({json.loads(frame)["id"] for frame in before}) > 1


# ---- TensorRT-LLM ----


def tensorrt_llm_chunk(
    content: str, reasoning: str, iterations: float | None
) -> tensorrt_llm.ChatCompletionStreamResponse:
    """As the post-processor builds it."""
    delta = tensorrt_llm.DeltaMessage(content=content, reasoning_content=reasoning)
    choice = tensorrt_llm.ChatCompletionResponseStreamChoice(
        index=0, delta=delta, avg_decoded_tokens_per_iter=iterations
    )
    return tensorrt_llm.ChatCompletionStreamResponse(id="1", created=1, model="m", choices=[choice])


def test_tensorrt_llm_streams_the_same_bytes(load: Any) -> None:
    """Content with an empty reasoning beside it, and a number that is no integer."""
    load(
        "tensorrt_llm.serve.openai_protocol",
        ChatCompletionStreamResponse=tensorrt_llm.ChatCompletionStreamResponse,
        CompletionStreamResponse=tensorrt_llm.CompletionStreamResponse,
    )
    stream = [
        tensorrt_llm_chunk(*texts, iterations)
        for text in MANY
        for texts in ((text, ""), ("", text))
        for iterations in (None, 1.25)
    ]
    before = [chunk.model_dump_json(exclude_none=True) for chunk in stream]
    watch = tailwatch.install(gc="off", fast_sse=True)

    assert {name for name in watch.accelerated if name.startswith("tensorrt_llm")} == {
        "tensorrt_llm.serve.openai_protocol.ChatCompletionStreamResponse",
        "tensorrt_llm.serve.openai_protocol.CompletionStreamResponse",
    }
    assert [chunk.model_dump_json(exclude_none=True) for chunk in stream] == before
    assert not [reason for _, reason in fallbacks() if reason in ("differs", "error")]


# ---- install and uninstall ----


def fastapi_like() -> Any:
    """An ASGI app that answers the lifespan."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while scope["type"] == "lifespan":
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    return app


def start_up(app: Any) -> None:
    """Send the app its lifespan start-up and shutdown."""
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        assert message["type"].endswith(".complete")

    with pytest.raises(StopIteration):
        app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send).send(None)


def test_it_is_off_by_default(load: Any) -> None:
    """Without the option nothing is touched."""
    home, _ = load_sglang(load)
    watch = tailwatch.install(gc="off")

    assert watch.accelerated == ()
    assert home.build_sse_content is build_sse_content
    assert not [finding for finding in watch.doctor() if finding.rule.startswith("fast-sse")]


def test_what_is_loaded_later_is_found_at_start_up(load: Any) -> None:
    """A server imports its modules after the app is made."""
    watch = tailwatch.install(fastapi_like(), gc="off", fast_sse=True)
    home, _ = load_sglang(load)
    assert home.build_sse_content is build_sse_content
    start_up(watch.app)

    assert home.build_sse_content is not build_sse_content
    assert uninstall() == []
    assert home.build_sse_content is build_sse_content


def test_a_class_that_is_not_there_is_noted_at_start_up(load: Any) -> None:
    """Half an import at install() is no problem yet; at start-up the doctor has it, once."""
    load("vllm.entrypoints.openai.chat_completion.protocol")
    watch = tailwatch.install(fastapi_like(), gc="off", fast_sse=True)
    assert watch.notes == []
    start_up(watch.app)
    watch.fast_sse.wrap_loaded()

    assert [note for note in watch.notes if "ChatCompletionStreamResponse" in note] == watch.notes
    assert len(watch.notes) == 1
    assert "ChatCompletionStreamResponse" in next(f for f in watch.doctor() if f.rule == "notes").detail


@pytest.mark.parametrize("found", [None, 3, "text", PydanticUserError, [].append])
def test_something_else_under_the_name_is_no_error(load: Any, found: Any) -> None:
    """install() does not raise for what a server's next version may hold there."""
    load("vllm.entrypoints.openai.chat_completion.protocol", ChatCompletionStreamResponse=found)
    load_sglang(load, found)
    load("lmdeploy.serve.openai.chat_completions.serving", json=found)
    load("transformers.cli.serving.completion", CompletionHandler=found)
    watch = tailwatch.install(fastapi_like(), gc="off", fast_sse=True)
    start_up(watch.app)

    assert len(watch.notes) == 4


def test_the_doctor_names_what_is_at_work(load: Any) -> None:
    """By name; and where nothing is, that."""
    watch = tailwatch.install(gc="off", fast_sse=True)
    watch.fast_sse.undo()
    assert next(f for f in watch.doctor() if f.rule == "fast-sse").title == "fast_sse has no effect"
    load_sglang(load)
    watch.fast_sse.wrap_loaded()
    assert "sglang.srt" in next(f for f in watch.doctor() if f.rule == "fast-sse").detail
    assert tailwatch.doctor()[-1].severity == "info"


def test_the_environment_switches_it_on(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """TAILWATCH_FAST_SSE."""
    home, _ = load_sglang(load)
    monkeypatch.setenv("TAILWATCH_FAST_SSE", "on")
    assert tailwatch.install(gc="off").config.fast_sse
    assert home.build_sse_content is not build_sse_content


def test_an_install_after_a_door_may_change_it(load: Any) -> None:
    """The arguments of install() win over the Middleware's: on, and off again."""
    home, _ = load_sglang(load)
    for door, code in ((False, True), (True, False)):
        tailwatch.Middleware(fastapi_like(), gc="off", fast_sse=door)
        assert (home.build_sse_content is not build_sse_content) is door
        tailwatch.install(fastapi_like(), fast_sse=code)
        assert (home.build_sse_content is not build_sse_content) is code
        assert uninstall() == []
        assert home.build_sse_content is build_sse_content


def test_no_server_is_imported_for_it() -> None:
    """In a fresh process the option imports none of the known packages."""
    code = (
        "import sys, tailwatch; from tailwatch import integrations\n"
        "assert not [name for name in sys.modules if name.startswith(('tailwatch.sse', 'orjson', 'pydantic'))]\n"
        "tailwatch.install(gc='off', fast_sse=True)\n"
        "heads = {target.name.partition('.')[0] for target in integrations.known()}\n"
        "assert len(heads) >= 6, heads\n"
        "print(heads & {name.partition('.')[0] for name in sys.modules} - {'tailwatch'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_after_uninstall_a_held_function_is_the_server_s(load: Any) -> None:
    """Ours was taken out of the module: each call of it goes to the server's own function."""
    called = []

    def counting(*args: Any, **kwargs: Any) -> str:
        called.append("build")
        return build_sse_content(*args, **kwargs)

    def dumping(*args: Any, **kwargs: Any) -> str:
        called.append("dumps")
        return json.dumps(*args, **kwargs)

    counting.__signature__ = inspect.signature(build_sse_content)  # type: ignore[attr-defined]
    home, _ = load_sglang(load, counting)
    their_json = ModuleType("json")
    vars(their_json)["dumps"] = dumping
    writer = load("lmdeploy.serve.openai.chat_completions.serving", json=their_json)
    tailwatch.install(gc="off", fast_sse=True)
    frame = lmdeploy_frame("x")
    for _ in range(20):
        home.build_sse_content(**SGLANG_CALL, content="x")
        writer.json.dumps(frame)
    held, dumps = home.build_sse_content, writer.json.dumps
    uninstall()
    called.clear()
    for text in MANY:
        assert held(**SGLANG_CALL, content=text) == build_sse_content(**SGLANG_CALL, content=text)
        for usage in (False, True):  # True: a shape that was not met before
            assert dumps(lmdeploy_frame(text, usage=usage)) == json.dumps(lmdeploy_frame(text, usage=usage))
    assert called == ["build", "dumps", "dumps"] * len(MANY)


@pytest.mark.parametrize("wrong", [{"content": None}, {"created": True}, {"created": 2**70}], ids=str)
def test_a_call_that_no_hole_takes_costs_the_shape_nothing(load: Any, wrong: dict[str, Any]) -> None:
    """SGLang's function answers it, and the frames after it are ours again."""
    home, _ = load_sglang(load)
    tailwatch.install(gc="off", fast_sse=True)
    for text in MANY:
        call = {**SGLANG_CALL, "content": text}
        assert home.build_sse_content(**call) == build_sse_content(**call)
        odd = {**call, **wrong}
        assert result_of(home.build_sse_content, odd) == result_of(build_sse_content, odd)
    assert fallbacks() == {}


def result_of(function: Any, call: dict[str, Any]) -> object:
    """What it returns, or the type of what it raises."""
    try:
        return function(**call)
    except Exception as error:
        return type(error)


class Own(BaseModel):
    """A class that its author accelerated himself."""

    text: str
    value: Any = None


def test_a_class_accelerated_by_hand_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """install() without fast_sse: the metric counts, the daemon's task logs, and the thread that serves does not;
    after uninstall() it logs by itself."""
    caplog.set_level(logging.INFO, "tailwatch")
    watch = tailwatch.install(gc="off")
    caplog.clear()
    with sse.accelerate(Own):
        Own(text="a", value=0.5).model_dump_json()
        assert fallbacks() == {("Own:value", "unsupported"): 1}
        assert caplog.records == []
        watch.fast_sse.log_fallbacks()
        assert [record.getMessage() for record in caplog.records] == [
            "fast_sse: Own:value: goes the server's own way (unsupported)"
        ]
        watch.fast_sse.listen()
        assert uninstall() == []
        caplog.clear()
        Own(text="a", value=b"x").model_dump_json()
        Own(text="a", value=[0.5]).model_dump_json()
    assert [record.getMessage()[:24] for record in caplog.records] == ["accelerate: Own:value.0:"]
    tailwatch.install(gc="off")
    assert fallbacks() == {}


def test_a_module_that_is_loaded_late_is_followed_from_the_next_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """install() does not import it."""
    received: list[tuple[str, str]] = []
    module = sys.modules["tailwatch.sse.accelerate"]
    monkeypatch.delitem(sys.modules, "tailwatch.sse.accelerate")
    fast = FastSSE(lambda *what: received.append(what), lambda note: None)
    fast.listen()
    assert "tailwatch.sse.accelerate" not in sys.modules
    monkeypatch.setitem(sys.modules, "tailwatch.sse.accelerate", module)
    fast.listen()
    fast.listen()
    with sse.accelerate(Own):
        Own(text="a", value=0.5).model_dump_json()
    fast.unlisten()
    fast.unlisten()
    with sse.accelerate(Own):
        Own(text="a", value=0.5).model_dump_json()
    assert received == [("Own:value", "unsupported")]


def test_a_patch_over_ours_is_reported_and_works(load: Any) -> None:
    """Our replacement is wrapped: uninstall() leaves the wrapper, reports it, and ours below it only hands on."""
    home, other = load_sglang(load)
    tailwatch.install(gc="off", fast_sse=True)
    ours = home.build_sse_content
    vars(home)["build_sse_content"] = lambda *args, **kwargs: ours(*args, **kwargs)
    report = uninstall()

    assert len(report) == 1
    assert "build_sse_content" in report[0]
    assert other.build_sse_content is build_sse_content
    for text in MANY:
        assert home.build_sse_content(**SGLANG_CALL, content=text) == build_sse_content(**SGLANG_CALL, content=text)


def test_an_undo_that_fails_is_reported() -> None:
    """Never an exception from uninstall()."""

    class Stubborn(ModelTarget):
        """A target whose undo raises."""

        __slots__ = ()

        def accelerate(self, on_fallback: Any) -> Any:
            return lambda: 1 / 0

    notes: list[str] = []
    fast = FastSSE(lambda shape, reason: None, notes.append)
    fast._undo["x.Y"] = Stubborn("x", "Y", "").accelerate(None)

    (note,) = fast.undo()
    assert "fast_sse" in note and "x.Y" in note and "ZeroDivisionError" in note
    assert fast.undo() == []
    assert notes == []


def test_without_its_encoders_it_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where orjson is missing, say: install() works, and the doctor has it once."""
    monkeypatch.setattr(
        "tailwatch.integrations.fast_sse.found", lambda: importlib.import_module("tailwatch.no_such_module")
    )
    watch = tailwatch.install(gc="off", fast_sse=True)
    watch.fast_sse.wrap_loaded()

    (note,) = watch.notes
    assert "fast_sse" in note and "ModuleNotFoundError" in note and "tailwatch.no_such_module" in note
    assert watch.accelerated == ()


def test_each_target_has_one_name() -> None:
    """And reads as a dotted name."""
    names = [target.name for target in integrations.known()]
    assert len(set(names)) == len(names) >= 15
    assert all(part.isidentifier() for name in names for part in name.split("."))
    assert Function("a.b", "f", lambda builder: str, owner="C").name == "a.b.C.f"
