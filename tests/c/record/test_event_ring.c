/* A trace file: what is written is read, what was overwritten is counted, what lies costs nothing but wrong events. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/record/event_recorder.h"
#include "tw_test.h"

#define EVENTS 256 /* ring 0: 128, the others 16 each */
#define SETS 3

typedef struct fixture {
    tw_segment *segment;
    void *memory;
    size_t bytes;
    tw_recorder r;
    tw_trace t;
} fixture;

static void set_up(fixture *f) {
    memset(f, 0, sizeof *f);
    TW_CHECK_EQ(0, (uint64_t)tw_segment_create(&f->segment, "engine", SETS, false, NULL, 0));
    f->bytes = tw_trace_bytes(EVENTS, SETS);
    f->memory = tw_recorder_memory(f->bytes);
    TW_CHECK(tw_recorder_begin(&f->r, f->memory, EVENTS, SETS, &f->segment->header, 77));
    TW_CHECK(tw_trace_open(f->memory, f->bytes, &f->t));
}

static void tear_down(fixture *f) {
    munmap(f->memory, f->bytes);
    tw_segment_destroy(f->segment);
}

static void stamp(fixture *f, uint64_t n) { tw_record(&f->r, 1000 + n, tw_what(TW_KIND_TOKEN, 1, 0, 2), n, ~n); }

static size_t read_all(const fixture *f, uint32_t ring, tw_ring_event *out, uint64_t *lost) {
    uint64_t first, end, next = 0;
    size_t n = 0;
    *lost = 0;
    tw_ring_bounds(&f->t, ring, &first, &end);
    for (size_t got; (got = tw_ring_read(&f->t, ring, &next, end, out + n, 7, lost)) > 0;) n += got;
    TW_CHECK_EQ(end, next);
    TW_CHECK_EQ(end, n + *lost);
    return n;
}

TW_TEST(what_is_written_is_read) {
    fixture f;
    tw_ring_event events[EVENTS];
    uint64_t lost;
    char name[16];
    set_up(&f);
    TW_CHECK_EQ(0, read_all(&f, 0, events, &lost));
    for (uint64_t n = 0; n < 100; n++) stamp(&f, n);
    TW_CHECK_EQ(101, read_all(&f, 0, events, &lost));
    TW_CHECK_EQ(0, lost);
    TW_CHECK_EQ(TW_KIND_THREAD, tw_what_kind(events[0].what));
    TW_CHECK_EQ((uint64_t)getpid(), events[0].id); /* the first thread of a process */
    TW_CHECK_EQ((uint64_t)getpid(), tw_ring_thread(&f.t, 0, name));
    for (uint64_t n = 0; n < 100; n++) {
        const tw_ring_event *e = &events[n + 1];
        TW_CHECK_EQ(1000 + n, e->time_ns);
        TW_CHECK_EQ(TW_KIND_TOKEN, tw_what_kind(e->what));
        TW_CHECK_EQ(1, tw_what_a(e->what));
        TW_CHECK_EQ(2, tw_what_c(e->what));
        TW_CHECK_EQ(n, e->id);
        TW_CHECK_EQ(~n, e->value);
    }
    tear_down(&f);
}

TW_TEST(a_ring_that_wrapped_keeps_the_newest_and_counts_the_rest) {
    fixture f;
    tw_ring_event events[EVENTS];
    uint64_t lost;
    set_up(&f);
    for (uint64_t n = 0; n < 1000; n++) stamp(&f, n);
    TW_CHECK_EQ(127, read_all(&f, 0, events, &lost)); /* one place may be half written */
    TW_CHECK_EQ(1001 - 127, lost);
    for (uint64_t n = 0; n < 127; n++) TW_CHECK_EQ(1000 - 127 + n, events[n].id);
    tear_down(&f);
}

TW_TEST(a_reader_that_falls_behind_counts_what_it_missed) {
    fixture f;
    tw_ring_event events[EVENTS];
    uint64_t next = 0, lost = 0;
    set_up(&f);
    for (uint64_t n = 0; n < 10; n++) stamp(&f, n);
    TW_CHECK_EQ(5, tw_ring_read(&f.t, 0, &next, 11, events, 5, &lost));
    for (uint64_t n = 10; n < 210; n++) stamp(&f, n);
    TW_CHECK_EQ(0, tw_ring_read(&f.t, 0, &next, 11, events, 5, &lost));
    TW_CHECK_EQ(11, next);
    TW_CHECK_EQ(6, lost);
    tear_down(&f);
}

/* ---- threads ---- */

#define THREADS 10

typedef struct stamper {
    fixture *f;
    uint64_t number;
    pthread_mutex_t *gil;
    uint64_t *alive, *may_end;
} stamper;

/* Each holds what stands for the GIL while it stamps. */
static void *stamp_some(void *argument) {
    const stamper *s = argument;
    for (int i = 0; i < 3; i++) {
        pthread_mutex_lock(s->gil);
        tw_record(&s->f->r, tw_now_ns(), tw_what(TW_KIND_TOKEN, 0, 0, 1), s->number, (uint64_t)i);
        pthread_mutex_unlock(s->gil);
    }
    __atomic_add_fetch(s->alive, 1, __ATOMIC_ACQ_REL);
    while (tw_load_acquire(s->may_end) == 0) usleep(100);
    return NULL;
}

TW_TEST(each_thread_has_a_ring_and_those_beyond_share_one) {
    fixture f;
    tw_ring_event events[EVENTS];
    pthread_t threads[THREADS];
    stamper stampers[THREADS];
    pthread_mutex_t gil = PTHREAD_MUTEX_INITIALIZER;
    uint64_t alive = 0, may_end = 0, lost, seen = 0;
    set_up(&f);
    for (uint64_t i = 0; i < THREADS; i++) {
        stampers[i] = (stamper){&f, i, &gil, &alive, &may_end};
        pthread_create(&threads[i], NULL, stamp_some, &stampers[i]);
    }
    while (tw_load_acquire(&alive) < THREADS) usleep(100);
    for (uint32_t ring = 0; ring < TW_RINGS; ring++) {
        const size_t n = read_all(&f, ring, events, &lost);
        TW_CHECK_EQ(0, lost);
        TW_CHECK_EQ(ring < TW_RING_SHARED ? 4 : 3 * (THREADS - TW_RING_SHARED), n);
        for (size_t i = 1; i < n && ring < TW_RING_SHARED; i++) TW_CHECK_EQ(events[1].id, events[i].id);
        for (size_t i = 0; i < n; i++) seen += tw_what_kind(events[i].what) == TW_KIND_TOKEN;
    }
    TW_CHECK_EQ(3 * THREADS, seen);
    tw_store_release(&may_end, 1);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    tw_recorder_tick(&f.r); /* all of them have ended: their rings are free */
    for (uint32_t ring = 0; ring < TW_RINGS; ring++) TW_CHECK_EQ(0, f.r.of[ring].thread);
    stamp(&f, 0);
    TW_CHECK_EQ(6, read_all(&f, 0, events, &lost)); /* introduced anew */
    TW_CHECK_EQ(TW_KIND_THREAD, tw_what_kind(events[4].what));
    TW_CHECK_EQ((uint64_t)getpid(), events[4].id);
    tear_down(&f);
}

TW_TEST(a_collection_takes_no_ring) {
    fixture f;
    tw_ring_event events[EVENTS];
    uint64_t lost;
    const tw_pause_result result = {5, UINT64_MAX, 0, 0};
    set_up(&f);
    tw_pause_begin(&f.segment->pause, TW_CAUSE_GC2, 1000000);
    tw_recorder_pause(&f.r, &f.segment->pause);
    TW_CHECK_EQ(1000000, f.t.head->pause_open_ns);
    TW_CHECK_EQ(TW_CAUSE_GC2, f.t.head->pause_open_cause);
    tw_pause_end(&f.segment->pause, 3000000, &result, NULL);
    tw_recorder_paused(&f.r, &f.segment->pause, TW_CAUSE_GC2, 1000000, 3000000, &result);
    TW_CHECK_EQ(0, f.t.head->pause_open_ns);
    TW_CHECK_EQ(0, read_all(&f, 0, events, &lost));
    TW_CHECK_EQ(1, read_all(&f, TW_RING_SHARED, events, &lost));
    TW_CHECK_EQ(3000000, events[0].time_ns);
    TW_CHECK_EQ(1000000, events[0].id);
    TW_CHECK_EQ(5, events[0].value);
    TW_CHECK_EQ(UINT32_MAX, tw_what_c(events[0].what));
    stamp(&f, 0);
    tw_recorder_paused(&f.r, &f.segment->pause, TW_CAUSE_GC0, 1, 2, NULL);
    TW_CHECK_EQ(3, read_all(&f, 0, events, &lost)); /* on a thread that is known */
    TW_CHECK_EQ(TW_KIND_PAUSE, tw_what_kind(events[2].what));
    tear_down(&f);
}

/* ---- names, clocks, counters ---- */

TW_TEST(a_file_is_readable_on_its_own) {
    fixture f;
    char model[TW_NAME_BYTES], route[TW_NAME_BYTES], step[TW_STEP_NAME_WORDS * 8], process[48];
    set_up(&f);
    const uint32_t set = tw_segment_label(f.segment, "llama", 5, "/v1/chat", 8), decode = tw_segment_step(f.segment, "decode", 6);
    f.segment->header.place = 3;
    tw_recorder_name(&f.r, f.segment);
    tw_trace_label(&f.t, set, model, route);
    TW_CHECK_STR("llama", model);
    TW_CHECK_STR("/v1/chat", route);
    tw_trace_label(&f.t, 0xFFFF, model, route);
    TW_CHECK_STR("other", model);
    tw_trace_step(&f.t, decode, step);
    TW_CHECK_STR("decode", step);
    tw_trace_step(&f.t, 255, step);
    TW_CHECK_STR("other", step);
    tw_trace_process(&f.t, process);
    TW_CHECK_STR("engine-2", process);
    TW_CHECK(!tw_trace_is_over(&f.t));
    size_t bytes;
    TW_CHECK(tw_recorder_end(&f.r, &bytes) == f.memory && bytes == f.bytes);
    TW_CHECK(tw_trace_is_over(&f.t));
    stamp(&f, 1); /* drops it */
    tw_recorder_tick(&f.r);
    TW_CHECK_EQ(0, f.t.head->ring[0].head);
    tear_down(&f);
}

TW_TEST(clock_snapshots_thin_out_as_they_age) {
    fixture f;
    static tw_clock_snapshot kept[TW_CLOCK_KEPT];
    set_up(&f);
    TW_CHECK_EQ(1, tw_trace_clocks(&f.t, kept)); /* at the beginning */
    const uint64_t first = kept[0].at[TW_CLOCK_MONOTONIC];
    for (int i = 0; i < 3000; i++) tw_recorder_tick(&f.r);
    const size_t n = tw_trace_clocks(&f.t, kept);
    TW_CHECK_EQ(TW_CLOCK_FINE - 1 + 31, n); /* 0, 64, ... 1920, and those after 1977 */
    TW_CHECK_EQ(first, kept[0].at[TW_CLOCK_MONOTONIC]);
    for (size_t i = 1; i < n; i++) TW_CHECK(kept[i].at[TW_CLOCK_RAW] >= kept[i - 1].at[TW_CLOCK_RAW]);
    for (int i = 0; i < 40000; i++) tw_recorder_tick(&f.r);
    const size_t full = tw_trace_clocks(&f.t, kept);
    TW_CHECK(full > TW_CLOCK_FINE + TW_CLOCK_COARSE - 20 && full <= TW_CLOCK_KEPT);
    for (size_t i = 1; i < full; i++) TW_CHECK(kept[i].at[TW_CLOCK_RAW] >= kept[i - 1].at[TW_CLOCK_RAW]);
    tear_down(&f);
}

TW_TEST(a_counter_is_written_when_it_has_changed) {
    fixture f;
    tw_ring_event events[EVENTS];
    uint64_t lost;
    set_up(&f);
    for (int i = 0; i < 5; i++) tw_recorder_sample(&f.r, f.segment, 20 * TW_NS_PER_SECOND);
    TW_CHECK_EQ(4, read_all(&f, TW_RING_SHARED, events, &lost));
    tw_segment_second(f.segment, 15 * TW_NS_PER_SECOND)->good_miss = 25;
    f.segment->in_flight = 3;
    tw_recorder_sample(&f.r, f.segment, 20 * TW_NS_PER_SECOND);
    TW_CHECK_EQ(6, read_all(&f, TW_RING_SHARED, events, &lost));
    TW_CHECK_EQ(TW_COUNTER_IN_FLIGHT, tw_what_a(events[4].what));
    TW_CHECK_EQ(3, events[4].value);
    TW_CHECK_EQ(TW_COUNTER_GOODPUT, tw_what_a(events[5].what));
    TW_CHECK_EQ(2500, events[5].value);
    tw_recorder_count(&f.r, 1, TW_COUNTERS, 1);
    TW_CHECK_EQ(6, read_all(&f, TW_RING_SHARED, events, &lost));
    tear_down(&f);
}

TW_TEST(every_number_has_a_name) {
    for (int i = 0; i < TW_KINDS; i++) TW_CHECK(strcmp(tw_kind_name(i), "unknown") != 0);
    for (int i = 0; i < TW_COUNTERS; i++) TW_CHECK(strcmp(tw_counter_name(i), "unknown") != 0 && strcmp(tw_counter_unit(i), "unknown") != 0);
    TW_CHECK_STR("unknown", tw_kind_name(TW_KINDS));
    TW_CHECK_STR("unknown", tw_counter_name(-1));
    TW_CHECK_STR("unknown", tw_counter_unit(TW_COUNTERS));
}

/* ---- the file ---- */

TW_TEST(sizes_are_refused_out_of_range) {
    TW_CHECK_EQ(0, tw_trace_bytes(TW_TRACE_EVENTS_LEAST - 1, 1));
    TW_CHECK_EQ(0, tw_trace_bytes(TW_TRACE_EVENTS_MOST + 1, 1));
    TW_CHECK_EQ(0, tw_trace_bytes(1000, 0));
    TW_CHECK_EQ(0, tw_trace_bytes(1000, TW_LABEL_SETS_LIMIT + 1));
    for (uint64_t events = TW_TRACE_EVENTS_LEAST; events < 3000; events++) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < TW_RINGS; i++) sum += tw_ring_size(events, i);
        TW_CHECK(sum <= events && sum + 16 > events && tw_ring_size(events, 8) >= TW_RING_LEAST);
    }
    TW_CHECK(tw_trace_bytes(1000000, 32) < (33U << 20));
}

static const char *write_file(const void *bytes, size_t len, mode_t mode) {
    static char path[] = "test_ring_XXXXXX.trace";
    memcpy(path, "test_ring_XXXXXX.trace", sizeof path);
    const int file = mkstemps(path, 6);
    TW_CHECK_EQ(len, (uint64_t)write(file, bytes, len));
    fchmod(file, mode);
    close(file);
    return path;
}

TW_TEST(a_file_is_mapped_where_it_is_one) {
    fixture f;
    tw_trace t;
    char link_name[64];
    set_up(&f);
    for (uint64_t n = 0; n < 30; n++) stamp(&f, n);
    const char *path = write_file(f.memory, f.bytes, 0600);
    TW_CHECK_EQ(0, (uint64_t)tw_trace_map(path, &t));
    TW_CHECK_EQ(31, tw_load(&t.head->ring[0].head));
    TW_CHECK_EQ(77, t.joined_ns);
    tw_trace_close(&t);
    TW_CHECK_EQ(0, (uint64_t)truncate(path, (off_t)f.bytes - 4096));
    TW_CHECK_EQ(EINVAL, (uint64_t)tw_trace_map(path, &t));
    TW_CHECK_EQ(0, (uint64_t)truncate(path, 0));
    TW_CHECK_EQ(EINVAL, (uint64_t)tw_trace_map(path, &t));
    unlink(path);
    TW_CHECK_EQ(ENOENT, (uint64_t)tw_trace_map(path, &t));
    TW_CHECK(t.head == NULL);
    path = write_file(f.memory, f.bytes, 0644); /* others may read it: it is none of ours */
    TW_CHECK(tw_trace_map(path, &t) != 0);
    chmod(path, 0600);
    snprintf(link_name, sizeof link_name, "%s.link", path);
    TW_CHECK_EQ(0, (uint64_t)symlink(path, link_name));
    TW_CHECK(tw_trace_map(link_name, &t) != 0);
    TW_CHECK(tw_trace_map(".", &t) != 0);
    unlink(link_name);
    unlink(path);
    tear_down(&f);
}

/* Reads all that a reader may ask for. */
static uint64_t read_everything(const tw_trace *t) {
    static tw_clock_snapshot clocks[TW_CLOCK_KEPT];
    tw_ring_event events[64];
    char model[TW_NAME_BYTES], route[TW_NAME_BYTES], step[TW_STEP_NAME_WORDS * 8], process[48], thread[16];
    uint64_t sum = tw_trace_clocks(t, clocks) + tw_trace_is_over(t);
    tw_trace_process(t, process);
    sum += strlen(process);
    for (uint32_t ring = 0; ring <= TW_RINGS; ring++) {
        uint64_t first, end, lost = 0;
        size_t total = 0;
        tw_ring_bounds(t, ring, &first, &end);
        sum += tw_ring_thread(t, ring, thread) + strlen(thread);
        uint64_t next = first;
        for (size_t got; (got = tw_ring_read(t, ring, &next, end, events, 64, &lost)) > 0; total += got)
            for (size_t i = 0; i < got; i++) {
                tw_trace_label(t, tw_what_b(events[i].what), model, route);
                tw_trace_step(t, tw_what_a(events[i].what), step);
                sum += strlen(model) + strlen(route) + strlen(step);
            }
        TW_CHECK(total <= EVENTS);
    }
    return sum;
}

TW_TEST(a_corrupted_file_costs_wrong_events_at_most) {
    fixture f;
    uint64_t random = 5, opened = 0;
    set_up(&f);
    tw_segment_label(f.segment, "m", 1, "/r", 2);
    tw_recorder_name(&f.r, f.segment);
    for (uint64_t n = 0; n < 400; n++) stamp(&f, n);
    uint64_t *copy = tw_recorder_memory(f.bytes);
    for (int round = 0; round < 4000; round++) {
        tw_trace t;
        memcpy(copy, f.memory, f.bytes);
        const size_t words = round % 2 ? sizeof(tw_trace_head) / 8 : f.bytes / 8;
        for (uint64_t n = tw_test_random_below(&random, 6) + 1; n > 0; n--) {
            const size_t at = 2 + tw_test_random_below(&random, words - 2);
            copy[at] = tw_test_random(&random) >> tw_test_random_below(&random, 64);
            if (round % 3 == 0) copy[at] = UINT64_MAX - tw_test_random_below(&random, 3);
        }
        const size_t len = round % 5 == 0 ? tw_test_random_below(&random, f.bytes) : f.bytes;
        if (tw_trace_open(copy, len, &t)) opened++, read_everything(&t);
    }
    TW_CHECK(opened > 500);
    /* and one that changes after it was opened */
    tw_trace t;
    memcpy(copy, f.memory, f.bytes);
    TW_CHECK(tw_trace_open(copy, f.bytes, &t));
    memset(copy, 0xFF, f.bytes);
    read_everything(&t);
    memset(copy, 0, f.bytes);
    read_everything(&t);
    TW_CHECK(!tw_trace_open(copy, f.bytes, &t));
    TW_CHECK(!tw_trace_open(NULL, 0, &t));
    munmap(copy, f.bytes);
    tear_down(&f);
}

/* ---- death ---- */

static void die_stamping(fixture *f) {
    for (uint64_t n = 0;; n++) tw_record(&f->r, n, tw_what(TW_KIND_TOKEN, 0, 0, (uint32_t)n), n, ~n);
}

/* kill -9 at any instruction: every event that is read is whole, and none is missing between. */
TW_TEST(a_killed_writer_leaves_whole_events) {
    for (int round = 0; round < 30; round++) {
        fixture f;
        tw_ring_event events[EVENTS];
        uint64_t lost;
        set_up(&f);
        const pid_t child = fork();
        if (child == 0) die_stamping(&f);
        while (tw_load_acquire(&f.t.head->ring[0].head) < 500 + (uint64_t)round) usleep(10);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        const size_t n = read_all(&f, 0, events, &lost);
        TW_CHECK_EQ(127, n);
        for (size_t i = 0; i < n; i++) {
            TW_CHECK_EQ(lost + i - 1, events[i].id); /* number 0 is the thread's introduction */
            TW_CHECK_EQ(~events[i].id, events[i].value);
            TW_CHECK_EQ(events[i].time_ns, events[i].id);
            TW_CHECK_EQ((uint32_t)events[i].id, tw_what_c(events[i].what));
        }
        tear_down(&f);
    }
}

TW_TEST(a_fork_child_ends_its_parents_recorder_without_a_trace) {
    fixture f;
    set_up(&f);
    stamp(&f, 1);
    const uint64_t clocks = f.t.head->clocks;
    const pid_t child = fork();
    if (child == 0) {
        size_t bytes;
        _exit(tw_recorder_end(&f.r, &bytes) == f.memory ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    TW_CHECK_EQ(0, (uint64_t)status);
    TW_CHECK_EQ(0, f.t.head->ended);
    TW_CHECK_EQ(clocks, f.t.head->clocks);
    tear_down(&f);
}
