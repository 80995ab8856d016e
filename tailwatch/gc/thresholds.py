"""The thresholds of the interpreter's own collections, while a policy is in force.

CPython makes a full collection when more than a quarter of the objects that the last one left have grown old since. It
does not count frozen objects there: after ``gc.freeze()`` a heap of millions looks empty, and 70 000 new objects can
cause a full collection. ``after_freeze`` and ``follow`` restore the interval: the number of collections of the middle
generation until a full one rises, so that a quarter of *all* objects must be new.
Source: gc_collect_generations() in Modules/gcmodule.c (Python/gc.c since 3.13).
"""

from __future__ import annotations

import gc

FULL_SHARE = 4  # of the heap, one part must be new before a full collection
_MOST = 1 << 30
_FEWEST = 3  # collections of the middle generation since the last full one, for an estimate

# As they were at import: other code may wrap them later.
_get_count = gc.get_count
_get_threshold = gc.get_threshold
_set_threshold = gc.set_threshold


class Thresholds:
    """Of one process: changes them, and restores what other code had set."""

    def __init__(self) -> None:
        self._before: tuple[int, int, int] | None = None
        self.ours: tuple[int, int, int] | None = None

    @property
    def before(self) -> tuple[int, int, int]:
        """Those of the host."""
        return self._before or _get_threshold()

    @property
    def changed(self) -> bool:
        """Whether other code has set them since."""
        return self.ours is not None and _get_threshold() != self.ours

    def set(self, young: int, middle: int, old: int) -> None:
        """Use these until restore()."""
        if self._before is None:
            self._before = _get_threshold()
        self.ours = (young, middle, old)
        _set_threshold(*self.ours)

    def after_freeze(self, frozen: int) -> None:
        """Make full collections as rare as they were before so many objects were frozen. Does nothing where other code
        has set the thresholds since, or has switched automatic collections off with them."""
        young, middle, old = self.before
        if self.changed or young <= 0:
            return
        full_after = frozen // FULL_SHARE // (young * (middle + 1))
        if full_after > old:
            self.set(young, middle, min(full_after, _MOST))
        elif self.ours is not None:
            self.set(*self.before)

    def follow(self, objects: int, promoted: int) -> None:
        """The interval by what is seen: a full collection once a quarter of all objects is new.

        objects: frozen ones and the survivors of the last full collection. promoted: that grew old since; most of what
        is allocated never does.
        """
        young, middle, old = self.before
        since = _get_count()[2]
        if self.changed or young <= 0 or since < _FEWEST:
            return
        wanted = max(old, min(_MOST, objects * since // (FULL_SHARE * max(1, promoted))))
        now = _get_threshold()[2]
        if abs(wanted - now) > now // 10:
            self.set(young, middle, wanted)

    def restore(self) -> list[str]:
        """As they were. Returns what could not be undone, a sentence."""
        before, self._before = self._before, None
        changed, self.ours = self.changed, None
        if before is None:
            return []
        if changed:
            return [f"gc.get_threshold() is {_get_threshold()}, set by other code after install(): it was not restored"]
        _set_threshold(*before)
        return []
