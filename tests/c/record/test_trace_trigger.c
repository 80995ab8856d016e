/* What in a trace is worth keeping the seconds around it. */
#include <sys/mman.h>

#include "tailwatch/record/event_recorder.h"
#include "tailwatch/record/trace_trigger.h"
#include "tw_test.h"

#define EVENTS 256

typedef struct fixture {
    tw_segment *segment;
    void *memory;
    tw_recorder r;
    tw_trace t;
} fixture;

static void set_up(fixture *f) {
    const size_t bytes = tw_trace_bytes(EVENTS, 1);
    memset(f, 0, sizeof *f);
    TW_CHECK_EQ(0, (uint64_t)tw_segment_create(&f->segment, "api", 1, false, NULL, 0));
    f->memory = tw_recorder_memory(bytes);
    TW_CHECK(tw_recorder_begin(&f->r, f->memory, EVENTS, 1, &f->segment->header, 1));
    TW_CHECK(tw_trace_open(f->memory, bytes, &f->t));
}

static void tear_down(fixture *f) {
    munmap(f->memory, f->t.bytes);
    tw_segment_destroy(f->segment);
}

static uint64_t matches(tw_trigger *trigger, const fixture *f) {
    tw_trigger_found found;
    tw_trigger_look(trigger, &f->t, &found);
    TW_CHECK((found.matches == 0) == (found.first_ns == 0) && found.first_ns <= found.last_ns);
    return found.matches;
}

static void put(fixture *f, tw_kind kind, uint32_t a, uint64_t time_ns, uint64_t value) {
    tw_record(&f->r, time_ns, tw_what(kind, a, 0, 1), 1, value);
}

TW_TEST(a_bound_is_exceeded_not_reached) {
    fixture f;
    tw_trigger gap = {.gap_ns = 100}, ttft = {.ttft_ns = 100}, slo = {.slo = true}, none = {0};
    set_up(&f);
    put(&f, TW_KIND_TOKEN, 0, 1000, 100);
    put(&f, TW_KIND_TOKEN, 0, 2000, 101);
    put(&f, TW_KIND_FIRST, 0, 3000, 2900);
    put(&f, TW_KIND_FIRST, 0, 4000, 3899);
    put(&f, TW_KIND_FIRST, 0, 4000, 5000); /* before its arrival */
    put(&f, TW_KIND_CLOSE, TW_REASON_GOOD, 5000, 1);
    put(&f, TW_KIND_CLOSE, TW_REASON_4XX, 5000, 1);
    put(&f, TW_KIND_CLOSE, TW_REASON_LATE, 5000, 1);
    put(&f, TW_KIND_CLOSE, 99, 5000, 1);
    TW_CHECK_EQ(1, matches(&gap, &f));
    TW_CHECK_EQ(1, matches(&ttft, &f));
    TW_CHECK_EQ(1, matches(&slo, &f));
    TW_CHECK_EQ(0, matches(&none, &f));
    TW_CHECK_EQ(0, matches(&gap, &f)); /* looked at already */
    tear_down(&f);
}

TW_TEST(a_look_begins_where_the_last_one_ended) {
    fixture f;
    tw_trigger trigger = {.gap_ns = 1};
    tw_trigger_found found;
    set_up(&f);
    put(&f, TW_KIND_TOKEN, 0, 1, 5);
    tw_trigger_skip(&trigger, &f.t);
    TW_CHECK_EQ(0, matches(&trigger, &f));
    for (uint64_t n = 0; n < 1000; n++) put(&f, TW_KIND_TOKEN, 0, 100 + n, 5);
    tw_trigger_look(&trigger, &f.t, &found);
    TW_CHECK_EQ(127, found.matches);
    TW_CHECK_EQ(1000 - 127, found.lost);
    TW_CHECK_EQ(100 + 1000 - 127, found.first_ns);
    TW_CHECK_EQ(1099, found.last_ns);
    tear_down(&f);
}
