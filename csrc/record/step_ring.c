#include "tailwatch/record/step_ring.h"

#include <math.h>
#include <string.h>

#include "base/arithmetic.h"
#include "record/word_sums.h"

/* A record's seq is cleared before it is overwritten and stored last, and its words are release-stored and
 * acquire-loaded: a reader that saw a new word sees the cleared seq too. */

_Static_assert(sizeof(tw_step_record) % 8 == 0, "a record is words");
_Static_assert(sizeof(tw_step_event) <= sizeof(tw_step_record), "no record is longer than a step");
_Static_assert(sizeof(tw_request_name) <= sizeof(tw_step_record), "no record is longer than a step");

/* The seq is a record's first word. By memcpy: a record has fields that are shorter than a word. */
static void publish(void *place, const void *from, size_t bytes, uint64_t n) {
    uint64_t *to = place, word;
    tw_store(&to[0], 0);
    for (size_t i = 1; i < bytes / sizeof word; ++i) {
        memcpy(&word, (const char *)from + i * sizeof word, sizeof word);
        tw_store_release(&to[i], word);
    }
    tw_store_release(&to[0], n + 1);
}

#define RECORD_WORDS (sizeof(tw_step_record) / sizeof(uint64_t)) /* no other is longer */

static bool read_record(const void *place, void *to, size_t bytes, uint64_t n) {
    const uint64_t *from = place;
    uint64_t words[RECORD_WORDS];
    if (tw_load_acquire(&from[0]) != n + 1) return false;
    tw_words_load(words, from, bytes);
    if (words[0] != n + 1 || tw_load(&from[0]) != n + 1) return false;
    memcpy(to, words, bytes);
    return true;
}

/* ---- what is usual ---- */

#define FORGET (1.0 / 256) /* the weight of a line's latest point */
#define FEWEST 8.0         /* points without which a line is not known */
#define OUTLIER 4.0        /* a point this many times above the line moves it no further */
#define GRAPH_STEPS 1024   /* after which the counts by graph are halved */

static double number_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void keep(uint64_t *word, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    tw_store(word, bits);
}

static double sum_of(const uint64_t *word) { return number_of(tw_load(word)); }

static inline __attribute__((always_inline)) double slope_of(const tw_line_fit *line) {
    const double n = sum_of(&line->n), sx = sum_of(&line->x), spread = n * sum_of(&line->xx) - sx * sx;
    if (n < FEWEST || spread <= 1e-9 * n * n) return NAN;
    return fmax((n * sum_of(&line->xy) - sx * sum_of(&line->y)) / spread, 0);
}

double tw_line_at(const tw_line_fit *line, double x) {
    const double n = sum_of(&line->n), slope = slope_of(line), mean = sum_of(&line->y) / n;
    if (n < FEWEST) return NAN;
    return fmax(isnan(slope) ? mean : mean + slope * (x - sum_of(&line->x) / n), 0);
}

double tw_step_usual_ns(const tw_step_model *m, double requests) {
    const int64_t median = (int64_t)tw_load(&m->decode_median); /* signed: one instruction makes a double of it */
    return tw_line_at(&m->decode, requests) * (median == 0 ? 1.0 : (double)median * (1.0 / TW_MEDIAN_ONE));
}

/* Sum y over sum b. */
static double ratio_of(const tw_line_fit *line, const uint64_t *b) {
    return sum_of(&line->n) < FEWEST || sum_of(b) <= 0 ? NAN : fmax(sum_of(&line->y) / sum_of(b), 0);
}

/* Steps of half that size count a quarter, of twice the size four times. */
static bool is_known_at(const tw_line_fit *line, double x) { return sum_of(&line->xx) >= FEWEST * x * x; }

/* The line; where that has no slope, and for few tokens, of which it may have none or less, at least the average cost. */
static double prefill_at(const tw_step_model *m, double tokens) {
    const double n = sum_of(&m->prefill.n), x = sum_of(&m->prefill.x), y = sum_of(&m->prefill.y);
    const double line = (y + slope_of(&m->prefill) * (n * tokens - x)) / n, average = tokens * y / x;
    if (n < FEWEST) return NAN;
    return line > average || (line > 0 && 4 * n * tokens > x) ? line : average; /* NaN compares false */
}

double tw_step_prefill_ns(const tw_step_model *m, double tokens) {
    const double ns = prefill_at(m, tokens), line = sum_of(&m->prefill_line);
    if (!is_known_at(&m->prefill, tokens) || line < FEWEST * ns) return NAN; /* nor how far steps are off it */
    return ns + 2 * ns * sum_of(&m->prefill_off) / line;
}

tw_step_cost tw_step_cost_of(const tw_step_model *m) {
    return (tw_step_cost){ratio_of(&m->decode, &m->decode.n) / 1e9, slope_of(&m->decode) / 1e9,
                          ratio_of(&m->prefill, &m->prefill.x) / 1e9};
}

static void add_point(uint64_t *word, double value) { keep(word, sum_of(word) * (1 - FORGET) + value); }

static void learn_point(tw_line_fit *line, double x, double y, double expected) {
    if (expected > 0 && y > OUTLIER * expected) y = OUTLIER * expected; /* NaN compares false */
    add_point(&line->n, 1);
    add_point(&line->x, x);
    add_point(&line->y, y);
    add_point(&line->xx, x * x);
    add_point(&line->xy, x * y);
}

static __attribute__((noinline)) void learn_prefill(tw_step_model *m, double tokens, double ns) {
    const double expected = prefill_at(m, tokens);
    const double off = ns > expected ? ns - expected : expected - ns;
    if (expected > 0 && is_known_at(&m->prefill, tokens)) {
        add_point(&m->prefill_line, expected);
        add_point(&m->prefill_off, off < expected ? off : expected);
    }
    learn_point(&m->prefill, tokens, ns, expected);
}

/* A running median: a thirty-second towards each value, so half of them lie above it. It begins at the first. */
static void learn_median(uint64_t *word, uint64_t value, bool first) {
    const uint64_t median = tw_load(word), by = most(median / 32, TW_OFFSET_UNIT_NS);
    if (first) tw_store(word, value);
    else if (value > median) tw_store(word, least(median + by, value));
    else tw_store(word, most(since(median, by), value));
}

static void learn_ratio(uint64_t *word, double ratio) {
    const double value = (ratio < OUTLIER ? ratio : OUTLIER) * TW_MEDIAN_ONE;
    learn_median(word, (uint64_t)(int64_t)value, tw_load(word) == 0);
}

static void learn_graph(uint64_t *graph, uint8_t which) {
    uint64_t steps = 0;
    tw_add(&graph[which], 1);
    for (int i = 0; i < TW_GRAPHS; ++i) steps += tw_load(&graph[i]);
    for (int i = 0; i < TW_GRAPHS && steps > GRAPH_STEPS; ++i) tw_store(&graph[i], tw_load(&graph[i]) / 2);
}

static void learn(tw_step_model *m, const tw_step_record *s, bool first) {
    for (int i = 0; i < TW_STEP_PARTS; ++i)
        learn_median(&m->part_ns[i], (uint64_t)s->part[i] * TW_OFFSET_UNIT_NS, first);
    if (s->graph != TW_GRAPH_UNKNOWN && s->graph < TW_GRAPHS) learn_graph(m->graph, s->graph);
    if (s->prefill_tokens == TW_TOKENS_UNKNOWN) return;
    uint64_t dispatch_ns = (uint64_t)s->part[TW_PART_DISPATCH] * TW_OFFSET_UNIT_NS;
    if (__builtin_expect(s->next_prefill_tokens > 0, 0))
        dispatch_ns = least(dispatch_ns, tw_load(&m->part_ns[TW_PART_DISPATCH]));
    const double device = (double)(dispatch_ns + (uint64_t)s->part[TW_PART_WAIT] * TW_OFFSET_UNIT_NS);
    const uint32_t tokens = s->prefill_tokens + s->recompute_tokens;
    if (tokens == 0) {
        const double expected = tw_line_at(&m->decode, s->decode_requests);
        if (expected > 0) learn_ratio(&m->decode_median, device / expected);
        learn_point(&m->decode, s->decode_requests, device, expected);
        return;
    }
    const double without = s->decode_requests == 0 ? 0 : tw_step_usual_ns(m, s->decode_requests);
    if (without >= 0) learn_prefill(m, tokens, fmax(device - without, 0));
}

/* ---- the writer ---- */

void tw_step_write(tw_step_ring *ring, const tw_step_record *step) {
    const uint64_t n = tw_load(&ring->head);
    publish(&ring->step[n % TW_STEP_RECORDS], step, sizeof *step, n);
    tw_store_release(&ring->head, n + 1);
    learn(&ring->model, step, n == 0);
}

void tw_step_event_write(tw_step_ring *ring, tw_step_event_kind kind, uint64_t request, uint64_t from_ns,
                         uint64_t to_ns, uint64_t detail) {
    const uint64_t n = tw_load(&ring->event_head);
    const tw_step_event event = {0, request, from_ns, to_ns, (uint64_t)kind, detail};
    publish(&ring->event[n % TW_STEP_EVENTS], &event, sizeof event, n);
    tw_store_release(&ring->event_head, n + 1);
}

uint64_t tw_rank_enters(tw_step_ring *ring, uint64_t mark, uint64_t detail, uint64_t now_ns) {
    tw_step_event_write(ring, TW_EVENT_RANK, mark, now_ns, now_ns, detail);
    return tw_load(&ring->event_head) - 1;
}

/* A word of a record that stays what it is: a reader has the one value or the other. */
void tw_rank_leaves(tw_step_ring *ring, uint64_t number, uint64_t now_ns) {
    tw_step_event *event = &ring->event[number % TW_STEP_EVENTS];
    if (tw_load(&event->seq) == number + 1) tw_store_release(&event->to_ns, now_ns);
}

/* Number n stands at its place; 0 is no name. */
uint32_t tw_request_name_write(tw_step_ring *ring, const char *id, size_t len) {
    tw_request_name name = {0, {0}};
    const uint64_t last = tw_load(&ring->name_head), n = (uint32_t)(last + 1) == 0 ? last + 2 : last + 1;
    memcpy(name.text, id, least(len, sizeof name.text - 1));
    if (last != 0 && tw_words_equal(ring->name[last % TW_REQUEST_NAMES].text, name.text, TW_REQUEST_NAME_WORDS))
        return (uint32_t)last;
    publish(&ring->name[n % TW_REQUEST_NAMES], &name, sizeof name, n);
    tw_store_release(&ring->name_head, n);
    return (uint32_t)n;
}

/* ---- readers ---- */

const char *tw_step_part_name(int part) {
    static const char *const names[] = {"input", "schedule", "dispatch", "grammar", "wait", "update"};
    return part >= 0 && part < TW_STEP_PARTS ? names[part] : "unknown";
}

bool tw_step_read(const tw_step_ring *ring, uint64_t n, tw_step_record *out) {
    return read_record(&ring->step[n % TW_STEP_RECORDS], out, sizeof *out, n);
}

bool tw_step_event_read(const tw_step_ring *ring, uint64_t n, tw_step_event *out) {
    return read_record(&ring->event[n % TW_STEP_EVENTS], out, sizeof *out, n);
}

uint64_t tw_step_find(const tw_step_ring *ring, uint64_t at_ns) {
    tw_step_record step;
    uint64_t above = tw_load_acquire(&ring->head), from = since(above, TW_STEP_RECORDS);
    while (from < above) {
        const uint64_t middle = from + (above - from) / 2;
        if (tw_step_read(ring, middle, &step) && step.done_ns >= at_ns) above = middle;
        else from = middle + 1; /* one that was overwritten is older */
    }
    return above;
}

#define SENT_WORD (offsetof(tw_step_record, sent) / sizeof(uint64_t))

uint32_t tw_sent_mark(uint64_t request, uint32_t tokens) {
    const uint64_t mixed = (request ^ tokens * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xff51afd7ed558ccd);
    return tokens == 0 ? 0 : (uint32_t)(mixed >> 32) | 1;
}

/* Newest first: a message comes a step or two after it was sent, later ones of many that wait in a burst. On the event
 * loop, for each message and engine: so one that is not found costs little, 5 us where
 * TW_SENT_STEPS_LATE are looked at. */
uint64_t tw_step_sent(const tw_step_ring *ring, uint64_t request, uint32_t tokens, uint32_t steps) {
    const uint64_t head = tw_load_acquire(&ring->head);
    const uint32_t mark = tw_sent_mark(request, tokens);
    tw_step_record step;
    uint32_t unsent = 0;
    for (uint64_t n = head; mark != 0 && unsent < TW_UNSENT_STEPS && n > since(head, steps); --n) {
        const uint64_t word = tw_load(&((const uint64_t *)&ring->step[(n - 1) % TW_STEP_RECORDS])[SENT_WORD]);
        uint32_t sent;
        memcpy(&sent, (const char *)&word + offsetof(tw_step_record, sent) % sizeof word, sizeof sent);
        unsent = sent == 0 ? unsent + 1 : 0;
        if (sent == mark && tw_step_read(ring, n - 1, &step)) return step.key_ns;
    }
    return 0;
}

void tw_request_name_copy(const tw_step_ring *ring, uint32_t number, char *to, size_t size) {
    tw_request_name name;
    const uint64_t head = tw_load_acquire(&ring->name_head);
    const uint64_t n = head - (uint32_t)((uint32_t)head - number); /* of the numbers that end so, the latest */
    to[0] = 0;
    if (number == 0 || n > head) return;
    if (!read_record(&ring->name[n % TW_REQUEST_NAMES], &name, sizeof name, n)) return;
    const size_t len = least(strlen((const char *)name.text), size - 1);
    memcpy(to, name.text, len);
    to[len] = 0;
}

uint64_t tw_request_hash(const char *id, size_t len) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < len; ++i) hash = (hash ^ (uint8_t)id[i]) * UINT64_C(0x100000001b3);
    return hash != 0 ? hash : 1;
}
