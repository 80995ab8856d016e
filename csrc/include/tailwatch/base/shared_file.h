/* Files that the processes of one server share. None of them is followed or believed: what is not a plain file of this
 * user, of mode 0600, with one name, is not opened.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

#define TW_GROUP_ROOM (2U << 20) /* bytes that members leave free in the file system, so that the dead can be merged */
#define TW_GROUP_NAME 80 /* of a segment's file, NUL included */

/* Why a directory, or a file in it, was not used. */
typedef enum tw_group_problem {
    TW_GROUP_FINE,
    TW_GROUP_SYSTEM,      /* see errno */
    TW_GROUP_NOT_OURS,    /* the directory, or a file in it, belongs to another user */
    TW_GROUP_LINK,        /* it is a symbolic link, or a file in it has two names */
    TW_GROUP_OPEN,        /* others may write to it, or could put another in its place */
    TW_GROUP_NO_DIR,      /* it is no directory */
    TW_GROUP_FOREIGN,     /* the page is none, or of another version of tailwatch, or of before a reboot */
    TW_GROUP_FULL,        /* no line is free, or no room for the file */
    TW_GROUP_BUSY,        /* others are joining; it is worth another try */
    TW_GROUP_PROBLEMS
} tw_group_problem;

/* A sentence for each, without the directory's name. */
const char *tw_group_problem_text(tw_group_problem problem);

/* The problem that errno means. */
tw_group_problem tw_file_problem(void);

/* Whether an open file is one that may be used; *status: what fstat() found. */
struct stat;
tw_group_problem tw_file_check(int file, struct stat *status);

/* A new file of two parts, one after the other; where that fails none stays behind. */
tw_group_problem tw_file_write(int dir, const char *name, const void *first, size_t first_len, const void *second,
                               size_t second_len);

/* Whether so many bytes fit into the file system of dir, and leave TW_GROUP_ROOM. */
bool tw_file_fits(int dir, size_t bytes);

TW_END_C
