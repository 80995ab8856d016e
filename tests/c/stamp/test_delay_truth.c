/* What pauses are charged, against the truth of a simulation in virtual time: a loop that sends tokens as an engine
 * elsewhere makes them, with and without the same pauses.
 *
 * TW_DELAY_TABLE=FILE: writes the table of all cells there, as JSON (benchmarks/results/delay_truth.json).
 */
#include <sys/syscall.h>
#include <unistd.h>

#include "tailwatch/attribute/engine_id.h"
#include "tailwatch/stamp/stream.h"
#include "tw_test.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define TOKENS 2000
#define PAUSE_EVERY 40 /* tokens */
#define SEND_NS (100 * US)

typedef enum law { FIXED, GAUSS_10, GAUSS_25, LOGNORMAL, EXPONENTIAL, LONG_5, LONG_25, TWO, THREE, DRIFT, LAWS } law;
static const char *const LAW[] = {"fixed", "gauss 10 %", "gauss 25 %", "lognormal", "exponential", "5 % long gaps",
                                  "25 % long gaps", "2 messages a step", "3 messages a step", "drift"};

/* What the process has of when a token was ready: the loop slept; it was busy; it has no clock. */
typedef enum knowledge { SLEPT, BUSY, NO_CLOCK, KNOWLEDGES } knowledge;
static const char *const KNOWLEDGE[] = {"known", "busy loop", "no clock"};

typedef struct cell {
    law law;
    knowledge knowledge;
    uint64_t pause_ns;
    bool hidden;
} cell;

typedef struct outcome {
    uint64_t booked_ns, true_ns, overlap_ns;
} outcome;

static double uniform(uint64_t *random) { return ((double)(tw_test_random(random) >> 11) + 0.5) * 0x1p-53; }
static double normal(uint64_t *random) { return sqrt(-2 * log(uniform(random))) * cos(6.283185307179586 * uniform(random)); }

/* The gap before token i, ms; 10 on average, more with long gaps. */
static double gap_of(law law, uint64_t i, uint64_t *random) {
    switch (law) {
    case GAUSS_10: return 10 + normal(random);
    case GAUSS_25: return fmax(1, 10 + 2.5 * normal(random));
    case LOGNORMAL: return 10 * exp(0.5 * normal(random) - 0.125);
    case EXPONENTIAL: return -10 * log(uniform(random));
    case LONG_5: return uniform(random) < 0.05 ? 40 : 10;
    case LONG_25: return uniform(random) < 0.25 ? 40 : 10;
    case TWO: return i % 2 == 0 ? 19.8 : 0.2;
    case THREE: return i % 3 == 0 ? 29.6 : 0.2;
    case DRIFT: return 10 + 5 * (double)i / TOKENS;
    default: return 10;
    }
}

/* One stream of a process that is not the engine. */
typedef struct rig {
    tw_segment *g;
    tw_pause_clock engine;
    uint64_t engine_stop_ns;
    tw_peer_set peers;
    tw_stream stream;
    int track;
} rig;

static rig *make_rig(knowledge known) {
    rig *r = calloc(1, sizeof *r);
    TW_REQUIRE(r != NULL && tw_segment_create(&r->g, "api", 2, false, NULL, 0) == 0);
    r->peers.n = 1;
    r->peers.peer[0] = (tw_peer){&r->engine, TW_ENGINE_NUMBER, 1};
    r->peers.stop_ns[0] = &r->engine_stop_ns;
    if (known != NO_CLOCK) r->track = tw_host_take(&r->g->host, (uint64_t)syscall(SYS_gettid));
    tw_stream_open(&r->stream, r->g, MS, MS, 0, TW_ARRIVAL_ASGI);
    tw_stream_join(&r->stream, &r->peers, TW_ENGINE_NUMBER);
    return r;
}

static void free_rig(rig *r) {
    tw_segment_destroy(r->g);
    free(r);
}

static void set_clock(rig *r, knowledge known, uint64_t slept_until, uint64_t wake) {
    if (known == NO_CLOCK) return;
    tw_store(&r->g->host.track[r->track].slept_until_ns, slept_until);
    tw_store(&r->g->host.track[r->track].wake_ns, wake);
}

/* A pause before token i, which is ready at ready: in its way, or over before it. Returns when it ends. */
static uint64_t pause_before(rig *r, const cell *c, uint64_t sent, uint64_t ready, uint64_t *random) {
    const uint64_t into = (uint64_t)(uniform(random) * (double)c->pause_ns / 2);
    const uint64_t before = ready > sent + into ? ready - into : sent;
    const uint64_t from = (c->hidden ? sent + 200 * US : before) & ~UINT64_C(1), to = from + c->pause_ns;
    tw_pause_begin(&r->g->pause, TW_CAUSE_GC2, from);
    tw_segment_pause_end(r->g, to, NULL);
    return to;
}

static outcome simulate(const cell *c) {
    rig *r = make_rig(c->knowledge);
    uint64_t random = 7 + (uint64_t)c->law, ready = 10 * MS, sent = 0, alone = 0;
    outcome o = {0, 0, 0};
    for (uint64_t i = 0; i < TOKENS; ++i) {
        const bool paused = i > 100 && i % PAUSE_EVERY == 0;
        uint64_t gap = (uint64_t)(gap_of(c->law, i, &random) * 1e6), paused_until = 0;
        if (paused && c->hidden && gap < c->pause_ns + 3 * MS) gap = c->pause_ns + 3 * MS;
        ready += gap;
        const uint64_t slept = ready > sent ? ready : sent;
        if (paused) paused_until = pause_before(r, c, sent, ready, &random);
        const uint64_t free_at = paused_until > sent ? paused_until : sent, woke = ready > free_at ? ready : free_at;
        const uint64_t last = sent, last_alone = alone;
        sent = woke + SEND_NS;
        alone = (ready > alone ? ready : alone) + SEND_NS;
        if (c->knowledge == BUSY && paused && !c->hidden) set_clock(r, BUSY, last, woke);
        else set_clock(r, c->knowledge, slept, slept);
        tw_stream_token(&r->stream, sent, 1, 0);
        const uint64_t with = sent - last, without = alone - last_alone;
        if (i > 0 && with > without) o.true_ns += with - without;
    }
    o.booked_ns = r->stream.delay_ns;
    o.overlap_ns = r->stream.overlap_ns;
    free_rig(r);
    return o;
}

static void check(const cell *c, const outcome *o) {
    TW_CHECK(o->booked_ns <= o->overlap_ns);
    if (c->knowledge == SLEPT) {
        TW_CHECK((double)o->booked_ns >= 0.9 * (double)o->true_ns);
        TW_CHECK((double)o->booked_ns <= 1.1 * (double)o->true_ns + (c->hidden ? (double)MS : 0));
    }
}

static void write_row(FILE *table, const cell *c, const outcome *o, bool last) {
    fprintf(table,
            "  {\"gaps\": \"%s\", \"ready\": \"%s\", \"pause_ms\": %.0f, \"pauses\": \"%s\", \"said_s\": %.4f, "
            "\"true_s\": %.4f, \"overlap_s\": %.4f}%s\n",
            LAW[c->law], KNOWLEDGE[c->knowledge], (double)c->pause_ns / 1e6, c->hidden ? "hidden" : "in the way",
            (double)o->booked_ns / 1e9, (double)o->true_ns / 1e9, (double)o->overlap_ns / 1e9, last ? "" : ",");
}

TW_TEST(delay_by_pauses_is_true_where_readiness_is_known_and_bounded_where_not) {
    static const uint64_t lengths[] = {3 * MS, 10 * MS, 100 * MS, 400 * MS};
    const char *path = getenv("TW_DELAY_TABLE");
    FILE *table = path != NULL ? fopen(path, "w") : NULL;
    const int cells = LAWS * KNOWLEDGES * 4 * 2;
    if (table != NULL) fprintf(table, "[\n");
    for (int i = 0; i < cells; ++i) {
        const cell c = {(law)(i / 24), (knowledge)(i / 8 % KNOWLEDGES), lengths[i / 2 % 4], i % 2 == 1};
        const outcome o = simulate(&c);
        check(&c, &o);
        if (table != NULL) write_row(table, &c, &o, i + 1 == cells);
    }
    if (table != NULL) fprintf(table, "]\n");
    if (table != NULL) TW_CHECK_EQ(0, fclose(table));
}
