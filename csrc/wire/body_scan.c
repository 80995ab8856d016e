/* Cutting a streamed body into events, and the short way past a message like the one before it. */
#include "tailwatch/wire/body_scan.h"

#include "wire/scan_shape.h"

/* line_state: what the last message ended with. */
enum line_state {
    LINE_START,    /* a line's end, or nothing yet */
    LINE_MIDDLE,
    LINE_AFTER_CR  /* the line's end, and a LF that follows belongs to it */
};

static void clear(tw_scan_result *out) {
    out->tokens = out->events = 0;
    out->done = out->error = out->cut = false;
    out->usage_tokens = 0;
    out->model = NULL;
    out->model_len = 0;
}

void tw_scan_init(tw_scan *scan, tw_framing framing) {
    /* The buffers are read only as far as their lengths. */
    scan->framing = (uint32_t)framing;
    scan->model_seen = scan->shapes = scan->last_shape = scan->expected = scan->next_shape = scan->unlike = 0;
    scan->part_len = scan->part_cut = 0;
    scan->objects_only = false;
    scan->line_state = LINE_START;
    memset(&scan->whole, 0, sizeof scan->whole);
}

/* ---- the usual case ---- */

static bool is_clean(const tw_scan *scan) { return scan->part_len == 0 && scan->line_state == LINE_START; }

/* ---- the unfinished event ---- */

static void keep(tw_scan *scan, const char *p, const char *end) {
    size_t len = (size_t)(end - p), room = TW_SCAN_PART - scan->part_len;
    if (len > room) scan->part_cut = 1;
    if (len > room) len = room;
    memcpy(scan->part + scan->part_len, p, len);
    scan->part_len += (uint32_t)len;
}

/* The name of the model must outlive part[]. */
static void rescue_model(tw_scan *scan, tw_scan_result *out) {
    const uintptr_t at = (uintptr_t)out->model, part = (uintptr_t)scan->part;
    if (at < part || at >= part + TW_SCAN_PART) return;
    if (out->model_len > TW_SCAN_MODEL) out->model_len = TW_SCAN_MODEL;
    memcpy(scan->model, out->model, out->model_len);
    out->model = scan->model;
}

static void add(tw_scan_result *out, const tw_scan_result *one) {
    for (uint32_t i = 0; i < one->events; i++) tw_event_count(out, one->choice[i], one->n[i]);
    out->done |= one->done;
    out->error |= one->error;
    if (one->usage_tokens > out->usage_tokens) out->usage_tokens = one->usage_tokens;
    if (one->model == NULL) return;
    out->model = one->model;
    out->model_len = one->model_len;
}

/* The event in [p, end). after: where the next one begins, NULL if this one is not to be remembered. */
static void look(tw_scan *scan, const char *p, const char *end, const char *after, tw_scan_result *out) {
    tw_event_marks marks;
    tw_scan_result one;
    clear(&one);
    const bool formed = tw_event_look(p, end, scan->framing == TW_FRAMING_SSE, scan->model_seen != 0, &one, &marks);
    if (one.model != NULL) scan->model_seen = 1;
    if (scan->objects_only && !marks.object && !scan->part_cut) one.tokens = one.events = 0;
    if (formed && after != NULL && tw_shapes_worthwhile(scan))
        tw_shapes_remember(scan, (tw_slice){p, (size_t)(after - p)}, &marks, &one);
    add(out, &one);
}

/* The event that ends at end, and began at p or in messages before; the next begins at after. */
static void end_event(tw_scan *scan, const char *p, const char *end, const char *after, tw_scan_result *out) {
    if (scan->part_len == 0) {
        look(scan, p, end, after, out);
        return;
    }
    keep(scan, p, end);
    out->cut = scan->part_cut != 0;
    look(scan, scan->part, scan->part + scan->part_len, NULL, out);
    rescue_model(scan, out);
    scan->part_len = scan->part_cut = 0;
}

/* ---- framings ---- */

typedef struct line_breaks {
    const char *lf, *cr;  /* the next of each at or after the last place asked for; end if there is none */
} line_breaks;

static const char *find(const char *p, const char *end, char c) {
    const char *at = memchr(p, c, (size_t)(end - p));
    return at == NULL ? end : at;
}

/* Each byte is looked at once for LF and once for CR, however the two mix. */
static const char *next_break(line_breaks *next, const char *p, const char *end) {
    if (next->lf < p) next->lf = find(p, end, '\n');
    if (next->cr < p) next->cr = find(p, end, '\r');
    return next->lf < next->cr ? next->lf : next->cr;
}

static void feed_sse(tw_scan *scan, const char *p, const char *end, tw_scan_result *out) {
    if (scan->line_state == LINE_AFTER_CR && *p == '\n') p++;
    line_breaks next = {find(p, end, '\n'), find(p, end, '\r')};
    const char *event = p;
    bool at_start = scan->line_state != LINE_MIDDLE;
    scan->line_state = LINE_START;
    while (p < end) {
        const char *stop = next_break(&next, p, end);
        if (stop == end) {
            scan->line_state = LINE_MIDDLE;
            break;
        }
        const bool blank = at_start && stop == p;
        if (*stop == '\r' && stop + 1 == end) scan->line_state = LINE_AFTER_CR;
        p = tw_line_next(stop, end);
        at_start = true;
        if (!blank) continue;
        end_event(scan, event, stop, p, out);
        event = p;
    }
    keep(scan, event, end);
}

static void feed_lines(tw_scan *scan, const char *p, const char *end, tw_scan_result *out) {
    for (;;) {
        const char *stop = find(p, end, '\n');
        if (stop == end) break;
        end_event(scan, p, stop, stop + 1, out);
        p = stop + 1;
    }
    keep(scan, p, end);
}

__attribute__((noinline)) static void feed(tw_scan *scan, const char *p, const char *end, tw_scan_result *out) {
    switch ((tw_framing)scan->framing) {
    case TW_FRAMING_SSE: feed_sse(scan, p, end, out); break;
    case TW_FRAMING_LINES: feed_lines(scan, p, end, out); break;
    case TW_FRAMING_MESSAGE: look(scan, p, end, end, out); break;
    case TW_FRAMING_RAW: tw_event_count(out, 0, 1); break;
    case TW_FRAMING_WHOLE: tw_whole_feed(scan, p, end, out); break;
    }
}

void tw_scan_feed(tw_scan *scan, const char *data, size_t len, tw_scan_result *out) {
    clear(out);
    if (len == 0) return;
    const char *p = data, *end = data + len;
    const bool known = scan->shapes > 0 && is_clean(scan) && tw_shapes_worthwhile(scan);
    for (const char *after = p; known && (after = tw_shapes_past(scan, p, end, out)) != NULL; p = after)
        if (after == end) return;
    feed(scan, p, end, out);
    scan->unlike++;
}

void tw_scan_feed_rarely(tw_scan *scan, const char *data, size_t len, tw_scan_result *out) {
    clear(out);
    if (len > 0) feed(scan, data, data + len, out);
}

bool tw_scan_between(const tw_scan *scan) { return is_clean(scan); }

void tw_scan_finish(tw_scan *scan, tw_scan_result *out) {
    clear(out);
    const bool has_events = scan->framing == TW_FRAMING_SSE || scan->framing == TW_FRAMING_LINES;
    if (has_events && scan->part_len > 0) {
        look(scan, scan->part, scan->part + scan->part_len, NULL, out);
        rescue_model(scan, out);
    }
    if (scan->framing == TW_FRAMING_SSE) out->tokens = out->events = 0;
    scan->part_len = scan->part_cut = 0;
    scan->line_state = LINE_START;
}

/* ---- strings ---- */

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The code unit of a \uXXXX at p, or -1. */
static int32_t unit_at(const char *p, const char *end) {
    int32_t unit = 0;
    if (end - p < 6 || p[0] != '\\' || p[1] != 'u') return -1;
    for (int i = 2; i < 6; i++) {
        const int digit = hex_value(p[i]);
        if (digit < 0) return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

/* The code point of the \u escape at p and the bytes it takes, or -1: a half pair alone is none. */
static int32_t code_point_at(const char *p, const char *end, size_t *taken) {
    const int32_t unit = unit_at(p, end);
    *taken = 6;
    if (unit < 0xD800 || unit > 0xDFFF) return unit;
    const int32_t low = unit < 0xDC00 ? unit_at(p + 6, end) : -1;
    if (low < 0xDC00 || low > 0xDFFF) return -1;
    *taken = 12;
    return 0x10000 + (unit - 0xD800) * 0x400 + (low - 0xDC00);
}

static size_t utf8_from(int32_t point, char *to) {
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    const size_t len = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (size_t i = len; i-- > 1; point >>= 6) to[i] = (char)(0x80 | (point & 0x3F));
    to[0] = (char)(lead[len] | point);
    return len;
}

static char plain_escape(char c) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *at = c == '\0' ? NULL : strchr(from, c);
    return at == NULL ? '\0' : to[at - from];
}

/* One character or escape at p into to[4]; bytes taken in *taken. */
static size_t unescape_one(const char *p, const char *end, char *to, size_t *taken) {
    *taken = 1;
    to[0] = *p;
    if (*p != '\\' || end - p < 2) return 1;
    if (p[1] == 'u') {
        size_t escape;
        const int32_t point = code_point_at(p, end, &escape);
        if (point < 0) return 1;
        *taken = escape;
        return utf8_from(point, to);
    }
    const char plain = plain_escape(p[1]);
    if (plain == '\0') return 1;
    to[0] = plain;
    *taken = 2;
    return 1;
}

/* No half character at the end: cut is the byte that found no room. */
static size_t without_half(const char *out, size_t written, unsigned char cut) {
    if ((cut & 0xC0) != 0x80) return written;
    while (written > 0 && ((unsigned char)out[written - 1] & 0xC0) == 0x80) written--;
    return written > 0 && (unsigned char)out[written - 1] >= 0xC0 ? written - 1 : written;
}

size_t tw_json_unescape(const char *text, size_t len, char *out, size_t cap) {
    if (len == 0) return 0;
    const char *end = text + len;
    size_t written = 0;
    while (text < end) {
        char character[4];
        size_t taken;
        const size_t size = unescape_one(text, end, character, &taken);
        if (size > cap - written) return without_half(out, written, (unsigned char)*text);
        memcpy(out + written, character, size);
        written += size;
        text += taken;
    }
    return written;
}
