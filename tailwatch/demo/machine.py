"""The machine a run was made on, and how much of it others took meanwhile."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailwatch.platform import cpus


def describe() -> dict[str, Any]:
    """What a reader needs to compare two runs. cpus: those that this process may use."""
    return {
        "cpus": cpus(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "kernel": platform.release(),
        "load_average": list(os.getloadavg()),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


@dataclass(frozen=True, slots=True)
class CPUTime:
    """CPU seconds at one instant, of this process and of the whole machine; busy: None where it is not known."""

    at: float
    ours: float
    busy: float | None

    @classmethod
    def now(cls) -> CPUTime:
        """From /proc/stat: everything but idle and waiting for I/O."""
        at, ours = time.monotonic(), time.process_time()
        try:
            fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
            user, nice, system, _idle, _wait, interrupt, soft, steal = (int(field) for field in fields)
        except (OSError, ValueError):
            return cls(at, ours, None)
        ticks = user + nice + system + interrupt + soft + steal
        return cls(at, ours, ticks / os.sysconf("SC_CLK_TCK"))

    def cores_of_others(self, server: float) -> float | None:
        """CPUs that were busy since, on average, beyond this process and `server` CPU seconds; None where it is not
        known."""
        now = CPUTime.now()
        if now.busy is None or self.busy is None or now.at <= self.at:
            return None
        return max(0.0, (now.busy - self.busy - (now.ours - self.ours) - server) / (now.at - self.at))
