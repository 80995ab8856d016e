"""Numbers of a group of processes at one moment: histograms, counters, pauses; windows between two moments."""

from tailwatch import platform
from tailwatch.snapshots.model import Octave, Pause, Point, Policy, Process, SlowGap, Step

if platform.LINUX:  # elsewhere snapshots are read from files alone: see serialization.py
    from tailwatch.snapshots.concurrency import Healthy, healthy
    from tailwatch.snapshots.core_values import (
        CAUSES,
        COLLECTION_REASONS,
        DROPS,
        INTERFERENCES,
        MEMORY_LIMITS,
        MOMENTS,
        OUTCOME_OF,
        OUTCOMES,
        PHASES,
        POLICIES,
        POLICY_MODES,
        POLICY_WHYS,
        REASONS,
    )
    from tailwatch.snapshots.histogram import Histogram
    from tailwatch.snapshots.history import History
    from tailwatch.snapshots.records import Records
    from tailwatch.snapshots.snapshot import Snapshot, file_of, has_ended_here, take, take_directory

__all__ = [
    "CAUSES",
    "COLLECTION_REASONS",
    "DROPS",
    "INTERFERENCES",
    "MEMORY_LIMITS",
    "MOMENTS",
    "OUTCOMES",
    "OUTCOME_OF",
    "PHASES",
    "POLICIES",
    "POLICY_MODES",
    "POLICY_WHYS",
    "REASONS",
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
    "file_of",
    "has_ended_here",
    "healthy",
    "take",
    "take_directory",
]
