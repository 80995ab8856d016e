#include "tailwatch/record/histogram.h"

#include "segment_tools.h"
#include "tw_test.h"

/* ---- The layout ---- */

/* Every classic bound and a sample of the buckets' edges, with the nanosecond before and after, land where big integer
 * arithmetic puts them. */
TW_TEST(golden) {
    FILE *file = fopen(TW_TEST_DATA "/layout_golden.txt", "r");
    TW_REQUIRE(file != NULL);
    char line[256];
    int values = 0;
    while (fgets(line, sizeof line, file)) {
        uint64_t value;
        int bucket, slot[TW_LAYOUTS];
        if (line[0] == '#') continue;
        TW_REQUIRE(sscanf(line, "%" SCNu64 " %d %d %d %d %d", &value, &bucket, &slot[0], &slot[1], &slot[2],
                          &slot[3]) == 6);
        if (tw_bucket_of(value) != bucket) fprintf(stderr, "value %" PRIu64 "\n", value);
        TW_CHECK_EQ(bucket, tw_bucket_of(value));
        for (int kind = 0; kind < TW_LAYOUTS; kind++) TW_CHECK_EQ(slot[kind], tw_slot_of(tw_layout_of(kind), value));
        values++;
    }
    fclose(file);
    TW_CHECK(values > 200);
}

TW_TEST(layout_of) {
    TW_CHECK(tw_layout_of(-1) == NULL);
    TW_CHECK(tw_layout_of(TW_LAYOUTS) == NULL);
    TW_CHECK(tw_layout_hash() != 0);
    for (int kind = 0; kind < TW_LAYOUTS; kind++) {
        const tw_layout *layout = tw_layout_of(kind);
        TW_REQUIRE(layout != NULL);
        TW_CHECK(layout->slots <= TW_SLOTS_MAX);
        TW_CHECK(layout->bounds >= 1 && layout->bounds <= TW_BOUNDS_MAX);
    }
}

/* The classic bounds that are exported, in nanoseconds. */
TW_TEST(bounds) {
    static const double ttft[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
                                  0.75,  1,     2.5,  5,    7.5,  10,   20,   40,  80,   160};
    static const double e2e[] = {0.01, 0.02, 0.04, 0.08, 0.16,  0.32,  0.64, 1.28,
                                 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84};
    static const double itl[] = {0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015,
                                 0.02,   0.025, 0.03,  0.04,  0.05,  0.075, 0.1,    0.15, 0.2,
                                 0.3,    0.4,   0.5,   0.75,  1,     2.5,   5,      10};
    static const double pause[] = {0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 50};
    static const struct {
        const double *seconds;
        size_t count;
    } expected[TW_LAYOUTS] = {{ttft, sizeof ttft / sizeof *ttft},
                              {e2e, sizeof e2e / sizeof *e2e},
                              {itl, sizeof itl / sizeof *itl},
                              {pause, sizeof pause / sizeof *pause}};
    for (int kind = 0; kind < TW_LAYOUTS; kind++) {
        const tw_layout *layout = tw_layout_of(kind);
        TW_REQUIRE(layout->bounds == expected[kind].count);
        for (uint32_t i = 0; i < layout->bounds; i++)
            TW_CHECK_EQ(llround(expected[kind].seconds[i] * 1e9), layout->bound_ns[i]);
    }
}

/* Slots follow each other without a gap, and a value at either side of an edge is in its slot. */
TW_TEST(edges) {
    for (int kind = 0; kind < TW_LAYOUTS; kind++) {
        const tw_layout *layout = tw_layout_of(kind);
        uint64_t below = 0;
        for (uint32_t slot = 0; slot < layout->slots; slot++) {
            uint64_t lower, upper;
            tw_slot_edges(layout, slot, &lower, &upper);
            TW_CHECK_EQ(below, lower);
            TW_CHECK(upper > lower);
            TW_CHECK_EQ(slot, tw_slot_of(layout, upper));
            TW_CHECK_EQ(slot, tw_slot_of(layout, lower + 1));
            below = upper;
        }
        TW_CHECK_EQ(UINT64_MAX, below);
    }
}

/* A bound is the upper edge of its slot. */
TW_TEST(bound_slots) {
    for (int kind = 0; kind < TW_LAYOUTS; kind++) {
        const tw_layout *layout = tw_layout_of(kind);
        for (uint32_t i = 0; i < layout->bounds; i++) {
            uint64_t lower, upper;
            tw_slot_edges(layout, layout->bound_slot[i], &lower, &upper);
            TW_CHECK_EQ(layout->bound_ns[i], upper);
        }
    }
}

/* Buckets are the union of one or two slots, in order: an exponential histogram is a sum of slots. */
TW_TEST(buckets_of_slots) {
    for (int kind = 0; kind < TW_LAYOUTS; kind++) {
        const tw_layout *layout = tw_layout_of(kind);
        uint32_t next = 1;
        for (int bucket = 0; bucket < TW_BUCKETS; bucket++) {
            uint64_t lower, upper, unused;
            uint32_t slots = layout->bucket_split[bucket] == UINT64_MAX ? 1 : 2;
            TW_CHECK_EQ(next, layout->bucket_slot[bucket]);
            tw_slot_edges(layout, next, &lower, &unused);
            tw_slot_edges(layout, next + slots - 1, &unused, &upper);
            TW_CHECK_EQ(tw_bucket_upper_ns(bucket - 1), lower);
            TW_CHECK_EQ(tw_bucket_upper_ns(bucket), upper);
            TW_CHECK_EQ(bucket, tw_bucket_of(upper));
            next += slots;
        }
        TW_CHECK_EQ(layout->slots, next + 1);
    }
}

/* ---- Recording ---- */

typedef struct pair {
    tw_histogram histogram;
    tw_counts counts;
} pair;

static pair *new_pair(void) {
    pair *p = calloc(1, sizeof *p);
    TW_REQUIRE(p != NULL);
    tw_histogram_init(&p->histogram);
    return p;
}

static const tw_layout *itl_layout(void) { return tw_layout_of(TW_LAYOUT_ITL); }

TW_TEST(empty) {
    pair *p = new_pair();
    tw_counts made;
    tw_counts_init(&made);
    tw_histogram_read(&p->histogram, &p->counts);
    TW_CHECK_MEM(&made, &p->counts, sizeof made);
    TW_CHECK_EQ(0, tw_counts_quantile(&made, itl_layout(), 0.5));
    TW_CHECK_EQ(0, counts_below(&made, itl_layout(), 0));
    TW_CHECK_NEAR(0.0, tw_counts_sum_seconds(&made), 0.0);
    free(p);
}

TW_TEST(records) {
    static const uint64_t values[] = {0, 1, 20000000, 20000001, 5000000000, UINT64_MAX};
    pair *p = new_pair();
    for (size_t i = 0; i < 5; i++) tw_histogram_record(&p->histogram, itl_layout(), values[i]);
    tw_histogram_read(&p->histogram, &p->counts);
    TW_CHECK_EQ(5, p->counts.count);
    TW_CHECK_EQ(0, p->counts.min_ns);
    TW_CHECK_EQ(5000000000, p->counts.max_ns);
    TW_CHECK_EQ(5040000002, p->counts.sum_low);
    TW_CHECK_EQ(0, p->counts.sum_high);
    TW_CHECK_EQ(2, p->counts.slot[0]);
    tw_histogram_record(&p->histogram, itl_layout(), values[5]);
    tw_histogram_read(&p->histogram, &p->counts);
    TW_CHECK_EQ(1, p->counts.slot[itl_layout()->slots - 1]);
    TW_CHECK_EQ(UINT64_MAX, p->counts.max_ns);
    TW_CHECK_EQ(1, p->counts.sum_high);
    TW_CHECK_EQ(5040000001, p->counts.sum_low);
    TW_CHECK_EQ(0, p->histogram.carry_seq % 2);
    free(p);
}

/* Classic counts are exact: at or below, compared with counting the values themselves. */
TW_TEST(below) {
    enum { N = 20000 };
    uint64_t state = 7;
    for (int kind = 0; kind < TW_LAYOUTS; kind++) {
        const tw_layout *layout = tw_layout_of(kind);
        pair *p = new_pair();
        uint64_t expected[TW_BOUNDS_MAX] = {0};
        for (int i = 0; i < N; i++) {
            /* Half of the values lie on a bound or one nanosecond beside it. */
            uint64_t value = UINT64_C(1) << tw_test_random_below(&state, 40);
            value += tw_test_random_below(&state, value);
            if (i % 2) value = layout->bound_ns[tw_test_random_below(&state, layout->bounds)] + (uint64_t)(i % 3) - 1;
            tw_histogram_record(&p->histogram, layout, value);
            for (uint32_t b = 0; b < layout->bounds; b++) expected[b] += value <= layout->bound_ns[b];
        }
        tw_histogram_read(&p->histogram, &p->counts);
        for (uint32_t b = 0; b < layout->bounds; b++)
            TW_CHECK_EQ(expected[b], counts_below(&p->counts, layout, b));
        TW_CHECK_EQ(N, counts_below(&p->counts, layout, layout->bounds));
        free(p);
    }
}

/* A histogram and its correction add up to the histogram of the corrected values. */
TW_TEST(moves) {
    uint64_t state = 11;
    pair *gaps = new_pair(), *shift = new_pair(), *expected = new_pair();
    for (int i = 0; i < 5000; i++) {
        uint64_t gap = 1 + tw_test_random_below(&state, UINT64_C(1) << tw_test_random_below(&state, 38));
        uint64_t corrected = i % 3 ? gap : tw_test_random_below(&state, gap + 1);
        tw_histogram_record(&gaps->histogram, itl_layout(), gap);
        if (corrected != gap) tw_histogram_move(&shift->histogram, itl_layout(), gap, corrected);
        tw_histogram_record(&expected->histogram, itl_layout(), corrected);
    }
    tw_histogram_read(&gaps->histogram, &gaps->counts);
    tw_histogram_read(&shift->histogram, &shift->counts);
    tw_histogram_read(&expected->histogram, &expected->counts);
    TW_CHECK_EQ(0, shift->counts.count);
    tw_counts_add(&gaps->counts, &shift->counts);
    TW_CHECK_EQ(expected->counts.count, gaps->counts.count);
    TW_CHECK_EQ(expected->counts.sum_low, gaps->counts.sum_low);
    TW_CHECK_EQ(expected->counts.sum_high, gaps->counts.sum_high);
    TW_CHECK_EQ(expected->counts.min_ns, gaps->counts.min_ns);
    TW_CHECK_MEM(expected->counts.slot, gaps->counts.slot, sizeof gaps->counts.slot);
    free(gaps), free(shift), free(expected);
}

/* The greatest corrected value is not the value that was corrected. */
TW_TEST(moved_maximum) {
    pair *gaps = new_pair(), *shift = new_pair();
    tw_histogram_record(&gaps->histogram, itl_layout(), 10000000);
    tw_histogram_record(&gaps->histogram, itl_layout(), 900000000);
    tw_histogram_move(&shift->histogram, itl_layout(), 900000000, 12000000);
    tw_histogram_read(&gaps->histogram, &gaps->counts);
    tw_histogram_read(&shift->histogram, &shift->counts);
    tw_counts_add(&gaps->counts, &shift->counts);
    TW_CHECK_NEAR(12e6, (double)tw_counts_quantile(&gaps->counts, itl_layout(), 1.0), 12e6 * 0.022);
    TW_CHECK_EQ(10000000, tw_counts_quantile(&gaps->counts, itl_layout(), 0.0));
    free(gaps), free(shift);
}

/* Moving up, moving within a slot, and many carries up and down leave the exact 128-bit sum. */
TW_TEST(sum_128) {
    pair *p = new_pair();
    for (int i = 0; i < 1000; i++) tw_histogram_record(&p->histogram, itl_layout(), UINT64_MAX);
    for (int i = 0; i < 999; i++) tw_histogram_move(&p->histogram, itl_layout(), UINT64_MAX, 0);
    tw_histogram_move(&p->histogram, itl_layout(), UINT64_MAX, 1000000);
    tw_histogram_move(&p->histogram, itl_layout(), 1000000, 1000001);
    tw_histogram_read(&p->histogram, &p->counts);
    TW_CHECK_EQ(1000, p->counts.count);
    TW_CHECK_EQ(0, p->counts.sum_high);
    TW_CHECK_EQ(1000001, p->counts.sum_low);
    free(p);
}

/* A writer that died in the middle of a carry leaves a histogram that can still be read. */
TW_TEST(killed_writer) {
    pair *p = new_pair();
    tw_histogram_record(&p->histogram, itl_layout(), 5000000);
    p->histogram.carry_seq = 1;
    tw_histogram_read(&p->histogram, &p->counts);
    TW_CHECK_EQ(1, p->counts.count);
    TW_CHECK_EQ(5000000, p->counts.sum_low);
    free(p);
}

/* ---- Merging ---- */

static void fill(tw_counts *out, uint64_t seed, int samples) {
    pair *p = new_pair();
    for (int i = 0; i < samples; i++) {
        uint64_t octave = tw_test_random_below(&seed, 64);
        tw_histogram_record(&p->histogram, itl_layout(), tw_test_random(&seed) >> octave);
    }
    tw_histogram_read(&p->histogram, out);
    free(p);
}

TW_TEST(merge) {
    tw_counts *c = calloc(6, sizeof *c);
    TW_REQUIRE(c != NULL);
    for (int i = 0; i < 3; i++) fill(&c[i], (uint64_t)i + 1, 1000 * i);
    c[3] = c[0], c[4] = c[2], c[5] = c[1];
    tw_counts_add(&c[3], &c[1]); /* (a + b) + c */
    tw_counts_add(&c[3], &c[2]);
    tw_counts_add(&c[5], &c[2]); /* a + (b + c), c + b + a */
    tw_counts_add(&c[4], &c[1]);
    tw_counts_add(&c[4], &c[0]);
    tw_counts_add(&c[5], &c[0]);
    TW_CHECK_EQ(3000, c[3].count);
    TW_CHECK_MEM(&c[3], &c[4], sizeof *c);
    TW_CHECK_MEM(&c[3], &c[5], sizeof *c);
    free(c);
}

static tw_counts window_of(const uint64_t *early, int n_early, const uint64_t *late, int n_late) {
    pair *p = new_pair();
    tw_counts before;
    for (int i = 0; i < n_early; i++) tw_histogram_record(&p->histogram, itl_layout(), early[i]);
    tw_histogram_read(&p->histogram, &before);
    for (int i = 0; i < n_late; i++) tw_histogram_record(&p->histogram, itl_layout(), late[i]);
    tw_histogram_read(&p->histogram, &p->counts);
    tw_counts_subtract(&p->counts, &before, itl_layout());
    tw_counts result = p->counts;
    free(p);
    return result;
}

/* A window's counts and sum are exact; its extremes are exact when new, else edges of what remains. */
TW_TEST(windows) {
    static const uint64_t wide[] = {1000000, 80000000}, narrow[] = {9000000, 11000000};
    tw_counts none, w = window_of(wide, 2, narrow, 2);
    tw_counts_init(&none);
    TW_CHECK_EQ(2, w.count);
    TW_CHECK_EQ(20000000, w.sum_low);
    TW_CHECK(w.min_ns < 9000000 && w.min_ns > 9000000 * 0.978);
    TW_CHECK(w.max_ns >= 11000000 && w.max_ns < 11000000 * 1.022);
    w = window_of(narrow, 2, wide, 2);
    TW_CHECK_EQ(1000000, w.min_ns);
    TW_CHECK_EQ(80000000, w.max_ns);
    w = window_of(narrow, 0, narrow, 2);
    TW_CHECK_EQ(9000000, w.min_ns);
    TW_CHECK_EQ(11000000, w.max_ns);
    w = window_of(narrow, 2, narrow, 0);
    TW_CHECK_MEM(&none, &w, sizeof w);
}

/* Values outside the range have no finite edge: the overall extremes limit the window's. */
TW_TEST(windows_out_of_range) {
    static const uint64_t extreme[] = {300, UINT64_C(5000000000000)};
    static const uint64_t inner[] = {400, UINT64_C(4000000000000)};
    tw_counts w = window_of(extreme, 2, inner, 2);
    TW_CHECK_EQ(300, w.min_ns);
    TW_CHECK_EQ(UINT64_C(5000000000000), w.max_ns);
}

/* ---- Quantiles ---- */

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double uniform(uint64_t *state) { return (double)(tw_test_random(state) >> 11) / 9007199254740992.0; }

/* A lognormal and a two-humped distribution: what latencies look like. */
static uint64_t draw(uint64_t *state, int shape) {
    double normal = sqrt(-2 * log(1 - uniform(state))) * cos(6.283185307179586 * uniform(state));
    if (shape == 0) return (uint64_t)(20e6 * exp(0.5 * normal)) + 2000;
    return (uint64_t)((uniform(state) < 0.01 ? 350e6 : 9e6) * exp(0.1 * normal)) + 2000;
}

static void check_quantiles(const uint64_t *sorted, int n, const tw_counts *counts, double limit) {
    static const double shares[] = {0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        uint64_t rank = (uint64_t)ceil(shares[i] * n - 1e-9);
        double exact = (double)sorted[rank ? rank - 1 : 0];
        TW_CHECK_NEAR(exact, (double)tw_counts_quantile(counts, itl_layout(), shares[i]), limit * exact);
    }
}

static void quantiles_of_shape(int shape, int n, double limit) {
    uint64_t state = 99 + (uint64_t)shape, *values = calloc((size_t)n, sizeof *values);
    pair *p = new_pair();
    TW_REQUIRE(values != NULL);
    for (int i = 0; i < n; i++) tw_histogram_record(&p->histogram, itl_layout(), values[i] = draw(&state, shape));
    qsort(values, (size_t)n, sizeof *values, ascending);
    tw_histogram_read(&p->histogram, &p->counts);
    check_quantiles(values, n, &p->counts, limit);
    TW_CHECK_EQ(values[0], tw_counts_quantile(&p->counts, itl_layout(), 0.0));
    TW_CHECK_EQ(values[n - 1], tw_counts_quantile(&p->counts, itl_layout(), 1.0));
    free(values), free(p);
}

/* Within 1.1 % where samples are spread, within a slot's width (2.2 %) with few of them. */
TW_TEST(quantiles) {
    for (int shape = 0; shape < 2; shape++) {
        quantiles_of_shape(shape, 100000, 0.011);
        quantiles_of_shape(shape, 100, 0.022);
        quantiles_of_shape(shape, 7, 0.022);
    }
}

/* One sample in a slot between others: the estimate is the middle of its slot, within 1.1 % over the range. */
TW_TEST(lone_samples) {
    for (uint64_t value = 1100; value < UINT64_C(900000000000); value += value / 97 + 1) {
        pair *p = new_pair();
        tw_histogram_record(&p->histogram, itl_layout(), value / 2);
        tw_histogram_record(&p->histogram, itl_layout(), value);
        tw_histogram_record(&p->histogram, itl_layout(), value * 2);
        tw_histogram_read(&p->histogram, &p->counts);
        uint64_t estimate = tw_counts_quantile(&p->counts, itl_layout(), 0.5);
        TW_CHECK_NEAR((double)value, (double)estimate, (double)value * 0.011 + 0.5);
        free(p);
    }
}

/* However the samples of a slot lie, the estimate stays in their slot. */
TW_TEST(uneven_slot) {
    pair *p = new_pair();
    uint64_t lower, upper;
    tw_slot_edges(itl_layout(), 500, &lower, &upper);
    tw_histogram_record(&p->histogram, itl_layout(), 2000);
    for (int i = 0; i < 1000; i++) tw_histogram_record(&p->histogram, itl_layout(), upper);
    tw_histogram_record(&p->histogram, itl_layout(), upper * 4);
    tw_histogram_read(&p->histogram, &p->counts);
    for (int percent = 1; percent < 100; percent++) {
        uint64_t estimate = tw_counts_quantile(&p->counts, itl_layout(), percent / 100.0);
        TW_CHECK(estimate >= lower && estimate <= upper);
        TW_CHECK_NEAR((double)upper, (double)estimate, (double)upper * 0.0217);
    }
    free(p);
}

/* One value many times is exact at every quantile: min and max close in on it. */
TW_TEST(constant) {
    static const uint64_t values[] = {0, 1, 500, 12345678, UINT64_MAX};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        pair *p = new_pair();
        for (int n = 0; n < 9; n++) tw_histogram_record(&p->histogram, itl_layout(), values[i]);
        tw_histogram_read(&p->histogram, &p->counts);
        for (int q = 0; q <= 10; q++) TW_CHECK_EQ(values[i], tw_counts_quantile(&p->counts, itl_layout(), q / 10.0));
        free(p);
    }
}

/* Quantiles never fall as q rises, and stay within min and max, whatever the samples. */
TW_TEST(quantiles_rise) {
    tw_counts *c = calloc(1, sizeof *c);
    TW_REQUIRE(c != NULL);
    fill(c, 5, 3000);
    uint64_t last = tw_counts_quantile(c, itl_layout(), 0);
    TW_CHECK_EQ(c->min_ns, last);
    for (int i = 0; i <= 1000; i++) {
        uint64_t value = tw_counts_quantile(c, itl_layout(), i / 1000.0);
        TW_CHECK(value >= last && value <= c->max_ns);
        last = value;
    }
    TW_CHECK_EQ(c->max_ns, last);
    TW_CHECK_EQ(c->min_ns, tw_counts_quantile(c, itl_layout(), -1.0));
    TW_CHECK_EQ(c->max_ns, tw_counts_quantile(c, itl_layout(), 2.0));
    TW_CHECK_EQ(c->min_ns, tw_counts_quantile(c, itl_layout(), NAN));
    free(c);
}

/* A whole percentage of a round count names the rank one expects, for every percent: 7 of 100, not 8. */
TW_TEST(ranks) {
    pair *p = new_pair();
    uint64_t edge[102];
    for (uint32_t i = 0; i < 100; i++) {
        tw_slot_edges(itl_layout(), 300 + 2 * i, &edge[i], &edge[i + 1]);
        tw_histogram_record(&p->histogram, itl_layout(), edge[i + 1]);
    }
    tw_histogram_read(&p->histogram, &p->counts);
    for (int percent = 1; percent <= 100; percent++) {
        uint64_t value = tw_counts_quantile(&p->counts, itl_layout(), percent / 100.0);
        TW_CHECK_EQ(300 + 2 * (percent - 1), tw_slot_of(itl_layout(), value));
    }
    free(p);
}

/* ---- Sums ---- */

static double seconds_of(uint64_t high, uint64_t low) {
    tw_counts c;
    tw_counts_init(&c);
    c.sum_high = high, c.sum_low = low;
    return tw_counts_sum_seconds(&c);
}

/* Random sums of many lengths, and neighbours on either side of a rounding boundary. */
static const struct {
    uint64_t high, low;
    double seconds;
} sums[] = {
    {0, UINT64_MAX, 0x1.12e0be826d695p+34},
    {1, 0, 0x1.12e0be826d695p+34},
    {UINT64_MAX, UINT64_MAX, 0x1.12e0be826d695p+98},
    {0, UINT64_C(0xcda4f9f3c6da5d7), 0x1.b99e39d5aea2dp+29},
    {0, UINT64_C(0xb8a1abcd1a6916c7), 0x1.8c7e417bd07fbp+33},
    {1, UINT64_C(0x7a97c643656412a9), 0x1.9682d0bf2584ep+34},
    {UINT64_C(0x8512), UINT64_C(0x110722311710cf53), 0x1.1dc4521f7b0bap+49},
    {UINT64_C(0xceaff1a09), UINT64_C(0x8ca5996666ceab36), 0x1.bbdb88c266243p+69},
    {UINT64_C(0x47884ce3c3e1b258), UINT64_C(0xfd724452ccea71ff), 0x1.333abb2aa7361p+96},
    {UINT64_C(0xdc3902b38963dc6e), UINT64_C(0x8534f45738d048ec), 0x1.d8ecb55212712p+97},
    {0, UINT64_C(0x5cf3efa3b8f93cd), 0x1.8f3ac46d4ac7ap+28},
    {0, UINT64_C(0x5cf3efa3b8f93ce), 0x1.8f3ac46d4ac7bp+28},
    {UINT64_C(0x314), UINT64_C(0x90eb571a66c8e2a4), 0x1.a75bb2c33be0ap+43},
    {UINT64_C(0x314), UINT64_C(0x90eb571a66c8e2a5), 0x1.a75bb2c33be0bp+43},
    {UINT64_C(0x2d66e9ed), UINT64_C(0x7823eedc63880000), 0x1.860011b2ed40ep+63},
    {UINT64_C(0x2d66e9ed), UINT64_C(0x7823eedc63880001), 0x1.860011b2ed40fp+63},
    {UINT64_C(0x38346b32dbbd6), UINT64_C(0x1d8d498000000000), 0x1.e2cb936e2f24cp+83},
    /* Halfway between two doubles, and a nanosecond more. */
    {UINT64_C(0x9502f9000000306d), UINT64_C(0xc420000000000000), 0x1.4000000000006p+97},
    {UINT64_C(0x9502f9000000306d), UINT64_C(0xc420000000000001), 0x1.4000000000007p+97},
};

/* Correctly rounded: for sums a double holds, dividing is; the others were computed with rationals. */
TW_TEST(sum_seconds) {
    uint64_t state = 3;
    for (int i = 0; i < 10000; i++) {
        uint64_t sum = tw_test_random(&state) >> (11 + tw_test_random_below(&state, 53));
        TW_CHECK_NEAR((double)sum / 1e9, seconds_of(0, sum), 0.0);
    }
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        TW_CHECK_NEAR(sums[i].seconds, seconds_of(sums[i].high, sums[i].low), 0.0);
}

/* Each classic bound holds itself, and one nanosecond more belongs to the next. */
TW_TEST(bound_of_a_value) {
    for (int kind = 0; kind < TW_LAYOUTS; kind++) {
        const tw_layout *layout = tw_layout_of(kind);
        TW_CHECK_EQ(0, tw_bound_of(layout, 0));
        for (uint32_t i = 0; i < layout->bounds; i++) {
            TW_CHECK_EQ(i, tw_bound_of(layout, layout->bound_ns[i]));
            TW_CHECK_EQ(i + 1, tw_bound_of(layout, layout->bound_ns[i] + 1));
        }
        TW_CHECK_EQ(layout->bounds, tw_bound_of(layout, UINT64_MAX));
    }
}

/* Many at once are what one after the other is; of stamps the gaps count, none for fewer than two, and one that goes
 * back is a gap of 0. */
TW_TEST(many_at_once) {
    const tw_layout *layout = tw_layout_of(TW_LAYOUT_ITL);
    static const uint64_t values[] = {5, 2000, 7000000, 0, 7000000};
    static const uint64_t stamps[] = {100, 105, 2105, 7002105, 7002104, 14002104};
    static tw_histogram one, all, gaps, none;
    tw_counts first, second, third;
    tw_histogram *made[] = {&one, &all, &gaps, &none};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        memset(made[i], 0, sizeof **made);
        tw_histogram_init(made[i]);
    }
    for (size_t i = 0; i < 5; i++) tw_histogram_record(&one, layout, values[i]);
    tw_histogram_record_all(&all, layout, values, 5);
    tw_histogram_record_gaps(&gaps, layout, stamps, 6);
    tw_histogram_read(&one, &first);
    tw_histogram_read(&all, &second);
    tw_histogram_read(&gaps, &third);
    TW_CHECK(memcmp(&first, &second, sizeof first) == 0);
    TW_CHECK(memcmp(&first, &third, sizeof first) == 0);
    tw_histogram_record_gaps(&none, layout, stamps, 1);
    tw_histogram_record_all(&none, layout, NULL, 0);
    tw_histogram_read(&none, &first);
    TW_CHECK_EQ(0, first.count);
}
