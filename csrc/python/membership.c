/* How a core comes into a group, and begins anew: in a fork child, or where the group counts its numbers already.
 *
 * Joining and leaving leave the segment at its address: streams, snapshots and _cold keep theirs.
 */
#include "python/membership.h"

#include "python/group.h"
#include "python/nvtx/ranges.h"
#include "python/stall/host.h"
#include "python/stamp/engine_step.h"
#include "python/trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- the mark that a fork wipes out ---- */

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

int core_make_epoch(CoreObject *core) {
    void *page = mmap(NULL, sizeof *core->epoch, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        PyErr_NoMemory();
        return -1;
    }
    (void)madvise(page, sizeof *core->epoch, MADV_WIPEONFORK); /* a kernel without it: os.register_at_fork sees to it */
    core->epoch = page;
    *core->epoch = core->last_epoch = 1;
    return 0;
}

/* ---- beginning anew ---- */

/* The parent's segment is its own: what is written here from now on stays here. */
static void leave_parent(CoreObject *core) {
    core_group *group = core->group;
    if (group == NULL) return;
    group->left_ino = 0; /* nothing of it is left here */
    if (group->merging >= 0 && group->merger_pid != getpid()) {
        close(group->merging);
        group->merging = -1;
    }
    if (!group->joined) return;
    if (tw_group_unshare(&group->group, false) != 0) abort(); /* not even pages taken late: and never the parent's */
    group->joined = false;
    group_forget_members(group);
    tw_group_forget(&group->group);
}

void core_reborn(CoreObject *core) {
    char role[TW_ROLE_WORDS * 8];
    const tw_slo slo = core->segment->slo;
    const tw_policy_now policy = core->segment->policy.now;
    const tw_host_facts facts = core->segment->host.facts;
    const uint64_t slow_ns = core->segment->slow_ns, sets = core->segment->header.max_label_sets;
    tw_words_get(core->segment->header.role, TW_ROLE_WORDS, role);
    const bool shared = core->group != NULL && core->group->joined;
    core_forget_trace(core);
    core_host_reborn(core);
    const bool served = tw_segment_served(core->segment, tw_segment_series(core->segment, 0)) != NULL;
    leave_parent(core);
    if (shared) (void)tw_segment_create_in(core->segment, role, (uint32_t)sets, served, &slo, slow_ns);
    else tw_segment_reset(core->segment);
    core->segment->policy.now = policy; /* what the heap is, it is here too */
    core->segment->host.facts = facts;
    if (shared) core->group->orphan = true;
    *core->epoch = ++core->last_epoch;
    core_init_steps(core);
    core->gc.open = core->pass.depth = 0;
    nvtx_reborn(core);
}

/* ---- joining ---- */

static core_group *group_of(CoreObject *core) {
    if (core->group == NULL) {
        core->group = PyMem_Calloc(1, sizeof *core->group);
        if (core->group != NULL) core->group->group.dir = core->group->merging = -1;
    }
    return core->group;
}

static tw_group_problem join(CoreObject *core, core_group *group, const char *dir, uint64_t engine) {
    tw_group_problem problem = tw_group_join(&group->group, dir);
    if (problem != TW_GROUP_FINE) return problem;
    if (group->left_ino != 0 && group->left_dev == group->group.dir_dev && group->left_ino == group->group.dir_ino)
        core_reborn(core); /* the group counts already what this process left there */
    tw_store(&core->segment->header.engine, engine);
    tw_store(&core->segment->header.place, 0);
    problem = tw_group_share(&group->group, core->segment);
    if (problem != TW_GROUP_FINE) {
        const int saved = errno;
        tw_group_leave(&group->group);
        errno = saved;
        return problem;
    }
    group->joined = true;
    group->engine = engine;
    if (dir != group->dir) snprintf(group->dir, sizeof group->dir, "%s", dir);
    group_place(core, true); /* a held lock keeps no process from counting */
    (void)tw_group_save(&group->group);
    return TW_GROUP_FINE;
}

/* join(dir, engine, /) -> None, or why not: a sentence. The segment is private then. */
PyObject *core_join(PyObject *op, PyObject *args) {
    CoreObject *core = (CoreObject *)op;
    PyObject *path;
    unsigned long long engine;
    if (!PyArg_ParseTuple(args, "O&K", PyUnicode_FSConverter, &path, &engine)) return NULL;
    core_group *group = group_of(core);
    tw_group_problem problem = TW_GROUP_FINE;
    if (group != NULL && !group->joined) problem = join(core, group, PyBytes_AsString(path), engine);
    const int saved = errno;
    Py_DECREF(path);
    if (group == NULL) return PyErr_NoMemory();
    if (problem == TW_GROUP_FINE) Py_RETURN_NONE;
    return PyUnicode_FromString(problem == TW_GROUP_SYSTEM ? strerror(saved) : tw_group_problem_text(problem));
}

/* Nothing reads the list of members meanwhile: a process in no group has none. */
void core_rejoin(CoreObject *core) {
    core_group *group = core->group;
    uint64_t changed_ns;
    group->orphan = false;
    if (group->joined || join(core, group, group->dir, group->engine) != TW_GROUP_FINE) return;
    if (!group_holds(group, &changed_ns)) return;
    group_look(core, changed_ns);
    tw_members_peers(&group->members, core->segment, &group->peer_set);
}

/* ---- the end of it ---- */

void core_free_group(CoreObject *core) {
    if (core->epoch != NULL && *core->epoch == 0) core_reborn(core);
    (void)group_leave(core);
    PyMem_Free(core->group);
    core->group = NULL;
    if (core->epoch != NULL) munmap(core->epoch, sizeof *core->epoch);
    core->epoch = NULL;
}
