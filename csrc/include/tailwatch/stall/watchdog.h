/* A thread that looks at busy loops, at engine steps that take longer than is usual, and at the time after a step that may
 * have left work, without the interpreter lock: what they run, what they sleep in, which thread holds the lock.
 *
 * While no stream is in flight it sleeps without a timer. Else it wakes each 10 ms (each 20 or 40 while little of its
 * budget is left), each 2 ms while a loop has been busy for more than 4 ms, or a step, or the time after one, goes on
 * beyond its limit, and takes samples of that: spaced wider and wider, while a wait grows at each of its turns, and no more
 * CPU time than half a percent of a core: beyond that it only counts. Its own lateness is recorded too.
 *
 * Thread rule: start, follow, unfollow and stop under the GIL; call from any thread. The thread itself takes no lock
 * but its own, and allocates nothing.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/host_track.h"
#include "tailwatch/stall/frame_walk.h"

#include <stdbool.h>
#include <stdint.h>

TW_BEGIN_C

#define TW_WATCH_PERIOD_NS UINT64_C(10000000)
#define TW_WATCH_STALL_NS UINT64_C(4000000)   /* a loop that has been busy so long stalls */
#define TW_WATCH_SAMPLE_NS UINT64_C(2000000)  /* between two samples of a stall; an eighth of its length, where that is more */
#define TW_WATCH_BETWEEN_NS UINT64_C(1000000000) /* after a step for so long: idle, unless it waits for the interpreter lock */
#define TW_WATCH_BUDGET_PPM 5000              /* of one core */
#define TW_WATCH_BURST_NS UINT64_C(50000000)  /* of CPU time that may be saved up: ten seconds' worth */

/* How long it sleeps where nothing stalls, so much of the budget being left: longer where wake-ups alone would use it up
 * (50 us each on some virtual machines), as samples need some of it. */
static inline uint64_t tw_watch_period(uint64_t budget_ns) {
    if (budget_ns < TW_WATCH_BURST_NS / 4) return 4 * TW_WATCH_PERIOD_NS;
    return budget_ns < TW_WATCH_BURST_NS / 2 ? 2 * TW_WATCH_PERIOD_NS : TW_WATCH_PERIOD_NS;
}

/* Since when it is silent at the earliest, where a turn was due: a longer sleep than usual is no silence. */
static inline uint64_t tw_watch_silent_from(uint64_t due_ns) {
    return due_ns > TW_WATCH_PERIOD_NS ? due_ns - TW_WATCH_PERIOD_NS : 0;
}

/* When the whole process began to stand still, where it has since the watchdog's latest turn, which is overdue; 0: it has
 * not, or was throttled. The stop is recorded once, as a span of by_loop. Any thread of the process. */
uint64_t tw_stop_note(tw_host *host, uint64_t now_ns);

/* The same, unless the thread of a track was runnable for much of the time between its two newest points. */
void tw_stop_note_of(tw_host *host, uint32_t track, uint64_t now_ns);

/* tw_stop_note() for a loop that waited for events. With little of its budget left the watchdog sleeps for longer than
 * tw_stop_note() counts. Of a token that was ready meanwhile it is then known that the loop stood still, or it would have
 * woken up: for the loop's track a second span, estimated, begins with its wait, or with that turn, if that was later, and
 * after the CPU time that the process has used since, and ends where the first one begins. Returns when the stop began, as
 * far as it is measured, or the wait, if that was later; 0: there was no stop. */
uint64_t tw_stop_note_waiting(tw_host *host, uint32_t track, uint64_t waits_since_ns, uint64_t now_ns);

#define TW_WATCH_LATE 4

/* Whether the process of a watchdog that was silent was stopped, where it is known that this was not runnable: it slept
 * before_ns until it was due, overdue_ns more, and waited for a CPU for delayed_ns. The process used used_ns of CPUs
 * meanwhile: one thread of it may have run before, and while the watchdog waited. Short silences are not judged. */
static inline bool tw_watch_was_stopped(uint64_t before_ns, uint64_t overdue_ns, uint64_t delayed_ns, uint64_t used_ns) {
    const uint64_t period_ns = before_ns > TW_WATCH_PERIOD_NS ? before_ns : TW_WATCH_PERIOD_NS;
    return overdue_ns >= TW_WATCH_LATE * period_ns && used_ns < before_ns + delayed_ns + overdue_ns / TW_STILL;
}

typedef struct tw_watchdog tw_watchdog;

/* Starts it. in_flight: how many streams wait; read only. interpreter: copied. walks: whether stacks are read.
 * NULL: no thread or memory. */
tw_watchdog *tw_watchdog_start(tw_host *host, const uint64_t *in_flight, const tw_interpreter *interpreter);

/* Looks at a track's thread from now on. state: its PyThreadState; 0: its stack is not read. syscall: descriptor of its
 * system calls, owned from now on; -1: none. */
void tw_watchdog_follow(tw_watchdog *w, uint32_t track, uintptr_t state, int syscall);
void tw_watchdog_unfollow(tw_watchdog *w, uint32_t track);

/* Whether it sleeps until it is called. One load. */
bool tw_watchdog_sleeps(const tw_watchdog *w);

/* Wakes it: a stream is in flight. A system call where it sleeps. */
void tw_watchdog_call(tw_watchdog *w);

/* Whether streams of other processes wait for this one: it runs as if they were in flight here. */
void tw_watchdog_works(tw_watchdog *w, bool works);

/* Ends the thread and waits for it: some 100 us at most. */
void tw_watchdog_stop(tw_watchdog *w);

/* In a fork child, where the thread is not: gives its memory and descriptors back. */
void tw_watchdog_forget(tw_watchdog *w);

TW_END_C
