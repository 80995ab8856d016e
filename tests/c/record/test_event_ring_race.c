/* A ring that is read while it is written, with threads that take turns at the GIL. Run it under the thread sanitizer too.
 *
 * Event n of a request has its number four times, so that any copy can be checked by itself.
 */
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include "tailwatch/record/event_recorder.h"
#include "tw_test.h"

#define EVENTS 1024
#define ROUNDS 60000
#define WRITERS 2
#define READERS 2

typedef struct shared {
    tw_recorder r;
    tw_trace t;
    pthread_mutex_t gil;
    uint64_t done, rounds[READERS], next_reader;
} shared;

static void *write_events(void *argument) {
    shared *s = argument;
    for (uint64_t n = 0; n < ROUNDS; n++) {
        if (n % 64 == 0) {
            pthread_mutex_unlock(&s->gil);
            sched_yield();
            pthread_mutex_lock(&s->gil);
        }
        tw_record(&s->r, n, tw_what(TW_KIND_TOKEN, (uint32_t)n, (uint32_t)n, (uint32_t)n), n, ~n);
        if (n % 500 == 0) tw_recorder_tick(&s->r);
        if (n % 100 == 0) tw_recorder_count(&s->r, n, TW_COUNTER_DELAY, n);
    }
    return NULL;
}

static void *hold_and_write(void *argument) {
    shared *s = argument;
    pthread_mutex_lock(&s->gil);
    write_events(s);
    pthread_mutex_unlock(&s->gil);
    __atomic_add_fetch(&s->done, 1, __ATOMIC_ACQ_REL);
    return NULL;
}

static bool is_whole(const tw_ring_event *e) {
    const uint64_t n = e->id;
    return e->time_ns == n && e->value == ~n && e->what == tw_what(TW_KIND_TOKEN, (uint32_t)n, (uint32_t)n, (uint32_t)n);
}

/* Returns how many tokens it saw; all of them whole, and each one after the other. */
static uint64_t read_ring(const shared *s, uint32_t ring) {
    tw_ring_event events[100];
    uint64_t first, end, lost = 0, seen = 0, before = 0;
    tw_ring_bounds(&s->t, ring, &first, &end);
    uint64_t next = first;
    for (size_t n; (n = tw_ring_read(&s->t, ring, &next, end, events, 100, &lost)) > 0;)
        for (size_t i = 0; i < n; i++) {
            if (tw_what_kind(events[i].what) != TW_KIND_TOKEN) continue;
            TW_CHECK(is_whole(&events[i]));
            TW_CHECK(seen == 0 || events[i].id > before);
            before = events[i].id;
            seen++;
        }
    TW_CHECK(next == end && lost <= end - first);
    return seen;
}

static void *read_events(void *argument) {
    shared *s = argument;
    static __thread tw_clock_snapshot clocks[TW_CLOCK_KEPT];
    uint64_t *rounds = &s->rounds[__atomic_fetch_add(&s->next_reader, 1, __ATOMIC_RELAXED)];
    while (tw_load_acquire(&s->done) < WRITERS || *rounds < 2) {
        for (uint32_t ring = 0; ring < TW_RINGS; ring++) (void)read_ring(s, ring);
        const size_t n = tw_trace_clocks(&s->t, clocks);
        for (size_t i = 1; i < n; i++) TW_CHECK(clocks[i].at[TW_CLOCK_RAW] >= clocks[i - 1].at[TW_CLOCK_RAW]);
        tw_store_release(rounds, *rounds + 1);
    }
    return NULL;
}

TW_TEST(readers_see_whole_events_in_their_order) {
    static shared s;
    tw_segment *g;
    pthread_t threads[WRITERS + READERS];
    const size_t bytes = tw_trace_bytes(EVENTS, 1);
    pthread_mutex_init(&s.gil, NULL);
    TW_CHECK_EQ(0, (uint64_t)tw_segment_create(&g, "api", 1, false, NULL, 0));
    void *memory = tw_recorder_memory(bytes);
    TW_CHECK(tw_recorder_begin(&s.r, memory, EVENTS, 1, &g->header, 1));
    TW_CHECK(tw_trace_open(memory, bytes, &s.t));
    for (int i = 0; i < WRITERS + READERS; i++)
        pthread_create(&threads[i], NULL, i < WRITERS ? hold_and_write : read_events, &s);
    for (int i = 0; i < WRITERS + READERS; i++) pthread_join(threads[i], NULL);
    uint64_t written = 0;
    for (uint32_t ring = 0; ring < TW_RING_SHARED; ring++) written += tw_load(&s.t.head->ring[ring].head);
    TW_CHECK(written >= WRITERS * (ROUNDS + 1)); /* a thread may be introduced again in another's ring */
    TW_CHECK(written <= WRITERS * ROUNDS + 16);
    TW_CHECK(read_ring(&s, 0) > 0);
    munmap(memory, bytes);
    tw_segment_destroy(g);
}
