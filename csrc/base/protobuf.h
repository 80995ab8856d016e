/* Protobuf fields appended to a tw_buffer. Private, for the cold path only.
 *
 * A message inside another is opened with one byte of room for its length and moved when that turns out to need more:
 * every length is as short as it can be, and nothing is measured beforehand.
 */
#ifndef TAILWATCH_BASE_PROTOBUF_H
#define TAILWATCH_BASE_PROTOBUF_H

#include <stdint.h>
#include <string.h>

#include "tailwatch/base/buffer.h"

enum tw_pb_wire { TW_PB_VARINT = 0, TW_PB_FIXED64 = 1, TW_PB_BYTES = 2 };

#define TW_PB_VARINT_ROOM 10

static inline size_t tw_pb_varint_write(char *at, uint64_t value) {
    size_t n = 0;
    for (; value >= 0x80; value >>= 7) at[n++] = (char)(value | 0x80);
    at[n++] = (char)value;
    return n;
}

static inline void tw_pb_varint(tw_buffer *b, uint64_t value) {
    if (!tw_buffer_reserve(b, TW_PB_VARINT_ROOM)) return;
    b->length += tw_pb_varint_write(b->data + b->length, value);
}

static inline void tw_pb_tag(tw_buffer *b, uint32_t field, enum tw_pb_wire wire) {
    tw_pb_varint(b, (uint64_t)field << 3 | (uint64_t)wire);
}

static inline void tw_pb_uint(tw_buffer *b, uint32_t field, uint64_t value) {
    tw_pb_tag(b, field, TW_PB_VARINT);
    tw_pb_varint(b, value);
}

/* sint32 and sint64. */
static inline uint64_t tw_pb_zigzag(int64_t value) { return (uint64_t)value << 1 ^ (value < 0 ? UINT64_MAX : 0); }

static inline void tw_pb_sint(tw_buffer *b, uint32_t field, int64_t value) { tw_pb_uint(b, field, tw_pb_zigzag(value)); }

static inline void tw_pb_fixed64(tw_buffer *b, uint32_t field, uint64_t value) {
    char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (char)(value >> 8 * i);
    tw_pb_tag(b, field, TW_PB_FIXED64);
    tw_buffer_put(b, bytes, sizeof bytes);
}

static inline void tw_pb_double(tw_buffer *b, uint32_t field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    tw_pb_fixed64(b, field, bits);
}

static inline void tw_pb_bytes(tw_buffer *b, uint32_t field, const void *bytes, size_t n) {
    tw_pb_tag(b, field, TW_PB_BYTES);
    tw_pb_varint(b, n);
    tw_buffer_put(b, bytes, n);
}

static inline void tw_pb_text(tw_buffer *b, uint32_t field, const char *text) { tw_pb_bytes(b, field, text, strlen(text)); }

/* A length without a field number: what a stream of messages has before each. Returns what tw_pb_close() wants. */
static inline size_t tw_pb_open_delimited(tw_buffer *b) {
    const size_t at = b->length;
    tw_buffer_put(b, "", 1);
    return at;
}

static inline size_t tw_pb_open(tw_buffer *b, uint32_t field) {
    tw_pb_tag(b, field, TW_PB_BYTES);
    return tw_pb_open_delimited(b);
}

static inline void tw_pb_close(tw_buffer *b, size_t at) {
    char length[TW_PB_VARINT_ROOM];
    if (b->failed) return;
    const size_t body = b->length - at - 1, n = tw_pb_varint_write(length, body);
    if (!tw_buffer_reserve(b, n - 1)) return;
    if (n > 1) memmove(b->data + at + n, b->data + at + 1, body);
    memcpy(b->data + at, length, n);
    b->length += n - 1;
}

#endif
