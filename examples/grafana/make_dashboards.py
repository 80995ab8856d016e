"""Writes the two dashboards beside this file: one for classic histograms, one for native ones.

python make_dashboards.py            writes them
python make_dashboards.py --check    exits 1 where a file is not what would be written

Both come from the one list of rows below, so they show the same and differ only in how a histogram is asked.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
RATE = "$__rate_interval"
RANGE = "$__range"  # all that is shown

TARGET = 'job=~"$job", instance=~"$instance"'  # every metric has these two
SERIES = f'{TARGET}, model_name=~"$model_name", route=~"$route"'  # those of requests have these two more


# ---- how a histogram is asked ----


class Classic:
    """By its _bucket, _sum and _count series."""

    name = "classic"
    described = "classic histograms (text or OpenMetrics scrapes)"

    @staticmethod
    def quantile(q: float, metric: str, where: str, by: str = "", over: str = RATE) -> str:
        """The quantile over a range, for each value of the labels in `by`."""
        keys = f"le, {by}" if by else "le"
        return f"histogram_quantile({q:g}, sum by ({keys}) (rate({metric}_bucket{{{where}}}[{over}])))"

    @staticmethod
    def seconds(metric: str, where: str, by: str = "", over: str = RATE) -> str:
        """Seconds of all samples together, per second."""
        return total(f"{metric}_sum", where, by, over)

    @staticmethod
    def count(metric: str, where: str, by: str = "") -> str:
        """Samples per second."""
        return total(f"{metric}_count", where, by)

    @staticmethod
    def heatmap(metric: str, where: str) -> str:
        """Samples per second by bucket."""
        return f"sum by (le) (rate({metric}_bucket{{{where}}}[{RATE}]))"


class Native:
    """As one series of native histograms."""

    name = "native"
    described = "native histograms (protobuf scrapes)"

    @staticmethod
    def quantile(q: float, metric: str, where: str, by: str = "", over: str = RATE) -> str:
        """The quantile over a range, for each value of the labels in `by`."""
        return f"histogram_quantile({q:g}, {total(metric, where, by, over)})"

    @staticmethod
    def seconds(metric: str, where: str, by: str = "", over: str = RATE) -> str:
        """Seconds of all samples together, per second."""
        return f"histogram_sum({total(metric, where, by, over)})"

    @staticmethod
    def count(metric: str, where: str, by: str = "") -> str:
        """Samples per second."""
        return f"histogram_count({total(metric, where, by)})"

    @staticmethod
    def heatmap(metric: str, where: str) -> str:
        """Samples per second by bucket."""
        return total(metric, where)


Kind = type[Classic] | type[Native]


def total(metric: str, where: str, by: str = "", over: str = RATE) -> str:
    """What a counter, or a native histogram, gains per second."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{where}}}[{over}]))"


def now(metric: str, where: str = TARGET, by: str = "") -> str:
    """What a gauge says."""
    return f"sum{f' by ({by})' if by else ''} ({metric}{{{where}}})"


# ---- what a panel is ----


@dataclass
class Query:
    """One line of a panel: its legend, and its expression for a kind of histograms."""

    legend: str
    expr: Callable[[Kind], str]


@dataclass
class Panel:
    """One panel. unit: Grafana's name of it. width: of 24. exemplars: asked for beside the lines."""

    title: str
    about: str
    queries: Sequence[Query]
    unit: str = "short"
    width: int = 8
    kind: str = "timeseries"
    exemplars: bool = False
    stacked: bool = False
    most: float | None = None
    good_from: float | None = None
    bad_from: float | None = None


@dataclass
class Row:
    """A headline, which is a question, and the panels that answer it."""

    title: str
    panels: Sequence[Panel]
    height: int = 8


PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))
TTFT = "tailwatch_time_to_first_token_seconds"
ITL = "tailwatch_inter_token_latency_seconds"
ITL_WITHOUT_GC = "tailwatch_inter_token_latency_without_gc_seconds"
TPOT = "tailwatch_time_per_output_token_seconds"
E2E = "tailwatch_e2e_request_latency_seconds"
GC = "python_gc_duration_seconds"
REQUESTS = "tailwatch_requests_total"
DELAY = "tailwatch_stream_delay_seconds_total"
STALLS = "tailwatch_stall_seconds"
UNEXPLAINED = "tailwatch_unexplained_seconds_total"
OVERLAP = "tailwatch_stream_overlap_seconds_total"
JUDGED = f'{SERIES}, outcome=~"good|miss"'
GOOD = f'{SERIES}, outcome="good"'
BETWEEN = f'{TARGET}, phase="itl"'
PAUSES = ', cause=~"gc.*"'
PAUSED = BETWEEN + PAUSES
BEFORE = f'{TARGET}, phase="ttft"'
UPSTREAM = f'{TARGET}, cause="upstream"'
PROCESS = "instance, process"
REPLICA = "instance, pod"
REPLICA_NAME = "{{instance}} {{pod}}"
STEP = "instance, process, step"


def fixed(legend: str, expr: str) -> Query:
    """A query that is the same for both kinds."""
    return Query(legend, lambda kind: expr)


def quantile(legend: str, q: float, metric: str, where: str = SERIES, by: str = "", over: str = RATE) -> Query:
    """One quantile of a histogram."""
    return Query(legend, lambda kind: kind.quantile(q, metric, where, by, over))


def percentiles(title: str, metric: str, about: str, width: int = 12) -> Panel:
    """p50, p90, p99 and p99.9 of a latency, with exemplars."""
    lines = [quantile(name, q, metric) for name, q in PERCENTILES]
    return Panel(title, about, lines, unit="s", width=width, exemplars=True)


def ends(metric: str, where: str, by: str = "", prefix: str = "") -> list[Query]:
    """Median and p99."""
    return [quantile(f"{prefix}{name}", q, metric, where, by) for name, q in (("p50", 0.5), ("p99", 0.99))]


def share_good(over: str) -> str:
    """good / (good + miss): excluded requests are in neither."""
    return f"{total(REQUESTS, GOOD, over=over)} / {total(REQUESTS, JUDGED, over=over)}"


def burn(over: str) -> str:
    """The share of misses as a multiple of what the objective allows."""
    return f"(1 - {share_good(over)}) / (1 - $objective)"


def stat(title: str, about: str, *queries: Query, unit: str = "s", **more: Any) -> Panel:
    return Panel(title, about, queries, unit=unit, kind="stat", width=more.pop("width", 3), **more)


# ---- the dashboard ----

ROWS = (
    Row(
        "Is it late?",
        [
            stat(
                "Good requests",
                "good / (good + miss) over the time shown. Excluded requests (4xx, early aborts) are in neither.",
                fixed("good", share_good(RANGE)),
                unit="percentunit",
                good_from=0.99,
                most=1,
            ),
            stat(
                "Requests per second",
                "Good requests, and all that completed, per second over the server's own rolling minute.",
                fixed("good", now("tailwatch_goodput_requests_per_second")),
                fixed("completed", now("tailwatch_throughput_requests_per_second")),
                unit="reqps",
                width=6,
            ),
            stat("TTFT p99", "Arrival to first generated token.", quantile("p99", 0.99, TTFT, over=RANGE)),
            stat("ITL p99", "Gap between two token-bearing messages.", quantile("p99", 0.99, ITL, over=RANGE)),
            stat(
                "ITL p99 without GC",
                "The same gaps less what pauses are estimated to have cost them: what freezing or moving the "
                "collections could give at most.",
                quantile("p99", 0.99, ITL_WITHOUT_GC, over=RANGE),
            ),
            stat(
                "Streaming time lost to pauses",
                "Share of the time between tokens that pauses added, an estimate.",
                Query(
                    "delay",
                    lambda kind: f"{total(DELAY, PAUSED, over=RANGE)} / {kind.seconds(ITL, TARGET, over=RANGE)}",
                ),
                unit="percentunit",
                bad_from=0.01,
            ),
            stat(
                "Open requests", "Requests open now.", fixed("open", now("tailwatch_requests_in_flight")), unit="short"
            ),
        ],
        height=4,
    ),
    Row(
        "Latency and its parts",
        [
            percentiles(
                "ITL", ITL, "Gap between two token-bearing messages of a stream, at the hand-over to the server."
            ),
            percentiles("TTFT", TTFT, "From a request's arrival in the kernel to its first generated token."),
            percentiles("TPOT", TPOT, "(Last token - first token) / (output tokens - 1), finished requests."),
            percentiles("E2E", E2E, "From a request's arrival to its last byte, finished requests."),
            Panel(
                "All gaps",
                "Each gap between tokens by its length: a second cloud far above the first is a stall, not load.",
                [Query("{{le}}", lambda kind: kind.heatmap(ITL, SERIES))],
                unit="s",
                width=24,
                kind="heatmap",
            ),
        ],
    ),
    Row(
        "Was it good enough?",
        [
            Panel(
                "Goodput beside throughput",
                "Requests within every bound of the SLO; those judged (good and missed); all that ended.",
                [
                    fixed("good", total(REQUESTS, GOOD)),
                    fixed("judged", total(REQUESTS, JUDGED)),
                    fixed("ended", total(REQUESTS, SERIES)),
                ],
                unit="reqps",
            ),
            Panel(
                "Attainment",
                "good / (good + miss), and the objective (a variable of this dashboard).",
                [fixed("attainment", share_good(RATE)), fixed("objective", "vector($objective)")],
                unit="percentunit",
                most=1,
            ),
            Panel(
                "Error budget burn",
                "Misses as a multiple of what the objective allows: at 1 the budget lasts its period, at 14.4 that of "
                "a month is gone in two days. The alerts page at 14.4 (1 h and 5 min) and 6 (6 h and 30 min).",
                [fixed("over 1 h", burn("1h")), fixed("over 5 min", burn("5m"))],
            ),
            Panel(
                "How requests ended",
                "Outcomes and their reasons. Excluded requests are not part of attainment.",
                [fixed("{{outcome}}: {{reason}}", total(REQUESTS, SERIES, "outcome, reason"))],
                unit="reqps",
                stacked=True,
            ),
            Panel(
                "Fluidity",
                "Share of token deadlines met, slack carried forward: shows a stall that p99 and TPOT hide.",
                [
                    fixed(
                        "met",
                        f"{total('tailwatch_fluidity_deadlines_met_total', TARGET)}"
                        f" / {total('tailwatch_fluidity_deadlines_total', TARGET)}",
                    )
                ],
                unit="percentunit",
                most=1,
            ),
            Panel(
                "Output tokens",
                "By model, all choices.",
                [fixed("{{model_name}}", total("tailwatch_output_tokens_total", SERIES, "model_name"))],
            ),
        ],
    ),
    Row(
        "Why was it late?",
        [
            Panel(
                "Delay by cause",
                "Stream seconds per second (all streams together) that each cause added, to gaps and to first tokens: "
                "pauses to all of them, other causes to slow ones. upstream: before the token reached a process that "
                "tailwatch watches.",
                [fixed("{{cause}}", total(DELAY, TARGET, "cause"))],
                unit="s",
                width=12,
                stacked=True,
            ),
            Panel(
                "Share of the delay without a cause",
                "unexplained: no cause was found. upstream: it lies before the token reached a process that tailwatch "
                "watches. Of the delay by all causes.",
                [
                    fixed("unexplained", f"{total(UNEXPLAINED, TARGET)} / {total(DELAY, TARGET)}"),
                    fixed("upstream", f"{total(DELAY, UPSTREAM)} / {total(DELAY, TARGET)}"),
                ],
                unit="percentunit",
                most=1,
                width=6,
            ),
            Panel(
                "Unexplained, by what is missing",
                "Stream seconds per second of slow gaps and first tokens that no cause explains, by the source of "
                "knowledge that the process lacks. unknown: it lacks none.",
                [fixed("{{reason}}", total(UNEXPLAINED, TARGET, "reason"))],
                unit="s",
                stacked=True,
                width=6,
            ),
            Panel(
                "Stalls of event loops",
                "Share of the time in which a loop ran for over 2 ms without waiting for events, by cause: meanwhile "
                "nobody is answered. Collections are not part of it.",
                [Query("{{process}} {{cause}}", lambda kind: kind.seconds(STALLS, TARGET, "process, cause"))],
                unit="percentunit",
                stacked=True,
                width=24,
            ),
        ],
    ),
    Row(
        "Which replica, and which cause there?",
        [
            Panel(
                "Missed by replica",
                "1 - good / (good + miss) of each scraped server. In Kubernetes, PodMonitor adds the label pod.",
                [
                    fixed(
                        REPLICA_NAME,
                        f"1 - {total(REQUESTS, GOOD, REPLICA)} / {total(REQUESTS, JUDGED, REPLICA)}",
                    )
                ],
                unit="percentunit",
                most=1,
            ),
            Panel(
                "Delay by replica and cause",
                "The eight largest: stream seconds per second that a cause added to the streams of a replica.",
                [fixed(f"{REPLICA_NAME} {{{{cause}}}}", f"topk(8, {total(DELAY, TARGET, f'{REPLICA}, cause')})")],
                unit="s",
            ),
            Panel(
                "ITL p99 by replica",
                "One replica far above the others: the cause is there, not in the model or the load.",
                [quantile(REPLICA_NAME, 0.99, ITL, by=REPLICA)],
                unit="s",
            ),
        ],
    ),
    Row(
        "Did a pause do it, and whose?",
        [
            Panel(
                "ITL with and without GC",
                "The gaps with and without the estimated delay by pauses: the difference is the cost of pauses.",
                [
                    quantile("p99", 0.99, ITL),
                    quantile("p99 without GC", 0.99, ITL_WITHOUT_GC),
                    quantile("p99.9", 0.999, ITL),
                    quantile("p99.9 without GC", 0.999, ITL_WITHOUT_GC),
                ],
                unit="s",
                width=12,
                exemplars=True,
            ),
            Panel(
                "Delay between tokens",
                "Stream seconds per second (all streams together) that pauses cost beyond each stream's typical gap, "
                "by who paused and why. An estimate.",
                [fixed("{{source}} {{cause}}", total(DELAY, PAUSED, "source, cause"))],
                unit="s",
                width=12,
                stacked=True,
            ),
            Panel(
                "Overlap between tokens",
                "Stream seconds per second in which a gap coincided with a pause of at least 50 us: an upper bound of "
                "its blame, since a pause hidden in the wait for the model delays nobody.",
                [fixed("{{source}} {{cause}}", total(OVERLAP, BETWEEN, "source, cause"))],
                unit="s",
                stacked=True,
            ),
            Panel(
                "Before the first token",
                "The same for waits for a first token: delay is certain before the app was entered and an estimate "
                "after that, overlap an upper bound.",
                [
                    fixed("delay: {{source}} {{cause}}", total(DELAY, BEFORE + PAUSES, "source, cause")),
                    fixed("overlap: {{source}} {{cause}}", total(OVERLAP, BEFORE, "source, cause")),
                ],
                unit="s",
            ),
            Panel(
                "Process time in collections",
                "Share of each process's time in pauses, by generation.",
                [
                    Query(
                        "{{instance}} {{process}} gc{{generation}}",
                        lambda kind: kind.seconds(GC, TARGET, f"{PROCESS}, generation"),
                    )
                ],
                unit="percentunit",
                stacked=True,
            ),
            Panel(
                "Length of collections, p99",
                "By process and generation.",
                [quantile("{{process}} gc{{generation}}", 0.99, GC, TARGET, "process, generation")],
                unit="s",
            ),
            Panel(
                "Collections",
                "Per second, by process and generation.",
                [
                    Query(
                        "{{instance}} {{process}} gc{{generation}}",
                        lambda kind: kind.count(GC, TARGET, f"{PROCESS}, generation"),
                    )
                ],
                unit="ops",
            ),
            Panel(
                "Pauses that are charged to no gap, and their parts",
                "Process seconds per second: collections under 50 us, gc.callbacks of other code (in pauses), "
                "CPU time of collections (a pause longer than its CPU time waited for a core), tailwatch's own "
                "freezes, slices and full collections.",
                [
                    fixed("short", total("tailwatch_gc_short_pauses_seconds_total", TARGET)),
                    fixed("gc.callbacks of other code", total("tailwatch_gc_callbacks_seconds_total", TARGET)),
                    fixed("CPU", total("tailwatch_gc_cpu_seconds_total", TARGET)),
                    Query("tailwatch", lambda kind: kind.seconds("tailwatch_gc_own_pause_seconds", TARGET)),
                ],
                unit="percentunit",
            ),
            Panel(
                "What collections found",
                'Objects per second. Where long collections free nothing, gc="freeze" helps.',
                [
                    fixed("{{process}} freed", total("tailwatch_gc_collected_objects_total", TARGET, "process")),
                    fixed(
                        "{{process}} uncollectable",
                        total("tailwatch_gc_uncollectable_objects_total", TARGET, "process"),
                    ),
                ],
            ),
        ],
    ),
    Row(
        "Did it wait before the app saw it?",
        [
            Panel(
                "Requests in flight",
                "Open now.",
                [fixed("{{instance}}", now("tailwatch_requests_in_flight", by="instance"))],
            ),
            Panel(
                "Arrivals",
                "Requests per second by where their arrival time came from: tcp_info is the kernel's, asgi only when "
                "the app was entered.",
                [fixed("{{source}}", total("tailwatch_arrivals_total", TARGET, "source"))],
                unit="reqps",
                stacked=True,
            ),
            Panel(
                "Queue before the app",
                "proxy: behind a proxy that says when it got the request; accept: in the kernel, with the loop busy.",
                ends("tailwatch_queue_seconds", TARGET, "stage", "{{stage}} "),
                unit="s",
            ),
            Panel(
                "Gave up waiting",
                "Wait of requests that were aborted before their first token.",
                ends("tailwatch_abandoned_wait_seconds", TARGET),
                unit="s",
            ),
            Panel(
                "Requests that gave up",
                "Per second, before their first token.",
                [Query("abandoned", lambda kind: kind.count("tailwatch_abandoned_wait_seconds", TARGET))],
                unit="reqps",
            ),
        ],
    ),
    Row(
        "Was it the client?",
        [
            Panel(
                "Blocked sends",
                "Time that sends were blocked by clients that do not read.",
                ends("tailwatch_send_wait_seconds", TARGET),
                unit="s",
                width=12,
            ),
            Panel(
                "Time in blocked sends",
                "Stream seconds per second.",
                [Query("blocked", lambda kind: kind.seconds("tailwatch_send_wait_seconds", TARGET))],
                unit="s",
                width=12,
            ),
        ],
    ),
    Row(
        "What does the collector's policy do?",
        [
            Panel(
                "Policies",
                "Option gc of each process, how gc=idle collects, and the reason for a fallback.",
                [
                    fixed(
                        "{{process}} {{policy}} {{mode}} {{fallback}}",
                        now("tailwatch_gc_policy_info", by="process, policy, mode, fallback"),
                    )
                ],
            ),
            Panel(
                "Slices",
                "Slices of the idle-time collector per second, by the idle slot they used.",
                [fixed("{{process}} {{reason}}", total("tailwatch_gc_idle_slices_total", TARGET, "process, reason"))],
                unit="ops",
            ),
            Panel(
                "Other collections",
                "Collections outside slices per second, of any generation: by tailwatch, automatic, and requested by "
                "other code.",
                [fixed("{{process}} {{reason}}", total("tailwatch_gc_collections_total", TARGET, "process, reason"))],
                unit="ops",
            ),
            Panel(
                "What it takes, and was predicted to",
                "Process seconds per second in slices and in full collections started by tailwatch.",
                [
                    fixed("{{process}} slices", total("tailwatch_gc_idle_slice_seconds_total", TARGET, PROCESS)),
                    fixed("{{process}} predicted", total("tailwatch_gc_idle_predicted_seconds_total", TARGET, PROCESS)),
                    fixed(
                        "{{process}} full collections", total("tailwatch_gc_idle_full_seconds_total", TARGET, PROCESS)
                    ),
                ],
                unit="percentunit",
            ),
            Panel(
                "Objects it goes through",
                "Per second: old objects found unreachable by slices, objects freed by slices and by full collections, "
                "and cycles over the whole old heap.",
                [
                    fixed("{{process}} moved", total("tailwatch_gc_idle_moved_objects_total", TARGET, PROCESS)),
                    fixed("{{process}} freed", total("tailwatch_gc_idle_freed_objects_total", TARGET, PROCESS)),
                    fixed(
                        "{{process}} by full collections",
                        total("tailwatch_gc_idle_full_freed_objects_total", TARGET, PROCESS),
                    ),
                    fixed("{{process}} cycles", total("tailwatch_gc_idle_cycles_total", TARGET, PROCESS)),
                ],
            ),
            Panel(
                "Heap",
                "Objects: not frozen (an estimate), and known to be frozen.",
                [
                    fixed("{{process}} unfrozen", now("tailwatch_gc_unfrozen_objects", by="process")),
                    fixed("{{process}} frozen", now("tailwatch_gc_frozen_objects", by="process")),
                ],
            ),
            Panel(
                "Backlog",
                "Object visits that the idle-time collector has still to make (about 10 per object).",
                [fixed("{{process}}", now("tailwatch_gc_idle_backlog_visits", by="process"))],
            ),
            Panel(
                "Interference and memory limits",
                "gc.* calls by other code, and memory limits exceeded, in the time shown.",
                [
                    fixed(
                        "{{process}} {{call}}",
                        f"sum by (process, call) (increase(tailwatch_gc_interference_total{{{TARGET}}}[{RANGE}]))",
                    ),
                    fixed(
                        "{{process}} {{limit}}",
                        f"sum by (process, limit) (increase(tailwatch_gc_memory_limit_total{{{TARGET}}}[{RANGE}]))",
                    ),
                ],
            ),
        ],
    ),
    Row(
        "Was it the engine?",
        [
            Panel(
                "Steps",
                "Length of an engine's iterations, on the host.",
                ends("tailwatch_step_seconds", TARGET, "process, step", "{{process}} {{step}} "),
                unit="s",
            ),
            Panel(
                "Host gaps",
                "From the end of a step to the start of the next while work was waiting: the device had no work.",
                ends("tailwatch_step_host_gap_seconds", TARGET, "process, step", "{{process}} {{step}} "),
                unit="s",
            ),
            Panel(
                "Where the engine's time went",
                "Share of its time in steps, in host gaps, and between steps where it is unknown whether work waited. "
                "The rest was idle.",
                [
                    Query("{{process}} steps", lambda kind: kind.seconds("tailwatch_step_seconds", TARGET, PROCESS)),
                    Query(
                        "{{process}} host gaps",
                        lambda kind: kind.seconds("tailwatch_step_host_gap_seconds", TARGET, PROCESS),
                    ),
                    fixed("{{process}} unknown", total("tailwatch_step_unknown_gap_seconds_total", TARGET, PROCESS)),
                ],
                unit="percentunit",
            ),
            Panel(
                "Batch",
                "Requests in a step, on average.",
                [
                    Query(
                        "{{process}} {{step}}",
                        lambda kind: (
                            f"{total('tailwatch_step_requests_total', TARGET, STEP)}"
                            f" / {kind.count('tailwatch_step_seconds', TARGET, STEP)}"
                        ),
                    )
                ],
            ),
            Panel(
                "Pauses inside steps and host gaps",
                "Engine seconds per second that coincided with its own pauses: an upper bound of their effect.",
                [
                    fixed(
                        "{{process}} {{phase}} {{cause}}",
                        total("tailwatch_step_overlap_seconds_total", TARGET, "process, phase, cause"),
                    )
                ],
                unit="percentunit",
            ),
            Panel(
                "The same, times the requests that waited",
                "Request seconds per second: each second of such a pause times the requests in the batch, or left "
                "waiting.",
                [
                    fixed(
                        "{{process}} {{phase}} {{cause}}",
                        total("tailwatch_step_request_overlap_seconds_total", TARGET, "process, phase, cause"),
                    )
                ],
                unit="s",
            ),
        ],
    ),
    Row(
        "What did the engine's steps compute?",
        [
            Panel(
                "Steps with and without prompts",
                "From the end of one step to the end of the next: decode makes tokens alone; prefill has prompts, or "
                "parts of them, in it too. Where prefill lies far above decode, other requests' prompts make tokens "
                "late.",
                ends("tailwatch_engine_step_seconds", TARGET, "process, work", "{{process}} {{work}} "),
                unit="s",
            ),
            Panel(
                "Parts of the steps",
                "Share of the engine's time: wait is for the device; all else is the host, in which the device may "
                "have had no work. paused: collections of the engine's process.",
                [
                    fixed(
                        "{{process}} {{part}}",
                        total("tailwatch_engine_step_part_seconds_total", TARGET, "process, part"),
                    )
                ],
                unit="percentunit",
                stacked=True,
            ),
            Panel(
                "Tokens computed",
                "Of prompts, of decoding requests, and again of preempted requests, per second.",
                [fixed("{{process}} {{kind}}", total("tailwatch_engine_tokens_total", TARGET, "process, kind"))],
            ),
            Panel(
                "Requests in the engine",
                "As its latest step ended, and those that lost their place in the KV cache, per second.",
                [
                    fixed("{{process}} {{state}}", now("tailwatch_engine_requests", by="process, state")),
                    fixed("{{process}} preempted", total("tailwatch_engine_preemptions_total", TARGET, "process")),
                ],
            ),
            Panel(
                "KV cache",
                "Share in use. At 1 requests are preempted.",
                [fixed("{{process}}", now("tailwatch_engine_kv_cache_usage_ratio", by="process"))],
                unit="percentunit",
                most=1,
            ),
            Panel(
                "What a step costs",
                "On-line model, an estimate: a step of decoding alone, what one more decoding request adds, and what a "
                "token of a prompt adds to its step.",
                [fixed("{{process}} {{term}}", now("tailwatch_engine_step_cost_seconds", by="process, term"))],
                unit="s",
            ),
        ],
    ),
    Row(
        "What can it bear?",
        [
            Panel(
                "Streams",
                "Requests in flight, before and after their first token, and healthy concurrency: concurrent streams "
                "above which median TTFT starts to grow faster. Absent until that number is found.",
                [
                    fixed("{{instance}} running", now("tailwatch_streams_running", by="instance")),
                    fixed("{{instance}} waiting", now("tailwatch_streams_waiting", by="instance")),
                    fixed("{{instance}} healthy", now("tailwatch_healthy_concurrency", by="instance")),
                ],
            ),
            Panel(
                "Load",
                "Requests in flight / healthy concurrency: above 1 TTFT grows with each more. Absolute, unlike what "
                "balancers compare; confidence says how sure the healthy concurrency is.",
                [
                    fixed("{{instance}}", now("tailwatch_load_ratio", by="instance")),
                    fixed(
                        "{{instance}} confidence",
                        now("tailwatch_healthy_concurrency_confidence_ratio", by="instance"),
                    ),
                ],
                unit="percentunit",
            ),
            Panel(
                "Headroom",
                "Streams that can be added before healthy concurrency is reached.",
                [fixed("{{instance}}", now("tailwatch_load_headroom_streams", by="instance"))],
            ),
            Panel(
                "TTFT by concurrency",
                "Median TTFT by about how many streams were in flight when a request arrived, of the last half hour: "
                "where the lines spread, the healthy concurrency has been passed.",
                [
                    fixed(
                        "{{streams}} in flight",
                        f"avg by (streams) (tailwatch_ttft_by_concurrency_seconds{{{TARGET}}})",
                    )
                ],
                unit="s",
            ),
            Panel(
                "TTFT to expect",
                "Median TTFT of a request that arrives now: an estimate.",
                [fixed("{{instance}}", now("tailwatch_predicted_ttft_seconds", by="instance"))],
                unit="s",
            ),
            Panel(
                "Servers that would meet the SLO now",
                "Those at which the TTFT to expect is within the bound, and all that know; and how the search for the "
                "healthy concurrency ended at how many.",
                [
                    fixed("would meet it", now("tailwatch_admission_within_slo")),
                    fixed("that know", f"count(tailwatch_admission_within_slo{{{TARGET}}})"),
                    fixed("{{verdict}}", now("tailwatch_healthy_concurrency_verdict", by="verdict")),
                ],
            ),
        ],
    ),
    Row(
        "Can these numbers be trusted?",
        [
            Panel(
                "Scrapes",
                "1: answered. The targets are those whose build has been seen in the last day.",
                [
                    fixed(
                        "{{instance}}",
                        f"up{{{TARGET}}} and on (job, instance) last_over_time(tailwatch_build_info{{{TARGET}}}[1d])",
                    )
                ],
                most=1,
            ),
            Panel(
                "Length of a scrape",
                "As measured by Prometheus, and the part spent rendering the app's own registry.",
                [
                    fixed(
                        "{{instance}}",
                        f"scrape_duration_seconds{{{TARGET}}}"
                        f" and on (job, instance) last_over_time(tailwatch_build_info{{{TARGET}}}[1d])",
                    ),
                    fixed("{{instance}} its own registry", f"tailwatch_registry_render_seconds{{{TARGET}}}"),
                ],
                unit="s",
            ),
            Panel(
                "Not kept, not measured, gone wrong",
                "Per second: what could not be kept or measured, by reason; errors inside tailwatch, by place; "
                'requests whose labels became "other"; fast frames that went back to the server\'s own writer.',
                [
                    fixed("dropped: {{reason}}", total("tailwatch_dropped_events_total", TARGET, "reason")),
                    fixed("error: {{where}}", total("tailwatch_internal_errors_total", TARGET, "where")),
                    fixed("labels overflowed", total("tailwatch_label_overflow_total", TARGET)),
                    fixed(
                        "fast SSE: {{shape}} {{reason}}", total("tailwatch_sse_fallback_total", TARGET, "shape, reason")
                    ),
                ],
            ),
            Panel(
                "Memory",
                "Memory used by tailwatch, all processes of a server.",
                [fixed("{{instance}}", now("tailwatch_memory_bytes", by="instance"))],
                unit="bytes",
            ),
            Panel(
                "Samples of a scrape",
                "Each is stored: native histograms make them few.",
                [
                    fixed(
                        "{{instance}}",
                        f"scrape_samples_scraped{{{TARGET}}}"
                        f" and on (job, instance) last_over_time(tailwatch_build_info{{{TARGET}}}[1d])",
                    )
                ],
            ),
            Panel(
                "Versions",
                "Servers by version of tailwatch and of the interpreter.",
                [
                    fixed(
                        "tailwatch {{version}}, Python {{python}}",
                        f"count by (version, python) (tailwatch_build_info{{{TARGET}}})",
                    )
                ],
                kind="stat",
            ),
        ],
    ),
)


# ---- as Grafana reads it ----


def thresholds(panel: Panel) -> dict[str, Any]:
    if panel.good_from is not None:
        steps: list[dict[str, Any]] = [{"color": "red", "value": None}, {"color": "green", "value": panel.good_from}]
    elif panel.bad_from is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.bad_from}]
    else:
        steps = [{"color": "text" if panel.kind == "stat" else "green", "value": None}]
    return {"mode": "absolute", "steps": steps}


def line_style(panel: Panel) -> dict[str, Any]:
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 40 if panel.stacked else 0,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }


def field_config(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "thresholds": thresholds(panel)}
    if panel.kind == "heatmap":
        del defaults["min"]
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.kind == "timeseries":
        defaults["custom"] = line_style(panel)
    return {"defaults": defaults, "overrides": []}


def options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {
            "reduceOptions": {"values": False, "calcs": ["lastNotNull"], "fields": ""},
            "orientation": "auto",
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "textMode": "auto" if len(panel.queries) == 1 else "value_and_name",
        }
    if panel.kind == "heatmap":
        return heatmap_options()
    calcs = ["lastNotNull", "max"]
    legend = {
        "displayMode": "table",
        "placement": "bottom",
        "showLegend": True,
        "calcs": calcs,
        "sortBy": "Max",
        "sortDesc": True,
    }
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def heatmap_options() -> dict[str, Any]:
    """Of buckets that come made: the series of classic ones are named by their upper bound."""
    return {
        "calculate": False,
        "cellGap": 0,
        "color": {
            "mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange",
            "scale": "exponential", "reverse": False,
        },
        "cellValues": {"unit": "ops"},
        "yAxis": {"unit": "s", "axisPlacement": "left"},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": False},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
    }  # fmt: skip


def target(query: Query, panel: Panel, kind: Kind, ref: str) -> dict[str, Any]:
    instant = panel.kind == "stat"
    return {
        "refId": ref,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr(kind),
        "legendFormat": query.legend,
        "format": "heatmap" if panel.kind == "heatmap" else "time_series",
        "instant": instant,
        "range": not instant,
        "exemplar": panel.exemplars and ITL_WITHOUT_GC not in query.expr(kind),  # which belongs to no request
    }


def panel_json(panel: Panel, kind: Kind, number: int, place: dict[str, int]) -> dict[str, Any]:
    refs = (chr(ord("A") + i) for i in itertools.count())
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": place,
        "targets": [target(query, panel, kind, ref) for query, ref in zip(panel.queries, refs)],  # noqa: B905
        "fieldConfig": field_config(panel),
        "options": options(panel),
    }


def row_json(row: Row, number: int, y: int) -> dict[str, Any]:
    place = {"x": 0, "y": y, "w": 24, "h": 1}
    return {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}


def panels_json(kind: Kind) -> Iterator[dict[str, Any]]:
    """All rows and panels, from the left to the right and down."""
    numbers, y = itertools.count(1), 0
    for row in ROWS:
        yield row_json(row, next(numbers), y)
        x, y = 0, y + 1
        for panel in row.panels:
            if x + panel.width > 24:
                x, y = 0, y + row.height
            yield panel_json(panel, kind, next(numbers), {"x": x, "y": y, "w": panel.width, "h": row.height})
            x += panel.width
        y += row.height


def labels_of(name: str, label: str, metric: str) -> dict[str, Any]:
    """A variable: the values of a label, several or all of them."""
    query = f"label_values({metric}, {name})"
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"variable_{name}"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def variables() -> list[dict[str, Any]]:
    tokens = "tailwatch_output_tokens_total"
    return [
        {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "refresh": 1},
        labels_of("job", "Job", "tailwatch_build_info"),
        labels_of("instance", "Instance", 'tailwatch_build_info{job=~"$job"}'),
        labels_of("model_name", "Model", f"{tokens}{{{TARGET}}}"),
        labels_of("route", "Route", f'{tokens}{{{TARGET}, model_name=~"$model_name"}}'),
        {
            "type": "textbox",
            "name": "objective",
            "label": "Objective",
            "description": "The share of good requests that the SLO asks for, between 0 and 1.",
            "query": "0.99",
            "current": {"selected": True, "text": "0.99", "value": "0.99"},
        },
    ]


def dashboard(kind: Kind) -> dict[str, Any]:
    """The whole of it."""
    return {
        "uid": f"tailwatch-{kind.name}",
        "title": f"tailwatch: why was that token late? ({kind.name})",
        "description": f"From top to bottom: is it late, how, and whose doing is it. For {kind.described}.",
        "tags": ["tailwatch", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables()},
        "annotations": {"list": []},
        "links": [],
        "panels": list(panels_json(kind)),
    }


def files() -> dict[Path, str]:
    """What the files are to hold."""
    return {
        HERE / "dashboards" / f"tailwatch-{kind.name}.json": json.dumps(dashboard(kind), indent=1, ensure_ascii=False)
        + "\n"
        for kind in (Classic, Native)
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    check = parser.parse_args().check
    differing = [path for path, text in files().items() if not path.exists() or path.read_text() != text]
    for path in differing:
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(files()[path])
        print(f"{path.relative_to(HERE)}: {'differs' if check else 'written'}")
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
