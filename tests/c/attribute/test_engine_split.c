/* The split of a wait in the engine: which cause gets what, and that the parts of any wait sum to its excess. */
#include "tailwatch/attribute/engine_split.h"

#include <stdlib.h>

#include "tw_test.h"

#define MS UINT64_C(1000000)
#define T0 (1000 * MS)
#define STEP (10 * MS)     /* a step of decoding, of which */
#define HOST (MS / 2)      /* each of input, schedule and update takes this */
#define TYPICAL STEP

static tw_step_ring *ring;
static uint64_t now;

static void begin(void) {
    ring = calloc(1, sizeof *ring);
    TW_REQUIRE(ring != NULL);
    now = T0;
}
static void end(void) { free(ring); }
TW_AROUND(begin, end)

static uint32_t units(uint64_t ns) { return (uint32_t)(ns / TW_OFFSET_UNIT_NS); }

static tw_step_record decoding(void) {
    tw_step_record step = {.requests = 8, .decode_requests = 8, .decode_tokens = 8};
    step.part[TW_PART_INPUT] = step.part[TW_PART_SCHEDULE] = step.part[TW_PART_UPDATE] = units(HOST);
    step.part[TW_PART_WAIT] = units(STEP - 3 * HOST);
    return step;
}

/* Ends the step where its parts end. Returns the stamp of its outputs. */
static uint64_t write(tw_step_record step) {
    uint64_t length = step.paused;
    for (int i = 0; i < TW_STEP_PARTS; ++i) length += step.part[i];
    now += length * TW_OFFSET_UNIT_NS;
    step.done_ns = now;
    step.update_ns = now - (uint64_t)step.part[TW_PART_UPDATE] * TW_OFFSET_UNIT_NS;
    step.key_ns = now - 1000;
    tw_step_write(ring, &step);
    return step.key_ns;
}

static tw_step_record longer(int part, uint64_t by) {
    tw_step_record step = decoding();
    step.part[part] += units(by);
    return step;
}

static tw_step_record with_prefill(uint32_t tokens, uint64_t by) {
    tw_step_record step = longer(TW_PART_WAIT, by);
    step.prefill_tokens = step.prefill_most = tokens;
    step.prefill_requests = 1;
    step.requests++;
    step.prefill_name = tw_request_name_write(ring, "chatcmpl-big", 12);
    return step;
}

/* The engine has decoded for a while, and met prefill: 0.1 ms a token. Returns the last stamp. */
static uint64_t warm(void) {
    uint64_t key = 0;
    for (uint32_t i = 0; i < 400; ++i) {
        const uint32_t tokens = 100 + 100 * (i % 7);
        key = write(i % 10 == 5 ? with_prefill(tokens, tokens * MS / 10) : decoding());
    }
    return key;
}

static uint64_t of(const tw_parts *parts, tw_delay_cause cause) {
    uint64_t ns = 0;
    for (uint32_t i = 0; i < parts->n; ++i) ns += parts->part[i].cause == cause ? parts->part[i].ns : 0;
    return ns;
}

static tw_parts split_of(uint64_t k0, uint64_t k1, uint64_t request) {
    tw_parts parts = {0};
    TW_REQUIRE(tw_engine_split(ring, k0, k1, request, TYPICAL, 0, TYPICAL, &parts));
    const uint64_t excess = k1 - k0 > TYPICAL ? k1 - k0 - TYPICAL : 0;
    TW_CHECK_EQ(excess, tw_parts_sum(&parts));
    return parts;
}

TW_TEST(a_usual_step_is_split_into_nothing) {
    const uint64_t before = warm(), key = write(decoding());
    const tw_parts parts = split_of(before, key, 1);
    TW_CHECK(tw_parts_sum(&parts) < 100);
}

TW_TEST(prefill_of_another_request_has_its_name_and_tokens) {
    const uint64_t before = warm(), key = write(with_prefill(900, 90 * MS));
    const tw_parts parts = split_of(before, key, 1);
    TW_CHECK_NEAR(90e6, of(&parts, TW_DELAY_PREFILL), 5e6);
    char name[64];
    TW_REQUIRE(parts.part[0].cause == TW_DELAY_PREFILL);
    TW_CHECK_EQ(TW_ESTIMATED, parts.part[0].certainty);
    TW_CHECK_EQ(900, parts.part[0].detail);
    tw_engine_name_copy(ring, NULL, parts.part[0].name, name, sizeof name);
    TW_CHECK_STR("chatcmpl-big", name);
}

TW_TEST(the_first_prefill_ever_is_charged_without_a_model) {
    uint64_t before = 0;
    for (int i = 0; i < 50; ++i) before = write(decoding());
    const uint64_t key = write(with_prefill(900, 90 * MS));
    const tw_parts parts = split_of(before, key, 1);
    TW_CHECK_NEAR(90e6, of(&parts, TW_DELAY_PREFILL), 5e6);
}

TW_TEST(what_the_model_does_not_give_to_prefill_is_the_device_s) {
    const uint64_t before = warm(), key = write(with_prefill(100, 60 * MS));
    const tw_parts parts = split_of(before, key, 1);
    TW_CHECK_NEAR(10e6, of(&parts, TW_DELAY_PREFILL), 3e6);
    TW_CHECK_NEAR(50e6, of(&parts, TW_DELAY_DEVICE), 3e6);
}

TW_TEST(prefill_larger_than_what_was_seen_is_charged_without_a_model) {
    uint64_t before = warm();
    for (int i = 0; i < 2; ++i) {
        const uint64_t key = write(with_prefill(9000, 2000 * MS)); /* a line through the others has 900 */
        const tw_parts parts = split_of(before, key, 1);
        TW_CHECK_NEAR(2000e6, of(&parts, TW_DELAY_PREFILL), 5e6);
        before = key;
    }
}

/* Eight steps make the line, eight more how far they are off it. */
TW_TEST(prefill_of_which_few_steps_were_seen_is_charged_without_a_model) {
    uint64_t before = 0;
    for (int i = 0; i < 50; ++i) before = write(decoding());
    for (int i = 0; i < 40; ++i) {
        const uint64_t by = (i % 2 == 0 ? 80 : 120) * MS, key = write(with_prefill(1000, by));
        const tw_parts parts = split_of(before, key, 1);
        TW_CHECK_NEAR((double)by, of(&parts, TW_DELAY_PREFILL), 5e6);
        before = key;
    }
    const uint64_t key = write(with_prefill(1000, 400 * MS));
    const tw_parts parts = split_of(before, key, 1);
    TW_CHECK(of(&parts, TW_DELAY_DEVICE) > 200 * MS);
}

TW_TEST(prefill_smaller_than_all_that_was_seen_costs_less) {
    uint64_t before = warm();
    for (int i = 0; i < 1000; ++i) before = write(i % 2 == 0 ? decoding() : with_prefill(4096, 400 * MS));
    const uint64_t key = write(with_prefill(40, 300 * MS));
    const tw_parts parts = split_of(before, key, 1);
    TW_CHECK(of(&parts, TW_DELAY_PREFILL) < 10 * MS);
}

/* A line through costs that rise faster than the tokens lies below zero for a few. */
TW_TEST(prefill_of_a_few_tokens_costs_something) {
    uint64_t before = warm();
    for (int i = 0; i < 1000; ++i)
        before = write(i % 2 == 0 ? decoding() : i % 4 == 1 ? with_prefill(1000, 60 * MS) : with_prefill(4000, 600 * MS));
    uint64_t key = write(with_prefill(100, 15 * MS));
    tw_parts parts = split_of(before, key, 1);
    TW_CHECK_NEAR(15e6, of(&parts, TW_DELAY_PREFILL), 2e6);
    before = key;
    key = write(with_prefill(380, 40 * MS)); /* the line is above zero, and far below the average */
    parts = split_of(before, key, 1);
    TW_CHECK_NEAR(40e6, of(&parts, TW_DELAY_PREFILL), 2e6);
    before = key;
    key = write(with_prefill(1000, 160 * MS)); /* one of those that make the line */
    parts = split_of(before, key, 1);
    TW_CHECK_NEAR(60e6, of(&parts, TW_DELAY_PREFILL), 15e6);
}

TW_TEST(what_steps_with_prefill_are_usually_off_the_line_is_prefill) {
    uint64_t before = warm();
    for (int i = 0; i < 90; ++i) { /* behind a long context a token costs more: 70, 100 or 130 ms */
        const uint64_t by = (70 + 30 * (i % 3)) * MS, key = write(with_prefill(1000, by));
        const tw_parts parts = split_of(before, key, 1);
        if (i > 30) TW_CHECK_NEAR((double)by, of(&parts, TW_DELAY_PREFILL), 2e6);
        before = key;
    }
    const uint64_t key = write(with_prefill(1000, 500 * MS));
    const tw_parts parts = split_of(before, key, 1);
    TW_CHECK_NEAR(140e6, of(&parts, TW_DELAY_PREFILL), 10e6);
    TW_CHECK_NEAR(360e6, of(&parts, TW_DELAY_DEVICE), 10e6);
}

TW_TEST(host_parts_of_a_step_are_measured_and_named) {
    for (int part = 0; part < TW_STEP_PARTS; ++part) {
        if (part == TW_PART_WAIT || part == TW_PART_DISPATCH) continue;
        const uint64_t before = warm(), key = write(longer(part, 30 * MS));
        const tw_parts parts = split_of(before, key, 1);
        TW_CHECK_NEAR(30e6, of(&parts, TW_DELAY_ENGINE_HOST), 0.1e6);
        TW_CHECK_EQ(TW_MEASURED, parts.part[0].certainty);
        char name[64];
        tw_engine_name_copy(ring, NULL, parts.part[0].name, name, sizeof name);
        TW_CHECK_STR(tw_step_part_name(part), name);
    }
}

TW_TEST(a_slow_device_is_a_residue) {
    const uint64_t before = warm(), key = write(longer(TW_PART_WAIT, 40 * MS));
    const tw_parts parts = split_of(before, key, 1);
    TW_CHECK_NEAR(40e6, of(&parts, TW_DELAY_DEVICE), 1e6);
}

TW_TEST(a_pause_that_is_accounted_for_is_in_no_part) {
    const uint64_t before = warm();
    tw_step_record step = decoding();
    step.paused = units(50 * MS);
    const uint64_t key = write(step);
    tw_parts parts = {0};
    TW_CHECK(tw_engine_split(ring, before, key, 1, TYPICAL, 0, TYPICAL + 50 * MS, &parts));
    TW_CHECK(tw_parts_sum(&parts) < 100);
}

TW_TEST(a_compilation_is_measured_and_not_the_device_s) {
    const uint64_t before = warm();
    const uint64_t began = now + 2 * MS, kernel = tw_request_name_write(ring, "attention_kernel", 16);
    tw_step_event_write(ring, TW_EVENT_COMPILED, 0, began, began + 300 * MS, kernel);
    const uint64_t key = write(longer(TW_PART_WAIT, 320 * MS));
    const tw_parts parts = split_of(before, key, 1);
    TW_CHECK_EQ(300 * MS, of(&parts, TW_DELAY_JIT));
    TW_CHECK_EQ(TW_MEASURED, parts.part[0].certainty);
    char name[64];
    tw_engine_name_copy(ring, NULL, parts.part[0].name, name, sizeof name);
    TW_CHECK_STR("attention_kernel", name);
    TW_CHECK_NEAR(20e6, of(&parts, TW_DELAY_DEVICE), 1e6);
    const tw_parts later = split_of(key, write(longer(TW_PART_WAIT, 20 * MS)), 1);
    TW_CHECK_EQ(0, of(&later, TW_DELAY_JIT));
}

TW_TEST(compilations_side_by_side_count_once) {
    const uint64_t before = warm(), began = now + 2 * MS;
    tw_step_event_write(ring, TW_EVENT_COMPILED, 0, began + 50 * MS, began + 90 * MS, tw_request_name_write(ring, "b", 1));
    tw_step_event_write(ring, TW_EVENT_COMPILED, 0, began, began + 100 * MS, tw_request_name_write(ring, "a", 1));
    tw_step_event_write(ring, TW_EVENT_COMPILED, 0, began + 80 * MS, began + 120 * MS, tw_request_name_write(ring, "c", 1));
    const tw_parts parts = split_of(before, write(longer(TW_PART_WAIT, 200 * MS)), 1);
    TW_CHECK_EQ(120 * MS, of(&parts, TW_DELAY_JIT));
    TW_CHECK_NEAR(80e6, of(&parts, TW_DELAY_DEVICE), 1e6);
}

TW_TEST(a_preempted_request_is_late_by_its_whole_absence) {
    const uint64_t before = warm(), victim = tw_request_hash("victim", 6);
    tw_step_event_write(ring, TW_EVENT_PREEMPTED, victim, now + 1, now + 1, 0);
    uint64_t key = 0;
    for (int i = 0; i < 290; ++i) key = write(i % 20 == 0 ? with_prefill(500, 50 * MS) : decoding());
    const tw_parts parts = split_of(before, key, victim);
    TW_CHECK_EQ(tw_parts_sum(&parts), of(&parts, TW_DELAY_PREEMPTED));
    TW_CHECK_EQ(TW_MEASURED, parts.part[0].certainty);
    TW_CHECK_EQ(289, parts.part[0].detail);
    const tw_parts other = split_of(before, key, tw_request_hash("other", 5));
    TW_CHECK_EQ(0, of(&other, TW_DELAY_PREEMPTED));
}

TW_TEST(a_step_of_prefill_alone_before_its_own_is_measured) {
    const uint64_t before = warm();
    tw_step_record alone = with_prefill(2000, 200 * MS);
    alone.decode_requests = alone.decode_tokens = 0;
    alone.requests = 1;
    write(alone);
    const uint64_t key = write(decoding());
    const tw_parts parts = split_of(before, key, 1);
    TW_CHECK_NEAR(210e6, of(&parts, TW_DELAY_PREFILL), 1e6);
    TW_CHECK_EQ(TW_MEASURED, parts.part[0].certainty);
}

/* An overlapping loop: the forward of a prompt begins before the step before it is answered, and may keep the host. */
TW_TEST(a_prompt_that_is_begun_in_a_step_holds_its_tokens_up) {
    const uint64_t before = warm();
    tw_step_record step = longer(TW_PART_DISPATCH, 200 * MS);
    step.next_prefill_tokens = 2000;
    step.next_prefill_name = tw_request_name_write(ring, "chatcmpl-big", 12);
    uint64_t key = write(step);
    tw_parts parts = split_of(before, key, 1);
    TW_CHECK_NEAR(200e6, of(&parts, TW_DELAY_PREFILL), 1e6);
    TW_CHECK_EQ(TW_MEASURED, parts.part[0].certainty);
    TW_CHECK_EQ(2000, parts.part[0].detail);
    TW_CHECK(of(&parts, TW_DELAY_DEVICE) < MS);
    /* What decoding usually takes is not learned from it. */
    step = longer(TW_PART_WAIT, 50 * MS);
    step.next_prefill_tokens = 1;
    const uint64_t after = key;
    key = write(step);
    parts = split_of(after, key, 1);
    TW_CHECK_NEAR(50e6, of(&parts, TW_DELAY_DEVICE), 1e6);
    TW_CHECK_EQ(0, of(&parts, TW_DELAY_PREFILL));
}

TW_TEST(a_first_token_waits_in_the_queue_and_for_its_own_prefill) {
    const uint64_t arrival = warm(), request = tw_request_hash("new", 3);
    const uint64_t queued = now + 2 * MS;
    for (int i = 0; i < 50; ++i) write(decoding());
    tw_step_event_write(ring, TW_EVENT_QUEUED, request, queued, now, 212);
    const uint64_t scheduled = now, key = write(with_prefill(900, 90 * MS));
    tw_parts parts = {0};
    TW_REQUIRE(tw_engine_split(ring, arrival, key, request, 0, 0, 0, &parts));
    TW_CHECK_EQ(key - arrival, tw_parts_sum(&parts));
    TW_CHECK_EQ(scheduled - queued, of(&parts, TW_DELAY_QUEUED));
    TW_CHECK_EQ(key - scheduled, of(&parts, TW_DELAY_OWN_PREFILL));
    TW_CHECK_EQ(queued - arrival, of(&parts, TW_DELAY_TRANSPORT));
}

/* Of a first token: all of its wait. */
static tw_parts split_of_first(uint64_t arrival, uint64_t key, uint64_t request) {
    tw_parts parts = {0};
    TW_REQUIRE(tw_engine_split(ring, arrival, key, request, 0, 0, 0, &parts));
    TW_CHECK_EQ(key - arrival, tw_parts_sum(&parts));
    return parts;
}

TW_TEST(a_first_token_that_waited_for_remote_kv_was_queued_for_the_rest) {
    const uint64_t arrival = warm(), request = tw_request_hash("new", 3), queued = now;
    for (int i = 0; i < 20; ++i) write(decoding());
    tw_step_event_write(ring, TW_EVENT_KV_WAIT, request, queued + 30 * MS, queued + 50 * MS, 0); /* it is asked, and */
    for (int i = 0; i < 30; ++i) write(decoding());
    tw_step_event_write(ring, TW_EVENT_KV_WAIT, tw_request_hash("other", 5), queued, now, 0);
    tw_step_event_write(ring, TW_EVENT_KV_WAIT, request, queued + 100 * MS, queued + 400 * MS, 0); /* loads */
    write(decoding());
    const uint64_t scheduled = now;
    tw_step_event_write(ring, TW_EVENT_QUEUED, request, queued, scheduled, 0);
    const uint64_t key = write(decoding());
    const tw_parts parts = split_of_first(arrival, key, request);
    TW_CHECK_EQ(320 * MS, of(&parts, TW_DELAY_KV_WAIT));
    TW_CHECK_EQ(scheduled - queued - 320 * MS, of(&parts, TW_DELAY_QUEUED));
    TW_CHECK_EQ(key - scheduled, of(&parts, TW_DELAY_OWN_PREFILL));
    for (uint32_t i = 0; i < parts.n; ++i) TW_CHECK_EQ(TW_MEASURED, parts.part[i].certainty);
}

TW_TEST(a_preempted_request_that_loads_its_kv_again_waits_for_that) {
    const uint64_t before = warm(), victim = tw_request_hash("victim", 6);
    tw_step_event_write(ring, TW_EVENT_PREEMPTED, victim, now + 1, now + 1, 0);
    const uint64_t loads = now + 100 * MS;
    uint64_t key = 0;
    for (int i = 0; i < 40; ++i) key = write(decoding());
    tw_step_event_write(ring, TW_EVENT_KV_WAIT, victim, loads, loads + 200 * MS, 0);
    tw_step_event_write(ring, TW_EVENT_RESUMED, victim, now, now, 0);
    key = write(decoding());
    const tw_parts parts = split_of(before, key, victim);
    TW_CHECK_EQ(200 * MS, of(&parts, TW_DELAY_KV_WAIT));
    TW_CHECK_EQ(tw_parts_sum(&parts) - 200 * MS, of(&parts, TW_DELAY_PREEMPTED));
}

TW_TEST(a_first_token_s_kv_waits_before_and_after_a_preemption_are_kept_apart) {
    const uint64_t arrival = warm(), request = tw_request_hash("new", 3), queued = now;
    for (int i = 0; i < 20; ++i) write(decoding());
    tw_step_event_write(ring, TW_EVENT_KV_WAIT, request, queued, queued + 50 * MS, 0);
    const uint64_t scheduled = now;
    tw_step_event_write(ring, TW_EVENT_QUEUED, request, queued, scheduled, 0);
    write(decoding());
    const uint64_t lost = now;
    tw_step_event_write(ring, TW_EVENT_PREEMPTED, request, lost, lost, 0);
    for (int i = 0; i < 20; ++i) write(decoding());
    tw_step_event_write(ring, TW_EVENT_KV_WAIT, request, lost + 10 * MS, lost + 80 * MS, 0);
    tw_step_event_write(ring, TW_EVENT_RESUMED, request, now, now, 0);
    const uint64_t key = write(decoding());
    const tw_parts parts = split_of_first(arrival, key, request);
    TW_CHECK_EQ(120 * MS, of(&parts, TW_DELAY_KV_WAIT));
    TW_CHECK_EQ(scheduled - queued - 50 * MS, of(&parts, TW_DELAY_QUEUED));
    TW_CHECK_EQ(key - lost - 70 * MS, of(&parts, TW_DELAY_PREEMPTED));
}

TW_TEST(an_eager_step_among_graphs_misses_one) {
    uint64_t before = 0;
    for (int i = 0; i < 100; ++i) {
        tw_step_record step = decoding();
        step.graph = TW_GRAPH_FULL;
        before = write(step);
    }
    tw_step_record eager = longer(TW_PART_WAIT, 20 * MS);
    eager.graph = TW_GRAPH_EAGER;
    const tw_parts parts = split_of(before, write(eager), 1);
    TW_CHECK_NEAR(20e6, of(&parts, TW_DELAY_GRAPH_MISS), 1e6);
}

TW_TEST(a_device_that_has_been_slow_for_a_while_is_slower_than_is_typical) {
    uint64_t before = warm();
    for (int i = 0; i < 300; ++i) before = write(longer(TW_PART_WAIT, 10 * MS));
    const tw_parts parts = split_of(before, write(longer(TW_PART_WAIT, 10 * MS)), 1);
    TW_CHECK_NEAR(10e6, of(&parts, TW_DELAY_DEVICE), 1e5);
    TW_CHECK(of(&parts, TW_DELAY_UNEXPLAINED) < 100000);
}

TW_TEST(what_is_usual_of_the_device_is_no_mean_that_slow_steps_raise) {
    uint64_t before = warm();
    for (int i = 0; i < 600; ++i) before = write(i % 5 == 0 ? longer(TW_PART_WAIT, 20 * MS) : decoding());
    TW_CHECK_NEAR(STEP - 3 * HOST, tw_step_usual_ns(&ring->model, 8), STEP / 10);
    const tw_parts parts = split_of(before, write(longer(TW_PART_WAIT, 8 * MS)), 1);
    TW_CHECK_NEAR(8e6, of(&parts, TW_DELAY_DEVICE), 1e5);
}

TW_TEST(steps_that_left_a_request_out_took_what_is_usual) {
    const uint64_t before = warm();
    uint64_t key = 0;
    for (int i = 0; i < 5; ++i) key = write(decoding());
    const tw_parts parts = split_of(before, key, 1);
    TW_CHECK(of(&parts, TW_DELAY_DEVICE) < 100000);
    TW_CHECK_NEAR(40e6, of(&parts, TW_DELAY_UNEXPLAINED), 1e5);
}

TW_TEST(steps_that_a_message_waits_for_may_all_be_slow) {
    uint64_t before = warm(), key = 0;
    for (int i = 0; i < 300; ++i) before = write(longer(TW_PART_WAIT, 10 * MS));
    for (int i = 0; i < 4; ++i) key = write(longer(TW_PART_WAIT, 10 * MS));
    tw_parts parts = {0};
    TW_REQUIRE(tw_engine_split(ring, before, key, 1, 4 * TYPICAL, 4, 4 * TYPICAL, &parts));
    TW_CHECK_NEAR(40e6, of(&parts, TW_DELAY_DEVICE), 1e6);
}

TW_TEST(time_between_steps_is_no_devices) {
    const uint64_t before = warm();
    now += 10 * MS;
    const tw_parts parts = split_of(before, write(decoding()), 1);
    TW_CHECK_NEAR(10e6, of(&parts, TW_DELAY_UNEXPLAINED), 1e5);
}

TW_TEST(computing_again_for_another_request_is_distinguished_from_prefill) {
    const uint64_t before = warm();
    tw_step_record step = longer(TW_PART_WAIT, 50 * MS);
    step.recompute_tokens = 500;
    const tw_parts parts = split_of(before, write(step), 1);
    TW_CHECK_NEAR(50e6, of(&parts, TW_DELAY_PREEMPTED), 5e6);
    TW_CHECK_EQ(0, of(&parts, TW_DELAY_PREFILL));
}

TW_TEST(a_stamp_that_no_step_has_is_not_joined) {
    const uint64_t before = warm(), key = write(decoding());
    tw_parts parts = {0};
    TW_CHECK(!tw_engine_split(ring, before, key - 5 * MS, 1, 0, 0, 0, &parts)); /* while it waited */
    TW_CHECK(!tw_engine_split(ring, before, now + 1, 1, 0, 0, 0, &parts));
    TW_CHECK_EQ(0, parts.n);
}

TW_TEST(a_wait_longer_than_the_ring_keeps_its_sum) {
    const uint64_t first = write(decoding());
    for (int i = 0; i < TW_STEP_RECORDS + 500; ++i) write(decoding());
    const tw_parts parts = split_of(first, write(decoding()), 1);
    TW_CHECK(of(&parts, TW_DELAY_UNEXPLAINED) > 0);
}

/* ---- any steps, any wait ---- */

static tw_step_record any_step(uint64_t *seed) {
    tw_step_record step = {.decode_requests = (uint16_t)tw_test_random_below(seed, 20),
                           .graph = (uint8_t)tw_test_random_below(seed, 5)};
    for (int i = 0; i < TW_STEP_PARTS; ++i)
        step.part[i] = (uint32_t)tw_test_random_below(seed, tw_test_random_below(seed, 4) ? 50000 : 5000000);
    if (tw_test_random_below(seed, 3) == 0) step.prefill_tokens = (uint32_t)tw_test_random_below(seed, 3000);
    if (tw_test_random_below(seed, 5) == 0) step.recompute_tokens = (uint32_t)tw_test_random_below(seed, 3000);
    if (tw_test_random_below(seed, 9) == 0) step.prefill_tokens = TW_TOKENS_UNKNOWN;
    if (tw_test_random_below(seed, 5) == 0) step.paused = (uint32_t)tw_test_random_below(seed, 500000);
    step.part[TW_PART_UPDATE] += 100; /* the stamp lies in it */
    if (step.prefill_tokens > 0) step.prefill_name = tw_request_name_write(ring, "any", 3);
    return step;
}

static void check_exclusive(const tw_parts *parts) {
    for (uint32_t i = 0; i < parts->n; ++i) {
        const tw_part *a = &parts->part[i];
        TW_CHECK(a->ns > 0 && a->cause < TW_DELAYS && a->certainty < TW_CERTAINTIES);
        for (const tw_part *b = parts->part; b < a; ++b)
            TW_CHECK(a->cause != b->cause || a->certainty != b->certainty || a->name != b->name);
    }
}

TW_TEST(the_parts_of_any_wait_sum_to_its_excess) {
    enum { KEYS = 64 };
    uint64_t seed = 7, key[KEYS];
    for (int round = 0; round < 400; ++round) {
        for (int i = 0; i < KEYS; ++i) {
            const tw_step_event_kind kind = (tw_step_event_kind)tw_test_random_below(&seed, 5);
            if (tw_test_random_below(&seed, 12) == 0)
                tw_step_event_write(ring, kind, 1 + tw_test_random_below(&seed, 3),
                                    now - tw_test_random_below(&seed, 100 * MS), now, 0);
            key[i] = write(any_step(&seed));
        }
        for (int pair = 0; pair < 40; ++pair) {
            const uint64_t to = tw_test_random_below(&seed, KEYS - 1) + 1, from = tw_test_random_below(&seed, to);
            const uint64_t k0 = key[from] + tw_test_random_below(&seed, 2) * tw_test_random_below(&seed, 1000);
            const uint64_t accounted = tw_test_random_below(&seed, 300 * MS);
            tw_parts parts = {0};
            TW_REQUIRE(tw_engine_split(ring, k0, key[to], tw_test_random_below(&seed, 4), tw_test_random_below(&seed, 2) * accounted, 0, accounted, &parts));
            TW_CHECK_EQ(key[to] - k0 > accounted ? key[to] - k0 - accounted : 0, tw_parts_sum(&parts));
            check_exclusive(&parts);
        }
    }
}
