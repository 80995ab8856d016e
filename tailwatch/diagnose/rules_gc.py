"""Rules about the collector: what its pauses cost, whether its policy fits, and what other code does to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tailwatch.diagnose import gc_advice
from tailwatch.diagnose.finding import DiagnosisContext, Finding
from tailwatch.diagnose.gc_advice import FULL
from tailwatch.diagnose.measures import (
    YOUNG_REASON,
    engine_role,
    explicit_of,
    find_gc_blame,
    find_remedy,
    freezes,
    froze,
    gc_only,
    predict_saving,
    process_name,
    recommended_policy,
    tail_shares,
    where_paused,
)
from tailwatch.diagnose.text import CAUSE_NAMES, ms, name_causes, split_by_cause
from tailwatch.gc.capabilities import CHOICES
from tailwatch.integrations.process_roles import delays_streams

if TYPE_CHECKING:
    from tailwatch.snapshots import Snapshot


_TTFT_SHARE = 0.05
_TTFT_TAIL_SHARE = 0.3
_LONG_GEN0_SECONDS = 0.005
_LEAST_SECONDS = 0.05
_LEAST_SHARE = 0.001  # of the streams' time
_LITTLE_CPU = 0.9
_CALLBACK_SHARE = 0.2
_CALLBACK_LEAST_SECONDS = 0.001
_FALL_BACK = {
    "version": "the memory layout of this Python version's collector is unknown",
    "lists": "the collector's object lists were not found at the expected place",
    "proof": "its start-up self-test failed",
}


def gc_tail(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """GC pauses dominate the tail of the gaps between tokens."""
    blame = find_gc_blame(snapshot)
    if blame is None:
        return None
    delay, overlap = gc_only(snapshot.delay_by_phase["itl"]), gc_only(snapshot.overlap_by_phase["itl"])
    count, longest = snapshot.gc.collections.get(blame.cause, 0), snapshot.gc.max.get(blame.cause, 0.0)
    detail = (
        f"{blame.percentile} ITL {ms(blame.gap)}, {ms(blame.gap - blame.lost)} without GC. "
        f"All streams together lost an estimated {ms(sum(delay.values()))} between tokens "
        f"({split_by_cause(delay, 'to')}); "
        f"up to {ms(sum(overlap.values()))} of their gaps coincided with collections. "
        f"{CAUSE_NAMES[blame.cause].capitalize()}: {count} times {where_paused(snapshot, blame.cause)}, "
        f"the longest {ms(longest)}.{_cpu(snapshot, blame.cause)}"
    )
    title = f"Up to {ms(blame.lost)} of the {blame.percentile} gap between tokens is {blame.causes}"
    severity = "high" if blame.percentile == "p99" else "medium"
    return Finding("gc-tail", severity, title, detail, _gc_advice(snapshot, delay, context), sum(delay.values()))


def _cpu(snapshot: Snapshot, cause: str) -> str:
    """The CPU time beside the wall time of the pauses, where they differ: a sentence, or ""."""
    share = gc_advice.cpu_share(snapshot, cause)
    if share is None or share >= _LITTLE_CPU:
        return ""
    paused = snapshot.paused[cause]
    return (
        f" These pauses took {ms(paused)} of wall time and {ms(share * paused)} of CPU time: for the rest the process "
        "had no CPU, or a finalizer waited and other threads ran."
    )


_REMEDIES = {
    "objects": f"install(app, gc_log_all=True): {YOUNG_REASON}; the log shows how many objects each collection found",
    "explicit": "remove the gc.collect() calls, or make them while no request is in flight; no policy avoids them, but "
    "what is frozen is not collected again; a breakpoint on gc.collect locates them",
    "cpu": "more CPUs, or fewer busy processes beside this one (cpu.max, nr_throttled in cpu.stat): "
    "no policy of the collector shortens what is no CPU time",
}


def _gc_advice(snapshot: Snapshot, delay: Mapping[str, float], context: DiagnosisContext) -> str:
    cause, remedy = max(delay, key=lambda name: delay[name]), find_remedy(snapshot, delay, context)
    if remedy != "policy":
        return _REMEDIES[remedy]
    policy = recommended_policy(snapshot, cause, context)
    if engine := engine_role(snapshot, cause):
        return _engine_advice(engine, policy, froze(snapshot, cause, context))
    if not freezes(snapshot, cause, context):
        return f"install(app, gc={policy!r})"
    if not froze(snapshot, cause, context) or context.freeze_wanted:
        return "tailwatch.freeze() at a time without requests: the heap is not frozen yet"
    return (
        "tailwatch.refreeze() at a time without requests: the remaining pauses come from newer objects. "
        "Pauses before the freeze are included; tailwatch doctor URL --window 5m shows only the last minutes"
    )


def _engine_advice(role: str, policy: str, frozen: bool) -> str:
    if frozen:
        return (
            f"tailwatch.freeze() in the {role} process while it is idle: the remaining pauses come from newer objects"
        )
    return (
        f"TAILWATCH_GC={policy} for the {role} process: its heap is frozen as soon as the group has no stream in "
        "flight; or tailwatch.freeze() there while it is idle"
    )


def gc_policy(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Another policy of the collector would have saved streams time: how much, as an interval."""
    saving = predict_saving(snapshot, context)
    if saving is None or _is_auto(snapshot, context):  # it makes that change itself
        return None
    if find_gc_blame(snapshot) is None and saving.high < _LEAST_SHARE * (snapshot.itl.sum + snapshot.ttft.sum):
        return None
    lost, low, high = sum(saving.lost.values()), saving.low, saving.high
    share = f"{low / lost:.0%} to {high / lost:.0%}" if lost > 0 else ""
    detail = (
        f"Under gc={saving.instead!r} streams lost an estimated {ms(lost)} to collections of "
        f"{process_name(saving.role)} in {snapshot.seconds:.0f} s ({split_by_cause(saving.lost, 'to')}), "
        f"each pause delaying {saving.streams:.3g} of them on average. gc={saving.policy!r} would have saved {ms(low)} "
        f"to {ms(high)} of it ({share}). Its own work takes up to {ms(saving.work)} of process time; the lower figure "
        "assumes that all of it delays as many streams."
    )
    if saving.instead == "freeze":
        detail += " Pauses before the freeze are included; use a window of the last minutes to exclude them."
    title = f"gc={saving.policy!r} would save {ms(low)} to {ms(high)} of stream time lost to collections"
    severity = "medium" if low >= lost / 5 else "low"
    advice = f"install(app, gc={saving.policy!r})"
    if delays_streams(saving.role):
        advice = f"TAILWATCH_GC={saving.policy} for the {saving.role} process"
    return Finding("gc-policy", severity, title, detail, advice, high)


def _is_auto(snapshot: Snapshot, context: DiagnosisContext) -> bool:
    """Whether gc="auto" chooses the policy, here or in a process of the group."""
    return bool(context.gc_choice) or any(process.policy.why in CHOICES for process in snapshot.processes)


def gc_explicit(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """The server's own code requests collections of all generations, and streams wait for them."""
    cause = max(FULL, key=lambda name: snapshot.delay.get(name, 0.0))
    share = explicit_of(snapshot, cause)
    lost = share * snapshot.delay.get(cause, 0.0)
    if lost < _LEAST_SECONDS:
        return None
    calls = gc_advice.explicit_calls(snapshot.processes)
    detail = (
        f"Other code called gc.collect() {calls} times; {share:.0%} of the collections of all generations "
        f"{where_paused(snapshot, cause)} were such calls. By that share they cost streams an estimated {ms(lost)}."
    )
    severity = "medium" if lost >= _LEAST_SHARE * (snapshot.itl.sum + snapshot.ttft.sum) else "low"
    return Finding("gc-explicit", severity, "gc.collect() calls delay streams", detail, _REMEDIES["explicit"], lost)


def gc_auto(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """gc="auto": the policy that it chose, the reason, and what was measured."""
    if not context.gc_choice or context.gc_policy is None:
        return None
    measured = ", ".join(f"{name} {ms(wait)}" for name, wait in context.gc_measured.items())
    detail = f"Reason: {CHOICES[context.gc_choice]}." + (
        f" Mean time for which a token that becomes ready at a random moment waits for a pause: {measured}."
        if measured
        else " No policy was measured for long enough yet."
    )
    title = f"gc='auto' has chosen {context.gc_policy!r}"
    return Finding("gc-auto", "info", title, detail, f"install(app, gc={context.gc_policy!r}) keeps this policy")


def gc_interference(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Other code changes a collector that has a policy."""
    found = gc_advice.interfered(snapshot)
    if not found:
        return None
    detail = "; ".join(f"{name}: {', '.join(sentences)}" for name, _, sentences in found) + "."
    blind = any(policy.interference.get("freeze_blind") for _, policy, _ in found)
    undone = any(policy.kind in ("freeze", "idle") and _undoes(policy.interference) for _, policy, _ in found)
    advice = "install(app, gc='observe') leaves the heap to that code; a breakpoint on the gc functions locates it"
    if blind:
        advice = "gc.collect() before gc.freeze() in that code: frozen garbage is never freed"
    severity = "medium" if undone or blind else "info"
    return Finding("gc-interference", severity, "Other code changes the garbage collector", detail, advice)


def _undoes(calls: Mapping[str, int]) -> bool:
    return any(calls.get(name) for name in ("set_threshold", "unfreeze", "callbacks")) or (
        calls.get("disable", 0) > calls.get("enable", 0)
    )


def gc_fallback(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """The self-test of the slices failed; full collections replace them."""
    found = gc_advice.fallen_back(snapshot)
    if not found:
        return None
    reasons = "; in ".join(f"{name}: {_FALL_BACK.get(why, why)}" for name, why in found)
    detail = (
        f"Idle-time GC is disabled in {reasons}. Full collections are used instead: they run while no request is in "
        "flight, or at the interpreter's thresholds if there is no such time."
    )
    advice = "CPython 3.10 to 3.13, where idle-time GC works; or install(app, gc='freeze')"
    return Finding("gc-fallback", "medium", "Idle-time GC is disabled", detail, advice)


def gc_memory_limit(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """A memory limit is met again and again."""
    found = gc_advice.at_memory_limit(snapshot)
    if not found:
        return None
    counted = "; ".join(
        f"{name}: {', '.join(f'{what} {n} times' for what, n in counts.items())}" for name, counts in found
    )
    detail = f"gc_memory_limit forced collections, even while streams were in flight: {counted}."
    advice = "a higher gc_memory_limit; or, if the live heap has grown, tailwatch.refreeze() at a time without requests"
    return Finding("gc-memory-limit", "medium", "gc_memory_limit is reached often", detail, advice)


def gc_idle_slots(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Slices find no idle slot."""
    found = gc_advice.without_idle_slots(snapshot)
    if not found:
        return None
    shares = ", ".join(f"{share:.0%} of GC slices in {name}" for name, share in found)
    detail = f"{shares} ran while requests were waiting."
    advice = "asyncio or uvloop as the event loop, tailwatch.step() around an engine's iterations, or less load"
    return Finding("gc-idle-slots", "low", "Idle-time GC finds no idle time", detail, advice)


def gc_ttft(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Requests wait for GC before their first token."""
    delay, overlap = gc_only(snapshot.delay_by_phase["ttft"]), gc_only(snapshot.overlap_by_phase["ttft"])
    lost, share = sum(delay.values()), tail_shares(snapshot, "ttft").get("gc", 0.0)
    if lost < 0.05 or (lost < _TTFT_SHARE * snapshot.ttft.sum and share < _TTFT_TAIL_SHARE):
        return None
    cause = max(delay, key=lambda name: delay[name])
    detail = (
        f"Collections delayed {snapshot.ttft.count} first tokens by {ms(lost)} in total ({split_by_cause(delay)}), "
        f"{where_paused(snapshot, cause)}; {ms(sum(overlap.values()))} of the waits for them coincided with one. "
        f"p99 TTFT {ms(snapshot.ttft.p(99))}."
    )
    title = f"First tokens wait for {name_causes(delay)}"
    return Finding("gc-ttft", "medium", title, detail, _gc_advice(snapshot, delay, context), lost)


def policy_pauses(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Our own pauses delayed streams."""
    lost = snapshot.delay.get("gc_own", 0.0)
    by_source = {role: phases.get("ttft", {}).get("gc_own", 0.0) for role, phases in snapshot.overlap_by_source.items()}
    waited = {role: seconds for role, seconds in by_source.items() if seconds > 0}
    if max(lost, sum(waited.values())) < 0.05:
        return None
    detail = f"Streams lost an estimated {ms(lost)} to tailwatch's own freezes, slices and full collections."
    if waited:
        where = ", ".join(f"{ms(seconds)} in {role}" for role, seconds in waited.items())
        detail += f" Waits for first tokens coincided with {where} of them, an upper bound of what they cost."
    advice = "install(app) before the server takes traffic: the freeze then runs at lifespan start-up"
    if context.started != "install":
        advice = "tailwatch doctor URL --window 10m shows whether they go on; install(app, gc='observe') makes none"
    return Finding("policy-pauses", "low", "tailwatch's own pauses delayed requests", detail, advice, lost)


def freeze_pending(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """The freeze found no instant without a stream in flight."""
    if not context.freeze_wanted:
        return None
    detail = (
        "For 10 minutes at least one stream was always in flight, and a freeze never interrupts a stream; "
        f"{snapshot.in_flight} are in flight now. Every full collection still visits "
        + ("all objects made since start-up." if context.freeze_done else "the whole heap.")
    )
    advice = "tailwatch.freeze() at a time without requests, or drain this server once"
    return Finding("freeze-pending", "medium", "The heap could not be frozen after warm-up", detail, advice)


def external_freeze(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Other code froze the heap."""
    if not context.external_freezes:
        return None
    detail = (
        f"Other code called gc.freeze() {context.external_freezes} times. "
        "tailwatch never undoes it; any garbage frozen by it stays until gc.unfreeze()."
    )
    advice = "no action needed; install(app, gc='observe') leaves the heap to that code alone"
    return Finding("external-freeze", "info", "Other code froze the heap", detail, advice)


def gc_disabled(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Automatic collection is off, and cyclic garbage stays."""
    if context.gc_enabled is not False and not (context.thresholds and context.thresholds[0] == 0):
        return None
    detail = "Other code switched automatic collection off in this process: cyclic garbage is never freed."
    advice = "gc.enable() and install(app, gc='freeze'): short pauses without memory growth"
    return Finding("gc-disabled", "medium", "Garbage collection is switched off", detail, advice)


def long_generation_0(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Collections of the youngest generation took long, and streams waited for them."""
    longest, lost = snapshot.gc.max.get("gc0", 0.0), snapshot.delay.get("gc0", 0.0)
    if longest < _LONG_GEN0_SECONDS or lost < _LEAST_SECONDS:
        return None
    detail = (
        f"The longest pause took {ms(longest)}; streams lost an estimated {ms(lost)} to generation 0. That is wall "
        "time, and CPU time is not measured for generation 0: the collector may have worked, or the process had no CPU."
    )
    if context.python_version is not None and tuple(context.python_version) >= (3, 12):
        detail += " C code that allocates many objects (json.loads, pickle) leaves a large generation 0 since 3.12."
    severity = "medium" if lost >= _LEAST_SHARE * (snapshot.itl.sum + snapshot.ttft.sum) else "low"
    advice = (
        "install(app, gc_warn_ms=5) logs each with its objects: few objects in a long pause are a process without a CPU"
    )
    title = f"Generation 0 pauses took up to {ms(longest)} of wall time"
    return Finding("long-generation-0", severity, title, detail, advice, lost)


def callbacks(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Other people's gc.callbacks make the pauses longer."""
    spent, paused = (sum(gc_only(values).values()) for values in (snapshot.gc.callbacks, snapshot.paused))
    if spent < _CALLBACK_LEAST_SECONDS or spent <= _CALLBACK_SHARE * paused:
        return None
    detail = f"Callbacks of other code took {ms(spent)} of {ms(paused)} of GC pauses ({spent / paused:.0%})."
    advice = (
        "print(gc.callbacks) in the server lists them (a server's own GC debug option adds one); remove the slowest"
    )
    lost = spent / paused * sum(gc_only(snapshot.delay).values())
    return Finding("gc-callbacks", "medium", "gc.callbacks of other code lengthen GC pauses", detail, advice, lost)
