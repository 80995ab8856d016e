#include "tailwatch/aggregate/concurrency_knee.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tailwatch/base/atomic.h"
#include "base/names.h"
#include "base/tw_malloc.h"

#define POINT_SAMPLES 8      /* neighbouring concurrencies are one point until it has so many samples */
#define POINT_WIDTH 0.05     /* and no wider than this share of its concurrency */
#define POINT_FEWEST 3       /* fewer samples are no point */
#define POINT_MOST 64        /* of more samples, evenly chosen ones */
#define SAMPLES_FEWEST 40    /* fewer in all show nothing */
#define POINTS_FEWEST 6
#define BEFORE_FEWEST 3      /* points that the first line stands on */
#define AFTER_FEWEST 2
#define STEEPER 2.0          /* the second line rises at least so many times as fast */
#define LIFT 0.8             /* and ends this share above the first */
#define SHARE 0.75           /* of the squared distances from one line the bend explains so much */
#define SHARPLY 10.0         /* where it is so many times as steep, */
#define HIGH 3.0             /* and ends so many times the first line above it, */
#define SHARE_SHARP 0.4      /* so much is enough */
#define EXPLAINS 12.0        /* F: what the bend explains, to what remains */
#define RESAMPLINGS 31
#define NEAR 0.10            /* confidence: so near to the answer */
#define OUTLIER 2.5          /* standard errors; what is further off counts less */
#define WELL_BELOW 0.75      /* of the bend: points that are surely before it */
#define EARLIEST 0.6         /* and where the first line may be left, as shares of it */
#define LATEST 1.25
#define CLEARLY 4.0          /* standard deviations */
#define SURE 0.8             /* confidence with which a shorter window answers */
#define IN_A_ROW 3           /* points above it, at least */
#define NEXT 4               /* points that show how it goes on */
#define PART_STEP 1.5
#define SPAN_LEAST 0.5       /* highest / lowest concurrency - 1: less is one level */

static const uint64_t windows_s[] = {120, 600, TW_TTFT_FORGET_S};

TW_NAMES(tw_healthy_name, TW_HEALTHY_VERDICTS, "found", "no_inflection", "few_data", "single_level")

/* ---- samples by concurrency ---- */

typedef struct point {
    double x, y, sd, w;      /* concurrency; median TTFT, s; its standard error; 1 / sd^2 */
    uint32_t first, n;       /* of the samples */
} point;

typedef struct data {
    double *sample;          /* seconds, row by row */
    uint32_t of_level[TW_TTFT_LEVELS + 1];
    point at[TW_TTFT_LEVELS];
    uint32_t points, samples;
    double *scratch;         /* as many as there are samples */
} data;

static int by_value(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Sorts them. */
static double median_sorting(double *value, uint32_t n) {
    for (uint32_t i = 1; i < n && n <= POINT_MOST; i++) {
        const double moved = value[i];
        uint32_t at = i;
        for (; at > 0 && value[at - 1] > moved; at--) value[at] = value[at - 1];
        value[at] = moved;
    }
    if (n > POINT_MOST) qsort(value, n, sizeof *value, by_value);
    return (value[(n - 1) / 2] + value[n / 2]) / 2;
}

static uint32_t level_collect(double *out, const tw_ttft_level *level, uint64_t now_ns, uint64_t window_s) {
    uint32_t n = 0;
    for (int i = 0; i < TW_TTFT_KEPT; i++) {
        const uint32_t sample = __atomic_load_n(&level->sample[i], __ATOMIC_RELAXED);
        if (sample != 0 && tw_ttft_age_s(sample, now_ns) <= window_s) out[n++] = tw_ttft_seconds(sample);
    }
    return n;
}

/* Each row sorted: whose table is read first makes no difference. */
static void collect(data *d, const tw_ttft_by_concurrency *const *ttft_sets, size_t n, uint64_t now_ns, uint64_t window_s) {
    d->samples = 0;
    for (int i = 0; i < TW_TTFT_LEVELS; i++) {
        d->of_level[i] = d->samples;
        for (size_t k = 0; k < n; k++)
            d->samples += level_collect(d->sample + d->samples, &ttft_sets[k]->level[i], now_ns, window_s);
        const uint32_t n_of_level = d->samples - d->of_level[i];
        if (n_of_level > 1) qsort(d->sample + d->of_level[i], n_of_level, sizeof *d->sample, by_value);
    }
    d->of_level[TW_TTFT_LEVELS] = d->samples;
}

static double middle_of_level(uint32_t i) {
    uint64_t lowest, highest;
    tw_ttft_level_edges(i, &lowest, &highest);
    return ((double)lowest + (double)highest) / 2;
}

static uint32_t samples_of(const data *d, uint32_t from, uint32_t to) { return d->of_level[to] - d->of_level[from]; }

/* Rows from .. to - 1 as one point; few samples are none. */
static void point_add(data *d, uint32_t from, uint32_t to) {
    point *p = &d->at[d->points];
    p->first = d->of_level[from];
    p->n = samples_of(d, from, to);
    if (p->n < POINT_FEWEST) return;
    p->x = 0;
    for (uint32_t i = from; i < to; i++) p->x += middle_of_level(i) * samples_of(d, i, i + 1) / p->n;
    memcpy(d->scratch, d->sample + p->first, p->n * sizeof *d->scratch);
    p->y = median_sorting(d->scratch, p->n);
    d->points++;
}

static void make_points(data *d) {
    uint32_t from = 0;
    d->points = 0;
    for (uint32_t i = 0; i < TW_TTFT_LEVELS; i++) {
        if (samples_of(d, i, i + 1) == 0 && samples_of(d, from, i) == 0) {
            from = i + 1;
            continue;
        }
        const bool wide = middle_of_level(i) - middle_of_level(from) > POINT_WIDTH * middle_of_level(i);
        if (i > from && (wide || samples_of(d, from, i) >= POINT_SAMPLES)) {
            point_add(d, from, i);
            from = i;
        }
    }
    if (from < TW_TTFT_LEVELS) point_add(d, from, TW_TTFT_LEVELS);
}

/* ---- what a median is worth ---- */

/* Median absolute deviation of a point's samples from its median, as a share of that. */
static double relative_spread(const data *d, const point *p) {
    for (uint32_t i = 0; i < p->n; i++) d->scratch[i] = fabs(d->sample[p->first + i] - p->y);
    return p->y > 0 ? median_sorting(d->scratch, p->n) / p->y : 0;
}

/* Spreads of a few samples are poor: the median of five neighbours' stands for each. A median's standard error is 1.25
 * deviations over sqrt(n); nothing is believed to better than 2 % of itself and of what is usual. */
static void weigh(data *d) {
    double spread[TW_TTFT_LEVELS], usual[TW_TTFT_LEVELS], five[5];
    for (uint32_t i = 0; i < d->points; i++) {
        spread[i] = relative_spread(d, &d->at[i]);
        usual[i] = d->at[i].y;
    }
    const double common = median_sorting(usual, d->points);
    for (uint32_t i = 0; i < d->points; i++) {
        point *p = &d->at[i];
        uint32_t n = 0;
        for (uint32_t k = i > 2 ? i - 2 : 0; k < d->points && k <= i + 2; k++) five[n++] = spread[k];
        const double se = 1.25 * 1.4826 * median_sorting(five, n) * p->y / sqrt(p->n);
        const double floor = 0.02 * (p->y + common) + 1e-6;
        p->sd = sqrt(se * se + floor * floor);
        p->w = 1 / (p->sd * p->sd);
    }
}

/* ---- lines ---- */

typedef struct fit {
    double a, s, h, k;       /* y = a + s x + h max(0, x - k); a line: h = 0 */
    double error;            /* weighted sum of squares */
    bool known;
} fit;

typedef struct sums {
    double w, x, y, xx, xy, yy;
} sums;

static void sums_add(sums *to, const point *p) {
    to->w += p->w;
    to->x += p->w * p->x;
    to->y += p->w * p->y;
    to->xx += p->w * p->x * p->x;
    to->xy += p->w * p->x * p->y;
    to->yy += p->w * p->y * p->y;
}

/* Of z = max(0, x - k) over the points beyond k, of which these are the sums: z, zz, zx, zy. */
typedef struct bend_sums {
    double z, zz, zx, zy;
} bend_sums;

static bend_sums bend_of(const sums *beyond, double k) {
    return (bend_sums){beyond->x - k * beyond->w, beyond->xx - 2 * k * beyond->x + k * k * beyond->w,
                       beyond->xx - k * beyond->x, beyond->xy - k * beyond->y};
}

/* A first line that falls is taken as level: nothing gets faster by more streams, but caches get warm. */
static fit line_of(const sums *all) {
    fit f = {.known = true};
    const double determinant = all->w * all->xx - all->x * all->x;
    f.s = determinant > 0 ? (all->w * all->xy - all->x * all->y) / determinant : 0;
    if (f.s < 0) f.s = 0;
    f.a = (all->y - f.s * all->x) / all->w;
    f.error = all->yy - 2 * f.a * all->y - 2 * f.s * all->xy + f.a * f.a * all->w + 2 * f.a * f.s * all->x +
              f.s * f.s * all->xx;
    return f;
}

static double hinge_error(const sums *all, const bend_sums *b, const fit *f) {
    const double line = all->yy - 2 * f->a * all->y - 2 * f->s * all->xy + f->a * f->a * all->w +
                        2 * f->a * f->s * all->x + f->s * f->s * all->xx;
    return line - 2 * f->h * b->zy + 2 * f->h * (f->a * b->z + f->s * b->zx) + f->h * f->h * b->zz;
}

/* Level before k. */
static fit flat_hinge(const sums *all, const bend_sums *b, double k) {
    fit f = {.k = k};
    const double determinant = all->w * b->zz - b->z * b->z;
    if (!(determinant > 0)) return f;
    f.h = (all->w * b->zy - b->z * all->y) / determinant;
    f.a = (all->y - f.h * b->z) / all->w;
    f.error = hinge_error(all, b, &f);
    f.known = true;
    return f;
}

/* Least squares in centred coordinates: two unknowns are left. */
static fit hinge_of(const sums *all, const sums *beyond, double k) {
    const bend_sums b = bend_of(beyond, k);
    const double xx = all->xx - all->x * all->x / all->w, zz = b.zz - b.z * b.z / all->w;
    const double xz = b.zx - all->x * b.z / all->w;
    const double xy = all->xy - all->x * all->y / all->w, zy = b.zy - b.z * all->y / all->w;
    const double determinant = xx * zz - xz * xz;
    if (!(determinant > 1e-12 * xx * zz)) return (fit){.k = k};
    fit f = {.k = k, .known = true};
    f.s = (xy * zz - zy * xz) / determinant;
    f.h = (zy * xx - xy * xz) / determinant;
    if (f.s < 0) return flat_hinge(all, &b, k);
    f.a = (all->y - f.s * all->x - f.h * b.z) / all->w;
    f.error = hinge_error(all, &b, &f);
    return f;
}

static sums sum_of(const point *at, uint32_t from, uint32_t to) {
    sums s = {.w = 0};
    for (uint32_t i = from; i < to; i++) sums_add(&s, &at[i]);
    return s;
}

static void sums_take_away(sums *from, const point *p) {
    point minus = *p;
    minus.w = -p->w;
    sums_add(from, &minus);
}

#define PARTS 4 /* places tried between two points */

/* The best place for the bend. */
static fit best_hinge(const point *at, uint32_t n, const sums *all) {
    fit best = {.known = false};
    sums beyond = sum_of(at, BEFORE_FEWEST, n);
    for (uint32_t i = BEFORE_FEWEST; i + AFTER_FEWEST <= n; i++) { /* the points from i on lie beyond it */
        for (int part = 0; part < PARTS; part++) {
            const fit f = hinge_of(all, &beyond, at[i - 1].x + (at[i].x - at[i - 1].x) * part / PARTS);
            if (f.known && f.h > 0 && (!best.known || f.error < best.error)) best = f;
        }
        sums_take_away(&beyond, &at[i]);
    }
    return best;
}

static double at_x(const fit *f, double x) { return f->a + f->s * x + f->h * (x > f->k ? x - f->k : 0); }

/* Points far from the fit count less, as in Huber's estimator. */
static void hold_outliers(point *at, uint32_t n, const fit *f) {
    for (uint32_t i = 0; i < n; i++) {
        const double off = fabs(at[i].y - at_x(f, at[i].x)) / at[i].sd;
        at[i].w = (off > OUTLIER ? OUTLIER / off : 1) / (at[i].sd * at[i].sd);
    }
}

typedef struct answer {
    fit line, hinge;
    bool bends;
    double place;            /* of the bend */
} answer;

/* Queues wander: over short stretches a straight line can look bent by as much as itself, but not by many times
 * that. */
static bool is_a_bend(const answer *a, const point *at, uint32_t n) {
    const fit *f = &a->hinge;
    if (!f->known) return false;
    const double end = at[n - 1].x, first_line = fabs(f->a + f->s * end), lift = f->h * (end - f->k);
    const double remains = f->error / (n - 4.0 > 1 ? n - 4.0 : 1), explained = (a->line.error - f->error) / 2;
    const bool sharp = f->s + f->h >= SHARPLY * f->s && lift >= HIGH * first_line;
    const double share = sharp ? SHARE_SHARP : SHARE;
    return f->s + f->h >= STEEPER * f->s && lift >= LIFT * first_line && f->error <= (1 - share) * a->line.error &&
           explained >= EXPLAINS * (remains > 1 ? remains : 1);
}

/* The same line from the points well below the bend alone, and how far a sample lies from it: root mean square of their
 * medians', times the root of their number; a median of few samples strays further. At least 5 % of the line. */
typedef struct first_line {
    fit fit;
    double off, least;
} first_line;

static first_line line_before(const point *at, uint32_t n, double k) {
    uint32_t before = 0;
    while (before < n && (at[before].x <= WELL_BELOW * k || before < BEFORE_FEWEST)) before++;
    const sums below = sum_of(at, 0, before);
    first_line line = {.fit = line_of(&below)};
    double squares = 0;
    for (uint32_t i = 0; i < before; i++) {
        const double off = at[i].y - at_x(&line.fit, at[i].x);
        squares += at[i].w * off * off * at[i].n;
    }
    line.off = sqrt(squares / below.w);
    line.least = 0.05 * fabs(at_x(&line.fit, k));
    return line;
}

static bool clearly_above(const first_line *line, const point *p) {
    return p->y - at_x(&line->fit, p->x) > CLEARLY * fmax(line->off / sqrt(p->n), line->least);
}

/* Where the line through the next few points from i on meets the first one: between point i - 1 and point i. Where no
 * concurrency lies between these, at point i - 1, or half a point before it, as the first step up may be too small to
 * see. */
static double between(const point *at, uint32_t n, uint32_t i, const fit *first) {
    const sums next = sum_of(at, i, i + NEXT < n ? i + NEXT : n);
    const fit second = line_of(&next);
    const double rise = second.s - first->s, x = rise > 0 ? (first->a - second.a) / rise : at[i].x;
    if (at[i].x - at[i - 1].x > 1) return fmin(fmax(x, at[i - 1].x), at[i].x);
    return fmin(fmax(x, (at[i - 2].x + at[i - 1].x) / 2), at[i - 1].x);
}

/* Whether point i and nearly all from it to a little beyond the bend lie clearly above the line: a stall lifts a
 * few. */
static bool stays_above(const point *at, uint32_t n, uint32_t i, double k, const first_line *line) {
    uint32_t seen = 0, above = 0;
    if (!clearly_above(line, &at[i])) return false;
    for (; i < n && (at[i].x <= LATEST * k || seen < IN_A_ROW); i++, seen++) above += clearly_above(line, &at[i]);
    return above * 10 >= seen * 9;
}

/* Two lines that meet show roughly where the first is left, as what queues is noisy; the first line is not: the place is
 * before the first point from which on they stay above it. The rough place where there is none. */
static double leaves_first_line(const point *at, uint32_t n, double k) {
    const first_line line = line_before(at, n, k);
    for (uint32_t i = BEFORE_FEWEST; i + 1 < n; i++)
        if (at[i].x >= EARLIEST * k && at[i].x <= LATEST * k && stays_above(at, n, i, k, &line))
            return between(at, n, i, &line.fit);
    return k;
}

/* Weights are left as they were found. */
static answer judge(point *at, uint32_t n) {
    answer a = {.bends = false};
    sums all = sum_of(at, 0, n);
    a.hinge = best_hinge(at, n, &all);
    for (int turn = 0; turn < 2 && a.hinge.known; turn++) {
        hold_outliers(at, n, &a.hinge);
        all = sum_of(at, 0, n);
        a.hinge = best_hinge(at, n, &all);
    }
    a.line = line_of(&all);
    a.bends = is_a_bend(&a, at, n);
    if (a.bends) a.place = leaves_first_line(at, n, a.hinge.k);
    for (uint32_t i = 0; i < n; i++) at[i].w = 1 / (at[i].sd * at[i].sd);
    return a;
}

/* ---- how sure it is ---- */

static uint64_t random_next(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

static double resampled_median(const data *d, const point *p, uint64_t *state) {
    const uint32_t n = p->n < POINT_MOST ? p->n : POINT_MOST;
    double drawn[POINT_MOST];
    for (uint32_t i = 0; i < n; i++)
        drawn[i] = d->sample[p->first + (random_next(state) >> 32) * p->n / (UINT64_C(1) << 32)];
    return median_sorting(drawn, n);
}

static double confidence_of(data *d, const answer *found) {
    uint64_t state = UINT64_C(0x9e3779b97f4a7c15);
    point again[TW_TTFT_LEVELS];
    int same = 0;
    for (int i = 0; i < RESAMPLINGS; i++) {
        memcpy(again, d->at, d->points * sizeof *again);
        for (uint32_t k = 0; k < d->points; k++) again[k].y = resampled_median(d, &d->at[k], &state);
        const answer a = judge(again, d->points);
        same += a.bends && fabs(a.place - found->place) <= NEAR * found->place;
    }
    return (double)same / RESAMPLINGS;
}

/* ---- the verdict ---- */

static void describe(tw_healthy *out, const data *d) {
    uint64_t unused;
    uint32_t low = 0, high = TW_TTFT_LEVELS;
    memset(out, 0, sizeof *out);
    out->samples = d->samples;
    out->levels = d->points;
    out->verdict = TW_HEALTHY_FEW_DATA;
    if (d->samples == 0) return;
    while (samples_of(d, low, low + 1) == 0) low++;
    while (samples_of(d, high - 1, high) == 0) high--;
    tw_ttft_level_edges(low, &out->lowest, &unused);
    tw_ttft_level_edges(high - 1, &unused, &out->highest);
    memcpy(d->scratch, d->sample, d->samples * sizeof *d->scratch);
    out->median_s = median_sorting(d->scratch, d->samples);
}

static void fill_in(tw_healthy *out, const fit *f) {
    out->fitted = 1;
    out->base_s = f->a;
    out->slope_s = f->s;
    out->bend_s = f->h;
    out->bend_at = f->k;
}

/* The first bend is meant: it is looked for in the lower part of what was seen, too, where a long tail above it does
 * not outvote it. 0: the points of no part bend. */
static uint32_t points_that_bend(data *d, answer *found) {
    uint32_t bend_in = 0;
    const double highest = d->at[d->points - 1].x;
    for (double part = 1; part > 1.0 / 64; part /= PART_STEP) {
        uint32_t n = d->points;
        while (n > 0 && d->at[n - 1].x > highest * part) n--;
        if (n < POINTS_FEWEST) break;
        const answer a = judge(d->at, n);
        if (part == 1 || a.bends) *found = a;
        if (a.bends) bend_in = n;
    }
    return bend_in;
}

static void decide(tw_healthy *out, data *d) {
    describe(out, d);
    if (d->samples < SAMPLES_FEWEST) return;
    const bool narrow = d->points < 2 || d->at[d->points - 1].x < (1 + SPAN_LEAST) * d->at[0].x;
    if (d->points < POINTS_FEWEST) {
        out->verdict = narrow ? TW_HEALTHY_SINGLE_LEVEL : TW_HEALTHY_FEW_DATA;
        return;
    }
    weigh(d);
    answer a;
    const uint32_t bend_in = points_that_bend(d, &a);
    fill_in(out, a.bends ? &a.hinge : &a.line);
    out->verdict = a.bends ? TW_HEALTHY_FOUND : narrow ? TW_HEALTHY_SINGLE_LEVEL : TW_HEALTHY_NO_INFLECTION;
    if (!a.bends) return;
    d->points = bend_in;
    out->streams = a.place;
    out->confidence = confidence_of(d, &a);
}

/* Whether no longer window need be asked. One that saw only busy hours has nothing of the first line. */
static bool answers(const tw_healthy *h, double lowest) {
    return h->verdict == TW_HEALTHY_FOUND && h->confidence >= SURE && (double)h->lowest <= 1.5 * lowest + 1;
}

static double lowest_of(const tw_ttft_by_concurrency *const *ttft_sets, size_t n, data *d, uint64_t now_ns) {
    collect(d, ttft_sets, n, now_ns, TW_TTFT_FORGET_S);
    uint32_t low = 0;
    while (low < TW_TTFT_LEVELS - 1 && samples_of(d, low, low + 1) == 0) low++;
    return middle_of_level(low);
}

static bool room_for(data *d, size_t n) {
    const size_t most = n * TW_TTFT_LEVELS * TW_TTFT_KEPT;
    const bool fits = n > 0 && n < SIZE_MAX / sizeof(double) / 2 / TW_TTFT_LEVELS / TW_TTFT_KEPT;
    d->sample = fits ? tw_malloc(2 * most * sizeof *d->sample) : NULL;
    d->scratch = d->sample + most;
    return d->sample != NULL;
}

/* Those of one meaning of concurrency, in the front of `chosen`. */
static size_t choose(const tw_ttft_by_concurrency **chosen, const tw_ttft_by_concurrency *const *ttft_sets, size_t n) {
    uint64_t shared = 0;
    size_t used = 0;
    for (size_t i = 0; i < n; i++) shared |= tw_load(&ttft_sets[i]->shared);
    for (size_t i = 0; i < n; i++)
        if (tw_load(&ttft_sets[i]->shared) == shared) chosen[used++] = ttft_sets[i];
    return used;
}

static data *data_new(const tw_ttft_by_concurrency *const *ttft_sets, size_t n, const tw_ttft_by_concurrency ***chosen, size_t *used) {
    data *d = tw_calloc(1, sizeof *d);
    *chosen = tw_malloc((n ? n : 1) * sizeof **chosen);
    if (d != NULL && *chosen != NULL && room_for(d, n ? n : 1)) {
        *used = choose(*chosen, ttft_sets, n);
        return d;
    }
    tw_free(*chosen);
    tw_free(d);
    return NULL;
}

static void data_free(data *d, const tw_ttft_by_concurrency **chosen) {
    tw_free(d->sample);
    tw_free(d);
    tw_free(chosen);
}

int tw_healthy_find(tw_healthy *out, const tw_ttft_by_concurrency *const *ttft_sets, size_t n, uint64_t now_ns) {
    const tw_ttft_by_concurrency **chosen;
    size_t used;
    data *d = data_new(ttft_sets, n, &chosen, &used);
    if (d == NULL) return ENOMEM;
    const double lowest = lowest_of(chosen, used, d, now_ns);
    for (size_t i = 0; i < sizeof windows_s / sizeof *windows_s; i++) {
        collect(d, chosen, used, now_ns, windows_s[i]);
        make_points(d);
        decide(out, d);
        out->window_s = windows_s[i];
        if (answers(out, lowest)) break;
    }
    data_free(d, chosen);
    return 0;
}

int tw_ttft_curve(tw_ttft_point *points, uint32_t *count, const tw_ttft_by_concurrency *const *ttft_sets, size_t n, uint64_t now_ns) {
    const tw_ttft_by_concurrency **chosen;
    size_t used;
    data *d = data_new(ttft_sets, n, &chosen, &used);
    if (d == NULL) return ENOMEM;
    collect(d, chosen, used, now_ns, TW_TTFT_FORGET_S);
    make_points(d);
    for (uint32_t i = 0; i < d->points; i++) points[i] = (tw_ttft_point){d->at[i].x, d->at[i].y, d->at[i].n};
    *count = d->points;
    data_free(d, chosen);
    return 0;
}

double tw_healthy_ttft(const tw_healthy *h, double x) {
    if (h->fitted == 0) return h->samples > 0 ? h->median_s : -1;
    const fit f = {.a = h->base_s, .s = h->slope_s, .h = h->bend_s, .k = h->bend_at};
    const double ttft = at_x(&f, x);
    return ttft > 0 ? ttft : 0;
}

/* ---- of segments ---- */

int tw_healthy_take(tw_healthy *out, tw_ttft_point *points, uint32_t *count, const tw_segment *const *segments,
                    size_t n, uint64_t now_ns) {
    if (segments == NULL || n == 0) return EINVAL;
    const tw_ttft_by_concurrency **ttft_sets = tw_malloc(n * sizeof *ttft_sets);
    if (ttft_sets == NULL) return ENOMEM;
    for (size_t i = 0; i < n; i++) ttft_sets[i] = &segments[i]->ttft_by_concurrency;
    int error = tw_healthy_find(out, ttft_sets, n, now_ns);
    if (error == 0) error = tw_ttft_curve(points, count, ttft_sets, n, now_ns);
    tw_free(ttft_sets);
    return error;
}
