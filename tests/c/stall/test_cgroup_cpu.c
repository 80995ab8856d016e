/* What the cgroup's counter becomes: spans of the host's ring. The kernel's file is one of the test's own. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tailwatch/stall/cgroup_cpu.h"
#include "tw_test.h"

#define MS UINT64_C(1000000)

static int counter; /* the descriptor of cpu.stat */

static void count(const char *text) {
    TW_CHECK(ftruncate(counter, 0) == 0 && pwrite(counter, text, strlen(text), 0) == (ssize_t)strlen(text));
}

static tw_host *host_with(const char *text) {
    char path[] = "/tmp/tailwatch-cpu-stat-XXXXXX";
    tw_host *host = calloc(1, sizeof *host);
    counter = mkstemp(path);
    unlink(path);
    count(text);
    host->cgroup_stat = (uint64_t)counter + 1;
    return host;
}

static void end(tw_host *host) {
    close(counter);
    free(host);
}

TW_TEST(what_was_throttled_between_two_looks_is_a_span) {
    tw_host *host = host_with("nr_periods 5\nnr_throttled 2\nthrottled_time 7000000\n");
    tw_host_span span;
    tw_throttled_note(host, &host->by_loop, 100 * MS); /* what was before the first look does not count */
    TW_CHECK_EQ(0, host->by_loop.head);
    tw_throttled_note(host, &host->by_loop, 150 * MS);
    TW_CHECK_EQ(0, host->by_loop.head);
    count("nr_periods 6\nnr_throttled 3\nthrottled_time 67000000\n");
    tw_throttled_note(host, &host->by_loop, 250 * MS);
    TW_CHECK(host->by_loop.head == 1 && tw_span_read(&host->by_loop, 0, &span));
    TW_CHECK_EQ(TW_SPAN_THROTTLED, tw_span_kind_of(&span));
    TW_CHECK_EQ(150 * MS, span.from_ns);
    TW_CHECK_EQ(250 * MS, span.to_ns);
    TW_CHECK_EQ(60 * MS, span.detail);
    end(host);
}

TW_TEST(version_2_counts_microseconds) {
    tw_host *host = host_with("usage_usec 9\nnr_throttled 1\nthrottled_usec 1000\n");
    tw_host_span span;
    tw_throttled_note(host, &host->by_watchdog, MS);
    count("usage_usec 9\nnr_throttled 2\nthrottled_usec 31000\n");
    tw_throttled_note(host, &host->by_watchdog, 100 * MS);
    TW_CHECK(tw_span_read(&host->by_watchdog, 0, &span));
    TW_CHECK_EQ(30 * MS, span.detail);
    end(host);
}

TW_TEST(without_a_counter_there_is_no_span) {
    tw_host *host = host_with("nothing of that kind\n");
    tw_throttled_note(host, &host->by_loop, MS);
    host->cgroup_stat = 0;
    tw_throttled_note(host, &host->by_loop, 2 * MS);
    TW_CHECK_EQ(0, host->by_loop.head);
    TW_CHECK_EQ(0, host->throttled_at_ns);
    end(host);
}
