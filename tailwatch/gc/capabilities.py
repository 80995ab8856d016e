"""The collector of an interpreter, its support of gc="idle", and sentences about interference.

The functions take version numbers, so the result for any interpreter can be computed in any other.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping

INCREMENTAL = ((3, 14, 0), (3, 14, 4))
"""The first and the last CPython with the incremental collector; 3.14.5 has the generational one again."""

KNOWN_LISTS = ((3, 10), (3, 11), (3, 12), (3, 13))
"""Versions whose internal collector lists are known, so slices of the old heap are possible."""

CHOICES = {
    "start-up": "gc='auto' begins with it",
    "host-froze": "the application froze its heap itself, so a further freeze saves nothing",
    "collections": "collections made tokens wait",
    "slices": "slices of idle-time GC made tokens wait as long as the collections before them",
    "review": "the policy before idle-time GC is measured again",
    "version": "the memory layout of this Python version's collector is unknown to idle-time GC",
    "lists": "idle-time GC did not find the collector's object lists at the expected place",
    "proof": "the start-up self-test of idle-time GC failed",
}
"""Why gc="auto" has chosen the policy in force: names in gc/interference.py WHYS, and sentences."""

COUNTED_AFTER = ("enable", "disable", "set_threshold")
"""Functions of gc whose calls by other code are only counted, if they did not raise."""


def refusal(version: tuple[int, ...], *, free_threaded: bool) -> str:
    """The reason why gc="idle" is not possible in such an interpreter, a sentence; "" if it is possible.

    version: sys.version_info[:3] at least; free_threaded: a build without the GIL.
    """
    if free_threaded:
        return (
            "the collector of free-threaded CPython has no generations: each collection stops all threads and visits "
            "the whole heap, frozen or not, so collection in slices is not possible"
        )
    if INCREMENTAL[0] <= tuple(version[:3]) <= INCREMENTAL[1]:
        named = ".".join(str(part) for part in version[:3])
        return (
            f"CPython {named} has the incremental collector, whose young generation cannot take objects from a slice; "
            "CPython 3.14.5 has the generational collector again"
        )
    return ""


def refusal_here() -> str:
    """The same for this interpreter."""
    return refusal(tuple(sys.version_info[:3]), free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")))


def slices_possible() -> bool:
    """Whether this interpreter's old heap can be collected in slices."""
    return not refusal_here() and sys.version_info[:2] in KNOWN_LISTS


def interference_sentences(calls: Mapping[str, int]) -> list[str]:
    """Interference as sentences; calls: the number of calls by name."""
    found = [f"other code called gc.{name}() {_times(calls[name])}" for name in COUNTED_AFTER if calls.get(name)]
    if calls.get("freeze"):
        blind = calls.get("freeze_blind", 0)
        found.append(f"other code called gc.freeze() {_times(calls['freeze'])}{_garbage(blind)}")
    if calls.get("unfreeze"):
        found.append(f"other code called gc.unfreeze() {_times(calls['unfreeze'])}: frozen objects are collected again")
    if calls.get("callbacks"):
        found.append(f"other code removed tailwatch from gc.callbacks {_times(calls['callbacks'])}; it was added again")
    return found


def _garbage(blind: int) -> str:
    if not blind:
        return ", each right after a full collection, so almost no garbage was frozen"
    return f", {blind} of them not right after a full collection, so garbage may have been frozen"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
