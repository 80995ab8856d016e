"""What others do to an ASGI app, each as a function from an app to an app. A missing package is reported, not
hidden."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

App = Callable[[Any, Any, Any], Any]
ROUTE = "/v1/chat/completions"


def sender_app(wrap: Callable[[Any], Any]) -> Callable[[App], App]:
    """A peer that is only a wrapper around `send`."""

    def around(app: App) -> App:
        async def wrapped(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, wrap(send))

        return wrapped

    return around


def python_send(send: Any, needle: bytes = b'"content":"') -> Any:
    """The Python one: looks for content, stamps it, and counts the gap in a histogram of octaves."""
    counts = [0] * 64
    last = time.perf_counter_ns()
    clock, width = time.perf_counter_ns, len(needle)

    async def wrapped(message: Any) -> None:
        nonlocal last
        if message["type"] == "http.response.body":
            body = message.get("body", b"")
            found = body.find(needle)
            if found >= 0 and body[found + width] != 34:  # not the empty string
                now = clock()
                counts[(now - last).bit_length()] += 1
                last = now
        await send(message)

    return wrapped


def prometheus_send() -> Callable[[Any], Any]:
    """observe() of prometheus_client per chunk, written by hand."""
    from prometheus_client import CollectorRegistry, Histogram

    names = ["model_name", "route", "phase"]
    histogram = Histogram("itl_seconds", "gap", names, registry=CollectorRegistry())

    def wrap(send: Any) -> Any:
        last = time.perf_counter()

        async def wrapped(message: Any) -> None:
            nonlocal last
            if message["type"] == "http.response.body":
                now = time.perf_counter()
                histogram.labels("model", ROUTE, "itl").observe(now - last)
                last = now
            await send(message)

        return wrapped

    return wrap


def otel_send() -> Callable[[Any], Any]:
    """record() of OpenTelemetry per chunk, written by hand."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    provider = MeterProvider(metric_readers=[InMemoryMetricReader()], shutdown_on_exit=False)
    histogram = provider.get_meter("bench").create_histogram("itl", unit="s")

    def wrap(send: Any) -> Any:
        last = time.perf_counter()

        async def wrapped(message: Any) -> None:
            nonlocal last
            if message["type"] == "http.response.body":
                now = time.perf_counter()
                histogram.record(now - last, {"model": "model", "route": ROUTE, "phase": "itl"})
                last = now
            await send(message)

        return wrapped

    return wrap


def otel_asgi(app: App) -> App:
    """opentelemetry-instrumentation-asgi with its defaults: a span per send. Spans are sampled and dropped."""
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
    from opentelemetry.sdk.trace import TracerProvider

    return OpenTelemetryMiddleware(app, tracer_provider=TracerProvider(shutdown_on_exit=False))


def base_http(app: App) -> App:
    """Starlette's BaseHTTPMiddleware that does nothing: what most hand-written middleware stands on."""
    from starlette.middleware.base import BaseHTTPMiddleware

    async def dispatch(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    return BaseHTTPMiddleware(app, dispatch)


PER_CHUNK: dict[str, Callable[[], Callable[[App], App]]] = {
    "Python async def wrapper": lambda: sender_app(python_send),
    "prometheus_client, observe() per chunk": lambda: sender_app(prometheus_send()),
    "OpenTelemetry, record() per chunk": lambda: sender_app(otel_send()),
    "OpenTelemetry ASGI middleware, defaults": lambda: otel_asgi,
    "Starlette BaseHTTPMiddleware, empty": lambda: base_http,
}
"""Everything that does something per chunk."""


def available(notes: list[str]) -> dict[str, Callable[[App], App]]:
    """Those that are installed; a note for each that is not."""
    found = {}
    for name, make in PER_CHUNK.items():
        try:
            around = make()
            around(_silent)
        except ImportError as error:
            notes.append(f"not compared: {name} ({error})")
        else:
            found[name] = around
    return found


async def _silent(scope: Any, receive: Any, send: Any) -> None:
    pass
