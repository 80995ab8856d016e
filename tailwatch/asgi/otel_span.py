"""The OpenTelemetry span around a request, where there is one. Nothing is imported for it."""

from __future__ import annotations

import sys


def current_trace_id() -> str | None:
    """The trace id of the current span, 32 hexadecimal digits; None where there is none, or it is not sampled: then no
    backend has it."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid and context.trace_flags.sampled else None
