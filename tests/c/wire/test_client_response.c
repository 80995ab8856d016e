/* What a client sees of an answer: messages, gaps, fluidity and idle time, however the reads cut it. */
#include "tailwatch/wire/client_response.h"

#include "tailwatch/stamp/stream.h"

#include "scan_frames.h"

#define MS UINT64_C(1000000)
#define TOKEN "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n"

/* Memory of exactly its size, so that a read past it is found. */
static void feed(tw_answer *answer, const char *data, size_t len, uint64_t now_ns) {
    char *copy = malloc(len > 0 ? len : 1);
    TW_REQUIRE(copy != NULL);
    if (len > 0) memcpy(copy, data, len);
    tw_answer_feed(answer, copy, len, now_ns);
    free(copy);
}

static void feed_text(tw_answer *answer, const char *text, uint64_t now_ns) { feed(answer, text, strlen(text), now_ns); }

static void begin(tw_answer *answer, uint64_t planned_ns, uint64_t ttft_ns, uint64_t step_ns) {
    tw_answer_init(answer);
    tw_answer_begin(answer, planned_ns, ttft_ns, step_ns);
    tw_answer_framing(answer, TW_FRAMING_SSE, false);
}

/* ---- messages ---- */

static uint64_t messages_of(const frames *frame) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < frame->event_count; i++) n += frame->events[i] > 0;
    return n;
}

static void check_cut(const frames *frame, tw_answer *answer, size_t at) {
    tw_answer_begin(answer, 1, 0, 0);
    tw_answer_framing(answer, frame->framing, false);
    feed(answer, frame->body, at, 10);
    feed(answer, frame->body + at, frame->len - at, 20);
    tw_answer_finish(answer, 30);
    bool ok = TW_CHECK_EQ(messages_of(frame), answer->messages);
    ok &= TW_CHECK_EQ(frame->tokens, answer->tokens);
    ok &= TW_CHECK_EQ(frame->usage, answer->usage_tokens);
    ok &= TW_CHECK_EQ(frame->done, answer->done);
    ok &= TW_CHECK_EQ(frame->error, answer->error);
    ok &= TW_CHECK_EQ(answer->messages, answer->stamps);
    if (!ok) fprintf(stderr, "  in %s, cut at %zu\n", frame->name, at);
}

/* Every stream that a known server sends: the same messages wherever two reads meet. */
TW_TEST(golden_streams_cut_anywhere) {
    static frames all[FRAMES_MAX];
    const size_t count = frames_load(all);
    tw_answer answer;
    tw_answer_init(&answer);
    TW_CHECK(count > 0);
    for (size_t i = 0; i < count; i++)
        for (size_t at = 0; at <= all[i].len; at++) check_cut(&all[i], &answer, at);
    frames_free(all, count);
    tw_answer_free(&answer);
}

static uint64_t random_cuts(tw_answer *answer, const char *body, size_t len, uint64_t *random) {
    tw_answer_begin(answer, 1, 5, 5);
    tw_answer_framing(answer, TW_FRAMING_SSE, false);
    for (size_t at = 0; at < len;) {
        const size_t n = 1 + tw_test_random_below(random, len - at);
        feed(answer, body + at, n, 100 + at);
        at += n;
    }
    tw_answer_finish(answer, 100 + len);
    return answer->tokens;
}

/* Bytes of anything: the tokens do not depend on the reads, stamps ascend, and there is one for each message. */
TW_TEST(any_bytes_cut_anywhere) {
    static const char *const pieces[] = {TOKEN, "data: [DONE]\n\n", "\n", "\r\n", "\r", "\n\n", "data: ", "{", "\"error\":1}", ":\n\n", "x"};
    uint64_t random = 7;
    tw_answer answer;
    tw_answer_init(&answer);
    for (int round = 0; round < 3000; round++) {
        char body[600];
        size_t len = 0;
        while (len < 500) {
            const char *piece = pieces[tw_test_random_below(&random, sizeof pieces / sizeof *pieces)];
            memcpy(body + len, piece, strlen(piece));
            len += strlen(piece);
        }
        const uint64_t tokens = random_cuts(&answer, body, len, &random);
        TW_CHECK_EQ(tokens, random_cuts(&answer, body, len, &random));
        TW_CHECK_EQ(answer.messages, answer.stamps);
        TW_CHECK_EQ(len, answer.bytes);
        for (size_t i = 1; i < answer.stamps; i++) TW_CHECK(answer.stamp[i] >= answer.stamp[i - 1]);
    }
    tw_answer_free(&answer);
}

/* A role, a comment and an empty delta are chunks and no content. */
TW_TEST(chunk_and_content_are_distinguished) {
    tw_answer answer;
    begin(&answer, 1, 0, 0);
    feed_text(&answer, ": hello\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n", 10);
    TW_CHECK_EQ(10, answer.chunk_ns);
    TW_CHECK_EQ(0, answer.first_ns);
    feed_text(&answer, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n", 20);
    TW_CHECK_EQ(20, answer.first_ns);
    TW_CHECK_EQ(1, answer.messages);
    tw_answer_free(&answer);
}

/* A message has the stamp of the read that brought its end; two of one read have no time between them. */
TW_TEST(a_message_counts_when_it_is_whole) {
    tw_answer answer;
    begin(&answer, 1, 0, 0);
    feed_text(&answer, "data: {\"choices\":[{\"index\":0,", 10);
    feed_text(&answer, "\"text\":\"a\"}]}\n", 20);
    TW_CHECK_EQ(0, answer.first_ns);
    feed_text(&answer, "\n" TOKEN TOKEN, 30);
    TW_CHECK_EQ(30, answer.first_ns);
    TW_CHECK_EQ(3, answer.messages);
    TW_CHECK_EQ(0, answer.gap_ns);
    feed_text(&answer, TOKEN, 75);
    feed_text(&answer, TOKEN, 100);
    TW_CHECK_EQ(45, answer.gap_ns);
    TW_CHECK_EQ(30, answer.gap_at_ns);
    TW_CHECK_EQ(100, answer.last_ns);
    tw_answer_free(&answer);
}

/* token_ids give how many tokens a message holds; choices keep their own times. */
TW_TEST(tokens_and_choices) {
    tw_answer answer;
    begin(&answer, 1, 0, 0);
    feed_text(&answer, "data: {\"choices\":[{\"index\":0,\"text\":\"abc\",\"token_ids\":[1,2,3]}]}\n\n", 10);
    feed_text(&answer, "data: {\"choices\":[{\"index\":2,\"text\":\"a\"}]}\n\n", 15);
    feed_text(&answer, "data: {\"choices\":[{\"index\":0,\"text\":\"d\"},{\"index\":2,\"text\":\"b\"}]}\n\n", 40);
    feed_text(&answer, "data: {\"choices\":[{\"index\":99,\"text\":\"z\"}]}\n\n", 50);
    TW_CHECK_EQ(4, answer.messages);
    TW_CHECK_EQ(7, answer.tokens);
    TW_CHECK_EQ(3, answer.choices);
    TW_CHECK_EQ(4, answer.choice[0].tokens);
    TW_CHECK_EQ(0, answer.choice[1].tokens);
    TW_CHECK_EQ(15, answer.choice[2].first_ns);
    TW_CHECK_EQ(40, answer.choice[2].last_ns);
    TW_CHECK_EQ(25, answer.gap_ns);
    tw_answer_free(&answer);
}

/* Compressed bytes, and those without a framing, are counted and not read. */
TW_TEST(an_opaque_body_has_no_content) {
    tw_answer answer;
    tw_answer_init(&answer);
    tw_answer_begin(&answer, 1, 0, 0);
    feed_text(&answer, TOKEN, 10);
    tw_answer_finish(&answer, 20);
    TW_CHECK_EQ(10, answer.chunk_ns);
    TW_CHECK_EQ(strlen(TOKEN), answer.bytes);
    TW_CHECK_EQ(0, answer.messages);
    TW_CHECK_EQ(strlen(TOKEN), answer.head_len);
    TW_CHECK_MEM(TOKEN, answer.head, strlen(TOKEN));
    for (int i = 0; i < 100; i++) feed_text(&answer, TOKEN, 30);
    TW_CHECK_EQ(TW_ANSWER_HEAD, answer.head_len);
    tw_answer_free(&answer);
}

/* One document has no content to be timed, only usage and an error. */
TW_TEST(one_document) {
    tw_answer answer;
    tw_answer_init(&answer);
    tw_answer_begin(&answer, 1, 0, 0);
    tw_answer_framing(&answer, TW_FRAMING_WHOLE, false);
    feed_text(&answer, "{\"choices\":[{\"text\":\"abc\"}],\"usage\":{\"comple", 10);
    feed_text(&answer, "tion_tokens\":12}}", 20);
    tw_answer_finish(&answer, 30);
    TW_CHECK_EQ(12, answer.usage_tokens);
    TW_CHECK_EQ(0, answer.messages);
    tw_answer_free(&answer);
}

/* The last line of NDJSON needs no line end. */
TW_TEST(a_last_line_without_its_end) {
    tw_answer answer;
    tw_answer_init(&answer);
    tw_answer_begin(&answer, 1, 0, 0);
    tw_answer_framing(&answer, TW_FRAMING_LINES, false);
    feed_text(&answer, "{\"response\":\"a\"}\n{\"response\":\"b\"}", 10);
    TW_CHECK_EQ(1, answer.messages);
    tw_answer_finish(&answer, 30);
    TW_CHECK_EQ(2, answer.messages);
    TW_CHECK_EQ(20, answer.gap_ns);
    tw_answer_free(&answer);
}

/* Of an API whose events are JSON objects: what is none is no token, but for one too long to be kept whole. */
TW_TEST(only_objects) {
    static char text[6000];
    tw_answer answer;
    begin(&answer, 1, 0, 0);
    tw_answer_framing(&answer, TW_FRAMING_SSE, true);
    feed_text(&answer, "data: not JSON\n\ndata: {\"choices\":[{\"text\":\"cut off\n\ndata: [1]\n\n", 10);
    TW_CHECK_EQ(0, answer.messages);
    feed_text(&answer, TOKEN, 20);
    memset(text, 'a', sizeof text - 1);
    feed_text(&answer, "data: {\"choices\":[{\"text\":\"", 30);
    feed_text(&answer, text, 40);
    feed_text(&answer, "\"}]}\n\n", 50);
    TW_CHECK_EQ(2, answer.messages);
    tw_answer_free(&answer);
}

/* Wherever two reads cut it, and without its empty line. */
TW_TEST(an_error_is_kept_whole) {
    static const char body[] = TOKEN "data: {\"error\":{\"message\":\"out of memory\"}}\n\n";
    const size_t event = sizeof TOKEN - 1, kept = sizeof body - 1 - event;
    tw_answer answer;
    tw_answer_init(&answer);
    for (size_t at = event; at <= sizeof body - 1; at++) {
        for (size_t less = 0; less <= 2; less += 2) {
            if (at + less > sizeof body - 1) continue;
            begin(&answer, 1, 0, 0);
            feed(&answer, body, at, 10);
            feed(&answer, body + at, sizeof body - 1 - less - at, 20);
            tw_answer_finish(&answer, 30);
            TW_CHECK(answer.error && answer.head_len >= kept - 2);
            TW_CHECK(memcmp(answer.head, body + event, kept - 2) == 0);
            tw_answer_free(&answer);
        }
    }
}

/* Nothing of the last answer is left in the next, but the memory. */
TW_TEST(begin_forgets) {
    tw_answer answer;
    begin(&answer, 1, 50, 10);
    feed_text(&answer, TOKEN TOKEN "data: [DONE]\n\ndata: {\"er", 10);
    const size_t room = answer.room;
    tw_answer_begin(&answer, 100, 50, 10);
    tw_answer_framing(&answer, TW_FRAMING_SSE, false);
    TW_CHECK_EQ(room, answer.room);
    TW_CHECK_EQ(0, answer.messages + answer.tokens + answer.due + answer.met + answer.chunk_ns + answer.bytes);
    TW_CHECK(!answer.done);
    feed_text(&answer, TOKEN, 120);
    TW_CHECK_EQ(1, answer.messages);
    TW_CHECK_EQ(1, answer.met);
    tw_answer_free(&answer);
}

/* An answer that never ends takes no more memory than it may, and is counted to its end. */
TW_TEST(stamps_are_bounded) {
    tw_answer answer;
    begin(&answer, 1, 0, 0);
    for (uint64_t i = 1; i <= TW_ANSWER_STAMPS + 10; i++) tw_answer_feed(&answer, TOKEN, sizeof TOKEN - 1, i);
    TW_CHECK_EQ(TW_ANSWER_STAMPS, answer.stamps);
    TW_CHECK_EQ(TW_ANSWER_STAMPS + 10, answer.messages);
    TW_CHECK_EQ(TW_ANSWER_STAMPS + 10, answer.last_ns);
    tw_answer_free(&answer);
}

/* ---- fluidity: the reference of etalon/metrics/metric_utils.py, in ns ---- */

typedef struct etalon {
    uint64_t slack, met, total;
} etalon;

static void etalon_token(etalon *e, uint64_t waited, uint64_t deadline) {
    if (waited <= e->slack + deadline) {
        e->slack += deadline - (waited < deadline ? waited : deadline);
        if (waited > deadline) e->slack -= waited - deadline;
        e->met++;
        e->total++;
        return;
    }
    e->total += (waited - e->slack - deadline) / deadline + 1;
    e->slack = 0;
}

TW_TEST(fluidity_is_etalons) {
    uint64_t random = 11;
    for (int round = 0; round < 200; round++) {
        const uint64_t ttft = 1 + tw_test_random_below(&random, 500), step = 1 + tw_test_random_below(&random, 50);
        uint64_t now = 1000, last = 1000;
        etalon expected = {0, 0, 0};
        tw_answer answer;
        begin(&answer, now, ttft, step);
        for (int i = 0; i < 60; i++) {
            now += tw_test_random_below(&random, i == 0 ? 1500 : 100);
            etalon_token(&expected, now - last, i == 0 ? ttft : step);
            tw_answer_feed(&answer, TOKEN, sizeof TOKEN - 1, now);
            last = now;
        }
        TW_CHECK_EQ(expected.total, answer.due);
        TW_CHECK_EQ(expected.met, answer.met);
        tw_answer_free(&answer);
    }
}

/* Both sides of one stream, stamped at the same times, count the same. */
TW_TEST(the_server_side_agrees) {
    static const char *const of_n[] = {
        TOKEN, "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"token_ids\":[1,2]}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"token_ids\":[1,2,3]}]}\n\n"};
    uint64_t random = 13;
    tw_slo slo = {0};
    slo.ttft_ns = 40 * MS, slo.tpot_ns = 7 * MS, slo.attainment_ppm = 990000;
    tw_segment *g = NULL;
    TW_REQUIRE(tw_segment_create(&g, "api", 8, false, &slo, 0) == 0);
    for (int round = 0; round < 50; round++) {
        uint64_t now = 1000 * MS;
        tw_stream stream;
        tw_answer answer;
        begin(&answer, now, slo.ttft_ns, slo.tpot_ns);
        tw_stream_open(&stream, g, now, now, 0, TW_ARRIVAL_ASGI);
        for (int i = 0; i < 50; i++) {
            const uint64_t n = tw_test_random_below(&random, 3);
            now += tw_test_random_below(&random, i == 0 ? 100 * MS : 15 * MS);
            feed_text(&answer, of_n[n], now);
            tw_stream_token(&stream, now, (uint32_t)n + 1, 0);
        }
        TW_CHECK_EQ(stream.due, answer.due);
        TW_CHECK_EQ(stream.met, answer.met);
        TW_CHECK_EQ(stream.worst_gap_ns, answer.gap_ns);
        TW_CHECK_EQ(stream.messages, answer.messages);
        TW_CHECK_EQ(tw_stream_tokens(&stream), answer.tokens);
        TW_CHECK_EQ(stream.first_ns, answer.first_ns);
        TW_CHECK_EQ(stream.last_ns, answer.last_ns);
        tw_stream_close(&stream, now, TW_END_FINISHED);
        tw_answer_free(&answer);
    }
    tw_segment_destroy(g);
}

/* load.md's case: 64 tokens, 25 ms each; a second's freeze late in the stream costs nothing if the slack covers it, one
 * at its beginning 38 deadlines. */
TW_TEST(a_freeze_costs_by_where_it_falls) {
    const int at[] = {60, 2};
    const uint64_t missed[] = {0, 38};
    for (int run = 0; run < 2; run++) {
        tw_answer answer;
        uint64_t now = 1;
        begin(&answer, now, 25 * MS, 25 * MS);
        for (int i = 0; i < 64; i++) {
            now += i == at[run] ? 1000 * MS : 5 * MS;
            feed_text(&answer, TOKEN, now);
        }
        TW_CHECK_EQ(missed[run], answer.due - answer.met);
        TW_CHECK_EQ(1000 * MS, answer.gap_ns);
        tw_answer_free(&answer);
    }
}

/* A reader at 10 ns a token who begins at 100 has read three tokens at 130, and waits for the fourth until 150. */
TW_TEST(idle_time) {
    tw_answer answer;
    begin(&answer, 1, 0, 10);
    feed_text(&answer, TOKEN TOKEN, 100);
    feed_text(&answer, TOKEN, 115);
    TW_CHECK_EQ(0, answer.idle_ns);
    feed_text(&answer, TOKEN, 150);
    TW_CHECK_EQ(20, answer.idle_ns);
    TW_CHECK_EQ(0, answer.due);
    tw_answer_free(&answer);
}

/* Times that no clock gives overflow nothing. */
TW_TEST(absurd_times) {
    tw_answer answer;
    begin(&answer, 1, UINT64_MAX, UINT64_MAX);
    feed_text(&answer, "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"token_ids\":[1,2,3,4,5,6]}]}\n\n", 5);
    feed_text(&answer, TOKEN, UINT64_MAX);
    feed_text(&answer, TOKEN, 3);
    TW_CHECK_EQ(UINT64_MAX, answer.last_ns);
    TW_CHECK_EQ(UINT64_MAX - 5, answer.gap_ns);
    tw_answer_free(&answer);
}
