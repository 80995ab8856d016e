/* The clock of a libuv loop: uvloop's object calls epoll_pwait() through a slot of its own, which is made to call us.
 *
 * libuv runs what reads and writes inside its wait for events: handles before and after it would take that for waiting.
 */
#pragma once

#include "python/stall/host.h"

/* Times the waits of the loop with this descriptor; clock: as begun. path: of the object that polls it. -1: its slot
 * is not found, or cannot be written. Under the GIL. */
int poll_slot_follow(const char *path, int descriptor, const loop_clock *clock);

/* No longer; the slot has what it had once no loop is followed, unless other code has changed it since. Under the GIL.
 * */
void poll_slot_leave(int descriptor);
