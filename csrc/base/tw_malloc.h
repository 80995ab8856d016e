/* Where the core's memory comes from. Private: every allocation of the core goes through these four names.
 *
 * Compile with -DTW_MALLOC_INCLUDE="\"my_malloc.h\"" to replace them: that header must define tw_malloc,
 * tw_calloc, tw_realloc and tw_free, with the contracts of their namesakes in stdlib.h. Tests fail the n-th
 * allocation that way.
 */
#pragma once

#ifdef TW_MALLOC_INCLUDE
#include TW_MALLOC_INCLUDE
#else

#include <stdlib.h>

static inline void *tw_malloc(size_t size) { return malloc(size); }
static inline void *tw_calloc(size_t count, size_t size) { return calloc(count, size); }
static inline void *tw_realloc(void *memory, size_t size) { return realloc(memory, size); }
static inline void tw_free(void *memory) { free(memory); }

#endif
