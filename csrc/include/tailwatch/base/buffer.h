/* Bytes that grow: what renderers append to. Cold path only: allocates. One thread at a time. */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stddef.h>

TW_BEGIN_C

/* Starts as zeros. */
typedef struct tw_buffer {
    char *data;
    size_t length, capacity;
    int failed;                /* ENOMEM once an append could not grow; later appends do nothing */
} tw_buffer;

/* Gives the memory back; the buffer is empty then. */
void tw_buffer_free(tw_buffer *b);

/* Makes room for so many more bytes at data + length. false: there is no memory, now or earlier. */
bool tw_buffer_reserve(tw_buffer *b, size_t more);

/* Appends n bytes, all or none. */
void tw_buffer_put(tw_buffer *b, const void *bytes, size_t n);

TW_END_C
