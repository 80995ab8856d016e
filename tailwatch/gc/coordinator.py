"""Schedules the freeze, the slices and the collections of one process.

Requests, engine steps, event loops and the daemon have idle slots; the coordinator passes them to the policy
(gc/hook.py, gc/idle.py) and to the commands of `tailwatch gc` (gc/remote_commands.py). A process without streams of its
own, such as an engine, asks its group whether any is in flight.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from tailwatch import _hot
from tailwatch.errors import BusyError
from tailwatch.gc import remote_commands
from tailwatch.gc.auto import AutoPolicy
from tailwatch.gc.capabilities import CHOICES
from tailwatch.gc.hook import Freeze, GCHook
from tailwatch.gc.idle import SAFETY_NET
from tailwatch.gc.idle_hooks import running_loop
from tailwatch.gc.memory_limit import MemoryLimit

FREEZE_PATIENCE_SECONDS = 5.0
_SILENCE_SECONDS = 0.005
AUTO = "auto"
_FIRST = "freeze"  # of gc="auto"
_ERROR_GC_HOOK, _ERROR_POLICY = 1, 2  # as csrc/include/tailwatch/record/enums.h numbers them


class Group(Protocol):
    """The processes that one works with: tailwatch.group.membership."""

    @property
    def joined(self) -> bool:
        """Whether the numbers of this process are shared."""

    @property
    def directory(self) -> str:
        """Where they are shared; "": nowhere."""

    def load(self) -> tuple[int, int]:
        """Streams in flight, and opened so far."""

    def server_starts(self) -> bool:
        """Whether a server waits for the first freeze of this process."""


class GCCoordinator:
    """Of one process.

    Args:
        core: its counters.
        policy: the option ``gc``. memory_limit: the option ``gc_memory_limit``.
        group: whose streams count where this process has none.
        serves: whether this process has an app of its own.
        note: takes a sentence for the doctor; warn: takes one that is logged, too.
        pauses: lengths of the pauses that ended since its last call, seconds.
    """

    def __init__(
        self,
        core: _hot.Core,
        policy: str,
        memory_limit: MemoryLimit,
        group: Group,
        serves: Callable[[], bool],
        note: Callable[[str], object],
        warn: Callable[[str], object],
        pauses: Callable[[], Iterable[float]],
    ) -> None:
        self.hook = GCHook(core, _FIRST if policy == AUTO else policy, warn)
        self._pauses = pauses
        self.auto: AutoPolicy | None = None
        self._core = core
        self._group = group
        self._serves = serves
        self._note = note
        self._warn = warn
        self._warned_of_slots = False
        self._choose(policy)
        idle_gc = self.hook.idle_gc
        idle_gc.memory_limit.memory_limit = memory_limit
        actions = remote_commands.CommandActions(
            no_stream_waits=lambda: self.no_stream_waits() and not core.paused_now(),  # nothing is collected in one
            act=self._carry_out,
            begin_round=idle_gc.begin_round,
            round_over=idle_gc.round_over,
            hand_over=idle_gc.loops.call_soon,
            answer=core.policy_answer,
            failed=lambda: core.count_error(_ERROR_POLICY),
        )
        self.commands = remote_commands.CommandServer(
            remote_commands.CommandFile(self._command_path, core.count_ignored), actions
        )
        self._note_memory_limit(policy)

    def attach(self) -> None:
        """Hook the collector, unless the policy is "off"."""
        if self.hook.policy != "off":
            self.hook.attach()
        self.hook.publish()

    def adopt(self, policy: str, memory_limit: MemoryLimit) -> None:
        """Another policy and another memory_limit from now on."""
        changed = policy != self.option
        if changed:
            active = _FIRST if policy == AUTO else policy
            for sentence in self.hook.adopt(active) + (self.hook.detach() if policy == "off" else []):
                self._note(sentence)
            if policy != "off":
                self.hook.attach()
            if self.hook.lags and self.no_stream_waits():
                self.hook.on_idle()
            self._choose(policy)
        limit = self.hook.idle_gc.memory_limit
        if changed or memory_limit != limit.memory_limit:
            limit.memory_limit = memory_limit
            self._note_memory_limit(policy)

    @property
    def option(self) -> str:
        """The option ``gc``."""
        return AUTO if self.auto else self.hook.policy

    @property
    def why(self) -> str:
        """With gc="auto", the reason for the policy in force, a sentence; else ""."""
        return CHOICES.get(self.hook.reason, "")

    @property
    def measured(self) -> dict[str, float]:
        """With gc="auto", the mean wait for a pause under each policy that was tried, seconds."""
        return dict(self.auto.measured) if self.auto else {}

    def _choose(self, policy: str) -> None:
        self.auto = AutoPolicy(self.hook, self._pauses, self.no_stream_waits) if policy == AUTO else None

    def detach(self) -> list[str]:
        """Take everything out again. Returns what could not be undone, a sentence each."""
        self.commands.file.close()
        return self.hook.detach()

    def after_fork(self) -> None:
        """In a child: commands are its parent's."""
        self.hook.after_fork()
        self.commands.after_fork()

    # ---- idle slots ----

    def on_startup(self) -> None:
        """The app is about to take traffic."""
        self.hook.idle_gc.loops.remember()
        if self.auto:
            self.auto.on_startup()
        self.hook.on_startup()

    def on_request(self) -> None:
        """A request has come in."""
        if self.hook.idle_gc.engaged:
            self.hook.idle_gc.use_loop()

    def on_idle(self) -> None:
        """The last request in flight has ended."""
        if self.hook.waiting or self.hook.has_grown:  # every request that ends alone comes by here
            self._guarded(self.hook.on_idle)
        if self.hook.idle_gc.engaged:
            self._guarded(self.hook.idle_gc.on_idle)
        if self.commands.waiting:
            self.commands.run_waiting()

    def check(self) -> None:
        """Called by the daemon, once a second: puts our callbacks back, and looks for freezes by other code."""
        hook = self.hook
        if hook.policy != "off" and not hook.verify():
            self._core.count_error(_ERROR_GC_HOOK)
        hook.look_for_freeze()
        self._core.count_heap()
        hook.expire(self._freeze_when_quiet())
        if self.auto:
            self.auto.turn(time.monotonic())

    def turn(self) -> None:
        """Called by the daemon, four times a second: idle slots of its own, and what is to be forced."""
        self._freeze_with_group()
        self.hook.follow_growth()
        idle_gc = self.hook.idle_gc
        if not idle_gc.engaged:
            return
        idle_gc.loops.find(idle_gc.use_loop)
        idle_gc.memory_limit.look(time.monotonic())
        idle_gc.turn(self.no_stream_waits)
        idle_gc.step_together(self._core.peers() > 0)
        if self._serves() or self._core.load()[1] > 0:  # it would see a request that waits
            if idle_gc.is_due and self.no_stream_waits():
                idle_gc.on_idle(daemon=True)
        elif not self._core.steps_ended and not idle_gc.loops.any_used and idle_gc.is_due and not self._warned_of_slots:
            self._warned_of_slots = True
            self._warn(
                "gc='idle': this process has no request, no engine step and no event loop, so no idle slot is found; "
                f"the interpreter's own collections run every {SAFETY_NET} new objects"
            )

    def no_stream_waits(self) -> bool:
        """Whether no stream is in flight that would stand still with this process: its own; of a process that has none,
        such as an engine, those of its group."""
        if self._core.opened or self._serves() or not self._group.joined:
            return self._core.in_flight == 0
        return self._group.load()[0] == 0

    # ---- what users ask ----

    def refreeze(self, timeout: float) -> Freeze:
        """Unfreezes, collects, freezes, collects, on this thread, once no stream is in flight, for which it waits for
        timeout seconds.

        Raises:
            BusyError: streams are in flight until then. An event loop on this thread cannot wait for its own.
        """
        until = time.monotonic() + timeout
        while not self.no_stream_waits():
            looping = running_loop() is not None
            if looping or time.monotonic() >= until:
                in_flight = self._core.in_flight or self._group.load()[0]
                waited = (
                    "This thread runs an event loop and cannot wait for them: "
                    "await asyncio.to_thread(tailwatch.refreeze)"
                    if looping
                    else f"Waited {timeout:g} s for an idle moment; retry later or raise timeout=."
                )
                requests = "1 request is" if in_flight == 1 else f"{in_flight} requests are"
                raise BusyError(f"refreeze(): {requests} in flight and would stall. {waited}")
            time.sleep(_SILENCE_SECONDS)
        return self.hook.refreeze()

    def _freeze_when_quiet(self) -> int:
        """A process without streams of its own freezes when its group has none. Returns how many requests it has worked
        for."""
        opened = self._core.opened
        if opened or self._serves() or not (self.hook.waiting or self.hook.has_grown):
            return opened
        in_flight, opened = self._group.load()
        if opened and not in_flight:
            self._guarded(lambda: self.hook.on_idle(opened))
        return opened

    def _freeze_with_group(self) -> None:
        """A process without streams of its own makes its first freeze when a server of its group has made that of its
        start-up, which is not ready before (asgi/middleware.py)."""
        hook = self.hook
        if hook.state.startup_done or not hook.waiting or self._core.opened or self._serves():
            return
        if self._group.server_starts() and self._group.load() == (0, 0):
            self._guarded(hook.on_group_startup)

    def _guarded(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception:
            self._core.count_error(_ERROR_POLICY)

    def _note_memory_limit(self, policy: str) -> None:
        memory_limit = self.hook.idle_gc.memory_limit.memory_limit
        if memory_limit and policy not in ("idle", AUTO):
            self._note(
                f"gc_memory_limit={str(memory_limit)!r} has no effect with gc={policy!r}: it forces the "
                "collections of gc='idle'"
            )

    # ---- commands of an operator ----

    def _command_path(self) -> str:
        wanted = self.hook.policy not in ("off", "observe")
        name = remote_commands.name_of(self._core.file) if wanted else ""
        return os.path.join(self._group.directory, name) if name and self._group.directory else ""

    def _carry_out(self, verb: str) -> tuple[float, int]:
        if verb == remote_commands.FREEZE:
            done = self.hook.refreeze()
            return done.seconds, done.collected
        began = time.monotonic()
        freed = self.hook.idle_gc.whole_pass()
        return time.monotonic() - began, freed
