/* uvloop's shared object exports libuv: a prepare handle runs before each wait for events, a check handle after it. Both run
 * without the GIL, which is taken only when something is due. */
#include "python/gc/idle_libuv.h"
#include "python/gc/idle_slots.h"
#include "python/stall/handle_clock.h"
#include "python/stall/poll_slot.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define UV_CHECK 2   /* libuv's UV_HANDLE_TYPE_MAP, the same in all of 1.x */
#define UV_PREPARE 9
#define EVENTFD "anon_inode:[eventfd]"
#define ROUNDED_UP_NS 500000 /* on average, of a timer of uvloop's */
#define UV_FIRST ((1 << 16) | (45 << 8)) /* 1.45, of uvloop 0.18: its backend_timeout() is 0 while the kernel does not have all descriptors */

/* Every handle begins with a pointer of its user's. */
typedef struct handle { void *data; } handle;
typedef void (*handle_done)(handle *);

typedef struct uv_calls {
    unsigned (*version)(void);
    size_t (*handle_size)(int type), (*loop_size)(void);
    int (*prepare_init)(void *loop, handle *);
    int (*prepare_start)(handle *, handle_done);
    int (*check_init)(void *loop, handle *);
    int (*check_start)(handle *, handle_done);
    int (*backend_fd)(const void *loop);
    int (*backend_timeout)(const void *loop);
    void (*unref)(handle *);
    void (*update_time)(void *loop);
    void (*close)(handle *, handle_done);
} uv_calls;

typedef struct LibuvIdleSlotsObject {
    PyObject_HEAD
    SlicerObject *slicer;
    uv_calls uv;
    void *loop;
    handle *prepare, *check;   /* NULL: closed */
    uint64_t since;            /* when the wait began that is going on; 0: none does */
    loop_clock clock;
    handle_clock handles;
    int fd;                    /* that it polls, while its clock runs; -1 */
} LibuvIdleSlotsObject;

static const struct { const char *name; size_t offset; } symbols[] = {
    {"uv_version", offsetof(uv_calls, version)}, {"uv_handle_size", offsetof(uv_calls, handle_size)}, {"uv_loop_size", offsetof(uv_calls, loop_size)}, {"uv_prepare_init", offsetof(uv_calls, prepare_init)},
    {"uv_prepare_start", offsetof(uv_calls, prepare_start)}, {"uv_check_init", offsetof(uv_calls, check_init)},
    {"uv_check_start", offsetof(uv_calls, check_start)}, {"uv_backend_fd", offsetof(uv_calls, backend_fd)},
    {"uv_backend_timeout", offsetof(uv_calls, backend_timeout)}, {"uv_unref", offsetof(uv_calls, unref)},
    {"uv_update_time", offsetof(uv_calls, update_time)}, {"uv_close", offsetof(uv_calls, close)}};

static int find_calls(uv_calls *uv, const char *path) {
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL) return -1;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (found == NULL) return -1;
        *(void **)((char *)uv + symbols[i].offset) = found;
    }
    return uv->version() >= UV_FIRST ? 0 : -1; /* the library stays: its loop does */
}

/* ---- before and after a wait ---- */

static void before_wait(handle *prepare) {
    LibuvIdleSlotsObject *self = prepare->data;
    if (!self->slicer->on) return;
    const int ms = self->uv.backend_timeout(self->loop); /* 0 also where a poll would not see all: UV_FIRST */
    const uint64_t wait_ns = ms < 0 ? UINT64_MAX : (uint64_t)ms * TW_NS_PER_MS - (ms > 0 ? ROUNDED_UP_NS : 0);
    self->since = ms == 0 ? 0 : tw_now_ns();
    if (!idle_slots_may_be_due(self->slicer, wait_ns)) return;
    const PyGILState_STATE gil = PyGILState_Ensure();
    Py_INCREF((PyObject *)self); /* what ends may take the policy away */
    const int swept = idle_slots_wait(self->slicer, self->uv.backend_fd(self->loop), wait_ns);
    if (swept) self->uv.update_time(self->loop); /* the wait for a timer is reckoned from it */
    Py_DECREF((PyObject *)self);
    PyGILState_Release(gil);
}

static void after_wait(handle *check) {
    LibuvIdleSlotsObject *self = check->data;
    if (self->since != 0) tw_pace_wait(&self->slicer->pace, tw_now_ns() - self->since);
    self->since = 0;
}

/* ---- life ---- */

static void freed(handle *h) { free(h); }

static handle *start(LibuvIdleSlotsObject *self, int type, int (*init)(void *, handle *), int (*begin)(handle *, handle_done), handle_done run) {
    handle *made = calloc(1, self->uv.handle_size(type));
    if (made == NULL || init(self->loop, made) != 0) {
        free(made);
        return NULL;
    }
    made->data = self;
    begin(made, run);
    self->uv.unref(made); /* it keeps no loop alive */
    return made;
}

static void uv_stop(LibuvIdleSlotsObject *self) {
    if (self->prepare != NULL) self->uv.close(self->prepare, freed);
    if (self->check != NULL) self->uv.close(self->check, freed);
    self->prepare = self->check = NULL;
}

static int uv_start(LibuvIdleSlotsObject *self) {
    self->prepare = start(self, UV_PREPARE, self->uv.prepare_init, self->uv.prepare_start, before_wait);
    self->check = start(self, UV_CHECK, self->uv.check_init, self->uv.check_start, after_wait);
    if (self->prepare != NULL && self->check != NULL) return 0;
    uv_stop(self);
    PyErr_SetString(PyExc_LookupError, "libuv did not take the handles");
    return -1;
}

static int is_eventfd(int fd) {
    char link[40], kind[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, kind, sizeof kind);
    return n == (ssize_t)strlen(EVENTFD) && memcmp(kind, EVENTFD, strlen(EVENTFD)) == 0;
}

/* What uv_async_send() writes to. The loop watches it from its start on, by a watcher that is a part of it: what that
 * waits for, what it is registered for, its descriptor. -1: it is not found. */
static int calls_fd_of(const LibuvIdleSlotsObject *self) {
    const size_t n = self->uv.loop_size() / sizeof(uint32_t);
    const uint32_t *word = self->loop;
    for (size_t i = 0; i + 2 < n; i++)
        if (word[i] == EPOLLIN && (word[i + 1] == EPOLLIN || word[i + 1] == 0) && is_eventfd((int)word[i + 2]))
            return (int)word[i + 2];
    return -1;
}

static void begin_clock(LibuvIdleSlotsObject *self, const char *path) {
    loop_clock_begin(&self->clock, self->slicer->core);
    if (self->clock.track != NULL) self->clock.calls_fd = calls_fd_of(self);
    self->fd = self->clock.track == NULL ? -1 : self->uv.backend_fd(self->loop);
    if (self->fd < 0 || poll_slot_follow(path, self->fd, &self->clock) == 0) return;
    self->fd = -1;
    loop_clock_end(&self->clock);
}

static void end_clock(LibuvIdleSlotsObject *self) {
    handle_clock_end(&self->handles);
    if (self->fd >= 0) poll_slot_leave(self->fd);
    self->fd = -1;
    loop_clock_end(&self->clock);
}

PyObject *libuv_idle_slots_new(SlicerObject *slicer, const char *path, PyObject *capsule) {
    void *loop = PyCapsule_GetPointer(capsule, NULL);
    uv_calls uv;
    if (loop == NULL) return NULL;
    if (find_calls(&uv, path) < 0) return PyErr_Format(PyExc_LookupError, "%s exports no libuv that is known", path);
    LibuvIdleSlotsObject *self = (LibuvIdleSlotsObject *)PyType_GenericAlloc(slicer->uv_type, 0);
    if (self == NULL) return NULL;
    self->slicer = (SlicerObject *)Py_NewRef((PyObject *)slicer);
    self->uv = uv;
    self->loop = loop;
    self->fd = -1;
    if (uv_start(self) == 0) {
        begin_clock(self, path);
        return (PyObject *)self;
    }
    Py_DECREF((PyObject *)self);
    return NULL;
}

/* time_handles(queue): while the loop is timed. */
static PyObject *libuv_time_handles(PyObject *op, PyObject *queue) {
    LibuvIdleSlotsObject *self = (LibuvIdleSlotsObject *)op;
    if (handle_clock_begin(&self->handles, &self->clock, HANDLES_OF_UVLOOP, queue) < 0) return NULL;
    Py_RETURN_NONE;
}

/* close(): on the loop's thread, or while it does not run. */
static PyObject *libuv_idle_slots_close(PyObject *op, PyObject *unused) {
    (void)unused;
    uv_stop((LibuvIdleSlotsObject *)op);
    end_clock((LibuvIdleSlotsObject *)op);
    Py_RETURN_NONE;
}

/* One that was never closed: its handles point here, so they must not run again. */
static void libuv_idle_slots_dealloc(PyObject *op) {
    LibuvIdleSlotsObject *self = (LibuvIdleSlotsObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    uv_stop(self);
    end_clock(self);
    Py_XDECREF((PyObject *)self->slicer);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF((PyObject *)type);
}

static PyMethodDef methods[] = {
    {"close", libuv_idle_slots_close, METH_NOARGS, "close()\n--\n\nGives the handles back: before the loop is closed, on its thread."},
    {"time_handles", libuv_time_handles, METH_O, "time_handles(queue, /)\n--\n\nTimes what the loop takes from its queue, if that is a plain deque."},
    {NULL, NULL, 0, NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Handles in a libuv loop. Made by Slicer.uv()."},
    {Py_tp_dealloc, libuv_idle_slots_dealloc},
    {Py_tp_methods, methods},
    {0, NULL}};
PyType_Spec tw_libuv_idle_slots_spec = {"tailwatch._hot.LibuvIdleSlots", sizeof(LibuvIdleSlotsObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
