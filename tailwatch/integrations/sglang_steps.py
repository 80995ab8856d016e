"""SGLang's scheduler: its steps.

Read in 0.4.10 to 0.5.23 (tests/servers/symbols). Its loops are many, and never return. What each of them calls is
run_batch, which starts a forward, and process_batch_result, which waits for one: in the overlapping loops that of the
batch before.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tailwatch.integrations.engine_steps import BatchSize, EngineStep, Following, Part
from tailwatch.integrations.step_shapes import (
    Batch,
    Cached,
    Graph,
    ModelOutput,
    New,
    Outputs,
    Request,
    RequestOutput,
    argument,
)

if TYPE_CHECKING:
    from tailwatch import _hot


def _batch_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return args[0] if args else kwargs["batch"]


def _read_run(scheduler: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> BatchSize:
    """What was started runs: it hides what the host does."""
    return len(_batch_of(args, kwargs).reqs), None


def _read_result(scheduler: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> BatchSize:
    """Queued requests, and those of both batches that have not finished. While another forward runs it is not known
    whether they wait for the host."""
    batch, running = _batch_of(args, kwargs), scheduler.running_batch
    unfinished = (each for each in (*batch.reqs, *running.reqs) if not each.finished())
    if _forward_runs(scheduler):
        return len(batch.reqs), None if scheduler.waiting_queue or any(True for _ in unfinished) else 0
    return len(batch.reqs), len(scheduler.waiting_queue) + len({id(each) for each in unfinished})


def _forward_runs(scheduler: Any) -> bool:
    """Results to come, of the overlapping loops; not known of pipelines and multiplexed streams."""
    return bool(getattr(scheduler, "result_queue", ())) or hasattr(scheduler, "mbs") or scheduler.enable_pdmux


# ---- steps, one by one ----

_PREFILLS = frozenset({"EXTEND", "MIXED", "SPLIT_PREFILL"})
_STARTED_MOST = 16  # batches: more are not in flight, of pipelines either
_KEPT_MOST = 65536  # requests of which something is kept; more: their end was missed
_RID = attrgetter("rid")


class SGLangSteps:
    """What a Scheduler's steps are, of each batch that it has started: what it processes in the end is a copy, and not
    of all. Requests are kept by name: they hold the device's memory."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = weakref.ref(scheduler)
        self._waiting: set[str] = set()  # queued, and not computed to the end of their prompts since
        self._retracted: set[str] = set()
        self._started: deque[tuple[list[str], Batch]] = deque(maxlen=_STARTED_MOST)
        self._last: list[Any] = []  # requests of the batch that was processed last, until there is nothing to run
        self._made: dict[str, int] = {}  # tokens of those that only we stamp
        self._end_update: Callable[[str, int], int] | None = None

    def recorded_by(self, steps: _hot.SchedulerSteps) -> None:
        """Tokens leave within an update: its step is recorded before."""
        self._end_update = steps.end_update

    @property
    def running(self) -> list[Any]:
        """Requests that decode, or will after their prefill."""
        batch = self._scheduler().running_batch  # type: ignore[union-attr]
        return (batch.reqs if batch is not None else None) or self._unfinished()

    @property
    def waiting(self) -> Any:
        """Those that are not in a batch."""
        return self._scheduler().waiting_queue  # type: ignore[union-attr]

    @property
    def requests(self) -> set[str]:
        """All that it has."""
        scheduler: Any = self._scheduler()
        batches = (scheduler.running_batch, *getattr(scheduler, "running_mbs", ()))  # of pipelines
        held = (each.reqs or () for each in batches if each is not None)
        started = (rids for rids, _ in self._started)
        return {*map(_RID, chain(self.waiting, self._unfinished(), *held)), *chain(*started)}

    @property
    def kv_cache_manager(self) -> SGLangSteps:
        """Where `usage` is."""
        return self

    @property
    def usage(self) -> float:
        """The share of the KV cache that requests hold: what can be evicted is free."""
        scheduler: Any = self._scheduler()
        free = scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size()
        return min(1.0, max(0.0, 1.0 - float(free) / float(scheduler.max_total_num_tokens)))

    def queued(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> Request | None:
        """A request waits, unless it was refused. One that was retracted had a place before."""
        request, queue = argument(args, kwargs, 0, "req"), self.waiting
        if not queue or queue[-1] is not request:
            return None
        if len(self._waiting) >= _KEPT_MOST:
            self._waiting.clear()
        self._waiting.add(request.rid)
        if not argument(args, kwargs, 1, "is_retracted", False):
            return Request(request.rid)
        self._retracted.add(request.rid)
        return None

    def received(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> list[str] | None:
        """Those that waited, or had a part of their prompt computed, and are not there any more: aborted, by whatever.
        Others end by a step. abort_request is not looked at: SGLang keeps it, bound, before it makes a step."""
        if len(self._waiting) == len(self.waiting):
            return None
        gone = list(self._waiting - self.requests)
        self._waiting.difference_update(gone)
        for rid in gone:
            self._made.pop(rid, None)
        return gone

    def scheduled(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> Any:
        """A batch, or None, or since 0.5.17 a plan with one."""
        batch = getattr(result, "batch_to_run", result)
        if batch is None:
            self._last = []
        return batch

    def started(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> Batch:
        """A forward of it was started."""
        batch = _batch_of(args, kwargs or {})
        read = self._read(batch)
        self._started.append((list(map(_RID, batch.reqs or ())), read))
        return read

    def processed(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> Any:
        """Its tokens are there."""
        batch = _batch_of(args, kwargs or {})
        requests = self._last = list(batch.reqs or ())
        read = self._started_with(requests) or self._read(batch)
        graph = getattr(argument(args, kwargs, 1, "result"), "can_run_cuda_graph", None)
        model_output = None
        if graph is not None and isinstance(read.num_scheduled_tokens, int):  # of prefill it means little
            model_output = ModelOutput(Graph("FULL" if graph else "NONE"))
        return read, model_output, {0: Outputs(lambda: self._tokens_of(requests))}

    def sent(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> None:
        """The message of a batch is about to leave: the step that made it is found again by its first request, and how
        many tokens that has by then."""
        message = argument(args, kwargs, 0, "output")
        rids, made = getattr(message, "rids", None), getattr(message, "completion_tokens", None)
        if rids and made and self._end_update is not None:
            self._end_update(rids[0], made[0])

    def _unfinished(self) -> list[Any]:
        return [each for each in self._last if not each.finished()]

    def _started_with(self, requests: list[Any]) -> Batch | None:
        rids = list(map(_RID, requests))
        while self._started:
            started, read = self._started.popleft()
            if started == rids:
                return read
        return None

    def _read(self, batch: Any) -> Batch:
        requests = batch.reqs or ()
        retracted = frozenset(self._retracted)
        self._retracted.clear()
        if batch.forward_mode.name not in _PREFILLS or not requests:
            return Batch(len(requests), len(requests), retracted)
        decoding = len(batch.decoding_reqs or ()) if batch.forward_mode.name == "MIXED" else 0
        lengths = list(batch.extend_lens)
        names = [each.rid for each in requests]
        prefilling = names[: len(names) - decoding]
        self._waiting.difference_update(prefilling)
        if (chunked := getattr(self._scheduler(), "chunked_req", None)) is not None:
            self._waiting.add(chunked.rid)
        tokens = dict(zip(names, lengths, strict=True))
        others = Cached(names[len(prefilling) :], [1] * decoding)
        return Batch(tokens, sum(lengths), retracted, [New(rid) for rid in prefilling], others)

    def _tokens_of(self, requests: list[Any]) -> Iterator[RequestOutput]:
        if len(self._made) >= _KEPT_MOST:
            here = self.requests
            self._made = {rid: made for rid, made in self._made.items() if rid in here}
        for each in requests:
            made = len(each.output_ids)
            new = made - self._made.get(each.rid, 0)
            reason = None
            if each.finished():
                reason = "abort" if type(each.finished_reason).__name__ == "FINISH_ABORT" else "stop"
                self._made.pop(each.rid, None)
            else:
                self._made[each.rid] = made
            if new > 0 or reason is not None:
                yield RequestOutput(each.rid, reason, (0,) * new)  # which ones is not read


def _scheduler_of(scheduler: Any) -> Any:
    """The ranks of a tensor parallel group all make the same steps: the first one's are read."""
    parallel = getattr(sys.modules.get(type(scheduler).__module__), "get_parallel", lambda: None)
    holders = (scheduler, getattr(scheduler, "ps", None), parallel())  # as of 0.4.10; some 0.5.14; some 0.5.21
    return None if any(getattr(holder, "attn_tp_rank", 0) for holder in holders) else scheduler


def _model_of(scheduler: Any) -> str:
    return str(scheduler.server_args.served_model_name)


PARTS = (
    Part("run_batch", "dispatch", view="started"),
    Part("process_batch_result", "process_result", view="processed"),
    Part(
        "get_next_batch_to_run",
        "schedule",
        without="the schedule of a step counts as its input",
        view="scheduled",
    ),
    Part(
        "_add_request_to_queue",
        "add_request",
        without="how long requests wait for their first step is not recorded, nor which were retracted",
        view="queued",
    ),
    Part(
        "process_input_requests",
        "finish_requests",
        without="requests that are aborted as they wait count as in flight",
        view="received",
    ),
    Part(
        "ipc_channels.send_to_detokenizer.send_output",
        "send",
        without="its tokens have no stamp: their wait in the engine is upstream",
        view="sent",
        formerly="send_to_detokenizer.send_output",  # 0.5.7 to 0.5.12
    ),
)
_FOLLOWING = Following(_scheduler_of, PARTS, _model_of, SGLangSteps)

STEPS: tuple[EngineStep, ...] = (
    EngineStep("sglang.srt.managers.scheduler", "Scheduler", "run_batch", _read_run, following=_FOLLOWING),
    EngineStep("sglang.srt.managers.scheduler", "Scheduler", "process_batch_result", _read_result),
)
