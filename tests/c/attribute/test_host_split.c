/* A thread's time split by hand-made tracks: which cause gets what, and that the parts sum to the interval. */
#include "tailwatch/attribute/host_split.h"

#include "host_tools.h"

#define MS UINT64_C(1000000)

static void point(uint64_t at, uint64_t cpu, uint64_t run_delay, uint64_t idle, uint64_t faults) {
    const tw_host_point p = {.at_ns = at, .cpu_ns = cpu, .run_delay_ns = run_delay, .idle_ns = idle, .minor_faults = faults};
    tw_host_track_add(&host->track[0], &p);
}

static uint32_t name(const char *text) { return tw_name_intern(&host->names, text, strlen(text)); }

static void span(tw_span_kind kind, uint64_t from, uint64_t to, uint32_t of, uint64_t detail) {
    const tw_host_span s = {0, from, to, tw_span_what(kind, 0, TW_SAMPLED), of, detail, {0, 0}};
    tw_span_add(&host->by_watchdog, &s);
}

static uint64_t part_of(const tw_parts *parts, int cause, uint32_t of) {
    uint64_t ns = 0;
    for (uint32_t i = 0; i < parts->n; i++)
        if (parts->part[i].cause == cause && (of == 0 || parts->part[i].name == of)) ns += parts->part[i].ns;
    return ns;
}

static uint64_t context; /* of which samples are own code */

static tw_parts split(uint64_t from, uint64_t to, uint64_t expected_idle) {
    tw_parts parts = {0};
    TW_CHECK_EQ(expected_idle, tw_host_split(host, 0, pauses, from, to, (tw_whose){0, context}, &parts));
    TW_CHECK_EQ(to - from - expected_idle, tw_parts_sum(&parts));
    return parts;
}

/* [10, 110] ms: busy, with so much of each. */
static void busy(uint64_t cpu, uint64_t run_delay) {
    point(10 * MS, 0, 0, 0, 0);
    point(110 * MS, cpu, run_delay, 0, 0);
}

TW_TEST(code_is_named_by_its_samples) {
    busy(60 * MS, 40 * MS);
    const uint32_t encode = name("encode"), decode = name("decode");
    span(TW_SPAN_RUN, 10 * MS, 90 * MS, encode, 0);
    span(TW_SPAN_RUN, 90 * MS, 110 * MS, decode, 0);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(48 * MS, part_of(&p, TW_DELAY_CALLBACK, encode));
    TW_CHECK_EQ(12 * MS, part_of(&p, TW_DELAY_CALLBACK, decode));
    TW_CHECK_EQ(40 * MS, part_of(&p, TW_DELAY_CPU, 0));
    TW_CHECK_EQ(TW_MEASURED, p.part[0].certainty);
}

static void handle(uint64_t from, uint64_t to, uint32_t of, uint64_t task) {
    const tw_host_span s = {0, from, to, tw_span_what(TW_SPAN_HANDLE, 0, TW_MEASURED), of, task, {0, 0}};
    tw_span_add(&host->by_handle, &s);
}

TW_TEST(code_without_a_sample_is_named_by_its_handle) {
    busy(100 * MS, 0);
    handle(10 * MS, 110 * MS, name("handle"), 0);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(100 * MS, part_of(&p, TW_DELAY_CALLBACK, name("handle")));
}

TW_TEST(each_handle_has_its_own_time) {
    busy(100 * MS, 0);
    handle(10 * MS, 40 * MS, name("first"), 0);
    handle(50 * MS, 90 * MS, name("second"), 0);
    span(TW_SPAN_RUN, 60 * MS, 80 * MS, name("encode"), 0); /* a sample of the second names it more closely */
    const tw_parts p = split(20 * MS, 110 * MS, 0);
    TW_CHECK_EQ(20 * MS, part_of(&p, TW_DELAY_CALLBACK, name("first")));
    TW_CHECK_EQ(40 * MS, part_of(&p, TW_DELAY_CALLBACK, name("encode")));
    TW_CHECK_EQ(90 * MS, part_of(&p, TW_DELAY_CALLBACK, 0));
}

TW_TEST(handles_too_many_to_be_split_apart_share_the_rest) {
    busy(100 * MS, 0);
    for (uint64_t i = 0; i < 25; i++) handle((10 + 4 * i) * MS, (13 + 4 * i) * MS, name(i % 2 ? "odd" : "even"), 0);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(39 * MS, part_of(&p, TW_DELAY_CALLBACK, name("even")));
    TW_CHECK_EQ(36 * MS, part_of(&p, TW_DELAY_CALLBACK, name("odd")));
    TW_CHECK_EQ(100 * MS, part_of(&p, TW_DELAY_CALLBACK, 0)); /* what ran between them has no name */
}

TW_TEST(samples_in_the_context_that_runs_now_are_own_code) {
    context = 5;
    busy(80 * MS, 20 * MS);
    span(TW_SPAN_RUN, 10 * MS, 30 * MS, name("other"), 6);
    span(TW_SPAN_RUN, 30 * MS, 40 * MS, name("other"), 7);
    span(TW_SPAN_RUN, 40 * MS, 110 * MS, name("render"), 5);
    tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(56 * MS, part_of(&p, TW_DELAY_OWN_CODE, name("render")));
    TW_CHECK_EQ(24 * MS, part_of(&p, TW_DELAY_CALLBACK, name("other")));
    TW_CHECK_EQ(20 * MS, part_of(&p, TW_DELAY_CPU, 0));
    TW_CHECK_EQ(TW_SAMPLED, p.part[0].certainty); /* which of the two it was */
    p = split(40 * MS, 110 * MS, 0);
    TW_CHECK_EQ(56 * MS, part_of(&p, TW_DELAY_OWN_CODE, name("render")));
    TW_CHECK_EQ(TW_SAMPLED, p.part[0].certainty); /* what ran between two samples is not known */
    host->track[0].handle_since_ns = 105 * MS; /* handles are timed now: what was sampled before stays */
    p = split(10 * MS, 105 * MS, 0);
    TW_CHECK_NEAR(52e6, part_of(&p, TW_DELAY_OWN_CODE, name("render")), 1e6);
    host->track[0].handle_since_ns = 0;
    context = 0; /* it is not known: no sample is its own */
    p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(80 * MS, part_of(&p, TW_DELAY_CALLBACK, 0));
}

TW_TEST(earlier_steps_of_the_same_task_are_its_own_code) {
    busy(100 * MS, 0);
    handle(10 * MS, 40 * MS, name("own"), 77);
    handle(40 * MS, 42 * MS, name("own"), 77); /* too short to be split by itself */
    handle(50 * MS, 90 * MS, name("other"), 78);
    host->track[0].handle_since_ns = 100 * MS;
    host->track[0].handle_task = 77;
    tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(42 * MS, part_of(&p, TW_DELAY_OWN_CODE, 0));
    TW_CHECK_EQ(58 * MS, part_of(&p, TW_DELAY_CALLBACK, 0));
    TW_CHECK_EQ(40 * MS, part_of(&p, TW_DELAY_CALLBACK, name("other")));
    p = split(20 * MS, 30 * MS, 0); /* within one of them */
    TW_CHECK_EQ(10 * MS, part_of(&p, TW_DELAY_OWN_CODE, name("own")));
    span(TW_SPAN_RUN, 40 * MS, 50 * MS, name("spin"), 0);
    p = split(10 * MS, 110 * MS, 0); /* sampled between the longer ones: the own part stays its own */
    TW_CHECK_EQ(42 * MS, part_of(&p, TW_DELAY_OWN_CODE, 0));
    TW_CHECK_EQ(8 * MS, part_of(&p, TW_DELAY_CALLBACK, name("spin")));
    host->track[0].handle_task = 0; /* a callback that is no task's */
    p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(10 * MS, part_of(&p, TW_DELAY_OWN_CODE, 0));
}

TW_TEST(the_requests_own_code_begins_with_its_handle) {
    busy(100 * MS, 0);
    host->track[0].handle_since_ns = 80 * MS;
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(70 * MS, part_of(&p, TW_DELAY_CALLBACK, 0));
    TW_CHECK_EQ(30 * MS, part_of(&p, TW_DELAY_OWN_CODE, 0));
}

TW_TEST(waits_are_scaled_to_the_sleep) {
    busy(10 * MS, 30 * MS); /* 60 asleep; the wait's wall time contains the run queue */
    span(TW_SPAN_SLEEP, 12 * MS, 110 * MS, name("nap"), 230);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(60 * MS, part_of(&p, TW_DELAY_SLEEP, name("nap")));
    TW_CHECK_EQ(30 * MS, part_of(&p, TW_DELAY_CPU, 0));
    TW_CHECK_EQ(0, part_of(&p, TW_DELAY_UNEXPLAINED, 0));
}

/* [10, 210] ms: a sleep of which samples show so much, and of which the kernel counts 193 ms as a wait for a CPU. */
static tw_parts counted_sleep(uint64_t from, uint64_t to) {
    point(10 * MS, 0, 0, 0, 0);
    point(210 * MS, 5 * MS, 193 * MS, 0, 0);
    span(TW_SPAN_SLEEP, from, to, name("nap"), 230);
    return split(10 * MS, 210 * MS, 0);
}

TW_TEST(a_sleep_that_the_kernel_counts_as_a_wait_for_a_cpu_is_a_sleep) {
    const tw_parts p = counted_sleep(15 * MS, 208 * MS);
    TW_CHECK_EQ(193 * MS, part_of(&p, TW_DELAY_SLEEP, name("nap")));
    TW_CHECK_EQ(2 * MS, part_of(&p, TW_DELAY_CPU, 0));
}

TW_TEST(samples_of_a_sleep_that_leave_room_for_a_wait_for_a_cpu_take_nothing_of_it) {
    const tw_parts p = counted_sleep(15 * MS, 110 * MS);
    TW_CHECK_EQ(193 * MS, part_of(&p, TW_DELAY_CPU, 0));
}

TW_TEST(samples_that_go_on_while_the_watchdog_has_no_cpu_take_nothing_of_a_wait_for_one) {
    const tw_host_span starved = {0, 50 * MS, 200 * MS, tw_span_what(TW_SPAN_SILENCE, TW_ALL_TRACKS, TW_MEASURED), 0,
                                  TW_SILENCE_STARVED, {0, 0}};
    tw_span_add(&host->by_watchdog, &starved);
    const tw_parts p = counted_sleep(15 * MS, 208 * MS);
    TW_CHECK_EQ(193 * MS, part_of(&p, TW_DELAY_CPU, 0));
}

TW_TEST(nor_of_one_for_the_quota) {
    const tw_host_span starved = {0, 50 * MS, 100 * MS, tw_span_what(TW_SPAN_SILENCE, TW_ALL_TRACKS, TW_MEASURED), 0,
                                  TW_SILENCE_STARVED, {0, 0}}; /* by the same quota */
    tw_span_add(&host->by_watchdog, &starved);
    const tw_host_span throttled = {0, 50 * MS, 200 * MS, tw_span_what(TW_SPAN_THROTTLED, TW_ALL_TRACKS, TW_MEASURED), 0,
                                    150 * MS, {0, 0}};
    tw_span_add(&host->by_watchdog, &throttled);
    const tw_parts p = counted_sleep(15 * MS, 208 * MS);
    TW_CHECK_EQ(150 * MS, part_of(&p, TW_DELAY_THROTTLED, 0));
    TW_CHECK_EQ(43 * MS, part_of(&p, TW_DELAY_CPU, 0));
}

/* The first look may come as late as 40 ms, and goes back to the begin of the stall. */
TW_TEST(nor_does_the_first_sample_of_a_short_stall) {
    busy(2 * MS, 90 * MS);
    span(TW_SPAN_IO, 10 * MS, 108 * MS, name("fsync"), 74);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(90 * MS, part_of(&p, TW_DELAY_CPU, 0));
}

TW_TEST(two_waits_share_the_sleep) {
    busy(0, 0);
    span(TW_SPAN_IO, 12 * MS, 37 * MS, name("fsync"), 74);
    span(TW_SPAN_LOCK, 37 * MS, 108 * MS, 0, 202);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_NEAR(26e6, (double)part_of(&p, TW_DELAY_IO, name("fsync")), 1e5);
    TW_CHECK_NEAR(74e6, (double)part_of(&p, TW_DELAY_LOCK, 0), 1e5);
}

TW_TEST(a_short_sample_names_no_long_sleep) {
    busy(0, 0);
    span(TW_SPAN_SLEEP, 10 * MS, 15 * MS, 0, 230);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(5 * MS, part_of(&p, TW_DELAY_SLEEP, 0));
    TW_CHECK_EQ(95 * MS, part_of(&p, TW_DELAY_UNEXPLAINED, 0));
}

/* In [10, 110] ms: samples come with the interrupts that end a wait for a disk. */
static void waits_among_code(void) {
    for (uint64_t from = 10; from < 110; from += 25) {
        span(TW_SPAN_RUN, (from + 3) * MS, (from + 15) * MS, name("write"), 0);
        span(TW_SPAN_IO, (from + 18) * MS, (from + 20) * MS, name("fsync"), 74);
    }
}

TW_TEST(a_read_that_samples_rarely_met_names_the_sleep_of_a_stall_that_they_cover) {
    busy(30 * MS, 3 * MS); /* asleep 67 */
    waits_among_code();
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(67 * MS, part_of(&p, TW_DELAY_IO, name("fsync")));
    TW_CHECK_EQ(0, part_of(&p, TW_DELAY_UNEXPLAINED, 0));
}

TW_TEST(it_names_no_sleep_in_page_faults) {
    const tw_host_point last = {.at_ns = 110 * MS, .cpu_ns = 30 * MS, .run_delay_ns = 3 * MS, .major_faults = 40};
    point(10 * MS, 0, 0, 0, 0);
    tw_host_track_add(&host->track[0], &last);
    waits_among_code();
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(8 * MS, part_of(&p, TW_DELAY_IO, name("fsync")));
    TW_CHECK_EQ(59 * MS, part_of(&p, TW_DELAY_MEMORY, 0));
}

TW_TEST(it_makes_no_wait_for_the_interpreter_lock_longer) {
    busy(30 * MS, 3 * MS);
    waits_among_code();
    const tw_host_span lock = {0, 30 * MS, 34 * MS, tw_span_what(TW_SPAN_GIL, 0, TW_MEASURED), 0, 0, {0, 0}};
    tw_span_add(&host->by_loop, &lock);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(4 * MS, part_of(&p, TW_DELAY_GIL, 0));
    TW_CHECK_EQ(63 * MS, part_of(&p, TW_DELAY_IO, name("fsync")));
}

TW_TEST(one_short_wait_among_samples_of_code_names_no_long_sleep) {
    busy(30 * MS, 3 * MS);
    span(TW_SPAN_RUN, 10 * MS, 60 * MS, name("write"), 0);
    span(TW_SPAN_IO, 61 * MS, 64 * MS, name("fsync"), 74);
    span(TW_SPAN_IO, 64 * MS, 67 * MS, name("fsync"), 74);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(6 * MS, part_of(&p, TW_DELAY_IO, name("fsync")));
    TW_CHECK_EQ(61 * MS, part_of(&p, TW_DELAY_UNEXPLAINED, 0));
}

TW_TEST(a_stopped_process) {
    busy(1 * MS, 1 * MS);
    span(TW_SPAN_SILENCE, 9 * MS, 112 * MS, 0, TW_SILENCE_STOPPED);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(98 * MS, part_of(&p, TW_DELAY_STOPPED, 0));
}

TW_TEST(a_stop_is_one_however_much_of_the_sleep_has_no_sample) {
    busy(0, 0);
    span(TW_SPAN_IO, 10 * MS, 60 * MS, name("read"), 0);
    span(TW_SPAN_SILENCE, 60 * MS, 80 * MS, 0, TW_SILENCE_STOPPED);
    span(TW_SPAN_IO, 95 * MS, 110 * MS, name("read"), 0);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(20 * MS, part_of(&p, TW_DELAY_STOPPED, 0));
    TW_CHECK_EQ(80 * MS, part_of(&p, TW_DELAY_IO, name("read")));
}

/* What held the lock was stopped with it. */
TW_TEST(a_process_stopped_while_its_loop_waits_for_the_interpreter_lock) {
    busy(0, 0);
    span(TW_SPAN_SILENCE, 20 * MS, 100 * MS, 0, TW_SILENCE_STOPPED);
    const tw_host_span s = {0, 10 * MS, 110 * MS, tw_span_what(TW_SPAN_GIL, 0, TW_MEASURED), 0, 0, {0, 0}};
    tw_span_add(&host->by_loop, &s);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(80 * MS, part_of(&p, TW_DELAY_STOPPED, 0));
    TW_CHECK_EQ(20 * MS, part_of(&p, TW_DELAY_GIL, 0));
}

TW_TEST(a_loop_stood_still_as_it_waited_before_its_process_is_known_to_have_stopped) {
    const tw_host_span loop = {0, 30 * MS, 50 * MS, tw_span_what(TW_SPAN_SILENCE, 0, TW_ESTIMATED), 0,
                               TW_SILENCE_STOPPED, {0, 0}},
                       all = {0, 50 * MS, 90 * MS, tw_span_what(TW_SPAN_SILENCE, TW_ALL_TRACKS, TW_MEASURED), 0,
                              TW_SILENCE_STOPPED, {0, 0}};
    point(10 * MS, 0, 0, 0, 0);
    point(110 * MS, 5 * MS, 0, 95 * MS, 0);
    tw_span_add(&host->by_loop, &all);
    tw_span_add(&host->by_loop, &loop);
    tw_span_add(&host->by_watchdog, &loop); /* whichever wakes up first, or both */
    const tw_parts p = split(10 * MS, 110 * MS, 35 * MS);
    TW_CHECK_EQ(60 * MS, part_of(&p, TW_DELAY_STOPPED, 0));
    TW_REQUIRE(p.n == 3);
    TW_CHECK(p.part[1].ns == 40 * MS && p.part[1].certainty == TW_MEASURED);
    TW_CHECK(p.part[2].ns == 20 * MS && p.part[2].certainty == TW_ESTIMATED);
}

TW_TEST(a_process_stopped_while_it_waits_for_events) {
    point(10 * MS, 0, 0, 0, 0);
    point(110 * MS, 1 * MS, 0, 99 * MS, 0);
    span(TW_SPAN_SILENCE, 20 * MS, 112 * MS, 0, TW_SILENCE_STOPPED);
    const tw_host_span s = {0, 22 * MS, 110 * MS, tw_span_what(TW_SPAN_SILENCE, TW_ALL_TRACKS, TW_MEASURED), 0,
                            TW_SILENCE_STOPPED, {0, 0}};
    tw_span_add(&host->by_loop, &s); /* both saw it: it counts once */
    const tw_parts p = split(10 * MS, 110 * MS, 9 * MS);
    TW_CHECK_EQ(90 * MS, part_of(&p, TW_DELAY_STOPPED, 0));
}

TW_TEST(a_watchdog_that_starved_proves_no_stop) {
    busy(1 * MS, 1 * MS);
    span(TW_SPAN_SILENCE, 9 * MS, 112 * MS, 0, TW_SILENCE_STARVED);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(98 * MS, part_of(&p, TW_DELAY_UNEXPLAINED, 0));
}

TW_TEST(throttled_is_a_part_of_the_run_delay) {
    busy(40 * MS, 60 * MS);
    span(TW_SPAN_THROTTLED, 10 * MS, 110 * MS, 0, 45 * MS);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(45 * MS, part_of(&p, TW_DELAY_THROTTLED, 0));
    TW_CHECK_EQ(15 * MS, part_of(&p, TW_DELAY_CPU, 0));
}

TW_TEST(faults_of_more_than_a_fifth_are_memory) {
    point(10 * MS, 0, 0, 0, 0);
    point(110 * MS, 100 * MS, 0, 0, 20000);
    tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(80 * MS, part_of(&p, TW_DELAY_MEMORY, 0));
    TW_CHECK_EQ(20 * MS, part_of(&p, TW_DELAY_CALLBACK, 0));
    point(210 * MS, 200 * MS, 0, 0, 22000); /* 8 ms of 100 */
    p = split(110 * MS, 210 * MS, 0);
    TW_CHECK_EQ(0, part_of(&p, TW_DELAY_MEMORY, 0));
}

TW_TEST(a_collection_is_its_own) {
    busy(70 * MS, 30 * MS);
    tw_pause_begin(pauses, TW_CAUSE_GC2, 20 * MS);
    tw_pause_end(pauses, 60 * MS, NULL, NULL);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(40 * MS, part_of(&p, TW_CAUSE_GC2, 0));
    TW_CHECK_EQ(30 * MS, part_of(&p, TW_DELAY_CALLBACK, 0));
    TW_CHECK_EQ(30 * MS, part_of(&p, TW_DELAY_CPU, 0));
}

TW_TEST(the_end_of_a_wait_is_runnable_then_the_interpreter) {
    point(10 * MS, 0, 0, 0, 0);
    point(50 * MS, 2 * MS, 10 * MS, 20 * MS, 0);
    const tw_host_span s = {0, 42 * MS, 50 * MS, tw_span_what(TW_SPAN_GIL, 0, TW_MEASURED), 0, 0, {0, 0}};
    tw_span_add(&host->by_loop, &s);
    const tw_parts p = split(32 * MS, 50 * MS, 0); /* the event was there at 32 */
    TW_CHECK_EQ(10 * MS, part_of(&p, TW_DELAY_CPU, 0));
    TW_CHECK_EQ(8 * MS, part_of(&p, TW_DELAY_GIL, 0));
    const tw_parts before = split(10 * MS, 32 * MS, 20 * MS);
    TW_CHECK_EQ(2 * MS, part_of(&before, TW_DELAY_CALLBACK, 0));
}

TW_TEST(a_measured_wait_for_the_interpreter_is_named_by_samples) {
    busy(0, 0);
    const uint32_t holder = name("compile_schema");
    const tw_host_span s = {0, 10 * MS, 110 * MS, tw_span_what(TW_SPAN_GIL, 0, TW_MEASURED), 0, 0, {0, 0}};
    tw_span_add(&host->by_loop, &s);
    span(TW_SPAN_GIL, 20 * MS, 90 * MS, 0, holder);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(1, p.n);
    TW_CHECK_EQ(100 * MS, part_of(&p, TW_DELAY_GIL, 0));
    TW_CHECK_EQ(holder, p.part[0].detail);
    TW_CHECK_EQ(TW_DETAIL_HOLDER, p.part[0].detail_kind);
}

static uint32_t name_of(const char *what, int number) {
    char text[32];
    snprintf(text, sizeof text, "%s %d", what, number);
    return name(text);
}

TW_TEST(waits_for_the_interpreter_in_many_places_are_one_by_their_holder) {
    busy(0, 0);
    const uint32_t holder = name("compile_schema");
    for (int i = 0; i < 25; i++)
        span(TW_SPAN_GIL, (10 + (uint64_t)i * 4) * MS, (14 + (uint64_t)i * 4) * MS, name_of("operator", i), holder);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(1, p.n);
    TW_CHECK_EQ(100 * MS, part_of(&p, TW_DELAY_GIL, 0));
    TW_CHECK_EQ(holder, p.part[0].detail);
}

TW_TEST(waits_of_more_names_than_are_kept_lose_no_time) {
    busy(0, 0);
    span(TW_SPAN_SLEEP, 10 * MS, 30 * MS, name("nap"), 230);
    for (int i = 0; i < 20; i++) /* read first: nap finds no place */
        span(TW_SPAN_LOCK, (30 + (uint64_t)i * 4) * MS, (34 + (uint64_t)i * 4) * MS, name_of("queue", i), 202);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(20 * MS, part_of(&p, TW_DELAY_SLEEP, 0));
    TW_CHECK_EQ(80 * MS, part_of(&p, TW_DELAY_LOCK, 0));
}

TW_TEST(a_long_read_among_many_names_gives_the_name) {
    busy(0, 0);
    span(TW_SPAN_IO, 10 * MS, 86 * MS, name("read"), 0); /* its number; read last */
    for (int i = 0; i < 12; i++)
        span(TW_SPAN_IO, (86 + (uint64_t)i * 2) * MS, (88 + (uint64_t)i * 2) * MS, name_of("poll", i), 7);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_NEAR(78e6, (double)part_of(&p, TW_DELAY_IO, name("read")), 1e5);
}

TW_TEST(a_kind_of_wait_finds_a_place_beside_many_names) {
    busy(0, 0);
    for (int i = 0; i < 20; i++)
        span(TW_SPAN_LOCK, (10 + (uint64_t)i * 2) * MS, (12 + (uint64_t)i * 2) * MS, name_of("queue", i), 202);
    span(TW_SPAN_SLEEP, 50 * MS, 110 * MS, name("nap"), 230); /* newest: read first */
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(60 * MS, part_of(&p, TW_DELAY_SLEEP, name("nap")));
    TW_CHECK_EQ(40 * MS, part_of(&p, TW_DELAY_LOCK, 0));
}

TW_TEST(kinds_of_waits_that_alternate_beside_many_names_each_keep_their_time) {
    busy(0, 0);
    for (int i = 0; i < 20; i++)
        span(i % 2 == 0 ? TW_SPAN_SLEEP : TW_SPAN_IO, (10 + (uint64_t)i) * MS, (11 + (uint64_t)i) * MS, 0, 230);
    for (int i = 0; i < 20; i++)
        span(TW_SPAN_LOCK, (30 + (uint64_t)i * 4) * MS, (34 + (uint64_t)i * 4) * MS, name_of("queue", i), 202);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(10 * MS, part_of(&p, TW_DELAY_SLEEP, 0));
    TW_CHECK_EQ(10 * MS, part_of(&p, TW_DELAY_IO, 0));
    TW_CHECK_EQ(80 * MS, part_of(&p, TW_DELAY_LOCK, 0));
}

TW_TEST(another_track_does_not_count) {
    busy(0, 0);
    const tw_host_span s = {0, 10 * MS, 110 * MS, tw_span_what(TW_SPAN_SLEEP, 1, TW_SAMPLED), 0, 0, {0, 0}};
    tw_span_add(&host->by_watchdog, &s);
    const tw_parts p = split(10 * MS, 110 * MS, 0);
    TW_CHECK_EQ(100 * MS, part_of(&p, TW_DELAY_UNEXPLAINED, 0));
}

TW_TEST(what_no_point_covers_is_unexplained) {
    busy(100 * MS, 0);
    const tw_parts p = split(100 * MS, 130 * MS, 0);
    TW_CHECK_EQ(10 * MS, part_of(&p, TW_DELAY_CALLBACK, 0));
    TW_CHECK_EQ(20 * MS, part_of(&p, TW_DELAY_UNEXPLAINED, 0));
    tw_parts none = {0};
    TW_CHECK_EQ(0, tw_host_split(host, TW_TRACKS, pauses, 1, 2, (tw_whose){0, 0}, &none));
    TW_CHECK_EQ(0, none.n);
}

/* ---- any track: the parts are exclusive and sum to the interval ---- */

static void random_spans(uint64_t *random, uint64_t until) {
    for (int i = 0; i < 60; i++) {
        const uint64_t from = tw_test_random_below(random, until), to = from + tw_test_random_below(random, 30 * MS);
        const tw_host_span s = {0, from, to,
                           tw_span_what((tw_span_kind)tw_test_random_below(random, TW_SPAN_KINDS),
                                        (uint32_t)tw_test_random_below(random, 2),
                                        (tw_certainty)tw_test_random_below(random, 2)),
                           tw_test_random_below(random, 5), tw_test_random_below(random, 20 * MS), {0, 0}};
        tw_span_ring *const rings[] = {&host->by_loop, &host->by_watchdog, &host->by_handle};
        tw_span_add(rings[i % 3], &s);
    }
}

TW_TEST(the_parts_sum_to_the_interval) {
    uint64_t random = 11;
    for (int round = 0; round < 400; round++) {
        end();
        begin();
        uint64_t at = 1000, cpu = 0, run = 0, idle = 0, faults = 0;
        for (int i = 0; i < 40; i++) {
            point(at, cpu, run, idle, faults);
            at += tw_test_random_below(&random, 20 * MS);
            cpu += tw_test_random_below(&random, 8 * MS);
            run += tw_test_random_below(&random, 2) * tw_test_random_below(&random, 8 * MS);
            idle += tw_test_random_below(&random, 2) * tw_test_random_below(&random, 10 * MS);
            faults += tw_test_random_below(&random, 1000);
        }
        random_spans(&random, at);
        for (uint64_t stop = 0; stop + 50 * MS < at; stop += 20 * MS + tw_test_random_below(&random, 40 * MS)) {
            tw_pause_begin(pauses, (tw_cause)tw_test_random_below(&random, TW_CAUSES), stop);
            tw_pause_end(pauses, stop + tw_test_random_below(&random, 20 * MS), NULL, NULL);
        }
        if (round % 3 == 0) host->track[0].handle_since_ns = tw_test_random_below(&random, at);
        const uint64_t from = tw_test_random_below(&random, at), to = from + tw_test_random_below(&random, at);
        tw_parts parts = {0};
        const uint64_t waited = tw_host_split(host, 0, pauses, from, to, (tw_whose){0, 0}, &parts);
        TW_CHECK_EQ(to - from, waited + tw_parts_sum(&parts));
        for (uint32_t i = 0; i < parts.n; i++) TW_CHECK(parts.part[i].cause < TW_DELAYS && parts.part[i].ns > 0);
    }
}
