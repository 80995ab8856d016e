"""The steps of an engine one by one, and events of its requests, as its process's segment holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailwatch._cold import ffi, lib
from tailwatch.snapshots.core_values import step_record_of
from tailwatch.snapshots.model import StepRecord

EVENTS = ("queued", "preempted", "resumed", "compiled", "kv_wait", "rank")


@dataclass(frozen=True, slots=True)
class StepEvent:
    """What happened to a request of an engine, or in it: a kind of EVENTS, monotonic seconds. ``request``: the hash of
    its id, 0 for none; of a rank's step that of its mark."""

    kind: str
    request: int
    start: float
    stop: float
    detail: int


class StepRecords:
    """Reads the ring of a segment, by address. Its process may write meanwhile."""

    def __init__(self, address: int) -> None:
        segment = ffi.cast("const tw_segment *", address)
        self._ring: Any = ffi.addressof(segment, "step_ring")

    @property
    def count(self) -> int:
        """Steps ever recorded."""
        return int(self._ring.head)

    def steps(self, last: int = 4096) -> list[StepRecord]:
        """The latest, oldest first."""
        record, out = ffi.new("tw_step_record *"), []
        for number in range(max(0, self.count - last), self.count):
            if lib.tw_step_read(self._ring, number, record):
                out.append(step_record_of(record, self._name(record.prefill_name)))
        return out

    def events(self) -> list[StepEvent]:
        """Those that are kept, oldest first."""
        event, out = ffi.new("tw_step_event *"), []
        head = int(self._ring.event_head)
        for number in range(max(0, head - lib.TW_STEP_EVENTS), head):
            if lib.tw_step_event_read(self._ring, number, event):
                seconds = (event.from_ns / 1e9, event.to_ns / 1e9)
                out.append(StepEvent(EVENTS[event.what], event.request, *seconds, event.detail))
        return out

    def _name(self, number: int) -> str:
        text = ffi.new("char[64]")
        lib.tw_request_name_copy(self._ring, number, text, len(text))
        return bytes(ffi.string(text)).decode(errors="replace")


def request_hash(request_id: str) -> int:
    """The hash of a request's id in events."""
    encoded = request_id.encode(errors="replace")
    return int(lib.tw_request_hash(encoded, len(encoded)))
