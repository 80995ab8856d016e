/* What one event of a streamed body holds. Private to the core; see sse.h. */
#ifndef TW_SSE_EVENT_H
#define TW_SSE_EVENT_H

#include "sse_json.h"
#include "tailwatch/sse.h"

/* Looks at the event in [p, end) and adds what it holds to out. With sse the bytes are the event's lines,
 * else the JSON itself. The model's name is given once: only if model_seen is 0. Returns the inside of the
 * string that made it a token, at most one and only if the event is well formed: any other inside that is
 * not empty in its place would have given the same answer. */
tw_slice tw_event_look(const char *p, const char *end, bool sse, bool model_seen, tw_scan_result *out);

/* Adds n tokens of a choice. */
void tw_event_count(tw_scan_result *out, uint64_t choice, uint64_t n);

/* Goes on reading a document of framing TW_FRAMING_WHOLE. */
void tw_whole_feed(tw_scan *scan, const char *p, const char *end, tw_scan_result *out);

#endif
