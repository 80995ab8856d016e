#include "tailwatch/record/step_stats.h"

#include <string.h>

#include "base/names.h"
#include "record/word_sums.h"
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

static uint32_t other_step(tw_steps *steps) {
    uint64_t other[TW_STEP_NAME_WORDS] = {0};
    memcpy(other, "other", 5);
    if (!in_use(&steps->of[TW_STEP_OTHER])) name_step(&steps->of[TW_STEP_OTHER], other);
    return TW_STEP_OTHER;
}

uint32_t tw_steps_find(tw_steps *steps, const uint64_t name[TW_STEP_NAME_WORDS]) {
    for (uint32_t i = 0; i < TW_STEP_OTHER && name[0] != 0; ++i) {
        if (!in_use(&steps->of[i])) name_step(&steps->of[i], name);
        if (tw_words_equal(steps->of[i].name, name, TW_STEP_NAME_WORDS)) return i;
    }
    return other_step(steps);
}

/* ---- adding up ---- */

static void stats_add(tw_step_stats *to, const tw_step_stats *from) {
    tw_histogram_add(&to->duration, &from->duration);
    tw_histogram_add(&to->gap, &from->gap);
#define ADD(field, dims) tw_words_add(&to->field, &from->field, sizeof to->field);
    TW_STEP_COUNTERS(ADD)
#undef ADD
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
