/* A wait explained by its chain: what the engine's processes were kept by is charged before its steps are. */
#include "tailwatch/attribute/chain.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "segment_tools.h"
#include "tailwatch/attribute/engine_split.h"
#include "tailwatch/base/process.h"
#include "tw_test.h"

#define MS UINT64_C(1000000)
#define STEP (10 * MS)
#define ENGINE UINT64_C(7)
enum { API, OF_ENGINE, OF_WORKER, SECOND_WORKER, OTHER, BEHIND, PROCESSES }; /* the last: all tokens pass through it */

static tw_segment *of[PROCESSES];
static tw_peer_set *peers;
static uint64_t now;

static void begin(void) {
    static const uint64_t engine[PROCESSES] = {0, ENGINE, ENGINE, ENGINE, ENGINE + 1, TW_ENGINE_SHARED};
    now = 1000 * MS;
    peers = calloc(1, sizeof *peers);
    for (uint32_t i = 0; i < PROCESSES; ++i) {
        of[i] = calloc(1, segment_bytes(1));
        TW_REQUIRE(of[i] != NULL && peers != NULL);
        if (i == API) continue;
        peers->segment[peers->n] = of[i];
        peers->peer[peers->n++] = (tw_peer){&of[i]->pause, engine[i], i};
    }
}
static void end(void) {
    for (int i = 0; i < PROCESSES; ++i) free(of[i]);
    free(peers);
}
TW_AROUND(begin, end)

static uint32_t units(uint64_t ns) { return (uint32_t)(ns / TW_OFFSET_UNIT_NS); }

/* A step of decoding that took so much longer in its wait. Returns the stamp of its outputs. */
static uint64_t step(uint64_t longer) {
    tw_step_record s = {.requests = 4, .decode_requests = 4, .decode_tokens = 4};
    s.part[TW_PART_SCHEDULE] = s.part[TW_PART_UPDATE] = units(MS / 2);
    s.part[TW_PART_WAIT] = units(STEP - MS + longer);
    now += STEP + longer;
    s.update_ns = now - MS / 2;
    s.done_ns = now;
    s.key_ns = now - 1000;
    tw_step_write(&of[OF_ENGINE]->step_ring, &s);
    return s.key_ns;
}

static uint64_t warm(void) {
    uint64_t key = 0;
    for (int i = 0; i < 100; ++i) key = step(0);
    return key;
}

/* Of a token that is sent 1 us after it was processed, as the one before. */
static tw_parts explain_chain(const tw_token_chain *before, const tw_token_chain *token) {
    const tw_wait w = {.phase = TW_PHASE_ITL, .from_ns = before->processed_ns + 1000, .to_ns = token->processed_ns + 1000,
                       .typical_ns = STEP, .track = -1, .before = before, .token = token};
    const tw_charge d = {0};
    tw_parts parts;
    TW_CHECK(tw_wait_explain(of[API], (tw_served_by){.peer_set = peers, .engine = ENGINE}, &w, &d, true, &parts));
    TW_CHECK_EQ(token->processed_ns - before->processed_ns - STEP, tw_parts_sum(&parts));
    return parts;
}

/* Of a token whose engine's stamps are k0 and k1, and which came so much later than usual. */
static tw_parts explain_sent(uint64_t k0, uint64_t k1, uint64_t late) {
    const tw_token_chain before = {k0, k0 + 1000, k0 + 2000}, token = {k1, k1 + 1000 + late, k1 + 2000 + late};
    return explain_chain(&before, &token);
}

static tw_parts explain(uint64_t k0, uint64_t k1) { return explain_sent(k0, k1, 0); }

static uint64_t part_of(const tw_parts *parts, int cause, int source) {
    uint64_t ns = 0;
    for (uint32_t i = 0; i < parts->n; ++i)
        if (parts->part[i].cause == cause && parts->part[i].source == source) ns += parts->part[i].ns;
    return ns;
}

static void stop(int process, uint64_t from, uint64_t to) {
    const tw_host_span s = {0, from, to, tw_span_what(TW_SPAN_SILENCE, TW_ALL_TRACKS, TW_MEASURED), 0,
                            TW_SILENCE_STOPPED, {0, 0}};
    tw_span_add(&of[process]->host.by_watchdog, &s);
}

TW_TEST(what_nothing_is_known_of_is_the_device_s) {
    const uint64_t k0 = warm(), k1 = step(200 * MS);
    const tw_parts p = explain(k0, k1);
    TW_CHECK_NEAR(200e6, part_of(&p, TW_DELAY_DEVICE, OF_ENGINE), 1e6);
}

TW_TEST(a_stopped_process_of_the_engine_has_what_it_was_stopped_for) {
    for (int process = OF_ENGINE; process <= OF_WORKER; ++process) {
        const uint64_t k0 = warm(), k1 = step(200 * MS);
        stop(process, k1 - 205 * MS, k1 - 5 * MS);
        const tw_parts p = explain(k0, k1);
        TW_CHECK_EQ(200 * MS, part_of(&p, TW_DELAY_STOPPED, process));
        TW_CHECK_EQ(0, part_of(&p, TW_DELAY_DEVICE, OF_ENGINE));
    }
}

TW_TEST(what_several_were_stopped_for_counts_once) {
    const uint64_t k0 = warm(), k1 = step(200 * MS);
    stop(OF_ENGINE, k1 - 205 * MS, k1 - 105 * MS);
    stop(OF_WORKER, k1 - 205 * MS, k1 - 55 * MS);
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(100 * MS, part_of(&p, TW_DELAY_STOPPED, OF_ENGINE));
    TW_CHECK_EQ(50 * MS, part_of(&p, TW_DELAY_STOPPED, OF_WORKER));
    TW_CHECK_EQ(50 * MS, part_of(&p, TW_DELAY_DEVICE, OF_ENGINE));
}

static void throttled(int process, uint64_t from, uint64_t to, uint64_t ns) {
    const tw_host_span s = {0, from, to, tw_span_what(TW_SPAN_THROTTLED, TW_ALL_TRACKS, TW_MEASURED), 0, ns, {0, 0}};
    tw_span_add(&of[process]->host.by_watchdog, &s);
    of[process]->host.throttled_ns += ns;
    of[process]->host.facts.cpus = 2; /* the counter is of both */
}

TW_TEST(while_an_engine_s_processes_are_throttled_its_steps_are) {
    for (int process = OF_ENGINE; process <= OF_WORKER; ++process) {
        const uint64_t k0 = warm(), k1 = step(200 * MS);
        throttled(process, k1 - 210 * MS, k1, 336 * MS);
        const tw_parts p = explain(k0, k1);
        TW_CHECK_NEAR(168e6, part_of(&p, TW_DELAY_THROTTLED, OF_ENGINE), 1e5); /* what is typical has no room for it */
        TW_CHECK_NEAR(32e6, part_of(&p, TW_DELAY_DEVICE, OF_ENGINE), 1e5);
    }
}

TW_TEST(a_typical_step_has_its_share_of_what_it_has_room_for) {
    const uint64_t k0 = warm(), k1 = step(20 * MS);
    throttled(OF_ENGINE, k1 - 30 * MS, k1, 18 * MS);
    const tw_parts p = explain(k0, k1);
    TW_CHECK_NEAR(6e6, part_of(&p, TW_DELAY_THROTTLED, OF_ENGINE), 1e5); /* of 9 */
    TW_CHECK_NEAR(14e6, part_of(&p, TW_DELAY_DEVICE, OF_ENGINE), 1e5);
}

TW_TEST(what_is_throttled_between_two_readings_goes_on_evenly) {
    const uint64_t k0 = warm(), k1 = step(200 * MS);
    throttled(OF_ENGINE, k1 - 105 * MS, k1 + 895 * MS, 800 * MS);
    const tw_parts p = explain(k0, k1);
    TW_CHECK_NEAR(42e6, part_of(&p, TW_DELAY_THROTTLED, OF_ENGINE), 1e5);
}

TW_TEST(an_engine_that_is_throttled_before_it_sends_delays_what_it_sends) {
    const uint64_t k0 = warm(), k1 = step(0);
    throttled(OF_ENGINE, k1, k1 + 150 * MS, 240 * MS);
    const tw_parts p = explain_sent(k0, k1, 150 * MS);
    TW_CHECK_NEAR(120e6, part_of(&p, TW_DELAY_THROTTLED, OF_ENGINE), 1e5);
    TW_CHECK_NEAR(30e6, part_of(&p, TW_DELAY_TRANSPORT, 0), 1e5);
}

TW_TEST(a_token_that_is_processed_while_a_send_waits_waits_for_the_client) {
    const uint64_t k0 = warm(), k1 = step(0), sent = k1 + 150 * MS;
    const tw_token_chain before = {k0, k0 + 1000, k0 + 2000}, token = {k1, k1 + 1000, k1 + 2000};
    const tw_wait w = {.phase = TW_PHASE_ITL, .from_ns = k0 + 3000, .to_ns = sent, .typical_ns = STEP, .track = -1,
                       .client_ns = 100 * MS, .client_until_ns = sent - 30 * MS, .before = &before, .token = &token};
    const tw_charge d = {0};
    tw_parts p;
    TW_CHECK(tw_wait_explain(of[API], (tw_served_by){.peer_set = peers, .engine = ENGINE}, &w, &d, true, &p));
    TW_CHECK_EQ(100 * MS, part_of(&p, TW_DELAY_CLIENT, 0));
    TW_CHECK_NEAR(30e6, part_of(&p, TW_DELAY_OWN_CODE, 0), 1e4);
}

TW_TEST(processes_of_another_engine_delay_nothing_here) {
    const uint64_t k0 = warm(), k1 = step(200 * MS);
    stop(OTHER, k1 - 205 * MS, k1 - 5 * MS);
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(0, part_of(&p, TW_DELAY_STOPPED, OTHER));
}

TW_TEST(no_more_than_the_excess_is_charged) {
    const uint64_t k0 = warm(), k1 = step(200 * MS);
    stop(OF_ENGINE, k0 - 100 * MS, k1 + 100 * MS);
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(200 * MS, part_of(&p, TW_DELAY_STOPPED, OF_ENGINE));
}

TW_TEST(an_engine_that_is_stopped_before_it_sends_delays_what_it_sends) {
    const uint64_t k0 = warm(), k1 = step(0);
    stop(OF_ENGINE, k1 + MS, k1 + 150 * MS);
    const tw_parts p = explain_sent(k0, k1, 200 * MS);
    TW_CHECK_EQ(149 * MS, part_of(&p, TW_DELAY_STOPPED, OF_ENGINE));
    TW_CHECK_EQ(51 * MS, part_of(&p, TW_DELAY_TRANSPORT, 0));
}

/* Until the token before was received the stop delayed that one, and the step has gone on since. */
TW_TEST(a_stop_that_delayed_the_token_before_delays_the_next_one_by_the_rest) {
    const uint64_t k0 = warm(), k1 = step(100 * MS + 40 * MS), received = k0 + 70 * MS;
    stop(OF_ENGINE, k0 + MS, k0 + 100 * MS);
    const tw_token_chain before = {k0, received, received + 1000}, token = {k1, k1 + 1000, k1 + 2000};
    const tw_parts p = explain_chain(&before, &token);
    TW_CHECK_NEAR(30e6, part_of(&p, TW_DELAY_STOPPED, OF_ENGINE), 1e5);
    TW_CHECK_NEAR(40e6, part_of(&p, TW_DELAY_DEVICE, OF_ENGINE), 1e5);
}

TW_TEST(a_process_that_tokens_pass_through_delays_them_while_it_is_stopped) {
    const uint64_t k0 = warm(), k1 = step(0);
    stop(BEHIND, k1 + MS, k1 + 150 * MS);
    const tw_parts p = explain_sent(k0, k1, 200 * MS);
    TW_CHECK_EQ(149 * MS, part_of(&p, TW_DELAY_STOPPED, BEHIND));
    TW_CHECK_EQ(51 * MS, part_of(&p, TW_DELAY_TRANSPORT, 0));
}

TW_TEST(it_delays_nothing_that_the_engine_still_makes) {
    const uint64_t k0 = warm(), k1 = step(200 * MS);
    stop(BEHIND, k1 - 205 * MS, k1 - 5 * MS);
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(0, part_of(&p, TW_DELAY_STOPPED, BEHIND));
    TW_CHECK_NEAR(200e6, part_of(&p, TW_DELAY_DEVICE, OF_ENGINE), 1e6);
}

/* ---- the engine's thread ---- */

static tw_host_track *thread_with_steps(void) {
    tw_host *host = &of[OF_ENGINE]->host;
    const int track = tw_host_take_steps(host, 1234);
    TW_REQUIRE(track >= 0);
    return &host->track[track];
}

static void point(tw_host_track *t, uint64_t at, uint64_t run_delay) {
    const tw_host_point p = {.at_ns = at, .run_delay_ns = run_delay};
    tw_host_track_add(t, &p);
}

static void computed_by(tw_host_track *t, uint64_t at, uint64_t cpu) {
    const tw_host_point p = {.at_ns = at, .cpu_ns = cpu};
    tw_host_track_add(t, &p);
}

TW_TEST(the_engine_s_wait_for_the_interpreter_lock_has_its_holder) {
    tw_host *host = &of[OF_ENGINE]->host;
    (void)thread_with_steps();
    const uint64_t k0 = warm(), k1 = step(80 * MS);
    const uint32_t holder = tw_name_intern(&host->names, "compile_schema", 14);
    const tw_host_span s = {0, k1 - 75 * MS, k1 - 5 * MS, tw_span_what(TW_SPAN_GIL, 0, TW_SAMPLED), 0, holder, {0, 0}};
    tw_span_add(&host->by_watchdog, &s);
    const tw_parts p = explain(k0, k1);
    /* the next sample was due 70 ms / 8 later */
    TW_CHECK_EQ(70 * MS + 70 * MS / 16, part_of(&p, TW_DELAY_GIL, OF_ENGINE));
    TW_CHECK_EQ(10 * MS - 70 * MS / 16, part_of(&p, TW_DELAY_DEVICE, OF_ENGINE));
    char name[TW_NAME_TEXT];
    for (uint32_t i = 0; i < p.n; ++i)
        if (p.part[i].cause == TW_DELAY_GIL) tw_name_copy(&of[API]->host.names, (uint32_t)p.part[i].detail, name, sizeof name);
    TW_CHECK_STR("compile_schema", name);
}

static void wait_for_gil(uint64_t from, uint64_t to, const char *in) {
    tw_host *host = &of[OF_ENGINE]->host;
    const tw_host_span s = {0, from, to, tw_span_what(TW_SPAN_GIL, 0, TW_SAMPLED),
                            tw_name_intern(&host->names, in, strlen(in)), 0, {0, 0}};
    tw_span_add(&host->by_watchdog, &s);
}

TW_TEST(all_places_that_waited_for_the_interpreter_lock_count) {
    (void)thread_with_steps();
    const uint64_t k0 = warm(), k1 = step(120 * MS);
    wait_for_gil(k1 - 115 * MS, k1 - 75 * MS, "schedule");
    wait_for_gil(k1 - 75 * MS, k1 - 35 * MS, "update_from_output");
    wait_for_gil(k1 - 35 * MS, k1 - 5 * MS, "process_input");
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(110 * MS + 30 * MS / 16, part_of(&p, TW_DELAY_GIL, OF_ENGINE)); /* none goes on into the one after it */
}

TW_TEST(a_wait_for_the_interpreter_lock_ends_with_its_step) {
    tw_host_track *t = thread_with_steps();
    const uint64_t k0 = warm(), k1 = step(800 * MS), k2 = step(50 * MS);
    wait_for_gil(k1 - 800 * MS, k1 - 5 * MS, "schedule"); /* by its length the next sample was due 100 ms later */
    point(t, k1 - 4 * MS, 0);
    point(t, k2, 0);
    tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(796 * MS, part_of(&p, TW_DELAY_GIL, OF_ENGINE));
    p = explain(k1, k2);
    TW_CHECK_EQ(0, part_of(&p, TW_DELAY_GIL, OF_ENGINE));
}

/* Steps of STEP, of which each computes for 9 ms and sleeps for 1; a step is looked at when STEP has passed. */
static uint64_t warm_with_sleeps(tw_host_track *t) {
    uint64_t key = 0;
    for (uint64_t i = 1; i <= 100; ++i) {
        key = step(0);
        computed_by(t, key, i * 9 * MS);
    }
    tw_store(&t->step_limit_ns, tw_host_step_limit(STEP));
    TW_CHECK_EQ(STEP, tw_host_step_usual(t->step_limit_ns));
    of[OF_ENGINE]->host.facts.knowledge[TW_HOST_SCHEDSTAT] = TW_KNOWN + 1;
    return key;
}

static void sampled(tw_span_kind kind, uint64_t from, uint64_t to) {
    const tw_host_span s = {0, from, to, tw_span_what(kind, 0, TW_SAMPLED), 0, 0, {0, 0}};
    tw_span_add(&of[OF_ENGINE]->host.by_watchdog, &s);
}

TW_TEST(a_wait_for_the_interpreter_lock_while_the_process_is_throttled_is_the_quota_s) {
    (void)thread_with_steps();
    const uint64_t k0 = warm(), k1 = step(80 * MS);
    sampled(TW_SPAN_GIL, k1 - 80 * MS, k1);
    throttled(OF_ENGINE, k0, k1, 120 * MS); /* of 90 ms 60 on each CPU */
    const tw_parts p = explain(k0, k1);
    TW_CHECK_NEAR(53.3e6, part_of(&p, TW_DELAY_THROTTLED, OF_ENGINE), 1e5);
    TW_CHECK_NEAR(26.7e6, part_of(&p, TW_DELAY_GIL, OF_ENGINE), 1e5);
}

/* One more step, of 90 ms, in which it sleeps for 71. */
static uint64_t sleeps_through(tw_host_track *t) {
    const uint64_t key = step(80 * MS);
    computed_by(t, key, 919 * MS);
    return key;
}

static uint64_t gil_of(const tw_parts *p) { return part_of(p, TW_DELAY_GIL, OF_ENGINE); }

/* 34 ms of samples of the lock, and so many others, and 2 ms more. */
static tw_parts with_gil_and(tw_span_kind other, uint64_t ns) {
    tw_host_track *t = thread_with_steps();
    const uint64_t k0 = warm_with_sleeps(t), k1 = sleeps_through(t);
    sampled(TW_SPAN_GIL, k0 + 15 * MS, k0 + 47 * MS);
    sampled(other, k0 + 50 * MS, k0 + 50 * MS + ns);
    return explain(k0, k1);
}

TW_TEST(a_step_s_sleep_is_a_wait_for_the_interpreter_lock_where_samples_show_no_other) {
    const tw_parts p = with_gil_and(TW_SPAN_RUN, 18 * MS); /* it ran for 19 */
    TW_CHECK_NEAR(70e6, (double)gil_of(&p), 2e5);
    TW_CHECK_NEAR(10e6, (double)part_of(&p, TW_DELAY_DEVICE, OF_ENGINE), 2e5);
}

TW_TEST(samples_share_out_a_sleep) {
    const tw_parts p = with_gil_and(TW_SPAN_SLEEP, 32 * MS);
    TW_CHECK_EQ(35 * MS + 35 * MS / 20, gil_of(&p));
}

/* 34 and 40 ms of samples are more than the 70 that it slept beyond the usual: that 1 ms is in those of the others. */
TW_TEST(what_it_sleeps_usually_is_no_share_of_what_it_sleeps_beyond) {
    const tw_parts p = with_gil_and(TW_SPAN_SLEEP, 40 * MS);
    const double waited = 70e6 * 34 / (34 + 39);
    TW_CHECK_NEAR(waited + waited / 20, gil_of(&p), 1e4);
}

/* It computes for 10 ms more than is usual, of which samples have nothing. */
TW_TEST(what_a_thread_computes_unseen_while_it_waits_for_the_interpreter_lock_is_that_wait) {
    const tw_parts p = with_gil_and(TW_SPAN_GIL, 20 * MS);
    TW_CHECK_EQ(70 * MS + 70 * MS / 20, gil_of(&p));
    TW_CHECK_EQ(10 * MS - 70 * MS / 20, part_of(&p, TW_DELAY_DEVICE, OF_ENGINE));
}

TW_TEST(what_it_is_seen_to_compute_meanwhile_is_none) {
    const tw_parts p = with_gil_and(TW_SPAN_RUN, 8 * MS); /* 9 ms with what goes on until the next sample; 9 more are usual */
    TW_CHECK_EQ(71 * MS, gil_of(&p));
}

TW_TEST(what_was_seen_to_run_beyond_its_counters_did_not_sleep) {
    const tw_parts p = with_gil_and(TW_SPAN_RUN, 32 * MS); /* 34 of 19: 15 ms were stolen */
    TW_CHECK_EQ(55 * MS, gil_of(&p));
}

TW_TEST(a_sleep_that_may_be_a_wait_for_a_cpu_has_what_was_sampled) {
    tw_host_track *t = thread_with_steps();
    const uint64_t k0 = warm_with_sleeps(t), k1 = sleeps_through(t);
    of[OF_ENGINE]->host.facts.knowledge[TW_HOST_SCHEDSTAT] = TW_USELESS + 1;
    sampled(TW_SPAN_GIL, k0 + 15 * MS, k0 + 47 * MS);
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(34 * MS, gil_of(&p));
}

TW_TEST(a_sample_goes_on_until_a_stop_and_not_into_it) {
    tw_host_track *t = thread_with_steps();
    const uint64_t k0 = warm_with_sleeps(t), k1 = step(80 * MS);
    sampled(TW_SPAN_GIL, k0 + 15 * MS, k0 + 47 * MS); /* 2 ms more, but for the stop */
    stop(OF_ENGINE, k0 + 48 * MS, k0 + 58 * MS);
    sampled(TW_SPAN_GIL, k0 + 58 * MS, k0 + 60 * MS); /* 1 ms more */
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(36 * MS, gil_of(&p));
    TW_CHECK_EQ(10 * MS, part_of(&p, TW_DELAY_STOPPED, OF_ENGINE));
}

TW_TEST(few_samples_of_a_sleep_are_no_more_than_themselves) {
    tw_host_track *t = thread_with_steps();
    const uint64_t k0 = warm_with_sleeps(t), k1 = sleeps_through(t);
    sampled(TW_SPAN_GIL, k0 + 15 * MS, k0 + 31 * MS); /* 1 ms more */
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(17 * MS, gil_of(&p));
}

/* One more step, of 40 ms, which begins 50 ms after the one before; in it it sleeps for 31. */
static uint64_t begins_late(uint64_t k0) {
    const uint64_t key = step(80 * MS);
    const tw_host_point p = {.at_ns = key, .cpu_ns = 909 * MS, .wake_ns = k0 + 50 * MS};
    tw_host_track_add(&of[OF_ENGINE]->host.track[0], &p);
    return key;
}

TW_TEST(sleep_before_a_step_begins_is_not_its_wait) {
    const uint64_t k0 = warm_with_sleeps(thread_with_steps()), k1 = begins_late(k0);
    sampled(TW_SPAN_GIL, k0 + 60 * MS, k0 + 76 * MS); /* 1 ms more */
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(30 * MS, gil_of(&p)); /* 40 since it began, 9 on a CPU, 1 usual */
}

TW_TEST(what_was_sampled_before_a_step_begins_has_no_share_in_its_sleep) {
    const uint64_t k0 = warm_with_sleeps(thread_with_steps()), k1 = begins_late(k0);
    sampled(TW_SPAN_SLEEP, k0 + 10 * MS, k0 + 42 * MS);
    sampled(TW_SPAN_GIL, k0 + 60 * MS, k0 + 76 * MS); /* 1 ms more */
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(30 * MS, gil_of(&p));
}

TW_TEST(a_wait_before_a_step_ends_as_that_begins) {
    const uint64_t k0 = warm_with_sleeps(thread_with_steps()), k1 = begins_late(k0);
    sampled(TW_SPAN_GIL, k0 + 10 * MS, k0 + 49 * MS); /* the next sample was due 5 ms later */
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(40 * MS, gil_of(&p));
}

TW_TEST(sleep_of_the_step_before_is_not_its_wait) {
    tw_host_track *t = thread_with_steps();
    const uint64_t k0 = warm_with_sleeps(t), k1 = sleeps_through(t), k2 = step(30 * MS);
    computed_by(t, k2, 937 * MS); /* 22 ms of sleep */
    sampled(TW_SPAN_GIL, k1 + 10 * MS, k1 + 26 * MS);
    const tw_parts p = explain(k0, k2);
    TW_CHECK_NEAR(21e6, (double)gil_of(&p), 1e6); /* the step before is one of those that have the usual */
}

TW_TEST(a_step_that_goes_on_has_what_was_sampled) {
    tw_host_track *t = thread_with_steps();
    const uint64_t k0 = warm_with_sleeps(t), k1 = step(80 * MS);
    sampled(TW_SPAN_GIL, k0 + 15 * MS, k0 + 47 * MS);
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(34 * MS, gil_of(&p));
}

TW_TEST(a_stop_is_a_sleep_for_another_reason) {
    tw_host_track *t = thread_with_steps();
    const uint64_t k0 = warm_with_sleeps(t), k1 = sleeps_through(t);
    sampled(TW_SPAN_GIL, k0 + 15 * MS, k0 + 31 * MS);
    stop(OF_ENGINE, k0 + 50 * MS, k0 + 80 * MS);
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(30 * MS, part_of(&p, TW_DELAY_STOPPED, OF_ENGINE));
    TW_CHECK_EQ(42 * MS, gil_of(&p)); /* and 10 ms more than is usual on a CPU, of which that part is waiting */
}

TW_TEST(a_stop_in_a_later_step_is_no_sleep_of_this_one) {
    tw_host_track *t = thread_with_steps();
    const uint64_t k0 = warm_with_sleeps(t), k1 = sleeps_through(t), k2 = step(30 * MS);
    computed_by(t, k2, 928 * MS);
    sampled(TW_SPAN_GIL, k0 + 15 * MS, k0 + 47 * MS);
    stop(OF_ENGINE, k1 + 5 * MS, k1 + 35 * MS);
    const tw_parts p = explain(k0, k2);
    TW_CHECK_EQ(30 * MS, part_of(&p, TW_DELAY_STOPPED, OF_ENGINE));
    TW_CHECK_NEAR(73.5e6, (double)gil_of(&p), 1e6); /* as above */
}

/* Steps of two kinds in turn: of STEP, all on a CPU; of 2 * STEP, of which all but 1 ms sleeps. */
TW_TEST(what_is_usual_is_that_of_steps_of_its_kind) {
    tw_host_track *t = thread_with_steps();
    uint64_t k0 = warm_with_sleeps(t), cpu = 900 * MS;
    for (int i = 0; i < 40; ++i) {
        const tw_host_point one = {.at_ns = step(0), .cpu_ns = cpu += 10 * MS, .step = 1};
        tw_host_track_add(t, &one);
        k0 = step(10 * MS);
        const tw_host_point other = {.at_ns = k0, .cpu_ns = cpu += MS, .step = 2};
        tw_host_track_add(t, &other);
    }
    const uint64_t k1 = step(60 * MS);
    const tw_host_point slow = {.at_ns = k1, .cpu_ns = cpu + MS, .step = 2};
    tw_host_track_add(t, &slow);
    sampled(TW_SPAN_GIL, k0 + 30 * MS, k0 + 46 * MS); /* 1 ms more */
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(50 * MS, gil_of(&p)); /* 69 less 19 */
}

/* ---- steal ---- */

static void never_slept(tw_host_track *t, uint64_t at, uint64_t cpu) {
    const tw_host_point p = {.at_ns = at, .cpu_ns = cpu, .switches = 5};
    tw_host_track_add(t, &p);
}

static uint64_t warm_with_steal(tw_host_track *t, uint64_t stolen) {
    uint64_t key = 0;
    for (uint64_t i = 1; i <= 100; ++i) {
        key = step(0);
        never_slept(t, key, i * (STEP - stolen));
    }
    return key;
}

TW_TEST(a_stolen_cpu_is_waited_for) {
    tw_host_track *t = thread_with_steps();
    const uint64_t k0 = warm_with_steal(t, 0), k1 = step(80 * MS);
    never_slept(t, k1, 1030 * MS);
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(60 * MS, part_of(&p, TW_DELAY_CPU, OF_ENGINE));
}

TW_TEST(what_is_always_stolen_is_usual) {
    tw_host_track *t = thread_with_steps();
    const uint64_t k0 = warm_with_steal(t, MS), k1 = step(80 * MS);
    never_slept(t, k1, 981 * MS); /* 9 of 90 */
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(0, part_of(&p, TW_DELAY_CPU, OF_ENGINE));
}

TW_TEST(all_cpus_stolen_at_once_are_one_stop) {
    tw_host_track *t = thread_with_steps();
    const uint64_t k0 = warm_with_steal(t, 0), k1 = step(80 * MS);
    never_slept(t, k1, 1030 * MS);
    stop(OF_ENGINE, k0 + 10 * MS, k0 + 60 * MS);
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(50 * MS, part_of(&p, TW_DELAY_STOPPED, OF_ENGINE));
    TW_CHECK_EQ(10 * MS, part_of(&p, TW_DELAY_CPU, OF_ENGINE));
}

TW_TEST(a_pause_is_no_wait_for_the_interpreter_lock) {
    (void)thread_with_steps();
    const uint64_t k0 = warm(), k1 = step(120 * MS);
    tw_pause_begin(&of[OF_ENGINE]->pause, TW_CAUSE_GC2, k1 - 110 * MS);
    tw_pause_end(&of[OF_ENGINE]->pause, k1 - 30 * MS, NULL, NULL);
    wait_for_gil(k1 - 110 * MS, k1 - 10 * MS, "schedule");
    wait_for_gil(k1 - 10 * MS, k1, "schedule"); /* 30 ms more */
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(30 * MS, part_of(&p, TW_DELAY_GIL, OF_ENGINE));
}

/* As warm(), with a millisecond's wait for a CPU in each step; *delay: all of them so far. */
static uint64_t warm_with_waits(tw_host_track *t, uint64_t *delay) {
    uint64_t key = 0;
    for (int i = 0; i < 100; ++i) {
        key = step(0);
        point(t, key, *delay += MS);
    }
    return key;
}

TW_TEST(waits_for_a_cpu_count_beyond_the_usual) {
    tw_host_track *t = thread_with_steps();
    uint64_t delay = 0;
    const uint64_t k0 = warm_with_waits(t, &delay), k1 = step(50 * MS);
    point(t, k1, delay += 36 * MS); /* in 60 ms, in which 6 are usual */
    const tw_parts p = explain(k0, k1);
    TW_CHECK_NEAR(30e6, part_of(&p, TW_DELAY_CPU, OF_ENGINE), 0.1e6);
    TW_CHECK_NEAR(20e6, part_of(&p, TW_DELAY_DEVICE, OF_ENGINE), 0.1e6);
}

TW_TEST(waits_for_a_cpu_that_go_on_for_a_second_are_not_usual_yet) {
    tw_host_track *t = thread_with_steps();
    uint64_t delay = 0, k0 = warm_with_waits(t, &delay), k1 = k0;
    for (int i = 0; i < 10; i++) {
        k0 = k1, k1 = step(90 * MS);
        point(t, k1, delay += 60 * MS); /* in 100 ms, in which 10 are usual */
    }
    const tw_parts p = explain(k0, k1);
    TW_CHECK_NEAR(50e6, part_of(&p, TW_DELAY_CPU, OF_ENGINE), 0.1e6);
}

TW_TEST(idle_time_between_steps_makes_no_wait_for_a_cpu_unusual) {
    tw_host_track *t = thread_with_steps();
    uint64_t delay = 0, k0 = warm_with_waits(t, &delay);
    now += 10000 * MS;
    for (int i = 0; i < 100; i++) {
        k0 = step(0);
        const tw_host_point p = {.at_ns = k0, .run_delay_ns = delay += MS, .wake_ns = k0 - STEP};
        tw_host_track_add(t, &p);
    }
    const uint64_t k1 = step(10 * MS);
    point(t, k1, delay += 2 * MS);
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(0, part_of(&p, TW_DELAY_CPU, OF_ENGINE));
}

static bool spins;

static void *spin(void *cpus) {
    TW_REQUIRE(sched_setaffinity(0, sizeof(cpu_set_t), cpus) == 0);
    while (__atomic_load_n(&spins, __ATOMIC_RELAXED)) {}
    return NULL;
}

/* The calling thread shares a CPU with another one until it has waited for that for so long. False: no counter shows it. */
static bool wait_for_cpu(uint64_t thread, uint64_t ns) {
    cpu_set_t before, one;
    pthread_t other;
    const uint64_t until = tw_thread_run_delay_ns(thread) + ns;
    if (access("/proc/self/schedstat", R_OK) != 0) return false;
    TW_REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    spins = true;
    TW_REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0 && pthread_create(&other, NULL, spin, &one) == 0);
    while (tw_thread_run_delay_ns(thread) < until) {}
    __atomic_store_n(&spins, false, __ATOMIC_RELAXED);
    pthread_join(other, NULL);
    return sched_setaffinity(0, sizeof before, &before) == 0;
}

/* The calling thread is the engine's: steps with points that counted so much of its waits for a CPU, then a token that the
 * API process has 200 ms late. */
static tw_parts explain_sent_by_this_thread(uint64_t counted_ns) {
    tw_host *host = &of[OF_ENGINE]->host;
    of[OF_ENGINE]->header.pid_namespace = tw_process_namespace();
    tw_host_track *t = &host->track[tw_host_take_steps(host, (uint64_t)syscall(SYS_gettid))];
    uint64_t k0 = 0;
    now = tw_now_ns() - 202 * MS - 101 * STEP; /* the token has come by the time that the thread's counter is read */
    for (int i = 0; i < 100; ++i) point(t, k0 = step(0), counted_ns);
    const uint64_t k1 = step(0);
    point(t, k1 + 1000, counted_ns);
    return explain_sent(k0, k1, 200 * MS);
}

/* A thread that waits for a CPU after its step's end has no point yet when the token arrives. */
TW_TEST(an_engine_s_thread_that_waits_for_a_cpu_before_it_sends_delays_what_it_sends) {
    const uint64_t thread = (uint64_t)syscall(SYS_gettid);
    if (!wait_for_cpu(thread, 30 * MS)) return;
    const uint64_t before = tw_thread_run_delay_ns(thread) - 30 * MS;
    const tw_parts p = explain_sent_by_this_thread(before);
    const uint64_t waited = tw_thread_run_delay_ns(thread) - before;
    TW_CHECK(part_of(&p, TW_DELAY_CPU, OF_ENGINE) > 0 && part_of(&p, TW_DELAY_CPU, OF_ENGINE) <= waited);
    TW_CHECK_EQ(200 * MS, part_of(&p, TW_DELAY_CPU, OF_ENGINE) + part_of(&p, TW_DELAY_TRANSPORT, 0));
}

TW_TEST(an_engine_that_does_not_count_its_waits_for_a_cpu_has_none_before_it_sends) {
    if (!wait_for_cpu((uint64_t)syscall(SYS_gettid), 30 * MS)) return;
    const tw_parts p = explain_sent_by_this_thread(0);
    TW_CHECK_EQ(200 * MS, part_of(&p, TW_DELAY_TRANSPORT, 0));
}

TW_TEST(the_usual_wait_for_a_cpu_is_no_cause) {
    tw_host_track *t = thread_with_steps();
    uint64_t delay = 0;
    const uint64_t k0 = warm_with_waits(t, &delay), k1 = step(10 * MS);
    point(t, k1, delay += 2 * MS);
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(0, part_of(&p, TW_DELAY_CPU, OF_ENGINE));
    TW_CHECK_NEAR(10e6, part_of(&p, TW_DELAY_DEVICE, OF_ENGINE), 0.5e6);
}

/* ---- ranks ---- */

/* All steps so far are the same; in the latest, workers enter 5 ms after it began, and one of them so much later. */
static void enter(uint64_t k0, int late_one, uint64_t late) {
    static uint64_t mark;
    ++mark;
    for (int worker = OF_WORKER; worker <= SECOND_WORKER; ++worker) {
        tw_step_ring *ring = &of[worker]->step_ring;
        const uint64_t at = k0 + 5 * MS + (worker == late_one ? late : 0);
        tw_rank_leaves(ring, tw_rank_enters(ring, mark, tw_rank_detail((uint32_t)(worker - OF_WORKER), 0), at), at + MS);
    }
}

static uint64_t warm_with_ranks(void) {
    uint64_t key = now;
    for (int i = 0; i < 600; ++i) {
        enter(key, API, 0);
        key = step(0);
    }
    return key;
}

TW_TEST(the_others_wait_for_the_last_rank_to_enter) {
    char name[TW_NAME_TEXT] = "";
    for (int worker = OF_WORKER; worker <= SECOND_WORKER; ++worker) {
        const uint64_t k0 = warm_with_ranks(), k1 = step(200 * MS);
        enter(k0, worker, 180 * MS);
        const tw_parts p = explain(k0, k1);
        TW_CHECK_EQ(180 * MS, part_of(&p, TW_DELAY_RANK, worker));
        TW_CHECK_NEAR(20e6, part_of(&p, TW_DELAY_DEVICE, OF_ENGINE), 1e6);
        TW_CHECK_EQ(TW_DELAY_RANK, p.part[0].cause);
        TW_CHECK_EQ(TW_MEASURED, p.part[0].certainty);
        tw_name_copy(&of[API]->host.names, p.part[0].name, name, sizeof name);
        TW_CHECK_STR(worker == OF_WORKER ? "rank 0" : "rank 1", name);
    }
}

TW_TEST(what_the_last_rank_was_held_by_is_not_counted_twice) {
    const uint64_t k0 = warm_with_ranks(), k1 = step(200 * MS);
    enter(k0, SECOND_WORKER, 190 * MS);
    stop(SECOND_WORKER, k0 + 10 * MS, k0 + 110 * MS);
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(100 * MS, part_of(&p, TW_DELAY_STOPPED, SECOND_WORKER));
    TW_CHECK_EQ(90 * MS, part_of(&p, TW_DELAY_RANK, SECOND_WORKER));
}

TW_TEST(what_holds_the_engine_while_it_waits_for_a_rank_delays_nothing) {
    const uint64_t k0 = warm_with_ranks(), k1 = step(200 * MS);
    enter(k0, SECOND_WORKER, 180 * MS);
    stop(OF_ENGINE, k0 + 10 * MS, k0 + 170 * MS);
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(180 * MS, part_of(&p, TW_DELAY_RANK, SECOND_WORKER));
    TW_CHECK_EQ(20 * MS, part_of(&p, TW_DELAY_STOPPED, OF_ENGINE)); /* what is left */
}

TW_TEST(a_rank_is_late_by_no_more_than_the_token) {
    const uint64_t k0 = warm_with_ranks(), k1 = step(50 * MS);
    enter(k0, SECOND_WORKER, 54 * MS); /* of which the device hid a part */
    const tw_parts p = explain(k0, k1);
    TW_CHECK_EQ(50 * MS, part_of(&p, TW_DELAY_RANK, SECOND_WORKER));
}

TW_TEST(charges_never_exceed_what_is_late) {
    uint64_t random = 11;
    uint64_t k0 = warm_with_ranks();
    for (int round = 0; round < 500; ++round) {
        const uint64_t longer = tw_test_random_below(&random, 200 * MS), k1 = step(longer);
        enter(k0, OF_WORKER + (int)tw_test_random_below(&random, 3), tw_test_random_below(&random, 300 * MS));
        for (int process = OF_ENGINE; process <= OTHER; ++process) {
            const uint64_t from = k0 + tw_test_random_below(&random, 100 * MS);
            if (tw_test_random_below(&random, 3) == 0) stop(process, from, from + tw_test_random_below(&random, 150 * MS));
        }
        const tw_parts p = explain(k0, k1); /* checks that they sum to it */
        for (uint32_t i = 0; i < p.n; ++i) TW_REQUIRE(p.part[i].ns <= longer);
        k0 = k1;
    }
}

TW_TEST(a_rank_that_was_late_before_the_request_was_sent_delays_no_first_token) {
    uint64_t key = warm_with_ranks();
    const uint64_t arrived = key + MS, sent = arrived + 300 * MS; /* its own code ran between */
    enter(key, SECOND_WORKER, 250 * MS);
    key = step(250 * MS);
    for (int i = 0; i < 4; ++i) enter(key, API, 0), key = step(0);
    enter(key, API, 0);
    const uint64_t k1 = step(90 * MS);
    tw_own_work own = {.before_ns = sent, .slept_until_ns = sent + MS};
    const tw_part ran = {.ns = 300 * MS, .cause = TW_DELAY_OWN_CODE, .certainty = TW_MEASURED};
    tw_parts_add(&own.before, &ran);
    const tw_token_chain token = {k1, k1 + 1000, k1 + 2000};
    const tw_wait w = {.phase = TW_PHASE_TTFT, .from_ns = arrived, .to_ns = k1 + 3000, .track = -1, .token = &token,
                       .own = &own, .request = 77};
    const tw_charge d = {0};
    tw_parts p;
    TW_CHECK(tw_wait_explain(of[API], (tw_served_by){.peer_set = peers, .engine = ENGINE}, &w, &d, true, &p));
    TW_CHECK_NEAR(300e6, part_of(&p, TW_DELAY_OWN_CODE, 0), 0.1e6);
    TW_CHECK_EQ(0, part_of(&p, TW_DELAY_RANK, SECOND_WORKER));
}

/* ---- names ---- */

static uint64_t step_with_prefill_of(const char *request) {
    tw_step_ring *ring = &of[OF_ENGINE]->step_ring;
    tw_step_record s = {.requests = 5, .decode_requests = 4, .decode_tokens = 4, .prefill_requests = 1,
                        .prefill_tokens = 900, .prefill_most = 900};
    s.prefill_name = tw_request_name_write(ring, request, strlen(request));
    s.part[TW_PART_WAIT] = units(STEP + 90 * MS);
    now += STEP + 90 * MS;
    s.update_ns = s.done_ns = now;
    s.key_ns = now;
    tw_step_write(ring, &s);
    return s.key_ns;
}

TW_TEST(requests_that_delay_others_leave_room_for_other_names) {
    char request[40] = "", name[TW_NAME_TEXT] = "";
    uint64_t k0 = warm();
    for (int i = 0; i < 2000; ++i) {
        snprintf(request, sizeof request, "chatcmpl-%d", i);
        const uint64_t k1 = step_with_prefill_of(request);
        const tw_parts p = explain(k0, k1);
        TW_REQUIRE(p.n > 0 && p.part[0].cause == TW_DELAY_PREFILL);
        tw_engine_name_copy(&of[API]->step_ring, &of[API]->host, p.part[0].name, name, sizeof name);
        TW_CHECK_STR(request, name);
        k0 = k1;
    }
    TW_CHECK_EQ(0, of[API]->host.names.overflow);
    TW_CHECK(of[API]->host.names.claimed < 10);
}
