/* The sum of the dead: a snapshot of it is the snapshot of those it holds, and a list that lies is no retired segment.
 * */
#include "tailwatch/group/retired_segment.h"

#include <sys/mman.h>

#include "tailwatch/aggregate/snapshot.h"
#include "tailwatch/stamp/stream.h"
#include "segment_tools.h"
#include "tailwatch/record/slow_gaps.h"
#include "tw_test.h"

#define SECOND TW_NS_PER_SECOND

static tw_segment *segment_of(const char *role, uint32_t sets) {
    static const tw_slo slo = {.ttft_ns = 200000000, .itl_ns = 50000000, .attainment_ppm = 990000};
    tw_segment *g;
    TW_REQUIRE(tw_segment_create(&g, role, sets, false, &slo, 20000000) == 0);
    g->header.place = 1;
    return g;
}

static void pause_once(tw_segment *g, uint64_t *random, uint64_t at) {
    const tw_cause cause = (tw_cause)tw_test_random_below(random, TW_CAUSES);
    const tw_pause_result result = {.collected = tw_test_random_below(random, 9), .cpu_ns = 7};
    tw_pause_begin(&g->pause, cause, at);
    tw_segment_pause_end(g, at + 1000 + tw_test_random_below(random, 30000000), &result);
}

/* A request with pauses in it: everything that a segment counts comes up in one of many. */
static void serve(tw_segment *g, uint64_t *random, uint64_t arrival) {
    static const char *const models[] = {"small", "large", "other"};
    const char *model = models[tw_test_random_below(random, 3)];
    tw_stream s;
    uint64_t now = arrival;
    tw_stream_open(&s, g, arrival, arrival + 1000, 500, (tw_arrival)tw_test_random_below(random, TW_ARRIVALS));
    tw_stream_label(&s, tw_segment_label(g, model, strlen(model), "/v1", 3));
    for (uint64_t left = tw_test_random_below(random, 40); left > 0; left--) {
        now += 1000000 + tw_test_random_below(random, 60000000);
        if (left % 3 == 0) pause_once(g, random, now - 900000);
        tw_stream_token(&s, now + 40000000, 1, 0);
        now += 40000000;
    }
    tw_stream_close(&s, now + 1000, (tw_end)tw_test_random_below(random, 3));
}

static void use(tw_segment *g, uint64_t seed) {
    const uint64_t base = tw_now_ns() - 100 * SECOND;
    uint64_t random = seed;
    for (int i = 0; i < 40; i++) serve(g, &random, base + (uint64_t)i * 2 * SECOND);
    for (int i = 0; i < 9; i++) g->drops[i % TW_DROPS] += tw_test_random_below(&random, 5), g->errors[i % TW_ERRORS]++;
    tw_segment_fallback(g, "choice", 6, seed % 2 ? "logprobs" : "tools", seed % 2 ? 8 : 5, 1);
    tw_segment_fallback(g, "choice", 6, "both", 4, 1);
    const uint32_t source = tw_segment_source(g, seed % 2 ? "engine" : "worker");
    g->lost[source].overlap_ns[1][2] += seed, g->lost[source].delay_ns[1][2][TW_ESTIMATED] += seed / 2;
    g->lost[TW_SOURCE_UNBOUND].overlap_ns[0][1] += 5;
    g->label_overflow += 3;
    g->pause.lost += 2;
    uint64_t *counts = (uint64_t *)&g->policy.counts;
    for (size_t i = 0; i < sizeof g->policy.counts / sizeof *counts; i++) counts[i] += seed * (i + 1);
    tw_policy_is(&g->policy, TW_POLICY_IDLE_GC, TW_POLICY_SLICES, TW_WHY_NOT);
    tw_policy_heap(&g->policy, seed);
    tw_histogram_record_shared(&g->stalls[TW_DELAY_IO + seed % 3], tw_layout_of(TW_LAYOUT_PAUSE), 1000000 + seed);
}

static tw_segment *sum_of(const tw_segment *const *segments, size_t n) {
    tw_segment *sum = tw_retired_begin(segments[0]->header.role, 1, false);
    TW_REQUIRE(sum != NULL);
    for (size_t i = 0; i < n; i++) TW_CHECK_EQ(0, tw_retired_add(sum, segments[i]));
    TW_CHECK_EQ(sum->header.bytes, segment_bytes(TW_RETIRED_SETS));
    TW_CHECK(tw_retired_close(sum) == tw_segment_used(sum) + sizeof(tw_retired_list));
    return sum;
}

static tw_snapshot *snapshot_of(const tw_segment *const *segments, size_t n) {
    tw_snapshot *s;
    TW_REQUIRE(tw_snapshot_take(&s, segments, n) == 0);
    return s;
}

static void check_metrics(const tw_snapshot *a, const tw_snapshot *b, const char *model) {
    for (int metric = 0; metric < TW_METRICS; metric++) {
        tw_counts x, y;
        TW_CHECK_EQ(tw_snapshot_metric(a, metric, model, NULL, &x), tw_snapshot_metric(b, metric, model, NULL, &y));
        TW_CHECK_MEM(&x, &y, sizeof x);
    }
}

static void check_series(const tw_snapshot *a, const tw_snapshot *b) {
    TW_REQUIRE(a->series_count == b->series_count);
    for (uint32_t i = 0; i < a->series_count; i++) {
        TW_CHECK_STR(a->series[i].model, b->series[i].model);
        TW_CHECK_MEM(a->series[i].reasons, b->series[i].reasons, sizeof a->series[i].reasons);
        TW_CHECK_EQ(a->series[i].output_tokens, b->series[i].output_tokens);
        check_metrics(a, b, a->series[i].model);
    }
}

static const tw_snapshot_lost *lost_of(const tw_snapshot *s, const char *role) {
    for (uint32_t i = 0; i < s->lost_count; i++)
        if (strcmp(s->lost[i].role, role) == 0) return &s->lost[i];
    return NULL;
}

static void check_lost(const tw_snapshot *a, const tw_snapshot *b) {
    TW_CHECK_EQ(a->lost_count, b->lost_count);
    for (uint32_t i = 0; i < a->lost_count; i++) {
        const tw_snapshot_lost *same = lost_of(b, a->lost[i].role);
        if (TW_CHECK(same != NULL)) TW_CHECK_MEM(&a->lost[i], same, sizeof *same);
    }
}

/* Pauses one by one are not kept: what stood in the ring counts as evicted. */
static void check_process(const tw_snapshot *a, const tw_snapshot *b) {
    TW_REQUIRE(a->process_count == 1 && b->process_count == 1);
    const tw_snapshot_process *x = a->process, *y = b->process;
    TW_CHECK_STR(x->role, y->role);
    TW_CHECK(x->index == 0 && y->index == 0 && y->lives == 0 && y->pid == 0);
    TW_CHECK_MEM(x->pause_ns, y->pause_ns, sizeof x->pause_ns);
    TW_CHECK_MEM(&x->policy.counts, &y->policy.counts, sizeof x->policy.counts);
    TW_CHECK(x->pauses_lost == y->pauses_lost && x->last_stop_ns == y->last_stop_ns && x->created_ns == y->created_ns);
    for (int cause = 0; cause < TW_CAUSES; cause++) {
        tw_pause_totals expected = x->pause[cause];
        expected.evicted_count = expected.count - expected.short_count;
        expected.evicted_ns = x->pause_ns[cause] - expected.short_ns;
        TW_CHECK_MEM(&expected, &y->pause[cause], sizeof expected);
    }
}

static void check_slow(const tw_snapshot *a, const tw_snapshot *b) {
    TW_REQUIRE(a->slow_count == b->slow_count && a->slow_count > 0);
    for (uint32_t i = 0; i < a->slow_count; i++) {
        TW_CHECK_EQ(a->slow[i].end_ns, b->slow[i].end_ns);
        TW_CHECK_EQ(a->slow[i].gap_ns, b->slow[i].gap_ns);
        TW_CHECK_MEM(&a->slow_series[2 * i], &b->slow_series[2 * i], 2 * sizeof(tw_name));
    }
}

static void check_same(const tw_snapshot *a, const tw_snapshot *b) {
    check_metrics(a, b, NULL);
    check_series(a, b);
    check_lost(a, b);
    check_process(a, b);
    check_slow(a, b);
    TW_CHECK(a->opened == b->opened && a->label_overflow == b->label_overflow);
    TW_CHECK(a->deadlines_due == b->deadlines_due && a->deadlines_met == b->deadlines_met);
    TW_CHECK_MEM(a->arrivals, b->arrivals, sizeof a->arrivals);
    TW_CHECK_MEM(a->drops, b->drops, sizeof a->drops);
    TW_CHECK_MEM(a->errors, b->errors, sizeof a->errors);
    TW_CHECK_MEM(a->tail, b->tail, sizeof a->tail);
    TW_CHECK_MEM(a->seconds, b->seconds, TW_SECONDS * sizeof *a->seconds);
    TW_REQUIRE(a->fallback_count == b->fallback_count);
    TW_CHECK_MEM(a->fallbacks, b->fallbacks, a->fallback_count * sizeof *a->fallbacks);
}

TW_TEST(a_snapshot_of_the_sum_is_that_of_its_parts) {
    tw_segment *g[3];
    for (uint64_t i = 0; i < 3; i++) use(g[i] = segment_of("api", 4), i + 1);
    const tw_segment *const parts[] = {g[0], g[1], g[2]};
    tw_segment *two = sum_of(parts, 2);
    const tw_segment *const rest[] = {two, g[2]};
    tw_segment *sum = sum_of(rest, 2); /* as merges come: one after the other */
    tw_snapshot *expected = snapshot_of(parts, 3), *found = snapshot_of((const tw_segment *const[]){sum}, 1);
    check_same(expected, found);
    TW_CHECK(expected->opened == 120 && expected->series_count == 3);
    tw_snapshot_free(expected), tw_snapshot_free(found);
    tw_retired_free(two), tw_retired_free(sum);
    for (int i = 0; i < 3; i++) tw_segment_destroy(g[i]);
}

TW_TEST(what_was_open_goes_on_nowhere) {
    tw_segment *g = segment_of("api", 2);
    tw_pause_begin(&g->pause, TW_CAUSE_GC2, 1000000);
    tw_segment_pause_end(g, 2000000, NULL);
    tw_pause_begin(&g->pause, TW_CAUSE_GC1, 5000000);
    g->in_flight = 7;
    tw_policy_is(&g->policy, TW_POLICY_FREEZE, TW_POLICY_WAITS, TW_WHY_NOT);
    tw_segment *sum = sum_of((const tw_segment *const[]){g}, 1);
    TW_CHECK_EQ(0, sum->in_flight);
    TW_CHECK_EQ(TW_POLICY_UNKNOWN, sum->policy.now.kind);
    TW_CHECK_EQ(1000000, tw_pause_total_ns(&sum->pause, TW_CAUSE_GC2, 0));
    TW_CHECK_EQ(0, tw_pause_total_ns(&sum->pause, TW_CAUSE_GC1, 0));
    TW_CHECK(!tw_pause_is_open(&sum->pause) && sum->pause.last_stop_ns == 2000000);
    tw_retired_free(sum);
    tw_segment_destroy(g);
}

TW_TEST(label_sets_without_room_become_other) {
    tw_segment *g = segment_of("api", 300);
    for (int i = 1; i < 300; i++) {
        char name[16];
        const int len = snprintf(name, sizeof name, "m%d", i);
        tw_segment_series(g, tw_segment_label(g, name, (size_t)len, "/", 1))->reasons[0] = 2;
    }
    tw_segment *sum = sum_of((const tw_segment *const[]){g}, 1);
    const uint64_t over = 300 - TW_RETIRED_SETS;
    TW_CHECK_EQ(TW_RETIRED_SETS, sum->series_count);
    TW_CHECK_EQ(2 * over, tw_segment_series(sum, 0)->reasons[0]);
    TW_CHECK_EQ(2 * over, sum->label_overflow); /* so many requests */
    tw_retired_free(sum);
    tw_segment_destroy(g);
}

TW_TEST(the_newest_slow_gaps_are_kept) {
    tw_segment *g[2] = {segment_of("api", 2), segment_of("api", 2)};
    for (uint64_t i = 0; i < 2 * 200; i++) {
        tw_segment *one = g[i % 2];
        const uint64_t n = one->slow_head;
        one->slow[n].end_ns = 1000 + i;
        one->slow[n].series = 77; /* none that there is */
        one->slow[n].share[0] = (tw_share){.source = 99, .overlap_ns = 1};
        one->slow[n].seq = n + 1;
        one->slow_head = n + 1;
    }
    const tw_slow_record longest = {.seq = 1, .end_ns = 1, .phase = TW_PHASE_ITL, .gap_ns = 77};
    g[1]->slow[0].seq = 0; /* no ring has it any more */
    tw_slow_keep(g[1]->slow_longest, &longest);
    tw_segment *sum = sum_of((const tw_segment *const[]){g[0], g[1]}, 2);
    TW_CHECK_EQ(77, sum->slow_longest[TW_PHASE_ITL * TW_SLOW_PERIODS].gap_ns);
    TW_CHECK_EQ(400, sum->slow_head);
    for (uint64_t n = 0; n < 400; n++) {
        tw_slow_record record;
        const bool there = tw_segment_slow_read(sum, n, &record);
        TW_CHECK_EQ(n >= 400 - TW_SLOW_RING, there);
        if (there) TW_CHECK(record.end_ns == 1000 + n && record.series == 0 && record.share[0].overlap_ns == 0);
    }
    tw_retired_free(sum);
    tw_segment_destroy(g[0]), tw_segment_destroy(g[1]);
}

static void role_words(uint64_t *words, const char *role) { tw_words_set(words, TW_ROLE_WORDS, role, strlen(role)); }

TW_TEST(a_retired_has_the_name_of_its_dead) {
    static const char *const odd[] = {"", ".", "..", "a/b", "../../etc", "a b", "\xc3\xa9", "a\nb"};
    uint64_t words[TW_ROLE_WORDS];
    char name[TW_GROUP_NAME], other[TW_GROUP_NAME] = "";
    role_words(words, "engine");
    tw_retired_name(name, words, 3);
    TW_CHECK_STR("engine-3.gone", name);
    role_words(words, "a-role.of_31-characters-exactly");
    tw_retired_name(name, words, UINT64_MAX);
    TW_CHECK_STR("a-role.of_31-characters-exactly-18446744073709551615.gone", name);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        role_words(words, odd[i]);
        tw_retired_name(name, words, 0);
        TW_CHECK(name[0] == '=' && strchr(name, '/') == NULL && strlen(name) == 24 && strcmp(name, other) != 0);
        strcpy(other, name);
    }
}

TW_TEST(a_list_keeps_the_last) {
    static tw_retired_list list;
    for (uint64_t i = 0; i < 1000; i++) {
        const tw_group_id id = {i, 1, 2};
        TW_CHECK(!tw_retired_holds(&list, &id));
        list.file[list.count++ % TW_RETIRED_NAMES] = id;
        TW_CHECK(tw_retired_holds(&list, &id));
    }
    TW_CHECK(tw_retired_holds(&list, &(tw_group_id){999, 1, 2}) && tw_retired_holds(&list, &(tw_group_id){744, 1, 2}));
    TW_CHECK(!tw_retired_holds(&list, &(tw_group_id){743, 1, 2}) && !tw_retired_holds(&list, &(tw_group_id){999, 1, 3}));
    list.count = UINT64_MAX; /* of one that lies: no more is read than there is */
    TW_CHECK(!tw_retired_holds(&list, &(tw_group_id){5, 5, 5}));
}

TW_TEST(what_lies_is_no_retired) {
    tw_segment *g = segment_of("engine", 1), *sum = sum_of((const tw_segment *const[]){g}, 1);
    const size_t len = sum->header.bytes + sizeof(tw_retired_list);
    char *file = calloc(1, len + 8);
    tw_segment *copy = (void *)file;
    memcpy(file, sum, sum->header.bytes);
    tw_retired_list *list = (void *)(file + sum->header.bytes);
    list->magic = TW_RETIRED_MAGIC;
    TW_CHECK(tw_retired_of(file, len, "engine-0.gone") == list);
    TW_CHECK(tw_retired_of(file, len, "engine-1.gone") == NULL && tw_retired_of(file, len, "api-0.gone") == NULL);
    TW_CHECK(tw_retired_of(file, len - 8, "engine-0.gone") == NULL && tw_retired_of(file, len + 8, "engine-0.gone") == NULL);
    TW_CHECK(tw_retired_of(file, 8, "engine-0.gone") == NULL);
    uint64_t *words[] = {&list->magic, &copy->header.magic, &copy->header.version, &copy->header.bytes, &copy->header.pid,
                         &copy->header.max_label_sets, &copy->header.layout_hash, &copy->header.place};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        *words[i] += 1;
        TW_CHECK(tw_retired_of(file, len, "engine-0.gone") == NULL);
        *words[i] -= 1;
    }
    copy->series_count = 9;
    TW_CHECK(tw_retired_of(file, len, "engine-0.gone") == NULL);
    free(file);
    tw_retired_free(sum);
    tw_segment_destroy(g);
}
