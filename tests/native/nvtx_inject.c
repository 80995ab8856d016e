/* An NVTX tool for the tests: keeps each call as a record, with the process, the thread and CLOCK_MONOTONIC on entry.
 *
 * Loaded by NVTX_INJECTION64_PATH. NVTX_WITNESS_FILE names the file of records, which all threads and fork children map, so
 * that nothing is lost when one dies; without it the tool attaches and does nothing. A record is taken by an addition
 * and filled by copies: a tool that is slow would be seen in the times of its caller.
 *
 * InitializeInjectionNvtxExtension is not exported: nvtxDomainIsEnabled() then answers 1, on which the PyPI package
 * nvtx insists.
 */
#include <nvtx3/nvToolsExt.h>

#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define DOMAINS 16
#define RECORDS 65536

/* As tests/nvtx/conftest.py reads it: 256 bytes. depth: of the thread in the domain, before a push and after a pop. */
typedef struct record {
    int64_t at, payload;
    uint64_t range;
    int32_t pid, tid, depth;
    uint32_t category;
    char what[12], domain[32];
    uint8_t registered, has_payload, spare[2];
    char text[168];
} record;
_Static_assert(sizeof(record) == 256, "as Python reads it");

typedef struct file { atomic_ullong used; char spare[248]; record records[RECORDS]; } file;

typedef struct domain { int number; char name[32]; } domain;
typedef struct string { char text[168]; } string;

static file *out;
static domain domains[DOMAINS];
static atomic_int n_domains;
static atomic_ullong next_range; /* the first is 0, as Nsight Compute has it */
static _Thread_local int depth[DOMAINS];

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static const char *message_of(const nvtxEventAttributes_t *event) {
    if (event->messageType == NVTX_MESSAGE_TYPE_ASCII) return event->message.ascii;
    return event->messageType == NVTX_MESSAGE_TYPE_REGISTERED ? ((const string *)event->message.registered)->text : "";
}

static void copy(char *to, size_t room, const char *from) {
    const size_t len = strlen(from);
    memcpy(to, from, len < room ? len : room - 1);
}

static void line(const char *what, const domain *in, const char *text, const nvtxEventAttributes_t *event, uint64_t range, int level) {
    if (out == NULL) return;
    const int64_t at = now_ns();
    const unsigned long long n = atomic_fetch_add(&out->used, 1);
    if (n >= RECORDS) abort();
    record *r = &out->records[n];
    r->at = at;
    r->pid = (int32_t)getpid();
    r->tid = (int32_t)syscall(SYS_gettid);
    r->range = range;
    r->depth = level;
    copy(r->what, sizeof r->what, what);
    copy(r->domain, sizeof r->domain, in->name);
    copy(r->text, sizeof r->text, event != NULL ? message_of(event) : text);
    if (event == NULL) return;
    r->category = event->category;
    r->registered = event->messageType == NVTX_MESSAGE_TYPE_REGISTERED;
    r->has_payload = event->payloadType == NVTX_PAYLOAD_TYPE_INT64;
    r->payload = r->has_payload ? event->payload.llValue : 0;
}

static file *map(const char *path) {
    const int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0 || ftruncate(descriptor, sizeof(file)) != 0) return NULL;
    void *mapped = mmap(NULL, sizeof(file), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    return mapped == MAP_FAILED ? NULL : mapped;
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
    const uint64_t range = next_range++;
    line("start", of(d), "", event, range, 0);
    return range;
}
static void domain_end(nvtxDomainHandle_t d, nvtxRangeId_t range) { line("end", of(d), "", NULL, range, 0); }

static nvtxStringHandle_t domain_register(nvtxDomainHandle_t d, const char *text) {
    string *made = calloc(1, sizeof *made);
    copy(made->text, sizeof made->text, text);
    line("register", of(d), text, NULL, 0, 0);
    return (nvtxStringHandle_t)made;
}

/* The same domain for the same name, whatever asks, as the real tools do. */
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
    if (path != NULL && out == NULL && (out = map(path)) == NULL) return 0;
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
