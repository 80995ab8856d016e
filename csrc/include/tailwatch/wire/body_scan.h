/* Reading a streamed body as it passes: which messages carry generated content, and how many tokens.
 *
 * Not a JSON parser: it looks at the bytes of an event only as far as it must. The rule is the safe one: a
 * data event that is not known to be without content (role-only delta, preamble, finish, usage, comment,
 * [DONE], ping) counts as a token. Frames of the known servers are distinguished by their shape; see
 * tests/frames/ for each. Never reads past the end, never allocates, never fails: hostile
 * input gives a wrong count at worst.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

#define TW_SCAN_SHAPES 4   /* kinds of token event that a stream remembers */
#define TW_SCAN_SHAPE 576  /* bytes of one of them, without its texts */
#define TW_SCAN_TEXTS 4    /* texts in one of them, and choices */
#define TW_SCAN_MODEL 320  /* bytes of a model's name that came in pieces */
#define TW_SCAN_PART 4096  /* bytes of an unfinished event that are kept; the rest of a longer one is not looked at */
#define TW_SCAN_EVENTS 16  /* token-bearing choices counted apart in one message; more count for choice 0 */

/* How the body is cut into events. */
typedef enum tw_framing {
    TW_FRAMING_SSE,      /* text/event-stream: events end with an empty line; LF, CRLF or CR */
    TW_FRAMING_LINES,    /* NDJSON: an event a line */
    TW_FRAMING_MESSAGE,  /* WebSocket: an event a message */
    TW_FRAMING_RAW,      /* any bytes are content: each non-empty message is one token */
    TW_FRAMING_WHOLE     /* one JSON document over the whole body: only usage and model are looked for */
} tw_framing;

/* What one message held. */
typedef struct tw_scan_result {
    uint32_t tokens;                       /* token-bearing events, or their token_ids where given */
    uint32_t events;                       /* entries of choice[] and n[] below that hold something */
    uint32_t choice[TW_SCAN_EVENTS];       /* the "index" of the choice, 0 where there is none */
    uint32_t n[TW_SCAN_EVENTS];            /* tokens of that choice in this message; sums to tokens */
    bool done;                             /* an end marker: [DONE], message_stop, response.completed, "done":true */
    bool error;                            /* an error event or object */
    bool cut;                              /* an event was longer than is kept, and was judged by its beginning */
    uint64_t usage_tokens;                 /* completion_tokens / output_tokens / eval_count seen, 0 = none */
    const char *model;                     /* model name as it stands in the bytes (JSON-escaped), or NULL;
                                              points into the message or the scanner, valid until the next call */
    size_t model_len;
} tw_scan_result;

/* Where a TW_FRAMING_WHOLE document stands between two messages. */
typedef struct tw_scan_whole {
    uint64_t number;                       /* digits of the number that is being read */
    uint64_t usage;                        /* output tokens so far; those of a list's entries are added up */
    uint64_t entry_usage;                  /* the largest of the current entry */
    uint32_t depth;                        /* open brackets */
    uint8_t state, key, token, escaped;    /* enums of scan_whole.c; the last string read, by its name */
    uint8_t context[6];                    /* what the brackets of depth 0-5 are */
} tw_scan_whole;

/* A token event, but for its texts. */
typedef struct tw_scan_shape {
    uint32_t len;                          /* of bytes[] */
    uint32_t texts, text_at[TW_SCAN_TEXTS];  /* where in bytes[] the texts were */
    uint32_t loose_at, loose_len;          /* where a value without content stands; length 0: there is none */
    uint32_t next;                         /* the shape that came after this one */
    uint32_t events, choice[TW_SCAN_TEXTS], n[TW_SCAN_TEXTS];  /* what it held, as in tw_scan_result */
    char bytes[TW_SCAN_SHAPE];
} tw_scan_shape;

typedef struct tw_scan {
    uint32_t framing;
    uint32_t model_seen;                   /* stop looking once found */
    bool objects_only;                     /* false after init; true: an event that is no JSON object is no token */
    uint32_t shapes;                       /* how many of shape[] hold something */
    uint32_t last_shape, expected;         /* the one the last such event had; the one it is likely to have next */
    uint32_t next_shape;                   /* the one to be written next */
    uint32_t unlike;                       /* messages in a row that were like none */
    uint32_t part_len;                     /* bytes kept of the unfinished event (WHOLE: of the string) */
    uint32_t part_cut;                     /* it was longer than TW_SCAN_PART */
    uint32_t line_state;                   /* where in the line ends the last message stopped */
    tw_scan_whole whole;
    tw_scan_shape shape[TW_SCAN_SHAPES];
    char model[TW_SCAN_MODEL];
    char part[TW_SCAN_PART];
} tw_scan;

void tw_scan_init(tw_scan *scan, tw_framing framing);

/* Looks at the next message of the body. In the usual case (each event like one before it but for its text, and
 * perhaps its number) two memcmp and a look at the bytes of the text. data may be NULL when len is 0. An event
 * that several messages carry is found in the one in which it ends; one that several messages carry and that is
 * longer than TW_SCAN_PART counts by its beginning. */
void tw_scan_feed(tw_scan *scan, const char *data, size_t len, tw_scan_result *out);

/* The same by the long way, for callers off the path of each message: with one caller the other becomes part of it. */
void tw_scan_feed_rarely(tw_scan *scan, const char *data, size_t len, tw_scan_result *out);

/* Looks at what the end of the body left without an end. An event without its empty line never counts as a
 * token (no client sees it), but an error, an end marker and usage in it are reported; the last line of
 * NDJSON counts whole. */
void tw_scan_finish(tw_scan *scan, tw_scan_result *out);

/* Whether nothing unfinished is kept: the next message begins a new event. */
bool tw_scan_between(const tw_scan *scan);

/* Decodes a JSON string's inside (no quotes) to UTF-8, at most cap bytes, no NUL added. Bad escapes are
 * kept as they stand. Returns the length. */
size_t tw_json_unescape(const char *text, size_t len, char *out, size_t cap);

TW_END_C
