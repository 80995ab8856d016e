/* One writer, readers beside it: nothing is torn. Meant for ThreadSanitizer; sound without it. */
#include <pthread.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/stamp/stream.h"
#include "tw_test.h"

#define MS TW_NS_PER_MS

enum { ROUNDS = 20000, LABEL_SETS = 16, READERS = 2 };

typedef struct race {
    tw_segment *g;
    uint64_t done; /* by the writer, released */
} race;

/* A slow gap carries its own length as its request id, so that a reader finds a record made of two. */
static void slow_gap(tw_stream *s, uint64_t *now, uint64_t gap) {
    char id[32];
    int len = snprintf(id, sizeof id, "%" PRIu64, gap);
    tw_stream_identify(s, id, (size_t)len, id, (size_t)len);
    tw_stream_token(s, *now += gap, 1, 0);
}

static void one_request(tw_segment *g, uint64_t round, uint64_t *random, uint64_t *now) {
    tw_stream s;
    char model[16];
    int len = snprintf(model, sizeof model, "model-%d", (int)(round % (LABEL_SETS * 2)));
    tw_stream_open(&s, g, *now, *now + 1000, 500, TW_ARRIVAL_TCP);
    tw_stream_label(&s, tw_segment_label(g, model, (size_t)len, "/v1", 3));
    tw_stream_token(&s, *now += 5 * MS, 1, 0);
    for (int i = 0; i < 20; ++i) tw_stream_token(&s, *now += MS, 2, (uint32_t)i % 3);
    uint64_t from = *now & ~UINT64_C(1);
    tw_pause_begin(&g->pause, TW_CAUSE_GC2, from);
    if (round % 4 == 0) tw_stream_token(&s, *now += 2 * MS, 1, 0);
    tw_segment_pause_end(g, from + 30 * MS, NULL);
    slow_gap(&s, &(uint64_t){from + 30 * MS}, 0);
    *now = s.last_ns;
    slow_gap(&s, now, 40 * MS + tw_test_random_below(random, 100 * MS));
    tw_stream_usage(&s, 100);
    tw_stream_close(&s, *now, (tw_end)(round % 4));
    *now += 900 * MS; /* the windows turn over during the test */
}

static void *write_all(void *context) {
    race *r = context;
    uint64_t random = 9, now = MS;
    for (uint64_t round = 0; round < ROUNDS; ++round) one_request(r->g, round, &random, &now);
    tw_store_release(&r->done, 1);
    return NULL;
}

static uint64_t check_slow(const tw_segment *g) {
    uint64_t head = tw_load_acquire(&g->slow_head), seen = 0;
    for (uint64_t n = head > TW_SLOW_RING ? head - TW_SLOW_RING : 0; n < head; ++n) {
        tw_slow_record r;
        char id[TW_ID_WORDS * 8], trace[TW_TRACE_WORDS * 8];
        uint64_t overlap = 0, delay = 0;
        if (!tw_segment_slow_read(g, n, &r)) continue;
        for (int cause = 0; cause < TW_CAUSES; ++cause) overlap += r.overlap_ns[cause], delay += r.delay_ns[cause];
        tw_words_get(r.request_id, TW_ID_WORDS, id);
        tw_words_get(r.trace_id, TW_TRACE_WORDS, trace);
        TW_CHECK_STR(id, trace);
        TW_CHECK(delay <= overlap && overlap <= r.gap_ns);
        uint64_t length = strtoull(id, NULL, 10);
        if (length != 0) TW_CHECK_EQ(length, r.gap_ns);
        ++seen;
    }
    return seen;
}

static void check_series(const tw_segment *g, tw_counts *last) {
    uint64_t count = tw_load_acquire(&g->series_count);
    TW_CHECK(count >= 1 && count <= LABEL_SETS);
    for (uint32_t i = 0; i < count; ++i) {
        const tw_series *series = tw_segment_series(g, i);
        char model[TW_NAME_BYTES];
        tw_words_get(series->model.word, TW_NAME_WORDS, model);
        TW_CHECK(i == 0 ? strcmp(model, "other") == 0 : strncmp(model, "model-", 6) == 0);
        tw_counts itl, shift;
        tw_histogram_read(&series->itl, &itl);
        tw_histogram_read(&series->itl_shift, &shift);
        TW_CHECK(itl.count >= last[i].count && itl.sum_low >= last[i].sum_low);
        last[i] = itl;
    }
}

/* A slot whose second is the same before and after holds that second: three requests at most end in one. */
static void check_seconds(const tw_segment *g) {
    for (int i = 0; i < TW_SECONDS; ++i) {
        const tw_second *slot = &g->seconds[i];
        uint64_t second = tw_load_acquire(&slot->second);
        uint64_t good_miss = tw_load_acquire(&slot->good_miss);
        uint64_t excluded = tw_load_acquire(&slot->excluded_finished);
        if (second == 0 || tw_load(&slot->second) != second) continue;
        TW_CHECK(tw_low(good_miss) + tw_high(good_miss) + tw_low(excluded) <= 3);
    }
}

static void *read_all(void *context) {
    race *r = context;
    tw_counts *last = calloc(LABEL_SETS, sizeof *last);
    TW_REQUIRE(last != NULL);
    bool done;
    do {
        done = tw_load_acquire(&r->done) != 0;
        uint64_t seen = check_slow(r->g);
        if (done) TW_CHECK_EQ(TW_SLOW_RING, seen);
        check_series(r->g, last);
        check_seconds(r->g);
    } while (!done);
    free(last);
    return NULL;
}

TW_TEST(readers_beside_the_writer) {
    race r = {NULL, 0};
    tw_slo slo = {.ttft_ns = 4 * MS, .tpot_ns = 2 * MS};
    TW_REQUIRE(tw_segment_create(&r.g, "api", LABEL_SETS, false, &slo, 25 * MS) == 0);
    pthread_t writer, readers[READERS];
    TW_REQUIRE(pthread_create(&writer, NULL, write_all, &r) == 0);
    for (int i = 0; i < READERS; ++i) TW_REQUIRE(pthread_create(&readers[i], NULL, read_all, &r) == 0);
    TW_CHECK(pthread_join(writer, NULL) == 0);
    for (int i = 0; i < READERS; ++i) TW_CHECK(pthread_join(readers[i], NULL) == 0);
    TW_CHECK_EQ(ROUNDS, r.g->opened);
    TW_CHECK_EQ(0, r.g->in_flight);
    tw_segment_destroy(r.g);
}
