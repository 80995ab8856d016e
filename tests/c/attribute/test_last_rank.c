/* Which rank the steps of an engine waited for, from what its workers recorded as they entered them. */
#include "tailwatch/attribute/last_rank.h"

#include <stdlib.h>

#include "segment_tools.h"
#include "tw_test.h"

#define MS UINT64_C(1000000)
#define US UINT64_C(1000)
#define STEP (20 * MS)
#define ENGINE UINT64_C(7)
#define MOST 8

static tw_segment *of[MOST];
static tw_peer_set *peers;
static uint64_t now, mark;
static tw_late_rank late[TW_LATE_STEPS];

static void begin(void) {
    now = 1000 * MS;
    mark = 0;
    peers = calloc(1, sizeof *peers);
    TW_REQUIRE(peers != NULL);
    for (uint32_t i = 0; i < MOST; ++i) of[i] = NULL;
}
static void end(void) {
    for (int i = 0; i < MOST; ++i) free(of[i]);
    free(peers);
}
TW_AROUND(begin, end)

/* So many workers of one engine. */
static void workers(uint32_t n, uint64_t engine) {
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t at = peers->n++;
        of[at] = calloc(1, segment_bytes(1));
        TW_REQUIRE(of[at] != NULL);
        peers->segment[at] = of[at];
        peers->peer[at] = (tw_peer){&of[at]->pause, engine, 1};
    }
}

static void enter(uint32_t worker, uint32_t group, uint64_t at) {
    tw_step_ring *ring = &of[worker]->step_ring;
    tw_rank_leaves(ring, tw_rank_enters(ring, mark, tw_rank_detail(worker, group), at), at + STEP / 2);
}

/* A step that all enter, in the order of their numbers, `apart` from one to the next; the last one `longer` more. Returns
 * when that was. */
static uint64_t step(uint64_t apart, uint32_t last, uint64_t longer) {
    ++mark;
    now += STEP;
    for (uint32_t i = 0; i < peers->n; ++i) enter(i, 0, now + i * apart + (i == last ? longer : 0));
    const uint64_t entered = now + last * apart + longer;
    now += longer;
    return entered;
}

static void warm(uint64_t apart) {
    for (int i = 0; i < 700; ++i) (void)step(apart, 0, 0);
}

static uint32_t find(uint64_t from, uint64_t to) { return tw_late_ranks(peers, ENGINE, from, to, late); }

TW_TEST(the_last_rank_is_late_by_what_the_other_waited) {
    workers(2, ENGINE);
    warm(0);
    for (uint32_t who = 0; who < 2; ++who) {
        const uint64_t from = now + STEP / 2, at = step(0, who, 300 * MS);
        TW_REQUIRE(find(from, at + STEP / 2) == 1);
        TW_CHECK_EQ(who, late[0].peer);
        TW_CHECK_EQ(who, late[0].rank);
        TW_CHECK_EQ(at, late[0].to_ns);
        TW_CHECK_EQ(at - 300 * MS, late[0].from_ns);
    }
}

TW_TEST(what_is_usual_is_no_lateness) {
    workers(2, ENGINE);
    warm(4 * MS);
    const uint64_t from = now + STEP / 2, at = step(4 * MS, 1, 30 * MS);
    TW_REQUIRE(find(from, at) == 1);
    TW_CHECK_EQ(30 * MS, late[0].to_ns - late[0].from_ns);
    const uint64_t next = now + STEP / 2, usual = step(4 * MS, 1, 0);
    TW_CHECK_EQ(0, find(next, usual));
}

TW_TEST(what_lasts_a_while_does_not_become_usual) {
    workers(2, ENGINE);
    warm(0);
    uint64_t from = 0, at = 0;
    for (int i = 0; i < 200; ++i) {
        from = now + STEP / 2;
        at = step(0, 1, 40 * MS);
    }
    TW_REQUIRE(find(from, at) == 1);
    TW_CHECK_EQ(40 * MS, late[0].to_ns - late[0].from_ns);
}

TW_TEST(one_worker_is_never_late) {
    workers(1, ENGINE);
    warm(0);
    const uint64_t from = now, at = step(0, 0, 300 * MS);
    TW_CHECK_EQ(0, find(from, at + STEP));
}

TW_TEST(workers_of_another_engine_are_not_waited_for) {
    workers(1, ENGINE);
    workers(1, ENGINE + 1);
    warm(0);
    const uint64_t from = now, at = step(0, 1, 300 * MS);
    TW_CHECK_EQ(0, find(from, at + STEP));
}

TW_TEST(of_several_the_last_is_late_against_the_middle_of_the_others) {
    workers(4, ENGINE);
    warm(0);
    ++mark;
    now += STEP;
    const uint64_t entered[] = {now, now + 100 * MS, now + 101 * MS, now + 300 * MS};
    for (uint32_t i = 0; i < 4; ++i) enter(i, 0, entered[i]);
    TW_REQUIRE(find(now - MS, now + 400 * MS) == 1);
    TW_CHECK_EQ(3, late[0].rank);
    TW_CHECK_EQ(200 * MS, late[0].to_ns - late[0].from_ns);
}

TW_TEST(ranks_that_do_not_meet_do_not_wait) {
    workers(4, ENGINE);
    for (int i = 0; i < 700; ++i) {
        ++mark;
        now += STEP;
        for (uint32_t worker = 0; worker < 4; ++worker) enter(worker, worker / 2, now + worker / 2 * STEP / 2);
    }
    const uint64_t from = now + STEP - MS;
    ++mark;
    now += STEP;
    for (uint32_t worker = 0; worker < 4; ++worker)
        enter(worker, worker / 2, now + worker / 2 * STEP / 2 + (worker == 3 ? 50 * MS : 0));
    TW_REQUIRE(find(from, now + 200 * MS) == 1);
    TW_CHECK_EQ(3, late[0].rank);
    TW_CHECK_EQ(50 * MS, late[0].to_ns - late[0].from_ns);
}

/* A rank need not wait for the device: it enters the next step while the last one is late for two. */
TW_TEST(an_instant_counts_once_for_steps_that_overlap) {
    workers(2, ENGINE);
    warm(0);
    const uint64_t from = now + STEP / 2;
    now += STEP;
    for (int i = 0; i < 2; ++i) {
        ++mark;
        enter(0, 0, now + (uint64_t)i * 5 * MS);
        enter(1, 0, now + 200 * MS + (uint64_t)i * 5 * MS);
    }
    TW_REQUIRE(find(from, now + 400 * MS) == 2);
    TW_CHECK_EQ(late[0].from_ns, late[1].to_ns);
    TW_CHECK_EQ(205 * MS, late[0].to_ns - late[1].from_ns);
}

TW_TEST(only_what_lies_in_the_interval_counts) {
    workers(2, ENGINE);
    warm(0);
    const uint64_t at = step(0, 1, 300 * MS);
    TW_REQUIRE(find(at - 100 * MS, at) == 1);
    TW_CHECK_EQ(100 * MS, late[0].to_ns - late[0].from_ns);
    TW_CHECK_EQ(0, find(at, at + STEP));
    TW_CHECK_EQ(0, find(at - 100 * MS, at - 1));
}

TW_TEST(a_rank_that_was_watched_later_is_found_all_the_same) {
    workers(2, ENGINE);
    for (int i = 0; i < 300; ++i) {
        ++mark;
        enter(0, 0, now += STEP);
    }
    for (int i = 0; i < 20; ++i) (void)step(0, 0, 0);
    const uint64_t from = now, at = step(0, 0, 80 * MS);
    TW_REQUIRE(find(from, at) == 1);
    TW_CHECK_EQ(80 * MS, late[0].to_ns - late[0].from_ns);
}

TW_TEST(a_step_that_one_has_not_entered_is_none_yet) {
    workers(2, ENGINE);
    warm(0);
    const uint64_t from = now, at = step(0, 1, 60 * MS);
    for (int i = 0; i < 3; ++i) {
        ++mark;
        enter(0, 0, now += MS);
    }
    TW_REQUIRE(find(from, at) == 1);
    TW_CHECK_EQ(1, late[0].rank);
}

TW_TEST(a_few_microseconds_are_no_lateness) {
    workers(2, ENGINE);
    warm(0);
    const uint64_t from = now, at = step(0, 1, 150 * US);
    TW_CHECK_EQ(0, find(from, at));
}

TW_TEST(what_is_found_lies_in_the_interval_and_never_overlaps) {
    uint64_t random = 7;
    workers(3, ENGINE);
    for (int round = 0; round < 2000; ++round) {
        const uint64_t from = now + tw_test_random_below(&random, STEP);
        const int steps = 1 + (int)tw_test_random_below(&random, 6);
        for (int i = 0; i < steps; ++i) {
            const uint64_t apart = tw_test_random_below(&random, 3 * MS), longer = tw_test_random_below(&random, 90 * MS);
            (void)step(apart, (uint32_t)tw_test_random_below(&random, 3), longer);
        }
        const uint64_t to = now - tw_test_random_below(&random, STEP);
        const uint32_t n = from < to ? find(from, to) : 0;
        uint64_t until = to;
        for (uint32_t i = 0; i < n; ++i) {
            TW_REQUIRE(late[i].from_ns >= from && late[i].from_ns < late[i].to_ns && late[i].to_ns <= until);
            until = late[i].from_ns;
        }
    }
}
