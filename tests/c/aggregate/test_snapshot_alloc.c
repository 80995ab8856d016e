/* Every allocation of snapshots and of the past fails once: the answer is ENOMEM, nothing leaks, and the next
 * try succeeds. The files are compiled into this one, so that their allocations can be counted and failed. */
#include <stddef.h>
#include <stdlib.h>

static size_t allocations, fail_at, living; /* fail_at: number of the allocation that fails, 0 = none */

static void *counted(void *memory) {
    if (memory) living++;
    return memory;
}
static void *tw_malloc(size_t size) { return ++allocations == fail_at ? NULL : counted(malloc(size)); }
static void *tw_calloc(size_t n, size_t size) { return ++allocations == fail_at ? NULL : counted(calloc(n, size)); }
static void tw_free(void *memory) {
    if (memory) living--;
    free(memory);
}
#define TW_MALLOC_INCLUDE <stddef.h>
#include "../../csrc/aggregate/snapshot.c"
#include "../../csrc/aggregate/snapshot_counts.c"
#include "../../csrc/aggregate/snapshot_delays.c"
#include "../../csrc/aggregate/snapshot_exemplars.c"
#include "../../csrc/aggregate/snapshot_fallbacks.c"
#include "../../csrc/aggregate/snapshot_processes.c"
#include "../../csrc/aggregate/snapshot_seconds.c"
#include "../../csrc/aggregate/snapshot_series.c"
#include "../../csrc/aggregate/label_sets.c"

#include "../../csrc/aggregate/history.c"

#include "tw_test.h"

#define MS TW_NS_PER_MS

static tw_segment *segment(void) {
    tw_segment *g = NULL;
    TW_REQUIRE(tw_segment_create(&g, "api", 4, false, NULL, 0) == 0);
    return g;
}

/* Something in every part of a snapshot that is allocated. */
static void use(tw_segment *g, const char *model) {
    tw_series *series = tw_segment_series(g, tw_segment_label(g, model, strlen(model), "/r", 2));
    tw_histogram_record(&series->ttft, tw_layout_of(TW_LAYOUT_TTFT), 30 * MS);
    tw_histogram_record(&series->itl, tw_layout_of(TW_LAYOUT_ITL), 20 * MS);
    tw_histogram_record(&series->tpot, tw_layout_of(TW_LAYOUT_ITL), 20 * MS);
    tw_histogram_record(&series->e2e, tw_layout_of(TW_LAYOUT_E2E), 900 * MS);
    tw_histogram_record(&g->queue_accept, tw_layout_of(TW_LAYOUT_TTFT), 1 * MS);
    tw_histogram_record(&g->send_wait, tw_layout_of(TW_LAYOUT_TTFT), 2 * MS);
    tw_pause_begin(&g->pause, TW_CAUSE_GC2, 1 * MS);
    tw_segment_pause_end(g, 9 * MS, NULL);
    tw_segment_fallback(g, model, strlen(model), "extra", 5, 1);
    tw_step_stats *step = &g->steps.of[tw_segment_step(g, model, strlen(model))];
    tw_histogram_record(&step->duration, tw_step_layout(TW_STEP_INSIDE), 10 * MS);
    tw_histogram_record(&step->gap, tw_step_layout(TW_STEP_GAP), 1 * MS);
    tw_store(&g->slow[0].seq, 1);
    tw_store_release(&g->slow_head, 1);
}

typedef struct world {
    const tw_segment *segments[2];
    tw_snapshot *earlier, *later;
    tw_history *history;
} world;

static world world_make(void) {
    tw_segment *a = segment(), *b = segment();
    world w = {.segments = {a, b}};
    use(a, "x");
    TW_REQUIRE(tw_snapshot_take(&w.earlier, w.segments, 2) == 0);
    use(a, "y");
    use(b, "x");
    TW_REQUIRE(tw_snapshot_take(&w.later, w.segments, 2) == 0);
    TW_REQUIRE(tw_history_create(&w.history) == 0);
    tw_history_keep_labels(w.history);
    TW_REQUIRE(tw_history_push(w.history, w.earlier) == 0);
    return w;
}

static void world_free(world *w) {
    tw_history_free(w->history);
    tw_snapshot_free(w->earlier);
    tw_snapshot_free(w->later);
    tw_segment_destroy((tw_segment *)w->segments[0]);
    tw_segment_destroy((tw_segment *)w->segments[1]);
}

typedef int (*operation)(const world *w, tw_snapshot **out);

static int taking(const world *w, tw_snapshot **out) { return tw_snapshot_take(out, w->segments, 2); }
static int subtracting(const world *w, tw_snapshot **out) { return tw_snapshot_subtract(out, w->later, w->earlier); }
static int looking_back(const world *w, tw_snapshot **out) { return tw_history_window(w->history, w->later, 1, out); }
static int of_labels(const world *w, tw_snapshot **out) {
    return tw_history_window_of_labels(w->history, w->later, 1, out);
}

/* Fails allocation 1, 2, 3 ... until the operation succeeds, which needs at least `least` of them. */
static void fail_each(operation run, size_t least) {
    world w = world_make();
    size_t before = living;
    for (size_t n = 1;; n++) {
        tw_snapshot *s = NULL;
        allocations = 0;
        fail_at = n;
        int error = run(&w, &s);
        fail_at = 0;
        if (error == 0) {
            TW_CHECK(n > least);
            TW_CHECK_EQ(n - 1, allocations);
            tw_snapshot_free(s);
            break;
        }
        TW_CHECK_EQ(ENOMEM, error);
        TW_CHECK(s == NULL);
        TW_CHECK_EQ(before, living);
        TW_REQUIRE(n < 1000);
    }
    TW_CHECK_EQ(before, living);
    world_free(&w);
    TW_CHECK_EQ(0, living);
}

TW_TEST(taking_survives_every_failure) { fail_each(taking, 16); }
TW_TEST(subtracting_survives_every_failure) { fail_each(subtracting, 16); }
TW_TEST(looking_back_survives_every_failure) { fail_each(looking_back, 16); }

TW_TEST(windows_of_labels_survive_every_failure) { fail_each(of_labels, 16); }

TW_TEST(label_sets_without_memory_are_not_kept) {
    world w = world_make();
    tw_history *h = NULL;
    tw_snapshot *s = NULL;
    TW_REQUIRE(tw_history_create(&h) == 0);
    tw_history_keep_labels(h);
    allocations = 0;
    fail_at = 1;
    TW_CHECK_EQ(0, tw_history_push(h, w.earlier));
    fail_at = 0;
    TW_CHECK_EQ(0, tw_history_label_bytes(h));
    TW_CHECK_EQ(ENODATA, tw_history_window_of_labels(h, w.later, 1, &s));
    TW_CHECK(s == NULL);
    tw_history_free(h);
    world_free(&w);
}

TW_TEST(the_past_needs_one_allocation_and_pushing_none) {
    world w = world_make();
    tw_history *h = NULL;
    allocations = 0;
    fail_at = 1;
    TW_CHECK_EQ(ENOMEM, tw_history_create(&h));
    TW_CHECK(h == NULL);
    fail_at = 0;
    TW_CHECK_EQ(0, tw_history_create(&h));
    TW_CHECK_EQ(2, allocations);
    TW_CHECK_EQ(0, tw_history_push(h, w.later));
    TW_CHECK_EQ(2, allocations);
    tw_history_free(h);
    tw_history_free(NULL);
    world_free(&w);
}
