/* Where a long wait went: the tail counters, and the ring of slow gaps. */
#include "stamp/stream_parts.h"

#include <string.h>

#include "tailwatch/record/slow_gaps.h"

/* The parts of the causes [first, last]. */
void tw_tail_add(tw_segment *g, const tw_wait *w, const tw_charge *d, const tw_parts *parts) {
    tw_tail *tail = &g->tail[w->phase][tw_octave_of(tw_wait_length(w))];
    tw_add(&tail->count, 1);
    tw_add(&tail->time_ns, tw_wait_length(w));
    for (uint32_t i = 0; i < d->sources * TW_CAUSES; ++i)
        tw_add(&tail->delay_ns[i % TW_CAUSES], d->delay[i / TW_CAUSES][i % TW_CAUSES]);
    tw_add(&tail->client_ns, tw_parts_sum_of(parts, TW_DELAY_CLIENT, TW_DELAY_CLIENT));
    tw_add(&tail->accept_ns, tw_parts_sum_of(parts, TW_DELAY_ACCEPT, TW_DELAY_ACCEPT));
    tw_add(&tail->host_ns, tw_parts_sum_of(parts, TW_DELAY_CALLBACK, TW_DELAY_STOPPED));
    tw_add(&tail->engine_ns, tw_parts_sum_of(parts, TW_DELAY_TRANSPORT, TW_DELAY_DEVICE));
    tw_add(&tail->unexplained_ns, tw_parts_sum_of(parts, TW_DELAY_UPSTREAM, TW_DELAY_UNEXPLAINED));
}

static void words_copy(uint64_t *to, const uint64_t *from, size_t n) {
    for (size_t i = 0; i < n; ++i) tw_store_release(&to[i], from[i]);
}

/* By cause, of all sources. */
static void sum_of_sources(const uint64_t (*by_source)[TW_CAUSES], uint32_t sources, uint64_t *out) {
    memset(out, 0, TW_CAUSES * sizeof *out);
    for (uint32_t i = 0; i < sources * TW_CAUSES; ++i) out[i % TW_CAUSES] += by_source[i / TW_CAUSES][i % TW_CAUSES];
}

enum { SHARE_WORDS = 4 };
_Static_assert(sizeof(tw_share) == SHARE_WORDS * sizeof(uint64_t), "a share is words");

/* Which of the shares has the least overlap: the one to give up for a larger. */
static tw_share *least_share(tw_share *share) {
    tw_share *least = share;
    for (int i = 1; i < TW_SHARES; ++i)
        if (share[i].overlap_ns < least->overlap_ns) least = &share[i];
    return least;
}

/* The largest shares of other processes. */
static void shares_of(const tw_charge *d, tw_share *out) {
    memset(out, 0, TW_SHARES * sizeof *out);
    for (uint32_t i = TW_CAUSES; i < d->sources * TW_CAUSES; ++i) {
        const uint32_t source = i / TW_CAUSES, cause = i % TW_CAUSES;
        tw_share *place = least_share(out);
        if (d->by_source.overlap_ns[source][cause] > place->overlap_ns)
            *place = (tw_share){source, cause, d->by_source.overlap_ns[source][cause], d->delay[source][cause]};
    }
}

static void parts_copy(tw_parts *to, const tw_parts *from) {
    uint64_t words[sizeof *from / sizeof(uint64_t)];
    memcpy(words, from, sizeof words);
    words_copy((uint64_t *)to, words, sizeof words / sizeof *words);
}

/* The record is invalid while it is written; its number is stored last. Each word is released, so that a reader
 * that saw a new one sees the cleared number too. */
void tw_slow_add(tw_stream *s, const tw_wait *w, const tw_charge *d, const tw_parts *parts) {
    tw_segment *g = s->segment;
    uint64_t n = tw_load(&g->slow_head), by_cause[TW_CAUSES];
    tw_share share[TW_SHARES];
    tw_slow_record *r = &g->slow[n % TW_SLOW_RING];
    tw_store_release(&r->seq, 0);
    tw_store_release(&r->end_ns, w->to_ns);
    tw_store_release(&r->phase, (uint64_t)w->phase);
    tw_store_release(&r->gap_ns, tw_wait_length(w));
    tw_store_release(&r->typical_ns, w->typical_ns);
    sum_of_sources(d->by_source.overlap_ns, d->sources, by_cause);
    words_copy(r->overlap_ns, by_cause, TW_CAUSES);
    sum_of_sources(d->delay, d->sources, by_cause);
    words_copy(r->delay_ns, by_cause, TW_CAUSES);
    shares_of(d, share);
    words_copy((uint64_t *)r->share, (const uint64_t *)share, TW_SHARES * SHARE_WORDS);
    tw_store_release(&r->client_ns, tw_parts_sum_of(parts, TW_DELAY_CLIENT, TW_DELAY_CLIENT));
    tw_store_release(&r->accept_ns, tw_parts_sum_of(parts, TW_DELAY_ACCEPT, TW_DELAY_ACCEPT));
    tw_store_release(&r->unexplained_ns, tw_parts_sum_of(parts, TW_DELAY_UPSTREAM, TW_DELAY_UNEXPLAINED));
    tw_store_release(&r->complete, d->by_source.complete);
    tw_store_release(&r->series, s->series_index);
    tw_store_release(&r->token, tw_counted_tokens(s) + 1);
    words_copy(r->request_id, s->request_id, TW_ID_WORDS);
    words_copy(r->trace_id, s->trace_id, TW_TRACE_WORDS);
    parts_copy(&r->parts, parts);
    tw_store_release(&r->seq, n + 1);
    tw_slow_keep(g->slow_longest, r);
    tw_store_release(&g->slow_head, n + 1);
    s->slow_number[s->slow++ % TW_STREAM_SLOW] = n;
}
