/* Trace files that lie: whatever their words are, an export ends, reads nothing outside (the sanitizers see it), and
 * what it writes is a whole file. */
#include "trace_tools.h"

#define ROUNDS 150
#define EVENTS 1024
#define MS UINT64_C(1000000)
#define T0 (UINT64_C(5000) * 1000 * MS)

/* A plausible word, or none. */
static uint64_t word(uint64_t *random) {
    switch (tw_test_random_below(random, 6)) {
    case 0: return tw_test_random_below(random, 12);
    case 1: return UINT64_MAX - tw_test_random_below(random, 3);
    case 2: return T0 + tw_test_random_below(random, 2000 * MS);
    case 3: return UINT64_C(1) << tw_test_random_below(random, 64);
    case 4: return tw_test_random_below(random, 1000 * MS);
    default: return tw_test_random(random);
    }
}

/* Events as they might be, of few requests, so that they meet; now and then a field is something else. */
static void fill(made_trace *m, uint64_t *random, uint64_t lies) {
    const uint64_t n = tw_test_random_below(random, 3 * EVENTS);
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t ring = (uint32_t)tw_test_random_below(random, TW_RINGS);
        uint64_t fields[6] = {T0 + i * MS + tw_test_random_below(random, 3 * MS), tw_test_random_below(random, TW_KINDS + 1),
                              tw_test_random_below(random, 11), tw_test_random_below(random, 4),
                              tw_test_random_below(random, 20), 1 + tw_test_random_below(random, 12)};
        uint64_t id = fields[5], value = tw_test_random_below(random, 2) == 0 ? fields[0] - 5 * MS : 5 * MS;
        if (fields[1] == TW_KIND_PAUSE || fields[1] == TW_KIND_STEP) id = fields[0] - tw_test_random_below(random, 20 * MS);
        if (tw_test_random_below(random, 100) < lies) fields[tw_test_random_below(random, 5)] = word(random);
        if (tw_test_random_below(random, 100) < lies) id = word(random);
        if (tw_test_random_below(random, 100) < lies) value = word(random);
        made_put(m, ring, fields[0], (tw_kind)(fields[1] & 0xff), (uint32_t)fields[2], (uint32_t)fields[3],
                 (uint32_t)fields[4], id, value);
    }
}

/* Words of the head that tw_trace_open does not check: any values. */
static void lie_in_head(made_trace *m, uint64_t *random) {
    tw_trace_head *h = m->memory;
    uint64_t *const words[] = {&h->pid, &h->start_time, &h->joined_ns, &h->place, &h->ended, &h->pause_open_ns,
                               &h->pause_open_cause, &h->engine, &h->labels, &h->clocks, &h->role[0], &h->role[3], &h->steps[1][0]};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (tw_test_random_below(random, 3) == 0) *words[i] = word(random);
    for (uint32_t i = 0; i < TW_RINGS; i++) {
        if (tw_test_random_below(random, 6) == 0) h->ring[i].head = word(random);
        if (tw_test_random_below(random, 6) == 0) h->ring[i].tid = word(random);
        if (tw_test_random_below(random, 6) == 0) h->ring[i].name[1] = word(random);
    }
    uint64_t *clocks = (uint64_t *)((char *)m->memory + h->at_clocks);
    for (int i = 0; i < 200; i++) clocks[tw_test_random_below(random, 64 * 8)] = word(random);
    uint64_t *labels = (uint64_t *)((char *)m->memory + h->at_labels);
    for (int i = 0; i < 20; i++) labels[tw_test_random_below(random, 2 * 32)] = word(random);
}

static void export_all(made_trace *m, size_t n) {
    const tw_trace *files[4];
    for (size_t i = 0; i < n; i++) files[i] = made_open(&m[i]);
    for (int format = 0; format < TW_TIMELINE_FORMATS; format++) {
        kept_bytes out = {0};
        tw_trace_account account;
        TW_CHECK_EQ(0, export_kept(files, n, format, &out, &account));
        if (format == TW_TIMELINE_PERFETTO) TW_CHECK(count_packets(&out, 0) != SIZE_MAX);
        else TW_CHECK(is_paired_json(&out));
        free(out.bytes);
    }
}

static void rounds(uint64_t seed, uint64_t lies, bool head) {
    static const char *const roles[] = {"api", "engine", "worker", "engine"};
    uint64_t random = seed;
    for (int round = 0; round < ROUNDS; round++) {
        made_trace m[4];
        const size_t n = 1 + tw_test_random_below(&random, 4);
        for (size_t i = 0; i < n; i++) {
            made_begin(&m[i], roles[i], 40 + i, EVENTS);
            fill(&m[i], &random, lies);
            if (head) lie_in_head(&m[i], &random);
        }
        export_all(m, n);
        for (size_t i = 0; i < n; i++) made_free(&m[i]);
    }
}

TW_TEST(events_in_any_order) { rounds(1, 0, false); }
TW_TEST(events_that_lie) { rounds(2, 20, false); }
TW_TEST(heads_that_lie) { rounds(3, 5, true); }

/* Only noise behind a head that opens. */
TW_TEST(noise) {
    uint64_t random = 4;
    for (int round = 0; round < ROUNDS; round++) {
        made_trace m;
        made_begin(&m, "api", 42, EVENTS);
        uint64_t *events = (uint64_t *)((char *)m.memory + ((tw_trace_head *)m.memory)->at_events);
        for (size_t i = 0; i < EVENTS * 4; i++) events[i] = tw_test_random(&random);
        for (uint32_t i = 0; i < TW_RINGS; i++) ((tw_trace_head *)m.memory)->ring[i].head = word(&random);
        export_all(&m, 1);
        made_free(&m);
    }
}

/* Each request arrives long before the one before it ended, and each pause covers all: what grows with both must not. */
TW_TEST(the_worst_case_ends_soon) {
    made_trace m;
    made_begin(&m, "api", 42, 1 << 17);
    for (uint64_t i = 0; i < (1 << 16); i++) made_put(&m, 0, T0 + i * 100000, TW_KIND_TOKEN, 0, 0, 1, i + 1, T0);
    for (uint64_t i = 0; i < (1 << 13); i++)
        made_put(&m, 1, T0 + i * 100000 + 90000, TW_KIND_PAUSE, TW_CAUSE_GC2, 0, 0, T0 + i * 100000, 0);
    export_all(&m, 1);
    made_free(&m);
}
