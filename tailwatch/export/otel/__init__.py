"""Metrics and spans to OpenTelemetry, pushed from a thread."""
