/* Protobuf as it is written here: fields at a pointer, or appended to a tw_buffer. Private.
 *
 * A message inside another is opened with one byte of room for its length and moved when that turns out to need more:
 * every length is as short as it can be, and nothing is measured beforehand.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tailwatch/base/buffer.h"

#define TW_VARINT_MOST 10

enum { TW_WIRE_VARINT, TW_WIRE_FIXED64, TW_WIRE_BYTES };

/* ---- at a pointer: each returns where it ended; the caller has made room ---- */

static inline uint8_t *tw_put_varint(uint8_t *p, uint64_t value) {
    while (value >= 0x80) {
        *p++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *p++ = (uint8_t)value;
    return p;
}

/* A field's number and wire type. With constants the compiler makes one or two stores of it. */
static inline uint8_t *tw_put_tag(uint8_t *p, uint32_t field, uint32_t wire) {
    return tw_put_varint(p, field << 3 | wire);
}

static inline uint8_t *tw_put_uint(uint8_t *p, uint32_t field, uint64_t value) {
    return tw_put_varint(tw_put_tag(p, field, TW_WIRE_VARINT), value);
}

static inline uint8_t *tw_put_fixed64(uint8_t *p, uint32_t field, uint64_t value) {
    p = tw_put_tag(p, field, TW_WIRE_FIXED64);
    for (int i = 0; i < 8; i++) p[i] = (uint8_t)(value >> (8 * i));
    return p + 8;
}

static inline uint8_t *tw_put_bytes(uint8_t *p, uint32_t field, const void *bytes, size_t len) {
    p = tw_put_varint(tw_put_tag(p, field, TW_WIRE_BYTES), len);
    if (len != 0) memcpy(p, bytes, len);
    return p + len;
}

static inline uint8_t *tw_proto_open(uint8_t *p, uint32_t field) { return tw_put_tag(p, field, TW_WIRE_BYTES) + 1; }

/* start: where the message begins, behind its length. */
static inline uint8_t *tw_proto_close(uint8_t *start, uint8_t *end) {
    const size_t len = (size_t)(end - start);
    if (__builtin_expect(len < 0x80, 1)) {
        start[-1] = (uint8_t)len;
        return end;
    }
    uint8_t prefix[TW_VARINT_MOST];
    const size_t more = (size_t)(tw_put_varint(prefix, len) - prefix) - 1;
    memmove(start + more, start, len);
    memcpy(start - 1, prefix, more + 1);
    return end + more;
}

/* sint32 and sint64. */
static inline uint64_t tw_zigzag(int64_t value) { return (uint64_t)value << 1 ^ (value < 0 ? UINT64_MAX : 0); }

/* ---- appended to a buffer ---- */

static inline void tw_pb_varint(tw_buffer *b, uint64_t value) {
    if (!tw_buffer_reserve(b, TW_VARINT_MOST)) return;
    b->length = (size_t)((char *)tw_put_varint((uint8_t *)b->data + b->length, value) - b->data);
}

static inline void tw_pb_tag(tw_buffer *b, uint32_t field, uint32_t wire) { tw_pb_varint(b, field << 3 | wire); }

static inline void tw_pb_uint(tw_buffer *b, uint32_t field, uint64_t value) {
    tw_pb_tag(b, field, TW_WIRE_VARINT);
    tw_pb_varint(b, value);
}

static inline void tw_pb_sint(tw_buffer *b, uint32_t field, int64_t value) { tw_pb_uint(b, field, tw_zigzag(value)); }

static inline void tw_pb_fixed64(tw_buffer *b, uint32_t field, uint64_t value) {
    uint8_t bytes[TW_VARINT_MOST + 8];
    tw_buffer_put(b, bytes, (size_t)(tw_put_fixed64(bytes, field, value) - bytes));
}

static inline void tw_pb_double(tw_buffer *b, uint32_t field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    tw_pb_fixed64(b, field, bits);
}

static inline void tw_pb_bytes(tw_buffer *b, uint32_t field, const void *bytes, size_t n) {
    tw_pb_tag(b, field, TW_WIRE_BYTES);
    tw_pb_varint(b, n);
    tw_buffer_put(b, bytes, n);
}

static inline void tw_pb_text(tw_buffer *b, uint32_t field, const char *text) {
    tw_pb_bytes(b, field, text, strlen(text));
}

/* A length without a field number: what a stream of messages has before each. Returns what tw_pb_close() needs. */
static inline size_t tw_pb_open_delimited(tw_buffer *b) {
    const size_t at = b->length;
    tw_buffer_put(b, "", 1);
    return at;
}

static inline size_t tw_pb_open(tw_buffer *b, uint32_t field) {
    tw_pb_tag(b, field, TW_WIRE_BYTES);
    return tw_pb_open_delimited(b);
}

static inline void tw_pb_close(tw_buffer *b, size_t at) {
    if (!tw_buffer_reserve(b, TW_VARINT_MOST)) return;
    uint8_t *data = (uint8_t *)b->data;
    b->length = (size_t)(tw_proto_close(data + at + 1, data + b->length) - data);
}
