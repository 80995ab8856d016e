#include "tailwatch/attribute/own_work.h"

#include <string.h>

#include "tailwatch/attribute/host_split.h"
#include "tailwatch/base/atomic.h"

static void add_all(tw_parts *to, const tw_parts *parts) {
    for (uint32_t i = 0; i < parts->n; i++) tw_parts_add(to, &parts->part[i]);
}

/* Pauses are charged by themselves; what is not explained is left to the code that explains the wait. */
static void add_known(tw_parts *to, const tw_parts *parts) {
    for (uint32_t i = 0; i < parts->n; i++) {
        const tw_part *part = &parts->part[i];
        if (part->cause >= TW_CAUSES && part->cause != TW_DELAY_UNEXPLAINED) tw_parts_add(to, part);
    }
}

static void divide(tw_own_work *work, uint64_t slept_until_ns) {
    if (work->slept_until_ns == slept_until_ns) return;
    add_all(&work->before, &work->since);
    work->before_ns = work->since_ns;
    work->slept_until_ns = slept_until_ns;
    memset(&work->since, 0, sizeof work->since);
}

void tw_own_work_add(tw_own_work *work, const tw_host *host, uint32_t track, const tw_pause_clock *pauses,
                     uint64_t from_ns, uint64_t to_ns, uint64_t request) {
    tw_parts parts = {0};
    (void)tw_host_split(host, track, pauses, from_ns, to_ns, (tw_whose){request, 0}, &parts);
    divide(work, tw_load(&host->track[track].slept_until_ns));
    add_known(&work->since, &parts);
    work->since_ns = to_ns;
}

uint64_t tw_own_work_by(const tw_own_work *work, uint64_t at_ns, tw_parts *out) {
    uint64_t ns = 0;
    if (work->before_ns <= at_ns) add_all(out, &work->before), ns += tw_parts_sum(&work->before);
    if (work->since_ns <= at_ns) add_all(out, &work->since), ns += tw_parts_sum(&work->since);
    return ns;
}
