"""The doctor's rules and texts, fed with hand-made numbers: no live collector decides anything here."""

from __future__ import annotations

import dataclasses
import datetime
import gc
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import tailwatch
import tailwatch.snapshots
from tailwatch.diagnose.advice import fit
from tailwatch.diagnose.finding import SEVERITIES, DiagnosisContext, Finding
from tailwatch.diagnose.rules import RULES, doctor, headline
from tailwatch.diagnose.text import format_findings, format_slow, format_tail, ms, name_causes, split_by_cause
from tailwatch.errors import OptionError, TailwatchError
from tailwatch.snapshots.serialization import from_dict

CAUSES = ("gc0", "gc1", "gc2", "gc_full", "gc_increment", "gc_own")
FROZEN = DiagnosisContext(gc_policy="freeze", freeze_done=True, gc_enabled=True, python_version=(3, 11, 7))
OBSERVED = DiagnosisContext(gc_policy="observe", gc_enabled=True, python_version=(3, 11, 7))


class Gaps(SimpleNamespace):
    """A histogram with the percentiles that it was given."""

    def p(self, percent: float) -> float | None:
        """The percentile as given; None when empty."""
        return self.stored.get(percent) if self.count else None


def gaps(
    count: int = 0, p50: float = 0.02, p99: float = 0.022, p999: float = 0.024, top: float = 0.025, total: float = 0.0
) -> Gaps:
    """A histogram of `count` samples with these percentiles, in seconds."""
    stored = {50: p50, 90: p99, 95: p99, 99: p99, 99.9: p999}
    return Gaps(
        count=count, sum=total or count * p50, min=p50 if count else None, max=top if count else None, stored=stored
    )


def causes(**seconds: float) -> dict[str, float]:
    """Seconds per cause, 0 for the others."""
    return {**dict.fromkeys(CAUSES, 0.0), **seconds}


def process(**members: Any) -> SimpleNamespace:
    """One that lives, and publishes no policy."""
    facts = {"lives": True, "collections": causes(), "policy": tailwatch.snapshots.Policy()}
    return SimpleNamespace(**{**facts, **members})


def octave(lower: float, delay: dict[str, float] | None = None, **rest: float) -> SimpleNamespace:
    """One octave of the tail."""
    facts = {"count": 5, "time": 10 * lower, "client": 0.0, "accept": 0.0, "unexplained": 0.0, **rest}
    return SimpleNamespace(lower=lower, upper=2 * lower, delay=causes(**(delay or {})), **facts)


def snapshot(**changed: Any) -> Any:
    """A healthy server of 1000 requests and 100 000 gaps, with some of its numbers changed."""
    delay = {"ttft": causes(), "itl": causes()}
    members: dict[str, Any] = {
        "seconds": 120.0,
        "ttft": gaps(1000, 0.1, 0.2, 0.3, 0.4),
        "itl": gaps(100_000),
        "itl_without_gc": gaps(100_000),
        "queue": {"proxy": gaps(), "accept": gaps(1000, 0.0002, 0.001, 0.002, 0.003)},
        "send_wait": gaps(),
        "labels": [("m", "/v1/completions")],
        "requests": {"good": 1000, "late": 0, "error": 0, "4xx": 3},
        "opened": 1003,
        "in_flight": 2,
        "attainment": 1.0,
        "slo": SimpleNamespace(ttft=2.0, tpot=0.2, itl=None, e2e=None, attainment=0.99),
        "window": lambda window: SimpleNamespace(within={"ttft": 0.999, "tpot": 0.97, "itl": None, "e2e": None}),
        "paused": causes(gc0=0.01),
        "delay_by_phase": delay,
        "delay_by_source": {},
        "overlap_by_phase": {"ttft": causes(), "itl": causes()},
        "overlap_by_source": {"api": {"ttft": causes(), "itl": causes(gc0=1.0)}},
        "delay": causes(),
        "delays": {},
        "engines": [],
        "gc": SimpleNamespace(collections=causes(gc0=100), max=causes(gc0=0.0005), callbacks=causes()),
        "processes": [process(role="api", name="api-0", paused=causes(gc0=0.01))],
        "slowest": [],
        "recent": [],
        "tail": {"ttft": [], "itl": []},
        "drops": {"unreadable_body": 0, "choice": 0},
        "errors": {"asgi": 0},
        "label_overflow": 0,
        "sse_fallbacks": {},
        "steps": [],
    }
    unknown = set(changed) - set(members)
    assert not unknown, f"not in a snapshot: {unknown}"
    return SimpleNamespace(**{**members, **changed})


def paused_server(**changed: Any) -> Any:
    """The server of the README: generation 2 takes 161 of the 183 ms of p99."""
    members = {
        "itl": gaps(100_000, 0.02, 0.183, 0.19, 0.2),
        "delay_by_phase": {"ttft": causes(), "itl": causes(gc2=50.0, gc0=0.5)},
        "overlap_by_phase": {"ttft": causes(), "itl": causes(gc2=60.0, gc0=0.9)},
        "delay": causes(gc2=50.0, gc0=0.5),
        "gc": SimpleNamespace(collections=causes(gc2=12), max=causes(gc2=0.175), callbacks=causes()),
        "paused": causes(gc2=2.0),
        "processes": [process(role="api", name="api-0", paused=causes(gc2=2.0))],
    }
    return snapshot(**{**members, **changed})


def found(snap: Any, context: DiagnosisContext = FROZEN) -> dict[str, Finding]:
    """The doctor's findings by rule."""
    return {finding.rule: finding for finding in doctor(snap, context)}


# The whole ------------------------------------------------------------------------------------------------


def test_nothing_is_an_answer() -> None:
    """A healthy server gets one finding, with the numbers that were looked at."""
    [finding] = doctor(snapshot(), FROZEN)
    assert (finding.rule, finding.severity, finding.title) == ("nothing", "info", "No problems found")
    for number in ("1003 finished requests", "100000 gaps", "p99 TTFT 200 ms", "p99 ITL 22 ms", "attainment 100.00%"):
        assert number in finding.detail
    [finding] = doctor(snapshot(), dataclasses.replace(FROZEN, memory_bytes=3 * 2**20))
    assert "3.0 MiB" in finding.detail


def test_no_requests_is_an_answer() -> None:
    """Before the first request there is nothing to judge, and the advice is how to get one."""
    empty = snapshot(ttft=gaps(), itl=gaps(), itl_without_gc=gaps(), requests={"good": 0}, opened=0, attainment=None)
    [finding] = doctor(empty, FROZEN)
    assert (finding.rule, finding.severity) == ("no-requests", "info")
    assert "routes=" in finding.advice


def test_without_a_context_the_doctor_works() -> None:
    """A saved snapshot alone is enough."""
    assert [finding.rule for finding in doctor(snapshot())] == ["nothing"]


def test_the_worst_comes_first() -> None:
    """Findings are ordered by severity, and any above info silences "nothing"."""
    context = DiagnosisContext(gc_policy="freeze", freeze_done=True, external_freezes=1, notes=["A note."])
    findings = doctor(paused_server(label_overflow=3, errors={"asgi": 2}), context)
    severities = [SEVERITIES.index(finding.severity) for finding in findings]
    assert severities == sorted(severities)
    assert [finding.rule for finding in findings] == [
        "gc-tail",
        "internal-errors",
        "label-overflow",
        "external-freeze",
        "notes",
    ]


def test_remarks_do_not_silence_nothing() -> None:
    """Findings of severity info stand beside "No problems found"."""
    assert set(found(snapshot(), DiagnosisContext(notes=("x",)))) == {"notes", "nothing"}


def test_every_rule_is_documented_and_silent_on_a_healthy_server() -> None:
    """Each rule is a function with a sentence of its own, and has no finding for healthy numbers."""
    assert len(set(RULES)) == len(RULES) >= 16
    for rule in RULES:
        assert rule.__doc__
        assert rule(snapshot(), FROZEN) is None


def test_every_rule_can_fire_and_ends_in_advice() -> None:
    """For each rule there is a snapshot here that makes it fire: none is dead."""
    every: dict[str, Finding] = {}
    for snap, context in SPEAKING:
        every.update(found(snap, context))
    assert len(every.keys() - {"nothing", "no-requests"}) == len(RULES)
    for finding in every.values():
        assert finding.severity in SEVERITIES
        assert finding.title and finding.detail.endswith(".")
        assert any(
            sign in finding.advice for sign in ("(", "tailwatch", "TAILWATCH_", "no action needed", "compression")
        )


def test_gc_auto_gives_its_choice_the_reason_and_what_was_measured() -> None:
    """Of the local process, with the policies that were tried."""
    finding = found(snapshot(), CHOSEN)["gc-auto"]
    assert finding.severity == "info"
    assert "'idle'" in finding.title
    assert all(part in finding.detail for part in ("collections made tokens wait", "freeze 1.3 ms", "idle 12 us"))


def test_unbound_streams_are_an_upper_bound_and_an_advice() -> None:
    """Seconds of both phases, called a bound, and the three ways to bind."""
    by_source = {"unbound": {"ttft": causes(gc1=0.5), "itl": causes(gc2=2.0)}, "api": {"itl": causes(gc2=9.0)}}
    finding = found(snapshot(overlap_by_source=by_source))["unbound"]
    assert "2.5 s" in finding.detail and "upper bound" in finding.detail
    assert all(way in finding.advice for way in ("engine=", "X-Tailwatch-Engine", "bind(engine)"))


# GC and the gaps between tokens ----------------------------------------------------------------------------


def test_gc_tail_quotes_with_and_without() -> None:
    """The finding has both percentiles, the estimate, the upper bound, the generation and the process."""
    finding = found(paused_server(), OBSERVED)["gc-tail"]
    assert finding.severity == "high"
    for part in ("Up to 161 ms", "p99 ", "generation 2"):
        assert part in finding.title
    for part in (
        "p99 ITL 183 ms, 22 ms without",
        "estimated 50.5 s",
        "50 s to generation 2",
        "500 ms to generation 0",
        "up to 60.9 s",
        "12 times in the server",
        "longest 175 ms",
    ):
        assert part in finding.detail
    assert finding.advice == "install(app, gc='freeze')"


@pytest.mark.parametrize(
    ("context", "advice"),
    [
        (DiagnosisContext(), "install(app, gc='freeze')"),
        (DiagnosisContext(gc_policy="off"), "install(app, gc='freeze')"),
        (DiagnosisContext(gc_policy="freeze", freeze_done=False), "tailwatch.freeze() at"),
        (DiagnosisContext(gc_policy="freeze", freeze_done=True, freeze_wanted=True), "tailwatch.freeze() at"),
        (FROZEN, "tailwatch.refreeze() at"),
    ],
)
def test_gc_advice_depends_on_the_policy(context: DiagnosisContext, advice: str) -> None:
    """No advice to switch on what is on; with the freeze done it names what remains."""
    assert found(paused_server(), context)["gc-tail"].advice.startswith(advice)


def test_gc_advice_for_young_generations_after_a_freeze() -> None:
    """A freeze does not help against the requests' own objects."""
    snap = paused_server(delay_by_phase={"ttft": causes(), "itl": causes(gc1=5.0)})
    assert found(snap, FROZEN)["gc-tail"].advice.startswith("install(app, gc_log_all=True)")


def test_rare_pauses_show_further_out() -> None:
    """Pauses too rare for p99 are found at p99.9, rarer ones in the longest gap, as less severe."""
    rare = paused_server(itl=gaps(100_000, 0.02, 0.022, 0.19, 0.2))
    finding = found(rare)["gc-tail"]
    assert finding.severity == "medium"
    assert "Up to 166 ms" in finding.title and "p99.9 " in finding.title and "generation 2" in finding.title
    rarest = paused_server(itl=gaps(100_000, 0.02, 0.022, 0.024, 0.2))
    finding = found(rarest)["gc-tail"]
    assert "175 ms" in finding.title and "longest" in finding.title and finding.severity == "medium"


def test_gc_tail_needs_late_time() -> None:
    """Overlap alone is no cause: a pause inside the wait for the model delays no token."""
    snap = paused_server(delay_by_phase={"ttft": causes(), "itl": causes()})
    assert "gc-tail" not in found(snap)


@pytest.mark.parametrize(("p99", "applies"), [(0.0274, False), (0.0277, True)])
def test_gc_tail_starts_at_a_fifth(p99: float, applies: bool) -> None:
    """Below a fifth of the percentile GC does not dominate."""
    level = gaps(100_000, 0.02, p99, p99, p99)
    without = gaps(100_000, 0.02, 0.022, 0.022, 0.022)
    assert ("gc-tail" in found(paused_server(itl=level, itl_without_gc=without))) is applies


def test_differences_below_two_milliseconds_do_not_matter() -> None:
    """A fifth of very little is not worth a word."""
    fast, faster = gaps(10_000, 0.001, 0.003, 0.003, 0.003), gaps(10_000, 0.001, 0.0015, 0.0015, 0.0015)
    assert "gc-tail" not in found(paused_server(itl=fast, itl_without_gc=faster))


def test_few_gaps_have_no_p99() -> None:
    """With 99 gaps only the longest is quoted."""
    few = paused_server(itl=gaps(99, 0.02, 0.183, 0.183, 0.183), itl_without_gc=gaps(99))
    assert "longest" in found(few)["gc-tail"].title


def test_several_causes_are_named_together() -> None:
    """The causes that make up four fifths are named, the largest first."""
    snap = paused_server(delay_by_phase={"ttft": causes(), "itl": causes(gc1=4.0, gc2=6.0)})
    assert found(snap)["gc-tail"].title.endswith("generation 2 and generation 1")


def test_the_paused_process_is_named() -> None:
    """A pause in an engine is blamed on the engine; in several processes, on the worst."""
    engine = process(role="engine", name="engine-0", paused=causes(gc2=3.0))
    quiet = process(role="api", name="api-0", paused=causes())
    assert "in the engine process" in found(paused_server(processes=[quiet, engine]))["gc-tail"].detail
    busy = process(role="api", name="api-0", paused=causes(gc2=1.0))
    detail = found(paused_server(processes=[busy, engine]))["gc-tail"].detail
    assert "2 processes" in detail and "engine-0" in detail and "api-0" not in detail


def test_pauses_without_waiting_streams_are_not_named() -> None:
    """The longest pauses of the group may have cost no stream anything: what counts is whose pauses did."""
    engine = process(role="engine", name="engine-0", paused=causes(gc2=3.0))
    idle = process(role="api", name="api-0", paused=causes(gc2=30.0))
    sources = {name: {"ttft": causes(), "itl": causes(gc2=delay)} for name, delay in (("api", 0.0), ("engine", 50.0))}
    detail = found(paused_server(processes=[idle, engine], delay_by_source=sources))["gc-tail"].detail
    assert "in the engine process" in detail
    sources["api"]["itl"] = causes(gc2=1.0)
    detail = found(paused_server(processes=[idle, engine], delay_by_source=sources))["gc-tail"].detail
    assert "2 processes" in detail and "engine-0" in detail and "api-0" not in detail


def test_what_mends_an_engine_is_done_there() -> None:
    """The freeze of a process with an app does nothing for another process's heap."""
    engine = process(role="engine", name="engine-0", paused=causes(gc2=3.0))
    snap = paused_server(processes=[engine])
    assert "TAILWATCH_GC=freeze" in headline(snap) and "in the engine process" in headline(snap)
    assert found(snap)["gc-tail"].advice.startswith("TAILWATCH_GC=freeze for the engine process")
    engine.paused["gc_own"] = 0.3
    assert "the engine process's heap" in headline(snap) and "TAILWATCH_GC" not in headline(snap)
    assert found(snap)["gc-tail"].advice.startswith("tailwatch.freeze() in the engine process")


def test_a_group_that_froze_is_not_advised_to_freeze() -> None:
    """From outside the policy is not known, but its pauses are seen."""
    frozen = process(role="api", name="api-0", paused=causes(gc2=3.0, gc_own=0.3))
    snap = paused_server(processes=[frozen])
    assert "heap is frozen" in headline(snap) and "gc='freeze'" not in headline(snap)
    assert found(snap)["gc-tail"].advice.startswith("tailwatch.refreeze()")


# The other rules -------------------------------------------------------------------------------------------

TTFT_PAUSED = snapshot(
    ttft=gaps(1000, 0.1, 0.5, 0.6, 0.7, total=100.0),
    delay_by_phase={"ttft": causes(gc2=8.0), "itl": causes()},
    overlap_by_phase={"ttft": causes(gc2=12.0), "itl": causes()},
    delay=causes(gc2=8.0),
)
LONG_YOUNG = snapshot(
    gc=SimpleNamespace(collections=causes(gc0=9), max=causes(gc0=0.019), callbacks=causes()), delay=causes(gc0=0.36)
)
STALLED_TTFT = gaps(1000, 0.011, 0.02, 0.03, 40.0)
STALLED = snapshot(
    ttft=STALLED_TTFT, itl=gaps(100_000, 0.0076, 0.0158, 0.02, 2.2), itl_without_gc=gaps(100_000, 0.0076, top=2.2)
)
CROWDED = DiagnosisContext(
    gc_policy="freeze", healthy_concurrency=8.0, highest_concurrency=24, queued_seconds=41.0, started="run"
)
OTHERS = snapshot(
    gc=SimpleNamespace(collections=causes(), max=causes(), callbacks=causes(gc2=0.5)),
    paused=causes(gc2=1.0, gc_own=9.0),
)
BLOCKED = snapshot(queue={"proxy": gaps(), "accept": gaps(1000, 0.01, 0.3, 0.4, 0.4, total=30.0)})
SLOW_CLIENTS = snapshot(
    itl=gaps(100_000, 0.02, 0.2, 0.3, 0.4),
    itl_without_gc=gaps(100_000, 0.02, 0.2, 0.3, 0.4),
    send_wait=gaps(50, 0.1, 0.3, 0.3, 0.3),
    tail={"ttft": [], "itl": [octave(0.128, client=4.0, unexplained=1.0)]},
)


def late_upstream(of_gaps: float = 0.0, of_first: float = 0.0, /, **changed: Any) -> Any:
    """Tokens were not ready for so long, in streams that waited for some 2 100 s."""
    by_phase = {"itl": {"upstream": {"measured": of_gaps}}, "ttft": {"upstream": {"measured": of_first}}}
    usual: dict[str, Any] = {"delay": causes(upstream=of_gaps + of_first), "delays": {"api": by_phase}}
    return snapshot(**{**usual, **changed})


UNEXPLAINED = snapshot(
    itl=gaps(100_000, 0.02, 0.2, 0.3, 0.4),
    itl_without_gc=gaps(100_000, 0.02, 0.2, 0.3, 0.4),
    tail={"ttft": [], "itl": [octave(0.128, unexplained=4.0, delay={"gc2": 1.0})]},
)
MISSED = snapshot(requests={"good": 900, "late": 70, "429": 30, "4xx": 5}, attainment=0.9)
DROPPED = snapshot(drops={"unreadable_body": 7, "choice": 0})
FAILED = snapshot(errors={"asgi": 2, "daemon": 0})
STUCK = DiagnosisContext(gc_policy="freeze", freeze_done=True, freeze_wanted=True)
MISTYPED = DiagnosisContext(gc_policy="freeze", unknown_environment=("TAILWATCH_GC_WARN", "TAILWATCH_ZZZ"))
OFF = DiagnosisContext(gc_policy="freeze", gc_enabled=False)
CHOSEN = DiagnosisContext(gc_policy="idle", gc_choice="collections", gc_measured={"freeze": 0.0013, "idle": 12e-6})
SPEAKING: list[tuple[Any, DiagnosisContext]] = [
    (paused_server(), FROZEN),
    (late_upstream(60.0), FROZEN),
    (snapshot(delay=causes(device=60.0)), FROZEN),
    *((snap, FROZEN) for snap in (TTFT_PAUSED, LONG_YOUNG, OTHERS, BLOCKED, SLOW_CLIENTS, UNEXPLAINED)),
    *((snap, FROZEN) for snap in (MISSED, DROPPED, FAILED)),
    (snapshot(delay=causes(gc_own=0.4)), FROZEN),
    (snapshot(label_overflow=9), FROZEN),
    (snapshot(labels=[("m", "engine")]), FROZEN),
    (snapshot(overlap_by_source={"unbound": {"ttft": causes(), "itl": causes(gc2=2.5)}}), FROZEN),
    (snapshot(sse_fallbacks={("chat", "differs"): 1}), DiagnosisContext(fast_sse=True)),
    *((snapshot(), context) for context in (STUCK, MISTYPED, OFF, CHOSEN, CROWDED)),
    (STALLED, FROZEN),
    (snapshot(), DiagnosisContext(external_freezes=2, notes=("A note.",))),
]


def test_gc_before_the_first_token() -> None:
    """What requests waited, and the upper bound beside it."""
    finding = found(TTFT_PAUSED, OBSERVED)["gc-ttft"]
    assert "by 8 s in total" in finding.detail
    assert "12 s" in finding.detail
    assert finding.advice == "install(app, gc='freeze')"


def test_little_gc_before_the_first_token_is_no_finding() -> None:
    """Under 5 % of the time to first token, and no part of its tail: no finding."""
    snap = snapshot(delay_by_phase={"ttft": causes(gc2=2.0), "itl": causes()})
    assert "gc-ttft" not in found(snap)


def test_gc_in_the_tail_of_the_first_token() -> None:
    """Few requests hit hard are found by the tail, whatever the mean."""
    snap = snapshot(
        delay_by_phase={"ttft": causes(gc2=2.0), "itl": causes()},
        tail={"ttft": [octave(0.128, delay={"gc2": 2.0}, unexplained=1.0)], "itl": []},
    )
    assert "gc-ttft" in found(snap)


def test_freeze_that_found_no_moment() -> None:
    """It has why it was not done and how to do it."""
    finding = found(snapshot(in_flight=17), STUCK)["freeze-pending"]
    assert "17 are in flight now" in finding.detail
    assert finding.advice.startswith("tailwatch.freeze()")


def test_gc_switched_off() -> None:
    """gc.disable() and a threshold of 0 are the same to a heap."""
    assert "gc-disabled" in found(snapshot(), OFF)
    assert "gc-disabled" in found(snapshot(), DiagnosisContext(gc_enabled=True, thresholds=(0, 10, 10)))
    assert "gc-disabled" not in found(snapshot(), DiagnosisContext(gc_enabled=True, thresholds=(700, 10, 10)))


@pytest.mark.parametrize(("version", "named"), [((3, 12, 0), True), ((3, 11, 9), False), (None, False)])
def test_long_young_collections(version: tuple[int, ...] | None, named: bool) -> None:
    """Wall time, of which no CPU time is known: a process without a CPU is as likely as the collector. What 3.12 does
    is not given for another version, nor of one that is not known."""
    finding = found(LONG_YOUNG, DiagnosisContext(gc_policy="freeze", python_version=version))["long-generation-0"]
    assert "19 ms of wall time" in finding.title
    assert "longest pause took 19 ms" in finding.detail and "no CPU" in finding.detail
    assert ("3.12" in finding.detail) is named
    assert (finding.severity, finding.lateness) == ("low", 0.36)


def test_long_young_collections_that_delayed_no_stream_are_no_finding() -> None:
    """Pauses are a finding where they hit a stream."""
    assert "long-generation-0" not in found(snapshot(gc=LONG_YOUNG.gc))


def test_callbacks_of_others_are_a_share_of_collections_only() -> None:
    """Our own freeze is not counted among the pauses they share."""
    detail = found(OTHERS)["gc-callbacks"].detail
    assert "500 ms of 1 s" in detail and "50%" in detail
    little = SimpleNamespace(collections=causes(), max=causes(), callbacks=causes(gc2=0.2))
    assert "gc-callbacks" not in found(snapshot(gc=little, paused=causes(gc2=1.0)))


def test_accept_wait_that_pauses_explain_is_not_repeated() -> None:
    """A blocked loop is a finding; a loop blocked by collections is the GC's."""
    detail = found(BLOCKED)["accept-wait"].detail
    assert "p99 " in detail and "300 ms" in detail and "1000 requests" in detail
    explained = {"ttft": causes(gc2=20.0), "itl": causes()}
    assert "accept-wait" not in found(snapshot(queue=BLOCKED.queue, delay_by_phase=explained))


def test_what_comes_from_upstream_is_a_finding() -> None:
    """By the delay it explains, with the phase it fell on. Nothing is known of what made the tokens."""
    delay = causes(upstream=60.0, callback=90.0)
    both = late_upstream(45.0, 15.0, delay=delay)
    first, second = [each for each in doctor(both, FROZEN) if each.rule in ("delay-cause", "upstream")]
    assert (first.rule, first.lateness, second.rule, second.lateness) == ("delay-cause", 90.0, "upstream", 60.0)
    assert second.title == "40% of the delay of tokens: they were not ready when the event loop waited for them"
    assert "15 s of first tokens, 45 s of gaps" in second.detail
    assert "tailwatch run" in second.advice and "tailwatch.step()" in second.advice and "--dir" in second.advice
    assert second.severity == "high"


def test_it_names_the_engine_behind_the_process() -> None:
    """One of the group whose steps are not read, by its name and pid; one that is read, whose tokens have no stamp."""
    api, launcher = (
        process(role="api", name="api-0", pid=7, paused=causes()),
        process(role="launcher", name="launcher-0", pid=6, paused=causes()),
    )
    engine = process(role="engine", name="engine-0", pid=8, paused=causes())
    seen = late_upstream(60.0, processes=[api, launcher, engine])
    finding = found(seen)["upstream"]
    assert "engine-0" in finding.title and "launcher" not in finding.detail
    assert "py-spy record --pid 8" in finding.advice and "tailwatch.step()" in finding.advice
    read = late_upstream(60.0, processes=[api, engine], engines=[SimpleNamespace(process="engine-0")])
    finding = found(read)["upstream"]
    assert "no stamp" in finding.detail and "tailwatch.step()" not in finding.advice
    dead = late_upstream(
        60.0, processes=[api, process(role="engine", name="engine-0", pid=0, paused=causes(), lives=False)]
    )
    assert "--pid PID" in found(dead)["upstream"].advice


def test_it_names_the_client_or_the_engine_in_the_process() -> None:
    """By what is loaded: an engine's library before a client of another server's."""
    asked = found(late_upstream(60.0), dataclasses.replace(FROZEN, model_clients=("openai", "httpx")))["upstream"]
    assert asked.title.endswith("the model behind openai")
    assert "openai or httpx" in asked.detail and "tailwatch run" in asked.advice
    context = dataclasses.replace(FROZEN, model_clients=("openai",), model_engines=("llama_cpp",))
    inside = found(late_upstream(60.0), context)["upstream"]
    assert inside.title.endswith("llama_cpp in the same process")
    assert "tailwatch.step()" in inside.advice and "openai" in inside.detail


def test_a_healthy_server_has_nothing_from_upstream() -> None:
    """Models are not regular: what is no visible part of all waits, nor of the tail, is none; nor what other causes
    exceed ten times."""
    assert set(found(late_upstream(10.0, 5.0))) == {"nothing"}
    assert "upstream" in found(late_upstream(10.0, itl=gaps(100_000, 0.02, 0.045, 0.05, 0.06)))
    dwarfed = late_upstream(60.0, delay=causes(upstream=60.0, callback=600.0))
    assert "upstream" not in found(dwarfed)


def of_device(seconds: float, *graphs: dict[str, int], **changed: Any) -> Any:
    """A device that was slow for so long, in streams that waited for some 2 100 s."""
    engines = [SimpleNamespace(process="engine-0", graphs=each) for each in graphs]
    return snapshot(**{"delay": causes(device=seconds), "engines": engines, **changed})


def test_a_slow_device_is_a_finding() -> None:
    """With what would show whether graphs were missed, where no step has its mode."""
    unknown = found(of_device(60.0, {"full": 0, "unknown": 500}))["device"]
    assert (unknown.severity, unknown.lateness) == ("medium", 60.0)
    assert "without a CUDA graph is not known" in unknown.detail and "--cudagraph-metrics" in unknown.advice
    for graphs in ({"full": 400, "unknown": 100}, {"unknown": 0}):
        known = found(of_device(60.0, graphs))["device"]
        assert "graph" not in known.detail + known.advice and "profile" in known.advice


def test_a_healthy_server_s_device_is_none() -> None:
    """As of what comes from upstream."""
    assert set(found(of_device(15.0, {"unknown": 500}))) == {"nothing"}
    assert "device" in found(of_device(10.0, {"unknown": 500}, itl=gaps(100_000, 0.02, 0.045, 0.05, 0.06)))
    assert "device" not in found(of_device(60.0, delay=causes(device=60.0, callback=600.0)))


def test_what_comes_from_upstream_is_not_unexplained_too() -> None:
    """The rest still is."""
    tail = {"ttft": [], "itl": [octave(0.128, unexplained=60.0)]}
    slow = gaps(100_000, 0.02, 0.183, 0.19, 0.2)
    assert "unexplained" in found(snapshot(tail=tail, itl=slow))
    assert "unexplained" not in found(late_upstream(59.0, tail=tail, itl=slow))
    rest = found(late_upstream(20.0, tail=tail, itl=slow))["unexplained"]
    assert rest.lateness == pytest.approx(40.0)


def test_slow_clients_and_the_unexplained_share_the_tail() -> None:
    """Each is listed with its share of what the slowest gaps took beyond the typical."""
    assert found(SLOW_CLIENTS)["slow-clients"].detail.startswith("80% ")
    assert "80% " in found(UNEXPLAINED)["unexplained"].detail
    assert "model" in found(UNEXPLAINED)["unexplained"].detail


def test_octaves_below_the_tail_do_not_count() -> None:
    """Only octaves that reach p99 show what dominates it."""
    snap = snapshot(
        itl=gaps(100_000, 0.02, 0.2, 0.3, 0.4),
        send_wait=gaps(50),
        tail={"ttft": [], "itl": [octave(0.032, unexplained=9.0), octave(0.128, client=1.0)]},
    )
    assert set(found(snap)) == {"slow-clients"}


def test_attainment_below_the_one_asked_for() -> None:
    """The shares, the misses by reason, and the bound that is missed most."""
    finding = found(MISSED)["slo"]
    assert "90.00%" in finding.title and "99.00%" in finding.title
    for part in ("900 of 1000 requests", "misses: late 70, 429 30.", "tpot <= 200 ms: 97.00%"):
        assert part in finding.detail
    assert finding.severity == "high"


def test_attainment_of_few_requests_is_no_finding() -> None:
    """Nineteen requests are no verdict."""
    assert "slo" not in found(snapshot(requests={"good": 10, "late": 9}, attainment=10 / 19))


def test_attainment_without_windows() -> None:
    """Where no bound was counted the finding has that."""
    snap = snapshot(
        requests={"good": 900, "late": 100}, attainment=0.9, window=lambda window: SimpleNamespace(within={})
    )
    assert "not recorded" in found(snap)["slo"].detail


def test_label_overflow_names_a_larger_number() -> None:
    """The advice is an option that can be pasted, within its range."""
    assert found(snapshot(label_overflow=1))["label-overflow"].advice == "install(app, max_label_sets=64)"
    many = snapshot(label_overflow=1, labels=[("m", "r")] * 4000)
    assert found(many)["label-overflow"].advice == "install(app, max_label_sets=4096)"


@pytest.mark.parametrize(
    ("reason", "severity"),
    [("differs", "high"), ("error", "low"), ("other", "low"), ("unsupported", "info"), ("shapes", "info")],
)
def test_fallbacks_of_fast_sse_are_listed_by_shape(reason: str, severity: str) -> None:
    """What the templates merely do not hold is a remark; a frame that differed, or one unknown, is more."""
    snap = snapshot(sse_fallbacks={("chat", reason): 3, ("text", "unsupported"): 1})
    finding = found(snap, DiagnosisContext(fast_sse=True))["fast-sse-fallback"]
    assert finding.severity == severity
    assert f"chat ({reason}), text (unsupported)" in finding.detail
    assert finding.advice


def test_a_frame_that_differed_was_perhaps_not_the_only_one() -> None:
    """Nothing is claimed of those that were not compared; shapes that are learned are not reported as ending."""
    differs = found(snapshot(sse_fallbacks={("chat", "differs"): 1}))["fast-sse-fallback"]
    assert "up to 1023" in differs.detail and "may have been wrong" in differs.detail
    assert "no sse.accelerate()" in differs.advice
    shapes = found(snapshot(sse_fallbacks={("chat", "shapes"): 1}))["fast-sse-fallback"]
    assert "those learned stay fast" in shapes.detail and "wrong" not in shapes.detail


def test_without_fallbacks_there_is_no_finding() -> None:
    """With the option or without."""
    for on in (True, False):
        assert "fast-sse-fallback" not in found(snapshot(), DiagnosisContext(fast_sse=on))


@pytest.mark.parametrize("names", [("a.B", "c.d"), ()])
def test_fast_sse_lists_what_it_took_over(names: tuple[str, ...]) -> None:
    """By name, or that there was nothing."""
    finding = found(snapshot(), DiagnosisContext(fast_sse=True, accelerated=names))["fast-sse"]
    assert finding.severity == "info"
    assert ("a.B, c.d" in finding.detail) is bool(names)


@pytest.mark.parametrize("reason", [*tailwatch.snapshots.DROPS, "new_one"])
def test_drops_are_listed_with_what_mends_them(reason: str) -> None:
    """Each reason, a future one too, has its advice."""
    finding = found(snapshot(drops={reason: 5, "zero": 0}))["drops"]
    assert finding.detail == f"Dropped and counted: {reason} 5."
    assert ("at /metrics shows when" in finding.advice) is (reason == "new_one")


def test_unknown_variables_name_the_right_one() -> None:
    """The near miss is named, the far one only listed."""
    finding = found(snapshot(), MISTYPED)["unknown-variables"]
    for name in ("TAILWATCH_GC_WARN ", "TAILWATCH_GC_WARN_MS?", "TAILWATCH_ZZZ."):
        assert name in finding.detail
    assert finding.advice == "rename TAILWATCH_GC_WARN to TAILWATCH_GC_WARN_MS"
    alone = found(snapshot(), DiagnosisContext(unknown_environment=("TAILWATCH_ZZZ",)))["unknown-variables"]
    assert alone.advice == "unset TAILWATCH_ZZZ"


# Headline --------------------------------------------------------------------------------------------------


def test_headline_explains_and_mends() -> None:
    """The sentence the demo ends with."""
    line = headline(paused_server(), OBSERVED)
    assert line.startswith("p99 ITL 183 ms; up to 161 ms ")
    assert "generation 2, in the server" in line and "`install(app, gc='freeze')` fixes" in line


@pytest.mark.parametrize(
    ("cause", "wanted"),
    [
        ("gc_full", "`install(app, gc='freeze')` fixes"),
        ("gc_increment", "`install(app, gc='freeze')` shortens"),
        ("gc0", "`install(app, gc_log_all=True)`"),
        ("gc1", "`install(app, gc_log_all=True)`"),
    ],
)
def test_the_freeze_is_advised_where_it_helps(cause: str, wanted: str) -> None:
    """Frozen objects are those of the oldest generation; what a request allocates never was frozen."""
    delay = {"ttft": causes(), "itl": causes(**{cause: 5.0})}
    snap = paused_server(delay_by_phase=delay)
    assert wanted in headline(snap, OBSERVED)
    freeze, old = "install(app, gc='freeze')", cause not in ("gc0", "gc1")
    assert (freeze in headline(snap, OBSERVED)) is old
    assert (found(snap, OBSERVED)["gc-tail"].advice == freeze) is old


def test_headline_when_frozen() -> None:
    """With the freeze done nothing is promised again."""
    line = headline(paused_server(), FROZEN)
    assert "heap is frozen" in line and "`" not in line and "fixes" not in line
    assert "`tailwatch.freeze()`" in headline(paused_server(), DiagnosisContext(gc_policy="freeze"))


def test_headline_without_blame() -> None:
    """Where GC is not the cause, that; without gaps, that."""
    assert headline(snapshot()).startswith("p99 ITL 22 ms, 22 ms without")
    assert "generation" not in headline(snapshot()) and "`" not in headline(snapshot())
    assert headline(snapshot(itl=gaps())) == "no gaps between tokens yet"


# Texts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (0.0, "0 ms"),
        (1e-6, "1 us"),
        (0.00005, "50 us"),
        (0.000999, "999 us"),
        (0.0009999, "1 ms"),
        (0.00123, "1.23 ms"),
        (0.1834, "183 ms"),
        (0.9999, "1 s"),
        (12.34, "12.3 s"),
        (99.99, "100 s"),
        (1234.0, "1234 s"),
    ],
)
def test_times_have_three_digits(seconds: float | None, text: str) -> None:
    """Readable at every length, with no digit more than is known."""
    assert ms(seconds) == text


def test_causes_in_words() -> None:
    """Named up to four fifths; split in full; nothing where there is nothing; unknown ones as they are."""
    assert name_causes(causes(gc2=9.0, gc0=1.0)) == "generation 2"
    assert name_causes(causes()) == "nothing"
    assert name_causes(causes(gc2=3.0, gc1=2.9)) == "generation 2 and generation 1"
    three = name_causes(causes(gc2=3.0, gc1=2.9, gc0=2.8))
    assert three.replace(" and ", ", ").split(", ") == ["generation 2", "generation 1", "generation 0"]
    first, second = split_by_cause(causes(gc_own=1.0, gc_full=2.0)).split(", ")
    assert (first, second) == ("2 s of full collections", "1 s of tailwatch's own pauses")
    assert split_by_cause({"new": 1.0}, "to") == "1 s to new"
    assert split_by_cause(causes()) == "none"


def test_findings_as_text() -> None:
    """Severity and title, the numbers indented, the advice behind an arrow."""
    text = format_findings(
        [Finding("r", "high", "a title", "Some detail.", "do()"), Finding("s", "low", "b", "C.", "d()")]
    )
    assert text == "high    a title\n        Some detail.\n        -> do()\n\nlow     b\n        C.\n        -> d()"
    assert format_findings([]) == ""


def test_numbers_stay_with_their_units() -> None:
    """A line never ends between a number and its unit."""
    for padding in range(90, 110):
        text = format_findings([Finding("r", "low", "t", "x" * padding + " 266 ms more.", "do()")])
        assert "266 ms" in text
        assert max(len(line) for line in text.splitlines()) <= 120


def slow_gap(**changed: Any) -> Any:
    """A gap of 183 ms in the way of which a collection stood."""
    members = {
        "when": datetime.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=datetime.timezone.utc),
        "phase": "itl",
        "gap": 0.183,
        "typical": 0.0201,
        "overlap": causes(gc2=0.161),
        "delay": causes(gc2=0.158),
        "client": 0.0,
        "accept": 0.0,
        "unexplained": 0.005,
        "complete": True,
        "request_id": "req-1",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "model_name": "tiny",
        "route": "/v1/completions",
        "token": 17,
        "others": (),
    }
    return SimpleNamespace(**{**members, **changed})


def test_a_slow_gap_in_one_line() -> None:
    """Time, request id, trace id, route, gap, what it coincided with, what it lost."""
    gap, why = format_slow(slow_gap()).split(": ")
    assert gap.startswith("2026-01-02T03:04:05.678+00:00 gap 183 ms (typical 20.1 ms) ")
    assert gap.split()[-6:] == [
        "token",
        "17",
        "request=req-1",
        "trace=4bf92f3577b34da6a3ce929d0e0e4736",
        "route=/v1/completions",
        "model=tiny",
    ]
    overlap, delay, rest = why.split("; ")
    assert "up to 161 ms of generation 2" in overlap
    assert "lost" in delay and "158 ms to generation 2" in delay
    assert rest == "unexplained 5 ms"


def test_a_slow_gap_of_another_process_s_making() -> None:
    """Whose pause it was, where it was not the stream's own process's."""
    others = (
        SimpleNamespace(source="engine", cause="gc2", overlap=0.15, delay=0.15),
        SimpleNamespace(source="worker", cause="gc_own", overlap=0.01, delay=0.01),
    )
    overlap, delay, engine, worker, _ = format_slow(slow_gap(others=others)).split("; ")
    assert "up to 161 ms of generation 2" in overlap
    assert "lost" in delay and "158 ms to generation 2" in delay
    assert engine.endswith("in engine: 150 ms of generation 2")
    assert worker.endswith("10 ms of tailwatch's own pauses") and "in worker: " in worker


def test_a_slow_first_token() -> None:
    """The wait before the app is shown; what is not known is left out."""
    line = format_slow(
        slow_gap(phase="ttft", typical=0.0, overlap=causes(), delay=causes(), accept=0.15, request_id="", trace_id="")
    )
    wait, why = line.split(": ")
    assert "ttft 183 ms" in wait
    assert wait.split()[-4:] == ["token", "17", "route=/v1/completions", "model=tiny"]
    pauses, accept, rest = why.split("; ")
    assert pauses.startswith("no pause")
    assert "before the app 150 ms" in accept
    assert "not split" in rest and rest.endswith(" 5 ms")
    assert "unexplained" not in line


def test_a_slow_gap_beyond_the_ring() -> None:
    """Where pauses were overwritten the overlap is a lower bound and delay unknown."""
    line = format_slow(slow_gap(complete=False))
    assert "at least 161 ms of generation 2" in line and "lost is unknown" in line
    assert "pauses were overwritten" in format_slow(slow_gap(complete=False, overlap=causes()))


def test_a_stranger_cannot_forge_log_lines() -> None:
    """Control characters and blanks in ids become '?'."""
    line = format_slow(slow_gap(request_id="a\nb c\x1b[31m"))
    assert "request=a?b?c?[31m " in line
    assert "\n" not in line


def test_the_tail_as_a_table() -> None:
    """Per octave the time by cause; only causes that took time have a column; the sentence names the worst."""
    snap = snapshot(
        tail={
            "ttft": [],
            "itl": [octave(0.016, unexplained=0.3), octave(0.128, delay={"gc2": 3.0}, client=1.0, unexplained=0.0)],
        }
    )
    title, header, first, second, sentence = format_tail(snap).splitlines()
    assert title.startswith("gaps between tokens")
    assert header.split()[-6:] == ["count", "time", "gc2", "slow", "client", "unexplained"]
    assert first.split() == ["16", "ms", "32", "ms", "5", "160", "ms", "-", "-", "300", "ms"]
    assert second.split() == ["128", "ms", "256", "ms", "5", "1.28", "s", "3", "s", "1", "s", "-"]
    assert "128 ms" in sentence and "75%" in sentence and sentence.endswith(": generation 2")
    assert len({len(line) for line in (header, first, second)}) == 1


def test_the_tail_of_first_tokens_has_nothing_unexplained() -> None:
    """The model and its queue are most of such a wait: shown as what is not split, never as the cause."""
    paused = snapshot(tail={"ttft": [octave(0.5, delay={"gc2": 1.0}, unexplained=3.0)], "itl": []})
    _, header, _, sentence = format_tail(paused).splitlines()
    assert header.endswith("not split")
    assert "500 ms" in sentence and "25%" in sentence and sentence.endswith(": generation 2")
    rest = snapshot(tail={"ttft": [octave(0.5, unexplained=3.0)], "itl": []})
    sentence = format_tail(rest).splitlines()[-1]
    assert "500 ms" in sentence and "%" not in sentence and sentence.endswith("not split")
    assert "unexplained" not in format_tail(paused) + format_tail(rest)


def test_an_empty_tail() -> None:
    """Empty octaves make no table."""
    snap = snapshot(tail={"ttft": [], "itl": [octave(0.016, count=0)]})
    assert format_tail(snap).startswith("no gap ") and "\n" not in format_tail(snap)
    assert "nothing exceeds the typical gap" in format_tail(snapshot(tail={"itl": [octave(0.016)], "ttft": []}))


# Saved snapshots -------------------------------------------------------------------------------------------


def saved_histogram(histogram: Gaps) -> dict[str, Any]:
    """What Snapshot.as_dict() makes of a histogram."""
    stored = {f"{percent:g}": value for percent, value in histogram.stored.items()}
    return {"count": histogram.count, "sum": histogram.sum, "min": histogram.min, "max": histogram.max, "p": stored}


def saved(snap: Any) -> dict[str, Any]:
    """What Snapshot.as_dict() makes of a snapshot, through JSON."""
    plain = {
        name: value for name, value in vars(snap).items() if name not in ("window", "gc", "processes", "slo", "tail")
    }
    data = {
        **plain,
        **{name: saved_histogram(getattr(snap, name)) for name in ("ttft", "itl", "itl_without_gc", "send_wait")},
        **{name: saved_histogram(gaps()) for name in ("tpot", "e2e", "abandoned_wait")},
        "queue": {stage: saved_histogram(value) for stage, value in snap.queue.items()},
        "gc": {**vars(snap.gc), "pauses": {"2": saved_histogram(gaps(3)), "gc_own": saved_histogram(gaps())}},
        "processes": [{**vars(each), "policy": dataclasses.asdict(each.policy)} for each in snap.processes],
        "sse_fallbacks": [[*kind, count] for kind, count in snap.sse_fallbacks.items()],
        "slo": vars(snap.slo),
        "tail": {phase: [vars(octave) for octave in octaves] for phase, octaves in snap.tail.items()},
        "slowest": [{**vars(slow), "when": slow.when.isoformat()} for slow in snap.slowest],
        **{"taken": 1.0, "outcomes": {}, "tokens": 5, "fluidity": None, "overlap": causes(), "arrivals": {}},
    }
    loaded: dict[str, Any] = json.loads(json.dumps(data))
    return loaded


@pytest.mark.parametrize(
    "make", [snapshot, paused_server, lambda: TTFT_PAUSED, lambda: UNEXPLAINED, lambda: SLOW_CLIENTS]
)
def test_a_saved_snapshot_reads_the_same(make: Callable[[], Any]) -> None:
    """Every rule finds in a saved snapshot what it finds in the live one."""
    live = make()
    again = from_dict(saved(live))
    assert doctor(again, FROZEN) == doctor(live, FROZEN)
    assert headline(again, OBSERVED) == headline(live, OBSERVED)
    assert format_tail(again) == format_tail(live)


ELSEWHERE = """
import json, sys, sysconfig
sysconfig.get_config_vars()
sys.platform = "darwin"
sys.modules["tailwatch._hot"] = sys.modules["tailwatch._cold"] = None
from tailwatch.snapshots.serialization import from_dict
print(from_dict(json.load(sys.stdin)).itl.p(99))
"""


def test_a_saved_snapshot_is_read_without_the_compiled_modules() -> None:
    """As on another system than Linux."""
    data = json.dumps(saved(snapshot()))
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], input=data, capture_output=True, text=True, check=True)
    assert float(done.stdout) == 0.022


def test_saved_details() -> None:
    """Keys of generations are integers again, times are times, the open octave is open, nothing can be changed."""
    data = saved(snapshot(slowest=[slow_gap()], tail={"ttft": [], "itl": [octave(600.0)]}))
    data["tail"]["itl"][0]["upper"] = None
    snap = from_dict(data)
    assert set(snap.gc.pauses) == {2, "gc_own"}
    assert len(snap.gc.pauses[2]) == snap.gc.pauses[2].count == 3
    assert snap.gc.pauses[2].mean == pytest.approx(0.02)
    assert format_slow(snap.slowest[0]) == format_slow(slow_gap())
    assert snap.tail["itl"][0].upper == math.inf
    assert snap.window("1m").within == {}
    del data["sse_fallbacks"]  # saved before there was such a thing
    assert from_dict(data).sse_fallbacks == {}
    with pytest.raises(AttributeError, match="read-only"):
        snap.tokens = 3
    assert "count=3" in repr(snap.gc.pauses[2])


def test_saved_histograms_answer_for_what_was_stored() -> None:
    """Another percentile is refused by name, and an empty histogram has none."""
    snap = from_dict(saved(snapshot()))
    assert snap.itl.p(99) == 0.022
    assert snap.tpot.p(99) is None
    assert snap.tpot.mean is None
    with pytest.raises(OptionError, match=r"percent=98: .*50, 90, 95, 99, 99\.9"):
        snap.itl.p(98)


def test_saved_slo_may_be_a_list() -> None:
    """Bounds by name, or in the order of the grammar."""
    data = saved(snapshot())
    data["slo"] = [2.0, 0.2, None, None, 0.99]
    assert vars(from_dict(data).slo) == {"ttft": 2.0, "tpot": 0.2, "itl": None, "e2e": None, "attainment": 0.99}


@pytest.mark.parametrize(
    "damage", [lambda d: d.pop("itl"), lambda d: d.update(itl=3), lambda d: d.update(slowest=[{}])]
)
def test_something_else_is_refused(damage: Callable[[dict[str, Any]], object]) -> None:
    """What is no saved snapshot is refused as none."""
    data = saved(snapshot())
    damage(data)
    with pytest.raises(TailwatchError, match="not a saved tailwatch snapshot"):
        from_dict(data)


def test_the_context_can_be_saved_too() -> None:
    """Lists come back as tuples, names of other versions are left out."""
    context = DiagnosisContext(gc_policy="freeze", thresholds=(700, 10, 10), notes=("a",))
    data = {**json.loads(json.dumps(context.as_dict())), "later": 1}
    assert DiagnosisContext.from_dict(data) == context


def test_a_real_snapshot_can_be_saved() -> None:
    """What Snapshot.as_dict() writes is what from_dict() reads: the doctor finds the same in both."""
    watch = tailwatch.install(role="engine", gc="off", slo="ttft<=1s,itl<=100ms@99%")
    try:
        start = 1_000_000_000_000
        for number in range(30):
            with tailwatch.stream(model="m", route="/r", arrival=start, request_id=f"r{number}") as stream:
                for token in range(40):
                    stream.token(at=start + 20_000_000 * token + (500_000_000 if token > 30 else 0))
                stream.close(at=start + 2_000_000_000)
        snap, context = tailwatch.snapshot(), watch.context()
    finally:
        tailwatch.uninstall()
    data = json.loads(json.dumps({"snapshot": snap.as_dict(), "context": context.as_dict()}))
    again, context_again = from_dict(data["snapshot"]), DiagnosisContext.from_dict(data["context"])
    findings = doctor(snap, context)
    assert {"slo"} <= {finding.rule for finding in findings}
    assert "misses: late 30" in next(finding.detail for finding in findings if finding.rule == "slo")
    assert findings == doctor(again, context_again)
    assert [format_slow(gap) for gap in again.slowest] == [format_slow(gap) for gap in snap.slowest] != []
    assert format_tail(again) == format_tail(snap)
    assert headline(again, context_again) == headline(snap, context)


def test_a_stall_of_a_real_process_is_its_first_finding() -> None:
    """One TTFT of 40 s among 300 of 11 ms, as a stream records it: the request is named."""
    watch = tailwatch.install(role="engine", gc="off")
    try:
        for number in range(300):
            start = 1_000_000_000 * (1 + 50 * number)
            with tailwatch.stream(model="m", route="/r", arrival=start, request_id=f"r{number}") as stream:
                first = start + (40_000_000_000 if number == 50 else 11_000_000)
                for token in range(10):
                    stream.token(at=first + 8_000_000 * token)
                stream.close(at=first + 80_000_000)
        found = watch.doctor()
    finally:
        tailwatch.uninstall()
    assert found[0].rule == "longest-ttft" and "request=r50" in found[0].detail
    assert found[0].lateness == pytest.approx(40, rel=0.05)


# ---- engine steps ----


def engine_step(**changed: Any) -> SimpleNamespace:
    """10 000 decode steps of 15 ms with 12 requests each, 0.2 ms apart."""
    parts: dict[str, Any] = {
        "length": gaps(10_000, 0.015, 0.016, 0.017, 0.018),
        "gap": gaps(9_999, 0.0002, 0.0003, 0.0004, 0.001),
        "overlap": causes(),
        "requests": causes(),
        "gap_overlap": causes(),
        **changed,
    }
    return SimpleNamespace(
        process="engine-0",
        role="engine",
        name="decode",
        batch=12.0,
        steps=SimpleNamespace(time=parts["length"], overlap=parts["overlap"], requests=parts["requests"]),
        host_gaps=SimpleNamespace(time=parts["gap"], overlap=parts["gap_overlap"], requests=causes()),
    )


def engine_only(step: SimpleNamespace) -> Any:
    """A process without an app."""
    return snapshot(steps=[step], ttft=gaps(), itl=gaps(), itl_without_gc=gaps(), requests={}, opened=0, in_flight=0)


def with_policy(**changed: Any) -> Any:
    """A server of two processes, one of which publishes this policy."""
    policy = tailwatch.snapshots.Policy(**changed)
    return snapshot(processes=[process(role="api", name="api-0", policy=policy, paused=causes(gc0=0.01))])


OBSERVING = process(
    role="api", name="api-0", policy=tailwatch.snapshots.Policy(kind="observe", unfrozen=1_000_000), age=120.0,
    paused=causes(gc0=0.05, gc2=1.0), collections=causes(gc0=1000, gc2=5),
)  # fmt: skip
SAVING = snapshot(
    processes=[OBSERVING],
    delay_by_source={"api": {"ttft": causes(), "itl": causes(gc2=8.0)}},
    overlap_by_source={"api": {"ttft": causes(), "itl": causes(gc2=8.4)}},
)
FALLEN, MET = with_policy(mode="full collections", why="proof"), with_policy(memory_limits={"rss": 4, "objects": 0})
BLIND = with_policy(kind="freeze", interference={"freeze": 2, "freeze_blind": 1})


def explicit(external: int, early: tuple[int, int] = (0, 0), **members: Any) -> Any:
    """A paused server of which so many of 12 full collections were gc.collect() calls; early: so many full ones came
    before the first request, so many of these were such calls."""
    collections = {"external": external, "automatic": 900}
    policy = tailwatch.snapshots.Policy(
        kind="observe", collections=collections, early_full=early[0], early_external=early[1]
    )
    api = process(role="api", name="api-0", paused=causes(gc2=2.0), collections=causes(gc2=12), policy=policy)
    by_source = {"api": {"ttft": causes(), "itl": causes(gc2=50.0, gc0=0.5)}}
    return paused_server(processes=[api], delay_by_source=by_source, **members)


WAITING = with_policy(kind="idle", mode="slices", slices={"idle": 10, "overdue": 190})


def test_a_policy_is_advised_with_what_it_saves() -> None:
    """An interval, what it stands on, and the option."""
    finding = found(SAVING, OBSERVED)["gc-policy"]
    assert finding.severity == "medium"
    assert "gc='idle'" in finding.title and "2.53 s to 8 s" in finding.title
    for part in ("gc='observe'", "estimated 8 s ", "of the server in 120 s", " delaying 8 of them ", "(32% to 100%)"):
        assert part in finding.detail
    assert finding.advice == "install(app, gc='idle')"


def test_the_headline_has_the_advice_of_the_findings() -> None:
    """One policy for one problem: the one that saves most, else the freeze; in an engine too."""
    server = paused_server(**{name: getattr(SAVING, name) for name in SOURCES})
    advised = found(server, OBSERVED)
    assert advised["gc-tail"].advice == advised["gc-policy"].advice == "install(app, gc='idle')"
    assert "`install(app, gc='idle')` fixes it" in headline(server, OBSERVED)
    server.processes = [process(**{**vars(OBSERVING), "role": "engine", "name": "engine-0"})]
    for name in ("delay_by_source", "overlap_by_source"):
        setattr(server, name, {"engine": getattr(SAVING, name)["api"]})
    advised = found(server, OBSERVED)
    assert advised["gc-tail"].advice.startswith("TAILWATCH_GC=idle for the engine process")
    assert advised["gc-policy"].advice.startswith("TAILWATCH_GC=idle for the engine process")
    assert "TAILWATCH_GC=idle" in headline(server, OBSERVED)


SOURCES = ("processes", "delay_by_source", "overlap_by_source")


def test_an_engine_is_configured_by_variable() -> None:
    """Its policy is not the app's."""
    engine = snapshot(
        processes=[SimpleNamespace(**{**vars(OBSERVING), "role": "engine", "name": "engine-0"})],
        delay_by_source={"engine": SAVING.delay_by_source["api"]},
        overlap_by_source={"engine": SAVING.overlap_by_source["api"]},
    )
    finding = found(engine, OBSERVED)["gc-policy"]
    assert finding.advice == "TAILWATCH_GC=idle for the engine process"
    assert "of the engine process in" in finding.detail


def test_interference_is_listed_by_process() -> None:
    """What was frozen blind is not known, and that is shown; a look alone is no alarm."""
    finding = found(BLIND)["gc-interference"]
    assert finding.severity == "medium" and "gc.collect() before gc.freeze()" in finding.advice
    assert "api-0: other code called gc.freeze() 2 times" in finding.detail
    assert "garbage may have been frozen" in finding.detail
    for kind, calls, severity in (
        ("observe", {"set_threshold": 1}, "info"),
        ("freeze", {"set_threshold": 1}, "medium"),
        ("idle", {"disable": 3, "enable": 2}, "medium"),
        ("freeze", {"freeze": 1, "unfreeze": 2}, "medium"),
    ):
        assert found(with_policy(kind=kind, interference=calls))["gc-interference"].severity == severity


@pytest.mark.parametrize("calls", [{"freeze": 1}, {"freeze": 2, "unfreeze": 2}, {"disable": 3, "enable": 3}])
def test_how_a_server_treats_its_own_heap_is_no_interference(calls: dict[str, int]) -> None:
    """vLLM collects and freezes after start-up, and freezes, unfreezes and switches back around a graph capture."""
    assert "gc-interference" not in found(with_policy(kind="freeze", interference=calls))


def test_gc_collect_calls_are_named_and_credited_to_no_policy() -> None:
    """Ten of twelve: their share of the delay is the calls' finding, and only the rest is a policy's to save."""
    snap = explicit(10)
    finding = found(snap, OBSERVED)["gc-explicit"]
    assert "10 times" in finding.detail and "83%" in finding.detail
    assert finding.lateness == pytest.approx(50 * 10 / 12)
    assert "remove the gc.collect() calls" in finding.advice
    assert found(snap, OBSERVED)["gc-tail"].advice == finding.advice
    assert "gc.collect()" in headline(snap, OBSERVED) and "fixes" not in headline(snap, OBSERVED)
    saved, before = found(snap, OBSERVED)["gc-policy"], found(explicit(0), OBSERVED)["gc-policy"]
    assert saved.lateness == pytest.approx(50 * 2 / 12 + 0.5) and before.lateness == pytest.approx(50.5)
    assert "gc-explicit" not in found(explicit(0), OBSERVED)


def test_gc_collect_calls_before_the_first_request_are_in_no_share() -> None:
    """They delayed nobody: what the tail lost is all the thresholds'."""
    early = explicit(10, early=(10, 10))
    assert "gc-explicit" not in found(early, OBSERVED)
    assert found(early, OBSERVED)["gc-policy"].lateness == pytest.approx(50.5)
    assert "gc.collect()" not in found(early, OBSERVED)["gc-tail"].advice
    some = found(explicit(10, early=(9, 8)), OBSERVED)["gc-explicit"]  # one of 9 was automatic
    assert "2 times" in some.detail and "67%" in some.detail


@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="until the counts of 3.14's collector can be read: whose collections they are"
)
def test_gc_collect_calls_of_a_real_process_are_named() -> None:
    """Ten of them, between the tokens of a stream, over 300 000 objects. Two before the first request count apart."""
    heap = [[number] for number in range(300_000)]
    watch = tailwatch.install(role="engine", gc="observe")
    try:
        for _ in range(2):
            gc.collect()
        with tailwatch.stream() as stream:
            for number in range(60):
                stream.token()
                time.sleep(0.002)
                if number >= 20 and number % 4 == 0:
                    gc.collect()
        facts = {finding.rule: finding for finding in watch.doctor()}
    finally:
        tailwatch.uninstall()
    assert "10 times" in facts["gc-explicit"].detail and facts["gc-explicit"].lateness > 0.05
    assert "gc-policy" not in facts and "gc.collect()" in facts["gc-tail"].advice
    assert len(heap) == 300_000


def test_a_remedy_can_take_most_of_the_number() -> None:
    """A freeze takes no younger generations, and no wall time in which the process had no CPU."""
    mixed = {"ttft": causes(), "itl": causes(gc0=3.0, gc1=2.9, gc2=3.1)}
    snap = paused_server(delay_by_phase=mixed)
    assert found(snap, OBSERVED)["gc-tail"].advice.startswith("install(app, gc_log_all=True)")
    assert "gc='freeze'" not in headline(snap, OBSERVED)
    starved = paused_server()
    starved.gc.cpu = causes(gc2=0.02)
    finding = found(starved, OBSERVED)["gc-tail"]
    assert "2 s of wall time and 20 ms of CPU time" in finding.detail
    assert "more CPUs" in finding.advice and "no CPU" in headline(starved, OBSERVED)
    assert "CPU" not in found(paused_server(), OBSERVED)["gc-tail"].detail


def test_a_policy_in_force_is_not_recommended() -> None:
    """From outside, as each process publishes it."""
    policy = tailwatch.snapshots.Policy(kind="freeze", freezes=2)
    server = paused_server(processes=[process(role="api", name="api-0", paused=causes(gc2=2.0), policy=policy)])
    assert "gc='freeze'" not in headline(server) + found(server, DiagnosisContext())["gc-tail"].advice
    auto = SimpleNamespace(**{**vars(OBSERVING), "policy": dataclasses.replace(OBSERVING.policy, why="start-up")})
    sources = {name: getattr(SAVING, name) for name in SOURCES[1:]}
    assert "gc-policy" not in found(snapshot(processes=[auto], **sources), DiagnosisContext(python_version=(3, 11)))


# ---- the longest, and the order ----


def test_a_healthy_run_has_no_finding() -> None:
    """p99 at twice p50 and a longest gap of 60 ms are how a server is."""
    healthy = gaps(100_000, 0.0076, 0.0158, 0.03, 0.06)
    tail = {"ttft": [], "itl": [octave(0.032, unexplained=0.4)]}
    [finding] = doctor(snapshot(itl=healthy, itl_without_gc=healthy, tail=tail), FROZEN)
    assert finding.rule == "nothing"


def test_the_longest_are_findings_whatever_p99_is() -> None:
    """Four TTFTs of 40 s, a gap of 2.2 s and a step of 40 s in a run of good percentiles, and whose they were."""
    octaves = [octave(33.5, count=4, unexplained=160.0)]
    octaves[0].time = 160.0
    stall = slow_gap(phase="ttft", gap=40.0, typical=0.0, overlap=causes(), delay=causes(), request_id="logprobs")
    step = engine_step(length=gaps(10_000, 0.0076, 0.009, 0.01, 40.286))
    facts = found(snapshot(**{
        **{name: getattr(STALLED, name) for name in ("ttft", "itl", "itl_without_gc")},
        "tail": {"ttft": octaves, "itl": []}, "slowest": [stall], "steps": [step],
    }))  # fmt: skip
    assert {"longest-gap", "longest-ttft", "longest-step"} <= set(facts)
    assert "40 s" in facts["longest-ttft"].title and "request=logprobs" in facts["longest-ttft"].detail
    assert facts["longest-ttft"].lateness == pytest.approx(160 - 4 * 0.011)
    assert "2.2 s" in facts["longest-gap"].title and facts["longest-gap"].severity == "medium"
    assert "40.3 s" in facts["longest-step"].title
    assert "the longest gap took 2.2 s" in headline(STALLED)


def test_a_longest_gap_that_collections_explain_is_theirs() -> None:
    """It is in gc-tail."""
    snap = paused_server(itl=gaps(100_000, 0.02, 0.022, 0.024, 2.2))
    assert {"gc-tail"} == {rule for rule in found(snap) if rule in ("gc-tail", "longest-gap")}


UNSEEN = dataclasses.replace(OBSERVED, unseen_servers=("aiohttp.web",), unseen_ports=(8080,))
UNCOUNTED = dataclasses.replace(OBSERVED, uncounted_routes=("GET /feed", "POST /chat/{user}"), started="run")


def test_a_server_in_which_no_request_is_seen_is_named() -> None:
    """With its ports a finding, without them a remark in the place of "no requests"; seen requests silence it."""
    empty = snapshot(ttft=gaps(), itl=gaps(), itl_without_gc=gaps(), requests={"good": 0}, opened=0, attainment=None)
    for ports, severity in (((8080,), "medium"), ((), "info")):
        [finding] = doctor(empty, dataclasses.replace(UNSEEN, unseen_ports=ports))
        assert (finding.rule, finding.severity) == ("unseen-server", severity) and "aiohttp.web" in finding.detail
    assert "unseen-server" not in found(snapshot(), UNSEEN)


def test_routes_that_would_count_are_named_as_an_option() -> None:
    """Method and path, and the flag of how it was started."""
    finding = found(snapshot(), UNCOUNTED)["uncounted-routes"]
    assert "POST /chat/{user}" in finding.detail and "tailwatch run --routes=/feed,/chat/{user}" in finding.advice


def test_queueing_is_a_finding_with_its_cost() -> None:
    """Where the healthy concurrency was found and exceeded; not where that costs little."""
    finding = found(snapshot(), CROWDED)["queueing"]
    assert "above 8 concurrent streams" in finding.title and finding.lateness == 41.0
    assert all(part in finding.detail for part in ("up to 24 were in flight", "41 s longer", "p99 200 ms"))
    assert "queueing" not in found(snapshot(), dataclasses.replace(CROWDED, queued_seconds=0.4))


def test_what_explains_most_lateness_comes_first() -> None:
    """A saving of a few seconds does not stand before hundreds unexplained."""
    tail = {"ttft": [], "itl": [octave(0.128, unexplained=620.0)]}
    sources = {name: getattr(SAVING, name) for name in SOURCES}
    findings = doctor(snapshot(itl=UNEXPLAINED.itl, itl_without_gc=UNEXPLAINED.itl, tail=tail, **sources), OBSERVED)
    rules = [finding.rule for finding in findings]
    assert rules.index("unexplained") < rules.index("gc-policy")
    assert findings[0].lateness == 620.0


@pytest.mark.parametrize(
    ("started", "advice"),
    [
        ("install", "install(app, slow_gap_ms=100) logs each"),
        ("run", "tailwatch run --slow-gap-ms=100 logs each"),
        ("environment", "TAILWATCH_SLOW_GAP_MS=100 logs each"),
    ],
)
def test_advice_fits_how_the_server_was_started(started: str, advice: str) -> None:
    """An argument of install(), a flag, or a variable; no advice to call install() where it was not called."""
    context = dataclasses.replace(OBSERVED, started=started)
    assert found(UNEXPLAINED, context)["unexplained"].advice.startswith(advice)
    for snap, other in SPEAKING:
        for finding in doctor(snap, dataclasses.replace(other, started=started)):
            assert ("install(app" in finding.advice) <= (started == "install"), finding
            assert ("tailwatch.freeze()" in finding.advice) <= (started == "install"), finding
    assert ("install(app" in headline(paused_server(), context)) is (started == "install")
    assert fit("install(app, routes=['/a'], gc='idle')", "run") == "tailwatch run --routes=/a --gc=idle"


def test_a_fall_back_has_its_reason() -> None:
    """And what is done instead."""
    finding = found(FALLEN)["gc-fallback"]
    assert "disabled in api-0: its start-up self-test failed." in finding.detail


def test_memory_limits_and_missing_moments_are_reported() -> None:
    """How often, and the share."""
    assert "api-0: rss 4 times" in found(MET)["gc-memory-limit"].detail
    assert "95% of GC slices in api-0 ran while requests were waiting." in found(WAITING)["gc-idle-slots"].detail


SPEAKING += [(SAVING, OBSERVED), *((snap, FROZEN) for snap in (FALLEN, MET, BLIND, WAITING))]
SPEAKING += [(explicit(10), OBSERVED)]
SPEAKING += [
    (engine_only(engine_step(length=gaps(10_000, 0.0076, 0.009, 0.01, 40.0))), OBSERVED),
    (engine_only(engine_step(overlap=causes(gc2=4.0))), OBSERVED),
    (snapshot(requests={"good": 0}, opened=0), UNSEEN),
    (snapshot(), UNCOUNTED),
    (engine_only(engine_step(gap=gaps(9_999, 0.003, 0.009, 0.01, 0.02))), OBSERVED),
]


def test_a_healthy_engine_is_an_answer() -> None:
    """Steps without visible pauses or gaps: "No problems found", and how many were looked at, not "no requests"."""
    [found] = doctor(engine_only(engine_step(overlap=causes(gc0=0.01))), OBSERVED)
    assert found.rule == "nothing"
    assert "10000 engine steps." in found.detail


def test_pauses_in_an_engine_s_steps_are_named() -> None:
    """Which process, step and cause, the share, whose time it was, and what mends it."""
    step = engine_step(overlap=causes(gc2=4.0), requests=causes(gc2=48.0), gap_overlap=causes(gc2=1.0))
    found = next(finding for finding in doctor(engine_only(step), OBSERVED) if finding.rule == "engine-pauses")
    assert found.severity == "medium"
    assert "Up to 3.3%" in found.title and "'decode' steps" in found.title and "generation 2" in found.title
    assert "10000 'decode' steps of engine-0" in found.detail
    assert "5 s of generation 2" in found.detail
    assert "up to 48 s" in found.detail
    assert found.advice.startswith("tailwatch.freeze() in the engine process")


def test_one_long_collection_of_an_engine_is_seen() -> None:
    """A small share that makes the longest step is still its tail; a large one is high."""
    length = gaps(100_000, 0.015, 0.016, 0.017, 0.283)
    step = engine_step(length=length, overlap=causes(gc2=0.268))
    assert "engine-pauses" in {finding.rule for finding in doctor(engine_only(step), OBSERVED)}
    elsewhere = engine_step(length=length, overlap=causes(gc2=0.1))
    assert "engine-pauses" not in {finding.rule for finding in doctor(engine_only(elsewhere), OBSERVED)}
    most = engine_step(overlap=causes(gc0=20.0))
    found = next(finding for finding in doctor(engine_only(most), OBSERVED) if finding.rule == "engine-pauses")
    assert found.severity == "high"
    assert "gc_log_all" in found.advice


def test_host_gaps_are_reported_where_they_show() -> None:
    """A tenth of an engine's time between steps, while requests waited."""
    step = engine_step(gap=gaps(9_999, 0.003, 0.009, 0.01, 0.02), gap_overlap=causes(gc1=0.04))
    found = next(finding for finding in doctor(engine_only(step), OBSERVED) if finding.rule == "host-gaps")
    assert "17%" in found.title
    assert "p50 3 ms" in found.detail and "p99 9 ms" in found.detail
    assert "Up to 40 ms" in found.detail
    assert "--async-scheduling" in found.advice
    few = engine_step(gap=gaps(50, 3.0))
    assert "host-gaps" not in {finding.rule for finding in doctor(engine_only(few), OBSERVED)}
