/* Public calls of the collector move objects between its generations: untracked and tracked again,
 * an object is young. Which objects are old, and in what order, is read off the collector's own lists, where their layout
 * was seen to be the known one; elsewhere seeds are what the caller gives.
 *
 * Nothing here may run while a collection does: its lists are then taken apart. Between two lines of C that hold the GIL
 * none can begin.
 */
#include "python/gc/idle_gc.h"

#include "python/gc/cycle_detect.h"
#include "python/gc/garbage_scc.h"
#include "python/gc/policy.h"

#include <string.h>

#include "base/arithmetic.h"

#define LEAST_ROOM 1024
#define WALKED_LONG_NS 150000 /* a walk that took so long leaves the collection of what it moved to the next slice */
#define COLLECTED_NS 200000   /* what is moved is to be collected in such a time */
#define MOST_COLLECTED 1000   /* objects, however little that takes */

/* ---- where the lists are ---- */

/* Python gives what the thresholds are; the lists must stand before the same numbers. */
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
PyObject *slicer_locate(PyObject *op, PyObject *args) {
    SlicerObject *self = (SlicerObject *)op;
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

static int make_room(SlicerObject *self, size_t room) {
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
static int move_seeds(SlicerObject *self, PyObject *seeds, size_t budget) {
    const Py_ssize_t n = PyList_Size(seeds);
    for (Py_ssize_t i = 0; i < n && self->n < budget; i++) walk_closure(self, PyList_GetItem(seeds, i), budget - self->n);
    walk_move_found(self);
    return n < 0 ? -1 : PyList_SetSlice(seeds, 0, n, NULL);
}

/* What was let go of ran whatever it liked: the cycle is as it was, and may go on. */
static int is_undisturbed(const SlicerObject *self, slicer_phase phase, uint64_t begun) {
    return self->phase == phase && self->begun == begun && self->lists != NULL && !self->core->gc.open;
}

/* The cycle goes on, once what was left to let go of is. How many ended as they were let go of. */
static size_t go_on(SlicerObject *self) {
    size_t ended = 0;
    do {
        const slicer_phase phase = self->phase;
        const uint64_t begun = self->begun;
        ended += walk_let_go(self);
        if (order_gone(self) > 0 || !is_undisturbed(self, phase, begun)) return ended;
        walk_on(self);
    } while (self->n == 0 && order_gone(self) > 0);
    walk_move_found(self);
    return ended;
}

/* -1: an exception is set. */
static int look_on(SlicerObject *self, PyObject *seeds, size_t budget, tw_slice *slice) {
    if (make_room(self, 2 * (budget > LEAST_ROOM ? budget : LEAST_ROOM) + 64) < 0) return -1;
    if (seeds != Py_None) return move_seeds(self, seeds, budget);
    if (self->lists == NULL || budget == 0) return 0;
    slice->moved = slice->freed = go_on(self);
    slice->looks = self->looks;
    return 0;
}

size_t slicer_young_of(const SlicerObject *self) {
    return (self->lists != NULL && self->lists[0].count > 0 ? (size_t)self->lists[0].count : 0) + self->taken_off;
}

/* How many young ones there are, which may be more: so many at most. */
size_t slicer_count_young(const SlicerObject *self, size_t most) {
    size_t n = 0;
    if (self->lists == NULL) return 0;
    for (gc_head *each = gc_next(&self->lists[0].head); each != &self->lists[0].head && n < most; each = gc_next(each)) n++;
    return n;
}

size_t slicer_young(const SlicerObject *self) {
    const size_t n = slicer_count_young(self, SLICER_MOST_COUNTED), grown = slicer_young_of(self);
    return n == SLICER_MOST_COUNTED && grown > n ? grown : n;
}

size_t slicer_new_young(const SlicerObject *self) {
    const size_t all = slicer_young(self);
    return all - least(all, self->uncollected);
}

/* The youngest collected, by gc.collect: its callbacks see it, and its finalizers may do what they like. */
static int collect_young(SlicerObject *self, size_t *freed) {
    PyObject *number = PyObject_CallFunctionObjArgs(self->collect, self->zero, NULL);
    const Py_ssize_t n = number == NULL ? -1 : PyLong_AsSsize_t(number);
    Py_XDECREF(number);
    *freed = n > 0 ? (size_t)n : 0;
    return n == -1 && PyErr_Occurred() ? -1 : 0;
}

size_t slicer_bytes(const SlicerObject *self) {
    return tw_addresses_bytes(&self->frozen) + tw_marks_bytes(&self->marks) + self->allocated * sizeof *self->found +
           order_bytes(self);
}

static void publish_heap(const SlicerObject *self) {
    tw_policy *policy = &self->core->segment->policy;
    tw_policy_heap(policy, self->pace.old + slicer_young_of(self));
    tw_policy_frozen(policy, self->frozen.count);
    tw_store(&policy->now.backlog, self->pace.backlog);
    tw_store(&policy->now.bytes, slicer_bytes(self));
}

static void publish_slice(const SlicerObject *self, const tw_pace *before, tw_slice_reason reason) {
    tw_policy_slice(&self->core->segment->policy, before, &self->pace, reason);
    publish_heap(self);
}

/* Of the slice that would be next. */
tw_walk slicer_walk_of(const SlicerObject *self) {
    static const tw_walk walks[] = {
        [SLICER_RESTS] = TW_WALK_COUNT, [SLICER_COUNT] = TW_WALK_COUNT, [SLICER_REACH] = TW_WALK_REACH, [SLICER_ORDER] = TW_WALK_ORDER, [SLICER_PARTS] = TW_WALK_PARTS};
    return order_gone(self) > 0 ? TW_WALK_PARTS : walks[self->phase];
}

/* What a slice moved is collected by the next one where its walk took long: a reference cycle can be cut no more than a
 * collection of the young. A slice without a limit of time does both. */
static int is_collected_later(const SlicerObject *self, slicer_budget budget, uint64_t walked_ns) {
    return budget.ns > 0 && self->moved >= TW_PACE_MOVES && walked_ns >= WALKED_LONG_NS;
}

static void begin_slice(SlicerObject *self, slicer_budget budget, uint64_t now_ns) {
    self->moved = self->looks = 0;
    self->most_looks = budget.looks;
    self->until_ns = budget.ns == 0 ? 0 : now_ns + budget.ns;
    self->asks_at = SLICER_ASKS_EVERY;
    self->most_members = least(COLLECTED_NS / tw_pace_dead_ns(&self->pace), MOST_COLLECTED);
}

/* The walk, unless what the last slice moved is still to be collected. -1: an exception is set. */
static int walk_or_wait(SlicerObject *self, PyObject *seeds, slicer_budget budget, tw_slice *slice) {
    const uint64_t since_ns = tw_now_ns();
    const size_t moved_before = self->uncollected;
    self->uncollected = 0;
    begin_slice(self, budget, since_ns);
    int failed = 0;
    if (moved_before == 0 || seeds != Py_None) failed = look_on(self, seeds, budget.looks, slice);
    else slice->walk = TW_WALK_COUNT; /* what it alone leads to is to be let go of after it */
    slice->freed += walk_let_go_of_found(self);
    if (is_collected_later(self, budget, tw_now_ns() - since_ns)) self->uncollected = self->moved;
    else slice->collected = self->moved + moved_before;
    slice->moved += slice->collected;
    return failed;
}

/* The youngest, and what was moved to them. -1: an exception is set. */
static int collect(SlicerObject *self, tw_slice *slice, size_t young) {
    const uint64_t began_ns = tw_thread_cpu_ns();
    size_t freed;
    slice->young = young;
    slice->more = slicer_young_of(self);
    self->many_young = 0;
    self->taken_off = 0;
    const int failed = collect_young(self, &freed);
    slice->freed += freed;
    slice->collected_ns = tw_thread_cpu_ns() - began_ns;
    return failed;
}

int slicer_run(SlicerObject *self, tw_slice_reason reason, PyObject *seeds, slicer_budget budget, slicer_done *done) {
    if (self->core->gc.open || self->busy) return 1;
    tw_pace before = self->pace;
    const unsigned born = self->born;
    const uint64_t since = tw_now_ns();
    self->busy = this_thread();
    core_policy_open(self->core);
    const uint64_t began_ns = tw_thread_cpu_ns(); /* what others took meanwhile shows nothing about the next slice */
    tw_slice slice = {.walk = slicer_walk_of(self)};
    const size_t young = slicer_new_young(self);
    int failed = walk_or_wait(self, seeds, budget, &slice) < 0;
    if (!failed && self->uncollected == 0 && (slice.collected > 0 || young >= TW_PACE_YOUNG || reason == TW_SLICE_REQUESTED))
        failed = collect(self, &slice, young) < 0;
    const uint64_t took_ns = tw_thread_cpu_ns() - began_ns;
    core_policy_close(self->core);
    *done = (slicer_done){slice, tw_now_ns() - since};
    self->busy = 0;
    if (failed) return -1;
    if (self->born != born) tw_pace_begin_again(&before); /* a finalizer forked, and this is the child */
    tw_pace_slice(&self->pace, reason, &slice, took_ns);
    if (order_gone(self) > 0) tw_pace_more(&self->pace);
    publish_slice(self, &before, reason);
    return 0;
}

/* What is held no collection would free, nor what that leads to; and after a whole one the cycle has nothing to find. */
static void give_up_the_cycle(SlicerObject *self) {
    if (self->phase == SLICER_RESTS && order_gone(self) == 0) return;
    walk_abandon(self);
    order_let_go_of_all(self);
}

/* Everything that is not frozen, by gc.collect. 0; 1: none, as a collection is under way; -1: an exception is set. */
int slicer_pass(SlicerObject *self, tw_slice_reason reason, size_t *freed) {
    if (self->core->gc.open || self->busy) return 1;
    self->busy = this_thread();
    if (self->force == SLICER_PASS) self->force = SLICER_WHAT_FITS;
    core_policy_open(self->core);
    give_up_the_cycle(self);
    const size_t young = slicer_young_of(self);
    PyObject *number = PyObject_CallFunctionObjArgs(self->collect, NULL);
    const Py_ssize_t n = number == NULL ? -1 : PyLong_AsSsize_t(number);
    Py_XDECREF(number);
    const uint64_t ns = core_policy_close(self->core);
    self->busy = 0;
    if (n == -1 && PyErr_Occurred()) return -1;
    *freed = n > 0 ? (size_t)n : 0;
    self->uncollected = self->taken_off = 0;
    tw_pace_full_collection(&self->pace, young, *freed);
    tw_policy_full_collection(&self->core->segment->policy, reason, ns, *freed);
    publish_heap(self);
    return 0;
}

/* ---- collections that are not ours ---- */

void slicer_other_begins(SlicerObject *self, int whole) {
    Py_INCREF((PyObject *)self); /* what ends may take the policy away */
    if (whole) give_up_the_cycle(self);
    self->others_young = slicer_young_of(self);
    Py_DECREF((PyObject *)self);
}

void slicer_other_ended(SlicerObject *self, int whole, uint64_t freed) {
    self->taken_off = 0;
    if (self->busy) return;
    self->many_young = 0;
    tw_pace_other(&self->pace, whole, self->others_young, self->uncollected, (size_t)freed);
    self->uncollected = 0;
    publish_heap(self);
}

/* ---- the frozen ---- */

/* What was old may be frozen, and what was moved to the young. Also where a finalizer freezes, inside a slice or a
 * collection: no walk is in the midst of a list then. */
static void begin_again(SlicerObject *self) {
    self->uncollected = self->taken_off = 0;
    walk_abandon(self);
    self->pace.old = self->pace.backlog = self->pace.ahead = 0;
    self->begun = self->tenured = self->tenured_at_full = 0; /* the markers may be frozen */
    publish_heap(self);
    order_let_go_of_all(self);
}

static void forget_frozen(SlicerObject *self) {
    list_leave(self->frozen_end);
    tw_addresses_clear(&self->frozen);
}

PyObject *slicer_forget(PyObject *op, PyObject *unused) {
    SlicerObject *self = (SlicerObject *)op;
    (void)unused;
    walk_abandon(self);
    forget_frozen(self);
    tw_marks_clear(&self->marks);
    self->begun = 0;
    tw_policy_frozen(&self->core->segment->policy, 0);
    tw_store(&self->core->segment->policy.now.bytes, slicer_bytes(self));
    order_let_go_of_all(self);
    Py_RETURN_NONE;
}

/* From 3.12 on the collector itself puts what is immortal to the frozen. */
static int is_immortal(PyObject *object) { return (int32_t)Py_REFCNT(object) < 0; }

static int is_head(const SlicerObject *self, const gc_head *head) {
    return head == &self->permanent->head || (head >= &self->lists[0].head && head <= &self->lists[2].head);
}

/* The first from there on that a freeze put into the list, or the head that ends it. */
static gc_head *next_frozen(const SlicerObject *self, gc_head *each) {
    while (!is_head(self, each) && is_immortal(gc_object_of(each))) each = gc_next(each);
    return each;
}

/* The first after what is known: a freeze puts all that it takes behind those that were frozen before. */
static gc_head *after_known(const SlicerObject *self) {
    const int some = PyObject_GC_IsTracked(self->frozen_end);
    return next_frozen(self, gc_next(some ? gc_head_of(self->frozen_end) : &self->permanent->head));
}

/* Takes in the addresses from there on; *n: how many. Returns the head that ends the list, or the first that there is no
 * memory for. */
static gc_head *learn_from(SlicerObject *self, gc_head *each, size_t *n) {
    for (*n = 0; !is_head(self, each) && tw_addresses_add(&self->frozen, gc_object_of(each)); ++*n) each = next_frozen(self, gc_next(each));
    return each;
}

/* 0: no memory for some. Where gc.unfreeze() was called past our hook, frozen_end is in another list: all is learned anew. */
static int learn_frozen(SlicerObject *self, gc_head *unknown, size_t *n) {
    gc_head *end = learn_from(self, unknown, n);
    if (is_head(self, end) && end != &self->permanent->head) {
        forget_frozen(self);
        end = learn_from(self, after_known(self), n);
    }
    list_leave(self->frozen_end);
    if (gc_next(&self->permanent->head) != &self->permanent->head) list_insert(self->frozen_end, end);
    return end == &self->permanent->head;
}

/* How many were frozen that were not known to be: a pause of cause "gc_own", where there were any. */
static PyObject *sync_frozen(SlicerObject *self) {
    size_t n;
    if (self->lists == NULL) return PyLong_FromLong(0);
    gc_head *unknown = after_known(self);
    if (unknown == &self->permanent->head) return PyLong_FromLong(0);
    core_policy_open(self->core);
    const int all = learn_frozen(self, unknown, &n);
    begin_again(self);
    core_policy_close(self->core);
    return all ? PyLong_FromSize_t(n) : PyErr_NoMemory();
}

/* sync_frozen(): how many were frozen that were not known to be. A few steps where there are none; 0 while a collection
 * or a slice is under way. */
PyObject *slicer_sync_frozen(PyObject *op, PyObject *unused) {
    SlicerObject *self = (SlicerObject *)op;
    (void)unused;
    return self->core->gc.open || self->busy ? PyLong_FromLong(0) : sync_frozen(self);
}

/* freeze(call): call(), which is gc.freeze, and then sync_frozen(), without another thread's turn in between, and inside
 * a collection or a slice, too: found later, what we froze would be taken for a freeze of other code. No collection has
 * the list of the frozen in its hands. */
PyObject *slicer_freeze(PyObject *op, PyObject *call) {
    PyObject *result = PyObject_CallNoArgs(call);
    if (result == NULL) return NULL;
    Py_DECREF(result);
    return sync_frozen((SlicerObject *)op);
}
