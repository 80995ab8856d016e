/* Idle-time collection: the old heap is collected in slices, by the collector itself.
 *
 * A slice goes on with the cycle that is under way (python/gc/cycle_detect.h), moves what it found dead to the young
 * generation, and has that collected; where its walk took long, the next slice has. What hangs on it is let go of, object
 * by object. Only what the collector itself finds unreachable is freed, and what ends by its count then.
 */
#ifndef TAILWATCH_PYTHON_GC_IDLE_GC_H
#define TAILWATCH_PYTHON_GC_IDLE_GC_H

#include "python/core.h"

#include "tailwatch/base/address_set.h"
#include "tailwatch/gc/mark_table.h"
#include "tailwatch/gc/slice_pacer.h"

/* What stands before each object that the collector tracks, and its lists, CPython 3.10 to 3.13. */
typedef struct gc_head { uintptr_t next, prev; } gc_head;
typedef struct gc_list { gc_head head; int threshold, count; } gc_list;
static inline gc_head *gc_head_of(PyObject *object) { return (gc_head *)object - 1; }
static inline PyObject *gc_object_of(gc_head *head) { return (PyObject *)(head + 1); }
#define PREV_FLAGS ((uintptr_t)3) /* finalized, collecting: in the word of the previous one */
static inline gc_head *gc_previous(const gc_head *head) { return (gc_head *)(head->prev & ~PREV_FLAGS); }
static inline gc_head *gc_next(const gc_head *head) { return (gc_head *)head->next; }

/* References. An object is in the collector's lists from the moment it is allocated, while the thread that builds it may
 * have handed over the GIL: tuple(generator) runs Python between two elements. CPython raises SystemError ("bad argument to
 * internal function") where a tuple or a frozenset has a second reference while it is built (_PyTuple_Resize,
 * PyTuple_SetItem, PySet_Add). So the rule of all that goes through objects which are not its own:
 *   - Objects are found in the collector's lists and by tp_traverse, and are borrowed. gc.get_objects(), get_referrers() and
 *     get_referents() are never called: they return lists that hold what they found.
 *   - A borrowed object is used until the GIL may be released next, or anything of Python may run: in one call of C, in
 *     which nothing is deallocated and no collection begins.
 *   - What is remembered longer is an address, whose marks are a hint that is checked by a look at the object in its list, or
 *     a position between two objects: an object of ours, linked there by list_insert().
 * The exception are the dead that are put in order (python/gc/garbage_scc.h). Each of them was come upon by a reference that
 * another dead object has, so that it is complete; or in a list, and is neither a tuple nor a frozenset. */

/* Puts an object of ours, untracked so far, before that one in its list, as the collector's own gc_list_move() would. GIL; no
 * collection under way. */
static inline void list_insert(PyObject *ours, gc_head *before) {
    gc_head *self = gc_head_of(ours), *behind = gc_previous(before);
    self->next = (uintptr_t)before;
    self->prev = (uintptr_t)behind | (self->prev & PREV_FLAGS);
    behind->next = (uintptr_t)self;
    before->prev = (uintptr_t)self | (before->prev & PREV_FLAGS);
}

/* Takes it out of the list it is in, if it is in any. */
static inline void list_leave(PyObject *ours) { PyObject_GC_UnTrack(ours); }

/* Cycles in which an object is looked at until it is tenured, the one in which it grew old included. */
#define SLICER_WINDOW 8

/* Memory takes as long as some ten references: so many are fetched while those before them are looked at. */
#define SLICER_AHEAD 8

/* Looks, until the clock is read again: some ten microseconds, where memory is slow. So many each slice may make. */
#define SLICER_ASKS_EVERY 64

typedef enum slicer_phase { SLICER_RESTS, SLICER_COUNT, SLICER_REACH, SLICER_ORDER, SLICER_PARTS } slicer_phase;

/* The dead, and the search that puts them in order (python/gc/garbage_scc.h). All objects in it are held by it. */
typedef struct slicer_order {
    struct slicer_turn *turns;  /* what the search goes on with, the last first */
    PyObject **open;           /* entered, in no part yet */
    uintptr_t *parts;          /* the parts, the next one last */
    PyObject **gone;           /* in no part any more: to be let go of, the last first */
    size_t n_turns, turns_room, n_open, open_room, n_parts, parts_room, n_gone, gone_room;
    size_t turn;               /* the one that was entered last and not left, counted from 1; 0: none */
    uint32_t number;           /* of the object that was entered last */
    PyObject *closes;          /* the first of a part that is on its way from those open; NULL: none */
    uintptr_t last;            /* what marks its last, until that is there */
    int skips;                 /* the next part is half left out */
} slicer_order;

typedef struct SlicerObject {
    PyObject_HEAD
    CoreObject *core;
    PyObject *collect;         /* gc.collect as it was when this was made */
    PyObject *zero;
    PyObject *markers[SLICER_WINDOW]; /* nothing else refers to them; each behind all that was old as a cycle began */
    uint64_t begun;            /* cycles, since the markers stand where they should: the newest is begun % SLICER_WINDOW */
    int end_moves;             /* that one is not there yet */
    size_t before_start;       /* objects that this cycle found before where a short one after it would begin: they are tenured */
    size_t tenured, tenured_at_full; /* objects that short cycles leave out; and as the last whole one ended */
    int whole;                 /* this cycle goes through the tenured, too */
    int whole_wanted;          /* and so must the next */
    uint64_t poor, patience;   /* short cycles in a row that found little; how many of them are borne */
    uint64_t grown;            /* objects that grew old since the last whole one ended */
    gc_list *lists;            /* generations 0, 1, 2; NULL: their layout is not known */
    gc_list *permanent;        /* the frozen */
    uintptr_t last_frozen;     /* of them, as a walk was last gone on with */
    PyObject *frozen_end;      /* ours; in the list of the frozen behind all that are in this set, or in none */
    tw_addresses frozen;
    PyObject **found;          /* of the slice being made: borrowed */
    size_t n, room, allocated; /* objects found, places for them in this slice, and ever */
    tw_marks marks;            /* of the cycle */
    tw_place ahead[SLICER_AHEAD]; /* to be counted; NULL: none; only while a walk goes on */
    unsigned aheads;
    slicer_phase phase;
    PyObject *cursor;          /* ours; before the object where a walk goes on, or in no list */
    size_t looks, most_looks;  /* of the slice */
    size_t most_members;       /* objects that it may have collected, unless a single part has more */
    uint64_t until_ns;         /* its walk is over then, whatever is left of its looks; 0: no such time */
    size_t asks_at;            /* looks, when the clock is read next */
    size_t width;              /* references of one object, as it is traversed */
    size_t walked;             /* objects of this cycle */
    int mistaken;              /* one of them stands where a frozen one had died */
    int counted_again;         /* for that, in this cycle */
    int again, reaches;        /* another walk is needed; those that were made */
    int hurried;               /* this one had no time for all that it came upon */
    slicer_order order;
    int all_begun;             /* each dead one was come upon: what is left of the search needs no list */
    size_t moved;              /* to the young by this slice */
    size_t uncollected;        /* moved to the young by the last slice, which left their collection to the next one */
    size_t owned;              /* of those found, the first so many are held by us until they have become young */
    unsigned born;             /* once more in each fork child */
    uintptr_t busy;            /* the thread that makes a slice, 0: none; a finalizer may run whatever it likes, us too */
    uint64_t given_ns;         /* when an idle slot was last used, for more than the young */
    int on;                    /* idle slots are used */
    int force;                 /* slicer_force: a memory limit was met */
    uint64_t forced_until_ns;  /* of the time, forced slices take half at most */
    unsigned long every;       /* of so many engine steps, about, one is an idle slot */
    uint64_t slot_ns;          /* of the clock, in which the last one did */
    int many_young;            /* they were counted, and are enough for a slice */
    size_t taken_off;          /* of what the collector counts as young, by the old that we let go of since the youngest were collected */
    uint64_t counted_ns;       /* when */
    size_t others_young;       /* when a collection that is not ours began */
    tw_pace pace;
    PyTypeObject *idle_type, *uv_type;
} SlicerObject;

extern PyType_Spec tw_slicer_spec;

/* By how many the heap has grown since the youngest were collected: an old object that dies is taken off, but not by us. */
size_t slicer_young_of(const SlicerObject *self);

/* How many young ones there are, which may be more: so many at most. SLICER_MOST_COUNTED take some ten microseconds. */
#define SLICER_MOST_COUNTED (8 * TW_PACE_YOUNG)
size_t slicer_count_young(const SlicerObject *self, size_t most);

/* How many young ones a slice would collect: counted; where they are more than that, the collector's count. */
size_t slicer_young(const SlicerObject *self);

/* Without those that the last slice moved to them. */
size_t slicer_new_young(const SlicerObject *self);

/* Of the slice that would be next. */
tw_walk slicer_walk_of(const SlicerObject *self);

/* What an idle slot is used for, whether it fits or not: what is due; a slice; a full collection, once. */
enum slicer_force { SLICER_WHAT_FITS, SLICER_SLICES, SLICER_PASS };

/* One slice. seeds: a list, emptied: what they lead to is moved, so many objects at most; or None: the cycle goes on for so
 * many looks, or ns (0: as long as they take), whichever is over first. With a limit of time a long walk leaves the
 * collection of what it moved to the next slice, which does nothing else. 0; 1: none, as a collection is under way; -1: an
 * exception is set. */
typedef struct slicer_budget { size_t looks; uint64_t ns; } slicer_budget;
typedef struct slicer_done { tw_slice slice; uint64_t ns; } slicer_done;
int slicer_run(SlicerObject *self, tw_slice_reason reason, PyObject *seeds, slicer_budget budget, slicer_done *done);

/* Everything that is not frozen, by gc.collect. 0; 1: none, as a collection is under way; -1: an exception is set. */
int slicer_pass(SlicerObject *self, tw_slice_reason reason, size_t *freed);

/* Bytes that it takes. */
size_t slicer_bytes(const SlicerObject *self);

/* methods of Slicer */
PyObject *slicer_locate(PyObject *op, PyObject *args);
PyObject *slicer_freeze(PyObject *op, PyObject *call);
PyObject *slicer_sync_frozen(PyObject *op, PyObject *unused);
PyObject *slicer_forget(PyObject *op, PyObject *unused);

/* A collection that is not ours begins (whole: of everything; what is held is let go of, which may run anything);
 * it has ended, and freed so many. The pacer takes up what the collector counted. */
void slicer_other_begins(SlicerObject *self, int whole);
void slicer_other_ended(SlicerObject *self, int whole, uint64_t freed);

#endif
