/* Which bounds a request kept, and what that makes of it. */
#include "stamp/stream_parts.h"

enum { BOUND_TTFT = 1, BOUND_TPOT = 2, BOUND_ITL = 4, BOUND_E2E = 8, BOUNDS = 15 };

/* The server's own count belongs to a choice only where there is one. */
tw_tpot tw_stream_tpot(const tw_stream *s, int i) {
    const tw_choice *choice = &s->choice[i];
    uint64_t tokens = choice->tokens;
    bool raised = s->usage_tokens > tw_counted_tokens(s);
    if (tokens == 0 || (raised && s->choices != 1)) return (tw_tpot){0, 0};
    if (raised) tokens = s->usage_tokens;
    if (choice->last_ns == choice->first_ns) return (tw_tpot){0, 0}; /* all in one message: no time between */
    return (tw_tpot){choice->last_ns - choice->first_ns, tokens - 1};
}

/* Of all choices, against the bound; *known: whether there was one to judge. */
static bool tpot_broken(const tw_stream *s, bool *known) {
    uint64_t bound = s->slo.tpot_ns;
    bool broken = false;
    *known = false;
    for (int i = 0; i < TW_CHOICES; ++i) {
        tw_tpot t = tw_stream_tpot(s, i);
        if (t.steps == 0) continue;
        *known = true;
        if (bound != 0 && (wide)t.span_ns > (wide)bound * t.steps) broken = true;
    }
    return broken;
}

static bool exceeds(uint64_t value, uint64_t bound) { return bound != 0 && value > bound; }

/* The bounds that have passed by now_ns. awaited: what is still waited for counts as well. */
static unsigned bounds_broken(const tw_stream *s, uint64_t now_ns, bool awaited) {
    const tw_slo *slo = &s->slo;
    bool known;
    bool listening = awaited && !s->opaque;
    uint64_t age = since(now_ns, s->arrival_ns);
    uint64_t ttft = s->messages > 0 ? s->first_ns - s->arrival_ns : age;
    if (s->messages == 0 && !listening && s->body_ns != 0) /* no token could be seen: its first bytes count */
        ttft = s->body_ns - s->arrival_ns;
    uint64_t open_gap = s->messages > 0 && listening ? since(now_ns, s->last_ns) : 0;
    return (exceeds(ttft, slo->ttft_ns) ? BOUND_TTFT : 0U) | (tpot_broken(s, &known) ? BOUND_TPOT : 0U) |
           (exceeds(most(s->worst_gap_ns, open_gap), slo->itl_ns) ? BOUND_ITL : 0U) |
           (exceeds(age, slo->e2e_ns) ? BOUND_E2E : 0U);
}

bool tw_stream_answered(const tw_stream *s, tw_end end) {
    return end == TW_END_FINISHED && s->status < 300 && !s->failed;
}

/* The bounds a judged request kept. A complete answer keeps what it does not break; of any other, only what
 * was measured counts. */
static unsigned bounds_kept(const tw_stream *s, uint64_t now_ns, tw_end end) {
    const tw_slo *slo = &s->slo;
    if (tw_stream_answered(s, end)) return BOUNDS & ~bounds_broken(s, now_ns, false);
    bool tpot_known;
    tpot_broken(s, &tpot_known);
    unsigned judged = (s->messages > 0 || slo->ttft_ns == 0 ? BOUND_TTFT : 0U) |
                      (tpot_known || slo->tpot_ns == 0 ? BOUND_TPOT : 0U) |
                      (s->messages > 1 || slo->itl_ns == 0 ? BOUND_ITL : 0U) | (slo->e2e_ns == 0 ? BOUND_E2E : 0U);
    return judged & ~bounds_broken(s, now_ns, true);
}

tw_reason tw_stream_verdict(const tw_stream *s, uint64_t now_ns, tw_end end) {
    if (s->status == 429) return TW_REASON_429;
    if (s->status == 408 || s->status == 504 || end == TW_END_TIMEOUT) return TW_REASON_TIMEOUT;
    if (s->status >= 500) return TW_REASON_5XX;
    if (s->status >= 400) return TW_REASON_4XX;
    if (s->status >= 300) return TW_REASON_3XX;
    if (s->failed || end == TW_END_ERROR) return TW_REASON_ERROR;
    if (end == TW_END_ABORT) return bounds_broken(s, now_ns, true) ? TW_REASON_ABORT_LATE : TW_REASON_ABORT_EARLY;
    return bounds_broken(s, now_ns, false) ? TW_REASON_LATE : TW_REASON_GOOD;
}

/* ---- the window ---- */

/* Two 32-bit counts in a word, neither running over. */
static void pair_add(uint64_t *pair, uint64_t low, uint64_t high) {
    uint64_t now = tw_load(pair);
    low = add_capped(tw_low(now), low, UINT32_MAX);
    high = add_capped(tw_high(now), high, UINT32_MAX);
    tw_store_release(pair, high << 32 | low); /* a reader that sees it sees the second it belongs to */
}

void tw_window_add(tw_stream *s, uint64_t now_ns, tw_end end, tw_outcome outcome) {
    tw_second *second = tw_segment_second(s->segment, now_ns);
    if (second == NULL) {
        tw_add(&s->segment->drops[TW_DROP_OUT_OF_ORDER_STAMP], 1);
        return;
    }
    pair_add(&second->good_miss, outcome == TW_OUTCOME_GOOD, outcome == TW_OUTCOME_MISS);
    pair_add(&second->excluded_finished, outcome == TW_OUTCOME_EXCLUDED, tw_stream_answered(s, end));
    pair_add(&second->due_met, s->due, s->met);
    if (outcome == TW_OUTCOME_EXCLUDED) return;
    unsigned kept = bounds_kept(s, now_ns, end);
    pair_add(&second->ttft_tpot, (kept & BOUND_TTFT) != 0, (kept & BOUND_TPOT) != 0);
    pair_add(&second->itl_e2e, (kept & BOUND_ITL) != 0, (kept & BOUND_E2E) != 0);
}
