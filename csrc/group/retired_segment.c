#include "tailwatch/group/retired_segment.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tailwatch/base/atomic.h"
#include "base/tw_malloc.h"
#include "tailwatch/attribute/engine_split.h"
#include "tailwatch/record/slow_gaps.h"
#include "record/word_sums.h"

/* ---- what is summed ---- */

/* A field that is added to tw_segment and not to its field tables is named here, and added up below where it counts. */
#define SIZE(type, field) sizeof(((type *)NULL)->field)
#define WORDS(name, dims) +sizeof(((FIELDS_OF *)NULL)->name)
#define HISTOGRAM(name, metric, layout) +sizeof(((FIELDS_OF *)NULL)->name)
#define FIELDS_OF tw_segment
_Static_assert(sizeof(tw_segment) ==
                   0 TW_PROCESS_COUNTERS(WORDS) TW_PROCESS_HISTOGRAMS(HISTOGRAM) +
                       /* kept in ways of their own */
                       SIZE(tw_segment, header) + SIZE(tw_segment, slo) + SIZE(tw_segment, slow_ns) +
                       SIZE(tw_segment, pause) + SIZE(tw_segment, stalls) + SIZE(tw_segment, tail) +
                       SIZE(tw_segment, policy.counts) + SIZE(tw_segment, lost) + SIZE(tw_segment, seconds) +
                       SIZE(tw_segment, slow_head) + SIZE(tw_segment, slow) + SIZE(tw_segment, slow_longest) +
                       SIZE(tw_segment, fallback_count) +
                       SIZE(tw_segment, fallbacks) + SIZE(tw_segment, series_count) + SIZE(tw_segment, steps) +
                       SIZE(tw_segment, ttft_by_concurrency) + SIZE(tw_segment, engine) +
                       /* of the living only */
                       SIZE(tw_segment, in_flight) + SIZE(tw_segment, exemplars) + SIZE(tw_segment, policy.now) +
                           SIZE(tw_segment, host) + SIZE(tw_segment, step_ring),
               "a field of tw_segment that the dead would lose");
#undef FIELDS_OF
#define FIELDS_OF tw_series
_Static_assert(sizeof(tw_series) ==
                   0 TW_SERIES_COUNTERS(WORDS) TW_SERIES_HISTOGRAMS(HISTOGRAM) +
                       SIZE(tw_series, model) + SIZE(tw_series, route) +
                       /* of the living only */
                       SIZE(tw_series, typical_ns) + SIZE(tw_series, typical_next) + SIZE(tw_series, period_ns) +
                       SIZE(tw_series, period) + SIZE(tw_series, typical_most_ns) + SIZE(tw_series, typical_ttft_ns),
               "a field of tw_series that the dead would lose");

#define ADD_WORDS(name, dims) tw_words_add(&sum->name, &from->name, sizeof sum->name);
#define ADD_HISTOGRAM(name, metric, layout) tw_histogram_add(&sum->name, &from->name);

static void counters_add(tw_segment *sum, const tw_segment *from) {
    TW_PROCESS_COUNTERS(ADD_WORDS)
    TW_PROCESS_HISTOGRAMS(ADD_HISTOGRAM)
    ADD_WORDS(tail, )
    ADD_WORDS(policy.counts, )
    ADD_WORDS(pause.lost, )
    for (int cause = 0; cause < TW_CAUSES; cause++) tw_histogram_add(&sum->stalls[cause], &from->stalls[cause]);
    for (int cause = TW_CAUSES; cause < TW_STALLS; cause++) {
        if (tw_histogram_is_empty(&from->stalls[cause])) continue;
        if (tw_histogram_is_empty(&sum->stalls[cause])) tw_histogram_init(&sum->stalls[cause]);
        tw_histogram_add(&sum->stalls[cause], &from->stalls[cause]);
    }
}

static void label_set_add(tw_series *sum, const tw_series *from) {
    TW_SERIES_COUNTERS(ADD_WORDS)
    TW_SERIES_HISTOGRAMS(ADD_HISTOGRAM)
}

/* ---- pauses ---- */

/* The ring is not kept: what stood in it counts as evicted, so that word = ring + evicted_ns + short_ns holds on. */
static void cause_add(tw_pause_clock *sum, const tw_pause_clock *from, tw_cause cause) {
    const uint64_t closed_ns = tw_pause_total_ns(from, cause, 0); /* an open one has no known end */
    const tw_pause_totals *more = &from->totals[cause];
    tw_pause_totals *to = &sum->totals[cause];
    const uint64_t max_ns = to->max_ns > more->max_ns ? to->max_ns : more->max_ns;
    const uint64_t evicted_count = to->evicted_count + tw_minus(more->count, more->short_count);
    const uint64_t evicted_ns = to->evicted_ns + tw_minus(closed_ns, more->short_ns);
    sum->word[cause] += closed_ns;
    tw_words_add(to, more, sizeof *to);
    to->max_ns = max_ns;
    to->evicted_count = evicted_count;
    to->evicted_ns = evicted_ns;
}

static void pauses_add(tw_pause_clock *sum, const tw_pause_clock *from) {
    for (int cause = 0; cause < TW_CAUSES; cause++) cause_add(sum, from, (tw_cause)cause);
    const uint64_t last = tw_load(&from->last_stop_ns);
    const uint64_t closed = last == TW_PAUSE_OPEN ? tw_load(&from->closed_stop_ns) : last;
    if (closed != TW_PAUSE_OPEN) tw_raise(&sum->last_stop_ns, closed);
}

/* ---- stream time, by role ---- */

/* Where a role of the other segment stands in this one. */
static uint32_t lost_place(tw_segment *sum, const tw_segment *from, uint32_t at) {
    char role[TW_ROLE_WORDS * 8];
    if (at == 0 || at >= TW_SOURCE_OTHER) return at;
    tw_words_get(from->lost[at].role, TW_ROLE_WORDS, role);
    return role[0] == '\0' ? TW_SOURCE_OTHER : tw_segment_source(sum, role);
}

static bool lost_any(const tw_lost *lost) {
    const uint64_t *words = (const uint64_t *)lost->overlap_ns;
    uint64_t any = 0;
    for (size_t i = 0; i < (sizeof *lost - sizeof lost->role) / sizeof *words; i++) any |= words[i];
    return any != 0;
}

static void lost_add(tw_segment *sum, const tw_segment *from) {
    for (uint32_t at = 0; at < TW_SOURCES; at++) {
        if (!lost_any(&from->lost[at])) continue;
        tw_lost *to = &sum->lost[lost_place(sum, from, at)];
        tw_words_add(to->overlap_ns, from->lost[at].overlap_ns, sizeof to->overlap_ns);
        tw_words_add(to->delay_ns, from->lost[at].delay_ns, sizeof to->delay_ns);
    }
}

/* ---- label sets ---- */

static uint64_t requests_of(const tw_series *series) {
    uint64_t requests = 0;
    for (int reason = 0; reason < TW_REASONS; reason++) requests += tw_load(&series->reasons[reason]);
    return requests;
}

static void served_add(tw_served *sum, const tw_served *from) {
    if (sum == NULL || from == NULL) return;
    tw_histogram_add(&sum->ttft, &from->ttft);
    tw_histogram_add(&sum->tpot, &from->tpot);
    for (int i = 0; i < TW_FAILURES; i++) tw_brief_add(&sum->failed[i], &from->failed[i]);
}

/* sets: the number in sum of each of from's. */
static void series_add(tw_segment *sum, const tw_segment *from, uint64_t count, uint32_t *sets) {
    char model[TW_NAME_BYTES], route[TW_NAME_BYTES];
    for (uint32_t i = 0; i < count; i++) {
        const tw_series *series = tw_segment_series(from, i);
        tw_words_get(series->model.word, TW_NAME_WORDS, model);
        tw_words_get(series->route.word, TW_NAME_WORDS, route);
        const uint64_t overflow = sum->label_overflow;
        sets[i] = tw_segment_label(sum, model, strlen(model), route, strlen(route));
        /* All of them became "other". */
        if (sum->label_overflow != overflow) sum->label_overflow = overflow + requests_of(series);
        label_set_add(tw_segment_series(sum, sets[i]), series);
        served_add(tw_segment_served(sum, tw_segment_series(sum, sets[i])), tw_segment_served(from, series));
    }
}

/* ---- the last hour ---- */

static void second_add(tw_second *to, const tw_second *from) {
    if (from->second == 0 || from->second < to->second) return;
    if (from->second > to->second) memset(to, 0, sizeof *to);
    tw_words_add(to, from, sizeof *to);
    to->second = from->second;
}

/* ---- slow gaps ---- */

static int slow_compare(const void *left, const void *right) {
    const tw_slow_record *a = left, *b = right;
    return (a->end_ns > b->end_ns) - (a->end_ns < b->end_ns);
}

static void part_rename(tw_segment *sum, const tw_segment *from, tw_part *part) {
    char name[TW_NAME_TEXT];
    tw_engine_name_copy(&from->step_ring, &from->host, part->name, name, sizeof name);
    part->name = tw_engine_name_put(&sum->step_ring, &sum->host, part->name, name);
    if (part->detail_kind == TW_DETAIL_HOLDER) {
        tw_name_copy(&from->host.names, (uint32_t)part->detail, name, sizeof name);
        part->detail = tw_name_intern(&sum->host.names, name, strlen(name));
    }
    part->source = (uint8_t)(part->source < TW_SOURCES ? lost_place(sum, from, part->source) : TW_SOURCE_OTHER);
}

static void slow_rename(tw_segment *sum, const tw_segment *from, tw_slow_record *record, uint64_t count,
                        const uint32_t *sets) {
    record->series = record->series < count ? sets[record->series] : 0;
    for (int i = 0; i < TW_SHARES; i++) {
        tw_share *share = &record->share[i];
        if (share->overlap_ns != 0 && share->source < TW_SOURCES)
            share->source = lost_place(sum, from, (uint32_t)share->source);
        else memset(share, 0, sizeof *share);
    }
    for (uint32_t i = 0; i < record->parts.n; i++) part_rename(sum, from, &record->parts.part[i]);
}

/* The newest and the longest of both, numbered so that slow_head stays what was ever written. */
static int slow_add(tw_segment *sum, const tw_segment *from, uint64_t count, const uint32_t *sets) {
    tw_slow_record *all = tw_malloc(2 * TW_SLOW_KEPT * sizeof *all);
    if (all == NULL) return ENOMEM;
    const size_t before = tw_slow_gaps_read(sum, all), n = before + tw_slow_gaps_read(from, all + before);
    for (size_t i = before; i < n; i++) slow_rename(sum, from, &all[i], count, sets);
    qsort(all, n, sizeof *all, slow_compare);
    uint64_t head = sum->slow_head + tw_load(&from->slow_head);
    if (head < n) head = n; /* one that lies */
    memset(sum->slow_longest, 0, sizeof sum->slow_longest);
    for (size_t i = 0; i < n; i++) {
        const uint64_t number = head - n + i;
        all[i].seq = number + 1;
        sum->slow[number % TW_SLOW_RING] = all[i];
        tw_slow_keep(sum->slow_longest, &all[i]);
    }
    sum->slow_head = head;
    tw_free(all);
    return 0;
}

/* ---- fallbacks ---- */

static void fallbacks_add(tw_segment *sum, const tw_segment *from) {
    char shape[TW_SHAPE_WORDS * 8], reason[TW_FALLBACK_REASON_WORDS * 8];
    const uint64_t count = tw_load_acquire(&from->fallback_count);
    for (uint64_t i = 0; i < count && i < TW_FALLBACKS; i++) {
        const tw_fallback *kind = &from->fallbacks[i];
        tw_words_get(kind->shape, TW_SHAPE_WORDS, shape);
        tw_words_get(kind->reason, TW_FALLBACK_REASON_WORDS, reason);
        tw_segment_fallback(sum, shape, strlen(shape), reason, strlen(reason), tw_load(&kind->count));
    }
}

/* ---- the whole ---- */

tw_segment *tw_retired_begin(const uint64_t role[TW_ROLE_WORDS], uint64_t place, bool served) {
    tw_segment *sum;
    if (tw_segment_create(&sum, "", TW_RETIRED_SETS, served, NULL, 0) != 0) return NULL;
    tw_header *h = &sum->header;
    for (int i = 0; i < TW_ROLE_WORDS; i++) sum->lost[0].role[i] = h->role[i] = tw_load(&role[i]);
    h->place = place;
    h->pid = h->start_time = 0;
    h->ended = 1;
    return sum;
}

int tw_retired_add(tw_segment *sum, const tw_segment *from) {
    uint32_t sets[TW_LABEL_SETS_LIMIT] = {0};
    const uint64_t in_use = tw_load_acquire(&from->series_count);
    const uint64_t count = in_use < TW_LABEL_SETS_LIMIT ? in_use : TW_LABEL_SETS_LIMIT;
    counters_add(sum, from);
    if (from->header.created.monotonic_ns < sum->header.created.monotonic_ns)
        sum->header.created = from->header.created;
    sum->slo = from->slo;
    sum->slow_ns = from->slow_ns;
    pauses_add(&sum->pause, &from->pause);
    lost_add(sum, from);
    series_add(sum, from, count, sets);
    for (int at = 0; at < TW_SECONDS; at++) second_add(&sum->seconds[at], &from->seconds[at]);
    fallbacks_add(sum, from);
    tw_steps_add(&sum->steps, &from->steps);
    tw_engine_sums_add(&sum->engine, &from->engine);
    tw_ttft_add(&sum->ttft_by_concurrency, &from->ttft_by_concurrency);
    return slow_add(sum, from, count, sets);
}

size_t tw_retired_close(tw_segment *sum) {
    sum->header.max_label_sets = sum->series_count;
    sum->header.bytes = tw_segment_used(sum);
    return sum->header.bytes + sizeof(tw_retired_list);
}

void tw_retired_free(tw_segment *sum) {
    if (sum != NULL) munmap(sum, sizeof *sum + TW_RETIRED_SETS * sum->header.series_bytes);
}

/* ---- names and the list ---- */

static bool is_plain(const char *role) {
    if (role[0] == '\0' || role[0] == '.') return false;
    for (const char *c = role; *c != '\0'; c++)
        if (!isascii((unsigned char)*c) || (!isalnum((unsigned char)*c) && strchr("_-.", *c) == NULL)) return false;
    return true;
}

static uint64_t mixed(const uint64_t *words, uint32_t n) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (uint32_t i = 0; i < n; i++) {
        hash = (hash ^ tw_load(&words[i])) * UINT64_C(0x9fb21c651e98df25);
        hash ^= hash >> 29;
    }
    return hash;
}

void tw_retired_name(char *out, const uint64_t role[TW_ROLE_WORDS], uint64_t index) {
    char text[TW_ROLE_WORDS * 8];
    tw_words_get(role, TW_ROLE_WORDS, text);
    if (!is_plain(text)) snprintf(text, sizeof text, "=%016llx", (unsigned long long)mixed(role, TW_ROLE_WORDS));
    snprintf(out, TW_GROUP_NAME, "%s-%llu.gone", text, (unsigned long long)index);
}

uint64_t tw_retired_index(const tw_segment *g) {
    const uint64_t place = tw_load(&g->header.place);
    return place == 0 ? 0 : place - 1;
}

const tw_retired_list *tw_retired_of(const void *bytes, size_t len, const char *name) {
    char expected[TW_GROUP_NAME];
    const tw_segment *g = bytes;
    if (!tw_segment_valid(g, len) || g->header.pid != 0) return NULL;
    if (len != g->header.bytes + sizeof(tw_retired_list)) return NULL;
    tw_retired_name(expected, g->header.role, tw_retired_index(g));
    const tw_retired_list *list = (const void *)((const char *)bytes + len - sizeof *list);
    return list->magic == TW_RETIRED_MAGIC && strcmp(name, expected) == 0 ? list : NULL;
}

bool tw_retired_holds(const tw_retired_list *list, const tw_group_id *file) {
    const uint64_t listed = list->count < TW_RETIRED_NAMES ? list->count : TW_RETIRED_NAMES;
    for (uint64_t i = 0; i < listed; i++) {
        const tw_group_id *one = &list->file[i];
        if (one->pid == file->pid && one->start_time == file->start_time && one->joined_ns == file->joined_ns)
            return true;
    }
    return false;
}
