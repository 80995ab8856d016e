"""The host's registry in the format of a scrape, kept for a second, and whether it may be protobuf.

One response has one format. So protobuf is answered only while every family of the host has a form there and all of
them take at most FIT_SECONDS of a thread's CPU time; else the scrape is answered in text, and counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from tailwatch.export.prometheus import app_registry
from tailwatch.export.prometheus.app_registry_protobuf import Unencodable
from tailwatch.export.prometheus.negotiation import OPENMETRICS, Format

CACHE_SECONDS = 1.0

FIT_SECONDS = 0.005
"""CPU time that the host's families may take of a scrape in protobuf."""

FAMILY, SLOW = "family", "slow"
"""Why it was text: a family without a form in protobuf, or families that take too long."""


class Gate:
    """Whether the host's registry is answered in protobuf: with hysteresis, because a target that changes its format
    changes the series that Prometheus has of it.

    It closes for a family that has no form, for FAR times FIT_SECONDS, and for STRIKES scrapes in a row over
    FIT_SECONDS. While it is closed a try is due every RETRY_SECONDS; it opens after STRIKES tries in a row that took at
    most EASY of FIT_SECONDS.
    """

    FAR, EASY, STRIKES, RETRY_SECONDS = 4.0, 0.6, 3, 60.0

    def __init__(self) -> None:
        self.reason: str | None = None
        """Why it is closed; None: it is open."""
        self._row = 0
        self._next = 0.0

    def due(self, now: float) -> bool:
        """Whether to write protobuf: always while it is open, else for a try."""
        return self.reason is None or now >= self._next

    @property
    def limit(self) -> float:
        """Seconds after which writing is given up."""
        return FIT_SECONDS * self.FAR if self.reason is None else FIT_SECONDS

    def wrote(self, seconds: float, now: float) -> None:
        """All was written, in so much time."""
        wanted = seconds > FIT_SECONDS if self.reason is None else seconds <= FIT_SECONDS * self.EASY
        self._row = self._row + 1 if wanted else 0
        if self.reason is not None:
            self._next = now + self.RETRY_SECONDS
        if self._row < self.STRIKES:
            return
        self._row = 0
        if self.reason is None:
            self.gave_up(SLOW, now)
        else:
            self.reason = None

    def gave_up(self, reason: str, now: float) -> None:
        """It could not be written."""
        self.reason, self._row, self._next = reason, 0, now + self.RETRY_SECONDS


class TooSlow(Exception):
    """The host's families take longer than they may."""


class HostCache:
    """The host's families. Its methods block: never on an event loop's thread.

    skip_names: families that are ours. skip_collector: whether a collector is our own. on_error: called for what of the
    host's could not be served. on_declined: called with FAMILY or SLOW for each scrape that asked for protobuf and gets
    text.
    """

    def __init__(
        self,
        skip_names: Collection[str],
        skip_collector: Callable[[object], bool],
        on_error: Callable[[], object],
        on_declined: Callable[[str], object],
    ) -> None:
        self._skip_names = skip_names
        self._skip_collector = skip_collector
        self._on_error = on_error
        self._on_declined = on_declined
        self._clashes: set[str] = set()
        self.gate = Gate()
        self.seconds = -1.0
        """What rendering it took last; below 0: there is none."""
        self.after_fork()

    def after_fork(self) -> None:
        """In a fork child: forget what the parent's threads had begun."""
        self._lock = threading.Lock()
        self._kept: dict[Format, tuple[float, list[bytes]]] = {}

    def text(self, form: Format) -> list[bytes]:
        """Its families in a text format; none where the host has no registry. Never raises: what fails is counted."""
        with self._lock:
            kept = self._fresh(form)
            return self._keep(form, self._guarded(self._lines, form)) if kept is None else kept

    def protobuf(self, form: Format) -> list[bytes] | None:
        """Its families in protobuf; None: the scrape is to be answered in text. Never raises."""
        with self._lock:
            kept = self._fresh(form)
            if kept is None:
                kept = self._try_protobuf(form)
            if kept is None or self.gate.reason is not None:
                self._on_declined(self.gate.reason or FAMILY)
                return None
            return self._keep(form, kept) if self._fresh(form) is None else kept

    def _fresh(self, form: Format) -> list[bytes] | None:
        made, kept = self._kept.get(form, (float("-inf"), []))
        return kept if time.monotonic() - made < CACHE_SECONDS else None

    def _keep(self, form: Format, pieces: list[bytes]) -> list[bytes]:
        self._kept[form] = (time.monotonic(), pieces)
        return pieces

    def _try_protobuf(self, form: Format) -> list[bytes] | None:
        now = time.monotonic()
        if not self.gate.due(now):
            return None
        start = time.thread_time()
        try:
            written = self._guarded(self._messages, form)
        except (TooSlow, Unencodable) as error:
            self.gate.gave_up(SLOW if isinstance(error, TooSlow) else FAMILY, now)
            return None
        self.gate.wrote(time.thread_time() - start, now)
        return written

    def _guarded(self, write: Callable[[Any, Format], Iterator[bytes]], form: Format) -> list[bytes]:
        start = time.perf_counter()
        try:
            registry = app_registry.find_registry()
            if registry is None:
                return []
            written = list(write(registry, form))
        except (TooSlow, Unencodable):
            raise
        except Exception:
            self._on_error()
            return []
        self.seconds = time.perf_counter() - start
        return written

    def _lines(self, registry: Any, form: Format) -> Iterator[bytes]:
        return app_registry.write_registry(
            registry,
            openmetrics=form.name == OPENMETRICS,
            utf8=form.utf8,
            skip_names=self._skip_names,
            skip_collector=self._skip_collector,
            on_clash=self._clash,
            on_error=self._on_error,
        )

    def _messages(self, registry: Any, form: Format) -> Iterator[bytes]:
        end = time.thread_time() + self.gate.limit

        def check() -> None:
            if time.thread_time() > end:
                raise TooSlow

        return app_registry.encode_registry(
            registry,
            utf8=form.utf8,
            skip_names=self._skip_names,
            skip_collector=self._skip_collector,
            on_clash=self._clash,
            on_error=self._on_error,
            check=check,
        )

    def _clash(self, name: str) -> None:
        """Counted once a name: it comes back with every scrape."""
        if name not in self._clashes:
            self._clashes.add(name)
            self._on_error()
