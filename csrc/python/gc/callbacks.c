/* Two callables that bracket everything in gc.callbacks: one stands first, one last.
 *
 * Both are called at both edges, in list order: first opens the outer bracket and closes the inner one, last
 * opens the inner one and closes the outer one. The outer bracket is the pause; what lies between the two
 * is other people's callbacks. They may be entered inside an allocation, on any thread that holds the
 * GIL: no allocation, no lock, no Python. Only where an NVTX tool listens is it called, too.
 */
#include "python/nvtx/ranges.h"
#include "python/gc/idle_gc.h"
#include "python/trace.h"

/* "start" or "stop": told apart by their length, the cheapest look at a str. */
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
    if (core->gc_mode == 2) return TW_CAUSE_GC_FULL;
    if (core->gc_mode == 1 && generation == 1) return TW_CAUSE_GC_INCREMENT;
    if (core->gc_mode == 1 && generation == 2) return TW_CAUSE_GC_FULL;
    return generation <= 0 ? TW_CAUSE_GC0 : generation == 1 ? TW_CAUSE_GC1 : TW_CAUSE_GC2;
}

static __attribute__((noinline, cold)) void record_end(CoreObject *core, uint64_t stop_ns, const tw_pause_result *result) {
    const tw_cause cause = cause_of(core, core->gc_generation);
    tw_recorder_paused(&core->recorder, &core->segment->pause, cause, core->gc_start_ns, stop_ns, result);
}

/* The collection that was open never reported its end (its callback was taken out of the list meanwhile). */
static void forget_open(CoreObject *core, uint64_t now) {
    if (core->policy_depth > 0) tw_segment_pause_end(core->segment, now, NULL);
    else tw_pause_cancel(&core->segment->pause);
    core_tell(core);
    if (core_records(core)) tw_recorder_pause(&core->recorder, &core->segment->pause);
    tw_add(&core->segment->errors[TW_ERROR_GC_HOOK], 1);
    core->gc_open = 0;
    if (core->nvtx_gc) nvtx_gc_pop(core);
}

/* The collection is over, but the list lost our last callable's turn (somebody took himself out of it while it
 * was walked): it ended no later than our first callable saw it end. */
static void settle(CoreObject *core, uint64_t now) {
    if (core->inner_stop_ns == 0) {
        forget_open(core, now);
        return;
    }
    core->gc_open = 0;
    tw_segment_pause_end(core->segment, core->inner_stop_ns, NULL);
    core_tell(core);
    if (core_records(core)) record_end(core, core->inner_stop_ns, NULL);
    tw_add(&core->segment->errors[TW_ERROR_GC_HOOK], 1);
    if (core->nvtx_gc) nvtx_gc_pop(core);
}

static Py_ssize_t size_of(PyObject *callbacks) { return callbacks == NULL ? 0 : PyList_Size(callbacks); }

/* Nobody else's callbacks lie between the brackets: the inner one needs no time of its own. */
static int alone(const CoreObject *core) { return core->callbacks != NULL && PyList_Size(core->callbacks) == 2; }

static int valid(PyObject *const *args, Py_ssize_t nargs) {
    return nargs == 2 && PyUnicode_Check(args[0]) && PyDict_Check(args[1]);
}

/* Whose collection begins: not asked of those inside a pass of ours. */
static void count_pass(CoreObject *core) {
    const int pass = core->heap == NULL ? TW_PASS_UNTOLD : heap_is_due(core->heap, core->gc_generation) ? TW_PASS_AUTOMATIC : TW_PASS_FOREIGN;
    if (core->policy_depth == 0) tw_add(&core->segment->policy.counts.passes[pass], 1);
}

PyObject *core_gc_first(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    CoreObject *core = (CoreObject *)self;
    if (!valid(args, nargs)) Py_RETURN_NONE;
    if (!is_start(args[0])) {
        if (!alone(core)) core->inner_stop_ns = tw_now_ns(), core->stop_callbacks = size_of(core->callbacks);
        Py_RETURN_NONE;
    }
    if (__builtin_expect(*core->epoch == 0, 0)) core_reborn(core);
    if (core->gc_open) settle(core, tw_now_ns());
    core->gc_generation = (int)info_number(args[1], GENERATION);
    if (nvtx_on(core)) nvtx_gc_push(core, cause_of(core, core->gc_generation)); /* a tool stamps on entry, and then works */
    const uint64_t now = tw_now_ns();
    tw_pause_begin(&core->segment->pause, cause_of(core, core->gc_generation), now);
    core_tell(core);
    core->gc_start_ns = now;
    if (core_records(core)) tw_recorder_pause(&core->recorder, &core->segment->pause);
    core->gc_open = 1;
    count_pass(core);
    core->inner_start_ns = core->inner_stop_ns = 0;
    core->cpu_start_ns = core->gc_generation > 0 ? tw_thread_cpu_ns() : 0;
    core->others_start_ns = now;
    if (core->sweep != NULL) sweep_other_begins(core->sweep, core->gc_generation >= 2);
    if (core->sweep != NULL && core->gc_generation >= 2) core->others_start_ns = tw_now_ns(); /* what was held ended before */
    Py_RETURN_NONE;
}

/* A side whose inner edge was not seen (the list changed meanwhile) counts as 0. */
static uint64_t callbacks_ns(const CoreObject *core, uint64_t now) {
    const uint64_t start = core->others_start_ns;
    const uint64_t before = core->inner_start_ns > start ? core->inner_start_ns - start : 0;
    return before + (core->inner_stop_ns != 0 ? now - core->inner_stop_ns : 0);
}

static void close_outer(CoreObject *core, PyObject *info) {
    tw_pause_result result = {0, 0, 0, 0};
    result.collected = (uint64_t)info_number(info, COLLECTED);
    result.uncollectable = (uint64_t)info_number(info, UNCOLLECTABLE);
    if (core->gc_generation > 0) result.cpu_ns = tw_thread_cpu_ns() - core->cpu_start_ns;
    core->gc_open = 0;
    if (core->heap != NULL && core->sweep == NULL) tw_policy_heap(&core->segment->policy, heap_unfrozen(core->heap));
    if (core->sweep != NULL) sweep_other_ended(core->sweep, core->gc_generation >= 2, result.collected);
    if (core->nvtx_gc) nvtx_gc_collected(core, cause_of(core, core->gc_generation), result.collected);
    const uint64_t now = tw_now_ns();
    if (core->nvtx_gc) nvtx_gc_pop(core);
    if (core->policy_depth == 0) result.callbacks_ns = callbacks_ns(core, now);
    tw_segment_pause_end(core->segment, now, &result);
    core_tell(core);
    if (core_records(core)) record_end(core, now, &result);
}

PyObject *core_gc_last(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    CoreObject *core = (CoreObject *)self;
    if (!valid(args, nargs)) Py_RETURN_NONE;
    if (is_start(args[0])) core->inner_start_ns = alone(core) ? core->segment->pause.open_start_ns : tw_now_ns();
    else if (core->gc_open) close_outer(core, args[1]);
    Py_RETURN_NONE;
}

static int can_close(const CoreObject *core) {
    const Py_ssize_t n = core->callbacks == NULL ? 0 : PyList_Size(core->callbacks);
    for (Py_ssize_t i = n - 1; i >= 0; i--)
        if (PyList_GetItem(core->callbacks, i) == core->closer) return 1;
    return 0;
}

/* Others' callbacks may hand the GIL to whoever asks here, and our last one still comes: it has lost its turn only where
 * the list got shorter meanwhile. */
static int lost_turn(const CoreObject *core) {
    return core->inner_stop_ns != 0 && size_of(core->callbacks) < core->stop_callbacks;
}

void core_verify_pause(CoreObject *core) {
    if (core->gc_open && (lost_turn(core) || !can_close(core))) settle(core, tw_now_ns());
}
