/* Pauses of several processes inside one gap: exclusive shares, against a reference that looks at every nanosecond. */
#include "tailwatch/attribute/overlap_by_source.h"

#include "tw_test.h"

#define PEERS 4

static tw_pause_clock *clocks(uint32_t n) {
    tw_pause_clock *made = calloc(n, sizeof *made);
    TW_REQUIRE(made != NULL);
    for (uint32_t i = 0; i < n; ++i) tw_pause_init(&made[i]);
    return made;
}

/* In units of the shortest pause that is recorded. */
#define U TW_PAUSE_SHORT_NS
static void paused(tw_pause_clock *p, tw_cause cause, uint64_t from, uint64_t to) {
    tw_pause_begin(p, cause, from * U);
    tw_pause_end(p, to * U, NULL, NULL);
}

static tw_overlap_by_source overlap_of(const tw_pause_clock *own, const tw_peer *peers, uint32_t n, uint64_t engine, uint64_t from, uint64_t to) {
    tw_overlap_by_source out;
    memset(&out, 0xa5, sizeof out);
    tw_gap_overlap(own, peers, n, engine, from * U, to * U, &out);
    uint64_t sum = 0;
    for (int s = 0; s < TW_SOURCES; ++s)
        for (int c = 0; c < TW_CAUSES; ++c) sum += out.overlap_ns[s][c];
    TW_CHECK_EQ(out.total_ns, sum);
    TW_CHECK(out.total_ns <= (to - from) * U);
    return out;
}

TW_TEST(alone_it_is_the_overlap) {
    tw_pause_clock *p = clocks(1);
    paused(p, TW_CAUSE_GC2, 10, 20);
    paused(p, TW_CAUSE_GC1, 30, 31);
    tw_overlap_by_source b = overlap_of(p, NULL, 0, 0, 15, 40);
    TW_CHECK_EQ(5 * U, b.overlap_ns[0][TW_CAUSE_GC2]);
    TW_CHECK_EQ(1 * U, b.overlap_ns[0][TW_CAUSE_GC1]);
    TW_CHECK(b.complete);
    free(p);
}

TW_TEST(one_s_own_pause_comes_first) {
    tw_pause_clock *p = clocks(2);
    const tw_peer engine = {&p[1], 1, 1};
    paused(&p[0], TW_CAUSE_GC0, 12, 14);
    paused(&p[1], TW_CAUSE_GC2, 10, 20);
    tw_overlap_by_source b = overlap_of(&p[0], &engine, 1, 0, 0, 100);
    TW_CHECK_EQ(2 * U, b.overlap_ns[0][TW_CAUSE_GC0]);
    TW_CHECK_EQ(8 * U, b.overlap_ns[1][TW_CAUSE_GC2]);
    free(p);
}

TW_TEST(ranks_of_one_engine_count_together) {
    tw_pause_clock *p = clocks(3);
    const tw_peer ranks[] = {{&p[1], 1, 1}, {&p[2], 1, 2}};
    paused(&p[1], TW_CAUSE_GC2, 10, 20);
    paused(&p[2], TW_CAUSE_GC2, 15, 25);
    tw_overlap_by_source b = overlap_of(&p[0], ranks, 2, 1, 0, 100);
    TW_CHECK_EQ(10 * U, b.overlap_ns[1][TW_CAUSE_GC2]);
    TW_CHECK_EQ(5 * U, b.overlap_ns[2][TW_CAUSE_GC2]);
    free(p);
}

TW_TEST(of_several_engines_only_the_one_that_serves) {
    tw_pause_clock *p = clocks(3);
    const tw_peer engines[] = {{&p[1], 1, 1}, {&p[2], 2, 1}};
    paused(&p[1], TW_CAUSE_GC2, 10, 20);
    paused(&p[2], TW_CAUSE_GC1, 30, 60);
    TW_CHECK_EQ(10 * U, overlap_of(&p[0], engines, 2, 1, 0, 100).overlap_ns[1][TW_CAUSE_GC2]);
    TW_CHECK_EQ(30 * U, overlap_of(&p[0], engines, 2, 2, 0, 100).total_ns);
    TW_CHECK_EQ(0, overlap_of(&p[0], engines, 2, 3, 0, 100).total_ns);
    free(p);
}

TW_TEST(where_it_is_not_known_never_a_sum_over_engines) {
    tw_pause_clock *p = clocks(3);
    const tw_peer engines[] = {{&p[1], 1, 1}, {&p[2], 2, 1}};
    paused(&p[0], TW_CAUSE_GC0, 50, 55);
    paused(&p[1], TW_CAUSE_GC2, 10, 20);
    paused(&p[2], TW_CAUSE_GC1, 30, 60);
    tw_overlap_by_source b = overlap_of(&p[0], engines, 2, 0, 0, 100);
    TW_CHECK_EQ(30 * U, b.total_ns);
    TW_CHECK_EQ(5 * U, b.overlap_ns[0][TW_CAUSE_GC0]);
    TW_CHECK_EQ(25 * U, b.overlap_ns[TW_SOURCE_UNBOUND][TW_CAUSE_GC1]);
    TW_CHECK_EQ(0, b.overlap_ns[TW_SOURCE_UNBOUND][TW_CAUSE_GC2]);
    free(p);
}

TW_TEST(what_works_for_all_engines_counts_whichever_serves) {
    tw_pause_clock *p = clocks(4);
    const tw_peer peers[] = {{&p[1], 1, 1}, {&p[2], 2, 1}, {&p[3], TW_ENGINE_SHARED, 2}};
    paused(&p[1], TW_CAUSE_GC2, 10, 20);
    paused(&p[2], TW_CAUSE_GC1, 30, 60);
    paused(&p[3], TW_CAUSE_GC2, 15, 40);
    tw_overlap_by_source bound = overlap_of(&p[0], peers, 3, 1, 0, 100);
    TW_CHECK_EQ(5 * U, bound.overlap_ns[1][TW_CAUSE_GC2]);
    TW_CHECK_EQ(25 * U, bound.overlap_ns[2][TW_CAUSE_GC2]);
    TW_CHECK_EQ(0, bound.overlap_ns[1][TW_CAUSE_GC1]);
    tw_overlap_by_source unbound = overlap_of(&p[0], peers, 3, 0, 0, 100);
    TW_CHECK_EQ(25 * U, unbound.overlap_ns[2][TW_CAUSE_GC2]);
    TW_CHECK_EQ(20 * U, unbound.overlap_ns[TW_SOURCE_UNBOUND][TW_CAUSE_GC1]);
    TW_CHECK_EQ(45 * U, unbound.total_ns);
    TW_CHECK_EQ(25 * U, overlap_of(&p[0], &peers[2], 1, 0, 0, 100).overlap_ns[2][TW_CAUSE_GC2]);
    TW_CHECK_EQ(25 * U, overlap_of(&p[0], &peers[2], 1, 7, 0, 100).total_ns);
    TW_CHECK_EQ(5 * U, overlap_of(&p[0], &peers[1], 2, 0, 35, 40).total_ns);
    free(p);
}

TW_TEST(what_works_for_no_engine_delays_no_other_process) {
    tw_pause_clock *p = clocks(3);
    const tw_peer peers[] = {{&p[1], 0, 1}, {&p[2], 1, 1}};
    paused(&p[1], TW_CAUSE_GC2, 10, 20);
    TW_CHECK_EQ(0, overlap_of(&p[0], peers, 2, 0, 0, 100).total_ns);
    TW_CHECK_EQ(0, overlap_of(&p[0], peers, 1, 0, 0, 100).total_ns);
    free(p);
}

TW_TEST(a_source_out_of_range_counts_as_the_last) {
    tw_pause_clock *p = clocks(2);
    static const uint32_t sources[] = {0, TW_SOURCE_UNBOUND, TW_SOURCES, UINT32_MAX};
    paused(&p[1], TW_CAUSE_GC2, 10, 20);
    for (size_t i = 0; i < sizeof sources / sizeof *sources; ++i) {
        const tw_peer peer = {&p[1], 1, sources[i]};
        TW_CHECK_EQ(10 * U, overlap_of(&p[0], &peer, 1, 0, 0, 100).overlap_ns[TW_SOURCE_OTHER][TW_CAUSE_GC2]);
    }
    free(p);
}

TW_TEST(peers_are_idle_where_those_of_the_engine_are) {
    uint64_t stops[2] = {1000, UINT64_MAX};
    tw_peer_set peer_set = {.n = 2, .stop_ns = {&stops[0], &stops[1]}, .peer = {{NULL, 1, 1}, {NULL, 2, 1}}};
    TW_CHECK(!tw_peers_idle_since(&peer_set, 1, 999));
    TW_CHECK(tw_peers_idle_since(&peer_set, 1, 1000));
    TW_CHECK(!tw_peers_idle_since(&peer_set, 2, UINT64_MAX - 1));
    TW_CHECK(!tw_peers_idle_since(&peer_set, 0, 5000));
    TW_CHECK(tw_peers_idle_since(&peer_set, 3, 0));
    peer_set.peer[0].engine = TW_ENGINE_SHARED;
    TW_CHECK(!tw_peers_idle_since(&peer_set, 3, 999));
    TW_CHECK(tw_peers_idle_since(&peer_set, 3, 1000));
    peer_set.n = 0;
    TW_CHECK(tw_peers_idle_since(&peer_set, 0, 0));
}

TW_TEST(an_open_pause_counts_up_to_the_token) {
    tw_pause_clock *p = clocks(2);
    const tw_peer engine = {&p[1], 1, 1};
    tw_pause_begin(&p[1], TW_CAUSE_GC2, 60 * U);
    TW_CHECK_EQ(40 * U, overlap_of(&p[0], &engine, 1, 0, 0, 100).overlap_ns[1][TW_CAUSE_GC2]);
    free(p);
}

TW_TEST(a_ring_that_wrapped_gives_lower_bounds) {
    tw_pause_clock *p = clocks(2);
    const tw_peer engine = {&p[1], 1, 1};
    for (uint64_t i = 0; i < TW_PAUSE_RING + 10; ++i) paused(&p[1], TW_CAUSE_GC0, 2 * i + 2, 2 * i + 3);
    tw_overlap_by_source b = overlap_of(&p[0], &engine, 1, 0, 0, 4000);
    TW_CHECK(!b.complete);
    TW_CHECK_EQ(TW_OVERLAP_SPANS * U, b.overlap_ns[1][TW_CAUSE_GC0]);
    TW_CHECK(overlap_of(&p[0], &engine, 1, 0, 2000, 2060).complete);
    free(p);
}

TW_TEST(a_clock_that_lies_stays_inside_the_gap) {
    tw_pause_clock *p = clocks(2);
    const tw_peer peer = {&p[1], 1, 1};
    uint64_t seed = 88172645463325252u;
    for (int round = 0; round < 2000; ++round) {
        for (uint64_t i = 0; i < 40; ++i) {
            tw_pause_record *r = &p[1].ring[i];
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            *r = (tw_pause_record){.seq = i + 1, .start_ns = seed % (200 * U), .stop_ns = (seed >> 20) % (200 * U), .cause = (seed >> 40) % 8};
        }
        p[1].head = seed % 3 ? 40 : seed;
        p[1].last_stop_ns = seed % 5 ? UINT64_MAX - 1 : TW_PAUSE_OPEN;
        p[1].open_start_ns = seed % (300 * U);
        p[1].open_cause = seed % 9;
        (void)overlap_of(&p[0], &peer, 1, 0, 50, 100);
    }
    free(p);
}

/* ---- against a reference ---- */

static uint64_t below(uint64_t *seed, uint64_t n) {
    *seed ^= *seed << 13, *seed ^= *seed >> 7, *seed ^= *seed << 17;
    return *seed % n;
}

enum { HORIZON = 400 };

/* which[t]: the first clock that stood still in unit t of time, and why. */
typedef struct truth { int clock[HORIZON], cause[HORIZON]; } truth;

static void lay(truth *t, int clock, int cause, uint64_t from, uint64_t to) {
    for (uint64_t i = from; i < to; ++i)
        if (t->clock[i] < 0) t->clock[i] = clock, t->cause[i] = cause;
}

static void random_pauses(uint64_t *seed, tw_pause_clock *p, truth *t, int clock) {
    for (uint64_t at = 1 + below(seed, 30); at < HORIZON - 40; at += 1 + below(seed, 60)) {
        const uint64_t to = at + 1 + below(seed, 30);
        const int cause = (int)below(seed, TW_CAUSES);
        paused(p, (tw_cause)cause, at, to);
        lay(t, clock, cause, at, to);
        at = to;
    }
}

TW_TEST(shares_are_those_of_a_look_at_every_instant) {
    uint64_t seed = 2463534242;
    for (int round = 0; round < 3000; ++round) {
        tw_pause_clock *p = clocks(PEERS + 1);
        tw_peer peers[PEERS];
        truth t;
        memset(t.clock, -1, sizeof t.clock);
        for (int i = 0; i <= PEERS; ++i) random_pauses(&seed, &p[i], &t, i);
        for (int i = 0; i < PEERS; ++i) peers[i] = (tw_peer){&p[i + 1], 7, (uint32_t)i + 1};
        const uint64_t from = below(&seed, HORIZON - 1), to = from + 1 + below(&seed, HORIZON - from - 1);
        uint64_t expected[TW_SOURCES][TW_CAUSES] = {{0}};
        for (uint64_t i = from; i < to; ++i)
            if (t.clock[i] >= 0) expected[t.clock[i]][t.cause[i]] += U;
        tw_overlap_by_source b = overlap_of(&p[0], peers, PEERS, below(&seed, 2) * 7, from, to);
        TW_CHECK_MEM(expected, b.overlap_ns, sizeof expected);
        TW_CHECK(b.complete);
        free(p);
    }
}
