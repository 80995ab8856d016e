"""Numbers, names and structs of the core as values of Python. All times are seconds, as float."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from tailwatch._cold import ffi, lib
from tailwatch.errors import OptionError
from tailwatch.snapshots.histogram import Histogram
from tailwatch.snapshots.model import Octave, Pause, Policy, Process, Share, SlowGap, Step, StepPart

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def names_of(name: Any, count: int) -> tuple[str, ...]:
    """The label values of one of the core's enums."""
    return tuple(ffi.string(name(i)).decode() for i in range(count))


CAUSES = names_of(lib.tw_cause_name, lib.TW_CAUSES)
PHASES = names_of(lib.tw_phase_name, lib.TW_PHASES)
REASONS = names_of(lib.tw_reason_name, lib.TW_REASONS)
OUTCOMES = names_of(lib.tw_outcome_name, lib.TW_OUTCOMES)
ARRIVALS = names_of(lib.tw_arrival_name, lib.TW_ARRIVALS)
DROPS = names_of(lib.tw_drop_name, lib.TW_DROPS)
ERRORS = names_of(lib.tw_error_name, lib.TW_ERRORS)
MOMENTS = names_of(lib.tw_moment_name, lib.TW_MOMENTS)
COLLECTION_REASONS = names_of(lib.tw_collection_reason_name, lib.TW_COLLECTION_REASONS)
INTERFERENCES = names_of(lib.tw_interference_name, lib.TW_INTERFERENCES)
MEMORY_LIMITS = names_of(lib.tw_memory_limit_name, lib.TW_MEMORY_LIMITS)
POLICIES = names_of(lib.tw_policy_kind_name, lib.TW_POLICY_KINDS)
POLICY_MODES = names_of(lib.tw_policy_mode_name, lib.TW_POLICY_MODES)
POLICY_WHYS = names_of(lib.tw_policy_why_name, lib.TW_WHYS)
OUTCOME_OF = {reason: OUTCOMES[lib.tw_reason_outcome(i)] for i, reason in enumerate(REASONS)}


def by_name(names: Sequence[str], values: Any) -> dict[str, int]:
    """An array of counts, by the names of what they count."""
    return dict(zip(names, ffi.unpack(values, len(names)), strict=True))


def seconds_by_cause(values_ns: Any) -> dict[str, float]:
    """An array of nanoseconds by cause."""
    return {cause: ns / 1e9 for cause, ns in by_name(CAUSES, values_ns).items()}


def by_phase(values_ns: Any) -> dict[str, dict[str, float]]:
    """Nanoseconds by phase and cause."""
    return {phase: seconds_by_cause(values_ns[i]) for i, phase in enumerate(PHASES)}


def text_of(words: Any) -> str:
    """Words of a fixed-size field, which end with a NUL."""
    raw: bytes = ffi.string(ffi.cast("const char *", words), ffi.sizeof(words))
    return raw.decode("utf-8", "replace")


def utf8(name: str | None) -> Any:
    """A name as C takes it; NULL for any."""
    return ffi.NULL if name is None else ffi.from_buffer(name.encode() + b"\0")


def check(error: int, what: str, found: object, expected: str) -> None:
    """Raise what an error number of the core means; 0: nothing."""
    if error == errno.ENOMEM:
        raise MemoryError
    if error == errno.EINVAL:
        raise OptionError.of(what, found, expected)
    if error:
        raise OSError(error, os.strerror(error))


def moment_of(monotonic_ns: int, clock: Any) -> datetime:
    """The time of day of a monotonic time."""
    return _EPOCH + timedelta(microseconds=(monotonic_ns + clock.realtime_ns - clock.monotonic_ns) // 1000)


def _share_of(share: Any, roles: Sequence[str]) -> Share:
    return Share(roles[share.source], CAUSES[share.cause], share.overlap_ns / 1e9, share.delay_ns / 1e9)


def slow_gap_of(record: Any, model: Any, route: Any, clock: Any, roles: Sequence[str]) -> SlowGap:
    """A tw_slow_record."""
    shares = [record.share[i] for i in range(len(record.share))]
    others = [_share_of(share, roles) for share in shares if share.overlap_ns]
    return SlowGap(
        when=moment_of(record.end_ns, clock),
        phase=PHASES[record.phase],
        gap=record.gap_ns / 1e9,
        typical=record.typical_ns / 1e9,
        overlap=seconds_by_cause(record.overlap_ns),
        delay=seconds_by_cause(record.delay_ns),
        client=record.client_ns / 1e9,
        accept=record.accept_ns / 1e9,
        unexplained=record.unexplained_ns / 1e9,
        complete=bool(record.complete),
        request_id=text_of(record.request_id),
        trace_id=text_of(record.trace_id),
        model_name=text_of(model.word),
        route=text_of(route.word),
        token=record.token,
        others=tuple(sorted(others, key=lambda other: -other.overlap)),
    )


def octave_of(octave: int, row: Any) -> Octave:
    """A tw_tail, and its place in the row."""
    return Octave(
        lower=2**octave / 1e6 if octave else 0.0,
        upper=2 ** (octave + 1) / 1e6 if octave + 1 < lib.TW_OCTAVES else math.inf,
        count=row.count,
        time=row.time_ns / 1e9,
        delay=seconds_by_cause(row.delay_ns),
        client=row.client_ns / 1e9,
        accept=row.accept_ns / 1e9,
        unexplained=row.unexplained_ns / 1e9,
    )


def pause_of(record: Any, clock: Any) -> Pause:
    """A tw_pause_record."""
    return Pause(
        when=moment_of(record.stop_ns, clock),
        start_ns=record.start_ns,
        stop_ns=record.stop_ns,
        cause=CAUSES[record.cause],
        seconds=(record.stop_ns - record.start_ns) / 1e9,
        collected=record.collected,
        uncollectable=record.uncollectable,
        cpu=record.cpu_ns / 1e9,
        callbacks=record.callbacks_ns / 1e9,
        streams=record.streams,
        overlap=record.overlap_ns / 1e9,
        delay=record.delay_ns / 1e9,
    )


def process_of(process: Any, role: str, taken_ns: int) -> Process:
    """A tw_snapshot_process."""
    return Process(
        role=role,
        index=process.index,
        name=role if role == "*" else f"{role}-{process.index}",
        pid=process.pid,
        paused=seconds_by_cause(process.pause_ns),
        lost=process.pauses_lost,
        bytes=process.bytes,
        collections={cause: process.pause[i].count for i, cause in enumerate(CAUSES)},
        longest={cause: process.pause[i].max_ns / 1e9 for i, cause in enumerate(CAUSES)},
        lives=bool(process.lives),
        age=(taken_ns - process.created_ns) / 1e9,
        standing=process.standing_ns / 1e9,
        standing_cause=CAUSES[process.standing_cause] if process.standing_ns else "",
        policy=_policy(process.policy.counts, process.policy.now),
    )


def _policy(counts: Any, now: Any) -> Policy:
    return Policy(
        kind=_named(POLICIES, now.kind),
        mode=_named(POLICY_MODES, now.mode),
        why=_named(POLICY_WHYS, now.why),
        slices=by_name(MOMENTS, counts.slices),
        collections=by_name(COLLECTION_REASONS, counts.collections),
        moved=counts.moved,
        freed=counts.freed,
        seconds=counts.slice_ns / 1e9,
        predicted_seconds=counts.predicted_ns / 1e9,
        full_seconds=counts.full_ns / 1e9,
        full_freed=counts.full_freed,
        cycles=counts.cycles,
        freezes=counts.freezes,
        interference=by_name(INTERFERENCES, counts.interference),
        memory_limits=by_name(MEMORY_LIMITS, counts.memory_limits),
        unfrozen=now.unfrozen - 1 if now.unfrozen else None,
        frozen=now.frozen - 1 if now.frozen else None,
        backlog=now.backlog,
        cost=now.cost_ns / 1024 / 1e9,
        ignored=counts.ignored,
        answered=now.answered,
        answer=now.answer,
    )


def _named(names: Sequence[str], number: int) -> str:
    """Of a file that lies, too."""
    return names[number] if number < len(names) else "unknown"


def _step_part(step: Any, phase: int) -> StepPart:
    counts = ffi.new("tw_counts *")
    lib.tw_counts_init(counts)
    if step.spent[phase] != ffi.NULL:
        lib.tw_counts_add(counts, step.spent[phase])
    return StepPart(
        time=Histogram(counts, lib.tw_step_layout(phase)),
        overlap=seconds_by_cause(step.overlap_ns[phase]),
        requests=seconds_by_cause(step.request_ns[phase]),
    )


def step_of(process: Process, step: Any) -> Step:
    """A tw_snapshot_step of a process."""
    return Step(
        process=process.name,
        role=process.role,
        name=text_of(step.name),
        steps=_step_part(step, lib.TW_STEP_INSIDE),
        host_gaps=_step_part(step, lib.TW_STEP_GAP),
        requests=step.batch,
        unknown_gap=step.unknown_ns / 1e9,
    )
