/* Marks of the past: what every histogram and total stood at, on two grids of time.
 *
 * A mark keeps only the parts of a histogram that hold anything, in chunks of 32 slots from one fixed pool. At
 * most 14 + 62 marks are kept; where they need more chunks than there are, the oldest go first, and a window
 * then shows that it is shorter. */
#include "aggregate/snapshot_parts.h"
#include "base/tw_malloc.h"
#include "record/word_sums.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#define FINE_NS (5 * TW_NS_PER_SECOND)
#define FINE_AGE_NS (65 * TW_NS_PER_SECOND)
#define COARSE_NS (60 * TW_NS_PER_SECOND)
#define COARSE_AGE_NS (3660 * TW_NS_PER_SECOND)
#define MARKS 80 /* fine and coarse ones, and the one being written */

#define KINDS (2 * TW_FALLBACKS) /* of fallback that are kept apart; the last is what has no room */

#define CHUNK_SLOTS 32
#define CHUNKS_EACH (TW_SLOTS_MAX / CHUNK_SLOTS)
#define CHUNKS 12288 /* 161 a mark: a busy server fills about 100 */
#define CHUNK_BYTES (CHUNK_SLOTS * sizeof(uint32_t))
#define DELAY_CHUNKS (sizeof(((tw_snapshot_lost *)NULL)->delay_ns) / CHUNK_BYTES) /* of one role */
#define CHUNKS_MOST (TW_METRICS * CHUNKS_EACH + TW_PHASES * TW_OCTAVES + TW_SOURCES * DELAY_CHUNKS) /* of any one mark */
#define NO_CHUNK UINT32_MAX

/* Larger differences than this of a 32-bit count are small steps back: a gap that left its slot when its late
 * part was taken off. */
#define STEP_BACK (UINT32_MAX - UINT32_C(65536))

_Static_assert(TW_SLOTS_MAX % CHUNK_SLOTS == 0 && CHUNKS_EACH <= 32, "a histogram's chunks fit one bit each");
_Static_assert(sizeof(tw_tail) <= CHUNK_SLOTS * sizeof(uint32_t), "a row of the tail fits a chunk");
_Static_assert(DELAY_CHUNKS * CHUNK_BYTES == sizeof(((tw_snapshot_lost *)NULL)->delay_ns) && DELAY_CHUNKS <= 32,
               "a role's delays fill chunks, one bit each");
_Static_assert(TW_OCTAVES <= 32, "a phase's rows fit one bit each");
_Static_assert(CHUNKS > CHUNKS_MOST, "any one mark fits the pool");

typedef struct chunk {
    uint32_t next;
    uint32_t slot[CHUNK_SLOTS];
} chunk;

typedef struct kept_counts {
    uint64_t sum_low, sum_high, min_ns, max_ns;
    uint32_t used; /* bit i: chunk i is kept */
} kept_counts;

typedef struct kept_lost {
    char role[TW_ROLE_WORDS * 8];
    uint64_t overlap_ns[TW_PHASES][TW_CAUSES];
    uint32_t delays_used; /* bit i: chunk i of its delays is kept */
} kept_lost;

/* The plain numbers of a snapshot that differences are made of. */
typedef struct kept_totals {
    TW_SERIES_COUNTERS(TW_COUNTER_FIELD)
    TW_PROCESS_COUNTERS(TW_COUNTER_FIELD)
    uint32_t lost_count;
    uint64_t pause_ns[TW_CAUSES], pauses_lost;
    tw_pause_totals pause[TW_CAUSES];
    tw_policy_counts policy;
} kept_totals;

typedef struct mark {
    tw_clock_pair taken;
    bool coarse;
    kept_totals totals;
    kept_counts counts[TW_METRICS];
    uint32_t tail_used[TW_PHASES]; /* bit o: the row of octave o is kept */
    kept_lost lost[TW_SOURCES];
    uint32_t first, last;          /* its chunks, in the order of the bits */
    uint64_t fallbacks[KINDS];     /* in the order of the history's table */
    tw_label_sets *labels;         /* NULL: not kept */
} mark;

/* Kinds of fallback with their counts. */
typedef struct kinds {
    uint32_t n;
    tw_snapshot_fallback kind[KINDS];
} kinds;

struct tw_history {
    pthread_mutex_t lock;
    uint32_t marks, free_chunk, free_chunks;
    bool keeps_labels;
    uint64_t coarse_at; /* the last time of the coarse grid that has a mark */
    kinds known;        /* every kind a mark has counted; it only grows */
    mark mark[MARKS];   /* oldest first */
    chunk chunk[CHUNKS];
};

/* ---- one label set, one process ---- */

typedef struct merged {
    tw_snapshot snapshot;
    tw_snapshot_series series;
    tw_snapshot_process process;
    kinds fallbacks;
} merged;

static void series_sum(tw_snapshot_series *to, const tw_snapshot *s) {
    strcpy(to->model, "*");
    strcpy(to->route, "*");
    for (uint32_t i = 0; i < s->series_count; i++) {
#define ADD(name, dims) tw_words_add(&to->name, &s->series[i].name, sizeof to->name);
        TW_SERIES_COUNTERS(ADD)
#undef ADD
    }
}

/* One process keeps its name; several become "*". */
static void processes_sum(tw_snapshot_process *to, const tw_snapshot *s) {
    for (uint32_t i = 0; i < s->process_count; i++) tw_snapshot_add_process(to, &s->process[i]);
    strcpy(to->role, "*");
    if (s->process_count != 1) return;
    memcpy(to->role, s->process[0].role, sizeof to->role);
    to->pid = s->process[0].pid;
    to->index = s->process[0].index;
    to->policy.now = s->process[0].policy.now;
}

/* Totals only: the histograms follow one by one. Seconds and slow records are s's own. */
static void merge_totals(merged *m, const tw_snapshot *s) {
    memset(&m->series, 0, sizeof m->series);
    memset(&m->process, 0, sizeof m->process);
    m->snapshot = *s;
    memset(m->snapshot.wait, 0, sizeof m->snapshot.wait);
    m->snapshot.fallbacks = NULL;
    m->snapshot.fallback_count = 0;
    m->snapshot.series = &m->series;
    m->snapshot.process = &m->process;
    m->snapshot.series_count = m->snapshot.process_count = 1;
    series_sum(&m->series, s);
    processes_sum(&m->process, s);
}

static tw_counts **counts_of(merged *m, int metric) {
    if (metric < TW_SERIES_METRICS) return &m->series.metric[metric];
    if (metric < TW_METRIC_PAUSE) return &m->snapshot.wait[metric - TW_METRIC_QUEUE_PROXY];
    return &m->process.stalls[metric - TW_METRIC_PAUSE];
}

static int counts_store(merged *m, int metric, const tw_counts *counts) {
    tw_counts *copy = tw_malloc(sizeof *copy);
    if (!copy) return ENOMEM;
    *copy = *counts;
    *counts_of(m, metric) = copy;
    return 0;
}

static int merge_counts(merged *m, const tw_snapshot *s) {
    tw_counts counts;
    int error = 0;
    for (int metric = 0; metric < TW_METRICS && !error; metric++)
        if (tw_snapshot_metric(s, metric, NULL, NULL, &counts)) error = counts_store(m, metric, &counts);
    return error;
}

static void merged_clear(merged *m) {
    for (int metric = 0; metric < TW_METRICS; metric++) tw_free(*counts_of(m, metric));
}

/* ---- fallbacks ---- */

/* The row of a kind, made if there is room; the last one takes what has none. */
static tw_snapshot_fallback *kind_row(kinds *table, const tw_snapshot_fallback *like) {
    for (uint32_t i = 0; i < table->n; i++) {
        tw_snapshot_fallback *known = &table->kind[i];
        if (tw_snapshot_names_compare(known->shape, known->reason, like->shape, like->reason) == 0) return known;
    }
    if (table->n == KINDS) return &table->kind[KINDS - 1];
    tw_snapshot_fallback *row = &table->kind[table->n++];
    *row = table->n < KINDS ? *like : (tw_snapshot_fallback){.shape = "other", .reason = "other"};
    row->count = 0;
    return row;
}

/* The counts of s in the rows of a table. As the table only grows, a kind without a row of its own has none at any
 * later time either: its counts stand in the last row then and now, and differences are right. */
static void kinds_fill(kinds *table, const tw_snapshot *s) {
    for (uint32_t i = 0; i < table->n; i++) table->kind[i].count = 0;
    for (uint32_t i = 0; i < s->fallback_count; i++) kind_row(table, &s->fallbacks[i])->count += s->fallbacks[i].count;
}

static void kinds_show(merged *m) {
    m->snapshot.fallbacks = m->fallbacks.kind;
    m->snapshot.fallback_count = m->fallbacks.n;
}

static void fallbacks_mark(tw_history *h, mark *m, const tw_snapshot *s) {
    kinds_fill(&h->known, s);
    for (uint32_t i = 0; i < h->known.n; i++) m->fallbacks[i] = h->known.kind[i].count;
}

static void fallbacks_restore(const tw_history *h, const mark *m, merged *out) {
    out->fallbacks = h->known;
    for (uint32_t i = 0; i < h->known.n; i++) out->fallbacks.kind[i].count = m->fallbacks[i];
    kinds_show(out);
}

/* ---- the pool ---- */

static void pool_fill(tw_history *h) {
    for (uint32_t i = 0; i < CHUNKS; i++) h->chunk[i].next = i + 1 < CHUNKS ? i + 1 : NO_CHUNK;
    h->free_chunk = 0;
    h->free_chunks = CHUNKS;
}

/* A chunk at the end of m's; there is one: see make_room. */
static void *chunk_append(tw_history *h, mark *m) {
    uint32_t taken = h->free_chunk;
    h->free_chunk = h->chunk[taken].next;
    h->free_chunks--;
    h->chunk[taken].next = NO_CHUNK;
    if (m->first == NO_CHUNK) m->first = taken;
    else h->chunk[m->last].next = taken;
    m->last = taken;
    return h->chunk[taken].slot;
}

static uint32_t bits(uint32_t word) { return (uint32_t)__builtin_popcount(word); }

static uint32_t chunks_of(const mark *m) {
    uint32_t n = 0;
    for (int i = 0; i < TW_METRICS; i++) n += bits(m->counts[i].used);
    for (int i = 0; i < TW_PHASES; i++) n += bits(m->tail_used[i]);
    for (int i = 0; i < TW_SOURCES; i++) n += bits(m->lost[i].delays_used);
    return n;
}

static void mark_drop(tw_history *h, uint32_t at) {
    mark *m = &h->mark[at];
    if (m->first != NO_CHUNK) {
        h->free_chunks += chunks_of(m);
        h->chunk[m->last].next = h->free_chunk;
        h->free_chunk = m->first;
    }
    tw_label_sets_free(m->labels);
    h->marks--;
    memmove(m, m + 1, (h->marks - at) * sizeof *m);
}

static void make_room(tw_history *h) {
    while (h->marks > 0 && (h->marks >= MARKS || h->free_chunks < CHUNKS_MOST)) mark_drop(h, 0);
}

static void drop_old(tw_history *h, uint64_t now_ns) {
    for (uint32_t i = h->marks; i-- > 0;) {
        uint64_t age = now_ns - h->mark[i].taken.monotonic_ns;
        if (age > (h->mark[i].coarse ? COARSE_AGE_NS : FINE_AGE_NS)) mark_drop(h, i);
    }
}

/* ---- writing a mark ---- */

/* Where each of the kept totals comes from. */
typedef struct kept_field {
    size_t kept, merged, bytes;
} kept_field;

#define KEPT_AS(name, member) \
    {offsetof(kept_totals, name), offsetof(merged, member), sizeof(((kept_totals *)NULL)->name)},
#define OF_SERIES(name, dims) KEPT_AS(name, series.name)
#define OF_SNAPSHOT(name, dims) KEPT_AS(name, snapshot.name)
#define OF_PROCESS(name) KEPT_AS(name, process.name)

static const kept_field kept_fields[] = {
    TW_SERIES_COUNTERS(OF_SERIES) TW_PROCESS_COUNTERS(OF_SNAPSHOT)
    KEPT_AS(lost_count, snapshot.lost_count)
    OF_PROCESS(pause_ns) OF_PROCESS(pauses_lost) OF_PROCESS(pause) KEPT_AS(policy, process.policy.counts)
};

#define KEPT_FIELDS (sizeof kept_fields / sizeof *kept_fields)

static void totals_keep(kept_totals *to, const merged *m) {
    for (size_t i = 0; i < KEPT_FIELDS; i++)
        memcpy((char *)to + kept_fields[i].kept, (const char *)m + kept_fields[i].merged, kept_fields[i].bytes);
}

static void totals_restore(merged *m, const kept_totals *from) {
    for (size_t i = 0; i < KEPT_FIELDS; i++)
        memcpy((char *)m + kept_fields[i].merged, (const char *)from + kept_fields[i].kept, kept_fields[i].bytes);
}

static uint32_t used_chunks(const tw_counts *c) {
    uint32_t used = 0;
    for (uint32_t i = 0; i < TW_SLOTS_MAX; i++)
        if (c->slot[i]) used |= UINT32_C(1) << i / CHUNK_SLOTS;
    return used;
}

static void counts_mark(tw_history *h, mark *m, int metric, const tw_counts *c) {
    kept_counts *to = &m->counts[metric];
    *to = (kept_counts){c->sum_low, c->sum_high, c->min_ns, c->max_ns, used_chunks(c)};
    for (uint32_t i = 0; i < CHUNKS_EACH; i++) {
        if (!(to->used >> i & 1)) continue;
        uint32_t *slots = chunk_append(h, m);
        for (uint32_t j = 0; j < CHUNK_SLOTS; j++) slots[j] = (uint32_t)c->slot[i * CHUNK_SLOTS + j];
    }
}

static void tail_mark(tw_history *h, mark *m, const tw_snapshot *s) {
    for (int phase = 0; phase < TW_PHASES; phase++)
        for (uint32_t octave = 0; octave < TW_OCTAVES; octave++) {
            const tw_tail *row = &s->tail[phase][octave];
            if (row->count == 0) continue;
            m->tail_used[phase] |= UINT32_C(1) << octave;
            memcpy(chunk_append(h, m), row, sizeof *row);
        }
}

static void lost_mark(tw_history *h, mark *m, const tw_snapshot *s) {
    static const char zero[CHUNK_BYTES];
    for (uint32_t i = 0; i < s->lost_count; i++) {
        const char *delays = (const char *)s->lost[i].delay_ns;
        kept_lost *to = &m->lost[i];
        memcpy(to->role, s->lost[i].role, sizeof to->role);
        memcpy(to->overlap_ns, s->lost[i].overlap_ns, sizeof to->overlap_ns);
        for (size_t part = 0; part < DELAY_CHUNKS; part++) {
            if (memcmp(delays + part * CHUNK_BYTES, zero, CHUNK_BYTES) == 0) continue;
            to->delays_used |= UINT32_C(1) << part;
            memcpy(chunk_append(h, m), delays + part * CHUNK_BYTES, CHUNK_BYTES);
        }
    }
}

static void mark_append(tw_history *h, const tw_snapshot *s, bool coarse) {
    make_room(h);
    mark *m = &h->mark[h->marks++];
    memset(m, 0, sizeof *m);
    m->taken = s->taken;
    m->coarse = coarse;
    m->first = m->last = NO_CHUNK;
    merged totals;
    merge_totals(&totals, s);
    totals_keep(&m->totals, &totals);
    tw_counts counts;
    for (int metric = 0; metric < TW_METRICS; metric++)
        if (tw_snapshot_metric(s, metric, NULL, NULL, &counts)) counts_mark(h, m, metric, &counts);
    tail_mark(h, m, s);
    lost_mark(h, m, s);
    fallbacks_mark(h, m, s);
    if (h->keeps_labels) m->labels = tw_label_sets_keep(s);
}

int tw_history_push(tw_history *h, const tw_snapshot *s) {
    pthread_mutex_lock(&h->lock);
    uint64_t now = s->taken.monotonic_ns, last = h->marks ? h->mark[h->marks - 1].taken.monotonic_ns : 0;
    if (h->marks == 0 || (now > last && now / FINE_NS != last / FINE_NS)) {
        bool coarse = now / COARSE_NS != h->coarse_at;
        drop_old(h, now);
        mark_append(h, s, coarse);
        if (coarse) h->coarse_at = now / COARSE_NS;
    }
    pthread_mutex_unlock(&h->lock);
    return 0;
}

/* ---- reading one ---- */

/* A 32-bit count made whole again: the 64-bit one that is nearest below what it has become. */
static uint64_t widen(uint64_t now, uint32_t kept) {
    uint32_t difference = (uint32_t)now - kept;
    return difference > STEP_BACK ? now + (uint32_t)-difference : now - difference;
}

static const uint32_t *chunk_next(const tw_history *h, uint32_t *at) {
    const chunk *c = &h->chunk[*at];
    *at = c->next;
    return c->slot;
}

static void counts_restore(const tw_history *h, const kept_counts *from, uint32_t *at, const tw_counts *now,
                           tw_counts *out) {
    tw_counts_init(out);
    out->sum_low = from->sum_low;
    out->sum_high = from->sum_high;
    out->min_ns = from->min_ns;
    out->max_ns = from->max_ns;
    for (uint32_t i = 0; i < CHUNKS_EACH; i++) {
        if (!(from->used >> i & 1)) continue;
        const uint32_t *slots = chunk_next(h, at);
        for (uint32_t j = 0; j < CHUNK_SLOTS; j++) {
            uint32_t slot = i * CHUNK_SLOTS + j;
            out->slot[slot] = widen(now ? now->slot[slot] : slots[j], slots[j]);
            out->count += out->slot[slot];
        }
    }
}

static void tail_restore(const tw_history *h, const mark *m, uint32_t *at, tw_snapshot *s) {
    memset(s->tail, 0, sizeof s->tail);
    for (int phase = 0; phase < TW_PHASES; phase++)
        for (uint32_t octave = 0; octave < TW_OCTAVES; octave++)
            if (m->tail_used[phase] >> octave & 1) memcpy(&s->tail[phase][octave], chunk_next(h, at), sizeof(tw_tail));
}

static void lost_restore(const tw_history *h, const mark *m, uint32_t *at, tw_snapshot *s) {
    memset(s->lost, 0, sizeof s->lost);
    for (uint32_t i = 0; i < s->lost_count; i++) {
        const kept_lost *from = &m->lost[i];
        memcpy(s->lost[i].role, from->role, sizeof from->role);
        memcpy(s->lost[i].overlap_ns, from->overlap_ns, sizeof from->overlap_ns);
        for (size_t part = 0; part < DELAY_CHUNKS; part++)
            if (from->delays_used >> part & 1)
                memcpy((char *)s->lost[i].delay_ns + part * CHUNK_BYTES, chunk_next(h, at), CHUNK_BYTES);
    }
}

/* What stood when m was written, in the shape of now. */
static int mark_restore(const tw_history *h, const mark *m, merged *now, merged *out) {
    merge_totals(out, &now->snapshot);
    out->snapshot.taken = m->taken;
    totals_restore(out, &m->totals);
    fallbacks_restore(h, m, out);
    uint32_t at = m->first;
    int error = 0;
    for (int metric = 0; metric < TW_METRICS && !error; metric++) {
        if (m->counts[metric].used == 0) continue;
        tw_counts counts;
        counts_restore(h, &m->counts[metric], &at, *counts_of(now, metric), &counts);
        error = counts_store(out, metric, &counts);
    }
    if (!error) tail_restore(h, m, &at, &out->snapshot);
    if (!error) lost_restore(h, m, &at, &out->snapshot);
    return error;
}

/* Before anything was counted. */
static void start_restore(const merged *now, merged *out) {
    memset(out, 0, sizeof *out);
    out->snapshot.taken.monotonic_ns = now->snapshot.taken.monotonic_ns - now->snapshot.window_ns;
}

static uint64_t distance(uint64_t a, uint64_t b) { return a > b ? a - b : b - a; }

/* The mark whose age is nearest to the window; NULL: the start is nearer than any. */
static const mark *mark_nearest(const tw_history *h, const tw_snapshot *now, uint64_t window_ns) {
    const mark *nearest = NULL;
    uint64_t off = distance(now->window_ns, window_ns);
    for (uint32_t i = 0; i < h->marks; i++) {
        uint64_t taken = h->mark[i].taken.monotonic_ns;
        if (taken >= now->taken.monotonic_ns) continue;
        uint64_t away = distance(now->taken.monotonic_ns - taken, window_ns);
        if (away > off) continue;
        off = away;
        nearest = &h->mark[i];
    }
    return nearest;
}

static int then_restore(const tw_history *h, const tw_snapshot *s, merged *now, uint64_t window_ns, merged *out) {
    pthread_mutex_t *lock = (pthread_mutex_t *)&h->lock;
    pthread_mutex_lock(lock);
    now->fallbacks = h->known;
    kinds_fill(&now->fallbacks, s);
    kinds_show(now);
    const mark *m = mark_nearest(h, &now->snapshot, window_ns);
    int error = 0;
    if (m) error = mark_restore(h, m, now, out);
    else start_restore(now, out);
    bool empty = h->marks == 0;
    pthread_mutex_unlock(lock);
    return error ? error : empty ? ENODATA : 0;
}

int tw_history_window(const tw_history *h, const tw_snapshot *now, uint64_t window_ns, tw_snapshot **out) {
    merged later, earlier;
    *out = NULL;
    memset(&earlier, 0, sizeof earlier);
    merge_totals(&later, now);
    int error = merge_counts(&later, now), found = 0;
    if (!error) found = then_restore(h, now, &later, window_ns, &earlier);
    if (!error && found != ENOMEM) error = tw_snapshot_subtract(out, &later.snapshot, &earlier.snapshot);
    merged_clear(&later);
    merged_clear(&earlier);
    return error ? error : found;
}

/* ---- by label set ---- */

void tw_history_keep_labels(tw_history *h) {
    pthread_mutex_lock(&h->lock);
    h->keeps_labels = true;
    pthread_mutex_unlock(&h->lock);
}

size_t tw_history_label_bytes(const tw_history *h) {
    pthread_mutex_t *lock = (pthread_mutex_t *)&h->lock;
    size_t bytes = 0;
    pthread_mutex_lock(lock);
    for (uint32_t i = 0; i < h->marks; i++) bytes += tw_label_sets_bytes(h->mark[i].labels);
    pthread_mutex_unlock(lock);
    return bytes;
}

static int labels_restore(const tw_history *h, const tw_snapshot *now, uint64_t window_ns, tw_snapshot *out) {
    pthread_mutex_t *lock = (pthread_mutex_t *)&h->lock;
    pthread_mutex_lock(lock);
    const mark *m = mark_nearest(h, now, window_ns);
    int error = 0;
    if (m) {
        out->taken = m->taken;
        error = m->labels ? tw_label_sets_show(m->labels, out) : ENODATA;
    }
    pthread_mutex_unlock(lock);
    return error;
}

int tw_history_window_of_labels(const tw_history *h, const tw_snapshot *now, uint64_t window_ns, tw_snapshot **out) {
    tw_snapshot earlier;
    *out = NULL;
    memset(&earlier, 0, sizeof earlier);
    earlier.taken.monotonic_ns = now->taken.monotonic_ns - now->window_ns;
    int error = labels_restore(h, now, window_ns, &earlier);
    if (!error) error = tw_snapshot_subtract(out, now, &earlier);
    tw_snapshot_free_series(&earlier);
    return error;
}

/* ---- life ---- */

int tw_history_create(tw_history **out) {
    *out = NULL;
    tw_history *h = tw_calloc(1, sizeof *h);
    if (!h) return ENOMEM;
    if (pthread_mutex_init(&h->lock, NULL)) {
        tw_free(h);
        return ENOMEM;
    }
    pool_fill(h);
    h->coarse_at = UINT64_MAX;
    *out = h;
    return 0;
}

void tw_history_free(tw_history *h) {
    if (!h) return;
    for (uint32_t i = 0; i < h->marks; i++) tw_label_sets_free(h->mark[i].labels);
    pthread_mutex_destroy(&h->lock);
    tw_free(h);
}

size_t tw_history_bytes(void) { return sizeof(tw_history); }
