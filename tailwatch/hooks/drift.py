"""What others do to the collector beside us: each call is let through and counted, and said in a sentence."""

from __future__ import annotations

import gc
from collections.abc import Mapping

from tailwatch import _hot

# Numbers of the core's, in its order: csrc/include/tailwatch/policy.h.
POLICIES = ("unknown", "off", "observe", "freeze", "out-of-band")
MODES = ("", "sweep", "whole passes")
WHYS = ("", "version", "lists", "proof")
CALLS = ("enable", "disable", "set_threshold", "freeze", "freeze_blind", "unfreeze", "callbacks")
CEILINGS = ("rss", "objects")

COUNTED_AFTER = (
    "enable",
    "disable",
    "set_threshold",
)  # functions of gc that are only counted, where they did not raise

# Objects that may have come since a full collection for a freeze to count as one right after it.
_FEW = 700


class Drift:
    """Counts what others did, in the segment and here."""

    def __init__(self, core: _hot.Core) -> None:
        self._core = core
        self.calls = dict.fromkeys(CALLS, 0)

    def saw(self, call: str) -> None:
        """Somebody else did this."""
        self.calls[call] += 1
        self._core.count_drift(CALLS.index(call))

    def saw_freeze(self) -> None:
        """Somebody is about to freeze. What garbage he freezes with it cannot be said without a collection, which is
        not ours to make here; where a full one has just been made it is next to none."""
        self.saw("freeze")
        if not (self._core.last_was_full and gc.get_count()[0] <= _FEW):
            self.saw("freeze_blind")

    def sentences(self) -> list[str]:
        """What was done, a sentence each."""
        return drift_sentences(self.calls)


def drift_sentences(calls: Mapping[str, int]) -> list[str]:
    """What others did, a sentence each; calls: how often, by name."""
    found = [f"gc.{name}() was called {calls[name]} times, not by us" for name in COUNTED_AFTER if calls.get(name)]
    if calls.get("freeze"):
        blind = calls.get("freeze_blind", 0)
        found.append(f"gc.freeze() was called {calls['freeze']} times, not by us{_garbage(blind)}")
    if calls.get("unfreeze"):
        found.append(
            f"gc.unfreeze() was called {calls['unfreeze']} times, not by us: what was frozen is collected again"
        )
    if calls.get("callbacks"):
        found.append(f"our callbacks were taken out of gc.callbacks {calls['callbacks']} times, and put back")
    return found


def _garbage(blind: int) -> str:
    if not blind:
        return ", each right after a full collection: next to no garbage was frozen with it"
    return f", {blind} of them not right after a full collection: what garbage was frozen with it is not known"
