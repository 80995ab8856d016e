#include "tailwatch/record/step_stats.h"

#include <string.h>

#include "base/names.h"
#include "tailwatch/base/atomic.h"

TW_NAMES(tw_step_phase_name, TW_STEP_PHASES, "step", "host_gap")

const tw_layout *tw_step_layout(int phase) {
    return tw_layout_of(phase == TW_STEP_INSIDE ? TW_LAYOUT_ITL : TW_LAYOUT_PAUSE);
}

/* ---- names ---- */

static bool in_use(const tw_step_stats *stats) { return tw_load_acquire(&stats->name[0]) != 0; }

static void name_step(tw_step_stats *stats, const uint64_t name[TW_STEP_NAME_WORDS]) {
    tw_histogram_init(&stats->duration);
    tw_histogram_init(&stats->gap);
    for (uint32_t i = TW_STEP_NAME_WORDS; i-- > 0;) tw_store_release(&stats->name[i], name[i]);
}

static bool is_named(const tw_step_stats *stats, const uint64_t name[TW_STEP_NAME_WORDS]) {
    for (uint32_t i = 0; i < TW_STEP_NAME_WORDS; ++i)
        if (tw_load(&stats->name[i]) != name[i]) return false;
    return true;
}

static uint32_t other_step(tw_steps *steps) {
    uint64_t other[TW_STEP_NAME_WORDS] = {0};
    memcpy(other, "other", 5);
    if (!in_use(&steps->of[TW_STEP_OTHER])) name_step(&steps->of[TW_STEP_OTHER], other);
    return TW_STEP_OTHER;
}

uint32_t tw_steps_find(tw_steps *steps, const uint64_t name[TW_STEP_NAME_WORDS]) {
    for (uint32_t i = 0; i < TW_STEP_OTHER && name[0] != 0; ++i) {
        if (!in_use(&steps->of[i])) name_step(&steps->of[i], name);
        if (is_named(&steps->of[i], name)) return i;
    }
    return other_step(steps);
}

/* ---- adding up ---- */

/* Nobody reads what is being added to. */
static void histogram_add(tw_histogram *to, const tw_histogram *from) {
    tw_counts more;
    tw_histogram_read(from, &more);
    if (more.count == 0) return;
    for (uint32_t i = 0; i < TW_SLOTS_MAX; ++i) tw_add(&to->slot[i], more.slot[i]);
    tw_add(&to->sum_low, more.sum_low);
    tw_add(&to->sum_high, more.sum_high + (tw_load(&to->sum_low) < more.sum_low));
    if (more.min_ns < tw_load(&to->min_ns)) tw_store(&to->min_ns, more.min_ns);
    tw_raise(&to->max_ns, more.max_ns);
}

static void stats_add(tw_step_stats *to, const tw_step_stats *from) {
    histogram_add(&to->duration, &from->duration);
    histogram_add(&to->gap, &from->gap);
    tw_add(&to->batch, tw_load(&from->batch));
    tw_add(&to->unknown_ns, tw_load(&from->unknown_ns));
    for (int phase = 0; phase < TW_STEP_PHASES; ++phase)
        for (int cause = 0; cause < TW_CAUSES; ++cause) {
            tw_add(&to->overlap_ns[phase][cause], tw_load(&from->overlap_ns[phase][cause]));
            tw_add(&to->request_ns[phase][cause], tw_load(&from->request_ns[phase][cause]));
        }
}

void tw_steps_add(tw_steps *to, const tw_steps *from) {
    for (uint32_t i = 0; i < TW_STEPS; ++i) {
        uint64_t name[TW_STEP_NAME_WORDS];
        if (!in_use(&from->of[i])) continue;
        for (uint32_t word = 0; word < TW_STEP_NAME_WORDS; ++word) name[word] = tw_load(&from->of[i].name[word]);
        const uint32_t at = i == TW_STEP_OTHER ? other_step(to) : tw_steps_find(to, name);
        stats_add(&to->of[at], &from->of[i]);
    }
}
