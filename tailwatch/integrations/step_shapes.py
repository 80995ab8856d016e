"""What a step was in the shape that csrc/python/stamp/step_reader.c reads, for engines that have another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class New(NamedTuple):
    """A request in its first step, or in its first since it was preempted."""

    req_id: str


class Request(NamedTuple):
    """One that was queued."""

    request_id: str


class Cached(NamedTuple):
    """Those that had a step before. num_output_tokens: 0: its prompt is not computed yet."""

    req_ids: list[str]
    num_output_tokens: list[int]
    resumed_req_ids: tuple[str, ...] = ()


class Batch(NamedTuple):
    """What a step computes. num_scheduled_tokens: of each request, or how many requests where each has one."""

    num_scheduled_tokens: dict[str, int] | int
    total_num_scheduled_tokens: int
    preempted_req_ids: frozenset[str]
    scheduled_new_reqs: list[New] = []  # noqa: RUF012  # never changed
    scheduled_cached_reqs: Cached = Cached([], [])
    scheduled_spec_decode_tokens: None = None


class RequestOutput(NamedTuple):
    """Tokens of a request. finish_reason: None: there are more to come."""

    request_id: str
    finish_reason: str | None = None
    new_token_ids: tuple[int, ...] = ()


class Outputs:
    """Those of a step: asked for where only the engine stamps them."""

    __slots__ = ("_read",)
    timestamp = None

    def __init__(self, read: Callable[[], Iterable[RequestOutput]]) -> None:
        self._read = read

    @property
    def outputs(self) -> list[RequestOutput]:
        """A list of them."""
        return list(self._read())


class Graph(NamedTuple):
    """How the device ran it."""

    runtime_mode: str


class ModelOutput(NamedTuple):
    """What the device gave back."""

    cudagraph_stats: Graph
    sampled_token_ids: Any = None


def argument(args: tuple[Any, ...], kwargs: dict[str, Any] | None, at: int, name: str, otherwise: Any = None) -> Any:
    """That of a call."""
    return args[at] if len(args) > at else (kwargs or {}).get(name, otherwise)
