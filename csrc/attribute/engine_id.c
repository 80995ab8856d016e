#include "tailwatch/attribute/engine_id.h"

#include "base/text.h"

#define PID_BITS (~TW_ENGINE_KIND)
#define MOST_HOPS 8 /* from a process to the engine it works for; more are a ring */

/* ---- names ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool may_follow(char c) { return is_digit(c) || is_letter(c) || c == '_' || c == '.' || c == '-'; }

static bool is_name(const char *name, size_t len) {
    if (len == 0 || len > TW_ENGINE_NAME_BYTES || !(is_digit(name[0]) || is_letter(name[0]))) return false;
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
    return TW_ENGINE_NUMBER | n;
}

uint64_t tw_engine_named(const char *name, size_t len) {
    if (!is_name(name, len)) return 0;
    if (is_number(name, len)) return number(name, len);
    const uint64_t hash = tw_text_hash(name, len);
    return TW_ENGINE_NAME | ((hash ^ hash >> 60) & ~TW_ENGINE_KIND);
}

/* ---- which engine a process works for ---- */

static uint64_t kind(uint64_t engine) { return engine & TW_ENGINE_KIND; }

bool tw_engine_has_peer(const tw_peer_set *peer_set, uint64_t engine) {
    for (uint32_t i = 0; i < peer_set->n; i++)
        if (peer_set->peer[i].engine == engine) return engine != 0;
    return false;
}

uint64_t tw_engine_follow(uint64_t engine, uint64_t (*engine_of)(const void *of, uint64_t pid), const void *of) {
    for (int hop = 0; hop < MOST_HOPS && kind(engine) == TW_ENGINE_LIKE; hop++) engine = engine_of(of, engine & PID_BITS);
    return tw_engine_is_definite(engine) ? engine : 0;
}

/* The processes of a group, with the engines as they give them themselves. */
typedef struct given {
    const tw_peer_set *peer_set;
    const uint64_t *pid;
    uint64_t own_pid, own_engine, only; /* only: the one engine of the group; 0: none, or several */
    uint64_t engine[TW_PEERS];
    uint32_t sharing;
} given;

static uint64_t only_engine(const given *g) {
    uint64_t only = tw_engine_is_definite(g->own_engine) ? g->own_engine : 0;
    for (uint32_t i = 0; i < g->peer_set->n; i++) {
        if (!tw_engine_is_definite(g->engine[i]) || g->engine[i] == only) continue;
        if (only != 0) return 0;
        only = g->engine[i];
    }
    return only;
}

static uint64_t given_by(const void *of, uint64_t pid) {
    const given *g = of;
    if (pid == g->own_pid) return g->own_engine;
    for (uint32_t i = 0; i < g->peer_set->n; i++)
        if (g->pid[i] == pid) return g->engine[i];
    return 0;
}

static uint64_t resolved(const given *g, uint32_t i) {
    const uint64_t engine = g->engine[i], itself = TW_ENGINE_ITSELF | (g->pid[i] & PID_BITS);
    if (engine == TW_ENGINE_SHARED) return g->sharing == 1 ? engine : itself;
    if (kind(engine) != TW_ENGINE_LIKE) return engine;
    const uint64_t followed = tw_engine_follow(engine, given_by, g);
    if (followed != 0) return followed;
    return g->only != 0 ? g->only : itself;
}

void tw_engines_resolve(tw_peer_set *peer_set, const uint64_t *pid, uint64_t own_pid, uint64_t own_engine) {
    given g = {.peer_set = peer_set, .pid = pid, .own_pid = own_pid, .own_engine = own_engine};
    for (uint32_t i = 0; i < peer_set->n; i++) {
        g.engine[i] = peer_set->peer[i].engine;
        g.sharing += g.engine[i] == TW_ENGINE_SHARED;
    }
    g.only = only_engine(&g);
    for (uint32_t i = 0; i < peer_set->n; i++) peer_set->peer[i].engine = resolved(&g, i);
}
