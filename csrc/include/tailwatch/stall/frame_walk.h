/* What a Python thread runs, read by another thread that has not the interpreter lock, while the thread goes on.
 *
 * Where things stand in the interpreter's memory: its own table since CPython 3.13, tables here for 3.10 to 3.12. Both
 * are checked against the calling thread's frames before use (tw_interpreter_sees); nothing is read but by copies that
 * cannot fault, and a stack that changed while it was read is refused.
 *
 * Thread rule: an interpreter's description is written once; then any thread, with a reader of its own.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/stall/safe_read.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

#define TW_FRAMES 24        /* at most so many are looked at */
#define TW_FRAME_TEXT 96    /* bytes of a function's or file's name, with the NUL; the end of a file's */
#define TW_LIBRARY_TEXT 256

/* Offsets in the interpreter's structs, bytes. */
typedef struct tw_offsets {
    uint32_t thread_frame;      /* of a thread's state: its frame; before 3.13 what points to it */
    uint32_t frame_of_that;     /* UINT32_MAX: it is the frame itself */
    uint32_t stack_chunk;       /* of its stack of frames: begins, is used up to, ends; UINT32_MAX: not needed */
    uint32_t frame_code, frame_previous, frame_instruction, frame_owner; /* owner: UINT32_MAX: none */
    uint32_t owner_c;           /* the owner of a frame that is no Python function's; UINT32_MAX: there is none */
    uint32_t code_name, code_file, code_first_line, code_lines, code_bytes; /* bytes: UINT32_MAX: an index */
    uint32_t text_length, text_state, text_bytes;
    uint32_t bytes_size, bytes_data;
    uint32_t gil_holder, gil_locked, gil_size;
} tw_offsets;

typedef struct tw_interpreter {
    bool known;                 /* it was checked */
    uint32_t minor;             /* 10 to 13 */
    tw_offsets at;
    uintptr_t gil;              /* its struct; 0: not known */
    uint32_t context_at;        /* of a thread's state: the context in which it runs code; 0: not known */
    uintptr_t code_type, interpreter;
    char library[TW_LIBRARY_TEXT]; /* directory of the standard library: frames in it are callers of no interest */
} tw_interpreter;

typedef struct tw_python_frame {
    uintptr_t address, code;
    uint32_t line;
    bool in_library;
    bool is_loop;               /* of asyncio or uvloop */
    char function[TW_FRAME_TEXT], file[TW_FRAME_TEXT]; /* the file's last part, two of an __init__.py */
} tw_python_frame;

/* Fills in what depends on the version. runtime: address of _PyRuntime; interpreter: of the main interpreter's state;
 * both 0 where not known. false: a version that is not known. Under the GIL. */
bool tw_interpreter_find(tw_interpreter *out, uint32_t minor, uintptr_t runtime, uintptr_t interpreter,
                         uintptr_t code_type, const char *library);

/* Frames of a thread, the innermost first, at most TW_FRAMES: up to the loop, or until there are `wanted` and one that
 * tw_frames_name() takes for the caller. thread: its PyThreadState. Returns how many; 0: none, or a stack that changed
 * meanwhile each time. */
uint32_t tw_frames_read(const tw_interpreter *i, const tw_reader *r, uintptr_t thread, tw_python_frame *out,
    uint32_t wanted);

/* The thread state that holds the interpreter lock; 0: none does, or it is not known. */
uintptr_t tw_gil_holder(const tw_interpreter *i, const tw_reader *r);

/* What identifies the context in which a thread runs code; 0: it runs in none, or it is not known. */
uintptr_t tw_thread_context(const tw_interpreter *i, const tw_reader *r, uintptr_t thread);

/* Whether an address of a futex is one of the interpreter lock's. */
static inline bool tw_gil_has(const tw_interpreter *i, uintptr_t address) {
    return i->gil != 0 && address >= i->gil && address < i->gil + i->at.gil_size;
}

#define TW_FRAMES_NAME 2 /* wanted for a name */

/* "function  file.py:12", with "  <- caller  file.py:30": the nearest one outside the standard library. Returns the
 * length of what fits into size bytes with a NUL; 0: no frames. */
size_t tw_frames_name(const tw_python_frame *frames, uint32_t n, char *to, size_t size);

TW_END_C
