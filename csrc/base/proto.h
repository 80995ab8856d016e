/* Protobuf, as far as it is written here: varints, tags, and messages whose length is known only at their end.
 *
 * Every function writes at p and returns where it ended; the caller has made room. Private.
 */
#ifndef TAILWATCH_BASE_PROTO_H
#define TAILWATCH_BASE_PROTO_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TW_VARINT_MOST 10

enum { TW_WIRE_VARINT, TW_WIRE_FIXED64, TW_WIRE_BYTES };

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

/* A message of unknown length: its tag and one byte for the length. tw_proto_close(start, end) puts the length in and
 * moves the message where that takes more. */
static inline uint8_t *tw_proto_open(uint8_t *p, uint32_t field) { return tw_put_tag(p, field, TW_WIRE_BYTES) + 1; }

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

#endif
