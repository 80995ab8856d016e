#include "tailwatch/attribute/chain.h"

#include <stdio.h>
#include <string.h>

#include "base/arithmetic.h"
#include "tailwatch/attribute/engine_split.h"
#include "tailwatch/attribute/host_held.h"
#include "tailwatch/attribute/host_split.h"
#include "tailwatch/attribute/last_rank.h"
#include "tailwatch/base/atomic.h"

/* A wait that is being explained. */
typedef struct explained {
    tw_segment *g;
    tw_served_by by;
    const tw_wait *w;
    tw_parts certain, estimated;
    uint64_t in_engine_ns;    /* that nothing in the engine explains, which is of this source */
    uint32_t engine;
    bool joined;              /* the engine's part was found in its steps */
} explained;

/* Whether any loop is: else no system call asks which thread this one is. */
static bool is_followed(const tw_host *host) {
    bool any = false;
    for (int i = 0; i < TW_TRACKS; ++i) any |= tw_host_is_of_loop(&host->track[i]);
    return any;
}

tw_ready tw_ready_by_loop(const tw_segment *g, uint64_t from_ns, int *track) {
    tw_ready ready = {0};
    *track = is_followed(&g->host) ? tw_host_own_track(&g->host) : -1;
    if (*track < 0) return ready;
    const tw_host_track *t = &g->host.track[*track];
    ready.hi_ns = tw_load(&t->wake_ns);
    ready.lo_ns = tw_load(&t->slept_until_ns);
    ready.known = ready.hi_ns != 0;
    const uint64_t called_ns = tw_load(&t->called_ns);
    ready.by_thread = called_ns > from_ns && called_ns >= ready.lo_ns;
    return ready;
}

static void add_part(explained *e, const tw_part *part) {
    tw_parts_add(part->certainty == TW_ESTIMATED ? &e->estimated : &e->certain, part);
}

static void add(explained *e, int cause, tw_certainty certainty, uint32_t source, uint64_t ns) {
    const tw_part part = {ns, 0, (uint8_t)cause, (uint8_t)certainty, (uint8_t)source, TW_DETAIL_NONE, 0};
    add_part(e, &part);
}

static void add_pauses(explained *e, const tw_charge *d) {
    for (uint32_t i = 0; i < d->sources * TW_CAUSES; ++i) {
        const uint32_t source = i / TW_CAUSES, cause = i % TW_CAUSES;
        const uint64_t certain = d->certain[source][cause];
        add(e, (int)cause, TW_MEASURED, source, certain);
        add(e, (int)cause, TW_ESTIMATED, source, d->delay[source][cause] - certain);
    }
}

/* ---- the host ---- */

/* sure: the token was ready. The request's own code makes its first token. */
static bool is_certain(const explained *e, const tw_part *part, bool sure) {
    return sure || (part->cause == TW_DELAY_OWN_CODE && e->w->phase == TW_PHASE_TTFT);
}

/* What the stamping thread did in [from, to]. code: what it is called that the request's own task ran. Pauses are the
 * charge's already. Returns the time in which the thread waited for events. */
static uint64_t add_host(explained *e, uint64_t from, uint64_t to, bool sure, int code) {
    tw_parts parts = {0};
    if (from >= to) return 0;
    if (e->w->track < 0) return to - from;
    const uint64_t idle = tw_host_split(&e->g->host, (uint32_t)e->w->track, &e->g->pause, from, to,
                                        (tw_whose){e->w->ordinal, e->w->context}, &parts);
    for (uint32_t i = 0; i < parts.n; ++i) {
        tw_part *part = &parts.part[i];
        if (part->cause < TW_CAUSES || part->cause == TW_DELAY_UNEXPLAINED) continue;
        if (!is_certain(e, part, sure)) part->certainty = TW_ESTIMATED;
        if (part->cause == TW_DELAY_OWN_CODE) part->cause = (uint8_t)code;
        add_part(e, part);
    }
    return idle;
}

/* Of a first token: what the request's own handles did that had ended by then. Returns its sum. */
static uint64_t add_own_work(explained *e, uint64_t by_ns) {
    tw_parts parts = {0};
    const uint64_t ns = e->w->own == NULL ? 0 : tw_own_work_by(e->w->own, by_ns, &parts);
    for (uint32_t i = 0; i < parts.n; ++i) add_part(e, &parts.part[i]);
    return ns;
}

/* Where the engine's stamps are not known: the loop ran from hi on, and perhaps since lo. What was late before is
 * no known cause's here, but for the request's own handles. */
static void explain_by_loop(explained *e, uint64_t base) {
    const tw_wait *w = e->w;
    const uint64_t hi = least(most(w->ready.hi_ns, w->from_ns), w->to_ns), lo = most(w->ready.lo_ns, w->from_ns);
    const uint64_t from = most(base, lo), idle = add_host(e, from, most(from, hi), false, TW_DELAY_OWN_CODE);
    (void)add_own_work(e, from);
    add(e, TW_DELAY_UPSTREAM, TW_MEASURED, 0, idle + add_host(e, most(from, hi), w->to_ns, true, TW_DELAY_OWN_CODE));
}

/* ---- the chain ---- */

/* The engine whose steps hold the token's stamp. */
typedef struct served {
    const tw_segment *segment; /* NULL: none was found */
    uint64_t engine;           /* its number, 0: it is this process */
    uint32_t source;
} served;

static uint32_t source_of(const tw_peer *peer) { return peer->source < TW_SOURCES ? peer->source : TW_SOURCE_OTHER; }

/* A peer, or this process itself. */
static served engine_of(const explained *e) {
    if (tw_load(&e->g->step_ring.head) != 0) return (served){e->g, 0, 0};
    for (uint32_t i = 0; e->by.peer_set != NULL && i < e->by.peer_set->n; ++i) {
        const tw_peer *peer = &e->by.peer_set->peer[i];
        const tw_segment *engine = e->by.peer_set->segment[i];
        uint64_t number;
        if (engine == NULL || (e->by.engine != 0 && peer->engine != e->by.engine)) continue;
        if (tw_engine_join(&engine->step_ring, e->w->token->key_ns, &number))
            return (served){engine, peer->engine, source_of(peer)};
    }
    return (served){NULL, 0, 0};
}

/* A name of the engine's process becomes one of this segment's. */
static void add_engine_part(explained *e, const tw_segment *engine, uint32_t source, tw_part part) {
    char name[TW_NAME_TEXT];
    if (engine != e->g) {
        tw_engine_name_copy(&engine->step_ring, &engine->host, part.name, name, sizeof name);
        part.name = tw_engine_name_put(&e->g->step_ring, &e->g->host, part.name, name);
    }
    if (part.detail_kind == TW_DETAIL_HOLDER) {
        tw_name_copy(&engine->host.names, (uint32_t)part.detail, name, sizeof name);
        part.detail = tw_name_intern(&e->g->host.names, name, strlen(name));
    }
    part.source = (uint8_t)source;
    add_part(e, &part);
}

/* What kept processes that work together from going on. */
typedef struct held {
    uint64_t from_ns, to_ns;
    uint64_t left_ns;                    /* of what is to be explained */
    uint64_t by_cause[TW_DELAYS];        /* of those before, the most: it is not known which of it was at the same time */
    bool stops;                          /* those are looked for, or all else: a stop of one process makes others wait */
} held;

static void add_held(explained *e, held *h, const tw_segment *segment, uint32_t source) {
    uint64_t seen[TW_DELAYS] = {0}, inside_ns = tw_rank_inside_ns(&segment->step_ring, h->from_ns, h->to_ns);
    tw_parts parts = {0};
    tw_host_held(&segment->host, &segment->pause, h->from_ns, h->to_ns, &parts);
    for (uint32_t i = 0; i < parts.n; ++i) {
        tw_part part = parts.part[i];
        if ((part.cause == TW_DELAY_STOPPED) != h->stops) continue;
        if (!h->stops) part.ns = least(part.ns, inside_ns), inside_ns -= part.ns;
        const uint64_t before = h->by_cause[part.cause], upto = seen[part.cause] + part.ns;
        part.ns = least(since(upto, before) - since(seen[part.cause], before), h->left_ns);
        seen[part.cause] = upto;
        h->left_ns -= part.ns;
        if (part.ns > 0) add_engine_part(e, segment, source, part);
    }
    for (int cause = 0; cause < TW_DELAYS; ++cause) h->by_cause[cause] = most(h->by_cause[cause], seen[cause]);
}

/* The engine, and the processes that work for it. */
static void add_held_of_engine(explained *e, const served *s, held *h) {
    const tw_peer_set *peers = e->by.peer_set;
    add_held(e, h, s->segment, s->source);
    for (uint32_t i = 0; s->engine != 0 && i < peers->n; ++i)
        if (peers->peer[i].engine == s->engine && peers->segment[i] != NULL && peers->segment[i] != s->segment)
            add_held(e, h, peers->segment[i], source_of(&peers->peer[i]));
}

/* Returns its sum, at most beyond_ns. */
static uint64_t add_held_in_steps(explained *e, const served *s, uint64_t k0, uint64_t beyond_ns) {
    held h = {.from_ns = k0, .to_ns = e->w->token->key_ns, .left_ns = beyond_ns, .stops = true};
    add_held_of_engine(e, s, &h);
    h.stops = false;
    add_held_of_engine(e, s, &h);
    return beyond_ns - h.left_ns;
}

static void add_late_rank(explained *e, const tw_late_rank *late, uint32_t source, uint64_t ns) {
    char name[16];
    const int len = snprintf(name, sizeof name, "rank %u", late->rank);
    const tw_part part = {.ns = ns, .name = tw_name_intern(&e->g->host.names, name, (size_t)len),
                          .cause = TW_DELAY_RANK, .certainty = TW_MEASURED, .source = (uint8_t)source};
    add_part(e, &part);
}

/* The engine's ranks wait for the last one to enter a step, and so does the engine: what that does meanwhile delays
 * nothing. What held the late rank's process is apart. Returns its sum, at most beyond_ns. */
static uint64_t add_late_ranks(explained *e, const served *s, uint64_t k0, uint64_t beyond_ns) {
    const tw_peer_set *peers = e->by.peer_set;
    tw_late_rank late[TW_LATE_STEPS];
    uint64_t left = beyond_ns;
    if (s->engine == 0 || left == 0) return 0;
    const uint32_t n = tw_late_ranks(peers, s->engine, k0, e->w->token->key_ns, late);
    for (uint32_t i = 0; i < n && left > 0; ++i) {
        const tw_segment *worker = peers->segment[late[i].peer];
        const uint64_t held = tw_host_held_ns(&worker->host, &worker->pause, late[i].from_ns, late[i].to_ns);
        const uint64_t ns = least(late[i].to_ns - late[i].from_ns - held, left);
        left -= ns;
        if (ns > 0) add_late_rank(e, &late[i], source_of(&peers->peer[late[i].peer]), ns);
    }
    return beyond_ns - left;
}

/* How long the engine's processes, or those behind it, were throttled: the most of any. */
static uint64_t throttled_in(const explained *e, const served *s, uint64_t from, uint64_t to) {
    const tw_peer_set *peers = e->by.peer_set;
    uint64_t ns = tw_host_throttled_ns(&s->segment->host, from, to);
    for (uint32_t i = 0; s->engine != 0 && i < peers->n; ++i)
        if ((peers->peer[i].engine == s->engine || peers->peer[i].engine == TW_ENGINE_SHARED) && peers->segment[i] != NULL)
            ns = most(ns, tw_host_throttled_ns(&peers->segment[i]->host, from, to));
    return ns;
}

/* Of what no thread's own counters explain. Returns it, at most left_ns. */
static uint64_t add_throttled(explained *e, const served *s, uint64_t ns, uint64_t left_ns) {
    const tw_part part = {.ns = least(ns, left_ns), .cause = TW_DELAY_THROTTLED, .certainty = TW_ESTIMATED};
    if (part.ns > 0) add_engine_part(e, s->segment, s->source, part);
    return part.ns;
}

static bool is_residue(const tw_part *part) { return part->cause == TW_DELAY_DEVICE || part->cause == TW_DELAY_UNEXPLAINED; }

/* Of (k0, k1]: threads that are not followed were throttled, and the engine waited for them. It comes out of the residues
 * among parts. What is typical has its share of it, if there is room. */
static void take_throttled(explained *e, const served *s, uint64_t k0, uint64_t k1, uint64_t typical_ns, tw_parts *parts) {
    const uint64_t length = most(since(k1, k0), 1), whole = throttled_in(e, s, k0, k1);
    const uint64_t typical = whole > typical_ns ? 0 : (uint64_t)((wide)whole * typical_ns / length);
    const uint64_t seen = tw_parts_sum_of(&e->certain, TW_DELAY_THROTTLED, TW_DELAY_THROTTLED) +
                          tw_parts_sum_of(&e->estimated, TW_DELAY_THROTTLED, TW_DELAY_THROTTLED);
    uint64_t left = since(whole - typical, seen);
    for (uint32_t i = 0; i < parts->n && left > 0; ++i) {
        tw_part *part = &parts->part[i];
        if (!is_residue(part)) continue;
        const uint64_t ns = add_throttled(e, s, left, part->ns);
        part->ns -= ns;
        left -= ns;
    }
}

/* By how much the token before took longer from the engine to here than this one: what held the engine so long after it
 * has delayed that one, if any. */
static uint64_t longer_before(const tw_token_chain *b, const tw_token_chain *t) {
    return b == NULL ? 0 : since(since(b->recv_ns, b->key_ns), since(t->recv_ns, t->key_ns));
}

/* (k0, k1] beyond what is typical, what paused it and what this process itself did. Before its own code has made a
 * request, no engine works on it. */
static void add_engine(explained *e, const served *s, uint64_t k0, uint64_t typical_ns, const tw_charge *d) {
    tw_parts parts = {0};
    const uint64_t k1 = e->w->token->key_ns, own_ns = add_own_work(e, k1), before = longer_before(e->w->before, e->w->token);
    const uint64_t begun = least(k0 + most(own_ns, before), k1);
    uint64_t accounted_ns = typical_ns + own_ns;
    if (s->segment == NULL) return;
    for (uint32_t i = TW_CAUSES; i < d->sources * TW_CAUSES; ++i) accounted_ns += d->delay[i / TW_CAUSES][i % TW_CAUSES];
    accounted_ns += d->beyond_ns;
    accounted_ns -= d->passing_ns;
    accounted_ns += add_late_ranks(e, s, begun, since(since(k1, k0), accounted_ns));
    accounted_ns += add_held_in_steps(e, s, begun, since(since(k1, k0), accounted_ns));
    e->joined = tw_engine_split(&s->segment->step_ring, k0, k1, e->w->request, typical_ns, e->w->interval, accounted_ns,
                                &parts);
    take_throttled(e, s, begun, k1, typical_ns, &parts);
    e->engine = s->source;
    for (uint32_t i = 0; i < parts.n; ++i)
        if (parts.part[i].cause == TW_DELAY_UNEXPLAINED) e->in_engine_ns += parts.part[i].ns;
        else add_engine_part(e, s->segment, s->source, parts.part[i]);
}

/* The processes that are of no engine: a detokenizer. */
static void add_held_behind(explained *e, held *h) {
    for (uint32_t i = 0; i < e->by.peer_set->n; ++i)
        if (e->by.peer_set->peer[i].engine == TW_ENGINE_SHARED && e->by.peer_set->segment[i] != NULL)
            add_held(e, h, e->by.peer_set->segment[i], source_of(&e->by.peer_set->peer[i]));
}

/* Of a thread of the engine; read once for the tokens of one batch. */
static const tw_delay_reading *run_delay_of(const explained *e, const tw_segment *engine, uint64_t thread) {
    tw_delay_reading *r = &e->g->host.engine_delay;
    const uint64_t key = e->w->token->key_ns;
    if (r->thread == thread && r->key_ns == key) return r;
    const uint64_t ns = tw_segment_is_elsewhere(&engine->header) ? 0 : tw_thread_run_delay_ns(thread);
    *r = (tw_delay_reading){thread, key, tw_now_ns(), ns};
    return r;
}

/* The engine's thread waited for a CPU between a step's end and what it sends, of which it has no point yet; it was
 * throttled for a part of that. Returns the rest, at most left_ns. */
static uint64_t add_delayed(explained *e, const served *s, uint64_t from, uint64_t to, uint64_t throttled_ns,
                            uint64_t left_ns) {
    const tw_segment *engine = s->segment;
    const uint64_t thread = tw_host_step_thread(&engine->host);
    if (left_ns < TW_SPAN_LEAST_NS || thread == 0) return 0;
    const tw_delay_reading *now = run_delay_of(e, engine, thread);
    const uint64_t ns = tw_host_delayed_since(&engine->host, &engine->pause, from, to, now);
    const tw_part part = {.ns = least(since(ns, throttled_ns), left_ns), .cause = TW_DELAY_CPU, .certainty = TW_ESTIMATED};
    if (part.ns > 0) add_engine_part(e, engine, s->source, part);
    return part.ns;
}

/* What the engine sends late, because its process was stopped or its threads waited for the interpreter lock or a CPU, and
 * what comes late through a process behind it (a detokenizer) that was stopped: at most left_ns of [from, to]. Returns its
 * sum. */
static uint64_t add_held_on_the_way(explained *e, const served *s, uint64_t from, uint64_t to, uint64_t left_ns) {
    held h = {.from_ns = from, .to_ns = to, .left_ns = left_ns, .stops = true};
    h.by_cause[TW_DELAY_CPU] = h.by_cause[TW_DELAY_THROTTLED] = UINT64_MAX; /* of the thread with steps alone */
    if (s->segment == NULL || s->segment == e->g) return 0;
    for (int i = 0; i < 2; ++i, h.stops = false) {
        add_held(e, &h, s->segment, s->source);
        add_held_behind(e, &h);
    }
    const uint64_t throttled = add_throttled(e, s, throttled_in(e, s, from, to), h.left_ns);
    h.left_ns -= throttled;
    h.left_ns -= add_delayed(e, s, from, to, throttled, h.left_ns);
    return left_ns - h.left_ns;
}

/* By how much a segment of the chain is longer than before_ns, which is that of the token before, and what paused
 * elsewhere: the last of it is what the host did; of what is left is what kept the engine, where that sends (else NULL),
 * and the rest is cause. */
static void add_segment(explained *e, const served *sends, uint64_t from, uint64_t to, uint64_t before_ns, int cause) {
    const uint64_t beyond = since(since(to, from), before_ns);
    uint64_t left = add_host(e, to - beyond, to, true, cause);
    if (sends != NULL) left -= add_held_on_the_way(e, sends, to - beyond, to, left);
    add(e, cause, TW_MEASURED, 0, left);
}

static void explain_by_chain(explained *e, const tw_charge *d) {
    const tw_token_chain *t = e->w->token, *b = e->w->before;
    const tw_token_chain none = {e->w->from_ns, e->w->from_ns, e->w->from_ns};
    const bool first = b == NULL;
    const served s = engine_of(e);
    if (first) b = &none;
    const uint64_t way_ns = since(b->recv_ns, b->key_ns) + d->passing_ns;
    const uint64_t output_ns = since(b->processed_ns, b->recv_ns);
    const uint64_t own_ns = since(e->w->from_ns, most(b->processed_ns, e->w->client_before_ns));
    add_engine(e, &s, first ? e->w->from_ns + e->w->accept_ns : b->key_ns, first ? 0 : e->w->typical_ns, d);
    add_segment(e, &s, t->key_ns, t->recv_ns, way_ns, TW_DELAY_TRANSPORT);
    add_segment(e, NULL, t->recv_ns, t->processed_ns, output_ns, TW_DELAY_OUTPUT);
    const uint64_t own_from_ns = most(t->processed_ns, e->w->client_until_ns); /* until then the task waited in send() */
    add_segment(e, NULL, own_from_ns, e->w->to_ns, first ? 0 : own_ns, TW_DELAY_OWN_CODE);
}

/* ---- the sum ---- */

/* Certain parts first; what is left over is *rest. */
static void add_up(explained *e, uint64_t excess_ns, int rest, tw_parts *out) {
    tw_parts_clip(&e->certain, excess_ns);
    tw_parts_clip(&e->estimated, excess_ns - tw_parts_sum(&e->certain));
    *out = e->certain;
    for (uint32_t i = 0; i < e->estimated.n; ++i) tw_parts_add(out, &e->estimated.part[i]);
    const uint64_t left_ns = excess_ns - tw_parts_sum(out), there_ns = least(e->in_engine_ns, left_ns);
    const tw_part there = {there_ns, 0, (uint8_t)rest, TW_MEASURED, (uint8_t)e->engine, TW_DETAIL_NONE, 0};
    const tw_part here = {left_ns - there_ns, 0, (uint8_t)rest, TW_MEASURED, 0, TW_DETAIL_NONE, 0};
    tw_parts_add(out, &there);
    tw_parts_add(out, &here);
}

bool tw_wait_explain(tw_segment *g, tw_served_by by, const tw_wait *w, const tw_charge *d, bool whole, tw_parts *out) {
    explained e = {.g = g, .by = by, .w = w};
    const uint64_t excess_ns = since(tw_wait_length(w), w->typical_ns);
    const bool chained = w->token != NULL && (w->before != NULL || w->phase == TW_PHASE_TTFT);
    add(&e, TW_DELAY_CLIENT, TW_MEASURED, 0, least(w->client_ns, excess_ns));
    add(&e, TW_DELAY_ACCEPT, TW_MEASURED, 0, w->accept_ns);
    add_pauses(&e, d);
    if (whole && chained) explain_by_chain(&e, d);
    else if (whole && w->ready.known)
        explain_by_loop(&e, w->from_ns + w->typical_ns + least(most(w->client_ns, w->accept_ns), excess_ns));
    const bool upstream = whole && !chained && w->ready.known;
    add_up(&e, excess_ns, upstream ? TW_DELAY_UPSTREAM : TW_DELAY_UNEXPLAINED, out);
    return !whole || !chained || e.joined;
}

/* ---- the books ---- */

static tw_unexplained reason_of(const tw_segment *g, const tw_wait *w) {
    static const uint8_t source[] = {TW_HOST_SCHEDSTAT, TW_HOST_SYSCALL, TW_HOST_STACKS};
    if (w->track < 0) return TW_UNEXPLAINED_NO_LOOP_CLOCK;
    for (size_t i = 0; i < sizeof source; ++i)
        if (tw_load(&g->host.facts.knowledge[source[i]]) > TW_KNOWN + 1)
            return (tw_unexplained)(TW_UNEXPLAINED_NO_SCHEDSTAT + i);
    return TW_UNEXPLAINED_UNKNOWN;
}

void tw_wait_book(tw_segment *g, const tw_wait *w, const tw_parts *parts) {
    for (uint32_t i = 0; i < parts->n; ++i) {
        const tw_part *part = &parts->part[i];
        if (part->cause < TW_CAUSES) continue;
        tw_add(&g->lost[part->source].delay_ns[w->phase][part->cause][part->certainty], part->ns);
        const tw_unexplained reason = part->source == 0 ? reason_of(g, w) : TW_UNEXPLAINED_UNKNOWN; /* that lacks here */
        if (part->cause == TW_DELAY_UNEXPLAINED) tw_add(&g->unexplained_ns[w->phase][reason], part->ns);
    }
}
