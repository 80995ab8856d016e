/* The encoder, with vectors and without, against a slow one written here. Texts and results stand in memory of their
 * exact size: the address sanitizer sees a byte read or written beyond. */
#include "sse_portable.h"

#include "tw_test.h"

#define MIB (1024 * 1024)

typedef struct encoder {
    size_t (*len)(tw_dialect dialect, const char *text, size_t len);
    size_t (*escape)(tw_dialect dialect, const char *text, size_t len, char *out);
    size_t (*frame_len)(const tw_frame *frame, tw_filling *fillings);
    char *(*frame_write)(const tw_frame *frame, const tw_filling *fillings, char *out);
} encoder;

static const encoder encoders[] = {
    {tw_json_escaped_len, tw_json_escape, tw_frame_len, tw_frame_write},
    {portable_json_escaped_len, portable_json_escape, portable_frame_len, portable_frame_write}};

static const tw_dialect dialects[] = {TW_DIALECT_UTF8, TW_DIALECT_ASCII};

/* ---- the slow one: valid UTF-8, and surrogates of three bytes ---- */

static size_t utf8_put(char *to, uint32_t point) {
    static const uint32_t from[] = {0x80, 0x800, 0x10000, 0x110000}, lead[] = {0, 0xC0, 0xE0, 0xF0};
    size_t more = 0;
    while (point >= from[more]) more++;
    to[0] = (char)(lead[more] | point >> 6 * more);
    for (size_t i = 1; i <= more; i++) to[i] = (char)(0x80 | (point >> 6 * (more - i) & 0x3F));
    return more + 1;
}

static uint32_t utf8_get(const char *from, size_t *taken) {
    const unsigned char lead = (unsigned char)*from;
    *taken = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    uint32_t point = *taken == 1 ? lead : lead & (0x7FU >> *taken);
    for (size_t i = 1; i < *taken; i++) point = point * 64 + ((unsigned char)from[i] - 0x80U);
    return point;
}

static size_t put_point(tw_dialect dialect, char *to, uint32_t point) {
    static const char named[] = "\"\\\b\t\n\f\r", letters[] = "\"\\btnfr";
    const char *name = point == 0 || point > 0x7f ? NULL : strchr(named, (int)point);
    if (name != NULL) return (size_t)sprintf(to, "\\%c", letters[name - named]);
    if (point < 0x20) return (size_t)sprintf(to, "\\u%04x", (unsigned)point);
    if (point < 0x7f || dialect == TW_DIALECT_UTF8) return utf8_put(to, point);
    if (point < 0x10000) return (size_t)sprintf(to, "\\u%04x", (unsigned)point);
    const unsigned beyond = point - 0x10000;
    return (size_t)sprintf(to, "\\u%04x\\u%04x", 0xD800 + beyond / 0x400, 0xDC00 + beyond % 0x400);
}

static size_t slow_escape(tw_dialect dialect, const char *text, size_t len, char *out) {
    size_t written = 0, taken;
    for (size_t at = 0; at < len; at += taken)
        written += put_point(dialect, out + written, utf8_get(text + at, &taken));
    return written;
}

/* ---- one text ---- */

static char *room_for(size_t size) {
    char *room = malloc(size);
    TW_REQUIRE(room != NULL || size == 0);
    return room;
}

/* The text stands shift bytes into its memory, at the end of it; so does what is written. */
static void check_encoder(const encoder *by, tw_dialect dialect, const char *text, size_t len, size_t shift,
                          const char *expected, size_t size) {
    char *from = room_for(shift + len), *to = room_for(shift + size);
    if (len > 0) memcpy(from + shift, text, len);
    bool ok = TW_CHECK_EQ(size, by->len(dialect, from + shift, len));
    if (ok) ok = TW_CHECK_EQ(size, by->escape(dialect, from + shift, len, to + shift));
    if (ok) TW_CHECK_MEM(expected, to + shift, size);
    free(from);
    free(to);
}

static void check_shifted(const char *text, size_t len, size_t shift) {
    char *expected = room_for(12 * len + 16);
    for (size_t d = 0; d < 2; d++) {
        const size_t size = slow_escape(dialects[d], text, len, expected);
        for (size_t e = 0; e < 2; e++) check_encoder(&encoders[e], dialects[d], text, len, shift, expected, size);
    }
    free(expected);
}

static void check_text(const char *text, size_t len) { check_shifted(text, len, 0); }

TW_TEST(nothing_becomes_nothing) {
    check_text("", 0);
    for (size_t e = 0; e < 2; e++) {
        TW_CHECK_EQ(0, encoders[e].len(TW_DIALECT_UTF8, NULL, 0));
        TW_CHECK_EQ(0, encoders[e].escape(TW_DIALECT_ASCII, NULL, 0, NULL));
    }
}

TW_TEST(known_texts_become_what_servers_write) {
    static const char text[] = "a\"\\/\b\t\n\f\r\x01\x1f\x7f\xc3\xa9\xf0\x9f\x98\x80";
    static const char utf8[] = "a\\\"\\\\/\\b\\t\\n\\f\\r\\u0001\\u001f\x7f\xc3\xa9\xf0\x9f\x98\x80";
    static const char ascii[] = "a\\\"\\\\/\\b\\t\\n\\f\\r\\u0001\\u001f\\u007f\\u00e9\\ud83d\\ude00";
    for (size_t e = 0; e < 2; e++) {
        check_encoder(&encoders[e], TW_DIALECT_UTF8, text, sizeof text - 1, 0, utf8, sizeof utf8 - 1);
        check_encoder(&encoders[e], TW_DIALECT_ASCII, text, sizeof text - 1, 0, ascii, sizeof ascii - 1);
    }
}

/* ---- every byte, every character ---- */

/* Long enough for the widest vectors. */
TW_TEST(every_byte_at_every_place) {
    char text[130];
    for (uint32_t byte = 0; byte < 0x80; byte++) {
        for (size_t at = 0; at < sizeof text; at++) {
            memset(text, 'x', sizeof text);
            text[at] = (char)byte;
            check_text(text, sizeof text);
            check_text(text + at, (sizeof text - at) % 16);
        }
    }
}

/* Bytes from 0x80 on stand as they are in the UTF-8 dialect, wherever they are. */
TW_TEST(high_bytes_stand_as_they_are) {
    char text[130];
    for (uint32_t byte = 0x80; byte < 0x100; byte++) {
        for (size_t len = 1; len <= sizeof text; len++) {
            memset(text, (int)byte, len);
            for (size_t e = 0; e < 2; e++) check_encoder(&encoders[e], TW_DIALECT_UTF8, text, len, 0, text, len);
        }
    }
}

/* Surrogates among them. */
TW_TEST(every_character) {
    enum { TOGETHER = 64 };
    char text[TOGETHER * 4];
    for (uint32_t point = 0; point < 0x110000; point += TOGETHER) {
        size_t len = 0;
        for (uint32_t i = 0; i < TOGETHER; i++) len += utf8_put(text + len, point + i);
        check_text(text, len);
    }
}

TW_TEST(characters_alone) {
    char text[4];
    for (uint32_t point = 0; point < 0x110000; point += point < 0x3000 ? 1 : 0x101)
        check_text(text, utf8_put(text, point));
}

/* ---- every length and place ---- */

TW_TEST(every_length_at_every_alignment) {
    char text[201];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)(i % 17 == 16 ? '\n' : 'a' + i % 16);
    for (size_t shift = 0; shift < 32; shift++) {
        for (size_t len = 0; len < sizeof text; len++) {
            check_shifted(text, len, shift);
            check_shifted(text, len < 16 ? len : 16, shift);
        }
    }
}

static void check_special(const char *special, size_t longest) {
    char text[256];
    const size_t size = strlen(special);
    for (size_t len = size; len <= longest; len++) {
        for (size_t at = 0; at + size <= len; at++) {
            memset(text, 'x', len);
            memcpy(text + at, special, size);
            check_text(text, len);
        }
    }
}

TW_TEST(an_escape_at_every_place) {
    check_special("\"", 200);
    check_special("\x01", 136);
    check_special("\f", 104);
    check_special("\\\n", 104);
    check_special("\x7f", 40);
    check_special("\xe4\xb8\xad", 72);
    check_special("\xf0\x9f\x98\x80\"", 72);
}

TW_TEST(nothing_but_escapes) {
    static const char *const specials[] = {"\"",       "\n",           "\x1f",            "\"\x02",
                                           "\xc3\xa9", "\xed\xa0\x80", "\xf0\x9f\x8e\x89"};
    char text[208];
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) {
        const size_t size = strlen(specials[i]);
        for (size_t len = 0; len + size <= 200; len += size) {
            check_text(text, len);
            memcpy(text + len, specials[i], size);
        }
    }
}

/* ---- anything ---- */

/* Mostly letters, or mostly characters of other scripts; an escape now and then, or often. */
static size_t random_text(char *text, size_t longest, uint64_t *random) {
    static const char escaped[] = "\"\\\b\t\n\f\r\x01\x1f\x0b";
    const uint64_t often = tw_test_random_below(random, 4) == 0 ? 2 : 30, script = tw_test_random_below(random, 3);
    size_t len = 0;
    while (len + 4 <= longest) {
        uint32_t point = 'a' + (uint32_t)tw_test_random_below(random, 26);
        if (tw_test_random_below(random, often) == 0) point = (unsigned char)escaped[tw_test_random_below(random, 10)];
        else if (script == 1) point = 0x4E00 + (uint32_t)tw_test_random_below(random, 0x5000);
        else if (script == 2) point = (uint32_t)tw_test_random_below(random, 0x110000);
        len += utf8_put(text + len, point);
    }
    return len;
}

TW_TEST(random_texts) {
    uint64_t random = 0x5eed1;
    char text[700];
    for (int round = 0; round < 4000; round++)
        check_shifted(text, random_text(text, tw_test_random_below(&random, sizeof text), &random), round % 32);
}

TW_TEST(long_texts) {
    uint64_t random = 0x5eed2;
    char *text = room_for(MIB);
    memset(text, 'x', MIB);
    check_text(text, MIB);
    memset(text, 0x01, MIB);
    check_text(text, MIB);
    for (int round = 0; round < 3; round++) check_text(text, random_text(text, MIB, &random));
    free(text);
}

/* ---- what is no UTF-8 ---- */

/* Some result, the same of both builds and of both functions, and no longer than six for one. */
static void check_invalid(const char *text, size_t len) {
    char *from = room_for(len), *to[2];
    size_t size[2];
    memcpy(from, text, len);
    for (size_t e = 0; e < 2; e++) {
        size[e] = encoders[e].len(TW_DIALECT_ASCII, from, len);
        to[e] = room_for(size[e]);
        TW_CHECK_EQ(size[e], encoders[e].escape(TW_DIALECT_ASCII, from, len, to[e]));
    }
    if (TW_CHECK(size[0] == size[1] && size[0] <= 6 * len)) TW_CHECK_MEM(to[0], to[1], size[0]);
    for (size_t i = 0; i < size[0]; i++) TW_CHECK((unsigned char)to[0][i] < 0x7f && (unsigned char)to[0][i] >= 0x20);
    for (size_t e = 0; e < 2; e++) free(to[e]);
    free(from);
}

TW_TEST(broken_characters_are_survived) {
    static const unsigned char followers[] = {0x00, 'a', '"', 0x7f, 0x80, 0x8f, 0xa0, 0xbf, 0xc3, 0xf0};
    char text[20];
    for (uint32_t lead = 0x80; lead < 0x100; lead++) {
        for (size_t i = 0; i < 1000; i++) {
            memset(text, 'x', sizeof text);
            text[16] = (char)lead;
            text[17] = (char)followers[i / 100];
            text[18] = (char)followers[i / 10 % 10];
            text[19] = (char)followers[i % 10];
            check_invalid(text + 16, 1 + i % 4);
            if (i % 7 == 0) check_invalid(text, 17 + i % 4);
        }
    }
}

#define LOST "\\ufffd"

/* Stray and missing bytes, overlong forms, what is beyond U+10FFFF. */
TW_TEST(a_byte_of_no_character_becomes_the_replacement_character) {
    static const char *const broken[][2] = {
        {"\x80" "a\xc3", LOST "a" LOST},       {"\x9f\xbf", LOST LOST},
        {"\xc1\xbf", LOST LOST},              {"\xc3" "a", LOST "a"},
        {"\xe4" "a\xb8", LOST "a" LOST},       {"\xe4\xb8" "a", LOST LOST "a"},
        {"\xe0\x80\xa2", LOST LOST LOST},     {"\xe0\x9f\xbf", LOST LOST LOST},
        {"\xf0\x9f\x98" "a", LOST LOST LOST "a"}, {"\xf0\x8f\xbf\xbf", LOST LOST LOST LOST},
        {"\xf4\x90\x80\x80", LOST LOST LOST LOST}, {"\xf9\x80\x80\x80", LOST LOST LOST LOST}};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        const char *text = broken[i][0], *expected = broken[i][1];
        for (size_t e = 0; e < 2; e++)
            check_encoder(&encoders[e], TW_DIALECT_ASCII, text, strlen(text), 0, expected, strlen(expected));
    }
}

/* No ASCII by another name: a frame shows by its length whether a text needs an escape. */
TW_TEST(overlong_forms_are_no_characters) {
    static const char text[] = "\xc0\x88", expected[] = "\\ufffd\\ufffd";
    for (size_t e = 0; e < 2; e++) {
        check_encoder(&encoders[e], TW_DIALECT_ASCII, text, 2, 0, expected, sizeof expected - 1);
        const tw_frame frame = {"", TW_DIALECT_ASCII, 1, {0, 0}};
        tw_filling filling = {text, 2, 0, false};
        char out[sizeof expected];
        TW_REQUIRE(TW_CHECK_EQ(sizeof expected - 1, encoders[e].frame_len(&frame, &filling)));
        TW_CHECK_EQ(out + sizeof expected - 1, encoders[e].frame_write(&frame, &filling, out));
        TW_CHECK_MEM(expected, out, sizeof expected - 1);
    }
}

/* ---- frames ---- */

static void check_frame(const tw_frame *frame, tw_filling *fillings, const char *expected, size_t size) {
    for (size_t e = 0; e < 2; e++) {
        for (uint32_t i = 0; i < frame->holes; i++) fillings[i].escaped = SIZE_MAX;
        if (!TW_CHECK_EQ(size, encoders[e].frame_len(frame, fillings))) continue;
        char *out = room_for(size);
        TW_CHECK(encoders[e].frame_write(frame, fillings, out) == out + size);
        TW_CHECK_MEM(expected, out, size);
        free(out);
    }
}

#define CHECK_FRAME(frame, fillings, expected) check_frame((frame), (fillings), (expected), sizeof(expected) - 1)

TW_TEST(a_text_is_spliced) {
    static const char literal[] = "data: {\"content\":\"\"}\n\n";
    const tw_frame frame = {literal, TW_DIALECT_UTF8, 1, {18, sizeof literal - 1}};
    tw_filling text = {" to\"ken", 7, 0, false};
    CHECK_FRAME(&frame, &text, "data: {\"content\":\" to\\\"ken\"}\n\n");
    text = (tw_filling){NULL, 0, 0, false};
    CHECK_FRAME(&frame, &text, "data: {\"content\":\"\"}\n\n");
    text = (tw_filling){"\xc3\xa9", 2, 0, false};
    CHECK_FRAME(&frame, &text, "data: {\"content\":\"\xc3\xa9\"}\n\n");
}

TW_TEST(each_dialect_is_the_frames_own) {
    const tw_frame frame = {"[]", TW_DIALECT_ASCII, 1, {1, 2}};
    tw_filling text = {"\xc3\xa9", 2, 0, false};
    CHECK_FRAME(&frame, &text, "[\\u00e9]");
}

TW_TEST(numbers_are_written_as_they_are) {
    static const char literal[] = "{\"n\":,\"t\":\"\"}";
    const tw_frame frame = {literal, TW_DIALECT_UTF8, 2, {5, 11, sizeof literal - 1}};
    tw_filling fillings[] = {{"-42", 3, 0, true}, {"\n", 1, 0, false}};
    CHECK_FRAME(&frame, fillings, "{\"n\":-42,\"t\":\"\\n\"}");
    fillings[0] = (tw_filling){"\"\n", 2, 0, true};
    CHECK_FRAME(&frame, fillings, "{\"n\":\"\n,\"t\":\"\\n\"}");
}

TW_TEST(no_hole_is_the_literal) {
    const tw_frame frame = {"data: [DONE]\n\n", TW_DIALECT_UTF8, 0, {14}}, empty = {"", TW_DIALECT_UTF8, 0, {0}};
    CHECK_FRAME(&frame, NULL, "data: [DONE]\n\n");
    CHECK_FRAME(&empty, NULL, "");
}

TW_TEST(holes_side_by_side_and_at_the_ends) {
    const tw_frame frame = {"-", TW_DIALECT_UTF8, 4, {0, 0, 1, 1, 1}};
    tw_filling fillings[] = {{"a", 1, 0, false}, {"\"", 1, 0, false}, {NULL, 0, 0, false}, {"7", 1, 0, true}};
    CHECK_FRAME(&frame, fillings, "a\\\"-7");
}

/* Any number of holes, with texts and pieces of any length. */
TW_TEST(random_frames) {
    uint64_t random = 0x5eed3;
    static char literal[900], texts[TW_FRAME_HOLES][120], expected[TW_FRAME_HOLES * 720 + 900];
    for (int round = 0; round < 6000; round++) {
        tw_frame frame = {literal, (uint32_t)(round & 1), (uint32_t)round % (TW_FRAME_HOLES + 1), {0}};
        tw_filling fillings[TW_FRAME_HOLES] = {{NULL, 0, 0, false}};
        size_t size = 0;
        uint32_t at = 0;
        random_text(literal, sizeof literal, &random);
        for (uint32_t i = 0; i <= frame.holes; i++) {
            const uint32_t piece = (uint32_t)tw_test_random_below(&random, tw_test_random_below(&random, 50) + 1);
            memcpy(expected + size, literal + at, piece);
            size += piece, at += piece;
            frame.cut[i] = at;
            if (i == frame.holes) break;
            const size_t len = random_text(texts[i], tw_test_random_below(&random, sizeof texts[i]), &random);
            fillings[i] = (tw_filling){texts[i], len, 0, tw_test_random_below(&random, 4) == 0};
            if (fillings[i].verbatim) memcpy(expected + size, texts[i], len), size += len;
            else size += slow_escape((tw_dialect)frame.dialect, texts[i], len, expected + size);
        }
        check_frame(&frame, fillings, expected, size);
    }
}
