#include "python/stamp/rank_step.h"

#include "python/group.h"
#include "python/membership.h"
#include "python/stall/host.h"
#include "tailwatch/record/step_ring.h"

/* In the engine's own process there is one rank, which waits for no other. */
static int is_of_worker(CoreObject *core) {
    if (__builtin_expect(*core->epoch == 0, 0)) core_reborn(core);
    if (core->group != NULL && __builtin_expect(core->group->orphan, 0)) core_rejoin(core);
    return tw_load(&core->segment->step_ring.head) == 0;
}

/* What a step waits for may be that this thread waits: for a CPU, for the interpreter lock. */
static void follow_enters(CoreObject *core, uint64_t now_ns) {
    const tw_step step = {.start_ns = now_ns, .lane = TW_STEP_LANE_OF_RANK, .thread = (uint64_t)pthread_self()};
    tw_step_lane *lane = &core->steps.stepper.lane[TW_STEP_LANE_OF_RANK];
    if (lane->thread != step.thread) lane->turns = 0;
    lane->thread = step.thread;
    lane->track = (tw_step_track){1, {now_ns, TW_STEP_UNKNOWN}};
    core_step_begins(core, &step);
}

static void follow_leaves(CoreObject *core, uint64_t now_ns) {
    tw_step_track *track = &core->steps.stepper.lane[TW_STEP_LANE_OF_RANK].track;
    const tw_step step = {.start_ns = track->last.at_ns, .lane = TW_STEP_LANE_OF_RANK, .thread = (uint64_t)pthread_self()};
    if (track->open == 0) return;
    track->open = 0;
    core_step_ends(core, &step, now_ns, 1, 0);
}

/* rank_enters(mark, rank, group) -> what to leave with; 0: nothing was recorded. */
PyObject *core_rank_enters(PyObject *op, PyObject *const *args, Py_ssize_t nargs) {
    CoreObject *core = (CoreObject *)op;
    const uint64_t now = tw_now_ns();
    Py_ssize_t len;
    const char *mark = nargs == 3 && PyUnicode_Check(args[0]) ? PyUnicode_AsUTF8AndSize(args[0], &len) : NULL;
    const unsigned long rank = mark == NULL ? 0 : PyLong_AsUnsignedLongMask(args[1]);
    const unsigned long group = mark == NULL ? 0 : PyLong_AsUnsignedLongMask(args[2]);
    if (PyErr_Occurred()) return NULL;
    if (mark == NULL) return PyErr_Format(PyExc_TypeError, "rank_enters(mark, rank, group): a text and two numbers");
    if (!is_of_worker(core)) return PyLong_FromLong(0);
    const uint64_t number = tw_rank_enters(&core->segment->step_ring, tw_request_hash(mark, (size_t)len),
                                           tw_rank_detail((uint32_t)rank, (uint32_t)group), now);
    follow_enters(core, now);
    return PyLong_FromUnsignedLongLong(number + 1);
}

PyObject *core_rank_leaves(PyObject *op, PyObject *number) {
    CoreObject *core = (CoreObject *)op;
    const uint64_t now = tw_now_ns();
    const unsigned long long n = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred()) return NULL;
    if (n == 0 || *core->epoch == 0) Py_RETURN_NONE;
    tw_rank_leaves(&core->segment->step_ring, n - 1, now);
    follow_leaves(core, now);
    Py_RETURN_NONE;
}
