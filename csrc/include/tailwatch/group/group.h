/* The processes of one server: a directory that they share, with one file for the segment of each.
 *
 *     DIR/PID-START-JOINED.seg   names a segment (segment.h, base/shared_memory.h) and holds a copy of it; START is field
 *                                22 of /proc/PID/stat, JOINED when it joined: a member that leaves and joins again, or
 *                                becomes another program by exec(), has another file
 *     DIR/PID-START-JOINED.trace what that process recorded (event_ring.h), where it records; it stays when the process dies
 *     DIR/PID-START-JOINED.gc    what an operator asks of its collector (tailwatch/gc/remote_commands.py)
 *     DIR/ROLE-INDEX.gone        a retired segment (retired_segment.h): the sum of the dead of that name, whose files are gone
 *     DIR/index.lock             held, by flock(), for as long as an index is given
 *     DIR/merge.tmp              a retired segment that is being made, or was when its maker died: never read
 *
 * Nothing in the directory is believed: what is not a plain file of this user, of mode 0600, with one name and the
 * size it gives, is not opened, and no file is mapped. Joining needs no lock; the dead are merged under flock() of the
 * directory; the token path reads words. Each member holds a lock on its segment's file, by which
 * processes of other PID namespaces see that it lives: member_lock.h.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/segment.h"
#include "tailwatch/base/shared_memory.h"

TW_BEGIN_C

#define TW_GROUP_INDEXES 1024 /* of a role; more have none */

/* A member's hold on its group. Zeroed memory is none. Handles cross a fork only to be left (tw_group_forget). */
typedef struct tw_group {
    int dir;              /* file descriptor, close-on-exec; also what flock() is taken on, to merge */
    uint64_t dir_dev, dir_ino; /* whose descriptor it is: a host that closes all of them may have given the number away */
    tw_segment *segment;  /* shared, until it is not any more; NULL: it is not yet */
    tw_shared shared;     /* what its file names */
    uint64_t segment_ino; /* of the file */
    void *hold;           /* a mapping of the file without access: it keeps the lock */
    char name[TW_GROUP_NAME];         /* of the file */
    char placed[TW_ROLE_WORDS * 8];   /* the role that its index is of; "": it has none */
} tw_group;

/* What became of the directory that a member holds. */
typedef enum tw_group_hold {
    TW_GROUP_HELD,
    TW_GROUP_LOST,    /* the descriptor was closed by other code, and its number may mean another file */
    TW_GROUP_REMOVED, /* it is in no file system any more */
} tw_group_hold;

/* Opens the directory, made with mode 0700 where it does not exist (its parent must). */
tw_group_problem tw_group_join(tw_group *group, const char *dir);

/* Shares this process's segment: at its address, with what it holds. Once for each member, by the thread that writes to
 * the segment; its memory, of header.bytes rounded up to whole pages, is private to the process. From then on what is
 * stamped survives the process. */
tw_group_problem tw_group_share(tw_group *group, tw_segment *segment);

/* Whether the memory is a mapped file, since the system refused another: truncating it ends this process. */
static inline bool tw_group_is_file(const tw_group *group) { return group->segment != NULL && group->shared.id == 0; }

/* Copies the segment into its file, for readers that cannot reach the memory; mends the file, or makes it again, where
 * it was overwritten or removed. About 1 ms; any thread, beside the writer. False: the file is no copy. */
bool tw_group_save(tw_group *group);

/* Gives the member, whose segment is shared, the smallest index that no living member of that role has; the one it has
 * where the role is as it was. For as long as it lives: joining, leaving or dying members change no other's. It stands
 * in header.place. patient: waits 200 ms at most for others that hold the lock, and then takes an index without it,
 * which another that comes at the same time may take too: both count under one name, and no total moves from one name
 * to another. Else than TW_GROUP_FINE (TW_GROUP_BUSY: where it is not patient): it is as it was. */
tw_group_problem tw_group_place(tw_group *group, const char *role, bool patient);

/* The reverse of tw_group_share, before tw_group_leave: the memory is the process's own again, with what it holds (kept) or
 * zeros. In a fork child, whose writes would reach its parent's segment, with zeros. 0 or ENOMEM, with which it is still
 * shared. */
int tw_group_unshare(tw_group *group, bool kept);

/* Whether the directory is still there, and the descriptor still its. *changed, if not NULL: when its entries last
 * changed, ns of CLOCK_REALTIME. */
tw_group_hold tw_group_holds(const tw_group *group, uint64_t *changed);

/* After TW_GROUP_LOST: another descriptor, if the path still leads to the same directory. */
bool tw_group_find_again(tw_group *group, const char *dir);

/* Removes the segment's file, and what it names, and closes the directory. The process's own memory stays. */
void tw_group_leave(tw_group *group);

/* The same, but the file stays: for its numbers to be merged (merge_dead.h), or, in a fork child, since it is the
 * parent's. */
void tw_group_forget(tw_group *group);

/* Which segment a file is, by its name. */
typedef struct tw_group_id { uint64_t pid, start_time, joined_ns; } tw_group_id;

/* Name of its file. out: TW_GROUP_NAME bytes. */
void tw_group_file(char *out, const tw_group_id *id);

/* false: no segment has such a name. */
bool tw_group_id_of(const char *name, tw_group_id *out);

/* Whether a file of this name may be a segment of that process. */
bool tw_group_names(const char *name, uint64_t pid, uint64_t start_time);

/* The segments in the directory, one after the other. dir: descriptor of a checked directory. For each file that wanted
 * (NULL: all are) accepts, visit is called with its name and what it names (tw_shared_open). It returns true to keep
 * that, which is then the caller's to unmap; else it is unmapped. A file that fails the checks above is passed over and
 * counted in *refused. */
typedef bool (*tw_group_wanted)(void *to, const char *name);
typedef bool (*tw_group_visit)(void *to, const char *name, const void *bytes, size_t len, bool live);
tw_group_problem tw_group_each(int dir, tw_group_wanted wanted, tw_group_visit visit, void *to, uint64_t *refused);

/* The same of the retired segments. */
tw_group_problem tw_group_each_gone(int dir, tw_group_wanted wanted, tw_group_visit visit, void *to, uint64_t *refused);

/* Opens a directory that exists, to read it: -1 and *problem where it must not be used. */
int tw_group_open_dir(const char *dir, tw_group_problem *problem);

TW_END_C
