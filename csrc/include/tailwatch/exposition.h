/* Metrics as text: Prometheus 0.0.4 and OpenMetrics 1.0, rendered without the GIL.
 *
 * Cold path: one growing buffer, no other allocation, no lock. Any thread.
 */
#ifndef TAILWATCH_EXPOSITION_H
#define TAILWATCH_EXPOSITION_H

#include "tailwatch/snapshot.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tw_format { TW_FORMAT_TEXT, TW_FORMAT_OPENMETRICS, TW_FORMATS } tw_format;

typedef struct tw_buffer {
    char *data;
    size_t length, capacity;
    int failed;                /* ENOMEM once an append could not grow; later appends do nothing */
} tw_buffer;

void tw_buffer_free(tw_buffer *b);

/* What the numbers do not know of themselves. All strings UTF-8, any content (escaped here). */
typedef struct tw_exposition_info {
    const char *version, *python, *slo;  /* slo: the text the user gave, label of tailwatch_requests_good_total */
    uint64_t extra_bytes;                /* memory outside segments, added to tailwatch_memory_bytes */
    double registry_seconds;             /* what rendering the host's own registry took last, < 0: none */
    uint32_t goodput_window_s;           /* window of tailwatch_goodput_requests_per_second */
} tw_exposition_info;

/* Appends every family. OpenMetrics output ends without "# EOF", so that a host's families can follow.
 * Returns 0 or ENOMEM. */
int tw_exposition_render(const tw_snapshot *s, const tw_exposition_info *info, int format, tw_buffer *out);

#ifdef __cplusplus
}
#endif
#endif
