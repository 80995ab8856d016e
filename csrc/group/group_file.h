/* Files of a group's directory, as every part of the core opens them: checked, and none of them followed or believed. */
#ifndef TAILWATCH_GROUP_GROUP_FILE_H
#define TAILWATCH_GROUP_GROUP_FILE_H

#include "tailwatch/group/group.h"

/* *out: the whole file, mapped, where it is a plain file of this user, mode 0600, with one name, and not empty. */
tw_group_problem tw_group_open_file(int dir, const char *name, bool to_write, void **out, size_t *bytes);

/* A new file of that many zeros, mapped; none stays behind where that fails. */
tw_group_problem tw_group_make_file(int dir, const char *name, size_t bytes, void **out);

/* Whether so many bytes fit into the file system of dir, and leave TW_GROUP_ROOM. */
bool tw_group_leaves_room(int dir, size_t bytes);

#endif
