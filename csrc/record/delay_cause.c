#include "tailwatch/record/delay_cause.h"

#include "base/names.h"

TW_NAMES(tw_delay_cause_name, TW_DELAYS, "gc0", "gc1", "gc2", "gc_full", "gc_increment", "gc_own", "callback", "own_code",
         "gil", "cpu", "throttled", "io", "lock", "sleep", "memory", "stopped", "client", "accept", "transport", "output",
         "own_prefill", "queued", "preempted", "kv_wait", "prefill", "engine_host", "jit", "graph_miss", "rank", "device",
         "upstream", "unexplained")
const char *tw_stall_name(int stall) {
    return tw_delay_cause_name(stall == TW_STALL_UNEXPLAINED ? TW_DELAY_UNEXPLAINED : stall);
}

TW_NAMES(tw_certainty_name, TW_CERTAINTIES, "measured", "sampled", "estimated")
TW_NAMES(tw_unexplained_name, TW_UNEXPLAINED_REASONS, "unknown", "no_loop_clock", "no_schedstat", "no_syscall",
         "no_stacks", "unjoined")
