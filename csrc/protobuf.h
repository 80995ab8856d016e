/* Protocol buffers, written: what OTLP needs of them. Private.
 *
 * A message inside another is opened, filled and closed: its length is put before it then, and what is in it moves up.
 * So the bytes are those that any other writer makes of the same fields, in the order of their numbers.
 */
#ifndef TAILWATCH_PROTOBUF_H
#define TAILWATCH_PROTOBUF_H

#include "tailwatch/exposition.h"
#include "tw_malloc.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define TW_PB_VARINT_ROOM 10

typedef enum tw_pb_wire { TW_PB_VARINT = 0, TW_PB_FIXED64 = 1, TW_PB_BYTES = 2 } tw_pb_wire;

static inline bool tw_pb_reserve(tw_buffer *b, size_t more) {
    if (b->failed) return false;
    if (b->capacity - b->length >= more) return true;
    size_t capacity = b->capacity ? b->capacity : (size_t)64 * 1024;
    while (capacity - b->length < more) capacity *= 2;
    char *data = tw_realloc(b->data, capacity);
    if (data == NULL) {
        b->failed = ENOMEM;
        return false;
    }
    b->data = data;
    b->capacity = capacity;
    return true;
}

static inline size_t tw_pb_varint_at(char *at, uint64_t value) {
    size_t n = 0;
    for (; value >= 0x80; value >>= 7) at[n++] = (char)(value | 0x80);
    at[n++] = (char)value;
    return n;
}

static inline void tw_pb_varint(tw_buffer *b, uint64_t value) {
    if (tw_pb_reserve(b, TW_PB_VARINT_ROOM)) b->length += tw_pb_varint_at(b->data + b->length, value);
}

static inline void tw_pb_key(tw_buffer *b, uint32_t field, tw_pb_wire wire) { tw_pb_varint(b, (uint64_t)field << 3 | wire); }

static inline void tw_pb_raw(tw_buffer *b, const void *bytes, size_t n) {
    if (n == 0 || !tw_pb_reserve(b, n)) return;
    memcpy(b->data + b->length, bytes, n);
    b->length += n;
}

/* The machines this runs on store words as the wire has them. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian");
static inline void tw_pb_word(tw_buffer *b, uint64_t value) { tw_pb_raw(b, &value, sizeof value); }

static inline void tw_pb_fixed64(tw_buffer *b, uint32_t field, uint64_t value) {
    tw_pb_key(b, field, TW_PB_FIXED64);
    tw_pb_word(b, value);
}

static inline void tw_pb_double(tw_buffer *b, uint32_t field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    tw_pb_fixed64(b, field, bits);
}

static inline void tw_pb_uint(tw_buffer *b, uint32_t field, uint64_t value) {
    tw_pb_key(b, field, TW_PB_VARINT);
    tw_pb_varint(b, value);
}

/* sint32 */
static inline void tw_pb_signed(tw_buffer *b, uint32_t field, int32_t value) {
    tw_pb_uint(b, field, (uint32_t)value << 1 ^ (uint32_t)(value < 0 ? -1 : 0));
}

static inline void tw_pb_bytes(tw_buffer *b, uint32_t field, const void *bytes, size_t n) {
    tw_pb_key(b, field, TW_PB_BYTES);
    tw_pb_varint(b, n);
    tw_pb_raw(b, bytes, n);
}

/* Returns where it begins, for tw_pb_close(). */
static inline size_t tw_pb_open(tw_buffer *b, uint32_t field) {
    tw_pb_key(b, field, TW_PB_BYTES);
    return b->length;
}

static inline void tw_pb_close(tw_buffer *b, size_t begin) {
    char length[TW_PB_VARINT_ROOM];
    if (b->failed) return;
    const size_t body = b->length - begin, n = tw_pb_varint_at(length, body);
    if (!tw_pb_reserve(b, n)) return;
    memmove(b->data + begin + n, b->data + begin, body);
    memcpy(b->data + begin, length, n);
    b->length += n;
}

#endif
