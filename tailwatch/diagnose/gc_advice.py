"""Which policy of the collector would save what, predicted from what was measured under another; and what is wrong
with the one in force.

A prediction is an interval, and each end has its own base:

- At most: all that collections are estimated to have cost the streams (``Snapshot.delay``).
- At least: the part of it in which the process had a CPU, as far as that is measured (it had none for a slice either),
  less the most that the policy's own work can cost, wherever it falls. Its work is bounded by the
  objects that came (one collection of the youngest for each threshold of them), and what each is charged: the looks
  that the slicer needs for it, at what a look takes; or the full passes it is in, at what an object takes there that is
  not in the cache. All of it is taken to delay as many streams as a collection did on average, although
  idle-time collection does most of it while a loop waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailwatch.gc.capabilities import KNOWN_LISTS, interference_sentences, refusal

if TYPE_CHECKING:
    from tailwatch.snapshots import Policy, Process, Snapshot

COLLECTIONS = ("gc0", "gc1", "gc2", "gc_full", "gc_increment")
FULL = ("gc2", "gc_full")

# The slicer's price of an object that grew old, and what a look takes out of the cache, where none was measured yet: as
# csrc/include/tailwatch/gc/slice_pacer.h and csrc/gc/slice_pacer.c have them.
LOOKS_PER_OBJECT = 30
LOOK_SECONDS = 30e-9

# Objects that full passes over what is not frozen go through for each that grew old: the interpreter makes one when a
# quarter has come.
_FULL_PASSES = 5

_COLD_RATIO = 4  # how much dearer an object is out of the cache than one of the youngest, measured
_COLD_SECONDS = 200e-9  # of an object that is not in the cache, measured: 170 to 200 ns
_FEWEST_OBJECTS = 10_000
_OLD_THRESHOLD, _NEW_THRESHOLD = 700, 2000  # of the youngest, before CPython 3.13 and since

# When a policy is recommended: stream seconds lost, and their share of the time.
_LEAST_SECONDS = 0.05
_LEAST_RATE = 0.001
_LEAST_CPU = 0.5  # share of the pauses in which the process had a CPU, for a saving whose lower end is nothing
_OFTEN = 3  # memory limits met
_OVERDUE_SHARE = 0.5
_FEWEST_SLICES = 100


@dataclass(frozen=True, slots=True)
class Saving:
    """What another policy would have saved in the same time.

    Attributes:
        policy: the value of the option gc.
        role: of the processes it is for; instead: the policy they have.
        lost: stream seconds that their collections cost, an estimate, by cause.
        low, high: stream seconds it would have saved.
        work: process seconds that it would have taken for itself, at most.
        streams: that a collection delayed, on average.
    """

    policy: str
    role: str
    instead: str
    lost: Mapping[str, float]
    low: float
    high: float
    work: float
    streams: float


def predict(
    snapshot: Snapshot,
    *,
    policy: str | None = None,
    thresholds: tuple[int, ...] | None = None,
    version: tuple[int, ...] | None = None,
) -> Saving | None:
    """The policy that would save streams most certainly, for the role whose collections cost them most; None: there is
    nothing to gain, or it is not known which policy is in force.

    policy: that of processes that do not publish theirs. thresholds: gc.get_threshold(). version: of Python.
    """
    lost = {role: _gc_lost(phases) for role, phases in snapshot.delay_by_source.items()}
    role = max(lost, key=lambda each: sum(lost[each].values()), default="")
    processes = [process for process in snapshot.processes if process.role == role]
    kind = _kind(processes, policy)
    explicit = explicit_share(processes)
    lost[role] = {
        cause: seconds * (1 - explicit if cause in FULL else 1) for cause, seconds in lost.get(role, {}).items()
    }
    total = sum(lost[role].values())
    certain = {cause: seconds * (cpu_share(snapshot, cause) or 1.0) for cause, seconds in lost[role].items()}
    if total < max(_LEAST_SECONDS, _LEAST_RATE * snapshot.seconds) or kind not in ("observe", "freeze"):
        return None
    if kind == "freeze" and not any(process.policy.freezes for process in processes):
        return None  # what it saves is not seen yet
    measured = _Measured(snapshot, processes, role, _threshold(thresholds, version))
    if version is not None and tuple(version[:2]) in KNOWN_LISTS and not refusal(version, free_threaded=False):
        saving = measured.saving("idle", kind, lost[role], certain)
    elif kind == "observe":
        full = {cause: seconds for cause, seconds in lost[role].items() if cause in FULL}
        saving = measured.saving("freeze", kind, full, certain)
    else:
        return None
    freezes = saving.policy == "freeze" and sum(certain.values()) >= _LEAST_CPU * total
    return saving if saving.low > 0 or freezes else None


def explicit_share(processes: list[Process]) -> float:
    """The share of their collections of all generations since the first request that other code requested by
    gc.collect(), by counts. No policy saves what those cost."""
    count = sum(process.collections.get(cause, 0) for process in processes for cause in FULL)
    count -= sum(process.policy.early_full for process in processes)
    external = explicit_calls(processes)
    return min(1.0, external / max(count, external)) if external else 0.0


def explicit_calls(processes: list[Process]) -> int:
    """gc.collect() of other code since the first request: those before it delayed none."""
    return sum(process.policy.collections.get("external", 0) - process.policy.early_external for process in processes)


def cpu_share(snapshot: Snapshot, cause: str) -> float | None:
    """CPU time of a cause's pauses / their wall time; None: not measured, as of generation 0."""
    numbers = getattr(snapshot, "gc", None)
    spent = getattr(numbers, "cpu", {}).get(cause, 0.0)
    paused = snapshot.paused.get(cause, 0.0) if spent > 0 else 0.0
    return min(1.0, spent / paused) if paused > 0 else None


def _gc_lost(phases: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {cause: sum(by_cause.get(cause, 0.0) for by_cause in phases.values()) for cause in COLLECTIONS}


def _kind(processes: list[Process], otherwise: str | None) -> str | None:
    kinds = {process.policy.kind for process in processes if process.lives}
    known = kinds - {"unknown"} or ({otherwise} if otherwise else set())
    return known.pop() if len(known) == 1 else None


def _threshold(thresholds: tuple[int, ...] | None, version: tuple[int, ...] | None) -> int:
    usual = _NEW_THRESHOLD if version is not None and tuple(version) >= (3, 13) else _OLD_THRESHOLD
    return thresholds[0] if thresholds and thresholds[0] > 0 else usual


class _Measured:
    """What collections of some processes took, and how many objects came meanwhile."""

    def __init__(self, snapshot: Snapshot, processes: list[Process], role: str, threshold: int) -> None:
        self._role = role
        count = {cause: sum(process.collections.get(cause, 0) for process in processes) for cause in COLLECTIONS}
        paused = {cause: sum(process.paused.get(cause, 0.0) for process in processes) for cause in COLLECTIONS}
        overlap = sum(_gc_lost(snapshot.overlap_by_source.get(role, {})).values())
        collections = sum(count.values())
        self._objects = collections * threshold
        young = paused["gc0"] / count["gc0"] if count["gc0"] else 0.0
        self._young_seconds = collections * young
        cold = max(_COLD_SECONDS, _COLD_RATIO * young / threshold)
        self._cold = min(cold, _full_cost(processes, count, paused) or cold)
        self._look = max((process.policy.cost for process in processes), default=0.0) or LOOK_SECONDS
        self._streams = overlap / sum(paused.values()) if overlap > 0 and sum(paused.values()) > 0 else 1.0

    def saving(self, policy: str, instead: str, lost: Mapping[str, float], certain: Mapping[str, float]) -> Saving:
        each = LOOKS_PER_OBJECT * self._look if policy == "idle" else _FULL_PASSES * self._cold
        work = self._young_seconds + self._objects * each
        low = max(0.0, sum(certain[cause] for cause in lost) - work * self._streams)
        return Saving(policy, self._role, instead, lost, low, sum(lost.values()), work, self._streams)


def _full_cost(processes: list[Process], count: Mapping[str, int], paused: Mapping[str, float]) -> float:
    """Seconds that a full collection took for an object, by how many there are now; 0.0: that is not known."""
    passes = sum(count[cause] for cause in FULL)
    unfrozen = [process.policy.unfrozen or 0 for process in processes if process.lives]
    if not passes or len(unfrozen) != 1 or unfrozen[0] < _FEWEST_OBJECTS:
        return 0.0
    return sum(paused[cause] for cause in FULL) / passes / unfrozen[0]


# What is wrong with the policy in force ---------------------------------------------------------------------


def interfered(snapshot: Snapshot) -> list[tuple[str, Policy, list[str]]]:
    """Processes with interference: name, policy, interference in sentences. A freeze right after a full collection, an
    unfreeze after it, and a switch that is switched back are how servers treat their own heap, and none."""
    found = []
    for process in snapshot.processes:
        sentences = interference_sentences(_undoing(process.policy.interference))
        if sentences:
            found.append((process.name, process.policy, sentences))
    return found


def _undoing(calls: Mapping[str, int]) -> dict[str, int]:
    """Without the calls that undo nothing."""
    harmless = {
        "freeze": not calls.get("freeze_blind"),
        "unfreeze": calls.get("unfreeze", 0) <= calls.get("freeze", 0),
        **dict.fromkeys(("enable", "disable"), calls.get("disable", 0) <= calls.get("enable", 0)),
    }
    return {name: count for name, count in calls.items() if not harmless.get(name)}


def fallen_back(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Processes without slices: name, and the reason."""
    return [(each.name, each.policy.why) for each in snapshot.processes if each.policy.mode == "full collections"]


def at_memory_limit(snapshot: Snapshot) -> list[tuple[str, dict[str, int]]]:
    """Processes that met a memory limit often: name, and how often which."""
    often = [each for each in snapshot.processes if sum(each.policy.memory_limits.values()) >= _OFTEN]
    return [(each.name, {name: n for name, n in each.policy.memory_limits.items() if n}) for each in often]


def without_idle_slots(snapshot: Snapshot) -> list[tuple[str, float]]:
    """Processes with mostly overdue slices, made while requests may have waited: name, and the share of these."""
    found = []
    for process in snapshot.processes:
        slices = process.policy.slices
        total = sum(slices.values())
        if total >= _FEWEST_SLICES and slices.get("overdue", 0) >= _OVERDUE_SHARE * total:
            found.append((process.name, slices["overdue"] / total))
    return found
