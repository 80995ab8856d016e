/* What OTLP needs beside: answered requests apart, failed ones by why, in a place behind each label set. */
#include "tailwatch/record/genai_counters.h"

#include "tailwatch/aggregate/snapshot.h"
#include "tailwatch/stamp/stream.h"
#include "tailwatch/group/retired_segment.h"
#include "segment_tools.h"
#include "tw_test.h"

#define MS TW_NS_PER_MS

static tw_segment *served_segment(uint32_t sets) {
    tw_segment *g;
    TW_REQUIRE(tw_segment_create(&g, "api", sets, true, NULL, 0) == 0);
    return g;
}

/* A request of `tokens` tokens 10 ms apart, the first after 30 ms, ended 5 ms after the last. */
static void serve(tw_segment *g, const char *model, int tokens, uint32_t status, tw_end end) {
    tw_stream s;
    uint64_t now = 1000 * MS;
    tw_stream_open(&s, g, now, now, 0, TW_ARRIVAL_ASGI);
    tw_stream_label(&s, tw_segment_label(g, model, strlen(model), "/r", 2));
    s.status = status;
    now += 20 * MS;
    for (int i = 0; i < tokens; i++) tw_stream_token(&s, now += 10 * MS, 1, 0);
    tw_stream_close(&s, now + 5 * MS, end);
}

/* A brief slot never cuts a slot of the layout, and never falls. */
TW_TEST(brief_slots_are_made_of_whole_ones) {
    const tw_layout *layout = tw_layout_of(TW_LAYOUT_E2E);
    uint32_t last = 0;
    for (uint32_t slot = 0; slot < layout->slots; slot++) {
        uint64_t lower, upper;
        tw_slot_edges(layout, slot, &lower, &upper);
        const uint32_t first = tw_brief_slot(lower + 1), end = tw_brief_slot(upper);
        TW_CHECK_EQ(first, end);
        TW_CHECK(first >= last && first <= last + 2 && end < TW_BRIEF_SLOTS - 1);
        last = end;
    }
    for (uint32_t i = 0; i < layout->bounds; i++)
        TW_CHECK(tw_brief_slot(layout->bound_ns[i]) < tw_brief_slot(layout->bound_ns[i] + 1));
    TW_CHECK_EQ(0, tw_brief_slot(0));
}

/* Counts at the bounds, the sum and the extremes are those of what was recorded. */
TW_TEST(a_brief_histogram_reads_as_a_whole_one) {
    tw_served served;
    tw_counts brief, whole;
    tw_histogram full;
    uint64_t random = 7;
    memset(&served, 0, sizeof served);
    memset(&full, 0, sizeof full);
    tw_served_init(&served);
    tw_histogram_init(&full);
    const tw_layout *layout = tw_layout_of(TW_LAYOUT_E2E);
    for (int i = 0; i < 5000; i++) {
        const uint64_t value = tw_test_random_below(&random, UINT64_C(1) << tw_test_random_below(&random, 41));
        tw_brief_record(&served.failed[1], value);
        tw_histogram_record(&full, layout, value);
    }
    tw_brief_read(&served.failed[1], &brief);
    tw_histogram_read(&full, &whole);
    TW_CHECK(brief.count == whole.count && brief.sum_low == whole.sum_low && brief.sum_high == whole.sum_high);
    TW_CHECK(brief.min_ns == whole.min_ns && brief.max_ns == whole.max_ns);
    for (uint32_t i = 0; i < layout->bounds; i++)
        TW_CHECK_EQ(counts_below(&whole, layout, i), counts_below(&brief, layout, i));
    tw_brief_read(&served.failed[0], &brief);
    TW_CHECK(brief.count == 0 && brief.min_ns == UINT64_MAX);
}

static uint64_t count_of(const tw_counts *c) { return c ? c->count : 0; }

/* Every reason that is a failure has a name of its own or shares one with its like. */
TW_TEST(requests_are_counted_apart_by_how_they_ended) {
    tw_segment *g = served_segment(4);
    serve(g, "m", 3, 200, TW_END_FINISHED);
    serve(g, "m", 1, 200, TW_END_FINISHED);
    serve(g, "m", 0, 200, TW_END_FINISHED);
    serve(g, "m", 2, 200, TW_END_ERROR);
    serve(g, "m", 2, 200, TW_END_ABORT);
    serve(g, "m", 0, 429, TW_END_FINISHED);
    serve(g, "m", 0, 503, TW_END_FINISHED);
    serve(g, "m", 0, 404, TW_END_FINISHED);
    serve(g, "m", 0, 304, TW_END_FINISHED);
    serve(g, "m", 0, 200, TW_END_TIMEOUT);
    tw_snapshot *s;
    TW_REQUIRE(tw_snapshot_take(&s, (const tw_segment *const *)&g, 1) == 0 && s->series_count == 1);
    tw_counts *const *served = s->series[0].served;
    TW_CHECK_EQ(2, count_of(served[TW_SERVED_TTFT]));
    TW_CHECK_EQ(60 * MS, served[TW_SERVED_TTFT]->sum_low);
    TW_CHECK_EQ(1, count_of(served[TW_SERVED_TPOT]));
    TW_CHECK_EQ(25 * MS / 2, served[TW_SERVED_TPOT]->sum_low); /* (55 - 30) / (3 - 1) */
    for (int i = 0; i < TW_FAILURES; i++) TW_CHECK_EQ(1, count_of(served[TW_SERVED_FAILED + i]));
    TW_CHECK_EQ(45 * MS, served[TW_SERVED_FAILED + TW_FAILURE_OTHER]->sum_low);
    TW_CHECK_STR("_OTHER", tw_failure_name(TW_FAILURES));
    TW_CHECK_STR("cancelled", tw_failure_name((int)tw_failure_of(TW_REASON_ABORT_EARLY)));
    TW_CHECK_EQ(TW_FAILURES, tw_failure_of(TW_REASON_LATE));
    TW_CHECK(tw_served_layout(TW_SERVED_METRICS) == NULL && tw_served_layout(-1) == NULL);
    tw_snapshot_free(s);
    tw_segment_destroy(g);
}

/* Without, nothing is kept, and nothing is read where nothing is. */
TW_TEST(a_segment_made_without_keeps_nothing) {
    tw_segment *g;
    tw_snapshot *s;
    TW_REQUIRE(tw_segment_create(&g, "api", 2, false, NULL, 0) == 0);
    serve(g, "m", 3, 200, TW_END_FINISHED);
    TW_CHECK(tw_segment_served(g, tw_segment_series(g, 0)) == NULL);
    TW_REQUIRE(tw_snapshot_take(&s, (const tw_segment *const *)&g, 1) == 0);
    for (int i = 0; i < TW_SERVED_METRICS; i++) TW_CHECK(s->series[0].served[i] == NULL);
    TW_CHECK_EQ(1, s->series[0].metric[TW_METRIC_TTFT]->count);
    tw_snapshot_free(s);
    tw_segment_destroy(g);
}

/* A reader of another's segment goes by its stride, and refuses one that is none. */
TW_TEST(the_header_has_how_far_label_sets_are_apart) {
    tw_segment *g = served_segment(3);
    TW_CHECK_EQ(3 * sizeof(tw_served) + segment_bytes(3), g->header.bytes);
    TW_CHECK_EQ(sizeof(tw_series) + sizeof(tw_served), g->header.series_bytes);
    TW_CHECK_EQ(sizeof(tw_served) + segment_bytes(1), tw_segment_used(g));
    TW_CHECK(tw_segment_valid(g, sizeof(tw_served) + segment_bytes(1)) && !tw_segment_valid(g, segment_bytes(1)));
    serve(g, "m", 3, 200, TW_END_FINISHED);
    tw_segment_reset(g);
    TW_CHECK_EQ(sizeof(tw_series) + sizeof(tw_served), g->header.series_bytes);
    TW_CHECK_EQ(UINT64_MAX, tw_segment_served(g, tw_segment_series(g, 0))->tpot.min_ns);
    g->header.series_bytes += 8;
    TW_CHECK(!tw_segment_valid(g, g->header.bytes));
    g->header.series_bytes -= 8;
    tw_segment_destroy(g);
}

/* Of two processes, one without: the sum is that of the other, and a difference is what came since. */
TW_TEST(snapshots_merge_and_subtract_it) {
    tw_segment *a = served_segment(4), *b;
    TW_REQUIRE(tw_segment_create(&b, "api", 4, false, NULL, 0) == 0);
    serve(a, "m", 3, 200, TW_END_FINISHED);
    serve(b, "m", 3, 200, TW_END_FINISHED);
    const tw_segment *both[] = {a, b};
    tw_snapshot *earlier, *later, *rest;
    TW_REQUIRE(tw_snapshot_take(&earlier, both, 2) == 0);
    serve(a, "m", 5, 200, TW_END_FINISHED);
    serve(a, "m", 0, 503, TW_END_FINISHED);
    TW_REQUIRE(tw_snapshot_take(&later, both, 2) == 0);
    TW_REQUIRE(tw_snapshot_subtract(&rest, later, earlier) == 0);
    TW_CHECK_EQ(2, count_of(later->series[0].served[TW_SERVED_TTFT]));
    TW_CHECK_EQ(1, count_of(rest->series[0].served[TW_SERVED_TTFT]));
    TW_CHECK_EQ(1, count_of(rest->series[0].served[TW_SERVED_FAILED + TW_FAILURE_5XX]));
    tw_snapshot_free(earlier);
    tw_snapshot_free(later);
    tw_snapshot_free(rest);
    tw_segment_destroy(a);
    tw_segment_destroy(b);
}

/* What the dead had stays, bit for bit; a retired segment without room for it leaves the rest as it is. */
TW_TEST(retireds_keep_it) {
    tw_segment *a = served_segment(4), *b = served_segment(4);
    serve(a, "m", 3, 200, TW_END_FINISHED);
    serve(a, "n", 2, 200, TW_END_ERROR);
    serve(b, "m", 9, 200, TW_END_FINISHED);
    const tw_segment *both[] = {a, b};
    tw_snapshot *alive, *dead;
    TW_REQUIRE(tw_snapshot_take(&alive, both, 2) == 0);
    for (int served = 0; served < 2; served++) {
        tw_segment *sum = tw_retired_begin(a->header.role, 1, served != 0);
        TW_REQUIRE(sum != NULL && tw_retired_add(sum, a) == 0 && tw_retired_add(sum, b) == 0);
        tw_retired_close(sum);
        TW_REQUIRE(tw_snapshot_take(&dead, (const tw_segment *const *)&sum, 1) == 0);
        TW_REQUIRE(dead->series_count == 2 && alive->series_count == 2);
        for (int set = 0; set < 2; set++)
            for (int i = 0; i < TW_SERVED_METRICS; i++) {
                const tw_counts *before = alive->series[set].served[i], *after = dead->series[set].served[i];
                TW_CHECK((before != NULL && served != 0) == (after != NULL));
                if (before && after) TW_CHECK_MEM(before, after, sizeof *after);
            }
        TW_CHECK_EQ(2, dead->series[0].metric[TW_METRIC_E2E]->count);
        tw_snapshot_free(dead);
        tw_retired_free(sum);
    }
    tw_snapshot_free(alive);
    tw_segment_destroy(a);
    tw_segment_destroy(b);
}
