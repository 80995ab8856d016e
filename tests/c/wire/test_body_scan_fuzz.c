/* Mutated streams: nothing is read past its end (the sanitizer sees it), and three things hold whatever the
 * bytes are: the short way past a known shape answers as the long way does, a body's totals do not depend on
 * where it is cut, and a message's choices sum to its tokens. And the kept inputs of fuzz_scan.c. */
#include "wire/scan_json.h"

#include "fuzz_scan.c"

#include "fuzz_corpus.h"
#include "scan_frames.h"

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
    slow->shapes = 0;
    feed_into(fast, &seen_fast, message->bytes, message->len);
    feed_into(slow, &seen_slow, message->bytes, message->len);
    bool ok = TW_CHECK(totals_equal(&seen_fast, &seen_slow));
    ok &= TW_CHECK(fast->part_len == slow->part_len && fast->line_state == slow->line_state);
    if (!ok) print_body("message", message);
}

static tw_slice any_event(const frames *frame, uint64_t *random) {
    const char *event = frame->body, *end = frame->body + frame->len;
    for (size_t skip = tw_test_random_below(random, frame->event_count); skip > 0; skip--)
        event += event_length(event, (size_t)(end - event), frame->framing);
    return (tw_slice){event, event_length(event, (size_t)(end - event), frame->framing)};
}

/* Another index, count or number at some digit of the message. */
static void renumber(body *message, uint64_t *random) {
    static const char *const numbers[] = {"", "0", "1", "2", "3", "17", "99999999999999999999", "1x", "-1", "1.5",
                                          "\"1\"", "null", "[1]", "1,\"error\":1", "1:2"};
    size_t at = tw_test_random_below(random, message->len + 1), gone = 0;
    while (at < message->len && (message->bytes[at] < '0' || message->bytes[at] > '9')) at++;
    while (at + gone < message->len && message->bytes[at + gone] >= '0' && message->bytes[at + gone] <= '9') gone++;
    const char *number = numbers[tw_test_random_below(random, sizeof numbers / sizeof *numbers)];
    replace(message, at, gone, number, strlen(number));
}

/* Something where a remembered text or value stands. */
static void splice_shape(body *message, const tw_scan *scan, uint64_t *random) {
    if (scan->shapes == 0) return;
    const tw_scan_shape *shape = &scan->shape[tw_test_random_below(random, scan->shapes)];
    const size_t which = tw_test_random_below(random, shape->texts + 1);
    const char *splice = splices[tw_test_random_below(random, sizeof splices / sizeof *splices)];
    replace(message, which < shape->texts ? shape->text_at[which] : shape->loose_at, 1, splice, strlen(splice));
}

static void vary(body *message, const tw_scan *scan, uint64_t *random) {
    switch (tw_test_random_below(random, 6)) {
    case 0: mutate(message, random); break;
    case 1: splice_shape(message, scan, random); break;
    case 2: renumber(message, random); break;
    case 3: mutate(message, random); splice_shape(message, scan, random); renumber(message, random); break;
    default: break;
    }
}

/* A stream of one or two events' variations, one or several in a message; most of them differ where the text or the
 * number is. */
static void check_shapes(const frames *frame, uint64_t *random) {
    tw_scan fast, slow;
    static body message, more;
    const tw_slice event[] = {any_event(frame, random), any_event(frame, random)};
    const tw_framing framing = tw_test_random_below(random, 8) == 0 ? TW_FRAMING_MESSAGE : frame->framing;
    tw_scan_init(&fast, framing);
    tw_scan_init(&slow, framing);
    for (int i = 0; i < 14; i++) {
        const tw_slice from = event[tw_test_random_below(random, 2)];
        take(&message, from.at, from.len);
        if (i > 1) vary(&message, &fast, random);
        if (tw_test_random_below(random, 4) == 0) {
            take(&more, event[1].at, event[1].len);
            vary(&more, &fast, random);
            replace(&message, message.len, 0, more.bytes, more.len);
        }
        check_one_message(&fast, &slow, &message);
    }
}

/* The same of events that servers number, name or pad, and of choices that take turns: those of the golden streams
 * are too few to meet all of it. */
static void check_made_up(const frames *frame, uint64_t *random) {
    static const char *const heads[] = {
        "data: {\"sequence_number\":%d,\"type\":\"x.delta\",\"delta\":\"a\"}\n\n",
        "data: {\"delta\":\"a\",\"type\":\"x.delta\",\"sequence_number\":%d}\n\n",
        "event: e\r\ndata: {\"delta\":\"a\",\"obfuscation\":\"xy\",\"sequence_number\": %d }\r\n\r\n",
        "data: {\"id\":\"c-%d\",\"choices\":[{\"index\":0,\"text\":\"a\"},{\"index\":1,\"text\":\"b\"}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\",\"reasoning\":\"b\"},\"index\":%d}],\"id\":\"x\"}\n\n",
        "data: {\"id\":1,\"id\":\"%d\",\"choices\":[{\"text\":\"a\"}],\"created_at\":\"1:2\"}\r\n\n"};
    const size_t first = tw_test_random_below(random, sizeof heads / sizeof *heads);
    const size_t second = tw_test_random_below(random, sizeof heads / sizeof *heads);
    tw_scan fast, slow;
    static body message;
    tw_scan_init(&fast, frame->framing == TW_FRAMING_WHOLE ? TW_FRAMING_SSE : frame->framing);
    tw_scan_init(&slow, (tw_framing)fast.framing);
    for (int i = 0; i < 14; i++) {
        const char *const head[] = {heads[first], heads[second]};
        const int number = (int)tw_test_random_below(random, i < 7 ? 3 : 1000);
        message.len = 0;
        for (uint64_t n = tw_test_random_below(random, 3) / 2 + 1; n > 0; n--)
            message.len += (size_t)sprintf(message.bytes + message.len, head[tw_test_random_below(random, 2)], number);
        if (i > 1) vary(&message, &fast, random);
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
TW_TEST(short_way_of_made_up_events_is_the_long_way) { each_golden(check_made_up, 0x5eed5); }
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

TW_TEST(kept_inputs_hold) { TW_CHECK(corpus_run("scan") > 0); }
