/* Idle slots: what each is worth to idle-time collection, and how much of it a slice takes.
 *
 * All of it but idle_slots_may_be_due runs with the GIL, on the thread that is idle.
 */
#ifndef TAILWATCH_PYTHON_GC_IDLE_SLOTS_H
#define TAILWATCH_PYTHON_GC_IDLE_SLOTS_H

#include "python/gc/idle_gc.h"

/* Whether there is anything to do in an idle slot. */
int idle_slots_due(SlicerObject *self);

/* A wait for events begins: until one is there at the descriptor, or the time is up, slices run that are predicted to end
 * before. wait_ns: how long the loop means to wait, UINT64_MAX: for ever. Exceptions of ours go to sys.unraisablehook.
 * Whether there was anything to do. */
int idle_slots_wait(SlicerObject *self, int fd, uint64_t wait_ns);

/* Whether idle_slots_wait may find something to do in such a wait: a glance without the GIL. */
int idle_slots_may_be_due(const SlicerObject *self, uint64_t wait_ns);

/* An idle slot in which a slice of a tenth of since_ns disturbs nothing more than a tenth: an engine's step that took
 * so long is over at now_ns, or (waiting 0) nothing waits at all. Ranks that step together use the same steps, one of
 * `every`, so that not each of them delays another one. */
void idle_slots_step(SlicerObject *self, uint64_t now_ns, uint64_t since_ns, uint64_t waiting);

/* The last request has ended, or none was there: slices for two milliseconds at most. */
void idle_slots_run(SlicerObject *self, tw_slice_reason reason);

#endif
