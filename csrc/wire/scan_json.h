/* A cursor over the JSON of one event, where it stands: no copy, no allocation, never past the end.
 *
 * It trusts nothing and mends nothing: at a byte that cannot be, or at the end of a cut event, `bad` is set,
 * every walk stops, and what was found so far is all that is known. Keys come one by one:
 *
 *     if (tw_json_enter(json, '{'))
 *         while (tw_json_key(json, &key)) ...consume exactly one value...
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct tw_slice {
    const char *at;
    size_t len;
} tw_slice;

typedef struct tw_json {
    const char *p, *end;
    bool bad;
    bool sse;        /* the value stands in `data:` lines: what begins a line is not part of it */
    tw_slice event;  /* the last `event:` field passed */
} tw_json;

static inline bool tw_slice_is(tw_slice slice, const char *text, size_t len) {
    return slice.len == len && memcmp(slice.at, text, len) == 0;
}
#define TW_IS(slice, text) tw_slice_is((slice), "" text, sizeof(text) - 1)

/* ---- strings, eight bytes at a time ---- */

static inline uint64_t tw_word_load(const char *p) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

#define TW_EACH_BYTE UINT64_C(0x0101010101010101)

/* High bit set in each zero byte; above the first such byte there may be false ones. */
static inline uint64_t tw_word_zero(uint64_t word) { return (word - TW_EACH_BYTE) & ~word & TW_EACH_BYTE << 7; }

/* Which byte of the word in memory order the mask marks first; a big endian one is looked at byte by byte. */
static inline size_t tw_word_first(uint64_t mask) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return (size_t)__builtin_ctzll(mask) / 8;
#else
    (void)mask;
    return 0;
#endif
}

/* The first '"' or '\\' at or after p, else end. */
static inline const char *tw_json_special(const char *p, const char *end) {
    while (end - p >= 8) {
        uint64_t word = tw_word_load(p);
        uint64_t mask = tw_word_zero(word ^ TW_EACH_BYTE * '"') | tw_word_zero(word ^ TW_EACH_BYTE * '\\');
        if (mask != 0) {
            p += tw_word_first(mask);
            break;
        }
        p += 8;
    }
    while (p < end && *p != '"' && *p != '\\') p++;
    return p;
}

/* The closing quote of the string whose inside begins at p, or NULL. */
static inline const char *tw_json_string_end(const char *p, const char *end) {
    for (;;) {
        p = tw_json_special(p, end);
        if (p == end) return NULL;
        if (*p == '"') return p;
        if (end - p < 2) return NULL;
        p += 2;
    }
}

/* The same, but NULL also where a control byte comes first: a line, and so the event, could end with it. */
static inline const char *tw_json_inside_end(const char *p, const char *end) {
    while (p < end) {
        if (end - p >= 8) {
            const uint64_t word = tw_word_load(p);
            const uint64_t control = (word - TW_EACH_BYTE * 0x20) & ~word & TW_EACH_BYTE << 7;
            const uint64_t quote = tw_word_zero(word ^ TW_EACH_BYTE * '"');
            const uint64_t mask = control | quote | tw_word_zero(word ^ TW_EACH_BYTE * '\\');
            p += mask == 0 ? 8 : tw_word_first(mask);
            if (mask == 0) continue;
        }
        if (*p == '"') return p;
        if ((unsigned char)*p < 0x20) return NULL;
        if (*p == '\\' && (++p == end || (unsigned char)*p < 0x20)) return NULL;
        p++;
    }
    return NULL;
}

/* ---- between values ---- */

static inline bool tw_is_break(char c) { return c == '\n' || c == '\r'; }

static inline const char *tw_line_end(const char *p, const char *end) {
    while (p < end && !tw_is_break(*p)) p++;
    return p;
}

static inline const char *tw_line_next(const char *p, const char *end) {
    if (p == end) return end;
    return p + (*p == '\r' && end - p > 1 && p[1] == '\n' ? 2 : 1);
}

/* The field's value if the line has that name, without the one space the format allows. */
static inline bool tw_line_field(const char *p, const char *end, const char *name, size_t len, tw_slice *value) {
    if ((size_t)(end - p) < len || memcmp(p, name, len) != 0) return false;
    p += len;
    if (p < end && *p != ':') return false;
    if (p < end) p++;
    if (p < end && *p == ' ') p++;
    *value = (tw_slice){p, (size_t)(end - p)};
    return true;
}

/* At the start of a line: go on to the next data field, noting the event field on the way. A data line's end
 * is not looked for, it can be long. */
static inline void tw_json_to_data(tw_json *json) {
    while (json->p < json->end) {
        const char *p = json->p;
        if (json->end - p >= 5 && memcmp(p, "data:", 5) == 0) {
            json->p = p + 5;
            return;
        }
        const char *stop = tw_line_end(p, json->end);
        tw_slice name;
        if (tw_line_field(p, stop, "event", 5, &name)) json->event = name;
        json->p = tw_line_next(stop, json->end);
    }
}

static inline void tw_json_space(tw_json *json) {
    while (json->p < json->end && (unsigned char)*json->p <= ' ') {
        if (json->sse && tw_is_break(*json->p)) {
            json->p = tw_line_next(json->p, json->end);
            tw_json_to_data(json);
        } else {
            json->p++;
        }
    }
}

static inline bool tw_json_fail(tw_json *json) {
    json->bad = true;
    json->p = json->end;
    return false;
}

/* After the white space; 0 at the end. */
static inline char tw_json_peek(tw_json *json) {
    tw_json_space(json);
    return json->p < json->end ? *json->p : '\0';
}

/* ---- values ---- */

/* The string's inside as it stands; a string that is cut off gives what there is, and `bad`. */
static inline tw_slice tw_json_string(tw_json *json) {
    const char *inside = json->p + 1;
    const char *quote = tw_json_string_end(inside, json->end);
    if (quote == NULL) {
        size_t len = (size_t)(json->end - inside);
        tw_json_fail(json);
        return (tw_slice){inside, len};
    }
    json->p = quote + 1;
    return (tw_slice){inside, (size_t)(quote - inside)};
}

/* A number, true, false, null: up to what ends it. */
static inline tw_slice tw_json_scalar(tw_json *json) {
    const char *start = json->p;
    while (json->p < json->end && (unsigned char)*json->p > ' ' && *json->p != ',' && *json->p != '}' &&
           *json->p != ']' && *json->p != '"' && *json->p != '{' && *json->p != '[' && *json->p != ':')
        json->p++;
    if (json->p == start || json->p == json->end) tw_json_fail(json);
    return (tw_slice){start, (size_t)(json->p - start)};
}

/* Past the bracket that closes the one at p; the two kinds are not distinguished. */
static inline void tw_json_skip_nested(tw_json *json) {
    size_t depth = 0;
    do {
        if (json->p == json->end) {
            tw_json_fail(json);
            return;
        }
        char c = *json->p;
        if (c == '"') {
            tw_json_string(json);
            continue;
        }
        if (c == '{' || c == '[') depth++;
        if (c == '}' || c == ']') depth--;
        if (json->sse && tw_is_break(c)) tw_json_space(json);
        else json->p++;
    } while (depth > 0 && !json->bad);
}

static inline void tw_json_skip(tw_json *json) {
    char c = tw_json_peek(json);
    if (c == '"') tw_json_string(json);
    else if (c == '{' || c == '[') tw_json_skip_nested(json);
    else tw_json_scalar(json);
}

/* Into the object or array if that is what comes; any other value is passed over. */
static inline bool tw_json_enter(tw_json *json, char bracket) {
    if (tw_json_peek(json) != bracket) {
        tw_json_skip(json);
        return false;
    }
    json->p++;
    return true;
}

/* The next key, up to its value; false past the closing brace. */
static inline bool tw_json_key(tw_json *json, tw_slice *key) {
    char c = tw_json_peek(json);
    if (c == ',') {
        json->p++;
        c = tw_json_peek(json);
    }
    if (c == '}') {
        json->p++;
        return false;
    }
    if (c != '"') return tw_json_fail(json);
    *key = tw_json_string(json);
    if (json->bad || tw_json_peek(json) != ':') return tw_json_fail(json);
    json->p++;
    return true;
}

/* Stands before the next element of an array; false past the closing bracket. */
static inline bool tw_json_element(tw_json *json) {
    char c = tw_json_peek(json);
    if (c == ',') {
        json->p++;
        c = tw_json_peek(json);
    }
    if (c == ']') {
        json->p++;
        return false;
    }
    return c == '\0' ? tw_json_fail(json) : !json->bad;
}

/* A count; anything else, and what is not a digit, is 0. Saturates. */
static inline uint64_t tw_json_count(tw_json *json) {
    char c = tw_json_peek(json);
    if (c < '0' || c > '9') {
        tw_json_skip(json);
        return 0;
    }
    tw_slice digits = tw_json_scalar(json);
    uint64_t value = 0;
    for (size_t i = 0; i < digits.len && digits.at[i] >= '0' && digits.at[i] <= '9'; i++) {
        if (value > (UINT32_MAX - 9) / 10) return UINT32_MAX;
        value = value * 10 + (uint64_t)(digits.at[i] - '0');
    }
    return value;
}

/* Passes over the value: is it null, false, "", [] or {}? A string's inside goes to *text. */
static inline bool tw_json_is_empty(tw_json *json, tw_slice *text) {
    char c = tw_json_peek(json);
    if (c == '"') {
        *text = tw_json_string(json);
        return text->len == 0 && !json->bad;
    }
    if (c == '{' || c == '[') {
        const char *start = json->p++;
        if (tw_json_peek(json) == (c == '{' ? '}' : ']')) {
            json->p++;
            return true;
        }
        json->p = start;
        tw_json_skip_nested(json);
        return false;
    }
    tw_slice word = tw_json_scalar(json);
    return !json->bad && (TW_IS(word, "null") || TW_IS(word, "false"));
}
