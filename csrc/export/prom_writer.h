/* What a format is to the metrics: how a family begins and ends, and how a sample is written. Private.
 *
 * Between begin() and end(), for each sample: open(), label() in order, then number() or, in a histogram's family,
 * histogram(). The writer has the sample by then.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "export/metric_samples.h"
#include "tailwatch/base/buffer.h"

#define TW_BOUND_ROOM 32         /* a bound in seconds: 11 digits, a point, 9 digits */

typedef struct tw_bound_texts {
    char text[TW_BOUNDS_MAX][TW_BOUND_ROOM];
    size_t length[TW_BOUNDS_MAX];
} tw_bound_texts;

typedef struct tw_writer tw_writer;

typedef struct tw_syntax {
    void (*begin)(tw_writer *);
    void (*open)(tw_writer *);
    void (*label)(tw_writer *, const char *name, const char *value);
    void (*number)(tw_writer *);
    void (*histogram)(tw_writer *);
    void (*end)(tw_writer *);
} tw_syntax;

extern const tw_syntax tw_syntax_text, tw_syntax_proto;

struct tw_writer {
    const tw_syntax *syntax;
    tw_buffer *out;
    bool openmetrics;            /* of the two text formats */
    bool classic;                /* protobuf: whether the classic buckets stand beside the native ones */
    const tw_instrument *family;
    const tw_sample *sample;
    uint64_t created_ns;         /* when the sample was 0, unix time */
    uint64_t snapshot_created_ns; /* likewise of samples without a process */
    /* the syntax's own */
    uint32_t labels;             /* of the sample being written */
    size_t family_at, sample_at, labels_at;
    tw_bound_texts bounds[TW_LAYOUTS];
};

/* The sample's exemplar of a classic bound (the number of bounds: above all), NULL: none. */
const tw_snapshot_exemplar *tw_writer_exemplar(const tw_writer *w, uint32_t bound);

/* What the name of a sample has behind its family's. */
const char *tw_suffix_of(const tw_instrument *family);

/* The unit as Prometheus has it, which the family's name ends with; NULL: none. */
const char *tw_prom_unit(const tw_instrument *family);

/* Decimal digits of a value, at most 20. Returns how many. */
size_t tw_format_count(char *at, uint64_t value);

/* The classic bounds of a layout as OpenMetrics writes them. */
void tw_bound_texts_fill(tw_bound_texts *texts, const tw_layout *layout);
