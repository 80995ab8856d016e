"""Requests as OpenTelemetry spans: what tailwatch saw is added to the app's own one, or one is made.

Nothing here runs per token. As a request ends, and in its task, the SERVER span that the app's instrumentation has
open is given attributes and events. Where there is none the request's story is put into a queue, and a thread makes a
SERVER span of it with the app's tracer provider: its sampler and the caller's traceparent decide. Where the app's
span ended before the request did (it was aborted), a child of it has the rest. A request whose trace was sampled
out has no span here either. The queue and the events of a span are bounded; what has no room is counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from tailwatch.diagnose.text import format_causes
from tailwatch.export.otel.encode import operation
from tailwatch.export.otel.server_address import attributes_of
from tailwatch.snapshots import CAUSES, OUTCOME_OF, PHASES, REASONS
from tailwatch.snapshots.model import Cause

QUEUE = 2048
EVENTS = 16
"""Of one span: the first token, its last slow gaps, and the longest of the last 64 pauses while it ran."""

_FAILED = {
    "error": "_OTHER",
    "429": "429",
    "5xx": "5xx",
    "timeout": "timeout",
    "abort_late": "cancelled",
    "abort_early": "cancelled",
    "4xx": "4xx",
}
_SERVER_FAULTS = frozenset({"error", "5xx", "timeout"})
_WAKE_SECONDS = 0.25
_ASKED_MODEL = b"x-gateway-model-name"
"""From gateways that route by the model in a request's body: the Gateway API's inference extension sets it."""
_LONGEST_MODEL = 200


class Story(NamedTuple):
    """Of Stream.summary(): csrc/python/stamp/request_summary.c. Monotonic nanoseconds; first 0: no token came."""

    arrival: int
    entry: int
    first: int
    last: int
    end: int
    tokens: int
    status: int
    reason: int
    model: str
    route: str
    request_id: str
    trace_id: str
    worst: int
    overlap: int
    delay: int
    slow_count: int
    slow: list[tuple[Any, ...]]
    pauses: list[tuple[int, int, int]]


@dataclass(slots=True)
class Waiting:
    """A request whose span is to be made. carrier: the headers that hold its trace. parent: an ended span's
    context. server: of the ASGI scope: address and port; (path, None) of a Unix socket; None: not known.
    asked_model: the one that the request was made to; "": not known."""

    story: Story
    carrier: dict[str, str]
    parent: Any = None
    server: Any = None
    asked_model: str = ""


class Spans:
    """The spans of one process.

    Args:
        provider_name: gives gen_ai.provider.name.
        fallback: makes a tracer provider where the app has set none; it may give None.
        serving: gives what the calling task's request holds, an object with a ``span``, or None.
        dropped: called for each span that was not made.
    """

    def __init__(
        self,
        provider_name: Callable[[], str],
        fallback: Callable[[], Any],
        serving: Callable[[], Any],
        dropped: Callable[[], object],
    ) -> None:
        self.made = self.dropped = self.events_dropped = 0
        self._provider_name, self._fallback, self._serving, self._dropped = provider_name, fallback, serving, dropped
        self._queue: deque[Waiting] = deque()
        self._wake = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None
        self._own_provider: Any = None
        self._inherited: Any = None
        self._asked_fallback = False
        self._noticer: Any = None
        self._noticing: Any = None
        self._fields: frozenset[bytes] | None = None

    def inherit(self, parents: Spans) -> None:
        """In a fork child: what the parent's spans have left in this process is this one's to undo."""
        self._noticing, self._noticer = parents._noticing, parents._noticer
        self._inherited = parents._own_provider or parents._inherited

    # ---- called in the task of a request ----

    def ended(self, stream: Any, scope: Any, asked_model: str = "") -> None:
        """A request has ended; its task still runs. Once per request. asked_model: that it was made to, where code has
        named it."""
        from opentelemetry import trace

        summary = stream.summary()
        if summary is None or self._over:
            return
        serving = self._serving()
        noticed = None if serving is None else serving.span
        span = noticed if noticed is not None else trace.get_current_span()
        context, asked = span.get_span_context(), asked_model or _asked_model(scope)
        if span.is_recording():
            story = Story(*summary)
            own_already = getattr(span, "attributes", None) or ()  # the app's instrumentation may have read the body
            asked = "" if "gen_ai.request.model" in own_already else asked
            span.set_attributes(dict(self._attributes(story, False, asked)))
            self._add_events(span, story, _shift())
            self.made += 1
        elif not context.is_valid:
            self._enqueue(Waiting(Story(*summary), self._carrier(scope), None, (scope or {}).get("server"), asked))
        elif context.trace_flags.sampled:
            self._enqueue(Waiting(Story(*summary), {}, parent=span, asked_model=asked))

    def _enqueue(self, waiting: Waiting) -> None:
        if len(self._queue) >= QUEUE:
            self.dropped += 1
            self._dropped()
            return
        self._queue.append(waiting)
        if self._thread is None:
            self.start()

    def _carrier(self, scope: Any) -> dict[str, str]:
        headers = scope.get("headers") if isinstance(scope, dict) else None
        if not isinstance(headers, (list, tuple)):
            return {}
        if self._fields is None:
            from opentelemetry import propagate

            self._fields = frozenset(field.lower().encode() for field in propagate.get_global_textmap().fields)
        wanted = self._fields
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name.lower() in wanted}

    # ---- the app's own span ----

    def notice(self) -> None:
        """Ask the app's tracer provider to report each SERVER span's start. Called repeatedly: it may come late."""
        from opentelemetry import trace

        provider = trace.get_tracer_provider()
        if provider is self._noticing or isinstance(provider, trace.ProxyTracerProvider):
            return
        add = getattr(provider, "add_span_processor", None)
        if add is None or self._over:
            return
        self._noticing, self._noticer = provider, _noticer(self._serving)
        add(self._noticer)

    def _unnotice(self) -> str | None:
        """The SDK has no way to take a processor out again but its own list."""
        if self._noticer is None:
            return None
        noticer, self._noticer = self._noticer, None
        noticer.serving = None
        several: Any = getattr(self._noticing, "_active_span_processor", None)
        known, lock = getattr(several, "_span_processors", None), getattr(several, "_lock", None)
        if not isinstance(known, tuple) or lock is None:
            return "our span processor stays in the app's tracer provider and does nothing"
        with lock:
            several._span_processors = tuple(each for each in several._span_processors if each is not noticer)
        return None

    # ---- the thread ----

    def start(self) -> None:
        """Begin to make spans, unless that was begun."""
        if self._thread is not None or self._over:
            return
        thread = threading.Thread(target=self._run, name="tailwatch-spans", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is about to end
            self._thread = None

    def stop(self, timeout: float) -> list[str]:
        """Make what waits, for so many seconds at most. What could not be undone, a sentence each."""
        self._over = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(max(_WAKE_SECONDS, timeout))
        self._end_inherited()
        left = len(self._queue)
        self._queue.clear()
        for _ in range(left):
            self.dropped += 1
            self._dropped()
        hangs = self._thread is not None and self._thread.is_alive()
        late = "the spans' exporter did not return in time: its threads end when it does" if hangs else None
        return [sentence for sentence in (late, self._unnotice()) if sentence]

    def _end_inherited(self) -> None:
        """The SDK gives each batch processor a thread in a fork child, too; that of the parent's provider has no work.
        Not while forking: the SDK's own turn comes after ours."""
        inherited, self._inherited = self._inherited, None
        if inherited is not None:
            with suppress(Exception):  # of the app's exporter
                inherited.shutdown()

    def _run(self) -> None:
        self._end_inherited()
        while not self._over:
            self._wake.wait(_WAKE_SECONDS)
            self._drain()
        self._drain()
        if self._own_provider is not None:
            self._own_provider.shutdown()

    def _drain(self) -> None:
        while self._queue:
            try:
                self._make(self._queue.popleft())
            except Exception:  # of the app's sampler or processor
                self.dropped += 1
                self._dropped()
            time.sleep(1e-6)  # other threads may take the GIL between two

    def _tracer(self) -> Any:
        from opentelemetry import trace

        provider: Any = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):
            if not self._asked_fallback:
                self._asked_fallback = True
                self._own_provider = self._fallback()
            provider = self._own_provider
        return None if provider is None else provider.get_tracer("tailwatch")

    def _make(self, waiting: Waiting) -> None:
        from opentelemetry import propagate, trace

        tracer = self._tracer()
        if tracer is None:
            return
        if self._own_provider is not None and _is_full(self._own_provider):
            self.dropped += 1
            self._dropped()
            return
        story, own = waiting.story, waiting.parent is None
        context = propagate.extract(waiting.carrier) if own else trace.set_span_in_context(waiting.parent)
        shift = _shift()
        span = tracer.start_span(
            f"{operation(story.route)} {story.model}",  # a header is any client's to choose
            context=context,
            kind=trace.SpanKind.SERVER if own else trace.SpanKind.INTERNAL,
            start_time=story.arrival + shift,
            attributes={**dict(self._attributes(story, own, waiting.asked_model)), **attributes_of(waiting.server)},
        )
        if span.is_recording():
            self._add_events(span, story, shift)
            if own and REASONS[story.reason] in _SERVER_FAULTS:
                span.set_status(trace.Status(trace.StatusCode.ERROR))
            self.made += 1
        span.end(max(story.end, story.last) + shift)

    # ---- what a span gets ----

    def _add_events(self, span: Any, story: Story, shift: int) -> None:
        events = list(_events(story))
        self.events_dropped += max(0, len(events) - EVENTS) + max(0, story.slow_count - len(story.slow))
        for name, at, attributes in sorted(events[:EVENTS], key=lambda event: event[1]):
            span.add_event(name, attributes, timestamp=at + shift)

    def _attributes(self, story: Story, own: bool, asked_model: str) -> Iterator[tuple[str, Any]]:
        reason = REASONS[story.reason]
        yield "gen_ai.operation.name", operation(story.route)
        yield "gen_ai.provider.name", self._provider_name()
        if asked_model:
            yield "gen_ai.request.model", asked_model
        if story.model != "unknown":
            yield "gen_ai.response.model", story.model
        if story.tokens:
            yield "gen_ai.usage.output_tokens", story.tokens
        if story.first:
            yield "gen_ai.latency.time_to_first_token", (story.first - story.arrival) / 1e9
        yield "gen_ai.latency.e2e", (story.end - story.arrival) / 1e9
        yield "tailwatch.outcome", OUTCOME_OF[reason]
        yield "tailwatch.reason", reason
        yield "tailwatch.accept_wait", max(0, story.entry - story.arrival) / 1e9
        yield "tailwatch.worst_gap", story.worst / 1e9
        yield "tailwatch.overlap", story.overlap / 1e9
        yield "tailwatch.delay", story.delay / 1e9
        yield "tailwatch.slow_gaps", story.slow_count
        if story.request_id:
            yield "tailwatch.request_id", story.request_id
        if own:
            yield "http.route", story.route
            if story.status:
                yield "http.response.status_code", story.status
            if reason in _FAILED:
                yield "error.type", _FAILED[reason]


def _is_full(provider: Any) -> bool:
    """Whether the batch processor of our provider has no room: it would drop a span, and only log that. The
    SDK has no word for that but its own queue; where that is elsewhere the answer is no."""
    several = getattr(getattr(provider, "_active_span_processor", None), "_span_processors", None) or (None,)
    queue = getattr(getattr(several[0], "_batch_processor", None), "_queue", None)
    return queue is not None and queue.maxlen is not None and len(queue) >= queue.maxlen


def _shift() -> int:
    """From monotonic nanoseconds to those of the Unix epoch."""
    return time.time_ns() - time.monotonic_ns()


def _asked_model(scope: Any) -> str:
    """The request's model by a gateway's header; the body, which has it too, is not read."""
    headers = scope.get("headers") if isinstance(scope, dict) else None
    if not isinstance(headers, (list, tuple)):
        return ""
    named = next((value for name, value in headers if name.lower() == _ASKED_MODEL), b"")
    return str(named[:_LONGEST_MODEL], "utf-8", "replace") if isinstance(named, bytes) else ""


def _events(story: Story) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """The most telling first: a span has room for so many."""
    if story.first:
        yield "tailwatch.first_token", story.first, {"tailwatch.seconds": (story.first - story.arrival) / 1e9}
    for slow in reversed(story.slow):
        yield "tailwatch.slow_gap", slow[0], dict(_slow(slow))
    for start, stop, cause in sorted(story.pauses, key=lambda pause: pause[0] - pause[1]):
        yield "tailwatch.pause", start, {"tailwatch.seconds": (stop - start) / 1e9, "tailwatch.cause": CAUSES[cause]}


def _slow(slow: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    _, phase, gap, typical, overlap, parts, token = slow
    yield "tailwatch.phase", PHASES[phase]
    yield "tailwatch.seconds", gap / 1e9
    yield "tailwatch.typical", typical / 1e9
    yield "tailwatch.token", token
    for cause, ns in zip(CAUSES, overlap, strict=True):
        if ns:
            yield f"tailwatch.overlap.{cause}", ns / 1e9
    delay: dict[str, int] = {}
    for cause, ns, *_ in parts:
        delay[cause] = delay.get(cause, 0) + ns
    for cause, ns in delay.items():
        yield f"tailwatch.delay.{cause}", ns / 1e9
    yield "tailwatch.causes", format_causes(sorted(map(_cause, parts), key=lambda cause: -cause.seconds))


def _cause(part: tuple[str, int, str, str, str]) -> Cause:
    cause, ns, certainty, name, holder = part
    return Cause(ns / 1e9, cause, certainty, "", name, "holder" if holder else "", holder=holder)


def _noticer(serving: Callable[[], Any]) -> Any:
    """A SpanProcessor that leaves each SERVER span, as it starts, with the request whose task starts it."""
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import SpanKind

    class Noticer(SpanProcessor):
        def __init__(self) -> None:
            self.serving: Callable[[], Any] | None = serving

        def on_start(self, span: Any, parent_context: Any = None) -> None:
            if self.serving is None or span.kind is not SpanKind.SERVER:
                return
            request = self.serving()
            if request is not None and request.span is None:
                request.span = span

    return Noticer()
