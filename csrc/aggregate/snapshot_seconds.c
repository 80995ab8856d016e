/* The finished requests of the last hour, second by second. */
#include "aggregate/snapshot_parts.h"

#include "tailwatch/base/atomic.h"
#include "base/tw_malloc.h"
#include "record/word_sums.h"

#include <errno.h>
#include <string.h>

/* false: the slot is empty, or was given to another second while it was copied. */
static bool second_read(const tw_second *from, tw_second *out) {
    uint64_t second = tw_load_acquire(&from->second);
    if (second == 0) return false;
    tw_words_load(out, from, sizeof *out);
    return out->second == second && tw_load(&from->second) == second;
}

/* Up to now: a stamp with a time ahead must not hide the past hour. */
static uint64_t newest_second(const tw_segment *const *segments, size_t n, uint64_t now_ns) {
    const uint64_t limit = now_ns / TW_NS_PER_SECOND + 1;
    uint64_t newest = 0;
    for (size_t i = 0; i < n; i++)
        for (int at = 0; at < TW_SECONDS; at++) {
            uint64_t second = tw_load(&segments[i]->seconds[at].second);
            if (second > newest && second <= limit) newest = second;
        }
    return newest;
}

/* Adds a second at its place: the newest one stands last. */
static void second_keep(tw_second *sum, const tw_second *one, uint64_t newest) {
    if (one->second > newest || newest - one->second >= TW_SECONDS) return;
    tw_second *to = &sum[TW_SECONDS - 1 - (newest - one->second)];
    tw_words_add(to, one, sizeof *to);
    to->second = one->second;
}

/* Moves the used ones to the back, in their order. */
static void seconds_close_gaps(tw_second *seconds) {
    int to = TW_SECONDS;
    for (int from = TW_SECONDS - 1; from >= 0; from--)
        if (seconds[from].second) seconds[--to] = seconds[from];
    memset(seconds, 0, (size_t)to * sizeof *seconds);
}

int tw_snapshot_take_seconds(tw_snapshot *s, const tw_segment *const *segments, size_t n) {
    s->seconds = tw_calloc(TW_SECONDS, sizeof *s->seconds);
    if (!s->seconds) return ENOMEM;
    uint64_t newest = newest_second(segments, n, s->taken.monotonic_ns);
    tw_second one;
    for (size_t i = 0; i < n; i++)
        for (int at = 0; at < TW_SECONDS; at++)
            if (second_read(&segments[i]->seconds[at], &one)) second_keep(s->seconds, &one, newest);
    seconds_close_gaps(s->seconds);
    return 0;
}

int tw_snapshot_copy_seconds(tw_snapshot *out, const tw_snapshot *from) {
    out->seconds = tw_malloc(TW_SECONDS * sizeof *out->seconds);
    if (!out->seconds) return ENOMEM;
    memcpy(out->seconds, from->seconds, TW_SECONDS * sizeof *out->seconds);
    return 0;
}

static uint64_t second_of(const tw_snapshot *s) { return s->taken.monotonic_ns / TW_NS_PER_SECOND; }

/* How many seconds, the current one included, there are numbers for. */
static uint64_t seconds_known(const tw_snapshot *s) {
    uint64_t known = s->window_ns / TW_NS_PER_SECOND + 1;
    for (int i = 0; i < TW_SECONDS; i++) {
        if (s->seconds[i].second == 0) continue;
        uint64_t back = tw_minus(second_of(s) + 1, s->seconds[i].second - 1);
        return back > known ? back : known;
    }
    return known;
}

static void second_add(tw_window *sum, const tw_second *one) {
    sum->good += tw_low(one->good_miss);
    sum->miss += tw_high(one->good_miss);
    sum->excluded += tw_low(one->excluded_finished);
    sum->finished += tw_high(one->excluded_finished);
    sum->ttft_ok += tw_low(one->ttft_tpot);
    sum->tpot_ok += tw_high(one->ttft_tpot);
    sum->itl_ok += tw_low(one->itl_e2e);
    sum->e2e_ok += tw_high(one->itl_e2e);
    sum->due += tw_low(one->due_met);
    sum->met += tw_high(one->due_met);
}

void tw_snapshot_window(const tw_snapshot *s, uint32_t window_s, tw_window *out) {
    memset(out, 0, sizeof *out);
    uint64_t known = seconds_known(s), window = window_s < TW_SECONDS ? window_s : TW_SECONDS;
    if (window > known) window = known;
    if (window == 0) window = 1;
    out->seconds = window;
    uint64_t now = second_of(s);
    for (int i = 0; i < TW_SECONDS; i++) {
        uint64_t second = s->seconds[i].second;
        if (second != 0 && second - 1 <= now && second - 1 + window > now) second_add(out, &s->seconds[i]);
    }
}
