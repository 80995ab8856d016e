#include "python/gc/gc_state.h"

#define FIRST_KNOWN 0x030A0000
#define FIRST_UNKNOWN 0x030E0000
#define PREVIOUS_FLAGS ((uintptr_t)3)

typedef struct list_head { uintptr_t next, previous; } list_head;
typedef struct generation { list_head head; int threshold, count; } generation;

/* struct _gc_runtime_state, from its generations on. */
struct heap_books {
    generation of[3];
    list_head *youngest;
    generation permanent;
    struct { Py_ssize_t collections, collected, uncollectable; } stats[3];
    int collecting;
    PyObject *garbage, *callbacks;
    Py_ssize_t survivors, pending; /* of the last full collection; promoted since */
};

static int layout_is_known(void) {
    PyObject *version = PySys_GetObject("hexversion"); /* borrowed */
    const long number = version == NULL ? 0 : PyLong_AsLong(version);
    PyErr_Clear();
    return number >= FIRST_KNOWN && number < FIRST_UNKNOWN;
}

/* A new object is the last of the youngest generation: behind it comes that list's head. */
static const heap_books *behind_the_newest(void) {
    PyObject *newest = PyList_New(0);
    if (newest == NULL || !PyObject_GC_IsTracked(newest)) {
        Py_XDECREF(newest);
        return NULL;
    }
    const list_head *own = (const list_head *)newest - 1, *head = (const list_head *)own->next;
    const int last = (head->previous & ~PREVIOUS_FLAGS) == (uintptr_t)own;
    Py_DECREF(newest);
    return last ? (const heap_books *)head : NULL;
}

static PyObject *garbage_list(void) {
    PyObject *gc = PyImport_ImportModule("gc");
    PyObject *garbage = gc == NULL ? NULL : PyObject_GetAttrString(gc, "garbage");
    Py_XDECREF(gc);
    Py_XDECREF(garbage); /* the collector holds it */
    return garbage;
}

const heap_books *heap_find(PyObject *callbacks) {
    const heap_books *books = layout_is_known() ? behind_the_newest() : NULL;
    const PyObject *garbage = books == NULL ? NULL : garbage_list();
    PyErr_Clear();
    if (garbage == NULL || books->youngest != &books->of[0].head) return NULL;
    return books->garbage == garbage && books->callbacks == callbacks ? books : NULL;
}

uint64_t heap_unfrozen(const heap_books *books) {
    const Py_ssize_t objects = books->survivors + books->pending + (books->of[0].count > 0 ? books->of[0].count : 0);
    return objects > 0 ? (uint64_t)objects : 0;
}

uint64_t heap_promoted(const heap_books *books) { return books->pending > 0 ? (uint64_t)books->pending : 0; }

uint64_t heap_count(const heap_books *books, uint64_t most) {
    const list_head *head = &books->of[2].head, *at = head;
    uint64_t n = books->of[0].count > 0 ? (uint64_t)books->of[0].count : 0;
    most += n;
    if (books->collecting) return UINT64_MAX;
    while (n <= most && (at = (const list_head *)at->next) != head) n++;
    return n <= most ? n : UINT64_MAX;
}

static int over(const generation *g) { return g->count > g->threshold; }

/* The oldest generation over its threshold; all the heap only where a quarter has grown old since. */
static int chosen(const heap_books *books) {
    if (over(&books->of[2]) && books->pending >= books->survivors / 4) return 2;
    return over(&books->of[1]) ? 1 : 0;
}

int heap_is_due(const heap_books *books, int generation) {
    return PyGC_IsEnabled() && over(&books->of[0]) && chosen(books) == generation;
}
