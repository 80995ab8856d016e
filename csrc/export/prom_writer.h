/* What a format is to the families: how a family begins and ends, and how a sample is written. Private.
 *
 * Between begin() and end(), for each sample: open(), label() in order, then number() or, in a histogram's family,
 * histogram(). What the sample has beside its labels is set in the writer before the last of these.
 */
#ifndef TAILWATCH_EXPORT_PROM_WRITER_H
#define TAILWATCH_EXPORT_PROM_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tailwatch/base/buffer.h"
#include "tailwatch/aggregate/snapshot.h"

typedef enum tw_family_kind { TW_FAMILY_COUNTER, TW_FAMILY_GAUGE, TW_FAMILY_HISTOGRAM, TW_FAMILY_INFO } tw_family_kind;

typedef struct tw_family_head {
    const char *name;            /* as OpenMetrics has it: a counter without _total */
    int kind;                    /* tw_family_kind */
    const char *help;
} tw_family_head;

/* a; a nanoseconds as seconds; a / b with b > 0. */
typedef struct tw_number {
    enum { TW_NUMBER_COUNT, TW_NUMBER_SECONDS, TW_NUMBER_RATIO } kind;
    uint64_t a, b;
} tw_number;

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
    void (*number)(tw_writer *, const tw_number *);
    void (*histogram)(tw_writer *, const tw_counts *, const tw_layout *);
    void (*end)(tw_writer *);
} tw_syntax;

extern const tw_syntax tw_syntax_text, tw_syntax_proto;

struct tw_writer {
    const tw_syntax *syntax;
    tw_buffer *out;
    bool openmetrics;            /* of the two text formats */
    bool classic;                /* protobuf: whether the classic buckets stand beside the native ones */
    const tw_family_head *family;
    uint64_t created_ns;         /* of the sample: when it counted nothing yet, unix time */
    const tw_snapshot_exemplar *exemplars; /* of the sample, by bound */
    uint32_t exemplar_count;
    /* the syntax's own */
    uint32_t labels;             /* of the sample being written */
    size_t family_at, sample_at, labels_at;
    tw_bound_texts bounds[TW_LAYOUTS];
};

/* For a tw_format that appends to out. */
void tw_writer_init(tw_writer *w, int format, tw_buffer *out);

/* The sample's exemplar of a classic bound (the number of bounds: above all), NULL: none. */
const tw_snapshot_exemplar *tw_writer_exemplar(const tw_writer *w, uint32_t bound);

/* What the name of a sample has behind its family's. */
const char *tw_suffix_of(const tw_family_head *f);

/* The unit that a family's name ends with, NULL: none. */
const char *tw_unit_of(const char *name);

/* Decimal digits of a value, at most 20. Returns how many. */
size_t tw_format_count(char *at, uint64_t value);

/* The classic bounds of a layout as OpenMetrics writes them. */
void tw_bound_texts_fill(tw_bound_texts *texts, const tw_layout *layout);

#endif
