"""What others do to the collector beside us: each call is let through and counted, and reported in a sentence."""

from __future__ import annotations

import gc

from tailwatch import _hot
from tailwatch.gc.capabilities import interference_sentences

# Numbers of the core's, in its order: csrc/include/tailwatch/record/gc_policy_counters.h.
POLICIES = ("unknown", "off", "observe", "freeze", "idle")
MODES = ("", "slices", "full collections")
WHYS = ("", "version", "lists", "proof", "start-up", "host-froze", "collections", "slices", "review")
CALLS = ("enable", "disable", "set_threshold", "freeze", "freeze_blind", "unfreeze", "callbacks")
MEMORY_LIMITS = ("rss", "objects")

# Objects that may have come since a full collection for a freeze to count as one right after it.
_FEW = 700


class Interference:
    """Counts what others did, in the segment and here."""

    def __init__(self, core: _hot.Core) -> None:
        self._core = core
        self.calls = dict.fromkeys(CALLS, 0)

    def saw(self, call: str) -> None:
        """Other code did this."""
        self.calls[call] += 1
        self._core.count_interference(CALLS.index(call))

    def saw_freeze(self) -> None:
        """Other code is about to freeze. What garbage it freezes along cannot be found without a collection, which is
        not ours to make here; where a full one has just been made it is next to none."""
        self.saw("freeze")
        if not (self._core.last_was_full and gc.get_count()[0] <= _FEW):
            self.saw("freeze_blind")

    def sentences(self) -> list[str]:
        """What was done, a sentence each."""
        return interference_sentences(self.calls)
