"""LitServe 0.2.19: litserve/specs/openai.py."""

from __future__ import annotations

import time
import uuid
from typing import Any, Literal

from pydantic import BaseModel, Field


class ChoiceDelta(BaseModel):
    role: Literal["system", "user", "assistant", "tool"] | None = None
    content: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class ChatCompletionStreamingChoice(BaseModel):
    delta: ChoiceDelta | None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter", "function_call"] | None = None
    index: int
    logprobs: dict[str, Any] | None = None


class ChatCompletionChunk(BaseModel):
    id: str = Field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex[:6]}")
    object: str = "chat.completion.chunk"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    system_fingerprint: str | None = None
    choices: list[ChatCompletionStreamingChoice]
    usage: dict[str, int] | None
