/* The short way: a stream's token events are alike but for their texts and, where a server numbers or names each
 * of them, one more value. What was looked at once is remembered without its texts; an event that differs in
 * nothing else gets the same answer. Private to the core; see sse.h. */
#ifndef TW_SSE_SHAPE_H
#define TW_SSE_SHAPE_H

#include "sse_event.h"

#define TW_SHAPE_TRIES 16  /* events in a row that were like none: from then on only every so many-th is compared */

static inline const char *tw_shape_digits_end(const char *p, const char *end) {
    const char *start = p;
    while (p < end && *p >= '0' && *p <= '9') p++;
    return p == start ? NULL : p;
}

/* Past the shape's bytes [from, to); NULL if others stand at p. */
static inline const char *tw_shape_past_bytes(const tw_scan_shape *shape, uint32_t from, uint32_t to, const char *p,
                                              const char *end) {
    const size_t len = to - from;
    if (len > (size_t)(end - p) || memcmp(p, shape->bytes + from, len) != 0) return NULL;
    return p + len;
}

/* The same, with another value in the place of the loose one: digits, or a string's inside. */
static inline const char *tw_shape_past_loose(const tw_scan_shape *shape, uint32_t from, uint32_t to, const char *p,
                                              const char *end) {
    if (shape->loose_len == 0 || shape->loose_at < from || shape->loose_at >= to) return NULL;
    p = tw_shape_past_bytes(shape, from, shape->loose_at, p, end);
    if (p == NULL) return NULL;
    const bool quoted = shape->bytes[shape->loose_at - 1] == '"';
    p = quoted ? tw_json_inside_end(p, end) : tw_shape_digits_end(p, end);
    return p == NULL ? NULL : tw_shape_past_bytes(shape, shape->loose_at + shape->loose_len, to, p, end);
}

static inline const char *tw_shape_past_part(const tw_scan_shape *shape, uint32_t from, uint32_t to, const char *p,
                                             const char *end) {
    const char *after = tw_shape_past_bytes(shape, from, to, p, end);
    return __builtin_expect(after != NULL, 1) ? after : tw_shape_past_loose(shape, from, to, p, end);
}

/* Past the event at p that is like the shape, each text whole and not empty; NULL if it is not. */
static inline const char *tw_shape_past(const tw_scan_shape *shape, const char *p, const char *end) {
    uint32_t from = 0, i = 0;
    do {
        const char *text = tw_shape_past_part(shape, from, shape->text_at[i], p, end);
        if (text == NULL) return NULL;
        p = tw_json_inside_end(text, end);
        if (p == NULL || p == text) return NULL;
        from = shape->text_at[i];
    } while (++i < shape->texts);
    return tw_shape_past_part(shape, from, shape->len, p, end);
}

static inline void tw_shape_count(const tw_scan_shape *shape, tw_scan_result *out) {
    if (__builtin_expect((out->events | (shape->events - 1)) == 0, 1)) {
        out->events = 1;
        out->choice[0] = shape->choice[0];
        out->tokens = out->n[0] = shape->n[0];
        return;
    }
    for (uint32_t i = 0; i < shape->events; i++) tw_event_count(out, shape->choice[i], shape->n[i]);
}

/* ---- which one ---- */

/* Past the event at p if it is like a remembered one. Choices take turns, so the one that followed the last one
 * before is asked first. An event that is a message must be all of it. */
static inline const char *tw_shapes_past(tw_scan *scan, const char *p, const char *end, tw_scan_result *out) {
    const uint32_t guess = scan->shape[scan->last_shape].next;
    for (uint32_t i = 0; i < scan->shapes; i++) {
        const uint32_t at = i == 0 ? guess : i <= guess ? i - 1 : i;
        const char *after = tw_shape_past(&scan->shape[at], p, end);
        if (after == NULL || (after != end && scan->framing == TW_FRAMING_MESSAGE)) continue;
        tw_shape_count(&scan->shape[at], out);
        if (i > 0) scan->shape[scan->last_shape].next = at;
        scan->last_shape = at;
        return after;
    }
    return NULL;
}

/* Where a stream's events are never alike it is not worth the while to compare each with four. */
static inline bool tw_shapes_worthwhile(const tw_scan *scan) {
    return scan->unlike < TW_SHAPE_TRIES || scan->unlike % TW_SHAPE_TRIES == 0;
}

/* ---- remembering ---- */

/* The bytes of the event but for its texts, and where those were. */
static inline void tw_shape_copy(tw_scan_shape *shape, tw_slice event, const tw_event_marks *marks) {
    const char *from = event.at, *loose = marks->loose.at;
    shape->len = shape->loose_len = 0;
    for (uint32_t i = 0; i <= marks->texts; i++) {
        const bool last = i == marks->texts;
        const char *to = last ? event.at + event.len : marks->text[i].at;
        const uint32_t len = (uint32_t)(to - from);
        memcpy(shape->bytes + shape->len, from, len);
        if (loose >= from && loose < to) {
            shape->loose_at = shape->len + (uint32_t)(loose - from);
            shape->loose_len = (uint32_t)marks->loose.len;
        }
        shape->len += len;
        if (last) break;
        shape->text_at[i] = shape->len;
        from = to + marks->text[i].len;
    }
    shape->texts = marks->texts;
}

/* Tokens and nothing else, and a way to tell where it ends: a bare CR could be half of a CRLF. */
static inline bool tw_shape_fits(const tw_scan *scan, tw_slice event, const tw_event_marks *marks,
                                 const tw_scan_result *out) {
    if (marks->texts == 0 || marks->texts > TW_SCAN_TEXTS) return false;
    if (out->events == 0 || out->events > TW_SCAN_TEXTS) return false;
    if (out->done || out->error || out->usage_tokens > 0) return false;
    if (scan->framing != TW_FRAMING_MESSAGE && event.at[event.len - 1] != '\n') return false;
    size_t len = event.len;
    for (uint32_t i = 0; i < marks->texts; i++) len -= marks->text[i].len;
    return len <= TW_SCAN_SHAPE;
}

/* An event that one message held whole, and what was found in it, in the place of the oldest. */
static inline void tw_shapes_remember(tw_scan *scan, tw_slice event, const tw_event_marks *marks,
                                      const tw_scan_result *out) {
    if (!tw_shape_fits(scan, event, marks, out)) return;
    const uint32_t at = scan->next_shape;
    tw_scan_shape *shape = &scan->shape[at];
    tw_shape_copy(shape, event, marks);
    shape->events = out->events;
    memcpy(shape->choice, out->choice, out->events * sizeof *out->choice);
    memcpy(shape->n, out->n, out->events * sizeof *out->n);
    shape->next = at;
    scan->shape[scan->last_shape].next = at;
    scan->last_shape = at;
    scan->next_shape = (at + 1) % TW_SCAN_SHAPES;
    if (scan->shapes < TW_SCAN_SHAPES) scan->shapes++;
}

#endif
