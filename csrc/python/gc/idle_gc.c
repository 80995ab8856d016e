/* tailwatch._hot.Sweep. Public calls of the collector move objects between its generations: untracked and tracked again,
 * an object is young. Which objects are old, and in what order, is read off the collector's own lists, where their layout
 * was seen to be the known one; elsewhere seeds are what the caller gives.
 *
 * Nothing here may run while a collection does: its lists are then taken apart. Between two lines of C that hold the GIL
 * none can begin.
 */
#include "python/gc/cycle_detect.h"
#include "python/gc/idle_selector.h"
#include "python/gc/scheduler.h"
#include "python/gc/garbage_scc.h"
#include "python/gc/idle_libuv.h"

#include <string.h>

#define MOST_BUDGET 1000000
#define LEAST_ROOM 1024
#define PREV_FLAGS ((uintptr_t)3)  /* finalized, collecting: in the word of the previous one */

/* ---- where the lists are ---- */

/* Python says what the thresholds are; the lists must stand before the same numbers. */
static int thresholds_agree(const gc_list *lists, PyObject *thresholds) {
    for (int i = 0; i < 3; i++) {
        PyObject *item = PyTuple_GetItem(thresholds, i);
        if (item == NULL || PyLong_AsLong(item) != lists[i].threshold) return 0;
    }
    return !PyErr_Occurred();
}

/* Whether the list that a tracked object is in ends in this head, and comes back to the object. */
static int is_in(PyObject *object, const gc_list *list, size_t most) {
    const gc_head *head = gc_head_of(object);
    if ((gc_head *)(gc_next(head)->prev & ~PREV_FLAGS) != head) return 0;
    for (; most-- > 0; head = gc_next(head))
        if (gc_next(head) == &list->head) return 1;
    return 0;
}

/* A new object is the last of generation 0: what comes after it is that list's head, and the others follow. */
static gc_list *lists_by(PyObject *newest, PyObject *thresholds) {
    gc_list *lists = (gc_list *)gc_next(gc_head_of(newest));
    if ((gc_head *)(lists->head.prev & ~PREV_FLAGS) != gc_head_of(newest)) return NULL;
    return thresholds_agree(lists, thresholds) ? lists : NULL;
}

/* Behind the three lists stands a pointer to the first, then the list of the frozen; NULL: that is not so. */
static gc_list *permanent_by(gc_list *lists) {
    gc_head **first = (gc_head **)(lists + 3);
    gc_list *permanent = (gc_list *)(first + 1);
    if (*first != &lists[0].head) return NULL;
    return (gc_head *)(gc_next(&permanent->head)->prev & ~PREV_FLAGS) == &permanent->head ? permanent : NULL;
}

/* The lists, or NULL where they are not as expected; an exception may be set. */
static gc_list *find_lists(PyObject *thresholds) {
    PyObject *newest = PyList_New(0);
    gc_list *lists = newest == NULL ? NULL : lists_by(newest, thresholds);
    Py_XDECREF(newest);
    return lists;
}

/* locate(thresholds, aged, older, most): whether the lists are where they should be. aged has survived one collection of
 * the youngest, older two. For interpreters whose layout is known. */
static PyObject *sweep_locate(PyObject *op, PyObject *args) {
    SweepObject *self = (SweepObject *)op;
    PyObject *thresholds, *aged, *older;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(args, "O!OOn", &PyTuple_Type, &thresholds, &aged, &older, &most)) return NULL;
    gc_list *lists = find_lists(thresholds);
    if (PyErr_Occurred()) return NULL;
    gc_list *permanent = lists == NULL ? NULL : permanent_by(lists);
    const int known = permanent != NULL && PyObject_GC_IsTracked(aged) && PyObject_GC_IsTracked(older) &&
                      is_in(aged, &lists[1], (size_t)most) && is_in(older, &lists[2], (size_t)most);
    self->lists = known ? lists : NULL;
    self->permanent = permanent;
    return PyBool_FromLong(known);
}

/* ---- slices ---- */

static int make_room(SweepObject *self, size_t room) {
    if (room > self->allocated) {
        PyObject **found = PyMem_Realloc(self->found, room * sizeof *found);
        if (found == NULL) return PyErr_NoMemory(), -1;
        self->found = found;
        self->allocated = room;
    }
    self->room = room;
    self->n = 0;
    return 0;
}

/* The seeds are in the list's hands until all is tracked again; then they may die. */
static int move_seeds(SweepObject *self, PyObject *seeds, size_t budget) {
    const Py_ssize_t n = PyList_Size(seeds);
    for (Py_ssize_t i = 0; i < n && self->n < budget; i++) walk_closure(self, PyList_GetItem(seeds, i), budget - self->n);
    walk_move_found(self);
    return n < 0 ? -1 : PyList_SetSlice(seeds, 0, n, NULL);
}

/* -1: an exception is set. */
static int look_on(SweepObject *self, PyObject *seeds, size_t budget, tw_slice *slice) {
    self->moved = self->along = 0;
    if (make_room(self, 2 * (budget > LEAST_ROOM ? budget : LEAST_ROOM) + 64) < 0) return -1;
    if (seeds != Py_None) {
        const int failed = move_seeds(self, seeds, budget);
        slice->moved = self->moved;
        return failed;
    }
    if (self->lists == NULL || budget == 0) return 0;
    self->of_a_dead = tw_pace_of_a_dead(&self->pace);
    slice->looks = walk_on(self, budget);
    walk_move_found(self);
    slice->moved = self->moved;
    return 0;
}

/* By how many the heap has grown since the youngest were collected: an old object that dies is taken off. */
size_t sweep_young_of(const SweepObject *self) {
    return self->lists != NULL && self->lists[0].count > 0 ? (size_t)self->lists[0].count : 0;
}

/* How many young ones there are, which may be more: so many at most. */
size_t sweep_count_young(const SweepObject *self, size_t most) {
    size_t n = 0;
    if (self->lists == NULL) return 0;
    for (gc_head *each = gc_next(&self->lists[0].head); each != &self->lists[0].head && n < most; each = gc_next(each)) n++;
    return n;
}

size_t sweep_young(const SweepObject *self) {
    const size_t n = sweep_count_young(self, SWEEP_MOST_COUNTED), grown = sweep_young_of(self);
    return n == SWEEP_MOST_COUNTED && grown > n ? grown : n;
}

/* The youngest collected, by gc.collect: its callbacks see it, and its finalizers may do what they like. */
static int collect_young(SweepObject *self, size_t *freed) {
    PyObject *number = PyObject_CallFunctionObjArgs(self->collect, self->zero, NULL);
    const Py_ssize_t n = number == NULL ? -1 : PyLong_AsSsize_t(number);
    Py_XDECREF(number);
    *freed = n > 0 ? (size_t)n : 0;
    return n == -1 && PyErr_Occurred() ? -1 : 0;
}

static size_t bytes_of(const SweepObject *self) {
    return tw_addresses_bytes(&self->frozen) + tw_marks_bytes(&self->marks) + self->allocated * sizeof *self->found +
           order_bytes(self);
}

static void tell_heap(const SweepObject *self) {
    tw_policy *policy = &self->core->segment->policy;
    tw_policy_heap(policy, self->pace.old + sweep_young_of(self));
    tw_policy_frozen(policy, self->frozen.count);
    tw_store(&policy->now.debt, self->pace.debt);
    tw_store(&policy->now.bytes, bytes_of(self));
}

static void tell(const SweepObject *self, const tw_pace *before, tw_moment moment) {
    tw_policy_slice(&self->core->segment->policy, before, &self->pace, moment);
    tell_heap(self);
}

/* Of the slice that would be next. */
tw_walk sweep_walk_of(const SweepObject *self) {
    static const tw_walk walks[] = {
        [SWEEP_RESTS] = TW_WALK_COUNT, [SWEEP_COUNT] = TW_WALK_COUNT, [SWEEP_REACH] = TW_WALK_REACH, [SWEEP_TAKE] = TW_WALK_TAKE, [SWEEP_ORDER] = TW_WALK_ORDER, [SWEEP_PARTS] = TW_WALK_PARTS};
    return walks[self->phase];
}

/* Of those that what was moved alone held, as large a part ended as of these. */
static size_t along_with(const SweepObject *self, size_t ended) {
    const size_t others = self->moved - self->along;
    return ended < others ? self->along * ended / others : self->along;
}

int sweep_run(SweepObject *self, tw_moment moment, PyObject *seeds, sweep_budget budget, sweep_done *done) {
    if (self->core->gc_open || self->busy) return 1;
    tw_pace before = self->pace;
    const unsigned born = self->born;
    const uint64_t since = tw_now_ns();
    self->busy = this_thread();
    core_policy_open(self->core);
    const uint64_t began_ns = tw_thread_cpu_ns(); /* what others took meanwhile says nothing about the next slice */
    tw_slice slice = {0, 0, 0, 0, budget.looks, sweep_walk_of(self), 0};
    const size_t young = sweep_young(self), more = sweep_young_of(self);
    self->until_ns = budget.ns == 0 ? 0 : since + budget.ns;
    int failed = look_on(self, seeds, budget.looks, &slice) < 0;
    const size_t ended = walk_let_go(self);
    if (!failed && (slice.moved > 0 || young >= TW_PACE_YOUNG || moment == TW_MOMENT_ASKED)) {
        slice.young = young;
        slice.more = more;
        self->many_young = 0;
        failed = collect_young(self, &slice.freed) < 0;
    }
    slice.freed += ended + along_with(self, slice.freed + ended);
    const uint64_t took_ns = tw_thread_cpu_ns() - began_ns;
    core_policy_close(self->core);
    *done = (sweep_done){slice, tw_now_ns() - since};
    self->busy = 0;
    if (failed) return -1;
    if (self->born != born) tw_pace_begin_again(&before); /* a finalizer forked, and this is the child */
    tw_pace_slice(&self->pace, moment, &slice, took_ns);
    tell(self, &before, moment);
    return 0;
}

/* slice(budget, seeds=None, moment=ASKED, most_ns=0): one slice, a pause of cause "policy", whose walk lasts about so long at
 * most (0: as long as its looks take). (objects moved, objects freed, ns); None while a collection is under way. */
static PyObject *sweep_slice(PyObject *op, PyObject *args) {
    Py_ssize_t budget;
    PyObject *seeds = Py_None;
    int moment = TW_MOMENT_ASKED;
    unsigned long long most_ns = 0;
    sweep_done done = {{0, 0, 0, 0, 0, TW_WALK_COUNT, 0}, 0};
    if (!PyArg_ParseTuple(args, "n|OiK", &budget, &seeds, &moment, &most_ns)) return NULL;
    if (budget < 0 || budget > MOST_BUDGET) return PyErr_Format(PyExc_ValueError, "budget: expected 0 to %d objects, found %zd", MOST_BUDGET, budget);
    if (moment < 0 || moment >= TW_MOMENTS) return PyErr_Format(PyExc_ValueError, "moment: expected 0 to %d, found %d", TW_MOMENTS - 1, moment);
    const int ran = sweep_run((SweepObject *)op, (tw_moment)moment, seeds, (sweep_budget){(size_t)budget, most_ns}, &done);
    if (ran > 0) Py_RETURN_NONE;
    return ran < 0 ? NULL : Py_BuildValue("nnK", (Py_ssize_t)done.slice.moved, (Py_ssize_t)done.slice.freed, (unsigned long long)done.ns);
}

/* What is held no collection would free, nor what that leads to; and after a whole one the round has nothing to find. */
static void give_up_the_round(SweepObject *self) {
    if (self->phase == SWEEP_RESTS) return;
    walk_abandon(self);
    walk_let_go(self);
}

/* Everything that is not frozen, by gc.collect. 0; 1: none, as a collection is under way; -1: an exception is set. */
int sweep_pass(SweepObject *self, tw_moment moment, size_t *freed) {
    if (self->core->gc_open || self->busy) return 1;
    self->busy = this_thread();
    if (self->force == SWEEP_PASS) self->force = SWEEP_WHAT_FITS;
    core_policy_open(self->core);
    give_up_the_round(self);
    const size_t young = sweep_young_of(self);
    PyObject *number = PyObject_CallFunctionObjArgs(self->collect, NULL);
    const Py_ssize_t n = number == NULL ? -1 : PyLong_AsSsize_t(number);
    Py_XDECREF(number);
    const uint64_t ns = core_policy_close(self->core);
    self->busy = 0;
    if (n == -1 && PyErr_Occurred()) return -1;
    *freed = n > 0 ? (size_t)n : 0;
    tw_pace_pass(&self->pace, young, *freed);
    tw_policy_pass(&self->core->segment->policy, moment, ns, *freed);
    tell_heap(self);
    return 0;
}

/* whole(moment=ASKED): everything that is not frozen. Objects freed; None while a collection is under way. */
static PyObject *sweep_whole(PyObject *op, PyObject *args) {
    int moment = TW_MOMENT_ASKED;
    size_t freed;
    if (!PyArg_ParseTuple(args, "|i", &moment)) return NULL;
    if (moment < 0 || moment >= TW_MOMENTS) return PyErr_Format(PyExc_ValueError, "moment: expected 0 to %d, found %d", TW_MOMENTS - 1, moment);
    const int ran = sweep_pass((SweepObject *)op, (tw_moment)moment, &freed);
    if (ran > 0) Py_RETURN_NONE;
    return ran < 0 ? NULL : PyLong_FromSize_t(freed);
}

/* ---- collections that are not ours ---- */

void sweep_other_begins(SweepObject *self, int whole) {
    Py_INCREF((PyObject *)self); /* what ends may take the policy away */
    if (whole) give_up_the_round(self);
    self->others_young = sweep_young_of(self);
    Py_DECREF((PyObject *)self);
}

void sweep_other_ended(SweepObject *self, int whole, uint64_t freed) {
    if (self->busy) return;
    self->many_young = 0;
    tw_pace_other(&self->pace, whole, self->others_young, (size_t)freed);
    tell_heap(self);
}

/* ---- the frozen ---- */

/* What was old may be frozen. */
static void begin_again(SweepObject *self) {
    walk_abandon(self);
    self->pace.old = self->pace.debt = self->pace.ahead = 0;
    self->begun = self->tenured = self->tenured_at_full = 0; /* the markers are frozen, or about to be */
    tell_heap(self);
    walk_let_go(self);
}

/* remember(objects): they are about to be frozen, and closures stop at them. Objects the sweep knows now. */
static PyObject *sweep_remember(PyObject *op, PyObject *objects) {
    SweepObject *self = (SweepObject *)op;
    if (!PyList_Check(objects)) return PyErr_Format(PyExc_TypeError, "objects: expected a list, found %R", (PyObject *)Py_TYPE(objects));
    const Py_ssize_t n = PyList_Size(objects);
    for (Py_ssize_t i = 0; i < n; i++)
        if (!tw_addresses_add(&self->frozen, PyList_GetItem(objects, i))) return PyErr_NoMemory();
    begin_again(self);
    return PyLong_FromSize_t(self->frozen.count);
}

static PyObject *sweep_forget(PyObject *op, PyObject *unused) {
    SweepObject *self = (SweepObject *)op;
    (void)unused;
    walk_abandon(self);
    tw_addresses_clear(&self->frozen);
    tw_marks_clear(&self->marks);
    self->begun = 0;
    tw_policy_frozen(&self->core->segment->policy, 0);
    tw_store(&self->core->segment->policy.now.bytes, bytes_of(self));
    walk_let_go(self);
    Py_RETURN_NONE;
}

/* From 3.12 on the collector itself puts what is immortal to the frozen. */
static int is_immortal(PyObject *object) { return (int32_t)Py_REFCNT(object) < 0; }

/* The newest of the frozen that is not known, from there back; NULL: that list is at its end, or known. */
static gc_head *unknown_from(SweepObject *self, gc_head *each) {
    while (each != &self->permanent->head && is_immortal(gc_object_of(each))) each = gc_previous(each);
    if (each == &self->permanent->head || tw_addresses_has(&self->frozen, gc_object_of(each))) return NULL;
    return each;
}

/* learn(): a freeze puts all that it takes behind those that were frozen before: from there back to one that is known. How
 * many were not. A pause of cause "policy", where there are any. */
static PyObject *sweep_learn(PyObject *op, PyObject *unused) {
    SweepObject *self = (SweepObject *)op;
    size_t n = 0;
    (void)unused;
    if (self->permanent == NULL || self->core->gc_open || self->busy) return PyLong_FromLong(0);
    gc_head *each = unknown_from(self, gc_previous(&self->permanent->head));
    if (each == NULL) return PyLong_FromLong(0);
    core_policy_open(self->core);
    for (; each != NULL && tw_addresses_add(&self->frozen, gc_object_of(each)); n++) each = unknown_from(self, gc_previous(each));
    begin_again(self);
    core_policy_close(self->core);
    return each == NULL ? PyLong_FromSize_t(n) : PyErr_NoMemory();
}

/* abandon(): the round that is under way is given up, and what it holds let go of. Its end may run anything. */
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
    self->core->sweep = on ? self : NULL;
    if (!on) walk_abandon(self), walk_let_go(self);
    return 0;
}
/* rest(idle=False): the last request has ended, or none was there. Slices for two milliseconds at most. */
static PyObject *sweep_rest(PyObject *op, PyObject *args) {
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
    const uint64_t *passes = self->core->segment->policy.counts.passes;
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
        put(dict, "debt", pace->debt) == 0 && put(dict, "old", pace->old) == 0 && put(dict, "rounds", pace->rounds) == 0 && put(dict, "short_rounds", pace->shorts) == 0 &&
        put(dict, "whole", (uint64_t)(((SweepObject *)op)->whole && ((SweepObject *)op)->phase != SWEEP_RESTS)) == 0 &&
        put(dict, "tangled", (uint64_t)((SweepObject *)op)->tangled) == 0 && put(dict, "held", order_held((SweepObject *)op)) == 0 &&
        put(dict, "parts", ((SweepObject *)op)->order.n_parts) == 0 &&
        put(dict, "cost_ns", tw_pace_dearest(pace)) == 0 &&
        put(dict, "young", sweep_young_of((SweepObject *)op)) == 0 &&
        put(dict, "passes", passes_of((SweepObject *)op)) == 0)
        return dict;
    Py_DECREF(dict);
    return NULL;
}

static PyObject *sweep_round(PyObject *op, PyObject *unused) {
    (void)unused;
    ((SweepObject *)op)->whole_wanted = 1;
    tw_pace_round(&((SweepObject *)op)->pace);
    Py_RETURN_NONE;
}

/* In a fork child: its counts are its own, its heap and what is frozen of it are as the parent's were. A slice goes on if
 * its finalizer forked; one of another thread never ends, as that thread is not there. */
static PyObject *sweep_reborn(PyObject *op, PyObject *unused) {
    SweepObject *self = (SweepObject *)op;
    (void)unused;
    tw_pace_begin_again(&self->pace);
    self->born += 1;
    if (self->busy != this_thread()) self->busy = 0;
    self->force = SWEEP_WHAT_FITS;
    Py_RETURN_NONE;
}

/* ---- the type ---- */

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
    return PyLong_FromSize_t(bytes_of(self));
}

static int make_markers(SweepObject *self) {
    for (size_t i = 0; i < SWEEP_WINDOW; i++)
        if ((self->markers[i] = PyList_New(0)) == NULL) return 0;
    return 1;
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
    if ((self->zero = PyLong_FromLong(0)) != NULL && make_markers(self)) return (PyObject *)self;
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
    if (self->core != NULL && self->core->sweep == self) self->core->sweep = NULL;
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
    Py_XDECREF(self->held);
    Py_XDECREF(self->let_go);
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
    {"remember", sweep_remember, METH_O, "remember(objects, /)\n--\n\nThey are about to be frozen. How many are known now."},
    {"select", sweep_select, METH_O, "select(selector, /)\n--\n\nWhat a selector may have for its select(): it sweeps while it would wait."},
    {"uv", sweep_uv, METH_VARARGS, "uv(path, loop, /)\n--\n\nUse the waiting of a libuv loop, given as uvloop gives it; path of the library that exports libuv."},
    {"counts", sweep_counts, METH_NOARGS, "counts()\n--\n\nSlices by what gave the moment, objects moved and freed, ns, and what is to be done."},
    {"rest", sweep_rest, METH_VARARGS, "rest(idle=False, /)\n--\n\nThe last request has ended, or (idle) none was there: slices, for two milliseconds at most."},
    {"whole", sweep_whole, METH_VARARGS, "whole(moment=5, /)\n--\n\nA whole pass of what is not frozen. Objects freed, None while a collection is under way."},
    {"reborn", sweep_reborn, METH_NOARGS, "reborn()\n--\n\nIn a fork child: its counts begin at zero."},
    {"learn", sweep_learn, METH_NOARGS, "learn()\n--\n\nHow many objects are frozen that were not known to be; now they are."},
    {"abandon", sweep_abandon, METH_NOARGS, "abandon()\n--\n\nThe round that is under way is given up."},
    {"round", sweep_round, METH_NOARGS, "round()\n--\n\nThe whole old heap is to be looked at, as soon as may be."},
    {"forget", sweep_forget, METH_NOARGS, "forget()\n--\n\nNothing is frozen any more."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef getters[] = {
    {"frozen", get_frozen, NULL, "Objects known to be frozen.", NULL},
    {"ordered", get_ordered, NULL, "Whether old objects are found by themselves, the oldest first.", NULL},
    {"bytes", get_bytes, NULL, "Memory it takes.", NULL},
    {"on", get_on, set_on, "Whether idle moments are used.", NULL},
    {"due", get_due, NULL, "Whether there is anything to do, in a moment.", NULL},
    {"midway", get_midway, NULL, "Whether a round is under way: an object is held, where it goes on.", NULL},
    {"force", get_force, set_force, "What moments are used for, fit or not: 0 what is due, 1 a slice, 2 a whole pass, once.", NULL},
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
