/* Mutated streams: nothing is read past its end (the sanitizer sees it), and three things hold whatever the
 * bytes are: the short way past a known shape answers as the long way does, a body's totals do not depend on
 * where it is cut, and a message's choices sum to its tokens. */
#include "sse_frames.h"

#define ROUNDS 400          /* of each golden stream; a few seconds under the sanitizers */
#define BODY_MAX 8192

typedef struct body {
    char bytes[BODY_MAX];
    size_t len;
} body;

static const char *const splices[] = {
    "\"", "\\", "\n", "\r", "\n\n", "\r\n\r\n", "\r\r", "{", "}", "[", "]", ",", ":", " ", "data:", "\ndata: ",
    "\\\"", "\\u", "null", "\"\"", "\"choices\":[]", "\"error\":1", "\"token_ids\":[1,2]", "[DONE]",
    "\nevent: error", "\"index\":3", "\"usage\":{\"completion_tokens\":5}", "\"type\":\"ping\"", "\"model\":\"z\"",
    "\"text\":\"t\"", "\xef\xbb\xbf", "\xff"};

static void replace(body *to, size_t at, size_t gone, const char *bytes, size_t len) {
    if (at + gone > to->len || to->len - gone + len > BODY_MAX) return;
    memmove(to->bytes + at + len, to->bytes + at + gone, to->len - at - gone);
    memcpy(to->bytes + at, bytes, len);
    to->len += len - gone;
}

static void mutate(body *to, uint64_t *random) {
    for (uint64_t n = tw_test_random_below(random, 4); n > 0 && to->len > 0; n--) {
        const size_t at = tw_test_random_below(random, to->len);
        const char *splice = splices[tw_test_random_below(random, sizeof splices / sizeof *splices)];
        const char byte = (char)tw_test_random(random);
        switch (tw_test_random_below(random, 4)) {
        case 0: replace(to, at, 0, splice, strlen(splice)); break;
        case 1: replace(to, at, 1, splice, strlen(splice)); break;
        case 2: replace(to, at, 1, &byte, 1); break;
        default: replace(to, at, tw_test_random_below(random, 12), "", 0); break;
        }
    }
}

static void take(body *to, const char *bytes, size_t len) {
    to->len = len < BODY_MAX ? len : BODY_MAX;
    memcpy(to->bytes, bytes, to->len);
}

static void print_body(const char *what, const body *bytes) {
    fprintf(stderr, "  %s: ", what);
    for (size_t i = 0; i < bytes->len; i++) {
        const unsigned char c = (unsigned char)bytes->bytes[i];
        fprintf(stderr, c < 0x20 || c > 0x7e || c == '\\' ? "\\x%02x" : "%c", c);
    }
    fputc('\n', stderr);
}

/* ---- the short way is the long way ---- */

static void check_one_message(tw_scan *fast, tw_scan *slow, const body *message) {
    totals seen_fast = {0}, seen_slow = {0};
    slow->head_len = 0;
    feed_into(fast, &seen_fast, message->bytes, message->len);
    feed_into(slow, &seen_slow, message->bytes, message->len);
    if (!TW_CHECK(totals_equal(&seen_fast, &seen_slow))) print_body("message", message);
}

/* A stream of one event's variations; most of them differ in the middle, where the text is. */
static void check_shapes(const frames *frame, uint64_t *random) {
    tw_scan fast, slow;
    static body message;
    const char *event = frame->body;
    tw_scan_init(&fast, frame->framing);
    tw_scan_init(&slow, frame->framing);
    for (size_t skip = tw_test_random_below(random, frame->event_count); skip > 0; skip--)
        event += event_length(event, frame->len - (size_t)(event - frame->body), frame->framing);
    const size_t len = event_length(event, frame->len - (size_t)(event - frame->body), frame->framing);
    for (int i = 0; i < 12; i++) {
        take(&message, event, len);
        if (i % 3 != 0) mutate(&message, random);
        if (i % 3 == 1 && fast.head_len > 0 && fast.head_len < message.len)
            replace(&message, fast.head_len, 1, splices[i % 12], strlen(splices[i % 12]));
        check_one_message(&fast, &slow, &message);
    }
}

/* ---- where it is cut does not matter ---- */

static totals scan_cut(const body *bytes, tw_framing framing, uint64_t *random, size_t longest) {
    tw_scan scan;
    totals seen = {0};
    tw_scan_init(&scan, framing);
    for (size_t at = 0; at < bytes->len;) {
        size_t len = longest == 0 ? bytes->len : tw_test_random_below(random, longest + 1);
        if (len > bytes->len - at) len = bytes->len - at;
        feed_into(&scan, &seen, bytes->bytes + at, len);
        at += len;
    }
    finish_into(&scan, &seen);
    return seen;
}

/* Events are kept up to TW_SCAN_PART, so bodies of no more than that. */
static void check_cuts(const frames *frame, uint64_t *random) {
    static body bytes;
    const size_t start = tw_test_random_below(random, frame->len), room = frame->len - start;
    const bool whole = frame->framing == TW_FRAMING_WHOLE;
    take(&bytes, frame->body + (whole ? 0 : start), whole ? frame->len : room < 900 ? room : 900);
    mutate(&bytes, random);
    if (!whole && bytes.len > TW_SCAN_PART) return;
    const totals uncut = scan_cut(&bytes, frame->framing, random, 0);
    for (size_t longest = 1; longest < 500; longest = longest * 3 + 1) {
        const totals cut = scan_cut(&bytes, frame->framing, random, longest);
        if (!TW_CHECK(totals_equal(&uncut, &cut))) print_body("body", &bytes);
    }
}

static void each_golden(void (*check)(const frames *, uint64_t *), uint64_t seed) {
    static frames all[FRAMES_MAX];
    uint64_t random = seed;
    const size_t count = frames_load(all);
    TW_REQUIRE(count > 0);
    for (size_t i = 0; i < count; i++)
        for (int round = 0; round < ROUNDS; round++) check(&all[i], &random);
    frames_free(all, count);
}

TW_TEST(short_way_is_the_long_way) { each_golden(check_shapes, 0x5eed1); }
TW_TEST(cuts_do_not_matter) { each_golden(check_cuts, 0x5eed2); }

/* Any framing over any bytes, long events cut too. */
static void check_any(const frames *frame, uint64_t *random) {
    static body bytes;
    take(&bytes, frame->body, frame->len);
    for (int i = 0; i < 4; i++) mutate(&bytes, random);
    scan_cut(&bytes, (tw_framing)tw_test_random_below(random, 5), random, 700);
}

TW_TEST(anything_is_survived) { each_golden(check_any, 0x5eed3); }

TW_TEST(unescape_stays_in_its_room) {
    uint64_t random = 0x5eed4;
    for (int round = 0; round < 20000; round++) {
        char text[24];
        const size_t len = tw_test_random_below(&random, sizeof text), cap = tw_test_random_below(&random, 16);
        for (size_t i = 0; i < len; i++) text[i] = "\\\\uud8cDeE0a/n\"\xc3\xa9\xf0"[tw_test_random_below(&random, 18)];
        char *from = malloc(len + 1), *to = malloc(cap + 1);
        TW_REQUIRE(from != NULL && to != NULL);
        memcpy(from + 1, text, len);
        TW_CHECK(tw_json_unescape(from + 1, len, to + 1, cap) <= cap);
        free(from);
        free(to);
    }
}

TW_MAIN(short_way_is_the_long_way, cuts_do_not_matter, anything_is_survived, unescape_stays_in_its_room)
