#include "tailwatch/stamp/stream.h"

#include <string.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/record/event_recorder.h"
#include "tailwatch/attribute/engine_id.h"

#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define RARE __attribute__((noinline, cold))

#define ALERT_NS (20 * TW_NS_PER_MS)       /* a gap below this is never slow of itself */
#define ALERT_TYPICALS 4                   /* nor one below so many typical gaps */
#define ALERT_UNKNOWN_NS TW_NS_PER_SECOND  /* without a typical gap, pauses apart */
#define TYPICAL_EVERY 8                    /* gaps between two looks at the median; a power of two */
#define TYPICAL_FEWEST 4                   /* fewer gaps say nothing about what is typical */
#define SLACK_MAX (UINT64_C(1) << 62)      /* slack + deadline stays below 2^64 */
#define RECENT_SHIFT 6                     /* recent64: 64 ns units */

__extension__ typedef unsigned __int128 wide;

static uint64_t since(uint64_t later, uint64_t earlier) { return later > earlier ? later - earlier : 0; }
static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- the typical gap ---- */

/* Four at a time, with the vectors that every 64-bit machine has. */
typedef int32_t lanes __attribute__((vector_size(16)));

static inline lanes lanes_all(int32_t value) { return (lanes){value, value, value, value}; }
static inline lanes lanes_most(lanes a, lanes b) {
    lanes first = a > b;
    return (a & first) | (b & ~first);
}

/* The median of 16 by rank, without a branch on the values: the lower middle is the largest that fewer than 8
 * are below, the upper one the largest that fewer than 9 are. */
static uint32_t median_of_recent(const uint32_t *recent) {
    lanes a, b, c, d, below_a = lanes_all(0), below_b = below_a, below_c = below_a, below_d = below_a;
    memcpy(&a, recent, sizeof a);
    memcpy(&b, recent + 4, sizeof b);
    memcpy(&c, recent + 8, sizeof c);
    memcpy(&d, recent + 12, sizeof d);
    for (int i = 0; i < TW_RECENT; ++i) {
        lanes other = lanes_all((int32_t)recent[i]);
        below_a -= other < a; /* a true lane is -1 */
        below_b -= other < b;
        below_c -= other < c;
        below_d -= other < d;
    }
    lanes low = lanes_all(TW_RECENT / 2), high = lanes_all(TW_RECENT / 2 + 1);
    lanes lower = lanes_most(lanes_most(a & (below_a < low), b & (below_b < low)),
                             lanes_most(c & (below_c < low), d & (below_d < low)));
    lanes upper = lanes_most(lanes_most(a & (below_a < high), b & (below_b < high)),
                             lanes_most(c & (below_c < high), d & (below_d < high)));
    int32_t middle[2] = {0, 0};
    for (int i = 0; i < 4; ++i) {
        if (lower[i] > middle[0]) middle[0] = lower[i];
        if (upper[i] > middle[1]) middle[1] = upper[i];
    }
    return ((uint32_t)middle[0] + (uint32_t)middle[1]) / 2;
}

/* The median of n values, 1 .. 16. Sorts them. */
static uint64_t median_sorting(uint64_t *value, uint32_t n) {
    for (uint32_t i = 1; i < n; ++i) {
        uint64_t moved = value[i];
        uint32_t at = i;
        for (; at > 0 && value[at - 1] > moved; --at) value[at] = value[at - 1];
        value[at] = moved;
    }
    uint64_t lower = value[(n - 1) / 2], upper = value[n / 2];
    return lower + (upper - lower) / 2;
}

/* Of the gaps there are, when they do not fill the ring. */
static uint64_t median_of_few(const tw_stream *s, uint32_t gaps) {
    uint64_t value[TW_RECENT];
    for (uint32_t i = 0; i < gaps; ++i) value[i] = (uint64_t)s->recent64[i] << RECENT_SHIFT;
    return most(median_sorting(value, gaps), 1);
}

static uint64_t series_typical(const tw_series *series) {
    uint64_t value[16];
    uint32_t n = (uint32_t)least(tw_load(&series->typical_next), 16);
    for (uint32_t i = 0; i < n; ++i) value[i] = tw_load(&series->typical_ns[i]);
    return n > 0 ? median_sorting(value, n) : 0;
}

uint64_t tw_stream_typical_ns(const tw_stream *s) {
    uint64_t gaps = since(s->messages, 1);
    if (s->typical_ns != 0 || gaps < TYPICAL_FEWEST) return s->typical_ns;
    return median_of_few(s, (uint32_t)least(gaps, TW_RECENT));
}

/* Which gaps are slow. A typical gap is at most 137 s (recent64). */
static uint64_t slow_limit(const tw_segment *g, uint64_t typical_ns, bool paused) {
    if (g->slow_ns != 0) return g->slow_ns - 1;
    if (typical_ns != 0) return most(ALERT_NS, typical_ns * ALERT_TYPICALS);
    return paused ? ALERT_NS : ALERT_UNKNOWN_NS;
}

/* While no typical gap is known, every gap that a pause could make slow is looked at. */
static void typical_set(tw_stream *s, uint64_t typical_ns) {
    s->typical_ns = typical_ns;
    s->alert_ns = slow_limit(s->segment, typical_ns, true);
}

/* Every TYPICAL_EVERY gaps. 0 means unknown, so a typical gap is at least 1 ns. */
static __attribute__((noinline)) void typical_refresh(tw_stream *s, uint64_t gaps) {
    uint64_t typical_ns = gaps < TW_RECENT ? median_of_few(s, (uint32_t)gaps)
                                           : most((uint64_t)median_of_recent(s->recent64) << RECENT_SHIFT, 1);
    typical_set(s, typical_ns);
    uint64_t next = tw_load(&s->series->typical_next);
    tw_store(&s->series->typical_ns[next % 16], typical_ns);
    tw_store(&s->series->typical_next, next + 1);
}

/* ---- pauses inside a wait ---- */

/* What pauses did to one interval, by the source they came from. */
typedef struct delay {
    tw_blame blame;
    uint32_t sources;               /* those from here on have nothing */
    uint64_t late[TW_SOURCES][TW_CAUSES];
    uint64_t late_ns;
} delay;

/* Not inlined: a process without a group pays for no loop. */
static __attribute__((noinline)) bool company_quiet(const tw_stream *s, uint64_t from) {
    return tw_company_quiet_since(s->company, s->unit, from);
}

static inline bool others_quiet(const tw_stream *s, uint64_t from) { return s->company == NULL || company_quiet(s, from); }

static void blame_own(const tw_stream *s, uint64_t from, uint64_t to, tw_blame *out) {
    tw_overlap own;
    tw_pause_overlap(&s->segment->pause, from, to, &own);
    memcpy(out->overlap_ns[0], own.by_cause, sizeof out->overlap_ns[0]);
    out->total_ns = own.total_ns;
    out->complete = own.complete;
}

/* What the pauses of [from, to] were; false when there were none. */
static bool delay_find(tw_stream *s, uint64_t from, uint64_t to, delay *d) {
    memset(d, 0, sizeof *d);
    d->blame.complete = true;
    d->sources = 1;
    const bool alone = others_quiet(s, from);
    if (alone && tw_pause_quiet_since(&s->segment->pause, from)) return false;
    if (!alone) {
        d->sources = TW_SOURCES;
        tw_blame_gap(&s->segment->pause, s->company->peer, s->company->n, s->unit, from, to, &d->blame);
    } else {
        blame_own(s, from, to, &d->blame);
    }
    if (!d->blame.complete) tw_add(&s->segment->drops[TW_DROP_UNKNOWN_GAP], 1);
    return true;
}

/* Splits late over sources and causes in proportion to their overlap. By differences of a running share: the parts
 * sum to the whole, and none exceeds its overlap. */
static void delay_split(delay *d, uint64_t late_ns) {
    uint64_t seen = 0, given = 0;
    d->late_ns = late_ns;
    for (uint32_t i = 0; i < d->sources * TW_CAUSES && late_ns > 0; ++i) {
        seen += d->blame.overlap_ns[i / TW_CAUSES][i % TW_CAUSES];
        uint64_t share = (uint64_t)((wide)late_ns * seen / d->blame.total_ns);
        d->late[i / TW_CAUSES][i % TW_CAUSES] = share - given;
        given = share;
    }
}

static void source_book(tw_lost *lost, tw_phase phase, const uint64_t *overlap_ns, const uint64_t *late_ns) {
    for (int cause = 0; cause < TW_CAUSES; ++cause) {
        if (overlap_ns[cause] == 0) continue;
        tw_add(&lost->overlap_ns[phase][cause], overlap_ns[cause]);
        tw_add(&lost->late_ns[phase][cause], late_ns[cause]);
    }
}

static void delay_book(tw_stream *s, tw_phase phase, const delay *d) {
    for (uint32_t source = 0; source < d->sources; ++source)
        source_book(&s->segment->lost[source], phase, d->blame.overlap_ns[source], d->late[source]);
    s->overlap_ns += d->blame.total_ns;
    s->late_ns += d->late_ns;
}

static uint64_t sum_of_causes(const uint64_t *by_cause) {
    uint64_t sum = 0;
    for (int cause = 0; cause < TW_CAUSES; ++cause) sum += by_cause[cause];
    return sum;
}

/* By cause, of all sources. */
static void sum_of_sources(const uint64_t (*by_source)[TW_CAUSES], uint32_t sources, uint64_t *out) {
    memset(out, 0, TW_CAUSES * sizeof *out);
    for (uint32_t i = 0; i < sources * TW_CAUSES; ++i) out[i % TW_CAUSES] += by_source[i / TW_CAUSES][i % TW_CAUSES];
}

/* ---- its events ---- */

static inline void record(const tw_stream *s, tw_kind kind, uint64_t now_ns, uint64_t a, uint64_t n, uint64_t value) {
    const uint64_t tokens = least(n, UINT32_MAX), choice = least(a, UINT8_MAX);
    tw_record(s->trace, now_ns, tw_what(kind, (uint32_t)choice, s->series_index, (uint32_t)tokens), s->number, value);
}

static void record_delay(const tw_stream *s, uint64_t now_ns, tw_phase phase, const delay *d) {
    if (s->trace == NULL || d->blame.total_ns == 0) return;
    const uint32_t overlap_us = (uint32_t)least(d->blame.total_ns / 1000, UINT32_MAX);
    tw_record(s->trace, now_ns, tw_what(TW_KIND_DELAY, phase, tw_unit_mark(s->unit), overlap_us), s->number, d->late_ns);
}

static RARE void record_message(const tw_stream *s, uint64_t now_ns, uint32_t n, uint32_t choice, bool first, uint64_t gap) {
    record(s, first ? TW_KIND_FIRST : TW_KIND_TOKEN, now_ns, choice, n, first ? s->arrival_ns : gap);
}

void tw_stream_trace(tw_stream *s, tw_recorder *trace) {
    s->trace = trace;
    s->number = tw_load(&s->segment->opened); /* also where recording began anew, with this one still open */
    record(s, TW_KIND_OPEN, s->entry_ns, (uint64_t)s->source, 0, s->arrival_ns);
}

/* ---- where a long wait went ---- */

typedef struct wait {
    tw_phase phase;
    uint64_t end_ns, length_ns, typical_ns, client_ns, accept_ns, unexplained_ns;
} wait;

static uint64_t counted_tokens(const tw_stream *s) {
    uint64_t tokens = s->other_tokens;
    for (int i = 0; i < TW_CHOICES; ++i) tokens += s->choice[i].tokens;
    return tokens;
}

static void wait_explain(wait *w, const delay *d) {
    uint64_t rest = since(w->length_ns, w->typical_ns);
    rest = since(rest, d->late_ns);
    rest = since(rest, w->client_ns);
    w->unexplained_ns = since(rest, w->accept_ns);
}

static void tail_add(tw_segment *g, const wait *w, const delay *d) {
    tw_tail *tail = &g->tail[w->phase][tw_octave_of(w->length_ns)];
    tw_add(&tail->count, 1);
    tw_add(&tail->time_ns, w->length_ns);
    for (uint32_t i = 0; i < d->sources * TW_CAUSES; ++i)
        tw_add(&tail->late_ns[i % TW_CAUSES], d->late[i / TW_CAUSES][i % TW_CAUSES]);
    tw_add(&tail->client_ns, w->client_ns);
    tw_add(&tail->accept_ns, w->accept_ns);
    tw_add(&tail->unexplained_ns, w->unexplained_ns);
}

static void words_copy(uint64_t *to, const uint64_t *from, size_t n) {
    for (size_t i = 0; i < n; ++i) tw_store_release(&to[i], from[i]);
}

enum { SHARE_WORDS = 4 };
_Static_assert(sizeof(tw_share) == SHARE_WORDS * sizeof(uint64_t), "a share is words");

/* Which of the shares has the least overlap: the one to give up for a larger. */
static tw_share *least_share(tw_share *share) {
    tw_share *least = share;
    for (int i = 1; i < TW_SHARES; ++i)
        if (share[i].overlap_ns < least->overlap_ns) least = &share[i];
    return least;
}

/* The largest shares of other processes. */
static void shares_of(const delay *d, tw_share *out) {
    memset(out, 0, TW_SHARES * sizeof *out);
    for (uint32_t i = TW_CAUSES; i < d->sources * TW_CAUSES; ++i) {
        const uint32_t source = i / TW_CAUSES, cause = i % TW_CAUSES;
        tw_share *place = least_share(out);
        if (d->blame.overlap_ns[source][cause] > place->overlap_ns)
            *place = (tw_share){source, cause, d->blame.overlap_ns[source][cause], d->late[source][cause]};
    }
}

/* The record is invalid while it is written; its number is stored last. Each word is released, so that a reader
 * that saw a new one sees the cleared number too. */
static void slow_add(tw_stream *s, const wait *w, const delay *d) {
    tw_segment *g = s->segment;
    uint64_t n = tw_load(&g->slow_head), by_cause[TW_CAUSES];
    tw_share share[TW_SHARES];
    tw_slow_record *r = &g->slow[n % TW_SLOW_RING];
    tw_store_release(&r->seq, 0);
    tw_store_release(&r->end_ns, w->end_ns);
    tw_store_release(&r->phase, (uint64_t)w->phase);
    tw_store_release(&r->gap_ns, w->length_ns);
    tw_store_release(&r->typical_ns, w->typical_ns);
    sum_of_sources(d->blame.overlap_ns, d->sources, by_cause);
    words_copy(r->overlap_ns, by_cause, TW_CAUSES);
    sum_of_sources(d->late, d->sources, by_cause);
    words_copy(r->late_ns, by_cause, TW_CAUSES);
    shares_of(d, share);
    words_copy((uint64_t *)r->share, (const uint64_t *)share, TW_SHARES * SHARE_WORDS);
    tw_store_release(&r->client_ns, w->client_ns);
    tw_store_release(&r->accept_ns, w->accept_ns);
    tw_store_release(&r->unexplained_ns, w->unexplained_ns);
    tw_store_release(&r->complete, d->blame.complete);
    tw_store_release(&r->series, s->series_index);
    tw_store_release(&r->token, counted_tokens(s) + 1);
    words_copy(r->request_id, s->request_id, TW_ID_WORDS);
    words_copy(r->trace_id, s->trace_id, TW_TRACE_WORDS);
    tw_store_release(&r->seq, n + 1);
    tw_store_release(&g->slow_head, n + 1);
    s->slow_number[s->slow++ % TW_STREAM_SLOW] = n;
}

/* ---- exemplars ---- */

/* After the sample, and only where the path is slow already. */
static RARE void exemplar_add(const tw_stream *s, tw_exemplar_metric metric, const tw_layout *layout, uint64_t value_ns,
                              uint64_t now_ns) {
    const uint64_t key = tw_exemplar_key(s->series_index, metric, tw_bound_of(layout, value_ns));
    tw_exemplar_put(s->segment->exemplars, key, value_ns, now_ns, s->trace_id);
}

/* ---- one gap ---- */

/* A gap over the alert, or one that a pause may have touched. Returns its late part. */
static RARE uint64_t gap_examine(tw_stream *s, uint64_t now_ns) {
    delay d;
    uint64_t from = s->last_ns, gap = now_ns - from, typical = tw_stream_typical_ns(s);
    if (delay_find(s, from, now_ns, &d) && d.blame.total_ns > 0) {
        uint64_t room = typical != 0 && d.blame.complete ? since(gap, typical) : 0;
        delay_split(&d, least(d.blame.total_ns, room));
        delay_book(s, TW_PHASE_ITL, &d);
        const uint64_t own_ns = sum_of_causes(d.blame.overlap_ns[0]);
        if (own_ns > 0) tw_pause_charge(&s->segment->pause, from, now_ns, own_ns, sum_of_causes(d.late[0]));
        if (d.late_ns > 0) tw_histogram_move(&s->series->itl_shift, s->itl_layout, gap, gap - d.late_ns);
    }
    wait w = {TW_PHASE_ITL, now_ns, gap, typical, least(s->client_ns, gap), 0, 0};
    wait_explain(&w, &d);
    bool slow = gap > slow_limit(s->segment, typical, d.blame.total_ns > 0);
    if (slow || d.late_ns > 0) tail_add(s->segment, &w, &d);
    if (slow) slow_add(s, &w, &d);
    if (s->exemplary) exemplar_add(s, TW_EXEMPLAR_ITL, s->itl_layout, gap, now_ns);
    record_delay(s, now_ns, TW_PHASE_ITL, &d);
    return d.late_ns;
}

/* rest: the gap without its late part. */
static inline void gap_record(tw_stream *s, uint64_t gap, uint64_t rest) {
    tw_histogram_record(&s->series->itl, s->itl_layout, gap);
    if (gap > s->worst_gap_ns) s->worst_gap_ns = gap;
    uint64_t units = rest >> RECENT_SHIFT, gaps = s->messages;
    s->recent64[(gaps - 1) % TW_RECENT] = (uint32_t)(units < INT32_MAX ? units : INT32_MAX);
    s->messages = gaps + 1;
    s->client_ns = 0;
    if (UNLIKELY(gaps % TYPICAL_EVERY == 0)) typical_refresh(s, gaps);
}

/* ---- fluidity ---- */

static uint64_t add_capped(uint64_t a, uint64_t b, uint64_t cap) { return a < cap && b < cap - a ? a + b : cap; }

static inline void deadlines_count(tw_stream *s, uint64_t due, uint64_t met) {
    s->due += due;
    s->met += met;
    tw_add(&s->segment->deadlines_due, due);
    tw_add(&s->segment->deadlines_met, met);
}

/* The tokens of a message beyond its first: they come at once, and each leaves a whole deadline of slack. */
static RARE void deadlines_at_once(tw_stream *s, uint32_t more) {
    wide gained = (wide)more * s->deadline_ns;
    s->slack_ns = add_capped(s->slack_ns, gained < SLACK_MAX ? (uint64_t)gained : SLACK_MAX, SLACK_MAX);
    deadlines_count(s, more, more);
}

/* Late by waited - slack - deadline: every deadline passed meanwhile is missed, and the slack is gone. */
static RARE void deadlines_miss(tw_stream *s, uint64_t over, uint64_t deadline) {
    s->slack_ns = 0;
    deadlines_count(s, over / deadline + 1, 0);
}

/* waited: since the last token, or since arrival. */
static inline void deadlines_judge(tw_stream *s, uint64_t waited, uint64_t deadline, uint32_t n) {
    if (s->deadline_ns == 0) return;
    uint64_t budget = s->slack_ns + deadline;
    if (UNLIKELY(waited > budget)) {
        deadlines_miss(s, waited - budget, deadline);
    } else {
        s->slack_ns = least(budget - waited, SLACK_MAX);
        deadlines_count(s, 1, 1);
    }
    if (UNLIKELY(n > 1)) deadlines_at_once(s, n - 1);
}

/* ---- tokens ---- */

static void first_token_examine(tw_stream *s, uint64_t now_ns, uint64_t ttft) {
    delay d;
    tw_blame before; /* the app was entered: only this process can have stood in the way */
    tw_segment *g = s->segment;
    uint64_t entry = least(s->entry_ns, now_ns);
    if (delay_find(s, s->arrival_ns, now_ns, &d) && d.blame.total_ns > 0) {
        memset(&before, 0, sizeof before);
        if (d.blame.complete && entry > s->arrival_ns) blame_own(s, s->arrival_ns, entry, &before);
        memcpy(d.late[0], before.overlap_ns[0], sizeof d.late[0]);
        d.late_ns = before.total_ns;
        delay_book(s, TW_PHASE_TTFT, &d);
        if (d.late_ns > 0) tw_pause_charge(&g->pause, s->arrival_ns, entry, d.late_ns, d.late_ns);
        uint64_t after = sum_of_causes(d.blame.overlap_ns[0]) - d.late_ns;
        if (after > 0) tw_pause_charge(&g->pause, d.late_ns > 0 ? entry : s->arrival_ns, now_ns, after, 0);
    }
    wait w = {TW_PHASE_TTFT, now_ns, ttft, 0, least(s->client_ns, ttft), since(entry - s->arrival_ns, d.late_ns), 0};
    wait_explain(&w, &d);
    bool slow = (s->slo.ttft_ns != 0 && ttft > s->slo.ttft_ns) || (g->slow_ns != 0 && ttft >= g->slow_ns);
    if (slow || d.late_ns > 0) tail_add(g, &w, &d);
    if (slow) slow_add(s, &w, &d);
    record_delay(s, now_ns, TW_PHASE_TTFT, &d);
}

/* It waits no more. */
static void run(tw_stream *s) {
    if (s->running) return;
    s->running = 1;
    tw_add(&s->segment->crowd.running, 1);
}

static void first_token(tw_stream *s, uint64_t now_ns) {
    uint64_t ttft = now_ns - s->arrival_ns;
    tw_histogram_record(&s->series->ttft, tw_layout_of(TW_LAYOUT_TTFT), ttft);
    first_token_examine(s, now_ns, ttft);
    tw_crowd_note(&s->segment->crowd, s->concurrency, ttft, now_ns);
    run(s);
    if (s->exemplary) exemplar_add(s, TW_EXEMPLAR_TTFT, tw_layout_of(TW_LAYOUT_TTFT), ttft, now_ns);
    s->first_ns = now_ns;
    s->messages = 1;
    s->client_ns = 0;
}

static void choice_open(tw_stream *s, uint64_t now_ns, uint32_t choice) {
    if (choice < TW_CHOICES) {
        s->choice[choice].first_ns = now_ns;
        if (s->choices <= TW_CHOICES) ++s->choices;
    } else if (s->choices <= TW_CHOICES) {
        s->choices = TW_CHOICES + 1;
        tw_add(&s->segment->drops[TW_DROP_CHOICE], 1);
    }
}

static void choice_count(tw_stream *s, uint64_t now_ns, uint32_t n, uint32_t choice) {
    if (choice < TW_CHOICES) {
        s->choice[choice].last_ns = now_ns;
        s->choice[choice].tokens += n;
    } else {
        s->other_tokens += n;
    }
    tw_add(&s->series->output_tokens, n);
    s->last_ns = now_ns;
}

/* The first token of a stream or of a choice, a choice that is not tracked, a time before the last, no stamp at all. */
static RARE void irregular_token(tw_stream *s, uint64_t now_ns, uint32_t n, uint32_t choice) {
    if (n == 0 || (s->opaque && !s->closed)) return;
    if (s->closed || now_ns < s->last_ns) tw_add(&s->segment->drops[TW_DROP_LATE_STAMP], 1);
    if (s->closed) return;
    now_ns = most(now_ns, s->last_ns);
    const bool first = s->messages == 0;
    const uint64_t waited = now_ns - s->last_ns;
    if (first) {
        first_token(s, now_ns);
    } else {
        uint64_t gap = now_ns - s->last_ns;
        gap_record(s, gap, gap - gap_examine(s, now_ns));
    }
    bool fresh = choice >= TW_CHOICES || s->choice[choice].tokens == 0;
    if (choice == 0)
        deadlines_judge(s, now_ns - (fresh ? s->arrival_ns : s->choice[0].last_ns),
                        fresh ? least(s->slo.ttft_ns, SLACK_MAX) : s->deadline_ns, n);
    if (fresh) choice_open(s, now_ns, choice);
    choice_count(s, now_ns, n, choice);
    if (s->trace != NULL) record_message(s, now_ns, n, choice, first, waited);
}

void tw_stream_token(tw_stream *s, uint64_t now_ns, uint32_t n, uint32_t choice) {
    if (UNLIKELY((s->opaque | s->closed) != 0 || choice >= TW_CHOICES || n == 0 || s->choice[choice].tokens == 0 ||
                 now_ns < s->last_ns)) {
        irregular_token(s, now_ns, n, choice);
        return;
    }
    uint64_t gap = now_ns - s->last_ns, late_ns = 0;
    if (UNLIKELY(gap > s->alert_ns || !tw_pause_quiet_since(&s->segment->pause, s->last_ns) ||
                 !others_quiet(s, s->last_ns)))
        late_ns = gap_examine(s, now_ns);
    gap_record(s, gap, gap - late_ns);
    if (choice == 0) deadlines_judge(s, now_ns - s->choice[0].last_ns, s->deadline_ns, n);
    s->choice[choice].last_ns = s->last_ns = now_ns;
    s->choice[choice].tokens += n;
    tw_add(&s->series->output_tokens, n);
    if (UNLIKELY(s->trace != NULL))
        tw_record(s->trace, now_ns, (uint64_t)TW_KIND_TOKEN | (uint64_t)choice << 8 | (uint64_t)n << 32, s->number, gap);
}

/* The message has its stamp: what it holds for another choice ends no gap. */
void tw_stream_token_also(tw_stream *s, uint32_t n, uint32_t choice) {
    if (n == 0 || s->closed || s->opaque || s->messages == 0) return;
    if (choice >= TW_CHOICES || s->choice[choice].tokens == 0) choice_open(s, s->last_ns, choice);
    choice_count(s, s->last_ns, n, choice);
    if (s->trace != NULL) record_message(s, s->last_ns, n, choice, false, 0);
}

/* ---- around the tokens ---- */

void tw_stream_open(tw_stream *s, tw_segment *g, uint64_t arrival_ns, uint64_t entry_ns, uint64_t proxy_ns,
                    tw_arrival source) {
    memset(s, 0, sizeof *s);
    s->segment = g;
    s->itl_layout = tw_layout_of(TW_LAYOUT_ITL);
    s->arrival_ns = s->last_ns = least(arrival_ns, entry_ns);
    s->entry_ns = entry_ns;
    s->source = (uint32_t)source;
    s->slo = (tw_slo){tw_load(&g->slo.ttft_ns), tw_load(&g->slo.tpot_ns), tw_load(&g->slo.itl_ns),
                      tw_load(&g->slo.e2e_ns), tw_load(&g->slo.attainment_ppm)};
    uint64_t step_ns = s->slo.tpot_ns != 0 ? s->slo.tpot_ns : s->slo.itl_ns;
    s->deadline_ns = s->slo.ttft_ns != 0 ? least(step_ns, SLACK_MAX) : 0;
    tw_stream_label(s, 0);
    const tw_layout *layout = tw_layout_of(TW_LAYOUT_TTFT);
    if (proxy_ns > 0) tw_histogram_record(&g->queue_proxy, layout, proxy_ns);
    tw_histogram_record(&g->queue_accept, layout, entry_ns - s->arrival_ns);
    if ((unsigned)source < TW_ARRIVALS) tw_add(&g->arrivals[source], 1);
    tw_add(&g->opened, 1);
    s->concurrency = tw_load(&g->in_flight) + 1;
    tw_store(&g->in_flight, s->concurrency);
}

void tw_stream_join(tw_stream *s, const tw_company *company, uint64_t unit) {
    s->company = company;
    s->unit = unit;
}

void tw_stream_label(tw_stream *s, uint32_t series_index) {
    if (series_index >= tw_load(&s->segment->series_count)) series_index = 0;
    s->series_index = series_index;
    s->series = tw_segment_series(s->segment, series_index);
    if (s->messages <= TYPICAL_EVERY) typical_set(s, series_typical(s->series));
}

void tw_stream_identify(tw_stream *s, const char *request_id, size_t request_len, const char *trace_id,
                        size_t trace_len) {
    tw_words_set(s->request_id, TW_ID_WORDS, request_id, request_len);
    tw_words_set(s->trace_id, TW_TRACE_WORDS, trace_id, trace_len);
}

void tw_stream_exemplify(tw_stream *s) {
    char id[TW_TRACE_WORDS * 8];
    tw_words_get(s->trace_id, TW_TRACE_WORDS, id);
    s->exemplary = tw_exemplar_id_is_good(id);
}

void tw_stream_usage(tw_stream *s, uint64_t completion_tokens) {
    s->usage_tokens = most(s->usage_tokens, least(completion_tokens, UINT32_MAX));
}

void tw_stream_send_wait(tw_stream *s, uint64_t from_ns, uint64_t to_ns) {
    tw_histogram_record(&s->segment->send_wait, tw_layout_of(TW_LAYOUT_TTFT), since(to_ns, from_ns));
    s->client_ns += since(to_ns, most(from_ns, s->last_ns));
}

void tw_stream_opaque(tw_stream *s) {
    if (s->opaque) return;
    s->opaque = 1;
    tw_add(&s->segment->drops[TW_DROP_OPAQUE], 1);
}

void tw_stream_body(tw_stream *s, uint64_t now_ns) {
    if (s->body_ns != 0) return;
    s->body_ns = most(now_ns, s->arrival_ns);
    if (s->opaque && !s->closed) run(s);
}

uint64_t tw_stream_tokens(const tw_stream *s) { return most(counted_tokens(s), s->usage_tokens); }

/* ---- the verdict ---- */

enum { BOUND_TTFT = 1, BOUND_TPOT = 2, BOUND_ITL = 4, BOUND_E2E = 8, BOUNDS = 15 };

typedef struct tpot {
    uint64_t span_ns, steps; /* time between the first and the last token; steps = 0: not known */
} tpot;

/* The server's own count belongs to a choice only where there is one. */
static tpot choice_tpot(const tw_stream *s, int i) {
    const tw_choice *choice = &s->choice[i];
    uint64_t tokens = choice->tokens;
    bool raised = s->usage_tokens > counted_tokens(s);
    if (tokens == 0 || (raised && s->choices != 1)) return (tpot){0, 0};
    if (raised) tokens = s->usage_tokens;
    if (choice->last_ns == choice->first_ns) return (tpot){0, 0}; /* all in one message: no time between */
    return (tpot){choice->last_ns - choice->first_ns, tokens - 1};
}

/* Of all choices, against the bound; *known says whether there was one to judge. */
static bool tpot_broken(const tw_stream *s, bool *known) {
    uint64_t bound = s->slo.tpot_ns;
    bool broken = false;
    *known = false;
    for (int i = 0; i < TW_CHOICES; ++i) {
        tpot t = choice_tpot(s, i);
        if (t.steps == 0) continue;
        *known = true;
        if (bound != 0 && (wide)t.span_ns > (wide)bound * t.steps) broken = true;
    }
    return broken;
}

static bool exceeds(uint64_t value, uint64_t bound) { return bound != 0 && value > bound; }

/* Of a finished answer in which no token could be seen: its first bytes, else its end. */
static uint64_t untimed_ttft(const tw_stream *s, uint64_t age) {
    return s->body_ns != 0 ? s->body_ns - s->arrival_ns : age;
}

/* The bounds that have passed by now_ns. awaited: what is still waited for counts as well. */
static unsigned bounds_broken(const tw_stream *s, uint64_t now_ns, bool awaited) {
    const tw_slo *slo = &s->slo;
    bool known;
    bool listening = awaited && !s->opaque;
    uint64_t age = since(now_ns, s->arrival_ns);
    uint64_t ttft = s->messages > 0 ? s->first_ns - s->arrival_ns : listening ? age : untimed_ttft(s, age);
    uint64_t open_gap = s->messages > 0 && listening ? since(now_ns, s->last_ns) : 0;
    return (exceeds(ttft, slo->ttft_ns) ? BOUND_TTFT : 0U) | (tpot_broken(s, &known) ? BOUND_TPOT : 0U) |
           (exceeds(most(s->worst_gap_ns, open_gap), slo->itl_ns) ? BOUND_ITL : 0U) |
           (exceeds(age, slo->e2e_ns) ? BOUND_E2E : 0U);
}

static bool answered(const tw_stream *s, tw_end end) {
    return end == TW_END_FINISHED && s->status < 300 && !s->failed;
}

/* The bounds a judged request kept. A complete answer keeps what it does not break; of any other, only what
 * was measured counts. */
static unsigned bounds_kept(const tw_stream *s, uint64_t now_ns, tw_end end) {
    const tw_slo *slo = &s->slo;
    if (answered(s, end)) return BOUNDS & ~bounds_broken(s, now_ns, false);
    bool tpot_known;
    tpot_broken(s, &tpot_known);
    unsigned judged = (s->messages > 0 || slo->ttft_ns == 0 ? BOUND_TTFT : 0U) |
                      (tpot_known || slo->tpot_ns == 0 ? BOUND_TPOT : 0U) |
                      (s->messages > 1 || slo->itl_ns == 0 ? BOUND_ITL : 0U) | (slo->e2e_ns == 0 ? BOUND_E2E : 0U);
    return judged & ~bounds_broken(s, now_ns, true);
}

tw_reason tw_stream_verdict(const tw_stream *s, uint64_t now_ns, tw_end end) {
    if (s->status == 429) return TW_REASON_429;
    if (s->status == 408 || s->status == 504 || end == TW_END_TIMEOUT) return TW_REASON_TIMEOUT;
    if (s->status >= 500) return TW_REASON_5XX;
    if (s->status >= 400) return TW_REASON_4XX;
    if (s->status >= 300) return TW_REASON_3XX;
    if (s->failed || end == TW_END_ERROR) return TW_REASON_ERROR;
    if (end == TW_END_ABORT) return bounds_broken(s, now_ns, true) ? TW_REASON_ABORT_LATE : TW_REASON_ABORT_EARLY;
    return bounds_broken(s, now_ns, false) ? TW_REASON_LATE : TW_REASON_GOOD;
}

/* ---- the end ---- */

/* Two 32-bit counts in a word, neither running over. */
static void pair_add(uint64_t *pair, uint64_t low, uint64_t high) {
    uint64_t now = tw_load(pair);
    low = add_capped(tw_low(now), low, UINT32_MAX);
    high = add_capped(tw_high(now), high, UINT32_MAX);
    tw_store_release(pair, high << 32 | low); /* who sees it sees the second it belongs to */
}

static void window_add(tw_stream *s, uint64_t now_ns, tw_end end, tw_outcome outcome) {
    tw_second *second = tw_segment_second(s->segment, now_ns);
    if (second == NULL) {
        tw_add(&s->segment->drops[TW_DROP_LATE_STAMP], 1);
        return;
    }
    pair_add(&second->good_miss, outcome == TW_OUTCOME_GOOD, outcome == TW_OUTCOME_MISS);
    pair_add(&second->excluded_finished, outcome == TW_OUTCOME_EXCLUDED, answered(s, end));
    pair_add(&second->due_met, s->due, s->met);
    if (outcome == TW_OUTCOME_EXCLUDED) return;
    unsigned kept = bounds_kept(s, now_ns, end);
    pair_add(&second->ttft_tpot, (kept & BOUND_TTFT) != 0, (kept & BOUND_TPOT) != 0);
    pair_add(&second->itl_e2e, (kept & BOUND_ITL) != 0, (kept & BOUND_E2E) != 0);
}

/* As the GenAI conventions have it: of a request, and only of one that was answered. */
static void served_answer(tw_stream *s, tw_served *served, uint64_t now_ns) {
    if (s->messages == 0 || s->opaque) return;
    const uint64_t tokens = tw_stream_tokens(s);
    tw_histogram_record(&served->ttft, tw_layout_of(TW_LAYOUT_TTFT), s->first_ns - s->arrival_ns);
    if (tokens > 1) tw_histogram_record(&served->tpot, s->itl_layout, (now_ns - s->first_ns) / (tokens - 1));
}

static void served_record(tw_stream *s, uint64_t now_ns, tw_end end, tw_reason reason) {
    tw_served *served = tw_segment_served(s->segment, s->series);
    const tw_failure failure = tw_failure_of(reason);
    if (served == NULL) return;
    if (answered(s, end)) served_answer(s, served, now_ns);
    else if (failure != TW_FAILURES) tw_brief_record(&served->failed[failure], now_ns - s->arrival_ns);
}

static void answer_record(tw_stream *s, uint64_t now_ns) {
    tw_histogram_record(&s->series->e2e, tw_layout_of(TW_LAYOUT_E2E), now_ns - s->arrival_ns);
    if (s->exemplary) exemplar_add(s, TW_EXEMPLAR_E2E, tw_layout_of(TW_LAYOUT_E2E), now_ns - s->arrival_ns, now_ns);
    for (int i = 0; i < TW_CHOICES && !s->opaque; ++i) {
        tpot t = choice_tpot(s, i);
        if (t.steps == 0) continue;
        tw_histogram_record(&s->series->tpot, s->itl_layout, t.span_ns / t.steps);
        if (s->exemplary) exemplar_add(s, TW_EXEMPLAR_TPOT, s->itl_layout, t.span_ns / t.steps, now_ns);
    }
}

void tw_stream_close(tw_stream *s, uint64_t now_ns, tw_end end) {
    if (s->closed) return;
    tw_segment *g = s->segment;
    if (now_ns < s->last_ns) {
        tw_add(&g->drops[TW_DROP_LATE_STAMP], 1);
        now_ns = s->last_ns;
    }
    tw_reason reason = tw_stream_verdict(s, now_ns, end);
    tw_add(&s->series->reasons[reason], 1);
    tw_add(&s->series->output_tokens, since(s->usage_tokens, counted_tokens(s)));
    if (answered(s, end)) answer_record(s, now_ns);
    served_record(s, now_ns, end, reason);
    if (end == TW_END_ABORT && s->messages == 0 && s->status < 300)
        tw_histogram_record(&g->abandoned_wait, tw_layout_of(TW_LAYOUT_TTFT), now_ns - s->arrival_ns);
    window_add(s, now_ns, end, tw_reason_outcome(reason));
    uint64_t in_flight = tw_load(&g->in_flight);
    if (in_flight > 0) tw_store(&g->in_flight, in_flight - 1); /* a fork child started again from zero */
    uint64_t running = tw_load(&g->crowd.running);
    if (s->running && running > 0) tw_store(&g->crowd.running, running - 1);
    if (s->trace != NULL) record(s, TW_KIND_CLOSE, now_ns, (uint64_t)reason, tw_stream_tokens(s), s->arrival_ns);
    s->reason = (uint32_t)reason;
    s->end_ns = now_ns;
    s->closed = 1;
}
