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
        "Differs: a frame made here was not the server's; the server's was sent. After its first 16 frames a shape is "
        "compared once in 1024 (compare_every): the frames since the comparison before, up to 1023 of each such shape, "
        "may have been wrong at the clients. From then on the server writes them."
    ),
    "error": (
        "Error: tailwatch's own code failed, or the server refused a frame that was made here; then and from then on "
        "the clients got what the server makes."
    ),
    "other": "Other: more kinds than are counted apart, of any reason.",
    "unsupported": "Unsupported: beyond the templates; the clients get the server's frames, only not faster.",
    "shapes": (
        "Shapes: more kinds of frames than there is room for; those learned go on being made here, the others are the "
        "server's, only not faster."
    ),
}
_DROP_ADVICE = {
    "unreadable_body": "leave text/event-stream out of the compression: a compressed body cannot be read",
    "choice": "nothing to mend: choices beyond the eighth of a request have no TPOT",
    "slow_log": "install(app, slow_gap_ms=...) with a higher bound: slow gaps came faster than they were logged",
    "pause_log": "install(app, gc_log_all=False, gc_warn_ms=...): pauses came faster than they were logged",
    "out_of_order_stamp": "look for tokens stamped after the end of their stream (s.token(at=...))",
    "pause_ring_overflow": "install(app, slow_gap_ms=...): gaps spanned more pauses than are kept, their overlap is "
    "a lower bound",
    "event_truncated": "nothing to mend: events longer than is kept were judged by their beginning",
    "protobuf_family": "install(app, histograms='classic'), or unregister what protobuf has no form for in the app's "
    "own registry: scrapes that asked for native histograms got text",
    "protobuf_slow": "install(app, histograms='classic'), or fewer label sets in the app's own registry: it takes too "
    "long, and scrapes that asked for native histograms got text",
    "trace_trigger": "install(app, trace_on=...) with a higher bound: it asked for a file too soon after the last, or "
    "the file could not be written",
    "export": "look whether the receiver at OTEL_EXPORTER_OTLP_ENDPOINT answers: rounds were not taken, and the next "
    "one tells of that time too",
    "span": "OTEL_TRACES_SAMPLER=parentbased_traceidratio: requests ended faster than their spans were made or sent",
}


def internal_errors(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Something went wrong inside tailwatch itself."""
    failed = {where: count for where, count in snapshot.errors.items() if count}
    if not failed:
        return None
    detail = "Counted, logged once, and kept from the server: " + ", ".join(f"{k} {v}" for k, v in failed.items()) + "."
    advice = "report it with the log line of 'tailwatch' and the output of `tailwatch doctor URL --json report.json`"
    return Finding("internal-errors", "medium", "tailwatch had errors of its own", detail, advice)


def unbound_streams(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Pauses of one of several engines, beside streams of which nobody said which engine serves them."""
    phases = snapshot.overlap_by_source.get("unbound", {})
    seconds = sum(sum(by_cause.values()) for by_cause in phases.values())
    if seconds <= 0:
        return None
    detail = (
        f"Streams spent {ms(seconds)}, summed over them, beside a pause of one of several engines, and it is not known "
        "which engine served them: an upper bound."
    )
    advice = (
        "engine= (TAILWATCH_ENGINE) in processes that work for or serve one engine, the header X-Tailwatch-Engine from "
        'a router, or scope["tailwatch"].bind(engine)'
    )
    return Finding("unbound", "low", "streams are not bound to their engine", detail, advice)


def unknown_variables(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """An environment variable that looks like an option and is none."""
    if not context.unknown_environment:
        return None
    near = {name: nearest_variable(name) for name in context.unknown_environment}
    told = ", ".join(f"{name} (did you mean {hint}?)" if hint else name for name, hint in near.items())
    name, hint = next(((n, h) for n, h in near.items() if h), (context.unknown_environment[0], None))
    advice = f"rename {name} to {hint}" if hint else f"unset {name}"
    detail = f"Set, and read by nothing: {told}."
    return Finding("unknown-variables", "medium", "TAILWATCH_* variables that do nothing", detail, advice)


def label_overflow(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """More label sets than there is room for."""
    if not snapshot.label_overflow:
        return None
    room = min(4096, max(64, 2 * len(snapshot.labels)))
    detail = (
        f"{snapshot.label_overflow} requests are counted under model and route 'other': there was no room for theirs."
    )
    advice = f"install(app, max_label_sets={room})"
    return Finding("label-overflow", "low", "label sets ran out", detail, advice)


def drops(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Something was not recorded, and counted."""
    dropped = {reason: count for reason, count in snapshot.drops.items() if count}
    if not dropped:
        return None
    worst = max(dropped, key=lambda reason: dropped[reason])
    detail = "Dropped and counted: " + ", ".join(f"{reason} {count}" for reason, count in dropped.items()) + "."
    advice = _DROP_ADVICE.get(worst, "tailwatch_dropped_events_total at /metrics shows when")
    return Finding("drops", "low", "some events were dropped", detail, advice)


def fast_sse_fallback(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """The fast SSE path went back to the server's own serialisation."""
    fallbacks = snapshot.sse_fallbacks
    if not fallbacks:
        return None
    reasons = {reason for _, reason in fallbacks}
    told = ", ".join(f"{shape} ({reason})" for shape, reason in sorted(fallbacks))
    detail = f"Left to the server: {told}. " + " ".join(text for why, text in _FALLBACKS.items() if why in reasons)
    if reasons <= _HARMLESS_FALLBACKS:
        advice = "nothing to mend: it is what the templates do not hold"
        return Finding("fast-sse-fallback", "info", "fast_sse leaves some frames to the server", detail, advice)
    off = "install(app, fast_sse=False)" if context.fast_sse else "no sse.accelerate() of that class"
    advice = f"report it with the versions of server and pydantic; {off} until it is mended"
    if "differs" in reasons:
        return Finding("fast-sse-fallback", "high", "fast_sse may have sent wrong frames", detail, advice)
    return Finding("fast-sse-fallback", "low", "fast_sse gave up some frames", detail, advice)


def fast_sse_state(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """What the fast SSE path took over, if anything."""
    if not context.fast_sse:
        return None
    if context.accelerated:
        detail = f"Serialised by templates, the same bytes: {', '.join(context.accelerated)}."
        advice = "tailwatch_sse_fallback_total at /metrics counts what they could not do"
        return Finding("fast-sse", "info", "fast_sse is at work", detail, advice)
    detail = "None of the servers that it knows was loaded at install() or at start-up."
    advice = "tailwatch.sse.accelerate(Model) for a Pydantic class of your own, or install(app, fast_sse=False)"
    return Finding("fast-sse", "info", "fast_sse found nothing to do", detail, advice)


def notes(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """What the process wants to have said."""
    if not context.notes:
        return None
    return Finding(
        "notes",
        "info",
        "about this process",
        " ".join(context.notes),
        "tailwatch.doctor() in the process shows the newest",
    )
