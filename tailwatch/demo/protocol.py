"""The OpenAI-style bodies, as Pydantic models: what such a server builds and drops for every token."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Message(BaseModel):
    """One turn of a chat."""

    role: str = "user"
    content: str = ""


class CompletionRequest(BaseModel):
    """POST /v1/completions."""

    model: str = "demo"
    prompt: str = ""
    max_tokens: int = Field(default=64, ge=1, le=1024)
    stream: bool = False


class ChatRequest(BaseModel):
    """POST /v1/chat/completions."""

    model: str = "demo"
    messages: list[Message] = Field(min_length=1)
    max_tokens: int = Field(default=64, ge=1, le=1024)
    stream: bool = False


class Delta(BaseModel):
    """The new part of a chat message."""

    role: str | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    """One choice in a chat chunk."""

    index: int = 0
    delta: Delta
    logprobs: None = None
    finish_reason: str | None = None


class ChatChunk(BaseModel):
    """One SSE frame of a chat."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]


class TextChoice(BaseModel):
    """One choice of a completion, whole or a part of it."""

    index: int = 0
    text: str
    logprobs: None = None
    finish_reason: str | None = None


class Usage(BaseModel):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    """A completion: one SSE frame of it, or all of it with its usage."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None


class ChatChoice(BaseModel):
    """One choice of a whole chat answer."""

    index: int = 0
    message: Message
    finish_reason: str | None = None


class Chat(BaseModel):
    """A whole chat answer."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
