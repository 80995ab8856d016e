"""What made tokens late, by cause, where it is no pause (those have rules of their own)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailwatch.diagnose.finding import Finding
from tailwatch.diagnose.text import ms, what_of

if TYPE_CHECKING:
    from tailwatch.snapshots import Snapshot
    from tailwatch.snapshots.model import Cause

_LEAST_SHARE, _LEAST_SECONDS = 0.1, 0.1  # of all delay, and of stream time
_REMEDIES = {
    "callback": ("the event loop ran other code", "move it to a thread (asyncio.to_thread) or another process"),
    "gil": ("another thread held the interpreter lock", "move its work to another process"),
    "cpu": ("the event loop had no CPU", "give the server more CPUs, or its pools fewer threads"),
    "throttled": ("the cgroup's quota held the process", "raise cpu.max, or size thread pools to the quota"),
    "io": ("the event loop was blocked in a system call", "move it to a thread (asyncio.to_thread)"),
    "lock": ("the event loop was blocked on a lock", "use asyncio.Lock, or take the lock in a thread"),
    "sleep": ("the event loop slept", "use asyncio.sleep"),
    "memory": ("page faults", "give the server more memory, or touch its memory before requests come"),
    "stopped": ("the whole process stood still", "look for SIGSTOP, a freezer or a paused virtual machine"),
    "transport": ("between the engine and the API process", "give the API process a CPU of its own"),
    "output": ("output processing in the API process", "more API processes (vLLM: --api-server-count)"),
    "own_code": ("the requests' own code on the event loop", "do less for each token, or use more API processes"),
    "queued": (
        "requests waited for room in the engine",
        "more replicas, fewer requests at once, or more room in a step where memory allows (vLLM: --max-num-seqs, "
        "SGLang: --max-running-requests)",
    ),
    "preempted": (
        "preempted requests were computed again",
        "more memory for the KV cache (vLLM: --gpu-memory-utilization, SGLang: --mem-fraction-static), or fewer "
        "requests in a step (vLLM: --max-num-seqs, SGLang: --max-running-requests)",
    ),
    "kv_wait": ("requests waited for remote KV", "look at the KV transfer"),
    "prefill": (
        "other requests' prefill in the same steps",
        "smaller chunks of prompts (vLLM: --max-num-batched-tokens, SGLang: --chunked-prefill-size)",
    ),
    "engine_host": ("host code of the engine's steps", "tailwatch doctor --slow-gaps names the part"),
    "jit": ("compilation", "warm the server up with the shapes that it will meet"),
    "graph_miss": ("steps without a CUDA graph", "capture graphs for these batch sizes (SGLang: --cuda-graph-max-bs)"),
    "rank": ("the slowest rank", "look at that rank's device and process"),
}


def causes(snapshot: Snapshot) -> list[Finding]:
    """Each cause with a visible part of all delay: its share, its worst example and what lessens it."""
    whole = sum(snapshot.delay.values()) - snapshot.delay.get("own_prefill", 0.0)
    large = [cause for cause in _REMEDIES if _is_large(snapshot.delay.get(cause, 0.0), whole)]
    return [_finding(snapshot, cause, whole) for cause in large]


def _is_large(seconds: float, whole: float) -> bool:
    return seconds >= _LEAST_SECONDS and seconds >= _LEAST_SHARE * whole


def _finding(snapshot: Snapshot, cause: str, whole: float) -> Finding:
    what, advice = _REMEDIES[cause]
    lost = snapshot.delay[cause]
    worst = _worst(snapshot, cause)
    named = f": {what_of(worst)}" if worst is not None and what_of(worst) else ""
    example = f"; the longest {ms(worst.seconds)} in {worst.source}" if worst is not None else ""
    title = f"{lost / whole:.0%} of the delay of tokens: {what}{named}"
    detail = f"{ms(lost)} of {ms(whole)}, of all streams together{example}."
    severity = "high" if lost >= 0.3 * whole else "medium"
    return Finding("delay-cause", severity, title, detail, advice, lost)


def _worst(snapshot: Snapshot, cause: str) -> Cause | None:
    gaps = (*snapshot.slowest, *snapshot.recent)  # the longest gaps may all have another cause
    found = [each for gap in gaps for each in getattr(gap, "causes", ()) if each.cause == cause]
    return max(found, key=lambda each: each.seconds, default=None)
