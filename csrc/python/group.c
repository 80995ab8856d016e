/* A core's part in a group: its segment becomes memory that others map, and theirs is mapped here.
 *
 * Joining and leaving leave the segment at its address: streams, snapshots and _cold keep theirs. What is here runs when
 * a process starts, forks or ends, and once a second; a token only reads what it left.
 */
#include "python/group.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "record/word_sums.h"
#include "tailwatch/group/merge_dead.h"
#include "tailwatch/base/process.h"

/* ---- the members' list ---- */

void group_forget_members(core_group *group) {
    group->peer_set.n = 0;
    group->n_serving = 0;
    tw_members_clear(&group->members);
    group->renewed_ns = 0;
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

/* A process that was killed, or left, has streams in flight for ever. */
static uint64_t in_flight_of(const tw_segment *segment) {
    const uint64_t in_flight = tw_load(&segment->in_flight);
    return in_flight > 0 && tw_segment_lives(segment) ? in_flight : 0;
}

/* load() -> (in_flight, opened): requests of this process and the others of its group, as of the last renew(). */
PyObject *core_load(PyObject *op, PyObject *unused) {
    const CoreObject *core = (CoreObject *)op;
    const core_group *group = core->group;
    uint64_t in_flight = tw_load(&core->segment->in_flight), opened = tw_load(&core->segment->opened);
    (void)unused;
    for (uint32_t i = 0; group != NULL && i < group->members.n; i++) {
        in_flight += in_flight_of(group->members.member[i].segment);
        opened += tw_load(&group->members.member[i].segment->opened);
    }
    return Py_BuildValue("KK", (unsigned long long)in_flight, (unsigned long long)opened);
}

/* set_front(): requests are stamped in this process, by its app or by hand. */
PyObject *core_set_front(PyObject *op, PyObject *unused) {
    (void)unused;
    tw_store(&((CoreObject *)op)->segment->header.is_front, 1);
    Py_RETURN_NONE;
}

bool core_has_front(const CoreObject *core) {
    const core_group *group = core->group;
    bool any = tw_load(&core->segment->header.is_front) != 0;
    for (uint32_t i = 0; !any && group != NULL && i < group->members.n; i++) {
        const tw_segment *segment = group->members.member[i].segment;
        any = tw_load(&segment->header.is_front) != 0 && tw_segment_lives(segment);
    }
    return any;
}

/* Whose requests wait beside ours. A process that is killed counts for up to a second more. */
static void find_serving(core_group *group) {
    group->n_serving = 0;
    for (uint32_t i = 0; i < group->members.n && group->n_serving < CORE_SERVING; i++) {
        const tw_member *member = &group->members.member[i];
        if (member->list == NULL && tw_load(&member->segment->opened) > 0 && tw_segment_lives(member->segment))
            group->serving[group->n_serving++] = member->segment;
    }
}

PyObject *core_group_load(PyObject *op, PyObject *unused) {
    const CoreObject *core = (CoreObject *)op;
    const core_group *group = core->group;
    const uint32_t others = group == NULL ? 0 : group->n_serving;
    uint64_t running = tw_load(&core->segment->ttft_by_concurrency.running), in_flight = tw_load(&core->segment->in_flight);
    (void)unused;
    for (uint32_t i = 0; i < others; i++) {
        running += tw_load(&group->serving[i]->ttft_by_concurrency.running);
        in_flight += tw_load(&group->serving[i]->in_flight);
    }
    const unsigned long serving = others + (tw_load(&core->segment->opened) > 0);
    return Py_BuildValue("KKk", (unsigned long long)running, (unsigned long long)in_flight, serving);
}

PyObject *core_refused(PyObject *op, void *unused) {
    const core_group *group = ((CoreObject *)op)->group;
    (void)unused;
    return PyLong_FromUnsignedLongLong(group == NULL ? 0 : group->members.refused);
}

/* peers() -> how many others of the group have the role of this process, and live. */
PyObject *core_peers(PyObject *op, PyObject *unused) {
    const CoreObject *core = (CoreObject *)op;
    const core_group *group = core->group;
    long n = 0;
    (void)unused;
    for (uint32_t i = 0; group != NULL && i < group->members.n; i++) {
        const tw_segment *segment = group->members.member[i].segment;
        const bool same_role = tw_words_equal(core->segment->header.role, segment->header.role, TW_ROLE_WORDS);
        n += same_role && tw_segment_lives(segment);
    }
    return PyLong_FromLong(n);
}

PyObject *core_file(PyObject *op, void *unused) {
    const core_group *group = ((CoreObject *)op)->group;
    (void)unused;
    return PyUnicode_FromString(group != NULL && group->joined ? group->group.name : "");
}

PyObject *core_joined(PyObject *op, void *unused) {
    const core_group *group = ((CoreObject *)op)->group;
    (void)unused;
    return PyBool_FromLong(group != NULL && group->joined);
}

PyObject *core_shares_engine(PyObject *op, void *unused) {
    (void)unused;
    return PyBool_FromLong(tw_load(&((CoreObject *)op)->segment->ttft_by_concurrency.shared) != 0);
}

PyObject *core_maps_file(PyObject *op, void *unused) {
    const core_group *group = ((CoreObject *)op)->group;
    (void)unused;
    return PyBool_FromLong(group != NULL && group->joined && tw_group_is_file(&group->group));
}

void group_place(CoreObject *core, bool patient) {
    char role[TW_ROLE_WORDS * 8];
    tw_words_get(core->segment->header.role, TW_ROLE_WORDS, role);
    core->group->unplaced = tw_group_place(&core->group->group, role, patient) != TW_GROUP_FINE;
}

/* ---- leaving ---- */

/* The numbers stay, in memory of this process's own, and in the shared memory and the file as they are now: what is there
 * counts as that of the dead. */
int group_leave(CoreObject *core) {
    core_group *group = core->group;
    if (group == NULL) return 0;
    group->orphan = false;
    if (!group->joined) return 0;
    if (tw_group_holds(&group->group, NULL) == TW_GROUP_LOST) (void)tw_group_find_again(&group->group, group->dir);
    tw_mark_ended(&group->group);
    if (tw_group_unshare(&group->group, true) != 0) {
        tw_store(&core->segment->header.ended, 0);
        return ENOMEM;
    }
    const bool removed = tw_group_holds(&group->group, NULL) == TW_GROUP_REMOVED; /* what was there is nowhere else */
    group->left_dev = removed ? 0 : group->group.dir_dev;
    group->left_ino = removed ? 0 : group->group.dir_ino;
    group->joined = false;
    group_forget_members(group);
    tw_store(&core->segment->header.locked, 0);
    tw_store(&core->segment->header.ended, 0);
    tw_group_forget(&group->group);
    return 0;
}

/* ---- what the dead leave behind ---- */

#define MERGES 4 /* a turn */

/* A descriptor of its own, so that its lock is not that of a join on another thread. A child that is forked meanwhile
 * closes it. */
static uint32_t merge(core_group *group, int dir) {
    uint32_t merged;
    group->merging = dir;
    group->merger_pid = getpid();
    Py_BEGIN_ALLOW_THREADS
    merged = tw_merge_dead(dir, MERGES);
    Py_END_ALLOW_THREADS
    if (group->merging == dir) close(dir);
    group->merging = -1;
    return merged;
}

int group_descriptor(const core_group *group) {
    if (tw_group_holds(&group->group, NULL) != TW_GROUP_HELD) return -1;
    return openat(group->group.dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* save() -> whether the segment's file holds a copy of it again. No other thread may call leave() meanwhile. */
PyObject *core_save(PyObject *op, PyObject *unused) {
    core_group *group = ((CoreObject *)op)->group;
    (void)unused;
    if (group == NULL || !group->joined) Py_RETURN_FALSE;
    bool saved;
    Py_BEGIN_ALLOW_THREADS
    saved = tw_group_save(&group->group);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(saved);
}

/* merge_dead() -> how many. One thread at a time. */
PyObject *core_merge_dead(PyObject *op, PyObject *unused) {
    core_group *group = ((CoreObject *)op)->group;
    (void)unused;
    if (group == NULL || !group->joined || group->merging >= 0) return PyLong_FromLong(0);
    const int dir = group_descriptor(group);
    return PyLong_FromUnsignedLong(dir < 0 ? 0 : merge(group, dir));
}

PyObject *core_leave(PyObject *op, PyObject *unused) {
    CoreObject *core = (CoreObject *)op;
    core_group *group = core->group;
    (void)unused;
    const int dir = group != NULL && group->joined && group->merging < 0 ? group_descriptor(group) : -1;
    const int failed = group_leave(core);
    if (dir >= 0) (void)merge(group, dir); /* its own file, or another's; where the lock is taken it is left to them */
    if (failed != 0) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* set_engine(engine, /): in place, so that the others keep what they have mapped. */
PyObject *core_set_engine(PyObject *op, PyObject *engine) {
    core_group *group = ((CoreObject *)op)->group;
    const unsigned long long value = PyLong_AsUnsignedLongLong(engine);
    if (value == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
    if (group == NULL) Py_RETURN_NONE;
    if (group->joined) tw_store(&((CoreObject *)op)->segment->header.engine, value);
    group->engine = value; /* also for a fork child that joins */
    Py_RETURN_NONE;
}

/* ---- label sets that come into use ---- */

uint32_t core_label(CoreObject *core, const char *model, size_t model_len, const char *route, size_t route_len) {
    const uint32_t set = tw_segment_label(core->segment, model, model_len, route, route_len);
    tw_recorder_name(&core->trace.recorder, core->segment);
    return set;
}

/* ---- looking around ---- */

/* A file system's times are as coarse as the kernel's tick: what comes within the same tick as the last look leaves no
 * trace. One second is more than any. */
static bool is_young(uint64_t changed_ns) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    const uint64_t now_ns = (uint64_t)now.tv_sec * TW_NS_PER_SECOND + (uint64_t)now.tv_nsec;
    return changed_ns + TW_NS_PER_SECOND > now_ns;
}

static bool holds_copies(const tw_members *members) {
    for (uint32_t i = 0; i < members->n; i++)
        if (members->member[i].list == NULL && members->member[i].copied_ns != 0) return true;
    return false;
}

/* Reads the directory. */
void group_look(CoreObject *core, uint64_t changed_ns) {
    core_group *group = core->group;
    const uint64_t refused = group->members.refused;
    if (changed_ns != group->renewed_ns) tw_members_retry(&group->members);
    const tw_group_problem problem = tw_members_renew(&group->members, group->group.dir, group->group.name);
    group->unsettled = problem != TW_GROUP_FINE || group->members.refused > 0 || holds_copies(&group->members) || is_young(changed_ns);
    group->renewed_ns = changed_ns;
    tw_add(&core->segment->drops[TW_DROP_MEMBER], tw_minus(group->members.refused, refused));
}

/* Whether it can be looked into; *changed_ns: when its entries last changed. */
bool group_holds(core_group *group, uint64_t *changed_ns) {
    tw_group_hold hold = tw_group_holds(&group->group, changed_ns);
    if (hold == TW_GROUP_LOST && tw_group_find_again(&group->group, group->dir))
        hold = tw_group_holds(&group->group, changed_ns);
    return hold == TW_GROUP_HELD;
}

/* renew() -> bool: whether the members may have changed. A directory's time changes with its entries. Which died is
 * asked each time. */
PyObject *core_renew(PyObject *op, PyObject *unused) {
    CoreObject *core = (CoreObject *)op;
    core_group *group = core->group;
    uint64_t changed_ns;
    (void)unused;
    if (group == NULL || !group->joined) Py_RETURN_FALSE;
    if (!group_holds(group, &changed_ns)) {
        if (group_leave(core) != 0) return PyErr_NoMemory();
        Py_RETURN_TRUE;
    }
    if (group->unplaced) (void)group_place(core, false);
    const bool changed = changed_ns != group->renewed_ns || group->unsettled;
    if (changed) group_look(core, changed_ns);
    tw_members_note_ended(&group->members, group->group.dir);
    tw_members_peers(&group->members, core->segment, &group->peer_set);
    find_serving(group);
    tw_ttft_share(&core->segment->ttft_by_concurrency, group->engine != 0 || group->peer_set.n > 0); /* there is an engine: the others' streams wait for it too */
    return PyBool_FromLong(changed);
}

