/* The renderers over made-up requests with hostile names, and over the kept inputs of fuzz_exposition.c. */
#include "fuzz_exposition.c"

#include "fuzz_corpus.h"

#define ROUNDS 400
#define INPUT_MAX 700

static const char *const pieces[] = {"\"", "\\", "\n", "\\\"", "{", "}", ",le=\"", "# EOF", "\xc3\xa9", "\xff",
                                     "\xf0\x9f\x98", "\0x", "=", " ", "4bf92f3577b34da6a3ce929d0e0e4736", "_total", "model"};

/* Bytes at random, with pieces that mean something to the formats between them. */
static size_t make(uint8_t *to, uint64_t *random) {
    const size_t len = tw_test_random_below(random, INPUT_MAX);
    for (size_t at = 0; at < len;) {
        const char *piece = pieces[tw_test_random_below(random, sizeof pieces / sizeof *pieces)];
        const size_t n = strlen(piece);
        if (tw_test_random_below(random, 4) != 0 || at + n > len) to[at++] = (uint8_t)tw_test_random(random);
        else memcpy(to + at, piece, n), at += n > 0 ? n : 1;
    }
    return len;
}

TW_TEST(made_up_requests_are_rendered_well) {
    uint64_t random = 0x5eed7;
    static uint8_t bytes[INPUT_MAX];
    for (int round = 0; round < ROUNDS; round++) TW_CHECK_EQ(0, LLVMFuzzerTestOneInput(bytes, make(bytes, &random)));
}

TW_TEST(kept_inputs_hold) { TW_CHECK(corpus_run("exposition") > 0); }
