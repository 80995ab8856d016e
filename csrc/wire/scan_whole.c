/* One JSON document over the whole body: its model, its usage, whether it is an error. Reads on from any
 * byte, so that it does not matter how the document was cut into messages. */
#include "wire/scan_event.h"

enum context { CONTEXT_ROOT, CONTEXT_LIST, CONTEXT_TOP, CONTEXT_INNER, CONTEXT_USAGE, CONTEXT_OTHER };
enum key { KEY_NONE, KEY_MODEL, KEY_USAGE, KEY_TOKENS, KEY_EVAL_COUNT, KEY_ERROR, KEY_KIND, KEY_INNER };
enum state { STATE_BETWEEN, STATE_STRING, STATE_NUMBER, STATE_SCALAR };

#define CONTEXTS (sizeof ((tw_scan_whole *)0)->context)

static enum context context_of(const tw_scan_whole *whole) {
    return whole->depth < CONTEXTS ? (enum context)whole->context[whole->depth] : CONTEXT_OTHER;
}

static enum key key_named(tw_slice name) {
    if (TW_IS(name, "model")) return KEY_MODEL;
    if (TW_IS(name, "usage") || TW_IS(name, "meta_info")) return KEY_USAGE;
    if (TW_IS(name, "completion_tokens") || TW_IS(name, "output_tokens")) return KEY_TOKENS;
    if (TW_IS(name, "eval_count")) return KEY_EVAL_COUNT;
    if (TW_IS(name, "error")) return KEY_ERROR;
    if (TW_IS(name, "object") || TW_IS(name, "type")) return KEY_KIND;
    if (TW_IS(name, "response") || TW_IS(name, "message")) return KEY_INNER;
    return KEY_NONE;
}

/* ---- brackets ---- */

static enum context context_within(enum context outer, enum key key, char bracket) {
    if (outer == CONTEXT_ROOT && bracket == '[') return CONTEXT_LIST;
    if (bracket != '{') return CONTEXT_OTHER;
    if (outer == CONTEXT_ROOT || outer == CONTEXT_LIST) return CONTEXT_TOP;
    if (outer != CONTEXT_TOP && outer != CONTEXT_INNER) return CONTEXT_OTHER;
    if (key == KEY_USAGE) return CONTEXT_USAGE;
    return outer == CONTEXT_TOP && key == KEY_INNER ? CONTEXT_INNER : CONTEXT_OTHER;
}

static void open_bracket(tw_scan_whole *whole, char bracket) {
    const enum context inside = context_within(context_of(whole), (enum key)whole->key, bracket);
    if (whole->depth < UINT32_MAX) whole->depth++;
    if (whole->depth < CONTEXTS) whole->context[whole->depth] = (uint8_t)inside;
    whole->key = KEY_NONE;
}

/* A list's entries are answers of their own: their tokens add up. */
static void close_bracket(tw_scan_whole *whole) {
    if (context_of(whole) == CONTEXT_TOP) {
        whole->usage += whole->entry_usage;
        whole->entry_usage = 0;
    }
    if (whole->depth > 0) whole->depth--;
    whole->key = KEY_NONE;
}

/* ---- values ---- */

static void end_number(tw_scan_whole *whole, tw_scan_result *out) {
    const enum context context = context_of(whole);
    const bool counts = (context == CONTEXT_USAGE && whole->key == KEY_TOKENS) ||
                        (context == CONTEXT_TOP && whole->key == KEY_EVAL_COUNT);
    if (!counts) return;
    if (whole->number > whole->entry_usage) whole->entry_usage = whole->number;
    out->usage_tokens = whole->usage + whole->entry_usage;
}

static void see_model(tw_scan *scan, tw_scan_result *out) {
    if (scan->model_seen || scan->part_cut || scan->part_len == 0 || scan->part_len > TW_SCAN_MODEL) return;
    memcpy(scan->model, scan->part, scan->part_len);
    out->model = scan->model;
    out->model_len = scan->part_len;
    scan->model_seen = 1;
}

static void end_string(tw_scan *scan, tw_scan_result *out) {
    tw_scan_whole *whole = &scan->whole;
    const enum context context = context_of(whole);
    const tw_slice string = {scan->part, scan->part_len};
    whole->state = STATE_BETWEEN;
    whole->token = (uint8_t)key_named(string);
    if (whole->key == KEY_MODEL && (context == CONTEXT_TOP || context == CONTEXT_INNER)) see_model(scan, out);
    if (context != CONTEXT_TOP) return;
    if (whole->key == KEY_ERROR && scan->part_len > 0) out->error = true;
    if (whole->key == KEY_KIND && TW_IS(string, "error")) out->error = true;
}

static void keep(tw_scan *scan, const char *p, const char *end) {
    size_t len = (size_t)(end - p), room = TW_SCAN_PART - scan->part_len;
    if (len > room) scan->part_cut = 1;
    if (len > room) len = room;
    memcpy(scan->part + scan->part_len, p, len);
    scan->part_len += (uint32_t)len;
}

static const char *read_string(tw_scan *scan, const char *p, const char *end, tw_scan_result *out) {
    const char *stop = scan->whole.escaped ? p + 1 : tw_json_special(p, end);
    keep(scan, p, stop);
    if (scan->whole.escaped) {
        scan->whole.escaped = 0;
        return stop;
    }
    if (stop == end) return end;
    if (*stop == '"') {
        end_string(scan, out);
    } else {
        scan->whole.escaped = 1;
        keep(scan, stop, stop + 1);
    }
    return stop + 1;
}

static const char *read_number(tw_scan_whole *whole, const char *p, const char *end, tw_scan_result *out) {
    for (; p < end && *p >= '0' && *p <= '9'; p++)
        whole->number = whole->number > (UINT32_MAX - 9) / 10 ? UINT32_MAX : whole->number * 10 + (uint64_t)(*p - '0');
    if (p == end) return end;
    end_number(whole, out);
    whole->state = STATE_SCALAR;
    return p;
}

static const char *read_scalar(tw_scan_whole *whole, const char *p, const char *end) {
    while (p < end && (unsigned char)*p > ' ' && memchr(",}]\"{[:", *p, 7) == NULL) p++;
    if (p < end) whole->state = STATE_BETWEEN;
    return p;
}

static void begin_value(tw_scan_whole *whole, char c, tw_scan_result *out) {
    if (context_of(whole) == CONTEXT_TOP && whole->key == KEY_ERROR && c != 'n' && c != 'f') out->error = true;
}

static void read_between(tw_scan *scan, char c, tw_scan_result *out) {
    tw_scan_whole *whole = &scan->whole;
    if ((unsigned char)c <= ' ') return;
    if (c == ',') {
        whole->key = KEY_NONE;
    } else if (c == ':') {
        whole->key = whole->token;
    } else if (c == '}' || c == ']') {
        close_bracket(whole);
    } else if (c == '"') {
        whole->state = STATE_STRING;
        scan->part_len = scan->part_cut = 0;
    } else {
        begin_value(whole, c, out);
        if (c == '{' || c == '[') {
            open_bracket(whole, c);
        } else if (c >= '0' && c <= '9') {
            whole->state = STATE_NUMBER;
            whole->number = (uint64_t)(c - '0');
        } else {
            whole->state = STATE_SCALAR;
        }
    }
}

void tw_whole_feed(tw_scan *scan, const char *p, const char *end, tw_scan_result *out) {
    while (p < end) {
        switch ((enum state)scan->whole.state) {
        case STATE_STRING: p = read_string(scan, p, end, out); break;
        case STATE_NUMBER: p = read_number(&scan->whole, p, end, out); break;
        case STATE_SCALAR: p = read_scalar(&scan->whole, p, end); break;
        case STATE_BETWEEN: read_between(scan, *p++, out); break;
        }
    }
}
