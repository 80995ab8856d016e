"""Version of this package, where it runs, and the error that its functions raise elsewhere.

Each module here is imported by every process that imports tailwatch, so it imports little itself.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from tailwatch.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = "0.2.0rc1"
"""The one place where it is written: pyproject.toml reads it here."""

LINUX = sys.platform == "linux"
WORKS_ELSEWHERE = "here the load tester, saved snapshots, `tailwatch doctor FILE` and tailwatch.sse work"


def require() -> None:
    """Refuse an interpreter that cannot carry the compiled modules.

    Raises:
        UnsupportedError: (an ImportError) with the reason.
        ImportError: in a sub-interpreter.
    """
    if sys.implementation.name != "cpython":
        raise UnsupportedError(f"tailwatch needs CPython: it hooks its collector; this is {sys.implementation.name}")
    if "t" in getattr(sys, "abiflags", ""):
        raise UnsupportedError(
            "tailwatch does not run on free-threaded CPython yet: its counters have one writer, the holder of the GIL"
        )
    if not LINUX:
        sys.modules["tailwatch._hot"] = import_module("tailwatch.pure.hot")
        return
    try:
        import_module("tailwatch._hot")  # first: it refuses a sub-interpreter, before what may break there is loaded
        import_module("tailwatch._cold")
    except ModuleNotFoundError as error:
        if error.name in ("tailwatch._hot", "tailwatch._cold"):
            raise UnsupportedError(
                "tailwatch was imported without its compiled modules: install it (pip install .) "
                "and start Python outside its source tree"
            ) from None
        raise


def cpus() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parent_process() -> Any:
    """multiprocessing.parent_process(), without importing that: it is there in every process that it has started."""
    module = sys.modules.get("multiprocessing.process")
    return module.parent_process() if module is not None else None


def current_process() -> Any:
    """multiprocessing.current_process(); None where it was not imported."""
    module = sys.modules.get("multiprocessing.process")
    return module.current_process() if module is not None else None


_EVERYWHERE = {"Options": "options.signature:Options", "SLO": "options.slo:SLO", "nvtx": "nvtx:"}
_INSTALL = (
    *("Middleware", "current", "freeze", "gc_status", "install", "load_signal", "refreeze", "snapshot", "step"),
    *("stream", "trace", "uninstall", "why"),
)
_ON_LINUX = {
    **{name: f"runtime.install:{name}" for name in _INSTALL},
    "Finding": "diagnose.finding:Finding",
    "Freeze": "gc.hook:Freeze",
    "GCStatus": "snapshots.model:GCStatus",
    "LoadSignal": "runtime.load_signal:LoadSignal",
    "Profiled": "runtime.profile:Profiled",
    "Step": "_hot:Step",
    "Stream": "_hot:Stream",
    "Watch": "runtime.session:Watch",
    "Written": "tracing.perfetto:Written",
    **{name: f"snapshots:{name}" for name in ("EngineSteps", "Histogram", "Pause", "Process", "SlowGap", "Snapshot")},
    "StepRecord": "snapshots:StepRecord",
    "doctor": "runtime.install:diagnose",
    "profile": "runtime.profile:profile",
}
_ELSEWHERE = {
    **{name: "platform:unsupported" for name in _ON_LINUX},
    **{name: f"runtime.noop_install:{name}" for name in ("current", "install", "step", "stream", "uninstall")},
    "Middleware": "runtime.noop_install:NoopMiddleware",
    "Watch": "runtime.noop_install:NoopWatch",
}


def on_first_use(namespace: dict[str, Any]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of tailwatch: the first imports what a public name stands for, and keeps it in
    ``namespace``. Elsewhere than on Linux, the names stand for what does nothing, or raises UnsupportedError."""
    places = {**_EVERYWHERE, **(_ON_LINUX if LINUX else _ELSEWHERE)}

    def attribute(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module 'tailwatch' has no attribute {name!r}")
        module, _, member = places[name].partition(":")
        found = import_module(f"tailwatch.{module}")
        namespace[name] = getattr(found, member) if member else found
        return namespace[name]

    return attribute, lambda: sorted(namespace.keys() | places.keys())


def unsupported(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise UnsupportedError: what functions that return numbers of this process do on another system than Linux."""
    raise UnsupportedError(f"tailwatch watches processes on Linux only; {WORKS_ELSEWHERE}")
