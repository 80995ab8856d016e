/* What one event of a streamed body holds. Private to the core; see body_scan.h. */
#pragma once

#include "wire/scan_json.h"
#include "tailwatch/wire/body_scan.h"

/* Where an event could be different and mean the same. */
typedef struct tw_event_marks {
    tw_slice text[TW_SCAN_TEXTS];  /* insides of strings, in order: any other that is not empty would do */
    uint32_t texts;                /* may be more than there is room for: then not all of them are known */
    tw_slice loose;                /* a number, or the inside of a string: any other would do. len 0: there is none */
    bool object;                   /* the event is one whole JSON object */
} tw_event_marks;

/* Looks at the event in [p, end) and adds what it holds to out, which is empty. With sse the bytes are the
 * event's lines, else the JSON itself. The model's name is given once: only if model_seen is 0. Returns whether
 * it is well formed; marks are of use only if it is. */
bool tw_event_look(const char *p, const char *end, bool sse, bool model_seen, tw_scan_result *out,
                   tw_event_marks *marks);

/* Adds n tokens of a choice. */
void tw_event_count(tw_scan_result *out, uint64_t choice, uint64_t n);

/* Goes on reading a document of framing TW_FRAMING_WHOLE. */
void tw_whole_feed(tw_scan *scan, const char *p, const char *end, tw_scan_result *out);
