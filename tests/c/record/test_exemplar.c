/* The table of exemplars: the newest of a bucket, never torn, whatever another process left in it. */
#include "tailwatch/record/exemplar.h"

#include <pthread.h>
#include <string.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/record/segment.h"
#include "tailwatch/aggregate/snapshot.h"
#include "tailwatch/stamp/stream.h"
#include "tw_test.h"

static const char TRACE[] = "4bf92f3577b34da6a3ce929d0e0e4736";

static void trace_words(uint64_t *words, const char *text) { tw_words_set(words, TW_TRACE_WORDS, text, strlen(text)); }

static void put(tw_exemplar *table, uint64_t key, uint64_t value, uint64_t end) {
    uint64_t words[TW_TRACE_WORDS];
    trace_words(words, TRACE);
    tw_exemplar_put(table, key, value, end, words);
}

static uint32_t count(const tw_exemplar *table, uint64_t key, tw_exemplar *last) {
    tw_exemplar one;
    uint32_t n = 0;
    for (uint32_t i = 0; i < TW_EXEMPLARS; i++)
        if (tw_exemplar_read(table, i, &one) && one.key == key) *last = one, n++;
    return n;
}

TW_TEST(a_key_gives_back_what_it_was_made_of) {
    const uint64_t key = tw_exemplar_key(4095, TW_EXEMPLAR_E2E, 26);
    TW_CHECK_EQ(4095, tw_exemplar_series(key));
    TW_CHECK_EQ(TW_EXEMPLAR_E2E, tw_exemplar_metric_of(key));
    TW_CHECK_EQ(26, tw_exemplar_bound(key));
    TW_CHECK(tw_exemplar_key(0, TW_EXEMPLAR_TTFT, 0) != 0);
}

TW_TEST(the_newest_of_a_bucket_stands_once) {
    static tw_exemplar table[TW_EXEMPLARS];
    tw_exemplar last;
    const uint64_t key = tw_exemplar_key(3, TW_EXEMPLAR_ITL, 7);
    TW_CHECK_EQ(0, count(table, key, &last));
    for (uint64_t i = 1; i <= 1000; i++) put(table, key, i, i);
    TW_CHECK_EQ(1, count(table, key, &last));
    TW_CHECK_EQ(1000, last.value_ns);
    char text[TW_TRACE_WORDS * 8];
    tw_words_get(last.trace_id, TW_TRACE_WORDS, text);
    TW_CHECK_STR(TRACE, text);
}

/* More buckets than there is room: the table is full, no bucket stands twice, and of each place the oldest went. */
TW_TEST(what_is_dropped_is_older) {
    static tw_exemplar table[TW_EXEMPLARS];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < 4096; i++) put(table, tw_exemplar_key(i, TW_EXEMPLAR_TTFT, i % 20), i, i + 1);
    for (uint32_t i = 0; i < 4096; i++) {
        tw_exemplar last;
        const uint32_t n = count(table, tw_exemplar_key(i, TW_EXEMPLAR_TTFT, i % 20), &last);
        TW_CHECK(n <= 1);
        kept += n;
    }
    TW_CHECK_EQ(TW_EXEMPLARS, kept);
    for (uint32_t at = 0; at < TW_EXEMPLARS; at++) TW_CHECK(table[at].end_ns > 4096 / 3);
}

TW_TEST(ids_that_would_have_to_be_escaped_are_none) {
    TW_CHECK(tw_exemplar_id_is_good(TRACE));
    TW_CHECK(tw_exemplar_id_is_good("7"));
    TW_CHECK(tw_exemplar_id_is_good("A-Z_0.9:z"));
    static const char *const bad[] = {"", "00000000000000000000000000000000", "a b", "a\"b", "a\\b", "a\nb", "\xc3\xa9",
                                      "0123456789012345678901234567890123456789"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) TW_CHECK(!tw_exemplar_id_is_good(bad[i]));
}

/* Its writer was killed in the middle: nothing reads it, and the next writer makes it whole. */
TW_TEST(one_that_is_half_written_is_not_read) {
    static tw_exemplar table[TW_EXEMPLARS];
    tw_exemplar last;
    const uint64_t key = tw_exemplar_key(0, TW_EXEMPLAR_TTFT, 1);
    put(table, key, 5, 5);
    for (uint32_t i = 0; i < TW_EXEMPLARS; i++)
        if (table[i].key == key) table[i].seq |= 1;
    TW_CHECK_EQ(0, count(table, key, &last));
    put(table, key, 6, 6);
    TW_CHECK_EQ(1, count(table, key, &last));
    TW_CHECK_EQ(6, last.value_ns);
}

/* ---- races ---- */

typedef struct race {
    tw_exemplar table[TW_EXEMPLARS];
    uint64_t stop;
} race;

/* Every word of one exemplar is the same number. */
static void *write_same(void *of) {
    race *r = of;
    for (uint64_t i = 1; !tw_load(&r->stop); i++) {
        uint64_t words[TW_TRACE_WORDS] = {i, i, i, i, i};
        tw_exemplar_put(r->table, tw_exemplar_key((uint32_t)(i % 7), TW_EXEMPLAR_TTFT, 0), i, i, words);
    }
    return NULL;
}

TW_TEST(a_reader_never_sees_two_writes_mixed) {
    static race r;
    pthread_t writer;
    uint64_t seen = 0;
    TW_REQUIRE(pthread_create(&writer, NULL, write_same, &r) == 0);
    for (uint32_t round = 0; round < 2000 || seen < 1000; round++) {
        for (uint32_t i = 0; i < TW_EXEMPLARS; i++) {
            tw_exemplar one;
            if (!tw_exemplar_read(r.table, i, &one)) continue;
            seen++;
            bool whole = one.end_ns == one.value_ns && tw_exemplar_series(one.key) == one.value_ns % 7;
            for (int word = 0; word < TW_TRACE_WORDS; word++) whole &= one.trace_id[word] == one.value_ns;
            TW_REQUIRE(whole);
        }
    }
    tw_store(&r.stop, 1);
    pthread_join(writer, NULL);
    TW_CHECK(seen >= 1000);
}

/* ---- into a snapshot ---- */

static tw_segment *make_segment(void) {
    tw_segment *g;
    const tw_slo slo = {0, 0, 0, 0, 990000};
    TW_REQUIRE(tw_segment_create(&g, "api", 4, false, &slo, 0) == 0);
    return g;
}

static void request(tw_segment *g, const char *model, uint64_t arrival, uint64_t ttft, const char *trace) {
    tw_stream s;
    tw_stream_open(&s, g, arrival, arrival, 0, TW_ARRIVAL_ASGI);
    tw_stream_label(&s, tw_segment_label(g, model, strlen(model), "/r", 2));
    tw_stream_identify(&s, "", 0, trace, strlen(trace));
    tw_stream_exemplify(&s);
    tw_stream_token(&s, arrival + ttft, 1, 0);
    tw_stream_close(&s, arrival + ttft, TW_END_FINISHED);
}

TW_TEST(of_two_processes_the_newer_one_is_shown) {
    tw_segment *g[2] = {make_segment(), make_segment()};
    const uint64_t now = tw_now_ns();
    request(g[0], "m", now, 30 * TW_NS_PER_MS, "older");
    request(g[1], "m", now + TW_NS_PER_SECOND, 31 * TW_NS_PER_MS, "newer");
    request(g[1], "a", now, 30 * TW_NS_PER_MS, "else");
    tw_snapshot *s;
    TW_REQUIRE(tw_snapshot_take(&s, (const tw_segment *const *)g, 2) == 0);
    const tw_snapshot_series *series = &s->series[1];
    TW_CHECK_STR("m", series->model);
    TW_REQUIRE(series->exemplar_count == 2); /* TTFT and E2E */
    const tw_snapshot_exemplar *e = &s->exemplars[series->exemplars_at];
    TW_CHECK_EQ(TW_METRIC_TTFT, e->metric);
    TW_CHECK_STR("newer", e->trace_id);
    TW_CHECK_EQ(31 * TW_NS_PER_MS, e->value_ns);
    TW_CHECK_EQ(g[1]->header.created.realtime_ns + (now + TW_NS_PER_SECOND + 31 * TW_NS_PER_MS - g[1]->header.created.monotonic_ns),
                e->unix_ns);
    TW_CHECK_EQ(TW_METRIC_E2E, e[1].metric);
    tw_snapshot *difference;
    TW_REQUIRE(tw_snapshot_subtract(&difference, s, s) == 0);
    for (uint32_t i = 0; i < difference->series_count; i++) TW_CHECK_EQ(0, difference->series[i].exemplar_count);
    tw_snapshot_free(difference);
    tw_snapshot_free(s);
    tw_segment_destroy(g[0]);
    tw_segment_destroy(g[1]);
}

TW_TEST(rubbish_in_a_segment_is_not_shown) {
    tw_segment *g = make_segment();
    uint64_t state = 9;
    request(g, "m", tw_now_ns(), 30 * TW_NS_PER_MS, TRACE);
    for (uint32_t i = 0; i < TW_EXEMPLARS; i++) {
        if (g->exemplars[i].seq) continue;
        uint64_t *words = (uint64_t *)&g->exemplars[i];
        for (size_t word = 0; word < sizeof(tw_exemplar) / 8; word++) words[word] = tw_test_random(&state) >> (i % 60);
    }
    tw_snapshot *s;
    TW_REQUIRE(tw_snapshot_take(&s, (const tw_segment *const *)&g, 1) == 0);
    for (uint32_t i = 0; i < s->series[0].exemplar_count; i++) {
        const tw_snapshot_exemplar *e = &s->exemplars[s->series[0].exemplars_at + i];
        TW_CHECK(tw_exemplar_id_is_good(e->trace_id));
        TW_CHECK_EQ(tw_bound_of(tw_metric_layout((int)e->metric), e->value_ns), e->bound);
    }
    TW_CHECK(s->series[0].exemplar_count >= 2);
    tw_snapshot_free(s);
    tw_segment_destroy(g);
}

TW_TEST(a_reset_forgets_them) {
    tw_segment *g = make_segment();
    request(g, "m", tw_now_ns(), 30 * TW_NS_PER_MS, TRACE);
    tw_segment_reset(g);
    request(g, "m", tw_now_ns(), 30 * TW_NS_PER_MS, "");
    tw_snapshot *s;
    TW_REQUIRE(tw_snapshot_take(&s, (const tw_segment *const *)&g, 1) == 0);
    TW_CHECK_EQ(0, s->series[0].exemplar_count);
    tw_snapshot_free(s);
    tw_segment_destroy(g);
}
