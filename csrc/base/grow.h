/* Arrays that grow. Private. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/tw_malloc.h"

#define TW_GROW_START 64

/* Room for one more element in an array of count: *room doubles where it is used up. array: address of the pointer to the
 * elements. false: no memory, and all is as it was. */
static inline bool tw_grow(void *array, uint32_t count, uint32_t *room, size_t size) {
    void *elements;
    if (count < *room) return true;
    const uint32_t larger = *room != 0 ? *room * 2 : TW_GROW_START;
    memcpy(&elements, array, sizeof elements);
    elements = larger > *room ? tw_realloc(elements, larger * size) : NULL;
    if (elements == NULL) return false;
    memcpy(array, &elements, sizeof elements);
    *room = larger;
    return true;
}
