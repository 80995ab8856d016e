/* Memory that the processes of one server share, and that outlives them. A file names it, and holds a copy.
 *
 * A process that may write to a file may truncate it, and an access behind its end is death by SIGBUS. So nothing is
 * accessed through a mapping of a file: the memory is a System V segment, which has a number instead of a file. Nothing
 * can shorten it, it stays when its processes are killed, and it counts against no limit of /dev/shm. The file that
 * names it is read and never mapped:
 *
 *     [0, bytes)    a copy of the memory, as old as the last tw_shared_save(); pages of zeros, and what was never saved,
 *                   are holes
 *     [bytes, end)  a tw_shared: which segment it is
 *
 * A reader that shares the directory but not the IPC namespace, or comes when the memory is gone, reads the copy.
 * Whatever is done to the file costs at most what it holds. Where the system refuses such segments (a seccomp filter, a
 * sandbox, their number: kernel.shmmni), the file itself is mapped, as tw_shared.id shows, and truncating it is then
 * death.
 *
 * Segments whose file is gone, and that no process is attached to, are removed by tw_shared_remove_dead().
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/base/shared_file.h"

TW_BEGIN_C

#define TW_SHARED_MAGIC UINT64_C(0x31304d4853215754) /* "TW!SHM01" */

typedef struct tw_shared {
    uint64_t magic;
    uint64_t bytes;         /* of the memory: whole pages */
    uint64_t id;            /* 1 + the segment's identifier; 0: the file is the memory */
    uint64_t made_s;        /* the segment's change time: an identifier is used again, also after a reboot */
    uint64_t ipc_namespace; /* in which the identifier means something */
    uint64_t spare[3];
} tw_shared;

/* Makes memory of so many bytes, rounded up to whole pages, that begins with used bytes of content, and after that the
 * file that names it, without a copy yet. dir: descriptor of its directory. *file: a descriptor of the file, open to
 * write, the caller's to close. Where it fails nothing stays behind. */
tw_group_problem tw_shared_make(int dir, const char *name, const void *content, size_t used, size_t bytes,
                                tw_shared *out, int *file);

/* Another file of that name, for the same memory: the first one was removed. -1: it cannot be made. */
int tw_shared_name(int dir, const char *name, const tw_shared *shared);

/* The memory, mapped; munmap() gives it back. at: NULL, or where it takes the place of what is mapped there, at one
 * instant. file: of its name. NULL: it is not there, or not of this IPC namespace. */
void *tw_shared_map(const tw_shared *shared, int file, void *at, bool to_write);

/* Copies used bytes of the memory into the file, if it has room for them; false: it had none. A reader takes nothing for a
 * copy before its first word, which is written last. */
bool tw_shared_save(int file, const tw_shared *shared, const void *memory, size_t used);

/* The file names no memory any more, and is its last copy: no process comes to use the memory. */
bool tw_shared_unname(int file, const tw_shared *shared);

/* Nothing writes to the memory any more: all of it is copied into the file, which is then the only copy. Where the file
 * has no room, both stay as they are. */
void tw_shared_settle(int dir, const char *name);

/* What a file names, to be read: *live, or a copy as the file holds it, which is the reader's own memory. A file that
 * names no memory is such a copy itself. munmap(*out, *bytes) gives it back. */
tw_group_problem tw_shared_open(int dir, const char *name, void **out, size_t *bytes, bool *live);

/* Removes a file, and the memory that it names; mappings of it stay. False: the file is still there. */
bool tw_shared_remove(int dir, const char *name);

/* Removes the memory that the files of a directory name: before the directory is removed. */
void tw_shared_remove_all(int dir);

/* Removes this user's segments that no process is attached to and no file names any more. Returns how many. A file that
 * was made in another mount namespace cannot be looked for: it counts as there for a day after the last process let go. */
uint32_t tw_shared_remove_dead(void);

TW_END_C
