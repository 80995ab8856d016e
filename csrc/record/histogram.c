#include "tailwatch/record/histogram.h"

#include <math.h>
#include <sched.h>
#include <string.h>

#include "record/layout_tables.h"
#include "tailwatch/base/atomic.h"

__extension__ typedef unsigned __int128 wide;

#define NS_PER_SECOND UINT64_C(1000000000)
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* One layout of the generated tables. */
#define LAYOUT(NAME, name)                                                                              \
    {SLOTS_##NAME, LENGTH(bound_ns_##name), bound_ns_##name, bound_slot_##name, bucket_slot_##name,     \
     bucket_split_##name}
static const tw_layout layouts[] = {
    LAYOUT(TTFT, ttft),
    LAYOUT(E2E, e2e),
    LAYOUT(ITL, itl),
    LAYOUT(PAUSE, pause),
};
_Static_assert(LENGTH(layouts) == TW_LAYOUTS, "a layout for every kind");
_Static_assert(LENGTH(mantissa) == 1 << TW_SCALE, "one threshold a bucket of an octave");
_Static_assert(LENGTH(bucket_slot_ttft) == TW_BUCKETS, "the generator and the header agree");

const tw_layout *tw_layout_of(int kind) { return kind >= 0 && kind < TW_LAYOUTS ? &layouts[kind] : NULL; }

uint64_t tw_layout_hash(void) { return LAYOUT_HASH; }

/* ---- Indexing ---- */

/* May be anything below 0 or above TW_BUCKETS - 1 when out of range. The value is not 0. */
static inline int bucket_unclamped(uint64_t value_ns) {
    int zeros = __builtin_clzll(value_ns);
    uint64_t shifted = value_ns << zeros;
    uint32_t cell = (uint32_t)(shifted >> (63 - CELL_BITS)) & ((1U << CELL_BITS) - 1);
    int below = cell_below[cell] + (shifted > cell_threshold[cell]);
    return (63 - zeros) * (1 << TW_SCALE) + below + BUCKET_ORIGIN;
}

int tw_bucket_of(uint64_t value_ns) {
    int bucket = value_ns ? bucket_unclamped(value_ns) : -1;
    if (bucket < 0) return -1;
    return bucket < TW_BUCKETS ? bucket : TW_BUCKETS;
}

uint64_t tw_bucket_upper_ns(int bucket) {
    /* The threshold 2^((bucket + 1 + min)/32) s, counted from mantissa[0], which stands for 2^30 ns and more. */
    int from_first = bucket + 1 + TW_BUCKET_MIN - FIRST_THRESHOLD;
    int octave = from_first >> TW_SCALE; /* floor, also below 0 */
    return mantissa[from_first & ((1 << TW_SCALE) - 1)] >> (33 - octave);
}

static inline uint32_t slot_of(const tw_layout *layout, uint64_t value_ns) {
    int bucket = value_ns ? bucket_unclamped(value_ns) : -1;
    if ((unsigned)bucket < TW_BUCKETS)
        return (uint32_t)layout->bucket_slot[bucket] + (value_ns > layout->bucket_split[bucket]);
    return bucket < 0 ? 0 : layout->slots - 1;
}

uint32_t tw_slot_of(const tw_layout *layout, uint64_t value_ns) { return slot_of(layout, value_ns); }

/* The bucket a slot belongs to; the slot is neither the first nor the last. */
static int bucket_of_slot(const tw_layout *layout, uint32_t slot) {
    int low = 0, high = TW_BUCKETS - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (layout->bucket_slot[middle] <= slot)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

void tw_slot_edges(const tw_layout *layout, uint32_t slot, uint64_t *lower_ns, uint64_t *upper_ns) {
    if (slot == 0 || slot >= layout->slots - 1) {
        *lower_ns = slot ? tw_bucket_upper_ns(TW_BUCKETS - 1) : 0;
        *upper_ns = slot ? UINT64_MAX : tw_bucket_upper_ns(-1);
        return;
    }
    int bucket = bucket_of_slot(layout, slot);
    uint64_t split = layout->bucket_split[bucket];
    bool second = slot > layout->bucket_slot[bucket];
    *lower_ns = second ? split : tw_bucket_upper_ns(bucket - 1);
    *upper_ns = second || split == UINT64_MAX ? tw_bucket_upper_ns(bucket) : split;
}

/* ---- Recording ---- */

void tw_histogram_init(tw_histogram *h) { tw_store(&h->min_ns, UINT64_MAX); }

/* Adds a 128-bit delta modulo 2^128. Only when the high word changes does a reader have to notice. */
static inline void sum_add(tw_histogram *h, uint64_t low, uint64_t high) {
    uint64_t old = tw_load(&h->sum_low);
    uint64_t sum = old + low;
    high += sum < old;
    if (__builtin_expect(high == 0, 1)) {
        tw_store(&h->sum_low, sum);
        return;
    }
    uint64_t seq = tw_load(&h->carry_seq);
    tw_store(&h->carry_seq, seq + 1);
    tw_store_release(&h->sum_low, sum);
    tw_store_release(&h->sum_high, tw_load(&h->sum_high) + high);
    tw_store_release(&h->carry_seq, seq + 2);
}

static inline void extremes(tw_histogram *h, uint64_t value_ns) {
    if (value_ns < tw_load(&h->min_ns)) tw_store(&h->min_ns, value_ns);
    tw_raise(&h->max_ns, value_ns);
}

/* The slot is last and released: a reader that sees the sample in its slot sees min and max that allow for it. */
void tw_histogram_record(tw_histogram *h, const tw_layout *layout, uint64_t value_ns) {
    uint64_t *slot = &h->slot[slot_of(layout, value_ns)];
    extremes(h, value_ns);
    sum_add(h, value_ns, 0);
    tw_store_release(slot, tw_load(slot) + 1);
}

static void shared_extreme(uint64_t *word, uint64_t value, bool larger) {
    uint64_t old = tw_load(word);
    while (larger ? value > old : value < old)
        if (__atomic_compare_exchange_n(word, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
}

void tw_histogram_record_shared(tw_histogram *h, const tw_layout *layout, uint64_t value_ns) {
    uint64_t zero = 0;
    (void)__atomic_compare_exchange_n(&h->min_ns, &zero, UINT64_MAX, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    shared_extreme(&h->min_ns, value_ns, false);
    shared_extreme(&h->max_ns, value_ns, true);
    (void)__atomic_fetch_add(&h->sum_low, value_ns, __ATOMIC_RELAXED);
    (void)__atomic_fetch_add(&h->slot[slot_of(layout, value_ns)], 1, __ATOMIC_RELEASE);
}

void tw_histogram_record_all(tw_histogram *h, const tw_layout *layout, const uint64_t *values_ns, size_t n) {
    for (size_t i = 0; i < n; i++) tw_histogram_record(h, layout, values_ns[i]);
}

void tw_histogram_record_gaps(tw_histogram *h, const tw_layout *layout, const uint64_t *stamps_ns, size_t n) {
    for (size_t i = 1; i < n; i++) {
        uint64_t gap = stamps_ns[i] > stamps_ns[i - 1] ? stamps_ns[i] - stamps_ns[i - 1] : 0;
        tw_histogram_record(h, layout, gap);
    }
}

void tw_histogram_move(tw_histogram *h, const tw_layout *layout, uint64_t from_ns, uint64_t to_ns) {
    uint64_t *from = &h->slot[slot_of(layout, from_ns)];
    uint64_t *to = &h->slot[slot_of(layout, to_ns)];
    extremes(h, to_ns);
    if (to_ns >= from_ns)
        sum_add(h, to_ns - from_ns, 0);
    else
        sum_add(h, (uint64_t)0 - (from_ns - to_ns), UINT64_MAX);
    if (from == to) return;
    tw_store_release(to, tw_load(to) + 1);
    tw_store_release(from, tw_load(from) - 1);
}

/* ---- Reading ---- */

/* A writer that was preempted between the two words is waited for; one that was killed there is not. */
#define SUM_SPINS 100
#define SUM_TRIES 20000

static void sum_read(const tw_histogram *h, tw_counts *out) {
    for (int attempt = 0; attempt < SUM_TRIES; attempt++) {
        uint64_t seq = tw_load_acquire(&h->carry_seq);
        out->sum_high = tw_load_acquire(&h->sum_high);
        out->sum_low = tw_load_acquire(&h->sum_low);
        if (seq % 2 == 0 && seq == tw_load(&h->carry_seq)) return;
        if (attempt >= SUM_SPINS) sched_yield();
    }
}

void tw_histogram_read(const tw_histogram *h, tw_counts *out) {
    out->count = 0;
    for (uint32_t i = 0; i < TW_SLOTS_MAX; i++) {
        out->slot[i] = tw_load_acquire(&h->slot[i]);
        out->count += out->slot[i];
    }
    out->min_ns = tw_load(&h->min_ns);
    out->max_ns = tw_load(&h->max_ns);
    sum_read(h, out);
}

/* ---- Counting ---- */

void tw_counts_init(tw_counts *c) {
    memset(c, 0, sizeof *c);
    c->min_ns = UINT64_MAX;
}

static wide sum_of(const tw_counts *c) { return (wide)c->sum_high << 64 | c->sum_low; }

static void sum_set(tw_counts *c, wide sum) {
    c->sum_low = (uint64_t)sum;
    c->sum_high = (uint64_t)(sum >> 64);
}

void tw_counts_add(tw_counts *a, const tw_counts *b) {
    a->count += b->count;
    sum_set(a, sum_of(a) + sum_of(b));
    if (b->min_ns < a->min_ns) a->min_ns = b->min_ns;
    if (b->max_ns > a->max_ns) a->max_ns = b->max_ns;
    for (uint32_t i = 0; i < TW_SLOTS_MAX; i++) a->slot[i] += b->slot[i];
}

void tw_histogram_add(tw_histogram *sum, const tw_histogram *from) {
    tw_counts total, more;
    tw_histogram_read(from, &more);
    if (more.min_ns == UINT64_MAX && more.max_ns == 0 && more.count == 0) return;
    tw_histogram_read(sum, &total);
    tw_counts_add(&total, &more);
    sum->sum_low = total.sum_low;
    sum->sum_high = total.sum_high;
    sum->min_ns = total.min_ns;
    sum->max_ns = total.max_ns;
    memcpy(sum->slot, total.slot, sizeof sum->slot);
}

/* The edges of the slots in use; the extremes of an empty histogram when there are none. */
static void occupied_edges(const tw_counts *c, const tw_layout *layout, uint64_t *lower_ns, uint64_t *upper_ns) {
    uint64_t unused;
    uint32_t first = 0, last = layout->slots;
    *lower_ns = UINT64_MAX;
    *upper_ns = 0;
    while (first < layout->slots && c->slot[first] == 0) first++;
    if (first == layout->slots) return;
    while (c->slot[last - 1] == 0) last--;
    tw_slot_edges(layout, first, lower_ns, &unused);
    tw_slot_edges(layout, last - 1, &unused, upper_ns);
}

void tw_counts_subtract(tw_counts *a, const tw_counts *b, const tw_layout *layout) {
    a->count -= b->count;
    sum_set(a, sum_of(a) - sum_of(b));
    for (uint32_t i = 0; i < TW_SLOTS_MAX; i++) a->slot[i] -= b->slot[i];
    uint64_t lower, upper;
    occupied_edges(a, layout, &lower, &upper);
    /* An extreme that did not move lies outside the window or is one of several alike: it only limits. */
    bool min_known = a->min_ns < b->min_ns && lower != UINT64_MAX;
    bool max_known = a->max_ns > b->max_ns && lower != UINT64_MAX;
    if (!min_known && (lower > a->min_ns || lower == UINT64_MAX)) a->min_ns = lower;
    if (!max_known && upper < a->max_ns) a->max_ns = upper;
}

/* Narrows a slot's edges to what was seen. A copy taken while extremes were written may contradict them, and
 * so may a correction histogram: then the edges stand. */
static void clamp_edges(const tw_counts *c, uint64_t *lower_ns, uint64_t *upper_ns) {
    uint64_t lower = *lower_ns > c->min_ns ? *lower_ns : c->min_ns;
    uint64_t upper = *upper_ns < c->max_ns ? *upper_ns : c->max_ns;
    if (lower > upper) return;
    *lower_ns = lower;
    *upper_ns = upper;
}

static uint64_t geometric_middle(uint64_t lower_ns, uint64_t upper_ns) {
    if (lower_ns == upper_ns) return lower_ns;
    double lower = lower_ns ? (double)lower_ns : 1.0;
    double value = lower * sqrt((double)upper_ns / lower);
    if (value >= (double)upper_ns) return upper_ns;
    uint64_t rounded = (uint64_t)(value + 0.5);
    if (rounded < lower_ns) return lower_ns;
    return rounded < upper_ns ? rounded : upper_ns;
}

/* ceil(q * count), where a q such as 0.07 is meant to be decimal: 7 of 100, not the 8 that 0.07's nearest
 * double, a little above it, would give. */
static uint64_t rank_of(double q, uint64_t count) {
    double rank = ceil(q * (double)count * (1.0 - 1e-14));
    if (!(rank >= 1.0)) return 1;
    return rank < (double)count ? (uint64_t)rank : count;
}

/* The least or the greatest sample. Of a corrected histogram max_ns may be a value that was moved away: then the
 * edge of the last slot in use is nearer. */
static uint64_t extreme(const tw_counts *c, const tw_layout *layout, bool greatest) {
    uint64_t lower, upper;
    occupied_edges(c, layout, &lower, &upper);
    clamp_edges(c, &lower, &upper);
    return greatest ? upper : lower;
}

uint64_t tw_counts_quantile(const tw_counts *c, const tw_layout *layout, double q) {
    if (c->count == 0) return 0;
    if (!(q > 0.0) || q >= 1.0) return extreme(c, layout, q >= 1.0);
    uint64_t rank = rank_of(q, c->count), below = 0;
    uint32_t slot = 0;
    while (slot < layout->slots - 1 && below + c->slot[slot] < rank) below += c->slot[slot++];
    uint64_t lower, upper;
    tw_slot_edges(layout, slot, &lower, &upper);
    clamp_edges(c, &lower, &upper);
    /* The middle, however many samples the slot has: an interpolated rank is off by up to the slot's width where
     * few samples lie unevenly (1.6 % in the tail of 2000 Pareto samples). */
    return geometric_middle(lower, upper);
}

double tw_seconds_of(uint64_t low, uint64_t high) {
    wide sum = (wide)high << 64 | low;
    if (sum == 0) return 0.0;
    int shift = high ? __builtin_clzll(high) : 64 + __builtin_clzll(low);
    /* At least 97 bits of quotient; a remainder sets the last, far below what a double rounds at. */
    wide shifted = sum << shift;
    wide quotient = shifted / NS_PER_SECOND | (shifted % NS_PER_SECOND != 0);
    return ldexp((double)quotient, -shift);
}

double tw_counts_sum_seconds(const tw_counts *c) { return tw_seconds_of(c->sum_low, c->sum_high); }

uint32_t tw_bound_of(const tw_layout *layout, uint64_t value_ns) {
    uint32_t i = 0;
    while (i < layout->bounds && value_ns > layout->bound_ns[i]) i++;
    return i;
}
