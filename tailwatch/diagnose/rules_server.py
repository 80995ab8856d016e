"""Rules about the server itself: its engine's steps, its event loop, its clients, and whether it keeps the SLO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailwatch.diagnose.finding import DiagnosisContext, Finding
from tailwatch.diagnose.measures import (
    FEWEST_GAPS,
    VISIBLE_SHARE,
    YOUNG_REASON,
    is_far,
    is_long_tailed,
    step_pauses,
    step_seconds,
    tail_seconds,
    tail_shares,
    upstream_seconds,
)
from tailwatch.diagnose.text import format_slow, ms, name_causes, split_by_cause
from tailwatch.options.slo import MISSES

if TYPE_CHECKING:
    from tailwatch.snapshots import Snapshot, Step


ENGINE_ROUTE = "engine"  # of csrc/python/stamp/engine_streams.c
_ACCEPT_P99_SECONDS = 0.02
_CLIENT_SHARE = 0.3
_UNEXPLAINED_SHARE = 0.5
_STEP_SHARE = 0.01
_STEP_LEAST_SECONDS = 0.05
_STEP_LONGEST = 3.0
_HOST_GAP_SHARE = 0.1
_FEWEST_STEPS = 100
_FEWEST_JUDGED = 20
_FAR_GAP_SECONDS, _FAR_TTFT_SECONDS = 0.25, 1.0  # beyond the median, and ten times as long
_LONG_GAP_SECONDS, _LONG_TTFT_SECONDS = 1.0, 2.0  # where the SLO has no bound
_QUEUED_SECONDS, _QUEUED_SHARE = 0.5, 0.05


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
    return Finding("engine-pauses", severity, title, detail, _step_advice(worst, cause), _engine_cost(snapshot, worst))


def _engine_cost(snapshot: Snapshot, step: Step) -> float:
    """What streams lost to pauses of the engine; where no stream passes through the group, at most the request time."""
    phases = snapshot.delay_by_source.get(step.role)
    if phases is None:
        return sum(step.steps.requests.values()) + sum(step.host_gaps.requests.values())
    return sum(sum(by_cause.values()) for by_cause in phases.values())


def _step_advice(step: Step, cause: str) -> str:
    if cause in ("gc0", "gc1"):
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
    late = max(0.0, gap.sum - gap.count * (gap.p(50) or 0.0)) * (worst.batch or 1)
    return Finding("host-gaps", severity, f"Host gaps take {share:.0%} of the engine's time", detail, advice, late)


def engine_only(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Requests were stamped inside an engine: no front end of the group is watched."""
    if not any(route == ENGINE_ROUTE for _, route in snapshot.labels):
        return None
    detail = (
        "No process of this group has an app that tailwatch watches, so TTFT, gaps and goodput of the route 'engine' "
        "are those inside the engine: from the front end's arrival stamp to the end of each step. What the front end "
        "adds after it (transport, detokenising, HTTP, slow clients) is not seen."
    )
    advice = "of a front end in Python: watch its ASGI app, or use tailwatch.stream() around each request"
    return Finding("engine-only", "info", "The front end's share is not seen", detail, advice)


def unseen_server(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """No request was seen, and there is a server in which none can be, or connections that brought some."""
    return None if snapshot.opened > context.opened_before else nothing_seen(context)


def nothing_seen(context: DiagnosisContext) -> Finding | None:
    """unseen_server() of a group without numbers."""
    servers, ports = context.unseen_servers, context.unseen_ports
    if not (servers or ports):
        return None
    loaded = f"{', '.join(servers)} is loaded" if servers else "No server that tailwatch recognises is loaded"
    came = f"connections came to port {', '.join(map(str, ports))}" if ports else "no connection was noticed yet"
    detail = f"{loaded}; {came}. Requests are seen by themselves only in ASGI apps."
    advice = (
        "stamp by hand: tailwatch.install() once in the server, `with tailwatch.stream() as s:` around each request, "
        "s.token() at each token (docs/quickstarts/by_hand.md, examples/by_hand.py)"
    )
    return Finding("unseen-server", "medium" if ports else "info", "No request was seen", detail, advice)


def uncounted_routes(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Something streams on a route that does not count."""
    if not context.uncounted_routes:
        return None
    detail = f"Responses came in pieces on: {', '.join(context.uncounted_routes)}. Such requests are not measured."
    paths = [route.partition(" ")[2] for route in context.uncounted_routes]
    advice = f"if they generate tokens: install(app, routes={','.join(dict.fromkeys(paths))!r})"
    return Finding("uncounted-routes", "info", "Routes that stream are not counted", detail, advice)


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
        "the event loop was busy with other work, or the process had no CPU; these numbers cannot separate them."
    )
    advice = (
        "PYTHONASYNCIODEBUG=1 logs each callback over 100 ms: that work belongs into a thread (asyncio.to_thread); "
        "nr_throttled in cpu.stat and the second number of /proc/PID/schedstat show waits for a CPU"
    )
    return Finding("accept-wait", "medium", "Requests wait before the app is entered", detail, advice, other)


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
    lost = tail_seconds(snapshot, "itl")["client"]
    return Finding("slow-clients", "low", "Slow clients cause part of the tail", detail, advice, lost)


def unexplained(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """Most of the tail, or a visible part of all stream time, is neither a pause nor a slow client."""
    share, lost = tail_shares(snapshot, "itl").get("unexplained", 0.0), tail_seconds(snapshot, "itl")["unexplained"]
    p50, p99 = snapshot.itl.p(50), snapshot.itl.p(99)
    if snapshot.itl.count < FEWEST_GAPS or p50 is None or p99 is None:
        return None
    known = upstream_seconds(snapshot, "itl")  # the octaves have both in one
    share, lost = share * (1 - min(1.0, known / (lost or 1.0))), max(0.0, lost - known)
    in_the_tail = share >= _UNEXPLAINED_SHARE and is_long_tailed(snapshot.itl)
    if share < 0.1 or (not in_the_tail and lost < VISIBLE_SHARE * snapshot.itl.sum):
        return None
    detail = (
        f"p99 ITL {ms(p99)} against p50 {ms(p50)}; {share:.0%} of the slowest gaps' excess is neither a pause "
        f"nor a slow client: {ms(lost)} in all streams together. The cause may be the model, the batch, the event loop "
        "or the machine; these numbers cannot separate them."
    )
    advice = "install(app, slow_gap_ms=100) logs each slow gap with its request and causes"
    title = "Pauses do not explain most of the tail"
    return Finding("unexplained", "medium", title, detail, advice, lost)


def longest_gap(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """A gap far longer than the usual ones, whatever p99 is, that collections do not explain."""
    if not is_far(snapshot.itl, _FAR_GAP_SECONDS) or not is_far(snapshot.itl_without_gc, _FAR_GAP_SECONDS):
        return None
    return Finding(
        "longest-gap", *_longest(snapshot, "itl", "gap between tokens", snapshot.slo.itl or _LONG_GAP_SECONDS)
    )


def longest_ttft(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """A TTFT far longer than the usual ones, whatever p99 is."""
    if not is_far(snapshot.ttft, _FAR_TTFT_SECONDS):
        return None
    return Finding("longest-ttft", *_longest(snapshot, "ttft", "TTFT", snapshot.slo.ttft or _LONG_TTFT_SECONDS))


def _longest(snapshot: Snapshot, phase: str, name: str, bound: float) -> tuple[str, str, str, str, float]:
    """Severity, title, detail, advice and lateness."""
    length = snapshot.itl if phase == "itl" else snapshot.ttft
    typical, longest = length.p(50) or 0.0, length.max or 0.0
    alike = [octave for octave in snapshot.tail.get(phase, []) if octave.upper > longest / 2]
    lost = sum(octave.time - octave.count * typical for octave in alike)
    kept = max((gap for gap in snapshot.slowest if gap.phase == phase), key=lambda gap: gap.gap, default=None)
    detail = (
        f"The longest {name} took {ms(longest)}, {longest / typical:.0f} times the median of {ms(typical)}. "
        f"All streams together lost {ms(max(lost, longest - typical))} to those like it."
    )
    if kept is not None and kept.gap >= longest / 2:
        detail += f" The longest that was kept: {format_slow(kept)}."
    advice = (
        "tailwatch doctor URL --slow-gaps lists the longest of each minute with its request; install(app, "
        "slow_gap_ms=100) logs each as it comes"
    )
    severity = "medium" if longest >= bound else "low"
    title = f"The longest {name} took {ms(longest)}, at a median of {ms(typical)}"
    return severity, title, detail, advice, max(lost, longest - typical)


def longest_step(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """An engine step far longer than the usual ones, that pauses do not explain."""
    far = [step for step in snapshot.steps if is_far(step.steps.time, _FAR_GAP_SECONDS) and not _is_hit(step)]
    if not far:
        return None
    worst = max(far, key=lambda step: step.steps.time.max or 0.0)
    typical, longest = worst.steps.time.p(50) or 0.0, worst.steps.time.max or 0.0
    late = (longest - typical) * (worst.batch or 1)
    detail = (
        f"The longest of {worst.steps.time.count} {worst.name!r} steps of {worst.process} took {ms(longest)}, at a "
        f"median of {ms(typical)}, and pauses do not explain it. With the mean batch size ({worst.batch or 0:.3g}), "
        f"that is {ms(late)} of request time. A kernel that is built at its first use and a long prompt take so long."
    )
    advice = (
        "send each kind of request once before traffic comes (warm-up); with chunked prefill "
        "(--max-num-batched-tokens) no prompt fills a step alone"
    )
    title = f"An engine step took {ms(longest)}, at a median of {ms(typical)}"
    return Finding("longest-step", "medium", title, detail, advice, late)


def queueing(snapshot: Snapshot, context: DiagnosisContext) -> Finding | None:
    """More streams than the server has room for: first tokens wait in its queue."""
    healthy, cost = context.healthy_concurrency, context.queued_seconds
    if healthy is None or cost < max(_QUEUED_SECONDS, _QUEUED_SHARE * snapshot.ttft.sum):
        return None
    detail = (
        f"Above {healthy:.3g} streams in flight TTFT grows with each further one; up to "
        f"{context.highest_concurrency:.3g} were in flight in the last half hour. Beyond the median TTFT at "
        f"{healthy:.3g} streams, first tokens took {ms(cost)} longer in total. "
        f"p50 TTFT {ms(snapshot.ttft.p(50))}, p99 {ms(snapshot.ttft.p(99))}."
    )
    advice = (
        "tailwatch capacity sizes the replicas for a load; tailwatch_load_headroom_streams at /metrics tells a router "
        "when to send no more; more slots in the engine (vllm serve --max-num-seqs) where its memory allows"
    )
    title = f"Requests queue above {healthy:.3g} concurrent streams"
    return Finding("queueing", "medium", title, detail, advice, cost)
