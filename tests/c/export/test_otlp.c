/* The encoder's own edges: no memory, nothing to export, names that are no text. That it is right is tested against the
 * official protocol buffers, in tests/export/test_otlp.py. */
#include <stddef.h>
#include <stdlib.h>

static size_t allocations, fail_at; /* fail_at: number of the allocation that fails, 0 = none */

static void tw_free(void *memory) { free(memory); }
static void *tw_realloc(void *memory, size_t size) { return ++allocations == fail_at ? NULL : realloc(memory, size); }
#define TW_MALLOC_INCLUDE <stddef.h>
#include "../../csrc/base/buffer.c"

#include "../../csrc/export/otlp.c"

#include "tailwatch/stamp/stream.h"
#include "tw_test.h"

#define MS TW_NS_PER_MS

static tw_otlp_info facts(void) {
    return (tw_otlp_info){.metrics = {.version = "1", .registry_seconds = -1, .goodput_window_s = 60}, .provider = "p",
                          .resource = "", .resource_schema_url = "", .exponential = true, .max_buckets = 160};
}

static tw_snapshot *snapshot_of(tw_segment *g) {
    tw_snapshot *s;
    TW_REQUIRE(tw_snapshot_take(&s, (const tw_segment *const *)&g, 1) == 0);
    return s;
}

static tw_segment *busy(uint32_t sets) {
    tw_segment *g;
    uint64_t random = 3;
    TW_REQUIRE(tw_segment_create(&g, "api", sets + 1, true, NULL, 0) == 0);
    for (uint32_t set = 0; set < sets; set++) {
        char model[16];
        tw_stream s;
        uint64_t now = 1000 * MS;
        snprintf(model, sizeof model, "model-%u", set);
        tw_stream_open(&s, g, now, now, 0, TW_ARRIVAL_ASGI);
        tw_stream_label(&s, tw_segment_label(g, model, strlen(model), "/v1/chat/completions", 20));
        for (int i = 0; i < 50; i++) tw_stream_token(&s, now += tw_test_random_below(&random, 100 * MS), 1, 0);
        tw_stream_close(&s, now, TW_END_FINISHED);
    }
    return g;
}

/* Whatever allocation fails: ENOMEM, nothing leaks, and the next try is whole. */
TW_TEST(no_memory_is_an_answer) {
    tw_segment *g = busy(100);
    tw_snapshot *s = snapshot_of(g);
    const tw_otlp_info info = facts();
    tw_buffer whole = {0};
    allocations = fail_at = 0;
    TW_REQUIRE(tw_otlp_metrics(s, NULL, &info, &whole) == 0);
    const size_t needed = allocations;
    TW_CHECK(needed > 1);
    for (size_t i = 1; i <= needed; i++) {
        tw_buffer out = {0};
        allocations = 0;
        fail_at = i;
        TW_CHECK_EQ(ENOMEM, tw_otlp_metrics(s, NULL, &info, &out));
        fail_at = 0;
        tw_buffer_free(&out);
    }
    tw_buffer again = {0};
    TW_CHECK_EQ(0, tw_otlp_metrics(s, NULL, &info, &again));
    TW_CHECK_EQ(whole.length, again.length);
    TW_CHECK_MEM(whole.data, again.data, whole.length);
    tw_buffer_free(&whole);
    tw_buffer_free(&again);
    tw_snapshot_free(s);
    tw_segment_destroy(g);
}

/* A process that has seen nothing exports its gauges, and nothing empty. */
TW_TEST(nothing_measured_is_little_to_export) {
    tw_segment *g;
    TW_REQUIRE(tw_segment_create(&g, "api", 1, false, NULL, 0) == 0);
    tw_snapshot *s = snapshot_of(g);
    tw_otlp_info info = facts();
    tw_buffer out = {0};
    TW_CHECK_EQ(0, tw_otlp_metrics(s, NULL, &info, &out));
    TW_CHECK(out.length > 0 && out.length < 1500);
    TW_CHECK(memmem(out.data, out.length, "time_to_first_token", 19) == NULL);
    info.max_buckets = 1;
    TW_CHECK_EQ(EINVAL, tw_otlp_metrics(s, NULL, &info, &out));
    TW_CHECK_EQ(EINVAL, tw_otlp_metrics(NULL, NULL, &info, &out));
    tw_buffer_free(&out);
    tw_snapshot_free(s);
    tw_segment_destroy(g);
}

static void check_exponential(const uint64_t *value, size_t n, uint32_t most) {
    const tw_layout *layout = tw_layout_of(TW_LAYOUT_ITL);
    tw_counts c;
    tw_histogram h;
    exponential x;
    uint64_t total = 0;
    memset(&h, 0, sizeof h);
    tw_histogram_init(&h);
    for (size_t i = 0; i < n; i++) tw_histogram_record(&h, layout, value[i]);
    tw_histogram_read(&h, &c);
    spread(&c, layout, &x);
    if (x.highest < x.lowest) return;
    coarsen(&x, most, TW_SCALE);
    TW_CHECK(x.n >= 1 && x.n <= (int)most && x.scale <= TW_SCALE);
    TW_CHECK(x.bucket[0] > 0 && x.bucket[x.n - 1] > 0);
    for (int i = 0; i < x.n; i++) total += x.bucket[i];
    TW_CHECK_EQ(c.count, total + x.zero);
}

/* From one bucket to all of them, in as little room as there may be. */
TW_TEST(buckets_fit_the_room) {
    uint64_t random = 11, value[64];
    for (int round = 0; round < 2000; round++) {
        const size_t n = 1 + tw_test_random_below(&random, 64);
        for (size_t i = 0; i < n; i++)
            value[i] = tw_test_random_below(&random, UINT64_C(1) << tw_test_random_below(&random, 45));
        check_exponential(value, n, 2 + (uint32_t)tw_test_random_below(&random, 1000));
    }
    const uint64_t edges[] = {0, 1, 999, 1000, 1001, UINT64_MAX, UINT64_MAX - 1};
    for (uint32_t most = 2; most < 200; most++) check_exponential(edges, sizeof edges / sizeof *edges, most);
}
