#include "tailwatch/record/pause_clock.h"

#include "tw_test.h"

#define MS UINT64_C(1000000)

static tw_pause_clock *new_clock(void) {
    tw_pause_clock *p = malloc(sizeof *p);
    TW_REQUIRE(p != NULL);
    memset(p, 0xa5, sizeof *p);
    tw_pause_init(p);
    return p;
}

static uint64_t pause(tw_pause_clock *p, tw_cause cause, uint64_t start, uint64_t stop) {
    tw_pause_begin(p, cause, start);
    return tw_pause_end(p, stop, NULL, NULL);
}

/* word = the ring's records + evicted_ns + short_ns, for every cause; and the counts agree likewise. */
static void check_conserved(const tw_pause_clock *p) {
    uint64_t ring_ns[TW_CAUSES] = {0}, ring_count[TW_CAUSES] = {0};
    tw_pause_record r;
    uint64_t oldest = p->head > TW_PAUSE_RING ? p->head - TW_PAUSE_RING : 0;
    for (uint64_t n = oldest; n < p->head; n++) {
        TW_REQUIRE(tw_pause_read(p, n, &r));
        ring_ns[r.cause] += r.stop_ns - r.start_ns;
        ring_count[r.cause]++;
    }
    for (int c = 0; c < TW_CAUSES; c++) {
        const tw_pause_totals *t = &p->totals[c];
        TW_CHECK_EQ(ring_ns[c] + t->evicted_ns + t->short_ns, p->word[c]);
        TW_CHECK_EQ(ring_count[c] + t->evicted_count + t->short_count, t->count);
    }
}

static tw_overlap overlap_of(const tw_pause_clock *p, uint64_t from, uint64_t to) {
    tw_overlap out;
    memset(&out, 0xa5, sizeof out);
    tw_pause_overlap(p, from, to, &out);
    return out;
}

#define CHECK_OVERLAP(expected_total, expected_complete, found)     \
    do {                                                            \
        tw_overlap tw_found = (found);                              \
        TW_CHECK_EQ(expected_total, tw_found.total_ns);             \
        TW_CHECK_EQ(expected_complete, tw_found.complete);          \
    } while (0)

/* ---- Words ---- */

TW_TEST(empty) {
    tw_pause_clock *p = new_clock(), zero;
    tw_pause_record r;
    tw_cause cause = TW_CAUSE_GC1;
    memset(&zero, 0, sizeof zero);
    TW_CHECK_MEM(&zero, p, sizeof zero);
    TW_CHECK(!tw_pause_is_open(p));
    TW_CHECK(tw_pause_quiet_since(p, 0));
    TW_CHECK(!tw_pause_read(p, 0, &r));
    TW_CHECK_EQ(0, tw_pause_end(p, 5 * MS, NULL, &cause));
    TW_CHECK_EQ(TW_CAUSE_GC1, cause);
    tw_pause_cancel(p);
    TW_CHECK_MEM(&zero, p, sizeof zero);
    CHECK_OVERLAP(0, true, overlap_of(p, 0, UINT64_MAX));
    free(p);
}

TW_TEST(one_pause) {
    static const tw_pause_result result = {7, 1, 900, 80};
    tw_pause_clock *p = new_clock();
    tw_pause_record r;
    tw_cause cause = TW_CAUSES;
    tw_pause_begin(p, TW_CAUSE_GC2, 10 * MS + 1);
    TW_CHECK(tw_pause_is_open(p));
    TW_CHECK(!tw_pause_quiet_since(p, UINT64_MAX - 1));
    TW_CHECK_EQ(1, p->word[TW_CAUSE_GC2] % 2);
    TW_CHECK_EQ(2 * MS, tw_pause_total_ns(p, TW_CAUSE_GC2, 12 * MS));
    TW_CHECK_EQ(0, tw_pause_total_ns(p, TW_CAUSE_GC1, 12 * MS));
    TW_CHECK_EQ(3 * MS, tw_pause_end(p, 13 * MS + 1, &result, &cause));
    TW_CHECK_EQ(TW_CAUSE_GC2, cause);
    TW_CHECK_EQ(3 * MS, p->word[TW_CAUSE_GC2]);
    TW_CHECK_EQ(3 * MS, tw_pause_total_ns(p, TW_CAUSE_GC2, 99 * MS));
    TW_CHECK(!tw_pause_is_open(p));
    TW_CHECK(tw_pause_quiet_since(p, 13 * MS));
    TW_CHECK(!tw_pause_quiet_since(p, 13 * MS - 1));
    TW_REQUIRE(tw_pause_read(p, 0, &r));
    const tw_pause_record expected = {1, 10 * MS, 13 * MS, TW_CAUSE_GC2, 7, 1, 900, 80, 0, 0, 0};
    TW_CHECK_MEM(&expected, &r, sizeof r);
    const tw_pause_totals totals = {1, 3 * MS, 0, 0, 0, 0, 7, 1, 900, 80};
    TW_CHECK_MEM(&totals, &p->totals[TW_CAUSE_GC2], sizeof totals);
    TW_CHECK(!tw_pause_read(p, 1, &r));
    check_conserved(p);
    free(p);
}

/* Odd clock readings lose their lowest bit, so that words stay even when closed, odd when open. */
TW_TEST(parity) {
    tw_pause_clock *p = new_clock();
    uint64_t now = 1001, expected = 0;
    for (int i = 0; i < 100; i++) {
        uint64_t start = now, stop = start + (uint64_t)i;
        tw_pause_begin(p, TW_CAUSE_GC0, start);
        TW_CHECK_EQ(1, p->word[TW_CAUSE_GC0] % 2);
        TW_CHECK_EQ(expected, tw_pause_total_ns(p, TW_CAUSE_GC0, start));
        tw_pause_end(p, stop, NULL, NULL);
        expected += (stop & ~UINT64_C(1)) - (start & ~UINT64_C(1));
        TW_CHECK_EQ(expected, p->word[TW_CAUSE_GC0]);
        now = stop + 1 + (uint64_t)(i % 3);
    }
    free(p);
}

/* A reader whose clock was read before the pause began sees nothing of it, and never a wrapped number. */
TW_TEST(early_reader) {
    tw_pause_clock *p = new_clock();
    tw_pause_begin(p, TW_CAUSE_GC0, 100 * MS);
    TW_CHECK_EQ(0, tw_pause_total_ns(p, TW_CAUSE_GC0, 99 * MS));
    tw_pause_end(p, 101 * MS, NULL, NULL);
    tw_pause_begin(p, TW_CAUSE_GC0, 102 * MS);
    TW_CHECK_EQ(MS, tw_pause_total_ns(p, TW_CAUSE_GC0, 90 * MS));
    free(p);
}

/* A clock that went back makes a pause of length 0. */
TW_TEST(backwards) {
    tw_pause_clock *p = new_clock();
    TW_CHECK_EQ(0, pause(p, TW_CAUSE_GC0, 5 * MS, 4 * MS));
    TW_CHECK_EQ(0, p->word[TW_CAUSE_GC0]);
    TW_CHECK_EQ(1, p->totals[TW_CAUSE_GC0].short_count);
    /* A pause that begins before the last one ended: no instant is counted twice. */
    pause(p, TW_CAUSE_GC1, 10 * MS, 14 * MS);
    pause(p, TW_CAUSE_GC2, 12 * MS, 16 * MS);
    CHECK_OVERLAP(6 * MS, true, overlap_of(p, 0, 20 * MS));
    CHECK_OVERLAP(2 * MS, true, overlap_of(p, 11 * MS, 13 * MS));
    check_conserved(p);
    free(p);
}

/* ---- Short, nested, cancelled ---- */

TW_TEST(short_pauses) {
    tw_pause_clock *p = new_clock();
    pause(p, TW_CAUSE_GC2, 1 * MS, 2 * MS);
    TW_CHECK_EQ(49998, pause(p, TW_CAUSE_GC0, 10 * MS, 10 * MS + TW_PAUSE_SHORT_NS - 1));
    TW_CHECK_EQ(1, p->head);
    TW_CHECK_EQ(2 * MS, p->last_stop_ns);
    TW_CHECK(tw_pause_quiet_since(p, 2 * MS));
    TW_CHECK_EQ(1, p->totals[TW_CAUSE_GC0].short_count);
    TW_CHECK_EQ(49998, p->totals[TW_CAUSE_GC0].short_ns);
    CHECK_OVERLAP(0, true, overlap_of(p, 9 * MS, 11 * MS));
    TW_CHECK_EQ(TW_PAUSE_SHORT_NS, pause(p, TW_CAUSE_GC0, 20 * MS, 20 * MS + TW_PAUSE_SHORT_NS));
    TW_CHECK_EQ(2, p->head);
    TW_CHECK_EQ(20 * MS + TW_PAUSE_SHORT_NS, p->last_stop_ns);
    TW_CHECK_EQ(2, p->totals[TW_CAUSE_GC0].count);
    check_conserved(p);
    free(p);
}

/* A collection inside a pass of our own is booked on the pass: its time, and what it collected. */
TW_TEST(nested) {
    static const tw_pause_result inner = {5, 2, 100, 30}, outer = {1, 0, 700, 4};
    tw_pause_clock *p = new_clock();
    tw_cause cause = TW_CAUSES;
    tw_pause_begin(p, TW_CAUSE_GC_OWN, 10 * MS);
    tw_pause_begin(p, TW_CAUSE_GC2, 11 * MS);
    TW_CHECK_EQ(0, tw_pause_end(p, 12 * MS, &inner, &cause));
    TW_CHECK_EQ(TW_CAUSES, cause);
    TW_CHECK(tw_pause_is_open(p));
    TW_CHECK_EQ(TW_PAUSE_OPEN, p->last_stop_ns);
    TW_CHECK_EQ(4 * MS, tw_pause_end(p, 14 * MS, &outer, &cause));
    TW_CHECK_EQ(TW_CAUSE_GC_OWN, cause);
    TW_CHECK_EQ(0, p->word[TW_CAUSE_GC2]);
    TW_CHECK_EQ(0, p->totals[TW_CAUSE_GC2].count);
    const tw_pause_totals totals = {1, 4 * MS, 0, 0, 0, 0, 6, 2, 700, 34};
    TW_CHECK_MEM(&totals, &p->totals[TW_CAUSE_GC_OWN], sizeof totals);
    tw_pause_record record;
    TW_CHECK(tw_pause_read(p, 0, &record));
    TW_CHECK_EQ(6, record.collected);
    TW_CHECK_EQ(2, record.uncollectable);
    pause(p, TW_CAUSE_GC0, 20 * MS, 21 * MS);
    TW_CHECK(tw_pause_read(p, 1, &record));
    TW_CHECK_EQ(0, record.collected + record.uncollectable);
    check_conserved(p);
    free(p);
}

TW_TEST(cancelled) {
    tw_pause_clock *p = new_clock();
    pause(p, TW_CAUSE_GC1, 1 * MS, 3 * MS);
    tw_pause_begin(p, TW_CAUSE_GC1, 5 * MS);
    tw_pause_begin(p, TW_CAUSE_GC0, 6 * MS);
    tw_pause_cancel(p);
    TW_CHECK(!tw_pause_is_open(p));
    TW_CHECK_EQ(1, p->lost);
    TW_CHECK_EQ(2 * MS, p->word[TW_CAUSE_GC1]);
    TW_CHECK_EQ(3 * MS, p->last_stop_ns);
    TW_CHECK_EQ(0, tw_pause_end(p, 7 * MS, NULL, NULL));
    TW_CHECK_EQ(1, p->totals[TW_CAUSE_GC1].count);
    CHECK_OVERLAP(2 * MS, true, overlap_of(p, 0, 9 * MS));
    check_conserved(p);
    free(p);
}

/* ---- Overlap ---- */

TW_TEST(overlap_edges) {
    tw_pause_clock *p = new_clock();
    pause(p, TW_CAUSE_GC0, 10 * MS, 12 * MS);
    pause(p, TW_CAUSE_GC2, 20 * MS, 25 * MS);
    CHECK_OVERLAP(0, true, overlap_of(p, 0, 10 * MS));
    CHECK_OVERLAP(2, true, overlap_of(p, 0, 10 * MS + 2));
    CHECK_OVERLAP(1 * MS, true, overlap_of(p, 11 * MS, 20 * MS));
    CHECK_OVERLAP(0, true, overlap_of(p, 12 * MS, 20 * MS));
    CHECK_OVERLAP(0, true, overlap_of(p, 25 * MS, 30 * MS));
    CHECK_OVERLAP(3 * MS, true, overlap_of(p, 21 * MS, 24 * MS));
    CHECK_OVERLAP(0, true, overlap_of(p, 24 * MS, 24 * MS));
    CHECK_OVERLAP(0, true, overlap_of(p, 24 * MS, 21 * MS));
    tw_overlap both = overlap_of(p, 11 * MS, 23 * MS);
    TW_CHECK_EQ(1 * MS, both.by_cause[TW_CAUSE_GC0]);
    TW_CHECK_EQ(3 * MS, both.by_cause[TW_CAUSE_GC2]);
    TW_CHECK_EQ(4 * MS, both.total_ns);
    free(p);
}

TW_TEST(overlap_open) {
    tw_pause_clock *p = new_clock();
    pause(p, TW_CAUSE_GC0, 10 * MS, 12 * MS);
    tw_pause_begin(p, TW_CAUSE_GC_OWN, 20 * MS);
    tw_pause_begin(p, TW_CAUSE_GC2, 21 * MS);
    tw_overlap o = overlap_of(p, 11 * MS, 26 * MS);
    TW_CHECK_EQ(6 * MS, o.by_cause[TW_CAUSE_GC_OWN]);
    TW_CHECK_EQ(0, o.by_cause[TW_CAUSE_GC2]);
    TW_CHECK_EQ(1 * MS, o.by_cause[TW_CAUSE_GC0]);
    TW_CHECK_EQ(7 * MS, o.total_ns);
    CHECK_OVERLAP(1 * MS, true, overlap_of(p, 11 * MS, 19 * MS));
    CHECK_OVERLAP(2 * MS, true, overlap_of(p, 22 * MS, 24 * MS));
    free(p);
}

/* The sums are called complete exactly as long as no record that is gone can have touched the interval. */
TW_TEST(wrapped) {
    tw_pause_clock *p = new_clock();
    tw_pause_record r;
    for (uint64_t i = 0; i < TW_PAUSE_RING; i++) pause(p, TW_CAUSE_GC0, i * 10 * MS + MS, i * 10 * MS + 2 * MS);
    CHECK_OVERLAP(TW_PAUSE_RING * MS, true, overlap_of(p, 0, UINT64_MAX));
    pause(p, TW_CAUSE_GC2, TW_PAUSE_RING * 10 * MS + MS, TW_PAUSE_RING * 10 * MS + 2 * MS);
    TW_CHECK_EQ(1, p->totals[TW_CAUSE_GC0].evicted_count);
    TW_CHECK_EQ(MS, p->totals[TW_CAUSE_GC0].evicted_ns);
    TW_CHECK(!tw_pause_read(p, 0, &r));
    TW_CHECK(tw_pause_read(p, 1, &r));
    /* The oldest record is [11 ms, 12 ms]. */
    CHECK_OVERLAP(TW_PAUSE_RING * MS, false, overlap_of(p, 0, UINT64_MAX));
    CHECK_OVERLAP(TW_PAUSE_RING * MS, false, overlap_of(p, 11 * MS - 2, UINT64_MAX));
    CHECK_OVERLAP(TW_PAUSE_RING * MS, true, overlap_of(p, 11 * MS, UINT64_MAX));
    CHECK_OVERLAP((TW_PAUSE_RING - 1) * MS, true, overlap_of(p, 12 * MS, UINT64_MAX));
    check_conserved(p);
    free(p);
}

/* ---- Against a model ---- */

typedef struct model {
    uint64_t start[100000], stop[100000];
    int cause[100000];
    int records;
    uint64_t word[TW_CAUSES], lost, last_stop;
} model;

static void model_close(model *m, int cause, uint64_t start, uint64_t stop) {
    m->word[cause] += stop - start;
    if (stop - start < TW_PAUSE_SHORT_NS) return;
    m->start[m->records] = start, m->stop[m->records] = stop, m->cause[m->records++] = cause;
    m->last_stop = stop;
}

/* By looking at every pause that the ring may still hold. */
static tw_overlap model_overlap(const model *m, uint64_t from, uint64_t to) {
    tw_overlap out = {{0}, 0, true};
    int oldest = m->records > TW_PAUSE_RING ? m->records - TW_PAUSE_RING : 0;
    for (int i = oldest; i < m->records; i++) {
        uint64_t start = m->start[i] > from ? m->start[i] : from, stop = m->stop[i] < to ? m->stop[i] : to;
        if (stop <= start) continue;
        out.by_cause[m->cause[i]] += stop - start;
        out.total_ns += stop - start;
    }
    if (oldest > 0 && m->start[oldest] > from) out.complete = false;
    return out;
}

/* One outermost pause with levels inside, mostly closed, sometimes cancelled. Returns the time after it. */
static uint64_t random_pause(tw_pause_clock *p, model *m, uint64_t now, uint64_t *state) {
    int cause = (int)tw_test_random_below(state, TW_CAUSES), levels = (int)tw_test_random_below(state, 3);
    uint64_t start = now & ~UINT64_C(1);
    tw_pause_begin(p, (tw_cause)cause, now);
    for (int i = 0; i < levels; i++) tw_pause_begin(p, (tw_cause)tw_test_random_below(state, TW_CAUSES), now + 1);
    now += tw_test_random_below(state, 4 * TW_PAUSE_SHORT_NS);
    TW_CHECK_EQ(m->word[cause] + (now & ~UINT64_C(1)) - start, tw_pause_total_ns(p, (tw_cause)cause, now));
    if (tw_test_random_below(state, 20) == 0) {
        tw_pause_cancel(p);
        m->lost++;
        return now;
    }
    for (int i = 0; i < levels; i++) tw_pause_end(p, now, NULL, NULL);
    TW_CHECK_EQ((now & ~UINT64_C(1)) - start, tw_pause_end(p, now, NULL, NULL));
    model_close(m, cause, start, now & ~UINT64_C(1));
    return now;
}

static void check_random_interval(const tw_pause_clock *p, const model *m, uint64_t now, uint64_t *state) {
    uint64_t reach = tw_test_random_below(state, 8) ? 2 * MS : 800 * MS;
    uint64_t from = now - tw_test_random_below(state, reach < now ? reach : now);
    uint64_t to = from + tw_test_random_below(state, reach);
    tw_overlap expected = model_overlap(m, from, to), found = overlap_of(p, from, to);
    /* An interval that ends before the ring begins is incomplete in both. */
    TW_CHECK_EQ(expected.complete, found.complete);
    TW_CHECK_EQ(expected.total_ns, found.total_ns);
    TW_CHECK_MEM(expected.by_cause, found.by_cause, sizeof found.by_cause);
    TW_CHECK_EQ(m->last_stop <= from, tw_pause_quiet_since(p, from));
}

/* 10^5 random pauses: long, short, nested, cancelled, through many turns of the ring. */
TW_TEST(random_pauses) {
    tw_pause_clock *p = new_clock();
    model *m = calloc(1, sizeof *m);
    TW_REQUIRE(m != NULL);
    uint64_t state = 42, now = 12345;
    for (int i = 0; i < 100000; i++) {
        now += tw_test_random_below(&state, 500000);
        now = random_pause(p, m, now, &state);
        for (int c = 0; c < TW_CAUSES; c++) TW_CHECK_EQ(m->word[c], p->word[c]);
        TW_CHECK_EQ(m->last_stop, p->last_stop_ns);
        if (i % 101 == 0) check_random_interval(p, m, now, &state);
        if (i % 997 == 0) check_conserved(p);
    }
    check_conserved(p);
    TW_CHECK_EQ(m->lost, p->lost);
    TW_CHECK_EQ(m->records, p->head);
    free(m), free(p);
}

/* ---- Charging ---- */

static tw_pause_record record(const tw_pause_clock *p, uint64_t n) {
    tw_pause_record r;
    TW_REQUIRE(tw_pause_read(p, n, &r));
    return r;
}

TW_TEST(charges) {
    tw_pause_clock *p = new_clock();
    pause(p, TW_CAUSE_GC0, 10 * MS, 12 * MS);
    pause(p, TW_CAUSE_GC1, 20 * MS, 21 * MS);
    pause(p, TW_CAUSE_GC2, 30 * MS, 36 * MS);
    /* [11, 33]: 1 + 1 + 3 ms of overlap; 2.5 ms late are dealt out as 0.5, 0.5 and 1.5. */
    tw_pause_charge(p, 11 * MS, 33 * MS, 5 * MS, 2500000);
    tw_pause_charge(p, 20 * MS, 21 * MS, 1 * MS, 0);
    tw_pause_charge(p, 40 * MS, 50 * MS, 0, 0);
    tw_pause_charge(p, 33 * MS, 11 * MS, 0, 0);
    static const uint64_t streams[] = {1, 2, 1}, delay[] = {500000, 500000, 1500000};
    static const uint64_t overlap[] = {1 * MS, 2 * MS, 3 * MS};
    for (uint64_t n = 0; n < 3; n++) {
        TW_CHECK_EQ(streams[n], record(p, n).streams);
        TW_CHECK_EQ(overlap[n], record(p, n).overlap_ns);
        TW_CHECK_EQ(delay[n], record(p, n).delay_ns);
    }
    free(p);
}

/* Whatever the numbers, the delay parts of a gap add up to its delay, without a rounding loss. */
TW_TEST(charges_add_up) {
    tw_pause_clock *p = new_clock();
    uint64_t state = 17, now = 2, delay_total = 0, overlap_total = 0, delay_found = 0, overlap_found = 0;
    for (int i = 0; i < TW_PAUSE_RING; i++) {
        uint64_t start = now + 2 + tw_test_random_below(&state, MS);
        now = start + TW_PAUSE_SHORT_NS + tw_test_random_below(&state, 700001);
        pause(p, TW_CAUSE_GC0, start, now);
    }
    for (int i = 0; i < 300; i++) {
        uint64_t from = tw_test_random_below(&state, now), to = from + tw_test_random_below(&state, 30 * MS);
        uint64_t overlap = overlap_of(p, from, to).total_ns;
        uint64_t delay = overlap ? tw_test_random_below(&state, overlap + 1) : 0;
        tw_pause_charge(p, from, to, overlap, delay);
        overlap_total += overlap;
        delay_total += delay;
    }
    for (uint64_t n = 0; n < TW_PAUSE_RING; n++) {
        overlap_found += record(p, n).overlap_ns;
        delay_found += record(p, n).delay_ns;
    }
    TW_CHECK(delay_total > 0);
    TW_CHECK_EQ(overlap_total, overlap_found);
    TW_CHECK_EQ(delay_total, delay_found);
    free(p);
}

/* What an open pause is charged with while it is open stands in its record later. */
TW_TEST(charges_of_an_open_pause) {
    tw_pause_clock *p = new_clock();
    pause(p, TW_CAUSE_GC0, 1 * MS, 2 * MS);
    tw_pause_begin(p, TW_CAUSE_GC2, 10 * MS);
    tw_pause_charge(p, 1 * MS, 13 * MS, 4 * MS, 2 * MS);
    tw_pause_charge(p, 13 * MS, 14 * MS, 1 * MS, 0);
    tw_pause_end(p, 15 * MS, NULL, NULL);
    tw_pause_charge(p, 14 * MS, 16 * MS, 1 * MS, 1 * MS);
    TW_CHECK_EQ(1, record(p, 0).streams);
    TW_CHECK_EQ(1 * MS, record(p, 0).overlap_ns);
    TW_CHECK_EQ(500000, record(p, 0).delay_ns);
    TW_CHECK_EQ(3, record(p, 1).streams);
    TW_CHECK_EQ(5 * MS, record(p, 1).overlap_ns);
    TW_CHECK_EQ(2500000, record(p, 1).delay_ns);
    pause(p, TW_CAUSE_GC2, 20 * MS, 21 * MS);
    TW_CHECK_EQ(0, record(p, 2).streams);
    free(p);
}
/* A record that takes the place of an old one starts with no charges. */
TW_TEST(charges_leave_with_their_record) {
    tw_pause_clock *p = new_clock();
    pause(p, TW_CAUSE_GC0, 1 * MS, 2 * MS);
    tw_pause_charge(p, 0, 3 * MS, 1 * MS, 1 * MS);
    for (uint64_t i = 1; i <= TW_PAUSE_RING; i++) pause(p, TW_CAUSE_GC0, i * 10 * MS, i * 10 * MS + MS);
    TW_CHECK_EQ(0, record(p, TW_PAUSE_RING).streams);
    TW_CHECK_EQ(0, record(p, TW_PAUSE_RING).overlap_ns);
    TW_CHECK_EQ(0, record(p, TW_PAUSE_RING).delay_ns);
    free(p);
}
