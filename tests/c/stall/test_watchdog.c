/* What the watchdog's samples of a stall become: spans that leave nothing of it out. */
#include "../../csrc/stall/watchdog.c"

#include "tw_test.h"

#define MS UINT64_C(1000000)
#define TRACK 0

static tw_watchdog *w;
static tw_host_track *track;

static void begin(void) {
    w = calloc(1, sizeof *w);
    TW_REQUIRE(w != NULL);
    w->host = calloc(1, sizeof *w->host);
    TW_REQUIRE(w->host != NULL);
    track = &w->host->track[TRACK];
}
static void end(void) {
    free(w->host);
    free(w);
}
TW_AROUND(begin, end)

static void stall_from(uint64_t at) {
    tw_store(&track->wake_ns, at);
    tw_store(&track->waiting_since_ns, 0);
    w->of[TRACK].stall_since_ns = at;
}

/* At that time it was seen to wait in line `name`. */
static void seen(uint64_t at, uint64_t name) {
    tw_host_span span = {.to_ns = at, .what = tw_span_what(TW_SPAN_GIL, TRACK, TW_SAMPLED), .name = name};
    keep(w, &w->of[TRACK], track, &span);
}

static void check_span(uint64_t number, uint64_t from, uint64_t to) {
    tw_host_span span;
    TW_REQUIRE(tw_span_read(&w->host->by_watchdog, number, &span));
    TW_CHECK_EQ(from, span.from_ns);
    TW_CHECK_EQ(to, span.to_ns);
}

TW_TEST(spans_of_one_stall_touch) {
    stall_from(100 * MS);
    seen(104 * MS, 1);
    seen(106 * MS, 1);
    seen(110 * MS, 2);
    seen(120 * MS, 3);
    TW_CHECK_EQ(3, w->host->by_watchdog.head);
    check_span(0, 100 * MS, 108 * MS);
    check_span(1, 108 * MS, 115 * MS);
    check_span(2, 115 * MS, 120 * MS);
}

TW_TEST(what_a_handle_did_ends_with_it) {
    stall_from(100 * MS);
    seen(104 * MS, 1);
    tw_store(&track->handle_since_ns, 105 * MS);
    seen(110 * MS, 2);
    tw_store(&track->handle_since_ns, 119 * MS);
    seen(120 * MS, 3);
    check_span(0, 100 * MS, 105 * MS);
    check_span(1, 107 * MS, 119 * MS);
    check_span(2, 119 * MS, 120 * MS);
}
