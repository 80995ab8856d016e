"""How other servers make the bytes of one streamed token: their chunk classes re-created field by field, and what each
does with them. A family is made anew by each call, so that one can be accelerated beside one that is not.

Fields, validators and serialisers are those of vLLM 0.33.0, SGLang 0.5.23, LMDeploy 0.18.0, TensorRT-LLM's
repository at 0076e93 and llama-cpp-python's at 001fbb4; the openai package's classes are its own, filled in as
transformers 5.23.0 does. Fields that no chunk of
text sets are typed loosely. `expected` is the frame written out by hand: what a re-created class makes is held to it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Literal, TypeVar

ID = "chatcmpl-4f1c8d9e0a5b4c1f9d7e6a2b3c4d5e6f"
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
CREATED = 1790412345


@dataclass(frozen=True)
class Family:
    """One server's way from a text to bytes."""

    build: Callable[[str], Any]
    """The chunk of one text, as the server constructs it."""
    dump: Callable[[Any], bytes]
    """The frame of a chunk, as the server serialises and encodes it."""
    expected: Callable[[str], bytes]
    """The frame, by hand."""
    dialect: str
    """How text is escaped, as tailwatch.sse.Template.learn() calls it."""
    model: type[Any] | None = None
    """The class that sse.accelerate() takes; None: it is not a Pydantic one."""

    def frame(self, text: str) -> bytes:
        """From a text to bytes."""
        return self.dump(self.build(text))


def vllm_chat() -> Family:
    """Three Pydantic objects; model_dump_json(exclude_unset=True) through a serialiser in Python; an f-string."""
    Base = _vllm_base()
    from pydantic import BaseModel, Field, SerializeAsAny, model_serializer

    class DeltaFunctionCall(BaseModel):
        name: str | None = None
        arguments: str | None = None

    class DeltaToolCall(Base):
        id: str | None = None
        type: Literal["function"] | None = None
        index: int
        function: DeltaFunctionCall | None = None

    class DeltaMessage(Base):
        role: str | None = None
        content: str | None = None
        reasoning: str | None = None
        tool_calls: list[DeltaToolCall] = Field(default_factory=list)

        @model_serializer(mode="wrap")
        def without_empty_calls(self, handler: Any) -> Any:
            fields = handler(self)
            if len(fields.get("tool_calls", [])) == 0:
                fields.pop("tool_calls", None)
            return fields

    class ChatCompletionResponseStreamChoice(Base):
        index: int
        delta: SerializeAsAny[DeltaMessage]
        logprobs: dict[str, Any] | None = None
        finish_reason: str | None = None
        stop_reason: int | str | None = None
        token_ids: list[int] | None = None
        weight_versions: list[dict[str, Any]] | None = None

    class ChatCompletionStreamResponse(Base):
        id: str = Field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
        object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
        created: int = Field(default_factory=lambda: int(time.time()))
        model: str
        choices: list[ChatCompletionResponseStreamChoice]
        usage: dict[str, Any] | None = None
        system_fingerprint: str | None = None
        prompt_token_ids: list[int] | None = None
        prompt_text: str | None = None
        metrics: dict[str, Any] | None = None
        kv_transfer_params: dict[str, Any] | None = None

    def build(text: str) -> ChatCompletionStreamResponse:
        delta = DeltaMessage(content=text)
        choice = ChatCompletionResponseStreamChoice(
            index=0, delta=delta, logprobs=None, finish_reason=None, token_ids=None
        )
        return ChatCompletionStreamResponse(
            id=ID, object="chat.completion.chunk", created=CREATED, choices=[choice], model=MODEL,
            kv_transfer_params=None,
        )  # fmt: skip

    def dump(chunk: ChatCompletionStreamResponse) -> bytes:
        data = chunk.model_dump_json(exclude_unset=True, exclude_none=not chunk.choices)
        return f"data: {data}\n\n".encode()

    expected = _around(
        _head() + '"choices":[{"index":0,"delta":{"content":',
        '},"logprobs":null,"finish_reason":null,"token_ids":null}],"kv_transfer_params":null}\n\n',
    )
    return Family(build, dump, expected, "pydantic", ChatCompletionStreamResponse)


def vllm_completions() -> Family:
    """Two Pydantic objects; model_dump_json(exclude_unset=True); an f-string."""
    Base = _vllm_base()
    from pydantic import Field

    class CompletionResponseStreamChoice(Base):
        index: int
        text: str
        logprobs: dict[str, Any] | None = None
        finish_reason: str | None = None
        stop_reason: int | str | None = None
        prompt_token_ids: list[int] | None = None
        token_ids: list[int] | None = None
        weight_versions: list[dict[str, Any]] | None = None

    class CompletionStreamResponse(Base):
        id: str = Field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
        object: str = "text_completion"
        created: int = Field(default_factory=lambda: int(time.time()))
        model: str
        choices: list[CompletionResponseStreamChoice]
        usage: dict[str, Any] | None = None
        system_fingerprint: str | None = None
        metrics: dict[str, Any] | None = None
        kv_transfer_params: dict[str, Any] | None = None

    def build(text: str) -> CompletionStreamResponse:
        choice = CompletionResponseStreamChoice(
            index=0, text=text, logprobs=None, finish_reason=None, stop_reason=None, prompt_token_ids=None,
            token_ids=None, weight_versions=None,
        )  # fmt: skip
        return CompletionStreamResponse(
            id=ID, object="text_completion", created=CREATED, model=MODEL, choices=[choice], kv_transfer_params=None
        )

    def dump(chunk: CompletionStreamResponse) -> bytes:
        return f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n".encode()

    expected = _around(
        _head("text_completion") + '"choices":[{"index":0,"text":',
        ',"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null,'
        '"weight_versions":null}],"kv_transfer_params":null}\n\n',
    )
    return Family(build, dump, expected, "pydantic", CompletionStreamResponse)


def _vllm_base() -> Any:
    """Extra fields are allowed, and looked for in every object that is made."""
    from pydantic import BaseModel, ConfigDict, model_validator

    class OpenAIBaseModel(BaseModel):
        model_config = ConfigDict(extra="allow")
        names: ClassVar[set[str] | None] = None

        @model_validator(mode="wrap")
        @classmethod
        def look_for_extra(cls, data: Any, handler: Any) -> Any:
            made = handler(data)
            if not isinstance(data, dict):
                return made
            names = cls.names
            if names is None:
                names = cls.names = {
                    name for field in cls.model_fields.items() for name in (field[0], field[1].alias) if name
                }
            if data.keys() - names:
                raise AssertionError("no benchmark sets a field that is not there")
            return made

    return OpenAIBaseModel


def lmdeploy_chat() -> Family:
    """Three Pydantic objects; model_dump(mode="json", exclude_none=True); json.dumps; an f-string."""
    from pydantic import BaseModel, Field

    class DeltaFunctionCall(BaseModel):
        name: str | None = None
        arguments: str | None = None

    class DeltaToolCall(BaseModel):
        id: str | None = None
        type: Literal["function"] | None = "function"
        index: int
        function: DeltaFunctionCall | None = None

    class DeltaMessage(BaseModel):
        role: str | None = None
        content: str | None = None
        reasoning_content: str | None = None
        tool_calls: list[DeltaToolCall] | None = None

    class ChatCompletionResponseStreamChoice(BaseModel):
        index: int
        delta: DeltaMessage
        logprobs: dict[str, Any] | None = None
        output_token_logprobs: list[tuple[float, int]] | None = None
        output_ids: list[int] | None = None
        finish_reason: Literal["stop", "length", "tool_calls", "parse_error", "error", "abort"] | None = None
        routed_experts: list[list[list[int]]] | str | None = None

    class ChatCompletionStreamResponse(BaseModel):
        id: str = Field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
        object: str = "chat.completion.chunk"
        created: int = Field(default_factory=lambda: int(time.time()))
        model: str
        choices: list[ChatCompletionResponseStreamChoice]
        usage: dict[str, Any] | None = None

    def build(text: str) -> ChatCompletionStreamResponse:
        delta = DeltaMessage(role="assistant", content=text)
        choice = ChatCompletionResponseStreamChoice(
            index=0, delta=delta, finish_reason=None, logprobs=None, output_token_logprobs=None, output_ids=None,
            routed_experts=None,
        )  # fmt: skip
        return ChatCompletionStreamResponse(id=ID, created=CREATED, model=MODEL, choices=[choice], usage=None)

    def dump(chunk: ChatCompletionStreamResponse) -> bytes:
        fields = chunk.model_dump(mode="json", exclude_none=True)
        return f"data: {json.dumps(fields)}\n\n".encode()

    head = (
        f'data: {{"id": "{ID}", "object": "chat.completion.chunk", "created": {CREATED}, "model": "{MODEL}", '
        '"choices": [{"index": 0, "delta": {"role": "assistant", "content": '
    )
    return Family(build, dump, _around(head, "}}]}\n\n", ascii=True), "json", ChatCompletionStreamResponse)


def trtllm_chat() -> Family:
    """Three Pydantic objects; model_dump_json(exclude_none=True); an f-string."""
    from pydantic import BaseModel, ConfigDict, Field

    class OpenAIBaseModel(BaseModel):
        model_config = ConfigDict(extra="forbid", populate_by_name=True)

    class DeltaFunctionCall(OpenAIBaseModel):
        name: str | None = None
        arguments: str | None = None

    class DeltaToolCall(OpenAIBaseModel):
        id: str | None = None
        type: Literal["function"] = "function"
        index: int
        function: DeltaFunctionCall | None = None

    class DeltaMessage(OpenAIBaseModel):
        role: str | None = None
        content: str | None = None
        reasoning_content: str | None = None
        reasoning: str | None = None
        tool_calls: list[DeltaToolCall] | None = None

    class ChatCompletionResponseStreamChoice(OpenAIBaseModel):
        index: int
        delta: DeltaMessage
        logprobs: dict[str, Any] | None = None
        finish_reason: str | None = None
        stop_reason: int | str | None = None
        avg_decoded_tokens_per_iter: float | None = None

    class ChatCompletionStreamResponse(OpenAIBaseModel):
        id: str = Field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
        object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
        created: int = Field(default_factory=lambda: int(time.time()))
        model: str
        choices: list[ChatCompletionResponseStreamChoice]
        usage: dict[str, Any] | None = None

    def build(text: str) -> ChatCompletionStreamResponse:
        delta = DeltaMessage(content=text, reasoning_content="", tool_calls=None)
        choice = ChatCompletionResponseStreamChoice(
            index=0, delta=delta, avg_decoded_tokens_per_iter=None, stop_reason=None
        )
        return ChatCompletionStreamResponse(choices=[choice], model=MODEL, id=ID, created=CREATED)

    def dump(chunk: ChatCompletionStreamResponse) -> bytes:
        return f"data: {chunk.model_dump_json(exclude_none=True)}\n\n".encode()

    expected = _around(_head() + '"choices":[{"index":0,"delta":{"content":', ',"reasoning_content":""}}]}\n\n')
    return Family(build, dump, expected, "pydantic", ChatCompletionStreamResponse)


def openai_types() -> Family:
    """The openai package's own classes; model_dump_json(exclude_none=True), as transformers serve does."""
    from openai.types.chat import chat_completion_chunk as chunks

    class ChatCompletionChunk(chunks.ChatCompletionChunk):
        """Of this family alone."""

    def build(text: str) -> ChatCompletionChunk:
        fields = {"content": text, "role": None, "tool_calls": None, "reasoning_content": None}
        delta = chunks.ChoiceDelta.model_validate(fields)
        choice = chunks.Choice(delta=delta, index=0, finish_reason=None)
        return ChatCompletionChunk(
            id=ID, created=CREATED, model=MODEL, choices=[choice], usage=None, system_fingerprint="",
            object="chat.completion.chunk",
        )  # fmt: skip

    def dump(chunk: ChatCompletionChunk) -> bytes:
        return f"data: {chunk.model_dump_json(exclude_none=True)}\n\n".encode()

    expected = _around(
        f'data: {{"id":"{ID}","choices":[{{"delta":{{"content":',
        f'}},"index":0}}],"created":{CREATED},"model":"{MODEL}","object":"chat.completion.chunk",'
        '"system_fingerprint":""}\n\n',
    )
    return Family(build, dump, expected, "pydantic", ChatCompletionChunk)


def _sglang() -> Any:
    """Its Structs and its encoder."""
    import msgspec

    class StreamDelta(msgspec.Struct, omit_defaults=True):
        reasoning_content: str | None
        role: str | None = None
        content: str | None = None

    class StreamChoice(msgspec.Struct):
        index: int
        delta: StreamDelta
        logprobs: dict[str, Any] | None = None
        finish_reason: str | None = None
        matched_stop: int | str | None = None

    class StreamChunk(msgspec.Struct, omit_defaults=True):
        id: str
        object: str
        created: int
        model: str
        choices: list[StreamChoice]
        usage: dict[str, Any] | None = None

    return StreamDelta, StreamChoice, StreamChunk, msgspec.json.Encoder().encode


def sglang_chat() -> Family:
    """Three msgspec Structs; encode, decode to str, encode again."""
    StreamDelta, StreamChoice, StreamChunk, encode = _sglang()

    def build(text: str) -> Any:
        delta = StreamDelta(role=None, content=text, reasoning_content=None)
        choice = StreamChoice(index=0, delta=delta, logprobs=None, finish_reason=None, matched_stop=None)
        return StreamChunk(
            id=ID, object="chat.completion.chunk", created=CREATED, model=MODEL, choices=[choice], usage=None
        )

    def dump(chunk: Any) -> bytes:
        return (b"data: " + encode(chunk) + b"\n\n").decode().encode()

    expected = _around(
        _head() + '"choices":[{"index":0,"delta":{"reasoning_content":null,"content":',
        '},"logprobs":null,"finish_reason":null,"matched_stop":null}]}\n\n',
    )
    return Family(build, dump, expected, "msgspec")


def llama_cpp_chat() -> Family:
    """A dict; json.dumps; the event as sse-starlette frames it, without what sse-starlette itself costs."""

    def build(text: str) -> dict[str, Any]:
        return {
            "id": ID,
            "model": MODEL,
            "created": CREATED,
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}],
        }

    def dump(chunk: dict[str, Any]) -> bytes:
        return f"data: {json.dumps(chunk)}\r\n\r\n".encode()

    head = (
        f'data: {{"id": "{ID}", "model": "{MODEL}", "created": {CREATED}, "object": "chat.completion.chunk", '
        '"choices": [{"index": 0, "delta": {"content": '
    )
    expected = _around(head, '}, "logprobs": null, "finish_reason": null}]}\r\n\r\n', ascii=True)
    return Family(build, dump, expected, "json")


# ---- servers of which a function can be replaced ----


@dataclass(frozen=True)
class Builder:
    """A module that stands in for a server's: what tailwatch.servers looks for is in it."""

    module: ModuleType
    frame: Callable[[str], bytes]
    """From a text to bytes, by whatever the module has at that moment."""


def sglang_builder() -> Builder:
    """SGLang's build_sse_content()."""
    StreamDelta, StreamChoice, StreamChunk, encode = _sglang()

    def build_sse_content(
        chunk_id: str,
        created: int,
        model: str,
        index: int,
        role: str | None = None,
        content: str | None = None,
        reasoning_content: str | None = None,
        finish_reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
        matched_stop: int | str | None = None,
        usage: dict[str, Any] | None = None,
    ) -> str:
        delta = StreamDelta(role=role, content=content, reasoning_content=reasoning_content)
        choice = StreamChoice(
            index=index, delta=delta, logprobs=logprobs, finish_reason=finish_reason, matched_stop=matched_stop
        )
        chunk = StreamChunk(
            id=chunk_id, object="chat.completion.chunk", created=created, model=model, choices=[choice], usage=usage
        )
        return (b"data: " + encode(chunk) + b"\n\n").decode()

    module: Any = ModuleType("sglang.srt.entrypoints.openai.sse_utils")
    module.build_sse_content = build_sse_content

    def frame(text: str) -> bytes:
        built: str = module.build_sse_content(
            chunk_id=ID, created=CREATED, model=MODEL, index=0, content=text, logprobs=None, usage=None
        )
        return built.encode()

    return Builder(module, frame)


def transformers_builder() -> Builder:
    """transformers serve's ChatCompletionHandler._build_chunk_sse(), which reads the clock for each chunk."""
    from openai.types.chat import chat_completion_chunk as chunks

    class ChatCompletionHandler:
        @staticmethod
        def chunk_to_sse(chunk: Any) -> str:
            if isinstance(chunk, str):
                return chunk if chunk.startswith("data: ") else f"data: {chunk}\n\n"
            return f"data: {chunk.model_dump_json(exclude_none=True)}\n\n"

        def _build_chunk_sse(
            self,
            request_id: str = "",
            content: str | None = None,
            model: str | None = None,
            role: str | None = None,
            finish_reason: str | None = None,
            tool_calls: list[Any] | None = None,
            usage: Any = None,
            reasoning_content: str | None = None,
        ) -> str:
            fields = {
                "content": content,
                "role": role,
                "tool_calls": tool_calls,
                "reasoning_content": reasoning_content,
            }
            delta = chunks.ChoiceDelta.model_validate(fields)
            choice: Any = chunks.Choice(delta=delta, index=0, finish_reason=finish_reason)
            made: Any = chunks.ChatCompletionChunk
            chunk = made(
                id=request_id, created=int(time.time()), model=model, choices=[choice], usage=usage,
                system_fingerprint="", object="chat.completion.chunk",
            )  # fmt: skip
            return self.chunk_to_sse(chunk)

    module: Any = ModuleType("transformers.cli.serving.chat_completion")
    module.ChatCompletionHandler = ChatCompletionHandler
    handler = ChatCompletionHandler()

    def frame(text: str) -> bytes:
        return handler._build_chunk_sse(ID, content=text, model=MODEL).encode()

    return Builder(module, frame)


def lmdeploy_builder() -> Builder:
    """LMDeploy's generator, of which json.dumps can be replaced."""
    family = lmdeploy_chat()
    module: Any = ModuleType("lmdeploy.serve.openai.chat_completions.serving")
    module.json = json

    def frame(text: str) -> bytes:
        fields = family.build(text).model_dump(mode="json", exclude_none=True)
        return f"data: {module.json.dumps(fields)}\n\n".encode()

    return Builder(module, frame)


BUILDERS: dict[str, Callable[[], Builder]] = {
    "transformers serve": transformers_builder,
    "SGLang": sglang_builder,
    "LMDeploy": lmdeploy_builder,
}


def _head(kind: str = "chat.completion.chunk") -> str:
    return f'data: {{"id":"{ID}","object":"{kind}","created":{CREATED},"model":"{MODEL}",'


def _around(head: str, tail: str, *, ascii: bool = False) -> Callable[[str], bytes]:
    return lambda text: (head + json.dumps(text, ensure_ascii=ascii) + tail).encode()


FAMILIES: dict[str, Callable[[], Family]] = {
    "vLLM chat": vllm_chat,
    "vLLM completions": vllm_completions,
    "LMDeploy chat": lmdeploy_chat,
    "TensorRT-LLM chat": trtllm_chat,
    "openai package, transformers serve": openai_types,
    "SGLang chat, msgspec": sglang_chat,
    "llama-cpp-python, json.dumps": llama_cpp_chat,
}


Made = TypeVar("Made", Family, Builder)


def available(notes: list[str], makers: Mapping[str, Callable[[], Made]]) -> dict[str, Made]:
    """One of each whose packages are installed; a note for each other."""
    found = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except ImportError as error:
            notes.append(f"not compared: {name} ({error})")
    return found
