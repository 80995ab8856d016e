"""What glibc's malloc is told in a process that does nothing but load."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_MMAP_THRESHOLD = -3
_THRESHOLD = 128 << 10


def grow_in_place() -> None:
    """From now on long columns grow by moving pages, not by copying: no holes are left behind, and no pause in mid-run.

    That is how glibc begins; but once a large block was freed (the making of a schedule does) it keeps blocks up to
    that size on its heap, where columns that grow side by side leave a quarter of it empty. A threshold that is set
    stays. For the whole process, so only where it is ours. Elsewhere than on glibc nothing happens.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _THRESHOLD)
