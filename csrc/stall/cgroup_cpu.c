#include "tailwatch/stall/cgroup_cpu.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/base/clock.h"

#include "base/arithmetic.h"

#define TEXT 4096
#define PATH 512

static bool read_descriptor(int fd, char text[TEXT]) {
    const ssize_t n = fd < 0 ? -1 : pread(fd, text, TEXT - 1, 0);
    if (n < 0) return false;
    text[n] = '\0';
    return true;
}

static bool read_file(const char *path, char text[TEXT]) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const bool done = read_descriptor(fd, text);
    if (fd >= 0) close(fd);
    return done;
}

/* Whether the list of controllers of a line of /proc/self/cgroup ("4:cpu,cpuacct:/path") has cpu, or is version 2's. */
static bool is_of_cpu(const char *controllers, size_t length) {
    for (const char *at = controllers, *end = controllers + length; at <= end;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const size_t n = (size_t)((comma == NULL ? end : comma) - at);
        if (n == 3 && memcmp(at, "cpu", 3) == 0) return true;
        at += n + 1;
    }
    return length == 0;
}

static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu"};

/* Opens a file of the own cgroup: below its path, or, where the namespace hides that, at the mount itself. */
static int open_at(const char *path, size_t length, const char *name) {
    char full[PATH];
    for (size_t i = 0; i < sizeof mounts / sizeof *mounts; i++)
        for (int rooted = 0; rooted < 2; rooted++) {
            snprintf(full, sizeof full, "%s%.*s/%s", mounts[i], rooted ? 0 : (int)length, path, name);
            const int fd = open(full, O_RDONLY | O_CLOEXEC);
            if (fd >= 0) return fd;
        }
    return -1;
}

static int open_own(const char *name) {
    char text[TEXT];
    if (!read_file("/proc/self/cgroup", text)) return -1;
    for (char *line = text, *next; line != NULL && *line != '\0'; line = next) {
        next = strchr(line, '\n');
        if (next != NULL) *next++ = '\0';
        const char *controllers = strchr(line, ':'), *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (path == NULL || !is_of_cpu(controllers + 1, (size_t)(path - controllers - 1))) continue;
        const int fd = open_at(path + 1, strlen(path + 1), name);
        if (fd >= 0) return fd;
    }
    return -1;
}

static bool throttled_ns(int descriptor, uint64_t *out) {
    char text[TEXT];
    if (!read_descriptor(descriptor, text)) return false;
    const char *ns = strstr(text, "throttled_time "), *us = strstr(text, "throttled_usec ");
    if (ns == NULL && us == NULL) return false;
    *out = ns != NULL ? strtoull(ns + 15, NULL, 10) : strtoull(us + 15, NULL, 10) * 1000;
    return true;
}

int tw_cgroup_open(void) {
    uint64_t ignored;
    const int fd = open_own("cpu.stat");
    if (fd < 0 || throttled_ns(fd, &ignored)) return fd;
    close(fd);
    return -1;
}

/* Several threads may find that it is due: the one that changes the instant reads the counter. */
void tw_throttled_note(tw_host *host, tw_span_ring *ring, uint64_t now_ns) {
    const uint64_t file = tw_load(&host->cgroup_stat);
    uint64_t from = tw_load(&host->throttled_at_ns), throttled;
    if (file == 0 || since(now_ns, from) < TW_POINT_EVERY_NS) return;
    if (!__atomic_compare_exchange_n(&host->throttled_at_ns, &from, now_ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
    if (!throttled_ns((int)file - 1, &throttled)) {
        tw_store(&host->throttled_at_ns, from);
        return;
    }
    const uint64_t before = tw_load(&host->throttled_ns);
    tw_raise(&host->throttled_ns, throttled);
    if (from == 0 || throttled <= before) return;
    const tw_host_span span = {0, from, now_ns, tw_span_what(TW_SPAN_THROTTLED, TW_ALL_TRACKS, TW_ESTIMATED), 0,
                               throttled - before, {0, 0}};
    tw_span_add(ring, &span);
}

static bool read_own(const char *name, char text[TEXT]) {
    const int fd = open_own(name);
    const bool done = read_descriptor(fd, text);
    if (fd >= 0) close(fd);
    return done;
}

static uint64_t ppm(long long quota, long long period) {
    return quota <= 0 || period <= 0 ? 0 : (uint64_t)((double)quota / (double)period * 1e6);
}

uint64_t tw_cgroup_quota_ppm(void) {
    char text[TEXT], *end;
    if (read_own("cpu.max", text)) {
        const long long quota = strtoll(text, &end, 10); /* "max 100000": 0 */
        return ppm(quota, strtoll(end, NULL, 10));
    }
    if (!read_own("cpu.cfs_quota_us", text)) return 0;
    const long long quota = strtoll(text, NULL, 10);
    return read_own("cpu.cfs_period_us", text) ? ppm(quota, strtoll(text, NULL, 10)) : 0;
}
