#include "tailwatch/base/address_set.h"

#include <string.h>

#include "base/tw_malloc.h"

#define REGION_SHIFT 20
#define REGION_BITS ((UINT64_C(1) << REGION_SHIFT) / TW_ADDRESS_UNIT)
#define REGION_BYTES (REGION_BITS / 8)
#define FEWEST_PLACES 64

static uint64_t number_of(const void *address) { return (uint64_t)(uintptr_t)address >> REGION_SHIFT; }
static uint64_t bit_of(const void *address) { return (uint64_t)(uintptr_t)address / TW_ADDRESS_UNIT % REGION_BITS; }

/* Where a region stands, or the free place where it would. */
static struct tw_region *place_of(struct tw_region *region, size_t places, uint64_t number) {
    size_t at = (size_t)(number * UINT64_C(0x9E3779B97F4A7C15) >> 20) & (places - 1);
    while (region[at].bits != NULL && region[at].number != number) at = (at + 1) & (places - 1);
    return &region[at];
}

static uint64_t *find(tw_addresses *a, uint64_t number) {
    if (a->last_bits != NULL && a->last_number == number) return a->last_bits;
    uint64_t *bits = a->places == 0 ? NULL : place_of(a->region, a->places, number)->bits;
    if (bits != NULL) a->last_number = number, a->last_bits = bits;
    return bits;
}

static bool grow(tw_addresses *a) {
    const size_t places = a->places == 0 ? FEWEST_PLACES : a->places * 2;
    struct tw_region *region = tw_calloc(places, sizeof *region);
    if (region == NULL) return false;
    for (size_t i = 0; i < a->places; ++i)
        if (a->region[i].bits != NULL) *place_of(region, places, a->region[i].number) = a->region[i];
    tw_free(a->region);
    a->region = region;
    a->places = places;
    return true;
}

static uint64_t *make(tw_addresses *a, uint64_t number) {
    if (a->regions * 2 >= a->places && !grow(a)) return NULL;
    struct tw_region *place = place_of(a->region, a->places, number);
    if ((place->bits = tw_calloc(1, REGION_BYTES)) == NULL) return NULL;
    place->number = number;
    a->regions += 1;
    a->last_number = number;
    return a->last_bits = place->bits;
}

bool tw_addresses_add(tw_addresses *a, const void *address) {
    uint64_t *bits = find(a, number_of(address));
    if (bits == NULL && (bits = make(a, number_of(address))) == NULL) return false;
    const uint64_t bit = bit_of(address), mask = UINT64_C(1) << bit % 64;
    a->count += (bits[bit / 64] & mask) == 0;
    bits[bit / 64] |= mask;
    return true;
}

bool tw_addresses_has(tw_addresses *a, const void *address) {
    const uint64_t *bits = find(a, number_of(address)), bit = bit_of(address);
    return bits != NULL && (bits[bit / 64] >> bit % 64 & 1) != 0;
}

bool tw_addresses_remove(tw_addresses *a, const void *address) {
    uint64_t *bits = find(a, number_of(address));
    const uint64_t bit = bit_of(address), mask = UINT64_C(1) << bit % 64;
    if (bits == NULL || (bits[bit / 64] & mask) == 0) return false;
    bits[bit / 64] &= ~mask;
    a->count -= 1;
    return true;
}

size_t tw_addresses_bytes(const tw_addresses *a) {
    return a->places * sizeof *a->region + a->regions * (size_t)REGION_BYTES;
}

void tw_addresses_clear(tw_addresses *a) {
    for (size_t i = 0; i < a->places; ++i) tw_free(a->region[i].bits);
    tw_free(a->region);
    memset(a, 0, sizeof *a);
}
