#include "tailwatch/record/host_track.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/arithmetic.h"
#include "base/names.h"
#include "tailwatch/base/atomic.h"
#include "tailwatch/base/clock.h"

/* A record's seq is cleared before it is overwritten and stored last; see pause_clock.c. */

TW_NAMES(tw_host_source_name, TW_HOST_SOURCES, "schedstat", "syscall", "stacks", "cgroup", "loop_clock", "handle_clock")
TW_NAMES(tw_knowledge_name, TW_KNOWLEDGES, "known", "useless", "absent", "off")

/* ---- tracks ---- */

static int find(const tw_host *host, uint64_t thread) {
    for (int i = 0; i < TW_TRACKS; i++)
        if (tw_load(&host->track[i].thread) == thread) return i;
    return -1;
}

/* The first of a thread with steps, -1: there is none; and how many there are. */
static int find_of_steps(const tw_host *host, int *n) {
    int first = -1;
    *n = 0;
    for (int i = TW_TRACKS - 1; i >= 0; i--)
        if (tw_host_is_of_steps(&host->track[i])) first = i, ++*n;
    return first;
}

static void begin(tw_host_track *t, uint64_t thread, uint64_t step_limit_ns) {
    const uint64_t head = tw_load(&t->point_head);
    for (size_t i = 0; i < TW_POINTS; i++) tw_store_release(&t->point[i].seq, 0); /* another thread's */
    tw_store(&t->schedstat, 0);
    tw_store(&t->waiting_since_ns, 0);
    tw_store(&t->wake_ns, 0);
    tw_store(&t->slept_until_ns, 0);
    tw_store(&t->called_ns, 0);
    tw_store(&t->handle_since_ns, 0);
    tw_store(&t->handle_task, 0);
    tw_store(&t->idle_ns, 0);
    tw_store(&t->iterations, 0);
    tw_store(&t->step_limit_ns, step_limit_ns);
    tw_store(&t->step, 0);
    tw_store(&t->point_ns, 0);
    tw_store(&t->point_head, head);
    tw_store_release(&t->thread, thread);
}

int tw_host_take(tw_host *host, uint64_t thread) {
    int track = find(host, thread), of_steps;
    if (track >= 0 && !tw_host_is_of_steps(&host->track[track])) return track;
    if (track < 0) track = find(host, 0);
    if (track < 0) track = find_of_steps(host, &of_steps);
    if (track >= 0) begin(&host->track[track], thread, 0);
    else tw_add(&host->tracks_refused, 1);
    return track;
}

int tw_host_take_steps(tw_host *host, uint64_t thread) {
    int track = find(host, thread), of_steps;
    if (track >= 0) return tw_host_is_of_steps(&host->track[track]) ? track : -1;
    (void)find_of_steps(host, &of_steps);
    if (of_steps == TW_STEP_TRACKS || (track = find(host, 0)) < 0) return -1;
    begin(&host->track[track], thread, TW_STEP_STALL_NS);
    return track;
}

void tw_host_release(tw_host *host, uint32_t track) {
    tw_store(&host->track[track].schedstat, 0);
    tw_store_release(&host->track[track].thread, 0);
}

int tw_host_own_track(const tw_host *host) {
    const int track = find(host, (uint64_t)syscall(SYS_gettid));
    return track < 0 || tw_host_is_of_steps(&host->track[track]) ? -1 : track;
}

/* ---- the loop's clock ---- */

void tw_host_track_wakes(tw_host_track *t, uint64_t now_ns) {
    const uint64_t began = tw_load(&t->waiting_since_ns);
    if (began == 0) return;
    const uint64_t waited = since(now_ns, began);
    tw_add(&t->idle_ns, waited);
    tw_add(&t->iterations, 1);
    tw_store(&t->wake_ns, now_ns);
    if (waited >= TW_SLEPT_NS) tw_store(&t->slept_until_ns, now_ns);
    tw_store_release(&t->waiting_since_ns, 0);
}

void tw_host_track_woke_earlier(tw_host_track *t, uint64_t since_ns, uint64_t run_delay_ns) {
    const uint64_t wake = tw_load(&t->wake_ns);
    const uint64_t moved = least(run_delay_ns, since(wake, since_ns));
    if (tw_load(&t->slept_until_ns) == wake) tw_store(&t->slept_until_ns, wake - moved);
    tw_store(&t->wake_ns, wake - moved);
    tw_store(&t->idle_ns, since(tw_load(&t->idle_ns), moved));
}

/* ---- records ---- */

#define SEQ_WORDS 1 /* seq is the first word of each record */

static void write_record(uint64_t *to, const uint64_t *from, size_t words, uint64_t n) {
    tw_store(&to[0], 0);
    for (size_t i = SEQ_WORDS; i < words; i++) tw_store_release(&to[i], from[i]);
    tw_store_release(&to[0], n + 1);
}

static bool read_record(const uint64_t *from, uint64_t *to, size_t words, uint64_t n) {
    if (tw_load_acquire(&from[0]) != n + 1) return false;
    for (size_t i = SEQ_WORDS; i < words; i++) to[i] = tw_load_acquire(&from[i]);
    to[0] = n + 1;
    return tw_load(&from[0]) == n + 1;
}

#define WORDS(record) (sizeof(record) / sizeof(uint64_t))

/* What was stolen by q, counted from the same point on as by p, which its own thread has written. */
static uint64_t stolen_by(const tw_host_point *p, const tw_host_point *q) {
    if (q->switches == 0 || q->switches != p->switches || q->idle_ns != p->idle_ns) return p->stolen_ns; /* it slept */
    const uint64_t counted = since(q->cpu_ns, p->cpu_ns) + since(q->run_delay_ns, p->run_delay_ns);
    return p->stolen_ns + since(since(q->at_ns, p->at_ns), counted);
}

void tw_host_track_add(tw_host_track *t, const tw_host_point *point) {
    const uint64_t n = tw_load(&t->point_head);
    const tw_host_point *last = &t->point[(n - 1) % TW_POINTS];
    tw_host_point q = *point;
    q.stolen_ns = n > 0 && last->seq == n ? stolen_by(last, &q) : 0;
    write_record(&t->point[n % TW_POINTS].seq, &q.seq, WORDS(q), n);
    tw_store(&t->point_ns, point->at_ns);
    tw_store_release(&t->point_head, n + 1);
}

bool tw_host_track_read(const tw_host_track *t, uint64_t n, tw_host_point *out) {
    return read_record(&t->point[n % TW_POINTS].seq, &out->seq, WORDS(*out), n);
}

uint64_t tw_span_add(tw_span_ring *ring, const tw_host_span *span) {
    const uint64_t n = __atomic_fetch_add(&ring->head, 1, __ATOMIC_RELAXED);
    write_record(&ring->span[n % TW_SPANS].seq, &span->seq, WORDS(*span), n);
    return n;
}

void tw_span_replace(tw_span_ring *ring, uint64_t n, const tw_host_span *span) {
    tw_host_span *place = &ring->span[n % TW_SPANS];
    if (tw_load(&place->seq) == n + 1) write_record(&place->seq, &span->seq, WORDS(*span), n);
}

bool tw_span_read(const tw_span_ring *ring, uint64_t n, tw_host_span *out) {
    return read_record(&ring->span[n % TW_SPANS].seq, &out->seq, WORDS(*out), n);
}

/* ---- the thread's own counters ---- */

/* The second number of /proc/.../schedstat: "CPU run_delay slices". */
static uint64_t run_delay_of(uint64_t schedstat) {
    char text[96];
    const ssize_t n = schedstat == 0 ? -1 : pread((int)(schedstat - 1), text, sizeof text - 1, 0);
    if (n <= 0) return 0;
    text[n] = '\0';
    const char *second = strchr(text, ' ');
    return second == NULL ? 0 : strtoull(second + 1, NULL, 10);
}

uint64_t tw_thread_run_delay_ns(uint64_t thread) {
    char path[48];
    snprintf(path, sizeof path, "/proc/%llu/schedstat", (unsigned long long)thread);
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    const uint64_t ns = run_delay_of((uint64_t)descriptor + 1); /* none: 0 */
    if (descriptor >= 0) close(descriptor);
    return ns;
}

void tw_host_point_read(const tw_host_track *t, tw_host_point *out) {
    struct rusage usage;
    memset(out, 0, sizeof *out);
    out->run_delay_ns = run_delay_of(tw_load(&t->schedstat));
    out->cpu_ns = tw_thread_cpu_ns();
    out->at_ns = tw_now_ns();
    if (getrusage(RUSAGE_THREAD, &usage) != 0) return;
    out->minor_faults = (uint64_t)usage.ru_minflt;
    out->major_faults = (uint64_t)usage.ru_majflt;
    out->switches = (uint64_t)usage.ru_nvcsw;
}

void tw_host_point_now(tw_host *host, uint32_t track) {
    tw_host_track *t = &host->track[track];
    tw_host_point point;
    if (since(tw_now_ns(), tw_load(&t->point_ns)) < TW_POINT_NEAR_NS) return;
    tw_host_point_read(t, &point);
    point.idle_ns = tw_load(&t->idle_ns);
    point.wake_ns = tw_load(&t->wake_ns);
    point.step = tw_load(&t->step);
    tw_host_track_add(t, &point);
}

bool tw_host_stood_still(const tw_host *host, uint64_t now_ns) {
    const uint64_t turn = tw_load_acquire(&host->watchdog_turn_ns), length = since(now_ns, turn);
    if (turn == 0 || length < TW_STILL_LEAST_NS || now_ns < tw_load(&host->watchdog_due_ns) + TW_SILENCE_NS) return false;
    return since(tw_process_cpu_ns(), tw_load(&host->watchdog_process_cpu_ns)) < length / TW_STILL;
}

/* ---- an interval of a track ---- */

uint64_t tw_host_delay_between(const tw_host_point *p, const tw_host_point *q) {
    return since(q->run_delay_ns, p->run_delay_ns) + since(q->stolen_ns, p->stolen_ns);
}

/* A segment between two points, its times made to sum to its length. */
typedef struct segment {
    uint64_t from_ns, to_ns;
    tw_usage all;
} segment;

static void segment_of(const tw_host_point *p, const tw_host_point *q, segment *out) {
    const uint64_t wall = since(q->at_ns, p->at_ns);
    memset(out, 0, sizeof *out);
    out->from_ns = p->at_ns;
    out->to_ns = q->at_ns;
    out->all.idle_ns = least(since(q->idle_ns, p->idle_ns), wall);
    out->all.cpu_ns = least(since(q->cpu_ns, p->cpu_ns), wall - out->all.idle_ns);
    const uint64_t left = wall - out->all.idle_ns - out->all.cpu_ns;
    out->all.run_delay_ns = least(tw_host_delay_between(p, q), left);
    out->all.asleep_ns = left - out->all.run_delay_ns;
    out->all.minor_faults = since(q->minor_faults, p->minor_faults);
    out->all.major_faults = since(q->major_faults, p->major_faults);
}

static uint64_t share(uint64_t of, uint64_t part, uint64_t whole) {
    return whole == 0 ? 0 : (uint64_t)((wide)of * part / whole);
}

/* A thread waits for events before it wakes, not after: what it did since then becomes a segment of its own. */
static bool cut_at_wake(segment *s, uint64_t wake_ns, segment *since_then) {
    const uint64_t busy = s->to_ns - s->from_ns - s->all.idle_ns, length = least(s->to_ns - wake_ns, busy);
    tw_usage *all = &since_then->all;
    if (s->all.idle_ns == 0 || wake_ns <= s->from_ns || wake_ns >= s->to_ns) return false;
    *since_then = (segment){s->to_ns - length, s->to_ns, {0}};
    all->cpu_ns = share(s->all.cpu_ns, length, busy);
    all->run_delay_ns = share(s->all.run_delay_ns, length, busy);
    all->asleep_ns = length - all->cpu_ns - all->run_delay_ns;
    all->minor_faults = share(s->all.minor_faults, length, busy);
    all->major_faults = share(s->all.major_faults, length, busy);
    s->to_ns -= length;
    s->all.cpu_ns -= all->cpu_ns;
    s->all.run_delay_ns -= all->run_delay_ns;
    s->all.asleep_ns -= least(all->asleep_ns, s->all.asleep_ns);
    s->all.minor_faults -= all->minor_faults;
    s->all.major_faults -= all->major_faults;
    return true;
}

/* What had been done after the first `at` ns of a segment in which the thread waited for events. */
static tw_usage in_order(const segment *s, uint64_t at) {
    tw_usage u = {0};
    const uint64_t length[] = {s->all.cpu_ns, s->all.idle_ns, s->all.run_delay_ns, s->all.asleep_ns};
    uint64_t *const to[] = {&u.cpu_ns, &u.idle_ns, &u.run_delay_ns, &u.asleep_ns};
    for (size_t i = 0; i < sizeof length / sizeof *length; i++) {
        *to[i] = least(length[i], at);
        at -= *to[i];
    }
    return u;
}

/* The same of one that was busy all the time. Rounded so that no difference of two is negative or above the time. */
static tw_usage evenly(const segment *s, uint64_t at) {
    const uint64_t wall = s->to_ns - s->from_ns;
    tw_usage u = {0};
    u.cpu_ns = share(s->all.cpu_ns, at, wall);
    u.run_delay_ns = share(s->all.cpu_ns + s->all.run_delay_ns, at, wall) - u.cpu_ns;
    u.asleep_ns = at - u.cpu_ns - u.run_delay_ns;
    return u;
}

static tw_usage done_by(const segment *s, uint64_t at_ns) {
    const uint64_t at = at_ns - s->from_ns, wall = s->to_ns - s->from_ns;
    tw_usage u = s->all.idle_ns > 0 ? in_order(s, at) : evenly(s, at);
    u.minor_faults = share(s->all.minor_faults, at, wall);
    u.major_faults = share(s->all.major_faults, at, wall);
    return u;
}

/* The part of a segment that lies in [from_ns, to_ns]. */
static void add_segment(const segment *s, uint64_t from_ns, uint64_t to_ns, tw_usage *out) {
    from_ns = most(from_ns, s->from_ns);
    to_ns = least(to_ns, s->to_ns);
    if (from_ns >= to_ns) return;
    const tw_usage a = done_by(s, from_ns), b = done_by(s, to_ns);
    const uint64_t ran = b.cpu_ns + b.run_delay_ns - a.cpu_ns - a.run_delay_ns;
    const uint64_t cpu = least(b.cpu_ns - a.cpu_ns, ran), idle = b.idle_ns - a.idle_ns;
    out->cpu_ns += cpu;
    out->run_delay_ns += ran - cpu;
    out->idle_ns += idle;
    out->asleep_ns += to_ns - from_ns - ran - idle;
    out->minor_faults += b.minor_faults - a.minor_faults;
    out->major_faults += b.major_faults - a.major_faults;
}

/* After the newest point: waiting for events, as far as the clock shows it; what no point would be taken for was on
 * CPU. */
static void after_newest(const tw_host_track *t, uint64_t from_ns, uint64_t to_ns, tw_usage *out) {
    const uint64_t waiting = tw_load_acquire(&t->waiting_since_ns);
    const uint64_t idle_from = waiting == 0 ? to_ns : least(most(waiting, from_ns), to_ns);
    const bool near = idle_from <= tw_load(&t->point_ns) + TW_POINT_NEAR_NS;
    out->idle_ns += to_ns - idle_from;
    *(near ? &out->cpu_ns : &out->unknown_ns) += idle_from - from_ns;
}

void tw_host_track_usage(const tw_host_track *t, uint64_t from_ns, uint64_t to_ns, tw_usage *out) {
    tw_host_point q, p;
    uint64_t n = tw_load_acquire(&t->point_head), ceiling = to_ns;
    memset(out, 0, sizeof *out);
    if (from_ns >= to_ns) return;
    if (n == 0 || !tw_host_track_read(t, --n, &q)) {
        after_newest(t, from_ns, to_ns, out);
        return;
    }
    if (q.at_ns < to_ns) {
        ceiling = most(q.at_ns, from_ns);
        after_newest(t, ceiling, to_ns, out);
    }
    while (ceiling > from_ns && n > 0 && tw_host_track_read(t, --n, &p)) {
        segment s, since_then;
        segment_of(&p, &q, &s);
        const uint64_t floor = most(p.at_ns, from_ns);
        if (floor < ceiling) {
            if (cut_at_wake(&s, q.wake_ns, &since_then)) add_segment(&since_then, floor, ceiling, out);
            add_segment(&s, floor, ceiling, out);
            ceiling = floor;
        }
        q = p;
    }
    out->unknown_ns += ceiling - from_ns;
}
