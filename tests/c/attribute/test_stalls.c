/* What is recorded of a loop that ran on: each cause of some length once, at what it took. */
#include "tailwatch/attribute/stalls.h"

#include <pthread.h>

#include "tw_test.h"

#define MS UINT64_C(1000000)

static tw_segment *g;

static void begin(void) { TW_REQUIRE(tw_segment_create(&g, "api", 1, false, &(tw_slo){0}, 0) == 0); }
static void end(void) { tw_segment_destroy(g); }
TW_AROUND(begin, end)

static void point(uint64_t at, uint64_t cpu, uint64_t run_delay) {
    const tw_host_point p = {.at_ns = at, .cpu_ns = cpu, .run_delay_ns = run_delay};
    tw_host_track_add(&g->host.track[0], &p);
}

static void span(tw_span_kind kind, uint64_t from, uint64_t to, const char *name) {
    const uint32_t number = tw_name_intern(&g->host.names, name, strlen(name));
    const tw_host_span s = {0, from, to, tw_span_what(kind, 0, TW_SAMPLED), number, 0, {0, 0}};
    tw_span_add(&g->host.by_watchdog, &s);
}

static void check(int stall, uint64_t count, uint64_t sum_ns) {
    tw_counts counts;
    tw_histogram_read(&g->stalls[stall], &counts);
    TW_CHECK_EQ(count, counts.count);
    TW_CHECK_EQ(sum_ns, counts.sum_low);
}

TW_TEST(each_cause_of_a_stall_is_a_sample) {
    point(10 * MS, 0, 0);
    point(110 * MS, 40 * MS, 100000);
    span(TW_SPAN_RUN, 10 * MS, 30 * MS, "encode");
    span(TW_SPAN_RUN, 30 * MS, 50 * MS, "decode");
    span(TW_SPAN_IO, 50 * MS, 110 * MS, "fsync");
    tw_stall_record(g, 0, 10 * MS, 110 * MS);
    check(TW_DELAY_CALLBACK, 1, 40 * MS); /* two functions, one cause */
    check(TW_DELAY_IO, 1, 60 * MS - 100000);
    check(TW_DELAY_CPU, 0, 0); /* too short */
}

TW_TEST(pauses_are_recorded_as_they_end_and_not_again) {
    point(10 * MS, 0, 0);
    tw_pause_begin(&g->pause, TW_CAUSE_GC2, 20 * MS);
    tw_segment_pause_end(g, 50 * MS, NULL);
    point(60 * MS, 50 * MS, 0);
    tw_stall_record(g, 0, 10 * MS, 60 * MS);
    check(TW_CAUSE_GC2, 1, 30 * MS);
    check(TW_DELAY_CALLBACK, 1, 20 * MS);
}

TW_TEST(code_of_a_request_is_code_of_a_callback_to_the_others) {
    g->host.track[0].handle_since_ns = 30 * MS;
    point(10 * MS, 0, 0);
    point(60 * MS, 50 * MS, 0);
    tw_stall_record(g, 0, 10 * MS, 60 * MS);
    check(TW_DELAY_CALLBACK, 1, 50 * MS);
    check(TW_DELAY_OWN_CODE, 0, 0);
}

TW_TEST(what_nothing_explains_is_a_cause) {
    tw_stall_record(g, 0, 10 * MS, 60 * MS); /* no points */
    tw_stall_record_stop(g, 7 * MS);
    check(TW_STALL_UNEXPLAINED, 1, 50 * MS);
    check(TW_DELAY_STOPPED, 1, 7 * MS);
    TW_CHECK_STR("unexplained", tw_stall_name(TW_STALL_UNEXPLAINED));
    TW_CHECK_STR("stopped", tw_stall_name(TW_DELAY_STOPPED));
}

#define TIMES 20000

static void *record_many(void *unused) {
    (void)unused;
    for (uint64_t i = 1; i <= TIMES; i++) tw_stall_record_stop(g, i * MS);
    return NULL;
}

TW_TEST(several_loops_record_at_once) {
    pthread_t thread[3];
    for (int i = 0; i < 3; i++) TW_REQUIRE(pthread_create(&thread[i], NULL, record_many, NULL) == 0);
    for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
    check(TW_DELAY_STOPPED, 3 * TIMES, 3 * MS * TIMES * (TIMES + 1) / 2);
    TW_CHECK_EQ(MS, g->stalls[TW_DELAY_STOPPED].min_ns);
    TW_CHECK_EQ(TIMES * MS, g->stalls[TW_DELAY_STOPPED].max_ns);
}
