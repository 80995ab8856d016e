#include "tailwatch/record/event_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/names.h"
#include "tailwatch/base/deferred_free.h"
#include "tailwatch/base/atomic.h"
#include "tailwatch/base/shared_memory.h"
#include "tailwatch/base/process.h"

#define LINE 64
#define PAGE 4096

_Static_assert(sizeof(tw_ring_event) == 32 && LINE % sizeof(tw_ring_event) == 0, "an event is half a cache line");
_Static_assert(sizeof(tw_clock_snapshot) == LINE && sizeof(tw_ring_entry) == 2 * LINE, "on lines of their own");
_Static_assert(sizeof(tw_trace_head) % LINE == 0 && offsetof(tw_trace_head, ring) % LINE == 0, "so are the rings");

/* ---- names of numbers ---- */

TW_NAMES(tw_kind_name, TW_KINDS, "none", "open", "first", "token", "delay", "close", "pause", "step", "counter", "thread",
         "stall", "frames")
TW_NAMES(tw_counter_name, TW_COUNTERS, "streams in flight", "goodput", "unfrozen heap", "overlap", "delay")
TW_NAMES(tw_counter_unit, TW_COUNTERS, "requests", "requests/1000 s", "objects", "ns", "ns")

/* ---- layout ---- */

static size_t up_to(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

static size_t clocks_at(uint32_t label_sets) { return sizeof(tw_trace_head) + label_sets * sizeof(tw_trace_labels); }

static size_t stalls_at(uint32_t label_sets) {
    return clocks_at(label_sets) + TW_CLOCK_KEPT * sizeof(tw_clock_snapshot);
}

static size_t events_at(uint32_t label_sets) { return up_to(stalls_at(label_sets) + sizeof(tw_trace_stalls), PAGE); }

size_t tw_trace_bytes(uint64_t events, uint32_t label_sets) {
    if (events < TW_TRACE_EVENTS_LEAST || events > TW_TRACE_EVENTS_MOST) return 0;
    if (label_sets < 1 || label_sets > TW_LABEL_SETS_LIMIT) return 0;
    return up_to(events_at(label_sets) + events * sizeof(tw_ring_event), PAGE);
}

uint64_t tw_ring_size(uint64_t events, uint32_t i) { return i == 0 ? events / 2 : events / 16; }

static uint64_t ring_first(uint64_t events, uint32_t i) { return i == 0 ? 0 : events / 2 + (i - 1) * (events / 16); }

void tw_trace_lay_out(tw_trace_head *h, uint64_t events, uint32_t label_sets) {
    h->version = TW_TRACE_VERSION;
    h->bytes = tw_trace_bytes(events, label_sets);
    h->events = events;
    h->label_sets = label_sets;
    h->at_labels = sizeof *h;
    h->at_clocks = clocks_at(label_sets);
    h->at_stalls = stalls_at(label_sets);
    h->at_events = events_at(label_sets);
    for (uint32_t i = 0; i < TW_RINGS; i++) {
        h->ring[i].first = ring_first(events, i);
        h->ring[i].size = tw_ring_size(events, i);
    }
}

void tw_trace_name(char *out, uint64_t pid, uint64_t start_time, uint64_t joined_ns) {
    snprintf(out, TW_GROUP_NAME, "%llu-%llu-%llu.trace", (unsigned long long)pid, (unsigned long long)start_time,
             (unsigned long long)joined_ns);
}

/* ---- opening ---- */

static bool is_laid_out(const tw_trace_head *h, const tw_trace_head *expected) {
    bool same = tw_load(&h->bytes) == expected->bytes && tw_load(&h->at_labels) == expected->at_labels &&
                tw_load(&h->at_clocks) == expected->at_clocks && tw_load(&h->at_events) == expected->at_events &&
                tw_load(&h->at_stalls) == expected->at_stalls;
    for (uint32_t i = 0; i < TW_RINGS; i++)
        same = same && tw_load(&h->ring[i].first) == expected->ring[i].first && tw_load(&h->ring[i].size) == expected->ring[i].size;
    return same;
}

static void rely_on(tw_trace *t, const tw_trace_head *h, const tw_trace_head *expected) {
    const char *bytes = (const char *)h;
    t->head = h;
    t->bytes = expected->bytes;
    t->labels = (const void *)(bytes + expected->at_labels);
    t->clocks = (const void *)(bytes + expected->at_clocks);
    t->stalls = (const void *)(bytes + expected->at_stalls);
    t->events = (const void *)(bytes + expected->at_events);
    for (uint32_t i = 0; i < TW_RINGS; i++) {
        t->ring_first[i] = expected->ring[i].first;
        t->ring_size[i] = expected->ring[i].size;
    }
    t->label_sets = (uint32_t)expected->label_sets;
    t->pid = tw_load(&h->pid);
    t->start_time = tw_load(&h->start_time);
    t->joined_ns = tw_load(&h->joined_ns);
    tw_words_get(h->role, TW_ROLE_WORDS, t->role);
}

bool tw_trace_open(const void *bytes, size_t len, tw_trace *out) {
    const tw_trace_head *h = bytes;
    tw_trace_head expected;
    memset(out, 0, sizeof *out);
    if (bytes == NULL || (uintptr_t)bytes % sizeof(uint64_t) != 0 || len < sizeof *h) return false;
    if (tw_load_acquire(&h->magic) != TW_TRACE_MAGIC || tw_load(&h->version) != TW_TRACE_VERSION) return false;
    const uint64_t events = tw_load(&h->events), label_sets = tw_load(&h->label_sets);
    if (label_sets > TW_LABEL_SETS_LIMIT || tw_trace_bytes(events, (uint32_t)label_sets) == 0) return false;
    memset(&expected, 0, sizeof expected);
    tw_trace_lay_out(&expected, events, (uint32_t)label_sets);
    if (len < expected.bytes || !is_laid_out(h, &expected)) return false;
    rely_on(out, h, &expected);
    return true;
}

int tw_trace_map(const char *path, tw_trace *out) {
    void *bytes;
    size_t len;
    memset(out, 0, sizeof *out);
    errno = EINVAL;
    bool live;
    const tw_group_problem problem = tw_shared_open(AT_FDCWD, path, &bytes, &len, &live);
    if (problem != TW_GROUP_FINE) return problem == TW_GROUP_SYSTEM && errno != 0 ? errno : EINVAL;
    if (tw_trace_open(bytes, len, out) && out->bytes == len) return 0;
    munmap(bytes, len);
    memset(out, 0, sizeof *out);
    return EINVAL;
}

void tw_trace_close(tw_trace *t) {
    if (t->head != NULL) tw_unmap_aside((void *)(uintptr_t)t->head, t->bytes);
    memset(t, 0, sizeof *t);
}

/* ---- whose it is ---- */

/* This process's own, of the program that it was before an exec(). */
static bool was_before_exec(const tw_trace *t) {
    const uint64_t self = (uint64_t)getpid();
    return t->pid == self && t->start_time == tw_process_start_time(self) && tw_load(&t->head->image) != tw_process_image();
}

bool tw_trace_is_over(const tw_trace *t) {
    const tw_trace_head *h = t->head;
    const uint64_t here = tw_process_namespace();
    uint64_t boot[2];
    tw_boot_id(boot);
    if (tw_load(&h->boot_id[0]) != boot[0] || tw_load(&h->boot_id[1]) != boot[1]) return true;
    if (here == 0 || tw_load(&h->pid_namespace) != here) return false;
    return tw_load_acquire(&h->ended) != 0 || was_before_exec(t) || tw_process_ended(t->pid, t->start_time);
}

static void number_after(char *out, size_t room, uint64_t place) {
    const size_t len = strlen(out);
    if (place > 0 && place <= UINT16_MAX) snprintf(out + len, room - len, "-%llu", (unsigned long long)(place - 1));
}

void tw_trace_process(const tw_trace *t, char *out) {
    snprintf(out, 48, "%s", t->role);
    number_after(out, 48, tw_load(&t->head->place));
}

static bool is_text(const char *text) { return text[0] != '\0'; }

void tw_trace_label(const tw_trace *t, uint32_t labels, char *model, char *route) {
    const uint64_t known = tw_load_acquire(&t->head->labels);
    model[0] = route[0] = '\0';
    if (labels < known && labels < t->label_sets) {
        tw_words_get(t->labels[labels].model.word, TW_NAME_WORDS, model);
        tw_words_get(t->labels[labels].route.word, TW_NAME_WORDS, route);
    } else {
        memcpy(model, "other", 6);
        memcpy(route, "other", 6);
    }
}

void tw_trace_step(const tw_trace *t, uint32_t step, char *out) {
    out[0] = '\0';
    if (step < TW_STEPS && tw_load_acquire(&t->head->steps[step][0]) != 0)
        tw_words_get(t->head->steps[step], TW_STEP_NAME_WORDS, out);
    if (!is_text(out)) memcpy(out, "other", 6);
}

uint64_t tw_ring_thread(const tw_trace *t, uint32_t ring, char *name) {
    name[0] = '\0';
    if (ring >= TW_RINGS) return 0;
    tw_words_get(t->head->ring[ring].name, TW_THREAD_NAME_WORDS, name);
    return tw_load(&t->head->ring[ring].tid);
}

/* ---- events ---- */

/* The place after the newest may be half written: one fewer than there are places. */
static uint64_t oldest(uint64_t head, uint64_t size) { return head > size - 1 ? head - (size - 1) : 0; }

static uint64_t head_of(const tw_trace *t, uint32_t ring) { return tw_load_acquire(&t->head->ring[ring].head); }

uint64_t tw_ring_bounds(const tw_trace *t, uint32_t ring, uint64_t *first, uint64_t *end) {
    *first = *end = 0;
    if (ring >= TW_RINGS) return 0;
    *end = head_of(t, ring);
    *first = oldest(*end, t->ring_size[ring]);
    return *first;
}

static void copy_words(const void *from, void *to, size_t n) {
    const uint64_t *words = from;
    uint64_t *out = to;
    for (size_t i = 0; i < n; i++) out[i] = tw_load_acquire(&words[i]);
}

static void copy_events(const tw_trace *t, uint32_t ring, uint64_t from, tw_ring_event *out, size_t n) {
    const tw_ring_event *events = t->events + t->ring_first[ring];
    const uint64_t size = t->ring_size[ring];
    uint64_t place = from % size;
    for (size_t i = 0; i < n; i++) {
        copy_words(&events[place], &out[i], sizeof *out / sizeof(uint64_t));
        if (++place == size) place = 0;
    }
}

/* Moves *next up to the oldest that is there. */
static void pass_over(uint64_t *next, uint64_t until, uint64_t first, uint64_t *lost) {
    const uint64_t to = first < until ? first : until;
    if (*next >= to) return;
    if (lost != NULL) *lost += to - *next;
    *next = to;
}

/* One batch: what was overwritten while it was copied is dropped. */
static size_t read_batch(const tw_trace *t, uint32_t ring, uint64_t *next, uint64_t until, tw_ring_event *out, size_t room,
                         uint64_t *lost) {
    const uint64_t from = *next, size = t->ring_size[ring];
    size_t n = until - from < room ? (size_t)(until - from) : room;
    if (n > size) n = (size_t)size; /* a head that lies */
    copy_events(t, ring, from, out, n);
    pass_over(next, from + n, oldest(head_of(t, ring), size), lost);
    const size_t gone = (size_t)(*next - from);
    memmove(out, out + gone, (n - gone) * sizeof *out);
    *next = from + n;
    return n - gone;
}

size_t tw_ring_read(const tw_trace *t, uint32_t ring, uint64_t *next, uint64_t until, tw_ring_event *out, size_t room,
                    uint64_t *lost) {
    if (ring >= TW_RINGS || room == 0) return 0;
    for (;;) {
        const uint64_t head = head_of(t, ring), end = head < until ? head : until;
        pass_over(next, until, oldest(head, t->ring_size[ring]), lost);
        if (*next >= end) return 0;
        const size_t n = read_batch(t, ring, next, end, out, room, lost);
        if (n > 0) return n;
    }
}

/* ---- clock snapshots ---- */

static size_t copy_clocks(const tw_trace *t, uint64_t first, uint64_t end, bool fine, tw_clock_snapshot *out) {
    size_t n = 0;
    for (uint64_t i = first; i < end; i += fine ? 1 : TW_CLOCK_EVERY) {
        const uint64_t at = fine ? i % TW_CLOCK_FINE : TW_CLOCK_FINE + i / TW_CLOCK_EVERY % TW_CLOCK_COARSE;
        copy_words(&t->clocks[at], &out[n++], sizeof *out / sizeof(uint64_t));
    }
    return n;
}

static uint64_t oldest_coarse(uint64_t taken) {
    const uint64_t reach = (uint64_t)(TW_CLOCK_COARSE - 1) * TW_CLOCK_EVERY;
    return taken > reach ? up_to(taken - reach, TW_CLOCK_EVERY) : 0;
}

/* What was overwritten meanwhile: the oldest of either kind. At one a second that is one, where any. */
static size_t drop_overwritten(tw_clock_snapshot *out, size_t n, size_t coarse, uint64_t before, uint64_t after) {
    size_t kept = 0;
    const uint64_t more = after - before;
    for (size_t i = 0; i < n; i++)
        if (i < coarse ? i >= more / TW_CLOCK_EVERY + (more % TW_CLOCK_EVERY != 0) : i - coarse >= more) out[kept++] = out[i];
    return kept;
}

/* A number that one a second does not reach is a lie. */
static uint64_t clocks_taken(const tw_trace *t) {
    const uint64_t taken = tw_load_acquire(&t->head->clocks);
    return taken < UINT64_C(1) << 40 ? taken : 0;
}

size_t tw_trace_clocks(const tw_trace *t, tw_clock_snapshot *out) {
    const uint64_t taken = clocks_taken(t);
    const uint64_t fine = oldest(taken, TW_CLOCK_FINE), coarse = oldest_coarse(taken);
    const size_t n_coarse = coarse < fine ? copy_clocks(t, coarse, fine, false, out) : 0;
    const size_t n = n_coarse + copy_clocks(t, fine, taken, true, out + n_coarse);
    return drop_overwritten(out, n, n_coarse, taken, clocks_taken(t));
}
