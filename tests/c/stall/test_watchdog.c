#include "tailwatch/stall/watchdog.h"

#include <stdlib.h>

#include "tailwatch/base/clock.h"
#include "tw_test.h"

#define MS UINT64_C(1000000)

/* A wake-up of 50 us each 10 ms is all that the budget gives: the longer period leaves three quarters of it. */
TW_TEST(what_is_left_of_the_budget_is_for_samples) {
    TW_CHECK_EQ(10 * MS, tw_watch_period(TW_WATCH_BURST_NS));
    TW_CHECK_EQ(10 * MS, tw_watch_period(TW_WATCH_BURST_NS / 2));
    TW_CHECK_EQ(20 * MS, tw_watch_period(TW_WATCH_BURST_NS / 2 - 1));
    TW_CHECK_EQ(20 * MS, tw_watch_period(TW_WATCH_BURST_NS / 4));
    TW_CHECK_EQ(40 * MS, tw_watch_period(TW_WATCH_BURST_NS / 4 - 1));
    TW_CHECK_EQ(40 * MS, tw_watch_period(0));
    const uint64_t wake_up = 50000, in_period = tw_watch_period(0) * TW_WATCH_BUDGET_PPM / 1000000;
    TW_CHECK(wake_up <= in_period / 4);
}

TW_TEST(a_longer_sleep_is_no_silence) {
    TW_CHECK_EQ(90 * MS, tw_watch_silent_from(100 * MS));
    TW_CHECK_EQ(0, tw_watch_silent_from(5 * MS));
}

/* It slept for 40 ms at a time, as it does with little of its budget left. */
TW_TEST(a_process_that_was_stopped_may_have_run_before_and_after_it) {
    TW_CHECK(tw_watch_was_stopped(40 * MS, 360 * MS, 0, 57 * MS));
    TW_CHECK(!tw_watch_was_stopped(40 * MS, 360 * MS, 0, 58 * MS));
    TW_CHECK(tw_watch_was_stopped(40 * MS, 360 * MS, 30 * MS, 87 * MS));
    TW_CHECK(!tw_watch_was_stopped(40 * MS, 159 * MS, 0, 0));
    TW_CHECK(!tw_watch_was_stopped(0, 39 * MS, 0, 0)); /* due as its turn ended */
}

TW_TEST(a_stop_is_recorded_once_before_the_watchdog_wakes) {
    tw_host *host = calloc(1, sizeof *host);
    tw_host_span s;
    TW_REQUIRE(host != NULL);
    const uint64_t now = tw_now_ns(), turn = now - 400 * MS;
    tw_store(&host->watchdog_turn_ns, turn);
    tw_store(&host->watchdog_due_ns, turn + 10 * MS);
    tw_store(&host->watchdog_process_cpu_ns, tw_process_cpu_ns());
    TW_CHECK_EQ(0, tw_stop_note(host, turn + 12 * MS));
    TW_CHECK_EQ(turn, tw_stop_note(host, now));
    TW_CHECK_EQ(turn, tw_stop_note(host, now + MS)); /* another loop */
    TW_CHECK_EQ(1, host->by_loop.head);
    TW_REQUIRE(tw_span_read(&host->by_loop, 0, &s));
    TW_CHECK_EQ(turn, s.from_ns);
    TW_CHECK_EQ(now, s.to_ns);
    TW_CHECK(tw_span_kind_of(&s) == TW_SPAN_SILENCE && s.detail == TW_SILENCE_STOPPED);
    free(host);
}

/* The watchdog sleeps for 40 ms where little of its budget is left. */
TW_TEST(a_loop_that_waited_stood_still_since_it_waits_or_since_the_watchdogs_turn) {
    tw_host *host = calloc(1, sizeof *host);
    tw_host_span s;
    TW_REQUIRE(host != NULL);
    const uint64_t now = tw_now_ns(), turn = now - 100 * MS;
    const uint32_t track = (uint32_t)tw_host_take(host, 50);
    tw_store(&host->watchdog_turn_ns, turn);
    tw_store(&host->watchdog_due_ns, turn + 40 * MS);
    tw_store(&host->watchdog_process_cpu_ns, tw_process_cpu_ns());
    TW_CHECK_EQ(0, tw_stop_note_waiting(host, track, turn, turn + 42 * MS));
    TW_CHECK_EQ(turn + 35 * MS, tw_stop_note_waiting(host, track, turn + 35 * MS, now)); /* it waits since later */
    TW_CHECK_EQ(1, host->by_loop.head);
    TW_CHECK_EQ(turn + 30 * MS, tw_stop_note_waiting(host, track, turn + 7 * MS, now));
    TW_CHECK_EQ(2, host->by_loop.head); /* that of the process once */
    TW_REQUIRE(tw_span_read(&host->by_loop, 1, &s));
    TW_CHECK(s.from_ns >= turn + 7 * MS && s.from_ns < turn + 12 * MS); /* and what it has used of the CPU since */
    TW_CHECK_EQ(turn + 30 * MS, s.to_ns);
    TW_CHECK(tw_span_is_of(&s, track) && !tw_span_is_of(&s, track + 1) && s.detail == TW_SILENCE_STOPPED);
    TW_CHECK_EQ(TW_ESTIMATED, tw_span_certainty(&s));
    TW_CHECK_EQ(turn + 30 * MS, tw_stop_note_waiting(host, track, turn - 300 * MS, now));
    TW_REQUIRE(tw_span_read(&host->by_loop, 2, &s));
    TW_CHECK(s.from_ns >= turn && s.from_ns < turn + 5 * MS); /* nothing is known of before the turn */
    free(host);
}

TW_TEST(a_process_that_was_throttled_was_not_stopped) {
    tw_host *host = calloc(1, sizeof *host);
    TW_REQUIRE(host != NULL);
    const uint64_t now = tw_now_ns(), turn = now - 400 * MS;
    tw_store(&host->watchdog_turn_ns, turn);
    tw_store(&host->watchdog_due_ns, turn + 10 * MS);
    tw_store(&host->watchdog_process_cpu_ns, tw_process_cpu_ns());
    tw_store(&host->watchdog_throttled_ns, 900 * MS);
    tw_store(&host->throttled_ns, 1010 * MS);
    TW_CHECK_EQ(0, tw_stop_note(host, now));
    tw_store(&host->throttled_ns, 990 * MS); /* a quota was used up once, before or after the stop */
    TW_CHECK_EQ(turn, tw_stop_note(host, now));
    free(host);
}

TW_TEST(a_thread_that_was_runnable_is_no_witness_of_a_stop) {
    tw_host *host = calloc(1, sizeof *host);
    TW_REQUIRE(host != NULL);
    const uint64_t now = tw_now_ns(), turn = now - 400 * MS;
    tw_host_track *t = &host->track[tw_host_take(host, 50)];
    tw_store(&host->watchdog_turn_ns, turn);
    tw_store(&host->watchdog_due_ns, turn + 10 * MS);
    tw_store(&host->watchdog_process_cpu_ns, tw_process_cpu_ns());
    const tw_host_point before = {.at_ns = turn}, throttled = {.at_ns = now - MS, .run_delay_ns = 200 * MS},
                        after = {.at_ns = now, .run_delay_ns = 200 * MS};
    tw_host_track_add(t, &before);
    tw_host_track_add(t, &throttled);
    tw_stop_note_of(host, 0, now);
    TW_CHECK_EQ(0, host->by_loop.head);
    tw_host_track_add(t, &after);
    tw_stop_note_of(host, 0, now);
    TW_CHECK_EQ(1, host->by_loop.head);
    free(host);
}
