"""vLLM. Its chunks are built in the middle of generators, so that only their classes can be taken over.

Read in 0.33.0. Its Responses events are the openai package's: see openai_sdk.py.
"""

from __future__ import annotations

from tailwatch.servers.targets import Model, Target

_OPENAI = "vllm.entrypoints.openai"

TARGETS: tuple[Target, ...] = (
    Model(
        f"{_OPENAI}.chat_completion.protocol",
        "ChatCompletionStreamResponse",
        "choices[0].delta.content",
        looks_at_no_text=True,  # DeltaMessage drops an empty list of tool calls
    ),
    Model(f"{_OPENAI}.completion.protocol", "CompletionStreamResponse", "choices[0].text"),
    Model("vllm.entrypoints.anthropic.protocol", "AnthropicStreamEvent", "delta.text"),
)
