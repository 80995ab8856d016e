"""Which collector an interpreter has, what that means for gc="idle", and in words what others do to it.

By numbers alone, so that what another interpreter would be told can be asked in any.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping

INCREMENTAL = ((3, 14, 0), (3, 14, 4))
"""The first and the last CPython with the incremental collector; 3.14.5 has the generational one again."""

KNOWN_LISTS = ((3, 10), (3, 11), (3, 12), (3, 13))
"""Versions whose collector's lists are known: there the old heap can be swept in slices."""

COUNTED_AFTER = ("enable", "disable", "set_threshold")
"""Functions of gc that are only counted when others call them, where they did not raise."""


def refusal(version: tuple[int, ...], *, free_threaded: bool) -> str:
    """Why objects cannot be collected out of band in such an interpreter, a sentence; "" where they can.

    version: sys.version_info[:3] at least; free_threaded: a build without the GIL.
    """
    if free_threaded:
        return (
            "the collector of free-threaded CPython has no generations: every pass stops all threads and walks the "
            "whole heap, frozen or not, so nothing can be collected in slices"
        )
    if INCREMENTAL[0] <= tuple(version[:3]) <= INCREMENTAL[1]:
        named = ".".join(str(part) for part in version[:3])
        return (
            f"CPython {named} has the incremental collector, whose young generation is not what a slice could move "
            "objects to; 3.14.5 has the generational one again"
        )
    return ""


def refusal_here() -> str:
    """The same of this interpreter."""
    return refusal(tuple(sys.version_info[:3]), free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")))


def interference_sentences(calls: Mapping[str, int]) -> list[str]:
    """What others did, a sentence each; calls: how often, by name."""
    found = [f"other code called gc.{name}() {calls[name]} times" for name in COUNTED_AFTER if calls.get(name)]
    if calls.get("freeze"):
        blind = calls.get("freeze_blind", 0)
        found.append(f"other code called gc.freeze() {calls['freeze']} times{_garbage(blind)}")
    if calls.get("unfreeze"):
        found.append(f"other code called gc.unfreeze() {calls['unfreeze']} times: frozen objects are collected again")
    if calls.get("callbacks"):
        found.append(f"tailwatch's callbacks were removed from gc.callbacks {calls['callbacks']} times and put back")
    return found


def _garbage(blind: int) -> str:
    if not blind:
        return ", each right after a full collection: almost no garbage was frozen"
    return f", {blind} of them not right after a full collection: an unknown amount of garbage was frozen"
