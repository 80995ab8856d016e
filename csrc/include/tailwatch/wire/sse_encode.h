/* Writing what a streaming server writes for each token: a text escaped as a JSON string, spliced into a frame whose
 * other bytes stay the same. The bytes are those of the serialiser that is imitated, exactly.
 *
 * Pure functions: no allocation, no lock, any thread. They read and write exactly the bytes they are given and no
 * byte beyond, in any build (SSE2, AVX2, NEON or portable).
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

/* Whose escapes. Within each the serialisers named write the same bytes for every Unicode scalar value. Both write
 * \" \\ \b \t \n \f \r in short, and the other controls below U+0020 as \u00xx with lower-case digits; '/' as is. */
typedef enum tw_dialect {
    TW_DIALECT_UTF8,  /* pydantic (serde), orjson, msgspec, json.dumps(ensure_ascii=False): the rest as is, U+007F
                         and U+2028 too */
    TW_DIALECT_ASCII  /* json.dumps: U+007F and above as \uxxxx, beyond U+FFFF as a surrogate pair */
} tw_dialect;

/* Bytes that the text becomes, without quotes around it; len where nothing in it needs an escape. At most 6 * len.
 * text: UTF-8, in which a surrogate may stand as three bytes (ASCII writes it as its \uxxxx). Bytes that are no
 * UTF-8 give an unspecified result of at most 6 * len, and the same one from both functions. NULL when len is 0. */
size_t tw_json_escaped_len(tw_dialect dialect, const char *text, size_t len);

/* Writes them. out: room for tw_json_escaped_len() bytes, not overlapping text. Returns how many were written:
 * always what tw_json_escaped_len() gives. */
size_t tw_json_escape(tw_dialect dialect, const char *text, size_t len, char *out);

#define TW_FRAME_HOLES 16

/* Bytes with holes in them: piece i is bytes[cut[i - 1], cut[i]) and hole i stands after it; the last piece ends at
 * cut[holes]. holes <= TW_FRAME_HOLES; cut[] never decreases. */
typedef struct tw_frame {
    const char *bytes; /* the caller's, for as long as the frame is used */
    uint32_t dialect;  /* tw_dialect of its texts */
    uint32_t holes;
    uint32_t cut[TW_FRAME_HOLES + 1];
} tw_frame;

/* What goes into one hole. */
typedef struct tw_filling {
    const char *text;
    size_t len;
    size_t escaped; /* set by tw_frame_len */
    bool verbatim;  /* as it is: digits of a number */
} tw_filling;

/* Bytes of the frame with its holes filled; sets fillings[].escaped. fillings: one for each hole. */
size_t tw_frame_len(const tw_frame *frame, tw_filling *fillings);

/* Writes it. out: room for tw_frame_len() bytes; fillings: as tw_frame_len() left them. Returns the end of what it
 * wrote. */
char *tw_frame_write(const tw_frame *frame, const tw_filling *fillings, char *out);

TW_END_C
