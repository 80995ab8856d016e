"""Where this package runs, and the one sentence it says where it does not."""

from __future__ import annotations

import sys
import sysconfig
from importlib import import_module
from importlib.util import find_spec

from tailwatch.errors import UnsupportedError

LINUX = sys.platform == "linux"


def require() -> None:
    """Refuse an interpreter that cannot carry the compiled modules.

    Raises:
        UnsupportedError: (an ImportError) with the reason.
        ImportError: in a sub-interpreter.
    """
    if sys.implementation.name != "cpython":
        raise UnsupportedError(f"tailwatch needs CPython: it hooks its collector; this is {sys.implementation.name}")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise UnsupportedError(
            "tailwatch does not run on free-threaded CPython yet: its counters have one writer, the holder of the GIL"
        )
    if LINUX and not (find_spec("tailwatch._hot") and find_spec("tailwatch._cold")):
        raise UnsupportedError(
            "tailwatch was imported without its compiled modules: install it (pip install .) "
            "and start Python outside its source tree"
        )
    if LINUX:
        import_module("tailwatch._hot")  # it refuses a sub-interpreter, before what may break there is loaded
