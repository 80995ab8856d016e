/* Which slow gaps a segment keeps: the last ones, and the longest of each minute, each hour and the run. */
#include "tailwatch/record/slow_gaps.h"

#include <stdlib.h>

#include "tailwatch/base/atomic.h"
#include "tw_test.h"

#define S TW_NS_PER_SECOND

static tw_segment *segment(void) {
    tw_segment *g = NULL;
    TW_REQUIRE(tw_segment_create(&g, "api", 1, false, NULL, 0) == 0);
    return g;
}

/* As a stream keeps one: in the ring, then in the slots, then published. */
static void slow(tw_segment *g, tw_phase phase, uint64_t end_ns, uint64_t gap_ns) {
    const uint64_t n = g->slow_head;
    g->slow[n % TW_SLOW_RING] = (tw_slow_record){.seq = n + 1, .end_ns = end_ns, .phase = phase, .gap_ns = gap_ns};
    tw_slow_keep(g->slow_longest, &g->slow[n % TW_SLOW_RING]);
    tw_store_release(&g->slow_head, n + 1);
}

static uint32_t times_of(const tw_slow_record *records, size_t n, uint64_t gap_ns) {
    uint32_t times = 0;
    for (size_t i = 0; i < n; i++) times += records[i].gap_ns == gap_ns;
    return times;
}

/* Five a second for two days, with one long gap in them: the shape that lost the gaps of an hour ago. */
TW_TEST(the_longest_of_a_minute_an_hour_and_the_run_outlive_the_ring) {
    tw_segment *g = segment();
    const uint64_t end_s = UINT64_C(48) * 3600;
    for (uint64_t t = 0; t < 5 * end_s; t++) slow(g, TW_PHASE_ITL, 10 * S + t * S / 5, 25 + t % 2);
    for (int i = 0; i < TW_SLOW_RUN; i++) slow(g, TW_PHASE_ITL, 10 * S, 40000); /* their minute has gone long ago */
    slow(g, TW_PHASE_ITL, (end_s - 20 * 3600) * S, 2000); /* the longest of its hour */
    slow(g, TW_PHASE_ITL, (end_s - 1800) * S, 1000);      /* of its minute: its hour has a longer one */
    slow(g, TW_PHASE_ITL, (end_s - 1740) * S, 1500);
    slow(g, TW_PHASE_TTFT, (end_s - 1800) * S, 3);        /* a shorter one, of another phase */
    for (uint64_t t = 0; t < 2 * TW_SLOW_RING; t++) slow(g, TW_PHASE_ITL, end_s * S + t, 20);
    static tw_slow_record kept[TW_SLOW_KEPT];
    const size_t n = tw_slow_gaps_read(g, kept);
    TW_CHECK(n > TW_SLOW_RING + 60 && n <= TW_SLOW_KEPT);
    TW_CHECK_EQ(TW_SLOW_RUN, times_of(kept, n, 40000));
    TW_CHECK_EQ(1, times_of(kept, n, 2000));
    TW_CHECK_EQ(1, times_of(kept, n, 1000));
    TW_CHECK_EQ(1, times_of(kept, n, 3));
    TW_CHECK_EQ(TW_SLOW_RING, times_of(kept, n, 20));
    tw_segment_destroy(g);
}

TW_TEST(a_slow_gap_that_the_ring_and_slots_hold_is_read_once) {
    tw_segment *g = segment();
    for (uint64_t i = 1; i <= 100; i++) slow(g, TW_PHASE_ITL, i * S, i);
    static tw_slow_record kept[TW_SLOW_KEPT];
    TW_CHECK_EQ(100, tw_slow_gaps_read(g, kept));
    for (uint64_t i = 1; i <= 100; i++) TW_CHECK_EQ(1, times_of(kept, 100, i));
    tw_segment_destroy(g);
}

TW_TEST(a_record_being_written_or_of_no_phase_is_not_kept) {
    tw_segment *g = segment();
    const tw_slow_record odd = {.seq = 1, .phase = TW_PHASES, .gap_ns = 5}, unwritten = {.gap_ns = 5};
    tw_slow_keep(g->slow_longest, &odd);
    tw_slow_keep(g->slow_longest, &unwritten);
    static tw_slow_record kept[TW_SLOW_KEPT];
    TW_CHECK_EQ(0, tw_slow_gaps_read(g, kept));
    tw_segment_destroy(g);
}
