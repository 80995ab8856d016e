"""Numbers of a group of processes at one moment: histograms, counters, pauses; windows between two moments."""

from tailwatch import platform
from tailwatch.snapshots.model import (
    EngineSteps,
    Octave,
    Pause,
    Point,
    Policy,
    Process,
    SlowGap,
    Step,
    StepCost,
    StepRecord,
)

if platform.LINUX:  # elsewhere snapshots are read from files alone: see serialization.py
    from tailwatch.snapshots.concurrency import Healthy, healthy, healthy_in
    from tailwatch.snapshots.core_values import (
        CAUSES,
        COLLECTION_REASONS,
        DROPS,
        INTERFERENCES,
        MEMORY_LIMITS,
        OUTCOME_OF,
        OUTCOMES,
        PHASES,
        POLICIES,
        POLICY_MODES,
        POLICY_WHYS,
        REASONS,
        SLICE_REASONS,
        STALLS,
    )
    from tailwatch.snapshots.histogram import Histogram
    from tailwatch.snapshots.history import History
    from tailwatch.snapshots.records import Records
    from tailwatch.snapshots.segments import (
        file_of,
        has_ended_here,
        remove_dead_shared,
        remove_shared,
        stamped_in,
    )
    from tailwatch.snapshots.snapshot import Snapshot, take, take_directory

__all__ = [
    "CAUSES",
    "COLLECTION_REASONS",
    "DROPS",
    "INTERFERENCES",
    "MEMORY_LIMITS",
    "OUTCOMES",
    "OUTCOME_OF",
    "PHASES",
    "POLICIES",
    "POLICY_MODES",
    "POLICY_WHYS",
    "REASONS",
    "SLICE_REASONS",
    "STALLS",
    "EngineSteps",
    "Healthy",
    "Histogram",
    "History",
    "Octave",
    "Pause",
    "Point",
    "Policy",
    "Process",
    "Records",
    "SlowGap",
    "Snapshot",
    "Step",
    "StepCost",
    "StepRecord",
    "file_of",
    "has_ended_here",
    "healthy",
    "healthy_in",
    "remove_dead_shared",
    "remove_shared",
    "stamped_in",
    "take",
    "take_directory",
]
