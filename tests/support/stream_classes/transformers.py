"""transformers 5.23.0: transformers/cli/serving/{utils,chat_completion,completion}.py, over the openai package's own
classes."""

from __future__ import annotations

import time
from typing import Any

from openai.types import Completion
from openai.types.chat.chat_completion_chunk import ChatCompletionChunk, Choice, ChoiceDelta
from openai.types.completion_choice import CompletionChoice


class BaseHandler:
    @staticmethod
    def chunk_to_sse(chunk: Any) -> str:
        """The frame of a chunk."""
        if isinstance(chunk, str):
            return chunk if chunk.startswith("data: ") else f"data: {chunk}\n\n"
        return f"data: {chunk.model_dump_json(exclude_none=True)}\n\n"


class ChatCompletionHandler(BaseHandler):
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
        delta = ChoiceDelta.model_validate(
            {"content": content, "role": role, "tool_calls": tool_calls, "reasoning_content": reasoning_content}
        )
        choice: Any = Choice(delta=delta, index=0, finish_reason=finish_reason)  # type: ignore[arg-type]
        chunk = ChatCompletionChunk(
            id=request_id,
            created=int(time.time()),
            model=model,  # type: ignore[arg-type]
            choices=[choice],
            usage=usage,
            system_fingerprint="",
            object="chat.completion.chunk",
        )
        return self.chunk_to_sse(chunk)


class CompletionHandler(BaseHandler):
    def _build_chunk_sse(
        self, request_id: str, model_id: str, text: str = "", finish_reason: str | None = None, usage: Any = None
    ) -> str:
        choice = CompletionChoice.model_construct(text=text, index=0, logprobs=None, finish_reason=finish_reason)
        chunk = Completion.model_construct(
            id=request_id,
            object="text_completion",
            created=int(time.time()),
            model=model_id,
            choices=[choice],
            usage=usage,
        )
        return self.chunk_to_sse(chunk)
