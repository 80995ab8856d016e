#include "attribute/findings.h"

#include "base/arithmetic.h"
#include "tailwatch/base/clock.h"
#include "tailwatch/stall/watchdog.h"

#define SPANS_LATE_NS (2 * TW_NS_PER_SECOND) /* a ring's spans end in order, but for so much */
#define SLEEP_LEAST_NS (10 * TW_WATCH_PERIOD_NS) /* of a shorter one the first sample may come late */
#define WAKE_UP_SHARE 20 /* of a wait for the interpreter lock its wake-ups take one part in so many, at most */

/* ---- steps ---- */

/* The step that goes on at an instant, or else the next one. Its end is the first point after that; UINT64_MAX: there is
 * none yet. Spans come newest first: it goes on where it was. */
static void find_step(tw_findings *f, uint64_t at_ns) {
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

/* How long after a sample the thread is looked at next: a wait is at each turn of the watchdog. */
static uint64_t next_look_ns(const tw_host_span *s) {
    const uint64_t sample = most(TW_WATCH_SAMPLE_NS, (s->to_ns - s->from_ns) / 8);
    return tw_span_is_wait(tw_span_kind_of(s)) ? least(sample, TW_WATCH_PERIOD_NS) : sample;
}

/* What a sample shows goes on until some moment before the next look, half of that on average, and no longer than the
 * step, or the time before it. */
static uint64_t end_of(const tw_host_span *s, tw_findings *f) {
    if (f->steps == NULL || tw_span_certainty(s) != TW_SAMPLED) return s->to_ns;
    const uint64_t half = next_look_ns(s) / 2;
    if (s->from_ns >= f->to_ns || s->to_ns + half <= f->from_ns) return s->to_ns; /* points are read for what counts */
    find_step(f, s->from_ns);
    const uint64_t latest = least(f->next_ns, s->from_ns < f->begin_ns ? f->begin_ns : f->end_ns);
    return most(s->to_ns, least(s->to_ns + half, latest));
}

static uint64_t overlap_of(const tw_host_span *s, tw_findings *f) {
    return since(least(end_of(s, f), f->to_ns), most(s->from_ns, f->from_ns));
}

bool tw_owner_has(const tw_owner *own, const tw_host_span *handle) {
    if (own->request != 0 && tw_span_request(handle) == own->request) return true;
    return own->task != 0 && handle->detail == own->task;
}

static tw_span_kind evidence_kind(const tw_owner *own, const tw_host_span *s) {
    const tw_span_kind kind = tw_span_kind_of(s);
    if (kind == TW_SPAN_HANDLE) return tw_owner_has(own, s) ? TW_OWN_HANDLE : kind;
    return kind == TW_SPAN_RUN && own->context != 0 && s->detail == own->context ? TW_OWN_RUN : kind;
}

static void add_evidence(tw_findings *f, const tw_host_span *s, uint64_t ns) {
    const uint64_t detail = tw_span_kind_of(s) == TW_SPAN_RUN ? 0 : s->detail; /* whichever context it was */
    const tw_evidence e = {ns, s->name, detail, evidence_kind(&f->own, s), tw_span_certainty(s)};
    tw_evidence_add(&f->seen, &e);
}

static void note_stop(tw_findings *f, const tw_host_span *s, uint64_t ns) {
    *(tw_span_certainty(s) == TW_ESTIMATED ? &f->waiting_stopped_ns : &f->stopped_ns) += ns;
    f->next_ns = least(f->next_ns, s->from_ns); /* no sample goes on through it */
    if (ns <= f->stop_to_ns - f->stop_from_ns) return;
    f->stop_from_ns = most(s->from_ns, f->from_ns);
    f->stop_to_ns = f->stop_from_ns + ns;
}

static void note_throttled(tw_findings *f, const tw_host_span *s, uint64_t ns) {
    f->throttled_ns += least(s->detail, ns);
    f->throttled_evenly_ns += (uint64_t)((wide)s->detail * ns / (s->to_ns - s->from_ns));
}

/* Of a wait for the interpreter lock that was measured: the whole process was stopped for a part of it. The watchdog's
 * ring, which has the stops, is read before the loop's. */
static uint64_t gil_ns(const tw_findings *f, const tw_host_span *s, uint64_t ns) {
    return ns - since(least(least(s->to_ns, f->to_ns), f->stop_to_ns), most(most(s->from_ns, f->from_ns), f->stop_from_ns));
}

typedef struct step_time {
    uint64_t slept_ns, cpu_ns;
} step_time;

/* On CPU, or runnable. */
static uint64_t busy_between(const tw_host_point *p, const tw_host_point *q) {
    return since(q->cpu_ns, p->cpu_ns) + tw_host_delay_between(p, q);
}

/* What a step slept that ended with q, p being the point before: all that the thread was busy with since p was in it. */
static uint64_t slept_in(const tw_host_point *p, const tw_host_point *q) {
    return since(q->at_ns - most(q->wake_ns, p->at_ns), busy_between(p, q));
}

/* What steps of the kind that ended with point n sleep, and compute, on average, that one apart. Where there is no other,
 * all that it computes may be usual: UINT64_MAX. */
static step_time usual_time(const tw_host_track *t, uint64_t number) {
    tw_host_point q, p;
    const step_time unknown = {0, UINT64_MAX};
    step_time sum = {0, 0};
    uint64_t steps = 0, n = tw_load_acquire(&t->point_head);
    if (!tw_host_track_read(t, number, &q)) return unknown;
    const uint64_t step = q.step;
    if (n == 0 || !tw_host_track_read(t, --n, &q)) return unknown;
    for (; n > 0 && tw_host_track_read(t, n - 1, &p); --n, q = p) {
        if (q.step != step || n == number) continue;
        sum.slept_ns += slept_in(&p, &q);
        sum.cpu_ns += since(q.cpu_ns, p.cpu_ns);
        ++steps;
    }
    return steps == 0 ? unknown : (step_time){sum.slept_ns / steps, sum.cpu_ns / steps};
}

/* A step slept beyond the usual for no other reason than its samples show, and in that proportion: what they miss of its
 * waits. What they saw it run for beyond its counters was stolen. What it computed beyond the usual and they did not see are
 * its wake-ups: a thread that waits for the lock asks for it each 5 ms. */
static void close_step(tw_findings *f) {
    const tw_sampled_waits w = f->waits;
    tw_host_point begin, end;
    if (w.gil_ns == 0 || w.point == 0 || !tw_host_track_read(f->steps, w.point - 1, &begin)) return;
    if (!tw_host_track_read(f->steps, w.point, &end) || end.at_ns != w.end_ns) return; /* it goes on */
    const uint64_t from = most(most(end.wake_ns, begin.at_ns), f->from_ns), to = least(end.at_ns, f->to_ns);
    const uint64_t stopped = since(least(f->stop_to_ns, to), most(f->stop_from_ns, from));
    const uint64_t busy = busy_between(&begin, &end), stolen = since(w.ran_ns, busy + stopped);
    const uint64_t slept = since(since(to, from), busy + stolen + stopped);
    const step_time usual = usual_time(f->steps, w.point);
    const uint64_t asleep = since(slept, usual.slept_ns);
    if (w.gil_ns < asleep / TW_EVIDENCE_SHARE) return;
    const uint64_t others = since(w.others_ns, least(usual.slept_ns, since(w.gil_ns + w.others_ns, asleep)));
    const uint64_t waited = (uint64_t)((wide)asleep * w.gil_ns / (w.gil_ns + others));
    const uint64_t unseen_cpu = since(since(since(end.cpu_ns, begin.cpu_ns), usual.cpu_ns), w.ran_ns);
    f->unseen_ns += since(waited + least(unseen_cpu, waited / WAKE_UP_SHARE), w.gil_ns);
}

/* What is before the begin of a step has no share in it. */
static void note_sampled(tw_findings *f, const tw_host_span *s) {
    const tw_span_kind kind = tw_span_kind_of(s);
    find_step(f, s->from_ns);
    if (f->end_ns != f->waits.end_ns) {
        close_step(f);
        f->waits = (tw_sampled_waits){.end_ns = f->end_ns, .point = f->point};
    }
    if (s->from_ns < f->begin_ns) return;
    const uint64_t ns = overlap_of(s, f);
    if (kind == TW_SPAN_GIL) f->waits.gil_ns += ns;
    else *(kind == TW_SPAN_RUN ? &f->waits.ran_ns : &f->waits.others_ns) += ns;
}

static void count_wait(tw_findings *f, tw_span_kind kind) {
    const bool is_wait = kind >= TW_SPAN_IO && kind <= TW_SPAN_SLEEP;
    if (is_wait && !f->is_wait_next) ++f->waits_met;
    f->is_wait_next = is_wait;
}

static void find_one(tw_findings *f, const tw_host_span *s) {
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
        else f->starved_ns += ns;
        break;
    case TW_SPAN_THROTTLED: note_throttled(f, s, ns); break;
    case TW_SPAN_GIL:
        if (tw_span_certainty(s) == TW_MEASURED) f->gil_measured_ns += gil_ns(f, s, ns);
        else add_evidence(f, s, ns);
        break;
    default: add_evidence(f, s, ns);
    }
}

void tw_findings_add(tw_findings *f, const tw_span_ring *ring) {
    uint64_t n = tw_load_acquire(&ring->head);
    const uint64_t oldest = n > TW_SPANS ? n - TW_SPANS : 0;
    const uint64_t stopped = f->stopped_ns, waiting = f->waiting_stopped_ns;
    tw_host_span s;
    f->stopped_ns = f->waiting_stopped_ns = 0;
    f->next_ns = UINT64_MAX;
    while (n > oldest) {
        if (!tw_span_read(ring, --n, &s)) continue; /* being written */
        if (s.to_ns + SPANS_LATE_NS < f->from_ns) break;
        find_one(f, &s);
    }
    f->stopped_ns = most(f->stopped_ns, stopped);
    f->waiting_stopped_ns = most(f->waiting_stopped_ns, waiting);
    if (f->steps != NULL) close_step(f);
    f->waits = (tw_sampled_waits){0};
}

uint64_t tw_findings_runnable(const tw_findings *f, const tw_usage *u) {
    const uint64_t counted = u->run_delay_ns, length = counted + u->asleep_ns;
    const uint64_t not_seen = most(f->starved_ns, f->throttled_ns); /* then, and samples around it went on */
    const uint64_t room = since(length, since(tw_evidence_sum(&f->seen, TW_SPAN_GIL, TW_SPAN_SLEEP), not_seen));
    return length >= SLEEP_LEAST_NS && counted > length / 2 && room < counted / 2 ? room : counted;
}

/* ---- parts ---- */

static int cause_of(tw_span_kind kind, int code) {
    switch (kind) {
    case TW_SPAN_GIL: return TW_DELAY_GIL;
    case TW_SPAN_IO: return TW_DELAY_IO;
    case TW_SPAN_LOCK: return TW_DELAY_LOCK;
    case TW_SPAN_SLEEP: return TW_DELAY_SLEEP;
    default: return code;
    }
}

/* Samples of code, or handles. */
static bool is_code(tw_span_kind kind) {
    return tw_evidence_is_sample(kind) || kind == TW_SPAN_HANDLE || kind == TW_OWN_HANDLE;
}

static tw_detail detail_of(tw_span_kind kind) {
    if (kind == TW_SPAN_GIL) return TW_DETAIL_HOLDER;
    return is_code(kind) ? TW_DETAIL_NONE : TW_DETAIL_SYSCALL;
}

/* Of code the time is measured; how much of it is the request's own is not, where samples divide it. */
static tw_certainty certainty_of(const tw_findings *f, const tw_evidence *e) {
    const bool divided = tw_evidence_is_sample(e->kind) && tw_evidence_sum(&f->seen, TW_OWN_RUN, TW_OWN_RUN) > 0;
    return is_code(e->kind) && !divided ? TW_MEASURED : e->certainty;
}

/* Exact by differences of a running share. */
void tw_findings_deal(const tw_findings *f, tw_parts *out, tw_span_kind first, tw_span_kind last, uint64_t ns, int code) {
    const uint64_t whole = tw_evidence_sum(&f->seen, first, last);
    uint64_t seen = 0, dealt = 0;
    for (uint32_t i = 0; i < f->seen.n && whole > 0; i++) {
        const tw_evidence *e = &f->seen.of[i];
        if (e->kind < first || e->kind > last) continue;
        seen += e->ns;
        const uint64_t upto = (uint64_t)((wide)ns * seen / whole);
        const tw_part part = {upto - dealt, (uint32_t)e->name, (uint8_t)cause_of(e->kind, code), (uint8_t)certainty_of(f, e),
                              0, (uint8_t)detail_of(e->kind), is_code(e->kind) ? 0 : e->detail};
        tw_parts_add(out, &part);
        dealt = upto;
    }
}

void tw_findings_run_delay(const tw_findings *f, tw_parts *out, uint64_t ns) {
    const uint64_t throttled = least(f->throttled_ns, ns);
    tw_parts_measured(out, TW_DELAY_THROTTLED, throttled);
    tw_parts_measured(out, TW_DELAY_CPU, ns - throttled);
}
