#include "tailwatch/record/segment.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/base/process.h"
#include "base/text.h"
#include "record/word_sums.h"

/* ---- text in words ---- */

void tw_words_set(uint64_t *words, uint32_t n, const char *text, size_t len) {
    size_t room = (size_t)n * 8 - 1;
    if (len > room) {
        len = room;
        while (len > 0 && tw_utf8_continues((unsigned char)text[len])) --len;
    }
    for (uint32_t i = 0; i < n; ++i) {
        uint64_t word = 0;
        size_t at = (size_t)i * 8;
        if (at < len) memcpy(&word, text + at, len - at < 8 ? len - at : 8);
        tw_store(&words[i], word);
    }
}

void tw_words_get(const uint64_t *words, uint32_t n, char *out) {
    for (uint32_t i = 0; i < n; ++i) {
        uint64_t word = tw_load(&words[i]);
        memcpy(out + (size_t)i * 8, &word, 8);
    }
    out[(size_t)n * 8 - 1] = '\0';
}

static bool is_control(const unsigned char *text, size_t n) {
    return n == 1 ? text[0] < 0x20 || text[0] == 0x7F : text[0] == 0xC2 && text[1] < 0xA0;
}

/* A label value that every exposition format can carry, in at most TW_NAME_WORDS words. */
static void label_set(uint64_t *words, uint32_t n_words, const char *text, size_t len) {
    char clean[TW_NAME_BYTES];
    size_t used = 0, room = (size_t)n_words * 8 - 1;
    for (size_t at = 0; at < len;) {
        const unsigned char *c = (const unsigned char *)text + at;
        size_t n = tw_utf8_length(c, len - at);
        bool keep = n > 0 && !is_control(c, n);
        size_t width = keep ? n : 1;
        if (used + width > room) break;
        if (keep) memcpy(clean + used, c, n);
        else clean[used] = '?';
        used += width;
        at += n > 0 ? n : 1;
    }
    tw_words_set(words, n_words, clean, used);
}

static void name_set(tw_name *name, const char *text, size_t len) { label_set(name->word, TW_NAME_WORDS, text, len); }

static bool name_equal(const tw_name *a, const tw_name *b) { return tw_words_equal(a->word, b->word, TW_NAME_WORDS); }

/* ---- life ---- */

static size_t series_bytes_of(bool served) { return sizeof(tw_series) + (served ? sizeof(tw_served) : 0); }

static size_t bytes_of(uint32_t max_label_sets, size_t series_bytes) {
    if (max_label_sets < 1 || max_label_sets > TW_LABEL_SETS_LIMIT) return 0;
    return sizeof(tw_segment) + max_label_sets * series_bytes;
}

size_t tw_segment_used(const tw_segment *g) {
    const uint64_t sets = tw_load_acquire(&g->series_count), most = g->header.max_label_sets;
    return sizeof(tw_segment) + (sets < most ? sets : most) * g->header.series_bytes;
}

static tw_series *series_at(const tw_segment *g, uint64_t i) {
    return (tw_series *)((uintptr_t)(g + 1) + i * g->header.series_bytes);
}

tw_series *tw_segment_series(const tw_segment *g, uint32_t i) { return series_at(g, i); }

tw_served *tw_segment_served(const tw_segment *g, const tw_series *series) {
    return g->header.series_bytes == sizeof(tw_series) ? NULL : (tw_served *)(uintptr_t)(series + 1);
}

static void series_init(const tw_segment *g, tw_series *series, const tw_name *model, const tw_name *route) {
    tw_served *served = tw_segment_served(g, series);
    for (int i = 0; i < TW_NAME_WORDS; ++i) {
        tw_store(&series->model.word[i], tw_load(&model->word[i]));
        tw_store(&series->route.word[i], tw_load(&route->word[i]));
    }
#define INIT(name, metric, layout) tw_histogram_init(&series->name);
    TW_SERIES_HISTOGRAMS(INIT)
#undef INIT
    if (served != NULL) tw_served_init(served);
}

/* Fills zeroed memory. The magic comes last: a reader never takes a half-made segment for a whole one. */
static void segment_fill(tw_segment *g, const uint64_t *role, uint32_t max_label_sets, size_t series_bytes) {
    tw_header *h = &g->header;
    h->version = TW_SEGMENT_VERSION;
    h->layout_hash = tw_layout_hash();
    h->series_bytes = series_bytes;
    h->bytes = bytes_of(max_label_sets, series_bytes);
    h->pid = (uint64_t)getpid();
    h->start_time = tw_process_start_time(h->pid);
    tw_boot_id(h->boot_id);
    memcpy(h->role, role, sizeof h->role);
    h->created = tw_clock_pair_now();
    h->max_label_sets = max_label_sets;
    h->pid_namespace = tw_process_namespace();
    h->image = tw_process_image();
    tw_pause_init(&g->pause);
    for (int cause = 0; cause < TW_CAUSES; ++cause) tw_histogram_init(&g->stalls[cause]);
#define INIT(name, metric, layout) tw_histogram_init(&g->name);
    TW_PROCESS_HISTOGRAMS(INIT)
#undef INIT
    memcpy(g->lost[0].role, role, sizeof h->role);
    tw_words_set(g->lost[TW_SOURCE_OTHER].role, TW_ROLE_WORDS, "other", 5);
    tw_words_set(g->lost[TW_SOURCE_UNBOUND].role, TW_ROLE_WORDS, "unbound", 7);
    tw_name other;
    name_set(&other, "other", 5);
    series_init(g, series_at(g, 0), &other, &other);
    tw_store_release(&g->series_count, 1);
    tw_store_release(&h->magic, TW_SEGMENT_MAGIC);
}

int tw_segment_create_in(void *memory, const char *role, uint32_t max_label_sets, bool served, const tw_slo *slo,
                         uint64_t slow_ns) {
    tw_segment *g = memory;
    const size_t series_bytes = series_bytes_of(served);
    if (g == NULL || bytes_of(max_label_sets, series_bytes) == 0) return EINVAL;
    uint64_t role_words[TW_ROLE_WORDS];
    tw_words_set(role_words, TW_ROLE_WORDS, role, role != NULL ? strlen(role) : 0);
    if (slo != NULL) g->slo = *slo;
    g->slow_ns = slow_ns;
    segment_fill(g, role_words, max_label_sets, series_bytes);
    return 0;
}

int tw_segment_create(tw_segment **out, const char *role, uint32_t max_label_sets, bool served, const tw_slo *slo,
                      uint64_t slow_ns) {
    size_t bytes = bytes_of(max_label_sets, series_bytes_of(served));
    if (out == NULL || bytes == 0) return EINVAL;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return ENOMEM;
    *out = memory;
    return tw_segment_create_in(memory, role, max_label_sets, served, slo, slow_ns);
}

void tw_segment_destroy(tw_segment *g) {
    if (g != NULL) munmap(g, g->header.bytes);
}

/* Pages that began as a file's come back with what the file holds, not as zeros: those of label sets that came into use
 * later than the header did, too. */
static bool is_zero(const tw_segment *g, uint32_t max_label_sets, size_t series_bytes) {
    bool zero = tw_load(&g->header.magic) == 0;
    for (uint32_t i = 0; i < max_label_sets && zero; ++i) {
        const tw_series *series = (const tw_series *)((uintptr_t)(g + 1) + i * series_bytes);
        zero = tw_load(&series->itl.min_ns) == 0;
    }
    return zero;
}

void tw_segment_reset(tw_segment *g) {
    uint64_t role[TW_ROLE_WORDS];
    memcpy(role, g->header.role, sizeof role);
    tw_slo slo = g->slo;
    uint64_t slow_ns = g->slow_ns;
    uint64_t bytes = g->header.bytes;
    uint32_t max_label_sets = (uint32_t)g->header.max_label_sets;
    size_t series_bytes = g->header.series_bytes;
    /* Fresh zero pages cost a fork child less than copies of its parent's; locked memory refuses. */
    if (madvise(g, bytes, MADV_DONTNEED) != 0 || !is_zero(g, max_label_sets, series_bytes)) memset(g, 0, bytes);
    g->slo = slo;
    g->slow_ns = slow_ns;
    segment_fill(g, role, max_label_sets, series_bytes);
}

void tw_segment_set_role(tw_segment *g, const char *role) {
    tw_words_set(g->header.role, TW_ROLE_WORDS, role, strlen(role));
    tw_words_set(g->lost[0].role, TW_ROLE_WORDS, role, strlen(role));
}

bool tw_segment_is_elsewhere(const tw_header *h) {
    const uint64_t theirs = tw_load(&h->pid_namespace);
    return theirs == 0 || theirs != tw_process_namespace();
}

bool tw_segment_is_of_this_boot(const tw_header *h) {
    uint64_t boot[2];
    tw_boot_id(boot);
    return tw_load(&h->boot_id[0]) == boot[0] && tw_load(&h->boot_id[1]) == boot[1];
}

bool tw_segment_lives(const tw_segment *g) {
    const tw_header *h = &g->header;
    const uint64_t pid = tw_load(&h->pid);
    if (pid == 0 || tw_load(&h->ended) != 0) return false;
    return tw_segment_is_elsewhere(h) ? tw_segment_is_of_this_boot(h) : tw_process_lives(pid, tw_load(&h->start_time));
}

bool tw_segment_valid(const tw_segment *g, size_t bytes) {
    if (g == NULL || bytes < sizeof(tw_segment)) return false;
    const tw_header *h = &g->header;
    if (tw_load_acquire(&h->magic) != TW_SEGMENT_MAGIC || h->version != TW_SEGMENT_VERSION) return false;
    if (h->layout_hash != tw_layout_hash() || h->max_label_sets > TW_LABEL_SETS_LIMIT) return false;
    if (h->series_bytes != series_bytes_of(false) && h->series_bytes != series_bytes_of(true)) return false;
    size_t expected = bytes_of((uint32_t)h->max_label_sets, h->series_bytes);
    return expected != 0 && h->bytes == expected && tw_load(&g->series_count) <= h->max_label_sets &&
           bytes >= tw_segment_used(g);
}

/* ---- what is written into it ---- */

uint32_t tw_segment_source(tw_segment *g, const char *role) {
    uint64_t words[TW_ROLE_WORDS];
    label_set(words, TW_ROLE_WORDS, role, strlen(role));
    for (uint32_t i = 1; i < TW_SOURCE_OTHER; ++i) {
        if (tw_words_equal(g->lost[i].role, words, TW_ROLE_WORDS)) return i;
        if (tw_load(&g->lost[i].role[0]) != 0) continue;
        for (uint32_t k = TW_ROLE_WORDS; k-- > 0;) tw_store_release(&g->lost[i].role[k], words[k]);
        return i;
    }
    return TW_SOURCE_OTHER;
}

uint32_t tw_segment_step(tw_segment *g, const char *name, size_t len) {
    uint64_t words[TW_STEP_NAME_WORDS];
    label_set(words, TW_STEP_NAME_WORDS, name, len);
    return tw_steps_find(&g->steps, words);
}

uint32_t tw_segment_label(tw_segment *g, const char *model, size_t model_len, const char *route, size_t route_len) {
    tw_name names[2];
    name_set(&names[0], model, model_len);
    name_set(&names[1], route, route_len);
    uint64_t count = tw_load(&g->series_count);
    for (uint64_t i = 0; i < count; ++i) {
        const tw_series *series = series_at(g, i);
        if (name_equal(&series->model, &names[0]) && name_equal(&series->route, &names[1])) return (uint32_t)i;
    }
    if (count >= g->header.max_label_sets) {
        tw_add(&g->label_overflow, 1);
        return 0;
    }
    series_init(g, series_at(g, count), &names[0], &names[1]);
    tw_store_release(&g->series_count, count + 1);
    return (uint32_t)count;
}

static void fallback_name(tw_fallback *kind, const char *shape, size_t shape_len, const char *reason,
                          size_t reason_len) {
    label_set(kind->shape, TW_SHAPE_WORDS, shape, shape_len);
    label_set(kind->reason, TW_FALLBACK_REASON_WORDS, reason, reason_len);
}

static bool fallback_equal(const tw_fallback *a, const tw_fallback *b) {
    return tw_words_equal(a->shape, b->shape, TW_SHAPE_WORDS) &&
           tw_words_equal(a->reason, b->reason, TW_FALLBACK_REASON_WORDS);
}

void tw_segment_fallback(tw_segment *g, const char *shape, size_t shape_len, const char *reason, size_t reason_len,
                         uint64_t times) {
    tw_fallback kind;
    fallback_name(&kind, shape, shape_len, reason, reason_len);
    uint64_t count = tw_load(&g->fallback_count), at = 0;
    while (at < count && !fallback_equal(&g->fallbacks[at], &kind)) ++at;
    if (at == TW_FALLBACKS) --at;
    tw_fallback *slot = &g->fallbacks[at];
    if (at == count) {
        if (at == TW_FALLBACKS - 1) fallback_name(slot, "other", 5, "other", 5);
        else fallback_name(slot, shape, shape_len, reason, reason_len);
        tw_store_release(&g->fallback_count, count + 1);
    }
    tw_add(&slot->count, times);
}

tw_second *tw_segment_second(tw_segment *g, uint64_t t_ns) {
    uint64_t second = t_ns / TW_NS_PER_SECOND;
    tw_second *slot = &g->seconds[second % TW_SECONDS];
    uint64_t held = tw_load(&slot->second);
    if (held == second + 1) return slot;
    if (held > second + 1) return NULL;
    tw_store(&slot->second, 0);
    for (size_t word = 1; word < sizeof *slot / sizeof(uint64_t); ++word) tw_store_release((uint64_t *)slot + word, 0);
    tw_store_release(&slot->second, second + 1);
    return slot;
}

uint32_t tw_octave_of(uint64_t gap_ns) {
    uint64_t us = gap_ns / 1000;
    uint32_t octave = us > 0 ? 63U - (uint32_t)__builtin_clzll(us) : 0;
    return octave < TW_OCTAVES ? octave : TW_OCTAVES - 1;
}

bool tw_segment_slow_read(const tw_segment *g, uint64_t n, tw_slow_record *out) {
    const uint64_t *from = (const uint64_t *)&g->slow[n % TW_SLOW_RING];
    uint64_t *to = (uint64_t *)out;
    if (n >= tw_load_acquire(&g->slow_head) || tw_load_acquire(&from[0]) != n + 1) return false;
    to[0] = n + 1;
    for (size_t i = 1; i < sizeof *out / sizeof *to; ++i) to[i] = tw_load_acquire(&from[i]);
    return tw_load(&from[0]) == n + 1;
}

uint64_t tw_segment_pause_end(tw_segment *g, uint64_t now_ns, const tw_pause_result *result) {
    bool outermost = g->pause.depth == 1;
    tw_cause cause = TW_CAUSE_GC0;
    uint64_t length = tw_pause_end(&g->pause, now_ns, result, &cause);
    if (outermost) tw_histogram_record(&g->stalls[cause], tw_layout_of(TW_LAYOUT_PAUSE), length);
    return length;
}
