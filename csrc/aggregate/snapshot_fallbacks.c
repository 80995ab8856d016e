/* Frames that the server made itself, by shape and reason. */
#include "aggregate/snapshot_parts.h"

#include "tailwatch/base/atomic.h"
#include "base/tw_malloc.h"
#include "record/word_sums.h"

#include <errno.h>
#include <stdlib.h>

static int fallback_compare(const void *left, const void *right) {
    const tw_snapshot_fallback *a = left, *b = right;
    return tw_snapshot_names_compare(a->shape, a->reason, b->shape, b->reason);
}

static tw_snapshot_fallback *fallback_find(const tw_snapshot *s, const tw_snapshot_fallback *like) {
    for (uint32_t i = 0; i < s->fallback_count; i++)
        if (fallback_compare(&s->fallbacks[i], like) == 0) return &s->fallbacks[i];
    return NULL;
}

static void fallback_keep(tw_snapshot *s, const tw_fallback *from) {
    tw_snapshot_fallback one = {.count = tw_load(&from->count)};
    tw_words_get(from->shape, TW_SHAPE_WORDS, one.shape);
    tw_words_get(from->reason, TW_FALLBACK_REASON_WORDS, one.reason);
    tw_snapshot_fallback *known = fallback_find(s, &one);
    if (known) known->count += one.count;
    else s->fallbacks[s->fallback_count++] = one;
}

static size_t fallbacks_of(const tw_segment *g) {
    uint64_t count = tw_load_acquire(&g->fallback_count);
    return count < TW_FALLBACKS ? count : TW_FALLBACKS;
}

int tw_snapshot_take_fallbacks(tw_snapshot *s, const tw_segment *const *segments, size_t n) {
    size_t any = 0;
    for (size_t i = 0; i < n; i++) any += fallbacks_of(segments[i]);
    if (any == 0) return 0;
    s->fallbacks = tw_malloc(n * TW_FALLBACKS * sizeof *s->fallbacks);
    if (!s->fallbacks) return ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const size_t count = fallbacks_of(segments[i]);
        for (size_t at = 0; at < count; at++) fallback_keep(s, &segments[i]->fallbacks[at]);
    }
    qsort(s->fallbacks, s->fallback_count, sizeof *s->fallbacks, fallback_compare);
    return 0;
}

int tw_snapshot_subtract_fallbacks(tw_snapshot *out, const tw_snapshot *later, const tw_snapshot *earlier) {
    if (later->fallback_count == 0) return 0;
    out->fallbacks = tw_malloc(later->fallback_count * sizeof *out->fallbacks);
    if (!out->fallbacks) return ENOMEM;
    for (uint32_t i = 0; i < later->fallback_count; i++) {
        const tw_snapshot_fallback *before = fallback_find(earlier, &later->fallbacks[i]);
        out->fallbacks[i] = later->fallbacks[i];
        if (before) out->fallbacks[i].count = tw_minus(later->fallbacks[i].count, before->count);
    }
    out->fallback_count = later->fallback_count;
    return 0;
}
