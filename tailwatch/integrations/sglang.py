"""SGLang. Chat content and reasoning come from one function, msgspec inside; tool calls, usage and completions from
Pydantic classes.

Read in 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailwatch.integrations.fast_sse_targets import FastSSETarget, Function, ModelTarget
from tailwatch.sse.verified_builder import Arguments, GuardedBuilder, Made, Recall

_OPENAI = "sglang.srt.entrypoints.openai"
_FIELDS = ("chunk_id", "created", "model", "index")
_HOLES = (str, int, str, int, str)


def _recall(text: str) -> Recall:
    names = (*_FIELDS, text)

    def recall(values: Any, call: Arguments) -> Arguments:
        return (), dict(zip(names, values, strict=True))

    return recall


def _build_sse_content(builder: GuardedBuilder) -> Callable[..., str]:
    content_shape = builder.shape("SGLang content", _HOLES, _recall("content"))
    reasoning_shape = builder.shape("SGLang reasoning", _HOLES, _recall("reasoning_content"))
    original, check = builder.original, builder.check

    def build_sse_content(
        chunk_id: str,
        created: int,
        model: str,
        index: int,
        role: str | None = None,
        content: str | None = None,
        reasoning_content: str | None = None,
        finish_reason: str | None = None,
        logprobs: Any = None,
        matched_stop: Any = None,
        usage: Any = None,
    ) -> str:
        plain = role is finish_reason is logprobs is matched_stop is usage is None
        if not plain or (content is None) is (reasoning_content is None):
            return original(
                *(chunk_id, created, model, index, role, content, reasoning_content),
                *(finish_reason, logprobs, matched_stop, usage),
            )
        shape, text = (reasoning_shape, reasoning_content) if content is None else (content_shape, content)
        made: Made = None
        if (fill := shape.fill) is not None:
            try:
                made = fill(chunk_id, created, model, index, text).decode()
                shape.trusted = trusted = shape.trusted - 1
                if trusted > 0:
                    return made
            except Exception as error:
                made = error.with_traceback(None)
        return check(shape, made, chunk_id, created, model, index, None, content, reasoning_content)

    return build_sse_content


TARGETS: tuple[FastSSETarget, ...] = (
    Function(f"{_OPENAI}.sse_utils", "build_sse_content", _build_sse_content),
    ModelTarget(
        f"{_OPENAI}.protocol",
        "ChatCompletionStreamResponse",
        "choices[0].delta.tool_calls[0].function.arguments",
        looks_at_no_text=True,  # drops an sglext, or hidden states, that are None
    ),
    ModelTarget(
        f"{_OPENAI}.protocol", "CompletionStreamResponse", "choices[0].text", looks_at_no_text=True
    ),  # the same
    ModelTarget("sglang.srt.entrypoints.anthropic.protocol", "ContentBlockDeltaEvent", "delta.text"),
)
