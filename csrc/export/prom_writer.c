#include "export/prom_writer.h"

#include <string.h>

const tw_snapshot_exemplar *tw_writer_exemplar(const tw_writer *w, uint32_t bound) {
    for (uint32_t i = 0; i < w->sample->exemplar_count; i++)
        if (w->sample->exemplars[i].bound == bound) return &w->sample->exemplars[i];
    return NULL;
}

const char *tw_suffix_of(const tw_instrument *family) {
    return family->kind == TW_INSTRUMENT_COUNTER ? "_total" : family->kind == TW_INSTRUMENT_INFO ? "_info" : "";
}

const char *tw_prom_unit(const tw_instrument *family) {
    return strcmp(family->unit, "s") == 0 ? "seconds" : strcmp(family->unit, "By") == 0 ? "bytes" : NULL;
}
