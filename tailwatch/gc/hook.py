"""The collector: its pauses, bracketed in C, and the freeze.

Two callables of ours stand in ``gc.callbacks``: one first, one last. Both are C: a Python callback would hand the
GIL over between start and stop and book the wait as a pause.

``freeze`` is collect, freeze, collect: the first pass so that no garbage is frozen (it would never be freed), the
last because a full pass becomes due when the survivors since the last one exceed a quarter of the objects it
found, and it should find few. These two passes are the only work in proportion to the heap that runs on a
serving thread, and only when no stream is in flight.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tailwatch import _hot
from tailwatch.gc.capabilities import COUNTED_AFTER
from tailwatch.gc.idle import IdleGC
from tailwatch.gc.interference import MODES, POLICIES, WHYS, Interference

FREEZING = ("freeze", "idle")

WARM_REQUESTS = 32
WARM_PATIENCE_SECONDS = 600.0

# Growth since the freeze after which it is made again: before a quarter of all objects is new, when the interpreter
# would make a full collection. After each doubling all objects are examined, so frozen garbage stays bounded.
GROWN_SHARE, GROWN_LEAST = 5, 50_000

KEPT_FREEZES = 64  # the last; there may be one a minute for as long as the process lives

# CPython 3.12 books its immortal containers as frozen, at start and with each collection (375 in 3.12.1), where
# gc.freeze() was not called. A heap frozen on purpose is larger.
INTERPRETER_FROZEN = 1000

MOST_OBJECTS = 2**63  # more than there can be

_GENERATIONAL, _INCREMENTAL = 0, 1
_REQUESTED = "requested"
_STARTUP, _FIRST_IDLE, _WARM, _ADOPTED, _GROWTH = "start-up", "first idle moment", "warm-up", "adopted", "growth"
ONCE = (_STARTUP, _FIRST_IDLE, _WARM, _ADOPTED)
"""Reasons of freezes that happen once per process or policy."""


def collector_mode() -> int:
    """How this interpreter's generations read: 0 generational, 1 incremental (CPython 3.14.0 to 3.14.4)."""
    return _INCREMENTAL if sys.version_info[:2] == (3, 14) and gc.get_threshold()[2] == 0 else _GENERATIONAL


@dataclass(frozen=True, slots=True)
class Freeze:
    """What one freeze did.

    ``seconds`` is the whole pause, ``collected`` the objects its two passes freed, ``unfrozen`` whether what had
    been frozen before was looked at again.
    """

    seconds: float
    collected: int
    unfrozen: bool
    reason: str


@dataclass(slots=True)
class FreezeState:
    """Where the policy stands: done at start-up, done after warm-up, or still waiting for a moment without streams.

    done: the last KEPT_FREEZES freezes. made: how many there were.
    """

    startup_done: bool = False
    warm_at: float | None = None  # when the warm-up requests were seen to have come (monotonic seconds)
    warm_done: bool = False
    freezing: bool = False  # on another thread, as readers see it meanwhile
    gave_up: bool = False
    done: list[Freeze] = field(default_factory=list)
    made: int = 0


class GCHook:
    """Brackets ``gc.callbacks`` and keeps the freeze policy of one process."""

    def __init__(self, core: _hot.Core, policy: str, warn: Callable[[str], object] = lambda sentence: None) -> None:
        self.core = core
        self.policy = policy
        self.reason = ""  # of gc="auto" for this policy: a name in interference.WHYS
        self.idle_gc = IdleGC(core, warn)
        self.thresholds = self.idle_gc.thresholds
        self.state = FreezeState()
        self.interference = Interference(core)
        self.external_freezes = 0
        self.external_unfreezes = 0
        self.frozen_before = 0
        self.frozen = 0  # objects, an estimate
        self._frozen_when_examined = 0  # those left by the last collection of all objects
        self._first: Callable[[str, dict[str, int]], None] = core.gc_first
        self._last: Callable[[str, dict[str, int]], None] = core.gc_last
        self._callbacks: list[Any] = gc.callbacks  # the list itself: other code may put another under its name
        self._originals: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        self._attached = False

    def attach(self) -> None:
        """Put the brackets into ``gc.callbacks`` and watch for other people's freezes."""
        if self._attached:
            return
        self._callbacks = gc.callbacks
        self.frozen_before = gc.get_freeze_count()  # O(frozen objects): here, before traffic, and never again
        self.core.watch_gc(collector_mode(), self._callbacks, self._last)
        self.core.heap_is_frozen(self.frozen_before)
        self._attached = True
        self._bracket()
        self._wrap("freeze", self._saw_freeze, self._freeze_of_others)
        self._wrap("unfreeze", self._saw_unfreeze, self._unfreeze_of_others)
        for name in COUNTED_AFTER:
            self._wrap_counted(name)
        self.adopt(self.policy)

    def adopt(self, policy: str, reason: str = "") -> list[str]:
        """Another policy from now on. Returns what could not be undone of the one before, a sentence each."""
        report = self.idle_gc.disengage() if policy != "idle" else []
        self.policy, self.reason = policy, reason
        if policy == "freeze" and self.state.done and self._attached:
            self.thresholds.after_freeze(self.frozen)
        if policy == "idle" and self._attached and not self.idle_gc.mode:
            self.idle_gc.prepare()
            self.state.gave_up = False
        self.publish()
        return report

    @property
    def lags(self) -> bool:
        """Whether a policy was adopted after the freeze, and is to be engaged with another one."""
        adopted = self.policy == "idle" and self._attached and not self.idle_gc.engaged
        return adopted and bool(self.state.done)

    @property
    def host_froze(self) -> bool:
        """Whether other code has frozen its heap."""
        return self.frozen_before > INTERPRETER_FROZEN or self.external_freezes > self.external_unfreezes

    @property
    def has_grown(self) -> bool:
        """Whether a full collection is due soon, as the heap has grown since the freeze. Another freeze does the same
        work at a moment without streams, and the next one begins from zero."""
        if self.policy != "freeze" or not self.state.warm_done or not self.state.done:
            return False
        unfrozen = self.core.unfrozen
        return unfrozen is not None and unfrozen > max(GROWN_LEAST, self.frozen // GROWN_SHARE)

    def follow_growth(self) -> None:
        """Keep full collections as rare as without the freeze; called by the daemon, four times a second."""
        promoted, unfrozen = self.core.promoted, self.core.unfrozen
        if promoted is None or unfrozen is None or self.policy != "freeze" or not (self._attached and self.frozen):
            return
        if collector_mode() == _GENERATIONAL:
            self.thresholds.follow(self.frozen + max(0, unfrozen - promoted), promoted)

    def detach(self) -> list[str]:
        """Take everything out again. Returns what could not be undone, a sentence each."""
        report = self.idle_gc.disengage()
        report += self._thaw() if self.state.done else []
        self.state = FreezeState()
        if self._attached:
            self._attached = False
            report += [sentence for name in list(self._originals) if (sentence := self._unwrap(name))]
            self._callbacks[:] = self._others()
            self.core.cancel_pause()
        self.publish()
        return report

    def publish(self) -> None:
        """Write to the segment what the policy is."""
        known = self._attached or self.policy == "off"
        mode = self.idle_gc.mode if self.idle_gc.engaged else ""
        why = WHYS.index(self.idle_gc.reason or self.reason)
        self.core.policy_is(POLICIES.index(self.policy if known else "unknown"), MODES.index(mode), why)

    def verify(self) -> bool:
        """Put the brackets back to both ends where other code moved or removed them. False: they had to be."""
        callbacks = self._callbacks
        if not self._attached or (len(callbacks) > 1 and callbacks[0] is self._first and callbacks[-1] is self._last):
            return True
        missing = self._first not in callbacks or self._last not in callbacks
        if missing:
            self.core.cancel_pause()
            self.interference.saw("callbacks")
        self._bracket()
        return not missing

    def freeze(self, *, reason: str = _REQUESTED) -> Freeze:
        """Collect, freeze, collect, now, on this thread: a pause of cause ``gc_own``."""
        return self._freeze(reason, unfreeze=False)

    def refreeze(self) -> Freeze:
        """The same after an unfreeze, so that what died while it was frozen is freed: a pass over the whole heap."""
        return self._freeze(_REQUESTED, unfreeze=True)

    def _freeze(self, reason: str, *, unfreeze: bool) -> Freeze:
        self.core.policy_begin()
        try:
            if unfreeze:
                self._original("unfreeze")()
                self.idle_gc.slicer.forget()
            collected = gc.collect()
            survivors = self.core.unfrozen
            if self._attached or reason == _REQUESTED:  # a pass takes long, and uninstall() may not have waited for it
                self.idle_gc.freeze(self._original("freeze"))
            collected += gc.collect()
            self._count_frozen(survivors, unfreeze)
        finally:
            paused_ns = self.core.policy_end()
        result = Freeze((paused_ns or 0) / 1e9, collected, unfreeze, reason)
        self.state.done.append(result)
        self.state.made += 1
        del self.state.done[:-KEPT_FREEZES]
        self.core.count_freeze()
        if self.policy == "idle" and self._attached:
            self.idle_gc.engage()
        elif self.policy == "freeze" and self._attached and collector_mode() == _GENERATIONAL:
            self.thresholds.after_freeze(self.frozen)
        self.publish()
        return result

    def _count_frozen(self, survivors: int | None, unfrozen: bool) -> None:
        """survivors: of the collection before the freeze; None: not known. unfrozen: nothing was frozen then."""
        if survivors is None or not self.frozen:
            self.frozen = gc.get_freeze_count()  # visits each object
        else:
            self.frozen = survivors if unfrozen else self.frozen + survivors
        if unfrozen or not self._frozen_when_examined:
            self._frozen_when_examined = self.frozen

    def engage_now(self) -> None:
        """Begin idle-time collection without a freeze of our own: closures stop at what is frozen now, 30 ns each."""
        self.core.policy_begin()
        try:
            self.idle_gc.sync_frozen()
        finally:
            self.core.policy_end()
        self.idle_gc.engage()
        self.publish()

    def after_fork(self) -> None:
        """In a child: what the parent froze is frozen here too, and what others did there is its own affair."""
        self.state.freezing = False
        self.interference = Interference(self.core)
        self.idle_gc.after_fork()
        self.publish()

    def on_startup(self) -> None:
        """The app is about to take traffic: the first freeze."""
        if self.policy in FREEZING and self._attached and not self.state.startup_done:
            self.state.startup_done = True
            self.freeze(reason=_STARTUP)

    def on_group_startup(self) -> None:
        """The group's server is about to be ready, and no request has come: the first freeze of a process without an
        app. on_startup() is that of one with an app."""
        if self.policy in FREEZING and self._attached and not self.state.startup_done:
            self.state.startup_done = True
            self._freeze_idle("start-up")

    def start_over(self) -> None:
        """An app came after all: what was frozen while others served is not yet what it will load at its start-up."""
        self.state.startup_done = self.state.warm_done = self.state.gave_up = False
        self.state.warm_at = None

    def on_idle(self, opened: int | None = None) -> None:
        """No stream is in flight: freeze what start-up missed, and once more after warm-up, if still wanted.

        opened: requests so far, of the streams this process works for; its own by default.
        Inside a collection or a slice nothing is frozen, as no collection can come before it: the next moment is used.
        """
        if self.core.paused_now():
            return
        state = self.state
        opened = self.core.opened if opened is None else opened
        if self.lags:
            self._freeze_idle(_ADOPTED)
        elif self.has_grown:
            doubled = self.frozen >= 2 * self._frozen_when_examined
            self._freeze_idle(_GROWTH, unfreeze=doubled and not self.host_froze)
        if self.idle_gc.is_to_be_tested:
            self.idle_gc.test_again()
            self.publish()
        if state.warm_done or state.gave_up or self.policy not in FREEZING or not self._attached:
            return
        if not state.startup_done:
            state.startup_done = True
            state.warm_done = opened >= WARM_REQUESTS
            self._freeze_idle(_FIRST_IDLE)
        elif opened >= WARM_REQUESTS:
            state.warm_done = True
            self._freeze_idle(_WARM)

    def expire(self, opened: int | None = None) -> None:
        """Stop waiting for a moment without streams once patience is spent: we never stop a stream in flight. opened:
        as in on_idle()."""
        state = self.state
        opened = self.core.opened if opened is None else opened
        if state.warm_done or opened < WARM_REQUESTS:
            return
        if state.warm_at is None:
            state.warm_at = time.monotonic()
        elif time.monotonic() - state.warm_at > WARM_PATIENCE_SECONDS:
            state.gave_up = True

    @property
    def waiting(self) -> bool:
        """Whether a freeze is still wanted, or not yet over; or a self-test to be repeated."""
        freezes = self.state.freezing or not self.state.warm_done or self.lags
        return self.policy in FREEZING and (freezes or self.idle_gc.is_to_be_tested)

    def _freeze_idle(self, reason: str, *, unfreeze: bool = False) -> None:
        self.state.freezing = True
        try:
            if unfreeze:
                self._freeze(reason, unfreeze=True)
            else:
                self.freeze(reason=reason)
        finally:
            self.state.freezing = False

    def _bracket(self) -> None:
        self._callbacks[:] = [self._first, *self._others(), self._last]

    def _others(self) -> list[Any]:
        return [each for each in self._callbacks if each not in (self._first, self._last)]

    def _wrap(self, name: str, saw: Callable[[], None], do: Callable[[Callable[[], None]], None]) -> None:
        original: Callable[[], None] = getattr(gc, name)

        def watched() -> None:
            saw()
            do(original)

        watched.__name__ = watched.__qualname__ = name
        watched.__doc__ = original.__doc__
        self._originals[name] = (original, watched)
        setattr(gc, name, watched)

    def _wrap_counted(self, name: str) -> None:
        original: Callable[..., object] = getattr(gc, name)

        def watched(*args: Any) -> object:
            result = original(*args)
            self.interference.saw(name)
            return result

        watched.__name__ = watched.__qualname__ = name
        watched.__doc__ = original.__doc__
        self._originals[name] = (original, watched)
        setattr(gc, name, watched)

    def _unwrap(self, name: str) -> str | None:
        original, ours = self._originals.pop(name)
        if getattr(gc, name) is ours:
            setattr(gc, name, original)
            return None
        return f"gc.{name} was wrapped by other code after us: our wrapper stays inside theirs and only counts"

    def _original(self, name: str) -> Callable[[], None]:
        wrapped: Any = self._originals.get(name)
        return wrapped[0] if wrapped else getattr(gc, name)  # type: ignore[no-any-return]

    def _freeze_of_others(self, original: Callable[[], None]) -> None:
        """Theirs, completed: closures stop at what they froze, and, as after ours, a pass that finds few makes the next
        full one small."""
        if self.policy != "idle" or not self._attached:
            original()
            self.core.heap_is_frozen(MOST_OBJECTS)
            return
        self.core.policy_begin()
        try:
            self.idle_gc.freeze(original)
            if self.idle_gc.engaged:
                gc.collect()
        finally:
            self.core.policy_end()
            self.idle_gc.memory_limit.frozen()

    def _unfreeze_of_others(self, original: Callable[[], None]) -> None:
        """Everything is to be swept again."""
        original()
        self.core.heap_is_frozen(0)
        self.frozen = self._frozen_when_examined = 0
        if self.policy == "freeze":
            self.thresholds.after_freeze(0)
        self.idle_gc.slicer.forget()

    def look_for_freeze(self) -> None:
        """Code that took gc.freeze before us calls it past us: what it froze stands among the frozen."""
        if self.idle_gc.engaged and self._attached and self.idle_gc.sync_frozen():
            self._saw_freeze()
            self.idle_gc.memory_limit.frozen()

    def _saw_freeze(self) -> None:
        self.external_freezes += 1
        self.interference.saw_freeze()

    def _saw_unfreeze(self) -> None:
        self.external_unfreezes += 1
        self.interference.saw("unfreeze")

    def _thaw(self) -> list[str]:
        if not self._attached:
            return ["the heap stays frozen: without our hook it is not known whether others froze objects too"]
        if self.frozen_before > INTERPRETER_FROZEN or self.external_freezes:
            return ["the heap stays frozen: others froze objects too, and unfreezing would undo theirs"]
        self._original("unfreeze")()
        return []
