#include "python/stall/host.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/arithmetic.h"
#include "tailwatch/attribute/host_split.h"
#include "tailwatch/attribute/stalls.h"
#include "tailwatch/stall/cgroup_cpu.h"
#include "tailwatch/stall/thread_state.h"

#define FAULTS 64

static tw_host *host_of(const CoreObject *core) { return &core->segment->host; }

static void found(CoreObject *core, tw_host_source source, tw_knowledge what) {
    tw_store(&host_of(core)->facts.knowledge[source], (uint64_t)what + 1);
}

/* ---- tracks ---- */

static void probe_schedstat(CoreObject *core, const tw_host_track *t) {
    tw_host_point point;
    tw_host_point_read(t, &point);
    if (tw_load(&t->schedstat) == 0) found(core, TW_HOST_SCHEDSTAT, TW_ABSENT);
    else found(core, TW_HOST_SCHEDSTAT, point.run_delay_ns == 0 && point.cpu_ns > 1000 * TW_NS_PER_MS ? TW_USELESS :
        TW_KNOWN);
}

static void close_schedstat(CoreObject *core, uint32_t number) {
    if (core->host.schedstat[number] > 0) close(core->host.schedstat[number] - 1);
    core->host.schedstat[number] = 0;
}

static void open_schedstat(CoreObject *core, uint32_t number, uint64_t thread) {
    close_schedstat(core, number);
    const int fd = tw_thread_open(thread, "schedstat");
    core->host.schedstat[number] = fd + 1;
    tw_store(&host_of(core)->track[number].schedstat, fd < 0 ? 0 : (uint64_t)fd + 1);
    probe_schedstat(core, &host_of(core)->track[number]);
}

static int open_syscall(CoreObject *core, uint64_t thread) {
    tw_thread_state state;
    const int fd = tw_thread_open(thread, "syscall");
    tw_thread_state_read(fd, &state);
    found(core, TW_HOST_SYSCALL, state.known ? TW_KNOWN : TW_ABSENT);
    return fd;
}

static void start_watchdog(CoreObject *core) {
    core_host *h = &core->host;
    if (h->watchdog == NULL) h->watchdog = tw_watchdog_start(host_of(core), &core->segment->in_flight, &h->interpreter);
}

static void follow(CoreObject *core, uint32_t number, uint64_t thread) {
    core_host *h = &core->host;
    if (h->mode != STALLS_AUTO) return;
    start_watchdog(core);
    if (h->watchdog != NULL)
        tw_watchdog_follow(h->watchdog, number, (uintptr_t)PyThreadState_Get(), open_syscall(core, thread));
}

/* The lane whose thread had this track gets the value `then`: a loop takes the track over, or it is released. */
static void leave_steps(CoreObject *core, int track, int then) {
    for (int i = 0; i <= TW_STEP_LANE_OF_RANK; i++)
        if (core->steps.stepper.lane[i].followed == track + 1) core->steps.stepper.lane[i].followed = then;
}

static void release_steps(CoreObject *core, int track) {
    leave_steps(core, track, 0);
    if (core->host.watchdog != NULL) tw_watchdog_unfollow(core->host.watchdog, (uint32_t)track);
    tw_host_release(host_of(core), (uint32_t)track);
    close_schedstat(core, (uint32_t)track);
}

/* The tracks of step threads that have ended, or of all. */
static void release_all_steps(CoreObject *core, bool ended_only) {
    char path[48];
    for (int i = 0; i < TW_TRACKS; i++) {
        const tw_host_track *t = &host_of(core)->track[i];
        if (!tw_host_is_of_steps(t)) continue;
        snprintf(path, sizeof path, "/proc/self/task/%llu", (unsigned long long)tw_load(&t->thread));
        if (!ended_only || access(path, F_OK) != 0) release_steps(core, i);
    }
}

void core_follow_steps(CoreObject *core, tw_step_lane *lane) {
    if (core->host.watchdog == NULL && tw_load(&core->segment->in_flight) == 0) return;
    const uint64_t thread = (uint64_t)syscall(SYS_gettid);
    if (lane->followed > 0) {
        if (tw_load(&host_of(core)->track[lane->followed - 1].thread) == thread) return;
        release_steps(core, lane->followed - 1);
        memset(lane->usual_ns, 0, sizeof lane->usual_ns);
    }
    int track = tw_host_take_steps(host_of(core), thread);
    if (track < 0) {
        release_all_steps(core, true);
        track = tw_host_take_steps(host_of(core), thread);
    }
    lane->followed = track < 0 ? TW_STEP_UNFOLLOWED : track + 1;
    if (track < 0) return;
    lane->name = 0; /* as the track has it */
    open_schedstat(core, (uint32_t)track, thread);
    follow(core, (uint32_t)track, thread);
}

/* The watchdog must not see the next limit beside this begin: the thread is at rest in between. */
static void end_between(tw_step_lane *lane, tw_host_track *track, uint64_t now_ns) {
    uint64_t *usual_ns = &lane->usual_ns[lane->name];
    const uint64_t passed_ns = since(now_ns, tw_load(&track->wake_ns));
    *usual_ns = tw_host_usual_step(*usual_ns, least(passed_ns, TW_WATCH_BETWEEN_NS)); /* the rest was idle */
    tw_store_release(&track->waiting_since_ns, now_ns);
}

void core_step_is_of(tw_step_lane *lane, tw_host_track *track, uint32_t name, uint64_t now_ns) {
    if (lane->name >= TW_STEP_BETWEEN) end_between(lane, track, now_ns);
    lane->name = name;
    tw_host_step_is_of(track, name, lane->usual_ns[name]);
}

void core_followed_step_ends(CoreObject *core, tw_step_lane *lane, const tw_step *step, uint64_t now_ns, int learns,
                             uint64_t waiting) {
    tw_host_track *track = &core->segment->host.track[lane->followed - 1];
    uint64_t *usual_ns = &lane->usual_ns[step->name];
    if (lane->name != step->name) core_step_is_of(lane, track, step->name, now_ns); /* another one began since */
    if (now_ns - tw_load(&track->point_ns) >= TW_POINT_EVERY_NS)
        tw_host_point_now(&core->segment->host, (uint32_t)lane->followed - 1);
    if (learns) {
        *usual_ns = tw_host_usual_step(*usual_ns, now_ns - step->start_ns);
        core_wake_watchdog(core);
    }
    tw_host_step_ends(track, now_ns, *usual_ns);
    if (waiting == 0) return;
    core_step_is_of(lane, track, TW_STEP_BETWEEN + step->name, now_ns);
    tw_host_step_begins(track, now_ns);
}

void loop_clock_begin(loop_clock *clock, CoreObject *core) {
    const uint64_t thread = (uint64_t)syscall(SYS_gettid);
    memset(clock, 0, sizeof *clock);
    clock->calls_fd = -1;
    if (core->host.mode == STALLS_OFF || *core->epoch == 0) return;
    const int number = tw_host_take(host_of(core), thread);
    if (number < 0) return;
    leave_steps(core, number, TW_STEP_UNFOLLOWED);
    clock->core = core;
    clock->number = (uint32_t)number;
    clock->epoch = *core->epoch;
    clock->track = &host_of(core)->track[number];
    if (core->host.uses[number]++ > 0) return;
    open_schedstat(core, clock->number, thread);
    follow(core, clock->number, thread);
    found(core, TW_HOST_LOOP_CLOCK, TW_KNOWN);
    tw_host_point_now(host_of(core), clock->number);
}

void loop_clock_end(loop_clock *clock) {
    const int runs = loop_clock_runs(clock);
    CoreObject *core = clock->core;
    clock->track = NULL;
    if (!runs || --core->host.uses[clock->number] > 0) return;
    if (core->host.watchdog != NULL) tw_watchdog_unfollow(core->host.watchdog, clock->number);
    tw_host_release(host_of(core), clock->number);
    close_schedstat(core, clock->number);
}

/* ---- the clock ---- */

void loop_clock_waits(const loop_clock *clock, uint64_t now_ns) {
    tw_host_track *t = clock->track;
    const uint64_t woke = tw_load(&t->wake_ns);
    if (woke != 0 && now_ns - woke > TW_SLOW_NS) {
        tw_host_point_now(host_of(clock->core), clock->number);
        tw_stall_record(clock->core->segment, clock->number, woke, now_ns);
    }
    tw_host_track_waits(t, now_ns);
}

/* The whole process stood still while the loop waited: what it waited for may have been there since the stop began. */
static void note_stop(const loop_clock *clock, uint64_t began_ns, uint64_t now_ns) {
    const uint64_t from = tw_stop_note_waiting(host_of(clock->core), clock->number, began_ns, now_ns);
    if (from == 0) return;
    tw_store(&clock->track->slept_until_ns, from);
    tw_stall_record_stop(clock->core->segment, now_ns - from);
}

/* A point, and with it how long the thread was runnable before its wait ended. */
static void wake_point(const loop_clock *clock, uint64_t began_ns) {
    tw_host_track *t = clock->track;
    tw_host_point last, point;
    const uint64_t points = tw_load(&t->point_head);
    tw_host_point_read(t, &point);
    if (points > 0 && tw_host_track_read(t, points - 1, &last))
        tw_host_track_woke_earlier(t, began_ns, point.run_delay_ns - last.run_delay_ns);
    point.idle_ns = tw_load(&t->idle_ns);
    tw_host_track_add(t, &point);
}

void loop_clock_wakes(const loop_clock *clock, uint64_t now_ns) {
    tw_host_track *t = clock->track;
    const uint64_t began = tw_load(&t->waiting_since_ns);
    if (tw_load(&t->thread) == 0) return; /* it was ended meanwhile */
    tw_host_track_wakes(t, now_ns);
    if (now_ns - tw_load(&t->point_ns) < TW_POINT_EVERY_NS) return;
    wake_point(clock, began);
    if (now_ns - began >= TW_STILL_LEAST_NS) note_stop(clock, began, now_ns);
}

void loop_clock_has_gil(const loop_clock *clock, uint64_t since_ns, uint64_t now_ns) {
    if (now_ns - since_ns < TW_SPAN_LEAST_NS) return;
    const tw_host_span span = {0, since_ns, now_ns, tw_span_what(TW_SPAN_GIL, clock->number, TW_MEASURED), 0, 0, {0,
        0}};
    tw_span_add(&host_of(clock->core)->by_loop, &span);
}

/* ---- the process ---- */

/* What a first touch of a page takes. */
static uint64_t fault_ns(void) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = FAULTS * page;
    volatile char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 0;
    const uint64_t began = tw_thread_cpu_ns();
    for (size_t i = 0; i < bytes; i += page) memory[i] = 1;
    const uint64_t took = tw_thread_cpu_ns() - began;
    munmap((void *)memory, bytes);
    return took / FAULTS;
}

static uint64_t cpus(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (uint64_t)CPU_COUNT(&set) : 0;
}

static void measure(CoreObject *core) {
    tw_host *host = host_of(core);
    const int stat = tw_cgroup_open();
    tw_store(&host->facts.fault_ns, fault_ns());
    tw_store(&host->facts.cpus, cpus());
    tw_store(&host->facts.quota_ppm, tw_cgroup_quota_ppm());
    found(core, TW_HOST_CGROUP, stat >= 0 ? TW_KNOWN : TW_ABSENT);
    if (stat >= 0) close(stat);
}

static void stop_watchdog(CoreObject *core) {
    if (core->host.watchdog != NULL) tw_watchdog_stop(core->host.watchdog);
    core->host.watchdog = NULL;
}

/* stalls(mode, minor, code, library): 0 off, 1 clock, 2 auto. Loops that are hooked from now on have a clock. */
PyObject *core_stalls(PyObject *op, PyObject *args) {
    CoreObject *core = (CoreObject *)op;
    int mode, minor;
    PyObject *code;
    const char *library;
    if (!PyArg_ParseTuple(args, "iiOs", &mode, &minor, &code, &library)) return NULL;
    core->host.mode = mode;
    release_all_steps(core, false);
    stop_watchdog(core);
    for (int i = 0; i < TW_HOST_SOURCES; i++) found(core, (tw_host_source)i, mode == STALLS_OFF ? TW_SWITCHED_OFF :
        TW_ABSENT);
    if (mode != STALLS_AUTO) found(core, TW_HOST_STACKS, TW_SWITCHED_OFF), found(core, TW_HOST_SYSCALL,
        TW_SWITCHED_OFF);
    if (mode == STALLS_OFF) Py_RETURN_NONE;
    measure(core);
    tw_interpreter_find(&core->host.interpreter, (uint32_t)minor, (uintptr_t)dlsym(RTLD_DEFAULT, "_PyRuntime"),
                        (uintptr_t)PyInterpreterState_Get(), (uintptr_t)Py_TYPE(code), library);
    Py_RETURN_NONE;
}

static PyObject *list_frames(const tw_python_frame *frames, uint32_t n) {
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < n; i++) {
        PyObject *frame = Py_BuildValue("ssIi", frames[i].function, frames[i].file, frames[i].line,
            frames[i].in_library);
        if (frame == NULL || PyList_Append(list, frame) < 0) Py_CLEAR(list);
        Py_XDECREF(frame);
    }
    return list;
}

/* works(needed): whether streams of other processes wait for this one. */
PyObject *core_works(PyObject *op, PyObject *needed) {
    CoreObject *core = (CoreObject *)op;
    const int works = PyObject_IsTrue(needed);
    if (works < 0) return NULL;
    if (core->host.mode != STALLS_AUTO || *core->epoch == 0) Py_RETURN_NONE;
    if (works) start_watchdog(core);
    if (core->host.watchdog != NULL) tw_watchdog_works(core->host.watchdog, works != 0);
    Py_RETURN_NONE;
}

/* ---- contexts ---- */

#define STATE_WORDS 42 /* of a thread's state that are looked at; its context is one of the 26th to 30th, 3.10 to 3.13 */

static uint64_t context_at; /* in a thread's state, bytes; 0: not known. Of the process: each core finds the same */

/* Under the GIL: the state is the calling thread's own. */
uint64_t own_context(void) {
    const uint64_t at = tw_load(&context_at);
    const char *state = at == 0 ? NULL : (const char *)PyGILState_GetThisThreadState();
    return state == NULL ? 0 : *(const uintptr_t *)(const void *)(state + at);
}

/* state_words(): the first words of the calling thread's state; none where memory cannot be read. */
PyObject *core_state_words(PyObject *op, PyObject *unused) {
    uintptr_t words[STATE_WORDS];
    tw_reader reader;
    (void)op, (void)unused;
    PyObject *list = PyList_New(0);
    if (list == NULL || !tw_reader_open(&reader)) return list;
    const bool read = tw_read(&reader, (uintptr_t)PyThreadState_Get(), words, sizeof words);
    tw_reader_close(&reader);
    for (int i = 0; list != NULL && read && i < STATE_WORDS; i++) {
        PyObject *word = PyLong_FromSize_t(words[i]);
        if (word == NULL || PyList_Append(list, word) < 0) Py_CLEAR(list);
        Py_XDECREF(word);
    }
    return list;
}

/* contexts_at(word): which of them is the context in which the thread runs code; 0: none is known to be. */
PyObject *core_contexts_at(PyObject *op, PyObject *word) {
    const long at = PyLong_AsLong(word);
    if (at == -1 && PyErr_Occurred()) return NULL;
    if (at < 0 || at >= STATE_WORDS)
        return PyErr_Format(PyExc_ValueError, "word: expected 0 to %d, found %ld", STATE_WORDS - 1, at);
    tw_store(&context_at, (uint64_t)at * sizeof(uintptr_t));
    ((CoreObject *)op)->host.interpreter.context_at = (uint32_t)at * sizeof(uintptr_t);
    Py_RETURN_NONE;
}

/* own_frames(): the calling thread's stack as the watchdog would read it, and whether the GIL's holder is this thread.
 * */
PyObject *core_own_frames(PyObject *op, PyObject *unused) {
    const tw_interpreter *interpreter = &((CoreObject *)op)->host.interpreter;
    const uintptr_t own = (uintptr_t)PyThreadState_Get();
    tw_python_frame frames[TW_FRAMES];
    tw_reader reader;
    uint32_t n = 0;
    uintptr_t holder = 0;
    (void)unused;
    if (interpreter->minor != 0 && tw_reader_open(&reader)) {
        n = tw_frames_read(interpreter, &reader, own, frames, TW_FRAMES_NAME);
        holder = tw_gil_holder(interpreter, &reader);
        tw_reader_close(&reader);
    }
    PyObject *list = list_frames(frames, n);
    return list == NULL ? NULL : Py_BuildValue("NN", list, PyBool_FromLong(holder == own));
}

/* trust_frames(trusted): 0: stacks are not read; 1: they are; 2: and the GIL's holder is known. */
PyObject *core_trust_frames(PyObject *op, PyObject *trusted) {
    CoreObject *core = (CoreObject *)op;
    const long how = PyLong_AsLong(trusted);
    if (how == -1 && PyErr_Occurred()) return NULL;
    core->host.interpreter.known = how > 0;
    if (how < 2) core->host.interpreter.gil = 0;
    found(core, TW_HOST_STACKS, how > 0 ? TW_KNOWN : TW_USELESS);
    Py_RETURN_NONE;
}

/* ---- what it is ---- */

static int put(PyObject *dict, const char *name, PyObject *value) {
    const int failed = value == NULL || PyDict_SetItemString(dict, name, value) < 0;
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

static PyObject *knowledge(const tw_host *host) {
    PyObject *dict = PyDict_New();
    for (int i = 0; dict != NULL && i < TW_HOST_SOURCES; i++) {
        const int what = (int)tw_load(&host->facts.knowledge[i]) - 1;
        if (put(dict, tw_host_source_name(i), PyUnicode_FromString(tw_knowledge_name(what))) < 0) Py_CLEAR(dict);
    }
    return dict;
}

static const struct { const char *name; size_t at; } numbers[] = {
    {"tracks_refused", offsetof(tw_host, tracks_refused)}, {"fault_ns", offsetof(tw_host, facts.fault_ns)},
    {"quota_ppm", offsetof(tw_host, facts.quota_ppm)}, {"cpus", offsetof(tw_host, facts.cpus)},
    {"watchdog_cpu_ns", offsetof(tw_host, watchdog_cpu_ns)}, {"watchdog_wakeups", offsetof(tw_host, watchdog_wakeups)},
    {"samples", offsetof(tw_host, samples)}, {"samples_skipped", offsetof(tw_host, samples_skipped)},
    {"stacks_refused", offsetof(tw_host, stacks_refused)}, {"names_lost", offsetof(tw_host, names.overflow)}};

static int put_numbers(PyObject *dict, const tw_host *host) {
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const uint64_t value = tw_load((const uint64_t *)(const void *)((const char *)host + numbers[i].at));
        if (put(dict, numbers[i].name, PyLong_FromUnsignedLongLong(value)) < 0) return -1;
    }
    return 0;
}

/* host_status(): what is known of the host, and what the watchdog did. */
PyObject *core_host_status(PyObject *op, PyObject *unused) {
    const CoreObject *core = (CoreObject *)op;
    PyObject *dict = PyDict_New();
    long tracks = 0;
    (void)unused;
    for (int i = 0; i < TW_TRACKS; i++) tracks += tw_host_is_of_loop(&host_of(core)->track[i]);
    if (dict != NULL && put(dict, "sources", knowledge(host_of(core))) == 0 && put_numbers(dict, host_of(core)) == 0 &&
        put(dict, "tracks", PyLong_FromLong(tracks)) == 0 &&
        put(dict, "watches", PyBool_FromLong(core->host.watchdog != NULL)) == 0)
        return dict;
    Py_XDECREF(dict);
    return NULL;
}

static PyObject *part_tuple(const tw_host *host, const tw_part *part) {
    char name[TW_NAME_TEXT], detail[TW_NAME_TEXT] = "";
    tw_name_copy(&host->names, part->name, name, sizeof name);
    if (part->detail_kind == TW_DETAIL_HOLDER) tw_name_copy(&host->names, (uint32_t)part->detail, detail,
        sizeof detail);
    return Py_BuildValue("sKsss", tw_delay_cause_name(part->cause), (unsigned long long)part->ns,
                         tw_certainty_name(part->certainty), name, detail);
}

PyObject *parts_list(const tw_host *host, const tw_parts *parts) {
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < parts->n; i++) {
        PyObject *part = part_tuple(host, &parts->part[i]);
        if (part == NULL || PyList_Append(list, part) < 0) Py_CLEAR(list);
        Py_XDECREF(part);
    }
    return list;
}

/* split_host(from_ns, to_ns): what the calling thread did: [(cause, ns, certainty, name, holder)], and ns that it
 * waited for events; None: it is not followed. */
PyObject *core_split_host(PyObject *op, PyObject *args) {
    const CoreObject *core = (CoreObject *)op;
    unsigned long long from, to;
    if (!PyArg_ParseTuple(args, "KK", &from, &to)) return NULL;
    const int track = tw_host_own_track(host_of(core));
    if (track < 0) Py_RETURN_NONE;
    tw_parts parts = {0};
    tw_host_point_now(host_of(core), (uint32_t)track);
    const uint64_t waited = tw_host_split(host_of(core), (uint32_t)track, &core->segment->pause, from, to,
        (tw_whose){0, own_context()}, &parts);
    PyObject *list = parts_list(host_of(core), &parts);
    return list == NULL ? NULL : Py_BuildValue("NK", list, (unsigned long long)waited);
}

/* ---- life ---- */

/* The loops' hooks find another epoch, and record nothing: in a fork child they are the parent's. */
void core_host_reborn(CoreObject *core) {
    core_host *h = &core->host;
    if (h->watchdog != NULL && h->pid != (long)getpid()) tw_watchdog_forget(h->watchdog), h->watchdog = NULL;
    stop_watchdog(core);
    h->pid = (long)getpid();
    for (uint32_t i = 0; i < TW_TRACKS; i++) {
        close_schedstat(core, i);
        h->uses[i] = 0;
    }
}

void core_host_free(CoreObject *core) {
    stop_watchdog(core);
    for (uint32_t i = 0; i < TW_TRACKS; i++) close_schedstat(core, i);
}
