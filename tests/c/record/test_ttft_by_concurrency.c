/* What is kept of TTFT by concurrency: which row, for how long, how two processes' add up; and what is read out of it. */
#include "tailwatch/record/ttft_by_concurrency.h"

#include <pthread.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/aggregate/concurrency_knee.h"
#include "tailwatch/stamp/stream.h"
#include "tw_test.h"

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)
#define S0 (10000 * SECOND) /* some time after boot */

static tw_ttft_by_concurrency ttfts, other;

static void clear(void) {
    memset(&ttfts, 0, sizeof ttfts);
    memset(&other, 0, sizeof other);
}

static uint64_t kept(const tw_ttft_by_concurrency *of, uint64_t streams) {
    const tw_ttft_level *level = &of->level[tw_ttft_level_of(streams)];
    uint64_t n = 0;
    for (int i = 0; i < TW_TTFT_KEPT; i++) n += level->sample[i] != 0;
    return n;
}

static tw_healthy find(uint64_t now_ns) {
    const tw_ttft_by_concurrency *ttft_sets[] = {&ttfts, &other};
    tw_healthy h;
    TW_REQUIRE(tw_healthy_find(&h, ttft_sets, 2, now_ns) == 0);
    return h;
}

/* ---- rows ---- */

TW_TEST(every_concurrency_has_one_row) {
    uint64_t next = 1, lowest, highest;
    for (uint32_t i = 0; i < TW_TTFT_LEVELS; i++) {
        tw_ttft_level_edges(i, &lowest, &highest);
        TW_CHECK_EQ(next, lowest);
        TW_CHECK_EQ(i, tw_ttft_level_of(lowest));
        TW_CHECK_EQ(i, tw_ttft_level_of(highest));
        next = highest + 1;
    }
    TW_CHECK_EQ(TW_TTFT_STREAMS_MAX + 1, next);
    TW_CHECK_EQ(0, tw_ttft_level_of(0));
    TW_CHECK_EQ(TW_TTFT_LEVELS - 1, tw_ttft_level_of(UINT64_MAX));
}

TW_TEST(a_row_is_at_most_a_thirtysecond_wide) {
    uint64_t lowest, highest;
    for (uint32_t i = 0; i < TW_TTFT_LEVELS; i++) {
        tw_ttft_level_edges(i, &lowest, &highest);
        TW_CHECK((highest - lowest + 1) * 32 <= lowest || highest == lowest);
    }
}

/* ---- what is kept ---- */

TW_TEST(a_row_keeps_the_newest) {
    clear();
    for (uint64_t i = 0; i < 100; i++) tw_ttft_note(&ttfts, 7, i * MS, S0 + i * SECOND);
    TW_CHECK_EQ(TW_TTFT_KEPT, kept(&ttfts, 7));
    for (int i = 0; i < TW_TTFT_KEPT; i++) TW_CHECK(tw_ttft_seconds(ttfts.level[6].sample[i]) > 0.069);
}

TW_TEST(a_full_row_takes_one_in_two_seconds) {
    clear();
    for (uint64_t i = 0; i < 1000; i++) tw_ttft_note(&ttfts, 7, 5 * MS, S0);
    for (uint64_t i = 0; i < 1000; i++) tw_ttft_note(&ttfts, 7, 9 * MS, S0 + 2 * SECOND);
    uint64_t late = 0;
    for (int i = 0; i < TW_TTFT_KEPT; i++) late += tw_ttft_seconds(ttfts.level[6].sample[i]) > 0.008;
    TW_CHECK_EQ(1, late);
}

TW_TEST(a_ttft_too_long_to_keep_is_the_longest) {
    clear();
    tw_ttft_note(&ttfts, 1, UINT64_MAX, S0);
    TW_CHECK_NEAR(4294, tw_ttft_seconds(ttfts.level[0].sample[0]), 10);
    TW_CHECK_EQ(0, tw_ttft_age_s(ttfts.level[0].sample[0], S0));
}

TW_TEST(a_sample_is_a_ttft_and_a_time) {
    uint64_t random = 7;
    for (int i = 0; i < 100000; i++) {
        const uint64_t ns = tw_test_random(&random) >> (23 + tw_test_random_below(&random, 36));
        const uint64_t at = tw_test_random_below(&random, UINT64_C(1) << 60), after = tw_test_random_below(&random, 60000);
        const uint32_t sample = tw_ttft_sample(ns, at);
        const double s = (double)(ns < 1000 ? 1000 : ns) / 1e9;
        TW_CHECK(sample != 0);
        TW_CHECK_NEAR(s, tw_ttft_seconds(sample), s * 0.002 + 1e-6);
        TW_CHECK_NEAR((double)after, (double)tw_ttft_age_s(sample, at + after * SECOND), 2);
    }
    TW_CHECK(tw_ttft_age_s(tw_ttft_sample(1, S0 + 10 * SECOND), S0) > 86400);
}

TW_TEST(another_meaning_of_concurrency_forgets) {
    clear();
    tw_ttft_note(&ttfts, 3, MS, S0);
    tw_ttft_share(&ttfts, 0);
    TW_CHECK_EQ(1, kept(&ttfts, 3));
    tw_ttft_share(&ttfts, 1);
    TW_CHECK_EQ(0, kept(&ttfts, 3));
}

TW_TEST(a_sum_has_the_newest_of_both) {
    clear();
    for (uint64_t i = 0; i < TW_TTFT_KEPT; i++) {
        tw_ttft_note(&ttfts, 5, MS, S0 + 2 * i * SECOND);
        tw_ttft_note(&other, 5, 2 * MS, S0 + (2 * i + 1) * SECOND);
    }
    tw_ttft_add(&ttfts, &other);
    TW_CHECK_EQ(TW_TTFT_KEPT, kept(&ttfts, 5));
    TW_CHECK_EQ(2 * TW_TTFT_KEPT, ttfts.level[4].seen);
    for (int i = 0; i < TW_TTFT_KEPT; i++)
        TW_CHECK(tw_ttft_age_s(ttfts.level[4].sample[i], S0 + 60 * SECOND) <= 60 - TW_TTFT_KEPT + 2);
}

/* ---- requests ---- */

TW_TEST(a_stream_waits_and_then_runs) {
    tw_segment *g;
    tw_stream a, b;
    TW_REQUIRE(tw_segment_create(&g, "api", 1, false, NULL, 0) == 0);
    tw_stream_open(&a, g, S0, S0, 0, TW_ARRIVAL_ASGI);
    tw_stream_open(&b, g, S0, S0, 0, TW_ARRIVAL_ASGI);
    TW_CHECK_EQ(1, a.concurrency);
    TW_CHECK_EQ(2, b.concurrency);
    TW_CHECK_EQ(0, g->ttft_by_concurrency.running);
    tw_stream_token(&a, S0 + 40 * MS, 1, 0);
    tw_stream_token(&a, S0 + 50 * MS, 1, 0);
    TW_CHECK_EQ(1, g->ttft_by_concurrency.running);
    tw_stream_close(&a, S0 + 50 * MS, TW_END_FINISHED);
    tw_stream_close(&b, S0 + 50 * MS, TW_END_ABORT);
    TW_CHECK_EQ(0, g->ttft_by_concurrency.running);
    TW_CHECK_EQ(0, g->in_flight);
    TW_CHECK_EQ(1, kept(&g->ttft_by_concurrency, 1));
    TW_CHECK_EQ(0, kept(&g->ttft_by_concurrency, 2)); /* no first token: nothing is known of it */
    TW_CHECK_NEAR(0.04, tw_ttft_seconds(g->ttft_by_concurrency.level[0].sample[0]), 0.0001);
    tw_segment_destroy(g);
}

TW_TEST(what_cannot_be_read_runs_from_its_first_bytes) {
    tw_segment *g;
    tw_stream s;
    TW_REQUIRE(tw_segment_create(&g, "api", 1, false, NULL, 0) == 0);
    tw_stream_open(&s, g, S0, S0, 0, TW_ARRIVAL_ASGI);
    tw_stream_opaque(&s);
    tw_stream_body(&s, S0 + MS);
    tw_stream_body(&s, S0 + 2 * MS);
    TW_CHECK_EQ(1, g->ttft_by_concurrency.running);
    tw_stream_close(&s, S0 + 3 * MS, TW_END_FINISHED);
    TW_CHECK_EQ(0, g->ttft_by_concurrency.running);
    tw_segment_destroy(g);
}

TW_TEST(a_reset_forgets_it) {
    tw_segment *g;
    tw_stream s;
    TW_REQUIRE(tw_segment_create(&g, "api", 1, false, NULL, 0) == 0);
    tw_stream_open(&s, g, S0, S0, 0, TW_ARRIVAL_ASGI);
    tw_stream_token(&s, S0 + MS, 1, 0);
    tw_segment_reset(g);
    TW_CHECK_EQ(0, g->ttft_by_concurrency.running);
    TW_CHECK_EQ(0, kept(&g->ttft_by_concurrency, 1));
    tw_stream_close(&s, S0 + 2 * MS, TW_END_FINISHED); /* as a fork child's inherited stream might */
    TW_CHECK_EQ(0, g->ttft_by_concurrency.running);
    tw_segment_destroy(g);
}

/* ---- the healthy concurrency ---- */

/* Five samples of each of 1 .. most, a tenth spread. TTFT: base + slope x, and bend more for each stream above knee. */
static void line(tw_ttft_by_concurrency *to, uint64_t most, uint64_t base_us, uint64_t slope_us, uint64_t knee, uint64_t bend_us, uint64_t at) {
    uint64_t random = 42;
    for (uint64_t x = 1; x <= most; x++)
        for (uint64_t i = 0; i < 5; i++) {
            const uint64_t us = base_us + slope_us * x + bend_us * (x > knee ? x - knee : 0);
            tw_ttft_note(to, x, (us * (950 + tw_test_random_below(&random, 100))), at + i * SECOND);
        }
}

TW_TEST(a_bend_is_found) {
    clear();
    line(&ttfts, 60, 50000, 100, 24, 8000, S0);
    const tw_healthy h = find(S0 + 10 * SECOND);
    TW_CHECK_EQ(TW_HEALTHY_FOUND, h.verdict);
    TW_CHECK_NEAR(24, h.streams, 1.5);
    TW_CHECK(h.confidence > 0.8 && h.confidence <= 1);
    TW_CHECK_NEAR(0.052, tw_healthy_ttft(&h, 20), 0.006);
    TW_CHECK_NEAR(0.053 + 16 * 0.008, tw_healthy_ttft(&h, 40), 0.015);
    TW_CHECK_EQ(1, h.lowest);
    TW_CHECK_EQ(60, h.highest);
    TW_CHECK_EQ(120, h.window_s);
}

TW_TEST(a_line_has_none) {
    clear();
    line(&ttfts, 100, 1000, 2000, 0, 0, S0);
    const tw_healthy h = find(S0 + 10 * SECOND);
    TW_CHECK_EQ(TW_HEALTHY_NO_INFLECTION, h.verdict);
    TW_CHECK(h.streams == 0 && h.confidence == 0);
    TW_CHECK_NEAR(0.161, tw_healthy_ttft(&h, 80), 0.01);
}

TW_TEST(a_level_line_has_none) {
    clear();
    line(&ttfts, 100, 50000, 0, 0, 0, S0);
    TW_CHECK_EQ(TW_HEALTHY_NO_INFLECTION, find(S0 + 10 * SECOND).verdict);
}

TW_TEST(a_curve_that_falls_has_none) {
    clear();
    for (uint64_t x = 1; x <= 40; x++)
        for (uint64_t i = 0; i < 5; i++) tw_ttft_note(&ttfts, x, (100 - 2 * x) * MS, S0 + i * SECOND);
    TW_CHECK_EQ(TW_HEALTHY_NO_INFLECTION, find(S0 + 10 * SECOND).verdict);
}

TW_TEST(few_data_and_one_level_are_verdicts) {
    clear();
    tw_healthy h = find(S0);
    TW_CHECK_EQ(TW_HEALTHY_FEW_DATA, h.verdict);
    TW_CHECK(tw_healthy_ttft(&h, 1) < 0);
    tw_ttft_note(&ttfts, 4, 30 * MS, S0);
    h = find(S0);
    TW_CHECK_EQ(TW_HEALTHY_FEW_DATA, h.verdict);
    TW_CHECK_NEAR(0.03, tw_healthy_ttft(&h, 100), 1e-4);
    for (uint64_t i = 0; i < 100; i++) tw_ttft_note(&ttfts, 30 + i % 4, 30 * MS, S0 + i * SECOND);
    TW_CHECK_EQ(TW_HEALTHY_SINGLE_LEVEL, find(S0 + 100 * SECOND).verdict);
}

TW_TEST(processes_are_read_together) {
    clear();
    line(&ttfts, 20, 50000, 0, 16, 20000, S0);
    line(&other, 40, 50000, 0, 16, 20000, S0);
    const tw_healthy h = find(S0 + 10 * SECOND);
    TW_CHECK_EQ(TW_HEALTHY_FOUND, h.verdict);
    TW_CHECK_NEAR(16, h.streams, 1);
    TW_CHECK_EQ(300, h.samples);
}

TW_TEST(two_meanings_of_concurrency_do_not_mix) {
    clear();
    tw_ttft_share(&other, 1);
    line(&ttfts, 60, 50000, 0, 24, 8000, S0);
    line(&other, 60, 50000, 0, 40, 8000, S0);
    const tw_healthy h = find(S0 + 10 * SECOND);
    TW_CHECK_EQ(300, h.samples);
    TW_CHECK_NEAR(40, h.streams, 2);
}

TW_TEST(old_data_do_not_count) {
    clear();
    line(&ttfts, 60, 50000, 0, 24, 8000, S0);
    TW_CHECK_EQ(TW_HEALTHY_FOUND, find(S0 + (TW_TTFT_FORGET_S - 10) * SECOND).verdict);
    TW_CHECK_EQ(TW_HEALTHY_FEW_DATA, find(S0 + (TW_TTFT_FORGET_S + 20) * SECOND).verdict);
}

TW_TEST(times_ahead_do_not_count) {
    clear();
    line(&ttfts, 60, 50000, 0, 24, 8000, S0 + 100 * SECOND);
    TW_CHECK_EQ(TW_HEALTHY_FEW_DATA, find(S0).verdict);
}

static void *note_on(void *until) {
    for (uint64_t i = 0; tw_load(until) == 0; i++) tw_ttft_note(&ttfts, 1 + i * 7 % 60, 50 * MS, S0 + i * MS);
    return NULL;
}

TW_TEST(it_is_read_while_it_is_written) {
    static uint64_t done;
    pthread_t writer;
    clear();
    TW_REQUIRE(pthread_create(&writer, NULL, note_on, &done) == 0);
    for (int i = 0; i < 50; i++) {
        const tw_healthy h = find(S0 + 100 * SECOND);
        TW_CHECK(h.samples == 0 || (h.median_s > 0.0499 && h.median_s < 0.0501));
    }
    tw_store(&done, 1);
    pthread_join(writer, NULL);
}

TW_TEST(a_server_that_changes_is_followed) {
    clear();
    line(&ttfts, 60, 50000, 0, 24, 8000, S0);
    line(&ttfts, 60, 50000, 0, 40, 8000, S0 + 300 * SECOND);
    TW_CHECK_NEAR(40, find(S0 + 310 * SECOND).streams, 2);
}

TW_TEST(a_tenth_of_stalled_requests_moves_nothing) {
    clear();
    line(&ttfts, 60, 50000, 0, 24, 8000, S0);
    for (uint64_t x = 1; x <= 60; x += 2) tw_ttft_note(&ttfts, x, 1000 * MS, S0 + 6 * SECOND);
    TW_CHECK_NEAR(24, find(S0 + 10 * SECOND).streams, 2);
}

TW_TEST(the_curve_ascends) {
    tw_ttft_point points[TW_TTFT_LEVELS];
    const tw_ttft_by_concurrency *ttft_sets[] = {&ttfts};
    uint32_t count;
    clear();
    line(&ttfts, 300, 50000, 10, 200, 1000, S0);
    TW_REQUIRE(tw_ttft_curve(points, &count, ttft_sets, 1, S0 + 10 * SECOND) == 0);
    TW_CHECK(count > 50 && count <= TW_TTFT_LEVELS);
    for (uint32_t i = 1; i < count; i++) TW_CHECK(points[i - 1].streams < points[i].streams);
}

TW_TEST(verdicts_have_names) {
    TW_CHECK_STR("found", tw_healthy_name(TW_HEALTHY_FOUND));
    TW_CHECK_STR("no_inflection", tw_healthy_name(TW_HEALTHY_NO_INFLECTION));
    TW_CHECK_STR("unknown", tw_healthy_name(-1));
    TW_CHECK_STR("unknown", tw_healthy_name(TW_HEALTHY_VERDICTS));
}
