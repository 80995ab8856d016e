#include "tailwatch/record/gc_policy_counters.h"

#include "tailwatch/base/atomic.h"

static const char *named(const char *const *names, int n, int i) { return i >= 0 && i < n ? names[i] : "unknown"; }

const char *tw_policy_kind_name(int kind) {
    static const char *const names[TW_POLICY_KINDS] = {"unknown", "off", "observe", "freeze", "idle"};
    return named(names, TW_POLICY_KINDS, kind);
}

const char *tw_policy_mode_name(int mode) {
    static const char *const names[TW_POLICY_MODES] = {"", "slices", "full collections"};
    return named(names, TW_POLICY_MODES, mode);
}

const char *tw_policy_why_name(int why) {
    static const char *const names[TW_WHYS] = {"", "version", "lists", "proof", "start-up", "host-froze", "collections", "slices", "review"};
    return named(names, TW_WHYS, why);
}

const char *tw_pass_name(int pass) {
    static const char *const names[] = {"automatic", "external", "unknown"};
    return pass < TW_PASS_AUTOMATIC ? tw_moment_name(pass) : named(names, TW_PASSES - TW_MOMENTS, pass - TW_MOMENTS);
}

const char *tw_interference_name(int interference) {
    static const char *const names[TW_INTERFERENCES] = {"enable",       "disable",  "set_threshold", "freeze",
                                                 "freeze_blind", "unfreeze", "callbacks"};
    return named(names, TW_INTERFERENCES, interference);
}

const char *tw_memory_limit_name(int memory_limit) {
    static const char *const names[TW_MEMORY_LIMITS] = {"rss", "objects"};
    return named(names, TW_MEMORY_LIMITS, memory_limit);
}

void tw_policy_is(tw_policy *p, tw_policy_kind kind, tw_policy_mode mode, tw_policy_why why) {
    tw_store(&p->now.kind, kind);
    tw_store(&p->now.mode, mode);
    tw_store(&p->now.why, why);
}

void tw_policy_slice(tw_policy *p, const tw_pace *before, const tw_pace *after, tw_moment moment) {
    tw_policy_counts *counts = &p->counts;
    tw_add(&counts->slices[moment], after->made[moment] - before->made[moment]);
    tw_add(&counts->moved, after->moved - before->moved);
    tw_add(&counts->freed, after->freed - before->freed);
    tw_add(&counts->slice_ns, after->ns - before->ns);
    tw_add(&counts->predicted_ns, after->predicted_ns - before->predicted_ns);
    tw_add(&counts->cycles, after->cycles - before->cycles);
    tw_store(&p->now.backlog, after->backlog);
    tw_store(&p->now.cost_ns, tw_pace_dearest(after));
}

void tw_policy_pass(tw_policy *p, tw_moment moment, uint64_t ns, uint64_t freed) {
    tw_add(&p->counts.collections[moment], 1);
    tw_add(&p->counts.full_ns, ns);
    tw_add(&p->counts.full_freed, freed);
}

/* Who sees the number sees its answer. */
void tw_policy_answer(tw_policy *p, uint64_t number, uint64_t answer) {
    tw_store_release(&p->now.answered, 0);
    tw_store_release(&p->now.answer, answer);
    tw_store_release(&p->now.answered, number);
}

void tw_policy_heap(tw_policy *p, uint64_t unfrozen) { tw_store(&p->now.unfrozen, unfrozen + 1); }

void tw_policy_frozen(tw_policy *p, uint64_t frozen) { tw_store(&p->now.frozen, frozen + 1); }
