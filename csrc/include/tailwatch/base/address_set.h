/* A set of addresses of objects, one bit for 16 bytes of address space: which objects were frozen.
 *
 * Two levels: a hash table of regions of 1 MiB, each with 8 KiB of bits once it holds an address. 2.5 million objects in
 * 300 MB take 2.5 MB. Thread rule: one user at a time (the holder of the GIL). Nothing here fails but by memory.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

#define TW_ADDRESS_UNIT 16 /* objects of CPython are aligned to this */

typedef struct tw_addresses {
    struct tw_region { uint64_t number, *bits; } *region; /* open addressing; bits NULL: a free place */
    size_t places, regions;                               /* places: 0 or a power of two, at most half of it in use */
    uint64_t last_number, *last_bits;                     /* the region looked at last, NULL: none */
    size_t count;                                         /* addresses in the set */
} tw_addresses;

/* All zeros is the empty set. */

/* Takes an address in. Addresses in the same 16 bytes are the same. false: no memory, and the set is as it was. */
bool tw_addresses_add(tw_addresses *a, const void *address);

/* Whether it is in it. Changes nothing but last_*. */
bool tw_addresses_has(tw_addresses *a, const void *address);

/* Takes it out. Whether it was in. */
bool tw_addresses_remove(tw_addresses *a, const void *address);

/* Bytes that it takes beside itself. */
size_t tw_addresses_bytes(const tw_addresses *a);

/* Empties it and gives its memory back. */
void tw_addresses_clear(tw_addresses *a);

TW_END_C
