/* Every allocation of a timeline and of an export fails once: the answer is ENOMEM, nothing leaks, and the next try
 * succeeds. Their files are compiled into this one, so that their allocations can be counted and failed. */
#include <stddef.h>
#include <stdlib.h>

static size_t allocations, fail_at, living; /* fail_at: number of the allocation that fails, 0 = none */

static void *counted_memory(void *memory) {
    if (memory) living++;
    return memory;
}
static void *tw_malloc(size_t size) { return ++allocations == fail_at ? NULL : counted_memory(malloc(size)); }
static void *tw_calloc(size_t n, size_t size) { return ++allocations == fail_at ? NULL : counted_memory(calloc(n, size)); }
static void *tw_realloc(void *memory, size_t size) {
    if (++allocations == fail_at) return NULL;
    return memory != NULL ? realloc(memory, size) : counted_memory(malloc(size));
}
static void tw_free(void *memory) {
    if (memory) living--;
    free(memory);
}
#define TW_MALLOC_INCLUDE <stddef.h>

#include "../../csrc/trace/track_buffer.c"

#include "../../csrc/trace/track_writer.c"

#include "../../csrc/trace/perfetto_packets.c"

/* Each file has its own small functions of these names. */
#define begin json_begin
#define put json_put
#define put_counter json_counter
#define put_name json_name
#include "../../csrc/trace/chrome_json.c"
#undef begin
#undef put
#undef put_counter
#undef put_name

#include "../../csrc/trace/trace_export.c"

#include "../../csrc/trace/trace_pauses.c"

#include "../../csrc/trace/trace_read.c"

#include "../../csrc/trace/trace_requests.c"

#include "../../csrc/trace/trace_steps.c"

#include "trace_tools.h"

#define MS UINT64_C(1000000)
#define T0 (UINT64_C(5000) * 1000 * MS)

static void fill(made_trace *m) {
    for (uint64_t i = 0; i < 400; i++) {
        const uint64_t at = T0 + i * MS;
        made_put(m, 0, at + 1, TW_KIND_OPEN, 0, 0, 0, i + 1, at);
        made_put(m, 0, at + MS / 2, TW_KIND_FIRST, 0, 0, 1, i + 1, at);
        if (i % 3 != 0) made_put(m, 0, at + MS / 2 + 2, TW_KIND_CLOSE, 0, 0, 1, i + 1, at);
        made_put(m, TW_RING_SHARED, at + MS / 3, TW_KIND_PAUSE, TW_CAUSE_GC2, 0, 1, at + MS / 9, i);
    }
    made_put(m, 1, T0 + MS, TW_KIND_STEP, 0, 0, 1, T0, 1);
    made_put(m, 1, T0 + 3 * MS, TW_KIND_STEP, 0, 0, 1, T0 + 2 * MS, 1);
    made_put(m, 1, T0 + 3 * MS, TW_KIND_COUNTER, TW_COUNTER_DELAY, 0, 0, 0, 1);
}

/* One whole export; ENOMEM where any of it failed. */
static int attempt(const tw_trace *const *files, int format, kept_bytes *out) {
    tw_timeline *t;
    tw_trace_account account;
    int error = tw_timeline_create(&t, format, keep_bytes, out);
    if (error != 0) return error;
    error = tw_trace_export(t, files, 2, 0, INT64_MAX, &account);
    const int written = tw_timeline_finish(t);
    tw_timeline_free(t);
    return error != 0 ? error : written;
}

static void fail_each(int format) {
    made_trace m[2];
    const tw_trace *files[2];
    for (uint64_t i = 0; i < 2; i++) {
        made_begin(&m[i], i == 0 ? "api" : "engine", 42 + i, 8192);
        fill(&m[i]);
        files[i] = made_open(&m[i]);
    }
    kept_bytes whole = {0};
    allocations = 0;
    TW_REQUIRE(attempt(files, format, &whole) == 0);
    const size_t total = allocations;
    TW_CHECK(total > 20);
    size_t refused = 0;
    for (size_t i = 1; i <= total; i++) {
        kept_bytes out = {0};
        allocations = 0;
        fail_at = i;
        const int answer = attempt(files, format, &out);
        fail_at = 0;
        TW_CHECK(answer == ENOMEM || answer == 0); /* 0: what has no room for arrows leaves them out, and reports it */
        refused += answer == ENOMEM;
        TW_CHECK_EQ(0, living);
        free(out.bytes);
    }
    TW_CHECK(refused + 16 >= total);
    kept_bytes again = {0};
    TW_CHECK_EQ(0, attempt(files, format, &again));
    TW_CHECK_EQ(whole.len, again.len);
    free(whole.bytes);
    free(again.bytes);
    for (int i = 0; i < 2; i++) made_free(&m[i]);
}

TW_TEST(perfetto) { fail_each(TW_TIMELINE_PERFETTO); }
TW_TEST(json) { fail_each(TW_TIMELINE_JSON); }
