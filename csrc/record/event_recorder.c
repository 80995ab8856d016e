#include "tailwatch/record/event_recorder.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tailwatch/base/shared_memory.h"

/* ---- begin and end ---- */

static void own(tw_trace_head *h, const tw_header *owner, uint64_t joined_ns) {
    h->pid = tw_load(&owner->pid);
    h->start_time = tw_load(&owner->start_time);
    h->joined_ns = joined_ns;
    h->boot_id[0] = owner->boot_id[0];
    h->boot_id[1] = owner->boot_id[1];
    h->pid_namespace = owner->pid_namespace;
    h->image = owner->image;
    h->place = tw_load(&owner->place);
    for (int i = 0; i < TW_ROLE_WORDS; i++) h->role[i] = tw_load(&owner->role[i]);
}

static void *at(void *memory, uint64_t offset) { return (char *)memory + offset; }

static void begin_rings(tw_recorder *r, tw_ring_event *events) {
    for (uint32_t i = 0; i < TW_RINGS; i++) {
        tw_ring_entry *entry = &r->head->ring[i];
        tw_ring_event *begin = events + entry->first;
        r->of[i] = (tw_ring_writer){begin, begin, begin + entry->size, &entry->head, 0};
    }
}

bool tw_recorder_begin(tw_recorder *r, void *memory, uint64_t events, uint32_t label_sets, const tw_header *owner,
                       uint64_t joined_ns) {
    tw_trace_head *h = memory;
    if (tw_trace_bytes(events, label_sets) == 0) return false;
    tw_trace_lay_out(h, events, label_sets);
    own(h, owner, joined_ns);
    memset(r, 0, sizeof *r);
    r->head = h;
    r->labels = at(memory, h->at_labels);
    r->clocks = at(memory, h->at_clocks);
    r->stalls = at(memory, h->at_stalls);
    r->pid = (uint64_t)getpid();
    begin_rings(r, at(memory, h->at_events));
    tw_store_release(&h->magic, TW_TRACE_MAGIC);
    tw_recorder_tick(r);
    return true;
}

void *tw_recorder_end(tw_recorder *r, size_t *bytes) {
    tw_trace_head *h = r->head;
    if (h == NULL) return NULL;
    *bytes = h->bytes;
    if (r->pid == (uint64_t)getpid()) {
        tw_recorder_tick(r);
        tw_store_release(&h->ended, 1);
    }
    memset(r, 0, sizeof *r);
    return h;
}

/* ---- whose ring ---- */

/* Its first event shows whose those after it are. */
static void introduce(tw_recorder *r, uint32_t i) {
    tw_ring_entry *entry = &r->head->ring[i];
    uint64_t name[TW_THREAD_NAME_WORDS] = {0};
    const uint64_t tid = (uint64_t)syscall(SYS_gettid), now_ns = tw_now_ns();
    (void)prctl(PR_GET_NAME, (char *)name);
    tw_store(&entry->tid, tid);
    tw_store(&entry->claimed_ns, now_ns);
    for (int word = 0; word < TW_THREAD_NAME_WORDS; word++) tw_store_release(&entry->name[word], name[word]);
    tw_ring_put(&r->of[i], now_ns, tw_what(TW_KIND_THREAD, 0, 0, 0), tid, name[0]);
}

static tw_ring_writer *claim(tw_recorder *r, uint64_t thread) {
    for (uint32_t i = 0; i < TW_RING_SHARED; i++) {
        if (r->of[i].thread != 0) continue;
        r->of[i].thread = thread;
        introduce(r, i);
        return &r->of[i];
    }
    return &r->of[TW_RING_SHARED];
}

static tw_ring_writer *owned(tw_recorder *r, uint64_t thread) {
    for (uint32_t i = 0; i < TW_RING_SHARED; i++)
        if (r->of[i].thread == thread) return &r->of[i];
    return NULL;
}

tw_ring_writer *tw_recorder_find(tw_recorder *r, uint64_t thread) {
    if (r->head == NULL) return NULL;
    tw_ring_writer *ring = owned(r, thread);
    if (ring == NULL) ring = claim(r, thread);
    r->thread = thread;
    r->ring = ring;
    return ring;
}

tw_ring_writer *tw_recorder_known(tw_recorder *r) {
    const uint64_t thread = tw_this_thread();
    if (r->head == NULL) return NULL;
    if (r->thread == thread) return r->ring;
    tw_ring_writer *ring = owned(r, thread);
    return ring != NULL ? ring : &r->of[TW_RING_SHARED];
}

/* A thread pointer may be given to a new thread: its predecessor's ring is free by then, or at the next turn. */
static void free_ended(tw_recorder *r) {
    for (uint32_t i = 0; i < TW_RING_SHARED; i++) {
        const long tid = (long)tw_load(&r->head->ring[i].tid);
        if (r->of[i].thread == 0 || syscall(SYS_tgkill, getpid(), tid, 0) == 0 || errno != ESRCH) continue;
        r->of[i].thread = 0;
        r->thread = 0;
    }
}

/* ---- names ---- */

static void copy_name(tw_name *to, const tw_name *from) {
    for (int i = 0; i < TW_NAME_WORDS; i++) tw_store(&to->word[i], tw_load(&from->word[i]));
}

static void name_labels(tw_recorder *r, const tw_segment *g) {
    const uint64_t known = tw_load(&g->series_count), room = r->head->label_sets;
    uint64_t n = tw_load(&r->head->labels);
    for (; n < known && n < room; n++) {
        const tw_series *series = tw_segment_series(g, (uint32_t)n);
        copy_name(&r->labels[n].model, &series->model);
        copy_name(&r->labels[n].route, &series->route);
    }
    tw_store_release(&r->head->labels, n);
}

static void name_steps(tw_recorder *r, const tw_segment *g) {
    for (int i = 0; i < TW_STEPS; i++) {
        if (tw_load(&r->head->steps[i][0]) != 0 || tw_load_acquire(&g->steps.of[i].name[0]) == 0) continue;
        for (int word = TW_STEP_NAME_WORDS; word-- > 0;)
            tw_store_release(&r->head->steps[i][word], tw_load(&g->steps.of[i].name[word]));
    }
}

void tw_recorder_name(tw_recorder *r, const tw_segment *g) {
    if (r->head == NULL) return;
    name_labels(r, g);
    name_steps(r, g);
    for (int i = 0; i < TW_ROLE_WORDS; i++) tw_store(&r->head->role[i], tw_load(&g->header.role[i]));
    tw_store(&r->head->place, tw_load(&g->header.place));
}

void tw_recorder_engine(tw_recorder *r, uint64_t engine) {
    if (r->head != NULL) tw_store(&r->head->engine, engine);
}

/* ---- once a second ---- */

static void put_clock(tw_clock_snapshot *to, const tw_clock_snapshot *from) {
    const uint64_t *words = (const uint64_t *)(const void *)from;
    uint64_t *out = (uint64_t *)(void *)to;
    for (size_t i = 0; i < sizeof *to / sizeof *out; i++) tw_store_release(&out[i], words[i]);
}

void tw_recorder_tick(tw_recorder *r) {
    tw_clock_snapshot now;
    if (r->head == NULL) return;
    const uint64_t n = tw_load(&r->head->clocks);
    tw_clock_snapshot_take(&now);
    put_clock(&r->clocks[n % TW_CLOCK_FINE], &now);
    if (n % TW_CLOCK_EVERY == 0) put_clock(&r->clocks[TW_CLOCK_FINE + n / TW_CLOCK_EVERY % TW_CLOCK_COARSE], &now);
    tw_store_release(&r->head->clocks, n + 1);
    free_ended(r);
}

/* ---- samples ---- */

void tw_recorder_count(tw_recorder *r, uint64_t now_ns, tw_counter counter, uint64_t value) {
    if (r->head == NULL || (unsigned)counter >= TW_COUNTERS || r->counted[counter] == value + 1) return;
    r->counted[counter] = value + 1;
    tw_ring_put(&r->of[TW_RING_SHARED], now_ns, tw_what(TW_KIND_COUNTER, (uint32_t)counter, 0, 0), 0, value);
}

#define GOODPUT_SECONDS 10

/* Of the last whole seconds. */
static uint64_t goodput(const tw_segment *g, uint64_t now_ns) {
    const uint64_t now = now_ns / TW_NS_PER_SECOND;
    uint64_t good = 0;
    for (uint64_t second = now > GOODPUT_SECONDS ? now - GOODPUT_SECONDS : 0; second < now; second++) {
        const tw_second *slot = &g->seconds[second % TW_SECONDS];
        if (tw_load(&slot->second) == second + 1) good += tw_low(tw_load(&slot->good_miss));
    }
    return good * 1000 / GOODPUT_SECONDS;
}

static void lost_time(const tw_segment *g, uint64_t *overlap_ns, uint64_t *delay_ns) {
    *overlap_ns = *delay_ns = 0;
    for (int at = 0; at < TW_SOURCES * TW_PHASES * TW_CAUSES; at++) {
        const tw_lost *lost = &g->lost[at / (TW_PHASES * TW_CAUSES)];
        const int phase = at / TW_CAUSES % TW_PHASES, cause = at % TW_CAUSES;
        *overlap_ns += tw_load(&lost->overlap_ns[phase][cause]);
        for (int i = 0; i < TW_CERTAINTIES; i++) *delay_ns += tw_load(&lost->delay_ns[phase][cause][i]);
    }
}

void tw_recorder_sample(tw_recorder *r, const tw_segment *g, uint64_t now_ns) {
    uint64_t overlap_ns, delay_ns;
    if (r->head == NULL) return;
    lost_time(g, &overlap_ns, &delay_ns);
    tw_recorder_count(r, now_ns, TW_COUNTER_IN_FLIGHT, tw_load(&g->in_flight));
    tw_recorder_count(r, now_ns, TW_COUNTER_GOODPUT, goodput(g, now_ns));
    tw_recorder_count(r, now_ns, TW_COUNTER_OVERLAP, overlap_ns);
    tw_recorder_count(r, now_ns, TW_COUNTER_DELAY, delay_ns);
}

/* ---- pauses ---- */

/* Of a process that dies in a pause only this is left. */
static void record_open(tw_recorder *r, const tw_pause_clock *p) {
    const bool open = tw_load(&p->depth) != 0;
    tw_store(&r->head->pause_open_cause, open ? tw_load(&p->open_cause) : 0);
    tw_store_release(&r->head->pause_open_ns, open ? tw_load(&p->open_start_ns) : 0);
}

void tw_recorder_pause(tw_recorder *r, const tw_pause_clock *p) {
    if (r->head != NULL) record_open(r, p);
}

static uint32_t saturated(uint64_t n) { return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX; }

void tw_recorder_paused(tw_recorder *r, const tw_pause_clock *p, tw_cause cause, uint64_t start_ns, uint64_t stop_ns,
                        const tw_pause_result *result) {
    tw_ring_writer *ring = tw_recorder_known(r);
    if (ring == NULL) return;
    const uint32_t flags = tw_load(&p->depth) != 0 ? TW_PAUSE_INNER : 0;
    const uint32_t uncollectable = result != NULL ? saturated(result->uncollectable) : 0;
    tw_ring_put(ring, stop_ns, tw_what(TW_KIND_PAUSE, (uint32_t)cause, flags, uncollectable), start_ns,
                result != NULL ? result->collected : 0);
    record_open(r, p);
}

/* ---- memory ---- */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* A kernel without it takes the pages one by one, as they are first written. */
static void take_pages(void *memory, size_t bytes) { (void)madvise(memory, bytes, MADV_POPULATE_WRITE); }

tw_group_problem tw_recorder_file(int dir, const char *name, size_t bytes, void **out) {
    static const uint64_t no_magic = 0;
    tw_shared shared;
    int file;
    if (!tw_file_fits(dir, bytes)) return TW_GROUP_FULL;
    tw_group_problem problem = tw_shared_make(dir, name, &no_magic, sizeof no_magic, bytes, &shared, &file);
    if (problem != TW_GROUP_FINE) return problem;
    *out = tw_shared_map(&shared, file, NULL, true);
    problem = *out == NULL ? tw_file_problem() : TW_GROUP_FINE;
    close(file);
    if (*out != NULL) take_pages(*out, bytes);
    else tw_shared_remove(dir, name);
    return problem;
}

void *tw_recorder_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    take_pages(memory, bytes);
    return memory;
}
