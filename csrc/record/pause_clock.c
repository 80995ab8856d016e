#include "tailwatch/record/pause_clock.h"

#include <stddef.h>
#include <string.h>

#include "tailwatch/base/atomic.h"

/* How readers and the one writer agree without a lock:
 *
 * - the word is a single store at each edge, so it is never torn;
 * - of an open pause, the start is stored last (and is NOT_STARTED while the cause changes), last_stop_ns after it;
 * - a closing pause publishes its record first and last_stop_ns last. In between it is seen twice, as a record
 *   and as open, never not at all; the record is believed, and an overlap counts no instant twice;
 * - a record's seq is cleared before it is overwritten and stored last. The fields in between are
 *   release-stored and acquire-loaded, so that a reader that saw a new field sees the cleared seq too.
 */

__extension__ typedef unsigned __int128 wide;

#define NOT_STARTED UINT64_MAX /* open_start_ns while open_cause changes */
#define TRIES 16               /* of a reader that meets the writer; a killed writer must not hold it for ever */

static uint64_t even(uint64_t time_ns) { return time_ns & ~UINT64_C(1); }

void tw_pause_init(tw_pause_clock *p) { memset(p, 0, sizeof *p); }

bool tw_pause_is_open(const tw_pause_clock *p) { return tw_load(&p->depth) != 0; }

/* ---- The writer ---- */

void tw_pause_begin(tw_pause_clock *p, tw_cause cause, uint64_t now_ns) {
    tw_add(&p->depth, 1);
    if (tw_load(&p->depth) > 1) return;
    uint64_t start = even(now_ns);
    tw_store(&p->closed_stop_ns, tw_load(&p->last_stop_ns));
    p->open_streams = p->open_overlap_ns = p->open_delay_ns = 0;
    p->open_collected = p->open_uncollectable = 0;
    tw_store_release(&p->open_start_ns, NOT_STARTED);
    tw_store_release(&p->open_cause, (uint64_t)cause);
    tw_store_release(&p->open_start_ns, start);
    tw_store_release(&p->word[cause], (tw_load(&p->word[cause]) - start) | 1);
    tw_store_release(&p->last_stop_ns, TW_PAUSE_OPEN);
}

static tw_pause_record *record_of(tw_pause_clock *p, uint64_t n) { return &p->ring[n % TW_PAUSE_RING]; }

/* The oldest record makes room: its time moves from the ring to evicted_ns. */
static void evict(tw_pause_clock *p, const tw_pause_record *oldest) {
    tw_pause_totals *totals = &p->totals[tw_load(&oldest->cause)];
    tw_add(&totals->evicted_count, 1);
    tw_add(&totals->evicted_ns, tw_load(&oldest->stop_ns) - tw_load(&oldest->start_ns));
}

static void publish(tw_pause_clock *p, tw_cause cause, uint64_t stop_ns, const tw_pause_result *result) {
    uint64_t n = tw_load(&p->head);
    tw_pause_record *r = record_of(p, n);
    if (n >= TW_PAUSE_RING) evict(p, r);
    tw_store(&r->seq, 0);
    tw_store_release(&r->start_ns, tw_load(&p->open_start_ns));
    tw_store_release(&r->stop_ns, stop_ns);
    tw_store_release(&r->cause, (uint64_t)cause);
    tw_store_release(&r->collected, p->open_collected + result->collected);
    tw_store_release(&r->uncollectable, p->open_uncollectable + result->uncollectable);
    tw_store_release(&r->cpu_ns, result->cpu_ns);
    tw_store_release(&r->callbacks_ns, result->callbacks_ns);
    tw_store_release(&r->streams, p->open_streams);
    tw_store_release(&r->overlap_ns, p->open_overlap_ns);
    tw_store_release(&r->delay_ns, p->open_delay_ns);
    tw_store_release(&r->seq, n + 1);
    tw_store_release(&p->head, n + 1);
}

static void count_result(tw_pause_totals *totals, const tw_pause_result *result) {
    tw_add(&totals->collected, result->collected);
    tw_add(&totals->uncollectable, result->uncollectable);
    tw_add(&totals->callbacks_ns, result->callbacks_ns);
}

/* An inner level: what it collected is booked on the outermost cause. Its CPU time is part of the outer's. */
static void leave_inner(tw_pause_clock *p, const tw_pause_result *result) {
    count_result(&p->totals[tw_load(&p->open_cause)], result);
    p->open_collected += result->collected;
    p->open_uncollectable += result->uncollectable;
}

static uint64_t close_outermost(tw_pause_clock *p, uint64_t now_ns, const tw_pause_result *result) {
    tw_cause cause = (tw_cause)tw_load(&p->open_cause);
    tw_pause_totals *totals = &p->totals[cause];
    uint64_t start = tw_load(&p->open_start_ns);
    uint64_t stop = even(now_ns) > start ? even(now_ns) : start;
    uint64_t length = stop - start, last_stop = stop;
    tw_add(&totals->count, 1);
    tw_add(&totals->cpu_ns, result->cpu_ns);
    tw_raise(&totals->max_ns, length);
    count_result(totals, result);
    if (length < TW_PAUSE_SHORT_NS) {
        tw_add(&totals->short_count, 1);
        tw_add(&totals->short_ns, length);
        last_stop = tw_load(&p->closed_stop_ns);
    } else {
        publish(p, cause, stop, result);
    }
    tw_store_release(&p->word[cause], even(tw_load(&p->word[cause])) + stop);
    tw_store_release(&p->last_stop_ns, last_stop);
    return length;
}

uint64_t tw_pause_end(tw_pause_clock *p, uint64_t now_ns, const tw_pause_result *result, tw_cause *cause) {
    static const tw_pause_result nothing = {0, 0, 0, 0};
    uint64_t depth = tw_load(&p->depth);
    if (depth == 0) return 0;
    if (result == NULL) result = &nothing;
    if (depth > 1) {
        leave_inner(p, result);
        tw_store(&p->depth, depth - 1);
        return 0;
    }
    if (cause != NULL) *cause = (tw_cause)tw_load(&p->open_cause);
    uint64_t length = close_outermost(p, now_ns, result);
    tw_store_release(&p->depth, 0);
    return length;
}

void tw_pause_cancel(tw_pause_clock *p) {
    if (!tw_pause_is_open(p)) return;
    uint64_t *word = &p->word[tw_load(&p->open_cause)];
    tw_store_release(word, even(tw_load(word)) + tw_load(&p->open_start_ns));
    tw_add(&p->lost, 1);
    tw_store_release(&p->last_stop_ns, tw_load(&p->closed_stop_ns));
    tw_store_release(&p->depth, 0);
}

/* ---- Readers ---- */

uint64_t tw_pause_total_ns(const tw_pause_clock *p, tw_cause cause, uint64_t now_ns) {
    uint64_t word = 0, start = 0;
    for (int attempt = 0; attempt < TRIES; attempt++) {
        word = tw_load_acquire(&p->word[cause]);
        start = tw_load_acquire(&p->open_start_ns);
        if (word == tw_load_acquire(&p->word[cause])) break;
    }
    if (word % 2 == 0) return word;
    /* The reader's clock may have been read just before the pause began: nothing of it has passed then. */
    uint64_t until = start != NOT_STARTED && even(now_ns) < start ? start : even(now_ns);
    uint64_t total = even(word) + until;
    return total < UINT64_MAX / 2 ? total : 0;
}

/* A stretch of time with a cause. */
typedef struct stretch {
    uint64_t start_ns, stop_ns, cause;
} stretch;

/* The open pause, up to to_ns. False when none is open. */
static bool open_stretch(const tw_pause_clock *p, uint64_t to_ns, stretch *out) {
    for (int attempt = 0; attempt < TRIES; attempt++) {
        if (tw_load_acquire(&p->last_stop_ns) != TW_PAUSE_OPEN) return false;
        out->start_ns = tw_load_acquire(&p->open_start_ns);
        out->cause = tw_load_acquire(&p->open_cause);
        out->stop_ns = to_ns;
        if (out->start_ns != NOT_STARTED && tw_load(&p->open_start_ns) == out->start_ns) return out->cause < TW_CAUSES;
    }
    return false;
}

static bool record_stretch(const tw_pause_clock *p, uint64_t n, stretch *out) {
    const tw_pause_record *r = &p->ring[n % TW_PAUSE_RING];
    if (tw_load_acquire(&r->seq) != n + 1) return false;
    out->start_ns = tw_load_acquire(&r->start_ns);
    out->stop_ns = tw_load_acquire(&r->stop_ns);
    out->cause = tw_load_acquire(&r->cause);
    return tw_load(&r->seq) == n + 1 && out->cause < TW_CAUSES;
}

/* How much of a stretch lies in [from, *ceiling]. Stretches come newest first; the ceiling falls to the start
 * of each, so that no instant counts twice. */
static uint64_t take(const stretch *s, uint64_t from_ns, uint64_t *ceiling_ns) {
    uint64_t start = s->start_ns > from_ns ? s->start_ns : from_ns;
    uint64_t stop = s->stop_ns < *ceiling_ns ? s->stop_ns : *ceiling_ns;
    if (s->start_ns < *ceiling_ns) *ceiling_ns = s->start_ns;
    return stop > start ? stop - start : 0;
}

/* What is called for each recorded pause that touches an interval, newest first. */
typedef void (*on_touch)(void *context, uint64_t n, const stretch *s, uint64_t overlap_ns);

/* Walks back from the newest record only as far as the interval reaches. False when records that may have
 * touched it are gone. */
static bool walk(const tw_pause_clock *p, uint64_t from_ns, uint64_t ceiling_ns, on_touch touch, void *context) {
    uint64_t n = tw_load_acquire(&p->head);
    uint64_t oldest = n > TW_PAUSE_RING ? n - TW_PAUSE_RING : 0;
    while (n > oldest) {
        stretch s;
        if (!record_stretch(p, --n, &s)) return false;
        if (s.stop_ns <= from_ns) return true;
        uint64_t overlap = take(&s, from_ns, &ceiling_ns);
        if (overlap != 0) touch(context, n, &s, overlap);
        if (s.start_ns <= from_ns) return true;
    }
    return oldest == 0;
}

static void add_overlap(void *context, uint64_t n, const stretch *s, uint64_t overlap_ns) {
    tw_overlap *out = context;
    (void)n;
    out->by_cause[s->cause] += overlap_ns;
    out->total_ns += overlap_ns;
}

/* Whether the ring already holds the pause that was seen open, or a later one: it closed meanwhile. */
static bool has_closed(const tw_pause_clock *p, const stretch *open) {
    uint64_t head = tw_load_acquire(&p->head);
    stretch newest;
    return head != 0 && record_stretch(p, head - 1, &newest) && newest.start_ns >= open->start_ns;
}

void tw_pause_overlap(const tw_pause_clock *p, uint64_t from_ns, uint64_t to_ns, tw_overlap *out) {
    uint64_t ceiling = to_ns;
    stretch s;
    memset(out, 0, sizeof *out);
    out->complete = true;
    if (from_ns >= to_ns) return;
    if (open_stretch(p, to_ns, &s) && !has_closed(p, &s)) add_overlap(out, 0, &s, take(&s, from_ns, &ceiling));
    out->complete = walk(p, from_ns, ceiling, add_overlap, out);
}

typedef struct toucher {
    tw_pause_touch touch;
    void *to;
    uint64_t from_ns;
} toucher;

static void pass_on(void *context, uint64_t n, const stretch *s, uint64_t overlap_ns) {
    const toucher *t = context;
    const uint64_t start = s->start_ns > t->from_ns ? s->start_ns : t->from_ns;
    (void)n;
    t->touch(t->to, start, start + overlap_ns, (tw_cause)s->cause);
}

bool tw_pause_each(const tw_pause_clock *p, uint64_t from_ns, uint64_t to_ns, tw_pause_touch touch, void *to) {
    toucher t = {touch, to, from_ns};
    uint64_t ceiling = to_ns;
    stretch open;
    if (from_ns >= to_ns) return true;
    if (open_stretch(p, to_ns, &open) && !has_closed(p, &open)) {
        const uint64_t overlap = take(&open, from_ns, &ceiling);
        if (overlap != 0) pass_on(&t, 0, &open, overlap);
    }
    return walk(p, from_ns, ceiling, pass_on, &t);
}

/* A gap being charged: the delay part is dealt out in step with the overlap, so that the shares add up. */
typedef struct charge {
    tw_pause_clock *clock;
    uint64_t overlap_ns, delay_ns, dealt_ns;
} charge;

static uint64_t delay_of_first(const charge *c, uint64_t overlap_ns) {
    if (overlap_ns >= c->overlap_ns) return c->delay_ns;
    return (uint64_t)((wide)c->delay_ns * overlap_ns / c->overlap_ns);
}

static uint64_t deal(charge *c, uint64_t overlap_ns) {
    uint64_t delay_before = c->dealt_ns ? delay_of_first(c, c->dealt_ns) : 0;
    c->dealt_ns += overlap_ns;
    return delay_of_first(c, c->dealt_ns) - delay_before;
}

static void charge_record(void *context, uint64_t n, const stretch *s, uint64_t overlap_ns) {
    charge *c = context;
    tw_pause_record *r = record_of(c->clock, n);
    (void)s;
    tw_add(&r->streams, 1);
    tw_add(&r->overlap_ns, overlap_ns);
    tw_add(&r->delay_ns, deal(c, overlap_ns));
}

/* The open pause has no record yet: what it is charged with is kept until it has one. */
static void charge_open(charge *c, uint64_t overlap_ns) {
    if (overlap_ns == 0) return;
    c->clock->open_streams++;
    c->clock->open_overlap_ns += overlap_ns;
    c->clock->open_delay_ns += deal(c, overlap_ns);
}

void tw_pause_charge(tw_pause_clock *p, uint64_t from_ns, uint64_t to_ns, uint64_t overlap_ns, uint64_t delay_ns) {
    charge c = {p, overlap_ns, delay_ns, 0};
    uint64_t ceiling = to_ns;
    stretch open;
    if (from_ns >= to_ns) return;
    if (open_stretch(p, to_ns, &open)) charge_open(&c, take(&open, from_ns, &ceiling));
    (void)walk(p, from_ns, ceiling, charge_record, &c);
}

/* streams, overlap_ns and delay_ns go on growing after the record is published: each is whole by itself. */
static void copy_record(const tw_pause_record *r, tw_pause_record *out) {
    const uint64_t *from = (const uint64_t *)(const void *)r;
    uint64_t *to = (uint64_t *)(void *)out;
    _Static_assert(sizeof *r % sizeof *from == 0, "a record is words");
    for (size_t i = 0; i < sizeof *r / sizeof *from; i++) to[i] = tw_load_acquire(&from[i]);
}

bool tw_pause_read(const tw_pause_clock *p, uint64_t n, tw_pause_record *out) {
    const tw_pause_record *r = &p->ring[n % TW_PAUSE_RING];
    tw_pause_record copy;
    if (tw_load_acquire(&r->seq) != n + 1) return false;
    copy_record(r, &copy);
    if (tw_load(&r->seq) != n + 1) return false;
    *out = copy;
    out->seq = n + 1;
    return true;
}
