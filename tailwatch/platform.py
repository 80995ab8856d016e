"""Version of this package, where it runs, and the error that its functions raise elsewhere."""

from __future__ import annotations

import sys
import sysconfig
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NoReturn

from tailwatch.errors import UnsupportedError

LINUX = sys.platform == "linux"
VERSION = version("tailwatch")
"""Read from the metadata of the installed package: pyproject.toml is the one place where it is written."""


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


def unsupported(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise UnsupportedError: what the functions that watch a process do on another system than Linux."""
    raise UnsupportedError(
        "tailwatch watches processes on Linux only; here SLOs, saved snapshots and `tailwatch doctor FILE` work"
    )
