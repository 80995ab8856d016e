/* One request and its tokens: stamps, gaps, what delayed them, and the verdict.
 *
 * All times are given by the caller (tw_now_ns(), or any monotonic time: tests run in virtual time).
 * Nothing here allocates, locks or fails. Thread rule: the segment's single writer.
 *
 * Definitions. TTFT = first token - arrival. Gap (ITL) = one token-bearing message to the next, at the moment it
 * is handed over, one sample whatever it holds. TPOT = (last token - first token) / (tokens - 1), per
 * choice; not known where all came in one message. E2E = end - arrival, finished requests with status below 300.
 *
 * overlap: the part of a gap that coincides with recorded pauses (at least TW_PAUSE_SHORT_NS long): an upper bound
 * of their blame. delay: what pauses added to it. Certain (measured) where it is known when the token was ready:
 * by the engine's stamp, or by the loop's clock (attribute/chain.h): what paused after that, and what paused the
 * engine while it made the token. Else, and as a thread may have brought it, an estimate: min(overlap, gap -
 * typical gap, not below 0), split over the causes in proportion to their overlap. typical: the median of the
 * stream's last 16 gaps without their delay part, at most a quarter above what was typical of its label set over
 * the last four minutes; for a new stream its label set's, or else the median of the gaps it has, once they are 4;
 * with none, there is no estimate.
 * TTFT: certain is the overlap with [arrival, entry], and that after the token was ready; of what lies between,
 * min(overlap, TTFT - the label set's median without delay) is an estimate.
 *
 * slow: a gap that exceeds the typical one by more than 2 ms and more than half of it; where no typical gap is known,
 * one over 1 s, or over 20 ms and paused. A TTFT is slow over its bound, and over three times its label set's median.
 * Others from segment->slow_ns on (0: none) are kept with their causes for the log, and add nothing to the sums.
 *
 * Fluidity follows choice 0: a deadline for the first token (the TTFT bound) and one for each later token (the
 * TPOT bound, or else the ITL bound), slack carried forward; n tokens in a message are n deadlines, n - 1 of them
 * met at once.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/segment.h"
#include "tailwatch/attribute/chain.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

#define TW_CHOICES 8
#define TW_RECENT 16
#define TW_STREAM_SLOW 8 /* slow gaps of one stream that it remembers: the last */

typedef enum tw_end { TW_END_FINISHED, TW_END_ERROR, TW_END_TIMEOUT, TW_END_ABORT } tw_end;

typedef struct tw_choice {
    uint64_t first_ns, last_ns, tokens;
} tw_choice;

struct tw_recorder;

typedef struct tw_stream {
    tw_segment *segment;
    tw_series *series;
    const tw_layout *itl_layout;
    const tw_peer_set *peer_set;      /* the processes it may wait for beside its own; NULL: none */
    uint64_t engine;                  /* the engine that serves it; 0: not known */
    struct tw_recorder *trace;      /* where its events go; NULL: nowhere */
    uint64_t number;                /* its own among those of the trace */
    uint64_t last_ns;               /* the last stamp; before the first one: arrival */
    uint64_t alert_ns;              /* a longer gap takes the slow path */
    uint64_t worst_gap_ns;          /* longest gap so far */
    uint64_t messages;              /* token-bearing messages */
    uint64_t client_ns;             /* since the last stamp: waiting for a slow client */
    uint64_t client_until_ns, client_before_ns; /* when the latest of those waits ended; as it was at the last stamp */
    uint64_t deadline_ns;           /* fluidity: between two tokens; 0 = the bounds have none */
    uint64_t slack_ns;              /* fluidity: slack carried forward */
    uint64_t due, met;              /* token deadlines of choice 0 so far, and those met */
    uint32_t opaque, closed;        /* no stamps are taken any more */
    uint32_t running;               /* counted as that: its first token was seen, or what can be seen of it */
    tw_slo slo;                     /* in force when it opened: it is judged by that */
    tw_choice choice[TW_CHOICES];
    uint32_t recent64[TW_RECENT];   /* gaps without their delay part, in units of 64 ns, saturating (137 s) */
    uint64_t typical_ns;            /* as of the last multiple of 8 gaps */
    uint64_t arrival_ns, entry_ns, first_ns;
    uint64_t overlap_ns, delay_ns;   /* of all its gaps and its TTFT */
    uint64_t body_ns;               /* first bytes of the body, 0 = none yet */
    uint64_t usage_tokens;          /* completion tokens the server itself reported, 0 = none */
    uint64_t other_tokens;          /* tokens of choices that are not tracked */
    uint64_t concurrency;           /* streams in flight when it arrived, itself included: see ttft_by_concurrency.h */
    uint32_t series_index;
    uint32_t status;                /* HTTP status, 0 = none yet; set where it is seen */
    uint32_t failed;                /* an error event was seen in the stream; set where it is seen */
    uint32_t source;                /* tw_arrival */
    uint32_t reason;                /* tw_reason, once closed */
    uint32_t slow;                  /* slow gaps, its TTFT among them */
    uint64_t slow_number[TW_STREAM_SLOW]; /* number n's number in the segment's ring, at n % TW_STREAM_SLOW */
    uint64_t end_ns;                /* once closed */
    uint32_t choices;               /* choices seen (TW_CHOICES + 1 once one was not tracked) */
    uint32_t exemplary;             /* its trace id is shown beside what it measures */
    uint64_t request;               /* tw_request_hash() of its id, 0: it has none */
    uint32_t interval;              /* tokens that a message waits for, which is not the first; 0: it waits for none */
    uint32_t held;                  /* of them, those that have come; who calls adds what one receipt has beyond one */
    uint32_t chained, chained_before; /* so many were received while messages was chained_at; so was the one before chain_first */
    uint64_t chained_at;            /* messages when the last was received */
    tw_token_chain chain_first, chain_last; /* of those received since the last stamp */
    tw_token_chain chain_before;    /* the last that was received before the last stamp */
    uint64_t kept_key_ns;          /* key of a token that a pause of its engine kept from leaving; 0: none yet */
    uint64_t request_id[TW_ID_WORDS];
    uint64_t trace_id[TW_TRACE_WORDS];
    uint64_t ordinal;               /* its own among the requests of the process, from 1 */
    uint64_t context;               /* in which its first token was stamped; 0: not known */
    uint64_t (*read_context)(void); /* what identifies the context in which the calling thread runs code (contextvars), 0:
                                     * none. NULL: not known. Called with first tokens and slow gaps, by who stamps */
    tw_own_work own;                /* until its first token */
} tw_stream;


/* Opens a request. arrival_ns <= entry_ns (a later arrival is taken as entry); proxy_ns is what a trusted
 * proxy header adds before arrival, kept apart (0 = none). Records the queue stages. The label set starts as 0. */
void tw_stream_open(tw_stream *s, tw_segment *g, uint64_t arrival_ns, uint64_t entry_ns, uint64_t proxy_ns,
                    tw_arrival source);

/* Others' pauses count from now on: those of the engine's processes, or where that is 0, see tw_gap_overlap. peer_set: for as
 * long as the stream is stamped; NULL: none. */
void tw_stream_join(tw_stream *s, const tw_peer_set *peer_set, uint64_t engine);

/* From now on its events are recorded (event_recorder.h), beginning with its opening. For as long as the stream is stamped. */
void tw_stream_trace(tw_stream *s, struct tw_recorder *trace);

/* Puts the request under a label set (tw_segment_label). What was recorded before stays where it is. An index that
 * does not exist counts as 0. */
void tw_stream_label(tw_stream *s, uint32_t series_index);

/* For slow records. Cut to 63 bytes of request id and 39 of trace id (W3C has 32). NULL with length 0 is empty. */
void tw_stream_identify(tw_stream *s, const char *request_id, size_t request_len, const char *trace_id,
                        size_t trace_len);

/* From now on it is an exemplar of what it measures (exemplar.h): of its TTFT, of gaps that are examined, of its TPOT and
 * E2E. A trace id that is no good one (tw_exemplar_id_is_good) makes none. */
void tw_stream_exemplify(tw_stream *s);

/* A message with n >= 1 tokens of a choice was handed over at now_ns. The first one records TTFT. A time before
 * the last stamp (or arrival) counts as that and is counted in TW_DROP_OUT_OF_ORDER_STAMP; after the end the stamp is dropped
 * and counted there. n = 0 and stamps of an opaque stream do nothing. */
void tw_stream_token(tw_stream *s, uint64_t now_ns, uint32_t n, uint32_t choice);

/* A token of the request came to this process: key_ns is the engine's stamp of its step, recv_ns when the process received
 * it, processed_ns when it was ready to be sent. Several may come before they are sent in one message: that message is
 * chained through the first, or through the last that it had to wait for (interval). Monotonic ns. */
void tw_stream_received(tw_stream *s, uint64_t key_ns, uint64_t recv_ns, uint64_t processed_ns);

/* Code of its own ran in a handle of the loop on a track of its segment, in [from_ns, to_ns], which ends now: its span has
 * the stream's ordinal. Counts until the first token, from the app's entry on. */
void tw_stream_worked(tw_stream *s, uint32_t track, uint64_t from_ns, uint64_t to_ns);

/* Tokens of one more choice in the message that was stamped last: no gap of their own. */
void tw_stream_token_also(tw_stream *s, uint32_t n, uint32_t choice);

/* Bytes of a body were handed over. Where no token can be seen in an answer (one JSON document, compressed,
 * nothing generated), the first of these is what its TTFT bound is judged by; no TTFT is recorded. */
void tw_stream_body(tw_stream *s, uint64_t now_ns);

/* The server's own count of completion tokens, all choices: raises ours, never lowers it.
 * Booked when the request ends. */
void tw_stream_usage(tw_stream *s, uint64_t completion_tokens);

/* A send that began at from_ns was blocked until to_ns by a client that does not read. */
void tw_stream_send_wait(tw_stream *s, uint64_t from_ns, uint64_t to_ns);

/* The body cannot be read (compressed): no TTFT, ITL or TPOT for it, counted once. */
void tw_stream_opaque(tw_stream *s);

/* Ends the request: E2E, TPOT, verdict, window, in flight. A second end does nothing; one before the last stamp
 * counts as that, and is counted in TW_DROP_OUT_OF_ORDER_STAMP. */
void tw_stream_close(tw_stream *s, uint64_t now_ns, tw_end end);

/* The verdict that closing now would give. */
tw_reason tw_stream_verdict(const tw_stream *s, uint64_t now_ns, tw_end end);

/* The typical gap as it is used now, see above; ns, 0 = not known. */
uint64_t tw_stream_typical_ns(const tw_stream *s);

/* Tokens so far over all choices, usage included. */
uint64_t tw_stream_tokens(const tw_stream *s);

TW_END_C
