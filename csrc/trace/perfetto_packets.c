/* A timeline as Perfetto's TracePackets.
 *
 * Each sequence has an incremental clock (64): a packet holds the ns since the one before it. Its zero is tied to a clock
 * of the file's own (128), and that once to MONOTONIC: snapshots of MONOTONIC itself may then stand anywhere in the file
 * in their own order. A point older than the newest of its sequence is written in MONOTONIC, and moves nothing. */
#include "trace/track_parts.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/protobuf.h"
#include "base/tw_malloc.h"

enum { /* fields of Trace, TracePacket */
    TRACE_PACKET = 1,
    PACKET_CLOCK_SNAPSHOT = 6,
    PACKET_TIMESTAMP = 8,
    PACKET_SEQUENCE = 10,
    PACKET_TRACK_EVENT = 11,
    PACKET_INTERNED = 12,
    PACKET_FLAGS = 13,
    PACKET_CLOCK = 58,
    PACKET_DEFAULTS = 59,
    PACKET_TRACK = 60,
};
enum { FLAG_CLEARED = 1, FLAG_NEEDED = 2 };
enum { EVENT_CATEGORY = 3, EVENT_ANNOTATION = 4, EVENT_TYPE = 9, EVENT_NAME = 10, EVENT_TRACK = 11, EVENT_COUNT = 30,
       EVENT_COUNT_DOUBLE = 44, EVENT_FLOW = 47, EVENT_FLOW_END = 48 };
enum { TRACK_UUID = 1, TRACK_NAME = 2, TRACK_PROCESS = 3, TRACK_THREAD = 4, TRACK_PARENT = 5, TRACK_COUNTER = 8,
       TRACK_ORDERING = 11, TRACK_RANK = 12 };
enum { CLOCK_BUILTIN_REALTIME = 1, CLOCK_BUILTIN_MONOTONIC = 3, CLOCK_BUILTIN_RAW = 5, CLOCK_BUILTIN_BOOTTIME = 6,
       CLOCK_OF_SEQUENCE = 64, CLOCK_OF_FILE = 128 };
enum { ORDERING_EXPLICIT = 3 };

static const uint32_t interned_field[TW_INTERNS] = {1, 2, 3, 29};

/* How a number of a name differs from that of a sequence: iids start at 1. Track 1 has uuid 1. Sequence ids too. */
static uint8_t *put_sequence(uint8_t *p, uint32_t sequence) { return tw_put_uint(p, PACKET_SEQUENCE, sequence + 1); }

/* ---- clocks ---- */

static uint8_t *put_clock(uint8_t *p, uint64_t id, uint64_t value, bool incremental) {
    uint8_t *clock = p = tw_proto_open(p, 1);
    p = tw_put_uint(p, 1, id);
    p = tw_put_uint(p, 2, value);
    if (incremental) p = tw_put_uint(p, 3, 1);
    return tw_proto_close(clock, p);
}

/* The file's first packet: its own clock is MONOTONIC, and so is the trace's time. */
void tw_packets_start(tw_timeline *t) {
    uint8_t *p = tw_timeline_room(t, TW_TIMELINE_HEADROOM);
    if (p == NULL) return;
    uint8_t *packet = p = tw_proto_open(p, TRACE_PACKET);
    p = put_sequence(p, 0);
    uint8_t *snapshot = p = tw_proto_open(p, PACKET_CLOCK_SNAPSHOT);
    p = put_clock(p, CLOCK_BUILTIN_MONOTONIC, 0, false);
    p = put_clock(p, CLOCK_OF_FILE, 0, false);
    p = tw_put_uint(p, 2, CLOCK_BUILTIN_MONOTONIC);
    p = tw_proto_close(snapshot, p);
    t->at = tw_proto_close(packet, p);
}

static void put_snapshot(tw_timeline *t, const tw_clock_snapshot *of) {
    static const struct { uint32_t ours, theirs; } clocks[] = {{TW_CLOCK_MONOTONIC, CLOCK_BUILTIN_MONOTONIC},
                                                               {TW_CLOCK_RAW, CLOCK_BUILTIN_RAW},
                                                               {TW_CLOCK_REALTIME, CLOCK_BUILTIN_REALTIME},
                                                               {TW_CLOCK_BOOTTIME, CLOCK_BUILTIN_BOOTTIME}};
    uint8_t *p = tw_timeline_room(t, TW_TIMELINE_HEADROOM);
    if (p == NULL) return;
    uint8_t *packet = p = tw_proto_open(p, TRACE_PACKET);
    p = tw_put_uint(p, PACKET_TIMESTAMP, of->at[TW_CLOCK_MONOTONIC]);
    p = tw_put_uint(p, PACKET_CLOCK, CLOCK_BUILTIN_MONOTONIC);
    p = put_sequence(p, 0);
    uint8_t *snapshot = p = tw_proto_open(p, PACKET_CLOCK_SNAPSHOT);
    for (size_t i = 0; i < sizeof clocks / sizeof *clocks; i++)
        p = put_clock(p, clocks[i].theirs, of->at[clocks[i].ours], false);
    p = tw_put_uint(p, 2, CLOCK_BUILTIN_MONOTONIC);
    p = tw_proto_close(snapshot, p);
    t->at = tw_proto_close(packet, p);
}

void tw_packets_clocks(tw_timeline *t, const tw_clock_snapshot *snapshots, size_t n) {
    uint64_t last_ns = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t at = snapshots[i].at[TW_CLOCK_MONOTONIC];
        bool fine = at > last_ns; /* the trace's own clock never goes back */
        for (int clock = 0; clock < TW_CLOCK_TSC; clock++) fine = fine && snapshots[i].at[clock] >> 63 == 0;
        if (!fine) continue;
        put_snapshot(t, &snapshots[i]);
        last_ns = at;
    }
}

/* ---- sequences ---- */

static void start_sequence(tw_timeline *t, uint32_t number) {
    uint8_t *p = tw_timeline_room(t, TW_TIMELINE_HEADROOM);
    if (p == NULL) return;
    uint8_t *packet = p = tw_proto_open(p, TRACE_PACKET);
    p = put_sequence(p, number);
    p = tw_put_uint(p, PACKET_FLAGS, FLAG_CLEARED);
    uint8_t *snapshot = p = tw_proto_open(p, PACKET_CLOCK_SNAPSHOT);
    p = put_clock(p, CLOCK_OF_SEQUENCE, 0, true);
    p = put_clock(p, CLOCK_OF_FILE, 0, false);
    p = tw_proto_close(snapshot, p);
    uint8_t *defaults = p = tw_proto_open(p, PACKET_DEFAULTS);
    p = tw_put_uint(p, PACKET_CLOCK, CLOCK_OF_SEQUENCE);
    p = tw_proto_close(defaults, p);
    t->at = tw_proto_close(packet, p);
    t->sequence[number].started = true;
    t->sequence[number].last_ns = 0;
}

static bool known(const tw_timeline_sequence_state *s, int kind, uint32_t name) {
    return name / 64 < s->words[kind] && (s->known[kind][name / 64] >> (name % 64) & 1) != 0;
}

/* Marks a name as sent. false: no memory. */
static bool learn(tw_timeline *t, tw_timeline_sequence_state *s, int kind, uint32_t name) {
    const uint32_t word = name / 64;
    if (word >= s->words[kind]) {
        const uint32_t words = word + 1 > 2 * s->words[kind] ? word + 1 : 2 * s->words[kind];
        uint64_t *larger = tw_realloc(s->known[kind], words * sizeof *larger);
        if (larger == NULL) return t->error = ENOMEM, false;
        memset(larger + s->words[kind], 0, (words - s->words[kind]) * sizeof *larger);
        s->known[kind] = larger;
        s->words[kind] = words;
    }
    s->known[kind][word] |= UINT64_C(1) << (name % 64);
    return true;
}

/* ---- tracks ---- */

static uint8_t *put_name(const tw_timeline *t, uint8_t *p, uint32_t field, uint32_t name) {
    size_t len;
    const char *text = tw_timeline_text_of(t, name, &len);
    return tw_put_bytes(p, field, text, len);
}

static uint8_t *put_process_or_thread(const tw_timeline *t, uint8_t *p, const tw_track *track) {
    const bool thread = track->kind == TW_TRACK_THREAD;
    uint8_t *described = p = tw_proto_open(p, thread ? TRACK_THREAD : TRACK_PROCESS);
    p = tw_put_uint(p, 1, (uint64_t)track->pid);
    if (thread) p = tw_put_uint(p, 2, (uint64_t)track->tid);
    if (track->name != 0) p = put_name(t, p, thread ? 5 : 6, track->name);
    return tw_proto_close(described, p);
}

static uint8_t *put_counter(const tw_timeline *t, uint8_t *p, const tw_track *track) {
    uint8_t *counter = p = tw_proto_open(p, TRACK_COUNTER);
    if (track->unit != 0) p = put_name(t, p, 6, track->unit);
    return tw_proto_close(counter, p);
}

void tw_packets_track(tw_timeline *t, uint32_t number, const tw_track *track) {
    size_t name_len = 0, unit_len = 0;
    if (track->name != 0) tw_timeline_text_of(t, track->name, &name_len);
    if (track->unit != 0) tw_timeline_text_of(t, track->unit, &unit_len);
    uint8_t *p = tw_timeline_room(t, TW_TIMELINE_HEADROOM + name_len + unit_len);
    if (p == NULL) return;
    uint8_t *packet = p = tw_proto_open(p, TRACE_PACKET);
    p = put_sequence(p, 0);
    uint8_t *described = p = tw_proto_open(p, PACKET_TRACK);
    p = tw_put_uint(p, TRACK_UUID, number);
    if (track->parent != 0) p = tw_put_uint(p, TRACK_PARENT, track->parent);
    if (track->kind == TW_TRACK_PROCESS || track->kind == TW_TRACK_THREAD) p = put_process_or_thread(t, p, track);
    else if (track->name != 0) p = put_name(t, p, TRACK_NAME, track->name);
    if (track->kind == TW_TRACK_COUNTER) p = put_counter(t, p, track);
    if (track->kind != TW_TRACK_COUNTER) p = tw_put_uint(p, TRACK_ORDERING, ORDERING_EXPLICIT);
    if (track->rank != 0) p = tw_put_uint(p, TRACK_RANK, track->rank);
    p = tw_proto_close(described, p);
    t->at = tw_proto_close(packet, p);
}

/* ---- points ---- */

/* Sends a name in a packet of its own, before the point that uses it. */
static void send_name(tw_timeline *t, uint32_t sequence, int kind, uint32_t name) {
    size_t len;
    tw_timeline_text_of(t, name, &len);
    uint8_t *p = tw_timeline_room(t, TW_TIMELINE_HEADROOM + len);
    if (p == NULL || !learn(t, &t->sequence[sequence], kind, name)) return;
    uint8_t *packet = p = tw_proto_open(p, TRACE_PACKET);
    p = put_sequence(p, sequence);
    p = tw_put_uint(p, PACKET_FLAGS, FLAG_NEEDED);
    uint8_t *interned = p = tw_proto_open(p, PACKET_INTERNED);
    uint8_t *entry = p = tw_proto_open(p, interned_field[kind]);
    p = tw_put_uint(p, 1, name);
    p = put_name(t, p, 2, name);
    p = tw_proto_close(entry, p);
    p = tw_proto_close(interned, p);
    t->at = tw_proto_close(packet, p);
}

static inline void need_name(tw_timeline *t, uint32_t sequence, int kind, uint32_t name) {
    if (name != 0 && __builtin_expect(!known(&t->sequence[sequence], kind, name), 0))
        send_name(t, sequence, kind, name);
}

static uint8_t *put_arg(uint8_t *p, const tw_arg *arg) {
    static const uint8_t field[TW_ARG_KINDS] = {3, 4, 5, 2, 17};
    uint8_t *annotation = p = tw_proto_open(p, EVENT_ANNOTATION);
    p = tw_put_uint(p, 1, arg->name);
    if (arg->kind == TW_ARG_DOUBLE) p = tw_put_fixed64(p, field[arg->kind], arg->value);
    else p = tw_put_uint(p, field[arg->kind], arg->kind == TW_ARG_BOOL ? arg->value != 0 : arg->value);
    return tw_proto_close(annotation, p);
}

static uint8_t *put_parts(uint8_t *p, const tw_point *point, const tw_arg *args, const uint64_t *flows) {
    for (uint32_t i = 0; i < point->args; i++) p = put_arg(p, &args[i]);
    for (uint32_t i = 0; i < point->starts; i++) p = tw_put_fixed64(p, EVENT_FLOW, flows[i]);
    for (uint32_t i = 0; i < point->ends; i++) p = tw_put_fixed64(p, EVENT_FLOW_END, flows[point->starts + i]);
    return p;
}

static uint8_t *put_count(uint8_t *p, const tw_point *point) {
    if (point->type == TW_POINT_COUNTER) return tw_put_uint(p, EVENT_COUNT, point->value);
    double value;
    memcpy(&value, &point->value, sizeof value);
    return tw_put_fixed64(p, EVENT_COUNT_DOUBLE, isfinite(value) ? point->value : 0);
}

static uint8_t *put_event(uint8_t *p, const tw_point *point, const tw_arg *args, const uint64_t *flows) {
    uint8_t *event = p = tw_proto_open(p, PACKET_TRACK_EVENT);
    p = tw_put_uint(p, EVENT_TYPE, point->type < TW_POINT_COUNTER ? point->type : TW_POINT_COUNTER);
    p = tw_put_uint(p, EVENT_TRACK, point->track);
    if (point->name != 0) p = tw_put_uint(p, EVENT_NAME, point->name);
    if (point->category != 0) p = tw_put_uint(p, EVENT_CATEGORY, point->category);
    if (point->type >= TW_POINT_COUNTER) p = put_count(p, point);
    if (point->args + point->starts + point->ends != 0) p = put_parts(p, point, args, flows);
    return tw_proto_close(event, p);
}

static inline uint8_t *put_time(tw_timeline_sequence_state *s, uint8_t *p, uint64_t at_ns) {
    if (__builtin_expect(at_ns < s->last_ns, 0)) {
        p = tw_put_uint(p, PACKET_TIMESTAMP, at_ns);
        return tw_put_uint(p, PACKET_CLOCK, CLOCK_BUILTIN_MONOTONIC);
    }
    p = tw_put_uint(p, PACKET_TIMESTAMP, at_ns - s->last_ns);
    s->last_ns = at_ns;
    return p;
}

void tw_packets_point(tw_timeline *t, const tw_point *point, const tw_arg *args, const uint64_t *flows) {
    const uint32_t number = t->row[point->track].sequence;
    if (__builtin_expect(!t->sequence[number].started, 0)) start_sequence(t, number);
    need_name(t, number, TW_INTERN_NAME, point->name);
    need_name(t, number, TW_INTERN_CATEGORY, point->category);
    for (uint32_t i = 0; i < point->args; i++) {
        need_name(t, number, TW_INTERN_ARG, args[i].name);
        if (args[i].kind == TW_ARG_NAME) need_name(t, number, TW_INTERN_TEXT, (uint32_t)args[i].value);
    }
    uint8_t *p = tw_timeline_room(t, TW_TIMELINE_HEADROOM + 32 * (size_t)point->args +
                                         16 * ((size_t)point->starts + point->ends));
    if (p == NULL) return;
    uint8_t *packet = p = tw_proto_open(p, TRACE_PACKET);
    p = put_time(&t->sequence[number], p, point->at_ns);
    p = put_sequence(p, number);
    p = tw_put_uint(p, PACKET_FLAGS, FLAG_NEEDED);
    p = put_event(p, point, args, flows);
    t->at = tw_proto_close(packet, p);
}
