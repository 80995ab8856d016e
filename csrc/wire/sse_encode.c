/* Escaping a text as a JSON string, and splicing it into a frame. */
#include "tailwatch/wire/sse_encode.h"

#include "wire/sse_simd.h"

/* ---- what a byte below 0x80 becomes ---- */

typedef struct escape {
    char bytes[7];
    uint8_t len; /* 0: the byte stands as it is */
} escape;

#define NAMED(letter) {"\\" letter, 2}
#define CODED(digits) {"\\u00" digits, 6}

static const escape escapes[128] = {
    CODED("00"), CODED("01"), CODED("02"), CODED("03"), CODED("04"), CODED("05"), CODED("06"), CODED("07"),
    NAMED("b"),  NAMED("t"),  NAMED("n"),  CODED("0b"), NAMED("f"),  NAMED("r"),  CODED("0e"), CODED("0f"),
    CODED("10"), CODED("11"), CODED("12"), CODED("13"), CODED("14"), CODED("15"), CODED("16"), CODED("17"),
    CODED("18"), CODED("19"), CODED("1a"), CODED("1b"), CODED("1c"), CODED("1d"), CODED("1e"), CODED("1f"),
    ['"'] = NAMED("\""), ['\\'] = NAMED("\\"), [0x7f] = CODED("7f") /* in the ASCII dialect */
};

static inline size_t byte_len(uint32_t byte) { return escapes[byte].len + (escapes[byte].len == 0); }

static inline void write_byte(char *out, uint32_t byte) {
    const escape *found = &escapes[byte];
    if (found->len == 0) *out = (char)byte;
    else if (found->len == 2) memcpy(out, found->bytes, 2);
    else memcpy(out, found->bytes, 6);
}

/* Any byte, without a branch: stores eight, of which what it becomes is the beginning. */
static inline char *store_byte(char *out, unsigned char byte) {
    memcpy(out, &escapes[byte], sizeof *escapes);
    *out = (char)(escapes[byte].len == 0 ? byte : '\\');
    return out + byte_len(byte);
}

/* For a byte that has an escape. Stores eight bytes, of which the escape is the beginning. */
static inline char *store_escape(char *out, char byte) {
    const escape *found = &escapes[(unsigned char)byte];
    memcpy(out, found, sizeof *found);
    return out + found->len;
}

typedef struct cursor {
    const char *text, *end;
    char *out;
} cursor;

/* ---- the UTF-8 dialect ---- */

#define LANES(name) tw_word_##name
#define LANES_WIDTH TW_WORD_WIDTH
#define LANES_SHIFT TW_WORD_SHIFT
#define LANES_TARGET
#include "wire/sse_lanes.h"

#ifdef TW_VECTOR_WIDTH
#define LANES(name) tw_vector_##name
#define LANES_WIDTH TW_VECTOR_WIDTH
#define LANES_SHIFT TW_VECTOR_SHIFT
#define LANES_TARGET
#include "wire/sse_lanes.h"
#endif

#ifdef TW_WIDE_WIDTH
#define LANES(name) tw_wide_##name
#define LANES_WIDTH TW_WIDE_WIDTH
#define LANES_SHIFT TW_WIDE_SHIFT
#define LANES_TARGET TW_WIDE_TARGET
#include "wire/sse_lanes.h"
#endif

#define WIDE 96 /* bytes of text from which wide vectors are worth their start */

static size_t utf8_byte_len(unsigned char byte) { return byte < 0x7f ? byte_len(byte) : 1; }

static void utf8_write_byte(cursor *at) {
    const unsigned char byte = (unsigned char)*at->text++;
    if (byte < 0x7f) write_byte(at->out, byte);
    else *at->out = (char)byte;
    at->out += utf8_byte_len(byte);
}

/* From the widest vectors there are to the last byte. */
static size_t utf8_len(const char *text, size_t len) {
    cursor at = {text, text + len, NULL};
    size_t sum = len;
#ifdef TW_WIDE_WIDTH
    if (len >= WIDE && tw_wide_works()) tw_wide_measure(&at, &sum);
#endif
#ifdef TW_VECTOR_WIDTH
    tw_vector_measure(&at, &sum);
#endif
    tw_word_measure(&at, &sum);
    for (; at.text < at.end; at.text++) sum += utf8_byte_len((unsigned char)*at.text) - 1;
    return sum;
}

static char *utf8_write(const char *text, size_t len, char *out) {
    cursor at = {text, text + len, out};
#ifdef TW_WIDE_WIDTH
    if (len >= WIDE && tw_wide_works()) tw_wide_write(&at);
#endif
#ifdef TW_VECTOR_WIDTH
    tw_vector_write(&at);
#endif
    tw_word_write(&at);
    while (at.text < at.end) utf8_write_byte(&at);
    return at.out;
}

/* ---- the ASCII dialect ---- */

#define REPLACEMENT 0xFFFD /* for a byte that is part of no character */
#define NONE UINT32_MAX

/* The six bits of a byte that continues a character; more where it does not. */
static inline uint32_t six_bits(char byte) { return (unsigned char)byte ^ 0x80U; }

static inline uint32_t point_of(uint32_t point, uint32_t least, uint32_t most, uint32_t bits) {
    return bits > 0x3F || point < least || point > most ? NONE : point;
}

/* The code point that begins at p with a byte from 0x80 on, and its bytes. Surrogates are taken for characters,
 * overlong forms are not: what is no ASCII becomes longer, by which a frame's filling is known to need an escape. */
static inline uint32_t point_at(const char *p, size_t left, size_t *len) {
    const uint32_t lead = (unsigned char)*p;
    *len = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead < 0xC2 || lead > 0xF4 || left < *len) return NONE;
    const uint32_t b = six_bits(p[1]);
    if (*len == 2) return point_of((lead & 0x1F) << 6 | b, 0x80, 0x7FF, b);
    const uint32_t c = six_bits(p[2]);
    if (*len == 3) return point_of((lead & 0x0F) << 12 | b << 6 | c, 0x800, 0xFFFF, b | c);
    const uint32_t d = six_bits(p[3]);
    return point_of((lead & 0x07) << 18 | b << 12 | c << 6 | d, 0x10000, 0x10FFFF, b | c | d);
}

/* The code point at the cursor, which goes past it. */
static inline uint32_t take_point(cursor *at) {
    const unsigned char lead = (unsigned char)*at->text;
    size_t len = 1;
    uint32_t point = lead < 0x80 ? lead : point_at(at->text, (size_t)(at->end - at->text), &len);
    if (point == NONE) point = REPLACEMENT, len = 1;
    at->text += len;
    return point;
}

static inline void write_unit(char *out, uint32_t unit) {
    static const char digits[] = "0123456789abcdef";
    const char four[] = {digits[unit >> 12 & 15], digits[unit >> 8 & 15], digits[unit >> 4 & 15], digits[unit & 15]};
    memcpy(out, "\\u", 2);
    memcpy(out + 2, four, 4);
}

static inline size_t point_len(uint32_t point) { return point < 0x80 ? byte_len(point) : point < 0x10000 ? 6 : 12; }

static inline void write_point(char *out, uint32_t point) {
    if (point < 0x80) {
        write_byte(out, point);
    } else if (point < 0x10000) {
        write_unit(out, point);
    } else {
        write_unit(out, 0xD800 + ((point - 0x10000) >> 10));
        write_unit(out + 6, 0xDC00 + (point & 0x3FF));
    }
}

/* Not 0 if a byte of the word must be escaped. */
static inline uint64_t ascii_word_is_dirty(uint64_t word) {
    return tw_word_is_dirty(word) | ((word | (word + TW_BYTES(1))) & TW_HIGH);
}

/* Each step goes past some of the text, writes it unless out is NULL, and returns the bytes written. As many bytes of
 * text are left as are stored, and take no less room. */

/* Eight bytes below 0x80, of sixteen that are left. */
static inline size_t ascii_step_8(cursor *at, char *out) {
    const char *start = out;
    size_t len = 0;
    for (int i = 0; i < 8 && out == NULL; i++) len += byte_len((unsigned char)at->text[i]);
    for (int i = 0; i < 8 && out != NULL; i++) out = store_byte(out, (unsigned char)at->text[i]);
    at->text += 8;
    return out == NULL ? len : (size_t)(out - start);
}

static inline size_t ascii_step_1(cursor *at, char *out) {
    const uint32_t point = take_point(at);
    if (out != NULL) write_point(out, point);
    return point_len(point);
}

static inline size_t ascii_step(cursor *at, char *out) {
    if (at->end - at->text < 16 || (unsigned char)*at->text >= 0x80) return ascii_step_1(at, out);
    const uint64_t word = tw_word_at(at->text), dirty = ascii_word_is_dirty(word);
    if (dirty != 0) return (word & TW_HIGH) == 0 ? ascii_step_8(at, out) : ascii_step_1(at, out);
    if (out != NULL) memcpy(out, at->text, 8);
    at->text += 8;
    return 8;
}

static size_t ascii_len(const char *text, size_t len) {
    cursor at = {text, text + len, NULL};
    size_t sum = 0;
    while (at.text < at.end) sum += ascii_step(&at, NULL);
    return sum;
}

static char *ascii_write(const char *text, size_t len, char *out) {
    cursor at = {text, text + len, out};
    while (at.text < at.end) at.out += ascii_step(&at, at.out);
    return at.out;
}

/* ---- both ---- */

#define SHORT 16 /* bytes: a streamed token, as a rule */

/* Text of at most SHORT bytes in two words that overlap; what they have room for beside it is spaces. */
typedef struct short_text {
    uint64_t first, last;
} short_text;

static inline short_text short_load(const char *text, size_t len) {
    if (len >= 8) return (short_text){tw_word_at(text), tw_word_at(text + len - 8)};
    uint32_t first, last;
    if (len >= 4) {
        memcpy(&first, text, 4);
        memcpy(&last, text + len - 4, 4);
        return (short_text){(uint64_t)last << 32 | first, TW_BYTES(' ')};
    }
    if (len == 0) return (short_text){TW_BYTES(' '), TW_BYTES(' ')};
    const uint64_t bytes = (unsigned char)text[0] | (unsigned)(unsigned char)text[len / 2] << 8 |
                           (unsigned)(unsigned char)text[len - 1] << 16;
    return (short_text){bytes | TW_BYTES(' ') << 24, TW_BYTES(' ')};
}

static inline bool short_is_clean(tw_dialect dialect, const char *text, size_t len) {
    const short_text words = short_load(text, len);
    if (dialect == TW_DIALECT_ASCII) return (ascii_word_is_dirty(words.first) | ascii_word_is_dirty(words.last)) == 0;
    return (tw_word_is_dirty(words.first) | tw_word_is_dirty(words.last)) == 0;
}

__attribute__((noinline)) static size_t long_len(tw_dialect dialect, const char *text, size_t len) {
    return dialect == TW_DIALECT_ASCII ? ascii_len(text, len) : utf8_len(text, len);
}

size_t tw_json_escaped_len(tw_dialect dialect, const char *text, size_t len) {
    if (len <= SHORT && short_is_clean(dialect, text, len)) return len;
    return long_len(dialect, text, len);
}

size_t tw_json_escape(tw_dialect dialect, const char *text, size_t len, char *out) {
    if (len == 0) return 0;
    return (size_t)((dialect == TW_DIALECT_ASCII ? ascii_write(text, len, out) : utf8_write(text, len, out)) - out);
}

/* ---- frames ---- */

size_t tw_frame_len(const tw_frame *frame, tw_filling *fillings) {
    const tw_dialect dialect = (tw_dialect)frame->dialect;
    size_t len = frame->cut[frame->holes];
    for (uint32_t i = 0; i < frame->holes; i++) {
        tw_filling *filling = &fillings[i];
        filling->escaped = filling->len;
        if (!filling->verbatim) filling->escaped = tw_json_escaped_len(dialect, filling->text, filling->len);
        len += filling->escaped;
    }
    return len;
}

static inline char *copy(char *out, const char *from, size_t len) {
    if (len > 0) memcpy(out, from, len);
    return out + len;
}

static inline char *fill(tw_dialect dialect, const tw_filling *filling, char *out) {
    if (filling->escaped == filling->len) return copy(out, filling->text, filling->len);
    return out + tw_json_escape(dialect, filling->text, filling->len, out);
}

char *tw_frame_write(const tw_frame *frame, const tw_filling *fillings, char *out) {
    uint32_t from = 0;
    for (uint32_t i = 0; i < frame->holes; i++) {
        out = copy(out, frame->bytes + from, frame->cut[i] - from);
        out = fill((tw_dialect)frame->dialect, &fillings[i], out);
        from = frame->cut[i];
    }
    return copy(out, frame->bytes + from, frame->cut[frame->holes] - from);
}
