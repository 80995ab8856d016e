/* The encoder as it is built without vectors, beside the library's own: portable_json_escaped_len() and so on. */
#ifndef TAILWATCH_TESTS_C_SSE_PORTABLE_H
#define TAILWATCH_TESTS_C_SSE_PORTABLE_H

#include "tailwatch/wire/sse_encode.h"

#define TW_PORTABLE
#define tw_json_escaped_len portable_json_escaped_len
#define tw_json_escape portable_json_escape
#define tw_frame_len portable_frame_len
#define tw_frame_write portable_frame_write

#include "../../csrc/wire/sse_encode.c"

#undef TW_PORTABLE
#undef tw_json_escaped_len
#undef tw_json_escape
#undef tw_frame_len
#undef tw_frame_write

#ifdef TW_VECTOR_WIDTH
#error "this is to be the build without vectors"
#endif

#endif
