#include "export/prom_writer.h"

#include <string.h>

#include "tailwatch/export/prom_families.h"

void tw_writer_init(tw_writer *w, int format, tw_buffer *out) {
    memset(w, 0, sizeof *w);
    w->out = out;
    w->openmetrics = format == TW_FORMAT_OPENMETRICS;
    w->classic = format == TW_FORMAT_PROTOBUF;
    w->syntax = format == TW_FORMAT_PROTOBUF || format == TW_FORMAT_PROTOBUF_NATIVE ? &tw_syntax_proto : &tw_syntax_text;
    for (int k = 0; w->syntax == &tw_syntax_text && k < TW_LAYOUTS; k++) tw_bound_texts_fill(&w->bounds[k], tw_layout_of(k));
}

const tw_snapshot_exemplar *tw_writer_exemplar(const tw_writer *w, uint32_t bound) {
    for (uint32_t i = 0; i < w->exemplar_count; i++)
        if (w->exemplars[i].bound == bound) return &w->exemplars[i];
    return NULL;
}

const char *tw_suffix_of(const tw_family_head *f) {
    return f->kind == TW_FAMILY_COUNTER ? "_total" : f->kind == TW_FAMILY_INFO ? "_info" : "";
}

const char *tw_unit_of(const char *name) {
    static const char *const units[] = {"seconds", "bytes"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t n = strlen(units[i]);
        if (length > n && name[length - n - 1] == '_' && !strcmp(name + length - n, units[i])) return units[i];
    }
    return NULL;
}
