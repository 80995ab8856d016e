/* Members of a group, and directories of tests. */
#ifndef TAILWATCH_GROUP_TOOLS_H
#define TAILWATCH_GROUP_TOOLS_H

#include "tailwatch/group/group.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Shares a new segment of this role. */
static inline tw_group_problem share_segment(tw_group *group, const char *role, uint32_t label_sets) {
    tw_segment *segment;
    if (tw_segment_create(&segment, role, label_sets, false, NULL, 0) != 0) return TW_GROUP_SYSTEM;
    const tw_group_problem problem = tw_group_share(group, segment);
    if (problem != TW_GROUP_FINE) tw_segment_destroy(segment);
    return problem;
}

/* What a file names, to be written to. */
static inline tw_segment *segment_of(int dir, const char *name) {
    tw_shared shared;
    const int file = openat(dir, name, O_RDWR);
    const off_t at = lseek(file, -(off_t)sizeof shared, SEEK_END);
    const bool known = at >= 0 && pread(file, &shared, sizeof shared, at) == (ssize_t)sizeof shared;
    tw_segment *const segment = known ? tw_shared_map(&shared, file, NULL, true) : NULL;
    close(file);
    return segment;
}

/* Removes root, and what the files of dir in it name. */
static inline void remove_group(const char *root, const char *dir) {
    char command[128];
    const int fd = open(dir, O_RDONLY | O_DIRECTORY);
    if (fd >= 0) tw_shared_remove_all(fd), close(fd);
    snprintf(command, sizeof command, "rm -rf %s", root);
    if (system(command) != 0) abort();
}

#endif
