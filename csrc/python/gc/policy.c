/* Collections of our own as pauses, and the state of the collector's policy, into the segment. */
#include "python/gc/policy.h"

#include "python/gc/callbacks.h"
#include "python/membership.h"

/* ---- our own ---- */

void core_policy_open(CoreObject *self) {
    if (__builtin_expect(*self->epoch == 0, 0)) core_reborn(self);
    const int outermost = self->pass.depth++ == 0;
    const uint64_t now = tw_now_ns();
    if (outermost) self->pass.start_ns = now, self->pass.thread = this_thread(), self->pass.cpu_start_ns = tw_thread_cpu_ns();
    else if (self->pass.thread != this_thread()) self->pass.thread = 0;
    tw_pause_begin(&self->segment->pause, TW_CAUSE_GC_OWN, now);
    if (core_records(self)) tw_recorder_pause(&self->trace.recorder, &self->segment->pause);
    core_pause_begins(self, TW_CAUSE_GC_OWN, -1);
}

/* What it took of the interval that this ends; 0: not known, as several threads had theirs at once. */
static uint64_t policy_cpu_ns(const CoreObject *self) {
    return self->pass.depth == 0 && self->pass.thread == this_thread() ? tw_thread_cpu_ns() - self->pass.cpu_start_ns : 0;
}

uint64_t core_policy_close(CoreObject *self) {
    if (self->pass.depth == 0) return 0;
    core_verify_pause(self); /* a collection inside that lost its end must not keep ours open */
    self->pass.depth--;
    const tw_pause_result result = {.cpu_ns = policy_cpu_ns(self)};
    const uint64_t now = tw_now_ns(), length = tw_segment_pause_end(self->segment, now, &result);
    if (self->pass.depth == 0 && core_records(self))
        tw_recorder_paused(&self->trace.recorder, &self->segment->pause, TW_CAUSE_GC_OWN, self->pass.start_ns, now, NULL);
    core_pause_ends(self, TW_CAUSE_GC_OWN, -1, NULL);
    return tw_pause_is_open(&self->segment->pause) ? 0 : length;
}

PyObject *core_policy_begin(PyObject *op, PyObject *unused) {
    (void)unused;
    core_policy_open((CoreObject *)op);
    Py_RETURN_NONE;
}

PyObject *core_policy_end(PyObject *op, PyObject *unused) {
    CoreObject *self = (CoreObject *)op;
    (void)unused;
    if (self->pass.depth == 0) Py_RETURN_NONE;
    const uint64_t length = core_policy_close(self);
    if (tw_pause_is_open(&self->segment->pause)) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(length);
}

/* ---- counters ---- */

static tw_policy *policy_of(PyObject *op) { return &((CoreObject *)op)->segment->policy; }

/* policy_is(kind, mode, why) */
PyObject *core_policy_is(PyObject *op, PyObject *args) {
    unsigned kind, mode, why;
    if (!PyArg_ParseTuple(args, "III", &kind, &mode, &why)) return NULL;
    if (kind >= TW_POLICY_KINDS || mode >= TW_POLICY_MODES || why >= TW_WHYS)
        return PyErr_Format(PyExc_ValueError, "policy_is: expected numbers of a kind, a mode and a reason, found %u, %u, %u", kind, mode, why);
    tw_policy_is(policy_of(op), (tw_policy_kind)kind, (tw_policy_mode)mode, (tw_policy_why)why);
    Py_RETURN_NONE;
}

/* count_full_collection(reason, ns, freed) */
PyObject *core_count_full_collection(PyObject *op, PyObject *args) {
    unsigned reason;
    unsigned long long ns, freed;
    if (!PyArg_ParseTuple(args, "IKK", &reason, &ns, &freed)) return NULL;
    if (reason >= TW_SLICE_REASONS) return PyErr_Format(PyExc_ValueError, "reason: expected 0 to %d, found %u", TW_SLICE_REASONS - 1, reason);
    tw_policy_full_collection(policy_of(op), (tw_slice_reason)reason, ns, freed);
    Py_RETURN_NONE;
}

PyObject *core_count_interference(PyObject *op, PyObject *interference) {
    return core_count(policy_of(op)->counts.interference, TW_INTERFERENCES, interference);
}

PyObject *core_count_memory_limit(PyObject *op, PyObject *memory_limit) {
    return core_count(policy_of(op)->counts.memory_limits, TW_MEMORY_LIMITS, memory_limit);
}

PyObject *core_count_ignored(PyObject *op, PyObject *unused) {
    (void)unused;
    tw_add(&policy_of(op)->counts.ignored, 1);
    Py_RETURN_NONE;
}

/* policy_answer(number, answer) */
PyObject *core_policy_answer(PyObject *op, PyObject *args) {
    unsigned long long number, answer;
    if (!PyArg_ParseTuple(args, "KK", &number, &answer)) return NULL;
    tw_policy_answer(policy_of(op), number, answer);
    Py_RETURN_NONE;
}

PyObject *core_count_freeze(PyObject *op, PyObject *unused) {
    (void)unused;
    tw_add(&policy_of(op)->counts.freezes, 1);
    Py_RETURN_NONE;
}
