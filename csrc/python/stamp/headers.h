/* What the headers of a request and of a response hold. */
#pragma once

#include "python/module.h"

#include "tailwatch/wire/body_scan.h"

/* rank, engine: 0: none is named. The texts stand in the headers. */
typedef struct request_identity {
    const char *request, *trace;
    size_t request_len, trace_len;
    uint64_t rank, engine;
    int sampled;
} request_identity;

/* sized: its length is given. plain: of no type, or of one that may be pieces of a text. */
typedef struct response_kind {
    tw_framing framing;
    int streams, opaque, sized, plain;
} response_kind;

/* headers: a list or tuple of pairs of bytes; of anything else (NULL too) nothing is taken. */
void headers_identity(PyObject *headers, request_identity *out);
void headers_response(PyObject *headers, response_kind *out);
