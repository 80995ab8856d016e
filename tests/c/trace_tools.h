/* Trace files with any events in them, and timelines that are kept in memory. */
#ifndef TAILWATCH_TESTS_C_TRACE_TOOLS_H
#define TAILWATCH_TESTS_C_TRACE_TOOLS_H

#include "tailwatch/record/event_recorder.h"
#include "tailwatch/trace/trace_export.h"

#include "tw_test.h"

typedef struct made_trace {
    void *memory;
    size_t bytes;
    tw_recorder recorder;
    tw_trace trace;
} made_trace;

static inline void made_begin(made_trace *m, const char *role, uint64_t pid, uint64_t events) {
    tw_header owner;
    memset(&owner, 0, sizeof owner);
    owner.pid = pid;
    owner.place = 1;
    tw_words_set(owner.role, TW_ROLE_WORDS, role, strlen(role));
    m->bytes = tw_trace_bytes(events, 2);
    m->memory = aligned_alloc(64, (m->bytes + 63) / 64 * 64);
    TW_REQUIRE(m->memory != NULL);
    memset(m->memory, 0, m->bytes);
    TW_REQUIRE(tw_recorder_begin(&m->recorder, m->memory, events, 2, &owner, 7));
}

/* One event, in a ring. */
static inline void made_put(made_trace *m, uint32_t ring, uint64_t at, tw_kind kind, uint32_t a, uint32_t b, uint32_t c,
                            uint64_t id, uint64_t value) {
    tw_ring_put(&m->recorder.of[ring], at, tw_what(kind, a, b, c), id, value);
}

static inline const tw_trace *made_open(made_trace *m) {
    TW_REQUIRE(tw_trace_open(m->memory, m->bytes, &m->trace));
    return &m->trace;
}

static inline void made_free(made_trace *m) { free(m->memory); }

/* ---- a timeline in memory ---- */

typedef struct kept_bytes {
    uint8_t *bytes;
    size_t len, room, largest, chunks;
    size_t most;                /* then the writing fails; 0: never */
} kept_bytes;

static inline bool keep_bytes(void *to, const void *bytes, size_t len) {
    kept_bytes *k = (kept_bytes *)to;
    if (k->most != 0 && k->len + len > k->most) return false;
    if (k->room - k->len < len) {
        k->room = 2 * (k->len + len);
        k->bytes = (uint8_t *)realloc(k->bytes, k->room);
        TW_REQUIRE(k->bytes != NULL);
    }
    memcpy(k->bytes + k->len, bytes, len);
    k->len += len;
    k->chunks++;
    if (len > k->largest) k->largest = len;
    return true;
}

/* Exports to memory, and counts what came. */
static inline int export_kept(const tw_trace *const *files, size_t n, int format, kept_bytes *out, tw_trace_account *account) {
    tw_timeline *t;
    TW_REQUIRE(tw_timeline_create(&t, format, keep_bytes, out) == 0);
    const int error = tw_trace_export(t, files, n, 0, INT64_MAX, account);
    const int written = tw_timeline_finish(t);
    TW_CHECK_EQ(out->len, written == 0 ? tw_timeline_bytes(t) : out->len);
    tw_timeline_free(t);
    return error != 0 ? error : written;
}

/* ---- as much of protobuf as is needed to see that a file is whole ---- */

static inline bool take_varint(const uint8_t **p, const uint8_t *end, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 70 && *p < end; shift += 7) {
        const uint8_t byte = *(*p)++;
        *out |= (uint64_t)(byte & 0x7f) << (shift < 64 ? shift : 63);
        if (byte < 0x80) return true;
    }
    return false;
}

/* Steps over one field: its number, and where its bytes are (a varint's value is in *len). 0: it is none. */
static inline uint32_t take_field(const uint8_t **p, const uint8_t *end, const uint8_t **bytes, uint64_t *len) {
    uint64_t tag;
    if (!take_varint(p, end, &tag)) return 0;
    *bytes = *p;
    switch (tag & 7) {
    case 0: return take_varint(p, end, len) ? (uint32_t)(tag >> 3) : 0;
    case 1: *len = 8; break;
    case 2:
        if (!take_varint(p, end, len)) return 0;
        *bytes = *p;
        break;
    default: return 0;
    }
    if ((uint64_t)(end - *p) < *len) return 0;
    *p += *len;
    return (uint32_t)(tag >> 3);
}

/* Packets of a Perfetto file with this field; SIZE_MAX: it is broken. field 0: all. */
static inline size_t count_packets(const kept_bytes *k, uint32_t field) {
    size_t found = 0;
    const uint8_t *p = k->bytes, *end = k->bytes + k->len;
    while (p < end) {
        const uint8_t *packet, *inner;
        uint64_t len, inner_len;
        if (take_field(&p, end, &packet, &len) != 1) return SIZE_MAX;
        bool has = field == 0;
        for (const uint8_t *q = packet; q < packet + len;) {
            const uint32_t number = take_field(&q, packet + len, &inner, &inner_len);
            if (number == 0) return SIZE_MAX;
            has = has || number == field;
        }
        found += has;
    }
    return found;
}

/* Whether braces, brackets and quotes of a JSON text pair, and it holds no control character. */
static inline bool is_paired_json(const kept_bytes *k) {
    char open[64];
    size_t depth = 0;
    bool text = false;
    for (size_t i = 0; i < k->len; i++) {
        const char c = (char)k->bytes[i];
        if (text) {
            if (c == '\\') i++;
            else if (c == '"') text = false;
            if ((uint8_t)c < 0x20) return false;
        } else if (c == '"') text = true;
        else if (c == '{' || c == '[') {
            if (depth == sizeof open) return false;
            open[depth++] = c;
        } else if ((c == '}' || c == ']') && (depth == 0 || open[--depth] != (c == '}' ? '{' : '['))) return false;
    }
    return depth == 0 && !text;
}

#endif
