/* Metrics as Prometheus reads them: text 0.0.4, OpenMetrics 1.0 and the classic protobuf with native histograms, rendered
 * without the GIL.
 *
 * Cold path: one growing buffer, no other allocation, no lock. Any thread.
 */
#ifndef TAILWATCH_EXPORT_PROM_FAMILIES_H
#define TAILWATCH_EXPORT_PROM_FAMILIES_H

#include "tailwatch/base/buffer.h"
#include "tailwatch/aggregate/concurrency_knee.h"
#include "tailwatch/aggregate/snapshot.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The text formats have classic histograms. Protobuf has native ones, schema 5, and in TW_FORMAT_PROTOBUF the classic
 * buckets beside them. Exemplars are in all but TW_FORMAT_TEXT, created times in protobuf. */
typedef enum tw_format {
    TW_FORMAT_TEXT,
    TW_FORMAT_OPENMETRICS,
    TW_FORMAT_PROTOBUF,
    TW_FORMAT_PROTOBUF_NATIVE,
    TW_FORMATS
} tw_format;

/* What routers read. Numbers below 0 are not known: their families have no sample. */
typedef struct tw_load_gauges {
    double running, waiting;             /* requests in flight, whole group */
    double healthy, confidence;          /* see concurrency_knee.h */
    double ratio, utilization, headroom; /* in flight / healthy; the same, at most 1; streams left below it */
    double predicted_s;                  /* TTFT of a request admitted now */
    double within_slo;                   /* 1 or 0: whether that is within the SLO's bound */
    const char *verdict;                 /* tw_healthy_name() */
    const tw_crowd_point *points;        /* the median TTFT by concurrency, ascending */
    uint32_t point_count;
} tw_load_gauges;

/* What the numbers do not know of themselves. All strings UTF-8, any content (escaped here). */
typedef struct tw_exposition_info {
    const char *version, *python, *slo;  /* slo: the text the user gave, label of tailwatch_requests_good_total */
    uint64_t extra_bytes;                /* memory outside segments, added to tailwatch_memory_bytes */
    double registry_seconds;             /* what rendering the host's own registry took last, < 0: none */
    uint32_t goodput_window_s;           /* window of tailwatch_goodput_requests_per_second */
    const tw_load_gauges *load;          /* NULL: not known */
} tw_exposition_info;

/* Appends every family. OpenMetrics output ends without "# EOF", so that a host's families can follow.
 * Returns 0 or ENOMEM. */
int tw_exposition_render(const tw_snapshot *s, const tw_exposition_info *info, int format, tw_buffer *out);

#ifdef __cplusplus
}
#endif
#endif
