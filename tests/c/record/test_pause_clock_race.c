/* One writer, several readers, no lock: what readers may rely on while the clock and a histogram change.
 *
 * The writer's time is made up: pause number n is [10 n, 10 n + 1 + n % 8] units long with cause n % TW_CAUSES,
 * so that any copy of a record can be checked by itself. Run it under the thread sanitizer too.
 */
#include <pthread.h>
#include <sched.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/record/histogram.h"
#include "tailwatch/record/pause_clock.h"
#include "tw_test.h"

#define UNIT UINT64_C(100000)
#define READERS 3
#define PAUSES 20000
#define SAMPLES 8 /* recorded after each pause */
#define PACE 500 /* pauses between which every reader gets a turn */

typedef struct shared {
    tw_pause_clock clock;
    tw_histogram histogram, shift;
    uint64_t time; /* made-up now */
    uint64_t done; /* set by the writer when it has written all */
    uint64_t rounds[READERS];
    uint64_t next_reader;
} shared;

static uint64_t start_of(uint64_t n) { return 10 * UNIT * (n + 1); }
static uint64_t stop_of(uint64_t n) { return start_of(n) + UNIT * (1 + n % 8); }

static void write_one(shared *s, uint64_t n) {
    const tw_pause_result result = {n, n + 1, n + 2, n + 3};
    tw_store_release(&s->time, start_of(n));
    tw_pause_begin(&s->clock, (tw_cause)(n % TW_CAUSES), start_of(n));
    tw_store_release(&s->time, stop_of(n));
    tw_pause_end(&s->clock, stop_of(n), &result, NULL);
    tw_pause_charge(&s->clock, start_of(n), stop_of(n), stop_of(n) - start_of(n), UNIT);
}

/* UINT64_MAX makes the 128-bit sum carry at almost every sample. */
static void write_samples(shared *s) {
    const tw_layout *layout = tw_layout_of(TW_LAYOUT_ITL);
    for (int i = 0; i < SAMPLES; i++) tw_histogram_record(&s->histogram, layout, UINT64_MAX);
    tw_histogram_move(&s->shift, layout, UINT64_MAX, 1000);
}

/* Until each reader has gone round at least once more. */
static void await_readers(const shared *s) {
    for (int i = 0; i < READERS; i++) {
        uint64_t before = tw_load_acquire(&s->rounds[i]);
        while (tw_load_acquire(&s->rounds[i]) < before + 2) sched_yield();
    }
}

static void *writer(void *argument) {
    shared *s = argument;
    for (uint64_t n = 0; n < PAUSES; n++) {
        if (n % PACE == 0) await_readers(s);
        write_one(s, n);
        write_samples(s);
    }
    await_readers(s);
    tw_store_release(&s->done, 1);
    return NULL;
}

static void check_record(const tw_pause_record *r, uint64_t n) {
    TW_CHECK_EQ(n + 1, r->seq);
    TW_CHECK_EQ(start_of(n), r->start_ns);
    TW_CHECK_EQ(stop_of(n), r->stop_ns);
    TW_CHECK_EQ(n % TW_CAUSES, r->cause);
    TW_CHECK_EQ(n, r->collected);
    TW_CHECK_EQ(n + 1, r->uncollectable);
    TW_CHECK_EQ(n + 2, r->cpu_ns);
    TW_CHECK_EQ(n + 3, r->callbacks_ns);
    TW_CHECK(r->streams <= 1 && r->delay_ns <= UNIT && r->overlap_ns <= stop_of(n) - start_of(n));
}

/* Records near both ends of the ring, where the writer is. Returns how many were read. */
static int read_records(const shared *s) {
    tw_pause_record r;
    int found = 0;
    uint64_t head = tw_load_acquire(&s->clock.head);
    uint64_t oldest = head > TW_PAUSE_RING ? head - TW_PAUSE_RING : 0;
    for (uint64_t n = oldest; n < oldest + 4 && n < head; n++) {
        if (!tw_pause_read(&s->clock, n, &r)) continue;
        check_record(&r, n);
        found++;
    }
    if (head > 0 && tw_pause_read(&s->clock, head - 1, &r)) {
        check_record(&r, head - 1);
        found++;
    }
    return found;
}

/* An overlap never exceeds its interval, and one that lies in the past and is complete is exact. */
static void read_overlap(const shared *s) {
    uint64_t head = tw_load_acquire(&s->clock.head);
    tw_overlap o;
    if (head < 8) return;
    tw_pause_overlap(&s->clock, start_of(head - 8), start_of(head), &o);
    if (o.complete) TW_CHECK_EQ(UNIT * 36, o.total_ns); /* 1 + 2 + ... + 8 */
}

/* The pause that the clock stands in is seen whole, whether it is still open or has closed meanwhile. */
static void read_current(const shared *s) {
    uint64_t now = tw_load_acquire(&s->time);
    tw_overlap o;
    if (now == 0) return;
    uint64_t n = now / (10 * UNIT) - 1;
    tw_pause_overlap(&s->clock, start_of(n), now, &o);
    if (o.complete) TW_CHECK_EQ(now - start_of(n), o.total_ns);
    TW_CHECK(o.total_ns <= now - start_of(n));
}

/* Whether tw_pause_quiet_since() may be trusted: it never misses a pause that was published. */
static void read_quiet(const shared *s) {
    uint64_t head = tw_load_acquire(&s->clock.head);
    if (head < 2) return;
    TW_CHECK(!tw_pause_quiet_since(&s->clock, start_of(head - 2)));
}

/* A total never falls, and never exceeds the time that went by. */
static void read_totals(const shared *s, uint64_t last[TW_CAUSES]) {
    for (int c = 0; c < TW_CAUSES; c++) {
        uint64_t total = tw_pause_total_ns(&s->clock, (tw_cause)c, 0);
        TW_CHECK(total >= last[c]);
        TW_CHECK(total <= stop_of(PAUSES));
        last[c] = total;
    }
}

/* The 128-bit sum is never torn: n samples of 2^64 - 1 are (n - 1) * 2^64 + (2^64 - n). */
static void read_histograms(const shared *s) {
    tw_counts counts, shift;
    tw_histogram_read(&s->shift, &shift);
    tw_histogram_read(&s->histogram, &counts);
    uint64_t n = (uint64_t)0 - counts.sum_low;
    TW_CHECK_EQ(n ? n - 1 : 0, counts.sum_high);
    TW_CHECK(counts.count == 0 || counts.min_ns <= counts.max_ns);
    /* Read in this order, what was moved out of a slot has been seen in it. */
    uint32_t last = tw_layout_of(TW_LAYOUT_ITL)->slots - 1;
    TW_CHECK(counts.slot[last] + shift.slot[last] <= (uint64_t)PAUSES * SAMPLES);
}

static uint64_t reader_number(shared *s) { return __atomic_fetch_add(&s->next_reader, 1, __ATOMIC_RELAXED); }

static void *reader(void *argument) {
    const shared *s = argument;
    uint64_t totals[TW_CAUSES] = {0};
    int records = 0;
    uint64_t *rounds = &((shared *)argument)->rounds[reader_number(argument)];
    for (uint64_t round = 1; !tw_load_acquire(&s->done); round++) {
        records += read_records(s);
        read_overlap(s);
        read_current(s);
        read_quiet(s);
        read_totals(s, totals);
        if (round % 4 == 0) read_histograms(s);
        tw_store_release(rounds, round);
    }
    TW_CHECK(records > 0);
    return NULL;
}

TW_TEST(writer_and_readers) {
    shared *s = calloc(1, sizeof *s);
    pthread_t threads[READERS + 1];
    TW_REQUIRE(s != NULL);
    tw_pause_init(&s->clock);
    tw_histogram_init(&s->histogram);
    tw_histogram_init(&s->shift);
    for (int i = 0; i < READERS; i++) TW_REQUIRE(pthread_create(&threads[i], NULL, reader, s) == 0);
    TW_REQUIRE(pthread_create(&threads[READERS], NULL, writer, s) == 0);
    for (int i = 0; i <= READERS; i++) pthread_join(threads[i], NULL);
    TW_CHECK_EQ(PAUSES, s->clock.head);
    free(s);
}
