/* A snapshot as an OTLP ExportMetricsServiceRequest, in bytes.
 *
 * Cold path: one growing buffer, called without the GIL. Counts, sums and buckets are those of the snapshot, exactly.
 *
 * Exponential histograms are the core's own buckets (scale 5), made coarser by whole scales until they are at most
 * max_buckets: that is exact. What lies at or below 1 us counts as zero, with that as the threshold; what lies above
 * 1002 s counts in the first bucket above it (max shows how far). Explicit ones have the semantic conventions' bounds
 * where there are some, else the core's classic ones, all of which are edges of slots.
 *
 * Exemplars stand at inter-token latencies and at durations of answered requests, whose trace id is W3C's; they have no
 * span id.
 *
 * min and max are written for cumulative histograms only: those of a difference are edges of buckets, not samples.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/base/buffer.h"
#include "tailwatch/export/metrics.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

/* All strings UTF-8; what is none of it becomes '?'. */
typedef struct tw_otlp_info {
    tw_metrics_info metrics;             /* version: also that of the scope "tailwatch" */
    const char *provider;                /* gen_ai.provider.name */
    const char *server_address;          /* server.address of all series; NULL or "": not known */
    uint32_t server_port;                /* server.port; 0: there is none */
    const void *resource;                /* a Resource message in bytes */
    size_t resource_len;
    const char *resource_schema_url;     /* "" for none */
    uint64_t start_unix_ns;              /* of cumulative points */
    uint64_t since_unix_ns;              /* of delta points */
    uint64_t time_unix_ns;
    bool delta_histograms, delta_sums, exponential;
    uint32_t max_buckets;                /* of an exponential histogram, at least 2 */
    tw_otlp_own own, own_since;          /* own_since: as of since_unix_ns */
} tw_otlp_info;

/* gen_ai.operation.name of a route: "chat" where it holds "chat" or ends in /messages or /responses, "embeddings"
 * where it holds "embed", "text_completion" where it holds "completion" or "generate", else "generate_content". */
const char *tw_otlp_operation(const char *route);

/* Appends the request to out. since: what came since the last one (tw_snapshot_subtract), for what is delta; NULL where
 * there was none: then all came since. Returns 0, EINVAL or ENOMEM; out is of no use then. */
int tw_otlp_metrics(const tw_snapshot *now, const tw_snapshot *since, const tw_otlp_info *info, tw_buffer *out);

TW_END_C
