/* libFuzzer entry for the encoder; fuzz.sh builds and runs it. Texts and results stand in memory of their exact size,
 * so that the sanitizer sees a byte read or written beyond. Whatever the bytes are,
 *
 *     - as many are written as were announced, at most six for each, and the build without vectors writes the same,
 *     - what is written is the inside of a JSON string: no control byte, no quote but an escaped one, each escape
 *       complete; in the ASCII dialect nothing above '~',
 *     - unescaped it is the text again (ASCII dialect: if that is UTF-8),
 *     - a frame is its pieces and its holes' texts in turn.
 *
 * The last two bytes of the input choose the dialect, the number of holes (none: the text alone is looked at) and
 * which of them hold numbers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sse_portable.h"
#include "tailwatch/wire/body_scan.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define REQUIRE(condition)                                                      \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                            \
        }                                                                       \
    } while (0)

static char *room_for(size_t len) {
    char *room = malloc(len);
    REQUIRE(room != NULL || len == 0);
    return room;
}

static char *exact_copy(const void *bytes, size_t len) {
    char *copied = room_for(len);
    if (len > 0) memcpy(copied, bytes, len);
    return copied;
}

/* ---- what is a JSON string, what is UTF-8 ---- */

static size_t escape_length(const char *p, size_t left) {
    if (left < 2) return 0;
    if (p[1] != 'u') return strchr("\"\\bfnrt", p[1]) != NULL && p[1] != '\0' ? 2 : 0;
    if (left < 6) return 0;
    for (int i = 2; i < 6; i++)
        if (strchr("0123456789abcdef", p[i]) == NULL || p[i] == '\0') return 0;
    return 6;
}

static bool is_string_inside(tw_dialect dialect, const char *p, size_t len) {
    for (size_t at = 0; at < len;) {
        const unsigned char c = (unsigned char)p[at];
        if (c < 0x20 || c == '"' || (dialect == TW_DIALECT_ASCII && c > '~')) return false;
        const size_t taken = c == '\\' ? escape_length(p + at, len - at) : 1;
        if (taken == 0) return false;
        at += taken;
    }
    return true;
}

/* Bytes of the character at p, 0 if there is none: no overlong form, no surrogate, nothing above U+10FFFF. */
static size_t character_length(const char *p, size_t left) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char lead = (unsigned char)*p;
    const size_t len = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (len < 2 || left < len) return len < 2 ? len : 0;
    uint32_t point = lead & (0x7FU >> len);
    for (size_t i = 1; i < len; i++) {
        if (((unsigned char)p[i] & 0xC0) != 0x80) return 0;
        point = point << 6 | ((unsigned char)p[i] & 0x3F);
    }
    return point < least[len] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000) ? 0 : len;
}

static bool is_utf8(const char *p, size_t len) {
    for (size_t at = 0; at < len;) {
        const size_t taken = character_length(p + at, len - at);
        if (taken == 0) return false;
        at += taken;
    }
    return true;
}

/* ---- what holds ---- */

static void check_back(const char *text, size_t len, const char *written, size_t size) {
    char *back = room_for(len);
    REQUIRE(tw_json_unescape(written, size, back, len) == len);
    REQUIRE(len == 0 || memcmp(back, text, len) == 0);
    free(back);
}

static void check_text(tw_dialect dialect, const char *text, size_t len) {
    const size_t size = tw_json_escaped_len(dialect, text, len);
    REQUIRE(size <= 6 * len);
    REQUIRE(portable_json_escaped_len(dialect, text, len) == size);
    char *written = room_for(size), *portable = room_for(size);
    REQUIRE(tw_json_escape(dialect, text, len, written) == size);
    REQUIRE(portable_json_escape(dialect, text, len, portable) == size);
    REQUIRE(size == 0 || memcmp(written, portable, size) == 0);
    REQUIRE(is_string_inside(dialect, written, size));
    if (dialect == TW_DIALECT_UTF8 || is_utf8(text, len)) check_back(text, len, written, size);
    free(written);
    free(portable);
}

/* The text cut into as many parts as there are holes; they are the texts in them too. */
static tw_frame frame_of(const char *text, size_t len, tw_dialect dialect, uint32_t holes, uint32_t numbers,
                         tw_filling *fillings) {
    tw_frame frame = {text, (uint32_t)dialect, holes, {0}};
    frame.cut[holes] = (uint32_t)len;
    for (uint32_t i = 0; i < holes; i++) {
        const size_t from = len * i / holes, to = len * (i + 1) / holes;
        frame.cut[i] = (uint32_t)(i % 3 == 0 ? from : to);
        fillings[i] = (tw_filling){exact_copy(text + from, to - from), to - from, 0, (numbers >> i & 1) != 0};
    }
    return frame;
}

static char *append_expected(tw_dialect dialect, const tw_filling *filling, char *to) {
    if (!filling->verbatim) return to + tw_json_escape(dialect, filling->text, filling->len, to);
    if (filling->len > 0) memcpy(to, filling->text, filling->len);
    return to + filling->len;
}

static size_t expected_frame(const tw_frame *frame, const tw_filling *fillings, char *to) {
    const char *start = to;
    uint32_t from = 0;
    for (uint32_t i = 0; i <= frame->holes; i++) {
        if (frame->cut[i] > from) memcpy(to, frame->bytes + from, frame->cut[i] - from);
        to += frame->cut[i] - from;
        from = frame->cut[i];
        if (i < frame->holes) to = append_expected((tw_dialect)frame->dialect, &fillings[i], to);
    }
    return (size_t)(to - start);
}

static void check_frame(const char *text, size_t len, tw_dialect dialect, uint32_t holes, uint32_t numbers) {
    tw_filling fillings[TW_FRAME_HOLES];
    const tw_frame frame = frame_of(text, len, dialect, holes, numbers, fillings);
    char *expected = room_for(7 * len), *written;
    const size_t size = tw_frame_len(&frame, fillings);
    REQUIRE(size == expected_frame(&frame, fillings, expected));
    written = room_for(size);
    REQUIRE(tw_frame_write(&frame, fillings, written) == written + size);
    REQUIRE(size == 0 || memcmp(written, expected, size) == 0);
    free(written);
    free(expected);
    for (uint32_t i = 0; i < holes; i++) free((char *)fillings[i].text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    if (size < 2) return 0;
    const tw_dialect dialect = bytes[size - 1] & 1 ? TW_DIALECT_ASCII : TW_DIALECT_UTF8;
    const uint32_t holes = (uint32_t)(bytes[size - 1] >> 1) % (TW_FRAME_HOLES + 1), numbers = bytes[size - 2];
    char *text = exact_copy(bytes, size - 2);
    if (holes == 0) check_text(dialect, text, size - 2);
    else check_frame(text, size - 2, dialect, holes, numbers);
    free(text);
    return 0;
}
