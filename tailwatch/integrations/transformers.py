"""transformers' continuous batching, of `transformers serve` or by hand: a thread of the server's own process.

Read in 4.57.6 to 5.24.0 (tests/servers/symbols). Results come by handlers since 5.5.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tailwatch import _hot
from tailwatch.integrations.engine_steps import BatchSize, EngineStep, Following, Part
from tailwatch.integrations.output_hook import OutputPath
from tailwatch.integrations.step_shapes import Batch, Cached, New, Outputs, RequestOutput, argument

if TYPE_CHECKING:
    from tailwatch.integrations.output_hook import OutputHook

MODULE = "transformers.generation.continuous_batching.continuous_api"


# ---- steps ----

_RECORDERS: weakref.WeakKeyDictionary[Any, _hot.SchedulerSteps] = weakref.WeakKeyDictionary()
"""Of the steps whose results a router delivers."""


class TransformersSteps:
    """What a ContinuousBatchProcessor's steps are, of each batch that it has prepared."""

    def __init__(self, processor: Any) -> None:
        self._processor = weakref.ref(processor)
        self._new: set[str] = set()  # queued, and in no batch since
        self._preempted: set[str] = set()
        self._prepared: deque[tuple[Batch, list[Any]]] = deque(maxlen=4)

    def recorded_by(self, steps: _hot.SchedulerSteps) -> None:
        """Results are delivered within an update: its step is recorded before."""
        if (router := getattr(self._processor(), "output_router", None)) is not None:
            _RECORDERS[router] = steps

    @property
    def running(self) -> Any:
        """Requests that hold a part of the KV cache."""
        return self._scheduler.active_requests

    @property
    def waiting(self) -> Any:
        """Those that do not."""
        return self._scheduler.waiting_requests

    @property
    def requests(self) -> dict[str, Any]:
        """Both."""
        return {**self.running, **self.waiting}

    @property
    def kv_cache_manager(self) -> TransformersSteps:
        """Where `usage` is."""
        return self

    @property
    def usage(self) -> float:
        """The share of the KV cache that is taken."""
        cache = self._processor().cache  # type: ignore[union-attr]
        if hasattr(cache, "compute_free_capacity"):
            return 1.0 - float(cache.compute_free_capacity())
        return 1.0 - float(cache.get_num_free_blocks() / cache.num_blocks)

    @property
    def _scheduler(self) -> Any:
        return self._processor().scheduler  # type: ignore[union-attr]

    def queued(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> Any:
        """A request waits. One that had a place before was put out of it, when the cache was full."""
        state = argument(args, kwargs, 0, "state")
        self._new.add(state.request_id)
        if len(self._new) > len(self.waiting):  # some were cancelled
            self._new.intersection_update(self.requests)
        if not (_made(state) or state.position_offset):
            return state
        self._preempted.add(state.request_id)
        return None

    def prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> Batch | None:
        """A batch, if there is one."""
        requests = list(_batch_of(self._processor())) if result else []
        if not requests:
            return None
        states = [getattr(each, "state", each) for each in requests]
        tokens = {state.request_id: _length(each, state) for each, state in zip(requests, states, strict=True)}
        new = [New(name) for name in tokens if name in self._new]
        old = [state for state in states if state.request_id not in self._new]
        self._new.difference_update(tokens)
        cached = Cached([state.request_id for state in old], [_made(state) for state in old])
        batch = Batch(tokens, sum(tokens.values()), frozenset(self._preempted), new, cached)
        self._preempted.clear()
        self._prepared.append((batch, requests))
        return batch

    def updated(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> Any:
        """Its tokens are there; with two batches in flight, those of the earlier one."""
        processor = self._processor()
        if not getattr(processor, "use_async_batching", False):
            while len(self._prepared) > 1:  # the one before it failed
                self._prepared.popleft()
        batch, requests = self._prepared.popleft()
        return batch, None, {0: Outputs(lambda: _tokens_of(requests))}


def _batch_of(processor: Any) -> Any:
    """The requests of the batch that was just prepared: RequestState, or since 5.3 FutureRequestState."""
    holder = getattr(processor, "inputs_and_outputs", processor)
    if hasattr(holder, "io_pairs"):
        holder = holder.io_pairs[holder.current_pair].host_io
    return (holder if hasattr(holder, "requests_in_batch") else processor).requests_in_batch


def _length(request: Any, state: Any) -> int:
    """Tokens of it that the step computes."""
    if (length := getattr(request, "query_length", None)) is not None:
        return int(length)
    return len(state.tokens_to_process if hasattr(state, "tokens_to_process") else state.prompt_ids)


def _made(state: Any) -> int:
    """Tokens that it has made, also before it lost its place; 0: its prompt is being computed."""
    return int(state.generated_len() or getattr(state, "_true_initial_tokens", 0))


def _tokens_of(requests: list[Any]) -> Iterator[RequestOutput]:
    for each in requests:
        state = getattr(each, "state", each)
        status = state.status.name
        if getattr(each, "has_new_token", status in ("DECODING", "FINISHED")):
            reason = {"FINISHED": "stop", "FAILED": "error"}.get(status)
            yield RequestOutput(state.request_id, reason, (0,))  # which one is not read


def _read_step(manager: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> BatchSize:
    """What the host does while another batch is in flight may be hidden behind it: not known."""
    processor = manager.batch_processor
    scheduler = processor.scheduler
    left = len(scheduler.active_requests) + len(scheduler.waiting_requests)
    batch = (
        len(_batch_of(processor)) if not hasattr(processor, "use_async_batching") else len(scheduler.active_requests)
    )
    return batch, None if left and getattr(processor, "use_async_batching", False) else left


def _processor_of(manager: Any) -> Any:
    return manager.batch_processor


def _model_of(manager: Any) -> str:
    return str(manager.model.config._name_or_path)


PARTS = (
    Part("prepare_next_batch", "schedule", view="prepared"),
    Part(
        "inputs_and_outputs.prepare_batch_tensors",
        "prepare",
        without="what a prompt's inputs take to prepare counts as the schedule",
    ),
    Part("update_batch", "process_result", view="updated"),
    Part(
        "inputs_and_outputs.prepare_batch_update",
        "await_result",
        without="what the host does as a step ends counts as waiting for the device",
    ),
    Part(
        "scheduler.add_waiting_request",
        "add_request",
        without="how long requests wait for their first step is not recorded",
        view="queued",
    ),
    Part(
        "scheduler.set_request_cancellation",
        "finish_requests",
        without="requests that are cancelled count as in flight until their process ends",
    ),
)

STEPS: tuple[EngineStep, ...] = (
    EngineStep(
        MODULE,
        "ContinuousBatchingManager",
        "_generation_step",
        _read_step,
        following=Following(_processor_of, PARTS, _model_of, TransformersSteps),
    ),
)


# ---- results ----

_DELIVERED_MOST = 65536  # results under way; more: their handlers do not run any more


class _Delivered:
    """When results were made: {id of a result, which its handler's call keeps alive: monotonic ns}."""

    def __init__(self, hook: OutputHook) -> None:
        self._hook = hook
        self._at: dict[int, int] = {}

    def around_add(self, original: FunctionType) -> Any:
        @wraps(original)
        def add_request(*args: Any, **kwargs: Any) -> Any:
            request_id = original(*args, **kwargs)
            if request_id is not None:  # of the process that hands requests on to the others
                self._hook.expect(request_id)
            return request_id

        return add_request

    def around_deliver(self, original: FunctionType) -> Any:
        """Of ``deliver_batch(self, outputs)``, in the engine's thread, within the update of a step."""

        @wraps(original)
        def deliver_batch(*args: Any, **kwargs: Any) -> Any:
            self._note(argument(args, kwargs, 1, "outputs", ()), self._made(args))
            return original(*args, **kwargs)

        return deliver_batch

    def around_register(self, original: FunctionType) -> Any:
        """Of ``register_result_handler(self, request_id, callback)``."""

        @wraps(original)
        def register_result_handler(*args: Any, **kwargs: Any) -> Any:
            callback = argument(args, kwargs, 2, "callback")
            if callable(callback) and self._hook.expects(argument(args, kwargs, 1, "request_id")):
                ours = self._handler(callback)
                args = (*args[:2], ours, *args[3:]) if len(args) > 2 else args
                kwargs = {**kwargs, "callback": ours} if "callback" in kwargs else kwargs
            return original(*args, **kwargs)

        return register_result_handler

    def _handler(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        """Of ``callback(output)``, in the event loop."""

        def handled(*args: Any, **kwargs: Any) -> Any:
            output = argument(args, kwargs, 0, "output")
            came, made = _hot.now(), self._at.pop(id(output), None)
            result = callback(*args, **kwargs)
            if made is not None:
                self._receive(output, made, came)
            return result

        return handled

    def _made(self, args: tuple[Any, ...]) -> int:
        """The stamp of the step that made them; now, where none is recorded."""
        try:
            steps = _RECORDERS.get(args[0]) if args else None
            return (steps.end_update() if steps is not None else 0) or _hot.now()
        except Exception:
            self._hook.failed()
            return _hot.now()

    def _note(self, outputs: Any, now: int) -> None:
        try:
            if len(self._at) > _DELIVERED_MOST:
                self._at.clear()
            self._at.update((id(each), now) for each in outputs if self._hook.expects(each.request_id))
        except Exception:
            self._hook.failed()

    def _receive(self, output: Any, made: int, came: int) -> None:
        try:
            reason = "stop" if output.is_finished() else None
            self._hook.received([RequestOutput(output.request_id, reason)], made / 1e9, came)
        except Exception:
            self._hook.failed()


def _wrappers(hook: OutputHook) -> dict[str, Callable[[FunctionType], Any]]:
    delivered = _Delivered(hook)
    return {
        "ContinuousBatchingManager.add_request": delivered.around_add,
        "ContinuousBatchingManager.register_result_handler": delivered.around_register,
        "OutputRouter.deliver_batch": delivered.around_deliver,
    }


OUTPUTS = (OutputPath(MODULE, _wrappers),)
