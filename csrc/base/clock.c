#include "tailwatch/base/clock.h"

#include <string.h>

__extension__ typedef __int128 wide;

static uint64_t read_ns(clockid_t clock) {
    struct timespec t;
    if (clock_gettime(clock, &t) != 0) return 0;
    return (uint64_t)t.tv_sec * TW_NS_PER_SECOND + (uint64_t)t.tv_nsec;
}

tw_clock_pair tw_clock_pair_now(void) {
    tw_clock_pair best = {0, 0};
    uint64_t tightest = UINT64_MAX;
    for (int reading = 0; reading < 3; reading++) {
        uint64_t before = tw_now_ns();
        uint64_t wall = read_ns(CLOCK_REALTIME);
        uint64_t width = tw_now_ns() - before;
        if (width >= tightest) continue;
        tightest = width;
        best.monotonic_ns = before + width / 2;
        best.realtime_ns = wall;
    }
    return best;
}

/* The coarse clock advances once a tick, so its resolution is the tick: HZ, which sysconf(_SC_CLK_TCK) does
 * not give (that is USER_HZ, always 100). */
uint64_t tw_clock_jiffy_ns(void) {
#ifdef CLOCK_MONOTONIC_COARSE
    struct timespec tick;
    if (clock_getres(CLOCK_MONOTONIC_COARSE, &tick) == 0 && tick.tv_sec == 0 && tick.tv_nsec >= 1000)
        return (uint64_t)tick.tv_nsec;
#endif
    return 10 * TW_NS_PER_MS; /* the longest tick in use */
}

/* ---- a snapshot ---- */

static uint64_t read_ticks(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return 0;
#endif
}

/* Between two readings of MONOTONIC, which stands for their middle. */
static void read_all(tw_clock_snapshot *out) {
    const uint64_t before = tw_now_ns();
    out->at[TW_CLOCK_RAW] = read_ns(CLOCK_MONOTONIC_RAW);
    out->at[TW_CLOCK_TSC] = read_ticks();
    out->at[TW_CLOCK_REALTIME] = read_ns(CLOCK_REALTIME);
    out->at[TW_CLOCK_BOOTTIME] = read_ns(CLOCK_BOOTTIME);
    out->width_ns = tw_now_ns() - before;
    out->at[TW_CLOCK_MONOTONIC] = before + out->width_ns / 2;
}

void tw_clock_snapshot_take(tw_clock_snapshot *out) {
    memset(out, 0, sizeof *out);
    out->width_ns = UINT64_MAX;
    for (int reading = 0; reading < 5; reading++) {
        tw_clock_snapshot one;
        memset(&one, 0, sizeof one);
        read_all(&one);
        if (one.width_ns < out->width_ns) *out = one;
    }
}

/* ---- conversion ---- */

typedef struct pair {
    const tw_clock_snapshot *early, *late;
    tw_clock from, to;
} pair;

static wide span(const pair *p, tw_clock clock) { return (wide)p->late->at[clock] - (wide)p->early->at[clock]; }

static bool is_ticks(tw_clock clock) { return clock == TW_CLOCK_TSC; }

/* How unsure the distance of two snapshots is: both were read within a bracket. */
static wide slack(const pair *p) { return (wide)p->early->width_ns + (wide)p->late->width_ns; }

/* Whether a clock of the pair was stepped between the two: RAW shows it, which never is. */
static bool stepped(const pair *p, tw_clock clock) {
    if (clock == TW_CLOCK_RAW || is_ticks(clock)) return span(p, clock) < 0;
    const wide steady = span(p, TW_CLOCK_RAW);
    const wide off = span(p, clock) - steady;
    return (off < 0 ? -off : off) > steady * TW_CLOCK_SLEW_PPM / 1000000 + slack(p);
}

static bool put(wide value, uint64_t *out) {
    if (value < 0 || value > INT64_MAX) return false;
    *out = (uint64_t)value;
    return true;
}

/* t, before or after the pair too, on the straight line through both of its ends. Spans are below 2^64, and so is the
 * distance from the near end: their product fits where both are times of one boot, and is refused where it does not. */
static bool along(const pair *p, uint64_t t, uint64_t *out) {
    const tw_clock_snapshot *base = t > p->late->at[p->from] ? p->late : p->early;
    const wide run = span(p, p->from), rise = span(p, p->to), far = (wide)t - (wide)base->at[p->from];
    wide product;
    if (run <= 0 || __builtin_mul_overflow(far, rise, &product)) return false;
    return put((wide)base->at[p->to] + product / run, out);
}

/* With the offset of one snapshot. Ticks have none: their rate is the pair's, by RAW. */
static bool beside(const pair *p, const tw_clock_snapshot *base, uint64_t t, uint64_t *out) {
    const wide far = (wide)t - (wide)base->at[p->from];
    if (is_ticks(p->from) == is_ticks(p->to)) return put((wide)base->at[p->to] + far, out);
    const pair steady = {p->early, p->late, is_ticks(p->from) ? p->from : TW_CLOCK_RAW, is_ticks(p->to) ? p->to : TW_CLOCK_RAW};
    const wide run = span(&steady, steady.from), rise = span(&steady, steady.to);
    wide product;
    if (run <= 0 || __builtin_mul_overflow(far, rise, &product)) return false;
    return put((wide)base->at[p->to] + product / run, out);
}

/* Between the two, of which one clock was stepped: the earlier one's offset, up to the instant of the later. */
static bool before_step(const pair *p, uint64_t t, uint64_t *out) {
    uint64_t value;
    const uint64_t end = p->late->at[p->to];
    if (!beside(p, p->early, t, &value)) return false;
    /* A target that runs steadily does not pass the later snapshot: the source skipped what lies between. */
    *out = !stepped(p, p->to) && value > end ? end : value;
    return true;
}

/* The last snapshot whose source clock is not after t; n: none. Backwards, so that of a time shown twice the later instant
 * is found. */
static size_t find(const tw_clock_snapshot *s, size_t n, tw_clock from, uint64_t t) {
    for (size_t i = n; i-- > 0;)
        if (s[i].at[from] <= t) return i;
    return n;
}

static bool is_running(const tw_clock_snapshot *s, size_t n, tw_clock clock) {
    return !is_ticks(clock) || s[n - 1].at[clock] > s[0].at[clock];
}

/* The pair whose slope holds for t, which lies after snapshot i (or before all of them: first), and where it stands. */
static bool convert_far(const pair *p, const tw_clock_snapshot *near, uint64_t t, uint64_t *out) {
    if (stepped(p, p->from) || stepped(p, p->to)) return beside(p, near, t, out);
    return along(p, t, out);
}

bool tw_clock_convert(const tw_clock_snapshot *s, size_t n, tw_clock from, tw_clock to, uint64_t t, uint64_t *out) {
    if (n == 0 || (unsigned)from >= TW_CLOCKS || (unsigned)to >= TW_CLOCKS) return false;
    if (from == to) return put((wide)t, out);
    if (n == 1) return is_ticks(from) == is_ticks(to) && beside(&(pair){s, s, from, to}, s, t, out);
    if (!is_running(s, n, from) || !is_running(s, n, to)) return false;
    const size_t at = find(s, n, from, t);
    if (at == n) return convert_far(&(pair){&s[0], &s[1], from, to}, &s[0], t, out);
    if (at == n - 1) return convert_far(&(pair){&s[n - 2], &s[n - 1], from, to}, &s[n - 1], t, out);
    const pair p = {&s[at], &s[at + 1], from, to};
    return stepped(&p, from) || stepped(&p, to) ? before_step(&p, t, out) : along(&p, t, out);
}
