"""Advice over a snapshot: a table of small rules, each a question with one answer or none.

A rule looks at frozen numbers only. `delay` is quoted as the estimate it is, an overlap as "up to": an upper
bound. Each finding ends in a command or an option; to find nothing is an answer too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tailwatch.diagnose import rules_delay, rules_gc, rules_self, rules_server
from tailwatch.diagnose.advice import fit
from tailwatch.diagnose.finding import SEVERITIES, DiagnosisContext, Finding
from tailwatch.diagnose.measures import (
    YOUNG_REASON,
    engine_role,
    find_gc_blame,
    find_remedy,
    freezes,
    froze,
    gc_only,
    is_far,
    recommended_policy,
    step_count,
    where_paused,
)
from tailwatch.diagnose.text import ms

if TYPE_CHECKING:
    from tailwatch.snapshots import Snapshot


Rule = Callable[["Snapshot", DiagnosisContext], "Finding | None"]
RULES: tuple[Rule, ...] = (
    rules_gc.gc_tail,
    rules_gc.gc_explicit,
    rules_gc.gc_policy,
    rules_gc.gc_fallback,
    rules_gc.gc_memory_limit,
    rules_gc.gc_interference,
    rules_gc.gc_idle_slots,
    rules_gc.gc_ttft,
    rules_server.engine_pauses,
    rules_server.host_gaps,
    rules_server.slo_missed,
    rules_gc.freeze_pending,
    rules_gc.gc_disabled,
    rules_gc.long_generation_0,
    rules_gc.callbacks,
    rules_server.accept_wait,
    rules_self.internal_errors,
    rules_self.unbound_streams,
    rules_self.unknown_variables,
    rules_gc.policy_pauses,
    rules_server.longest_gap,
    rules_server.longest_ttft,
    rules_server.longest_step,
    rules_server.queueing,
    rules_server.slow_clients,
    rules_delay.upstream,
    rules_delay.device,
    rules_server.unexplained,
    rules_server.engine_only,
    rules_server.unseen_server,
    rules_server.uncounted_routes,
    rules_self.label_overflow,
    rules_self.drops,
    rules_self.fast_sse_fallback,
    rules_gc.external_freeze,
    rules_self.fast_sse_state,
    rules_gc.gc_auto,
    rules_self.notes,
)


def doctor(snapshot: Snapshot, context: DiagnosisContext | None = None) -> list[Finding]:
    """Everything the rules see, what explains most lateness first; never empty. A finding of severity "high" whose
    lateness is not known stands before them, remarks behind them."""
    context = context or DiagnosisContext()
    found = [finding for rule in RULES if (finding := rule(snapshot, context)) is not None]
    found += rules_delay.causes(snapshot)
    if all(finding.severity == "info" for finding in found):
        seen = snapshot.opened or sum(snapshot.requests.values()) or snapshot.itl.count or step_count(snapshot)
        if seen:
            found.append(_nothing(snapshot, context))
        elif not any(finding.rule == "unseen-server" for finding in found):
            found.append(_no_requests())
    fitted = [replace(finding, advice=fit(finding.advice, context.started)) for finding in found]
    return sorted(fitted, key=_rank)


def _rank(finding: Finding) -> tuple[bool, bool, float, int]:
    first = finding.severity == "high" and not finding.lateness
    return finding.severity == "info", not first, -finding.lateness, SEVERITIES.index(finding.severity)


def headline(snapshot: Snapshot, context: DiagnosisContext | None = None) -> str:
    """One sentence: the tail of the gaps between tokens, and what GC has to do with it."""
    context = context or DiagnosisContext()
    blame = find_gc_blame(snapshot)
    if blame is None:
        return _headline_without_gc(snapshot)
    return (
        f"{blame.percentile} ITL {ms(blame.gap)}; up to {ms(blame.lost)} of it is {blame.causes}, "
        f"{where_paused(snapshot, blame.cause)}; {fit(_mends(snapshot, blame.cause, context), context.started)}"
    )


def _headline_without_gc(snapshot: Snapshot) -> str:
    p99 = snapshot.itl.p(99)
    if p99 is None:
        return "no gaps between tokens yet"
    without = snapshot.itl_without_gc.p(99)
    longest = f"; the longest gap took {ms(snapshot.itl.max)}" if is_far(snapshot.itl, 0.0) else ""
    return f"p99 ITL {ms(p99)}, {ms(without)} without garbage collection: GC does not cause the tail{longest}"


_OTHERWISE = {
    "objects": f"{YOUNG_REASON}; `install(app, gc_log_all=True)` logs each collection with its objects",
    "explicit": "most of these collections are gc.collect() calls of other code",
    "cpu": "the process had no CPU for most of that time",
}


def _mends(snapshot: Snapshot, cause: str, context: DiagnosisContext) -> str:
    remedy = find_remedy(snapshot, gc_only(snapshot.delay_by_phase["itl"]), context)
    if remedy != "policy":
        return _OTHERWISE[remedy]
    if (engine := engine_role(snapshot, cause)) and froze(snapshot, cause, context):
        return f"the {engine} process's heap is frozen, so newer objects cause it"
    policy = recommended_policy(snapshot, cause, context)
    if engine:
        return f"gc={policy!r} (TAILWATCH_GC={policy}) in the {engine} process fixes it"
    if not freezes(snapshot, cause, context):
        return f"`install(app, gc={policy!r})` {'shortens' if cause == 'gc_increment' else 'fixes'} it"
    if froze(snapshot, cause, context):
        return "the heap is frozen, so newer objects cause it"
    return "`tailwatch.freeze()` while no request is in flight fixes it"


def _nothing(snapshot: Snapshot, context: DiagnosisContext) -> Finding:
    requests = sum(snapshot.requests.values())
    detail = (
        f"Checked {requests} finished requests and {snapshot.itl.count} gaps in {snapshot.seconds:.0f} s: "
        f"p99 TTFT {ms(snapshot.ttft.p(99))}, p99 ITL {ms(snapshot.itl.p(99))} "
        f"({ms(snapshot.itl_without_gc.p(99))} without GC), paused {ms(sum(snapshot.paused.values()))} in total, "
        f"attainment {'unknown' if snapshot.attainment is None else f'{snapshot.attainment:.2%}'}."
    )
    if steps := step_count(snapshot):
        detail += f" {steps} engine steps."
    if context.memory_bytes is not None:
        detail += f" The numbers themselves take at most {context.memory_bytes / 2**20:.1f} MiB."
    return Finding(
        "nothing", "info", "No problems found", detail, "tailwatch doctor URL --slow-gaps lists the slowest gaps"
    )


def _no_requests() -> Finding:
    detail = "No request has reached a generation route yet, so there is no latency to check."
    advice = "send one request to a generation route; add your own with install(app, routes=['/your/route'])"
    return Finding("no-requests", "info", "No requests yet", detail, advice)
