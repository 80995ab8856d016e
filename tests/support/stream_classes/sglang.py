"""SGLang 0.5.23: sglang/srt/entrypoints/openai/{sse_utils,protocol}.py."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from pydantic import BaseModel, Field, model_serializer


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


encoder = msgspec.json.Encoder()


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
    """The frame of one chunk."""
    delta = StreamDelta(role=role, content=content, reasoning_content=reasoning_content)
    choice = StreamChoice(
        index=index, delta=delta, logprobs=logprobs, finish_reason=finish_reason, matched_stop=matched_stop
    )
    chunk = StreamChunk(
        id=chunk_id, object="chat.completion.chunk", created=created, model=model, choices=[choice], usage=usage
    )
    return (b"data: " + encoder.encode(chunk) + b"\n\n").decode()


class FunctionResponse(BaseModel):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ToolCall(BaseModel):
    id: str | None = None
    index: int | None = None
    type: Literal["function"] = "function"
    function: FunctionResponse


class PromptTokensDetails(BaseModel):
    cached_tokens: int = 0
    image_tokens: int | None = None
    audio_tokens: int | None = None
    video_tokens: int | None = None

    @model_serializer(mode="wrap")
    def _serialize(self, handler: Any) -> Any:
        data = handler(self)
        for key in ("image_tokens", "audio_tokens", "video_tokens"):
            if data.get(key) is None:
                data.pop(key, None)
        return data


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int = 0


class UsageInfo(BaseModel):
    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    reasoning_tokens: int | None = 0
    completion_tokens_details: CompletionTokensDetails | None = None


class DeltaMessage(BaseModel):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    hidden_states: object | None = None

    @model_serializer(mode="wrap")
    def _serialize(self, handler: Any) -> Any:
        data = handler(self)
        if self.hidden_states is None:
            data.pop("hidden_states", None)
        return data


class ChatCompletionResponseStreamChoice(BaseModel):
    index: int
    delta: DeltaMessage
    logprobs: Any = None
    finish_reason: str | None = None
    matched_stop: int | str | None = None

    @model_serializer(mode="wrap")
    def _serialize(self, handler: Any) -> Any:
        data = handler(self)
        if self.delta.tool_calls is None:
            data["delta"].pop("tool_calls", None)
        return data


class WithoutSglext(BaseModel):
    """Drops an sglext that is None."""

    @model_serializer(mode="wrap", when_used="always")
    def _serialize(self, handler: Any) -> Any:
        data = handler(self)
        if getattr(self, "sglext", None) is None:
            data.pop("sglext", None)
        return data


class ChatCompletionStreamResponse(WithoutSglext):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatCompletionResponseStreamChoice]
    usage: UsageInfo | None = None
    sglext: Any = None


class LogProbs(BaseModel):
    text_offset: list[int] = Field(default_factory=list)
    token_logprobs: list[float | None] = Field(default_factory=list)
    tokens: list[str] = Field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = Field(default_factory=list)


class CompletionResponseStreamChoice(BaseModel):
    index: int
    text: str
    logprobs: LogProbs | None = None
    finish_reason: Literal["stop", "length", "content_filter", "abort"] | None = None
    matched_stop: int | str | None = None
    hidden_states: object | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None

    @model_serializer(mode="wrap")
    def _serialize(self, handler: Any) -> Any:
        data = handler(self)
        for key in ("hidden_states", "token_ids", "prompt_token_ids"):
            if getattr(self, key) is None:
                data.pop(key, None)
        return data


class CompletionStreamResponse(WithoutSglext):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionResponseStreamChoice]
    usage: UsageInfo | None = None
    sglext: Any = None


class ErrorResponse(BaseModel):
    object: str = "error"
    message: str
    type: str
    param: str | None = None
    code: int
