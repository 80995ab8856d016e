#include "tailwatch/attribute/engine_id.h"

#define PID_BITS (~TW_UNIT_KIND)
#define MOST_HOPS 8 /* from a process to the engine it works for; more are a ring */

/* ---- names ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool may_follow(char c) { return is_digit(c) || is_letter(c) || c == '_' || c == '.' || c == '-'; }

static bool is_name(const char *name, size_t len) {
    if (len == 0 || len > TW_UNIT_NAME_BYTES || !(is_digit(name[0]) || is_letter(name[0]))) return false;
    for (size_t i = 1; i < len; i++)
        if (!may_follow(name[i])) return false;
    return true;
}

static bool is_number(const char *name, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (!is_digit(name[i])) return false;
    return true;
}

static uint64_t number(const char *digits, size_t len) {
    uint64_t n = 0;
    for (size_t i = 0; i < len; i++) {
        n = n * 10 + (uint64_t)(digits[i] - '0');
        if (n > UINT32_MAX) return 0;
    }
    return TW_UNIT_NUMBER | n;
}

/* FNV-1a. */
static uint64_t hash(const char *name, size_t len) {
    uint64_t h = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)name[i]) * UINT64_C(1099511628211);
    return h ^ h >> 60;
}

uint64_t tw_unit_named(const char *name, size_t len) {
    if (!is_name(name, len)) return 0;
    return is_number(name, len) ? number(name, len) : TW_UNIT_NAME | (hash(name, len) & ~TW_UNIT_KIND);
}

/* ---- who works for whom ---- */

static uint64_t kind(uint64_t unit) { return unit & TW_UNIT_KIND; }

bool tw_unit_is_there(const tw_peer_set *peer_set, uint64_t unit) {
    for (uint32_t i = 0; i < peer_set->n; i++)
        if (peer_set->peer[i].unit == unit) return unit != 0;
    return false;
}

/* The processes of a group as they name their units. */
typedef struct said {
    const tw_peer_set *peer_set;
    const uint64_t *pid;
    uint64_t own_pid, own_unit, only; /* the one engine there is; 0: none, or several */
    uint64_t unit[TW_PEERS];
    uint32_t sharing;
} said;

static uint64_t only_engine(const said *s) {
    uint64_t only = tw_unit_is_engine(s->own_unit) ? s->own_unit : 0;
    for (uint32_t i = 0; i < s->peer_set->n; i++) {
        if (!tw_unit_is_engine(s->unit[i]) || s->unit[i] == only) continue;
        if (only != 0) return 0;
        only = s->unit[i];
    }
    return only;
}

static uint64_t said_by(const said *s, uint64_t pid) {
    if (pid == s->own_pid) return s->own_unit;
    for (uint32_t i = 0; i < s->peer_set->n; i++)
        if (s->pid[i] == pid) return s->unit[i];
    return 0;
}

/* The engine at the end of the chain that begins with a unit; 0: there is none. */
static uint64_t followed(const said *s, uint64_t unit) {
    for (int hop = 0; hop < MOST_HOPS && kind(unit) == TW_UNIT_LIKE; hop++) unit = said_by(s, unit & PID_BITS);
    return tw_unit_is_engine(unit) ? unit : 0;
}

static uint64_t settled(const said *s, uint32_t i) {
    const uint64_t unit = s->unit[i], itself = TW_UNIT_ITSELF | (s->pid[i] & PID_BITS);
    if (unit == TW_UNIT_SHARED) return s->sharing == 1 ? unit : itself;
    if (kind(unit) != TW_UNIT_LIKE) return unit;
    const uint64_t engine = followed(s, unit);
    if (engine != 0) return engine;
    return s->only != 0 ? s->only : itself;
}

void tw_unit_settle(tw_peer_set *peer_set, const uint64_t *pid, uint64_t own_pid, uint64_t own_unit) {
    said s = {.peer_set = peer_set, .pid = pid, .own_pid = own_pid, .own_unit = own_unit};
    for (uint32_t i = 0; i < peer_set->n; i++) {
        s.unit[i] = peer_set->peer[i].unit;
        s.sharing += s.unit[i] == TW_UNIT_SHARED;
    }
    s.only = only_engine(&s);
    for (uint32_t i = 0; i < peer_set->n; i++) peer_set->peer[i].unit = settled(&s, i);
}
