/* What the rings of a host hold of stalls, written to the event ring, whose file then has all that a reader needs. */
#include <string.h>

#include "base/arithmetic.h"
#include "tailwatch/record/event_recorder.h"

static int cause_of(const tw_host_span *s) {
    switch (tw_span_kind_of(s)) {
    case TW_SPAN_HANDLE: case TW_SPAN_RUN: return TW_DELAY_CALLBACK;
    case TW_SPAN_GIL: return TW_DELAY_GIL;
    case TW_SPAN_IO: return TW_DELAY_IO;
    case TW_SPAN_LOCK: return TW_DELAY_LOCK;
    case TW_SPAN_SLEEP: return TW_DELAY_SLEEP;
    case TW_SPAN_SILENCE: return s->detail == TW_SILENCE_STOPPED ? TW_DELAY_STOPPED : TW_DELAY_CPU;
    case TW_SPAN_THROTTLED: return TW_DELAY_THROTTLED;
    default: return TW_DELAY_UNEXPLAINED;
    }
}

static uint64_t track_of(const tw_host_span *s) { return s->what >> 8 & 255; }

/* 0: the process. */
static uint64_t thread_of(const tw_host *host, const tw_host_span *s) {
    return track_of(s) < TW_TRACKS ? tw_load(&host->track[track_of(s)].thread) : 0;
}

/* Samples of threads grow. */
static bool is_sample(const tw_host_span *s) { return tw_span_certainty(s) == TW_SAMPLED && track_of(s) < TW_TRACKS; }

/* The turns of a loop are not all stalls. */
static bool is_stall(const tw_host_span *s) {
    const tw_span_kind kind = tw_span_kind_of(s);
    const bool of_turn = kind == TW_SPAN_HANDLE || (kind == TW_SPAN_GIL && tw_span_certainty(s) == TW_MEASURED);
    return s->to_ns > s->from_ns && (!of_turn || s->to_ns - s->from_ns >= TW_SLOW_NS);
}

static bool has_grown(const tw_sample_writer *w, const tw_host *host, tw_host_span *out) {
    return w->number != 0 && tw_span_read(&host->by_watchdog, w->number - 1, out) && out->to_ns > w->written_ns;
}

/* It takes the place of the one before of its track, which has ended. false: that one is to be written first. */
static bool take_sample(tw_recorder *r, const tw_host *host, uint64_t number, const tw_host_span *s) {
    tw_sample_writer *w = &r->sample[track_of(s)];
    tw_host_span before;
    if (has_grown(w, host, &before)) return false;
    *w = (tw_sample_writer){number, s->from_ns, thread_of(host, s)};
    return true;
}

/* The next stall of a ring that does not grow. false: there is none yet. */
static bool peek(tw_recorder *r, const tw_host *host, int i, tw_host_span *out) {
    const tw_span_ring *const rings[TW_STALL_RINGS] = {&host->by_handle, &host->by_loop, &host->by_watchdog};
    const uint64_t head = tw_load_acquire(&rings[i]->head), oldest = head > TW_SPANS ? head - TW_SPANS : 0;
    uint64_t *next = &r->span[i];
    if (*next == 0 || *next > head + 1) { /* of another host's, before */
        *next = head + 1;
        memset(r->sample, 0, sizeof r->sample);
    }
    for (; *next - 1 < head; ++*next) {
        if (*next - 1 < oldest) tw_add(&r->head->stalls_lost, 1);
        else if (!tw_span_read(rings[i], *next - 1, out)) return false; /* being written */
        else if (!is_sample(out)) {
            if (is_stall(out)) return true;
        } else if (!take_sample(r, host, *next, out)) return false;
    }
    return false;
}

static void put_frames(tw_recorder *r, const tw_host *host, const tw_host_span *s) {
    if (s->frames[0] == 0) return;
    for (uint32_t k = 0; k < TW_STACK; k++)
        tw_name_share(&r->stalls->frames, &host->frames, tw_span_frame(s->frames, k));
    tw_ring_put(&r->of[TW_RING_SHARED], s->to_ns, tw_what(TW_KIND_FRAMES, 0, 0, 0), s->frames[0], s->frames[1]);
}

static void put(tw_recorder *r, const tw_host *host, const tw_host_span *s, uint64_t thread) {
    const int cause = cause_of(s);
    const uint64_t detail = cause == TW_DELAY_GIL || cause == TW_DELAY_THROTTLED ? s->detail : 0;
    tw_name_share(&r->stalls->names, &host->names, (uint32_t)s->name);
    if (cause == TW_DELAY_GIL) tw_name_share(&r->stalls->names, &host->names, (uint32_t)detail);
    tw_ring_put(&r->of[TW_RING_SHARED], s->to_ns,
                tw_what(TW_KIND_STALL, (uint32_t)cause, (uint32_t)s->name, (uint32_t)thread), s->from_ns,
                (uint64_t)tw_span_certainty(s) | detail << 8);
    put_frames(r, host, s);
}

/* The one that ends first, of the next of each ring and the samples: where it is from, rings before tracks. -1: there
 * is none. */
static int find_first(tw_recorder *r, const tw_host *host, tw_host_span *first) {
    int from = -1;
    for (int i = 0; i < TW_STALL_RINGS + TW_TRACKS; i++) {
        tw_host_span s;
        const bool of_ring = i < TW_STALL_RINGS;
        const bool found = of_ring ? peek(r, host, i, &s) : has_grown(&r->sample[i - TW_STALL_RINGS], host, &s);
        if (!found || (from >= 0 && s.to_ns >= first->to_ns)) continue;
        *first = s;
        from = i;
    }
    return from;
}

void tw_recorder_stalls(tw_recorder *r, tw_host *host) {
    if (r->head == NULL) return;
    tw_store(&host->stacks_wanted, 1);
    tw_host_span s;
    for (int from; (from = find_first(r, host, &s)) >= 0;) {
        if (from < TW_STALL_RINGS) {
            put(r, host, &s, thread_of(host, &s));
            r->span[from]++;
        } else {
            tw_sample_writer *w = &r->sample[from - TW_STALL_RINGS];
            put(r, host, &s, w->thread);
            w->written_ns = s.to_ns;
        }
    }
}
