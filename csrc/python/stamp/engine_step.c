/* tailwatch._hot.Step: one iteration of an engine, around which its loop has a `with`.
 *
 * Made for each iteration, or once and entered again. Objects that are let go wait in the core for the next one, so
 * that a loop allocates nothing.
 */
#include "python/stamp/engine_step.h"

#include "python/gc/callbacks.h"
#include "python/group.h"
#include "python/membership.h"
#include "python/nvtx/ranges.h"
#include "python/stall/host.h"

#include <pthread.h>
#include <string.h>

typedef struct StepObject {
    PyObject_HEAD
    CoreObject *core;
    PyObject *name;
    tw_step step;            /* while it is open */
    uint64_t batch, waiting;
    uint64_t epoch;          /* the core's when it was entered; 0: it never was */
    uint64_t depth;          /* how often it was entered and not left */
    uint32_t index;          /* of its name, as of that epoch */
    tw_nvtx_range range;
} StepObject;

/* Any whole number; *out stays what it was where it is none. -1: an exception is set. */
static int read_requests(PyObject *value, const char *what, uint64_t *out) {
    const long n = PyLong_AsLong(value);
    if (n == -1 && PyErr_Occurred()) return -1;
    if (n < 0) {
        PyErr_Format(PyExc_ValueError, "%s: expected a number of requests, found %ld", what, n);
        return -1;
    }
    *out = (uint64_t)n;
    return 0;
}

static int read_waiting(PyObject *value, uint64_t *out) {
    if (value != Py_None) return read_requests(value, "waiting", out);
    *out = TW_STEP_UNKNOWN;
    return 0;
}

/* ---- names ---- */

/* The number of a name in the core's segment. Lone surrogates become '?'; what cannot be had counts as "other". */
static uint32_t find_name(CoreObject *core, PyObject *name) {
    PyObject *bytes = PyUnicode_AsEncodedString(name, "utf-8", "replace");
    char *text;
    Py_ssize_t len;
    uint32_t index = TW_STEP_OTHER;
    if (bytes == NULL || PyBytes_AsStringAndSize(bytes, &text, &len) < 0) {
        PyErr_Clear();
        text = NULL, len = 0;
    }
    index = tw_segment_step(core->segment, text, (size_t)len);
    tw_recorder_name(&core->trace.recorder, core->segment);
    Py_XDECREF(bytes);
    return index;
}

/* A name written in the source is the same object each time. */
static uint32_t index_of(CoreObject *core, PyObject *name) {
    core_steps *steps = &core->steps;
    const uint64_t epoch = *core->epoch;
    for (uint32_t i = 0; i < TW_STEPS; i++)
        if (steps->known[i].name == name && steps->known[i].epoch == epoch) return steps->known[i].index;
    const uint32_t at = steps->next_known++ % TW_STEPS;
    PyObject *old = steps->known[at].name;
    steps->known[at].name = Py_NewRef(name);
    steps->known[at].epoch = epoch;
    steps->known[at].index = find_name(core, name);
    Py_XDECREF(old);
    return steps->known[at].index;
}

/* ---- life ---- */

static StepObject *step_new(CoreObject *core) {
    core_steps *steps = &core->steps;
    if (steps->n_free == 0) return (StepObject *)PyType_GenericAlloc(steps->type, 0);
    return (StepObject *)PyObject_Init(steps->free[--steps->n_free], steps->type);
}

/* step(name, batch=1, waiting=None, /) */
PyObject *core_step(PyObject *op, PyObject *const *args, Py_ssize_t nargs) {
    CoreObject *core = (CoreObject *)op;
    uint64_t batch = 1, waiting = TW_STEP_UNKNOWN;
    if (nargs < 1 || nargs > 3 || !PyUnicode_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "step(name, batch=1, waiting=None): expected a name");
        return NULL;
    }
    if (nargs > 1 && read_requests(args[1], "batch", &batch) < 0) return NULL;
    if (nargs > 2 && read_waiting(args[2], &waiting) < 0) return NULL;
    StepObject *self = step_new(core);
    if (self == NULL) return NULL;
    self->core = (CoreObject *)Py_NewRef(op);
    self->name = Py_NewRef(args[0]);
    self->batch = batch;
    self->waiting = waiting;
    self->epoch = self->depth = self->range.begun = 0;
    return (PyObject *)self;
}

/* Whether it is open, and in this process: a fork child does not end its parent's steps. */
static int is_open(const StepObject *self) { return self->depth > 0 && self->epoch == *self->core->epoch; }

/* One that was never left is no step: how long it took is unknown. */
static void abandon(CoreObject *core, const tw_step *step) {
    const uint64_t now = tw_now_ns();
    tw_step_end(&core->steps.stepper, step, now, 0, TW_STEP_UNKNOWN);
    core_step_ends(core, step, now, 0, 0);
}

static void step_dealloc(PyObject *op) {
    StepObject *self = (StepObject *)op;
    CoreObject *core = self->core;
    PyTypeObject *type = Py_TYPE(op);
    if (is_open(self)) abandon(core, &self->step);
    if (self->range.begun != 0) nvtx_end(&self->range);
    Py_DECREF(self->name);
    if (core->steps.n_free < STEPS_FREE) core->steps.free[core->steps.n_free++] = op;
    else ((freefunc)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF((PyObject *)type);
    Py_DECREF((PyObject *)core);
}

void core_free_steps(CoreObject *core) {
    core_steps *steps = &core->steps;
    for (uint32_t i = 0; i < TW_STEPS; i++) Py_XDECREF(steps->known[i].name);
    while (steps->n_free > 0) ((freefunc)PyType_GetSlot(steps->type, Py_tp_free))(steps->free[--steps->n_free]);
    Py_XDECREF((PyObject *)steps->type);
}

/* ---- with ---- */

/* One that ran nothing is none. */
static __attribute__((noinline, cold)) void record(CoreObject *core, const StepObject *self, uint64_t now) {
    const uint64_t batch = self->batch < UINT32_MAX ? self->batch : UINT32_MAX;
    if (batch == 0) return;
    tw_record(&core->trace.recorder, now, tw_what(TW_KIND_STEP, self->step.name, 0, (uint32_t)batch), self->step.start_ns, self->waiting);
}

/* hot */
/* Entered again while it is open, it goes on until it was left as often. */
static PyObject *step_enter(PyObject *op, PyObject *unused) {
    StepObject *self = (StepObject *)op;
    CoreObject *core = self->core;
    (void)unused;
    if (__builtin_expect(*core->epoch == 0, 0)) core_reborn(core);
    if (self->epoch != *core->epoch) {
        if (core->group != NULL && __builtin_expect(core->group->orphan, 0)) core_rejoin(core);
        self->index = index_of(core, self->name);
        self->epoch = *core->epoch;
        self->depth = 0;
    }
    if (self->depth++ == 0) {
        tw_step_begin(&core->steps.stepper, &self->step, self->index, (uint64_t)pthread_self(), tw_now_ns());
        core_step_begins(core, &self->step);
        if (nvtx_on(core)) nvtx_step_begin(core, &self->range, self->index, self->batch);
    }
    return Py_NewRef(op);
}

/* Whatever was raised inside: it was a step. */
static PyObject *step_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs) {
    StepObject *self = (StepObject *)op;
    CoreObject *core = self->core;
    const uint64_t now = tw_now_ns();
    (void)args, (void)nargs;
    if (!is_open(self) || --self->depth > 0) Py_RETURN_NONE;
    if (__builtin_expect(tw_load(&core->segment->pause.last_stop_ns) == TW_PAUSE_OPEN, 0)) core_verify_pause(core);
    tw_step_end(&core->steps.stepper, &self->step, now, self->batch, self->waiting);
    core_step_ends(core, &self->step, now, self->batch > 0, self->waiting);
    core->steps.ended++;
    if (__builtin_expect(self->range.begun != 0, 0)) nvtx_end(&self->range);
    if (__builtin_expect(tw_recorder_on(&core->trace.recorder), 0)) record(core, self, now);
    if (__builtin_expect(core->steps.after != NULL, 0))
        core->steps.after(core->steps.after_of, now, now - self->step.start_ns, self->waiting);
    Py_RETURN_NONE;
}
/* end hot */

/* ---- attributes ---- */

static PyObject *get_name(PyObject *op, void *unused) { (void)unused; return Py_NewRef(((StepObject *)op)->name); }
static PyObject *get_batch(PyObject *op, void *unused) { (void)unused; return PyLong_FromUnsignedLongLong(((StepObject *)op)->batch); }
static PyObject *get_waiting(PyObject *op, void *unused) {
    const uint64_t waiting = ((StepObject *)op)->waiting;
    (void)unused;
    if (waiting == TW_STEP_UNKNOWN) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(waiting);
}

static int refuse_deletion(PyObject *value) {
    if (value == NULL) PyErr_SetString(PyExc_AttributeError, "an attribute of a step cannot be deleted");
    return value == NULL ? -1 : 0;
}

static int set_batch(PyObject *op, PyObject *value, void *unused) {
    (void)unused;
    return refuse_deletion(value) < 0 ? -1 : read_requests(value, "batch", &((StepObject *)op)->batch);
}

static int set_waiting(PyObject *op, PyObject *value, void *unused) {
    (void)unused;
    return refuse_deletion(value) < 0 ? -1 : read_waiting(value, &((StepObject *)op)->waiting);
}

static PyMethodDef methods[] = {
    {"__enter__", step_enter, METH_NOARGS, "The step begins."},
    {"__exit__", FASTCALL(step_exit), METH_FASTCALL, "It ends, whatever was raised inside."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef getters[] = {
    {"name", get_name, NULL, "What kind of step it is.", NULL},
    {"batch", get_batch, set_batch, "Requests in it; 0: it ran nothing, and is no step.", NULL},
    {"waiting", get_waiting, set_waiting, "Requests that it leaves with work to do; None: not known.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "One iteration of an engine. Made by tailwatch.step()."},
    {Py_tp_dealloc, step_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {0, NULL}};
PyType_Spec tw_step_spec = {"tailwatch._hot.Step", sizeof(StepObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
