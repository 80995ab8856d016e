"""gc="auto": the policy whose pauses cost a token least, by measurement.

The cost of a policy is the mean wait: the time for which a token that becomes ready at a random moment waits until a
pause of this process is over. With pauses of lengths L in a time T it is the sum of L² / 2, divided by T (the mean
residual life of a renewal process). It counts collections and tailwatch's own slices and freezes alike, so policies can
be compared. Not counted: pauses shorter than 50 µs, which are not recorded, and freezes that happen once per process.

1. Start with "freeze"; with "observe" where the host has frozen its heap itself.
2. Where collections cost more than WORTH_SECONDS, try idle-time collection.
3. Return to the policy before where slices cost as much as the collections that they replaced, or do not work here. The
   next trial is RETRY_SECONDS later, then twice as late each time; earlier where collections have come to cost twice
   what slices did.
4. Where slices cost more than WORTH_SECONDS, measure the policy before again each REVIEW_SECONDS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tailwatch.gc.capabilities import slices_possible
from tailwatch.gc.hook import ONCE, GCHook

WORTH_SECONDS = 10e-6
LEARNING_SECONDS = 10.0
RETRY_SECONDS = 600.0
REVIEW_SECONDS = 3600.0
_LONGEST_RETRY_SECONDS = 86_400.0
_DEARER = 2.0  # times what slices cost
_MEMORY_SECONDS = 300.0  # after which a pause counts 1/e
_QUIET_PATIENCE_SECONDS = 30.0  # for a moment without requests, in which idle-time collection begins


@dataclass(slots=True)
class MeanWait:
    """The mean wait under one policy, seconds. Older pauses count less: by 1/e after five minutes."""

    seconds: float = 0.0
    _squares: float = 0.0

    def add(self, elapsed: float, pauses: Iterable[float]) -> None:
        """elapsed: since the last call; pauses: lengths of those that ended meanwhile; all in seconds."""
        kept = math.exp(-elapsed / _MEMORY_SECONDS)
        self.seconds = self.seconds * kept + elapsed
        self._squares = self._squares * kept + sum(length * length for length in pauses)

    @property
    def value(self) -> float:
        """Seconds; 0.0 where nothing was measured."""
        return self._squares / 2 / self.seconds if self.seconds > 0 else 0.0


class AutoPolicy:
    """Of one process.

    Args:
        hook: carries out the policy.
        pauses: lengths of the pauses that ended since its last call, seconds.
        no_stream_waits: whether no stream would be delayed by a pause now.
    """

    def __init__(
        self, hook: GCHook, pauses: Callable[[], Iterable[float]], no_stream_waits: Callable[[], bool]
    ) -> None:
        self._hook = hook
        self._pauses = pauses
        self._no_stream_waits = no_stream_waits
        self._now: MeanWait = MeanWait()
        self._at: float | None = None  # of the last call of turn()
        self._since = 0.0  # of the policy in force
        self._freezes = 0  # seen by the last call of turn()
        self._before = "freeze"  # the policy to return to
        self._retry_at, self._retry_seconds = 0.0, RETRY_SECONDS
        self.measured: dict[str, float] = {}
        hook.reason = "start-up"

    def on_startup(self) -> None:
        """The app is about to take traffic."""
        if self._hook.host_froze and self._hook.policy == "freeze" and not self._hook.state.done:
            self._before = "observe"
            self._hook.adopt("observe", "host-froze")

    def turn(self, now: float) -> None:
        """Called by the daemon, once a second, with monotonic seconds."""
        pauses, hook = list(self._pauses()), self._hook
        if self._at is None:
            self._at = self._since = now
        new, self._freezes = hook.state.made - self._freezes, hook.state.made
        if new > 0 and any(freeze.reason in ONCE for freeze in hook.state.done[-new:]):
            pauses = []
        self._now.add(now - self._at, pauses)
        self._at = now
        if hook.policy == "idle":
            self._review_idle(now)
        elif self._learned and self._now.value >= WORTH_SECONDS and self._may_try(now) and slices_possible():
            self._before = hook.policy
            self._adopt("idle", "collections", now)

    def _may_try(self, now: float) -> bool:
        """A heap that grows makes collections longer than they were when slices were compared with them."""
        slices = self.measured.get("idle", math.inf)
        return now >= self._retry_at or (self._retry_at < math.inf and self._now.value > _DEARER * slices)

    def _review_idle(self, now: float) -> None:
        hook, elapsed = self._hook, now - self._since
        if hook.idle_gc.mode != "slices":
            self._retry_at = math.inf
            self._adopt(self._before, hook.idle_gc.reason or "proof", now)
        elif not hook.idle_gc.engaged:
            if elapsed > _QUIET_PATIENCE_SECONDS or self._no_stream_waits():
                hook.engage_now()
                self._discard_pauses()
                self._since, self._now = now, MeanWait()
        elif self._learned and self._now.value >= max(self.measured.get(self._before, 0.0), WORTH_SECONDS):
            self._retry_at = now + self._retry_seconds
            self._retry_seconds = min(2 * self._retry_seconds, _LONGEST_RETRY_SECONDS)
            self._adopt(self._before, "slices", now)
        elif elapsed > REVIEW_SECONDS and self._now.value >= WORTH_SECONDS:
            self._adopt(self._before, "review", now)

    def _discard_pauses(self) -> None:
        """Those of a change of policy, which is made once, are no cost of the policy that begins."""
        for _ in self._pauses():
            pass

    @property
    def _learned(self) -> bool:
        """Whether the policy in force was measured for long enough."""
        learned = self._now.seconds >= LEARNING_SECONDS
        if learned:
            self.measured[self._hook.policy] = self._now.value
        return learned

    def _adopt(self, policy: str, reason: str, now: float) -> None:
        self._hook.adopt(policy, reason)
        self._since, self._now = now, MeanWait()
