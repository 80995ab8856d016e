"""Rules about tailwatch itself: what it could not record, what it gave up, and options that do nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailwatch.diagnose.finding import DiagnosisContext, Finding
from tailwatch.diagnose.text import ms
from tailwatch.options.config import nearest_variable

if TYPE_CHECKING:
    from tailwatch.snapshots import Snapshot


_HARMLESS_FALLBACKS = frozenset({"unsupported", "shapes"})  # see sse.accelerate.Fallback
_FALLBACKS = {
    "differs": (
        "Differs: a fast frame was not identical to the server's, and the server's frame was sent. After its first 16 "
        "frames, a shape is compared once in 1024 frames (compare_every), so up to 1023 earlier frames of each such "
        "shape may have been wrong at the clients. The server now writes these frames."
    ),
    "error": (
        "Error: tailwatch's own code failed, or the server rejected a fast frame. Clients received the server's frame "
        "instead, and still do."
    ),
    "other": "Other: further kinds of frames, of any reason, counted together.",
    "unsupported": "Unsupported: no template fits; clients receive the server's frames at the usual speed.",
    "shapes": (
        "Shapes: more kinds of frames than templates can be kept; those learned stay fast, the others are written by "
        "the server at the usual speed."
    ),
}
_DROP_ADVICE = {
    "unreadable_body": "exclude text/event-stream from compression: a compressed body cannot be read",
    "choice": "no action needed: TPOT is measured for the first eight choices of a request only",
    "slow_log": "install(app, slow_gap_ms=...) with a higher bound: slow gaps arrived faster than they could be logged",
    "pause_log": "install(app, gc_log_all=False, gc_warn_ms=...): pauses arrived faster than they could be logged",
    "out_of_order_stamp": "s.token(at=...): look for tokens with a time after the end of their stream",
    "pause_ring_overflow": "install(app, slow_gap_ms=...): some gaps spanned more pauses than are kept; "
    "their overlap is a lower bound",
    "unjoined": "no action needed: the engine's steps of some slow tokens were overwritten or are not read",
    "event_truncated": "no action needed: over-long events were read up to the kept length",
    "protobuf_family": "install(app, histograms='classic'), or unregister the metrics of the app's own registry that "
    "protobuf cannot express: scrapes for native histograms got text instead",
    "protobuf_slow": "install(app, histograms='classic'), or fewer label sets in the app's own registry: rendering it "
    "takes too long, and scrapes for native histograms got text instead",
    "trace_trigger": "install(app, trace_on=...) with a higher bound: the trigger fired too soon after the last file, "
    "or the file could not be written",
    "export": "check that the receiver at OTEL_EXPORTER_OTLP_ENDPOINT is reachable: exports failed; "
    "the next successful one includes that time",
    "member": "look for who writes to the group's directory: a file there was overwritten or is of another version of "
    "tailwatch, and the numbers in it are missing",
    "metrics_append": "scrape /tailwatch/metrics: behind the app's own metrics ours were missing, because they took "
    "longer than 100 ms, or because the app's answer is not what its Content-Type promises",
    "span": "OTEL_TRACES_SAMPLER=parentbased_traceidratio: requests ended faster than their spans could be sent",
}


def internal_errors(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Something went wrong inside tailwatch itself."""
    failed = {where: count for where, count in snapshot.errors.items() if count}
    if not failed:
        return None
    detail = (
        "Errors were counted, logged once, and did not reach the server's code: "
        + ", ".join(f"{k} {v}" for k, v in failed.items())
        + "."
    )
    advice = "report them with the log line of 'tailwatch' and the output of `tailwatch doctor URL --json report.json`"
    return Finding("internal-errors", "medium", "tailwatch had internal errors", detail, advice)


def unbound_streams(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Pauses of one of several engines, beside streams whose engine is not known."""
    phases = snapshot.overlap_by_source.get("unbound", {})
    seconds = sum(sum(by_cause.values()) for by_cause in phases.values())
    if seconds <= 0:
        return None
    detail = (
        f"Up to {ms(seconds)} of stream time (an upper bound) coincided with pauses of one of several engines; the "
        "engine that served these streams is unknown."
    )
    advice = (
        "engine= (TAILWATCH_ENGINE) in processes of one engine, the header X-Tailwatch-Engine from "
        'a router, or scope["tailwatch"].bind(engine)'
    )
    return Finding("unbound", "low", "Streams are not bound to their engine", detail, advice)


def unknown_variables(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """An environment variable that looks like an option and is none."""
    if not context.unknown_environment:
        return None
    near = {name: nearest_variable(name) for name in context.unknown_environment}
    names = ", ".join(f"{name} (did you mean {hint}?)" if hint else name for name, hint in near.items())
    name, hint = next(((n, h) for n, h in near.items() if h), (context.unknown_environment[0], None))
    advice = f"rename {name} to {hint}" if hint else f"unset {name}"
    detail = f"These variables are set but are not options: {names}."
    return Finding("unknown-variables", "medium", "Unknown TAILWATCH_* variables are set", detail, advice)


def label_overflow(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """More label sets than there is room for."""
    if not snapshot.label_overflow:
        return None
    room = min(4096, max(64, 2 * len(snapshot.labels)))
    detail = (
        f"{snapshot.label_overflow} requests are counted under model and route 'other': max_label_sets was reached."
    )
    advice = f"install(app, max_label_sets={room})"
    return Finding("label-overflow", "low", "Label sets ran out", detail, advice)


def drops(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Something was not recorded, and counted."""
    dropped = {reason: count for reason, count in snapshot.drops.items() if count}
    if not dropped:
        return None
    worst = max(dropped, key=lambda reason: dropped[reason])
    detail = "Dropped and counted: " + ", ".join(f"{reason} {count}" for reason, count in dropped.items()) + "."
    advice = _DROP_ADVICE.get(worst, "tailwatch_dropped_events_total at /metrics shows when")
    return Finding("drops", "low", "Some events were dropped", detail, advice)


def fast_sse_fallback(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """The fast SSE path went back to the server's own serialisation."""
    fallbacks = snapshot.sse_fallbacks
    if not fallbacks:
        return None
    reasons = {reason for _, reason in fallbacks}
    shapes = ", ".join(f"{shape} ({reason})" for shape, reason in sorted(fallbacks))
    detail = f"Frames returned to the server's serialiser: {shapes}. " + " ".join(
        text for why, text in _FALLBACKS.items() if why in reasons
    )
    if reasons <= _HARMLESS_FALLBACKS:
        advice = "no action needed: the templates do not cover these frames"
        return Finding(
            "fast-sse-fallback", "info", "The server writes some frames itself, not fast_sse", detail, advice
        )
    off = "install(app, fast_sse=False)" if context.fast_sse else "no sse.accelerate() of that class"
    advice = f"report it with the versions of server and pydantic; {off} until it is fixed"
    if "differs" in reasons:
        return Finding("fast-sse-fallback", "high", "fast_sse may have sent wrong frames", detail, advice)
    return Finding("fast-sse-fallback", "low", "fast_sse returned some frames to the server", detail, advice)


def fast_sse_state(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """What the fast SSE path took over, if anything."""
    if not context.fast_sse:
        return None
    if context.accelerated:
        detail = f"Templates serialise these classes to the same bytes: {', '.join(context.accelerated)}."
        advice = "tailwatch_sse_fallback_total at /metrics counts frames returned to the server"
        return Finding("fast-sse", "info", "fast_sse is active", detail, advice)
    detail = "No supported server was loaded at install() or at start-up."
    advice = "tailwatch.sse.accelerate(Model) for a Pydantic class of your own, or install(app, fast_sse=False)"
    return Finding("fast-sse", "info", "fast_sse has no effect", detail, advice)


def notes(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """The process's own notes."""
    if not context.notes:
        return None
    return Finding(
        "notes",
        "info",
        "Notes about this process",
        " ".join(context.notes),
        "tailwatch.doctor() in the process shows the newest notes",
    )
