/* One thread steps and pauses, others take snapshots of it: what they see is whole, and never more than there is. */
#include "tailwatch/stamp/engine_step.h"
#include "tailwatch/aggregate/snapshot.h"

#include <pthread.h>

#include "tailwatch/base/atomic.h"
#include "tw_test.h"

#define STEPS 20000
#define MS UINT64_C(1000000)

typedef struct shared {
    tw_segment *g;
    uint64_t done; /* the steps that have ended */
    uint64_t over;
} shared;

static void *write_steps(void *to) {
    shared *s = to;
    tw_stepper stepper;
    tw_stepper_init(&stepper, &s->g->steps, &s->g->pause, &s->g->drops[TW_DROP_PAUSE_RING_OVERFLOW]);
    uint64_t now = 1000 * MS;
    for (uint64_t i = 0; i < STEPS; i++) {
        char name[2] = {(char)('a' + i * 10 / STEPS), '\0'};
        tw_step step;
        tw_step_begin(&stepper, &step, tw_segment_step(s->g, name, 1), 1, now += MS);
        if (i % 8 == 0) {
            tw_pause_begin(&s->g->pause, TW_CAUSE_GC1, now);
            tw_segment_pause_end(s->g, now + MS / 10, NULL);
        }
        tw_step_end(&stepper, &step, now += MS, 4, 2);
        tw_store_release(&s->done, i + 1);
    }
    tw_store_release(&s->over, 1);
    return NULL;
}

static uint64_t steps_of(const tw_snapshot *s, uint64_t *overlap_ns) {
    uint64_t count = 0;
    *overlap_ns = 0;
    for (uint32_t i = 0; i < s->process[0].step_count; i++) {
        const tw_snapshot_step *step = &s->process[0].steps[i];
        TW_CHECK(strlen(step->name) == 1 || strcmp(step->name, "other") == 0);
        if (step->spent[TW_STEP_INSIDE]) count += step->spent[TW_STEP_INSIDE]->count;
        *overlap_ns += step->overlap_ns[TW_STEP_INSIDE][TW_CAUSE_GC1];
    }
    return count;
}

TW_TEST(a_snapshot_while_an_engine_steps_is_sane) {
    shared s = {.g = NULL};
    TW_REQUIRE(tw_segment_create(&s.g, "engine", 1, false, NULL, 0) == 0);
    pthread_t writer;
    TW_REQUIRE(pthread_create(&writer, NULL, write_steps, &s) == 0);
    uint64_t seen = 0, overlap_ns = 0;
    for (bool last = false; !last;) {
        last = tw_load_acquire(&s.over) != 0;
        const tw_segment *segments[] = {s.g};
        const uint64_t before = tw_load_acquire(&s.done);
        tw_snapshot *snapshot = NULL;
        TW_REQUIRE(tw_snapshot_take(&snapshot, segments, 1) == 0);
        const uint64_t now = steps_of(snapshot, &overlap_ns);
        TW_CHECK(now >= before && now >= seen && now <= STEPS);
        TW_CHECK(overlap_ns <= STEPS / 8 * (MS / 10));
        seen = now;
        tw_snapshot_free(snapshot);
    }
    pthread_join(writer, NULL);
    TW_CHECK_EQ(STEPS, seen);
    TW_CHECK_EQ(STEPS / 8 * (MS / 10), overlap_ns);
    tw_segment_destroy(s.g);
}
