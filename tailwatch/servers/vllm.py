"""vLLM. Its chunks are built in the middle of generators, so that only their classes can be taken over.

Read in 0.33.0. Its Responses events are the openai package's: see openai_sdk.py.
"""

from __future__ import annotations

from tailwatch.servers.routed import Choice
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


def _rank(identity: bytes) -> int | None:
    """Engines are addressed by their data parallel rank, as two bytes."""
    return int.from_bytes(identity, "little") if isinstance(identity, bytes) and len(identity) == 2 else None


# The second is the first's subclass, and chooses itself: by load, or as X-data-parallel-rank says.
CHOICES = tuple(
    Choice("vllm.v1.engine.core_client", owner, "get_core_engine_for_request", _rank)
    for owner in ("DPAsyncMPClient", "DPLBAsyncMPClient")
)
