"""Metrics and spans to OpenTelemetry, pushed from a thread; here: whether that is asked for."""

from collections.abc import Mapping

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
TRACE_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def listed(environment: Mapping[str, str], name: str) -> set[str]:
    """The words of a variable that lists some, in lower case."""
    return {part.strip().lower() for part in environment.get(name, "").split(",") if part.strip()}


def _disabled(environment: Mapping[str, str]) -> bool:
    return environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def asks(environment: Mapping[str, str], exporters: str, endpoints: tuple[str, ...]) -> bool:
    """Whether ``exporters`` lists OTLP, or it is not set and one of ``endpoints`` is."""
    named = listed(environment, exporters)
    return "otlp" in named if named else any(environment.get(name, "").strip() for name in endpoints)


def asked_for(option: object, environment: Mapping[str, str]) -> bool:
    """Whether OTLP is exported: see exporter.py. ``option`` is Config.otel."""
    if option is False or _disabled(environment):
        return False
    return option is not None or asks(environment, "OTEL_METRICS_EXPORTER", _ENDPOINTS)
