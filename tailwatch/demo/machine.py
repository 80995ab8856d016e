"""The machine a run was made on, and how much of it others took meanwhile."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """What a reader needs to compare two runs."""
    return {
        "cpus": cpus(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "kernel": platform.release(),
        "load_average": list(os.getloadavg()),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def cpus() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Usage:
    """The machine's CPU time at one instant; busy is in CPU seconds over all CPUs, None where nobody tells."""

    at: float
    busy: float | None

    @classmethod
    def now(cls) -> Usage:
        """From /proc/stat: everything but idle and waiting for I/O."""
        try:
            fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
            user, nice, system, _idle, _wait, interrupt, soft, steal = (int(field) for field in fields)
        except (OSError, ValueError):
            return cls(time.monotonic(), None)
        ticks = user + nice + system + interrupt + soft + steal
        return cls(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"))

    def cores_of_others(self, ours: float) -> float | None:
        """CPUs that were busy since, on average, beyond `ours` CPU seconds; None where nobody tells."""
        now = Usage.now()
        if now.busy is None or self.busy is None or now.at <= self.at:
            return None
        return max(0.0, (now.busy - self.busy - ours) / (now.at - self.at))
