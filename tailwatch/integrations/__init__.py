"""What is particular to one server: a small file each, which names what it streams with. None imports its server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailwatch.integrations.engine_steps import EngineStep, RankStep
    from tailwatch.integrations.fast_sse_targets import FastSSETarget
    from tailwatch.integrations.output_hook import OutputPath
    from tailwatch.integrations.request_routing import Choice


def known() -> tuple[FastSSETarget, ...]:
    """All that the fast SSE path can take over, whether it is here or not. The encoders are imported for it."""
    from tailwatch.integrations import lmdeploy, openai_sdk, sglang, tensorrt_llm, vllm

    return (*vllm.TARGETS, *sglang.TARGETS, *lmdeploy.TARGETS, *tensorrt_llm.TARGETS, *openai_sdk.TARGETS)


def found() -> Iterator[FastSSETarget]:
    """What of that stands in the modules that are loaded now."""
    return (target for target in known() if target.loaded())


def stepping() -> Iterator[EngineStep | RankStep]:
    """The methods that are iterations of the engines of the loaded servers; nothing is imported for others."""
    if "vllm" in sys.modules:
        from tailwatch.integrations import vllm

        yield from vllm.STEPS
        yield from vllm.RANKS
    if "sglang" in sys.modules:
        from tailwatch.integrations import sglang_steps

        yield from sglang_steps.STEPS
    if "transformers" in sys.modules:
        from tailwatch.integrations import transformers

        yield from transformers.STEPS


def choices() -> tuple[Choice, ...]:
    """Where the known servers choose one of several engines for a request."""
    from tailwatch.integrations import vllm_routing

    return vllm_routing.CHOICES


def outputs() -> tuple[OutputPath, ...]:
    """Where the known servers hand the outputs of an engine's step to their requests."""
    from tailwatch.integrations import sglang_outputs, transformers, vllm_routing

    return (*vllm_routing.OUTPUTS, *sglang_outputs.OUTPUTS, *transformers.OUTPUTS)
