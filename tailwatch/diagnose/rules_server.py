"""Rules about the server itself: its engine's steps, its event loop, its clients, and whether it keeps the SLO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailwatch.diagnose.finding import DiagnosisContext, Finding
from tailwatch.diagnose.measures import YOUNG, YOUNG_REASON, step_pauses, step_seconds, tail_shares
from tailwatch.diagnose.text import ms, name_causes, split_by_cause
from tailwatch.options.slo import MISSES

if TYPE_CHECKING:
    from tailwatch.snapshots import Snapshot, Step


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


def engine_pauses(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Pauses take a visible share of an engine's steps, or make its longest."""
    hit = [step for step in snapshot.steps if _is_hit(step)]
    if not hit:
        return None
    worst = max(hit, key=lambda step: sum(step_pauses(step).values()))
    paused, spent = step_pauses(worst), step_seconds(worst)
    lost, cause = sum(paused.values()), max(paused, key=lambda name: paused[name])
    requests = sum(worst.steps.requests.values()) + sum(worst.host_gaps.requests.values())
    length = worst.steps.time
    detail = (
        f"{length.count} {worst.name!r} steps of {worst.process} and the gaps before them took {ms(spent)}; up to "
        f"{ms(lost)} of that ({lost / spent:.1%}) coincided with pauses of that process ({split_by_cause(paused)}). "
        f"Multiplied by the mean batch size ({worst.batch or 0:.3g}), up to {ms(requests)} of request time were lost. "
        f"p50 {ms(length.p(50))}, the longest {ms(length.max)}."
    )
    title = f"Up to {lost / spent:.1%} of the engine's {worst.name!r} steps is {name_causes(paused)}"
    severity = "high" if lost >= 5 * _STEP_SHARE * spent else "medium"
    return Finding("engine-pauses", severity, title, detail, _step_advice(worst, cause))


def _step_advice(step: Step, cause: str) -> str:
    if cause in YOUNG:
        return (
            f"install(role={step.role!r}, gc_log_all=True): {YOUNG_REASON}; "
            "the log shows how many objects each collection found"
        )
    return f"tailwatch.freeze() in the {step.role} process between two steps, once its model is loaded"


def _is_hit(step: Step) -> bool:
    lost, length = sum(step_pauses(step).values()), step.steps.time
    if lost < _STEP_LEAST_SECONDS:
        return False
    typical, longest = length.p(50) or 0.0, length.max or 0.0
    made_the_longest = longest >= _STEP_LONGEST * typical and lost >= (longest - typical) / 2
    return lost >= _STEP_SHARE * step_seconds(step) or made_the_longest


def host_gaps(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """The device waits for the host between steps, while there is work."""
    gaps = [step for step in snapshot.steps if step.host_gaps.time.count >= _FEWEST_STEPS]
    if not gaps:
        return None
    worst = max(gaps, key=lambda step: step.host_gaps.time.sum / step_seconds(step))
    gap, share = worst.host_gaps.time, worst.host_gaps.time.sum / step_seconds(worst)
    if share < _HOST_GAP_SHARE:
        return None
    paused = sum(worst.host_gaps.overlap.values())
    detail = (
        f"{worst.process} ran no step for {ms(gap.sum)} between its {worst.name!r} steps ({share:.0%} of their time) "
        f"while requests waited: {gap.count} gaps, p50 {ms(gap.p(50))}, p99 {ms(gap.p(99))}. "
        f"Up to {ms(paused)} of it are pauses; the rest is other host work."
    )
    advice = (
        "vllm serve --async-scheduling, SGLang without --disable-overlap-schedule: host and device then work "
        "in parallel (py-spy record --pid PID shows the host's work)"
    )
    severity = "high" if share >= 3 * _HOST_GAP_SHARE else "medium"
    return Finding("host-gaps", severity, f"Host gaps take {share:.0%} of the engine's time", detail, advice)


def slo_missed(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Fewer good requests than asked for."""
    attainment, asked = snapshot.attainment, snapshot.slo.attainment
    good, missed = snapshot.requests.get("good", 0), {name: snapshot.requests.get(name, 0) for name in MISSES}
    judged = good + sum(missed.values())
    if attainment is None or attainment >= asked or judged < _FEWEST_JUDGED:
        return None
    why = ", ".join(f"{name} {count}" for name, count in sorted(missed.items(), key=lambda item: -item[1]) if count)
    detail = f"{good} of {judged} requests were good; misses: {why}. {_worst_bound(snapshot)}"
    title = f"Attainment {attainment:.2%} is below the target of {asked:.2%}"
    advice = "tailwatch doctor URL --slow-gaps lists the slowest gaps; install(app, slo=...) sets other bounds"
    return Finding("slo", "high", title, detail, advice)


def _worst_bound(snapshot: Snapshot) -> str:
    within = {name: share for name, share in snapshot.window("1h").within.items() if share is not None}
    within = {name: share for name, share in within.items() if getattr(snapshot.slo, name, None)}
    if not within:
        return "The bound missed most is not recorded here."
    worst = min(within, key=lambda name: within[name])
    bound = getattr(snapshot.slo, worst)
    return f"The bound missed most is {worst} <= {ms(bound)}: {within[worst]:.2%} met it in the last hour."


def accept_wait(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Requests wait for the event loop, and pauses do not explain it."""
    accept = snapshot.queue["accept"]
    p99 = accept.p(99)
    other = accept.sum - sum(snapshot.delay_by_phase["ttft"].values())
    if p99 is None or p99 < _ACCEPT_P99_SECONDS or other < 0.5 * accept.sum:
        return None
    detail = (
        f"Requests wait p99 {ms(p99)} between arrival at the kernel and the app ({accept.count} requests). "
        f"{ms(other)} of {ms(accept.sum)} in total are not explained by recorded pauses: "
        "other work blocks the event loop before the app is entered."
    )
    advice = "PYTHONASYNCIODEBUG=1 logs each callback over 100 ms; move blocking work into a thread (asyncio.to_thread)"
    return Finding("accept-wait", "medium", "The event loop is blocked while requests arrive", detail, advice)


def slow_clients(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Clients that read slowly stretch the gaps."""
    share, waits = tail_shares(snapshot, "itl").get("client", 0.0), snapshot.send_wait
    if not waits.count or share < _CLIENT_SHARE:
        return None
    detail = (
        f"{share:.0%} of the slowest gaps' excess is send wait: the client did not read. {waits.count} sends waited, "
        f"p99 {ms(waits.p(99))}, {ms(waits.sum)} in total. The model itself is not slower."
    )
    advice = "tailwatch doctor URL --slow-gaps lists their requests; install(app, slow_gap_ms=200) logs them"
    return Finding("slow-clients", "low", "Slow clients cause part of the tail", detail, advice)


def unexplained(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Most of the tail is neither a pause nor a slow client."""
    share = tail_shares(snapshot, "itl").get("unexplained", 0.0)
    p50, p99 = snapshot.itl.p(50), snapshot.itl.p(99)
    if snapshot.itl.count < _FEWEST_GAPS or share < _UNEXPLAINED_SHARE or p50 is None or p99 is None or p99 < 2 * p50:
        return None
    detail = (
        f"p99 ITL {ms(p99)} against p50 {ms(p50)}; {share:.0%} of the slowest gaps' excess is neither a pause "
        "nor a slow client. The cause may be the model, the batch, the event loop or the machine; these numbers "
        "cannot separate them."
    )
    advice = "install(app, slow_gap_ms=100) logs each slow gap with its request and causes"
    return Finding("unexplained", "low", "Pauses do not explain most of the tail", detail, advice)
