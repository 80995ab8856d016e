#include "tailwatch/gc/mark_table.h"

#include <string.h>

#include "base/tw_malloc.h"

#define REGION_SHIFT 16
#define FEWEST_PLACES 256
#define REGION_BYTES (TW_MARKS_SLOTS * sizeof(uint32_t))

static uint64_t number_of(const void *object) { return (uint64_t)(uintptr_t)object >> REGION_SHIFT; }

/* Where a region stands, or the free place where it would. */
static struct tw_marks_region *place_of(struct tw_marks_region *region, size_t places, uint64_t number) {
    size_t at = (size_t)(number * UINT64_C(0x9E3779B97F4A7C15) >> 20) & (places - 1);
    while (region[at].words != NULL && region[at].number != number) at = (at + 1) & (places - 1);
    return &region[at];
}

/* With the marks of this cycle only. */
static uint32_t *fresh(tw_marks *m, struct tw_marks_region *region) {
    if (region->words != NULL && region->cycle != m->cycle) {
        memset(region->words, 0, REGION_BYTES);
        region->cycle = m->cycle;
    }
    return region->words;
}

tw_place tw_marks_find(tw_marks *m, const void *object) {
    const uint64_t number = number_of(object);
    if (m->last == NULL || m->last_number != number) {
        uint32_t *words = m->places == 0 ? NULL : fresh(m, place_of(m->region, m->places, number));
        if (words == NULL) return NULL;
        m->last_number = number, m->last = words;
    }
    return m->last + (uint32_t)((uintptr_t)object / TW_MARKS_UNIT % TW_MARKS_SLOTS);
}

static bool make_places(tw_marks *m, size_t places) {
    struct tw_marks_region *region = tw_calloc(places, sizeof *region);
    if (region == NULL) return false;
    for (size_t i = 0; i < m->places; ++i)
        if (m->region[i].words != NULL) *place_of(region, places, m->region[i].number) = m->region[i];
    tw_free(m->region);
    m->region = region;
    m->places = places;
    return true;
}

tw_place tw_marks_make(tw_marks *m, const void *object) {
    const tw_place found = tw_marks_find(m, object);
    const size_t more = m->places == 0 ? FEWEST_PLACES : m->places * 2;
    if (found != NULL || (m->regions * 2 >= m->places && !make_places(m, more))) return found;
    struct tw_marks_region *place = place_of(m->region, m->places, number_of(object));
    if ((place->words = tw_calloc(1, REGION_BYTES)) == NULL) return NULL;
    place->number = number_of(object);
    place->cycle = m->cycle;
    m->regions += 1;
    return tw_marks_find(m, object);
}

/* Those behind it that would stand there, or before, come nearer: none may be parted from where it is looked for. */
static void close_gap(tw_marks *m, size_t gap) {
    for (size_t at = (gap + 1) & (m->places - 1); m->region[at].words != NULL; at = (at + 1) & (m->places - 1)) {
        const struct tw_marks_region region = m->region[at];
        m->region[at].words = NULL;
        *place_of(m->region, m->places, region.number) = region;
    }
}

static void drop(tw_marks *m, size_t at) {
    tw_free(m->region[at].words);
    m->region[at].words = NULL;
    m->regions -= 1;
    m->last = NULL;
    close_gap(m, at);
}

void tw_marks_tidy(tw_marks *m, size_t places) {
    for (size_t i = 0; i < places && m->regions > 0; ++i) {
        const struct tw_marks_region *region = &m->region[m->tidied %= m->places];
        if (region->words != NULL && region->cycle + 1 < m->cycle) drop(m, m->tidied);
        else m->tidied += 1;
    }
    if (m->places > FEWEST_PLACES && m->regions * 16 < m->places) (void)make_places(m, m->places / 4);
}

size_t tw_marks_bytes(const tw_marks *m) {
    return m->places * sizeof *m->region + m->regions * REGION_BYTES;
}

void tw_marks_clear(tw_marks *m) {
    const uint64_t cycle = m->cycle;
    for (size_t i = 0; i < m->places; ++i) tw_free(m->region[i].words);
    tw_free(m->region);
    memset(m, 0, sizeof *m);
    m->cycle = cycle;
}
