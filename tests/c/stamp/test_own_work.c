/* A first token in virtual time: what the request's own handles ran before it was ready is its own code, measured, and
 * the parts sum to the TTFT. */
#include "tailwatch/stamp/stream.h"

#include "tw_test.h"

#include <sys/syscall.h>
#include <unistd.h>

#define MS TW_NS_PER_MS
#define ENTRY (1000 * MS)
#define TASK 77

static tw_segment *g;
static tw_host_track *track;
static uint32_t number;
static tw_stream stream;
static tw_host_point now; /* of the loop's thread */

/* A request enters the app 10 ms after it arrived. The loop slept last before that. */
static void begin(void) {
    const tw_slo slo = {.ttft_ns = 10 * MS};
    TW_REQUIRE(tw_segment_create(&g, "api", 8, false, &slo, 0) == 0);
    const int taken = tw_host_take(&g->host, (uint64_t)syscall(SYS_gettid));
    TW_REQUIRE(taken >= 0);
    number = (uint32_t)taken;
    track = &g->host.track[number];
    now = (tw_host_point){.at_ns = ENTRY};
    tw_host_track_add(track, &now);
    tw_store(&track->slept_until_ns, ENTRY - MS);
    tw_store(&track->wake_ns, ENTRY - MS);
    tw_stream_open(&stream, g, ENTRY - 10 * MS, ENTRY, 0, TW_ARRIVAL_ASGI);
}

static void end(void) { tw_segment_destroy(g); }

TW_AROUND(begin, end)

static void pass(uint64_t cpu, uint64_t run_delay, uint64_t idle) {
    now.at_ns += cpu + run_delay + idle;
    now.cpu_ns += cpu;
    now.run_delay_ns += run_delay;
    now.idle_ns += idle;
    now.wake_ns = tw_load(&track->wake_ns);
    tw_host_track_add(track, &now);
}

static uint32_t name(const char *text) { return tw_name_intern(&g->host.names, text, strlen(text)); }

/* A handle of a task, as the clock of the handles notes it; request: 0 for that of none. */
static void handle_runs(const char *of, uint64_t task, uint64_t request, uint64_t cpu, uint64_t run_delay) {
    const uint64_t from = now.at_ns, to = from + cpu + run_delay;
    const tw_host_span span = {0, from, to, tw_span_what(TW_SPAN_HANDLE, number, TW_MEASURED), name(of), task,
                               {0, request}};
    tw_store(&track->handle_since_ns, from);
    tw_store(&track->handle_task, task);
    tw_span_add(&g->host.by_handle, &span);
    pass(cpu, run_delay, 0);
    if (request == stream.ordinal) tw_stream_worked(&stream, number, from, to);
    tw_store(&track->handle_since_ns, 0);
}

static void loop_sleeps(uint64_t ns) {
    const uint64_t woke = now.at_ns + ns;
    tw_store(&track->wake_ns, woke);
    if (ns >= TW_SLEPT_NS) tw_store(&track->slept_until_ns, woke);
    pass(0, 0, ns);
}

static tw_parts first_token(void) {
    tw_slow_record r;
    tw_store(&track->handle_since_ns, now.at_ns);
    tw_store(&track->handle_task, TASK);
    tw_stream_token(&stream, now.at_ns, 1, 0);
    TW_REQUIRE(g->slow_head == 1 && tw_segment_slow_read(g, 0, &r));
    TW_CHECK_EQ(now.at_ns - ENTRY + 10 * MS, tw_parts_sum(&r.parts));
    return r.parts;
}

static uint64_t part_of(const tw_parts *parts, int cause, tw_certainty certainty) {
    uint64_t ns = 0;
    for (uint32_t i = 0; i < parts->n; ++i)
        if (parts->part[i].cause == cause && parts->part[i].certainty == certainty) ns += parts->part[i].ns;
    return ns;
}

static uint64_t named(const tw_parts *parts, int cause, const char *of) {
    uint64_t ns = 0;
    for (uint32_t i = 0; i < parts->n; ++i)
        if (parts->part[i].cause == cause && parts->part[i].name == name(of)) ns += parts->part[i].ns;
    return ns;
}

TW_TEST(what_the_request_ran_before_its_token_was_ready_is_its_own) {
    handle_runs("tokenize", TASK, 1, 250 * MS, 50 * MS);
    loop_sleeps(200 * MS);
    const tw_parts p = first_token();
    TW_CHECK_EQ(250 * MS, part_of(&p, TW_DELAY_OWN_CODE, TW_MEASURED));
    TW_CHECK_EQ(250 * MS, named(&p, TW_DELAY_OWN_CODE, "tokenize"));
    TW_CHECK_EQ(50 * MS, part_of(&p, TW_DELAY_CPU, TW_MEASURED));
    TW_CHECK_EQ(200 * MS, part_of(&p, TW_DELAY_UPSTREAM, TW_MEASURED));
    TW_CHECK_EQ(10 * MS, part_of(&p, TW_DELAY_ACCEPT, TW_MEASURED));
    TW_CHECK_EQ(250 * MS, g->lost[0].delay_ns[TW_PHASE_TTFT][TW_DELAY_OWN_CODE][TW_MEASURED]);
}

/* A sample of the watchdog's names the function more closely than the handle. */
TW_TEST(a_sample_names_it) {
    const tw_host_span sample = {0, ENTRY + MS, ENTRY + 99 * MS, tw_span_what(TW_SPAN_RUN, number, TW_SAMPLED),
                                 name("encode"), 0, {0, 0}};
    tw_span_add(&g->host.by_watchdog, &sample);
    handle_runs("handler", TASK, 1, 100 * MS, 0);
    loop_sleeps(50 * MS);
    const tw_parts p = first_token();
    TW_CHECK_EQ(100 * MS, named(&p, TW_DELAY_OWN_CODE, "encode"));
}

/* By tasks that it started, in several steps, with sleeps between them, each counted once. */
TW_TEST(several_handles_of_several_tasks_are_counted_once) {
    handle_runs("handler", 55, 1, 30 * MS, 0);
    loop_sleeps(20 * MS);
    handle_runs("generate", TASK, 1, 40 * MS, 0);
    handle_runs("other", 56, 2, 60 * MS, 0);
    loop_sleeps(5 * MS);
    handle_runs("generate", TASK, 1, 7 * MS, 0); /* after the loop slept last */
    handle_runs("handler", 55, 1, 3 * MS, 0);
    loop_sleeps(MS);
    const tw_parts p = first_token();
    TW_CHECK_EQ(80 * MS, part_of(&p, TW_DELAY_OWN_CODE, TW_MEASURED));
    TW_CHECK_EQ(47 * MS, named(&p, TW_DELAY_OWN_CODE, "generate"));
    TW_CHECK_EQ(86 * MS, part_of(&p, TW_DELAY_UPSTREAM, TW_MEASURED)); /* another request's code is none of its own */
    TW_CHECK_EQ(0, part_of(&p, TW_DELAY_CALLBACK, TW_ESTIMATED));
}

TW_TEST(it_stays_known_though_the_rings_were_overwritten) {
    handle_runs("tokenize", TASK, 1, 250 * MS, 50 * MS);
    for (int i = 0; i < 2 * TW_POINTS; ++i) {
        handle_runs("other", 56, 2, MS, 0);
        loop_sleeps(3 * MS);
    }
    const tw_parts p = first_token();
    TW_CHECK_EQ(250 * MS, named(&p, TW_DELAY_OWN_CODE, "tokenize"));
    TW_CHECK_EQ(50 * MS, part_of(&p, TW_DELAY_CPU, TW_MEASURED));
}

/* The loop's clock alone: nothing is guessed. */
TW_TEST(without_the_handles_clock_it_is_upstream) {
    pass(250 * MS, 50 * MS, 0);
    loop_sleeps(200 * MS);
    const tw_parts p = first_token();
    TW_CHECK_EQ(500 * MS, part_of(&p, TW_DELAY_UPSTREAM, TW_MEASURED));
}

/* What waits beside the loop: to_thread() and the like. */
TW_TEST(what_a_thread_does_for_it_is_upstream) {
    handle_runs("handler", TASK, 1, 10 * MS, 0);
    loop_sleeps(300 * MS);
    const tw_parts p = first_token();
    TW_CHECK_EQ(10 * MS, part_of(&p, TW_DELAY_OWN_CODE, TW_MEASURED));
    TW_CHECK_EQ(300 * MS, part_of(&p, TW_DELAY_UPSTREAM, TW_MEASURED));
}

TW_TEST(a_collection_in_it_is_a_collection) {
    tw_pause_begin(&g->pause, TW_CAUSE_GC2, ENTRY + 20 * MS);
    tw_segment_pause_end(g, ENTRY + 60 * MS, NULL);
    handle_runs("tokenize", TASK, 1, 100 * MS, 0);
    loop_sleeps(200 * MS);
    const tw_parts p = first_token();
    TW_CHECK_EQ(60 * MS, part_of(&p, TW_DELAY_OWN_CODE, TW_MEASURED));
    TW_CHECK_EQ(40 * MS, part_of(&p, TW_CAUSE_GC2, TW_ESTIMATED));
    TW_CHECK_EQ(200 * MS, part_of(&p, TW_DELAY_UPSTREAM, TW_MEASURED));
}

/* Where the engine stamps its tokens: what came before the stamp. */
TW_TEST(before_the_engines_stamp_it_is_its_own_too) {
    handle_runs("tokenize", TASK, 1, 100 * MS, 0);
    loop_sleeps(50 * MS);
    const uint64_t key = now.at_ns;
    handle_runs("output", 56, 0, MS, 0);
    tw_stream_received(&stream, key, key, now.at_ns);
    const tw_parts p = first_token();
    TW_CHECK_EQ(100 * MS, named(&p, TW_DELAY_OWN_CODE, "tokenize"));
    TW_CHECK_EQ(MS, part_of(&p, TW_DELAY_OUTPUT, TW_MEASURED) + part_of(&p, TW_DELAY_CALLBACK, TW_MEASURED));
    TW_CHECK_EQ(50 * MS, part_of(&p, TW_DELAY_UNEXPLAINED, TW_MEASURED)); /* no engine's steps are known here */
}

/* And with its steps: what the request ran before the engine had it is no transport. */
TW_TEST(before_the_engine_had_the_request_it_is_no_transport) {
    const tw_step_record step = {.requests = 1, .update_ns = ENTRY + 149 * MS, .done_ns = ENTRY + 150 * MS};
    tw_stream_identify(&stream, "chatcmpl-1", 10, NULL, 0);
    handle_runs("tokenize", TASK, 1, 90 * MS, 10 * MS);
    tw_step_event_write(&g->step_ring, TW_EVENT_QUEUED, stream.request, ENTRY + 105 * MS, ENTRY + 120 * MS, 0);
    tw_step_write(&g->step_ring, &step);
    loop_sleeps(50 * MS);
    tw_stream_received(&stream, now.at_ns, now.at_ns, now.at_ns);
    const tw_parts p = first_token();
    TW_CHECK_EQ(90 * MS, part_of(&p, TW_DELAY_OWN_CODE, TW_MEASURED));
    TW_CHECK_EQ(10 * MS, part_of(&p, TW_DELAY_CPU, TW_MEASURED));
    TW_CHECK_EQ(15 * MS, part_of(&p, TW_DELAY_QUEUED, TW_MEASURED));
    TW_CHECK_EQ(30 * MS, part_of(&p, TW_DELAY_OWN_PREFILL, TW_MEASURED));
    TW_CHECK_EQ(5 * MS, part_of(&p, TW_DELAY_TRANSPORT, TW_MEASURED));
    TW_CHECK_EQ(0, g->drops[TW_DROP_UNJOINED]);
}

/* Handles of earlier than the app's entry, and of later than the first token, are not its. */
TW_TEST(it_counts_from_entry_to_the_first_token) {
    tw_parts parts = {0};
    pass(10 * MS, 0, 0);
    tw_stream_worked(&stream, number, ENTRY - 5 * MS, ENTRY + 10 * MS);
    TW_CHECK_EQ(10 * MS, tw_own_work_by(&stream.own, now.at_ns, &parts));
    TW_CHECK_EQ(10 * MS, tw_parts_sum(&parts));
    TW_CHECK_EQ(0, tw_own_work_by(&stream.own, ENTRY, &parts)); /* it had not ended */
    (void)first_token();
    const uint64_t from = now.at_ns;
    pass(20 * MS, 0, 0);
    tw_stream_worked(&stream, number, from, now.at_ns);
    TW_CHECK_EQ(10 * MS, tw_own_work_by(&stream.own, now.at_ns, &parts));
}

