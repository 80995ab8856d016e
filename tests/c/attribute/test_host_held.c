/* What held a process that tokens wait for, by hand-made tracks. */
#include "tailwatch/attribute/host_held.h"

#include "host_tools.h"

#define MS UINT64_C(1000000)

static void point(uint64_t at, uint64_t run_delay) {
    const tw_host_point p = {.at_ns = at, .run_delay_ns = run_delay};
    tw_host_track_add(&host->track[0], &p);
}

/* Points at 100 and 200 ms of a thread with steps, which had waited 5 ms by then; its counter is read later. */
static uint64_t delayed_since(uint64_t counted_ns, tw_delay_reading now) {
    const int track = tw_host_take_steps(host, 1234);
    TW_REQUIRE(track == 0);
    point(100 * MS, counted_ns);
    point(200 * MS, counted_ns);
    return tw_host_delayed_since(host, pauses, 200 * MS, 240 * MS, &now);
}

TW_TEST(what_a_thread_waits_for_a_cpu_since_its_newest_point) {
    TW_CHECK_EQ(30 * MS, delayed_since(5 * MS, (tw_delay_reading){1234, 1, 240 * MS, 35 * MS}));
}

TW_TEST(what_it_waits_is_spread_evenly_up_to_the_reading) {
    TW_CHECK_EQ(15 * MS, delayed_since(5 * MS, (tw_delay_reading){1234, 1, 280 * MS, 35 * MS}));
}

TW_TEST(what_it_waits_in_a_pause_of_its_process_is_that_pause_s) {
    tw_pause_begin(pauses, TW_CAUSE_GC2, 205 * MS);
    tw_pause_end(pauses, 225 * MS, NULL, NULL);
    TW_CHECK_EQ(10 * MS, delayed_since(5 * MS, (tw_delay_reading){1234, 1, 240 * MS, 35 * MS}));
}

TW_TEST(what_it_waits_is_not_known_without_both_counters) {
    TW_CHECK_EQ(0, delayed_since(0, (tw_delay_reading){1234, 1, 240 * MS, 35 * MS}));
    TW_CHECK_EQ(0, tw_host_delayed_since(host, pauses, 200 * MS, 240 * MS, &(tw_delay_reading){1234, 1, 240 * MS, 0}));
}

static void span(tw_span_kind kind, uint32_t track, uint64_t from, uint64_t to, uint64_t detail) {
    const tw_host_span s = {0, from, to, tw_span_what(kind, track, TW_MEASURED), 0, detail, {0, 0}};
    tw_span_add(&host->by_loop, &s);
}

TW_TEST(a_stop_of_the_process_holds_it) {
    span(TW_SPAN_SILENCE, TW_ALL_TRACKS, 20 * MS, 60 * MS, TW_SILENCE_STOPPED);
    TW_CHECK_EQ(30 * MS, tw_host_held_ns(host, pauses, 30 * MS, 80 * MS));
}

/* Of the others it is not known whether they went on. */
TW_TEST(one_loop_that_stood_still_for_longer_does_not_hold_the_process) {
    span(TW_SPAN_SILENCE, 0, 20 * MS, 50 * MS, TW_SILENCE_STOPPED);
    span(TW_SPAN_SILENCE, TW_ALL_TRACKS, 50 * MS, 60 * MS, TW_SILENCE_STOPPED);
    TW_CHECK_EQ(10 * MS, tw_host_held_ns(host, pauses, 30 * MS, 80 * MS));
}

/* Steps of 10 ms up to 200 ms; one of 200 ms more, of which 190 are counted as a wait for a CPU. */
static uint64_t held_after_steps(void) {
    TW_REQUIRE(tw_host_take_steps(host, 1234) == 0);
    for (uint64_t at = 10 * MS; at <= 200 * MS; at += 10 * MS) point(at, MS);
    point(400 * MS, 191 * MS);
    return tw_host_held_ns(host, pauses, 200 * MS, 400 * MS);
}

TW_TEST(a_wait_for_a_cpu_holds_it) {
    TW_CHECK_EQ(190 * MS, held_after_steps());
}

TW_TEST(a_sleep_that_the_kernel_counts_as_that_does_not) {
    const tw_host_span s = {0, 203 * MS, 398 * MS, tw_span_what(TW_SPAN_SLEEP, 0, TW_SAMPLED), 0, 230, {0, 0}};
    tw_span_add(&host->by_watchdog, &s);
    TW_CHECK(held_after_steps() < 6 * MS);
}
