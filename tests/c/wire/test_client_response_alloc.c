/* Without memory for more stamps an answer is measured as before; only the stamps end. */
#include <stddef.h>
#include <stdlib.h>

static size_t allocations, fail_from; /* every allocation from this one on fails; 0: none */

static void *tw_realloc(void *memory, size_t size) {
    return ++allocations >= fail_from && fail_from > 0 ? NULL : realloc(memory, size);
}
static void tw_free(void *memory) { free(memory); }
#define TW_MALLOC_INCLUDE <stddef.h>
#include "../../csrc/wire/client_response.c"

#include "tw_test.h"

#define TOKEN "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n"
#define MESSAGES 1000

static void stream_of(tw_answer *answer) {
    tw_answer_begin(answer, 1, 10, 10);
    tw_answer_framing(answer, TW_FRAMING_SSE, false);
    for (uint64_t i = 1; i <= MESSAGES; i++) tw_answer_feed(answer, TOKEN, sizeof TOKEN - 1, i * 10);
}

TW_TEST(every_allocation_fails_once) {
    for (fail_from = 1; fail_from <= 5; fail_from++) { /* 64, 128, 256, 512, 1024 stamps */
        tw_answer answer;
        tw_answer_init(&answer);
        allocations = 0;
        stream_of(&answer);
        TW_CHECK_EQ(MESSAGES, answer.messages);
        TW_CHECK_EQ(MESSAGES * 10, answer.last_ns);
        TW_CHECK(answer.stamps < MESSAGES);
        for (size_t i = 1; i < answer.stamps; i++) TW_CHECK_EQ(10, answer.stamp[i] - answer.stamp[i - 1]);
        tw_answer_free(&answer);
    }
    fail_from = 0;
}

/* A connection's next answer needs no memory that the last one had. */
TW_TEST(room_is_used_again) {
    tw_answer answer;
    tw_answer_init(&answer);
    stream_of(&answer);
    allocations = 0;
    stream_of(&answer);
    TW_CHECK_EQ(0, allocations);
    TW_CHECK_EQ(MESSAGES, answer.stamps);
    tw_answer_free(&answer);
}
