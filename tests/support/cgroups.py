"""Limits of memory and CPU time, as a container has them: cgroups beside this process's own, of version 1 or 2."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .waiting import until

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
# Enters each of the groups in $LIMITS, then becomes the command.
ENTER = ("sh", "-c", 'for group in $LIMITS; do echo $$ >"$group/cgroup.procs"; done; exec "$@"', "limited")


def bytes_of(size: str) -> int:
    """Of Kubernetes' way to write them: 64Mi."""
    number, unit = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", size).groups()  # type: ignore[union-attr]
    return int(number) << {"Ki": 10, "Mi": 20, "Gi": 30}[unit]


@dataclass
class Limits:
    """The folders of the groups; none where none can be made here."""

    folders: list[Path] = field(default_factory=list)

    @property
    def variable(self) -> dict[str, str]:
        """For ENTER."""
        return {"LIMITS": " ".join(map(str, self.folders))}

    def throttled(self) -> int:
        """How often the CPU quota was used up."""
        texts = [file.read_text() for folder in self.folders if (file := folder / "cpu.stat").exists()]
        return sum(int(number) for number in re.findall(r"^nr_throttled (\d+)", "".join(texts), re.MULTILINE))

    def make(self, folder: Path, **files: str) -> None:
        """One group with these settings."""
        folder.mkdir()
        self.folders.append(folder)
        for name, text in files.items():
            (folder / name.replace("__", ".", 1)).write_text(text)

    def remove(self) -> None:
        """Once its processes have ended."""
        for folder in self.folders:
            until(lambda folder=folder: not (folder / "cgroup.procs").read_text(), "the group's processes end")
            folder.rmdir()


@contextlib.contextmanager
def limited(name: str, memory: str, cpus: float) -> Iterator[Limits]:
    """Groups of this name, until the block ends."""
    made, name = Limits(), f"tailwatch-{name}-{os.getpid()}"
    own = dict(re.findall(r"^\d+:([a-z,]*):(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE))
    quota = str(round(cpus * PERIOD_US))
    try:
        if "memory" in own and "cpu" in own:
            at = {kind: ROOT / kind / own[kind].strip("/") / name for kind in ("memory", "cpu")}
            made.make(at["memory"], memory__limit_in_bytes=str(bytes_of(memory)))
            made.make(at["cpu"], cpu__cfs_period_us=str(PERIOD_US), cpu__cfs_quota_us=quota)
        elif "" in own:
            beside = (ROOT / own[""].strip("/")).parent / name
            made.make(beside, memory__max=str(bytes_of(memory)), cpu__max=f"{quota} {PERIOD_US}")
    except OSError:
        made.remove()
        made = Limits()
    try:
        yield made
    finally:
        made.remove()
