/* All segments of a group, to be read: those of the living, of the dead that are not merged yet, and the retired
 * segments of the others (merge_dead.h).
 *
 * A reader's list. It never writes to the directory, and never trusts what it maps: a file is a member when
 * tw_segment_valid() is true and its name begins with its owner's pid and start time. A thread that changes or uses the
 * list holds the caller's own lock (the GIL); a mapping stays until the file is gone and the list has been renewed.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/segment.h"
#include "tailwatch/attribute/overlap_by_source.h"
#include "tailwatch/group/group.h"
#include "tailwatch/group/retired_segment.h"

TW_BEGIN_C

#define TW_MEMBERS 1024 /* files that are looked at; more are counted as refused */

#define TW_MEMBERS_REFUSED 64

typedef struct tw_member {
    const tw_segment *segment;
    size_t bytes;
    uint64_t copied_ns;          /* 0: the segment itself is mapped. Else it is a copy, of its file as it was last changed
                                  * then (UINT64_MAX: to be read again): a retired segment, or one whose process is in
                                  * another IPC namespace, or whose memory is gone */
    uint64_t dev, ino;           /* of its file: another of the same name is another member */
    const tw_retired_list *list; /* not NULL: it is a retired segment */
    tw_group_id id;              /* else: whose it is */
    char name[TW_GROUP_NAME];
} tw_member;

typedef struct tw_members {
    uint32_t n;
    uint64_t refused;            /* files passed over at the last renewal */
    tw_member member[TW_MEMBERS];
    uint32_t n_known;            /* files passed over that are not opened again while they stay as they are; those of the
                                  * last 10 s are, which may be half made */
    struct {
        uint64_t dev, ino, changed_ns;
    } known[TW_MEMBERS_REFUSED];
} tw_members;

/* Makes the list what the directory holds: maps what is new, unmaps what is gone, and what a retired segment holds, and
 * reads copies again that have changed. except: a file's name that is left out (one's own), or NULL. Zeroed memory is an empty list. TW_GROUP_SYSTEM when the directory
 * cannot be read; the list is then as it was. */
tw_group_problem tw_members_renew(tw_members *members, int dir, const char *except);

/* Opens also those files again that were refused before. */
void tw_members_retry(tw_members *members);

/* Sets header.ended, in the list's own view of it, where a process of another PID namespace has ended: its pid shows
 * nothing here, its lock does (member_lock.h). Part of each renewal. */
void tw_members_note_ended(tw_members *members, int dir);

/* Unmaps all. */
void tw_members_clear(tw_members *members);

/* Those whose pauses may delay streams of this process: living members whose engine is not 0, with engines as
 * tw_engines_resolve() leaves them. What tokens pass through on their way from an engine is none of them where own is
 * the engine, as its steps show. Roles become sources of own. To be asked again each second: one that is killed
 * while it collects shows for ever that it stands still. */
void tw_members_peers(const tw_members *members, tw_segment *own, tw_peer_set *peer_set);

TW_END_C
