"""Numbers that several rules share: what collections cost the tail, which process was paused, where gaps lost time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailwatch.diagnose.finding import DiagnosisContext
from tailwatch.diagnose.gc_advice import COLLECTIONS, FULL, Saving, cpu_share, explicit_share, predict
from tailwatch.diagnose.text import CAUSE_NAMES, name_causes
from tailwatch.integrations.process_roles import delays_streams

if TYPE_CHECKING:
    from tailwatch.snapshots import Histogram, Process, Snapshot, Step


YOUNG_REASON = "a freeze does not help: these are objects that each request allocates"
FEWEST_GAPS = 100
VISIBLE_SHARE = 0.01  # of the time of all waits
_VISIBLE_SECONDS = 0.02  # as a slow gap has at least
_MOST = 0.5
_FAR = 10
# The histograms are exact to 1.1 %, so a fifth of a percentile is far beyond their error.
_GC_SHARE_OF_PERCENTILE = 0.2
_GC_LEAST_SECONDS = 0.002
_LEVELS: tuple[tuple[str, int, Callable[[Histogram], float | None]], ...] = (
    ("p99", 100, lambda gaps: gaps.p(99)),
    ("p99.9", 1000, lambda gaps: gaps.p(99.9)),
    ("longest", 1, lambda gaps: gaps.max),
)


@dataclass(frozen=True, slots=True)
class GCBlame:
    """The lowest percentile of ITL at which GC shows: its gap, what it lost, and the causes, the worst first."""

    percentile: str
    gap: float
    lost: float
    cause: str
    causes: str


def find_gc_blame(snapshot: Snapshot) -> GCBlame | None:
    """The lowest percentile of the gaps between tokens of which collections are a visible part; None: of none."""
    delay = gc_only(snapshot.delay_by_phase["itl"])
    for name, needed, value in _LEVELS:
        if snapshot.itl.count < needed or not any(delay.values()):
            continue
        gap, without = value(snapshot.itl), value(snapshot.itl_without_gc)
        lost = (gap or 0.0) - (without or 0.0)
        if gap and lost >= max(_GC_LEAST_SECONDS, gap * _GC_SHARE_OF_PERCENTILE):
            return GCBlame(name, gap, lost, max(delay, key=lambda cause: delay[cause]), name_causes(delay))
    return None


def gc_only(by_cause: Mapping[str, float]) -> dict[str, float]:
    """Without our own pauses."""
    return {cause: by_cause.get(cause, 0.0) for cause in COLLECTIONS}


def where_paused(snapshot: Snapshot, cause: str) -> str:
    """Which process was paused by a cause; of several, the one that streams lost most to."""
    paused = _paused(snapshot, cause)
    worst = _worst(snapshot, cause)
    if worst is None:
        return "in this group of processes"
    return f"in {process_name(worst.role)}" if len(paused) == 1 else f"in {len(paused)} processes, most in {worst.name}"


def process_name(role: str) -> str:
    """A process of a role, in words."""
    return "the server" if role == "api" else f"the {role} process"


def _paused(snapshot: Snapshot, cause: str) -> list[Process]:
    """Those paused by a cause; where streams lost time to some, only those: the others paused while none waited."""
    paused = [process for process in snapshot.processes if process.paused.get(cause, 0.0) > 0]
    return [process for process in paused if _lost_to(snapshot, process.role, cause) > 0] or paused


def _worst(snapshot: Snapshot, cause: str) -> Process | None:
    """The process paused most by a cause, among those that streams lost most to. None: not known by process."""
    paused = _paused(snapshot, cause)
    if not paused or paused[0].role == "*":
        return None
    return max(paused, key=lambda process: (_lost_to(snapshot, process.role, cause), process.paused[cause]))


def _lost_to(snapshot: Snapshot, role: str, cause: str) -> float:
    return sum(by_cause.get(cause, 0.0) for by_cause in snapshot.delay_by_source.get(role, {}).values())


def engine_role(snapshot: Snapshot, cause: str) -> str:
    """The role of the worst process where it is one without an app; else ""."""
    worst = _worst(snapshot, cause)
    return worst.role if worst is not None and delays_streams(worst.role) else ""


def predict_saving(snapshot: Snapshot, context: DiagnosisContext) -> Saving | None:
    """The policy that would save streams most, from what is known of this process."""
    return predict(snapshot, policy=context.gc_policy, thresholds=context.thresholds, version=context.python_version)


def explicit_of(snapshot: Snapshot, cause: str) -> float:
    """The share of a cause's collections that other code requested by gc.collect(), in the process that it paused most;
    0.0 for the younger generations."""
    worst = _worst(snapshot, cause)
    return explicit_share([worst]) if worst is not None and cause in FULL else 0.0


def find_remedy(snapshot: Snapshot, delay: Mapping[str, float], context: DiagnosisContext) -> str:
    """What can take most of a delay by collections: "policy" (the one of recommended_policy()), "explicit" (no longer
    to request them), "cpu" (to have a CPU meanwhile), or "objects" (to allocate fewer: no policy takes the most)."""
    cause = max(delay, key=lambda each: delay[each])
    share = cpu_share(snapshot, cause)
    if explicit_of(snapshot, cause) > _MOST:
        return "explicit"
    if share is not None and share < _MOST:
        return "cpu"
    return "policy" if _can_take(snapshot, delay, context) >= _MOST else "objects"


def _can_take(snapshot: Snapshot, delay: Mapping[str, float], context: DiagnosisContext) -> float:
    """The share of the delay that the recommended policy would take."""
    saving = predict_saving(snapshot, context)
    cause = max(delay, key=lambda each: delay[each])
    if saving is not None and saving.policy == recommended_policy(snapshot, cause, context) == "idle":
        return (saving.low + saving.high) / 2 / sum(saving.lost.values())
    return sum(delay.get(each, 0.0) for each in (*FULL, "gc_increment")) / (sum(delay.values()) or 1.0)


def is_far(length: Histogram, least: float) -> bool:
    """Whether the longest is far from the median: ten times as long, and longer by so many seconds."""
    typical, longest = length.p(50), length.max
    return typical is not None and longest is not None and longest >= max(_FAR * typical, typical + least)


def is_long_tailed(length: Histogram) -> bool:
    """Whether p99 is twice the median, and longer by a visible time."""
    p50, p99 = length.p(50), length.p(99)
    return p50 is not None and p99 is not None and p99 >= max(2 * p50, p50 + _VISIBLE_SECONDS)


def upstream_seconds(snapshot: Snapshot, phase: str) -> float:
    """Stream seconds of a phase ("ttft", "itl") in which tokens were not ready, all sources."""
    phases = (by_phase.get(phase, {}) for by_phase in snapshot.delays.values())
    return sum(sum(causes.get("upstream", {}).values()) for causes in phases)


def recommended_policy(snapshot: Snapshot, cause: str, context: DiagnosisContext) -> str:
    """The option ``gc`` for the process that a cause paused most, where its heap is not frozen: the policy of the
    predicted saving, if there is one for that process, else "freeze"."""
    saving, worst = predict_saving(snapshot, context), _worst(snapshot, cause)
    elsewhere = worst is not None and saving is not None and saving.role != worst.role
    return "freeze" if saving is None or elsewhere else saving.policy


def freezes(snapshot: Snapshot, cause: str, context: DiagnosisContext) -> bool:
    """Whether the policy of the process that a cause paused most is to freeze."""
    worst = _worst(snapshot, cause)
    kind = context.gc_policy if worst is None or worst.policy.kind == "unknown" else worst.policy.kind
    return kind in ("freeze", "idle") or (kind is None and froze(snapshot, cause, context))


def froze(snapshot: Snapshot, cause: str, context: DiagnosisContext) -> bool:
    """Whether the heap of the process that a cause paused most was frozen; from outside that is seen by its pauses."""
    worst = _worst(snapshot, cause)
    if worst is not None and (context.freeze_done is None or delays_streams(worst.role)):
        return worst.policy.freezes > 0 or worst.paused.get("gc_own", 0.0) > 0
    return bool(context.freeze_done)


def tail_shares(snapshot: Snapshot, phase: str) -> dict[str, float]:
    """Shares of the time that the slowest gaps took beyond the typical, over the octaves that reach p99."""
    histogram = snapshot.itl if phase == "itl" else snapshot.ttft
    p99 = histogram.p(99)
    sums = tail_seconds(snapshot, phase, math.inf if p99 is None else p99)
    total = sum(sums.values())
    return {name: value / total for name, value in sums.items()} if total > 0 else {}


def tail_seconds(snapshot: Snapshot, phase: str, above: float = 0.0) -> dict[str, float]:
    """The time that gaps longer than usual took beyond the typical, over the octaves that reach so many seconds."""
    sums = dict.fromkeys(("gc", "gc_own", "client", "accept", "host", "engine", "unexplained"), 0.0)
    for octave in snapshot.tail.get(phase, []):
        if octave.upper <= above:
            continue
        sums["gc"] += sum(gc_only(octave.delay).values())
        sums["gc_own"] += octave.delay.get("gc_own", 0.0)
        sums["client"] += octave.client
        sums["accept"] += octave.accept
        sums["host"] += getattr(octave, "host", 0.0)  # what earlier versions saved has none
        sums["engine"] += getattr(octave, "engine", 0.0)
        sums["unexplained"] += octave.unexplained
    return sums


def step_count(snapshot: Snapshot) -> int:
    """Engine steps, of all names and processes."""
    return sum(step.steps.time.count for step in snapshot.steps)


def step_pauses(step: Step) -> dict[str, float]:
    """What of an engine's steps, and of the host gaps between them, coincided with pauses, by cause."""
    return {cause: step.steps.overlap.get(cause, 0.0) + step.host_gaps.overlap.get(cause, 0.0) for cause in CAUSE_NAMES}


def step_seconds(step: Step) -> float:
    """What those steps took, with the host gaps before them."""
    return step.steps.time.sum + step.host_gaps.time.sum
