/* Encoder: what one answer's encoder does at each token. */
#ifndef TAILWATCH_PYTHON_SSE_ENCODER_H
#define TAILWATCH_PYTHON_SSE_ENCODER_H

#include "python/module.h"

extern PyType_Spec tw_encoder_spec;

#endif
