"""vLLM. Its chunks are built in the middle of generators, so that only their classes can be taken over.

Read in 0.33.0. Its Responses events are the openai package's: see openai_sdk.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailwatch.integrations.engine_steps import BatchSize, EngineStep, Following, Part, Rank, RankStep
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


def _read_step(engine: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> BatchSize:
    """The requests that run, or those that were answered where these are more: what was answered may have finished.

    While a batch is queued the device has work, and what the host does meanwhile may be hidden behind it: not known.
    """
    outputs, executed = result
    answered = sum(len(each.outputs) for each in outputs.values()) if outputs else 0
    batch = max(answered, len(engine.scheduler.running)) if executed or answered else 0
    left = engine.scheduler.get_num_unfinished_requests()
    return batch, None if left and engine.batch_queue else left


def _scheduler_of(engine: Any) -> Any:
    return engine.scheduler


def _model_of(engine: Any) -> str:
    """The name that the server gives it."""
    config = engine.scheduler.vllm_config.model_config
    name = getattr(config, "served_model_name", None) or getattr(config, "model", "")
    return str(name[0] if isinstance(name, (list, tuple)) and name else name)


PARTS = (
    Part("schedule"),
    Part("update_from_output"),
    Part("get_grammar_bitmask", without="the dispatch of a step and its grammar count as waiting for the device"),
    Part("add_request", without="how long requests wait for their first step is not recorded"),
    Part("finish_requests", without="requests that are aborted count as in flight until their process ends"),
    *(
        Part(f"connector.{name}", without="how long requests wait for remote KV is not recorded: it counts as queued")
        for name in ("get_num_new_matched_tokens", "update_state_after_alloc")
    ),
)
_ENGINE, _FOLLOWING = "vllm.v1.engine.core", Following(_scheduler_of, PARTS, _model_of)

STEPS: tuple[EngineStep, ...] = tuple(
    EngineStep(_ENGINE, "EngineCore", method, _read_step, kept=True, following=_FOLLOWING, queues=True)
    for method in ("step", "step_with_batch_queue")
)


def _read_rank(worker: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Rank | None:
    """A step is known by its first request and how far that is. Ranks meet in the layers of their own stage."""
    scheduled = args[0] if args else kwargs["scheduler_output"]
    if not scheduled.total_num_scheduled_tokens:
        return None
    cached = scheduled.scheduled_cached_reqs
    if cached.req_ids:
        first, computed = cached.req_ids[0], cached.num_computed_tokens[0]
    else:
        first, computed = scheduled.scheduled_new_reqs[0].req_id, scheduled.scheduled_new_reqs[0].num_computed_tokens
    group = worker.rank // worker.vllm_config.parallel_config.tensor_parallel_size
    return f"{first} {computed} {scheduled.total_num_scheduled_tokens}", worker.rank, group


RANKS = (RankStep("vllm.v1.worker.gpu_worker", "Worker", "execute_model", _read_rank),)
