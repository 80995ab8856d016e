"""Which collector an interpreter has, and what that means for gc="out-of-band".

By numbers alone, so that what another interpreter would be told can be asked in any.
"""

from __future__ import annotations

import sys
import sysconfig

INCREMENTAL = ((3, 14, 0), (3, 14, 4))
"""The first and the last CPython with the incremental collector; 3.14.5 has the generational one again."""


def refusal(version: tuple[int, ...], *, free_threaded: bool) -> str:
    """Why objects cannot be collected out of band in such an interpreter, a sentence; "" where they can.

    version: sys.version_info[:3] at least; free_threaded: a build without the GIL.
    """
    if free_threaded:
        return (
            "the collector of free-threaded CPython has no generations: every pass stops all threads and walks the whole "
            "heap, frozen or not, so nothing can be collected in slices"
        )
    if INCREMENTAL[0] <= tuple(version[:3]) <= INCREMENTAL[1]:
        named = ".".join(str(part) for part in version[:3])
        return (
            f"CPython {named} has the incremental collector, whose young generation is not what a slice could move objects "
            "to; 3.14.5 has the generational one again"
        )
    return ""


def refusal_here() -> str:
    """The same of this interpreter."""
    return refusal(tuple(sys.version_info[:3]), free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
