/* What a policy counts, and the names of what it counts. */
#include "tailwatch/record/gc_policy_counters.h"

#include "tw_test.h"

enum { MS = 1000000 };

TW_TEST(each_number_has_a_name_and_no_other_has_one) {
    static const struct { const char *(*name)(int); int n; } lists[] = {
        {tw_policy_kind_name, TW_POLICY_KINDS}, {tw_policy_mode_name, TW_POLICY_MODES}, {tw_policy_why_name, TW_WHYS},
        {tw_collection_reason_name, TW_COLLECTION_REASONS},              {tw_interference_name, TW_INTERFERENCES},             {tw_memory_limit_name, TW_MEMORY_LIMITS},
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        TW_CHECK_STR("unknown", lists[i].name(-1));
        TW_CHECK_STR("unknown", lists[i].name(lists[i].n));
        for (int a = 0; a < lists[i].n; a++)
            for (int b = 0; b < a; b++) TW_CHECK(strcmp(lists[i].name(a), lists[i].name(b)) != 0);
    }
    TW_CHECK_STR("request_end", tw_collection_reason_name(TW_SLICE_REQUEST_END));
    TW_CHECK_STR("external", tw_collection_reason_name(TW_COLLECTION_EXTERNAL));
}

/* A policy that is given slices counts what the pace counts. */
TW_TEST(slices_are_counted_as_the_pace_has_them) {
    tw_pace pace = {0};
    tw_policy policy = {0};
    for (int i = 0; i < 40; i++) {
        const tw_pace before = pace;
        const tw_slice_reason reason = i % 4 ? TW_SLICE_IDLE : TW_SLICE_STEP;
        const tw_slice slice = {700, 1000, 2, (size_t)i, 2, MS / 2, TW_WALK_PARTS, 700};
        if (i % 8 == 0) tw_pace_cycle_ended(&pace, 0, 1000, 1);
        tw_pace_slice(&pace, reason, &slice, MS);
        tw_policy_slice(&policy, &before, &pace, reason);
    }
    TW_CHECK_MEM(pace.made, policy.counts.slices, sizeof pace.made);
    TW_CHECK(policy.counts.moved == pace.moved && policy.counts.freed == pace.freed);
    TW_CHECK(policy.counts.slice_ns == 40 * MS && policy.counts.predicted_ns == pace.predicted_ns);
    TW_CHECK(policy.counts.cycles == 5 && policy.now.backlog == pace.backlog);
    TW_CHECK(policy.now.cost_ns == tw_pace_dearest(&pace) && policy.now.cost_ns > 0);
}

TW_TEST(a_full_collection_is_counted_by_its_reason) {
    tw_policy policy = {0};
    tw_policy_full_collection(&policy, TW_SLICE_REQUEST_END, 3 * MS, 50);
    tw_policy_full_collection(&policy, TW_SLICE_MEMORY_LIMIT, 4 * MS, 7);
    TW_CHECK(policy.counts.collections[TW_SLICE_REQUEST_END] == 1 && policy.counts.collections[TW_SLICE_MEMORY_LIMIT] == 1);
    TW_CHECK(policy.counts.full_ns == 7 * MS && policy.counts.full_freed == 57);
}

/* No object is something else than not knowing. */
TW_TEST(a_size_of_nothing_is_known) {
    tw_policy policy = {0};
    TW_CHECK(policy.now.unfrozen == 0 && policy.now.frozen == 0);
    tw_policy_heap(&policy, 0);
    tw_policy_frozen(&policy, 9);
    TW_CHECK(policy.now.unfrozen == 1 && policy.now.frozen == 10);
    tw_policy_is(&policy, TW_POLICY_IDLE_GC, TW_POLICY_FULL, TW_WHY_PROOF);
    TW_CHECK(policy.now.kind == TW_POLICY_IDLE_GC && policy.now.mode == TW_POLICY_FULL && policy.now.why == TW_WHY_PROOF);
    TW_CHECK(policy.now.unfrozen == 1);
}
