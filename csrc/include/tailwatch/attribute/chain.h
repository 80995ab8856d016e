/* What a wait for a token was made of, by the chain of instants that its process has:
 *
 *     the engine's stamp K  ->  received R  ->  processed P  ->  sent S        gap = dK + d(R-K) + d(P-R) + d(S-P)
 *
 * each against the same stream's token before. Where only the loop's clock is known, a token was ready between the end
 * of the loop's latest sleep and its latest wake-up: what came before that is upstream, what came after it the host's. Of
 * a first token, what the request's own handles did before is apart: it made the token, so it is never hidden in a wait.
 * The parts sum to the excess, exactly: certain parts come first, estimates take what these leave, the rest is upstream
 * or unexplained.
 *
 * Thread rule: the segment's single writer, on the thread that stamps.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/attribute/charge.h"
#include "tailwatch/attribute/own_work.h"
#include "tailwatch/attribute/parts.h"

TW_BEGIN_C

/* A token of the engine, as the process met it. */
typedef struct tw_token_chain {
    uint64_t key_ns, recv_ns, processed_ns;
} tw_token_chain;

typedef struct tw_wait {
    tw_phase phase;
    uint64_t from_ns, to_ns, typical_ns;
    uint64_t client_ns;           /* of it, that a send waited for a client */
    uint64_t client_until_ns;     /* when the latest of those went on; 0: there was none */
    uint64_t client_before_ns;    /* the same as the wait began */
    uint64_t accept_ns;           /* of a TTFT: before the app was entered, pauses not counted */
    uint64_t request;             /* tw_request_hash() of its id */
    uint64_t ordinal;             /* its number among the requests of the process: tw_span_request(); 0: not known */
    uint64_t context;             /* in which the thread runs code, if the first token was stamped in it, too; else 0 */
    const tw_own_work *own;       /* of a first token: what its own code did; NULL: not known */
    int track;                    /* of the thread that stamps; -1: it is not followed */
    tw_ready ready;
    uint32_t interval;            /* tokens that a message waits for; 0: none */
    const tw_token_chain *before, *token; /* NULL: not known. before, of a first token: NULL */
} tw_wait;

static inline uint64_t tw_wait_length(const tw_wait *w) { return w->to_ns - w->from_ns; }

/* When the token that is stamped now, and waited for since from_ns, was ready, from the loop's clock; the calling
 * thread's. *track: see tw_wait. */
tw_ready tw_ready_by_loop(const tw_segment *g, uint64_t from_ns, int *track);

/* Fills parts with all of the wait's excess. whole: also what the host and the engine did; else only pauses, client and
 * accept. Returns false where the token has its engine's stamp and no step of an engine was found for it, if whole. */
bool tw_wait_explain(tw_segment *g, tw_served_by by, const tw_wait *w, const tw_charge *d, bool whole, tw_parts *out);

/* Books the parts of a slow wait that are no pauses (those are booked by their charge). */
void tw_wait_book(tw_segment *g, const tw_wait *w, const tw_parts *parts);

TW_END_C
