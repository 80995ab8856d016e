#include "tailwatch/attribute/host_split.h"

#include <string.h>

#include "attribute/findings.h"
#include "base/arithmetic.h"

#define MEMORY_SHARE 5 /* faults count where they took more than one part in so many of the CPU time */
#define LEAST_SHARE 16 /* as TW_EVIDENCE_SHARE, of waits that are short and many */
#define WINDOWS 16     /* handles of one part in so many of an interval, or more, are split by themselves */

/* Of a sleep: waits for the interpreter lock, and all others that samples show. */
typedef struct named_waits {
    uint64_t gil_ns, others_ns;
} named_waits;

/* An interval being split. */
typedef struct split {
    const tw_host *host;
    const tw_pause_clock *pauses;
    uint32_t track;
    tw_owner own;
    tw_parts *out;
} split;

/* Collections. A pause is on CPU first, runnable next: what it took is taken from those. */
static void split_pauses(const split *s, const tw_findings *f, tw_usage *u) {
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
        tw_parts_measured(s->out, cause, overlap.by_cause[cause] - left);
    }
}

static uint64_t sampled_code_ns(const tw_findings *f) {
    return tw_evidence_sum(&f->seen, TW_SPAN_RUN, TW_SPAN_RUN) + tw_evidence_sum(&f->seen, TW_OWN_RUN, TW_OWN_RUN);
}

static void add_faults(const split *s, uint64_t ns, uint64_t name, uint64_t faults) {
    tw_parts_add(s->out, &(tw_part){ns, (uint32_t)name, TW_DELAY_MEMORY, TW_ESTIMATED, 0, TW_DETAIL_FAULTS, faults});
}

static void split_memory(const split *s, const tw_findings *f, tw_usage *u) {
    const uint64_t ns = least(u->minor_faults * tw_load(&s->host->facts.fault_ns), u->cpu_ns);
    const tw_evidence *largest = NULL;
    if (ns <= u->cpu_ns / MEMORY_SHARE || ns < TW_SPAN_LEAST_NS) return;
    for (uint32_t i = 0; i < f->seen.n; i++)
        if (tw_evidence_is_sample(f->seen.of[i].kind) && (largest == NULL || f->seen.of[i].ns > largest->ns)) largest = &f->seen.of[i];
    add_faults(s, ns, largest == NULL ? 0 : largest->name, u->minor_faults);
    u->cpu_ns -= ns;
}

/* What handles of a kind ran of ns on CPU in busy_ns, with their names. Returns it. */
static uint64_t deal_handles(const split *s, const tw_findings *f, tw_span_kind kind, uint64_t ns, uint64_t busy_ns,
                             int code) {
    const uint64_t ran = least(tw_evidence_sum(&f->seen, kind, kind), busy_ns);
    const uint64_t named = busy_ns == 0 ? 0 : (uint64_t)((wide)ns * ran / busy_ns);
    tw_findings_deal(f, s->out, kind, kind, named, code);
    return named;
}

/* Code on CPU that samples name, and divide where they have the context. */
static void split_samples(const split *s, const tw_findings *f, uint64_t ns, int code) {
    const uint64_t own = tw_evidence_sum(&f->seen, TW_OWN_RUN, TW_OWN_RUN);
    const uint64_t others = tw_evidence_sum(&f->seen, TW_SPAN_RUN, TW_SPAN_RUN);
    const uint64_t own_ns = (uint64_t)((wide)ns * own / (own + others));
    tw_findings_deal(f, s->out, TW_OWN_RUN, TW_OWN_RUN, own_ns, TW_DELAY_OWN_CODE);
    tw_findings_deal(f, s->out, TW_SPAN_RUN, TW_SPAN_RUN, ns - own_ns, code);
}

/* Code on CPU: own handles among others; the rest named by samples, else by the handles. */
static void split_code(const split *s, const tw_findings *f, uint64_t ns, uint64_t busy_ns, int code) {
    if (code == TW_DELAY_CALLBACK) {
        ns -= deal_handles(s, f, TW_OWN_HANDLE, ns, busy_ns, TW_DELAY_OWN_CODE);
        busy_ns = since(busy_ns, tw_evidence_sum(&f->seen, TW_OWN_HANDLE, TW_OWN_HANDLE));
    }
    if (sampled_code_ns(f) > 0) {
        split_samples(s, f, ns, code);
        return;
    }
    const tw_span_kind kind = code == TW_DELAY_CALLBACK ? TW_SPAN_HANDLE : TW_OWN_HANDLE;
    tw_parts_measured(s->out, code, ns - deal_handles(s, f, kind, ns, busy_ns, code));
}

/* The interpreter lock as the loop's clock measured it; the samples name who held it. The rest of the waits by samples. */
static void split_waits(const split *s, const tw_findings *f, named_waits waits) {
    const bool is_seen = tw_evidence_sum(&f->seen, TW_SPAN_GIL, TW_SPAN_GIL) > 0;
    if (is_seen) tw_findings_deal(f, s->out, TW_SPAN_GIL, TW_SPAN_GIL, waits.gil_ns, 0);
    else tw_parts_measured(s->out, TW_DELAY_GIL, waits.gil_ns);
    tw_findings_deal(f, s->out, TW_SPAN_IO, TW_SPAN_SLEEP, waits.others_ns, 0);
}

/* Waiting for events while the whole process was stopped is none. */
static uint64_t split_idle(const split *s, tw_findings *f, uint64_t idle_ns) {
    const uint64_t stopped = least(f->stopped_ns, idle_ns), before = least(f->waiting_stopped_ns, idle_ns - stopped);
    f->stopped_ns -= stopped;
    tw_parts_measured(s->out, TW_DELAY_STOPPED, stopped);
    tw_parts_add(s->out, &(tw_part){.ns = before, .cause = TW_DELAY_STOPPED, .certainty = TW_ESTIMATED});
    return idle_ns - stopped - before;
}

/* Samples meet waits that are short and many less often than code: what ends such a wait ends the watchdog's, too. Those
 * are the sleep where samples cover a part of the whole time, and page faults, which have no samples, are none of it. */
static bool are_short_and_many(const tw_findings *f, const tw_usage *u, uint64_t waits_ns, uint64_t slept_ns, uint64_t busy_ns) {
    const bool is_covered = waits_ns + sampled_code_ns(f) >= busy_ns / TW_EVIDENCE_SHARE;
    return is_covered && f->waits_met > 1 && u->major_faults == 0 && waits_ns >= slept_ns / LEAST_SHARE;
}

/* Of a sleep, what evidence names. That of less than a part of it names no more than itself. busy_ns: of the interval,
 * waits for events apart. */
static named_waits name_sleep(const tw_findings *f, const tw_usage *u, named_waits seen, uint64_t slept_ns, uint64_t busy_ns) {
    const uint64_t whole = seen.gil_ns + seen.others_ns;
    if (whole > 0 && whole >= slept_ns / TW_EVIDENCE_SHARE) seen.gil_ns = (uint64_t)((wide)slept_ns * seen.gil_ns / whole);
    else if (!are_short_and_many(f, u, seen.others_ns, slept_ns, busy_ns)) return seen;
    return (named_waits){seen.gil_ns, slept_ns - seen.gil_ns};
}

static void split_sleep(const split *s, const tw_findings *f, const tw_usage *u, uint64_t busy_ns) {
    const uint64_t gil = most(tw_evidence_sum(&f->seen, TW_SPAN_GIL, TW_SPAN_GIL), f->gil_measured_ns);
    const named_waits seen = {gil, tw_evidence_sum(&f->seen, TW_SPAN_IO, TW_SPAN_SLEEP)};
    const uint64_t stopped = least(f->stopped_ns, since(u->asleep_ns, seen.gil_ns + seen.others_ns));
    const uint64_t slept = u->asleep_ns - stopped;
    const named_waits named = name_sleep(f, u, seen, slept, busy_ns);
    const uint64_t left = slept - named.gil_ns - named.others_ns;
    tw_parts_measured(s->out, TW_DELAY_STOPPED, stopped);
    split_waits(s, f, named);
    if (u->major_faults > 0) add_faults(s, left, 0, u->major_faults);
    else tw_parts_measured(s->out, TW_DELAY_UNEXPLAINED, left);
}

/* Sleep that was counted as a wait for a CPU. */
static void take_sleep(const tw_findings *f, tw_usage *u) {
    const uint64_t counted = u->run_delay_ns;
    u->run_delay_ns = tw_findings_runnable(f, u);
    u->asleep_ns += counted - u->run_delay_ns;
}

/* code: the cause of what ran. Returns the time in which it waited for events. */
static uint64_t split_window(const split *s, uint64_t from_ns, uint64_t to_ns, int code) {
    tw_findings f;
    tw_usage u;
    if (from_ns >= to_ns) return 0;
    memset(&f, 0, sizeof f);
    f.from_ns = from_ns;
    f.to_ns = to_ns;
    f.track = s->track;
    f.own = s->own;
    tw_host_track_usage(&s->host->track[s->track], from_ns, to_ns, &u);
    tw_findings_add(&f, &s->host->by_watchdog);
    tw_findings_add(&f, &s->host->by_loop);
    tw_findings_add(&f, &s->host->by_handle);
    take_sleep(&f, &u);
    split_pauses(s, &f, &u);
    split_memory(s, &f, &u);
    const uint64_t busy_ns = to_ns - from_ns - u.idle_ns;
    split_code(s, &f, u.cpu_ns, busy_ns, code);
    tw_findings_run_delay(&f, s->out, u.run_delay_ns);
    const uint64_t waited = split_idle(s, &f, u.idle_ns);
    split_sleep(s, &f, &u, busy_ns);
    tw_parts_measured(s->out, TW_DELAY_UNEXPLAINED, u.unknown_ns);
    return waited;
}

/* ---- handle by handle ---- */

/* The handles that ran for a part of [from, to] that counts, the last one first. Returns how many. */
static uint32_t handles_of(const split *s, uint64_t from_ns, uint64_t to_ns, tw_host_span handles[WINDOWS]) {
    const tw_span_ring *ring = &s->host->by_handle;
    const uint64_t least_ns = most((to_ns - from_ns) / WINDOWS, TW_SPAN_LEAST_NS), head = tw_load_acquire(&ring->head);
    uint64_t until = UINT64_MAX;
    uint32_t n = 0;
    for (uint64_t i = head; i > since(head, TW_SPANS) && n < WINDOWS; i--) {
        tw_host_span h;
        if (!tw_span_read(ring, i - 1, &h) || !tw_span_is_of(&h, s->track)) continue;
        if (h.to_ns <= from_ns) break;
        if (h.to_ns > until || since(least(h.to_ns, to_ns), most(h.from_ns, from_ns)) < least_ns) continue;
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
        waited += split_window(s, begin, end, tw_owner_has(&s->own, h) ? TW_DELAY_OWN_CODE : TW_DELAY_CALLBACK);
        at = end;
    }
    return waited + split_window(s, at, to_ns, TW_DELAY_CALLBACK);
}

uint64_t tw_host_split(const tw_host *host, uint32_t track, const tw_pause_clock *pauses, uint64_t from_ns,
                       uint64_t to_ns, tw_whose whose, tw_parts *out) {
    if (track >= TW_TRACKS || from_ns >= to_ns) return 0;
    const uint64_t handle = tw_load(&host->track[track].handle_since_ns);
    const uint64_t own_from = handle == 0 || handle > to_ns ? to_ns : most(handle, from_ns);
    const tw_owner own = {handle == 0 ? 0 : tw_load(&host->track[track].handle_task), whose.request, whose.context};
    const split s = {host, pauses, track, own, out};
    return split_handles(&s, from_ns, own_from) + split_window(&s, own_from, to_ns, TW_DELAY_OWN_CODE);
}
