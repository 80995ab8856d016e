#include "tailwatch/attribute/host_split.h"

#include <string.h>

#include "attribute/evidence.h"
#include "base/arithmetic.h"
#include "tailwatch/base/clock.h"
#include "tailwatch/stall/watchdog.h"

#define SPANS_LATE_NS (2 * TW_NS_PER_SECOND) /* a ring's spans end in order, but for so much */
#define MEMORY_SHARE 5                       /* faults count where they took more than one part in so many of the CPU time */
#define EVIDENCE_SHARE 4                     /* samples of one part in so many of a sleep name all of it */
#define LEAST_SHARE 16                       /* likewise, of waits that are short and many */
#define USUAL_SHARE 4 /* of an interval: what is usual is taken from so much beside it, at least */
#define STRETCHES 4        /* of the points of a thread, of which one at least is usual */
#define STRETCH_POINTS 16  /* of each, at least */
#define WINDOWS 16   /* handles of one part in so many of an interval, or more, are split by themselves */

/* Whose handles are own ones. */
typedef struct owner {
    uint64_t task;    /* whose step runs at the interval's end; 0: not known */
    uint64_t request; /* 0: not known */
    uint64_t context; /* in which it runs; 0: not known */
} owner;

/* Of one step, of which the latest samples are read first. */
typedef struct sampled_waits {
    uint64_t end_ns, point; /* of the step, and that point's number */
    uint64_t gil_ns, others_ns, ran_ns;
} sampled_waits;

typedef struct findings {
    uint64_t from_ns, to_ns;
    owner own;
    uint32_t track;
    tw_evidence_table seen;
    uint64_t stopped_ns, throttled_ns, gil_measured_ns; /* stopped: as the ring with most has it */
    uint64_t throttled_evenly_ns; /* as if that went on all the time between two readings of the counter */
    uint64_t stop_from_ns, stop_to_ns; /* the longest stop */
    const tw_host_track *steps; /* whose spans no counter scales: a thread with engine steps; NULL: none */
    uint64_t next_ns;           /* of a ring that is read: when the sampled span after this one begins */
    uint64_t waits_met;         /* sampled waits; those that follow one another count once */
    bool is_wait_next;          /* whether that sampled span is such a wait */
    uint64_t point, point_ns, begin_ns, end_ns; /* of find_step(): where it has come to, with which instant; the step */
    sampled_waits waits;
    uint64_t unseen_ns; /* of steps: waits for the interpreter lock of which no sample is */
} findings;

/* Of a sleep: waits for the interpreter lock, and all others that samples show. */
typedef struct named_waits {
    uint64_t gil_ns, others_ns;
} named_waits;

/* An interval being split. */
typedef struct split {
    const tw_host *host;
    const tw_pause_clock *pauses;
    uint32_t track;
    owner own;
    tw_parts *out;
} split;

/* The step that goes on at an instant, or else the next one. Its end is the first point after that; UINT64_MAX: there is
 * none yet. Spans come newest first: it goes on where it was. */
static void find_step(findings *f, uint64_t at_ns) {
    tw_host_point point;
    if (f->end_ns == 0 || at_ns > f->point_ns) {
        f->point = tw_load_acquire(&f->steps->point_head);
        f->begin_ns = tw_load(&f->steps->wake_ns);
        f->end_ns = UINT64_MAX;
    }
    f->point_ns = at_ns;
    for (; f->point > 0 && tw_host_track_read(f->steps, f->point - 1, &point) && point.at_ns > at_ns; --f->point) {
        f->begin_ns = point.wake_ns;
        f->end_ns = point.at_ns;
    }
}

/* What a sample shows goes on until some moment before the next one was due, half of that on average, and no longer than
 * the step, or the time before it. */
static uint64_t end_of(const tw_host_span *s, findings *f) {
    if (f->steps == NULL || tw_span_certainty(s) != TW_SAMPLED) return s->to_ns;
    const uint64_t half = most(TW_WATCH_SAMPLE_NS, (s->to_ns - s->from_ns) / 8) / 2;
    if (s->from_ns >= f->to_ns || s->to_ns + half <= f->from_ns) return s->to_ns; /* points are read for what counts */
    find_step(f, s->from_ns);
    const uint64_t latest = least(f->next_ns, s->from_ns < f->begin_ns ? f->begin_ns : f->end_ns);
    return most(s->to_ns, least(s->to_ns + half, latest));
}

static uint64_t overlap_of(const tw_host_span *s, findings *f) {
    return since(least(end_of(s, f), f->to_ns), most(s->from_ns, f->from_ns));
}

static bool is_own(const owner *own, const tw_host_span *handle) {
    if (own->request != 0 && tw_span_request(handle) == own->request) return true;
    return own->task != 0 && handle->detail == own->task;
}

static tw_span_kind evidence_kind(const owner *own, const tw_host_span *s) {
    const tw_span_kind kind = tw_span_kind_of(s);
    if (kind == TW_SPAN_HANDLE) return is_own(own, s) ? TW_OWN_HANDLE : kind;
    return kind == TW_SPAN_RUN && own->context != 0 && s->detail == own->context ? TW_OWN_RUN : kind;
}

static void add_evidence(findings *f, const tw_host_span *s, uint64_t ns) {
    const uint64_t detail = tw_span_kind_of(s) == TW_SPAN_RUN ? 0 : s->detail; /* whichever context it was */
    const tw_evidence e = {ns, s->name, detail, evidence_kind(&f->own, s), tw_span_certainty(s)};
    tw_evidence_add(&f->seen, &e);
}

static void note_stop(findings *f, const tw_host_span *s, uint64_t ns) {
    f->stopped_ns += ns;
    f->next_ns = least(f->next_ns, s->from_ns); /* no sample goes on through it */
    if (ns <= f->stop_to_ns - f->stop_from_ns) return;
    f->stop_from_ns = most(s->from_ns, f->from_ns);
    f->stop_to_ns = f->stop_from_ns + ns;
}

static void note_throttled(findings *f, const tw_host_span *s, uint64_t ns) {
    f->throttled_ns += least(s->detail, ns);
    f->throttled_evenly_ns += (uint64_t)((wide)s->detail * ns / (s->to_ns - s->from_ns));
}

/* Of a wait for the interpreter lock that was measured: the whole process was stopped for a part of it. The watchdog's
 * ring, which has the stops, is read before the loop's. */
static uint64_t gil_ns(const findings *f, const tw_host_span *s, uint64_t ns) {
    return ns - since(least(least(s->to_ns, f->to_ns), f->stop_to_ns), most(most(s->from_ns, f->from_ns), f->stop_from_ns));
}

/* On CPU, or runnable. */
static uint64_t busy_between(const tw_host_point *p, const tw_host_point *q) {
    return since(q->cpu_ns, p->cpu_ns) + tw_host_delay_between(p, q);
}

/* What a step slept that ended with q, p being the point before: all that the thread was busy with since p was in it. */
static uint64_t slept_in(const tw_host_point *p, const tw_host_point *q) {
    return since(q->at_ns - most(q->wake_ns, p->at_ns), busy_between(p, q));
}

/* What steps of the kind that ended with point n sleep on average, that one apart. */
static uint64_t usual_sleep(const tw_host_track *t, uint64_t number) {
    tw_host_point q, p;
    uint64_t ns = 0, steps = 0, n = tw_load_acquire(&t->point_head);
    if (!tw_host_track_read(t, number, &q)) return 0;
    const uint64_t step = q.step;
    if (n == 0 || !tw_host_track_read(t, --n, &q)) return 0;
    for (; n > 0 && tw_host_track_read(t, n - 1, &p); --n, q = p) {
        if (q.step != step || n == number) continue;
        ns += slept_in(&p, &q);
        ++steps;
    }
    return steps == 0 ? 0 : ns / steps;
}

/* A step slept for no other reason than its samples show, and in that proportion: what they miss of its waits. What they
 * saw it run for beyond its counters was stolen. */
static void close_step(findings *f) {
    const sampled_waits w = f->waits;
    tw_host_point begin, end;
    if (w.gil_ns == 0 || w.point == 0 || !tw_host_track_read(f->steps, w.point - 1, &begin)) return;
    if (!tw_host_track_read(f->steps, w.point, &end) || end.at_ns != w.end_ns) return; /* it goes on */
    const uint64_t from = most(most(end.wake_ns, begin.at_ns), f->from_ns), to = least(end.at_ns, f->to_ns);
    const uint64_t stopped = since(least(f->stop_to_ns, to), most(f->stop_from_ns, from));
    const uint64_t busy = busy_between(&begin, &end), stolen = since(w.ran_ns, busy + stopped);
    const uint64_t slept = since(since(to, from), busy + stolen + stopped);
    const uint64_t asleep = since(slept, usual_sleep(f->steps, w.point));
    if (w.gil_ns < asleep / EVIDENCE_SHARE) return;
    f->unseen_ns += since((uint64_t)((wide)asleep * w.gil_ns / (w.gil_ns + w.others_ns)), w.gil_ns);
}

/* What is before the begin of a step has no share in it. */
static void note_sampled(findings *f, const tw_host_span *s) {
    const tw_span_kind kind = tw_span_kind_of(s);
    find_step(f, s->from_ns);
    if (f->end_ns != f->waits.end_ns) {
        close_step(f);
        f->waits = (sampled_waits){.end_ns = f->end_ns, .point = f->point};
    }
    if (s->from_ns < f->begin_ns) return;
    const uint64_t ns = overlap_of(s, f);
    if (kind == TW_SPAN_GIL) f->waits.gil_ns += ns;
    else *(kind == TW_SPAN_RUN ? &f->waits.ran_ns : &f->waits.others_ns) += ns;
}

static void count_wait(findings *f, tw_span_kind kind) {
    const bool is_wait = kind >= TW_SPAN_IO && kind <= TW_SPAN_SLEEP;
    if (is_wait && !f->is_wait_next) ++f->waits_met;
    f->is_wait_next = is_wait;
}

static void find_one(findings *f, const tw_host_span *s) {
    if (!tw_span_is_of(s, f->track)) return;
    const uint64_t ns = overlap_of(s, f);
    if (tw_span_certainty(s) == TW_SAMPLED) {
        if (ns > 0) count_wait(f, tw_span_kind_of(s));
        if (f->steps != NULL && ns > 0) note_sampled(f, s);
        f->next_ns = s->from_ns;
    }
    if (ns == 0) return;
    switch (tw_span_kind_of(s)) {
    case TW_SPAN_SILENCE:
        if (s->detail == TW_SILENCE_STOPPED) note_stop(f, s, ns);
        break;
    case TW_SPAN_THROTTLED: note_throttled(f, s, ns); break;
    case TW_SPAN_GIL:
        if (tw_span_certainty(s) == TW_MEASURED) f->gil_measured_ns += gil_ns(f, s, ns);
        else add_evidence(f, s, ns);
        break;
    default: add_evidence(f, s, ns);
    }
}

static void find_in(findings *f, const tw_span_ring *ring) {
    uint64_t n = tw_load_acquire(&ring->head);
    const uint64_t oldest = n > TW_SPANS ? n - TW_SPANS : 0;
    const uint64_t stopped = f->stopped_ns;
    tw_host_span s;
    f->stopped_ns = 0;
    f->next_ns = UINT64_MAX;
    while (n > oldest) {
        if (!tw_span_read(ring, --n, &s)) continue; /* being written */
        if (s.to_ns + SPANS_LATE_NS < f->from_ns) break;
        find_one(f, &s);
    }
    f->stopped_ns = most(f->stopped_ns, stopped);
}

/* ---- parts ---- */

static void add(const split *s, int cause, tw_certainty certainty, uint64_t ns, uint64_t name, tw_detail kind,
                uint64_t detail) {
    const tw_part part = {ns, (uint32_t)name, (uint8_t)cause, (uint8_t)certainty, 0, (uint8_t)kind, detail};
    if (ns > 0) tw_parts_add(s->out, &part);
}

static void add_plain(const split *s, int cause, uint64_t ns) { add(s, cause, TW_MEASURED, ns, 0, TW_DETAIL_NONE, 0); }

/* Collections. A pause is on CPU first, runnable next: what it took is taken from those. */
static void split_pauses(const split *s, const findings *f, tw_usage *u) {
    tw_overlap overlap;
    if (s->pauses == NULL || tw_pause_quiet_since(s->pauses, f->from_ns)) return;
    tw_pause_overlap(s->pauses, f->from_ns, f->to_ns, &overlap);
    uint64_t *const from[] = {&u->cpu_ns, &u->run_delay_ns, &u->asleep_ns, &u->unknown_ns};
    for (int cause = 0; cause < TW_CAUSES; cause++) {
        uint64_t left = overlap.by_cause[cause];
        for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
            const uint64_t taken = least(*from[i], left);
            *from[i] -= taken;
            left -= taken;
        }
        add_plain(s, cause, overlap.by_cause[cause] - left);
    }
}

/* Of code. */
static bool is_sample(tw_span_kind kind) { return kind == TW_SPAN_RUN || kind == TW_OWN_RUN; }

static uint64_t sampled_code_ns(const findings *f) {
    return tw_evidence_sum(&f->seen, TW_SPAN_RUN, TW_SPAN_RUN) + tw_evidence_sum(&f->seen, TW_OWN_RUN, TW_OWN_RUN);
}

static void split_memory(const split *s, const findings *f, tw_usage *u) {
    const uint64_t ns = least(u->minor_faults * tw_load(&s->host->facts.fault_ns), u->cpu_ns);
    const tw_evidence *largest = NULL;
    if (ns <= u->cpu_ns / MEMORY_SHARE || ns < TW_SPAN_LEAST_NS) return;
    for (uint32_t i = 0; i < f->seen.n; i++)
        if (is_sample(f->seen.of[i].kind) && (largest == NULL || f->seen.of[i].ns > largest->ns)) largest = &f->seen.of[i];
    add(s, TW_DELAY_MEMORY, TW_ESTIMATED, ns, largest == NULL ? 0 : largest->name, TW_DETAIL_FAULTS, u->minor_faults);
    u->cpu_ns -= ns;
}

static int cause_of(tw_span_kind kind, int code) {
    switch (kind) {
    case TW_SPAN_GIL: return TW_DELAY_GIL;
    case TW_SPAN_IO: return TW_DELAY_IO;
    case TW_SPAN_LOCK: return TW_DELAY_LOCK;
    case TW_SPAN_SLEEP: return TW_DELAY_SLEEP;
    default: return code;
    }
}

static bool is_code(tw_span_kind kind) {
    return is_sample(kind) || kind == TW_SPAN_HANDLE || kind == TW_OWN_HANDLE;
}

static tw_detail detail_of(tw_span_kind kind) {
    if (kind == TW_SPAN_GIL) return TW_DETAIL_HOLDER;
    return is_code(kind) ? TW_DETAIL_NONE : TW_DETAIL_SYSCALL;
}

/* Of code the time is measured; how much of it is the request's own is not, where samples divide it. */
static tw_certainty certainty_of(const findings *f, const tw_evidence *e) {
    const bool divided = is_sample(e->kind) && tw_evidence_sum(&f->seen, TW_OWN_RUN, TW_OWN_RUN) > 0;
    return is_code(e->kind) && !divided ? TW_MEASURED : e->certainty;
}

/* ns dealt out to the evidence of some kinds, in proportion; exact by differences of a running share. */
static void deal(const split *s, const findings *f, tw_span_kind first, tw_span_kind last, uint64_t ns, int code) {
    const uint64_t whole = tw_evidence_sum(&f->seen, first, last);
    uint64_t seen = 0, dealt = 0;
    for (uint32_t i = 0; i < f->seen.n && whole > 0; i++) {
        const tw_evidence *e = &f->seen.of[i];
        if (e->kind < first || e->kind > last) continue;
        seen += e->ns;
        const uint64_t upto = (uint64_t)((wide)ns * seen / whole);
        add(s, cause_of(e->kind, code), certainty_of(f, e), upto - dealt, e->name, detail_of(e->kind),
            is_code(e->kind) ? 0 : e->detail);
        dealt = upto;
    }
}

/* What handles of a kind ran of ns on CPU in busy_ns, with their names. Returns it. */
static uint64_t deal_handles(const split *s, const findings *f, tw_span_kind kind, uint64_t ns, uint64_t busy_ns,
                             int code) {
    const uint64_t ran = least(tw_evidence_sum(&f->seen, kind, kind), busy_ns);
    const uint64_t named = busy_ns == 0 ? 0 : (uint64_t)((wide)ns * ran / busy_ns);
    deal(s, f, kind, kind, named, code);
    return named;
}

/* Code on CPU that samples name, and divide where they have the context. */
static void split_samples(const split *s, const findings *f, uint64_t ns, int code) {
    const uint64_t own = tw_evidence_sum(&f->seen, TW_OWN_RUN, TW_OWN_RUN);
    const uint64_t others = tw_evidence_sum(&f->seen, TW_SPAN_RUN, TW_SPAN_RUN);
    const uint64_t own_ns = (uint64_t)((wide)ns * own / (own + others));
    deal(s, f, TW_OWN_RUN, TW_OWN_RUN, own_ns, TW_DELAY_OWN_CODE);
    deal(s, f, TW_SPAN_RUN, TW_SPAN_RUN, ns - own_ns, code);
}

/* Code on CPU: own handles among others; the rest named by samples, else by the handles. */
static void split_code(const split *s, const findings *f, uint64_t ns, uint64_t busy_ns, int code) {
    if (code == TW_DELAY_CALLBACK) {
        ns -= deal_handles(s, f, TW_OWN_HANDLE, ns, busy_ns, TW_DELAY_OWN_CODE);
        busy_ns = since(busy_ns, tw_evidence_sum(&f->seen, TW_OWN_HANDLE, TW_OWN_HANDLE));
    }
    if (sampled_code_ns(f) > 0) {
        split_samples(s, f, ns, code);
        return;
    }
    const tw_span_kind kind = code == TW_DELAY_CALLBACK ? TW_SPAN_HANDLE : TW_OWN_HANDLE;
    add_plain(s, code, ns - deal_handles(s, f, kind, ns, busy_ns, code));
}

static void split_run_delay(const split *s, const findings *f, uint64_t ns) {
    const uint64_t throttled = least(f->throttled_ns, ns);
    add_plain(s, TW_DELAY_THROTTLED, throttled);
    add_plain(s, TW_DELAY_CPU, ns - throttled);
}

/* The interpreter lock as the loop's clock measured it; the samples name who held it. The rest of the waits by samples. */
static void split_waits(const split *s, const findings *f, named_waits waits) {
    if (tw_evidence_sum(&f->seen, TW_SPAN_GIL, TW_SPAN_GIL) > 0) deal(s, f, TW_SPAN_GIL, TW_SPAN_GIL, waits.gil_ns, 0);
    else add_plain(s, TW_DELAY_GIL, waits.gil_ns);
    deal(s, f, TW_SPAN_IO, TW_SPAN_SLEEP, waits.others_ns, 0);
}

/* Waiting for events while the whole process was stopped is none. */
static uint64_t split_idle(const split *s, findings *f, uint64_t idle_ns) {
    const uint64_t stopped = least(f->stopped_ns, idle_ns);
    f->stopped_ns -= stopped;
    add_plain(s, TW_DELAY_STOPPED, stopped);
    return idle_ns - stopped;
}

/* Samples meet waits that are short and many less often than code: what ends such a wait ends the watchdog's, too. Those
 * are the sleep where samples cover a part of the whole time, and page faults, which have no samples, are none of it. */
static bool are_short_and_many(const findings *f, const tw_usage *u, uint64_t waits_ns, uint64_t slept_ns, uint64_t busy_ns) {
    const bool is_covered = waits_ns + sampled_code_ns(f) >= busy_ns / EVIDENCE_SHARE;
    return is_covered && f->waits_met > 1 && u->major_faults == 0 && waits_ns >= slept_ns / LEAST_SHARE;
}

/* Of a sleep, what evidence names. That of less than a part of it names no more than itself. busy_ns: of the interval,
 * waits for events apart. */
static named_waits name_sleep(const findings *f, const tw_usage *u, named_waits seen, uint64_t slept_ns, uint64_t busy_ns) {
    const uint64_t whole = seen.gil_ns + seen.others_ns;
    if (whole > 0 && whole >= slept_ns / EVIDENCE_SHARE) seen.gil_ns = (uint64_t)((wide)slept_ns * seen.gil_ns / whole);
    else if (!are_short_and_many(f, u, seen.others_ns, slept_ns, busy_ns)) return seen;
    return (named_waits){seen.gil_ns, slept_ns - seen.gil_ns};
}

static void split_sleep(const split *s, const findings *f, const tw_usage *u, uint64_t busy_ns) {
    const uint64_t gil = most(tw_evidence_sum(&f->seen, TW_SPAN_GIL, TW_SPAN_GIL), f->gil_measured_ns);
    const named_waits seen = {gil, tw_evidence_sum(&f->seen, TW_SPAN_IO, TW_SPAN_SLEEP)};
    const uint64_t stopped = least(f->stopped_ns, since(u->asleep_ns, seen.gil_ns + seen.others_ns));
    const uint64_t slept = u->asleep_ns - stopped;
    const named_waits named = name_sleep(f, u, seen, slept, busy_ns);
    const uint64_t left = slept - named.gil_ns - named.others_ns;
    add_plain(s, TW_DELAY_STOPPED, stopped);
    split_waits(s, f, named);
    if (u->major_faults > 0) add(s, TW_DELAY_MEMORY, TW_ESTIMATED, left, 0, TW_DETAIL_FAULTS, u->major_faults);
    else add_plain(s, TW_DELAY_UNEXPLAINED, left);
}

/* code: the cause of what ran. Returns the time in which it waited for events. */
static uint64_t split_window(const split *s, uint64_t from_ns, uint64_t to_ns, int code) {
    findings f;
    tw_usage u;
    if (from_ns >= to_ns) return 0;
    memset(&f, 0, sizeof f);
    f.from_ns = from_ns;
    f.to_ns = to_ns;
    f.track = s->track;
    f.own = s->own;
    tw_host_track_usage(&s->host->track[s->track], from_ns, to_ns, &u);
    find_in(&f, &s->host->by_watchdog);
    find_in(&f, &s->host->by_loop);
    find_in(&f, &s->host->by_handle);
    split_pauses(s, &f, &u);
    split_memory(s, &f, &u);
    const uint64_t busy_ns = to_ns - from_ns - u.idle_ns;
    split_code(s, &f, u.cpu_ns, busy_ns, code);
    split_run_delay(s, &f, u.run_delay_ns);
    const uint64_t waited = split_idle(s, &f, u.idle_ns);
    split_sleep(s, &f, &u, busy_ns);
    add_plain(s, TW_DELAY_UNEXPLAINED, u.unknown_ns);
    return waited;
}

/* ---- handle by handle ---- */

/* The handles that ran for a part of [from, to] that counts, the last one first. Returns how many. */
static uint32_t handles_of(const split *s, uint64_t from_ns, uint64_t to_ns, tw_host_span handles[WINDOWS]) {
    const tw_span_ring *ring = &s->host->by_handle;
    findings interval = {.from_ns = from_ns, .to_ns = to_ns};
    const uint64_t least_ns = most((to_ns - from_ns) / WINDOWS, TW_SPAN_LEAST_NS), head = tw_load_acquire(&ring->head);
    uint64_t until = UINT64_MAX;
    uint32_t n = 0;
    for (uint64_t i = head; i > since(head, TW_SPANS) && n < WINDOWS; i--) {
        tw_host_span h;
        if (!tw_span_read(ring, i - 1, &h) || !tw_span_is_of(&h, s->track)) continue;
        if (h.to_ns <= from_ns) break;
        if (h.to_ns > until || overlap_of(&h, &interval) < least_ns) continue;
        until = h.from_ns;
        handles[n++] = h;
    }
    return n;
}

/* The same as split_window(), each of those handles apart: what it did is its own. */
static uint64_t split_handles(const split *s, uint64_t from_ns, uint64_t to_ns) {
    tw_host_span handles[WINDOWS];
    uint64_t at = from_ns, waited = 0;
    for (uint32_t i = from_ns < to_ns ? handles_of(s, from_ns, to_ns, handles) : 0; i-- > 0;) {
        const tw_host_span *h = &handles[i];
        const uint64_t begin = most(at, h->from_ns), end = least(h->to_ns, to_ns);
        waited += split_window(s, at, begin, TW_DELAY_CALLBACK);
        waited += split_window(s, begin, end, is_own(&s->own, h) ? TW_DELAY_OWN_CODE : TW_DELAY_CALLBACK);
        at = end;
    }
    return waited + split_window(s, at, to_ns, TW_DELAY_CALLBACK);
}

uint64_t tw_host_split(const tw_host *host, uint32_t track, const tw_pause_clock *pauses, uint64_t from_ns,
                       uint64_t to_ns, tw_whose whose, tw_parts *out) {
    if (track >= TW_TRACKS || from_ns >= to_ns) return 0;
    const uint64_t handle = tw_load(&host->track[track].handle_since_ns);
    const uint64_t own_from = handle == 0 || handle > to_ns ? to_ns : most(handle, from_ns);
    const owner own = {handle == 0 ? 0 : tw_load(&host->track[track].handle_task), whose.request, whose.context};
    const split s = {host, pauses, track, own, out};
    return split_handles(&s, from_ns, own_from) + split_window(&s, own_from, to_ns, TW_DELAY_OWN_CODE);
}

/* ---- a process that tokens wait for ---- */

/* Its first thread with engine steps; TW_TRACKS: none is followed. */
static uint32_t step_track(const tw_host *host) {
    uint32_t i = 0;
    while (i < TW_TRACKS && !tw_host_is_of_steps(&host->track[i])) i++;
    return i;
}

/* What a thread was runnable for in so long of its steps, by its points from one to another. */
static uint64_t delay_in_steps(const tw_host_track *t, uint64_t first, uint64_t last, uint64_t length_ns) {
    tw_host_point p, q;
    uint64_t delay = 0, steps = 0;
    if (!tw_host_track_read(t, first, &p)) return UINT64_MAX;
    for (uint64_t n = first + 1; n <= last && tw_host_track_read(t, n, &q); n++, p = q) {
        delay += tw_host_delay_between(&p, &q);
        steps += since(q.at_ns, most(q.wake_ns, p.at_ns));
    }
    return steps == 0 ? UINT64_MAX : (uint64_t)((wide)delay * length_ns / steps);
}

/* The least of some stretches of its points before an interval: what goes on in others for a second is not usual yet. */
static uint64_t least_delay_in(const tw_host_track *t, uint64_t oldest, uint64_t head, uint64_t from_ns,
                               uint64_t length_ns) {
    tw_host_point last;
    uint64_t found = UINT64_MAX;
    const uint64_t step = (head - oldest) / STRETCHES;
    if (step < STRETCH_POINTS) return found;
    for (uint64_t n = oldest + step; n < head && tw_host_track_read(t, n, &last) && last.at_ns <= from_ns; n += step)
        found = least(found, delay_in_steps(t, n - step, n, length_ns));
    return found;
}

/* What a thread is usually runnable for in such a time as [from_ns, to_ns], in which its points have in_it_ns; UINT64_MAX:
 * not known. */
static uint64_t usual_delay(const tw_host_track *t, uint64_t from_ns, uint64_t to_ns, uint64_t in_it_ns) {
    tw_host_point first, last;
    const uint64_t head = tw_load_acquire(&t->point_head), oldest = since(head, TW_POINTS - 1), length = to_ns - from_ns;
    if (head < 2 || !tw_host_track_read(t, oldest, &first) || !tw_host_track_read(t, head - 1, &last)) return UINT64_MAX;
    if (last.at_ns <= first.at_ns) return UINT64_MAX;
    const uint64_t rest = since(tw_host_delay_between(&first, &last), in_it_ns);
    const uint64_t others = since(last.at_ns - first.at_ns, length);
    if (others < length / USUAL_SHARE) return UINT64_MAX; /* not any more */
    const uint64_t by_steps = least_delay_in(t, oldest, head, from_ns, length);
    return by_steps != UINT64_MAX ? by_steps : (uint64_t)((wide)rest * length / others);
}

/* What it was runnable for in [from_ns, to_ns] beyond that. */
static uint64_t run_delay_beyond(const tw_host_track *t, uint64_t from_ns, uint64_t to_ns) {
    tw_usage u;
    tw_host_track_usage(t, from_ns, to_ns, &u);
    return since(u.run_delay_ns, usual_delay(t, from_ns, to_ns, u.run_delay_ns));
}

/* What was stolen of a thread in the segments between its points that an interval meets. */
static uint64_t stolen_in(const tw_host_track *t, uint64_t from_ns, uint64_t to_ns) {
    tw_host_point q, p;
    uint64_t ns = 0, n = tw_load_acquire(&t->point_head);
    if (n == 0 || !tw_host_track_read(t, --n, &q)) return 0;
    for (; n > 0 && q.at_ns > from_ns && tw_host_track_read(t, n - 1, &p); --n, q = p)
        if (p.at_ns < to_ns) ns += since(q.stolen_ns, p.stolen_ns);
    return ns;
}

/* What a thread waited for a CPU beyond the usual, and not while its whole process stood still: all CPUs may be stolen at
 * once. */
static uint64_t delayed_in(const tw_host_track *t, const findings *f) {
    const uint64_t stolen = f->stopped_ns == 0 ? 0 : stolen_in(t, f->from_ns, f->to_ns);
    return since(run_delay_beyond(t, f->from_ns, f->to_ns), least(stolen, f->stopped_ns));
}

/* What a process paused in an interval: its threads waited for the interpreter lock then, or for a CPU. */
static uint64_t paused_in(const tw_pause_clock *pauses, uint64_t from_ns, uint64_t to_ns) {
    tw_overlap overlap;
    uint64_t paused = 0;
    if (tw_pause_quiet_since(pauses, from_ns)) return 0;
    tw_pause_overlap(pauses, from_ns, to_ns, &overlap);
    for (int cause = 0; cause < TW_CAUSES; cause++) paused += overlap.by_cause[cause];
    return paused;
}

/* Else what a thread slept has its waits for a CPU, too. */
static bool has_schedstat(const tw_host *host) {
    return tw_load(&host->facts.knowledge[TW_HOST_SCHEDSTAT]) == TW_KNOWN + 1;
}

/* Per CPU of the process. */
static uint64_t throttled_evenly(const tw_host *host, const findings *f) {
    return f->throttled_evenly_ns / most(tw_load(&host->facts.cpus), 1);
}

void tw_host_held(const tw_host *host, const tw_pause_clock *pauses, uint64_t from_ns, uint64_t to_ns, tw_parts *out) {
    const uint32_t track = step_track(host);
    const split s = {host, NULL, track, {0, 0, 0}, out};
    findings f = {.from_ns = from_ns, .to_ns = to_ns, .track = track < TW_TRACKS ? track : TW_ALL_TRACKS,
                  .steps = track < TW_TRACKS ? &host->track[track] : NULL};
    if (from_ns >= to_ns) return;
    find_in(&f, &host->by_watchdog);
    close_step(&f);
    find_in(&f, &host->by_loop);
    add_plain(&s, TW_DELAY_STOPPED, f.stopped_ns);
    if (track == TW_TRACKS) return;
    const uint64_t paused = paused_in(pauses, from_ns, to_ns);
    const uint64_t delayed = since(delayed_in(&host->track[track], &f), paused);
    if (delayed >= TW_SPAN_LEAST_NS) split_run_delay(&s, &f, delayed);
    const uint64_t unseen = has_schedstat(host) ? f.unseen_ns : 0;
    const uint64_t gil = since(tw_evidence_sum(&f.seen, TW_SPAN_GIL, TW_SPAN_GIL) + unseen, paused);
    const uint64_t others = since(throttled_evenly(host, &f), least(f.throttled_ns, delayed));
    const uint64_t rest = most(since(to_ns - from_ns, delayed), 1); /* the thread ran or slept */
    const uint64_t of_holder = (uint64_t)((wide)gil * least(others, rest) / rest);
    add(&s, TW_DELAY_THROTTLED, TW_ESTIMATED, of_holder, 0, TW_DETAIL_NONE, 0);
    deal(&s, &f, TW_SPAN_GIL, TW_SPAN_GIL, gil - of_holder, 0);
}

uint64_t tw_host_held_ns(const tw_host *host, const tw_pause_clock *pauses, uint64_t from_ns, uint64_t to_ns) {
    tw_parts parts = {0};
    tw_host_held(host, pauses, from_ns, to_ns, &parts);
    return least(most(paused_in(pauses, from_ns, to_ns), tw_parts_sum(&parts)), since(to_ns, from_ns));
}

uint64_t tw_host_step_thread(const tw_host *host) {
    const uint32_t track = step_track(host);
    return track == TW_TRACKS ? 0 : tw_load(&host->track[track].thread);
}

/* Between the newest point and a reading of the counter: of that, what lies in [from_ns, to_ns] in proportion. */
static uint64_t delay_since_newest(const tw_host_track *t, const tw_pause_clock *pauses, uint64_t from_ns, uint64_t to_ns,
                                   const tw_delay_reading *now) {
    tw_host_point newest;
    const uint64_t head = tw_load_acquire(&t->point_head);
    if (head == 0 || !tw_host_track_read(t, head - 1, &newest) || newest.at_ns >= to_ns || now->at_ns < to_ns) return 0;
    if (newest.run_delay_ns == 0) return 0; /* the engine does not count it: since when the counter grew is not known */
    const uint64_t paused = paused_in(pauses, newest.at_ns, now->at_ns);
    const uint64_t delay = since(since(now->run_delay_ns, newest.run_delay_ns), paused);
    return (uint64_t)((wide)delay * (to_ns - most(from_ns, newest.at_ns)) / (now->at_ns - newest.at_ns));
}

uint64_t tw_host_delayed_since(const tw_host *host, const tw_pause_clock *pauses, uint64_t from_ns, uint64_t to_ns,
                               const tw_delay_reading *now) {
    const uint32_t track = step_track(host);
    tw_usage u;
    if (track == TW_TRACKS || from_ns >= to_ns) return 0;
    const tw_host_track *t = &host->track[track];
    tw_host_track_usage(t, from_ns, to_ns, &u);
    const uint64_t counted = since(u.run_delay_ns, paused_in(pauses, from_ns, to_ns));
    const uint64_t delay = counted + delay_since_newest(t, pauses, from_ns, to_ns, now);
    return since(delay, usual_delay(t, from_ns, to_ns, u.run_delay_ns));
}

uint64_t tw_host_throttled_ns(const tw_host *host, uint64_t from_ns, uint64_t to_ns) {
    findings f = {.from_ns = from_ns, .to_ns = to_ns, .track = TW_ALL_TRACKS};
    if (tw_load(&host->throttled_ns) == 0 || from_ns >= to_ns) return 0;
    find_in(&f, &host->by_watchdog);
    find_in(&f, &host->by_loop);
    return throttled_evenly(host, &f);
}
