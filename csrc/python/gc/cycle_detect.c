#include "python/gc/cycle_detect.h"
#include "python/gc/garbage_scc.h"
#include "python/gc/traverse.h"

#include "base/arithmetic.h"

#define MOST_REACHES 8     /* walks for what refers backwards; what is taken for dead then the collector sees to live */
#define HURRIED_REACHES 4  /* so many that had no time for all that they came upon count as one */
#define MOST_OF_A_PART 1600       /* objects, whatever there is time for */
#define MOST_FOUND 1024           /* in a slice without a limit of time */
#define MOST_LET_GO 1024          /* that are taken to be let go of, each slice */
#define FEW_TENURED 10000  /* a walk through them costs little */
#define MOST_PATIENCE 7   /* short cycles in a row that found little */
#define OF_A_MEMBER 10     /* looks that it costs to let go of an object, or to collect it */
#define TIDIED 64          /* places of the marks, each slice */

/* ---- the lists ---- */

static PyObject *end_of(const SlicerObject *self) { return self->markers[self->begun % SLICER_WINDOW]; }

/* The old object after that one (NULL: the first), NULL: none; the walk ends at the marker. A collection by other code
 * may have put the one where it stands into another list, or a freeze. */
static PyObject *after(SlicerObject *self, PyObject *object) {
    gc_list *lists = self->lists;
    gc_head *next = gc_next(object == NULL ? &lists[2].head : gc_head_of(object));
    if (next == &lists[2].head) next = gc_next(&lists[1].head);
    if (next == &lists[1].head || next == &lists[0].head || next == &self->permanent->head) return NULL;
    return gc_object_of(next) == end_of(self) && !self->end_moves ? NULL : gc_object_of(next);
}

/* Where a short cycle begins: behind the oldest marker that it does not move. */
static PyObject *start_of(const SlicerObject *self, uint64_t cycle) { return self->markers[(cycle < SLICER_WINDOW ? 1 : cycle + 1) % SLICER_WINDOW]; }

/* The first of a cycle. */
static PyObject *first(SlicerObject *self) { return after(self, self->whole ? NULL : start_of(self, self->begun)); }

static tw_place find(SlicerObject *self, PyObject *object) { return tw_marks_find(&self->marks, object); }

static int push(SlicerObject *self, PyObject *object) {
    if (self->n == self->room) return 0;
    self->found[self->n++] = object;
    return 1;
}

/* What a look costs is known from slices before this one, where memory was in the way or not: it may be five times as much. */
static int is_out_of_time(SlicerObject *self) {
    if (self->until_ns == 0 || self->looks < self->asks_at) return 0;
    self->asks_at = self->looks + SLICER_ASKS_EVERY;
    if (tw_now_ns() < self->until_ns) return 0;
    self->most_looks = least(self->most_looks, self->looks);
    return 1;
}

static int enough(SlicerObject *self) {
    return is_out_of_time(self) || self->looks >= self->most_looks;
}

/* ---- count ---- */

/* Once some others were. */
static void count_later(SlicerObject *self, tw_place place) {
    tw_place *next = &self->ahead[self->aheads++ % SLICER_AHEAD];
    __builtin_prefetch(place, 1);
    tw_place_count(*next);
    *next = place;
}

static void count_the_last(SlicerObject *self) {
    for (int i = 0; i < SLICER_AHEAD; i++) count_later(self, NULL);
}

/* What is frozen, or no container, is counted where that costs nothing: it is never read. */
static int visit_count(PyObject *object, void *arg) {
    SlicerObject *self = arg;
    if (walk_is_too_wide(self)) return 1;
    self->looks += 1;
    if (object == NULL) return 0;
    tw_place place = find(self, object);
    if (place == NULL) {
        if (tw_addresses_has(&self->frozen, object) || !PyObject_GC_IsTracked(object)) return 0;
        place = tw_marks_make(&self->marks, object);
    }
    count_later(self, place);
    return 0;
}

/* One that stands in a list is not frozen: its address is that of an object that was, and died. */
static void count(SlicerObject *self, PyObject *object) {
    const tw_place place = tw_marks_make(&self->marks, object);
    if (place == NULL || tw_place_has(place, TW_MARK_WALKED)) return;
    tw_place_set(place, TW_MARK_WALKED);
    self->mistaken |= tw_addresses_remove(&self->frozen, object);
    if (object == start_of(self, self->begun + 1)) self->before_start = self->walked;
    self->walked += 1;
    walk_traverse(self, object, visit_count);
}

/* ---- reach ---- */

/* What was reached may be no container, but stand beside one that was walked, or where one had been: that one was not
 * reached. To see it at once would be to wait for the memory of each. */
static int is_reached(SlicerObject *self, PyObject *object) {
    if (PyObject_GC_IsTracked(object)) return 1;
    tw_place_clear(find(self, object), TW_MARK_REACHED);
    return 0;
}

static int visit_reach(PyObject *object, void *arg) {
    SlicerObject *self = arg;
    if (walk_is_too_wide(self)) return 1;
    self->looks += 1;
    const tw_place place = object == NULL ? NULL : find(self, object);
    if (!tw_place_has(place, TW_MARK_WALKED) || tw_place_has(place, TW_MARK_REACHED)) return 0;
    tw_place_set(place, TW_MARK_REACHED);
    __builtin_prefetch(gc_head_of(object));
    if (!push(self, object)) self->again |= is_reached(self, object);
    return 0;
}

static void look_on_from(SlicerObject *self, PyObject *object) {
    self->looks += 1;
    if (!is_reached(self, object)) return;
    tw_place_set(find(self, object), TW_MARK_LOOKED);
    walk_traverse(self, object, visit_reach);
}

/* All that an object that lives leads to: of what was found, the last first, but some are fetched meanwhile. What there is no
 * time for another walk comes by at: rather a slice is longer by half, which it may, as it is meant to take half of its
 * moment. */
static void reach_from(SlicerObject *self, PyObject *object) {
    const size_t most_looks = self->most_looks + self->most_looks / 2;
    PyObject *fetched[SLICER_AHEAD] = {object};
    size_t began = 0, ended = 1;
    for (; began < ended && self->looks < most_looks && !is_out_of_time(self); began++) {
        look_on_from(self, fetched[began % SLICER_AHEAD]);
        while (self->n > 0 && ended - began < SLICER_AHEAD) fetched[ended++ % SLICER_AHEAD] = self->found[--self->n];
    }
    self->hurried |= began < ended;
    for (; began < ended; began++) self->again |= is_reached(self, fetched[began % SLICER_AHEAD]);
    while (self->n > 0) self->again |= is_reached(self, self->found[--self->n]);
}

static int is_held_from_outside(PyObject *object, tw_place place) {
    const uint32_t counted = tw_place_counted(place);
    return counted == TW_MARKS_COUNT_MOST || Py_REFCNT(object) > (Py_ssize_t)counted;
}

static void reach(SlicerObject *self, PyObject *object) {
    const tw_place place = find(self, object);
    if (!tw_place_has(place, TW_MARK_WALKED)) return;
    if (!tw_place_has(place, TW_MARK_REACHED)) {
        if (!is_held_from_outside(object, place)) return;
        tw_place_set(place, TW_MARK_REACHED);
    }
    if (!tw_place_has(place, TW_MARK_LOOKED)) reach_from(self, object);
}

/* ---- parts ---- */

/* The next part is let go of if only we hold it: it ends by its count, and the collector need not see it. */
static int let_go_of_part(SlicerObject *self) {
    PyObject *object = order_peek(self);
    if (Py_REFCNT(object) > 1 || !order_let_go_later(self, object)) return 0;
    order_drop(self);
    self->looks += 1;
    return 1;
}

/* The next part is for the collector, unless there is enough for it. */
static int take_part(SlicerObject *self, size_t n) {
    const size_t from = self->n;
    if (from > 0 && from + n > self->most_members) return 0;
    order_next(self, self->found + from, n);
    self->owned = self->n += n;
    self->looks += n;
    order_hold_led_to(self, from);
    return 1;
}

static size_t largest_part(const SlicerObject *self) {
    return self->most_members > MOST_OF_A_PART ? self->most_members : MOST_OF_A_PART;
}

/* The parts that nothing old leads to any more, while there is time for them. Whether none is left. A part that is larger than
 * any slice may be is left to a full collection. */
static int take_parts(SlicerObject *self) {
    const size_t most = largest_part(self);
    int waits = order_gone(self) > 0; /* one that is to be let go of may hold the next that is for the collector */
    while (order_gone(self) < MOST_LET_GO && !enough(self)) {
        const size_t n = order_size(self, most + 1);
        if (n == 0) return order_gone(self) == 0 && self->n == 0;
        if (order_skips(self) || n > most) order_skip(self, MOST_OF_A_PART);
        else if (n == 1 && let_go_of_part(self)) waits = 1;
        else if (waits || !take_part(self, n)) return 0;
    }
    return 0;
}

/* ---- the cycle ---- */

/* The walk rests before that object (NULL: nowhere). The position is an object of ours in the collector's list, linked as
 * the collector itself would: what stands beside it may be freed, untracked or moved meanwhile, and no object of the
 * host has a reference of ours (python/gc/idle_gc.h, References). */
static void rest_before(SlicerObject *self, PyObject *object) {
    list_leave(self->cursor);
    if (object != NULL) list_insert(self->cursor, gc_head_of(object));
}

/* Where the walk goes on: the first object, unless it rested. */
static PyObject *leave_rest(SlicerObject *self) {
    if (!PyObject_GC_IsTracked(self->cursor)) return first(self);
    PyObject *object = after(self, self->cursor);
    list_leave(self->cursor);
    return object;
}

/* From where the walk rests. Whether it came to its end. */
static int walk(SlicerObject *self, void (*look)(SlicerObject *, PyObject *)) {
    PyObject *object = leave_rest(self);
    while (object != NULL && !enough(self)) {
        PyObject *next = after(self, object);
        if (next != NULL) __builtin_prefetch(gc_head_of(next)), __builtin_prefetch((char *)next + 48);
        self->looks += 1;
        look(self, object);
        object = next;
    }
    count_the_last(self);
    rest_before(self, object);
    return object == NULL;
}

static void begin_order(SlicerObject *self) {
    self->all_begun = 0;
    order_begin(self);
    self->phase = SLICER_ORDER;
}

/* The tenured dead hold what grew old after them. Where short cycles find little of what grew old dead, a whole one is tried;
 * and again soon, if that was why. */
static void learn(SlicerObject *self) {
    const tw_pace *pace = &self->pace;
    self->grown += pace->grown_before;
    const int poor = pace->dead * 2 < (self->whole ? self->grown : pace->grown_before);
    if (!self->whole) {
        if (pace->grown_before >= TW_PACE_YOUNG) self->poor = poor ? self->poor + 1 : 0; /* few show nothing */
        return;
    }
    if (self->poor > 0) self->patience = poor ? least(2 * self->patience + 1, MOST_PATIENCE) : 0;
    self->poor = self->grown = 0;
}

static void end_cycle(SlicerObject *self) {
    if (self->before_start > self->walked) self->before_start = self->walked; /* it begins where this one ended */
    learn(self);
    self->tenured = self->before_start + (self->whole ? 0 : self->tenured);
    if (self->whole) self->tenured_at_full = self->tenured;
    tw_pace_cycle_ended(&self->pace, self->tenured, self->walked - self->before_start, self->whole);
    if (self->whole_wanted) tw_pace_want_cycle(&self->pace); /* this one was under way as it was asked for */
    self->phase = SLICER_RESTS;
}

static void begin_count(SlicerObject *self) {
    tw_marks_next_cycle(&self->marks);
    self->before_start = SIZE_MAX;
    self->walked = 0;
    self->mistaken = 0;
    self->phase = SLICER_COUNT;
}

/* What refers to one that was taken for frozen was perhaps not counted, and it would live for a cycle more. A short cycle
 * leaves it to the next. */
static int must_count_again(const SlicerObject *self) { return self->whole && self->mistaken && !self->counted_again; }

static void next_phase(SlicerObject *self) {
    switch (self->phase) {
    case SLICER_COUNT:
        if (must_count_again(self)) {
            begin_count(self);
            self->counted_again = 1;
            break;
        }
        self->phase = SLICER_REACH;
        self->reaches = 0;
        break;
    case SLICER_REACH:
        self->reaches += self->hurried ? 1 : HURRIED_REACHES;
        if (self->again && self->reaches < MOST_REACHES * HURRIED_REACHES) break;
        begin_order(self);
        break;
    case SLICER_ORDER: self->phase = SLICER_PARTS; break;
    case SLICER_PARTS: end_cycle(self); break;
    default: break;
    }
    self->again = self->hurried = 0;
}

/* Those that have lived long are left out until there are a quarter more of them, or few anyway. */
static int must_be_whole(const SlicerObject *self) {
    return self->whole_wanted || self->begun == 0 || self->tenured < FEW_TENURED || self->poor > self->patience ||
           self->tenured > self->tenured_at_full + self->tenured_at_full / 4;
}

static void begin_cycle(SlicerObject *self) {
    self->whole = must_be_whole(self);
    if (self->whole) self->whole_wanted = 0;
    tw_pace_begin_cycle(&self->pace, self->whole ? self->tenured : 0);
    self->begun += 1;
    self->end_moves = 1;
    self->counted_again = 0;
    begin_count(self);
}

/* After a freeze by any code what is old is another heap, and the markers may be frozen, too. */
static void see_freezes(SlicerObject *self) {
    if (self->last_frozen == self->permanent->head.prev) return;
    walk_abandon(self);
    self->begun = self->tenured = 0;
    self->last_frozen = self->permanent->head.prev;
}

/* The search stops where there was time for no more; the list is gone through only for where it begins. */
static void begin_search(SlicerObject *self, PyObject *object) {
    order_from(self, object);
    while (!enough(self) && order_step(self)) continue;
}

static int order(SlicerObject *self) {
    while (!enough(self) && order_step(self)) continue;
    if (!self->all_begun && !enough(self)) self->all_begun = walk(self, begin_search);
    return self->all_begun && self->order.n_turns == 0 && self->order.closes == NULL;
}

/* Whether the phase is over. */
static int go_on(SlicerObject *self) {
    switch (self->phase) {
    case SLICER_COUNT: return walk(self, count);
    case SLICER_REACH: return walk(self, reach);
    case SLICER_ORDER: return order(self);
    default: return take_parts(self);
    }
}

void walk_on(SlicerObject *self) {
    if (self->until_ns == 0) self->most_members = most(self->most_looks / OF_A_MEMBER, MOST_FOUND);
    see_freezes(self);
    if (self->phase == SLICER_RESTS) begin_cycle(self);
    tw_marks_tidy(&self->marks, TIDIED);
    const slicer_phase phase = self->phase;
    while (self->phase == phase && !enough(self) && go_on(self)) next_phase(self); /* the next one costs differently */
}

/* Each end of an old object takes one off what the collector counts as young. */
static int let_go_of_one(SlicerObject *self) {
    const int young = self->lists[0].count, ended = order_let_go(self), left = self->lists == NULL ? young : self->lists[0].count;
    if (left < young) self->taken_off += (size_t)(young - left);
    return ended;
}

size_t walk_let_go(SlicerObject *self) {
    size_t ended = 0;
    while (order_gone(self) > 0 && self->lists != NULL && !enough(self)) {
        ended += (size_t)let_go_of_one(self);
        self->looks += OF_A_MEMBER;
    }
    return ended;
}

/* Their end is the collector's, but for those that other code took apart meanwhile. */
size_t walk_let_go_of_found(SlicerObject *self) {
    const size_t owned = self->owned;
    size_t ended = 0;
    self->owned = 0; /* what ends may come here again */
    for (size_t i = 0; i < owned; i++) {
        ended += Py_REFCNT(self->found[i]) == 1;
        Py_DECREF(self->found[i]);
    }
    return ended;
}

void walk_abandon(SlicerObject *self) {
    rest_before(self, NULL);
    order_abandon(self);
    if (self->phase != SLICER_RESTS) self->begun -= 1; /* the next one begins where it did */
    self->phase = SLICER_RESTS;
    self->end_moves = 0;
}

/* ---- by name ---- */

static int visit_closure(PyObject *object, void *arg) {
    SlicerObject *self = arg;
    if (walk_is_too_wide(self) || self->n == self->room) return 1;
    if (object == NULL || tw_addresses_has(&self->frozen, object) || !PyObject_GC_IsTracked(object)) return 0;
    if (PyType_Check(object) || PyModule_Check(object)) return 0; /* they lead everywhere */
    const tw_place place = tw_marks_make(&self->marks, object);
    if (place == NULL || tw_place_has(place, TW_MARK_FOUND) || !push(self, object)) return 0;
    tw_place_set(place, TW_MARK_FOUND);
    return 0;
}

void walk_closure(SlicerObject *self, PyObject *object, size_t most) {
    const size_t room = self->room, from = self->n;
    if (from + most < room) self->room = from + most;
    self->width = 0;
    visit_closure(object, self);
    for (size_t i = from; i < self->n; i++) walk_traverse(self, self->found[i], visit_closure);
    self->room = room;
}

static void make_young(SlicerObject *self, PyObject *object) {
    if (!PyObject_GC_IsTracked(object)) return;
    tw_place_clear(find(self, object), TW_MARK_FOUND);
    PyObject_GC_UnTrack(object);
    PyObject_GC_Track(object);
}

void walk_move_found(SlicerObject *self) {
    for (size_t i = 0; i < self->n; i++) make_young(self, self->found[i]);
    if (self->end_moves) make_young(self, end_of(self));
    self->moved += self->n + (size_t)self->end_moves;
    self->n = 0;
    self->end_moves = 0;
}
