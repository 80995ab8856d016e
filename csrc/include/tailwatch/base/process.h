/* Which process is which: a pid is used again, a pid with its start time is not, until the next boot.
 *
 * Reads /proc without stdio, so nothing is allocated: also for a fork child. Any thread.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stdint.h>

TW_BEGIN_C

/* When the process started, in clock ticks since boot (field 22 of /proc/PID/stat); 0: there is none. A zombie has
 * ended: 0. About 3 us. */
uint64_t tw_process_start_time(uint64_t pid);

/* Whether the process with this pid and start time lives. */
bool tw_process_lives(uint64_t pid, uint64_t start_time);

/* Whether it is certain that that process has ended: a process that cannot be asked about, or whose first thread ended
 * before the others, may live. For one of the same pid namespace. */
bool tw_process_ended(uint64_t pid, uint64_t start_time);

/* The pid namespace in which this process has its number; 0: not known, or /proc is that of another one. */
uint64_t tw_process_namespace(void);

/* Names the program that this process runs: exec() keeps pid and start time, and changes this. A fork child has its
 * parent's. */
uint64_t tw_process_image(void);

/* The kernel's identity since it booted; zeros where it is not known. */
void tw_boot_id(uint64_t id[2]);

TW_END_C
