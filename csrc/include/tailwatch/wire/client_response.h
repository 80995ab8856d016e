/* What a client sees of one answer: when its body and its content came, the gaps between, and the deadlines met.
 *
 * The definitions are those of stream.h, so that both sides can be laid on each other: a message is one event of the
 * body (body_scan.h), whatever number of tokens it holds; a gap lies between two messages with content. A message has the
 * stamp of the read that brought its end; those of one read have a gap of 0 between them.
 *
 * Fluidity as in stream.h: deadlines of choice 0, the first one counted from planned_ns, slack carried forward, none
 * left after a miss. Idle time: how long a reader who takes step_ns for each token of choice 0, and begins with the
 * first, has nothing to read.
 *
 * All times are given by the caller in ns of one monotonic clock; what is earlier than the last stamp counts as that.
 * Nothing here locks or fails; memory is taken for the stamps only, and never more than TW_ANSWER_STAMPS of them.
 * Thread rule: one thread at a time.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tailwatch/wire/body_scan.h"

TW_BEGIN_C

#define TW_ANSWER_STAMPS 131072 /* messages of one answer whose stamps are kept: 1 MiB */
#define TW_ANSWER_CHOICES 8     /* choices counted apart, as on the server side */
#define TW_ANSWER_HEAD 512      /* bytes of the body that are kept: the text of an error */

typedef struct tw_answer_choice {
    uint64_t first_ns, last_ns, tokens;
} tw_answer_choice;

typedef struct tw_answer {
    uint64_t planned_ns;            /* where the first deadline counts from */
    uint64_t ttft_ns, step_ns;      /* deadlines of the first and of each next token; 0: none */
    uint64_t chunk_ns;              /* first byte of the body; 0: none yet, also below */
    uint64_t first_ns, last_ns;     /* first and last message with content */
    uint64_t bytes;                 /* of the body */
    uint64_t messages;              /* with content */
    uint64_t tokens;                /* of all choices, as body_scan.h counts them */
    uint64_t usage_tokens;          /* completion tokens as the server gives them; 0: it does not */
    uint64_t gap_ns, gap_at_ns;     /* the largest gap, and when it began; the first of several */
    uint64_t slack_ns, due, met;    /* fluidity */
    uint64_t idle_ns, read_until_ns; /* idle time; when all that came will have been read */
    uint32_t choices;               /* highest index seen + 1, at most TW_ANSWER_CHOICES */
    bool done, error;               /* an end marker, an error event */
    bool opaque;                    /* no content can be seen in this body */
    tw_answer_choice choice[TW_ANSWER_CHOICES];
    uint64_t *stamp;                /* of the first stamps messages */
    size_t stamps, room;
    size_t head_len;                /* of head[]: the body's first bytes, or of the event that reported an error */
    char head[TW_ANSWER_HEAD];
    tw_scan scan;
} tw_answer;

/* Before anything else. */
void tw_answer_init(tw_answer *answer);

/* Gives its memory back; init makes it new. */
void tw_answer_free(tw_answer *answer);

/* A new answer is waited for; what was known of the last one is forgotten. Its body is opaque until set otherwise.
 * Deadlines count only if neither is 0. */
void tw_answer_begin(tw_answer *answer, uint64_t planned_ns, uint64_t ttft_ns, uint64_t step_ns);

/* Its body is cut that way; objects_only as in tw_scan. Before its first byte. */
void tw_answer_framing(tw_answer *answer, tw_framing framing, bool objects_only);

/* Bytes of the body that came at now_ns > 0. data may be NULL when len is 0. */
void tw_answer_feed(tw_answer *answer, const char *data, size_t len, uint64_t now_ns);

/* The body has ended, or no more of it will come. */
void tw_answer_finish(tw_answer *answer, uint64_t now_ns);

TW_END_C
