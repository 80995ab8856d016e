/* Which messages of a streamed body carry tokens. */
#include "scan_frames.h"

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

TW_TEST(model_is_given_once) {
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
        slow.shapes = 0;
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

/* The name of a split event's model is kept beside the shapes. */
TW_TEST(model_of_a_split_event_is_no_shape) {
#define REST "{\"choices\":[{\"text\":\"a\"}]}\n\n"
    static const char *const parts[] = {
        "data: " REST, "data: {\"type\":\"ping\",\"model\":", "\"xxxxxx\"}\n\n", "xxxxxx" REST};
    TW_CHECK_EQ(1, scan_parts(TW_FRAMING_SSE, parts, 4).tokens);
#undef REST
}

/* Shows which path answered: what the scanner remembers is choice 50 and up from now on. */
static void mark_shapes(tw_scan *scan) {
    for (uint32_t i = 0; i < scan->shapes; i++)
        for (uint32_t j = 0; j < scan->shape[i].events; j++) scan->shape[i].choice[j] += 50;
}

static uint64_t by_short_way(const totals *seen) {
    uint64_t sum = 0;
    for (int i = 50; i < 64; i++) sum += seen->choice[i];
    return sum;
}

static bool takes_framed(tw_framing framing, const char *first, const char *second) {
    tw_scan scan;
    totals seen = {0};
    tw_scan_init(&scan, framing);
    feed_into(&scan, &seen, first, strlen(first));
    mark_shapes(&scan);
    feed_into(&scan, &seen, second, strlen(second));
    return by_short_way(&seen) > 0;
}

static bool takes_short_way(const char *first, const char *second) {
    return takes_framed(TW_FRAMING_SSE, first, second);
}

TW_TEST(only_plain_tokens_are_remembered) {
    TW_CHECK(takes_short_way(HEAD "a" TAIL, HEAD "b" TAIL));
    TW_CHECK(takes_short_way(HEAD "a" TAIL, HEAD "\\u00e9\\n\\\"quoted\\\" and more" TAIL));
    TW_CHECK(!takes_short_way(HEAD "a" TAIL, HEAD "" TAIL));
    TW_CHECK(!takes_short_way(HEAD "" TAIL, HEAD "b" TAIL));
    TW_CHECK(!takes_short_way(HEAD "a" TAIL, HEAD "b\"},\"finish_reason\":\"stop\"}]}\n\n"));
    TW_CHECK(takes_short_way(HEAD "a" TAIL HEAD "b" TAIL, HEAD "a" TAIL HEAD "c" TAIL));
    TW_CHECK(takes_short_way(HEAD "a" TAIL, HEAD "a" TAIL "data: [DONE]\n\n"));
    TW_CHECK(!takes_short_way("data: {\"text\":\"a\"}\r\r", "data: {\"text\":\"b\"}\r\r"));
    TW_CHECK(takes_short_way("data: {\"text\":\"a\"}\r\n\r\n", "data: {\"text\":\"b\"}\r\n\r\n"));
    TW_CHECK(!takes_short_way("data: {\"text\":\"a\"}\r\r\r\n", "data: {\"text\":\"b\"}\r\r\r\n"));
    TW_CHECK(!takes_short_way("data: {\"text\":\"a", "b\"}\n\n"));
#define ANTHROPIC(text) "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0," \
                        "\"delta\":{\"type\":\"text_delta\",\"text\":\"" text "\"}}\n\n"
    TW_CHECK(takes_short_way(ANTHROPIC("a"), ANTHROPIC("b")));
#undef ANTHROPIC
}

#define CHOICE(i, text) "data: {\"choices\":[{\"index\":" #i ",\"delta\":{\"content\":\"" text "\"}}]}\n\n"
#define PAIR(a, b) "data: {\"choices\":[{\"index\":0,\"text\":\"" a "\"},{\"index\":1,\"text\":\"" b "\"}]}\n\n"
#define NUMBERED(number, text) "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\"," \
                               "\"sequence_number\":" number ",\"item_id\":\"m\",\"delta\":\"" text "\"}\n\n"
#define NUMBER_LAST(number, text) "data: {\"delta\":\"" text "\",\"sequence_number\": " number "," \
                                  "\"type\":\"x.delta\"}\n\n"
#define PADDED(number, text, padding) "data: {\"type\":\"x.delta\",\"sequence_number\":" number ",\"delta\":\"" text \
                                      "\",\"obfuscation\":\"" padding "\"}\n\n"
#define NAMED(name, text) "data: {\"id\":\"" name "\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" text \
                          "\"}}],\"usage\":null}\n\n"

TW_TEST(choices_take_turns_on_the_short_way) {
    static const char *const messages[] = {
        CHOICE(0, "a"), CHOICE(1, "b"), CHOICE(0, "c"), CHOICE(1, "d"), CHOICE(1, "e"), CHOICE(0, "f"),
        CHOICE(2, "g"), CHOICE(3, "h"), CHOICE(1, "i"), CHOICE(4, "j"), CHOICE(0, "k"), CHOICE(3, "l"),
        CHOICE(0, "m") CHOICE(1, "n"), CHOICE(1, "") CHOICE(0, "p"), CHOICE(0, "q") "data: [DONE]\n\n"};
    const totals seen = feed_both(messages, sizeof messages / sizeof *messages, TW_FRAMING_SSE);
    TW_CHECK_EQ(7, seen.choice[0]);
    TW_CHECK_EQ(5, seen.choice[1]);
    TW_CHECK(seen.done);
    TW_CHECK(takes_short_way(CHOICE(0, "a") CHOICE(1, "b"), CHOICE(0, "c")));
    TW_CHECK(takes_short_way(CHOICE(0, "a") CHOICE(1, "b"), CHOICE(1, "c")));
    TW_CHECK(!takes_short_way(CHOICE(0, "a") CHOICE(1, "b"), CHOICE(2, "c")));
}

TW_TEST(choices_of_one_event_take_the_short_way) {
    static const char *const messages[] = {
        PAIR("a", "b"), PAIR("c", "d\\\""), PAIR("", "e"), PAIR("f", ""), PAIR("g\\", "h"), PAIR("i", "j\n\nk"),
        PAIR("l\"},{\"text\":\"m", "n"), PAIR("o", "p") PAIR("q", "r")};
    feed_both(messages, sizeof messages / sizeof *messages, TW_FRAMING_SSE);
    TW_CHECK(takes_short_way(PAIR("a", "b"), PAIR("ccc", "dddddddddd")));
    TW_CHECK(!takes_short_way(PAIR("a", "b"), PAIR("a", "")));
    TW_CHECK(!takes_short_way(PAIR("", "b"), PAIR("a", "b")));
}

TW_TEST(numbered_events_take_the_short_way) {
    static const char *const messages[] = {
        NUMBERED("9", "a"), NUMBERED("10", "b"), NUMBERED("", "c"), NUMBERED("1x", "d"), NUMBERED("[1]", "e"),
        NUMBERED("100,\"error\":1", "f"), NUMBERED("\"7\"", "g"), NUMBERED("-1", "h"), NUMBERED("1\n\n", "i"),
        NUMBERED("8", ""), NUMBERED("123456789012345678901234567890", "j"), NUMBERED("11}", "k"),
        NUMBER_LAST("1", "a"), NUMBER_LAST("20", "b"), NUMBER_LAST("", "c"), NUMBER_LAST("1:2", "d"),
        PADDED("1", "a", "xyz"), PADDED("22", "b", "z"), PADDED("3", "c", ""), PADDED("4", "", "z")};
    const totals seen = feed_both(messages, sizeof messages / sizeof *messages, TW_FRAMING_SSE);
    TW_CHECK(seen.error);
    TW_CHECK(takes_short_way(NUMBERED("9", "a"), NUMBERED("10", "b")));
    TW_CHECK(takes_short_way(NUMBERED("1000", "a"), NUMBERED("2", "b")));
    TW_CHECK(takes_short_way(NUMBER_LAST("9", "a"), NUMBER_LAST("10", "b")));
    TW_CHECK(takes_short_way(PADDED("9", "a", "xyz"), PADDED("10", "b", "0123456789")));
    TW_CHECK(!takes_short_way(NUMBERED("9", "a"), NUMBERED("1.5", "b")));
    TW_CHECK(!takes_short_way(NUMBERED("9", "a"), NUMBERED("", "b")));
    TW_CHECK(!takes_short_way(PADDED("9", "a", "x"), PADDED("9", "", "x")));
}

/* Which choice it is, and how many tokens, are numbers as well. */
TW_TEST(numbers_that_matter_are_not_passed_over) {
    TW_CHECK(!takes_short_way(CHOICE(1, "a"), CHOICE(2, "b")));
    TW_CHECK(!takes_short_way("data: {\"text\":\"a\",\"meta_info\":{},\"index\":1}\n\n",
                              "data: {\"text\":\"a\",\"meta_info\":{},\"index\":2}\n\n"));
    TW_CHECK(!takes_short_way("data: {\"text\":\"a\",\"usage\":{\"output_tokens\":0}}\n\n",
                              "data: {\"text\":\"a\",\"usage\":{\"output_tokens\":5}}\n\n"));
    TW_CHECK(!takes_short_way("data: {\"choices\":[{\"id\":1,\"text\":\"a\"}]}\n\n",
                              "data: {\"choices\":[{\"id\":2,\"text\":\"a\"}]}\n\n"));
}

TW_TEST(named_events_take_the_short_way) {
    static const char *const messages[] = {
        NAMED("c-1", "a"), NAMED("c-2", "b"), NAMED("", "c"), NAMED("c\\", "d"), NAMED("c\\\"", "e"),
        NAMED("x\",\"error\":\"y", "f"), NAMED("x\n\ndata: y", "g"), NAMED("c\\\\", "h"), NAMED("c-10", "i")};
    const totals seen = feed_both(messages, sizeof messages / sizeof *messages, TW_FRAMING_SSE);
    TW_CHECK(seen.error);
    TW_CHECK(takes_short_way(NAMED("c-1", "a"), NAMED("c-22222222222222", "b")));
    TW_CHECK(takes_short_way(NAMED("c-1", "a"), NAMED("", "b")));
    TW_CHECK(!takes_short_way(NAMED("", "a"), NAMED("c", "b")));
#define OLLAMA(time, text) "{\"created_at\":\"" time "\",\"message\":{\"content\":\"" text "\"},\"done\":false}"
    TW_CHECK(takes_framed(TW_FRAMING_LINES, OLLAMA("8:52:19.38Z", "a") "\n", OLLAMA("8:52:20.1Z", "b") "\n"));
    TW_CHECK(takes_framed(TW_FRAMING_MESSAGE, OLLAMA("8:52:19.38Z", "a"), OLLAMA("8:52:20.1Z", "b")));
    /* An event that is a message is all of it. */
    TW_CHECK(!takes_framed(TW_FRAMING_MESSAGE, OLLAMA("1", "a"), OLLAMA("2", "b") OLLAMA("2", "b")));
    TW_CHECK(!takes_framed(TW_FRAMING_LINES, OLLAMA("1", "a") "\n", OLLAMA("2", "b")));
#undef OLLAMA
}

/* A stream whose events were long unlike is found out to be regular again. */
TW_TEST(short_way_is_found_again) {
    tw_scan scan;
    totals seen = {0};
    char event[256];
    tw_scan_init(&scan, TW_FRAMING_SSE);
    for (int i = 0; i < 1000; i++) {
        snprintf(event, sizeof event, "data: {\"n\":%d,\"text\":\"a\"}\n\n", i);
        feed_into(&scan, &seen, event, strlen(event));
    }
    for (int i = 0; i < 100; i++) feed_into(&scan, &seen, CHOICE(1, "a"), strlen(CHOICE(1, "a")));
    mark_shapes(&scan);
    for (int i = 0; i < 10; i++) feed_into(&scan, &seen, CHOICE(1, "b"), strlen(CHOICE(1, "b")));
    TW_CHECK_EQ(10, by_short_way(&seen));
    TW_CHECK_EQ(1110, seen.tokens);
}

/* More choices than shapes: those that are remembered stay. */
TW_TEST(shapes_are_not_pushed_out_in_turn) {
    tw_scan scan;
    totals seen = {0};
    char event[256];
    tw_scan_init(&scan, TW_FRAMING_SSE);
    for (int i = 0; i < 80; i++) {
        snprintf(event, sizeof event, "data: {\"choices\":[{\"index\":%d,\"text\":\"a\"}]}\n\n", i % 8);
        if (i == 40) mark_shapes(&scan);
        feed_into(&scan, &seen, event, strlen(event));
    }
    TW_CHECK_EQ(40 * TW_SCAN_SHAPES / 8, by_short_way(&seen));
}

/* A model's name that came in pieces, and events of the same message that are remembered. */
TW_TEST(model_of_a_split_event_outlives_what_is_remembered) {
    static const char *const parts[] = {
        "data: {\"type\":\"ping\",\"model\":\"first\"",
        "}\n\n" CHOICE(0, "a") CHOICE(1, "b") CHOICE(2, "c") CHOICE(3, "d")};
    const totals seen = scan_parts(TW_FRAMING_SSE, parts, 2);
    TW_CHECK_STR("first", seen.model);
    TW_CHECK_EQ(4, seen.tokens);
}

/* What does not fit is not remembered, and what fits exactly is. */
TW_TEST(shapes_have_a_size) {
    char first[1024], second[1024];
    for (int room = -1; room <= 1; room++) {
        const int fill = TW_SCAN_SHAPE + room - (int)strlen("data: {\"x\":\"\",\"text\":\"\"}\n\n");
        snprintf(first, sizeof first, "data: {\"x\":\"%0*d\",\"text\":\"a\"}\n\n", fill, 0);
        snprintf(second, sizeof second, "data: {\"x\":\"%0*d\",\"text\":\"bcd\"}\n\n", fill, 0);
        TW_CHECK_EQ(room <= 0, takes_short_way(first, second));
    }
#define FIVE(last) "data: {\"choices\":[{\"text\":\"a\"},{\"text\":\"b\"},{\"text\":\"c\"},{\"text\":\"d\"}," \
                   "{\"text\":\"" last "\"}]}\n\n"
    TW_CHECK(!takes_short_way(FIVE("e"), FIVE("f")));
#undef FIVE
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
