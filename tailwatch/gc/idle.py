"""Collections when no request waits: the old heap is examined in slices, in idle slots between what the server does.

``gc="idle"``. The freeze is as with ``gc="freeze"``; afterwards the interpreter's own collections are a safety
net only, far away, and what is allocated later is judged in slices of some tenths of a millisecond, when a loop waits
for events, after an engine's step, or when the last request has ended. A slice is a pause of cause ``gc_own``. How the
dead are found: csrc/python/gc/cycle_detect.h.

The slicer proves itself before it is used: a planted cycle must die, a living structure must not, in slices that are
given where to look (IdleGC.prepare) and, after the first freeze, in a whole round (IdleGC.engage).
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from tailwatch import _hot
from tailwatch.gc.capabilities import KNOWN_LISTS
from tailwatch.gc.idle_hooks import LoopHooks, wake
from tailwatch.gc.memory_limit import NOTHING, PASS, SLICES, MemoryLimitWatch
from tailwatch.gc.thresholds import Thresholds

# Net new objects until the interpreter collects by itself: no idle slot came for long.
SAFETY_NET = 100_000

_WHY = {
    "": "",
    "version": f"the collector's lists of Python {sys.version_info[0]}.{sys.version_info[1]} are not known",
    "lists": "the collector's lists are not where this version has them",
    "proof": "its start-up self-test failed",
}
_DISTURBED = ("lists", "proof")  # of these reasons, what may be another thread's doing
_LOOK = 1 << 22  # objects walked to see which list one is in: a server's heap before its first freeze
_PASS_SECONDS = 1.0
_ROUND_SECONDS = 5.0
SLICE_REASONS = ("idle", "step", "request_end", "overdue", "memory_limit", "requested")
_IDLE, _REQUEST_END = SLICE_REASONS.index("idle"), SLICE_REASONS.index("request_end")
_MEMORY_LIMIT, _REQUESTED = SLICE_REASONS.index("memory_limit"), SLICE_REASONS.index("requested")
_YOUNG = 700  # new objects that are worth a pass
_FAR = 1 << 30  # collections until the interpreter looks at older objects: never
_PROOF_SLICES, _PROOF_LOOKS = 100, 100_000  # for a round over some 400 thousand objects
_TESTS, _TEST_SECONDS = 8, 1.0  # times that a self-test other threads disturbed is repeated; the time between two
_REST_SECONDS = 1.0  # for which a cycle may rest: the dead that it puts in order are held meanwhile
_END_SLICES, _END_LOOKS = 40, 16_000  # by which the daemon brings one to its end: 10 ms or so
_SETTLED = 2000  # looks at old objects that are not worth a slice
# Ranks of one engine that step together make their slices after the first step that ends in a slot of the clock, about
# as long as so many steps: each finds which one that is without asking the others.
RANKS_EVERY = 4
_USER = "gc"  # of the loops' hooks
_collect = gc.collect
_get_threshold = gc.get_threshold


class IdleGC:
    """The policy gc="idle" of one process. ``warn`` takes a sentence about a part that does not work here."""

    def __init__(self, core: _hot.Core, warn: Callable[[str], object]) -> None:
        self._core = core
        self._warn = warn
        self.thresholds = Thresholds()
        self.slicer = _hot.Slicer(core, _collect)
        self.mode = self.why = self.reason = ""  # reason: a name for why
        self.collections = 0
        self.engaged = False  # the freeze was made, and nothing was uninstalled
        self._next_pass = self._next_round = 0.0
        self._proved = False
        self._tests_left, self._next_test = 0, 0.0
        self._made, self._made_at = 0, 0.0  # slices, as the daemon saw them last; when there were more
        self._was_enabled = True
        self._freed_before_round = self._rounds_before = 0
        self.loops = LoopHooks(self.slicer)
        self._pass_wanted = False
        self.memory_limit = MemoryLimitWatch(
            objects=self._unfrozen,
            force=self._force,
            pending=self._forced,
            settled=lambda: self._is_settled(self.slicer.counts()),
            whole=lambda: self.whole_pass(_MEMORY_LIMIT),
            met=self._met,
            warn=warn,
        )

    # ---- before traffic ----

    def prepare(self) -> None:
        """See whether slices work in this interpreter: before traffic, some milliseconds and two small collections."""
        self._tests_left = _TESTS
        self._test()

    def _test(self) -> None:
        self._proved = False
        self._core.policy_begin()
        try:
            reason = self._prove() if sys.version_info[:2] in KNOWN_LISTS else "version"
        finally:
            self._core.policy_end()
        if reason:
            self._fall_back(reason, _WHY[reason])
        else:
            self.mode, self.reason, self.why = "slices", "", ""

    @property
    def is_to_be_tested(self) -> bool:
        """Whether the self-test is to be repeated: a collection by another thread in the midst of it makes it fail."""
        failed = self.reason in _DISTURBED and self._tests_left > 0
        return failed and time.monotonic() >= self._next_test

    def test_again(self) -> None:
        """The self-test once more, at a quiet moment: slices from now on if it passes."""
        self._tests_left -= 1
        self._test()
        if self.mode == "slices":
            self.sync_frozen()
            if self.engaged:
                self.engage()
        if self.mode == "slices":
            self._warn("gc='idle': slices are enabled: the self-test has passed now")

    def freeze(self, freeze: Callable[[], object]) -> None:
        """Call gc.freeze, as given. Closures stop at what it froze from now on: 10 ns for each object, once."""
        if self.mode == "slices":
            self._learn(lambda: self.slicer.freeze(freeze))
        else:
            freeze()

    def sync_frozen(self) -> int:
        """How many objects were frozen past our hook: closures stop at them from now on. O(1) where there are none."""
        return self._learn(self.slicer.sync_frozen) if self.mode == "slices" else 0

    def _learn(self, learn: Callable[[], int]) -> int:
        try:
            return learn()
        except MemoryError:  # closures would not stop at what is frozen
            self._fall_back("", "out of memory for the set of frozen objects")
            return 0

    def engage(self) -> None:
        """From now on: idle slots are used, and the interpreter's own collections are far away. The first time a whole
        round is tried out, over what is not frozen."""
        if not self.engaged:
            self._was_enabled = gc.isenabled()
        self.engaged = True
        if self.mode == "slices" and not self._proved:
            self._core.policy_begin()
            try:
                self._prove_round()
            finally:
                self._core.policy_end()
        self._spread_net(old=True)
        self._made_at = time.monotonic()
        self.slicer.on = self.mode == "slices"
        self.memory_limit.frozen()

    def _spread_net(self, *, old: bool) -> None:
        """The interpreter's own collections are far away. old: those of older objects come after as many of the
        youngest as ever, ours not counted: each collection of ours brings them nearer. Else never: slices do that."""
        _, middle, full = self.thresholds.before
        if old:
            self.thresholds.set(SAFETY_NET, gc.get_count()[1] + middle, full)
        else:
            self.thresholds.set(SAFETY_NET, _FAR, _FAR)

    def _fall_back(self, reason: str, why: str) -> None:
        known = self.mode == "full collections"
        self.mode, self.reason, self.why = "full collections", reason, why
        self.slicer.on = False
        self._next_test = time.monotonic() + _TEST_SECONDS
        if not known:
            self._warn(
                f"gc='idle': slices are disabled: {why}. Full collections of unfrozen objects are used instead, while "
                "no stream waits"
            )

    # ---- idle slots ----

    def use_loop(self) -> None:
        """Use the waiting of the loop that runs in this thread, if one does. One without idle slots is logged once."""
        if why := self.loops.use(_USER):
            self._warn(f"gc='idle': {why}; slices run only between steps and after the last request has ended")

    def on_idle(self, *, daemon: bool = False) -> None:
        """The last request has ended; or (daemon) none is in flight, which the daemon sees. No stream waits: what died
        since the slicer last came by is looked for, now and then. A loop with idle slots runs slices as it waits next:
        its callbacks come first. Here it is done for plain threads, and loops that give none."""
        if self.slicer.on:
            if not daemon and (now := time.monotonic()) >= self._next_round:
                self._next_round = now + _ROUND_SECONDS
                self.slicer.round()
            if not self._loop_runs_slices(daemon):
                self.slicer.run_idle(daemon)
        elif self._pass_wanted:
            self._pass_wanted = False
            self.whole_pass(_MEMORY_LIMIT)
        elif self.engaged and time.monotonic() >= self._next_pass and gc.get_count()[0] >= _YOUNG:
            self._whole_pass()

    def _loop_runs_slices(self, daemon: bool) -> bool:
        """Whether a loop that runs has idle slots. The daemon wakes it: it may have begun to wait long ago."""
        running = self.loops.running()
        return any([wake(loop) for loop in running]) if daemon else bool(running)

    def turn(self, no_stream_waits: Callable[[], bool]) -> None:
        """Called by the daemon, four times a second: what the idle slots that came, or did not, ask for."""
        if not self.slicer.on:
            return
        now, made = time.monotonic(), self._slices()
        if made != self._made:
            self._made, self._made_at = made, now
        quiet = now - self._made_at > _REST_SECONDS
        net = self.thresholds.ours
        if net and not self.thresholds.changed and (not quiet or self.slicer.due) and quiet != (net[1] != _FAR):
            self._spread_net(old=quiet)
        if quiet and self.slicer.midway:
            self._end_round(no_stream_waits)

    def _slices(self) -> int:
        counts = self.slicer.counts()
        return sum(counts[name] for name in SLICE_REASONS if name != "requested")

    def _end_round(self, no_stream_waits: Callable[[], bool]) -> None:
        """One that rests for long holds an object: it is brought to its end, or, where a stream waits, given up."""
        for _ in range(_END_SLICES):
            if not self.slicer.midway or not no_stream_waits():
                break
            self.slicer.slice(_END_LOOKS, None, _IDLE)
            time.sleep(0)  # others first
        else:
            return
        self.slicer.abandon()

    @property
    def is_due(self) -> bool:
        """Whether there is anything to do in an idle slot."""
        return self.slicer.due if self.slicer.on else self._pass_wanted or gc.get_count()[0] >= _YOUNG

    def whole_pass(self, reason: int = _REQUESTED) -> int:
        """Of what is not frozen, now, on this thread: a pause of cause ``gc_own``. Returns objects freed."""
        return self.slicer.whole(reason) or 0

    def begin_round(self) -> bool:
        """Have the whole old heap examined, in slices, in idle slots. False: it cannot be."""
        if not self.slicer.on:
            return False
        counts = self.slicer.counts()
        self._freed_before_round, self._rounds_before = counts["freed"], counts["cycles"] + counts["whole"]
        self.slicer.round()
        return True

    def round_over(self) -> int | None:
        """Objects freed since begin_round(), once nothing is left of it: the round that was under way then, and a whole
        one, are over."""
        counts = self.slicer.counts()
        over = counts["cycles"] > self._rounds_before and counts["uncollected"] == 0
        return counts["freed"] - self._freed_before_round if over or self._is_settled(counts) else None

    @staticmethod
    def _is_settled(counts: dict[str, int]) -> bool:
        """Whether nothing is left to do that was due."""
        return counts["backlog"] < _SETTLED and counts["uncollected"] == 0

    def step_together(self, ranks: bool) -> None:
        """Whether other processes of the group take the same steps at the same time."""
        self.slicer.every = RANKS_EVERY if ranks else 1

    def after_fork(self) -> None:
        """In a child: what it does is counted from zero; its heap is frozen as its parent's is."""
        self.slicer.after_fork()
        self._made = 0
        self.memory_limit.calm()
        self.collections = self.memory_limit.episodes = 0

    # ---- the memory limit ----

    def _unfrozen(self) -> int | None:
        if not self.slicer.on:
            return self._core.unfrozen
        counts = self.slicer.counts()
        return counts["old"] + counts["young"]

    def _force(self, what: int) -> bool:
        """What idle slots are used for. Where there are no slices only a whole pass can be had."""
        if self.slicer.on:
            if what == SLICES:
                self.slicer.round()
            self.slicer.force = what
            return True
        self._pass_wanted = what == PASS
        return what != SLICES

    def _forced(self) -> int:
        return self.slicer.force if self.slicer.on else PASS if self._pass_wanted else NOTHING

    def _met(self, which: int, sentence: str) -> None:
        self._core.count_memory_limit(which)
        self._warn(sentence)

    def _whole_pass(self) -> None:
        """Of what is not frozen, and at most a fiftieth of the time."""
        began = time.monotonic()
        freed = 0
        self._core.policy_begin()
        try:
            freed = _collect()
        finally:
            self._core.policy_end()
        ended = time.monotonic()
        self.collections += 1
        self._core.count_full_collection(_REQUEST_END, int((ended - began) * 1e9), freed)
        self._next_pass = ended + max(_PASS_SECONDS, 50 * (ended - began))

    def heap(self) -> dict[str, int]:
        """Objects not frozen (an estimate) and frozen, and the backlog in visits, now."""
        counts = self.slicer.counts()
        return {
            "unfrozen": counts["old"] + counts["young"],
            "frozen": self.slicer.frozen,
            "backlog": counts["backlog"],
        }

    def interference(self) -> list[str]:
        """Changes of the collector by other code that are in force now, a sentence each."""
        found = []
        if self.engaged and gc.isenabled() != self._was_enabled:
            found.append(f"other code switched automatic collection {'on' if gc.isenabled() else 'off'}")
        if self.engaged and self.thresholds.changed:
            found.append(f"the gc thresholds are {_get_threshold()}; tailwatch set them to {self.thresholds.ours}")
        return found

    # ---- undo ----

    def disengage(self) -> list[str]:
        """Everything as it was. Returns what could not be undone, a sentence each."""
        self.memory_limit.calm()
        self.slicer.on = self.engaged = False
        self.mode = self.why = self.reason = ""
        report = self.loops.release(_USER)
        report += self.thresholds.restore()
        self.slicer.forget()
        return report

    # ---- proof ----

    def _prove(self) -> str:
        """Why it does not work here, a name; "" where it does."""
        older: list[Any] = [[]]
        _collect(0)
        _collect(1)
        aged: list[Any] = [[]]
        _collect(0)
        if not self.slicer.locate(_get_threshold(), aged, older, _LOOK):
            return "lists"
        if not _lives(self.slicer):
            return self._harms()
        return "" if _dies(self.slicer) else "proof"

    def _harms(self) -> str:
        """A living object was taken apart: slices do not work here, whatever a second test would show."""
        self._tests_left = 0
        return "proof"

    def _prove_round(self) -> None:
        """In a whole cycle, without seeds. One that does not end shows nothing: after the next freeze, then."""
        kept, gone = _planted(), weakref.ref(_planted())
        begun = self.slicer.counts()["cycles"]
        self.slicer.round()
        for _ in range(_PROOF_SLICES):
            self.slicer.slice(_PROOF_LOOKS)
            if self.slicer.counts()["cycles"] > begun:
                break
        else:
            return
        self._proved = True
        if kept.other.other is not kept:
            self._fall_back(self._harms(), _WHY["proof"])
        elif gone() is not None:
            self._fall_back("proof", _WHY["proof"])


class _Node:
    """Of a planted structure."""

    other: _Node


def _planted() -> _Node:
    one, two = _Node(), _Node()
    one.other, two.other = two, one
    _collect(0)
    _collect(1)
    return one


def _dies(slicer: _hot.Slicer) -> bool:
    seeds = [_planted()]
    gone = weakref.ref(seeds[0])
    slicer.slice(16, seeds)
    return gone() is None


def _lives(slicer: _hot.Slicer) -> bool:
    kept = _planted()
    slicer.slice(16, [kept])
    return kept.other.other is kept
