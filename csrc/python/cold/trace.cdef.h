/* What tailwatch._cold shows of track_writer.h and trace_export.h; as python/cold/cold.cdef.h, and after it. */

/* clock_sync.h */
bool tw_clock_convert(const tw_clock_snapshot *snapshots, size_t n, int from, int to, uint64_t t, uint64_t *out);

/* track_writer.h */
#define TW_TIMELINE_PERFETTO ...
#define TW_TIMELINE_JSON ...
#define TW_TIMELINE_CHUNK ...
#define TW_TRACK_PROCESS ...
#define TW_TRACK_THREAD ...
#define TW_TRACK_SLICES ...
#define TW_TRACK_COUNTER ...

typedef struct tw_timeline tw_timeline;

typedef struct tw_track {
    uint32_t kind, sequence, parent, rank, name, unit;
    int32_t pid;
    int64_t tid;
} tw_track;

typedef struct tw_arg {
    uint32_t name, kind;
    uint64_t value;
} tw_arg;

typedef struct tw_point {
    uint64_t at_ns, value;
    uint32_t track, name, category, type, arg_at, flow_at;
    uint16_t args, starts, ends, spare;
} tw_point;

int tw_timeline_create_fd(tw_timeline **out, int format, int fd);
int tw_timeline_finish(tw_timeline *t);
void tw_timeline_free(tw_timeline *t);
uint64_t tw_timeline_bytes(const tw_timeline *t);
void tw_timeline_clocks(tw_timeline *t, const tw_clock_snapshot *snapshots, size_t n);
uint32_t tw_timeline_name(tw_timeline *t, const char *text, size_t len);
uint32_t tw_timeline_sequence(tw_timeline *t);
uint32_t tw_timeline_find(const tw_timeline *t, int kind, int32_t pid, int64_t tid);
uint32_t tw_timeline_track(tw_timeline *t, const tw_track *track);
size_t tw_timeline_points(tw_timeline *t, const tw_point *points, size_t n, const tw_arg *args, size_t n_args,
                          const uint64_t *flows, size_t n_flows);

/* trace_export.h */
#define TW_TRACE_FILES ...

typedef struct tw_trace_account {
    uint64_t events;
    uint64_t kind[...];
    uint64_t requests, unfinished, beginless, host_gaps, open_pauses, lost, arrows, arrows_left_out, shortest_ns;
} tw_trace_account;

const char *tw_kind_name(int kind);
int tw_trace_export(tw_timeline *t, const tw_trace *const *files, size_t n, uint64_t from_ns, uint64_t until_ns,
                    tw_trace_account *account);
size_t tw_trace_clocks_merged(const tw_trace *const *files, size_t n, tw_clock_snapshot *out, size_t room);
