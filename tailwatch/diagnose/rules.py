"""Advice over a snapshot: a table of small rules, each a question with one answer or none.

A rule looks at frozen numbers only. `late` is quoted as the estimate it is, an overlap as "up to": an upper
bound. Each finding ends in a command or an option; to find nothing is an answer too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from tailwatch.diagnose import gc_advice
from tailwatch.diagnose.text import CAUSE_NAMES, ms, name_causes, split_by_cause
from tailwatch.diagnose.text import format_findings as format_findings
from tailwatch.diagnose.text import format_slow as format_slow
from tailwatch.diagnose.text import format_tail as format_tail
from tailwatch.integrations.process_roles import delays_streams
from tailwatch.options.config import nearest_variable
from tailwatch.options.slo import MISSES
from tailwatch.snapshots.serialization import from_dict as from_dict

if TYPE_CHECKING:
    from tailwatch.snapshots import Histogram, Process, Snapshot, Step

SEVERITIES = ("high", "medium", "low", "info")
GC_CAUSES = ("gc0", "gc1", "gc2", "gc_full", "gc_increment")

_YOUNG = ("gc0", "gc1")
_YOUNG_REASON = "the freeze does not touch it: it is what each request allocates"

# When a rule speaks. The histograms are exact to 1.1 %, so a fifth of a percentile is far beyond their error.
_GC_SHARE_OF_PERCENTILE = 0.2
_GC_LEAST_SECONDS = 0.002
_TTFT_SHARE = 0.05
_LONG_GEN0_SECONDS = 0.005
_CALLBACK_SHARE = 0.2
_CALLBACK_LEAST_SECONDS = 0.001
_ACCEPT_P99_SECONDS = 0.02
_CLIENT_SHARE = 0.3
_UNEXPLAINED_SHARE = 0.5
_STEP_SHARE = 0.01
_STEP_LEAST_SECONDS = 0.05
_STEP_LONGEST = 3.0
_HOST_GAP_SHARE = 0.1
_FEWEST_STEPS = 100
_FEWEST_JUDGED = 20
_FEWEST_GAPS = 100

_HARMLESS_FALLBACKS = frozenset({"unsupported", "shapes"})  # see sse.accelerate.Fallback
_FALLBACKS = {
    "differs": (
        "Differs: a frame made here was not the server's; the server's was sent. After its first 16 frames a shape is "
        "compared once in 1024 (compare_every): the frames since the comparison before, up to 1023 of each such shape, "
        "may have been wrong at the clients. From then on the server writes them."
    ),
    "error": (
        "Error: tailwatch's own code failed, or the server refused a frame that was made here; then and from then on "
        "the clients got what the server makes."
    ),
    "other": "Other: more kinds than are counted apart, of any reason.",
    "unsupported": "Unsupported: beyond the templates; the clients get the server's frames, only not faster.",
    "shapes": (
        "Shapes: more kinds of frames than there is room for; those learned go on being made here, the others are the "
        "server's, only not faster."
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing: which rule saw it, how bad it is, what it is in numbers, and what mends it."""

    rule: str
    severity: str
    title: str
    detail: str
    advice: str


@dataclass(frozen=True, slots=True)
class DiagnosisContext:
    """What a snapshot does not hold: how this process is set up. None: not known (a saved snapshot).

    Attributes:
        gc_policy: "freeze", "out-of-band", "observe" or "off".
        freeze_done: the heap was frozen at least once.
        freeze_wanted: one more was due, and no instant without a stream in flight came within 10 minutes.
        foreign_freezes: gc.freeze() calls by others that were seen.
        gc_enabled: gc.isenabled().
        thresholds: gc.get_threshold().
        python_version: sys.version_info[:3].
        unknown_environment: TAILWATCH_* variables that are no option.
        memory_bytes: what tailwatch keeps for its numbers at most, fixed at install.
        fast_sse: the option is on.
        accelerated: what it serialises for, dotted names.
        notes: more to tell, a sentence each.
    """

    gc_policy: str | None = None
    freeze_done: bool | None = None
    freeze_wanted: bool = False
    foreign_freezes: int = 0
    gc_enabled: bool | None = None
    thresholds: tuple[int, ...] | None = None
    python_version: tuple[int, ...] | None = None
    unknown_environment: tuple[str, ...] = ()
    memory_bytes: int | None = None
    fast_sse: bool = False
    accelerated: tuple[str, ...] = ()
    notes: tuple[str, ...] | list[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON, beside a saved snapshot: {"snapshot": ..., "context": ...}."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DiagnosisContext:
        """What as_dict() wrote; names it does not know are left out."""
        known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}
        return cls(**values)


Rule = Callable[["Snapshot", DiagnosisContext], "Finding | None"]


def doctor(snapshot: Snapshot, context: DiagnosisContext | None = None) -> list[Finding]:
    """Everything the rules see, the worst first; never empty."""
    context = context or DiagnosisContext()
    found = [finding for rule in RULES if (finding := rule(snapshot, context)) is not None]
    if all(finding.severity == "info" for finding in found):
        found.append(_nothing(snapshot, context) if _seen(snapshot) else _no_requests())
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def headline(snapshot: Snapshot, context: DiagnosisContext | None = None) -> str:
    """One sentence: the tail of the gaps between tokens, and what GC has to do with it."""
    context = context or DiagnosisContext()
    blame = _blame(snapshot)
    if blame is None:
        return _headline_without_gc(snapshot)
    return (
        f"{blame.percentile} ITL {ms(blame.gap)}; up to {ms(blame.lost)} of it is {blame.causes}, "
        f"{_where(snapshot, blame.cause)}; {_mends(snapshot, blame.cause, context)}"
    )


def _headline_without_gc(snapshot: Snapshot) -> str:
    p99 = snapshot.itl.p(99)
    if p99 is None:
        return "no gaps between tokens yet"
    without = snapshot.itl_without_gc.p(99)
    return f"p99 ITL {ms(p99)}, {ms(without)} without garbage collection: it is not what makes the tail"


def _mends(snapshot: Snapshot, cause: str, context: DiagnosisContext) -> str:
    if cause in _YOUNG:
        return f"{_YOUNG_REASON}, `install(app, gc_log_all=True)` logs each with its objects"
    if (engine := _engine(snapshot, cause)) and _froze(snapshot, cause, context):
        return f"the {engine} process's heap is frozen: this is what newer objects cost"
    if engine:
        return f"gc='freeze' (TAILWATCH_GC=freeze) in the {engine} process mends it"
    if not _freezes(snapshot, cause, context):
        return f"`install(app, gc='freeze')` {'shortens' if cause == 'gc_increment' else 'mends'} it"
    if _froze(snapshot, cause, context):
        return "the heap is frozen: this is what newer objects cost"
    return "`tailwatch.freeze()` at a quiet moment mends it"


# Numbers the rules share -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Blame:
    """The lowest percentile of ITL at which GC shows: its gap, what it lost, and the causes, the worst first."""

    percentile: str
    gap: float
    lost: float
    cause: str
    causes: str


def _blame(snapshot: Snapshot) -> _Blame | None:
    late = _gc_only(snapshot.late_by_phase["itl"])
    for name, needed, value in _LEVELS:
        if snapshot.itl.count < needed or not any(late.values()):
            continue
        gap, without = value(snapshot.itl), value(snapshot.itl_without_gc)
        lost = (gap or 0.0) - (without or 0.0)
        if gap and lost >= max(_GC_LEAST_SECONDS, gap * _GC_SHARE_OF_PERCENTILE):
            return _Blame(name, gap, lost, max(late, key=lambda cause: late[cause]), name_causes(late))
    return None


_LEVELS: tuple[tuple[str, int, Callable[[Histogram], float | None]], ...] = (
    ("p99", 100, lambda gaps: gaps.p(99)),
    ("p99.9", 1000, lambda gaps: gaps.p(99.9)),
    ("longest", 1, lambda gaps: gaps.max),
)


def _gc_only(by_cause: Mapping[str, float]) -> dict[str, float]:
    return {cause: by_cause.get(cause, 0.0) for cause in GC_CAUSES}


def _where(snapshot: Snapshot, cause: str) -> str:
    """Which process was paused by a cause; of several, the one that streams lost most to."""
    paused = _paused(snapshot, cause)
    worst = _worst(snapshot, cause)
    if worst is None:
        return "in this group of processes"
    name = "the server" if worst.role == "api" else f"the {worst.role} process"
    return f"in {name}" if len(paused) == 1 else f"in {len(paused)} processes, most in {worst.name}"


def _paused(snapshot: Snapshot, cause: str) -> list[Process]:
    """Those paused by a cause; where streams lost time to some, only those: the others paused while nobody waited."""
    paused = [process for process in snapshot.processes if process.paused.get(cause, 0.0) > 0]
    return [process for process in paused if _lost_to(snapshot, process.role, cause) > 0] or paused


def _worst(snapshot: Snapshot, cause: str) -> Process | None:
    """The process paused most by a cause, among those that streams lost most to. None: not known by process."""
    paused = _paused(snapshot, cause)
    if not paused or paused[0].role == "*":
        return None
    return max(paused, key=lambda process: (_lost_to(snapshot, process.role, cause), process.paused[cause]))


def _lost_to(snapshot: Snapshot, role: str, cause: str) -> float:
    return sum(by_cause.get(cause, 0.0) for by_cause in snapshot.late_by_source.get(role, {}).values())


def _engine(snapshot: Snapshot, cause: str) -> str:
    """The role of the worst process where it is one without an app; else ""."""
    worst = _worst(snapshot, cause)
    return worst.role if worst is not None and delays_streams(worst.role) else ""


def _freezes(snapshot: Snapshot, cause: str, context: DiagnosisContext) -> bool:
    """Whether the policy is to freeze; from outside that is seen by its pauses."""
    return context.gc_policy in ("freeze", "out-of-band") or (
        context.gc_policy is None and _froze(snapshot, cause, context)
    )


def _froze(snapshot: Snapshot, cause: str, context: DiagnosisContext) -> bool:
    worst = _worst(snapshot, cause)
    if worst is not None and (context.freeze_done is None or delays_streams(worst.role)):
        return worst.paused.get("policy", 0.0) > 0
    return bool(context.freeze_done)


def _tail_shares(snapshot: Snapshot, phase: str) -> dict[str, float]:
    """Shares of the time that the slowest gaps took beyond the typical, over the octaves that reach p99."""
    histogram = snapshot.itl if phase == "itl" else snapshot.ttft
    p99 = histogram.p(99)
    sums = {"gc": 0.0, "policy": 0.0, "client": 0.0, "accept": 0.0, "unexplained": 0.0}
    for octave in snapshot.tail.get(phase, []):
        if p99 is None or octave.upper <= p99:
            continue
        sums["gc"] += sum(_gc_only(octave.late).values())
        sums["policy"] += octave.late.get("policy", 0.0)
        sums["client"] += octave.client
        sums["accept"] += octave.accept
        sums["unexplained"] += octave.unexplained
    total = sum(sums.values())
    return {name: value / total for name, value in sums.items()} if total > 0 else {}


def _seen(snapshot: Snapshot) -> bool:
    return bool(snapshot.opened or sum(snapshot.requests.values()) or snapshot.itl.count or _step_count(snapshot))


def _step_count(snapshot: Snapshot) -> int:
    return sum(step.steps.time.count for step in snapshot.steps)


def _step_paused(step: Step) -> dict[str, float]:
    """What of an engine's steps, and of the host gaps between them, coincided with pauses, by cause."""
    return {cause: step.steps.overlap.get(cause, 0.0) + step.host_gaps.overlap.get(cause, 0.0) for cause in CAUSE_NAMES}


def _step_seconds(step: Step) -> float:
    return step.steps.time.sum + step.host_gaps.time.sum


# The rules -------------------------------------------------------------------------------------------------


def gc_tail(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """GC pauses dominate the tail of the gaps between tokens."""
    blame = _blame(snapshot)
    if blame is None:
        return None
    late, overlap = _gc_only(snapshot.late_by_phase["itl"]), _gc_only(snapshot.overlap_by_phase["itl"])
    count, longest = snapshot.gc.collections.get(blame.cause, 0), snapshot.gc.max.get(blame.cause, 0.0)
    detail = (
        f"{blame.percentile} ITL {ms(blame.gap)}, {ms(blame.gap - blame.lost)} without GC. "
        f"All streams together lost an estimated {ms(sum(late.values()))} ({split_by_cause(late, 'to')}); "
        f"up to {ms(sum(overlap.values()))} of their gaps coincided with collections. "
        f"{CAUSE_NAMES[blame.cause].capitalize()}: {count} times {_where(snapshot, blame.cause)}, "
        f"the longest {ms(longest)}."
    )
    title = f"up to {ms(blame.lost)} of the {blame.percentile} gap between tokens is {blame.causes}"
    severity = "high" if blame.percentile == "p99" else "medium"
    return Finding("gc-tail", severity, title, detail, _gc_advice(snapshot, blame.cause, context))


def _gc_advice(snapshot: Snapshot, cause: str, context: DiagnosisContext) -> str:
    if cause in _YOUNG:
        return f"install(app, gc_log_all=True): {_YOUNG_REASON}; the log says how much each pass found"
    if engine := _engine(snapshot, cause):
        return _engine_advice(engine, _froze(snapshot, cause, context))
    if not _freezes(snapshot, cause, context):
        saving = _saving(snapshot, context)
        return f"install(app, gc={saving.policy!r})" if saving else "install(app, gc='freeze')"
    if not _froze(snapshot, cause, context) or context.freeze_wanted:
        return "tailwatch.freeze() at a quiet moment: the heap is not frozen yet"
    return (
        "tailwatch.freeze(again=True) at a quiet moment: what remains is objects made after the freeze. Pauses "
        "from before it are counted too: tailwatch.snapshot(window='5m') shows the last minutes"
    )


def _engine_advice(role: str, frozen: bool) -> str:
    if frozen:
        return f"tailwatch.freeze() in the {role} process, while it has nothing to do: what remains is newer objects"
    return (
        f"TAILWATCH_GC=freeze for the {role} process, which freezes its heap once its group has no stream in flight, "
        "or tailwatch.freeze() there, while it has nothing to do"
    )


def _saving(snapshot: Snapshot, context: DiagnosisContext) -> gc_advice.Saving | None:
    return gc_advice.predict(
        snapshot, policy=context.gc_policy, thresholds=context.thresholds, version=context.python_version
    )


def gc_policy(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Another policy of the collector would have saved streams time: how much, as an interval."""
    saving = _saving(snapshot, context)
    if saving is None:
        return None
    lost, low, high = sum(saving.lost.values()), saving.low, saving.high
    share = f"{low / lost:.0%} to {high / lost:.0%}" if lost > 0 else ""
    detail = (
        f"Under gc={saving.instead!r} streams lost an estimated {ms(lost)} to collections of {_named(saving.role)} in "
        f"{snapshot.seconds:.0f} s ({split_by_cause(saving.lost, 'to')}), {saving.streams:.3g} of them at a time. In "
        f"that time gc={saving.policy!r} would have saved {ms(low)} to {ms(high)} of it ({share}): its own work takes "
        f"up to {ms(saving.work)} of the process, and the lower end has all of it fall where as many wait."
    )
    if saving.instead == "freeze":
        detail += " Pauses from before the freeze are counted too: of a window of the last minutes they are not."
    title = f"gc={saving.policy!r} would save streams {ms(low)} to {ms(high)} of what collections cost them"
    severity = "medium" if low >= lost / 5 else "low"
    return Finding("gc-policy", severity, title, detail, _policy_advice(saving))


def _named(role: str) -> str:
    return "the server" if role == "api" else f"the {role} process"


def _policy_advice(saving: gc_advice.Saving) -> str:
    if delays_streams(saving.role):
        return f"TAILWATCH_GC={saving.policy} for the {saving.role} process"
    return f"install(app, gc={saving.policy!r})"


def gc_drift(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Others meddle with a collector that has a policy."""
    found = gc_advice.drifted(snapshot)
    if not found:
        return None
    detail = "; ".join(f"{name}: {', '.join(sentences)}" for name, _, sentences in found) + "."
    blind = any(policy.drift.get("freeze_blind") for _, policy, _ in found)
    undone = any(policy.kind in ("freeze", "out-of-band") and _undoes(policy.drift) for _, policy, _ in found)
    advice = "install(app, gc='observe') leaves the heap to that code; a breakpoint in gc's functions finds it"
    if blind:
        advice = "gc.collect() before gc.freeze() in that code: what garbage is frozen is never freed"
    severity = "medium" if undone or blind else "info"
    return Finding("gc-drift", severity, "other code meddles with the collector", detail, advice)


def _undoes(calls: Mapping[str, int]) -> bool:
    return any(calls.get(name) for name in ("set_threshold", "unfreeze", "callbacks")) or (
        calls.get("disable", 0) > calls.get("enable", 0)
    )


_FALL_BACK = {
    "version": "the collector's lists of its Python are not known",
    "lists": "they are not where its Python has them",
    "proof": "a planted cycle did not die, or a living one did",
}


def gc_fallback(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """The sweep could not prove itself, and whole passes are made instead."""
    found = gc_advice.fallen_back(snapshot)
    if not found:
        return None
    told = ", ".join(f"{name} ({_FALL_BACK.get(why, why)})" for name, why in found)
    detail = (
        f"The old heap is not swept in slices in {told}: whole passes of what is not frozen are made when no request "
        "is in flight, and the interpreter's own where none is found."
    )
    advice = (
        "CPython 3.10 to 3.13, where slices work; or install(app, gc='freeze'), which promises no more than it does"
    )
    return Finding("gc-fallback", "medium", "gc='out-of-band' cannot sweep here", detail, advice)


def gc_ceiling(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """A ceiling is met again and again."""
    found = gc_advice.at_ceiling(snapshot)
    if not found:
        return None
    told = "; ".join(
        f"{name}: {', '.join(f'{what} {n} times' for what, n in counts.items())}" for name, counts in found
    )
    detail = f"Passes were forced by gc_ceiling, also where streams were in flight: {told}."
    advice = "a higher gc_ceiling, or tailwatch.freeze(again=True) at a quiet moment where the living heap has grown"
    return Finding("gc-ceiling", "medium", "a ceiling of the heap is met often", detail, advice)


def gc_moments(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Slices find no moment in which nobody waits."""
    found = gc_advice.without_moments(snapshot)
    if not found:
        return None
    told = ", ".join(f"{name} {share:.0%}" for name, share in found)
    detail = f"Slices were made although no moment was found in which nobody waits: {told} of them."
    advice = "asyncio's or uvloop's loop, or tailwatch.step() around an engine's iterations, give moments; or less load"
    return Finding("gc-moments", "low", "slices find no moment without work", detail, advice)


def gc_ttft(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Requests wait for GC before the app even sees them."""
    late, overlap = _gc_only(snapshot.late_by_phase["ttft"]), _gc_only(snapshot.overlap_by_phase["ttft"])
    lost, share = sum(late.values()), _tail_shares(snapshot, "ttft").get("gc", 0.0)
    if lost < 0.05 or (lost < _TTFT_SHARE * snapshot.ttft.sum and share < _CLIENT_SHARE):
        return None
    cause = max(late, key=lambda name: late[name])
    detail = (
        f"{snapshot.ttft.count} requests waited {ms(lost)} in all for collections before the app was entered "
        f"({split_by_cause(late)}), {_where(snapshot, cause)}; "
        f"up to {ms(sum(overlap.values()))} of their time to first token coincided with one. "
        f"p99 TTFT {ms(snapshot.ttft.p(99))}."
    )
    title = f"requests wait for {name_causes(late)} before they are accepted"
    return Finding("gc-ttft", "medium", title, detail, _gc_advice(snapshot, cause, context))


def engine_pauses(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Pauses take a visible share of an engine's steps, or make its longest."""
    hit = [step for step in snapshot.steps if _is_hit(step)]
    if not hit:
        return None
    worst = max(hit, key=lambda step: sum(_step_paused(step).values()))
    paused, spent = _step_paused(worst), _step_seconds(worst)
    lost, cause = sum(paused.values()), max(paused, key=lambda name: paused[name])
    requests = sum(worst.steps.requests.values()) + sum(worst.host_gaps.requests.values())
    length = worst.steps.time
    detail = (
        f"{length.count} {worst.name!r} steps of {worst.process} and the gaps before them took {ms(spent)}; up to "
        f"{ms(lost)} of that ({lost / spent:.1%}) coincided with pauses of that process ({split_by_cause(paused)}). "
        f"With {worst.batch or 0:.3g} requests in a step on average it is up to {ms(requests)} of requests' time. "
        f"p50 {ms(length.p(50))}, the longest {ms(length.max)}."
    )
    title = f"up to {lost / spent:.1%} of the engine's {worst.name!r} steps is {name_causes(paused)}"
    severity = "high" if lost >= 5 * _STEP_SHARE * spent else "medium"
    return Finding("engine-pauses", severity, title, detail, _step_advice(worst, cause))


def _step_advice(step: Step, cause: str) -> str:
    if cause in _YOUNG:
        return f"install(role={step.role!r}, gc_log_all=True): {_YOUNG_REASON}; the log says how much each pass found"
    return f"tailwatch.freeze() in the {step.role} process between two steps, once its model is loaded"


def _is_hit(step: Step) -> bool:
    lost, length = sum(_step_paused(step).values()), step.steps.time
    if lost < _STEP_LEAST_SECONDS:
        return False
    typical, longest = length.p(50) or 0.0, length.max or 0.0
    made_the_longest = longest >= _STEP_LONGEST * typical and lost >= (longest - typical) / 2
    return lost >= _STEP_SHARE * _step_seconds(step) or made_the_longest


def host_gaps(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """The device waits for the host between steps, while there is work."""
    gaps = [step for step in snapshot.steps if step.host_gaps.time.count >= _FEWEST_STEPS]
    if not gaps:
        return None
    worst = max(gaps, key=lambda step: step.host_gaps.time.sum / _step_seconds(step))
    gap, share = worst.host_gaps.time, worst.host_gaps.time.sum / _step_seconds(worst)
    if share < _HOST_GAP_SHARE:
        return None
    paused = sum(worst.host_gaps.overlap.values())
    detail = (
        f"{worst.process} ran no step for {ms(gap.sum)} between its {worst.name!r} steps ({share:.0%} of their time) "
        f"while requests waited: {gap.count} gaps, p50 {ms(gap.p(50))}, p99 {ms(gap.p(99))}. "
        f"Up to {ms(paused)} of it is pauses; the rest is what the host does there."
    )
    advice = (
        "vllm serve --async-scheduling, SGLang without --disable-overlap-schedule: the host works while the device "
        "does (py-spy record --pid PID shows at what)"
    )
    severity = "high" if share >= 3 * _HOST_GAP_SHARE else "medium"
    return Finding(
        "host-gaps", severity, f"the engine stands for {share:.0%} of its time between steps", detail, advice
    )


def policy_pauses(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Our own freeze cost somebody time."""
    lost = snapshot.late.get("policy", 0.0)
    if lost < 0.05:
        return None
    detail = f"Streams lost an estimated {ms(lost)} to tailwatch's own collect-freeze-collect passes."
    advice = "install(app) before the server takes traffic, so that the freeze happens at lifespan start-up"
    return Finding("policy-pauses", "low", "the freeze itself delayed requests", detail, advice)


def freeze_pending(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """The freeze found no instant without a stream in flight."""
    if not context.freeze_wanted:
        return None
    detail = (
        "For 10 minutes there was no instant without a stream in flight, and tailwatch never stops one; "
        f"{snapshot.in_flight} are in flight now. "
        + ("Objects made since start-up are" if context.freeze_done else "The whole heap is")
        + " still walked by every full collection."
    )
    advice = "tailwatch.freeze() at a quiet moment, or drain this server once"
    return Finding("freeze-pending", "medium", "the heap could not be frozen after warm-up", detail, advice)


def foreign_freeze(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Somebody else froze the heap."""
    if not context.foreign_freezes:
        return None
    detail = (
        f"gc.freeze() was called {context.foreign_freezes} times by other code. "
        "tailwatch never undoes it; garbage that was frozen with it stays until gc.unfreeze()."
    )
    advice = "nothing to mend; install(app, gc='observe') leaves the heap to that code alone"
    return Finding("foreign-freeze", "info", "other code froze the heap", detail, advice)


def gc_disabled(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Automatic collection is off, and cyclic garbage stays."""
    if context.gc_enabled is not False and not (context.thresholds and context.thresholds[0] == 0):
        return None
    detail = "Automatic collection is switched off in this process, not by tailwatch: cyclic garbage is never freed."
    advice = "gc.enable() and install(app, gc='freeze'): short pauses without the growth"
    return Finding("gc-disabled", "medium", "somebody switched garbage collection off", detail, advice)


def long_generation_0(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """The youngest generation takes long, which it should not."""
    longest = snapshot.gc.max.get("gc0", 0.0)
    if longest < _LONG_GEN0_SECONDS:
        return None
    modern = context.python_version is None or tuple(context.python_version) >= (3, 12)
    reason = (
        "Since CPython 3.12 it waits for the interpreter loop, so C code that allocates a lot (json.loads, pickle, "
        "a big decode) leaves one huge young list: go by the length of a pause, not by its generation."
        if modern
        else "It is small on this version: finalizers that work, or a burst of cyclic garbage, make it long."
    )
    lost = snapshot.late.get("gc0", 0.0)
    detail = f"The longest took {ms(longest)}; streams lost an estimated {ms(lost)} to generation 0. {reason}"
    severity = "medium" if lost >= 0.1 else "low"
    advice = "install(app, gc_warn_ms=5): logs each with its objects; decode large inputs in pieces"
    return Finding("long-generation-0", severity, "generation 0 pauses are long", detail, advice)


def callbacks(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Other people's gc.callbacks make the pauses longer."""
    spent, paused = (sum(_gc_only(values).values()) for values in (snapshot.gc.callbacks, snapshot.paused))
    if spent < _CALLBACK_LEAST_SECONDS or spent <= _CALLBACK_SHARE * paused:
        return None
    detail = f"Callbacks of other code took {ms(spent)} of {ms(paused)} paused: {spent / paused:.0%}."
    advice = (
        "print(gc.callbacks) in the server lists them (a server's own GC debug option adds one); remove the dearest"
    )
    return Finding("gc-callbacks", "medium", "gc.callbacks of other code lengthen the pauses", detail, advice)


def accept_wait(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Requests wait for the event loop, and pauses do not explain it."""
    accept = snapshot.queue["accept"]
    p99 = accept.p(99)
    other = accept.sum - sum(snapshot.late_by_phase["ttft"].values())
    if p99 is None or p99 < _ACCEPT_P99_SECONDS or other < 0.5 * accept.sum:
        return None
    detail = (
        f"p99 from the kernel's arrival to the app {ms(p99)}, {accept.count} requests; "
        f"{ms(other)} of {ms(accept.sum)} in all is no recorded pause: "
        "something else holds the event loop before the app is entered."
    )
    advice = "PYTHONASYNCIODEBUG=1 logs each callback over 100 ms; move what blocks into a thread (asyncio.to_thread)"
    return Finding("accept-wait", "medium", "the event loop is blocked while requests arrive", detail, advice)


def slow_clients(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Clients that read slowly stretch the gaps."""
    share, waits = _tail_shares(snapshot, "itl").get("client", 0.0), snapshot.send_wait
    if not waits.count or share < _CLIENT_SHARE:
        return None
    detail = (
        f"{share:.0%} of the slowest gaps' excess is waiting for a client to read; {waits.count} sends waited, "
        f"p99 {ms(waits.p(99))}, {ms(waits.sum)} in all. The model is not slower for it."
    )
    advice = "tailwatch doctor URL --slow names their requests; install(app, slow_ms=200) logs them"
    return Finding("slow-clients", "low", "slow clients make part of the tail", detail, advice)


def unexplained(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Most of the tail is neither a pause nor a slow client."""
    share = _tail_shares(snapshot, "itl").get("unexplained", 0.0)
    p50, p99 = snapshot.itl.p(50), snapshot.itl.p(99)
    if snapshot.itl.count < _FEWEST_GAPS or share < _UNEXPLAINED_SHARE or p50 is None or p99 is None or p99 < 2 * p50:
        return None
    detail = (
        f"p99 ITL {ms(p99)} against p50 {ms(p50)}; {share:.0%} of the slowest gaps' excess is no collection "
        "and no slow client. It may be the model, the batch, the event loop or the machine: "
        "nothing here tells them apart."
    )
    advice = "install(app, slow_ms=100): logs each slow gap with its request and split"
    return Finding("unexplained", "low", "most of the tail is not explained by pauses", detail, advice)


def slo_missed(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Fewer good requests than asked for."""
    attainment, asked = snapshot.attainment, snapshot.slo.attainment
    good, missed = snapshot.requests.get("good", 0), {name: snapshot.requests.get(name, 0) for name in MISSES}
    judged = good + sum(missed.values())
    if attainment is None or attainment >= asked or judged < _FEWEST_JUDGED:
        return None
    why = ", ".join(f"{name} {count}" for name, count in sorted(missed.items(), key=lambda item: -item[1]) if count)
    detail = f"{good} of {judged} requests were good; misses: {why}. {_worst_bound(snapshot)}"
    title = f"attainment {attainment:.2%} is below the {asked:.2%} asked for"
    advice = "tailwatch doctor URL --slow shows the gaps that cost it; install(app, slo=...) sets other bounds"
    return Finding("slo", "high", title, detail, advice)


def _worst_bound(snapshot: Snapshot) -> str:
    within = {name: share for name, share in snapshot.window("1h").within.items() if share is not None}
    within = {name: share for name, share in within.items() if getattr(snapshot.slo, name, None)}
    if not within:
        return "Which bound was missed most is not recorded here."
    worst = min(within, key=lambda name: within[name])
    bound = getattr(snapshot.slo, worst)
    return f"The bound missed most is {worst} <= {ms(bound)}: {within[worst]:.2%} kept it in the last hour."


def label_overflow(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """More label sets than there is room for."""
    if not snapshot.label_overflow:
        return None
    room = min(4096, max(64, 2 * len(snapshot.labels)))
    detail = (
        f"{snapshot.label_overflow} requests are counted under model and route 'other': there was no room for theirs."
    )
    advice = f"install(app, max_label_sets={room})"
    return Finding("label-overflow", "low", "label sets ran out", detail, advice)


_DROP_ADVICE = {
    "opaque": "leave text/event-stream out of the compression: a compressed body cannot be read",
    "choice": "nothing to mend: choices beyond the eighth of a request have no TPOT",
    "slow_log": "install(app, slow_ms=...) with a higher bound: slow gaps came faster than they were logged",
    "pause_log": "install(app, gc_log_all=False, gc_warn_ms=...): pauses came faster than they were logged",
    "late_stamp": "look for tokens stamped after the end of their stream (s.token(at=...))",
    "unknown_gap": "install(app, slow_ms=...): gaps spanned more pauses than are kept, their overlap is a lower bound",
    "cut_event": "nothing to mend: events longer than is kept were judged by their beginning",
    "protobuf_family": "install(app, exposition='classic'), or unregister what protobuf has no form for in the app's "
    "own registry: scrapes that asked for native histograms got text",
    "protobuf_slow": "install(app, exposition='classic'), or fewer label sets in the app's own registry: it takes too "
    "long, and scrapes that asked for native histograms got text",
    "trace_trigger": "install(app, trace_on=...) with a higher bound: it asked for a file too soon after the last, or "
    "the file could not be written",
    "export": "look whether the receiver at OTEL_EXPORTER_OTLP_ENDPOINT answers: rounds were not taken, and the next "
    "one tells of that time too",
    "span": "OTEL_TRACES_SAMPLER=parentbased_traceidratio: requests ended faster than their spans were made or sent",
}


def drops(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Something was not recorded, and counted."""
    dropped = {reason: count for reason, count in snapshot.drops.items() if count}
    if not dropped:
        return None
    worst = max(dropped, key=lambda reason: dropped[reason])
    detail = "Dropped and counted: " + ", ".join(f"{reason} {count}" for reason, count in dropped.items()) + "."
    advice = _DROP_ADVICE.get(worst, "tailwatch_dropped_events_total at /metrics shows when")
    return Finding("drops", "low", "some events were dropped", detail, advice)


def internal_errors(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Something went wrong inside tailwatch itself."""
    failed = {where: count for where, count in snapshot.errors.items() if count}
    if not failed:
        return None
    detail = "Counted, logged once, and kept from the server: " + ", ".join(f"{k} {v}" for k, v in failed.items()) + "."
    advice = "report it with the log line of 'tailwatch' and the output of `tailwatch doctor URL --json report.json`"
    return Finding("internal-errors", "medium", "tailwatch had errors of its own", detail, advice)


def fast_sse_fallback(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """The fast SSE path went back to the server's own serialisation."""
    fallbacks = snapshot.sse_fallbacks
    if not fallbacks:
        return None
    reasons = {reason for _, reason in fallbacks}
    told = ", ".join(f"{shape} ({reason})" for shape, reason in sorted(fallbacks))
    detail = f"Left to the server: {told}. " + " ".join(text for why, text in _FALLBACKS.items() if why in reasons)
    if reasons <= _HARMLESS_FALLBACKS:
        advice = "nothing to mend: it is what the templates do not hold"
        return Finding("fast-sse-fallback", "info", "fast_sse leaves some frames to the server", detail, advice)
    off = "install(app, fast_sse=False)" if context.fast_sse else "no sse.accelerate() of that class"
    advice = f"report it with the versions of server and pydantic; {off} until it is mended"
    if "differs" in reasons:
        return Finding("fast-sse-fallback", "high", "fast_sse may have sent wrong frames", detail, advice)
    return Finding("fast-sse-fallback", "low", "fast_sse gave up some frames", detail, advice)


def fast_sse_state(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """What the fast SSE path took over, if anything."""
    if not context.fast_sse:
        return None
    if context.accelerated:
        detail = f"Serialised by templates, the same bytes: {', '.join(context.accelerated)}."
        advice = "tailwatch_sse_fallback_total at /metrics counts what they could not do"
        return Finding("fast-sse", "info", "fast_sse is at work", detail, advice)
    detail = "None of the servers that it knows was loaded at install() or at start-up."
    advice = "tailwatch.sse.accelerate(Model) for a Pydantic class of your own, or install(app, fast_sse=False)"
    return Finding("fast-sse", "info", "fast_sse found nothing to do", detail, advice)


def unbound_streams(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Pauses of one of several engines, beside streams of which nobody said which engine serves them."""
    phases = snapshot.overlap_by_source.get("unbound", {})
    seconds = sum(sum(by_cause.values()) for by_cause in phases.values())
    if seconds <= 0:
        return None
    detail = (
        f"Streams spent {ms(seconds)}, summed over them, beside a pause of one of several engines, and it is not known "
        "which engine served them: an upper bound."
    )
    advice = (
        "engine= (TAILWATCH_ENGINE) in processes that work for or serve one engine, the header X-Tailwatch-Engine from "
        'a router, or scope["tailwatch"].bind(engine)'
    )
    return Finding("unbound", "low", "streams are not bound to their engine", detail, advice)


def unknown_variables(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """An environment variable that looks like an option and is none."""
    if not context.unknown_environment:
        return None
    near = {name: nearest_variable(name) for name in context.unknown_environment}
    told = ", ".join(f"{name} (did you mean {hint}?)" if hint else name for name, hint in near.items())
    name, hint = next(((n, h) for n, h in near.items() if h), (context.unknown_environment[0], None))
    advice = f"rename {name} to {hint}" if hint else f"unset {name}"
    detail = f"Set, and read by nothing: {told}."
    return Finding("unknown-variables", "medium", "TAILWATCH_* variables that do nothing", detail, advice)


def notes(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """What the process wants to have said."""
    if not context.notes:
        return None
    return Finding(
        "notes",
        "info",
        "about this process",
        " ".join(context.notes),
        "tailwatch.doctor() in the process shows the newest",
    )


RULES: tuple[Rule, ...] = (
    gc_tail,
    gc_policy,
    gc_fallback,
    gc_ceiling,
    gc_drift,
    gc_moments,
    gc_ttft,
    engine_pauses,
    host_gaps,
    slo_missed,
    freeze_pending,
    gc_disabled,
    long_generation_0,
    callbacks,
    accept_wait,
    internal_errors,
    unbound_streams,
    unknown_variables,
    policy_pauses,
    slow_clients,
    unexplained,
    label_overflow,
    drops,
    fast_sse_fallback,
    foreign_freeze,
    fast_sse_state,
    notes,
)


def _nothing(snapshot: Snapshot, context: DiagnosisContext) -> Finding:
    requests = sum(snapshot.requests.values())
    detail = (
        f"Looked at {requests} finished requests and {snapshot.itl.count} gaps over {snapshot.seconds:.0f} s: "
        f"p99 TTFT {ms(snapshot.ttft.p(99))}, p99 ITL {ms(snapshot.itl.p(99))} "
        f"({ms(snapshot.itl_without_gc.p(99))} without GC), paused {ms(sum(snapshot.paused.values()))} in all, "
        f"attainment {'unknown' if snapshot.attainment is None else f'{snapshot.attainment:.2%}'}."
    )
    if steps := _step_count(snapshot):
        detail += f" {steps} engine steps."
    if context.memory_bytes is not None:
        detail += f" tailwatch itself takes at most {context.memory_bytes / 2**20:.1f} MiB, fixed at install."
    return Finding("nothing", "info", "I see nothing", detail, "tailwatch doctor URL --slow shows the slowest gaps")


def _no_requests() -> Finding:
    detail = "No request on a generation route has been seen, so there is nothing to judge."
    advice = "send one request to a generation route; install(app, routes=['/your/route']) if it is not a known one"
    return Finding("no-requests", "info", "no requests yet", detail, advice)
