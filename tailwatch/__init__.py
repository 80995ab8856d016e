"""Why was that token late? ``tailwatch.install(app)`` answers it inside a Python model server."""

from typing import TYPE_CHECKING

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
from tailwatch.platform import VERSION as __version__  # noqa: E402

if TYPE_CHECKING:
    from tailwatch import nvtx
    from tailwatch._hot import Step, Stream
    from tailwatch.diagnose.finding import Finding
    from tailwatch.gc.hook import Freeze
    from tailwatch.options.signature import Options
    from tailwatch.options.slo import SLO
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
        why,
    )
    from tailwatch.runtime.install import diagnose as doctor
    from tailwatch.runtime.load_signal import LoadSignal
    from tailwatch.runtime.profile import Profiled, profile
    from tailwatch.runtime.session import Watch
    from tailwatch.snapshots import EngineSteps, Histogram, Pause, Process, SlowGap, Snapshot, StepRecord
    from tailwatch.snapshots.model import GCStatus
    from tailwatch.tracing.perfetto import Written
else:  # each name is imported when it is first used: a process that installs nothing pays for nothing
    __getattr__, __dir__ = platform.on_first_use(globals())

__all__ = [
    "SLO",
    "AlreadyInstalledError",
    "BusyError",
    "EngineSteps",
    "Finding",
    "Freeze",
    "GCStatus",
    "Histogram",
    "LoadSignal",
    "Middleware",
    "NotInstalledError",
    "OptionError",
    "Options",
    "Pause",
    "Process",
    "Profiled",
    "SlowGap",
    "Snapshot",
    "Step",
    "StepRecord",
    "Stream",
    "TailwatchError",
    "UnsupportedError",
    "Watch",
    "Written",
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
    "why",
]
