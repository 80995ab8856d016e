/* The ring of steps: what a reader gets, what the model learns; and that no reader sees a torn record. */
#include "tailwatch/record/step_ring.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "tailwatch/base/atomic.h"
#include "tw_test.h"

#define MS UINT64_C(1000000)

static tw_step_ring *ring;

static void begin(void) { ring = calloc(1, sizeof *ring); TW_REQUIRE(ring != NULL); }
static void end(void) { free(ring); }
TW_AROUND(begin, end)

/* Step number n ends at (n + 1) * 10 ms; every field follows from n. */
static tw_step_record step_number(uint64_t n) {
    tw_step_record s = {.key_ns = (n + 1) * 10 * MS - 1000, .update_ns = (n + 1) * 10 * MS - 2000,
                        .done_ns = (n + 1) * 10 * MS, .prefill_tokens = 0, .decode_tokens = (uint32_t)n,
                        .requests = (uint16_t)n, .decode_requests = 8, .graph = TW_GRAPH_FULL};
    for (int i = 0; i < TW_STEP_PARTS; ++i) s.part[i] = (uint32_t)n + (uint32_t)i;
    return s;
}

TW_TEST(a_step_is_found_by_the_time_of_its_tokens) {
    for (uint64_t n = 0; n < TW_STEP_RECORDS + 100; ++n) {
        const tw_step_record s = step_number(n);
        tw_step_write(ring, &s);
    }
    tw_step_record s;
    for (uint64_t n = 200; n < TW_STEP_RECORDS + 100; n += 97) {
        const uint64_t at = tw_step_find(ring, step_number(n).key_ns);
        TW_CHECK_EQ(n, at);
        TW_REQUIRE(tw_step_read(ring, at, &s));
        TW_CHECK_EQ(n + 1, s.seq);
        TW_CHECK_EQ(step_number(n).key_ns, s.key_ns);
        TW_CHECK_EQ(n + TW_PART_UPDATE, s.part[TW_PART_UPDATE]);
    }
    TW_CHECK(!tw_step_read(ring, 0, &s));
    TW_CHECK(!tw_step_read(ring, TW_STEP_RECORDS + 100, &s));
    TW_CHECK_EQ(100, tw_step_find(ring, 1)); /* the oldest that is left */
    TW_CHECK_EQ(TW_STEP_RECORDS + 100, tw_step_find(ring, UINT64_MAX));
}

/* Step number n sent a message whose first request had made n tokens, each third none. */
TW_TEST(a_step_is_found_by_what_it_sent) {
    const uint64_t request = tw_request_hash("r", 1), n = TW_STEP_RECORDS + 100;
    for (uint64_t i = 0; i < n; ++i) {
        tw_step_record s = step_number(i);
        if (i % 3 != 0) s.sent = tw_sent_mark(request, (uint32_t)i);
        tw_step_write(ring, &s);
    }
    for (uint64_t i = n - TW_SENT_STEPS; i < n; ++i)
        TW_CHECK_EQ(i % 3 != 0 ? step_number(i).key_ns : 0, tw_step_sent(ring, request, (uint32_t)i, TW_SENT_STEPS));
    const uint64_t further = n - TW_SENT_STEPS - 2;
    TW_REQUIRE(further % 3 != 0);
    TW_CHECK_EQ(0, tw_step_sent(ring, request, (uint32_t)further, TW_SENT_STEPS));
    TW_CHECK_EQ(step_number(further).key_ns, tw_step_sent(ring, request, (uint32_t)further, TW_SENT_STEPS_LATE));
    TW_CHECK_EQ(0, tw_step_sent(ring, request, (uint32_t)n, TW_SENT_STEPS));
    TW_CHECK_EQ(0, tw_step_sent(ring, tw_request_hash("s", 1), (uint32_t)n - 1, TW_SENT_STEPS));
    TW_CHECK_EQ(0, tw_step_sent(ring, request, 0, TW_SENT_STEPS));
}

static void write_sent(uint64_t from, uint64_t to, uint32_t tokens_of_last) {
    for (uint64_t i = from; i < to; ++i) {
        tw_step_record s = step_number(i);
        if (i + 1 == to && tokens_of_last != 0) s.sent = tw_sent_mark(7, tokens_of_last);
        tw_step_write(ring, &s);
    }
}

/* Of an engine whose messages are not seen, no more than these are looked at for each message. */
TW_TEST(a_ring_is_left_after_steps_that_sent_nothing) {
    write_sent(0, 10, 5);
    write_sent(10, 10 + TW_UNSENT_STEPS - 1, 0);
    TW_CHECK_EQ(step_number(9).key_ns, tw_step_sent(ring, 7, 5, TW_SENT_STEPS));
    write_sent(9 + TW_UNSENT_STEPS, 10 + TW_UNSENT_STEPS, 0);
    TW_CHECK_EQ(0, tw_step_sent(ring, 7, 5, TW_SENT_STEPS));
    write_sent(10 + TW_UNSENT_STEPS, 20 + TW_UNSENT_STEPS, 6); /* and those behind one that was found again */
    TW_CHECK_EQ(step_number(19 + TW_UNSENT_STEPS).key_ns, tw_step_sent(ring, 7, 6, TW_SENT_STEPS));
}

TW_TEST(an_empty_ring_has_no_step) {
    tw_step_record s;
    TW_CHECK_EQ(0, tw_step_sent(ring, 5, 1, TW_SENT_STEPS));
    TW_CHECK_EQ(0, tw_step_find(ring, 5));
    TW_CHECK(!tw_step_read(ring, 0, &s));
}

static void check_name(const char *expected, uint32_t number) {
    char text[TW_REQUEST_NAME_WORDS * 8];
    tw_request_name_copy(ring, number, text, sizeof text);
    TW_CHECK_STR(expected, text);
}

TW_TEST(a_request_has_a_name_until_its_place_is_taken) {
    char id[80];
    check_name("", 0);
    const uint32_t first = tw_request_name_write(ring, "chatcmpl-1", 10);
    TW_CHECK_EQ(first, tw_request_name_write(ring, "chatcmpl-1", 10));
    check_name("chatcmpl-1", first);
    for (int i = 0; i < TW_REQUEST_NAMES - 1; ++i)
        tw_request_name_write(ring, id, (size_t)snprintf(id, sizeof id, "r%d", i));
    check_name("chatcmpl-1", first);
    tw_request_name_write(ring, "another", 7);
    check_name("", first);
    check_name("r7", first + 8);
    memset(id, 'x', sizeof id);
    const uint32_t cut = tw_request_name_write(ring, id, sizeof id);
    id[TW_REQUEST_NAME_WORDS * 8 - 1] = 0;
    check_name(id, cut);
}

TW_TEST(numbers_of_names_wrap_past_none) {
    ring->name_head = UINT32_MAX - 1;
    TW_CHECK_EQ(UINT32_MAX, tw_request_name_write(ring, "last", 4));
    TW_CHECK_EQ(1, tw_request_name_write(ring, "first", 5));
    check_name("last", UINT32_MAX);
    check_name("first", 1);
}

TW_TEST(events_are_read_back) {
    tw_step_event_write(ring, TW_EVENT_PREEMPTED, 7, 10, 20, 3);
    tw_step_event e;
    TW_REQUIRE(tw_step_event_read(ring, 0, &e));
    TW_CHECK_EQ(TW_EVENT_PREEMPTED, e.what);
    TW_CHECK_EQ(7, e.request);
    TW_CHECK_EQ(20, e.to_ns);
    TW_CHECK(!tw_step_event_read(ring, 1, &e));
}

/* A device that takes 5 ms + 0.1 ms a request, and 0.05 ms a prefill token. */
static tw_step_record computed(uint32_t requests, uint32_t tokens) {
    const uint64_t wait = 5 * MS + requests * MS / 10 + tokens * MS / 20;
    tw_step_record s = {.decode_requests = (uint16_t)requests, .prefill_tokens = tokens};
    s.part[TW_PART_WAIT] = (uint32_t)(wait / TW_OFFSET_UNIT_NS);
    s.part[TW_PART_SCHEDULE] = (uint32_t)(MS / 4 / TW_OFFSET_UNIT_NS);
    return s;
}

TW_TEST(a_rank_leaves_the_step_that_it_entered) {
    const uint64_t first = tw_rank_enters(ring, 7, tw_rank_detail(3, 1), 100);
    tw_step_event e;
    TW_REQUIRE(tw_step_event_read(ring, first, &e));
    TW_CHECK_EQ(TW_EVENT_RANK, e.what);
    TW_CHECK_EQ(7, e.request);
    TW_CHECK_EQ(100, e.from_ns);
    TW_CHECK_EQ(100, e.to_ns);
    TW_CHECK_EQ(3, tw_rank_of(&e));
    TW_CHECK_EQ(1, tw_rank_group(&e));
    tw_rank_leaves(ring, first, 150);
    TW_REQUIRE(tw_step_event_read(ring, first, &e));
    TW_CHECK_EQ(150, e.to_ns);
    for (uint64_t i = 0; i < TW_STEP_EVENTS; ++i) (void)tw_rank_enters(ring, 8 + i, 0, 200 + i);
    tw_rank_leaves(ring, first, 9999); /* its place was taken since */
    TW_REQUIRE(tw_step_event_read(ring, first + TW_STEP_EVENTS, &e));
    TW_CHECK_EQ(e.from_ns, e.to_ns);
}

TW_TEST(the_model_learns_both_lines_and_an_outlier_does_not_bend_them) {
    TW_CHECK(isnan(tw_line_at(&ring->model.decode, 8)));
    for (uint32_t i = 0; i < 600; ++i) {
        tw_step_record s = computed(4 + i % 13, i % 5 == 0 ? 100 + 100 * (i % 7) : 0);
        if (i == 300) s.part[TW_PART_WAIT] = UINT32_MAX; /* 68 s */
        if (i % 50 == 7) s.part[TW_PART_SCHEDULE] *= 100;
        tw_step_write(ring, &s);
    }
    TW_CHECK_NEAR(6.0e6, tw_line_at(&ring->model.decode, 10), 0.3e6);
    TW_CHECK_NEAR(25.0e6, tw_line_at(&ring->model.prefill, 500), 2.5e6);
    TW_CHECK_NEAR(0.25e6, (double)ring->model.part_ns[TW_PART_SCHEDULE], 0.03e6);
}

TW_TEST(a_prompt_s_token_costs_what_it_added) {
    TW_CHECK(isnan(tw_step_cost_of(&ring->model).decode_step));
    for (uint32_t i = 0; i < 600; ++i) {
        const tw_step_record s = computed(4 + i % 13, i % 5 == 0 ? 100 + 100 * (i % 7) : 0);
        tw_step_write(ring, &s);
    }
    const tw_step_cost cost = tw_step_cost_of(&ring->model);
    TW_CHECK_NEAR(6.0e-3, cost.decode_step, 0.3e-3);
    TW_CHECK_NEAR(0.1e-3, cost.decode_request, 0.01e-3);
    TW_CHECK_NEAR(50e-6, cost.prefill_token, 5e-6);
}

/* ---- one writer, several readers ---- */

#define READERS 2
#define STEPS 30000

static uint64_t reads, finished;

static void *write_steps(void *unused) {
    (void)unused;
    for (uint64_t n = 0; n < STEPS; ++n) {
        const tw_step_record s = step_number(n);
        tw_step_write(ring, &s);
        tw_step_event_write(ring, TW_EVENT_QUEUED, n, n + 1, n + 2, n + 3);
        const uint64_t before = __atomic_load_n(&reads, __ATOMIC_ACQUIRE);
        while (n % 1000 == 0 && __atomic_load_n(&reads, __ATOMIC_ACQUIRE) < before + READERS) sched_yield();
    }
    __atomic_store_n(&finished, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void check_whole(uint64_t n) {
    tw_step_record s;
    tw_step_event e;
    if (tw_step_read(ring, n, &s)) {
        const tw_step_record expected = step_number(n);
        TW_CHECK_EQ(n + 1, s.seq);
        s.seq = 0;
        TW_CHECK(memcmp(&s, &expected, sizeof s) == 0);
    }
    if (tw_step_event_read(ring, n, &e)) {
        TW_CHECK_EQ(n, e.request);
        TW_CHECK_EQ(n + 3, e.detail);
    }
}

static void *read_steps(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&finished, __ATOMIC_ACQUIRE)) {
        const uint64_t head = tw_load_acquire(&ring->head);
        const uint64_t oldest = head < TW_STEP_RECORDS ? 0 : head - TW_STEP_RECORDS;
        for (uint64_t n = oldest; n < oldest + 8; ++n) check_whole(n); /* where the writer is */
        for (uint64_t n = head < 8 ? 0 : head - 8; n < head; ++n) check_whole(n);
        __atomic_add_fetch(&reads, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

TW_TEST(no_reader_sees_a_torn_record) {
    pthread_t writer, reader[READERS];
    reads = finished = 0;
    for (int i = 0; i < READERS; ++i) TW_REQUIRE(pthread_create(&reader[i], NULL, read_steps, NULL) == 0);
    TW_REQUIRE(pthread_create(&writer, NULL, write_steps, NULL) == 0);
    pthread_join(writer, NULL);
    for (int i = 0; i < READERS; ++i) pthread_join(reader[i], NULL);
    TW_CHECK_EQ(STEPS, tw_load(&ring->head));
}
