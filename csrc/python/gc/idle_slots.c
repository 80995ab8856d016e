#include "python/gc/idle_slots.h"

#include <poll.h>
#include <time.h>

#include "base/arithmetic.h"

#define MOST_NS 320000             /* of a slice's walk: what is meant to take 0.3 ms, and took longer */
#define LEAST_WALK_NS 100000       /* however many young objects it has to collect */
#define MOST_OF_A_MOVED_NS 1000    /* that each of those moved is taken to cost, however much it was */
#define OVERDUE_NS 2000000         /* a slice is to take half of it, which the clock cuts */
#define STEP_SHARE 10              /* of an engine's step: what may be taken after it */
#define OTHERS_NS 50000            /* in which a thread that waits for the interpreter gets it */
#define AT_WORK_NS 20000           /* so long it keeps it that it is no daemon that looked at a clock */
#define LONGEST_NAP_MS 16
#define WORTH_WAITING_NS 4000000   /* so much is left of a wait that sleeping for a millisecond of it may give more */
#define NOBODY_WAITS_NS 2000000    /* the next request may come at any time */
#define LONG_WAIT_NS 20000000      /* a cycle is brought to its end in one */
#define COUNTED_EVERY_NS 8000000
#define FOR_LONG_NS 100000000

static int readable(int fd) {
    struct pollfd one = {fd, POLLIN, 0};
    return poll(&one, 1, 0) != 0;
}

/* false: it did not run, or not well. */
static int slice_of(SlicerObject *self, tw_slice_reason reason, slicer_budget budget) {
    slicer_done done;
    const int ran = slicer_run(self, reason, Py_None, budget, &done);
    if (ran < 0) PyErr_WriteUnraisable((PyObject *)self);
    return ran == 0;
}

/* Those that the next slice will collect: few young ones only where it moves others to them. */
static size_t young_of_a_slice(const SlicerObject *self) {
    const size_t young = slicer_young(self);
    return young < TW_PACE_YOUNG && self->phase != SLICER_RESTS && self->phase != SLICER_PARTS ? 0 : young;
}

/* The young become more with each idle slot that is left out, and then fit none. */
static int young_just_fit(const SlicerObject *self, size_t young, uint64_t left_ns) {
    return young >= TW_PACE_YOUNG && tw_pace_young_ns(&self->pace, young) <= left_ns;
}

/* For the walk, beside the collection of the young. */
static uint64_t walk_ns(const SlicerObject *self, size_t young, uint64_t slice_ns) {
    return slice_ns - least(slice_ns, tw_pace_young_ns(&self->pace, young));
}

/* Another slice may follow soon, which has all of its time for the walk. */
static int leaves_the_walk(const SlicerObject *self, tw_slice_reason reason, size_t young, uint64_t slice_ns) {
    return reason == TW_SLICE_IDLE && young >= TW_PACE_YOUNG && walk_ns(self, young, slice_ns) < LEAST_WALK_NS;
}

/* Where none may. */
static uint64_t some_walk_ns(const SlicerObject *self, size_t young, uint64_t slice_ns) {
    return most(walk_ns(self, young, slice_ns), least(slice_ns, LEAST_WALK_NS));
}

/* What the slice before moved to the young: a slice of its own, as soon as one fits. The walk waits for it, so it must
 * fit even where one of the dead held a large body lately. */
static int collects_moved(SlicerObject *self, tw_slice_reason reason, uint64_t left_ns) {
    const uint64_t of_each_ns = least(tw_pace_dead_ns(&self->pace), MOST_OF_A_MOVED_NS);
    if (tw_pace_young_ns(&self->pace, slicer_new_young(self)) + self->uncollected * of_each_ns > left_ns) return 0;
    if (!slice_of(self, reason, (slicer_budget){0, MOST_NS})) return 0;
    self->given_ns = tw_now_ns();
    return 1;
}

/* false: no slice now, or none that went well. */
static int timed_slice(SlicerObject *self, tw_slice_reason reason, uint64_t left_ns) {
    if (self->uncollected > 0) return collects_moved(self, reason, left_ns);
    const size_t young = young_of_a_slice(self);
    int64_t budget = tw_pace_budget(&self->pace, slicer_walk_of(self), young, left_ns);
    if (budget < 0) tw_pace_unfit(&self->pace, slicer_walk_of(self));
    if (budget < 0 && young_just_fit(self, young, left_ns)) budget = 0;
    const uint64_t slice_ns = least(left_ns / 2, MOST_NS), most_ns = some_walk_ns(self, young, slice_ns);
    if (budget > 0 && leaves_the_walk(self, reason, young, slice_ns)) budget = 0;
    if (budget < 0 || !slice_of(self, reason, (slicer_budget){(size_t)budget, most_ns})) return 0;
    if (budget > 0) self->given_ns = tw_now_ns();
    return 1;
}

/* No idle slot came for long: one is taken, a short one, if need be of the young only. */
static void overdue_slice(SlicerObject *self) {
    const int long_ago = tw_now_ns() - self->given_ns >= FOR_LONG_NS;
    const int in_backlog = self->uncollected > 0 || tw_pace_in_backlog(&self->pace);
    const size_t young = slicer_young_of(self);
    if (!tw_pace_many_young(young) && !(long_ago && in_backlog)) return;
    const int64_t budget = tw_pace_budget(&self->pace, slicer_walk_of(self), young, OVERDUE_NS);
    slice_of(self, TW_SLICE_OVERDUE, (slicer_budget){budget > 0 ? (size_t)budget : 0, some_walk_ns(self, young, MOST_NS)});
}

/* A memory limit was met: a slice as large as any, or the whole. false: none was made. */
static int forced(SlicerObject *self) {
    slicer_done done = {{.walk = TW_WALK_COUNT}, 0};
    size_t freed;
    if (self->force == SLICER_SLICES && tw_now_ns() < self->forced_until_ns) return 0;
    const int ran = self->force == SLICER_PASS ? slicer_pass(self, TW_SLICE_MEMORY_LIMIT, &freed)
                                              : slicer_run(self, TW_SLICE_MEMORY_LIMIT, Py_None, (slicer_budget){TW_PACE_MOST, 0}, &done);
    self->forced_until_ns = tw_now_ns() + done.ns;
    if (ran < 0) PyErr_WriteUnraisable((PyObject *)self);
    return ran == 0;
}

static int is_due(const SlicerObject *self) {
    if (self->force == SLICER_PASS || self->many_young || self->uncollected > 0) return 1;
    return tw_pace_due(&self->pace, slicer_young_of(self));
}

static int is_to_be_counted(const SlicerObject *self) { return tw_now_ns() - self->counted_ns >= COUNTED_EVERY_NS; }

/* Where as many old objects die as new ones come, the heap does not grow, and yet the young become many. */
int idle_slots_due(SlicerObject *self) {
    if (!self->on || self->lists == NULL) return 0;
    if (is_due(self)) return 1;
    if (!is_to_be_counted(self)) return 0;
    self->counted_ns = tw_now_ns();
    self->many_young = slicer_count_young(self, TW_PACE_YOUNG) == TW_PACE_YOUNG;
    return self->many_young;
}

int idle_slots_may_be_due(const SlicerObject *self, uint64_t wait_ns) {
    if (self->on && self->lists != NULL && (is_due(self) || is_to_be_counted(self))) return 1;
    return (self->on && self->phase != SLICER_RESTS && wait_ns >= LONG_WAIT_NS);
}

/* No slice fits now: a wait that goes on grows longer than those of before, and then one does. Whether it goes on. *ms: how
 * long is slept; longer the next time, as each time takes the interpreter from a thread that works. */
static int wait_for_more(int fd, uint64_t left_ns, int *ms) {
    struct pollfd one = {fd, POLLIN, 0};
    int found;
    if (left_ns < WORTH_WAITING_NS * (uint64_t)*ms) return 0;
    Py_BEGIN_ALLOW_THREADS
    found = poll(&one, 1, *ms);
    Py_END_ALLOW_THREADS
    if (*ms < LONGEST_NAP_MS) *ms *= 2;
    return found == 0;
}

/* An engine may run in a thread of its own: it has the interpreter before us, and while it keeps it the process is not
 * idle. A slice that follows upon another one without this would have it wait for both. */
static int all_are_idle(int fd, uint64_t left_ns) {
    struct pollfd one = {fd, POLLIN, 0};
    const struct timespec some = {0, (long)least(left_ns, OTHERS_NS)};
    uint64_t asked_ns;
    int found;
    Py_BEGIN_ALLOW_THREADS
    found = ppoll(&one, 1, &some, NULL);
    asked_ns = tw_now_ns();
    Py_END_ALLOW_THREADS
    return found == 0 && tw_now_ns() - asked_ns < AT_WORK_NS;
}

/* Where nothing comes for long, a cycle does not rest: the dead that it puts in order are held meanwhile. */
static int brought_to_its_end(SlicerObject *self, uint64_t left_ns) {
    if (self->phase == SLICER_RESTS || left_ns < LONG_WAIT_NS) return 0;
    tw_pace_more(&self->pace);
    return 1;
}

/* false: there was no idle slot for one. */
static int idle_slice(SlicerObject *self, int fd, uint64_t since, uint64_t wait_ns) {
    if (!all_are_idle(fd, since + wait_ns - tw_now_ns())) return 0;
    const uint64_t lasted = tw_now_ns() - since;
    if (lasted >= wait_ns) return 0;
    return timed_slice(self, TW_SLICE_IDLE, least(tw_pace_left(&self->pace, lasted), wait_ns - lasted));
}

int idle_slots_wait(SlicerObject *self, int fd, uint64_t wait_ns) {
    if (!idle_slots_may_be_due(self, wait_ns)) return 0;
    const uint64_t since = tw_now_ns();
    uint64_t lasted = 0;
    int nap_ms = 1;
    if (self->force) forced(self);
    else overdue_slice(self);
    for (; lasted < wait_ns && !readable(fd); lasted = tw_now_ns() - since) {
        if (!idle_slots_due(self) && !brought_to_its_end(self, wait_ns - lasted)) break;
        if (idle_slice(self, fd, since, wait_ns)) nap_ms = 1;
        else if (!wait_for_more(fd, wait_ns - lasted, &nap_ms)) break;
    }
    return 1;
}

/* A tenth of each step that has passed since the last idle slot; half a step at most. */
static uint64_t step_share(const SlicerObject *self, uint64_t since_ns) {
    return least(since_ns * self->every / STEP_SHARE, self->every == 1 ? UINT64_MAX : since_ns / 2);
}

/* Ranks count their steps from beginnings of their own, but read one clock: the first step that ends in a slot of it is
 * theirs. A slot is a power of two, so that those that measured other steps share every second one at least. */
static int slot_is_new(SlicerObject *self, uint64_t now_ns, uint64_t since_ns) {
    uint64_t slot_ns = 1;
    while (slot_ns < since_ns * self->every) slot_ns *= 2;
    const uint64_t began_ns = now_ns - now_ns % slot_ns;
    if (self->every > 1 && began_ns <= self->slot_ns) return 0;
    self->slot_ns = began_ns;
    return 1;
}

void idle_slots_step(SlicerObject *self, uint64_t now_ns, uint64_t since_ns, uint64_t waiting) {
    if (!slot_is_new(self, now_ns, since_ns) || !idle_slots_due(self)) return;
    Py_INCREF((PyObject *)self); /* what ends may take the policy away */
    if (self->force) forced(self);
    else if (!timed_slice(self, TW_SLICE_STEP, waiting == 0 ? NOBODY_WAITS_NS : step_share(self, since_ns))) overdue_slice(self);
    Py_DECREF((PyObject *)self);
}

/* None fits, by what the last ones took, and nothing waits: the least there is, which shows what it takes now. What is to
 * be collected is so at once. */
static void least_slice(SlicerObject *self, tw_slice_reason reason) {
    slice_of(self, reason, (slicer_budget){slicer_young_of(self) >= TW_PACE_YOUNG ? 0 : TW_PACE_FEWEST, MOST_NS});
}

static int none_fits(const SlicerObject *self) {
    const size_t young = slicer_young_of(self);
    return self->uncollected > 0 || tw_pace_budget(&self->pace, slicer_walk_of(self), young, NOBODY_WAITS_NS) < 0;
}

void idle_slots_run(SlicerObject *self, tw_slice_reason reason) {
    const uint64_t since = tw_now_ns();
    uint64_t lasted = 0;
    if (self->force && idle_slots_due(self)) forced(self);
    if (idle_slots_due(self) && none_fits(self)) least_slice(self, reason);
    while (lasted < NOBODY_WAITS_NS && idle_slots_due(self) && timed_slice(self, reason, NOBODY_WAITS_NS - lasted))
        lasted = tw_now_ns() - since;
}
