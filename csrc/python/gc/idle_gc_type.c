/* tailwatch._hot.Slicer: what Python calls of the idle-time collection, and where it hooks in. */
#include "python/gc/cycle_detect.h"
#include "python/gc/garbage_scc.h"
#include "python/gc/idle_libuv.h"
#include "python/gc/idle_selector.h"
#include "python/gc/idle_slots.h"

#define MOST_BUDGET 1000000

/* ---- when it is called ---- */

static int other_begins(void *of, tw_cause cause, int generation) {
    (void)cause;
    if (generation >= 0) slicer_other_begins(of, generation >= 2);
    return generation >= 2; /* what was held ends before others' callbacks are called */
}

static void other_ends(void *of, tw_cause cause, int generation, const uint64_t *collected) {
    (void)cause;
    if (generation >= 0 && collected != NULL) slicer_other_ended(of, generation >= 2, *collected);
}

static void step_ends(void *of, uint64_t now_ns, uint64_t lasted_ns, uint64_t waiting) {
    idle_slots_step(of, now_ns, lasted_ns, waiting);
}

static void hook(SlicerObject *self, int on) {
    CoreObject *core = self->core;
    core->on_pause[ON_PAUSE_SLICER] = on ? (pause_hook){self, other_begins, other_ends} : (pause_hook){NULL, NULL, NULL};
    core->steps.after = on ? step_ends : NULL;
    core->steps.after_of = on ? self : NULL;
    core->gc.reads_heap = !on;
}

/* ---- methods ---- */

/* slice(budget, seeds=None, reason=5: requested, most_ns=0): one slice, a pause of cause "gc_own", whose walk lasts about so long at
 * most (0: as long as its looks take). (objects moved, objects freed, ns); None while a collection is under way. */
static PyObject *slicer_slice(PyObject *op, PyObject *args) {
    Py_ssize_t budget;
    PyObject *seeds = Py_None;
    int reason = TW_SLICE_REQUESTED;
    unsigned long long most_ns = 0;
    slicer_done done = {{.walk = TW_WALK_COUNT}, 0};
    if (!PyArg_ParseTuple(args, "n|OiK", &budget, &seeds, &reason, &most_ns)) return NULL;
    if (budget < 0 || budget > MOST_BUDGET) return PyErr_Format(PyExc_ValueError, "budget: expected 0 to %d objects, found %zd", MOST_BUDGET, budget);
    if (reason < 0 || reason >= TW_SLICE_REASONS) return PyErr_Format(PyExc_ValueError, "reason: expected 0 to %d, found %d", TW_SLICE_REASONS - 1, reason);
    const int ran = slicer_run((SlicerObject *)op, (tw_slice_reason)reason, seeds, (slicer_budget){(size_t)budget, most_ns}, &done);
    if (ran > 0) Py_RETURN_NONE;
    return ran < 0 ? NULL : Py_BuildValue("nnK", (Py_ssize_t)done.slice.moved, (Py_ssize_t)done.slice.freed, (unsigned long long)done.ns);
}

/* whole(reason=5: requested): everything that is not frozen. Objects freed; None while a collection is under way. */
static PyObject *slicer_whole(PyObject *op, PyObject *args) {
    int reason = TW_SLICE_REQUESTED;
    size_t freed;
    if (!PyArg_ParseTuple(args, "|i", &reason)) return NULL;
    if (reason < 0 || reason >= TW_SLICE_REASONS) return PyErr_Format(PyExc_ValueError, "reason: expected 0 to %d, found %d", TW_SLICE_REASONS - 1, reason);
    const int ran = slicer_pass((SlicerObject *)op, (tw_slice_reason)reason, &freed);
    if (ran > 0) Py_RETURN_NONE;
    return ran < 0 ? NULL : PyLong_FromSize_t(freed);
}

/* abandon(): the cycle that is under way is given up. What it holds the next slices let go of: it may be much. */
static PyObject *slicer_abandon(PyObject *op, PyObject *unused) {
    SlicerObject *self = (SlicerObject *)op;
    (void)unused;
    walk_abandon(self);
    if (order_gone(self) > 0) tw_pace_more(&self->pace);
    Py_RETURN_NONE;
}

static PyObject *get_midway(PyObject *op, void *unused) { (void)unused; return PyBool_FromLong(((SlicerObject *)op)->phase != SLICER_RESTS); }
static PyObject *get_on(PyObject *op, void *unused) { (void)unused; return PyBool_FromLong(((SlicerObject *)op)->on); }
static int set_on(PyObject *op, PyObject *value, void *unused) {
    const int on = value == NULL ? 0 : PyObject_IsTrue(value);
    (void)unused;
    if (on < 0) return -1;
    SlicerObject *self = (SlicerObject *)op;
    self->on = on;
    hook(self, on);
    if (!on) walk_abandon(self), order_let_go_of_all(self), self->uncollected = 0;
    return 0;
}
/* rest(idle=False): the last request has ended, or none was there. Slices for two milliseconds at most. */
static PyObject *slicer_run_idle(PyObject *op, PyObject *args) {
    int idle = 0;
    if (!PyArg_ParseTuple(args, "|p", &idle)) return NULL;
    idle_slots_run((SlicerObject *)op, idle ? TW_SLICE_IDLE : TW_SLICE_REQUEST_END);
    Py_RETURN_NONE;
}

static int put(PyObject *dict, const char *name, uint64_t value) {
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    const int failed = number == NULL || PyDict_SetItemString(dict, name, number) < 0;
    Py_XDECREF(number);
    return failed ? -1 : 0;
}

static int put_reasons(PyObject *dict, const tw_pace *pace) {
    for (int i = 0; i < TW_SLICE_REASONS; i++)
        if (put(dict, tw_slice_reason_name(i), pace->made[i]) < 0) return -1;
    return 0;
}

static uint64_t passes_of(const SlicerObject *self) {
    const uint64_t *passes = self->core->segment->policy.counts.collections;
    uint64_t n = 0;
    for (int i = 0; i < TW_SLICE_REASONS; i++) n += tw_load(&passes[i]);
    return n;
}

/* counts(): what it did, by reason, and what it is to do. */
static PyObject *slicer_counts(PyObject *op, PyObject *unused) {
    const tw_pace *pace = &((SlicerObject *)op)->pace;
    (void)unused;
    PyObject *dict = PyDict_New();
    if (dict == NULL) return NULL;
    if (put_reasons(dict, pace) == 0 && put(dict, "looks", pace->looks) == 0 && put(dict, "moved", pace->moved) == 0 && put(dict, "freed", pace->freed) == 0 &&
        put(dict, "ns", pace->ns) == 0 && put(dict, "predicted_ns", pace->predicted_ns) == 0 &&
        put(dict, "backlog", pace->backlog) == 0 && put(dict, "old", pace->old) == 0 && put(dict, "cycles", pace->cycles) == 0 && put(dict, "short_cycles", pace->shorts) == 0 &&
        put(dict, "whole", (uint64_t)(((SlicerObject *)op)->whole && ((SlicerObject *)op)->phase != SLICER_RESTS)) == 0 &&
        put(dict, "held", order_held((SlicerObject *)op)) == 0 &&
        put(dict, "parts", ((SlicerObject *)op)->order.n_parts) == 0 &&
        put(dict, "cost_ns", tw_pace_dearest(pace)) == 0 &&
        put(dict, "young", slicer_young_of((SlicerObject *)op)) == 0 &&
        put(dict, "uncollected", ((SlicerObject *)op)->uncollected) == 0 &&
        put(dict, "collections", passes_of((SlicerObject *)op)) == 0)
        return dict;
    Py_DECREF(dict);
    return NULL;
}

static PyObject *slicer_round(PyObject *op, PyObject *unused) {
    (void)unused;
    ((SlicerObject *)op)->whole_wanted = 1;
    tw_pace_want_cycle(&((SlicerObject *)op)->pace);
    Py_RETURN_NONE;
}

/* In a fork child: its counts are its own, its heap and what is frozen of it are as the parent's were. A slice goes on if
 * its finalizer forked; one of another thread never ends, as that thread is not there. */
static PyObject *slicer_after_fork(PyObject *op, PyObject *unused) {
    SlicerObject *self = (SlicerObject *)op;
    (void)unused;
    tw_pace_begin_again(&self->pace);
    self->born += 1;
    if (self->busy != this_thread()) self->busy = 0;
    self->force = SLICER_WHAT_FITS;
    Py_RETURN_NONE;
}

static PyObject *get_due(PyObject *op, void *unused) { (void)unused; return PyBool_FromLong(idle_slots_due((SlicerObject *)op)); }
static PyObject *get_force(PyObject *op, void *unused) { (void)unused; return PyLong_FromLong(((SlicerObject *)op)->force); }
static PyObject *get_every(PyObject *op, void *unused) { (void)unused; return PyLong_FromUnsignedLong(((SlicerObject *)op)->every); }

/* A number in a range; -1: an exception is set. */
static long read_number(PyObject *value, const char *what, long least, long most) {
    const long n = value == NULL ? -1 : PyLong_AsLong(value);
    if (n >= least && n <= most) return n;
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "%s: expected %ld to %ld", what, least, most);
    return -1;
}

static int set_force(PyObject *op, PyObject *value, void *unused) {
    const long n = read_number(value, "force", SLICER_WHAT_FITS, SLICER_PASS);
    (void)unused;
    if (n >= 0) ((SlicerObject *)op)->force = (int)n;
    return n < 0 ? -1 : 0;
}

static int set_every(PyObject *op, PyObject *value, void *unused) {
    const long n = read_number(value, "every", 1, 1 << 20);
    (void)unused;
    if (n > 0) ((SlicerObject *)op)->every = (unsigned long)n;
    return n < 0 ? -1 : 0;
}

static PyObject *get_frozen(PyObject *op, void *unused) { (void)unused; return PyLong_FromSize_t(((SlicerObject *)op)->frozen.count); }
static PyObject *get_ordered(PyObject *op, void *unused) { (void)unused; return PyBool_FromLong(((SlicerObject *)op)->lists != NULL); }
static PyObject *get_bytes(PyObject *op, void *unused) {
    const SlicerObject *self = (SlicerObject *)op;
    (void)unused;
    return PyLong_FromSize_t(slicer_bytes(self));
}

/* An object that stands for a place in a list, in none at first. */
static PyObject *new_position(void) {
    PyObject *position = PyList_New(0);
    if (position != NULL) list_leave(position);
    return position;
}

static int make_positions(SlicerObject *self) {
    for (size_t i = 0; i < SLICER_WINDOW; i++)
        if ((self->markers[i] = PyList_New(0)) == NULL) return 0;
    return (self->cursor = new_position()) != NULL && (self->frozen_end = new_position()) != NULL;
}

/* Slicer(core, collect) */
static PyObject *slicer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *core, *collect;
    const tw_hot_state *state = PyType_GetModuleState(type);
    if (state == NULL || kwargs != NULL || !PyArg_ParseTuple(args, "O!O", state->core_type, &core, &collect)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "Slicer(core, collect) takes no keyword arguments");
        return NULL;
    }
    SlicerObject *self = (SlicerObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) return NULL;
    self->core = (CoreObject *)Py_NewRef(core);
    self->collect = Py_NewRef(collect);
    self->idle_type = (PyTypeObject *)Py_NewRef((PyObject *)state->idle_type);
    self->uv_type = (PyTypeObject *)Py_NewRef((PyObject *)state->uv_type);
    self->every = 1;
    if ((self->zero = PyLong_FromLong(0)) != NULL && make_positions(self)) return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return NULL;
}

static int slicer_traverse(PyObject *op, visitproc visit_one, void *arg) {
    SlicerObject *self = (SlicerObject *)op;
    PyObject *parts[] = {(PyObject *)Py_TYPE(op), (PyObject *)self->core, self->collect, (PyObject *)self->idle_type, (PyObject *)self->uv_type};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i] != NULL && visit_one(parts[i], arg)) return 1;
    return 0;
}

static int slicer_clear(PyObject *op) {
    Py_CLEAR(((SlicerObject *)op)->collect);
    return 0;
}

static void slicer_dealloc(PyObject *op) {
    SlicerObject *self = (SlicerObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (self->core != NULL && self->core->steps.after_of == self) hook(self, 0);
    Py_XDECREF((PyObject *)self->core);
    Py_XDECREF(self->collect);
    Py_XDECREF(self->zero);
    for (size_t i = 0; i < SLICER_WINDOW; i++) Py_XDECREF(self->markers[i]);
    Py_XDECREF((PyObject *)self->idle_type);
    Py_XDECREF((PyObject *)self->uv_type);
    order_abandon(self);
    order_let_go_of_all(self);
    order_free(self);
    tw_addresses_clear(&self->frozen);
    tw_marks_clear(&self->marks);
    Py_XDECREF(self->cursor);
    Py_XDECREF(self->frozen_end);
    PyMem_Free(self->found);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF((PyObject *)type);
}

static PyObject *slicer_uv(PyObject *op, PyObject *args) {
    const char *path;
    PyObject *capsule;
    if (!PyArg_ParseTuple(args, "sO", &path, &capsule)) return NULL;
    return libuv_idle_slots_new((SlicerObject *)op, path, capsule);
}

static PyObject *slicer_select(PyObject *op, PyObject *args) {
    PyObject *selector;
    int calls_fd = -1;
    if (!PyArg_ParseTuple(args, "O|i", &selector, &calls_fd)) return NULL;
    return idle_select_new((SlicerObject *)op, selector, calls_fd);
}

static PyMethodDef methods[] = {
    {"slice", slicer_slice, METH_VARARGS,
     "slice(budget, seeds=None, reason=5, most_ns=0, /)\n--\n\nOne slice. (objects moved, objects freed, ns), None while a collection is under way."},
    {"locate", slicer_locate, METH_VARARGS,
     "locate(thresholds, aged, older, most, /)\n--\n\nWhether the collector's lists are where this layout has them."},
    {"freeze", slicer_freeze, METH_O, "freeze(call, /)\n--\n\nCalls gc.freeze, as given, and sync_frozen() before any other thread runs."},
    {"select", slicer_select, METH_VARARGS, "select(selector, calls_fd=-1, /)\n--\n\nWhat a selector may have for its select(): slices run while it would wait."},
    {"uv", slicer_uv, METH_VARARGS, "uv(path, loop, /)\n--\n\nUse the waiting of a libuv loop, given as uvloop gives it; path of the library that exports libuv."},
    {"counts", slicer_counts, METH_NOARGS, "counts()\n--\n\nSlices by reason, objects moved and freed, ns, and what is to be done."},
    {"run_idle", slicer_run_idle, METH_VARARGS, "run_idle(idle=False, /)\n--\n\nThe last request has ended, or (idle) none was there: slices, for two milliseconds at most."},
    {"whole", slicer_whole, METH_VARARGS, "whole(reason=5, /)\n--\n\nA full collection of what is not frozen. Objects freed, None while a collection is under way."},
    {"after_fork", slicer_after_fork, METH_NOARGS, "after_fork()\n--\n\nIn a fork child: its counts begin at zero."},
    {"sync_frozen", slicer_sync_frozen, METH_NOARGS, "sync_frozen()\n--\n\nHow many objects are frozen that were not known to be; now they are."},
    {"abandon", slicer_abandon, METH_NOARGS, "abandon()\n--\n\nThe cycle that is under way is given up; what it holds the next slices let go of."},
    {"round", slicer_round, METH_NOARGS, "round()\n--\n\nThe whole old heap is to be looked at, as soon as may be."},
    {"forget", slicer_forget, METH_NOARGS, "forget()\n--\n\nNothing is frozen any more."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef getters[] = {
    {"frozen", get_frozen, NULL, "Objects known to be frozen.", NULL},
    {"ordered", get_ordered, NULL, "Whether old objects are found by themselves, the oldest first.", NULL},
    {"bytes", get_bytes, NULL, "Memory it takes.", NULL},
    {"on", get_on, set_on, "Whether idle slots are used.", NULL},
    {"due", get_due, NULL, "Whether there is anything to do in an idle slot.", NULL},
    {"midway", get_midway, NULL, "Whether a cycle is under way.", NULL},
    {"force", get_force, set_force, "What idle slots are used for, fit or not: 0 what is due, 1 a slice, 2 a full collection, once.", NULL},
    {"every", get_every, set_every, "Of so many engine steps one is an idle slot.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "The old heap collected in slices: Slicer(core, collect)."},
    {Py_tp_new, slicer_new},
    {Py_tp_dealloc, slicer_dealloc},
    {Py_tp_traverse, slicer_traverse},
    {Py_tp_clear, slicer_clear},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {0, NULL}};
PyType_Spec tw_slicer_spec = {"tailwatch._hot.Slicer", sizeof(SlicerObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
