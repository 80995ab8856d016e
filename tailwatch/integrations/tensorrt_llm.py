"""TensorRT-LLM. Its chunks are built in the middle of post-processors, so that only their classes can be taken over.

Read in the repository at 0076e93. With num_postprocess_workers they are serialised in processes of their own.
"""

from __future__ import annotations

from tailwatch.integrations.fast_sse_targets import FastSSETarget, ModelTarget

_PROTOCOL = "tensorrt_llm.serve.openai_protocol"

TARGETS: tuple[FastSSETarget, ...] = (
    ModelTarget(_PROTOCOL, "ChatCompletionStreamResponse", "choices[0].delta.content"),
    ModelTarget(_PROTOCOL, "CompletionStreamResponse", "choices[0].text"),
)
