/* What an NVTX tool is told, see python/nvtx/ranges.h. The NVTX headers keep process-wide state of their own, so this
 * does too. */
#include "python/nvtx/ranges.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nvtx3/nvToolsExt.h>

#define OWED 8 /* threads whose stack is to be put right */

typedef enum text {
    TEXT_CAUSES, /* and those of the other causes after it */
    TEXT_COLLECTED = TEXT_CAUSES + TW_CAUSES, TEXT_REQUEST, TEXT_FIRST, TEXT_TOKEN, TEXT_CLOCK, TEXTS
} text;

enum { RED = (int)0xFFD03030, AMBER = (int)0xFFE0A030, BLUE = (int)0xFF4070C0, GREEN = (int)0xFF40A060, GREY = (int)0xFF909090 };

typedef struct named {
    char text[NVTX_NAME_BYTES];
    nvtxStringHandle_t handle;
} named;

struct core_nvtx {
    nvtxDomainHandle_t domain;
    nvtxStringHandle_t text[TEXTS];
    int tokens;
    uint64_t passes;                /* collections and passes so far */
    pthread_t gc_thread;            /* which one the open collection was pushed on */
    uint64_t gc_forks;
    struct { pthread_t thread; uint32_t pops; } owed[OWED];
    uint32_t n_owed;
    uint64_t steps_known;           /* bit i: step i has a name */
    uint32_t step[TW_STEPS];        /* numbers of their names */
    uint8_t labels_known[TW_LABEL_SETS_LIMIT / 8];
    uint32_t n_names;
    named name[NVTX_NAMES];         /* the first is "other" */
};

/* One a process, made when a tool was found. */
static core_nvtx *told;
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

static void begin(const core_nvtx *nvtx, tw_nvtx_range *range, const nvtxEventAttributes_t *event) {
    if (range->id != 0) nvtx_end(range);
    range->id = nvtxDomainRangeStartEx(nvtx->domain, event);
    range->forks = forks;
}

void nvtx_end(tw_nvtx_range *range) {
    if (range->forks == forks) nvtxDomainRangeEnd(told->domain, range->id);
    range->id = 0;
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

static uint32_t name_of(core_nvtx *nvtx, const char *text, size_t len) {
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

uint32_t nvtx_name(CoreObject *core, const char *text, size_t len) { return name_of(core->nvtx, text, len); }

static nvtxStringHandle_t step_text(const CoreObject *core, uint32_t step) {
    core_nvtx *nvtx = core->nvtx;
    if ((nvtx->steps_known >> step & 1) == 0) {
        char text[TW_STEP_NAME_WORDS * 8];
        tw_words_get(core->segment->steps.of[step].name, TW_STEP_NAME_WORDS, text);
        nvtx->step[step] = text[0] != 0 ? name_of(nvtx, text, strlen(text)) : 0;
        nvtx->steps_known |= UINT64_C(1) << step;
    }
    return nvtx->name[nvtx->step[step]].handle;
}

/* The category of a label set, which has its name from the first token on that is told of it. */
static uint32_t label_category(const CoreObject *core, uint32_t labels) {
    core_nvtx *nvtx = core->nvtx;
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

static void register_texts(core_nvtx *nvtx) {
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
    if (domain == NULL || (told = calloc(1, sizeof *told)) == NULL) return;
    told->domain = domain;
    pthread_atfork(NULL, NULL, forked);
    register_texts(told);
    name_categories(domain);
    name_of(told, "other", 5);
}

static void forget_numbers(core_nvtx *nvtx) {
    nvtx->steps_known = 0;
    memset(nvtx->labels_known, 0, sizeof nvtx->labels_known);
}

int nvtx_attach(CoreObject *core, int tokens) {
    if (!looked) look();
    if (told == NULL) return 0;
    told->tokens = tokens;
    if (core->nvtx == NULL) forget_numbers(told);
    core->nvtx = told;
    return 1;
}

void nvtx_detach(CoreObject *core) { core->nvtx = NULL; }

void nvtx_reborn(CoreObject *core) {
    if (told == NULL) return;
    if (core->nvtx_gc && told->gc_forks == forks) nvtx_gc_pop(core);
    else told->n_owed = 0; /* of threads that a fork child does not have */
    core->nvtx_gc = 0;
    core->nvtx_policy = 0;
    forget_numbers(told);
}

/* ---- who and when ---- */

/* With each anchor: a tool may capture a part of the run only. */
static void tell_role(CoreObject *core) {
    core_nvtx *nvtx = core->nvtx;
    const tw_header *header = &core->segment->header;
    char role[TW_ROLE_WORDS * 8];
    tw_words_get(header->role, TW_ROLE_WORDS, role);
    const nvtxStringHandle_t text = nvtx->name[name_of(nvtx, role, strlen(role))].handle;
    const nvtxEventAttributes_t event = event_of(text, NVTX_CATEGORY_PROCESS, GREY, (int64_t)tw_load(&header->place));
    nvtxDomainMarkEx(nvtx->domain, &event);
}

void nvtx_anchor(CoreObject *core) {
    const core_nvtx *nvtx = core->nvtx;
    tell_role(core);
    nvtxEventAttributes_t event = event_of(nvtx->text[TEXT_CLOCK], NVTX_CATEGORY_CLOCK, GREY, 0);
    for (int i = 0; i < NVTX_BURST; i++) {
        event.payload.llValue = (int64_t)tw_now_ns();
        nvtxDomainMarkEx(nvtx->domain, &event);
    }
}

/* ---- requests, steps, tokens ---- */

void nvtx_request_begin(StreamObject *stream) {
    const core_nvtx *nvtx = stream->core->nvtx;
    const nvtxEventAttributes_t event = event_of(nvtx->text[TEXT_REQUEST], NVTX_CATEGORY_REQUESTS, BLUE, (int64_t)stream->number);
    begin(nvtx, &stream->range, &event);
}

void nvtx_step_begin(CoreObject *core, tw_nvtx_range *range, uint32_t step, uint64_t batch) {
    const nvtxEventAttributes_t event = event_of(step_text(core, step), NVTX_CATEGORY_STEPS, GREEN, (int64_t)batch);
    begin(core->nvtx, range, &event);
}

/* A stamp that was dropped made no message. */
void nvtx_stamped(StreamObject *self) {
    const core_nvtx *nvtx = self->core->nvtx;
    const uint64_t messages = self->stream.messages;
    if (messages == self->marked) return;
    self->marked = messages;
    if (messages != 1 && !nvtx->tokens) return;
    const nvtxStringHandle_t text = nvtx->text[messages == 1 ? TEXT_FIRST : TEXT_TOKEN];
    const nvtxEventAttributes_t event = event_of(text, label_category(self->core, self->stream.series_index), BLUE, (int64_t)self->number);
    nvtxDomainMarkEx(nvtx->domain, &event);
}

/* ---- the user's own ---- */

void nvtx_user_begin(CoreObject *core, tw_nvtx_range *range, uint32_t name, int64_t payload) {
    const core_nvtx *nvtx = core->nvtx;
    const nvtxEventAttributes_t event = event_of(nvtx->name[name < nvtx->n_names ? name : 0].handle, NVTX_CATEGORY_USER, GREEN, payload);
    begin(nvtx, range, &event);
}

void nvtx_user_mark(CoreObject *core, uint32_t name, int64_t payload) {
    const core_nvtx *nvtx = core->nvtx;
    const nvtxEventAttributes_t event = event_of(nvtx->name[name < nvtx->n_names ? name : 0].handle, NVTX_CATEGORY_USER, GREEN, payload);
    nvtxDomainMarkEx(nvtx->domain, &event);
}

/* ---- collections and passes ---- */

/* What was pushed on this thread and lost its end. */
static void pay(core_nvtx *nvtx) {
    const pthread_t self = pthread_self();
    for (uint32_t i = 0; i < nvtx->n_owed; i++) {
        if (!pthread_equal(nvtx->owed[i].thread, self)) continue;
        while (nvtx->owed[i].pops-- > 0) nvtxDomainRangePop(nvtx->domain);
        nvtx->owed[i] = nvtx->owed[--nvtx->n_owed];
        return;
    }
}

/* Where there is no room the range stays open: that thread ended, or never collected again. */
static void owe(core_nvtx *nvtx, pthread_t thread) {
    uint32_t i = 0;
    while (i < nvtx->n_owed && !pthread_equal(nvtx->owed[i].thread, thread)) i++;
    if (i == OWED) return;
    if (i == nvtx->n_owed) {
        nvtx->owed[i].thread = thread;
        nvtx->owed[i].pops = 0;
        nvtx->n_owed++;
    }
    nvtx->owed[i].pops++;
}

static void push(core_nvtx *nvtx, tw_cause cause, uint32_t color) {
    if (nvtx->n_owed > 0) pay(nvtx);
    const nvtxEventAttributes_t event = event_of(nvtx->text[TEXT_CAUSES + cause], NVTX_CATEGORY_CAUSES + (uint32_t)cause, color, (int64_t)nvtx->passes++);
    nvtxDomainRangePushEx(nvtx->domain, &event);
}

void nvtx_gc_push(CoreObject *core, tw_cause cause) {
    core_nvtx *nvtx = core->nvtx;
    push(nvtx, cause, (uint32_t)RED);
    nvtx->gc_thread = pthread_self();
    nvtx->gc_forks = forks;
    core->nvtx_gc = 1;
}

void nvtx_gc_collected(const CoreObject *core, tw_cause cause, uint64_t collected) {
    (void)core;
    const nvtxEventAttributes_t event = event_of(told->text[TEXT_COLLECTED], NVTX_CATEGORY_CAUSES + (uint32_t)cause, (uint32_t)RED, (int64_t)collected);
    nvtxDomainMarkEx(told->domain, &event);
}

void nvtx_gc_pop(CoreObject *core) {
    core->nvtx_gc = 0;
    if (told->gc_forks != forks) return;
    if (pthread_equal(told->gc_thread, pthread_self())) nvtxDomainRangePop(told->domain);
    else owe(told, told->gc_thread);
}

static uint64_t policy_bit(const CoreObject *core) {
    return core->policy_depth > 0 && core->policy_depth <= 64 ? UINT64_C(1) << (core->policy_depth - 1) : 0;
}

void nvtx_policy_push(CoreObject *core) {
    if (policy_bit(core) == 0) return;
    push(core->nvtx, TW_CAUSE_POLICY, (uint32_t)AMBER);
    core->nvtx_policy |= policy_bit(core);
}

void nvtx_policy_pop(CoreObject *core) {
    if ((core->nvtx_policy & policy_bit(core)) == 0) return;
    core->nvtx_policy &= ~policy_bit(core);
    nvtxDomainRangePop(told->domain);
}
