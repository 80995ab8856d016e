#include "tailwatch/stamp/engine_step.h"
#include "tailwatch/aggregate/snapshot.h"

#include "tailwatch/base/atomic.h"
#include "segment_tools.h"
#include "tailwatch/record/slow_gaps.h"
#include "tw_test.h"

#include <errno.h>
#include <pthread.h>

#define MS TW_NS_PER_MS
#define SECOND TW_NS_PER_SECOND

static tw_segment *segment(const char *role, uint32_t sets) {
    static const tw_slo slo = {2 * SECOND, 200 * MS, 0, 0, 990000};
    tw_segment *g = NULL;
    TW_REQUIRE(tw_segment_create(&g, role, sets, false, &slo, 0) == 0);
    return g;
}

static tw_series *label(tw_segment *g, const char *model, const char *route) {
    return tw_segment_series(g, tw_segment_label(g, model, strlen(model), route, strlen(route)));
}

static void itl(tw_series *series, uint64_t ns) { tw_histogram_record(&series->itl, tw_layout_of(TW_LAYOUT_ITL), ns); }
static void ttft(tw_series *series, uint64_t ns) { tw_histogram_record(&series->ttft, tw_layout_of(TW_LAYOUT_TTFT), ns); }

static tw_snapshot *take2(const tw_segment *a, const tw_segment *b) {
    const tw_segment *segments[] = {a, b};
    tw_snapshot *s = NULL;
    TW_REQUIRE(tw_snapshot_take(&s, segments, b ? 2 : 1) == 0);
    return s;
}
static tw_snapshot *take(const tw_segment *g) { return take2(g, NULL); }

static tw_snapshot *difference(const tw_snapshot *later, const tw_snapshot *earlier) {
    tw_snapshot *s = NULL;
    TW_REQUIRE(tw_snapshot_subtract(&s, later, earlier) == 0);
    return s;
}

static tw_counts merged(const tw_snapshot *s, int metric) {
    tw_counts counts;
    tw_snapshot_metric(s, metric, NULL, NULL, &counts);
    return counts;
}

static uint64_t slots_sum(const tw_counts *c) {
    uint64_t sum = 0;
    for (int i = 0; i < TW_SLOTS_MAX; i++) sum += c->slot[i];
    return sum;
}

static void fallback(tw_segment *g, const char *shape, const char *reason, int times) {
    while (times-- > 0) tw_segment_fallback(g, shape, strlen(shape), reason, strlen(reason), 1);
}

static void check_fallback(const tw_snapshot *s, uint32_t at, const char *shape, const char *reason, uint64_t count) {
    TW_REQUIRE(at < s->fallback_count);
    TW_CHECK_STR(shape, s->fallbacks[at].shape);
    TW_CHECK_STR(reason, s->fallbacks[at].reason);
    TW_CHECK_EQ(count, s->fallbacks[at].count);
}

/* ---- taking ---- */

TW_TEST(an_unused_segment_gives_an_empty_snapshot) {
    tw_segment *g = segment("api", 4);
    tw_snapshot *s = take(g);
    TW_CHECK_EQ(0, s->series_count);
    TW_CHECK_EQ(1, s->process_count);
    TW_CHECK_STR("api", s->process[0].role);
    TW_CHECK_EQ(g->header.pid, s->process[0].pid);
    TW_CHECK_EQ(segment_bytes(1), s->process[0].bytes); /* of the four, those in use */
    TW_CHECK_EQ(0, s->slow_count);
    TW_CHECK(s->fallbacks == NULL && s->fallback_count == 0);
    TW_CHECK_EQ(2 * SECOND, s->slo.ttft_ns);
    for (int metric = 0; metric < TW_METRICS; metric++) {
        tw_counts counts;
        TW_CHECK(!tw_snapshot_metric(s, metric, NULL, NULL, &counts));
        TW_CHECK_EQ(0, counts.count);
    }
    TW_CHECK(s->wait[0] == NULL && s->wait[3] == NULL && s->process[0].stalls[0] == NULL);
    tw_snapshot_free(s);
    tw_segment_destroy(g);
}

TW_TEST(an_overwritten_segment_costs_its_own_numbers) {
    tw_segment *g = segment("api", 1), *overwritten = segment("engine", 1);
    const tw_segment *both[] = {overwritten, g};
    tw_snapshot *s = NULL;
    g->opened = 7, overwritten->opened = 9;
    overwritten->series_count = UINT64_MAX;
    TW_CHECK_EQ(0, tw_snapshot_take(&s, both, 2));
    TW_CHECK(s->process_count == 1 && s->opened == 7);
    tw_snapshot_free(s);
    tw_segment_destroy(g), tw_segment_destroy(overwritten);
}

TW_TEST(what_is_not_a_segment_is_refused) {
    tw_segment *g = segment("api", 1);
    const tw_segment *one[] = {g}, *none[] = {NULL};
    tw_snapshot *s = NULL;
    TW_CHECK_EQ(EINVAL, tw_snapshot_take(&s, one, 0));
    TW_CHECK_EQ(EINVAL, tw_snapshot_take(&s, NULL, 1));
    TW_CHECK_EQ(EINVAL, tw_snapshot_take(&s, none, 1));
    TW_CHECK_EQ(EINVAL, tw_snapshot_take(NULL, one, 1));
    g->header.layout_hash ^= 1;
    TW_CHECK_EQ(EINVAL, tw_snapshot_take(&s, one, 1));
    g->header.layout_hash ^= 1;
    TW_CHECK_EQ(0, tw_snapshot_take(&s, one, 1));
    tw_snapshot_free(s);
    tw_snapshot_free(NULL);
    tw_segment_destroy(g);
}

TW_TEST(label_sets_of_one_name_merge_and_are_sorted) {
    tw_segment *a = segment("api", 4), *b = segment("api", 4);
    ttft(label(a, "zeta", "/v1"), 10 * MS);
    ttft(label(a, "alpha", "/v2"), 20 * MS);
    ttft(label(b, "alpha", "/v2"), 30 * MS);
    tw_add(&label(b, "alpha", "/v1")->reasons[TW_REASON_429], 3);
    tw_add(&label(a, "zeta", "/v1")->output_tokens, 7);
    tw_add(&label(b, "zeta", "/v1")->output_tokens, 5);
    tw_snapshot *s = take2(a, b);
    TW_REQUIRE(s->series_count == 3);
    TW_CHECK_STR("alpha", s->series[0].model);
    TW_CHECK_STR("/v1", s->series[0].route);
    TW_CHECK_STR("/v2", s->series[1].route);
    TW_CHECK_STR("zeta", s->series[2].model);
    TW_CHECK_EQ(3, s->series[0].reasons[TW_REASON_429]);
    TW_CHECK(s->series[0].metric[TW_METRIC_TTFT] == NULL);
    TW_CHECK_EQ(2, s->series[1].metric[TW_METRIC_TTFT]->count);
    TW_CHECK_EQ(50 * MS, s->series[1].metric[TW_METRIC_TTFT]->sum_low);
    TW_CHECK_EQ(12, s->series[2].output_tokens);
    tw_snapshot_free(s);
    tw_segment_destroy(a);
    tw_segment_destroy(b);
}

TW_TEST(a_question_may_name_a_model_a_route_or_both) {
    tw_segment *g = segment("api", 8);
    ttft(label(g, "a", "/x"), 1 * MS);
    ttft(label(g, "a", "/y"), 2 * MS);
    ttft(label(g, "b", "/x"), 4 * MS);
    tw_snapshot *s = take(g);
    tw_counts counts;
    TW_CHECK(tw_snapshot_metric(s, TW_METRIC_TTFT, NULL, NULL, &counts));
    TW_CHECK_EQ(7 * MS, counts.sum_low);
    TW_CHECK(tw_snapshot_metric(s, TW_METRIC_TTFT, "a", NULL, &counts));
    TW_CHECK_EQ(3 * MS, counts.sum_low);
    TW_CHECK(tw_snapshot_metric(s, TW_METRIC_TTFT, NULL, "/x", &counts));
    TW_CHECK_EQ(5 * MS, counts.sum_low);
    TW_CHECK(tw_snapshot_metric(s, TW_METRIC_TTFT, "b", "/x", &counts));
    TW_CHECK_EQ(4 * MS, counts.sum_low);
    TW_CHECK(!tw_snapshot_metric(s, TW_METRIC_TTFT, "b", "/y", &counts));
    TW_CHECK(!tw_snapshot_metric(s, TW_METRICS, NULL, NULL, &counts));
    TW_CHECK(!tw_snapshot_metric(s, -1, NULL, NULL, &counts));
    tw_snapshot_free(s);
    tw_segment_destroy(g);
}

TW_TEST(every_metric_has_the_layout_it_was_recorded_in) {
    TW_CHECK(tw_metric_layout(TW_METRIC_TTFT) == tw_layout_of(TW_LAYOUT_TTFT));
    TW_CHECK(tw_metric_layout(TW_METRIC_TPOT) == tw_layout_of(TW_LAYOUT_ITL));
    TW_CHECK(tw_metric_layout(TW_METRIC_ITL_WITHOUT_GC) == tw_layout_of(TW_LAYOUT_ITL));
    TW_CHECK(tw_metric_layout(TW_METRIC_E2E) == tw_layout_of(TW_LAYOUT_E2E));
    TW_CHECK(tw_metric_layout(TW_METRIC_SEND_WAIT) == tw_layout_of(TW_LAYOUT_TTFT));
    TW_CHECK(tw_metric_layout(TW_METRIC_PAUSE) == tw_layout_of(TW_LAYOUT_PAUSE));
    TW_CHECK(tw_metric_layout(TW_METRICS - 1) == tw_layout_of(TW_LAYOUT_PAUSE));
    TW_CHECK(tw_metric_layout(TW_METRICS) == NULL);
    TW_CHECK(tw_metric_layout(-1) == NULL);
}

/* ---- without the delay part ---- */

TW_TEST(a_late_part_is_taken_off_its_gap) {
    tw_segment *g = segment("api", 2);
    tw_series *series = label(g, "m", "/r");
    const tw_layout *layout = tw_layout_of(TW_LAYOUT_ITL);
    for (int i = 0; i < 100; i++) itl(series, 20 * MS);
    itl(series, 300 * MS);
    tw_histogram_move(&series->itl_shift, layout, 300 * MS, 21 * MS);
    tw_snapshot *s = take(g);
    tw_counts with = merged(s, TW_METRIC_ITL), without = merged(s, TW_METRIC_ITL_WITHOUT_GC);
    TW_CHECK_EQ(101, with.count);
    TW_CHECK_EQ(300 * MS, with.max_ns);
    TW_CHECK_EQ(101, without.count);
    TW_CHECK_EQ(101, slots_sum(&without));
    TW_CHECK_EQ(2021 * MS, without.sum_low);
    TW_CHECK_EQ(0, without.sum_high);
    TW_CHECK_EQ(0, without.slot[tw_slot_of(layout, 300 * MS)]);
    TW_CHECK_EQ(20 * MS, without.min_ns);
    TW_CHECK(without.max_ns >= 21 * MS && without.max_ns < 22 * MS);
    tw_snapshot_free(s);
    tw_segment_destroy(g);
}

TW_TEST(a_correction_seen_before_its_gap_counts_as_none) {
    tw_segment *g = segment("api", 2);
    tw_series *series = label(g, "m", "/r");
    const tw_layout *layout = tw_layout_of(TW_LAYOUT_ITL);
    itl(series, 5 * MS);
    tw_histogram_move(&series->itl_shift, layout, 300 * MS, 20 * MS);
    tw_snapshot *s = take(g);
    tw_counts without = merged(s, TW_METRIC_ITL_WITHOUT_GC);
    TW_CHECK_EQ(0, without.slot[tw_slot_of(layout, 300 * MS)]);
    TW_CHECK_EQ(2, without.count);
    TW_CHECK_EQ(slots_sum(&without), without.count);
    TW_CHECK_EQ(0, without.sum_low); /* 5 - 280 ms is below 0 */
    TW_CHECK_EQ(0, without.sum_high);
    tw_snapshot_free(s);
    tw_segment_destroy(g);
}

/* ---- processes and totals ---- */

TW_TEST(pauses_are_kept_by_process) {
    tw_segment *a = segment("api", 1), *b = segment("engine", 1);
    uint64_t now = tw_now_ns();
    const tw_pause_result result = {.collected = 11, .uncollectable = 2};
    tw_pause_begin(&a->pause, TW_CAUSE_GC2, now - 300 * MS);
    tw_segment_pause_end(a, now - 200 * MS, &result);
    tw_pause_begin(&b->pause, TW_CAUSE_GC0, now - 100 * MS);
    tw_snapshot *s = take2(a, b);
    TW_CHECK_EQ(100 * MS, s->process[0].pause_ns[TW_CAUSE_GC2]);
    TW_CHECK_EQ(11, s->process[0].pause[TW_CAUSE_GC2].collected);
    TW_CHECK_EQ(2, s->process[0].pause[TW_CAUSE_GC2].uncollectable);
    TW_CHECK_EQ(100 * MS, s->process[0].pause[TW_CAUSE_GC2].max_ns);
    TW_CHECK_EQ(1, s->process[0].stalls[TW_CAUSE_GC2]->count);
    TW_CHECK_STR("engine", s->process[1].role);
    TW_CHECK(s->process[1].pause_ns[TW_CAUSE_GC0] >= 100 * MS - 2); /* still open: up to the snapshot */
    TW_CHECK_EQ(TW_PAUSE_OPEN, s->process[1].last_stop_ns);
    TW_CHECK(s->process[1].standing_ns >= 100 * MS - 2);
    TW_CHECK_EQ(TW_CAUSE_GC0, s->process[1].standing_cause);
    TW_CHECK_EQ(0, s->process[0].standing_ns);
    TW_CHECK(s->process[0].lives && s->process[1].lives);
    TW_CHECK(s->process[1].stalls[TW_CAUSE_GC0] == NULL);
    tw_counts counts = merged(s, TW_METRIC_PAUSE + TW_CAUSE_GC2);
    TW_CHECK_EQ(1, counts.count);
    tw_snapshot_free(s);
    tw_segment_destroy(a);
    tw_segment_destroy(b);
}

TW_TEST(totals_add_up) {
    tw_segment *a = segment("api", 1), *b = segment("api", 1);
    tw_add(&a->lost[0].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC1], 3);
    tw_add(&b->lost[0].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC1], 4);
    tw_add(&b->lost[0].delay_ns[TW_PHASE_TTFT][TW_CAUSE_GC_OWN][TW_ESTIMATED], 5);
    tw_add(&a->in_flight, 2);
    tw_add(&b->in_flight, 1);
    tw_add(&a->opened, 9);
    tw_add(&a->arrivals[TW_ARRIVAL_HEADER], 6);
    tw_add(&b->drops[TW_DROP_UNREADABLE_BODY], 7);
    tw_add(&b->errors[TW_ERROR_RENDER], 8);
    tw_add(&a->label_overflow, 1);
    tw_add(&a->deadlines_due, 10);
    tw_add(&b->deadlines_met, 6);
    tw_add(&a->tail[TW_PHASE_ITL][14].unexplained_ns, 100);
    tw_add(&b->tail[TW_PHASE_ITL][14].unexplained_ns, 11);
    tw_histogram_record(&a->send_wait, tw_layout_of(TW_LAYOUT_TTFT), 1 * MS);
    tw_histogram_record(&b->send_wait, tw_layout_of(TW_LAYOUT_TTFT), 2 * MS);
    tw_snapshot *s = take2(a, b);
    TW_CHECK_EQ(1, s->lost_count);
    TW_CHECK_EQ(7, s->lost[0].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC1]);
    TW_CHECK_EQ(5, s->lost[0].delay_ns[TW_PHASE_TTFT][TW_CAUSE_GC_OWN][TW_ESTIMATED]);
    TW_CHECK_EQ(3, s->in_flight);
    TW_CHECK_EQ(9, s->opened);
    TW_CHECK_EQ(6, s->arrivals[TW_ARRIVAL_HEADER]);
    TW_CHECK_EQ(7, s->drops[TW_DROP_UNREADABLE_BODY]);
    TW_CHECK_EQ(8, s->errors[TW_ERROR_RENDER]);
    TW_CHECK_EQ(1, s->label_overflow);
    TW_CHECK_EQ(10, s->deadlines_due);
    TW_CHECK_EQ(6, s->deadlines_met);
    TW_CHECK_EQ(111, s->tail[TW_PHASE_ITL][14].unexplained_ns);
    TW_CHECK_EQ(3 * MS, merged(s, TW_METRIC_SEND_WAIT).sum_low);
    tw_snapshot_free(s);
    tw_segment_destroy(a);
    tw_segment_destroy(b);
}

/* ---- seconds ---- */

static void finished(tw_segment *g, uint64_t at_ns, uint64_t good, uint64_t miss) {
    tw_second *second = tw_segment_second(g, at_ns);
    if (!second) return;
    tw_add(&second->good_miss, good | miss << 32);
    tw_add(&second->excluded_finished, (good + miss) << 32);
    tw_add(&second->ttft_tpot, good | good << 32);
    tw_add(&second->due_met, 2 * good | good << 32);
}

TW_TEST(stream_time_is_kept_by_the_role_whose_pauses_took_it) {
    tw_segment *a = segment("api", 1), *b = segment("engine", 1);
    const uint32_t engine = tw_segment_source(a, "engine"), worker = tw_segment_source(a, "worker");
    TW_CHECK_EQ(engine, tw_segment_source(a, "engine"));
    tw_add(&a->lost[0].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC1], 3);
    tw_add(&a->lost[engine].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC2], 40);
    tw_add(&a->lost[engine].delay_ns[TW_PHASE_ITL][TW_CAUSE_GC2][TW_ESTIMATED], 30);
    tw_add(&b->lost[0].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC2], 500); /* a stream that the engine stamps itself */
    tw_add(&a->lost[TW_SOURCE_UNBOUND].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC2], 6);
    tw_snapshot *s = take2(a, b), *later, *between;
    TW_CHECK_EQ(3, s->lost_count); /* the worker cost nothing */
    TW_CHECK_STR("api", s->lost[0].role);
    TW_CHECK_STR("engine", s->lost[1].role);
    TW_CHECK_STR("unbound", s->lost[2].role);
    TW_CHECK_EQ(540, s->lost[1].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC2]);
    TW_CHECK_EQ(30, s->lost[1].delay_ns[TW_PHASE_ITL][TW_CAUSE_GC2][TW_ESTIMATED]);
    TW_CHECK_EQ(3, s->lost[0].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC1]);
    tw_add(&a->lost[worker].overlap_ns[TW_PHASE_TTFT][TW_CAUSE_GC0], 7);
    tw_add(&a->lost[engine].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC2], 2);
    later = take2(a, b);
    TW_CHECK_EQ(0, tw_snapshot_subtract(&between, later, s));
    TW_CHECK_EQ(4, between->lost_count);
    TW_CHECK_EQ(2, between->lost[1].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC2]);
    TW_CHECK_STR("worker", between->lost[2].role);
    TW_CHECK_EQ(7, between->lost[2].overlap_ns[TW_PHASE_TTFT][TW_CAUSE_GC0]);
    TW_CHECK_EQ(0, between->lost[0].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC1]);
    tw_snapshot_free(s), tw_snapshot_free(later), tw_snapshot_free(between);
    tw_segment_destroy(a), tw_segment_destroy(b);
}

TW_TEST(more_roles_than_fit_are_other) {
    enum { MANY = TW_SOURCES + 3 };
    const tw_segment *all[MANY];
    char role[16];
    for (int i = 0; i < MANY; i++) {
        snprintf(role, sizeof role, "role%d", i);
        tw_segment *one = segment(role, 1);
        tw_add(&one->lost[0].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC1], 1);
        all[i] = one;
    }
    tw_snapshot *s;
    TW_CHECK_EQ(0, tw_snapshot_take(&s, all, MANY));
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->lost_count; i++) sum += s->lost[i].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC1];
    TW_CHECK_EQ(TW_SOURCES, s->lost_count);
    TW_CHECK_EQ(MANY, sum);
    TW_CHECK_STR("other", s->lost[TW_SOURCES - 1].role);
    tw_snapshot_free(s);
    for (int i = 0; i < MANY; i++) tw_segment_destroy((tw_segment *)(uintptr_t)all[i]);
}

TW_TEST(a_slow_gap_s_shares_name_roles_of_the_snapshot) {
    tw_segment *a = segment("worker", 1), *b = segment("api", 1);
    const uint32_t detokenizer = tw_segment_source(b, "detokenizer"), engine = tw_segment_source(b, "engine");
    tw_add(&b->lost[engine].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC2], 9);
    tw_slow_record *r = &b->slow[0];
    r->share[0] = (tw_share){engine, TW_CAUSE_GC2, 9, 8};
    r->share[1] = (tw_share){99, TW_CAUSE_GC2, 9, 8};
    r->share[2] = (tw_share){engine, 99, 9, 8};
    r->seq = 1;
    b->slow_head = 1;
    (void)detokenizer;
    tw_snapshot *s = take2(a, b);
    TW_CHECK_EQ(1, s->slow_count);
    TW_CHECK_STR("engine", s->lost[s->slow[0].share[0].source].role);
    TW_CHECK_EQ(9, s->slow[0].share[0].overlap_ns);
    TW_CHECK_EQ(0, s->slow[0].share[1].overlap_ns | s->slow[0].share[2].overlap_ns);
    tw_snapshot_free(s);
    tw_segment_destroy(a), tw_segment_destroy(b);
}

/* As a process that was killed with a request in flight, in the middle of a collection. */
static tw_segment *killed(void) {
    tw_segment *g = segment("engine", 1);
    tw_pause_begin(&g->pause, TW_CAUSE_GC2, 10 * MS);
    tw_segment_pause_end(g, 30 * MS, NULL);
    tw_pause_begin(&g->pause, TW_CAUSE_GC2, 50 * MS);
    tw_add(&g->in_flight, 3);
    g->header.pid = 1 << 30;
    return g;
}

TW_TEST(what_was_open_when_a_process_was_killed_does_not_go_on) {
    tw_segment *a = segment("api", 1), *b = killed();
    tw_add(&a->in_flight, 2);
    tw_snapshot *s = take2(a, b);
    TW_CHECK_EQ(2, s->in_flight);
    for (uint32_t i = 0; i < s->process_count; i++)
        if (strcmp(s->process[i].role, "engine") == 0) {
            TW_CHECK_EQ(20 * MS, s->process[i].pause_ns[TW_CAUSE_GC2]);
            TW_CHECK_EQ(0, s->process[i].standing_ns);
            TW_CHECK(!s->process[i].lives);
        }
    tw_snapshot_free(s);
    tw_segment_destroy(a), tw_segment_destroy(b);
}

TW_TEST(a_share_of_a_role_that_was_booked_meanwhile_is_kept) {
    tw_segment *g = segment("api", 1);
    g->slow[0].share[0] = (tw_share){tw_segment_source(g, "engine"), TW_CAUSE_GC2, 9, 8};
    g->slow[0].seq = g->slow[1].seq = 1;
    g->slow[1].seq = 2, g->slow[1].phase = TW_PHASES; /* of no phase: left out */
    g->slow_head = 2;
    tw_snapshot *s = take(g);
    TW_CHECK_EQ(1, s->slow_count);
    TW_CHECK(s->slow[0].share[0].source < s->lost_count);
    TW_CHECK_STR("engine", s->lost[s->slow[0].share[0].source].role);
    tw_snapshot_free(s);
    tw_segment_destroy(g);
}

TW_TEST(seconds_of_several_processes_merge_in_order) {
    tw_segment *a = segment("api", 1), *b = segment("api", 1);
    uint64_t now = tw_now_ns();
    finished(a, now - 10 * SECOND, 1, 0);
    finished(b, now - 10 * SECOND, 2, 1);
    finished(b, now - 5 * SECOND, 4, 0);
    finished(a, now, 8, 0);
    tw_snapshot *s = take2(a, b);
    const tw_second *last = &s->seconds[TW_SECONDS - 1];
    TW_CHECK_EQ(now / SECOND + 1, last->second);
    TW_CHECK_EQ(8, last->good_miss);
    TW_CHECK_EQ(4, last[-1].good_miss);
    TW_CHECK_EQ(3, tw_low(last[-2].good_miss));
    TW_CHECK_EQ(1, tw_high(last[-2].good_miss));
    for (int i = 0; i < TW_SECONDS - 3; i++) TW_CHECK_EQ(0, s->seconds[i].second);
    tw_snapshot_free(s);
    tw_segment_destroy(a);
    tw_segment_destroy(b);
}

TW_TEST(windows_equal_a_plain_sum_over_their_seconds) {
    tw_segment *g[] = {segment("api", 1), segment("api", 1)};
    static uint64_t good[TW_SECONDS + 1000], miss[TW_SECONDS + 1000];
    const uint64_t seconds = tw_now_ns() / SECOND; /* the machine may have begun lately */
    const uint64_t known = seconds < TW_SECONDS ? seconds : TW_SECONDS, all = TW_SECONDS + 1000;
    uint64_t state = 42;
    for (int i = (int)(seconds < all ? seconds : all) - 1; i >= 0; i--) {
        if (tw_test_random_below(&state, 3) == 0) continue;
        uint64_t hits = tw_test_random_below(&state, 9), misses = tw_test_random_below(&state, 3);
        finished(g[tw_test_random_below(&state, 2)], (seconds - (uint64_t)i) * SECOND + 5, hits, misses);
        good[i] = hits;
        miss[i] = misses;
    }
    tw_snapshot *s = take2(g[0], g[1]);
    s->taken.monotonic_ns = seconds * SECOND + SECOND / 2;
    uint64_t expected_good = 0, expected_miss = 0;
    for (uint32_t window = 1; window <= TW_SECONDS; window++) {
        expected_good += good[window - 1];
        expected_miss += miss[window - 1];
        if (window > 130 && window % 97) continue;
        tw_window found;
        tw_snapshot_window(s, window, &found);
        if (window + 10 < known) TW_CHECK_EQ(window, found.seconds);
        if (found.seconds != window) continue;
        TW_CHECK_EQ(expected_good, found.good);
        TW_CHECK_EQ(expected_miss, found.miss);
        TW_CHECK_EQ(expected_good + expected_miss, found.finished);
        TW_CHECK_EQ(expected_good, found.ttft_ok);
        TW_CHECK_EQ(expected_good, found.tpot_ok);
        TW_CHECK_EQ(0, found.itl_ok);
        TW_CHECK_EQ(2 * expected_good, found.due);
        TW_CHECK_EQ(expected_good, found.met);
    }
    tw_snapshot_free(s);
    tw_segment_destroy(g[0]);
    tw_segment_destroy(g[1]);
}

TW_TEST(a_window_is_cut_to_what_is_known) {
    tw_segment *g = segment("api", 1);
    tw_snapshot *s = take(g);
    tw_window window;
    s->window_ns = 0;
    tw_snapshot_window(s, 60, &window);
    TW_CHECK_EQ(1, window.seconds);
    s->window_ns = 10 * SECOND + 5;
    tw_snapshot_window(s, 60, &window);
    TW_CHECK_EQ(11, window.seconds);
    s->window_ns = 5000 * SECOND;
    tw_snapshot_window(s, 60, &window);
    TW_CHECK_EQ(60, window.seconds);
    tw_snapshot_window(s, UINT32_MAX, &window);
    TW_CHECK_EQ(TW_SECONDS, window.seconds);
    tw_snapshot_window(s, 0, &window);
    TW_CHECK_EQ(1, window.seconds);
    tw_snapshot_free(s);
    tw_segment_destroy(g);
}

/* ---- slow records ---- */

static void slow(tw_segment *g, uint64_t end_ns, uint32_t series) {
    uint64_t n = tw_load(&g->slow_head);
    tw_slow_record *to = &g->slow[n % TW_SLOW_RING];
    tw_store_release(&to->seq, 0);
    tw_store(&to->end_ns, end_ns);
    tw_store(&to->gap_ns, n);
    tw_store(&to->series, series);
    tw_store_release(&to->seq, n + 1);
    tw_store_release(&g->slow_head, n + 1);
}

TW_TEST(the_newest_slow_gaps_of_all_processes_are_kept) {
    tw_segment *a = segment("api", 4), *b = segment("api", 4);
    uint32_t x = tw_segment_label(a, "x", 1, "/a", 2), y = tw_segment_label(b, "y", 1, "/b", 2);
    for (uint64_t i = 0; i < 300; i++) slow(a, 1000 + 2 * i, x);
    for (uint64_t i = 0; i < 200; i++) slow(b, 1201 + 2 * i, y);
    tw_snapshot *s = take2(a, b);
    TW_CHECK_EQ(TW_SLOW_RING, s->slow_count);
    TW_CHECK_EQ(1201 + 398, s->slow[s->slow_count - 1].end_ns);
    for (uint32_t i = 0; i < s->slow_count; i++) {
        TW_CHECK_EQ(1599 - (TW_SLOW_RING - 1) + i, s->slow[i].end_ns);
        char model[TW_NAME_BYTES], route[TW_NAME_BYTES];
        tw_words_get(s->slow_series[2 * s->slow[i].series].word, TW_NAME_WORDS, model);
        tw_words_get(s->slow_series[2 * s->slow[i].series + 1].word, TW_NAME_WORDS, route);
        TW_CHECK_STR(s->slow[i].end_ns % 2 ? "y" : "x", model);
        TW_CHECK_STR(s->slow[i].end_ns % 2 ? "/b" : "/a", route);
    }
    tw_snapshot_free(s);
    tw_segment_destroy(a);
    tw_segment_destroy(b);
}

/* One that no ring holds any more, and a longer one of another process in the same minute. */
TW_TEST(the_longest_slow_gaps_of_all_processes_are_marked) {
    tw_segment *g[2] = {segment("api", 4), segment("api", 4)};
    const uint64_t lengths[2] = {40000 * MS, 50000 * MS};
    for (uint64_t i = 0; i < 2; i++) {
        tw_slow_record r = {.seq = 1, .end_ns = 61 * TW_NS_PER_SECOND + i, .phase = TW_PHASE_ITL, .gap_ns = lengths[i]};
        tw_slow_keep(g[i]->slow_longest, &r);
        tw_store(&g[i]->slow_head, 1);
        for (uint64_t k = 0; k < 300; k++) slow(g[i], 4000 * TW_NS_PER_SECOND + 2 * k + i, 0);
    }
    tw_snapshot *s = take2(g[0], g[1]);
    TW_REQUIRE(s->slow_count == TW_SLOW_RING + 2);
    TW_CHECK(s->slow[0].gap_ns == lengths[0] && s->slow[1].gap_ns == lengths[1]);
    TW_CHECK(s->slow_longest[0] && s->slow_longest[1] && !s->slow_longest[2]); /* both are of the run's longest */
    for (uint32_t i = 2; i < s->slow_count; i++) TW_CHECK(s->slow[i].end_ns > s->slow[i - 1].end_ns);
    tw_snapshot_free(s);
    tw_segment_destroy(g[0]);
    tw_segment_destroy(g[1]);
}

TW_TEST(a_slow_gap_of_a_label_set_that_cannot_be_is_other) {
    tw_segment *g = segment("api", 2);
    slow(g, 5, 77);
    tw_snapshot *s = take(g);
    TW_REQUIRE(s->slow_count == 1);
    char model[TW_NAME_BYTES];
    tw_words_get(s->slow_series[0].word, TW_NAME_WORDS, model);
    TW_CHECK_STR("other", model);
    tw_snapshot_free(s);
    tw_segment_destroy(g);
}

/* ---- differences ---- */

TW_TEST(a_difference_holds_what_came_in_between) {
    tw_segment *g = segment("api", 4);
    tw_series *old = label(g, "old", "/r");
    itl(old, 500 * MS);
    itl(old, 20 * MS);
    tw_add(&old->reasons[TW_REASON_GOOD], 5);
    tw_add(&g->opened, 5);
    tw_add(&g->in_flight, 1);
    slow(g, 1, 0);
    tw_snapshot *earlier = take(g);
    itl(old, 30 * MS);
    ttft(label(g, "new", "/r"), 40 * MS);
    tw_add(&old->reasons[TW_REASON_GOOD], 2);
    tw_add(&g->opened, 3);
    tw_add(&g->in_flight, 1);
    tw_add(&g->tail[TW_PHASE_ITL][3].count, 4);
    slow(g, earlier->taken.monotonic_ns + 1, 0);
    tw_snapshot *later = take(g), *s = difference(later, earlier);
    tw_counts gaps = merged(s, TW_METRIC_ITL);
    TW_CHECK_EQ(1, gaps.count);
    TW_CHECK_EQ(30 * MS, gaps.sum_low);
    TW_CHECK(gaps.max_ns >= 30 * MS && gaps.max_ns < 31 * MS);
    TW_CHECK_EQ(1, merged(s, TW_METRIC_TTFT).count);
    TW_REQUIRE(s->series_count == 2);
    TW_CHECK_STR("new", s->series[0].model);
    TW_CHECK_EQ(2, s->series[1].reasons[TW_REASON_GOOD]);
    TW_CHECK_EQ(3, s->opened);
    TW_CHECK_EQ(2, s->in_flight);
    TW_CHECK_EQ(4, s->tail[TW_PHASE_ITL][3].count);
    TW_CHECK(s->slow_count == 1 && s->slow[0].series == 0 && s->slow[0].end_ns > earlier->taken.monotonic_ns);
    TW_CHECK_EQ(later->taken.monotonic_ns - earlier->taken.monotonic_ns, s->window_ns);
    tw_snapshot *nothing = difference(later, later);
    TW_CHECK_EQ(0, merged(nothing, TW_METRIC_ITL).count);
    TW_CHECK(nothing->series[1].metric[TW_METRIC_ITL] == NULL);
    TW_CHECK_EQ(EINVAL, tw_snapshot_subtract(&nothing, earlier, later));
    tw_snapshot_free(nothing);
    tw_snapshot_free(s);
    tw_snapshot_free(later);
    tw_snapshot_free(earlier);
    tw_segment_destroy(g);
}

TW_TEST(a_gap_that_left_its_slot_between_two_readings_is_not_below_zero) {
    tw_segment *g = segment("api", 2);
    tw_series *series = label(g, "m", "/r");
    const tw_layout *layout = tw_layout_of(TW_LAYOUT_ITL);
    itl(series, 300 * MS);
    tw_snapshot *earlier = take(g);
    tw_histogram_move(&series->itl_shift, layout, 300 * MS, 20 * MS);
    tw_snapshot *later = take(g), *s = difference(later, earlier);
    tw_counts without = merged(s, TW_METRIC_ITL_WITHOUT_GC);
    TW_CHECK_EQ(1, without.count);
    TW_CHECK_EQ(1, without.slot[tw_slot_of(layout, 20 * MS)]);
    TW_CHECK_EQ(0, without.slot[tw_slot_of(layout, 300 * MS)]);
    TW_CHECK_EQ(0, without.sum_high);
    tw_snapshot_free(s);
    tw_snapshot_free(later);
    tw_snapshot_free(earlier);
    tw_segment_destroy(g);
}

TW_TEST(the_longest_pause_of_a_difference_is_one_of_its_own) {
    tw_segment *g = segment("api", 1);
    tw_pause_begin(&g->pause, TW_CAUSE_GC2, 1 * SECOND);
    tw_segment_pause_end(g, 2 * SECOND, NULL);
    tw_snapshot *earlier = take(g);
    tw_pause_begin(&g->pause, TW_CAUSE_GC2, 3 * SECOND);
    tw_segment_pause_end(g, 3 * SECOND + 40 * MS, NULL);
    tw_snapshot *later = take(g), *s = difference(later, earlier);
    TW_CHECK_EQ(40 * MS, s->process[0].pause_ns[TW_CAUSE_GC2]);
    TW_CHECK_EQ(1, s->process[0].pause[TW_CAUSE_GC2].count);
    TW_CHECK(s->process[0].pause[TW_CAUSE_GC2].max_ns >= 40 * MS);
    TW_CHECK(s->process[0].pause[TW_CAUSE_GC2].max_ns < 41 * MS);
    TW_CHECK_EQ(0, s->process[0].pause[TW_CAUSE_GC1].max_ns);
    tw_snapshot_free(s);
    tw_snapshot_free(later);
    tw_snapshot_free(earlier);
    tw_segment_destroy(g);
}

TW_TEST(a_process_that_is_new_counts_from_zero) {
    tw_segment *a = segment("api", 1), *b = segment("engine", 1);
    tw_snapshot *earlier = take(a);
    tw_pause_begin(&b->pause, TW_CAUSE_GC1, 1 * SECOND);
    tw_segment_pause_end(b, 2 * SECOND, NULL);
    tw_snapshot *later = take2(a, b), *s = difference(later, earlier);
    TW_CHECK_EQ(2, s->process_count);
    TW_CHECK_EQ(1 * SECOND, s->process[1].pause_ns[TW_CAUSE_GC1]);
    tw_snapshot_free(s);
    tw_snapshot_free(later);
    tw_snapshot_free(earlier);
    tw_segment_destroy(a);
    tw_segment_destroy(b);
}

TW_TEST(a_process_that_got_another_role_is_the_same_process) {
    tw_segment *g = segment("worker", 1);
    tw_pause_begin(&g->pause, TW_CAUSE_GC1, 1 * SECOND);
    tw_segment_pause_end(g, 2 * SECOND, NULL);
    tw_snapshot *earlier = take(g);
    tw_segment_set_role(g, "engine");
    tw_snapshot *later = take(g), *s = difference(later, earlier);
    TW_CHECK_STR("engine", s->process[0].role);
    TW_CHECK_EQ(0, s->process[0].pause_ns[TW_CAUSE_GC1]);
    tw_snapshot_free(s);
    tw_snapshot_free(later);
    tw_snapshot_free(earlier);
    tw_segment_destroy(g);
}

/* ---- history ---- */

typedef struct past {
    tw_segment *segment;
    tw_series *series;
    tw_history *history;
} past;

static past past_open(void) {
    past p = {segment("api", 4), NULL, NULL};
    p.series = label(p.segment, "m", "/r");
    TW_REQUIRE(tw_history_create(&p.history) == 0);
    return p;
}

static void past_close(past *p) {
    tw_history_free(p->history);
    tw_segment_destroy(p->segment);
}

/* A snapshot as of a made-up time. */
static tw_snapshot *at(past *p, uint64_t seconds) {
    tw_snapshot *s = take(p->segment);
    s->taken.monotonic_ns = seconds * SECOND;
    s->window_ns = seconds * SECOND;
    return s;
}

static void push(past *p, uint64_t seconds) {
    tw_snapshot *s = at(p, seconds);
    TW_CHECK_EQ(0, tw_history_push(p->history, s));
    tw_snapshot_free(s);
}

static tw_snapshot *window(past *p, uint64_t now_s, uint64_t window_s, int expected) {
    tw_snapshot *now = at(p, now_s), *s = NULL;
    TW_CHECK_EQ(expected, tw_history_window(p->history, now, window_s * SECOND, &s));
    tw_snapshot_free(now);
    TW_REQUIRE(s != NULL);
    return s;
}

TW_TEST(with_no_past_a_window_is_everything) {
    past p = past_open();
    itl(p.series, 20 * MS);
    ttft(label(p.segment, "n", "/s"), 30 * MS);
    tw_snapshot *s = window(&p, 100, 60, ENODATA);
    TW_CHECK_EQ(1, s->series_count);
    TW_CHECK_STR("*", s->series[0].model);
    TW_CHECK_STR("*", s->series[0].route);
    TW_CHECK_EQ(1, merged(s, TW_METRIC_ITL).count);
    TW_CHECK_EQ(1, merged(s, TW_METRIC_TTFT).count);
    TW_CHECK_EQ(100 * SECOND, s->window_ns);
    TW_CHECK_STR("api", s->process[0].role);
    tw_snapshot_free(s);
    past_close(&p);
}

TW_TEST(a_window_is_exact_between_its_ends) {
    past p = past_open();
    for (uint64_t second = 1000; second <= 5000; second++) {
        itl(p.series, (second % 50 + 1) * MS);
        tw_add(&p.series->reasons[TW_REASON_GOOD], 1);
        tw_add(&p.segment->tail[TW_PHASE_ITL][second % 4].count, 1);
        tw_add(&p.segment->tail[TW_PHASE_ITL][second % 4].time_ns, 10);
        if (second % 5 == 0) push(&p, second);
    }
    static const uint64_t windows[] = {5, 60, 65, 120, 300, 900, 3600};
    for (int i = 0; i < 7; i++) {
        tw_snapshot *s = window(&p, 5000, windows[i], 0);
        uint64_t covered = s->window_ns / SECOND, off = covered > windows[i] ? covered - windows[i] : windows[i] - covered;
        TW_CHECK(off <= (windows[i] <= 65 ? 0 : 30));
        tw_counts gaps = merged(s, TW_METRIC_ITL);
        TW_CHECK_EQ(covered, gaps.count);
        TW_CHECK_EQ(covered, s->series[0].reasons[TW_REASON_GOOD]);
        uint64_t sum = 0, rows = 0;
        for (uint64_t second = 5000 - covered + 1; second <= 5000; second++) sum += (second % 50 + 1) * MS;
        TW_CHECK_EQ(sum, gaps.sum_low);
        for (int octave = 0; octave < 4; octave++) rows += s->tail[TW_PHASE_ITL][octave].count;
        TW_CHECK_EQ(covered, rows);
        tw_snapshot_free(s);
    }
    past_close(&p);
}

TW_TEST(the_start_is_a_past_too) {
    past p = past_open();
    itl(p.series, 20 * MS);
    push(&p, 10);
    itl(p.series, 20 * MS);
    tw_snapshot *all = window(&p, 20, 3600, 0), *last = window(&p, 20, 10, 0);
    TW_CHECK_EQ(2, merged(all, TW_METRIC_ITL).count);
    TW_CHECK_EQ(20 * SECOND, all->window_ns);
    TW_CHECK_EQ(1, merged(last, TW_METRIC_ITL).count);
    TW_CHECK_EQ(10 * SECOND, last->window_ns);
    tw_snapshot_free(all);
    tw_snapshot_free(last);
    past_close(&p);
}

TW_TEST(a_count_beyond_32_bits_still_subtracts) {
    past p = past_open();
    uint64_t *slot = &p.series->itl.slot[tw_slot_of(tw_layout_of(TW_LAYOUT_ITL), 20 * MS)];
    itl(p.series, 20 * MS);
    tw_store(slot, (UINT64_C(7) << 32) - 3);
    push(&p, 100);
    tw_store(slot, (UINT64_C(7) << 32) + 1000);
    tw_snapshot *s = window(&p, 160, 60, 0);
    TW_CHECK_EQ(1003, merged(s, TW_METRIC_ITL).count);
    tw_snapshot_free(s);
    past_close(&p);
}

TW_TEST(a_gap_that_left_its_slot_since_a_mark_is_no_jump) {
    past p = past_open();
    const tw_layout *layout = tw_layout_of(TW_LAYOUT_ITL);
    for (int i = 0; i < 10; i++) itl(p.series, 300 * MS);
    push(&p, 100);
    tw_histogram_move(&p.series->itl_shift, layout, 300 * MS, 20 * MS);
    tw_snapshot *s = window(&p, 160, 60, 0);
    TW_CHECK_EQ(1, merged(s, TW_METRIC_ITL_WITHOUT_GC).count);
    TW_CHECK_EQ(0, merged(s, TW_METRIC_ITL).count);
    tw_snapshot_free(s);
    past_close(&p);
}

TW_TEST(pushing_more_often_keeps_no_more) {
    past p = past_open();
    for (uint64_t second = 1000; second < 1100; second++) {
        itl(p.series, 20 * MS);
        push(&p, second);
        push(&p, second);
    }
    tw_snapshot *s = window(&p, 1099, 64, 0);
    TW_CHECK_EQ(64 * SECOND, s->window_ns);
    TW_CHECK_EQ(64, merged(s, TW_METRIC_ITL).count);
    tw_snapshot_free(s);
    past_close(&p);
}

TW_TEST(several_processes_of_a_window_are_one) {
    tw_segment *a = segment("api", 1), *b = segment("engine", 1);
    tw_pause_begin(&a->pause, TW_CAUSE_GC2, 1 * SECOND);
    tw_segment_pause_end(a, 2 * SECOND, NULL);
    a->policy.counts.interference[TW_INTERFERENCE_FREEZE] = 3;
    tw_snapshot *then = take2(a, b), *s = NULL;
    tw_history *h = NULL;
    TW_REQUIRE(tw_history_create(&h) == 0);
    TW_CHECK_EQ(0, tw_history_push(h, then));
    tw_pause_begin(&b->pause, TW_CAUSE_GC2, 3 * SECOND);
    tw_segment_pause_end(b, 3 * SECOND + 10 * MS, NULL);
    b->policy.counts.interference[TW_INTERFERENCE_FREEZE] += 4;
    tw_snapshot *now = take2(a, b);
    TW_CHECK_EQ(0, tw_history_window(h, now, 1, &s));
    TW_REQUIRE(s != NULL && s->process_count == 1);
    TW_CHECK_STR("*", s->process[0].role);
    TW_CHECK_EQ(10 * MS, s->process[0].pause_ns[TW_CAUSE_GC2]);
    TW_CHECK_EQ(1, s->process[0].stalls[TW_CAUSE_GC2]->count);
    TW_CHECK_EQ(4, s->process[0].policy.counts.interference[TW_INTERFERENCE_FREEZE]);
    tw_snapshot_free(s);
    tw_snapshot_free(now);
    tw_snapshot_free(then);
    tw_history_free(h);
    tw_segment_destroy(a);
    tw_segment_destroy(b);
}

static void fill(tw_histogram *h, const tw_layout *layout) {
    for (uint32_t slot = 0; slot < layout->slots; slot++) {
        uint64_t lower, upper;
        tw_slot_edges(layout, slot, &lower, &upper);
        tw_histogram_record(h, layout, lower + 1);
    }
}

TW_TEST(fallbacks_of_several_processes_merge_and_are_sorted) {
    tw_segment *a = segment("api", 1), *b = segment("api", 1);
    fallback(b, "chat", "extra", 1);
    fallback(a, "text", "extra", 2);
    fallback(a, "chat", "extra", 3);
    fallback(b, "chat", "bytes", 4);
    tw_snapshot *s = take2(a, b);
    TW_CHECK_EQ(3, s->fallback_count);
    check_fallback(s, 0, "chat", "bytes", 4);
    check_fallback(s, 1, "chat", "extra", 4);
    check_fallback(s, 2, "text", "extra", 2);
    tw_snapshot_free(s);
    tw_segment_destroy(a);
    tw_segment_destroy(b);
}

TW_TEST(fallbacks_subtract) {
    tw_segment *g = segment("api", 1);
    fallback(g, "chat", "extra", 3);
    tw_snapshot *then = take(g);
    fallback(g, "chat", "extra", 2);
    fallback(g, "chat", "bytes", 5);
    tw_snapshot *now = take(g), *s = difference(now, then), *none = difference(then, then);
    TW_CHECK_EQ(2, s->fallback_count);
    check_fallback(s, 0, "chat", "bytes", 5);
    check_fallback(s, 1, "chat", "extra", 2);
    check_fallback(none, 0, "chat", "extra", 0);
    tw_snapshot_free(none);
    tw_snapshot_free(s);
    tw_snapshot_free(now);
    tw_snapshot_free(then);
    tw_segment_destroy(g);
}

static uint64_t fallback_of(const tw_snapshot *s, const char *shape) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->fallback_count; i++)
        if (!strcmp(s->fallbacks[i].shape, shape)) sum += s->fallbacks[i].count;
    return sum;
}

/* A snapshot with kinds shape 0 .. kinds - 1, each so often, taken at a second. */
static tw_snapshot *with_kinds(const tw_snapshot *base, tw_snapshot_fallback *rows, int kinds, uint64_t times, uint64_t at_s) {
    tw_snapshot *s = malloc(sizeof *s);
    TW_REQUIRE(s != NULL);
    *s = *base;
    s->taken.monotonic_ns = at_s * SECOND;
    s->fallbacks = rows;
    s->fallback_count = (uint32_t)kinds;
    for (int i = 0; i < kinds; i++) {
        snprintf(rows[i].shape, sizeof rows[i].shape, "shape %d", i);
        strcpy(rows[i].reason, "extra");
        rows[i].count = times;
    }
    return s;
}

TW_TEST(a_window_has_its_fallbacks_however_many_kinds_there_are) {
    enum { MOST = 200 };
    static tw_snapshot_fallback rows[MOST];
    tw_segment *g = segment("api", 1);
    tw_snapshot *base = take(g);
    for (int kinds = 1; kinds <= MOST; kinds += kinds < 70 ? 1 : 65) {
        tw_history *h = NULL;
        TW_REQUIRE(tw_history_create(&h) == 0);
        tw_snapshot *then = with_kinds(base, rows, kinds, 3, 1000), *s = NULL;
        TW_CHECK_EQ(0, tw_history_push(h, then));
        tw_snapshot *now = with_kinds(base, rows, kinds, 10, 1005);
        TW_CHECK_EQ(0, tw_history_window(h, now, 5 * SECOND, &s));
        TW_CHECK_EQ(7, fallback_of(s, "shape 0"));
        TW_CHECK_EQ(kinds < 64 ? 0 : 7 * (uint64_t)(kinds - 63), fallback_of(s, "other"));
        TW_CHECK_EQ(0, fallback_of(s, "shape 63"));
        tw_snapshot_free(s);
        free(then);
        free(now);
        tw_history_free(h);
    }
    tw_snapshot_free(base);
    tw_segment_destroy(g);
}

TW_TEST(a_fallback_since_the_mark_counts_whole) {
    static tw_snapshot_fallback rows[2];
    tw_segment *g = segment("api", 1);
    tw_snapshot *base = take(g), *s = NULL;
    tw_history *h = NULL;
    TW_REQUIRE(tw_history_create(&h) == 0);
    tw_snapshot *then = with_kinds(base, rows, 1, 4, 1000);
    TW_CHECK_EQ(0, tw_history_push(h, then));
    tw_snapshot *later = with_kinds(base, rows, 2, 6, 1005);
    TW_CHECK_EQ(0, tw_history_push(h, later));
    tw_snapshot *now = with_kinds(base, rows, 2, 9, 1010);
    TW_CHECK_EQ(0, tw_history_window(h, now, 10 * SECOND, &s));
    TW_CHECK_EQ(5, fallback_of(s, "shape 0"));
    TW_CHECK_EQ(9, fallback_of(s, "shape 1"));
    tw_snapshot_free(s);
    TW_CHECK_EQ(0, tw_history_window(h, now, 5 * SECOND, &s));
    TW_CHECK_EQ(3, fallback_of(s, "shape 0"));
    TW_CHECK_EQ(3, fallback_of(s, "shape 1"));
    tw_snapshot_free(s);
    free(then);
    free(later);
    free(now);
    tw_snapshot_free(base);
    tw_history_free(h);
    tw_segment_destroy(g);
}

TW_TEST(a_full_pool_costs_the_oldest_marks_only) {
    past p = past_open();
    fill(&p.series->ttft, tw_layout_of(TW_LAYOUT_TTFT));
    fill(&p.series->itl, tw_layout_of(TW_LAYOUT_ITL));
    fill(&p.series->tpot, tw_layout_of(TW_LAYOUT_ITL));
    fill(&p.series->e2e, tw_layout_of(TW_LAYOUT_E2E));
    fill(&p.segment->queue_accept, tw_layout_of(TW_LAYOUT_TTFT));
    fill(&p.segment->queue_proxy, tw_layout_of(TW_LAYOUT_TTFT));
    fill(&p.segment->send_wait, tw_layout_of(TW_LAYOUT_TTFT));
    fill(&p.segment->abandoned_wait, tw_layout_of(TW_LAYOUT_TTFT));
    for (int cause = 0; cause < TW_CAUSES; cause++) fill(&p.segment->stalls[cause], tw_layout_of(TW_LAYOUT_PAUSE));
    for (uint64_t second = 5; second <= 4000; second += 5) {
        itl(p.series, 20 * MS);
        push(&p, second);
    }
    tw_snapshot *recent = window(&p, 4000, 60, 0), *hour = window(&p, 4000, 2000, 0);
    TW_CHECK_EQ(60 * SECOND, recent->window_ns);
    TW_CHECK_EQ(12, merged(recent, TW_METRIC_ITL).count);
    TW_CHECK(hour->window_ns > 300 * SECOND && hour->window_ns < 4000 * SECOND);
    TW_CHECK_EQ(hour->window_ns / (5 * SECOND), merged(hour, TW_METRIC_ITL).count);
    tw_snapshot_free(recent);
    tw_snapshot_free(hour);
    past_close(&p);
}

TW_TEST(the_memory_of_the_past_is_fixed) { TW_CHECK(tw_history_bytes() < 2 << 20); }

/* ---- the past by label set ---- */

static tw_snapshot *window_of_labels(past *p, uint64_t now_s, uint64_t window_s, int expected) {
    tw_snapshot *now = at(p, now_s), *s = NULL;
    TW_CHECK_EQ(expected, tw_history_window_of_labels(p->history, now, window_s * SECOND, &s));
    tw_snapshot_free(now);
    TW_CHECK(expected ? s == NULL : s != NULL);
    return s;
}

static uint64_t gaps_of(const tw_snapshot *s, const char *model) {
    tw_counts counts;
    tw_snapshot_metric(s, TW_METRIC_ITL, model, "/r", &counts);
    return counts.count;
}

TW_TEST(a_window_has_each_label_set) {
    past p = past_open();
    TW_CHECK_EQ(0, tw_history_label_bytes(p.history));
    tw_history_keep_labels(p.history);
    for (int i = 0; i < 3; i++) itl(p.series, 20 * MS);
    push(&p, 60);
    for (int i = 0; i < 4; i++) itl(p.series, 40 * MS);
    tw_series *other = label(p.segment, "n", "/r");
    for (int i = 0; i < 5; i++) itl(other, 80 * MS);
    tw_add(&other->output_tokens, 6);
    push(&p, 120);
    itl(other, 20 * MS);
    tw_add(&other->output_tokens, 1);
    tw_snapshot *minute = window_of_labels(&p, 180, 60, 0), *two = window_of_labels(&p, 180, 120, 0);
    TW_CHECK_EQ(60 * SECOND, minute->window_ns);
    TW_CHECK_EQ(0, gaps_of(minute, "m"));
    TW_CHECK_EQ(1, gaps_of(minute, "n"));
    TW_REQUIRE(minute->series_count == 2 && strcmp(minute->series[1].model, "n") == 0);
    TW_CHECK_EQ(1, minute->series[1].output_tokens);
    TW_CHECK_EQ(120 * SECOND, two->window_ns);
    TW_CHECK_EQ(4, gaps_of(two, "m"));
    TW_CHECK_EQ(6, gaps_of(two, "n"));
    tw_counts counts;
    tw_snapshot_metric(two, TW_METRIC_ITL, "m", "/r", &counts);
    const uint64_t p50 = tw_counts_quantile(&counts, tw_metric_layout(TW_METRIC_ITL), 0.5);
    TW_CHECK(p50 > 39 * MS && p50 < 41 * MS);
    tw_snapshot *all = window_of_labels(&p, 180, 1000, 0);
    TW_CHECK_EQ(180 * SECOND, all->window_ns);
    TW_CHECK_EQ(7, gaps_of(all, "m"));
    TW_CHECK(tw_history_label_bytes(p.history) > 0 && tw_history_label_bytes(p.history) < 16384);
    tw_snapshot_free(minute);
    tw_snapshot_free(two);
    tw_snapshot_free(all);
    past_close(&p);
}

TW_TEST(without_label_sets_no_window_has_any) {
    past p = past_open();
    push(&p, 60);
    tw_history_keep_labels(p.history);
    TW_CHECK(window_of_labels(&p, 120, 60, ENODATA) == NULL);
    past_close(&p);
    tw_segment *g = segment("api", 100);
    p = (past){g, NULL, NULL};
    TW_REQUIRE(tw_history_create(&p.history) == 0);
    tw_history_keep_labels(p.history);
    char name[16];
    for (int i = 0; i < 65; i++) {
        snprintf(name, sizeof name, "m%d", i);
        itl(label(g, name, "/r"), MS);
    }
    push(&p, 60);
    TW_CHECK_EQ(0, tw_history_label_bytes(p.history));
    TW_CHECK(window_of_labels(&p, 120, 60, ENODATA) == NULL);
    past_close(&p);
}

/* ---- readers beside the writer ---- */

static void *write_gaps(void *argument) {
    tw_segment *g = argument;
    tw_series *series = label(g, "m", "/r");
    const tw_layout *layout = tw_layout_of(TW_LAYOUT_ITL);
    for (uint64_t i = 0; i < 40000; i++) {
        uint64_t gap = (i % 100 + 1) * MS;
        itl(series, gap);
        if (i % 3 == 0) tw_histogram_move(&series->itl_shift, layout, gap, gap / 2);
        finished(g, i * SECOND / 100, 1, 0);
        if (i % 64 == 0) slow(g, i, 1);
        tw_pause_begin(&g->pause, TW_CAUSE_GC0, i * MS);
        tw_segment_pause_end(g, i * MS + 60000, NULL);
    }
    return NULL;
}

TW_TEST(a_snapshot_of_a_writer_at_work_is_sane) {
    tw_segment *g = segment("api", 2);
    pthread_t writer;
    TW_REQUIRE(pthread_create(&writer, NULL, write_gaps, g) == 0);
    uint64_t last = 0;
    for (int i = 0; i < 50; i++) {
        tw_snapshot *s = take(g);
        tw_counts with = merged(s, TW_METRIC_ITL), without = merged(s, TW_METRIC_ITL_WITHOUT_GC);
        TW_CHECK(with.count >= last);
        TW_CHECK(without.count <= with.count + 1);
        TW_CHECK_EQ(0, without.sum_high);
        for (uint32_t k = 1; k < s->slow_count; k++) TW_CHECK(s->slow[k].end_ns > s->slow[k - 1].end_ns);
        last = with.count;
        tw_snapshot_free(s);
    }
    pthread_join(writer, NULL);
    tw_snapshot *s = take(g);
    TW_CHECK_EQ(40000, merged(s, TW_METRIC_ITL).count);
    TW_CHECK_EQ(40000, merged(s, TW_METRIC_ITL_WITHOUT_GC).count);
    tw_snapshot_free(s);
    tw_segment_destroy(g);
}

/* ---- engine steps ---- */

static tw_stepper stepper_of(tw_segment *g) {
    tw_stepper s;
    tw_stepper_init(&s, &g->steps, &g->pause, &g->drops[TW_DROP_PAUSE_RING_OVERFLOW]);
    return s;
}

static void one_step(tw_segment *g, tw_stepper *s, const char *name, uint64_t from, uint64_t to, uint64_t batch, uint64_t waiting) {
    tw_step step;
    tw_step_begin(s, &step, tw_segment_step(g, name, strlen(name)), 1, from);
    tw_step_end(s, &step, to, batch, waiting);
}

static void pause_steps(tw_segment *g, uint64_t from, uint64_t to) {
    tw_pause_begin(&g->pause, TW_CAUSE_GC2, from);
    tw_segment_pause_end(g, to, NULL);
}

TW_TEST(steps_stay_with_their_process) {
    tw_segment *a = segment("engine", 1), *b = segment("engine", 1), *api = segment("api", 1);
    tw_stepper sa = stepper_of(a), sb = stepper_of(b);
    one_step(a, &sa, "decode", SECOND, SECOND + 10 * MS, 8, 3);
    pause_steps(a, SECOND + 11 * MS, SECOND + 13 * MS);
    one_step(a, &sa, "decode", SECOND + 13 * MS, SECOND + 14 * MS, 4, 0);
    one_step(b, &sb, "prefill", SECOND, SECOND + 5 * MS, 2, 0);
    b->header.created.monotonic_ns = a->header.created.monotonic_ns + 1;
    const tw_segment *all[] = {api, b, a};
    tw_snapshot *s = NULL;
    TW_REQUIRE(tw_snapshot_take(&s, all, 3) == 0);
    uint32_t with = 0;
    for (uint32_t i = 0; i < 3; i++) with += s->process[i].steps != NULL;
    TW_CHECK_EQ(2, with);
    const tw_snapshot_process *first = NULL;
    for (uint32_t i = 3; i-- > 0;)
        if (s->process[i].created_ns == a->header.created.monotonic_ns && s->process[i].steps) first = &s->process[i];
    TW_REQUIRE(first != NULL);
    TW_CHECK_EQ(1, first->step_count);
    TW_CHECK_STR("decode", first->steps[0].name);
    TW_CHECK_EQ(2, first->steps[0].spent[TW_STEP_INSIDE]->count);
    TW_CHECK_EQ(1, first->steps[0].spent[TW_STEP_GAP]->count);
    TW_CHECK_EQ(12, first->steps[0].batch);
    TW_CHECK_EQ(2 * MS, first->steps[0].overlap_ns[TW_STEP_GAP][TW_CAUSE_GC2]);
    TW_CHECK_EQ(6 * MS, first->steps[0].request_ns[TW_STEP_GAP][TW_CAUSE_GC2]);
    tw_snapshot_free(s);
    tw_segment_destroy(a), tw_segment_destroy(b), tw_segment_destroy(api);
}

static void engine_step(tw_segment *g, uint64_t at_ms, uint32_t prefill_tokens) {
    const tw_step_record s = {.done_ns = at_ms * MS, .requests = 4, .decode_tokens = 3, .prefill_tokens = prefill_tokens,
                              .part = {[TW_PART_WAIT] = (uint32_t)(10 * MS / TW_OFFSET_UNIT_NS)},
                              .preempted = TW_COUNT_UNKNOWN};
    tw_step_write(&g->step_ring, &s);
    tw_engine_sums_count(&g->engine, &s);
}

TW_TEST(an_engine_goes_on_where_the_dead_of_its_name_stopped) {
    tw_segment *dead = segment("engine", 1), *living = segment("engine", 1), *api = segment("api", 1);
    dead->header.place = living->header.place = 1;
    living->header.created.monotonic_ns = dead->header.created.monotonic_ns + 1;
    engine_step(dead, 10, 300), engine_step(dead, 20, 0), engine_step(living, 40, 0);
    const tw_segment *all[] = {living, api, dead};
    tw_snapshot *s = NULL;
    TW_REQUIRE(tw_snapshot_take(&s, all, 3) == 0);
    const tw_snapshot_engine *engine = NULL;
    for (uint32_t i = 0; i < s->process_count; i++)
        if (s->process[i].engine) engine = s->process[i].engine;
    TW_REQUIRE(engine != NULL && s->process_count == 2);
    TW_CHECK_EQ(3, engine->steps);
    TW_CHECK_EQ(300, engine->prefill_tokens);
    TW_CHECK_EQ(0, engine->preempted); /* was not known */
    TW_CHECK_EQ(1, engine->length[TW_WORK_PREFILL]->count);
    TW_CHECK_EQ(20 * MS, engine->length[TW_WORK_DECODE]->sum_low);
    TW_CHECK_EQ(1, engine->last_count);
    TW_CHECK_EQ(40 * MS, engine->last[0].record.done_ns);
    tw_snapshot_free(s);
    tw_segment_destroy(dead), tw_segment_destroy(living), tw_segment_destroy(api);
}

TW_TEST(steps_of_a_difference_came_in_between) {
    tw_segment *g = segment("engine", 1);
    tw_stepper s = stepper_of(g);
    one_step(g, &s, "decode", SECOND, SECOND + 10 * MS, 8, TW_STEP_UNKNOWN);
    tw_snapshot *earlier = take(g);
    one_step(g, &s, "prefill", SECOND + 20 * MS, SECOND + 25 * MS, 1, 2);
    pause_steps(g, SECOND + 26 * MS, SECOND + 28 * MS);
    one_step(g, &s, "decode", SECOND + 26 * MS, SECOND + 40 * MS, 3, 0);
    tw_snapshot *later = take(g), *d = difference(later, earlier);
    TW_REQUIRE(d->process[0].step_count == 2);
    const tw_snapshot_step *decode = &d->process[0].steps[0], *prefill = &d->process[0].steps[1];
    TW_CHECK_EQ(1, decode->spent[TW_STEP_INSIDE]->count);
    TW_CHECK_EQ(14 * MS, decode->spent[TW_STEP_INSIDE]->sum_low);
    TW_CHECK_EQ(3, decode->batch);
    TW_CHECK_EQ(2 * MS, decode->overlap_ns[TW_STEP_INSIDE][TW_CAUSE_GC2]);
    TW_CHECK_EQ(1, decode->spent[TW_STEP_GAP]->count);
    TW_CHECK_EQ(10 * MS, prefill->unknown_ns);
    TW_CHECK(prefill->spent[TW_STEP_GAP] == NULL);
    tw_snapshot *none = difference(later, later);
    TW_CHECK(none->process[0].steps[0].spent[TW_STEP_INSIDE] == NULL);
    TW_CHECK_EQ(0, none->process[0].steps[0].batch);
    tw_snapshot_free(none), tw_snapshot_free(d), tw_snapshot_free(later), tw_snapshot_free(earlier);
    tw_segment_destroy(g);
}
