/* tailwatch._hot.Sweep: what Python calls of the idle-time collection, and where it hooks in. */
#include "python/gc/cycle_detect.h"
#include "python/gc/garbage_scc.h"
#include "python/gc/idle_libuv.h"
#include "python/gc/idle_selector.h"
#include "python/gc/idle_slots.h"

#define MOST_BUDGET 1000000

/* ---- when it is called ---- */

static int other_begins(void *of, tw_cause cause, int generation) {
    (void)cause;
    if (generation >= 0) sweep_other_begins(of, generation >= 2);
    return generation >= 2; /* what was held ends before others' callbacks are called */
}

static void other_ends(void *of, tw_cause cause, int generation, const uint64_t *collected) {
    (void)cause;
    if (generation >= 0 && collected != NULL) sweep_other_ended(of, generation >= 2, *collected);
}

static void step_ends(void *of, uint64_t now_ns, uint64_t lasted_ns, uint64_t waiting) {
    moments_step(of, now_ns, lasted_ns, waiting);
}

static void hook(SweepObject *self, int on) {
    CoreObject *core = self->core;
    core->on_pause[ON_PAUSE_SWEEP] = on ? (pause_hook){self, other_begins, other_ends} : (pause_hook){NULL, NULL, NULL};
    core->steps.after = on ? step_ends : NULL;
    core->steps.after_of = on ? self : NULL;
    core->gc.reads_heap = !on;
}

/* ---- methods ---- */

/* slice(budget, seeds=None, moment=5: requested, most_ns=0): one slice, a pause of cause "policy", whose walk lasts about so long at
 * most (0: as long as its looks take). (objects moved, objects freed, ns); None while a collection is under way. */
static PyObject *sweep_slice(PyObject *op, PyObject *args) {
    Py_ssize_t budget;
    PyObject *seeds = Py_None;
    int moment = TW_MOMENT_REQUESTED;
    unsigned long long most_ns = 0;
    sweep_done done = {{0, 0, 0, 0, 0, TW_WALK_COUNT, 0}, 0};
    if (!PyArg_ParseTuple(args, "n|OiK", &budget, &seeds, &moment, &most_ns)) return NULL;
    if (budget < 0 || budget > MOST_BUDGET) return PyErr_Format(PyExc_ValueError, "budget: expected 0 to %d objects, found %zd", MOST_BUDGET, budget);
    if (moment < 0 || moment >= TW_MOMENTS) return PyErr_Format(PyExc_ValueError, "moment: expected 0 to %d, found %d", TW_MOMENTS - 1, moment);
    const int ran = sweep_run((SweepObject *)op, (tw_moment)moment, seeds, (sweep_budget){(size_t)budget, most_ns}, &done);
    if (ran > 0) Py_RETURN_NONE;
    return ran < 0 ? NULL : Py_BuildValue("nnK", (Py_ssize_t)done.slice.moved, (Py_ssize_t)done.slice.freed, (unsigned long long)done.ns);
}

/* whole(moment=5: requested): everything that is not frozen. Objects freed; None while a collection is under way. */
static PyObject *sweep_whole(PyObject *op, PyObject *args) {
    int moment = TW_MOMENT_REQUESTED;
    size_t freed;
    if (!PyArg_ParseTuple(args, "|i", &moment)) return NULL;
    if (moment < 0 || moment >= TW_MOMENTS) return PyErr_Format(PyExc_ValueError, "moment: expected 0 to %d, found %d", TW_MOMENTS - 1, moment);
    const int ran = sweep_pass((SweepObject *)op, (tw_moment)moment, &freed);
    if (ran > 0) Py_RETURN_NONE;
    return ran < 0 ? NULL : PyLong_FromSize_t(freed);
}

/* abandon(): the cycle that is under way is given up, and what it holds let go of. Its end may run anything. */
static PyObject *sweep_abandon(PyObject *op, PyObject *unused) {
    (void)unused;
    walk_abandon((SweepObject *)op);
    walk_let_go((SweepObject *)op);
    Py_RETURN_NONE;
}

static PyObject *get_midway(PyObject *op, void *unused) { (void)unused; return PyBool_FromLong(((SweepObject *)op)->phase != SWEEP_RESTS); }
static PyObject *get_on(PyObject *op, void *unused) { (void)unused; return PyBool_FromLong(((SweepObject *)op)->on); }
static int set_on(PyObject *op, PyObject *value, void *unused) {
    const int on = value == NULL ? 0 : PyObject_IsTrue(value);
    (void)unused;
    if (on < 0) return -1;
    SweepObject *self = (SweepObject *)op;
    self->on = on;
    hook(self, on);
    if (!on) walk_abandon(self), walk_let_go(self);
    return 0;
}
/* rest(idle=False): the last request has ended, or none was there. Slices for two milliseconds at most. */
static PyObject *sweep_run_idle(PyObject *op, PyObject *args) {
    int idle = 0;
    if (!PyArg_ParseTuple(args, "|p", &idle)) return NULL;
    moments_rest((SweepObject *)op, idle ? TW_MOMENT_IDLE : TW_MOMENT_REQUEST);
    Py_RETURN_NONE;
}

static int put(PyObject *dict, const char *name, uint64_t value) {
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    const int failed = number == NULL || PyDict_SetItemString(dict, name, number) < 0;
    Py_XDECREF(number);
    return failed ? -1 : 0;
}

static int put_moments(PyObject *dict, const tw_pace *pace) {
    for (int i = 0; i < TW_MOMENTS; i++)
        if (put(dict, tw_moment_name(i), pace->made[i]) < 0) return -1;
    return 0;
}

static uint64_t passes_of(const SweepObject *self) {
    const uint64_t *passes = self->core->segment->policy.counts.collections;
    uint64_t n = 0;
    for (int i = 0; i < TW_MOMENTS; i++) n += tw_load(&passes[i]);
    return n;
}

/* counts(): what it did, by what gave the moment, and what it is to do. */
static PyObject *sweep_counts(PyObject *op, PyObject *unused) {
    const tw_pace *pace = &((SweepObject *)op)->pace;
    (void)unused;
    PyObject *dict = PyDict_New();
    if (dict == NULL) return NULL;
    if (put_moments(dict, pace) == 0 && put(dict, "looks", pace->looks) == 0 && put(dict, "moved", pace->moved) == 0 && put(dict, "freed", pace->freed) == 0 &&
        put(dict, "ns", pace->ns) == 0 && put(dict, "predicted_ns", pace->predicted_ns) == 0 &&
        put(dict, "backlog", pace->backlog) == 0 && put(dict, "old", pace->old) == 0 && put(dict, "cycles", pace->cycles) == 0 && put(dict, "short_cycles", pace->shorts) == 0 &&
        put(dict, "whole", (uint64_t)(((SweepObject *)op)->whole && ((SweepObject *)op)->phase != SWEEP_RESTS)) == 0 &&
        put(dict, "tangled", (uint64_t)((SweepObject *)op)->tangled) == 0 && put(dict, "held", order_held((SweepObject *)op)) == 0 &&
        put(dict, "parts", ((SweepObject *)op)->order.n_parts) == 0 &&
        put(dict, "cost_ns", tw_pace_dearest(pace)) == 0 &&
        put(dict, "young", sweep_young_of((SweepObject *)op)) == 0 &&
        put(dict, "collections", passes_of((SweepObject *)op)) == 0)
        return dict;
    Py_DECREF(dict);
    return NULL;
}

static PyObject *sweep_round(PyObject *op, PyObject *unused) {
    (void)unused;
    ((SweepObject *)op)->whole_wanted = 1;
    tw_pace_want_cycle(&((SweepObject *)op)->pace);
    Py_RETURN_NONE;
}

/* In a fork child: its counts are its own, its heap and what is frozen of it are as the parent's were. A slice goes on if
 * its finalizer forked; one of another thread never ends, as that thread is not there. */
static PyObject *sweep_after_fork(PyObject *op, PyObject *unused) {
    SweepObject *self = (SweepObject *)op;
    (void)unused;
    tw_pace_begin_again(&self->pace);
    self->born += 1;
    if (self->busy != this_thread()) self->busy = 0;
    self->force = SWEEP_WHAT_FITS;
    Py_RETURN_NONE;
}

static PyObject *get_due(PyObject *op, void *unused) { (void)unused; return PyBool_FromLong(moments_due((SweepObject *)op)); }
static PyObject *get_force(PyObject *op, void *unused) { (void)unused; return PyLong_FromLong(((SweepObject *)op)->force); }
static PyObject *get_every(PyObject *op, void *unused) { (void)unused; return PyLong_FromUnsignedLong(((SweepObject *)op)->every); }

/* A number in a range; -1: an exception is set. */
static long read_number(PyObject *value, const char *what, long least, long most) {
    const long n = value == NULL ? -1 : PyLong_AsLong(value);
    if (n >= least && n <= most) return n;
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "%s: expected %ld to %ld", what, least, most);
    return -1;
}

static int set_force(PyObject *op, PyObject *value, void *unused) {
    const long n = read_number(value, "force", SWEEP_WHAT_FITS, SWEEP_PASS);
    (void)unused;
    if (n >= 0) ((SweepObject *)op)->force = (int)n;
    return n < 0 ? -1 : 0;
}

static int set_every(PyObject *op, PyObject *value, void *unused) {
    const long n = read_number(value, "every", 1, 1 << 20);
    (void)unused;
    if (n > 0) ((SweepObject *)op)->every = (unsigned long)n;
    return n < 0 ? -1 : 0;
}

static PyObject *get_frozen(PyObject *op, void *unused) { (void)unused; return PyLong_FromSize_t(((SweepObject *)op)->frozen.count); }
static PyObject *get_ordered(PyObject *op, void *unused) { (void)unused; return PyBool_FromLong(((SweepObject *)op)->lists != NULL); }
static PyObject *get_bytes(PyObject *op, void *unused) {
    const SweepObject *self = (SweepObject *)op;
    (void)unused;
    return PyLong_FromSize_t(sweep_bytes(self));
}

/* An object that stands for a place in a list, in none at first. */
static PyObject *new_position(void) {
    PyObject *position = PyList_New(0);
    if (position != NULL) list_leave(position);
    return position;
}

static int make_positions(SweepObject *self) {
    for (size_t i = 0; i < SWEEP_WINDOW; i++)
        if ((self->markers[i] = PyList_New(0)) == NULL) return 0;
    return (self->cursor = new_position()) != NULL && (self->frozen_end = new_position()) != NULL;
}

/* Sweep(core, collect) */
static PyObject *sweep_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *core, *collect;
    const tw_hot_state *state = PyType_GetModuleState(type);
    if (state == NULL || kwargs != NULL || !PyArg_ParseTuple(args, "O!O", state->core_type, &core, &collect)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "Sweep(core, collect) takes no keyword arguments");
        return NULL;
    }
    SweepObject *self = (SweepObject *)PyType_GenericAlloc(type, 0);
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

static int sweep_traverse(PyObject *op, visitproc visit_one, void *arg) {
    SweepObject *self = (SweepObject *)op;
    PyObject *parts[] = {(PyObject *)Py_TYPE(op), (PyObject *)self->core, self->collect, (PyObject *)self->idle_type, (PyObject *)self->uv_type};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i] != NULL && visit_one(parts[i], arg)) return 1;
    return 0;
}

static int sweep_clear(PyObject *op) {
    Py_CLEAR(((SweepObject *)op)->collect);
    return 0;
}

static void sweep_dealloc(PyObject *op) {
    SweepObject *self = (SweepObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (self->core != NULL && self->core->steps.after_of == self) hook(self, 0);
    Py_XDECREF((PyObject *)self->core);
    Py_XDECREF(self->collect);
    Py_XDECREF(self->zero);
    for (size_t i = 0; i < SWEEP_WINDOW; i++) Py_XDECREF(self->markers[i]);
    Py_XDECREF((PyObject *)self->idle_type);
    Py_XDECREF((PyObject *)self->uv_type);
    order_abandon(self);
    order_let_go(self);
    order_free(self);
    tw_addresses_clear(&self->frozen);
    tw_marks_clear(&self->marks);
    Py_XDECREF(self->cursor);
    Py_XDECREF(self->frozen_end);
    PyMem_Free(self->found);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF((PyObject *)type);
}

static PyObject *sweep_uv(PyObject *op, PyObject *args) {
    const char *path;
    PyObject *capsule;
    if (!PyArg_ParseTuple(args, "sO", &path, &capsule)) return NULL;
    return uv_moments_new((SweepObject *)op, path, capsule);
}

static PyObject *sweep_select(PyObject *op, PyObject *selector) { return idle_select_new((SweepObject *)op, selector); }

static PyMethodDef methods[] = {
    {"slice", sweep_slice, METH_VARARGS,
     "slice(budget, seeds=None, moment=5, most_ns=0, /)\n--\n\nOne slice. (objects moved, objects freed, ns), None while a collection is under way."},
    {"locate", sweep_locate, METH_VARARGS,
     "locate(thresholds, aged, older, most, /)\n--\n\nWhether the collector's lists are where this layout has them."},
    {"freeze", sweep_freeze, METH_O, "freeze(call, /)\n--\n\nCalls gc.freeze, as given, and sync_frozen() before any other thread runs."},
    {"select", sweep_select, METH_O, "select(selector, /)\n--\n\nWhat a selector may have for its select(): slices run while it would wait."},
    {"uv", sweep_uv, METH_VARARGS, "uv(path, loop, /)\n--\n\nUse the waiting of a libuv loop, given as uvloop gives it; path of the library that exports libuv."},
    {"counts", sweep_counts, METH_NOARGS, "counts()\n--\n\nSlices by what gave the moment, objects moved and freed, ns, and what is to be done."},
    {"run_idle", sweep_run_idle, METH_VARARGS, "run_idle(idle=False, /)\n--\n\nThe last request has ended, or (idle) none was there: slices, for two milliseconds at most."},
    {"whole", sweep_whole, METH_VARARGS, "whole(moment=5, /)\n--\n\nA full collection of what is not frozen. Objects freed, None while a collection is under way."},
    {"after_fork", sweep_after_fork, METH_NOARGS, "after_fork()\n--\n\nIn a fork child: its counts begin at zero."},
    {"sync_frozen", sweep_sync_frozen, METH_NOARGS, "sync_frozen()\n--\n\nHow many objects are frozen that were not known to be; now they are."},
    {"abandon", sweep_abandon, METH_NOARGS, "abandon()\n--\n\nThe cycle that is under way is given up."},
    {"round", sweep_round, METH_NOARGS, "round()\n--\n\nThe whole old heap is to be looked at, as soon as may be."},
    {"forget", sweep_forget, METH_NOARGS, "forget()\n--\n\nNothing is frozen any more."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef getters[] = {
    {"frozen", get_frozen, NULL, "Objects known to be frozen.", NULL},
    {"ordered", get_ordered, NULL, "Whether old objects are found by themselves, the oldest first.", NULL},
    {"bytes", get_bytes, NULL, "Memory it takes.", NULL},
    {"on", get_on, set_on, "Whether idle moments are used.", NULL},
    {"due", get_due, NULL, "Whether there is anything to do, in a moment.", NULL},
    {"midway", get_midway, NULL, "Whether a cycle is under way.", NULL},
    {"force", get_force, set_force, "What moments are used for, fit or not: 0 what is due, 1 a slice, 2 a full collection, once.", NULL},
    {"every", get_every, set_every, "Of so many engine steps one gives a moment.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "The old heap collected in slices: Sweep(core, collect)."},
    {Py_tp_new, sweep_new},
    {Py_tp_dealloc, sweep_dealloc},
    {Py_tp_traverse, sweep_traverse},
    {Py_tp_clear, sweep_clear},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {0, NULL}};
PyType_Spec tw_sweep_spec = {"tailwatch._hot.Sweep", sizeof(SweepObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
