"""Servers that stream the types of the openai package (transformers serve; vLLM and TensorRT-LLM for Responses), and
LitServe, which has a copy of one.

transformers serve builds a frame in one method of each handler, which takes the time from the clock.
Read in openai 3.52.0, transformers 5.23.0, LitServe 0.2.19.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tailwatch.integrations.fast_sse_targets import FastSSETarget, Function, ModelTarget
from tailwatch.sse.verified_builder import CLOCK, Arguments, GuardedBuilder, Made, Recall

_HOLES = (str, str, CLOCK, str)  # id, text, created, model: the order of the frame


def _recall(*names: str) -> Recall:
    """The method's keyword arguments, named in the order of the holes; the clock's value is no argument."""

    def recall(values: Any, call: Arguments) -> Arguments:
        return call[0][:1], dict(zip(names, (*values[:2], values[3]), strict=True))

    return recall


def _chat_chunk(builder: GuardedBuilder) -> Callable[..., str]:
    content_shape = builder.shape("transformers content", _HOLES, _recall("request_id", "content", "model"))
    reasoning_shape = builder.shape(
        "transformers reasoning", _HOLES, _recall("request_id", "reasoning_content", "model")
    )

    def _build_chunk_sse(
        self: Any,
        request_id: str = "",
        content: str | None = None,
        model: str | None = None,
        role: str | None = None,
        finish_reason: str | None = None,
        tool_calls: Any = None,
        usage: Any = None,
        reasoning_content: str | None = None,
    ) -> str:
        plain = role is finish_reason is tool_calls is usage is None and model is not None
        if not plain or (content is None) is (reasoning_content is None):
            rest = (role, finish_reason, tool_calls, usage, reasoning_content)
            return builder.original(self, request_id, content, model, *rest)
        shape, text = (reasoning_shape, reasoning_content) if content is None else (content_shape, content)
        made: Made = None
        if (fill := shape.fill) is not None:
            try:
                made = fill(request_id, text, int(time.time()), model).decode()
                shape.trusted = trusted = shape.trusted - 1
                if trusted > 0:
                    return made
            except Exception as error:
                made = error.with_traceback(None)
        return builder.check(shape, made, self, request_id, content, model, reasoning_content=reasoning_content)

    return _build_chunk_sse


def _completion_chunk(builder: GuardedBuilder) -> Callable[..., str]:
    shape = builder.shape("transformers text", _HOLES, _recall("request_id", "text", "model_id"))

    def _build_chunk_sse(
        self: Any,
        request_id: str,
        model_id: str,
        text: str = "",
        finish_reason: str | None = None,
        usage: Any = None,
    ) -> str:
        if finish_reason is not None or usage is not None:
            return builder.original(self, request_id, model_id, text, finish_reason, usage)
        return builder.answer(shape, (request_id, text, int(time.time()), model_id), self, request_id, model_id, text)

    return _build_chunk_sse


_SERVING = "transformers.cli.serving"
_EVENTS = "openai.types.responses"

TARGETS: tuple[FastSSETarget, ...] = (
    Function(f"{_SERVING}.chat_completion", "_build_chunk_sse", _chat_chunk, owner="ChatCompletionHandler"),
    Function(f"{_SERVING}.completion", "_build_chunk_sse", _completion_chunk, owner="CompletionHandler"),
    ModelTarget("openai.types.chat.chat_completion_chunk", "ChatCompletionChunk", "choices[0].delta.content"),
    ModelTarget("openai.types.completion", "Completion", "choices[0].text"),
    ModelTarget(f"{_EVENTS}.response_text_delta_event", "ResponseTextDeltaEvent", "delta"),
    ModelTarget(f"{_EVENTS}.response_reasoning_text_delta_event", "ResponseReasoningTextDeltaEvent", "delta"),
    ModelTarget(
        f"{_EVENTS}.response_function_call_arguments_delta_event", "ResponseFunctionCallArgumentsDeltaEvent", "delta"
    ),
    ModelTarget("litserve.specs.openai", "ChatCompletionChunk", "choices[0].delta.content"),
)
