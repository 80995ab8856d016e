#include "python/stall/poll_slot.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#if UINTPTR_MAX == UINT64_MAX
#define RELOCATION_SYMBOL ELF64_R_SYM
#else
#define RELOCATION_SYMBOL ELF32_R_SYM
#endif

typedef int (*poll_function)(int, struct epoll_event *, int, int, const sigset_t *);

/* One for the process: the slot is. Written under the GIL; a loop's thread reads its own entry. */
static struct {
    poll_function real;
    void **slot;
    struct { int fd_and_1; const loop_clock *clock; } loop[TW_TRACKS];
} polls;

static const loop_clock *clock_of(int fd) {
    for (int i = 0; i < TW_TRACKS; i++)
        if (__atomic_load_n(&polls.loop[i].fd_and_1, __ATOMIC_ACQUIRE) == fd + 1) return polls.loop[i].clock;
    return NULL;
}

/* An event is there, and another thread has the interpreter: how long it is waited for. */
static void time_gil(const loop_clock *clock, uint64_t woke_ns) {
    const uintptr_t gil = clock->core->host.interpreter.gil;
    if (gil == 0 || __atomic_load_n((const int *)(gil + clock->core->host.interpreter.at.gil_locked),
        __ATOMIC_RELAXED) != 1) return;
    const PyGILState_STATE state = PyGILState_Ensure();
    loop_clock_has_gil(clock, woke_ns, tw_now_ns());
    PyGILState_Release(state);
}

static int timed_poll(int fd, struct epoll_event *events, int most, int ms, const sigset_t *mask) {
    const loop_clock *found = clock_of(fd);
    if (found == NULL || !loop_clock_runs(found)) return polls.real(fd, events, most, ms, mask);
    const loop_clock own = *found, *clock = &own;
    if (ms != 0) loop_clock_waits(clock, tw_now_ns());
    const int n = polls.real(fd, events, most, ms, mask), error = errno;
    const uint64_t woke = tw_now_ns();
    if (ms == 0) loop_clock_waits(clock, woke); /* it only looked */
    loop_clock_wakes(clock, woke);
    if (n > 0) {
        loop_clock_events(clock, events, n, woke);
        time_gil(clock, woke);
    }
    errno = error;
    return n;
}

/* ---- the slot ---- */

typedef struct search {
    const char *path;
    void **slot;
} search;

typedef struct tables {
    const ElfW(Sym) *symbols;
    const char *names;
    const ElfW(Rela) *relocations;
    size_t bytes;
} tables;

static tables tables_of(const ElfW(Dyn) *entry) {
    tables t = {NULL, NULL, NULL, 0};
    for (; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB) t.symbols = (const ElfW(Sym) *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) t.names = (const char *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_JMPREL) t.relocations = (const ElfW(Rela) *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_PLTRELSZ) t.bytes = entry->d_un.d_val;
    }
    return t;
}

static void **slot_in(ElfW(Addr) base, const ElfW(Dyn) *dynamic) {
    const tables t = tables_of(dynamic);
    if (t.symbols == NULL || t.names == NULL || t.relocations == NULL) return NULL;
    for (size_t i = 0; i < t.bytes / sizeof *t.relocations; i++) {
        const ElfW(Rela) *r = &t.relocations[i];
        if (strcmp(t.names + t.symbols[RELOCATION_SYMBOL(r->r_info)].st_name, "epoll_pwait") == 0)
            return (void **)(base + r->r_offset);
    }
    return NULL;
}

static int look_at(struct dl_phdr_info *object, size_t size, void *found) {
    search *s = found;
    (void)size;
    char resolved[PATH_MAX];
    if (object->dlpi_name == NULL || realpath(object->dlpi_name, resolved) == NULL || strcmp(resolved,
        s->path) != 0) return 0;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            s->slot = slot_in(object->dlpi_addr, (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr));
    return 1;
}

/* It may stand on a page that is read-only since the object was loaded: it is so again afterwards. */
static int write_slot(void **slot, void *function, int read_only) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *start = (void *)((uintptr_t)slot & ~(page - 1));
    if (mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return -1;
    __atomic_store_n(slot, function, __ATOMIC_RELEASE);
    if (read_only) (void)mprotect(start, page, PROT_READ);
    return 0;
}

/* Whether a page is read-only, as /proc/self/maps has it. */
static int is_read_only(const void *address) {
    char line[512];
    int read_only = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        unsigned long from, to;
        char rights[5];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3 && (uintptr_t)address >= from &&
            (uintptr_t)address < to)
            read_only = rights[1] != 'w';
    }
    if (maps != NULL) fclose(maps);
    return read_only;
}

static int take_slot(const char *path) {
    char resolved[PATH_MAX];
    search s = {resolved, NULL};
    if (polls.slot != NULL) return 0;
    if (realpath(path, resolved) == NULL) return -1;
    dl_iterate_phdr(look_at, &s);
    if (s.slot == NULL) return -1;
    polls.real = (poll_function)epoll_pwait; /* what an unresolved slot would come to */
    const int read_only = is_read_only(s.slot);
    if (read_only) polls.real = (poll_function)*s.slot; /* it was resolved as the object was loaded */
    if (write_slot(s.slot, (void *)timed_poll, read_only) < 0) return -1;
    polls.slot = s.slot;
    return 0;
}

int poll_slot_follow(const char *path, int descriptor, const loop_clock *clock) {
    for (int i = 0; i < TW_TRACKS; i++) {
        if (polls.loop[i].fd_and_1 != 0) continue;
        if (take_slot(path) < 0) return -1;
        polls.loop[i].clock = clock;
        __atomic_store_n(&polls.loop[i].fd_and_1, descriptor + 1, __ATOMIC_RELEASE);
        return 0;
    }
    return -1;
}

static int any_followed(void) {
    for (int i = 0; i < TW_TRACKS; i++)
        if (polls.loop[i].fd_and_1 != 0) return 1;
    return 0;
}

void poll_slot_leave(int descriptor) {
    for (int i = 0; i < TW_TRACKS; i++)
        if (polls.loop[i].fd_and_1 == descriptor + 1) __atomic_store_n(&polls.loop[i].fd_and_1, 0, __ATOMIC_RELEASE);
    if (polls.slot == NULL || any_followed() || *polls.slot != (void *)timed_poll) return;
    if (write_slot(polls.slot, (void *)polls.real, is_read_only(polls.slot)) == 0) polls.slot = NULL;
}
