"""What made tokens late, by cause, where it is no pause (those have rules of their own)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailwatch.diagnose.finding import DiagnosisContext, Finding
from tailwatch.diagnose.measures import FEWEST_GAPS, VISIBLE_SHARE, is_long_tailed, upstream_seconds
from tailwatch.diagnose.text import ms, what_of
from tailwatch.integrations.process_roles import delays_streams

if TYPE_CHECKING:
    from tailwatch.snapshots import Process, Snapshot
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
    "own_code": (
        "the requests' own code on the event loop",
        "do less for each token, give what precedes the first a thread (asyncio.to_thread), or use more API processes",
    ),
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
    "kv_wait": (
        "requests waited for KV from elsewhere",
        "a faster or shorter transfer (the KV connector's own metrics show which), or KV that is nearer to the engine",
    ),
    "prefill": (
        "other requests' prefill in the same steps",
        "smaller chunks of prompts (vLLM: --max-num-batched-tokens, SGLang: --chunked-prefill-size)",
    ),
    "engine_host": ("host code of the engine's steps", "tailwatch doctor --slow-gaps names the part"),
    "jit": ("compilation", "warm the server up with the shapes that it will meet"),
    "graph_miss": (
        "steps without a CUDA graph",
        "capture graphs for these batch sizes (vLLM: --max-cudagraph-capture-size, SGLang: --cuda-graph-max-bs)",
    ),
    "rank": (
        "one rank entered the engine's steps late, and the others waited for it",
        "give each worker a CPU of its own, and look at what else its process runs (py-spy dump --pid PID)",
    ),
}


def causes(snapshot: Snapshot) -> list[Finding]:
    """Each cause with a visible part of all delay: its share, its worst example and what lessens it."""
    whole = _whole(snapshot)
    large = [cause for cause in _REMEDIES if _is_large(snapshot.delay.get(cause, 0.0), whole)]
    return [_finding(snapshot, cause, whole) for cause in large]


def upstream(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Tokens were not ready when the event loop waited for them: what makes them is not known well enough. Models are
    never quite regular: only a visible part of all waits, or of the tail."""
    lost, whole, waited = snapshot.delay.get("upstream", 0.0), _whole(snapshot), snapshot.ttft.sum + snapshot.itl.sum
    in_the_tail = snapshot.itl.count >= FEWEST_GAPS and is_long_tailed(snapshot.itl)
    if not _is_large(lost, whole) or not (in_the_tail or lost >= VISIBLE_SHARE * waited):
        return None
    what, known, advice = _what_is_upstream(snapshot, context)
    first, gaps = upstream_seconds(snapshot, "ttft"), upstream_seconds(snapshot, "itl")
    title = f"{lost / whole:.0%} of the delay of tokens: they were not ready when the event loop waited for them{what}"
    detail = (
        f"{ms(lost)} of {ms(whole)}, of all streams together: {ms(first)} of first tokens, {ms(gaps)} of gaps. That is "
        f"before they reached the event loop: nothing that tailwatch sees on it explains that time. {known}"
    )
    severity = "high" if lost >= 0.3 * whole else "medium"
    return Finding("upstream", severity, title, detail, advice, lost)


def device(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """What steps took beyond what is usual, and nothing in them explains: visible as `upstream` is."""
    lost, whole, waited = snapshot.delay.get("device", 0.0), _whole(snapshot), snapshot.ttft.sum + snapshot.itl.sum
    in_the_tail = snapshot.itl.count >= FEWEST_GAPS and is_long_tailed(snapshot.itl)
    if not _is_large(lost, whole) or not (in_the_tail or lost >= VISIBLE_SHARE * waited):
        return None
    title = f"{lost / whole:.0%} of the delay of tokens: the device took longer than is usual"
    detail = f"{ms(lost)} of {ms(whole)}, of all streams together: an estimate, and no explanation."
    steps = [engine.graphs for engine in snapshot.engines if sum(engine.graphs.values())]
    if steps and all({name for name, count in graphs.items() if count} == {"unknown"} for graphs in steps):
        detail += " Whether steps ran without a CUDA graph is not known."
        advice = (
            "in vLLM (0.13 and later) --cudagraph-metrics: steps without a CUDA graph then have their own cause; "
            "elsewhere a profile of the device: tailwatch.profile(), nsys profile"
        )
    else:
        advice = "a profile of the device: tailwatch.profile(), nsys profile"
    return Finding("device", "medium", title, detail, advice, lost)


def _what_is_upstream(snapshot: Snapshot, context: DiagnosisContext) -> tuple[str, str, str]:
    """What makes the tokens, for the title; what is known of it; how more is."""
    makers = [process for process in snapshot.processes if delays_streams(process.role)]
    if makers:
        return _by_process(snapshot, makers)
    clients = " or ".join(context.model_clients)
    if context.model_engines:
        engine = context.model_engines[0]
        known = f"{engine} is loaded in this process" + (f", {clients} too." if clients else ".")
        return f": {engine} in the same process", known, _IN_PROCESS
    if clients:
        known = f"It may have waited for answers to requests made with {clients}, which is loaded."
        return f": the model behind {context.model_clients[0]}", known, _ELSEWHERE
    return "", "What it waited for is not known: another process or server, or a thread of this one.", _ELSEWHERE


_IN_PROCESS = (
    "tailwatch.step() around each step of its loop shows which took long and when it had none; py-spy record --pid PID "
    "shows the functions"
)
_ELSEWHERE = (
    "watch the process that makes the tokens: `tailwatch run -- COMMAND` (with the same --dir for a worker of this "
    "server), then its `tailwatch why`; tailwatch.step() around each step of a loop of your own"
)


def _by_process(snapshot: Snapshot, makers: list[Process]) -> tuple[str, str, str]:
    maker = next((process for process in makers if process.lives), makers[0])
    spy = f"py-spy record --pid {maker.pid if maker.lives and maker.pid else 'PID'} shows the functions of {maker.name}"
    if any(engine.process == maker.name for engine in snapshot.engines):
        known = f"The steps of {maker.name} are read, but its tokens have no stamp of the step that made them."
        advice = f"tailwatch trace shows its steps beside the late tokens; {spy}"
    else:
        known = f"{maker.name} is watched: its collections are known, its steps are not."
        advice = (
            f"tailwatch.step() around each step of the loop of {maker.name} (those of vLLM, SGLang and transformers "
            f"are read by themselves); {spy}"
        )
    return f": {maker.name} made them", known, advice


def _whole(snapshot: Snapshot) -> float:
    return sum(snapshot.delay.values()) - snapshot.delay.get("own_prefill", 0.0)


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
