#include "tailwatch/stall/frame_walk.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "tailwatch/base/clock.h"

#define NONE UINT32_MAX
#define TRIES 3
#define LOOKS 3 /* at a stack: a thread that runs on may be met again where it was, by chance */
#define LINES_MOST 4000 /* bytes of a line table that are looked at; a function that long shows its first line */
#define FRAME_BYTES 128
#define CODE_BYTES 256

/* ---- where things stand ---- */

#define GIL_HOLDER 8 /* struct _gil_runtime_state, the same from 3.10 to 3.13 */
#define GIL_LOCKED 16
#define GIL_SIZE 208

#define GIL GIL_HOLDER, GIL_LOCKED, GIL_SIZE
#define THREAD_INTERPRETER 16 /* of a thread's state, the same from 3.10 to 3.13 */

static const tw_offsets known[] = {
    [10] = {24, NONE, NONE, 32, 24, 96, NONE, 0, 112, 104, 40, 120, NONE, 16, 32, 48, 16, 32, GIL},
    [11] = {56, 8, 296, 32, 48, 56, 69, NONE, 128, 112, 72, 136, 184, 16, 32, 48, 16, 32, GIL},
    [12] = {56, 0, 232, 0, 8, 56, 70, 3, 128, 112, 68, 136, 192, 16, 32, 40, 16, 32, GIL},
};

/* Words of _Py_DebugOffsets of 3.13, by their place. */
enum {
    INTERPRETER_GIL = 14, /* pointer to the lock in use */
    THREAD_FRAME = 23,
    FRAME_PREVIOUS = 29, FRAME_CODE, FRAME_INSTRUCTION, FRAME_LOCALS, FRAME_OWNER,
    CODE_SIZE, CODE_FILE, CODE_NAME, CODE_QUALNAME, CODE_LINES, CODE_FIRST_LINE, CODE_ARGUMENTS, CODE_LOCAL_NAMES,
    CODE_LOCAL_KINDS, CODE_BYTECODE,
    BYTES_PLACE = 65, /* ob_size, ob_sval */
    TEXT_STATE = 68, TEXT_LENGTH, TEXT_HEAD,
};

static bool has_debug_offsets(uintptr_t runtime) {
    return runtime != 0 && memcmp((const void *)runtime, "xdebugpy", 8) == 0;
}

static void take_debug_offsets(uintptr_t runtime, tw_offsets *at) {
    const uint64_t *word = (const uint64_t *)runtime;
#define AT(place) (uint32_t)word[place]
    *at = (tw_offsets){AT(THREAD_FRAME), NONE, NONE, AT(FRAME_CODE), AT(FRAME_PREVIOUS), AT(FRAME_INSTRUCTION),
                       AT(FRAME_OWNER), 3, AT(CODE_QUALNAME), AT(CODE_FILE), AT(CODE_FIRST_LINE), AT(CODE_LINES),
                       AT(CODE_BYTECODE), AT(TEXT_LENGTH), AT(TEXT_STATE), AT(TEXT_HEAD), AT(BYTES_PLACE),
                       AT(BYTES_PLACE + 1), GIL};
#undef AT
}

static uintptr_t word_at(uintptr_t address) { return *(const uintptr_t *)address; }

static uintptr_t gil_of(uint32_t minor, uintptr_t runtime, uintptr_t interpreter) {
    if (minor <= 11) return runtime == 0 ? 0 : runtime + (minor == 10 ? 352 : 360);
    if (interpreter == 0) return 0;
    return word_at(interpreter + (minor == 12 ? 384 : ((const uint64_t *)runtime)[INTERPRETER_GIL]));
}

bool tw_interpreter_find(tw_interpreter *out, uint32_t minor, uintptr_t runtime, uintptr_t interpreter,
                         uintptr_t code_type, const char *library) {
    memset(out, 0, sizeof *out);
    out->minor = minor;
    out->code_type = code_type;
    out->interpreter = interpreter;
    snprintf(out->library, sizeof out->library, "%s", library);
    if (minor == 13 && has_debug_offsets(runtime)) take_debug_offsets(runtime, &out->at);
    else if (minor >= 10 && minor <= 12) out->at = known[minor];
    else return false;
    out->gil = gil_of(minor, runtime, interpreter);
    return true;
}

/* ---- copies ---- */

static uintptr_t word_in(const unsigned char *bytes, uint32_t at) {
    uintptr_t word;
    memcpy(&word, bytes + at, sizeof word);
    return word;
}

static bool read_word(const tw_reader *r, uintptr_t from, uintptr_t *to) { return tw_read(r, from, to, sizeof *to); }

/* The innermost frame of a thread, and the word that leads to it. */
static bool read_top(const tw_interpreter *i, const tw_reader *r, uintptr_t thread, uintptr_t *that,
                     uintptr_t *frame) {
    if (!read_word(r, thread + i->at.thread_frame, that)) return false;
    *frame = *that;
    return i->at.frame_of_that == NONE || read_word(r, *that + i->at.frame_of_that, frame);
}

/* ---- text ---- */

#define STATE_ASCII (1U << 6) /* of 3.10 to 3.13: interned 2 bits (3.12: and more), kind 3, compact 1, ascii 1 */
#define STATE_COMPACT (1U << 5)

/* Compact ASCII, or '?' for each character of another text. tail: the end of it, where it is longer. */
static bool read_text(const tw_interpreter *i, const tw_reader *r, uintptr_t text, char to[TW_FRAME_TEXT], bool tail) {
    unsigned char head[64];
    if (!tw_read(r, text, head, i->at.text_state + 4)) return false;
    const uint64_t length = word_in(head, i->at.text_length);
    uint32_t state;
    memcpy(&state, head + i->at.text_state, sizeof state);
    if (length == 0 || length > 1 << 16) return false;
    const size_t taken = length < TW_FRAME_TEXT - 1 ? (size_t)length : TW_FRAME_TEXT - 1;
    if ((state & STATE_COMPACT) == 0) return false;
    if ((state & STATE_ASCII) == 0) memset(to, '?', taken);
    else if (!tw_read(r, text + i->at.text_bytes + (tail ? length - taken : 0), to, taken)) return false;
    to[taken] = '\0';
    return true;
}

/* ---- lines ---- */

typedef struct table {
    const unsigned char *at, *end;
} table;

static uint32_t varint(table *t) {
    uint32_t value = 0, shift = 0, byte;
    do {
        byte = t->at < t->end ? *t->at++ : 0;
        value |= (byte & 63) << (shift & 31);
        shift += 6;
    } while (byte & 64 && shift < 30);
    return value;
}

static int32_t signed_varint(table *t) {
    const uint32_t value = varint(t);
    return value & 1 ? -(int32_t)(value >> 1) : (int32_t)(value >> 1);
}

/* One entry of the location table of 3.11 and later (Objects/locations.md): how much the line changes. */
static int32_t line_change(table *t, uint32_t code) {
    if (code == 15) return 0;
    return code == 13 || code == 14 ? signed_varint(t) : code >= 10 ? (int32_t)code - 10 : 0;
}

static uint32_t line_of_locations(table t, uint32_t first, uint32_t instruction) {
    int32_t line = (int32_t)first;
    uint32_t reached = 0;
    while (t.at < t.end) {
        const uint32_t entry = *t.at++;
        reached += 2 * ((entry & 7) + 1);
        line += line_change(&t, entry >> 3 & 15);
        if (reached > instruction) return line > 0 ? (uint32_t)line : first;
        while (t.at < t.end && (*t.at & 0x80) == 0) t.at++;
    }
    return first;
}

/* 3.10: pairs of bytes: how far it reaches, how much the line changes (-128: no line). */
static uint32_t line_of_pairs(table t, uint32_t first, uint32_t instruction) {
    int32_t line = (int32_t)first;
    uint32_t reached = 0;
    for (; t.at + 1 < t.end; t.at += 2) {
        const int32_t change = (signed char)t.at[1];
        if (change != -128) line += change;
        reached += t.at[0];
        if (reached > instruction) return line > 0 ? (uint32_t)line : first;
    }
    return first;
}

static uint32_t read_line(const tw_interpreter *i, const tw_reader *r, uintptr_t lines, uint32_t first, uint32_t at) {
    unsigned char bytes[LINES_MOST];
    uintptr_t size;
    if (!read_word(r, lines + i->at.bytes_size, &size) || size == 0) return first;
    const size_t taken = size < sizeof bytes ? (size_t)size : sizeof bytes;
    if (!tw_read(r, lines + i->at.bytes_data, bytes, taken)) return first;
    const table t = {bytes, bytes + taken};
    return i->minor == 10 ? line_of_pairs(t, first, at) : line_of_locations(t, first, at);
}

/* ---- frames ---- */

/* A frame as it was read: its code and where in it. */
typedef struct raw_frame {
    uintptr_t address, code, previous, instruction;
    bool skip; /* it is of no Python function */
} raw_frame;

#define FRAME_SIZE(i) ((i)->minor == 10 ? 104U : 72U)

static void take_frame(const tw_interpreter *i, const unsigned char *bytes, uintptr_t address, raw_frame *out) {
    out->address = address;
    out->code = word_in(bytes, i->at.frame_code);
    out->previous = word_in(bytes, i->at.frame_previous);
    out->instruction = word_in(bytes, i->at.frame_instruction);
    if (i->minor == 10) out->instruction = 2 * (out->instruction & UINT32_MAX); /* an int: of two bytes each */
    out->skip = i->at.owner_c != NONE && i->at.frame_owner != NONE && bytes[i->at.frame_owner] == i->at.owner_c;
}

static bool read_frame(const tw_interpreter *i, const tw_reader *r, uintptr_t address, raw_frame *out) {
    unsigned char bytes[FRAME_BYTES];
    if (!tw_read(r, address, bytes, FRAME_SIZE(i))) return false;
    take_frame(i, bytes, address, out);
    return true;
}

static bool same(const raw_frame *a, const raw_frame *b) {
    return a->address == b->address && a->code == b->code && a->previous == b->previous;
}

/* Names of a frame's code. false: it is no code object (any more). */
static bool read_code(const tw_interpreter *i, const tw_reader *r, const raw_frame *raw, tw_python_frame *out) {
    unsigned char code[CODE_BYTES];
    char path[TW_FRAME_TEXT];
    if (!tw_read(r, raw->code, code, 144) || word_in(code, 8) != i->code_type) return false;
    uint32_t first;
    memcpy(&first, code + i->at.code_first_line, sizeof first);
    const uintptr_t file = word_in(code, i->at.code_file);
    if (!read_text(i, r, word_in(code, i->at.code_name), out->function, false)) return false;
    if (!read_text(i, r, file, path, true)) return false;
    const uintptr_t from = i->at.code_bytes == NONE ? 0 : raw->code + i->at.code_bytes;
    const uintptr_t at = raw->instruction >= from ? raw->instruction - from : 0;
    out->line = read_line(i, r, word_in(code, i->at.code_lines), first, at > NONE ? 0 : (uint32_t)at);
    out->address = raw->address;
    out->code = raw->code;
    char start[TW_LIBRARY_TEXT] = "";
    const size_t library = strlen(i->library);
    out->in_library = path[0] == '<' || (library > 0 && tw_read(r, file + i->at.text_bytes, start, library) &&
                                         memcmp(start, i->library, library) == 0);
    snprintf(out->file, sizeof out->file, "%s", tw_path_end(path));
    out->is_loop = strstr(path, "/asyncio/") != NULL || strstr(path, "/uvloop/") != NULL;
    if (out->in_library && strstr(path, "site-packages") != NULL) out->in_library = false;
    return true;
}

/* What leads to the innermost frame: the thread's word, and before 3.13 the word that it points to; and that it is a
 * thread's still: the memory of one that has ended may hold anything. */
static size_t put_top(const tw_interpreter *i, uintptr_t thread, uintptr_t that, tw_piece *pieces) {
    pieces[0] = (tw_piece){thread + THREAD_INTERPRETER, sizeof(uintptr_t)};
    pieces[1] = (tw_piece){thread + i->at.thread_frame, sizeof(uintptr_t)};
    if (i->at.frame_of_that == NONE) return 2;
    pieces[2] = (tw_piece){that + i->at.frame_of_that, sizeof(uintptr_t)};
    return 3;
}

static bool is_top(const tw_interpreter *i, const unsigned char *bytes, uintptr_t that, uintptr_t top) {
    if (word_in(bytes, 0) != i->interpreter || word_in(bytes, sizeof(uintptr_t)) != that) return false;
    return i->at.frame_of_that == NONE || word_in(bytes, 2 * sizeof(uintptr_t)) == top;
}

/* Before 3.13 a C function that begins to run frames has them found by a word of its own stack before that is written:
 * what stood there before may be a frame that has returned, beyond the part of the stack of frames that is in use. */
static bool is_in_use(const tw_interpreter *i, const tw_reader *r, uintptr_t thread, uintptr_t frame) {
    uintptr_t stack[3]; /* begins, is used up to, ends */
    if (i->at.stack_chunk == NONE) return true;
    if (!tw_read(r, thread + i->at.stack_chunk, stack, sizeof stack)) return false;
    return frame < stack[0] || frame >= stack[2] || frame < stack[1];
}

/* Whether the chain stands as it was read, at one instant. A caller must still be at its call: what has returned leaves
 * its frame behind. */
static bool stands(const tw_interpreter *i, const tw_reader *r, uintptr_t thread, uintptr_t that, const raw_frame *raw,
                   uint32_t n) {
    tw_piece pieces[TW_FRAMES + 6];
    unsigned char bytes[(TW_FRAMES + 1) * FRAME_BYTES];
    const size_t tops = put_top(i, thread, that, pieces), top_bytes = tops * sizeof(uintptr_t);
    for (uint32_t k = 0; k < n; k++) pieces[tops + k] = (tw_piece){raw[k].address, FRAME_SIZE(i)};
    (void)put_top(i, thread, that, &pieces[tops + n]);
    if (!tw_read_all(r, pieces, 2 * tops + n, bytes) || !is_top(i, bytes, that, raw[0].address)) return false;
    for (uint32_t k = 0; k < n; k++) {
        raw_frame again;
        take_frame(i, bytes + top_bytes + k * FRAME_SIZE(i), raw[k].address, &again);
        if (!same(&raw[k], &again) || (k > 0 && raw[k].instruction != again.instruction)) return false;
    }
    return is_top(i, bytes + top_bytes + n * FRAME_SIZE(i), that, raw[0].address) &&
           is_in_use(i, r, thread, raw[0].address);
}

/* Up to 4 us, each time another: a loop that takes as long as a look is not met at the same place by each of them. */
static void wait_for_a_moment(void) {
    const uint64_t now = tw_now_ns(), until = now + (now * UINT64_C(0x9E3779B97F4A7C15) >> 52);
    while (tw_now_ns() < until) { }
}

/* One attempt: the chain, what it runs, and the chain again: it must not have changed. */
static uint32_t read_once(const tw_interpreter *i, const tw_reader *r, uintptr_t thread, tw_python_frame *out,
                          uint32_t wanted) {
    raw_frame raw[TW_FRAMES];
    uint32_t n = 0, kept = 0;
    bool has_caller = false;
    uintptr_t frame, that;
    if (!read_top(i, r, thread, &that, &frame)) return 0;
    for (; frame != 0 && n < TW_FRAMES; n++) {
        if (!read_frame(i, r, frame, &raw[n])) return 0;
        if (!raw[n].skip && !read_code(i, r, &raw[n], &out[kept++])) return 0;
        frame = raw[n].previous;
        has_caller = has_caller || (kept >= 2 && !out[kept - 1].in_library);
        if (kept >= 2 && (out[kept - 1].is_loop || (has_caller && kept >= wanted))) break;
    }
    if (kept >= 2 && out[kept - 1].is_loop) kept--; /* what runs the loop is no caller */
    for (int look = 0; look < LOOKS && n > 0; look++) {
        if (!stands(i, r, thread, that, raw, n)) return 0;
        wait_for_a_moment();
    }
    return n > 0 ? kept : 0;
}

uint32_t tw_frames_read(const tw_interpreter *i, const tw_reader *r, uintptr_t thread, tw_python_frame *out,
    uint32_t wanted) {
    uint32_t n = 0;
    for (int attempt = 0; attempt < TRIES && n == 0; attempt++) n = read_once(i, r, thread, out, wanted);
    return n;
}

uintptr_t tw_gil_holder(const tw_interpreter *i, const tw_reader *r) {
    uintptr_t holder = 0;
    uint32_t locked = 0;
    if (i->gil == 0 || !tw_read(r, i->gil + i->at.gil_locked, &locked, sizeof locked) || locked != 1) return 0;
    return read_word(r, i->gil + i->at.gil_holder, &holder) ? holder : 0;
}

uintptr_t tw_thread_context(const tw_interpreter *i, const tw_reader *r, uintptr_t thread) {
    uintptr_t context;
    return i->context_at != 0 && read_word(r, thread + i->context_at, &context) ? context : 0;
}

size_t tw_frames_name(const tw_python_frame *frames, uint32_t n, char *to, size_t size) {
    if (n == 0) return 0;
    int length = snprintf(to, size, "%s  %s:%u", frames[0].function, frames[0].file, frames[0].line);
    for (uint32_t k = 1; k < n; k++) {
        if (frames[k].in_library || length < 0 || (size_t)length >= size) continue;
        length += snprintf(to + length, size - (size_t)length, "  <- %s  %s:%u", frames[k].function, frames[k].file,
                           frames[k].line);
        break;
    }
    return length < 0 ? 0 : (size_t)length < size ? (size_t)length : size - 1;
}
