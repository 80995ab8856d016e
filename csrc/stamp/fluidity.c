#include "stamp/stream_parts.h"

void tw_deadlines_at_once(tw_stream *s, uint32_t more) {
    wide gained = (wide)more * s->deadline_ns;
    s->slack_ns = add_capped(s->slack_ns, gained < SLACK_MAX ? (uint64_t)gained : SLACK_MAX, SLACK_MAX);
    tw_deadlines_count(s, more, more);
}

void tw_deadlines_miss(tw_stream *s, uint64_t over, uint64_t deadline) {
    s->slack_ns = 0;
    tw_deadlines_count(s, over / deadline + 1, 0);
}
