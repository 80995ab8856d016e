/* What a wait is charged where tokens pass through a process behind the engine: at most the wait itself. */
#include "tailwatch/attribute/charge.h"

#include "tailwatch/attribute/engine_id.h"
#include "tw_test.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

/* A process that is not the engine, the engine, and one that the tokens of all engines pass through. */
enum { OWN, ENGINE, BEHIND, CLOCKS };
static tw_segment *g;
static tw_pause_clock *clock_of[CLOCKS];
static tw_pause_clock *others;
static uint64_t stop_ns[CLOCKS];
static tw_peer_set *peers;
static tw_served_by by;

static void begin(void) {
    TW_REQUIRE(tw_segment_create(&g, "api", 2, false, NULL, 0) == 0);
    others = calloc(CLOCKS, sizeof *others);
    peers = calloc(1, sizeof *peers);
    TW_REQUIRE(others != NULL && peers != NULL);
    clock_of[OWN] = &g->pause;
    for (int i = ENGINE; i < CLOCKS; ++i) {
        tw_pause_init(&others[i]);
        clock_of[i] = &others[i];
        stop_ns[i] = 0;
        peers->peer[i - 1] = (tw_peer){&others[i], i == ENGINE ? TW_ENGINE_NUMBER : TW_ENGINE_SHARED, (uint32_t)i};
        peers->stop_ns[i - 1] = &stop_ns[i];
    }
    peers->n = CLOCKS - 1;
    by = (tw_served_by){peers, TW_ENGINE_NUMBER};
}

static void end(void) {
    tw_segment_destroy(g);
    free(others);
    free(peers);
}
TW_AROUND(begin, end)

static void paused(int who, tw_cause cause, uint64_t from, uint64_t to) {
    tw_pause_begin(clock_of[who], cause, from);
    tw_pause_end(clock_of[who], to, NULL, NULL);
    stop_ns[who] = to;
}

static tw_ready ready_of(uint64_t before, uint64_t key, uint64_t recv) {
    return (tw_ready){.known = true, .by_engine = true, .lo_ns = key, .hi_ns = key, .engine_from_ns = before, .recv_ns = recv};
}

/* Two tokens were in transit in one pause, and came at once after it. The second waited for the first alone. */
TW_TEST(a_pause_behind_the_engine_is_charged_to_the_gap_it_lies_in) {
    const uint64_t typical = 500 * US, sent = 410 * MS, next = sent + MS;
    const tw_ready first = ready_of(90 * MS, 110 * MS, 401 * MS), second = ready_of(110 * MS, 120 * MS, next - 100 * US);
    tw_charge d;
    paused(BEHIND, TW_CAUSE_GC2, 100 * MS, 400 * MS);
    tw_charge_gap(g, by, 95 * MS, sent, typical, &first, &d);
    TW_CHECK_EQ(290 * MS, d.delay_ns);
    paused(OWN, TW_CAUSE_GC0, sent + 100 * US, sent + 200 * US);
    paused(BEHIND, TW_CAUSE_GC0, sent + 300 * US, sent + 360 * US);
    tw_charge_gap(g, by, sent, next, typical, &second, &d);
    TW_CHECK_EQ(160 * US, d.by_source.total_ns);
    TW_CHECK_EQ(160 * US, d.delay_ns);
    TW_CHECK_EQ(60 * US, d.passing_ns);
}

/* Its engine paused as it made the token, whose wait a token before it had for the most part. */
TW_TEST(a_pause_of_the_engine_is_charged_up_to_the_gap) {
    const uint64_t sent = 410 * MS, next = sent + MS;
    const tw_ready ready = ready_of(90 * MS, 405 * MS, next - 100 * US);
    tw_charge d;
    paused(ENGINE, TW_CAUSE_GC2, 100 * MS, 400 * MS);
    paused(BEHIND, TW_CAUSE_GC0, sent + 300 * US, sent + 360 * US);
    tw_charge_gap(g, by, sent, next, 500 * US, &ready, &d);
    TW_CHECK_EQ(MS, d.delay_ns);
    TW_CHECK_EQ(60 * US, d.passing_ns);
        TW_CHECK_EQ(300 * MS - (MS - 60 * US), d.beyond_ns);
}

/* One after the token's stamp, as the engine made the next one, is charged to that. */
TW_TEST(a_pause_of_the_engine_is_charged_to_the_token_that_it_made) {
    const tw_ready first = ready_of(95 * MS, 100 * MS, 111 * MS), second = ready_of(100 * MS, 109 * MS, 119 * MS);
    tw_charge d;
    paused(ENGINE, TW_CAUSE_GC1, 102 * MS, 106 * MS);
    paused(OWN, TW_CAUSE_GC0, 112 * MS, 112 * MS + 100 * US);
    paused(BEHIND, TW_CAUSE_GC0, 117 * MS, 117 * MS + 100 * US);
    tw_charge_gap(g, by, 110 * MS, 115 * MS, 5 * MS, &first, &d);
    TW_CHECK_EQ(100 * US, d.delay_ns);
    tw_charge_gap(g, by, 115 * MS, 120 * MS, 500 * US, &second, &d);
    TW_CHECK_EQ(4 * MS + 100 * US, d.delay_ns);
}

static tw_segment *engine_with_steps(void) {
    tw_segment *engine = NULL;
    TW_REQUIRE(tw_segment_create(&engine, "engine", 2, false, NULL, 0) == 0);
    tw_store(&engine->step_ring.head, 1);
    peers->segment[ENGINE - 1] = engine;
    return engine;
}

/* Of one that was made at 110 ms and came at 402: 1 ms is what its way usually takes. */
static tw_charge charge_of_late_token(void) {
    tw_ready ready = ready_of(90 * MS, 110 * MS, 402 * MS);
    tw_charge d;
    ready.way_ns = MS;
    tw_charge_gap(g, by, 95 * MS, 403 * MS, 20 * MS, &ready, &d);
    return d;
}

/* The thread that sends it waits for the pause. The next one is not late. */
TW_TEST(a_pause_of_the_engine_before_a_token_has_left_is_charged_to_that) {
    tw_ready next = ready_of(402 * MS, 410 * MS, 411 * MS);
    next.way_ns = MS;
    paused(ENGINE, TW_CAUSE_GC2, 111 * MS, 400 * MS);
    tw_charge d = charge_of_late_token();
    TW_CHECK_EQ(0, d.delay_ns); /* not known to be the process that sends it: a worker */
    tw_segment *engine = engine_with_steps();
    for (int known = 0; known < 2; ++known) {
        by.engine = known ? TW_ENGINE_NUMBER : 0;
        d = charge_of_late_token();
        TW_CHECK_EQ(289 * MS, d.delay[ENGINE][TW_CAUSE_GC2]);
        TW_CHECK_EQ(0, d.certain[ENGINE][TW_CAUSE_GC2]);
        TW_CHECK_EQ(289 * MS, d.leaving_ns);
        TW_CHECK_EQ(289 * MS, d.passing_ns);
    }
    paused(OWN, TW_CAUSE_GC0, 404 * MS, 404 * MS + 100 * US);
    tw_charge_gap(g, by, 403 * MS, 412 * MS, 8 * MS, &next, &d);
    TW_CHECK_EQ(0, d.delay[ENGINE][TW_CAUSE_GC2]);
    tw_segment_destroy(engine);
}

/* It pauses while the token is on its way, or late here: the token had left. */
TW_TEST(a_pause_of_the_engine_after_a_token_has_left_is_not_charged_to_that) {
    tw_segment *engine = engine_with_steps();
    paused(ENGINE, TW_CAUSE_GC2, 113 * MS, 300 * MS);
    TW_CHECK_EQ(0, charge_of_late_token().delay_ns);
    tw_segment_destroy(engine);
}

TW_TEST(which_rank_sends_is_not_known_where_all_have_one_source) {
    tw_segment *engine = engine_with_steps();
    peers->peer[BEHIND - 1] = (tw_peer){&others[BEHIND], TW_ENGINE_NUMBER, ENGINE};
    paused(BEHIND, TW_CAUSE_GC2, 110 * MS, 400 * MS);
    TW_CHECK_EQ(0, charge_of_late_token().delay_ns);
    tw_segment_destroy(engine);
}

TW_TEST(a_first_token_is_charged_from_the_entry_on) {
    const tw_ready ready = ready_of(90 * MS, 110 * MS, 401 * MS);
    tw_charge d;
    paused(BEHIND, TW_CAUSE_GC2, 100 * MS, 400 * MS);
    tw_charge_first_token(g, by, 389 * MS, 390 * MS, 402 * MS, 0, &ready, &d);
    TW_CHECK_EQ(10 * MS, d.delay_ns);
    TW_CHECK_EQ(10 * MS, d.passing_ns);
}

/* The loop slept until the token came, but what brings it here stood still with the process. */
TW_TEST(a_pause_of_the_own_process_is_charged_where_another_thread_brings_the_token) {
    tw_ready ready = {.known = true, .lo_ns = 405 * MS, .hi_ns = 405 * MS};
    tw_charge d;
    paused(OWN, TW_CAUSE_GC2, 100 * MS, 400 * MS);
    tw_charge_gap(g, by, 95 * MS, 406 * MS, 20 * MS, &ready, &d);
    TW_CHECK_EQ(0, d.delay_ns);
    ready.by_thread = true;
    tw_charge_gap(g, by, 95 * MS, 406 * MS, 20 * MS, &ready, &d);
    TW_CHECK_EQ(290 * MS, d.delay[0][TW_CAUSE_GC2]);
    TW_CHECK_EQ(0, d.certain[0][TW_CAUSE_GC2]);
    ready.lo_ns = ready.hi_ns = 450 * MS; /* it had come sooner, if it had been there */
    tw_charge_gap(g, by, 95 * MS, 451 * MS, 20 * MS, &ready, &d);
    TW_CHECK_EQ(0, d.delay_ns);
}

static uint64_t between(uint64_t *random, uint64_t from, uint64_t to) {
    return (from + tw_test_random(random) % (to - from + 1)) & ~UINT64_C(1);
}

static void check_charge(const tw_charge *d, uint64_t wait_ns) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < TW_SOURCES * TW_CAUSES; ++i) {
        sum += d->delay[i / TW_CAUSES][i % TW_CAUSES];
        TW_CHECK(d->certain[i / TW_CAUSES][i % TW_CAUSES] <= d->delay[i / TW_CAUSES][i % TW_CAUSES]);
    }
    TW_CHECK_EQ(d->delay_ns, sum);
    TW_CHECK(d->delay_ns <= wait_ns);
    TW_CHECK(d->passing_ns <= d->delay_ns);
}

TW_TEST(no_charge_exceeds_its_wait) {
    uint64_t random = 11;
    tw_segment *engine = engine_with_steps();
    for (int who = 0; who < CLOCKS; ++who)
        for (uint64_t at = between(&random, 0, 9 * MS); at < 1000 * MS; at += between(&random, 200 * US, 9 * MS)) {
            const uint64_t from = at;
            at += between(&random, 2 * TW_PAUSE_SHORT_NS, tw_test_random(&random) % 8 == 0 ? 90 * MS : MS);
            paused(who, (tw_cause)(tw_test_random(&random) % TW_CAUSES), from, at);
        }
    for (int i = 0; i < 5000; ++i) {
        const uint64_t to = between(&random, 500 * MS, 900 * MS);
        const uint64_t from = to - between(&random, 100 * US, tw_test_random(&random) % 2 == 0 ? 2 * MS : 100 * MS);
        const uint64_t recv = between(&random, from - 50 * MS, to), key = between(&random, recv - 150 * MS, recv);
        const uint64_t typical = between(&random, 0, to - from), entry = between(&random, from, to);
        tw_ready ready[] = {ready_of(between(&random, key - 100 * MS, key), key, recv),
                            {.known = true, .lo_ns = key, .hi_ns = key, .engine_from_ns = from, .recv_ns = recv},
                            {.known = true, .lo_ns = key, .hi_ns = recv},
                            {.known = true, .by_thread = true, .lo_ns = key, .hi_ns = recv}, {.known = false}};
        by.engine = tw_test_random(&random) % 2 == 0 ? TW_ENGINE_NUMBER : 0;
        for (size_t k = 0; k < sizeof ready / sizeof *ready; ++k) {
            tw_charge d;
            ready[k].way_ns = between(&random, 0, 2 * MS);
            tw_charge_gap(g, by, from, to, typical, &ready[k], &d);
            check_charge(&d, to - from);
            tw_charge_first_token(g, by, from, entry, to, typical, &ready[k], &d);
            check_charge(&d, to - from);
        }
    }
    tw_segment_destroy(engine);
}
