/* The page of memory of one process: header, label sets, seconds, slow records, names. */
#include "tailwatch/record/segment.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tailwatch/stamp/stream.h"
#include "segment_tools.h"
#include "tw_test.h"

static const tw_slo NO_SLO;

static tw_segment *segment_of(uint32_t label_sets, const char *role) {
    tw_segment *g = NULL;
    TW_REQUIRE(tw_segment_create(&g, role, label_sets, false, &NO_SLO, 0) == 0);
    return g;
}

static uint32_t label(tw_segment *g, const char *model, const char *route) {
    return tw_segment_label(g, model, strlen(model), route, strlen(route));
}

static void model_name(const tw_segment *g, uint32_t i, char *out) {
    tw_words_get(tw_segment_series(g, i)->model.word, TW_NAME_WORDS, out);
}

TW_TEST(create_fills_the_header) {
    tw_slo slo = {1, 2, 3, 4, 990000};
    tw_segment *g = NULL;
    uint64_t before = tw_now_ns();
    TW_REQUIRE(tw_segment_create(&g, "api", 32, false, &slo, 77) == 0);
    TW_CHECK_EQ(TW_SEGMENT_MAGIC, g->header.magic);
    TW_CHECK_EQ(TW_SEGMENT_VERSION, g->header.version);
    TW_CHECK_EQ(tw_layout_hash(), g->header.layout_hash);
    TW_CHECK_EQ(segment_bytes(32), g->header.bytes);
    TW_CHECK_EQ(getpid(), g->header.pid);
    TW_CHECK_EQ(32, g->header.max_label_sets);
    TW_CHECK(g->header.created.monotonic_ns >= before && g->header.created.monotonic_ns <= tw_now_ns());
    TW_CHECK_MEM(&slo, &g->slo, sizeof slo);
    TW_CHECK_EQ(77, g->slow_ns);
    TW_CHECK_EQ(1, g->series_count);
    TW_CHECK_EQ(UINT64_MAX, g->queue_accept.min_ns);
    char text[TW_NAME_BYTES], role[TW_ROLE_WORDS * 8];
    model_name(g, 0, text);
    TW_CHECK_STR("other", text);
    tw_words_get(g->header.role, TW_ROLE_WORDS, role);
    TW_CHECK_STR("api", role);
    tw_segment_destroy(g);
}

TW_TEST(create_refuses_bad_sizes) {
    tw_segment *g = NULL;
    TW_CHECK_EQ(EINVAL, tw_segment_create(&g, "api", 0, false, &NO_SLO, 0));
    TW_CHECK_EQ(EINVAL, tw_segment_create(&g, "api", TW_LABEL_SETS_LIMIT + 1, false, &NO_SLO, 0));
    TW_CHECK_EQ(EINVAL, tw_segment_create(NULL, "api", 1, false, &NO_SLO, 0));
    TW_CHECK(g == NULL);
    TW_CHECK(segment_bytes(32) <= 4 << 20);
    TW_REQUIRE(tw_segment_create(&g, NULL, TW_LABEL_SETS_LIMIT, false, NULL, 0) == 0);
    TW_CHECK_EQ(0, g->header.role[0]);
    tw_segment_destroy(g);
    tw_segment_destroy(NULL);
}

TW_TEST(boot_id_is_the_kernels) {
    char text[64] = "", found[64];
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file != NULL) {
        TW_CHECK(fscanf(file, "%63s", text) == 1);
        fclose(file);
    }
    tw_segment *g = segment_of(1, "api");
    uint64_t a = g->header.boot_id[0], b = g->header.boot_id[1];
    snprintf(found, sizeof found, "%08x-%04x-%04x-%04x-%012" PRIx64, (unsigned)(a >> 32), (unsigned)(a >> 16 & 0xffff),
             (unsigned)(a & 0xffff), (unsigned)(b >> 48), b & UINT64_C(0xffffffffffff));
    TW_CHECK_STR(text[0] != '\0' ? text : "00000000-0000-0000-0000-000000000000", found);
    tw_segment_destroy(g);
}

static uint64_t start_time_named(const char *command) {
    TW_REQUIRE(prctl(PR_SET_NAME, command, 0, 0, 0) == 0);
    tw_segment *g = segment_of(1, "api");
    uint64_t ticks = g->header.start_time;
    tw_segment_destroy(g);
    return ticks;
}

TW_TEST(start_time_whatever_the_command_is_called) {
    char line[1024];
    TW_REQUIRE(prctl(PR_SET_NAME, "plain", 0, 0, 0) == 0);
    FILE *file = fopen("/proc/thread-self/stat", "r");
    TW_REQUIRE(file != NULL && fgets(line, sizeof line, file) != NULL);
    fclose(file);
    uint64_t expected = 0;
    int field = 1;
    for (char *at = strtok(line, " "); at != NULL; at = strtok(NULL, " "), ++field)
        if (field == 22) expected = strtoull(at, NULL, 10);
    TW_CHECK(expected > 0);
    TW_CHECK_EQ(expected, start_time_named("plain"));
    TW_CHECK_EQ(expected, start_time_named("a b c"));
    TW_CHECK_EQ(expected, start_time_named(") R 1 2 (x)"));
    TW_CHECK_EQ(expected, start_time_named("((("));
}

TW_TEST(valid_accepts_its_own) {
    tw_segment *g = segment_of(4, "api");
    size_t bytes = tw_segment_used(g); /* one label set of four: what a file holds */
    TW_CHECK_EQ(segment_bytes(1), bytes);
    TW_CHECK(tw_segment_valid(g, bytes));
    TW_CHECK(tw_segment_valid(g, bytes + 4096));
    TW_CHECK(!tw_segment_valid(g, bytes - 1));
    TW_CHECK(!tw_segment_valid(g, 8));
    TW_CHECK(!tw_segment_valid(NULL, bytes));
    uint64_t *words[] = {&g->header.magic, &g->header.version, &g->header.layout_hash, &g->header.bytes,
                         &g->header.max_label_sets};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i) {
        *words[i] += 1;
        TW_CHECK(!tw_segment_valid(g, bytes * 2));
        *words[i] -= 1;
    }
    g->header.max_label_sets += UINT64_C(1) << 32;
    TW_CHECK(!tw_segment_valid(g, bytes));
    g->header.max_label_sets = 4;
    g->series_count = 2; /* more than the bytes hold */
    TW_CHECK(!tw_segment_valid(g, bytes));
    TW_CHECK(tw_segment_valid(g, segment_bytes(2)));
    g->series_count = 5; /* more than there can be */
    TW_CHECK(!tw_segment_valid(g, segment_bytes(5)));
    TW_CHECK_EQ(segment_bytes(4), tw_segment_used(g));
    g->series_count = 1;
    TW_CHECK(tw_segment_valid(g, bytes));
    tw_segment_destroy(g);
}

TW_TEST(label_sets_are_found_again) {
    tw_segment *g = segment_of(4, "api");
    TW_CHECK_EQ(0, label(g, "other", "other"));
    TW_CHECK_EQ(1, label(g, "llama", "/v1/completions"));
    TW_CHECK_EQ(2, label(g, "llama", "/v1/chat/completions"));
    TW_CHECK_EQ(3, label(g, "qwen", "/v1/completions"));
    TW_CHECK_EQ(1, label(g, "llama", "/v1/completions"));
    TW_CHECK_EQ(0, g->label_overflow);
    TW_CHECK_EQ(0, label(g, "mistral", "/v1/completions"));
    TW_CHECK_EQ(1, g->label_overflow);
    TW_CHECK_EQ(3, label(g, "qwen", "/v1/completions"));
    TW_CHECK_EQ(0, label(g, "other", "other"));
    TW_CHECK_EQ(1, g->label_overflow);
    TW_CHECK_EQ(4, g->series_count);
    TW_CHECK_EQ(UINT64_MAX, tw_segment_series(g, 3)->itl.min_ns);
    tw_segment_destroy(g);
}

TW_TEST(hostile_names_stay_within_the_limit) {
    enum { SETS = 8, NAMES = 100000 };
    tw_segment *g = segment_of(SETS, "api");
    uint64_t random = 11, zeros = 0;
    char name[200];
    for (int i = 0; i < NAMES; ++i) {
        size_t len = tw_test_random_below(&random, sizeof name - 8) + 8;
        for (size_t at = 0; at < len; ++at) name[at] = (char)tw_test_random(&random);
        snprintf(name, sizeof name, "%07d", i);
        name[7] = '\xff';
        uint32_t set = tw_segment_label(g, name, len, name + 8, len - 8);
        TW_CHECK(set < SETS);
        zeros += set == 0;
    }
    TW_CHECK_EQ(SETS, g->series_count);
    TW_CHECK_EQ(NAMES - (SETS - 1), zeros);
    TW_CHECK_EQ(zeros, g->label_overflow);
    tw_segment_destroy(g);
}

static void check_clean(const char *raw, size_t len, const char *expected) {
    tw_segment *g = segment_of(2, "api");
    char text[TW_NAME_BYTES];
    TW_CHECK_EQ(1, tw_segment_label(g, raw, len, "/", 1));
    model_name(g, 1, text);
    TW_CHECK_STR(expected, text);
    tw_segment_destroy(g);
}

TW_TEST(names_become_clean_text) {
    static const struct {
        const char *raw, *clean;
    } cases[] = {
        {"", ""},
        {"plain", "plain"},
        {"caf\xc3\xa9 \xe6\xa8\xa1 \xf0\x9f\x8e\x89", "caf\xc3\xa9 \xe6\xa8\xa1 \xf0\x9f\x8e\x89"},
        {"tab\tnew\nline\x7f", "tab?new?line?"},
        {"c1\xc2\x85next\xc2\xa0kept", "c1?next\xc2\xa0kept"},
        {"\xc0\xaf", "??"},                 /* overlong */
        {"\xe0\x9f\xbf|", "???|"},
        {"\xed\xa0\x80|", "???|"},          /* surrogate */
        {"\xed\x9f\xbf|", "\xed\x9f\xbf|"},
        {"\xf0\x8f\xbf\xbf|", "????|"},
        {"\xf4\x8f\xbf\xbf|", "\xf4\x8f\xbf\xbf|"},
        {"\xf4\x90\x80\x80|", "????|"},     /* above U+10FFFF */
        {"\xf5\xff\xfe", "???"},
        {"\xe6\xa8", "??"},                 /* cut */
        {"\xe6|\xa8", "?|?"},
        {"\x80", "?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
        check_clean(cases[i].raw, strlen(cases[i].raw), cases[i].clean);
    check_clean("a\0b", 3, "a?b");
}

TW_TEST(long_names_are_cut_at_a_character) {
    char raw[400], expected[TW_NAME_BYTES];
    memset(raw, 'x', sizeof raw);
    memset(expected, 'x', sizeof expected);
    expected[TW_NAME_BYTES - 1] = '\0';
    check_clean(raw, sizeof raw, expected);
    for (size_t short_by = 1; short_by <= 3; ++short_by) {
        size_t at = TW_NAME_BYTES - 1 - short_by;
        memset(raw, 'x', sizeof raw);
        memcpy(raw + at, "\xf0\x9f\x8e\x89", 4);
        memset(expected, 'x', sizeof expected);
        expected[at] = '\0';
        check_clean(raw, sizeof raw, expected);
    }
    memcpy(raw + TW_NAME_BYTES - 5, "\xf0\x9f\x8e\x89", 4);
    memcpy(expected, raw, TW_NAME_BYTES - 1);
    expected[TW_NAME_BYTES - 1] = '\0';
    check_clean(raw, sizeof raw, expected);
}

TW_TEST(words_round_trip) {
    uint64_t words[2];
    char text[16];
    tw_words_set(words, 2, "0123456789abcdef", 16);
    tw_words_get(words, 2, text);
    TW_CHECK_STR("0123456789abcde", text);
    tw_words_set(words, 2, "0123456789abc\xc3\xa9", 15);
    tw_words_get(words, 2, text);
    TW_CHECK_STR("0123456789abc\xc3\xa9", text);
    tw_words_set(words, 2, "0123456789abcd\xc3\xa9", 16);
    tw_words_get(words, 2, text);
    TW_CHECK_STR("0123456789abcd", text);
    tw_words_set(words, 2, NULL, 0);
    TW_CHECK_EQ(0, words[0] | words[1]);
    words[0] = words[1] = UINT64_MAX;
    tw_words_get(words, 2, text);
    TW_CHECK_EQ(15, strlen(text));
}

/* Something in every part of a segment. */
static void use(tw_segment *g) {
    tw_stream s;
    tw_stream_open(&s, g, 1000, 2000, 30, TW_ARRIVAL_EXPLICIT);
    tw_stream_label(&s, label(g, "m", "/r"));
    for (uint64_t i = 1; i < 20; ++i) tw_stream_token(&s, 2000 + i * 1000000, 1, 0);
    tw_pause_begin(&g->pause, TW_CAUSE_GC2, 21000000);
    tw_segment_pause_end(g, 521000000, NULL);
    tw_stream_token(&s, 530000000, 1, 0);
    tw_stream_close(&s, 540000000, TW_END_FINISHED);
    label(g, "full", "full");
    tw_segment_fallback(g, "chat", 4, "extra", 5, 1);
}

static void check_like_new(const tw_segment *g) {
    TW_CHECK_EQ(1, g->series_count);
    TW_CHECK_EQ(0, g->opened | g->in_flight | g->slow_head | g->pause.head | g->pause.word[TW_CAUSE_GC2]);
    TW_CHECK_EQ(0, g->lost[0].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC2] | g->seconds[0].second | g->label_overflow);
    TW_CHECK_EQ(0, g->fallback_count | g->fallbacks[0].shape[0] | g->fallbacks[0].count);
    TW_CHECK_EQ(UINT64_MAX, g->stalls[TW_CAUSE_GC2].min_ns);
    TW_CHECK_EQ(UINT64_MAX, tw_segment_series(g, 0)->e2e.min_ns);
    TW_CHECK_EQ(5, g->slo.e2e_ns);
    TW_CHECK_EQ(3000000, g->slow_ns);
    TW_CHECK_EQ(2, g->header.max_label_sets);
    TW_CHECK_EQ(getpid(), g->header.pid);
    TW_CHECK(tw_segment_valid(g, g->header.bytes));
    char role[TW_ROLE_WORDS * 8];
    tw_words_get(g->header.role, TW_ROLE_WORDS, role);
    TW_CHECK_STR("engine", role);
}

TW_TEST(reset_keeps_options_and_nothing_else) {
    tw_slo slo = {.e2e_ns = 5};
    for (int locked = 0; locked < 2; ++locked) {
        tw_segment *g;
        TW_REQUIRE(tw_segment_create(&g, "engine", 2, false, &slo, 3000000) == 0);
        if (locked && mlock(g, 1) != 0) perror("mlock, tested without");
        use(g);
        TW_CHECK(g->slow_head > 0 && g->label_overflow > 0 && g->series_count == 2);
        uint64_t created = g->header.created.monotonic_ns;
        tw_segment_reset(g);
        check_like_new(g);
        TW_CHECK(g->header.created.monotonic_ns > created);
        use(g);
        TW_CHECK_EQ(1, g->opened);
        TW_CHECK_EQ(1, g->fallback_count);
        tw_segment_destroy(g);
    }
}

/* Its end is a private mapping of a file, as after leaving a group: what was written there is not what comes back. */
TW_TEST(reset_forgets_what_a_file_holds) {
    tw_segment *g = segment_of(8, "api");
    const size_t bytes = segment_bytes(8), page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t from = (sizeof *g + sizeof(tw_series)) / page * page + page;
    TW_REQUIRE(tw_segment_label(g, "a", 1, "r", 1) == 1 && tw_segment_label(g, "b", 1, "r", 1) == 2);
    tw_segment_series(g, 2)->output_tokens = 7;
    const int file = (int)syscall(SYS_memfd_create, "segment", 0);
    TW_REQUIRE(file >= 0 && write(file, g, bytes) == (ssize_t)bytes);
    void *end = (char *)g + from;
    TW_REQUIRE(mmap(end, bytes - from, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, (off_t)from) == end);
    tw_segment_reset(g);
    TW_REQUIRE(tw_segment_label(g, "a", 1, "r", 1) == 1 && tw_segment_label(g, "b", 1, "r", 1) == 2);
    TW_CHECK_EQ(0, tw_segment_series(g, 2)->output_tokens);
    close(file);
    tw_segment_destroy(g);
}

TW_TEST(reset_takes_a_fork_child_as_owner) {
    tw_slo slo = {.e2e_ns = 5};
    tw_segment *g;
    TW_REQUIRE(tw_segment_create(&g, "engine", 2, false, &slo, 3000000) == 0);
    tw_stream open;
    tw_stream_open(&open, g, 1, 1, 0, TW_ARRIVAL_ASGI);
    use(g);
    pid_t child = fork();
    TW_REQUIRE(child >= 0);
    if (child == 0) {
        tw_segment_reset(g);
        check_like_new(g);
        tw_stream_close(&open, 5, TW_END_FINISHED); /* the parent's, closed by the child's copy */
        TW_CHECK_EQ(0, g->in_flight);
        _exit(tw_test_failures != 0);
    }
    int status = 1;
    TW_CHECK(waitpid(child, &status, 0) == child);
    TW_CHECK_EQ(0, status);
    TW_CHECK_EQ(2, g->opened);
    TW_CHECK_EQ(getpid(), g->header.pid);
    tw_segment_destroy(g);
}

TW_TEST(a_second_has_one_slot) {
    tw_segment *g = segment_of(1, "api");
    tw_second *slot = tw_segment_second(g, 5 * TW_NS_PER_SECOND);
    TW_REQUIRE(slot != NULL);
    slot->good_miss = slot->excluded_finished = slot->ttft_tpot = slot->itl_e2e = slot->due_met = 9;
    TW_CHECK(tw_segment_second(g, 6 * TW_NS_PER_SECOND - 1) == slot);
    TW_CHECK_EQ(9, slot->good_miss);
    TW_CHECK(tw_segment_second(g, 6 * TW_NS_PER_SECOND) != slot);
    TW_CHECK(tw_segment_second(g, (TW_SECONDS + 5) * TW_NS_PER_SECOND) == slot);
    TW_CHECK_EQ(TW_SECONDS + 6, slot->second);
    TW_CHECK_EQ(0, slot->good_miss | slot->excluded_finished | slot->ttft_tpot | slot->itl_e2e | slot->due_met);
    TW_CHECK(tw_segment_second(g, 5 * TW_NS_PER_SECOND) == NULL);
    TW_CHECK(tw_segment_second(g, UINT64_MAX) != NULL);
    TW_CHECK_EQ(1, tw_segment_second(g, 0)->second);
    tw_segment_destroy(g);
}

TW_TEST(octaves_double) {
    TW_CHECK_EQ(0, tw_octave_of(0));
    TW_CHECK_EQ(0, tw_octave_of(1999));
    for (uint32_t o = 1; o < TW_OCTAVES; ++o) {
        TW_CHECK_EQ(o - 1, tw_octave_of((UINT64_C(1000) << o) - 1));
        TW_CHECK_EQ(o, tw_octave_of(UINT64_C(1000) << o));
    }
    TW_CHECK_EQ(TW_OCTAVES - 1, tw_octave_of(UINT64_MAX));
}

TW_TEST(pause_lengths_sum_to_the_word) {
    tw_segment *g = segment_of(1, "api");
    uint64_t random = 5, now = 1000;
    for (int i = 0; i < 3000; ++i) {
        tw_cause cause = (tw_cause)tw_test_random_below(&random, TW_CAUSES);
        tw_pause_begin(&g->pause, cause, now);
        tw_pause_begin(&g->pause, TW_CAUSE_GC0, now + 10);
        TW_CHECK_EQ(0, tw_segment_pause_end(g, now + 20, NULL));
        uint64_t length = 20 + tw_test_random_below(&random, 1000000);
        uint64_t counted = tw_segment_pause_end(g, now + length, NULL);
        TW_CHECK_EQ(((now + length) & ~UINT64_C(1)) - (now & ~UINT64_C(1)), counted);
        now += length + tw_test_random_below(&random, 1000);
    }
    TW_CHECK_EQ(0, tw_segment_pause_end(g, now, NULL));
    for (int cause = 0; cause < TW_CAUSES; ++cause) {
        tw_counts counts;
        tw_histogram_read(&g->stalls[cause], &counts);
        TW_CHECK_EQ(g->pause.totals[cause].count, counts.count);
        TW_CHECK_EQ(g->pause.word[cause], counts.sum_low);
    }
    tw_segment_destroy(g);
}

TW_TEST(slow_records_are_whole_or_absent) {
    tw_segment *g;
    TW_REQUIRE(tw_segment_create(&g, "api", 1, false, &NO_SLO, 1000) == 0);
    tw_slow_record r;
    TW_CHECK(!tw_segment_slow_read(g, 0, &r));
    tw_stream s;
    tw_stream_open(&s, g, 0, 0, 0, TW_ARRIVAL_ASGI);
    tw_stream_token(&s, 1, 1, 0);
    enum { MADE = TW_SLOW_RING + 10 };
    for (uint64_t i = 0; i < MADE; ++i) tw_stream_token(&s, s.last_ns + 1000 + i, 1, 0);
    TW_CHECK_EQ(MADE, g->slow_head);
    for (uint64_t i = 0; i < MADE; ++i) {
        bool there = tw_segment_slow_read(g, i, &r);
        TW_CHECK_EQ(i >= 10, there);
        if (there) TW_CHECK_EQ(1000 + i, r.gap_ns);
        if (there) TW_CHECK_EQ(i + 2, r.token);
    }
    TW_CHECK(!tw_segment_slow_read(g, MADE, &r));
    TW_CHECK(!tw_segment_slow_read(g, UINT64_MAX, &r));
    tw_segment_destroy(g);
}

static void fallback(tw_segment *g, const char *shape, const char *reason) {
    tw_segment_fallback(g, shape, strlen(shape), reason, strlen(reason), 1);
}

static void check_fallback(const tw_segment *g, uint32_t at, const char *shape, const char *reason, uint64_t count) {
    char found_shape[TW_SHAPE_WORDS * 8], found_reason[TW_FALLBACK_REASON_WORDS * 8];
    TW_REQUIRE(at < g->fallback_count);
    tw_words_get(g->fallbacks[at].shape, TW_SHAPE_WORDS, found_shape);
    tw_words_get(g->fallbacks[at].reason, TW_FALLBACK_REASON_WORDS, found_reason);
    TW_CHECK_STR(shape, found_shape);
    TW_CHECK_STR(reason, found_reason);
    TW_CHECK_EQ(count, g->fallbacks[at].count);
}

TW_TEST(fallbacks_are_counted_by_shape_and_reason) {
    tw_segment *g = segment_of(1, "api");
    fallback(g, "chat", "extra");
    fallback(g, "chat", "bytes");
    fallback(g, "text", "extra");
    fallback(g, "chat", "extra");
    TW_CHECK_EQ(3, g->fallback_count);
    check_fallback(g, 0, "chat", "extra", 2);
    check_fallback(g, 1, "chat", "bytes", 1);
    check_fallback(g, 2, "text", "extra", 1);
    tw_segment_destroy(g);
}

TW_TEST(a_fallback_without_room_counts_as_other) {
    tw_segment *g = segment_of(1, "api");
    char shape[32];
    for (int i = 0; i < TW_FALLBACKS - 1; ++i) {
        snprintf(shape, sizeof shape, "shape %d", i);
        fallback(g, shape, "extra");
    }
    TW_CHECK_EQ(TW_FALLBACKS - 1, g->fallback_count);
    for (int i = 0; i < 100; ++i) {
        snprintf(shape, sizeof shape, "more %d", i);
        fallback(g, shape, "extra");
    }
    fallback(g, "shape 30", "extra");
    fallback(g, "other", "other");
    TW_CHECK_EQ(TW_FALLBACKS, g->fallback_count);
    check_fallback(g, 30, "shape 30", "extra", 2);
    check_fallback(g, TW_FALLBACKS - 1, "other", "other", 101);
    TW_CHECK(tw_segment_valid(g, g->header.bytes));
    tw_segment_destroy(g);
}

TW_TEST(texts_of_a_fallback_are_clean_and_cut) {
    tw_segment *g = segment_of(1, "api");
    char text[200], shape[TW_SHAPE_WORDS * 8], reason[TW_FALLBACK_REASON_WORDS * 8];
    memset(text, 'x', sizeof text);
    memset(shape, 'x', sizeof shape);
    shape[sizeof shape - 1] = '\0';
    memset(reason, 'x', sizeof reason);
    reason[sizeof reason - 1] = '\0';
    tw_segment_fallback(g, text, sizeof text, text, sizeof text, 1);
    check_fallback(g, 0, shape, reason, 1);
    memcpy(text + 28, "\xf0\x9f\x8e\x89", 4);
    tw_segment_fallback(g, "a\nb", 3, text, sizeof text, 1);
    reason[28] = '\0';
    check_fallback(g, 1, "a?b", reason, 1);
    tw_segment_fallback(g, "", 0, "\xff", 1, 1);
    check_fallback(g, 2, "", "?", 1);
    tw_segment_destroy(g);
}
