/* Two callables that bracket everything in gc.callbacks: one stands first, one last.
 *
 * Both are called at both edges, in list order: first opens the outer bracket and closes the inner one, last
 * opens the inner one and closes the outer one. The outer bracket is the pause; between the two run other
 * code's callbacks. They may be entered inside an allocation, on any thread that holds the
 * GIL: no allocation, no lock, no Python. The pause is recorded first, at both edges; then the on_pause table runs
 * (core_pause_begins, core_pause_ends). Its work at the end of a collection is therefore not part of the recorded pause.
 */
#include "python/gc/callbacks.h"

#include "python/gc/gc_state.h"
#include "python/group.h"
#include "python/membership.h"

/* "start" or "stop": distinguished by their length, the cheapest look at a str. */
static int is_start(PyObject *phase) { return PyUnicode_GetLength(phase) == 5; }

/* A key of the info dict, by its length and first letter. */
typedef struct { Py_ssize_t length; Py_UCS4 first; } info_key;
static const info_key GENERATION = {10, 'g'}, COLLECTED = {9, 'c'}, UNCOLLECTABLE = {13, 'u'};

static int is_key(PyObject *key, info_key wanted) {
    return PyUnicode_Check(key) && PyUnicode_GetLength(key) == wanted.length && PyUnicode_ReadChar(key, 0) == wanted.first;
}

/* 0 for anything that is no number of objects. CPython makes the dict anew for each collection, and a look-up
 * would hash its key each time: walking its few keys is three times as fast. */
static long info_number(PyObject *info, info_key wanted) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(info, &at, &key, &value)) {
        if (!is_key(key, wanted)) continue;
        const long number = PyLong_Check(value) ? PyLong_AsLong(value) : 0;
        if (number == -1) PyErr_Clear();
        return number < 0 ? 0 : number;
    }
    return 0;
}

static tw_cause cause_of(const CoreObject *core, long generation) {
    if (core->gc.mode == 2) return TW_CAUSE_GC_FULL;
    if (core->gc.mode == 1 && generation == 1) return TW_CAUSE_GC_INCREMENT;
    if (core->gc.mode == 1 && generation == 2) return TW_CAUSE_GC_FULL;
    return generation <= 0 ? TW_CAUSE_GC0 : generation == 1 ? TW_CAUSE_GC1 : TW_CAUSE_GC2;
}

static __attribute__((noinline, cold)) void record_end(CoreObject *core, uint64_t stop_ns, const tw_pause_result *result) {
    const tw_cause cause = cause_of(core, core->gc.generation);
    tw_recorder_paused(&core->trace.recorder, &core->segment->pause, cause, core->gc.start_ns, stop_ns, result);
}

/* Its end was not seen: the list of callbacks lost it. */
static void count_lost(CoreObject *core) {
    tw_add(&core->segment->errors[TW_ERROR_GC_HOOK], 1);
    core->gc.open = 0;
    core_pause_ends(core, cause_of(core, core->gc.generation), core->gc.generation, NULL);
}

/* The collection that was open never reported its end (its callback was taken out of the list meanwhile). */
static void forget_open(CoreObject *core, uint64_t now) {
    if (core->pass.depth > 0) tw_segment_pause_end(core->segment, now, NULL);
    else tw_pause_cancel(&core->segment->pause);
    if (core_records(core)) tw_recorder_pause(&core->trace.recorder, &core->segment->pause);
    count_lost(core);
}

/* The collection is over, but the list lost our last callable's turn (another took itself out of it while it
 * was walked): it ended no later than our first callable saw it end. */
static void settle(CoreObject *core, uint64_t now) {
    if (core->gc.inner_stop_ns == 0) {
        forget_open(core, now);
        return;
    }
    tw_segment_pause_end(core->segment, core->gc.inner_stop_ns, NULL);
    if (core_records(core)) record_end(core, core->gc.inner_stop_ns, NULL);
    count_lost(core);
}

static Py_ssize_t size_of(PyObject *callbacks) { return callbacks == NULL ? 0 : PyList_Size(callbacks); }

/* No other callbacks lie between the brackets: the inner one needs no time of its own. */
static int alone(const CoreObject *core) { return core->gc.callbacks != NULL && PyList_Size(core->gc.callbacks) == 2; }

static int valid(PyObject *const *args, Py_ssize_t nargs) {
    return nargs == 2 && PyUnicode_Check(args[0]) && PyDict_Check(args[1]);
}

#define FULL 2 /* the oldest generation: all of them */

static void count_early(CoreObject *core, int pass) {
    tw_policy_counts *counts = &core->segment->policy.counts;
    if (core->gc.generation == FULL) tw_add(&counts->early_full, 1);
    if (pass == TW_COLLECTION_EXTERNAL) tw_add(&counts->early_external, 1);
}

/* Whose collection begins: not asked of those inside an interval of our own. */
static void count_pass(CoreObject *core) {
    const core_gc *gc = &core->gc;
    const int pass = gc->heap == NULL ? TW_COLLECTION_UNKNOWN : heap_is_due(gc->heap, gc->generation) ? TW_COLLECTION_AUTOMATIC : TW_COLLECTION_EXTERNAL;
    if (core->pass.depth > 0) return;
    tw_add(&core->segment->policy.counts.collections[pass], 1);
    if (__builtin_expect(!core_has_served(core), 0)) count_early(core, pass);
}

PyObject *core_gc_first(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    CoreObject *core = (CoreObject *)self;
    if (!valid(args, nargs)) Py_RETURN_NONE;
    if (!is_start(args[0])) {
        if (!alone(core)) core->gc.inner_stop_ns = tw_now_ns(), core->gc.stop_callbacks = size_of(core->gc.callbacks);
        Py_RETURN_NONE;
    }
    if (__builtin_expect(*core->epoch == 0, 0)) core_reborn(core);
    if (core->gc.open) settle(core, tw_now_ns());
    core->gc.generation = (int)info_number(args[1], GENERATION);
    const tw_cause cause = cause_of(core, core->gc.generation);
    const uint64_t now = tw_now_ns();
    tw_pause_begin(&core->segment->pause, cause, now);
    if (core_records(core)) tw_recorder_pause(&core->trace.recorder, &core->segment->pause);
    core->gc.open = 1;
    count_pass(core);
    core->gc.start_ns = core->gc.others_start_ns = now;
    core->gc.inner_start_ns = core->gc.inner_stop_ns = 0;
    core->gc.cpu_start_ns = core->gc.generation > 0 ? tw_thread_cpu_ns() : 0;
    if (core_pause_begins(core, cause, core->gc.generation)) core->gc.others_start_ns = tw_now_ns();
    Py_RETURN_NONE;
}

/* A side whose inner edge was not seen (the list changed meanwhile) counts as 0. */
static uint64_t callbacks_ns(const CoreObject *core, uint64_t now) {
    const uint64_t start = core->gc.others_start_ns;
    const uint64_t before = core->gc.inner_start_ns > start ? core->gc.inner_start_ns - start : 0;
    return before + (core->gc.inner_stop_ns != 0 ? now - core->gc.inner_stop_ns : 0);
}

/* The books go on counting what a gc.freeze() of other code froze, and what grew old and died since the last collection
 * of all: so they are trusted for what they grew by since objects were counted, and not beyond the growth at which the
 * interpreter would count anew. */
static uint64_t grown(const core_gc *gc) {
    const uint64_t books = heap_unfrozen(gc->heap);
    return books > gc->booked ? books - gc->booked : 0;
}

enum { FEW_OBJECTS = 1000 };

static void publish_heap(const CoreObject *core) {
    const core_gc *gc = &core->gc;
    if (gc->heap == NULL || !gc->reads_heap) return;
    const bool is_known = grown(gc) <= gc->counted / 4 + FEW_OBJECTS;
    tw_policy_heap(&core->segment->policy, is_known ? gc->counted + grown(gc) : UINT64_MAX);
}

static void close_outer(CoreObject *core, PyObject *info) {
    tw_pause_result result = {0, 0, 0, 0};
    result.collected = (uint64_t)info_number(info, COLLECTED);
    result.uncollectable = (uint64_t)info_number(info, UNCOLLECTABLE);
    if (core->gc.generation > 0) result.cpu_ns = tw_thread_cpu_ns() - core->gc.cpu_start_ns;
    core->gc.open = 0;
    const uint64_t now = tw_now_ns();
    if (core->pass.depth == 0) result.callbacks_ns = callbacks_ns(core, now);
    tw_segment_pause_end(core->segment, now, &result);
    if (core_records(core)) record_end(core, now, &result);
    if (core->gc.heap != NULL && core->gc.generation == 2)
        core->gc.counted = core->gc.booked = heap_unfrozen(core->gc.heap);
    publish_heap(core);
    core_pause_ends(core, cause_of(core, core->gc.generation), core->gc.generation, &result.collected);
}

PyObject *core_gc_last(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    CoreObject *core = (CoreObject *)self;
    if (!valid(args, nargs)) Py_RETURN_NONE;
    if (is_start(args[0])) core->gc.inner_start_ns = alone(core) ? core->segment->pause.open_start_ns : tw_now_ns();
    else if (core->gc.open) close_outer(core, args[1]);
    Py_RETURN_NONE;
}

static int can_close(const CoreObject *core) {
    const Py_ssize_t n = core->gc.callbacks == NULL ? 0 : PyList_Size(core->gc.callbacks);
    for (Py_ssize_t i = n - 1; i >= 0; i--)
        if (PyList_GetItem(core->gc.callbacks, i) == core->gc.closer) return 1;
    return 0;
}

/* Others' callbacks may hand the GIL on here, and our last one still comes: it has lost its turn only where the list
 * got shorter meanwhile. */
static int lost_turn(const CoreObject *core) {
    return core->gc.inner_stop_ns != 0 && size_of(core->gc.callbacks) < core->gc.stop_callbacks;
}

void core_verify_pause(CoreObject *core) {
    if (core->gc.open && (lost_turn(core) || !can_close(core))) settle(core, tw_now_ns());
}

/* ---- methods of Core ---- */

/* watch_gc(mode, callbacks, closer) */
PyObject *core_watch_gc(PyObject *op, PyObject *args) {
    CoreObject *self = (CoreObject *)op;
    PyObject *callbacks, *closer;
    int mode;
    if (!PyArg_ParseTuple(args, "iOO", &mode, &callbacks, &closer)) return NULL;
    if (!PyList_Check(callbacks) || mode < 0 || mode > 2) {
        PyErr_SetString(PyExc_ValueError, "watch_gc: expected a mode from 0 to 2, the list gc.callbacks and our last callable");
        return NULL;
    }
    PyObject *old = self->gc.callbacks;
    self->gc.callbacks = Py_NewRef(callbacks);
    self->gc.closer = closer;
    self->gc.mode = mode;
    self->gc.heap = heap_find(callbacks);
    self->gc.counted = self->gc.booked = self->gc.heap != NULL ? heap_unfrozen(self->gc.heap) : 0;
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

/* Only the collection: an interval of our own on another thread goes on. */
PyObject *core_cancel_pause(PyObject *op, PyObject *unused) {
    (void)unused;
    core_verify_pause((CoreObject *)op);
    Py_RETURN_NONE;
}

PyObject *core_paused_now(PyObject *op, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(tw_pause_is_open(&((CoreObject *)op)->segment->pause));
}

PyObject *core_last_was_full(PyObject *op, void *unused) {
    const CoreObject *self = (CoreObject *)op;
    (void)unused;
    return PyBool_FromLong(!self->gc.open && self->gc.generation == 2);
}

PyObject *core_unfrozen(PyObject *op, void *unused) {
    const CoreObject *self = (CoreObject *)op;
    (void)unused;
    if (self->gc.heap == NULL) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(self->gc.counted + grown(&self->gc));
}

PyObject *core_promoted(PyObject *op, void *unused) {
    const CoreObject *self = (CoreObject *)op;
    (void)unused;
    if (self->gc.heap == NULL) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(heap_promoted(self->gc.heap));
}

static void counted_is(CoreObject *core, uint64_t objects) {
    core->gc.counted = objects;
    core->gc.booked = heap_unfrozen(core->gc.heap);
    publish_heap(core);
}

PyObject *core_heap_is_frozen(PyObject *op, PyObject *objects) {
    CoreObject *self = (CoreObject *)op;
    const uint64_t frozen = PyLong_AsUnsignedLongLong(objects);
    if (PyErr_Occurred() != NULL) return NULL;
    if (self->gc.heap != NULL) {
        const uint64_t books = heap_unfrozen(self->gc.heap);
        counted_is(self, books > frozen ? books - frozen : 0);
    }
    Py_RETURN_NONE;
}

PyObject *core_count_heap(PyObject *op, PyObject *unused) {
    CoreObject *self = (CoreObject *)op;
    (void)unused;
    if (self->gc.heap == NULL || !self->gc.reads_heap) Py_RETURN_NONE;
    const uint64_t n = heap_count(self->gc.heap, FEW_OBJECTS);
    if (n != UINT64_MAX) counted_is(self, n);
    Py_RETURN_NONE;
}
