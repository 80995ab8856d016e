#include "tailwatch/gc/slice_pacer.h"

#include "tw_test.h"

enum { US = 1000, MS = 1000000 };

/* What is expected is written as numbers: an expectation made of a constant of slice_pacer.h would be met by any value
 * of it. */

static void slice(tw_pace *p, tw_slice_reason reason, size_t young, size_t looks, size_t moved, size_t freed, uint64_t ns) {
    const tw_slice one = {young, looks, moved, freed, 0, looks == 0 ? ns : 0, moved > 0 ? TW_WALK_PARTS : TW_WALK_COUNT, young};
    tw_pace_slice(p, reason, &one, ns);
}

static tw_pace costing(uint64_t ns_a_look) {
    tw_pace p = {0};
    for (int i = 0; i < 8; ++i) slice(&p, TW_SLICE_REQUESTED, 0, 4000, 0, 0, 4000 * ns_a_look);
    return p;
}

TW_TEST(nothing_is_due_at_first) {
    tw_pace p = {0};
    TW_CHECK(!tw_pace_due(&p, 0));
    TW_CHECK(tw_pace_budget(&p, TW_WALK_COUNT, 0, MS) == -1);
    TW_CHECK(!tw_pace_due(&p, 349));
    TW_CHECK(tw_pace_due(&p, 350));
    TW_CHECK(tw_pace_budget(&p, TW_WALK_COUNT, 350, MS) == 0); /* the young alone */
    TW_CHECK(!tw_pace_many_young(699));
    TW_CHECK(tw_pace_many_young(700)); /* 2 * 350 */
    p.backlog = 1999;
    TW_CHECK(!tw_pace_due(&p, 0));
    p.backlog = 2000;
    TW_CHECK(tw_pace_due(&p, 0));
    p.backlog = 511999;
    TW_CHECK(!tw_pace_in_backlog(&p));
    p.backlog = 512000; /* 32 slices of 16000 */
    TW_CHECK(tw_pace_in_backlog(&p));
}

/* What grows old is due, what was young and died is not. */
TW_TEST(debt_follows_what_grew_old) {
    tw_pace p = {0};
    slice(&p, TW_SLICE_IDLE, 1000, 0, 0, 400, MS);
    TW_CHECK_EQ(18000, p.backlog); /* 600 objects at 30 looks */
    TW_CHECK_EQ(600, p.old);
    slice(&p, TW_SLICE_IDLE, 0, 1500, 500, 500, MS);
    TW_CHECK_EQ(16500, p.backlog); /* 18000 - 1500 */
    TW_CHECK_EQ(100, p.old);
    slice(&p, TW_SLICE_STEP, 0, 1000000, 3000, 3000, MS);
    TW_CHECK_EQ(0, p.backlog);
    TW_CHECK_EQ(16000, p.ahead); /* no more than a slice is carried over */
    TW_CHECK_EQ(0, p.old);
    slice(&p, TW_SLICE_STEP, 1000, 0, 0, 0, MS);
    TW_CHECK_EQ(14000, p.backlog); /* 1000 objects at 30 looks, less 16000 */
    TW_CHECK_EQ(2, p.made[TW_SLICE_IDLE]);
    TW_CHECK_EQ(2, p.made[TW_SLICE_STEP]);
    TW_CHECK_EQ(3500, p.moved);
    TW_CHECK_EQ(1001500, p.looks);
}

/* Half of the time that is left, at the second dearest of the last prices. */
TW_TEST(a_slice_fits_its_idle_slot) {
    tw_pace p = costing(100);
    p.backlog = 1000000;
    TW_CHECK_EQ(4000, (uint64_t)tw_pace_budget(&p, TW_WALK_COUNT, 0, 800 * US));
    TW_CHECK_EQ(16000, (uint64_t)tw_pace_budget(&p, TW_WALK_COUNT, 0, 100 * MS)); /* of 500000 that fit, one slice */
    TW_CHECK_EQ(3910, (uint64_t)tw_pace_budget(&p, TW_WALK_COUNT, 100, 800 * US)); /* 4000 less 100 young at 90 ns */
    TW_CHECK_EQ(2010, (uint64_t)tw_pace_budget(&p, TW_WALK_COUNT, 300, 456 * US)); /* 228 us - 300 * 90 ns */
    TW_CHECK(tw_pace_budget(&p, TW_WALK_COUNT, 300, 452 * US) == -1); /* 1990 beside the young are not worth their while */
    TW_CHECK_EQ(0, (uint64_t)tw_pace_budget(&p, TW_WALK_COUNT, 350, 460 * US)); /* the young alone are */
    TW_CHECK_EQ(0, (uint64_t)tw_pace_budget(&p, TW_WALK_COUNT, 4444, 800 * US)); /* 4444 at 90 ns take 399.96 us */
    TW_CHECK(tw_pace_budget(&p, TW_WALK_COUNT, 4445, 800 * US) == -1); /* the young alone would take 400.05 us */
    TW_CHECK(tw_pace_budget(&p, TW_WALK_COUNT, 0, 10 * US) == -1);
    slice(&p, TW_SLICE_REQUESTED, 0, 4000, 0, 0, 4000 * 400);
    TW_CHECK_EQ(4000, (uint64_t)tw_pace_budget(&p, TW_WALK_COUNT, 0, 800 * US)); /* one is an exception */
    slice(&p, TW_SLICE_REQUESTED, 0, 4000, 0, 0, 4000 * 200);
    TW_CHECK_EQ(2000, (uint64_t)tw_pace_budget(&p, TW_WALK_COUNT, 0, 800 * US));
    for (int i = 0; i < 6; ++i) slice(&p, TW_SLICE_REQUESTED, 0, 4000, 0, 0, 4000 * 100);
    TW_CHECK_EQ(2000, (uint64_t)tw_pace_budget(&p, TW_WALK_COUNT, 0, 800 * US)); /* both are among the last eight */
    slice(&p, TW_SLICE_REQUESTED, 0, 4000, 0, 0, 4000 * 100);
    TW_CHECK_EQ(4000, (uint64_t)tw_pace_budget(&p, TW_WALK_COUNT, 0, 800 * US));
    p.backlog = 0;
    TW_CHECK(tw_pace_budget(&p, TW_WALK_COUNT, 0, 800 * US) == -1);
}

/* The walks of a cycle have prices of their own. */
TW_TEST(each_walk_costs_what_such_did) {
    tw_pace p = {0};
    const tw_slice counts = {.looks = 4000, .walk = TW_WALK_COUNT}, reaches = {.looks = 4000, .walk = TW_WALK_REACH};
    TW_CHECK_EQ(tw_pace_cost(&p, TW_WALK_ORDER), tw_pace_dearest(&p));
    for (int i = 0; i < 16; ++i)
        tw_pace_slice(&p, TW_SLICE_IDLE, &counts, 4000 * 50), tw_pace_slice(&p, TW_SLICE_IDLE, &reaches, 4000 * 150);
    TW_CHECK_EQ(50 * 1024, tw_pace_cost(&p, TW_WALK_COUNT));
    TW_CHECK_EQ(150 * 1024, tw_pace_cost(&p, TW_WALK_REACH));
    TW_CHECK_EQ(150 * 1024, tw_pace_dearest(&p));
    p.backlog = 1000000;
    TW_CHECK_EQ(9000, (uint64_t)tw_pace_budget(&p, TW_WALK_COUNT, 0, 900 * US));
    TW_CHECK_EQ(2000, (uint64_t)tw_pace_budget(&p, TW_WALK_REACH, 0, 900 * US)); /* it may go on for half as much again */
}

/* A collection of what was moved shows what each costs, whatever the young do, and the rest of the slice what looks cost. */
TW_TEST(the_dead_have_a_price) {
    tw_pace p = {0};
    const tw_slice young = {.young = 1000, .collected_ns = 1000 * 50, .walk = TW_WALK_COUNT, .more = 1000};
    const tw_slice dead = {.young = 100, .looks = 4000, .moved = 100, .freed = 100, .collected = 100, .collected_ns = 100 * 50 + 100 * 2 * US,
                           .walk = TW_WALK_PARTS, .more = 100};
    TW_CHECK_EQ(3000, tw_pace_dead_ns(&p)); /* not known yet */
    for (int i = 0; i < 8; ++i) tw_pace_slice(&p, TW_SLICE_IDLE, &young, 1000 * 50);
    TW_CHECK_EQ(3000, tw_pace_dead_ns(&p));
    for (int i = 0; i < 3; ++i) tw_pace_slice(&p, TW_SLICE_IDLE, &dead, dead.collected_ns + 4000 * 100);
    TW_CHECK_EQ(2000, tw_pace_dead_ns(&p));
    TW_CHECK_EQ(100 * 1024, tw_pace_cost(&p, TW_WALK_PARTS));
    TW_CHECK_EQ(50 * US, tw_pace_young_ns(&p, 1000)); /* collections of both show nothing about them */
}

/* A few beside many young ones show nothing about either. */
TW_TEST(some_dead_have_a_price) {
    tw_pace p = {0};
    const tw_slice three = {.moved = 3, .collected = 3, .collected_ns = 3 * US}, four = {.moved = 4, .collected = 4, .collected_ns = 4 * US},
                   few = {.young = 1000, .moved = 499, .collected = 499, .collected_ns = 5 * MS}, enough = {.young = 1000, .moved = 500, .collected = 500, .collected_ns = 5 * MS};
    tw_pace_slice(&p, TW_SLICE_IDLE, &three, 3 * US);
    tw_pace_slice(&p, TW_SLICE_IDLE, &few, 5 * MS);
    TW_CHECK_EQ(3000, tw_pace_dead_ns(&p));
    tw_pace_slice(&p, TW_SLICE_IDLE, &four, 4 * US);
    TW_CHECK_EQ(1000, tw_pace_dead_ns(&p));
    for (int i = 0; i < 2; ++i) tw_pace_slice(&p, TW_SLICE_IDLE, &enough, 5 * MS);
    TW_CHECK_EQ(9820, tw_pace_dead_ns(&p)); /* 5 ms less 1000 young at 90 ns, of 500 */
    TW_CHECK_EQ(90 * US, tw_pace_young_ns(&p, 1000));
}

/* Young ones whose finalizers took long do not make the dead beside them cost nothing. */
TW_TEST(dear_young_ones_leave_the_dead_their_price) {
    tw_pace p = {0};
    const tw_slice young = {.young = 1000, .collected_ns = 20 * MS}, dead = {.young = 100, .moved = 100, .collected = 100, .collected_ns = 100 * 360 + 100 * 2 * US};
    for (int i = 0; i < 8; ++i) tw_pace_slice(&p, TW_SLICE_IDLE, &young, 20 * MS);
    for (int i = 0; i < 8; ++i) tw_pace_slice(&p, TW_SLICE_IDLE, &dead, dead.collected_ns);
    TW_CHECK_EQ(2000, tw_pace_dead_ns(&p)); /* the young at 360 ns at most */
}

/* Prices at which nothing fits are forgotten, as nothing would show that they have fallen. */
TW_TEST(what_never_fits_counts_less_and_less) {
    tw_pace p = costing(100000);
    p.backlog = 1000000;
    int refused = 0;
    for (; tw_pace_budget(&p, TW_WALK_COUNT, 0, MS) < 0; ++refused) tw_pace_unfit(&p, TW_WALK_COUNT);
    TW_CHECK(refused > 10 && refused < 200);
}

/* They become more with each idle slot that they are refused. */
TW_TEST(the_young_are_not_dearer_than_they_can_be) {
    tw_pace p = {0};
    const tw_slice few = {.young = 174, .collected_ns = MS}, many = {.young = 175, .collected_ns = 175 * 50}, dear = {.young = 1000, .collected_ns = MS};
    TW_CHECK_EQ(90 * US, tw_pace_young_ns(&p, 1000)); /* not known yet */
    tw_pace_slice(&p, TW_SLICE_IDLE, &few, MS);
    TW_CHECK_EQ(90 * US, tw_pace_young_ns(&p, 1000));
    tw_pace_slice(&p, TW_SLICE_IDLE, &many, 175 * 50);
    TW_CHECK_EQ(50 * US, tw_pace_young_ns(&p, 1000));
    tw_pace_slice(&p, TW_SLICE_IDLE, &dear, MS);
    TW_CHECK_EQ(50 * US, tw_pace_young_ns(&p, 1000)); /* one is an exception */
    tw_pace_slice(&p, TW_SLICE_IDLE, &dear, MS);
    TW_CHECK_EQ(360 * US, tw_pace_young_ns(&p, 1000)); /* at 360 ns at most */
}

TW_TEST(the_rest_of_a_wait_is_what_most_such_waits_had) {
    tw_pace p = {0};
    TW_CHECK(tw_pace_left(&p, 0) > 0);
    for (int i = 0; i < 16; ++i) tw_pace_wait(&p, 100 * US), tw_pace_wait(&p, 8 * MS);
    TW_CHECK_EQ(300 * US, tw_pace_left(&p, 0)); /* never less */
    TW_CHECK_EQ(7900 * US, tw_pace_left(&p, 100 * US)); /* it is none of the short ones */
    TW_CHECK_EQ(300 * US, tw_pace_left(&p, 8 * MS - 1));
    TW_CHECK_EQ(5 * MS, tw_pace_left(&p, 10 * MS));             /* longer than all: half as much again */
    for (int i = 0; i < 31; ++i) tw_pace_wait(&p, 2 * MS);
    TW_CHECK_EQ(4 * MS, tw_pace_left(&p, 4 * MS)); /* one of 8 ms is left of the last 32 */
    tw_pace_wait(&p, 2 * MS);
    TW_CHECK_EQ(2 * MS, tw_pace_left(&p, 4 * MS)); /* none */
}

TW_TEST(a_cycle_is_the_whole_old_heap) {
    tw_pace p = {0};
    slice(&p, TW_SLICE_IDLE, 5000, 0, 0, 0, MS);
    p.backlog = 10;
    tw_pace_want_cycle(&p);
    TW_CHECK_EQ(120000, p.backlog); /* 5000 objects at 24 looks */
    tw_pace_cycle_ended(&p, 3000, 1000, 1);
    TW_CHECK_EQ(9000, p.old); /* 4000 with the 5000 that grew old meanwhile */
    p.grown = 0;
    tw_pace_cycle_ended(&p, 3000, 1000, 1);
    TW_CHECK_EQ(0, p.backlog); /* nothing is due that nothing grew for */
    p.backlog = 0;
    tw_pace_more(&p);
    TW_CHECK_EQ(2000, p.backlog);
    p.old = p.backlog = 0;
    tw_pace_want_cycle(&p);
    TW_CHECK(tw_pace_due(&p, 0)); /* however few there are */
}

/* The first took a million looks at a hundred thousand objects; nothing is due. */
static tw_pace in_its_second_cycle(void) {
    tw_pace p = {0};
    tw_pace_begin_cycle(&p, 0);
    slice(&p, TW_SLICE_IDLE, 0, 1000000, 0, 0, MS);
    tw_pace_cycle_ended(&p, 0, 100000, 0);
    p.backlog = p.ahead = 0;
    tw_pace_begin_cycle(&p, 0);
    return p;
}

/* What a cycle took for each object gives the price of the next one: as many may grow old in it as it allows. */
TW_TEST(a_cycle_is_paid_by_what_grows_old_in_it) {
    tw_pace p = in_its_second_cycle();
    TW_CHECK_EQ(75000, p.room); /* six eighths of 100000 */
    TW_CHECK_EQ(54, p.price);   /* 1000000 looks, four times as fast: 4000000 / 75000 = 53.3 */
    slice(&p, TW_SLICE_IDLE, 1000, 0, 0, 0, MS);
    TW_CHECK_EQ(54000, p.backlog);
    tw_pace_begin_cycle(&p, 200000); /* those that lived long cost more, and are no reason to wait */
    TW_CHECK_EQ(75750, p.room); /* six eighths of 101000 */
    TW_CHECK_EQ(138, p.price);  /* 101000 at 10 looks and 200000 at 8, times 4: 10440000 / 75750 = 137.8 */
    tw_pace_cycle_ended(&p, 200000, 100000, 0);
    slice(&p, TW_SLICE_IDLE, 5000000, 0, 0, 0, MS);
    tw_pace_begin_cycle(&p, 0); /* nor is what a cycle that was much too late left to this one */
    TW_CHECK_EQ(150000, p.room); /* six eighths of 200000, whatever the 5000000 were */
}

/* After twelve cycles, the last two of which found nothing dead, more may grow old in one. */
TW_TEST(where_few_die_a_cycle_lasts_longer) {
    tw_pace p = {0};
    for (int i = 0; i < 11; ++i) tw_pace_begin_cycle(&p, 0), tw_pace_cycle_ended(&p, 0, 100000, 1);
    tw_pace_begin_cycle(&p, 0);
    TW_CHECK_EQ(75000, p.room); /* six eighths of 100000 */
    tw_pace_cycle_ended(&p, 0, 100000, 1);
    tw_pace_begin_cycle(&p, 0);
    TW_CHECK_EQ(112500, p.room); /* nine */
}

/* A cycle that is over early rests until as many have grown old as it was to last for. */
TW_TEST(a_cycle_sprints_and_rests) {
    tw_pace p = in_its_second_cycle();
    uint64_t grown = 0, done = 0, begun = 0, over = 0;
    while (begun == 0) {
        slice(&p, TW_SLICE_IDLE, 100, 0, 0, 0, MS), grown += 100;
        for (; tw_pace_due(&p, 0) && begun == 0; done += 10000) {
            if (done >= 1000000) begun = grown;
            slice(&p, TW_SLICE_IDLE, 0, 10000, 0, 0, MS);
            if (done == 990000) over = grown, tw_pace_cycle_ended(&p, 0, 100000, 0);
        }
    }
    TW_CHECK(over > 17750 && over < 19750); /* a quarter of 75000 is 18750 */
    TW_CHECK(begun > 74000 && begun < 76000);
}

/* It goes on in every idle slot, whatever is due, once more has grown old than it may last. */
TW_TEST(a_cycle_that_is_late_is_always_due) {
    tw_pace p = {0};
    tw_pace_begin_cycle(&p, 0);
    TW_CHECK_EQ(16000, p.room); /* at least, however few live */
    slice(&p, TW_SLICE_IDLE, 16000, 0, 0, 0, MS);
    p.backlog = 0;
    slice(&p, TW_SLICE_IDLE, 0, 16000, 0, 0, MS);
    TW_CHECK(!tw_pace_due(&p, 0));
    slice(&p, TW_SLICE_IDLE, 1, 16000, 0, 0, MS);
    slice(&p, TW_SLICE_IDLE, 0, 16000, 0, 0, MS);
    TW_CHECK(tw_pace_due(&p, 0));
}

/* Where nothing waits for long a cycle is brought to its end at once: it is as good as one that took its time, and the
 * next one begins when that one would have ended. */
TW_TEST(a_cycle_brought_to_its_end_is_paid_for) {
    tw_pace p = in_its_second_cycle();
    p.old = 100000;
    for (int i = 0; i < 100; ++i) slice(&p, TW_SLICE_IDLE, 0, 10000, 0, 0, MS);
    tw_pace_cycle_ended(&p, 0, 100000, 0);
    uint64_t grown = 0;
    for (; !tw_pace_due(&p, 0); grown += 100) slice(&p, TW_SLICE_IDLE, 100, 0, 0, 0, MS);
    TW_CHECK(grown >= 75000 && grown < 76000); /* the room of a cycle of 100000 */
    tw_pace_begin_cycle(&p, 0); /* one that is late, and takes longer than was thought, is paid as it goes: the next one is not put off */
    slice(&p, TW_SLICE_IDLE, (size_t)p.room, 0, 0, 0, MS);
    for (int i = 0; i < 200; ++i) slice(&p, TW_SLICE_IDLE, 1, 10000, 0, 0, MS);
    tw_pace_cycle_ended(&p, 0, 100000, 0);
    TW_CHECK(p.ahead <= 16000);
    tw_pace_begin_cycle(&p, 0);
    for (int i = 0; i < 100; ++i) slice(&p, TW_SLICE_IDLE, 0, 10000, 0, 0, MS);
    tw_pace_want_cycle(&p); /* one is asked for all the same */
    slice(&p, TW_SLICE_REQUESTED, 0, 1000, 0, 0, MS);
    TW_CHECK(tw_pace_due(&p, 0));
}

/* A server in virtual time: each turn makes objects, all of which die as cycles once so many have followed them. A cycle
 * looks ten times at each object, and finds what was dead as it began. */
static uint64_t most_garbage(uint64_t in_flight, uint64_t per_turn, size_t budget) {
    tw_pace p = {0};
    uint64_t living = 0, garbage = 0, found = 0, left = 0, of_cycle = 0, most = 0;
    for (int turn = 0; turn < 4000; ++turn) {
        slice(&p, TW_SLICE_IDLE, per_turn, 0, 0, 0, MS);
        living += per_turn;
        if (living > in_flight) garbage += living - in_flight, living = in_flight;
        while (tw_pace_due(&p, 0)) {
            if (left == 0) tw_pace_begin_cycle(&p, 0), of_cycle = living + garbage, found = garbage, left = of_cycle * 10 + 1;
            const size_t looks = left < budget ? left : budget;
            const size_t freed = looks == left ? found : 0;
            slice(&p, TW_SLICE_IDLE, 0, looks, freed, freed, MS);
            if ((left -= looks) > 0) continue;
            garbage -= found;
            tw_pace_cycle_ended(&p, 0, of_cycle, 0);
        }
        if (garbage > most) most = garbage;
    }
    return most;
}

TW_TEST(garbage_stays_a_part_of_the_living) {
    TW_CHECK(most_garbage(90000, 500, 16000) < 3 * 90000);
    TW_CHECK(most_garbage(90000, 5000, 16000) < 3 * 90000);
    TW_CHECK(most_garbage(1000000, 500, 16000) < 3 * 1000000);
    TW_CHECK(most_garbage(1000, 500, 16000) < 64000); /* four times the least room */
}

TW_TEST(a_whole_pass_pays_all) {
    tw_pace p = {0};
    slice(&p, TW_SLICE_IDLE, 1000, 0, 0, 0, MS);
    tw_pace_full_collection(&p, 500, 700);
    TW_CHECK_EQ(0, p.backlog);
    TW_CHECK_EQ(800, p.old);
    tw_pace_full_collection(&p, 0, 5000); /* more than was known to be there */
    TW_CHECK_EQ(0, p.old);
    TW_CHECK_EQ(1, p.made[TW_SLICE_IDLE]);
}

TW_TEST(collections_of_others_are_booked) {
    tw_pace p = {0};
    tw_pace_other(&p, 0, 1000, 0, 400); /* the young, of which 600 grew old */
    TW_CHECK_EQ(18000, p.backlog); /* 600 objects at 30 looks */
    TW_CHECK_EQ(600, p.old);
    tw_pace_other(&p, 1, 0, 0, 100);
    TW_CHECK_EQ(0, p.backlog);
    TW_CHECK_EQ(500, p.old);
    tw_pace_other(&p, 0, 0, 200, 200); /* what a slice had moved to the young */
    TW_CHECK_EQ(200, p.dead);
    TW_CHECK_EQ(300, p.old);
    TW_CHECK_EQ(0, p.freed); /* not ours */
}

TW_TEST(a_child_counts_from_zero_and_keeps_what_was_measured) {
    tw_pace p = {0};
    slice(&p, TW_SLICE_STEP, 1000, 500, 10, 10, MS);
    const uint64_t cost = tw_pace_cost(&p, TW_WALK_COUNT), old = p.old, backlog = p.backlog;
    tw_pace_begin_again(&p);
    TW_CHECK_EQ(0, p.made[TW_SLICE_STEP] + p.moved + p.freed + p.ns + p.predicted_ns + p.cycles);
    TW_CHECK(tw_pace_cost(&p, TW_WALK_COUNT) == cost && p.old == old && p.backlog == backlog);
}

/* The looks that its cycle had taken in the parent are not taken from its own. */
TW_TEST(a_fork_in_a_cycle_leaves_the_price_of_the_next) {
    tw_pace p = in_its_second_cycle();
    slice(&p, TW_SLICE_IDLE, 0, 1000000, 0, 0, MS);
    tw_pace_begin_again(&p);
    slice(&p, TW_SLICE_IDLE, 0, 200000, 0, 0, MS);
    tw_pace_cycle_ended(&p, 0, 100000, 0);
    TW_CHECK_EQ(2 * 1024, p.per_object); /* 200000 looks at 100000 objects */
}

TW_TEST(reasons_have_names) {
    TW_CHECK_STR("idle", tw_slice_reason_name(TW_SLICE_IDLE));
    TW_CHECK_STR("request_end", tw_slice_reason_name(TW_SLICE_REQUEST_END));
    TW_CHECK_STR("unknown", tw_slice_reason_name(TW_SLICE_REASONS));
    TW_CHECK_STR("unknown", tw_slice_reason_name(-1));
}
