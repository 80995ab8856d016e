/* An NVTX tool for the tests: writes each call as a line of JSON, with the process, the thread and CLOCK_MONOTONIC.
 *
 * Loaded by NVTX_INJECTION64_PATH. NVTX_WITNESS_FILE names the file, appended to by one write() a line, so that threads and
 * fork children may share it; without it the tool attaches and does nothing. "depth" is that of the thread in the
 * domain, before a push and after a pop.
 *
 * InitializeInjectionNvtxExtension is not exported: nvtxDomainIsEnabled() then answers 1, on which the PyPI package
 * nvtx insists.
 */
#include <nvtx3/nvToolsExt.h>

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define DOMAINS 16

typedef struct domain { int number; char name[128]; } domain;
typedef struct string { domain *domain; char text[256]; } string;

static int out = -1;
static domain domains[DOMAINS];
static atomic_int n_domains;
static atomic_ullong next_range = 1;
static _Thread_local int depth[DOMAINS];

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void quote(char *to, size_t room, const char *text) {
    size_t n = 0;
    for (; *text != 0 && n + 7 < room; text++) {
        if (*text == '"' || *text == '\\') to[n++] = '\\', to[n++] = *text;
        else if ((unsigned char)*text < 32) n += (size_t)snprintf(to + n, room - n, "\\u%04x", *text);
        else to[n++] = *text;
    }
    to[n] = 0;
}

static const char *message_of(const nvtxEventAttributes_t *event) {
    if (event->messageType == NVTX_MESSAGE_TYPE_ASCII) return event->message.ascii;
    return event->messageType == NVTX_MESSAGE_TYPE_REGISTERED ? ((const string *)event->message.registered)->text : "";
}

static void payload_of(const nvtxEventAttributes_t *event, char *to, size_t room) {
    if (event->payloadType == NVTX_PAYLOAD_TYPE_INT64) snprintf(to, room, "%lld", (long long)event->payload.llValue);
    else if (event->payloadType == NVTX_PAYLOAD_TYPE_UNSIGNED_INT64) snprintf(to, room, "%llu", (unsigned long long)event->payload.ullValue);
    else if (event->payloadType == NVTX_PAYLOAD_TYPE_DOUBLE) snprintf(to, room, "%.17g", event->payload.dValue);
    else snprintf(to, room, "null");
}

static void line(const char *what, const domain *in, const char *text, const nvtxEventAttributes_t *event, unsigned long long range, int level) {
    if (out < 0) return;
    const long long at = now_ns();
    char row[1024], quoted[520], name[260], payload[40] = "null";
    quote(quoted, sizeof quoted, event != NULL ? message_of(event) : text);
    quote(name, sizeof name, in != NULL ? in->name : "");
    if (event != NULL) payload_of(event, payload, sizeof payload);
    const int n = snprintf(row, sizeof row,
                           "{\"at\":%lld,\"pid\":%d,\"tid\":%ld,\"what\":\"%s\",\"domain\":\"%s\",\"text\":\"%s\",\"category\":%u,"
                           "\"payload\":%s,\"registered\":%s,\"range\":%llu,\"depth\":%d}\n",
                           at, (int)getpid(), (long)syscall(SYS_gettid), what, name, quoted, event != NULL ? event->category : 0, payload,
                           event != NULL && event->messageType == NVTX_MESSAGE_TYPE_REGISTERED ? "true" : "false", range, level);
    if (n > 0 && write(out, row, (size_t)n) != n) abort();
}

static domain *of(nvtxDomainHandle_t handle) { return (domain *)handle; }
static int *level_of(nvtxDomainHandle_t handle) { return &depth[of(handle)->number]; }

static void domain_mark(nvtxDomainHandle_t d, const nvtxEventAttributes_t *event) { line("mark", of(d), "", event, 0, *level_of(d)); }
static int domain_push(nvtxDomainHandle_t d, const nvtxEventAttributes_t *event) {
    line("push", of(d), "", event, 0, *level_of(d));
    return (*level_of(d))++;
}
static int domain_pop(nvtxDomainHandle_t d) {
    line("pop", of(d), "", NULL, 0, --*level_of(d));
    return *level_of(d);
}
static nvtxRangeId_t domain_start(nvtxDomainHandle_t d, const nvtxEventAttributes_t *event) {
    const unsigned long long range = next_range++;
    line("start", of(d), "", event, range, 0);
    return range;
}
static void domain_end(nvtxDomainHandle_t d, nvtxRangeId_t range) { line("end", of(d), "", NULL, range, 0); }

static nvtxStringHandle_t domain_register(nvtxDomainHandle_t d, const char *text) {
    string *made = calloc(1, sizeof *made);
    made->domain = of(d);
    snprintf(made->text, sizeof made->text, "%s", text);
    line("register", of(d), text, NULL, 0, 0);
    return (nvtxStringHandle_t)made;
}

/* The same domain for the same name, whoever asks, as the real tools do. */
static nvtxDomainHandle_t domain_create(const char *name) {
    for (int i = 0; i < n_domains; i++)
        if (strcmp(domains[i].name, name) == 0) return (nvtxDomainHandle_t)&domains[i];
    const int number = n_domains++;
    if (number >= DOMAINS) abort();
    domains[number].number = number;
    snprintf(domains[number].name, sizeof domains[number].name, "%s", name);
    line("domain", &domains[number], name, NULL, 0, 0);
    return (nvtxDomainHandle_t)&domains[number];
}

static void domain_category(nvtxDomainHandle_t d, uint32_t category, const char *name) {
    nvtxEventAttributes_t event = {0};
    event.category = category;
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = name;
    line("category", of(d), "", &event, 0, 0);
}

static void set(NvtxFunctionTable table, unsigned size, unsigned id, void (*function)(void)) {
    if (id < size) *table[id] = (NvtxFunctionPointer)function;
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
    const char *path = getenv("NVTX_WITNESS_FILE");
    const NvtxExportTableCallbacks *tables = get(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned size;
    if (path != NULL && out < 0 && (out = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600)) < 0) return 0;
    if (tables == NULL || !tables->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
    set(table, size, NVTX_CBID_CORE2_DomainMarkEx, (void (*)(void))domain_mark);
    set(table, size, NVTX_CBID_CORE2_DomainRangePushEx, (void (*)(void))domain_push);
    set(table, size, NVTX_CBID_CORE2_DomainRangePop, (void (*)(void))domain_pop);
    set(table, size, NVTX_CBID_CORE2_DomainRangeStartEx, (void (*)(void))domain_start);
    set(table, size, NVTX_CBID_CORE2_DomainRangeEnd, (void (*)(void))domain_end);
    set(table, size, NVTX_CBID_CORE2_DomainRegisterStringA, (void (*)(void))domain_register);
    set(table, size, NVTX_CBID_CORE2_DomainCreateA, (void (*)(void))domain_create);
    set(table, size, NVTX_CBID_CORE2_DomainNameCategoryA, (void (*)(void))domain_category);
    return 1;
}
