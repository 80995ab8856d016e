/* Merging the files of exited processes into retired segments (retired_segment.h).
 *
 * Any member may merge, under flock() of the directory, without waiting for it; processes that only read never do. The
 * retired segment and the dead segment are summed into DIR/merge.tmp, which is renamed over the retired segment; then the
 * dead segment's file is removed, and what the process recorded is copied into its .trace file. If the merging process dies in between, one of these is left:
 *
 *     merge.tmp                     not read by any process; the next merge replaces it
 *     a retired segment that lists a file that still exists: readers pass over that file, the next merge removes it
 *
 * So nothing is lost or counted twice: a reader looks for segments first, for retired segments afterwards, and passes over
 * a segment that is listed. (The list has TW_RETIRED_NAMES files: a reader that pauses between its two looks while as many
 * are merged may count one twice, in that one result.)
 *
 * A segment is dead if its process has certainly ended (tw_process_ended), if it is marked (tw_mark_ended), or if it is what
 * this process was before an exec(). A process of another pid namespace is dead when its lock is gone (member_lock.h);
 * segments of another boot are left. Without room for a retired segment the files stay and count as they are. A file
 * whose process died before anything was written to it is removed.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/group/group.h"

TW_BEGIN_C

/* Merges at most so many dead segments; returns how many. dir: descriptor of a checked directory, on which this process
 * holds no lock. Copies megabytes, allocates; any thread, also beside the writer of this process. */
uint32_t tw_merge_dead(int dir, uint32_t most);

/* Marks the segment of this member as ended, though its process lives, and copies it into its file: the caller then takes
 * its memory back (tw_group_unshare). Nothing happens where it shares none. */
void tw_mark_ended(tw_group *group);

TW_END_C
