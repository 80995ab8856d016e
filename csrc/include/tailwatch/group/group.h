/* The processes of one server: a directory that they share, the page on which each says when it last stood still,
 * and one file for the segment of each.
 *
 *     DIR/page                   tw_group_page: a line for each process
 *     DIR/PID-START-JOINED.seg   a segment (segment.h); START is field 22 of /proc/PID/stat, JOINED the line's joined_ns:
 *                                who leaves and joins again, or becomes another program by exec(), has another file
 *     DIR/PID-START-JOINED.trace what that process recorded (event_ring.h), where it records; it stays when the process dies
 *     DIR/PID-START-JOINED.gc    what an operator asks of its collector (tailwatch/gc/remote_commands.py)
 *     DIR/ROLE-INDEX.gone        a retired segment (retired_segment.h): the sum of the dead of that name, whose files are gone
 *     DIR/merge.tmp              a retired segment that is being made, or was when its maker died: nobody reads it
 *
 * Nothing in the directory is believed: what is not a plain file of this user, of mode 0600, with one name and the
 * size it says, is not opened. Files are made O_EXCL and their blocks allocated before they are mapped, so that a full
 * tmpfs is an error here and never a SIGBUS later. A segment's file holds the label sets in use and grows with them; its
 * readers map its whole future length at once and read no more than series_count says: what lies beyond the end of the
 * file turns valid as it grows. Changes of who is in the group are made under flock() of the directory; the token path
 * reads words. Each member holds a lock on its segment's file, by which processes of other PID namespaces see that it
 * lives: member_lock.h.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/base/shared_file.h"

TW_BEGIN_C

#define TW_GROUP_MAGIC UINT64_C(0x3150554f52475754) /* "TWGROUP1" */
#define TW_GROUP_VERSION 2
#define TW_GROUP_LINES 255

/* One process, on a cache line of its own: its pauses are looked for at every token of the others. */
typedef struct tw_group_line {
    uint64_t stop_ns;    /* as its tw_pause_clock.last_stop_ns; 0 until it first pauses: who joins has no past */
    uint64_t pid;        /* 0: the line is free */
    uint64_t start_time; /* field 22 of /proc/PID/stat: tells a reused pid apart */
    uint64_t engine;     /* the engine it works for, whose streams its pauses may delay; 0: no engine */
    uint64_t joined_ns;  /* monotonic; in the name of its segment's file */
    uint64_t image;      /* tw_process_image(): exec() keeps pid and start time */
    uint64_t place;      /* role and index, as tw_group_place gave them; 0: none yet */
    uint64_t pid_namespace; /* of pid: in another one its file's lock tells whether it lives: member_lock.h */
} tw_group_line;

typedef struct tw_group_page {
    uint64_t magic, version, bytes;
    uint64_t boot_id[2];
    uint64_t lines;      /* 1 + the largest line ever taken; release-stored after the line is written */
    uint64_t spare[2];
    tw_group_line line[TW_GROUP_LINES];
} tw_group_page;

/* A member's hold on its group. Zeroed memory is none. Handles cross a fork only to be left (tw_group_forget). */
typedef struct tw_group {
    int dir;              /* file descriptor, close-on-exec; also what flock() is taken on */
    uint32_t at;          /* this process's line */
    uint64_t dir_dev, dir_ino; /* whose descriptor it is: a host that closes all of them may have given the number away */
    tw_group_page *page;  /* shared mapping, until the group is left */
    void *segment;        /* where its segment's file is mapped; NULL until it has one */
    size_t segment_bytes; /* of the file: whole pages */
    uint64_t segment_ino;
    bool locked;          /* whether that file is (member_lock.h), from tw_group_share on */
    char name[TW_GROUP_NAME]; /* of that file */
} tw_group;

/* What became of the directory that a member holds. */
typedef enum tw_group_hold {
    TW_GROUP_HELD,
    TW_GROUP_LOST,    /* the descriptor was closed by somebody else, and its number may mean another file */
    TW_GROUP_REMOVED, /* it is in no file system any more */
} tw_group_hold;

/* Opens the directory, made with mode 0700 where it does not exist (its parent must), and the page, and takes a line
 * for this process: one that is free, or whose owner is dead and whose segment is gone. Waits 20 ms at most for others
 * who join, then says TW_GROUP_BUSY. A page whose maker died before it was whole is made anew. */
tw_group_problem tw_group_join(tw_group *group, const char *dir, uint64_t engine);

/* Gives the member the smallest index that no living member of that role has; the one it has where the role is as it
 * was. For as long as it lives: who comes, goes or dies changes nobody else's. patient: waits as tw_group_join does.
 * Else than TW_GROUP_FINE: *index is as it was. */
tw_group_problem tw_group_place(tw_group *group, const char *role, bool patient, uint32_t *index);

/* Makes the file of this process's segment. The bytes at the address (private to the process, rounded up to whole
 * pages) become that file, with what they hold: addresses stay what they were. Once for each member, by the thread
 * that writes to the segment. */
tw_group_problem tw_group_share(tw_group *group, void *memory, size_t bytes);

/* Lengthens the file to so many bytes, rounded up to whole pages: the memory that follows at the address given to
 * tw_group_share, reserved by the caller and not written to yet, becomes its new pages. Nothing is done where they are
 * enough already. Else than TW_GROUP_FINE: it is as it was. The thread that writes must be the one that calls. */
tw_group_problem tw_group_grow(tw_group *group, size_t bytes);

/* The reverse, before tw_group_leave: the memory is the process's own again, with what it holds (kept) or zeros. In a fork
 * child, whose writes would reach its parent's file, with zeros. 0 or ENOMEM, with which it is still shared. */
int tw_group_unshare(tw_group *group, bool kept);

/* Whether the directory is still there, and the descriptor still its. *changed, if not NULL: when its entries last
 * changed, ns of CLOCK_REALTIME. */
tw_group_hold tw_group_holds(const tw_group *group, uint64_t *changed);

/* After TW_GROUP_LOST: another descriptor, if the path still leads to the same directory. */
bool tw_group_find_again(tw_group *group, const char *dir);

/* Gives the line back, removes the segment's file, closes the directory, unmaps the page: nobody may hold an address of
 * it. The segment's memory stays. */
void tw_group_leave(tw_group *group);

/* The same, but the file stays, for its numbers to be merged (merge_dead.h). */
void tw_group_part(tw_group *group);

/* In a fork child: lets go of the parent's group without touching its line or file. The page is unmapped. */
void tw_group_forget(tw_group *group);

/* Says on the page when this process last stood still, or that it does. One store. */
static inline void tw_group_publish(tw_group *group, uint64_t last_stop_ns) {
    __atomic_store_n(&group->page->line[group->at].stop_ns, last_stop_ns, __ATOMIC_RELAXED);
}

/* Lines of the page that were ever taken; at most TW_GROUP_LINES, whatever the page says. */
uint32_t tw_group_lines(const tw_group *group);

/* Name of the file of a line's segment. out: TW_GROUP_NAME bytes. */
void tw_group_file(char *out, const tw_group_line *line);

/* Which segment a file is, as its name says. */
typedef struct tw_group_id { uint64_t pid, start_time, joined_ns; } tw_group_id;

/* false: no segment has such a name. */
bool tw_group_id_of(const char *name, tw_group_id *out);

/* Whether a file of this name may be a segment of that process. */
bool tw_group_names(const char *name, uint64_t pid, uint64_t start_time);

/* The segments in the directory, one after the other. dir: descriptor of a checked directory. For each file that wanted
 * (NULL: all are) says yes to, visit is called with its name, a read-only mapping of all its bytes and their number. It
 * returns true to keep the mapping, which is then the caller's; else it is unmapped. A file that fails the checks above
 * is passed over and counted in *refused. */
typedef bool (*tw_group_wanted)(void *to, const char *name);
typedef bool (*tw_group_visit)(void *to, const char *name, const void *bytes, size_t len);
tw_group_problem tw_group_each(int dir, tw_group_wanted wanted, tw_group_visit visit, void *to, uint64_t *refused);

/* The same of the retired segments. */
tw_group_problem tw_group_each_gone(int dir, tw_group_wanted wanted, tw_group_visit visit, void *to, uint64_t *refused);

/* Opens a directory that exists, to read it: -1 and *problem where it must not be used. */
int tw_group_open_dir(const char *dir, tw_group_problem *problem);

TW_END_C
