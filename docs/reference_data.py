"""What the code's own tables lack of the reference: an example, a section, labels, what to do. docs/reference.py joins
both; an option, metric, variable or file without an entry here, and an entry without its thing, is an error there.
"""

# ruff: noqa: E501

from __future__ import annotations

# Of each option: the text of an example, as its environment variable takes it, and where more stands.
OPTIONS: dict[str, tuple[str, str]] = {
    "slo": ("ttft<=500ms,tpot<=40ms,itl<=200ms@99%", "[below](#slo)"),
    "gc": ("idle", "[garbage collection](gc.md)"),
    "gc_memory_limit": ("rss=+256MB,objects=2000000", "[garbage collection](gc.md)"),
    "gc_warn_ms": ("20", ""),
    "gc_log_all": ("1", ""),
    "quiet": ("1", ""),
    "slow_gap_ms": ("100", "[slow gap](glossary.md#requests-and-tokens)"),
    "metrics_path": ("/internal/metrics", "[metrics](metrics.md)"),
    "metrics_append": ("1000", "[metrics](metrics.md#behind-an-apps-own-metrics)"),
    "metrics_port": ("9400", "[metrics](metrics.md)"),
    "histograms": ("native", "[Grafana](../examples/grafana/README.md)"),
    "exemplars": ("0", ""),
    "role": ("engine", "[roles](servers.md#roles)"),
    "engine": ("1", "[servers and groups](servers.md)"),
    "dir": ("/dev/shm/llm", "[its lifetime](#directories-in-devshm)"),
    "routes": ("/generate,/v2/{name}/stream", ""),
    "max_label_sets": ("64", ""),
    "page": ("1", "[the live page](page.md)"),
    "page_token": ("long-and-random", "[the live page](page.md)"),
    "otel": ("1", "[OpenTelemetry](otel.md)"),
    "orca": ("request", "[load signal](load_signal.md)"),
    "server_timing": ("1", ""),
    "sse_timing": ("1", ""),
    "trace_events": ("1000000", "[traces](traces.md)"),
    "trace_on": ("gap>100ms,slo", "[traces](traces.md)"),
    "trace_keep": ("20,1GB", "[traces](traces.md)"),
    "stalls": ("clock", "[why](why.md)"),
    "nvtx": ("off", "[Nsight](nsight.md)"),
    "nvtx_tokens": ("1", "[Nsight](nsight.md)"),
    "fast_sse": ("1", "[fast SSE](fast_sse.md)"),
    "trust_request_start": ("1", ""),
}
# Defaults that no value shows.
DEFAULTS = {
    "role": '`"api"` with an app, else `"worker"`',
    "dir": "one for each server",
    "metrics_append": "`0`; `200` under `tailwatch run`",
    "trace_keep": '`"5,100MB"`',
    "otel": "as `OTEL_*` ask",
}

# Of each metric, by section of docs/metrics.md: its labels, and what to do with it.
_SERIES = "model_name route"
_DELAY = "A large share names the cause to lessen: `tailwatch doctor`, [causes](causes/README.md)"
_IDLE = "Only with idle-time collection"
METRICS: dict[str, dict[str, tuple[str, str]]] = {
    "requests": {
        "tailwatch_time_to_first_token_seconds": (_SERIES, "p99 above the SLO: `tailwatch why` names the causes"),
        "tailwatch_inter_token_latency_seconds": (_SERIES, "p99.9 far above p50: `tailwatch why`"),
        "tailwatch_inter_token_latency_without_gc_seconds": (
            _SERIES,
            "A p99 well below that of the measured gaps: [collect otherwise](gc.md)",
        ),
        "tailwatch_time_per_output_token_seconds": (_SERIES, "The model's pace; batch size and hardware set it"),
        "tailwatch_e2e_request_latency_seconds": (_SERIES, "Follows the output's length: compare within a model"),
        "tailwatch_queue_seconds": (
            "stage",
            "`proxy` (needs `trust_request_start`) or `accept` grows: too few workers, or a blocked event loop",
        ),
        "tailwatch_abandoned_wait_seconds": ("", "Clients gave up after this: compare with their timeout"),
        "tailwatch_send_wait_seconds": ("", "The client or the network is slow, not the server"),
        "tailwatch_requests": (
            f"{_SERIES} outcome reason",
            "`miss` rises: its `reason` is `late`, `error`, `429`, `5xx`, `timeout` or `abort_late`; `excluded` are "
            "`4xx`, `3xx`, `abort_early` ([outcomes](glossary.md#outcomes))",
        ),
        "tailwatch_requests_good": ("slo", "Its rate is goodput; compare it with the rate of all"),
        "tailwatch_goodput_requests_per_second": ("", "Over the last 60 s. Below the throughput: requests are answered too late to count"),
        "tailwatch_throughput_requests_per_second": ("", "Over the last 60 s: finished requests, good or not"),
        "tailwatch_slo_attainment_ratio": ("", "Over the last 60 s. Below the SLO's share: alert ([Grafana](../examples/grafana/README.md))"),
        "tailwatch_requests_in_flight": ("", "Compare with healthy concurrency"),
        "tailwatch_output_tokens": (_SERIES, "Its rate is the tokens per second"),
        "tailwatch_fluidity_deadlines": ("", "Divide by it"),
        "tailwatch_fluidity_deadlines_met": ("", "Met / due falls: readers see the stream stop"),
    },
    "pauses": {
        "python_gc_duration_seconds": ("process generation", "Generation 2 above a gap's length: [freeze or idle](gc.md)"),
        "tailwatch_gc_own_pause_seconds": ("process", "Long while streams wait: the doctor's `policy-pauses`"),
        "tailwatch_stall_seconds": ("process cause", "`tailwatch why` names the functions; what to do: [causes](causes/README.md)"),
        "tailwatch_stream_overlap_seconds": ("cause source phase", "An upper bound: act on the delay instead"),
        "tailwatch_stream_delay_seconds": (
            "cause source phase certainty",
            f"{_DELAY}. A series appears once it is above 0; those of pauses stand there from the start",
        ),
        "tailwatch_unexplained_seconds": (
            "phase reason",
            "`no_loop_clock`, `no_schedstat`, `no_syscall`, `no_stacks`, `unjoined`: what is missing; "
            "`unknown`: nothing is ([why](why.md))",
        ),
        "tailwatch_gc_short_pauses_seconds": ("process generation", "What no stream is charged with, at most"),
        "tailwatch_gc_callbacks_seconds": ("process generation", "Large: the doctor's `gc-callbacks`"),
        "tailwatch_gc_cpu_seconds": ("process generation", "Far below the pauses' length: the CPU was taken away meanwhile"),
        "tailwatch_gc_collected_objects": ("process generation", "Few for many collections: they are in vain"),
        "tailwatch_gc_uncollectable_objects": ("process generation", "Above 0: a leak, see `gc.garbage`"),
    },
    "gc": {
        "tailwatch_gc_policy": ("process policy mode reason", "Read it after a deployment: is it the one that was meant?"),
        "tailwatch_gc_collections": (
            "process reason",
            "`automatic` (thresholds), `external` (`gc.collect()` of other code), `unknown`, or tailwatch's own (idle, "
            "step, …). `external` grows: the doctor's `gc-explicit`",
        ),
        "tailwatch_gc_interference": ("process call", "Above 0: find the caller; the doctor's `gc-interference`"),
        "tailwatch_gc_unfrozen_objects": ("process", "Grows without end: a leak, or `tailwatch gc freeze`"),
        "tailwatch_gc_idle_slices": ("process reason", f"{_IDLE}. None: the doctor's `gc-idle-slots`"),
        "tailwatch_gc_idle_slice_seconds": ("process", "Compare with the predicted time"),
        "tailwatch_gc_idle_predicted_seconds": ("process", "Far below the true one: slices overrun their idle slot"),
        "tailwatch_gc_idle_full_seconds": ("process", "Grows: idle time does not suffice, see `gc_memory_limit`"),
        "tailwatch_gc_idle_full_freed_objects": ("process", f"{_IDLE}. What those freed"),
        "tailwatch_gc_idle_moved_objects": ("process", f"{_IDLE}. Freed at once, or soon after by generation 0"),
        "tailwatch_gc_idle_freed_objects": ("process", f"{_IDLE}. What they freed"),
        "tailwatch_gc_idle_cycles": ("process", "Stands still while the backlog grows: too little idle time"),
        "tailwatch_gc_idle_backlog_visits": ("process", "Grows without end: as above"),
        "tailwatch_gc_frozen_objects": ("process", "Garbage among them is never freed: `tailwatch gc freeze` looks again"),
        "tailwatch_gc_memory_limit": ("process limit", "Often: raise `gc_memory_limit`; `gc-memory-limit`"),
    },
    "steps": {
        "tailwatch_step_seconds": ("process step", "The floor of the gaps between tokens"),
        "tailwatch_step_host_gap_seconds": ("process step", "A tenth of a step or more: the host is the limit"),
        "tailwatch_step_unknown_gap_seconds": ("process step", "Pass `waiting=` to `tailwatch.step()`"),
        "tailwatch_step_requests": ("process step", "Divided by the steps: the mean batch"),
        "tailwatch_step_overlap_seconds": ("process step cause phase", "What pauses took of the engine, at most"),
        "tailwatch_step_request_overlap_seconds": ("process step cause phase", "The same, as streams felt it"),
    },
    "engine": {
        "tailwatch_engine_step_seconds": (
            "process work",
            "`decode` alone, or `prefill` too: prompts are what lengthens steps where the two differ",
        ),
        "tailwatch_engine_step_part_seconds": (
            "process part",
            "`input`, `schedule`, `dispatch`, `grammar`, `wait` (for the device), `update`, `paused` (collections): "
            "all but `wait` is the host's",
        ),
        "tailwatch_engine_tokens": (
            "process kind",
            "`prefill`, `decode`, `recompute` (of preempted requests: work done twice)",
        ),
        "tailwatch_engine_scheduled_requests": ("process", "Divided by the steps: the mean batch"),
        "tailwatch_engine_preemptions": ("process", "Grows: the KV cache is too small for so many requests"),
        "tailwatch_engine_draft_tokens": ("process result", "`proposed`, `accepted`: few accepted, and drafts cost more than they save"),
        "tailwatch_engine_graph_steps": ("process graph", "Steps without a CUDA graph: a batch that no graph was captured for; unknown: vLLM's `--cudagraph-metrics`"),
        "tailwatch_engine_requests": ("process state", "`waiting` stays above 0: the queue of first tokens"),
        "tailwatch_engine_kv_cache_usage_ratio": ("process", "Near 1: preemption is next"),
        "tailwatch_engine_step_cost_seconds": (
            "process term",
            "`decode_step`, `decode_request`, `prefill_token`: [what a prompt token costs](#what-a-prompt-token-costs)",
        ),
    },
    "load": {
        "tailwatch_streams_running": ("", "The load, in streams"),
        "tailwatch_streams_waiting": ("", "Above 0 for long: the server queues"),
        "tailwatch_healthy_concurrency": ("", "Scale out before requests in flight reach it"),
        "tailwatch_healthy_concurrency_confidence_ratio": ("", "Low: do not route by it yet"),
        "tailwatch_healthy_concurrency_verdict": ("verdict", "Why there is no such number yet"),
        "tailwatch_load_ratio": ("", "Above 1: send requests elsewhere"),
        "tailwatch_load_utilization_ratio": ("", "For balancers that take a utilization"),
        "tailwatch_load_headroom_streams": ("", "Route to the replica with most"),
        "tailwatch_predicted_ttft_seconds": ("", "Above the bound: a request admitted now will miss it"),
        "tailwatch_admission_within_slo": ("", "0: refuse or reroute"),
        "tailwatch_ttft_by_concurrency_seconds": ("streams", "The curve that the numbers above come from"),
    },
    "self": {
        "tailwatch_arrivals": (
            "source",
            "`tcp_info` and `header` see the wait before the app, `asgi` does not; `explicit`: `arrival=`",
        ),
        "tailwatch_dropped_events": ("reason", "See the reasons below"),
        "tailwatch_label_overflow": ("", "Above 0: raise `max_label_sets`, or look who sends such model names"),
        "tailwatch_internal_errors": (
            "where",
            "Above 0 is a bug of tailwatch (`asgi`, `gc_hook`, `policy`, `daemon`, `render`, `registry`): report it",
        ),
        "tailwatch_sse_fallback": ("shape reason", "Many: `fast_sse` does not help that shape; `fast-sse-fallback`"),
        "tailwatch_memory_bytes": ("", "[What it costs](costs.md)"),
        "tailwatch_registry_render_seconds": ("", "Long: the app's own registry is large; it is rendered off the loop"),
        "tailwatch_build": ("version python", "Which replicas run which version"),
    },
}  # fmt: skip

# The sections of docs/command_line.md whose flags two commands share, by the beginning of the group's title.
LOAD = ("load: when requests are sent", "requests:")

# Environment variables that are no options.
VARIABLES = {
    "TAILWATCH": "`1`: automatic installation is on in every interpreter that starts; `tailwatch run` sets it",
    "OTEL_SDK_DISABLED": "`true`: no OTLP export, whatever else is set",
    "OTEL_METRICS_EXPORTER": "lists `otlp`: OTLP export is on unless `otel` decides; another list: it is off",
    "OTEL_TRACES_EXPORTER": "the same for spans",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "the receiver; set, it switches OTLP export on unless `otel` decides",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "the same for metrics alone",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "the same for spans alone",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "`grpc` or `http/protobuf`",
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "the same for metrics alone",
    "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "`explicit_bucket_histogram`: no exponential ones",
    "OTEL_METRIC_EXPORT_INTERVAL": "milliseconds between two exports",
    "OTEL_METRIC_EXPORT_TIMEOUT": "milliseconds for one export",
    "OTEL_RESOURCE_ATTRIBUTES": "attributes of the exported resource; `service.instance.id` among them is kept",
    "PROMETHEUS_MULTIPROC_DIR": "the app's own registry is then that of several processes, and read so",
    "OPENAI_API_KEY": "key of the load tester, for https://api.openai.com only",
    "ANTHROPIC_API_KEY": "key of the load tester, for https://api.anthropic.com only",
}  # fmt: skip

# Files in a group's directory: a pattern, an example of it, what it is.
FILES = {
    "PID-START-JOINED.seg": ("71-5312-88.seg", "names one process's shared memory, and holds a copy of its numbers"),
    "PID-START-JOINED.trace": ("71-5312-88.trace", "its event ring (`trace_events`); stays after its end"),
    "PID-START-JOINED.gc": ("71-5312-88.gc", "commands of `tailwatch gc` to it"),
    "ROLE-INDEX.gone": ("worker-1.gone", "totals of exited processes of that name"),
    "index.lock": ("index.lock", "locked while a process takes its index"),
    "merge.tmp": ("merge.tmp", "totals of exited processes, while they are written"),
    "master-PID-START-NAMESPACE": ("master-70-5300-4026531836", "the server process that starts the workers"),
    "launcher": ("launcher", "locked by `tailwatch run` while its command runs"),
    "port-NUMBER": ("port-9400", "locked by the process that serves `metrics_port`"),
    "unseen-PID-START-NAMESPACE": (
        "unseen-71-5300-4026531836",
        "what was found of requests that are not seen: servers, routes, ports",
    ),
    "otel": ("otel", "locked by the process that exports OTLP for all"),
    "otel-server": ("otel", "address and port of the server, as OTLP has them"),
    "trace-WHEN-PID-NUMBER.pftrace": ("trace-20260101T101500-71-1.pftrace", "seconds that `trace_on` kept"),
}

# Lines of the log, with a hole for what differs: what to do.
LOGS = {
    "accelerate: on_fallback failed": "Mend the function given as `on_fallback`; the stream went on",
    "accelerate: …: …": "A warning: report it; frames of that shape come from the server's own class",
    "fast_sse: …: …": "The same: [fast SSE](fast_sse.md)",
    "gc pauses shorter than 0.05 ms: … more, … ms in total so far": "Nothing",
    "gc pauses: … more, the longest … ms": "Nothing; the longest stood there one by one",
    "slow gaps: … more, the longest … ms": "`tailwatch why --last 10m` has them",
    "slow …": "Its causes stand in it: [causes](causes/README.md)",
    "tailwatch: OTLP export, requested by OTEL_* variables, is off: …": "Install what it names, or set `otel=False`",
    "tailwatch: TAILWATCH_METRICS_PORT=…: metrics are not served, …": "Choose a free port",
    "tailwatch: a background task failed; the error is counted and the task runs again": "Report it with the traceback",
    "tailwatch: an OTLP export failed; it is counted, and sent again with the next one": "Look whether the receiver runs",
    "tailwatch: dir=… was removed or closed while it was in use: this process joins another of that name": "Leave the "
    "directory alone while its processes run",
    "tailwatch: dir=…: the system refused System V shared memory, so a mapped file is used: truncating it ends this "
    "process": "Nothing; [limits](limits.md)",
    "tailwatch: dir=…: this process's numbers are not shared: …": "Correct what it names",
    "tailwatch: gc='idle': slices are disabled: …. Full collections of unfrozen objects are used instead, while no "
    "stream waits": "[gc](gc.md); `tailwatch doctor` has the reason, too",
    "tailwatch: gc='idle': slices are enabled: the self-test has passed now": "Nothing",
    "tailwatch: gc='idle': …; slices run only between steps and after the last request has ended": "asyncio or uvloop as "
    "the event loop",
    "tailwatch: gc='idle': this process has no request, no engine step and no event loop, so no idle slot is found; "
    "the interpreter's own collections run every … new objects": 'Use `tailwatch.step()`, or `gc="freeze"` there',
    "tailwatch: … counts the engine's steps: …": "Nothing; `quiet` leaves it out",
    "tailwatch: … … streams, and is not counted: routes=… counts it": "`routes=`, if it generates tokens",
    "tailwatch: install() measures nothing on this system: it needs Linux; …": "Nothing; the server runs as without it",
    "tailwatch: this process was started by another one (a worker of several, or a reloader's child): /metrics and "
    "tailwatch.snapshot() cover this process alone": "Set `dir`, or start with `tailwatch run`",
    "tailwatch: trace_events=…: …: …": "More memory in `/dev/shm`, or fewer events",
    "tailwatch: trace_on=…: the seconds around a trigger were not kept: …": "Space in the group's directory",
    "tailwatch: …; the server runs without tailwatch": "Correct the variable that it names",
}
