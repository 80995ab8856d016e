#include "tailwatch/record/name_table.h"

#include <pthread.h>

#include "tailwatch/base/atomic.h"
#include "tw_test.h"

static tw_name_table table;

static void empty(void) { memset(&table, 0, sizeof table); }
TW_AROUND(empty, empty)

static uint32_t intern(const char *text) { return tw_name_intern(&table, text, strlen(text)); }

static const char *copy(uint32_t number) {
    static char text[TW_NAME_TEXT];
    tw_name_copy(&table, number, text, sizeof text);
    return text;
}

TW_TEST(a_name_has_one_number) {
    const uint32_t a = intern("encode  serving.py:12"), b = intern("decode  serving.py:30");
    TW_CHECK(a > 1 && b > 1 && a != b);
    TW_CHECK_EQ(a, intern("encode  serving.py:12"));
    TW_CHECK_STR("encode  serving.py:12", copy(a));
    TW_CHECK_STR("decode  serving.py:30", copy(b));
    TW_CHECK_EQ(2, table.claimed);
}

TW_TEST(no_name_and_other) {
    TW_CHECK_EQ(0, intern(""));
    TW_CHECK_STR("", copy(0));
    TW_CHECK_STR("other", copy(1));
    TW_CHECK_STR("other", copy(2));
    TW_CHECK_STR("other", copy(TW_NAME_ENTRIES));
    TW_CHECK_STR("other", copy(UINT32_MAX));
}

TW_TEST(text_is_cut_at_a_character_and_cleaned) {
    char text[300];
    memset(text, 'x', sizeof text);
    memcpy(text + TW_NAME_TEXT - 2, "\xc3\xa9", 2); /* the character that finds no room */
    TW_CHECK_EQ(TW_NAME_TEXT - 2, strlen(copy(tw_name_intern(&table, text, sizeof text))));
    TW_CHECK_STR("a?b?c\xc3\xa9?", copy(tw_name_intern(&table, "a\nb\xff""c\xc3\xa9\xc3", 8)));
    char small[4];
    tw_name_copy(&table, intern("ab\xc3\xa9"), small, sizeof small);
    TW_CHECK_STR("ab", small);
}

TW_TEST(a_full_table_counts_what_finds_no_room) {
    char text[32];
    for (int i = 0; i < TW_NAME_ENTRIES + 10; i++) {
        snprintf(text, sizeof text, "name %d", i);
        const uint32_t number = intern(text);
        TW_CHECK_EQ(i >= TW_NAME_ENTRIES - 2, number == 1);
    }
    TW_CHECK_EQ(12, table.overflow);
    TW_CHECK_EQ(TW_NAME_ENTRIES - 2, table.claimed);
    TW_CHECK_STR("name 7", copy(intern("name 7")));
}

TW_TEST(names_are_shorter_when_room_is_scarce) {
    char text[64];
    const uint32_t early = intern("early  a.py:7  <- caller  b.py:8");
    for (int i = 1; i < TW_NAME_WHOLE; i++) {
        snprintf(text, sizeof text, "encode  serving.py:%d", i);
        TW_CHECK_STR(text, copy(intern(text)));
    }
    TW_CHECK_STR("encode  serving.py", copy(intern("encode  serving.py:9999")));
    TW_CHECK_EQ(intern("encode  serving.py:9999"), intern("encode  serving.py:9998  <- caller  b.py:1"));
    TW_CHECK_STR("read  a.py", copy(intern("read  a.py:3  [read /tmp/x:1]")));
    TW_CHECK_STR("no line  a.py", copy(intern("no line  a.py")));
    TW_CHECK_STR("tenant:17", copy(intern("tenant:17"))); /* a request's id */
    const char *place = "decode  serving.py:1";
    TW_CHECK_STR(place, copy(tw_name_intern_whole(&table, place, strlen(place))));
    TW_CHECK_STR("  [poll]", copy(intern("  [poll]")));
    TW_CHECK_STR("encode  serving.py:7", copy(intern("encode  serving.py:7")));
    TW_CHECK_EQ(early, intern("early  a.py:7  <- caller  b.py:8"));
    TW_CHECK_EQ(0, table.overflow);
    TW_CHECK_EQ(TW_NAME_WHOLE + 6, table.claimed);
}

TW_TEST(an_entry_whose_writer_was_killed_is_passed_over) {
    const uint32_t number = intern("a");
    empty();
    table.entry[number].hash = 1; /* taken, never written */
    TW_CHECK(intern("a") != number);
    TW_CHECK_STR("other", copy(number));
    TW_CHECK_STR("a", copy(intern("a")));
}

#define WRITERS 3
#define ROUNDS 2000

static void *add_names(void *seed) {
    uint64_t random = (uint64_t)(uintptr_t)seed;
    char text[32], found[TW_NAME_TEXT];
    for (int i = 0; i < ROUNDS; i++) {
        const int len = snprintf(text, sizeof text, "name %d", (int)tw_test_random_below(&random, 200));
        tw_name_copy(&table, tw_name_intern(&table, text, (size_t)len), found, sizeof found);
        TW_CHECK_STR(text, found);
    }
    return NULL;
}

TW_TEST(threads_add_at_the_same_time) {
    pthread_t thread[WRITERS];
    for (uintptr_t i = 0; i < WRITERS; i++) pthread_create(&thread[i], NULL, add_names, (void *)(i + 1));
    for (int i = 0; i < WRITERS; i++) pthread_join(thread[i], NULL);
    TW_CHECK_EQ(0, table.overflow);
}
