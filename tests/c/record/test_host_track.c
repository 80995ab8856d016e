#include "tailwatch/record/host_track.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/base/clock.h"
#include "tw_test.h"

#define MS UINT64_C(1000000)

static tw_host *new_host(void) {
    tw_host *host = calloc(1, sizeof *host);
    TW_REQUIRE(host != NULL);
    return tw_test_own(free, host);
}

static void point(tw_host_track *t, uint64_t at, uint64_t cpu, uint64_t run_delay, uint64_t idle) {
    const tw_host_point p = {.at_ns = at, .cpu_ns = cpu, .run_delay_ns = run_delay, .idle_ns = idle,
                             .minor_faults = at / 1000};
    tw_host_track_add(t, &p);
}

static uint64_t sum(const tw_usage *u) {
    return u->cpu_ns + u->run_delay_ns + u->idle_ns + u->asleep_ns + u->unknown_ns;
}

#define CHECK_USAGE(cpu, run, idle, asleep, unknown, u) \
    do {                                                \
        TW_CHECK_EQ(cpu, (u).cpu_ns);                   \
        TW_CHECK_EQ(run, (u).run_delay_ns);             \
        TW_CHECK_EQ(idle, (u).idle_ns);                 \
        TW_CHECK_EQ(asleep, (u).asleep_ns);             \
        TW_CHECK_EQ(unknown, (u).unknown_ns);           \
    } while (0)

TW_TEST(tracks_are_taken_and_given_back) {
    tw_host *host = new_host();
    for (int i = 0; i < TW_TRACKS; i++) TW_CHECK_EQ(i, tw_host_take(host, 100 + (uint64_t)i));
    TW_CHECK_EQ(1, tw_host_take(host, 101));
    TW_CHECK_EQ((uint64_t)-1, tw_host_take(host, 999));
    TW_CHECK_EQ(1, host->tracks_refused);
    point(&host->track[2], MS, 1, 1, 1);
    tw_host_release(host, 2);
    TW_CHECK_EQ(2, tw_host_take(host, 999));
    tw_host_point p;
    TW_CHECK(!tw_host_track_read(&host->track[2], 0, &p)); /* another thread's */
    TW_CHECK_EQ((uint64_t)-1, tw_host_own_track(host));
    tw_host_release(host, 0);
    TW_CHECK_EQ(0, tw_host_take(host, (uint64_t)gettid()));
    TW_CHECK_EQ(0, tw_host_own_track(host));
}

static tw_usage usage_with(uint64_t switches_before, uint64_t switches, uint64_t idle) {
    tw_host_track *t = &new_host()->track[0];
    const tw_host_point p = {.at_ns = 10 * MS, .switches = switches_before};
    const tw_host_point q = {.at_ns = 60 * MS, .cpu_ns = 20 * MS, .run_delay_ns = 5 * MS, .idle_ns = idle,
                             .switches = switches};
    tw_usage u;
    tw_host_track_add(t, &p);
    tw_host_track_add(t, &q);
    tw_host_track_usage(t, 10 * MS, 60 * MS, &u);
    return u;
}

/* The hypervisor had its CPU. */
TW_TEST(a_thread_that_never_slept_was_runnable) {
    CHECK_USAGE(20 * MS, 30 * MS, 0, 0, 0, usage_with(7, 7, 0));
    CHECK_USAGE(20 * MS, 5 * MS, 0, 25 * MS, 0, usage_with(7, 8, 0));
    CHECK_USAGE(20 * MS, 5 * MS, 10 * MS, 15 * MS, 0, usage_with(7, 7, 10 * MS)); /* it waited for events meanwhile */
    CHECK_USAGE(20 * MS, 5 * MS, 0, 25 * MS, 0, usage_with(0, 0, 0));             /* not counted here */
}

/* A watchdog that sleeps for longer is not silent before its turn. */
TW_TEST(a_process_stands_still_when_its_watchdog_is_overdue) {
    tw_host *host = new_host();
    const uint64_t turn = tw_now_ns();
    host->watchdog_process_cpu_ns = UINT64_MAX / 2; /* it used nothing since */
    TW_CHECK(!tw_host_stood_still(host, turn + 100 * MS)); /* there is none */
    host->watchdog_turn_ns = turn;
    host->watchdog_due_ns = turn + 40 * MS;
    TW_CHECK(!tw_host_stood_still(host, turn + 44 * MS));
    TW_CHECK(tw_host_stood_still(host, turn + 45 * MS));
    host->watchdog_due_ns = turn + 2 * MS; /* in a stall it samples */
    TW_CHECK(!tw_host_stood_still(host, turn + 14 * MS));
    TW_CHECK(tw_host_stood_still(host, turn + 15 * MS));
    while (tw_process_cpu_ns() < 10 * MS) {}
    host->watchdog_process_cpu_ns = 0; /* it ran */
    TW_CHECK(!tw_host_stood_still(host, turn + 15 * MS));
}

TW_TEST(threads_with_steps_take_what_loops_leave) {
    tw_host *host = new_host();
    TW_CHECK_EQ(0, tw_host_take_steps(host, 50));
    TW_CHECK_EQ(0, tw_host_take_steps(host, 50));
    TW_CHECK_EQ(1, tw_host_take_steps(host, 51));
    TW_CHECK_EQ((uint64_t)-1, tw_host_take_steps(host, 52));
    TW_CHECK(tw_host_is_of_steps(&host->track[0]) && !tw_host_is_of_loop(&host->track[0]));
    TW_CHECK_EQ(2, tw_host_take(host, 100));
    TW_CHECK_EQ((uint64_t)-1, tw_host_take_steps(host, 100)); /* it runs a loop */
    TW_CHECK(tw_host_is_of_loop(&host->track[2]) && !tw_host_is_of_steps(&host->track[2]));
    TW_CHECK_EQ(0, tw_host_take(host, 50)); /* it does now */
    TW_CHECK(tw_host_is_of_loop(&host->track[0]));
    TW_CHECK_EQ(3, tw_host_take(host, 101));
    TW_CHECK_EQ(1, tw_host_take(host, 102)); /* in place of steps */
    TW_CHECK_EQ(0, host->tracks_refused);
    TW_CHECK_EQ((uint64_t)-1, tw_host_take(host, 103));
    TW_CHECK_EQ(1, host->tracks_refused);
    tw_host_release(host, 1);
    TW_CHECK_EQ(1, tw_host_take_steps(host, (uint64_t)gettid()));
    TW_CHECK_EQ((uint64_t)-1, tw_host_own_track(host)); /* no loop's */
}

TW_TEST(a_step_s_limit_follows_what_is_usual) {
    tw_host *host = new_host();
    tw_host_track *t = &host->track[tw_host_take_steps(host, 50)];
    uint64_t usual = 0;
    TW_CHECK_EQ(TW_STEP_STALL_NS, t->step_limit_ns);
    tw_host_step_begins(t, 7 * MS);
    TW_CHECK_EQ(7 * MS, t->wake_ns);
    TW_CHECK_EQ(0, t->waiting_since_ns);
    for (int i = 0; i < 200; i++) {
        usual = tw_host_usual_step(usual, i % 10 == 0 ? 300 * MS : 20 * MS);
        tw_host_step_ends(t, 8 * MS, usual);
    }
    TW_CHECK_EQ(8 * MS, t->waiting_since_ns);
    TW_CHECK_NEAR(20e6, usual, 3e6);
    TW_CHECK_NEAR(30e6, t->step_limit_ns, 5e6);
    TW_CHECK_NEAR((double)usual, (double)tw_host_step_usual(t->step_limit_ns), 2);
    for (int i = 0; i < 200; i++) usual = tw_host_usual_step(usual, 1000);
    tw_host_step_ends(t, 9 * MS, usual);
    TW_CHECK_EQ(TW_STEP_STALL_NS, t->step_limit_ns);
    TW_CHECK_EQ(TW_STEP_STALL_NS - TW_SLOW_NS, tw_host_step_usual(t->step_limit_ns)); /* at most */
}

TW_TEST(the_clock_of_a_loop) {
    tw_host_track *t = &new_host()->track[0];
    tw_host_track_wakes(t, 5 * MS); /* no wait was under way */
    TW_CHECK_EQ(0, t->iterations);
    tw_host_track_waits(t, 10 * MS);
    TW_CHECK_EQ(10 * MS, t->waiting_since_ns);
    tw_host_track_wakes(t, 14 * MS);
    TW_CHECK_EQ(0, t->waiting_since_ns);
    TW_CHECK_EQ(14 * MS, t->wake_ns);
    TW_CHECK_EQ(14 * MS, t->slept_until_ns);
    tw_host_track_waits(t, 15 * MS);
    tw_host_track_wakes(t, 15 * MS + TW_SLEPT_NS - 1); /* it may have been ready before */
    TW_CHECK_EQ(14 * MS, t->slept_until_ns);
    TW_CHECK_EQ(4 * MS + TW_SLEPT_NS - 1, t->idle_ns);
    TW_CHECK_EQ(2, t->iterations);
}

TW_TEST(run_delay_at_the_end_of_a_wait_is_none_of_it) {
    tw_host_track *t = &new_host()->track[0];
    tw_host_track_waits(t, 10 * MS);
    tw_host_track_wakes(t, 20 * MS);
    tw_host_track_woke_earlier(t, 10 * MS, 4 * MS);
    TW_CHECK_EQ(16 * MS, t->wake_ns);
    TW_CHECK_EQ(16 * MS, t->slept_until_ns);
    TW_CHECK_EQ(6 * MS, t->idle_ns);
    tw_host_track_woke_earlier(t, 10 * MS, 40 * MS); /* at most the wait */
    TW_CHECK_EQ(10 * MS, t->wake_ns);
    TW_CHECK_EQ(0, t->idle_ns);
}

TW_TEST(an_interval_between_points) {
    tw_host_track *t = &new_host()->track[0];
    tw_usage u;
    tw_host_track_usage(t, 0, 10 * MS, &u);
    CHECK_USAGE(0, 0, 0, 0, 10 * MS, u); /* nothing is known */
    point(t, 10 * MS, 0, 0, 0);
    point(t, 20 * MS, 4 * MS, 2 * MS, 0); /* busy: 4 on CPU, 2 runnable, 4 asleep */
    tw_host_track_usage(t, 10 * MS, 20 * MS, &u);
    CHECK_USAGE(4 * MS, 2 * MS, 0, 4 * MS, 0, u);
    tw_host_track_usage(t, 15 * MS, 20 * MS, &u);
    CHECK_USAGE(2 * MS, 1 * MS, 0, 2 * MS, 0, u);
    tw_host_track_usage(t, 5 * MS, 30 * MS, &u);
    CHECK_USAGE(4 * MS, 2 * MS, 0, 4 * MS, 15 * MS, u);
    tw_host_track_usage(t, 20 * MS, 20 * MS, &u);
    TW_CHECK_EQ(0, sum(&u));
}

TW_TEST(a_wait_ends_runnable_then_asleep) {
    tw_host_track *t = &new_host()->track[0];
    tw_usage u;
    point(t, 10 * MS, 0, 0, 0);
    point(t, 20 * MS, 1 * MS, 3 * MS, 4 * MS); /* ran 1, waited 4, was runnable 3, waited for the interpreter 2 */
    tw_host_track_usage(t, 15 * MS, 20 * MS, &u);   /* the event was there at 15 */
    CHECK_USAGE(0, 3 * MS, 0, 2 * MS, 0, u);
    tw_host_track_usage(t, 10 * MS, 15 * MS, &u);
    CHECK_USAGE(1 * MS, 0, 4 * MS, 0, 0, u);
    tw_host_track_usage(t, 17 * MS, 19 * MS, &u);
    CHECK_USAGE(0, 1 * MS, 0, 1 * MS, 0, u);
}

TW_TEST(nothing_is_waited_for_after_the_latest_wake_up) {
    tw_host_track *t = &new_host()->track[0];
    tw_usage u;
    point(t, 10 * MS, 0, 0, 0);
    const tw_host_point p = {.at_ns = 20 * MS, .cpu_ns = 4 * MS, .run_delay_ns = 2 * MS, .idle_ns = 2 * MS, .wake_ns = 14 * MS}; /* 2 ms asleep for something else */
    tw_host_track_add(t, &p);
    tw_host_track_usage(t, 14 * MS, 20 * MS, &u);
    CHECK_USAGE(3 * MS, 3 * MS / 2, 0, 3 * MS / 2, 0, u);
    tw_host_track_usage(t, 10 * MS, 14 * MS, &u);
    CHECK_USAGE(MS, MS / 2, 2 * MS, MS / 2, 0, u);
    tw_host_track_usage(t, 12 * MS, 18 * MS, &u);
    TW_CHECK_EQ(6 * MS, sum(&u));
}

TW_TEST(after_the_newest_point_only_the_clock_is_known) {
    tw_host_track *t = &new_host()->track[0];
    tw_usage u;
    point(t, 10 * MS, 0, 0, 0);
    tw_host_track_waits(t, 12 * MS);
    tw_host_track_usage(t, 10 * MS, 20 * MS, &u);
    CHECK_USAGE(0, 0, 8 * MS, 0, 2 * MS, u);
}

/* Any counters, also of a clock that lies: the parts of an interval sum to it, and those of its halves to them. */
TW_TEST(usage_sums_to_the_interval) {
    uint64_t random = 7;
    for (int round = 0; round < 300; round++) {
        tw_host_track *t = &new_host()->track[0];
        uint64_t at = 1000, cpu = 0, run = 0, idle = 0;
        for (int i = 0; i < 300; i++) {
            const uint64_t woke = at - tw_test_random_below(&random, 2) * tw_test_random_below(&random, 1000);
            const tw_host_point p = {.at_ns = at, .cpu_ns = cpu, .run_delay_ns = run, .idle_ns = idle, .minor_faults = at / 1000,
                                     .wake_ns = woke};
            tw_host_track_add(t, &p);
            at += tw_test_random_below(&random, 3 * MS);
            cpu += tw_test_random_below(&random, MS);
            run += tw_test_random_below(&random, 2) * tw_test_random_below(&random, MS);
            idle += tw_test_random_below(&random, 2) * tw_test_random_below(&random, 2 * MS);
        }
        const uint64_t from = tw_test_random_below(&random, at), to = from + tw_test_random_below(&random, at);
        const uint64_t middle = from + tw_test_random_below(&random, to - from + 1);
        tw_usage whole, first, second;
        tw_host_track_usage(t, from, to, &whole);
        tw_host_track_usage(t, from, middle, &first);
        tw_host_track_usage(t, middle, to, &second);
        TW_CHECK_EQ(to - from, sum(&whole));
        TW_CHECK_EQ(middle - from, sum(&first));
        TW_CHECK_EQ(to - middle, sum(&second));
        TW_CHECK_NEAR((double)whole.cpu_ns, (double)(first.cpu_ns + second.cpu_ns), 2);
        TW_CHECK_EQ(whole.idle_ns, first.idle_ns + second.idle_ns);
    }
}

TW_TEST(a_thread_reads_its_own_counters) {
    tw_host *host = new_host();
    char path[64];
    const int track = tw_host_take(host, (uint64_t)gettid());
    tw_host_track *t = &host->track[track];
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", gettid());
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) tw_store(&t->schedstat, (uint64_t)fd + 1);
    tw_host_point_now(host, (uint32_t)track);
    const uint64_t begun = t->point_ns;
    while (tw_thread_cpu_ns() < t->point[0].cpu_ns + 20 * MS) { }
    const struct timespec nap = {0, 200 * (long)MS}; /* what it waits for a CPU while a point is read is no sleep */
    nanosleep(&nap, NULL);
    tw_host_point_now(host, (uint32_t)track);
    tw_usage u;
    tw_host_track_usage(t, begun, t->point_ns, &u);
    TW_CHECK_EQ(t->point_ns - begun, sum(&u));
    TW_CHECK(u.cpu_ns >= 15 * MS);
    TW_CHECK(u.asleep_ns >= 100 * MS || fd < 0);
    if (fd >= 0) close(fd);
}

/* ---- readers meet the writer: what is read is whole ---- */

#define POINTS 200000

typedef struct shared {
    tw_host *host;
    uint64_t done, reads;
} shared;

static void *write_all(void *argument) {
    shared *s = argument;
    for (uint64_t n = 1; n <= POINTS; n++) {
        point(&s->host->track[0], n * 1000, n * 10, n * 20, n * 30);
        const tw_host_span span = {0, n, n + 1, tw_span_what(TW_SPAN_GIL, 0, TW_SAMPLED), n + 2, n + 3, {0, 0}};
        tw_span_add(&s->host->by_watchdog, &span);
        if (n % 500 == 0) sched_yield();
        while (n == POINTS / 2 && tw_load_acquire(&s->reads) == 0) sched_yield(); /* the reader may have no CPU */
    }
    tw_store_release(&s->done, 1);
    return NULL;
}

static bool check_newest(const tw_host *host) {
    const uint64_t points = tw_load_acquire(&host->track[0].point_head), spans = tw_load_acquire(&host->by_watchdog.head);
    tw_host_point p;
    tw_host_span s;
    bool read = false;
    for (uint64_t back = 1; back <= 3 && back <= points; back++)
        if (tw_host_track_read(&host->track[0], points - back, &p)) {
            read = true;
            TW_CHECK(p.cpu_ns == p.at_ns / 100 && p.run_delay_ns == p.at_ns / 50 && p.minor_faults == p.at_ns / 1000);
        }
    if (spans > 0 && tw_span_read(&host->by_watchdog, spans - 1, &s))
        TW_CHECK(s.to_ns == s.from_ns + 1 && s.name == s.from_ns + 2 && s.detail == s.from_ns + 3 && tw_span_is_of(&s, 0));
    return read;
}

TW_TEST(no_record_is_torn) {
    shared s = {new_host(), 0, 0};
    pthread_t writer;
    pthread_create(&writer, NULL, write_all, &s);
    while (tw_load_acquire(&s.done) == 0) tw_store_release(&s.reads, s.reads + check_newest(s.host));
    pthread_join(writer, NULL);
    TW_CHECK(check_newest(s.host));
    TW_CHECK(s.reads > 0);
    TW_CHECK_EQ(POINTS, s.host->track[0].point_head);
}
