#include "tailwatch/sse.h"

#include <string.h>

static const char hex[] = "0123456789abcdef";

static char short_escape(unsigned char c) {
    switch (c) {
    case '"': return '"';
    case '\\': return '\\';
    case '\b': return 'b';
    case '\t': return 't';
    case '\n': return 'n';
    case '\f': return 'f';
    case '\r': return 'r';
    default: return '\0';
    }
}

static char *write_unit(char *out, uint32_t unit) {
    out[0] = '\\', out[1] = 'u';
    for (int i = 0; i < 4; i++) out[2 + i] = hex[(unit >> (12 - 4 * i)) & 15];
    return out + 6;
}

size_t tw_json_escaped_len(tw_dialect dialect, const char *text, size_t len) {
    size_t extra = 0;
    (void)dialect;
    for (size_t i = 0; i < len; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (short_escape(c)) extra += 1;
        else if (c < 0x20) extra += 5;
    }
    return len + extra;
}

size_t tw_json_escape(tw_dialect dialect, const char *text, size_t len, char *out) {
    char *to = out;
    (void)dialect;
    for (size_t i = 0; i < len; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (short_escape(c)) *to++ = '\\', *to++ = short_escape(c);
        else if (c < 0x20) to = write_unit(to, c);
        else *to++ = (char)c;
    }
    return (size_t)(to - out);
}

size_t tw_frame_len(const tw_frame *frame, tw_filling *fillings) {
    size_t len = frame->cut[frame->holes];
    for (uint32_t i = 0; i < frame->holes; i++) {
        tw_filling *filling = &fillings[i];
        filling->escaped = filling->verbatim ? filling->len
                                             : tw_json_escaped_len((tw_dialect)frame->dialect, filling->text, filling->len);
        len += filling->escaped;
    }
    return len;
}

static char *fill(tw_dialect dialect, const tw_filling *filling, char *out) {
    if (filling->escaped != filling->len) return out + tw_json_escape(dialect, filling->text, filling->len, out);
    if (filling->len > 0) memcpy(out, filling->text, filling->len);
    return out + filling->len;
}

char *tw_frame_write(const tw_frame *frame, const tw_filling *fillings, char *out) {
    uint32_t from = 0;
    for (uint32_t i = 0; i <= frame->holes; i++) {
        const uint32_t to = frame->cut[i];
        memcpy(out, frame->bytes + from, to - from);
        out += to - from;
        if (i < frame->holes) out = fill((tw_dialect)frame->dialect, &fillings[i], out);
        from = to;
    }
    return out;
}
