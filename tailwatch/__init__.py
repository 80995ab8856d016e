"""Why was that token late? ``tailwatch.install(app)`` answers it inside a Python model server."""

from tailwatch_boot import console

console.guard_module("tailwatch")  # python -m tailwatch imports all of this before it runs a line of the command

from tailwatch import platform  # noqa: E402

platform.require()

from tailwatch.errors import (  # noqa: E402
    AlreadyInstalledError,
    BusyError,
    NotInstalledError,
    OptionError,
    TailwatchError,
    UnsupportedError,
)
from tailwatch.options.slo import SLO  # noqa: E402

if platform.LINUX:
    from tailwatch.runtime.install import (
        Middleware,
        current,
        freeze,
        gc_status,
        install,
        load_signal,
        refreeze,
        snapshot,
        step,
        stream,
        trace,
        uninstall,
    )
    from tailwatch.runtime.install import diagnose as doctor
    from tailwatch.runtime.profile import profile
    from tailwatch.runtime.session import Watch
else:
    Middleware = Watch = current = doctor = freeze = refreeze = gc_status = install = load_signal = platform.unsupported  # type: ignore[assignment,misc]
    profile = snapshot = step = stream = trace = uninstall = platform.unsupported
from tailwatch import nvtx  # noqa: E402
from tailwatch.platform import VERSION as __version__  # noqa: E402

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
    "refreeze",
    "snapshot",
    "step",
    "stream",
    "trace",
    "uninstall",
]
