/* Metrics as Prometheus reads them: text 0.0.4, OpenMetrics 1.0 and the classic protobuf with native histograms,
 * rendered without the GIL.
 *
 * Cold path: one growing buffer, no other allocation, no lock. Any thread.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/base/buffer.h"
#include "tailwatch/export/metrics.h"

TW_BEGIN_C

/* The text formats have classic histograms. Protobuf has native ones, schema 5, and in TW_FORMAT_PROTOBUF the classic
 * buckets beside them. Exemplars are in all but TW_FORMAT_TEXT, created times in protobuf. */
typedef enum tw_format {
    TW_FORMAT_TEXT,
    TW_FORMAT_OPENMETRICS,
    TW_FORMAT_PROTOBUF,
    TW_FORMAT_PROTOBUF_NATIVE,
    TW_FORMATS
} tw_format;

/* Appends every metric that has a Prometheus name. OpenMetrics output ends without "# EOF", so that the application's
 * own families can follow. Returns 0 or ENOMEM. */
int tw_exposition_render(const tw_snapshot *s, const tw_metrics_info *info, int format, tw_buffer *out);

TW_END_C
