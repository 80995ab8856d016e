#include "tailwatch/base/buffer.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base/tw_malloc.h"

#define BUFFER_START (64u * 1024u)

void tw_buffer_free(tw_buffer *b) {
    tw_free(b->data);
    memset(b, 0, sizeof *b);
}

static bool buffer_grow(tw_buffer *b, size_t more) {
    size_t capacity = b->capacity ? b->capacity : BUFFER_START;
    while (capacity - b->length < more) {
        if (capacity > SIZE_MAX / 2) return false;
        capacity *= 2;
    }
    char *data = tw_realloc(b->data, capacity);
    if (!data) return false;
    b->data = data;
    b->capacity = capacity;
    return true;
}

bool tw_buffer_reserve(tw_buffer *b, size_t more) {
    if (b->failed) return false;
    if (b->capacity - b->length >= more || buffer_grow(b, more)) return true;
    b->failed = ENOMEM;
    return false;
}

void tw_buffer_put(tw_buffer *b, const void *bytes, size_t n) {
    if (n == 0 || !tw_buffer_reserve(b, n)) return;
    memcpy(b->data + b->length, bytes, n);
    b->length += n;
}
