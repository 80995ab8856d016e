/* tailwatch._hot.Sweep. Public calls of the collector move objects between its generations: untracked and tracked again,
 * an object is young. Which objects are old, and in what order, is read off the collector's own lists, where their layout
 * was seen to be the known one; elsewhere seeds are what the caller gives.
 *
 * Nothing here may run while a collection does: its lists are then taken apart. Between two lines of C that hold the GIL
 * none can begin.
 */
#include "hot_idle.h"
#include "hot_uv.h"

#include <poll.h>
#include <string.h>
#include <time.h>

#define MOST_BUDGET 1000000
#define OVERDUE_NS 2000000         /* a slice is to take half of it */
#define STEP_SHARE 10              /* of an engine's step: what may be taken after it */
#define A_MILLISECOND_NS 1000000
#define NOBODY_WAITS_NS 2000000    /* the next request may come at any time */
#define MOST_REFERENCES 32
#define A_HUB 64
#define OF_A_SUSPECT 512           /* objects */
#define MOST_PUT_OFF 3             /* slices that wait for one that is large enough */
#define PREV_FLAGS ((uintptr_t)3)  /* finalized, collecting: in the word of the previous one */

/* What stands before each object that the collector knows, CPython 3.10 to 3.13 and 3.14.5 on. */
typedef struct gc_head { uintptr_t next, prev; } gc_head;
struct gc_list { gc_head head; int threshold, count; };

static gc_head *head_of(PyObject *object) { return (gc_head *)object - 1; }
static PyObject *object_of(gc_head *head) { return (PyObject *)(head + 1); }
static gc_head *next_of(const gc_head *head) { return (gc_head *)head->next; }

/* ---- closures ---- */

/* Types and modules lead everywhere. */
static int leads_on(PyObject *object) { return !PyType_Check(object) && !PyModule_Check(object); }

/* Whether a closure goes through it. */
static int passes(SweepObject *self, PyObject *object) {
    if (tw_addresses_has(&self->seen, object) || tw_addresses_has(&self->frozen, object)) return 0;
    return PyObject_GC_IsTracked(object) && leads_on(object);
}

/* false: no memory to note that it was taken. */
static int take(SweepObject *self, tw_addresses *as, PyObject *object) {
    if (self->n == self->room || !tw_addresses_add(as, object)) return 0;
    self->found[self->n++] = object;
    return 1;
}

/* As if they had not been. */
static void leave(SweepObject *self, tw_addresses *as, size_t from) {
    for (size_t i = from; i < self->n; i++) tw_addresses_remove(as, self->found[i]);
    self->left += self->n - from;
    self->n = from;
}

/* What much refers to leads everywhere: it is looked into when its own turn comes, and now and then. */
static int is_hub(SweepObject *self, PyObject *object) {
    return Py_REFCNT(object) > A_HUB && self->pace.rounds % 4 != 3;
}

static int visit(PyObject *object, void *arg) {
    SweepObject *self = arg;
    return object != NULL && passes(self, object) && !is_hub(self, object) && !take(self, &self->seen, object);
}

/* Breadth first from what was found at `from`: what is near comes first where there is an end. Up to which all that an
 * object leads to was found, too; n: the closure is whole. */
static size_t expand(SweepObject *self, size_t from, size_t most, visitproc visit_one) {
    size_t i = from;
    for (; i < self->n && i < most; i++) {
        const traverseproc traverse = (traverseproc)PyType_GetSlot(Py_TYPE(self->found[i]), Py_tp_traverse);
        if (traverse != NULL && traverse(self->found[i], visit_one, self)) break;
    }
    return i;
}

/* Those that were not looked into are left, but for the first. */
static void cut(SweepObject *self, tw_addresses *as, size_t from, size_t until) {
    if (until < self->n) leave(self, as, until > from ? until : from + 1);
}

/* Named by the caller, or suspected: whether it was seen in this round says nothing. */
static int visit_loose(PyObject *object, void *arg) {
    SweepObject *self = arg;
    if (object == NULL || tw_addresses_has(&self->loose, object) || tw_addresses_has(&self->frozen, object)) return 0;
    if (!PyObject_GC_IsTracked(object) || !leads_on(object)) return 0;
    return !take(self, &self->loose, object);
}

/* With what it leads to, so many objects at most. */
static void take_loose(SweepObject *self, PyObject *object, size_t most) {
    const size_t from = self->n;
    visit_loose(object, self);
    if (self->n > from) cut(self, &self->loose, from, expand(self, from, from + most, visit_loose));
}

/* ---- suspects: the dead may hold others that were seen before them, and when they go those lose a reference ---- */

static struct sweep_edge *edge_of(SweepObject *self, const PyObject *object) {
    size_t at = (size_t)((uint64_t)(uintptr_t)object * UINT64_C(0x9E3779B97F4A7C15) >> 40) % SWEEP_EDGES;
    while (self->edge[at].object != NULL && self->edge[at].object != object) at = (at + 1) % SWEEP_EDGES;
    return &self->edge[at];
}

/* What much refers to is hardly held by the dead alone. Untracked is what this slice has found. */
static int visit_edge(PyObject *object, void *arg) {
    SweepObject *self = arg;
    if (self->edges == SWEEP_EDGES / 2) return 1;
    if (object == NULL || Py_REFCNT(object) > MOST_REFERENCES || tw_addresses_has(&self->frozen, object)) return 0;
    if (!PyObject_GC_IsTracked(object) || !leads_on(object)) return 0;
    struct sweep_edge *edge = edge_of(self, object);
    if (edge->object != NULL) return 0;
    *edge = (struct sweep_edge){Py_NewRef(object), Py_REFCNT(object)};
    self->edges += 1;
    return 0;
}

/* Each is let go of, or suspected where it lost a reference while this held one. */
static void sift_edges(SweepObject *self) {
    for (size_t i = 0; i < SWEEP_EDGES && self->edges > 0; i++) {
        const struct sweep_edge edge = self->edge[i];
        if (edge.object == NULL) continue;
        self->edge[i].object = NULL;
        self->edges -= 1;
        const Py_ssize_t references = Py_REFCNT(edge.object);
        if (references > 1 && references < edge.references && self->suspects < SWEEP_SUSPECTS)
            self->suspect[self->suspects++] = edge.object;
        else
            Py_DECREF(edge.object);
    }
    if (self->suspects > 0) tw_pace_more(&self->pace);
}

/* The last ones first; up to half of the slice. How many of them are to be let go of before anything is collected. */
static size_t take_suspects(SweepObject *self) {
    size_t taken = 0;
    while (taken < self->suspects && self->n < self->budget / 2) take_loose(self, self->suspect[self->suspects - ++taken], OF_A_SUSPECT);
    return taken;
}

static void drop_suspects(SweepObject *self, size_t n) {
    while (n-- > 0) Py_DECREF(self->suspect[--self->suspects]);
}

/* ---- what was found ---- */

static void untrack_from(SweepObject *self, size_t from) {
    for (size_t i = from; i < self->n; i++) PyObject_GC_UnTrack(self->found[i]);
}

/* They are behind all others, and young. What was cut is not done with: other closures may go through it. */
static void track_found(SweepObject *self) {
    for (size_t i = self->cut_from; i < self->cut_until; i++) tw_addresses_remove(&self->seen, self->found[i]);
    self->cut_from = self->cut_until = 0;
    for (size_t i = 0; i < self->n; i++) PyObject_GC_Track(self->found[i]);
    self->n = 0;
    if (self->rounded) tw_addresses_empty(&self->seen);
    self->rounded = 0;
}

/* ---- the collector's lists ---- */

/* Whether a closure for which the slice has no room is left to one of the next. The first of a slice is cut in the end, as
 * it may be larger than any. */
static int put_off(SweepObject *self, size_t from, int patient) {
    if (from > self->loosely) return 1;
    if (!patient || self->budget >= TW_PACE_MOST || self->put_off >= MOST_PUT_OFF) return 0;
    self->put_off += 1;
    return 1;
}

/* An old object with all that it leads to. One that stands in a list is not frozen: its address is that of an object that
 * was, and died. false: the slice ends before it. */
static int take_closure(SweepObject *self, PyObject *object, int patient) {
    const size_t from = self->n;
    tw_addresses_remove(&self->frozen, object);
    if (!take(self, &self->seen, object)) return 0;
    const size_t until = leads_on(object) ? expand(self, from, self->budget, visit) : self->n;
    if (until < self->n && put_off(self, from, patient)) return leave(self, &self->seen, from), 0;
    if (until < self->n) {
        cut(self, &self->seen, from, until);
        self->cut_from = from;
        self->cut_until = self->n;
    }
    self->put_off = 0;
    return 1;
}

/* Of one generation, the oldest first. A closure is begun while half of the slice is left for it. false: the slice ends
 * here; and so does the round, at the marker. */
static int take_old_of(SweepObject *self, gc_list *list, int patient) {
    for (gc_head *head = next_of(&list->head); head != &list->head; head = next_of(head)) {
        PyObject *object = object_of(head);
        if (self->n >= self->loosely + (self->budget - self->loosely + 1) / 2) return 0;
        if (object == self->marker) return self->rounded = 1, 0;
        if (!tw_addresses_has(&self->seen, object) && !take_closure(self, object, patient)) return 0;
    }
    return 1;
}

/* The round ends where the marker stands, or where there is no old object any more: somebody froze the marker, too. */
static void take_old(SweepObject *self, int patient) {
    if (self->lists == NULL) return;
    const int none_left = take_old_of(self, &self->lists[2], patient) && take_old_of(self, &self->lists[1], patient);
    if (!none_left && !self->rounded) return;
    self->rounded = take(self, &self->seen, self->marker);
}

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
    const gc_head *head = head_of(object);
    if ((gc_head *)(next_of(head)->prev & ~PREV_FLAGS) != head) return 0;
    for (; most-- > 0; head = next_of(head))
        if (next_of(head) == &list->head) return 1;
    return 0;
}

/* A new object is the last of generation 0: what comes after it is that list's head, and the others follow. */
static gc_list *lists_by(PyObject *newest, PyObject *thresholds) {
    gc_list *lists = (gc_list *)next_of(head_of(newest));
    if ((gc_head *)(lists->head.prev & ~PREV_FLAGS) != head_of(newest)) return NULL;
    return thresholds_agree(lists, thresholds) ? lists : NULL;
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
    const int known = lists != NULL && PyObject_GC_IsTracked(aged) && PyObject_GC_IsTracked(older) &&
                      is_in(aged, &lists[1], (size_t)most) && is_in(older, &lists[2], (size_t)most);
    self->lists = known ? lists : NULL;
    return PyBool_FromLong(known);
}

/* ---- slices ---- */

/* A slice finds more than it moves: what its objects lead to where it is cut. */
static int make_room(SweepObject *self, size_t budget) {
    const size_t room = 2 * budget + 64;
    if (room > self->allocated) {
        PyObject **found = PyMem_Realloc(self->found, room * sizeof *found);
        if (found == NULL) return PyErr_NoMemory(), -1;
        self->found = found;
        self->allocated = room;
    }
    self->room = room;
    self->budget = budget;
    return 0;
}

/* The seeds are in the list's hands until all is tracked again; then they may die. */
static int take_seeds(SweepObject *self, PyObject *seeds) {
    const Py_ssize_t n = seeds == Py_None ? 0 : PyList_Size(seeds);
    if (n < 0) return -1;
    for (Py_ssize_t i = 0; i < n && self->n < self->budget; i++) take_loose(self, PyList_GetItem(seeds, i), self->budget - self->n);
    return 0;
}

/* What was named or is suspected, untracked; and of what was old. How many suspects were taken. */
static size_t find(SweepObject *self, int patient) {
    const size_t taken = take_suspects(self);
    self->loosely = self->n;
    for (size_t i = 0; i < self->n; i++) tw_addresses_remove(&self->loose, self->found[i]);
    untrack_from(self, 0);
    if (self->loosely < self->budget) take_old(self, patient);
    untrack_from(self, self->loosely);
    expand(self, 0, self->n, visit_edge);
    return taken;
}

/* Finds, moves, lets go of the seeds. How many old objects it moved in their turn; -1: an exception is set. */
static Py_ssize_t move(SweepObject *self, PyObject *seeds, size_t budget, int patient) {
    if (make_room(self, budget) < 0) return -1;
    self->n = self->left = 0;
    const int failed = take_seeds(self, seeds);
    const size_t taken = find(self, patient);
    const size_t moved = self->n - self->loosely;
    self->left += self->loosely;
    if (self->rounded) tw_pace_rounded(&self->pace);
    track_found(self);
    drop_suspects(self, taken);
    if (failed || (seeds != Py_None && PyList_SetSlice(seeds, 0, PyList_Size(seeds), NULL) < 0)) return -1;
    return (Py_ssize_t)moved;
}

static size_t young_of(const SweepObject *self) {
    return self->lists != NULL && self->lists[0].count > 0 ? (size_t)self->lists[0].count : 0;
}

/* The youngest collected, by gc.collect: its callbacks see it, and its finalizers may do what they like. */
static int collect_young(SweepObject *self, size_t *freed) {
    PyObject *number = PyObject_CallFunctionObjArgs(self->collect, self->zero, NULL);
    const Py_ssize_t n = number == NULL ? -1 : PyLong_AsSsize_t(number);
    Py_XDECREF(number);
    *freed = n > 0 ? (size_t)n : 0;
    return n == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Of this thread: what others took meanwhile says nothing about the next slice. */
static uint64_t cpu_ns(void) {
    struct timespec t;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0 ? (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec : 0;
}

int sweep_run(SweepObject *self, tw_moment moment, PyObject *seeds, size_t budget, sweep_done *done) {
    if (self->core->gc_open || self->busy) return 1;
    self->busy = 1;
    core_policy_open(self->core);
    const uint64_t began_ns = cpu_ns();
    done->young = young_of(self);
    const Py_ssize_t moved = move(self, seeds, budget, moment == TW_MOMENT_IDLE);
    done->moved = moved > 0 ? (size_t)moved : 0;
    const int failed = moved < 0 || collect_young(self, &done->freed) < 0;
    sift_edges(self);
    const uint64_t took_ns = cpu_ns() - began_ns;
    done->ns = core_policy_close(self->core);
    self->busy = 0;
    if (failed) return -1;
    tw_pace_slice(&self->pace, moment, done->young, done->moved, self->left, done->freed, took_ns);
    return 0;
}

/* slice(budget, seeds=None, moment=ASKED): one slice, a pause of cause "policy". (objects moved, objects freed, ns); None
 * while a collection is under way. */
static PyObject *sweep_slice(PyObject *op, PyObject *args) {
    Py_ssize_t budget;
    PyObject *seeds = Py_None;
    int moment = TW_MOMENT_ASKED;
    sweep_done done = {0, 0, 0, 0};
    if (!PyArg_ParseTuple(args, "n|Oi", &budget, &seeds, &moment)) return NULL;
    if (budget < 0 || budget > MOST_BUDGET) return PyErr_Format(PyExc_ValueError, "budget: expected 0 to %d objects, found %zd", MOST_BUDGET, budget);
    if (moment < 0 || moment >= TW_MOMENTS) return PyErr_Format(PyExc_ValueError, "moment: expected 0 to %d, found %d", TW_MOMENTS - 1, moment);
    const int ran = sweep_run((SweepObject *)op, (tw_moment)moment, seeds, (size_t)budget, &done);
    if (ran > 0) Py_RETURN_NONE;
    return ran < 0 ? NULL : Py_BuildValue("nnK", (Py_ssize_t)done.moved, (Py_ssize_t)done.freed, (unsigned long long)done.ns);
}

/* ---- idle moments ---- */

static int readable(int fd) {
    struct pollfd one = {fd, POLLIN, 0};
    return poll(&one, 1, 0) != 0;
}

static uint64_t lesser(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* false: it did not run, or not well, or was too small. */
static int slice_of(SweepObject *self, tw_moment moment, size_t budget) {
    sweep_done done;
    const int ran = sweep_run(self, moment, Py_None, budget, &done);
    if (ran < 0) PyErr_WriteUnraisable((PyObject *)self);
    return ran == 0 && self->put_off == 0;
}

/* false: no slice now, or none that went well. */
static int timed_slice(SweepObject *self, tw_moment moment, uint64_t left_ns) {
    const int64_t budget = tw_pace_budget(&self->pace, young_of(self), left_ns);
    if (budget < 0) tw_pace_unfit(&self->pace);
    return budget >= 0 && slice_of(self, moment, (size_t)budget);
}

/* Nobody gave a moment for long: one is taken, a short one, if need be of the young only. */
static void overdue_slice(SweepObject *self) {
    if (!tw_pace_overdue(&self->pace, young_of(self))) return;
    const int64_t budget = tw_pace_budget(&self->pace, young_of(self), OVERDUE_NS);
    slice_of(self, TW_MOMENT_OVERDUE, budget > 0 ? (size_t)budget : 0);
}

static int due(const SweepObject *self) { return self->on && self->lists != NULL && tw_pace_due(&self->pace, young_of(self)); }

int sweep_may_be_due(const SweepObject *self) { return due(self); }

/* No slice fits now: a wait that goes on grows longer than those of before, and then one does. Whether it goes on. */
static int wait_for_more(int fd, uint64_t left_ns) {
    struct pollfd one = {fd, POLLIN, 0};
    int found;
    if (left_ns < 2 * A_MILLISECOND_NS) return 0;
    Py_BEGIN_ALLOW_THREADS
    found = poll(&one, 1, 1);
    Py_END_ALLOW_THREADS
    return found == 0;
}

int sweep_idle(SweepObject *self, int fd, uint64_t wait_ns) {
    if (!due(self)) return 0;
    const uint64_t since = tw_now_ns();
    uint64_t lasted = 0;
    overdue_slice(self);
    while (lasted < wait_ns && due(self) && !readable(fd)) {
        if (!timed_slice(self, TW_MOMENT_IDLE, lesser(tw_pace_left(&self->pace, lasted), wait_ns - lasted)) &&
            !wait_for_more(fd, wait_ns - lasted))
            break;
        lasted = tw_now_ns() - since;
    }
    return 1;
}

void sweep_step(SweepObject *self, uint64_t since_ns, uint64_t waiting) {
    if (!due(self)) return;
    if (!timed_slice(self, TW_MOMENT_STEP, waiting == 0 ? NOBODY_WAITS_NS : since_ns / STEP_SHARE)) overdue_slice(self);
}

/* ---- the frozen ---- */

/* remember(objects): they are about to be frozen, and closures stop at them. Objects the sweep knows now. */
static PyObject *sweep_remember(PyObject *op, PyObject *objects) {
    SweepObject *self = (SweepObject *)op;
    if (!PyList_Check(objects)) return PyErr_Format(PyExc_TypeError, "objects: expected a list, found %R", (PyObject *)Py_TYPE(objects));
    const Py_ssize_t n = PyList_Size(objects);
    for (Py_ssize_t i = 0; i < n; i++)
        if (!tw_addresses_add(&self->frozen, PyList_GetItem(objects, i))) return PyErr_NoMemory();
    return PyLong_FromSize_t(self->frozen.count);
}

static PyObject *sweep_forget(PyObject *op, PyObject *unused) {
    (void)unused;
    tw_addresses_clear(&((SweepObject *)op)->frozen);
    tw_addresses_clear(&((SweepObject *)op)->seen);
    Py_RETURN_NONE;
}

static PyObject *get_on(PyObject *op, void *unused) { (void)unused; return PyBool_FromLong(((SweepObject *)op)->on); }
static int set_on(PyObject *op, PyObject *value, void *unused) {
    const int on = value == NULL ? 0 : PyObject_IsTrue(value);
    (void)unused;
    if (on < 0) return -1;
    SweepObject *self = (SweepObject *)op;
    self->on = on;
    if (!on) drop_suspects(self, self->suspects);
    self->core->sweep = on ? self : NULL;
    return 0;
}
/* rest(): the last request has ended. Slices for two milliseconds at most. */
static PyObject *sweep_rest(PyObject *op, PyObject *unused) {
    SweepObject *self = (SweepObject *)op;
    const uint64_t since = tw_now_ns();
    uint64_t lasted = 0;
    (void)unused;
    if (due(self)) overdue_slice(self);
    while (lasted < NOBODY_WAITS_NS && due(self) && timed_slice(self, TW_MOMENT_REQUEST, NOBODY_WAITS_NS - lasted))
        lasted = tw_now_ns() - since;
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

/* counts(): what it did, by what gave the moment, and what it is to do. */
static PyObject *sweep_counts(PyObject *op, PyObject *unused) {
    const tw_pace *pace = &((SweepObject *)op)->pace;
    (void)unused;
    PyObject *dict = PyDict_New();
    if (dict == NULL) return NULL;
    if (put_moments(dict, pace) == 0 && put(dict, "moved", pace->moved) == 0 && put(dict, "freed", pace->freed) == 0 &&
        put(dict, "ns", pace->ns) == 0 && put(dict, "predicted_ns", pace->predicted_ns) == 0 &&
        put(dict, "debt", pace->debt) == 0 && put(dict, "old", pace->old) == 0 && put(dict, "rounds", pace->rounds) == 0 &&
        put(dict, "cost_ns", tw_pace_cost(pace)) == 0 &&
        put(dict, "young", young_of((SweepObject *)op)) == 0)
        return dict;
    Py_DECREF(dict);
    return NULL;
}

static PyObject *sweep_round(PyObject *op, PyObject *unused) {
    (void)unused;
    tw_pace_round(&((SweepObject *)op)->pace);
    Py_RETURN_NONE;
}

/* ---- the type ---- */

static PyObject *get_frozen(PyObject *op, void *unused) { (void)unused; return PyLong_FromSize_t(((SweepObject *)op)->frozen.count); }
static PyObject *get_ordered(PyObject *op, void *unused) { (void)unused; return PyBool_FromLong(((SweepObject *)op)->lists != NULL); }
static PyObject *get_bytes(PyObject *op, void *unused) {
    const SweepObject *self = (SweepObject *)op;
    (void)unused;
    return PyLong_FromSize_t(tw_addresses_bytes(&self->frozen) + tw_addresses_bytes(&self->seen) + self->allocated * sizeof *self->found);
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
    self->marker = PyList_New(0);
    if ((self->zero = PyLong_FromLong(0)) != NULL && self->marker != NULL) return (PyObject *)self;
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
    Py_XDECREF(self->marker);
    Py_XDECREF((PyObject *)self->idle_type);
    Py_XDECREF((PyObject *)self->uv_type);
    tw_addresses_clear(&self->frozen);
    tw_addresses_clear(&self->seen);
    tw_addresses_clear(&self->loose);
    drop_suspects(self, self->suspects);
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

static PyObject *sweep_poll(PyObject *op, PyObject *epoll) { return idle_poll_new((SweepObject *)op, epoll); }

static PyMethodDef methods[] = {
    {"slice", sweep_slice, METH_VARARGS,
     "slice(budget, seeds=None, moment=5, /)\n--\n\nOne slice. (objects moved, objects freed, ns), None while a collection is under way."},
    {"locate", sweep_locate, METH_VARARGS,
     "locate(thresholds, aged, older, most, /)\n--\n\nWhether the collector's lists are where this layout has them."},
    {"remember", sweep_remember, METH_O, "remember(objects, /)\n--\n\nThey are about to be frozen. How many are known now."},
    {"poll", sweep_poll, METH_O, "poll(epoll, /)\n--\n\nWhat a selector asks for events instead of its epoll object: it sweeps while none comes."},
    {"uv", sweep_uv, METH_VARARGS, "uv(path, loop, /)\n--\n\nUse the waiting of a libuv loop, given as uvloop gives it; path of the library that exports libuv."},
    {"counts", sweep_counts, METH_NOARGS, "counts()\n--\n\nSlices by what gave the moment, objects moved and freed, ns, and what is to be done."},
    {"rest", sweep_rest, METH_NOARGS, "rest()\n--\n\nThe last request has ended: slices, for two milliseconds at most."},
    {"round", sweep_round, METH_NOARGS, "round()\n--\n\nThe whole old heap is to be looked at, as soon as may be."},
    {"forget", sweep_forget, METH_NOARGS, "forget()\n--\n\nNothing is frozen any more."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef getters[] = {
    {"frozen", get_frozen, NULL, "Objects known to be frozen.", NULL},
    {"ordered", get_ordered, NULL, "Whether old objects are found by themselves, the oldest first.", NULL},
    {"bytes", get_bytes, NULL, "Memory it takes.", NULL},
    {"on", get_on, set_on, "Whether idle moments are used.", NULL},
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
