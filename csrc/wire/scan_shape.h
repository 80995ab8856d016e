/* The short way: a stream's token events are alike but for their texts and, where a server numbers or names each
 * of them, one more value. What was looked at once is remembered without its texts; an event that differs in
 * nothing else gets the same answer. Private to the core; see body_scan.h. */
#pragma once

#include "wire/scan_event.h"

#define TW_SHAPE_RARE __attribute__((noinline)) static
#define TW_SHAPE_TRIES 16  /* events in a row that were like none: from then on only every so many-th is compared */
#define TW_SHAPE_KEEP 8    /* events in a row that were like none before a remembered one gives way: there can be more
                              choices than shapes */

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
TW_SHAPE_RARE const char *tw_shape_past_loose(const tw_scan_shape *shape, uint32_t from, uint32_t to, const char *p,
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

/* Past the text at p, if it is whole and not empty. */
static inline const char *tw_shape_past_text(const char *p, const char *end) {
    const char *quote = p == NULL ? NULL : tw_json_inside_end(p, end);
    return quote == p ? NULL : quote;
}

TW_SHAPE_RARE const char *tw_shape_past_more_texts(const tw_scan_shape *shape, const char *p, const char *end) {
    for (uint32_t i = 1; i < shape->texts && p != NULL; i++) {
        p = tw_shape_past_part(shape, shape->text_at[i - 1], shape->text_at[i], p, end);
        p = tw_shape_past_text(p, end);
    }
    return p;
}

/* Past the event at p that is like the shape; NULL if it is not. */
static inline const char *tw_shape_past(const tw_scan_shape *shape, const char *p, const char *end) {
    p = tw_shape_past_part(shape, 0, shape->text_at[0], p, end);
    p = tw_shape_past_text(p, end);
    if (shape->texts > 1) p = tw_shape_past_more_texts(shape, p, end);
    return p == NULL ? NULL : tw_shape_past_part(shape, shape->text_at[shape->texts - 1], shape->len, p, end);
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

/* Past the event at p if it is like the shape; an event that is a message must be all of it. */
static inline const char *tw_shape_takes(const tw_scan *scan, uint32_t at, const char *p, const char *end) {
    p = tw_shape_past(&scan->shape[at], p, end);
    return p == end || scan->framing != TW_FRAMING_MESSAGE ? p : NULL;
}

/* One of those that were not expected. */
TW_SHAPE_RARE const char *tw_shapes_find(tw_scan *scan, const char *p, const char *end) {
    for (uint32_t at = 0; at < scan->shapes; at++) {
        const char *after = at == scan->expected ? NULL : tw_shape_takes(scan, at, p, end);
        if (after == NULL) continue;
        scan->shape[scan->last_shape].next = scan->expected = at;
        return after;
    }
    return NULL;
}

/* Past the event at p if it is like a remembered one. Choices take turns, so the one that came after the last one
 * before is expected. */
static inline const char *tw_shapes_past(tw_scan *scan, const char *p, const char *end, tw_scan_result *out) {
    const char *after = tw_shape_takes(scan, scan->expected, p, end);
    if (after == NULL) after = tw_shapes_find(scan, p, end);
    if (after == NULL) return NULL;
    const tw_scan_shape *shape = &scan->shape[scan->expected];
    tw_shape_count(shape, out);
    if (scan->unlike > 0) scan->unlike = 0;
    if (scan->last_shape != scan->expected) scan->last_shape = scan->expected;
    if (scan->expected != shape->next) scan->expected = shape->next;
    return after;
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

/* Tokens and nothing else, and a way to find where it ends: a bare CR could be half of a CRLF. */
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

/* An event that one message held whole, and what was found in it, in the place of the oldest if that is in the way. */
static inline void tw_shapes_remember(tw_scan *scan, tw_slice event, const tw_event_marks *marks,
                                      const tw_scan_result *out) {
    if (!tw_shape_fits(scan, event, marks, out)) return;
    if (scan->shapes == TW_SCAN_SHAPES && scan->unlike < TW_SHAPE_KEEP) return;
    const uint32_t at = scan->next_shape;
    tw_scan_shape *shape = &scan->shape[at];
    tw_shape_copy(shape, event, marks);
    shape->events = out->events;
    memcpy(shape->choice, out->choice, out->events * sizeof *out->choice);
    memcpy(shape->n, out->n, out->events * sizeof *out->n);
    shape->next = at;
    scan->shape[scan->last_shape].next = at;
    scan->last_shape = scan->expected = at;
    scan->next_shape = (at + 1) % TW_SCAN_SHAPES;
    if (scan->shapes < TW_SCAN_SHAPES) scan->shapes++;
}
