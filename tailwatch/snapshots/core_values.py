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
from tailwatch.snapshots.model import (
    Cause,
    EngineSteps,
    Octave,
    Pause,
    Policy,
    Process,
    Share,
    SlowGap,
    Step,
    StepCost,
    StepPart,
    StepRecord,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def names_of(name: Any, count: int) -> tuple[str, ...]:
    """The label values of one of the core's enums."""
    return tuple(ffi.string(name(i)).decode() for i in range(count))


CAUSES = names_of(lib.tw_cause_name, lib.TW_CAUSES)
DELAYS = names_of(lib.tw_delay_cause_name, lib.TW_DELAYS)
STALLS = names_of(lib.tw_stall_name, lib.TW_STALLS)
CERTAINTIES = names_of(lib.tw_certainty_name, lib.TW_CERTAINTIES)
MISSING = names_of(lib.tw_unexplained_name, lib.TW_UNEXPLAINED_REASONS)
_DETAILS = ("", "holder", "syscall", "tokens", "steps", "faults", "step_part")
PHASES = names_of(lib.tw_phase_name, lib.TW_PHASES)
REASONS = names_of(lib.tw_reason_name, lib.TW_REASONS)
OUTCOMES = names_of(lib.tw_outcome_name, lib.TW_OUTCOMES)
ARRIVALS = names_of(lib.tw_arrival_name, lib.TW_ARRIVALS)
DROPS = names_of(lib.tw_drop_name, lib.TW_DROPS)
ERRORS = names_of(lib.tw_error_name, lib.TW_ERRORS)
SLICE_REASONS = names_of(lib.tw_slice_reason_name, lib.TW_SLICE_REASONS)
COLLECTION_REASONS = names_of(lib.tw_collection_reason_name, lib.TW_COLLECTION_REASONS)
INTERFERENCES = names_of(lib.tw_interference_name, lib.TW_INTERFERENCES)
MEMORY_LIMITS = names_of(lib.tw_memory_limit_name, lib.TW_MEMORY_LIMITS)
POLICIES = names_of(lib.tw_policy_kind_name, lib.TW_POLICY_KINDS)
POLICY_MODES = names_of(lib.tw_policy_mode_name, lib.TW_POLICY_MODES)
POLICY_WHYS = names_of(lib.tw_policy_why_name, lib.TW_WHYS)
STEP_PARTS = names_of(lib.tw_step_length_part_name, lib.TW_STEP_LENGTH_PARTS)
STEP_WORKS = names_of(lib.tw_step_work_name, lib.TW_STEP_WORKS)
GRAPHS = names_of(lib.tw_graph_name, lib.TW_GRAPHS)
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


def delays_of(values_ns: Any) -> dict[str, dict[str, dict[str, float]]]:
    """Nanoseconds by phase, cause and certainty; causes that took none only where they are pauses."""
    rows = {phase: [ffi.unpack(row, len(CERTAINTIES)) for row in values_ns[i]] for i, phase in enumerate(PHASES)}
    return {
        phase: {
            cause: {certainty: ns / 1e9 for certainty, ns in zip(CERTAINTIES, row, strict=True)}
            for cause, row in zip(DELAYS, found, strict=True)
            if cause in CAUSES or any(row)
        }
        for phase, found in rows.items()
    }


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


def _name_of(names: Any, number: int) -> str:
    """A name of a tw_name_table."""
    room = ffi.new("char[]", lib.TW_NAME_TEXT)
    lib.tw_name_copy(names, number, room, lib.TW_NAME_TEXT)
    return text_of(room)


def _cause_of(part: Any, names: Any, roles: Sequence[str]) -> Cause:
    kind = _named(_DETAILS, part.detail_kind)
    return Cause(
        seconds=part.ns / 1e9,
        cause=_named(DELAYS, part.cause),
        certainty=_named(CERTAINTIES, part.certainty),
        source=roles[part.source] if part.source < len(roles) else "other",
        name=_name_of(names, part.name) if part.name else "",
        kind=kind,
        detail=part.detail if kind not in ("", "holder") else 0,
        holder=_name_of(names, part.detail) if kind == "holder" else "",
    )


def _causes_of(parts: Any, names: Any, roles: Sequence[str]) -> tuple[Cause, ...]:
    found = [_cause_of(parts.part[i], names, roles) for i in range(min(parts.n, len(parts.part)))]
    return tuple(sorted(found, key=lambda cause: -cause.seconds))


def slow_gap_of(record: Any, model: Any, route: Any, clock: Any, roles: Sequence[str], names: Any) -> SlowGap:
    """A tw_slow_record. names: the tw_name_table that its parts refer to."""
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
        causes=_causes_of(record.parts, names, roles),
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
        host=row.host_ns / 1e9,
        engine=row.engine_ns / 1e9,
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
        slices=by_name(SLICE_REASONS, counts.slices),
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
        early_full=counts.early_full,
        early_external=counts.early_external,
        answered=now.answered,
        answer=now.answer,
    )


def _named(names: Sequence[str], number: int) -> str:
    """Of a file that lies, too."""
    return names[number] if number < len(names) else "unknown"


def _histogram(kept: Any, layout: Any) -> Histogram:
    """Of counts that are kept only where there are any."""
    counts = ffi.new("tw_counts *")
    lib.tw_counts_init(counts)
    if kept != ffi.NULL:
        lib.tw_counts_add(counts, kept)
    return Histogram(counts, layout)


def _step_part(step: Any, phase: int) -> StepPart:
    return StepPart(
        time=_histogram(step.spent[phase], lib.tw_step_layout(phase)),
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


def step_record_of(record: Any, prefill_of: str) -> StepRecord:
    """A tw_step_record, and the id of the request with the most prefill tokens."""
    unit = lib.TW_OFFSET_UNIT_NS / 1e9
    return StepRecord(
        number=record.seq - 1,
        key=record.key_ns / 1e9,
        done=record.done_ns / 1e9,
        parts={name: record.part[i] * unit for i, name in enumerate(STEP_PARTS[:-1])},
        paused=record.paused * unit,
        requests=_count(record.requests),
        decode_requests=_count(record.decode_requests),
        prefill_requests=_count(record.prefill_requests),
        prefill_tokens=_tokens(record.prefill_tokens),
        decode_tokens=_tokens(record.decode_tokens),
        recompute_tokens=_tokens(record.recompute_tokens),
        prefill_of=prefill_of,
        prefill_most=record.prefill_most,
        preempted=_count(record.preempted),
        running=_count(record.running),
        waiting=_count(record.waiting),
        kv_use=None if _count(record.kv_use) is None else record.kv_use / lib.TW_KV_WHOLE,
        spec_proposed=record.spec_proposed,
        spec_accepted=_count(record.spec_accepted),
        graph=None if record.graph == lib.TW_GRAPH_UNKNOWN else _named(GRAPHS, record.graph),
        after_idle=bool(record.flags & lib.TW_STEP_AFTER_IDLE),
    )


def engine_of(process: Process, engine: Any) -> EngineSteps:
    """A tw_snapshot_engine of a process."""
    layout, cost = lib.tw_layout_of(lib.TW_LAYOUT_ITL), engine.cost
    return EngineSteps(
        process=process.name,
        role=process.role,
        steps={work: _histogram(engine.length[i], layout) for i, work in enumerate(STEP_WORKS)},
        parts={part: ns / 1e9 for part, ns in by_name(STEP_PARTS, engine.part_ns).items()},
        requests=engine.requests,
        preempted=engine.preempted,
        tokens={
            "prefill": engine.prefill_tokens,
            "decode": engine.decode_tokens,
            "recompute": engine.recompute_tokens,
        },
        draft_tokens={"proposed": engine.spec_proposed, "accepted": engine.spec_accepted},
        graphs=by_name(GRAPHS, engine.graph),
        cost=StepCost(*map(_known, (cost.decode_step, cost.decode_request, cost.prefill_token))),
        last=tuple(_last(engine.last[i]) for i in range(engine.last_count)),
    )


def _last(step: Any) -> StepRecord:
    return step_record_of(step.record, text_of(step.prefill_of))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _count(value: int) -> int | None:
    return None if value == lib.TW_COUNT_UNKNOWN else int(value)


def _tokens(value: int) -> int | None:
    return None if value == lib.TW_TOKENS_UNKNOWN else int(value)
