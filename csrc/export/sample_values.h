/* Values of samples, as the functions that read them emit them. Private. */
#pragma once

#include <string.h>

#include "base/yield.h"
#include "export/metric_samples.h"

typedef tw_sampling sampling;
typedef tw_instrument instrument;

static const tw_sample PLAIN = {.cause = -1, .scale = TW_SCALE};

static inline tw_sample of_process(const sampling *s, uint32_t p) {
    tw_sample sample = PLAIN;
    sample.process = &s->snapshot->process[p];
    return sample;
}

static inline void emit(sampling *s, const tw_sample *sample) { s->emit(s->to, sample); }

/* Words of the snapshot are counts or nanoseconds. */
static inline void emit_word(sampling *s, const instrument *m, tw_sample *sample, uint64_t value) {
    sample->number = (tw_number){strcmp(m->unit, "s") == 0 ? TW_NUMBER_BILLIONTHS : TW_NUMBER_COUNT, value, 0};
    emit(s, sample);
}

static inline void emit_word_at(sampling *s, const instrument *m, tw_sample *sample, const void *base) {
    uint64_t value;
    memcpy(&value, (const char *)base + m->of, sizeof value);
    emit_word(s, m, sample, value);
}

/* Nine digits after the point, of whatever unit; nothing where the value is not known. */
static inline void emit_real(sampling *s, tw_sample *sample, double value) {
    if (!(value >= 0 && value < 1e9)) return;
    sample->number = (tw_number){TW_NUMBER_BILLIONTHS, (uint64_t)(value * 1e9 + 0.5), 0};
    emit(s, sample);
}

/* counts: NULL where nothing was recorded. */
static inline void emit_counts(sampling *s, tw_sample *sample, const tw_counts *counts, const tw_layout *layout) {
    static const tw_counts none;
    tw_give_way(&s->gave_way_ns);
    sample->counts = counts ? counts : &none;
    sample->layout = layout;
    emit(s, sample);
}

/* Counts by name: an array of words at an offset. */
typedef struct named_list {
    const char *label;
    size_t at;
    int n;
    const char *(*name)(int);
    int first, last;             /* those shown at 0 too: rate() would miss their first event otherwise */
} named_list;

static inline void emit_list(sampling *s, const instrument *m, tw_sample *sample, const void *base, const named_list *list) {
    for (int i = 0; i < list->n; i++) {
        uint64_t value;
        memcpy(&value, (const char *)base + list->at + (size_t)i * sizeof value, sizeof value);
        if (value == 0 && (i < list->first || i > list->last)) continue;
        sample->label[0] = (tw_label){list->label, list->name(i)};
        emit_word(s, m, sample, value);
    }
}
