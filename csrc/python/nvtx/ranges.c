/* What an NVTX tool is sent, see python/nvtx/ranges.h. The NVTX headers keep process-wide state of their own, so this
 * does too. */
#include "python/nvtx/ranges.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nvtx3/nvToolsExt.h>

#define PENDING 8 /* threads whose stack is to be put right */

typedef enum text {
    TEXT_CAUSES, /* and those of the other causes after it */
    TEXT_COLLECTED = TEXT_CAUSES + TW_CAUSES, TEXT_REQUEST, TEXT_FIRST, TEXT_TOKEN, TEXT_CLOCK, TEXTS
} text;

enum { RED = (int)0xFFD03030, AMBER = (int)0xFFE0A030, BLUE = (int)0xFF4070C0, GREEN = (int)0xFF40A060, GREY = (int)0xFF909090 };

typedef struct named {
    char text[NVTX_NAME_BYTES];
    nvtxStringHandle_t handle;
} named;

typedef struct nvtx_tool {
    nvtxDomainHandle_t domain;
    nvtxStringHandle_t text[TEXTS];
    int tokens;
    uint64_t passes;                /* collections and passes so far */
    pthread_t gc_thread;            /* which one the open collection was pushed on */
    uint64_t gc_forks;
    struct { pthread_t thread; uint32_t pops; } pending[PENDING];
    uint32_t n_pending;
    uint64_t steps_known;           /* bit i: step i has a name */
    uint32_t step[TW_STEPS];        /* numbers of their names */
    uint8_t labels_known[TW_LABEL_SETS_LIMIT / 8];
    uint32_t n_names;
    named name[NVTX_NAMES];         /* the first is "other" */
} nvtx_tool;

/* One a process, made when a tool was found. */
static nvtx_tool *process_tool;
static int looked;                  /* whether there is one was asked: it is asked once */
static uint64_t forks;              /* one more in each fork child: what its parent began is not its own to end */

static void forked(void) { forks++; }

/* ---- what an event is ---- */

static nvtxEventAttributes_t event_of(nvtxStringHandle_t message, uint32_t category, uint32_t color, int64_t payload) {
    nvtxEventAttributes_t event;
    memset(&event, 0, sizeof event);
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.category = category;
    event.colorType = NVTX_COLOR_ARGB;
    event.color = color;
    event.payloadType = NVTX_PAYLOAD_TYPE_INT64;
    event.payload.llValue = payload;
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = message;
    return event;
}

static void begin(const nvtx_tool *nvtx, tw_nvtx_range *range, const nvtxEventAttributes_t *event) {
    if (range->begun != 0) nvtx_end(range);
    range->id = nvtxDomainRangeStartEx(nvtx->domain, event);
    range->begun = forks + 1;
}

void nvtx_end(tw_nvtx_range *range) {
    if (range->begun == forks + 1) nvtxDomainRangeEnd(process_tool->domain, range->id);
    range->begun = 0;
}

/* ---- texts from outside ---- */

/* At most so many bytes, cut where a character begins. */
static size_t cut(const char *text, size_t len) {
    const char *nul = memchr(text, 0, len);
    if (nul != NULL) len = (size_t)(nul - text);
    if (len < NVTX_NAME_BYTES) return len;
    len = NVTX_NAME_BYTES - 1;
    while (len > 0 && ((unsigned char)text[len] & 0xC0) == 0x80) len--;
    return len;
}

static uint32_t name_of(nvtx_tool *nvtx, const char *text, size_t len) {
    char copy[NVTX_NAME_BYTES] = "";
    memcpy(copy, text, cut(text, len));
    for (uint32_t i = 0; i < nvtx->n_names; i++)
        if (strcmp(nvtx->name[i].text, copy) == 0) return i;
    if (nvtx->n_names == NVTX_NAMES) return 0;
    named *new = &nvtx->name[nvtx->n_names];
    memcpy(new->text, copy, sizeof copy);
    new->handle = nvtxDomainRegisterStringA(nvtx->domain, copy);
    return nvtx->n_names++;
}

static nvtxStringHandle_t step_text(const CoreObject *core, uint32_t step) {
    nvtx_tool *nvtx = core->nvtx.tool;
    if ((nvtx->steps_known >> step & 1) == 0) {
        char text[TW_STEP_NAME_WORDS * 8];
        tw_words_get(core->segment->steps.of[step].name, TW_STEP_NAME_WORDS, text);
        nvtx->step[step] = text[0] != 0 ? name_of(nvtx, text, strlen(text)) : 0;
        nvtx->steps_known |= UINT64_C(1) << step;
    }
    return nvtx->name[nvtx->step[step]].handle;
}

/* The category of a label set, which has its name from the first token on that is sent of it. */
static uint32_t label_category(const CoreObject *core, uint32_t labels) {
    nvtx_tool *nvtx = core->nvtx.tool;
    if (labels >= TW_LABEL_SETS_LIMIT) return NVTX_CATEGORY_LABELS;
    if ((nvtx->labels_known[labels / 8] >> labels % 8 & 1) == 0) {
        const tw_series *series = tw_segment_series(core->segment, labels);
        char model[TW_NAME_BYTES], route[TW_NAME_BYTES], both[2 * TW_NAME_BYTES];
        tw_words_get(series->model.word, TW_NAME_WORDS, model);
        tw_words_get(series->route.word, TW_NAME_WORDS, route);
        snprintf(both, sizeof both, "%s %s", model, route);
        nvtxDomainNameCategoryA(nvtx->domain, NVTX_CATEGORY_LABELS + labels, both);
        nvtx->labels_known[labels / 8] |= (uint8_t)(1U << labels % 8);
    }
    return NVTX_CATEGORY_LABELS + labels;
}

/* ---- attaching ---- */

static void register_texts(nvtx_tool *nvtx) {
    static const char *const texts[] = {"collected", "request", "first token", "token", "tailwatch clock"};
    for (int cause = 0; cause < TW_CAUSES; cause++) {
        nvtx->text[TEXT_CAUSES + cause] = nvtxDomainRegisterStringA(nvtx->domain, tw_cause_name(cause));
        nvtxDomainNameCategoryA(nvtx->domain, NVTX_CATEGORY_CAUSES + (uint32_t)cause, tw_cause_name(cause));
    }
    for (int i = TEXT_COLLECTED; i < TEXTS; i++)
        nvtx->text[i] = nvtxDomainRegisterStringA(nvtx->domain, texts[i - TEXT_COLLECTED]);
}

static void name_categories(nvtxDomainHandle_t domain) {
    nvtxDomainNameCategoryA(domain, NVTX_CATEGORY_REQUESTS, "requests");
    nvtxDomainNameCategoryA(domain, NVTX_CATEGORY_STEPS, "steps");
    nvtxDomainNameCategoryA(domain, NVTX_CATEGORY_CLOCK, "clock");
    nvtxDomainNameCategoryA(domain, NVTX_CATEGORY_PROCESS, "process");
    nvtxDomainNameCategoryA(domain, NVTX_CATEGORY_USER, "user");
}

static void look(void) {
    looked = 1;
    const nvtxDomainHandle_t domain = nvtxDomainCreateA("tailwatch");
    if (domain == NULL || (process_tool = calloc(1, sizeof *process_tool)) == NULL) return;
    process_tool->domain = domain;
    pthread_atfork(NULL, NULL, forked);
    register_texts(process_tool);
    name_categories(domain);
    name_of(process_tool, "other", 5);
}

static void forget_numbers(nvtx_tool *nvtx) {
    nvtx->steps_known = 0;
    memset(nvtx->labels_known, 0, sizeof nvtx->labels_known);
}

/* ---- which process, and when ---- */

/* With each anchor: a tool may capture a part of the run only. */
static void mark_role(CoreObject *core) {
    nvtx_tool *nvtx = core->nvtx.tool;
    const tw_header *header = &core->segment->header;
    char role[TW_ROLE_WORDS * 8];
    tw_words_get(header->role, TW_ROLE_WORDS, role);
    const nvtxStringHandle_t text = nvtx->name[name_of(nvtx, role, strlen(role))].handle;
    const nvtxEventAttributes_t event = event_of(text, NVTX_CATEGORY_PROCESS, GREY, (int64_t)tw_load(&header->place));
    nvtxDomainMarkEx(nvtx->domain, &event);
}

static void anchor(CoreObject *core) {
    const nvtx_tool *nvtx = core->nvtx.tool;
    mark_role(core);
    nvtxEventAttributes_t event = event_of(nvtx->text[TEXT_CLOCK], NVTX_CATEGORY_CLOCK, GREY, 0);
    for (int i = 0; i < NVTX_BURST; i++) {
        event.payload.llValue = (int64_t)tw_now_ns();
        nvtxDomainMarkEx(nvtx->domain, &event);
    }
}

/* ---- requests, steps, tokens ---- */

void nvtx_request_begin(CoreObject *core, tw_nvtx_range *range, uint64_t request) {
    const nvtx_tool *nvtx = core->nvtx.tool;
    const nvtxEventAttributes_t event = event_of(nvtx->text[TEXT_REQUEST], NVTX_CATEGORY_REQUESTS, BLUE, (int64_t)request);
    begin(nvtx, range, &event);
}

void nvtx_step_begin(CoreObject *core, tw_nvtx_range *range, uint32_t step, uint64_t batch) {
    const nvtxEventAttributes_t event = event_of(step_text(core, step), NVTX_CATEGORY_STEPS, GREEN, (int64_t)batch);
    begin(core->nvtx.tool, range, &event);
}

void nvtx_message(const CoreObject *core, uint64_t request, uint64_t messages, uint32_t labels) {
    const nvtx_tool *nvtx = core->nvtx.tool;
    if (messages != 1 && !nvtx->tokens) return;
    const nvtxStringHandle_t text = nvtx->text[messages == 1 ? TEXT_FIRST : TEXT_TOKEN];
    const nvtxEventAttributes_t event = event_of(text, label_category(core, labels), BLUE, (int64_t)request);
    nvtxDomainMarkEx(nvtx->domain, &event);
}

/* ---- the user's own ---- */

static void user_begin(CoreObject *core, tw_nvtx_range *range, uint32_t name, int64_t payload) {
    const nvtx_tool *nvtx = core->nvtx.tool;
    const nvtxEventAttributes_t event = event_of(nvtx->name[name < nvtx->n_names ? name : 0].handle, NVTX_CATEGORY_USER, GREEN, payload);
    begin(nvtx, range, &event);
}

static void user_mark(CoreObject *core, uint32_t name, int64_t payload) {
    const nvtx_tool *nvtx = core->nvtx.tool;
    const nvtxEventAttributes_t event = event_of(nvtx->name[name < nvtx->n_names ? name : 0].handle, NVTX_CATEGORY_USER, GREEN, payload);
    nvtxDomainMarkEx(nvtx->domain, &event);
}

/* ---- collections and passes ---- */

/* What was pushed on this thread and lost its end. */
static void pop_pending(nvtx_tool *nvtx) {
    const pthread_t self = pthread_self();
    for (uint32_t i = 0; i < nvtx->n_pending; i++) {
        if (!pthread_equal(nvtx->pending[i].thread, self)) continue;
        while (nvtx->pending[i].pops-- > 0) nvtxDomainRangePop(nvtx->domain);
        nvtx->pending[i] = nvtx->pending[--nvtx->n_pending];
        return;
    }
}

/* Where there is no room the range stays open: that thread ended, or never collected again. */
static void pop_later(nvtx_tool *nvtx, pthread_t thread) {
    uint32_t i = 0;
    while (i < nvtx->n_pending && !pthread_equal(nvtx->pending[i].thread, thread)) i++;
    if (i == PENDING) return;
    if (i == nvtx->n_pending) {
        nvtx->pending[i].thread = thread;
        nvtx->pending[i].pops = 0;
        nvtx->n_pending++;
    }
    nvtx->pending[i].pops++;
}

static void push(nvtx_tool *nvtx, tw_cause cause, uint32_t color) {
    if (nvtx->n_pending > 0) pop_pending(nvtx);
    const nvtxEventAttributes_t event = event_of(nvtx->text[TEXT_CAUSES + cause], NVTX_CATEGORY_CAUSES + (uint32_t)cause, color, (int64_t)nvtx->passes++);
    nvtxDomainRangePushEx(nvtx->domain, &event);
}

static void gc_push(CoreObject *core, tw_cause cause) {
    nvtx_tool *nvtx = core->nvtx.tool;
    push(nvtx, cause, (uint32_t)RED);
    nvtx->gc_thread = pthread_self();
    nvtx->gc_forks = forks;
    core->nvtx.collection = 1;
}

/* On any thread; another thread's stack is put right before its next push. */
static void gc_pop(CoreObject *core) {
    core->nvtx.collection = 0;
    if (process_tool->gc_forks != forks) return;
    if (pthread_equal(process_tool->gc_thread, pthread_self())) nvtxDomainRangePop(process_tool->domain);
    else pop_later(process_tool, process_tool->gc_thread);
}

static void mark_collected(tw_cause cause, uint64_t collected) {
    const nvtxEventAttributes_t event = event_of(process_tool->text[TEXT_COLLECTED], NVTX_CATEGORY_CAUSES + (uint32_t)cause, (uint32_t)RED, (int64_t)collected);
    nvtxDomainMarkEx(process_tool->domain, &event);
}

/* Of the pass inside which the depth is this. Both ends are on one thread. */
static uint64_t pass_bit(int depth) { return depth > 0 && depth <= 64 ? UINT64_C(1) << (depth - 1) : 0; }

/* A pause_hook: what the tool itself takes is no callback. */
static int pause_begins(void *of, tw_cause cause, int generation) {
    CoreObject *core = of;
    if (!nvtx_on(core)) return 0;
    if (generation >= 0) gc_push(core, cause);
    else if (pass_bit(core->pass.depth) != 0) {
        push(core->nvtx.tool, cause, (uint32_t)AMBER);
        core->nvtx.passes |= pass_bit(core->pass.depth);
    }
    return 1;
}

static void pause_ends(void *of, tw_cause cause, int generation, const uint64_t *collected) {
    CoreObject *core = of;
    const uint64_t bit = generation >= 0 ? 0 : pass_bit(core->pass.depth + 1) & core->nvtx.passes;
    if (generation >= 0 && core->nvtx.collection) {
        if (collected != NULL) mark_collected(cause, *collected);
        gc_pop(core);
    } else if (bit != 0) {
        core->nvtx.passes &= ~bit;
        nvtxDomainRangePop(process_tool->domain);
    }
}

/* ---- switching it on and off ---- */

/* Whether a tool listens, and is to be sent to. tokens: a mark for each message of tokens. Asking again changes that only.
 * What is open still ends once nothing begins any more, so the hook stays. */
static int attach(CoreObject *core, int tokens) {
    if (!looked) look();
    if (process_tool == NULL) return 0;
    process_tool->tokens = tokens;
    if (core->nvtx.tool == NULL) forget_numbers(process_tool);
    core->nvtx.tool = process_tool;
    core->on_pause[ON_PAUSE_NVTX] = (pause_hook){core, pause_begins, pause_ends};
    return 1;
}

void nvtx_reborn(CoreObject *core) {
    if (process_tool == NULL) return;
    if (core->nvtx.collection && process_tool->gc_forks == forks) gc_pop(core);
    else process_tool->n_pending = 0; /* of threads that a fork child does not have */
    core->nvtx.collection = 0;
    core->nvtx.passes = 0;
    forget_numbers(process_tool);
}

/* ---- methods of Core ---- */

/* nvtx(tokens) */
PyObject *core_nvtx_on(PyObject *op, PyObject *tokens) {
    const int each = PyObject_IsTrue(tokens);
    return each < 0 ? NULL : PyBool_FromLong(attach((CoreObject *)op, each));
}

PyObject *core_nvtx_off(PyObject *op, PyObject *unused) {
    (void)unused;
    ((CoreObject *)op)->nvtx.tool = NULL;
    Py_RETURN_NONE;
}

PyObject *core_nvtx_attached(PyObject *op, void *unused) {
    (void)unused;
    return PyBool_FromLong(nvtx_on((CoreObject *)op));
}

PyObject *core_nvtx_anchor(PyObject *op, PyObject *unused) {
    (void)unused;
    if (nvtx_on((CoreObject *)op)) anchor((CoreObject *)op);
    Py_RETURN_NONE;
}

/* ---- methods: the user's own ---- */

/* Lone surrogates become '?'. Without a tool every name is 0. */
PyObject *core_nvtx_name(PyObject *op, PyObject *text) {
    CoreObject *core = (CoreObject *)op;
    if (!PyUnicode_Check(text)) return PyErr_Format(PyExc_TypeError, "name: expected a text, found %R", text);
    if (!nvtx_on(core)) return PyLong_FromLong(0);
    PyObject *bytes = PyUnicode_AsEncodedString(text, "utf-8", "replace");
    if (bytes == NULL) return NULL;
    const uint32_t name = name_of(core->nvtx.tool, PyBytes_AsString(bytes), (size_t)PyBytes_Size(bytes));
    Py_DECREF(bytes);
    return PyLong_FromUnsignedLong(name);
}

/* nvtx_begin(name, payload) -> (id, begun); (0, 0) where no tool is sent to */
PyObject *core_nvtx_begin(PyObject *op, PyObject *args) {
    CoreObject *core = (CoreObject *)op;
    unsigned int name;
    unsigned long long payload; /* "K": of a number that has more, the low 64 bits */
    tw_nvtx_range range = {0, 0};
    if (!PyArg_ParseTuple(args, "IK", &name, &payload)) return NULL;
    if (nvtx_on(core)) user_begin(core, &range, name, (int64_t)payload);
    return Py_BuildValue("KK", (unsigned long long)range.id, (unsigned long long)range.begun);
}

PyObject *core_nvtx_end(PyObject *op, PyObject *args) {
    unsigned long long id, begun;
    (void)op;
    if (!PyArg_ParseTuple(args, "KK", &id, &begun)) return NULL;
    tw_nvtx_range range = {id, begun};
    if (begun != 0) nvtx_end(&range);
    Py_RETURN_NONE;
}

PyObject *core_nvtx_mark(PyObject *op, PyObject *args) {
    CoreObject *core = (CoreObject *)op;
    unsigned int name;
    unsigned long long payload; /* "K": of a number that has more, the low 64 bits */
    if (!PyArg_ParseTuple(args, "IK", &name, &payload)) return NULL;
    if (nvtx_on(core)) user_mark(core, name, (int64_t)payload);
    Py_RETURN_NONE;
}

/* ---- what a range costs ---- */

/* As at the places that emit: the pointer is looked at anew each time. */
#define AGAIN() __asm__ volatile("" ::: "memory")

static void time_pushes(CoreObject *core, long n) {
    for (long i = 0; i < n; i++) {
        if (nvtx_on(core)) gc_push(core, TW_CAUSE_GC0);
        AGAIN();
        if (core->nvtx.collection) gc_pop(core);
        AGAIN();
    }
}

static void time_starts(CoreObject *core, tw_nvtx_range *range, long n) {
    for (long i = 0; i < n; i++) {
        if (nvtx_on(core)) user_begin(core, range, 0, i);
        AGAIN();
        if (__builtin_expect(range->begun != 0, 0)) nvtx_end(range);
        AGAIN();
    }
}

static void time_marks(CoreObject *core, long n) {
    for (long i = 0; i < n; i++) {
        if (nvtx_on(core)) user_mark(core, 0, i);
        AGAIN();
    }
}

/* nvtx_timed(kind, n): kind 0 push and pop, 1 start and end, 2 mark, 3 the loop alone. */
PyObject *core_nvtx_timed(PyObject *op, PyObject *args) {
    CoreObject *core = (CoreObject *)op;
    tw_nvtx_range range = {0, 0};
    int kind;
    long n;
    if (!PyArg_ParseTuple(args, "il", &kind, &n)) return NULL;
    const uint64_t start = tw_now_ns();
    if (kind == 0) time_pushes(core, n);
    else if (kind == 1) time_starts(core, &range, n);
    else if (kind == 2) time_marks(core, n);
    else for (long i = 0; i < n; i++) AGAIN();
    return PyLong_FromUnsignedLongLong(tw_now_ns() - start);
}
