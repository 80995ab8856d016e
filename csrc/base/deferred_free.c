#include "tailwatch/base/deferred_free.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/yield.h"

#define PIECE ((size_t)1 << 20)

static void *close_low(void *fd) {
    const struct sched_param none = {0};
    (void)pthread_setschedparam(pthread_self(), SCHED_IDLE, &none); /* else at the priority it has */
    close((int)(intptr_t)fd);
    return NULL;
}

/* Signals are the host's: none is delivered to a thread of ours. */
static int start(pthread_t *thread, int fd) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(thread, NULL, close_low, (void *)(intptr_t)fd);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

void tw_close_aside(int fd) {
    pthread_t thread;
    if (start(&thread, fd) != 0) close(fd);
    else pthread_join(thread, NULL);
}

void tw_unmap_aside(void *memory, size_t bytes) {
    uint64_t gave_way_ns = 0;
    for (char *at = memory; bytes > 0;) {
        const size_t n = bytes < PIECE ? bytes : PIECE;
        munmap(at, n);
        at += n;
        bytes -= n;
        tw_give_way(&gave_way_ns);
    }
}
