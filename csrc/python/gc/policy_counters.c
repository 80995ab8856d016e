/* What Python says of the collector's policy, into the segment. */
#include "python/module.h"

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

/* policy_pass(moment, ns, freed) */
PyObject *core_policy_pass(PyObject *op, PyObject *args) {
    unsigned moment;
    unsigned long long ns, freed;
    if (!PyArg_ParseTuple(args, "IKK", &moment, &ns, &freed)) return NULL;
    if (moment >= TW_MOMENTS) return PyErr_Format(PyExc_ValueError, "moment: expected 0 to %d, found %u", TW_MOMENTS - 1, moment);
    tw_policy_pass(policy_of(op), (tw_moment)moment, ns, freed);
    Py_RETURN_NONE;
}

static PyObject *counted(uint64_t *counters, int n, PyObject *index) {
    const long i = PyLong_AsLong(index);
    if (i == -1 && PyErr_Occurred()) return NULL;
    if (i < 0 || i >= n) return PyErr_Format(PyExc_ValueError, "expected a counter from 0 to %d, found %ld", n - 1, i);
    tw_add(&counters[i], 1);
    Py_RETURN_NONE;
}

PyObject *core_count_drift(PyObject *op, PyObject *drift) { return counted(policy_of(op)->counts.drift, TW_DRIFTS, drift); }

PyObject *core_count_ceiling(PyObject *op, PyObject *ceiling) { return counted(policy_of(op)->counts.ceilings, TW_CEILINGS, ceiling); }

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

PyObject *core_last_was_full(PyObject *op, void *unused) {
    const CoreObject *self = (CoreObject *)op;
    (void)unused;
    return PyBool_FromLong(!self->gc_open && self->gc_generation == 2);
}
