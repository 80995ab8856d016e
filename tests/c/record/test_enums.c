#include "tailwatch/record/enums.h"

#include <limits.h>

#include "tw_test.h"

typedef const char *(*name_function)(int);

static void check_names(name_function name_of, const char *const *expected, int count) {
    for (int i = 0; i < count; i++) TW_CHECK_STR(expected[i], name_of(i));
    const int outside[] = {-1, count, INT_MIN, INT_MAX};
    for (int i = 0; i < 4; i++) TW_CHECK_STR("unknown", name_of(outside[i]));
}

#define NAMES(function, count, ...)                                            \
    do {                                                                       \
        static const char *const expected[] = {__VA_ARGS__};                   \
        TW_CHECK_EQ(count, sizeof expected / sizeof expected[0]);              \
        check_names(function, expected, (int)(count));                         \
    } while (0)

/* The names are label values of exported metrics: changing one breaks dashboards. */
TW_TEST(names) {
    NAMES(tw_cause_name, TW_CAUSES, "gc0", "gc1", "gc2", "gc_full", "gc_increment", "gc_own");
    NAMES(tw_phase_name, TW_PHASES, "ttft", "itl");
    NAMES(tw_reason_name, TW_REASONS, "good", "late", "error", "429", "5xx", "timeout", "abort_late", "4xx",
          "abort_early", "3xx");
    NAMES(tw_outcome_name, TW_OUTCOMES, "good", "miss", "excluded");
    NAMES(tw_arrival_name, TW_ARRIVALS, "tcp_info", "asgi", "header", "explicit");
    NAMES(tw_drop_name, TW_DROPS, "slow_log", "pause_log", "choice", "unreadable_body", "out_of_order_stamp", "pause_ring_overflow",
          "event_truncated", "protobuf_family", "protobuf_slow", "trace_trigger", "export", "span", "member",
          "unjoined", "metrics_append");
    NAMES(tw_error_name, TW_ERRORS, "asgi", "gc_hook", "policy", "daemon", "render", "registry", "group");
}

/* Every reason has one outcome. */
TW_TEST(outcomes) {
    static const tw_outcome expected[TW_REASONS] = {
        TW_OUTCOME_GOOD, TW_OUTCOME_MISS, TW_OUTCOME_MISS,     TW_OUTCOME_MISS,     TW_OUTCOME_MISS,
        TW_OUTCOME_MISS, TW_OUTCOME_MISS, TW_OUTCOME_EXCLUDED, TW_OUTCOME_EXCLUDED,
        TW_OUTCOME_EXCLUDED,
    };
    for (int i = 0; i < TW_REASONS; i++) TW_CHECK_EQ(expected[i], tw_reason_outcome((tw_reason)i));
}
