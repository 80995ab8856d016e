/* What a thread of this process does, as the kernel reports: /proc/self/task/TID/syscall and schedstat.
 *
 * Thread rule: any thread; the descriptors are of the process that opened them: a fork child opens its own.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/host_track.h"

#include <stdbool.h>
#include <stdint.h>

TW_BEGIN_C

typedef struct tw_thread_state {
    bool known;
    bool runs;          /* on CPU or runnable */
    int64_t number;     /* of the system call that it sleeps in */
    uint64_t argument;  /* its first: a descriptor, an address */
} tw_thread_state;

/* Opens a file of a thread, "syscall" or "schedstat"; -1: errno is set. */
int tw_thread_open(uint64_t thread, const char *file);

/* Reads what the descriptor of its "syscall" has. known is false where the kernel refuses. 1 to 1.6 us. */
void tw_thread_state_read(int descriptor, tw_thread_state *out);

/* TW_SPAN_IO, TW_SPAN_LOCK or TW_SPAN_SLEEP: what a system call waits for. */
tw_span_kind tw_syscall_kind(int64_t number, uint64_t argument);

/* "fsync", "read", ...; "system call 123" for one that is not known. */
void tw_syscall_name(int64_t number, char *to, size_t size);

/* Whether its first argument is a descriptor. */
bool tw_syscall_has_descriptor(int64_t number);

TW_END_C
