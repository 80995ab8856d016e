/* The healthy concurrency: the streams in flight above which TTFT leaves its first straight line upwards.
 *
 * From the tables of ttft_by_concurrency.h: the median TTFT of each concurrency, so that a tenth of stalled requests
 * moves nothing; a straight line, and two that meet, fitted to them (weighted by their spread and number,
 * outliers held down). Where the second rises clearly faster, explains clearly more and lifts TTFT clearly above the
 * first, the place where they meet is the answer; else there is no inflection in what was seen, which a busier hour may
 * show. Two minutes of data are asked first, then ten, then all that is kept: the newest that can answer does.
 *
 * Cold path: allocates, is called without the GIL. 0.1 to 3 ms.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/segment.h"

#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

typedef enum tw_healthy_verdict {
    TW_HEALTHY_FOUND,
    TW_HEALTHY_NO_INFLECTION,       /* what was seen is one straight line */
    TW_HEALTHY_FEW_DATA,            /* too few first tokens, or concurrencies */
    TW_HEALTHY_SINGLE_LEVEL,           /* enough of them, at concurrencies too near one another */
    TW_HEALTHY_VERDICTS
} tw_healthy_verdict;

typedef struct tw_healthy {
    uint64_t verdict;               /* tw_healthy_verdict */
    double streams;                 /* the healthy concurrency; 0 where none was found */
    double confidence;              /* 0..1: the share of resamplings of the data that find it within 10 % of this */
    uint64_t fitted;                /* not 0: ttft(x) = base_s + slope_s * x + bend_s * max(0, x - bend_at); a line has
                                     * bend_s 0 */
    double base_s, slope_s, bend_s, bend_at;
    double median_s;                /* of all samples; 0 without any */
    uint64_t samples, levels;       /* that it stands on */
    uint64_t lowest, highest;       /* concurrency seen */
    uint64_t window_s;              /* the age of data that it used */
} tw_healthy;

/* The median TTFT at about so many streams in flight. */
typedef struct tw_ttft_point {
    double streams, ttft_s;
    uint64_t samples;
} tw_ttft_point;

/* Names: "found", "no_inflection", "few_data", "single_level"; "unknown" out of range. */
const char *tw_healthy_name(int verdict);

/* From n tables as of now_ns; only those of one meaning of concurrency count: the group's where any has it. 0 or
 * ENOMEM. */
int tw_healthy_find(tw_healthy *out, const tw_ttft_by_concurrency *const *ttft_sets, size_t n, uint64_t now_ns);

/* At most TW_TTFT_LEVELS points, ascending; *count: how many. 0 or ENOMEM. */
int tw_ttft_curve(tw_ttft_point *points, uint32_t *count, const tw_ttft_by_concurrency *const *ttft_sets, size_t n, uint64_t now_ns);

/* Seconds until the first token of a request that comes when x - 1 are in flight; below 0: not known. */
double tw_healthy_ttft(const tw_healthy *h, double x);

/* Both of these over segments, the dead among them. points: room for TW_TTFT_LEVELS. 0, EINVAL or ENOMEM. */
int tw_healthy_take(tw_healthy *out, tw_ttft_point *points, uint32_t *count, const tw_segment *const *segments,
                    size_t n, uint64_t now_ns);

TW_END_C
