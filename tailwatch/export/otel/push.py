"""One exporter's thread: takes the numbers every so often, and hands them over.

What is not taken is not lost: totals are sent again, and a difference is then one since the last round that was
taken. So a receiver that is down for an hour costs its resolution and a counter, no memory and no number. (A request
that was taken although the exporter reported a failure is exported twice, as with every OTLP exporter.)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailwatch import snapshots
from tailwatch.export.otel.encode import Own, otlp
from tailwatch.export.otel.transport import Sender

logger = logging.getLogger("tailwatch")

_GIVE_UP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Facts:
    """What is not in the numbers themselves."""

    version: str
    provider: str
    resource: bytes
    schema_url: str = ""


class Origin:
    """Since when totals count, on the wall clock: fixed, however that clock is set, until they begin anew."""

    def __init__(self) -> None:
        self._monotonic = -1
        self._unix = 0

    def of(self, snapshot: snapshots.Snapshot) -> int:
        """Nanoseconds of the Unix epoch."""
        began, taken = snapshot.origin
        if abs(began - self._monotonic) > 1_000_000:
            self._monotonic, self._unix = began, snapshot.taken_ns - (taken - began)
        return self._unix


class Push:
    """The thread of one exporter.

    Args:
        sender: of the exporter.
        take: gives the numbers.
        facts: asked once, in the thread.
        info: what is exported beside the numbers in each round: see encode.otlp.
        spans: what was done with spans so far; the rounds are counted here.
        interval: seconds between two rounds. timeout: the time that an exporter is given.
        missed: called for each round that was not taken or left out.
        taken: called for each that was.
        late: whether others have exported this group's numbers before: a difference begins with what comes now.
    """

    def __init__(
        self,
        sender: Callable[[], Sender],
        take: Callable[[], snapshots.Snapshot],
        facts: Callable[[], Facts],
        *,
        info: Callable[[], dict[str, Any]] = dict,
        spans: Callable[[], Own] = Own,
        interval: float = 60.0,
        timeout: float = 30.0,
        missed: Callable[[], object] = lambda: None,
        taken: Callable[[], object] = lambda: None,
        late: bool = False,
    ) -> None:
        self._make, self._take, self._facts, self._info, self._spans = sender, take, facts, info, spans
        self._interval, self._timeout = interval, timeout
        self._missed, self._taken = missed, taken
        self._late = late
        self.exported = self.failed = self.skipped = 0
        self.sender: Sender | None = None
        self._before: tuple[snapshots.Snapshot, Own] | None = None
        self._origin = Origin()
        self._began_unix_ns = time.time_ns()
        self._known: Facts | None = None
        self._stop = threading.Event()
        self._over = False
        self._since = self._checked = 0.0
        self._left_out = 0
        self._logged = False
        self._thread = threading.Thread(target=self._run, name="tailwatch-otel", daemon=True)

    def start(self) -> None:
        """Begin. RuntimeError where no thread can be had."""
        self._thread.start()

    @property
    def own(self) -> Own:
        """What it did so far."""
        hold = self.sender.hold_ns if self.sender is not None else 0
        return self._spans()._replace(
            exported=self.exported,
            failed=self.failed,
            skipped=self.skipped,
            hold_ns=hold,
            start_unix_ns=self._began_unix_ns,
        )

    def check(self, now: float) -> None:
        """Count the rounds that are left out because one still runs. Called by another thread, now: monotonic."""
        since = self._since  # written by the thread alone
        if since != self._checked:
            self._checked, self._left_out = since, 0
        due = int((now - since) / self._interval) if since else 0
        for _ in range(self._left_out, due):
            self.skipped += 1
            self._missed()
        self._left_out = max(due, self._left_out)

    def stop(self) -> None:
        """One last round, then the end; see join()."""
        self._stop.set()

    def join(self, timeout: float) -> bool:
        """Whether it has ended within so many seconds. If not it ends when its exporter returns, and takes no numbers
        any more."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout))
        self._over = True
        return not self._thread.is_alive()

    def after_fork(self) -> None:
        """In a child, which has no such thread."""
        if self.sender is not None:
            self.sender.after_fork()

    def give_up(self) -> bool:
        """Shut an exporter of ours down while it waits for its receiver: after join(). Whether the thread has ended."""
        self._close()
        return self.join(_GIVE_UP_SECONDS)

    def _close(self) -> None:
        if self.sender is not None:
            self._guarded(self.sender.close)

    def _run(self) -> None:
        from opentelemetry import context

        key = getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")
        context.attach(context.set_value(key, True))
        due = time.monotonic() + self._interval
        self._baseline()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            self.round()
            due = max(due + self._interval, time.monotonic())
        self.round()
        if not self._over:
            self._close()

    def _baseline(self) -> None:
        if self._late:
            self._guarded(lambda: setattr(self, "_before", (self._take(), self.own)))

    def round(self) -> None:
        """One export."""
        if self._over:
            return
        self._since = time.monotonic()
        good = self._guarded(self._export)
        self._since = 0.0
        if good:
            self.exported += 1
            self._taken()
        else:
            self.failed += 1
            self._missed()

    def _guarded(self, act: Callable[[], Any]) -> Any:
        """What goes wrong in an exporter is counted, and logged once."""
        try:
            return act()
        except Exception:
            if not self._logged:
                self._logged = True
                logger.exception("tailwatch: an OTLP export failed; it is counted, and sent again with the next one")
            return False

    def _export(self) -> bool:
        if self.sender is None:
            self.sender = self._make()
        now, own = self._take(), self.own
        request = self.encode(now, own)
        if not self.sender.send(request, self._timeout):
            return False
        if self.sender.delta:
            self._before = (now, own)
        return True

    def encode(self, now: snapshots.Snapshot, own: Own) -> bytes:
        """The request for what was taken now, as the exporter prefers it."""
        sender = self.sender
        assert sender is not None
        if self._known is None:
            self._known = self._facts()
        before, own_before = self._before or (None, Own())
        start = self._origin.of(now)
        if before is not None and (before.opened > now.opened or before.origin[1] > now.origin[1]):
            before = None  # the numbers began anew
        return otlp(
            now,
            before,
            **self._info(),
            version=self._known.version,
            provider=self._known.provider,
            resource=self._known.resource,
            schema_url=self._known.schema_url,
            start_ns=start,
            since_ns=before.taken_ns if before is not None else start,
            delta_histograms=sender.delta_histograms,
            delta_sums=sender.delta_sums,
            exponential=sender.exponential,
            own=own,
            own_since=own_before,
        )
