#include "tailwatch/members.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "tailwatch/atomic.h"

static void unmap(tw_member *member) {
    munmap((void *)(uintptr_t)member->segment, member->bytes);
    member->segment = NULL;
}

void tw_members_clear(tw_members *members) {
    for (uint32_t i = 0; i < members->n; i++) unmap(&members->member[i]);
    members->n = 0;
}

static tw_member *find(tw_members *members, uint32_t n, const char *name) {
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(members->member[i].name, name) == 0) return &members->member[i];
    return NULL;
}

/* The name says whose it is: a copy under another name would count twice. */
static bool is_named_after_its_owner(const tw_segment *segment, const char *name) {
    char expected[TW_GROUP_NAME];
    tw_group_file(expected, tw_load(&segment->header.pid), tw_load(&segment->header.start_time));
    return strcmp(expected, name) == 0;
}

typedef struct renewal {
    tw_members *members;
    const char *except;
    uint32_t before; /* members there were: those found again are marked */
    bool seen[TW_MEMBERS];
    uint64_t refused;
} renewal;

static bool keep(renewal *r, const char *name, const void *bytes, size_t len) {
    tw_members *members = r->members;
    const tw_segment *segment = bytes;
    if (members->n == TW_MEMBERS || !tw_segment_valid(segment, len) || !is_named_after_its_owner(segment, name)) {
        r->refused++;
        return false;
    }
    tw_member *member = &members->member[members->n++];
    member->segment = segment;
    member->bytes = len;
    snprintf(member->name, sizeof member->name, "%s", name);
    return true;
}

/* Whether the file is to be mapped: it is not, where it is already. */
static bool wanted(void *to, const char *name) {
    renewal *r = to;
    if (r->except != NULL && strcmp(name, r->except) == 0) return false;
    const tw_member *known = find(r->members, r->before, name);
    if (known != NULL) r->seen[known - r->members->member] = true;
    return known == NULL;
}

static bool visit(void *to, const char *name, const void *bytes, size_t len) { return keep(to, name, bytes, len); }

static void drop_gone(renewal *r) {
    tw_members *members = r->members;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < members->n; i++) {
        if (i < r->before && !r->seen[i]) unmap(&members->member[i]);
        else members->member[kept++] = members->member[i];
    }
    members->n = kept;
}

tw_group_problem tw_members_renew(tw_members *members, int dir, const char *except) {
    renewal r = {.members = members, .except = except, .before = members->n};
    const tw_group_problem problem = tw_group_each(dir, wanted, visit, &r, &r.refused);
    if (problem != TW_GROUP_FINE) return problem;
    drop_gone(&r);
    members->refused = r.refused;
    return TW_GROUP_FINE;
}

static const tw_segment *segment_of(const tw_members *members, uint64_t pid, uint64_t start_time) {
    for (uint32_t i = 0; i < members->n; i++) {
        const tw_header *header = &members->member[i].segment->header;
        if (tw_load(&header->pid) == pid && tw_load(&header->start_time) == start_time) return members->member[i].segment;
    }
    return NULL;
}

static void admit(tw_company *company, const tw_group_line *line, const tw_segment *segment, tw_segment *own) {
    char role[TW_ROLE_WORDS * 8];
    tw_words_get(segment->header.role, TW_ROLE_WORDS, role);
    company->stop_ns[company->n] = &line->stop_ns;
    company->peer[company->n++] = (tw_peer){&segment->pause, tw_load(&line->unit), tw_segment_source(own, role)};
}

void tw_members_company(const tw_members *members, const tw_group *group, tw_segment *own, tw_company *company) {
    const uint32_t lines = tw_group_lines(group);
    company->n = 0;
    for (uint32_t at = 0; at < lines && company->n < TW_COMPANY; at++) {
        const tw_group_line *line = &group->page->line[at];
        const uint64_t pid = tw_load_acquire(&line->pid);
        if (at == group->at || pid == 0 || tw_load(&line->unit) == 0) continue;
        const tw_segment *segment = segment_of(members, pid, tw_load(&line->start_time));
        if (segment != NULL) admit(company, line, segment, own);
    }
}
