/* A core's part in a group: its segment becomes a file that others map, and theirs are mapped here.
 *
 * Joining and leaving leave the segment at its address: streams, snapshots and _cold keep theirs. What is here runs when
 * a process starts, forks or ends, and once a second; a token only reads what it left.
 */
#include "hot_group.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

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

/* ---- the members' list ---- */

static void forget_members(core_group *group) {
    group->company.n = 0;
    tw_members_clear(&group->members);
    memset(&group->renewed, 0, sizeof group->renewed);
}

/* Whether files came or went since the last look: a directory's time changes with its entries. */
static int has_changed(core_group *group) {
    struct stat s;
    if (fstat(group->group.dir, &s) != 0) return 1;
    const int same = s.st_mtim.tv_sec == group->renewed.tv_sec && s.st_mtim.tv_nsec == group->renewed.tv_nsec;
    group->renewed = s.st_mtim;
    return !same || group->unsettled;
}

/* renew() -> bool: whether the members changed. A line of the page may be taken before its file is made: then it is
 * looked at again. */
PyObject *core_renew(PyObject *op, PyObject *unused) {
    CoreObject *core = (CoreObject *)op;
    core_group *group = core->group;
    (void)unused;
    if (group == NULL || !group->joined || !has_changed(group)) Py_RETURN_FALSE;
    group->unsettled = tw_members_renew(&group->members, group->group.dir, group->group.name) != TW_GROUP_FINE ||
                       group->members.refused > 0;
    tw_members_company(&group->members, &group->group, core->segment, &group->company);
    Py_RETURN_TRUE;
}

/* members() -> [address, ...]: the segments of the others. */
PyObject *core_members(PyObject *op, PyObject *unused) {
    const core_group *group = ((CoreObject *)op)->group;
    PyObject *list = PyList_New(0);
    (void)unused;
    for (uint32_t i = 0; list != NULL && group != NULL && i < group->members.n; i++) {
        PyObject *address = PyLong_FromVoidPtr((void *)(uintptr_t)group->members.member[i].segment);
        if (address == NULL || PyList_Append(list, address) < 0) Py_CLEAR(list);
        Py_XDECREF(address);
    }
    return list;
}

PyObject *core_refused(PyObject *op, void *unused) {
    const core_group *group = ((CoreObject *)op)->group;
    (void)unused;
    return PyLong_FromUnsignedLongLong(group == NULL ? 0 : group->members.refused);
}

PyObject *core_joined(PyObject *op, void *unused) {
    const core_group *group = ((CoreObject *)op)->group;
    (void)unused;
    return PyBool_FromLong(group != NULL && group->joined);
}

/* ---- joining and leaving ---- */

static core_group *group_of(CoreObject *core) {
    if (core->group == NULL) {
        core->group = PyMem_Calloc(1, sizeof *core->group);
        if (core->group != NULL) core->group->group.dir = -1;
    }
    return core->group;
}

static tw_group_problem join(CoreObject *core, core_group *group, const char *dir, uint64_t unit) {
    tw_group_problem problem = tw_group_join(&group->group, dir, unit);
    if (problem != TW_GROUP_FINE) return problem;
    problem = tw_group_share(&group->group, core->segment, core->bytes);
    if (problem != TW_GROUP_FINE) {
        const int saved = errno;
        tw_group_leave(&group->group);
        errno = saved;
        return problem;
    }
    group->joined = true;
    core->stop = &group->group.page->line[group->group.at].stop_ns;
    core_tell(core);
    return TW_GROUP_FINE;
}

/* join(dir, unit, /) -> None, or why not: a sentence. The segment is private then. */
PyObject *core_join(PyObject *op, PyObject *args) {
    CoreObject *core = (CoreObject *)op;
    PyObject *path;
    unsigned long long unit;
    if (!PyArg_ParseTuple(args, "O&K", PyUnicode_FSConverter, &path, &unit)) return NULL;
    core_group *group = group_of(core);
    tw_group_problem problem = TW_GROUP_FINE;
    if (group != NULL && !group->joined) problem = join(core, group, PyBytes_AsString(path), unit);
    const int saved = errno;
    Py_DECREF(path);
    if (group == NULL) return PyErr_NoMemory();
    if (problem == TW_GROUP_FINE) Py_RETURN_NONE;
    return PyUnicode_FromString(problem == TW_GROUP_SYSTEM ? strerror(saved) : tw_group_problem_text(problem));
}

/* The numbers stay, in memory of this process's own. */
static int leave(CoreObject *core) {
    core_group *group = core->group;
    if (group == NULL || !group->joined) return 0;
    if (tw_group_unshare(&group->group, true) != 0) return ENOMEM;
    core->stop = &core->own_stop;
    group->joined = false;
    forget_members(group);
    tw_group_leave(&group->group);
    return 0;
}

PyObject *core_leave(PyObject *op, PyObject *unused) {
    (void)unused;
    if (leave((CoreObject *)op) != 0) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

void core_free_group(CoreObject *core) {
    if (core->epoch != NULL && *core->epoch == 0) core_reborn(core);
    (void)leave(core);
    PyMem_Free(core->group);
    core->group = NULL;
    if (core->epoch != NULL) munmap(core->epoch, sizeof *core->epoch);
    core->epoch = NULL;
}

/* The parent's segment is its own: what is written here from now on stays here. */
static void leave_parent(CoreObject *core) {
    core_group *group = core->group;
    core->stop = &core->own_stop;
    if (group == NULL || !group->joined) return;
    if (tw_group_unshare(&group->group, false) != 0) abort(); /* no page of memory left: and never the parent's */
    group->joined = false;
    forget_members(group);
    tw_group_forget(&group->group);
}

void core_reborn(CoreObject *core) {
    char role[TW_ROLE_WORDS * 8];
    const tw_slo slo = core->segment->slo;
    const uint64_t slow_ns = core->segment->slow_ns, sets = core->segment->header.max_label_sets;
    tw_words_get(core->segment->header.role, TW_ROLE_WORDS, role);
    const bool shared = core->group != NULL && core->group->joined;
    leave_parent(core);
    if (shared) (void)tw_segment_create_in(core->segment, role, (uint32_t)sets, &slo, slow_ns);
    else tw_segment_reset(core->segment);
    *core->epoch = ++core->last_epoch;
    core->gc_open = core->policy_depth = 0;
}
