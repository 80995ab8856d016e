/* Engine steps: what is a host gap and what is none, whose pauses are booked where, and how two processes' steps add up. */
#include "tailwatch/stamp/engine_step.h"

#include "tailwatch/record/segment.h"
#include "tw_test.h"

#define MS UINT64_C(1000000)
#define S0 (1000 * MS) /* some time after boot */

enum { ME = 11, ANOTHER = 22 };

typedef struct bench {
    tw_segment *g;
    tw_stepper s;
    uint32_t decode, prefill;
} bench;

static bench begin(void) {
    bench b;
    TW_REQUIRE(tw_segment_create(&b.g, "engine", 1, false, NULL, 0) == 0);
    tw_stepper_init(&b.s, &b.g->steps, &b.g->pause, &b.g->drops[TW_DROP_PAUSE_RING_OVERFLOW]);
    b.decode = tw_segment_step(b.g, "decode", 6);
    b.prefill = tw_segment_step(b.g, "prefill", 7);
    return b;
}

static void end(bench *b) { tw_segment_destroy(b->g); }

static void step_on(bench *b, uint64_t thread, uint32_t name, uint64_t from, uint64_t to, uint64_t batch, uint64_t waiting) {
    tw_step step;
    tw_step_begin(&b->s, &step, name, thread, from);
    tw_step_end(&b->s, &step, to, batch, waiting);
}

static void step(bench *b, uint64_t from, uint64_t to, uint64_t batch, uint64_t waiting) {
    step_on(b, ME, b->decode, from, to, batch, waiting);
}

static void pause_at(bench *b, tw_cause cause, uint64_t from, uint64_t to) {
    tw_pause_begin(&b->g->pause, cause, from);
    tw_segment_pause_end(b->g, to, NULL);
}

static uint64_t count(const tw_histogram *h) {
    tw_counts c;
    tw_histogram_read(h, &c);
    return c.count;
}

static uint64_t sum(const tw_histogram *h) { return h->sum_low; }

static tw_step_stats *of(bench *b, uint32_t name) { return &b->g->steps.of[name]; }

static void check_gaps(bench *b, uint32_t name, uint64_t gaps, uint64_t ns) {
    TW_CHECK_EQ(gaps, count(&of(b, name)->gap));
    TW_CHECK_EQ(ns, sum(&of(b, name)->gap));
}

/* ---- gaps ---- */

TW_TEST(a_gap_is_what_follows_an_end_that_left_work) {
    bench b = begin();
    step(&b, S0, S0 + 10 * MS, 4, 7);
    step(&b, S0 + 13 * MS, S0 + 20 * MS, 6, 0);
    TW_CHECK_EQ(2, count(&of(&b, b.decode)->duration));
    TW_CHECK_EQ(17 * MS, sum(&of(&b, b.decode)->duration));
    TW_CHECK_EQ(10, of(&b, b.decode)->batch);
    check_gaps(&b, b.decode, 1, 3 * MS);
    end(&b);
}

TW_TEST(an_idle_engine_has_no_gap) {
    bench b = begin();
    step(&b, S0, S0 + 10 * MS, 4, 0);
    step(&b, S0 + 60000 * MS, S0 + 60010 * MS, 4, 0);
    check_gaps(&b, b.decode, 0, 0);
    TW_CHECK_EQ(0, of(&b, b.decode)->unknown_ns);
    end(&b);
}

TW_TEST(what_is_not_known_is_kept_apart) {
    bench b = begin();
    step(&b, S0, S0 + 10 * MS, 4, TW_STEP_UNKNOWN);
    step(&b, S0 + 15 * MS, S0 + 20 * MS, 4, TW_STEP_UNKNOWN);
    check_gaps(&b, b.decode, 0, 0);
    TW_CHECK_EQ(5 * MS, of(&b, b.decode)->unknown_ns);
    end(&b);
}

TW_TEST(a_gap_belongs_to_the_step_that_begins_after_it) {
    bench b = begin();
    step(&b, S0, S0 + MS, 1, 3);
    step_on(&b, ME, b.prefill, S0 + 3 * MS, S0 + 4 * MS, 1, 3);
    step(&b, S0 + 8 * MS, S0 + 9 * MS, 1, 3);
    check_gaps(&b, b.prefill, 1, 2 * MS);
    check_gaps(&b, b.decode, 1, 4 * MS);
    end(&b);
}

TW_TEST(a_step_of_nothing_is_part_of_the_gap) {
    bench b = begin();
    step(&b, S0, S0 + MS, 4, 2);
    step(&b, S0 + 2 * MS, S0 + 3 * MS, 0, 2);
    step(&b, S0 + 4 * MS, S0 + 5 * MS, 0, 1);
    step(&b, S0 + 7 * MS, S0 + 8 * MS, 4, 0);
    TW_CHECK_EQ(2, count(&of(&b, b.decode)->duration));
    check_gaps(&b, b.decode, 1, 6 * MS);
    end(&b);
}

TW_TEST(a_step_of_nothing_that_left_nothing_ends_the_wait) {
    bench b = begin();
    step(&b, S0, S0 + MS, 4, 2);
    step(&b, S0 + 2 * MS, S0 + 3 * MS, 0, 0); /* what waited was aborted */
    step(&b, S0 + 900 * MS, S0 + 901 * MS, 4, 0);
    check_gaps(&b, b.decode, 0, 0);
    step(&b, S0 + 1000 * MS, S0 + 1001 * MS, 0, 5); /* idle, and now there is some */
    step(&b, S0 + 1003 * MS, S0 + 1004 * MS, 4, 0);
    check_gaps(&b, b.decode, 1, 2 * MS);
    end(&b);
}

TW_TEST(steps_nest_and_only_the_outermost_has_gaps) {
    bench b = begin();
    tw_step outer;
    tw_step_begin(&b.s, &outer, b.decode, ME, S0);
    step_on(&b, ME, b.prefill, S0 + 2 * MS, S0 + 3 * MS, 1, 9);
    step_on(&b, ME, b.prefill, S0 + 5 * MS, S0 + 6 * MS, 1, 9);
    tw_step_end(&b.s, &outer, S0 + 8 * MS, 4, 9);
    TW_CHECK_EQ(2, count(&of(&b, b.prefill)->duration));
    check_gaps(&b, b.prefill, 0, 0);
    step_on(&b, ME, b.prefill, S0 + 10 * MS, S0 + 11 * MS, 1, 0);
    check_gaps(&b, b.prefill, 1, 2 * MS);
    end(&b);
}

TW_TEST(a_loop_that_changes_its_thread_is_followed_by_its_name) {
    bench b = begin();
    step_on(&b, ME, b.decode, S0, S0 + MS, 1, 3);
    step_on(&b, ANOTHER, b.decode, S0 + 2 * MS, S0 + 9 * MS, 1, 3);
    step_on(&b, ME, b.decode, S0 + 10 * MS, S0 + 11 * MS, 1, 3);
    check_gaps(&b, b.decode, 2, 2 * MS);
    end(&b);
}

TW_TEST(engines_on_two_threads_have_their_own_ends) {
    bench b = begin();
    tw_step busy;
    step_on(&b, ME, b.decode, S0, S0 + MS, 1, 3);
    tw_step_begin(&b.s, &busy, b.prefill, ANOTHER, S0 + 2 * MS);
    step_on(&b, ME, b.decode, S0 + 5 * MS, S0 + 6 * MS, 1, 3);
    tw_step_end(&b.s, &busy, S0 + 7 * MS, 1, 0);
    check_gaps(&b, b.decode, 1, 4 * MS);
    tw_step_begin(&b.s, &busy, b.decode, ANOTHER, S0 + 8 * MS); /* of one name: an engine that runs hides the other's gap */
    const uint64_t before = count(&of(&b, b.decode)->gap);
    step_on(&b, ME, b.decode, S0 + 9 * MS, S0 + 10 * MS, 1, 3);
    TW_CHECK_EQ(before, count(&of(&b, b.decode)->gap));
    tw_step_end(&b.s, &busy, S0 + 11 * MS, 1, 0);
    end(&b);
}

TW_TEST(more_threads_than_are_remembered_do_no_harm) {
    bench b = begin();
    tw_step open[TW_STEP_LANES + 4];
    for (uint64_t i = 0; i < TW_STEP_LANES + 4; i++) tw_step_begin(&b.s, &open[i], b.decode, 100 + i, S0 + i);
    for (uint64_t i = 0; i < TW_STEP_LANES + 4; i++) tw_step_end(&b.s, &open[i], S0 + MS, 1, 2);
    TW_CHECK_EQ(TW_STEP_LANES + 4, count(&of(&b, b.decode)->duration));
    TW_CHECK_EQ(0, b.s.name[b.decode].open);
    for (uint32_t i = 0; i < TW_STEP_LANES; i++) TW_CHECK_EQ(0, b.s.lane[i].track.open);
    step_on(&b, 100, b.decode, S0 + 2 * MS, S0 + 3 * MS, 1, 2);
    check_gaps(&b, b.decode, 1, MS);
    end(&b);
}

TW_TEST(times_that_run_back_count_as_none) {
    bench b = begin();
    step(&b, S0 + 10 * MS, S0 + 5 * MS, 1, 3);
    step(&b, S0 + 2 * MS, S0 + 3 * MS, 1, 3);
    check_gaps(&b, b.decode, 0, 0);
    TW_CHECK_EQ(MS, sum(&of(&b, b.decode)->duration));
    end(&b);
}

/* By the rule, over random loops of one thread, counted another way. */
TW_TEST(the_gap_rule_holds_for_random_loops) {
    uint64_t state = 4242;
    bench b = begin();
    uint64_t now = S0, gap_ns = 0, unknown_ns = 0, gaps = 0, steps = 0, from = 0, left = 0;
    for (int i = 0; i < 20000; i++) {
        const uint64_t batch = tw_test_random_below(&state, 4), kind = tw_test_random_below(&state, 3);
        const uint64_t waiting = kind == 0 ? 0 : kind == 1 ? 1 + tw_test_random_below(&state, 9) : TW_STEP_UNKNOWN;
        const uint64_t start = now += tw_test_random_below(&state, 5 * MS);
        now += tw_test_random_below(&state, 20 * MS);
        step_on(&b, ME, tw_test_random_below(&state, 2) ? b.decode : b.prefill, start, now, batch, waiting);
        const bool waited = from != 0 && left != 0 && left != TW_STEP_UNKNOWN;
        if (batch > 0) {
            steps++;
            if (waited) gaps++, gap_ns += start - from;
            else if (from != 0 && left == TW_STEP_UNKNOWN) unknown_ns += start - from;
        }
        if (batch == 0 && waited && waiting != 0) continue; /* the wait goes on */
        from = now, left = waiting;
    }
    const tw_step_stats *a = of(&b, b.decode), *c = of(&b, b.prefill);
    TW_CHECK_EQ(steps, count(&a->duration) + count(&c->duration));
    TW_CHECK_EQ(gaps, count(&a->gap) + count(&c->gap));
    TW_CHECK_EQ(gap_ns, sum(&a->gap) + sum(&c->gap));
    TW_CHECK_EQ(unknown_ns, a->unknown_ns + c->unknown_ns);
    end(&b);
}

/* ---- pauses ---- */

TW_TEST(a_pause_is_booked_where_it_fell_and_on_its_requests) {
    bench b = begin();
    step(&b, S0, S0 + 10 * MS, 4, 7);
    pause_at(&b, TW_CAUSE_GC2, S0 + 11 * MS, S0 + 14 * MS); /* half in the gap, half in the step */
    step(&b, S0 + 12 * MS, S0 + 20 * MS, 5, 7);
    const tw_step_stats *s = of(&b, b.decode);
    TW_CHECK_EQ(MS, s->overlap_ns[TW_STEP_GAP][TW_CAUSE_GC2]);
    TW_CHECK_EQ(7 * MS, s->request_ns[TW_STEP_GAP][TW_CAUSE_GC2]);
    TW_CHECK_EQ(2 * MS, s->overlap_ns[TW_STEP_INSIDE][TW_CAUSE_GC2]);
    TW_CHECK_EQ(10 * MS, s->request_ns[TW_STEP_INSIDE][TW_CAUSE_GC2]);
    TW_CHECK_EQ(0, s->overlap_ns[TW_STEP_INSIDE][TW_CAUSE_GC0]);
    end(&b);
}

TW_TEST(a_pause_of_an_idle_engine_costs_no_step) {
    bench b = begin();
    step(&b, S0, S0 + 10 * MS, 4, 0);
    pause_at(&b, TW_CAUSE_GC2, S0 + 11 * MS, S0 + 14 * MS);
    step(&b, S0 + 15 * MS, S0 + 20 * MS, 5, TW_STEP_UNKNOWN);
    pause_at(&b, TW_CAUSE_GC2, S0 + 21 * MS, S0 + 24 * MS);
    step(&b, S0 + 25 * MS, S0 + 26 * MS, 5, 0);
    for (int phase = 0; phase < TW_STEP_PHASES; phase++)
        for (int cause = 0; cause < TW_CAUSES; cause++) TW_CHECK_EQ(0, of(&b, b.decode)->overlap_ns[phase][cause]);
    end(&b);
}

TW_TEST(a_pause_still_open_counts_up_to_the_end) {
    bench b = begin();
    tw_step open;
    tw_step_begin(&b.s, &open, b.decode, ME, S0);
    tw_pause_begin(&b.g->pause, TW_CAUSE_GC_OWN, S0 + 4 * MS);
    tw_step_end(&b.s, &open, S0 + 10 * MS, 3, 0);
    TW_CHECK_EQ(6 * MS, of(&b, b.decode)->overlap_ns[TW_STEP_INSIDE][TW_CAUSE_GC_OWN]);
    end(&b);
}

TW_TEST(a_wrapped_ring_is_counted) {
    bench b = begin();
    for (uint64_t i = 0; i < TW_PAUSE_RING + 10; i++) pause_at(&b, TW_CAUSE_GC1, S0 + i * MS, S0 + i * MS + MS / 2);
    step(&b, S0, S0 + 5000 * MS, 1, 0);
    TW_CHECK_EQ(1, b.g->drops[TW_DROP_PAUSE_RING_OVERFLOW]);
    TW_CHECK_EQ(TW_PAUSE_RING * MS / 2, of(&b, b.decode)->overlap_ns[TW_STEP_INSIDE][TW_CAUSE_GC1]);
    end(&b);
}

/* ---- names, and adding up ---- */

TW_TEST(names_beyond_the_table_are_other) {
    bench b = begin();
    char name[16];
    for (uint32_t i = 2; i < TW_STEP_OTHER; i++) {
        snprintf(name, sizeof name, "step-%u", i);
        TW_CHECK_EQ(i, tw_segment_step(b.g, name, strlen(name)));
    }
    TW_CHECK_EQ(0, b.g->steps.of[TW_STEP_OTHER].name[0]);
    TW_CHECK_EQ(TW_STEP_OTHER, tw_segment_step(b.g, "one more", 8));
    TW_CHECK_EQ(TW_STEP_OTHER, tw_segment_step(b.g, "", 0));
    TW_CHECK_EQ(b.prefill, tw_segment_step(b.g, "prefill", 7));
    TW_CHECK_STR("other", (const char *)b.g->steps.of[TW_STEP_OTHER].name);
    const char *longer = "a name that is longer than what a step has";
    TW_CHECK_EQ(TW_STEP_OTHER, tw_segment_step(b.g, longer, strlen(longer)));
    end(&b);
}

TW_TEST(huge_batches_are_bounded) {
    bench b = begin();
    step(&b, S0, S0 + MS, UINT64_MAX, UINT64_MAX - 1);
    step(&b, S0 + 2 * MS, S0 + 3 * MS, 1, 0);
    TW_CHECK_EQ(TW_STEP_BATCH_MOST + 1, of(&b, b.decode)->batch);
    check_gaps(&b, b.decode, 1, MS);
    end(&b);
}

TW_TEST(steps_of_two_processes_add_up_by_name) {
    bench a = begin(), b;
    TW_REQUIRE(tw_segment_create(&b.g, "engine", 1, false, NULL, 0) == 0);
    tw_stepper_init(&b.s, &b.g->steps, &b.g->pause, &b.g->drops[TW_DROP_PAUSE_RING_OVERFLOW]);
    b.prefill = tw_segment_step(b.g, "prefill", 7); /* in another place than in a */
    b.decode = tw_segment_step(b.g, "decode", 6);
    step(&a, S0, S0 + 10 * MS, 4, 7);
    step(&b, S0, S0 + 30 * MS, 2, 5);
    pause_at(&b, TW_CAUSE_GC2, S0 + 31 * MS, S0 + 33 * MS);
    step(&b, S0 + 33 * MS, S0 + 34 * MS, 2, TW_STEP_UNKNOWN);
    step(&b, S0 + 35 * MS, S0 + 36 * MS, 2, 0);
    tw_steps_add(&a.g->steps, &b.g->steps);
    const tw_step_stats *s = of(&a, a.decode);
    TW_CHECK_EQ(4, count(&s->duration));
    TW_CHECK_EQ(42 * MS, sum(&s->duration));
    TW_CHECK_EQ(MS, s->duration.min_ns);
    TW_CHECK_EQ(30 * MS, s->duration.max_ns);
    TW_CHECK_EQ(10, s->batch);
    TW_CHECK_EQ(MS, s->unknown_ns);
    TW_CHECK_EQ(3 * MS, sum(&s->gap));
    TW_CHECK_EQ(2 * MS, s->overlap_ns[TW_STEP_GAP][TW_CAUSE_GC2]);
    TW_CHECK_EQ(10 * MS, s->request_ns[TW_STEP_GAP][TW_CAUSE_GC2]);
    TW_CHECK_EQ(0, count(&of(&a, a.prefill)->duration));
    end(&a), end(&b);
}

TW_TEST(names_of_many_processes_end_in_other) {
    bench a = begin();
    static tw_steps more;
    for (int i = 0; i < 2 * TW_STEPS; i++) {
        uint64_t name[TW_STEP_NAME_WORDS] = {0};
        snprintf((char *)name, sizeof name, "of-%d", i);
        memset(&more, 0, sizeof more);
        tw_histogram_record(&more.of[tw_steps_find(&more, name)].duration, tw_step_layout(TW_STEP_INSIDE), MS);
        tw_steps_add(&a.g->steps, &more);
    }
    uint64_t all = 0;
    for (int i = 0; i < TW_STEPS; i++)
        if (a.g->steps.of[i].name[0] != 0) all += count(&a.g->steps.of[i].duration);
    TW_CHECK_EQ(2 * TW_STEPS, all);
    TW_CHECK_EQ(TW_STEPS + 3, count(&a.g->steps.of[TW_STEP_OTHER].duration));
    end(&a);
}

TW_TEST(a_sum_beyond_a_word_carries) {
    static tw_steps a, b;
    uint64_t name[TW_STEP_NAME_WORDS] = {0};
    memcpy(name, "x", 1);
    const uint32_t i = tw_steps_find(&a, name), k = tw_steps_find(&b, name);
    tw_histogram_record(&a.of[i].duration, tw_step_layout(TW_STEP_INSIDE), MS);
    tw_histogram_record(&b.of[k].duration, tw_step_layout(TW_STEP_INSIDE), MS);
    a.of[i].duration.sum_low = b.of[k].duration.sum_low = UINT64_MAX;
    tw_steps_add(&a, &b);
    TW_CHECK_EQ(UINT64_MAX - 1, a.of[i].duration.sum_low);
    TW_CHECK_EQ(1, a.of[i].duration.sum_high);
}

TW_TEST(a_reset_segment_has_no_steps) {
    bench b = begin();
    step(&b, S0, S0 + MS, 1, 3);
    tw_segment_reset(b.g);
    for (int i = 0; i < TW_STEPS; i++) TW_CHECK_EQ(0, b.g->steps.of[i].name[0]);
    end(&b);
}

TW_TEST(phases_have_names) {
    TW_CHECK_STR("step", tw_step_phase_name(TW_STEP_INSIDE));
    TW_CHECK_STR("host_gap", tw_step_phase_name(TW_STEP_GAP));
    TW_CHECK_STR("unknown", tw_step_phase_name(TW_STEP_PHASES));
}
