/* What the dead of a group leave behind: their files are folded into retired segments (retired_segment.h) and removed.
 *
 * Any member may, under flock() of the directory, which is not waited for; who only reads never does. One fold: the old
 * retired segment of that name and the dead segment are summed into DIR/fold.tmp, that is renamed over the old retired, and
 * the segment's file is removed. Whoever dies in between leaves one of
 *
 *     fold.tmp                      nobody reads it, and the next to fold makes it anew;
 *     a retired segment that lists a file that still stands: readers pass over that file, the next to fold removes it.
 *
 * So nothing is ever lost or counted twice: a reader looks for segments first and for retired segments afterwards. A segment
 * that is folded in between is then seen both ways, and passed over because it is listed; one that was folded before is
 * only seen in its retired segment, which has been there since before the segment went. (A list remembers TW_RETIRED_NAMES
 * files: a reader that stands still between the two looks while that many are folded may count one twice, in that one
 * answer.)
 *
 * Dead is whose process has certainly ended (tw_process_ended), who said so itself (tw_fold_end), and what this very
 * process was before an exec(). A process of another pid namespace is dead when its lock is gone (member_lock.h); what another boot
 * wrote is left as it is. Where there is no room for a retired segment the files stay, and count, as they are. A file whose maker died
 * before there was anything in it is removed.
 */
#ifndef TAILWATCH_GROUP_MERGE_DEAD_H
#define TAILWATCH_GROUP_MERGE_DEAD_H

#include "tailwatch/group/group.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Folds at most so many of the dead into their retired segments. Returns how many. dir: descriptor of a checked directory, on
 * which this process holds no lock. Copies megabytes, allocates; any thread, also beside the writer of this process. */
uint32_t tw_fold(int dir, uint32_t most);

/* The caller writes no more to the file of this member, though it lives: it has taken its memory back
 * (tw_group_unshare), and keeps it out of what it says here. Nothing happens where there is no file. */
void tw_fold_end(const tw_group *group);

#ifdef __cplusplus
}
#endif
#endif
