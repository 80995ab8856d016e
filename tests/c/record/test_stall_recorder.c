/* Stalls reach the event ring in the order of their ends, with their names and frames; those under way as far as they
 * are known. */
#include <sys/mman.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/record/event_recorder.h"
#include "tw_test.h"

#define EVENTS 16384 /* of the shared ring: 1024 */
#define MS UINT64_C(1000000)
#define OF_ALL TW_ALL_TRACKS

typedef struct fixture {
    tw_segment *segment;
    tw_host *host;
    void *memory;
    size_t bytes;
    tw_recorder r;
    tw_trace t;
    tw_ring_event events[2 * TW_SPANS];
} fixture;

static fixture *set_up(void) {
    fixture *f = tw_test_own(free, calloc(1, sizeof *f));
    TW_CHECK_EQ(0, (uint64_t)tw_segment_create(&f->segment, "api", 1, false, NULL, 0));
    f->host = &f->segment->host;
    f->bytes = tw_trace_bytes(EVENTS, 1);
    f->memory = tw_recorder_memory(f->bytes);
    TW_CHECK(tw_recorder_begin(&f->r, f->memory, EVENTS, 1, &f->segment->header, 77));
    TW_CHECK(tw_trace_open(f->memory, f->bytes, &f->t));
    TW_CHECK_EQ(0, (uint64_t)tw_host_take(f->host, 4711));
    tw_recorder_stalls(&f->r, f->host);
    TW_CHECK_EQ(1, f->host->stacks_wanted);
    return f;
}

static void tear_down(fixture *f) {
    munmap(f->memory, f->bytes);
    tw_segment_destroy(f->segment);
}

static uint64_t number(tw_name_table *t, const char *name) { return tw_name_intern(t, name, strlen(name)); }

static void span(tw_span_ring *ring, tw_span_kind kind, uint32_t track, tw_certainty certainty, uint64_t from,
                 uint64_t to, uint64_t name, uint64_t detail) {
    const tw_host_span s = {0, from, to, tw_span_what(kind, track, certainty), name, detail, {0, 0}};
    tw_span_add(ring, &s);
}

static size_t read_all(fixture *f) {
    uint64_t first, end, next = 0;
    tw_recorder_stalls(&f->r, f->host);
    tw_ring_bounds(&f->t, TW_RING_SHARED, &first, &end);
    return tw_ring_read(&f->t, TW_RING_SHARED, &next, end, f->events, 2 * TW_SPANS, NULL);
}

TW_TEST(stalls_are_written_in_the_order_of_their_ends) {
    fixture *f = set_up();
    const uint64_t slow = number(&f->host->names, "slow  a.py:1"), holder = number(&f->host->names, "busy  b.py:2");
    char name[TW_NAME_TEXT];
    span(&f->host->by_handle, TW_SPAN_HANDLE, 0, TW_MEASURED, 10 * MS, 30 * MS, slow, 99);
    span(&f->host->by_handle, TW_SPAN_HANDLE, 0, TW_MEASURED, 30 * MS, 31 * MS, slow, 99); /* no stall */
    span(&f->host->by_loop, TW_SPAN_GIL, 0, TW_MEASURED, 5 * MS, 9 * MS, 0, 0);
    span(&f->host->by_watchdog, TW_SPAN_GIL, 0, TW_SAMPLED, 14 * MS, 20 * MS, slow, holder);
    span(&f->host->by_watchdog, TW_SPAN_SILENCE, OF_ALL, TW_MEASURED, 21 * MS, 40 * MS, 0, TW_SILENCE_STOPPED);
    TW_CHECK_EQ(4, read_all(f));
    const tw_ring_event *e = f->events;
    const uint64_t ends[] = {9 * MS, 20 * MS, 30 * MS, 40 * MS};
    const uint32_t causes[] = {TW_DELAY_GIL, TW_DELAY_GIL, TW_DELAY_CALLBACK, TW_DELAY_STOPPED};
    const uint32_t threads[] = {4711, 4711, 4711, 0};
    for (int i = 0; i < 4; i++) {
        TW_CHECK_EQ(TW_KIND_STALL, tw_what_kind(e[i].what));
        TW_CHECK_EQ(ends[i], e[i].time_ns);
        TW_CHECK_EQ(causes[i], tw_what_a(e[i].what));
        TW_CHECK_EQ(threads[i], tw_what_c(e[i].what));
    }
    TW_CHECK_EQ(10 * MS, e[2].id);
    TW_CHECK_EQ(TW_SAMPLED | holder << 8, e[1].value);
    tw_trace_stall_name(&f->t, tw_what_b(e[2].what), name);
    TW_CHECK_STR("slow  a.py:1", name);
    tw_trace_stall_name(&f->t, (uint32_t)holder, name);
    TW_CHECK_STR("busy  b.py:2", name);
    tear_down(f);
}

TW_TEST(a_sample_is_written_with_its_frames) {
    fixture *f = set_up();
    char name[TW_NAME_TEXT];
    tw_host_span s = {0, 10 * MS, 12 * MS, tw_span_what(TW_SPAN_RUN, 0, TW_SAMPLED), 0, 0, {0, 0}};
    tw_span_frame_set(s.frames, 0, (uint32_t)number(&f->host->frames, "inner  a.py:1"));
    tw_span_frame_set(s.frames, 7, (uint32_t)number(&f->host->frames, "outer  a.py:9"));
    tw_span_add(&f->host->by_watchdog, &s);
    TW_CHECK_EQ(2, read_all(f));
    TW_CHECK_EQ(12 * MS, f->events[0].time_ns);
    TW_CHECK_EQ(TW_KIND_FRAMES, tw_what_kind(f->events[1].what));
    const uint64_t frames[2] = {f->events[1].id, f->events[1].value};
    tw_trace_frame(&f->t, tw_span_frame(frames, 0), name);
    TW_CHECK_STR("inner  a.py:1", name);
    tw_trace_frame(&f->t, tw_span_frame(frames, 7), name);
    TW_CHECK_STR("outer  a.py:9", name);
    TW_CHECK_EQ(0, tw_span_frame(frames, 3));
    TW_CHECK_EQ(2, read_all(f)); /* once */
    tear_down(f);
}

/* Of a loop that hangs until its process is killed the file has what is known; it keeps nothing else back. */
TW_TEST(a_sample_that_grows_is_written_again_and_blocks_nothing) {
    fixture *f = set_up();
    tw_span_ring *ring = &f->host->by_watchdog;
    TW_CHECK_EQ(1, (uint64_t)tw_host_take(f->host, 4712));
    span(ring, TW_SPAN_RUN, 0, TW_SAMPLED, 10 * MS, 10 * MS, 0, 0);
    TW_CHECK_EQ(0, read_all(f)); /* no time yet */
    const tw_host_span grown[] = {
        {0, 10 * MS, 50 * MS, tw_span_what(TW_SPAN_RUN, 0, TW_SAMPLED), 0, 0, {0, 0}},
        {0, 10 * MS, 90 * MS, tw_span_what(TW_SPAN_RUN, 0, TW_SAMPLED), 0, 0, {0, 0}}};
    tw_span_replace(ring, 0, &grown[0]);
    span(ring, TW_SPAN_RUN, 1, TW_SAMPLED, 20 * MS, 30 * MS, 0, 0);
    span(ring, TW_SPAN_SILENCE, OF_ALL, TW_MEASURED, 21 * MS, 40 * MS, 0, TW_SILENCE_STOPPED);
    TW_CHECK_EQ(3, read_all(f));
    TW_CHECK_EQ(3, read_all(f));
    tw_span_replace(ring, 0, &grown[1]);
    tw_host_release(f->host, 0);
    span(ring, TW_SPAN_SLEEP, 0, TW_SAMPLED, 95 * MS, 99 * MS, 0, 0);
    TW_CHECK_EQ(5, read_all(f));
    const uint64_t ends[] = {30 * MS, 40 * MS, 50 * MS, 90 * MS, 99 * MS};
    const uint64_t starts[] = {20 * MS, 21 * MS, 10 * MS, 10 * MS, 95 * MS};
    const uint32_t threads[] = {4712, 0, 4711, 4711, 0};
    for (int i = 0; i < 5; i++) {
        TW_CHECK_EQ(ends[i], f->events[i].time_ns);
        TW_CHECK_EQ(starts[i], f->events[i].id);
        TW_CHECK_EQ(threads[i], tw_what_c(f->events[i].what));
    }
    tear_down(f);
}

TW_TEST(what_was_overwritten_is_counted) {
    fixture *f = set_up();
    for (uint64_t i = 0; i < TW_SPANS + 10; i++)
        span(&f->host->by_handle, TW_SPAN_HANDLE, 0, TW_MEASURED, i * 10 * MS, i * 10 * MS + 5 * MS, 0, 0);
    TW_CHECK_EQ(TW_SPANS, read_all(f));
    TW_CHECK_EQ(10, f->r.head->stalls_lost);
    tear_down(f);
}
