/* What becomes of a trace file's events: their counts, which pauses delayed what, and what is reported of what is lost.
 * */
#include "tailwatch/trace/trace_export.h"
#include "tailwatch/attribute/engine_id.h"

#include <errno.h>

#include "trace/trace_parts.h"
#include "trace_tools.h"

#define MS UINT64_C(1000000)
#define T0 (UINT64_C(5000) * 1000 * MS)
#define FIELD_EVENT 11

/* A request with a token each 10 ms, the first 10 ms after its arrival. */
static void put_request(made_trace *m, uint32_t ring, uint64_t id, uint64_t arrival, uint32_t tokens) {
    made_put(m, ring, arrival + MS, TW_KIND_OPEN, TW_ARRIVAL_ASGI, 0, 0, id, arrival);
    for (uint32_t i = 1; i <= tokens; i++)
        made_put(m, ring, arrival + i * 10 * MS, i == 1 ? TW_KIND_FIRST : TW_KIND_TOKEN, 0, 0, 1, id, i == 1 ? arrival : 10 * MS);
    made_put(m, ring, arrival + tokens * 10 * MS + MS, TW_KIND_CLOSE, TW_REASON_GOOD, 0, tokens, id, arrival);
}

static void put_pause(made_trace *m, uint64_t start, uint64_t stop, uint32_t flags) {
    made_put(m, TW_RING_SHARED, stop, TW_KIND_PAUSE, TW_CAUSE_GC2, flags, 0, start, 5);
}

static tw_trace_account account_of(const tw_trace *const *files, size_t n) {
    tw_trace_account account, again;
    for (int format = 0; format < TW_TIMELINE_FORMATS; format++) {
        kept_bytes out = {0};
        TW_CHECK_EQ(0, export_kept(files, n, format, &out, format == 0 ? &account : &again));
        if (format == TW_TIMELINE_PERFETTO) TW_CHECK(count_packets(&out, 0) != SIZE_MAX);
        else TW_CHECK(is_paired_json(&out));
        free(out.bytes);
    }
    TW_CHECK_MEM(&account, &again, sizeof account);
    return account;
}

TW_TEST(every_event_is_counted) {
    made_trace m;
    made_begin(&m, "api", 42, 4096);
    put_request(&m, 0, 1, T0, 20);
    put_request(&m, 1, 2, T0 + MS, 5);
    put_pause(&m, T0 + 12 * MS, T0 + 13 * MS, 0);
    made_put(&m, 0, T0 + 300 * MS, TW_KIND_STEP, 0, 0, 4, T0 + 290 * MS, 3);
    made_put(&m, 0, T0 + 320 * MS, TW_KIND_STEP, 0, 0, 4, T0 + 310 * MS, 0);
    made_put(&m, TW_RING_SHARED, T0, TW_KIND_COUNTER, TW_COUNTER_DELAY, 0, 0, 0, 77);
    made_put(&m, TW_RING_SHARED, T0 + 90 * MS, TW_KIND_STALL, TW_DELAY_CALLBACK, 0, 77, T0 + 80 * MS, TW_MEASURED);
    const tw_trace *files[] = {made_open(&m)};
    const tw_trace_account a = account_of(files, 1);
    TW_CHECK_EQ(2, a.kind[TW_KIND_OPEN]);
    TW_CHECK_EQ(1, a.kind[TW_KIND_STALL]);
    TW_CHECK_EQ(2, a.kind[TW_KIND_FIRST]);
    TW_CHECK_EQ(23, a.kind[TW_KIND_TOKEN]);
    TW_CHECK_EQ(2, a.kind[TW_KIND_CLOSE]);
    TW_CHECK_EQ(2, a.requests);
    TW_CHECK_EQ(0, a.unfinished + a.beginless + a.lost + a.kind[0]);
    TW_CHECK_EQ(1, a.host_gaps);
    TW_CHECK_EQ(2, a.arrows); /* to a token of each request */
    made_free(&m);
}

TW_TEST(delays_come_from_those_that_streams_wait_for) {
    static const struct { const char *role; uint64_t arrows; } cases[] = {
        {"engine", 1}, {"engine-0", 1}, {"Worker_tp0", 1}, {"scheduler", 1}, {"detokenizer", 1},
        {"coordinator", 0}, {"api", 0}, {"engineer", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        made_trace api, other;
        made_begin(&api, "api", 42, 4096);
        made_begin(&other, cases[i].role, 43, 4096);
        put_request(&api, 0, 1, T0, 10);
        put_pause(&other, T0 + 31 * MS, T0 + 39 * MS, 0);
        const tw_trace *files[] = {made_open(&api), made_open(&other)};
        TW_CHECK_EQ(cases[i].arrows, account_of(files, 2).arrows);
        made_free(&api);
        made_free(&other);
    }
}

TW_TEST(of_several_engines_only_the_bound_one_delays) {
    made_trace api, engine[2];
    made_begin(&api, "api", 42, 4096);
    put_request(&api, 0, 1, T0, 2);
    made_put(&api, 0, T0 + 130 * MS, TW_KIND_DELAY, TW_PHASE_ITL, 0, 8000, 1, 8 * MS);
    made_put(&api, 0, T0 + 130 * MS, TW_KIND_TOKEN, 0, 0, 1, 1, 10 * MS);
    for (uint64_t i = 0; i < 2; i++) made_begin(&engine[i], "engine", 43 + i, 4096);
    put_pause(&engine[0], T0 + 11 * MS, T0 + 19 * MS, 0); /* no delay is written of the second token */
    put_pause(&engine[1], T0 + 121 * MS, T0 + 129 * MS, 0);
    const tw_trace *files[] = {made_open(&api), made_open(&engine[0]), made_open(&engine[1])};
    TW_CHECK_EQ(1, account_of(files, 3).arrows);
    TW_CHECK_EQ(1, account_of(files, 2).arrows); /* of one engine every pause counts, of the other there is no file */
    made_free(&api);
    for (int i = 0; i < 2; i++) made_free(&engine[i]);
}

TW_TEST(a_delay_has_the_pauses_that_count) {
    /* Two engines, a rank of the first one, and one that publishes no unit: all stand still at once. */
    static const uint64_t engines[] = {TW_ENGINE_NUMBER | 0, TW_ENGINE_NUMBER | 1, TW_ENGINE_LIKE | 43, 0};
    static const struct { uint64_t engine; uint64_t arrows; } cases[] = {
        {TW_ENGINE_NUMBER | 0, 3}, {TW_ENGINE_NUMBER | 1, 2}, {TW_ENGINE_ITSELF | 77, 1}, {0, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        made_trace m[5];
        const tw_trace *files[5];
        made_begin(&m[0], "api", 42, 4096);
        made_put(&m[0], 0, T0 + 10 * MS, TW_KIND_DELAY, TW_PHASE_ITL, tw_engine_tag(cases[i].engine), 8000, 1, 8 * MS);
        made_put(&m[0], 0, T0 + 10 * MS, TW_KIND_TOKEN, 0, 0, 1, 1, 10 * MS);
        for (uint64_t other = 0; other < 4; other++) {
            made_begin(&m[1 + other], other == 2 ? "worker" : "engine", 43 + other, 4096);
            tw_recorder_engine(&m[1 + other].recorder, engines[other]);
            put_pause(&m[1 + other], T0 + MS, T0 + 9 * MS, 0);
        }
        for (int file = 0; file < 5; file++) files[file] = made_open(&m[file]);
        TW_CHECK_EQ(cases[i].arrows, account_of(files, 5).arrows);
        for (int file = 0; file < 5; file++) made_free(&m[file]);
    }
}

TW_TEST(short_pauses_and_inner_ones_have_no_arrows) {
    made_trace m;
    made_begin(&m, "api", 42, 4096);
    put_request(&m, 0, 1, T0, 10);
    put_pause(&m, T0 + 31 * MS, T0 + 31 * MS + 49000, 0);
    put_pause(&m, T0 + 42 * MS, T0 + 45 * MS, TW_PAUSE_INNER);
    put_pause(&m, T0 + 41 * MS, T0 + 49 * MS, 0);
    put_pause(&m, T0 + 60 * MS - 20000, T0 + 69 * MS, 0); /* 20 us of one gap: that one has none */
    const tw_trace *files[] = {made_open(&m)};
    const tw_trace_account a = account_of(files, 1);
    TW_CHECK_EQ(2, a.arrows);
    TW_CHECK_EQ(4, a.kind[TW_KIND_PAUSE]);
    made_free(&m);
}

TW_TEST(a_ring_that_wrapped_counts_what_it_lost) {
    made_trace m;
    made_begin(&m, "api", 42, 256);
    for (uint64_t i = 1; i <= 40; i++) put_request(&m, 0, i, T0 + i * 30 * MS, 10);
    const tw_trace *files[] = {made_open(&m)};
    const tw_trace_account a = account_of(files, 1);
    TW_CHECK_EQ(40 * 12 - 127, a.lost);
    TW_CHECK_EQ(127, a.events);
    TW_CHECK(a.beginless > 0);
    made_free(&m);
}

TW_TEST(a_process_that_died_in_a_pause_left_it_open) {
    made_trace api, engine;
    made_begin(&api, "api", 42, 4096);
    made_begin(&engine, "engine", 43, 4096);
    put_request(&api, 0, 1, T0, 3);
    made_put(&api, 0, T0 + 500 * MS, TW_KIND_OPEN, 0, 0, 0, 2, T0 + 499 * MS);
    ((tw_trace_head *)engine.memory)->pause_open_ns = T0 + 21 * MS;
    ((tw_trace_head *)engine.memory)->pause_open_cause = TW_CAUSE_GC2;
    const tw_trace *files[] = {made_open(&api), made_open(&engine)};
    const tw_trace_account a = account_of(files, 2);
    TW_CHECK_EQ(1, a.open_pauses);
    TW_CHECK_EQ(1, a.arrows); /* the token after it began */
    TW_CHECK_EQ(1, a.unfinished);
    made_free(&api);
    made_free(&engine);
}

TW_TEST(only_the_time_asked_for) {
    made_trace m;
    made_begin(&m, "api", 42, 4096);
    put_request(&m, 0, 1, T0, 50);
    const tw_trace *files[] = {made_open(&m)};
    kept_bytes out = {0};
    tw_timeline *t;
    tw_trace_account a;
    TW_REQUIRE(tw_timeline_create(&t, TW_TIMELINE_PERFETTO, keep_bytes, &out) == 0);
    TW_CHECK_EQ(0, tw_trace_export(t, files, 1, T0 + 100 * MS, T0 + 200 * MS, &a));
    TW_CHECK_EQ(0, tw_timeline_finish(t));
    TW_CHECK_EQ(11, a.events);
    TW_CHECK_EQ(1, a.beginless);
    tw_timeline_free(t);
    free(out.bytes);
    made_free(&m);
}

TW_TEST(gaps_inside_a_step_are_none) {
    made_trace m;
    made_begin(&m, "engine", 42, 4096);
    for (uint64_t i = 0; i < 4; i++) /* two within the third, then one after it */
        made_put(&m, 0, T0 + (i * 10 + 9) * MS, TW_KIND_STEP, 0, 0, 1, T0 + (i == 2 ? 0 : i * 10) * MS + (i == 2 ? 0 : 2) * MS, 1);
    const tw_trace *files[] = {made_open(&m)};
    TW_CHECK_EQ(1, account_of(files, 1).host_gaps);
    made_free(&m);
}

TW_TEST(requests_share_rows_only_when_they_are_over) {
    tw_requests r = {0};
    bool made;
    TW_REQUIRE(tw_requests_open(&r, 1, 100, &made) != NULL && made);
    TW_REQUIRE(tw_requests_open(&r, 2, 110, &made) != NULL && made);
    tw_requests_close(&r, tw_requests_find(&r, 1), 200);
    TW_CHECK(tw_requests_find(&r, 1) == NULL);
    TW_REQUIRE(tw_requests_open(&r, 3, 150, &made) != NULL);
    TW_CHECK(made); /* it arrived before the first one ended */
    tw_request *fourth = tw_requests_open(&r, 4, 200, &made);
    TW_REQUIRE(fourth != NULL);
    TW_CHECK(!made && fourth->lane == 0);
    tw_requests_free(&r);
}

TW_TEST(requests_are_found_whatever_comes_and_goes) {
    tw_requests r = {0};
    uint64_t random = 7;
    static bool there[4000];
    bool made;
    for (int i = 0; i < 100000; i++) {
        const uint64_t id = 1 + tw_test_random_below(&random, 3999);
        tw_request *found = tw_requests_find(&r, id);
        TW_CHECK_EQ(there[id], found != NULL);
        if (found != NULL) tw_requests_close(&r, found, (uint64_t)i);
        else TW_REQUIRE(tw_requests_open(&r, id, (uint64_t)i, &made) != NULL);
        there[id] = !there[id];
    }
    uint32_t open = 0;
    for (uint64_t id = 1; id < 4000; id++) {
        TW_CHECK_EQ(there[id], tw_requests_find(&r, id) != NULL);
        open += there[id];
    }
    TW_CHECK_EQ(open, r.used);
    tw_requests_free(&r);
}

TW_TEST(too_many_pauses_leave_the_longest) {
    tw_pauses p = {.shortest_ns = TW_PAUSE_SHORT_NS};
    for (uint64_t i = 0; i < TW_TRACE_PAUSES + 10; i++) {
        const tw_long_pause pause = {.start_ns = T0 + i * MS, .stop_ns = T0 + i * MS + (i % 2 == 0 ? 60000 : 600000)};
        TW_REQUIRE(tw_pauses_add(&p, &pause) == 0);
    }
    TW_CHECK(p.n >= TW_TRACE_PAUSES / 2 && p.left_out >= TW_TRACE_PAUSES / 2);
    TW_CHECK_EQ(2 * TW_PAUSE_SHORT_NS, p.shortest_ns);
    TW_CHECK_EQ(0, tw_pauses_sort(&p, 1));
    for (uint32_t i = 0; i < p.n; i++) TW_CHECK_EQ(600000, p.pause[i].stop_ns - p.pause[i].start_ns);
    tw_pauses_free(&p);
}

TW_TEST(pauses_of_one_length_are_thinned_too) {
    tw_pauses p = {.shortest_ns = TW_PAUSE_SHORT_NS};
    for (uint64_t i = 0; i < 3 * (uint64_t)TW_TRACE_PAUSES; i++) {
        const tw_long_pause pause = {.start_ns = i, .stop_ns = UINT64_MAX};
        TW_REQUIRE(tw_pauses_add(&p, &pause) == 0);
    }
    TW_CHECK(p.n <= TW_TRACE_PAUSES);
    tw_pauses_free(&p);
}

TW_TEST(too_many_files_are_refused) {
    tw_trace_account a;
    kept_bytes out = {0};
    tw_timeline *t;
    TW_REQUIRE(tw_timeline_create(&t, TW_TIMELINE_PERFETTO, keep_bytes, &out) == 0);
    TW_CHECK_EQ(EINVAL, tw_trace_export(t, NULL, TW_TRACE_FILES + 1, 0, 1, &a));
    TW_CHECK_EQ(0, tw_trace_export(t, NULL, 0, 0, 1, &a));
    tw_timeline_free(t);
    free(out.bytes);
}
