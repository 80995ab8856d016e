#include "tailwatch/stall/thread_state.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int tw_thread_open(uint64_t thread, const char *file) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%llu/%s", (unsigned long long)thread, file);
    return open(path, O_RDONLY | O_CLOEXEC);
}

void tw_thread_state_read(int descriptor, tw_thread_state *out) {
    char text[192], *end;
    const ssize_t n = descriptor < 0 ? -1 : pread(descriptor, text, sizeof text - 1, 0);
    memset(out, 0, sizeof *out);
    if (n <= 0) return;
    text[n] = '\0';
    out->known = true;
    out->runs = strncmp(text, "running", 7) == 0;
    if (out->runs) return;
    out->number = strtoll(text, &end, 10);
    if (out->number >= 0) out->argument = strtoull(end, NULL, 16);
}

enum { OF_DESCRIPTOR = 1, WAITS_FOR_LOCK = 2, SLEEPS = 4 };

static const struct { long number; const char *name; int is; } calls[] = {
    {SYS_read, "read", OF_DESCRIPTOR}, {SYS_write, "write", OF_DESCRIPTOR}, {SYS_readv, "readv", OF_DESCRIPTOR},
    {SYS_writev, "writev", OF_DESCRIPTOR}, {SYS_pread64, "pread", OF_DESCRIPTOR},
    {SYS_pwrite64, "pwrite", OF_DESCRIPTOR}, {SYS_fsync, "fsync", OF_DESCRIPTOR},
    {SYS_fdatasync, "fdatasync", OF_DESCRIPTOR}, {SYS_ftruncate, "ftruncate", OF_DESCRIPTOR},
    {SYS_fallocate, "fallocate", OF_DESCRIPTOR}, {SYS_close, "close", OF_DESCRIPTOR},
    {SYS_recvfrom, "recv", OF_DESCRIPTOR}, {SYS_sendto, "send", OF_DESCRIPTOR}, {SYS_recvmsg, "recvmsg", OF_DESCRIPTOR},
    {SYS_sendmsg, "sendmsg", OF_DESCRIPTOR}, {SYS_connect, "connect", OF_DESCRIPTOR},
    {SYS_accept4, "accept", OF_DESCRIPTOR}, {SYS_flock, "flock", OF_DESCRIPTOR}, {SYS_fcntl, "fcntl", OF_DESCRIPTOR},
    {SYS_ioctl, "ioctl", OF_DESCRIPTOR}, {SYS_epoll_pwait, "epoll_wait", OF_DESCRIPTOR},
    {SYS_futex, "futex", WAITS_FOR_LOCK}, {SYS_clock_nanosleep, "sleep", SLEEPS}, {SYS_nanosleep, "sleep", SLEEPS},
    {SYS_openat, "open", 0}, {SYS_ppoll, "poll", 0}, {SYS_pselect6, "select", 0}, {SYS_wait4, "wait", 0},
    {SYS_waitid, "wait", 0}, {SYS_munmap, "munmap", 0}, {SYS_mmap, "mmap", 0}, {SYS_madvise, "madvise", 0},
    {SYS_msync, "msync", 0}, {SYS_renameat2, "rename", 0}, {SYS_unlinkat, "unlink", 0}, {SYS_sync, "sync", 0},
#ifdef SYS_epoll_wait
    {SYS_epoll_wait, "epoll_wait", OF_DESCRIPTOR}, {SYS_poll, "poll", 0}, {SYS_select, "select", 0},
    {SYS_accept, "accept", OF_DESCRIPTOR}, {SYS_open, "open", 0}, {SYS_rename, "rename", 0}, {SYS_unlink, "unlink", 0},
#endif
};

static int find(int64_t number) {
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (calls[i].number == number) return (int)i;
    return -1;
}

/* select() of no descriptor is what sleep was made of before clock_nanosleep. */
static bool is_empty_select(int64_t number, uint64_t descriptors) {
    const int i = find(number);
    return i >= 0 && strcmp(calls[i].name, "select") == 0 && descriptors == 0;
}

tw_span_kind tw_syscall_kind(int64_t number, uint64_t argument) {
    const int i = find(number);
    if (is_empty_select(number, argument) || (i >= 0 && calls[i].is & SLEEPS)) return TW_SPAN_SLEEP;
    return i >= 0 && calls[i].is & WAITS_FOR_LOCK ? TW_SPAN_LOCK : TW_SPAN_IO;
}

void tw_syscall_name(int64_t number, char *to, size_t size) {
    const int i = find(number);
    if (i >= 0) snprintf(to, size, "%s", calls[i].name);
    else snprintf(to, size, "system call %lld", (long long)number);
}

bool tw_syscall_has_descriptor(int64_t number) {
    const int i = find(number);
    return i >= 0 && calls[i].is & OF_DESCRIPTOR;
}
