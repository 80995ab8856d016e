#include "tailwatch/record/enums.h"

#define COUNT(names) ((int)(sizeof(names) / sizeof((names)[0])))

static const char *pick(const char *const *names, int count, int index) {
    return index >= 0 && index < count ? names[index] : "unknown";
}

const char *tw_cause_name(int cause) {
    static const char *const names[] = {"gc0", "gc1", "gc2", "gc_full", "gc_increment", "policy"};
    _Static_assert(COUNT(names) == TW_CAUSES, "a name for every cause");
    return pick(names, TW_CAUSES, cause);
}

const char *tw_phase_name(int phase) {
    static const char *const names[] = {"ttft", "itl"};
    _Static_assert(COUNT(names) == TW_PHASES, "a name for every phase");
    return pick(names, TW_PHASES, phase);
}

const char *tw_reason_name(int reason) {
    static const char *const names[] = {"good",    "late",       "error", "429",        "5xx",
                                        "timeout", "abort_late", "4xx",   "abort_early", "3xx"};
    _Static_assert(COUNT(names) == TW_REASONS, "a name for every reason");
    return pick(names, TW_REASONS, reason);
}

const char *tw_outcome_name(int outcome) {
    static const char *const names[] = {"good", "miss", "excluded"};
    _Static_assert(COUNT(names) == TW_OUTCOMES, "a name for every outcome");
    return pick(names, TW_OUTCOMES, outcome);
}

const char *tw_arrival_name(int arrival) {
    static const char *const names[] = {"tcp_info", "asgi", "header", "explicit"};
    _Static_assert(COUNT(names) == TW_ARRIVALS, "a name for every arrival source");
    return pick(names, TW_ARRIVALS, arrival);
}

const char *tw_drop_name(int drop) {
    static const char *const names[] = {"slow_log", "pause_log", "choice", "unreadable_body", "out_of_order_stamp",
                                        "pause_ring_overflow", "event_truncated", "protobuf_family", "protobuf_slow", "trace_trigger", "export", "span"};
    _Static_assert(COUNT(names) == TW_DROPS, "a name for every drop");
    return pick(names, TW_DROPS, drop);
}

const char *tw_error_name(int error) {
    static const char *const names[] = {"asgi", "gc_hook", "policy", "daemon", "render", "registry", "group"};
    _Static_assert(COUNT(names) == TW_ERRORS, "a name for every place");
    return pick(names, TW_ERRORS, error);
}

tw_outcome tw_reason_outcome(tw_reason reason) {
    if (reason == TW_REASON_GOOD) return TW_OUTCOME_GOOD;
    return reason < TW_REASON_4XX ? TW_OUTCOME_MISS : TW_OUTCOME_EXCLUDED;
}
