/* The properties of fuzz_sse.c over its kept inputs and over as many made-up ones as a few seconds allow: texts that
 * mix escapes, characters of every length and broken ones, and mutations of them. A broken property aborts. */
#include "fuzz_sse.c"

#include "fuzz_corpus.h"

#define ROUNDS 40000
#define INPUT_MAX 520

typedef struct input {
    uint8_t bytes[INPUT_MAX];
    size_t size;
} input;

static const char *const pieces[] = {
    "a", " token", "0123456789abcdef", "x0123456789abcdef0123456789abcdef", "\"", "\\", "\n", "\r\n", "\t", "\b\f",
    "\x01", "\x1f", "\x7f", "/", "\\u0041", "\xc3\xa9", "\xe4\xb8\xad\xe6\x96\x87", "\xe2\x80\xa8", "\xf0\x9f\x98\x80",
    "\xf4\x8f\xbf\xbf", "\xed\xa0\x80", "\xed\xb0\x80", "\xc0\x88", "\xe0\x80\xa2", "\xf0\x80\x80\x8a",
    "\xf4\x90\x80\x80", "\xf8", "\xff", "\x80", "\xbf\xbf", "\xe4\xb8", "\xf0\x9f"};

static void append(input *to, const char *piece) {
    const size_t len = strlen(piece), room = INPUT_MAX - 2 - to->size;
    memcpy(to->bytes + to->size, piece, len < room ? len : room);
    to->size += len < room ? len : room;
}

/* One piece is met more often than others: clean texts and such as are all escapes. */
static void make_up(input *to, uint64_t *random) {
    const size_t count = sizeof pieces / sizeof *pieces, usual = tw_test_random_below(random, count);
    const uint64_t of = tw_test_random_below(random, 8) + 1;
    to->size = 0;
    for (uint64_t n = tw_test_random_below(random, 48); n > 0; n--)
        append(to, pieces[tw_test_random_below(random, of) == 0 ? tw_test_random_below(random, count) : usual]);
}

static void mutate(input *to, uint64_t *random) {
    for (uint64_t n = tw_test_random_below(random, 4); n > 0 && to->size > 0; n--)
        to->bytes[tw_test_random_below(random, to->size)] = (uint8_t)tw_test_random(random);
}

TW_TEST(kept_inputs_hold) { TW_CHECK(corpus_run("sse") > 0); }

TW_TEST(made_up_inputs_hold) {
    uint64_t random = 0x5eed1;
    static input made;
    for (int round = 0; round < ROUNDS; round++) {
        make_up(&made, &random);
        mutate(&made, &random);
        made.bytes[made.size] = (uint8_t)tw_test_random(&random);
        made.bytes[made.size + 1] = (uint8_t)(round % 3 == 0 ? tw_test_random(&random) : (uint64_t)round & 1);
        TW_CHECK_EQ(0, LLVMFuzzerTestOneInput(made.bytes, made.size + 2));
    }
}
