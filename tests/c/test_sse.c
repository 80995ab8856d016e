/* Which messages of a streamed body carry tokens. */
#include "sse_frames.h"

#define GOLDEN_AT_LEAST 35

static totals scan_parts(tw_framing framing, const char *const *parts, size_t count) {
    tw_scan scan;
    totals seen = {0};
    tw_scan_init(&scan, framing);
    for (size_t i = 0; i < count; i++) feed_into(&scan, &seen, parts[i], strlen(parts[i]));
    finish_into(&scan, &seen);
    return seen;
}

static totals scan_one(tw_framing framing, const char *body) { return scan_parts(framing, &body, 1); }
static totals sse(const char *body) { return scan_one(TW_FRAMING_SSE, body); }

/* One event with that data. */
static totals data(const char *json) {
    char body[4096];
    snprintf(body, sizeof body, "data: %s\n\n", json);
    return sse(body);
}

static totals scan_in_two(tw_framing framing, const char *body, size_t len, size_t at) {
    tw_scan scan;
    totals seen = {0};
    tw_scan_init(&scan, framing);
    feed_into(&scan, &seen, body, at);
    feed_into(&scan, &seen, body + at, len - at);
    finish_into(&scan, &seen);
    return seen;
}

static totals scan_in_pieces(tw_framing framing, const char *body, size_t len, size_t piece) {
    tw_scan scan;
    totals seen = {0};
    tw_scan_init(&scan, framing);
    for (size_t at = 0; at < len; at += piece)
        feed_into(&scan, &seen, body + at, len - at < piece ? len - at : piece);
    finish_into(&scan, &seen);
    return seen;
}

/* ---- golden streams ---- */

static void check_golden(const frames *frame, const totals *seen, const char *how) {
    bool ok = TW_CHECK_EQ(frame->tokens, seen->tokens);
    ok &= TW_CHECK_EQ(frame->usage, seen->usage);
    ok &= TW_CHECK_EQ(frame->choices, totals_choices(seen));
    ok &= TW_CHECK_EQ(frame->done, seen->done);
    ok &= TW_CHECK_EQ(frame->error, seen->error);
    ok &= TW_CHECK_STR(frame->model, seen->model);
    if (!ok) fprintf(stderr, "  in %s, %s\n", frame->name, how);
}

static void check_golden_events(const frames *frame) {
    tw_scan scan;
    totals seen = {0};
    size_t at = 0;
    tw_scan_init(&scan, frame->framing);
    for (uint32_t i = 0; i < frame->event_count; i++) {
        const size_t len = event_length(frame->body + at, frame->len - at, frame->framing);
        const uint64_t before = seen.tokens;
        feed_into(&scan, &seen, frame->body + at, len);
        if (!TW_CHECK_EQ(frame->events[i], seen.tokens - before))
            fprintf(stderr, "  in %s, event %u\n", frame->name, i);
        at += len;
    }
    TW_CHECK_EQ(frame->len, at);
    finish_into(&scan, &seen);
    check_golden(frame, &seen, "an event a message");
}

static void each_golden(void (*check)(const frames *)) {
    static frames all[FRAMES_MAX];
    const size_t count = frames_load(all);
    TW_CHECK(count >= GOLDEN_AT_LEAST);
    for (size_t i = 0; i < count; i++) check(&all[i]);
    frames_free(all, count);
}

TW_TEST(golden_event_by_event) { each_golden(check_golden_events); }

static void check_golden_splits(const frames *frame) {
    for (size_t at = 0; at <= frame->len; at++) {
        const totals seen = scan_in_two(frame->framing, frame->body, frame->len, at);
        check_golden(frame, &seen, "in two messages");
    }
    for (size_t piece = 1; piece < 40; piece += 3) {
        const totals seen = scan_in_pieces(frame->framing, frame->body, frame->len, piece);
        check_golden(frame, &seen, "in pieces");
    }
}

TW_TEST(golden_split_at_any_byte) { each_golden(check_golden_splits); }

/* The same body with other line ends, behind a byte order mark. */
static size_t with_line_ends(const char *body, size_t len, const char *line_end, char *to) {
    size_t n = 3;
    memcpy(to, "\xef\xbb\xbf", 3);
    for (size_t i = 0; i < len; i++) {
        if (body[i] == '\r') continue;
        if (body[i] == '\n') n += (size_t)sprintf(to + n, "%s", line_end);
        else to[n++] = body[i];
    }
    return n;
}

static void check_golden_line_ends(const frames *frame) {
    static const char *const ends[] = {"\n", "\r\n", "\r"};
    static char body[1 << 17];
    if (frame->framing != TW_FRAMING_SSE) return;
    for (size_t e = 0; e < 3; e++) {
        const size_t len = with_line_ends(frame->body, frame->len, ends[e], body);
        totals seen = scan_in_pieces(TW_FRAMING_SSE, body, len, len);
        check_golden(frame, &seen, "other line ends");
        for (size_t piece = 1; piece < 9; piece++) {
            seen = scan_in_pieces(TW_FRAMING_SSE, body, len, piece);
            check_golden(frame, &seen, "other line ends, in pieces");
        }
    }
}

TW_TEST(golden_any_line_end) { each_golden(check_golden_line_ends); }

/* ---- the rule ---- */

TW_TEST(empty_deltas_do_not_count) {
    static const char *const deltas[] = {
        "{}", "{\"role\":\"assistant\"}", "{\"content\":\"\"}", "{\"content\":null}",
        "{ \"content\" : \"\" , \"role\" : \"assistant\" }", "{\"tool_calls\":[]}",
        "{\"tool_calls\": [ ] ,\"reasoning\":\"\",\"refusal\":null}",
        "{\"reasoning_content\":\"\",\"function_call\":null}", "null"};
    char json[512];
    for (size_t i = 0; i < sizeof deltas / sizeof *deltas; i++) {
        snprintf(json, sizeof json, "{\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":\"stop\"}]}", deltas[i]);
        if (!TW_CHECK_EQ(0, data(json).tokens)) fprintf(stderr, "  %s\n", deltas[i]);
    }
}

TW_TEST(what_is_not_known_counts) {
    static const char *const events[] = {
        "hello", "{\"token\":5}", "{}", "[1]", "7", "{\"choices\":[{\"delta\":{\"new\":1}}]}",
        "{\"type\":\"new.kind\"}", "{\"choices\":[{\"delta\":{\"content\":[{\"t\":1}]}}]}", "{\"choices\":",
        "{\"choices\":[{\"delta\":{\"content\":\"", "{\"x", "[DONE] not", "{\"choices\":[{\"delta\":{}", "\"text\"",
        "{\"error\":null}"};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (!TW_CHECK_EQ(1, data(events[i]).tokens)) fprintf(stderr, "  %s\n", events[i]);
}

TW_TEST(events_without_data_do_not_count) {
    TW_CHECK_EQ(0, sse("\n\n\n").tokens);
    TW_CHECK_EQ(0, sse(": ping\n\nevent: x\nid: 3\nretry: 10\n\n").tokens);
    TW_CHECK_EQ(0, sse("data\n\ndata:\n\ndata: \n\n").tokens);
    TW_CHECK_EQ(0, sse("datax: 1\n\n data: 1\n\n").tokens);
    TW_CHECK_EQ(1, sse("data:1\n\n").tokens);
}

TW_TEST(an_event_needs_its_empty_line) {
    TW_CHECK_EQ(0, sse("data: x\n").tokens);
    TW_CHECK_EQ(0, sse("data: x").tokens);
    TW_CHECK_EQ(1, sse("data: x\n\ndata: y\n").tokens);
    TW_CHECK(sse("data: {\"error\": \"late\"}").error);
    TW_CHECK(sse("data: [DONE]").done);
    TW_CHECK_EQ(2, scan_one(TW_FRAMING_LINES, "{\"response\":\"a\"}\n{\"response\":\"b\"}").tokens);
}

TW_TEST(several_data_lines_are_one_event) {
    TW_CHECK_EQ(1, sse("data: a\ndata: b\n\n").tokens);
    TW_CHECK_EQ(1,
        sse("event: e\ndata: {\"choices\":\ndata:[{\"delta\":\r\ndata: {\"content\":\rdata: \"a\"}}]}\n\n").tokens);
    TW_CHECK_EQ(0,
        sse("data: {\"choices\":\ndata:[{\"delta\":\n: no\nid: 4\ndata: {\"content\":\ndata: \"\"}}]}\n\n").tokens);
    TW_CHECK_EQ(0, sse("data: {\"choices\":[{\"delta\":{},\"logprobs\":{\"a\":[1,\ndata: 2]}}]}\n\n").tokens);
    TW_CHECK(sse("data: {}\nevent: error\n\n").error);
    TW_CHECK(sse("data: words\nevent: error\n\n").error);
    TW_CHECK_EQ(0, sse("data: {}\nevent: ping\n\n").tokens);
}

TW_TEST(text_cannot_mimic_a_frame) {
    static const char *const texts[] = {
        "\\\"choices\\\":[]", "\\n\\ndata: [DONE]\\n\\n", "\\\"},\\\"finish_reason\\\":\\\"stop\\\"", "\\\\", "\\\"",
        "a\\\\\\\"", "[DONE]", "\\\"usage\\\":{\\\"completion_tokens\\\":99}", "\\\"error\\\":1", "{}", "]}",
        "\\u0022"};
    char json[512];
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        snprintf(json, sizeof json, "{\"choices\":[{\"delta\":{\"content\":\"%s\"},\"index\":4}]}", texts[i]);
        const totals seen = data(json);
        TW_CHECK_EQ(1, seen.choice[4]);
        TW_CHECK_EQ(0, seen.usage + seen.done + seen.error);
    }
}

TW_TEST(usage_is_read_where_it_belongs) {
    TW_CHECK_EQ(7, data("{\"choices\":[],\"usage\":{\"completion_tokens_details\":{\"completion_tokens\":50},"
                        "\"completion_tokens\":7}}").usage);
    TW_CHECK_EQ(0, data("{\"choices\":[],\"usage\":null}").usage);
    TW_CHECK_EQ(0, data("{\"choices\":[{\"completion_tokens\":5}],\"x\":{\"usage\":{\"completion_tokens\":5}}}").usage);
    TW_CHECK_EQ(0, data("{\"choices\":[],\"usage\":{\"completion_tokens\":\"5\"}}").usage);
    TW_CHECK_EQ(0, data("{\"choices\":[],\"usage\":{\"completion_tokens\":-5}}").usage);
    TW_CHECK_EQ(UINT32_MAX, data("{\"choices\":[],\"usage\":{\"completion_tokens\":99999999999999999999999}}").usage);
    TW_CHECK_EQ(9, sse("data: {\"choices\":[],\"usage\":{\"completion_tokens\":9}}\n\n"
                       "data: {\"choices\":[],\"usage\":{\"completion_tokens\":3}}\n\n").usage);
}

TW_TEST(model_is_told_once) {
    TW_CHECK_STR("a/b", data("{\"model\":\"a\\/b\",\"x\":{\"model\":\"c\"}}").model);
    TW_CHECK_STR("m",
        data("{\"x\":{\"model\":\"c\"},\"response\":{\"model\":\"m\"},\"type\":\"response.created\"}").model);
    TW_CHECK_STR("", data("{\"model\":\"\",\"choices\":[{\"model\":\"c\"}]}").model);
    TW_CHECK_STR("", data("{\"model\":{\"model\":\"c\"}}").model);
    TW_CHECK_STR("a", sse("data: {\"model\":\"a\"}\n\ndata: {\"model\":\"b\"}\n\n").model);
}

/* The name lies in the scanner when its event came in parts, and the next event's beginning must not write over it. */
TW_TEST(model_of_a_split_event_outlives_the_next) {
    static const char *const parts[] = {
        "data: {\"model\":\"first\",", "\"x\":1}\n\ndata: {\"model\":\"second\", and much more"};
    TW_CHECK_STR("first", scan_parts(TW_FRAMING_SSE, parts, 2).model);
}

TW_TEST(many_choices_in_a_message_sum_up) {
    char json[4096] = "{\"choices\":[";
    for (int i = 0; i < 40; i++)
        sprintf(json + strlen(json), "%s{\"index\":%d,\"text\":\"a\"}", i ? "," : "", i);
    strcat(json, "]}");
    const totals seen = data(json);
    TW_CHECK_EQ(40, seen.tokens);
    TW_CHECK_EQ(25, seen.choice[0]);
    TW_CHECK_EQ(1, seen.choice[15]);
}

TW_TEST(framings_other_than_events) {
    static const char *const parts[] = {"abc", "", "\n", "data: x\n\n"};
    TW_CHECK_EQ(3, scan_parts(TW_FRAMING_RAW, parts, 4).tokens);
    TW_CHECK_EQ(2, scan_parts(TW_FRAMING_MESSAGE, parts, 4).tokens);
    TW_CHECK_EQ(0, scan_one(TW_FRAMING_MESSAGE, "{\"type\":\"session.created\"}").tokens);
    TW_CHECK_EQ(1, scan_one(TW_FRAMING_MESSAGE, "{\"type\":\"response.text.delta\",\n\"delta\":\"a\"}").tokens);
    TW_CHECK(scan_one(TW_FRAMING_MESSAGE, "{\"type\":\"error\",\"error\":{\"message\":\"m\"}}").error);
    TW_CHECK_EQ(0, scan_one(TW_FRAMING_WHOLE, "{\"choices\":[{\"text\":\"a\"}]}").tokens);
}

/* ---- the short way ---- */

#define HEAD "data: {\"id\":\"c-1\",\"model\":\"m\",\"choices\":[{\"index\":2,\"delta\":{\"content\":\""
#define TAIL "\"},\"finish_reason\":null}]}\n\n"

/* Results with and without the remembered shape must be the same. */
static totals feed_both(const char *const *messages, size_t count, tw_framing framing) {
    tw_scan fast, slow;
    totals seen_fast = {0}, seen_slow = {0};
    tw_scan_init(&fast, framing);
    tw_scan_init(&slow, framing);
    for (size_t i = 0; i < count; i++) {
        feed_into(&fast, &seen_fast, messages[i], strlen(messages[i]));
        slow.head_len = 0;
        feed_into(&slow, &seen_slow, messages[i], strlen(messages[i]));
        if (!TW_CHECK(totals_equal(&seen_fast, &seen_slow))) fprintf(stderr, "  after message %zu\n", i);
    }
    return seen_fast;
}

TW_TEST(same_shape_counts_the_same) {
    static const char *const messages[] = {
        HEAD "a" TAIL, HEAD "b" TAIL, HEAD " longer than eight bytes" TAIL, HEAD "\\\"" TAIL, HEAD "\\\\" TAIL,
        HEAD "" TAIL,
        HEAD "c\\" TAIL,  /* not JSON: its quote is escaped */
        HEAD "\"},\"x\":[{\"y\":\"" TAIL, HEAD "a" TAIL HEAD "b" TAIL,
        HEAD "a\"}},{\"index\":3,\"delta\":{\"content\":\"b" TAIL, HEAD "two\n\ndata: lines" TAIL,
        HEAD "\r\rdata: lines" TAIL,
        HEAD "\xc3\xb6" TAIL, HEAD "d\\\\\\" TAIL, HEAD "e" TAIL};
    const totals seen = feed_both(messages, sizeof messages / sizeof *messages, TW_FRAMING_SSE);
    TW_CHECK(seen.choice[2] > 6);
    TW_CHECK_EQ(1, seen.choice[3]);
}

/* Where the index follows the text, a text that eats its quote changes whose token it is. */
TW_TEST(text_that_eats_its_quote_is_looked_at) {
#define LATE(text) "data: {\"choices\":[{\"delta\":{\"content\":\"" text "\"},\"index\":2}]}\n\n"
    static const char *const messages[] = {
        LATE("a"), LATE("b\\"), LATE("b\\\\"), LATE("b\\\\\\"), LATE("\\"), LATE("eight by\\")};
    const totals seen = feed_both(messages, sizeof messages / sizeof *messages, TW_FRAMING_SSE);
    TW_CHECK_EQ(2, seen.choice[2]);
    TW_CHECK_EQ(4, seen.choice[0]);
#undef LATE
}

/* The name of a split event's model is kept where the shape was. */
TW_TEST(model_of_a_split_event_forgets_the_shape) {
#define REST "{\"choices\":[{\"text\":\"a\"}]}\n\n"
    static const char *const parts[] = {
        "data: " REST, "data: {\"type\":\"ping\",\"model\":", "\"xxxxxx\"}\n\n", "xxxxxx" REST};
    TW_CHECK_EQ(1, scan_parts(TW_FRAMING_SSE, parts, 4).tokens);
#undef REST
}

static bool takes_short_way(const char *first, const char *second) {
    tw_scan scan;
    totals seen = {0};
    tw_scan_init(&scan, TW_FRAMING_SSE);
    feed_into(&scan, &seen, first, strlen(first));
    if (scan.head_len == 0) return false;
    scan.shape_choice = 50;  /* shows who answered */
    feed_into(&scan, &seen, second, strlen(second));
    return seen.choice[50] > 0;
}

TW_TEST(only_plain_tokens_are_remembered) {
    TW_CHECK(takes_short_way(HEAD "a" TAIL, HEAD "b" TAIL));
    TW_CHECK(takes_short_way(HEAD "a" TAIL, HEAD "\\u00e9\\n\\\"quoted\\\" and more" TAIL));
    TW_CHECK(!takes_short_way(HEAD "a" TAIL, HEAD "" TAIL));
    TW_CHECK(!takes_short_way(HEAD "" TAIL, HEAD "b" TAIL));
    TW_CHECK(!takes_short_way(HEAD "a" TAIL, HEAD "b\"},\"finish_reason\":\"stop\"}]}\n\n"));
    TW_CHECK(!takes_short_way(HEAD "a" TAIL HEAD "b" TAIL, HEAD "a" TAIL HEAD "c" TAIL));
    TW_CHECK(!takes_short_way(HEAD "a" TAIL "data: {", HEAD "b" TAIL "data: {"));
#define ANTHROPIC(text) "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0," \
                        "\"delta\":{\"type\":\"text_delta\",\"text\":\"" text "\"}}\n\n"
    TW_CHECK(takes_short_way(ANTHROPIC("a"), ANTHROPIC("b")));
#undef ANTHROPIC
}

/* ---- long events ---- */

/* A megabyte of anything is looked at in a time that grows with its length: quadratic would not end. */
TW_TEST(long_events_are_linear) {
    static const char *const fills[] = {
        "a", "\\\"", "\\\\", "\"", "[", "{\"a\":", "\n", "\r", "\r\n:", "\ndata: ", "data:\r", ",", "\xff",
        "\ndata: \"x\","};
    const size_t size = 1 << 20;
    char *body = malloc(size + 64);
    TW_REQUIRE(body != NULL);
    for (size_t f = 0; f < sizeof fills / sizeof *fills; f++)
        for (int framing = TW_FRAMING_SSE; framing <= (int)TW_FRAMING_WHOLE; framing++) {
            size_t n = (size_t)sprintf(body, "data: {\"choices\":[{\"text\":\"");
            while (n + 16 < size) n += (size_t)sprintf(body + n, "%s", fills[f]);
            n += (size_t)sprintf(body + n, "\n\n");
            const totals seen = scan_in_pieces((tw_framing)framing, body, n, n);
            if (framing == TW_FRAMING_SSE && strpbrk(fills[f], "\r\n") == NULL) TW_CHECK_EQ(1, seen.tokens);
            scan_in_pieces((tw_framing)framing, body, n, 4096);
        }
    free(body);
}

/* A split event longer than TW_SCAN_PART counts by its beginning, and the next ones as ever. */
TW_TEST(long_split_event_counts_once) {
    static char body[8192];
    sprintf(body, "data: {\"choices\":[{\"index\":1,\"text\":\"%*s\"}]}\n\ndata: [DONE]\n\n", 5000, "x");
    for (size_t at = 0; at <= strlen(body); at += 7) {
        const totals seen = scan_in_two(TW_FRAMING_SSE, body, strlen(body), at);
        TW_CHECK_EQ(1, seen.tokens);
        TW_CHECK(seen.done);
    }
}

/* ---- strings ---- */

static void check_unescaped(const char *expected, const char *text) {
    char out[64];
    const size_t len = tw_json_unescape(text, strlen(text), out, sizeof out);
    if (TW_CHECK_EQ(strlen(expected), len)) TW_CHECK_MEM(expected, out, len);
}

TW_TEST(unescapes) {
    check_unescaped("", "");
    check_unescaped("plain", "plain");
    check_unescaped("a/b\"c\\d\b\f\n\r\t", "a\\/b\\\"c\\\\d\\b\\f\\n\\r\\t");
    check_unescaped("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 A", "\\u00e9 \\u20AC \\ud83d\\ude00 \\u0041");
    check_unescaped("\\ud83d x \\ude00 \\u12g4 \\x \\", "\\ud83d x \\ude00 \\u12g4 \\x \\");
    check_unescaped("\\ud83dA", "\\ud83d\\u0041");
}

TW_TEST(unescapes_into_what_room_there_is) {
    char out[8];
    TW_CHECK_EQ(0, tw_json_unescape("abc", 3, out, 0));
    TW_CHECK_EQ(2, tw_json_unescape("abc", 3, out, 2));
    TW_CHECK_EQ(1, tw_json_unescape("a\\u20ac", 7, out, 3));
    TW_CHECK_EQ(1, tw_json_unescape("a\xe2\x82\xac", 4, out, 3));
    TW_CHECK_EQ(4, tw_json_unescape("a\xe2\x82\xac", 4, out, 4));
    TW_CHECK_EQ(0, tw_json_unescape(NULL, 0, out, 4));
}

TW_MAIN(golden_event_by_event, golden_split_at_any_byte, golden_any_line_end, empty_deltas_do_not_count,
    what_is_not_known_counts,
        events_without_data_do_not_count, an_event_needs_its_empty_line, several_data_lines_are_one_event,
            text_cannot_mimic_a_frame,
        usage_is_read_where_it_belongs, model_is_told_once, model_of_a_split_event_outlives_the_next,
            many_choices_in_a_message_sum_up,
        framings_other_than_events, same_shape_counts_the_same,
        text_that_eats_its_quote_is_looked_at, model_of_a_split_event_forgets_the_shape,
            only_plain_tokens_are_remembered, long_events_are_linear,
        long_split_event_counts_once, unescapes, unescapes_into_what_room_there_is)
