/* The events of a core. Where it is in a group they stand in memory that a file beside its segment names, which survives
 * the process; else in memory of its own.
 *
 * What is here runs at install, in the daemon and at the end. A stamp, a step and a collection call event_recorder.h.
 */
#include "python/trace.h"

#include "python/gc/gc_state.h"
#include "python/group.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- its file ---- */

/* "PID-START-JOINED.seg" with our ending. false: it has no segment there. */
static bool name_file(const core_group *group, char *out, uint64_t *joined_ns) {
    tw_group_id id;
    if (!tw_group_id_of(group->group.name, &id)) return false;
    tw_trace_name(out, id.pid, id.start_time, id.joined_ns);
    *joined_ns = id.joined_ns;
    return true;
}

static bool is_joined(const CoreObject *core) { return core->group != NULL && core->group->joined; }

/* Whether the file is that of the segment as it is now: a process that left and joined again has another. */
static bool is_in_place(const CoreObject *core) {
    char name[TW_GROUP_NAME];
    uint64_t joined_ns;
    if (!is_joined(core)) return core->trace.name[0] == '\0';
    return name_file(core->group, name, &joined_ns) && strcmp(name, core->trace.name) == 0;
}

static void remove_file(const CoreObject *core, const char *name) {
    if (name[0] == '\0' || core->group == NULL || core->group->group.dir < 0) return;
    const int dir = group_descriptor(core->group);
    if (dir < 0) return;
    (void)tw_shared_remove(dir, name);
    close(dir);
}

/* ---- begin ---- */

typedef struct making {
    uint64_t events, joined_ns, stops;
    uint32_t label_sets;
    size_t bytes;
    char name[TW_GROUP_NAME];
    void *memory;
    int failed; /* errno of TW_GROUP_SYSTEM */
} making;

/* Without the GIL: allocating and touching 32 MB takes 10 ms. */
static tw_group_problem make_file(CoreObject *core, making *m, int dir) {
    tw_group_problem problem;
    core->trace.dir = dir;
    core->trace.maker = getpid();
    Py_BEGIN_ALLOW_THREADS
    problem = tw_recorder_file(dir, m->name, m->bytes, &m->memory);
    m->failed = errno;
    Py_END_ALLOW_THREADS
    core->trace.maker = 0;
    return problem;
}

static tw_group_problem make_memory(making *m) {
    Py_BEGIN_ALLOW_THREADS
    m->memory = tw_recorder_memory(m->bytes);
    Py_END_ALLOW_THREADS
    m->failed = ENOMEM;
    return m->memory == NULL ? TW_GROUP_SYSTEM : TW_GROUP_FINE;
}

static tw_group_problem make(CoreObject *core, making *m) {
    if (!is_joined(core)) return make_memory(m);
    const int dir = name_file(core->group, m->name, &m->joined_ns) ? group_descriptor(core->group) : -1;
    if (dir < 0) return TW_GROUP_BUSY;
    const tw_group_problem problem = make_file(core, m, dir);
    close(dir);
    return problem;
}

/* It may have been ended, or the group left, while the file was made. */
static bool is_wanted(const CoreObject *core, const making *m) {
    char name[TW_GROUP_NAME] = "";
    uint64_t joined_ns;
    if (core->trace.stops != m->stops || tw_recorder_on(&core->trace.recorder)) return false;
    if (is_joined(core) && !name_file(core->group, name, &joined_ns)) return false;
    return strcmp(name, m->name) == 0;
}

static void name(CoreObject *core) {
    tw_recorder_name(&core->trace.recorder, core->segment);
    tw_recorder_engine(&core->trace.recorder, core->group != NULL ? core->group->engine : 0);
}

static void begin(CoreObject *core, const making *m) {
    if (!is_wanted(core, m)) {
        munmap(m->memory, m->bytes);
        remove_file(core, m->name);
        return;
    }
    memcpy(core->trace.name, m->name, sizeof core->trace.name);
    tw_recorder_begin(&core->trace.recorder, m->memory, m->events, m->label_sets, &core->segment->header, m->joined_ns);
    name(core);
}

static PyObject *reason(const making *m, tw_group_problem problem) {
    if (problem == TW_GROUP_BUSY) return PyErr_SetString(PyExc_BlockingIOError, "the group is not there yet"), NULL;
    return PyUnicode_FromString(problem == TW_GROUP_SYSTEM ? strerror(m->failed) : tw_group_problem_text(problem));
}

/* trace_start(events, /) -> None, or why not: a sentence. */
PyObject *core_trace_start(PyObject *op, PyObject *events) {
    CoreObject *core = (CoreObject *)op;
    making m;
    memset(&m, 0, sizeof m);
    m.events = PyLong_AsUnsignedLongLong(events);
    if (m.events == (uint64_t)-1 && PyErr_Occurred()) return NULL;
    m.label_sets = (uint32_t)core->segment->header.max_label_sets;
    m.bytes = tw_trace_bytes(m.events, m.label_sets);
    m.stops = core->trace.stops;
    if (m.bytes == 0) {
        PyErr_Format(PyExc_ValueError, "trace: expected %d to %llu events", TW_TRACE_EVENTS_LEAST, (unsigned long long)TW_TRACE_EVENTS_MOST);
        return NULL;
    }
    if (tw_recorder_on(&core->trace.recorder) || core->trace.maker == getpid()) Py_RETURN_NONE;
    const tw_group_problem problem = make(core, &m);
    if (problem != TW_GROUP_FINE) return reason(&m, problem);
    begin(core, &m);
    Py_RETURN_NONE;
}

/* ---- end ---- */

static void end(CoreObject *core) {
    size_t bytes;
    if (core->trace.recorder.pid == (uint64_t)getpid()) { /* a fork child's segment may still be its parent's */
        tw_recorder_stalls(&core->trace.recorder, &core->segment->host);
        tw_store(&core->segment->host.stacks_wanted, 0);
    }
    void *memory = tw_recorder_end(&core->trace.recorder, &bytes);
    if (memory != NULL) munmap(memory, bytes);
    core->trace.stops++;
}

/* trace_stop(): before the group is left. */
PyObject *core_trace_stop(PyObject *op, PyObject *unused) {
    CoreObject *core = (CoreObject *)op;
    (void)unused;
    core_forget_trace(core); /* a parent's file stays */
    end(core);
    remove_file(core, core->trace.name);
    core->trace.name[0] = '\0';
    Py_RETURN_NONE;
}

void core_free_trace(CoreObject *core) {
    if (core->epoch != NULL) Py_XDECREF(core_trace_stop((PyObject *)core, NULL));
}

void core_forget_trace(CoreObject *core) {
    const pid_t self = getpid();
    if (core->trace.maker != 0 && core->trace.maker != self) {
        close(core->trace.dir);
        core->trace.maker = 0;
    }
    if (!tw_recorder_on(&core->trace.recorder) || core->trace.recorder.pid == (uint64_t)self) return;
    end(core);
    core->trace.name[0] = '\0';
}

/* ---- while it runs ---- */

/* trace_turn(whole, /): by the daemon. */
PyObject *core_trace_turn(PyObject *op, PyObject *whole) {
    CoreObject *core = (CoreObject *)op;
    if (!core_records(core)) Py_RETURN_NONE;
    const uint64_t now = tw_now_ns();
    tw_recorder_stalls(&core->trace.recorder, &core->segment->host);
    tw_recorder_sample(&core->trace.recorder, core->segment, now);
    if (core->gc.heap != NULL) tw_recorder_count(&core->trace.recorder, now, TW_COUNTER_UNFROZEN, heap_unfrozen(core->gc.heap));
    if (whole != Py_True) Py_RETURN_NONE;
    tw_recorder_tick(&core->trace.recorder);
    name(core);
    Py_RETURN_NONE;
}

PyObject *core_tracing(PyObject *op, void *unused) {
    const CoreObject *core = (CoreObject *)op;
    (void)unused;
    return PyBool_FromLong(core_records(core) && is_in_place(core));
}

PyObject *core_trace_file(PyObject *op, void *unused) {
    (void)unused;
    return PyUnicode_FromString(((CoreObject *)op)->trace.name);
}

PyObject *core_trace_memory(PyObject *op, void *unused) {
    const tw_recorder *r = &((CoreObject *)op)->trace.recorder;
    (void)unused;
    return Py_BuildValue("KK", (unsigned long long)(uintptr_t)r->head, r->head == NULL ? 0ULL : (unsigned long long)r->head->bytes);
}
