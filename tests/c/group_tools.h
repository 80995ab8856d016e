/* A member of a group with a segment of zeros. */
#ifndef TAILWATCH_GROUP_TOOLS_H
#define TAILWATCH_GROUP_TOOLS_H

#include "tailwatch/group/group.h"

#include <sys/mman.h>

static inline tw_group_problem share_zeros(tw_group *group, size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return TW_GROUP_SYSTEM;
    const tw_group_problem problem = tw_group_share(group, memory, bytes);
    if (problem != TW_GROUP_FINE) munmap(memory, bytes);
    return problem;
}

#endif
