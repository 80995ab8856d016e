"""Numbers of the last hour, for windows of the past."""

from __future__ import annotations

import errno

from tailwatch._cold import ffi, lib
from tailwatch.snapshots.core_values import check
from tailwatch.snapshots.snapshot import Snapshot


class History:
    """Marks of the past, every 5 s for the last minute and every minute for the last hour, in fixed memory, but for
    what keep_labels() adds.

    One thread pushes; any thread asks. Not to be used after a fork: make a new one.
    """

    def __init__(self) -> None:
        out = ffi.new("tw_history **")
        check(lib.tw_history_create(out), "history", None, "")
        self._handle = ffi.gc(out[0], lib.tw_history_free)

    @property
    def bytes(self) -> int:
        """Its memory."""
        return int(lib.tw_history_bytes() + lib.tw_history_label_bytes(self._handle))

    def keep_labels(self) -> None:
        """From now on marks keep each label set, too, where there are at most 64."""
        lib.tw_history_keep_labels(self._handle)

    def push(self, snapshot: Snapshot) -> None:
        """Keeps a snapshot where one is due. Call it at least every 5 s."""
        check(lib.tw_history_push(self._handle, snapshot._core), "snapshot", snapshot, "")

    def window(self, now: Snapshot, seconds: float) -> Snapshot:
        """now - the mark whose age is nearest to so many seconds (the start is one too).

        The result has one label set, ("*", "*"); its ``seconds`` are what it really covers.
        """
        out = ffi.new("tw_snapshot **")
        error = lib.tw_history_window(self._handle, now._core, max(0, round(seconds * 1e9)), out)
        if error != errno.ENODATA:
            check(error, "seconds", seconds, "expected a number of seconds, 0 or more")
        return Snapshot(ffi.gc(out[0], lib.tw_snapshot_free))

    def window_of_labels(self, now: Snapshot, seconds: float) -> Snapshot | None:
        """As window(), with now's label sets: only what ``where()`` shows of one of them, and ``seconds``, are of the
        window. None: that is not kept."""
        out = ffi.new("tw_snapshot **")
        error = lib.tw_history_window_of_labels(self._handle, now._core, max(0, round(seconds * 1e9)), out)
        if error == errno.ENODATA:
            return None
        check(error, "seconds", seconds, "expected a number of seconds, 0 or more")
        return Snapshot(ffi.gc(out[0], lib.tw_snapshot_free))
