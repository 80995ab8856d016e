"""Why was that token late? ``tailwatch.install(app)`` answers it inside a Python model server."""

from tailwatch import support

support.require()

from tailwatch.errors import (  # noqa: E402
    AlreadyInstalledError,
    BusyError,
    NotInstalledError,
    OptionError,
    TailwatchError,
    UnsupportedError,
)
from tailwatch.goodput import SLO  # noqa: E402

if support.LINUX:
    from tailwatch.profiling import profile
    from tailwatch.watch import (
        Middleware,
        Watch,
        current,
        freeze,
        gc_status,
        install,
        load_signal,
        snapshot,
        step,
        stream,
        trace,
        uninstall,
    )
    from tailwatch.watch import diagnose as doctor
else:
    from tailwatch.elsewhere import (  # type: ignore[assignment]
        Middleware,
        Watch,
        current,
        doctor,
        freeze,
        gc_status,
        install,
        load_signal,
        profile,
        snapshot,
        step,
        stream,
        trace,
        uninstall,
    )
from tailwatch import nvtx  # noqa: E402
from tailwatch.version import VERSION as __version__  # noqa: E402

__all__ = [
    "SLO",
    "AlreadyInstalledError",
    "BusyError",
    "Middleware",
    "NotInstalledError",
    "OptionError",
    "TailwatchError",
    "UnsupportedError",
    "Watch",
    "__version__",
    "current",
    "doctor",
    "freeze",
    "gc_status",
    "install",
    "load_signal",
    "nvtx",
    "profile",
    "snapshot",
    "step",
    "stream",
    "trace",
    "uninstall",
]
