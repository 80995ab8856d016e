/* tailwatch._hot: the module, and Core, the one writer of one process's segment. */
#include "python/gc/callbacks.h"
#include "python/gc/idle_gc.h"
#include "python/gc/idle_libuv.h"
#include "python/gc/idle_selector.h"
#include "python/gc/policy.h"
#include "python/group.h"
#include "python/membership.h"
#include "python/nvtx/ranges.h"
#include "python/sse/shape_writer.h"
#include "python/sse/template.h"
#include "python/stall/handle_clock.h"
#include "python/stall/host.h"
#include "python/stamp/engine_step.h"
#include "python/stamp/rank_step.h"
#include "python/stamp/received.h"
#include "python/stamp/recent_frames.h"
#include "python/stamp/requests.h"
#include "python/stamp/stream.h"
#include "python/trace.h"

#include "tailwatch/attribute/engine_id.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ABI_VERSION 1

/* ---- Core ---- */

static int make_segment(CoreObject *self, const char *role, unsigned sets, int served, const tw_slo *slo, uint64_t slow_ns) {
    const int failed = tw_segment_create(&self->segment, role, sets, served, slo, slow_ns);
    if (failed == ENOMEM) PyErr_NoMemory();
    else if (failed) PyErr_Format(PyExc_ValueError, "max_label_sets: expected 1 to %d, found %u", TW_LABEL_SETS_LIMIT, sets);
    return failed ? -1 : 0;
}

/* Core(role, max_label_sets, slo, slow_ns, route_of, timed_send, served=False) */
static PyObject *core_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"role", "max_label_sets", "slo", "slow_ns", "route_of", "timed_send", "served", NULL};
    const char *role;
    unsigned sets;
    int served = 0;
    unsigned long long ttft, tpot, itl, e2e, attainment, slow;
    PyObject *route_of, *timed_send;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sI(KKKKK)KOO|p", names, &role, &sets, &ttft, &tpot, &itl, &e2e,
                                     &attainment, &slow, &route_of, &timed_send, &served)) return NULL;
    const tw_hot_state *state = PyType_GetModuleState(type);
    CoreObject *self = state == NULL ? NULL : (CoreObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) return NULL;
    const tw_slo slo = {ttft, tpot, itl, e2e, attainment};
    self->streams.type = (PyTypeObject *)Py_NewRef((PyObject *)state->stream_type);
    self->steps.type = (PyTypeObject *)Py_NewRef((PyObject *)state->step_type);
    self->host.pid = (long)getpid();
    self->gc.reads_heap = 1;
    frame_noting();
    if (core_init_requests(self, state->send_type, route_of, timed_send) < 0 || core_make_epoch(self) < 0 ||
        make_segment(self, role, sets, served, &slo, slow) < 0) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    core_init_steps(self);
    return (PyObject *)self;
}

static int core_traverse(PyObject *op, visitproc visit, void *arg) {
    CoreObject *self = (CoreObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->requests.route_of);
    Py_VISIT(self->requests.timed_send);
    Py_VISIT(self->requests.streamed);
    Py_VISIT(self->requests.ended);
    Py_VISIT(self->gc.callbacks);
    Py_VISIT((PyObject *)self->streams.type);
    Py_VISIT((PyObject *)self->requests.type);
    Py_VISIT((PyObject *)self->steps.type);
    return 0;
}

static int core_clear(PyObject *op) {
    CoreObject *self = (CoreObject *)op;
    Py_CLEAR(self->requests.ended);
    Py_CLEAR(self->gc.callbacks); /* the rest is needed while a Send or a callback of ours is alive */
    return 0;
}

/* The segment stays mapped: snapshots hold its address. */
static void core_dealloc(PyObject *op) {
    CoreObject *self = (CoreObject *)op;
    PyObject_GC_UnTrack(op);
    core_clear(op);
    core_free_trace(self);
    core_host_free(self);
    core_free_group(self);
    core_free_steps(self);
    core_free_requests(self);
    Py_XDECREF((PyObject *)self->streams.type);
    Py_XDECREF(self->streams.trace_of);
    hot_free(op);
}

/* configure(slo, slow_ns): for requests that open from now on. */
static PyObject *core_configure(PyObject *op, PyObject *args) {
    tw_segment *segment = ((CoreObject *)op)->segment;
    unsigned long long ttft, tpot, itl, e2e, attainment, slow;
    if (!PyArg_ParseTuple(args, "(KKKKK)K", &ttft, &tpot, &itl, &e2e, &attainment, &slow)) return NULL;
    tw_store(&segment->slo.ttft_ns, ttft);
    tw_store(&segment->slo.tpot_ns, tpot);
    tw_store(&segment->slo.itl_ns, itl);
    tw_store(&segment->slo.e2e_ns, e2e);
    tw_store(&segment->slo.attainment_ppm, attainment);
    tw_store(&segment->slow_ns, slow);
    Py_RETURN_NONE;
}

/* rebind(role, route_of, timed_send): for another install() that takes this core over, or an app that joins. */
static PyObject *core_rebind(PyObject *op, PyObject *args) {
    CoreObject *self = (CoreObject *)op;
    core_requests *r = &self->requests;
    PyObject *route_of, *timed_send, *old_route_of = r->route_of, *old_timed_send = r->timed_send;
    const char *role;
    if (!PyArg_ParseTuple(args, "sOO", &role, &route_of, &timed_send)) return NULL;
    tw_segment_set_role(self->segment, role);
    if (self->group != NULL && self->group->joined) group_place(self, false);
    tw_recorder_name(&self->trace.recorder, self->segment);
    frame_noting();
    self->requests.route_of = Py_NewRef(route_of);
    self->requests.timed_send = Py_NewRef(timed_send);
    Py_DECREF(old_route_of);
    Py_DECREF(old_timed_send);
    Py_RETURN_NONE;
}

static PyObject *core_count_error(PyObject *op, PyObject *where) {
    return core_count(((CoreObject *)op)->segment->errors, TW_ERRORS, where);
}
static PyObject *core_count_drop(PyObject *op, PyObject *reason) {
    return core_count(((CoreObject *)op)->segment->drops, TW_DROPS, reason);
}

/* count_fallback(shape, reason): a lone surrogate in them is no error, it becomes '?'. */
static PyObject *core_count_fallback(PyObject *op, PyObject *args) {
    PyObject *texts[2], *shape, *reason = NULL;
    if (!PyArg_ParseTuple(args, "UU", &texts[0], &texts[1])) return NULL;
    shape = PyUnicode_AsEncodedString(texts[0], "utf-8", "replace");
    if (shape != NULL) reason = PyUnicode_AsEncodedString(texts[1], "utf-8", "replace");
    if (reason != NULL)
        tw_segment_fallback(((CoreObject *)op)->segment, PyBytes_AsString(shape), (size_t)PyBytes_Size(shape),
                            PyBytes_AsString(reason), (size_t)PyBytes_Size(reason), 1);
    const int done = reason != NULL;
    Py_XDECREF(shape);
    Py_XDECREF(reason);
    if (!done) return NULL;
    Py_RETURN_NONE;
}

static PyObject *core_reset(PyObject *op, PyObject *unused) {
    (void)unused;
    core_reborn((CoreObject *)op);
    ((CoreObject *)op)->streams.serves = 0;
    Py_RETURN_NONE;
}

static PyObject *get_address(PyObject *op, void *unused) { (void)unused; return PyLong_FromVoidPtr(((CoreObject *)op)->segment); }
static PyObject *get_bytes(PyObject *op, void *unused) { (void)unused; return PyLong_FromSize_t(tw_segment_used(((CoreObject *)op)->segment)); }
static PyObject *get_reserved(PyObject *op, void *unused) { (void)unused; return PyLong_FromUnsignedLongLong(((CoreObject *)op)->segment->header.bytes); }
static PyObject *get_in_flight(PyObject *op, void *unused) { (void)unused; return PyLong_FromUnsignedLongLong(tw_load(&((CoreObject *)op)->segment->in_flight)); }
static PyObject *get_opened(PyObject *op, void *unused) { (void)unused; return PyLong_FromUnsignedLongLong(tw_load(&((CoreObject *)op)->segment->opened)); }

static PyMethodDef core_methods[] = {
    {"gc_first", FASTCALL(core_gc_first), METH_FASTCALL, "gc_first(phase, info, /)\n--\n\nFor the head of gc.callbacks."},
    {"gc_last", FASTCALL(core_gc_last), METH_FASTCALL, "gc_last(phase, info, /)\n--\n\nFor the end of gc.callbacks."},
    {"request", FASTCALL(core_request), METH_FASTCALL,
     "request(scope, send, generation, arrival_ns, entry_ns, proxy_ns, source, flow, websocket, /)\n--\n\nA Send for one ASGI scope."},
    {"configure", core_configure, METH_VARARGS, "configure(slo, slow_ns, /)\n--\n\nOther bounds and another bound of the log from now on."},
    {"rebind", core_rebind, METH_VARARGS, "rebind(role, route_of, timed_send, /)\n--\n\nAnother role and other callables from now on."},
    {"on_request_end", core_on_request_end, METH_O, "on_request_end(ended, /)\n--\n\nCall ended(stream, scope) once a request has ended; None: no longer."},
    {"heap_is_frozen", core_heap_is_frozen, METH_O, "heap_is_frozen(objects, /)\n--\n\nSo many of the objects in the collector's books are frozen."},
    {"count_heap", core_count_heap, METH_NOARGS, "count_heap()\n--\n\nCount the old objects, where they are few."},
    {"watch_gc", core_watch_gc, METH_VARARGS, "watch_gc(mode, callbacks, closer, /)\n--\n\nHow generations map to causes, and where our last callable is kept."},
    {"policy_begin", core_policy_begin, METH_NOARGS, "policy_begin()\n--\n\nA pass of our own begins: collections inside it are booked as policy."},
    {"policy_end", core_policy_end, METH_NOARGS, "policy_end()\n--\n\nIt ends. Returns its length in ns."},
    {"policy_is", core_policy_is, METH_VARARGS, "policy_is(kind, mode, why, /)\n--\n\nWhat the collector's policy is from now on."},
    {"count_full_collection", core_count_full_collection, METH_VARARGS, "count_full_collection(reason, ns, freed, /)\n--\n\nA whole pass of ours was made."},
    {"count_interference", core_count_interference, METH_O, "count_interference(what, /)\n--\n\nSomebody else did something to the collector."},
    {"count_memory_limit", core_count_memory_limit, METH_O, "count_memory_limit(which, /)\n--\n\nA memory limit was met."},
    {"count_ignored", core_count_ignored, METH_NOARGS, "count_ignored()\n--\n\nA file stood where an operator's orders do, and was none."},
    {"policy_answer", core_policy_answer, METH_VARARGS, "policy_answer(number, answer, /)\n--\n\nAn operator's order was carried out, or could not be."},
    {"count_freeze", core_count_freeze, METH_NOARGS, "count_freeze()\n--\n\nA freeze of ours was made."},
    {"cancel_pause", core_cancel_pause, METH_NOARGS, "cancel_pause()\n--\n\nClose or forget a collection whose end nobody is left to report."},
    {"paused_now", core_paused_now, METH_NOARGS, "paused_now()\n--\n\nWhether a pause is open."},
    {"stream", core_stream, METH_VARARGS, "stream(model, route, arrival, request_id, trace_id, /)\n--\n\nOpen a stream by hand."},
    {"expect", core_expect, METH_VARARGS, "expect(stream, request_id, /)\n--\n\nThe id by which the engine has the stream's request."},
    {"received", FASTCALL(core_received), METH_FASTCALL,
     "received(streams, outputs, key, received_ns, /)\n--\n\nOutputs of one step were processed. Ids of requests that ended."},
    {"received_message", FASTCALL(core_received_message), METH_FASTCALL,
     "received_message(streams, ids, finish_reasons, tokens, received_ns, /)\n--\n\nOutputs of one step came in a message."},
    {"step", FASTCALL(core_step), METH_FASTCALL, "step(name, batch=1, waiting=None, /)\n--\n\nOne iteration of an engine, to be entered."},
    {"rank_enters", FASTCALL(core_rank_enters), METH_FASTCALL, "rank_enters(mark, rank, group, /)\n--\n\nA rank enters a step. What it leaves with; 0: nothing was recorded."},
    {"rank_leaves", core_rank_leaves, METH_O, "rank_leaves(number, /)\n--\n\nIt leaves the step."},
    {"count_error", core_count_error, METH_O, "count_error(where, /)\n--\n\nCount an internal error."},
    {"count_drop", core_count_drop, METH_O, "count_drop(reason, /)\n--\n\nCount a dropped event."},
    {"count_fallback", core_count_fallback, METH_VARARGS,
     "count_fallback(shape, reason, /)\n--\n\nCount a frame that the fast SSE path left to the server."},
    {"exemplify", core_exemplify, METH_VARARGS,
     "exemplify(on, trace_of, /)\n--\n\nWhether streams that open from now on are exemplars, and who has the span around a caller."},
    {"streamed", core_streamed, METH_VARARGS, "streamed(full=False, /)\n--\n\nWhat turned out to stream since the last call: routes, and scopes of requests that are not counted; of these no more if full."},
    {"join", core_join, METH_VARARGS, "join(dir, engine, /)\n--\n\nShare the segment in a group's directory. None, or why not."},
    {"leave", core_leave, METH_NOARGS, "leave()\n--\n\nTake it back."},
    {"set_serves", core_set_serves, METH_O, "set_serves(engine, /)\n--\n\nThe engine of streams that open from now on and are bound to none."},
    {"set_engine", core_set_engine, METH_O, "set_engine(engine, /)\n--\n\nWhat this member of a group works for from now on."},
    {"renew", core_renew, METH_NOARGS, "renew()\n--\n\nLook for members that came or went. Whether there may be any."},
    {"save", core_save, METH_NOARGS, "save()\n--\n\nCopy the segment into its file, without the GIL."},
    {"merge_dead", core_merge_dead, METH_NOARGS, "merge_dead()\n--\n\nMerge files of dead members into retired segments, without the GIL. How many."},
    {"load", core_load, METH_NOARGS, "load()\n--\n\nRequests in flight and ever opened: here and in the rest of the group, as of the last renew()."},
    {"peers", core_peers, METH_NOARGS, "peers()\n--\n\nHow many others of the group have this role, and live."},
    {"set_front", core_set_front, METH_NOARGS, "set_front()\n--\n\nRequests are stamped in this process: its engine, and those of its group, do not stamp them."},
    {"group_load", core_group_load, METH_NOARGS, "group_load()\n--\n\nRequests running and in flight, and how many processes serve: here and in the rest of the group."},
    {"members", core_members, METH_NOARGS, "members()\n--\n\nAddresses of the others' segments, until the next renew()."},
    {"nvtx", core_nvtx_on, METH_O, "nvtx(tokens, /)\n--\n\nTell an NVTX tool from now on, each message of tokens too or not. Whether one listens."},
    {"nvtx_off", core_nvtx_off, METH_NOARGS, "nvtx_off()\n--\n\nNo more; ranges that are open still end."},
    {"nvtx_anchor", core_nvtx_anchor, METH_NOARGS, "nvtx_anchor()\n--\n\nClock anchors for the tool, and who this process is."},
    {"nvtx_name", core_nvtx_name, METH_O, "nvtx_name(text, /)\n--\n\nThe number of a text, for ranges and marks of the user."},
    {"nvtx_begin", core_nvtx_begin, METH_VARARGS, "nvtx_begin(name, payload, /)\n--\n\nBegin a range of the user's; what to end it with."},
    {"nvtx_end", core_nvtx_end, METH_VARARGS, "nvtx_end(id, begun, /)\n--\n\nEnd it, on any thread of the process that began it."},
    {"nvtx_mark", core_nvtx_mark, METH_VARARGS, "nvtx_mark(name, payload, /)\n--\n\nA mark of the user's."},
    {"nvtx_timed", core_nvtx_timed, METH_VARARGS, "nvtx_timed(kind, n, /)\n--\n\nFor benchmarks: ns that n ranges of a kind took."},
    {"trace_start", core_trace_start, METH_O, "trace_start(events, /)\n--\n\nBegin to record events. None, or why not."},
    {"trace_stop", core_trace_stop, METH_NOARGS, "trace_stop()\n--\n\nRecord no more, and remove the file."},
    {"trace_turn", core_trace_turn, METH_O, "trace_turn(whole, /)\n--\n\nSample the counters; whole: the clocks and names too."},
    {"stalls", core_stalls, METH_VARARGS, "stalls(mode, minor, code, library, /)\n--\n\nWhat is recorded of loops that are hooked from now on."},
    {"works", core_works, METH_O, "works(needed, /)\n--\n\nWhether streams of other processes wait for this one."},
    {"state_words", core_state_words, METH_NOARGS, "state_words()\n--\n\nThe first words of the thread's state."},
    {"contexts_at", core_contexts_at, METH_O, "contexts_at(word, /)\n--\n\nWhich is the context that the thread runs in."},
    {"own_frames", core_own_frames, METH_NOARGS, "own_frames()\n--\n\nThe calling thread's stack, as it is read without the GIL."},
    {"handle_links", core_handle_links, METH_VARARGS, "handle_links(samples, code, /)\n--\n\nHow the code of an asyncio handle is found."},
    {"trust_frames", core_trust_frames, METH_O, "trust_frames(how, /)\n--\n\nWhether stacks are read, and the GIL's holder."},
    {"host_status", core_host_status, METH_NOARGS, "host_status()\n--\n\nWhat is known of the host, and what the watchdog did."},
    {"split_host", core_split_host, METH_VARARGS, "split_host(from_ns, to_ns, /)\n--\n\nWhat the calling thread did meanwhile, by cause."},
    {"reset", core_reset, METH_NOARGS, "reset()\n--\n\nIn a fork child: forget what the parent measured."},
    {NULL, NULL, 0, NULL}};
static PyObject *core_steps_ended(PyObject *op, void *unused) { (void)unused; return PyLong_FromUnsignedLongLong(((CoreObject *)op)->steps.ended); }

static PyGetSetDef core_getters[] = {
    {"unfrozen", core_unfrozen, NULL, "Objects that a full collection would look at, an estimate; None: not known here.", NULL},
    {"promoted", core_promoted, NULL, "Objects that grew old since the last full collection; None: not known here.", NULL},
    {"last_was_full", core_last_was_full, NULL, "Whether the latest collection was one of all that is not frozen, and is over.", NULL},
    {"address", get_address, NULL, "Address of the segment, for tailwatch._cold.", NULL},
    {"bytes", get_bytes, NULL, "Memory of the segment: what its label sets in use take.", NULL},
    {"reserved", get_reserved, NULL, "Memory of the segment once all label sets are in use.", NULL},
    {"tracing", core_tracing, NULL, "Whether events are recorded, where this process's numbers are now.", NULL},
    {"trace_file", core_trace_file, NULL, "Name of the trace file in the group's directory; empty: it has none.", NULL},
    {"trace_memory", core_trace_memory, NULL, "Address and bytes of what is recorded; (0, 0): nothing.", NULL},
    {"file", core_file, NULL, "Name of the segment's file in the group's directory; empty: it is in no group.", NULL},
    {"maps_file", core_maps_file, NULL, "Whether the segment is a mapped file, as the system refused other memory.", NULL},
    {"steps_ended", core_steps_ended, NULL, "Engine steps that are over, in this process.", NULL},
    {"joined", core_joined, NULL, "Whether it is in a group.", NULL},
    {"shares_engine", core_shares_engine, NULL, "Whether the concurrency of its streams is that of the whole group.", NULL},
    {"refused", core_refused, NULL, "Files in the group's directory that are no segments of this version.", NULL},
    {"in_flight", get_in_flight, NULL, "Requests open now.", NULL},
    {"opened", get_opened, NULL, "Requests ever opened.", NULL},
    {"nvtx_attached", core_nvtx_attached, NULL, "Whether an NVTX tool listens and is sent to.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot core_slots[] = {
    {Py_tp_doc, "The one writer of one process's segment."},
    {Py_tp_new, core_new},
    {Py_tp_dealloc, core_dealloc},
    {Py_tp_traverse, core_traverse},
    {Py_tp_clear, core_clear},
    {Py_tp_methods, core_methods},
    {Py_tp_getset, core_getters},
    {0, NULL}};
PyType_Spec tw_core_spec = {"tailwatch._hot.Core", sizeof(CoreObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, core_slots};

/* ---- module ---- */

static PyObject *hot_now(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyLong_FromUnsignedLongLong(tw_now_ns());
}

static PyObject *hot_jiffy_ns(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyLong_FromUnsignedLongLong(tw_clock_jiffy_ns());
}

static PyObject *hot_tcp_wait_ns(PyObject *module, PyObject *fd) {
    (void)module;
    struct tcp_info info;
    socklen_t len = sizeof info;
    const long descriptor = PyLong_AsLong(fd);
    if (descriptor == -1 && PyErr_Occurred()) return NULL;
    if (descriptor < 0) return PyLong_FromLong(-1);
    memset(&info, 0, sizeof info);
    if (getsockopt((int)descriptor, IPPROTO_TCP, TCP_INFO, &info, &len) != 0) return PyLong_FromLong(-1);
    return PyLong_FromUnsignedLongLong((uint64_t)info.tcpi_last_data_recv * TW_NS_PER_MS);
}

static PyMethodDef hot_methods[] = {
    {"now", hot_now, METH_NOARGS, "now()\n--\n\nCLOCK_MONOTONIC in nanoseconds."},
    {"jiffy_ns", hot_jiffy_ns, METH_NOARGS, "jiffy_ns()\n--\n\nLength of a kernel timer tick in nanoseconds."},
    {"tcp_wait_ns", hot_tcp_wait_ns, METH_O, "tcp_wait_ns(fd, /)\n--\n\nHow long ago a TCP socket last received data, ns; -1: unknown."},
    {"forget_frames", hot_forget_frames, METH_NOARGS, "forget_frames()\n--\n\nLet go of the frames that were made and not sent."},
    {"engine_id", hot_engine_id, METH_O, "engine_id(engine, /)\n--\n\nThe word for an engine's number or name."},
    {"note", FASTCALL(hot_note), METH_FASTCALL,
     "note(frame, tokens, choice, usage_tokens, done, error, /)\n--\n\nWhat a frame holds, for the one who sends it."},
    {NULL, NULL, 0, NULL}};

static PyTypeObject *make_type(PyObject *module, PyType_Spec *spec, const char *name) {
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type != NULL && PyModule_AddObjectRef(module, name, type) < 0) Py_CLEAR(type);
    return (PyTypeObject *)type;
}

/* The collector, its callbacks and this core's one writer belong to one interpreter. */
static int refuse_subinterpreter(void) {
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0) return 0;
    PyErr_SetString(PyExc_ImportError, "tailwatch runs in the main interpreter only: a sub-interpreter has a collector of its own");
    return -1;
}

static int add_constants(PyObject *module) {
    if (PyModule_AddIntConstant(module, "ABI_VERSION", ABI_VERSION) < 0) return -1;
    if (PyModule_AddIntConstant(module, "ENGINE_ITSELF", (long)TW_ENGINE_ITSELF) < 0) return -1;
    if (PyModule_AddIntConstant(module, "ENGINE_LIKE", (long)TW_ENGINE_LIKE) < 0) return -1;
    return PyModule_AddIntConstant(module, "ENGINE_SHARED", (long)TW_ENGINE_SHARED);
}

/* Encoder finds itself by an attribute: a method of a class is not given which class it is of. */
static int hot_exec(PyObject *module) {
    tw_hot_state *state = PyModule_GetState(module);
    if (refuse_subinterpreter() < 0 || add_constants(module) < 0) return -1;
#define MAKE(field, spec, name) if ((state->field = make_type(module, &spec, name)) == NULL) return -1;
    HOT_TYPES(MAKE)
#undef MAKE
    return PyObject_SetAttrString((PyObject *)state->encoder_type, "_encoder_type", (PyObject *)state->encoder_type);
}

static int hot_traverse(PyObject *module, visitproc visit, void *arg) {
    tw_hot_state *state = PyModule_GetState(module);
#define VISIT(field, spec, name) Py_VISIT((PyObject *)state->field);
    HOT_TYPES(VISIT)
#undef VISIT
    return 0;
}

static int hot_clear(PyObject *module) {
    tw_hot_state *state = PyModule_GetState(module);
#define CLEAR(field, spec, name) Py_CLEAR(state->field);
    HOT_TYPES(CLEAR)
#undef CLEAR
    return 0;
}

static PyModuleDef_Slot hot_slots[] = {{Py_mod_exec, hot_exec}, {0, NULL}};
static PyModuleDef hot_module = {
    PyModuleDef_HEAD_INIT, "tailwatch._hot", "What runs per token, per message and per collection.",
    sizeof(tw_hot_state), hot_methods, hot_slots, hot_traverse, hot_clear, NULL};

PyMODINIT_FUNC PyInit__hot(void) { return PyModuleDef_Init(&hot_module); }
