/* Stream time that pauses took, by the role of the paused process, and the slow gaps. */
#include "aggregate/snapshot_parts.h"

#include "tailwatch/base/atomic.h"
#include "base/tw_malloc.h"
#include "record/word_sums.h"
#include "tailwatch/attribute/engine_split.h"
#include "tailwatch/record/slow_gaps.h"

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
    if (!always && !any_word(&one.overlap_ns[0][0], TW_PHASES * TW_CAUSES) &&
        !any_word(&one.delay_ns[0][0][0], TW_PHASES * TW_DELAYS * TW_CERTAINTIES)) return;
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

/* A number of a segment's names becomes one of the snapshot's. */
static uint32_t name_take(tw_snapshot *s, const tw_segment *g, uint32_t number) {
    char name[TW_NAME_TEXT];
    tw_engine_name_copy(&g->step_ring, &g->host, number, name, sizeof name);
    return tw_name_intern_whole(s->names, name, strlen(name));
}

/* Of a segment that lies, too. */
static void parts_rename(tw_snapshot *s, const tw_segment *g, tw_parts *parts) {
    if (parts->n > TW_PARTS) parts->n = 0;
    for (uint32_t i = 0; i < parts->n; i++) {
        tw_part *part = &parts->part[i];
        char role[TW_ROLE_WORDS * 8];
        tw_words_get(g->lost[part->source % TW_SOURCES].role, TW_ROLE_WORDS, role);
        part->source = (uint8_t)lost_place(s, role);
        part->name = name_take(s, g, part->name);
        if (part->detail_kind == TW_DETAIL_HOLDER) part->detail = name_take(s, g, (uint32_t)part->detail);
    }
}

typedef struct slow_source {
    tw_slow_record record;
    const tw_series *series;
    bool longest;
} slow_source;

static int slow_compare(const void *left, const void *right) {
    const tw_slow_record *a = &((const slow_source *)left)->record, *b = &((const slow_source *)right)->record;
    return (a->end_ns > b->end_ns) - (a->end_ns < b->end_ns);
}

static size_t slow_sources_of(tw_snapshot *s, const tw_segment *g, tw_slow_record *records, slow_source *out) {
    const size_t n = tw_slow_gaps_read(g, records);
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        tw_slow_record *record = &records[i];
        if (record->phase >= TW_PHASES) continue;
        const uint32_t series = record->series < tw_snapshot_sets_in_use(g) ? (uint32_t)record->series : 0;
        shares_rename(s, g, record);
        parts_rename(s, g, &record->parts);
        out[used++] = (slow_source){*record, tw_segment_series(g, series), false};
    }
    return used;
}

static int slow_allocate(tw_snapshot *s, size_t n) {
    s->slow = tw_malloc(n * sizeof *s->slow);
    s->slow_series = tw_malloc(2 * n * sizeof *s->slow_series);
    s->slow_longest = tw_malloc(n);
    return s->slow && s->slow_series && s->slow_longest ? 0 : ENOMEM;
}

/* Of all processes together, by the rule that each of them keeps its own by. */
static void longest_mark(slow_source *sources, size_t n, tw_slow_record *longest) {
    memset(longest, 0, TW_SLOW_LONGEST * sizeof *longest);
    for (size_t i = 0; i < n; i++) {
        sources[i].record.seq = i + 1;
        tw_slow_keep(longest, &sources[i].record);
    }
    for (size_t i = 0; i < TW_SLOW_LONGEST; i++)
        if (longest[i].seq) sources[longest[i].seq - 1].longest = true;
}

static void slow_append(tw_snapshot *s, const slow_source *from) {
    const uint32_t i = s->slow_count++;
    s->slow[i] = from->record;
    s->slow[i].series = i;
    s->slow_longest[i] = from->longest;
    tw_words_load(&s->slow_series[2 * i], &from->series->model, sizeof(tw_name));
    tw_words_load(&s->slow_series[2 * i + 1], &from->series->route, sizeof(tw_name));
}

/* The newest and the longest of the sorted sources. */
static int slow_merge(tw_snapshot *s, const slow_source *sources, size_t n) {
    if (n == 0) return 0;
    if (slow_allocate(s, n < TW_SLOW_KEPT ? n : TW_SLOW_KEPT)) return ENOMEM;
    for (size_t i = 0; i < n; i++)
        if (sources[i].longest || i + TW_SLOW_RING >= n) slow_append(s, &sources[i]);
    return 0;
}

int tw_snapshot_take_slow_gaps(tw_snapshot *s, const tw_segment *const *segments, size_t n) {
    slow_source *sources = tw_malloc(n * TW_SLOW_KEPT * sizeof *sources);
    tw_slow_record *records = tw_malloc(TW_SLOW_KEPT * sizeof *records);
    size_t used = 0;
    int error = ENOMEM;
    s->names = tw_calloc(1, sizeof *s->names);
    if (sources && records && s->names) {
        for (size_t i = 0; i < n; i++) used += slow_sources_of(s, segments[i], records, &sources[used]);
        qsort(sources, used, sizeof *sources, slow_compare);
        longest_mark(sources, used, records);
        error = slow_merge(s, sources, used);
    }
    tw_free(records);
    tw_free(sources);
    return error;
}

int tw_snapshot_copy_slow_gaps(tw_snapshot *out, const tw_snapshot *from, uint64_t after_ns) {
    if (from->slow_count == 0) return 0;
    if (slow_allocate(out, from->slow_count)) return ENOMEM;
    out->names = tw_malloc(sizeof *out->names);
    if (out->names == NULL) return ENOMEM;
    memcpy(out->names, from->names, sizeof *out->names);
    for (uint32_t i = 0; i < from->slow_count; i++) {
        if (from->slow[i].end_ns <= after_ns) continue;
        const uint32_t n = out->slow_count++;
        out->slow[n] = from->slow[i];
        out->slow[n].series = n;
        out->slow_longest[n] = from->slow_longest[i];
        memcpy(&out->slow_series[2 * n], &from->slow_series[2 * i], 2 * sizeof(tw_name));
    }
    return 0;
}
