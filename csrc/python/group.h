/* The group of a core: other processes' segments, and its own as one of theirs. */
#pragma once

#include "python/core.h"

#include <limits.h>

#include "tailwatch/group/member_list.h"

#define CORE_SERVING 64 /* more are not counted in a stream's concurrency */

/* Made at the first join and kept for as long as the process lives: streams hold the address of its peer_set. */
typedef struct core_group {
    tw_group group;
    bool joined;
    bool unsettled;      /* a file was not what it should be, or the directory's time is too new to show what it holds */
    bool unplaced;       /* it has no index for its role yet: others held the lock */
    int merging;         /* a descriptor of the directory while one of our threads merges; -1: none does */
    pid_t merger_pid;        /* whose thread that is: not a fork child's */
    uint64_t left_dev, left_ino; /* the directory that has this segment's numbers already; 0: none */
    bool orphan;         /* a fork child that has not joined yet, as its parent had */
    uint64_t engine;       /* as header.engine; also of a fork child that joins */
    uint64_t renewed_ns; /* the directory's time at the last look; 0: none yet */
    char dir[PATH_MAX];
    tw_peer_set peer_set;
    uint32_t n_serving;  /* the living others that have served requests, as of the last renewal */
    const tw_segment *serving[CORE_SERVING];
    tw_members members;
} core_group;

/* Another role has another index: given now, or by the next renew(); patient: after a wait for others. */
void group_place(CoreObject *core, bool patient);

/* Whether the directory can be looked into; *changed_ns: when its entries last changed. */
bool group_holds(core_group *group, uint64_t *changed_ns);

/* Reads the directory. Each file that cannot be read any more is a drop. */
void group_look(CoreObject *core, uint64_t changed_ns);

void group_forget_members(core_group *group);

/* ENOMEM: it is still in. */
int group_leave(CoreObject *core);

/* Number of the label set with these names, as of tw_segment_label. */
uint32_t core_label(CoreObject *core, const char *model, size_t model_len, const char *route, size_t route_len);

/* Another descriptor of its directory, the caller's to close; -1: it is not there any more. */
int group_descriptor(const core_group *group);

PyObject *core_leave(PyObject *op, PyObject *unused);
PyObject *core_set_engine(PyObject *op, PyObject *engine);
PyObject *core_renew(PyObject *op, PyObject *unused);
PyObject *core_save(PyObject *op, PyObject *unused);
PyObject *core_merge_dead(PyObject *op, PyObject *unused);
PyObject *core_load(PyObject *op, PyObject *unused);
PyObject *core_members(PyObject *op, PyObject *unused);
PyObject *core_refused(PyObject *op, void *unused);
PyObject *core_joined(PyObject *op, void *unused);
PyObject *core_file(PyObject *op, void *unused);
PyObject *core_maps_file(PyObject *op, void *unused);
PyObject *core_peers(PyObject *op, PyObject *unused);
PyObject *core_shares_engine(PyObject *op, void *unused);

/* group_load() -> (running, in flight, serving): requests of this process and of the others, and how many processes these are. */
PyObject *core_set_front(PyObject *op, PyObject *unused);
/* Whether a process of the group that lives stamps requests, as its app or its code by hand does. */
bool core_has_front(const CoreObject *core);
PyObject *core_group_load(PyObject *op, PyObject *unused);

/* Streams in flight in the other processes that share an engine with this one. */
static inline uint64_t core_others_in_flight(const CoreObject *core) {
    uint64_t in_flight = 0;
    if (core->group == NULL || tw_load(&core->segment->ttft_by_concurrency.shared) == 0) return 0;
    for (uint32_t i = 0; i < core->group->n_serving; i++) in_flight += tw_load(&core->group->serving[i]->in_flight);
    return in_flight;
}

/* Whether this process or another one of its group, as of the last renewal, has had a request. */
static inline bool core_has_served(const CoreObject *core) {
    return tw_load(&core->segment->opened) > 0 || (core->group != NULL && core->group->n_serving > 0);
}

static inline const tw_peer_set *core_peer_set(const CoreObject *core) { return core->group == NULL ? NULL : &core->group->peer_set; }
