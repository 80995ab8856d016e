/* Streams in virtual time: stamps, gaps, what delayed them, and the verdict. */
#include "tailwatch/stamp/stream.h"

#include <unistd.h>

#include "tw_test.h"

#include <sys/syscall.h>
#include <unistd.h>

#define US UINT64_C(1000)
#define MS TW_NS_PER_MS
#define S TW_NS_PER_SECOND

static const tw_slo NO_SLO;

static tw_segment *segment_of(const tw_slo *slo, uint64_t slow_ns) {
    tw_segment *g = NULL;
    TW_REQUIRE(tw_segment_create(&g, "api", 8, false, slo, slow_ns) == 0);
    return g;
}

static void open_at(tw_stream *s, tw_segment *g, uint64_t arrival) {
    tw_stream_open(s, g, arrival, arrival, 0, TW_ARRIVAL_ASGI);
}

/* A first token at from, then n gaps of one length. Returns the last stamp. */
static uint64_t steady(tw_stream *s, uint64_t from, uint64_t gap, int n) {
    tw_stream_token(s, from, 1, 0);
    for (int i = 0; i < n; ++i) tw_stream_token(s, from += gap, 1, 0);
    return from;
}

static void pause_between(tw_segment *g, tw_cause cause, uint64_t from, uint64_t to) {
    tw_pause_begin(&g->pause, cause, from);
    tw_segment_pause_end(g, to, NULL);
}

static tw_counts counts_of(const tw_histogram *h) {
    tw_counts counts;
    tw_histogram_read(h, &counts);
    return counts;
}

/* Of one cause, of whatever certainty. */
static uint64_t booked_for(const tw_lost *lost, tw_phase phase, int cause) {
    uint64_t ns = 0;
    for (int i = 0; i < TW_CERTAINTIES; ++i) ns += lost->delay_ns[phase][cause][i];
    return ns;
}

/* Of pauses. */
static uint64_t delay_booked(const tw_lost *lost, tw_phase phase) {
    uint64_t ns = 0;
    for (int cause = 0; cause < TW_CAUSES; ++cause) ns += booked_for(lost, phase, cause);
    return ns;
}

static uint64_t sum_of(const uint64_t *by_cause) {
    uint64_t sum = 0;
    for (int cause = 0; cause < TW_CAUSES; ++cause) sum += by_cause[cause];
    return sum;
}

static tw_slow_record last_slow(const tw_segment *g) {
    tw_slow_record r;
    memset(&r, 0, sizeof r);
    TW_CHECK(g->slow_head > 0 && tw_segment_slow_read(g, g->slow_head - 1, &r));
    return r;
}

/* ---- what is recorded ---- */

TW_TEST(one_request_from_arrival_to_end) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    tw_stream_open(&s, g, 10 * MS, 14 * MS, 7 * MS, TW_ARRIVAL_TCP);
    uint32_t set = tw_segment_label(g, "m", 1, "/r", 2);
    tw_stream_label(&s, set);
    TW_CHECK_EQ(1, g->in_flight);
    tw_stream_token(&s, 50 * MS, 1, 0);
    tw_stream_token(&s, 60 * MS, 3, 0);
    tw_stream_token(&s, 90 * MS, 1, 0);
    TW_CHECK_EQ(5, tw_segment_series(g, set)->output_tokens);
    tw_stream_close(&s, 100 * MS, TW_END_FINISHED);
    const tw_series *series = tw_segment_series(g, set);
    tw_counts ttft = counts_of(&series->ttft), itl = counts_of(&series->itl), tpot = counts_of(&series->tpot),
              e2e = counts_of(&series->e2e);
    TW_CHECK_EQ(1, ttft.count);
    TW_CHECK_EQ(40 * MS, ttft.sum_low);
    TW_CHECK_EQ(2, itl.count);
    TW_CHECK_EQ(40 * MS, itl.sum_low);
    TW_CHECK_EQ(1, tpot.count);
    TW_CHECK_EQ(10 * MS, tpot.sum_low);
    TW_CHECK_EQ(1, e2e.count);
    TW_CHECK_EQ(90 * MS, e2e.sum_low);
    TW_CHECK_EQ(30 * MS, s.worst_gap_ns);
    TW_CHECK_EQ(4 * MS, counts_of(&g->queue_accept).sum_low);
    TW_CHECK_EQ(7 * MS, counts_of(&g->queue_proxy).sum_low);
    TW_CHECK_EQ(1, g->arrivals[TW_ARRIVAL_TCP]);
    TW_CHECK_EQ(1, series->reasons[TW_REASON_GOOD]);
    TW_CHECK_EQ(0, g->in_flight);
    TW_CHECK_EQ(1, g->opened);
    TW_CHECK_EQ(0, counts_of(&tw_segment_series(g, 0)->ttft).count);
    tw_segment_destroy(g);
}

TW_TEST(a_late_arrival_is_entry) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    tw_stream_open(&s, g, 9 * MS, 5 * MS, 0, TW_ARRIVAL_HEADER);
    tw_stream_token(&s, 6 * MS, 1, 0);
    TW_CHECK_EQ(1 * MS, counts_of(&s.series->ttft).sum_low);
    TW_CHECK_EQ(0, counts_of(&g->queue_accept).sum_low);
    TW_CHECK_EQ(0, counts_of(&g->queue_proxy).count);
    tw_segment_destroy(g);
}

TW_TEST(closing_twice_counts_once) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s, other;
    open_at(&other, g, 0);
    open_at(&s, g, 0);
    tw_stream_close(&s, 5, TW_END_ABORT);
    tw_stream_close(&s, 6, TW_END_FINISHED);
    TW_CHECK_EQ(1, g->in_flight);
    TW_CHECK_EQ(1, s.series->reasons[TW_REASON_ABORT_EARLY]);
    TW_CHECK_EQ(0, s.series->reasons[TW_REASON_GOOD]);
    tw_segment_destroy(g);
}

TW_TEST(stamps_after_the_end_are_dropped_and_counted) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    steady(&s, MS, MS, 3);
    tw_stream_close(&s, 5 * MS, TW_END_FINISHED);
    tw_stream_token(&s, 6 * MS, 4, 0);
    tw_stream_token(&s, 7 * MS, 1, 3);
    TW_CHECK_EQ(2, g->drops[TW_DROP_OUT_OF_ORDER_STAMP]);
    TW_CHECK_EQ(4, s.series->output_tokens);
    TW_CHECK_EQ(3, counts_of(&s.series->itl).count);
    tw_segment_destroy(g);
}

TW_TEST(times_that_go_backwards_count_as_the_last_stamp) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 100 * MS);
    tw_stream_token(&s, 40 * MS, 1, 0); /* before arrival */
    TW_CHECK_EQ(0, counts_of(&s.series->ttft).sum_low);
    tw_stream_token(&s, 120 * MS, 1, 0);
    tw_stream_token(&s, 110 * MS, 1, 0);
    tw_stream_token(&s, 130 * MS, 1, 0);
    TW_CHECK_EQ(2, g->drops[TW_DROP_OUT_OF_ORDER_STAMP]);
    tw_counts itl = counts_of(&s.series->itl);
    TW_CHECK_EQ(3, itl.count);
    TW_CHECK_EQ(30 * MS, itl.sum_low);
    TW_CHECK_EQ(0, itl.min_ns);
    tw_stream_close(&s, 5 * MS, TW_END_FINISHED);
    TW_CHECK_EQ(3, g->drops[TW_DROP_OUT_OF_ORDER_STAMP]);
    TW_CHECK_EQ(30 * MS, counts_of(&s.series->e2e).sum_low);
    tw_segment_destroy(g);
}

TW_TEST(a_message_without_tokens_is_no_stamp) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    tw_stream_token(&s, 5, 0, 0);
    TW_CHECK_EQ(0, counts_of(&s.series->ttft).count);
    tw_stream_token(&s, 9, 1, 0);
    tw_stream_token(&s, 12, 0, 0);
    TW_CHECK_EQ(0, counts_of(&s.series->itl).count);
    TW_CHECK_EQ(1, s.series->output_tokens);
    tw_segment_destroy(g);
}

TW_TEST(saturating_gaps) {
    tw_slo slo = {.ttft_ns = 1, .tpot_ns = 1};
    tw_segment *g = segment_of(&slo, 0);
    tw_stream s;
    open_at(&s, g, 0);
    uint64_t at = steady(&s, 1, 200 * S, 20);
    TW_CHECK_EQ((uint64_t)INT32_MAX << 6, tw_stream_typical_ns(&s));
    tw_stream_token(&s, UINT64_MAX - 1, UINT32_MAX, 0);
    TW_CHECK_EQ(UINT64_MAX - 1 - at, s.worst_gap_ns);
    tw_stream_token(&s, UINT64_MAX, UINT32_MAX, 0);
    TW_CHECK_EQ(TW_REASON_LATE, tw_stream_verdict(&s, UINT64_MAX, TW_END_FINISHED));
    tw_stream_usage(&s, UINT64_MAX);
    TW_CHECK_EQ(UINT32_MAX, s.usage_tokens); /* no answer is longer: a hostile count raises nothing here */
    TW_CHECK_EQ(21 + 2 * (uint64_t)UINT32_MAX, tw_stream_tokens(&s));
    TW_CHECK_EQ(TW_REASON_LATE, tw_stream_verdict(&s, UINT64_MAX, TW_END_FINISHED)); /* 2^64 ns, 2^33 tokens */
    tw_stream_close(&s, UINT64_MAX, TW_END_FINISHED);
    const tw_second *second = tw_segment_second(g, UINT64_MAX);
    TW_CHECK_EQ(UINT32_MAX, tw_low(second->due_met));
    TW_CHECK_EQ(UINT32_MAX, tw_high(second->due_met));
    TW_CHECK_EQ(0, tw_low(second->good_miss));
    TW_CHECK_EQ(1, tw_high(second->good_miss));
    tw_segment_destroy(g);
}

TW_TEST(fluidity_never_overflows) {
    tw_slo slo = {.ttft_ns = UINT64_MAX, .tpot_ns = UINT64_MAX};
    tw_segment *g = segment_of(&slo, 0);
    tw_stream s;
    open_at(&s, g, 0);
    for (uint64_t i = 1; i < 50; ++i) tw_stream_token(&s, i, UINT32_MAX, 0);
    TW_CHECK_EQ(49 * (uint64_t)UINT32_MAX, s.met);
    TW_CHECK_EQ(s.due, s.met);
    TW_CHECK(s.slack_ns <= UINT64_C(1) << 62);
    tw_segment_destroy(g);
}

TW_TEST(usage_raises_and_never_lowers) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    steady(&s, MS, 10 * MS, 4);
    tw_stream_usage(&s, 3);
    TW_CHECK_EQ(5, tw_stream_tokens(&s));
    tw_stream_usage(&s, 11);
    tw_stream_usage(&s, 7);
    TW_CHECK_EQ(11, tw_stream_tokens(&s));
    tw_stream_close(&s, 50 * MS, TW_END_FINISHED);
    TW_CHECK_EQ(11, s.series->output_tokens);
    TW_CHECK_EQ(4 * MS, counts_of(&s.series->tpot).sum_low); /* 40 ms over 10 steps */

    open_at(&s, g, 0); /* an answer in one piece */
    tw_stream_usage(&s, 20);
    tw_stream_close(&s, 60 * MS, TW_END_FINISHED);
    TW_CHECK_EQ(31, s.series->output_tokens);
    TW_CHECK_EQ(1, counts_of(&s.series->ttft).count);
    TW_CHECK_EQ(1, counts_of(&s.series->tpot).count);
    TW_CHECK_EQ(2, counts_of(&s.series->e2e).count);
    tw_segment_destroy(g);
}

TW_TEST(a_usage_past_32_bits_is_cut) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    steady(&s, MS, 10 * MS, 1);
    tw_stream_usage(&s, UINT64_MAX);
    TW_CHECK_EQ(UINT32_MAX, tw_stream_tokens(&s));
    tw_stream_close(&s, 20 * MS, TW_END_FINISHED);
    TW_CHECK_EQ(UINT32_MAX, s.series->output_tokens);
    tw_segment_destroy(g);
}

TW_TEST(tpot_of_one_message_is_not_known) {
    tw_slo slo = {.tpot_ns = MS};
    for (int usage = 0; usage < 2; ++usage) { /* raised by the server's count, or all given in the message */
        tw_segment *g = segment_of(&slo, 0);
        tw_stream s;
        open_at(&s, g, 0);
        tw_stream_token(&s, 5 * MS, usage ? 1 : 7, 0);
        if (usage) tw_stream_usage(&s, 7);
        tw_stream_close(&s, 9 * MS, TW_END_FINISHED);
        TW_CHECK_EQ(7, s.series->output_tokens);
        TW_CHECK_EQ(0, counts_of(&s.series->tpot).count);
        TW_CHECK_EQ(1, s.series->reasons[TW_REASON_GOOD]);

        open_at(&s, g, 0); /* not known, so nothing shows that the bound was kept */
        tw_stream_token(&s, 5 * MS, usage ? 1 : 7, 0);
        if (usage) tw_stream_usage(&s, 7);
        tw_stream_close(&s, 9 * MS, TW_END_ERROR);
        TW_CHECK_EQ(1, tw_high(tw_segment_second(g, 0)->ttft_tpot)); /* that of the answer above */

        open_at(&s, g, 0); /* in two messages it is known */
        tw_stream_token(&s, 5 * MS, usage ? 1 : 4, 0);
        tw_stream_token(&s, 11 * MS, usage ? 1 : 3, 0);
        if (usage) tw_stream_usage(&s, 7);
        tw_stream_close(&s, 19 * MS, TW_END_FINISHED);
        TW_CHECK_EQ(1, counts_of(&s.series->tpot).count);
        TW_CHECK_EQ(MS, counts_of(&s.series->tpot).sum_low);
        tw_segment_destroy(g);
    }
}

TW_TEST(choices_in_one_message_make_one_gap) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    tw_stream_token_also(&s, 1, 3); /* no message yet */
    TW_CHECK_EQ(0, tw_stream_tokens(&s) + s.choices);
    for (uint64_t i = 1; i <= 3; ++i) {
        tw_stream_token(&s, i * 10 * MS, 1, 0);
        tw_stream_token_also(&s, 2, 1);
        tw_stream_token_also(&s, 0, 2);
        tw_stream_token_also(&s, 1, TW_CHOICES);
    }
    TW_CHECK_EQ(TW_CHOICES + 1, s.choices);
    TW_CHECK_EQ(1, g->drops[TW_DROP_CHOICE]);
    TW_CHECK_EQ(12, s.series->output_tokens);
    tw_counts itl = counts_of(&s.series->itl);
    TW_CHECK_EQ(2, itl.count);
    TW_CHECK_EQ(20 * MS, itl.sum_low);
    TW_CHECK_EQ(10 * MS, itl.min_ns);
    TW_CHECK_EQ(1, counts_of(&s.series->ttft).count);
    tw_stream_close(&s, 40 * MS, TW_END_FINISHED);
    tw_counts tpot = counts_of(&s.series->tpot);
    TW_CHECK_EQ(2, tpot.count);
    TW_CHECK_EQ(10 * MS + 4 * MS, tpot.sum_low);
    tw_stream_token_also(&s, 1, 0);
    TW_CHECK_EQ(12, tw_stream_tokens(&s));
    tw_segment_destroy(g);
}

TW_TEST(a_request_is_judged_by_the_bounds_it_opened_with) {
    tw_slo slo = {.ttft_ns = 10 * MS, .tpot_ns = MS}, none = NO_SLO;
    for (int tightened = 0; tightened < 2; ++tightened) {
        tw_segment *g = segment_of(tightened ? &none : &slo, 0);
        tw_stream s;
        open_at(&s, g, 0);
        g->slo = tightened ? slo : none;
        tw_stream_token(&s, 100 * MS, 1, 0);
        tw_stream_token(&s, 200 * MS, 3, 0);
        TW_CHECK_EQ(tightened ? TW_REASON_GOOD : TW_REASON_LATE, tw_stream_verdict(&s, S, TW_END_FINISHED));
        TW_CHECK_EQ(tightened ? 0 : 10 + 100 + 2, s.due); /* each 10 ms, then each ms, then two at once */
        tw_stream_close(&s, S, TW_END_FINISHED);
        open_at(&s, g, 0);
        tw_stream_token(&s, 100 * MS, 1, 0);
        TW_CHECK_EQ(tightened ? TW_REASON_LATE : TW_REASON_GOOD, tw_stream_verdict(&s, S, TW_END_FINISHED));
        tw_segment_destroy(g);
    }
}

TW_TEST(tpot_is_per_choice) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    tw_stream_token(&s, 10 * MS, 1, 2); /* choice 0 is not the first */
    tw_stream_token(&s, 11 * MS, 1, 0);
    tw_stream_token(&s, 20 * MS, 1, 2);
    tw_stream_token(&s, 41 * MS, 2, 0);
    TW_CHECK_EQ(2, s.choices);
    tw_stream_usage(&s, 5);
    tw_stream_close(&s, 50 * MS, TW_END_FINISHED);
    tw_counts tpot = counts_of(&s.series->tpot);
    TW_CHECK_EQ(2, tpot.count);
    TW_CHECK_EQ(10 * MS + 15 * MS, tpot.sum_low);
    TW_CHECK_EQ(3, counts_of(&s.series->itl).count);

    open_at(&s, g, 0); /* whose the missing tokens are is not known */
    steady(&s, MS, MS, 3);
    tw_stream_token(&s, 5 * MS, 1, 1);
    tw_stream_token(&s, 6 * MS, 1, 1);
    tw_stream_usage(&s, 9);
    tw_stream_close(&s, 7 * MS, TW_END_FINISHED);
    TW_CHECK_EQ(2, counts_of(&s.series->tpot).count);
    tw_segment_destroy(g);
}

TW_TEST(choices_beyond_the_tracked_ones_are_counted_once) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    uint64_t now = 0;
    for (uint32_t round = 0; round < 3; ++round)
        for (uint32_t choice = 0; choice < 12; ++choice) tw_stream_token(&s, now += MS, 1, choice);
    tw_stream_token(&s, now += MS, 1, UINT32_MAX);
    TW_CHECK_EQ(1, g->drops[TW_DROP_CHOICE]);
    TW_CHECK_EQ(TW_CHOICES + 1, s.choices);
    TW_CHECK_EQ(37, tw_stream_tokens(&s));
    TW_CHECK_EQ(37, s.series->output_tokens);
    tw_stream_close(&s, now, TW_END_FINISHED);
    TW_CHECK_EQ(TW_CHOICES, counts_of(&s.series->tpot).count);
    tw_segment_destroy(g);
}

TW_TEST(an_opaque_body_has_no_token_times) {
    tw_slo slo = {.ttft_ns = 5 * MS, .tpot_ns = MS, .itl_ns = MS, .e2e_ns = 100 * MS};
    tw_segment *g = segment_of(&slo, 0);
    tw_stream s;
    open_at(&s, g, 0);
    tw_stream_opaque(&s);
    tw_stream_opaque(&s);
    tw_stream_token(&s, 50 * MS, 1, 0);
    TW_CHECK_EQ(1, g->drops[TW_DROP_UNREADABLE_BODY]);
    TW_CHECK_EQ(0, g->drops[TW_DROP_OUT_OF_ORDER_STAMP]);
    TW_CHECK_EQ(TW_REASON_GOOD, tw_stream_verdict(&s, 5 * MS, TW_END_FINISHED));
    TW_CHECK_EQ(TW_REASON_LATE, tw_stream_verdict(&s, 6 * MS, TW_END_FINISHED)); /* nothing came before its end */
    TW_CHECK_EQ(TW_REASON_ABORT_LATE, tw_stream_verdict(&s, 60 * MS, TW_END_ABORT));
    tw_stream_body(&s, 5 * MS);
    tw_stream_body(&s, 50 * MS);
    TW_CHECK_EQ(5 * MS, s.body_ns);
    TW_CHECK_EQ(TW_REASON_ABORT_EARLY, tw_stream_verdict(&s, 60 * MS, TW_END_ABORT));
    TW_CHECK_EQ(TW_REASON_LATE, tw_stream_verdict(&s, 101 * MS, TW_END_FINISHED));
    tw_stream_close(&s, 60 * MS, TW_END_FINISHED);
    TW_CHECK_EQ(1, s.series->reasons[TW_REASON_GOOD]);
    TW_CHECK_EQ(0, counts_of(&s.series->ttft).count);
    TW_CHECK_EQ(0, counts_of(&s.series->itl).count + counts_of(&s.series->tpot).count);
    open_at(&s, g, 0);
    tw_stream_opaque(&s);
    tw_stream_close(&s, 8 * MS, TW_END_ABORT);
    TW_CHECK_EQ(8 * MS, counts_of(&g->abandoned_wait).sum_low);
    open_at(&s, g, 0); /* unreadable from the middle on */
    steady(&s, 0, MS, 3);
    tw_stream_opaque(&s);
    tw_stream_close(&s, 8 * MS, TW_END_FINISHED);
    TW_CHECK_EQ(0, counts_of(&s.series->tpot).count);
    tw_segment_destroy(g);
}

TW_TEST(an_answer_without_a_token_is_judged_by_its_first_bytes) {
    tw_slo slo = {.ttft_ns = 10 * MS};
    static const struct { uint64_t arrival, body, end; tw_reason expected; } cases[] = {
        {0, 10 * MS, 90 * MS, TW_REASON_GOOD},
        {0, 11 * MS, 90 * MS, TW_REASON_LATE},
        {0, 0, 10 * MS, TW_REASON_GOOD}, /* 0: no byte ever */
        {0, 0, 11 * MS, TW_REASON_LATE},
        {30 * MS, 1, 90 * MS, TW_REASON_GOOD}, /* bytes before arrival count as arrival */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
        for (int opaque = 0; opaque < 2; ++opaque) {
            tw_segment *g = segment_of(&slo, 0);
            tw_stream s;
            open_at(&s, g, cases[i].arrival);
            if (opaque) tw_stream_opaque(&s);
            if (cases[i].body) tw_stream_body(&s, cases[i].body);
            tw_stream_close(&s, cases[i].end, TW_END_FINISHED);
            TW_CHECK_EQ(1, s.series->reasons[cases[i].expected]);
            TW_CHECK_EQ(cases[i].expected == TW_REASON_GOOD, tw_low(tw_segment_second(g, 0)->ttft_tpot));
            TW_CHECK_EQ(0, counts_of(&s.series->ttft).count);
            tw_segment_destroy(g);
        }
}

TW_TEST(a_token_is_judged_before_the_bytes_around_it) {
    tw_slo slo = {.ttft_ns = 10 * MS};
    tw_segment *g = segment_of(&slo, 0);
    tw_stream s;
    open_at(&s, g, 0);
    tw_stream_body(&s, 1 * MS); /* a comment, a role: no content yet */
    TW_CHECK_EQ(TW_REASON_ABORT_LATE, tw_stream_verdict(&s, 11 * MS, TW_END_ABORT));
    tw_stream_token(&s, 11 * MS, 1, 0);
    TW_CHECK_EQ(TW_REASON_LATE, tw_stream_verdict(&s, 12 * MS, TW_END_FINISHED));
    tw_segment_destroy(g);
}

TW_TEST(an_abandoned_wait_is_one_before_the_first_token) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 2 * MS);
    tw_stream_close(&s, 9 * MS, TW_END_ABORT);
    open_at(&s, g, 2 * MS);
    tw_stream_token(&s, 4 * MS, 1, 0);
    tw_stream_close(&s, 9 * MS, TW_END_ABORT);
    open_at(&s, g, 2 * MS);
    tw_stream_close(&s, 9 * MS, TW_END_ERROR);
    open_at(&s, g, 2 * MS); /* answered by a refusal: nothing was waited for */
    s.status = 404;
    tw_stream_close(&s, 9 * MS, TW_END_ABORT);
    tw_counts waits = counts_of(&g->abandoned_wait);
    TW_CHECK_EQ(1, waits.count);
    TW_CHECK_EQ(7 * MS, waits.sum_low);
    tw_segment_destroy(g);
}

TW_TEST(slow_clients_are_counted_apart) {
    tw_segment *g = segment_of(&NO_SLO, 30 * MS);
    tw_stream s;
    open_at(&s, g, 0);
    uint64_t now = steady(&s, MS, 5 * MS, 16);
    tw_stream_send_wait(&s, now - MS, now + 20 * MS); /* what lies before the stamp is not this gap's */
    tw_stream_send_wait(&s, now + 25 * MS, now + 24 * MS);
    tw_stream_token(&s, now + 40 * MS, 1, 0);
    tw_slow_record r = last_slow(g);
    TW_CHECK_EQ(20 * MS, r.client_ns);
    TW_CHECK_EQ(15 * MS, r.unexplained_ns);
    TW_CHECK_EQ(21 * MS, counts_of(&g->send_wait).sum_low);
    TW_CHECK_EQ(2, counts_of(&g->send_wait).count);
    tw_stream_token(&s, now + 80 * MS, 1, 0);
    TW_CHECK_EQ(0, last_slow(g).client_ns);
    tw_segment_destroy(g);
}

TW_TEST(slow_records_have_their_request) {
    tw_segment *g = segment_of(&NO_SLO, 30 * MS);
    tw_stream s;
    const char *trace = "0af7651916cd43dd8448eb211c80319c";
    char text[TW_ID_WORDS * 8];
    open_at(&s, g, 0);
    tw_stream_label(&s, tw_segment_label(g, "m", 1, "/r", 2));
    tw_stream_identify(&s, "req-1", 5, trace, strlen(trace));
    tw_stream_token(&s, MS, 4, 0);
    tw_stream_token(&s, 40 * MS, 1, 0);
    tw_slow_record r = last_slow(g);
    tw_words_get(r.request_id, TW_ID_WORDS, text);
    TW_CHECK_STR("req-1", text);
    tw_words_get(r.trace_id, TW_TRACE_WORDS, text);
    TW_CHECK_STR(trace, text);
    TW_CHECK_EQ(1, r.series);
    TW_CHECK_EQ(5, r.token);
    TW_CHECK_EQ(40 * MS, r.end_ns);
    TW_CHECK_EQ(39 * MS, r.gap_ns);
    TW_CHECK_EQ(TW_PHASE_ITL, r.phase);
    TW_CHECK_EQ(1, r.complete);
    tw_stream_identify(&s, NULL, 0, NULL, 0);
    TW_CHECK_EQ(0, s.request_id[0] | s.trace_id[0]);
    tw_stream_label(&s, 99);
    TW_CHECK_EQ(0, s.series_index);
    tw_segment_destroy(g);
}

/* ---- what is typical, and what is slow ---- */

TW_TEST(typical_is_the_median_of_the_last_16) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    uint64_t random = 3, rest[400];
    tw_stream s;
    open_at(&s, g, 0);
    tw_stream_token(&s, 0, 1, 0);
    uint64_t now = 0;
    for (size_t gaps = 1; gaps <= 400; ++gaps) {
        rest[gaps - 1] = tw_test_random_below(&random, (gaps / 40 + 1) * MS);
        tw_stream_token(&s, now += rest[gaps - 1], 1, 0);
        if (gaps % 8 != 0) continue;
        size_t n = gaps < 16 ? gaps : 16, below = 0, above = 0;
        uint64_t typical = tw_stream_typical_ns(&s);
        for (size_t i = gaps - n; i < gaps; ++i) below += rest[i] < typical, above += rest[i] >= typical + 128;
        TW_CHECK(below <= n / 2 && above <= n / 2);
    }
    TW_CHECK_EQ(50, s.series->typical_next);
    tw_segment_destroy(g);
}

TW_TEST(a_new_stream_starts_with_its_label_sets_typical_gap) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    uint32_t fast = tw_segment_label(g, "fast", 4, "/", 1), slow = tw_segment_label(g, "slow", 4, "/", 1);
    open_at(&s, g, 0);
    tw_stream_label(&s, fast);
    TW_CHECK_EQ(0, tw_stream_typical_ns(&s));
    steady(&s, 1, 4 * MS, 8);
    open_at(&s, g, 0);
    tw_stream_label(&s, slow);
    steady(&s, 1, 16 * MS, 8);
    open_at(&s, g, 0);
    TW_CHECK_EQ(0, tw_stream_typical_ns(&s));
    tw_stream_label(&s, fast);
    TW_CHECK_EQ(4 * MS, tw_stream_typical_ns(&s));
    tw_stream_label(&s, slow);
    TW_CHECK_EQ(16 * MS, tw_stream_typical_ns(&s));
    TW_CHECK_EQ(24 * MS, s.alert_ns);
    steady(&s, 1, 32 * MS, 8);
    TW_CHECK_EQ(32 * MS, tw_stream_typical_ns(&s));
    tw_stream_label(&s, fast); /* its own gaps are known by now */
    TW_CHECK_EQ(32 * MS, tw_stream_typical_ns(&s));
    tw_segment_destroy(g);
}

/* A stall of a minute, in gaps of three times the usual, stays late; a load that is heavier for minutes becomes usual. */
TW_TEST(typical_is_bounded_by_what_was_typical_over_minutes) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    uint64_t now = steady(&s, MS, 10 * MS, 6000);
    for (int i = 0; i < 60 * 1000 / 30; ++i) tw_stream_token(&s, now += 30 * MS, 1, 0);
    TW_CHECK_EQ(12500 * US, tw_stream_typical_ns(&s));
    TW_CHECK(g->slow_head > 1900);
    for (int i = 0; i < 180 * 1000 / 30; ++i) tw_stream_token(&s, now += 30 * MS, 1, 0);
    TW_CHECK_EQ(30 * MS, tw_stream_typical_ns(&s));
    tw_segment_destroy(g);
}

/* ---- the chain ---- */

/* The loop's clock as if the calling thread had slept until, and waken at, these times. */
static void loop_clock(tw_segment *g, uint64_t slept_until, uint64_t wake) {
    const int track = tw_host_take(&g->host, (uint64_t)syscall(SYS_gettid));
    TW_REQUIRE(track >= 0);
    tw_store(&g->host.track[track].slept_until_ns, slept_until);
    tw_store(&g->host.track[track].wake_ns, wake);
}

static uint64_t part_of(const tw_slow_record *r, int cause, tw_certainty certainty) {
    uint64_t ns = 0;
    for (uint32_t i = 0; i < r->parts.n; ++i)
        if (r->parts.part[i].cause == cause && r->parts.part[i].certainty == certainty) ns += r->parts.part[i].ns;
    return ns;
}

/* The loop was in a callback as the process was stopped, and stamps a token before the watchdog has run again. */
TW_TEST(a_stop_of_a_busy_loop_is_known_before_the_watchdog_wakes) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    const uint64_t now = tw_now_ns(), from = now - 400 * MS;
    tw_store(&g->host.facts.knowledge[TW_HOST_SCHEDSTAT], TW_KNOWN + 1);
    open_at(&s, g, now - 700 * MS);
    (void)steady(&s, now - 690 * MS, 10 * MS, 29); /* up to from */
    loop_clock(g, from - 5 * MS, from - 5 * MS);
    const tw_host_point p = {.at_ns = from - 5 * MS, .cpu_ns = tw_thread_cpu_ns()};
    tw_host_track_add(&g->host.track[0], &p);
    tw_store(&g->host.watchdog_turn_ns, from);
    tw_store(&g->host.watchdog_due_ns, from + 10 * MS);
    tw_store(&g->host.watchdog_process_cpu_ns, tw_process_cpu_ns());
    tw_stream_token(&s, now, 1, 0);
    const tw_slow_record r = last_slow(g);
    TW_CHECK_NEAR(390e6, (double)part_of(&r, TW_DELAY_STOPPED, TW_MEASURED), 20e6);
    tw_segment_destroy(g);
}

TW_TEST(a_pause_after_the_token_was_ready_is_certain_and_before_it_an_estimate) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    uint64_t now = steady(&s, MS, 10 * MS, 16);
    loop_clock(g, now + 8 * MS, now + 8 * MS);
    pause_between(g, TW_CAUSE_GC2, now + 9 * MS, now + 39 * MS);
    tw_stream_token(&s, now += 40 * MS, 1, 0);
    TW_CHECK_EQ(30 * MS, s.delay_ns);
    TW_CHECK_EQ(30 * MS, g->lost[0].delay_ns[TW_PHASE_ITL][TW_CAUSE_GC2][TW_MEASURED]);
    tw_slow_record r = last_slow(g);
    TW_CHECK_EQ(30 * MS, part_of(&r, TW_CAUSE_GC2, TW_MEASURED));
    TW_CHECK_EQ(30 * MS, tw_parts_sum(&r.parts));
    /* The loop woke long after the pause: as this process may be the engine, the pause may be why. */
    pause_between(g, TW_CAUSE_GC1, now + 5 * MS, now + 15 * MS);
    loop_clock(g, now + 35 * MS, now + 35 * MS);
    tw_stream_token(&s, now += 36 * MS, 1, 0);
    r = last_slow(g);
    TW_CHECK_EQ(10 * MS, part_of(&r, TW_CAUSE_GC1, TW_ESTIMATED));
    TW_CHECK_EQ(26 * MS, tw_parts_sum(&r.parts));
    TW_CHECK_EQ(16 * MS, part_of(&r, TW_DELAY_UPSTREAM, TW_MEASURED));
    tw_segment_destroy(g);
}

/* Two tokens in one message: it is chained through the first. */
TW_TEST(a_chain_of_stamps_puts_lateness_into_its_segment) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    uint64_t now = steady(&s, MS, 10 * MS, 16);
    tw_stream_received(&s, now + 9 * MS, now + 9 * MS + 100 * US, now + 9 * MS + 200 * US);
    tw_stream_token(&s, now += 10 * MS, 1, 0);
    tw_stream_received(&s, now + 9 * MS, now + 19 * MS, now + 19 * MS + 100 * US);  /* 10 ms on its way */
    tw_stream_received(&s, now + 19 * MS, now + 19 * MS + 200 * US, now + 19 * MS + 200 * US);
    tw_stream_token(&s, now += 20 * MS, 2, 0);
    const tw_slow_record r = last_slow(g);
    TW_CHECK_EQ(10 * MS, tw_parts_sum(&r.parts));
    TW_CHECK(part_of(&r, TW_DELAY_TRANSPORT, TW_MEASURED) >= 9 * MS);
    TW_CHECK_EQ(1, g->drops[TW_DROP_UNJOINED]); /* no engine's steps are known here */
    tw_segment_destroy(g);
}

/* A server that sends two tokens at a time: a message waits for the second, and is chained through that. A third that came
 * before it was sent changes nothing. */
TW_TEST(a_message_that_waits_for_tokens_is_chained_through_the_last_of_them) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    s.interval = 2;
    uint64_t now = steady(&s, MS, 20 * MS, 16);
    tw_stream_received(&s, now + 9 * MS, now + 9 * MS, now + 9 * MS);
    TW_CHECK_EQ(now + 9 * MS, s.chain_first.key_ns);
    tw_stream_received(&s, now + 19 * MS, now + 19 * MS, now + 19 * MS);
    tw_stream_token(&s, now += 20 * MS, 2, 0);
    tw_stream_received(&s, now + 9 * MS, now + 9 * MS, now + 9 * MS);
    tw_stream_received(&s, now + 39 * MS, now + 39 * MS, now + 39 * MS); /* 20 ms late in the engine */
    tw_stream_received(&s, now + 40 * MS, now + 40 * MS, now + 40 * MS);
    TW_CHECK_EQ(now + 39 * MS, s.chain_first.key_ns);
    tw_stream_token(&s, now += 40 * MS, 3, 0);
    const tw_slow_record r = last_slow(g);
    TW_CHECK_EQ(20 * MS, tw_parts_sum(&r.parts));
    TW_CHECK_EQ(0, part_of(&r, TW_DELAY_OWN_CODE, TW_MEASURED));
    tw_stream_received(&s, now + 9 * MS, now + 9 * MS, now + 9 * MS);
    s.held += 1; /* that step made two: it is sent */
    tw_stream_received(&s, now + 19 * MS, now + 19 * MS, now + 19 * MS);
    TW_CHECK_EQ(now + 9 * MS, s.chain_first.key_ns);
    tw_segment_destroy(g);
}

/* Two tokens came before the first was sent, each in a message of its own: the one before the next token is the second. */
TW_TEST(tokens_that_came_together_and_left_apart_are_followed_by_a_chain) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    uint64_t now = steady(&s, MS, 10 * MS, 16);
    tw_stream_received(&s, now + 7 * MS, now + 7 * MS, now + 7 * MS);
    TW_CHECK_EQ(0, s.chained_before);
    tw_stream_received(&s, now + 9 * MS, now + 9 * MS, now + 9 * MS);
    tw_stream_token(&s, now += 10 * MS, 1, 0);
    tw_stream_token(&s, now += 10 * US, 1, 0);
    tw_stream_received(&s, now + 9 * MS, now + 40 * MS, now + 40 * MS); /* 31 ms on its way */
    tw_stream_token(&s, now += 41 * MS, 1, 0);
    tw_slow_record r = last_slow(g);
    TW_CHECK(part_of(&r, TW_DELAY_TRANSPORT, TW_MEASURED) >= 30 * MS);
    /* Of one that was not received, and the one after it, it is not known what came before. */
    tw_stream_token(&s, now += 10 * MS, 1, 0);
    tw_stream_received(&s, now + 9 * MS, now + 40 * MS, now + 40 * MS);
    tw_stream_token(&s, now += 41 * MS, 1, 0);
    r = last_slow(g);
    TW_CHECK_EQ(0, part_of(&r, TW_DELAY_TRANSPORT, TW_MEASURED));
    TW_CHECK_EQ(31 * MS, tw_parts_sum(&r.parts));
    tw_segment_destroy(g);
}

TW_TEST(without_a_typical_gap_nothing_is_late) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    uint64_t now = steady(&s, MS, 50 * MS, 3);
    TW_CHECK_EQ(0, tw_stream_typical_ns(&s));
    TW_CHECK_EQ(0, g->slow_head); /* 50 ms may be what this server does */
    pause_between(g, TW_CAUSE_GC2, now, now + 90 * MS);
    tw_stream_token(&s, now += 100 * MS, 1, 0);
    TW_CHECK_EQ(90 * MS, s.overlap_ns);
    TW_CHECK_EQ(0, s.delay_ns);
    TW_CHECK_EQ(1, g->slow_head);
    TW_CHECK_EQ(50 * MS, tw_stream_typical_ns(&s)); /* of four gaps */
    tw_stream_token(&s, now += 250 * MS, 1, 0);
    TW_CHECK_EQ(2, g->slow_head);
    open_at(&s, g, 0);
    tw_stream_token(&s, 1, 1, 0);
    tw_stream_token(&s, 1001 * MS, 1, 0);
    TW_CHECK_EQ(3, g->slow_head);
    tw_segment_destroy(g);
}

TW_TEST(slow_is_over_2_ms_and_half_a_typical_gap_beyond_it) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    uint64_t now = steady(&s, MS, MS, 16);
    tw_stream_token(&s, now += 3 * MS, 1, 0);
    TW_CHECK_EQ(0, g->slow_head);
    tw_stream_token(&s, now += 3 * MS + 1, 1, 0);
    TW_CHECK_EQ(1, g->slow_head);
    tw_segment_destroy(g);

    g = segment_of(&NO_SLO, 0);
    open_at(&s, g, 0);
    now = steady(&s, MS, 10 * MS, 16);
    tw_stream_token(&s, now += 15 * MS, 1, 0);
    TW_CHECK_EQ(0, g->slow_head);
    tw_stream_token(&s, now += 41 * MS, 1, 0);
    TW_CHECK_EQ(1, g->slow_head);
    const tw_slow_record slow = last_slow(g);
    TW_CHECK_EQ(1, slow.parts.n);
    TW_CHECK_EQ(TW_DELAY_UNEXPLAINED, slow.parts.part[0].cause);
    TW_CHECK_EQ(31 * MS, slow.parts.part[0].ns);
    TW_CHECK_EQ(31 * MS, booked_for(&g->lost[0], TW_PHASE_ITL, TW_DELAY_UNEXPLAINED));
    TW_CHECK_EQ(31 * MS, g->unexplained_ns[TW_PHASE_ITL][TW_UNEXPLAINED_NO_LOOP_CLOCK]);
    TW_CHECK_EQ(10 * MS, last_slow(g).typical_ns);
    TW_CHECK_EQ(31 * MS, last_slow(g).unexplained_ns);
    const tw_tail *tail = &g->tail[TW_PHASE_ITL][tw_octave_of(41 * MS)];
    TW_CHECK_EQ(1, tail->count);
    TW_CHECK_EQ(41 * MS, tail->time_ns);
    TW_CHECK_EQ(31 * MS, tail->unexplained_ns);
    tw_segment_destroy(g);

    g = segment_of(&NO_SLO, 3 * MS); /* as asked for */
    open_at(&s, g, 0);
    now = steady(&s, MS, 2 * MS, 2);
    tw_stream_token(&s, now += 3 * MS - 1, 1, 0);
    TW_CHECK_EQ(0, g->slow_head);
    tw_stream_token(&s, now += 3 * MS, 1, 0);
    TW_CHECK_EQ(1, g->slow_head);
    open_at(&s, g, 0);
    tw_stream_token(&s, 3 * MS - 1, 1, 0);
    TW_CHECK_EQ(1, g->slow_head);
    open_at(&s, g, 0);
    tw_stream_token(&s, 3 * MS, 1, 0);
    TW_CHECK_EQ(2, g->slow_head);
    tw_segment_destroy(g);
}

/* What is kept for the log alone is no delay: half of all gaps are beyond the typical one. */
TW_TEST(the_log_s_bound_is_no_rule_for_delays) {
    tw_segment *g = segment_of(&NO_SLO, 20 * MS);
    tw_stream s;
    open_at(&s, g, 0);
    uint64_t now = steady(&s, 10 * MS, 25 * MS, 16);
    const uint64_t before = g->slow_head;
    tw_stream_token(&s, now += 30 * MS, 1, 0);
    TW_CHECK_EQ(before + 1, g->slow_head);
    TW_CHECK_EQ(5 * MS, last_slow(g).unexplained_ns);
    TW_CHECK_EQ(0, booked_for(&g->lost[0], TW_PHASE_ITL, TW_DELAY_UNEXPLAINED));
    TW_CHECK_EQ(0, g->unexplained_ns[TW_PHASE_ITL][TW_UNEXPLAINED_NO_LOOP_CLOCK]);
    TW_CHECK_EQ(0, g->tail[TW_PHASE_ITL][tw_octave_of(30 * MS)].count);
    pause_between(g, TW_CAUSE_GC2, now + 10 * MS, now + 14 * MS);
    tw_stream_token(&s, now += 32 * MS, 1, 0); /* of its 7 ms the pause has 4 at most: the tail has as much as without a log */
    const tw_tail *tail = &g->tail[TW_PHASE_ITL][tw_octave_of(32 * MS)];
    TW_CHECK_EQ(1, tail->count);
    TW_CHECK_EQ(4 * MS, tail->delay_ns[TW_CAUSE_GC2]);
    TW_CHECK_EQ(3 * MS, tail->unexplained_ns);
    TW_CHECK_EQ(0, booked_for(&g->lost[0], TW_PHASE_ITL, TW_DELAY_UNEXPLAINED));
    open_at(&s, g, 0);
    tw_stream_token(&s, 30 * MS, 1, 0);
    TW_CHECK_EQ(TW_PHASE_TTFT, last_slow(g).phase);
    TW_CHECK_EQ(0, booked_for(&g->lost[0], TW_PHASE_TTFT, TW_DELAY_UNEXPLAINED));
    tw_segment_destroy(g);
}

/* The first gaps of the first stream: which are looked at depends on the log's bound, which are slow does not. */
TW_TEST(the_log_s_bound_makes_no_early_gap_slow) {
    for (uint64_t logged = 0; logged < 6 * MS; logged += 5 * MS) {
        tw_segment *g = segment_of(&NO_SLO, logged);
        tw_stream s;
        open_at(&s, g, 0);
        uint64_t now = steady(&s, MS, 2 * MS, 5);
        tw_stream_token(&s, now += 10 * MS, 1, 0);
        TW_CHECK_EQ(logged != 0, g->slow_head);
        TW_CHECK_EQ(0, booked_for(&g->lost[0], TW_PHASE_ITL, TW_DELAY_UNEXPLAINED));
        tw_segment_destroy(g);
    }
}

/* ---- pauses ---- */

TW_TEST(late_is_not_overlap) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    uint64_t now = steady(&s, MS, 40 * MS, 16);
    /* Hidden inside the wait for the model: the token comes when it would have come. */
    pause_between(g, TW_CAUSE_GC2, now + 5 * MS, now + 30 * MS);
    tw_stream_token(&s, now += 40 * MS, 1, 0);
    TW_CHECK_EQ(25 * MS, s.overlap_ns);
    TW_CHECK_EQ(0, s.delay_ns);
    /* In the way of a token that was ready at 40 ms. */
    pause_between(g, TW_CAUSE_GC2, now + 39 * MS, now + 64 * MS);
    tw_stream_token(&s, now += 64 * MS, 1, 0);
    TW_CHECK_EQ(50 * MS, s.overlap_ns);
    TW_CHECK_EQ(24 * MS, s.delay_ns);
    TW_CHECK_EQ(24 * MS, g->lost[0].delay_ns[TW_PHASE_ITL][TW_CAUSE_GC2][TW_ESTIMATED]);
    const tw_tail *tail = &g->tail[TW_PHASE_ITL][tw_octave_of(64 * MS)];
    TW_CHECK_EQ(24 * MS, tail->delay_ns[TW_CAUSE_GC2]);
    TW_CHECK_EQ(0, tail->unexplained_ns);
    TW_CHECK_EQ(1, g->slow_head);
    TW_CHECK_EQ(24 * MS, last_slow(g).parts.part[0].ns);
    TW_CHECK_EQ(TW_CAUSE_GC2, last_slow(g).parts.part[0].cause);
    TW_CHECK_EQ(40 * MS, tw_stream_typical_ns(&s));
    /* Without GC the gap is 40 ms. */
    tw_counts with = counts_of(&s.series->itl), without = counts_of(&s.series->itl_shift);
    tw_counts_add(&without, &with);
    const tw_layout *layout = tw_layout_of(TW_LAYOUT_ITL);
    TW_CHECK_EQ(18, with.slot[tw_slot_of(layout, 40 * MS)] + with.slot[tw_slot_of(layout, 64 * MS)]);
    TW_CHECK_EQ(18, without.slot[tw_slot_of(layout, 40 * MS)]);
    TW_CHECK_EQ(0, without.slot[tw_slot_of(layout, 64 * MS)]);
    TW_CHECK_EQ(with.sum_low - 24 * MS, without.sum_low);
    tw_segment_destroy(g);
}

TW_TEST(a_pause_charges_every_stream_it_touches) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream a, b;
    open_at(&a, g, 0);
    open_at(&b, g, 0);
    uint64_t now = steady(&a, MS, 5 * MS, 16);
    steady(&b, MS, 5 * MS, 16);
    pause_between(g, TW_CAUSE_GC1, now + 5 * MS, now + 105 * MS);
    tw_stream_token(&a, now + 105 * MS, 1, 0);
    tw_stream_token(&b, now + 106 * MS, 1, 0);
    TW_CHECK_EQ(100 * MS, a.delay_ns);
    TW_CHECK_EQ(100 * MS, b.delay_ns);
    TW_CHECK_EQ(200 * MS, g->lost[0].delay_ns[TW_PHASE_ITL][TW_CAUSE_GC1][TW_ESTIMATED]);
    tw_pause_record r;
    TW_CHECK(tw_pause_read(&g->pause, 0, &r));
    TW_CHECK_EQ(2, r.streams);
    TW_CHECK_EQ(200 * MS, r.overlap_ns);
    TW_CHECK_EQ(200 * MS, r.delay_ns);
    tw_segment_destroy(g);
}

/* ---- pauses of other processes ---- */

typedef struct two_peers {
    tw_segment *api, *engine, *other;
    tw_peer_set peer_set;
} two_peers;

/* An API process and two others, each of which works for an engine. */
static two_peers make_peers(uint64_t engine, uint64_t other_engine) {
    two_peers c = {.api = segment_of(&NO_SLO, 0), .engine = segment_of(&NO_SLO, 0), .other = segment_of(&NO_SLO, 0)};
    c.peer_set.n = 2;
    c.peer_set.stop_ns[0] = &c.engine->pause.last_stop_ns;
    c.peer_set.stop_ns[1] = &c.other->pause.last_stop_ns;
    c.peer_set.peer[0] = (tw_peer){&c.engine->pause, engine, tw_segment_source(c.api, "engine")};
    c.peer_set.peer[1] = (tw_peer){&c.other->pause, other_engine, tw_segment_source(c.api, "worker")};
    return c;
}

static void free_peers(two_peers *c) {
    tw_segment_destroy(c->api);
    tw_segment_destroy(c->engine);
    tw_segment_destroy(c->other);
}

/* A detokenizer's: on their way tokens wait for it, not while the engine makes them. */
TW_TEST(a_pause_of_what_tokens_pass_through_counts_once_they_are_on_their_way) {
    two_peers c = make_peers(1, TW_ENGINE_SHARED);
    const tw_lost *worker = &c.api->lost[2];
    tw_stream s;
    open_at(&s, c.api, 0);
    tw_stream_join(&s, &c.peer_set, 0);
    uint64_t now = steady(&s, MS, 10 * MS, 16);
    tw_stream_received(&s, now + 9 * MS, now + 9 * MS, now + 9 * MS);
    tw_stream_token(&s, now += 10 * MS, 1, 0);
    pause_between(c.other, TW_CAUSE_GC2, now + 5 * MS, now + 59 * MS);
    pause_between(c.other, TW_CAUSE_GC0, now + 61 * MS, now + 62 * MS); /* it has passed */
    tw_stream_received(&s, now + 9 * MS, now + 60 * MS, now + 60 * MS);
    tw_stream_token(&s, now += 62 * MS, 1, 0);
    tw_slow_record r = last_slow(c.api);
    TW_CHECK_EQ(50 * MS, part_of(&r, TW_CAUSE_GC2, TW_MEASURED));
    TW_CHECK_EQ(50 * MS, worker->delay_ns[TW_PHASE_ITL][TW_CAUSE_GC2][TW_MEASURED]);
    TW_CHECK_EQ(1 * MS, part_of(&r, TW_DELAY_TRANSPORT, TW_MEASURED));
    TW_CHECK_EQ(52 * MS, tw_parts_sum(&r.parts));
    pause_between(c.other, TW_CAUSE_GC1, now + 1 * MS, now + 31 * MS);
    tw_stream_received(&s, now + 39 * MS, now + 39 * MS, now + 39 * MS);
    tw_stream_token(&s, now += 40 * MS, 1, 0);
    r = last_slow(c.api);
    TW_CHECK_EQ(0, part_of(&r, TW_CAUSE_GC1, TW_MEASURED) + part_of(&r, TW_CAUSE_GC1, TW_ESTIMATED));
    TW_CHECK_EQ(0, booked_for(worker, TW_PHASE_ITL, TW_CAUSE_GC1) + booked_for(worker, TW_PHASE_ITL, TW_CAUSE_GC0));
    TW_CHECK_EQ(30 * MS, tw_parts_sum(&r.parts));
    /* A first token is on its way as well. */
    open_at(&s, c.api, now += MS);
    tw_stream_join(&s, &c.peer_set, 0);
    pause_between(c.other, TW_CAUSE_GC2, now + 20 * MS, now + 50 * MS);
    tw_stream_received(&s, now + 30 * MS, now + 51 * MS, now + 51 * MS);
    tw_stream_token(&s, now + 52 * MS, 1, 0);
    TW_CHECK_EQ(20 * MS, worker->delay_ns[TW_PHASE_TTFT][TW_CAUSE_GC2][TW_MEASURED]);
    TW_CHECK_EQ(0, worker->delay_ns[TW_PHASE_TTFT][TW_CAUSE_GC2][TW_ESTIMATED]);
    free_peers(&c);
}

TW_TEST(a_pause_of_the_engine_is_charged_to_the_engine) {
    two_peers c = make_peers(1, 1);
    tw_stream s;
    open_at(&s, c.api, 0);
    tw_stream_join(&s, &c.peer_set, 0);
    uint64_t now = steady(&s, MS, 40 * MS, 16);
    pause_between(c.engine, TW_CAUSE_GC2, now + 30 * MS, now + 130 * MS);
    pause_between(c.other, TW_CAUSE_GC1, now + 120 * MS, now + 140 * MS);
    pause_between(c.api, TW_CAUSE_GC0, now + 135 * MS, now + 137 * MS);
    tw_stream_token(&s, now += 150 * MS, 1, 0);
    const tw_lost *engine = &c.api->lost[1], *worker = &c.api->lost[2];
    TW_CHECK_EQ(100 * MS, engine->overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC2]);
    TW_CHECK_EQ(8 * MS, worker->overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC1]);
    TW_CHECK_EQ(2 * MS, c.api->lost[0].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC0]);
    TW_CHECK_EQ(110 * MS, s.overlap_ns);
    TW_CHECK_EQ(110 * MS, s.delay_ns);
    TW_CHECK_EQ(100 * MS, engine->delay_ns[TW_PHASE_ITL][TW_CAUSE_GC2][TW_ESTIMATED]);
    tw_pause_record own;
    TW_CHECK(tw_pause_read(&c.api->pause, 0, &own));
    TW_CHECK_EQ(1, own.streams);
    TW_CHECK_EQ(2 * MS, own.overlap_ns);
    free_peers(&c);
}

TW_TEST(a_slow_gap_names_the_others_that_held_it) {
    two_peers c = make_peers(1, 1);
    tw_stream s;
    open_at(&s, c.api, 0);
    tw_stream_join(&s, &c.peer_set, 0);
    uint64_t now = steady(&s, MS, 10 * MS, 16);
    pause_between(c.engine, TW_CAUSE_GC2, now + 10 * MS, now + 200 * MS);
    pause_between(c.api, TW_CAUSE_GC2, now + 200 * MS, now + 210 * MS);
    tw_stream_token(&s, now + 210 * MS, 1, 0);
    tw_slow_record r = last_slow(c.api);
    TW_CHECK_EQ(200 * MS, r.overlap_ns[TW_CAUSE_GC2]);
    TW_CHECK_EQ(1, r.share[0].source);
    TW_CHECK_EQ(TW_CAUSE_GC2, r.share[0].cause);
    TW_CHECK_EQ(190 * MS, r.share[0].overlap_ns);
    TW_CHECK_EQ(190 * MS, r.share[0].delay_ns);
    TW_CHECK_EQ(0, r.share[1].source | r.share[2].source | r.share[3].source);
    free_peers(&c);
}

TW_TEST(a_pause_of_an_engine_that_serves_others_is_not_charged) {
    two_peers c = make_peers(1, 2);
    tw_stream s;
    open_at(&s, c.api, 0);
    tw_stream_join(&s, &c.peer_set, 1);
    uint64_t now = steady(&s, MS, 40 * MS, 16);
    pause_between(c.other, TW_CAUSE_GC2, now + 30 * MS, now + 130 * MS);
    tw_stream_token(&s, now + 130 * MS, 1, 0);
    TW_CHECK_EQ(0, s.overlap_ns);
    free_peers(&c);
}

TW_TEST(which_engine_is_not_known) {
    two_peers c = make_peers(1, 2);
    tw_stream s;
    open_at(&s, c.api, 0);
    tw_stream_join(&s, &c.peer_set, 0);
    uint64_t now = steady(&s, MS, 40 * MS, 16);
    pause_between(c.engine, TW_CAUSE_GC2, now + 40 * MS, now + 60 * MS);
    pause_between(c.other, TW_CAUSE_GC2, now + 60 * MS, now + 130 * MS);
    tw_stream_token(&s, now + 130 * MS, 1, 0);
    TW_CHECK_EQ(70 * MS, s.overlap_ns);
    TW_CHECK_EQ(70 * MS, c.api->lost[TW_SOURCE_UNBOUND].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC2]);
    free_peers(&c);
}

/* Eight requests wait for the same pause: what is typical leaves it out, or they would acquit it. */
TW_TEST(first_tokens_after_entry_are_charged_beyond_what_is_typical) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s[9];
    for (int i = 0; i < 8; ++i) open_at(&s[i], g, 0);
    pause_between(g, TW_CAUSE_GC_OWN, 10 * MS, 340 * MS);
    for (int i = 0; i < 8; ++i) tw_stream_token(&s[i], 400 * MS, 1, 0);
    TW_CHECK_EQ(8 * 330 * MS, g->lost[0].delay_ns[TW_PHASE_TTFT][TW_CAUSE_GC_OWN][TW_ESTIMATED]);
    open_at(&s[8], g, 1000 * MS);
    pause_between(g, TW_CAUSE_GC2, 1010 * MS, 1040 * MS);
    tw_stream_token(&s[8], 1080 * MS, 1, 0); /* 10 ms beyond the 70 that are typical */
    TW_CHECK_EQ(10 * MS, g->lost[0].delay_ns[TW_PHASE_TTFT][TW_CAUSE_GC2][TW_ESTIMATED]);
    tw_segment_destroy(g);
}

TW_TEST(a_first_token_s_late_part_is_its_own_process_s) {
    two_peers c = make_peers(1, 1);
    tw_stream s;
    tw_stream_open(&s, c.api, MS, 21 * MS, 0, TW_ARRIVAL_TCP);
    tw_stream_join(&s, &c.peer_set, 0);
    pause_between(c.api, TW_CAUSE_GC1, 5 * MS, 15 * MS);
    pause_between(c.engine, TW_CAUSE_GC2, 10 * MS, 60 * MS);
    tw_stream_token(&s, 100 * MS, 1, 0);
    TW_CHECK_EQ((10 + 39) * MS, s.delay_ns);
    TW_CHECK_EQ(55 * MS, s.overlap_ns);
    TW_CHECK_EQ(10 * MS, c.api->lost[0].delay_ns[TW_PHASE_TTFT][TW_CAUSE_GC1][TW_MEASURED]);
    TW_CHECK_EQ(45 * MS, c.api->lost[1].overlap_ns[TW_PHASE_TTFT][TW_CAUSE_GC2]);
    TW_CHECK_EQ(0, c.api->lost[1].delay_ns[TW_PHASE_TTFT][TW_CAUSE_GC2][TW_MEASURED]);
    TW_CHECK_EQ(39 * MS, c.api->lost[1].delay_ns[TW_PHASE_TTFT][TW_CAUSE_GC2][TW_ESTIMATED]); /* from entry on */
    free_peers(&c);
}

TW_TEST(only_the_largest_shares_are_kept_and_the_sums_hold) {
    two_peers c = make_peers(1, 1);
    tw_stream s;
    open_at(&s, c.api, 0);
    tw_stream_join(&s, &c.peer_set, 0);
    uint64_t now = steady(&s, MS, MS, 16), at = now;
    for (int cause = 0; cause < TW_CAUSES; ++cause, at += 20 * MS)
        pause_between(c.engine, (tw_cause)cause, at, at + (uint64_t)(cause + 1) * MS);
    tw_stream_token(&s, at + MS, 1, 0);
    tw_slow_record r = last_slow(c.api);
    uint64_t kept = 0;
    for (int i = 0; i < TW_SHARES; ++i) kept += r.share[i].overlap_ns;
    TW_CHECK_EQ((3 + 4 + 5 + 6) * MS, kept);
    TW_CHECK_EQ(21 * MS, sum_of(r.overlap_ns));
    TW_CHECK_EQ(s.delay_ns, sum_of(r.delay_ns));
    TW_CHECK_EQ(s.delay_ns, delay_booked(&c.api->lost[1], TW_PHASE_ITL));
    free_peers(&c);
}

TW_TEST(two_stamps_inside_one_open_pause_are_both_charged) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    uint64_t now = steady(&s, MS, 5 * MS, 16);
    tw_pause_begin(&g->pause, TW_CAUSE_GC2, now + 2 * MS);
    tw_stream_token(&s, now + 30 * MS, 1, 0);
    TW_CHECK_EQ(28 * MS, s.overlap_ns);
    TW_CHECK_EQ(25 * MS, s.delay_ns);
    tw_stream_token(&s, now + 50 * MS, 1, 0);
    TW_CHECK_EQ(48 * MS, s.overlap_ns);
    TW_CHECK_EQ(40 * MS, s.delay_ns);
    tw_segment_pause_end(g, now + 60 * MS, NULL);
    tw_stream_token(&s, now + 61 * MS, 1, 0);
    TW_CHECK_EQ(58 * MS, s.overlap_ns);
    tw_stream_token(&s, now + 66 * MS, 1, 0);
    TW_CHECK_EQ(58 * MS, s.overlap_ns);
    tw_segment_destroy(g);
}

TW_TEST(ttft_is_late_by_what_paused_before_entry) {
    tw_slo slo = {.ttft_ns = 60 * MS};
    tw_segment *g = segment_of(&slo, 0);
    tw_stream s;
    pause_between(g, TW_CAUSE_GC2, 10 * MS, 40 * MS);
    tw_stream_open(&s, g, 20 * MS, 45 * MS, 0, TW_ARRIVAL_TCP);
    pause_between(g, TW_CAUSE_GC1, 50 * MS, 60 * MS);
    tw_stream_token(&s, 100 * MS, 1, 0);
    TW_CHECK_EQ(20 * MS, g->lost[0].overlap_ns[TW_PHASE_TTFT][TW_CAUSE_GC2]);
    TW_CHECK_EQ(10 * MS, g->lost[0].overlap_ns[TW_PHASE_TTFT][TW_CAUSE_GC1]);
    TW_CHECK_EQ(20 * MS, g->lost[0].delay_ns[TW_PHASE_TTFT][TW_CAUSE_GC2][TW_MEASURED]);
    TW_CHECK_EQ(10 * MS, g->lost[0].delay_ns[TW_PHASE_TTFT][TW_CAUSE_GC1][TW_ESTIMATED]);
    TW_CHECK_EQ(0, sum_of(g->lost[0].overlap_ns[TW_PHASE_ITL]));
    tw_slow_record r = last_slow(g);
    TW_CHECK_EQ(TW_PHASE_TTFT, r.phase);
    TW_CHECK_EQ(80 * MS, r.gap_ns);
    TW_CHECK_EQ(1, r.token);
    TW_CHECK_EQ(5 * MS, r.accept_ns); /* 25 ms unseen, 20 of them paused */
    TW_CHECK_EQ(20 * MS, r.delay_ns[TW_CAUSE_GC2]);
    TW_CHECK_EQ(45 * MS, r.unexplained_ns);
    TW_CHECK_EQ(5 * MS, g->tail[TW_PHASE_TTFT][tw_octave_of(80 * MS)].accept_ns);
    tw_pause_record first, second;
    TW_CHECK(tw_pause_read(&g->pause, 0, &first) && tw_pause_read(&g->pause, 1, &second));
    TW_CHECK_EQ(20 * MS, first.delay_ns);
    TW_CHECK_EQ(20 * MS, first.overlap_ns);
    TW_CHECK_EQ(10 * MS, second.delay_ns);
    TW_CHECK_EQ(10 * MS, second.overlap_ns);
    open_at(&s, g, 200 * MS); /* within its bound: not slow */
    tw_stream_token(&s, 260 * MS, 1, 0);
    TW_CHECK_EQ(1, g->slow_head);
    tw_segment_destroy(g);
}

TW_TEST(a_wrapped_ring_makes_overlap_a_lower_bound) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream s;
    open_at(&s, g, 0);
    uint64_t from = steady(&s, MS, MS, 16), now = from;
    for (int i = 0; i < TW_PAUSE_RING + 10; ++i, now += 200 * US) pause_between(g, TW_CAUSE_GC0, now, now + 100 * US);
    tw_stream_token(&s, now, 1, 0);
    TW_CHECK_EQ(1, g->drops[TW_DROP_PAUSE_RING_OVERFLOW]);
    TW_CHECK_EQ(TW_PAUSE_RING * 100 * US, s.overlap_ns);
    TW_CHECK_EQ(0, s.delay_ns);
    TW_CHECK_EQ(0, last_slow(g).complete);
    TW_CHECK_EQ(s.overlap_ns, sum_of(last_slow(g).overlap_ns));
    tw_segment_destroy(g);
}

/* Late is split over several causes without losing or inventing a nanosecond. */
TW_TEST(late_is_split_exactly) {
    tw_segment *g = segment_of(&NO_SLO, 1);
    tw_stream s;
    open_at(&s, g, 0);
    uint64_t random = 77, now = steady(&s, MS, 10 * MS, 16);
    for (int round = 0; round < 500; ++round) {
        uint64_t at = now & ~UINT64_C(1), delay_before = s.delay_ns, overlap_before = s.overlap_ns;
        for (int i = 0; i < 5; ++i) {
            uint64_t length = (TW_PAUSE_SHORT_NS + tw_test_random_below(&random, 3 * MS)) & ~UINT64_C(1);
            pause_between(g, (tw_cause)tw_test_random_below(&random, TW_CAUSES), at, at + length);
            at += length + 2 * tw_test_random_below(&random, MS / 2);
        }
        tw_stream_token(&s, now = at + 2 * MS + tw_test_random_below(&random, 10 * MS), 1, 0);
        tw_slow_record r = last_slow(g);
        TW_CHECK_EQ(s.delay_ns - delay_before, sum_of(r.delay_ns));
        TW_CHECK_EQ(s.overlap_ns - overlap_before, sum_of(r.overlap_ns));
        double share = (double)sum_of(r.delay_ns) / (double)sum_of(r.overlap_ns);
        for (int cause = 0; cause < TW_CAUSES; ++cause) {
            TW_CHECK(r.delay_ns[cause] <= r.overlap_ns[cause]);
            TW_CHECK_NEAR(share * (double)r.overlap_ns[cause], (double)r.delay_ns[cause], 2);
        }
    }
    TW_CHECK(s.delay_ns > 0 && s.delay_ns < s.overlap_ns);
    TW_CHECK_EQ(s.delay_ns, delay_booked(&g->lost[0], TW_PHASE_ITL));
    tw_segment_destroy(g);
}

/* ---- against a brute-force oracle ---- */

enum { STREAMS = 4, SPANS = 64, GAPS = 100000 };

typedef struct span {
    uint64_t from, to;
    tw_cause cause;
} span;

typedef struct shadow {
    tw_stream stream;
    uint64_t last, gaps, typical, overlap, delay;
    uint64_t rest[TW_RECENT];
} shadow;

typedef struct oracle {
    tw_segment *g;
    uint64_t random, now, spans, gaps, open_from, typicals;
    span span[SPANS];       /* the last closed pauses that are long enough to be recorded */
    uint64_t typical[16];
    bool open;
    tw_cause open_cause;
    uint64_t overlap[TW_CAUSES], delay[TW_CAUSES];
    uint64_t records_overlap;
    shadow shadow[STREAMS];
} oracle;

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint64_t median(const uint64_t *values, uint64_t n) {
    uint64_t sorted[16];
    if (n == 0) return 0;
    memcpy(sorted, values, n * sizeof *values);
    qsort(sorted, n, sizeof *sorted, ascending);
    return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

static uint64_t common(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    uint64_t from = a > c ? a : c, to = b < d ? b : d;
    return to > from ? to - from : 0;
}

static uint64_t oracle_overlap(const oracle *o, uint64_t from, uint64_t to, uint64_t *by_cause) {
    memset(by_cause, 0, TW_CAUSES * sizeof *by_cause);
    for (uint64_t i = 0; i < o->spans && i < SPANS; ++i)
        by_cause[o->span[i].cause] += common(from, to, o->span[i].from, o->span[i].to);
    if (o->open) by_cause[o->open_cause] += common(from, to, o->open_from, to);
    return sum_of(by_cause);
}

static void oracle_pause(oracle *o) {
    if (!o->open) {
        o->open_from = o->now;
        o->open_cause = (tw_cause)tw_test_random_below(&o->random, TW_CAUSES);
        tw_pause_begin(&o->g->pause, o->open_cause, o->now);
    } else {
        if (o->now - o->open_from >= TW_PAUSE_SHORT_NS)
            o->span[o->spans++ % SPANS] = (span){o->open_from, o->now, o->open_cause};
        tw_segment_pause_end(o->g, o->now, NULL);
    }
    o->open = !o->open;
}

static uint64_t shadow_typical(const shadow *h) {
    if (h->typical != 0 || h->gaps < 4) return h->typical;
    uint64_t found = median(h->rest, h->gaps < 16 ? h->gaps : 16);
    return found > 0 ? found : 1;
}

/* most_ns: the bound before the stamp. */
static void oracle_typical(oracle *o, shadow *h, uint64_t most_ns) {
    if (h->gaps % 8 != 0) return;
    uint64_t found = median(h->rest, h->gaps < 16 ? h->gaps : 16);
    if (h->gaps >= 16) found = found / 64 * 64;
    found = found > 0 ? found : 1;
    h->typical = most_ns != 0 && found > most_ns ? most_ns : found;
    o->typical[o->typicals++ % 16] = found;
}

static void oracle_begin(oracle *o, shadow *h) {
    memset(h, 0, sizeof *h);
    open_at(&h->stream, o->g, o->now);
    tw_stream_token(&h->stream, o->now, 1, 0);
    h->last = o->now;
    const uint64_t most_ns = h->stream.series->typical_most_ns;
    h->typical = median(o->typical, o->typicals < 16 ? o->typicals : 16);
    if (most_ns != 0 && h->typical > most_ns) h->typical = most_ns;
}

static void oracle_token(oracle *o, shadow *h) {
    const uint64_t most_ns = h->stream.series->typical_most_ns;
    uint64_t by_cause[TW_CAUSES], gap = o->now - h->last, typical = shadow_typical(h);
    uint64_t overlap = oracle_overlap(o, h->last, o->now, by_cause);
    uint64_t room = typical != 0 && gap > typical ? gap - typical : 0, delay = overlap < room ? overlap : room;
    uint64_t delay_before[TW_CAUSES];
    for (int i = 0; i < TW_CAUSES; ++i) delay_before[i] = booked_for(&o->g->lost[0], TW_PHASE_ITL, i);
    TW_CHECK_EQ(typical, tw_stream_typical_ns(&h->stream));
    tw_stream_token(&h->stream, o->now, 1, 0);
    h->overlap += overlap;
    h->delay += delay;
    TW_CHECK_EQ(h->overlap, h->stream.overlap_ns);
    TW_CHECK_EQ(h->delay, h->stream.delay_ns);
    for (int cause = 0; cause < TW_CAUSES; ++cause) {
        o->overlap[cause] += by_cause[cause];
        uint64_t part = booked_for(&o->g->lost[0], TW_PHASE_ITL, cause) - delay_before[cause];
        TW_CHECK(part <= by_cause[cause]);
        o->delay[cause] += part;
    }
    TW_CHECK_EQ(sum_of(delay_before) + delay, delay_booked(&o->g->lost[0], TW_PHASE_ITL));
    TW_CHECK_MEM(o->overlap, o->g->lost[0].overlap_ns[TW_PHASE_ITL], sizeof o->overlap);
    h->rest[h->gaps++ % TW_RECENT] = (gap - delay) / 64 * 64;
    h->last = o->now;
    oracle_typical(o, h, most_ns);
    ++o->gaps;
}

static void oracle_step(oracle *o) {
    static const uint64_t steps[] = {200, 20 * US, 60 * US, 3 * MS};
    uint64_t step = tw_test_random_below(&o->random, steps[tw_test_random_below(&o->random, 4)]);
    o->now += step & ~UINT64_C(1); /* pauses keep even times */
    shadow *h = &o->shadow[tw_test_random_below(&o->random, STREAMS)];
    uint64_t what = tw_test_random_below(&o->random, 1000);
    if (what < 200) {
        oracle_pause(o);
    } else if (what < 205) {
        tw_stream_close(&h->stream, o->now, TW_END_FINISHED);
        oracle_begin(o, h);
    } else {
        oracle_token(o, h);
    }
}

TW_TEST(overlap_and_late_match_brute_force) {
    oracle *o = calloc(1, sizeof *o);
    TW_REQUIRE(o != NULL);
    o->g = segment_of(&NO_SLO, 0);
    o->random = 20;
    o->now = 1000;
    for (int i = 0; i < STREAMS; ++i) oracle_begin(o, &o->shadow[i]);
    while (o->gaps < GAPS) oracle_step(o);
    TW_CHECK(sum_of(o->delay) > 0 && sum_of(o->delay) < sum_of(o->overlap));
    TW_CHECK_EQ(GAPS, counts_of(&tw_segment_series(o->g, 0)->itl).count);
    tw_counts shift = counts_of(&tw_segment_series(o->g, 0)->itl_shift);
    tw_counts itl = counts_of(&tw_segment_series(o->g, 0)->itl);
    tw_counts_add(&shift, &itl);
    TW_CHECK_EQ(itl.sum_low - sum_of(o->delay), shift.sum_low);
    TW_CHECK_EQ(0, o->g->drops[TW_DROP_PAUSE_RING_OVERFLOW]);
    tw_segment_destroy(o->g);
    free(o);
}

/* Stamps outside pauses: what streams were charged is what pauses and slow records hold. */
TW_TEST(stream_time_is_conserved) {
    enum { PAUSES = 120 };
    tw_segment *g = segment_of(&NO_SLO, 1);
    tw_stream streams[2];
    uint64_t random = 31, now = MS, overlap = 0, delay = 0;
    for (int i = 0; i < 2; ++i) {
        open_at(&streams[i], g, now);
        tw_stream_token(&streams[i], now += MS, 1, 0);
    }
    for (int i = 0; i < PAUSES; ++i) {
        uint64_t length = (50 * US + tw_test_random_below(&random, 30 * MS)) & ~UINT64_C(1);
        pause_between(g, (tw_cause)tw_test_random_below(&random, TW_CAUSES), now, now + length);
        now += length + 2 * tw_test_random_below(&random, 500 * US);
        for (int k = 0; k < 2; ++k) tw_stream_token(&streams[k], now += 2 * US, 1, 0);
    }
    for (int k = 0; k < 2; ++k) overlap += streams[k].overlap_ns, delay += streams[k].delay_ns;
    TW_CHECK(delay > 0 && delay < overlap);
    TW_CHECK_EQ(overlap, sum_of(g->lost[0].overlap_ns[TW_PHASE_ITL]) + sum_of(g->lost[0].overlap_ns[TW_PHASE_TTFT]));
    TW_CHECK_EQ(delay, delay_booked(&g->lost[0], TW_PHASE_ITL) + delay_booked(&g->lost[0], TW_PHASE_TTFT));
    uint64_t pause_overlap = 0, pause_delay = 0, slow_overlap = 0, slow_delay = 0, tail_delay = 0;
    for (uint64_t n = 0; n < g->pause.head; ++n) {
        tw_pause_record r;
        TW_CHECK(tw_pause_read(&g->pause, n, &r));
        pause_overlap += r.overlap_ns;
        pause_delay += r.delay_ns;
    }
    TW_CHECK_EQ(2 * PAUSES + 2, g->slow_head); /* the two first tokens as well */
    for (uint64_t n = 0; n < g->slow_head; ++n) {
        tw_slow_record r;
        TW_CHECK(tw_segment_slow_read(g, n, &r));
        slow_overlap += sum_of(r.overlap_ns);
        slow_delay += sum_of(r.delay_ns);
    }
    for (int octave = 0; octave < TW_OCTAVES; ++octave) tail_delay += sum_of(g->tail[TW_PHASE_ITL][octave].delay_ns);
    TW_CHECK_EQ(overlap, pause_overlap);
    TW_CHECK_EQ(delay, pause_delay);
    TW_CHECK_EQ(overlap, slow_overlap);
    TW_CHECK_EQ(delay, slow_delay);
    TW_CHECK_EQ(delay, tail_delay);
    tw_segment_destroy(g);
}

/* ---- fluidity ---- */

/* One deadline after the other, as in the paper: {slack, missed, total}. */
typedef struct fluid {
    int64_t slack, missed, total;
} fluid;

static void fluid_token(fluid *f, int64_t waited, int64_t deadline) {
    if (waited <= f->slack + deadline) {
        f->slack += deadline - waited;
        f->total += 1;
    } else {
        int64_t missed = (waited - f->slack - deadline) / deadline + 1;
        f->missed += missed;
        f->total += missed;
        f->slack = 0;
    }
}

TW_TEST(fluidity_by_the_book) {
    /* 64 tokens 5 ms apart, a deadline every 25 ms: one freeze of 1 s. */
    tw_slo slo = {.ttft_ns = 500 * MS, .tpot_ns = 25 * MS};
    for (int freeze_at = 1; freeze_at < 64; ++freeze_at) {
        tw_segment *g = segment_of(&slo, 0);
        tw_stream s;
        open_at(&s, g, 0);
        uint64_t now = 500 * MS; /* the first token exactly in time: no slack from it */
        tw_stream_token(&s, now, 1, 0);
        for (int i = 1; i < 64; ++i) tw_stream_token(&s, now += i == freeze_at ? 1000 * MS : 5 * MS, 1, 0);
        uint64_t slack = 20 * (uint64_t)(freeze_at - 1);
        uint64_t missed = slack + 25 >= 1000 ? 0 : (1000 - slack - 25) / 25 + 1;
        TW_CHECK_EQ(missed, s.due - s.met);
        TW_CHECK_EQ(missed > 0 ? 63 : 64, s.met);
        TW_CHECK_EQ(s.due, g->deadlines_due);
        TW_CHECK_EQ(s.met, g->deadlines_met);
        TW_CHECK_EQ(freeze_at >= 50, missed == 0);
        tw_segment_destroy(g);
    }
}

TW_TEST(fluidity_matches_brute_force) {
    tw_slo slo = {.ttft_ns = 40 * MS, .itl_ns = 7 * MS};
    tw_segment *g = segment_of(&slo, 0);
    uint64_t random = 8, due = 0, met = 0;
    for (int request = 0; request < 500; ++request) {
        tw_stream s;
        fluid f = {0, 0, 0};
        uint64_t now = 10 * S;
        open_at(&s, g, now);
        for (int i = 0; i < 60; ++i) {
            uint64_t waited = tw_test_random_below(&random, i ? 15 * MS : 80 * MS);
            uint32_t n = (uint32_t)(tw_test_random_below(&random, 8) == 0 ? 1 + tw_test_random_below(&random, 5) : 1);
            if (tw_test_random_below(&random, 20) == 0) tw_stream_token(&s, now, 1, 1); /* another choice: not judged */
            tw_stream_token(&s, now += waited, n, 0);
            fluid_token(&f, (int64_t)waited, i ? (int64_t)slo.itl_ns : (int64_t)slo.ttft_ns);
            for (uint32_t more = 1; more < n; ++more) fluid_token(&f, 0, (int64_t)slo.itl_ns);
        }
        tw_stream_close(&s, now, TW_END_FINISHED);
        TW_CHECK_EQ(f.total, s.due);
        TW_CHECK_EQ(f.total - f.missed, s.met);
        due += s.due;
        met += s.met;
    }
    TW_CHECK(met < due);
    TW_CHECK_EQ(due, g->deadlines_due);
    TW_CHECK_EQ(met, g->deadlines_met);
    uint64_t window_due = 0, window_met = 0;
    for (int i = 0; i < TW_SECONDS; ++i) {
        window_due += tw_low(g->seconds[i].due_met);
        window_met += tw_high(g->seconds[i].due_met);
    }
    TW_CHECK_EQ(due, window_due);
    TW_CHECK_EQ(met, window_met);
    tw_segment_destroy(g);
}

TW_TEST(fluidity_needs_both_deadlines) {
    static const tw_slo some[] = {{.ttft_ns = MS}, {.tpot_ns = MS}, {.itl_ns = MS}, {.e2e_ns = MS}};
    for (size_t i = 0; i < sizeof some / sizeof some[0]; ++i) {
        tw_segment *g = segment_of(&some[i], 0);
        tw_stream s;
        open_at(&s, g, 0);
        steady(&s, MS, MS, 20);
        TW_CHECK_EQ(0, g->deadlines_due);
        tw_segment_destroy(g);
    }
}

/* ---- the verdict ---- */

typedef struct verdict_case {
    tw_slo slo;
    uint32_t status, failed, tokens;
    uint64_t ttft, gap; /* ms */
    uint64_t end;       /* ms after arrival */
    tw_end how;
    tw_reason expected;
} verdict_case;

#define TTFT(ms) {.ttft_ns = (ms) * MS}
#define TPOT(ms) {.tpot_ns = (ms) * MS}
#define ITL(ms) {.itl_ns = (ms) * MS}
#define E2E(ms) {.e2e_ns = (ms) * MS}

static const verdict_case VERDICTS[] = {
    {{0}, 200, 0, 5, 10, 10, 60, TW_END_FINISHED, TW_REASON_GOOD},
    {{0}, 0, 0, 0, 0, 0, 60, TW_END_FINISHED, TW_REASON_GOOD},
    {{0}, 299, 0, 0, 0, 0, 60, TW_END_FINISHED, TW_REASON_GOOD},
    {{0}, 300, 0, 0, 0, 0, 60, TW_END_FINISHED, TW_REASON_3XX},
    {TTFT(1), 307, 0, 0, 0, 0, 60, TW_END_FINISHED, TW_REASON_3XX},
    {TTFT(1), 399, 1, 0, 0, 0, 60, TW_END_ERROR, TW_REASON_3XX},
    {TTFT(1), 304, 0, 0, 0, 0, 60, TW_END_ABORT, TW_REASON_3XX},
    {{0}, 302, 0, 0, 0, 0, 60, TW_END_TIMEOUT, TW_REASON_TIMEOUT},
    {TTFT(10), 200, 0, 2, 10, 99, 200, TW_END_FINISHED, TW_REASON_GOOD},
    {TTFT(10), 200, 0, 2, 11, 1, 200, TW_END_FINISHED, TW_REASON_LATE},
    {TTFT(10), 200, 0, 0, 0, 0, 10, TW_END_FINISHED, TW_REASON_GOOD}, /* no token: its end was its first byte */
    {TTFT(10), 200, 0, 0, 0, 0, 11, TW_END_FINISHED, TW_REASON_LATE},
    {TPOT(10), 200, 0, 5, 99, 10, 200, TW_END_FINISHED, TW_REASON_GOOD},
    {TPOT(10), 200, 0, 5, 99, 11, 200, TW_END_FINISHED, TW_REASON_LATE},
    {TPOT(10), 200, 0, 1, 99, 11, 200, TW_END_FINISHED, TW_REASON_GOOD},
    {ITL(10), 200, 0, 5, 99, 10, 200, TW_END_FINISHED, TW_REASON_GOOD},
    {ITL(10), 200, 0, 5, 99, 11, 200, TW_END_FINISHED, TW_REASON_LATE},
    {ITL(10), 200, 0, 2, 1, 5, 200, TW_END_FINISHED, TW_REASON_GOOD}, /* after the last token nothing is awaited */
    {E2E(100), 200, 0, 5, 10, 10, 100, TW_END_FINISHED, TW_REASON_GOOD},
    {E2E(100), 200, 0, 5, 10, 10, 101, TW_END_FINISHED, TW_REASON_LATE},
    {TTFT(1), 429, 1, 0, 0, 0, 60, TW_END_TIMEOUT, TW_REASON_429},
    {{0}, 429, 0, 0, 0, 0, 1, TW_END_ABORT, TW_REASON_429},
    {{0}, 408, 0, 0, 0, 0, 1, TW_END_FINISHED, TW_REASON_TIMEOUT},
    {{0}, 504, 0, 0, 0, 0, 1, TW_END_ERROR, TW_REASON_TIMEOUT},
    {{0}, 200, 1, 3, 1, 1, 9, TW_END_TIMEOUT, TW_REASON_TIMEOUT},
    {{0}, 503, 0, 0, 0, 0, 1, TW_END_TIMEOUT, TW_REASON_TIMEOUT},
    {{0}, 500, 0, 0, 0, 0, 1, TW_END_FINISHED, TW_REASON_5XX},
    {{0}, 503, 1, 0, 0, 0, 1, TW_END_ERROR, TW_REASON_5XX},
    {{0}, 400, 0, 0, 0, 0, 1, TW_END_FINISHED, TW_REASON_4XX},
    {{0}, 404, 1, 0, 0, 0, 1, TW_END_ERROR, TW_REASON_4XX},
    {{0}, 499, 0, 0, 0, 0, 1, TW_END_ABORT, TW_REASON_4XX},
    {{0}, 200, 0, 3, 1, 1, 9, TW_END_ERROR, TW_REASON_ERROR},
    {{0}, 0, 0, 0, 0, 0, 9, TW_END_ERROR, TW_REASON_ERROR},
    {{0}, 200, 1, 3, 1, 1, 9, TW_END_FINISHED, TW_REASON_ERROR},
    {TTFT(1), 200, 1, 0, 0, 0, 9, TW_END_ABORT, TW_REASON_ERROR},
    {{0}, 200, 0, 0, 0, 0, 900, TW_END_ABORT, TW_REASON_ABORT_EARLY},
    {TTFT(10), 0, 0, 0, 0, 0, 10, TW_END_ABORT, TW_REASON_ABORT_EARLY},
    {TTFT(10), 0, 0, 0, 0, 0, 11, TW_END_ABORT, TW_REASON_ABORT_LATE},
    {TTFT(10), 200, 0, 2, 11, 1, 20, TW_END_ABORT, TW_REASON_ABORT_LATE},
    {TTFT(10), 200, 0, 2, 10, 1, 20, TW_END_ABORT, TW_REASON_ABORT_EARLY},
    {ITL(10), 200, 0, 3, 50, 10, 80, TW_END_ABORT, TW_REASON_ABORT_EARLY},
    {ITL(10), 200, 0, 3, 50, 10, 81, TW_END_ABORT, TW_REASON_ABORT_LATE}, /* the gap still open */
    {ITL(10), 200, 0, 3, 50, 11, 73, TW_END_ABORT, TW_REASON_ABORT_LATE},
    {ITL(10), 200, 0, 0, 0, 0, 73, TW_END_ABORT, TW_REASON_ABORT_EARLY},
    {TPOT(10), 200, 0, 3, 50, 11, 73, TW_END_ABORT, TW_REASON_ABORT_LATE},
    {TPOT(10), 200, 0, 3, 50, 10, 400, TW_END_ABORT, TW_REASON_ABORT_EARLY},
    {E2E(100), 200, 0, 3, 50, 11, 100, TW_END_ABORT, TW_REASON_ABORT_EARLY},
    {E2E(100), 0, 0, 0, 0, 0, 101, TW_END_ABORT, TW_REASON_ABORT_LATE},
};

static void check_verdict(const verdict_case *c) {
    enum { ARRIVAL = 7 };
    tw_segment *g = segment_of(&c->slo, 0);
    tw_stream s;
    open_at(&s, g, ARRIVAL);
    s.status = c->status;
    s.failed = c->failed;
    if (c->tokens > 0) steady(&s, ARRIVAL + c->ttft * MS, c->gap * MS, (int)c->tokens - 1);
    uint64_t end = ARRIVAL + c->end * MS;
    if (!TW_CHECK_EQ(c->expected, tw_stream_verdict(&s, end, c->how)))
        fprintf(stderr, "verdict case %d\n", (int)(c - VERDICTS));
    tw_stream_close(&s, end, c->how);
    tw_outcome outcome = tw_reason_outcome(c->expected);
    bool answered = c->how == TW_END_FINISHED && c->status < 300 && !c->failed;
    const tw_second *second = tw_segment_second(g, end);
    for (int reason = 0; reason < TW_REASONS; ++reason)
        TW_CHECK_EQ(reason == (int)c->expected, s.series->reasons[reason]);
    TW_CHECK_EQ(outcome == TW_OUTCOME_GOOD, tw_low(second->good_miss));
    TW_CHECK_EQ(outcome == TW_OUTCOME_MISS, tw_high(second->good_miss));
    TW_CHECK_EQ(outcome == TW_OUTCOME_EXCLUDED, tw_low(second->excluded_finished));
    TW_CHECK_EQ(answered, tw_high(second->excluded_finished));
    TW_CHECK_EQ(answered, counts_of(&s.series->e2e).count);
    TW_CHECK_EQ(answered && c->tokens > 1, counts_of(&s.series->tpot).count);
    TW_CHECK_EQ(c->tokens > 0, counts_of(&s.series->ttft).count); /* whatever becomes of the request */
    if (outcome == TW_OUTCOME_GOOD) TW_CHECK_EQ(UINT64_C(0x100000001), second->ttft_tpot & second->itl_e2e);
    tw_segment_destroy(g);
}

TW_TEST(verdicts) {
    bool seen[TW_REASONS] = {false};
    for (size_t i = 0; i < sizeof VERDICTS / sizeof VERDICTS[0]; ++i) {
        check_verdict(&VERDICTS[i]);
        seen[VERDICTS[i].expected] = true;
    }
    for (int reason = 0; reason < TW_REASONS; ++reason) TW_CHECK(seen[reason]);
}

TW_TEST(tpot_is_judged_to_the_nanosecond) {
    tw_slo slo = TPOT(10);
    tw_segment *g = segment_of(&slo, 0);
    tw_stream s;
    open_at(&s, g, 0);
    steady(&s, MS, 10 * MS, 3);
    TW_CHECK_EQ(TW_REASON_GOOD, tw_stream_verdict(&s, S, TW_END_FINISHED));
    tw_stream_token(&s, 41 * MS + 1, 1, 0);
    TW_CHECK_EQ(TW_REASON_LATE, tw_stream_verdict(&s, S, TW_END_FINISHED));
    tw_stream_usage(&s, 6); /* the same span over more tokens */
    TW_CHECK_EQ(TW_REASON_GOOD, tw_stream_verdict(&s, S, TW_END_FINISHED));
    tw_segment_destroy(g);
}

TW_TEST(bounds_are_counted_one_by_one) {
    tw_slo slo = {.ttft_ns = 10 * MS, .tpot_ns = 10 * MS, .itl_ns = 10 * MS, .e2e_ns = 100 * MS};
    tw_segment *g = segment_of(&slo, 0);
    tw_stream s;
    const tw_second *second = tw_segment_second(g, 0);
    open_at(&s, g, 0); /* refused: nothing was kept */
    s.status = 429;
    tw_stream_close(&s, MS, TW_END_FINISHED);
    TW_CHECK_EQ(0, second->ttft_tpot | second->itl_e2e);
    open_at(&s, g, 0); /* a late first token only */
    tw_stream_token(&s, 11 * MS, 1, 0);
    tw_stream_token(&s, 12 * MS, 1, 0);
    tw_stream_close(&s, 13 * MS, TW_END_FINISHED);
    TW_CHECK_EQ(UINT64_C(1) << 32, second->ttft_tpot);
    TW_CHECK_EQ(UINT64_C(1) << 32 | 1, second->itl_e2e);
    open_at(&s, g, 0); /* broke off in the middle: what was measured was kept, the end never came */
    tw_stream_token(&s, 1 * MS, 1, 0);
    tw_stream_token(&s, 2 * MS, 1, 0);
    tw_stream_close(&s, 3 * MS, TW_END_ERROR);
    TW_CHECK_EQ(UINT64_C(2) << 32 | 1, second->ttft_tpot);
    TW_CHECK_EQ(UINT64_C(1) << 32 | 2, second->itl_e2e);
    open_at(&s, g, 0); /* excluded: not judged */
    tw_stream_token(&s, 1 * MS, 1, 0);
    tw_stream_close(&s, 3 * MS, TW_END_ABORT);
    TW_CHECK_EQ(UINT64_C(2) << 32 | 1, second->ttft_tpot);
    TW_CHECK_EQ(1, tw_low(second->excluded_finished));
    tw_segment_destroy(g);
}

/* ---- windows ---- */

typedef struct finish {
    uint64_t end, due, met;
    tw_reason reason;
    bool answered;
} finish;

static void check_window(const tw_segment *g, const finish *done, int n, uint64_t now, uint64_t window) {
    uint64_t expected[6] = {0}, found[6] = {0}, last = now / S, first = last + 1 - window;
    for (int i = 0; i < n; ++i) {
        if (done[i].end / S < first || done[i].end / S > last) continue;
        tw_outcome outcome = tw_reason_outcome(done[i].reason);
        expected[outcome] += 1;
        expected[3] += done[i].answered;
        expected[4] += done[i].due;
        expected[5] += done[i].met;
    }
    for (int i = 0; i < TW_SECONDS; ++i) {
        const tw_second *slot = &g->seconds[i];
        if (slot->second == 0 || slot->second - 1 < first || slot->second - 1 > last) continue;
        uint64_t parts[] = {tw_low(slot->good_miss), tw_high(slot->good_miss), tw_low(slot->excluded_finished),
                            tw_high(slot->excluded_finished), tw_low(slot->due_met), tw_high(slot->due_met)};
        for (int k = 0; k < 6; ++k) found[k] += parts[k];
    }
    TW_CHECK_MEM(expected, found, sizeof expected);
}

TW_TEST(windows_match_brute_force) {
    enum { REQUESTS = 6000 };
    tw_slo slo = {.ttft_ns = 500 * MS, .tpot_ns = 20 * MS, .e2e_ns = 2 * S};
    tw_segment *g = segment_of(&slo, 0);
    finish *done = calloc(REQUESTS, sizeof *done);
    TW_REQUIRE(done != NULL);
    uint64_t random = 99, now = 2 * TW_SECONDS * S;
    for (int i = 0; i < REQUESTS; ++i) {
        tw_stream s;
        now += tw_test_random_below(&random, 4 * S);
        open_at(&s, g, now - tw_test_random_below(&random, 3 * S));
        for (uint64_t k = tw_test_random_below(&random, 6); k > 0; --k)
            tw_stream_token(&s, s.last_ns + tw_test_random_below(&random, 100 * MS), 1, 0);
        if (tw_test_random_below(&random, 5) == 0) s.status = 290 + (uint32_t)tw_test_random_below(&random, 220);
        tw_end how = tw_test_random_below(&random, 3) ? TW_END_FINISHED : (tw_end)tw_test_random_below(&random, 4);
        uint64_t end = now > s.last_ns ? now : s.last_ns;
        bool answered = how == TW_END_FINISHED && s.status < 300;
        done[i] = (finish){end, s.due, s.met, tw_stream_verdict(&s, end, how), answered};
        tw_stream_close(&s, end, how);
        if (i % 50 != 49) continue;
        check_window(g, done, i + 1, now, 1);
        check_window(g, done, i + 1, now, 60);
        check_window(g, done, i + 1, now, 3000);
    }
    uint64_t judged = 0;
    for (int reason = 0; reason < TW_REASONS; ++reason) judged += tw_segment_series(g, 0)->reasons[reason];
    TW_CHECK_EQ(REQUESTS, judged);
    TW_CHECK_EQ(0, g->in_flight);
    free(done);
    tw_segment_destroy(g);
}

TW_TEST(an_end_an_hour_ago_is_counted_as_dropped) {
    tw_segment *g = segment_of(&NO_SLO, 0);
    tw_stream old, fresh;
    open_at(&old, g, 5 * S);
    open_at(&fresh, g, 5 * S);
    tw_stream_close(&fresh, (TW_SECONDS + 6) * S, TW_END_FINISHED);
    tw_stream_close(&old, 6 * S, TW_END_FINISHED);
    TW_CHECK_EQ(1, g->drops[TW_DROP_OUT_OF_ORDER_STAMP]);
    TW_CHECK_EQ(2, old.series->reasons[TW_REASON_GOOD]);
    TW_CHECK_EQ(0, g->in_flight);
    tw_segment_destroy(g);
}

/* ---- what it costs ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEMORY_IS_OURS 0 /* the sanitizer's own memory grows */
#else
#define MEMORY_IS_OURS 1
#endif

static uint64_t resident_pages(void) {
    unsigned long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    TW_REQUIRE(file != NULL);
    setvbuf(file, NULL, _IONBF, 0);
    TW_CHECK(fscanf(file, "%lu %lu", &size, &resident) == 2);
    fclose(file);
    return resident;
}

static void stamp_on(tw_stream *s, uint64_t *random, int n) {
    uint64_t now = s->last_ns;
    for (int i = 0; i < n; ++i) tw_stream_token(s, now += tw_test_random_below(random, i % 1000 ? 10 * MS : S), 1, 0);
}

TW_TEST(ten_million_stamps_leave_memory_as_it_was) {
    enum { WARM = 500000, STAMPS = 10000000 };
    tw_slo slo = {.ttft_ns = S, .tpot_ns = 5 * MS};
    tw_segment *g = segment_of(&slo, 0);
    uint64_t random = 1;
    tw_stream s;
    open_at(&s, g, 0);
    stamp_on(&s, &random, WARM); /* fills the ring of slow records */
    TW_CHECK(resident_pages() > 0); /* stdio settles */
    uint64_t pages = resident_pages();
    stamp_on(&s, &random, STAMPS);
    TW_CHECK(!MEMORY_IS_OURS || resident_pages() <= pages + 16);
    TW_CHECK_EQ(WARM + STAMPS, s.series->output_tokens);
    TW_CHECK_EQ(WARM + STAMPS - 1, counts_of(&s.series->itl).count);
    tw_segment_destroy(g);
}
