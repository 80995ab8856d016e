#include "tailwatch/export/prom_exposition.h"

#include "export/prom_writer.h"

static void put_labels(tw_writer *w, const tw_sample *sample) {
    static const char *const generations[TW_CAUSES] = {"0", "1", "2", "full", "increment", "own"};
    char process[TW_PROCESS_NAME_ROOM];
    if (sample->series) {
        w->syntax->label(w, "model_name", sample->series->model);
        w->syntax->label(w, "route", sample->series->route);
    }
    if (sample->cause >= 0) w->syntax->label(w, "generation", generations[sample->cause]);
    if (sample->process) {
        tw_process_name(process, sample->process);
        w->syntax->label(w, "process", process);
    }
    for (int i = 0; i < TW_SAMPLE_LABELS && sample->label[i].name; i++)
        w->syntax->label(w, sample->label[i].name, sample->label[i].value ? sample->label[i].value : "");
}

static void put_sample(void *to, const tw_sample *sample) {
    tw_writer *w = to;
    w->sample = sample;
    w->created_ns = sample->process ? sample->process->created_unix_ns : w->snapshot_created_ns;
    w->syntax->open(w);
    put_labels(w, sample);
    if (w->family->kind == TW_INSTRUMENT_HISTOGRAM) w->syntax->histogram(w);
    else w->syntax->number(w);
}

int tw_exposition_render(const tw_snapshot *s, const tw_metrics_info *info, int format, tw_buffer *out) {
    const bool proto = format == TW_FORMAT_PROTOBUF || format == TW_FORMAT_PROTOBUF_NATIVE;
    size_t n;
    const tw_instrument *families = tw_instruments(&n);
    tw_writer w = {
        .out = out,
        .syntax = proto ? &tw_syntax_proto : &tw_syntax_text,
        .openmetrics = format == TW_FORMAT_OPENMETRICS,
        .classic = format == TW_FORMAT_PROTOBUF,
        .snapshot_created_ns = s->created_ns,
    };
    tw_sampling sampling = {.snapshot = s, .latest = s, .info = info, .emit = put_sample, .to = &w};
    for (int k = 0; !proto && k < TW_LAYOUTS; k++) tw_bound_texts_fill(&w.bounds[k], tw_layout_of(k));
    tw_snapshot_window(s, info->goodput_window_s, &sampling.window);
    for (size_t i = 0; i < n && !out->failed; i++) {
        if (!families[i].prometheus || !tw_sampling_has(&sampling, families[i].use)) continue;
        w.family = &families[i];
        w.syntax->begin(&w);
        families[i].samples(&sampling, &families[i]);
        w.syntax->end(&w);
    }
    return out->failed;
}
