#include "python/gc/garbage_scc.h"
#include "python/gc/traverse.h"

#define LAST ((uintptr_t)1)      /* of a part, in the place of its object: nothing of it lies below */
#define CLOSED (UINT32_C(1) << 26) /* later than any number: it has left the search */
#define KEPT_ROOM 65536          /* places that are kept from one cycle to the next */

/* A search in depth without recursion: what it is to go on with, and below each of these the objects that led there. */
typedef struct slicer_turn {
    PyObject *object;
    uint32_t lowest; /* 0: not entered */
    uint32_t before; /* what was entered before it and not left */
    uint32_t leads;  /* to one that has a place in the order */
} slicer_turn;

/* ---- room ---- */

static int has_room(void **at, size_t *room, size_t wanted, size_t size) {
    if (wanted <= *room) return 1;
    const size_t more = wanted + wanted / 2 + 64;
    void *found = PyMem_Realloc(*at, more * size);
    if (found == NULL) return 0;
    *at = found;
    *room = more;
    return 1;
}

/* So that giving up never fails: the parts have room for all that is on its way to them. */
static int room_to_turn(slicer_order *o) {
    return has_room((void **)&o->turns, &o->turns_room, o->n_turns + 1, sizeof *o->turns) &&
           has_room((void **)&o->parts, &o->parts_room, o->n_parts + o->n_open + o->n_turns + 2, sizeof *o->parts);
}

/* ---- the search ---- */

static int is_dead(tw_place place) { return tw_place_has(place, TW_MARK_WALKED) && !tw_place_has(place, TW_MARK_REACHED); }

static int is_entered(tw_place place) { return tw_place_has(place, TW_MARK_ORDERED); }

/* The one that was entered last and not left. */
static slicer_turn *latest(slicer_order *o) { return o->turn > 0 ? &o->turns[o->turn - 1] : NULL; }

/* It leads to one that was entered before, of that number. */
static void lead(slicer_order *o, uint32_t number) {
    slicer_turn *by = latest(o);
    if (by == NULL) return;
    by->leads = 1;
    if (number < by->lowest) by->lowest = number;
}

/* Its memory comes while those after it are looked at. */
static void turn_to(slicer_order *o, PyObject *object) {
    if (!room_to_turn(o)) return;
    o->turns[o->n_turns++] = (slicer_turn){object, 0, 0, 0};
    __builtin_prefetch(gc_head_of(object), 1);
}

static int visit_order(PyObject *object, void *arg) {
    SlicerObject *self = arg;
    if (walk_is_too_wide(self)) return 1;
    self->looks += 1;
    const tw_place place = object == NULL ? NULL : tw_marks_find(&self->marks, object);
    if (!is_dead(place)) return 0;
    if (is_entered(place)) lead(&self->order, tw_place_counted(place));
    else turn_to(&self->order, object);
    return 0;
}

static void let_go_later(slicer_order *o, PyObject *object) {
    if (Py_REFCNT(object) > 1) Py_DECREF(object);
    else o->parts[o->n_parts++] = (uintptr_t)object | LAST; /* its last reference: it may not end here */
}

/* It was entered by another way, or cannot be. */
static void turn_away(SlicerObject *self, PyObject *object, tw_place place) {
    slicer_order *o = &self->order;
    if (is_dead(place) && is_entered(place)) lead(o, tw_place_counted(place));
    o->n_turns -= 1;
    let_go_later(o, object);
}

static void enter(SlicerObject *self, PyObject *object) {
    slicer_order *o = &self->order;
    const tw_place place = tw_marks_find(&self->marks, object);
    self->looks += 1;
    if (!is_dead(place) || is_entered(place) || !PyObject_GC_IsTracked(object) || o->number == CLOSED - 1 ||
        !has_room((void **)&o->open, &o->open_room, o->n_open + 1, sizeof *o->open)) {
        turn_away(self, object, place);
        return;
    }
    tw_place_set(place, TW_MARK_ORDERED);
    tw_place_recount(place, ++o->number);
    o->turns[o->n_turns - 1] = (slicer_turn){object, o->number, (uint32_t)o->turn, 0};
    o->turn = o->n_turns;
    o->open[o->n_open++] = object;
    const size_t from = o->n_turns;
    walk_traverse(self, object, visit_order);
    for (size_t i = from; i < o->n_turns; i++) Py_INCREF(o->turns[i].object);
}

/* Nothing that is open leads from this one to one that was entered before it: with those after it, it is a part. */
static void begin_part(slicer_order *o, slicer_turn turn) {
    o->closes = turn.object;
    o->last = LAST;
}

/* A part may be large: one of its objects a step. */
static void close_part(SlicerObject *self) {
    slicer_order *o = &self->order;
    PyObject *object = o->open[--o->n_open];
    const int first = object == o->closes;
    self->looks += 1;
    tw_place_recount(tw_marks_find(&self->marks, object), CLOSED);
    o->parts[o->n_parts++] = (uintptr_t)object | o->last;
    o->last = 0;
    if (first) o->closes = NULL;
}

/* Nothing but the one that led to it holds it, and us, and it holds nothing that has a place: it ends once that one has,
 * and needs none. */
static int goes_along(const slicer_order *o, const slicer_turn *by, slicer_turn turn) {
    return by != NULL && !turn.leads && o->open[o->n_open - 1] == turn.object && Py_REFCNT(turn.object) == 2;
}

static void leave(SlicerObject *self, slicer_turn turn) {
    slicer_order *o = &self->order;
    const tw_place place = tw_marks_find(&self->marks, turn.object);
    o->n_turns -= 1;
    o->turn = turn.before;
    slicer_turn *by = latest(o);
    if (by != NULL && tw_place_counted(place) != turn.lowest) { /* of the part of one that led here */
        lead(o, turn.lowest);
    } else if (goes_along(o, by, turn)) {
        o->n_open -= 1;
        tw_place_recount(place, CLOSED);
        Py_DECREF(turn.object);
    } else {
        begin_part(o, turn);
        lead(o, CLOSED);
    }
}

int order_step(SlicerObject *self) {
    const slicer_order *o = &self->order;
    if (o->closes != NULL) return close_part(self), 1;
    if (o->n_turns == 0) return 0;
    const slicer_turn turn = o->turns[o->n_turns - 1];
    if (turn.lowest == 0) enter(self, turn.object);
    else leave(self, turn);
    return 1;
}

/* Such a one is come upon by what refers to it, and is complete then (python/gc/idle_gc.h, References). */
static int is_perhaps_built(PyObject *object) { return PyTuple_Check(object) || PyFrozenSet_Check(object); }

void order_from(SlicerObject *self, PyObject *object) {
    slicer_order *o = &self->order;
    const tw_place place = tw_marks_find(&self->marks, object);
    if (!is_dead(place) || is_perhaps_built(object) || is_entered(place) || !room_to_turn(o)) return;
    o->turns[o->n_turns++] = (slicer_turn){Py_NewRef(object), 0, 0, 0};
}

void order_begin(SlicerObject *self) {
    slicer_order *o = &self->order;
    if (o->n_gone == 0 && (o->parts_room > KEPT_ROOM || o->gone_room > KEPT_ROOM)) order_free(self);
    o->number = o->turn = 0;
    o->skips = 0;
}

/* ---- the parts ---- */

static PyObject *object_at(const slicer_order *o, size_t i) { return (PyObject *)(o->parts[i] & ~LAST); }

size_t order_size(const SlicerObject *self, size_t most) {
    const slicer_order *o = &self->order;
    size_t n = 0;
    while (n < o->n_parts && n < most && (o->parts[o->n_parts - ++n] & LAST) == 0) continue;
    return n;
}

PyObject *order_peek(const SlicerObject *self) { return object_at(&self->order, self->order.n_parts - 1); }

void order_drop(SlicerObject *self) {
    slicer_order *o = &self->order;
    if (--o->n_parts > 0) __builtin_prefetch(gc_head_of(object_at(o, o->n_parts - 1)), 1);
}

void order_next(SlicerObject *self, PyObject **to, size_t n) {
    for (size_t i = 0; i < n; order_drop(self)) to[i++] = order_peek(self);
}

/* ---- letting go ---- */

static int room_for_gone(slicer_order *o, size_t n) {
    return has_room((void **)&o->gone, &o->gone_room, o->n_gone + n, sizeof *o->gone);
}

int order_let_go_later(SlicerObject *self, PyObject *object) {
    slicer_order *o = &self->order;
    if (!room_for_gone(o, 1)) return 0;
    o->gone[o->n_gone++] = object;
    return 1;
}

/* What one that ends alone holds would end with it, however much that is. What there is no memory for does. */
static int visit_led_to(PyObject *object, void *arg) {
    SlicerObject *self = arg;
    if (walk_is_too_wide(self)) return 1;
    self->looks += 1;
    if (object == NULL || Py_REFCNT(object) != 1 || !PyObject_GC_IsTracked(object)) return 0;
    if (order_let_go_later(self, object)) Py_INCREF(object);
    return 0;
}

void order_hold_led_to(SlicerObject *self, size_t from) {
    for (size_t i = from; i < self->n; i++) walk_traverse(self, self->found[i], visit_led_to);
}

size_t order_gone(const SlicerObject *self) { return self->order.n_gone; }

int order_let_go(SlicerObject *self) {
    slicer_order *o = &self->order;
    PyObject *object = o->gone[--o->n_gone];
    const int ends = Py_REFCNT(object) == 1;
    if (ends) walk_traverse(self, object, visit_led_to);
    if (o->n_gone > 0) __builtin_prefetch(gc_head_of(o->gone[o->n_gone - 1]), 1);
    Py_DECREF(object);
    return ends;
}

void order_let_go_of_all(SlicerObject *self) {
    slicer_order *o = &self->order;
    PyObject **gone = o->gone;
    const size_t n = o->n_gone;
    o->gone = NULL; /* what ends may come here again */
    o->n_gone = o->gone_room = 0;
    for (size_t i = 0; i < n; i++) Py_DECREF(gone[i]);
    PyMem_Free(gone);
}

/* ---- giving up ---- */

static void set_aside(slicer_order *o, size_t n) {
    if (!room_for_gone(o, n)) return; /* no memory: held for ever */
    for (size_t i = 0; i < n; i++) o->gone[o->n_gone++] = object_at(o, o->n_parts - 1 - i);
}

void order_skip(SlicerObject *self, size_t most) {
    slicer_order *o = &self->order;
    const size_t n = order_size(self, most);
    set_aside(o, n);
    o->skips = n > 0 && (o->parts[o->n_parts - n] & LAST) == 0;
    o->n_parts -= n;
    self->looks += n;
}

int order_skips(const SlicerObject *self) { return self->order.skips; }

void order_abandon(SlicerObject *self) {
    slicer_order *o = &self->order;
    while (o->n_open > 0) o->parts[o->n_parts++] = (uintptr_t)o->open[--o->n_open];
    for (; o->n_turns > 0; o->n_turns--) /* those that were entered are open */
        if (o->turns[o->n_turns - 1].lowest == 0) o->parts[o->n_parts++] = (uintptr_t)o->turns[o->n_turns - 1].object;
    set_aside(o, o->n_parts);
    o->n_parts = 0;
    o->turn = 0;
    o->closes = NULL;
}

size_t order_held(const SlicerObject *self) { return self->order.n_parts + self->order.n_open + self->order.n_gone; }

size_t order_bytes(const SlicerObject *self) {
    const slicer_order *o = &self->order;
    return o->turns_room * sizeof *o->turns + o->open_room * sizeof *o->open + o->parts_room * sizeof *o->parts +
           o->gone_room * sizeof *o->gone;
}

void order_free(SlicerObject *self) {
    slicer_order *o = &self->order;
    PyMem_Free(o->turns);
    PyMem_Free(o->open);
    PyMem_Free(o->parts);
    PyMem_Free(o->gone);
    o->turns = NULL, o->open = NULL, o->parts = NULL, o->gone = NULL;
    o->turns_room = o->open_room = o->parts_room = o->gone_room = 0;
}
