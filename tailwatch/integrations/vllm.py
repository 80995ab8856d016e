"""vLLM. Its chunks are built in the middle of generators, so that only their classes can be taken over.

Read in 0.33.0. Its Responses events are the openai package's: see openai_sdk.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailwatch.integrations.engine_steps import EngineStep, Said
from tailwatch.integrations.fast_sse_targets import FastSSETarget, ModelTarget

_OPENAI = "vllm.entrypoints.openai"

TARGETS: tuple[FastSSETarget, ...] = (
    ModelTarget(
        f"{_OPENAI}.chat_completion.protocol",
        "ChatCompletionStreamResponse",
        "choices[0].delta.content",
        looks_at_no_text=True,  # DeltaMessage drops an empty list of tool calls
    ),
    ModelTarget(f"{_OPENAI}.completion.protocol", "CompletionStreamResponse", "choices[0].text"),
    ModelTarget("vllm.entrypoints.anthropic.protocol", "AnthropicStreamEvent", "delta.text"),
)


def _read_step(engine: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Said:
    """The requests that run, or those that were answered where these are more: who was answered may have finished.

    While a batch is queued the device has work, and what the host does meanwhile may be hidden behind it: not known.
    """
    outputs, executed = result
    answered = sum(len(each.outputs) for each in outputs.values()) if outputs else 0
    batch = max(answered, len(engine.scheduler.running)) if executed or answered else 0
    left = engine.scheduler.get_num_unfinished_requests()
    return batch, None if left and engine.batch_queue else left


_ENGINE = "vllm.v1.engine.core"

STEPS: tuple[EngineStep, ...] = (
    EngineStep(_ENGINE, "EngineCore", "step", _read_step, kept=True),
    EngineStep(_ENGINE, "EngineCore", "step_with_batch_queue", _read_step, kept=True),
)
