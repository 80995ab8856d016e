#include "tailwatch/record/gc_policy_counters.h"

#include "tailwatch/base/atomic.h"

#include "base/names.h"

TW_NAMES(tw_policy_kind_name, TW_POLICY_KINDS, "unknown", "off", "observe", "freeze", "idle")
TW_NAMES(tw_policy_mode_name, TW_POLICY_MODES, "", "slices", "full collections")
TW_NAMES(tw_policy_why_name, TW_WHYS, "", "version", "lists", "proof", "start-up", "host-froze", "collections", "slices",
         "review")
TW_NAMES(tw_interference_name, TW_INTERFERENCES, "enable", "disable", "set_threshold", "freeze", "freeze_blind", "unfreeze",
         "callbacks")
TW_NAMES(tw_memory_limit_name, TW_MEMORY_LIMITS, "rss", "objects")

static TW_NAMES(other_reason_name, TW_COLLECTION_REASONS - TW_SLICE_REASONS, "automatic", "external", "unknown")

const char *tw_collection_reason_name(int reason) {
    return reason < TW_SLICE_REASONS ? tw_slice_reason_name(reason) : other_reason_name(reason - TW_SLICE_REASONS);
}

void tw_policy_is(tw_policy *p, tw_policy_kind kind, tw_policy_mode mode, tw_policy_why why) {
    tw_store(&p->now.kind, kind);
    tw_store(&p->now.mode, mode);
    tw_store(&p->now.why, why);
}

void tw_policy_slice(tw_policy *p, const tw_pace *before, const tw_pace *after, tw_slice_reason reason) {
    tw_policy_counts *counts = &p->counts;
    tw_add(&counts->slices[reason], after->made[reason] - before->made[reason]);
    tw_add(&counts->moved, after->moved - before->moved);
    tw_add(&counts->freed, after->freed - before->freed);
    tw_add(&counts->slice_ns, after->ns - before->ns);
    tw_add(&counts->predicted_ns, after->predicted_ns - before->predicted_ns);
    tw_add(&counts->cycles, after->cycles - before->cycles);
    tw_store(&p->now.backlog, after->backlog);
    tw_store(&p->now.cost_ns, tw_pace_dearest(after));
}

void tw_policy_full_collection(tw_policy *p, tw_slice_reason reason, uint64_t ns, uint64_t freed) {
    tw_add(&p->counts.collections[reason], 1);
    tw_add(&p->counts.full_ns, ns);
    tw_add(&p->counts.full_freed, freed);
}

/* A reader that sees the number sees its result too. */
void tw_policy_answer(tw_policy *p, uint64_t number, uint64_t answer) {
    tw_store_release(&p->now.answered, 0);
    tw_store_release(&p->now.answer, answer);
    tw_store_release(&p->now.answered, number);
}

void tw_policy_heap(tw_policy *p, uint64_t unfrozen) { tw_store(&p->now.unfrozen, unfrozen + 1); }

void tw_policy_frozen(tw_policy *p, uint64_t frozen) { tw_store(&p->now.frozen, frozen + 1); }
