#include "tailwatch/record/enums.h"

#include "base/names.h"

TW_NAMES(tw_cause_name, TW_CAUSES, "gc0", "gc1", "gc2", "gc_full", "gc_increment", "gc_own")
TW_NAMES(tw_phase_name, TW_PHASES, "ttft", "itl")
TW_NAMES(tw_reason_name, TW_REASONS, "good", "late", "error", "429", "5xx", "timeout", "abort_late", "4xx", "abort_early",
         "3xx")
TW_NAMES(tw_outcome_name, TW_OUTCOMES, "good", "miss", "excluded")
TW_NAMES(tw_arrival_name, TW_ARRIVALS, "tcp_info", "asgi", "header", "explicit")
TW_NAMES(tw_drop_name, TW_DROPS, "slow_log", "pause_log", "choice", "unreadable_body", "out_of_order_stamp",
         "pause_ring_overflow", "event_truncated", "protobuf_family", "protobuf_slow", "trace_trigger", "export", "span",
         "member", "unjoined", "metrics_append")
TW_NAMES(tw_error_name, TW_ERRORS, "asgi", "gc_hook", "policy", "daemon", "render", "registry", "group")

tw_outcome tw_reason_outcome(tw_reason reason) {
    if (reason == TW_REASON_GOOD) return TW_OUTCOME_GOOD;
    return reason < TW_REASON_4XX ? TW_OUTCOME_MISS : TW_OUTCOME_EXCLUDED;
}
