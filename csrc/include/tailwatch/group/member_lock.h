/* The lock that a member holds on its segment's file for as long as it has a mapping of it, which nothing accesses:
 * whether it lives, for readers that cannot ask.
 *
 * A pid means something in its own PID namespace only. Containers that share /dev/shm have one each, so a member of
 * another namespace is judged by its lock and never by its pid: the file's inode is the same for both.
 *
 * The lock belongs to the open file (F_OFD_SETLK), and the mapping holds that open file: the kernel removes the lock
 * when the last mapping and the last descriptor of it are gone. So no descriptor is kept, and a host that closes all
 * descriptors does not lose it, as it would lose a lock of the process (F_SETLK), which any close() of the file in the
 * process removes. The lock ends with the process, with exec(), and with tw_group_unshare(). A fork child maps the file
 * too, until core_reborn() or exec(): until then its parent may seem to live, which only delays what is done for the
 * dead. F_OFD_GETLK asks without taking: a question disturbs nothing, and a descriptor to read suffices; flock() has no
 * such question.
 *
 * A kernel or sandbox without such locks: the segment's header.locked stays 0, and its process counts as living for
 * other namespaces.
 */
#ifndef TAILWATCH_GROUP_MEMBER_LOCK_H
#define TAILWATCH_GROUP_MEMBER_LOCK_H

#include "tailwatch/record/segment.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tw_member_end {
    TW_MEMBER_LIVES,           /* or may live */
    TW_MEMBER_ENDED,           /* certain: a process of this PID namespace, or it recorded its end itself */
    TW_MEMBER_ENDED_ELSEWHERE, /* its file has no mapping any more: of another PID namespace, or an unknown one */
} tw_member_end;

/* Takes the lock for the open file; it must be open to write, and be mapped before it is closed. false: there is none. */
bool tw_member_lock(int file);

/* Whether a segment's process has ended, by its header and by its file, open to read. */
tw_member_end tw_member_end_of(const tw_header *header, int file);

/* The same of the file of that name. dir: descriptor of a checked directory. What is no segment of this version may
 * live. */
tw_member_end tw_member_end_in(int dir, const char *name);

#ifdef __cplusplus
}
#endif
#endif
