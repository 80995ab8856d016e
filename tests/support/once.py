"""What is made once in a run of the tests, whichever of its workers comes first."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def once(directory: Path, name: str, make: Callable[[], Any]) -> Any:
    """What make() returned, as JSON has it. directory: the run's own (the fixture run_directory)."""
    found = directory / f"{name}.json"
    with open(directory / f"{name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            found.write_text(json.dumps(make()), encoding="utf-8")
    return json.loads(found.read_text(encoding="utf-8"))
