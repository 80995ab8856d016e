/* Stream time that pauses took, by the role of the paused process, and the slow gaps. */
#include "aggregate/snapshot_parts.h"

#include "tailwatch/base/atomic.h"
#include "base/tw_malloc.h"
#include "record/word_sums.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint32_t lost_find(const tw_snapshot *s, const char *role) {
    uint32_t i = 0;
    while (i < s->lost_count && strcmp(s->lost[i].role, role) != 0) i++;
    return i;
}

/* Where a role's time is added up; the last place is "other" once there is no more room. */
static uint32_t lost_place(tw_snapshot *s, const char *role) {
    uint32_t i = lost_find(s, role);
    if (i == s->lost_count && i == TW_SOURCES) {
        i = lost_find(s, "other");
        if (i == TW_SOURCES) strcpy(s->lost[i = TW_SOURCES - 1].role, "other");
    } else if (i == s->lost_count) {
        memcpy(s->lost[s->lost_count++].role, role, sizeof s->lost->role);
    }
    return i;
}

static bool any_word(const uint64_t *words, size_t n) {
    uint64_t all = 0;
    for (size_t i = 0; i < n; i++) all |= words[i];
    return all != 0;
}

static void lost_add(tw_snapshot *s, const tw_lost *from, bool always) {
    tw_snapshot_lost one;
    tw_words_get(from->role, TW_ROLE_WORDS, one.role);
    tw_words_load(one.overlap_ns, from->overlap_ns, sizeof one.overlap_ns);
    tw_words_load(one.delay_ns, from->delay_ns, sizeof one.delay_ns);
    if (!always && !any_word(&one.overlap_ns[0][0], TW_PHASES * TW_CAUSES)) return;
    tw_snapshot_lost *to = &s->lost[lost_place(s, one.role)];
    tw_words_add(to->overlap_ns, one.overlap_ns, sizeof one.overlap_ns);
    tw_words_add(to->delay_ns, one.delay_ns, sizeof one.delay_ns);
}

void tw_snapshot_take_lost(tw_snapshot *s, const tw_segment *g) {
    for (uint32_t i = 0; i < TW_SOURCES; i++) lost_add(s, &g->lost[i], i == 0);
}

void tw_snapshot_subtract_lost(tw_snapshot *out, const tw_snapshot *earlier) {
    for (uint32_t i = 0; i < out->lost_count; i++) {
        const uint32_t at = lost_find(earlier, out->lost[i].role);
        if (at == earlier->lost_count) continue;
        tw_words_subtract(out->lost[i].overlap_ns, earlier->lost[at].overlap_ns, sizeof out->lost[i].overlap_ns);
        tw_words_subtract(out->lost[i].delay_ns, earlier->lost[at].delay_ns, sizeof out->lost[i].delay_ns);
    }
}

/* ---- slow gaps ---- */

/* A segment's number for a role becomes the snapshot's, which may have been booked since its time was taken; a share
 * that names none is emptied. */
static void shares_rename(tw_snapshot *s, const tw_segment *g, tw_slow_record *record) {
    for (int i = 0; i < TW_SHARES; i++) {
        tw_share *share = &record->share[i];
        char role[TW_ROLE_WORDS * 8];
        if (share->overlap_ns == 0 || share->source >= TW_SOURCES || share->cause >= TW_CAUSES) {
            memset(share, 0, sizeof *share);
            continue;
        }
        tw_words_get(g->lost[share->source].role, TW_ROLE_WORDS, role);
        share->source = lost_place(s, role);
    }
}

typedef struct slow_source {
    tw_slow_record record;
    const tw_series *series;
} slow_source;

static int slow_compare(const void *left, const void *right) {
    const tw_slow_record *a = &((const slow_source *)left)->record, *b = &((const slow_source *)right)->record;
    return (a->end_ns > b->end_ns) - (a->end_ns < b->end_ns);
}

static size_t slow_sources_of(tw_snapshot *s, const tw_segment *g, slow_source *out) {
    uint64_t head = tw_load_acquire(&g->slow_head);
    size_t n = 0;
    for (uint64_t i = head > TW_SLOW_RING ? head - TW_SLOW_RING : 0; i < head; i++) {
        if (!tw_segment_slow_read(g, i, &out[n].record) || out[n].record.phase >= TW_PHASES) continue;
        uint64_t series = out[n].record.series;
        shares_rename(s, g, &out[n].record);
        out[n++].series = tw_segment_series(g, series < tw_snapshot_sets_in_use(g) ? (uint32_t)series : 0);
    }
    return n;
}

static int slow_allocate(tw_snapshot *s, size_t n) {
    s->slow = tw_malloc(n * sizeof *s->slow);
    s->slow_series = tw_malloc(2 * n * sizeof *s->slow_series);
    return s->slow && s->slow_series ? 0 : ENOMEM;
}

/* The newest of the sorted sources. */
static int slow_merge(tw_snapshot *s, const slow_source *sources, size_t n) {
    if (n == 0) return 0;
    size_t count = n < TW_SLOW_RING ? n : TW_SLOW_RING;
    if (slow_allocate(s, count)) return ENOMEM;
    for (size_t i = 0; i < count; i++) {
        const slow_source *from = &sources[n - count + i];
        s->slow[i] = from->record;
        s->slow[i].series = i;
        tw_words_load(&s->slow_series[2 * i], &from->series->model, sizeof(tw_name));
        tw_words_load(&s->slow_series[2 * i + 1], &from->series->route, sizeof(tw_name));
    }
    s->slow_count = (uint32_t)count;
    return 0;
}

int tw_snapshot_take_slow_gaps(tw_snapshot *s, const tw_segment *const *segments, size_t n) {
    slow_source *sources = tw_malloc(n * TW_SLOW_RING * sizeof *sources);
    if (!sources) return ENOMEM;
    size_t used = 0;
    for (size_t i = 0; i < n; i++) used += slow_sources_of(s, segments[i], &sources[used]);
    qsort(sources, used, sizeof *sources, slow_compare);
    int error = slow_merge(s, sources, used);
    tw_free(sources);
    return error;
}

int tw_snapshot_copy_slow_gaps(tw_snapshot *out, const tw_snapshot *from) {
    if (from->slow_count == 0) return 0;
    if (slow_allocate(out, from->slow_count)) return ENOMEM;
    memcpy(out->slow, from->slow, from->slow_count * sizeof *out->slow);
    memcpy(out->slow_series, from->slow_series, 2 * from->slow_count * sizeof *out->slow_series);
    out->slow_count = from->slow_count;
    return 0;
}
