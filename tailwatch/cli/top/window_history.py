"""The past as far as a window needs it: snapshots at intervals, so many at most."""

from __future__ import annotations

from collections import deque

from tailwatch.snapshots import Snapshot

_KEPT = 60  # in a window; each takes some 300 KB, and 40 KB for each label set


class Marks:
    """What later snapshots are compared with. window: seconds."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._kept: deque[tuple[float, Snapshot]] = deque()

    def add(self, at: float, snapshot: Snapshot) -> None:
        """Keep a snapshot taken at a monotonic time, in seconds, if one is due; of those older than the window only the
        youngest stays."""
        if not self._kept or at - self._kept[-1][0] >= self._window / _KEPT:
            self._kept.append((at, snapshot))
        while len(self._kept) > 1 and at - self._kept[1][0] >= self._window:
            self._kept.popleft()

    @property
    def oldest(self) -> Snapshot | None:
        """The one to compare with; None: there is none yet."""
        return self._kept[0][1] if self._kept else None

    def __len__(self) -> int:
        return len(self._kept)
