/* What the files of a stream share. Private. */
#pragma once

#include "tailwatch/attribute/chain.h"
#include "tailwatch/base/atomic.h"
#include "tailwatch/stamp/stream.h"

#include "base/arithmetic.h"

#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define RARE __attribute__((noinline, cold))

static inline uint64_t tw_counted_tokens(const tw_stream *s) {
    uint64_t tokens = s->other_tokens;
    for (int i = 0; i < TW_CHOICES; ++i) tokens += s->choice[i].tokens;
    return tokens;
}

/* ---- typical_gap.c ---- */

#define TYPICAL_EVERY 8 /* gaps between two looks at the median; a power of two */
#define RECENT_SHIFT 6  /* recent64: 64 ns engines */

/* As its streams last had it; 0: not known. */
uint64_t tw_typical_of_series(const tw_series *series);

/* The longest gap that is not slow. */
uint64_t tw_slow_limit(uint64_t typical_ns, bool paused);

/* Whether a first token is slow. The median of its label set learns of it. */
bool tw_ttft_is_slow(const tw_stream *s, uint64_t ttft_ns, uint64_t rest_ns);

/* While no typical gap is known (0), every gap that a pause could make slow is looked at. At most what is typical for
 * the label set over minutes. */
void tw_typical_set(tw_stream *s, uint64_t typical_ns);

/* Every TYPICAL_EVERY gaps. */
__attribute__((noinline)) void tw_typical_refresh(tw_stream *s, uint64_t gaps);

/* ---- slow_log.c ---- */

void tw_tail_add(tw_segment *g, const tw_wait *w, const tw_charge *d, const tw_parts *parts);
void tw_slow_add(tw_stream *s, const tw_wait *w, const tw_charge *d, const tw_parts *parts);

/* ---- fluidity.c ---- */

#define SLACK_MAX (UINT64_C(1) << 62) /* slack + deadline stays below 2^64 */

static inline void tw_deadlines_count(tw_stream *s, uint64_t due, uint64_t met) {
    s->due += due;
    s->met += met;
    tw_add(&s->segment->deadlines_due, due);
    tw_add(&s->segment->deadlines_met, met);
}

/* The tokens of a message beyond its first: they come at once, and each leaves a whole deadline of slack. */
RARE void tw_deadlines_at_once(tw_stream *s, uint32_t more);

/* Late by waited - slack - deadline: every deadline passed meanwhile is missed, and the slack is gone. */
RARE void tw_deadlines_miss(tw_stream *s, uint64_t over, uint64_t deadline);

/* waited: since the last token, or since arrival. */
static inline void tw_deadlines_judge(tw_stream *s, uint64_t waited, uint64_t deadline, uint32_t n) {
    if (s->deadline_ns == 0) return;
    uint64_t budget = s->slack_ns + deadline;
    if (UNLIKELY(waited > budget)) {
        tw_deadlines_miss(s, waited - budget, deadline);
    } else {
        s->slack_ns = least(budget - waited, SLACK_MAX);
        tw_deadlines_count(s, 1, 1);
    }
    if (UNLIKELY(n > 1)) tw_deadlines_at_once(s, n - 1);
}

/* ---- verdict.c ---- */

typedef struct tw_tpot {
    uint64_t span_ns, steps; /* time between the first and the last token; steps = 0: not known */
} tw_tpot;

/* Of one choice. */
tw_tpot tw_stream_tpot(const tw_stream *s, int choice);

/* Whether it is a complete answer that was served well. */
bool tw_stream_answered(const tw_stream *s, tw_end end);

/* Counts it in the second in which it ended. */
void tw_window_add(tw_stream *s, uint64_t now_ns, tw_end end, tw_outcome outcome);
